//! An engine that takes time, and says what its script says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use forecast::StageModel;
use protocol::{LayerRange, Open, Position, Token};
use stage::{Engine, EngineError, EngineShape, Input, Rewind, Sampled, Sampler, Slot, Span};

use crate::bench::http::now;
use crate::bench::null_line::MAX_ROWS;

/// Values in a row: SmolLM2-135M's.
pub(super) const ROW_WIDTH: usize = 576;
/// Sequences at once. One runs; the front's probe may want a place, too.
pub(super) const SLOTS: u16 = 4;
/// Scripts are told apart by the seed of their request, from here on: the front's probes have others.
const FIRST_SEED: u64 = 1 << 32;
/// What is said where no script says anything.
const NOTHING: Token = Token(0);

/// What each request is answered.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) n_prompt: usize,
    pub(super) answer: Vec<Token>,
}

/// The seed by which the tail finds a script.
pub(super) const fn seed(script: usize) -> u64 {
    FIRST_SEED + script as u64
}

/// What one stage computed at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) stage: usize,
    pub(super) start: Instant,
    pub(super) end: Instant,
    /// The same on every stage that computes the rows.
    pub(super) serial: u32,
    pub(super) n_rows: usize,
}

/// What all stages of a line computed.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) calls: Vec<Call>,
    /// Serials from which something was sampled.
    pub(super) live: BTreeSet<u32>,
}

pub(super) type SharedLog = Arc<Mutex<Log>>;

/// What the engines of a line have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) times: StageModel,
    pub(super) scripts: Arc<Vec<Script>>,
    pub(super) context: u32,
    pub(super) n_vocab: u32,
    pub(super) log: Option<SharedLog>,
}

pub(super) struct ToyEngine {
    shape: EngineShape,
    common: Common,
    index: usize,
    /// Of the last call: counted by the first stage, carried by the first value of each row. Exact in 32-bit floats up
    /// to 16 million.
    serial: Arc<AtomicU32>,
}

impl ToyEngine {
    pub(super) fn new(index: usize, n_stages: usize, common: Common) -> Self {
        let (is_first, is_tail) = (index == 0, index + 1 == n_stages);
        let shape = EngineShape {
            layers: LayerRange { start: index as u32, end: index as u32 + 1 },
            is_first,
            is_tail,
            row_width: ROW_WIDTH,
            n_vocab: if is_first || is_tail { common.n_vocab as usize } else { 0 },
            context: common.context,
            n_slots: SLOTS,
            max_rows: MAX_ROWS as usize,
            rewind: Rewind::Anywhere,
            end_tokens: Vec::new(),
            drafts: false,
            weight_bytes: 0,
            kv_bytes: 0,
        };
        Self { shape, common, index, serial: Arc::default() }
    }

    fn note(&self, start: Instant, serial: u32, n_rows: usize) {
        let Some(log) = &self.common.log else { return };
        let call = Call { stage: self.index, start, end: now(), serial, n_rows };
        log.lock().unwrap_or_else(PoisonError::into_inner).calls.push(call);
    }
}

impl Engine for ToyEngine {
    fn shape(&self) -> &EngineShape {
        &self.shape
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        let start = now();
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        let serial = match input {
            Input::Tokens(_) => self.serial.load(Ordering::Relaxed) + 1,
            Input::Rows(rows, _) => rows[0] as u32,
        };
        self.serial.store(serial, Ordering::Relaxed);
        out.clear();
        if !self.shape.is_tail {
            out.resize(n_rows * ROW_WIDTH, 0.0);
            out.chunks_exact_mut(ROW_WIDTH).for_each(|row| row[0] = serial as f32);
        }
        let left = self.common.times.time(n_rows).saturating_sub(start.elapsed());
        #[expect(clippy::disallowed_methods, reason = "stands for the time that another machine computes")]
        std::thread::sleep(left);
        self.note(start, serial, n_rows);
        Ok(())
    }

    fn logits(&self, _row: usize) -> &[f32] {
        &[]
    }

    fn truncate(&mut self, _slot: Slot, _len: Position) -> Result<(), EngineError> {
        Ok(())
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        let script = open.seed.checked_sub(FIRST_SEED).map(|at| at as usize);
        Ok(Box::new(ScriptSampler {
            scripts: Arc::clone(&self.common.scripts),
            script,
            serial: Arc::clone(&self.serial),
            log: self.common.log.clone(),
        }))
    }
}

struct ScriptSampler {
    scripts: Arc<Vec<Script>>,
    script: Option<usize>,
    serial: Arc<AtomicU32>,
    log: Option<SharedLog>,
}

impl Sampler for ScriptSampler {
    fn prompt(&mut self, _token: Token) {}

    fn sample(&mut self, position: Position, _logits: &[f32]) -> Result<Sampled, EngineError> {
        if let Some(log) = &self.log {
            let serial = self.serial.load(Ordering::Relaxed);
            log.lock().unwrap_or_else(PoisonError::into_inner).live.insert(serial);
        }
        let script = self.script.and_then(|at| self.scripts.get(at));
        let token = script.and_then(|script| {
            let at = (position.0 as usize).checked_sub(script.n_prompt)?;
            script.answer.get(at).copied()
        });
        Ok(Sampled { token: token.unwrap_or(NOTHING), logprobs: None, mu: None, grammar_ended: false })
    }
}
