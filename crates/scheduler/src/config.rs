//! What a scheduler may use and how long anything waits.

use std::time::Duration;

/// Requests that wait: some minutes of work for a small line, and a few hundred kilobytes of prompts.
const QUEUE_LIMIT: u32 = 128;
/// A client that heard nothing for a minute has usually given up or will try again.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);
/// Short enough that several chunks of a common prompt overlap on the stages and a decoding sequence waits for one
/// of them only briefly, long enough that reading the weights is shared by many rows.
const CHUNK_ROWS: u32 = 128;

/// The budgets of one line; constant for a scheduler's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Stages in the line; reports about tokens come from the last one.
    pub n_stages: u16,
    /// Sequences that the stages hold at once.
    pub n_slots: u16,
    /// Positions per sequence, prompt and answer together.
    pub context: u32,
    /// Vocabulary entries.
    pub n_vocab: u32,
    /// Tokens in one prefill chunk at most; no more than the stages' `max_rows`.
    pub chunk_rows: u32,
    /// Chunks of one sequence in the line at most. More of them than stages keep every stage busy.
    pub max_chunks_in_flight: u32,
    /// Requests that may wait.
    pub queue_limit: u32,
    /// How long a request may wait.
    pub queue_timeout: Duration,
}

impl Config {
    /// The usual budgets for a line of this shape.
    #[must_use]
    pub fn new(n_stages: u16, n_slots: u16, context: u32, n_vocab: u32) -> Self {
        Self {
            n_stages,
            n_slots,
            context,
            n_vocab,
            chunk_rows: CHUNK_ROWS,
            // One in each stage's hands, one on its way.
            max_chunks_in_flight: u32::from(n_stages) + 1,
            queue_limit: QUEUE_LIMIT,
            queue_timeout: QUEUE_TIMEOUT,
        }
    }
}
