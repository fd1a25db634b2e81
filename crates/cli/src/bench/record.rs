//! What a model says to every workload, for the forecast: texts whose guesses are right as often as real ones are. An
//! answer in which a small model goes round in circles is left out: it would be guessed too well.
//!
//! A text's tokens are renamed in the order in which they first come, so that the forecast's small vocabulary holds
//! them; who guesses by what stood where before cannot tell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use protocol::Token;
use serde::Serialize;

use super::client;
use super::served::Served;
use super::workload::Workload;

/// Tasks of each kind.
const TASKS: usize = 3;
/// Tokens of an answer at most.
const ANSWER: u16 = 384;

/// Of the groups of three tokens in an answer, this share at least differs from all others.
const DISTINCT: f64 = 0.25;

/// A prompt and what was said.
#[derive(Debug, Serialize)]
struct Recorded {
    name: String,
    prompt: Vec<i32>,
    prediction: Option<Vec<i32>>,
    answer: Vec<i32>,
}

/// Names tokens by the order in which they come.
#[derive(Default)]
struct Names(BTreeMap<Token, i32>);

impl Names {
    fn of(&mut self, tokens: &[Token]) -> Vec<i32> {
        let mut name = |token: &Token| {
            let next = self.0.len() as i32;
            *self.0.entry(*token).or_insert(next)
        };
        tokens.iter().map(&mut name).collect()
    }
}

/// Whether most of a text is no repetition.
fn is_varied(tokens: &[i32]) -> bool {
    let different: BTreeSet<&[i32]> = tokens.windows(3).collect();
    different.len() as f64 >= DISTINCT * tokens.windows(3).len() as f64
}

/// Lets each of the models answer, and writes one text a line as JSON.
pub(super) async fn write(models: &[impl AsRef<Path>], path: &Path) -> anyhow::Result<()> {
    let mut lines = String::new();
    for model in models.iter().map(AsRef::as_ref) {
        let flags = ["--stages", "1", "--speculate", "off"].map(str::to_owned);
        let served = Served::start(model, &flags).await?;
        let stem = model.file_stem().context("a model has a name")?.to_string_lossy();
        for (workload, at) in Workload::ALL.into_iter().flat_map(|kind| (0..TASKS).map(move |at| (kind, at)))
        {
            let task = workload.task(at);
            if task.schema.is_some() {
                continue; // The forecast knows no grammars.
            }
            eprint!("\r{stem}, {workload} {at} ");
            let prompt = served.chat_tokens(&task.prompt).await?;
            let prediction = task.prediction;
            let answer = client::ask(served.target(), "default", task, ANSWER).await?;
            let mut names = Names::default();
            let recorded = Recorded {
                name: format!("{workload} {at}, {stem}"),
                prompt: names.of(&prompt),
                prediction: match prediction {
                    Some(text) => Some(names.of(&served.tokens(text).await?)),
                    None => None,
                },
                answer: names.of(&served.tokens(&answer.text).await?),
            };
            if is_varied(&recorded.answer) {
                lines.push_str(&serde_json::to_string(&recorded)?);
                lines.push('\n');
            }
        }
    }
    eprintln!();
    std::fs::write(path, lines).with_context(|| path.display().to_string())
}
