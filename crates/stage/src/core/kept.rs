//! What outlives a line on its stages: what its sequences had computed.
//!
//! A line ends when any of its links does, and mostly nobody has lost anything that was computed. What a sequence has
//! computed is then a prefix under the sequence's id, as if it had been parked, and the next line of the same front goes on
//! from there. The front knows how much of each prefix is certain: rows behind that may be of guesses that were wrong, and
//! are cut before anything is computed there, as in any slot.
//!
//! Owns: what becomes of sequences whose line is over, and of prefixes that were being moved. Does not know whose line the
//! next one is: what is kept must not serve a front to which the same ids mean other sequences.

use protocol::{Position, SeqId, Work};

use super::{Config, StageCore};
use crate::port::{Engine, EngineError, EngineShape, Rewind, Slot};
use crate::prefixes::Prefixes;
use crate::sequence::{Phase, Sequence};
use crate::slots::Slots;

/// What a stage holds between two lines: prefixes, in the slots of its engine and beside it.
pub struct Kept {
    slots: Slots,
    prefixes: Prefixes,
}

impl Kept {
    /// Has the engine forget whatever is no prefix.
    ///
    /// # Errors
    /// If it cannot: it is of no use to any line then.
    pub fn tidy(&mut self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        for slot in (0..engine.shape().n_slots).map(Slot) {
            if !self.prefixes.is_warm(slot) {
                engine.truncate(slot, Position(0))?;
                self.slots.set_held(slot, Some(Position(0)));
                self.slots.set_floor(slot, Position(0));
            }
        }
        Ok(())
    }

    /// Has the engine forget everything.
    ///
    /// # Errors
    /// As [`Kept::tidy`].
    pub fn forget(mut self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        self.prefixes = Prefixes::new(0);
        self.tidy(engine)
    }
}

impl StageCore {
    /// The line is over: what its sequences have computed is kept, and nothing is said any more.
    ///
    /// # Panics
    /// While a call is under way: what came of it has to be heard first.
    #[must_use]
    pub fn retire(mut self) -> Kept {
        assert!(self.buffers.is_some(), "a call is under way");
        let rewind = self.shape.rewind;
        for (seq, sequence) in std::mem::take(&mut self.sequences) {
            let Some(slot) = sequence.phase.slot() else { continue };
            self.slots.release(slot);
            match &sequence.phase {
                Phase::Running(_) => {
                    if let Some(len) = left_by(&sequence, rewind) {
                        self.prefixes.park(seq, len, slot, None);
                    }
                }
                Phase::Beginning(slot, moves) => {
                    if let Some((prefix, _)) = moves.save {
                        self.prefixes.give_back(prefix, *slot);
                    }
                }
                Phase::Waiting | Phase::Poisoned(_) => {}
            }
        }
        self.prefixes.settle();
        Kept { slots: self.slots, prefixes: self.prefixes }
    }

    /// A stage that goes on with what it has kept. The engine must be the one that was there before, untouched since.
    #[must_use]
    pub fn resume(shape: EngineShape, config: Config, kept: Kept) -> Self {
        let Kept { slots, mut prefixes } = kept;
        prefixes.set_budget(config.prefix_bytes);
        Self { slots, prefixes, ..Self::new(shape, config) }
    }

    /// Whether a prefix is here.
    #[must_use]
    pub fn has_prefix(&self, seq: SeqId) -> bool {
        self.prefixes.len_of(seq).is_some()
    }
}

/// Positions that a running sequence leaves: all that it has computed, unless the front has said what it wants of them.
fn left_by(sequence: &Sequence, rewind: Rewind) -> Option<Position> {
    let Phase::Running(running) = &sequence.phase else { return None };
    let (_, next) = sequence.phase.computed()?;
    let end = sequence.queue.iter().find_map(|item| match &item.frame.work {
        Work::Park(park) => Some(park.len),
        Work::Close(_) => Some(Position(0)),
        Work::Open(_) | Work::Chunk(_) | Work::Window(_) => None,
    });
    Some(end.unwrap_or(next)).filter(|&len| running.can_park(len, rewind))
}
