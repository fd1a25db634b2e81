//! Parked prefixes: whoever begins with one says what it would have said without.

use protocol::{
    Chunk, Close, Epoch, Fault, FaultKind, Frame, Open, Park, Position, Report, Reuse, SeqId, Token, Window,
    WindowId, Work,
};
use stage::{Config, Output, Rewind, StageCore};

use crate::line::{CONFIG, Stage};
use crate::toy::{Toy, open, reference};

pub(crate) const A: SeqId = SeqId(1);
pub(crate) const B: SeqId = SeqId(2);
pub(crate) const C: SeqId = SeqId(3);
pub(crate) const X: SeqId = SeqId(9);

pub(crate) fn stage(n_slots: u16) -> Stage {
    Stage::new(Toy::new(0, 1, n_slots, 32, Rewind::Anywhere))
}

pub(crate) fn prompt(ids: &[i32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

pub(crate) fn frame(work: Work) -> Frame {
    Frame::new(work)
}

pub(crate) fn begin(seq: SeqId, prompt: &[Token], reuse: Option<(SeqId, usize, bool)>) -> Frame {
    let start = reuse.map_or(0, |(_, start, _)| start);
    let reuse = reuse.map(|(prefix, _, keep)| Reuse { prefix, keep, stored: None });
    let limit = Position(prompt.len() as u32 + 4);
    frame(Work::Open(Box::new(Open {
        start: Position(start as u32),
        reuse,
        history: prompt[..start].to_vec(),
        limit,
        ..open(seq.0)
    })))
}

pub(crate) fn window(seq: SeqId, base: usize, token: Token) -> Frame {
    frame(Work::Window(Window {
        seq,
        epoch: Epoch(0),
        window: WindowId(base as u32),
        base: Position(base as u32),
        tokens: vec![token],
        run_ahead: false,
        want_draft: None,
    }))
}

pub(crate) fn park(seq: SeqId, len: usize) -> Frame {
    frame(Work::Park(Park { seq, len: Position(len as u32), store: None }))
}

pub(crate) fn close(seq: SeqId) -> Frame {
    frame(Work::Close(Close { seq, inputs: Position(0) }))
}

/// The four tokens that follow the prompt, of which those before `start` are said to be there.
pub(crate) fn go_on(stage: &mut Stage, seq: SeqId, text: &[Token], start: usize) -> Vec<Token> {
    let last = text.len() - 1;
    if start < last {
        let base = Position(start as u32);
        stage.hear(frame(Work::Chunk(Chunk {
            seq,
            base,
            tokens: text[start..last].to_vec(),
            follows: None,
        })));
    }
    let mut said = vec![text[last]];
    while said.len() <= 4 {
        let outputs = stage.hear(window(seq, last + said.len() - 1, said[said.len() - 1]));
        let [Output::Report(Report::Verdict(verdict))] = &outputs[..] else { panic!("{outputs:?}") };
        said.extend(&verdict.tokens);
    }
    said.split_off(1)
}

/// Runs a sequence to its end; all of its text but the last token has been computed then.
pub(crate) fn run(
    stage: &mut Stage,
    seq: SeqId,
    prompt: &[Token],
    reuse: Option<(SeqId, usize, bool)>,
) -> Vec<Token> {
    assert_eq!(stage.hear(begin(seq, prompt, reuse)), [], "the tail says nothing about an open");
    let said = go_on(stage, seq, prompt, reuse.map_or(0, |(_, start, _)| start));
    let limit = Position(prompt.len() as u32 + 4);
    assert_eq!(said, reference(prompt, seq.0, limit, true), "sequence {seq}");
    [prompt, &said].concat()
}

pub(crate) fn run_and_park(stage: &mut Stage, seq: SeqId, ids: &[i32]) -> Vec<Token> {
    let text = run(stage, seq, &prompt(ids), None);
    let closed = stage.hear(park(seq, text.len() - 1));
    assert_eq!(closed, [Output::Report(Report::Closed(seq))]);
    text
}

pub(crate) fn is_lost(outputs: &[Output], seq: SeqId, prefix: SeqId) -> bool {
    let kind = FaultKind::PrefixLost { prefix };
    outputs == [Output::Report(Report::Fault(Fault { seq: Some(seq), kind }))]
}

/// Rows computed since the last time.
pub(crate) fn rows(stage: &mut Stage) -> usize {
    stage.engine.calls.drain(..).flatten().map(|span| span.n_rows).sum()
}

#[test]
fn a_follow_up_goes_on_in_the_slot_where_the_first_one_stopped() {
    let mut stage = stage(2);
    let mut text = run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    rows(&mut stage);
    let whole = text.len() - 1;
    text.extend(prompt(&[9, 2, 6]));
    run(&mut stage, B, &text, Some((A, whole, false)));
    assert_eq!(rows(&mut stage), text.len() - whole + 3, "what was not there, and three of four answers");
    assert!(is_lost(&stage.hear(begin(C, &text, Some((A, whole, false)))), C, A), "it was taken over");
}

#[test]
fn many_share_a_prefix_that_is_kept() {
    for n_slots in [1, 2, 4] {
        let mut stage = stage(n_slots);
        run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
        for (seq, tail) in [(B, 7), (C, 8), (X, 9)] {
            run(&mut stage, seq, &prompt(&[3, 1, 4, 1, tail, 6]), Some((A, 4, true)));
            stage.hear(close(seq));
        }
        assert_eq!(stage.core.stats().reused_positions, 12);
    }
}

#[test]
fn a_prefix_outlives_its_slot() {
    let mut stage = stage(1);
    run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    run_and_park(&mut stage, X, &[2, 7, 1, 8]);
    assert!(stage.core.stats().saved_bytes > 0);
    run(&mut stage, B, &prompt(&[3, 1, 4, 1, 5, 6]), Some((A, 5, true)));
    stage.hear(close(B));
    run(&mut stage, C, &prompt(&[2, 7, 1, 6]), Some((X, 3, false)));
}

#[test]
fn without_room_for_copies_a_prefix_lives_as_long_as_its_slot_is_free() {
    let mut stage = stage(1);
    stage.core = StageCore::new(stage.core.shape().clone(), Config { prefix_bytes: 0, ..CONFIG });
    run_and_park(&mut stage, A, &[3, 1, 4]);
    run_and_park(&mut stage, B, &[2, 7, 1, 8]);
    assert!(is_lost(&stage.hear(begin(C, &prompt(&[3, 1, 4, 1]), Some((A, 3, true)))), C, A));
    stage.hear(close(C));
    run(&mut stage, X, &prompt(&[2, 7, 1, 6]), Some((B, 3, true)));
}

#[test]
fn a_prefix_that_could_not_be_saved_is_lost_and_nothing_else() {
    let mut stage = stage(1);
    run_and_park(&mut stage, A, &[3, 1, 4]);
    stage.engine.refuses_save = true;
    run(&mut stage, X, &prompt(&[2, 7, 1, 8]), None);
    stage.hear(close(X));
    assert!(is_lost(&stage.hear(begin(C, &prompt(&[3, 1, 4, 1]), Some((A, 3, true)))), C, A));
    stage.hear(close(C));
    run(&mut stage, B, &prompt(&[3, 1, 4, 1]), None);
}

#[test]
fn an_unknown_prefix_a_closed_one_and_a_shorter_one_are_lost() {
    let mut stage = stage(2);
    let text = run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    let longer = [&text[..], &prompt(&[1, 2, 3])].concat();
    assert!(is_lost(&stage.hear(begin(B, &longer, Some((X, 4, true)))), B, X));
    assert!(is_lost(&stage.hear(begin(C, &longer, Some((A, text.len(), true)))), C, A), "one token too many");
    for seq in [B, C, A] {
        assert_eq!(stage.hear(close(seq)), [Output::Report(Report::Closed(seq))]);
    }
    assert!(is_lost(&stage.hear(begin(X, &longer, Some((A, 4, true)))), X, A));
}

#[test]
fn an_open_that_overtakes_the_park_waits_for_it() {
    let mut stage = stage(2);
    let text = run(&mut stage, A, &prompt(&[3, 1, 4, 1, 5]), None);
    let longer = [&text[..], &prompt(&[6])].concat();
    let whole = text.len() - 1;
    assert_eq!(stage.hear(begin(B, &longer, Some((A, whole, false)))), []);
    assert_eq!(stage.hear(park(A, whole)), [Output::Report(Report::Closed(A))]);
    let said = go_on(&mut stage, B, &longer, whole);
    assert_eq!(said, reference(&longer, B.0, Position(longer.len() as u32 + 4), true));
}

#[test]
fn a_sequence_that_ends_before_it_begins_gives_the_prefix_back() {
    for n_slots in [1, 2] {
        let mut stage = stage(n_slots);
        run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
        let other = prompt(&[3, 1, 4, 1, 6]);
        for frame in [begin(B, &other, Some((A, 4, true))), close(B)] {
            stage.core.handle_frame(frame, std::time::Duration::ZERO);
        }
        stage.settle();
        run(&mut stage, C, &other, Some((A, 4, true)));
    }
}

#[test]
fn what_was_not_computed_is_not_parked() {
    let mut stage = stage(2);
    let text = run(&mut stage, A, &prompt(&[3, 1, 4]), None);
    stage.hear(park(A, text.len()));
    assert!(is_lost(&stage.hear(begin(B, &text, Some((A, 3, true)))), B, A));
}
