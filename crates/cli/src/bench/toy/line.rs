//! A line of toy stages in this process: each has a port and a runtime of its own, as on a machine of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use forecast::Workload;
use line::{EngineSource, Front, FrontConfig, LoadError, Node, NodeConfig, StageAddress, StageSpec};
use net::{DialOptions, Heartbeat, Identity, LinkOptions, Listener, ListenerOptions, Shape};
use protocol::{Generation, Holding, SamplerParams, Token};
use scheduler::{Event, Request, Timings};
use spec::Speculate;
use stage::Engine;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::engine::{Common, SLOTS, Script, SharedLog, ToyEngine, seed};
use crate::bench::http::now;
use crate::bench::null_line::{self, ready};
use crate::signals;

/// The longest answer at the slowest pace takes some minutes.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1200);
/// Many lines share the processors: a stage that is not heard for a while has waited for one of them.
const HEARTBEAT: Heartbeat =
    Heartbeat { interval: Duration::from_secs(1), dead_after: Duration::from_secs(120) };

/// How a toy line is made.
#[derive(Clone)]
pub(super) struct ToyPlan {
    pub(super) n_stages: u16,
    /// Of each stage.
    pub(super) times: forecast::StageModel,
    /// One way, on every link but that of the front to its own stage.
    pub(super) delay: Duration,
    pub(super) speculate: Speculate,
}

/// A running line.
pub(super) struct ToyLine {
    front: Front,
    workloads: Arc<Vec<Workload>>,
    _stages: Vec<OwnRuntime>,
}

/// One answer as the front's caller heard it.
pub(super) struct Heard {
    pub(super) timings: Timings,
    /// When tokens came, and how many.
    pub(super) tokens: Vec<(Instant, usize)>,
}

impl ToyLine {
    /// Forms a line that can answer these texts.
    pub(super) async fn form(
        plan: &ToyPlan,
        workloads: Arc<Vec<Workload>>,
        log: Option<SharedLog>,
    ) -> anyhow::Result<Self> {
        let common = common(plan, &workloads, log);
        let (identity, members) = Identity::ephemeral_cluster(usize::from(plan.n_stages) - 1)?;
        let own = OwnRuntime::start()?;
        let mut stages = vec![StageSpec { address: StageAddress::Local(own.node(&identity, plan, &common)) }];
        let mut runtimes = vec![own];
        for member in members {
            let runtime = OwnRuntime::start()?;
            let (_, address) = watch::channel(Some(runtime.serve(&member, plan, &common).await?));
            let address = StageAddress::Remote { address, node: Some(member.node()) };
            stages.push(StageSpec { address });
            runtimes.push(runtime);
        }
        let front = runtimes[0].front(identity, plan, (&common, stages));
        ready(&front, "a toy line").await?;
        Ok(Self { front, workloads, _stages: runtimes })
    }

    /// Asks for one of the texts and checks that it comes as it is written.
    pub(super) async fn answer(&self, at: usize) -> anyhow::Result<Heard> {
        let workload = &self.workloads[at];
        let (_, mut events) = self.front.submit(Request {
            sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
            seed: seed(at),
            max_tokens: Some(workload.answer.len() as u32),
            ignore_eos: true,
            prediction: workload.prediction.clone(),
            ..Request::new(workload.prompt.clone())
        })?;
        let hearing = async {
            let (mut answer, mut times) = (Vec::new(), Vec::new());
            while let Some(event) = events.recv().await {
                match event {
                    Event::Started { .. } | Event::Prompt(_) => {}
                    Event::Tokens { tokens, .. } => {
                        times.push((now(), tokens.len()));
                        answer.extend(tokens);
                    }
                    Event::Done { timings, .. } => {
                        ensure!(answer == workload.answer, "the line did not answer what its tail was told");
                        return Ok(Heard { timings, tokens: times });
                    }
                    Event::Failed(failure) => bail!(failure),
                }
            }
            bail!("the line went away")
        };
        tokio::time::timeout(ANSWERED_WITHIN, hearing).await.context("the line stands still")?
    }
}

fn common(plan: &ToyPlan, workloads: &[Workload], log: Option<SharedLog>) -> Common {
    let script =
        |workload: &Workload| Script { n_prompt: workload.prompt.len(), answer: workload.answer.clone() };
    let tokens = workloads.iter().flat_map(|w| w.prompt.iter().chain(&w.answer));
    let highest = tokens.map(|token: &Token| token.0).max().unwrap_or(0);
    let longest = workloads.iter().map(Workload::n_tokens).max().unwrap_or(1);
    Common {
        times: plan.times.clone(),
        scripts: Arc::new(workloads.iter().map(script).collect()),
        context: longest as u32 + 1,
        n_vocab: highest.unsigned_abs() + 1,
        log,
    }
}

/// One thread for one stage's links, as a machine would have it.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn start() -> anyhow::Result<Self> {
        Ok(Self(Some(signals::line_runtime()?)))
    }

    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken only when it is dropped")
    }

    fn node(&self, identity: &Identity, plan: &ToyPlan, common: &Common) -> Node {
        let _on_it = self.get().enter();
        Node::start(NodeConfig {
            most_prefix_bytes: None,
            store: None,
            identity: identity.clone(),
            source: Arc::new(ToySource(common.clone())),
            build: signals::build(),
            dial: dial(plan),
            heartbeat: HEARTBEAT,
            lease: Duration::ZERO,
        })
    }

    /// Opens a port and serves a stage there.
    async fn serve(&self, identity: &Identity, plan: &ToyPlan, common: &Common) -> anyhow::Result<String> {
        let node = self.node(identity, plan, common);
        let mut options = ListenerOptions::default();
        options.link.shape = shape(plan);
        let identity = identity.clone();
        let bound = self.get().spawn(async move { Listener::bind("127.0.0.1:0", &identity, options).await });
        let listener = bound.await??;
        let address = listener.local_addr().to_string();
        // Ends with the runtime. If the port fails, the front says that it lost the stage.
        self.get().spawn(async move { node.serve(listener).await });
        Ok(address)
    }

    fn front(
        &self,
        identity: Identity,
        plan: &ToyPlan,
        (common, stages): (&Common, Vec<StageSpec>),
    ) -> Front {
        let _on_it = self.get().enter();
        let config = scheduler::Config::new(plan.n_stages, SLOTS, common.context, common.n_vocab);
        Front::start(FrontConfig {
            store: None,
            identity,
            build: signals::build(),
            plan: null_line::plan(plan.n_stages, common.context, SLOTS),
            stages,
            spares: Vec::new(),
            lease: Duration::ZERO,
            replan_after: None,
            scheduler: scheduler::Config { speculate: plan.speculate.clone(), ..config },
            dial: dial(plan),
            heartbeat: HEARTBEAT,
            local_link: LinkOptions::default(),
            relay: false,
            first_generation: Generation(1),
        })
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // It may be dropped on another runtime, which must not wait.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

fn shape(plan: &ToyPlan) -> Option<Shape> {
    (!plan.delay.is_zero()).then(|| Shape { delay: plan.delay, ..Shape::default() })
}

fn dial(plan: &ToyPlan) -> DialOptions {
    let mut dial = DialOptions::default();
    dial.link.shape = shape(plan);
    dial
}

struct ToySource(Common);

impl EngineSource for ToySource {
    fn load(
        &self,
        holding: &Holding,
        _progress: &mut dyn FnMut(u16, &str),
    ) -> Result<Box<dyn Engine>, LoadError> {
        let (index, n_stages) = (holding.layers.start as usize, holding.n_layers as usize);
        Ok(Box::new(ToyEngine::new(index, n_stages, self.0.clone())))
    }
}
