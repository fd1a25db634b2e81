//! `paceline serve`: HTTP at once, then the model, the line, and the children that compute it.

use std::fs;
use std::path::{Path, PathBuf};

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use gguf::Model;
use line::{
    Cover, Front, FrontConfig, LinePlan, LineReadiness, Node, NodeConfig, SpareSpec, StageAddress, StageSpec,
};
use llama::Vocab;
use net::{DialOptions, Identity, LinkOptions, Role};
use protocol::{Generation, LayerRange, ModelId, StageIndex};
use server::{Api, ApiConfig, ApiKeys, Fill, ModelInfo, Server, Tls};
use spec::Sources;
use stage::Engine;
use store::Store;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{ApiGrammars, ApiLine, ApiTokenizer};
use crate::args::{Place, ServeArgs, Spares};
use crate::children::{self, ChildPlan};
use crate::engines::{EngineOptions, Engines};
use crate::logging::{Format, say};
use crate::otlp::{self, Exporter};
use crate::progress::Reporter;
use crate::slices::{self, Slices, Step};
use crate::{cluster, disk, draft, pooling, revoke, signals};

/// Positions per sequence when neither the user nor the model asks for fewer: memory for keys and values is taken at
/// the start, and few conversations are longer.
const DEFAULT_CONTEXT: u32 = 8192;
/// Rows in one engine call: llama.cpp's own default for a micro-batch.
const MAX_ROWS: u32 = 512;
/// Threads of a draft model at most.
const MAX_DRAFT_THREADS: u32 = 4;
/// The local stage's engine ends with the front, so nothing is ever leased.
const NO_LEASE: Duration = Duration::ZERO;

pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    let api_keys = args.api_key_file.as_deref().map(ApiKeys::load).transpose()?;
    if api_keys.is_none() && !args.listen.ip().is_loopback() {
        say(&format!(
            "Warning: {} can be reached from other machines; protect it with --api-key-file.",
            args.listen
        ));
    }
    let shared_prompts = shared_prompts(&args.shared_prompts)?;
    let tls = args.tls.as_ref().map(|(certificate, key)| Tls::load(certificate, key)).transpose()?;
    // A cluster that is not there is told before anything takes time.
    let line = signals::line_runtime()?;
    let outset = Outset::of(&args, line.handle().clone())?;
    let runtime = signals::http_runtime()?;
    let traces = otlp::of_process(&args.traces)?.map(Exporter::start).transpose()?;
    let tracing = traces.as_ref().map(Exporter::tracing);
    let cors = args.cors.clone();
    let config = ApiConfig { api_keys, cors, tracing, shared_prompts, ..ApiConfig::default() };
    let served = runtime.block_on(serve(args, outset, Http { config, tls }));
    // An engine that is still loading cannot be interrupted and must not hold up the end.
    line.shutdown_background();
    runtime.shutdown_background();
    if let Some(traces) = traces {
        traces.finish();
    }
    served
}

/// The texts in these files, without the white space around them.
fn shared_prompts(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let text = |path: &PathBuf| {
        let problem = || format!("could not read the shared prompt {}", path.display());
        fs::read_to_string(path).map(|text| text.trim().to_owned()).with_context(problem)
    };
    files.iter().map(text).collect()
}

/// What is settled before anything runs: who is who on the line, and what the children run.
struct Outset {
    /// This program's file.
    program: PathBuf,
    /// Where the front, its links and the stage in this process run.
    runtime: Handle,
    front: Identity,
    /// Of the local children: stage 1 first, then those that stand by.
    children: Vec<Identity>,
}

impl Outset {
    fn of(args: &ServeArgs, runtime: Handle) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("could not find this program's own file")?;
        match &args.place {
            Place::Local => {
                let n_spares = match &args.spares {
                    Spares::Children(n) => usize::from(*n),
                    Spares::Machines(_) => 0,
                };
                let (front, children) = Identity::ephemeral_cluster(args.cut.n_stages() - 1 + n_spares)?;
                Ok(Self { program, runtime, front, children })
            }
            Place::Machines { .. } => {
                let front = cluster::identity(args.cluster.as_deref(), Role::Front)?;
                let file = cluster::notice_file(args.cluster.as_deref())?;
                runtime.spawn(revoke::keep(front.clone(), file));
                Ok(Self { program, runtime, front, children: Vec::new() })
            }
        }
    }
}

/// How HTTP is spoken.
struct Http {
    config: ApiConfig,
    tls: Option<Tls>,
}

async fn serve(args: ServeArgs, outset: Outset, http: Http) -> anyhow::Result<()> {
    let mut end = signals::EndSignals::listen()?;
    let Http { config, tls } = http;
    let http = Server::bind(args.listen).await?.with_tls(tls);
    let url = http.url();
    say(&format!("{} is starting on {url}", args.model_id));
    let line = Arc::new(ApiLine::new(matches!(args.place, Place::Local)));
    line.starting("reading the model", None);
    let api = Api::new(Arc::clone(&line) as Arc<dyn server::Line>, config);
    let (stop, stopped) = watch::channel(false);
    let mut serving = tokio::spawn(http.serve(api.clone(), async move {
        let mut stopped = stopped;
        // The sender lives as long as this function.
        let _ = stopped.wait_for(|&stop| stop).await;
    }));
    let started = tokio::select! {
        started = start(&args, outset, &line, &api) => started?,
        served = &mut serving => return Ok(served?),
        () = end.next() => return Ok(()),
    };
    let watching = tokio::spawn(announce(started.front.clone(), format!("{} at {url}", args.model_id)));
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = end.next() => {
            api.close();
            say(&format!("Stopping: running requests may finish within {} s.", args.grace.as_secs_f32()));
        }
    }
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = api.idle() => {}
        () = tokio::time::sleep(args.grace) => api.end(),
        () = end.next() => api.end(),
    }
    stop.send_replace(true);
    tokio::select! {
        served = serving => served?,
        // What is told last must still be read by clients that read slowly, but not for ever.
        () = tokio::time::sleep(LAST_WORDS) => {}
        () = end.next() => {}
    }
    watching.abort();
    started.front.release().await;
    Ok(())
}

/// Tells whenever the line becomes ready or is lost, and whose loss it would wait for.
async fn announce(front: Front, name: String) {
    let mut changes = front.changes();
    let mut was_ready = false;
    let mut told = None;
    loop {
        match front.readiness() {
            LineReadiness::Ready if !was_ready => {
                was_ready = true;
                say(&format!("Ready: {name}"));
            }
            LineReadiness::NotReady { reason, .. } if was_ready => {
                was_ready = false;
                say(&format!("Not ready: {reason}"));
            }
            LineReadiness::Ready | LineReadiness::NotReady { .. } => {}
        }
        if was_ready {
            let words = front.covers().map(|covers| standing_by(&covers));
            if told != words {
                words.iter().for_each(|words| say(words));
                told = words;
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// The stages that the line waits for whenever they are lost.
fn standing_by(covers: &[Cover]) -> String {
    let alone = covers.iter().enumerate().filter(|(_, cover)| **cover == Cover::Nobody);
    let alone: Vec<String> = alone.map(|(stage, _)| stage.to_string()).collect();
    match &alone[..] {
        [] => "Something stands by for every stage.".to_owned(),
        [one] => format!("Nothing stands by for stage {one}."),
        several => format!("Nothing stands by for stages {}.", several.join(", ")),
    }
}

/// Between the end of the last request and the end of its connection.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A line in the making; the children end when it is dropped.
struct Started {
    front: Front,
    _children: Vec<Supervisor>,
}

/// A child's supervisor; ends with its owner, and the child with it.
struct Supervisor(JoinHandle<()>);

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What was read of the model before anything runs.
struct Prepared {
    slices: Slices,
    info: ModelInfo,
    vocab: Arc<Vocab>,
    context: u32,
    /// Of one hidden row in its widest form.
    row_bytes: u64,
    /// Of the keys and values of one position in the stage that has most of them.
    position_bytes: u64,
    /// Of those in all stages together.
    all_bytes: u64,
    threads: Threads,
    /// The draft model, if there is one.
    draft: Option<Box<dyn Engine>>,
    /// Where prefixes outlive the process.
    store: Option<Store>,
}

/// Threads of this machine's engines.
#[derive(Clone, Copy, Debug)]
struct Threads {
    /// Of each stage.
    stage: u32,
    /// Of the draft model.
    draft: u32,
}

impl Threads {
    /// A draft model runs beside the stages all the time, so it has a core of its own, and more only where some are left:
    /// small models gain little from many.
    fn share(given: Option<u16>, cores: u32, n_local: usize, has_draft: bool) -> Self {
        let n_local = n_local as u32;
        let for_stages = cores.saturating_sub(u32::from(has_draft));
        let stage = given.map_or_else(|| (for_stages / n_local.max(1)).max(1), u32::from);
        Self { stage, draft: cores.saturating_sub(stage * n_local).clamp(1, MAX_DRAFT_THREADS) }
    }
}

async fn start(args: &ServeArgs, outset: Outset, line: &Arc<ApiLine>, api: &Api) -> anyhow::Result<Started> {
    let (for_reading, of_line) = (args.clone(), Arc::clone(line));
    let prepared = tokio::task::spawn_blocking(move || prepare(&for_reading, &of_line)).await??;
    let grammars = Arc::new(ApiGrammars::new(Arc::clone(&prepared.vocab)));
    if args.speculate.sources != Sources::Off {
        line.guess_by(Arc::clone(&grammars));
    }
    let tokenizer = Arc::new(ApiTokenizer::new(Arc::clone(&prepared.vocab), grammars));
    api.set_model(prepared.info.clone(), tokenizer)?;
    let started = form(args, outset, prepared)?;
    line.started(started.front.clone());
    Ok(started)
}

/// Reads the model, cuts it if need be, and loads its vocabulary.
fn prepare(args: &ServeArgs, line: &ApiLine) -> anyhow::Result<Prepared> {
    let mut reporter = Reporter::default();
    let slices = slices::ensure(&args.model, &args.cut, wanted(args), &mut |step: Step, done, total| {
        reporter.set(step, done, total);
        line.starting(step.words(), Some(done as f32 / total.max(1) as f32));
    })?;
    drop(reporter);
    line.starting("loading the vocabulary", None);
    let model = Model::open(&args.model)?;
    let vocab = Arc::new(Vocab::load(&slices.vocab)?);
    let trained = model.arch_u32("context_length");
    let context = args.context.unwrap_or_else(|| trained.unwrap_or(DEFAULT_CONTEXT).min(DEFAULT_CONTEXT));
    let info = model_info(args, &model, &slices, &vocab, context)?;
    let row_bytes = 4 * u64::from(model.n_embd());
    let most_layers = slices.plan.stages.iter().map(|stage| stage.range.end - stage.range.start).max();
    let all_bytes = llama::position_bytes(&model, args.kv);
    let share = all_bytes * u64::from(most_layers.unwrap_or(0));
    let position_bytes = share.div_ceil(u64::from(slices.n_layers.max(1)));
    let draft_model = args.speculate.draft_model();
    let n_local = n_local(args, slices.plan.stages.len());
    let threads = Threads::share(args.threads, signals::cores(), n_local, draft_model.is_some());
    let draft = draft_model
        .map(|path| {
            line.starting("loading the draft model", None);
            draft::load(Path::new(path), args, &vocab, draft::Budget { context, threads: threads.draft })
        })
        .transpose()?;
    let store = disk::open(&args.disk)?;
    Ok(Prepared { slices, info, vocab, context, row_bytes, position_bytes, all_bytes, threads, draft, store })
}

/// Stages on this machine.
fn n_local(args: &ServeArgs, n_stages: usize) -> usize {
    match &args.place {
        Place::Local => n_stages,
        Place::Machines { front_only, .. } => usize::from(!front_only),
    }
}

/// How many slices this machine reads, from the first. Other machines cut their own, and a model that is not cut at all
/// is loaded from its own file.
fn wanted(args: &ServeArgs) -> usize {
    match &args.place {
        Place::Local if args.cut.n_stages() == 1 => 0,
        Place::Local => args.cut.n_stages(),
        Place::Machines { front_only, .. } => usize::from(!front_only),
    }
}

fn model_info(
    args: &ServeArgs,
    model: &Model,
    slices: &Slices,
    vocab: &Vocab,
    context: u32,
) -> anyhow::Result<ModelInfo> {
    let text = |token: Option<protocol::Token>| token.and_then(|token| vocab.text(token)).unwrap_or_default();
    let modified = fs::metadata(&args.model)?.modified()?;
    let n_params = model.tensors().iter().map(|tensor| tensor.row_elements() * tensor.n_rows()).sum();
    Ok(ModelInfo {
        id: args.model_id.clone(),
        chat_template: vocab.chat_template(None),
        bos: text(vocab.bos()),
        eos: text(vocab.eos()),
        fill: vocab.fill().map(|[prefix, suffix, middle]| Fill { prefix, suffix, middle }),
        context,
        trained_context: model.arch_u32("context_length"),
        n_params: Some(n_params),
        row_width: pooling::row_width(model),
        pooling: pooling::of(model),
        architecture: model.arch().to_owned(),
        created: modified.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
        fingerprint: format!("fp_{}", slices::short(slices.identity)),
    })
}

/// Starts the front, the stage in this process and the children.
fn form(args: &ServeArgs, outset: Outset, mut prepared: Prepared) -> anyhow::Result<Started> {
    let runtime = outset.runtime.clone();
    let _on_it = runtime.enter();
    let n_stages = prepared.slices.plan.stages.len();
    let local = n_local(args, n_stages);
    let draft = prepared.draft.take();
    let (prepared, threads) = (&prepared, prepared.threads.stage);
    let mut dial = DialOptions::default();
    dial.link.shape.clone_from(&args.link);
    let front_id = outset.front.node();
    let mut specs = Vec::new();
    let mut spares = Vec::new();
    let mut ports = Vec::new();
    if local > 0 {
        specs.push(StageSpec {
            address: StageAddress::Local(local_node(args, &outset.front, prepared, threads)),
        });
    }
    for child in &outset.children {
        let (port, address) = watch::channel(None);
        ports.push(port);
        let address = StageAddress::Remote { address, node: Some(child.node()) };
        if specs.len() < n_stages {
            specs.push(StageSpec { address });
        } else {
            spares.push(SpareSpec { address, stage: None });
        }
    }
    let machine = |given: &String| {
        let (_, address) = watch::channel(Some(given.clone()));
        StageAddress::Remote { address, node: None }
    };
    if let Place::Machines { addresses, .. } = &args.place {
        specs.extend(addresses.iter().map(|given| StageSpec { address: machine(given) }));
    }
    if let Spares::Machines(named) = &args.spares {
        let spec = |(given, stage): &(String, Option<u16>)| SpareSpec {
            address: machine(given),
            stage: stage.map(StageIndex),
        };
        spares.extend(named.iter().map(spec));
    }
    let config = FrontConfig {
        identity: outset.front,
        build: signals::build(),
        plan: line_plan(args, prepared),
        stages: specs,
        spares,
        lease: args.lease,
        scheduler: scheduler_config(args, prepared, n_stages),
        dial,
        heartbeat: args.heartbeat,
        local_link: LinkOptions::default(),
        relay: args.relay,
        store: prepared.store.clone(),
        first_generation: first_generation(),
    };
    let front = match draft {
        Some(draft) => Front::start_with(config, draft).context("could not start a thread for drafts")?,
        None => Front::start(config),
    };
    tracing::debug!(node = %front_id, n_stages, threads, "front is up");
    let children = outset
        .children
        .into_iter()
        .zip(ports)
        .enumerate()
        .map(|(at, (identity, port))| {
            let plan = ChildPlan {
                program: outset.program.clone(),
                stage: at + 1,
                identity,
                args: child_args(args, threads),
            };
            Supervisor(tokio::spawn(children::supervise(plan, port, front.linked())))
        })
        .collect();
    Ok(Started { front, _children: children })
}

fn local_node(args: &ServeArgs, identity: &Identity, prepared: &Prepared, threads: u32) -> Node {
    let options = EngineOptions { threads, gpu_layers: args.gpu_layers, device: args.device.clone() };
    let engines =
        Engines::new(None, options.clone()).with_whole(prepared.slices.identity, args.model.clone());
    let mut dial = DialOptions::default();
    dial.link.shape.clone_from(&args.link);
    Node::start(NodeConfig {
        identity: identity.clone(),
        store: disk::of_stage(prepared.store.clone(), &options),
        source: Arc::new(engines),
        build: signals::build(),
        dial,
        heartbeat: args.heartbeat,
        lease: NO_LEASE,
    })
}

fn line_plan(args: &ServeArgs, prepared: &Prepared) -> LinePlan {
    let range = |stage: &gguf::PlannedStage| LayerRange { start: stage.range.start, end: stage.range.end };
    LinePlan {
        model: ModelId(prepared.slices.identity.0),
        n_layers: prepared.slices.n_layers,
        ranges: prepared.slices.plan.stages.iter().map(range).collect(),
        context: prepared.context,
        n_slots: args.parallel,
        max_rows: MAX_ROWS,
        row_dtype: args.row_dtype,
        kv: args.kv,
        exact: args.exact,
        swa_full: args.swa_full,
        prefix_bytes: args.prefix_bytes,
    }
}

/// Windows in flight at most where sliding windows forget: as many of the widest as can be taken back, and one to spare.
const DEPTH_WITHIN_WINDOWS: u32 = MAX_ROWS / 2 / spec::MAX_WIDTH - 1;

fn scheduler_config(args: &ServeArgs, prepared: &Prepared, n_stages: usize) -> scheduler::Config {
    let n_vocab = prepared.vocab.n_tokens() as u32;
    let usual = scheduler::Config::new(n_stages as u16, args.parallel, prepared.context, n_vocab);
    // What no running sequence needs stays in its slot, whatever there is beside the slots.
    let in_slots = u64::from(args.parallel) * u64::from(prepared.context);
    let mut speculate = args.speculate.clone();
    if !args.swa_full {
        speculate.reach.max_depth = speculate.reach.max_depth.min(DEPTH_WITHIN_WINDOWS);
    }
    scheduler::Config {
        speculate,
        queue_limit: args.queue.unwrap_or(usual.queue_limit),
        queue_timeout: args.queue_timeout,
        replay_timeout: args.replay_timeout,
        copies_prefixes: args.prefix_bytes > 0,
        cuts_prefixes: args.swa_full,
        // As if all stages shared one disk; those that have one of their own keep longer what the front has forgotten.
        stored_tokens: args.disk.bytes / prepared.all_bytes.max(1),
        prefix_tokens: in_slots.max(args.prefix_bytes / prepared.position_bytes.max(1)),
        ..usual
    }
    .fit(prepared.row_bytes, stage::INBOX_BYTES as u64 / 2, stage::INBOX_FRAMES as u64)
}

/// What a child is told on its command line; its identity comes another way.
fn child_args(args: &ServeArgs, threads: u32) -> Vec<String> {
    let mut list: Vec<String> =
        ["--child", "--listen", "127.0.0.1:0", "--threads"].map(str::to_owned).to_vec();
    list.push(threads.to_string());
    if args.relay {
        list.push("--relayed".to_owned());
    }
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            list.extend([name.to_owned(), value]);
        }
    };
    option("--gpu-layers", args.gpu_layers.map(|n| n.to_string()));
    option("--device", args.device.clone());
    option("--link", args.link.as_ref().map(ToString::to_string));
    if args.disk.bytes > 0 {
        option("--cache-disk", Some((args.disk.bytes >> 20).to_string()));
        option("--cache-dir", args.disk.folder.as_deref().and_then(Path::to_str).map(str::to_owned));
    }
    if Format::of_process() == Format::Json {
        option("--log-format", Some("json".to_owned()));
    }
    let models = args.model.parent().filter(|folder| *folder != Path::new(""));
    option("--models", models.and_then(Path::to_str).map(str::to_owned));
    list
}

/// Higher than any generation of an earlier front on these stages, as long as clocks do not run backwards.
fn first_generation() -> Generation {
    #[expect(clippy::disallowed_methods, reason = "the driver's clock")]
    let now = SystemTime::now();
    Generation(now.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_model_has_a_core_of_its_own_and_nobody_oversubscribes() {
        let share = |given, cores, n_local, has_draft| {
            let Threads { stage, draft } = Threads::share(given, cores, n_local, has_draft);
            (stage, draft)
        };
        assert_eq!(share(None, 16, 3, false).0, 5);
        assert_eq!(share(None, 16, 3, true), (5, 1));
        assert_eq!(share(None, 8, 3, true), (2, 2));
        assert_eq!(share(None, 2, 2, true), (1, 1), "no stage and no drafter can have less than one");
        assert_eq!(share(None, 16, 0, true).1, 4, "the front computes no layers");
        assert_eq!(share(Some(2), 16, 3, true), (2, 4));
        assert_eq!(share(Some(8), 8, 1, true), (8, 1), "what is given is kept");
    }

    #[test]
    fn stages_without_a_spare_are_named() {
        let words = |covers: [Cover; 3]| standing_by(&covers);
        assert_eq!(words([Cover::Cold, Cover::Warm, Cover::Cold]), "Something stands by for every stage.");
        assert_eq!(words([Cover::Nobody, Cover::Warm, Cover::Cold]), "Nothing stands by for stage 0.");
        assert_eq!(words([Cover::Nobody, Cover::Nobody, Cover::Cold]), "Nothing stands by for stages 0, 1.");
    }
}
