//! A store: named bytes in a folder, within a budget, that outlive the process. A cache: whatever goes wrong, it forgets.
//!
//! Owns: the form of its files, who goes when room is needed (the one used longest ago), and the thread that reads and
//! writes. Does not know what the bytes mean.
//!
//! The folder is the whole state: several processes share one, each looks at what is there before it writes, and a file
//! that another one has removed is simply not there. A file is written beside its place and then moved there, it carries
//! a digest of itself and of its name, and one that is not what it should be is removed and never given to anybody.
#![forbid(unsafe_code)]

mod folder;
mod form;
mod room;
mod thread;

pub use folder::OpenError;
pub use form::Name;
pub use thread::{Store, Written};
