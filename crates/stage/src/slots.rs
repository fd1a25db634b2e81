//! The engine's slots: which are free, and how many positions each holds.

use std::collections::BTreeSet;

use protocol::Position;

use crate::port::Slot;

/// Hands out slots, lowest first, so that running sequences stay dense and can share calls.
pub(crate) struct Slots {
    free: BTreeSet<Slot>,
    /// Positions that the engine holds, by slot; none after a failed call. A freed slot keeps what it has until its
    /// next sequence computes: one cut then serves both purposes.
    held: Vec<Option<Position>>,
    /// What was loaded into a slot need not be all that its positions look back to: it cannot be cut below this.
    floors: Vec<Position>,
}

impl Slots {
    pub(crate) fn new(n_slots: u16) -> Self {
        let n = usize::from(n_slots);
        Self {
            free: (0..n_slots).map(Slot).collect(),
            held: vec![Some(Position(0)); n],
            floors: vec![Position(0); n],
        }
    }

    /// The lowest free slot that `may` be taken.
    pub(crate) fn take(&mut self, may: impl Fn(Slot) -> bool) -> Option<Slot> {
        let slot = self.free.iter().copied().find(|&slot| may(slot))?;
        self.free.remove(&slot);
        Some(slot)
    }

    /// Takes this one, which is free.
    pub(crate) fn take_this(&mut self, slot: Slot) {
        let was_free = self.free.remove(&slot);
        assert!(was_free, "slot {} is taken twice", slot.0);
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        let was_taken = self.free.insert(slot);
        assert!(was_taken, "slot {} is released twice", slot.0);
    }

    /// Whether the slot must be cut before a frame at `base` runs.
    pub(crate) fn needs_cut(&self, slot: Slot, base: Position) -> bool {
        self.held[usize::from(slot.0)] != Some(base)
    }

    /// How many positions a slot holds, if that is known.
    pub(crate) fn held(&self, slot: Slot) -> Option<Position> {
        self.held[usize::from(slot.0)]
    }

    /// The least position, but for 0, that the slot can be cut to.
    pub(crate) fn floor(&self, slot: Slot) -> Position {
        self.floors[usize::from(slot.0)]
    }

    pub(crate) fn set_floor(&mut self, slot: Slot, floor: Position) {
        self.floors[usize::from(slot.0)] = floor;
    }

    pub(crate) fn set_held(&mut self, slot: Slot, held: Option<Position>) {
        self.held[usize::from(slot.0)] = held;
    }
}
