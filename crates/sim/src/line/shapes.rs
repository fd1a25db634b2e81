//! Lines whose layers are shared out anew when they are formed again: two sets of stages, each with disks of its own.

use ::stage::Config;

use super::Line;
use super::stage::Stage;
use crate::front::Front;
use crate::random::Random;
use crate::scenario::Scenario;
use crate::toy::Flaws;

/// The stages of a line, and those that share its layers otherwise.
pub(super) fn born(scenario: &Scenario, flaws: &Flaws, random: &mut Random) -> (Vec<Stage>, Vec<Stage>) {
    let mut others = random.clone();
    let share = |stages: &[(protocol::LayerRange, _)], random: &mut Random| {
        let n_stages = stages.len();
        let stage = |(index, &(layers, time)): (usize, &_)| {
            let flaws = Flaws { random: random.fork(), ..flaws.clone() };
            let has_store = scenario.stores.everywhere || index + 1 < n_stages;
            let config =
                Config { row_dtype: scenario.row_dtype, prefix_bytes: scenario.prefix_bytes, has_store };
            Stage::new(&scenario.model, scenario.model.shape(layers, scenario.sizes), config, flaws, time)
        };
        stages.iter().enumerate().map(stage).collect::<Vec<_>>()
    };
    let stages = share(&scenario.stages, random);
    let others = share(&scenario.others, &mut others);
    (stages, others.into_iter().map(|stage| stage.after(1)).collect())
}

impl<F: Front> Line<F> {
    /// A line is formed: perhaps by others.
    pub(super) fn take_turns(&mut self) {
        if self.others.is_empty() || self.generation.0 == 0 || self.turns.percent(50) {
            return;
        }
        self.stages.iter().for_each(|stage| stage.add_to(&mut self.counts));
        std::mem::swap(&mut self.stages, &mut self.others);
        self.stages.iter_mut().for_each(|stage| stage.begins_anew(false));
        self.counts.reshapes += 1;
        // The first ones are called as a configuration calls them.
        let is_first = self.counts.reshapes.is_multiple_of(2);
        let line = if is_first { [0; 32] } else { [1; 32] };
        self.front.reshape(self.stages.len() as u16, line);
    }
}
