//! The benchmark of a line on one machine: what the loop costs around the engine, and what cutting the model costs.
//!
//! Owns: what is run against what, the bounds, and the files that hold results. Every figure with a bound is either the
//! loop with engines that compute nothing, or a ratio of two things measured in turn in the same minute, so that a
//! slower or busier machine shifts both. Does not know: how a line works; it drives the released binary over HTTP, and
//! fronts and stages through the same crates.

mod ahead;
mod answers;
pub(crate) mod args;
mod client;
pub(crate) mod command;
mod crowd;
mod exact;
mod http;
mod idle;
mod judge;
mod null_line;
mod outcomes;
mod plots;
mod prompts;
mod record;
mod report;
mod rpc;
mod served;
mod setting;
mod stats;
mod svg;
mod table;
mod toy;
mod workload;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, ValueEnum};

use crate::{logging, signals};
use report::Report;
use toy::extent::Extent;
use toy::grid::{self, Grid};
use toy::{prefill, timeline};

/// Measure a line on this machine. Exit code 1 if a bound is missed.
#[derive(Debug, Parser)]
#[command(name = "line-bench", version, max_term_width = 110)]
struct Flags {
    /// Models to serve whole and cut (none: only what needs no model is measured)
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Measure only these
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "loop,answers,idle,chunks,grid")]
    only: Vec<Part>,
    /// Rounds of each comparison, four times as many of answers; the median of them counts
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    rounds: u16,
    /// Write the results into this folder as JSON
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Measure the whole grid of toy lines (an hour and more) instead of a part of it
    #[arg(long)]
    full: bool,
    /// Measure nothing; write what the models say to every workload into this file, for the forecast's tests
    #[arg(long, value_name = "FILE", requires = "models")]
    record: Option<PathBuf>,
    /// Be a stage whose engine computes nothing, for rows of this width
    #[arg(long, hide = true, value_name = "WIDTH")]
    null_stage: Option<usize>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Front and stages with engines that compute nothing: time per token and boundary
    Loop,
    /// Decoding by llama.cpp alone, by a line of one stage, and by one of three; what `--exact` costs
    Answers,
    /// Processor time of a line that waits
    Idle,
    /// Lines of two stages 10 ms apart beside llama.cpp's RPC back end (`./run bench rpc` builds that)
    Rpc,
    /// Plain decoding against guesses over slow links, on the model (an hour)
    Ahead,
    /// Several clients at once, and a long prompt beside running answers
    Crowd,
    /// Prompts whose beginning is known, from memory and from disk, and chunks that overlap
    Prompts,
    /// How chunks of a prompt overlap on lines of toy engines over real sockets
    Chunks,
    /// Lines of toy engines over real sockets, by delay, length and way to guess, measured and predicted
    Grid,
}

/// Runs the benchmark and says how it ended: 0 all bounds met, 1 one was missed or it failed, 2 wrong usage.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = Flags::parse_from(argv);
    match run(&flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("line-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> anyhow::Result<bool> {
    logging::start(None, 0, logging::Format::Text)?;
    if let Some(width) = flags.null_stage {
        null_line::child(width)?;
        return Ok(true);
    }
    if let Some(path) = &flags.record {
        signals::http_runtime()?.block_on(record::write(&flags.models, path))?;
        return Ok(true);
    }
    let needs_model = |part: &Part| !matches!(part, Part::Loop | Part::Chunks | Part::Grid);
    if flags.only.iter().any(needs_model) && flags.models.is_empty() {
        bail!(
            "all but `loop`, `chunks` and `grid` need a model: name one, or measure `--only loop,chunks,grid`"
        );
    }
    let mut report = Report::new(&signals::build());
    let rounds = usize::from(flags.rounds);
    // As in a front: links on a thread of their own, their users on others.
    let (runtime, line) = (signals::http_runtime()?, signals::line_runtime()?);
    if flags.only.contains(&Part::Loop) {
        runtime.block_on(null_line::measure(rounds, line.handle(), &mut report))?;
    }
    let mut written = Vec::new();
    for model in &flags.models {
        if flags.only.contains(&Part::Crowd) {
            let points = runtime.block_on(crowd::measure(model, rounds, &mut report))?;
            if let Some(folder) = &flags.out {
                written.push(crowd::draw(folder, &points)?);
                written.push(report.write_part(folder, "crowd", &points)?);
            }
        }
        let (answers, idle) = (flags.only.contains(&Part::Answers), flags.only.contains(&Part::Idle));
        if answers || idle {
            runtime.block_on(answers::measure(model, rounds, (answers, idle), &mut report))?;
        }
        if flags.only.contains(&Part::Prompts) {
            runtime.block_on(prompts::measure(model, rounds, &mut report))?;
        }
        if flags.only.contains(&Part::Ahead) {
            runtime.block_on(ahead::measure(model, rounds, &mut report))?;
        }
        if flags.only.contains(&Part::Rpc) {
            runtime.block_on(rpc::measure(model, rounds, &mut report))?;
        }
    }
    let grid = flags.only.contains(&Part::Grid);
    let extent = if flags.full { Extent::full() } else { Extent::modest() };
    if flags.only.contains(&Part::Chunks) {
        runtime.block_on(prefill::measure(rounds, &mut report))?;
    }
    let grid = grid.then(|| runtime.block_on(grid::measure(&extent, &mut report))).transpose()?;
    if let (Some(folder), Some(grid)) = (&flags.out, &grid) {
        written.extend(grid.draw(folder)?);
        written.extend(runtime.block_on(timeline::draw(folder))?);
        written.push(report.write_part(folder, "grid", grid)?);
    }
    line.shutdown_background();
    runtime.shutdown_background();
    report.print();
    grid.iter().for_each(Grid::print);
    if let Some(folder) = &flags.out {
        written.push(report.write(folder)?);
    }
    if !written.is_empty() {
        println!();
    }
    written.iter().for_each(|path| println!("written to {}", path.display()));
    Ok(report.is_met())
}
