//! Figures with their bounds: the table for people, the file for programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::Serialize;

use super::stats::Median;

/// Above this load something else took time from what was measured.
const BUSY: f64 = 0.5;

/// What a figure must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn words(self) -> String {
        match self {
            Self::AtMost(most) => format!("at most {most}"),
            Self::AtLeast(least) => format!("at least {least}"),
        }
    }
}

/// One measured figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    name: String,
    unit: &'static str,
    #[serde(flatten)]
    value: Median,
    bound: Option<Bound>,
    judged: Judged,
    /// Whether what is judged keeps the bound; true without one.
    met: bool,
}

/// What of a figure must keep its bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Judged {
    Median,
    /// The worse end of the interval.
    Interval,
}

/// Where and when something was measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// Seconds since 1970.
    unix_time: u64,
    build: String,
    processor: String,
    cores: u32,
    /// Processes that ran or waited to run at the start, averaged over a minute; what else the machine was busy with.
    load: Option<f64>,
}

impl Machine {
    /// This machine, now.
    pub(super) fn look(build: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "results are dated")]
        let now = SystemTime::now();
        Self {
            unix_time: now.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
            build: build.to_owned(),
            processor: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: crate::signals::cores(),
            load: load(),
        }
    }

    /// For people: a line, and a second one if the machine was busy.
    pub(super) fn words(&self) -> String {
        let Self { processor, cores, build, load, .. } = self;
        let machine = format!("{processor}, {cores} cores; {build}");
        match load.filter(|load| *load > BUSY) {
            None => machine,
            Some(load) => format!(
                "{machine}\nThe machine was busy with other things (load {load}): do not trust these figures far."
            ),
        }
    }
}

/// All figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    machine: Machine,
    figures: Vec<Figure>,
}

impl Report {
    pub(super) fn new(build: &str) -> Self {
        Self { machine: Machine::look(build), figures: Vec::new() }
    }

    pub(super) fn add(&mut self, name: String, unit: &'static str, value: Median, bound: Option<Bound>) {
        let met = bound.is_none_or(|bound| bound.is_met(value.median));
        self.figures.push(Figure { name, unit, value, bound, judged: Judged::Median, met });
    }

    /// A figure of which the whole interval must keep the bound.
    pub(super) fn add_surely(&mut self, name: String, unit: &'static str, value: Median, bound: Bound) {
        let met = bound.is_met(value.low) && bound.is_met(value.high);
        self.figures.push(Figure { name, unit, value, bound: Some(bound), judged: Judged::Interval, met });
    }

    pub(super) fn is_met(&self) -> bool {
        self.figures.iter().all(|figure| figure.met)
    }

    pub(super) fn print(&self) {
        println!("{}", self.machine.words());
        println!();
        let width = self.figures.iter().map(|figure| figure.name.len()).max().unwrap_or(0);
        println!("{:width$}  {:>9}  {:>21}  {:7}  bound", "", "median", "90 % interval", "");
        for Figure { name, unit, value: Median { median, low, high, .. }, bound, judged, met } in
            &self.figures
        {
            let all = if *judged == Judged::Interval { "all " } else { "" };
            let verdict = match (bound, met) {
                (None, _) => String::new(),
                (Some(bound), true) => format!("{all}{}: met", bound.words()),
                (Some(bound), false) => format!("{all}{}: MISSED", bound.words()),
            };
            let line = format!("{name:width$}  {median:9.3}  {low:9.3} – {high:9.3}  {unit:7}  {verdict}");
            println!("{}", line.trim_end());
        }
    }

    /// Writes `line-SECONDS.json` into the folder.
    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        self.write_part(folder, "line", self)
    }

    /// Writes something else that was measured in this run: `NAME-SECONDS.json`.
    pub(super) fn write_part(
        &self,
        folder: &Path,
        name: &str,
        part: &impl Serialize,
    ) -> anyhow::Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
        let path = folder.join(format!("{name}-{}.json", self.machine.unix_time));
        let mut text = serde_json::to_string_pretty(part)?;
        text.push('\n');
        fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
        Ok(path)
    }
}

/// The processor in its maker's words, where the system tells.
fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The first number of `/proc/loadavg`.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bound_fails_the_run() {
        let mut report = Report::new("test");
        report.add("a".into(), "ms", Median::of(vec![0.1]), Some(Bound::AtMost(0.15)));
        report.add("b".into(), "ratio", Median::of(vec![0.9]), None);
        assert!(report.is_met());
        report.add("b".into(), "ratio", Median::of(vec![0.9]), Some(Bound::AtLeast(0.95)));
        assert!(!report.is_met());
    }

    #[test]
    fn some_bounds_are_for_the_whole_interval() {
        let values = vec![0.9, 1.0, 1.1];
        let mut report = Report::new("test");
        report.add("a".into(), "ratio", Median::of(values.clone()), Some(Bound::AtLeast(0.95)));
        report.add_surely("a".into(), "ratio", Median::of(values.clone()), Bound::AtLeast(0.9));
        assert!(report.is_met());
        report.add_surely("a".into(), "ratio", Median::of(values), Bound::AtLeast(0.95));
        assert!(!report.is_met());
    }

    #[test]
    fn results_are_flat_json() {
        let mut report = Report::new("test");
        report.add("a".into(), "ms", Median::of(vec![0.1]), Some(Bound::AtMost(0.15)));
        let json = serde_json::to_value(&report).unwrap();
        let figure = serde_json::json!({
            "name": "a", "unit": "ms", "median": 0.1, "low": 0.1, "high": 0.1, "n": 1,
            "bound": {"at_most": 0.15}, "judged": "median", "met": true
        });
        assert_eq!(json["figures"][0], figure);
    }
}
