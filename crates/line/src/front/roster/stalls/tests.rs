//! Stages that answer and get nowhere, told by who sits where afterwards.

use protocol::{LayerRange, PeerIndex};

use super::super::tests::{bring_up, ms, node, ready, roster_with};
use super::super::{Action, Cover};
use super::*;
use crate::front::LineReadiness;

const SPARE: PeerIndex = PeerIndex(2);
const ONE: PeerIndex = PeerIndex(1);

/// A line of two that was up and has gone silent, with or without a spare; what was owed was owed for long.
fn silent(spares: &[Option<u16>], seat: u32) -> Roster {
    let mut line = roster_with(2, false, spares);
    bring_up(&mut line, 2);
    for (at, _) in spares.iter().enumerate() {
        let spare = PeerIndex(2 + at as u16);
        line.handle_linked(spare, node(spare.0), 1, false, ms(4));
        let layers = LayerRange { start: 2 * seat, end: 2 * seat + 2 };
        line.handle_spare_state(spare, StageState::Standby { layers, weight_bytes: 1, kv_bytes: 1 }, ms(5));
    }
    line.handle_silence(Duration::from_secs(10), ms(20_000));
    let until = line.next_deadline().unwrap();
    line.handle_timeout(until);
    while line.poll_action().is_some() {}
    line
}

fn stalls_at(line: &mut Roster) -> Duration {
    let at = line.next_deadline().expect("somebody is waited for");
    line.handle_timeout(at - ms(1));
    assert!(line.peers().iter().all(|peer| !peer.stalled), "too early");
    line.handle_timeout(at);
    at
}

fn says(line: &mut Roster, seat: u16, state: StageState, now: Duration) {
    line.handle_state(StageIndex(seat), line.generation(), state, now);
}

#[test]
fn a_stage_whose_last_call_does_not_end_loses_its_seat_to_a_spare() {
    let mut line = silent(&[None], 1);
    says(&mut line, 0, StageState::Linking, ms(20_200));
    let at = stalls_at(&mut line);
    assert!(at > ms(30_000) && at < ms(30_500), "{at:?}");
    assert_eq!((line.seat_of(SPARE), line.seat_of(ONE)), (Some(StageIndex(1)), None));
    for seat in [1, 0] {
        says(&mut line, seat, ready(), at);
    }
    line.handle_work_link(line.generation(), at);
    assert!(line.is_up());
    // Should it come to its end after all, it stands by like anybody else.
    assert_eq!(line.cover(StageIndex(1)), Cover::Nobody);
    line.handle_timeout(at + ms(20_000));
    let layers = LayerRange { start: 2, end: 4 };
    let standby = StageState::Standby { layers, weight_bytes: 1, kv_bytes: 1 };
    line.handle_spare_state(ONE, standby, at + ms(20_001));
    assert_eq!(line.cover(StageIndex(1)), Cover::Warm);
}

#[test]
fn a_stage_to_which_no_rows_get_through_loses_its_seat_to_a_spare() {
    let mut line = silent(&[None], 1);
    says(&mut line, 1, ready(), ms(20_200));
    says(&mut line, 0, StageState::Linking, ms(20_300));
    stalls_at(&mut line);
    assert_eq!(line.seated(StageIndex(1)), SPARE);
    assert!(line.peer(ONE).failed.as_deref().unwrap().contains("no rows get through"));
}

#[test]
fn a_stage_to_which_rows_get_through_after_all_is_not_stalled() {
    let mut line = silent(&[], 1);
    says(&mut line, 1, ready(), ms(20_200));
    says(&mut line, 0, StageState::Linking, ms(20_300));
    let at = stalls_at(&mut line);
    assert!(line.peer(ONE).stalled);
    says(&mut line, 0, ready(), at + ms(1000));
    assert_eq!((line.peer(ONE).stalled, &line.peer(ONE).failed), (false, &None));
    line.handle_work_link(line.generation(), at + ms(1001));
    assert!(line.is_up());
}

#[test]
fn a_stage_that_loads_once_more_in_the_same_process_is_given_its_time_too() {
    let mut line = silent(&[], 1);
    says(&mut line, 1, StageState::Loading { permille: 10, what: "reading".into() }, ms(20_200));
    line.handle_timeout(ms(60_000));
    assert_eq!(line.stall(), None);
    assert!(!line.peer(ONE).stalled);
}

#[test]
fn a_spare_without_the_layers_takes_a_stalled_seat_too() {
    let mut line = silent(&[None], 0);
    stalls_at(&mut line);
    assert_eq!(line.seated(StageIndex(1)), SPARE);
}

#[test]
fn a_stalled_stage_without_a_spare_looks_lost_to_whoever_could_start_it_again() {
    let mut line = silent(&[], 1);
    let at = stalls_at(&mut line);
    assert!(line.peer(ONE).stalled && line.seated(StageIndex(1)) == ONE);
    let told = LineReadiness::of_stages(line.stages(), Some("work did not come back"), true);
    let LineReadiness::NotReady { reason, .. } = told else { panic!("{told:?}") };
    assert!(reason.starts_with("stage 1: it answers, but its last call does not end"), "{reason}");
    assert!(line.next_deadline().is_none(), "nothing else can be done: {line:?}");
    line.handle_lost(ONE, "killed".into(), at + ms(5000));
    line.handle_linked(ONE, node(1), 2, false, at + ms(5100));
    assert!(!line.peer(ONE).stalled);
}

#[test]
fn a_stage_that_loads_its_layers_is_given_all_the_time_that_it_takes() {
    let mut line = roster_with(2, false, &[]);
    for at in [0, 1] {
        line.handle_linked(PeerIndex(at), node(at), 1, false, ms(1));
    }
    assert_eq!(line.next_deadline(), None);
    // One that was lost may have to load again, too: it says so while it does.
    bring_up(&mut line, 2);
    line.handle_lost(ONE, "killed".into(), ms(50));
    line.handle_linked(ONE, node(1), 2, false, ms(60));
    assert_eq!(line.stall(), None);
    assert!(!std::iter::from_fn(|| line.poll_action()).any(|action| matches!(action, Action::Up { .. })));
}
