//! A stage's time by the rows of a call: measured where calls were made, and guessed in between.
//!
//! Owns: what was measured at each step, and how far it is still believed. Does not know what company does to it (`pace`).

use protocol::StageTiming;

use crate::pace::{NEW, change, seconds};

/// Row counts whose time is kept apart. A call's time over its rows is a staircase, so a formula would not do.
const ROWS: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024];
/// A row more costs this share of a call with one row, as long as nothing wider was measured: between a GPU's (a few
/// percent) and a CPU's (most of it), so that a width that pays on either is tried at all.
const PRIOR_ROW: f64 = 0.25;
/// What is not measured again is believed less with each call, so that a width given up after a bad hour is tried
/// again: half after some 350 calls.
const FADE: f64 = 0.998;
/// What is believed less than this counts as never measured.
const FORGOTTEN: f64 = 0.05;
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Of the calls measured, on average: they may have had fewer than the step's.
    rows: f64,
    seconds: f64,
    /// 0 for never measured, 1 for just now.
    belief: f64,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Staircase {
    steps: [Step; ROWS.len()],
}

impl Staircase {
    pub(crate) fn observe(&mut self, timing: &StageTiming) {
        let (n_rows, seconds) = (timing.batch_rows, seconds(timing.compute_us));
        let step = self.fade_but(n_rows);
        if step.belief > FORGOTTEN {
            step.seconds = change(step.seconds, seconds);
            step.rows += NEW * (f64::from(n_rows) - step.rows);
        } else {
            (step.seconds, step.rows) = (seconds, f64::from(n_rows));
        }
        step.belief = 1.0;
    }

    /// A step that is known holds: calls of its width are being made.
    pub(crate) fn confirm(&mut self, n_rows: u32) {
        self.fade_but(n_rows).belief = 1.0;
    }

    /// The step of a call; all others are believed less. The time of one row is what everything else is compared with:
    /// it is never forgotten.
    fn fade_but(&mut self, n_rows: u32) -> &mut Step {
        let at = ROWS.iter().position(|&rows| n_rows <= rows).unwrap_or(ROWS.len() - 1);
        for (i, step) in self.steps.iter_mut().enumerate().skip(1) {
            step.belief *= if i == at { 1.0 } else { FADE };
        }
        &mut self.steps[at]
    }

    pub(crate) fn knows(&self, n_rows: u32) -> bool {
        let step = ROWS.iter().position(|&rows| n_rows <= rows);
        step.is_some_and(|at| self.steps[at].belief > FORGOTTEN)
    }

    /// A call with `n_rows`: what was measured, as far as that is believed, and else what its neighbours suggest.
    pub(crate) fn time(&self, n_rows: u32) -> f64 {
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
