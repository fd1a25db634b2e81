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

use super::http;
use super::report::{Bound, Report};
use super::served::Served;
use super::stats::Median;
use super::workload::Workload;

/// One way, as on a network between two towns.
const DELAY_MS: u32 = 10;
/// Texts, and what `auto` must be at least, as a multiple of the back end's speed with both halves on other machines.
const TEXTS: [(Workload, f64); 2] = [(Workload::Novel, 1.8), (Workload::Copy, 4.0)];
/// Clients at once, without any delay.
const CLIENTS: u16 = 8;
/// What a line must be at least then, as a multiple of the back end's speed, and of llama.cpp's with the whole model in
/// one process with as many threads.
const OVER_RPC: f64 = 1.6;
const OVER_WHOLE: f64 = 0.95;
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
    /// The back end with the second half behind the slow link, the first one in the process that asks.
    half: f64,
    /// With each half behind a slow link of its own.
    both: f64,
    off: f64,
    auto: f64,
    /// Of each of the lines, in the engines.
    computing: f64,
    is_same: bool,
}

/// One round's tokens per second of several clients together.
#[derive(Clone, Copy, Default)]
struct Rates {
    rpc: f64,
    whole: f64,
    line: f64,
}

pub(super) async fn measure(model: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let name = model.file_stem().context("a model has a name")?.to_string_lossy().into_owned();
    one_client(model, &name, rounds, report).await?;
    many_clients(model, &name, rounds, report).await
}

async fn one_client(model: &Path, name: &str, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut half = Rpc::start(model, Remote::Half, DELAY_MS, 1).await?;
    let mut both = Rpc::start(model, Remote::Both, DELAY_MS, 1).await?;
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
            for turn in 0..4 {
                let turn = (at + turn) % 4;
                if turn < 2 {
                    let rpc = if turn == 0 { &mut half } else { &mut both };
                    let Spoken { step_ms, answers, .. } =
                        rpc.answer(std::slice::from_ref(&prompt), ANSWER).await?;
                    *(if turn == 0 { &mut round.half } else { &mut round.both }) = step_ms;
                    texts.push(off.text(&answers[0]).await?);
                } else {
                    let answer = if turn == 2 { &off } else { &auto }.answer(&prompt, ANSWER).await?;
                    if turn == 2 {
                        (round.off, round.computing) = (answer.mean_ms, answer.compute_ms);
                    } else {
                        round.auto = answer.mean_ms;
                    }
                    texts.push(answer.text);
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
    let mut add = |what: &str, unit: &'static str, value: fn(&Round) -> f64, bound| {
        report.add(format!("{name}, {what}"), unit, Median::of(done.iter().map(value).collect()), bound);
    };
    add("llama.cpp RPC, second half away, per token", "ms", |round| round.half, None);
    add("llama.cpp RPC, both halves away, per token", "ms", |round| round.both, None);
    add("2 stages, per token", "ms", |round| round.off, None);
    add("2 stages, of which engines", "ms", |round| round.computing, None);
    add("2 stages ahead, per token", "ms", |round| round.auto, None);
    add("speed of 2 stages / RPC, second half away", "ratio", |round| round.half / round.off, None);
    add("speed of 2 stages / RPC, both halves away", "ratio", |round| round.both / round.off, None);
    add("speed of 2 stages ahead / RPC, second half away", "ratio", |round| round.half / round.auto, None);
    let bound = Some(Bound::AtLeast(least));
    add("speed of 2 stages ahead / RPC, both halves away", "ratio", |round| round.both / round.auto, bound);
    let same = done.iter().filter(|round| round.is_same).count() as f64 / done.len() as f64;
    report.add(format!("{name}, texts that are the same in all four"), "share", Median::of(vec![same]), None);
}

/// Several clients that ask at once, without any delay: tokens per second from the first request to the last answer,
/// prompts included.
async fn many_clients(model: &Path, name: &str, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let clients = CLIENTS;
    let mut rpc = Rpc::start(model, Remote::Both, 0, clients).await?;
    let mut whole = Rpc::start(model, Remote::None, 0, clients).await?;
    let parallel = clients.to_string();
    let flags = ["--stages", "2", "--threads", "1", "--parallel", &parallel, "--speculate", "auto"];
    // Every round reads prompts that were read before; neither side may keep them.
    let flags: Vec<String> = flags.into_iter().chain(["--cache-ram", "0"]).map(str::to_owned).collect();
    let line = Served::start(model, &flags).await?;
    let n_tokens = f64::from(clients) * ANSWER as f64;
    let mut done = Vec::new();
    for at in 0..=rounds {
        eprint!("\r{name}, {clients} clients: round {at} of {rounds} ");
        let mut prompts = Vec::new();
        for client in 0..usize::from(clients) {
            let task = Workload::Novel.task(at * usize::from(clients) + client);
            prompts.push(line.chat_tokens(&task.prompt).await?);
        }
        let mut rates = Rates::default();
        for turn in 0..3 {
            match (at + turn) % 3 {
                0 => rates.rpc = n_tokens * 1e3 / rpc.answer(&prompts, ANSWER).await?.all_ms,
                1 => rates.whole = n_tokens * 1e3 / whole.answer(&prompts, ANSWER).await?.all_ms,
                _ => {
                    let start = http::now();
                    let asked = prompts.iter().map(|prompt| line.answer(prompt, ANSWER));
                    for answer in futures_util::future::join_all(asked).await {
                        answer?;
                    }
                    rates.line = n_tokens / (http::now() - start).as_secs_f64();
                }
            }
        }
        if at > 0 {
            done.push(rates);
        }
    }
    eprintln!();
    let each = |value: fn(&Rates) -> f64| Median::of(done.iter().map(value).collect());
    let name = format!("{name}, {clients} clients");
    let mut add = |what: &str, unit, value, bound| report.add(format!("{name}, {what}"), unit, value, bound);
    add("llama.cpp RPC with two devices", "token/s", each(|rates| rates.rpc), None);
    add("llama.cpp whole with two threads", "token/s", each(|rates| rates.whole), None);
    add("2 stages", "token/s", each(|rates| rates.line), None);
    let over_rpc = each(|rates| rates.line / rates.rpc);
    add("speed of 2 stages / RPC", "ratio", over_rpc, Some(Bound::AtLeast(OVER_RPC)));
    let over_whole = each(|rates| rates.line / rates.whole);
    add("speed of 2 stages / llama.cpp whole", "ratio", over_whole, Some(Bound::AtLeast(OVER_WHOLE)));
    Ok(())
}

fn flags(speculate: &str) -> Vec<String> {
    let link = format!("delay={DELAY_MS}ms");
    ["--stages", "2", "--threads", "1", "--link", &link, "--speculate", speculate].map(str::to_owned).to_vec()
}

/// Which layers the process that asks leaves to servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remote {
    /// None: it has as many threads as there are stages elsewhere.
    None,
    /// The second half, to one.
    Half,
    /// All, to two.
    Both,
}

/// What the back end answered.
struct Spoken {
    /// Of all of it, prompts included.
    all_ms: f64,
    /// Of a step after the first, on average.
    step_ms: f64,
    answers: Vec<Vec<Token>>,
}

/// llama.cpp with layers behind slow links; its processes end with this.
struct Rpc {
    _others: Vec<Child>,
    _client: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Rpc {
    async fn start(model: &Path, remote: Remote, delay_ms: u32, n_seq: u16) -> anyhow::Result<Self> {
        let program = program()?;
        let (mut others, mut endpoints) = (Vec::new(), Vec::new());
        // The head counts as a layer.
        let all = Model::open(model)?.arch_u32("block_count").context("the model has no layers")? + 1;
        let (servers, layers, threads) = match remote {
            Remote::None => (0, 0, 2),
            Remote::Half => (1, all.div_ceil(2), 1),
            Remote::Both => (2, all, 1),
        };
        for _ in 0..servers {
            endpoints.push(server(&program, delay_ms, &mut others).await?);
        }
        let mut client = command(&program)
            .arg("client")
            .arg(model)
            .args([endpoints.join(","), layers.to_string(), n_seq.to_string(), threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = lines(&mut client)?;
        let input = client.stdin.take().context("the RPC client has no standard input")?;
        let said = tokio::time::timeout(READY_WITHIN, next(&mut output)).await??;
        if said != "ready" {
            bail!("the RPC client said `{said}`");
        }
        Ok(Self { _others: others, _client: client, input, output })
    }

    async fn answer(&mut self, prompts: &[Vec<Token>], n: usize) -> anyhow::Result<Spoken> {
        let mut asked = n.to_string();
        for prompt in prompts {
            asked.push_str(" /");
            prompt.iter().for_each(|token| asked.push_str(&format!(" {}", token.0)));
        }
        asked.push('\n');
        self.input.write_all(asked.as_bytes()).await?;
        self.input.flush().await?;
        let said = tokio::time::timeout(ANSWERS_WITHIN, next(&mut self.output)).await??;
        let (numbers, tokens) = said.split_once(" / ").with_context(|| format!("`{said}`"))?;
        let mut numbers = numbers.split(' ').map(str::parse::<f64>);
        let mut number = || numbers.next().context("a number is missing")?.context("no number");
        let words = |answer: &str| -> anyhow::Result<Vec<Token>> {
            Ok(answer.split(' ').map(|token| token.parse().map(Token)).collect::<Result<_, _>>()?)
        };
        let answers = tokens.split(" / ").map(words).collect::<anyhow::Result<_>>()?;
        Ok(Spoken { all_ms: number()?, step_ms: number()?, answers })
    }
}

/// Starts a server, and the slow link to it if there is any delay; the address to reach it by.
async fn server(program: &Path, delay_ms: u32, processes: &mut Vec<Child>) -> anyhow::Result<String> {
    // The server is told its port, so a free one is looked for.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    processes.push(command(program).args(["server", &address]).stdout(Stdio::null()).spawn()?);
    let reached = async {
        while TcpStream::connect(&address).await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::time::timeout(READY_WITHIN, reached).await.context("the RPC server did not start")?;
    if delay_ms == 0 {
        return Ok(address);
    }
    let mut network =
        command(program).args(["delay", &address, &delay_ms.to_string()]).stdout(Stdio::piped()).spawn()?;
    let slow = next(&mut lines(&mut network)?).await?;
    processes.push(network);
    Ok(slow)
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
