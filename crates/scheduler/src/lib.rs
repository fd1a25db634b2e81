//! All requests of a front: who runs, in what pieces, and what each report from the line means for them.
//!
//! Owns: admission, token and memory budgets, chunked prefill, the sequences' guessing, and the ids they use.
//! Does not know: sockets, clocks, llama.cpp, text or JSON.
#![forbid(unsafe_code)]

mod chunks;
mod config;
mod drafting;
mod fault;
mod groups;
mod journal;
mod meter;
mod movement;
mod prefixes;
mod probe;
mod queue;
mod remains;
mod request;
mod scheduler;
mod sequence;
mod shelf;
mod silence;
mod status;
mod wanted;

pub use config::{Config, Cuts, PROGRESS_TIMEOUT, QUEUE_TIMEOUT};
pub use drafting::Drafting;
pub use fault::ReportFault;
pub use journal::{Fate, Journal, MAX_PIECES, MAX_STAYS, Piece, PieceName, SharedJournal, StageSeen, Stay};
pub use movement::{Moved, Movement};
pub use prefixes::{LEAST as LEAST_PREFIX, Namespace, SHARED};
pub use request::{Client, Event, Failure, Finish, Refusal, Request, RequestId, Timings};
pub use scheduler::{Output, Scheduler};
pub use shelf::Shelved;
pub use silence::Silence;
pub use spec::{DraftTally, Guesses, InFlight, Judged, SourceTally, Tally};
pub use status::{Loops, SequenceState, SequenceStatus, Stats};
