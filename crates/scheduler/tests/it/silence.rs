//! Nothing waits for ever: the front knows for each sequence since when the line owes it news.

use std::time::Duration;

use protocol::{Position, Progress, Report, SeqId, StageTiming};
use scheduler::Config;

use crate::front::{self, Front, request};

/// What a quick line is given.
const LEAST: Duration = Duration::from_secs(10);

fn ends(front: &mut Front) -> Option<Duration> {
    front.scheduler.silence().map(|silence| silence.ends())
}

fn config() -> Config {
    Config { progress_timeout: LEAST, ..front::config() }
}

/// Two sequences that decode, on a line whose speed is known; both were heard of at the end of the first second.
fn two() -> Front {
    let mut front = Front::new(config());
    for seq in [0, 1] {
        front.submit(request(1, None)).expect("a slot is free");
        front.pass(500);
        front.verdict(seq, 0, 0, 50, None).expect("what was sent");
    }
    front
}

#[test]
fn a_sequence_whose_verdicts_are_swallowed_is_found_although_another_one_talks() {
    let mut front = two();
    // A round takes a second.
    for window in 1..15 {
        front.pass(1000);
        front.verdict(1, window, window, 50, None).expect("what was sent");
        assert_eq!(front.scheduler.silence().map(|silence| silence.since), Some(Duration::from_millis(500)));
    }
    let bound = ends(&mut front).expect("it is owed");
    assert!(bound < Duration::from_secs(30), "{bound:?}");
    // Its caller leaves: what is owed is a `Closed` now, and nothing has become of that either.
    let swallowed = front.scheduler.sequences().next().expect("it runs").request;
    front.cancel(swallowed);
    assert_eq!(ends(&mut front), Some(bound));
    front.closed(0).expect("what was sent");
    assert!(ends(&mut front) >= Some(front.now + LEAST), "the other one was heard of just now");
}

#[test]
fn a_sequence_that_goes_on_slowly_has_lost_nothing() {
    let mut front = two();
    for window in 1..10 {
        front.pass(9_000);
        for seq in [0, 1] {
            assert!(ends(&mut front) > Some(front.now), "slow is not dead");
            front.verdict(seq, window, window, 50, None).expect("what was sent");
        }
    }
    for id in [0, 1] {
        front.cancel(scheduler::RequestId(id));
        front.closed(id).expect("what was sent");
    }
    assert_eq!(ends(&mut front), None, "nothing is owed");
}

#[test]
fn a_line_is_given_as_long_as_it_was_told_however_quick_it_is() {
    for least in [Duration::from_secs(1), scheduler::PROGRESS_TIMEOUT, Duration::from_secs(600)] {
        let mut front = Front::new(Config { progress_timeout: least, ..config() });
        front.submit(request(1, None)).expect("a slot is free");
        front.pass(1);
        front.verdict(0, 0, 0, 1, None).expect("what was sent");
        assert_eq!(ends(&mut front), Some(front.now + least));
    }
}

#[test]
fn what_a_sequence_is_given_grows_with_the_work_of_all_and_is_not_less_when_others_leave() {
    let mut front = Front::new(Config { n_slots: 3, ..config() });
    front.submit(request(1, None)).expect("a slot is free");
    assert_eq!(ends(&mut front), Some(Duration::from_secs(180)), "nobody knows how long it takes");
    front.verdict(0, 0, 0, 50, None).expect("what was sent");
    assert_eq!(ends(&mut front), Some(LEAST));
    // A prompt of four chunks of two seconds, two of them under way.
    let prompt = front.submit(request(17, None)).expect("a slot is free");
    let timings = vec![StageTiming { queue_us: 0, compute_us: 2_000_000, batch_rows: 4 }; 3];
    let progress = Progress { seq: SeqId(1), next: Position(4), timings };
    front.report(2, Report::Progress(progress)).expect("what was sent");
    let busy = ends(&mut front).expect("it is owed");
    assert!(busy > LEAST * 5, "{busy:?}");
    front.cancel(prompt);
    front.closed(1).expect("what was sent");
    assert_eq!(ends(&mut front), Some(busy), "its window may still be behind the chunks");
    front.verdict(0, 1, 1, 50, None).expect("what was sent");
    assert!(ends(&mut front) < Some(busy), "it is not");
}

#[test]
fn who_begins_with_what_another_one_computes_is_owed_nothing_before() {
    let shared = |n| scheduler::Request { namespace: Some(0), ..request(n, None) };
    let hour = Duration::from_secs(3600);
    let roomy = Config { prefix_tokens: 100, n_slots: 3, context: 40, chunk_time: hour, ..config() };
    let mut front = Front::new(roomy);
    front.submit(request(1, None)).expect("a slot is free");
    front.verdict(0, 0, 0, 50, None).expect("what was sent");
    for n in [30, 31] {
        front.submit(shared(n)).expect("a slot is free");
    }
    assert_eq!(front.scheduler.sequences().last().expect("three of them").cached, 29);
    let first = |front: &mut Front| {
        front.scheduler.silence();
        front.scheduler.silence().expect("something is owed").since
    };
    for next in [4, 8, 12, 16, 20, 24, 28, 29] {
        front.pass(8_000);
        front
            .verdict(0, next / 4 + u32::from(next == 29), next / 4 + u32::from(next == 29), 50, None)
            .expect("what was sent");
        front.progress(1, next).expect("what was sent");
        assert!(first(&mut front) + Duration::from_secs(8) >= front.now, "nobody is overdue");
    }
    let computed = front.now;
    for window in 9..12 {
        front.pass(4_000);
        front.verdict(0, window, window, 50, None).expect("what was sent");
        front.verdict(1, window - 9, 29 + window - 9, 50, None).expect("what was sent");
    }
    assert!(first(&mut front) <= computed, "from then on it must be heard of");
}
