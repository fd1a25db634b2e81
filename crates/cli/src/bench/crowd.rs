//! Several clients at once on a real model: tokens per second by their number, and a long prompt that comes in beside
//! running answers. What prompts alone take is that of [`super::prompts`].
//!
//! Everything is measured from outside, by clients of the HTTP interface, prompts included.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::{join, join_all};
use serde::Serialize;
use serde_json::{Value, json};

use super::http;
use super::plots;
use super::prompts::unheard;
use super::report::{Bound, Report};
use super::served::Served;
use super::stats::{Median, quantile};
use super::svg::{self, Panel, Series};

/// Clients at once.
const CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Where the promises about many clients are judged, and what they are: tokens per second over one client's, and over
/// those of the whole model in one process with as many threads as the line has.
const MANY: usize = 8;
const OVER_ONE: f64 = 2.2;
const OVER_WHOLE: f64 = 0.95;
/// Tokens of an answer.
const ANSWER: u32 = 96;
/// Positions per sequence.
const CONTEXT: &str = "4608";
/// Tokens of the long prompt, and of the streams beside it.
const LONG: usize = 4000;
const STREAM: u32 = 400;
const STREAMS: usize = 4;
/// Until each of the streams decodes.
const SETTLED: Duration = Duration::from_secs(3);
/// The longest wait for a token beside a long prompt: two chunks of a tenth of a second.
const LONGEST_GAP_MS: f64 = 200.0;

/// What answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contender {
    name: &'static str,
    stages: &'static str,
    threads: &'static str,
    speculate: &'static str,
}

const LINE: Contender = Contender { name: "2 stages", stages: "2", threads: "1", speculate: "off" };
const AHEAD: Contender = Contender { name: "2 stages ahead", speculate: "auto", ..LINE };
const WHOLE: Contender =
    Contender { name: "unsplit, 2 threads", stages: "1", threads: "2", speculate: "off" };
const CONTENDERS: [Contender; 3] = [LINE, AHEAD, WHOLE];

impl Contender {
    async fn start(self, model: &Path) -> anyhow::Result<Served> {
        let flags = ["--stages", self.stages, "--threads", self.threads, "--speculate", self.speculate];
        let more = ["--parallel", "16", "--ctx", CONTEXT];
        let flags: Vec<String> = flags.into_iter().chain(more).map(str::to_owned).collect();
        Served::start(model, &flags).await
    }
}

/// One point of the picture.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    contender: &'static str,
    clients: usize,
    #[serde(flatten)]
    tokens_per_second: Median,
}

/// Measures everything; the points of the picture.
pub(super) async fn measure(model: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<Vec<Point>> {
    let name = model.file_stem().context("a model has a name")?.to_string_lossy().into_owned();
    let points = throughput(model, &name, rounds, report).await?;
    let line = LINE.start(model).await?;
    long_prompt(&line, &name, report).await?;
    Ok(points)
}

/// Draws tokens per second over the number of clients.
pub(super) fn draw(folder: &Path, points: &[Point]) -> anyhow::Result<PathBuf> {
    let value = |contender: &Contender, clients: usize| {
        let found = points.iter().find(|point| point.contender == contender.name && point.clients == clients);
        found.map(|point| point.tokens_per_second.median)
    };
    let series = |contender: &Contender| Series {
        name: contender.name.to_owned(),
        values: CLIENTS.map(|clients| value(contender, clients)).to_vec(),
    };
    let panel = Panel {
        title: "novel".to_owned(),
        places: CLIENTS.map(|clients| clients.to_string()).to_vec(),
        series: CONTENDERS.iter().map(series).collect(),
    };
    plots::save(
        folder,
        "clients.svg",
        &svg::panels("All answers together, by clients at once", "tok/s", &[panel]),
    )
}

async fn throughput(
    model: &Path,
    name: &str,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<Vec<Point>> {
    let mut servers = Vec::new();
    for contender in CONTENDERS {
        servers.push(contender.start(model).await?);
    }
    // One round more, to warm up.
    let mut rates = vec![[const { Vec::new() }; CLIENTS.len()]; servers.len()];
    for round in 0..=rounds {
        for (at, clients) in CLIENTS.into_iter().enumerate() {
            eprint!("\r{name}, {clients} clients: round {round} of {rounds} ");
            for turn in 0..servers.len() {
                let which = (round + turn) % servers.len();
                let rate = together(&servers[which], round * CLIENTS[CLIENTS.len() - 1], clients).await?;
                if round > 0 {
                    rates[which][at].push(rate);
                }
            }
        }
    }
    eprintln!();
    let mut points = Vec::new();
    for (contender, rates) in CONTENDERS.iter().zip(&rates) {
        for (clients, rates) in CLIENTS.into_iter().zip(rates) {
            let tokens_per_second = Median::of(rates.clone());
            let what = format!("{name}, {}, {clients} clients", contender.name);
            report.add(what, "token/s", tokens_per_second, None);
            points.push(Point { contender: contender.name, clients, tokens_per_second });
        }
    }
    let many =
        CLIENTS.iter().position(|&clients| clients == MANY).context("the promises are about one of these")?;
    let over = |a: &[f64], b: &[f64]| Median::of(a.iter().zip(b).map(|(a, b)| a / b).collect());
    let [line, ahead, whole] = &rates[..] else { unreachable!("there are three") };
    let mut add = |what: &str, ratio, bound| {
        report.add(format!("{name}, {MANY} clients, {what}"), "ratio", ratio, bound)
    };
    add("2 stages / one client", over(&line[many], &line[0]), Some(Bound::AtLeast(OVER_ONE)));
    add("2 stages / unsplit", over(&line[many], &whole[many]), Some(Bound::AtLeast(OVER_WHOLE)));
    add("ahead / not ahead", over(&ahead[many], &line[many]), None);
    Ok(points)
}

/// Tokens per second of so many clients, each with a prompt of its own, from the first request to the last answer.
async fn together(server: &Served, first: usize, clients: usize) -> anyhow::Result<f64> {
    let asks = (0..clients).map(|client| {
        let body = json!({
            "prompt": topic(first + client), "max_tokens": ANSWER, "temperature": 0.8, "seed": first + client,
            "ignore_eos": true, "cache_prompt": false,
        });
        async move { http::post(server.target(), "/v1/completions", &body).await }
    });
    let start = http::now();
    let mut tokens = 0;
    for answer in join_all(asks).await {
        tokens += answer?["usage"]["completion_tokens"].as_u64().context("an answer without usage")?;
    }
    Ok(tokens as f64 / (http::now() - start).as_secs_f64())
}

/// Something to write about, another one for each number.
fn topic(n: usize) -> String {
    const WHAT: [&str; 8] = ["rain", "copper", "maps", "bread", "glass", "wolves", "tides", "paper"];
    const WHERE: [&str; 7] =
        ["islands", "the north", "old towns", "schools", "deserts", "harbours", "winter"];
    format!("Write a short essay about {} in {} and why it matters.\n", WHAT[n % 8], WHERE[n / 8 % 7])
}

/// Longest waits for a token of running streams while a long prompt is read.
async fn long_prompt(line: &Served, name: &str, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{name}, a prompt of {LONG} tokens beside {STREAMS} streams");
    let streams = (0..STREAMS).map(|at| {
        let body = json!({
            "prompt": topic(at), "max_tokens": STREAM, "temperature": 0.8, "seed": at, "ignore_eos": true,
            "stream": true,
        });
        async move { http::stream(line.target(), "/v1/completions", &body).await }
    });
    let long = async {
        tokio::time::sleep(SETTLED).await;
        let sent = http::now();
        line.first_token(&unheard(LONG, 1)).await.map(|first| (sent, http::now(), first.chunk_ms))
    };
    let (streams, long) = join(join_all(streams), long).await;
    let (sent, read, chunk_ms) = long?;
    let mut gaps = Vec::new();
    for events in streams {
        gaps.extend(gaps_within(&events?, sent, read));
    }
    gaps.sort_by(f64::total_cmp);
    let one = |value| Median::of(vec![value]);
    let mut add = |what: &str, unit, value, bound| {
        report.add(
            format!("{name}, {LONG} tokens beside {STREAMS} streams, {what}"),
            unit,
            one(value),
            bound,
        );
    };
    add("prompt read", "s", (read - sent).as_secs_f64(), None);
    add("usual gap", "ms", quantile(&gaps, 0.5), None);
    add("99th percentile", "ms", quantile(&gaps, 0.99), None);
    add("longest chunk in one stage", "ms", chunk_ms, None);
    let bound = (2.0 * chunk_ms).max(LONGEST_GAP_MS);
    add("longest gap", "ms", quantile(&gaps, 1.0), Some(Bound::AtMost(bound)));
    Ok(())
}

/// Milliseconds between the tokens of one stream that came after the prompt was sent and before it was answered.
fn gaps_within(events: &[(Instant, Value)], sent: Instant, read: Instant) -> Vec<f64> {
    let has_text = |event: &Value| event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty());
    let times: Vec<Instant> = events.iter().filter(|(_, event)| has_text(event)).map(|(at, _)| *at).collect();
    let pairs = times.windows(2).filter(|pair| pair[1] >= sent && pair[0] <= read);
    pairs.map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect()
}
