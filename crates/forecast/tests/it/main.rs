//! The controller's promises, in virtual time, where a bound holds exactly or not at all.

mod bench;
mod crowd;
mod facts;
mod grid;
mod probes;
mod promises;
mod recorded;
mod shared;
