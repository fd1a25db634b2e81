//! What a response was made of, in the order in which it came, so that its events can be told once more: to somebody who
//! comes back, or who comes while it is still being made.
//!
//! Does not know what events look like: the same [`Output`] makes them every time.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::output::Output;
use super::store::Entry;
use crate::Tokenizer;
use crate::error::ApiError;
use crate::generation::{Delta, Ending};
use crate::stream::{Frame, Wire};
use crate::turn::Part;

/// One thing that was heard of a response.
#[derive(Clone, Debug)]
enum Heard {
    /// A delta's parts; tokens with log-probabilities alone are kept with what else the delta had.
    Part(Part),
    Delta(Box<Delta>),
    End(Box<Ending>),
    Failed(Box<ApiError>),
}

/// About how much room an end takes.
const END_BYTES: usize = size_of::<Heard>() + size_of::<Ending>();

impl Heard {
    fn of(delta: &Delta) -> Self {
        match delta.parts.as_slice() {
            // Nearly all deltas are like this, so it takes little room.
            [part] if delta.logprobs.is_empty() => Self::Part(part.clone()),
            _ => Self::Delta(Box::new(delta.clone())),
        }
    }

    /// About how much room it takes. Nothing for an end: it counts before it is there.
    fn bytes(&self) -> usize {
        let text = |part: &Part| match part {
            Part::Reasoning(text) | Part::Text(text) | Part::Arguments(text) => text.len(),
            Part::Call { id, name } => id.len() + name.len(),
        };
        match self {
            Self::Part(part) => size_of::<Self>() + text(part),
            Self::Delta(delta) => {
                let alternatives: usize = delta.logprobs.iter().map(|info| 1 + info.logprobs.top.len()).sum();
                let texts = delta.parts.iter().map(text).sum::<usize>();
                size_of::<Self>() + size_of::<Delta>() + texts + 64 * alternatives
            }
            Self::End(_) | Self::Failed(_) => 0,
        }
    }
}

/// Where a response in the making is written down. Dropping it says that nothing more comes.
#[derive(Debug)]
pub(super) struct Recorder(watch::Sender<Vec<Heard>>);

/// What has been written down so far.
#[derive(Clone, Debug)]
pub(crate) struct Record(watch::Receiver<Vec<Heard>>);

impl Default for Record {
    /// Of a response that nothing was heard of.
    fn default() -> Self {
        Recorder::new().1
    }
}

impl Recorder {
    pub(super) fn new() -> (Self, Record) {
        let (sender, receiver) = watch::channel(Vec::new());
        (Self(sender), Record(receiver))
    }

    /// Gives about how much room it took.
    pub(super) fn delta(&self, delta: &Delta) -> usize {
        let heard = Heard::of(delta);
        let bytes = heard.bytes();
        self.0.send_modify(|all| all.push(heard));
        bytes
    }

    pub(super) fn end(&self, ending: &Ending) {
        // Its delta came before, and its figures are not told.
        let ending = Ending { delta: Delta::default(), stop: None, timings: None, ..*ending };
        self.0.send_modify(|heard| heard.push(Heard::End(Box::new(ending))));
    }

    pub(super) fn failed(&self, error: &ApiError) {
        self.0.send_modify(|heard| heard.push(Heard::Failed(Box::new(error.clone()))));
    }
}

impl Record {
    /// About how much room it takes, its end included, also while that has not come.
    pub(super) fn bytes(&self) -> usize {
        self.0.borrow().iter().map(Heard::bytes).sum::<usize>() + END_BYTES
    }
}

/// The events of a kept response behind the one with this number, all of them without one. While the response is being
/// made it waits for those to come. It holds `place` until it is over; whoever had the response made needs none.
pub(super) fn replay(
    entry: Entry,
    tokenizer: Arc<dyn Tokenizer>,
    after: Option<u64>,
    place: Option<OwnedSemaphorePermit>,
) -> impl Stream<Item = Frame> + Send + 'static {
    let skip = after.map_or(0, |after| after.saturating_add(1));
    stream::unfold((Replay::new(entry, tokenizer, skip), place), |(mut replay, place)| async move {
        let frame = replay.next().await?;
        Some((frame, (replay, place)))
    })
}

/// A response told once more.
struct Replay {
    record: Record,
    /// How much of the record was told.
    at: usize,
    output: Output,
    ready: VecDeque<Frame>,
    /// Events that are left out at the beginning.
    skip: u64,
    over: bool,
}

impl Replay {
    fn new(entry: Entry, tokenizer: Arc<dyn Tokenizer>, skip: u64) -> Self {
        let record = entry.record.clone();
        let mut output = Output::again(entry, tokenizer);
        let ready = output.open(1).into();
        Self { record, at: 0, output, ready, skip, over: false }
    }

    async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some(frame) = self.ready.pop_front() {
                if self.skip == 0 {
                    return Some(frame);
                }
                self.skip -= 1;
            }
            if self.over {
                return None;
            }
            self.hear().await;
        }
    }

    /// Makes events of what is heard next.
    async fn hear(&mut self) {
        let at = self.at;
        let Ok(heard) = self.record.0.wait_for(|heard| heard.len() > at).await.map(|heard| heard[at].clone())
        else {
            self.over = true;
            self.ready.extend(self.output.cancelled());
            return;
        };
        self.at += 1;
        self.over = matches!(heard, Heard::End(_) | Heard::Failed(_));
        self.ready.extend(match heard {
            Heard::Part(part) => self.output.delta(0, Delta { parts: vec![part], ..Delta::default() }),
            Heard::Delta(delta) => self.output.delta(0, *delta),
            Heard::End(ending) => self.output.end(0, &ending),
            Heard::Failed(error) => self.output.fail(&error),
        });
    }
}
