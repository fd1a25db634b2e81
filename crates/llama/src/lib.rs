//! llama.cpp behind safe types: the engine of a stage, the vocabulary, and the samplers.
//!
//! Owns: every `unsafe` block of the project, loading, computing, the exact switch, embedding look-up, the
//! filters of sampling, and the redirection of llama.cpp's log lines to `tracing` (target `llama.cpp`, one level
//! below llama.cpp's own, since what fails is also returned as a typed error).
//! Does not know: sequences, epochs, sockets, HTTP. It is stock llama.cpp: nothing here is a patch.

mod backend;
mod batch;
mod config;
mod constrain;
mod context;
mod dequantize;
mod embeddings;
mod engine;
mod error;
mod exit;
mod likeness;
mod memory;
mod model;
mod nextn;
mod probe;
mod reference;
mod role;
mod sampler;
mod tap;
mod toy;
mod vocab;

pub use backend::system_info;
pub use config::EngineConfig;
pub use engine::LlamaEngine;
pub use error::LoadError;
pub use exit::exit;
pub use likeness::VocabDifference;
pub use memory::position_bytes;
pub use reference::{Reference, ReferenceRun};
pub use toy::required_tensors;
pub use vocab::{TokenizeError, Vocab};
