//! Machines that die in the middle of whatever they take in, with some of what they had to say about it unsaid; machines
//! that freeze; links that break or stall; clocks that jump.

use super::formation::Phase;
use super::{Happening, Line};
use crate::faults::{CALM, Cut, Death, Freeze, HEARTBEAT, Jump, Stall, Wire};
use crate::front::Front;
use crate::network::Link;

/// From when a machine goes on until the front has reached it again, at most, in microseconds.
const REDIAL: u32 = 3000;

impl Happening {
    /// The machine to which it happens.
    const fn at_machine(&self) -> Option<usize> {
        match self {
            Self::Frame(machine, ..)
            | Self::Hint(machine, _)
            | Self::Assigned(machine, _)
            | Self::Loaded(machine, _)
            | Self::Released(machine, _)
            | Self::Done(machine, _)
            | Self::Stored(machine, ..) => Some(*machine),
            Self::Report(_)
            | Self::Echo(_)
            | Self::Thaw(_)
            | Self::Missed(_)
            | Self::Back(_)
            | Self::Form
            | Self::Wake
            | Self::LineUp
            | Self::LineLost
            | Self::Cut(_)
            | Self::Stall(_)
            | Self::Jump(_)
            | Self::Calm => None,
        }
    }

    /// In which life of its machine it was begun, if it ends with that.
    const fn life(&self) -> Option<u32> {
        match self {
            Self::Done(_, life) | Self::Stored(_, life, ..) => Some(*life),
            _ => None,
        }
    }

    /// What comes on one connection keeps its order; what comes on several is read in any.
    const fn way(&self) -> usize {
        match self {
            Self::Frame(..) => 0,
            Self::Hint(..) | Self::Assigned(..) | Self::Released(..) => 1,
            _ => 2,
        }
    }
}

impl<F: Front> Line<F> {
    pub(super) fn plan_faults(&mut self) {
        let faults = self.faults.clone();
        for (which, cut) in faults.cuts.iter().enumerate() {
            self.plan(cut.at, Happening::Cut(which));
        }
        for (which, stall) in faults.stalls.iter().enumerate() {
            self.plan(stall.at, Happening::Stall(which));
        }
        for (which, jump) in faults.jumps.iter().enumerate() {
            self.plan(jump.at, Happening::Jump(which));
        }
        self.plan(CALM, Happening::Calm);
    }

    /// Something happens, and whoever it happens to may freeze before it, or die of it.
    pub(super) fn befall(&mut self, happening: Happening) {
        let Some(machine) = happening.at_machine() else { return self.happen(happening) };
        let stage = &mut self.machines[machine];
        // What was under way in an earlier life is over.
        let is_past = happening.life().is_some_and(|life| life != stage.life);
        if is_past || stage.is_dead() {
            return;
        }
        if !stage.is_frozen()
            && let Some(freeze) = self.due_freeze(machine)
        {
            self.freeze(machine, freeze);
        }
        let stage = &mut self.machines[machine];
        if let Some(pile) = &mut stage.pile {
            return pile.push(happening);
        }
        let was_reading = stage.n_reading > 0;
        let death = self.due_death(machine);
        if let Some(death) = death {
            self.machines[machine].dies(death.says);
        }
        self.happen(happening);
        if let Some(death) = death {
            self.counts.losses.deaths_restoring += u64::from(was_reading);
            self.die(machine, death);
        }
    }

    /// The machine takes something in: whether it dies of that.
    fn due_death(&mut self, machine: usize) -> Option<Death> {
        let seat = self.seat_of(machine)?;
        let is_reading = self.machines[machine].n_reading > 0;
        let deaths = &mut self.faults.deaths;
        let its = |death: &Death| death.seat == seat;
        if let Some(at) = deaths.iter().position(|death| its(death) && death.after.is_none() && is_reading) {
            return Some(deaths.remove(at));
        }
        let at = deaths.iter().position(|death| its(death) && death.after.is_some())?;
        let left = deaths[at].after.as_mut().filter(|after| **after > 0);
        if let Some(left) = left {
            *left -= 1;
            return None;
        }
        Some(self.faults.deaths.remove(at))
    }

    fn due_freeze(&mut self, machine: usize) -> Option<Freeze> {
        let seat = self.seat_of(machine)?;
        let at = self.faults.freezes.iter().position(|freeze| freeze.seat == seat)?;
        let freeze = &mut self.faults.freezes[at];
        if freeze.after > 0 {
            freeze.after -= 1;
            return None;
        }
        Some(self.faults.freezes.remove(at))
    }

    fn die(&mut self, machine: usize, death: Death) {
        let under_way = self.front.under_way();
        let stage = &mut self.machines[machine];
        let losses = &mut self.counts.losses;
        losses.deaths += 1;
        losses.deaths_forming += u64::from(matches!(self.phase, Phase::Forming { .. }));
        losses.deaths_prefilling += u64::from(under_way.prefilling);
        losses.deaths_closing += u64::from(under_way.closing);
        stage.add_to(&mut self.counts);
        stage.begins_anew(death.forgets);
        self.plan(self.now + death.noticed, Happening::Missed(machine));
        self.plan(self.now + death.noticed + death.lasts, Happening::Back(machine));
    }

    fn freeze(&mut self, machine: usize, freeze: Freeze) {
        self.machines[machine].pile = Some(Vec::new());
        let wakes = self.now + freeze.lasts;
        self.plan(wakes, Happening::Thaw(machine));
        if freeze.lasts <= HEARTBEAT {
            self.counts.losses.naps += 1;
            return;
        }
        self.counts.losses.freezes += 1;
        let generation = self.machines[machine].place.generation;
        self.plan(self.now + HEARTBEAT, Happening::Missed(machine));
        // It finds that the front has let go of the connection, and is found by the front.
        let finds_out = wakes + self.random.micros(0, REDIAL);
        self.plan(finds_out, Happening::Released(machine, generation));
        let back = finds_out + self.random.micros(1, REDIAL);
        self.plan(back, Happening::Back(machine));
    }

    /// Whatever has piled up is taken in at once, before anything else.
    pub(super) fn thaw(&mut self, machine: usize) {
        let stage = &mut self.machines[machine];
        let Some(mut pile) = stage.pile.take() else { return };
        if self.phase == Phase::Up && stage.place.generation != self.generation {
            self.counts.losses.late_wakes += 1;
        }
        let first = self.random.between(0, 2) as usize;
        pile.sort_by_key(|happening| (happening.way() + first) % 3);
        pile.into_iter().for_each(|happening| self.befall(happening));
    }

    /// The front notices that a machine does not answer.
    pub(super) fn miss(&mut self, machine: usize) {
        self.machines[machine].is_missed = true;
        if self.seat_of(machine).is_some() {
            self.lose_line();
        }
    }

    /// The front reaches a machine again; one that has died has begun anew.
    pub(super) fn come_back(&mut self, machine: usize) {
        let stage = &mut self.machines[machine];
        stage.is_missed = false;
        stage.lives();
        self.form();
    }

    pub(super) fn cut(&mut self, cut: Cut) {
        let Some((machine, links)) = self.ends_of(cut.wire) else { return };
        links.into_iter().for_each(|link| self.network.cut(self.generation, link));
        self.counts.losses.cuts += 1;
        let Some(noticed) = cut.noticed else {
            self.may_be_silent = true;
            return;
        };
        let noticed = self.now + noticed;
        self.plan(noticed, Happening::Missed(machine));
        if matches!(cut.wire, Wire::Control(_)) {
            self.plan(noticed, Happening::Released(machine, self.generation));
        }
        self.plan(noticed + cut.lasts, Happening::Back(machine));
    }

    pub(super) fn stall(&mut self, stall: Stall) {
        let until = self.now + stall.lasts;
        let Some((_, links)) = self.ends_of(stall.wire) else { return };
        links.into_iter().for_each(|link| self.network.stall(link, until));
    }

    /// Whose connection it is now, and its directions.
    fn ends_of(&self, wire: Wire) -> Option<(usize, Vec<Link>)> {
        let (Wire::Rows(seat) | Wire::Control(seat)) = wire;
        let machine = *self.seats.get(seat)?;
        let links = match wire {
            Wire::Rows(_) => vec![Link::Rows(machine)],
            Wire::Control(_) => Link::control(machine).to_vec(),
        };
        Some((machine, links))
    }

    pub(super) fn jump(&mut self, jump: Jump) {
        self.counts.losses.jumps += 1;
        let Some(seat) = jump.seat else {
            self.may_be_silent = true;
            self.now += jump.by;
            return;
        };
        if let Some(&machine) = self.seats.get(seat) {
            self.machines[machine].clock += jump.by;
        }
    }
}
