//! The stage against a toy model whose tokens depend on everything that its slots hold.
#![forbid(unsafe_code)]

mod drafts;
mod faults;
mod front;
mod groups;
mod held;
mod kept;
mod line;
mod policy;
mod prefixes;
mod prompts;
mod sharing;
mod speculation;
mod table;
mod thread;
mod toy;
