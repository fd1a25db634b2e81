//! Stopping a call whose result nobody wants any more.
//!
//! Owns: who wants what the call under way computes, by the rules of [`crate::StageCore`], which cannot be asked while
//! its engine computes; and the word to the engine. A call is stopped only when nobody wants any of it: half of a call
//! is of use to no one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{Epoch, Frame, Hint, SeqId, Work};

use crate::call::{Call, Kind};
use crate::port::Rewind;

/// The word to an engine that it may stop what it computes. Whoever has a copy can give it, and the engine looks.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Nobody wants the call's result.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Another call begins.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether to stop.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who wants the result of the call under way.
#[derive(Debug, Default)]
pub struct Interest {
    /// Sequences, each with the epoch of its window; chunks have none. Empty if the call must not be stopped.
    wanted: Vec<(SeqId, Option<Epoch>)>,
    is_gone: bool,
}

impl Interest {
    /// In a call that begins now, on an engine that can be cut like this. Only rows can be left uncomputed, and only
    /// where the memory is afterwards what it was before.
    #[must_use]
    pub fn in_call(call: &Call, rewind: Rewind) -> Self {
        let can_stop = matches!(rewind, Rewind::Anywhere | Rewind::InPlace { .. });
        let wanted = match &call.kind {
            Kind::Run(batch) if can_stop => {
                batch.items.iter().map(|item| (item.seq, epoch_of(&item.frame.work))).collect()
            }
            _ => Vec::new(),
        };
        Self { wanted, is_gone: false }
    }

    /// A frame has arrived behind the call's.
    pub fn note_frame(&mut self, frame: &Frame) {
        match &frame.work {
            Work::Window(window) => self.advance(window.seq, window.epoch),
            Work::Close(_) | Work::Park(_) => self.give_up(frame.work.seq()),
            Work::Open(_) | Work::Chunk(_) => {}
        }
    }

    /// A hint has arrived.
    pub fn note_hint(&mut self, hint: &Hint) {
        match *hint {
            Hint::Advance { seq, epoch } => self.advance(seq, epoch),
            Hint::Drop { seq } => self.give_up(seq),
            Hint::Together { .. } => {}
        }
    }

    /// The line is over.
    pub fn note_end(&mut self) {
        self.keep(|_, _| false);
    }

    /// Whether the call may be stopped.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn advance(&mut self, seq: SeqId, newest: Epoch) {
        self.keep(|of, epoch| of != seq || epoch.is_none_or(|epoch| epoch >= newest));
    }

    fn give_up(&mut self, seq: SeqId) {
        self.keep(|of, _| of != seq);
    }

    fn keep(&mut self, is_wanted: impl Fn(SeqId, Option<Epoch>) -> bool) {
        if !self.wanted.is_empty() {
            self.wanted.retain(|&(seq, epoch)| is_wanted(seq, epoch));
            self.is_gone = self.wanted.is_empty();
        }
    }
}

const fn epoch_of(work: &Work) -> Option<Epoch> {
    match work {
        Work::Window(window) => Some(window.epoch),
        _ => None,
    }
}
