//! Ways to guess, side by side: plain decoding, the best serial window, the best fixed width and depth, and `auto`.

use std::fmt;

use spec::{Reach, Sources, Speculate};

use crate::case::Case;
use crate::line::LineModel;
use crate::run::{Forecast, run};

/// The fixed widths and depths that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows in a window.
    pub widths: Vec<u32>,
    /// Windows in flight, ascending.
    pub depths: Vec<u32>,
}

impl Grid {
    /// The choices worth trying on a line. Where a depth fills the line with windows of some width, deeper ones only
    /// queue: a correction would wait longer behind them, and nothing else would change. They are left out.
    pub fn choices(&self, line: &LineModel) -> impl Iterator<Item = (u32, u32)> {
        self.widths.iter().flat_map(|&width| {
            let filling = self.depths.iter().position(|&depth| line.is_filled_by(width, depth));
            let n = filling.map_or(self.depths.len(), |last| last + 1);
            self.depths[..n].iter().map(move |&depth| (width, depth))
        })
    }

    /// Runs of a whole comparison on that line.
    #[must_use]
    pub fn n_runs(&self, line: &LineModel) -> usize {
        self.choices(line).count() + 2
    }
}

/// What a fixed choice brings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// Rows in a window.
    pub width: u32,
    /// Windows in flight.
    pub depth: u32,
    /// Tokens per second, as [`Case::rate`].
    pub rate: f64,
    /// Share of the windows that became stale, 0 to 1.
    pub stale: f64,
}

/// One case on one line.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The case's name.
    pub name: String,
    /// Tokens per second without guessing, as [`Case::rate`].
    pub plain: f64,
    /// The best with one window in flight.
    pub serial: Choice,
    /// The best of all.
    pub fixed: Choice,
    /// Every fixed choice.
    pub sweep: Vec<Choice>,
    /// Tokens per second with width and depth left to the controller.
    pub auto_rate: f64,
    /// The same in full.
    pub auto: Forecast,
}

/// Runs one case in every way; `tick` is called after each run, [`Grid::n_runs`] times.
#[must_use]
pub fn compare(line: &LineModel, case: &Case, grid: &Grid, tick: &dyn Fn()) -> Comparison {
    let has_own = case.workloads.iter().any(|workload| workload.agreement.is_some());
    let sources = if has_own { Sources::List(Vec::new()) } else { Sources::Auto };
    let guess = |reach: Reach| {
        let forecast = run(line, case.job(), &Speculate { sources: sources.clone(), reach, draft_len: None });
        tick();
        forecast
    };
    let fixed = |(width, depth)| {
        let forecast = guess(Reach { width: Some(width), depth: Some(depth), ..Reach::default() });
        Choice { width, depth, rate: case.rate(&forecast), stale: forecast.stale_share() }
    };
    let sweep: Vec<_> = grid.choices(line).map(fixed).collect();
    let best = |all: &mut dyn Iterator<Item = &Choice>| {
        all.copied().max_by(|a, b| a.rate.total_cmp(&b.rate)).unwrap_or_default()
    };
    let plain = run(line, case.unguessed().job(), &Speculate::off());
    tick();
    let auto = guess(Reach::default());
    Comparison {
        name: case.name.clone(),
        plain: case.rate(&plain),
        serial: best(&mut sweep.iter().filter(|choice| choice.depth == 1)),
        fixed: best(&mut sweep.iter()),
        sweep,
        auto_rate: case.rate(&auto),
        auto,
    }
}

impl Comparison {
    /// `auto` over plain decoding.
    #[must_use]
    pub fn over_plain(&self) -> f64 {
        self.auto_rate / self.plain
    }

    /// `auto` over the best serial window, or over plain decoding where that is better.
    #[must_use]
    pub fn over_serial(&self) -> f64 {
        self.auto_rate / self.serial.rate.max(self.plain)
    }

    /// `auto` over the best fixed choice, or over plain decoding where that is better.
    #[must_use]
    pub fn over_fixed(&self) -> f64 {
        self.auto_rate / self.fixed.rate.max(self.plain)
    }

    /// The head of a table of comparisons.
    #[must_use]
    pub fn head() -> &'static str {
        "workload    plain   serial (w)    fixed (w, d)      auto   x plain  x serial  x fixed   stale"
    }
}

/// A rate for people: one decimal, or two below 10.
#[must_use]
pub fn rate_text(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.2}") } else { format!("{rate:.1}") }
}

impl fmt::Display for Comparison {
    /// One line of a table; rates in tokens per second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<10} {:>6} {:>8} ({:>2}) {:>8} ({:>2}, {:>2}) {:>8} {:>8.2} {:>9.2} {:>8.3} {:>6.0} %",
            self.name,
            rate_text(self.plain),
            rate_text(self.serial.rate),
            self.serial.width,
            rate_text(self.fixed.rate),
            self.fixed.width,
            self.fixed.depth,
            rate_text(self.auto_rate),
            self.over_plain(),
            self.over_serial(),
            self.over_fixed(),
            100.0 * self.auto.stale_share()
        )
    }
}
