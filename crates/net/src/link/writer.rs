//! The task that writes what senders could not write themselves: one vectored write per batch of segments, shaped if
//! asked.

use std::{collections::VecDeque, future::poll_fn, io, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWrite,
    time::{Instant, sleep_until},
};

use super::{
    LinkError,
    alarm::Alarm,
    core::{Core, Next, Phase},
    outbox::Segment,
    pen::Pen,
};
use crate::shape::{Shape, Shaper};

/// Bytes on their way through a shaped link at most: 10 Gbit/s for 50 ms.
const MAX_ON_THE_WAY: usize = 64 << 20;

pub(super) async fn run<C: AsyncWrite>(pen: Arc<Pen<C>>, core: Arc<Core>, shape: Option<Shape>) {
    let mut phase = core.phase();
    let mut writer = Writer { pen, core: core.clone(), lane: shape.map(Lane::new), alarm: Alarm::default() };
    let failed = tokio::select! {
        biased;
        outcome = writer.run() => outcome.err(),
        _ = phase.wait_for(|phase| matches!(phase, Phase::Ended(_))) => return,
    };
    let already = core.phase().borrow().error().cloned();
    let error = already.or_else(|| failed.as_ref().map(super::reader::io_error));
    core.advance(Phase::Written(error.unwrap_or(LinkError::PeerGone)));
}

struct Writer<C> {
    pen: Arc<Pen<C>>,
    core: Arc<Core>,
    lane: Option<Lane>,
    alarm: Alarm,
}

/// Senders may hold the pen for long, but the carrier ends with its task.
impl<C> Drop for Writer<C> {
    fn drop(&mut self) {
        self.pen.drop_carrier();
    }
}

impl<C: AsyncWrite> Writer<C> {
    /// Writes until the close is out.
    async fn run(&mut self) -> io::Result<()> {
        loop {
            let next = match &mut self.lane {
                None => poll_fn(|cx| self.pen.poll_queued(cx)).await?,
                Some(lane) => {
                    let now = self.core.now();
                    if let Some(batch) = lane.arrived(now) {
                        self.pen.take(batch);
                        poll_fn(|cx| self.pen.poll_taken(cx)).await?;
                        continue;
                    }
                    match self.core.next(lane.has_room(now)) {
                        Next::Write(batch) => {
                            lane.depart(now, batch);
                            continue;
                        }
                        other => other,
                    }
                }
            };
            match next {
                Next::Finished if self.lane.as_ref().is_none_or(Lane::is_empty) => {
                    return poll_fn(|cx| self.pen.poll_shutdown(cx)).await;
                }
                Next::Wait(until) => self.wait(until).await,
                Next::Finished | Next::Write(_) => self.wait(None).await,
            }
        }
    }

    /// Waits until woken, until `until`, or until the lane has something to do.
    async fn wait(&mut self, until: Option<Instant>) {
        let lane = self.lane.as_ref().and_then(|lane| lane.next_at(self.core.has_next()));
        let lane = lane.map(|at| self.core.instant(at));
        let alarm = &mut self.alarm;
        let timer = async {
            match (until, lane) {
                (until, Some(lane)) if until.is_none_or(|until| lane <= until) => alarm.wait(lane).await,
                (Some(until), _) => sleep_until(until).await,
                (None, _) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.core.wake.notified() => {}
            () = timer => {}
        }
    }
}

/// What is on its way through a shaped link: departed, not yet arrived.
struct Lane {
    shaper: Shaper,
    /// Arrival and segments, earliest first.
    on_the_way: VecDeque<(Duration, Vec<Segment>)>,
    bytes: usize,
}

impl Lane {
    const fn new(shape: Shape) -> Self {
        Self { shaper: Shaper::new(shape), on_the_way: VecDeque::new(), bytes: 0 }
    }

    fn is_empty(&self) -> bool {
        self.on_the_way.is_empty()
    }

    fn has_room(&self, now: Duration) -> bool {
        self.bytes < MAX_ON_THE_WAY && now >= self.shaper.free_at()
    }

    fn depart(&mut self, now: Duration, batch: Vec<Segment>) {
        let bytes = batch.iter().map(Segment::len).sum();
        self.bytes += bytes;
        let arrival = self.shaper.send(now, bytes);
        self.on_the_way.push_back((arrival, batch));
    }

    fn arrived(&mut self, now: Duration) -> Option<Vec<Segment>> {
        self.on_the_way.front().filter(|(arrival, _)| *arrival <= now)?;
        let (_, batch) = self.on_the_way.pop_front()?;
        self.bytes -= batch.iter().map(Segment::len).sum::<usize>();
        Some(batch)
    }

    /// When something arrives, or when what waits (`waiting`) can depart.
    fn next_at(&self, waiting: bool) -> Option<Duration> {
        let arrival = self.on_the_way.front().map(|(arrival, _)| *arrival);
        let departure = (waiting && self.bytes < MAX_ON_THE_WAY).then(|| self.shaper.free_at());
        arrival.into_iter().chain(departure).min()
    }
}
