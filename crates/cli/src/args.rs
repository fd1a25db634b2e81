//! Judged arguments: what the commands get, with every range checked and every default filled in that does not depend
//! on the model. Flags and `paceline.toml` have been merged before.
//!
//! Owns the rules of what goes together. Does not open models, sockets or keys.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use net::{Heartbeat, Shape, Ticket};
use protocol::{KvType, RowDtype};
use server::Cors;
use spec::{MAX_DEPTH, MAX_DRAFT, MAX_WIDTH, Reach, Sources, Speculate};

use crate::flags::{ServeFlags, SplitFlags, StageFlags, VerifyFlags};
pub use crate::otlp::Asked;

mod cluster;
mod http;
mod machines;
mod spares;

pub(crate) use cluster::ticket;
pub use cluster::{EnrollArgs, InviteArgs, RotateArgs};
use machines::{Named, cut, machines};

/// Wrong usage: the sentence says what to write instead. Ends the process with exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Stages of a line at most: far beyond any line of machines that still answers quickly.
pub const MAX_STAGES: u16 = 64;
/// Sequences at once at most: each has a stream of keys and values of its own on every stage.
pub const MAX_PARALLEL: u16 = 256;
/// Threads of a stage at most.
pub const MAX_THREADS: u16 = 1024;

/// Where the model is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Into this many stages of about equal size.
    Stages(u16),
    /// Before these layers, ascending; one stage more than cuts.
    Before(Vec<u32>),
}

impl Cut {
    /// Stages that hold layers.
    #[must_use]
    pub fn n_stages(&self) -> usize {
        match self {
            Self::Stages(n) => usize::from(*n),
            Self::Before(layers) => layers.len() + 1,
        }
    }
}

/// Who runs the stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// This machine: stage 0 in the front process, each of the others in a child of its own.
    Local,
    /// Other machines, after this one.
    Machines {
        /// `host:port` of each, in order; at least one.
        addresses: Vec<String>,
        /// Whether this machine computes no layers.
        front_only: bool,
    },
}

/// Machines that stand by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spares {
    /// So many more processes on this machine.
    Children(u16),
    /// `host:port` of each, and the only stage whose place it may take, if one was said.
    Machines(Vec<(String, Option<u16>)>),
}

/// Disk for the beginnings of earlier prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes; 0 for none.
    pub bytes: u64,
    /// Where; `None` for the default place.
    pub folder: Option<PathBuf>,
}

impl Disk {
    fn new(mib: Option<u32>, folder: Option<PathBuf>) -> anyhow::Result<Self> {
        if folder.is_some() && mib.unwrap_or(0) == 0 {
            return usage("--cache-dir needs --cache-disk MIB: how much may be kept there");
        }
        Ok(Self { bytes: u64::from(mib.unwrap_or(0)) << 20, folder })
    }
}

/// `paceline serve`.
#[derive(Clone, Debug)]
pub struct ServeArgs {
    /// The GGUF file, or the first shard of it.
    pub model: PathBuf,
    /// The name that the model answers to, beside `default`.
    pub model_id: String,
    /// Where HTTP is answered; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Who runs the stages.
    pub place: Place,
    /// Who stands by.
    pub spares: Spares,
    /// How long a machine that is away is counted on to hold its layers.
    pub lease: Duration,
    /// Where the model is cut; as many stages as `place` has machines, if it has any.
    pub cut: Cut,
    /// Positions per sequence; `None` for the model's own, at most 8192.
    pub context: Option<u32>,
    /// Sequences at once.
    pub parallel: u16,
    /// Threads per stage; `None` to share the cores out.
    pub threads: Option<u16>,
    /// Layers per stage on the GPU; `None` for all.
    pub gpu_layers: Option<u32>,
    /// The GPU's name.
    pub device: Option<String>,
    /// How links are slowed down.
    pub link: Option<Shape>,
    /// Whether stages are reached through their neighbours only.
    pub relay: bool,
    /// How hidden rows travel.
    pub row_dtype: RowDtype,
    /// Who guesses ahead, and how far.
    pub speculate: Speculate,
    /// Whether results must not depend on batch shape.
    pub exact: bool,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Whether layers with a sliding window keep every position; always with `exact`.
    pub swa_full: bool,
    /// Bytes of each stage for parked prefixes beside its engine.
    pub prefix_bytes: u64,
    /// Where prefixes outlive the process.
    pub disk: Disk,
    /// Requests that may wait; `None` for the usual number.
    pub queue: Option<u32>,
    /// How long they may wait.
    pub queue_timeout: Duration,
    /// How long running requests wait for a new line.
    pub replay_timeout: Duration,
    /// How long the line may owe news of any one sequence at least.
    pub progress_timeout: Duration,
    /// How long a machine that nothing can stand in for is away before the others share its layers; for ever if none.
    pub replan_after: Option<Duration>,
    /// How long running requests may go on after the signal to end.
    pub grace: Duration,
    /// Of the front's links to the stages.
    pub heartbeat: Heartbeat,
    /// This machine's key and membership; `None` for the default place.
    pub cluster: Option<PathBuf>,
    /// Keys that clients must show, one a line.
    pub api_key_file: Option<PathBuf>,
    /// Files with system prompts that everybody may begin with.
    pub shared_prompts: Vec<PathBuf>,
    /// For HTTPS: the certificate's file, and its key's.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Which web pages of other origins may call the API.
    pub cors: Cors,
    /// Where traces go, and which.
    pub traces: Asked,
}

/// `paceline stage`.
#[derive(Clone, Debug)]
pub struct StageArgs {
    /// Where fronts and the stage before are awaited.
    pub listen: SocketAddr,
    /// This machine's key and membership; `None` for the default place.
    pub cluster: Option<PathBuf>,
    /// The ticket that makes this machine a member, if it is none.
    pub join: Option<Ticket>,
    /// Where models are looked for.
    pub models: Option<PathBuf>,
    /// How long the stage is kept for a front that is gone.
    pub lease: Duration,
    /// Memory that a front may have it keep of earlier prompts, whatever that front asks for.
    pub most_prefix_bytes: Option<u64>,
    /// How long the front may take to do without the stage when the process is told to end.
    pub grace: Duration,
    /// Whether a neighbour may pass on what the front commands.
    pub relayed: bool,
    /// Threads; `None` for the machine's cores.
    pub threads: Option<u16>,
    /// Layers on the GPU; `None` for all.
    pub gpu_layers: Option<u32>,
    /// The GPU's name.
    pub device: Option<String>,
    /// How the link to the next stage is slowed down.
    pub link: Option<Shape>,
    /// Where prefixes outlive the process.
    pub disk: Disk,
    /// Whether a front on this machine started the process: its identity comes on standard input, whose end ends it.
    pub child: bool,
}

/// `paceline split`.
#[derive(Clone, Debug)]
pub struct SplitArgs {
    /// The GGUF file, or the first shard of it.
    pub model: PathBuf,
    /// Where it is cut.
    pub cut: Cut,
    /// The folder for the slices.
    pub out: PathBuf,
}

/// `paceline verify`.
#[derive(Clone, Debug)]
pub struct VerifyArgs {
    /// The GGUF file, or the first shard of it.
    pub model: PathBuf,
    /// Where it is cut.
    pub cut: Cut,
    /// Threads per stage; `None` for the machine's cores.
    pub threads: Option<u16>,
}

pub(crate) fn usage<T>(sentence: impl Into<String>) -> anyhow::Result<T> {
    Err(Usage(sentence.into()).into())
}

fn model(given: Option<PathBuf>, command: &str) -> anyhow::Result<PathBuf> {
    match given {
        None => usage(format!("name a model: `paceline {command} MODEL`")),
        Some(path) if path.to_str().is_some_and(|text| text.starts_with("hf:")) => {
            usage("fetching a model by name comes with a later version of Paceline: name a GGUF file")
        }
        Some(path) => Ok(path),
    }
}

fn within(name: &str, value: Option<u16>, max: u16) -> anyhow::Result<Option<u16>> {
    match value {
        Some(n) if n == 0 || n > max => usage(format!("{name} must be 1 to {max}, not {n}")),
        other => Ok(other),
    }
}

/// An address to listen on: `host:port`, `:port` for loopback, or a port alone.
fn address(given: &str) -> anyhow::Result<SocketAddr> {
    let text = match given.strip_prefix(':').unwrap_or(given) {
        port if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => format!("127.0.0.1:{port}"),
        _ => given.to_owned(),
    };
    let found = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.ok_or_else(|| Usage(format!("`{given}` is no address to listen on: write host:port")).into())
}

/// A stage's address: it is resolved when it is dialled, so only its form is checked.
fn stage_address(given: &str) -> anyhow::Result<String> {
    match given.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0) => {
            Ok(given.to_owned())
        }
        _ => usage(format!("`{given}` is no address of a stage: write host:port")),
    }
}

fn shape(given: Option<String>) -> anyhow::Result<Option<Shape>> {
    given
        .map(|text| text.parse::<Shape>().map_err(|why| Usage(format!("--link {text}: {why}")).into()))
        .transpose()
}

fn time(flag: &str, given: Option<&str>, usual: Duration) -> anyhow::Result<Duration> {
    let Some(given) = given else { return Ok(usual) };
    match net::duration(given).filter(|&time| time <= MAX_TIME) {
        Some(time) => Ok(time),
        None => {
            let most = MAX_TIME.as_secs();
            usage(format!("{flag} must be a time such as 10s or 500ms, at most {most}s, not `{given}`"))
        }
    }
}

fn replan_after(given: Option<&str>, cut: &Cut) -> anyhow::Result<Option<Duration>> {
    if given.is_some() && cut.n_stages() == 1 {
        return usage(
            "--replan-after is for lines of several machines: one alone has nobody to share its layers with",
        );
    }
    given.map(|given| time("--replan-after", Some(given), Duration::ZERO)).transpose()
}

fn progress_timeout(given: Option<&str>) -> anyhow::Result<Duration> {
    let within = time("--progress-timeout", given, scheduler::PROGRESS_TIMEOUT)?;
    if within < LEAST_PROGRESS {
        return usage("--progress-timeout must be at least 1s: a busy machine stands still for a moment");
    }
    Ok(within)
}

fn heartbeat(interval: Option<&str>, dead_after: Option<&str>) -> anyhow::Result<Heartbeat> {
    let usual = Heartbeat::default();
    let asked = Heartbeat {
        interval: time("--heartbeat", interval, usual.interval)?,
        dead_after: time("--dead-after", dead_after, usual.dead_after)?,
    };
    if asked != asked.clamped() {
        return usage(
            "--heartbeat must be 10ms to 60s, and --dead-after at least twice that and at most 600s, in whole ms",
        );
    }
    Ok(asked)
}

fn row_dtype(given: Option<&str>) -> anyhow::Result<RowDtype> {
    match given {
        None | Some("f32") => Ok(RowDtype::F32),
        Some("bf16") => Ok(RowDtype::Bf16),
        Some("f16") => Ok(RowDtype::F16),
        Some("q8") => Ok(RowDtype::Q8),
        Some(other) => usage(format!("--row-dtype must be f32, bf16, f16 or q8, not `{other}`")),
    }
}

/// Long enough for a process to be started again and to load its layers.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(30);
/// What `--progress-timeout` may be at least: on a machine with more to do than it can, a thread waits for its turn.
const LEAST_PROGRESS: Duration = Duration::from_secs(1);
/// How long loaded layers are kept for a front that is gone, and a machine that is away is counted on: a restart takes
/// seconds, and loading them again may take minutes.
pub(crate) const LEASE: Duration = Duration::from_secs(120);
/// Most answers are through by then.
const GRACE: Duration = Duration::from_secs(30);
/// Every client has gone by then.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// Memory for the beginnings of earlier prompts in MiB: some thousand tokens of a large model, all that is ever asked of a
/// small one.
const CACHE_MIB: u32 = 1024;

fn kv_type(given: Option<&str>) -> anyhow::Result<KvType> {
    match given {
        None | Some("f16") => Ok(KvType::F16),
        Some("q8_0") => Ok(KvType::Q8_0),
        Some("q4_0") => Ok(KvType::Q4_0),
        Some(other) => usage(format!("--kv-type must be f16, q8_0 or q4_0, not `{other}`")),
    }
}

/// Who guesses ahead, and what is not left to the controller.
fn speculate(
    sources: Option<&str>,
    (width, depth): (Option<u32>, Option<u32>),
    draft_len: Option<u8>,
) -> anyhow::Result<Speculate> {
    let sources = match sources.unwrap_or("off").parse::<Sources>() {
        Ok(sources) => sources,
        Err(error) => return usage(format!("--speculate: {error}")),
    };
    for (flag, value, max) in [("--width", width, MAX_WIDTH), ("--depth", depth, MAX_DEPTH)] {
        match value {
            Some(n) if n == 0 || n > max => return usage(format!("{flag} must be 1 to {max}, not {n}")),
            Some(_) if sources == Sources::Off => {
                return usage(format!("{flag} says how far to guess: add --speculate auto"));
            }
            _ => {}
        }
    }
    let speculate = Speculate { sources, reach: Reach { width, depth, ..Reach::default() }, draft_len };
    match draft_len {
        Some(n) if n == 0 || n > MAX_DRAFT => usage(format!("--draft-len must be 1 to {MAX_DRAFT}, not {n}")),
        Some(_) if !speculate.drafts_itself() => {
            usage("--draft-len says how far the model drafts for itself: add --speculate mtp")
        }
        _ => Ok(speculate),
    }
}

fn exact(exact: Option<bool>, gpu_layers: Option<u32>) -> anyhow::Result<bool> {
    match (exact.unwrap_or(false), gpu_layers) {
        (true, Some(n)) if n > 0 => {
            usage("--exact works on the CPU only: leave --gpu-layers out or set it to 0")
        }
        (exact, _) => Ok(exact),
    }
}

fn swa_full(swa_full: Option<bool>, exact: Option<bool>) -> anyhow::Result<bool> {
    match (swa_full.unwrap_or(true), exact.unwrap_or(false)) {
        (false, true) => {
            usage("--exact needs every position of a sliding window: leave --swa-full=false out")
        }
        (swa_full, _) => Ok(swa_full),
    }
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

impl ServeArgs {
    pub(crate) fn from_flags(flags: ServeFlags) -> anyhow::Result<Self> {
        let model = model(flags.model, "serve")?;
        let Named { place, cut, mut spares } = match (flags.line, flags.stage) {
            (None, None) => {
                if flags.front_only == Some(true) {
                    return usage(
                        "--front-only needs machines that compute: name them with --stage or --line",
                    );
                }
                let cut = cut(flags.stages, flags.cuts)?.unwrap_or(Cut::Stages(1));
                Named { place: Place::Local, cut, spares: Vec::new() }
            }
            (Some(_), Some(_)) => {
                return usage("name the machines with --stage or with --line, not with both");
            }
            (line, stage) => {
                if flags.stages.is_some() {
                    return usage("--stages is for one machine: leave it out when machines are named");
                }
                let front_only = flags.front_only.unwrap_or(false);
                machines(line.as_deref(), stage.unwrap_or_default(), front_only, flags.cuts)?
            }
        };
        spares.extend(flags.spare.unwrap_or_default());
        let spares = spares::judged(spares, flags.spares, (&cut, &place))?;
        if flags.relay == Some(true) && spares.is_some() {
            return usage(
                "--relay reaches machines through their neighbours, and spares have none: leave one out",
            );
        }
        let replan_after = replan_after(flags.replan_after.as_deref(), &cut)?;
        if flags.relay == Some(true) && replan_after.is_some() {
            return usage(
                "--relay reaches machines through their neighbours, so that one that comes back is not seen: leave \
                 --replan-after out",
            );
        }
        if flags.ctx == Some(0) {
            return usage("--ctx must be at least 1");
        }
        Ok(Self {
            model_id: http::model_id(flags.model_id, &model)?,
            model,
            listen: address(flags.listen.as_deref().unwrap_or("127.0.0.1:8080"))?,
            place,
            spares: spares.unwrap_or(Spares::Children(0)),
            lease: time("--lease", flags.lease.as_deref(), LEASE)?,
            cut,
            context: flags.ctx,
            parallel: within("--parallel", flags.parallel, MAX_PARALLEL)?.unwrap_or(4),
            threads: within("--threads", flags.threads, MAX_THREADS)?,
            gpu_layers: flags.gpu_layers,
            device: flags.device,
            link: shape(flags.link)?,
            relay: flags.relay.unwrap_or(false),
            row_dtype: row_dtype(flags.row_dtype.as_deref())?,
            speculate: speculate(flags.speculate.as_deref(), (flags.width, flags.depth), flags.draft_len)?,
            exact: exact(flags.exact, flags.gpu_layers)?,
            swa_full: swa_full(flags.swa_full, flags.exact)?,
            kv: kv_type(flags.kv_type.as_deref())?,
            prefix_bytes: u64::from(flags.cache_ram.unwrap_or(CACHE_MIB)) << 20,
            disk: Disk::new(flags.cache_disk, flags.cache_dir)?,
            queue: flags.queue,
            queue_timeout: time("--queue-timeout", flags.queue_timeout.as_deref(), scheduler::QUEUE_TIMEOUT)?,
            replay_timeout: time("--replay-timeout", flags.replay_timeout.as_deref(), REPLAY_TIMEOUT)?,
            progress_timeout: progress_timeout(flags.progress_timeout.as_deref())?,
            replan_after,
            grace: time("--grace", flags.grace.as_deref(), GRACE)?,
            heartbeat: heartbeat(flags.heartbeat.as_deref(), flags.dead_after.as_deref())?,
            cluster: flags.cluster,
            api_key_file: flags.api_key_file,
            shared_prompts: flags.shared_prompt.unwrap_or_default(),
            tls: http::tls(flags.tls_cert, flags.tls_key)?,
            cors: Cors::parse(&flags.cors.unwrap_or_default())
                .map_err(|error| Usage(format!("--cors: {error}")))?,
            traces: Asked::new(flags.otlp, flags.otlp_sample.as_deref(), flags.otlp_content)?,
        })
    }
}

impl StageArgs {
    pub(crate) fn from_flags(flags: StageFlags) -> anyhow::Result<Self> {
        Ok(Self {
            listen: address(flags.listen.as_deref().unwrap_or("0.0.0.0:7411"))?,
            cluster: flags.cluster,
            join: flags.join.as_deref().map(ticket).transpose()?,
            models: flags.models,
            lease: time("--lease", flags.lease.as_deref(), LEASE)?,
            most_prefix_bytes: flags.cache_ram.map(|mib| u64::from(mib) << 20),
            grace: time("--grace", flags.grace.as_deref(), GRACE)?,
            relayed: flags.relayed.unwrap_or(false),
            threads: within("--threads", flags.threads, MAX_THREADS)?,
            gpu_layers: flags.gpu_layers,
            device: flags.device,
            link: shape(flags.link)?,
            disk: Disk::new(flags.cache_disk, flags.cache_dir)?,
            child: flags.child.unwrap_or(false),
        })
    }
}

impl SplitArgs {
    pub(crate) fn from_flags(flags: SplitFlags) -> anyhow::Result<Self> {
        let model = model(flags.model, "split")?;
        let Some(cut) = cut(flags.stages, flags.cuts)? else {
            return usage("say where to cut with --stages N or --cuts A,B");
        };
        let Some(out) = flags.out else { return usage("name a folder for the slices with --out DIR") };
        Ok(Self { model, cut, out })
    }
}

impl VerifyArgs {
    pub(crate) fn from_flags(flags: VerifyFlags) -> anyhow::Result<Self> {
        Ok(Self {
            model: model(flags.model, "verify")?,
            cut: cut(flags.stages, flags.cuts)?.unwrap_or(Cut::Stages(3)),
            threads: within("--threads", flags.threads, MAX_THREADS)?,
        })
    }
}
