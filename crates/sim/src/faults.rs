//! What goes wrong beside outages: stages that die at any instruction, clocks that jump, disks that are slow.
//!
//! All of it happens in the first phase of a run, in which nothing wrong may be said (safety). Then everything works
//! again, and whoever asks now must be answered (liveness). Decided by the seed alone, so that what was drawn before
//! stays as it was.

use std::time::Duration;

use crate::Plan;
use crate::random::{Random, mix};

/// From now on nothing goes wrong any more: far behind the last fault, and the patience that any of them is met with.
pub(crate) const CALM: Duration = Duration::from_secs(2000);

/// A process that ends between two instructions, and comes back knowing nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) stage: usize,
    /// Frames, hints and results that it still takes in.
    pub(crate) after: u32,
    /// Of what it says to the next one, so much leaves it.
    pub(crate) says: u32,
    /// Until the front hears of it.
    pub(crate) noticed: Duration,
    /// From then on until it is back.
    pub(crate) lasts: Duration,
    /// Whether what it had stored is gone, too.
    pub(crate) forgets: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) deaths: Vec<Death>,
    /// When, and how far.
    pub(crate) jumps: Vec<(Duration, Duration)>,
    /// How many times as long as usual the stores take.
    pub(crate) disk: u32,
}

impl Faults {
    pub(crate) fn draw(plan: &Plan, n_stages: usize) -> Self {
        let mut random = Random::new(mix(plan.seed ^ 0xfa17));
        if plan.calm {
            return Self { disk: 1, ..Self::default() };
        }
        let n_deaths = random.pick(&[0, 0, 1, 1, 2, 5]);
        let n_jumps = random.pick(&[0, 0, 0, 1, 2]);
        Self {
            deaths: (0..n_deaths).map(|_| Death::draw(n_stages, &mut random)).collect(),
            // Up to what a machine sleeps while nobody gives up on it: less than the longest wait for a line.
            jumps: (0..n_jumps)
                .map(|_| {
                    (random.micros(0, 100_000), random.micros(1, 200_000) * random.pick(&[1, 100, 1000]))
                })
                .collect(),
            disk: random.pick(&[1, 1, 1, 100]),
        }
    }
}

impl Death {
    fn draw(n_stages: usize, random: &mut Random) -> Self {
        Self {
            stage: random.between(0, n_stages as u32 - 1) as usize,
            after: random.between(0, random.clone().pick(&[3, 40, 400])),
            says: random.between(0, 3),
            noticed: random.micros(0, 3000),
            lasts: random.micros(1, 20_000),
            forgets: random.percent(30),
        }
    }
}
