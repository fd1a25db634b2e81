//! `forced`: what a grammar leaves no choice about, such as the names and punctuation of a JSON object.
//!
//! It follows the grammar over the committed tokens and the guesses behind them, and takes back what was contradicted.
//! The tail follows the same grammar with the same vocabulary, so that what is forced here is forced there. For the same
//! reason it knows which guesses of other sources cannot come true.

use protocol::Token;
use spec::{Answer, Ask, Block, Prior, Proposer, RUNS};

use crate::constraint::Constraint;

/// Wrong only where the two ends cut a forced text into tokens in different ways.
const PRIOR: Prior = [0.005; RUNS.len() + 1];
/// What is forced needs no record of having been right.
const RUN: u32 = 64;

/// See the module.
#[derive(Debug)]
pub struct Forced {
    constraint: Constraint,
    /// Tokens before the answer, once it has begun.
    n_prompt: Option<usize>,
    /// The tokens of the answer that `constraint` has heard.
    said: Vec<Token>,
    /// It has lost its place and says nothing more.
    is_lost: bool,
}

impl Forced {
    /// A source at the beginning of its grammar.
    #[must_use]
    pub const fn new(constraint: Constraint) -> Self {
        Self { constraint, n_prompt: None, said: Vec::new(), is_lost: false }
    }

    /// Moves to the end of `answer`; whether all of it follows the grammar.
    fn go_to(&mut self, answer: &[Token]) -> bool {
        let common = self.said.iter().zip(answer).take_while(|(a, b)| a == b).count();
        let back = self.said.len() - common;
        if self.is_lost || (back > 0 && !self.constraint.take_back(back)) {
            self.is_lost = true;
            return false;
        }
        self.said.truncate(common);
        self.say(&answer[common..]) == answer.len() - common
    }

    /// Says what may be said of it.
    fn say(&mut self, tokens: &[Token]) -> usize {
        let n = self.constraint.try_say(tokens);
        self.said.extend_from_slice(&tokens[..n]);
        n
    }
}

impl Proposer for Forced {
    fn name(&self) -> &'static str {
        "forced"
    }

    fn prior(&self) -> Prior {
        PRIOR
    }

    fn begin(&mut self, prompt: &[Token]) {
        // An interrupted answer goes on behind what it said, which `said` has.
        self.n_prompt.get_or_insert(prompt.len());
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        if n == 0 || !self.go_to(&ask.tokens[self.n_prompt.unwrap_or(0)..]) {
            return Answer::Nothing;
        }
        let mut tokens = self.constraint.forced();
        tokens.truncate(n);
        if tokens.is_empty() {
            return Answer::Nothing;
        }
        Answer::Guesses(Block { tokens, run: RUN, probabilities: Vec::new() })
    }

    fn allows(&mut self, ask: &Ask<'_>, guesses: &[Token]) -> usize {
        let answer = &ask.tokens[self.n_prompt.unwrap_or(0)..];
        if !self.go_to(answer) {
            // Nothing that follows can come true, unless the place was lost.
            return if self.is_lost { guesses.len() } else { 0 };
        }
        let mut n = 0;
        while n < guesses.len() {
            let forced = self.constraint.forced();
            let expected = if forced.is_empty() { &guesses[n..=n] } else { forced.as_slice() };
            let same = expected.iter().zip(&guesses[n..]).take_while(|(a, b)| a == b).count();
            let said = self.say(&guesses[n..n + same]);
            n += said;
            if said < expected.len() {
                break;
            }
        }
        n
    }
}
