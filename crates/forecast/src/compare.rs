//! Ways to guess, side by side: plain decoding, the best serial window, the best fixed width and depth, and `auto`.

use std::fmt;

use spec::{Reach, Sources, Speculate};

use crate::line::LineModel;
use crate::run::{Forecast, Job, run};
use crate::workload::Workload;

/// The fixed widths and depths that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows in a window.
    pub widths: Vec<u32>,
    /// Windows in flight.
    pub depths: Vec<u32>,
}

/// The best of several fixed choices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Best {
    /// Rows in a window.
    pub width: u32,
    /// Windows in flight.
    pub depth: u32,
    /// Tokens per second.
    pub rate: f64,
}

/// One workload on one line.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The workload's name.
    pub name: String,
    /// Tokens per second without guessing.
    pub plain: f64,
    /// The best with one window in flight.
    pub serial: Best,
    /// The best of all.
    pub fixed: Best,
    /// Every fixed choice.
    pub sweep: Vec<Best>,
    /// With width and depth left to the controller.
    pub auto: Forecast,
}

/// Runs one workload in every way.
#[must_use]
pub fn compare(line: &LineModel, workload: &Workload, grid: &Grid) -> Comparison {
    let job = Job { workloads: std::slice::from_ref(workload), clients: 1 };
    let sources = if workload.agreement.is_some() { Sources::Off } else { Sources::Auto };
    let guess = |reach: Reach| run(line, job, &Speculate { sources: sources.clone(), reach });
    let fixed = |width, depth| {
        let reach = Reach { width: Some(width), depth: Some(depth), ..Reach::default() };
        Best { width, depth, rate: guess(reach).decode_rate }
    };
    let sweep: Vec<_> = grid
        .widths
        .iter()
        .flat_map(|&width| grid.depths.iter().map(move |&depth| (width, depth)))
        .map(|(width, depth)| fixed(width, depth))
        .collect();
    let best = |all: &mut dyn Iterator<Item = &Best>| {
        all.copied().max_by(|a, b| a.rate.total_cmp(&b.rate)).unwrap_or_default()
    };
    let unguessed = Workload { agreement: None, ..workload.clone() };
    let plain = Job { workloads: std::slice::from_ref(&unguessed), clients: 1 };
    Comparison {
        name: workload.name.clone(),
        plain: run(line, plain, &Speculate::off()).decode_rate,
        serial: best(&mut sweep.iter().filter(|choice| choice.depth == 1)),
        fixed: best(&mut sweep.iter()),
        sweep,
        auto: guess(Reach::default()),
    }
}

impl Comparison {
    /// `auto` over plain decoding.
    #[must_use]
    pub fn over_plain(&self) -> f64 {
        self.auto.decode_rate / self.plain
    }

    /// `auto` over the best serial window, or over plain decoding where that is better.
    #[must_use]
    pub fn over_serial(&self) -> f64 {
        self.auto.decode_rate / self.serial.rate.max(self.plain)
    }

    /// `auto` over the best fixed choice, or over plain decoding where that is better.
    #[must_use]
    pub fn over_fixed(&self) -> f64 {
        self.auto.decode_rate / self.fixed.rate.max(self.plain)
    }

    /// The head of a table of comparisons.
    #[must_use]
    pub fn head() -> &'static str {
        "workload    plain   serial (w)    fixed (w, d)      auto   x plain  x serial  x fixed   stale"
    }
}

impl fmt::Display for Comparison {
    /// One line of a table; rates in tokens per second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = &self.auto.stats;
        let stale = if stats.windows == 0 { 0.0 } else { stats.stale_windows as f64 / stats.windows as f64 };
        write!(
            f,
            "{:<10} {:>6.1} {:>8.1} ({:>2}) {:>8.1} ({:>2}, {:>2}) {:>8.1} {:>8.2} {:>9.2} {:>8.3} {:>6.0} %",
            self.name,
            self.plain,
            self.serial.rate,
            self.serial.width,
            self.fixed.rate,
            self.fixed.width,
            self.fixed.depth,
            self.auto.decode_rate,
            self.over_plain(),
            self.over_serial(),
            self.over_fixed(),
            100.0 * stale
        )
    }
}
