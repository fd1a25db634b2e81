//! What the engine computes next: which ready frames, or the drafts that verdicts have announced. Chooses among sequences,
//! never within one.
//!
//! Four classes: anchors first, then drafts, prompt chunks, and windows that run ahead. The lower three are guaranteed a
//! share of the engine's time while they wait, by deficit: a class earns its share of every other class's call and pays for
//! its own; while it is owed something it goes first. So nothing starves, and none is served when nobody waits for it.
//! Within a class the sequence that was served longest ago goes first, then the frame that came first. Whatever fits
//! beside the chosen frame without breaking the engine's contract rides along. Drafts are made all at once.

use std::ops::Range;
use std::time::Duration;

use protocol::SeqId;

use crate::port::Slot;

/// What a frame is worth, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A window that somebody waits for.
    Anchor,
    /// Drafts: whoever waits for one has nothing else under way.
    Draft,
    /// A piece of a prompt.
    Prefill,
    /// A window that may turn out stale.
    RunAhead,
}

const CLASSES: [Class; 4] = [Class::Anchor, Class::Draft, Class::Prefill, Class::RunAhead];

/// Percent of the engine's time that a waiting class gets at least. A quarter lets a long prompt finish in four times
/// its own time under full decode load while decoding slows down by a third at most, and a draft of a few rows wait for a
/// few anchors; a tenth keeps windows that have become the truth meanwhile from waiting for ever.
const SHARE: [i64; 4] = [0, 25, 25, 10];

/// A call counts for this much at least, so that shares hold in virtual time too, where calls may be free.
const LEAST_CHARGE: Duration = Duration::from_micros(1);

/// A frame that could be computed now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) seq: SeqId,
    pub(crate) slot: Slot,
    pub(crate) n_rows: usize,
    pub(crate) class: Class,
    /// When its sequence was last served, counted in calls.
    pub(crate) served: u64,
    /// When it came, counted in frames.
    pub(crate) order: u64,
}

/// What may share a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) max_rows: usize,
    pub(crate) max_spans: usize,
}

/// What the classes are owed.
#[derive(Default)]
pub(crate) struct Policy {
    /// Nanoseconds, times 100; the anchors' entry stays 0.
    owed: [i64; 4],
    waiting: [bool; 4],
    running: Option<Class>,
}

/// What is computed next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Nothing,
    Drafts,
    /// Indices of candidates, in ascending slots.
    Frames(Range<usize>),
}

impl Policy {
    /// What to compute, where `drafts` says whether any are wished for. `candidates` are in ascending slots, each with at
    /// most `max_rows` rows.
    pub(crate) fn choose(&mut self, candidates: &[Candidate], drafts: bool, room: Room) -> Choice {
        let waits = |class| candidates.iter().any(|c| c.class == class) || (drafts && class == Class::Draft);
        self.waiting = CLASSES.map(waits);
        for (owed, waits) in self.owed.iter_mut().zip(self.waiting) {
            if !waits {
                *owed = 0;
            }
        }
        self.running = self.class();
        let lead = (0..candidates.len())
            .filter(|&i| Some(candidates[i].class) == self.running)
            .min_by_key(|&i| (candidates[i].served, candidates[i].order));
        match (self.running, lead) {
            (Some(Class::Draft), _) => Choice::Drafts,
            (_, Some(lead)) => Choice::Frames(extend(candidates, lead, room)),
            (_, None) => Choice::Nothing,
        }
    }

    fn class(&self) -> Option<Class> {
        let waiting = || CLASSES.into_iter().filter(|&class| self.waiting[class as usize]);
        // Of those that are owed as much the most urgent one.
        let most_owed =
            waiting().rev().filter(|&c| self.owed[c as usize] > 0).max_by_key(|&c| self.owed[c as usize]);
        most_owed.or_else(|| waiting().next())
    }

    /// The chosen call took this long.
    pub(crate) fn charge(&mut self, time: Duration) {
        let Some(running) = self.running.take() else { return };
        let others_wait = CLASSES.into_iter().any(|c| c != running && self.waiting[c as usize]);
        if !others_wait {
            return;
        }
        let time = i64::try_from(time.max(LEAST_CHARGE).as_nanos()).unwrap_or(i64::MAX / 1000);
        for class in CLASSES {
            let (i, share) = (class as usize, SHARE[class as usize]);
            if class == running && share > 0 {
                self.owed[i] -= time * (100 - share);
            } else if self.waiting[i] {
                self.owed[i] += time * share;
            }
        }
    }
}

/// The longest run of neighbours around `lead` that may share its call, upwards first.
fn extend(candidates: &[Candidate], lead: usize, room: Room) -> Range<usize> {
    let n_rows = candidates[lead].n_rows;
    let most = (room.max_rows / n_rows).min(room.max_spans);
    let fits = |a: usize, b: usize| {
        candidates[a].slot.0 + 1 == candidates[b].slot.0 && candidates[a].n_rows == candidates[b].n_rows
    };
    let (mut start, mut end) = (lead, lead + 1);
    while end - start < most && end < candidates.len() && fits(end - 1, end) {
        end += 1;
    }
    while end - start < most && start > 0 && fits(start - 1, start) {
        start -= 1;
    }
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { max_rows: 8, max_spans: usize::MAX };

    fn candidate(slot: u16, n_rows: usize, class: Class) -> Candidate {
        Candidate {
            seq: SeqId(u64::from(slot)),
            slot: Slot(slot),
            n_rows,
            class,
            served: 0,
            order: u64::from(slot),
        }
    }

    /// Percent of `calls` equal calls that each class got while all of them waited.
    fn shares(classes: &[Class], calls: usize) -> [usize; 4] {
        let mut policy = Policy::default();
        let mut counts = [0; 4];
        // Different row counts keep them from riding along.
        let frames = classes.iter().filter(|&&class| class != Class::Draft).enumerate();
        let candidates: Vec<_> = frames.map(|(i, &class)| candidate(i as u16, i + 1, class)).collect();
        for _ in 0..calls {
            let class = match policy.choose(&candidates, classes.contains(&Class::Draft), ROOM) {
                Choice::Nothing => panic!("something waits"),
                Choice::Drafts => Class::Draft,
                Choice::Frames(chosen) => candidates[chosen.start].class,
            };
            counts[class as usize] += 1;
            policy.charge(Duration::from_millis(3));
        }
        counts.map(|n| n * 100 / calls)
    }

    fn frames(policy: &mut Policy, candidates: &[Candidate], room: Room) -> Range<usize> {
        match policy.choose(candidates, false, room) {
            Choice::Frames(chosen) => chosen,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn waiting_classes_get_their_shares() {
        assert_eq!(shares(&CLASSES, 1000), [40, 25, 25, 10]);
        assert_eq!(shares(&[Class::Anchor, Class::Prefill], 1000), [75, 0, 25, 0]);
        assert_eq!(shares(&[Class::Anchor, Class::Draft], 1000), [75, 25, 0, 0]);
        assert_eq!(shares(&[Class::Prefill, Class::RunAhead], 1000), [0, 0, 90, 10]);
        assert_eq!(shares(&[Class::Draft, Class::Prefill], 1000), [0, 75, 25, 0]);
        assert_eq!(shares(&[Class::RunAhead], 10), [0, 0, 0, 100]);
    }

    #[test]
    fn drafts_come_after_what_somebody_waits_for_and_before_prompts() {
        let mut policy = Policy::default();
        let prompt = candidate(0, 8, Class::Prefill);
        let anchor = candidate(1, 1, Class::Anchor);
        assert_eq!(policy.choose(&[prompt, anchor], true, ROOM), Choice::Frames(1..2));
        policy.charge(Duration::ZERO);
        let mut policy = Policy::default();
        assert_eq!(policy.choose(&[prompt], true, ROOM), Choice::Drafts);
        assert_eq!(policy.choose(&[], true, ROOM), Choice::Drafts);
        assert_eq!(policy.choose(&[], false, ROOM), Choice::Nothing);
    }

    #[test]
    fn a_lone_class_runs_up_no_debt() {
        let mut policy = Policy::default();
        let chunk = [candidate(0, 8, Class::Prefill)];
        for _ in 0..100 {
            assert_eq!(frames(&mut policy, &chunk, ROOM), 0..1);
            policy.charge(Duration::from_secs(1));
        }
        let both = [candidate(0, 8, Class::Prefill), candidate(1, 1, Class::Anchor)];
        assert_eq!(frames(&mut policy, &both, ROOM), 1..2);
        policy.charge(Duration::from_millis(1));
        assert_eq!(frames(&mut policy, &both, ROOM), 0..1, "owed a quarter of one anchor call");
    }

    #[test]
    fn sequences_of_a_class_take_turns() {
        let mut policy = Policy::default();
        let mut candidates: Vec<_> = (0..3).map(|i| candidate(2 * i, 1, Class::Anchor)).collect();
        let mut turns = Vec::new();
        for call in 1..=6 {
            let chosen = frames(&mut policy, &candidates, ROOM);
            turns.push(chosen.start);
            candidates[chosen.start].served = call;
            policy.charge(Duration::ZERO);
        }
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn neighbours_with_equal_rows_ride_along() {
        let rows = [2, 2, 2, 1, 2, 2, 2, 2, 2, 2];
        let candidates: Vec<_> =
            rows.iter().enumerate().map(|(i, &n)| candidate(i as u16, n, Class::Anchor)).collect();
        let around = |lead: usize, room: Room| {
            let mut candidates = candidates.clone();
            candidates.iter_mut().enumerate().for_each(|(i, c)| c.served = u64::from(i != lead));
            frames(&mut Policy::default(), &candidates, room)
        };
        assert_eq!(around(1, ROOM), 0..3, "up to the slot with another row count");
        assert_eq!(around(3, ROOM), 3..4);
        assert_eq!(around(4, ROOM), 4..8, "up to max_rows");
        assert_eq!(around(9, ROOM), 6..10);
        assert_eq!(around(5, Room { max_rows: 8, max_spans: 1 }), 5..6);
    }

    #[test]
    fn a_gap_between_slots_parts_a_call() {
        let candidates = [candidate(0, 1, Class::Anchor), candidate(2, 1, Class::Anchor)];
        assert_eq!(frames(&mut Policy::default(), &candidates, ROOM), 0..1);
    }
}
