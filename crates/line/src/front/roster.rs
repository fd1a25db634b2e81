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
    relay_all: bool,
    seats: Vec<Seat>,
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
    pub(super) fn new(plan: LinePlan, front: NodeId, first: Generation, relay_all: bool) -> Self {
        assert!(
            !plan.ranges.is_empty() && plan.ranges.len() == plan.addresses.len(),
            "one range and address a stage"
        );
        let seat = |index: usize| Seat {
            node: None,
            pid: None,
            state: SeatState::Away { reason: "not reached yet".into() },
            relayed: relay_all && index > 0,
            since: Duration::ZERO,
        };
        Self {
            seats: (0..plan.ranges.len()).map(seat).collect(),
            plan,
            front,
            relay_all,
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

    /// A stage will be found at another address from now on, or has none. A neighbour that was told the old one in
    /// order to relay would dial it for ever, so it is told anew.
    pub(super) fn handle_address(&mut self, stage: StageIndex, address: Option<String>, now: Duration) {
        let at = usize::from(stage.0);
        if self.plan.addresses[at] == address {
            return;
        }
        self.plan.addresses[at] = address;
        if self.seats[at].relayed && at > 0 && matches!(self.seats[at - 1].state, SeatState::Assigned(_)) {
            self.abandon(format!("stage {stage} has moved"), Duration::ZERO, now);
        }
        self.form(now);
    }

    /// A stage cannot be dialled: its neighbour is asked to pass messages on, unless it is the first.
    /// A stage that is linked one way or the other is left alone.
    pub(super) fn handle_unreachable(&mut self, stage: StageIndex, reason: String, now: Duration) {
        let at = usize::from(stage.0);
        let seat = &mut self.seats[at];
        if !matches!(seat.state, SeatState::Away { .. }) {
            return;
        }
        seat.state = SeatState::Away { reason };
        if at == 0 || seat.relayed || !matches!(self.seats[at - 1].state, SeatState::Linked) {
            return;
        }
        self.seats[at].relayed = true;
        self.form(now);
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
        let switched = self.seats[at].relayed && !relayed && !self.relay_all;
        self.seats[at] =
            Seat { node: Some(node), pid: Some(pid), state: SeatState::Linked, relayed, since: now };
        if switched && matches!(self.seats[at - 1].state, SeatState::Assigned(_)) {
            self.abandon(format!("stage {stage} is reached directly now"), Duration::ZERO, now);
        }
        self.form(now);
    }

    /// A stage's control link is gone.
    pub(super) fn handle_lost(&mut self, stage: StageIndex, reason: String, now: Duration) {
        let at = usize::from(stage.0);
        let was = std::mem::replace(&mut self.seats[at].state, SeatState::Away { reason: reason.clone() });
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
        if self.phase != Phase::Forming {
            return;
        }
        for at in 0..self.seats.len() {
            if let Some(assign) = self.assignment(at) {
                self.seats[at].state =
                    SeatState::Assigned(StageState::Loading { permille: 0, what: "asked to load".into() });
                self.seats[at].since = now;
                self.actions.push_back(Action::Send(ToStage {
                    to: StageIndex(at as u16),
                    generation: self.generation,
                    command: Command::Assign(Box::new(assign)),
                }));
            }
        }
        let ready = |seat: &Seat| matches!(seat.state, SeatState::Assigned(StageState::Ready { .. }));
        if self.seats.iter().all(ready) {
            self.phase = Phase::Linking;
            self.actions.push_back(Action::DialWork(self.generation));
        }
    }

    /// The assignment of a stage that is linked and whose neighbours' keys are known. A relayed neighbour downstream
    /// becomes known only through this very assignment, so it is not waited for.
    fn assignment(&self, at: usize) -> Option<Assign> {
        if self.seats[at].state != SeatState::Linked {
            return None;
        }
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
        Some(Assign {
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
            upstream,
            downstream,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRONT: NodeId = NodeId([255; 32]);

    fn node(at: u16) -> NodeId {
        NodeId([at as u8 + 1; 32])
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn ready() -> StageState {
        StageState::Ready { row_width: 8, weight_bytes: 1, kv_bytes: 1 }
    }

    fn roster(n: u16, relay: bool) -> Roster {
        let plan = LinePlan {
            model: ModelId([7; 32]),
            n_layers: u32::from(n) * 2,
            ranges: (0..u32::from(n)).map(|i| LayerRange { start: 2 * i, end: 2 * i + 2 }).collect(),
            addresses: (0..n).map(|i| Some(format!("host:{i}"))).collect(),
            context: 64,
            n_slots: 2,
            max_rows: 16,
            row_dtype: RowDtype::F32,
            kv: KvType::F16,
            exact: false,
        };
        Roster::new(plan, FRONT, Generation(10), relay)
    }

    fn actions(roster: &mut Roster) -> Vec<Action> {
        std::iter::from_fn(|| roster.poll_action()).collect()
    }

    /// The stages assigned by the actions so far, with generation, upstream and downstream.
    fn assigned(roster: &mut Roster) -> Vec<(u16, u64, NodeId, Option<Downstream>)> {
        actions(roster)
            .into_iter()
            .filter_map(|action| match action {
                Action::Send(ToStage { to, generation, command: Command::Assign(assign) }) => {
                    assert_eq!(assign.index, to);
                    Some((to.0, generation.0, assign.upstream, assign.downstream))
                }
                _ => None,
            })
            .collect()
    }

    fn link_all(roster: &mut Roster, n: u16) {
        for at in 0..n {
            roster.handle_linked(StageIndex(at), node(at), 1, false, ms(1));
        }
    }

    fn bring_up(roster: &mut Roster, n: u16) {
        link_all(roster, n);
        let generation = roster.generation();
        for at in 0..n {
            roster.handle_state(StageIndex(at), generation, ready(), ms(2));
        }
        roster.handle_work_link(generation, ms(3));
        assert!(roster.is_up());
        actions(roster);
    }

    #[test]
    fn stages_are_assigned_once_their_neighbours_are_known() {
        let mut line = roster(3, false);
        line.handle_linked(StageIndex(1), node(1), 1, false, ms(1));
        assert_eq!(assigned(&mut line), []);
        line.handle_linked(StageIndex(0), node(0), 1, false, ms(1));
        let to_1 = Downstream { address: "host:1".into(), node: Some(node(1)), relay: false };
        assert_eq!(assigned(&mut line), [(0, 10, FRONT, Some(to_1))]);
        line.handle_linked(StageIndex(2), node(2), 1, false, ms(1));
        let to_2 = Downstream { address: "host:2".into(), node: Some(node(2)), relay: false };
        assert_eq!(assigned(&mut line), [(1, 10, node(0), Some(to_2)), (2, 10, node(1), None)]);
    }

    #[test]
    fn a_line_is_up_when_all_are_ready_and_work_is_linked() {
        let mut line = roster(2, false);
        link_all(&mut line, 2);
        actions(&mut line);
        line.handle_state(StageIndex(1), Generation(10), ready(), ms(2));
        line.handle_state(StageIndex(0), Generation(10), StageState::Linking, ms(2));
        assert_eq!(actions(&mut line), []);
        line.handle_state(StageIndex(0), Generation(10), ready(), ms(2));
        assert_eq!(actions(&mut line), [Action::DialWork(Generation(10))]);
        line.handle_work_link(Generation(9), ms(3));
        assert!(!line.is_up());
        line.handle_work_link(Generation(10), ms(3));
        assert_eq!(actions(&mut line), [Action::Up(Generation(10))]);
    }

    #[test]
    fn a_lost_stage_ends_the_generation_and_its_return_forms_the_next() {
        let mut line = roster(2, false);
        bring_up(&mut line, 2);
        line.handle_lost(StageIndex(1), "killed".into(), ms(50));
        assert_eq!(actions(&mut line), [Action::Lost { reason: "stage 1: killed".into() }]);
        assert!(!line.is_up());
        line.handle_linked(StageIndex(1), node(1), 2, false, ms(90));
        let again = assigned(&mut line);
        assert_eq!(again.iter().map(|a| (a.0, a.1)).collect::<Vec<_>>(), [(0, 11), (1, 11)]);
        line.handle_state(StageIndex(0), Generation(10), ready(), ms(95));
        assert!(matches!(line.seats()[0].state, SeatState::Assigned(StageState::Loading { .. })), "old news");
    }

    #[test]
    fn failures_are_retried_with_growing_pauses() {
        let mut line = roster(1, false);
        line.handle_linked(StageIndex(0), node(0), 1, false, ms(0));
        let mut now = ms(0);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            actions(&mut line);
            let generation = line.generation();
            line.handle_state(
                StageIndex(0),
                generation,
                StageState::Failed { reason: "no model".into() },
                now,
            );
            assert_eq!(actions(&mut line), [Action::Lost { reason: "stage 0: no model".into() }]);
            let until = line.next_deadline().unwrap();
            pauses.push((until - now).as_millis());
            line.handle_timeout(until - ms(1));
            assert_eq!(actions(&mut line), []);
            now = until;
            line.handle_timeout(now);
            assert_eq!(line.next_deadline(), None);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn relayed_stages_are_assigned_one_after_the_other() {
        let mut line = roster(3, true);
        line.handle_linked(StageIndex(0), node(0), 1, false, ms(1));
        let to_1 = Downstream { address: "host:1".into(), node: None, relay: true };
        assert_eq!(assigned(&mut line), [(0, 10, FRONT, Some(to_1))]);
        line.handle_linked(StageIndex(1), node(1), 1, true, ms(2));
        assert_eq!(assigned(&mut line)[0].0, 1);
        assert_eq!(line.route(StageIndex(2)), StageIndex(0));
        line.handle_linked(StageIndex(2), node(2), 1, true, ms(3));
        assert_eq!(assigned(&mut line), [(2, 10, node(1), None)]);
        for at in 0..3 {
            line.handle_state(StageIndex(at), Generation(10), ready(), ms(4));
        }
        line.handle_work_link(Generation(10), ms(5));
        assert!(line.is_up());
        line.handle_fault(StageIndex(1), Generation(10), "link lost", ms(6));
        assert!(!line.is_up());
        assert!(line.seats()[1..].iter().all(|seat| matches!(seat.state, SeatState::Away { .. })));
        assert_eq!(line.seats()[0].state, SeatState::Linked, "the others are linked to anew from here");
    }

    #[test]
    fn a_neighbour_that_relays_is_told_when_the_stage_has_moved() {
        let mut line = roster(2, true);
        line.handle_address(StageIndex(1), None, ms(0));
        line.handle_linked(StageIndex(0), node(0), 1, false, ms(1));
        assert_eq!(assigned(&mut line), [], "there is no address to dial yet");
        for (generation, port) in [(10, "host:5"), (11, "host:6")] {
            line.handle_address(StageIndex(1), Some(port.into()), ms(2));
            let to_1 = Downstream { address: port.into(), node: None, relay: true };
            assert_eq!(assigned(&mut line), [(0, generation, FRONT, Some(to_1))]);
        }
        line.handle_address(StageIndex(1), Some("host:6".into()), ms(3));
        assert_eq!(assigned(&mut line), [], "nothing has changed");
    }

    #[test]
    fn a_stage_that_cannot_be_dialled_is_relayed_by_a_linked_neighbour() {
        let mut line = roster(2, false);
        line.handle_unreachable(StageIndex(1), "refused".into(), ms(1));
        assert!(!line.seats()[1].relayed, "nobody could relay yet");
        line.handle_linked(StageIndex(0), node(0), 1, false, ms(2));
        line.handle_unreachable(StageIndex(1), "refused".into(), ms(3));
        let to_1 = Downstream { address: "host:1".into(), node: None, relay: true };
        assert_eq!(assigned(&mut line), [(0, 10, FRONT, Some(to_1))]);
        line.handle_linked(StageIndex(1), node(1), 1, false, ms(4));
        assert!(!line.seats()[1].relayed, "a direct link wins");
        assert_eq!(line.generation(), Generation(11));
    }
}
