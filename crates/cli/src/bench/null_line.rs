//! Lines whose engines compute nothing: a front with stage 0, and each further stage a process of its own. What is
//! left of the time per token is queues, threads, TLS and the kernel.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use line::{
    EngineSource, Front, FrontConfig, LinePlan, LineReadiness, LoadError, Node, NodeConfig, StageAddress,
    StageSpec,
};
use net::{DialOptions, Heartbeat, Identity, LinkOptions, Listener, ListenerOptions};
use protocol::{Generation, Holding, KvType, LayerRange, ModelId, RowDtype, SamplerParams, Token};
use scheduler::{Event, Request};
use stage::Engine;
use stage::null::{CallTime, NullEngine};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::http::now;
use super::report::{Bound, Report};
use super::stats::{Median, quantile};
use crate::children::{END_OF_IDENTITY, LISTENING};
use crate::stage::from_parent;

/// Lines that are measured, and widths of their rows: SmolLM2-135M's, and a common one of 7B models.
const STAGES: [u16; 3] = [2, 3, 4];
const WIDTHS: [usize; 2] = [576, 4096];
/// Time per token and boundary, at the median.
const BOUNDARY_MS_AT_MOST: f64 = 0.15;
/// Tokens of a null engine, and positions.
const N_VOCAB: u32 = 256;
const CONTEXT: u32 = 4096;
/// Tokens of each line in one round: a fifth of a second or so.
const TOKENS: usize = 400;
/// Rows in a call at most.
pub(super) const MAX_ROWS: u32 = 512;
/// A line of local processes forms in a second.
const FORMED_WITHIN: Duration = Duration::from_secs(60);
const TOKENS_WITHIN: Duration = Duration::from_secs(60);

/// Measures every line, in turn.
pub(super) async fn measure(rounds: usize, runtime: &Handle, report: &mut Report) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for n_stages in STAGES {
        for width in WIDTHS {
            lines.push(NullLine::form(n_stages, width, runtime).await?);
        }
    }
    for at in 0..=rounds {
        eprint!("\rloop: round {at} of {rounds} ");
        for line in &mut lines {
            let gaps = generate(&line.front).await?;
            // The first round warms up.
            if at > 0 {
                line.record(&gaps);
            }
        }
    }
    eprintln!();
    for line in lines {
        line.tell(report);
    }
    Ok(())
}

/// A line and what was measured on it.
struct NullLine {
    n_stages: u16,
    width: usize,
    front: Front,
    /// Milliseconds per token and boundary of each round.
    medians: Vec<f64>,
    tails: Vec<f64>,
    _stages: Vec<NullStage>,
}

/// A stage's process; it ends when its input closes.
struct NullStage {
    _child: Child,
    _input: ChildStdin,
    address: String,
}

impl NullLine {
    async fn form(n_stages: u16, width: usize, runtime: &Handle) -> anyhow::Result<Self> {
        let (identity, members) = Identity::ephemeral_cluster(usize::from(n_stages) - 1)?;
        let mut addresses = Vec::new();
        let mut stages = Vec::new();
        for member in &members {
            let stage = NullStage::start(member, width).await?;
            let (_, address) = watch::channel(Some(stage.address.clone()));
            addresses.push(StageAddress::Remote { address, node: Some(member.node()) });
            stages.push(stage);
        }
        let front = front(identity, n_stages, (width, addresses), runtime);
        ready(&front, "a null line").await?;
        Ok(Self { n_stages, width, front, medians: Vec::new(), tails: Vec::new(), _stages: stages })
    }

    /// A token crosses the rows' link of every stage but the first, and the one on which the verdict comes back.
    fn record(&mut self, gaps: &[f64]) {
        let mut gaps: Vec<f64> = gaps.iter().map(|gap| gap / f64::from(self.n_stages)).collect();
        gaps.sort_by(f64::total_cmp);
        self.medians.push(quantile(&gaps, 0.5));
        self.tails.push(quantile(&gaps, 0.99));
    }

    fn tell(self, report: &mut Report) {
        let name = format!("loop, {} stages, rows of {}", self.n_stages, self.width);
        let bound = Bound::AtMost(BOUNDARY_MS_AT_MOST);
        report.add(format!("{name}, per boundary p50"), "ms", Median::of(self.medians), Some(bound));
        report.add(format!("{name}, per boundary p99"), "ms", Median::of(self.tails), None);
    }
}

impl NullStage {
    async fn start(identity: &Identity, width: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("could not find this program's own file")?;
        let mut child = Command::new(program)
            .args(["--null-stage", &width.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("could not start a stage process")?;
        let secret = format!("{}\n{END_OF_IDENTITY}\n", identity.to_pem().trim_end());
        let mut input = child.stdin.take().context("a stage process has no standard input")?;
        input.write_all(secret.as_bytes()).await?;
        input.flush().await?;
        let output = child.stdout.take().context("a stage process has no standard output")?;
        let mut said = BufReader::new(output).lines();
        let first = tokio::time::timeout(FORMED_WITHIN, said.next_line()).await??;
        let address = first.as_deref().and_then(|line| line.strip_prefix(LISTENING));
        let address = address.context("a stage process ended before it opened its port")?.trim().to_owned();
        Ok(Self { _child: child, _input: input, address })
    }
}

/// The stage's side: serves until the parent is gone.
pub(super) fn child(width: usize) -> anyhow::Result<()> {
    let (identity, gone) = from_parent()?;
    let runtime = crate::signals::line_runtime()?;
    let served = runtime.block_on(async {
        let listener = Listener::bind("127.0.0.1:0", &identity, ListenerOptions::default()).await?;
        println!("{LISTENING}{}", listener.local_addr());
        std::io::stdout().flush()?;
        let node = node(identity, width);
        tokio::select! {
            served = node.serve(listener) => Ok(served?),
            // An error means that the reading thread ended: the input is closed then, too.
            _ = gone => Ok(()),
        }
    });
    runtime.shutdown_background();
    served
}

/// A front with stage 0 on `runtime`, and the other stages where they are.
fn front(
    identity: Identity,
    n_stages: u16,
    (width, others): (usize, Vec<StageAddress>),
    runtime: &Handle,
) -> Front {
    let _on_it = runtime.enter();
    let first = StageAddress::Local(node(identity.clone(), width));
    let stages = std::iter::once(first).chain(others).map(|address| StageSpec { address }).collect();
    Front::start(FrontConfig {
        store: None,
        identity,
        build: crate::signals::build(),
        plan: plan(n_stages, CONTEXT, 1),
        stages,
        spares: Vec::new(),
        lease: Duration::ZERO,
        replan_after: None,
        scheduler: scheduler::Config::new(n_stages, 1, CONTEXT, N_VOCAB),
        dial: DialOptions::default(),
        heartbeat: Heartbeat::default(),
        local_link: LinkOptions::default(),
        relay: false,
        first_generation: Generation(1),
    })
}

fn node(identity: Identity, width: usize) -> Node {
    Node::start(NodeConfig {
        most_prefix_bytes: None,
        store: None,
        identity,
        source: Arc::new(NullSource { width }),
        build: crate::signals::build(),
        dial: DialOptions::default(),
        heartbeat: Heartbeat::default(),
        lease: Duration::ZERO,
    })
}

/// Of a line whose stages compute a layer each of no model.
pub(super) fn plan(n_stages: u16, context: u32, n_slots: u16) -> LinePlan {
    LinePlan {
        model: ModelId([0; 32]),
        n_layers: u32::from(n_stages),
        ranges: (0..u32::from(n_stages)).map(|at| LayerRange { start: at, end: at + 1 }).collect(),
        narrower: Vec::new(),
        context,
        n_slots,
        max_rows: MAX_ROWS,
        row_dtype: RowDtype::F32,
        kv: KvType::F16,
        exact: false,
        swa_full: true,
        undo_rows: 0,
        drafts: false,
        prefix_bytes: 0,
    }
}

struct NullSource {
    width: usize,
}

impl EngineSource for NullSource {
    fn load(
        &self,
        holding: &Holding,
        _progress: &mut dyn FnMut(u16, &str),
    ) -> Result<Box<dyn Engine>, LoadError> {
        let shape = NullEngine::shape(holding.layers.start, holding.n_layers, self.width, holding.n_slots);
        Ok(Box::new(NullEngine::new(shape, CallTime::default())))
    }
}

/// Returns once a token has passed through every stage; `what` names the line in the error.
pub(super) async fn ready(front: &Front, what: &str) -> anyhow::Result<()> {
    let mut changes = front.changes();
    let formed = async {
        while front.readiness() != LineReadiness::Ready {
            changes.changed().await.context("the line is gone")?;
        }
        Ok(())
    };
    let formed = tokio::time::timeout(FORMED_WITHIN, formed).await;
    formed.with_context(|| format!("{what} was not formed: {:?}", front.readiness()))?
}

/// Milliseconds between consecutive tokens, as the front's caller hears them.
async fn generate(front: &Front) -> anyhow::Result<Vec<f64>> {
    let (_, mut events) = front.submit(Request {
        sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
        max_tokens: Some(TOKENS as u32),
        ignore_eos: true,
        ..Request::new(vec![Token(1)])
    })?;
    // On this runtime's threads, as a server's answers are written.
    let hearing = tokio::spawn(async move {
        let mut times: Vec<Instant> = Vec::with_capacity(TOKENS);
        while let Some(event) = events.recv().await {
            match event {
                Event::Started { .. } | Event::Prompt(_) => {}
                Event::Tokens { .. } => times.push(now()),
                Event::Done { .. } => return Ok(times),
                Event::Failed(failure) => bail!(failure),
            }
        }
        bail!("the line went away")
    });
    let times = tokio::time::timeout(TOKENS_WITHIN, hearing).await.context("the line stands still")???;
    if times.len() < TOKENS {
        bail!("{} tokens came instead of {TOKENS}", times.len());
    }
    Ok(times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect())
}
