//! Plans cover all layers exactly once, legally, and as evenly as can be.

use crate::toys::{self, Shape, open};
use gguf::toy::{Toy, Weights, specs};
use gguf::{CutError, Model, Plan, Source};
use proptest::prelude::*;

fn covers(plan: &Plan, source: &Source<'_>) {
    assert_eq!(plan.stages[0].range.start, 0);
    assert_eq!(plan.stages[plan.stages.len() - 1].range.end, source.n_layers());
    assert!(plan.stages.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
    for stage in &plan.stages {
        source.check(stage.range.clone()).unwrap();
    }
}

#[test]
fn every_architecture_can_be_planned_into_any_number_of_stages() {
    let folder = tempfile::tempdir().unwrap();
    for spec in specs() {
        let toy = Toy::new(spec);
        let shape = Shape { drafting: spec.n_nextn(), ..Shape::default() };
        let whole = Model::open(&toys::write(folder.path(), toy, spec.n_layers, shape)).unwrap();
        let source = Source::new(&whole).unwrap();
        // The only one that cannot be cut before every layer.
        let stages = if spec.arch == "glm-dsa" { 3 } else { source.n_layers().min(9) };
        for n in 1..=stages {
            let plan = Plan::balanced(&source, n).unwrap();
            assert_eq!(plan.stages.len(), n as usize, "{}", spec.name);
            covers(&plan, &source);
            assert_eq!(Plan::at_cuts(&source, &plan.cuts()).unwrap(), plan);
        }
        let illegal: Vec<u32> =
            (1..source.n_layers()).filter(|&at| source.check_boundary(at).is_err()).collect();
        assert_eq!(
            illegal,
            if spec.arch == "glm-dsa" { vec![1, 2, 4, 5, 7] } else { vec![] },
            "{}",
            spec.name
        );
    }
}

#[test]
fn the_head_counts_as_part_of_the_tail() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 9, Shape::default());
    let source = Source::new(&whole).unwrap();
    let layer = Plan::balanced(&source, 9).unwrap().stages[0].bytes;
    let head = whole.tensor("token_embd.weight").unwrap().bytes;
    let plan = Plan::balanced(&source, 2).unwrap();
    let bytes: Vec<_> = plan.stages.iter().map(|stage| stage.bytes).collect();
    assert_eq!((plan.cuts(), bytes), (vec![5], vec![5 * layer, 4 * layer + head]));
}

#[test]
fn a_head_that_is_stored_in_more_bits_is_no_more_work() {
    let folder = tempfile::tempdir().unwrap();
    let cuts = [Weights::F32, Weights::Q8_0, Weights::Q4_0].map(|weights| {
        let toy = Toy::named("llama").unwrap().weights(weights);
        let whole = Model::open(&toys::write(folder.path(), toy, 9, Shape::default())).unwrap();
        let plan = Plan::balanced(&Source::new(&whole).unwrap(), 2).unwrap();
        let [first, tail] = &plan.stages[..] else { panic!("two stages: {plan:?}") };
        assert_eq!(first.bytes > tail.bytes, weights == Weights::F32, "{plan:?}");
        plan.cuts()
    });
    assert_eq!(cuts, [[5], [5], [5]]);
}

#[test]
fn cuts_that_cost_a_pass_through_layer_are_avoided() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "smollm3", 16, Shape::default());
    let plan = Plan::balanced(&Source::new(&whole).unwrap(), 2).unwrap();
    assert_eq!(plan.cuts(), [8]);
}

#[test]
fn impossible_plans_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 4, Shape::default());
    let source = Source::new(&whole).unwrap();
    for n in [0, 5, u32::MAX] {
        assert!(matches!(Plan::balanced(&source, n), Err(CutError::TooManyStages { .. })));
    }
    for cuts in [&[0][..], &[4], &[2, 2], &[3, 1], &[1, u32::MAX]] {
        assert!(matches!(Plan::at_cuts(&source, cuts), Err(CutError::Cuts { last: 3, .. })), "{cuts:?}");
    }
    assert_eq!(Plan::at_cuts(&source, &[]).unwrap().stages.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_other_cuts_have_a_smaller_largest_stage(n_layers in 2_u32..9, n_stages in 1_u32..5, which in 0..specs().len()) {
        prop_assume!(n_stages <= n_layers);
        let folder = tempfile::tempdir().unwrap();
        let toy = Toy::new(&specs()[which]);
        prop_assume!(toy.spec().n_nextn() == 0);
        let whole = Model::open(&toys::write(folder.path(), toy, n_layers, Shape::default())).unwrap();
        // Some are known with certain numbers of layers only, and one cannot be cut before every layer.
        prop_assume!(Source::new(&whole).is_ok() && toy.spec().arch != "glm-dsa");
        let source = Source::new(&whole).unwrap();
        // Llama 4 is none with fewer than four layers, not even whole.
        prop_assume!(toy.spec().arch != "llama4" || n_layers >= 4);
        let plan = Plan::balanced(&source, n_stages).unwrap();
        covers(&plan, &source);
        let largest = |plan: &Plan| plan.stages.iter().map(|stage| stage.products).max();
        for set in 0_u32..1 << (n_layers - 1) {
            let cuts: Vec<u32> = (1..n_layers).filter(|at| set >> (at - 1) & 1 == 1).collect();
            if cuts.len() as u32 + 1 == n_stages
                && let Ok(other) = Plan::at_cuts(&source, &cuts)
            {
                prop_assert!(largest(&plan) <= largest(&other), "{:?} {:?}", plan, other);
            }
        }
    }
}
