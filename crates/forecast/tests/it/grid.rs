//! Never slower than plain decoding, and near the best fixed choice, on every line.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use forecast::{Case, Comparison, Grid, Kind, LineModel, compare};

use crate::bench::{Shape, TOKENS, agreements, is_soak, line, texts};

/// The fixed choices of the full size.
const WIDTHS: [u32; 5] = [1, 2, 4, 8, 16];
const DEPTHS: [u32; 9] = [1, 2, 4, 6, 8, 12, 16, 32, 64];

/// `auto` over plain decoding at least.
const OVER_PLAIN: f64 = 0.98;
/// `auto` over the best fixed choice at least.
const OVER_FIXED: f64 = 0.95;
/// Whoever has to find out how well guessing does needs some loops for it, and a fixed choice does not: answers that
/// take fewer loops than this at best are not compared with it.
const LOOPS: f64 = 20.0;

struct Setting {
    what: String,
    line: LineModel,
}

fn settings() -> Vec<Setting> {
    let shapes =
        [(1.5, Shape::Stairs), (8.0, Shape::Stairs), (5.0, Shape::PerRow(1.0)), (3.0, Shape::PerRow(0.02))];
    let mut all = Vec::new();
    for n_stages in [1, 2, 4, 8, 16] {
        for delay in [0.0, 2.0, 10.0, 40.0, 100.0, 200.0] {
            for (one, shape) in shapes {
                let what = format!("{n_stages} stages of {one} ms {shape:?}, {delay} ms apart");
                all.push(Setting { what, line: line(n_stages, one, shape, delay) });
            }
        }
    }
    all
}

/// What breaks a promise on one line.
fn losers(setting: &Setting, cases: &[Case], grid: &Grid) -> Vec<String> {
    let around = setting.line.loop_time(1).as_secs_f64();
    let rows: Vec<_> = cases.iter().map(|case| compare(&setting.line, case, grid, &|| {})).collect();
    let n_tokens =
        |row: &Comparison| row.auto.timings.iter().map(|t| f64::from(t.generated_tokens)).sum::<f64>();
    let table: String = rows.iter().map(|row| format!("{row}\n")).collect();
    println!("\n{}\n{}\n{table}", setting.what, Comparison::head());
    let loses = |row: &&Comparison| {
        let loops = n_tokens(row) / row.fixed.rate.max(row.plain) / around;
        row.over_plain() < OVER_PLAIN || loops >= LOOPS && row.over_fixed() < OVER_FIXED
    };
    rows.iter()
        .filter(loses)
        .map(|row| format!("{}: {row}", setting.what))
        // The full size takes hours: whoever watches it sees at once what it found.
        .inspect(|loser| println!("loses: {loser}"))
        .collect()
}

#[test]
fn auto_is_never_slower_than_plain_and_near_the_best_fixed_choice() {
    let soak = is_soak();
    let depths: &[u32] = if soak { &DEPTHS } else { &[1, 2, 4, 8, 16] };
    let widths: &[u32] = if soak { &WIDTHS } else { &[1, 4, 16] };
    let grid = Grid { widths: widths.into(), depths: depths.into() };
    // A share that meets every number of stages, every delay and every shape, and some of their pairs.
    let step = if soak { 1 } else { 29 };
    let settings: Vec<_> = settings().into_iter().step_by(step).collect();
    let mut cases: Vec<_> = texts(1).into_iter().chain(agreements(1)).collect();
    if !soak {
        // The longest texts take half of the time.
        cases.retain(|case| case.workloads[0].answer.len() <= TOKENS);
    }
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(setting) = settings.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let losers = losers(setting, &cases, &grid);
                    found.lock().unwrap().extend(losers);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} of {}: {found:#?}", found.len(), settings.len() * cases.len());
}

#[test]
fn a_width_that_changes_leaves_the_line_neither_idle_nor_crowded() {
    let grid = Grid { widths: WIDTHS.into(), depths: DEPTHS.into() };
    for (n_stages, one, delay) in [(2, 8.0, 40.0), (8, 1.5, 0.0)] {
        let case = Case::text(Kind::Predicted, 1, TOKENS, 1);
        let row = compare(&line(n_stages, one, Shape::Stairs, delay), &case, &grid, &|| {});
        assert!(row.over_fixed() >= OVER_FIXED, "{}\n{row}", Comparison::head());
    }
}
