//! `/v1/completions` takes prompts in four forms.

use std::sync::Arc;

use protocol::{Found, OfPrompt, Token, TokenLogprobs};
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

/// What the line says of a prompt's tokens: one alternative each.
fn prompt_logprobs(logprobs: &[f32]) -> Event {
    let one = |&logprob: &f32| TokenLogprobs { logprob, top: vec![(Token(33), -0.25)] };
    Event::Prompt(Found::Logprobs(logprobs.iter().map(one).collect()))
}

#[tokio::test]
async fn a_prompt_is_echoed_with_its_log_probabilities() {
    let play = || {
        let answer = Event::Tokens {
            tokens: tokens("x"),
            logprobs: vec![TokenLogprobs { logprob: -3.0, top: vec![(Token(120), -3.0)] }],
        };
        let prompt = [prompt_logprobs(&[-1.0]), prompt_logprobs(&[-2.0])];
        let [first, second] = prompt;
        Script::Play(vec![started(0), first, second, answer, done(Finish::Length, 1)])
    };
    let body = json!({ "echo": true, "logprobs": 1, "max_tokens": 1 });
    let harness = Harness::new([play(), play()]);
    let whole = harness.complete(body.clone()).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "Hix");
    let expected = json!({
        "tokens": ["<s>", "H", "i", "x"],
        "token_logprobs": [null, -1.0, -2.0, -3.0],
        "top_logprobs": [null, { "!": -0.25, "H": -1.0 }, { "!": -0.25, "i": -2.0 }, { "x": -3.0 }],
        "text_offset": [0, 0, 1, 2],
    });
    assert_eq!(choice["logprobs"], expected);
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(harness.line.requests()[0].of_prompt, Some(OfPrompt::Logprobs { top: 1 }));

    let stream = harness.complete(crate::fake::with(body, json!({ "stream": true }))).await.events();
    let (mut text, mut lists) = (String::new(), vec![Vec::new(); 4]);
    for event in &stream {
        let choice = &event["choices"][0];
        text.push_str(choice["text"].as_str().unwrap());
        for (list, name) in lists.iter_mut().zip(["tokens", "token_logprobs", "top_logprobs", "text_offset"])
        {
            list.extend(choice["logprobs"][name].as_array().into_iter().flatten().cloned());
        }
    }
    assert_eq!(text, "Hix");
    let [tokens, logprobs, top, offsets] = &lists[..] else { panic!("four lists") };
    assert_eq!(
        &expected,
        &json!({
            "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets,
        })
    );
    assert_eq!(stream[0]["choices"][0]["text"], "Hi", "the prompt comes first, and whole");
}

#[tokio::test]
async fn a_prompt_alone_is_scored_without_an_answer() {
    let play = |logprobs: &[f32]| {
        let mut events = vec![started(0)];
        events.extend((!logprobs.is_empty()).then(|| prompt_logprobs(logprobs)));
        events.push(done(Finish::Length, 0));
        Script::Play(events)
    };
    let harness = Harness::new([play(&[-1.0]), play(&[]), play(&[-1.0]), play(&[-1.0, -1.0])]);
    let body = |prompt: Value| json!({ "prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 0 });
    let two = harness.complete(body(json!([72, 105]))).await.json();
    assert_eq!(
        (&two["choices"][0]["text"], &two["choices"][0]["finish_reason"]),
        (&json!("Hi"), &json!("length"))
    );
    let expected = json!({
        "tokens": ["H", "i"], "token_logprobs": [null, -1.0], "top_logprobs": null, "text_offset": [0, 1],
    });
    assert_eq!(two["choices"][0]["logprobs"], expected);
    assert_eq!(two["usage"]["completion_tokens"], 0);
    let one = harness.complete(body(json!([72]))).await.json();
    assert_eq!(one["choices"][0]["logprobs"]["token_logprobs"], json!([null]));
    let stream = harness.complete(crate::fake::with(body(json!([72, 105])), json!({ "stream": true }))).await;
    assert_eq!(stream.events()[0]["choices"][0]["logprobs"], expected);

    let bare = harness.complete(json!({ "echo": true, "max_tokens": 0 })).await.json();
    assert_eq!((&bare["choices"][0]["text"], bare["choices"][0].get("logprobs")), (&json!("Hi"), None));
    assert!(harness.line.requests().iter().all(|request| request.max_tokens == Some(0)));
}
