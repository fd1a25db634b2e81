//! Decoding three ways, in turn: llama.cpp alone, a line of one stage, a line of three. And what the lines cost idle,
//! and what a line costs that computes exactly.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use llama::{Reference, Vocab};
use protocol::Token;
use tokio::task::spawn_blocking;

use super::exact;
use super::idle::cpu_seconds;
use super::report::{Bound, Report};
use super::served::{Answer, Served};
use super::stats::{Median, quantile};

/// Stages of the cut line.
const STAGES: usize = 3;
/// Tokens of the prompt, and of each answer: short, so that all three are measured within the same second or two.
const PROMPT: usize = 16;
const ANSWER: usize = 32;
/// Positions of llama.cpp's own memory.
const POSITIONS: u32 = (PROMPT + ANSWER) as u32;
/// Rounds for each that was asked for: a round is short, and a token's time varies more than what is looked for.
const ROUNDS: usize = 4;
const TEXT: &str = "The history of the steam engine begins in the first century, when Hero of Alexandria described \
    a vessel that turned when it was heated. For a long time nobody knew what to do with it. Then miners needed pumps, \
    and an ironmonger from Dartmouth built an engine that was large, slow and hungry for coal, and that worked.";
/// A line of three stages needs at most this much of the time per token of one stage.
const SPLIT_AT_MOST: f64 = 1.05;
/// A line of one stage is at least this fast, measured by llama.cpp's own loop.
const WHOLE_AT_LEAST: f64 = 0.95;
/// Processor time of a process that waits, in percent of one core.
const IDLE_AT_MOST: f64 = 1.0;
/// How long it is watched.
const IDLE_FOR: Duration = Duration::from_secs(5);

/// Measures decoding and (or) idleness of the lines.
pub(super) async fn measure(
    model: &Path,
    rounds: usize,
    (answers, idle): (bool, bool),
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = model.file_stem().context("a model has a name")?.to_string_lossy().into_owned();
    let whole = Served::start(model, &flags(1)).await?;
    let cut = Served::start(model, &flags(STAGES)).await?;
    if answers {
        let prompt = prompt(model)?;
        compare(model, &name, rounds, (&whole, &cut), (&prompt, report)).await?;
        exact::measure(model, &name, rounds, (&whole, &prompt), report).await?;
    }
    if idle {
        drop(whole);
        watch(&name, &cut, report).await?;
    }
    Ok(())
}

fn flags(stages: usize) -> [String; 4] {
    ["--stages".into(), stages.to_string(), "--threads".into(), "1".into()]
}

/// One round's times per token in milliseconds.
#[derive(Clone, Copy, Default)]
struct Round {
    plain: f64,
    whole: f64,
    cut: f64,
    computing: f64,
}

async fn compare(
    model: &Path,
    name: &str,
    rounds: usize,
    (whole, cut): (&Served, &Served),
    (prompt, report): (&[Token], &mut Report),
) -> anyhow::Result<()> {
    let mut alone = Alone::load(model).await?;
    let rounds = rounds * ROUNDS;
    let mut done = Vec::with_capacity(rounds);
    // One round more, to warm up.
    for at in 0..=rounds {
        eprint!("\r{name}: round {at} of {rounds} ");
        let mut round = Round::default();
        let mut texts = Vec::new();
        // Each comes first, second and last equally often: a drift of the machine's speed favours none.
        for turn in 0..3 {
            match (at + turn) % 3 {
                0 => round.plain = alone.answer(prompt).await?,
                1 => {
                    let answer = whole.answer(prompt, ANSWER).await?;
                    round.computing = answer.compute_ms;
                    round.whole = heard(answer, &mut texts);
                }
                _ => round.cut = heard(cut.answer(prompt, ANSWER).await?, &mut texts),
            }
        }
        if texts[0] != texts[1] {
            bail!("{name} gives another answer when it is cut: {texts:?}");
        }
        if at > 0 {
            done.push(round);
        }
    }
    eprintln!();
    let each = |value: fn(&Round) -> f64| Median::of(done.iter().map(value).collect());
    report.add(format!("{name}, llama.cpp alone, per token"), "ms", each(|round| round.plain), None);
    report.add(format!("{name}, 1 stage, per token"), "ms", each(|round| round.whole), None);
    report.add(format!("{name}, 1 stage, of which its engine"), "ms", each(|round| round.computing), None);
    report.add(format!("{name}, {STAGES} stages, per token"), "ms", each(|round| round.cut), None);
    let (least, most) = (Bound::AtLeast(WHOLE_AT_LEAST), Bound::AtMost(SPLIT_AT_MOST));
    let speed = each(|round| round.plain / round.whole);
    report.add(format!("{name}, speed of 1 stage / llama.cpp"), "ratio", speed, Some(least));
    let time = each(|round| round.cut / round.whole);
    report.add(format!("{name}, time of {STAGES} stages / 1 stage"), "ratio", time, Some(most));
    Ok(())
}

fn heard(answer: Answer, texts: &mut Vec<String>) -> f64 {
    texts.push(answer.text);
    answer.token_ms
}

fn prompt(model: &Path) -> anyhow::Result<Vec<Token>> {
    let mut tokens = Vocab::load(model)?.tokenize(TEXT, true, false)?;
    if tokens.len() < PROMPT {
        bail!("the prompt has only {} tokens in this vocabulary", tokens.len());
    }
    tokens.truncate(PROMPT);
    Ok(tokens)
}

/// llama.cpp in a bare loop, in this process, which does nothing else meanwhile.
struct Alone(Option<Reference>);

impl Alone {
    async fn load(model: &Path) -> anyhow::Result<Self> {
        let model = model.to_owned();
        Ok(Self(Some(spawn_blocking(move || Reference::load(&model, POSITIONS, 1)).await??)))
    }

    /// Median time of a token in milliseconds.
    async fn answer(&mut self, prompt: &[Token]) -> anyhow::Result<f64> {
        let mut reference = self.0.take().context("an answer failed before")?;
        let prompt = prompt.to_vec();
        let (done, reference) =
            spawn_blocking(move || (reference.generate(&prompt, ANSWER), reference)).await?;
        self.0 = Some(reference);
        let mut steps: Vec<f64> = done?.steps.iter().map(|step| step.as_secs_f64() * 1e3).collect();
        steps.sort_by(f64::total_cmp);
        Ok(quantile(&steps, 0.5))
    }
}

/// Processor time of each process of a line that nobody asks anything.
async fn watch(name: &str, line: &Served, report: &mut Report) -> anyhow::Result<()> {
    let pids = line.pids().await?;
    let used = || pids.iter().map(|&pid| cpu_seconds(pid)).collect::<anyhow::Result<Vec<f64>>>();
    // What the last request left to do is over within a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = used()?;
    tokio::time::sleep(IDLE_FOR).await;
    let after = used()?;
    for (at, (before, after)) in before.iter().zip(&after).enumerate() {
        let who = if at == 0 { "front with stage 0".to_owned() } else { format!("stage {at}") };
        let percent = 100.0 * (after - before) / IDLE_FOR.as_secs_f64();
        let value = Median::of(vec![percent]);
        report.add(format!("{name}, idle {who}"), "% core", value, Some(Bound::AtMost(IDLE_AT_MOST)));
    }
    Ok(())
}
