//! Who is computed next, seen from outside: slots, shared calls, priorities, and that nobody starves.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::{Chunk, Epoch, Frame, Hint, Position, RowDtype, SeqId, Token, Window, WindowId, Work};
use stage::{Output, Rewind, Slot};

use crate::faults::{begin, close, with_rows};
use crate::line::Stage;
use crate::toy::{Toy, WIDTH};

fn first(n_slots: u16) -> Stage {
    Stage::new(Toy::new(0, 2, n_slots, 8, Rewind::Anywhere))
}

fn chunk(seq: u64, base: u32, n: usize) -> Frame {
    let tokens = vec![Token(1); n];
    Frame::new(Work::Chunk(Chunk { seq: SeqId(seq), base: Position(base), tokens, follows: None }))
}

fn window(seq: u64, epoch: u32, base: u32, n: usize, run_ahead: bool) -> Frame {
    Frame::new(Work::Window(Window {
        seq: SeqId(seq),
        epoch: Epoch(epoch),
        window: WindowId(0),
        base: Position(base),
        tokens: vec![Token(1); n],
        run_ahead,
        want_draft: None,
    }))
}

fn arrive(stage: &mut Stage, frames: impl IntoIterator<Item = Frame>) {
    frames.into_iter().for_each(|frame| stage.core.handle_frame(frame, Duration::ZERO));
}

fn forwarded(said: &[Output]) -> Vec<u64> {
    said.iter()
        .map(|output| if let Output::Forward(frame) = output { frame.work.seq().0 } else { 99 })
        .collect()
}

#[test]
fn slots_are_handed_out_lowest_first_and_one_cut_clears_a_used_one() {
    let mut stage = first(3);
    for seq in 0..3 {
        arrive(&mut stage, [begin(seq), chunk(seq, 0, 2)]);
    }
    stage.settle();
    arrive(&mut stage, [close(SeqId(2)), close(SeqId(0)), begin(3), chunk(3, 0, 1)]);
    assert_eq!(stage.engine.cuts, [], "nothing is cut before the slot is needed");
    stage.settle();
    assert_eq!(stage.engine.cuts, [(Slot(0), Position(0))]);
    assert_eq!(stage.engine.calls.last().expect("a call")[0].slot, Slot(0));
}

#[test]
fn sequences_without_a_slot_wait_in_the_order_of_their_arrival() {
    let mut stage = first(1);
    assert_eq!(forwarded(&stage.hear(begin(0))), [0]);
    for seq in [5, 3, 4] {
        assert_eq!(stage.hear(begin(seq)), []);
        assert_eq!(stage.hear(chunk(seq, 0, 1)), []);
    }
    assert_eq!(forwarded(&stage.hear(close(SeqId(0)))), [0, 5, 5]);
    // One that is given up while it waits never takes a slot.
    assert_eq!(forwarded(&stage.hear(close(SeqId(3)))), [3]);
    stage.core.handle_hint(Hint::Drop { seq: SeqId(4) });
    assert_eq!(forwarded(&stage.hear(close(SeqId(5)))), [5]);
    assert_eq!(forwarded(&stage.hear(begin(6))), [6]);
    assert_eq!(forwarded(&stage.hear(close(SeqId(4)))), [4]);
}

#[test]
fn ready_neighbours_share_a_call() {
    let mut stage = first(4);
    for seq in 0..4 {
        arrive(&mut stage, [begin(seq)]);
    }
    arrive(&mut stage, [0, 1, 3].map(|seq| window(seq, 0, 0, 2, false)));
    stage.settle();
    let slots = |call: &Vec<stage::Span>| call.iter().map(|span| span.slot.0).collect::<Vec<_>>();
    assert_eq!(stage.engine.calls.iter().map(slots).collect::<Vec<_>>(), [vec![0, 1], vec![3]]);
    assert_eq!(stage.core.stats().calls, 2);
}

#[test]
fn recurrent_layers_compute_one_sequence_at_a_time_on_every_stage() {
    for index in 0..2 {
        let mut stage = Stage::new(Toy::new(index, 2, 3, 8, Rewind::LastCall { rows: 3 }));
        for seq in 0..3 {
            arrive(&mut stage, [begin(seq)]);
        }
        let frame = |seq| window(seq, 0, 0, 2, false);
        let frame =
            |seq| if index == 0 { frame(seq) } else { with_rows(frame(seq), RowDtype::F32, WIDTH, 2) };
        arrive(&mut stage, (0..3).map(frame));
        stage.settle();
        assert_eq!(stage.engine.calls.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1], "stage {index}");
    }
}

#[test]
fn anchors_go_before_chunks_and_chunks_before_windows_that_run_ahead() {
    let mut stage = first(3);
    arrive(&mut stage, (0..3).map(begin));
    arrive(&mut stage, [window(0, 0, 0, 1, true), chunk(1, 0, 2), window(2, 0, 0, 3, false)]);
    let said = stage.settle();
    assert_eq!(forwarded(&said), [0, 1, 2, 2, 1, 0]);
}

#[test]
fn nobody_starves_under_endless_load() {
    let mut stage = first(6);
    arrive(&mut stage, (0..6).map(begin));
    let mut next = BTreeMap::from_iter((0..6_u64).map(|seq| (seq, 0_u32)));
    // Of each class two, every one with its own row count, so that nobody rides along.
    let frame = |seq: u64, base: u32| match seq {
        0 | 1 => window(seq, 0, base % 64, 1 + seq as usize, false),
        2 | 3 => chunk(seq, base % 64, 1 + seq as usize),
        _ => window(seq, 0, base % 64, 1 + seq as usize, true),
    };
    for seq in 0..6 {
        arrive(&mut stage, [frame(seq, 0)]);
    }
    let mut served = BTreeMap::new();
    let mut now = Duration::ZERO;
    for _ in 0..1000 {
        let call = stage.core.next_call(now).expect("there is always work");
        now += Duration::from_millis(2);
        let done = call.execute(&mut stage.engine);
        stage.core.complete(done, &stage.engine, now);
        while let Some(output) = stage.core.poll_output() {
            let Output::Forward(forwarded) = output else { panic!("{output:?}") };
            if forwarded.rows.is_none() {
                continue;
            }
            let (seq, n_rows) = (forwarded.work.seq().0, forwarded.work.tokens().len() as u32);
            *served.entry(seq).or_insert(0) += 1;
            let base = next.get_mut(&seq).expect("one of ours");
            *base = (*base + n_rows) % 64;
            stage.core.handle_frame(frame(seq, *base), now);
        }
    }
    let shares: Vec<i32> = served.into_values().collect();
    assert_eq!(shares, [325, 325, 125, 125, 50, 50]);
}

#[test]
fn a_window_that_became_stale_during_its_call_is_not_passed_on() {
    let mut stage = first(1);
    arrive(&mut stage, [begin(1), window(1, 0, 0, 2, false), window(1, 0, 2, 1, true)]);
    let call = stage.core.next_call(Duration::ZERO).expect("a window is ready");
    stage.core.handle_hint(Hint::Advance { seq: SeqId(1), epoch: Epoch(1) });
    let done = call.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, Duration::ZERO);
    arrive(&mut stage, [window(1, 1, 1, 1, false)]);
    let said = stage.settle();
    assert_eq!(said.len(), 2, "the open, and the new epoch's window: {said:?}");
    let stats = stage.core.stats();
    assert_eq!((stats.windows, stats.stale_windows, stats.stale_rows), (2, 1, 1));
    assert_eq!(
        (stats.rows, stats.wasted_rows),
        (3, 1),
        "the anchor's row stands, the guess behind it was cut"
    );
}

#[test]
fn what_a_sequence_that_is_over_leaves_is_counted_by_its_kind() {
    let mut stage = first(1);
    arrive(&mut stage, [begin(1), chunk(1, 0, 2), chunk(1, 2, 2), window(1, 0, 4, 1, false)]);
    // One that never got a slot: its `Open` is passed over, too.
    arrive(&mut stage, [begin(2), chunk(2, 0, 2)]);
    for seq in [SeqId(1), SeqId(2)] {
        stage.core.handle_hint(Hint::Drop { seq });
    }
    stage.settle();
    let stats = stage.core.stats();
    assert_eq!((stats.passed_over, stats.passed_windows, stats.passed_chunks), (5, 1, 3), "{stats:?}");
    let told = stats.counters();
    assert_eq!((told.stale_windows, told.passed_windows, told.passed_chunks), (0, 1, 3));
}

#[test]
fn hints_of_unknown_sequences_change_nothing() {
    let mut stage = first(1);
    stage.core.handle_hint(Hint::Drop { seq: SeqId(1) });
    stage.core.handle_hint(Hint::Advance { seq: SeqId(1), epoch: Epoch(7) });
    arrive(&mut stage, [begin(1), window(1, 0, 0, 1, false)]);
    assert_eq!(forwarded(&stage.settle()), [1, 1]);
}

#[test]
fn a_frame_carries_how_long_it_waited_and_computed() {
    let mut stage = first(1);
    let us = Duration::from_micros;
    stage.core.handle_frame(begin(1), us(5));
    stage.core.handle_frame(chunk(1, 0, 3), us(10));
    let call = stage.core.next_call(us(25)).expect("a chunk is ready");
    assert_eq!(call.n_rows(), 3);
    let done = call.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, us(125));
    let said: Vec<_> = std::iter::from_fn(|| stage.core.poll_output()).collect();
    let Some(Output::Forward(frame)) = said.last() else { panic!("{said:?}") };
    let timing = protocol::StageTiming { queue_us: 15, compute_us: 100, batch_rows: 3 };
    assert_eq!(frame.timings, [timing]);
}
