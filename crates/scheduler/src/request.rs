//! What a caller asks of the line and what it hears back. Pure data; text and JSON live in `server`.

use std::time::Duration;

use protocol::{Found, OfPrompt, SamplerParams, StageTiming, Token, TokenLogprobs};
use spec::{InFlight, Tally};

use crate::prefixes::Namespace;

/// Names one request to the scheduler, for its whole life; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Whose requests take turns with other clients': one number per key or address.
pub type Client = u64;

/// One generation: a prompt and how to go on from it. `n` choices are `n` requests that differ in `choice`.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The prompt's tokens; at least one.
    pub prompt: Vec<Token>,
    /// How to sample.
    pub sampler: SamplerParams,
    /// Key of the sampling noise.
    pub seed: u64,
    /// Which choice this is; part of the noise's key.
    pub choice: u32,
    /// Tokens to generate at most; `None` is the rest of the context. Clamped to the context. 0 is for requests that want
    /// something of their prompt only; for an embedding it does not matter, nothing is generated.
    pub max_tokens: Option<u32>,
    /// Go on after an end-of-generation token.
    pub ignore_eos: bool,
    /// Alternatives per token in log-probabilities; `None` for none at all.
    pub top_logprobs: Option<u8>,
    /// What is wanted of the prompt itself. All of it is computed then, whatever is resident.
    pub of_prompt: Option<OfPrompt>,
    /// Who asks: clients take turns.
    pub client: Client,
    /// The lower the more urgent; 0 is usual. Who is more urgent goes first, and interrupts who is less:
    /// each request once at most, and for [`crate::Config::queue_timeout`] before it is the next to go on.
    pub priority: i32,
    /// Whose prompts it may share computed prefixes with; `None` for nobody's, in either direction.
    pub namespace: Option<Namespace>,
    /// What the caller expects the answer to be, to be guessed from; it changes how fast the answer comes and nothing
    /// else. What exceeds the context is ignored.
    pub prediction: Option<Vec<Token>>,
}

impl Request {
    /// To go on from a prompt with the usual sampling, as far as there is room; nobody's, and sharing nothing.
    #[must_use]
    pub fn new(prompt: Vec<Token>) -> Self {
        Self {
            prompt,
            sampler: SamplerParams::default(),
            seed: 0,
            choice: 0,
            max_tokens: None,
            ignore_eos: false,
            top_logprobs: None,
            of_prompt: None,
            client: 0,
            priority: 0,
            namespace: None,
            prediction: None,
        }
    }

    /// Whether nothing is generated: it is done when its prompt is.
    #[must_use]
    pub const fn is_prompt_only(&self) -> bool {
        matches!(self.of_prompt, Some(OfPrompt::Embedding(_))) || matches!(self.max_tokens, Some(0))
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The prompt leaves no room for an answer. A client's error.
    #[error("the prompt has {prompt} tokens, but the context holds {context} (prompt and answer together)")]
    ContextLength {
        /// Tokens in the prompt.
        prompt: u32,
        /// Positions per sequence.
        context: u32,
    },
    /// `max_tokens` is 0, and nothing is wanted of the prompt. A client's error.
    #[error("max_tokens is 0: ask for at least one token")]
    NothingToGenerate,
    /// A prompt without tokens. A client's error.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token outside the vocabulary. A client's error.
    #[error("token {0} is not in the vocabulary")]
    UnknownToken(Token),
    /// The queue is full. Try again later.
    #[error("the queue of {limit} requests is full")]
    QueueFull {
        /// Requests that may wait.
        limit: u32,
    },
    /// No line is there, and none is awaited (any more).
    #[error("the line is not ready")]
    NotReady,
}

/// What happens to a request, in order: `Started`, any number of `Prompt` and then of `Tokens`, then exactly one of `Done`
/// and `Failed`.
/// A second `Started`, before any token, takes back the first: a stage had lost what was resident. A request that
/// leaves the queue by cancellation or by its deadline has only the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It left the queue.
    Started {
        /// Prompt tokens that were resident already.
        cached: u32,
        /// Time in the queue.
        queued: Duration,
    },
    /// A part of what is wanted of the prompt was found. The parts come in order, each once.
    Prompt(Found),
    /// Tokens were committed.
    Tokens {
        /// In order; at least one. Includes an end-of-generation token.
        tokens: Vec<Token>,
        /// One per token if asked for, else empty.
        logprobs: Vec<TokenLogprobs>,
    },
    /// It ended as it should.
    Done {
        /// Why.
        finish: Finish,
        /// Where its time went.
        timings: Timings,
    },
    /// It cannot go on; what was sent stands.
    Failed(Failure),
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-generation token, or the end of the grammar.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The caller cancelled.
    Cancelled,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It waited in the queue for too long. Try again later.
    #[error("no place became free within {} s", waited.as_secs())]
    QueueTimeout {
        /// Time in the queue.
        waited: Duration,
    },
    /// The queue is full, and another client has fewer requests in it. Try again later.
    #[error("the queue of {limit} requests is full")]
    QueueFull {
        /// Requests that may wait.
        limit: u32,
    },
    /// A stage or link was lost, and no line came up in its place in time.
    #[error("the line was lost: {reason}")]
    LineLost {
        /// Which stage, and how.
        reason: String,
    },
    /// A stage refused the sequence's parameters. A client's error.
    #[error("{reason}")]
    Parameters {
        /// The stage's words.
        reason: String,
    },
    /// A stage or the front found a contradiction.
    #[error("internal error: {reason}")]
    Fault {
        /// What contradicted what.
        reason: String,
    },
}

/// Where a request's time went, and how well guessing did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of those, resident already.
    pub cached_tokens: u32,
    /// From leaving the queue to the first token.
    pub prompt_time: Duration,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// From the first token to the last.
    pub generation_time: Duration,
    /// Tokens guessed and sent.
    pub drafted: u32,
    /// Of those, confirmed.
    pub accepted: u32,
    /// Guesses by source and by distance.
    pub guesses: Box<Tally>,
    /// Windows sent.
    pub windows: u32,
    /// Of those, answered by a verdict.
    pub live_windows: u32,
    /// Of those, made stale by a contradiction or by the end.
    pub stale_windows: u32,
    /// Windows waiting for a verdict, over time.
    pub in_flight: InFlight,
    /// Times that a verdict contradicted what had been sent.
    pub epochs: u32,
    /// Mean time of a window around the line.
    pub loop_time: Duration,
    /// The same without the time spent waiting for others in stages.
    pub ideal_time: Duration,
    /// The longest time of one of its prompt's chunks in the stage where it took longest.
    pub longest_chunk: Duration,
    /// Sums over the request's windows, stage 0 first (`batch_rows` too).
    pub stages: Vec<StageTiming>,
}
