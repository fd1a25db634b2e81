//! [`LlamaEngine`]: a range of layers on llama.cpp, behind the stage's port.
//!
//! Owns the order of rows in a call, the capture of what leaves the range, and what each slot holds. The stage
//! guarantees the shape of calls (see [`stage::Engine`]); what would be silently wrong is checked again here.

use std::path::PathBuf;
use std::sync::Arc;

use protocol::{KvType, Open, Position, Token};
use stage::{Cancel, Engine, EngineError, EngineShape, Input, Rewind, Sampler, Slot, Span, Want};

use crate::LoadError;
use crate::constrain::GrammarCache;
use crate::context::{Context, ContextOptions, MAX_SLOTS, NotComputed};
use crate::embeddings::Embeddings;
use crate::model::{Model, ModelOptions};
use crate::role::Role;
use crate::sampler::{DryCache, LlamaSampler, Place};
use crate::vocab::Vocab;
use crate::{memory, probe};

/// States of recurrent layers that are kept beside the last one at most: one for each guess of the widest window.
const MAX_UNDO_ROWS: u32 = 15;

/// What to load and how to run it.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// A whole model, or a slice that `gguf` wrote.
    pub path: PathBuf,
    /// Positions per slot; rounded up to a multiple of 256.
    pub context: u32,
    /// Sequences at once, 1 to 256.
    pub n_slots: u16,
    /// Rows in one call at most.
    pub max_rows: u32,
    /// Threads that compute; more than free cores make it many times slower.
    pub threads: u32,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Whether a row's result must not depend on its neighbours in the call. CPU only; ARM's `i8mm` kernels, which
    /// take two rows at a time, are not covered.
    pub exact: bool,
    /// Whether layers that look back over a window only keep every position all the same, so that slots can be cut
    /// anywhere. If not they take less memory, and a slot can be cut by half a call's rows; not with `exact`.
    pub swa_full: bool,
    /// Rows of a slot's last call that can be cut off again where layers are recurrent, 0 to 15: so many states are kept
    /// besides. Attention alone can be cut anywhere without.
    pub undo_rows: u32,
    /// Layers on a GPU; 0 for none.
    pub gpu_layers: u32,
    /// Which GPU, by ggml's name; `None` for all.
    pub device: Option<String>,
}

impl EngineConfig {
    /// The defaults: 4096 positions in one slot, 512 rows, one thread, half-precision memory, CPU, not exact.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            context: 4096,
            n_slots: 1,
            max_rows: 512,
            threads: 1,
            kv: KvType::F16,
            exact: false,
            swa_full: true,
            undo_rows: 0,
            gpu_layers: 0,
            device: None,
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let in_range = |what: &str, value: u32, max: u32| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(LoadError::Config(format!("{what} must be between 1 and {max}, not {value}")))
        };
        in_range("the number of slots", u32::from(self.n_slots), u32::from(MAX_SLOTS))?;
        in_range("the context", self.context, protocol::limits::MAX_CONTEXT)?;
        in_range("rows per call", self.max_rows, protocol::limits::MAX_ROWS)?;
        in_range("threads", self.threads, 1024)?;
        if self.undo_rows > MAX_UNDO_ROWS || (self.undo_rows > 0 && self.undo_rows + 1 >= self.max_rows) {
            return Err(LoadError::Config(format!(
                "{} rows cannot be undone: at most {MAX_UNDO_ROWS}, and two fewer than a call has",
                self.undo_rows
            )));
        }
        if self.exact && self.gpu_layers > 0 {
            return Err(LoadError::Config(
                "exact arithmetic works on the CPU only: use it without GPU layers".into(),
            ));
        }
        if self.exact && !self.swa_full {
            return Err(LoadError::Config(
                "exact arithmetic needs every position of a sliding window: use it without swa_full off"
                    .into(),
            ));
        }
        Ok(())
    }

    fn check_memory(&self, file: &gguf::Model) -> Result<(), LoadError> {
        let Some(free) = memory::free_bytes(self.gpu_layers, self.device.as_deref()) else { return Ok(()) };
        let weights = memory::weight_bytes(file);
        let kv = memory::kv_bytes(file, self.context, self.n_slots, self.kv);
        if weights.saturating_add(kv) > free {
            return Err(LoadError::Memory { path: self.path.clone(), weights, kv, free });
        }
        Ok(())
    }
}

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
    dry: DryCache,
    grammars: GrammarCache,
    /// Scratch: rows on the way into the batch.
    rows: Vec<f32>,
    /// What each row of the last call has left behind (tail only).
    left: Vec<Want>,
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
        config.check_memory(&file)?;
        let options = ModelOptions {
            vocab_only: false,
            gpu_layers: config.gpu_layers,
            device: config.device.clone(),
            exact: config.exact,
        };
        let model = Arc::new(Model::load(&config.path, &options, progress)?);
        let mut context = Context::new(
            Arc::clone(&model),
            &ContextOptions {
                context: config.context,
                n_slots: config.n_slots,
                max_rows: config.max_rows,
                threads: config.threads,
                kv: config.kv,
                exact: config.exact,
                swa_full: config.swa_full,
                undo_rows: config.undo_rows,
                capture: role.capture.clone(),
            },
            &config.path,
        )?;
        if role.capture.is_some() {
            probe::check_capture(&mut context, &file, role.final_norm.as_deref())?;
        }
        let embeddings = role.embeddings(&file, model.row_width())?;
        let vocab = if role.is_tail { Vocab::of(Arc::clone(&model)) } else { None };
        let shape = shape_of(config, &role, &file, &context, vocab.as_ref(), embeddings.as_ref());
        Ok(Self {
            held: vec![0; usize::from(config.n_slots)],
            input_scale: role.input_scale,
            left: Vec::new(),
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

    fn fill(&mut self, spans: &[Span], n_rows: usize, input: Input<'_>) -> Result<(), EngineError> {
        self.context.batch().clear();
        match input {
            Input::Tokens(tokens) if self.shape.is_first && tokens.len() == n_rows => {
                self.fill_tokens(spans, tokens)
            }
            Input::Rows(rows) if !self.shape.is_first && rows.len() == n_rows * self.shape.row_width => {
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
            Input::Rows(rows) => Err(refused(&format!("{} values for {n_rows} rows", rows.len()))),
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
        kv_bytes: memory::kv_bytes(file, config.context, config.n_slots, config.kv),
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
        self.context.set_embeddings(self.shape.is_tail && wants_hidden(spans));
        self.fill(spans, n_rows, input)?;
        for span in spans {
            self.held[usize::from(span.slot.0)] = span.base.0 + span.n_rows as u32;
        }
        self.compute(spans, n_rows, out)?;
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
        if !self.context.cut(slot, len.0) {
            return Err(EngineError {
                reason: format!("this model's memory cannot be cut back to position {len}"),
            });
        }
        *held = len.0;
        Ok(())
    }

    fn save(&mut self, slot: Slot) -> Result<Vec<u8>, EngineError> {
        let held = self
            .held
            .get(usize::from(slot.0))
            .copied()
            .ok_or_else(|| refused(&format!("slot {}", slot.0)))?;
        let mut bytes = held.to_le_bytes().to_vec();
        match self.context.save(slot, &mut bytes) {
            true => Ok(bytes),
            false => Err(refused(&format!("to save the {held} positions of slot {}", slot.0))),
        }
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), EngineError> {
        let known =
            self.held.get_mut(usize::from(slot.0)).ok_or_else(|| refused(&format!("slot {}", slot.0)))?;
        let (head, state) = bytes.split_first_chunk().ok_or_else(|| refused("a state without a head"))?;
        let held = u32::from_le_bytes(*head);
        // llama.cpp empties the slot first, and again if it does not understand the bytes.
        *known = 0;
        if held > self.shape.context || !self.context.load(slot, state) {
            self.context.cut(slot, 0);
            return Err(refused(&format!("the saved positions of slot {}", slot.0)));
        }
        *known = held;
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
