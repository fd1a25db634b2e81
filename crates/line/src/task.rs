//! A task that ends with its owner.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Aborts the task when dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Starts the task on the current runtime.
    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Starts the task from a thread that need not be the runtime's.
    pub(crate) fn spawn_on(runtime: &Handle, future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(runtime.spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
