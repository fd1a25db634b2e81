//! How long a line takes: each stage's call by its rows, and the way between the stages.
//!
//! Learned from the timings that every verdict and every passed chunk carries; nothing is sent to measure. Shared by
//! all sequences of a line. Times are seconds.

use std::time::Duration;

use protocol::StageTiming;

use crate::controller::MAX_WIDTH;
use crate::plan::WIDTHS;

/// Row counts whose time is kept apart. A call's time over its rows is a staircase, so a formula would not do.
const ROWS: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024];
/// A row more costs this share of a call with one row, as long as nothing wider was measured: between a GPU's (a few
/// percent) and a CPU's (most of it), so that a width that pays on either is tried at all.
const PRIOR_ROW: f64 = 0.25;
/// Weight of a new measurement.
const NEW: f64 = 0.2;
/// A single measurement changes an estimate at most by this factor: one call that the operating system disturbed must
/// not put a width out of use.
const MOST_CHANGE: f64 = 3.0;
/// What is not measured again is believed less with each call, so that a width given up after a bad hour is tried
/// again: half after some 350 calls.
const FADE: f64 = 0.998;
/// What is believed less than this counts as never measured.
const FORGOTTEN: f64 = 0.05;

/// See the module.
#[derive(Clone, Debug)]
pub struct Pace {
    stages: Vec<Staircase>,
    /// All links together, the verdict's way back included.
    links: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Of the calls measured, on average: they may have had fewer than the step's.
    rows: f64,
    seconds: f64,
    /// 0 for never measured, 1 for just now.
    belief: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Staircase {
    steps: [Step; ROWS.len()],
}

impl Pace {
    /// A line of which nothing is known.
    #[must_use]
    pub fn new(n_stages: u16) -> Self {
        Self { stages: vec![Staircase::default(); usize::from(n_stages)], links: None }
    }

    /// Stages in the line.
    #[must_use]
    pub fn n_stages(&self) -> usize {
        self.stages.len()
    }

    /// What the stages measured on one window, and how long it was under way, from the front and back to it.
    pub fn observe(&mut self, timings: &[StageTiming], under_way: Duration) {
        for (stage, timing) in self.stages.iter_mut().zip(timings) {
            stage.observe(timing);
        }
        let inside: f64 = timings.iter().map(|t| seconds(t.queue_us) + seconds(t.compute_us)).sum();
        let links = (under_way.as_secs_f64() - inside).max(0.0);
        self.links = Some(self.links.map_or(links, |before| change(before, links)));
    }

    /// What the stages measured on a chunk of a prompt. The tail computes no logits for it, which on some models is
    /// most of its work: a short chunk's time there would pass for that of a window. A long one only says where widths
    /// that were never tried may lie; that it seems cheap has them tried.
    pub fn observe_chunk(&mut self, timings: &[StageTiming]) {
        let tail = self.stages.len().saturating_sub(1);
        for (i, (stage, timing)) in self.stages.iter_mut().zip(timings).enumerate() {
            if i < tail || timing.batch_rows > MAX_WIDTH {
                stage.observe(timing);
            }
        }
    }

    /// Whether anything went round the line yet.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.links.is_some()
    }

    /// The narrowest of [`WIDTHS`], up to `most`, whose time some stage has not measured, or not for long.
    #[must_use]
    pub fn unknown_width(&self, most: u32) -> Option<u32> {
        let is_known = |width: u32| self.stages.iter().all(|stage| stage.knows(width));
        WIDTHS.into_iter().find(|&width| width <= most && !is_known(width))
    }

    /// Time of a window of `n_rows` around the line if it waits nowhere.
    #[must_use]
    pub fn loop_time(&self, n_rows: u32) -> f64 {
        self.links() + self.inside(n_rows)
    }

    /// Time on all links together, the verdict's way back included; 0 before it is known.
    #[must_use]
    pub fn links(&self) -> f64 {
        self.links.unwrap_or(0.0)
    }

    /// Time of a window of `n_rows` in all stages together.
    #[must_use]
    pub fn inside(&self, n_rows: u32) -> f64 {
        self.stages.iter().map(|stage| stage.time(n_rows)).sum()
    }

    /// Time of a window of `n_rows` in the slowest stage.
    #[must_use]
    pub fn slowest(&self, n_rows: u32) -> f64 {
        self.stages.iter().map(|stage| stage.time(n_rows)).fold(0.0, f64::max)
    }
}

impl Staircase {
    fn observe(&mut self, timing: &StageTiming) {
        let (n_rows, seconds) = (timing.batch_rows, seconds(timing.compute_us));
        let at = ROWS.iter().position(|&rows| n_rows <= rows).unwrap_or(ROWS.len() - 1);
        // The time of one row is what everything else is compared with: it is never forgotten.
        self.steps.iter_mut().skip(1).for_each(|step| step.belief *= FADE);
        let step = &mut self.steps[at];
        if step.belief > FORGOTTEN {
            step.seconds = change(step.seconds, seconds);
            step.rows += NEW * (f64::from(n_rows) - step.rows);
        } else {
            (step.seconds, step.rows) = (seconds, f64::from(n_rows));
        }
        step.belief = 1.0;
    }

    fn knows(&self, n_rows: u32) -> bool {
        let step = ROWS.iter().position(|&rows| n_rows <= rows);
        step.is_some_and(|at| self.steps[at].belief > FORGOTTEN)
    }

    /// A call with `n_rows`: what was measured, as far as that is believed, and else what its neighbours suggest.
    fn time(&self, n_rows: u32) -> f64 {
        let at = ROWS.iter().position(|&rows| n_rows <= rows).unwrap_or(ROWS.len() - 1);
        let Step { seconds, mut belief, .. } = self.steps[at];
        if belief <= FORGOTTEN {
            belief = 0.0;
        }
        let guessed = if belief < 1.0 { self.between(at, f64::from(n_rows)) } else { seconds };
        belief * seconds + (1.0 - belief) * guessed
    }

    /// What the measured steps on either side suggest for a call with so many rows. A wider call counts as if it had
    /// filled its step: a width that seems cheaper than it is will be tried and measured, one that seems dearer would
    /// not.
    fn between(&self, at: usize, rows: f64) -> f64 {
        let known = |i: &usize| self.steps[*i].belief > FORGOTTEN;
        let below = (0..at).rev().find(known).map(|i| self.steps[i]);
        let above = (at + 1..ROWS.len()).find(known).map(|i| (f64::from(ROWS[i]), self.steps[i].seconds));
        let by_prior = |seconds: f64, measured: f64| {
            seconds * (1.0 + PRIOR_ROW * (rows - 1.0)) / (1.0 + PRIOR_ROW * (measured - 1.0))
        };
        match (below, above) {
            (Some(low), Some((high_rows, high))) => {
                let share = (rows - low.rows) / (high_rows - low.rows);
                low.seconds + (high - low.seconds).max(0.0) * share
            }
            (Some(low), None) => by_prior(low.seconds, low.rows),
            (None, Some((high_rows, high))) => by_prior(high, high_rows),
            (None, None) => self.steps[at].seconds,
        }
    }
}

fn seconds(micros: u32) -> f64 {
    f64::from(micros) / 1e6
}

fn change(before: f64, new: f64) -> f64 {
    let new = if before > 0.0 { new.clamp(before / MOST_CHANGE, before * MOST_CHANGE) } else { new };
    before + NEW * (new - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(rows: u32, micros: u32) -> StageTiming {
        StageTiming { queue_us: 500, compute_us: micros, batch_rows: rows }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn waiting_is_neither_computing_nor_travelling() {
        let mut pace = Pace::new(2);
        assert!(!pace.is_known());
        pace.observe(&[timing(1, 5000), timing(1, 3000)], Duration::from_millis(49));
        assert!(close(pace.loop_time(1), 0.048), "40 ms on links, 8 in stages, 1 waiting");
        assert!(close(pace.slowest(1), 0.005));
    }

    #[test]
    fn widths_between_measured_ones_lie_between_them() {
        let mut pace = Pace::new(1);
        pace.observe(&[timing(1, 1000)], Duration::ZERO);
        assert!(close(pace.slowest(4), 0.00175), "by the prior alone");
        pace.observe(&[timing(128, 13_700)], Duration::ZERO);
        assert!((pace.slowest(3) - 0.0012).abs() < 1e-5, "{}", pace.slowest(3));
        pace.observe(&[timing(3, 2900)], Duration::ZERO);
        assert!((pace.slowest(3) - 0.0029).abs() < 1e-5);
        assert!(pace.slowest(2) > 0.0019 && pace.slowest(4) > 0.0029, "a step up is a step up");
    }

    #[test]
    fn a_short_chunk_says_nothing_about_the_tails_windows() {
        let mut pace = Pace::new(2);
        pace.observe(&[timing(1, 2000), timing(1, 9000)], Duration::from_millis(20));
        let unknown = pace.slowest(4);
        pace.observe_chunk(&[timing(4, 3000), timing(4, 1000)]);
        assert!(close(pace.slowest(4), unknown), "the tail's head was not computed");
        assert!(close(pace.inside(4), unknown + 0.003), "elsewhere rows are rows");
        pace.observe_chunk(&[timing(256, 90_000), timing(256, 80_000)]);
        assert!(pace.slowest(4) < unknown, "and long ones show where the rest lies");
    }

    #[test]
    fn what_is_unknown_is_named_from_the_narrow_end() {
        let mut pace = Pace::new(2);
        for width in [1, 2, 3, 4] {
            assert_eq!(pace.unknown_width(4), Some(width));
            pace.observe(&[timing(width, 1000); 2], Duration::ZERO);
        }
        assert_eq!((pace.unknown_width(4), pace.unknown_width(16)), (None, Some(6)));
        for _ in 0..3000 {
            pace.observe(&[timing(1, 1000); 2], Duration::ZERO);
        }
        assert_eq!(pace.unknown_width(4), Some(2), "what was measured long ago");
    }

    #[test]
    fn one_odd_measurement_changes_little_and_an_old_one_fades() {
        let mut pace = Pace::new(1);
        for _ in 0..20 {
            pace.observe(&[timing(1, 1000)], Duration::ZERO);
        }
        pace.observe(&[timing(4, 90_000)], Duration::ZERO);
        assert!(pace.slowest(4) > 0.08);
        pace.observe(&[timing(1, 500_000)], Duration::ZERO);
        assert!(pace.slowest(1) < 0.0015);
        for _ in 0..2000 {
            pace.observe(&[timing(1, 1000)], Duration::ZERO);
        }
        pace.observe(&[timing(128, 20_000)], Duration::ZERO);
        pace.observe(&[timing(19, 5000)], Duration::ZERO);
        assert!((pace.slowest(16) - 0.003).abs() < 2e-4, "a step counts as filled: {}", pace.slowest(16));
        assert!(pace.slowest(4) < 0.005, "{}", pace.slowest(4));
    }
}
