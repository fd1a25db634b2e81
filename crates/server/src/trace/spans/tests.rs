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
            of_prompt: None,
            seq: SEQ,
            start: Position(2),
            reuse: None,
            held: None,
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
        let chunk = Chunk { seq: SEQ, base: Position(base), tokens: vec![Token(1); 4], follows: None };
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
            want_draft: None,
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
            drafts: false,
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
    insta::assert_snapshot!(outline(&spans(vec![plain()])), @r"
    POST /x 0-200
      prepare 0-10
      generate 10-130
        queue 10-30
        prefill 30-100
        decode 100-130
          chunk 30-60
            stage 0 @0 30-34
              compute @0 31-34
            link to stage 1 34-40
            stage 1 @1 40-44
              compute @1 41-44
            link to stage 2 44-50
            stage 2 @2 50-54
              compute @2 51-54
            link to front 54-60
          chunk 31-80
            stage 0 @0 31-35
              compute @0 32-35
            link to stage 1 35-47.333
            stage 1 @1 47.333-51.333
              compute @1 48.333-51.333
            link to stage 2 51.333-63.666
            stage 2 @2 63.666-67.666
              compute @2 64.666-67.666
            link to front 67.666-79.999
          window 32-100
            stage 0 @0 32-36
              compute @0 33-36
            link to stage 1 36-54.666
            stage 1 @1 54.666-58.666
              compute @1 55.666-58.666
            link to stage 2 58.666-77.333
            stage 2 @2 77.333-81.333
              compute @2 78.333-81.333
            link to front 81.333-100
          window 100-130
            stage 0 @0 100-104
              compute @0 101-104
            link to stage 1 104-110
            stage 1 @1 110-114
              compute @1 111-114
            link to stage 2 114-120
            stage 2 @2 120-124
              compute @2 121-124
            link to front 124-130
      deliver 130-200
    ");
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
    insta::assert_snapshot!(outline(&spans(vec![journal])), @r"
    POST /x 0-200
      prepare 0-10
      generate 10-95
        queue 10-10
        prefill 10-50
        decode 50-95
          window 10-50
            stage 0 @0 10-14
              compute @0 11-14
            link to stage 1 14-23.333
            stage 1 @1 23.333-27.333
              compute @1 24.333-27.333
            link to stage 2 27.333-36.666
            stage 2 @2 36.666-40.666
              compute @2 37.666-40.666
            link to front 40.666-49.999
          window 11-50
          window 12-50
          window 50-90
            stage 0 @0 50-54
              compute @0 51-54
            link to stage 1 54-63.333
            stage 1 @1 63.333-67.333
              compute @1 64.333-67.333
            link to stage 2 67.333-76.666
            stage 2 @2 76.666-80.666
              compute @2 77.666-80.666
            link to front 80.666-89.999
          window 90-95
      deliver 95-200
    ");
}

#[test]
fn an_interrupted_request_waits_and_stays_again() {
    let journal = Diary::default().open(20).window(0, 0, 20).verdict(0, 40).close(60);
    let journal = journal.open(100).window(0, 0, 100).verdict(0, 140).close(150).done(150);
    insta::assert_snapshot!(outline(&spans(vec![journal])), @r"
    POST /x 0-200
      prepare 0-10
      generate 10-150
        queue 10-20
        prefill 20-40
        decode 40-60
          window 20-40
            stage 0 @0 20-24
              compute @0 21-24
            link to stage 1 24-26.666
            stage 1 @1 26.666-30.666
              compute @1 27.666-30.666
            link to stage 2 30.666-33.333
            stage 2 @2 33.333-37.333
              compute @2 34.333-37.333
            link to front 37.333-40
        queue 60-100
        prefill 100-140
        decode 140-150
          window 100-140
            stage 0 @0 100-104
              compute @0 101-104
            link to stage 1 104-113.333
            stage 1 @1 113.333-117.333
              compute @1 114.333-117.333
            link to stage 2 117.333-126.666
            stage 2 @2 126.666-130.666
              compute @2 127.666-130.666
            link to front 130.666-139.999
      deliver 150-200
    ");
}

#[test]
fn a_request_that_never_ran_only_waited() {
    let mut journal = Journal::default();
    journal.submitted = Some(ms(20));
    let waited = ms(100);
    journal.event(&Event::Failed(Failure::QueueTimeout { waited }), ms(120));
    let waiting = spans(vec![journal]);
    insta::assert_snapshot!(outline(&waiting), @r"
    POST /x 0-200
      prepare 0-20
      generate 20-120
        queue 20-120
      deliver 120-200
    ");
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
