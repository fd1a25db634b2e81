//! `paceline serve`: HTTP at once, then the model, the line, and the children that compute it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use line::{Cover, Front, FrontConfig, LineReadiness, Node, NodeConfig, SpareSpec, StageAddress, StageSpec};
use net::{DialOptions, Identity, LinkOptions, Role};
use protocol::{Generation, StageIndex};
use server::{Api, ApiConfig, ApiKeys, Server, Tls};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::prepared::{Prepared, n_local};
use crate::api::{ApiGrammars, ApiLine, ApiTokenizer};
use crate::args::{Place, ServeArgs, Spares};
use crate::children::{self, ChildPlan};
use crate::engines::{EngineOptions, Engines};
use crate::logging::{Format, say};
use crate::otlp::{self, Exporter};
use crate::templates::Templates;
use crate::{cluster, disk, signals, standing};

mod prepared;

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
    if let Some(after) = args.replan_after
        && !args.replay_timeout.is_zero()
        && after >= args.replay_timeout
    {
        say("Note: --replan-after is not less than --replay-timeout: running requests are given up before.");
    }
    let tls = args.tls.as_ref().map(|(certificate, key)| Tls::load(certificate, key)).transpose()?;
    // A cluster that is not there is told before anything takes time.
    let line = signals::line_runtime()?;
    let outset = Outset::of(&args, line.handle().clone())?;
    let runtime = signals::http_runtime()?;
    let traces = otlp::of_process(&args.traces)?.map(Exporter::start).transpose()?;
    let tracing = traces.as_ref().map(Exporter::tracing);
    let cors = args.cors.clone();
    let templates = Arc::new(Templates::new(outset.program.clone()));
    let config = ApiConfig { api_keys, cors, tracing, shared_prompts, templates, ..ApiConfig::default() };
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
                let file = standing::identity_file(args.cluster.as_deref())?;
                runtime.spawn(standing::keep(front.clone(), file));
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

async fn start(args: &ServeArgs, outset: Outset, line: &Arc<ApiLine>, api: &Api) -> anyhow::Result<Started> {
    let (for_reading, of_line) = (args.clone(), Arc::clone(line));
    let prepared = tokio::task::spawn_blocking(move || Prepared::read(&for_reading, &of_line)).await??;
    let grammars = Arc::new(ApiGrammars::new(Arc::clone(&prepared.vocab)));
    if prepared.guesses() {
        line.guess_by(Arc::clone(&grammars));
    }
    let tokenizer = Arc::new(ApiTokenizer::new(Arc::clone(&prepared.vocab), grammars));
    let (api, info) = (api.clone(), prepared.info.clone());
    tokio::task::spawn_blocking(move || api.set_model(info, tokenizer)).await??;
    let started = form(args, outset, prepared)?;
    line.started(started.front.clone());
    Ok(started)
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
        plan: prepared.line_plan(args),
        stages: specs,
        spares,
        lease: args.lease,
        replan_after: args.replan_after,
        scheduler: prepared.scheduler_config(args),
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
    // Its slice is there; another one is cut where machines are missing.
    let engines = Engines::new(Some(models(args).to_owned()), options.clone())
        .with_whole(prepared.slices.identity, args.model.clone());
    let mut dial = DialOptions::default();
    dial.link.shape.clone_from(&args.link);
    Node::start(NodeConfig {
        most_prefix_bytes: None,
        identity: identity.clone(),
        store: disk::of_stage(prepared.store.clone(), &options),
        source: Arc::new(engines),
        build: signals::build(),
        dial,
        heartbeat: args.heartbeat,
        lease: NO_LEASE,
    })
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
    option("--models", models(args).to_str().map(str::to_owned));
    list
}

/// Where the model lies.
fn models(args: &ServeArgs) -> &Path {
    let folder = args.model.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
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
    fn stages_without_a_spare_are_named() {
        let words = |covers: [Cover; 3]| standing_by(&covers);
        assert_eq!(words([Cover::Cold, Cover::Warm, Cover::Cold]), "Something stands by for every stage.");
        assert_eq!(words([Cover::Nobody, Cover::Warm, Cover::Cold]), "Nothing stands by for stage 0.");
        assert_eq!(words([Cover::Nobody, Cover::Nobody, Cover::Cold]), "Nothing stands by for stages 0, 1.");
    }
}
