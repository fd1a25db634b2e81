//! Who may sit where: machines that hold a seat's layers, and others that share the layers out in another way. Each has a
//! disk of its own.

use ::stage::Config;

use super::stage::Stage;
use crate::random::Random;
use crate::scenario::{CallTime, Scenario};
use crate::toy::Flaws;

/// A seat, and the machines that hold its layers: whoever sat there last comes first.
#[derive(Clone, Debug)]
pub(super) struct Seat(Vec<usize>);

impl Seat {
    pub(super) fn candidates(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// A machine sits down: whether it takes another one's place.
    pub(super) fn sits(&mut self, machine: usize) -> bool {
        let is_other = self.0.first() != Some(&machine);
        self.0.sort_by_key(|&other| other != machine);
        is_other
    }
}

/// All machines, and the seats of each way to share the layers out.
pub(super) fn born(scenario: &Scenario, flaws: &Flaws, random: &mut Random) -> (Vec<Stage>, Vec<Vec<Seat>>) {
    let mut machines = Vec::new();
    let mut share = |stages: &[(protocol::LayerRange, CallTime)], random: &mut Random| -> Vec<usize> {
        let n_stages = stages.len();
        let first = machines.len();
        for (index, &(layers, time)) in stages.iter().enumerate() {
            let flaws = Flaws { random: random.fork(), ..flaws.clone() };
            let has_store = scenario.stores.everywhere || index + 1 < n_stages;
            let config =
                Config { row_dtype: scenario.row_dtype, prefix_bytes: scenario.prefix_bytes, has_store };
            let shape = scenario.model.shape(layers, scenario.sizes);
            machines.push(Stage::new(&scenario.model, shape, config, flaws, time));
        }
        (first..first + n_stages).collect()
    };
    let mut others = random.clone();
    let mut shapes = vec![share(&scenario.stages, random)];
    if !scenario.others.is_empty() {
        shapes.push(share(&scenario.others, &mut others));
    }
    let mut seats: Vec<Vec<Seat>> = shapes
        .into_iter()
        .map(|shape| shape.into_iter().map(|machine| Seat(vec![machine])).collect())
        .collect();
    if scenario.faults.has_spares {
        for (seats, stages) in seats.iter_mut().zip([&scenario.stages, &scenario.others]) {
            let spares = share(stages, &mut others);
            seats.iter_mut().zip(spares).for_each(|(seat, spare)| seat.0.push(spare));
        }
    }
    (machines, seats)
}
