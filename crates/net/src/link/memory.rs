//! A link inside one process: frames go from queue to queue as they are, without tasks, segments or a carrier.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::{BufMut, Bytes, BytesMut};
use protocol::limits::MAX_FRAME_BYTES;
use tokio::{
    io::duplex,
    sync::{Semaphore, TryAcquireError},
};

use super::{
    Handle, Link, LinkError, LinkOptions, LinkStats, PeerInfo, Queue, ROOM_UNIT, Received, SendError,
    delivery,
};

/// Bytes between the two ends of a shaped pair.
const PIPE: usize = 256 << 10;

/// Two ends of a link in one process. The first end belongs to `a` and sees `b` as its peer; the second the other way
/// round. With a shape, frames go through a pipe and are cut, ordered and delayed as on a network; this needs a tokio
/// runtime. Without, they are handed over at once: priorities and the heartbeat have nothing to do, and what waits is
/// bounded by `inbox_bytes` alone.
#[must_use]
pub fn memory_pair(a: PeerInfo, b: PeerInfo, options: &LinkOptions) -> (Link, Link) {
    if options.shape.is_some() {
        let (left, right) = duplex(PIPE);
        return (Link::over(left, b, options), Link::over(right, a, options));
    }
    let (to_b, at_b) = delivery(options.inbox_bytes);
    let (to_a, at_a) = delivery(options.inbox_bytes);
    let pipe = Arc::new(Pipe { lanes: [Lane::new(to_b), Lane::new(to_a)], end: OnceLock::new() });
    let first = Direct { pipe: pipe.clone(), side: 0, peer: b };
    let second = Direct { pipe, side: 1, peer: a };
    (Link::assemble(Handle::Direct(first), at_a), Link::assemble(Handle::Direct(second), at_b))
}

/// What both ends share.
#[derive(Debug)]
struct Pipe {
    /// What the first and what the second end sends.
    lanes: [Lane; 2],
    end: OnceLock<LinkError>,
}

#[derive(Debug)]
struct Lane {
    /// Empty once the link has ended.
    queue: Mutex<Option<Queue>>,
    room: Arc<Semaphore>,
    limit: u32,
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl Lane {
    fn new(queue: Queue) -> Self {
        Self {
            room: queue.room.clone(),
            limit: queue.limit,
            queue: Mutex::new(Some(queue)),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    fn queued(&self) -> usize {
        (self.limit as usize).saturating_sub(self.room.available_permits()) * ROOM_UNIT
    }
}

/// One end.
#[derive(Debug)]
pub(super) struct Direct {
    pipe: Arc<Pipe>,
    side: usize,
    peer: PeerInfo,
}

impl Direct {
    pub(super) const fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    pub(super) fn send(&self, stream: u64, head: Bytes, body: Bytes) -> Result<(), SendError> {
        let bytes = head.len() + body.len();
        if bytes > MAX_FRAME_BYTES {
            return Err(SendError::TooLarge { bytes });
        }
        let lane = &self.pipe.lanes[self.side];
        // Held while the frame is put in, so that two senders of one stream agree on an order.
        let queue = lane.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = &*queue else { return Err(self.end().into()) };
        let frame = Received { stream, bytes: join(head, body) };
        match queue.room.clone().try_acquire_many_owned(queue.cost(&frame)) {
            Ok(room) => {
                // A receiver that is gone takes frames like one that drops them.
                queue.tx.send((frame, room)).ok();
            }
            Err(TryAcquireError::Closed) => {}
            Err(TryAcquireError::NoPermits) => return Err(SendError::Full { queued: lane.queued() }),
        }
        lane.frames.fetch_add(1, Relaxed);
        lane.bytes.fetch_add(bytes as u64, Relaxed);
        Ok(())
    }

    pub(super) fn close(&self, reason: &str) {
        // The first reason stands.
        self.pipe.end.set(LinkError::Closed { reason: reason.to_owned() }).ok();
        for lane in &self.pipe.lanes {
            lane.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    pub(super) fn end(&self) -> LinkError {
        self.pipe.end.get().cloned().unwrap_or(LinkError::PeerGone)
    }

    pub(super) fn stats(&self) -> LinkStats {
        let (out, back) = (&self.pipe.lanes[self.side], &self.pipe.lanes[1 - self.side]);
        LinkStats {
            rtt: None,
            queued_bytes: out.queued(),
            frames_sent: out.frames.load(Relaxed),
            frames_received: back.frames.load(Relaxed),
            bytes_sent: out.bytes.load(Relaxed),
            bytes_received: back.bytes.load(Relaxed),
        }
    }
}

/// One frame of two parts; copies only if neither is empty.
fn join(head: Bytes, body: Bytes) -> Bytes {
    if body.is_empty() {
        return head;
    }
    if head.is_empty() {
        return body;
    }
    let mut whole = BytesMut::with_capacity(head.len() + body.len());
    whole.put(head);
    whole.put(body);
    whole.freeze()
}
