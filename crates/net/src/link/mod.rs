//! A link: whole frames over any byte carrier, each stream in order, with priorities, bounds, heartbeat and close.
//!
//! Owns: framing, whose segment is written next, noticing that the peer is gone and why.
//! Does not know: who the peer is allowed to be (`endpoint` decides before a link exists), or what frames mean.
//!
//! Pure parts: [`segment`] (bytes of a header), [`outbox`] (whose turn), [`inbox`] (putting together), [`heartbeat`].
//! Drivers: [`writer`] (with its [`alarm`]) and [`reader`], one task each, and [`pen`], with which a sender writes its own frame;
//! [`memory`] needs none.

mod alarm;
mod core;
mod heartbeat;
mod inbox;
mod memory;
mod outbox;
mod pen;
mod reader;
mod segment;
mod writer;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use protocol::NodeId;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

use self::{
    core::Core,
    memory::Direct,
    pen::{Begin, Pen},
};
use crate::{Purpose, Role, Shape};

pub use heartbeat::Heartbeat;
pub use memory::memory_pair;
pub use segment::SegmentError;

pub(crate) use outbox::Segment;
pub(crate) use segment::{HEADER, Header};

/// How a link behaves.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Beat; the other side then beats as well, in the same rhythm. Set by one side, the one that dials, on control
    /// links; a link that carries rows needs none.
    pub heartbeat: Option<Heartbeat>,
    /// Slow down what this side sends.
    pub shape: Option<Shape>,
    /// Bytes queued for sending at most. A frame of any legal size is taken while nothing is queued.
    pub outbox_bytes: usize,
    /// Bytes received and not yet taken at most; beyond it the link stops reading, and the peer's queue fills.
    pub inbox_bytes: usize,
    /// How long a close may take to write what is queued and to see the peer's end.
    pub close_within: Duration,
}

impl Default for LinkOptions {
    /// No heartbeat, no shape, 512 MiB out (two of the largest frames), 64 MiB in, 2 s to close.
    fn default() -> Self {
        Self {
            heartbeat: None,
            shape: None,
            outbox_bytes: 2 * protocol::limits::MAX_FRAME_BYTES,
            inbox_bytes: 64 << 20,
            close_within: Duration::from_secs(2),
        }
    }
}

/// Who is at the other end, proven by the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its key.
    pub node: NodeId,
    /// Its role.
    pub role: Role,
    /// What the dialling side wants of the other.
    pub purpose: Purpose,
    /// Where it is, for people.
    pub address: String,
}

/// How urgent a frame is once the earlier frames of its stream are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Before all bulk, in turn with other streams of this kind.
    Decode,
    /// Only when no stream's first frame is urgent.
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

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// One side closed the link, and said why.
    #[error("the link was closed: {reason}")]
    Closed {
        /// For people.
        reason: String,
    },
    /// The connection ended without a close: the process died, or the network cut it.
    #[error("the other side is gone")]
    PeerGone,
    /// No byte for too long: the process hangs or the machine is cut off.
    #[error("nothing was heard from the other side for {after:?}")]
    PeerSilent {
        /// The limit.
        after: Duration,
    },
    /// The operating system or TLS failed.
    #[error("the connection failed: {reason}")]
    Io {
        /// In the system's words.
        reason: String,
    },
    /// The peer broke the framing.
    #[error("the other side sent bytes that are not a frame: {0}")]
    Protocol(#[from] SegmentError),
}

/// Why a frame was not taken; the link itself goes on, except after [`SendError::Ended`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too much is queued: the peer reads more slowly than this side writes.
    #[error("{queued} bytes wait to be sent already, and the other side does not take them")]
    Full {
        /// Bytes in the queue.
        queued: usize,
    },
    /// Larger than [`protocol::limits::MAX_FRAME_BYTES`].
    #[error("a frame of {bytes} bytes is above the limit of {}", protocol::limits::MAX_FRAME_BYTES)]
    TooLarge {
        /// Head and body.
        bytes: usize,
    },
    /// 65,536 streams have frames queued.
    #[error("frames of too many streams wait to be sent")]
    TooManyStreams,
    /// The link has ended.
    #[error(transparent)]
    Ended(#[from] LinkError),
}

/// Counters of a link, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Smoothed round trip time; only with a heartbeat and once a ping was answered.
    pub rtt: Option<Duration>,
    /// Bytes that wait to be sent, with a small cost per frame.
    pub queued_bytes: usize,
    /// Frames taken for sending.
    pub frames_sent: u64,
    /// Frames received whole.
    pub frames_received: u64,
    /// Bytes handed to the carrier, headers included.
    pub bytes_sent: u64,
    /// Bytes taken from the carrier, headers included.
    pub bytes_received: u64,
}

/// A message-framed connection to a known peer.
#[derive(Debug)]
pub struct Link {
    sender: LinkSender,
    receiver: LinkReceiver,
}

impl Link {
    /// Frames over any carrier whose other end has been authenticated as `peer`. Must be called within a tokio runtime:
    /// it starts a writing and a reading task, which end with the link.
    pub fn over<C>(carrier: C, peer: PeerInfo, options: &LinkOptions) -> Self
    where
        C: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (read, write) = tokio::io::split(carrier);
        let core = Arc::new(Core::new(peer, options));
        let (queue, frames) = delivery(options.inbox_bytes);
        let pen = Arc::new(Pen::new(write, core.clone()));
        tokio::spawn(writer::run(pen.clone(), core.clone(), options.shape));
        tokio::spawn(reader::run(read, core.clone(), queue));
        // What a shaped link sends is held back first, which is the task's business.
        let pen = options.shape.is_none().then_some(pen as Arc<dyn Begin>);
        Self::assemble(Handle::Carried { core, pen }, frames)
    }

    fn assemble(handle: Handle, frames: Frames) -> Self {
        let handle = Arc::new(handle);
        Self { sender: LinkSender(handle.clone()), receiver: LinkReceiver { handle, frames } }
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        self.sender.peer()
    }

    /// The link as somebody sees it who must not keep it alive.
    pub(crate) fn weak(&self) -> WeakLink {
        WeakLink { node: self.peer().node, handle: Arc::downgrade(&self.sender.0) }
    }

    /// The two directions.
    #[must_use]
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        (self.sender, self.receiver)
    }
}

/// Closes the link when the last sender and the receiver are gone.
#[derive(Debug)]
enum Handle {
    Carried {
        core: Arc<Core>,
        /// With which senders write; none on a shaped link.
        pen: Option<Arc<dyn Begin>>,
    },
    Direct(Direct),
}

impl Handle {
    fn close(&self, reason: &str) {
        match self {
            Self::Carried { core, .. } => core.close(reason),
            Self::Direct(direct) => direct.close(reason),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close("the other side let go of the link");
    }
}

/// A link that may be over already, to end it.
#[derive(Debug)]
pub(crate) struct WeakLink {
    node: NodeId,
    handle: Weak<Handle>,
}

impl WeakLink {
    /// Who is at the other end.
    pub(crate) const fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.handle.strong_count() > 0
    }

    /// Ends it, as its peer is no member any more.
    pub(crate) fn end(&self) {
        if let Some(handle) = self.handle.upgrade() {
            tracing::warn!(node = %self.node.short(), "a link ends: the cluster's root has let its peer go");
            handle.close("the cluster's root has let this member go");
        }
    }
}

/// The sending half; cheap to clone. The link closes once every sender and the receiver are dropped.
#[derive(Clone, Debug)]
pub struct LinkSender(Arc<Handle>);

impl LinkSender {
    /// Queues one frame, `head` then `body`, behind the stream's earlier frames; never blocks and copies neither.
    /// Once those are written, it goes before all bulk, in turn with other streams.
    ///
    /// # Errors
    /// If the queue is full, the frame too large, or the link over. The frame is then not sent.
    pub fn send(&self, stream: u64, head: Bytes, body: Bytes) -> Result<(), SendError> {
        self.push(stream, Priority::Decode, head, body)
    }

    /// Like [`LinkSender::send`] for a frame that nobody waits for urgently: between two of its segments, other
    /// streams' urgent frames go first. A later frame of the same stream waits for it, however urgent.
    ///
    /// # Errors
    /// As [`LinkSender::send`].
    pub fn send_bulk(&self, stream: u64, head: Bytes, body: Bytes) -> Result<(), SendError> {
        self.push(stream, Priority::Bulk, head, body)
    }

    fn push(&self, stream: u64, priority: Priority, head: Bytes, body: Bytes) -> Result<(), SendError> {
        match &*self.0 {
            Handle::Carried { core, pen } => {
                core.send(stream, priority, head, body)?;
                if !pen.as_ref().is_some_and(|pen| pen.begin()) {
                    core.wake.notify_one();
                }
                Ok(())
            }
            Handle::Direct(direct) => direct.send(stream, head, body),
        }
    }

    /// Ends the link: what is queued is still written, then the reason, which the other side receives as
    /// [`LinkError::Closed`]. Reasons beyond 4096 bytes are cut. Only the first call counts.
    pub fn close(&self, reason: &str) {
        self.0.close(reason);
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        match &*self.0 {
            Handle::Carried { core, .. } => core.stats(),
            Handle::Direct(direct) => direct.stats(),
        }
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        match &*self.0 {
            Handle::Carried { core, .. } => core.peer(),
            Handle::Direct(direct) => direct.peer(),
        }
    }
}

/// The receiving half. Frames that come after it is dropped are read and thrown away.
#[derive(Debug)]
pub struct LinkReceiver {
    handle: Arc<Handle>,
    frames: Frames,
}

impl LinkReceiver {
    /// The next frame. Frames that arrived before the end still come first; after it, the same error each time. Cancel
    /// safe.
    ///
    /// # Errors
    /// Why the link ended.
    pub async fn recv(&mut self) -> Result<Received, LinkError> {
        match self.frames.queue.recv().await {
            Some((frame, _room)) => Ok(frame),
            None => Err(match &*self.handle {
                Handle::Carried { core, .. } => core.end(),
                Handle::Direct(direct) => direct.end(),
            }),
        }
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        match &*self.handle {
            Handle::Carried { core, .. } => core.peer(),
            Handle::Direct(direct) => direct.peer(),
        }
    }
}

/// Bytes per permit of an inbox.
const ROOM_UNIT: usize = 1 << 10;

/// A received frame, and the room in the inbox that it takes until it is taken.
type Delivery = (Received, OwnedSemaphorePermit);

/// Where received frames are put: unbounded in itself, bounded by `room`.
#[derive(Clone, Debug)]
struct Queue {
    tx: mpsc::UnboundedSender<Delivery>,
    room: Arc<Semaphore>,
    limit: u32,
}

impl Queue {
    /// Permits that a frame takes; one that is larger than the inbox takes the whole of it.
    fn cost(&self, frame: &Received) -> u32 {
        u32::try_from(frame.bytes.len() / ROOM_UNIT + 1).unwrap_or(u32::MAX).min(self.limit)
    }
}

/// Where received frames are taken from.
#[derive(Debug)]
struct Frames {
    queue: mpsc::UnboundedReceiver<Delivery>,
    room: Arc<Semaphore>,
}

impl Drop for Frames {
    /// Whoever waits for room learns that there is nobody left to make any.
    fn drop(&mut self) {
        self.room.close();
    }
}

fn delivery(inbox_bytes: usize) -> (Queue, Frames) {
    let limit = u32::try_from(inbox_bytes / ROOM_UNIT).unwrap_or(u32::MAX).clamp(1, 1 << 28);
    let room = Arc::new(Semaphore::new(limit as usize));
    let (tx, queue) = mpsc::unbounded_channel();
    (Queue { tx, room: room.clone(), limit }, Frames { queue, room })
}

#[cfg(test)]
mod tests;
