//! The byte form of every message: little-endian, length-prefixed, bounded by [`limits`], with no padding and no
//! reserved room.
//!
//! Owns: what bytes a message has, and the refusal of bytes that are not one. A value that passed decoding can be
//! added up without overflow (`base + tokens`, the next epoch, the next window) and took no more memory than a small
//! multiple of its own bytes. Does not know: how messages are framed on a link, or whether a value makes sense to
//! its receiver beyond its own bounds.

mod control;
#[cfg(test)]
#[path = "../../../fuzz/src/seeds.rs"]
mod files;
mod handshake;
mod prompt;
mod reader;
mod sampling;
#[cfg(test)]
mod seeds;
#[cfg(test)]
mod strategies;
#[cfg(test)]
mod tests;
mod work;
mod writer;

use bytes::Bytes;

use crate::{Frame, Hello, HelloReply, RowError, ToFront, ToStage, limits};
use reader::Reader;
use writer::Writer;

/// Bytes that are not a message, and the field that shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than any message of its type has.
    #[error("message of {len} bytes is larger than the {limit} allowed")]
    Oversized {
        /// Bytes of the message.
        len: usize,
        /// [`Wire::MAX_BYTES`].
        limit: usize,
    },
    /// The message ends inside or before a field.
    #[error("message is cut short at {field}")]
    Truncated {
        /// The field that is missing.
        field: &'static str,
    },
    /// The message goes on after its last field.
    #[error("message has {extra} bytes after its last field")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// A choice that does not exist.
    #[error("{field} cannot be {tag}")]
    UnknownTag {
        /// The field that holds the choice.
        field: &'static str,
        /// What it holds.
        tag: u8,
    },
    /// A number outside its range.
    #[error("{field} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Which number.
        field: &'static str,
        /// What it is.
        value: i64,
        /// Least value allowed.
        min: i64,
        /// Largest value allowed.
        max: i64,
    },
    /// A list or text longer than its limit.
    #[error("{field} has {count} entries, at most {limit} are allowed")]
    TooMany {
        /// Which list.
        field: &'static str,
        /// Entries (bytes of a text).
        count: u32,
        /// Entries allowed.
        limit: u32,
    },
    /// A list that needs at least one entry and has none.
    #[error("{field} is empty")]
    Empty {
        /// Which list.
        field: &'static str,
    },
    /// A text that is not UTF-8.
    #[error("{field} is not UTF-8")]
    NotText {
        /// Which text.
        field: &'static str,
    },
    /// A number that is infinite or no number where neither means anything.
    #[error("{field} is not a finite number")]
    NotFinite {
        /// Which number.
        field: &'static str,
    },
    /// Two fields of one message that contradict each other.
    #[error("{field}: {rule}")]
    Contradiction {
        /// The field that was read last.
        field: &'static str,
        /// What must hold.
        rule: &'static str,
    },
    /// Rows whose claims do not add up.
    #[error("frame.rows: {0}")]
    Rows(#[from] RowError),
    /// A [`Hello`] of another version, whose other fields cannot be read. Answer it with
    /// [`crate::RefuseReason::Version`], whose bytes are the same in every version.
    #[error("protocol version {theirs} does not match {ours}: run the same Paceline on both machines")]
    Version {
        /// [`crate::PROTOCOL_VERSION`].
        ours: u16,
        /// What the message says.
        theirs: u16,
    },
}

/// A message with a byte form.
///
/// Encoding never fails: texts longer than [`limits::MAX_TEXT`] are cut (they are for people), and a value that
/// exceeds another limit is refused by whoever decodes it.
pub trait Wire: Sized {
    /// No valid message of this type is longer.
    const MAX_BYTES: usize;

    /// Appends the byte form.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads a value that fills `bytes` exactly.
    ///
    /// # Errors
    /// If the bytes are anything but one whole value within [`crate::limits`].
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;
}

impl Frame {
    /// The byte form in two parts, the second being the rows' payload as it is, without a copy (empty for a frame
    /// without rows). [`Wire::decode`] reads the parts one after the other.
    #[must_use]
    pub fn encode_parts(&self) -> (Bytes, Bytes) {
        let mut head = Vec::with_capacity(64 + 4 * self.work.tokens().len() + 12 * self.timings.len());
        work::put_head(&mut Writer::new(&mut head), self);
        let body = self.rows.as_ref().map_or_else(Bytes::new, |rows| rows.data().clone());
        (head.into(), body)
    }
}

impl Wire for Frame {
    const MAX_BYTES: usize = limits::MAX_FRAME_BYTES;

    fn encode(&self, out: &mut Vec<u8>) {
        work::put_head(&mut Writer::new(out), self);
        if let Some(rows) = &self.rows {
            out.extend_from_slice(rows.data());
        }
    }

    /// The rows of the result are a slice of `bytes`, not a copy.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        work::get_frame(bytes, start::<Self>(bytes)?)
    }
}

impl Wire for ToStage {
    const MAX_BYTES: usize = limits::MAX_CONTROL_BYTES;

    fn encode(&self, out: &mut Vec<u8>) {
        control::put_to_stage(&mut Writer::new(out), self);
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        whole::<Self>(bytes, control::get_to_stage)
    }
}

impl Wire for ToFront {
    const MAX_BYTES: usize = limits::MAX_CONTROL_BYTES;

    fn encode(&self, out: &mut Vec<u8>) {
        control::put_to_front(&mut Writer::new(out), self);
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        whole::<Self>(bytes, control::get_to_front)
    }
}

impl Wire for Hello {
    const MAX_BYTES: usize = limits::MAX_HELLO_BYTES;

    fn encode(&self, out: &mut Vec<u8>) {
        handshake::put_hello(&mut Writer::new(out), self);
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        whole::<Self>(bytes, handshake::get_hello)
    }
}

impl Wire for HelloReply {
    const MAX_BYTES: usize = limits::MAX_HELLO_BYTES;

    fn encode(&self, out: &mut Vec<u8>) {
        handshake::put_reply(&mut Writer::new(out), self);
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        whole::<Self>(bytes, handshake::get_reply)
    }
}

fn start<T: Wire>(bytes: &Bytes) -> Result<Reader<'_>, DecodeError> {
    if bytes.len() > T::MAX_BYTES {
        return Err(DecodeError::Oversized { len: bytes.len(), limit: T::MAX_BYTES });
    }
    Ok(Reader::new(bytes))
}

fn whole<T: Wire>(
    bytes: &Bytes,
    get: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut r = start::<T>(bytes)?;
    let value = get(&mut r)?;
    r.finish()?;
    Ok(value)
}
