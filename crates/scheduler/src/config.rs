//! What a scheduler may use and how long anything waits.

use std::time::Duration;

use spec::Speculate;

/// Requests that wait: some minutes of work for a small line, and a few hundred kilobytes of prompts.
const QUEUE_LIMIT: u32 = 128;
/// [`Config::queue_timeout`] unless told otherwise: a client that heard nothing for a minute has usually given up or will
/// try again.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);
/// [`Config::progress_timeout`] unless told otherwise: a machine that swaps, or waits for a disk, may stand still for half a
/// minute and go on, and most clients wait for a minute.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(45);
/// Short enough that several chunks of a common prompt overlap on the stages and a decoding sequence waits for one
/// of them only briefly, long enough that reading the weights is shared by many rows.
const CHUNK_ROWS: u32 = 128;
/// A pause that a reader of a stream hardly sees.
const CHUNK_TIME: Duration = Duration::from_millis(100);
/// Read back from a disk in some ten milliseconds, and hardly ever computed as fast.
const LEAST_STORED: u32 = 128;
/// Frames of a sequence that may wait besides its chunks: its open, a window and its close.
const OTHER_FRAMES: u64 = 3;

/// Tokens between the places where prefixes end that serve whole or not at all: few to compute again, and more than what a
/// tokenizer joins at the end of a text when more of it comes.
const PREFIX_STEP: usize = 16;

/// Where stages can cut a prefix: what a prompt shares with one mostly ends before it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// At any token.
    Anywhere,
    /// At any token of what stands in a slot; of what is saved no more is there than a sliding window reaches, so that what
    /// is longer serves whole. Such prefixes end some tokens early, and texts which share all but those can begin with them.
    InSlots {
        /// Positions of the window.
        window: u32,
    },
    /// Nowhere: whoever begins with one begins with all of it, once its sequence has ended.
    Nowhere,
}

impl Cuts {
    /// Prefixes with more tokens than this serve whole only, once they are saved.
    pub(crate) const fn whole_above(self) -> usize {
        match self {
            Self::Anywhere => usize::MAX,
            Self::InSlots { window } => window as usize,
            Self::Nowhere => 0,
        }
    }

    /// Of so many tokens, those that are parked.
    pub(crate) fn parked(self, computed: usize) -> usize {
        match self {
            Self::InSlots { window } if computed > window as usize => {
                (computed - 1) / PREFIX_STEP * PREFIX_STEP
            }
            Self::Anywhere | Self::InSlots { .. } | Self::Nowhere => computed,
        }
    }
}

/// The budgets of one line; constant for a scheduler's life but for the line's shape ([`crate::Scheduler::reshape`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Stages in the line, as long as it has the shape that it was given; reports about tokens come from the last one.
    pub n_stages: u16,
    /// Sequences that the stages hold at once.
    pub n_slots: u16,
    /// Positions per sequence, prompt and answer together.
    pub context: u32,
    /// Vocabulary entries.
    pub n_vocab: u32,
    /// Tokens in one prefill chunk at most; no more than the stages' `max_rows`.
    pub chunk_rows: u32,
    /// Beside others who decode, chunks are so short that none of those waits for a token longer than twice this.
    pub chunk_time: Duration,
    /// Chunks of one sequence in the line at most. More of them than stages keep every stage busy.
    pub max_chunks_in_flight: u32,
    /// Requests that may wait.
    pub queue_limit: u32,
    /// How long a request may wait, and how long one that ran already lets more urgent ones go first.
    pub queue_timeout: Duration,
    /// How long running requests wait for a new line when theirs is lost, to go on from their last token; at 0 they fail
    /// at once.
    pub replay_timeout: Duration,
    /// How long the line may owe news of a sequence at least, however little there is to compute: one that is slow for less
    /// than this has lost nothing.
    pub progress_timeout: Duration,
    /// Tokens of parked prefixes that the line keeps at most; 0 keeps none.
    pub prefix_tokens: u64,
    /// Tokens of prefixes that the stages' stores keep at most; 0 stores none.
    pub stored_tokens: u64,
    /// Tokens that a stored prefix must spare at least: reading it back must be sooner than computing them.
    pub least_stored: u32,
    /// What stored prefixes depend on besides their tokens: the model, where it is cut, and how rows travel.
    pub line: [u8; 32],
    /// Whether stages can copy a prefix. If not, whoever begins with one takes it over whole.
    pub copies_prefixes: bool,
    /// Where stages can cut a prefix.
    pub cuts: Cuts,
    /// Who guesses, and how far. Stages must take windows of as many rows as its reach allows; models that rewind
    /// within their last call only need a `max_depth` of 1 and a `max_width` that they can undo.
    pub speculate: Speculate,
}

impl Config {
    /// The usual budgets for a line of this shape, without guessing and without parked prefixes.
    #[must_use]
    pub fn new(n_stages: u16, n_slots: u16, context: u32, n_vocab: u32) -> Self {
        Self {
            n_stages,
            n_slots,
            context,
            n_vocab,
            chunk_rows: CHUNK_ROWS,
            chunk_time: CHUNK_TIME,
            // One in each stage's hands, one on its way.
            max_chunks_in_flight: u32::from(n_stages) + 1,
            queue_limit: QUEUE_LIMIT,
            queue_timeout: QUEUE_TIMEOUT,
            replay_timeout: Duration::ZERO,
            progress_timeout: PROGRESS_TIMEOUT,
            prefix_tokens: 0,
            stored_tokens: 0,
            least_stored: LEAST_STORED,
            line: [0; 32],
            copies_prefixes: true,
            cuts: Cuts::Anywhere,
            speculate: Speculate::off(),
        }
    }

    /// These budgets, lowered until all sequences together have at most so many bytes of hidden rows (`row_bytes` each)
    /// and so many frames on the line: they may all wait at its slowest stage.
    #[must_use]
    pub fn fit(mut self, row_bytes: u64, bytes: u64, frames: u64) -> Self {
        let n_slots = u64::from(self.n_slots.max(1));
        let rows = bytes / n_slots / row_bytes.max(1);
        let chunks_by_bytes = rows / u64::from(self.chunk_rows.max(1));
        let chunks_by_frames = (frames / n_slots).saturating_sub(OTHER_FRAMES);
        let most = |limit: u64| u32::try_from(limit.max(1)).unwrap_or(u32::MAX);
        let most_chunks = most(chunks_by_bytes.min(chunks_by_frames));
        self.max_chunks_in_flight = self.max_chunks_in_flight.min(most_chunks);
        self.chunk_rows = self.chunk_rows.min(most(rows));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_shrink_until_all_prompts_fit_beside_each_other() {
        let usual = Config::new(3, 4, 4096, 100);
        assert_eq!(usual.clone().fit(16 << 10, 256 << 20, 4096), usual, "a small line has room");
        for n_slots in [1, 16, 64, 256, 1024] {
            let config = Config::new(5, n_slots, 4096, 100).fit(64 << 10, 256 << 20, 4096);
            let chunks = u64::from(n_slots) * u64::from(config.max_chunks_in_flight);
            assert!(chunks * u64::from(config.chunk_rows) * (64 << 10) <= 256 << 20, "{config:?}");
            assert!(chunks + OTHER_FRAMES * u64::from(n_slots) <= 4096, "{config:?}");
            assert!(config.chunk_rows > 0 && config.max_chunks_in_flight > 0);
        }
    }
}
