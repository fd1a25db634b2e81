//! Spares: which layers they hold, and when one takes a seat.
//!
//! A seat that cannot be filled otherwise is what a spare is for, so all of this only ever changes who sits where; how
//! a line is formed of those who sit does not depend on it.

use std::cmp::Reverse;
use std::time::Duration;

use protocol::{Command, PeerIndex, StageIndex, StageState, ToStage};

use super::peer::asked;
use super::{Action, Cover, PeerState, Phase, Roster};

/// A stage that was there may take so long to come back before a spare loads its layers: a link that broke is made anew
/// in far less, and then nothing need be loaded. A spare that holds the layers does not wait.
const COLD_AFTER: Duration = Duration::from_secs(2);
/// A stage that was never there has more time: the machines of a line are not started at the same moment.
const UNSEEN_AFTER: Duration = Duration::from_secs(10);
/// A spare that failed is asked again after this pause. It is not waited for, and trying may cost its machine much.
const ASK_AGAIN: Duration = Duration::from_secs(10);

impl Roster {
    /// Whether the machine stands by.
    #[must_use]
    pub(in crate::front) fn is_spare(&self, peer: PeerIndex) -> bool {
        self.seat_of(peer).is_none()
    }

    /// Those that have no seat.
    pub(in crate::front) fn spares(&self) -> impl Iterator<Item = PeerIndex> {
        (0..self.peers.len() as u16).map(PeerIndex).filter(|&peer| self.is_spare(peer))
    }

    /// Who could take a stage's place.
    #[must_use]
    pub(in crate::front) fn cover(&self, seat: StageIndex) -> Cover {
        if self.is_own(seat) {
            return Cover::Nobody;
        }
        let of = |spare: PeerIndex| {
            let peer = self.peer(spare);
            if peer.is_warm_for(seat) {
                Cover::Warm
            } else if self.could_sit(spare, seat) {
                Cover::Cold
            } else {
                Cover::Nobody
            }
        };
        self.spares().map(of).max().unwrap_or(Cover::Nobody)
    }

    /// A spare says how far it has come.
    pub(in crate::front) fn handle_spare_state(&mut self, peer: PeerIndex, said: StageState, now: Duration) {
        let PeerState::Spare { seat, .. } = self.peer(peer).state else { return };
        let range = self.plan.range(seat);
        match said {
            StageState::Standby { layers, .. } if layers == range => {}
            StageState::Loading { .. } | StageState::Failed { .. } => {}
            // Of an earlier wish, or of its time on a seat.
            StageState::Standby { .. }
            | StageState::Idle { .. }
            | StageState::Linking
            | StageState::Ready { .. } => return,
        }
        let spare = self.peer_mut(peer);
        spare.hear(&said, range, now);
        spare.enter(PeerState::Spare { seat, state: said }, now);
        self.form(now);
    }

    /// Whether a spare is there and may have this seat, if it had its layers.
    pub(super) fn could_sit(&self, spare: PeerIndex, seat: StageIndex) -> bool {
        let peer = self.peer(spare);
        self.may_sit(spare, seat) && peer.is_here_to_stay() && peer.failed.is_none()
    }

    /// Lets spares take the seats that cannot be filled otherwise.
    pub(super) fn fill_seats(&mut self, now: Duration) {
        for seat in self.all_seats() {
            if let Some((at, spare)) = self.stand_in(seat)
                && at <= now
            {
                self.exchange(seat, spare, now);
            }
        }
    }

    /// When the next seat is filled if nothing happens until then.
    pub(super) fn next_exchange(&self) -> Option<Duration> {
        self.all_seats().filter_map(|seat| self.stand_in(seat)).map(|(at, _)| at).min()
    }

    /// Who should take a seat from whoever has it, and when.
    fn stand_in(&self, seat: StageIndex) -> Option<(Duration, PeerIndex)> {
        if self.is_own(seat) {
            return None;
        }
        let warm = self.spares().find(|&spare| self.peer(spare).is_warm_for(seat));
        let occupant = self.peer(self.seated(seat));
        if occupant.stalled {
            let spare = warm.or_else(|| self.best_cold(seat));
            return spare.map(|spare| (occupant.since, spare));
        }
        if occupant.is_leaving() {
            // It computes until somebody else holds its layers.
            return warm.map(|warm| (occupant.since, warm));
        }
        if !occupant.is_away() {
            // Who is there keeps the seat, unless the line waits for it and need not.
            let is_of_no_use =
                occupant.failed.is_some() || (self.was_up && occupant.holds != Some(self.plan.range(seat)));
            return warm.filter(|_| is_of_no_use).map(|warm| (occupant.since, warm));
        }
        let unseen = occupant.node.is_none();
        let patience = if unseen { UNSEEN_AFTER } else { COLD_AFTER };
        match warm {
            // A neighbour that passes messages on makes its link anew with every generation.
            Some(warm) if !unseen && !occupant.relayed => Some((occupant.since, warm)),
            Some(warm) => Some((occupant.since + patience, warm)),
            None => self.best_cold(seat).map(|cold| (occupant.since + patience, cold)),
        }
    }

    /// The spare whose layers are missed least if it loads those of `seat`.
    fn best_cold(&self, seat: StageIndex) -> Option<PeerIndex> {
        let loss = |spare: &PeerIndex| match &self.peer(*spare).state {
            PeerState::Spare { seat: own, .. } if *own == seat => 0,
            PeerState::Spare { seat: own, state: StageState::Standby { .. } } => {
                2 + u8::from(self.n_covering(*own, *spare) == 0)
            }
            _ => 1,
        };
        self.spares().filter(|&spare| self.could_sit(spare, seat)).min_by_key(loss)
    }

    fn exchange(&mut self, seat: StageIndex, spare: PeerIndex, now: Duration) {
        let before = std::mem::replace(&mut self.seated[usize::from(seat.0)], spare);
        self.told[usize::from(seat.0)] = None;
        self.peer_mut(spare).enter(PeerState::Linked, now);
        let old = self.peer_mut(before);
        let was_assigned = old.is_assigned();
        old.relayed = false;
        if !old.is_away() {
            old.enter(PeerState::Linked, now);
        }
        self.actions.push_back(Action::StandIn { seat, spare });
        if was_assigned || matches!(self.phase, Phase::Linking | Phase::Up { .. }) {
            self.abandon(format!("a spare takes the place of stage {seat}"), Duration::ZERO, now);
        }
        // What failed before may go well with somebody else.
        self.phase = Phase::Forming;
    }

    /// Tells spares what to hold.
    pub(super) fn prepare_spares(&mut self, now: Duration) {
        let spares: Vec<PeerIndex> = self.spares().collect();
        for spare in spares {
            if self.is_to_be_asked(spare, now)
                && let Some(seat) = self.best_seat(spare)
            {
                self.prepare(spare, seat, now);
            }
        }
    }

    fn is_to_be_asked(&self, spare: PeerIndex, now: Duration) -> bool {
        let peer = self.peer(spare);
        if peer.is_leaving() {
            return false;
        }
        let may_ask = peer.failed.is_none() || peer.since + ASK_AGAIN <= now;
        match &peer.state {
            PeerState::Linked | PeerState::Spare { state: StageState::Failed { .. }, .. } => may_ask,
            // One that doubles another is of more use elsewhere, and any where a stage is about to go.
            PeerState::Spare { seat, .. } => {
                let is_better = |best| {
                    let doubles = self.n_covering(*seat, spare) > 0;
                    let is_urgent = self.is_about_to_go(best) && !self.is_about_to_go(*seat);
                    self.n_covering(best, spare) == 0 && (doubles || is_urgent)
                };
                self.fixed[usize::from(spare.0)].is_none() && self.best_seat(spare).is_some_and(is_better)
            }
            PeerState::Away { .. } | PeerState::Assigned(_) => false,
        }
    }

    /// When a spare that failed is asked again.
    pub(super) fn next_asking(&self) -> Option<Duration> {
        let waits = |spare: &PeerIndex| {
            let peer = self.peer(*spare);
            !peer.is_away() && peer.failed.is_some() && self.best_seat(*spare).is_some()
        };
        self.spares().filter(waits).map(|spare| self.peer(spare).since + ASK_AGAIN).min()
    }

    /// The seat whose loss would cost most: nobody else stands by for it, then whose stage is about to go, then what is there already, then most layers.
    fn best_seat(&self, spare: PeerIndex) -> Option<StageIndex> {
        if let Some(fixed) = self.fixed[usize::from(spare.0)] {
            return self.may_sit(spare, fixed).then_some(fixed);
        }
        let holds = self.peer(spare).holds;
        self.all_seats().filter(|&seat| !self.is_own(seat)).min_by_key(|&seat| {
            let range = self.plan.range(seat);
            let n_layers = range.end - range.start;
            let stays = !self.is_about_to_go(seat);
            (self.n_covering(seat, spare), stays, holds != Some(range), Reverse(n_layers), seat)
        })
    }

    /// How many other spares stand by for the seat, or will.
    fn n_covering(&self, seat: StageIndex, but: PeerIndex) -> usize {
        let covers = |spare: &PeerIndex| {
            let peer = self.peer(*spare);
            let is_fixed =
                self.fixed[usize::from(spare.0)].is_some() && self.may_sit(*spare, seat) && !peer.gone;
            let is_told = matches!(&peer.state, PeerState::Spare { seat: own, .. } if *own == seat);
            peer.failed.is_none() && !peer.is_leaving() && (is_fixed || is_told)
        };
        self.spares().filter(|&spare| spare != but).filter(covers).count()
    }

    fn prepare(&mut self, spare: PeerIndex, seat: StageIndex, now: Duration) {
        let (range, generation) = (self.plan.range(seat), self.generation);
        let peer = self.peer_mut(spare);
        peer.ask(range);
        peer.enter(PeerState::Spare { seat, state: asked() }, now);
        let command = Command::Prepare(self.plan.holding(seat));
        self.actions.push_back(Action::Send(ToStage { to: spare, generation, command }));
    }

    pub(super) fn all_seats(&self) -> impl Iterator<Item = StageIndex> + use<> {
        (0..self.seated.len() as u16).map(StageIndex)
    }
}

#[cfg(test)]
mod tests;
