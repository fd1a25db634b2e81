//! Judged arguments of `paceline simulate`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use forecast::{Case, Grid, Kind, LineModel, StageModel};
use spec::{MAX_DEPTH, MAX_WIDTH};

use crate::args::usage;
use crate::flags::SimulateFlags;

/// Stages at most; more take longer than anybody waits for a forecast.
const MAX_STAGES: usize = 16;
/// Milliseconds that a link takes at most.
const MAX_DELAY: f64 = 200.0;
/// Milliseconds of a stage's call: from what no engine reaches to what nobody waits for.
const STAGE_TIME: (f64, f64) = (0.001, 10_000.0);
/// Rows whose time may be given: calls of a stage take no more.
const MAX_ROWS: u32 = 512;
const MAX_CLIENTS: usize = 16;
const TOKENS: (usize, usize) = (16, 8192);
/// Decides the texts, and where a source of a given agreement is wrong.
const SEED: u64 = 1;

const DEFAULT_STAGES: usize = 4;
const DEFAULT_DELAY: f64 = 10.0;
const DEFAULT_STAGE_TIME: &str = "5";
/// Middling for a CPU: each row more costs half of what the first one does.
const DEFAULT_PER_ROW: f64 = 0.5;
/// Enough for the controller to learn the line, few enough for seconds.
const DEFAULT_TOKENS: usize = 512;
const DEFAULT_WIDTHS: &[u32] = &[1, 2, 4, 8, 16];
const DEFAULT_DEPTHS: &[u32] = &[1, 2, 4, 8, 12, 16, 24, 32];
const DEFAULT_KINDS: [Kind; 5] = [Kind::Copy, Kind::Edit, Kind::Code, Kind::Chat, Kind::Novel];

/// `paceline simulate`.
#[derive(Clone, Debug)]
pub(crate) struct SimulateArgs {
    /// The line.
    pub(crate) line: LineModel,
    /// What a link takes one way.
    pub(crate) delay: Duration,
    /// What is asked of it.
    pub(crate) cases: Vec<Case>,
    /// Requests at the same time.
    pub(crate) clients: usize,
    /// Tokens of an answer.
    pub(crate) tokens: usize,
    /// The fixed choices.
    pub(crate) grid: Grid,
    /// Where the figures go as JSON.
    pub(crate) json: Option<PathBuf>,
}

impl SimulateArgs {
    pub(crate) fn from_flags(flags: SimulateFlags) -> anyhow::Result<Self> {
        let per_row = number("--per-row", flags.per_row.unwrap_or(DEFAULT_PER_ROW), (0.0, 10.0))?;
        let times = flags.stage_time.unwrap_or_else(|| vec![DEFAULT_STAGE_TIME.to_owned()]);
        let stages = stages(flags.stages, &times, per_row)?;
        let delay = delay(flags.delay.as_deref())?;
        let clients = flags.clients.unwrap_or(1);
        if !(1..=MAX_CLIENTS).contains(&clients) {
            return usage(format!("--clients must be 1 to {MAX_CLIENTS}, not {clients}"));
        }
        let tokens = flags.tokens.unwrap_or(DEFAULT_TOKENS);
        if !(TOKENS.0..=TOKENS.1).contains(&tokens) {
            return usage(format!("--tokens must be {} to {}, not {tokens}", TOKENS.0, TOKENS.1));
        }
        let grid = Grid {
            widths: choices("--width", flags.width, DEFAULT_WIDTHS, MAX_WIDTH)?,
            depths: choices("--depth", flags.depth, DEFAULT_DEPTHS, MAX_DEPTH)?,
        };
        Ok(Self {
            line: LineModel::of(stages, delay),
            delay,
            cases: cases(flags.workload, flags.agreement, tokens, clients)?,
            clients,
            tokens,
            grid,
            json: flags.json,
        })
    }
}

fn number(name: &str, value: f64, (least, most): (f64, f64)) -> anyhow::Result<f64> {
    if value.is_finite() && (least..=most).contains(&value) {
        return Ok(value);
    }
    usage(format!("{name} must be {least} to {most}, not {value}"))
}

/// Milliseconds, with or without their unit.
fn milliseconds(text: &str) -> Option<f64> {
    text.trim().strip_suffix("ms").unwrap_or(text).trim().parse().ok().filter(|ms: &f64| ms.is_finite())
}

fn delay(given: Option<&str>) -> anyhow::Result<Duration> {
    let ms = match given {
        None => DEFAULT_DELAY,
        Some(text) => match milliseconds(text) {
            Some(ms) => number("--delay", ms, (0.0, MAX_DELAY))?,
            None => return usage(format!("--delay takes milliseconds, for example 10ms, not `{text}`")),
        },
    };
    Ok(Duration::from_secs_f64(ms / 1e3))
}

/// One stage per time, or as many as asked for of the only one.
fn stages(n: Option<usize>, times: &[String], per_row: f64) -> anyhow::Result<Vec<StageModel>> {
    let n_stages = match (n, times.len()) {
        (None, 1) => DEFAULT_STAGES,
        (None, n_times) => n_times,
        (Some(n), n_times) if n_times == 1 || n == n_times => n,
        (Some(n), n_times) => {
            return usage(format!("--stage-time has {n_times} times for {n} stages: give one, or one each"));
        }
    };
    if !(1..=MAX_STAGES).contains(&n_stages) {
        return usage(format!("a simulated line has 1 to {MAX_STAGES} stages, not {n_stages}"));
    }
    let models = times.iter().map(|text| stage(text, per_row)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(models.iter().cycle().take(n_stages).cloned().collect())
}

/// `5`, or by rows: `1:5/4:6/16:12`.
fn stage(text: &str, per_row: f64) -> anyhow::Result<StageModel> {
    let example = "write milliseconds like 5, or by rows like 1:5/4:6/16:12";
    if !text.contains(':') {
        let Some(ms) = milliseconds(text) else {
            return usage(format!("--stage-time `{text}` is no time: {example}"));
        };
        let ms = number("--stage-time", ms, STAGE_TIME)?;
        return Ok(StageModel::linear(Duration::from_secs_f64(ms / 1e3), per_row));
    }
    let mut steps: Vec<(u32, Duration)> = Vec::new();
    for step in text.split('/') {
        let parts =
            step.split_once(':').and_then(|(rows, ms)| Some((rows.trim().parse().ok()?, milliseconds(ms)?)));
        let Some((rows, ms)) = parts else {
            return usage(format!("--stage-time `{step}` is no step: {example}"));
        };
        let time = Duration::from_secs_f64(number("--stage-time", ms, STAGE_TIME)? / 1e3);
        let is_next = steps.last().is_none_or(|&(before, least)| rows > before && time >= least);
        if rows == 0 || rows > MAX_ROWS || !is_next {
            return usage(format!(
                "--stage-time `{text}`: rows must ascend from 1 to {MAX_ROWS}, and times must not fall"
            ));
        }
        steps.push((rows, time));
    }
    Ok(StageModel { steps })
}

/// Different numbers, ascending.
fn choices(name: &str, given: Option<Vec<u32>>, default: &[u32], max: u32) -> anyhow::Result<Vec<u32>> {
    let given = given.unwrap_or_else(|| default.to_vec());
    if let Some(n) = given.iter().find(|&&n| n == 0 || n > max) {
        return usage(format!("{name} must be 1 to {max}, not {n}"));
    }
    Ok(given.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
}

fn cases(
    workloads: Option<Vec<String>>,
    agreement: Option<Vec<f64>>,
    tokens: usize,
    clients: usize,
) -> anyhow::Result<Vec<Case>> {
    let names = workloads.unwrap_or_default();
    let mut kinds = Vec::new();
    for name in &names {
        match Kind::named(name) {
            _ if name == "all" => kinds.extend(Kind::ALL),
            Some(kind) => kinds.push(kind),
            None => {
                let all = Kind::ALL.map(Kind::name).join(", ");
                return usage(format!("`{name}` is no workload: use all, or some of {all}"));
            }
        }
    }
    if names.is_empty() && agreement.is_none() {
        kinds.extend(DEFAULT_KINDS);
    }
    let texts = kinds.into_iter().map(|kind| Ok(Case::text(kind, SEED, tokens, clients)));
    let sources = agreement.into_iter().flatten().map(|right| {
        number("--agreement", right, (0.0, 1.0)).map(|right| Case::agreeing(right, SEED, tokens, clients))
    });
    texts.chain(sources).collect()
}
