//! Stages that answer and get nowhere: whose engine does not come to the end of a call, or to which no rows get through.
//!
//! Heartbeats do not show that, and a line that is silent does not say which stage it waits for. The next generation
//! does: every stage that holds its layers is ready within a moment, once the one after it is. So the last one that is
//! not ready is the one that the others wait for. That one counts as lost, as if its process had been killed: a spare
//! takes its seat, or whoever supervises its process starts another one.

use std::time::Duration;

use protocol::{StageIndex, StageState};

use super::{PeerState, Phase, Roster};

/// A stage that holds its layers may take so long to get ready, or as long as a line may be silent if that is less. It has to
/// end one call, which is stopped where the back end can, and to be linked: far below a second where nothing is wrong. Slow is
/// not dead, so that a call of some seconds on a back end that cannot stop is waited for.
pub(in crate::front) const READY_WITHIN: Duration = Duration::from_secs(10);

impl Roster {
    /// Which stage has to be given up if nothing is heard, and when.
    pub(super) fn stall(&self) -> Option<(Duration, StageIndex)> {
        if self.phase != Phase::Forming {
            return None;
        }
        let waited_for = (0..self.seated.len()).rfind(|&at| !self.at(at).is_ready())?;
        let below = waited_for + 1;
        let (since, at) = match self.at(waited_for).state {
            PeerState::Assigned(StageState::Loading { .. }) => (self.at(waited_for).since, waited_for),
            // It speaks and the next one is ready for it, but they do not get together.
            PeerState::Assigned(StageState::Linking) if below < self.seated.len() => {
                (self.at(waited_for).since.max(self.at(below).since), below)
            }
            PeerState::Away { .. } | PeerState::Linked | PeerState::Assigned(_) | PeerState::Spare { .. } => {
                return None;
            }
        };
        let (stage, peer) = (StageIndex(at as u16), self.at(at));
        let holds = peer.holds == Some(self.plan.range(stage));
        (holds && !peer.stalled).then_some((since + self.ready_within, stage))
    }

    /// Gives up the stage that everybody waits for, if its time is up.
    pub(super) fn note_stall(&mut self, now: Duration) {
        let Some((_, stage)) = self.stall().filter(|&(at, _)| at <= now) else { return };
        let peer = self.peer_mut(self.seated(stage));
        peer.stalled = true;
        let what = if peer.is_ready() { "no rows get through to it" } else { "its last call does not end" };
        peer.failed = Some(format!("it answers, but {what}: start it again if nothing else does"));
        peer.since = now;
    }

    /// A stage has said how far it is. If it is ready its rows do get through to the next one, whatever was thought of that.
    pub(super) fn gets_through_to_next(&mut self, stage: StageIndex) {
        let next = usize::from(stage.0) + 1;
        if self.at(usize::from(stage.0)).is_ready() && next < self.seated.len() {
            let next = self.peer_mut(self.seated(StageIndex(next as u16)));
            if next.stalled {
                (next.stalled, next.failed) = (false, None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
