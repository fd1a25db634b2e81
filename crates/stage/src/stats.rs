//! What a stage counts. Plain numbers; exporters translate.

use std::ops::{Add, Sub};

use protocol::{Frame, StageCounters, Work};

/// Counters since the stage began; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Engine calls with rows.
    pub calls: u64,
    /// Rows in them.
    pub rows: u64,
    /// Windows computed.
    pub windows: u64,
    /// Prompt chunks computed.
    pub chunks: u64,
    /// Prompt chunks that were here already.
    pub held_chunks: u64,
    /// Windows that were stale before they were computed, and were not.
    pub stale_windows: u64,
    /// Their rows.
    pub stale_rows: u64,
    /// Rows computed for nothing: cut again for a later window, or behind the last certain input of a sequence that
    /// was closed.
    pub wasted_rows: u64,
    /// Frames passed over because their sequence had been given up, had ended or was poisoned.
    pub passed_over: u64,
    /// Of those, windows.
    pub passed_windows: u64,
    /// Of those, prompt chunks.
    pub passed_chunks: u64,
    /// Positions that sequences took over from parked prefixes or from what a lost line had computed.
    pub reused_positions: u64,
    /// Bytes of prefixes saved because their slot was needed.
    pub saved_bytes: u64,
    /// Prefixes that the store has taken.
    pub stored_prefixes: u64,
    /// Prefixes that the store has given back.
    pub restored_prefixes: u64,
    /// Prefixes that the store did not have, or not as they had been stored.
    pub missed_prefixes: u64,
    /// Sequences that began.
    pub opened: u64,
    /// Sequences that ended.
    pub closed: u64,
    /// Faults reported.
    pub faults: u64,
}

impl Stats {
    /// Share of the rows computed for nothing, 0 to 1.
    #[must_use]
    pub fn wasted_share(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.wasted_rows as f64 / self.rows as f64 }
    }

    /// A frame with this work was passed over.
    pub(crate) fn count_passed_over(&mut self, work: &Work) {
        self.passed_over += 1;
        self.passed_windows += u64::from(matches!(work, Work::Window(_)));
        self.passed_chunks += u64::from(matches!(work, Work::Chunk(_)));
    }

    /// What the front is told of them.
    #[must_use]
    pub const fn counters(&self) -> StageCounters {
        StageCounters {
            calls: self.calls,
            rows: self.rows,
            windows: self.windows,
            chunks: self.chunks,
            stale_windows: self.stale_windows,
            stale_rows: self.stale_rows,
            passed_windows: self.passed_windows,
            passed_chunks: self.passed_chunks,
            wasted_rows: self.wasted_rows,
            stored_prefixes: self.stored_prefixes,
            restored_prefixes: self.restored_prefixes,
            missed_prefixes: self.missed_prefixes,
        }
    }
}

/// What a stage holds and has not computed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Frames.
    pub frames: usize,
    /// Bytes of their hidden rows and tokens.
    pub bytes: usize,
}

impl Load {
    /// What one frame weighs.
    #[must_use]
    pub fn of(frame: &Frame) -> Self {
        let rows = frame.rows.as_ref().map_or(0, |rows| rows.data().len());
        Self { frames: 1, bytes: rows + size_of_val(frame.work.tokens()) }
    }
}

impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { frames: self.frames + other.frames, bytes: self.bytes + other.bytes }
    }
}

impl Sub for Load {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { frames: self.frames - other.frames, bytes: self.bytes - other.bytes }
    }
}
