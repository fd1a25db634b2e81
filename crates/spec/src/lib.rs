//! Guessing ahead for one sequence: which tokens are claimed next, and what each verdict makes of the claims.
//!
//! Owns: the pipeline of windows in flight, its epochs, and the check of every verdict against what was sent.
//! Does not know: other sequences, stages, links, clocks, sampling, or where a proposal came from.
#![forbid(unsafe_code)]

mod fault;
mod pipeline;

pub use fault::{ProposalError, VerdictFault};
pub use pipeline::{Commit, Pipeline, Setup, Stats};
