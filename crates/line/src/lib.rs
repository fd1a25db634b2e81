//! A line at work: the drivers that run the pure cores (`scheduler`, `stage`) over links.
//!
//! Owns: the front's control links, assignment and recovery of a line, the routing of work and verdicts, a second model
//! that drafts beside the front, and a stage node's life from waiting empty to computing, with its lease. Does not know:
//! HTTP, text, llama.cpp (engines come through [`EngineSource`]), or how local child processes are started.
#![forbid(unsafe_code)]

mod backoff;
mod drafter;
mod front;
mod greeting;
mod node;
mod source;
mod task;
mod work_link;

pub use front::{
    Cover, Front, FrontConfig, Leaving, LinePlan, LineReadiness, LineSnapshot, Onlookers, Peer, PeerState,
    SpareSnapshot, SpareSpec, StageAddress, StageSnapshot, StageSpec,
};
pub use greeting::{ObserveError, observe};
pub use node::{Node, NodeConfig, PrefixStore};
pub use source::{EngineSource, LoadError};
