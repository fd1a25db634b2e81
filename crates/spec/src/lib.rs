//! Guessing ahead for one sequence: which tokens are claimed next, and what each verdict makes of the claims.
//!
//! Owns: the pipeline of windows in flight with its epochs, and the check of every verdict against what was sent; the
//! sources of guesses and how well each does; and the choice of how wide and deep to guess.
//! Does not know: other sequences but for their number, stages but for how long they take, links, clocks, or sampling.
#![forbid(unsafe_code)]

mod agreement;
mod asking;
mod chain;
mod controller;
mod depth;
mod draft_time;
mod drafted;
mod fault;
mod filler;
mod follow;
mod index;
mod mtp;
mod pace;
mod pipeline;
mod plan;
mod predicted;
mod proposer;
mod speculation;
mod staircase;
mod strategy;
mod suffix;
mod tally;
mod unigram;

pub use chain::Order;
pub use controller::{MAX_DEPTH, MAX_WIDTH, Plan, Reach};
pub use drafted::Drafted;
pub use fault::{DraftFault, ProposalError, VerdictFault};
pub use filler::Filler;
pub use mtp::{MAX_DRAFT, Mtp, USUAL_DRAFT};
pub use pace::Pace;
pub use pipeline::{Commit, Pipeline, Setup, Stats};
pub use plan::{DEPTHS_TRIED, WIDTHS};
pub use predicted::Predicted;
pub use proposer::{Answer, Ask, Block, Draft, Prior, Proposer, RUNS, Trust};
pub use speculation::{Answered, InFlight, Line, Speculation, Start, TextChange};
pub use strategy::{Source, Sources, SourcesError, Speculate};
pub use suffix::Suffix;
pub use tally::{DEPTHS, DraftTally, Guesses, Judged, MAX_SOURCES, SourceTally, Tally};
pub use unigram::Unigram;
