//! A stage's prefixes in a store: what their files are called, and what is in them.
//!
//! A file's name says everything that its bytes depend on, so that a stage finds what a stage just like it has left, and
//! nothing else.

use bytes::Bytes;
use protocol::{Assign, Holding, Position, PrefixKey};
use stage::{Answer, Blob, Keeping, Store};
use store::{Name, Written};

/// Where a node keeps prefixes.
#[derive(Clone)]
pub struct PrefixStore {
    /// The store; others may use it, too.
    pub store: store::Store,
    /// What the bytes depend on besides the assignment: the engine's build, the kind of processor, the device.
    pub engine: String,
}

/// A store for the prefixes of one assignment.
pub(super) struct Filed {
    store: store::Store,
    layout: String,
}

impl Filed {
    pub(super) fn new(place: PrefixStore, assign: &Assign) -> Self {
        let PrefixStore { store, engine } = place;
        let Assign { holding, row_dtype, .. } = assign;
        let Holding {
            model, layers, n_layers, context, n_slots, kv, exact, swa_full, undo_rows, drafts, ..
        } = holding;
        // Rows that travel in another form make other keys and values.
        let layout = format!(
            "{model} {layers} of {n_layers}, {n_slots} x {context}, {row_dtype:?} {kv:?} {exact} {swa_full} {undo_rows} {drafts}, {engine}"
        );
        Self { store, layout }
    }

    fn name(&self, key: PrefixKey) -> Name {
        Name::new("kv", &[self.layout.as_bytes(), &key.0])
    }
}

impl Store for Filed {
    fn write(&self, key: PrefixKey, blob: Blob, answer: Answer) {
        let head = blob.len.0.to_le_bytes().to_vec();
        self.store.write(self.name(key), head, blob.bytes, move |written| {
            answer.kept(match written {
                Written::Kept => Keeping::Kept,
                Written::Skipped => Keeping::Skipped,
                Written::Failed => Keeping::Failed,
            });
        });
    }

    fn read(&self, key: PrefixKey, answer: Answer) {
        self.store.read(self.name(key), move |bytes| answer.fetched(bytes.and_then(blob)));
    }
}

fn blob(content: Bytes) -> Option<Blob> {
    let len = content.first_chunk().map(|len| Position(u32::from_le_bytes(*len)))?;
    Some(Blob { len, bytes: content.slice(4..) })
}
