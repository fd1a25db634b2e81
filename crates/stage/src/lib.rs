//! A stage: a contiguous range of a model's layers, the sequences that it holds, and the engine thread that computes them.
//!
//! Owns: which frame is computed next and together with which others, truncation to a window's base, the drop of stale
//! windows, and on the tail the verdicts. Does not know: links, OpenAI, where guesses come from, or llama.cpp.
#![forbid(unsafe_code)]

mod port;

pub use port::{Engine, EngineError, EngineShape, Input, Rewind, Sampled, Sampler, Slot, Span};
