//! How well the chunks of a prompt overlap on a toy line: what of the time the stages compute, against what is possible.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use forecast::{Kind, StageModel, Workload};
use protocol::Token;
use spec::Speculate;

use super::engine::{Log, SharedLog};
use super::line::{ToyLine, ToyPlan};
use crate::bench::report::{Bound, Report};
use crate::bench::stats::Median;

/// A row of a chunk takes 0.75 ms a stage, 96 ms a full chunk: a quarter of an 8B model on a small GPU.
const CALL: Duration = Duration::from_millis(5);
const PER_ROW: f64 = 0.15;
/// Full chunks, as long as [`scheduler::Config::chunk_rows`] says.
const CHUNKS: usize = 10;
/// Of what is possible, at least this is reached where the links take no time.
const SHARE: f64 = 0.85;
const SEED: u64 = 2;

/// Measures lines of two, three and four stages, over loopback and 10 ms apart.
pub(in crate::bench) async fn measure(rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    for (n_stages, delay_ms) in [(2, 0), (3, 0), (4, 0), (3, 10)] {
        let chunk = scheduler::Config::new(n_stages, 1, 1, 1).chunk_rows as usize;
        let plan = ToyPlan {
            n_stages,
            times: StageModel::linear(CALL, PER_ROW),
            delay: Duration::from_millis(delay_ms),
            speculate: Speculate::off(),
        };
        let texts = (0..rounds as u64).map(|round| text(CHUNKS * chunk, round)).collect();
        let log = SharedLog::default();
        let line = ToyLine::form(&plan, Arc::new(texts), Some(Arc::clone(&log))).await?;
        let mut shares = Vec::new();
        for round in 0..rounds {
            eprint!("\rchunks on {n_stages} stages, {delay_ms} ms: round {} of {rounds} ", round + 1);
            log.lock().unwrap_or_else(PoisonError::into_inner).calls.clear();
            line.answer(round).await?;
            let log = log.lock().unwrap_or_else(PoisonError::into_inner);
            shares.push(share(&log, n_stages, chunk).context("no chunk was computed")?);
        }
        eprintln!();
        let name = format!(
            "prompt of {CHUNKS} chunks, {n_stages} toy stages, {delay_ms} ms, overlap / the best possible"
        );
        report.add(name, "ratio", Median::of(shares), (delay_ms == 0).then_some(Bound::AtLeast(SHARE)));
    }
    Ok(())
}

/// A prompt that shares its beginning with no other, and an answer of one token.
fn text(n_prompt: usize, round: u64) -> Workload {
    let text = Kind::ALL[0].workload(SEED, 8);
    let prompt = (0..=n_prompt as i32).map(|at| Token((at * 31 + round as i32 * 7) % 997)).collect();
    Workload { prompt, answer: text.answer[..1].to_vec(), prediction: None, ..text }
}

/// The stages' share of work while the chunks went through, as a part of `m / (m + stages - 1)`, which `m` equal chunks
/// reach if no stage ever waits for another one once it has begun.
fn share(log: &Log, n_stages: u16, chunk: usize) -> Option<f64> {
    let chunks = || log.calls.iter().filter(|call| call.n_rows == chunk);
    let begin = chunks().map(|call| call.start).min()?;
    let end = chunks().map(|call| call.end).max()?;
    let busy: Duration = chunks().map(|call| call.end - call.start).sum();
    let stages = f64::from(n_stages);
    let m = chunks().count() as f64 / stages;
    Some(busy.as_secs_f64() / (stages * (end - begin).as_secs_f64()) / (m / (m + stages - 1.0)))
}
