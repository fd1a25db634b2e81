//! Models with recurrent layers: decoding that takes nothing back or a little, several sequences, and what is saved of them.

use gguf::arch::{self, Architecture, Rewind};
use gguf::toy::{Toy, ToySpec, specs};
use gguf::{Model, Source};
use llama::EngineConfig;
use stage::Engine;

use crate::architectures::Bench;
use crate::support::{Line, cut, difference, span, tokens};

const PROMPT: usize = 20;
const STEPS: usize = 6;
/// One with snapshots, one of each other family: state spaces alone, both kinds in a layer, short convolutions.
const MODELS: [&str; 5] = ["qwen35", "mamba2", "falcon-h1", "lfm2", "granitehybrid"];

fn config(n_slots: u16) -> EngineConfig {
    EngineConfig { context: 256, n_slots, max_rows: 16, ..EngineConfig::new("") }
}

/// A toy in two stages.
fn line(name: &str, config: &EngineConfig) -> Line {
    let bench = Bench::new(Toy::named(name).unwrap());
    let model = Model::open(&bench.whole).unwrap();
    let (paths, _) = cut(&Source::new(&model).unwrap(), &[3], bench.folder());
    Line::load(&paths, config).unwrap()
}

fn text(seed: u64) -> Vec<i32> {
    tokens(PROMPT + STEPS, gguf::toy::VOCABULARY as usize, seed)
}

/// Logits of every token behind the prompt, each in a call of its own.
fn decode(line: &mut Line, slot: u16, text: &[i32], from: usize) -> Vec<Vec<f32>> {
    (from..text.len()).flat_map(|at| line.call(&[span(slot, at, 1, true)], &text[at..=at])).collect()
}

#[test]
fn sequences_that_take_turns_are_as_they_are_alone() {
    for name in MODELS {
        let texts = [text(1), text(2)];
        let alone = texts.each_ref().map(|text| {
            let mut line = line(name, &config(1));
            line.call(&[span(0, 0, 10, false)], &text[..10]);
            line.call(&[span(0, 10, 10, false)], &text[10..PROMPT]);
            decode(&mut line, 0, text, PROMPT)
        });
        let mut line = line(name, &config(2));
        for (from, to) in [(0, 10), (10, PROMPT)] {
            for (slot, text) in (0..).zip(&texts) {
                line.call(&[span(slot, from, to - from, false)], &text[from..to]);
            }
        }
        for at in PROMPT..PROMPT + STEPS {
            for (slot, text) in (0..).zip(&texts) {
                let logits = line.call(&[span(slot, at, 1, true)], &text[at..=at]);
                let found = difference(&logits, &alone[usize::from(slot)][at - PROMPT..=at - PROMPT]);
                assert_eq!(found, 0.0, "{name} slot {slot} position {at}");
            }
        }
    }
}

#[test]
fn what_was_saved_goes_on_as_if_nothing_had_been() {
    for name in MODELS {
        let text = text(3);
        let mut line = line(name, &config(2));
        for (from, to) in [(0, 10), (10, PROMPT)] {
            line.call(&[span(0, from, to - from, false)], &text[from..to]);
        }
        let saved = line.save(0);
        let first = decode(&mut line, 0, &text, PROMPT);
        line.load_saved(1, &saved);
        assert_eq!(difference(&first, &decode(&mut line, 1, &text, PROMPT)), 0.0, "{name}");
        // Nothing is taken back, but a slot can be emptied and begun again.
        assert!(!line.try_cut(0, PROMPT), "{name}");
        line.cut(0, 0);
        for (from, to) in [(0, 10), (10, PROMPT)] {
            line.call(&[span(0, from, to - from, false)], &text[from..to]);
        }
        assert_eq!(difference(&first, &decode(&mut line, 0, &text, PROMPT)), 0.0, "{name}");
    }
}

/// A line that reads an answer again, in chunks, after a stage was lost, goes on from the very state that it had.
#[test]
fn what_was_decoded_can_be_read_again_in_chunks_to_the_last_bit() {
    let is_recurrent = |spec: &&ToySpec| arch::find(spec.arch).is_ok_and(Architecture::is_recurrent);
    let mut n = 0;
    for ToySpec { name, .. } in specs().iter().filter(is_recurrent) {
        let bench = Bench::new(Toy::named(name).unwrap());
        let config = EngineConfig { exact: true, ..config(1) };
        let mut line = Line::load(std::slice::from_ref(&bench.whole), &config).unwrap();
        let text = text(4);
        let last = text.len() - 1;
        let by_one = decode(&mut line, 0, &text, 0);
        for chunk in [5, 16] {
            line.cut(0, 0);
            for from in (0..last).step_by(chunk) {
                let n = chunk.min(last - from);
                line.call(&[span(0, from, n, false)], &text[from..from + n]);
            }
            let again = decode(&mut line, 0, &text, last);
            assert_eq!(difference(&by_one[last..], &again), 0.0, "{name} in chunks of {chunk}");
        }
        n += 1;
    }
    assert!(n >= MODELS.len(), "{n} toys");
}

/// Toys whose recurrent layers can take back rows of the last call.
fn with_snapshots() -> Vec<&'static str> {
    let has = |spec: &&ToySpec| arch::find(spec.arch).is_ok_and(|arch| arch.rewind == Rewind::Snapshots);
    let names: Vec<_> = specs().iter().filter(has).map(|spec| spec.name).collect();
    assert!(names.len() >= 7, "{names:?}");
    names
}

/// Windows of which all guesses can be wrong, and others that are computed, emptied or loaded before that is known.
#[test]
fn rows_of_the_last_call_can_be_taken_back_whatever_became_of_others_since() {
    const TEXT: usize = 60;
    for name in with_snapshots() {
        let mut line = line(name, &EngineConfig { exact: true, undo_rows: 3, ..config(3) });
        assert_eq!(line.tail().shape().rewind, stage::Rewind::LastCall { rows: 3 }, "{name}");
        let tokens = tokens(TEXT, gguf::toy::VOCABULARY as usize, 5);
        let plain = decode(&mut line, 0, &tokens, 0);
        line.cut(0, 0);
        line.call(&[span(2, 0, 5, false)], &tokens[3..8]);
        let saved = line.save(2);
        let (mut at, mut n_other) = (0, 5);
        for width in [2, 4, 3, 1].into_iter().cycle() {
            let right = (1 + at % width).min(TEXT - at);
            let mut window = tokens[at..at + right].to_vec();
            window.extend((right..width).map(|wrong| 100 + wrong as i32));
            let logits = line.call(&[span(1, at, window.len(), true)], &window);
            let found = difference(&logits[..right], &plain[at..at + right]);
            assert_eq!(found, 0.0, "{name} at {at}, {width} wide");
            match at % 3 {
                0 => line.call(&[span(2, n_other, 2, false)], &tokens[n_other..n_other + 2]),
                1 => {
                    line.cut(2, 0);
                    line.call(&[span(2, 0, 4, false)], &tokens[..4])
                }
                _ => {
                    line.load_saved(2, &saved);
                    Vec::new()
                }
            };
            n_other = [n_other + 2, 4, 5][at % 3];
            at += right;
            line.cut(1, at);
            if at == TEXT {
                break;
            }
        }
    }
}

/// llama.cpp would take a whole call back, and earlier ones too, say that it did, and leave a state that was never there.
#[test]
fn no_call_is_taken_back_whole_and_none_before_the_last() {
    const BASE: usize = 10;
    for name in with_snapshots() {
        let mut line = line(name, &EngineConfig { exact: true, undo_rows: 3, ..config(1) });
        let tokens = tokens(BASE + 7, gguf::toy::VOCABULARY as usize, 6);
        let plain = decode(&mut line, 0, &tokens, 0);
        for width in 1..=3 {
            line.cut(0, 0);
            line.call(&[span(0, 0, BASE, false)], &tokens[..BASE]);
            let mut at = BASE;
            for window in ["the first", "the second"] {
                line.call(&[span(0, at, width, true)], &tokens[at..at + width]);
                for before in BASE - 1..=at {
                    assert!(!line.try_cut(0, before), "{name}: {window} of {width} rows, back to {before}");
                }
                at += width;
            }
            // Nothing has come of it.
            let logits = line.call(&[span(0, at, 1, true)], &tokens[at..=at]);
            assert_eq!(difference(&logits, &plain[at..=at]), 0.0, "{name}, {width} rows");
        }
    }
}

#[test]
fn between_two_calls_rows_are_taken_back_once() {
    const BASE: usize = 10;
    for name in with_snapshots() {
        let mut line = line(name, &EngineConfig { exact: true, undo_rows: 3, ..config(1) });
        let tokens = tokens(BASE + 4, gguf::toy::VOCABULARY as usize, 7);
        let plain = decode(&mut line, 0, &tokens, 0);
        for (first, second) in [(3, 2), (3, 1), (2, 1)] {
            line.cut(0, 0);
            line.call(&[span(0, 0, BASE, false)], &tokens[..BASE]);
            line.call(&[span(0, BASE, 4, true)], &tokens[BASE..]);
            line.cut(0, BASE + first);
            assert!(!line.try_cut(0, BASE + second), "{name}: back to {second} behind {first}");
            let at = BASE + first;
            let logits = line.call(&[span(0, at, 1, true)], &tokens[at..=at]);
            assert_eq!(difference(&logits, &plain[at..=at]), 0.0, "{name}: {second} behind {first}");
        }
    }
}
