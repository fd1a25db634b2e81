//! What is wanted of one sequence's prompt, gathered at the tail chunk by chunk.
//!
//! Of pooled rows only their sum is kept, in 64 bits and in the order of the positions, so that it does not depend on
//! how the prompt was cut. Everything else leaves with the chunk that it is of.

use protocol::{Chunk, FaultKind, Found, HiddenRows, OfPrompt, Open, Pooling, Position, PromptPart, limits};

use crate::logprobs;
use crate::port::{Engine, Want};

/// See the module.
pub(crate) struct Prompt {
    wanted: OfPrompt,
    /// Where the prompt ends, if the sequence is nothing else.
    end: Position,
    /// Of the rows that are pooled, so far.
    sum: Vec<f64>,
}

impl Prompt {
    /// None if nothing is wanted of it.
    pub(crate) fn of(open: &Open) -> Option<Self> {
        open.of_prompt.map(|wanted| Self { wanted, end: open.limit, sum: Vec::new() })
    }

    /// What a chunk's rows must leave behind.
    pub(crate) fn want(&self, chunk: &Chunk) -> Want {
        match self.wanted {
            OfPrompt::Logprobs { .. } if predicted(chunk).next().is_some() => Want::Logits,
            OfPrompt::Embedding(Pooling::None | Pooling::Mean) => Want::Hidden,
            OfPrompt::Embedding(Pooling::First) if chunk.base == Position(0) => Want::Hidden,
            OfPrompt::Embedding(Pooling::Last) if end_of(chunk) == self.end => Want::Hidden,
            OfPrompt::Logprobs { .. } | OfPrompt::Embedding(Pooling::First | Pooling::Last) => Want::Nothing,
        }
    }

    /// Reads what a chunk's rows, the first of which is `first_row` of the last call, have left behind. Returns what can
    /// be told now, in parts that fit a message each.
    pub(crate) fn read(
        &mut self,
        chunk: &Chunk,
        engine: &dyn Engine,
        first_row: usize,
    ) -> Result<Vec<PromptPart>, FaultKind> {
        let part = |base, found| PromptPart { seq: chunk.seq, base, found };
        let pooling = match self.wanted {
            OfPrompt::Logprobs { top } => {
                let rows = (first_row..).zip(predicted(chunk));
                let found: Vec<_> =
                    rows.map(|(row, token)| logprobs::of(engine.logits(row), token, top)).collect();
                let found = (!found.is_empty()).then(|| part(chunk.base.plus(1), Found::Logprobs(found)));
                return Ok(found.into_iter().collect());
            }
            OfPrompt::Embedding(pooling) => pooling,
        };
        let end = end_of(chunk);
        if end > self.end {
            return Err(FaultKind::ContextFull { end, context: self.end.0 });
        }
        let rows = first_row..first_row + chunk.tokens.len();
        match pooling {
            Pooling::None => {
                let found = rows_of(engine, rows)?;
                let most = (limits::MAX_PART_VALUES / found.width.max(1) as usize).max(1);
                let parts = found.values.chunks(most * found.width as usize).enumerate();
                let rows = |values: &[f32]| HiddenRows { width: found.width, values: values.to_vec() };
                return Ok(parts
                    .map(|(i, values)| part(chunk.base.plus(i * most), Found::Rows(rows(values))))
                    .collect());
            }
            Pooling::Mean => self.add(engine, rows)?,
            Pooling::First if chunk.base == Position(0) => self.add(engine, first_row..first_row + 1)?,
            Pooling::Last if end == self.end => self.add(engine, rows.end - 1..rows.end)?,
            Pooling::First | Pooling::Last => {}
        }
        if end < self.end {
            return Ok(Vec::new());
        }
        let n = if pooling == Pooling::Mean { f64::from(self.end.0) } else { 1.0 };
        let values = std::mem::take(&mut self.sum).into_iter().map(|sum| (sum / n) as f32).collect();
        Ok(vec![part(Position(0), Found::Rows(checked(values, 1)?))])
    }

    fn add(&mut self, engine: &dyn Engine, rows: std::ops::Range<usize>) -> Result<(), FaultKind> {
        for row in rows {
            let values = engine.hidden(row);
            self.sum.resize(values.len(), 0.0);
            self.sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        Ok(())
    }
}

fn end_of(chunk: &Chunk) -> Position {
    chunk.base.plus(chunk.tokens.len())
}

/// The tokens that the rows of a chunk predict, as far as they are known.
fn predicted(chunk: &Chunk) -> impl Iterator<Item = protocol::Token> {
    chunk.tokens.iter().skip(1).chain(&chunk.follows).copied()
}

fn rows_of(engine: &dyn Engine, rows: std::ops::Range<usize>) -> Result<HiddenRows, FaultKind> {
    let n_rows = rows.len();
    let values = rows.flat_map(|row| engine.hidden(row)).copied().collect();
    checked(values, n_rows)
}

/// Rows that others will take in.
fn checked(values: Vec<f32>, n_rows: usize) -> Result<HiddenRows, FaultKind> {
    let width = values.len() / n_rows.max(1);
    let fault = |reason: &str| Err(FaultKind::Engine { reason: reason.into() });
    if width == 0 {
        return fault("this engine does not give the hidden rows that embeddings are made of");
    }
    if !values.iter().all(|value| value.is_finite()) {
        return fault("the model has given hidden rows that are no finite numbers");
    }
    Ok(HiddenRows { width: width as u32, values })
}
