//! The API as clients see it, over a scripted line.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

mod cancel;
mod completions;
mod documented;
mod embeddings;
mod errors;
mod events;
mod fake;
mod functions;
mod hostile;
mod keys;
mod messages;
mod named;
mod requests;
mod responses;
mod streams;
mod structured;
mod tcp;
mod tls;
mod tools;
mod traces;
mod transcripts;
mod utility;
