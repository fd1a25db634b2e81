//! What a scheduler tells about itself: counters, and the sequences as they are.

use std::time::Duration;

use protocol::{SeqId, StageTiming};
use spec::{InFlight, Plan, Tally};

use crate::RequestId;

/// Counters since the scheduler's start, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that wait now.
    pub queued: u32,
    /// Sequences that hold memory now, closing ones included.
    pub sequences: u32,
    /// Requests taken.
    pub submitted: u64,
    /// Requests refused because the queue was full.
    pub refused: u64,
    /// Requests that ended by themselves.
    pub finished: u64,
    /// Requests that their callers cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Times that a running request made room for a more urgent one.
    pub preempted: u64,
    /// Times that a request went on after an interruption.
    pub resumed: u64,
    /// Tokens of the prefixes parked now.
    pub parked_tokens: u64,
    /// Prefixes parked now.
    pub parked_prefixes: u32,
    /// Tokens of the prefixes stored now.
    pub stored_tokens: u64,
    /// Prefixes stored now.
    pub stored_prefixes: u32,
    /// Prompt tokens taken over from prefixes.
    pub reused_tokens: u64,
    /// Of those, from sequences that were still running.
    pub shared_tokens: u64,
    /// Of those, from prefixes that were not parked but stored.
    pub restored_tokens: u64,
    /// Other tokens that only a part of the stages computed again after a line was lost: the later ones held them.
    pub partly_reused_tokens: u64,
    /// Times that a stage did not have a prefix that a sequence was to begin with.
    pub lost_prefixes: u64,
    /// Prompt tokens sent in chunks.
    pub prefilled_tokens: u64,
    /// Tokens committed.
    pub generated_tokens: u64,
    /// Windows sent.
    pub windows: u64,
    /// Of those, answered by a verdict.
    pub live_windows: u64,
    /// Of those, made stale by a contradiction or an end.
    pub stale_windows: u64,
    /// Times that a verdict contradicted what had been sent.
    pub epochs: u64,
    /// Windows waiting for a verdict, over time; the mean is per decoding sequence.
    pub in_flight: InFlight,
    /// Tokens proposed and sent.
    pub drafted: u64,
    /// Of those, committed.
    pub accepted: u64,
    /// The same by source and by distance.
    pub guesses: Tally,
    /// Times of windows around the line.
    pub loops: Loops,
    /// Reports about sequences that were over already.
    pub late_reports: u64,
}

/// How long windows took around the line, in sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loops {
    /// Windows that a verdict has answered.
    pub windows: u64,
    /// Microseconds from sending them to hearing their verdicts.
    pub total_us: u64,
    /// Of those, microseconds of waiting for others in stages.
    pub waited_us: u64,
}

impl Loops {
    /// One more window.
    pub(crate) fn add(&mut self, took: Duration, timings: &[StageTiming]) {
        self.windows += 1;
        self.total_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 2);
        self.waited_us += timings.iter().map(|timing| u64::from(timing.queue_us)).sum::<u64>();
    }

    /// The mean time around the line; zero before the first window.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_micros(self.total_us.checked_div(self.windows).unwrap_or_default())
    }

    /// The mean if no window had waited for another.
    #[must_use]
    pub fn ideal(&self) -> Duration {
        let ideal_us = self.total_us.saturating_sub(self.waited_us);
        Duration::from_micros(ideal_us.checked_div(self.windows).unwrap_or_default())
    }
}

/// One sequence as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStatus {
    /// Its id on the line.
    pub seq: SeqId,
    /// The request that it serves or served.
    pub request: RequestId,
    /// What it is doing.
    pub state: SequenceState,
    /// Tokens in its prompt.
    pub prompt: u32,
    /// Of those, taken over: from a prefix that was parked or stored, or from a sequence that runs.
    pub cached: u32,
    /// Tokens committed to it, the prompt's included as far as they were sent.
    pub positions: u32,
    /// Windows that a verdict is still to come for.
    pub windows_in_flight: u32,
    /// Tokens guessed and sent.
    pub drafted: u32,
    /// Of those, confirmed.
    pub accepted: u32,
    /// How wide and deep it guesses now.
    pub plan: Plan,
}

/// What a sequence is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// Its prompt is on its way into the line.
    Prefill,
    /// It generates.
    Decode,
    /// It is over, but the stages have not freed its memory yet.
    Closing,
}
