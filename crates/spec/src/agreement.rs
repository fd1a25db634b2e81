//! How often a source is right: rejections per exposure, by how long it has been right before.
//!
//! A *hazard* is the share of guesses that are wrong among those whose predecessors were all right. By run, because a
//! source that has been right for twenty tokens is in another situation than one that was wrong just now. The prior
//! gives the hazards' shape over runs; a source that has probabilities is measured by those instead, which corrects what
//! it thinks too much or too little of itself. Their level is learned from all of a source's guesses together, so that a text
//! that suits it (or does not) shows within a dozen tokens; each class of runs then learns its own.

use crate::proposer::{Prior, RUNS, Trust, run_class};

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
    by_run: Table,
    by_probability: Table,
}

/// Classes of guesses that are alike.
#[derive(Clone, Debug, Default)]
struct Table {
    classes: [Class; RUNS.len() + 1],
    /// Rejections of all classes, and how many the prior expects.
    rejections: f64,
    expected: f64,
}

/// Hazards that are told apart where a source has probabilities: up to each of these, and more.
const HAZARDS: [f64; RUNS.len()] = [0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8];

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    exposures: f64,
    rejections: f64,
}

impl Agreement {
    pub(crate) fn new(prior: Prior) -> Self {
        Self { prior, by_run: Table::default(), by_probability: Table::default() }
    }

    /// A guess of this trust was judged.
    pub(crate) fn observe(&mut self, trust: Trust, was_right: bool) {
        let (class, prior) = self.place(trust);
        let table = match trust {
            Trust::Run(_) => &mut self.by_run,
            Trust::Probability(_) => &mut self.by_probability,
        };
        table.observe(class, prior, was_right);
    }

    /// The probability that a guess of this trust is wrong, 0 to 1 exclusive.
    pub(crate) fn hazard(&self, trust: Trust) -> f64 {
        let (class, prior) = self.place(trust);
        match trust {
            Trust::Run(_) => self.by_run.hazard(class, prior),
            Trust::Probability(_) => self.by_probability.hazard(class, prior),
        }
    }

    /// A token has gone by on which the source was not heard.
    pub(crate) fn fade(&mut self) {
        self.by_run.fade();
        self.by_probability.fade();
    }

    /// The class of a guess, and its hazard before anything was measured.
    fn place(&self, trust: Trust) -> (usize, f64) {
        match trust {
            Trust::Run(run) => {
                let class = run_class(run);
                (class, self.prior[class])
            }
            Trust::Probability(p) => {
                let hazard = hazard_of(p);
                (HAZARDS.iter().position(|&most| hazard <= most).unwrap_or(HAZARDS.len()), hazard)
            }
        }
    }
}

impl Table {
    fn observe(&mut self, class: usize, prior: f64, was_right: bool) {
        let rejection = f64::from(u8::from(!was_right));
        self.expected = self.expected * DECAY + prior;
        self.rejections = self.rejections * DECAY + rejection;
        let class = &mut self.classes[class];
        class.exposures = class.exposures * DECAY + 1.0;
        class.rejections = class.rejections * DECAY + rejection;
    }

    /// A token has gone by on which the source was not heard.
    fn fade(&mut self) {
        self.rejections *= FADE;
        self.expected *= FADE;
        for class in &mut self.classes {
            class.exposures *= FADE;
            class.rejections *= FADE;
        }
    }

    fn hazard(&self, class: usize, prior: f64) -> f64 {
        let Class { exposures, rejections } = self.classes[class];
        let level = (LEVEL_WEIGHT + self.rejections) / (LEVEL_WEIGHT + self.expected);
        let prior = (prior * level).clamp(LEAST, 1.0);
        let weight = (PRIOR_WEIGHT + PRIOR_REJECTIONS / prior).min(MOST_WEIGHT);
        let hazard = (prior * weight + rejections) / (weight + exposures);
        hazard.clamp(LEAST, 1.0 - LEAST)
    }
}

/// The probability that a guess is wrong which its source gives the probability `p`.
fn hazard_of(p: f32) -> f64 {
    (1.0 - f64::from(p)).clamp(LEAST, 1.0 - LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_overrules_the_prior_and_what_is_new_overrules_the_old() {
        let mut agreement = Agreement::new([0.5; 8]);
        assert_eq!(agreement.hazard(Trust::Run(9)), 0.5);
        (0..400).for_each(|i| agreement.observe(Trust::Run(9), i % 10 != 0));
        assert!((agreement.hazard(Trust::Run(9)) - 0.1).abs() < 0.03, "{}", agreement.hazard(Trust::Run(9)));
        assert!(agreement.hazard(Trust::Run(4)) < 0.15, "a source that suits the text suits it everywhere");
        (0..40).for_each(|_| agreement.observe(Trust::Run(4), false));
        assert!(
            agreement.hazard(Trust::Run(4)) > 0.8 && agreement.hazard(Trust::Run(9)) < 0.2,
            "but runs are told apart"
        );
        (0..100).for_each(|_| agreement.observe(Trust::Run(9), false));
        assert!(agreement.hazard(Trust::Run(9)) > 0.35, "{}", agreement.hazard(Trust::Run(9)));
        (0..400).for_each(|_| agreement.observe(Trust::Run(9), false));
        assert!(agreement.hazard(Trust::Run(9)) > 0.8);
        (0..5000).for_each(|_| agreement.observe(Trust::Run(9), true));
        assert!(agreement.hazard(Trust::Run(9)) > 0.0);
    }

    #[test]
    fn a_source_that_thinks_too_much_of_itself_is_not_believed() {
        let mut agreement = Agreement::new([0.5; 8]);
        let (sure, unsure) = (Trust::Probability(0.98), Trust::Probability(0.5));
        assert!((agreement.hazard(sure) - 0.02).abs() < 1e-6);
        (0..40).for_each(|i| agreement.observe(sure, i % 2 == 0));
        assert!((agreement.hazard(sure) - 0.5).abs() < 0.1, "{}", agreement.hazard(sure));
        assert!(agreement.hazard(unsure) > 0.9, "what it is not even sure of is worse");
        (0..40).for_each(|_| agreement.observe(unsure, true));
        assert!(agreement.hazard(unsure) < 0.2);
        assert_eq!(agreement.hazard(Trust::Run(3)), 0.5, "by run nothing was measured");
    }
}
