//! Which prefixes the line should hold, and which of them a new prompt should begin with.
//!
//! Owns: the tokens of each, their budget, and who goes first. Does not know where a stage keeps its part of one, nor
//! whether it still does: a stage that lost it says so, and the sequence begins again without it. There are two such
//! indexes: of what is parked, by the sequences that left it, and of what is stored (see [`crate::shelf`]).
//!
//! Prefixes are kept in the order of their tokens. Of all of them, the one that shares most with a prompt then stands
//! right before or right after the place where the prompt would stand: two look-ups find it, to the token.

use std::collections::BTreeMap;
use std::ops::Bound;

use protocol::Token;

/// Tokens that a prefix must save at least: fewer are computed sooner than found.
pub const LEAST: usize = 16;
/// Prefixes at most. A stage keeps as many.
const MAX_PREFIXES: usize = 1024;

/// Whose prompts may share prefixes: one client cannot find out by timing what another one asked.
pub type Namespace = u64;

/// Prompts that everybody may begin with: what the operator has named. Only requests of the server's own are in it.
pub const SHARED: Namespace = Namespace::MAX;

type Key = (Namespace, Vec<Token>);

/// See the module.
#[derive(Debug)]
pub(crate) struct Prefixes<Id> {
    by_tokens: BTreeMap<Key, Entry<Id>>,
    by_id: BTreeMap<Id, Key>,
    /// Tokens of all.
    held: u64,
    /// What `held` may be.
    budget: u64,
    /// The worth of what went last: what comes is worth more than that, so that age counts.
    clock: f64,
}

#[derive(Debug)]
struct Entry<Id> {
    id: Id,
    /// Who is worth least goes first.
    worth: f64,
}

/// What a prompt can begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit<Id> {
    /// Which prefix.
    pub(crate) prefix: Id,
    /// Tokens shared.
    pub(crate) len: usize,
    /// Whether others may want it still: it holds more than that. (Who goes on from all of it will park more than it.)
    pub(crate) keep: bool,
}

impl<Id: Copy + Ord> Prefixes<Id> {
    pub(crate) const fn new(budget: u64) -> Self {
        Self { by_tokens: BTreeMap::new(), by_id: BTreeMap::new(), held: 0, budget, clock: 0.0 }
    }

    /// What may be held, in tokens.
    pub(crate) const fn budget(&self) -> u64 {
        self.budget
    }

    /// The prefix that shares most tokens with a prompt, whose last token is never taken from a prefix: it must be
    /// computed to go on from it.
    pub(crate) fn find(&mut self, namespace: Namespace, prompt: &[Token]) -> Option<Hit<Id>> {
        let most = prompt.len().checked_sub(1)?;
        let best = self.longest(namespace, &prompt[..most])?;
        self.touch(best.prefix);
        Some(best)
    }

    /// The prefix that shares most tokens with a text.
    pub(crate) fn longest(&self, namespace: Namespace, text: &[Token]) -> Option<Hit<Id>> {
        let key = (namespace, text.to_vec());
        let before = self.by_tokens.range(..=&key).next_back();
        let after = self.by_tokens.range((Bound::Excluded(&key), Bound::Unbounded)).next();
        let hit = |((space, tokens), entry): (&Key, &Entry<Id>)| {
            let len = tokens.iter().zip(&key.1).take_while(|(a, b)| a == b).count();
            let hit = Hit { prefix: entry.id, len, keep: len < tokens.len() };
            (*space == namespace && len >= LEAST).then_some(hit)
        };
        let hits = [before, after].into_iter().flatten().filter_map(hit);
        hits.max_by_key(|hit| hit.len)
    }

    /// The line keeps these tokens from now on. Returns the prefixes that it need no longer keep, perhaps this one.
    pub(crate) fn insert(&mut self, namespace: Namespace, tokens: Vec<Token>, id: Id) -> Vec<Id> {
        if tokens.len() < LEAST || tokens.len() as u64 > self.budget {
            return vec![id];
        }
        let key = (namespace, tokens);
        let mut gone = Vec::new();
        // Those that this one begins with serve nobody any more; the one before it in order is the longest of them.
        while let Some(((space, shorter), entry)) = self.by_tokens.range(..=&key).next_back()
            && *space == namespace
            && key.1.starts_with(shorter)
        {
            gone.push(entry.id);
            self.remove(*gone.last().expect("it was just pushed"));
        }
        let covered = self.by_tokens.range(&key..).next();
        if let Some(((space, longer), _)) = covered
            && *space == namespace
            && longer.starts_with(&key.1)
        {
            gone.push(id);
            return gone;
        }
        self.held += key.1.len() as u64;
        let worth = self.worth(&key);
        self.by_id.insert(id, key.clone());
        self.by_tokens.insert(key, Entry { id, worth });
        while self.held > self.budget || self.by_id.len() > MAX_PREFIXES {
            let least = self.by_tokens.values().min_by(|a, b| a.worth.total_cmp(&b.worth));
            let Some((oldest, worth)) = least.map(|entry| (entry.id, entry.worth)) else { break };
            self.clock = worth;
            self.remove(oldest);
            gone.push(oldest);
        }
        gone
    }

    /// A prefix is gone. Whether it was here.
    pub(crate) fn remove(&mut self, id: Id) -> bool {
        let key = self.by_id.remove(&id);
        if let Some(key) = &key {
            self.held -= key.1.len() as u64;
            self.by_tokens.remove(key);
        }
        key.is_some()
    }

    /// Whether a prefix is here, and its tokens.
    pub(crate) fn tokens(&self, id: Id) -> Option<(Namespace, &[Token])> {
        self.by_id.get(&id).map(|(namespace, tokens)| (*namespace, &tokens[..]))
    }

    /// All are gone.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.budget);
    }

    /// Tokens and prefixes held.
    pub(crate) fn size(&self) -> (u64, u32) {
        (self.held, self.by_id.len() as u32)
    }

    fn touch(&mut self, id: Id) {
        let Some(key) = self.by_id.get(&id) else { return };
        let worth = self.worth(key);
        if let Some(entry) = self.by_tokens.get_mut(key) {
            entry.worth = worth;
        }
    }

    /// GreedyDual-Size (Cao and Irani, 1997): the cost of getting it back per token that it takes, on top of the worth
    /// of what went last. Computing a prompt costs a constant per token plus attention to all tokens before it.
    fn worth(&self, key: &Key) -> f64 {
        /// Tokens whose attention costs as much as everything else does.
        const ATTENTION_WEIGHS: f64 = 8192.0;
        self.clock + 1.0 + key.1.len() as f64 / ATTENTION_WEIGHS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::SeqId;

    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(i32::from(byte))).collect()
    }

    const SYSTEM: &str = "you are a helpful assistant. ";

    fn filled() -> Prefixes<SeqId> {
        let mut prefixes = Prefixes::new(1000);
        for (seq, tail) in ["hello there", "good morning", "what is rust"].iter().enumerate() {
            assert!(prefixes.insert(0, tokens(&format!("{SYSTEM}{tail}")), SeqId(seq as u64)).is_empty());
        }
        prefixes
    }

    #[test]
    fn the_longest_common_prefix_is_found_to_the_token() {
        let mut prefixes = filled();
        let hit = prefixes.find(0, &tokens(&format!("{SYSTEM}good evening"))).unwrap();
        assert_eq!(hit, Hit { prefix: SeqId(1), len: SYSTEM.len() + 5, keep: true });
        let hit = prefixes.find(0, &tokens(&format!("{SYSTEM}hello there, you"))).unwrap();
        assert_eq!(hit, Hit { prefix: SeqId(0), len: SYSTEM.len() + 11, keep: false });
        let hit = prefixes.find(0, &tokens(&format!("{SYSTEM}zzz"))).unwrap();
        assert_eq!(hit.len, SYSTEM.len());
        assert_eq!(prefixes.find(0, &tokens("you are a cat and nothing")), None, "too short to matter");
    }

    #[test]
    fn the_last_token_of_a_prompt_is_never_taken_from_a_prefix() {
        let hit = filled().find(0, &tokens(&format!("{SYSTEM}hello there"))).unwrap();
        assert_eq!(hit, Hit { prefix: SeqId(0), len: SYSTEM.len() + 10, keep: true });
    }

    #[test]
    fn nobody_sees_the_prefixes_of_another_namespace() {
        let mut prefixes = filled();
        assert_eq!(prefixes.find(1, &tokens(&format!("{SYSTEM}hello there, you"))), None);
        assert!(prefixes.insert(1, tokens(&format!("{SYSTEM}hello there")), SeqId(9)).is_empty());
        assert_eq!(prefixes.find(1, &tokens(&format!("{SYSTEM}hello there, you"))).unwrap().prefix, SeqId(9));
        assert_eq!(prefixes.find(0, &tokens(&format!("{SYSTEM}hello there, you"))).unwrap().prefix, SeqId(0));
    }

    #[test]
    fn a_longer_prefix_replaces_those_that_it_begins_with() {
        let mut prefixes = filled();
        let longer = tokens(&format!("{SYSTEM}hello there, you"));
        assert_eq!(prefixes.insert(0, longer, SeqId(7)), [SeqId(0)]);
        assert_eq!(prefixes.insert(0, tokens(&format!("{SYSTEM}hello")), SeqId(8)), [SeqId(8)], "covered");
        assert_eq!(prefixes.size().1, 3);
    }

    #[test]
    fn the_budget_holds_and_what_was_used_last_stays() {
        let mut prefixes = Prefixes::new(60);
        let text = |letter: char| tokens(&letter.to_string().repeat(20));
        for (seq, letter) in ['a', 'b', 'c'].into_iter().enumerate() {
            assert!(prefixes.insert(0, text(letter), SeqId(seq as u64)).is_empty());
        }
        let ask = |letter: char| [text(letter), tokens("!")].concat();
        // What went first makes all that is used afterwards worth more.
        assert_eq!(prefixes.insert(0, text('d'), SeqId(3)), [SeqId(0)]);
        prefixes.find(0, &ask('b')).unwrap();
        assert_eq!(prefixes.insert(0, text('e'), SeqId(4)), [SeqId(2)]);
        assert!(prefixes.find(0, &ask('b')).is_some());
        assert_eq!(prefixes.insert(0, vec![Token(1); 61], SeqId(5)), [SeqId(5)], "larger than the budget");
    }

    proptest! {
        #[test]
        fn the_two_neighbours_are_as_good_as_all(
            kept in prop::collection::vec((0..2_u64, prop::collection::vec(0..3, 0..40)), 0..20),
            prompt in prop::collection::vec(0..3, 1..40),
            namespace in 0..2_u64,
        ) {
            let text = |ids: &[i32]| -> Vec<Token> { ids.iter().copied().map(Token).collect() };
            let mut prefixes = Prefixes::new(300);
            let mut live = BTreeMap::new();
            for (seq, (space, ids)) in kept.iter().enumerate() {
                let seq = SeqId(seq as u64);
                live.insert(seq, (*space, text(ids)));
                for gone in prefixes.insert(*space, text(ids), seq) {
                    live.remove(&gone);
                }
                let held: usize = live.values().map(|(_, tokens)| tokens.len()).sum();
                prop_assert_eq!(prefixes.size(), (held as u64, live.len() as u32));
                prop_assert!(held <= 300);
            }
            let prompt = text(&prompt);
            let most = prompt.len() - 1;
            let shared = |tokens: &[Token]| tokens.iter().zip(&prompt[..most]).take_while(|(a, b)| a == b).count();
            let best = live.values().filter(|(space, _)| *space == namespace).map(|(_, t)| shared(t)).max();
            let found = prefixes.find(namespace, &prompt).map(|hit| hit.len);
            prop_assert_eq!(found, best.filter(|&len| len >= LEAST));
        }
    }
}
