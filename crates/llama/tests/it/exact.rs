//! Exact arithmetic on the real models: a row's logits are the same to the last bit, whatever shares its call.

use std::ops::Range;

use llama::EngineConfig;
use protocol::KvType;
use stage::Span;

use crate::models::prompt;
use crate::support::{GEMMA3, Line, SMOLLM2, model, span};

/// Rows whose logits are compared.
const ROWS: usize = 16;
/// Where they begin in each slot. In the first one they cross position 256, where llama.cpp looks at more of its memory
/// at once.
const BASES: [usize; 3] = [248, 40, 17];
const SLOTS: u16 = BASES.len() as u16;

/// Rows side by side, shape after shape.
struct Bench {
    line: Line,
    text: Vec<i32>,
    /// Bits of the logits of each row in a call of its own, slot by slot.
    alone: Vec<Vec<Vec<u32>>>,
}

impl Bench {
    /// The slots hold other texts; their rows are computed one by one.
    fn new(name: &str, kv: KvType) -> Self {
        let config = EngineConfig {
            context: 512,
            max_rows: 160,
            n_slots: SLOTS,
            exact: true,
            kv,
            ..EngineConfig::new("")
        };
        let mut bench = Self {
            line: Line::load(&[model(name)], &config).expect("the model loads"),
            text: prompt(name, BASES[0] + ROWS),
            alone: Vec::new(),
        };
        for (slot, end) in (0..).zip(BASES) {
            for base in (0..end).step_by(124) {
                let n = (end - base).min(124);
                bench.line.call(&[span(slot, base, n, false)], &bench.tokens(slot, base, n));
            }
        }
        for slot in 0..SLOTS {
            let rows = (0..ROWS).flat_map(|row| bench.rows(slot..slot + 1, row, 1)).collect();
            bench.alone.push(rows);
        }
        bench
    }

    /// Each slot reads the text from another place.
    fn tokens(&self, slot: u16, base: usize, n: usize) -> Vec<i32> {
        self.text[usize::from(slot) * 60 + base..][..n].to_vec()
    }

    /// `n` rows of each of these slots from row `row` on, in one call. The rows before must have been computed.
    fn rows(&mut self, slots: Range<u16>, row: usize, n: usize) -> Vec<Vec<u32>> {
        let base = |slot: u16| BASES[usize::from(slot)] + row;
        slots.clone().for_each(|slot| self.line.cut(slot, base(slot)));
        let spans: Vec<Span> = slots.clone().map(|slot| span(slot, base(slot), n, true)).collect();
        let tokens: Vec<i32> = slots.flat_map(|slot| self.tokens(slot, base(slot), n)).collect();
        let logits = self.line.call(&spans, &tokens);
        logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
    }

    /// Rows of these slots from `row` on, in calls of these widths one after the other.
    fn check(&mut self, slots: Range<u16>, mut row: usize, widths: &[usize]) {
        for &n in widths {
            let found = self.rows(slots.clone(), row, n);
            for (i, found) in found.iter().enumerate() {
                let (slot, row) = (usize::from(slots.start) + i / n, row + i % n);
                let is_same = *found == self.alone[slot][row];
                assert!(is_same, "row {row} of slot {slot} differs, slots {slots:?} in calls of {widths:?}");
            }
            row += n;
        }
    }
}

fn every_shape_gives_the_same_bits(name: &str, kv: KvType) {
    let mut bench = Bench::new(name, kv);
    for width in 2..=ROWS {
        // Around position 256.
        bench.check(0..1, ROWS / 2 - width / 2, &[width]);
    }
    bench.check(0..1, 0, &[1, 7, 2, 5, 1]);
    // Beside others in the same call.
    bench.check(0..SLOTS, 0, &[16]);
    bench.check(0..SLOTS, 0, &[1, 4, 3, 7, 1]);
    bench.check(0..2, 5, &[2, 8]);
    bench.check(1..SLOTS, 3, &[5, 6]);
}

#[test]
fn every_shape_gives_smollm2_the_same_bits() {
    every_shape_gives_the_same_bits(SMOLLM2, KvType::F16);
}

#[test]
fn every_shape_gives_smollm2_the_same_bits_with_8_bit_keys_and_values() {
    every_shape_gives_the_same_bits(SMOLLM2, KvType::Q8_0);
}

#[test]
fn every_shape_gives_gemma3_the_same_bits() {
    every_shape_gives_the_same_bits(GEMMA3, KvType::F16);
}

#[test]
fn every_shape_gives_gemma3_the_same_bits_with_8_bit_keys_and_values() {
    every_shape_gives_the_same_bits(GEMMA3, KvType::Q8_0);
}
