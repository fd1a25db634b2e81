//! The shape of a line: how its layers are shared out, and among how many machines.
//!
//! A line has the shape that it was given for as long as its seats can be filled. Where machines are missing that nobody
//! can stand in for, and only if that is wanted, the rest shares the layers out anew after a while. That costs them the
//! loading of other layers, so a line that is up goes back in no hurry: when all seats can be filled again and nobody has
//! used it for as long, and for longer each time. One that is not up goes back as soon as that would do, and at once where
//! the rest cannot load its larger shares: then it waits, as it would have done without all this.

use std::time::Duration;

use protocol::{LayerRange, PeerIndex, StageIndex};

use super::{Action, PeerState, Phase, Roster};

/// Failures in a row that a shape is forgiven which the line was up in: what is lacking may come back.
const MOST_FORGIVEN: u32 = 4;
/// Times that the pause before the given shape doubles at most.
const MOST_DOUBLINGS: u32 = 10;

/// What becomes of the shape of a line.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// How long a seat may be empty before the layers are shared out without it; for ever if none.
    after: Option<Duration>,
    /// The ranges as given.
    given: Vec<LayerRange>,
    /// Who sat when the line lost its given shape.
    wide: Option<Vec<PeerIndex>>,
    /// Fewer machines than this could not load the layers.
    least: usize,
    /// Failures to load that another shape than the given one is still forgiven.
    forgiven: u32,
    /// How often the line has lost its given shape.
    losses: u32,
    /// Since when nobody uses the line.
    idle_since: Option<Duration>,
}

impl Shape {
    pub(super) fn new(given: &[LayerRange], after: Option<Duration>) -> Self {
        let given = given.to_vec();
        Self { after, given, wide: None, least: 1, forgiven: 0, losses: 0, idle_since: Some(Duration::ZERO) }
    }

    /// What could not be loaded may be loaded by now.
    pub(super) const fn forgive(&mut self) {
        self.least = 1;
    }
}

/// Those that are left to share the layers.
struct Rest<'a> {
    /// When they do.
    at: Duration,
    /// In line order.
    machines: Vec<PeerIndex>,
    /// What each gets.
    ranges: &'a [LayerRange],
}

impl Roster {
    /// Whether the layers are shared out as they were given.
    #[must_use]
    pub(in crate::front) const fn is_as_given(&self) -> bool {
        self.shape.wide.is_none()
    }

    /// Stages that the line was given.
    #[must_use]
    pub(in crate::front) const fn n_given(&self) -> usize {
        self.shape.given.len()
    }

    /// Whether anybody uses the line.
    pub(in crate::front) fn handle_use(&mut self, is_idle: bool, now: Duration) {
        self.shape.idle_since = is_idle.then(|| self.shape.idle_since.unwrap_or(now));
    }

    /// The only seat that a spare may take while the line has its given shape, if it may not take any. In another shape it
    /// may take none, since it was named for the layers of that seat.
    pub(super) fn may_sit(&self, spare: PeerIndex, seat: StageIndex) -> bool {
        self.fixed[usize::from(spare.0)].is_none_or(|fixed| self.is_as_given() && fixed == seat)
    }

    /// Shares the layers out anew if it is time for that; whether it was.
    pub(super) fn take_shape(&mut self, now: Duration) -> bool {
        if self.widens().is_some_and(|at| at <= now) {
            self.widen("all machines are there again".to_owned(), now);
        } else if let Some(rest) = self.narrows().filter(|rest| rest.at <= now) {
            let (machines, ranges) = (rest.machines, rest.ranges.to_vec());
            if self.is_as_given() {
                self.shape.losses += 1;
                self.shape.wide = Some(self.seated.clone());
            }
            self.reseat(machines, ranges, "the others share the layers of whoever is away".to_owned(), now);
        } else {
            return false;
        }
        true
    }

    /// When [`Roster::take_shape`] has something to do, if nothing else happens.
    pub(super) fn next_shape(&self) -> Option<Duration> {
        self.widens().or_else(|| self.narrows().map(|rest| rest.at))
    }

    /// The line is up.
    pub(super) const fn fits(&mut self) {
        self.shape.forgiven = MOST_FORGIVEN;
        if self.is_as_given() {
            self.shape.forgive();
        }
    }

    /// Those that sit cannot load what they shall. Fewer of them are not tried again until that may have changed.
    pub(super) fn is_too_narrow(&mut self, reason: &str, now: Duration) {
        if self.is_as_given() {
            return;
        }
        if self.shape.forgiven > 0 {
            self.shape.forgiven -= 1;
            return;
        }
        self.shape.least = self.seated.len() + 1;
        self.widen(format!("{reason}; the layers stay shared out as they were"), now);
    }

    /// Who shares the layers if nobody can be had for the other seats.
    fn narrows(&self) -> Option<Rest<'_>> {
        let after = self.shape.after?;
        let is_forming = matches!(self.phase, Phase::Forming | Phase::Pausing { .. });
        if !self.was_up || !is_forming {
            return None;
        }
        let empty: Vec<StageIndex> = self.all_seats().filter(|&seat| self.is_empty(seat)).collect();
        let since = empty.iter().map(|&seat| self.peer(self.seated(seat)).useless_since()).max()?;
        // Without its seat, and so without a neighbour, one that is reached through that one would not be seen again.
        if empty.iter().any(|&seat| self.peer(self.seated(seat)).relayed) {
            return None;
        }
        let is_left = |peer: &PeerIndex| self.fixed[usize::from(peer.0)].is_none();
        let rest = self.all_seats().filter(|seat| !empty.contains(seat)).map(|seat| self.seated(seat));
        let mut machines: Vec<PeerIndex> = rest.filter(is_left).collect();
        let possible = self.shape.least..=machines.len();
        let ranges = self.plan.narrower.iter().filter(|ranges| possible.contains(&ranges.len()));
        let ranges = ranges.max_by_key(|ranges| ranges.len())?;
        machines.truncate(ranges.len());
        // The front reaches the line through its first machine.
        let is_reached = machines.first().is_some_and(|&first| !self.peer(first).relayed);
        is_reached.then(|| Rest { at: since.saturating_add(after), machines, ranges })
    }

    /// Whether whoever has the seat is lost, or cannot load its layers, and nobody can take it. What lies behind a machine
    /// that is lost may well be there, where it is reached through that one.
    fn is_empty(&self, seat: StageIndex) -> bool {
        let at = usize::from(seat.0);
        let is_lost = |at: usize| self.at(at).is_away() || self.at(at).stalled;
        let is_useless = is_lost(at) || (self.is_as_given() && self.at(at).failing_since.is_some());
        let is_hidden = self.at(at).relayed && at > 0 && is_lost(at - 1);
        let is_taken = self.spares().any(|spare| self.could_sit(spare, seat));
        is_useless && !is_hidden && !is_taken && !self.is_own(seat)
    }

    /// When the line takes its given shape again: at once if it is not up.
    fn widens(&self) -> Option<Duration> {
        let (wide, after) = (self.shape.wide.as_ref()?, self.shape.after?);
        let doublings = self.shape.losses.saturating_sub(1).min(MOST_DOUBLINGS);
        let (at, is_up) = match self.phase {
            Phase::Up { since } => {
                let idle_since = self.shape.idle_since?;
                (since.max(idle_since).saturating_add(after.saturating_mul(1 << doublings)), true)
            }
            Phase::Forming | Phase::Pausing { .. } | Phase::Linking => (Duration::ZERO, false),
        };
        // A line that works is not given up for a machine that cannot load.
        let is_there = |peer: PeerIndex| {
            let peer = self.peer(peer);
            let fails = peer.failing_since.is_some() || (is_up && peer.failed.is_some());
            peer.is_here_to_stay() && !fails
        };
        let mut others: Vec<PeerIndex> =
            self.spares().filter(|spare| !wide.contains(spare) && is_there(*spare)).collect();
        let is_filled = |(seat, &peer): (usize, &PeerIndex)| {
            let fits = |other: &PeerIndex| {
                self.fixed[usize::from(other.0)].is_none_or(|fixed| usize::from(fixed.0) == seat)
            };
            is_there(peer) || others.iter().position(fits).map(|at| others.remove(at)).is_some()
        };
        wide.iter().enumerate().all(is_filled).then_some(at)
    }

    fn widen(&mut self, reason: String, now: Duration) {
        if let Some(wide) = self.shape.wide.take() {
            let given = self.shape.given.clone();
            self.reseat(wide, given, reason, now);
        }
    }

    /// Has these machines share the layers in this way from the next generation on.
    fn reseat(&mut self, seated: Vec<PeerIndex>, ranges: Vec<LayerRange>, reason: String, now: Duration) {
        self.abandon(reason, Duration::ZERO, now);
        self.told = vec![None; seated.len()];
        self.shape.forgiven = 0;
        let before = std::mem::replace(&mut self.seated, seated);
        self.plan.ranges = ranges;
        for peer in (0..self.peers.len() as u16).map(PeerIndex) {
            let (is_seated, had_seat) = (self.seat_of(peer).is_some(), before.contains(&peer));
            let found = self.peer_mut(peer);
            if is_seated {
                // It failed with other layers.
                found.failing_since = None;
            } else {
                found.relayed = false;
            }
            match &found.state {
                // Asked for layers that nobody has any more.
                PeerState::Spare { .. } => found.enter(PeerState::Linked, now),
                // It is given time to be found by its new neighbour.
                PeerState::Away { .. } if is_seated && had_seat => found.since = now,
                PeerState::Away { .. } | PeerState::Linked | PeerState::Assigned(_) => {}
            }
        }
        self.phase = Phase::Forming;
        self.actions.push_back(Action::Reshaped);
    }
}

#[cfg(test)]
mod tests;
