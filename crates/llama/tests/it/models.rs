//! The two real test models: slices against the whole, several slots, other storage of keys and values.

use gguf::{Model, Source};
use llama::{EngineConfig, Reference, Vocab};
use protocol::{KvType, Token};

use crate::support::{GEMMA3, Line, SMOLLM2, argmax, cut, difference, model, span};

const TEXT: &str = "The history of the steam engine begins in the first century AD, when Hero of Alexandria described \
    the aeolipile, a hollow ball that turned when it was heated. It was a toy. ";

pub(crate) fn prompt(name: &str, n: usize) -> Vec<i32> {
    let vocab = Vocab::load(&model(name)).unwrap();
    let tokens = vocab.tokenize(&TEXT.repeat(8), true, false).unwrap();
    assert!(tokens.len() >= n, "the text has {} tokens", tokens.len());
    tokens[..n].iter().map(|token| token.0).collect()
}

fn config(kv: KvType) -> EngineConfig {
    EngineConfig { context: 512, max_rows: 160, kv, ..EngineConfig::new("") }
}

/// A prompt, greedy steps, and a window; then the window again after cutting it off.
fn measure(line: &mut Line, prompt: &[i32]) -> Vec<Vec<f32>> {
    let mut logits = vec![line.prefill(prompt, 160)];
    let mut at = prompt.len();
    for _ in 0..16 {
        let token = argmax(&logits[logits.len() - 1]);
        logits.append(&mut line.window(at, &[token]));
        at += 1;
    }
    let window: Vec<i32> = prompt[..5].to_vec();
    let first = line.window(at, &window);
    line.truncate(at);
    let again = line.window(at, &window);
    assert_eq!(difference(&first, &again), 0.0, "a window after a cut differs from the first time");
    logits.extend(first);
    logits
}

fn slices_equal_the_whole(name: &str, cuts: &[u32], kv: KvType) {
    let path = model(name);
    let folder = tempfile::tempdir().unwrap();
    let file = Model::open(&path).unwrap();
    let (paths, _) = cut(&Source::new(&file).unwrap(), cuts, folder.path());
    let prompt = prompt(name, 140);
    let whole = measure(&mut Line::load(&[path], &config(kv)).unwrap(), &prompt);
    let staged = measure(&mut Line::load(&paths, &config(kv)).unwrap(), &prompt);
    assert_eq!(difference(&whole, &staged), 0.0);
}

#[test]
fn smollm2_in_three_slices_equals_the_whole() {
    slices_equal_the_whole(SMOLLM2, &[10, 20], KvType::F16);
}

#[test]
fn gemma3_in_three_slices_equals_the_whole() {
    slices_equal_the_whole(GEMMA3, &[7, 13], KvType::F16);
}

#[test]
fn smollm2_equals_the_whole_with_8_bit_keys_and_values() {
    slices_equal_the_whole(SMOLLM2, &[10, 20], KvType::Q8_0);
}

#[test]
fn gemma3_equals_the_whole_with_4_bit_keys_and_values() {
    slices_equal_the_whole(GEMMA3, &[5, 12], KvType::Q4_0);
}

/// Three sequences, one call for all of them, in exact arithmetic, on two slices.
#[test]
fn in_exact_mode_slots_do_not_feel_their_neighbours_or_their_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let file = Model::open(&model(GEMMA3)).unwrap();
    let (paths, _) = cut(&Source::new(&file).unwrap(), &[7], folder.path());
    let config = EngineConfig { n_slots: 3, exact: true, ..config(KvType::F16) };
    let text = prompt(GEMMA3, 60);
    let prompts = [&text[..20], &text[20..40], &text[40..60]];
    let mut together = Line::load(&paths, &config).unwrap();
    let spans: Vec<_> = (0..3).map(|slot| span(slot, 0, 20, true)).collect();
    let all = together.call(&spans, &prompts.concat());
    let next: Vec<i32> = (0..3).map(|slot| argmax(&all[slot * 20 + 19])).collect();
    let spans: Vec<_> = (0..3).map(|slot| span(slot, 20, 1, true)).collect();
    let step = together.call(&spans, &next);
    for (slot, prompt) in prompts.iter().enumerate() {
        let mut alone = Line::load(&paths, &config).unwrap();
        let mut logits = alone.window(0, &prompt[..7]);
        logits.extend(alone.window(7, &prompt[7..]));
        assert_eq!(difference(&logits, &all[slot * 20..][..20]), 0.0, "prompt of slot {slot}");
        let logits = alone.window(20, &next[slot..=slot]);
        assert_eq!(difference(&logits, &step[slot..=slot]), 0.0, "step of slot {slot}");
    }
}

#[test]
fn exact_arithmetic_equals_itself_in_slices_with_8_bit_keys_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(SMOLLM2);
    let file = Model::open(&path).unwrap();
    let (paths, _) = cut(&Source::new(&file).unwrap(), &[15], folder.path());
    let config = EngineConfig { exact: true, ..config(KvType::Q8_0) };
    let prompt = prompt(SMOLLM2, 48);
    let whole = Line::load(&[path], &config).unwrap().prefill(&prompt, 160);
    // Other chunks: in exact mode they change nothing.
    let staged = Line::load(&paths, &config).unwrap().prefill(&prompt, 9);
    assert_eq!(difference(&[whole], &[staged]), 0.0);
}

#[test]
fn an_engine_generates_what_plain_llama_cpp_generates() {
    for name in [SMOLLM2, GEMMA3] {
        let prompt = prompt(name, 50);
        let tokens: Vec<Token> = prompt.iter().copied().map(Token).collect();
        let plain = Reference::load(&model(name), 256, 1).unwrap().generate(&tokens, 16).unwrap();
        let mut line = Line::load(&[model(name)], &config(KvType::F16)).unwrap();
        let mut drawn = vec![argmax(&line.prefill(&prompt[..49], 160))];
        drawn[0] = prompt[49];
        for at in 49..65 {
            let next = argmax(&line.window(at, &[drawn[at - 49]])[0]);
            drawn.push(next);
        }
        assert_eq!(drawn[1..], plain.tokens.iter().map(|token| token.0).collect::<Vec<_>>());
    }
}
