//! What the stages have stored, remembered for the next front: the tokens of each prefix, in the front's own store.
//!
//! Owns: what a remembered prefix looks like. Does not know whether the stages still have it: they are asked when it
//! would be used.

use bytes::Bytes;
use protocol::{PrefixKey, Token, limits};
use scheduler::{Namespace, Shelved};
use store::{Name, Store};

use super::roster::LinePlan;

const ENDING: &str = "prompt";

/// The prefixes that fronts of one line have known.
pub(super) struct Prompts {
    store: Store,
    /// What the stages' files depend on: a prefix is of use to a line like this one only.
    line: [u8; 32],
}

impl Prompts {
    pub(super) fn new(store: Store, plan: &LinePlan) -> Self {
        Self { store, line: line_digest(plan) }
    }

    fn name(&self, key: &PrefixKey) -> Name {
        Name::new(ENDING, &[&self.line, &key.0])
    }

    /// Something has changed. What cannot be written is forgotten.
    pub(super) fn note(&self, change: Shelved) {
        match change {
            Shelved::Kept { key, namespace, tokens } => {
                let mut head = self.line.to_vec();
                head.extend(namespace.to_le_bytes());
                head.extend(tokens.iter().flat_map(|token| token.0.to_le_bytes()));
                self.store.write(self.name(&key), head, Bytes::new(), |_| {});
            }
            Shelved::Used(key) => self.store.touch(self.name(&key)),
            Shelved::Gone(key) => self.forget(&key),
        }
    }

    pub(super) fn forget(&self, key: &PrefixKey) {
        self.store.remove(self.name(key));
    }

    /// All that is remembered of this line, the one used last comes last. Blocks.
    pub(super) fn recall(&self) -> Vec<(Namespace, Vec<Token>)> {
        let all = self.store.read_all(ENDING);
        all.iter().filter_map(|content| self.understand(content)).collect()
    }

    fn understand(&self, content: &[u8]) -> Option<(Namespace, Vec<Token>)> {
        let (line, rest) = content.split_first_chunk::<32>()?;
        let (namespace, rest) = rest.split_first_chunk::<8>()?;
        let is_its = *line == self.line && rest.len() / 4 <= limits::MAX_CONTEXT as usize;
        let (tokens, rest) = rest.as_chunks::<4>();
        let tokens = tokens.iter().map(|token| Token(i32::from_le_bytes(*token))).collect();
        (is_its && rest.is_empty()).then_some((u64::from_le_bytes(*namespace), tokens))
    }
}

/// What all that a line computes depends on.
pub(super) fn line_digest(plan: &LinePlan) -> [u8; 32] {
    let LinePlan {
        model, ranges, context, n_slots, row_dtype, kv, exact, swa_full, undo_rows, drafts, ..
    } = plan;
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    let line = format!(
        "{model} {ranges:?}, {n_slots} x {context}, {row_dtype:?} {kv:?} {exact} {swa_full} {undo_rows} {drafts}"
    );
    Name::new("line", &[line.as_bytes()]).digest()
}

#[cfg(test)]
mod tests {
    use protocol::{KvType, LayerRange, ModelId, RowDtype};

    use super::*;

    fn plan(kv: KvType) -> LinePlan {
        LinePlan {
            model: ModelId([1; 32]),
            n_layers: 4,
            ranges: vec![LayerRange { start: 0, end: 4 }],
            narrower: Vec::new(),
            context: 256,
            n_slots: 2,
            max_rows: 16,
            row_dtype: RowDtype::F32,
            kv,
            exact: false,
            swa_full: true,
            undo_rows: 0,
            drafts: false,
            prefix_bytes: 0,
        }
    }

    #[test]
    fn a_later_front_of_the_same_line_knows_what_an_earlier_one_knew() {
        let home = tempfile::tempdir().unwrap();
        let open = |kv| Prompts::new(Store::open(home.path().join("prefixes"), 1 << 20).unwrap(), &plan(kv));
        let tokens = |n: i32| (0..n).map(Token).collect::<Vec<_>>();
        let first = open(KvType::F16);
        for n in 1..=3 {
            let (key, namespace) = (PrefixKey([n as u8; 32]), n as u64);
            first.note(Shelved::Kept { key, namespace, tokens: tokens(n) });
        }
        first.note(Shelved::Used(PrefixKey([3; 32])));
        first.note(Shelved::Gone(PrefixKey([2; 32])));
        // Reads come after what was asked before, and this one's answer after all of them.
        let (tell, told) = std::sync::mpsc::channel();
        first.store.write(Name::new("x", &[]), Vec::new(), Bytes::new(), move |_| tell.send(()).unwrap());
        told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        let mut known = open(KvType::F16).recall();
        known.sort();
        assert_eq!(known, [(1, tokens(1)), (3, tokens(3))]);
        assert_eq!(open(KvType::Q8_0).recall(), [], "another line");
    }
}
