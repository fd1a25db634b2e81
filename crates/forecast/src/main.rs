//! `forecast`: the comparison of all ways to guess on many lines, in full. Fails where `auto` loses against plain
//! decoding or stays far behind the best fixed choice.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use forecast::{Comparison, Grid, Kind, LineModel, StageModel, Workload, compare};

/// Tokens of each answer.
const TOKENS: usize = 1024;
/// `auto` over plain decoding at least.
const OVER_PLAIN: f64 = 0.98;
/// `auto` over the best fixed choice at least.
const OVER_FIXED: f64 = 0.95;
/// Whoever has to find out how well guessing does needs a few loops for it, and a fixed choice does not: answers that
/// take fewer loops than this at best are not compared with it.
const LOOPS: f64 = 20.0;

fn main() -> ExitCode {
    let grid = Grid {
        widths: vec![1, 2, 3, 4, 6, 8, 12, 16],
        depths: vec![1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32],
    };
    let mut n_rows = 0;
    let mut losers = Vec::new();
    for n_stages in [1, 2, 4, 8, 16] {
        for (one, per_row) in [(5, 0.15), (5, 0.5), (5, 1.0), (15, 0.3), (15, 1.0)] {
            for delay in [0, 2, 10, 40, 200] {
                let stage = StageModel::linear(Duration::from_millis(one), per_row);
                let line = LineModel::even(n_stages, stage, Duration::from_millis(delay));
                let what =
                    format!("{n_stages} stages of {one} ms, {per_row} for a row more, {delay} ms apart");
                println!("\n{what}\n{}", Comparison::head());
                for workload in workloads() {
                    let row = compare(&line, &workload, &grid);
                    println!("{row}");
                    n_rows += 1;
                    let loops = TOKENS as f64 / row.fixed.rate / line.loop_time().as_secs_f64();
                    if row.over_plain() < OVER_PLAIN || loops >= LOOPS && row.over_fixed() < OVER_FIXED {
                        losers.push(format!("{what}: {row}"));
                    }
                }
            }
        }
    }
    println!(
        "\n{} of {n_rows} comparisons below {OVER_PLAIN} of plain or {OVER_FIXED} of the best",
        losers.len()
    );
    losers.iter().for_each(|loser| println!("  {loser}"));
    if losers.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn workloads() -> Vec<Workload> {
    let texts = Kind::ALL.map(|kind| kind.workload(1, TOKENS));
    let traces = [0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97].map(|right| Workload::agreeing(right, 1, TOKENS));
    texts.into_iter().chain(traces).collect()
}
