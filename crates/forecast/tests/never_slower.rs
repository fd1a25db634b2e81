//! Left to itself, guessing is never slower than plain decoding and nearly as fast as the best fixed choice.

use std::time::Duration;

use forecast::{Comparison, Grid, Kind, LineModel, StageModel, Workload, compare};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn workloads(seed: u64) -> Vec<Workload> {
    let texts = Kind::ALL.map(|kind| kind.workload(seed, 1024));
    let traces = [0.0, 0.2, 0.5, 0.8, 0.95].map(|right| Workload::agreeing(right, seed, 1024));
    texts.into_iter().chain(traces).collect()
}

/// Every workload on one line.
fn table(line: &LineModel, grid: &Grid) -> Vec<Comparison> {
    println!("{}", Comparison::head());
    let rows = workloads(1).iter().map(|workload| compare(line, workload, grid)).collect::<Vec<_>>();
    rows.iter().for_each(|row| println!("{row}"));
    rows
}

#[test]
fn auto_is_never_slower_than_plain_and_near_the_best_fixed_choice() {
    let grid = Grid { widths: vec![1, 2, 4, 8, 16], depths: vec![1, 2, 4, 8, 12, 16] };
    let mut bad = Vec::new();
    for (n_stages, one, per_row, delay) in
        [(4, 5, 1.0, 10), (4, 5, 0.15, 10), (2, 15, 1.0, 0), (2, 15, 0.5, 2), (4, 5, 0.5, 40), (8, 5, 0.3, 2)]
    {
        println!("\n{n_stages} stages of {one} ms, a row more {per_row}, {delay} ms");
        let line = LineModel::even(n_stages, StageModel::linear(ms(one), per_row), ms(delay));
        for row in table(&line, &grid) {
            if row.over_plain() < 0.98 || row.over_fixed() < 0.95 {
                bad.push(row.to_string());
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn trace() {
    let line = LineModel::even(4, StageModel::linear(ms(5), 0.15), ms(10));
    for w in [Kind::Copy.workload(1, 1024), Workload::agreeing(0.95, 1, 1024)] {
    let job = forecast::Job { workloads: &[w], clients: 1 };
    for (a,b) in [(None, None), (Some(8), Some(16))] {
    println!("=====");
    let f = forecast::run(&line, job, &spec::Speculate{ sources: spec::Sources::Auto, reach: spec::Reach{width:a,depth:b,..Default::default()}});
    println!("rate {}", f.decode_rate);
    }}
}
