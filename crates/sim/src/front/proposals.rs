//! Guesses of every kind, from the best to the most harmful.

use protocol::{Epoch, Position, Token};
use spec::{Answer, Ask, Block, Prior};

use crate::random::Random;

/// Where one proposal comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The true continuation.
    Right,
    /// Anything but the true continuation, from the first token on.
    Wrong,
    /// Each token is true or not.
    Mixed,
    /// What was rejected last at these positions.
    Rejected,
    /// Nothing but a token that ends the text.
    End,
    /// True tokens, then one that is not in the vocabulary.
    Unknown,
    /// Nothing yet.
    Late,
}

/// Good guesses weigh more, so that windows that follow a live one are common.
const SOURCES: [Source; 10] = [
    Source::Right,
    Source::Right,
    Source::Right,
    Source::Mixed,
    Source::Mixed,
    Source::Wrong,
    Source::Rejected,
    Source::End,
    Source::Unknown,
    Source::Late,
];

/// Proposes for one sequence.
#[derive(Debug)]
pub(crate) struct Proposer {
    random: Random,
    n_vocab: u32,
    end_token: Token,
    /// The sequence's one source, or any of them for each proposal.
    habit: Option<Source>,
    /// The tokens of the last epoch that was contradicted, prompt included.
    rejected: Vec<Token>,
}

impl Proposer {
    pub(crate) fn new(mut random: Random, n_vocab: u32, end_token: Token) -> Self {
        let habit = random.percent(50).then(|| random.pick(&SOURCES));
        Self { random, n_vocab, end_token, habit, rejected: Vec::new() }
    }

    /// The tokens that were sent when a verdict contradicted them.
    pub(crate) fn learn(&mut self, rejected: Vec<Token>) {
        self.rejected = rejected;
    }

    /// Up to `n` tokens from `at` on; `truth` holds the true ones from there on, as far as there are any.
    pub(crate) fn propose(&mut self, at: Position, n: usize, truth: &[Token]) -> Vec<Token> {
        let source = self.habit.unwrap_or_else(|| self.random.pick(&SOURCES));
        let n = self.random.between(0, n as u32) as usize;
        match source {
            Source::Late => Vec::new(),
            Source::End => vec![self.end_token; n],
            Source::Rejected => self.rejected.iter().skip(at.0 as usize).take(n).copied().collect(),
            Source::Right | Source::Wrong | Source::Mixed => {
                (0..n).map(|i| self.token(source, truth.get(i))).collect()
            }
            Source::Unknown => {
                let mut tokens: Vec<_> = truth.iter().take(n).copied().collect();
                let beyond = Token(self.n_vocab.cast_signed());
                tokens.push(self.random.pick(&[Token(-1), beyond, Token(i32::MAX), Token(i32::MIN)]));
                tokens
            }
        }
    }

    fn token(&mut self, source: Source, truth: Option<&Token>) -> Token {
        let n_vocab = self.n_vocab.cast_signed();
        let Some(&truth) = truth else {
            return Token(self.random.between(0, self.n_vocab - 1).cast_signed());
        };
        let is_right = match source {
            Source::Right => true,
            Source::Wrong => false,
            _ => self.random.percent(85),
        };
        if is_right { truth } else { Token((truth.0 + 1) % n_vocab) }
    }
}

/// The same guesses as a source in a chain, for a sequence whose answer is known. It may repeat what was rejected, end
/// every text, or speak of tokens that do not exist.
#[derive(Debug)]
pub(crate) struct Adversary {
    proposer: Proposer,
    n_prompt: usize,
    truth: Vec<Token>,
    epoch: Epoch,
    last: Vec<Token>,
}

impl Adversary {
    pub(crate) fn new(proposer: Proposer, truth: Vec<Token>) -> Self {
        Self { proposer, n_prompt: 0, truth, epoch: Epoch(0), last: Vec::new() }
    }
}

impl spec::Proposer for Adversary {
    fn name(&self) -> &'static str {
        "adversary"
    }

    /// It praises itself, so that it is listened to.
    fn prior(&self) -> Prior {
        [0.0; spec::RUNS.len() + 1]
    }

    fn begin(&mut self, prompt: &[Token]) {
        self.n_prompt = prompt.len();
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        if ask.epoch > self.epoch {
            self.epoch = ask.epoch;
            self.proposer.learn(std::mem::take(&mut self.last));
        }
        let at = ask.tokens.len();
        let ahead = self.truth.get(at - self.n_prompt..).unwrap_or(&[]);
        let tokens = self.proposer.propose(Position(at as u32), n, ahead);
        self.last = [ask.tokens, &tokens].concat();
        if tokens.is_empty() {
            Answer::NotYet
        } else {
            Answer::Guesses(Block { tokens, run: 0, probabilities: Vec::new() })
        }
    }
}
