//! `unigram`: the text's most frequent token, behind a token that stands in it for the first time.
//!
//! Nothing has followed such a token before, so that sources that look for earlier places have no guess there. It is
//! the escape to order 0 of prediction by partial matching (Cleary and Witten 1984). In prose it is right about once in
//! ten times (a comma behind a new word), which is worth a row where the way around the line is long; where it is not,
//! its measured agreement says so. Guesses stand directly behind committed tokens only: behind other guesses they would
//! hardly ever be reached.

use std::collections::BTreeMap;

use protocol::Token;

use crate::proposer::{Answer, Ask, Block, Prior, Proposer, RUNS, Trust};

/// Measured on prose and code: between 2 and 14 of a hundred are right.
const PRIOR: Prior = [0.92; RUNS.len() + 1];
/// Every guess is the first of its kind.
const RUN: u32 = 0;

/// See the module. Takes O(log n) per committed token; its memory is bounded by the vocabulary.
#[derive(Clone, Debug, Default)]
pub struct Unigram {
    counts: BTreeMap<Token, u32>,
    /// The most frequent token; of several, the one that was so first.
    first: Option<Token>,
}

impl Unigram {
    /// A source that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn count(&self, token: Token) -> u32 {
        self.counts.get(&token).copied().unwrap_or(0)
    }

    /// What follows `committed`, if its last token is new.
    fn guess(&self, committed: &[Token]) -> Option<Token> {
        let &last = committed.last()?;
        self.first.filter(|&first| self.count(last) == 1 && first != last)
    }
}

impl Proposer for Unigram {
    fn name(&self) -> &'static str {
        "unigram"
    }

    fn prior(&self) -> Prior {
        PRIOR
    }

    fn begin(&mut self, prompt: &[Token]) {
        *self = Self::new();
        (1..=prompt.len()).for_each(|n| self.commit(&prompt[..n]));
    }

    fn commit(&mut self, committed: &[Token]) {
        let Some(&token) = committed.last() else { return };
        *self.counts.entry(token).or_insert(0) += 1;
        if self.first.is_none_or(|first| self.count(token) > self.count(first)) {
            self.first = Some(token);
        }
    }

    fn shadow(&self, committed: &[Token]) -> Option<(Token, Trust)> {
        self.guess(committed).map(|token| (token, Trust::Run(RUN)))
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        match self.guess(&ask.tokens[..ask.n_committed]) {
            Some(token) if n > 0 && ask.tokens.len() == ask.n_committed => {
                Answer::Guesses(Block { tokens: vec![token], run: RUN, ..Block::default() })
            }
            _ => Answer::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Epoch;

    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(i32::from(byte))).collect()
    }

    /// What follows `committed` and the guesses `sent`.
    fn guess(committed: &str, sent: &str, n: usize) -> Option<char> {
        let mut source = Unigram::new();
        source.begin(&tokens(committed));
        let (all, n_committed) = (tokens(&[committed, sent].concat()), committed.len());
        let ask = Ask { tokens: &all, n_committed, n_sent: all.len(), epoch: Epoch(0) };
        let shadow = source.shadow(&all[..n_committed]).map(|(token, _)| token);
        match source.propose(&ask, n) {
            Answer::Guesses(block) => {
                assert_eq!(block.tokens, Vec::from_iter(shadow), "the shadow says the same");
                Some(block.tokens[0].0 as u8 as char)
            }
            _ => None,
        }
    }

    #[test]
    fn behind_a_new_token_the_most_frequent_one_is_guessed() {
        assert_eq!(guess("a,b,c", "", 5), Some(','));
        assert_eq!(guess("abbc", "", 1), Some('b'));
        assert_eq!(guess("ab", "", 1), Some('a'), "of equals the first");
    }

    #[test]
    fn behind_a_known_token_and_behind_guesses_nothing_is() {
        assert_eq!(guess("a,b,a", "", 1), None);
        assert_eq!(guess("a,b,c", "d", 1), None);
        assert_eq!(guess("a,b,c", "", 0), None);
        assert_eq!(guess("a", "", 1), None, "a token does not follow itself");
        assert_eq!(guess("", "", 1), None);
    }

    #[test]
    fn a_sequence_that_goes_on_elsewhere_counts_its_prompt_once() {
        let mut source = Unigram::new();
        source.begin(&tokens("xx,"));
        source.begin(&tokens("a,b,c"));
        assert_eq!(source.shadow(&tokens("a,b,c")).map(|(token, _)| token), tokens(",").pop());
    }
}
