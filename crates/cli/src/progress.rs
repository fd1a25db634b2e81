//! Progress of long work, on standard error: a bar on a terminal, a few plain lines elsewhere.

use std::io::IsTerminal as _;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::logging::{Format, say};
use crate::slices::Step;

/// Plain lines are written each time this share of the work is done.
const LINE_EVERY_PERMILLE: u64 = 250;

/// One piece of long work, measured in bytes, thousandths or steps. Ends when dropped.
#[derive(Debug)]
pub struct Progress {
    what: String,
    unit: Unit,
    shown: Shown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Permille,
    Steps,
}

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    Lines { said: u64 },
}

impl Progress {
    /// Work whose size in bytes is told with each step.
    #[must_use]
    pub fn bytes(what: impl Into<String>) -> Self {
        Self::new(what.into(), Unit::Bytes, "{msg} [{bar:30}] {bytes} of {total_bytes}, {eta} left")
    }

    /// Work that reports thousandths.
    #[must_use]
    pub fn permille(what: impl Into<String>) -> Self {
        Self::new(what.into(), Unit::Permille, "{msg} [{bar:30}] {percent} %")
    }

    /// Work in steps of about the same length, whose number is told with each.
    #[must_use]
    pub fn steps(what: impl Into<String>) -> Self {
        Self::new(what.into(), Unit::Steps, "{msg} [{bar:30}] {pos} of {len}, {eta} left")
    }

    fn new(what: String, unit: Unit, template: &str) -> Self {
        let shown = if std::io::stderr().is_terminal() && Format::of_process() == Format::Text {
            let style = ProgressStyle::with_template(template).expect("the templates above are valid");
            Shown::Bar(ProgressBar::new(0).with_style(style.progress_chars("=> ")).with_message(what.clone()))
        } else {
            Shown::Lines { said: 0 }
        };
        Self { what, unit, shown }
    }

    /// `done` of `total` is done.
    pub fn set(&mut self, done: u64, total: u64) {
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Shown::Lines { said } => {
                let step = done.saturating_mul(1000) / total.max(1) / LINE_EVERY_PERMILLE;
                if step > *said {
                    *said = step;
                    let percent = step * LINE_EVERY_PERMILLE / 10;
                    match self.unit {
                        Unit::Bytes => say(&format!("{}: {percent} % of {}", self.what, HumanBytes(total))),
                        Unit::Permille | Unit::Steps => say(&format!("{}: {percent} %", self.what)),
                    }
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Shows the steps of [`crate::slices`] one after another.
#[derive(Debug, Default)]
pub struct Reporter {
    shown: Option<(Step, Progress)>,
}

impl Reporter {
    /// `done` of `total` bytes of a step are done. Another step ends the one before.
    pub fn set(&mut self, step: Step, done: u64, total: u64) {
        match &mut self.shown {
            Some((current, progress)) if *current == step => progress.set(done, total),
            _ => {
                let mut progress = Progress::bytes(step.words());
                progress.set(done, total);
                self.shown = Some((step, progress));
            }
        }
    }
}
