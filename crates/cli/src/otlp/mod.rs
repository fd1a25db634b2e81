//! Traces on their way to a collector of OpenTelemetry (OTLP over HTTP).
//!
//! Owns: where collectors are and what they want to be shown, the form in which traces travel, and the thread that sends
//! them. What a trace says is `server`'s. Nothing here ever makes a request wait: a collector that is slow, away or full
//! costs traces, and one line in the log.

mod client;
mod exporter;
mod settings;
mod wire;

pub(crate) use exporter::Exporter;
pub use settings::Asked;
pub(crate) use settings::of_process;
