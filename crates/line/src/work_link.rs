//! Work frames on a link: one stream per sequence, decode before prefill.

use net::{LinkReceiver, LinkSender, SendError};
use protocol::{DecodeError, Frame, Wire, Work};

/// Sends a frame on its sequence's stream.
///
/// A prompt gives way to other sequences; once it is written, what follows goes first. Frames of one sequence keep
/// their order.
pub(crate) fn send(link: &LinkSender, frame: &Frame) -> Result<(), SendError> {
    let stream = frame.work.seq().0;
    let (head, body) = frame.encode_parts();
    match frame.work {
        Work::Open(_) | Work::Chunk(_) => link.send_bulk(stream, head, body),
        Work::Window(_) | Work::Park(_) | Work::Close(_) => link.send(stream, head, body),
    }
}

/// Why no more work comes from a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    /// The link ended.
    #[error(transparent)]
    Link(#[from] net::LinkError),
    /// Bytes that are no frame.
    #[error("not a work frame: {0}")]
    Decode(#[from] DecodeError),
    /// A frame on another sequence's stream, where its order means nothing.
    #[error("a frame of sequence {seq} came on stream {stream}")]
    Stream {
        /// The frame's sequence.
        seq: u64,
        /// Where it came.
        stream: u64,
    },
}

/// The next frame.
pub(crate) async fn recv(link: &mut LinkReceiver) -> Result<Frame, WorkError> {
    let received = link.recv().await?;
    let frame = Frame::decode(&received.bytes)?;
    let seq = frame.work.seq().0;
    if seq == received.stream { Ok(frame) } else { Err(WorkError::Stream { seq, stream: received.stream }) }
}
