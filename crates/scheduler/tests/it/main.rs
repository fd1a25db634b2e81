//! The scheduler: what goes out for what comes in, and any number of requests over an honest line.

mod behaviour;
mod drafts;
mod front;
mod groups;
mod interruptions;
mod line;
mod losses;
mod prompts;
mod random;
mod sharing;
mod silence;
