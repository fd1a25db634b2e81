//! `predicted`: the answer follows a text that the client expects, but for a few edits.
//!
//! It keeps its place in that text. After a token that differs it guesses that one token was replaced, and looks
//! around for a place where the last tokens fit: something was inserted, left out or moved.

use protocol::Token;

use crate::follow::{Ahead, Follow, copy};
use crate::proposer::{Answer, Ask, Prior, Proposer, Trust};

/// The client has reason to expect the text; still an edit is more likely where the last one was.
const PRIOR: Prior = [0.25, 0.2, 0.15, 0.1, 0.08, 0.05, 0.03, 0.02];
/// How far from its place it looks, to either side: some thirty lines of code.
const REACH: usize = 512;
/// Tokens by which places are compared.
const BACK: usize = 8;
/// Fewer tokens in a row fit by chance, unless the place lies just ahead.
const ENOUGH: usize = 2;
/// Tokens left out at most for a single token to mark the place.
const NEAR: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
pub struct Predicted {
    text: Vec<Token>,
    n_prompt: usize,
    here: Follow,
    ahead: Option<Ahead<Follow>>,
}

impl Predicted {
    /// A source that expects the answer to be `text`.
    #[must_use]
    pub const fn new(text: Vec<Token>) -> Self {
        Self { text, n_prompt: 0, here: Follow { place: 0, run: 0 }, ahead: None }
    }

    /// Where it goes on after the last of `answer`.
    fn step(&self, follow: Follow, answer: &[Token]) -> Follow {
        let Some(&token) = answer.last() else { return follow };
        if let Some(on) = follow.step(&self.text, token) {
            return on;
        }
        let expected = follow.place;
        let low = expected.saturating_sub(REACH);
        let high = (expected + REACH).min(self.text.len());
        let fitting = |place: usize| {
            let before = self.text[..place].iter().rev();
            before.zip(answer.iter().rev()).take(BACK).take_while(|(a, b)| a == b).count()
        };
        // The longest fit; among equals the nearest, and ahead rather than back.
        let best = (low + 1..=high)
            .filter(|&place| self.text[place - 1] == token)
            .map(|place| (fitting(place), place))
            .min_by_key(|&(fits, place)| {
                (BACK - fits, place.abs_diff(expected + 1), usize::from(place <= expected))
            });
        match best {
            Some((fits, place)) if fits >= ENOUGH || (1..=NEAR).contains(&place.saturating_sub(expected)) => {
                Follow::new(place, fits as u32)
            }
            _ => Follow::new((expected + 1).min(self.text.len()), 0),
        }
    }
}

impl Proposer for Predicted {
    fn name(&self) -> &'static str {
        "predicted"
    }

    fn prior(&self) -> Prior {
        PRIOR
    }

    fn begin(&mut self, prompt: &[Token]) {
        self.n_prompt = prompt.len();
    }

    fn commit(&mut self, committed: &[Token]) {
        self.here = self.step(self.here, &committed[self.n_prompt.min(committed.len())..]);
    }

    fn shadow(&self, _committed: &[Token]) -> Option<(Token, Trust)> {
        self.text.get(self.here.place).map(|&token| (token, Trust::Run(self.here.run)))
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        let (ahead, follow) = Ahead::reach(self.ahead, self.here, ask, |follow, tokens| {
            self.step(follow, &tokens[self.n_prompt.min(tokens.len())..])
        });
        self.ahead = Some(ahead);
        let n = n.min(self.text.len().saturating_sub(follow.place));
        if n == 0 { Answer::Nothing } else { Answer::Guesses(copy(&self.text, follow, n)) }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Epoch;

    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(i32::from(byte))).collect()
    }

    const TEXT: &str = "let a = one; let b = two; let c = six; done";

    /// What it expects after `answer` (and after the guesses `sent`).
    fn expects(answer: &str, sent: &str, n: usize) -> String {
        let prompt = tokens("prompt");
        let mut source = Predicted::new(tokens(TEXT));
        source.begin(&prompt);
        let answer = tokens(answer);
        let committed = [&prompt[..], &answer].concat();
        (prompt.len() + 1..=committed.len()).for_each(|n| source.commit(&committed[..n]));
        let all = [&committed[..], &tokens(sent)].concat();
        let ask = Ask { tokens: &all, n_committed: committed.len(), n_sent: all.len(), epoch: Epoch(0) };
        match source.propose(&ask, n) {
            Answer::Guesses(block) => block.tokens.iter().map(|token| token.0 as u8 as char).collect(),
            answer => format!("{answer:?}"),
        }
    }

    #[test]
    fn the_text_is_followed_from_its_start_to_its_end() {
        assert_eq!(expects("", "", 7), "let a =");
        assert_eq!(expects("let a = ", "", 4), "one;");
        assert_eq!(expects("let a = ", "one;", 6), " let b");
        assert_eq!(expects(TEXT, "", 5), "Nothing");
        assert_eq!(expects(&TEXT[..TEXT.len() - 2], "", 5), "ne");
    }

    #[test]
    fn a_replaced_token_is_stepped_over() {
        assert_eq!(expects("let X", "", 4), " = o");
        assert_eq!(expects("let X =", "", 5), " one;");
    }

    #[test]
    fn after_an_insertion_the_place_is_found_again() {
        assert_eq!(expects("let a = twenty-one;", "", 6), " let b");
        assert_eq!(expects("/* new */ let a", "", 4), " = o");
    }

    #[test]
    fn after_a_deletion_the_place_is_found_again() {
        assert_eq!(expects("let a = one; let c", "", 5), " = si");
        assert_eq!(expects("let a one", "", 3), "; l");
    }

    #[test]
    fn the_nearest_of_equal_places_wins() {
        assert_eq!(expects("let a = 1; let ", "", 4), "b = ");
    }
}
