//! One machine as the roster sees it, whether it has a seat in the line or stands by.

use std::time::Duration;

use protocol::{LayerRange, NodeId, StageIndex, StageState};

/// One machine as the front sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// `host:port` as its neighbour dials it; none while it has none.
    pub address: Option<String>,
    /// Its key, once it has been heard.
    pub node: Option<NodeId>,
    /// Its process, once it has been heard, and until its lease has ended.
    pub pid: Option<u32>,
    /// How far it has come.
    pub state: PeerState,
    /// Whether its neighbour passes control messages on, because the front cannot reach it.
    pub relayed: bool,
    /// What it last failed with, until it is asked again; for people.
    pub failed: Option<String>,
    /// Since when it has failed whenever it was asked.
    pub failing_since: Option<Duration>,
    /// Since when it is in this state.
    pub since: Duration,
    /// Whether it is away for longer than its lease.
    pub gone: bool,
    /// The layers that it held when it was last heard.
    pub holds: Option<LayerRange>,
    /// Whether it answers and yet gets nowhere. Only another process could compute in its place.
    pub stalled: bool,
    /// Whether its process was told to end.
    pub leaving: Leaving,
}

/// Whether a machine's process was told to end, and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    /// It stays.
    #[default]
    No,
    /// It goes on until nobody needs it.
    Asked,
    /// It was let go, and will be away.
    LetGo,
}

/// How far a machine has come.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerState {
    /// No control link.
    Away {
        /// Why, for people.
        reason: String,
    },
    /// Linked, and neither assigned in this generation nor asked to stand by.
    Linked,
    /// Has a seat, and was assigned in this generation; what it last said.
    Assigned(StageState),
    /// Has no seat, and was asked to hold the layers of one; what it last said.
    Spare {
        /// Whose layers.
        seat: StageIndex,
        /// How far it has come with them.
        state: StageState,
    },
}

/// Who could take a stage's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cover {
    /// Nobody: the line waits for this stage whenever it is lost.
    Nobody,
    /// A spare that has to load the stage's layers first.
    Cold,
    /// A spare that holds the stage's layers.
    Warm,
}

impl Peer {
    pub(super) fn unknown(address: Option<String>, relayed: bool) -> Self {
        Self {
            address,
            node: None,
            pid: None,
            state: PeerState::Away { reason: "not reached yet".into() },
            relayed,
            failed: None,
            failing_since: None,
            since: Duration::ZERO,
            gone: false,
            holds: None,
            stalled: false,
            leaving: Leaving::No,
        }
    }

    pub(super) const fn is_away(&self) -> bool {
        matches!(self.state, PeerState::Away { .. })
    }

    pub(super) const fn is_assigned(&self) -> bool {
        matches!(self.state, PeerState::Assigned(_))
    }

    /// Whether it should not be counted on any more.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving != Leaving::No
    }

    /// Whether it is there, gets on, and does not want to go.
    pub(super) fn is_here_to_stay(&self) -> bool {
        !self.is_away() && !self.stalled && !self.is_leaving()
    }

    /// Since when it has been away, or failing, or getting nowhere.
    pub(super) fn useless_since(&self) -> Duration {
        self.failing_since.filter(|_| !self.is_away()).unwrap_or(self.since)
    }

    /// Whether it is linked and waits for work.
    pub(super) const fn is_ready(&self) -> bool {
        matches!(self.state, PeerState::Assigned(StageState::Ready { .. }))
    }

    /// Whether it has lost nothing since the line was up last.
    pub(super) const fn keeps(&self) -> bool {
        matches!(self.state, PeerState::Assigned(StageState::Ready { keeps: true, .. }))
    }

    pub(super) fn enter(&mut self, state: PeerState, now: Duration) {
        (self.state, self.since) = (state, now);
    }

    pub(super) fn leave(&mut self, reason: impl Into<String>, now: Duration) {
        (self.stalled, self.leaving) = (false, Leaving::No);
        self.enter(PeerState::Away { reason: reason.into() }, now);
    }

    /// Whether it stands by with the layers of `seat` in memory.
    pub(super) fn is_warm_for(&self, seat: StageIndex) -> bool {
        !self.is_leaving()
            && matches!(&self.state, PeerState::Spare { seat: held, state: StageState::Standby { .. } } if *held == seat)
    }

    /// What it says of its layers tells what it holds.
    pub(super) fn hear(&mut self, state: &StageState, range: LayerRange, now: Duration) {
        match state {
            StageState::Linking | StageState::Ready { .. } | StageState::Standby { .. } => {
                (self.holds, self.failed, self.failing_since) = (Some(range), None, None);
                // Who links is still to show that it gets there.
                self.stalled &= matches!(state, StageState::Linking);
            }
            StageState::Failed { reason } => {
                (self.holds, self.failed) = (None, Some(reason.clone()));
                self.failing_since.get_or_insert(now);
            }
            // It holds nothing until it has loaded, and may take its time.
            StageState::Loading { .. } => self.holds = None,
            StageState::Idle { .. } => {}
        }
    }

    /// It is asked for these layers: whatever else it holds goes.
    pub(super) fn ask(&mut self, range: LayerRange) {
        self.failed = None;
        self.holds = self.holds.filter(|held| *held == range);
    }
}

/// What a machine that was just asked is doing.
pub(super) fn asked() -> StageState {
    StageState::Loading { permille: 0, what: "asked to load".into() }
}
