//! Parked prefixes: where each one is, and which go when room is needed.
//!
//! A prefix is *warm* while it stays in the slot of the sequence that left it, and a *blob* once the slot was needed for
//! another sequence. One that is being read from the store is neither yet. Owns: all kinds, the blobs' budget, who goes
//! first (the one used longest ago), and which are still to be stored. Does not own: the slots, the store, nor what the
//! front believes to be here; a prefix that is missed costs time and nothing else.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::{Position, PrefixKey, SeqId};

use crate::port::{Blob, Slot};

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
    /// Where it shall be stored, until it has been handed over.
    store: Option<PrefixKey>,
    /// Whether the front will speak of it again.
    kept: bool,
}

/// Where a prefix is.
#[derive(Clone)]
pub(crate) enum Place {
    /// In a slot that nobody else uses.
    Warm(Slot),
    /// In a slot that a beginning sequence has been given; a call will save it first.
    Claimed,
    /// Beside the engine.
    Blob(Bytes),
    /// On its way from the store.
    Fetching(PrefixKey),
}

impl Prefixes {
    pub(crate) const fn new(budget: u64) -> Self {
        Self { parked: BTreeMap::new(), bytes: 0, budget, clock: 0 }
    }

    /// The line is over: what was on its way does not come any more, and nobody waits for anything to be stored.
    pub(crate) fn settle(&mut self) {
        let is_here =
            |prefix: &Prefix| matches!(prefix.place, Place::Warm(_) | Place::Blob(_)) && prefix.kept;
        let gone: Vec<SeqId> =
            self.parked.iter().filter(|(_, prefix)| !is_here(prefix)).map(|(&seq, _)| seq).collect();
        gone.into_iter().for_each(|seq| self.remove(seq));
        self.parked.values_mut().for_each(|prefix| prefix.store = None);
    }

    /// What all blobs may take from now on.
    pub(crate) fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
        self.trim(|_| true);
    }

    /// Of all blobs.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether anything can be kept once its slot is needed.
    pub(crate) const fn can_save(&self) -> bool {
        self.budget > 0
    }

    /// A sequence's first `len` positions stay in its slot; they shall be stored under a key, if there is one.
    pub(crate) fn park(&mut self, seq: SeqId, len: Position, slot: Slot, store: Option<PrefixKey>) {
        self.insert(seq, Prefix { len, place: Place::Warm(slot), used: 0, store, kept: true });
    }

    /// A prefix is being read from the store; for one sequence only if it is not `kept`.
    pub(crate) fn fetch(&mut self, seq: SeqId, key: PrefixKey, kept: bool) {
        let place = Place::Fetching(key);
        self.insert(seq, Prefix { len: Position(0), place, used: 0, store: None, kept });
    }

    /// The store has answered. Whether somebody had asked for it.
    pub(crate) fn fetched(&mut self, seq: SeqId, key: PrefixKey, blob: Option<Blob>) -> bool {
        let Some(prefix) = self.parked.get_mut(&seq) else { return false };
        if !matches!(prefix.place, Place::Fetching(asked) if asked == key) {
            return false;
        }
        match blob {
            Some(Blob { len, bytes }) => {
                prefix.len = len;
                self.keep_blob(seq, bytes);
            }
            None => self.remove(seq),
        }
        true
    }

    /// Whether it came from the store for a single sequence: the front does not speak of it again.
    pub(crate) fn is_for_once(&self, seq: SeqId) -> bool {
        self.parked.get(&seq).is_some_and(|prefix| !prefix.kept)
    }

    fn insert(&mut self, seq: SeqId, prefix: Prefix) {
        if self.parked.len() >= MAX_PREFIXES
            && let Some(oldest) = self.oldest(|_| true)
        {
            self.remove(oldest);
        }
        self.clock += 1;
        self.parked.insert(seq, Prefix { used: self.clock, ..prefix });
    }

    /// A warm prefix that is still to be stored.
    pub(crate) fn unstored(&self) -> Option<(SeqId, Slot, Position)> {
        self.parked.iter().find_map(|(&seq, prefix)| match prefix.place {
            Place::Warm(slot) if prefix.store.is_some() => Some((seq, slot, prefix.len)),
            _ => None,
        })
    }

    /// Under which key a prefix is still to be stored; from now on it is not any more.
    pub(crate) fn take_key(&mut self, seq: SeqId) -> Option<PrefixKey> {
        self.parked.get_mut(&seq)?.store.take()
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

    /// Whether a prefix is in this slot.
    pub(crate) fn is_warm_in(&self, seq: SeqId, slot: Slot) -> bool {
        self.parked.get(&seq).is_some_and(|prefix| matches!(prefix.place, Place::Warm(warm) if warm == slot))
    }

    /// The warm prefix that was used longest ago, and its slot.
    pub(crate) fn victim(&self) -> Option<(SeqId, Slot)> {
        let seq = self.oldest(|place| matches!(place, Place::Warm(_)))?;
        match self.parked.get(&seq)?.place {
            Place::Warm(slot) => Some((seq, slot)),
            Place::Claimed | Place::Blob(_) | Place::Fetching(_) => None,
        }
    }

    /// A warm prefix's slot is given to a sequence whose first call will save it.
    pub(crate) fn claim(&mut self, seq: SeqId) {
        if let Some(prefix) = self.parked.get_mut(&seq) {
            prefix.place = Place::Claimed;
        }
    }

    /// As [`Prefixes::claim`]; only its beginning is saved, and nothing of it is stored.
    pub(crate) fn claim_beginning(&mut self, seq: SeqId, len: Position) {
        self.claim(seq);
        if let Some(prefix) = self.parked.get_mut(&seq) {
            (prefix.len, prefix.store) = (len, None);
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
    pub(crate) fn saved(&mut self, seq: SeqId, blob: Bytes) {
        if blob.len() as u64 > self.budget {
            return self.remove(seq);
        }
        self.keep_blob(seq, blob);
    }

    /// Others go for it. Even one that alone exceeds the budget stays until it was used or the next one comes.
    fn keep_blob(&mut self, seq: SeqId, blob: Bytes) {
        let Some(prefix) = self.parked.get_mut(&seq) else { return };
        self.bytes += blob.len() as u64;
        prefix.place = Place::Blob(blob);
        self.trim(|other| other != seq);
    }

    /// A blob has been used: it goes if there is no room for it.
    pub(crate) fn used_blob(&mut self) {
        self.trim(|_| true);
    }

    fn trim(&mut self, may_go: impl Fn(SeqId) -> bool) {
        while self.bytes > self.budget {
            let blobs = self
                .parked
                .iter()
                .filter(|(seq, prefix)| matches!(prefix.place, Place::Blob(_)) && may_go(**seq));
            let Some((&oldest, _)) = blobs.min_by_key(|(_, prefix)| prefix.used) else { return };
            self.remove(oldest);
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
        prefixes.park(SeqId(seq), Position(4), Slot(0), None);
        prefixes.claim(SeqId(seq));
        prefixes.saved(SeqId(seq), vec![0; size].into());
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
        prefixes.park(SeqId(1), Position(4), Slot(0), None);
        prefixes.claim(SeqId(1));
        prefixes.remove(SeqId(1));
        prefixes.saved(SeqId(1), vec![0; 3].into());
        assert!(!is_here(&prefixes, 1));
        assert_eq!(prefixes.bytes, 0);
    }

    #[test]
    fn what_the_store_gave_serves_once_at_least_whatever_its_size() {
        let mut prefixes = Prefixes::new(10);
        let (key, other) = (PrefixKey([1; 32]), PrefixKey([2; 32]));
        blob(&mut prefixes, 1, 8);
        prefixes.fetch(SeqId(2), key, false);
        assert!(!prefixes.fetched(SeqId(2), other, None), "an answer to another question");
        let large = Blob { len: Position(7), bytes: vec![0; 20].into() };
        assert!(prefixes.fetched(SeqId(2), key, Some(large)));
        assert_eq!(prefixes.len_of(SeqId(2)), Some(Position(7)));
        assert!(!is_here(&prefixes, 1), "it made room");
        prefixes.used_blob();
        assert_eq!((is_here(&prefixes, 2), prefixes.bytes), (false, 0));
        prefixes.fetch(SeqId(3), key, false);
        assert!(prefixes.fetched(SeqId(3), key, None));
        assert!(!is_here(&prefixes, 3));
    }

    #[test]
    fn a_prefix_is_to_be_stored_once() {
        let mut prefixes = Prefixes::new(10);
        let key = PrefixKey([1; 32]);
        prefixes.park(SeqId(1), Position(4), Slot(3), Some(key));
        prefixes.park(SeqId(2), Position(4), Slot(4), None);
        assert_eq!(prefixes.unstored(), Some((SeqId(1), Slot(3), Position(4))));
        assert_eq!(prefixes.take_key(SeqId(1)), Some(key));
        assert_eq!((prefixes.unstored(), prefixes.take_key(SeqId(1))), (None, None));
    }

    #[test]
    fn the_number_of_prefixes_is_bounded() {
        let mut prefixes = Prefixes::new(10);
        (0..=MAX_PREFIXES as u64)
            .for_each(|seq| prefixes.park(SeqId(seq), Position(1), Slot(seq as u16), None));
        assert!(!is_here(&prefixes, 0));
        assert_eq!(prefixes.parked.len(), MAX_PREFIXES);
        assert_eq!(prefixes.victim(), Some((SeqId(1), Slot(1))));
    }
}
