//! What a prompt itself should give, from decoding one token after another.

use protocol::{Found, OfPrompt, Pooling, Token, TokenLogprobs};
use stage::logprobs;

use crate::toy::{Model, ROW_WIDTH, Walk, unfold};

/// What was found of a prompt, put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    logprobs: Vec<TokenLogprobs>,
    /// Hidden rows, one after another.
    values: Vec<f32>,
}

impl Told {
    /// All that should be told of a prompt.
    pub(crate) fn expected(model: &Model, prompt: &[Token], wanted: OfPrompt) -> Self {
        let mut walk = Walk::new(model);
        let rows: Vec<u64> = prompt.iter().map(|&token| walk.step(token)).collect();
        let mut told = Self::default();
        let pooling = match wanted {
            OfPrompt::Logprobs { top } => {
                let scored = rows.iter().zip(&prompt[1..]);
                let logits = |row| model.logits(row).collect::<Vec<_>>();
                told.logprobs = scored.map(|(&row, &token)| logprobs::of(&logits(row), token, top)).collect();
                return told;
            }
            OfPrompt::Embedding(pooling) => pooling,
        };
        let rows: Vec<[f32; ROW_WIDTH]> = rows.into_iter().map(unfold).collect();
        told.values = match pooling {
            Pooling::None => rows.concat(),
            Pooling::First => rows[0].to_vec(),
            Pooling::Last => rows[rows.len() - 1].to_vec(),
            Pooling::Mean => {
                let sum = |at: usize| rows.iter().map(|row| f64::from(row[at])).sum::<f64>();
                (0..ROW_WIDTH).map(|at| (sum(at) / rows.len() as f64) as f32).collect()
            }
        };
        told
    }

    /// A part has come.
    pub(crate) fn hear(&mut self, found: Found) {
        match found {
            Found::Logprobs(logprobs) => self.logprobs.extend(logprobs),
            Found::Rows(rows) => self.values.extend(rows.values),
        }
    }

    /// Whether it is what `whole` begins with.
    pub(crate) fn begins(&self, whole: &Self) -> bool {
        whole.logprobs.starts_with(&self.logprobs) && whole.values.starts_with(&self.values)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.logprobs.is_empty() && self.values.is_empty()
    }
}
