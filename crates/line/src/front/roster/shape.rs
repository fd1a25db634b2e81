//! The shape of a line: how its layers are shared out, and among how many machines.
//!
//! A line has the shape that it was given for as long as its seats can be filled. Where machines are missing that nobody
//! can stand in for, and only if that is wanted, the rest shares the layers out anew after a while. That costs them the
//! loading of other layers, so the line goes back in no hurry: when all seats can be filled again and nobody has used
//! the line for as long. Where the rest cannot load its larger shares, it goes back at once and waits, as it would have
//! done without all this.

use std::time::Duration;

use protocol::{LayerRange, PeerIndex, StageIndex};

use super::{Action, PeerState, Phase, Roster};

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
    /// Since when nobody uses the line.
    idle_since: Option<Duration>,
}

impl Shape {
    pub(super) fn new(given: &[LayerRange], after: Option<Duration>) -> Self {
        let given = given.to_vec();
        Self { after, given, wide: None, least: 1, idle_since: Some(Duration::ZERO) }
    }
}

impl Roster {
    /// Whether the layers are shared out as they were given.
    #[must_use]
    pub(in crate::front) const fn is_as_given(&self) -> bool {
        self.shape.wide.is_none()
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
        if let Some((_, rest, ranges)) = self.narrows().filter(|(at, ..)| *at <= now) {
            let ranges = ranges.to_vec();
            let wide = self.shape.wide.take().unwrap_or_else(|| self.seated.clone());
            self.reseat(rest, ranges, "the others share the layers of whoever is away".to_owned(), now);
            self.shape.wide = Some(wide);
        } else if self.widens().is_some_and(|at| at <= now) {
            self.widen("all machines are there again".to_owned(), now);
        } else {
            return false;
        }
        true
    }

    /// When [`Roster::take_shape`] has something to do, if nothing else happens.
    pub(super) fn next_shape(&self) -> Option<Duration> {
        self.narrows().map(|(at, ..)| at).or_else(|| self.widens())
    }

    /// Those that sit cannot load what they shall: fewer of them are not tried again.
    pub(super) fn is_too_narrow(&mut self, reason: &str, now: Duration) {
        if !self.is_as_given() {
            self.shape.least = self.seated.len() + 1;
            self.widen(format!("{reason}; the layers stay shared out as they were"), now);
        }
    }

    /// When, among whom and how the layers are shared out: nobody can be had for the other seats.
    fn narrows(&self) -> Option<(Duration, Vec<PeerIndex>, &[LayerRange])> {
        let after = self.shape.after?;
        let is_forming = matches!(self.phase, Phase::Forming | Phase::Pausing { .. });
        if !self.was_up || !is_forming {
            return None;
        }
        let empty: Vec<StageIndex> = self.all_seats().filter(|&seat| self.is_empty(seat)).collect();
        let since = empty.iter().map(|&seat| self.peer(self.seated(seat)).since).max()?;
        let rest: Vec<PeerIndex> =
            self.all_seats().filter(|seat| !empty.contains(seat)).map(|seat| self.seated(seat)).collect();
        // The front reaches the line through its first machine.
        let is_reached = rest.first().is_some_and(|&first| !self.peer(first).relayed);
        let ranges = self.plan.narrower(rest.len())?;
        (is_reached && rest.len() >= self.shape.least).then(|| (since.saturating_add(after), rest, ranges))
    }

    /// Whether whoever has the seat is lost, and nobody can take it. What lies behind a machine that is lost may well be
    /// there, where it is reached through that one.
    fn is_empty(&self, seat: StageIndex) -> bool {
        let at = usize::from(seat.0);
        let is_lost = |at: usize| self.at(at).is_away() || self.at(at).stalled;
        let is_hidden = self.at(at).relayed && at > 0 && is_lost(at - 1);
        let is_taken = self.spares().any(|spare| self.could_sit(spare, seat));
        is_lost(at) && !is_hidden && !is_taken && !self.is_own(seat)
    }

    /// When the line takes its given shape again.
    fn widens(&self) -> Option<Duration> {
        let Phase::Up { since } = self.phase else { return None };
        let (wide, after) = (self.shape.wide.as_ref()?, self.shape.after?);
        let idle_since = self.shape.idle_since?;
        let is_there = |peer: PeerIndex| {
            let peer = self.peer(peer);
            !peer.is_away() && !peer.stalled && !peer.is_leaving()
        };
        let mut others = self.spares().filter(|spare| {
            let is_free = self.fixed[usize::from(spare.0)].is_none() && !wide.contains(spare);
            is_free && is_there(*spare) && self.peer(*spare).failed.is_none()
        });
        let is_whole = wide.iter().all(|&peer| is_there(peer) || others.next().is_some());
        is_whole.then_some(since.max(idle_since).saturating_add(after))
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
        let before = std::mem::replace(&mut self.seated, seated);
        self.plan.ranges = ranges;
        for peer in (0..self.peers.len() as u16).map(PeerIndex) {
            let (is_seated, had_seat) = (self.seat_of(peer).is_some(), before.contains(&peer));
            let found = self.peer_mut(peer);
            if !is_seated {
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
