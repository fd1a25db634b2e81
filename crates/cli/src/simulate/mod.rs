//! `paceline simulate`: what a line would do, before anybody buys, moves or connects a machine.
//!
//! Owns: how a line and its load are asked about, and the tables. The forecast itself, which is the real scheduler,
//! controller and stages in virtual time, is `forecast`'s.

mod args;
mod table;

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use forecast::{Case, Comparison, compare};

pub(crate) use args::SimulateArgs;

use crate::progress::Progress;

/// Forecasts every case and prints what came out.
///
/// # Errors
/// If the JSON file or standard output cannot be written.
pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let rows = forecast(args);
    let mut out = io::stdout().lock();
    write!(out, "{}", table::text(args, &rows))?;
    out.flush()?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&table::json(args, &rows))?;
        std::fs::write(path, text + "\n").with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(())
}

/// The comparisons in the cases' order, made on all of the machine's cores.
fn forecast(args: &SimulateArgs) -> Vec<Comparison> {
    let total = (args.cases.len() * args.grid.n_runs(&args.line)) as u64;
    let (done, next) = (AtomicU64::new(0), AtomicUsize::new(0));
    let progress = Mutex::new(Progress::permille("simulating"));
    let tick = || {
        let n = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress.lock().unwrap_or_else(PoisonError::into_inner).set(n, total);
    };
    let work = || {
        let mut found = Vec::new();
        while let Some((i, case)) = claim(&next, &args.cases) {
            found.push((i, compare(&args.line, case, &args.grid, &tick)));
        }
        found
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(args.cases.len());
    let mut rows: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a forecast never panics")).collect()
    });
    rows.sort_by_key(|(i, _)| *i);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn claim<'a>(next: &AtomicUsize, cases: &'a [Case]) -> Option<(usize, &'a Case)> {
    let i = next.fetch_add(1, Ordering::Relaxed);
    cases.get(i).map(|case| (i, case))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{CommandFlags, CommandLine};
    use clap::Parser as _;

    fn args(words: &str) -> Result<SimulateArgs, String> {
        let argv = ["paceline", "simulate"].into_iter().chain(words.split_whitespace());
        let line = CommandLine::try_parse_from(argv).map_err(|error| crate::usage_sentence(&error))?;
        let CommandFlags::Simulate(flags) = line.command else { panic!("simulate was asked for") };
        SimulateArgs::from_flags(*flags).map_err(|error| {
            assert!(error.chain().any(|cause| cause.is::<crate::args::Usage>()), "{error:#}");
            format!("{error:#}")
        })
    }

    #[track_caller]
    fn refused(words: &str, part: &str) {
        let sentence = args(words).expect_err("should be refused");
        assert!(sentence.contains(part) && !sentence.contains('\n'), "`{sentence}` does not say `{part}`");
    }

    #[test]
    fn a_small_forecast_looks_like_this() {
        let args = args(
            "--stages 2 --delay 20 --stage-time 5 --per-row 0.25 --workload copy --agreement 0.8 \
             --width 1,4 --depth 1,4,16 --tokens 128",
        )
        .unwrap();
        let rows = forecast(&args);
        insta::assert_snapshot!("table", table::text(&args, &rows));
        insta::assert_snapshot!("json", format!("{:#}", table::json(&args, &rows)));
    }

    #[test]
    fn several_clients_share_the_line() {
        let args =
            args("--stages 2 --delay 5 --workload code --clients 4 --width 1 --depth 1 --tokens 64").unwrap();
        insta::assert_snapshot!("clients", table::text(&args, &forecast(&args)));
    }

    #[test]
    fn stages_are_given_one_by_one_or_all_at_once() {
        let line = |words: &str| args(words).unwrap().line;
        assert_eq!(line("").stages.len(), 4);
        assert_eq!(line("--stage-time 5,8,5").stages.len(), 3);
        assert_eq!(line("--stages 16 --stage-time 2ms --delay 200ms").stages.len(), 16);
        let steps = &line("--stage-time 1:5/4:6/16:12.5,3").stages[0];
        assert_eq!(
            [1, 2, 4, 5, 16].map(|rows| steps.time(rows).as_micros()),
            [5000, 6000, 6000, 12_500, 12_500]
        );
        let flat = &line("--stage-time 3 --per-row 0").stages[0];
        assert_eq!(flat.time(1), flat.time(16));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_way_out() {
        refused("--stages 17", "1 to 16 stages");
        refused("--stages 0", "1 to 16 stages");
        refused("--stages 3 --stage-time 5,6", "2 times for 3 stages");
        refused("--stage-time fast", "write milliseconds");
        refused("--stage-time 0", "0.001 to 10000");
        refused("--stage-time nan", "no time");
        refused("--stage-time 4:5/2:6", "ascend");
        refused("--stage-time 1:5/4:3", "must not fall");
        refused("--stage-time 1:5/x:3", "no step");
        refused("--delay 201ms", "0 to 200");
        refused("--delay -1", "unexpected");
        refused("--delay soon", "10ms");
        refused("--agreement 1.5", "0 to 1");
        refused("--agreement nan", "0 to 1");
        refused("--per-row 11", "0 to 10");
        refused("--workload poem", "copy, edit");
        refused("--clients 17", "1 to 16");
        refused("--tokens 1", "16 to 8192");
        refused("--width 17", "1 to 16");
        refused("--depth 0", "1 to 64");
    }
}
