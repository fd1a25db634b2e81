//! How a generation is formed, once it is settled who sits where: who is linked to whom, and who is told when.

use std::time::Duration;

use protocol::{Assign, Command, Downstream, NodeId, PeerIndex, StageIndex, ToStage};

use super::peer::asked;
use super::{Action, Peer, PeerState, Phase, Roster};

/// Whom a stage is linked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Neighbours {
    upstream: NodeId,
    downstream: Option<Downstream>,
}

impl Roster {
    /// Has the seats filled and assigns whoever can be assigned; moves on when all are ready.
    pub(super) fn form(&mut self, now: Duration) {
        self.fill_seats(now);
        if self.take_shape(now) {
            self.fill_seats(now);
        }
        self.let_spares_go();
        if let Some(at) = (0..self.seated.len()).find(|&at| self.is_outdated(at)) {
            self.abandon(format!("stage {at} has other neighbours now"), Duration::ZERO, now);
        }
        self.prepare_spares(now);
        if self.phase != Phase::Forming {
            return;
        }
        for at in 0..self.seated.len() {
            if self.at(at).state == PeerState::Linked
                && let Some(neighbours) = self.neighbours(at)
            {
                self.told[at] = Some(neighbours.clone());
                self.assign(at, neighbours, now);
            }
        }
        if self.stages().all(Peer::is_ready) {
            self.phase = Phase::Linking;
            self.actions.push_back(Action::DialWork(self.generation, self.seated[0]));
        }
    }

    /// Whom a stage is linked to, once their keys are known. A relayed neighbour downstream becomes known only through
    /// the assignment that names it, so it is not waited for.
    fn neighbours(&self, at: usize) -> Option<Neighbours> {
        let upstream = match at.checked_sub(1) {
            None => self.front,
            Some(above) => self.at(above).node?,
        };
        let downstream = match self.seated.get(at + 1) {
            None => None,
            Some(&below) => Some(self.downstream(below)?),
        };
        Some(Neighbours { upstream, downstream })
    }

    fn downstream(&self, below: PeerIndex) -> Option<Downstream> {
        let peer = self.peer(below);
        if !peer.relayed && peer.is_away() {
            return None;
        }
        let node = if peer.relayed { peer.node } else { Some(peer.node?) };
        Some(Downstream { address: peer.address.clone()?, node, relay: peer.relayed.then_some(below) })
    }

    /// Whether an assigned stage was told of neighbours that are others, or elsewhere, by now: it would wait for them
    /// for ever.
    fn is_outdated(&self, at: usize) -> bool {
        if !self.at(at).is_assigned() {
            return false;
        }
        let (Some(told), Some(now)) = (&self.told[at], self.neighbours(at)) else { return false };
        let is_same = match (&told.downstream, &now.downstream) {
            (Some(told), Some(now)) => {
                let is_same_node = told.node.is_none() || now.node.is_none() || told.node == now.node;
                told.address == now.address && told.relay == now.relay && is_same_node
            }
            (told, now) => told == now,
        };
        told.upstream != now.upstream || !is_same
    }

    fn assign(&mut self, at: usize, neighbours: Neighbours, now: Duration) {
        let (to, index) = (self.seated[at], StageIndex(at as u16));
        let assign = Assign {
            index,
            n_stages: self.seated.len() as u16,
            holding: self.plan.holding(index),
            row_dtype: self.plan.row_dtype,
            prefix_bytes: self.plan.prefix_bytes,
            keep: self.keep,
            upstream: neighbours.upstream,
            downstream: neighbours.downstream,
        };
        let peer = self.peer_mut(to);
        peer.ask(assign.holding.layers);
        peer.enter(PeerState::Assigned(asked()), now);
        let command = Command::Assign(Box::new(assign));
        self.actions.push_back(Action::Send(ToStage { to, generation: self.generation, command }));
    }
}
