//! The model of a line: how long stages compute, and how long messages travel.

use std::time::Duration;

/// Times of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct LineModel {
    /// Stage 0 first.
    pub stages: Vec<StageModel>,
    /// From the front to stage 0, from each stage to the next, and from the tail to the front: one more than stages.
    pub links: Vec<Duration>,
    /// From the front to any stage on its control link.
    pub control: Duration,
    /// Sequences that the stages hold at once.
    pub n_slots: u16,
    /// Processors that the stages share, at least 1: a call waits until one is free, and that looks to its stage as if it
    /// had computed for longer. None if each stage has a machine of its own.
    pub processors: Option<usize>,
}

/// Time of one stage's calls over their rows.
#[derive(Clone, Debug, PartialEq)]
pub struct StageModel {
    /// Row counts and times, both ascending; at least one. Between two of them a call takes the time of the upper one,
    /// beyond the last one the time grows with its rows.
    pub steps: Vec<(u32, Duration)>,
}

impl StageModel {
    /// A stage that takes `one` for a row, and a share `per_row` of it for each further one.
    #[must_use]
    pub fn linear(one: Duration, per_row: f64) -> Self {
        let rows = (1..=16).chain([32, 64, 128, 256, 512]);
        let time = |rows: u32| one.mul_f64(1.0 + per_row * f64::from(rows - 1));
        Self { steps: rows.map(|rows| (rows, time(rows))).collect() }
    }

    /// Time of a call.
    #[must_use]
    pub fn time(&self, n_rows: usize) -> Duration {
        let step = self.steps.iter().find(|(rows, _)| n_rows <= *rows as usize);
        match (step, self.steps.last()) {
            (Some((_, time)), _) => *time,
            (None, Some((rows, time))) => time.mul_f64(n_rows as f64 / f64::from(*rows)),
            (None, None) => Duration::ZERO,
        }
    }
}

impl LineModel {
    /// Stages with `delay` between them and back to the front, in whose process the first one lives.
    #[must_use]
    pub fn of(stages: Vec<StageModel>, delay: Duration) -> Self {
        let mut links = vec![delay; stages.len() + 1];
        links[0] = Duration::ZERO;
        Self { stages, links, control: delay, n_slots: 16, processors: None }
    }

    /// Equal stages, as [`LineModel::of`].
    #[must_use]
    pub fn even(n_stages: u16, stage: StageModel, delay: Duration) -> Self {
        Self::of(vec![stage; usize::from(n_stages)], delay)
    }

    /// Time of a window around an idle line; of one row it is what plain decoding takes for a token at best.
    #[must_use]
    pub fn loop_time(&self, n_rows: usize) -> Duration {
        let inside: Duration = self.stages.iter().map(|stage| stage.time(n_rows)).sum();
        inside + self.links.iter().sum::<Duration>()
    }

    /// Whether `depth` windows of `width` rows keep the slowest stage busy.
    pub(crate) fn is_filled_by(&self, width: u32, depth: u32) -> bool {
        let slowest = self.stages.iter().map(|stage| stage.time(width as usize)).max().unwrap_or_default();
        slowest * depth >= self.loop_time(width as usize)
    }
}
