//! What slices compute, against the whole model: toys of every architecture and the two real test models.

mod architectures;
mod engine;
mod models;
mod support;
mod vocab;
