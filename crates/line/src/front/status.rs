//! What the front shows of its line.

use std::time::Duration;

use protocol::{LayerRange, StageCounters, StageIndex, StageState, StageTiming};
use scheduler::{SequenceStatus, Stats};

use super::roster::{Cover, Peer, PeerState};

/// Spans of time over which a stage's busy share is measured.
const WINDOW: Duration = Duration::from_secs(2);

/// The line as it is now.
#[derive(Clone, Debug)]
pub struct LineSnapshot {
    /// Stage 0 first.
    pub stages: Vec<StageSnapshot>,
    /// Stages that the line was given: more than `stages` while the others share the layers of machines that are away.
    pub n_given: usize,
    /// Machines that stand by.
    pub spares: Vec<SpareSnapshot>,
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
    /// Whether it lives in the front's process.
    pub is_local: bool,
    /// Its layers.
    pub layers: LayerRange,
    /// The machine, and how far it has come.
    pub peer: Peer,
    /// Who could take its place.
    pub cover: Cover,
    /// Share of recent time that its engine computed, 0 to 1.
    pub busy: f32,
    /// Smoothed round trip of its heartbeat.
    pub rtt: Option<Duration>,
    /// What it has counted since the front's start, or since the layers were last shared out anew, as far as it has told.
    pub counters: StageCounters,
    /// Bytes of one hidden row on its way to the next stage; 0 where none leaves, or before the stage is ready.
    pub row_bytes: u64,
}

/// One machine that stands by.
#[derive(Clone, Debug)]
pub struct SpareSnapshot {
    /// The machine, and how far it has come.
    pub peer: Peer,
    /// The layers that it holds, or was asked to.
    pub layers: Option<LayerRange>,
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
        /// Whether requests may come all the same, to wait for the line as those do that were interrupted.
        takes_requests: bool,
    },
}

impl LineReadiness {
    /// Of a line that is not up; `lost` is why it is not any more.
    pub(super) fn of_stages<'a>(
        stages: impl Iterator<Item = &'a Peer>,
        lost: Option<&str>,
        takes_requests: bool,
    ) -> Self {
        let stages: Vec<&Peer> = stages.collect();
        let stalled = stages.iter().enumerate().find(|(_, peer)| peer.stalled);
        let stalled = stalled.and_then(|(at, peer)| Some(format!("stage {at}: {}", peer.failed.as_ref()?)));
        let stages: Vec<&PeerState> = stages.into_iter().map(|peer| &peer.state).collect();
        let away = stages.iter().enumerate().find_map(|(at, state)| match state {
            PeerState::Away { reason } => Some(format!("stage {at} is away: {reason}")),
            PeerState::Linked | PeerState::Assigned(_) | PeerState::Spare { .. } => None,
        });
        let busy = stages.iter().enumerate().find_map(|(at, state)| match state {
            PeerState::Assigned(StageState::Loading { what, .. }) => Some(format!("stage {at}: {what}")),
            PeerState::Assigned(StageState::Linking) => Some(format!("stage {at} waits for the next one")),
            PeerState::Away { .. } | PeerState::Linked | PeerState::Assigned(_) | PeerState::Spare { .. } => {
                None
            }
        });
        let reason = away.or(stalled).or_else(|| lost.map(str::to_owned)).or(busy);
        let reason = reason.unwrap_or_else(|| "the line is being formed".to_owned());
        let done: f32 = stages.iter().map(|state| share_done(state)).sum();
        Self::NotReady { reason, progress: done / stages.len() as f32, takes_requests }
    }
}

fn share_done(state: &PeerState) -> f32 {
    match state {
        PeerState::Away { .. } | PeerState::Linked | PeerState::Spare { .. } => 0.0,
        PeerState::Assigned(StageState::Loading { permille, .. }) => f32::from(*permille) / 1000.0,
        PeerState::Assigned(_) => 1.0,
    }
}

/// What one stage has counted in all generations together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    /// In generations that are over.
    before: StageCounters,
    /// In this one.
    now: StageCounters,
}

impl Ledger {
    /// The stage has told its counters of this generation.
    pub(super) const fn heard(&mut self, counters: StageCounters) {
        self.now = counters;
    }

    /// The generation is over; in the next one the stage counts from zero.
    pub(super) fn close(&mut self) {
        self.before = self.total();
        self.now = StageCounters::default();
    }

    pub(super) fn total(&self) -> StageCounters {
        let Self { before, now } = self;
        // A stage says what it likes: nonsense must not end the front.
        let sum = u64::saturating_add;
        StageCounters {
            calls: sum(before.calls, now.calls),
            rows: sum(before.rows, now.rows),
            windows: sum(before.windows, now.windows),
            chunks: sum(before.chunks, now.chunks),
            stale_windows: sum(before.stale_windows, now.stale_windows),
            stale_rows: sum(before.stale_rows, now.stale_rows),
            passed_windows: sum(before.passed_windows, now.passed_windows),
            passed_chunks: sum(before.passed_chunks, now.passed_chunks),
            wasted_rows: sum(before.wasted_rows, now.wasted_rows),
            stored_prefixes: sum(before.stored_prefixes, now.stored_prefixes),
            restored_prefixes: sum(before.restored_prefixes, now.restored_prefixes),
            missed_prefixes: sum(before.missed_prefixes, now.missed_prefixes),
        }
    }
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
    fn counters_go_on_where_the_last_generation_stopped() {
        let rows = |rows| StageCounters { rows, ..StageCounters::default() };
        let mut ledger = Ledger::default();
        ledger.heard(rows(3));
        ledger.heard(rows(5));
        assert_eq!(ledger.total(), rows(5));
        ledger.close();
        assert_eq!(ledger.total(), rows(5));
        ledger.heard(rows(2));
        assert_eq!(ledger.total(), rows(7));
        ledger.heard(rows(u64::MAX));
        assert_eq!(ledger.total(), rows(u64::MAX));
    }

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
