//! An engine without a model: it takes rows and gives rows, and its sampler knows the text.

use std::sync::Arc;

use protocol::{LayerRange, Open, Position, Token};
use stage::{Engine, EngineError, EngineShape, Input, Rewind, Sampled, Sampler, Slot, Span};

/// Rows in one call at most.
pub(crate) const MAX_ROWS: usize = 512;

/// What each sequence says, by its seed.
pub(crate) type Scripts = Arc<Vec<Script>>;

/// What one sequence says.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) n_prompt: usize,
    pub(crate) answer: Vec<Token>,
}

pub(crate) struct ScriptEngine {
    shape: EngineShape,
    scripts: Scripts,
}

impl ScriptEngine {
    pub(crate) fn new(
        (index, n_stages): (usize, usize),
        (context, n_vocab, n_slots): (u32, u32, u16),
        scripts: Scripts,
    ) -> Self {
        let (is_first, is_tail) = (index == 0, index + 1 == n_stages);
        let shape = EngineShape {
            layers: LayerRange { start: index as u32, end: index as u32 + 1 },
            is_first,
            is_tail,
            row_width: 1,
            n_vocab: if is_first || is_tail { n_vocab as usize } else { 0 },
            context,
            n_slots,
            max_rows: MAX_ROWS,
            rewind: Rewind::Anywhere,
            end_tokens: Vec::new(),
            drafts: false,
            weight_bytes: 0,
            kv_bytes: 0,
        };
        Self { shape, scripts }
    }
}

impl Engine for ScriptEngine {
    fn shape(&self) -> &EngineShape {
        &self.shape
    }

    fn run(&mut self, spans: &[Span], _input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        out.clear();
        if !self.shape.is_tail {
            out.resize(spans.iter().map(|span| span.n_rows).sum(), 0.0);
        }
        Ok(())
    }

    fn logits(&self, _row: usize) -> &[f32] {
        &[]
    }

    fn truncate(&mut self, _slot: Slot, _len: Position) -> Result<(), EngineError> {
        Ok(())
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        let scripts = Arc::clone(&self.scripts);
        Ok(Box::new(ScriptSampler { scripts, index: open.seed as usize }))
    }
}

struct ScriptSampler {
    scripts: Scripts,
    index: usize,
}

impl Sampler for ScriptSampler {
    fn prompt(&mut self, _token: Token) {}

    fn sample(&mut self, position: Position, _logits: &[f32]) -> Result<Sampled, EngineError> {
        let Script { n_prompt, answer } = &self.scripts[self.index];
        let token = answer[position.0 as usize - n_prompt];
        Ok(Sampled { token, logprobs: None, mu: None, grammar_ended: false })
    }
}
