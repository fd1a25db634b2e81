//! Fronts and stages over real TLS links, with engines that compute nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod by_hand;
mod drafts;
mod leaving;
mod line;
mod notices;
mod onlookers;
mod prompts;
mod recovery;
mod refusals;
mod spares;
mod stalls;
mod support;
