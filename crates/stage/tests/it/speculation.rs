//! Whatever is guessed, dropped, cancelled or hinted, and however sequences interleave: the text is the one that
//! sequential decoding yields, and everything ends.

use proptest::prelude::*;
use protocol::{Report, SeqId};
use stage::{Load, Rewind, Stats};

use crate::front::{Front, Manner};
use crate::line::Line;
use crate::toy::Rng;

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    n_stages: u32,
    n_slots: u16,
    max_rows: usize,
    n_sequences: u64,
    rewind: Rewind,
    manner: Manner,
}

/// Steps after which a run counts as stuck: a hundred times what the longest needs.
const PATIENCE: usize = 400_000;

/// Runs all sequences to their end. Returns each stage's counters, and how many texts were heard whole.
fn run(scenario: &Scenario) -> (Vec<Stats>, usize) {
    let mut rng = Rng(scenario.seed);
    let mut line = Line::new(scenario.n_stages, scenario.n_slots, scenario.max_rows, scenario.rewind);
    let most_open = line.stages[0].core.max_sequences();
    let mut fronts: Vec<Front> =
        (0..scenario.n_sequences).map(|seq| Front::new(seq, scenario.manner, &mut rng)).collect();
    for _ in 0..PATIENCE {
        let moved = match rng.below(3) {
            0 => front_moves(&mut fronts, &mut line, &mut rng, most_open) || line.step(&mut rng),
            1 => line.step(&mut rng) || front_moves(&mut fronts, &mut line, &mut rng, most_open),
            _ => false,
        };
        if let Some(report) = line.reports.pop_front() {
            let seq = seq_of(&report);
            let front = fronts.iter_mut().find(|front| front.seq() == seq).expect("a sequence of ours");
            front.hear(report, &mut line, &mut rng);
        } else if !moved && fronts.iter().all(Front::is_done) && !line.step(&mut rng) {
            break;
        }
    }
    assert!(fronts.iter().all(Front::is_done), "stuck");
    for stage in &line.stages {
        assert_eq!(stage.core.load(), Load::default(), "no frame is left");
        assert_eq!(stage.core.n_sequences(), 0, "every sequence is forgotten");
    }
    let whole = fronts.iter().filter(|front| front.is_whole()).count();
    (line.stages.iter().map(|stage| *stage.core.stats()).collect(), whole)
}

fn front_moves(fronts: &mut [Front], line: &mut Line, rng: &mut Rng, most_open: usize) -> bool {
    let n_open = fronts.iter().filter(|front| front.is_open()).count();
    let n_fronts = fronts.len();
    let first = rng.below(n_fronts);
    (0..n_fronts).any(|i| {
        let front = &mut fronts[(first + i) % n_fronts];
        (front.is_open() || n_open < most_open) && front.step(line, rng)
    })
}

fn seq_of(report: &Report) -> SeqId {
    report.answers().unwrap_or_else(|| panic!("{report:?}"))
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let shape = (any::<u64>(), 1..=3_u32, 1..=4_u16, 1..=6_usize, 1..=7_u64);
    let manner = (1..=6_usize, 0..=100_usize, prop_oneof![Just(0_usize), 0..=5_usize], any::<bool>());
    let rewind = prop_oneof![3 => Just(None), 1 => (0..4_u32).prop_map(Some)];
    (shape, manner, rewind).prop_map(|(shape, (depth, right, cancel, hints), rewind)| {
        let (seed, n_stages, n_slots, max_rows, n_sequences) = shape;
        let (rewind, width, depth) = match rewind {
            None => (Rewind::Anywhere, max_rows, depth),
            Some(rows) => (Rewind::LastCall { rows }, max_rows.min(rows as usize + 1), 1),
        };
        let manner = Manner { width, depth, right, cancel, hints };
        Scenario { seed, n_stages, n_slots, max_rows, n_sequences, rewind, manner }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_yields_the_text_of_sequential_decoding(scenario in scenario()) {
        let (stats, whole) = run(&scenario);
        prop_assert!(stats.iter().all(|stats| stats.faults == 0));
        if scenario.manner.cancel == 0 {
            prop_assert_eq!(whole as u64, scenario.n_sequences);
            // Each certain input was computed once by every stage: all other rows were for nothing.
            let useful = stats[0].rows - stats[0].wasted_rows;
            prop_assert!(stats.iter().all(|stats| stats.rows - stats.wasted_rows == useful), "{:?}", stats);
        }
    }
}

fn busy_line(manner: Manner) -> Scenario {
    let (seed, n_stages, n_slots, max_rows, n_sequences) = (1, 3, 2, 6, 12);
    Scenario { seed, n_stages, n_slots, max_rows, n_sequences, rewind: Rewind::Anywhere, manner }
}

#[test]
fn wrong_guesses_are_dropped_before_they_are_computed() {
    let manner = Manner { width: 3, depth: 6, right: 70, cancel: 0, hints: true };
    let (stats, whole) = run(&busy_line(manner));
    assert_eq!(whole, 12);
    assert!(stats.iter().all(|stats| stats.stale_windows > 0), "{stats:?}");
    let [first, _, tail] = stats[..] else { panic!("three stages") };
    assert!(tail.windows < first.windows, "the tail computes live windows only: {stats:?}");
}

#[test]
fn right_guesses_waste_nothing() {
    let manner = Manner { width: 3, depth: 1, right: 100, cancel: 0, hints: false };
    let (stats, _) = run(&busy_line(manner));
    assert!(stats.iter().all(|stats| stats.stale_windows == 0), "{stats:?}");
}

#[test]
fn sequences_share_calls() {
    let manner = Manner { width: 1, depth: 1, right: 0, cancel: 0, hints: false };
    let (stats, _) = run(&Scenario { n_slots: 4, ..busy_line(manner) });
    assert!(stats.iter().all(|stats| stats.rows > stats.calls), "{stats:?}");
}
