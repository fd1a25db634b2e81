//! Single values: what each flag's text means, within which bounds, and what holds where nothing is said.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use net::{Heartbeat, Shape};
use protocol::{KvType, RowDtype};
use spec::{MAX_DEPTH, MAX_DRAFT, MAX_WIDTH, Reach, Sources, Speculate};

use super::{Cut, Usage, usage};

pub(super) fn model(given: Option<PathBuf>, command: &str) -> anyhow::Result<PathBuf> {
    match given {
        None => usage(format!("name a model: `paceline {command} MODEL`")),
        Some(path) if path.to_str().is_some_and(|text| text.starts_with("hf:")) => {
            usage("fetching a model by name comes with a later version of Paceline: name a GGUF file")
        }
        Some(path) => Ok(path),
    }
}

pub(super) fn within(name: &str, value: Option<u16>, max: u16) -> anyhow::Result<Option<u16>> {
    match value {
        Some(n) if n == 0 || n > max => usage(format!("{name} must be 1 to {max}, not {n}")),
        other => Ok(other),
    }
}

/// An address to listen on: `host:port`, `:port` for loopback, or a port alone.
pub(super) fn address(given: &str) -> anyhow::Result<SocketAddr> {
    let text = match given.strip_prefix(':').unwrap_or(given) {
        port if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => format!("127.0.0.1:{port}"),
        _ => given.to_owned(),
    };
    let found = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.ok_or_else(|| Usage(format!("`{given}` is no address to listen on: write host:port")).into())
}

/// A stage's address: it is resolved when it is dialled, so only its form is checked.
pub(super) fn stage_address(given: &str) -> anyhow::Result<String> {
    match given.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0) => {
            Ok(given.to_owned())
        }
        _ => usage(format!("`{given}` is no address of a stage: write host:port")),
    }
}

pub(super) fn shape(given: Option<String>) -> anyhow::Result<Option<Shape>> {
    given
        .map(|text| text.parse::<Shape>().map_err(|why| Usage(format!("--link {text}: {why}")).into()))
        .transpose()
}

pub(super) fn time(flag: &str, given: Option<&str>, usual: Duration) -> anyhow::Result<Duration> {
    let Some(given) = given else { return Ok(usual) };
    match net::duration(given).filter(|&time| time <= MAX_TIME) {
        Some(time) => Ok(time),
        None => {
            let most = MAX_TIME.as_secs();
            usage(format!("{flag} must be a time such as 10s or 500ms, at most {most}s, not `{given}`"))
        }
    }
}

pub(super) fn replan_after(given: Option<&str>, cut: &Cut) -> anyhow::Result<Option<Duration>> {
    if given.is_some() && cut.n_stages() == 1 {
        return usage(
            "--replan-after is for lines of several machines: one alone has nobody to share its layers with",
        );
    }
    given.map(|given| time("--replan-after", Some(given), Duration::ZERO)).transpose()
}

pub(super) fn progress_timeout(given: Option<&str>) -> anyhow::Result<Duration> {
    let within = time("--progress-timeout", given, scheduler::PROGRESS_TIMEOUT)?;
    if within < LEAST_PROGRESS {
        return usage("--progress-timeout must be at least 1s: a busy machine stands still for a moment");
    }
    Ok(within)
}

pub(super) fn heartbeat(interval: Option<&str>, dead_after: Option<&str>) -> anyhow::Result<Heartbeat> {
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

pub(super) fn row_dtype(given: Option<&str>) -> anyhow::Result<RowDtype> {
    match given {
        None | Some("f32") => Ok(RowDtype::F32),
        Some("bf16") => Ok(RowDtype::Bf16),
        Some("f16") => Ok(RowDtype::F16),
        Some("q8") => Ok(RowDtype::Q8),
        Some(other) => usage(format!("--row-dtype must be f32, bf16, f16 or q8, not `{other}`")),
    }
}

/// Long enough for a process to be started again and to load its layers.
pub(super) const REPLAY_TIMEOUT: Duration = Duration::from_secs(30);
/// What `--progress-timeout` may be at least: on a machine with more to do than it can, a thread waits for its turn.
pub(super) const LEAST_PROGRESS: Duration = Duration::from_secs(1);
/// How long loaded layers are kept for a front that is gone, and a machine that is away is counted on: a restart takes
/// seconds, and loading them again may take minutes.
pub(crate) const LEASE: Duration = Duration::from_secs(120);
/// Most answers are through by then.
pub(super) const GRACE: Duration = Duration::from_secs(30);
/// Every client has gone by then.
pub(super) const MAX_TIME: Duration = Duration::from_secs(3600);
/// Memory for the beginnings of earlier prompts in MiB: some thousand tokens of a large model, all that is ever asked of a
/// small one.
pub(super) const CACHE_MIB: u32 = 1024;

pub(super) fn kv_type(given: Option<&str>) -> anyhow::Result<KvType> {
    match given {
        None | Some("f16") => Ok(KvType::F16),
        Some("q8_0") => Ok(KvType::Q8_0),
        Some("q4_0") => Ok(KvType::Q4_0),
        Some(other) => usage(format!("--kv-type must be f16, q8_0 or q4_0, not `{other}`")),
    }
}

/// Who guesses ahead, and what is not left to the controller.
pub(super) fn speculate(
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
        Some(_) if !speculate.may_draft_itself() => {
            usage("--draft-len says how far the model drafts for itself: add --speculate mtp")
        }
        _ => Ok(speculate),
    }
}

pub(super) fn exact(exact: Option<bool>, gpu_layers: Option<u32>) -> anyhow::Result<bool> {
    match (exact.unwrap_or(false), gpu_layers) {
        (true, Some(n)) if n > 0 => {
            usage("--exact works on the CPU only: leave --gpu-layers out or set it to 0")
        }
        (exact, _) => Ok(exact),
    }
}

pub(super) fn swa_full(swa_full: Option<bool>, exact: Option<bool>) -> anyhow::Result<bool> {
    match (swa_full.unwrap_or(true), exact.unwrap_or(false)) {
        (false, true) => {
            usage("--exact needs every position of a sliding window: leave --swa-full=false out")
        }
        (swa_full, _) => Ok(swa_full),
    }
}

pub(super) fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
