//! Which prefixes every stage has stored, so that they outlive the line.
//!
//! Owns: what is worth storing, who has confirmed it, and the index of what all stages have. Does not know where stages
//! keep it, nor whether they still do: one that does not says so, and the entry goes. A front that starts anew is told
//! what an earlier one knew ([`crate::Scheduler::restore`]).

use std::collections::{BTreeMap, BTreeSet};

use protocol::{PrefixKey, SeqId, StageIndex, Token};

use crate::config::Cuts;
use crate::prefixes::{Hit, Namespace, Prefixes, Trust};

/// Of its tokens, the part that a prefix must have beyond a stored one to be stored as well: a conversation that grows by
/// a few tokens with every turn is written a few times, not every time.
const GROWTH: usize = 8;
/// Prefixes that stages have been asked to store and that not all of them have confirmed; the oldest are forgotten.
const MAX_ASKED: usize = 64;

/// What changed about the stored prefixes; for whoever remembers them for the next front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shelved {
    /// Every stage has it.
    Kept {
        /// Under this key.
        key: PrefixKey,
        /// Who may begin with it.
        namespace: Namespace,
        /// Its tokens.
        tokens: Vec<Token>,
    },
    /// It was used.
    Used(PrefixKey),
    /// It is gone, or was replaced by a longer one.
    Gone(PrefixKey),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shelf {
    stored: Prefixes<PrefixKey>,
    /// Tokens that a prefix must spare.
    least: usize,
    /// Which line: what a stage computes depends on how the stages before it were cut and what they send.
    line: [u8; 32],
    /// What was stored while the layers were shared out otherwise; one for each way in which they were.
    others: BTreeMap<[u8; 32], Prefixes<PrefixKey>>,
    cuts: Cuts,
    asked: BTreeMap<SeqId, Asked>,
    /// A stage of this line stores nothing.
    refused: bool,
}

#[derive(Debug)]
struct Asked {
    key: PrefixKey,
    namespace: Namespace,
    tokens: Vec<Token>,
    confirmed: BTreeSet<StageIndex>,
    /// Whether the line may still come to store it: it is parked there.
    is_parked: bool,
}

/// What a prefix of a line is called wherever it is stored.
fn key_of(line: &[u8; 32], namespace: Namespace, tokens: &[Token]) -> PrefixKey {
    let mut hasher = blake3::Hasher::new();
    hasher.update(line);
    hasher.update(&namespace.to_le_bytes());
    tokens.iter().for_each(|token| _ = hasher.update(&token.0.to_le_bytes()));
    PrefixKey(*hasher.finalize().as_bytes())
}

impl Shelf {
    /// A shelf for so many tokens, with prefixes of `least` at least; without any budget nothing is ever stored.
    pub(crate) const fn new(budget: u64, least: u32, line: [u8; 32], cuts: Cuts) -> Self {
        Self {
            stored: Prefixes::new(budget, cuts, true),
            least: least as usize,
            line,
            others: BTreeMap::new(),
            cuts,
            asked: BTreeMap::new(),
            refused: false,
        }
    }

    /// The layers are shared out otherwise from now on: what was stored before is of no use until they are as they were.
    pub(crate) fn reshape(&mut self, line: [u8; 32]) {
        if line == self.line {
            return;
        }
        let stored = self.others.remove(&line);
        let stored = stored.unwrap_or_else(|| Prefixes::new(self.stored.budget(), self.cuts, true));
        let before = std::mem::replace(&mut self.stored, stored);
        self.others.insert(std::mem::replace(&mut self.line, line), before);
    }

    /// The key under which a prefix that is parked now shall be stored, if that is worth it.
    pub(crate) fn ask(&mut self, seq: SeqId, namespace: Namespace, tokens: &[Token]) -> Option<PrefixKey> {
        let len = tokens.len();
        if self.refused || self.stored.budget() < len as u64 || len < self.least {
            return None;
        }
        let shared = |other: &[Token]| tokens.iter().zip(other).take_while(|(a, b)| a == b).count();
        let to_come = self.asked.values().filter(|asked| asked.is_parked && asked.namespace == namespace);
        let to_come = to_come.map(|asked| shared(&asked.tokens)).max();
        let stored = self.stored.longest(namespace, tokens, Trust::All).map(|hit| hit.len);
        let spared = len - to_come.max(stored).unwrap_or(0);
        if spared < self.least.max(len / GROWTH) {
            return None;
        }
        if self.asked.len() >= MAX_ASKED {
            self.asked.pop_first();
        }
        let key = key_of(&self.line, namespace, tokens);
        let asked =
            Asked { key, namespace, tokens: tokens.to_vec(), confirmed: BTreeSet::new(), is_parked: true };
        self.asked.insert(seq, asked);
        Some(key)
    }

    /// A prefix is not parked any more; stages may have stored it before.
    pub(crate) fn unparked(&mut self, seq: SeqId) {
        if let Some(asked) = self.asked.get_mut(&seq) {
            asked.is_parked = false;
        }
    }

    /// A stage has stored a prefix, or never will. Returns what that changes.
    pub(crate) fn answered(
        &mut self,
        from: StageIndex,
        seq: SeqId,
        kept: bool,
        n_stages: u16,
    ) -> Vec<Shelved> {
        if !kept {
            self.refused = true;
            self.asked.clear();
            return Vec::new();
        }
        let Some(asked) = self.asked.get_mut(&seq) else { return Vec::new() };
        asked.confirmed.insert(from);
        if asked.confirmed.len() < usize::from(n_stages) {
            return Vec::new();
        }
        let Some(Asked { key, namespace, tokens, .. }) = self.asked.remove(&seq) else { return Vec::new() };
        let gone = self.stored.insert(namespace, tokens.clone(), key);
        let is_kept = !gone.contains(&key);
        let gone = gone.into_iter().filter(|&other| other != key).map(Shelved::Gone);
        is_kept.then_some(Shelved::Kept { key, namespace, tokens }).into_iter().chain(gone).collect()
    }

    /// What an earlier front knew. Returns what there is no room for.
    pub(crate) fn restore(&mut self, namespace: Namespace, tokens: Vec<Token>) -> Vec<PrefixKey> {
        let key = key_of(&self.line, namespace, &tokens);
        self.stored.insert(namespace, tokens, key)
    }

    /// The stored prefix that shares most tokens with a prompt, as far as that is worth reading.
    pub(crate) fn find(&self, namespace: Namespace, prompt: &[Token]) -> Option<Hit<PrefixKey>> {
        let most = prompt.len().checked_sub(1)?;
        self.stored.longest(namespace, &prompt[..most], Trust::All).filter(|hit| hit.len >= self.least)
    }

    /// The tokens of a stored prefix, which is used now.
    pub(crate) fn take_down(&mut self, key: PrefixKey) -> Option<Vec<Token>> {
        let (namespace, tokens) = self.stored.tokens(key)?;
        let tokens = tokens.to_vec();
        self.stored.find(namespace, &[&tokens[..], &[Token(0)]].concat(), Trust::All);
        Some(tokens)
    }

    /// The key of a prefix with these tokens, if it is stored.
    pub(crate) fn key(&self, namespace: Namespace, tokens: &[Token]) -> Option<PrefixKey> {
        if self.stored.size().1 == 0 {
            return None;
        }
        let key = key_of(&self.line, namespace, tokens);
        self.stored.tokens(key).map(|_| key)
    }

    /// A stage does not have a prefix. Whether that was news.
    pub(crate) fn lost(&mut self, key: PrefixKey) -> bool {
        self.stored.remove(key)
    }

    /// The line is gone: what its stages were asked is forgotten, what they stored is not.
    pub(crate) fn line_lost(&mut self) {
        self.asked.clear();
        self.refused = false;
    }

    /// Tokens that reading one back must spare.
    pub(crate) const fn least(&self) -> usize {
        self.least
    }

    /// Tokens and prefixes stored.
    pub(crate) fn size(&self) -> (u64, u32) {
        self.stored.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: [u8; 32] = [9; 32];

    const ONE: StageIndex = StageIndex(0);
    const TWO: StageIndex = StageIndex(1);

    fn text(seed: i32, len: usize) -> Vec<Token> {
        (0..len as i32).map(|i| Token(seed + i)).collect()
    }

    /// Has both stages of a line store it; the changes.
    fn store(shelf: &mut Shelf, seq: u64, tokens: &[Token]) -> Vec<Shelved> {
        let seq = SeqId(seq);
        assert!(shelf.ask(seq, 0, tokens).is_some(), "worth storing");
        assert_eq!(shelf.answered(ONE, seq, true, 2), []);
        shelf.answered(TWO, seq, true, 2)
    }

    #[test]
    fn a_prefix_is_stored_when_every_stage_has_said_so() {
        let mut shelf = Shelf::new(10_000, 128, LINE, Cuts::Anywhere);
        let tokens = text(0, 200);
        shelf.ask(SeqId(1), 7, &tokens).unwrap();
        assert_eq!(shelf.answered(ONE, SeqId(1), true, 2), []);
        assert_eq!(shelf.answered(ONE, SeqId(1), true, 2), [], "the same stage again");
        assert_eq!(shelf.find(7, &text(0, 300)), None);
        let key = key_of(&LINE, 7, &tokens);
        let kept = Shelved::Kept { key, namespace: 7, tokens: tokens.clone() };
        assert_eq!(shelf.answered(TWO, SeqId(1), true, 2), [kept]);
        assert_eq!(shelf.find(7, &text(0, 300)), Some(Hit { prefix: key, len: 200, keep: false }));
        assert_eq!(shelf.find(8, &text(0, 300)), None, "another namespace");
        assert_eq!((shelf.key(7, &tokens), shelf.key(7, &text(0, 199))), (Some(key), None));
        assert_eq!(shelf.take_down(key), Some(tokens));
        assert!(shelf.lost(key) && !shelf.lost(key));
        assert_eq!(shelf.find(7, &text(0, 300)), None);
    }

    #[test]
    fn what_little_would_be_spared_is_not_stored() {
        let mut shelf = Shelf::new(100_000, 128, LINE, Cuts::Anywhere);
        assert_eq!(shelf.ask(SeqId(1), 0, &text(0, 127)), None, "short");
        store(&mut shelf, 2, &text(0, 2000));
        let tail = [&text(0, 2000)[..], &text(9000, 100)].concat();
        assert_eq!(shelf.ask(SeqId(3), 0, &tail), None, "shares nearly all");
        assert!(shelf.ask(SeqId(4), 1, &tail).is_some(), "another namespace's does not count");
        let longer = [&text(0, 2000)[..], &text(9000, 400)].concat();
        assert!(shelf.ask(SeqId(5), 0, &longer).is_some());
        assert_eq!(shelf.ask(SeqId(6), 0, &longer), None, "it has been asked for");
        shelf.unparked(SeqId(5));
        assert!(shelf.ask(SeqId(7), 0, &longer).is_some(), "but may not come any more");
    }

    #[test]
    fn longer_prefixes_replace_shorter_ones_and_the_budget_holds() {
        let mut shelf = Shelf::new(1000, 128, LINE, Cuts::Anywhere);
        store(&mut shelf, 1, &text(0, 200));
        let changes = store(&mut shelf, 2, &text(0, 500));
        assert_eq!(changes[1..], [Shelved::Gone(key_of(&LINE, 0, &text(0, 200)))]);
        let changes = store(&mut shelf, 3, &text(5000, 600));
        assert_eq!(changes[1..], [Shelved::Gone(key_of(&LINE, 0, &text(0, 500)))]);
        assert_eq!(shelf.size(), (600, 1));
        assert_eq!(shelf.ask(SeqId(4), 0, &text(8000, 1001)), None, "larger than the shelf");
    }

    #[test]
    fn a_stage_that_stores_nothing_is_not_asked_again_until_the_line_is_another() {
        let mut shelf = Shelf::new(1000, 128, LINE, Cuts::Anywhere);
        shelf.ask(SeqId(1), 0, &text(0, 200)).unwrap();
        assert_eq!(shelf.answered(ONE, SeqId(1), true, 2), []);
        assert_eq!(shelf.answered(TWO, SeqId(1), false, 2), []);
        assert_eq!(shelf.ask(SeqId(2), 0, &text(0, 200)), None);
        shelf.line_lost();
        assert!(shelf.ask(SeqId(3), 0, &text(0, 200)).is_some());
        assert_eq!(
            Shelf::new(0, 128, LINE, Cuts::Anywhere).ask(SeqId(4), 0, &text(0, 200)),
            None,
            "no shelf at all"
        );
    }

    #[test]
    fn what_is_stored_counts_while_the_layers_are_shared_out_as_they_were() {
        let mut shelf = Shelf::new(10_000, 128, LINE, Cuts::Anywhere);
        let (tokens, prompt) = (text(0, 200), text(0, 300));
        store(&mut shelf, 1, &tokens);
        shelf.reshape([8; 32]);
        assert_eq!((shelf.find(0, &prompt), shelf.size()), (None, (0, 0)));
        let narrow = store(&mut shelf, 2, &tokens);
        let key = key_of(&[8; 32], 0, &tokens);
        assert_eq!(
            narrow,
            [Shelved::Kept { key, namespace: 0, tokens: tokens.clone() }],
            "under another name"
        );
        shelf.reshape(LINE);
        let first = key_of(&LINE, 0, &tokens);
        assert_eq!(shelf.find(0, &prompt).map(|hit| hit.prefix), Some(first));
        shelf.reshape(LINE);
        assert_eq!(shelf.find(0, &prompt).map(|hit| hit.prefix), Some(first), "nothing has changed");
        shelf.reshape([8; 32]);
        assert_eq!(shelf.find(0, &prompt).map(|hit| hit.prefix), Some(key));
    }

    #[test]
    fn what_is_asked_is_bounded() {
        let mut shelf = Shelf::new(1 << 30, 128, LINE, Cuts::Anywhere);
        for seq in 0..1000 {
            shelf.ask(SeqId(seq), seq, &text(0, 200)).unwrap();
        }
        assert_eq!(shelf.asked.len(), MAX_ASKED);
    }
}
