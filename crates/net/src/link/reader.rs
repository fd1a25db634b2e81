//! The task that reads: hands frames over, answers pings, and finds out why the link ended. It alone ends a link.

use std::{future::pending, io, sync::Arc, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadHalf},
    sync::{TryAcquireError, watch},
    time::{Instant, sleep, sleep_until},
};

use super::{
    LinkError, Queue, Received,
    core::{Core, Phase},
    inbox::{Event, Inbox},
};

pub(super) async fn run<C: AsyncRead>(carrier: ReadHalf<C>, core: Arc<Core>, queue: Queue) {
    let phase = core.phase();
    let mut reader = Reader {
        carrier,
        core: core.clone(),
        queue,
        inbox: Inbox::default(),
        over: Over { phase, at: None },
    };
    let found = reader.read().await;
    let Reader { carrier, queue, over, .. } = reader;
    if let LinkError::Protocol(error) = &found
        && core.refuse(&found, &format!("this side received bytes that are not a frame: {error}"))
    {
        // The receiver learns of it at once; the peer is told as long as it listens.
        drop(queue);
        drain(carrier, over, core.close_within()).await;
        core.advance(Phase::Ended(found));
        return;
    }
    let error = match (core.phase().borrow().error(), found) {
        // Only the peer's own words count for more than what this side knows already.
        (Some(LinkError::PeerGone | LinkError::Io { .. }), found @ LinkError::Closed { .. }) => found,
        (Some(known), _) => known.clone(),
        (None, found) => found,
    };
    core.advance(Phase::Ended(error));
}

/// What a failed read or write says of the link.
pub(super) fn io_error(error: &io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => LinkError::PeerGone,
        _ => LinkError::Io { reason: error.to_string() },
    }
}

/// Reads on without looking, so that what this side still writes is not lost to a reset.
async fn drain<C: AsyncRead>(mut carrier: ReadHalf<C>, mut over: Over, within: Duration) {
    let mut scrap = vec![0; 4096];
    loop {
        tokio::select! {
            read = carrier.read(&mut scrap) => if !matches!(read, Ok(n) if n > 0) { return },
            () = over.wait(within) => return,
        }
    }
}

/// The limit on a link that is ending.
struct Over {
    phase: watch::Receiver<Phase>,
    at: Option<Instant>,
}

impl Over {
    /// Returns `within` after the link began to end. Cancel safe.
    async fn wait(&mut self, within: Duration) {
        let at = match self.at {
            Some(at) => at,
            None => {
                if self.phase.wait_for(|phase| phase.error().is_some()).await.is_err() {
                    return;
                }
                *self.at.insert(Instant::now() + within)
            }
        };
        sleep_until(at).await;
    }
}

/// The peer's silence is counted in this many steps. However long a machine was suspended or out of processor time, it
/// counts as one of them: in that time this side could not have heard the peer, nor perhaps the peer have spoken.
const SILENT_STEPS: u32 = 4;

struct Reader<C> {
    carrier: ReadHalf<C>,
    core: Arc<Core>,
    queue: Queue,
    inbox: Inbox,
    over: Over,
}

impl<C: AsyncRead> Reader<C> {
    /// Reads until the link is over, and says why it is.
    async fn read(&mut self) -> LinkError {
        loop {
            loop {
                match self.inbox.next() {
                    Ok(Some(Event::Frame(frame))) => {
                        if !self.deliver(frame).await {
                            return self.core.end();
                        }
                    }
                    Ok(Some(Event::Ping { number, beat })) => self.core.pinged(number, beat),
                    Ok(Some(Event::Pong { number })) => self.core.ponged(number),
                    Ok(Some(Event::Close { reason })) => return LinkError::Closed { reason },
                    Ok(None) => break,
                    Err(error) => return error.into(),
                }
            }
            let dead_after = self.core.dead_after();
            let silence = async {
                let Some(after) = dead_after else { return pending().await };
                for _ in 0..SILENT_STEPS {
                    sleep(after / SILENT_STEPS).await;
                }
                after
            };
            tokio::select! {
                // A byte that is there counts, even if this process itself stood still for too long.
                biased;
                read = self.carrier.read_buf(self.inbox.room()) => match read {
                    Ok(0) => return LinkError::PeerGone,
                    Ok(n) => {
                        self.core.bytes_received.fetch_add(n as u64, Relaxed);
                    }
                    Err(error) => return io_error(&error),
                },
                after = silence => return LinkError::PeerSilent { after },
                () = self.over.wait(self.core.close_within()) => return self.core.end(),
            }
        }
    }

    /// Hands a frame over, waiting for room; false once the link is over. While this side does not read, it cannot hear
    /// the peer either, but the silence is counted from the next read on.
    async fn deliver(&mut self, frame: Received) -> bool {
        self.core.frames_received.fetch_add(1, Relaxed);
        let cost = self.queue.cost(&frame);
        let room = match self.queue.room.clone().try_acquire_many_owned(cost) {
            Ok(room) => Some(room),
            Err(TryAcquireError::Closed) => None,
            Err(TryAcquireError::NoPermits) => tokio::select! {
                room = self.queue.room.clone().acquire_many_owned(cost) => room.ok(),
                () = self.over.wait(self.core.close_within()) => return false,
            },
        };
        // Without a receiver the frame is thrown away; the link goes on for what is sent.
        if let Some(room) = room {
            self.queue.tx.send((frame, room)).ok();
        }
        true
    }
}
