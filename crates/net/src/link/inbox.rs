//! From bytes to frames: parses segments and puts the pieces of each stream together.
//!
//! Pure, and safe on any bytes: every claim is checked before memory is set aside for it, and memory grows with what
//! has arrived, not with what was promised.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};

use super::{
    Heartbeat, Received,
    segment::{HEADER, Header, MAX_SEGMENT, SegmentError},
};

/// Frames that may be unfinished at once: one for each sequence of a full stage.
pub(crate) const MAX_PARTIAL: usize = protocol::limits::MAX_SLOTS as usize;
/// Bytes in unfinished frames at most: two of the largest.
pub(crate) const MAX_PARTIAL_BYTES: usize = 2 * protocol::limits::MAX_FRAME_BYTES;
/// Room for reading: two segments, so that a second one arrives while the first is taken apart.
const READ_ROOM: usize = 2 * MAX_SEGMENT;
/// Set aside at once for a frame that needs several segments; beyond it memory doubles as bytes arrive.
const FIRST_ROOM: usize = 2 * MAX_SEGMENT;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Frame(Received),
    Ping { number: u64, beat: Heartbeat },
    Pong { number: u64 },
    Close { reason: String },
}

#[derive(Debug)]
struct Partial {
    bytes: BytesMut,
    total: u32,
}

/// The receiving half of the framing.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    unread: BytesMut,
    partial: BTreeMap<u64, Partial>,
    partial_bytes: usize,
}

impl Inbox {
    /// Where the carrier puts what it reads; holds room for at least one more byte.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        if self.unread.capacity() - self.unread.len() < MAX_SEGMENT {
            self.unread.reserve(READ_ROOM);
        }
        &mut self.unread
    }

    /// The next event in what has been read, if it holds one.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, SegmentError> {
        while let Some(header) = self.unread.first_chunk::<HEADER>() {
            let header = Header::decode(header)?;
            let end = HEADER + header.payload();
            if self.unread.len() < end {
                return Ok(None);
            }
            let event = match header {
                Header::Data { stream, offset, total, .. } => self.piece(stream, offset, total, end)?,
                Header::Ping { number, beat } => Some(Event::Ping { number, beat }),
                Header::Pong { number } => Some(Event::Pong { number }),
                Header::Close { .. } => {
                    let reason = std::str::from_utf8(&self.unread[HEADER..end]);
                    Some(Event::Close { reason: reason.map_err(|_| SegmentError::BadReason)?.to_owned() })
                }
                Header::Welcome => return Err(SegmentError::LateWelcome),
            };
            self.unread.advance(end);
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn piece(
        &mut self,
        stream: u64,
        offset: u32,
        total: u32,
        end: usize,
    ) -> Result<Option<Event>, SegmentError> {
        let piece = &self.unread[HEADER..end];
        let Some(partial) = self.partial.get_mut(&stream) else {
            if offset != 0 {
                return Err(SegmentError::OutOfOrder { stream, expected: 0, found: offset });
            }
            if piece.len() == total as usize {
                return Ok(Some(Event::Frame(Received { stream, bytes: Bytes::copy_from_slice(piece) })));
            }
            if self.partial.len() >= MAX_PARTIAL {
                return Err(SegmentError::TooManyPartial(MAX_PARTIAL));
            }
            add_partial(&mut self.partial_bytes, piece.len())?;
            let mut bytes = BytesMut::with_capacity(FIRST_ROOM.min(total as usize));
            bytes.extend_from_slice(piece);
            self.partial.insert(stream, Partial { bytes, total });
            return Ok(None);
        };
        let expected = partial.bytes.len() as u32;
        if partial.total != total {
            return Err(SegmentError::LengthChanged { stream, expected: partial.total, found: total });
        }
        if offset != expected {
            return Err(SegmentError::OutOfOrder { stream, expected, found: offset });
        }
        add_partial(&mut self.partial_bytes, piece.len())?;
        partial.bytes.extend_from_slice(piece);
        if partial.bytes.len() < total as usize {
            return Ok(None);
        }
        self.partial_bytes -= partial.bytes.len();
        let done = self.partial.remove(&stream).expect("found above");
        Ok(Some(Event::Frame(Received { stream, bytes: done.bytes.freeze() })))
    }
}

fn add_partial(partial_bytes: &mut usize, more: usize) -> Result<(), SegmentError> {
    if *partial_bytes + more > MAX_PARTIAL_BYTES {
        return Err(SegmentError::PartialTooLarge(MAX_PARTIAL_BYTES));
    }
    *partial_bytes += more;
    Ok(())
}
