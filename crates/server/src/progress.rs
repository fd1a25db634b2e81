//! How far a prompt has come on the line, for clients that want to see it.
//!
//! Owns: which of the line's movements say so. Has no clock: times are the line's own.

use std::time::Duration;

use scheduler::{Moved, Movement, RequestId};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::Line;

/// How far a prompt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Tokens of the prompt.
    pub total: u32,
    /// Of those, resident before.
    pub cached: u32,
    /// Of those, through every stage; the resident ones too.
    pub done: u32,
    /// Since its first piece was sent.
    pub took: Duration,
}

/// The pieces of one prompt on their way.
pub(crate) struct Pieces {
    movements: broadcast::Receiver<Movement>,
    /// When the first one was sent.
    began: Option<Duration>,
}

impl Pieces {
    /// Of a request that is still to be submitted, so that none is missed.
    pub(crate) fn on(line: &dyn Line) -> Self {
        Self { movements: line.watch().movements, began: None }
    }

    /// Waits until one more is through, for ever if none is to come: one past its last position, and how long all of
    /// them have taken. May be given up at any time.
    pub(crate) async fn next(&mut self, request: RequestId) -> (u32, Duration) {
        loop {
            match self.movements.recv().await {
                Ok(movement) if movement.request == request => match movement.what {
                    Moved::Chunk { .. } => {
                        self.began.get_or_insert(movement.at);
                    }
                    Moved::Progress { end } => {
                        return (end, movement.at.saturating_sub(self.began.unwrap_or(movement.at)));
                    }
                    Moved::Window { .. } | Moved::Verdict { .. } | Moved::Over => {}
                },
                // A later piece says more than one that was missed.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}
