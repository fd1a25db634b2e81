//! What the line owes: since when nothing was heard about each sequence, and how long that may last.
//!
//! Owns: that measure. Whoever drives the scheduler owns the timer, and gives the line up when it has run out.
//!
//! It is kept per sequence because a report about one says nothing about another, whose window may have been lost. Yet it
//! is the line that is given up, and not that sequence: what was lost was lost by a link or a stage that promises never
//! to, so nothing that it holds can be relied on; a slot whose `Closed` does not come is gone for good; and whoever shared
//! a group with a lost verdict waits for it, too ([`protocol::Company`]). A line that is formed anew makes all of this
//! good, and its requests go on from their last tokens: the same path for one lost verdict as for a stage that hangs.

use std::time::Duration;

use protocol::SeqId;

use crate::Scheduler;
use crate::sequence::Sequence;

/// Work that takes this many times as long as it should has been lost, or a stage hangs. Far above what a busy machine
/// does to a stage, because slow is not dead.
const PATIENCE: u32 = 20;
/// It is given so long at most ([`Config::progress_timeout`](crate::Config::progress_timeout) at least), and so long where
/// nothing is known about the line's speed yet.
const MOST: Duration = Duration::from_secs(180);

/// How long nothing has been heard about a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Since then: it was opened, or the tail spoke of it last.
    pub since: Duration,
    /// How long that may last.
    pub patience: Duration,
}

impl Silence {
    pub(crate) const fn new(now: Duration) -> Self {
        Self { since: now, patience: Duration::ZERO }
    }

    /// When something must have been heard.
    #[must_use]
    pub const fn ends(&self) -> Duration {
        self.since.saturating_add(self.patience)
    }
}

impl Scheduler {
    /// The silence that ends first, of all sequences that hold memory: each of them is owed verdicts, progress or a
    /// `Closed`. If it ends with nothing heard, the line has lost something.
    ///
    /// What a sequence is given is what the most work since the last report about it should take, so that it is never
    /// less because others have left. Ask after every call that takes `now`.
    pub fn silence(&mut self) -> Option<Silence> {
        // Who begins with what another one still computes hears nothing before that; those began earlier.
        let awaits = |(&seq, sequence): (&SeqId, &Sequence)| {
            let (other, len) = sequence.begins_with()?;
            let computes = self.sequences.get(&other).is_some_and(|other| other.n_passed() < len);
            computes.then_some((seq, other))
        };
        let awaiting: Vec<(SeqId, SeqId)> = self.sequences.iter().filter_map(awaits).collect();
        for (seq, other) in awaiting {
            let since = self.sequences.get(&other).map(|other| other.silence.since);
            if let (Some(since), Some(sequence)) = (since, self.sequences.get_mut(&seq)) {
                sequence.silence.since = since.max(sequence.silence.since);
            }
        }
        let expected = self.expected_silence();
        let (least, most) = (self.config.progress_timeout, MOST.max(self.config.progress_timeout));
        let patience = expected.map_or(most, |time| time.saturating_mul(PATIENCE).clamp(least, most));
        let silences = self.sequences.values_mut().map(|sequence| {
            sequence.silence.patience = patience.max(sequence.silence.patience);
            sequence.silence
        });
        silences.min_by_key(Silence::ends)
    }

    /// The tail spoke of a sequence.
    pub(crate) fn heard_of(&mut self, seq: SeqId, now: Duration) {
        if let Some(sequence) = self.sequences.get_mut(&seq) {
            sequence.silence = Silence::new(now);
        }
    }

    /// How long the line may need until it has said something about every sequence, by what was measured: everything
    /// under way in the slowest stage, and once around with the largest piece. None while nothing was measured, or stages
    /// read from their stores.
    fn expected_silence(&self) -> Option<Duration> {
        if !self.pace.is_known() || self.sequences.values().any(Sequence::is_restoring) {
            return None;
        }
        let loads = self.sequences.values().map(|sequence| sequence.under_way(&self.config, &self.pace));
        let (seconds, rows) = loads.fold((0.0, 1), |(all, most), (own, rows)| (all + own, rows.max(most)));
        Duration::try_from_secs_f64(seconds + self.pace.busy().loop_time(rows)).ok()
    }
}
