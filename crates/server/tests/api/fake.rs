//! A line that plays scripts, a vocabulary of bytes, and the calls that tests make.

// Named, since the fuzz targets include this file from elsewhere.
#[path = "fake/status.rs"]
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request as HttpRequest, Response};
use http_body_util::BodyExt;
use protocol::{Found, Grammar, HiddenRows, OfPrompt, Pooling, StageTiming, Token, TokenLogprobs};
use scheduler::{Event, Finish, InFlight, Movement, Refusal, Request, RequestId, SharedJournal, Timings};
use serde_json::Value;
use server::{
    Api, ApiConfig, Line, LineStatus, LineWatch, ModelInfo, Readiness, Submission, Submitting, Tokenizer,
    router,
};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::timeout;
use tower::ServiceExt;

/// Longer than anything here may take; a test that waits for so long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// What the line does with one request.
pub(crate) enum Script {
    /// Says these things. After the last one it stays silent, unless that ended the request.
    Play(Vec<Event>),
    /// Says these things, then goes away without a word.
    Vanish(Vec<Event>),
    Refuse(Refusal),
    Panic,
}

/// What the line saw.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Request(RequestId),
    Cancel(RequestId),
}

struct State {
    scripts: VecDeque<Script>,
    /// What it does when there are no scripts left.
    otherwise: fn(&Request) -> Script,
    requests: Vec<Request>,
    open: BTreeMap<RequestId, mpsc::Sender<Event>>,
    next: u64,
}

/// A line that plays its scripts in order.
pub(crate) struct FakeLine {
    state: Arc<Mutex<State>>,
    readiness: Mutex<Readiness>,
    status: Mutex<LineStatus>,
    changed: watch::Sender<()>,
    movements: broadcast::Sender<Movement>,
    seen: mpsc::UnboundedSender<Seen>,
}

impl FakeLine {
    pub(crate) fn set_readiness(&self, readiness: Readiness) {
        *self.readiness.lock().unwrap() = readiness;
        self.changed.send_replace(());
    }

    /// The line changes; whoever watches is told to look again.
    pub(crate) fn set_status(&self, change: impl FnOnce(&mut LineStatus)) {
        change(&mut self.status.lock().unwrap());
        self.changed.send_replace(());
    }

    /// Something moves.
    pub(crate) fn move_on(&self, movement: Movement) {
        // Nobody may be watching.
        let _ = self.movements.send(movement);
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    /// Says one more thing to a request.
    pub(crate) fn say(&self, id: RequestId, event: Event) {
        self.state().open[&id].try_send(event).unwrap();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Line for FakeLine {
    fn submit(&self, request: Request, journal: Option<SharedJournal>) -> Submitting<'_> {
        let mut state = self.state();
        let script = state.scripts.pop_front().unwrap_or_else(|| (state.otherwise)(&request));
        state.requests.push(request);
        let (events, stays) = match script {
            Script::Refuse(refusal) => return Box::pin(std::future::ready(Err(refusal))),
            Script::Panic => {
                drop(state);
                panic!("the line broke");
            }
            Script::Play(events) => (events, true),
            Script::Vanish(events) => (events, false),
        };
        let id = RequestId(state.next);
        state.next += 1;
        let (sender, receiver) = mpsc::channel(events.len() + 16);
        if let Some(journal) = journal {
            let mut journal = journal.lock().unwrap();
            #[expect(clippy::disallowed_methods, reason = "a line has a clock")]
            journal.submit(Instant::now(), Duration::ZERO);
            events.iter().for_each(|event| journal.event(event, Duration::ZERO));
        }
        for event in events {
            sender.try_send(event).unwrap();
        }
        if stays {
            state.open.insert(id, sender);
        }
        self.seen.send(Seen::Request(id)).unwrap();
        let (shared, seen) = (self.state.clone(), self.seen.clone());
        let submission = Submission::new(id, receiver, move |id| {
            if let Some(sender) = shared.lock().unwrap().open.remove(&id) {
                // Nobody listens if the client has gone.
                let _ = sender.try_send(done(Finish::Cancelled, 0));
            }
            seen.send(Seen::Cancel(id)).unwrap();
        });
        Box::pin(std::future::ready(Ok(submission)))
    }

    fn readiness(&self) -> Readiness {
        self.readiness.lock().unwrap().clone()
    }

    fn status(&self) -> LineStatus {
        self.status.lock().unwrap().clone()
    }

    fn cancel(&self, id: RequestId) {
        if let Some(sender) = self.state().open.remove(&id) {
            // Nobody listens if the client has gone.
            let _ = sender.try_send(done(Finish::Cancelled, 0));
        }
        self.seen.send(Seen::Cancel(id)).unwrap();
    }

    fn watch(&self) -> LineWatch {
        LineWatch { changed: self.changed.subscribe(), movements: self.movements.subscribe() }
    }
}

/// Tokens 0 to 255 are bytes, 256 is `<s>`, 257 is `</s>`.
pub(crate) struct Bytes;

pub(crate) const BOS: Token = Token(256);
pub(crate) const EOS: Token = Token(257);

impl Tokenizer for Bytes {
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let mut out = if add_special { vec![BOS] } else { Vec::new() };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if parse_special && let Some(after) = rest.strip_prefix("<s>") {
                out.push(BOS);
                rest = after;
            } else if parse_special && let Some(after) = rest.strip_prefix("</s>") {
                out.push(EOS);
                rest = after;
            } else {
                let (char, after) = rest.split_at(first.len_utf8());
                out.extend(tokens(char));
                rest = after;
            }
        }
        out
    }

    fn piece(&self, token: Token, special: bool, out: &mut Vec<u8>) {
        match (token, special) {
            (BOS, true) => out.extend_from_slice(b"<s>"),
            (EOS, true) => out.extend_from_slice(b"</s>"),
            (Token(byte), _) => out.extend(u8::try_from(byte).ok()),
        }
    }

    fn is_end(&self, token: Token) -> bool {
        token == EOS
    }

    fn n_vocab(&self) -> u32 {
        258
    }

    /// Texts with `broken` in them are no grammars.
    fn check_grammar(&self, grammar: &Grammar) -> Result<(), String> {
        if grammar.text.contains("broken") { Err("the grammar is broken".into()) } else { Ok(()) }
    }
}

/// The tokens of a text's bytes.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    text.bytes().map(|byte| Token(i32::from(byte))).collect()
}

/// A text as one event.
pub(crate) fn says(text: &str) -> Event {
    Event::Tokens { tokens: tokens(text), logprobs: Vec::new() }
}

/// Bytes as one event; they need not be whole characters.
pub(crate) fn says_bytes(bytes: &[u8]) -> Event {
    Event::Tokens { tokens: bytes.iter().map(|&byte| Token(i32::from(byte))).collect(), logprobs: Vec::new() }
}

/// A text as one event with log-probabilities: every token at -0.5, with one alternative.
pub(crate) fn says_with_logprobs(text: &str) -> Event {
    let tokens = tokens(text);
    let logprobs = tokens
        .iter()
        .map(|&token| TokenLogprobs { logprob: -0.5, top: vec![(token, -0.5), (Token(33), -2.0)] })
        .collect();
    Event::Tokens { tokens, logprobs }
}

pub(crate) fn ends() -> Event {
    Event::Tokens { tokens: vec![EOS], logprobs: Vec::new() }
}

pub(crate) fn started(cached: u32) -> Event {
    Event::Started { cached, queued: Duration::from_millis(1) }
}

/// The end of a request whose figures are easy to recognise.
pub(crate) fn done(finish: Finish, generated: u32) -> Event {
    let stage = |compute_us| StageTiming { queue_us: 250, compute_us, batch_rows: 4 };
    let timings = Timings {
        prompt_tokens: 30,
        cached_tokens: 10,
        prompt_time: Duration::from_millis(40),
        generated_tokens: generated,
        generation_time: Duration::from_millis(100),
        drafted: 6,
        accepted: 3,
        windows: 5,
        live_windows: 4,
        stale_windows: 1,
        epochs: 1,
        in_flight: InFlight { most: 3, sum_us: 250, time_us: 100 },
        loop_time: Duration::from_micros(1500),
        ideal_time: Duration::from_micros(1250),
        longest_chunk: Duration::from_millis(15),
        stages: vec![stage(1000), stage(2000)],
        ..Timings::default()
    };
    Event::Done { finish, timings }
}

/// A short answer from start to end.
pub(crate) fn answer(text: &str) -> Script {
    let n = text.len() as u32 + 1;
    Script::Play(vec![started(10), says(text), ends(), done(Finish::Stop, n)])
}

/// What is wanted of the prompt, and two tokens at most.
fn reply(request: &Request) -> Script {
    let row = |n: usize| Found::Rows(HiddenRows { width: 4, values: [0.5, 0.0, -1.0, 2.0].repeat(n) });
    let token = |top| TokenLogprobs { logprob: -0.5, top: vec![(Token(33), -2.0); usize::from(top)] };
    let n = request.prompt.len();
    let mut events = vec![started(0)];
    events.extend(match request.of_prompt {
        Some(OfPrompt::Embedding(Pooling::None)) => Some(Event::Prompt(row(n))),
        Some(OfPrompt::Embedding(_)) => Some(Event::Prompt(row(1))),
        Some(OfPrompt::Logprobs { top }) if n > 1 => {
            Some(Event::Prompt(Found::Logprobs(vec![token(top); n - 1])))
        }
        _ => None,
    });
    let most = if request.is_prompt_only() { 0 } else { request.max_tokens.unwrap_or(2) };
    let said: Vec<_> = [Token(72), EOS].into_iter().take(most as usize).collect();
    let generated = said.len() as u32;
    if !said.is_empty() {
        let logprobs = request.top_logprobs.map_or(Vec::new(), |top| vec![token(top); said.len()]);
        events.push(Event::Tokens { tokens: said, logprobs });
    }
    events.push(done(if generated == 2 { Finish::Stop } else { Finish::Length }, generated));
    Script::Play(events)
}

/// An API over a fake line.
pub(crate) struct Harness {
    pub(crate) line: Arc<FakeLine>,
    pub(crate) api: Api,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
}

pub(crate) fn model_info() -> ModelInfo {
    ModelInfo {
        id: "toy".into(),
        file: "toy.gguf".into(),
        chat_template: None,
        bos: "<s>".into(),
        eos: "</s>".into(),
        fill: None,
        context: 128,
        parallel: 4,
        trained_context: Some(2048),
        n_params: Some(1000),
        row_width: 4,
        pooling: Some(Pooling::Mean),
        architecture: "llama".into(),
        created: 1_700_000_000,
        fingerprint: "paceline-test".into(),
    }
}

impl Harness {
    pub(crate) fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        let harness = Self::without_model(scripts, ApiConfig::default());
        harness.api.set_model(model_info(), Arc::new(Bytes)).unwrap();
        harness
    }

    pub(crate) fn with_template(template: &str, scripts: impl IntoIterator<Item = Script>) -> Self {
        let harness = Self::without_model(scripts, ApiConfig::default());
        let info = ModelInfo { chat_template: Some(template.into()), ..model_info() };
        harness.api.set_model(info, Arc::new(Bytes)).unwrap();
        harness
    }

    pub(crate) fn with_config(config: ApiConfig) -> Self {
        let harness = Self::without_model([], config);
        harness.api.set_model(model_info(), Arc::new(Bytes)).unwrap();
        harness
    }

    pub(crate) fn without_model(scripts: impl IntoIterator<Item = Script>, config: ApiConfig) -> Self {
        let (sender, seen) = mpsc::unbounded_channel();
        let state = State {
            scripts: scripts.into_iter().collect(),
            otherwise: |_| Script::Play(Vec::new()),
            requests: Vec::new(),
            open: BTreeMap::new(),
            next: 0,
        };
        let line = Arc::new(FakeLine {
            state: Arc::new(Mutex::new(state)),
            readiness: Mutex::new(Readiness::Ready),
            status: Mutex::new(status::status()),
            changed: watch::Sender::new(()),
            movements: broadcast::Sender::new(64),
            seen: sender,
        });
        let api = Api::new(line.clone(), config);
        Self { line, api, seen }
    }

    /// A line that has a short answer to whatever is asked of this model.
    pub(crate) fn answering(info: ModelInfo) -> Self {
        let harness = Self::without_model([], ApiConfig::default());
        harness.line.state().otherwise = reply;
        harness.api.set_model(info, Arc::new(Bytes)).unwrap();
        harness
    }

    pub(crate) fn router(&self) -> Router {
        router(self.api.clone())
    }

    /// What the line sees next.
    pub(crate) async fn next_seen(&mut self) -> Seen {
        timeout(DEADLINE, self.seen.recv()).await.expect("the line sees something in time").unwrap()
    }

    pub(crate) async fn send(&self, request: HttpRequest<Body>) -> Response<Body> {
        timeout(DEADLINE, self.router().oneshot(request)).await.expect("an answer in time").unwrap()
    }

    /// Posts JSON; gives the status and the answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().into_bytes()).await
    }

    /// Posts whatever it is.
    pub(crate) async fn post_bytes(&self, path: &str, body: Vec<u8>) -> Answer {
        let request = HttpRequest::post(path).body(Body::from(body)).unwrap();
        Answer::read(self.send(request).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::read(self.send(HttpRequest::get(path).body(Body::empty()).unwrap()).await).await
    }

    pub(crate) async fn chat(&self, extra: Value) -> Answer {
        self.post("/v1/chat/completions", &with(chat_body(), extra)).await
    }

    pub(crate) async fn complete(&self, extra: Value) -> Answer {
        self.post("/v1/completions", &with(serde_json::json!({ "prompt": "Hi" }), extra)).await
    }
}

pub(crate) fn chat_body() -> Value {
    serde_json::json!({ "model": "toy", "messages": [{ "role": "user", "content": "Hi" }] })
}

/// An object with the fields of another one added.
pub(crate) fn with(mut body: Value, extra: Value) -> Value {
    let Value::Object(extra) = extra else { panic!("fields are an object") };
    body.as_object_mut().unwrap().extend(extra);
    body
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn read(response: Response<Body>) -> Self {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = timeout(DEADLINE, response.into_body().collect()).await.expect("the end in time").unwrap();
        let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        Self { status, headers, text }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The data of every event but `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// The answer with its id and time replaced, which differ from run to run.
    pub(crate) fn stable(&self) -> String {
        let first = self.events().into_iter().next().unwrap_or_else(|| self.json());
        let id = first["id"].as_str().unwrap();
        let (kind, hex) = id.split_once('-').unwrap();
        assert!(hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        let created = format!("\"created\":{}", first["created"].as_u64().unwrap());
        self.text.replace(id, &format!("{kind}-ID")).replace(&created, "\"created\":0")
    }
}
