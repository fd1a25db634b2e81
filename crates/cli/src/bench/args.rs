//! Judged arguments of `paceline bench`.

use std::path::PathBuf;

use net::Shape;
use spec::{MAX_DEPTH, MAX_WIDTH};

use super::http::Target;
use super::setting::{Setting, Strategy};
use super::workload::Workload;
use crate::args::{MAX_PARALLEL, MAX_STAGES, MAX_THREADS, Usage};
use crate::flags::BenchFlags;

/// Requests of each setting and workload when the user does not say: the least for which a 90 % interval of the median
/// leaves values out on both sides.
const REQUESTS: u16 = 8;
const MAX_REQUESTS: u16 = 1000;
/// Tokens of an answer: enough for a rate, and nobody waits long.
const TOKENS: u16 = 96;
const MAX_TOKENS: u16 = 4096;
/// Settings at most, each of which is a line of its own to start.
const MAX_SETTINGS: usize = 256;

/// `paceline bench`.
#[derive(Clone, Debug)]
pub(crate) struct BenchArgs {
    pub(super) subject: Subject,
    pub(super) workloads: Vec<Workload>,
    /// Requests of each setting and workload.
    pub(super) requests: u16,
    pub(super) concurrency: u16,
    pub(super) max_tokens: u16,
    pub(super) json: Option<PathBuf>,
    pub(super) plot: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A model, served here in each of these ways. Those of one group differ in who guesses and are measured in turn.
    Model { path: PathBuf, groups: Vec<Vec<Setting>> },
    /// A server that runs already.
    Server { target: Target, key_file: Option<PathBuf> },
}

fn usage<T>(sentence: impl Into<String>) -> anyhow::Result<T> {
    Err(Usage(sentence.into()).into())
}

/// A number within its range, or what stands for none.
fn within(name: &str, value: Option<u16>, max: u16, default: u16) -> anyhow::Result<u16> {
    match value {
        Some(n) if n == 0 || n > max => usage(format!("{name} must be 1 to {max}, not {n}")),
        given => Ok(given.unwrap_or(default)),
    }
}

/// Every word of a list, once.
fn words<T: PartialEq>(
    name: &str,
    given: Vec<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> anyhow::Result<Vec<T>> {
    let mut list = Vec::new();
    for word in given {
        let item = parse(word.trim()).map_err(|why| Usage(format!("{name}: {why}")))?;
        if list.contains(&item) {
            return usage(format!("{name}: `{word}` is listed twice"));
        }
        list.push(item);
    }
    Ok(list)
}

impl BenchArgs {
    pub(crate) fn from_flags(flags: BenchFlags) -> anyhow::Result<Self> {
        let workloads =
            flags.workload.clone().map(|given| words("--workload", given, str::parse)).transpose()?;
        let concurrency = within("--concurrency", flags.concurrency, MAX_PARALLEL, 1)?;
        Ok(Self {
            workloads: workloads.unwrap_or_else(|| Workload::ALL.to_vec()),
            requests: within("--requests", flags.requests, MAX_REQUESTS, REQUESTS)?,
            concurrency,
            max_tokens: within("--max-tokens", flags.max_tokens, MAX_TOKENS, TOKENS)?,
            json: flags.json.clone(),
            plot: flags.plot.clone(),
            subject: Subject::of(flags, concurrency)?,
        })
    }

    /// Rounds: in each, every setting answers every workload as often as it can at once.
    pub(super) fn rounds(&self) -> usize {
        usize::from(self.requests.div_ceil(self.concurrency))
    }
}

impl Subject {
    fn of(flags: BenchFlags, concurrency: u16) -> anyhow::Result<Self> {
        match (flags.model.clone(), flags.url.as_deref()) {
            (None, None) => {
                usage("name a model to serve or, with --url, a server that runs: `paceline bench MODEL`")
            }
            (Some(_), Some(_)) => usage("MODEL and --url are two things to measure: leave one of them out"),
            (Some(path), None) => {
                if flags.api_key_file.is_some() {
                    return usage("--api-key-file is for a server named with --url");
                }
                Ok(Self::Model { path, groups: groups(flags, concurrency)? })
            }
            (None, Some(url)) => {
                let of_line = [
                    ("--stages", flags.stages.is_some()),
                    ("--link", flags.link.is_some()),
                    ("--speculate", flags.speculate.is_some()),
                    ("--width", flags.width.is_some()),
                    ("--depth", flags.depth.is_some()),
                    ("--exact", flags.exact.is_some()),
                    ("--threads", flags.threads.is_some()),
                ];
                if let Some((name, _)) = of_line.iter().find(|(_, given)| *given) {
                    return usage(format!("{name} is for a MODEL that is served here, not for --url"));
                }
                let target = url.parse().map_err(|why| Usage(format!("--url: {why}")))?;
                Ok(Self::Server { target, key_file: flags.api_key_file })
            }
        }
    }
}

/// Every combination of lengths and links, each with all strategies.
fn groups(flags: BenchFlags, concurrency: u16) -> anyhow::Result<Vec<Vec<Setting>>> {
    let given = flags.speculate.unwrap_or_else(|| vec!["off".to_owned(), "auto".to_owned()]);
    let strategies = words("--speculate", given, Strategy::parse)?;
    for (name, value, max) in [("--width", flags.width, MAX_WIDTH), ("--depth", flags.depth, MAX_DEPTH)] {
        match value {
            Some(n) if n == 0 || n > max => return usage(format!("{name} must be 1 to {max}, not {n}")),
            Some(_) if strategies.iter().all(Strategy::is_off) => {
                return usage(format!("{name} says how far to guess: add --speculate auto"));
            }
            _ => {}
        }
    }
    let threads = flags.threads.map(|n| within("--threads", Some(n), MAX_THREADS, n)).transpose()?;
    let mut lengths = Vec::new();
    for n in flags.stages.unwrap_or_else(|| vec![1]) {
        let n = within("--stages", Some(n), MAX_STAGES, n)?;
        if lengths.contains(&n) {
            return usage(format!("--stages: {n} is listed twice"));
        }
        lengths.push(n);
    }
    let links = match flags.link {
        None => vec![None],
        Some(given) => {
            let judge = |text: &str| match text.parse::<Shape>() {
                Ok(_) => Ok(Some(text.to_owned())),
                Err(why) => Err(format!("{text}: {why}")),
            };
            words("--link", given, judge)?
        }
    };
    if lengths.len() * links.len() * strategies.len() > MAX_SETTINGS {
        return usage(format!("these are more than {MAX_SETTINGS} settings: list fewer"));
    }
    let group = |stages: u16, link: &Option<String>| {
        let setting = |strategy: &Strategy| Setting {
            stages,
            link: link.clone(),
            strategy: strategy.clone(),
            width: flags.width,
            depth: flags.depth,
            exact: flags.exact.unwrap_or(false),
            threads,
            concurrency,
        };
        strategies.iter().map(setting).collect()
    };
    Ok(lengths.iter().flat_map(|&stages| links.iter().map(move |link| group(stages, link))).collect())
}
