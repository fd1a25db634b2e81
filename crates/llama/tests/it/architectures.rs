//! Every supported architecture, as a tiny random-weight model, cut at every legal boundary.

use std::path::PathBuf;

use gguf::toy::{Toy, Weights, specs, swap_layers};
use gguf::{CutError, Model, Plan, Source};
use llama::{EngineConfig, required_tensors};
use protocol::KvType;
use tempfile::TempDir;

use crate::support::{Line, argmax, cut, difference, tokens};

/// Rows per call, smaller than the prompt.
const CHUNK: usize = 16;
const PROMPT: usize = 33;
const STEPS: usize = 4;
const WINDOW: usize = 5;

struct Bench {
    folder: TempDir,
    whole: PathBuf,
}

impl Bench {
    fn new(toy: Toy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let meta = folder.path().join("meta.gguf");
        toy.write_meta(&meta).unwrap();
        let whole = folder.path().join("whole.gguf");
        toy.write(&required_tensors(&meta).unwrap(), &whole).unwrap();
        Self { folder, whole }
    }
}

fn config(kv: KvType) -> EngineConfig {
    EngineConfig { context: 256, max_rows: CHUNK as u32, kv, ..EngineConfig::new("") }
}

/// Logits of the prompt's last row, of single steps, and of a window.
fn measure(line: &mut Line) -> Vec<Vec<f32>> {
    let tokens = tokens(PROMPT + STEPS + WINDOW, gguf::toy::VOCABULARY as usize, 12_345);
    let mut logits = vec![line.prefill(&tokens[..PROMPT], CHUNK)];
    for at in PROMPT..PROMPT + STEPS {
        logits.append(&mut line.window(at, &tokens[at..=at]));
    }
    logits.append(&mut line.window(PROMPT + STEPS, &tokens[PROMPT + STEPS..]));
    logits
}

/// Every legal cut in two, and one in three, gives the whole model's logits.
fn check(name: &str) {
    let bench = Bench::new(Toy::named(name).unwrap());
    let model = Model::open(&bench.whole).unwrap();
    let source = Source::new(&model).unwrap();
    let whole = measure(&mut Line::load(std::slice::from_ref(&bench.whole), &config(KvType::F16)).unwrap());
    let n = source.n_layers();
    let mut legal = 0;
    for cuts in (1..n).map(|cut| vec![cut]).chain([vec![n / 4, n * 5 / 8]]) {
        match Plan::at_cuts(&source, &cuts) {
            Ok(_) => {
                let (paths, tolerance) = cut(&source, &cuts, bench.folder.path());
                let staged = measure(&mut Line::load(&paths, &config(KvType::F16)).unwrap());
                let found = difference(&whole, &staged);
                assert!(found <= tolerance, "{name} cut at {cuts:?}: {found} instead of {tolerance}");
                legal += 1;
            }
            Err(CutError::Range { .. }) => {}
            Err(other) => panic!("{name} cut at {cuts:?}: {other}"),
        }
    }
    assert!(legal >= n / 2, "{name}: only {legal} of {n} cuts are legal");
    the_test_would_see_an_error(name, &bench, &model, &whole);
}

/// Two layers swapped change the logits, and not every row has the same best token.
fn the_test_would_see_an_error(name: &str, bench: &Bench, model: &Model, whole: &[Vec<f32>]) {
    let swapped = bench.folder.path().join("swapped.gguf");
    let pair = (0..model.n_layers() - 1).find(|&a| swap_layers(model, a, a + 1, &swapped).is_ok());
    assert!(pair.is_some(), "{name} has no two neighbours that are alike");
    let changed = measure(&mut Line::load(&[swapped], &config(KvType::F16)).unwrap());
    let found = difference(whole, &changed);
    assert!(found > 0.01 && found.is_finite(), "{name}: swapped layers change logits by {found} only");
    let best: std::collections::BTreeSet<i32> = whole.iter().map(|row| argmax(row)).collect();
    assert!(best.len() > 1, "{name}: every row's best token is {best:?}");
}

macro_rules! toys {
    ($($test:ident = $name:literal),* $(,)?) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test] fn $test() { check($name); })*
    };
}

toys! {
    cohere2 = "cohere2",
    command_r = "command-r",
    deepseek2_30 = "deepseek2-30",
    deepseek2_lite = "deepseek2-lite",
    deepseek2_mha = "deepseek2-mha",
    deepseek2_mla = "deepseek2-mla",
    ernie4_5 = "ernie4_5",
    exaone4 = "exaone4",
    gemma = "gemma",
    gemma2 = "gemma2",
    gemma2_46 = "gemma2-46",
    gemma3 = "gemma3",
    gemma3_62 = "gemma3-62",
    glm4 = "glm4",
    glm4moe = "glm4moe",
    glm4moe_nextn = "glm4moe-nextn",
    gpt_oss = "gpt-oss",
    granite = "granite",
    granitemoe = "granitemoe",
    hunyuan_dense = "hunyuan-dense",
    hy_v3_nextn = "hy_v3-nextn",
    llama = "llama",
    llama_moe = "llama-moe",
    minicpm = "minicpm",
    mistral3 = "mistral3",
    olmo2 = "olmo2",
    olmo2_swa = "olmo2-swa",
    phi2 = "phi2",
    phi3 = "phi3",
    qwen2 = "qwen2",
    qwen2moe = "qwen2moe",
    qwen3 = "qwen3",
    qwen35_nextn = "qwen35-nextn",
    qwen3moe = "qwen3moe",
    seed_oss = "seed_oss",
    smollm3 = "smollm3",
    stablelm = "stablelm",
    starcoder2 = "starcoder2",
}

#[test]
fn every_toy_is_tested() {
    let names: std::collections::BTreeSet<&str> = specs().iter().map(|spec| spec.name).collect();
    assert_eq!(names, TESTED.iter().copied().collect());
}

/// One cut of every architecture that is bit-equal.
fn check_one_cut(weights: Weights, kv: KvType) {
    for spec in specs().iter().filter(|spec| spec.n_layers <= 8) {
        let bench = Bench::new(Toy::new(spec).weights(weights));
        let model = Model::open(&bench.whole).unwrap();
        let source = Source::new(&model).unwrap();
        let (paths, tolerance) = cut(&source, &[4], bench.folder.path());
        if tolerance > 0.0 {
            continue;
        }
        let whole = Line::load(std::slice::from_ref(&bench.whole), &config(kv));
        let staged = Line::load(&paths, &config(kv));
        match (whole, staged) {
            (Ok(mut whole), Ok(mut staged)) => {
                assert_eq!(difference(&measure(&mut whole), &measure(&mut staged)), 0.0, "{}", spec.name);
            }
            // A head size that blocks of 32 do not divide: llama.cpp refuses the model, cut or not.
            (Err(llama::LoadError::Context { .. }), Err(llama::LoadError::Context { .. })) => {}
            (whole, staged) => panic!("{}: {:?} {:?}", spec.name, whole.err(), staged.err()),
        }
    }
}

#[test]
fn quantised_weights_are_bit_equal_too() {
    check_one_cut(Weights::Q8_0, KvType::F16);
    check_one_cut(Weights::Q4_0, KvType::F16);
}

#[test]
fn quantised_keys_and_values_are_bit_equal_too() {
    check_one_cut(Weights::F32, KvType::Q8_0);
}
