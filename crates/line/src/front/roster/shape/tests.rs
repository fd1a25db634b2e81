//! Who shares which layers, told by the roster's actions.

use protocol::{Command, StageState, ToStage};

use super::super::tests::{actions, bring_up, ms, node, ready, roster_of, shared};
use super::*;

const AFTER: Duration = Duration::from_secs(10);
const LAST: PeerIndex = PeerIndex(2);

/// A line of three that is up.
fn line(spares: &[Option<u16>]) -> Roster {
    let mut line = roster_of(3, false, spares, Some(AFTER));
    bring_up(&mut line, 3);
    line
}

/// Who was given which layers, and whether the layers were said to be shared out anew.
fn told(line: &mut Roster) -> (Vec<(u16, LayerRange)>, bool) {
    let actions = actions(line);
    let is_reshaped = actions.contains(&Action::Reshaped);
    let assigned = actions.into_iter().filter_map(|action| match action {
        Action::Send(ToStage { to, command: Command::Assign(assign), .. }) => {
            Some((to.0, assign.holding.layers))
        }
        _ => None,
    });
    (assigned.collect(), is_reshaped)
}

/// The ranges of so many stages with those that have them.
fn among(peers: &[u16]) -> Vec<(u16, LayerRange)> {
    peers.iter().copied().zip(shared(3, peers.len() as u16)).collect()
}

fn comes_up(line: &mut Roster, now: Duration) {
    let generation = line.generation();
    for at in 0..line.stages().count() as u16 {
        line.handle_state(StageIndex(at), generation, ready(), now);
    }
    line.handle_work_link(generation, now);
    assert!(line.is_up());
    actions(line);
}

/// A line whose last machine was lost at 1 s, and which goes on without it.
fn narrow() -> Roster {
    let mut line = line(&[]);
    line.handle_lost(LAST, "killed".into(), ms(1000));
    assert_eq!(line.next_deadline(), Some(ms(1000) + AFTER));
    actions(&mut line);
    line.handle_timeout(ms(1000) + AFTER);
    assert_eq!(told(&mut line), (among(&[0, 1]), true));
    line
}

#[test]
fn after_a_while_the_rest_shares_the_layers_of_who_is_lost() {
    let mut line = narrow();
    assert!(!line.is_as_given());
    assert_eq!(
        (line.seat_of(LAST), line.next_deadline()),
        (None, Some(ms(1000) + super::super::tests::LEASE))
    );
    comes_up(&mut line, ms(12_000));
}

#[test]
fn who_comes_back_in_time_keeps_its_seat() {
    let mut line = line(&[]);
    line.handle_lost(LAST, "killed".into(), ms(1000));
    line.handle_linked(LAST, node(2), 2, false, ms(999) + AFTER);
    assert_eq!(told(&mut line), (among(&[0, 1, 2]), false));
    line.handle_timeout(ms(1000) + AFTER);
    assert!(line.is_as_given());
}

#[test]
fn nothing_is_shared_anew_before_the_line_was_ever_up_or_unless_that_is_wanted() {
    let mut never_up = roster_of(3, false, &[], Some(AFTER));
    for at in 0..2 {
        never_up.handle_linked(PeerIndex(at), node(at), 1, false, ms(1));
    }
    let mut unwanted = roster_of(3, false, &[], None);
    bring_up(&mut unwanted, 3);
    unwanted.handle_lost(LAST, "killed".into(), ms(1000));
    for mut line in [never_up, unwanted] {
        line.handle_timeout(ms(1000) + 10 * AFTER);
        assert!(line.is_as_given() && line.seat_of(LAST).is_some());
    }
}

#[test]
fn a_spare_goes_before_and_one_named_for_a_seat_has_none_in_another_shape() {
    let mut covered = line(&[None]);
    covered.handle_linked(PeerIndex(3), node(3), 1, false, ms(4));
    covered.handle_lost(LAST, "killed".into(), ms(1000));
    covered.handle_timeout(ms(1000) + AFTER);
    assert_eq!(covered.seat_of(PeerIndex(3)), Some(StageIndex(2)));
    assert!(covered.is_as_given());
    let mut line = line(&[Some(0)]);
    line.handle_linked(PeerIndex(3), node(3), 1, false, ms(4));
    let layers = shared(3, 3)[0];
    line.handle_spare_state(
        PeerIndex(3),
        StageState::Standby { layers, weight_bytes: 1, kv_bytes: 1 },
        ms(5),
    );
    line.handle_lost(LAST, "killed".into(), ms(1000));
    actions(&mut line);
    line.handle_timeout(ms(1000) + AFTER);
    let actions = actions(&mut line);
    assert!(!line.is_as_given());
    let is_prepared =
        |action: &Action| matches!(action, Action::Send(ToStage { command: Command::Prepare(_), .. }));
    assert!(!actions.iter().any(is_prepared), "{actions:?}");
    assert_eq!(line.cover(StageIndex(0)), super::super::Cover::Nobody);
}

#[test]
fn two_that_are_lost_are_waited_for_together() {
    let mut line = line(&[]);
    line.handle_lost(LAST, "killed".into(), ms(1000));
    line.handle_lost(PeerIndex(0), "killed".into(), ms(5000));
    line.handle_timeout(ms(1000) + AFTER);
    assert!(line.is_as_given(), "the second may come back yet");
    actions(&mut line);
    line.handle_timeout(ms(5000) + AFTER);
    assert_eq!(told(&mut line), (among(&[1]), true));
}

#[test]
fn a_line_takes_its_given_shape_again_when_all_are_back_and_nobody_has_used_it_for_as_long() {
    let mut line = narrow();
    comes_up(&mut line, ms(12_000));
    line.handle_use(false, ms(13_000));
    line.handle_linked(LAST, node(2), 2, false, ms(14_000));
    line.handle_timeout(ms(60_000));
    assert!(line.is_up() && !line.is_as_given(), "it is used");
    line.handle_use(true, ms(60_000));
    line.handle_use(true, ms(61_000));
    assert_eq!(line.next_shape(), Some(ms(60_000) + AFTER));
    actions(&mut line);
    line.handle_timeout(ms(60_000) + AFTER);
    assert_eq!(told(&mut line), (among(&[0, 1, 2]), true));
    assert!(line.is_as_given());
}

#[test]
fn a_spare_that_came_later_makes_a_line_whole_as_well() {
    let mut line = line(&[None]);
    line.handle_lost(LAST, "killed".into(), ms(1000));
    line.handle_timeout(ms(1000) + AFTER);
    comes_up(&mut line, ms(12_000));
    line.handle_linked(PeerIndex(3), node(3), 1, false, ms(14_000));
    line.handle_timeout(ms(12_000) + AFTER);
    line.handle_timeout(ms(12_001) + AFTER);
    assert!(line.is_as_given());
    assert_eq!(line.seat_of(PeerIndex(3)), Some(StageIndex(2)));
}

#[test]
fn shares_that_cannot_be_loaded_are_given_back_and_not_tried_again() {
    let mut line = narrow();
    let generation = line.generation();
    line.handle_state(
        StageIndex(1),
        generation,
        StageState::Failed { reason: "no memory".into() },
        ms(13_000),
    );
    assert!(line.is_as_given() && !line.is_up());
    line.handle_timeout(ms(13_000) + 10 * AFTER);
    assert!(line.is_as_given());
    line.handle_linked(LAST, node(2), 2, false, ms(200_000));
    assert_eq!(told(&mut line).0, among(&[0, 1, 2]), "it goes on as soon as who was lost is back");
}

/// A line of four whose third machine is reached through the second.
fn relayed() -> Roster {
    let mut line = roster_of(4, false, &[], Some(AFTER));
    for at in [0, 1, 3] {
        line.handle_linked(PeerIndex(at), node(at), 1, false, ms(1));
    }
    line.handle_unreachable(LAST, "no route".into(), ms(9000));
    line.handle_linked(LAST, node(2), 1, true, ms(9001));
    comes_up(&mut line, ms(9002));
    line
}

#[test]
fn whoever_is_reached_through_the_lost_one_is_looked_for_through_the_one_before() {
    let mut line = relayed();
    line.handle_lost(PeerIndex(1), "killed".into(), ms(10_000));
    let generation = line.generation();
    line.handle_state(StageIndex(3), generation, ready(), ms(10_001));
    actions(&mut line);
    line.handle_timeout(ms(10_000) + AFTER);
    let downstream = actions(&mut line).into_iter().find_map(|action| match action {
        Action::Send(ToStage { command: Command::Assign(assign), .. }) => assign.downstream,
        _ => None,
    });
    let downstream = downstream.unwrap();
    assert_eq!((downstream.address.as_str(), downstream.relay), ("host:2", Some(LAST)));
    line.handle_timeout(ms(10_000) + 3 * AFTER);
    assert_eq!(line.stages().count(), 3, "it has time to be found, and would not be seen without its seat");
}

#[test]
fn whoever_is_reached_through_others_keeps_its_seat_since_it_would_not_be_seen_without() {
    let mut line = relayed();
    line.handle_lost(LAST, "killed".into(), ms(10_000));
    line.handle_timeout(ms(10_000) + 10 * AFTER);
    assert!(line.is_as_given());
}

fn fails(line: &mut Roster, stage: u16, now: Duration) {
    let generation = line.generation();
    let failed = StageState::Failed { reason: "no memory".into() };
    line.handle_state(StageIndex(stage), generation, failed, now);
}

/// Waits as the driver would, until the given time.
fn waits(line: &mut Roster, until: Duration) {
    while let Some(at) = line.next_deadline().filter(|&at| at <= until) {
        line.handle_timeout(at);
    }
}

#[test]
fn a_line_that_never_gets_up_in_another_shape_goes_back_as_soon_as_all_are_there() {
    let mut line = narrow();
    // It is ended while it loads its larger share, and never says why.
    line.handle_lost(PeerIndex(1), "killed".into(), ms(12_000));
    line.handle_linked(PeerIndex(1), node(1), 2, false, ms(12_500));
    assert!(!line.is_as_given());
    line.handle_linked(LAST, node(2), 2, false, ms(13_000));
    assert!(line.is_as_given());
}

#[test]
fn a_line_that_works_is_not_given_up_for_a_machine_that_cannot_load() {
    let mut line = narrow();
    comes_up(&mut line, ms(12_000));
    line.handle_linked(LAST, node(2), 2, false, ms(14_000));
    line.handle_spare_state(LAST, StageState::Failed { reason: "no model".into() }, ms(15_000));
    waits(&mut line, ms(22_000));
    assert!(line.is_up() && !line.is_as_given());
}

#[test]
fn one_failure_does_not_end_a_shape_that_the_line_was_up_in() {
    let mut line = narrow();
    comes_up(&mut line, ms(12_000));
    line.handle_lost(PeerIndex(1), "killed".into(), ms(20_000));
    line.handle_linked(PeerIndex(1), node(1), 2, false, ms(20_100));
    let mut now = ms(20_200);
    for _ in 0..MOST_FORGIVEN {
        fails(&mut line, 1, now);
        assert!(!line.is_as_given());
        now += Duration::from_secs(5);
        waits(&mut line, now);
    }
    fails(&mut line, 1, now);
    assert!(line.is_as_given());
    line.handle_timeout(now + 10 * AFTER);
    assert!(line.is_as_given(), "it is not tried again");
    // Another process may be able to.
    line.handle_linked(PeerIndex(1), node(1), 3, false, now + 11 * AFTER);
    line.handle_timeout(now + 11 * AFTER);
    assert!(!line.is_as_given());
}

#[test]
fn a_machine_that_is_there_and_cannot_load_is_lost_as_well() {
    let mut line = line(&[]);
    line.handle_lost(LAST, "killed".into(), ms(1000));
    line.handle_linked(LAST, node(2), 2, false, ms(1500));
    let mut now = ms(1600);
    while now < ms(1600) + AFTER {
        assert!(line.is_as_given());
        fails(&mut line, 2, now);
        now += Duration::from_secs(5);
        waits(&mut line, now);
    }
    assert!(!line.is_as_given() && line.seat_of(LAST).is_none());
    waits(&mut line, now + AFTER);
    assert!(!line.is_as_given(), "it is not counted on until it has loaded something");
}

#[test]
fn a_spare_that_was_named_for_the_empty_seat_makes_the_line_whole_as_well() {
    let mut line = line(&[Some(2)]);
    line.handle_lost(LAST, "killed".into(), ms(1000));
    line.handle_timeout(ms(1000) + AFTER);
    comes_up(&mut line, ms(12_000));
    line.handle_linked(PeerIndex(3), node(3), 1, false, ms(14_000));
    waits(&mut line, ms(12_001) + AFTER);
    assert_eq!(line.seat_of(PeerIndex(3)), Some(StageIndex(2)));
}

#[test]
fn the_given_shape_is_waited_for_longer_each_time_that_it_was_lost() {
    let mut line = line(&[]);
    let mut now = ms(1000);
    for round in 0..3 {
        line.handle_lost(LAST, "killed".into(), now);
        waits(&mut line, now + AFTER);
        now += AFTER;
        comes_up(&mut line, now);
        line.handle_linked(LAST, node(2), round + 2, false, now);
        now += AFTER * (1 << round);
        assert_eq!(line.next_shape(), Some(now));
        waits(&mut line, now);
        assert!(line.is_as_given());
        comes_up(&mut line, now);
    }
}
