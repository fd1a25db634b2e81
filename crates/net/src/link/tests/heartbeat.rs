//! The pure heartbeat.

use std::time::Duration;

use crate::link::{Heartbeat, heartbeat::Pinger};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn pings_are_due_at_once_and_then_once_an_interval() {
    let mut pinger = Pinger::new(Heartbeat::default(), ms(0));
    assert_eq!(pinger.due(ms(0)), Some(1));
    assert_eq!(pinger.due(ms(249)), None);
    assert_eq!(pinger.next_at(), ms(250));
    assert_eq!(pinger.due(ms(260)), Some(2));
    assert_eq!(pinger.next_at(), ms(510));
}

#[test]
fn the_round_trip_is_smoothed() {
    let mut pinger = Pinger::new(Heartbeat::default(), ms(0));
    assert_eq!(pinger.rtt(), None);
    let first = pinger.due(ms(0)).unwrap();
    pinger.answered(first, ms(8));
    assert_eq!(pinger.rtt(), Some(ms(8)));
    let second = pinger.due(ms(250)).unwrap();
    pinger.answered(second, ms(250 + 16));
    assert_eq!(pinger.rtt(), Some(ms(9)));
}

#[test]
fn answers_to_pings_that_were_never_sent_change_nothing() {
    let mut pinger = Pinger::new(Heartbeat::default(), ms(0));
    let number = pinger.due(ms(0)).unwrap();
    pinger.answered(number + 1, ms(1));
    pinger.answered(number, ms(5));
    pinger.answered(number, ms(50));
    assert_eq!(pinger.rtt(), Some(ms(5)));
}

#[test]
fn answers_that_come_later_than_the_next_ping_still_count() {
    let mut pinger = Pinger::new(Heartbeat::default(), ms(0));
    let number = pinger.due(ms(0)).unwrap();
    for at in 1..10 {
        pinger.due(ms(250 * at)).unwrap();
    }
    pinger.answered(number, ms(2400));
    assert_eq!(pinger.rtt(), Some(ms(2400)));
}

#[test]
fn a_rhythm_outside_the_limits_is_moved_inside() {
    let fast = Heartbeat { interval: ms(0), dead_after: ms(0) }.clamped();
    assert_eq!(fast, Heartbeat { interval: ms(10), dead_after: ms(20) });
    let slow = Heartbeat { interval: Duration::MAX, dead_after: Duration::MAX }.clamped();
    assert_eq!(slow, slow.clamped());
}
