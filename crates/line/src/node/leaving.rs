//! That a node's process was told to end, and who waits until it may.
//!
//! Pure. Does not know whether a front needs the node.

use tokio::sync::oneshot;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    is_asked: bool,
    waits: Option<oneshot::Sender<()>>,
}

impl Leaving {
    /// The process was told to end.
    pub(super) fn ask(&mut self, waits: oneshot::Sender<()>) {
        (self.is_asked, self.waits) = (true, Some(waits));
    }

    /// Whether it was.
    pub(super) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Nobody needs the node: if the process was told to end, it may.
    pub(super) fn may_go(&mut self) {
        if let Some(waits) = self.waits.take() {
            // Who does not wait any more has ended the node.
            let _ = waits.send(());
        }
    }
}
