//! How often a source is right: rejections per exposure, by how long it has been right before.
//!
//! A *hazard* is the share of guesses that are wrong among those whose predecessors were all right. By run, because a
//! source that has been right for twenty tokens is in another situation than one that was wrong just now. The prior
//! gives the hazards' shape over runs. Their level is learned from all of a source's guesses together, so that a text
//! that suits it (or does not) shows within a dozen tokens; each class of runs then learns its own.

use crate::proposer::{Prior, RUNS, run_class};

/// The prior counts like this many exposures: a handful of tokens overrules it.
const PRIOR_WEIGHT: f64 = 4.0;
/// Where rejections are rare it counts like this many of them as well, for a single one says little there.
const PRIOR_REJECTIONS: f64 = 1.5;
/// It counts like so many exposures at most.
const MOST_WEIGHT: f64 = 100.0;
/// Older exposures count less, by this factor for each newer one of the same class: about the last three hundred matter.
/// Fewer would say too little about a source that is wrong once in thirty tokens; a text that changes its manner changes
/// the runs first, and guessing that loses is given up long before.
const DECAY: f64 = 0.997;
/// What is not measured again is believed less with each token, so that a source whose guesses are not worth their cost
/// is tried again when the text may have changed: a dozen wrong guesses are forgotten after some thousand tokens, so
/// trying takes about one token in a hundred.
const FADE: f64 = 0.9985;
/// The prior's level counts like this many rejections: little, for sources differ by whole factors.
const LEVEL_WEIGHT: f64 = 0.4;
/// No source is certain: keeps expected runs finite.
const LEAST: f64 = 0.002;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    prior: Prior,
    classes: [Class; RUNS.len() + 1],
    /// Rejections of all classes, and how many the prior expects.
    rejections: f64,
    expected: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    exposures: f64,
    rejections: f64,
}

impl Agreement {
    pub(crate) fn new(prior: Prior) -> Self {
        Self { prior, classes: Default::default(), rejections: 0.0, expected: 0.0 }
    }

    /// A guess with this run was judged.
    pub(crate) fn observe(&mut self, run: u32, was_right: bool) {
        let i = run_class(run);
        let rejection = f64::from(u8::from(!was_right));
        self.expected = self.expected * DECAY + self.prior[i];
        self.rejections = self.rejections * DECAY + rejection;
        let class = &mut self.classes[i];
        class.exposures = class.exposures * DECAY + 1.0;
        class.rejections = class.rejections * DECAY + rejection;
    }

    /// A token has gone by on which the source was not heard.
    pub(crate) fn fade(&mut self) {
        self.rejections *= FADE;
        self.expected *= FADE;
        for class in &mut self.classes {
            class.exposures *= FADE;
            class.rejections *= FADE;
        }
    }

    /// The probability that a guess with this run is wrong, 0 to 1 exclusive.
    pub(crate) fn hazard(&self, run: u32) -> f64 {
        let i = run_class(run);
        let Class { exposures, rejections } = self.classes[i];
        let level = (LEVEL_WEIGHT + self.rejections) / (LEVEL_WEIGHT + self.expected);
        let prior = (self.prior[i] * level).clamp(LEAST, 1.0);
        let weight = (PRIOR_WEIGHT + PRIOR_REJECTIONS / prior).min(MOST_WEIGHT);
        let hazard = (prior * weight + rejections) / (weight + exposures);
        hazard.clamp(LEAST, 1.0 - LEAST)
    }
}

/// The probability that a guess is wrong which its source gives the probability `p`.
pub(crate) fn hazard_of(p: f32) -> f64 {
    (1.0 - f64::from(p)).clamp(LEAST, 1.0 - LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_overrules_the_prior_and_what_is_new_overrules_the_old() {
        let mut agreement = Agreement::new([0.5; 8]);
        assert_eq!(agreement.hazard(9), 0.5);
        (0..400).for_each(|i| agreement.observe(9, i % 10 != 0));
        assert!((agreement.hazard(9) - 0.1).abs() < 0.03, "{}", agreement.hazard(9));
        assert!(agreement.hazard(4) < 0.15, "a source that suits the text suits it everywhere");
        (0..40).for_each(|_| agreement.observe(4, false));
        assert!(agreement.hazard(4) > 0.8 && agreement.hazard(9) < 0.2, "but runs are told apart");
        (0..100).for_each(|_| agreement.observe(9, false));
        assert!(agreement.hazard(9) > 0.35, "{}", agreement.hazard(9));
        (0..400).for_each(|_| agreement.observe(9, false));
        assert!(agreement.hazard(9) > 0.8);
        (0..5000).for_each(|_| agreement.observe(9, true));
        assert!(agreement.hazard(9) > 0.0);
    }
}
