//! What a line would do: the real scheduler, sources, controller and stages in virtual time, with given stage times,
//! delays and texts.
//!
//! Owns: the model of a line, texts to run on it, and the comparison of ways to guess. Engines compute nothing: a
//! stage takes the time that its row count takes, and the tail says what the text says. A forecast depends on its
//! inputs alone. Does not know: clocks, links, llama.cpp, or whether a real line has these times.
#![forbid(unsafe_code)]

mod agenda;
mod case;
mod compare;
mod engine;
mod line;
mod oracle;
mod run;
mod workload;

pub use case::Case;
pub use compare::{Choice, Comparison, Grid, compare, rate_text};
pub use line::{LineModel, StageModel};
pub use run::{Forecast, Job, StageUse, run};
pub use workload::{Agreement, Kind, Workload};
