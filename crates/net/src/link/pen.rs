//! The writing end of a carrier, one batch of segments at a time.
//!
//! It is shared by the writing task and by whoever sends: a sender whose frame finds nothing under way begins to write
//! it on the spot. To wake the task for that would cost another thread's wake-up on every hop, which is a good part of
//! what a token costs between two stages. A carrier that does not take everything at once is left to the task.

use std::{
    fmt, io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncWrite, WriteHalf};

use super::{
    core::{Core, Next},
    outbox::Segment,
};

/// What a sender needs of it.
pub(super) trait Begin: fmt::Debug + Send + Sync {
    /// Writes one batch of what is queued, as far as the carrier takes it without waiting. False if anything is left
    /// to do: the writing task must be woken.
    fn begin(&self) -> bool;
}

/// The writing end and its lock.
pub(super) struct Pen<C> {
    core: Arc<Core>,
    hand: Mutex<Hand<C>>,
}

struct Hand<C> {
    /// None once the link has ended.
    carrier: Option<WriteHalf<C>>,
    /// What is being written; empty if nothing is.
    batch: Vec<Segment>,
    /// Bytes of it that the carrier has taken.
    written: usize,
    /// Whether the carrier may hold back something that it has taken.
    unflushed: bool,
    /// What went wrong while a sender wrote.
    failed: Option<io::Error>,
}

impl<C: AsyncWrite> Pen<C> {
    pub(super) const fn new(carrier: WriteHalf<C>, core: Arc<Core>) -> Self {
        let hand =
            Hand { carrier: Some(carrier), batch: Vec::new(), written: 0, unflushed: false, failed: None };
        Self { core, hand: Mutex::new(hand) }
    }

    /// Finishes what is being written, then writes all that is queued; what to do next.
    pub(super) fn poll_queued(&self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let mut hand = self.lock();
        loop {
            ready!(hand.poll(cx, &self.core))?;
            // Asked for under the lock: two writers must not take segments in one order and write them in another.
            match self.core.next(true) {
                Next::Write(batch) => hand.batch = batch,
                other => return Poll::Ready(Ok(other)),
            }
        }
    }

    /// Has this batch written next. Only for a link whose senders do not write.
    pub(super) fn take(&self, batch: Vec<Segment>) {
        self.lock().batch = batch;
    }

    /// Finishes what is being written.
    pub(super) fn poll_taken(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().poll(cx, &self.core)
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.lock().carrier {
            Some(carrier) => Pin::new(carrier).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<C> Pen<C> {
    /// Lets go of the carrier, whoever else still holds the pen.
    pub(super) fn drop_carrier(&self) {
        let carrier = self.lock().carrier.take();
        drop(carrier);
    }

    /// A panic while it was held leaves a batch half written, which the next writer goes on with.
    fn lock(&self) -> MutexGuard<'_, Hand<C>> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: AsyncWrite + Send> Begin for Pen<C> {
    fn begin(&self) -> bool {
        // Whoever holds it, or left something unfinished, may have looked into the queue already.
        let Ok(mut hand) = self.hand.try_lock() else { return false };
        if hand.is_busy() {
            return false;
        }
        let Next::Write(batch) = self.core.next(true) else { return false };
        hand.batch = batch;
        match hand.poll(&mut Context::from_waker(Waker::noop()), &self.core) {
            Poll::Ready(Ok(())) => !self.core.has_next(),
            Poll::Ready(Err(error)) => {
                hand.failed = Some(error);
                false
            }
            Poll::Pending => false,
        }
    }
}

impl<C> fmt::Debug for Pen<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pen").finish_non_exhaustive()
    }
}

impl<C> Hand<C> {
    const fn is_busy(&self) -> bool {
        !self.batch.is_empty() || self.unflushed || self.failed.is_some()
    }
}

impl<C: AsyncWrite> Hand<C> {
    /// Ready once nothing is under way.
    fn poll(&mut self, cx: &mut Context<'_>, core: &Core) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let Some(carrier) = &mut self.carrier else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if !self.batch.is_empty() {
            let pieces = self.batch.iter().flat_map(Segment::slices);
            let mut slices: Vec<_> = pieces.filter(|slice| !slice.is_empty()).collect();
            let mut rest = &mut slices[..];
            io::IoSlice::advance_slices(&mut rest, self.written);
            while !rest.is_empty() {
                let taken = ready!(Pin::new(&mut *carrier).poll_write_vectored(cx, rest))?;
                if taken == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += taken;
                io::IoSlice::advance_slices(&mut rest, taken);
            }
            core.bytes_sent.fetch_add(self.written as u64, Relaxed);
            self.batch.clear();
            self.written = 0;
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(carrier).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
