//! Every error is OpenAI's envelope, and says what to do.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request};
use futures_util::{StreamExt, stream};
use insta::assert_snapshot;
use scheduler::{Event, Failure, Finish, Refusal};
use serde_json::{Value, json};
use server::{ApiConfig, Cors, ModelNotSet, Readiness, TemplateHost, TemplateHostError};
use tower::ServiceExt;

use crate::fake::{Answer, Bytes, Harness, Script, done, model_info, says, started};

/// One line per error, and a check of its form.
pub(crate) fn line(name: &str, answer: &Answer) -> String {
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{name}: {body}"));
    assert!(error["message"].is_string() && error["type"].is_string() && error["code"].is_string(), "{body}");
    assert!(error.contains_key("param"), "{body}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{name}");
    assert!(answer.header("x-request-id").is_some(), "{name}");
    let retry = answer.header("retry-after").map(|after| format!(" retry-after={after}")).unwrap_or_default();
    format!(
        "{name}\n  {}{retry} {} {} param={}\n  {}\n",
        answer.status, error["type"], error["code"], error["param"], error["message"]
    )
}

#[tokio::test]
async fn invalid_chats() {
    let cases: Vec<(&str, Value)> = vec![
        ("unknown model", json!({ "model": "gpt-9" })),
        ("model of the wrong type", json!({ "model": 3 })),
        ("no messages", json!({ "messages": null })),
        ("empty messages", json!({ "messages": [] })),
        ("messages of the wrong type", json!({ "messages": "Hi" })),
        ("message of the wrong type", json!({ "messages": ["Hi"] })),
        ("no role", json!({ "messages": [{ "content": "Hi" }] })),
        ("unknown role", json!({ "messages": [{ "role": "king", "content": "Hi" }] })),
        ("no content", json!({ "messages": [{ "role": "user" }] })),
        ("content of the wrong type", json!({ "messages": [{ "role": "user", "content": 1 }] })),
        ("image", json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] })),
        (
            "text part without text",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text" }] }] }),
        ),
        ("tools", json!({ "tools": [{ "type": "function" }] })),
        ("tool of another type", json!({ "tools": [{ "type": "web_search" }] })),
        ("name of a tool", json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] })),
        ("tool choice without tools", json!({ "tool_choice": "required" })),
        ("unknown tool choice", json!({ "tool_choice": "maybe" })),
        (
            "choice of an unknown tool",
            json!({
                "tools": [{ "type": "function", "function": { "name": "a" } }],
                "tool_choice": { "type": "function", "function": { "name": "b" } },
            }),
        ),
        ("response format", json!({ "response_format": { "type": "xml" } })),
        ("response format without a schema", json!({ "response_format": { "type": "json_schema" } })),
        ("grammar that cannot be used", json!({ "grammar": "root ::= \"broken\"" })),
        ("two forms", json!({ "guided_regex": "a", "guided_choice": ["b"] })),
        ("empty choice", json!({ "guided_choice": [""] })),
        ("form without an end", json!({ "guided_regex": "a", "ignore_eos": true })),
        ("huge grammar", json!({ "guided_regex": "a".repeat(300_000) })),
        ("structural tag", json!({ "structured_outputs": { "structural_tag": "x" } })),
        ("temperature", json!({ "temperature": -0.5 })),
        ("top_p", json!({ "top_p": "all" })),
        ("n", json!({ "n": 0 })),
        ("n too large", json!({ "n": 1000 })),
        ("max_tokens", json!({ "max_tokens": 0 })),
        ("stop of the wrong type", json!({ "stop": 1 })),
        ("too many stops", json!({ "stop": vec!["x"; 33] })),
        ("stop too long", json!({ "stop": "x".repeat(257) })),
        ("top_logprobs alone", json!({ "top_logprobs": 2 })),
        ("too many top_logprobs", json!({ "logprobs": true, "top_logprobs": 65 })),
        ("stream of the wrong type", json!({ "stream": "yes" })),
        ("stream options of the wrong type", json!({ "stream_options": true })),
        ("seed", json!({ "seed": 1.5 })),
        ("logit bias", json!({ "logit_bias": { "9999": 1 } })),
    ];
    let harness = Harness::new([]);
    let mut all = String::new();
    for (name, extra) in cases {
        all.push_str(&line(name, &harness.chat(extra).await));
    }
    assert_snapshot!(all);
    assert!(harness.line.requests().is_empty());
}

#[tokio::test]
async fn invalid_completions() {
    let cases: Vec<(&str, Value)> = vec![
        ("no prompt", json!({ "prompt": null })),
        ("prompt of the wrong type", json!({ "prompt": 1 })),
        ("empty list", json!({ "prompt": [] })),
        ("mixed list", json!({ "prompt": ["a", 1] })),
        ("fractional token", json!({ "prompt": [1.5] })),
        ("too many choices", json!({ "prompt": vec!["a"; 65], "n": 2 })),
        ("best_of in a stream", json!({ "best_of": 2, "stream": true })),
        ("best_of below n", json!({ "best_of": 1, "n": 2 })),
        ("suffix", json!({ "suffix": "x" })),
        ("nothing to generate and nothing to show", json!({ "max_tokens": 0, "logprobs": 1 })),
        ("logprobs of the chat kind", json!({ "logprobs": true })),
    ];
    let harness = Harness::new([]);
    let mut all = String::new();
    for (name, extra) in cases {
        all.push_str(&line(name, &harness.complete(extra).await));
    }
    assert_snapshot!(all);
}

#[tokio::test]
async fn what_the_line_refuses_or_fails() {
    let fails = |failure| Script::Play(vec![started(0), Event::Failed(failure)]);
    let cases = [
        ("prompt too long", Script::Refuse(Refusal::ContextLength { prompt: 200, context: 128 })),
        ("empty prompt", Script::Refuse(Refusal::EmptyPrompt)),
        ("token out of range", Script::Refuse(Refusal::UnknownToken(protocol::Token(999)))),
        ("queue full", Script::Refuse(Refusal::QueueFull { limit: 128 })),
        ("nothing to generate", Script::Refuse(Refusal::NothingToGenerate)),
        ("queued too long", fails(Failure::QueueTimeout { waited: Duration::from_secs(30) })),
        ("line gone", Script::Refuse(Refusal::NotReady)),
        ("line lost", fails(Failure::LineLost { reason: "stage 1 was killed".into() })),
        ("parameters", fails(Failure::Parameters { reason: "DRY needs a tokenizer".into() })),
        ("fault", fails(Failure::Fault { reason: "window at 3 starts with token 5".into() })),
        ("cancelled by somebody else", Script::Play(vec![done(Finish::Cancelled, 0)])),
        ("gone without a word", Script::Vanish(vec![started(0)])),
        ("panic", Script::Panic),
    ];
    let mut all = String::new();
    for (name, script) in cases {
        all.push_str(&line(name, &Harness::new([script]).chat(json!({})).await));
    }
    assert_snapshot!(all);
}

#[tokio::test]
async fn what_is_no_request_at_all() {
    let harness = Harness::with_config(ApiConfig { max_body_bytes: 1000, ..ApiConfig::default() });
    let send = |method: Method, path: &str, body: Vec<u8>| {
        let request = Request::builder().method(method).uri(path).body(Body::from(body)).unwrap();
        async { Answer::read(harness.send(request).await).await }
    };
    let chat = "/v1/chat/completions";
    let deep = [vec![b'['; 500], vec![b']'; 500]].concat();
    let cases = [
        ("garbage", send(Method::POST, chat, b"\xff\x00{".to_vec()).await),
        ("no body", send(Method::POST, chat, Vec::new()).await),
        ("cut short", send(Method::POST, chat, b"{\"messages\": [".to_vec()).await),
        ("no object", send(Method::POST, chat, b"[]".to_vec()).await),
        ("nested too deeply", send(Method::POST, chat, deep).await),
        ("too large", send(Method::POST, chat, vec![b' '; 1001]).await),
        ("unknown route", send(Method::GET, "/v1/nothing", Vec::new()).await),
        ("wrong method", send(Method::GET, chat, Vec::new()).await),
        ("unknown model by name", send(Method::GET, "/v1/models/org/other", Vec::new()).await),
    ];
    assert_eq!(cases[7].1.header("allow"), Some("POST"));
    assert_snapshot!(cases.iter().map(|(name, answer)| line(name, answer)).collect::<String>());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_not_waited_for_any_longer() {
    // Its beginning comes, and nothing more; the clock goes on by itself where nobody has anything to do.
    let begins = stream::once(async { Ok::<_, Infallible>("{\"messages\": [") });
    let body = Body::from_stream(begins.chain(stream::pending()));
    let request = Request::post("/v1/chat/completions").body(body).unwrap();
    let answer = Harness::new([]).router().oneshot(request).await.unwrap();
    assert_snapshot!(line("slow", &Answer::read(answer).await), @r#"
    slow
      408 "invalid_request_error" "request_timeout" param=null
      "the body did not arrive within 60 s"
    "#);
}

#[tokio::test]
async fn what_a_template_raises_is_the_clients_error() {
    let harness = Harness::with_template("{{ raise_exception('Roles must alternate') }}", []);
    let refused = line("raised", &harness.chat(json!({})).await);
    let harness = Harness::with_template("{% if %}", []);
    let broken = line("broken", &harness.chat(json!({})).await);
    assert_snapshot!(refused + &broken);
}

#[tokio::test]
async fn until_the_line_is_ready_only_health_is_green() {
    let harness = Harness::without_model([], ApiConfig::default());
    let loading = Readiness::NotReady {
        reason: "stage 2 loads layers 20..30".into(),
        progress: Some(0.25),
        takes_requests: false,
    };
    harness.line.set_readiness(loading);
    assert_eq!(harness.get("/health").await.status, 200);
    assert_eq!(harness.get("/v1/line").await.status, 200);
    let ready = harness.get("/ready").await;
    assert_snapshot!(line("not ready", &ready));
    assert_eq!(ready.json()["error"]["reason"], "stage 2 loads layers 20..30");
    assert_eq!(ready.json()["error"]["progress"], 0.25);
    for answer in
        [harness.get("/v1/models").await, harness.chat(json!({})).await, harness.complete(json!({})).await]
    {
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    }

    harness.line.set_readiness(Readiness::Ready);
    assert_eq!(harness.get("/ready").await.status, 503);
    harness.api.set_model(model_info(), Arc::new(Bytes)).unwrap();
    assert_eq!(harness.get("/ready").await.status, 200);
    assert!(harness.api.set_model(model_info(), Arc::new(Bytes)).is_err());
}

/// A machine that starts no more processes.
#[derive(Debug)]
struct Full;

impl TemplateHost for Full {
    fn ask(&self, _question: Vec<u8>) -> Result<Vec<u8>, TemplateHostError> {
        Err(TemplateHostError::NotStarted(std::io::Error::other("there is no room")))
    }
}

#[tokio::test]
async fn where_templates_cannot_be_run_no_model_is_served() {
    let harness = Harness::without_model([], ApiConfig { templates: Arc::new(Full), ..ApiConfig::default() });
    let error = harness.api.set_model(model_info(), Arc::new(Bytes)).unwrap_err();
    assert!(matches!(&error, ModelNotSet::NoTemplates(why) if why.contains("no room")), "{error}");
    assert_eq!(harness.get("/ready").await.status, 503);
}

#[tokio::test]
async fn while_a_lost_line_is_formed_anew_requests_are_taken_although_it_is_not_ready() {
    let harness = Harness::new([Script::Play(vec![started(0), says("x"), done(Finish::Length, 1)])]);
    let reason = "stage 1 restarts".to_owned();
    harness.line.set_readiness(Readiness::NotReady { reason, progress: None, takes_requests: true });
    assert_eq!(harness.get("/ready").await.status, 503);
    assert_eq!(harness.get("/v1/models").await.status, 200);
    assert_eq!(harness.complete(json!({})).await.status, 200);
}

#[tokio::test]
async fn a_key_that_nobody_asked_for_is_ignored() {
    let harness = Harness::new([]);
    let request = Request::get("/v1/models").header("authorization", "Bearer x").body(Body::empty()).unwrap();
    assert_eq!(harness.send(request).await.status(), 200);
}

#[tokio::test]
async fn request_ids_are_echoed_or_made() {
    let harness = Harness::new([]);
    let id = |sent: Option<&str>| {
        let mut request = Request::get("/health");
        if let Some(sent) = sent {
            request = request.header("x-request-id", sent);
        }
        let request = request.body(Body::empty()).unwrap();
        async { Answer::read(harness.send(request).await).await.header("x-request-id").unwrap().to_owned() }
    };
    assert_eq!(id(Some("mine-7")).await, "mine-7");
    assert_eq!(id(Some(&"x".repeat(129))).await.len(), 36);
    assert_ne!(id(None).await, id(None).await);
}

#[tokio::test]
async fn pages_of_other_origins_are_let_in_only_when_told() {
    let asks = |cors| {
        let harness = Harness::with_config(ApiConfig { cors, ..ApiConfig::default() });
        let request = Request::options("/v1/chat/completions")
            .header("origin", "https://chat.example")
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type")
            .body(Body::empty())
            .unwrap();
        async move {
            let answer = Answer::read(harness.send(request).await).await;
            let origin = answer.header("access-control-allow-origin").map(str::to_owned);
            // A star would not let the key through.
            let headers = answer.header("access-control-allow-headers");
            assert!(origin.is_none() || headers == Some("authorization,content-type"), "{headers:?}");
            origin
        }
    };
    assert_eq!(asks(Cors::Off).await, None);
    assert_eq!(asks(Cors::Any).await.as_deref(), Some("*"));
    let origin = |origin| Cors::Origins(vec![HeaderValue::from_static(origin)]);
    assert_eq!(asks(origin("https://chat.example")).await.as_deref(), Some("https://chat.example"));
    assert_eq!(asks(origin("https://other.example")).await, None);
}

#[tokio::test]
async fn what_a_page_of_another_origin_has_a_browser_send_is_refused_before_it_is_read() {
    let harness = Harness::new([Script::Play(vec![started(0), says("x"), done(Finish::Length, 1)])]);
    let ask = |method: Method, origin: &'static str| {
        let body = if method == Method::GET { String::new() } else { "no JSON".to_owned() };
        let path = if method == Method::GET { "/v1/line" } else { "/v1/chat/completions" };
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:8080");
        harness.send(request.header("origin", origin).body(Body::from(body)).unwrap())
    };
    let answer = Answer::read(ask(Method::POST, "https://evil.example").await).await;
    assert_snapshot!(line("a page of another origin", &answer));
    assert_eq!(ask(Method::POST, "http://127.0.0.1:8080").await.status(), 400, "the console's is read");
    assert_eq!(ask(Method::GET, "https://evil.example").await.status(), 200, "and CORS hides the answer");
}
