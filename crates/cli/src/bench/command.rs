//! `paceline bench`: serves a model in several ways, or takes a server that runs, and measures it from outside.
//!
//! Owns the order of the measurement: ways that are compared stand side by side and answer in turn, so that whatever
//! else the machine does falls on all of them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::args::{BenchArgs, Subject};
use super::client::{self, Outcome};
use super::http::{Target, now};
use super::outcomes::{self, Comparison, Turn};
use super::report::Machine;
use super::served::Served;
use super::setting::{Row, Setting};
use super::workload::{Task, Wanted, Workload};
use super::{plots, table};
use crate::progress::Progress;
use crate::signals;

/// Tokens of the answer that only warms a line up.
const WARM_UP: u16 = 8;

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) rows: Vec<Row>,
    pub(super) comparisons: Vec<Comparison>,
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let machine = Machine::look(&signals::build());
    let runtime = signals::http_runtime()?;
    let measured = runtime.block_on(async {
        let mut end = signals::EndSignals::listen()?;
        tokio::select! {
            measured = measure(args) => measured,
            () = end.next() => bail!("stopped before the end: nothing was written"),
        }
    });
    runtime.shutdown_background();
    let results = measured?;
    print!("{}", table::of(&machine, &results));
    if let Some(path) = &args.json {
        write(path, &machine, &results)?;
    }
    if let Some(folder) = &args.plot {
        for path in plots::write(folder, &results)? {
            eprintln!("drawn: {}", path.display());
        }
    }
    Ok(())
}

/// Every group of settings, one after another.
pub(super) async fn measure(args: &BenchArgs) -> anyhow::Result<Results> {
    let mut results = Results::default();
    match &args.subject {
        Subject::Server { target, key_file } => {
            let key = key_file.as_deref().map(first_line).transpose()?;
            let drivers = [Driver::of_server(target.clone().with_key(key)).await?];
            measure_group(args, "requests", &drivers, &mut results).await?;
        }
        Subject::Model { path, groups } => {
            for (at, group) in groups.iter().enumerate() {
                let what = format!("{} of {}: {}", at + 1, groups.len(), words(&group[0]));
                let mut drivers = Vec::new();
                for setting in group {
                    eprintln!("{what}, starting with guesses {}", setting.strategy);
                    drivers.push(Driver::start(path, setting).await?);
                }
                measure_group(args, &what, &drivers, &mut results).await?;
            }
        }
    }
    Ok(results)
}

fn words(setting: &Setting) -> String {
    let link = setting.link.as_deref().unwrap_or("no delay");
    match setting.stages {
        1 => format!("1 stage, {link}"),
        n => format!("{n} stages, {link}"),
    }
}

/// A server that is measured.
struct Driver {
    target: Target,
    model: String,
    setting: Option<Setting>,
    /// Ended with this.
    _served: Option<Served>,
}

impl Driver {
    async fn of_server(target: Target) -> anyhow::Result<Self> {
        Ok(Self { model: client::model(&target).await?, target, setting: None, _served: None })
    }

    async fn start(model: &Path, setting: &Setting) -> anyhow::Result<Self> {
        let served = Served::start(model, &setting.flags()).await?;
        let (target, setting) = (served.target().clone(), Some(setting.clone()));
        Ok(Self { target, model: "default".to_owned(), setting, _served: Some(served) })
    }

    /// As many requests at once as are asked for, of which this is turn `round`.
    async fn turn(&self, args: &BenchArgs, workload: Workload, round: usize) -> anyhow::Result<Turn> {
        let n = usize::from(args.concurrency);
        let begun = now();
        let asking: Vec<_> = (0..n)
            .map(|at| {
                let (target, model, tokens) = (self.target.clone(), self.model.clone(), args.max_tokens);
                let task = workload.task(round * n + at);
                tokio::spawn(async move { client::ask(&target, &model, task, tokens).await })
            })
            .collect();
        let mut outcomes = Vec::with_capacity(n);
        for answer in asking {
            outcomes.push(answer.await?.with_context(|| format!("workload {workload}"))?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let tokens: u64 = outcomes.iter().map(|one: &Outcome| one.n_tokens).sum();
        Ok(Turn { outcomes, total_tok_s: tokens as f64 / seconds.max(f64::MIN_POSITIVE) })
    }

    async fn warm_up(&self) -> anyhow::Result<()> {
        let task = Task {
            prompt: "Say hello.".to_owned(),
            prediction: None,
            schema: None,
            wanted: Wanted::Anything,
        };
        client::ask(&self.target, &self.model, task, WARM_UP).await.context("the first request")?;
        Ok(())
    }
}

/// Every workload on every driver, in turn; who comes first changes from round to round.
async fn measure_group(
    args: &BenchArgs,
    what: &str,
    drivers: &[Driver],
    results: &mut Results,
) -> anyhow::Result<()> {
    for driver in drivers {
        driver.warm_up().await?;
    }
    let n_workloads = args.workloads.len();
    let mut turns = vec![vec![Vec::new(); drivers.len()]; n_workloads];
    let mut progress = Progress::steps(what);
    let total = (args.rounds() * n_workloads * drivers.len()) as u64;
    let mut done = 0;
    for round in 0..args.rounds() {
        for (&workload, turns) in args.workloads.iter().zip(&mut turns) {
            for at in 0..drivers.len() {
                let at = (at + round) % drivers.len();
                turns[at].push(drivers[at].turn(args, workload, round).await?);
                done += 1;
                progress.set(done, total);
            }
        }
    }
    drop(progress);
    for (&workload, turns) in args.workloads.iter().zip(&turns) {
        for (driver, mine) in drivers.iter().zip(turns) {
            results.rows.push(outcomes::row(workload, driver.setting.as_ref(), mine));
            if let (Some(one), Some(first)) = (&driver.setting, &drivers[0].setting)
                && one != first
            {
                let compared = outcomes::compare(workload, (one, mine), (first, &turns[0]));
                results.comparisons.extend(compared);
            }
        }
    }
    Ok(())
}

fn first_line(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
    let key = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    key.map(str::to_owned).with_context(|| format!("{} holds no key", path.display()))
}

fn write(path: &Path, machine: &Machine, results: &Results) -> anyhow::Result<()> {
    let Results { rows, comparisons } = results;
    let value = json!({ "machine": machine, "rows": rows, "comparisons": comparisons });
    let mut text = serde_json::to_string_pretty(&value)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
}
