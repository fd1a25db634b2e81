//! The stages of a line on one machine: child processes that are started, watched and replaced.
//!
//! A child is an ordinary `paceline stage` on a loopback port. It gets its identity through its standard input and ends
//! when that closes, which happens however the front ends. It runs in a process group of its own, so that the
//! terminal's signals reach only the front.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use net::Identity;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::time::Instant;

/// The line that ends the identity on a child's standard input.
pub(crate) const END_OF_IDENTITY: &str = "-----END OF IDENTITY-----";
/// How a child says where it listens.
pub(crate) const LISTENING: &str = "listening on ";
/// How long a child may take to open its port: a second is usual, but a machine may be busy.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// A child whose process lives but that cannot be spoken to for this long is replaced.
const FROZEN_AFTER: Duration = Duration::from_secs(5);
/// A fresh child may take this long until the front has reached it.
const LINKED_WITHIN: Duration = Duration::from_secs(30);
/// Pause before the second restart in a row; doubles up to [`PAUSE_MAX`]. The first comes at once.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause between restarts.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A child that lived this long has earned an immediate restart again.
const SETTLED: Duration = Duration::from_secs(30);

/// One child.
pub(crate) struct ChildPlan {
    /// This program's file, as it was called when the front started: it may be replaced while the line runs.
    pub(crate) program: PathBuf,
    /// Its place in the line.
    pub(crate) stage: usize,
    /// What it proves itself with.
    pub(crate) identity: Identity,
    /// Everything behind `paceline stage`.
    pub(crate) args: Vec<String>,
}

/// Keeps the child of one stage alive until the task is dropped, which ends the child too.
pub(crate) async fn supervise(
    plan: ChildPlan,
    address: watch::Sender<Option<String>>,
    mut linked: watch::Receiver<Vec<bool>>,
) {
    let stage = plan.stage;
    let mut pause = Duration::ZERO;
    loop {
        let began = Instant::now();
        let why = match start(&plan).await {
            Ok(Started { mut child, input, address: at }) => {
                tracing::info!(stage, address = at, "stage process is up");
                address.send_replace(Some(at));
                let why = tokio::select! {
                    status = child.wait() => match status {
                        Ok(status) => format!("its process ended ({status})"),
                        Err(error) => format!("its process was lost: {error}"),
                    },
                    () = frozen(&mut linked, stage) => "it does not answer".to_owned(),
                };
                drop(input);
                address.send_replace(None);
                // Gone already if it ended by itself.
                let _ = child.kill().await;
                why
            }
            Err(error) => format!("{error:#}"),
        };
        tracing::warn!(stage, "stage process is restarted: {why}");
        if began.elapsed() >= SETTLED {
            pause = Duration::ZERO;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

/// A process that has opened its port.
struct Started {
    child: Child,
    /// Its standard input: the child ends when it closes. (Kept out of `child`, whose `wait` would close it.)
    input: ChildStdin,
    address: String,
}

/// Starts the process and waits for its port.
async fn start(plan: &ChildPlan) -> anyhow::Result<Started> {
    let mut command = Command::new(&plan.program);
    command.arg("stage").args(&plan.args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command.spawn().context("could not start a stage process")?;
    let secret = format!("{}\n{END_OF_IDENTITY}\n", plan.identity.to_pem().trim_end());
    let mut input = child.stdin.take().context("a stage process has no standard input")?;
    input.write_all(secret.as_bytes()).await.context("a stage process closed its standard input")?;
    input.flush().await.context("a stage process closed its standard input")?;
    let output = child.stdout.take().context("a stage process has no standard output")?;
    let mut lines = BufReader::new(output).lines();
    let first = tokio::time::timeout(STARTS_WITHIN, lines.next_line())
        .await
        .context("a stage process did not open its port in time")?
        .context("a stage process's output could not be read")?;
    match first.as_deref().and_then(|line| line.strip_prefix(LISTENING)) {
        Some(address) => Ok(Started { child, input, address: address.trim().to_owned() }),
        None => bail!("a stage process ended before it opened its port"),
    }
}

/// Resolves when the front could not speak to the stage for too long.
async fn frozen(linked: &mut watch::Receiver<Vec<bool>>, stage: usize) {
    let mut patience = LINKED_WITHIN;
    loop {
        let up = linked.wait_for(|linked| linked[stage]);
        if tokio::time::timeout(patience, up).await.is_err() {
            return;
        }
        patience = FROZEN_AFTER;
        if linked.wait_for(|linked| !linked[stage]).await.is_err() {
            return std::future::pending().await; // The front is gone; so is this task soon.
        }
    }
}
