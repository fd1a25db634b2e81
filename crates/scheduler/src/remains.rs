//! What is left on the stages of a line that was lost, and is not whole any more.
//!
//! Owns: the prefixes of which only the later stages still hold their part, and the ids of those that the next line should
//! forget. Does not know the stages: which of them hold everything is said when the next line is up.

use std::collections::BTreeSet;

use protocol::{Held, Position, SeqId, Token};

use crate::prefixes::{Hit, Namespace, Prefixes, Trust};

/// See the module.
#[derive(Debug)]
pub(crate) struct Remains {
    /// Stages at the beginning of the line that have lost something of them.
    lost_by: u16,
    prefixes: Prefixes<SeqId>,
    /// What stages may hold although nobody will ask for it.
    unclaimed: BTreeSet<SeqId>,
}

impl Remains {
    /// None. `prefixes` sets the budget.
    pub(crate) const fn new(prefixes: Prefixes<SeqId>) -> Self {
        Self { lost_by: 0, prefixes, unclaimed: BTreeSet::new() }
    }

    /// A sequence was on the line, or a prefix that is not wanted any more, when that was lost.
    pub(crate) fn left(&mut self, seq: SeqId) {
        self.unclaimed.insert(seq);
    }

    /// A sequence has not come as far again as the later stages are, by what it was opened with.
    pub(crate) fn still_held(&mut self, namespace: Namespace, tokens: Vec<Token>, seq: SeqId) {
        let gone = self.prefixes.insert(namespace, tokens, seq);
        self.unclaimed.extend(gone);
    }

    /// The next line is there, and the first `lost_by` of its `n_stages` have lost something: what was whole is not any more.
    pub(crate) fn split(&mut self, whole: &mut Prefixes<SeqId>, lost_by: u16, n_stages: u16) {
        if lost_by > 0 {
            self.lost_by = self.lost_by.max(lost_by);
            for (namespace, tokens, seq) in whole.drain() {
                self.still_held(namespace, tokens, seq);
            }
        }
        if self.lost_by >= n_stages {
            self.unclaimed.extend(self.prefixes.drain().into_iter().map(|(_, _, seq)| seq));
        }
        if self.prefixes.size().1 == 0 {
            self.lost_by = 0;
        }
    }

    /// What the next line should forget: once, and nothing that is among the `whole`.
    pub(crate) fn take_unclaimed(&mut self, whole: &Prefixes<SeqId>) -> Vec<SeqId> {
        let is_known = |&seq: &SeqId| whole.tokens(seq).is_some() || self.prefixes.tokens(seq).is_some();
        let unclaimed = std::mem::take(&mut self.unclaimed);
        unclaimed.into_iter().filter(|seq| !is_known(seq)).collect()
    }

    /// Stages at the beginning of the line that must compute again what the others hold.
    pub(crate) const fn lost_by(&self) -> u16 {
        self.lost_by
    }

    /// What shares most tokens with a text.
    pub(crate) fn find(&mut self, namespace: Namespace, text: &[Token]) -> Option<Hit<SeqId>> {
        self.prefixes.find(namespace, text, Trust::All)
    }

    /// For a sequence that takes over what was found. `taken` says how many of the tokens shared with a prefix of so many it
    /// begins with: at least one.
    pub(crate) fn take(&mut self, hit: Hit<SeqId>, taken: impl Fn(usize, usize) -> usize) -> Held {
        let Hit { prefix, len, .. } = hit;
        let whole = self.prefixes.tokens(prefix).map_or(len, |(_, tokens)| tokens.len());
        self.prefixes.remove(prefix);
        Held { prefix, len: Position(taken(len, whole) as u32), lost_by: self.lost_by }
    }

    /// Nothing is left of any of them.
    pub(crate) fn clear(&mut self) {
        self.prefixes.clear();
        self.unclaimed.clear();
        self.lost_by = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Cuts;

    fn prefixes() -> Prefixes<SeqId> {
        Prefixes::new(1000, Cuts::Anywhere, false)
    }

    fn text(n: i32) -> Vec<Token> {
        (0..40).map(|at| Token(100 * n + at)).collect()
    }

    fn whole(of: &[i32]) -> Prefixes<SeqId> {
        let mut prefixes = prefixes();
        for &n in of {
            assert!(prefixes.insert(0, text(n), SeqId(n as u64)).is_empty());
        }
        prefixes
    }

    fn take(remains: &mut Remains, n: i32) -> Option<(u32, u16)> {
        let hit = remains.find(0, &text(n))?;
        let held = remains.take(hit, |len, _| len);
        assert_eq!(held.prefix, SeqId(n as u64));
        Some((held.len.0, held.lost_by))
    }

    #[test]
    fn what_was_whole_is_held_by_those_behind_the_last_that_lost_something() {
        let mut remains = Remains::new(prefixes());
        remains.split(&mut whole(&[1, 2]), 1, 4);
        assert_eq!(take(&mut remains, 1), Some((39, 1)), "the last token is never taken");
        assert_eq!(take(&mut remains, 1), None, "once");
        // What is whole stays so, and what is not stays as it is, when nothing is lost.
        let mut after = whole(&[3]);
        remains.split(&mut after, 0, 4);
        assert!(after.tokens(SeqId(3)).is_some());
        remains.split(&mut after, 2, 4);
        assert_eq!((take(&mut remains, 2), take(&mut remains, 3)), (Some((39, 2)), Some((39, 2))));
    }

    #[test]
    fn if_the_tail_has_lost_something_nothing_is_held_and_all_shall_be_forgotten() {
        let mut remains = Remains::new(prefixes());
        remains.left(SeqId(7));
        remains.split(&mut whole(&[1]), 1, 3);
        let mut after = whole(&[2]);
        remains.split(&mut after, 3, 3);
        assert_eq!((take(&mut remains, 1), take(&mut remains, 2)), (None, None));
        assert_eq!(remains.take_unclaimed(&after), [SeqId(1), SeqId(2), SeqId(7)]);
        assert!(remains.take_unclaimed(&after).is_empty(), "once");
        // How far that loss went does not matter to what comes later.
        remains.split(&mut whole(&[3]), 1, 3);
        assert_eq!(take(&mut remains, 3), Some((39, 1)));
    }

    #[test]
    fn who_runs_when_the_line_is_lost_and_leaves_no_prefix_is_forgotten() {
        let mut remains = Remains::new(prefixes());
        (1..=3).for_each(|seq| remains.left(SeqId(seq)));
        let mut after = whole(&[1]);
        remains.still_held(0, text(2), SeqId(2));
        remains.split(&mut after, 0, 3);
        assert_eq!(remains.take_unclaimed(&after), [SeqId(3)]);
    }
}
