//! Which requests leave a trace, and whose it is. What spans a trace has is tested where they are made.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use protocol::{Found, HiddenRows};
use scheduler::{Event, Failure, Finish};
use serde_json::json;
use server::{ApiConfig, Record, Sampler, Span, Trace, TraceSink, Tracing, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::fake::{
    Answer, Bytes, DEADLINE, Harness, Script, answer, chat_body, done, ends, model_info, says, started, with,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: u64 = 0x00f0_67aa_0ba9_02b7;

struct Sink(mpsc::UnboundedSender<Trace>);

impl TraceSink for Sink {
    fn take(&self, record: Record) {
        self.0.send(record.trace()).unwrap();
    }
}

/// An API that traces, and its traces.
struct Traced {
    harness: Harness,
    traces: mpsc::UnboundedReceiver<Trace>,
}

impl Traced {
    fn new(sampler: &str, content: bool, scripts: impl IntoIterator<Item = Script>) -> Self {
        let (sender, traces) = mpsc::unbounded_channel();
        let sampler = Sampler::named(sampler).unwrap();
        let tracing = Some(Tracing { sink: Arc::new(Sink(sender)), sampler, content });
        let harness = Harness::without_model(scripts, ApiConfig { tracing, ..ApiConfig::default() });
        harness.api.set_model(model_info(), Arc::new(Bytes)).unwrap();
        Self { harness, traces }
    }

    fn all(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self::new("parentbased_always_on", false, scripts)
    }

    /// The answer to a chat, with this `traceparent`.
    async fn chat(&self, parent: &str) -> Answer {
        let request = Request::post("/v1/chat/completions").header("traceparent", parent);
        Answer::read(self.harness.send(request.body(Body::from(chat_body().to_string())).unwrap()).await)
            .await
    }

    async fn next(&mut self) -> Trace {
        timeout(DEADLINE, self.traces.recv()).await.expect("a trace in time").unwrap()
    }
}

fn names(trace: &Trace) -> Vec<&str> {
    trace.spans.iter().map(|span| span.name.as_str()).collect()
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[tokio::test]
async fn every_generation_leaves_one_trace_and_nothing_else_does() {
    let rows = Event::Prompt(Found::Rows(HiddenRows { width: 4, values: vec![1.0; 4] }));
    let embedded = Script::Play(vec![started(0), rows, done(Finish::Length, 0)]);
    let mut traced = Traced::all(["a", "b", "c", "d"].map(answer).into_iter().chain([embedded]));
    for path in ["/health", "/v1/models", "/v1/line", "/metrics"] {
        assert_eq!(traced.harness.get(path).await.status, 200, "{path}");
    }
    traced.harness.post("/tokenize", &json!({ "content": "x" })).await;
    traced.harness.chat(json!({})).await;
    traced.harness.complete(json!({ "stream": true })).await;
    traced.harness.post("/v1/responses", &json!({ "input": "x" })).await;
    traced.harness.post("/v1/messages", &with(chat_body(), json!({ "max_tokens": 5 }))).await;
    traced.harness.post("/v1/embeddings", &json!({ "input": "x" })).await;
    for (route, operation) in [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/responses", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/embeddings", "embeddings"),
    ] {
        let trace = traced.next().await;
        let root = &trace.spans[0];
        assert_eq!(names(&trace), [&format!("POST {route}"), "prepare", "generate", "queue", "deliver"]);
        assert_eq!((root.parent, trace.parent, root.failed), (None, None, false));
        assert_eq!(attribute(root, "gen_ai.operation.name"), Some(&Value::Text(operation.into())));
        assert_eq!(attribute(root, "gen_ai.request.model"), Some(&Value::Text("toy".into())));
        assert_eq!(attribute(root, "http.response.status_code"), Some(&Value::Number(200)));
    }
    assert!(traced.traces.is_empty());
}

#[tokio::test]
async fn a_caller_that_traces_is_joined_and_one_that_does_not_is_followed() {
    let mut traced = Traced::all(["a", "b", "c"].map(answer));
    traced.chat(&format!("00-{TRACE}-{PARENT:016x}-00")).await;
    traced.chat(&format!("00-{TRACE}-{PARENT:016x}-01")).await;
    let trace = traced.next().await;
    assert_eq!((format!("{:032x}", trace.id).as_str(), trace.parent), (TRACE, Some(PARENT)));
    assert!(traced.traces.is_empty());
    traced.chat("00-nonsense").await;
    let own = traced.next().await;
    assert!(own.id != 0 && own.id != trace.id && own.parent.is_none());
}

#[tokio::test]
async fn what_is_not_sampled_leaves_nothing() {
    let mut traced = Traced::new("parentbased_always_off", false, ["a", "b"].map(answer));
    traced.harness.chat(json!({})).await;
    traced.chat(&format!("00-{TRACE}-{PARENT:016x}-01")).await;
    assert_eq!(format!("{:032x}", traced.next().await.id), TRACE, "only the one that its caller records");
    assert!(traced.traces.is_empty());
}

#[tokio::test]
async fn choices_lie_side_by_side_and_say_how_they_ended() {
    let script = |finish, n| Script::Play(vec![started(0), says("x"), ends(), done(finish, n)]);
    let mut traced = Traced::all([script(Finish::Stop, 3), script(Finish::Length, 5)]);
    traced.harness.chat(json!({ "n": 2 })).await;
    let trace = traced.next().await;
    let choices: Vec<&Span> = trace.spans.iter().filter(|span| span.name == "generate").collect();
    let word = |word: &str| Value::Words(vec![word.to_owned()]);
    for (choice, finish, n) in [(choices[0], "stop", 3), (choices[1], "length", 5)] {
        assert_eq!(choice.parent, Some(trace.spans[0].id));
        assert_eq!(attribute(choice, "gen_ai.response.finish_reasons"), Some(&word(finish)));
        assert_eq!(attribute(choice, "gen_ai.usage.output_tokens"), Some(&Value::Number(n)));
        assert_eq!(attribute(choice, "gen_ai.usage.input_tokens"), Some(&Value::Number(30)));
    }
}

#[tokio::test]
async fn a_trace_ends_when_the_last_of_its_answer_is_sent_or_given_up() {
    let mut traced = Traced::all([Script::Play(vec![started(0), says("x")])]);
    let body = with(chat_body(), json!({ "stream": true })).to_string();
    let request = Request::post("/v1/chat/completions").body(Body::from(body)).unwrap();
    let mut body = traced.harness.send(request).await.into_body();
    timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap();
    assert!(traced.traces.is_empty());
    drop(body);
    let trace = traced.next().await;
    let generate = trace.spans.iter().find(|span| span.name == "generate").unwrap();
    let cancelled = Value::Words(vec!["cancelled".into()]);
    assert_eq!(attribute(generate, "gen_ai.response.finish_reasons"), Some(&cancelled));
}

#[tokio::test]
async fn failures_are_marked_and_told_by_their_kind_alone() {
    let failure = Failure::Fault { reason: "window at 3 starts with token 17".into() };
    let mut traced = Traced::all([Script::Play(vec![started(0), Event::Failed(failure)])]);
    assert_eq!(traced.harness.chat(json!({})).await.status, 500);
    let trace = traced.next().await;
    assert!(trace.spans[0].failed && !format!("{trace:?}").contains("starts with"), "{trace:?}");
    let generate = trace.spans.iter().find(|span| span.name == "generate").unwrap();
    assert_eq!(attribute(generate, "error.type"), Some(&Value::Text("fault".into())));
    assert_eq!(traced.harness.chat(json!({ "temperature": "warm" })).await.status, 400);
    let refused = traced.next().await;
    assert_eq!(names(&refused), ["POST /v1/chat/completions", "prepare"]);
    assert!(!refused.spans[0].failed, "a client's mistake is not the server's failure");
}

#[tokio::test]
async fn texts_are_told_only_to_those_who_ask_for_them() {
    let secret = || answer("the answer is blue");
    let ask = json!({ "messages": [{ "role": "user", "content": "which colour?" }] });
    let mut silent = Traced::new("always_on", false, [secret()]);
    silent.harness.chat(ask.clone()).await;
    let told = format!("{:?}", silent.next().await);
    assert!(!told.contains("blue") && !told.contains("colour"), "{told}");
    let mut open = Traced::new("always_on", true, [secret()]);
    open.harness.chat(ask).await;
    let trace = open.next().await;
    let words = |name| match attribute(&trace.spans[0], name) {
        Some(Value::Words(words)) => words.join("|"),
        other => panic!("{other:?}"),
    };
    assert_eq!(words("paceline.answers"), "the answer is blue");
    assert!(words("paceline.prompts").contains("which colour?"));
}

#[tokio::test]
async fn a_traced_answer_is_the_same_as_another() {
    let traced = Traced::all([answer("hello"), answer("hello")]);
    let plain = Harness::new([answer("hello"), answer("hello")]);
    for extra in [json!({}), json!({ "stream": true })] {
        let (with, without) = (traced.harness.chat(extra.clone()).await, plain.chat(extra).await);
        assert_eq!(with.stable(), without.stable());
        let names = |answer: &Answer| answer.headers.keys().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&with), names(&without));
        assert_eq!(with.header("content-length"), without.header("content-length"));
    }
}
