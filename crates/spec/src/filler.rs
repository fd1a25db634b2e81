//! `filler`: the last token again and again, to give a window its rows where only its time is of interest.

use crate::proposer::{Answer, Ask, Block, Prior, Proposer, RUNS};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Filler;

impl Proposer for Filler {
    fn name(&self) -> &'static str {
        "filler"
    }

    fn prior(&self) -> Prior {
        [0.99; RUNS.len() + 1]
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        match ask.tokens.last() {
            Some(&last) if n > 0 => Answer::Guesses(Block { tokens: vec![last; n], ..Block::default() }),
            _ => Answer::Nothing,
        }
    }
}
