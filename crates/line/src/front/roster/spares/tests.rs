//! Who sits and who stands by, told by the roster's actions.

use protocol::LayerRange;

use super::super::tests::{LEASE, actions, bring_up, ms, node, ready, roster_with};
use super::*;

const ONE: PeerIndex = PeerIndex(1);
const SPARE: PeerIndex = PeerIndex(2);

/// Who was told to hold the layers of which seat, by the actions so far.
fn prepared(line: &mut Roster) -> Vec<(u16, u32)> {
    actions(line)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send(ToStage { to, command: Command::Prepare(holding), .. }) => {
                Some((to.0, holding.layers.start / 2))
            }
            _ => None,
        })
        .collect()
}

/// Who was given which seat.
fn seated(line: &mut Roster) -> Vec<(u16, u16)> {
    actions(line)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send(ToStage { to, command: Command::Assign(assign), .. }) => {
                Some((to.0, assign.index.0))
            }
            _ => None,
        })
        .collect()
}

fn link(line: &mut Roster, peer: PeerIndex, pid: u32, now: Duration) {
    line.handle_linked(peer, node(peer.0), pid, false, now);
}

fn stands_by(line: &mut Roster, peer: PeerIndex, seat: u32, now: Duration) {
    let layers = LayerRange { start: 2 * seat, end: 2 * seat + 2 };
    line.handle_spare_state(peer, StageState::Standby { layers, weight_bytes: 1, kv_bytes: 1 }, now);
}

/// A line of two that is up, with a spare that holds the layers of stage 1.
fn with_warm_spare() -> Roster {
    let mut line = roster_with(2, false, &[Some(1)]);
    bring_up(&mut line, 2);
    link(&mut line, SPARE, 1, ms(4));
    assert_eq!(prepared(&mut line), [(2, 1)]);
    stands_by(&mut line, SPARE, 1, ms(5));
    assert_eq!((line.cover(StageIndex(0)), line.cover(StageIndex(1))), (Cover::Nobody, Cover::Warm));
    line
}

fn up_again(line: &mut Roster, now: Duration) {
    let generation = line.generation();
    for seat in 0..2 {
        line.handle_state(StageIndex(seat), generation, ready(), now);
    }
    line.handle_work_link(generation, now);
    assert!(line.is_up());
}

#[test]
fn a_warm_spare_takes_a_lost_seat_at_once_and_who_comes_back_stands_by() {
    let mut line = with_warm_spare();
    line.handle_lost(ONE, "killed".into(), ms(50));
    assert_eq!(seated(&mut line), [(0, 0), (2, 1)]);
    assert_eq!((line.seat_of(SPARE), line.seat_of(ONE)), (Some(StageIndex(1)), None));
    up_again(&mut line, ms(60));
    link(&mut line, ONE, 2, ms(900));
    assert!(line.is_up(), "nobody is disturbed");
    assert_eq!(prepared(&mut line), [(1, 0)], "what nobody else stands by for");
}

#[test]
fn a_cold_spare_waits_whether_the_stage_comes_back() {
    let mut line = roster_with(2, false, &[None]);
    bring_up(&mut line, 2);
    link(&mut line, SPARE, 1, ms(4));
    assert_eq!(prepared(&mut line), [(2, 0)]);
    line.handle_lost(ONE, "link broke".into(), ms(1000));
    assert_eq!(line.next_deadline(), Some(ms(1000) + COLD_AFTER));
    link(&mut line, ONE, 1, ms(1020));
    assert_eq!(seated(&mut line), [(0, 0), (1, 1)], "it still has its layers");
    line.handle_lost(ONE, "killed".into(), ms(2000));
    actions(&mut line);
    line.handle_timeout(ms(2000) + COLD_AFTER);
    assert_eq!(seated(&mut line), [(0, 0), (2, 1)]);
}

#[test]
fn who_comes_back_with_the_layers_goes_before_a_spare_that_still_loads_them() {
    let mut line = roster_with(2, false, &[None]);
    bring_up(&mut line, 2);
    link(&mut line, SPARE, 1, ms(4));
    stands_by(&mut line, SPARE, 0, ms(5));
    line.handle_lost(ONE, "no route".into(), ms(1000));
    line.handle_timeout(ms(1000) + COLD_AFTER);
    actions(&mut line);
    link(&mut line, ONE, 1, ms(9000));
    assert_eq!(prepared(&mut line), [(1, 1)], "what it holds");
    stands_by(&mut line, ONE, 1, ms(9001));
    assert_eq!(line.seat_of(ONE), Some(StageIndex(1)));
    assert_eq!(prepared(&mut line), [(2, 0)]);
}

#[test]
fn at_the_start_the_machines_that_were_named_have_time_to_come() {
    let mut line = roster_with(2, false, &[Some(1)]);
    link(&mut line, PeerIndex(0), 1, ms(1));
    link(&mut line, SPARE, 1, ms(1));
    stands_by(&mut line, SPARE, 1, ms(2));
    assert_eq!(line.seat_of(SPARE), None);
    line.handle_timeout(UNSEEN_AFTER);
    assert_eq!(line.seat_of(SPARE), Some(StageIndex(1)));
}

#[test]
fn a_stage_that_cannot_load_gives_way_to_a_spare_that_could() {
    let mut line = roster_with(2, false, &[Some(1)]);
    for peer in 0..3 {
        link(&mut line, PeerIndex(peer), 1, ms(1));
    }
    stands_by(&mut line, SPARE, 1, ms(2));
    let generation = line.generation();
    line.handle_state(StageIndex(1), generation, StageState::Failed { reason: "no model".into() }, ms(3));
    assert_eq!(line.seat_of(SPARE), Some(StageIndex(1)));
    actions(&mut line);
    line.handle_timeout(ms(3) + ASK_AGAIN);
    assert_eq!(prepared(&mut line), [(1, 0)], "it may have been repaired, and nobody else stands by");
}

#[test]
fn spares_hold_what_no_other_one_does() {
    let mut line = roster_with(3, false, &[None, None, Some(2)]);
    bring_up(&mut line, 3);
    for peer in [3, 4] {
        link(&mut line, PeerIndex(peer), 1, ms(4));
    }
    assert_eq!(prepared(&mut line), [(3, 0), (4, 1)], "stage 2 has a spare of its own");
    line.handle_lost(PeerIndex(3), "killed".into(), ms(5));
    line.handle_timeout(ms(5) + LEASE);
    link(&mut line, PeerIndex(3), 2, ms(5) + LEASE);
    assert_eq!(prepared(&mut line), [(3, 2)].map(|(peer, _)| (peer, 0)));
}

#[test]
fn who_is_away_for_longer_than_its_lease_is_gone_until_it_is_back() {
    let mut line = with_warm_spare();
    line.handle_lost(SPARE, "killed".into(), ms(100));
    assert!(line.is_up(), "a spare is no part of the line");
    assert_eq!(line.cover(StageIndex(1)), Cover::Nobody);
    assert_eq!(line.next_deadline(), Some(ms(100) + LEASE));
    line.handle_timeout(ms(100) + LEASE);
    let gone = line.peer(SPARE);
    assert_eq!((gone.gone, gone.pid, gone.holds), (true, None, None));
    assert_eq!(line.next_deadline(), None, "nothing more is waited for");
    for pid in 2..52 {
        link(&mut line, SPARE, pid, ms(200) + LEASE);
        line.handle_lost(SPARE, "killed".into(), ms(201) + LEASE);
    }
    assert_eq!(line.peers().len(), 3, "one machine each");
    link(&mut line, SPARE, 99, ms(300) + LEASE);
    assert!(!line.peer(SPARE).gone);
}

#[test]
fn a_spare_that_says_what_it_was_not_asked_for_is_not_believed() {
    let mut line = with_warm_spare();
    line.handle_lost(SPARE, "killed".into(), ms(100));
    link(&mut line, SPARE, 2, ms(101));
    stands_by(&mut line, SPARE, 0, ms(102));
    assert_eq!(line.cover(StageIndex(1)), Cover::Cold);
}
