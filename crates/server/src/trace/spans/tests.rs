//! Spans of requests whose journals are written by hand.

use std::time::Duration;

use protocol::{
    Chunk, Close, Company, Epoch, LayerRange, Open, Position, Progress, Report, SamplerParams, SeqId,
    StageTiming, Token, Verdict, Window, WindowId, Work,
};
use scheduler::{Finish, Timings};

use super::*;

const SEQ: SeqId = SeqId(1);
const N_STAGES: u32 = 3;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn line() -> Vec<StageSeen> {
    let stage = |at: u32| StageSeen {
        address: None,
        layers: LayerRange { start: at, end: at + 1 },
        is_local: at == 0,
        rtt: (at > 0).then(|| ms(2)),
    };
    (0..N_STAGES).map(stage).collect()
}

/// A journal in the making.
#[derive(Default)]
struct Diary(Journal);

impl Diary {
    fn open(mut self, now: u64) -> Self {
        let open = Open {
            seq: SEQ,
            start: Position(2),
            reuse: None,
            seed: 0,
            choice: 0,
            sampler: SamplerParams::default(),
            limit: Position(100),
            ignore_eos: false,
            top_logprobs: None,
            history: Vec::new(),
        };
        self.0.sent(&Work::Open(Box::new(open)), line, ms(now));
        self
    }

    fn chunk(mut self, base: u32, now: u64) -> Self {
        let chunk = Chunk { seq: SEQ, base: Position(base), tokens: vec![Token(1); 4] };
        self.0.sent(&Work::Chunk(chunk), Vec::new, ms(now));
        self
    }

    fn progress(mut self, next: u32, now: u64) -> Self {
        let progress = Progress { seq: SEQ, next: Position(next), timings: timings() };
        self.0.heard(&Report::Progress(progress), ms(now));
        self
    }

    fn window(mut self, number: u32, epoch: u32, now: u64) -> Self {
        let window = Window {
            seq: SEQ,
            epoch: Epoch(epoch),
            window: WindowId(number),
            base: Position(10),
            tokens: vec![Token(1); 2],
            run_ahead: false,
            want_draft: false,
        };
        self.0.sent(&Work::Window(window), Vec::new, ms(now));
        self
    }

    fn verdict(mut self, number: u32, now: u64) -> Self {
        let verdict = Verdict {
            seq: SEQ,
            epoch: Epoch(0),
            window: WindowId(number),
            base: Position(10),
            tokens: vec![Token(7)],
            ended: None,
            logprobs: Vec::new(),
            mu: None,
            timings: timings(),
            company: Company::Alone,
        };
        self.0.heard(&Report::Verdict(Box::new(verdict)), ms(now));
        self
    }

    fn close(mut self, now: u64) -> Self {
        self.0.sent(&Work::Close(Close { seq: SEQ, inputs: Position(1) }), Vec::new, ms(now));
        self
    }

    fn done(mut self, now: u64) -> Journal {
        let done = Event::Done { finish: Finish::Length, timings: Timings::default() };
        self.0.submitted = Some(ms(10));
        self.0.event(&done, ms(now));
        self.0
    }
}

/// 1 ms of waiting and 3 ms of computing in each stage.
fn timings() -> Vec<StageTiming> {
    vec![StageTiming { queue_us: 1000, compute_us: 3000, batch_rows: 2 }; N_STAGES as usize]
}

/// A request of 200 ms with these choices.
fn spans(journals: Vec<Journal>) -> Vec<Span> {
    let choices: Vec<Choice> =
        journals.into_iter().map(|journal| Choice { journal, finish: "length" }).collect();
    of(Whole {
        name: "POST /x".into(),
        took: ms(200),
        attributes: Vec::new(),
        failed: false,
        choices: &choices,
        at: &|_, moment| moment,
        first_id: 100,
    })
}

/// An outline: every span with its times in ms, inside what it is inside of.
fn outline(spans: &[Span]) -> String {
    let mut lines = String::new();
    for span in spans {
        let mut depth = 0;
        let mut parent = span.parent;
        while let Some(id) = parent {
            depth += 1;
            parent = spans.iter().find(|span| span.id == id).expect("a parent comes first").parent;
        }
        let place = match span.place {
            Place::Front => String::new(),
            Place::Stage(at) => format!(" @{at}"),
        };
        let (from, to) = (span.start.as_micros() as f64 / 1e3, span.end.as_micros() as f64 / 1e3);
        lines.push_str(&format!("{}{}{place} {from}-{to}\n", "  ".repeat(depth), span.name));
    }
    lines
}

fn plain() -> Journal {
    Diary::default()
        .open(30)
        .chunk(2, 30)
        .chunk(6, 31)
        .window(0, 0, 32)
        .progress(6, 60)
        .progress(10, 80)
        .verdict(0, 100)
        .window(1, 0, 100)
        .verdict(1, 130)
        .close(130)
        .done(130)
}

#[test]
fn a_request_is_laid_out_as_it_went() {
    insta::assert_snapshot!(outline(&spans(vec![plain()])), @r"");
}

#[test]
fn phases_make_up_the_whole_and_legs_make_up_what_came_round() {
    let spans = spans(vec![plain()]);
    let took = |name: &str| -> Duration {
        spans.iter().filter(|span| span.name == name).map(|span| span.end - span.start).sum()
    };
    assert_eq!(took("POST /x"), took("prepare") + took("generate") + took("deliver"));
    assert_eq!(took("generate"), took("queue") + took("prefill") + took("decode"));
    for piece in spans.iter().filter(|span| ["chunk", "window"].contains(&span.name.as_str())) {
        let legs = spans.iter().filter(|span| span.parent == Some(piece.id));
        let sum: Duration = legs.clone().map(|span| span.end - span.start).sum();
        assert_eq!(legs.count(), 2 * N_STAGES as usize, "a local first stage has no link");
        let whole = piece.end - piece.start;
        assert!(whole - sum < Duration::from_micros(1), "{whole:?} {sum:?}");
    }
    assert_eq!(took("compute"), 4 * N_STAGES * ms(3));
    assert!(spans.iter().enumerate().all(|(at, span)| span.id == 100 + at as u64));
}

#[test]
fn windows_that_ran_ahead_in_vain_end_where_the_front_knew() {
    let journal = Diary::default()
        .open(10)
        .window(0, 0, 10)
        .window(1, 0, 11)
        .window(2, 0, 12)
        .verdict(0, 50)
        .window(3, 1, 50)
        .verdict(3, 90)
        .window(4, 1, 90)
        .close(95)
        .done(95);
    insta::assert_snapshot!(outline(&spans(vec![journal])), @r"");
}

#[test]
fn an_interrupted_request_waits_and_stays_again() {
    let journal = Diary::default().open(20).window(0, 0, 20).verdict(0, 40).close(60);
    let journal = journal.open(100).window(0, 0, 100).verdict(0, 140).close(150).done(150);
    insta::assert_snapshot!(outline(&spans(vec![journal])), @r"");
}

#[test]
fn a_request_that_never_ran_only_waited() {
    let mut journal = Journal::default();
    journal.submitted = Some(ms(20));
    let waited = ms(100);
    journal.event(&Event::Failed(Failure::QueueTimeout { waited }), ms(120));
    let waiting = spans(vec![journal]);
    insta::assert_snapshot!(outline(&waiting), @r"");
    assert!(waiting[0].failed);
    assert_eq!(outline(&spans(vec![Journal::default()])), "POST /x 0-200\n  prepare 0-200\n");
}

#[test]
fn a_trace_is_bounded_and_says_what_it_leaves_out() {
    let mut diary = Diary::default().open(10);
    for number in 0..900 {
        diary = diary.window(number, 0, 20).verdict(number, 60);
    }
    let spans = spans(vec![diary.close(100).done(100)]);
    assert!(spans.len() < MAX_SPANS + 100, "{}", spans.len());
    let shown = spans.iter().filter(|span| span.name == "window").count();
    let left_out = spans[0].attributes.iter().find(|(name, _)| *name == "paceline.left_out");
    assert_eq!(left_out.unwrap().1, Value::Number(900 - shown as u64));
    assert_eq!(spans.last().unwrap().name, "deliver", "the frame is always there");
}
