//! Skeleton.
use crate::{Role, Shape};
use bytes::Bytes;
use protocol::NodeId;
use std::time::Duration;

/// How soon a frozen peer is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Between two pings.
    pub interval: Duration,
    /// Silence after which the peer counts as dead.
    pub dead_after: Duration,
}

/// How a link behaves.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Beat; the other side then beats too. Set by the side that dials, on control links.
    pub heartbeat: Option<Heartbeat>,
    /// Slow down what is sent.
    pub shape: Option<Shape>,
    /// Bytes queued for sending at most (one frame of any legal size is always taken when nothing is queued).
    pub outbox_bytes: usize,
    /// Bytes received and not yet taken at most; beyond it the link stops reading.
    pub inbox_bytes: usize,
    /// How long a close may take to write what is queued.
    pub close_within: Duration,
}

/// Who is at the other end, proven by the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its key.
    pub node: NodeId,
    /// Its role.
    pub role: Role,
    /// Where it is, for people.
    pub address: String,
}

/// Whose segments go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Before all bulk.
    #[default]
    Decode,
    /// When no decode frame waits.
    Bulk,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Whose.
    pub stream: u64,
    /// Head and body as one.
    pub bytes: Bytes,
}

/// Bytes that are no segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placeholder")]
pub struct SegmentError;

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// By a close frame, of either side.
    #[error("{reason}")]
    Closed {
        /// For people.
        reason: String,
    },
    /// The connection ended without a close frame: the process died or the network cut it.
    #[error("the connection was lost")]
    PeerGone,
    /// No byte for too long.
    #[error("silent for {after:?}")]
    PeerSilent {
        /// The limit.
        after: Duration,
    },
    /// The operating system failed.
    #[error("{reason}")]
    Io {
        /// In the system's words.
        reason: String,
    },
    /// The peer broke the format.
    #[error(transparent)]
    Protocol(#[from] SegmentError),
}

/// Why a frame was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too much is queued.
    #[error("{queued} bytes are queued")]
    Full {
        /// Bytes in the queue.
        queued: usize,
    },
    /// Larger than a frame may be.
    #[error("{bytes} bytes")]
    TooLarge {
        /// Head and body.
        bytes: usize,
    },
    /// Streams with state at once.
    #[error("too many streams")]
    TooManyStreams,
    /// The link ended.
    #[error(transparent)]
    Ended(#[from] LinkError),
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Smoothed round trip; only with a heartbeat.
    pub rtt: Option<Duration>,
    /// Bytes queued.
    pub queued_bytes: usize,
    /// Frames accepted for sending.
    pub frames_sent: u64,
    /// Frames received whole.
    pub frames_received: u64,
    /// Bytes written, headers included.
    pub bytes_sent: u64,
    /// Bytes read, headers included.
    pub bytes_received: u64,
}

/// An authenticated, ordered, message-framed connection.
#[derive(Debug)]
pub struct Link(());

impl Link {
    /// Who is at the other end.
    pub fn peer(&self) -> &PeerInfo {
        unimplemented!()
    }
    /// Both directions.
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        unimplemented!()
    }
}

/// Sends. Cheap to clone. When every sender and the receiver are dropped, the link closes.
#[derive(Clone, Debug)]
pub struct LinkSender(());

impl LinkSender {
    /// Queues one frame; never blocks.
    ///
    /// # Errors
    pub fn send(&self, _stream: u64, _head: Bytes, _body: Bytes) -> Result<(), SendError> {
        unimplemented!()
    }
    /// Of the stream's queued and later frames.
    pub fn set_priority(&self, _stream: u64, _priority: Priority) {
        unimplemented!()
    }
    /// Forgets the stream once its queue is written.
    pub fn end_stream(&self, _stream: u64) {
        unimplemented!()
    }
    /// Writes what is queued, tells the reason, ends the link.
    pub fn close(&self, _reason: &str) {
        unimplemented!()
    }
    /// Counters.
    pub fn stats(&self) -> LinkStats {
        unimplemented!()
    }
    /// Who is at the other end.
    pub fn peer(&self) -> &PeerInfo {
        unimplemented!()
    }
}

/// Receives.
#[derive(Debug)]
pub struct LinkReceiver(());

impl LinkReceiver {
    /// The next frame; after the end, the same error each time. Cancel safe.
    ///
    /// # Errors
    pub async fn recv(&mut self) -> Result<Received, LinkError> {
        unimplemented!()
    }
    /// Who is at the other end.
    pub fn peer(&self) -> &PeerInfo {
        unimplemented!()
    }
}

/// Two ends of a link inside one process; `a` describes the first end's owner, and is thus what the second end's `peer` says.
pub fn memory_pair(_a: PeerInfo, _b: PeerInfo, _options: &LinkOptions) -> (Link, Link) {
    unimplemented!()
}
