//! What is wanted of one request's prompt, and how much of it has been found and told.
//!
//! Owns: which part must come next, and that a caller hears each once, also of a prompt that is computed again.

use protocol::{Found, OfPrompt, Pooling, Position, PromptPart, Token};

use crate::{Config, ReportFault};

/// Logits of one chunk at most: the tail keeps them for every row, 64 MiB of them.
const MOST_LOGITS: u32 = 16 << 20;
/// Rows of a chunk that are always allowed: fewer would read the weights too often.
const LEAST_ROWS: u32 = 16;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    what: OfPrompt,
    n_prompt: u32,
    /// Tokens or rows that the caller has heard, this time or when the prompt was computed before.
    told: u32,
    /// Tokens or rows that have come from this line.
    found: u32,
}

impl Wanted {
    /// None if all has been told already.
    pub(crate) fn new(what: OfPrompt, n_prompt: u32, told: u32) -> Option<Self> {
        let wanted = Self { what, n_prompt, told, found: 0 };
        (told < wanted.due(Position(n_prompt))).then_some(wanted)
    }

    pub(crate) const fn what(&self) -> OfPrompt {
        self.what
    }

    pub(crate) const fn told(&self) -> u32 {
        self.told
    }

    /// Rows of a chunk at most.
    pub(crate) fn most_rows(config: &Config) -> usize {
        (MOST_LOGITS / config.n_vocab.max(1)).max(LEAST_ROWS) as usize
    }

    /// The token behind a chunk that ends at `end` of the text, if the tail must know it.
    pub(crate) fn follows(&self, text: &[Token], end: usize) -> Option<Token> {
        text.get(end).copied().filter(|_| matches!(self.what, OfPrompt::Logprobs { .. }))
    }

    /// Tokens or rows that must have been found when the prompt has been computed up to `next`.
    const fn due(&self, next: Position) -> u32 {
        let next = next.0;
        match self.what {
            // The first token is predicted by nothing.
            OfPrompt::Logprobs { .. } if next < self.n_prompt => next,
            OfPrompt::Logprobs { .. } => self.n_prompt - 1,
            OfPrompt::Embedding(Pooling::None) => next,
            OfPrompt::Embedding(_) if next < self.n_prompt => 0,
            OfPrompt::Embedding(_) => 1,
        }
    }

    /// A part has come; returns what of it is new to the caller.
    pub(crate) fn hear(&mut self, part: PromptPart) -> Result<Option<Found>, ReportFault> {
        let PromptPart { seq, base, found } = part;
        let n_found = found.len() as u32;
        let first = match (self.what, &found) {
            (OfPrompt::Logprobs { .. }, Found::Logprobs(_)) => self.found + 1,
            (OfPrompt::Embedding(_), Found::Rows(_)) => self.found,
            _ => return Err(ReportFault::OfPrompt { seq, base, n_found, expected: self.found }),
        };
        if base.0 != first || self.found + n_found > self.due(Position(self.n_prompt)) {
            return Err(ReportFault::OfPrompt { seq, base, n_found, expected: first });
        }
        let n_known = self.told.saturating_sub(self.found);
        self.found += n_found;
        self.told = self.told.max(self.found);
        let new = found.skip(n_known as usize);
        Ok((!new.is_empty()).then_some(new))
    }

    /// Whether everything has come that a prompt computed up to `next` gives.
    pub(crate) const fn is_up_to(&self, next: Position) -> bool {
        self.found == self.due(next)
    }
}
