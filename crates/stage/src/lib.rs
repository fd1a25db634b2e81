//! A stage: a contiguous range of a model's layers, the sequences that it holds, and the engine thread that computes them.
//!
//! Owns: which frame is computed next and together with which others, truncation to a window's base, the drop of stale
//! windows, and on the tail the verdicts. Does not know: links, OpenAI, where guesses come from, or llama.cpp.
//!
//! [`StageCore`] is the pure state machine: no clock, no thread, no socket. Its driver is one loop:
//!
//! ```text
//! core.handle_frame(frame, now); core.handle_hint(hint);            // everything that has arrived
//! if let Some(call) = core.next_call(now) {                         // at most one call at a time
//!     let done = call.execute(&mut engine);
//!     core.complete(done, &engine, now);
//! }
//! while let Some(output) = core.poll_output() { … }                 // to the next stage, or to the front
//! ```
//!
//! [`EngineThread`] is that loop on an operating-system thread of its own; the simulator runs it in virtual time.
#![forbid(unsafe_code)]

mod call;
mod cancel;
mod core;
pub mod logprobs;
pub mod null;
mod policy;
mod port;
mod prefixes;
mod prompt;
mod sequence;
mod slots;
mod stats;
mod store;
mod tail;
mod thread;

pub use self::core::{Config, Kept, Output, StageCore, StoreWork};
pub use call::{Call, Done};
pub use cancel::{Cancel, Interest};
pub use port::{
    Blob, Drafted, Engine, EngineError, EngineShape, Input, Rewind, Sampled, Sampler, Slot, Span, Want, Wish,
};
pub use prefixes::MAX_PREFIXES;
pub use stats::{Load, Stats};
pub use store::{Answer, Keeping, Store};
pub use thread::{EngineThread, Handle, INBOX_BYTES, INBOX_FRAMES, Left, Refused, Sink};
