//! The words that a line's front and stages exchange: ids, work frames, control messages, limits, and their byte form.
//!
//! Owns: the meaning and the encoding of every message, the limits on what a peer may claim, the dtype of hidden
//! rows on the wire, and the position-keyed noise that makes sampling independent of how a token came to be computed.
//! Does not know: sockets, runtimes, JSON, llama.cpp, HTTP, or what any one crate does with a message.
#![forbid(unsafe_code)]

mod codec;
mod control;
mod handshake;
mod ids;
pub mod limits;
pub mod noise;
mod prompt;
mod rows;
mod sampling;
mod work;

pub use codec::{DecodeError, Wire};
pub use control::{
    Assign, Command, Downstream, Fault, FaultKind, Hint, Holding, KvType, Progress, Report, StageCounters,
    StageState, Stored, ToFront, ToStage,
};
pub use handshake::{Hello, HelloReply, LinkRole, PROTOCOL_VERSION, RefuseReason, RowsHello, Sight, Tenant};
pub use ids::{
    Epoch, Generation, LayerRange, ModelId, NodeId, PeerIndex, Position, PrefixKey, SeqId, StageIndex, Token,
    WindowId,
};
pub use prompt::{Found, HiddenRows, OfPrompt, Pooling, PromptPart};
pub use rows::{RowDtype, RowError, Rows};
pub use sampling::{After, DryParams, Grammar, GrammarKind, Mirostat, SamplerParams, XtcParams};
pub use work::{
    Chunk, Close, Company, End, Frame, Held, Open, Park, Reuse, StageTiming, TailDraft, TokenLogprobs,
    Verdict, WantDraft, Window, Work,
};
