//! What slices compute, against the whole model: toys of every architecture and the two real test models.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod architectures;
mod engine;
mod exact;
mod kinds;
mod models;
mod nextn;
mod prompts;
mod recurrent;
mod sliding;
mod support;
mod vocab;
