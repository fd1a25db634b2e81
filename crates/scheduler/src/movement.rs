//! What moves along the line, for people who watch it.
//!
//! Owns: how work and reports look to somebody who only watches. Nothing depends on it, and a watcher may miss some.

use std::time::Duration;

use protocol::{Report, Work};

use crate::RequestId;

/// One thing that left the front, or came back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movement {
    /// Since the front's start.
    pub at: Duration,
    /// Whose it is.
    pub request: RequestId,
    /// What happened.
    pub what: Moved,
}

/// See [`Movement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// A piece of a prompt was sent.
    Chunk {
        /// One past its last position; [`Moved::Progress`] names it by that.
        end: u32,
        /// Its tokens.
        rows: u32,
    },
    /// A piece of a prompt, and all before it, has passed through every stage.
    Progress {
        /// One past the last position computed.
        end: u32,
    },
    /// A window was sent. Those of the same request with a lower epoch are stale from now on.
    Window {
        /// Its number within the request.
        window: u32,
        /// The period in which it was sent.
        epoch: u32,
        /// Its tokens.
        rows: u32,
    },
    /// A window was answered.
    Verdict {
        /// Its number within the request.
        window: u32,
        /// Tokens that it has brought.
        tokens: u32,
    },
    /// The sequence is over: what of it is still under way is stale.
    Over,
}

impl Moved {
    /// What a watcher sees of work that is sent; nothing of what only prepares.
    #[must_use]
    pub fn sent(work: &Work) -> Option<Self> {
        let rows = work.tokens().len() as u32;
        match work {
            Work::Chunk(chunk) => Some(Self::Chunk { end: chunk.base.0.saturating_add(rows), rows }),
            Work::Window(window) => {
                Some(Self::Window { window: window.window.0, epoch: window.epoch.0, rows })
            }
            Work::Park(_) | Work::Close(_) => Some(Self::Over),
            Work::Open(_) => None,
        }
    }

    /// What a watcher sees of a report, and of which sequence.
    #[must_use]
    pub fn heard(report: &Report) -> Option<(protocol::SeqId, Self)> {
        match report {
            Report::Verdict(verdict) => {
                let tokens = verdict.tokens.len() as u32;
                Some((verdict.seq, Self::Verdict { window: verdict.window.0, tokens }))
            }
            Report::Progress(progress) => Some((progress.seq, Self::Progress { end: progress.next.0 })),
            Report::State(_)
            | Report::Prompt(_)
            | Report::Draft(_)
            | Report::Closed(_)
            | Report::Fault(_)
            | Report::Counters(_)
            | Report::Leaving
            | Report::Notice(_)
            | Report::Stored(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Chunk, Close, Epoch, Position, Progress, SeqId, Token, Window, WindowId};

    use super::*;

    #[test]
    fn a_chunk_is_known_by_its_end_and_a_window_by_its_number() {
        let (seq, tokens) = (SeqId(7), vec![Token(1), Token(2)]);
        let chunk = Work::Chunk(Chunk { seq, base: Position(10), tokens: tokens.clone(), follows: None });
        assert_eq!(Moved::sent(&chunk), Some(Moved::Chunk { end: 12, rows: 2 }));
        let progress = Report::Progress(Progress { seq, next: Position(12), timings: Vec::new() });
        assert_eq!(Moved::heard(&progress), Some((seq, Moved::Progress { end: 12 })));
        let window = Work::Window(Window {
            seq,
            epoch: Epoch(3),
            window: WindowId(5),
            base: Position(12),
            tokens,
            run_ahead: true,
            want_draft: None,
        });
        assert_eq!(Moved::sent(&window), Some(Moved::Window { window: 5, epoch: 3, rows: 2 }));
        let close = Work::Close(Close { seq, inputs: Position(14) });
        assert_eq!(Moved::sent(&close), Some(Moved::Over));
        assert_eq!(Moved::heard(&Report::Closed(seq)), None);
    }
}
