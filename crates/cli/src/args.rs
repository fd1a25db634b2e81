//! Judged arguments: what the commands get, with every range checked and every default filled in that does not depend
//! on the model. Flags and `paceline.toml` have been merged before.
//!
//! Owns the rules of what goes together. Does not open models, sockets or keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use net::{Heartbeat, Shape, Ticket};
use protocol::{KvType, RowDtype};
use server::Cors;
use spec::Speculate;

use crate::flags::{ServeFlags, SplitFlags, StageFlags, VerifyFlags};
pub use crate::otlp::Asked;

mod cluster;
mod http;
mod machines;
mod spares;
mod values;

pub(crate) use cluster::ticket;
pub use cluster::{EnrollArgs, InviteArgs, RotateArgs};
use machines::{Named, cut, machines};
pub(crate) use values::LEASE;
use values::{
    CACHE_MIB, GRACE, REPLAY_TIMEOUT, address, exact, file_stem, heartbeat, kv_type, model, progress_timeout,
    replan_after, row_dtype, shape, speculate, stage_address, swa_full, time, within,
};

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
