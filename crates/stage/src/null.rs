//! An engine that computes nothing, to measure everything around it: queues, links, batching, sampling's plumbing.
//!
//! It has the shape of any stage and answers at once, or after a given time per call. Its tokens are a hash of the
//! position and the token there, so that a line of any length over 32-bit rows generates the same text. It keeps no
//! keys and values, so it cannot show a wrong rewind: the simulator's toy engine does that.

use std::time::Duration;

use protocol::{LayerRange, Open, Position, Token};

use crate::port::{Engine, EngineError, EngineShape, Input, Rewind, Sampled, Sampler, Slot, Span, Want};

/// How long a call takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTime {
    /// However many rows.
    pub per_call: Duration,
    /// For each row besides.
    pub per_row: Duration,
}

/// See the module.
pub struct NullEngine {
    shape: EngineShape,
    time: CallTime,
    /// Positions that each slot holds.
    held: Vec<u32>,
    /// The token that each row of the last call predicts.
    predicted: Vec<usize>,
    /// The rows of the last call, if somebody wanted them: they went in as the first stage's tokens.
    hidden: Vec<f32>,
    /// `2 * n_vocab - 1` logits, all 0 but the middle one: the slice that begins `t` before the middle favours `t`.
    ruler: Vec<f32>,
}

impl NullEngine {
    /// An engine of the given shape.
    #[must_use]
    pub fn new(shape: EngineShape, time: CallTime) -> Self {
        let mut ruler = vec![0.0; (2 * shape.n_vocab).saturating_sub(1)];
        if let Some(middle) = shape.n_vocab.checked_sub(1) {
            ruler[middle] = 1.0;
        }
        Self {
            held: vec![0; usize::from(shape.n_slots)],
            predicted: Vec::new(),
            hidden: Vec::new(),
            ruler,
            shape,
            time,
        }
    }

    /// The shape of stage `index` of `n_stages`, with one layer each, and 256 tokens none of which ends a text.
    #[must_use]
    pub fn shape(index: u32, n_stages: u32, row_width: usize, n_slots: u16) -> EngineShape {
        let (is_first, is_tail) = (index == 0, index + 1 == n_stages);
        EngineShape {
            layers: LayerRange { start: index, end: index + 1 },
            is_first,
            is_tail,
            row_width,
            n_vocab: if is_first || is_tail { 256 } else { 0 },
            context: 4096,
            n_slots,
            max_rows: 512,
            rewind: Rewind::Anywhere,
            end_tokens: Vec::new(),
            drafts: false,
            weight_bytes: 0,
            kv_bytes: 0,
        }
    }

    /// The token after `token` at `position`.
    #[must_use]
    pub fn successor(position: Position, token: Token, n_vocab: usize) -> Token {
        Token(follow(position, token.0 as f32, n_vocab) as i32)
    }
}

/// SplitMix64's finaliser over position and value.
fn follow(position: Position, value: f32, n_vocab: usize) -> usize {
    let mut x = u64::from(position.0) << 32 | u64::from(value.to_bits());
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) % n_vocab.max(1) as u64) as usize
}

impl Engine for NullEngine {
    fn shape(&self) -> &EngineShape {
        &self.shape
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        let width = self.shape.row_width;
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        let value = |row: usize| match input {
            Input::Tokens(tokens) => tokens[row].0 as f32,
            Input::Rows(rows, _) => rows[row * width],
        };
        out.clear();
        self.predicted.clear();
        let mut row = 0;
        for span in spans {
            let held = &mut self.held[usize::from(span.slot.0)];
            if *held != span.base.0 {
                let reason = format!("slot {} holds {held} positions, not {}", span.slot.0, span.base);
                return Err(EngineError { reason });
            }
            *held = span.base.plus(span.n_rows).0;
            for i in 0..span.n_rows {
                if self.shape.is_tail {
                    self.predicted.push(follow(span.base.plus(i), value(row), self.shape.n_vocab));
                }
                row += 1;
            }
        }
        let above = match self.shape.is_tail {
            true if spans.iter().all(|span| span.want != Want::Hidden) => None,
            true => {
                self.hidden.clear();
                Some(&mut self.hidden)
            }
            false => Some(out),
        };
        match (above, input) {
            (None, _) => {}
            (Some(above), Input::Rows(rows, _)) => above.extend_from_slice(rows),
            (Some(above), Input::Tokens(_)) => {
                above.resize(n_rows * width, 0.0);
                above.chunks_exact_mut(width).enumerate().for_each(|(row, hidden)| hidden[0] = value(row));
            }
        }
        let time = self.time.per_call + self.time.per_row * n_rows as u32;
        if !time.is_zero() {
            #[expect(clippy::disallowed_methods, reason = "stands for the time that a real engine computes")]
            std::thread::sleep(time);
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        let end = self.ruler.len() - self.predicted[row];
        &self.ruler[end - self.shape.n_vocab..end]
    }

    fn hidden(&self, row: usize) -> &[f32] {
        let width = self.shape.row_width;
        &self.hidden[row * width..(row + 1) * width]
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        let held = &mut self.held[usize::from(slot.0)];
        *held = len.0.min(*held);
        Ok(())
    }

    fn sampler(&self, _open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        Ok(Box::new(Greedy))
    }
}

/// The most likely token, the lowest id of equals, whatever the parameters say.
struct Greedy;

impl Sampler for Greedy {
    fn prompt(&mut self, _token: Token) {}

    fn sample(&mut self, _position: Position, logits: &[f32]) -> Result<Sampled, EngineError> {
        let best = (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        Ok(Sampled { token: Token(best as i32), logprobs: None, mu: None, grammar_ended: false })
    }
}
