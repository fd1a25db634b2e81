//! Every contradiction is a fault that names it, is reported once, and leaves a sequence of which only `Close` is heard.

use protocol::{
    Chunk, Close, Epoch, Fault, FaultKind, Frame, Open, Park, Position, Report, RowDtype, Rows, SeqId, Token,
    Window, WindowId, Work,
};
use stage::{Output, Rewind, Slot};

use crate::line::Stage;
use crate::toy::{Failure, Toy, UNSAMPLED, WIDTH, open};

const SEQ: SeqId = SeqId(1);

pub(crate) fn begin(seq: u64) -> Frame {
    Frame::new(Work::Open(Box::new(open(seq))))
}

pub(crate) fn tokens(ids: &[i32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

pub(crate) fn chunk(base: u32, n: usize) -> Frame {
    let tokens = tokens(&vec![1; n]);
    Frame::new(Work::Chunk(Chunk { seq: SEQ, base: Position(base), tokens, follows: None }))
}

pub(crate) fn window(epoch: u32, base: u32, ids: &[i32]) -> Frame {
    Frame::new(Work::Window(Window {
        seq: SEQ,
        epoch: Epoch(epoch),
        window: WindowId(0),
        base: Position(base),
        tokens: tokens(ids),
        run_ahead: false,
        want_draft: None,
    }))
}

pub(crate) fn close(seq: SeqId) -> Frame {
    Frame::new(Work::Close(Close { seq, inputs: Position(0) }))
}

pub(crate) fn park() -> Frame {
    Frame::new(Work::Park(Park { seq: SEQ, len: Position(1), store: None }))
}

pub(crate) fn with_rows(mut frame: Frame, dtype: RowDtype, width: usize, n_rows: usize) -> Frame {
    let rows = Rows::pack(dtype, width as u32, &vec![1.0; width * n_rows]).expect("within bounds");
    frame.rows = Some(rows);
    frame
}

fn stage(index: u32, rewind: Rewind) -> Stage {
    Stage::new(Toy::new(index, 3, 2, 64, rewind))
}

fn first() -> Stage {
    stage(0, Rewind::Anywhere)
}

fn middle() -> Stage {
    stage(1, Rewind::Anywhere)
}

/// First and tail at once: tokens in, verdicts out.
fn sole() -> Stage {
    Stage::new(Toy::new(0, 1, 2, 64, Rewind::Anywhere))
}

/// Opens the sequence, hears `before`, which is in order, then `frame`, which is not.
#[track_caller]
fn assert_fault(mut stage: Stage, before: Vec<Frame>, frame: Frame, kind: FaultKind) {
    for good in std::iter::once(begin(1)).chain(before) {
        let said = stage.hear(good);
        assert!(!said.iter().any(is_fault), "{said:?}");
    }
    let fault = Output::Report(Report::Fault(Fault { seq: Some(SEQ), kind }));
    assert_eq!(stage.hear(frame), [fault]);
    assert_poisoned(stage);
}

fn is_fault(output: &Output) -> bool {
    matches!(output, Output::Report(Report::Fault(_)))
}

#[track_caller]
fn assert_poisoned(mut stage: Stage) {
    for frame in [chunk(0, 1), window(9, 0, &[1]), begin(1)] {
        assert_eq!(stage.hear(frame), [], "a poisoned sequence is silent and nothing travels on");
    }
    let is_tail = stage.core.shape().is_tail;
    let end = if is_tail { Output::Report(Report::Closed(SEQ)) } else { Output::Forward(close(SEQ)) };
    assert_eq!(stage.hear(close(SEQ)), [end]);
    assert_eq!(stage.core.load(), stage::Load::default());
    // Its slot is free again: both slots can be taken.
    let said: Vec<_> = [begin(11), begin(12)].into_iter().flat_map(|frame| stage.hear(frame)).collect();
    assert_eq!(said.len(), if is_tail { 0 } else { 2 });
    assert_eq!(stage.core.load(), stage::Load::default());
}

#[test]
fn a_gap() {
    let kind = FaultKind::Gap { base: Position(5), next: Position(4) };
    assert_fault(first(), vec![chunk(0, 4)], chunk(5, 1), kind.clone());
    assert_fault(first(), vec![chunk(0, 4)], window(0, 5, &[1]), kind.clone());
    assert_fault(sole(), vec![chunk(0, 4)], window(0, 5, &[1]), kind);
}

#[test]
fn a_position_far_beyond_every_context() {
    let kind = FaultKind::Gap { base: Position(u32::MAX), next: Position(0) };
    assert_fault(first(), vec![], window(0, u32::MAX, &[1, 2]), kind);
}

#[test]
fn a_full_context() {
    let kind = FaultKind::ContextFull { end: Position(97), context: 96 };
    assert_fault(first(), vec![chunk(0, 64), chunk(64, 32)], window(0, 96, &[1]), kind.clone());
    assert_fault(sole(), vec![chunk(0, 64)], chunk(64, 33), kind);
}

#[test]
fn a_rewind_further_than_recurrent_memory_allows() {
    let recurrent = || stage(0, Rewind::LastCall { rows: 2 });
    let rewind = |base, oldest| FaultKind::Rewind { base: Position(base), oldest: Position(oldest) };
    assert_fault(recurrent(), vec![chunk(0, 8)], window(0, 5, &[1]), rewind(5, 6));
    let step = |base| window(0, base, &[1, 2]);
    assert_fault(recurrent(), vec![chunk(0, 8), step(8), step(9)], step(9), rewind(9, 10));
    let reason = "a window of 4 tokens, but only 2 can be undone".into();
    assert_fault(recurrent(), vec![], window(0, 0, &[1, 2, 3, 4]), FaultKind::BadRows { reason });
}

#[test]
fn a_prompt_told_twice() {
    let kind = FaultKind::Rewind { base: Position(2), oldest: Position(4) };
    assert_fault(sole(), vec![chunk(0, 4)], chunk(2, 2), kind.clone());
    assert_fault(sole(), vec![chunk(0, 4)], window(0, 2, &[1]), kind);
}

#[test]
fn a_prompt_that_goes_on_after_the_first_window() {
    let kind = FaultKind::Unsupported { what: "a prompt chunk after the first window".into() };
    assert_fault(sole(), vec![window(0, 0, &[1])], chunk(1, 1), kind);
}

#[test]
fn frames_of_a_sequence_that_is_not_open() {
    for frame in [chunk(0, 1), window(0, 0, &[1])] {
        let mut stage = first();
        let fault = Fault { seq: Some(SEQ), kind: FaultKind::UnknownSequence };
        assert_eq!(stage.hear(frame), [Output::Report(Report::Fault(fault))]);
        assert_poisoned(stage);
    }
}

#[test]
fn the_end_of_a_sequence_that_is_not_open_travels_on() {
    for end in [close(SEQ), park()] {
        assert_eq!(first().hear(end.clone()), [Output::Forward(end.clone())]);
        assert_eq!(sole().hear(end), [Output::Report(Report::Closed(SEQ))]);
    }
}

#[test]
fn a_sequence_opened_twice() {
    assert_fault(first(), vec![], begin(1), FaultKind::AlreadyOpen);
    assert_fault(sole(), vec![chunk(0, 1)], begin(1), FaultKind::AlreadyOpen);
}

#[test]
fn an_open_that_claims_positions_which_are_not_there() {
    let mut stage = first();
    let begun = Open { start: Position(2), history: tokens(&[1, 2]), ..open(1) };
    let kind = FaultKind::Gap { base: Position(2), next: Position(0) };
    let fault = Output::Report(Report::Fault(Fault { seq: Some(SEQ), kind }));
    assert_eq!(stage.hear(Frame::new(Work::Open(Box::new(begun)))), [fault]);
    assert_poisoned(stage);
}

#[test]
fn more_sequences_than_a_front_may_open() {
    let mut stage = first();
    let limit = stage.core.max_sequences() as u64;
    let said: Vec<_> = (0..limit).flat_map(|seq| stage.hear(begin(100 + seq))).collect();
    assert_eq!(said.len(), 2, "two have slots, the others wait");
    let kind = FaultKind::TooManySequences { limit: limit as u32 };
    assert_eq!(stage.hear(begin(1)), [Output::Report(Report::Fault(Fault { seq: Some(SEQ), kind }))]);
    assert_eq!(stage.hear(close(SEQ)), [Output::Forward(close(SEQ))]);
    let said = stage.hear(close(SeqId(100)));
    assert_eq!(said, [Output::Forward(close(SeqId(100))), Output::Forward(begin(102))]);
}

#[test]
fn rows_that_do_not_fit() {
    let bad = |reason: &str| FaultKind::BadRows { reason: reason.into() };
    let rows = |dtype, width, n| with_rows(chunk(0, 2), dtype, width, n);
    let f32 = RowDtype::F32;
    let case = |stage, frame, reason| assert_fault(stage, vec![], frame, bad(reason));
    case(first(), rows(f32, WIDTH, 2), "some came, but this stage looks up embeddings");
    case(middle(), chunk(0, 2), "none came, but this stage does not look up embeddings");
    case(middle(), rows(f32, 3, 2), "rows of 3 values, but the model's have 4");
    case(middle(), rows(RowDtype::Q8, WIDTH, 2), "rows of Q8, but the line's are F32");
    case(middle(), rows(f32, WIDTH, 3), "3 rows for 2 tokens");
    case(first(), chunk(0, 65), "65 tokens, but a call takes 1 to 64");
    case(first(), chunk(0, 0), "0 tokens, but a call takes 1 to 64");
    case(sole(), window(0, 0, &[16]), "token 16, but the vocabulary has 16");
    case(sole(), window(0, 0, &[-1]), "token -1, but the vocabulary has 16");
}

#[test]
fn windows_that_diverge_from_the_tail() {
    let mut probe = sole();
    probe.hear(begin(1));
    let said = probe.hear(window(0, 0, &[1]));
    let [Output::Report(Report::Verdict(verdict))] = &said[..] else { panic!("{said:?}") };
    let held = verdict.tokens[0];
    let other = (held.0 + 1) % 16;
    let diverged = |base, token| FaultKind::Diverged {
        base: Position(base),
        token: Token(token),
        expected: Position(1),
        expected_token: held,
    };
    let before = || vec![window(0, 0, &[1])];
    assert_fault(sole(), before(), window(0, 0, &[1]), diverged(0, 1));
    assert_fault(sole(), before(), window(0, 2, &[held.0]), diverged(2, held.0));
    assert_fault(sole(), before(), window(1, 1, &[other]), diverged(1, other));
    // A wrong first token in the same epoch is a wrong guess, and ends the epoch.
    let mut before = before();
    before.push(window(0, 1, &[other]));
    assert_fault(sole(), before.clone(), window(1, 1, &[other]), diverged(1, other));
    before.push(window(0, 2, &[5]));
    before.push(window(1, 1, &[held.0]));
    assert_fault(
        sole(),
        before,
        window(1, 1, &[held.0]),
        FaultKind::Diverged {
            base: Position(1),
            token: held,
            expected: Position(2),
            expected_token: second(held),
        },
    );
}

/// What follows the prompt `[1]` and its successor.
fn second(held: Token) -> Token {
    let truth = crate::toy::reference(&tokens(&[1]), 1, Position(3), true);
    assert_eq!(truth[0], held);
    truth[1]
}

#[test]
fn parameters_that_the_sampler_refuses() {
    let mut stage = sole();
    stage.engine.failure = Failure::Sampler;
    let kind = FaultKind::Sampler { reason: "mirostat 3 is unknown".into() };
    assert_eq!(stage.hear(begin(1)), [Output::Report(Report::Fault(Fault { seq: Some(SEQ), kind }))]);
    stage.engine.failure = Failure::None;
    assert_poisoned(stage);
}

#[test]
fn a_token_that_cannot_be_sampled() {
    let mut stage = sole();
    let begin = Frame::new(Work::Open(Box::new(Open { seed: UNSAMPLED, ..open(SEQ.0) })));
    assert_eq!(stage.hear(begin), []);
    let kind = FaultKind::Sampler { reason: "its grammar is too complex".into() };
    let said = stage.hear(window(0, 0, &[1, 2]));
    assert_eq!(said, [Output::Report(Report::Fault(Fault { seq: Some(SEQ), kind }))]);
    assert_poisoned(stage);
}

/// Two sequences with one frame each for the next call: `[1, 2]` rows at 3 after 5 computed positions.
fn two_that_rewind(stage: &mut Stage) {
    for seq in [1, 2] {
        stage.hear(begin(seq));
        stage.hear(of(seq, chunk(0, 5)));
    }
    for seq in [1, 2] {
        stage.core.handle_frame(of(seq, window(0, 3, &[1, 2])), std::time::Duration::ZERO);
    }
}

fn of(id: u64, mut frame: Frame) -> Frame {
    match &mut frame.work {
        Work::Chunk(Chunk { seq, .. }) | Work::Window(Window { seq, .. }) => *seq = SeqId(id),
        _ => {}
    }
    frame
}

#[test]
fn a_failed_call_poisons_its_sequences_and_their_slots_start_afresh() {
    let mut stage = first();
    two_that_rewind(&mut stage);
    stage.engine.failure = Failure::Run;
    let kind = FaultKind::Engine { reason: "out of memory".into() };
    let faults =
        [1, 2].map(|seq| Output::Report(Report::Fault(Fault { seq: Some(SeqId(seq)), kind: kind.clone() })));
    assert_eq!(stage.settle(), faults);
    stage.hear(close(SEQ));
    stage.hear(begin(3));
    stage.engine.cuts.clear();
    assert_eq!(stage.hear(of(3, chunk(0, 2))).len(), 1);
    assert_eq!(stage.engine.cuts, [(Slot(0), Position(0))]);
}

#[test]
fn a_failed_cut_concerns_only_its_sequence() {
    let mut stage = first();
    two_that_rewind(&mut stage);
    stage.engine.failure = Failure::Cut(Slot(1));
    let said = stage.settle();
    let [Output::Report(Report::Fault(fault)), Output::Forward(frame)] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(
        *fault,
        Fault { seq: Some(SeqId(2)), kind: FaultKind::Engine { reason: "the memory cannot be cut".into() } }
    );
    assert_eq!(frame.work.seq(), SEQ);
    assert_eq!(stage.engine.cuts, [(Slot(0), Position(3))], "what was cut is not cut again");
}
