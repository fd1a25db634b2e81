//! The crate from outside, on toy models with a hand-written tensor list: everything but computing.

mod folders;
mod models;
mod plans;
mod slices;
mod toys;
