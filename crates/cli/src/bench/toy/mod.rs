//! Lines of toy engines over real sockets: a stage takes a given time by its rows, and the text is known beforehand.
//!
//! Sleeping stands for a machine of its own: eight stages on a computer with two cores keep their times, which real
//! engines could not. Everything else is real: front, scheduler, sources, controller, stages, TLS, TCP, the shaping of
//! links. So this is what `forecast` predicts, measured.

mod engine;
pub(super) mod extent;
pub(super) mod grid;
mod line;
pub(super) mod prefill;
pub(super) mod timeline;
