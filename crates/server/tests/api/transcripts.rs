//! Whole answers, byte for byte.

use insta::assert_snapshot;
use scheduler::{Failure, Finish};
use serde_json::json;

use crate::fake::{Harness, Script, answer, done, ends, says, says_bytes, says_with_logprobs, started};

fn pieces() -> Script {
    Script::Play(vec![started(10), says("Hel"), says("lo"), ends(), done(Finish::Stop, 6)])
}

/// A whole answer, indented.
fn pretty(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    serde_json::to_string_pretty(&value).unwrap()
}

#[tokio::test]
async fn chat_stream() {
    let answer = Harness::new([pieces()]).chat(json!({ "stream": true })).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_snapshot!(answer.stable());
}

#[tokio::test]
async fn chat_stream_with_usage() {
    let extra = json!({ "stream": true, "stream_options": { "include_usage": true } });
    assert_snapshot!(Harness::new([pieces()]).chat(extra).await.stable());
}

#[tokio::test]
async fn chat_whole() {
    assert_snapshot!(pretty(&Harness::new([pieces()]).chat(json!({})).await.stable()));
}

#[tokio::test]
async fn chat_whole_with_two_choices_and_logprobs() {
    let play = |text, finish| Script::Play(vec![started(10), says_with_logprobs(text), done(finish, 2)]);
    let harness = Harness::new([play("é", Finish::Length), play("b", Finish::Stop)]);
    let answer = harness.chat(json!({ "n": 2, "logprobs": true, "top_logprobs": 2, "max_tokens": 2 })).await;
    assert_snapshot!(pretty(&answer.stable()));
}

#[tokio::test]
async fn chat_stream_with_logprobs() {
    let script = Script::Play(vec![started(0), says_with_logprobs("a"), done(Finish::Length, 1)]);
    let answer = Harness::new([script]).chat(json!({ "stream": true, "logprobs": true })).await;
    assert_snapshot!(answer.stable());
}

#[tokio::test]
async fn chat_stream_that_fails() {
    let lost = Failure::LineLost { reason: "stage 2 at 10.0.0.3:7411 did not answer".into() };
    let script = Script::Play(vec![started(0), says("Hel"), scheduler::Event::Failed(lost)]);
    assert_snapshot!(Harness::new([script]).chat(json!({ "stream": true })).await.stable());
}

#[tokio::test]
async fn chat_stream_with_characters_cut_in_two() {
    let snowman = "☃!".as_bytes();
    let script = Script::Play(vec![
        started(0),
        says_bytes(&snowman[..1]),
        says_bytes(&snowman[1..2]),
        says_bytes(&snowman[2..]),
        says_bytes(&snowman[..2]),
        done(Finish::Length, 6),
    ]);
    assert_snapshot!(Harness::new([script]).chat(json!({ "stream": true })).await.stable());
}

#[tokio::test]
async fn completion_stream() {
    let extra = json!({ "stream": true, "echo": true, "stream_options": { "include_usage": true } });
    assert_snapshot!(Harness::new([pieces()]).complete(extra).await.stable());
}

#[tokio::test]
async fn completion_whole() {
    assert_snapshot!(pretty(&Harness::new([pieces()]).complete(json!({})).await.stable()));
}

#[tokio::test]
async fn completion_whole_with_logprobs() {
    let script = Script::Play(vec![started(0), says_with_logprobs("ab"), done(Finish::Length, 2)]);
    let answer = Harness::new([script]).complete(json!({ "logprobs": 1 })).await;
    assert_snapshot!(pretty(&answer.stable()));
}

#[tokio::test]
async fn models_health_readiness_and_line() {
    let harness = Harness::new([answer("unused")]);
    let mut all = String::new();
    for path in ["/v1/models", "/v1/models/toy", "/health", "/ready", "/v1/line"] {
        let answer = harness.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        all.push_str(&format!("GET {path}\n{}\n\n", pretty(&answer.text)));
    }
    assert_snapshot!(all);
    assert_eq!(harness.get("/v1/models/default").await.json()["id"], "toy");
}
