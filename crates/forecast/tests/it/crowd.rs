//! Guesses among other people's tokens.

use std::time::Duration;

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

/// How long a prompt of so many chunks takes until its first token.
fn prompt_time(n_stages: u16, n_chunks: usize) -> f64 {
    let mut workload = Kind::Novel.workload(3, 2);
    let unit = workload.prompt[0];
    // The last token is the first window's.
    workload.prompt = vec![unit; 128 * n_chunks + 1];
    let line = line(n_stages, 1.0, Shape::PerRow(0.25), 0.0);
    let found = run(&line, Job { workloads: &[workload], clients: 1 }, &Speculate::off());
    found.timings[0].prompt_time.as_secs_f64()
}

#[test]
fn chunks_of_a_prompt_are_computed_on_all_stages_at_the_same_time() {
    for n_stages in [2, 3, 4] {
        for n_chunks in [8, 16] {
            // The same stages, one after the other.
            let serial = f64::from(n_stages) * prompt_time(1, n_chunks);
            let gain = serial / prompt_time(n_stages, n_chunks);
            let (chunks, others) = (n_chunks as f64, f64::from(n_stages) - 1.0);
            let ideal = f64::from(n_stages) * chunks / (chunks + others);
            println!("{n_stages} stages, {n_chunks} chunks: {gain:.2}x, {:.3} of ideal", gain / ideal);
            assert!(gain > 0.95 * ideal, "{n_stages} stages, {n_chunks} chunks: {gain} of {ideal}");
        }
    }
}

#[test]
fn a_long_prompt_delays_whoever_decodes_by_two_chunk_times_at_most() {
    // 4,000 tokens in chunks of 128 would keep each stage for 330 ms at a time.
    let line = line(2, 10.0, Shape::PerRow(0.25), 1.0);
    // The long prompt comes when the first of five has ended.
    let mut workloads = talkers(5);
    workloads[0].answer.truncate(20);
    workloads.iter_mut().for_each(|workload| workload.prompt.truncate(1));
    let mut long = Kind::Novel.workload(9, 4);
    long.prompt = vec![long.prompt[0]; 4000];
    workloads.push(long);
    let gap = run(&line, Job { workloads: &workloads, clients: 5 }, &Speculate::off()).longest_gap;
    println!("the longest gap is {gap:?}");
    assert!(gap <= Duration::from_millis(200), "{gap:?}");
}
