//! Which machines are there, who of them sits on which seat of the line, which generation they were assigned in, and
//! when the line is whole.
//!
//! Pure: it hears what happened and answers with [`Action`]s. It owns the decision who computes which layers and who
//! stands by, to assign, to give up a generation and to start the next; it does not know sockets, requests or what
//! travels on the line once it is up.

mod forming;
mod leaving;
mod peer;
mod plan;
mod shape;
mod spares;
mod stalls;

use std::collections::VecDeque;
use std::time::Duration;

use protocol::{Generation, NodeId, PeerIndex, StageIndex, StageState, ToStage};

use forming::Neighbours;
pub use peer::{Cover, Leaving, Peer, PeerState};
pub use plan::LinePlan;
pub(super) use plan::{Muster, RelayPolicy};
use shape::Shape;
pub(super) use stalls::READY_WITHIN;

/// Shortest pause before a generation is tried again after the stages themselves reported a failure.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest such pause: a person who repairs something should not wait longer than this for the line to notice.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A stage that nobody could reach for so long is asked for through its neighbour. Longer than a frozen stage on this
/// machine takes to be replaced, after which the front reaches it itself.
const RELAY_AFTER: Duration = Duration::from_secs(8);
/// A line that was up this long has earned a fresh start of the pauses.
const SETTLED: Duration = Duration::from_secs(10);

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Send a control message.
    Send(ToStage),
    /// Open the link on which work goes to stage 0, which this machine computes.
    DialWork(Generation, PeerIndex),
    /// Every stage is ready and linked: the scheduler may send.
    Up {
        /// Which generation.
        generation: Generation,
        /// All stages but the first so many still hold what they held when the line was up last; none if no stage does.
        lost_by: Option<u16>,
    },
    /// A spare has a seat from now on; who had it stands by.
    StandIn {
        /// Which seat.
        seat: StageIndex,
        /// Who has it now.
        spare: PeerIndex,
    },
    /// The generations from now on share the layers out in another way, as the plan says.
    Reshaped,
    /// The generation is over; nothing of it may be sent or believed any more.
    Lost {
        /// Which stage, and how; for people.
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Stages are missing or loading.
    Forming,
    /// Waiting before the next generation is assigned.
    Pausing { until: Duration },
    /// All stages ready; the work link is being dialled.
    Linking,
    /// Work flows.
    Up { since: Duration },
}

/// All machines of one line.
#[derive(Debug)]
pub(super) struct Roster {
    plan: LinePlan,
    front: NodeId,
    relay: RelayPolicy,
    lease: Duration,
    ready_within: Duration,
    peers: Vec<Peer>,
    /// Of each machine, the only seat that it may take, if there is one.
    fixed: Vec<Option<StageIndex>>,
    /// Who sits on each seat, in line order. The others stand by.
    seated: Vec<PeerIndex>,
    /// Whom each stage was last told to link to.
    told: Vec<Option<Neighbours>>,
    shape: Shape,
    generation: Generation,
    phase: Phase,
    /// Whether the line was ever up.
    was_up: bool,
    /// When it was up last, if what stages still hold of that can be relied on.
    keep: Option<Generation>,
    pause: Duration,
    actions: VecDeque<Action>,
}

impl Roster {
    /// A line of which nothing is there yet. `first` must be higher than any generation that the stages may have seen
    /// (milliseconds since 1970 will do); `front` is the node that stage 0 accepts work from.
    ///
    /// # Panics
    /// If the plan has no stages, or not one range for each.
    #[must_use]
    pub(super) fn new(plan: LinePlan, front: NodeId, first: Generation, muster: Muster) -> Self {
        let n_seats = plan.ranges.len();
        assert!(n_seats > 0 && n_seats == muster.stages.len(), "one range a stage");
        let Muster { stages, spares, relay, lease, ready_within, replan_after } = muster;
        let stages = stages.into_iter().enumerate();
        let stages = stages.map(|(at, address)| (Peer::unknown(address, relay.always && at > 0), None));
        let spares = spares.into_iter().map(|(address, seat)| (Peer::unknown(address, false), seat));
        let (peers, fixed) = stages.chain(spares).unzip();
        Self {
            peers,
            fixed,
            seated: (0..n_seats as u16).map(PeerIndex).collect(),
            told: vec![None; n_seats],
            shape: Shape::new(&plan.ranges, replan_after),
            plan,
            front,
            relay,
            lease,
            ready_within,
            generation: first,
            phase: Phase::Forming,
            was_up: false,
            keep: None,
            pause: RETRY_MIN,
            actions: VecDeque::new(),
        }
    }

    /// All machines, by their numbers.
    #[must_use]
    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// All stages but the first so many have kept what they held; none if no stage has.
    fn lost_by(&self) -> Option<u16> {
        let keeps: Vec<bool> = self.stages().map(Peer::keeps).collect();
        let lost_by = keeps.iter().rposition(|keeps| !keeps).map_or(0, |last| last as u16 + 1);
        keeps.contains(&true).then_some(lost_by)
    }

    /// Those that sit, in line order.
    pub(super) fn stages(&self) -> impl Iterator<Item = &Peer> {
        self.seated.iter().map(|&peer| self.peer(peer))
    }

    /// Who has the seat.
    #[must_use]
    pub(super) fn seated(&self, seat: StageIndex) -> PeerIndex {
        self.seated[usize::from(seat.0)]
    }

    /// The seat of a machine; none if it stands by.
    #[must_use]
    pub(super) fn seat_of(&self, peer: PeerIndex) -> Option<StageIndex> {
        self.seated.iter().position(|&seated| seated == peer).map(|at| StageIndex(at as u16))
    }

    /// One machine.
    #[must_use]
    pub(super) fn peer(&self, peer: PeerIndex) -> &Peer {
        &self.peers[usize::from(peer.0)]
    }

    fn peer_mut(&mut self, peer: PeerIndex) -> &mut Peer {
        &mut self.peers[usize::from(peer.0)]
    }

    fn at(&self, at: usize) -> &Peer {
        self.peer(self.seated[at])
    }

    /// What the stages are told.
    #[must_use]
    pub(super) const fn plan(&self) -> &LinePlan {
        &self.plan
    }

    /// The generation being formed or running.
    #[must_use]
    pub(super) const fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether work may flow.
    #[must_use]
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// Whether the stage lives in the front's own process.
    #[must_use]
    pub(super) fn is_own(&self, stage: StageIndex) -> bool {
        usize::from(stage.0) < self.relay.n_own
    }

    /// The machine whose control link carries messages for `to`.
    #[must_use]
    pub(super) fn route(&self, to: PeerIndex) -> PeerIndex {
        let Some(seat) = self.seat_of(to) else { return to };
        let mut at = usize::from(seat.0);
        while at > 0 && self.at(at).relayed {
            at -= 1;
        }
        self.seated[at]
    }

    /// When [`Roster::handle_timeout`] wants to be called.
    #[must_use]
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let retry = match self.phase {
            Phase::Pausing { until } => Some(until),
            Phase::Forming | Phase::Linking | Phase::Up { .. } => None,
        };
        let away = self.peers.iter().filter(|peer| peer.is_away() && !peer.gone);
        let lease_ends = away.map(|peer| peer.since + self.lease).min();
        let stall = self.stall().map(|(at, _)| at);
        let exchanges = [self.next_exchange(), self.next_asking(), self.next_shape()];
        [retry, lease_ends, stall].into_iter().chain(exchanges).flatten().min()
    }

    /// The next thing to do.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A machine will be found at another address from now on, or has none.
    pub(super) fn handle_address(&mut self, peer: PeerIndex, address: Option<String>, now: Duration) {
        self.peer_mut(peer).address = address;
        self.form(now);
    }

    /// A machine cannot be dialled: if that lasts, its neighbour is asked to pass messages on, unless the neighbour is
    /// in no better place. A machine that is linked one way or the other is left alone.
    pub(super) fn handle_unreachable(&mut self, peer: PeerIndex, reason: String, now: Duration) {
        let found = self.peer_mut(peer);
        if !found.is_away() {
            return;
        }
        found.state = PeerState::Away { reason };
        let waited = now.saturating_sub(found.since) >= RELAY_AFTER;
        let Some(seat) = self.seat_of(peer) else { return };
        let at = usize::from(seat.0);
        let hopeless = at <= self.relay.n_own || at == 0;
        if hopeless || self.at(at).relayed || !waited || self.at(at - 1).state != PeerState::Linked {
            return;
        }
        self.peer_mut(peer).relayed = true;
        self.form(now);
    }

    /// A machine has answered that it does not want this front; it would not want the neighbour either.
    pub(super) fn handle_refused(&mut self, peer: PeerIndex, reason: String) {
        let peer = self.peer_mut(peer);
        if peer.is_away() {
            peer.state = PeerState::Away { reason };
        }
    }

    /// A control link answered with the machine's key: directly, or (`relayed`) through its neighbour.
    pub(super) fn handle_linked(
        &mut self,
        peer: PeerIndex,
        node: NodeId,
        pid: u32,
        relayed: bool,
        now: Duration,
    ) {
        if relayed && !self.peer(peer).relayed {
            return; // A direct link has come first.
        }
        let seat = self.seat_of(peer);
        if let (Some(stage), true) = (seat, self.peer(peer).is_assigned()) {
            self.abandon(format!("stage {stage} came back as if new"), Duration::ZERO, now);
            if relayed {
                return self.form(now); // Its neighbour will link to it anew.
            }
        }
        // What failed before may go well with a stage that has come (back).
        if matches!(self.phase, Phase::Pausing { .. }) && seat.is_some() && self.peer(peer).is_away() {
            self.phase = Phase::Forming;
        }
        let found = self.peer_mut(peer);
        if (found.node, found.pid) != (Some(node), Some(pid)) {
            found.holds = None;
        }
        if seat.is_none() {
            found.failed = None;
        }
        (found.node, found.pid, found.relayed, found.gone) = (Some(node), Some(pid), relayed, false);
        (found.stalled, found.leaving, found.failing_since) = (false, Leaving::No, None);
        found.enter(PeerState::Linked, now);
        self.shape.forgive();
        self.form(now);
    }

    /// A machine's control link is gone.
    pub(super) fn handle_lost(&mut self, peer: PeerIndex, reason: String, now: Duration) {
        let found = self.peer_mut(peer);
        let was_assigned = found.is_assigned();
        found.failed = None;
        found.leave(reason.clone(), now);
        if let Some(stage) = self.seat_of(peer) {
            self.cut_off(stage, &format!("reached through stage {stage}, which is away"), now);
            if was_assigned {
                self.abandon(format!("stage {stage}: {reason}"), Duration::ZERO, now);
            }
        }
        self.form(now);
    }

    /// Those that are reached through this stage cannot be reached.
    fn cut_off(&mut self, stage: StageIndex, reason: &str, now: Duration) {
        let mut at = usize::from(stage.0) + 1;
        while at < self.seated.len() && self.at(at).relayed {
            let peer = self.seated[at];
            self.peer_mut(peer).leave(reason, now);
            at += 1;
        }
    }

    /// A stage says how far it has come with its assignment.
    pub(super) fn handle_state(
        &mut self,
        stage: StageIndex,
        generation: Generation,
        state: StageState,
        now: Duration,
    ) {
        let (peer, range) = (self.seated(stage), self.plan.range(stage));
        if generation != self.generation || !self.peer(peer).is_assigned() {
            return;
        }
        let found = self.peer_mut(peer);
        found.hear(&state, range, now);
        let failed = match &state {
            StageState::Failed { reason } => Some(reason.clone()),
            StageState::Idle { .. }
            | StageState::Loading { .. }
            | StageState::Linking
            | StageState::Standby { .. }
            | StageState::Ready { .. } => None,
        };
        found.enter(PeerState::Assigned(state), now);
        self.gets_through_to_next(stage);
        if let Some(reason) = failed {
            let reason = format!("stage {stage}: {reason}");
            self.retry(reason.clone(), now);
            self.is_too_narrow(&reason, now);
        }
        self.form(now);
    }

    /// A stage says that it, or its link to the next one, cannot go on.
    pub(super) fn handle_fault(
        &mut self,
        stage: StageIndex,
        generation: Generation,
        reason: &str,
        now: Duration,
    ) {
        if generation != self.generation {
            return;
        }
        self.cut_off(stage, &format!("stage {stage} lost its link to it"), now);
        self.retry(format!("stage {stage}: {reason}"), now);
    }

    /// A stage has not heard what was sent, or not so: nothing that any of them holds can be relied on.
    pub(super) fn handle_disorder(&mut self, stage: StageIndex, reason: &str, now: Duration) {
        self.keep = None;
        self.handle_fault(stage, self.generation, reason, now);
    }

    /// The work link to stage 0 stands.
    pub(super) fn handle_work_link(&mut self, generation: Generation, now: Duration) {
        if generation == self.generation && self.phase == Phase::Linking {
            self.phase = Phase::Up { since: now };
            self.was_up = true;
            self.keep = Some(generation);
            self.fits();
            let lost_by = self.lost_by();
            self.actions.push_back(Action::Up { generation, lost_by });
        }
    }

    /// The work link to stage 0 could not be made, or broke.
    pub(super) fn handle_work_link_lost(&mut self, generation: Generation, reason: &str, now: Duration) {
        if generation == self.generation {
            self.retry(format!("work link to stage 0: {reason}"), now);
        }
    }

    /// The line has said nothing about some of its work for far too long.
    pub(super) fn handle_silence(&mut self, silence: Duration, now: Duration) {
        if self.is_up() {
            self.keep = None;
            self.retry(format!("work did not come back within {} s", silence.as_secs()), now);
        }
    }

    /// A pause is over, or somebody's lease or patience.
    pub(super) fn handle_timeout(&mut self, now: Duration) {
        if let Phase::Pausing { until } = self.phase
            && until <= now
        {
            self.phase = Phase::Forming;
        }
        let lease = self.lease;
        for peer in self.peers.iter_mut().filter(|peer| peer.is_away() && peer.since + lease <= now) {
            (peer.gone, peer.holds, peer.pid) = (true, None, None);
        }
        self.note_stall(now);
        self.form(now);
    }

    /// Gives the generation up and tries again after a pause that doubles from failure to failure.
    fn retry(&mut self, reason: String, now: Duration) {
        if let Phase::Up { since } = self.phase
            && now.saturating_sub(since) >= SETTLED
        {
            self.pause = RETRY_MIN;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(RETRY_MAX);
        self.abandon(reason, pause, now);
    }

    /// Ends the generation. The stages that are linked will be assigned again in the next one; what a failed stage
    /// said stays readable until then.
    fn abandon(&mut self, reason: String, pause: Duration, now: Duration) {
        self.generation = Generation(self.generation.0 + 1);
        for peer in &mut self.peers {
            // A neighbour that is assigned anew drops its link to a relayed stage and makes another.
            if peer.relayed && (peer.is_assigned() || peer.state == PeerState::Linked) {
                peer.leave("its neighbour links to it anew", now);
            } else if peer.is_assigned() {
                peer.enter(PeerState::Linked, now);
            }
        }
        self.phase = if pause.is_zero() { Phase::Forming } else { Phase::Pausing { until: now + pause } };
        self.actions.push_back(Action::Lost { reason });
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
