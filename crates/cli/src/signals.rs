//! What both long-running commands need of the operating system: runtimes, the end signals, the number of cores.

use std::thread::available_parallelism;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

/// Threads for HTTP: while one renders a template or cuts a long prompt into tokens, others go on being served.
const HTTP_THREADS: usize = 2;

/// The runtime of a line's links. One thread: what happens there takes microseconds, and with two of them every frame
/// would wake a second one in vain, which costs more than the rest of a hop.
pub(crate) fn line_runtime() -> anyhow::Result<Runtime> {
    start(1, "line")
}

/// The runtime of HTTP and child processes, apart from the line's: a token must not wait for somebody's long prompt.
pub(crate) fn http_runtime() -> anyhow::Result<Runtime> {
    start(HTTP_THREADS, "http")
}

fn start(threads: usize, name: &str) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .context("could not start the threads for sockets")
}

/// Hears Ctrl-C and SIGTERM from the moment it is made, so that none is lost while nobody waits.
#[cfg(unix)]
pub(crate) struct EndSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl EndSignals {
    /// Starts to listen; needs a runtime around it.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let hear = |kind| signal(kind).context("could not listen for signals");
        Ok(Self { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// Resolves at the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Hears Ctrl-C from the moment it is made, so that none is lost while nobody waits.
#[cfg(windows)]
pub(crate) struct EndSignals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl EndSignals {
    /// Starts to listen; needs a runtime around it.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c().context("could not listen for Ctrl-C")?))
    }

    /// Resolves at the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Cores of this machine.
pub(crate) fn cores() -> u32 {
    available_parallelism().map_or(1, |n| n.get() as u32)
}

/// This build, as told to other nodes: releases with different engines or instruction sets may compute other last bits.
pub(crate) fn build() -> String {
    format!("paceline {} {}", env!("CARGO_PKG_VERSION"), llama::system_info())
}
