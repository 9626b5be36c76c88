//! What a server answers to a POST.

use std::sync::Arc;

use axum::response::Response;
use portcullis::config::server_keys::Lifecycle;
use portcullis::model::answer::Answer;
use portcullis::ports::upstream::{ConnectionEvent, Unanswered};
use serde_json::json;

use super::*;
use crate::support::http_server::{Asked, event, fed, json, piece, refused, status, stream, typed};
use crate::support::{Seen, eventually};

/// How a server says at either kind of handshake what it can do: it asks for the sandbox, or for something else.
fn declares(asked: &Asked, wants: bool) -> Option<Response> {
    let name = if wants { "codex/sandbox-state-meta" } else { "odd" };
    let capabilities = json!({ "tools": {}, "experimental": { name: {} } });
    let result = match asked.method() {
        "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "serverInfo": { "name": "s", "version": "1" } }),
        _ => json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
            "ttlMs": 0, "cacheScope": "private" }),
    };
    Some(json(&asked.result(&result)))
}

#[tokio::test]
async fn m6_in_either_era_a_server_asks_for_the_sandbox_as_it_is_connected() {
    for wants in [true, false] {
        let older = HttpServer::start(move |asked| async move {
            if asked.method() == "initialize" { declares(&asked, wants) } else { None }
        });
        let newer = HttpServer::start_modern(move |asked| async move {
            if asked.method() == "server/discover" { declares(&asked, wants) } else { None }
        });
        for (server, handshake) in [(older, "initialize"), (newer, "server/discover")] {
            let (connection, _) = connect(&server).await;
            let listing = connection.list(Instant::now() + PATIENCE).await.unwrap();
            assert_eq!((listing.wants_sandbox_state, server.count(handshake)), (wants, 1), "{handshake}");
        }
    }
}

#[tokio::test]
async fn a_server_of_the_older_era_is_listed_and_called_in_its_session() {
    let server = HttpServer::start(async |_| None);
    let (connection, _) = connect(&server).await;
    assert_eq!(list(&connection).await, 1);
    lives(&connection).await;
    let traffic = connection.traffic();
    assert!(traffic.received > 200 && traffic.sent > 200, "{traffic:?}");
    let asked = server.asked();
    let first: Vec<&str> = asked.iter().map(Asked::method).filter(|method| *method != "GET").collect();
    assert_eq!(first, ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"]);
    for asked in asked.iter().filter(|asked| asked.verb == "POST") {
        assert_eq!(asked.header("content-type"), Some("application/json"));
        assert_eq!(asked.header("accept"), Some("application/json, text/event-stream"));
    }
    let call = asked.last().unwrap();
    assert_eq!(call.header("mcp-session-id"), Some("session-1"));
    assert_eq!(call.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(call.header("mcp-method"), None);
    let initialize = asked.iter().find(|asked| asked.method() == "initialize").unwrap();
    assert_eq!(initialize.header("mcp-session-id").or(initialize.header("mcp-protocol-version")), None);
    connection.close().await;
    let last = server.asked().pop().unwrap();
    assert_eq!((last.method(), last.header("mcp-session-id")), ("DELETE", Some("session-1")));
}

#[tokio::test]
async fn a_server_of_the_stateless_era_is_told_method_tool_and_annotated_arguments_in_headers() {
    let server = HttpServer::start_modern(async |asked| {
        let schema =
            json!({ "type": "object", "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
        (asked.method() == "tools/list")
            .then(|| json(&asked.result(&json!({ "tools": [{ "name": "caf\u{e9}", "inputSchema": schema }] }))))
    });
    let (connection, _) = connect(&server).await;
    list(&connection).await;
    let arguments = json!({ "region": "n\u{f6}rd" }).as_object().unwrap().clone();
    let order = OutgoingCall { arguments: Some(arguments), ..outgoing("caf\u{e9}") };
    assert_eq!(said(end(connection.hand_over(order).await.unwrap()).await), "caf\u{e9}");
    assert_eq!(server.methods(), ["server/discover", "tools/list", "tools/call"]);
    for asked in server.asked() {
        assert_eq!(asked.header("mcp-method"), Some(asked.method()));
        assert_eq!(asked.header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(asked.header("mcp-session-id"), None);
    }
    let call = server.asked().pop().unwrap();
    assert_eq!(call.header("mcp-name"), Some("=?base64?Y2Fmw6k=?="));
    assert_eq!(call.header("mcp-param-region"), Some("=?base64?bsO2cmQ=?="));
    connection.close().await;
    assert_eq!(server.count("DELETE"), 0);
}

#[tokio::test]
async fn whatever_an_older_server_says_to_discovery_it_is_asked_for_a_session_next() {
    type Answers = fn(&Asked) -> Response;
    let answers: [(&str, Answers); 7] = [
        ("plain", |_| status(400)),
        ("method", |_| status(405)),
        ("accepted", |_| status(202)),
        ("empty", |_| typed("application/json", "")),
        ("html", |_| {
            let mut page = typed("text/html", "<h1>no</h1>");
            *page.status_mut() = http::StatusCode::NOT_FOUND;
            page
        }),
        ("unreadable", |_| refused(400, &error(&Value::Null, -32000, "Bad Request: No valid session ID provided"))),
        ("answer", |asked| json(&error(&asked.body["id"], -32601, "no such method"))),
    ];
    for (name, answer) in answers {
        let server =
            HttpServer::start(
                move |asked| async move { (asked.method() == "server/discover").then(|| answer(&asked)) },
            );
        let (connection, _) = connect(&server).await;
        lives(&connection).await;
        assert!(server.count("initialize") == 1, "{name}");
    }
}

#[tokio::test]
async fn a_stream_gives_progress_in_order_and_then_the_answer_wherever_it_is_cut() {
    let server = HttpServer::start(async |asked| {
        asked.tool().filter(|tool| *tool == "slow")?;
        let token = &asked.body["params"]["_meta"]["progressToken"];
        let progress = |n: u32| {
            event(&json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                "params": { "progressToken": token, "progress": n } }))
        };
        let text: String = (1..=200).map(progress).chain([event(&asked.says("done"))]).collect();
        let pieces: Vec<String> =
            text.as_bytes().chunks(7).map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect();
        Some(stream(&pieces.iter().map(String::as_str).collect::<Vec<_>>()))
    });
    let (connection, _) = connect(&server).await;
    let seen = Seen::new();
    let order = OutgoingCall { progress: Some(seen.clone()), ..outgoing("slow") };
    assert_eq!(said(end(connection.hand_over(order).await.unwrap()).await), "done");
    let counts: Vec<f64> = seen.all().iter().map(|progress| progress.progress).collect();
    assert_eq!(counts, (1..=200).map(f64::from).collect::<Vec<_>>(), "pitfall 5");
}

#[tokio::test]
async fn pitfall_2_an_answer_that_is_too_large_fails_its_call_only() {
    let server = HttpServer::start(async |asked| {
        let large = asked.says(&"x".repeat(SMALL));
        match asked.tool()? {
            // Its length is known in advance.
            "json" => Some(json(&large)),
            "chunked" => {
                let (feed, response) = fed("application/json");
                large.to_string().as_bytes().chunks(1000).for_each(|part| feed.send(Ok(part.to_vec().into())).unwrap());
                Some(response)
            }
            "event" => Some(stream(&[&event(&large)])),
            // Neither ends by itself.
            "endless" => {
                let (feed, response) = fed("text/event-stream");
                feed.send(piece("data: ")).unwrap();
                tokio::spawn(async move {
                    while feed.send(piece(&"x".repeat(1000))).is_ok() {
                        tokio::task::yield_now().await;
                    }
                });
                Some(response)
            }
            _ => None,
        }
    });
    let (connection, told) = How::small().connect(&server).await;
    for tool in ["json", "chunked", "event", "endless"] {
        let why = failed(call(&connection, tool).await);
        assert_eq!(why, format!("the server's answer has more than {SMALL} bytes"), "{tool}");
    }
    assert_eq!(told.saw(ConnectionEvent::Oversized), 4);
    lives(&connection).await;
}

#[tokio::test]
async fn what_is_no_answer_is_a_failure_that_says_status_and_type_and_never_the_body() {
    let server = HttpServer::start(async |asked| {
        Some(match asked.tool()? {
            "html" => typed("text/html; charset=utf-8", HUSH),
            "untyped" => Response::new(HUSH.into()),
            "no-json" => typed("application/json", HUSH),
            "no-utf8" => typed("application/json", vec![b'"', 0xff, b'"']),
            "batch" => typed("application/json", format!("[{}]", asked.says("x"))),
            "500" => {
                let mut response = typed("text/plain", HUSH);
                *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                response
            }
            "503" => http::Response::builder().status(503).header("retry-after", "7").body(HUSH.into()).unwrap(),
            "wrong-id" => json(&json!({ "jsonrpc": "2.0", "id": 999_999, "result": { "content": [] } })),
            "notification" => json(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": {} })),
            "accepted" => status(202),
            "empty-stream" => stream(&[]),
            "rubbish-stream" => stream(&["data: \u{1}\n\n", ": hush\n\n", "data: {}\n\n"]),
            _ => return None,
        })
    });
    let (connection, _) = connect(&server).await;
    let expected = [
        ("html", "200 OK (`text/html`)"),
        ("untyped", "200 OK"),
        ("no-json", "no JSON"),
        ("no-utf8", "not UTF-8"),
        ("batch", "batch"),
        ("500", "500 Internal Server Error (`text/plain`)"),
        ("503", "try again in 7 s"),
        ("wrong-id", "an answer to another request"),
        ("notification", "no answer"),
        ("accepted", "gave no answer"),
        ("empty-stream", "broke off: it ended"),
        ("rubbish-stream", "broke off: it ended"),
    ];
    for (tool, part) in expected {
        let why = failed(call(&connection, tool).await);
        assert!(why.contains(part), "{tool}: {why}");
    }
    lives(&connection).await;
}

#[tokio::test]
async fn an_http_error_that_holds_the_answer_is_passed_on_with_its_code_and_data() {
    let server = HttpServer::start(async |asked| {
        let id = &asked.body["id"];
        match asked.tool()? {
            "own" => Some(refused(422, &error(id, -32050, "out of order"))),
            "nobodys" => Some(refused(400, &error(&Value::Null, -32051, "unreadable"))),
            "others" => Some(refused(400, &error(&json!(999_999), -32052, "another's"))),
            _ => None,
        }
    });
    let (connection, _) = connect(&server).await;
    for (tool, code) in [("own", -32050), ("nobodys", -32051)] {
        let Ok(Answer::Error(error)) = call(&connection, tool).await else { panic!("{tool}") };
        assert_eq!((error.code, error.data), (code, Some(json!({ "k": [1] }))));
    }
    assert!(failed(call(&connection, "others").await).contains("400 Bad Request"));
}

#[tokio::test]
async fn no_response_settles_another_call_and_a_second_answer_is_nobodys() {
    let (feed, slow) = fed("text/event-stream");
    let slow = Arc::new(Mutex::new(Some((slow, None::<Value>))));
    let kept = slow.clone();
    let server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move {
            match asked.tool()? {
                "slow" => {
                    let mut kept = kept.lock();
                    let (response, _) = kept.take().unwrap();
                    *kept = Some((status(500), Some(asked.body["id"].clone())));
                    Some(response)
                }
                "thief" => {
                    let other = kept.lock().as_ref().unwrap().1.clone().unwrap();
                    let stolen = json!({ "jsonrpc": "2.0", "id": other, "result": { "content": [] } });
                    Some(stream(&[&event(&stolen), &event(&asked.says("mine")), &event(&asked.says("again"))]))
                }
                _ => None,
            }
        }
    });
    let (connection, told) = connect(&server).await;
    let waiting = start(&connection, "slow").await;
    eventually("the slow call to arrive", || slow.lock().as_ref()?.1.clone()).await;
    assert_eq!(said(call(&connection, "thief").await), "mine");
    assert_eq!(told.saw(ConnectionEvent::Rubbish), 1);
    let id = slow.lock().as_ref().unwrap().1.clone().unwrap();
    feed.send(piece(&event(
        &json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [{ "type": "text", "text": "slow" }] } }),
    )))
    .unwrap();
    assert_eq!(said(end(waiting).await), "slow");
    lives(&connection).await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_a_lost_call() {
    let server = HttpServer::start(async |asked| {
        let kind = if asked.tool()? == "json" { "application/json" } else { "text/event-stream" };
        let (feed, response) = fed(kind);
        feed.send(piece("data: {")).unwrap();
        feed.send(Err(std::io::Error::other("dead"))).unwrap();
        (asked.tool()? != "t").then_some(response)
    });
    let (connection, _) = connect(&server).await;
    for tool in ["json", "events"] {
        let lost = call(&connection, tool).await;
        assert!(matches!(&lost, Err(Unanswered::Lost(_))), "{lost:?}");
    }
    lives(&connection).await;
}

#[tokio::test]
async fn a_modern_only_setting_says_that_the_server_refuses_it() {
    let server = HttpServer::start(async |_| None);
    let modern = How { lifecycle: Lifecycle::Modern, ..How::default() };
    assert!(modern.refused(&server.url()).await.contains("does not know `server/discover`"));
    let legacy_only = How { lifecycle: Lifecycle::Legacy, ..How::default() };
    lives(&legacy_only.connect(&server).await.0).await;
    assert_eq!(server.count("server/discover"), 1);
    let page = HttpServer::start(async |asked| (asked.method() != "GET").then(|| typed("text/html", HUSH)));
    assert!(legacy_only.refused(&page.url()).await.contains("200 OK (`text/html`)"));
    assert!(How::default().refused(&page.url()).await.contains("200 OK (`text/html`)"));
}
