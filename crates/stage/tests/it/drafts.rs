//! Drafts of a tail's own: when they are made, what the tail promises, and that it keeps that.

use std::time::Duration;

use protocol::{
    Chunk, Company, Epoch, Frame, Hint, Position, Report, SeqId, TailDraft, Token, Verdict, WantDraft,
    Window, WindowId, Work,
};
use stage::{Output, Rewind};

use crate::faults::{self, begin};
use crate::line::Stage;
use crate::toy::Toy;

/// A line of one stage that drafts, on which as many sequences have begun as it has slots.
fn tail(n_slots: u16) -> Stage {
    let mut stage = Stage::new(Toy::new(0, 1, n_slots, 8, Rewind::Anywhere).that_drafts());
    for seq in 0..n_slots {
        stage.hear(begin(u64::from(seq)));
    }
    stage
}

fn window(seq: u64, number: u32, base: u32, tokens: &[i32], want_draft: Option<WantDraft>) -> Frame {
    Frame::new(Work::Window(Window {
        seq: SeqId(seq),
        epoch: Epoch(0),
        window: WindowId(number),
        base: Position(base),
        tokens: tokens.iter().copied().map(Token).collect(),
        run_ahead: false,
        want_draft,
    }))
}

fn want(tokens: u8) -> Option<WantDraft> {
    Some(WantDraft { tokens, unless: None })
}

fn verdicts(said: &[Output]) -> Vec<&Verdict> {
    said.iter()
        .filter_map(|output| match output {
            Output::Report(Report::Verdict(verdict)) => Some(&**verdict),
            _ => None,
        })
        .collect()
}

fn drafts(said: &[Output]) -> Vec<&TailDraft> {
    said.iter()
        .filter_map(|output| match output {
            Output::Report(Report::Draft(draft)) => Some(&**draft),
            _ => None,
        })
        .collect()
}

/// The toy's next token behind a single one.
fn next(token: i32) -> i32 {
    let mut stage = tail(1);
    let said = stage.hear(window(0, 0, 0, &[token], None));
    verdicts(&said)[0].tokens[0].0
}

#[test]
fn a_verdict_goes_first_and_promises_the_draft_that_follows() {
    let mut stage = tail(1);
    let said = stage.hear(window(0, 0, 0, &[1], want(3)));
    let [Output::Report(Report::Verdict(verdict)), Output::Report(Report::Draft(draft))] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(verdict.drafts);
    assert_eq!((draft.seq, draft.base, draft.tokens.len()), (SeqId(0), Position(2), 3));
    assert_eq!(draft.probabilities.len(), 3);
    assert_eq!(stage.engine.wishes, [[(0, verdict.tokens[0].0, 1, 3)]]);
}

#[test]
fn nothing_is_drafted_unless_it_is_asked_for_and_the_engine_can() {
    let mut stage = tail(1);
    let said = stage.hear(window(0, 0, 0, &[1], None));
    assert!(!verdicts(&said)[0].drafts && drafts(&said).is_empty());
    let mut cannot = Stage::new(Toy::new(0, 1, 1, 8, Rewind::Anywhere));
    cannot.hear(begin(0));
    let said = cannot.hear(window(0, 0, 0, &[1], want(3)));
    assert!(!verdicts(&said)[0].drafts && drafts(&said).is_empty() && cannot.engine.wishes.is_empty());
}

#[test]
fn no_draft_is_made_where_the_next_window_is_on_its_way_unless_a_guess_was_wrong() {
    let right = next(1);
    let unless = |token: i32| Some(WantDraft { tokens: 2, unless: Some(Token(token)) });
    for (tokens, unless, is_drafted) in [
        (vec![1], unless(right), false),
        (vec![1], unless(right + 1), true),
        (vec![1, right + 1], unless(right), true),
    ] {
        let mut stage = tail(1);
        let said = stage.hear(window(0, 0, 0, &tokens, unless));
        assert_eq!(verdicts(&said)[0].drafts, is_drafted, "{tokens:?}");
        assert_eq!(drafts(&said).len(), usize::from(is_drafted), "{tokens:?}");
    }
}

#[test]
fn what_one_call_computed_is_drafted_in_one_call_and_told_as_a_group() {
    let mut stage = tail(3);
    for seq in 0..3 {
        stage.core.handle_frame(window(seq, 0, 0, &[1], want(2)), Duration::ZERO);
    }
    let said = stage.settle();
    assert_eq!(stage.engine.wishes.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    let companies: Vec<Company> = drafts(&said).iter().map(|draft| draft.company).collect();
    assert_eq!(companies, [Company::Leads(2), Company::Follows, Company::Follows]);
}

#[test]
fn a_promise_is_kept_when_drafting_fails() {
    let mut stage = tail(1);
    stage.engine.refuses_draft = true;
    let said = stage.hear(window(0, 0, 0, &[1], want(2)));
    assert!(verdicts(&said)[0].drafts);
    assert_eq!(drafts(&said)[0].tokens, []);
    let token = verdicts(&said)[0].tokens[0].0;
    let said = stage.hear(window(0, 1, 1, &[token], want(2)));
    assert_eq!(drafts(&said)[0].tokens.len(), 2, "and the next one is made");
}

#[test]
fn nothing_is_drafted_for_a_sequence_that_was_given_up_or_beyond_its_limit() {
    let mut stage = tail(1);
    stage.core.handle_frame(window(0, 0, 0, &[1], want(2)), Duration::ZERO);
    let call = stage.core.next_call(Duration::ZERO).expect("a window is ready");
    let done = call.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, Duration::ZERO);
    stage.core.handle_hint(Hint::Drop { seq: SeqId(0) });
    assert!(drafts(&stage.settle()).is_empty() && stage.engine.wishes.is_empty());

    let mut short = Stage::new(Toy::new(0, 1, 1, 8, Rewind::Anywhere).that_drafts());
    let Work::Open(mut open) = begin(0).work else { panic!("it begins with an open") };
    // The token at 1 is sampled, and those at 2 and 3 may still come; the last one is worth no row of its own.
    open.limit = Position(4);
    short.hear(Frame::new(Work::Open(open)));
    let said = short.hear(window(0, 0, 0, &[1], want(8)));
    assert_eq!(drafts(&said)[0].tokens.len(), 1);
}

/// Executes the next call, and says so with a time that it took.
fn call(stage: &mut Stage) -> Vec<Output> {
    let call = stage.core.next_call(Duration::ZERO).expect("something is ready");
    let done = call.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, Duration::from_millis(1));
    std::iter::from_fn(|| stage.core.poll_output()).collect()
}

#[test]
fn no_verdict_waits_for_a_draft_neither_its_own_nor_that_of_another_sequence() {
    let mut stage = tail(3);
    stage.core.handle_frame(window(0, 0, 0, &[1], want(3)), Duration::ZERO);
    let under_way = stage.core.next_call(Duration::ZERO).expect("a window is ready");
    stage.core.handle_frame(window(1, 0, 0, &[1], want(2)), Duration::ZERO);
    // A prompt comes after the drafts, though it is there before them.
    let tokens = faults::tokens(&[1, 2, 3]);
    let chunk = Chunk { seq: SeqId(2), base: Position(0), tokens, follows: None };
    stage.core.handle_frame(Frame::new(Work::Chunk(chunk)), Duration::ZERO);
    let done = under_way.execute(&mut stage.engine);
    stage.core.complete(done, &stage.engine, Duration::ZERO);
    let said: Vec<Output> = std::iter::from_fn(|| stage.core.poll_output()).collect();
    assert_eq!((verdicts(&said).len(), drafts(&said).len()), (1, 0), "its own");
    let said = call(&mut stage);
    assert_eq!((verdicts(&said).len(), drafts(&said).len()), (1, 0), "the other's");
    let said = call(&mut stage);
    assert_eq!((verdicts(&said).len(), drafts(&said).len()), (0, 2), "both in one call");
    assert_eq!(stage.engine.wishes.len(), 1);
    assert!(
        stage.core.next_call(Duration::ZERO).is_some_and(|call| call.spans().len() == 1),
        "and the prompt"
    );
}

#[test]
fn a_draft_waits_for_a_few_verdicts_of_others_at_most() {
    let mut stage = tail(2);
    let mut token = Token(1);
    let mut n_before = 0;
    stage.core.handle_frame(window(0, 0, 0, &[1], want(3)), Duration::ZERO);
    let mut said = call(&mut stage);
    // The other sequence's windows follow each other without a break.
    while drafts(&said).is_empty() {
        assert!(n_before <= 4, "{n_before}");
        stage.core.handle_frame(window(1, n_before, n_before, &[token.0], None), Duration::ZERO);
        said = call(&mut stage);
        if let [verdict] = verdicts(&said)[..] {
            token = verdict.tokens[0];
            n_before += 1;
        }
    }
    assert!(n_before >= 1, "{n_before}");
}

/// A window crosses each link once and brings one verdict, whether a draft is wanted or not; and the draft crosses none.
#[test]
fn a_draft_takes_no_frame_between_stages() {
    const STAGES: u32 = 3;
    for want_draft in [None, want(3)] {
        let toy = |index| Toy::new(index, STAGES, 1, 8, Rewind::Anywhere);
        let mut stages: Vec<Stage> = (0..STAGES)
            .map(|index| Stage::new(if index + 1 == STAGES { toy(index).that_drafts() } else { toy(index) }))
            .collect();
        let mut frames = vec![begin(0), window(0, 0, 0, &[1], want_draft)];
        for (index, stage) in stages.iter_mut().enumerate() {
            let said: Vec<Output> = frames.drain(..).flat_map(|frame| stage.hear(frame)).collect();
            let forwarded = said.iter().filter_map(|output| match output {
                Output::Forward(frame) => Some(frame.clone()),
                _ => None,
            });
            frames = forwarded.collect();
            let is_tail = index + 1 == STAGES as usize;
            assert_eq!(frames.len(), if is_tail { 0 } else { 2 }, "stage {index}");
            assert_eq!(verdicts(&said).len(), usize::from(is_tail), "stage {index}");
            let n_drafts = usize::from(is_tail && want_draft.is_some());
            assert_eq!(drafts(&said).len(), n_drafts, "stage {index}");
        }
    }
}
