//! A running `paceline serve`, as a user starts it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use protocol::Token;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

use super::client;
use super::http::{self, Target};
use super::stats::quantile;

/// The model may have to be cut first.
const READY_WITHIN: Duration = Duration::from_secs(600);

/// It writes what it has and waits for its stages.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A server; ended, with its stages, when dropped.
pub(super) struct Served {
    child: Child,
    target: Target,
    reading: JoinHandle<()>,
}

/// One answer.
pub(super) struct Answer {
    pub(super) text: String,
    /// Median time between two events, each of which is a token with few exceptions.
    pub(super) token_ms: f64,
    /// Mean time of a token after the first text, also where several come at once.
    pub(super) mean_ms: f64,
    /// Mean time per token in the stages' engines, as the server says.
    pub(super) compute_ms: f64,
}

/// The first token after a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    /// From sending the prompt to the whole answer, in milliseconds.
    pub(super) ms: f64,
    /// Tokens of the prompt that were not computed again.
    pub(super) cached: usize,
    /// The longest time of one of its chunks in one stage, in milliseconds.
    pub(super) chunk_ms: f64,
}

impl Served {
    /// Starts `paceline serve` with these flags and waits until it is ready.
    pub(super) async fn start(model: &Path, flags: &[String]) -> anyhow::Result<Self> {
        let program = program()?;
        let mut child = Command::new(&program)
            .arg("serve")
            .arg(model)
            .args(flags)
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let mut said = BufReader::new(stderr).lines();
        let address = tokio::time::timeout(READY_WITHIN, ready(&mut said))
            .await
            .with_context(|| format!("{} was not ready in time", model.display()))??;
        // What it still says is read, so that it never waits for a reader.
        let reading = tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
        Ok(Self { child, target: Target::local(address), reading })
    }

    /// Where it answers.
    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// Generates greedily after the prompt, streaming.
    pub(super) async fn answer(&self, prompt: &[Token], n_tokens: usize) -> anyhow::Result<Answer> {
        let body = json!({
            "model": "default",
            "prompt": prompt.iter().map(|token| token.0).collect::<Vec<_>>(),
            "max_tokens": n_tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
        });
        let events = http::stream(&self.target, "/v1/completions", &body).await?;
        let mut text = String::new();
        let mut times = Vec::new();
        // Bytes of the first text.
        let mut opening = 0;
        for (at, event) in &events {
            if let Some(piece) = event["choices"][0]["text"].as_str().filter(|piece| !piece.is_empty()) {
                opening = if times.is_empty() { piece.len() } else { opening };
                text.push_str(piece);
                times.push(*at);
            }
        }
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            bail!("an answer of {n_tokens} tokens came without any text");
        };
        let mean = client::per_token(*last - *first, n_tokens as u64, opening, text.len());
        let mut gaps: Vec<f64> =
            times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect();
        gaps.sort_by(f64::total_cmp);
        let said = events.last().context("an answer without events")?.1["timings"]["stages"].as_array();
        let compute: f64 = said
            .context("an answer without timings")?
            .iter()
            .filter_map(|stage| stage["compute_ms"].as_f64())
            .sum();
        Ok(Answer {
            text,
            token_ms: if gaps.is_empty() { 0.0 } else { quantile(&gaps, 0.5) },
            mean_ms: mean.context("an answer came all at once")?.as_secs_f64() * 1e3,
            compute_ms: compute / n_tokens as f64,
        })
    }

    /// The first token after a prompt, and what that took.
    pub(super) async fn first_token(&self, prompt: &[Token]) -> anyhow::Result<First> {
        let ids: Vec<i32> = prompt.iter().map(|token| token.0).collect();
        let sent = http::now();
        let body = json!({ "prompt": ids, "max_tokens": 1, "temperature": 0 });
        let answer = http::post(&self.target, "/v1/completions", &body).await?;
        let took = http::now() - sent;
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let chunk_ms = answer["timings"]["chunk_ms"].as_f64().unwrap_or(0.0);
        Ok(First { ms: took.as_secs_f64() * 1e3, cached: cached as usize, chunk_ms })
    }

    /// What it says of its line.
    pub(super) async fn line(&self) -> anyhow::Result<Value> {
        http::get(&self.target, "/v1/line").await
    }

    /// Ends it as a user does, so that what it still has to write is written.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        self.ask_to_end()?;
        let ended = tokio::time::timeout(ENDS_WITHIN, self.child.wait()).await;
        ended.context("the server was asked to end and did not")??;
        Ok(())
    }

    #[cfg(unix)]
    fn ask_to_end(&mut self) -> anyhow::Result<()> {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.context("the server has ended already")?, Signal::TERM)?;
        Ok(())
    }

    #[cfg(not(unix))]
    fn ask_to_end(&mut self) -> anyhow::Result<()> {
        Ok(self.child.start_kill()?)
    }

    /// The tokens of a conversation that begins with these words, as the model's template writes them.
    pub(super) async fn chat_tokens(&self, words: &str) -> anyhow::Result<Vec<Token>> {
        let chat = json!({ "messages": [{ "role": "user", "content": words }] });
        let text = http::post(&self.target, "/apply-template", &chat).await?["prompt"].take();
        self.tokens(text.as_str().context("/apply-template gave no text")?).await
    }

    /// The tokens of a text.
    pub(super) async fn tokens(&self, text: &str) -> anyhow::Result<Vec<Token>> {
        let asked = json!({ "content": text, "add_special": false });
        let found = http::post(&self.target, "/tokenize", &asked).await?;
        let list = found["tokens"].as_array().context("/tokenize gave no tokens")?;
        let token = |value: &Value| Some(Token(i32::try_from(value.as_i64()?).ok()?));
        list.iter().map(token).collect::<Option<Vec<Token>>>().context("/tokenize gave no numbers")
    }

    /// The text of tokens.
    pub(super) async fn text(&self, tokens: &[Token]) -> anyhow::Result<String> {
        let list: Vec<i32> = tokens.iter().map(|token| token.0).collect();
        let found = http::post(&self.target, "/detokenize", &json!({ "tokens": list })).await?;
        found["content"].as_str().map(str::to_owned).context("/detokenize gave no text")
    }

    /// The front's process and those of its stages.
    pub(super) async fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let line = self.line().await?;
        let stages = line["stages"].as_array().context("/v1/line names no stages")?;
        stages
            .iter()
            .map(|stage| stage["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()))
            .collect::<Option<Vec<u32>>>()
            .context("/v1/line names no processes")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.reading.abort();
        // Gone already if it ended by itself; its stages end with it.
        let _ = self.child.start_kill();
    }
}

/// This program, or the `paceline` beside it if this is the project's own benchmark.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("could not find this program's own file")?;
    if own.file_stem().is_some_and(|name| name != "line-bench") {
        return Ok(own);
    }
    Ok(own.with_file_name(format!("paceline{}", std::env::consts::EXE_SUFFIX)))
}

/// Reads what the server says until it is ready: `Ready: NAME at http://ADDRESS`.
async fn ready(said: &mut Lines<BufReader<ChildStderr>>) -> anyhow::Result<SocketAddr> {
    let mut last = String::new();
    while let Some(line) = said.next_line().await? {
        if let Some(address) = line.strip_prefix("Ready: ").and_then(|line| line.rsplit_once("http://")) {
            return address.1.trim().parse().with_context(|| format!("no address in `{line}`"));
        }
        last = line;
    }
    bail!("the server ended before it was ready: {last}")
}
