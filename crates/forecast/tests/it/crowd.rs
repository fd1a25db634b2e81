//! Guesses among other people's tokens.

use forecast::{Job, Kind, LineModel, Workload, run};
use spec::Speculate;

use crate::bench::{Shape, is_soak, line};

/// As many requests at once as `clients`, some six rounds of them, so that the end, when few are left and may waste what
/// they like, counts little. Their lengths differ, else plain decoding would go
/// in lockstep, all prompts together and then all answers, as real requests never do.
fn crowd(line: &LineModel, kind: Kind, clients: usize, speculate: &Speculate) -> forecast::Forecast {
    let workloads: Vec<_> =
        (0..6 * clients as u64).map(|seed| kind.workload(seed, 192 + (seed as usize * 37) % 128)).collect();
    run(line, Job { workloads: &workloads, clients }, speculate)
}

#[test]
fn running_ahead_yields_when_others_fill_the_line() {
    let few: &[Kind] = if is_soak() { &Kind::ALL } else { &[Kind::Copy, Kind::Code, Kind::Novel] };
    let lines = [
        (line(4, 5.0, Shape::PerRow(0.5), 10.0), "10 ms", &Kind::ALL[..]),
        (line(4, 5.0, Shape::Stairs, 10.0), "10 ms, stairs", few),
        (line(2, 15.0, Shape::PerRow(1.0), 1.0), "1 ms", few),
        (line(4, 2.0, Shape::PerRow(0.05), 10.0), "10 ms, wide", few),
    ];
    let mut found = Vec::new();
    for (line, what, kinds) in lines {
        for &kind in kinds {
            let n_stages = line.stages.len();
            for clients in [n_stages, 2 * n_stages] {
                let plain = crowd(&line, kind, clients, &Speculate::off());
                let auto = crowd(&line, kind, clients, &Speculate::auto());
                let gain = auto.tokens_per_second / plain.tokens_per_second;
                let stale = auto.stale_share();
                let waste = auto.stages[0].stats.wasted_share();
                let row = format!(
                    "{what}, {} x {clients}: {gain:.3} x plain, {stale:.2} stale, {waste:.2} wasted",
                    kind.name()
                );
                println!("{row}");
                if stale > 0.25 || waste > 0.25 || gain < 0.98 {
                    found.push(row);
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Answers of many lengths after prompts of one chunk, so that nearly all work is decoding.
fn talkers(n: usize) -> Vec<Workload> {
    let workload = |seed: usize| {
        let mut workload = Kind::Novel.workload(seed as u64, 192 + (seed * 37) % 128);
        workload.prompt.truncate(8);
        workload
    };
    (0..n).map(workload).collect()
}

#[test]
fn many_sequences_keep_every_stage_busy_and_no_stage_waits_for_all_of_them() {
    let mut found = Vec::new();
    for (n_stages, delay) in [(2, 0.0), (2, 2.0), (3, 0.0), (4, 0.0), (4, 1.0)] {
        let line = line(n_stages, 4.0, Shape::PerRow(0.25), delay);
        let clients = 4 * usize::from(n_stages);
        let crowd = run(&line, Job { workloads: &talkers(12 * clients), clients }, &Speculate::off());
        let busy = crowd.stages.iter().map(|stage| stage.busy).fold(1.0, f64::min);
        let rows = crowd.stages[0].stats.rows as f64 / crowd.stages[0].stats.calls as f64;
        let row = format!("{n_stages} stages, {delay} ms: {busy:.3} busy, {rows:.1} rows a call");
        println!("{row}");
        // Four sequences for each stage; a convoy has all of them in one call, and is busy for 1 / n_stages.
        if busy < 0.9 || !(2.0..=5.0).contains(&rows) {
            found.push(row);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
