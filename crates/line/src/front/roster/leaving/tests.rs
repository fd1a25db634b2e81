//! Machines that were told to end, told by the roster's actions.

use protocol::StageState;

use super::super::tests::{actions, bring_up, ms, node, ready, roster_with};
use super::*;

const ONE: PeerIndex = PeerIndex(1);
const SPARE: PeerIndex = PeerIndex(2);

/// Who was let go, and who was told to hold layers or was given a seat.
fn told(line: &mut Roster) -> (Vec<u16>, Vec<u16>) {
    let (mut released, mut asked) = (Vec::new(), Vec::new());
    for action in actions(line) {
        match action {
            Action::Send(ToStage { to, command: Command::Release, .. }) => released.push(to.0),
            Action::Send(ToStage { to, command: Command::Assign(_) | Command::Prepare(_), .. }) => {
                asked.push(to.0)
            }
            _ => {}
        }
    }
    (released, asked)
}

/// A line of two that is up, with a spare that was told to hold the layers of `seat`.
fn with_spare(seat: u32) -> Roster {
    let mut line = roster_with(2, false, &[None]);
    bring_up(&mut line, 2);
    line.handle_linked(SPARE, node(2), 1, false, ms(4));
    stands_by(&mut line, seat, ms(5));
    actions(&mut line);
    line
}

fn stands_by(line: &mut Roster, seat: u32, now: Duration) {
    let layers = protocol::LayerRange { start: 2 * seat, end: 2 * seat + 2 };
    line.handle_spare_state(SPARE, StageState::Standby { layers, weight_bytes: 1, kv_bytes: 1 }, now);
}

#[test]
fn a_stage_without_a_spare_is_let_go_once_the_line_has_come_to_rest() {
    let mut line = roster_with(2, false, &[]);
    bring_up(&mut line, 2);
    line.handle_leaving(ONE, ms(10));
    assert!(line.is_up() && line.is_draining(), "what runs is finished");
    assert_eq!(told(&mut line), (vec![], vec![]));
    assert!(line.handle_drained());
    assert_eq!(told(&mut line), (vec![1], vec![]));
    assert!(!line.handle_drained() && line.is_draining(), "nothing new begins before it is gone");
    line.handle_lost(ONE, "released".into(), ms(20));
    assert!(!line.is_draining());
    line.handle_linked(ONE, node(1), 2, false, ms(30));
    assert_eq!(told(&mut line), (vec![], vec![0, 1]));
}

#[test]
fn a_warm_spare_takes_the_place_at_once_and_who_had_it_is_let_go() {
    let mut line = with_spare(0);
    line.handle_leaving(PeerIndex(0), ms(10));
    assert!(!line.is_draining());
    assert_eq!(told(&mut line), (vec![0], vec![2, 1]));
    assert_eq!(line.seat_of(SPARE), Some(StageIndex(0)));
}

#[test]
fn a_spare_of_another_stage_loads_first_and_the_line_goes_on_meanwhile() {
    let mut line = with_spare(0);
    line.handle_leaving(ONE, ms(10));
    assert!(line.is_up() && !line.is_draining());
    assert_eq!(told(&mut line), (vec![], vec![2]), "it is asked for the layers that are about to go");
    stands_by(&mut line, 1, ms(500));
    let (released, _) = told(&mut line);
    assert_eq!((released, line.seat_of(SPARE)), (vec![1], Some(StageIndex(1))));
    let generation = line.generation();
    for seat in 0..2 {
        line.handle_state(StageIndex(seat), generation, ready(), ms(600));
    }
    line.handle_work_link(generation, ms(600));
    assert!(line.is_up());
}

#[test]
fn a_spare_that_cannot_load_is_not_waited_for() {
    let mut line = with_spare(0);
    line.handle_leaving(ONE, ms(10));
    line.handle_spare_state(SPARE, StageState::Failed { reason: "no memory".into() }, ms(20));
    assert!(line.is_draining());
}

#[test]
fn a_spare_that_wants_to_go_is_let_go_at_once_and_not_counted_on() {
    let mut line = with_spare(0);
    line.handle_leaving(SPARE, ms(10));
    assert_eq!(told(&mut line), (vec![2], vec![]));
    line.handle_lost(PeerIndex(0), "killed".into(), ms(11));
    assert_eq!(told(&mut line).1, [1], "its seat stays empty");
    line.handle_lost(SPARE, "released".into(), ms(12));
    line.handle_leaving(SPARE, ms(13));
    assert_eq!(told(&mut line), (vec![], vec![]), "who is away cannot leave");
}
