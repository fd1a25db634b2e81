//! Which stages are there, which generation they were assigned in, and when the line is whole.
//!
//! Pure: it hears what happened and answers with [`Action`]s. It owns the decision to assign, to give up a generation
//! and to start the next; it does not know sockets, requests or what travels on the line once it is up.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::{
    Assign, Command, Downstream, Generation, KvType, LayerRange, ModelId, NodeId, RowDtype, StageIndex,
    StageState, ToStage,
};

/// Shortest pause before a generation is tried again after the stages themselves reported a failure.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest such pause: a person who repairs something should not wait longer than this for the line to notice.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A stage that nobody could reach for so long is asked for through its neighbour. Longer than a frozen stage on this
/// machine takes to be replaced, after which the front reaches it itself.
const RELAY_AFTER: Duration = Duration::from_secs(8);
/// A line that was up this long has earned a fresh start of the pauses.
const SETTLED: Duration = Duration::from_secs(10);

/// What every stage of a line is told.
#[derive(Clone, Debug, PartialEq)]
pub struct LinePlan {
    /// Which model.
    pub model: ModelId,
    /// Its layers.
    pub n_layers: u32,
    /// Consecutive ranges, one per stage, together `0..n_layers`.
    pub ranges: Vec<LayerRange>,
    /// `host:port` of each stage as its neighbour dials it, `None` while it has none; stage 0's is not used.
    pub addresses: Vec<Option<String>>,
    /// Positions per sequence.
    pub context: u32,
    /// Sequences at once.
    pub n_slots: u16,
    /// Rows in one engine call at most.
    pub max_rows: u32,
    /// How hidden rows travel.
    pub row_dtype: RowDtype,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Whether results must not depend on batch shape.
    pub exact: bool,
    /// Whether layers with a sliding window keep every position. If not, the scheduler must know that stages cannot cut
    /// prefixes.
    pub swa_full: bool,
    /// Bytes that each stage has for parked prefixes beside its engine.
    pub prefix_bytes: u64,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Send a control message.
    Send(ToStage),
    /// Open the link on which work goes to stage 0.
    DialWork(Generation),
    /// Every stage is ready and linked: the scheduler may send.
    Up(Generation),
    /// The generation is over; nothing of it may be sent or believed any more.
    Lost {
        /// Which stage, and how; for people.
        reason: String,
    },
}

/// Which stages are reached through their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelayPolicy {
    /// All but the first, whether the front could reach them or not.
    pub(super) always: bool,
    /// The first so many stages live in the front's own process: what they can reach, the front can.
    pub(super) n_own: usize,
}

/// One stage as the front sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    /// Its key, once it has been heard.
    pub node: Option<NodeId>,
    /// Its process, once it has been heard.
    pub pid: Option<u32>,
    /// How far it has come.
    pub state: SeatState,
    /// Whether its neighbour passes control messages on, because the front cannot reach it.
    pub relayed: bool,
    /// What its last assignment failed with, until it is assigned anew; for people.
    pub failed: Option<String>,
    /// Since when it is in this state.
    pub since: Duration,
}

/// How far a stage has come.
#[derive(Clone, Debug, PartialEq)]
pub enum SeatState {
    /// No control link.
    Away {
        /// Why, for people.
        reason: String,
    },
    /// Linked, not assigned in this generation.
    Linked,
    /// Assigned in this generation; what it last said.
    Assigned(StageState),
}

/// Whom a stage is linked to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Neighbours {
    upstream: NodeId,
    downstream: Option<Downstream>,
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

/// All stages of one line.
#[derive(Debug)]
pub(super) struct Roster {
    plan: LinePlan,
    front: NodeId,
    relay: RelayPolicy,
    seats: Vec<Seat>,
    /// Whom each stage was last told to link to.
    told: Vec<Option<Neighbours>>,
    generation: Generation,
    phase: Phase,
    pause: Duration,
    actions: VecDeque<Action>,
}

impl Roster {
    /// A line of which nothing is there yet. `first` must be higher than any generation that the stages may have seen
    /// (milliseconds since 1970 will do); `front` is the node that stage 0 accepts work from.
    ///
    /// # Panics
    /// If the plan has no stages, or not one range and one address for each.
    #[must_use]
    pub(super) fn new(plan: LinePlan, front: NodeId, first: Generation, relay: RelayPolicy) -> Self {
        assert!(
            !plan.ranges.is_empty() && plan.ranges.len() == plan.addresses.len(),
            "one range and address a stage"
        );
        let seat = |index: usize| Seat {
            node: None,
            pid: None,
            state: SeatState::Away { reason: "not reached yet".into() },
            relayed: relay.always && index > 0,
            failed: None,
            since: Duration::ZERO,
        };
        Self {
            seats: (0..plan.ranges.len()).map(seat).collect(),
            told: vec![None; plan.ranges.len()],
            plan,
            front,
            relay,
            generation: first,
            phase: Phase::Forming,
            pause: RETRY_MIN,
            actions: VecDeque::new(),
        }
    }

    /// The stages, in line order.
    #[must_use]
    pub(super) fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// The plan, with the addresses last heard.
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

    /// The stage whose control link carries messages for `to`.
    #[must_use]
    pub(super) fn route(&self, to: StageIndex) -> StageIndex {
        let mut at = usize::from(to.0);
        while at > 0 && self.seats[at].relayed {
            at -= 1;
        }
        StageIndex(at as u16)
    }

    /// When [`Roster::handle_timeout`] wants to be called.
    #[must_use]
    pub(super) const fn next_deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Pausing { until } => Some(until),
            Phase::Forming | Phase::Linking | Phase::Up { .. } => None,
        }
    }

    /// The next thing to do.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A stage will be found at another address from now on, or has none.
    pub(super) fn handle_address(&mut self, stage: StageIndex, address: Option<String>, now: Duration) {
        self.plan.addresses[usize::from(stage.0)] = address;
        self.form(now);
    }

    /// A stage cannot be dialled: if that lasts, its neighbour is asked to pass messages on, unless the neighbour is in
    /// no better place. A stage that is linked one way or the other is left alone.
    pub(super) fn handle_unreachable(&mut self, stage: StageIndex, reason: String, now: Duration) {
        let at = usize::from(stage.0);
        let seat = &mut self.seats[at];
        if !matches!(seat.state, SeatState::Away { .. }) {
            return;
        }
        seat.state = SeatState::Away { reason };
        let waited = now.saturating_sub(seat.since) >= RELAY_AFTER;
        let hopeless = at <= self.relay.n_own || at == 0;
        if hopeless || seat.relayed || !waited || self.seats[at - 1].state != SeatState::Linked {
            return;
        }
        self.seats[at].relayed = true;
        self.form(now);
    }

    /// A stage has answered that it does not want this front; it would not want the neighbour either.
    pub(super) fn handle_refused(&mut self, stage: StageIndex, reason: String) {
        let state = &mut self.seats[usize::from(stage.0)].state;
        if matches!(state, SeatState::Away { .. }) {
            *state = SeatState::Away { reason };
        }
    }

    /// A control link answered with the stage's key: directly, or (`relayed`) through its neighbour.
    pub(super) fn handle_linked(
        &mut self,
        stage: StageIndex,
        node: NodeId,
        pid: u32,
        relayed: bool,
        now: Duration,
    ) {
        let at = usize::from(stage.0);
        if relayed && !self.seats[at].relayed {
            return; // A direct link has come first.
        }
        if matches!(self.seats[at].state, SeatState::Assigned(_)) {
            self.abandon(format!("stage {stage} came back as if new"), Duration::ZERO, now);
            if relayed {
                return self.form(now); // Its neighbour will link to it anew.
            }
        }
        // What failed before may go well with a stage that has come (back).
        if matches!((self.phase, &self.seats[at].state), (Phase::Pausing { .. }, SeatState::Away { .. })) {
            self.phase = Phase::Forming;
        }
        let failed = self.seats[at].failed.take();
        self.seats[at] =
            Seat { node: Some(node), pid: Some(pid), state: SeatState::Linked, relayed, failed, since: now };
        self.form(now);
    }

    /// A stage's control link is gone.
    pub(super) fn handle_lost(&mut self, stage: StageIndex, reason: String, now: Duration) {
        let at = usize::from(stage.0);
        let was = std::mem::replace(&mut self.seats[at].state, SeatState::Away { reason: reason.clone() });
        self.seats[at].failed = None;
        self.seats[at].since = now;
        for seat in self.seats[at + 1..].iter_mut().take_while(|seat| seat.relayed) {
            seat.state = SeatState::Away { reason: format!("reached through stage {stage}, which is away") };
            seat.since = now;
        }
        if matches!(was, SeatState::Assigned(_)) {
            self.abandon(format!("stage {stage}: {reason}"), Duration::ZERO, now);
        }
        self.form(now);
    }

    /// A stage says how far it has come with its assignment.
    pub(super) fn handle_state(
        &mut self,
        stage: StageIndex,
        generation: Generation,
        state: StageState,
        now: Duration,
    ) {
        let at = usize::from(stage.0);
        if generation != self.generation || !matches!(self.seats[at].state, SeatState::Assigned(_)) {
            return;
        }
        let failed = match &state {
            StageState::Failed { reason } => Some(reason.clone()),
            StageState::Idle { .. }
            | StageState::Loading { .. }
            | StageState::Linking
            | StageState::Ready { .. } => None,
        };
        self.seats[at].state = SeatState::Assigned(state);
        self.seats[at].since = now;
        match failed {
            Some(reason) => self.retry(format!("stage {stage}: {reason}"), now),
            None => self.form(now),
        }
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
        let next = usize::from(stage.0) + 1;
        for seat in self.seats.iter_mut().skip(next).take_while(|seat| seat.relayed) {
            seat.state = SeatState::Away { reason: format!("stage {stage} lost its link to it") };
        }
        self.retry(format!("stage {stage}: {reason}"), now);
    }

    /// The work link to stage 0 stands.
    pub(super) fn handle_work_link(&mut self, generation: Generation, now: Duration) {
        if generation == self.generation && self.phase == Phase::Linking {
            self.phase = Phase::Up { since: now };
            self.actions.push_back(Action::Up(generation));
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
            self.retry(format!("work did not come back within {} s", silence.as_secs()), now);
        }
    }

    /// The pause is over.
    pub(super) fn handle_timeout(&mut self, now: Duration) {
        if let Phase::Pausing { until } = self.phase
            && until <= now
        {
            self.phase = Phase::Forming;
            self.form(now);
        }
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
        for seat in &mut self.seats {
            let assigned = matches!(seat.state, SeatState::Assigned(_));
            if let SeatState::Assigned(StageState::Failed { reason }) = &seat.state {
                seat.failed = Some(reason.clone());
            }
            // A neighbour that is assigned anew drops its link to a relayed stage and makes another.
            if seat.relayed && (assigned || seat.state == SeatState::Linked) {
                seat.state = SeatState::Away { reason: "its neighbour links to it anew".into() };
                seat.since = now;
            } else if assigned {
                seat.state = SeatState::Linked;
                seat.since = now;
            }
        }
        self.phase = if pause.is_zero() { Phase::Forming } else { Phase::Pausing { until: now + pause } };
        self.actions.push_back(Action::Lost { reason });
    }

    /// Assigns whoever can be assigned, and moves on when all are ready.
    fn form(&mut self, now: Duration) {
        if let Some(at) = (0..self.seats.len()).find(|&at| self.is_outdated(at)) {
            self.abandon(format!("stage {at} has other neighbours now"), Duration::ZERO, now);
        }
        if self.phase != Phase::Forming {
            return;
        }
        for at in 0..self.seats.len() {
            if self.seats[at].state == SeatState::Linked
                && let Some(neighbours) = self.neighbours(at)
            {
                self.seats[at].state =
                    SeatState::Assigned(StageState::Loading { permille: 0, what: "asked to load".into() });
                self.seats[at].failed = None;
                self.seats[at].since = now;
                self.told[at] = Some(neighbours.clone());
                self.actions.push_back(Action::Send(ToStage {
                    to: StageIndex(at as u16),
                    generation: self.generation,
                    command: Command::Assign(Box::new(self.assignment(at, neighbours))),
                }));
            }
        }
        let ready = |seat: &Seat| matches!(seat.state, SeatState::Assigned(StageState::Ready { .. }));
        if self.seats.iter().all(ready) {
            self.phase = Phase::Linking;
            self.actions.push_back(Action::DialWork(self.generation));
        }
    }

    /// Whom a stage is linked to, once their keys are known. A relayed neighbour downstream becomes known only through
    /// the assignment that names it, so it is not waited for.
    fn neighbours(&self, at: usize) -> Option<Neighbours> {
        let upstream = match at.checked_sub(1) {
            None => self.front,
            Some(above) => self.seats[above].node?,
        };
        let downstream = match self.seats.get(at + 1) {
            None => None,
            Some(below) if !below.relayed && matches!(below.state, SeatState::Away { .. }) => return None,
            Some(below) => {
                let node = if below.relayed { below.node } else { Some(below.node?) };
                let address = self.plan.addresses[at + 1].clone()?;
                Some(Downstream { address, node, relay: below.relayed })
            }
        };
        Some(Neighbours { upstream, downstream })
    }

    /// Whether an assigned stage was told of neighbours that are others, or elsewhere, by now: it would wait for them
    /// for ever.
    fn is_outdated(&self, at: usize) -> bool {
        if !matches!(self.seats[at].state, SeatState::Assigned(_)) {
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

    fn assignment(&self, at: usize, neighbours: Neighbours) -> Assign {
        Assign {
            index: StageIndex(at as u16),
            n_stages: self.seats.len() as u16,
            model: self.plan.model,
            layers: self.plan.ranges[at],
            n_layers: self.plan.n_layers,
            context: self.plan.context,
            n_slots: self.plan.n_slots,
            max_rows: self.plan.max_rows,
            row_dtype: self.plan.row_dtype,
            kv: self.plan.kv,
            exact: self.plan.exact,
            swa_full: self.plan.swa_full,
            prefix_bytes: self.plan.prefix_bytes,
            upstream: neighbours.upstream,
            downstream: neighbours.downstream,
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
