//! What prompts take on a real model: those whose beginning is known, from memory and from the disk after a restart, and
//! the overlap of chunks on two stages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use protocol::Token;
use serde_json::Value;

use super::http;
use super::report::{Bound, Report};
use super::served::Served;
use super::stats::Median;

/// Tokens that several prompts begin with, how they differ, and how much sooner the first token of a known one comes:
/// from memory, and from the disk.
const SHARED: usize = 2000;
const TAIL: usize = 11;
const WARM: f64 = 8.0;
const FROM_DISK: f64 = 3.0;
/// Megabytes of the disk: enough for the prompts of every round, some 50 each for a small model.
const DISK_MIB: &str = "2048";
/// Of the beginning, what must have come from the disk for the time to be one of the disk.
const RESTORED: f64 = 0.99;
/// A stage stores a prompt as soon as nobody needs its engine.
const STORED_WITHIN: Duration = Duration::from_secs(60);
/// Tokens of the prompt whose chunks overlap.
const CHUNKED: usize = 1024;
/// Until the counters of the last request have been told.
const TOLD: Duration = Duration::from_secs(2);
/// Rounds of the long prompts at most: what is looked for is far beyond any spread.
const MOST_ROUNDS: usize = 5;
/// Positions per sequence.
const CONTEXT: &str = "4608";

/// So many tokens that nobody has asked for before.
pub(super) fn unheard(n: usize, seed: u64) -> Vec<Token> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        // xorshift64: Marsaglia, Xorshift RNGs, 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Token(1000 + (state % 30_000) as i32)
    };
    (0..n).map(|_| next()).collect()
}

/// A beginning, and what follows it.
fn tailed(shared: &[Token], tail: u64) -> Vec<Token> {
    [shared, &unheard(TAIL, 1000 + tail)].concat()
}

/// Measures all of it.
pub(super) async fn measure(model: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let name = model.file_stem().context("a model has a name")?.to_string_lossy().into_owned();
    known_beginning(model, &name, rounds.min(MOST_ROUNDS), report).await?;
    from_disk(model, &name, rounds.min(MOST_ROUNDS), report).await?;
    overlap(model, &name, rounds, report).await
}

/// The first token of prompts that begin with what was read before, and of prompts that nobody has seen.
async fn known_beginning(model: &Path, name: &str, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let line = Served::start(model, &flags(2, &[])).await?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        eprint!("\r{name}, {SHARED} shared tokens: round {} of {rounds} ", round + 1);
        let shared = unheard(SHARED, 100 + round as u64);
        cold.push(line.first_token(&tailed(&shared, 0)).await?.ms);
        warm.push(line.first_token(&tailed(&shared, 1)).await?.ms);
    }
    eprintln!();
    let name = format!("{name}, {SHARED} shared tokens");
    report.add(format!("{name}, first token cold"), "ms", Median::of(cold.clone()), None);
    report.add(format!("{name}, first token warm"), "ms", Median::of(warm.clone()), None);
    report.add(format!("{name}, cold / warm"), "ratio", ratios(&cold, &warm), Some(Bound::AtLeast(WARM)));
    Ok(())
}

/// The first token of prompts that begin with what an earlier line has stored.
async fn from_disk(model: &Path, name: &str, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let scratch = Scratch::make()?;
    let folder = scratch.0.to_str().context("the folder for temporary files has a name that is no text")?;
    let flags = flags(2, &["--cache-disk", DISK_MIB, "--cache-dir", folder]);
    let shared: Vec<_> = (0..rounds).map(|round| unheard(SHARED, 200 + round as u64)).collect();
    let line = Served::start(model, &flags).await?;
    let mut cold = Vec::new();
    for (round, shared) in shared.iter().enumerate() {
        eprint!("\r{name}, {SHARED} shared tokens on disk: round {} of {rounds} ", round + 1);
        cold.push(line.first_token(&tailed(shared, 0)).await?.ms);
        stored(&line, round as u64 + 1).await?;
    }
    line.end().await?;
    let line = Served::start(model, &flags).await?;
    let mut warm = Vec::new();
    for shared in &shared {
        let first = line.first_token(&tailed(shared, 1)).await?;
        if (first.cached as f64) < RESTORED * SHARED as f64 {
            bail!("only {} of {SHARED} tokens came back from the disk", first.cached);
        }
        warm.push(first.ms);
    }
    eprintln!();
    let name = format!("{name}, {SHARED} shared tokens, after a restart");
    report.add(format!("{name}, first token from disk"), "ms", Median::of(warm.clone()), None);
    let ratio = ratios(&cold, &warm);
    report.add(format!("{name}, cold / from disk"), "ratio", ratio, Some(Bound::AtLeast(FROM_DISK)));
    Ok(())
}

/// Waits until every stage has stored so many prompts.
async fn stored(line: &Served, n: u64) -> anyhow::Result<()> {
    let so_many =
        |event: &Value| event["line"]["prefixes"]["stored"].as_u64().is_some_and(|stored| stored >= n);
    let told = http::event(line.target(), "/v1/line/events", STORED_WITHIN, so_many).await;
    told.with_context(|| {
        format!("the stages have not stored a prompt within {} s", STORED_WITHIN.as_secs())
    })?;
    Ok(())
}

/// The same prompts on one stage and on two, of one thread each: how far the second stage works beside the first.
async fn overlap(model: &Path, name: &str, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let lines = [Served::start(model, &flags(1, &[])).await?, Served::start(model, &flags(2, &[])).await?];
    let mut times = [Vec::new(), Vec::new()];
    let mut before = 0;
    // One round more, to warm up.
    for round in 0..=rounds {
        eprint!("\r{name}, {CHUNKED} tokens on one stage and on two: round {round} of {rounds} ");
        let prompt = unheard(CHUNKED, 300 + round as u64);
        for turn in 0..lines.len() {
            let which = (round + turn) % lines.len();
            let first = lines[which].first_token(&prompt).await?;
            if round > 0 {
                times[which].push(first.ms);
            }
        }
        if round == 0 {
            before = chunks(&lines[1]).await?;
        }
    }
    eprintln!();
    let m = (chunks(&lines[1]).await? - before) as f64 / rounds as f64;
    let name = format!("{name}, prompt of {CHUNKED} tokens");
    let [one, two] = &times;
    let mut add = |what: &str, unit, value| report.add(format!("{name}, {what}"), unit, value, None);
    add("1 stage", "ms", Median::of(one.clone()));
    add("2 stages", "ms", Median::of(two.clone()));
    add("chunks m", "", Median::of(vec![m]));
    let overlap = one.iter().zip(two).map(|(one, two)| one / (2.0 * two)).collect();
    add("1 stage / twice 2 stages", "ratio", Median::of(overlap));
    add("the same at best, m / (m + 1)", "ratio", Median::of(vec![m / (m + 1.0)]));
    Ok(())
}

/// Prompt chunks that the first stage has computed.
async fn chunks(line: &Served) -> anyhow::Result<u64> {
    tokio::time::sleep(TOLD).await;
    line.line().await?["stages"][0]["work"]["chunks"].as_u64().context("/v1/line counts no chunks")
}

fn ratios(cold: &[f64], warm: &[f64]) -> Median {
    Median::of(cold.iter().zip(warm).map(|(cold, warm)| cold / warm).collect())
}

fn flags(stages: usize, more: &[&str]) -> Vec<String> {
    let stages = stages.to_string();
    let flags = ["--stages", &stages, "--threads", "1", "--speculate", "off", "--ctx", CONTEXT];
    flags.iter().chain(more).map(|&flag| flag.to_owned()).collect()
}

/// A folder of this process, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("paceline-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("could not make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind lies among other temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_asked_for_prompts_of_another_seed_before() {
        assert_eq!(unheard(50, 1), unheard(50, 1));
        assert!(unheard(50, 1).iter().zip(unheard(50, 2)).filter(|(a, b)| *a == b).count() < 3);
        let shared = unheard(SHARED, 200);
        let (one, other) = (tailed(&shared, 0), tailed(&shared, 1));
        assert!(one != other && one[..SHARED] == other[..SHARED] && one.len() == SHARED + TAIL);
    }
}
