//! Many requests at once: side by side within bounds, each cancelled by itself, and nothing left open behind them.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use portcullis::config::server_keys::Lifecycle;
use portcullis::model::answerable::Answerable;
use portcullis::ports::questions::{NoAnswer, Questions, ServerQuestion};
use portcullis::ports::upstream::{ConnectionEvent, Unanswered};
use serde_json::json;
use tokio::sync::Semaphore;

use super::*;
use crate::support::eventually;
use crate::support::http_server::{Feed, event, fed, json, legacy, modern, piece, status};

/// A server whose tool `slow` answers when a test opens the gate.
fn gated(
    otherwise: fn(&crate::support::http_server::Asked) -> axum::response::Response,
) -> (HttpServer, Arc<Semaphore>, Arc<AtomicUsize>) {
    let (gate, most) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (kept, counted, running) = (gate.clone(), most.clone(), Arc::new(AtomicUsize::new(0)));
    let server = HttpServer::start_with(None, None, otherwise, move |asked| {
        let (kept, counted, running) = (kept.clone(), counted.clone(), running.clone());
        async move {
            asked.tool().filter(|tool| *tool == "slow")?;
            counted.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            kept.acquire().await.unwrap().forget();
            running.fetch_sub(1, Ordering::SeqCst);
            Some(json(&asked.says("slow")))
        }
    });
    (server, gate, most)
}

#[tokio::test]
async fn as_many_calls_as_allowed_run_side_by_side_and_the_others_wait() {
    let (server, gate, most) = gated(legacy);
    let (connection, _) = How { concurrency: 3, ..How::default() }.connect(&server).await;
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(start(&connection, "slow").await);
    }
    eventually("three calls", || (server.count("tools/call") == 3).then_some(())).await;
    gate.add_permits(5);
    for call in calls {
        assert_eq!(said(end(call).await), "slow");
    }
    assert_eq!((server.count("tools/call"), most.load(Ordering::SeqCst)), (5, 3));
}

#[tokio::test]
async fn a_call_that_waits_for_a_place_is_cancelled_without_a_word() {
    let (server, gate, _) = gated(legacy);
    let (connection, _) = How { concurrency: 1, ..How::default() }.connect(&server).await;
    let first = start(&connection, "slow").await;
    eventually("the first call", || (server.count("tools/call") == 1).then_some(())).await;
    start(&connection, "waiting").await.cancel("no more").await;
    gate.add_permits(1);
    assert_eq!(said(end(first).await), "slow");
    lives(&connection).await;
    assert_eq!((server.count("tools/call"), server.count("notifications/cancelled")), (2, 0));
}

#[tokio::test]
async fn too_many_bytes_that_wait_for_the_server_are_refused_to_the_next_call() {
    let (server, gate, _) = gated(legacy);
    let (connection, _) = How { concurrency: 1, ..How::small() }.connect(&server).await;
    let first = start(&connection, "slow").await;
    eventually("the first call", || (server.count("tools/call") == 1).then_some(())).await;
    let large = || {
        let arguments = json!({ "x": "x".repeat(3 * SMALL) }).as_object().unwrap().clone();
        OutgoingCall { arguments: Some(arguments), ..outgoing("t") }
    };
    let second = connection.hand_over(large()).await.unwrap();
    let refused = eventually_refused(&connection, large).await;
    assert!(refused.contains("too much is waiting"), "{refused}");
    gate.add_permits(1);
    assert_eq!([said(end(first).await), said(end(second).await)], ["slow", "t"]);
    lives(&connection).await;
}

async fn eventually_refused(connection: &Arc<dyn Connection>, order: impl Fn() -> OutgoingCall) -> String {
    // What was handed over is counted as soon as rmcp's loop has seen it.
    for _ in 0..1000 {
        match connection.hand_over(order()).await {
            Err(not_sent) => return not_sent.to_string(),
            Ok(call) => call.cancel("it was let in").await,
        }
    }
    panic!("nothing was refused");
}

#[tokio::test]
async fn in_the_older_era_a_cancellation_is_told_and_the_stream_is_dropped() {
    let feeds = Arc::<Mutex<Vec<Feed>>>::default();
    let (server, feed) = streaming(legacy, &feeds);
    let (connection, _) = connect(&server).await;
    let call = start(&connection, "slow").await;
    let stream = eventually("the call", || feed.lock().pop()).await;
    call.cancel("changed my mind").await;
    eventually("the end of the stream", || stream.is_closed().then_some(())).await;
    let told = server.asked().into_iter().find(|asked| asked.method() == "notifications/cancelled").unwrap();
    let call = server.asked().into_iter().find(|asked| asked.tool().is_some()).unwrap();
    assert_eq!(
        (&told.body["params"]["requestId"], &told.body["params"]["reason"]),
        (&call.body["id"], &json!("changed my mind"))
    );
    lives(&connection).await;
}

#[tokio::test]
async fn in_the_stateless_era_the_end_of_the_stream_is_the_cancellation() {
    let feeds = Arc::<Mutex<Vec<Feed>>>::default();
    let (server, feed) = streaming(modern, &feeds);
    let (connection, _) = connect(&server).await;
    let call = start(&connection, "slow").await;
    let stream = eventually("the call", || feed.lock().pop()).await;
    drop(call);
    eventually("the end of the stream", || stream.is_closed().then_some(())).await;
    lives(&connection).await;
    assert_eq!(server.count("notifications/cancelled"), 0);
}

/// A server whose tool `slow` answers with a stream that a test feeds.
fn streaming(
    otherwise: fn(&crate::support::http_server::Asked) -> axum::response::Response,
    feeds: &Arc<Mutex<Vec<Feed>>>,
) -> (HttpServer, Arc<Mutex<Vec<Feed>>>) {
    let kept = feeds.clone();
    let server = HttpServer::start_with(None, None, otherwise, move |asked| {
        let kept = kept.clone();
        async move {
            asked.tool().filter(|tool| *tool == "slow")?;
            let (feed, response) = fed("text/event-stream");
            feed.send(piece(": hello\n\n")).unwrap();
            kept.lock().push(feed);
            Some(response)
        }
    });
    (server, feeds.clone())
}

#[tokio::test]
async fn a_closed_connection_leaves_no_socket_and_no_call_behind() {
    let feeds = Arc::<Mutex<Vec<Feed>>>::default();
    let (server, feed) = streaming(legacy, &feeds);
    let (connection, told) = connect(&server).await;
    let call = start(&connection, "slow").await;
    let stream = eventually("the call", || feed.lock().pop()).await;
    connection.close().await;
    let lost = end(call).await;
    assert!(matches!(lost, Err(Unanswered::Lost(_))), "{lost:?}");
    assert_eq!(told.closed().as_deref(), Some("closed"));
    assert!(eventually("the end of the stream", || stream.is_closed().then_some(true)).await);
    eventually("no sockets", || (server.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn a_connect_that_is_given_up_leaves_nothing_behind() {
    let server = HttpServer::start(async |asked| {
        if asked.method() == "notifications/initialized" {
            std::future::pending::<()>().await;
        }
        None
    });
    let url = server.url();
    let connecting = tokio::spawn(async move { How::default().try_connect(&url).await.map(drop) });
    eventually("the session", || (server.count("notifications/initialized") == 1).then_some(())).await;
    connecting.abort();
    eventually("the end of the session", || (server.count("DELETE") == 1).then_some(())).await;
    eventually("no sockets", || (server.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn two_hundred_calls_use_a_few_connections() {
    let server = HttpServer::start(async |asked| {
        let tool = asked.tool()?;
        Some(if tool == "json" {
            json(&asked.says("json"))
        } else {
            crate::support::http_server::stream(&[&event(&asked.says("stream"))])
        })
    });
    let (connection, _) = connect(&server).await;
    let mut most = 0;
    for round in 0..50 {
        let tool = if round % 2 == 0 { "json" } else { "stream" };
        let calls = [0; 4].map(|_| start(&connection, tool));
        for call in calls {
            assert_eq!(said(end(call.await).await), tool);
        }
        most = most.max(server.open());
    }
    assert!(most <= 8, "{most} connections");
}

#[tokio::test]
async fn a_server_that_keeps_its_stream_open_after_the_answer_loses_the_connection() {
    let feeds = Arc::<Mutex<Vec<Feed>>>::default();
    let kept = feeds.clone();
    let server = HttpServer::start(move |asked| {
        let kept = kept.clone();
        async move {
            asked.tool()?;
            let (feed, response) = fed("text/event-stream");
            feed.send(piece(&event(&asked.says("t")))).unwrap();
            kept.lock().push(feed);
            Some(response)
        }
    });
    let (connection, _) = How { concurrency: 1, ..How::default() }.connect(&server).await;
    for _ in 0..10 {
        lives(&connection).await;
    }
    eventually("the end of the streams", || feeds.lock().iter().all(Feed::is_closed).then_some(())).await;
    eventually("few connections", || (server.open() <= 2).then_some(())).await;
}

#[tokio::test]
async fn a_ping_in_the_middle_of_a_call_is_answered_although_every_place_is_taken() {
    let server = HttpServer::start_with(None, None, legacy, {
        let answered = Arc::new(Semaphore::new(0));
        move |asked| {
            let answered = answered.clone();
            async move {
                if asked.body["id"] == "ping" {
                    answered.add_permits(1);
                    return Some(status(202));
                }
                asked.tool()?;
                let (feed, response) = fed("text/event-stream");
                feed.send(piece(&event(&json!({ "jsonrpc": "2.0", "id": "ping", "method": "ping" })))).unwrap();
                tokio::spawn(async move {
                    answered.acquire().await.unwrap().forget();
                    feed.send(piece(&event(&asked.says("pong")))).unwrap();
                });
                Some(response)
            }
        }
    });
    let (connection, _) = How { concurrency: 1, ..How::default() }.connect(&server).await;
    assert_eq!(said(call(&connection, "t").await), "pong");
    assert_eq!(server.asked().into_iter().find(|asked| asked.body["id"] == "ping").unwrap().body["result"], json!({}));
}

#[tokio::test]
async fn the_tools_are_listed_while_every_place_is_taken() {
    let (server, gate, _) = gated(legacy);
    let (connection, _) = How { concurrency: 1, ..How::default() }.connect(&server).await;
    let slow = start(&connection, "slow").await;
    eventually("the call", || (server.count("tools/call") == 1).then_some(())).await;
    assert_eq!(list(&connection).await, 1);
    gate.add_permits(1);
    assert_eq!(said(end(slow).await), "slow");
}

/// Answers everything with one text, and keeps the questions.
#[derive(Default)]
struct Asks(Mutex<Vec<String>>);

#[async_trait]
impl Questions for Asks {
    fn answerable(&self) -> Answerable {
        Answerable::RELAYED
    }

    async fn ask(&self, question: ServerQuestion) -> Result<Arc<str>, NoAnswer> {
        self.0.lock().push(question.value()["message"].as_str().unwrap_or_default().to_owned());
        Ok(r#"{"action":"accept","content":{}}"#.into())
    }
}

#[tokio::test]
async fn a_question_on_the_stream_of_a_call_goes_to_its_caller_although_others_are_in_flight() {
    let feeds = Arc::<Mutex<Vec<Feed>>>::default();
    let (kept, fed_by) = (Arc::new(Semaphore::new(0)), feeds.clone());
    let server = HttpServer::start(move |asked| {
        let (kept, fed_by) = (kept.clone(), fed_by.clone());
        async move {
            match asked.tool() {
                Some("asks") => {
                    let (feed, response) = fed("text/event-stream");
                    let question = json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create",
                        "params": { "message": "sure?", "requestedSchema": { "type": "object", "properties": {} } } });
                    feed.send(piece(&event(&question))).unwrap();
                    tokio::spawn(async move {
                        // The answer to the question opens the gate.
                        kept.acquire().await.unwrap().forget();
                        feed.send(piece(&event(&asked.says("thanks")))).unwrap();
                    });
                    Some(response)
                }
                Some("other") => {
                    let (feed, response) = fed("text/event-stream");
                    fed_by.lock().push(feed);
                    Some(response)
                }
                _ if asked.body["id"] == "q" => {
                    kept.add_permits(1);
                    Some(status(202))
                }
                _ => None,
            }
        }
    });
    let how = How { concurrency: 2, lifecycle: Lifecycle::Legacy, ..How::default() };
    let (connection, told) = how.connect(&server).await;
    let (ours, theirs) = (Arc::<Asks>::default(), Arc::<Asks>::default());
    let other = OutgoingCall { caller: Caller::local("other"), questions: Some(theirs.clone()), ..outgoing("other") };
    let _other = connection.hand_over(other).await.unwrap();
    eventually("the other call", || (feeds.lock().len() == 1).then_some(())).await;
    let asking = OutgoingCall { questions: Some(ours.clone()), ..outgoing("asks") };
    assert_eq!(said(end(connection.hand_over(asking).await.unwrap()).await), "thanks");
    assert_eq!((ours.0.lock().as_slice(), theirs.0.lock().len()), (["sure?".to_owned()].as_slice(), 0));
    let reply = server.asked().into_iter().find(|asked| asked.body["id"] == "q").unwrap();
    assert_eq!(reply.body["result"]["action"], "accept");
    assert_eq!(told.saw(ConnectionEvent::QuestionRefused), 0);
}
