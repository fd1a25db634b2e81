//! `/v1/embeddings`: shapes, what reaches the line, and what is refused before anything does.

use std::sync::Arc;

use insta::assert_snapshot;
use protocol::{Found, HiddenRows, OfPrompt, Pooling, Token};
use scheduler::{Event, Failure, Finish, Refusal};
use serde_json::{Value, json};
use server::{ApiConfig, ModelInfo};

use crate::errors::line;
use crate::fake::{BOS, Bytes, Harness, Script, Seen, done, model_info, started, tokens};

fn rows(values: &[f32]) -> Event {
    Event::Prompt(Found::Rows(HiddenRows { width: 4, values: values.to_vec() }))
}

/// A text whose pooled rows are these.
fn embedded(values: [f32; 4]) -> Script {
    Script::Play(vec![started(0), rows(&values), done(Finish::Length, 0)])
}

async fn embed(harness: &Harness, body: Value) -> crate::fake::Answer {
    harness.post("/v1/embeddings", &body).await
}

#[tokio::test]
async fn texts_are_embedded_in_their_order_and_counted() {
    let harness = Harness::new([embedded([3.0, 0.0, 4.0, 0.0]), embedded([0.0, -2.0, 0.0, 0.0])]);
    let answer = embed(&harness, json!({ "model": "toy", "input": ["Hi", [72]], "user": "me" })).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_snapshot!(answer.text, @r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.6,0.0,0.8,0.0]},{"object":"embedding","index":1,"embedding":[0.0,-1.0,0.0,0.0]}],"model":"toy","usage":{"prompt_tokens":4,"total_tokens":4}}"#);
    let asked = harness.line.requests();
    let texts: Vec<Vec<Token>> = asked.iter().map(|request| request.prompt.clone()).collect();
    assert_eq!(texts, [[vec![BOS], tokens("Hi")].concat(), tokens("H")]);
    for request in asked {
        assert_eq!(request.of_prompt, Some(OfPrompt::Embedding(Pooling::Mean)));
        assert_eq!(
            (request.max_tokens, request.namespace),
            (Some(0), None),
            "nothing is shared or generated"
        );
    }
}

#[tokio::test]
async fn the_four_forms_of_input_reach_the_line() {
    for (input, expected) in [
        (json!("Hi"), vec![[vec![BOS], tokens("Hi")].concat()]),
        (json!(["H", "i"]), vec![vec![BOS, Token(72)], vec![BOS, Token(105)]]),
        (json!([72, 105.0]), vec![tokens("Hi")]),
        (json!([[72], [105]]), vec![tokens("H"), tokens("i")]),
    ] {
        let harness = Harness::new(expected.iter().map(|_| embedded([1.0; 4])));
        assert_eq!(embed(&harness, json!({ "input": input })).await.status, 200);
        let texts: Vec<_> = harness.line.requests().into_iter().map(|request| request.prompt).collect();
        assert_eq!(texts, expected);
    }
}

#[tokio::test]
async fn base64_cut_and_raw_embeddings_are_the_same_numbers() {
    let first = |answer: crate::fake::Answer| answer.json()["data"][0]["embedding"].clone();
    let with = async |extra: Value| {
        let harness = Harness::new([embedded([3.0, 4.0, 0.0, 12.0])]);
        embed(&harness, crate::fake::with(json!({ "input": "Hi" }), extra)).await
    };
    assert_eq!(first(with(json!({ "embd_normalize": -1 })).await), json!([3.0, 4.0, 0.0, 12.0]));
    let coded = first(with(json!({ "embd_normalize": -1, "encoding_format": "base64" })).await);
    assert_eq!(coded, "AABAQAAAgEAAAAAAAABAQQ==");
    let cut = with(json!({ "dimensions": 2 })).await.json();
    assert_eq!(cut["data"][0]["embedding"], json!([0.6, 0.8]));
    assert_eq!(
        cut["notice"],
        "embeddings were cut from 4 to 2 values and brought to unit length again; of a model that was not trained to \
         be cut they compare less well"
    );
    let whole = with(json!({ "dimensions": 4 })).await.json();
    assert_eq!(whole.get("notice"), None);
}

#[tokio::test]
async fn rows_that_are_not_pooled_come_one_for_each_token_in_parts() {
    let parts = vec![started(0), rows(&[1.0; 4]), rows(&[2.0; 8]), done(Finish::Length, 0)];
    let harness = Harness::new([Script::Play(parts)]);
    let body = json!({ "input": "Hi", "pooling": "none", "encoding_format": "base64", "dimensions": 2 });
    let answer = embed(&harness, body).await.json();
    assert_eq!(answer["data"][0]["embedding"], json!([[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]));
    assert_eq!(harness.line.requests()[0].of_prompt, Some(OfPrompt::Embedding(Pooling::None)));
}

#[tokio::test]
async fn the_models_own_pooling_is_used_unless_another_is_asked_for() {
    let of = async |own, body: Value| {
        let harness = Harness::without_model([embedded([1.0; 4])], ApiConfig::default());
        harness.api.set_model(ModelInfo { pooling: own, ..model_info() }, Arc::new(Bytes)).unwrap();
        let answer = embed(&harness, body).await;
        (answer.status, harness.line.requests().first().and_then(|request| request.of_prompt))
    };
    let plain = || json!({ "input": "Hi" });
    let pooled = |pooling| (200, Some(OfPrompt::Embedding(pooling)));
    assert_eq!(of(Some(Pooling::Last), plain()).await, pooled(Pooling::Last));
    let asked = json!({ "input": "Hi", "pooling": "cls" });
    assert_eq!(of(Some(Pooling::Last), asked).await, pooled(Pooling::First));
    assert_eq!(of(None, plain()).await, (400, None), "a model that ranks");
}

#[tokio::test]
async fn many_texts_take_turns_on_the_line_and_a_full_queue_is_waited_for() {
    let mut scripts: Vec<Script> = (0..100).map(|n| embedded([n as f32, 1.0, 0.0, 0.0])).collect();
    scripts.insert(1, Script::Refuse(Refusal::QueueFull { limit: 1 }));
    let harness = Harness::new(scripts);
    let input: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let answer = embed(&harness, json!({ "input": input, "embd_normalize": -1 })).await.json();
    let first: Vec<f64> = answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["embedding"][0].as_f64().unwrap())
        .collect();
    assert_eq!(first, (0..100).map(f64::from).collect::<Vec<_>>());
    let full = Harness::new([Script::Refuse(Refusal::QueueFull { limit: 1 })]);
    assert_eq!(embed(&full, json!({ "input": "Hi" })).await.status, 429);
}

#[tokio::test]
async fn the_first_failure_is_the_answers_and_cancels_the_rest() {
    let failed = Failure::LineLost { reason: "stage 1 is gone".into() };
    let scripts = [Script::Play(vec![started(0), Event::Failed(failed)]), Script::Play(vec![started(0)])];
    let mut harness = Harness::new(scripts);
    let answer = embed(&harness, json!({ "input": ["a", "b"] })).await;
    assert_eq!(answer.status, 503);
    let seen = [harness.next_seen().await, harness.next_seen().await, harness.next_seen().await];
    assert!(
        matches!(seen, [Seen::Request(_), Seen::Request(second), Seen::Cancel(cancelled)] if second == cancelled)
    );
}

#[tokio::test]
async fn invalid_requests() {
    let long = "x".repeat(128);
    let cases: Vec<(&str, Value)> = vec![
        ("unknown model", json!({ "model": "gpt-9", "input": "Hi" })),
        ("no input", json!({})),
        ("input of the wrong type", json!({ "input": 1 })),
        ("empty text", json!({ "input": "" })),
        ("empty list", json!({ "input": [] })),
        ("one empty text", json!({ "input": ["a", ""] })),
        ("empty tokens", json!({ "input": [[1], []] })),
        ("mixed list", json!({ "input": ["a", 1] })),
        ("too many texts", json!({ "input": vec!["a"; 2049] })),
        ("too long", json!({ "input": ["a", long] })),
        ("unknown token", json!({ "input": [[1], [999]] })),
        ("encoding", json!({ "input": "Hi", "encoding_format": "hex" })),
        ("no dimensions", json!({ "input": "Hi", "dimensions": 0 })),
        ("more dimensions than there are", json!({ "input": "Hi", "dimensions": 5 })),
        ("pooling", json!({ "input": "Hi", "pooling": "max" })),
        ("norm", json!({ "input": "Hi", "embd_normalize": 0 })),
        ("truncation", json!({ "input": "Hi", "truncate_prompt_tokens": 5 })),
    ];
    let harness = Harness::new([]);
    let mut all = String::new();
    for (name, body) in cases {
        all.push_str(&line(name, &embed(&harness, body).await));
    }
    assert_snapshot!(all);
    assert!(harness.line.requests().is_empty(), "nothing has begun");
}

#[tokio::test]
async fn a_text_that_fills_the_context_is_no_error() {
    let harness = Harness::new([embedded([1.0; 4])]);
    let answer = embed(&harness, json!({ "input": vec![1; 128] })).await;
    assert_eq!(answer.status, 200, "no answer needs room beside it: {}", answer.text);
}

#[tokio::test]
async fn an_answer_that_would_be_huge_is_refused_before_it_is_computed() {
    let info = ModelInfo { row_width: 20_000, context: 4096, ..model_info() };
    let harness = Harness::without_model([], ApiConfig::default());
    harness.api.set_model(info, Arc::new(Bytes)).unwrap();
    let answer = embed(&harness, json!({ "input": "x".repeat(1000), "pooling": "none" })).await;
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("input")));
    assert!(harness.line.requests().is_empty());
}
