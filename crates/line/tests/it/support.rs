//! A line of null engines over real links, in one process: front and stages each with their own key and port.

use std::sync::Arc;
use std::time::Duration;

use line::{
    EngineSource, Front, FrontConfig, LinePlan, LineReadiness, LoadError, Node, NodeConfig, StageAddress,
    StageSpec,
};
use net::{DialOptions, Heartbeat, Identity, LinkOptions, Listener, ListenerOptions};
use protocol::{
    Generation, Holding, KvType, LayerRange, ModelId, Open, Position, RowDtype, SamplerParams, Token,
};
use scheduler::{Event, Finish, Request};
use stage::null::{CallTime, NullEngine};
use stage::{Engine, EngineError, EngineShape, Input, Sampler, Slot, Span};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// No wait in these tests takes longer on a machine that is merely slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const N_VOCAB: usize = 256;
pub(crate) const SLOTS: u16 = 4;
pub(crate) const WIDTH: usize = 64;
pub(crate) const CONTEXT: u32 = 4096;

/// Null engines; every load is counted.
pub(crate) struct NullSource {
    pub(crate) time: CallTime,
    pub(crate) loads: watch::Sender<u32>,
}

impl EngineSource for NullSource {
    fn load(
        &self,
        holding: &Holding,
        progress: &mut dyn FnMut(u16, &str),
    ) -> Result<Box<dyn Engine>, LoadError> {
        progress(500, "loading nothing");
        self.loads.send_modify(|n| *n += 1);
        if holding.model != model() {
            return Err(LoadError { reason: "no such model here".into() });
        }
        let mut shape = NullEngine::shape(holding.layers.start, holding.n_layers, WIDTH, holding.n_slots);
        shape.context = holding.context;
        Ok(Box::new(NullEngine::new(shape, self.time)))
    }
}

pub(crate) fn model() -> ModelId {
    ModelId([42; 32])
}

fn dial_options() -> DialOptions {
    DialOptions::default()
}

/// One stage that listens on a port of its own.
pub(crate) struct TestStage {
    pub(crate) node: Node,
    pub(crate) identity: Identity,
    pub(crate) address: String,
    pub(crate) loads: watch::Receiver<u32>,
    serving: JoinHandle<()>,
}

impl TestStage {
    pub(crate) async fn start(identity: Identity, time: CallTime) -> Self {
        let (loads, seen) = watch::channel(0);
        Self::start_with(identity, Arc::new(NullSource { time, loads }), seen, PATIENCE).await
    }

    /// A stage with engines from elsewhere, which it keeps for `lease` when its front is gone.
    pub(crate) async fn start_with(
        identity: Identity,
        source: Arc<dyn EngineSource>,
        loads: watch::Receiver<u32>,
        lease: Duration,
    ) -> Self {
        let options = ListenerOptions { relayed: true, ..ListenerOptions::default() };
        let listener = Listener::bind("127.0.0.1:0", &identity, options).await.unwrap();
        let address = listener.local_addr().to_string();
        let node = Node::start(NodeConfig {
            most_prefix_bytes: None,
            store: None,
            identity: identity.clone(),
            source,
            build: "test".into(),
            dial: dial_options(),
            heartbeat: heartbeat(),
            lease,
        });
        let server = node.clone();
        let serving = tokio::spawn(async move { server.serve(listener).await.unwrap() });
        Self { node, identity, address, loads, serving }
    }

    /// Ends the stage as if its process had been killed.
    pub(crate) fn kill(self) {
        self.serving.abort();
    }
}

fn heartbeat() -> Heartbeat {
    // Longer than the default: the test machine may be busy with other things.
    Heartbeat { interval: Duration::from_millis(250), dead_after: Duration::from_secs(20) }
}

/// A front over `stages`, the first of which may be in this process.
pub(crate) struct TestLine {
    pub(crate) front: Front,
    pub(crate) stages: Vec<TestStage>,
    pub(crate) identities: Vec<Identity>,
    pub(crate) addresses: Vec<watch::Sender<Option<String>>>,
}

pub(crate) struct LineOptions {
    pub(crate) n_stages: u16,
    pub(crate) local_first: bool,
    pub(crate) relay: bool,
    pub(crate) row_dtype: RowDtype,
    pub(crate) time: CallTime,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) replay_timeout: Duration,
    pub(crate) progress_timeout: Duration,
}

impl Default for LineOptions {
    fn default() -> Self {
        Self {
            n_stages: 3,
            local_first: true,
            relay: false,
            row_dtype: RowDtype::F32,
            time: CallTime::default(),
            heartbeat: heartbeat(),
            replay_timeout: Duration::ZERO,
            progress_timeout: scheduler::PROGRESS_TIMEOUT,
        }
    }
}

impl TestLine {
    pub(crate) async fn start(options: LineOptions) -> Self {
        let n = usize::from(options.n_stages);
        let (identity, identities) = Identity::ephemeral_cluster(n).unwrap();
        let mut stages = Vec::new();
        for identity in &identities {
            stages.push(TestStage::start(identity.clone(), options.time).await);
        }
        let mut addresses = Vec::new();
        let mut specs = Vec::new();
        for (at, stage) in stages.iter().enumerate() {
            let (sender, address) = watch::channel(Some(stage.address.clone()));
            addresses.push(sender);
            specs.push(StageSpec {
                address: if at == 0 && options.local_first {
                    StageAddress::Local(stage.node.clone())
                } else {
                    StageAddress::Remote { address, node: Some(stage.node.id()) }
                },
            });
        }
        let config = front_config(identity, specs, &options);
        Self { front: Front::start(config), stages, identities, addresses }
    }

    pub(crate) async fn ready(&self) {
        ready(&self.front).await;
    }
}

pub(crate) fn front_config(identity: Identity, stages: Vec<StageSpec>, options: &LineOptions) -> FrontConfig {
    let n = options.n_stages;
    FrontConfig {
        store: None,
        identity,
        build: "test".into(),
        plan: LinePlan {
            model: model(),
            n_layers: u32::from(n),
            ranges: (0..u32::from(n)).map(|i| LayerRange { start: i, end: i + 1 }).collect(),
            narrower: Vec::new(),
            context: CONTEXT,
            n_slots: SLOTS,
            max_rows: 512,
            row_dtype: options.row_dtype,
            kv: KvType::F16,
            exact: false,
            swa_full: true,
            undo_rows: 0,
            drafts: false,
            prefix_bytes: 0,
        },
        stages,
        spares: Vec::new(),
        lease: PATIENCE,
        replan_after: None,
        scheduler: scheduler::Config {
            replay_timeout: options.replay_timeout,
            progress_timeout: options.progress_timeout,
            ..scheduler::Config::new(n, SLOTS, CONTEXT, N_VOCAB as u32)
        },
        dial: dial_options(),
        heartbeat: options.heartbeat,
        local_link: LinkOptions::default(),
        relay: options.relay,
        first_generation: Generation(1000),
    }
}

pub(crate) async fn ready(front: &Front) {
    let mut changes = front.changes();
    let waiting = async {
        while front.readiness() != LineReadiness::Ready {
            changes.changed().await.unwrap();
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("never ready: {:?}", front.readiness());
    }
}

/// Waits until the front has noticed that the line is broken.
pub(crate) async fn lost(front: &Front, within: Duration) {
    let mut changes = front.changes();
    tokio::time::timeout(within, async {
        while front.readiness() == LineReadiness::Ready {
            changes.changed().await.unwrap();
        }
    })
    .await
    .expect("the loss is noticed");
}

/// Waits until the line is not ready for a reason that contains `part`.
pub(crate) async fn not_ready_because(front: &Front, part: &str) {
    let mut changes = front.changes();
    let waiting = async {
        loop {
            match front.readiness() {
                LineReadiness::NotReady { reason, .. } if reason.contains(part) => return,
                _ => changes.changed().await.unwrap(),
            }
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("not because of {part:?}: {:?}", front.readiness());
    }
}

/// Memory is given back once every stage has heard of the end.
pub(crate) async fn no_live_sequences(front: &Front, within: Duration) {
    let mut changes = front.changes();
    tokio::time::timeout(within, async {
        while !front.snapshot().sequences.is_empty() {
            changes.changed().await.unwrap();
        }
    })
    .await
    .expect("every sequence ends");
}

pub(crate) fn request(prompt: &[i32], max_tokens: u32) -> Request {
    Request {
        sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
        max_tokens: Some(max_tokens),
        ..Request::new(prompt.iter().copied().map(Token).collect())
    }
}

/// What plain decoding of a null engine gives.
pub(crate) fn expected(prompt: &[i32], max_tokens: u32) -> Vec<Token> {
    let mut token = Token(*prompt.last().unwrap());
    let start = prompt.len() as u32 - 1;
    (start..start + max_tokens)
        .map(|position| {
            token = NullEngine::successor(Position(position), token, N_VOCAB);
            token
        })
        .collect()
}

/// Everything that a request says, up to its end.
pub(crate) async fn collect(mut events: mpsc::Receiver<Event>) -> (Vec<Token>, Event) {
    let mut all = Vec::new();
    loop {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time");
        match event.expect("a last event") {
            Event::Started { .. } | Event::Prompt(_) => {}
            Event::Tokens { tokens, .. } => all.extend(tokens),
            last @ (Event::Done { .. } | Event::Failed(_)) => return (all, last),
        }
    }
}

/// Runs a request and checks that it says what plain decoding says.
pub(crate) async fn check(front: &Front, prompt: &[i32], max_tokens: u32) {
    let (_, events) = front.submit(request(prompt, max_tokens)).unwrap();
    let (tokens, last) = collect(events).await;
    assert_eq!(tokens, expected(prompt, max_tokens));
    assert!(matches!(last, Event::Done { finish: Finish::Length, .. }), "{last:?}");
}

/// A null engine that does something before each of its calls.
pub(crate) struct HookedEngine {
    engine: NullEngine,
    before_call: Box<dyn FnMut() + Send>,
}

impl HookedEngine {
    /// For the layers that are asked for.
    pub(crate) fn new(holding: &Holding, n_slots: u16, before_call: impl FnMut() + Send + 'static) -> Self {
        let shape = NullEngine::shape(holding.layers.start, holding.n_layers, WIDTH, n_slots);
        let engine = NullEngine::new(shape, CallTime::default());
        Self { engine, before_call: Box::new(before_call) }
    }
}

impl Engine for HookedEngine {
    fn shape(&self) -> &EngineShape {
        self.engine.shape()
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        (self.before_call)();
        self.engine.run(spans, input, out)
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.engine.logits(row)
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        self.engine.truncate(slot, len)
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        self.engine.sampler(open)
    }
}
