//! Models that have few layers, or none of some kind that llama.cpp takes for granted: each is refused, or runs whole and cut.
//! One on which llama.cpp aborts ends this process, and so fails the tests.

use std::path::PathBuf;

use gguf::arch::{RecurrentLayers, Rule};
use gguf::toy::{Toy, ToySpec, specs};
use gguf::{CutError, Metadata, Model, Plan, Source, Value};
use llama::EngineConfig;

use crate::architectures::{Bench, is_soak, turn};
use crate::support::{Line, cut, difference, tokens};

/// Another value of a key, which makes all layers of one kind, or some of another.
struct Change {
    key: &'static str,
    /// Its value in a model of so many layers and blocks that draft.
    value: fn(usize, usize) -> Value,
    /// What the model then has none of; nothing if it runs.
    without: Option<&'static str>,
}

const fn change(
    key: &'static str,
    value: fn(usize, usize) -> Value,
    without: Option<&'static str>,
) -> Change {
    Change { key, value, without }
}

const NO_WINDOW: Option<&str> = Some("no layer has a sliding window");
const NO_RECURRENCE: Option<&str> = Some("no layer is recurrent");
const MISSING: Option<&str> = Some("a layer that it counts on is missing");
const NO_ATTENTION: Option<&str> = Some("no layer has attention");

/// There must be a window, too.
const WINDOWS: &str = "attention.sliding_window_pattern";
const OF_WINDOWS: &[Change] = &[
    change(WINDOWS, |n, m| Value::bools(&vec![false; n + m]), NO_WINDOW),
    change(WINDOWS, |n, m| Value::bools(&vec![true; n + m]), None),
];
const OF_INTERVALS: &[Change] = &[
    change("full_attention_interval", |_, _| 1_u32.into(), NO_RECURRENCE),
    change("full_attention_interval", |_, _| 99_u32.into(), NO_ATTENTION),
    change("full_attention_interval", |_, _| 2_u32.into(), None),
];
/// Blocks that draft keep theirs.
const OF_HEADS: &[Change] = &[
    change("attention.head_count_kv", |n, m| Value::u32s(&vec![2; n + m]), NO_RECURRENCE),
    change("attention.head_count_kv", |n, m| Value::u32s(&[vec![0; n], vec![2; m]].concat()), NO_ATTENTION),
];
const NONE_SPARSE: &[Change] = &[change(
    "leading_dense_block_count",
    |n, m| ((n + m) as u32).into(),
    Some("no layer lies behind the dense ones"),
)];
/// Blocks that draft have no entries.
const OF_INDEXERS: &[Change] = &[
    change(
        "attention.indexer.types",
        |n, _| Value::u32s(&vec![0; n]),
        Some("the first layer has no indexer of its own"),
    ),
    change("attention.indexer.types", |n, _| Value::u32s(&vec![1; n]), None),
];
const WITHOUT_FEED_FORWARD_LAST: &[Change] =
    &[change("feed_forward_length", |n, m| Value::u32s(&[vec![256; n + m - 1], vec![0]].concat()), MISSING)];

/// What can be missing of an architecture that has this rule.
const fn changes(rule: Rule) -> &'static [Change] {
    match rule {
        Rule::SlidingWindow(_) => OF_WINDOWS,
        Rule::BothKinds(RecurrentLayers::Interval { .. }) => OF_INTERVALS,
        Rule::BothKinds(_) => OF_HEADS,
        Rule::NeedsSparse => NONE_SPARSE,
        Rule::SharedIndexer => OF_INDEXERS,
        Rule::WholeLayers => WITHOUT_FEED_FORWARD_LAST,
        _ => &[],
    }
}

/// Logits of a line.
fn run(paths: &[PathBuf], source: &Source<'_>) -> Vec<Vec<f32>> {
    let n_dense = source.model().arch_u32("leading_dense_block_count").unwrap_or(0);
    // In a model that is too shallow the block that drafts would be one of the dense ones, which llama.cpp refuses.
    let drafts = source.drafts().is_ok() && n_dense <= source.n_layers();
    let config = EngineConfig { context: 256, max_rows: 16, drafts, ..EngineConfig::new("") };
    let mut line = Line::load(paths, &config).unwrap();
    let text = tokens(20, gguf::toy::VOCABULARY as usize, 3);
    let mut logits = vec![line.prefill(&text[..12], 12)];
    (12..20).for_each(|at| logits.append(&mut line.window(at, &text[at..=at])));
    logits
}

/// Runs a model in one stage and in two, unless it is refused: then it says why.
fn attempt(name: &str, bench: &Bench) -> Result<(), CutError> {
    let model = Model::open(&bench.whole).unwrap();
    let source = Source::new(&model).inspect_err(|error| {
        if matches!(error, CutError::Kind { .. }) {
            // Nor does anybody run it as it is, for drafts say.
            let whole = Line::load(std::slice::from_ref(&bench.whole), &EngineConfig::new(""));
            let said = whole.err().expect("it is refused").to_string();
            assert!(said.contains(&error.to_string()), "{name}: {said}");
        }
    })?;
    // What is not cut is run from its own file.
    let whole = run(std::slice::from_ref(&bench.whole), &source);
    if let Ok(plan) = Plan::balanced(&source, 2) {
        let (paths, tolerance) = cut(&source, &plan.cuts(), bench.folder());
        let found = difference(&whole, &run(&paths, &source));
        assert!(found <= tolerance, "{name}: {found} instead of {tolerance}");
    }
    Ok(())
}

fn spoiled(spec: &'static ToySpec, change: &Change) -> Bench {
    let key = format!("{}.{}", spec.arch, change.key);
    let value = (change.value)(spec.n_layers as usize, spec.n_nextn() as usize);
    let set = |metadata: &mut Metadata| {
        metadata.set(key.clone(), value.clone());
        if change.key == WINDOWS {
            metadata.set(format!("{}.attention.sliding_window", spec.arch), 8_u32);
        }
    };
    Bench::changed(Toy::new(spec), &set).unwrap()
}

#[test]
fn models_without_a_layer_of_some_kind_are_refused_and_others_run() {
    let (mut n_refused, mut n_run) = (0, 0);
    for spec in specs() {
        let rules = gguf::arch::find(spec.arch).unwrap().rules;
        let of_rules = rules.iter().flat_map(|rule| changes(*rule));
        for (at, change) in of_rules.enumerate() {
            if !is_soak() && !(turn(spec.name) as usize + at).is_multiple_of(2) {
                continue;
            }
            let bench = spoiled(spec, change);
            let name = format!("{} with another {}", spec.name, change.key);
            match (attempt(&name, &bench), change.without) {
                (Ok(()), None) => n_run += 1,
                (Err(CutError::Kind { without, .. }), Some(expected)) if without == expected => {
                    n_refused += 1;
                }
                (found, expected) => panic!("{name}: {found:?} instead of {expected:?}"),
            }
        }
    }
    assert!(n_refused >= 15 && n_run >= 10, "{n_refused} refused, {n_run} run");
}

#[test]
fn models_of_few_layers_run_or_are_refused() {
    let (mut n_refused, mut n_run) = (0, 0);
    for spec in specs() {
        for n_layers in 1..=3 {
            if !is_soak() && turn(spec.name) % 3 + 1 != n_layers {
                continue;
            }
            // Which tensors it has follows from its depth.
            let Ok(bench) = Bench::changed(Toy::new(spec).layers(n_layers), &|_| ()) else {
                assert_eq!(spec.name, "deepseek2-lite");
                continue;
            };
            match attempt(&format!("{} of {n_layers} layers", spec.name), &bench) {
                Ok(()) => n_run += 1,
                Err(CutError::Kind { .. } | CutError::Unsupported { .. }) => n_refused += 1,
                Err(other) => panic!("{}: {other}", spec.name),
            }
        }
    }
    assert!(n_refused >= 5 && n_run >= 50, "{n_refused} refused, {n_run} run");
}
