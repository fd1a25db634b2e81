//! How an API ends: first it takes nothing new, and in the end nothing goes on.
//!
//! Owns: the phase, and the number of generations that run. When to go from one phase to the next is up to whoever runs
//! the server.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// What runs may finish.
    Draining,
    Over,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Drain {
    phase: watch::Sender<Phase>,
    running: watch::Sender<u32>,
}

/// A generation that runs.
pub(crate) struct Running {
    drain: Arc<Drain>,
    phase: watch::Receiver<Phase>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.drain.running.send_modify(|n| *n -= 1);
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { phase: watch::Sender::new(Phase::Open), running: watch::Sender::new(0) }
    }
}

impl Drain {
    /// Whether new requests are taken.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if *self.phase.borrow() == Phase::Open { Ok(()) } else { Err(stopping()) }
    }

    /// Counts one more generation, if new ones are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Running, ApiError> {
        // Counted first: whoever waits for the last one then never misses it.
        self.running.send_modify(|n| *n += 1);
        let running = Running { drain: self.clone(), phase: self.phase.subscribe() };
        self.check().map(|()| running)
    }

    /// Takes nothing new from now on.
    pub(crate) fn close(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Resolves when nothing runs.
    pub(crate) async fn idle(&self) {
        // The sender is this one.
        let _ = self.running.subscribe().wait_for(|&n| n == 0).await;
    }

    /// Resolves when nothing new is taken and nothing runs, or nothing may run any more.
    pub(crate) async fn over(&self) {
        let mut phase = self.phase.subscribe();
        // The senders are this one's.
        let _ = phase.wait_for(|&phase| phase != Phase::Open).await;
        tokio::select! {
            () = self.idle() => {}
            _ = phase.wait_for(|&phase| phase == Phase::Over) => {}
        }
    }

    /// Ends what still runs.
    pub(crate) fn end(&self) {
        self.phase.send_replace(Phase::Over);
    }
}

impl Running {
    /// Resolves when the generation must end. Cancel safe.
    pub(crate) async fn over(&mut self) -> ApiError {
        // Its sender is kept by `drain`.
        let _ = self.phase.wait_for(|&phase| phase == Phase::Over).await;
        stopping()
    }
}

fn stopping() -> ApiError {
    ApiError::NotReady { reason: "the server is stopping".into(), progress: None }
}
