//! A model made of hashes. The hidden row at (layer, position) is a hash of the row below and of all rows that the
//! layer has seen so far, so that one missing, stale or misplaced row changes every token behind it.
//!
//! Owns: the model, the engine that computes a range of its layers, its sampler, and decoding one token after
//! another, which is what every other way of decoding must agree with.

mod engine;
mod sampler;

pub(crate) use engine::{Flaws, ToyEngine};
pub(crate) use sampler::ToySampler;

use protocol::{End, LayerRange, Open, Position, Token};
use stage::{EngineShape, Rewind, Sampler};

use crate::random::{mix, mix2};

/// Values in a hidden row: one byte of a 64-bit hash each, so that half-precision rows carry them exactly.
pub(crate) const ROW_WIDTH: usize = 8;

/// The toy model.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) n_layers: u32,
    pub(crate) n_vocab: u32,
    /// Ascending.
    pub(crate) end_tokens: Vec<Token>,
    pub(crate) salt: u64,
}

/// What a stage's engine holds besides its layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) context: u32,
    pub(crate) n_slots: u16,
    pub(crate) max_rows: usize,
    pub(crate) rewind: Rewind,
    /// How often the tail's own drafts are right, in percent; none if it does not draft.
    pub(crate) drafts: Option<u32>,
}

impl Model {
    pub(crate) fn shape(&self, layers: LayerRange, sizes: Sizes) -> EngineShape {
        let (is_first, is_tail) = (layers.start == 0, layers.end == self.n_layers);
        EngineShape {
            layers,
            is_first,
            is_tail,
            row_width: ROW_WIDTH,
            n_vocab: if is_first || is_tail { self.n_vocab as usize } else { 0 },
            context: sizes.context,
            n_slots: sizes.n_slots,
            max_rows: sizes.max_rows,
            rewind: sizes.rewind,
            end_tokens: if is_tail { self.end_tokens.clone() } else { Vec::new() },
            drafts: is_tail && sizes.drafts.is_some(),
            weight_bytes: 0,
            kv_bytes: 0,
        }
    }

    const fn embed(&self, token: Token) -> u64 {
        mix2(self.salt, token.0 as u64)
    }

    /// One layer at one position: the row, given the row below and everything that the layer remembers, this row included.
    const fn layer(layer: u32, below: u64, memory: u64) -> u64 {
        mix2(mix2(below, layer as u64), memory)
    }

    pub(crate) fn logits(&self, row: u64) -> impl Iterator<Item = f32> {
        (0..u64::from(self.n_vocab)).map(move |token| (mix2(row, token) >> 40) as f32 / (1 << 21) as f32)
    }
}

/// What a layer remembers after one more row.
const fn remember(memory: u64, position: u32, below: u64) -> u64 {
    mix2(memory, mix(below ^ (position as u64) << 32))
}

/// A hidden row as an engine gives it.
pub(crate) fn unfold(row: u64) -> [f32; ROW_WIDTH] {
    row.to_le_bytes().map(f32::from)
}

/// One token after another through the whole model.
pub(crate) struct Walk<'a> {
    model: &'a Model,
    memories: Vec<u64>,
    position: u32,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(model: &'a Model) -> Self {
        Self { model, memories: vec![0; model.n_layers as usize], position: 0 }
    }

    /// The hidden row of the next token.
    pub(crate) fn step(&mut self, token: Token) -> u64 {
        let mut row = self.model.embed(token);
        for (layer, memory) in (0..).zip(&mut self.memories) {
            *memory = remember(*memory, self.position, row);
            row = Model::layer(layer, row, *memory);
        }
        self.position += 1;
        row
    }
}

/// Decodes as a person would explain it: one token at a time, nothing batched, cut, guessed or rewound.
pub(crate) fn sequential(model: &Model, open: &Open, prompt: &[Token]) -> (Vec<Token>, End) {
    let mut walk = Walk::new(model);
    let mut sampler = ToySampler::new(open);
    let mut run = |token: Token| model.logits(walk.step(token)).collect::<Vec<_>>();
    let mut logits = Vec::new();
    for &token in prompt {
        sampler.prompt(token);
        logits = run(token);
    }
    let mut answer = Vec::new();
    loop {
        let at = Position(0).plus(prompt.len() + answer.len());
        let token = sampler.sample(at, &logits).expect("the toy samples whatever it is given").token;
        answer.push(token);
        if !open.ignore_eos && model.end_tokens.contains(&token) {
            return (answer, End::EndOfGeneration);
        }
        if at.plus(1) == open.limit {
            return (answer, End::Limit);
        }
        logits = run(token);
    }
}
