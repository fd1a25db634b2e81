//! Which prefixes the line should hold, and which of them a new prompt should begin with.
//!
//! Owns: the tokens of each, their budget, and who goes first. Does not know where a stage keeps its part of one, nor
//! whether it still does: a stage that lost it says so, and the sequence begins again without it. There are two such
//! indexes: of what is parked, by the sequences that left it, and of what is stored (see [`crate::shelf`]).
//!
//! Prefixes are kept in the order of their tokens. Of all of them, the one that shares most with a prompt then stands
//! right before or right after the place where the prompt would stand: two look-ups find it, to the token. Where not all
//! of them can be cut, it is the next to that on either side that serves.

use std::collections::BTreeMap;
use std::ops::Bound;

use protocol::Token;

use crate::config::Cuts;

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
    cuts: Cuts,
    /// Whether they are saved from the beginning, and do not stand in a slot first.
    are_saved: bool,
    /// The worth of what went last: what comes is worth more than that, so that age counts.
    clock: f64,
}

#[derive(Debug)]
struct Entry<Id> {
    id: Id,
    /// Who is worth least goes first.
    worth: f64,
    /// It is known to be saved.
    is_saved: bool,
    /// Several texts have gone on from it in ways of their own, and more may.
    is_trunk: bool,
}

/// How far what is said here of prefixes is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// They are all where they can be cut, as far as is known.
    All,
    /// A stage could not cut one: only those that nobody needs to cut.
    Whole,
    /// A stage did not have one: none.
    Nothing,
}

/// What it takes to begin with a part of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Nothing, or it is no part but all of it.
    Free,
    /// All behind that part.
    Dear,
    /// It cannot be had.
    Impossible,
}

/// What a prompt can begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit<Id> {
    /// Which prefix.
    pub(crate) prefix: Id,
    /// Tokens shared.
    pub(crate) len: usize,
    /// Whether others may want it still: it holds more than that, or others have gone on from it. (Else who goes on from
    /// all of it will park more than it.)
    pub(crate) keep: bool,
}

impl<Id: Copy + Ord> Prefixes<Id> {
    /// None yet. `are_saved`: they are not in slots first.
    pub(crate) const fn new(budget: u64, cuts: Cuts, are_saved: bool) -> Self {
        Self {
            by_tokens: BTreeMap::new(),
            by_id: BTreeMap::new(),
            held: 0,
            budget,
            cuts,
            are_saved,
            clock: 0.0,
        }
    }

    /// What may be held, in tokens.
    pub(crate) const fn budget(&self) -> u64 {
        self.budget
    }

    /// The prefix that shares most tokens with a prompt, whose last token is never taken from a prefix: it must be
    /// computed to go on from it.
    pub(crate) fn find(&mut self, namespace: Namespace, prompt: &[Token], trust: Trust) -> Option<Hit<Id>> {
        let most = prompt.len().checked_sub(1)?;
        let best = self.longest(namespace, &prompt[..most], trust)?;
        self.touch(best.prefix);
        Some(best)
    }

    /// The prefix that shares most tokens with a text.
    pub(crate) fn longest(&self, namespace: Namespace, text: &[Token], trust: Trust) -> Option<Hit<Id>> {
        let key = (namespace, text.to_vec());
        let before = || self.by_tokens.range(..=&key).rev();
        let after = || self.by_tokens.range((Bound::Excluded(&key), Bound::Unbounded));
        let shared = |((space, tokens), _): &(&Key, &Entry<Id>)| {
            let len = tokens.iter().zip(&key.1).take_while(|(a, b)| a == b).count();
            (*space == namespace && len >= LEAST).then_some(len)
        };
        // Of those on one side the next one shares most.
        let hit = |entries: &mut dyn Iterator<Item = (&Key, &Entry<Id>)>, cut: Cut| {
            entries.map_while(|entry| Some((shared(&entry)?, entry))).find_map(
                |(len, ((_, tokens), entry))| {
                    let hit = Hit { prefix: entry.id, len, keep: len < tokens.len() || entry.is_trunk };
                    (self.cut(entry, tokens.len(), len) == cut).then_some(hit)
                },
            )
        };
        let free = [hit(&mut before(), Cut::Free), hit(&mut after(), Cut::Free)].into_iter().flatten();
        let free = free.max_by_key(|hit| hit.len);
        if self.cuts.whole_above() == usize::MAX || trust != Trust::All {
            return free.filter(|_| trust != Trust::Nothing);
        }
        // What it costs the one that is cut must be worth it.
        let least = free.map_or(0, |hit| hit.len + LEAST);
        let dear = [hit(&mut before(), Cut::Dear), hit(&mut after(), Cut::Dear)].into_iter().flatten();
        dear.filter(|hit| hit.len >= least).max_by_key(|hit| hit.len).or(free)
    }

    /// What it takes to begin with `shared` tokens of a prefix of `len`.
    fn cut(&self, entry: &Entry<Id>, len: usize, shared: usize) -> Cut {
        match shared == len || len <= self.cuts.whole_above() {
            true => Cut::Free,
            false if entry.is_saved => Cut::Impossible,
            false => Cut::Dear,
        }
    }

    /// A stage could not give `len` tokens of a prefix to anybody. Whether it is still worth keeping: it has all of it and
    /// cannot cut it any more.
    pub(crate) fn mark_whole(&mut self, id: Id, len: usize) -> bool {
        let Some(key) = self.by_id.get(&id) else { return false };
        let (whole, above) = (key.1.len(), self.cuts.whole_above());
        let Some(entry) = self.by_tokens.get_mut(key) else { return false };
        let is_news = len < whole && whole > above && !entry.is_saved;
        entry.is_saved |= is_news;
        is_news
    }

    /// Every stage has given `len` tokens of a prefix to somebody. Where those are all that is left of it, it is the
    /// beginning of several texts from now on. Whether nobody needs it, since there is another one like that.
    pub(crate) fn mark_cut(&mut self, id: Id, len: usize) -> bool {
        let Some((namespace, tokens)) = self.by_id.get(&id) else { return false };
        if tokens.len() <= self.cuts.whole_above() || len >= tokens.len() {
            return false;
        }
        let key = (*namespace, tokens[..len].to_vec());
        self.remove(id);
        let is_news = !self.by_tokens.contains_key(&key);
        if is_news {
            self.add(key, id, true);
        }
        !is_news
    }

    /// The line keeps these tokens from now on. Returns the prefixes that it need no longer keep, perhaps this one.
    pub(crate) fn insert(&mut self, namespace: Namespace, tokens: Vec<Token>, id: Id) -> Vec<Id> {
        if tokens.len() < LEAST || tokens.len() as u64 > self.budget {
            return vec![id];
        }
        let key = (namespace, tokens);
        let begins =
            |((space, shorter), _): &(&Key, &Entry<Id>)| *space == namespace && key.1.starts_with(shorter);
        let shorter = self.by_tokens.range(..=&key).rev().take_while(begins);
        // Those that this one begins with serve nobody any more, if it can be cut.
        let can_be_cut = !self.is_saved_at_once(namespace) || key.1.len() <= self.cuts.whole_above();
        let serves_nobody =
            |(known, entry): &(&Key, &Entry<Id>)| **known == key || can_be_cut && !entry.is_trunk;
        let mut gone: Vec<Id> = shorter.filter(serves_nobody).map(|(_, entry)| entry.id).collect();
        let longer = self.by_tokens.range((Bound::Excluded(&key), Bound::Unbounded)).next();
        let is_covered = longer.is_some_and(|((space, longer), entry)| {
            let can_be_cut = !entry.is_saved || longer.len() <= self.cuts.whole_above();
            *space == namespace && can_be_cut && longer.starts_with(&key.1)
        });
        let is_trunk = self.by_tokens.get(&key).is_some_and(|entry| entry.is_trunk);
        for &gone in &gone {
            self.remove(gone);
        }
        if is_covered {
            gone.push(id);
            return gone;
        }
        self.add(key, id, is_trunk);
        while self.held > self.budget || self.by_id.len() > MAX_PREFIXES {
            let least = self.by_tokens.values().min_by(|a, b| a.worth.total_cmp(&b.worth));
            let Some((oldest, worth)) = least.map(|entry| (entry.id, entry.worth)) else { break };
            self.clock = worth;
            self.remove(oldest);
            gone.push(oldest);
        }
        gone
    }

    fn add(&mut self, key: Key, id: Id, is_trunk: bool) {
        self.held += key.1.len() as u64;
        let worth = self.worth(&key);
        let is_saved = is_trunk || self.is_saved_at_once(key.0);
        self.by_id.insert(id, key.clone());
        self.by_tokens.insert(key, Entry { id, worth, is_saved, is_trunk });
    }

    /// What everybody shares is never cut, so that it stays whole for the others.
    const fn is_saved_at_once(&self, namespace: Namespace) -> bool {
        self.are_saved || namespace == SHARED
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

    /// Whoever is here, with its tokens, what was worth least first; none is here afterwards.
    pub(crate) fn drain(&mut self) -> Vec<(Namespace, Vec<Token>, Id)> {
        let mut all: Vec<_> = std::mem::take(&mut self.by_tokens).into_iter().collect();
        all.sort_by(|(_, a), (_, b)| a.worth.total_cmp(&b.worth));
        self.clear();
        all.into_iter().map(|((namespace, tokens), entry)| (namespace, tokens, entry.id)).collect()
    }

    /// All are gone.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.budget, self.cuts, self.are_saved);
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
        let mut prefixes = Prefixes::new(1000, Cuts::Anywhere, false);
        for (seq, tail) in ["hello there", "good morning", "what is rust"].iter().enumerate() {
            assert!(prefixes.insert(0, tokens(&format!("{SYSTEM}{tail}")), SeqId(seq as u64)).is_empty());
        }
        prefixes
    }

    #[test]
    fn the_longest_common_prefix_is_found_to_the_token() {
        let mut prefixes = filled();
        let hit = prefixes.find(0, &tokens(&format!("{SYSTEM}good evening")), Trust::All).unwrap();
        assert_eq!(hit, Hit { prefix: SeqId(1), len: SYSTEM.len() + 5, keep: true });
        let hit = prefixes.find(0, &tokens(&format!("{SYSTEM}hello there, you")), Trust::All).unwrap();
        assert_eq!(hit, Hit { prefix: SeqId(0), len: SYSTEM.len() + 11, keep: false });
        let hit = prefixes.find(0, &tokens(&format!("{SYSTEM}zzz")), Trust::All).unwrap();
        assert_eq!(hit.len, SYSTEM.len());
        assert_eq!(
            prefixes.find(0, &tokens("you are a cat and nothing"), Trust::All),
            None,
            "too short to matter"
        );
    }

    #[test]
    fn the_last_token_of_a_prompt_is_never_taken_from_a_prefix() {
        let hit = filled().find(0, &tokens(&format!("{SYSTEM}hello there")), Trust::All).unwrap();
        assert_eq!(hit, Hit { prefix: SeqId(0), len: SYSTEM.len() + 10, keep: true });
    }

    #[test]
    fn nobody_sees_the_prefixes_of_another_namespace() {
        let mut prefixes = filled();
        assert_eq!(prefixes.find(1, &tokens(&format!("{SYSTEM}hello there, you")), Trust::All), None);
        assert!(prefixes.insert(1, tokens(&format!("{SYSTEM}hello there")), SeqId(9)).is_empty());
        assert_eq!(
            prefixes.find(1, &tokens(&format!("{SYSTEM}hello there, you")), Trust::All).unwrap().prefix,
            SeqId(9)
        );
        assert_eq!(
            prefixes.find(0, &tokens(&format!("{SYSTEM}hello there, you")), Trust::All).unwrap().prefix,
            SeqId(0)
        );
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
        let mut prefixes = Prefixes::new(60, Cuts::Anywhere, false);
        let text = |letter: char| tokens(&letter.to_string().repeat(20));
        for (seq, letter) in ['a', 'b', 'c'].into_iter().enumerate() {
            assert!(prefixes.insert(0, text(letter), SeqId(seq as u64)).is_empty());
        }
        let ask = |letter: char| [text(letter), tokens("!")].concat();
        // What went first makes all that is used afterwards worth more.
        assert_eq!(prefixes.insert(0, text('d'), SeqId(3)), [SeqId(0)]);
        prefixes.find(0, &ask('b'), Trust::All).unwrap();
        assert_eq!(prefixes.insert(0, text('e'), SeqId(4)), [SeqId(2)]);
        assert!(prefixes.find(0, &ask('b'), Trust::All).is_some());
        assert_eq!(prefixes.insert(0, vec![Token(1); 61], SeqId(5)), [SeqId(5)], "larger than the budget");
    }

    fn windowed(are_saved: bool) -> Prefixes<SeqId> {
        Prefixes::new(1000, Cuts::InSlots { window: 20 }, are_saved)
    }

    fn hit(prefix: u64, len: usize, keep: bool) -> Option<Hit<SeqId>> {
        Some(Hit { prefix: SeqId(prefix), len, keep })
    }

    #[test]
    fn what_cannot_be_cut_any_more_serves_whole_and_stays() {
        let mut prefixes = windowed(false);
        let (asked, other) = (tokens(&format!("{SYSTEM}good evening")), tokens(&format!("{SYSTEM}good day")));
        let known = tokens(&format!("{SYSTEM}good morning"));
        prefixes.insert(0, known.clone(), SeqId(0));
        let shared = SYSTEM.len() + 5;
        assert_eq!(prefixes.find(0, &asked, Trust::All), hit(0, shared, true));
        assert_eq!(prefixes.find(0, &asked, Trust::Whole), None, "it would have to be cut");
        assert_eq!(prefixes.find(0, &asked, Trust::Nothing), None);
        // A stage had saved it.
        assert!(prefixes.mark_whole(SeqId(0), shared));
        assert!(!prefixes.mark_whole(SeqId(0), shared), "so it is lost");
        assert_eq!(prefixes.find(0, &other, Trust::All), None);
        let longer = [&known[..], &tokens(", all")].concat();
        assert_eq!(prefixes.find(0, &longer, Trust::All), hit(0, known.len(), false));
        assert!(!prefixes.mark_whole(SeqId(0), known.len()), "not even whole");
        // Short ones are saved so that they can be cut.
        prefixes.insert(1, tokens("a short one, saved"), SeqId(1));
        assert!(!prefixes.mark_whole(SeqId(1), 17));
    }

    #[test]
    fn the_beginning_of_several_texts_stays_when_longer_ones_come() {
        let mut prefixes = windowed(false);
        let text = |tail: &str| tokens(&format!("{SYSTEM}{tail}"));
        prefixes.insert(0, text("good morning"), SeqId(0));
        assert!(!prefixes.mark_cut(SeqId(0), SYSTEM.len()));
        assert_eq!(prefixes.size(), (SYSTEM.len() as u64, 1), "the rest is gone");
        assert_eq!(
            prefixes.find(0, &text("hello there"), Trust::All),
            hit(0, SYSTEM.len(), true),
            "for others, too"
        );
        assert!(prefixes.insert(0, text("hello there"), SeqId(1)).is_empty());
        assert_eq!(prefixes.find(0, &text("and you?"), Trust::All), hit(0, SYSTEM.len(), true));
        // To cut one costs its end, which must be worth it.
        assert_eq!(prefixes.find(0, &text("hello then"), Trust::All), hit(0, SYSTEM.len(), true));
        prefixes.insert(0, text("a very long question of many words?"), SeqId(2));
        let asked = text("a very long question of many wishes?");
        assert_eq!(prefixes.find(0, &asked, Trust::All), hit(2, SYSTEM.len() + 30, true));
        assert_eq!(prefixes.find(0, &asked, Trust::Whole), hit(0, SYSTEM.len(), true));
        // A second one like it is one too many.
        assert!(prefixes.mark_cut(SeqId(1), SYSTEM.len()));
        assert_eq!(prefixes.size().1, 2);
        // What can be cut anywhere stays as it is.
        let mut prefixes = filled();
        assert!(!prefixes.mark_cut(SeqId(1), SYSTEM.len()));
        assert_eq!(prefixes.size().1, 3);
    }

    #[test]
    fn of_what_is_saved_a_longer_one_replaces_no_shorter_one_and_what_all_share_is_never_cut() {
        for (mut prefixes, space) in [(windowed(true), 0), (windowed(false), SHARED)] {
            let text = |tail: &str| tokens(&format!("{SYSTEM}{tail}"));
            prefixes.insert(space, text(""), SeqId(0));
            assert!(prefixes.insert(space, text("hello there"), SeqId(1)).is_empty());
            assert_eq!(prefixes.find(space, &text("hello then"), Trust::All), hit(0, SYSTEM.len(), false));
            assert!(
                prefixes.insert(space, text("hello"), SeqId(2)).is_empty(),
                "the longer one is not cut for it"
            );
            assert_eq!(
                prefixes.find(space, &text("hello then"), Trust::All),
                hit(2, SYSTEM.len() + 5, false)
            );
        }
    }

    proptest! {
        #[test]
        fn the_two_neighbours_are_as_good_as_all(
            kept in prop::collection::vec((0..2_u64, prop::collection::vec(0..3, 0..40)), 0..20),
            prompt in prop::collection::vec(0..3, 1..40),
            namespace in 0..2_u64,
        ) {
            let text = |ids: &[i32]| -> Vec<Token> { ids.iter().copied().map(Token).collect() };
            let mut prefixes = Prefixes::new(300, Cuts::Anywhere, false);
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
            let found = prefixes.find(namespace, &prompt, Trust::All).map(|hit| hit.len);
            prop_assert_eq!(found, best.filter(|&len| len >= LEAST));
        }
    }
}
