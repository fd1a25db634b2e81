//! What both long-running commands need of the operating system: a runtime, the end signals, the number of cores.

use std::thread::available_parallelism;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

/// Threads for sockets and HTTP. They never compute, so two are enough for any line.
const IO_THREADS: usize = 2;

/// The runtime of sockets, timers and HTTP.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .thread_name("io")
        .enable_all()
        .build()
        .context("could not start the threads for sockets")
}

/// Resolves at Ctrl-C or SIGTERM.
pub(crate) async fn shutdown() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without a way to hear signals the process ends by the default action.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
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
