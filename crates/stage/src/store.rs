//! The port to where prefixes outlive the engine: files, in practice.
//!
//! Owns: how a store is asked and how it answers. Does not know what a store is made of.

use protocol::{PrefixKey, SeqId};

use crate::port::Blob;
use crate::thread::Handle;

/// Where prefixes are kept for good. Called on the engine thread: neither method may block. Whatever becomes of an
/// [`Answer`], who asked hears of it.
pub trait Store: Send {
    /// Keeps a prefix under a key.
    fn write(&self, key: PrefixKey, blob: Blob, answer: Answer);
    /// Gives it back.
    fn read(&self, key: PrefixKey, answer: Answer);
}

/// What became of a prefix that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// The store has it.
    Kept,
    /// Not this time: the store is busy, or the prefix too large for it.
    Skipped,
    /// The store is of no use any more: its disk is full or gone.
    Failed,
}

/// The way back to the engine thread that asked. Dropped without a word it says that the store does not have the prefix,
/// or has not taken it.
pub struct Answer {
    handle: Handle,
    prefix: SeqId,
    key: PrefixKey,
    given: Given,
}

/// What a store has answered.
pub(crate) enum Given {
    Kept(Keeping),
    Fetched(Option<Blob>),
}

/// An answer on its way into the core.
pub(crate) struct Answered {
    pub(crate) prefix: SeqId,
    pub(crate) key: PrefixKey,
    pub(crate) given: Given,
}

impl Answer {
    pub(crate) const fn to_write(handle: Handle, prefix: SeqId, key: PrefixKey) -> Self {
        Self { handle, prefix, key, given: Given::Kept(Keeping::Skipped) }
    }

    pub(crate) const fn to_read(handle: Handle, prefix: SeqId, key: PrefixKey) -> Self {
        Self { handle, prefix, key, given: Given::Fetched(None) }
    }

    /// What became of a write. To a read it says nothing.
    pub fn kept(mut self, keeping: Keeping) {
        if let Given::Kept(given) = &mut self.given {
            *given = keeping;
        }
    }

    /// What was kept under the key. To a write it says nothing.
    pub fn fetched(mut self, blob: Option<Blob>) {
        if let Given::Fetched(given) = &mut self.given {
            *given = blob;
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let given = std::mem::replace(&mut self.given, Given::Fetched(None));
        self.handle.answer(Answered { prefix: self.prefix, key: self.key, given });
    }
}
