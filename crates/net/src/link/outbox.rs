//! What waits to be written: one queue per stream, and whose next segment goes first.
//!
//! Order: an answer to a ping, a ping, streams whose first frame is [`Priority::Decode`] in turn, streams whose first
//! frame is [`Priority::Bulk`] in turn, and the close last of all. Two frames of one stream never pass each other: an
//! urgent frame behind a bulk one waits until that one is fully written. Pure: no clock, no socket.

use std::{
    collections::{BTreeMap, VecDeque},
    io::IoSlice,
};

use bytes::Bytes;
use protocol::limits::{MAX_FRAME_BYTES, MAX_TEXT};

use super::{
    Heartbeat, Priority,
    segment::{HEADER, Header, MAX_PAYLOAD},
};

/// Streams with queued frames at once. Far above [`protocol::limits::MAX_SLOTS`], so that only a mistake reaches it.
pub(crate) const MAX_STREAMS: usize = 1 << 16;
/// What a queued frame costs beside its bytes, so that empty frames are bounded too.
const FRAME_COST: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    Full { queued: usize },
    TooLarge { bytes: usize },
    TooManyStreams,
}

/// One segment as it will be written: three pieces, none copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) header: [u8; HEADER],
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
}

impl Segment {
    fn control(header: Header) -> Self {
        Self { header: header.encode(), head: Bytes::new(), body: Bytes::new() }
    }

    /// A close with as much of the reason as one may carry.
    pub(crate) fn close(reason: &str) -> Self {
        let whole = reason.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= MAX_TEXT);
        let head = Bytes::copy_from_slice(&reason.as_bytes()[..whole.last().unwrap_or(0)]);
        Self { header: Header::Close { len: head.len() as u32 }.encode(), head, body: Bytes::new() }
    }

    pub(crate) fn len(&self) -> usize {
        HEADER + self.head.len() + self.body.len()
    }

    pub(crate) fn slices(&self) -> [IoSlice<'_>; 3] {
        [IoSlice::new(&self.header), IoSlice::new(&self.head), IoSlice::new(&self.body)]
    }
}

#[derive(Debug)]
struct Frame {
    priority: Priority,
    head: Bytes,
    body: Bytes,
    total: u32,
    offset: u32,
}

impl Frame {
    fn rest(&self) -> usize {
        self.head.len() + self.body.len()
    }

    fn cut(&mut self, stream: u64) -> Segment {
        let head = self.head.split_to(self.head.len().min(MAX_PAYLOAD));
        let body = self.body.split_to(self.body.len().min(MAX_PAYLOAD - head.len()));
        let len = (head.len() + body.len()) as u32;
        let header = Header::Data { stream, offset: self.offset, total: self.total, len };
        self.offset += len;
        Segment { header: header.encode(), head, body }
    }
}

#[derive(Debug, Default)]
enum Close {
    #[default]
    Open,
    Wanted(String),
    Written,
}

/// The queues of one link.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// The frames of each stream; none is empty.
    streams: BTreeMap<u64, VecDeque<Frame>>,
    /// Every stream once, under the priority of its first frame, in the order of their turns.
    turns: [VecDeque<u64>; 2],
    queued: usize,
    limit: usize,
    ping: Option<Header>,
    pong: Option<Header>,
    close: Close,
}

impl Outbox {
    /// `limit`: bytes that may be queued; a single frame may exceed it.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            streams: BTreeMap::new(),
            turns: Default::default(),
            queued: 0,
            limit,
            ping: None,
            pong: None,
            close: Close::Open,
        }
    }

    pub(crate) fn push(
        &mut self,
        stream: u64,
        priority: Priority,
        head: Bytes,
        body: Bytes,
    ) -> Result<(), PushError> {
        let bytes = head.len() + body.len();
        if bytes > MAX_FRAME_BYTES {
            return Err(PushError::TooLarge { bytes });
        }
        let cost = bytes + FRAME_COST;
        if self.queued > 0 && self.queued + cost > self.limit {
            return Err(PushError::Full { queued: self.queued });
        }
        if self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&stream) {
            return Err(PushError::TooManyStreams);
        }
        let frames = self.streams.entry(stream).or_default();
        if frames.is_empty() {
            self.turns[priority as usize].push_back(stream);
        }
        frames.push_back(Frame { priority, head, body, total: bytes as u32, offset: 0 });
        self.queued += cost;
        Ok(())
    }

    pub(crate) fn ping(&mut self, number: u64, beat: Heartbeat) {
        self.ping = Some(Header::Ping { number, beat });
    }

    /// Only the latest ping is answered: a peer that sends many cannot make the answers pile up.
    pub(crate) fn pong(&mut self, number: u64) {
        self.pong = Some(Header::Pong { number });
    }

    /// Nothing may be pushed afterwards; only the first reason counts.
    pub(crate) fn close(&mut self, reason: &str) {
        if matches!(self.close, Close::Open) {
            self.close = Close::Wanted(reason.to_owned());
        }
    }

    /// The segment to write next, if it has at most `room` bytes; [`super::segment::MAX_SEGMENT`] is enough for any.
    pub(crate) fn next_within(&mut self, room: usize) -> Option<Segment> {
        if self.next_len() > room {
            return None;
        }
        if let Some(header) = self.pong.take().or_else(|| self.ping.take()) {
            return Some(Segment::control(header));
        }
        for turns in 0..self.turns.len() {
            if let Some(stream) = self.turns[turns].pop_front() {
                return Some(self.cut(stream));
            }
        }
        match std::mem::take(&mut self.close) {
            Close::Open => None,
            Close::Wanted(reason) => {
                self.close = Close::Written;
                Some(Segment::close(&reason))
            }
            Close::Written => {
                self.close = Close::Written;
                None
            }
        }
    }

    /// Whether the close was the last segment taken.
    pub(crate) const fn is_finished(&self) -> bool {
        matches!(self.close, Close::Written)
    }

    /// Whether there is a next segment.
    pub(crate) fn has_next(&self) -> bool {
        self.queued > 0
            || self.ping.is_some()
            || self.pong.is_some()
            || matches!(self.close, Close::Wanted(_))
    }

    /// Bytes queued, with a fixed cost per frame.
    pub(crate) const fn queued(&self) -> usize {
        self.queued
    }

    #[cfg(test)]
    pub(crate) fn n_streams(&self) -> usize {
        self.streams.len()
    }

    /// Bytes of the next segment; of a close at most.
    fn next_len(&self) -> usize {
        if self.pong.is_some() || self.ping.is_some() {
            return HEADER;
        }
        let stream = self.turns.iter().find_map(VecDeque::front);
        let frame = stream.and_then(|stream| self.streams.get(stream)?.front());
        HEADER + frame.map_or(MAX_TEXT, |frame| frame.rest().min(MAX_PAYLOAD))
    }

    /// The next segment of a stream that has just had its turn.
    fn cut(&mut self, stream: u64) -> Segment {
        let frames = self.streams.get_mut(&stream).expect("a stream with a turn is remembered");
        let frame = frames.front_mut().expect("a stream with a turn has a frame");
        let segment = frame.cut(stream);
        self.queued -= segment.head.len() + segment.body.len();
        if frame.rest() == 0 {
            frames.pop_front();
            self.queued -= FRAME_COST;
        }
        match frames.front() {
            Some(next) => self.turns[next.priority as usize].push_back(stream),
            None => {
                self.streams.remove(&stream);
            }
        }
        segment
    }
}
