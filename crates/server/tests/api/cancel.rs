//! A client that leaves stops its request on the line.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use scheduler::{Finish, RequestId};
use serde_json::json;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::fake::{DEADLINE, Harness, Script, Seen, chat_body, done, says, started, with};

fn chat(extra: serde_json::Value) -> Request<Body> {
    Request::post("/v1/chat/completions").body(Body::from(with(chat_body(), extra).to_string())).unwrap()
}

#[tokio::test]
async fn dropping_a_stream_cancels_every_choice() {
    let play = || Script::Play(vec![started(0), says("x")]);
    let mut harness = Harness::new([play(), play()]);
    let mut body = harness.send(chat(json!({ "stream": true, "n": 2 }))).await.into_body();
    timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap();
    for id in [0, 1] {
        assert_eq!(harness.next_seen().await, Seen::Request(RequestId(id)));
    }
    assert!(harness.seen.is_empty());
    drop(body);
    let cancelled = [harness.next_seen().await, harness.next_seen().await];
    for id in [0, 1] {
        assert!(cancelled.contains(&Seen::Cancel(RequestId(id))), "{cancelled:?}");
    }
}

#[tokio::test]
async fn dropping_a_handler_that_waits_for_the_whole_answer_cancels() {
    let mut harness = Harness::new([Script::Play(vec![started(0), says("x")])]);
    let mut handler = Box::pin(harness.router().oneshot(chat(json!({}))));
    // Its prompt is written elsewhere, so that it takes more than one turn.
    tokio::select! {
        seen = harness.next_seen() => assert_eq!(seen, Seen::Request(RequestId(0))),
        _ = &mut handler => panic!("the answer is not whole"),
    }
    assert!(harness.seen.is_empty());
    drop(handler);
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
}

#[tokio::test]
async fn a_request_that_is_done_is_not_cancelled() {
    let mut harness = Harness::new([Script::Play(vec![started(0), says("x"), done(Finish::Length, 1)])]);
    assert_eq!(harness.chat(json!({ "stream": true })).await.status, 200);
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    assert!(harness.seen.is_empty());
}

#[tokio::test]
async fn a_refused_choice_cancels_those_before_it() {
    let full = Script::Refuse(scheduler::Refusal::QueueFull { limit: 128 });
    let mut harness = Harness::new([Script::Play(vec![]), full]);
    assert_eq!(harness.chat(json!({ "n": 2 })).await.status, 429);
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
}
