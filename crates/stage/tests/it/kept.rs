//! What a line leaves on its stages, and what the next one makes of it.

use std::time::Duration;

use protocol::{Chunk, Position, PrefixKey, Reuse, SeqId, Token, Work};
use stage::{Engine as _, Output, Rewind, StageCore, StoreWork};

use crate::line::{CONFIG, Stage};
use crate::prefixes::{
    A, B, C, X, begin, close, frame, go_on, is_lost, park, prompt, rows, run, run_and_park, stage,
};
use crate::toy::{Toy, reference};

/// The line is lost, and another one formed.
pub(crate) fn lose_line(stage: &mut Stage) {
    let config = *stage.core.config();
    let fresh = StageCore::new(stage.engine.shape().clone(), config);
    let mut kept = std::mem::replace(&mut stage.core, fresh).retire();
    kept.tidy(&mut stage.engine).expect("the engine can forget");
    stage.core = StageCore::resume(stage.engine.shape().clone(), config, kept);
}

/// A sequence whose prompt and first two tokens have been computed; all of them.
fn talking(stage: &mut Stage, seq: SeqId) -> Vec<Token> {
    let text = prompt(&[3, 1, 4, 1, 5]);
    stage.hear(begin(seq, &text, None));
    let said = go_on(stage, seq, &text, 0);
    [&text[..], &said[..2]].concat()
}

#[test]
fn a_sequence_goes_on_in_the_next_line_without_computing_anything_again() {
    let mut stage = stage(2);
    let text = talking(&mut stage, A);
    lose_line(&mut stage);
    rows(&mut stage);
    // Rows behind the certain ones are of no text.
    let start = text.len() - 2;
    stage.hear(begin(B, &text, Some((A, start, false))));
    let said = go_on(&mut stage, B, &text, start);
    assert_eq!(said, reference(&text, B.0, Position(text.len() as u32 + 4), true));
    assert_eq!(rows(&mut stage), 1 + 4);
    assert_eq!(stage.core.stats().reused_positions, start as u64);
}

#[test]
fn prefixes_outlive_the_line_in_their_slots_and_beside_them_within_the_budget() {
    let mut stage = stage(1);
    run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    run_and_park(&mut stage, B, &[2, 7, 1, 8, 2]);
    assert!(stage.core.prefix_bytes() > 0, "the first one had to make room");
    lose_line(&mut stage);
    run(&mut stage, C, &prompt(&[3, 1, 4, 1, 6]), Some((A, 4, true)));
    stage.hear(close(C));
    run(&mut stage, X, &prompt(&[2, 7, 1, 8, 3]), Some((B, 4, true)));
    stage.hear(close(X));
    let kept =
        std::mem::replace(&mut stage.core, StageCore::new(stage.engine.shape().clone(), CONFIG)).retire();
    let config = stage::Config { prefix_bytes: 0, ..CONFIG };
    stage.core = StageCore::resume(stage.engine.shape().clone(), config, kept);
    assert_eq!(stage.core.prefix_bytes(), 0, "its owner allows less now");
}

#[test]
fn what_the_front_has_said_of_a_sequence_is_heeded_even_if_it_was_not_its_turn() {
    let mut stage = stage(3);
    let text = prompt(&[3, 1, 4, 1, 5]);
    let chunk = |seq, at: usize| {
        let (base, tokens) = (Position(at as u32), text[at..at + 2].to_vec());
        frame(Work::Chunk(Chunk { seq, base, tokens, follows: None }))
    };
    for seq in [A, B, C] {
        stage.hear(begin(seq, &text, None));
        stage.hear(chunk(seq, 0));
    }
    // While a call is under way its sequences do not move.
    for seq in [A, B, C] {
        stage.core.handle_frame(chunk(seq, 2), Duration::ZERO);
    }
    let under_way = stage.core.next_call(Duration::ZERO).expect("chunks are ready");
    assert_eq!(under_way.n_rows(), 6);
    stage.core.handle_frame(park(A, 3), Duration::ZERO);
    stage.core.handle_frame(close(C), Duration::ZERO);
    let done = under_way.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, Duration::ZERO);
    lose_line(&mut stage);
    assert_eq!([A, B, C].map(|seq| stage.core.has_prefix(seq)), [true, true, false]);
    assert!(is_lost(&stage.hear(begin(X, &text, Some((A, 4, true)))), X, A), "no more than it was to keep");
    run(&mut stage, SeqId(30), &text, Some((B, 4, true)));
}

#[test]
fn a_prefix_whose_taker_had_not_begun_is_back_in_its_slot() {
    let mut stage = stage(1);
    run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    let other = prompt(&[3, 1, 4, 1, 6]);
    stage.core.handle_frame(begin(B, &other, Some((A, 4, true))), Duration::ZERO);
    lose_line(&mut stage);
    assert_eq!([A, B].map(|seq| stage.core.has_prefix(seq)), [true, false]);
    run(&mut stage, C, &other, Some((A, 4, true)));
}

#[test]
fn nothing_is_awaited_from_the_store_any_more_and_nothing_given_to_it() {
    let config = stage::Config { has_store: true, ..CONFIG };
    let mut stage = stage(2);
    stage.core = StageCore::new(stage.engine.shape().clone(), config);
    let key = PrefixKey([7; 32]);
    let text = prompt(&[3, 1, 4, 1, 5]);
    let Work::Open(mut open) = begin(A, &text, Some((X, 4, true))).work else { unreachable!("an open") };
    open.reuse = Some(Reuse { prefix: X, keep: true, stored: Some(key) });
    let asked = stage.hear(frame(Work::Open(open)));
    assert_eq!(asked, [Output::Store(StoreWork::Read { prefix: X, key })]);
    lose_line(&mut stage);
    assert!(!stage.core.has_prefix(X));
    stage.core.handle_fetched(X, key, None);
    assert_eq!(stage.settle(), [], "a late answer means nothing");
    // One that was to be stored is not: the front has forgotten that it asked.
    talking(&mut stage, B);
    let Work::Park(mut last) = park(B, 5).work else { unreachable!("a park") };
    last.store = Some(key);
    stage.core.handle_frame(frame(Work::Park(last)), Duration::ZERO);
    while stage.core.poll_output().is_some() {}
    lose_line(&mut stage);
    assert_eq!(stage.settle(), []);
    assert!(stage.core.has_prefix(B));
}

#[test]
fn who_is_poisoned_or_waits_leaves_nothing() {
    let mut stage = stage(1);
    let text = prompt(&[3, 1, 4, 1, 5]);
    stage.hear(begin(A, &text, None));
    stage.hear(begin(B, &text, None));
    let tokens = vec![Token(1)];
    let beyond = Chunk { seq: A, base: Position(9), tokens, follows: None };
    assert_eq!(stage.hear(frame(Work::Chunk(beyond))).len(), 1, "a gap");
    lose_line(&mut stage);
    assert_eq!([A, B].map(|seq| stage.core.has_prefix(seq)), [false, false]);
    run(&mut stage, C, &text, None);
}

#[test]
fn what_cannot_be_cut_serves_those_who_need_no_cut() {
    let mut stage = Stage::new(Toy::new(0, 1, 2, 32, Rewind::LastCall { rows: 4 }));
    let text = talking(&mut stage, A);
    // Two more tokens than those have been an input.
    lose_line(&mut stage);
    assert!(is_lost(&stage.hear(begin(B, &text, Some((A, text.len() - 1, false)))), B, A));
}

/// Whoever was given a slot and never ran there has not changed how far it can be cut.
#[test]
fn a_slot_that_was_given_back_can_be_cut_no_further_than_before() {
    let rewind = Rewind::InPlace { window: 3 };
    let mut stage = Stage::new(Toy::new(0, 1, 1, 32, rewind));
    run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    run_and_park(&mut stage, B, &[2, 7, 1, 8, 2]);
    // The first one is loaded again, whole: nothing below its end can be cut from now on.
    let whole =
        [&prompt(&[3, 1, 4, 1, 5])[..], &reference(&prompt(&[3, 1, 4, 1, 5]), A.0, Position(9), true)]
            .concat();
    let longer = [&whole[..], &prompt(&[6])].concat();
    run(&mut stage, C, &longer, Some((A, whole.len() - 1, false)));
    stage.hear(park(C, longer.len()));
    for frame in [begin(X, &prompt(&[5, 5]), None), close(X)] {
        stage.core.handle_frame(frame, Duration::ZERO);
    }
    stage.settle();
    let cut = Some((C, 4, true));
    assert!(is_lost(&stage.hear(begin(SeqId(20), &longer, cut)), SeqId(20), C));
}
