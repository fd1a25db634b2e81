//! The port through which a stage computes: implemented by `llama`, by the simulator's toy and by the bench's null engine.

use std::fmt;

use crate::cancel::Cancel;
use bytes::Bytes;
use protocol::{LayerRange, Open, Position, Token, TokenLogprobs};

/// Index of one stream of keys and values in the engine, `0..n_slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// What an engine can do; constant for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineShape {
    /// The layers it computes, counted in the whole model.
    pub layers: LayerRange,
    /// Whether it looks up embeddings: input is tokens, not rows.
    pub is_first: bool,
    /// Whether it has the output head: output is logits, not rows.
    pub is_tail: bool,
    /// Values in a hidden row.
    pub row_width: usize,
    /// Vocabulary entries (0 unless first or tail).
    pub n_vocab: usize,
    /// Positions per slot.
    pub context: u32,
    /// Sequences at once.
    pub n_slots: u16,
    /// Rows in one call at most.
    pub max_rows: usize,
    /// How far back a sequence can be cut.
    pub rewind: Rewind,
    /// Tokens that end a generation (tail only), ascending.
    pub end_tokens: Vec<Token>,
    /// Whether it drafts: [`Engine::draft`] (tail only).
    pub drafts: bool,
    /// Bytes of weights in memory.
    pub weight_bytes: u64,
    /// Bytes of keys and values in memory.
    pub kv_bytes: u64,
}

/// How far back a sequence can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewind {
    /// To any position (plain attention).
    Anywhere,
    /// To any position in its slot (sliding windows of which everything is kept); but of a slot with more positions than
    /// the window only the last ones are saved, so that what is loaded again serves whole and cannot be cut.
    InPlace {
        /// Positions of the window.
        window: u32,
    },
    /// By so many rows at most, and prefixes not at all (sliding windows that forget).
    Recent {
        /// Rows that can be undone.
        rows: u32,
    },
    /// Only within the rows of the last call, at most `rows` of them (recurrent state with snapshots).
    LastCall {
        /// Rows that can be undone.
        rows: u32,
    },
}

impl Rewind {
    /// Whether what was saved of a slot with `len` positions can be gone on from at `start`.
    #[must_use]
    pub fn serves(self, len: Position, start: Position) -> bool {
        match self {
            Self::Anywhere => len >= start,
            Self::InPlace { window } => len == start || len > start && len.0 <= window,
            Self::Recent { .. } | Self::LastCall { .. } => len == start,
        }
    }
}

/// One sequence's rows in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its stream.
    pub slot: Slot,
    /// Position of the first row; the slot holds exactly the positions below it.
    pub base: Position,
    /// Rows; at least one.
    pub n_rows: usize,
    /// What the tail needs of these rows.
    pub want: Want,
}

/// What the rows of a span leave behind until the next call. Only the tail is asked for anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Want {
    /// Nothing but keys and values.
    #[default]
    Nothing,
    /// Their logits: [`Engine::logits`].
    Logits,
    /// Their hidden rows behind the model's last norm: [`Engine::hidden`].
    Hidden,
}

impl Want {
    /// Logits, or nothing.
    #[must_use]
    pub const fn logits(wanted: bool) -> Self {
        if wanted { Self::Logits } else { Self::Nothing }
    }
}

/// Input of a call: the spans' rows one after another.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// For an engine that is first.
    Tokens(&'a [Token]),
    /// For any other: row-major, `row_width` values each, and the tokens that they stand for, one per row.
    Rows(&'a [f32], &'a [Token]),
}

/// A draft that a tail's own engine shall make.
pub struct Wish {
    /// The sequence's stream. It holds the positions below `position`, and maybe others, of guesses that were wrong.
    pub slot: Slot,
    /// The last token that is certain; it has not been an input yet.
    pub token: Token,
    /// Its position.
    pub position: Position,
    /// Tokens wanted, those at the positions behind it; at least one.
    pub n_tokens: usize,
    /// Chooses them: what [`Sampler::drafting`] gave.
    pub sampler: Box<dyn Sampler>,
}

impl fmt::Debug for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, token, position, n_tokens, .. } = self;
        write!(f, "Wish({n_tokens} tokens behind {token} at {position} in slot {})", slot.0)
    }
}

/// What an engine expects to follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafted {
    /// In order; fewer than were wanted where the engine has no more.
    pub tokens: Vec<Token>,
    /// The engine's own probability of each of them, 0 to 1, before temperature and filters.
    pub probabilities: Vec<f32>,
    /// Rows that were computed for it besides one for each token: what the blocks had not been told yet.
    pub n_told: u32,
}

/// An engine that failed. The state of the spans' slots is undefined afterwards; the others are untouched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct EngineError {
    /// For people: one sentence.
    pub reason: String,
}

/// A slot's positions beside the engine.
#[derive(Clone, PartialEq, Eq)]
pub struct Blob {
    /// How many.
    pub len: Position,
    /// What [`Engine::save`] gave.
    pub bytes: Bytes,
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} positions, {} bytes)", self.len, self.bytes.len())
    }
}

/// A range of layers with its memory.
///
/// The stage calls it from one thread and guarantees: spans in ascending contiguous slots with equal `n_rows`
/// (so that one weight pass serves all of them, see ARCHITECTURE.md "KV layout"), at most `max_rows` rows together,
/// each base equal to the number of positions that the slot holds.
pub trait Engine: Send {
    /// What it can do.
    fn shape(&self) -> &EngineShape;

    /// Computes the spans. Unless the engine is the tail, `out` receives one hidden row per input row, in order
    /// (it is cleared first). The tail's logits are read with [`Engine::logits`] until the next call.
    ///
    /// # Errors
    /// If the back end refused; see [`EngineError`].
    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError>;

    /// Has the engine look at this while it computes, and stop a call whose result nobody wants. One that cannot stop
    /// half way need not look.
    fn heed(&mut self, cancel: Cancel) {
        drop(cancel);
    }

    /// Whether the last call of [`Engine::run`] failed only because it was stopped. The spans' slots hold what they held
    /// before it then.
    fn was_cancelled(&self) -> bool {
        false
    }

    /// Logits of row `row` of the last call (counted over all spans), `n_vocab` of them. Only rows of spans that want
    /// them have any.
    fn logits(&self, row: usize) -> &[f32];

    /// What the model's last norm made of row `row` of the last call (counted over all spans), as many values for every
    /// row. Only rows of spans that want them have any. An engine that cannot tell gives none: there are no embeddings
    /// then.
    fn hidden(&self, row: usize) -> &[f32] {
        let _ = row;
        &[]
    }

    /// Drafts for several sequences, each in a slot of its own: what the model's own blocks that draft expect to follow.
    /// What slots hold, and what [`Engine::logits`] gives, is as before.
    ///
    /// # Errors
    /// If the engine does not draft, or its back end refused. Nothing that any sequence depends on is lost.
    fn draft(&mut self, wishes: Vec<Wish>) -> Result<Vec<Drafted>, EngineError> {
        Err(EngineError { reason: format!("this engine does not draft, and {} were wanted", wishes.len()) })
    }

    /// Does what it has put off because nobody waits for it. Called now and then, when nothing else is to be done.
    fn tend(&mut self) {}

    /// Forgets the slot's positions from `len` on.
    ///
    /// # Errors
    /// If the memory cannot be cut there.
    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError>;

    /// The slot's positions as bytes, for [`Engine::load`] of an engine of the same model, range, context and build.
    ///
    /// # Errors
    /// If they cannot be saved; the slot is as before.
    fn save(&mut self, slot: Slot) -> Result<Vec<u8>, EngineError> {
        Err(EngineError { reason: format!("slot {} cannot be saved by this engine", slot.0) })
    }

    /// Makes a slot hold what [`Engine::save`] gave, and nothing else.
    ///
    /// # Errors
    /// If the bytes are not such; the slot is undefined then.
    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), EngineError> {
        Err(EngineError { reason: format!("{} bytes cannot be loaded into slot {}", bytes.len(), slot.0) })
    }

    /// A sampler for one sequence (tail only).
    ///
    /// # Errors
    /// If the parameters cannot be honoured with this model.
    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError>;
}

/// Chooses one sequence's tokens. Its state advances once per sampled token: every sample is committed.
pub trait Sampler: Send {
    /// Records a token of the prompt (or of the history of [`Open`]), for penalties.
    fn prompt(&mut self, token: Token);

    /// Samples the token at `position` from its logits (`n_vocab` raw values), and records it.
    ///
    /// # Errors
    /// If the sequence cannot go on: its grammar has become too complex, or leaves nothing to choose.
    fn sample(&mut self, position: Position, logits: &[f32]) -> Result<Sampled, EngineError>;

    /// A copy that chooses as this one would go on to, with the same noise at the same positions, and leaves this one
    /// alone; its samples have their log-probabilities. None if guesses cannot be chosen so.
    fn drafting(&self) -> Option<Box<dyn Sampler>> {
        None
    }
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: Token,
    /// When `Open::top_logprobs` asks for it.
    pub logprobs: Option<TokenLogprobs>,
    /// Mirostat's state after this token.
    pub mu: Option<f32>,
    /// Whether the grammar allows nothing after it.
    pub grammar_ended: bool,
}
