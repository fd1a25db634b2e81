//! A source that knows the answer and is right as often as it is told to be.

use protocol::Token;
use spec::{Answer, Ask, Block, Prior, Proposer, RUNS, Trust};

use crate::workload::{Agreement, N_VOCAB, mix};

#[derive(Debug)]
pub(crate) struct Oracle {
    answer: Vec<Token>,
    /// Whether it is right about each token of the answer.
    right: Vec<bool>,
    /// For how many tokens before each it has been right.
    runs: Vec<u32>,
    costs: bool,
    n_prompt: usize,
}

impl Oracle {
    pub(crate) fn new(agreement: Agreement, answer: Vec<Token>) -> Self {
        let is_right = |index: usize| {
            let draw = (mix(agreement.seed ^ mix(index as u64)) >> 11) as f64 / (1_u64 << 53) as f64;
            let right =
                agreement.then.filter(|(from, _)| index >= *from).map_or(agreement.right, |(_, right)| right);
            draw < right
        };
        let right: Vec<bool> = (0..answer.len()).map(is_right).collect();
        let runs = right.iter().scan(0, |run, &is_right| {
            let before = *run;
            *run = if is_right { (before + 1).min(MAX_RUN) } else { 0 };
            Some(before)
        });
        Self { runs: runs.collect(), costs: agreement.costs, answer, right, n_prompt: 0 }
    }

    /// What it says comes at this index of the answer, if all before is as in the answer.
    fn guess(&self, index: usize) -> Option<Token> {
        let &truth = self.answer.get(index)?;
        Some(if self.right[index] { truth } else { other(truth) })
    }
}

/// Runs are counted up to here.
const MAX_RUN: u32 = 40;

/// A token that is not this one.
fn other(token: Token) -> Token {
    Token((token.0 + 1) % N_VOCAB as i32)
}

impl Proposer for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn prior(&self) -> Prior {
        [0.4; RUNS.len() + 1]
    }

    fn begin(&mut self, prompt: &[Token]) {
        self.n_prompt = prompt.len();
    }

    fn shadow(&self, committed: &[Token]) -> Option<(Token, Trust)> {
        let index = committed.len() - self.n_prompt;
        let guess = self.guess(index).filter(|_| !self.costs);
        guess.map(|token| (token, Trust::Run(self.runs[index])))
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        let start = ask.tokens.len() - self.n_prompt;
        let in_flight = ask.n_committed - self.n_prompt..start.min(self.answer.len());
        let mut is_right = in_flight.into_iter().all(|i| ask.tokens[self.n_prompt + i] == self.answer[i]);
        let mut tokens = Vec::new();
        for index in start..start + n {
            let (Some(guess), Some(&truth)) = (self.guess(index), self.answer.get(index)) else { break };
            // Behind a wrong guess nothing is right.
            let token = if is_right { guess } else { other(truth) };
            is_right = is_right && token == truth;
            tokens.push(token);
        }
        if tokens.is_empty() {
            return Answer::Nothing;
        }
        Answer::Guesses(Block { tokens, run: self.runs[start], probabilities: Vec::new() })
    }
}
