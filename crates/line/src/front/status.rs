//! What the front shows of its line.

use std::time::Duration;

use protocol::{LayerRange, StageIndex, StageTiming};
use scheduler::{SequenceStatus, Stats};

use super::roster::Seat;

/// Spans of time over which a stage's busy share is measured.
const WINDOW: Duration = Duration::from_secs(2);

/// The line as it is now.
#[derive(Clone, Debug)]
pub struct LineSnapshot {
    /// Stage 0 first.
    pub stages: Vec<StageSnapshot>,
    /// Clients' sequences, closing ones included.
    pub sequences: Vec<SequenceStatus>,
    /// The scheduler's counters.
    pub stats: Stats,
    /// Whether verdicts come back through the stages.
    pub relayed: bool,
}

/// One stage as it is now.
#[derive(Clone, Debug)]
pub struct StageSnapshot {
    /// `host:port`, or `local`.
    pub address: String,
    /// Its layers.
    pub layers: LayerRange,
    /// How far it has come.
    pub seat: Seat,
    /// Share of recent time that its engine computed, 0 to 1.
    pub busy: f32,
    /// Smoothed round trip of its heartbeat.
    pub rtt: Option<Duration>,
}

/// Whether the line can answer.
#[derive(Clone, Debug, PartialEq)]
pub enum LineReadiness {
    /// A token went through every stage recently.
    Ready,
    /// Not yet, or not any more.
    NotReady {
        /// One sentence for people.
        reason: String,
        /// Share of the loading done over all stages, 0 to 1.
        progress: f32,
    },
}

/// How busy each stage was, from the timings that came back with verdicts and progress.
#[derive(Debug)]
pub(super) struct Busy {
    since: Duration,
    now: Vec<Duration>,
    before: Vec<f32>,
}

impl Busy {
    pub(super) fn new(n_stages: usize) -> Self {
        Self { since: Duration::ZERO, now: vec![Duration::ZERO; n_stages], before: vec![0.0; n_stages] }
    }

    /// `n_rows` of each stage's call belonged to the frame; the rest is counted with the other frames.
    pub(super) fn record(&mut self, timings: &[StageTiming], n_rows: usize, now: Duration) {
        self.roll(now);
        for (sum, timing) in self.now.iter_mut().zip(timings) {
            let share = (n_rows as f64 / f64::from(timing.batch_rows.max(1))).min(1.0);
            *sum += Duration::from_micros(u64::from(timing.compute_us)).mul_f64(share);
        }
    }

    /// The share of the last whole span of time.
    pub(super) fn share(&mut self, stage: StageIndex, now: Duration) -> f32 {
        self.roll(now);
        self.before[usize::from(stage.0)]
    }

    fn roll(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed < WINDOW {
            return;
        }
        // After a long silence the sums belong to a time long past.
        let stale = elapsed >= 2 * WINDOW;
        for (share, sum) in self.before.iter_mut().zip(&mut self.now) {
            *share = if stale { 0.0 } else { (sum.as_secs_f32() / elapsed.as_secs_f32()).min(1.0) };
            *sum = Duration::ZERO;
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_as_busy_as_its_share_of_the_last_span() {
        let mut busy = Busy::new(1);
        let timing = StageTiming { queue_us: 0, compute_us: 500_000, batch_rows: 2 };
        for _ in 0..4 {
            busy.record(&[timing], 1, Duration::from_millis(100));
        }
        assert_eq!(busy.share(StageIndex(0), Duration::from_millis(1900)), 0.0);
        assert_eq!(busy.share(StageIndex(0), Duration::from_secs(2)), 0.5);
        assert_eq!(busy.share(StageIndex(0), Duration::from_secs(9)), 0.0);
    }
}
