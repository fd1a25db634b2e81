//! What `--exact` costs: one stage with it and one without answer in turn.
//!
//! Owns no bound: exactness is a choice, and its price is told.

use std::path::Path;

use super::prompts::unheard;
use super::report::Report;
use super::served::Served;
use super::stats::Median;
use protocol::Token;

/// Tokens of the prompt that is read, and of the answer that follows a short one.
const PROMPT: usize = 512;
const ANSWER: usize = 32;
/// Prompts of other measurements have other seeds.
const SEED: u64 = 5000;

/// Times of one round, not exact and exact, in milliseconds.
#[derive(Default)]
struct Round {
    token: [f64; 2],
    prompt: [f64; 2],
}

/// Measures one stage of one thread against `plain`, which is such a one without `--exact`.
pub(super) async fn measure(
    model: &Path,
    name: &str,
    rounds: usize,
    (plain, short): (&Served, &[Token]),
    report: &mut Report,
) -> anyhow::Result<()> {
    let flags = ["--stages", "1", "--threads", "1", "--exact"].map(str::to_owned);
    let exact = Served::start(model, &flags).await?;
    let both = [plain, &exact];
    let mut done = Vec::with_capacity(rounds);
    // One round more, to warm up.
    for at in 0..=rounds {
        eprint!("\r{name}, exact or not: round {at} of {rounds} ");
        let mut round = Round::default();
        let long = unheard(PROMPT, SEED + at as u64);
        for turn in 0..both.len() {
            let which = (at + turn) % both.len();
            round.token[which] = both[which].answer(short, ANSWER).await?.token_ms;
            round.prompt[which] = both[which].first_token(&long).await?.ms;
        }
        if at > 0 {
            done.push(round);
        }
    }
    eprintln!();
    let each = |value: fn(&Round) -> f64| Median::of(done.iter().map(value).collect());
    let mut add = |what: &str, unit, value| report.add(format!("{name}, {what}"), unit, value, None);
    add("1 stage, exact, per token", "ms", each(|round| round.token[1]));
    add("time per token, exact / not", "ratio", each(|round| round.token[1] / round.token[0]));
    let what = format!("prompt of {PROMPT} tokens");
    add(&what, "ms", each(|round| round.prompt[0]));
    add(&format!("{what}, exact"), "ms", each(|round| round.prompt[1]));
    add(&format!("{what}, exact / not"), "ratio", each(|round| round.prompt[1] / round.prompt[0]));
    Ok(())
}
