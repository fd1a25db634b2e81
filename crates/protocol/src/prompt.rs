//! What a prompt itself gives, besides what follows it: how likely its tokens are, or what the model makes of it.

use crate::{Position, SeqId, TokenLogprobs};

/// What is wanted of a prompt's own rows. They are computed, so the sequence begins with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfPrompt {
    /// Log-probabilities of its tokens but the first, which nothing comes before.
    Logprobs {
        /// Alternatives for each, at most [`MAX_TOP_LOGPROBS`](crate::limits::MAX_TOP_LOGPROBS).
        top: u8,
    },
    /// The hidden rows behind the model's last norm. Nothing is sampled: `Open.limit` is where the prompt ends.
    Embedding(Pooling),
}

/// What becomes of a text's hidden rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Nothing: there is one for each token.
    None,
    /// Their mean.
    #[default]
    Mean,
    /// The first.
    First,
    /// The last.
    Last,
}

/// A part of what is wanted of a prompt. The parts come in the order of its tokens, each once.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptPart {
    /// Whose prompt.
    pub seq: SeqId,
    /// The first position that it is about; 0 for pooled rows, which are about all.
    pub base: Position,
    /// What was found.
    pub found: Found,
}

/// What was found of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// One for each token in turn; 1 to [`MAX_ROWS`](crate::limits::MAX_ROWS).
    Logprobs(Vec<TokenLogprobs>),
    /// Hidden rows: one for each token in turn, or the pooled one.
    Rows(HiddenRows),
}

/// Hidden rows as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenRows {
    /// Values in each, 1 to [`MAX_ROW_WIDTH`](crate::limits::MAX_ROW_WIDTH).
    pub width: u32,
    /// One row after another, at least one; at most [`MAX_PART_VALUES`](crate::limits::MAX_PART_VALUES), all finite.
    pub values: Vec<f32>,
}

impl Found {
    /// Tokens, or rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Logprobs(logprobs) => logprobs.len(),
            Self::Rows(rows) => rows.values.len() / rows.width.max(1) as usize,
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Without the first `n` tokens or rows.
    #[must_use]
    pub fn skip(mut self, n: usize) -> Self {
        let n = n.min(self.len());
        match &mut self {
            Self::Logprobs(logprobs) => _ = logprobs.drain(..n),
            Self::Rows(rows) => _ = rows.values.drain(..n * rows.width as usize),
        }
        self
    }
}
