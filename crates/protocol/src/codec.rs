//! The byte form of every message: little-endian, length-prefixed, bounded, with no padding and no reserved room.

use bytes::Bytes;

/// Bytes that are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends before its last field.
    #[error("message is cut short")]
    Truncated,
}

/// A type with a byte form.
pub trait Wire: Sized {
    /// Appends the byte form.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads a value that fills `bytes` exactly.
    ///
    /// # Errors
    /// If the bytes are anything but one whole value within [`crate::limits`].
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;
}
