//! Stages behind one that was lost: what they hold is not computed again, and what is said is what would have been said.

use protocol::{Chunk, FaultKind, Frame, Held, Open, Position, Report, SeqId, StageTiming, Token, Work};
use stage::{Output, Rewind};

use crate::kept::lose_line;
use crate::line::Stage;
use crate::prefixes::{A, B, C, begin, frame, is_lost, park, prompt, rows, window};
use crate::toy::{Toy, reference};

const N_STAGES: u32 = 3;

/// Stages one behind another.
struct Line(Vec<Stage>);

impl Line {
    fn new() -> Self {
        Self((0..N_STAGES).map(Self::stage).collect())
    }

    fn stage(index: u32) -> Stage {
        Stage::new(Toy::new(index, N_STAGES, 2, 32, Rewind::Anywhere))
    }

    /// A frame's way from stage to stage: as each hears it, and what is reported.
    fn send(&mut self, frame: Frame) -> (Vec<Frame>, Vec<Report>) {
        let mut heard = Vec::new();
        let mut reports = Vec::new();
        let mut on_its_way = Some(frame);
        for stage in &mut self.0 {
            let Some(frame) = on_its_way.take() else { break };
            heard.push(frame.clone());
            for output in stage.hear(frame) {
                match output {
                    Output::Forward(frame) => assert_eq!(on_its_way.replace(frame), None),
                    Output::Report(report) => reports.push(report),
                    Output::Store(work) => panic!("there is no store: {work:?}"),
                }
            }
        }
        (heard, reports)
    }

    /// A sequence that has said two tokens; its text.
    fn talk(&mut self, seq: SeqId) -> Vec<Token> {
        let text = prompt(&[3, 1, 4, 1, 5, 9, 2, 6]);
        self.send(begin(seq, &text, None));
        let last = text.len() - 1;
        self.send(chunk(seq, &text, 0..last));
        let said = self.say(seq, last, text[last], 2);
        [text, said].concat()
    }

    /// So many tokens behind the one at `last`.
    fn say(&mut self, seq: SeqId, last: usize, token: Token, n: usize) -> Vec<Token> {
        let mut said = vec![token];
        while said.len() <= n {
            let (_, reports) = self.send(window(seq, last + said.len() - 1, said[said.len() - 1]));
            let [Report::Verdict(verdict)] = &reports[..] else { panic!("{reports:?}") };
            said.extend(&verdict.tokens);
        }
        said.split_off(1)
    }

    /// The line is lost, and the first of its stages with all that they held.
    fn lose(&mut self, lost_by: usize) {
        for (index, stage) in self.0.iter_mut().enumerate() {
            if index < lost_by {
                *stage = Self::stage(index as u32);
            } else {
                lose_line(stage);
                rows(stage);
            }
        }
    }
}

fn chunk(seq: SeqId, text: &[Token], at: std::ops::Range<usize>) -> Frame {
    let base = Position(at.start as u32);
    frame(Work::Chunk(Chunk { seq, base, tokens: text[at].to_vec(), follows: None }))
}

fn begin_held(seq: SeqId, text: &[Token], prefix: SeqId, len: usize, lost_by: u16) -> Frame {
    let Work::Open(open) = begin(seq, text, None).work else { unreachable!("an open") };
    let held = Some(Held { prefix, len: Position(len as u32), lost_by });
    frame(Work::Open(Box::new(Open { held, ..*open })))
}

#[test]
fn only_the_stages_up_to_the_last_that_was_lost_compute_again_and_only_they_get_rows() {
    for lost_by in [1, 2] {
        let mut line = Line::new();
        let text = line.talk(A);
        line.lose(lost_by);
        // What the last token may follow is certain; it is held to the last but one.
        let len = text.len() - 2;
        let (opens, reports) = line.send(begin_held(B, &text, A, len, lost_by as u16));
        assert_eq!((opens.len(), reports.len()), (3, 0));
        for at in [0..3, 3..len] {
            let next = Position(at.end as u32);
            let (heard, reports) = line.send(chunk(B, &text, at));
            let gets_rows: Vec<_> = heard.iter().map(|frame| frame.rows.is_some()).collect();
            assert_eq!(gets_rows, [false, lost_by > 1, false], "the front sends none either");
            let [Report::Progress(progress)] = &reports[..] else { panic!("{reports:?}") };
            assert_eq!(progress.next, next);
            let computed: Vec<_> = progress.timings.iter().map(|timing| timing.batch_rows > 0).collect();
            assert_eq!(computed, [true, lost_by > 1, false]);
            assert_eq!(progress.timings[2], StageTiming::default());
        }
        let (heard, _) = line.send(chunk(B, &text, len..len + 1));
        assert!(heard[1].rows.is_some() && heard[2].rows.is_some(), "nobody holds that");
        let said = line.say(B, text.len() - 1, text[text.len() - 1], 4);
        assert_eq!(said, reference(&text, B.0, Position(text.len() as u32 + 4), true));
        let held_chunks: Vec<_> = line.0.iter().map(|stage| stage.core.stats().held_chunks).collect();
        assert_eq!(held_chunks, [0, if lost_by > 1 { 0 } else { 2 }, 2]);
        let computed: Vec<_> = line.0.iter_mut().map(rows).collect();
        let held = |n: usize| n + 4;
        let all = held(text.len() - 1);
        assert_eq!(computed, [all, if lost_by > 1 { all } else { held(1) }, held(1)]);
    }
}

/// The whole text is here again: the next one begins with it on every stage.
#[test]
fn what_was_held_in_part_is_whole_afterwards() {
    let mut line = Line::new();
    let text = line.talk(A);
    line.lose(1);
    let len = text.len() - 1;
    line.send(begin_held(B, &text, A, len, 1));
    line.send(chunk(B, &text, 0..len));
    line.send(park(B, len));
    line.0.iter_mut().for_each(|stage| stage.engine.calls.clear());
    line.send(begin(C, &text, Some((B, len, false))));
    let said = line.say(C, len, text[len], 4);
    assert_eq!(said, reference(&text, C.0, Position(text.len() as u32 + 4), true));
    assert_eq!(line.0.iter_mut().map(rows).collect::<Vec<_>>(), [4, 4, 4]);
}

#[test]
fn who_does_not_hold_it_after_all_says_so() {
    let mut line = Line::new();
    let text = line.talk(A);
    line.lose(2);
    let (heard, reports) = line.send(begin_held(B, &text, A, text.len() - 1, 1));
    assert_eq!(heard.len(), 2);
    assert!(is_lost(&[Output::Report(reports[0].clone())], B, A), "{reports:?}");
    // More than it was: the tail has seen no more than these.
    let mut line = Line::new();
    let text = line.talk(A);
    line.lose(1);
    let (_, reports) = line.send(begin_held(B, &text, A, text.len(), 1));
    assert!(is_lost(&[Output::Report(reports[0].clone())], B, A), "{reports:?}");
}

#[test]
fn a_chunk_lies_within_what_is_held_or_behind_it() {
    let mut line = Line::new();
    let text = line.talk(A);
    line.lose(1);
    line.send(begin_held(B, &text, A, 5, 1));
    line.send(chunk(B, &text, 0..3));
    let (_, reports) = line.send(chunk(B, &text, 3..7));
    let [Report::Fault(fault)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(fault.kind, FaultKind::Rewind { base: Position(3), oldest: Position(5) });
}
