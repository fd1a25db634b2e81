//! Lines of two stages beside llama.cpp's own way to use two machines, its RPC back end, over links of the same delay.
//!
//! The back end comes from a program of its own (`bench/rpc`), so that the released one is built without it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gguf::Model;
use protocol::Token;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::report::{Bound, Report};
use super::served::Served;
use super::stats::Median;
use super::workload::Workload;

/// One way, as on a network between two towns.
const DELAY_MS: u32 = 10;
/// Texts, and what `auto` must be at least, as a multiple of the back end's speed.
const TEXTS: [(Workload, f64); 2] = [(Workload::Novel, 1.8), (Workload::Copy, 4.0)];
/// Tokens of an answer.
const ANSWER: usize = 96;
/// The weights of one half travel over the slow link before the first token.
const READY_WITHIN: Duration = Duration::from_secs(300);
const ANSWERS_WITHIN: Duration = Duration::from_secs(300);
/// Between two tries to reach a server that is starting.
const AGAIN: Duration = Duration::from_millis(50);

/// One round's times per token in milliseconds.
#[derive(Clone, Copy, Default)]
struct Round {
    rpc: f64,
    off: f64,
    auto: f64,
    /// Of each of the lines, in the engines.
    computing: f64,
    is_same: bool,
}

pub(super) async fn measure(model: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let name = model.file_stem().context("a model has a name")?.to_string_lossy().into_owned();
    let mut rpc = Rpc::start(model).await?;
    let off = Served::start(model, &flags("off")).await?;
    let auto = Served::start(model, &flags("auto")).await?;
    for (workload, least) in TEXTS {
        let mut done = Vec::new();
        // One round more, to warm up.
        for at in 0..=rounds {
            eprint!("\r{name}, {workload}: round {at} of {rounds} ");
            let prompt = off.chat_tokens(&workload.task(at).prompt).await?;
            let mut round = Round::default();
            let mut texts = Vec::new();
            for turn in 0..3 {
                match (at + turn) % 3 {
                    0 => {
                        let (ms, tokens) = rpc.answer(&prompt, ANSWER).await?;
                        round.rpc = ms;
                        texts.push(off.text(&tokens).await?);
                    }
                    1 => {
                        let answer = off.answer(&prompt, ANSWER).await?;
                        (round.off, round.computing) = (answer.mean_ms, answer.compute_ms);
                        texts.push(answer.text);
                    }
                    _ => {
                        let answer = auto.answer(&prompt, ANSWER).await?;
                        round.auto = answer.mean_ms;
                        texts.push(answer.text);
                    }
                }
            }
            round.is_same = texts.iter().all(|text| *text == texts[0]);
            if at > 0 {
                done.push(round);
            }
        }
        eprintln!();
        tell(&format!("{name}, {workload}, {DELAY_MS} ms"), &done, least, report);
    }
    Ok(())
}

fn tell(name: &str, done: &[Round], least: f64, report: &mut Report) {
    let each = |value: fn(&Round) -> f64| Median::of(done.iter().map(value).collect());
    report.add(format!("{name}, llama.cpp RPC, per token"), "ms", each(|round| round.rpc), None);
    report.add(format!("{name}, 2 stages, per token"), "ms", each(|round| round.off), None);
    report.add(format!("{name}, 2 stages, of which engines"), "ms", each(|round| round.computing), None);
    report.add(format!("{name}, 2 stages ahead, per token"), "ms", each(|round| round.auto), None);
    report.add(
        format!("{name}, speed of 2 stages / RPC"),
        "ratio",
        each(|round| round.rpc / round.off),
        None,
    );
    let speed = each(|round| round.rpc / round.auto);
    report.add(format!("{name}, speed of 2 stages ahead / RPC"), "ratio", speed, Some(Bound::AtLeast(least)));
    let same = done.iter().filter(|round| round.is_same).count() as f64 / done.len() as f64;
    report.add(
        format!("{name}, texts that are the same in all three"),
        "share",
        Median::of(vec![same]),
        None,
    );
}

fn flags(speculate: &str) -> Vec<String> {
    let link = format!("delay={DELAY_MS}ms");
    ["--stages", "2", "--threads", "1", "--link", &link, "--speculate", speculate].map(str::to_owned).to_vec()
}

/// llama.cpp with its second half behind a slow link; its processes end with this.
struct Rpc {
    _server: Child,
    _network: Child,
    _client: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Rpc {
    async fn start(model: &Path) -> anyhow::Result<Self> {
        let program = program()?;
        // The server is told its port, so a free one is looked for.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let server = command(&program).args(["server", &address]).stdout(Stdio::null()).spawn()?;
        let reached = async {
            while TcpStream::connect(&address).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::time::timeout(READY_WITHIN, reached).await.context("the RPC server did not start")?;
        let mut network = command(&program)
            .args(["delay", &address, &DELAY_MS.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = lines(&mut network)?;
        let slow = next(&mut said).await?;
        let mut client = command(&program)
            .arg("client")
            .arg(model)
            .args([slow, remote_layers(model)?.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = lines(&mut client)?;
        let input = client.stdin.take().context("the RPC client has no standard input")?;
        let said = tokio::time::timeout(READY_WITHIN, next(&mut output)).await??;
        if said != "ready" {
            bail!("the RPC client said `{said}`");
        }
        Ok(Self { _server: server, _network: network, _client: client, input, output })
    }

    /// Mean milliseconds per token, and the tokens.
    async fn answer(&mut self, prompt: &[Token], n: usize) -> anyhow::Result<(f64, Vec<Token>)> {
        let words: Vec<String> = prompt.iter().map(|token| token.0.to_string()).collect();
        self.input.write_all(format!("{n} {}\n", words.join(" ")).as_bytes()).await?;
        self.input.flush().await?;
        let said = tokio::time::timeout(ANSWERS_WITHIN, next(&mut self.output)).await??;
        let mut numbers = said.split(' ');
        let ms = numbers.next().unwrap_or_default().parse().with_context(|| format!("`{said}`"))?;
        let tokens = numbers.map(|token| token.parse().map(Token)).collect::<Result<Vec<Token>, _>>()?;
        Ok((ms, tokens))
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

fn lines(child: &mut Child) -> anyhow::Result<Lines<BufReader<ChildStdout>>> {
    Ok(BufReader::new(child.stdout.take().context("a process has no standard output")?).lines())
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> anyhow::Result<String> {
    lines.next_line().await?.context("an RPC process ended")
}

/// The second half of the layers, and the head.
fn remote_layers(model: &Path) -> anyhow::Result<u32> {
    let layers = Model::open(model)?.arch_u32("block_count").context("the model has no layers")?;
    Ok(layers / 2 + 1)
}

/// `target/rpc/release/rpc-bench`, beside the folder of this program.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("could not find this program's own file")?;
    let target = own.parent().and_then(Path::parent).context("this program lies in no target folder")?;
    let program = target.join(format!("rpc/release/rpc-bench{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        bail!("{} is missing: `./run bench rpc` builds it", program.display());
    }
    Ok(program)
}
