//! The crate from outside, on toy models with a hand-written tensor list: everything but computing.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

#[path = "../../../../fuzz/src/seeds.rs"]
mod files;
mod fixture;
mod folders;
mod guide;
mod models;
mod plans;
mod rules;
mod seeds;
mod slices;
mod toys;
