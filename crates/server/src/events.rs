//! `GET /v1/line/events`: the line as it changes, as server-sent events.
//!
//! Events: `status` (readiness, model, and what `GET /v1/line` says), `requests` (who waits, runs, and ended last) and
//! `movements` (windows and chunks on their way). A reader gets all but the last when it connects, then each when it has
//! changed, at most so often. Nothing polls: the line marks its changes. A slow reader is told less, and slows nobody.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use scheduler::{Moved, Movement};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

use crate::api::Api;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::limits::{MAX_MOVEMENTS, WATCH_EVERY, WATCH_SETTLED};
use crate::{LineStatus, LineWatch, SpareStatus, StageStatus};

/// `GET /v1/line/events`.
pub(crate) async fn events(
    State(api): State<Api>,
    caller: Option<Extension<Caller>>,
) -> Result<Response, ApiError> {
    let place = api.watchers().try_acquire_owned().map_err(|_| ApiError::TooManyWatchers)?;
    let keep_alive = KeepAlive::new().interval(api.config().keep_alive);
    let watcher = Watcher::new(api, caller.map(|Extension(caller)| caller).unwrap_or_default(), place);
    let events = stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // nginx would collect the whole stream before passing it on.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// One reader of the events.
struct Watcher {
    api: Api,
    caller: Caller,
    line: LineWatch,
    roll: watch::Receiver<()>,
    /// Events to send before looking again: one of each kind at most.
    ready: VecDeque<Event>,
    /// Heard and not sent, at most [`MAX_MOVEMENTS`].
    movements: Vec<Movement>,
    /// Movements that were lost because this reader, or the one limit, was too slow.
    missed: u64,
    last: Option<Last>,
    /// Not before then is anything sent again.
    next_at: Instant,
    /// When to look at a line that has come to rest once more: what it says of its recent past is over then.
    settled_at: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

/// The event `status`.
#[derive(Serialize)]
struct Status<'a> {
    #[serde(flatten)]
    readiness: &'a Value,
    line: &'a LineStatus,
}

/// The status last sent.
struct Last {
    /// Readiness, and what of the status matters on an idle line.
    essence: (Value, LineStatus),
    was_active: bool,
}

impl Watcher {
    fn new(api: Api, caller: Caller, place: OwnedSemaphorePermit) -> Self {
        let (line, roll) = (api.line().watch(), api.roll().watch());
        let mut watcher = Self {
            api,
            caller,
            line,
            roll,
            ready: VecDeque::new(),
            movements: Vec::new(),
            missed: 0,
            last: None,
            next_at: Instant::now(),
            settled_at: None,
            _place: place,
        };
        watcher.look(Due { status: true, requests: true });
        watcher
    }

    /// The next event; `None` when the server stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let due = self.changed().await?;
            sleep_until(self.next_at).await;
            self.look(due);
        }
    }

    /// Waits for anything to tell; says what beside movements.
    async fn changed(&mut self) -> Option<Due> {
        let settled_at = self.settled_at;
        let settled = async {
            match settled_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.line.changed.changed() => changed.ok().map(|()| Due { status: true, requests: false }),
            changed = self.roll.changed() => changed.ok().map(|()| Due { status: true, requests: true }),
            movement = self.line.movements.recv() => match movement {
                Ok(movement) => {
                    self.movements.push(movement);
                    Some(Due::default())
                }
                Err(RecvError::Lagged(n)) => {
                    self.missed += n;
                    Some(Due::default())
                }
                Err(RecvError::Closed) => None,
            },
            () = settled => {
                (self.settled_at, self.last) = (None, None);
                Some(Due { status: true, requests: false })
            }
            () = self.api.stopped() => None,
        }
    }

    /// Prepares the events for whatever has changed by now.
    fn look(&mut self, due: Due) {
        self.next_at = Instant::now() + WATCH_EVERY;
        let status = due.status | self.line.changed.has_changed().unwrap_or_default();
        let requests = due.requests | self.roll.has_changed().unwrap_or_default();
        self.line.changed.mark_unchanged();
        self.roll.mark_unchanged();
        if status || requests {
            self.look_at_status();
        }
        if requests {
            let requests = self.api.roll().seen_by(self.caller);
            self.tell("requests", &requests);
        }
        self.look_at_movements();
    }

    fn look_at_status(&mut self) {
        let line = self.api.line().status();
        let readiness = readiness(&self.api);
        let is_active = !line.sequences.is_empty() || line.queue > 0;
        let essence = (readiness, essence(&line));
        let is_news = match &self.last {
            None => true,
            Some(last) => is_active || last.was_active || last.essence != essence,
        };
        if !is_news {
            return;
        }
        if is_active || self.last.as_ref().is_some_and(|last| last.was_active) {
            self.settled_at = Some(Instant::now() + WATCH_SETTLED);
        }
        self.tell("status", &Status { readiness: &essence.0, line: &line });
        self.last = Some(Last { essence, was_active: is_active });
    }

    fn look_at_movements(&mut self) {
        loop {
            match self.line.movements.try_recv() {
                Ok(movement) if self.movements.len() < MAX_MOVEMENTS => self.movements.push(movement),
                Ok(_) => self.missed += 1,
                Err(TryRecvError::Lagged(n)) => self.missed += n,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if self.movements.is_empty() && self.missed == 0 {
            return;
        }
        let movements: Vec<Value> = self.movements.drain(..).map(movement).collect();
        self.tell("movements", &json!({ "movements": movements, "missed": self.missed }));
        self.missed = 0;
    }

    fn tell(&mut self, name: &str, value: &impl Serialize) {
        let json = serde_json::to_string(value).expect("plain data with text keys is JSON");
        self.ready.push_back(Event::default().event(name).data(json));
    }
}

/// What has to be looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    status: bool,
    requests: bool,
}

/// Whether requests can be answered, why not, and by which model.
fn readiness(api: &Api) -> Value {
    let mut readiness = match api.ready() {
        Ok(_) => json!({ "ready": true }),
        Err(ApiError::NotReady { reason, progress }) => {
            json!({ "ready": false, "reason": reason, "progress": progress })
        }
        Err(error) => json!({ "ready": false, "reason": error.to_string() }),
    };
    if let Ok(model) = api.model() {
        let info = &model.info;
        readiness["model"] = json!({
            "id": info.id,
            "architecture": info.architecture,
            "n_params": info.n_params,
            "n_ctx": info.context,
        });
    }
    readiness
}

/// What of an idle line is worth telling: not the counters, which the front's own probes move.
fn essence(line: &LineStatus) -> LineStatus {
    let stage = |stage: &StageStatus| StageStatus {
        address: stage.address.clone(),
        pid: stage.pid,
        layers: stage.layers,
        state: stage.state.clone(),
        reason: stage.reason.clone(),
        standby: stage.standby.clone(),
        ..StageStatus::default()
    };
    let spare = |spare: &SpareStatus| SpareStatus { rtt_ms: None, ..spare.clone() };
    LineStatus {
        stages: line.stages.iter().map(stage).collect(),
        spares: line.spares.iter().map(spare).collect(),
        prefixes: line.prefixes.clone(),
        mode: line.mode.clone(),
        ..LineStatus::default()
    }
}

fn movement(movement: Movement) -> Value {
    let Movement { at, request, what } = movement;
    let (at, request) = (at_ms(at), request.0);
    match what {
        Moved::Chunk { end, rows } => {
            json!({ "at_ms": at, "request": request, "what": "chunk", "end": end, "rows": rows })
        }
        Moved::Progress { end } => json!({ "at_ms": at, "request": request, "what": "progress", "end": end }),
        Moved::Window { window, epoch, rows } => json!({
            "at_ms": at, "request": request, "what": "window", "window": window, "epoch": epoch, "rows": rows,
        }),
        Moved::Verdict { window, tokens } => {
            json!({ "at_ms": at, "request": request, "what": "verdict", "window": window, "tokens": tokens })
        }
        Moved::Over => json!({ "at_ms": at, "request": request, "what": "over" }),
    }
}

/// To a tenth of a millisecond.
fn at_ms(at: Duration) -> f64 {
    (at.as_secs_f64() * 1e4).round() / 10.0
}
