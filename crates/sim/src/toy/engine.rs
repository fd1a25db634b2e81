//! A range of the toy model's layers with its memory. It does what it is told and checks nothing: see `watch`.

use protocol::{LayerRange, Open, Position, Token};
use stage::{
    Cancel, Drafted, Engine, EngineError, EngineShape, Input, Rewind, Sampler, Slot, Span, Want, Wish,
};

use super::{Model, ROW_WIDTH, ToySampler, Walk, remember, unfold};
use crate::random::Random;
use crate::scenario::is_refused;

/// What one layer of one slot remembers after each of its rows.
type Memory = Vec<u64>;

/// What an engine does wrong.
#[derive(Clone, Debug)]
pub(crate) struct Flaws {
    /// Whether it only claims to cut: the fault that the checkers must see.
    pub(crate) forgets_to_cut: bool,
    /// Whether what it has drafted stays behind the rows of its layers: another such fault.
    pub(crate) keeps_drafts: bool,
    /// How often its drafts are right, in percent.
    pub(crate) agreement: u32,
    /// Percent of its calls and cuts that fail, and say so.
    pub(crate) failures: u32,
    pub(crate) random: Random,
}

pub(crate) struct ToyEngine {
    model: Model,
    shape: EngineShape,
    /// By slot, then by layer; behind the layers of a tail that drafts the tokens that it was told.
    slots: Vec<Vec<Memory>>,
    /// Of the last call, for the rows that asked for them; the others are empty.
    logits: Vec<Vec<f32>>,
    /// The same for hidden rows.
    hidden: Vec<Vec<f32>>,
    flaws: Flaws,
    /// Rows that a fault left in place although they were cut, by slot.
    leftover: Vec<usize>,
    /// Calls that computed on top of leftover rows.
    spoiled_calls: u64,
    /// Tokens drafted.
    drafted: u64,
    cancel: Cancel,
    was_cancelled: bool,
}

impl ToyEngine {
    pub(crate) fn new(model: Model, shape: EngineShape, flaws: Flaws) -> Self {
        let n_slots = usize::from(shape.n_slots);
        let n_memories = shape.layers.len() as usize + usize::from(shape.drafts);
        Self {
            model,
            slots: vec![vec![Memory::new(); n_memories]; n_slots],
            shape,
            logits: Vec::new(),
            hidden: Vec::new(),
            flaws,
            leftover: vec![0; n_slots],
            spoiled_calls: 0,
            drafted: 0,
            cancel: Cancel::default(),
            was_cancelled: false,
        }
    }

    /// From now on it does not fail.
    pub(crate) const fn calm(&mut self) {
        self.flaws.failures = 0;
    }

    pub(crate) const fn spoiled_calls(&self) -> u64 {
        self.spoiled_calls
    }

    pub(crate) const fn drafted(&self) -> u64 {
        self.drafted
    }

    /// After a failure nobody may rely on what any slot of the call holds: `watch` sees to that.
    fn may_fail(&mut self) -> Result<(), EngineError> {
        if self.flaws.random.percent(self.flaws.failures) {
            return Err(EngineError { reason: "the toy has failed".into() });
        }
        Ok(())
    }

    /// The row above all of the engine's layers.
    fn compute(&mut self, slot: Slot, position: Position, mut row: u64) -> u64 {
        let LayerRange { start, end } = self.shape.layers;
        for (layer, memory) in (start..end).zip(&mut self.slots[usize::from(slot.0)]) {
            let remembered = remember(memory.last().copied().unwrap_or(0), position.0, row);
            memory.push(remembered);
            row = Model::layer(layer, row, remembered);
        }
        row
    }
}

impl ToyEngine {
    /// What the whole model would say, as far as the tail was told its tokens; but for some tokens, which are wrong.
    fn draft_one(&mut self, wish: Wish) -> Result<Drafted, EngineError> {
        let Wish { slot, mut token, position, n_tokens, mut sampler } = wish;
        let memories = &mut self.slots[usize::from(slot.0)];
        let told = memories.last().and_then(|tokens| tokens.get(..position.0 as usize));
        let told = told.ok_or_else(|| EngineError { reason: "a draft behind what it was told".into() })?;
        let mut walk = Walk::new(&self.model);
        for &token in told {
            walk.step(Token(token as i32));
        }
        let mut drafted = Drafted::default();
        for i in 1..=n_tokens {
            let logits: Vec<f32> = self.model.logits(walk.step(token)).collect();
            token = sampler.sample(position.plus(i), &logits)?.token;
            if !self.flaws.random.percent(self.flaws.agreement) {
                token = Token((token.0 + 1) % self.model.n_vocab.cast_signed());
            }
            drafted.tokens.push(token);
            drafted.probabilities.push(self.flaws.agreement as f32 / 100.0);
            self.drafted += 1;
        }
        if self.flaws.keeps_drafts {
            memories
                .iter_mut()
                .for_each(|memory| memory.extend(drafted.tokens.iter().map(|token| token.0 as u64)));
            self.leftover[usize::from(slot.0)] += drafted.tokens.len();
        }
        Ok(drafted)
    }
}

impl Engine for ToyEngine {
    fn shape(&self) -> &EngineShape {
        &self.shape
    }

    fn heed(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    fn was_cancelled(&self) -> bool {
        self.was_cancelled
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.was_cancelled = self.cancel.is_raised();
        if self.was_cancelled {
            return Err(EngineError { reason: "the call was stopped".into() });
        }
        self.may_fail()?;
        out.clear();
        self.logits.clear();
        self.hidden.clear();
        let mut n_done = 0;
        for span in spans {
            if self.leftover[usize::from(span.slot.0)] > 0 {
                self.spoiled_calls += 1;
            }
            for i in 0..span.n_rows {
                let below = match input {
                    Input::Tokens(tokens) => self.model.embed(tokens[n_done]),
                    Input::Rows(rows, _) => unpack(&rows[n_done * ROW_WIDTH..][..ROW_WIDTH]),
                };
                let row = self.compute(span.slot, span.base.plus(i), below);
                if self.shape.drafts {
                    let (Input::Tokens(tokens) | Input::Rows(_, tokens)) = input;
                    let memories = &mut self.slots[usize::from(span.slot.0)];
                    memories.last_mut().expect("it has one for tokens").push(tokens[n_done].0 as u64);
                }
                if self.shape.is_tail {
                    let logits = (span.want == Want::Logits).then(|| self.model.logits(row).collect());
                    self.logits.push(logits.unwrap_or_default());
                    let hidden = (span.want == Want::Hidden).then(|| unfold(row).to_vec());
                    self.hidden.push(hidden.unwrap_or_default());
                } else {
                    out.extend(unfold(row));
                }
                n_done += 1;
            }
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn hidden(&self, row: usize) -> &[f32] {
        &self.hidden[row]
    }

    fn draft(&mut self, wishes: Vec<Wish>) -> Result<Vec<Drafted>, EngineError> {
        self.may_fail()?;
        wishes.into_iter().map(|wish| self.draft_one(wish)).collect()
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        self.may_fail()?;
        let index = usize::from(slot.0);
        let held = self.slots[index][0].len();
        if self.flaws.forgets_to_cut {
            self.leftover[index] = held.saturating_sub(len.0 as usize);
            return Ok(());
        }
        self.leftover[index] = 0;
        self.slots[index].iter_mut().for_each(|memory| memory.truncate(len.0 as usize));
        Ok(())
    }

    fn save(&mut self, slot: Slot) -> Result<Vec<u8>, EngineError> {
        self.may_fail()?;
        let memories = self.slots[usize::from(slot.0)].iter();
        // What no window reaches from the end is not saved: no more than the last row is to be relied on.
        let is_there = |(i, memory): (usize, &Memory)| match self.shape.rewind {
            Rewind::InPlace { window } => i + 1 == memory.len() || memory.len() <= window as usize,
            _ => true,
        };
        let rows = memories.flat_map(|memory| {
            let word = move |i| if is_there((i, memory)) { memory[i] } else { 0 };
            (0..memory.len()).map(word)
        });
        Ok(rows.flat_map(u64::to_le_bytes).collect())
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), EngineError> {
        self.may_fail()?;
        let memories = &mut self.slots[usize::from(slot.0)];
        let n_bytes = bytes.len() / memories.len();
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        for (memory, bytes) in memories.iter_mut().zip(bytes.chunks_exact(n_bytes)) {
            *memory = bytes.chunks_exact(8).map(word).collect();
        }
        self.leftover[usize::from(slot.0)] = 0;
        Ok(())
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        if is_refused(&open.sampler) {
            return Err(EngineError { reason: "the toy cannot sample like that".into() });
        }
        Ok(Box::new(ToySampler::new(open)))
    }
}

fn unpack(row: &[f32]) -> u64 {
    row.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte as u8))
}
