//! Windows that were computed together are computed together again, and not all of them at once.

use std::time::Duration;

use protocol::{Company, Epoch, Frame, Hint, Position, SeqId, Token, Window, WindowId, Work};
use stage::{Output, Rewind};

use crate::faults::begin;
use crate::kept::lose_line;
use crate::line::Stage;
use crate::toy::Toy;

/// A first stage on which as many sequences have begun as it has slots.
fn first(n_slots: u16) -> Stage {
    let mut stage = Stage::new(Toy::new(0, 2, n_slots, 8, Rewind::Anywhere));
    for seq in 0..n_slots {
        stage.hear(begin(u64::from(seq)));
    }
    stage
}

fn window(seq: u64, number: u32, company: Company) -> Frame {
    let window = Window {
        seq: SeqId(seq),
        epoch: Epoch(0),
        window: WindowId(number),
        base: Position(number),
        tokens: vec![Token(1)],
        run_ahead: false,
        want_draft: None,
    };
    Frame { company, ..Frame::new(Work::Window(window)) }
}

/// How many sequences each call had.
fn calls(stage: &Stage) -> Vec<usize> {
    stage.engine.calls.iter().map(Vec::len).collect()
}

fn companies(said: &[Output]) -> Vec<Company> {
    let company = |output: &Output| match output {
        Output::Forward(frame) => frame.company,
        other => panic!("unexpected {other:?}"),
    };
    said.iter().map(company).collect()
}

#[test]
fn a_group_is_waited_for_and_computed_in_one_call() {
    let mut stage = first(4);
    assert_eq!(stage.hear(window(0, 0, Company::Leads(2))), []);
    assert_eq!(stage.hear(window(1, 0, Company::Follows)), []);
    assert_eq!(stage.hear(window(2, 0, Company::Follows)).len(), 3);
    assert_eq!(calls(&stage), [3]);
}

#[test]
fn what_one_call_computed_goes_on_as_a_group_once_its_first_windows_are_through() {
    let mut stage = first(3);
    let mut together = |number: u32| {
        for seq in 0..3 {
            stage.core.handle_frame(window(seq, number, Company::Alone), Duration::ZERO);
        }
        companies(&stage.settle())
    };
    assert_eq!(together(0), [Company::Alone; 3]);
    assert_eq!(together(1), [Company::Leads(2), Company::Follows, Company::Follows]);
}

#[test]
fn windows_that_nobody_wants_any_more_are_not_announced() {
    let mut stage = first(3);
    for seq in 0..3 {
        stage.hear(window(seq, 0, Company::Alone));
    }
    for seq in 0..3 {
        stage.core.handle_frame(window(seq, 1, Company::Alone), Duration::ZERO);
    }
    let call = stage.core.next_call(Duration::ZERO).expect("three windows are ready");
    stage.core.handle_hint(Hint::Drop { seq: SeqId(0) });
    let done = call.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, Duration::ZERO);
    assert_eq!(companies(&stage.settle()), [Company::Leads(1), Company::Follows]);
}

#[test]
fn a_group_whose_others_came_first_waits_for_nobody() {
    let mut stage = first(2);
    assert_eq!(stage.hear(window(1, 0, Company::Follows)).len(), 1);
    assert_eq!(stage.hear(window(0, 0, Company::Leads(1))).len(), 1);
    assert_eq!(stage.hear(window(1, 1, Company::Alone)).len(), 1);
}

#[test]
fn the_first_stage_takes_no_more_together_than_it_was_told() {
    let mut stage = first(4);
    stage.core.handle_hint(Hint::Together { sequences: 2 });
    for seq in 0..4 {
        stage.core.handle_frame(window(seq, 0, Company::Alone), Duration::ZERO);
    }
    assert_eq!(stage.settle().len(), 4);
    assert_eq!(calls(&stage), [2, 2]);
    lose_line(&mut stage);
    stage.engine.calls.clear();
    for seq in 4..8 {
        stage.hear(begin(seq));
    }
    for seq in 4..8 {
        stage.core.handle_frame(window(seq, 0, Company::Alone), Duration::ZERO);
    }
    stage.settle();
    assert_eq!(calls(&stage), [4], "of another line it has not been said");
}
