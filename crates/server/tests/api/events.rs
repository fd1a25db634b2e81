//! `/v1/line/events`, the cancelling of requests, and the console's files.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use scheduler::{Finish, Moved, Movement, RequestId};
use serde_json::{Value, json};
use server::{ApiConfig, ApiKeys, LineStatus, Readiness};
use tokio::time::{Instant, timeout};

use crate::fake::{Answer, DEADLINE, Harness, Script, Seen, answer, chat_body, done, says, started, with};

/// A reader of the events.
struct Reader(Body);

impl Reader {
    async fn new(harness: &Harness) -> Self {
        let request = Request::get("/v1/line/events").body(Body::empty()).unwrap();
        let response = harness.send(request).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self(response.into_body())
    }

    /// The next frame, a comment or an event; `None` at the end.
    async fn frame(&mut self) -> Option<String> {
        let frame = timeout(DEADLINE, self.0.frame()).await.expect("a frame in time")?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }

    /// The next event that is not a comment, by its name.
    async fn next(&mut self) -> (String, Value) {
        loop {
            let frame = self.frame().await.expect("more events");
            let Some(rest) = frame.strip_prefix("event: ") else { continue };
            let (name, data) = rest.split_once("\ndata: ").unwrap();
            return (name.to_owned(), serde_json::from_str(data.trim()).unwrap());
        }
    }

    /// Reads up to an event of this name.
    async fn until(&mut self, wanted: &str) -> Value {
        loop {
            let (name, value) = self.next().await;
            if name == wanted {
                return value;
            }
        }
    }
}

fn at_rest(status: &mut LineStatus) {
    (status.sequences, status.queue) = (Vec::new(), 0);
}

/// A line on which nothing happens.
fn idle() -> Harness {
    let harness = Harness::new([]);
    harness.line.set_status(at_rest);
    harness
}

fn movement(window: u32) -> Movement {
    let what = Moved::Window { window, epoch: 1, rows: 4 };
    Movement { at: Duration::from_micros(1_234_560), request: RequestId(7), what }
}

#[tokio::test]
async fn a_reader_gets_the_whole_state_first() {
    let harness = Harness::new([]);
    let mut reader = Reader::new(&harness).await;
    let (name, status) = reader.next().await;
    assert_eq!(name, "status");
    assert_eq!((&status["ready"], &status["model"]["id"]), (&json!(true), &json!("toy")));
    assert_eq!(status["line"], harness.get("/v1/line").await.json());
    assert_eq!(status["line"]["stages"][1]["advice"], "Start it again.");
    assert_eq!(reader.next().await, ("requests".into(), json!({ "live": [], "ended": [] })));
}

#[tokio::test(start_paused = true)]
async fn an_idle_line_says_nothing_but_comments_whatever_its_counters_do() {
    let harness = idle();
    let mut reader = Reader::new(&harness).await;
    reader.until("requests").await;
    for _ in 0..3 {
        harness.line.set_status(|status| {
            status.windows.sent += 1;
            status.stages[0].work.rows += 1;
            status.stages[0].busy += 0.01;
        });
        assert_eq!(reader.frame().await.unwrap(), ":\n\n");
    }
    harness.line.set_status(|status| status.stages[1].state = "loading".into());
    let (name, status) = reader.next().await;
    assert_eq!((name.as_str(), &status["line"]["stages"][1]["state"]), ("status", &json!("loading")));
    assert_eq!(status["line"]["windows"]["sent"], 15);
}

#[tokio::test(start_paused = true)]
async fn a_busy_line_is_told_at_most_so_often_and_once_more_at_rest() {
    let harness = Harness::new([]);
    let mut reader = Reader::new(&harness).await;
    reader.until("requests").await;
    let began = Instant::now();
    for _ in 0..10 {
        for _ in 0..50 {
            harness.line.set_status(|status| status.windows.sent += 1);
            harness.line.move_on(movement(0));
        }
        reader.until("status").await;
        assert_eq!(reader.until("movements").await["movements"].as_array().unwrap().len(), 50);
    }
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    harness.line.set_status(at_rest);
    assert_eq!(reader.until("status").await["line"]["sequences"], json!([]));
    harness.line.set_status(|status| status.stages[0].busy = 0.0);
    let rested = Instant::now();
    assert_eq!(reader.until("status").await["line"]["stages"][0]["busy"], 0.0);
    assert!(rested.elapsed() > Duration::from_secs(3), "its last seconds are over: {:?}", rested.elapsed());
    assert_eq!(reader.frame().await.unwrap(), ":\n\n", "and that was all");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_lost_says_why() {
    let harness = idle();
    let mut reader = Reader::new(&harness).await;
    reader.until("requests").await;
    let reason = "stage 1 is away: no heartbeat".to_owned();
    harness.line.set_readiness(Readiness::NotReady {
        reason: reason.clone(),
        progress: Some(0.5),
        takes_requests: false,
    });
    let status = reader.until("status").await;
    assert_eq!((&status["ready"], &status["reason"]), (&json!(false), &json!(reason)));
    harness.line.set_readiness(Readiness::Ready);
    assert_eq!(reader.until("status").await["ready"], true);
}

#[tokio::test]
async fn movements_are_told_in_order_and_a_slow_reader_learns_how_many_it_has_missed() {
    let harness = idle();
    let mut reader = Reader::new(&harness).await;
    reader.until("requests").await;
    let verdict = Movement { what: Moved::Verdict { window: 3, tokens: 2 }, ..movement(3) };
    harness.line.move_on(movement(3));
    harness.line.move_on(verdict);
    let told = reader.until("movements").await;
    let window =
        json!({ "at_ms": 1234.6, "request": 7, "what": "window", "window": 3, "epoch": 1, "rows": 4 });
    assert_eq!(told["movements"][0], window);
    assert_eq!(told["movements"][1]["what"], "verdict");
    assert_eq!(told["missed"], 0);
    // The fake line keeps 64.
    for window in 0..100 {
        harness.line.move_on(movement(window));
    }
    let told = reader.until("movements").await;
    let shown = told["movements"].as_array().unwrap();
    assert_eq!((shown.len(), told["missed"].as_u64()), (64, Some(36)));
    assert_eq!(shown[63]["window"], 99);
}

#[tokio::test(start_paused = true)]
async fn requests_are_listed_while_they_wait_or_run_and_after_their_end() {
    let script = || Script::Play(vec![started(4), says("x")]);
    let harness = Harness::new([answer("hello"), script()]);
    harness.line.set_status(at_rest);
    let mut reader = Reader::new(&harness).await;
    reader.until("requests").await;
    assert_eq!(harness.chat(json!({})).await.status, 200);
    let told = reader.until("requests").await;
    let ended = &told["ended"][0];
    assert_eq!((&ended["id"], &ended["finish"]), (&json!(0), &json!("stop")));
    assert_eq!((&ended["cached_tokens"], &ended["generated_tokens"]), (&json!(10), &json!(6)));
    assert_eq!((&ended["first_token_ms"], &ended["tokens_per_second"]), (&json!(41.0), &json!(50.0)));
    let body = with(chat_body(), json!({ "stream": true, "max_tokens": 9 }));
    let request = Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap();
    let stream = harness.send(request).await;
    let live = &reader.until("requests").await["live"][0];
    assert_eq!((&live["id"], &live["max_tokens"], &live["yours"]), (&json!(1), &json!(9), &json!(true)));
    drop(stream);
    let told = reader.until("requests").await;
    assert_eq!((&told["live"], &told["ended"][0]["finish"]), (&json!([]), &json!("cancelled")));
}

#[tokio::test]
async fn a_request_can_be_cancelled_by_its_number_and_its_client_hears_why() {
    let mut harness = Harness::new([Script::Play(vec![started(0), says("x")])]);
    let body = with(chat_body(), json!({ "stream": true }));
    let request = Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap();
    let stream = harness.send(request).await;
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    let cancelled = harness.post("/v1/requests/0/cancel", &json!({})).await;
    assert_eq!(cancelled.json(), json!({ "id": 0, "object": "request.cancelled", "cancelled": true }));
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
    let heard = Answer::read(stream).await;
    assert_eq!(heard.events().last().unwrap()["error"]["code"], "cancelled");
    for id in ["0", "1", "x", "-1"] {
        let answer = harness.post(&format!("/v1/requests/{id}/cancel"), &json!({})).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (404, Some("request_not_found"))
        );
    }
}

fn with_keys() -> Harness {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "sk-1\nsk-2\n").unwrap();
    let keys = ApiKeys::load(&path).unwrap();
    Harness::with_config(ApiConfig { api_keys: Some(keys), ..ApiConfig::default() })
}

#[tokio::test]
async fn only_the_key_that_asked_may_cancel() {
    let harness = with_keys();
    let post = |path: &str, key: &str, body: Value| {
        let request = Request::post(path).header("authorization", format!("Bearer {key}"));
        request.body(Body::from(body.to_string())).unwrap()
    };
    let body = with(chat_body(), json!({ "stream": true }));
    let _stream = harness.send(post("/v1/chat/completions", "sk-1", body)).await;
    let cancel = |key| harness.send(post("/v1/requests/0/cancel", key, json!({})));
    assert_eq!(cancel("sk-2").await.status(), 404);
    assert_eq!(cancel("sk-1").await.status(), 200);
}

#[tokio::test]
async fn the_page_and_its_parts_are_open_and_the_events_are_not() {
    let harness = with_keys();
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/console/app.js", "text/javascript; charset=utf-8"),
        ("/console/base.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let answer = harness.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe") && !policy.contains("data:"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        let tag = answer.header("etag").unwrap().to_owned();
        let again = Request::get(path).header("if-none-match", tag).body(Body::empty()).unwrap();
        assert_eq!(harness.send(again).await.status(), 304);
    }
    assert_eq!(harness.get("/console/other.js").await.status, 404);
    assert_eq!(harness.get("/console/../Cargo.toml").await.status, 404);
    for path in ["/v1/line/events", "/v1/line", "/x"] {
        assert_eq!(harness.get(path).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn so_many_readers_and_no_more() {
    let harness = idle();
    let mut readers = Vec::new();
    for _ in 0..32 {
        readers.push(Reader::new(&harness).await);
    }
    let refused = harness.get("/v1/line/events").await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("too_many_watchers")));
    readers.pop();
    Reader::new(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn readers_do_not_hold_up_the_end() {
    let harness = Harness::new([Script::Play(vec![started(0), says("x")])]);
    harness.line.set_status(at_rest);
    let mut reader = Reader::new(&harness).await;
    let body = with(chat_body(), json!({ "stream": true }));
    let request = Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap();
    let stream = harness.send(request).await;
    harness.api.close();
    reader.until("requests").await;
    harness.line.say(RequestId(0), done(Finish::Length, 1));
    Answer::read(stream).await;
    while reader.frame().await.is_some() {}
}
