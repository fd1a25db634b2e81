//! What an engine refuses, and that refusing costs nothing.

use std::path::PathBuf;

use gguf::toy::Toy;
use gguf::{Identity, Model, Source};
use llama::{EngineConfig, LlamaEngine, LoadError, required_tensors};
use protocol::{Position, Token};
use stage::{Cancel, Engine, Input, Rewind, Slot};
use tempfile::TempDir;

use crate::support::{Line, difference, span, tokens};

fn toy(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let meta = folder.path().join("meta.gguf");
    let toy = Toy::named(name).unwrap();
    toy.write_meta(&meta).unwrap();
    let path = folder.path().join("whole.gguf");
    toy.write(&required_tensors(&meta).unwrap(), &path).unwrap();
    (folder, path)
}

fn config(path: &std::path::Path) -> EngineConfig {
    EngineConfig { context: 200, n_slots: 3, max_rows: 16, ..EngineConfig::new(path) }
}

fn load(config: &EngineConfig) -> Result<LlamaEngine, LoadError> {
    LlamaEngine::load(config, &mut |_| ())
}

#[test]
fn the_shape_is_true() {
    let (_folder, path) = toy("llama");
    let mut progress = Vec::new();
    let engine = LlamaEngine::load(&config(&path), &mut |share| progress.push(share)).unwrap();
    let shape = engine.shape();
    assert!(shape.is_first && shape.is_tail);
    assert_eq!((shape.layers.start, shape.layers.end), (0, 8));
    assert_eq!((shape.row_width, shape.n_vocab), (128, 512));
    assert_eq!((shape.context, shape.n_slots, shape.max_rows), (256, 3, 16), "contexts come in steps of 256");
    assert_eq!(shape.rewind, Rewind::Anywhere);
    // 8 layers, 2 heads of 32 for keys and values, half precision.
    assert_eq!(shape.kv_bytes, 8 * 2 * 32 * 2 * 2 * 256 * 3);
    assert!(shape.weight_bytes > 1 << 20);
    assert!(progress.is_sorted() && progress.last() == Some(&1.0), "{progress:?}");
}

#[test]
fn a_call_without_wanted_logits_computes_and_has_none() {
    let (_folder, path) = toy("llama");
    let tokens = tokens(12, 512, 3);
    let mut quiet = Line::load(std::slice::from_ref(&path), &config(&path)).unwrap();
    quiet.call(&[span(0, 0, 11, false)], &tokens[..11]);
    let after_quiet = quiet.window(11, &tokens[11..]);
    let mut loud = Line::load(std::slice::from_ref(&path), &config(&path)).unwrap();
    loud.window(0, &tokens[..11]);
    assert_eq!(difference(&after_quiet, &loud.window(11, &tokens[11..])), 0.0);
}

#[test]
fn bad_calls_are_refused_and_leave_the_slots_as_they_were() {
    let (_folder, path) = toy("llama");
    let mut engine = load(&config(&path)).unwrap();
    let mut out = Vec::new();
    let mut run =
        |spans: &[stage::Span], tokens: &[Token]| engine.run(spans, Input::Tokens(tokens), &mut out);
    let token = |n| vec![Token(1); n];
    run(&[span(0, 0, 4, true)], &token(4)).unwrap();
    let bad: [(&[stage::Span], Vec<Token>, &str); 9] = [
        (&[], token(0), "without rows"),
        (&[span(0, 5, 1, true)], token(1), "holds 4 positions"),
        (&[span(0, 3, 1, true)], token(1), "holds 4 positions"),
        (&[span(3, 0, 1, true)], token(1), "contiguous"),
        (&[span(0, 4, 2, true), span(1, 0, 1, true)], token(3), "equal rows"),
        (&[span(1, 0, 1, true), span(0, 4, 1, true)], token(2), "contiguous"),
        (&[span(0, 4, 17, true)], token(17), "16 fit"),
        (&[span(0, 4, 2, true)], token(1), "1 tokens for 2 rows"),
        (&[span(0, 4, 1, true)], vec![Token(512)], "not in the vocabulary"),
    ];
    for (spans, tokens, reason) in bad {
        let error = run(spans, &tokens).unwrap_err();
        assert!(error.reason.contains(reason), "{error} instead of {reason}");
    }
    run(&[span(0, 4, 1, true), span(1, 0, 1, true)], &token(2)).unwrap();
    run(&[span(0, 5, 4, true)], &token(4)).unwrap();
}

/// llama.cpp interleaves their rows, so that what leaves a stage would be in another order.
#[test]
fn recurrent_layers_take_one_sequence_in_a_call() {
    for name in ["qwen35", "mamba2"] {
        let (_folder, path) = toy(name);
        let mut engine = load(&config(&path)).unwrap();
        let mut out = Vec::new();
        let mut run = |spans: &[stage::Span]| {
            let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
            engine.run(spans, Input::Tokens(&vec![Token(1); n_rows]), &mut out)
        };
        for n_rows in [1, 4] {
            let error = run(&[span(0, 0, n_rows, true), span(1, 0, n_rows, true)]).unwrap_err();
            assert!(error.reason.contains("several sequences"), "{name}: {error}");
        }
        run(&[span(0, 0, 4, true)]).unwrap();
        run(&[span(1, 0, 4, true)]).unwrap();
    }
}

#[test]
fn a_stopped_call_leaves_the_slots_as_they_were() {
    for name in ["llama", "gemma3"] {
        let (_folder, path) = toy(name);
        let text: Vec<Token> = tokens(20, 512, 7).into_iter().map(Token).collect();
        let spans = [span(0, 4, 3, true), span(1, 4, 3, true)];
        let input: Vec<Token> = text[4..7].iter().chain(&text[11..14]).copied().collect();
        let mut logits = [true, false].map(|is_stopped| {
            let mut engine = load(&config(&path)).unwrap();
            let mut out = Vec::new();
            let cancel = Cancel::default();
            engine.heed(cancel.clone());
            let begin: Vec<Token> = text[..4].iter().chain(&text[7..11]).copied().collect();
            engine
                .run(&[span(0, 0, 4, false), span(1, 0, 4, false)], Input::Tokens(&begin), &mut out)
                .unwrap();
            if is_stopped {
                cancel.raise();
                let error = engine.run(&spans, Input::Tokens(&input), &mut out).unwrap_err();
                assert!(engine.was_cancelled(), "{error}");
                cancel.clear();
            }
            engine.run(&spans, Input::Tokens(&input), &mut out).unwrap();
            assert!(!engine.was_cancelled());
            (0..6).map(|row| engine.logits(row).to_vec()).collect::<Vec<_>>()
        });
        let [stopped, never] = logits.each_mut().map(std::mem::take);
        assert_eq!(difference(&stopped, &never), 0.0, "{name}");
    }
}

#[test]
fn the_context_ends_where_the_shape_says() {
    let (_folder, path) = toy("llama");
    let mut engine = load(&config(&path)).unwrap();
    let mut out = Vec::new();
    for base in (0..256).step_by(16) {
        engine.run(&[span(1, base, 16, false)], Input::Tokens(&[Token(2); 16]), &mut out).unwrap();
    }
    let error = engine.run(&[span(1, 256, 1, true)], Input::Tokens(&[Token(2)]), &mut out).unwrap_err();
    assert!(error.reason.contains("outside the context"), "{error}");
    engine.truncate(Slot(1), Position(255)).unwrap();
    engine.run(&[span(1, 255, 1, true)], Input::Tokens(&[Token(2)]), &mut out).unwrap();
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_loaded() {
    let (_folder, path) = toy("llama");
    let good = config(&path);
    let refusal = |config: EngineConfig| load(&config).err().expect("it is refused").to_string();
    assert!(refusal(EngineConfig { n_slots: 0, ..good.clone() }).contains("slots"));
    assert!(refusal(EngineConfig { n_slots: 257, ..good.clone() }).contains("slots"));
    assert!(refusal(EngineConfig { threads: 0, ..good.clone() }).contains("threads"));
    assert!(refusal(EngineConfig { max_rows: 5000, ..good.clone() }).contains("rows"));
    assert!(refusal(EngineConfig { exact: true, gpu_layers: 1, ..good.clone() }).contains("CPU"));
    assert!(
        refusal(EngineConfig { gpu_layers: 1, device: Some("Abacus0".into()), ..good.clone() })
            .contains("Abacus0")
    );
    for undo_rows in [16, u32::MAX] {
        assert!(refusal(EngineConfig { undo_rows, ..good.clone() }).contains("cannot be undone"));
    }
    assert!(refusal(EngineConfig::new("/nowhere/at-all.gguf")).contains("/nowhere/at-all.gguf"));
    let huge = load(&EngineConfig { context: 1 << 24, n_slots: 256, ..good }).err().expect("it is refused");
    assert!(matches!(huge, LoadError::Memory { .. }), "{huge}");
    let text = huge.to_string();
    assert!(text.contains("GiB") && text.contains("are free"), "{text}");
}

/// llama.cpp aborts unless a call has two rows more than can be undone.
#[test]
fn what_can_be_undone_is_less_than_a_call() {
    for name in ["qwen35", "lfm2"] {
        let (_folder, path) = toy(name);
        for undo_rows in [1, 3, 15] {
            let of = |max_rows| EngineConfig { undo_rows, max_rows, n_slots: 1, ..config(&path) };
            for max_rows in [undo_rows, undo_rows + 1] {
                let refused = load(&of(max_rows)).err().expect("it is refused");
                assert!(matches!(&refused, LoadError::Config(why) if why.contains("undone")), "{refused}");
            }
            let mut engine = load(&of(undo_rows + 2)).unwrap();
            let tokens = vec![Token(1); undo_rows as usize + 2];
            engine.run(&[span(0, 0, tokens.len(), true)], Input::Tokens(&tokens), &mut Vec::new()).unwrap();
            engine.truncate(Slot(0), Position(2)).unwrap();
        }
    }
}

#[test]
fn a_wrong_capture_is_refused_at_load() {
    let (folder, path) = toy("llama");
    let model = Model::open(&path).unwrap();
    let slice = folder.path().join("slice.gguf");
    gguf::write_slice(&Source::new(&model).unwrap(), Identity([0; 32]), 2..5, &slice, &mut |_, _| ())
        .unwrap();
    for max_rows in [1, 2, 16] {
        load(&EngineConfig { max_rows, ..config(&slice) }).unwrap();
    }
    let original = std::fs::read(&slice).unwrap();
    let spoil = |name: &str| {
        let at =
            original.windows(7).position(|bytes| bytes == b"l_out-2").expect("the slice names its capture");
        let mut bytes = original.clone();
        bytes[at..at + 7].copy_from_slice(name.as_bytes());
        std::fs::write(&slice, bytes).unwrap();
        load(&config(&slice)).err().expect("it is refused").to_string()
    };
    // The layer before: right name, right shape, wrong tensor. And one that does not exist.
    assert!(spoil("l_out-1").contains("not what leaves the last layer"));
    assert!(spoil("l_out-9").contains("0 values of tensor l_out-9"));
}
