//! What the handles of a link and its two tasks share: the queues, the heartbeat, and how far the end has come.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    Heartbeat, LinkError, LinkOptions, LinkStats, PeerInfo, Priority, SendError,
    heartbeat::Pinger,
    outbox::{Outbox, PushError, Segment},
    segment::MAX_SEGMENT,
};

/// Small segments that are written at once at most.
const MAX_BATCH: usize = 32;

/// How far the end of a link has come; only ever moves down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Frames flow.
    Open,
    /// This side has closed; what is queued is being written.
    Closing(LinkError),
    /// The writer is through, by its own fault or because the close is out; the reader looks for the peer's last words.
    Written(LinkError),
    /// Over.
    Ended(LinkError),
}

impl Phase {
    const fn rank(&self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Closing(_) => 1,
            Self::Written(_) => 2,
            Self::Ended(_) => 3,
        }
    }

    /// Why the link is ending, if it is.
    pub(super) const fn error(&self) -> Option<&LinkError> {
        match self {
            Self::Open => None,
            Self::Closing(error) | Self::Written(error) | Self::Ended(error) => Some(error),
        }
    }
}

#[derive(Debug)]
struct Outgoing {
    outbox: Outbox,
    pinger: Option<Pinger>,
}

/// What the writer does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Write these segments, at most [`MAX_SEGMENT`] bytes unless there is only one.
    Write(Vec<Segment>),
    /// Nothing to write before this time, or before the writer is woken.
    Wait(Option<Instant>),
    /// The close was the last segment taken.
    Finished,
}

#[derive(Debug)]
pub(super) struct Core {
    peer: PeerInfo,
    started: Instant,
    close_within: Duration,
    outgoing: Mutex<Outgoing>,
    /// Wakes the writer: there is something to write, or to ping.
    pub(super) wake: Notify,
    phase: watch::Sender<Phase>,
    frames_sent: AtomicU64,
    pub(super) frames_received: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    pub(super) bytes_received: AtomicU64,
}

impl Core {
    pub(super) fn new(peer: PeerInfo, options: &LinkOptions) -> Self {
        let pinger = options.heartbeat.map(|beat| Pinger::new(beat, Duration::ZERO));
        Self {
            peer,
            started: Instant::now(),
            close_within: options.close_within,
            outgoing: Mutex::new(Outgoing { outbox: Outbox::new(options.outbox_bytes), pinger }),
            wake: Notify::new(),
            phase: watch::Sender::new(Phase::Open),
            frames_sent: AtomicU64::new(0),
            frames_received: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
        }
    }

    pub(super) const fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    pub(super) const fn close_within(&self) -> Duration {
        self.close_within
    }

    /// Time since the link began, as the pure parts count it.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn instant(&self, since_start: Duration) -> Instant {
        self.started + since_start
    }

    /// Queues a frame; to write it, or wake the writer, is left to the caller.
    pub(super) fn send(
        &self,
        stream: u64,
        priority: Priority,
        head: Bytes,
        body: Bytes,
    ) -> Result<(), SendError> {
        // Looked up under the lock, so that nothing is queued behind a close.
        let mut outgoing = self.outgoing();
        if let Some(error) = self.phase.borrow().error() {
            return Err(error.clone().into());
        }
        outgoing.outbox.push(stream, priority, head, body).map_err(|error| match error {
            PushError::Full { queued } => SendError::Full { queued },
            PushError::TooLarge { bytes } => SendError::TooLarge { bytes },
            PushError::TooManyStreams => SendError::TooManyStreams,
        })?;
        drop(outgoing);
        self.frames_sent.fetch_add(1, Relaxed);
        Ok(())
    }

    pub(super) fn close(&self, reason: &str) {
        self.refuse(&LinkError::Closed { reason: reason.to_owned() }, reason);
    }

    /// Begins to end the link for `error` and tells the peer `reason`; false if it is ending already.
    pub(super) fn refuse(&self, error: &LinkError, reason: &str) -> bool {
        let mut outgoing = self.outgoing();
        let first = self.advance(Phase::Closing(error.clone()));
        if first {
            outgoing.outbox.close(reason);
            drop(outgoing);
            self.wake.notify_one();
        }
        first
    }

    /// Moves on to a later phase; says whether it did.
    pub(super) fn advance(&self, phase: Phase) -> bool {
        self.phase.send_if_modified(|current| {
            let later = phase.rank() > current.rank();
            if later {
                *current = phase;
            }
            later
        })
    }

    pub(super) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Why the link ended or is ending.
    pub(super) fn end(&self) -> LinkError {
        self.phase.borrow().error().cloned().unwrap_or(LinkError::PeerGone)
    }

    pub(super) fn stats(&self) -> LinkStats {
        let outgoing = self.outgoing();
        LinkStats {
            rtt: outgoing.pinger.as_ref().and_then(Pinger::rtt),
            queued_bytes: outgoing.outbox.queued(),
            frames_sent: self.frames_sent.load(Relaxed),
            frames_received: self.frames_received.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
        }
    }

    /// The segments that leave now. `may_send` is false while a shaped link has no room for more.
    pub(super) fn next(&self, may_send: bool) -> Next {
        let now = self.now();
        let mut outgoing = self.outgoing();
        let Outgoing { outbox, pinger } = &mut *outgoing;
        if let Some(pinger) = pinger
            && let Some(number) = pinger.due(now)
        {
            outbox.ping(number, pinger.beat());
        }
        if may_send {
            let mut batch = Vec::new();
            let mut bytes = 0;
            while batch.len() < MAX_BATCH && bytes < MAX_SEGMENT {
                let Some(segment) = outbox.next_within(MAX_SEGMENT - bytes) else { break };
                bytes += segment.len();
                batch.push(segment);
            }
            if !batch.is_empty() {
                return Next::Write(batch);
            }
            if outbox.is_finished() {
                return Next::Finished;
            }
        }
        Next::Wait(pinger.as_ref().map(|pinger| self.instant(pinger.next_at())))
    }

    pub(super) fn has_next(&self) -> bool {
        self.outgoing().outbox.has_next()
    }

    pub(super) fn pinged(&self, number: u64, beat: Heartbeat) {
        let now = self.now();
        let mut outgoing = self.outgoing();
        outgoing.outbox.pong(number);
        outgoing.pinger.get_or_insert_with(|| Pinger::new(beat, now));
        drop(outgoing);
        self.wake.notify_one();
    }

    pub(super) fn ponged(&self, number: u64) {
        let now = self.now();
        if let Some(pinger) = &mut self.outgoing().pinger {
            pinger.answered(number, now);
        }
    }

    /// How long the peer may be silent; `None` while nobody beats.
    pub(super) fn dead_after(&self) -> Option<Duration> {
        self.outgoing().pinger.as_ref().map(|pinger| pinger.beat().dead_after)
    }

    /// A panic while the lock was held left whole values behind: nothing in these structures spans two of them.
    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
