//! Where guesses come from: the trait that every source implements.
//!
//! A source is asked, answers at once, and may have nothing yet. It is told every committed token, so it needs no
//! access to the pipeline. Drafts that are made elsewhere (by a thread, or by the tail, riding on a verdict) reach
//! their source through [`Proposer::handle_draft`] and are given out when the chain asks next.

use std::fmt;

use protocol::{Epoch, Position, Token};

use crate::tally::DraftTally;

/// What a sequence has so far, when it asks for guesses.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The committed tokens, then the guesses sent, then those of other sources that may be sent before the answer.
    pub tokens: &'a [Token],
    /// How many of them are committed.
    pub n_committed: usize,
    /// How many of them were sent or are committed. Within an epoch these never change, they only become more.
    pub n_sent: usize,
    /// The open epoch.
    pub epoch: Epoch,
}

/// Guesses that follow each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// In order.
    pub tokens: Vec<Token>,
    /// How many tokens the source has been right in a row before the first of them, as far as it can tell; each
    /// following guess counts one more. Agreement is measured by it.
    pub run: u32,
    /// The source's own probabilities, one per token, or none at all. Agreement is then measured by them instead.
    pub probabilities: Vec<f32>,
}

/// What a source thinks of one of its guesses; agreement is measured by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trust {
    /// It has been right so many times in a row before.
    Run(u32),
    /// It gives the guess this probability, 0 to 1.
    Probability(f32),
}

/// What a source says.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// At least one guess.
    Guesses(Block),
    /// Something is being worked out and will come with [`Proposer::handle_draft`].
    NotYet,
    /// The same, and it is certain to come soon: where nothing is under way it is worth waiting for.
    Promised,
    /// No idea.
    Nothing,
}

/// Guesses made elsewhere, for the positions from `base` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The epoch in which they were asked for; what belongs to an older one is out of date.
    pub epoch: Epoch,
    /// The position of the first one.
    pub base: Position,
    /// The guesses.
    pub block: Block,
}

/// Lengths of runs that are told apart: 0 or 1, 2, 3, up to 5, 8, 16, 32, and more.
pub const RUNS: [u32; 7] = [1, 2, 3, 5, 8, 16, 32];

/// Share of guesses expected to be wrong, by length of run (see [`RUNS`]), before anything was measured.
pub type Prior = [f64; RUNS.len() + 1];

/// A source of guesses for one sequence. No method may block.
pub trait Proposer: fmt::Debug + Send {
    /// A short name for people and counters; constant.
    fn name(&self) -> &'static str;

    /// What to expect of it at first.
    fn prior(&self) -> Prior;

    /// The sequence begins with this prompt. Called first; and again if the sequence was interrupted and goes on
    /// elsewhere: its prompt is then all that is certain, and nothing else of what was said before holds.
    fn begin(&mut self, prompt: &[Token]) {
        let _ = prompt;
    }

    /// One more token is certain: the last of `committed`.
    fn commit(&mut self, committed: &[Token]) {
        let _ = committed;
    }

    /// What it would say comes after `committed`, and how much it trusts that; none if it has no idea, or if saying so
    /// costs anything. Sources that answer are scored on every token, whether their guesses are sent or not.
    fn shadow(&self, committed: &[Token]) -> Option<(Token, Trust)> {
        let _ = committed;
        None
    }

    /// Up to `n` guesses of what follows `ask.tokens`. Asking does not mean that they will be sent.
    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer;

    /// How many of these guesses of another source, which follow `ask.tokens`, may come true as far as it can tell.
    fn allows(&mut self, ask: &Ask<'_>, guesses: &[Token]) -> usize {
        let _ = ask;
        guesses.len()
    }

    /// How many tokens the tail shall draft for it behind the next verdict; 0 for none. One more is worth its time if it
    /// comes true with the probability `worth` at least.
    fn wants(&self, worth: f64) -> u8 {
        let _ = worth;
        0
    }

    /// So many of its guesses have been sent.
    fn sent(&mut self, n: usize) {
        let _ = n;
    }

    /// What has become of the drafts that the tail made for it; none if it makes none for it.
    fn drafts(&self) -> Option<&DraftTally> {
        None
    }

    /// The tail has announced a draft of what follows the last committed token; `base` is the position behind that.
    fn promise(&mut self, base: Position) {
        let _ = base;
    }

    /// A draft has come for it. It may be out of date, and tokens in it may have been settled meanwhile.
    fn handle_draft(&mut self, draft: Draft) {
        let _ = draft;
    }
}

/// Which class of [`RUNS`] a run belongs to.
pub(crate) fn run_class(run: u32) -> usize {
    RUNS.iter().position(|&most| run <= most).unwrap_or(RUNS.len())
}
