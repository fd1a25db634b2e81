//! Parked prefixes: where each one is, and which go when room is needed.
//!
//! A prefix is *warm* while it stays in the slot of the sequence that left it, and a *blob* once the slot was needed for
//! another sequence. Owns: both kinds, their budget, and who goes first (the one used longest ago). Does not own: the
//! slots, nor what the front believes to be here; a prefix that is missed costs time and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::{Position, SeqId};

use crate::port::Slot;

/// Prefixes known at once, warm ones included.
pub const MAX_PREFIXES: usize = 1024;

/// See the module.
pub(crate) struct Prefixes {
    parked: BTreeMap<SeqId, Prefix>,
    /// Bytes of all blobs.
    bytes: u64,
    /// What `bytes` may be.
    budget: u64,
    /// Parkings and uses so far.
    clock: u64,
}

struct Prefix {
    len: Position,
    place: Place,
    used: u64,
}

/// Where a prefix is.
#[derive(Clone)]
pub(crate) enum Place {
    /// In a slot that nobody else uses.
    Warm(Slot),
    /// In a slot that a beginning sequence has been given; a call will save it first.
    Claimed,
    /// Beside the engine.
    Blob(Arc<[u8]>),
}

impl Prefixes {
    pub(crate) const fn new(budget: u64) -> Self {
        Self { parked: BTreeMap::new(), bytes: 0, budget, clock: 0 }
    }

    /// Whether anything can be kept once its slot is needed.
    pub(crate) const fn can_save(&self) -> bool {
        self.budget > 0
    }

    /// A sequence's first `len` positions stay in its slot.
    pub(crate) fn park(&mut self, seq: SeqId, len: Position, slot: Slot) {
        if self.parked.len() >= MAX_PREFIXES
            && let Some(oldest) = self.oldest(|_| true)
        {
            self.remove(oldest);
        }
        self.clock += 1;
        self.parked.insert(seq, Prefix { len, place: Place::Warm(slot), used: self.clock });
    }

    /// How long a prefix is and where it is; it counts as used now.
    pub(crate) fn look_up(&mut self, seq: SeqId) -> Option<(Position, Place)> {
        let prefix = self.parked.get_mut(&seq)?;
        self.clock += 1;
        prefix.used = self.clock;
        Some((prefix.len, prefix.place.clone()))
    }

    pub(crate) fn remove(&mut self, seq: SeqId) {
        if let Some(Prefix { place: Place::Blob(blob), .. }) = self.parked.remove(&seq) {
            self.bytes -= blob.len() as u64;
        }
    }

    /// Whether a slot holds a prefix.
    pub(crate) fn is_warm(&self, slot: Slot) -> bool {
        self.parked.values().any(|prefix| matches!(prefix.place, Place::Warm(warm) if warm == slot))
    }

    /// The warm prefix that was used longest ago, and its slot.
    pub(crate) fn victim(&self) -> Option<(SeqId, Slot)> {
        let seq = self.oldest(|place| matches!(place, Place::Warm(_)))?;
        match self.parked.get(&seq)?.place {
            Place::Warm(slot) => Some((seq, slot)),
            Place::Claimed | Place::Blob(_) => None,
        }
    }

    /// A warm prefix's slot is given to a sequence whose first call will save it.
    pub(crate) fn claim(&mut self, seq: SeqId) {
        if let Some(prefix) = self.parked.get_mut(&seq) {
            prefix.place = Place::Claimed;
        }
    }

    /// The sequence that was given the slot ended before its first call.
    pub(crate) fn give_back(&mut self, seq: SeqId, slot: Slot) {
        if let Some(prefix) = self.parked.get_mut(&seq) {
            prefix.place = Place::Warm(slot);
        }
    }

    /// How long a prefix is.
    pub(crate) fn len_of(&self, seq: SeqId) -> Option<Position> {
        self.parked.get(&seq).map(|prefix| prefix.len)
    }

    /// A claimed prefix was saved. It goes again if it does not fit; others go for it.
    pub(crate) fn saved(&mut self, seq: SeqId, blob: Vec<u8>) {
        let size = blob.len() as u64;
        if size > self.budget {
            return self.remove(seq);
        }
        let Some(prefix) = self.parked.get_mut(&seq) else { return };
        prefix.place = Place::Blob(blob.into());
        self.bytes += size;
        while self.bytes > self.budget {
            let other = self.oldest(|place| matches!(place, Place::Blob(_))).filter(|&other| other != seq);
            self.remove(other.unwrap_or(seq));
        }
    }

    fn oldest(&self, is_meant: impl Fn(&Place) -> bool) -> Option<SeqId> {
        let meant = self.parked.iter().filter(|(_, prefix)| is_meant(&prefix.place));
        meant.min_by_key(|(_, prefix)| prefix.used).map(|(&seq, _)| seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(prefixes: &mut Prefixes, seq: u64, size: usize) {
        prefixes.park(SeqId(seq), Position(4), Slot(0));
        prefixes.claim(SeqId(seq));
        prefixes.saved(SeqId(seq), vec![0; size]);
    }

    fn is_here(prefixes: &Prefixes, seq: u64) -> bool {
        prefixes.len_of(SeqId(seq)).is_some()
    }

    #[test]
    fn blobs_stay_within_the_budget_and_the_longest_unused_go_first() {
        let mut prefixes = Prefixes::new(10);
        (1..=3).for_each(|seq| blob(&mut prefixes, seq, 3));
        prefixes.look_up(SeqId(1));
        blob(&mut prefixes, 4, 4);
        assert_eq!([1, 2, 3, 4].map(|seq| is_here(&prefixes, seq)), [true, false, true, true]);
        assert_eq!(prefixes.bytes, 10);
        blob(&mut prefixes, 5, 11);
        assert!(!is_here(&prefixes, 5), "larger than the budget");
        assert_eq!(prefixes.bytes, 10);
    }

    #[test]
    fn a_prefix_that_was_dropped_meanwhile_is_not_kept() {
        let mut prefixes = Prefixes::new(10);
        prefixes.park(SeqId(1), Position(4), Slot(0));
        prefixes.claim(SeqId(1));
        prefixes.remove(SeqId(1));
        prefixes.saved(SeqId(1), vec![0; 3]);
        assert!(!is_here(&prefixes, 1));
        assert_eq!(prefixes.bytes, 0);
    }

    #[test]
    fn the_number_of_prefixes_is_bounded() {
        let mut prefixes = Prefixes::new(10);
        (0..=MAX_PREFIXES as u64).for_each(|seq| prefixes.park(SeqId(seq), Position(1), Slot(seq as u16)));
        assert!(!is_here(&prefixes, 0));
        assert_eq!(prefixes.parked.len(), MAX_PREFIXES);
        assert_eq!(prefixes.victim(), Some((SeqId(1), Slot(1))));
    }
}
