//! Machines whose processes were told to end, and that say so: they go when nobody needs them any more.
//!
//! One with a seat computes on until a spare that holds its layers takes its place, if there is a spare that could. If
//! there is none, the line comes to rest: what runs is finished, what is new waits, and then the machine is let go as if
//! it had been lost. One without a seat is let go at once. How long a machine waits for that is its own affair.

use std::time::Duration;

use protocol::{Command, PeerIndex, StageIndex, ToStage};

use super::{Action, Leaving, Roster};

impl Roster {
    /// A machine's process was told to end.
    pub(in crate::front) fn handle_leaving(&mut self, peer: PeerIndex, now: Duration) {
        let found = self.peer_mut(peer);
        if !found.is_away() && found.leaving == Leaving::No {
            found.leaving = Leaving::Asked;
            self.form(now);
        }
    }

    /// Whether nothing new may begin on the line, since a stage wants to go whose place nobody can take.
    #[must_use]
    pub(in crate::front) fn is_draining(&self) -> bool {
        self.all_seats().any(|seat| self.is_awaited(seat))
    }

    /// Nothing is on the line any more: who waited for that is let go. Whether anybody did.
    pub(in crate::front) fn handle_drained(&mut self) -> bool {
        let waits = |seat: &StageIndex| {
            self.is_awaited(*seat) && self.peer(self.seated(*seat)).leaving == Leaving::Asked
        };
        let waiting: Vec<_> = self.all_seats().filter(waits).map(|seat| self.seated(seat)).collect();
        waiting.iter().for_each(|&peer| self.let_go(peer));
        !waiting.is_empty()
    }

    /// Whether the stage wants to go and nobody could take its place.
    fn is_awaited(&self, seat: StageIndex) -> bool {
        self.is_about_to_go(seat) && !self.spares().any(|spare| self.could_sit(spare, seat))
    }

    /// Whether the stage on this seat wants to go.
    pub(super) fn is_about_to_go(&self, seat: StageIndex) -> bool {
        self.peer(self.seated(seat)).is_leaving()
    }

    /// Lets those go that have no seat, or none any more.
    pub(super) fn let_spares_go(&mut self) {
        let wants_to = |spare: &PeerIndex| self.peer(*spare).leaving == Leaving::Asked;
        let leaving: Vec<_> = self.spares().filter(wants_to).collect();
        leaving.into_iter().for_each(|spare| self.let_go(spare));
    }

    fn let_go(&mut self, peer: PeerIndex) {
        self.peer_mut(peer).leaving = Leaving::LetGo;
        let message = ToStage { to: peer, generation: self.generation, command: Command::Release };
        self.actions.push_back(Action::Send(message));
    }
}

#[cfg(test)]
mod tests;
