//! How a sequence begins: which slot it gets, and where the prefix is that it begins with.

use protocol::{FaultKind, Frame, Open, Position, Reuse, SeqId, Work};

use super::{Output, StageCore, StoreWork};
use crate::call::{Load as Filling, Moves};
use crate::port::{Rewind, Slot};
use crate::prefixes::Place;
use crate::sequence::{Phase, Running};

impl StageCore {
    /// Gives a sequence its slot, or its place in the queue for one (then false). Its `Open` travels on, except on the
    /// tail.
    pub(super) fn begin(&mut self, seq: SeqId) -> bool {
        let Some(sequence) = self.sequences.get(&seq) else { return false };
        let Some(Work::Open(open)) = sequence.queue.front().map(|item| &item.frame.work) else {
            return false;
        };
        let (order, (start, reuse), held_by_next) = (sequence.order, open.beginning(), open.held_by_next());
        let found = check_open(open).and_then(|()| self.find_slot(start, reuse));
        let (slot, moves) = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.waiting.insert(order, seq);
                return false;
            }
            Err(kind) => {
                self.poison(seq, kind);
                return true;
            }
        };
        self.waiting.remove(&order);
        self.stats.opened += 1;
        self.stats.reused_positions += u64::from(start.0);
        let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
        if self.shape.is_tail || !moves.is_empty() {
            sequence.phase = Phase::Beginning(slot, moves);
            if let Some(item) = sequence.queue.front().filter(|_| !self.shape.is_tail) {
                self.outputs.push_back(Output::Forward(for_next(item.frame.clone())));
            }
            return true;
        }
        sequence.phase = Phase::Running(Running::new(slot, start, held_by_next, None));
        if let Some(item) = self.drop_first(seq) {
            self.outputs.push_back(Output::Forward(for_next(item.frame)));
        }
        true
    }

    /// A slot for a sequence, and what must happen to prefixes before it runs there; none while it must wait.
    fn find_slot(
        &mut self,
        start: Position,
        reuse: Option<Reuse>,
    ) -> Result<Option<(Slot, Moves)>, FaultKind> {
        let Some(reuse) = reuse else { return Ok(self.any_slot(None)) };
        let Reuse { prefix, keep, .. } = reuse;
        let Some((len, place)) = self.prefixes.look_up(prefix) else {
            return self.find_elsewhere(start, reuse);
        };
        let fits = match (&place, self.shape.rewind) {
            (Place::Fetching(_), _) => true,
            (Place::Warm(slot), Rewind::InPlace { .. }) => len >= start && start >= self.slots.floor(*slot),
            (Place::Warm(_) | Place::Claimed | Place::Blob(_), rewind) => rewind.serves(len, start),
        };
        if !fits {
            return Err(FaultKind::PrefixLost { prefix });
        }
        let found = match place {
            Place::Claimed | Place::Fetching(_) => None,
            Place::Warm(slot) => {
                self.slots.take_this(slot);
                // What is saved must serve the next one that begins like this.
                let serves = self.shape.rewind.serves(len, start);
                let save = keep && self.prefixes.can_save();
                match (save, serves) {
                    (true, true) => self.prefixes.claim(prefix),
                    (true, false) => self.prefixes.claim_beginning(prefix, start),
                    (false, _) => self.prefixes.remove(prefix),
                }
                let save = save.then_some((prefix, if serves { len } else { start }));
                Some((slot, Moves { save, load: None }))
            }
            Place::Blob(blob) => {
                let found = self.any_slot(Some(Filling::Blob(blob, len)));
                if found.is_some() && !keep {
                    self.prefixes.remove(prefix);
                } else if found.is_some() {
                    self.prefixes.used_blob();
                }
                found
            }
        };
        Ok(found)
    }

    /// As [`StageCore::find_slot`], for a prefix that is not parked here: the sequence may still run, or it is stored.
    fn find_elsewhere(&mut self, start: Position, reuse: Reuse) -> Result<Option<(Slot, Moves)>, FaultKind> {
        let Reuse { prefix, stored, keep } = reuse;
        if let Some(sequence) = self.sequences.get(&prefix) {
            let computed = sequence.phase.computed();
            return match (computed, self.shape.rewind) {
                (Some((from, next)), Rewind::Anywhere | Rewind::InPlace { .. }) if next >= start => {
                    if !self.shape.rewind.serves(next, start) {
                        return Err(FaultKind::PrefixLost { prefix });
                    }
                    Ok(self.any_slot(Some(Filling::Copy { of: prefix, from, len: next })))
                }
                // It has not come so far, or can only be gone on from at its end; or links have brought an `Open` before
                // the `Park` of the sequence that it begins with.
                _ => Ok(None),
            };
        }
        match stored {
            Some(key) if self.config.has_store => {
                self.prefixes.fetch(prefix, key, keep);
                self.outputs.push_back(Output::Store(StoreWork::Read { prefix, key }));
                Ok(None)
            }
            _ => Err(FaultKind::PrefixLost { prefix }),
        }
    }

    /// Whoever waits for a slot to begin there with a prefix.
    fn waiting_for(&self, prefix: SeqId) -> impl Iterator<Item = SeqId> {
        self.waiting.values().copied().filter(move |seq| {
            let item = self.sequences.get(seq).and_then(|sequence| sequence.queue.front());
            matches!(item.map(|item| &item.frame.work), Some(Work::Open(open))
                if open.beginning().1.is_some_and(|reuse| reuse.prefix == prefix))
        })
    }

    /// A sequence ends before it has begun. What the store gives, or gave, for it alone is of use to nobody.
    pub(super) fn need_no_more(&mut self, work: &Work) {
        if let Work::Open(open) = work
            && let (_, Some(Reuse { prefix, .. })) = open.beginning()
            && self.prefixes.is_for_once(prefix)
            && self.waiting_for(prefix).next().is_none()
        {
            self.prefixes.remove(prefix);
        }
    }

    /// Whoever waits for a prefix hears that it is lost.
    pub(super) fn give_up_waiting(&mut self, prefix: SeqId) {
        for seq in self.waiting_for(prefix).collect::<Vec<_>>() {
            self.poison(seq, FaultKind::PrefixLost { prefix });
            self.settle(seq);
        }
    }

    /// The lowest slot that holds nothing of worth, else that of the prefix that was used longest ago.
    fn any_slot(&mut self, load: Option<Filling>) -> Option<(Slot, Moves)> {
        let prefixes = &self.prefixes;
        if let Some(slot) = self.slots.take(|slot| !prefixes.is_warm(slot)) {
            self.slots.set_floor(slot, Position(0));
            return Some((slot, Moves { save: None, load }));
        }
        let (victim, slot) = self.prefixes.victim()?;
        self.slots.take_this(slot);
        if !self.prefixes.can_save() {
            self.slots.set_floor(slot, Position(0));
            self.prefixes.remove(victim);
            return Some((slot, Moves { save: None, load }));
        }
        let len = self.prefixes.len_of(victim)?;
        self.prefixes.claim(victim);
        Some((slot, Moves { save: Some((victim, len)), load }))
    }
}

fn for_next(frame: Frame) -> Frame {
    match frame.work {
        Work::Open(open) => Frame { work: Work::Open(Box::new(open.for_next())), ..frame },
        _ => frame,
    }
}

/// What a sequence claims to begin with is consistent.
fn check_open(open: &Open) -> Result<(), FaultKind> {
    if open.start > Position(0) && open.reuse.is_none() {
        return Err(FaultKind::Gap { base: open.start, next: Position(0) });
    }
    if open.history.len() != open.start.0 as usize {
        let reason = format!("a history of {} tokens before position {}", open.history.len(), open.start);
        return Err(FaultKind::Sampler { reason });
    }
    Ok(())
}
