//! Work frames: what travels down the line in order, and the verdict that comes back.

use crate::{Epoch, OfPrompt, Position, PrefixKey, Rows, SamplerParams, SeqId, Token, WindowId};

/// One frame on the way from the front through every stage to the tail.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// What to do.
    pub work: Work,
    /// The hidden rows of a chunk or window, one per token; absent on the way to stage 0, which looks them up, and where
    /// they are [`Held`] already.
    pub rows: Option<Rows>,
    /// What the stages passed so far measured, stage 0 first; only on chunks and windows.
    pub timings: Vec<StageTiming>,
    /// Whether it was computed together with others.
    pub company: Company,
}

impl Frame {
    /// A frame as the front sends it: no rows, no timings.
    #[must_use]
    pub const fn new(work: Work) -> Self {
        Self { work, rows: None, timings: Vec::new(), company: Company::Alone }
    }
}

/// Windows that one call computed travel together, so that the next call can take them together again: whoever gets
/// the first waits for the others before it computes. All of them have been sent when the first one arrives.
///
/// Only a matter of speed: over any number of groups, as many windows follow as were announced, in whatever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Company {
    /// It belongs to no group.
    #[default]
    Alone,
    /// The first of a group; so many others follow, 1 to [`limits::MAX_SLOTS`](crate::limits::MAX_SLOTS).
    Leads(u16),
    /// One of the others.
    Follows,
}

impl Company {
    /// Marks what goes out together, in the order given. One alone is not a group.
    pub fn form<'a>(members: impl IntoIterator<Item = &'a mut Self>) {
        let mut members = members.into_iter();
        let Some(first) = members.next() else { return };
        let others = members.map(|member| *member = Self::Follows).count();
        *first = match u16::try_from(others) {
            Ok(0) | Err(_) => Self::Alone,
            Ok(n) => Self::Leads(n),
        };
    }

    /// What it adds to the number of windows that are still to come.
    #[must_use]
    pub const fn awaited(self) -> i32 {
        match self {
            Self::Alone => 0,
            Self::Leads(n) => n as i32,
            Self::Follows => -1,
        }
    }
}

/// Everything that changes what a sequence is, in the order that the front decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A sequence begins.
    Open(Box<Open>),
    /// A piece of the prompt; asks for no tokens.
    Chunk(Chunk),
    /// Tokens to be checked.
    Window(Window),
    /// Cut what ran past the committed inputs and keep the rest as a prefix.
    Park(Park),
    /// The sequence ends and its memory is free.
    Close(Close),
}

impl Work {
    /// The sequence that the work belongs to.
    #[must_use]
    pub fn seq(&self) -> SeqId {
        match self {
            Self::Open(open) => open.seq,
            Self::Chunk(chunk) => chunk.seq,
            Self::Window(window) => window.seq,
            Self::Park(park) => park.seq,
            Self::Close(close) => close.seq,
        }
    }

    /// The tokens that the work computes, if it computes any.
    #[must_use]
    pub fn tokens(&self) -> &[Token] {
        match self {
            Self::Chunk(chunk) => &chunk.tokens,
            Self::Window(window) => &window.tokens,
            Self::Open(_) | Self::Park(_) | Self::Close(_) => &[],
        }
    }
}

/// Begins a sequence. The tail's state is a function of this frame and of what it then commits.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// The new sequence.
    pub seq: SeqId,
    /// First position that will be computed; the positions before it are `history`, already resident.
    pub start: Position,
    /// The parked prefix that holds the positions before `start`; none for a sequence that starts with nothing.
    pub reuse: Option<Reuse>,
    /// What only the later stages hold of a text that a lost line had computed; only where `start` is 0.
    pub held: Option<Held>,
    /// Key of the sampling noise.
    pub seed: u64,
    /// Which of a request's choices this is; part of the noise's key.
    pub choice: u32,
    /// How the tail samples.
    pub sampler: SamplerParams,
    /// The tail ends the sequence once it has sampled the token at position `limit - 1`.
    pub limit: Position,
    /// Whether an end-of-generation token does not end the sequence.
    pub ignore_eos: bool,
    /// How many alternatives a verdict reports per token; `None` for no log-probabilities at all.
    pub top_logprobs: Option<u8>,
    /// What is wanted of the prompt itself; only of one that starts with nothing.
    pub of_prompt: Option<OfPrompt>,
    /// Tokens at positions `0..start`, for penalties and drafts.
    pub history: Vec<Token>,
}

/// A prefix whose first positions a new sequence takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// The sequence that was parked, or one that still runs: its first positions are copied once it has them.
    pub prefix: SeqId,
    /// Whether the prefix stays for others; else it is gone once the new sequence has begun. One that runs stays anyway.
    pub keep: bool,
    /// Where a stage that has no such prefix finds it in its store; it is the prefix of that id from then on.
    pub stored: Option<PrefixKey>,
}

/// A prefix of which stages early in the line have lost their part. They compute its positions again; chunks within it
/// travel on without rows from there, to be heard but not computed. A chunk lies within it or behind it, not across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The sequence that was lost, or parked. It is gone once the new sequence has begun.
    pub prefix: SeqId,
    /// Its first positions, so many, are taken over; at least one.
    pub len: Position,
    /// Stages from the one that reads this on that have lost it; 0 on those that hold it. Each passes on one less.
    pub lost_by: u16,
}

impl Open {
    /// The first position that the stage which reads this computes, and the prefix that it holds those before it in.
    #[must_use]
    pub fn beginning(&self) -> (Position, Option<Reuse>) {
        match self.held {
            Some(Held { prefix, len, lost_by: 0 }) => {
                (len, Some(Reuse { prefix, keep: false, stored: None }))
            }
            _ => (self.start, self.reuse),
        }
    }

    /// The positions below this one are held by the next stage: it wants no rows of them.
    #[must_use]
    pub fn held_by_next(&self) -> Position {
        self.held.filter(|held| held.lost_by <= 1).map_or(Position(0), |held| held.len)
    }

    /// As the next stage shall read it.
    #[must_use]
    pub fn for_next(mut self) -> Self {
        if let Some(held) = &mut self.held {
            held.lost_by = held.lost_by.saturating_sub(1);
        }
        self
    }
}

/// The prompt's tokens at `base..base + tokens.len()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Whose prompt.
    pub seq: SeqId,
    /// Position of the first token.
    pub base: Position,
    /// The tokens; at least one.
    pub tokens: Vec<Token>,
    /// The prompt's next token, which the last row predicts; only for [`OfPrompt::Logprobs`], and not behind its end.
    pub follows: Option<Token>,
}

/// A claim: "the tokens at positions `base..base + tokens.len()` are these". The first one is a claim too.
/// Row `i` predicts position `base + i + 1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Whose tokens.
    pub seq: SeqId,
    /// The period in which the window was sent.
    pub epoch: Epoch,
    /// The window's number.
    pub window: WindowId,
    /// Position of the first token; also the rewind command: `base <= next`, truncate, run.
    pub base: Position,
    /// The tokens; at least one.
    pub tokens: Vec<Token>,
    /// Whether the window runs ahead of a verdict that is still to come; such work yields to others.
    pub run_ahead: bool,
    /// What the tail shall draft behind its verdict, with the model's own blocks for that; nothing if it has none.
    pub want_draft: Option<WantDraft>,
}

/// What is to be drafted once a window has been checked: what follows its verdict's last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantDraft {
    /// Tokens at most, 1 to [`limits::MAX_DRAFT`](crate::limits::MAX_DRAFT).
    pub tokens: u8,
    /// No draft if the verdict's last token is this one, because it confirms the whole window and the next one, which
    /// begins with it, is on its way.
    pub unless: Option<Token>,
}

/// Ends the sequence as [`Close`] does, but keeps its first `len` positions as a prefix that later sequences may reuse
/// under the sequence's id, until a [`Close`] of that id. A stage may lose it at any time: see
/// [`crate::FaultKind::PrefixLost`].
#[derive(Clone, Debug, PartialEq)]
pub struct Park {
    /// Whose positions.
    pub seq: SeqId,
    /// Positions to keep: the committed inputs.
    pub len: Position,
    /// Under which key they shall be stored for good, if they shall: a [`Stored`](crate::Stored) from every stage answers.
    pub store: Option<PrefixKey>,
}

/// Ends a sequence on every stage, or drops the prefix that it was parked as.
#[derive(Clone, Debug, PartialEq)]
pub struct Close {
    /// The sequence; its id is never used again.
    pub seq: SeqId,
    /// Positions whose input was certain: rows that were computed behind them were for nothing. Only for the counters.
    pub inputs: Position,
}

/// What the tail found: 1 to `len` sampled tokens, all of them committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whose tokens.
    pub seq: SeqId,
    /// The window's epoch.
    pub epoch: Epoch,
    /// The window that was checked.
    pub window: WindowId,
    /// The window's base: the first sampled token is at `base + 1`.
    pub base: Position,
    /// The sampled tokens, in order.
    pub tokens: Vec<Token>,
    /// Set if the last token ends the sequence.
    pub ended: Option<End>,
    /// One per token when asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Mirostat's state after the last token, for sequences that use it.
    pub mu: Option<f32>,
    /// What each stage measured on the window, stage 0 first.
    pub timings: Vec<StageTiming>,
    /// Whether it was checked together with others.
    pub company: Company,
    /// Whether a [`TailDraft`] of what follows will come, whatever happens but the end of the sequence.
    pub drafts: bool,
}

/// What the tail expects to follow a verdict's last token. A verdict never waits for it, so it comes by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TailDraft {
    /// Whose tokens.
    pub seq: SeqId,
    /// The position of the first one, behind the verdict's last.
    pub base: Position,
    /// The tokens, at most [`limits::MAX_DRAFT`](crate::limits::MAX_DRAFT); none if drafting has failed.
    pub tokens: Vec<Token>,
    /// The model's own probability of each of them, 0 to 1.
    pub probabilities: Vec<f32>,
    /// The call in which it was drafted: how long that took, and the rows of all its sequences, those included that the
    /// blocks were told before they drafted.
    pub timing: StageTiming,
    /// Whether it was drafted together with others; as of a verdict.
    pub company: Company,
}

/// Why the tail ended a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An end-of-generation token was sampled.
    EndOfGeneration,
    /// `Open.limit` was reached.
    Limit,
    /// The grammar allows nothing more.
    Grammar,
}

/// Log-probabilities of one sampled token: log-softmax of the raw logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the sampled token.
    pub logprob: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<(Token, f32)>,
}

/// How one stage spent its time on a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTiming {
    /// Between arrival and the start of the engine call, microseconds.
    pub queue_us: u32,
    /// The engine call, microseconds.
    pub compute_us: u32,
    /// Rows in the engine call, of all sequences together; 0 where the rows were [`Held`] already and none was made.
    pub batch_rows: u32,
}
