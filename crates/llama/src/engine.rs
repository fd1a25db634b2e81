//! [`LlamaEngine`]: a range of layers on llama.cpp, behind the stage's port.
//!
//! Owns the order of rows in a call, the capture of what leaves the range, and what each slot holds. The stage
//! guarantees the shape of calls (see [`stage::Engine`]); what would be silently wrong is checked again here.

use std::sync::Arc;

use protocol::{Open, Position, Token};
use stage::{
    Cancel, Drafted, Engine, EngineError, EngineShape, Input, Rewind, Sampler, Slot, Span, Want, Wish,
};

use crate::LoadError;
use crate::config::EngineConfig;
use crate::constrain::GrammarCache;
use crate::context::{Context, ContextOptions, NotComputed};
use crate::embeddings::Embeddings;
use crate::model::{Model, ModelOptions};
use crate::nextn::NextN;
use crate::probe;
use crate::role::Role;
use crate::sampler::{DryCache, LlamaSampler, Place};
use crate::vocab::Vocab;

/// A range of layers on llama.cpp.
pub struct LlamaEngine {
    context: Context,
    shape: EngineShape,
    vocab: Option<Vocab>,
    embeddings: Option<Embeddings>,
    /// Factor on rows that come from another stage.
    input_scale: f32,
    /// Positions that each slot holds at most (exactly, unless its last call failed).
    held: Vec<u32>,
    /// Of recurrent layers, the position that each slot can be cut back to at most: llama.cpp would take back a whole call
    /// and say so, and leave a state that was never there.
    oldest: Vec<u32>,
    dry: DryCache,
    grammars: GrammarCache,
    /// Scratch: rows on the way into the batch.
    rows: Vec<f32>,
    /// What each row of the last call has left behind (tail only).
    left: Vec<Want>,
    /// The model's own blocks that draft, on a tail that is to.
    nextn: Option<NextN>,
    was_cancelled: bool,
}

impl LlamaEngine {
    /// Loads and checks a whole model or a slice; `progress` hears numbers from 0 to 1.
    ///
    /// # Errors
    /// If the file is unusable or too big for the free memory, or the configuration cannot be met.
    pub fn load(config: &EngineConfig, progress: &mut dyn FnMut(f32)) -> Result<Self, LoadError> {
        config.check()?;
        crate::backend::init();
        let file = gguf::Model::open(&config.path)
            .map_err(|e| LoadError::Model { path: config.path.clone(), reason: e.to_string() })?;
        let role = Role::read(&file)?;
        config.check_memory(&file, &role)?;
        let drafts = match config.drafts && role.is_tail {
            true => Some(role.drafts(&file)?),
            false => None,
        };
        let options = ModelOptions {
            vocab_only: false,
            drafts: drafts.as_ref().is_some_and(|own| own.path == config.path),
            gpu_layers: config.gpu_layers,
            device: config.device.clone(),
            exact: config.exact,
        };
        let model = Arc::new(Model::load(&config.path, &options, progress)?);
        let wanted = ContextOptions {
            context: config.context,
            n_slots: config.n_slots,
            max_rows: config.max_rows,
            threads: config.threads,
            kv: config.kv,
            exact: config.exact,
            swa_full: config.swa_full,
            undo_rows: config.undo_rows,
            capture: role.capture.clone(),
            keeps_nextn: drafts.is_some(),
        };
        let mut context = Context::new(Arc::clone(&model), &wanted, &config.path)?;
        let nextn = match &drafts {
            None => None,
            Some(own) if own.path == config.path => Some(NextN::new(Arc::clone(&model), &wanted, own)?),
            Some(apart) => {
                let options = ModelOptions { drafts: true, ..options };
                let beside = Arc::new(Model::load(&apart.path, &options, &mut |_| ())?);
                Some(NextN::new(beside, &wanted, apart)?)
            }
        };
        if role.capture.is_some() {
            probe::check_capture(&mut context, &file, role.final_norm.as_deref())?;
        }
        let embeddings = role.embeddings(&file, model.row_width())?;
        let vocab = if role.is_tail { Vocab::of(Arc::clone(&model)) } else { None };
        let shape = shape_of(config, &role, &file, &context, vocab.as_ref(), embeddings.as_ref());
        Ok(Self {
            held: vec![0; usize::from(config.n_slots)],
            oldest: vec![0; usize::from(config.n_slots)],
            input_scale: role.input_scale,
            left: Vec::new(),
            nextn,
            was_cancelled: false,
            rows: Vec::new(),
            context,
            shape,
            vocab,
            embeddings,
            dry: DryCache::default(),
            grammars: GrammarCache::default(),
        })
    }

    /// The tail's vocabulary.
    #[must_use]
    pub fn vocab(&self) -> Option<&Vocab> {
        self.vocab.as_ref()
    }

    fn check_spans(&self, spans: &[Span]) -> Result<usize, EngineError> {
        let first = spans.first().ok_or_else(|| refused("a call without rows"))?;
        if spans.len() > 1 && self.context.model().is_recurrent() {
            return Err(refused("a call with several sequences: recurrent layers would mix up their rows"));
        }
        let mut n_rows = 0;
        for (index, span) in spans.iter().enumerate() {
            let held = self.held.get(usize::from(span.slot.0)).copied();
            let is_next = usize::from(span.slot.0) == usize::from(first.slot.0) + index;
            if held.is_none() || !is_next || span.n_rows != first.n_rows || span.n_rows == 0 {
                return Err(refused(&format!(
                    "spans that are not contiguous slots of equal rows: {spans:?}"
                )));
            }
            if held != Some(span.base.0) {
                return Err(refused(&format!(
                    "slot {} holds {} positions, so rows cannot start at {}",
                    span.slot.0,
                    held.unwrap_or(0),
                    span.base
                )));
            }
            let end = u64::from(span.base.0) + span.n_rows as u64;
            if end > u64::from(self.shape.context) {
                return Err(refused(&format!(
                    "position {} is outside the context of {}",
                    end - 1,
                    self.shape.context
                )));
            }
            n_rows += span.n_rows;
        }
        if n_rows > self.shape.max_rows {
            return Err(refused(&format!("{n_rows} rows in one call, but {} fit", self.shape.max_rows)));
        }
        Ok(n_rows)
    }

    fn fill_tokens(&mut self, spans: &[Span], tokens: &[Token]) -> Result<(), EngineError> {
        if let Some(embeddings) = &mut self.embeddings {
            let mut rows = std::mem::take(&mut self.rows);
            rows.clear();
            let looked_up = embeddings.look_up(tokens, &mut rows);
            let filled = looked_up
                .map_err(|e| refused(&format!("an embedding could not be read: {e}")))
                .and_then(|()| self.fill_rows(spans, &rows));
            self.rows = rows;
            return filled;
        }
        let all = !self.shape.is_tail || wants_hidden(spans);
        let batch = self.context.batch();
        let mut tokens = tokens.iter();
        for span in spans {
            for (row, token) in tokens.by_ref().take(span.n_rows).enumerate() {
                let output = all || span.want == Want::Logits;
                if !batch.push_token(span.slot, span.base.0 + row as u32, *token, output) {
                    return Err(refused(&format!("token {token} is not in the vocabulary")));
                }
            }
        }
        Ok(())
    }

    fn fill_rows(&mut self, spans: &[Span], rows: &[f32]) -> Result<(), EngineError> {
        let all = !self.shape.is_tail || wants_hidden(spans);
        let batch = self.context.batch();
        let mut rows = rows.chunks_exact(self.shape.row_width);
        for span in spans {
            for (row, values) in rows.by_ref().take(span.n_rows).enumerate() {
                let output = all || span.want == Want::Logits;
                if !batch.push_row(span.slot, span.base.0 + row as u32, values, output) {
                    return Err(refused("llama.cpp does not take a row of this width"));
                }
            }
        }
        Ok(())
    }

    /// Keeps what the blocks that draft must be told of a call.
    fn note(&mut self, spans: &[Span], n_rows: usize, input: Input<'_>) -> Result<(), EngineError> {
        let Some(nextn) = &mut self.nextn else { return Ok(()) };
        let (Input::Tokens(tokens) | Input::Rows(_, tokens)) = input;
        let rows = self.context.nextn_rows(n_rows, nextn.width());
        let rows = rows.ok_or_else(|| refused("a call without hidden rows to draft from"))?;
        nextn.note(spans, tokens, rows);
        Ok(())
    }

    fn fill(&mut self, spans: &[Span], n_rows: usize, input: Input<'_>) -> Result<(), EngineError> {
        self.context.batch().clear();
        match input {
            Input::Tokens(tokens) if self.shape.is_first && tokens.len() == n_rows => {
                self.fill_tokens(spans, tokens)
            }
            Input::Rows(_, tokens) if self.nextn.is_some() && tokens.len() != n_rows => {
                Err(refused(&format!("{} tokens for {n_rows} rows", tokens.len())))
            }
            Input::Rows(rows, _) if !self.shape.is_first && rows.len() == n_rows * self.shape.row_width => {
                if self.input_scale == 1.0 {
                    return self.fill_rows(spans, rows);
                }
                let mut scaled = std::mem::take(&mut self.rows);
                scaled.clear();
                scaled.extend(rows.iter().map(|value| value * self.input_scale));
                let filled = self.fill_rows(spans, &scaled);
                self.rows = scaled;
                filled
            }
            Input::Tokens(tokens) => Err(refused(&format!("{} tokens for {n_rows} rows", tokens.len()))),
            Input::Rows(rows, _) => Err(refused(&format!("{} values for {n_rows} rows", rows.len()))),
        }
    }

    /// Runs the filled batch; the captured rows land in `out`.
    fn compute(&mut self, spans: &[Span], n_rows: usize, out: &mut Vec<f32>) -> Result<(), EngineError> {
        let width = self.shape.row_width;
        if let Some(tap) = self.context.tap() {
            out.reserve(n_rows * width);
            tap.rows = std::mem::take(out);
            tap.fault = None;
        }
        let computed = self.context.compute();
        if let Some(tap) = self.context.tap() {
            *out = std::mem::take(&mut tap.rows);
            if let Some(fault) = tap.fault.take() {
                return Err(refused(&format!("the tensor that leaves the stage {fault}")));
            }
        }
        match computed {
            Ok(()) => {}
            Err(NotComputed::Failed(reason)) => {
                return Err(EngineError { reason: format!("llama.cpp: {reason}") });
            }
            Err(NotComputed::Cancelled) => {
                self.was_cancelled = true;
                spans.iter().for_each(|span| self.held[usize::from(span.slot.0)] = span.base.0);
                return Err(EngineError { reason: "the call was stopped".to_owned() });
            }
        }
        if !self.shape.is_tail && out.len() != n_rows * width {
            return Err(refused(&format!("{} values came out of {n_rows} rows", out.len())));
        }
        Ok(())
    }
}

/// Whether a call must keep hidden rows. llama.cpp does it for all rows or for none.
fn wants_hidden(spans: &[Span]) -> bool {
    spans.iter().any(|span| span.want == Want::Hidden)
}

fn refused(what: &str) -> EngineError {
    EngineError { reason: format!("the engine refused {what}") }
}

fn shape_of(
    config: &EngineConfig,
    role: &Role,
    file: &gguf::Model,
    context: &Context,
    vocab: Option<&Vocab>,
    embeddings: Option<&Embeddings>,
) -> EngineShape {
    let n_vocab = match embeddings {
        Some(embeddings) => embeddings.n_tokens(),
        None if role.is_tail => context.model().n_tokens(),
        None => 0,
    };
    let forgets = !config.swa_full && context.model().window() > 0;
    let rewind = match context.model().is_recurrent() {
        true => Rewind::LastCall { rows: context.rollback_rows() },
        // llama.cpp keeps the window and the rows of one call besides.
        false if forgets => Rewind::Recent { rows: context.max_rows() as u32 / 2 },
        // Cells that no window reaches are left out of what llama.cpp saves.
        false if context.model().window() > 0 => Rewind::InPlace { window: context.model().window() },
        false => Rewind::Anywhere,
    };
    EngineShape {
        layers: role.layers,
        is_first: role.is_first,
        is_tail: role.is_tail,
        row_width: context.model().row_width(),
        n_vocab,
        context: context.positions(),
        n_slots: config.n_slots,
        max_rows: context.max_rows(),
        rewind,
        end_tokens: vocab.map(Vocab::end_tokens).unwrap_or_default(),
        weight_bytes: context.model().weight_bytes(),
        drafts: config.drafts && role.is_tail,
        kv_bytes: config.kv_bytes(file, role),
    }
}

impl Engine for LlamaEngine {
    fn shape(&self) -> &EngineShape {
        &self.shape
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        out.clear();
        self.left.clear();
        self.was_cancelled = false;
        let n_rows = self.check_spans(spans)?;
        if let Some(nextn) = &mut self.nextn {
            nextn.relieve();
        }
        self.context.set_embeddings(self.shape.is_tail && wants_hidden(spans));
        self.fill(spans, n_rows, input)?;
        for span in spans {
            self.held[usize::from(span.slot.0)] = span.base.0 + span.n_rows as u32;
            self.oldest[usize::from(span.slot.0)] = span.base.0 + 1;
        }
        self.compute(spans, n_rows, out)?;
        self.note(spans, n_rows, input)?;
        if self.shape.is_tail {
            self.left.extend(spans.iter().flat_map(|span| std::iter::repeat_n(span.want, span.n_rows)));
        }
        Ok(())
    }

    fn heed(&mut self, cancel: Cancel) {
        self.context.heed(cancel);
    }

    fn was_cancelled(&self) -> bool {
        self.was_cancelled
    }

    fn logits(&self, row: usize) -> &[f32] {
        assert!(self.left.get(row) == Some(&Want::Logits), "row {row} of the last call has no logits");
        self.context.logits(row, self.shape.n_vocab).expect("llama.cpp keeps the logits of every flagged row")
    }

    fn hidden(&self, row: usize) -> &[f32] {
        assert!(self.left.get(row) == Some(&Want::Hidden), "row {row} of the last call has no hidden row");
        self.context.embedding(row).unwrap_or_default()
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        let held =
            self.held.get_mut(usize::from(slot.0)).ok_or_else(|| refused(&format!("slot {}", slot.0)))?;
        if len.0 >= *held {
            return Ok(());
        }
        // Nothing looks back from the beginning: a slot can always be emptied.
        if matches!(self.shape.rewind, Rewind::Recent { .. })
            && len.0 > 0
            && !self.context.remembers(slot, len.0)
        {
            return Err(EngineError {
                reason: format!(
                    "slot {} has forgotten what position {len} looks back to: layers with a sliding window keep \
                     little with swa_full off",
                    slot.0
                ),
            });
        }
        let is_gone = self.context.model().is_recurrent()
            && len.0 > 0
            && self.oldest.get(usize::from(slot.0)).is_some_and(|&oldest| len.0 < oldest);
        if is_gone || !self.context.cut(slot, len.0) {
            return Err(EngineError {
                reason: format!("this model's memory cannot be cut back to position {len}"),
            });
        }
        *held = len.0;
        if let Some(nextn) = &mut self.nextn {
            nextn.truncate(slot, len.0);
        }
        Ok(())
    }

    fn draft(&mut self, wishes: Vec<Wish>) -> Result<Vec<Drafted>, EngineError> {
        let context = self.shape.context;
        let can_be = |wish: &Wish| {
            let held = self.held.get(usize::from(wish.slot.0));
            held.is_some_and(|&held| wish.position.0 <= held) && wish.position.0 < context
        };
        if let Some(wish) = wishes.iter().find(|wish| !can_be(wish)) {
            return Err(refused(&format!("{wish:?}")));
        }
        let nextn = self.nextn.as_mut().ok_or_else(|| refused("to draft: it was loaded without"))?;
        nextn.draft(wishes, context)
    }

    fn tend(&mut self) {
        if let Some(nextn) = &mut self.nextn {
            nextn.catch_up();
        }
    }

    fn save(&mut self, slot: Slot) -> Result<Vec<u8>, EngineError> {
        let held = self
            .held
            .get(usize::from(slot.0))
            .copied()
            .ok_or_else(|| refused(&format!("slot {}", slot.0)))?;
        let mut bytes = held.to_le_bytes().to_vec();
        let mut drafts = Vec::new();
        if let Some(nextn) = &mut self.nextn {
            nextn.save(slot, &mut drafts);
        }
        bytes.extend((drafts.len() as u64).to_le_bytes());
        bytes.append(&mut drafts);
        match self.context.save(slot, &mut bytes) {
            true => Ok(bytes),
            false => Err(refused(&format!("to save the {held} positions of slot {}", slot.0))),
        }
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), EngineError> {
        let known =
            self.held.get_mut(usize::from(slot.0)).ok_or_else(|| refused(&format!("slot {}", slot.0)))?;
        let parts = || {
            let (head, rest) = bytes.split_first_chunk()?;
            let (n, rest) = rest.split_first_chunk()?;
            let n = usize::try_from(u64::from_le_bytes(*n)).ok()?;
            Some((u32::from_le_bytes(*head), rest.split_at_checked(n)?))
        };
        let (held, (drafts, state)) = parts().ok_or_else(|| refused("a state without a head"))?;
        // llama.cpp empties the slot first, and again if it does not understand the bytes.
        *known = 0;
        if held > self.shape.context || !self.context.load(slot, state) {
            self.context.cut(slot, 0);
            if let Some(nextn) = &mut self.nextn {
                nextn.truncate(slot, 0);
            }
            return Err(refused(&format!("the saved positions of slot {}", slot.0)));
        }
        *known = held;
        self.oldest[usize::from(slot.0)] = held;
        if let Some(nextn) = &mut self.nextn {
            nextn.load(slot, held, drafts);
        }
        Ok(())
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        if !self.shape.is_tail {
            return Err(refused("to sample: it is not the tail"));
        }
        let place =
            Place { n_vocab: self.shape.n_vocab, context: self.shape.context, vocab: self.vocab.as_ref() };
        Ok(Box::new(LlamaSampler::new(open, &place, &self.dry, &self.grammars)?))
    }
}
