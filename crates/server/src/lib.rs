//! The HTTP API of a line: OpenAI's routes, chat templates, text from tokens and server-sent events.
//!
//! Owns: what a client may send and what it gets back. Does not know: llama.cpp, stages, links; it reaches them
//! through the traits [`Line`] and [`Tokenizer`].
#![forbid(unsafe_code)]

mod seam;

pub use seam::{
    Line, LineStatus, ModelInfo, Readiness, SequenceStatus, StageStatus, Submission, Submitting, Tokenizer,
};
