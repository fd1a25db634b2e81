//! The roster by its actions.

use protocol::{Command, Downstream, KvType, LayerRange, ModelId, RowDtype};

use super::*;

const FRONT: NodeId = NodeId([255; 32]);

pub(super) fn node(at: u16) -> NodeId {
    NodeId([at as u8 + 1; 32])
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn ready() -> StageState {
    StageState::Ready { keeps: false, row_width: 8, weight_bytes: 1, kv_bytes: 1 }
}

/// How long a machine of these tests is counted on.
pub(super) const LEASE: Duration = Duration::from_secs(120);

pub(super) fn roster(n: u16, relay: bool) -> Roster {
    roster_with(n, relay, &[])
}

/// A line with spares, the machines after those that compute.
pub(super) fn roster_with(n: u16, relay: bool, spares: &[Option<u16>]) -> Roster {
    roster_of(n, relay, spares, None)
}

/// The layers of a line of `n` machines as so many share them.
pub(super) fn shared(n: u16, n_stages: u16) -> Vec<LayerRange> {
    let cut = |at: u16| u32::from(2 * n * at / n_stages);
    (0..n_stages).map(|at| LayerRange { start: cut(at), end: cut(at + 1) }).collect()
}

/// As [`roster_with`], of machines that share the layers when others are away for so long.
pub(super) fn roster_of(
    n: u16,
    relay: bool,
    spares: &[Option<u16>],
    replan_after: Option<Duration>,
) -> Roster {
    let plan = LinePlan {
        model: ModelId([7; 32]),
        n_layers: u32::from(n) * 2,
        ranges: shared(n, n),
        narrower: (1..n).map(|n_stages| shared(n, n_stages)).collect(),
        context: 64,
        n_slots: 2,
        max_rows: 16,
        row_dtype: RowDtype::F32,
        kv: KvType::F16,
        exact: false,
        swa_full: true,
        undo_rows: 0,
        drafts: false,
        prefix_bytes: 0,
    };
    let address = |i: u16| Some(format!("host:{i}"));
    let spare = |(i, seat): (usize, &Option<u16>)| (address(n + i as u16), seat.map(StageIndex));
    let muster = Muster {
        stages: (0..n).map(address).collect(),
        spares: spares.iter().enumerate().map(spare).collect(),
        relay: RelayPolicy { always: relay, n_own: 0 },
        lease: LEASE,
        ready_within: READY_WITHIN,
        replan_after,
    };
    Roster::new(plan, FRONT, Generation(10), muster)
}

pub(super) fn actions(roster: &mut Roster) -> Vec<Action> {
    std::iter::from_fn(|| roster.poll_action()).collect()
}

/// The stages assigned by the actions so far, with generation, upstream and downstream.
pub(super) fn assigned(roster: &mut Roster) -> Vec<(u16, u64, NodeId, Option<Downstream>)> {
    actions(roster)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send(ToStage { to, generation, command: Command::Assign(assign) }) => {
                assert_eq!(assign.index.0, to.0);
                Some((to.0, generation.0, assign.upstream, assign.downstream))
            }
            _ => None,
        })
        .collect()
}

pub(super) fn link_all(roster: &mut Roster, n: u16) {
    for at in 0..n {
        roster.handle_linked(PeerIndex(at), node(at), 1, false, ms(1));
    }
}

pub(super) fn bring_up(roster: &mut Roster, n: u16) {
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
    line.handle_linked(PeerIndex(1), node(1), 1, false, ms(1));
    assert_eq!(assigned(&mut line), []);
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(1));
    let to_1 = Downstream { address: "host:1".into(), node: Some(node(1)), relay: None };
    assert_eq!(assigned(&mut line), [(0, 10, FRONT, Some(to_1))]);
    line.handle_linked(PeerIndex(2), node(2), 1, false, ms(1));
    let to_2 = Downstream { address: "host:2".into(), node: Some(node(2)), relay: None };
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
    assert_eq!(actions(&mut line), [Action::DialWork(Generation(10), PeerIndex(0))]);
    line.handle_work_link(Generation(9), ms(3));
    assert!(!line.is_up());
    line.handle_work_link(Generation(10), ms(3));
    assert_eq!(actions(&mut line), [Action::Up { generation: Generation(10), lost_by: None }]);
}

/// What stages are asked to have kept, one after the other.
fn asked_for(line: &mut Roster) -> Vec<Option<Generation>> {
    let keep = |action| match action {
        Action::Send(ToStage { command: Command::Assign(assign), .. }) => Some(assign.keep),
        _ => None,
    };
    actions(line).into_iter().filter_map(keep).collect()
}

/// The line is formed; these have kept what they held. How many stages have lost something, as those behind them see it.
fn formed(line: &mut Roster, keeps: [bool; 3], now: Duration) -> Option<u16> {
    let generation = line.generation();
    for (at, keeps) in (0..).zip(keeps) {
        let state = StageState::Ready { keeps, row_width: 8, weight_bytes: 1, kv_bytes: 1 };
        line.handle_state(StageIndex(at), generation, state, now);
    }
    line.handle_work_link(generation, now);
    let up = actions(line).into_iter().find_map(|action| match action {
        Action::Up { lost_by, .. } => Some(lost_by),
        _ => None,
    });
    up.expect("the line is up")
}

#[test]
fn all_stages_behind_the_last_that_lost_something_hold_what_the_line_held() {
    let mut line = roster(3, false);
    link_all(&mut line, 3);
    assert_eq!(asked_for(&mut line), [None; 3], "nothing was ever up");
    assert_eq!(formed(&mut line, [false; 3], ms(2)), None);
    let cases = [
        ([true, true, true], Some(0)),
        ([false, true, true], Some(1)),
        ([true, false, true], Some(2)),
        ([true, true, false], Some(3)),
        ([false, false, false], None),
    ];
    for (turn, (keeps, lost_by)) in (2..).zip(cases) {
        let last = line.generation();
        line.handle_lost(PeerIndex(1), "cut".into(), ms(50));
        line.handle_linked(PeerIndex(1), node(1), turn, false, ms(90));
        assert_eq!(asked_for(&mut line), [Some(last); 3]);
        // One that never comes up changes nothing of what was held before it.
        line.handle_lost(PeerIndex(2), "cut".into(), ms(91));
        line.handle_linked(PeerIndex(2), node(2), turn, false, ms(92));
        assert_eq!(asked_for(&mut line), [Some(last); 3]);
        assert_eq!(formed(&mut line, keeps, ms(95)), lost_by, "{keeps:?}");
    }
}

#[test]
fn what_stages_hold_of_a_line_that_was_given_up_is_not_relied_on() {
    let given_up: [fn(&mut Roster); 2] = [
        |line| line.handle_silence(Duration::from_secs(45), ms(50)),
        |line| line.handle_disorder(StageIndex(1), "a frame came twice", ms(50)),
    ];
    for give_up in given_up {
        let mut line = roster(3, false);
        bring_up(&mut line, 3);
        give_up(&mut line);
        assert!(!line.is_up());
        let until = line.next_deadline().expect("it is formed again");
        line.handle_timeout(until);
        assert_eq!(asked_for(&mut line), [None; 3]);
    }
}

#[test]
fn a_lost_stage_ends_the_generation_and_its_return_forms_the_next() {
    let mut line = roster(2, false);
    bring_up(&mut line, 2);
    line.handle_lost(PeerIndex(1), "killed".into(), ms(50));
    assert_eq!(actions(&mut line), [Action::Lost { reason: "stage 1: killed".into() }]);
    assert!(!line.is_up());
    line.handle_linked(PeerIndex(1), node(1), 2, false, ms(90));
    let again = assigned(&mut line);
    assert_eq!(again.iter().map(|a| (a.0, a.1)).collect::<Vec<_>>(), [(0, 11), (1, 11)]);
    line.handle_state(StageIndex(0), Generation(10), ready(), ms(95));
    assert!(matches!(line.peers()[0].state, PeerState::Assigned(StageState::Loading { .. })), "old news");
}

#[test]
fn failures_are_retried_with_growing_pauses() {
    let mut line = roster(1, false);
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(0));
    let mut now = ms(0);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        actions(&mut line);
        let generation = line.generation();
        line.handle_state(StageIndex(0), generation, StageState::Failed { reason: "no model".into() }, now);
        assert_eq!(actions(&mut line), [Action::Lost { reason: "stage 0: no model".into() }]);
        assert_eq!(line.peers()[0].failed.as_deref(), Some("no model"));
        let until = line.next_deadline().unwrap();
        pauses.push((until - now).as_millis());
        line.handle_timeout(until - ms(1));
        assert_eq!(actions(&mut line), []);
        now = until;
        line.handle_timeout(now);
        assert_eq!((line.next_deadline(), &line.peers()[0].failed), (None, &None));
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
}

#[test]
fn relayed_stages_are_assigned_one_after_the_other() {
    let mut line = roster(3, true);
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(1));
    let to_1 = Downstream { address: "host:1".into(), node: None, relay: Some(PeerIndex(1)) };
    assert_eq!(assigned(&mut line), [(0, 10, FRONT, Some(to_1))]);
    line.handle_linked(PeerIndex(1), node(1), 1, true, ms(2));
    assert_eq!(assigned(&mut line)[0].0, 1);
    assert_eq!(line.route(PeerIndex(2)), PeerIndex(0));
    line.handle_linked(PeerIndex(2), node(2), 1, true, ms(3));
    assert_eq!(assigned(&mut line), [(2, 10, node(1), None)]);
    for at in 0..3 {
        line.handle_state(StageIndex(at), Generation(10), ready(), ms(4));
    }
    line.handle_work_link(Generation(10), ms(5));
    assert!(line.is_up());
    line.handle_fault(StageIndex(1), Generation(10), "link lost", ms(6));
    assert!(!line.is_up());
    assert!(line.peers()[1..].iter().all(|peer| matches!(peer.state, PeerState::Away { .. })));
    assert_eq!(line.peers()[0].state, PeerState::Linked, "the others are linked to anew from here");
}

#[test]
fn a_neighbour_that_relays_is_told_when_the_stage_has_moved() {
    let mut line = roster(2, true);
    line.handle_address(PeerIndex(1), None, ms(0));
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(1));
    assert_eq!(assigned(&mut line), [], "there is no address to dial yet");
    for (generation, port) in [(10, "host:5"), (11, "host:6")] {
        line.handle_address(PeerIndex(1), Some(port.into()), ms(2));
        let to_1 = Downstream { address: port.into(), node: None, relay: Some(PeerIndex(1)) };
        assert_eq!(assigned(&mut line), [(0, generation, FRONT, Some(to_1))]);
    }
    line.handle_address(PeerIndex(1), Some("host:6".into()), ms(3));
    assert_eq!(assigned(&mut line), [], "nothing has changed");
}

#[test]
fn a_stage_that_cannot_be_dialled_for_a_while_is_relayed_by_a_linked_neighbour() {
    let mut line = roster(2, false);
    line.handle_unreachable(PeerIndex(1), "refused".into(), ms(9000));
    assert!(!line.peers()[1].relayed, "nobody could relay yet");
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(9500));
    line.handle_unreachable(PeerIndex(1), "refused".into(), ms(9501));
    let to_1 = Downstream { address: "host:1".into(), node: None, relay: Some(PeerIndex(1)) };
    assert_eq!(assigned(&mut line), [(0, 10, FRONT, Some(to_1))]);
    line.handle_linked(PeerIndex(1), node(1), 1, false, ms(9502));
    assert!(!line.peers()[1].relayed, "a direct link wins");
    assert_eq!(line.generation(), Generation(11));
}

#[test]
fn a_stage_that_restarts_or_refuses_is_not_relayed() {
    let mut line = roster(2, false);
    bring_up(&mut line, 2);
    line.handle_lost(PeerIndex(1), "killed".into(), ms(10_000));
    line.handle_unreachable(PeerIndex(1), "refused".into(), ms(10_500));
    assert!(!line.peers()[1].relayed, "it may be back in a moment");
    line.handle_refused(PeerIndex(1), "busy".into());
    assert!(!line.peers()[1].relayed, "it would refuse the neighbour, too");
    assert_eq!(line.peers()[1].state, PeerState::Away { reason: "busy".into() });
}

#[test]
fn a_stage_in_the_fronts_own_process_reaches_no_more_than_the_front() {
    let mut line = roster(3, false);
    line.relay.n_own = 1;
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(1));
    line.handle_unreachable(PeerIndex(1), "refused".into(), ms(9000));
    assert!(!line.peers()[1].relayed);
}

#[test]
fn a_stage_that_comes_back_ends_the_pause() {
    let mut line = roster(2, false);
    bring_up(&mut line, 2);
    line.handle_fault(StageIndex(0), Generation(10), "link to the next stage: gone", ms(50));
    line.handle_lost(PeerIndex(1), "killed".into(), ms(51));
    actions(&mut line);
    assert!(line.next_deadline().is_some(), "the fault alone asks for a pause");
    line.handle_linked(PeerIndex(1), node(1), 2, false, ms(60));
    assert_eq!(assigned(&mut line).len(), 2);
}

#[test]
fn a_line_that_is_silent_for_too_long_is_formed_anew() {
    let mut line = roster(1, false);
    line.handle_silence(Duration::from_secs(9), ms(0));
    assert_eq!(actions(&mut line), [], "it is not up");
    bring_up(&mut line, 1);
    line.handle_silence(Duration::from_secs(9), ms(50));
    assert_eq!(actions(&mut line), [Action::Lost { reason: "work did not come back within 9 s".into() }]);
}

#[test]
fn a_stage_that_moved_before_it_was_assigned_is_found_again() {
    let mut line = roster(3, false);
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(1));
    line.handle_linked(PeerIndex(1), node(1), 1, false, ms(1));
    assert_eq!(assigned(&mut line)[0].3.as_ref().unwrap().address, "host:1", "stage 1 waits for stage 2");
    line.handle_address(PeerIndex(1), None, ms(2));
    line.handle_lost(PeerIndex(1), "killed".into(), ms(2));
    // The new process may be heard before its address is.
    line.handle_linked(PeerIndex(1), node(1), 2, false, ms(3));
    line.handle_address(PeerIndex(1), Some("host:9".into()), ms(3));
    let again = assigned(&mut line);
    assert_eq!(again.last().unwrap().3.as_ref().unwrap().address, "host:9");
    assert!(again.last().unwrap().1 > 10, "in a new generation");
    line.handle_address(PeerIndex(1), None, ms(4));
    line.handle_address(PeerIndex(1), Some("host:9".into()), ms(4));
    assert_eq!(actions(&mut line), [], "nobody was told anything else");
}

#[test]
fn another_node_in_a_stages_place_is_told_to_its_neighbours() {
    let mut line = roster(3, false);
    line.handle_linked(PeerIndex(0), node(0), 1, false, ms(1));
    line.handle_linked(PeerIndex(1), node(1), 1, false, ms(1));
    assert_eq!(assigned(&mut line).len(), 1);
    line.handle_lost(PeerIndex(1), "replaced".into(), ms(2));
    line.handle_linked(PeerIndex(1), node(7), 1, false, ms(3));
    let again = assigned(&mut line);
    assert_eq!(again.iter().map(|a| (a.0, a.1)).collect::<Vec<_>>(), [(0, 11)]);
    assert_eq!(again[0].3.as_ref().unwrap().node, Some(node(7)));
}
