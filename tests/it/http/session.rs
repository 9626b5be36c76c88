//! Sessions that are forgotten, servers that die, streams that break: what can go on goes on, and what cannot ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use portcullis::model::answerable::Answerable;
use portcullis::ports::questions::{NoAnswer, Questions, ServerQuestion};
use portcullis::ports::upstream::{ConnectionEvent, Unanswered};
use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::support::eventually;
use crate::support::http_server::{Asked, Feed, event, fed, legacy, piece, refused, status, stream};

/// A server whose sessions end whenever a test says so.
#[derive(Default)]
struct Sessions {
    now: AtomicUsize,
}

impl Sessions {
    fn forget(&self) {
        self.now.fetch_add(1, Ordering::SeqCst);
    }

    /// Answers in today's session only; `gone` is what others get.
    fn answer(&self, asked: &Asked, gone: impl Fn() -> axum::response::Response) -> Option<axum::response::Response> {
        let today = format!("session-{}", self.now.load(Ordering::SeqCst));
        if asked.method() == "initialize" {
            let mut response = legacy(asked);
            response.headers_mut().insert("mcp-session-id", today.parse().unwrap());
            return Some(response);
        }
        let theirs = asked.header("mcp-session-id")?;
        (theirs != today && asked.verb == "POST").then(gone)
    }
}

fn forgetful(gone: fn() -> axum::response::Response) -> (HttpServer, Arc<Sessions>) {
    let sessions = Arc::<Sessions>::default();
    let kept = sessions.clone();
    let server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move { kept.answer(&asked, gone) }
    });
    (server, sessions)
}

fn bad_session() -> axum::response::Response {
    refused(400, &error(&Value::Null, -32000, "Bad Request: No valid session ID provided"))
}

#[tokio::test]
async fn a_forgotten_session_is_renewed_once_for_all_calls_and_the_tools_are_read_again() {
    for gone in [|| status(404), bad_session] {
        let (server, sessions) = forgetful(gone);
        let (connection, told) = connect(&server).await;
        lives(&connection).await;
        sessions.forget();
        let (a, b, c) = tokio::join!(call(&connection, "a"), call(&connection, "b"), call(&connection, "c"));
        assert_eq!([said(a), said(b), said(c)], ["a", "b", "c"]);
        assert_eq!(server.count("initialize"), 2, "one renewal for three calls");
        assert_eq!(server.count("notifications/initialized"), 2);
        assert_eq!((told.saw(ConnectionEvent::SessionRenewed), told.changes()), (1, 1));
        let texts: Vec<Value> = server
            .asked()
            .into_iter()
            .filter(|a| a.method() == "initialize")
            .map(|a| a.body["params"].clone())
            .collect();
        assert_eq!(texts[0], texts[1]);
        sessions.forget();
        lives(&connection).await;
        assert_eq!(told.saw(ConnectionEvent::SessionRenewed), 2, "also the next time");
    }
}

#[tokio::test]
async fn a_session_that_is_forgotten_as_soon_as_it_is_renewed_ends_the_connection() {
    let server = HttpServer::start(async |asked| asked.tool().map(|_| status(404)));
    let (connection, told) = connect(&server).await;
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::NotSent(why)) if why.contains("forgot the session again")), "{lost:?}");
    assert_eq!(server.count("tools/call"), 2);
    let why = eventually("the end", || told.closed()).await;
    assert!(why.contains("forgot the session again") && !connection.is_open());
}

#[tokio::test]
async fn a_session_that_cannot_be_renewed_ends_the_connection_with_the_reason() {
    let opened = Arc::new(AtomicUsize::new(0));
    let server = HttpServer::start(move |asked| {
        let opened = opened.clone();
        async move {
            match asked.method() {
                "initialize" if opened.fetch_add(1, Ordering::SeqCst) > 0 => Some(status(500)),
                "tools/call" => Some(status(404)),
                _ => None,
            }
        }
    });
    let (connection, told) = connect(&server).await;
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::NotSent(why)) if why.contains("500")), "{lost:?}");
    assert!(eventually("the end", || told.closed()).await.contains("could not be opened"));
}

#[tokio::test]
async fn an_unknown_method_in_a_session_is_no_forgotten_session() {
    let server = HttpServer::start(async |asked| {
        asked.tool().map(|_| refused(404, &error(&asked.body["id"], -32601, "unknown")))
    });
    let (connection, _) = connect(&server).await;
    assert_eq!(failed(call(&connection, "t").await), "unknown");
    assert_eq!(server.count("initialize"), 1);
}

#[tokio::test]
async fn a_dead_server_fails_each_call_at_once_and_a_restarted_one_is_picked_up() {
    let mut server = HttpServer::start(async |_| None);
    let address = server.address;
    let (connection, told) = connect(&server).await;
    lives(&connection).await;
    server.die();
    // The first one may be written to a connection that is dead already.
    failed(call(&connection, "t").await);
    for _ in 0..2 {
        let lost = call(&connection, "t").await;
        assert!(matches!(&lost, Err(Unanswered::NotSent(why)) if why.contains("cannot connect")), "{lost:?}");
        assert!(connection.is_open());
    }
    let sessions = Arc::<Sessions>::default();
    sessions.now.store(7, Ordering::SeqCst);
    let kept = sessions.clone();
    let _again = HttpServer::start_with(Some(address), None, legacy, move |asked| {
        let kept = kept.clone();
        async move { kept.answer(&asked, || status(404)) }
    });
    lives(&connection).await;
    assert_eq!(told.saw(ConnectionEvent::SessionRenewed), 1);
}

#[tokio::test]
async fn pitfall_10_calls_in_flight_end_when_the_server_dies() {
    let feeds = Arc::<Mutex<Vec<Feed>>>::default();
    let kept = feeds.clone();
    let mut server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move {
            let begin = match asked.tool()? {
                "named" => "id: 1\nretry: 20\ndata\n\n",
                "nameless" => ": hello\n\n",
                _ => "",
            };
            let (feed, response) = fed("text/event-stream");
            feed.send(piece(begin)).unwrap();
            kept.lock().push(feed);
            Some(response)
        }
    });
    let (connection, _) = connect(&server).await;
    let calls =
        [start(&connection, "named").await, start(&connection, "nameless").await, start(&connection, "silent").await];
    eventually("the calls to arrive", || (feeds.lock().len() == 3).then_some(())).await;
    server.die();
    for call in calls {
        let lost = end(call).await;
        assert!(matches!(lost, Err(Unanswered::Lost(_))), "{lost:?}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_taken_up_after_its_last_event() {
    let id = Arc::<Mutex<Value>>::default();
    let kept = id.clone();
    let server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move {
            if asked.tool().is_some() {
                *kept.lock() = asked.body["id"].clone();
                return Some(stream(&["id: first\nretry: 20\ndata\n\n"]));
            }
            match asked.header("last-event-id")? {
                // Nothing new, then a step further, then the end.
                "first" => Some(stream(&["id: second\ndata\n\n"])),
                "second" => {
                    let answer = Asked { body: json!({ "id": *kept.lock() }), ..asked };
                    Some(stream(&[&event(&answer.says("at last"))]))
                }
                _ => None,
            }
        }
    });
    let (connection, told) = connect(&server).await;
    assert_eq!(said(call(&connection, "t").await), "at last");
    assert_eq!(told.saw(ConnectionEvent::StreamResumed), 2);
    let resumed: Vec<Asked> = server.asked().into_iter().filter(|a| a.header("last-event-id").is_some()).collect();
    assert!(resumed.iter().all(|a| a.verb == "GET" && a.header("mcp-session-id") == Some("session-1")));
}

#[tokio::test]
async fn a_stream_whose_rest_does_not_come_is_given_up_after_five_attempts() {
    let server = HttpServer::start(async |asked| {
        if asked.tool().is_some() {
            return Some(stream(&["id: 1\nretry: 20\ndata\n\n"]));
        }
        asked.header("last-event-id").map(|_| status(503))
    });
    let (connection, _) = connect(&server).await;
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::Lost(why)) if why.contains("503")), "{lost:?}");
    let attempts = server.asked().iter().filter(|asked| asked.header("last-event-id").is_some()).count();
    assert_eq!(attempts, 5);
    assert!(connection.is_open());
}

#[tokio::test]
async fn a_server_that_has_no_rest_to_give_is_asked_once() {
    let server = HttpServer::start(async |asked| asked.tool().map(|_| stream(&["id: 1\nretry: 20\ndata\n\n"])));
    let (connection, _) = connect(&server).await;
    let lost = call(&connection, "t").await;
    assert!(matches!(&lost, Err(Unanswered::Lost(why)) if why.contains("405")), "{lost:?}");
}

#[tokio::test]
async fn changes_are_heard_of_on_the_stream_of_their_own_and_it_is_opened_again_where_it_ended() {
    let feed = Arc::<Mutex<Option<Feed>>>::default();
    let kept = feed.clone();
    let server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move {
            (asked.verb == "GET").then(|| {
                let (feed, response) = fed("text/event-stream");
                *kept.lock() = Some(feed);
                response
            })
        }
    });
    let (connection, told) = connect(&server).await;
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let open = || feed.lock().take();
    let first = eventually("the stream", open).await;
    first.send(piece(&format!("id: 41\n{}", event(&changed)))).unwrap();
    // No answer belongs here.
    first.send(piece(&event(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} })))).unwrap();
    eventually("the change", || (told.changes() == 1).then_some(())).await;
    drop(first);
    let second = eventually("the stream again", open).await;
    second.send(piece(&event(&changed))).unwrap();
    eventually("the next change", || (told.changes() == 2).then_some(())).await;
    let gets: Vec<Option<String>> = server
        .asked()
        .iter()
        .filter(|asked| asked.verb == "GET")
        .map(|asked| asked.header("last-event-id").map(str::to_owned))
        .collect();
    assert_eq!(gets, [None, Some("41".to_owned())]);
    assert_eq!((told.saw(ConnectionEvent::StreamResumed), told.saw(ConnectionEvent::Rubbish)), (1, 1));
    lives(&connection).await;
}

#[tokio::test]
async fn a_probe_that_is_answered_late_does_not_end_the_connection_that_was_opened_without_it() {
    let late = Arc::new(Notify::new());
    let kept = late.clone();
    let server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move {
            if asked.method() == "server/discover" {
                kept.notified().await;
                return Some(status(403));
            }
            (asked.method() == "notifications/initialized").then(|| {
                kept.notify_one();
                status(202)
            })
        }
    });
    let url = server.url();
    let connecting = tokio::spawn(async move { How::default().try_connect(&url).await });
    eventually("the probe", || (server.count("server/discover") == 1).then_some(())).await;
    // rmcp waits ten seconds for its answer.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let (connection, _) = connecting.await.unwrap().unwrap();
    lives(&connection).await;
}

#[tokio::test]
async fn a_session_that_is_opened_for_the_probe_is_ended() {
    let server = HttpServer::start(async |asked| {
        (asked.method() == "server/discover").then(|| {
            let mut response = status(400);
            response.headers_mut().insert("mcp-session-id", "never-meant".parse().unwrap());
            response
        })
    });
    let (connection, _) = connect(&server).await;
    lives(&connection).await;
    let ended = eventually("the end of that session", || server.asked().into_iter().find(|a| a.verb == "DELETE")).await;
    assert_eq!(ended.header("mcp-session-id"), Some("never-meant"));
}

#[tokio::test]
async fn a_stream_of_a_session_that_is_over_is_not_taken_up_in_the_next_one() {
    let (sessions, feed) = (Arc::<Sessions>::default(), Arc::<Mutex<Option<Feed>>>::default());
    let (kept, given) = (sessions.clone(), feed.clone());
    let server = HttpServer::start(move |asked| {
        let (kept, given) = (kept.clone(), given.clone());
        async move {
            if asked.tool() == Some("slow") {
                let (feed, response) = fed("text/event-stream");
                feed.send(piece("id: 1\nretry: 20\ndata\n\n")).unwrap();
                *given.lock() = Some(feed);
                return Some(response);
            }
            kept.answer(&asked, || status(404))
        }
    });
    let (connection, _) = connect(&server).await;
    let slow = start(&connection, "slow").await;
    let feed = eventually("the call", || feed.lock().take()).await;
    sessions.forget();
    lives(&connection).await;
    drop(feed);
    let lost = end(slow).await;
    assert!(matches!(&lost, Err(Unanswered::Lost(why)) if why.contains("its session is over")), "{lost:?}");
    assert!(server.asked().iter().all(|asked| asked.header("last-event-id").is_none()));
}

#[tokio::test]
async fn pitfall_8_a_question_of_a_lost_call_reaches_no_other_caller() {
    struct Bob(Mutex<usize>);

    #[async_trait]
    impl Questions for Bob {
        fn answerable(&self) -> Answerable {
            Answerable::RELAYED
        }

        async fn ask(&self, _question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
            *self.0.lock() += 1;
            Ok(r#"{"action":"accept"}"#.into())
        }
    }

    let feeds: Arc<Mutex<HashMap<String, Feed>>> = Arc::default();
    let kept = feeds.clone();
    let server = HttpServer::start_with(None, None, legacy, move |asked| {
        let kept = kept.clone();
        async move {
            let name =
                if asked.verb == "GET" { "GET" } else { asked.tool().filter(|tool| tool.starts_with("slow"))? };
            let (feed, response) = fed("text/event-stream");
            feed.send(piece(": hello\n\n")).unwrap();
            kept.lock().insert(name.to_owned(), feed);
            Some(response)
        }
    });
    let (connection, _) = connect(&server).await;
    eventually("the stream without a call", || feeds.lock().contains_key("GET").then_some(())).await;
    // Ann's stream breaks off, and the server goes on with her call.
    let call = OutgoingCall { caller: Caller::local("ann"), ..outgoing("slow-a") };
    let ann = connection.hand_over(call).await.unwrap();
    eventually("ann's call", || feeds.lock().remove("slow-a")).await;
    end(ann).await.unwrap_err();
    let bob = Arc::new(Bob(Mutex::default()));
    let call = OutgoingCall { caller: Caller::local("bob"), questions: Some(bob.clone()), ..outgoing("slow-b") };
    let _bobs = connection.hand_over(call).await.unwrap();
    eventually("bob's call", || feeds.lock().contains_key("slow-b").then_some(())).await;
    let params = json!({ "message": "for ann", "requestedSchema": { "type": "object", "properties": {} } });
    let question = json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params });
    feeds.lock()["GET"].send(piece(&event(&question))).unwrap();
    let refusal = |asked: &Asked| asked.body["id"] == "q" && asked.body.to_string().contains("given up");
    eventually("the refusal", || server.asked().iter().any(refusal).then_some(())).await;
    assert_eq!(*bob.0.lock(), 0);
}
