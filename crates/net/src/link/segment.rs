//! The byte form of segments: a header of fixed size, then at most one payload.
//!
//! Every header is `kind u8, a u64, b u32, c u32, payload length u32`, little-endian:
//!
//! | kind | a | b | c | payload |
//! |---|---|---|---|---|
//! | 1 data | stream | offset in the frame | length of the frame | a piece of the frame |
//! | 2 ping | number | ms between pings | ms until dead | none |
//! | 3 pong | number of the ping | 0 | 0 | none |
//! | 4 close | 0 | 0 | 0 | the reason, UTF-8 |
//! | 5 welcome | 0 | 0 | 0 | none |

use std::time::Duration;

use protocol::limits::{MAX_FRAME_BYTES, MAX_TEXT};

use super::Heartbeat;

/// Bytes of a header.
pub(crate) const HEADER: usize = 21;
/// Bytes of a segment at most, header included: four full TLS records, and the longest that a frame of one stream
/// waits for another's once it is first in line.
pub(crate) const MAX_SEGMENT: usize = 64 << 10;
/// Bytes of a payload at most.
pub(crate) const MAX_PAYLOAD: usize = MAX_SEGMENT - HEADER;

/// Bytes that are not a segment, or not one that may come now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// No such kind of segment.
    #[error("segment kind {0} is unknown")]
    UnknownKind(u8),
    /// A field that the kind does not use, or a combination of fields that no sender writes.
    #[error("a segment's header contradicts itself")]
    BadHeader,
    /// A payload above the limit.
    #[error("a segment claims {0} bytes, above the limit of {MAX_PAYLOAD}")]
    PayloadTooLong(u32),
    /// A frame above [`MAX_FRAME_BYTES`].
    #[error("a frame claims {0} bytes, above the limit of {MAX_FRAME_BYTES}")]
    FrameTooLong(u32),
    /// A piece that does not continue its frame.
    #[error("stream {stream}: a piece starts at byte {found} instead of {expected}")]
    OutOfOrder {
        /// Whose frame.
        stream: u64,
        /// Where the next piece had to start.
        expected: u32,
        /// Where it started.
        found: u32,
    },
    /// A piece that disagrees with the first one on the frame's length.
    #[error("stream {stream}: a frame of {expected} bytes now claims {found}")]
    LengthChanged {
        /// Whose frame.
        stream: u64,
        /// By its first piece.
        expected: u32,
        /// By this piece.
        found: u32,
    },
    /// More unfinished frames than one link may have.
    #[error("more than {0} frames are unfinished at once")]
    TooManyPartial(usize),
    /// More bytes in unfinished frames than one link may have.
    #[error("unfinished frames hold more than {0} bytes")]
    PartialTooLarge(usize),
    /// A welcome that does not stand at the start.
    #[error("a welcome came in the middle of a link")]
    LateWelcome,
    /// A reason that is not text.
    #[error("the reason of a close is not UTF-8")]
    BadReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Data { stream: u64, offset: u32, total: u32, len: u32 },
    Ping { number: u64, beat: Heartbeat },
    Pong { number: u64 },
    Close { len: u32 },
    Welcome,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let (kind, a, b, c, len) = match *self {
            Self::Data { stream, offset, total, len } => (1, stream, offset, total, len),
            Self::Ping { number, beat } => (2, number, millis(beat.interval), millis(beat.dead_after), 0),
            Self::Pong { number } => (3, number, 0, 0, 0),
            Self::Close { len } => (4, 0, 0, 0, len),
            Self::Welcome => (5, 0, 0, 0, 0),
        };
        let mut out = [0; HEADER];
        out[0] = kind;
        out[1..9].copy_from_slice(&a.to_le_bytes());
        out[9..13].copy_from_slice(&b.to_le_bytes());
        out[13..17].copy_from_slice(&c.to_le_bytes());
        out[17..].copy_from_slice(&len.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, SegmentError> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let a = u64::from_le_bytes(bytes[1..9].try_into().expect("eight bytes"));
        let (b, c, len) = (word(9), word(13), word(17));
        let header = match bytes[0] {
            1 => Self::Data { stream: a, offset: b, total: c, len },
            2 => Self::Ping {
                number: a,
                beat: Heartbeat { interval: from_millis(b), dead_after: from_millis(c) },
            },
            3 => Self::Pong { number: a },
            4 => Self::Close { len },
            5 => Self::Welcome,
            kind => return Err(SegmentError::UnknownKind(kind)),
        };
        if header.encode() != *bytes {
            return Err(SegmentError::BadHeader);
        }
        header.check()?;
        Ok(header)
    }

    /// Bytes that follow the header.
    pub(crate) const fn payload(&self) -> usize {
        match self {
            Self::Data { len, .. } | Self::Close { len } => *len as usize,
            Self::Ping { .. } | Self::Pong { .. } | Self::Welcome => 0,
        }
    }

    fn check(&self) -> Result<(), SegmentError> {
        match *self {
            Self::Data { total, .. } if total as usize > MAX_FRAME_BYTES => {
                Err(SegmentError::FrameTooLong(total))
            }
            Self::Data { len, .. } if len as usize > MAX_PAYLOAD => Err(SegmentError::PayloadTooLong(len)),
            // Only an empty frame has an empty piece, and no piece reaches past its frame.
            Self::Data { offset, total, len, .. }
                if (len == 0 && total > 0) || u64::from(offset) + u64::from(len) > u64::from(total) =>
            {
                Err(SegmentError::BadHeader)
            }
            Self::Close { len } if len as usize > MAX_TEXT => Err(SegmentError::PayloadTooLong(len)),
            Self::Ping { beat, .. } if beat != beat.clamped() => Err(SegmentError::BadHeader),
            _ => Ok(()),
        }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

const fn from_millis(ms: u32) -> Duration {
    Duration::from_millis(ms as u64)
}
