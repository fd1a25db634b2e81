//! What this crate needs from the world: a tokenizer, a line of stages, and a description of the model.
//!
//! Owns: the traits and the plain data that cross them. Does not know who implements them.

mod sources;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use protocol::{Grammar, Pooling, StageCounters, Token};
use scheduler::{Event, Movement, Refusal, Request, RequestId, SharedJournal};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{broadcast, mpsc, watch};

pub use sources::{DepthStatus, DraftStatus, JudgedStatus, SourceStatus};

/// The model's vocabulary. All calls are pure and may run on several threads at once.
pub trait Tokenizer: Send + Sync + 'static {
    /// Turns text into tokens. `add_special` adds what the vocabulary wants around every text (usually a
    /// beginning-of-sequence token); `parse_special` reads the text of a special token as that token.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token>;

    /// Appends the token's bytes, which need not be whole characters. A control token appends nothing unless
    /// `special`. A token outside the vocabulary appends nothing.
    fn piece(&self, token: Token, special: bool, out: &mut Vec<u8>);

    /// Whether the token ends a generation.
    fn is_end(&self, token: Token) -> bool;

    /// Entries in the vocabulary; valid tokens are `0..n_vocab`.
    fn n_vocab(&self) -> u32;

    /// Whether answers of this model can be held to the grammar. Takes from less than a millisecond to a second.
    ///
    /// # Errors
    /// Why not, in one sentence for people.
    fn check_grammar(&self, grammar: &Grammar) -> Result<(), String>;
}

/// What callers may know about the served model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The name that requests use; `default` works too.
    pub id: String,
    /// The name of the model's file, without its folder.
    pub file: String,
    /// The model's own chat template (Jinja); ChatML is used if there is none.
    pub chat_template: Option<String>,
    /// Text of the beginning-of-sequence token; empty if there is none.
    pub bos: String,
    /// Text of the end-of-sequence token; empty if there is none.
    pub eos: String,
    /// Tokens for filling gaps, if the model has them.
    pub fill: Option<Fill>,
    /// Positions per sequence, prompt and answer together.
    pub context: u32,
    /// Requests that run at once.
    pub parallel: u16,
    /// Positions that the model was trained for, if known.
    pub trained_context: Option<u32>,
    /// Parameters, if known.
    pub n_params: Option<u64>,
    /// Values in a text's embedding.
    pub row_width: u32,
    /// How a text's rows become its embedding: as the model's file says, else their mean. None if they are none: the model
    /// ranks texts, or reads them in both directions.
    pub pooling: Option<Pooling>,
    /// Architecture name, as in the GGUF (`llama`, `gemma3`).
    pub architecture: String,
    /// When the model's file was made, in seconds since 1970.
    pub created: u64,
    /// `system_fingerprint` of answers: changes whenever the same seed may give another text.
    pub fingerprint: String,
}

/// The tokens by which a model is asked for what is missing between two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Before the text before the gap.
    pub prefix: Token,
    /// Before the text behind the gap.
    pub suffix: Token,
    /// Before what is missing.
    pub middle: Token,
}

/// A line of stages, seen from the API.
pub trait Line: Send + Sync + 'static {
    /// Asks the line to run one request. Resolves as soon as the request is queued or refused; dropping the
    /// future, or the submission it gives, cancels the request. What happens to it is noted in its journal, if it has
    /// one, and all of it before the submission gives the last event.
    fn submit(&self, request: Request, journal: Option<SharedJournal>) -> Submitting<'_>;

    /// Whether a token can flow through every stage now. Cheap: asked for every request.
    fn readiness(&self) -> Readiness;

    /// What the line is doing, for `/v1/line`.
    fn status(&self) -> LineStatus;

    /// Ends a request as its caller would: `Done { finish: Cancelled, .. }` comes at once. One that is over is left alone.
    fn cancel(&self, id: RequestId);

    /// To hear when to look again, and what moves.
    fn watch(&self) -> LineWatch;
}

/// See [`Line::watch`]. The line never waits for it.
#[derive(Debug)]
pub struct LineWatch {
    /// Marked whenever [`Line::status`] or [`Line::readiness`] may say something else.
    pub changed: watch::Receiver<()>,
    /// What clients' requests move along the line; bounded, so that whoever reads slowly misses some.
    pub movements: broadcast::Receiver<Movement>,
}

/// The answer to [`Line::submit`], to come.
pub type Submitting<'a> = Pin<Box<dyn Future<Output = Result<Submission, Refusal>> + Send + 'a>>;

/// A request that the line has taken. Dropping it before its last event cancels the request on the line.
pub struct Submission {
    id: RequestId,
    events: mpsc::Receiver<Event>,
    cancel: Option<Box<dyn FnOnce(RequestId) + Send>>,
}

impl Submission {
    /// A submission whose events arrive on `events`.
    ///
    /// The line never waits for a slow reader. Every `Tokens` event holds at least one token, so a channel with
    /// room for the tokens that the request may generate and three events more never fills up: size it so and use
    /// `try_send`. That bounds what a reader who does not read can hold.
    ///
    /// `cancel` is called at most once and never after `Done` or `Failed` was read. It must not block. The line
    /// answers it with `Done { finish: Cancelled, .. }` at once, without waiting for the stages.
    #[must_use]
    pub fn new(
        id: RequestId,
        events: mpsc::Receiver<Event>,
        cancel: impl FnOnce(RequestId) + Send + 'static,
    ) -> Self {
        Self { id, events, cancel: Some(Box::new(cancel)) }
    }

    /// The request's id on the line.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` once the line has nothing more to say. Safe to drop while waiting.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        if matches!(event, None | Some(Event::Done { .. } | Event::Failed(_))) {
            self.cancel = None;
        }
        event
    }

    /// Cancels the request but goes on listening, for the last event. Does nothing the second time.
    pub fn cancel(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel(self.id);
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Whether the line can answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Readiness {
    /// A token went through all stages recently.
    Ready,
    /// Not yet, or not any more.
    NotReady {
        /// One sentence for people: what is missing.
        reason: String,
        /// Share of the start-up done, 0 to 1, while starting up.
        progress: Option<f32>,
        /// Whether requests may be submitted all the same: the line is being formed anew, and they wait for it.
        takes_requests: bool,
    },
}

/// The JSON of `GET /v1/line`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct LineStatus {
    /// Stage 0 first.
    pub stages: Vec<StageStatus>,
    /// Stages that the line was given. There are fewer while machines are away whose layers the others share
    /// (`--replan-after`).
    pub given_stages: usize,
    /// Machines that stand by.
    pub spares: Vec<SpareStatus>,
    /// Clients' live sequences only.
    pub sequences: Vec<SequenceStatus>,
    /// Windows that a verdict is still to come for.
    pub windows_in_flight: u32,
    /// Windows since the front's start.
    pub windows: WindowStatus,
    /// Mean time of a window around the line, milliseconds, since the front's start; and what it would have been if
    /// no window had waited for another in a stage.
    pub loop_ms: f32,
    /// See `loop_ms`.
    pub ideal_ms: f32,
    /// Share of each source's guesses that came true, 0 to 1; those count too that were not sent.
    pub agreement: BTreeMap<String, f32>,
    /// Each source's guesses that were sent.
    pub sources: BTreeMap<String, SourceStatus>,
    /// Share of windows that were stale, 0 to 1.
    pub stale_share: f32,
    /// Requests that wait.
    pub queue: u32,
    /// Times that a running request made room for a more urgent one, since the front's start.
    pub preempted: u64,
    /// Times that a request went on after an interruption, since the front's start.
    pub resumed: u64,
    /// Tokens computed since the front's start.
    pub tokens: TokenStatus,
    /// Beginnings of earlier prompts that are kept for later ones.
    pub prefixes: PrefixStatus,
    /// How the line works now: `direct`, or `relay` if verdicts come back through the stages.
    pub mode: String,
}

/// Tokens that went through the line, since the front's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenStatus {
    /// Of prompts, without those that were resident already.
    pub prompt: u64,
    /// Generated.
    pub generated: u64,
}

/// What finished requests have left to later ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct PrefixStatus {
    /// Prefixes kept now.
    pub held: u32,
    /// Their tokens.
    pub tokens: u64,
    /// Prompt tokens that were not computed again, since the front's start.
    pub reused_tokens: u64,
    /// Of those, tokens that another request was computing at the time.
    pub shared_tokens: u64,
    /// Times that a stage had lost one that was wanted.
    pub lost: u64,
    /// Prefixes that all stages have on their disks.
    pub stored: u32,
    /// Their tokens.
    pub stored_tokens: u64,
    /// Of the reused tokens, those that came back from disks.
    pub restored_tokens: u64,
    /// Other tokens that only a part of the stages computed again after a loss: those up to the one that was lost.
    pub partly_reused_tokens: u64,
}

/// One stage in [`LineStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct StageStatus {
    /// `host:port`; `local` for the stage inside the front.
    pub address: String,
    /// Process id, if the stage is a child of the front or the front itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// First layer, and one past the last.
    pub layers: [u32; 2],
    /// `loading`, `linking`, `ready`, `down` and so on.
    pub state: String,
    /// Why it is not ready, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about it, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// What stands by to take its place: `warm` if a spare holds its layers, `cold` if one would have to load them,
    /// `none` if the line waits for this stage whenever it is lost.
    pub standby: String,
    /// Bytes of its weights; absent until it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_bytes: Option<u64>,
    /// Bytes of its keys and values; absent until it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes: Option<u64>,
    /// Bytes that go to the next stage for each row; 0 for the last one, and until it is ready.
    pub row_bytes: u64,
    /// Share of recent time spent computing, 0 to 1.
    pub busy: f32,
    /// Round trip of a heartbeat, milliseconds; absent for the stage inside the front.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f32>,
    /// What it has computed since the front's start, or since the layers were last shared out anew.
    pub work: WorkStatus,
}

/// One machine that stands by, in [`LineStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct SpareStatus {
    /// `host:port`.
    pub address: String,
    /// Process id, once it has been heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// First layer that it holds or loads, and one past the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<[u32; 2]>,
    /// `spare` if it holds them; else `loading`, `down`, `gone` and so on.
    pub state: String,
    /// Why it does not stand by, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about it, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Bytes of its weights; absent until it stands by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_bytes: Option<u64>,
    /// Bytes of its keys and values; absent until it stands by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes: Option<u64>,
    /// Round trip of a heartbeat, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f32>,
}

/// What a stage has computed, and what for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct WorkStatus {
    /// Engine calls.
    pub calls: u64,
    /// Rows in them.
    pub rows: u64,
    /// Of those, for nothing: contradicted, or behind the end.
    pub wasted_rows: u64,
    /// `wasted_rows` in `rows`, 0 to 1.
    pub wasted_share: f32,
    /// Windows computed.
    pub windows: u64,
    /// Windows dropped before they were computed: they were stale, or their request was over.
    pub dropped_windows: u64,
    /// Prompt chunks computed.
    pub chunks: u64,
    /// Prompt chunks dropped before they were computed: their request was over.
    pub dropped_chunks: u64,
    /// Prefixes put on its disk.
    pub stored_prefixes: u64,
    /// Prefixes that came back from it.
    pub restored_prefixes: u64,
    /// Prefixes that it did not have, or not as they had been stored.
    pub missed_prefixes: u64,
}

impl From<StageCounters> for WorkStatus {
    fn from(counters: StageCounters) -> Self {
        let StageCounters { calls, rows, wasted_rows, windows, chunks, .. } = counters;
        Self {
            calls,
            rows,
            wasted_rows,
            wasted_share: share(wasted_rows, rows),
            windows,
            dropped_windows: counters.stale_windows.saturating_add(counters.passed_windows),
            chunks,
            dropped_chunks: counters.passed_chunks,
            stored_prefixes: counters.stored_prefixes,
            restored_prefixes: counters.restored_prefixes,
            missed_prefixes: counters.missed_prefixes,
        }
    }
}

/// What became of windows: `sent` is `live`, `stale` and those in flight together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct WindowStatus {
    /// Sent.
    pub sent: u64,
    /// Answered by a verdict.
    pub live: u64,
    /// Made stale by a contradiction or by the end of their request.
    pub stale: u64,
    /// Mean number of them waiting for a verdict, per request, while one did.
    pub in_flight_mean: f64,
    /// The most of one request at once.
    pub in_flight_max: u32,
    /// Times that a verdict contradicted what had been sent.
    pub epochs: u64,
}

/// `part` in `whole`, 0 to 1; 0 of nothing.
#[must_use]
pub(crate) fn share(part: u64, whole: u64) -> f32 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) as f32 }
}

/// One live sequence in [`LineStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct SequenceStatus {
    /// The request's id on the line.
    pub request: u64,
    /// `prefill` or `decode`.
    pub phase: String,
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
    /// Of those, not computed for it: taken over from earlier requests, or from one that runs.
    pub cached_tokens: u32,
    /// Tokens generated so far.
    pub generated_tokens: u32,
    /// Guesses sent so far.
    pub drafted_tokens: u32,
    /// Of those, right.
    pub accepted_tokens: u32,
    /// Windows that a verdict is still to come for.
    pub windows_in_flight: u32,
}
