//! `/v1/completions` takes prompts in four forms.

use std::sync::Arc;

use protocol::{Token, TokenLogprobs};
use scheduler::{Event, Finish};
use serde_json::{Value, json};
use server::{ApiConfig, Fill, ModelInfo};

use crate::fake::{BOS, Bytes, Harness, Script, answer, done, model_info, says, started, tokens};

fn prompts(harness: &Harness) -> Vec<Vec<Token>> {
    harness.line.requests().into_iter().map(|request| request.prompt).collect()
}

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

fn with_bos(text: &str) -> Vec<Token> {
    [vec![BOS], tokens(text)].concat()
}

#[tokio::test]
async fn a_text_gets_its_beginning_token_once() {
    for prompt in ["Hi", "<s>Hi"] {
        let harness = Harness::new([answer("x")]);
        assert_eq!(harness.complete(json!({ "prompt": prompt })).await.status, 200);
        assert_eq!(prompts(&harness), [with_bos("Hi")]);
    }
}

#[tokio::test]
async fn tokens_are_taken_as_they_are() {
    let harness = Harness::new([answer("x")]);
    assert_eq!(harness.complete(json!({ "prompt": [72, 105] })).await.status, 200);
    assert_eq!(prompts(&harness), [tokens("Hi")]);
}

#[tokio::test]
async fn several_prompts_give_their_choices_side_by_side() {
    let play = |text: &str| Script::Play(vec![started(1), says(text), done(Finish::Length, 1)]);
    let harness = Harness::new([play("a"), play("b"), play("c"), play("d")]);
    let answer = harness.complete(json!({ "prompt": ["X", [89]], "n": 2, "echo": true })).await.json();
    assert_eq!(texts(&answer), ["Xa", "Xb", "Yc", "Yd"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    let choices: Vec<u32> = harness.line.requests().iter().map(|request| request.choice).collect();
    assert_eq!(choices, [0, 1, 0, 1]);
    assert_eq!(answer["choices"][3]["index"], 3);
}

#[tokio::test]
async fn lists_of_tokens_are_prompts_of_their_own() {
    let harness = Harness::new([answer("x"), answer("y")]);
    let answer = harness.complete(json!({ "prompt": [[72], [105]] })).await.json();
    assert_eq!(texts(&answer), ["x", "y"]);
    assert_eq!(prompts(&harness), [tokens("H"), tokens("i")]);
}

#[tokio::test]
async fn sixteen_tokens_unless_told_otherwise() {
    for (extra, limit) in [
        (json!({}), Some(16)),
        (json!({ "max_tokens": 3 }), Some(3)),
        (json!({ "max_tokens": 3.0 }), Some(3)),
        (json!({ "max_completion_tokens": 4 }), Some(4)),
        (json!({ "max_tokens": -1 }), None),
    ] {
        let harness = Harness::new([answer("x")]);
        assert_eq!(harness.complete(extra).await.status, 200);
        assert_eq!(harness.line.requests()[0].max_tokens, limit);
    }
}

#[tokio::test]
async fn the_likeliest_of_several_choices_is_the_answer() {
    let play = |text: &str, logprob: f32| {
        let tokens = tokens(text);
        let logprobs = tokens.iter().map(|_| TokenLogprobs { logprob, top: Vec::new() }).collect();
        Script::Play(vec![started(10), Event::Tokens { tokens, logprobs }, done(Finish::Length, 2)])
    };
    let harness = Harness::new([play("aa", -2.0), play("bb", -0.5), play("cc", -1.0)]);
    let answer = harness.complete(json!({ "best_of": 3, "n": 2 })).await.json();
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["bb", "cc"]);
    assert!(choices[0].get("logprobs").is_none());
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert!(harness.line.requests().iter().all(|request| request.top_logprobs == Some(0)));
}

#[tokio::test]
async fn a_gap_is_filled_by_models_that_have_tokens_for_it() {
    let [prefix, suffix, middle] = [1, 2, 3].map(Token);
    let info = ModelInfo { fill: Some(Fill { prefix, suffix, middle }), ..model_info() };
    let harness = Harness::without_model([answer("x"), answer("x")], ApiConfig::default());
    harness.api.set_model(info, Arc::new(Bytes)).unwrap();
    let whole = harness.complete(json!({ "prompt": "a<s>", "suffix": "b", "echo": true })).await.json();
    assert_eq!(whole["choices"][0]["text"], "a<s>x");
    harness.complete(json!({ "prompt": [65], "suffix": "b" })).await;
    let asked: Vec<Vec<Token>> = harness.line.requests().into_iter().map(|request| request.prompt).collect();
    let around =
        |prompt: &str| [&[BOS, prefix], &tokens(prompt)[..], &[suffix], &tokens("b"), &[middle]].concat();
    assert_eq!(asked, [around("a<s>"), around("A")], "names of special tokens are text");

    let plain = Harness::new([answer("x")]);
    assert_eq!(plain.complete(json!({ "suffix": "" })).await.status, 200);
    let refused = plain.complete(json!({ "suffix": "b" })).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("suffix")));
}
