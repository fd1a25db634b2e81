//! What each state of a sequence makes of each input, as a table: on a stage that passes rows on, and on a tail.

use std::fmt::Write as _;
use std::time::Duration;

use protocol::{Epoch, Frame, Hint, Open, Position, Report, SeqId, Work};
use stage::{Output, Rewind};

use crate::faults::{begin, chunk, close, park, window};
use crate::line::Stage;
use crate::toy::{Toy, open, reference};

const SEQ: SeqId = SeqId(1);

#[derive(Clone)]
enum Input {
    Frame(Frame),
    Hint(Hint),
}

/// The prompt `1 1`, then what the toy says to it.
fn truth() -> Vec<i32> {
    let prompt = [protocol::Token(1); 2];
    reference(&prompt, 1, Position(8), true).iter().map(|token| token.0).collect()
}

/// A short name and the frames that lead there. The prompt is `1 1`; the window `[1, t, x]` commits `t` and the
/// correction of `x`.
fn states() -> Vec<(&'static str, Vec<Input>)> {
    let wrong = (truth()[1] + 1) % 16;
    let generating = || vec![begin(1), chunk(0, 1), window(0, 1, &[1, truth()[0], wrong])];
    let frames = |frames: Vec<Frame>| frames.into_iter().map(Input::Frame).collect::<Vec<_>>();
    let ended = Open { limit: Position(3), ..open(1) };
    let ended = Frame::new(Work::Open(Box::new(ended)));
    let mut given_up = frames(generating());
    given_up.push(Input::Hint(Hint::Drop { seq: SEQ }));
    vec![
        ("unknown", frames(vec![])),
        ("waiting for a slot", frames(vec![begin(8), begin(9), begin(1)])),
        ("open", frames(vec![begin(1)])),
        ("prompt", frames(vec![begin(1), chunk(0, 1)])),
        ("generating, corrected", frames(generating())),
        ("ended", frames(vec![ended, chunk(0, 1), window(0, 1, &[1])])),
        ("given up", given_up),
        ("poisoned", frames(vec![begin(1), chunk(5, 1)])),
    ]
}

fn inputs() -> Vec<(&'static str, Input)> {
    let held = truth()[1];
    vec![
        ("open", Input::Frame(begin(1))),
        ("chunk at 0", Input::Frame(chunk(0, 1))),
        ("chunk at 1", Input::Frame(chunk(1, 1))),
        ("window 0 at 1", Input::Frame(window(0, 1, &[1]))),
        ("window 0 at 4", Input::Frame(window(0, 4, &[1]))),
        ("window 1 at 3, right", Input::Frame(window(1, 3, &[held]))),
        ("window 1 at 3, wrong", Input::Frame(window(1, 3, &[(held + 1) % 16]))),
        ("park", Input::Frame(park())),
        ("advance 2", Input::Hint(Hint::Advance { seq: SEQ, epoch: Epoch(2) })),
        ("drop", Input::Hint(Hint::Drop { seq: SEQ })),
        ("close", Input::Frame(close(SEQ))),
    ]
}

fn feed(stage: &mut Stage, input: Input) -> Vec<Output> {
    match input {
        Input::Frame(frame) => stage.core.handle_frame(frame, Duration::ZERO),
        Input::Hint(hint) => stage.core.handle_hint(hint),
    }
    stage.settle()
}

fn describe(output: &Output) -> String {
    match output {
        Output::Forward(frame) => {
            let name = match &frame.work {
                Work::Open(_) => "open",
                Work::Chunk(_) => "chunk",
                Work::Window(_) => "window",
                Work::Park(_) => "park",
                Work::Close(_) => "close",
            };
            format!("pass on {name}")
        }
        Output::Report(Report::Verdict(verdict)) => {
            let end = verdict.ended.map_or(String::new(), |end| format!(", {end:?}"));
            format!("verdict of {} at {}{end}", verdict.tokens.len(), verdict.base)
        }
        Output::Report(Report::Progress(progress)) => format!("progress to {}", progress.next),
        Output::Report(Report::Closed(_)) => "closed".into(),
        Output::Report(Report::Fault(fault)) => format!("FAULT {}", fault.kind),
        other => panic!("{other:?}"),
    }
}

fn table(stage: impl Fn() -> Stage) -> String {
    let mut table = String::new();
    for (state, before) in states() {
        let _ = writeln!(table, "{state}");
        for (name, input) in inputs() {
            let mut stage = stage();
            for input in &before {
                feed(&mut stage, input.clone());
            }
            let passed = |stage: &Stage| {
                let stats = stage.core.stats();
                (stats.stale_windows, stats.passed_over)
            };
            let (stale, over) = passed(&stage);
            let waiting = stage.core.load().frames;
            let said = feed(&mut stage, input);
            let mut words: Vec<String> = said.iter().map(describe).collect();
            if passed(&stage).0 > stale {
                words.push("drop as stale".into());
            }
            if passed(&stage).1 > over {
                words.push(format!("pass over {}", passed(&stage).1 - over));
            }
            if stage.core.load().frames > waiting {
                words.push("keep".into());
            }
            let words = if words.is_empty() { "-".into() } else { words.join("; ") };
            let _ = writeln!(table, "    {name:22} {words}");
        }
    }
    table
}

#[test]
fn states_and_inputs_on_a_stage_that_passes_rows_on() {
    insta::assert_snapshot!(table(|| Stage::new(Toy::new(0, 2, 2, 8, Rewind::Anywhere))));
}

#[test]
fn states_and_inputs_on_a_tail() {
    insta::assert_snapshot!(table(|| Stage::new(Toy::new(0, 1, 2, 8, Rewind::Anywhere))));
}
