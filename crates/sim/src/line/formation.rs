//! How a line is formed: who is asked to sit where, who says that it is ready, and what ends it.
//!
//! As on a real line all that sit are assigned in a new generation, and any of them may be lost meanwhile; a seat changes
//! hands only where its machine is away.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::{Generation, Report, StageIndex, StageState};

use super::shapes::Seat;
use super::{Happening, Line, name};
use crate::front::Front;
use crate::network::Link;
use crate::toy::ROW_WIDTH;

/// How long it takes until the front begins to form a line in place of one that was lost.
const PAUSE: Duration = Duration::from_millis(1);

/// What loading takes at most, in microseconds.
const LOADING: u32 = 2000;

/// A place in a line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// 0 for none.
    pub(super) generation: Generation,
    pub(super) seat: StageIndex,
    /// Who sits behind it.
    pub(super) downstream: Option<usize>,
    /// Whether it holds other layers and must begin with nothing.
    pub(super) is_other: bool,
    /// The last generation whose sequences are still meant, if any are.
    pub(super) keep: Option<Generation>,
}

/// How far the front's generation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody is assigned.
    Down,
    /// These are not ready; those are that have kept what they held.
    Forming {
        missing: BTreeSet<usize>,
        keepers: BTreeSet<usize>,
    },
    Up,
}

impl<F: Front> Line<F> {
    /// The seat of a machine in the front's generation.
    pub(super) fn seat_of(&self, machine: usize) -> Option<usize> {
        self.seats.iter().position(|&seated| seated == machine)
    }

    /// Whatever the line was, or was about to become, is over.
    pub(super) fn lose_line(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Down => return,
            Phase::Forming { .. } => self.counts.abandoned += 1,
            Phase::Up => self.counts.outages += 1,
        }
        self.generation = Generation(self.generation.0 + 1);
        self.seats.clear();
        self.network.reconnect();
        self.plan_echoes();
        if self.shapes.len() > 1 && self.turns.percent(50) {
            self.next_shape = 1 - self.shape;
        }
        self.front.line_lost(self.now);
        self.after_front();
        self.plan(self.now + PAUSE, Happening::Form);
    }

    /// Assigns everybody, if every seat can be filled.
    pub(super) fn form(&mut self) {
        if self.phase != Phase::Down || self.n_outages > 0 {
            return;
        }
        let is_there = |machine: &usize| !self.machines[*machine].is_missed;
        let fill = |seat: &Seat| seat.candidates().find(is_there);
        let filled: Option<Vec<usize>> = self.shapes[self.next_shape].iter().map(fill).collect();
        let Some(seats) = filled else { return };
        let is_other = self.next_shape != self.shape;
        if is_other {
            self.shape = self.next_shape;
            self.counts.reshapes += 1;
            // The first ones are called as a configuration calls them.
            self.front.reshape(seats.len() as u16, [self.shape as u8; 32]);
        }
        for (seat, &machine) in self.shapes[self.shape].iter_mut().zip(&seats) {
            self.counts.losses.stand_ins += u64::from(seat.sits(machine));
        }
        self.seats.clone_from(&seats);
        self.phase = Phase::Forming { missing: seats.iter().copied().collect(), keepers: BTreeSet::new() };
        let (generation, keep) = (self.generation, self.keep);
        for (at, &machine) in seats.iter().enumerate() {
            let place =
                Place { generation, seat: name(at), downstream: seats.get(at + 1).copied(), is_other, keep };
            self.post((generation, Link::Commands(machine)), None, Happening::Assigned(machine, place));
        }
        self.release_others();
    }

    /// Who has no seat any more hears of it.
    fn release_others(&mut self) {
        for machine in 0..self.machines.len() {
            let generation = self.machines[machine].place.generation;
            if self.seat_of(machine).is_none() && generation != Generation(0) {
                let at = self.now + self.random.micros(0, 20_000);
                self.plan(at, Happening::Released(machine, generation));
            }
        }
    }

    pub(super) fn is_assigned(&mut self, machine: usize, place: Place) {
        if place.generation <= self.machines[machine].newest {
            self.counts.losses.late_frames += 1;
            return;
        }
        if place.is_other {
            self.machines[machine].add_to(&mut self.counts);
        }
        let stage = &mut self.machines[machine];
        stage.assign(place);
        // A call under way ends first.
        if stage.running.is_none() {
            self.load(machine);
        }
    }

    /// What it needs for its place takes a while.
    pub(super) fn load(&mut self, machine: usize) {
        let generation = self.machines[machine].place.generation;
        let at = self.now + self.random.micros(0, LOADING);
        self.plan(at, Happening::Loaded(machine, generation));
    }

    pub(super) fn is_loaded(&mut self, machine: usize, generation: Generation) {
        let stage = &mut self.machines[machine];
        if stage.place.generation != generation || !stage.is_loading {
            return;
        }
        stage.is_loading = false;
        let keeps = stage.takes_up_work(self.random.percent(20));
        if stage.speaks() {
            let row_width = ROW_WIDTH as u32;
            let state = StageState::Ready { keeps, row_width, weight_bytes: 0, kv_bytes: 0 };
            self.send_report(machine, Report::State(state));
        }
    }

    /// A machine has said so, in the front's generation.
    pub(super) fn is_ready(&mut self, machine: usize, keeps: bool) {
        let Phase::Forming { missing, keepers } = &mut self.phase else { return };
        missing.remove(&machine);
        if keeps {
            keepers.insert(machine);
        }
        if missing.is_empty() {
            let last_lost = self.seats.iter().rposition(|machine| !keepers.contains(machine));
            let lost_by = last_lost.map_or(0, |last| last as u16 + 1);
            let lost_by = (!keepers.is_empty()).then_some(lost_by);
            self.phase = Phase::Up;
            self.keep = Some(self.generation);
            let losses = &mut self.counts.losses;
            losses.came_back += u64::from(lost_by == Some(0));
            losses.came_back_in_part +=
                u64::from(lost_by.is_some_and(|lost| lost > 0 && usize::from(lost) < self.seats.len()));
            self.front.line_up(lost_by, self.now);
            self.after_front();
        }
    }
}
