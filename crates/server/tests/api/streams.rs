//! What streams promise beyond single transcripts.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use proptest::prelude::*;
use scheduler::{Event, Finish, Moved, Movement, RequestId};
use serde_json::{Value, json};
use server::ApiConfig;
use tokio::time::timeout;

use crate::fake::{DEADLINE, Harness, Script, Seen, chat_body, done, ends, says, says_bytes, started, with};

/// The text of one choice of a streamed chat.
fn text(events: &[Value], index: usize) -> String {
    events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap())
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"]["content"].as_str())
        .collect()
}

fn finish(events: &[Value]) -> &str {
    events.last().unwrap()["choices"][0]["finish_reason"].as_str().unwrap()
}

#[tokio::test]
async fn text_ends_before_a_stop_string_that_spans_tokens_and_the_line_is_told() {
    let script = Script::Play(vec![started(0), says("One\n"), says("\nUs"), says("er: two"), says("three")]);
    let mut harness = Harness::new([script]);
    let answer = harness.chat(json!({ "stream": true, "stop": "\n\nUser:" })).await;
    let events = answer.events();
    assert_eq!(text(&events, 0), "One");
    assert_eq!(finish(&events), "stop");
    assert!(answer.text.ends_with("data: [DONE]\n\n"));
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
}

#[tokio::test]
async fn usage_counts_tokens_up_to_the_stop_string() {
    let script = Script::Play(vec![started(7), says("ab"), says("STOPxyz")]);
    let answer = Harness::new([script]).chat(json!({ "stop": ["STOP", "never"] })).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ab");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 7);
    assert!(answer["timings"].is_object());
}

#[tokio::test]
async fn a_possible_stop_string_that_is_none_comes_at_the_end() {
    let script = Script::Play(vec![started(0), says("abST"), ends(), done(Finish::Stop, 5)]);
    let answer = Harness::new([script]).chat(json!({ "stream": true, "stop": "STOP" })).await;
    assert_eq!(text(&answer.events(), 0), "abST");
}

#[tokio::test]
async fn nothing_after_the_end_token_and_nothing_of_it_is_text() {
    let script = |ends_with| Script::Play(vec![started(0), says("hi"), ends(), done(ends_with, 3)]);
    let answer = Harness::new([script(Finish::Stop)]).chat(json!({})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "hi");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let answer = Harness::new([script(Finish::Length)]).chat(json!({ "ignore_eos": true })).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn choices_flow_side_by_side_with_one_seed_and_their_own_index() {
    let play = |text: &str| Script::Play(vec![started(3), says(text), done(Finish::Length, 1)]);
    let harness = Harness::new([play("a"), play("b"), play("c")]);
    let extra = json!({ "stream": true, "n": 3, "stream_options": { "include_usage": true } });
    let events = harness.chat(extra).await.events();
    let (usage, events) = events.split_last().unwrap();
    for (index, expected) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(text(events, index), expected);
    }
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 3);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    let requests = harness.line.requests();
    assert_eq!(requests.iter().map(|request| request.choice).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(requests.iter().all(|request| request.seed == requests[0].seed));
}

#[tokio::test]
async fn one_failing_choice_ends_the_answer_and_cancels_the_others() {
    let fault = scheduler::Failure::Fault { reason: "stage 1 disagrees".into() };
    let mut harness = Harness::new([Script::Play(vec![]), Script::Play(vec![Event::Failed(fault)])]);
    let answer = harness.chat(json!({ "n": 2 })).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (500, Some("internal_error")));
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(1)));
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
}

#[tokio::test(start_paused = true)]
async fn a_long_prefill_is_filled_with_comments() {
    let config = ApiConfig { keep_alive: Duration::from_secs(3), ..ApiConfig::default() };
    let harness = Harness::with_config(config);
    let body = with(chat_body(), json!({ "stream": true }));
    let request = Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap();
    let mut body = harness.send(request).await.into_body();
    let mut frames = Vec::new();
    for _ in 0..3 {
        let frame = timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap();
        frames.push(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap());
    }
    assert!(frames[0].contains("\"role\":\"assistant\""), "{frames:?}");
    assert_eq!(frames[1..], [":\n\n", ":\n\n"]);
    harness.line.say(RequestId(0), says("x"));
    let frame = timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap().into_data().unwrap();
    assert!(frame.starts_with(b"data: "));
}

/// A stream's next piece.
async fn piece(body: &mut Body) -> String {
    let frame = timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

/// Reads until a text is told, which may come behind events that open whatever holds it, but behind no comment.
async fn until_said(body: &mut Body, text: &str) {
    loop {
        let said = piece(body).await;
        assert_ne!(said, ":\n\n", "{text} is told at once");
        if said.contains(text) {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_in_the_middle_of_an_answer_is_filled_with_comments_on_every_route() {
    let asked = json!({ "input": "Hi" });
    let messages = chat_body()["messages"].clone();
    for (path, body, n) in [
        ("/v1/chat/completions", chat_body(), 1),
        ("/v1/chat/completions", with(chat_body(), json!({ "n": 2 })), 2),
        ("/v1/completions", json!({ "prompt": ["Hi", "Ho"] }), 2),
        ("/v1/responses", asked.clone(), 1),
        ("/v1/responses", with(asked, json!({ "background": true })), 1),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 9 }), 1),
    ] {
        let config = ApiConfig { keep_alive: Duration::from_secs(3), ..ApiConfig::default() };
        let harness = Harness::with_config(config);
        let body = with(body, json!({ "stream": true })).to_string();
        let mut body = harness.send(Request::post(path).body(Body::from(body)).unwrap()).await.into_body();
        while piece(&mut body).await != ":\n\n" {}
        // As when its line is lost: what was said was said, and nothing comes for a while.
        for id in 0..n {
            harness.line.say(RequestId(id), says("first"));
        }
        for _ in 0..n {
            until_said(&mut body, "first").await;
        }
        for _ in 0..3 {
            assert_eq!(piece(&mut body).await, ":\n\n", "{path}");
        }
        for id in 0..n {
            harness.line.say(RequestId(id), says("second"));
            until_said(&mut body, "second").await;
        }
    }
}

/// What a stream says next.
async fn next(body: &mut Body) -> Value {
    let frame = timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap().into_data().unwrap();
    serde_json::from_slice(frame.strip_prefix(b"data: ").unwrap()).unwrap()
}

#[tokio::test]
async fn how_far_a_prompt_is_comes_before_the_answer_if_it_is_asked_for() {
    for (path, body, empty) in [
        ("/v1/chat/completions", chat_body(), json!({ "index": 0, "delta": {}, "finish_reason": null })),
        (
            "/v1/completions",
            json!({ "prompt": "Hi" }),
            json!({ "index": 0, "text": "", "finish_reason": null }),
        ),
    ] {
        let harness = Harness::new([Script::Play(vec![started(2)])]);
        let body = with(body, json!({ "stream": true, "return_progress": true }));
        let request = Request::post(path).body(Body::from(body.to_string())).unwrap();
        let mut body = harness.send(request).await.into_body();
        if empty.get("delta").is_some() {
            assert_eq!(next(&mut body).await["choices"][0]["delta"]["role"], "assistant");
        }
        let total = harness.line.requests()[0].prompt.len();
        let progress = |chunk: &Value, processed: u32, time_ms: u32| {
            let expected = json!({ "total": total, "cache": 2, "processed": processed, "time_ms": time_ms });
            assert_eq!((&chunk["prompt_progress"], &chunk["choices"]), (&expected, &json!([empty])));
        };
        progress(&next(&mut body).await, 2, 0);
        let moved = |request, at, what| {
            let (at, request) = (Duration::from_millis(at), RequestId(request));
            harness.line.move_on(Movement { at, request, what });
        };
        moved(7, 5, Moved::Chunk { end: 1, rows: 1 });
        moved(0, 100, Moved::Chunk { end: 3, rows: 1 });
        moved(0, 110, Moved::Chunk { end: 4, rows: 1 });
        moved(7, 120, Moved::Progress { end: 1 });
        moved(0, 130, Moved::Progress { end: 3 });
        progress(&next(&mut body).await, 3, 30);
        moved(0, 150, Moved::Progress { end: 4 });
        progress(&next(&mut body).await, 4, 50);
        harness.line.say(RequestId(0), says("x"));
        assert!(next(&mut body).await.get("prompt_progress").is_none());
        // A line that was formed anew computes the prompt once more.
        moved(0, 200, Moved::Progress { end: 3 });
        harness.line.say(RequestId(0), done(Finish::Length, 1));
        let last = next(&mut body).await;
        assert_eq!(
            (&last["choices"][0]["finish_reason"], last.get("prompt_progress")),
            (&json!("length"), None)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// However the line groups tokens, a client reads the same text, in whole characters.
    #[test]
    fn grouping_of_tokens_changes_no_text(
        answer in "[a-cé☃🦀]{0,16}",
        groups in proptest::collection::vec(1_usize..5, 0..40),
    ) {
        let bytes = answer.as_bytes();
        let mut events = vec![started(0)];
        let mut rest = bytes;
        for size in groups {
            let (now, later) = rest.split_at(size.min(rest.len()));
            if !now.is_empty() {
                events.push(says_bytes(now));
            }
            rest = later;
        }
        if !rest.is_empty() {
            events.push(says_bytes(rest));
        }
        events.push(done(Finish::Length, bytes.len() as u32));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let events = runtime.block_on(async {
            Harness::new([Script::Play(events)]).chat(json!({ "stream": true, "stop": "ab☃" })).await.events()
        });
        let expected = answer.split("ab☃").next().unwrap();
        prop_assert_eq!(text(&events, 0), expected);
    }
}
