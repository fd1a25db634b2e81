//! The engine thread over real threads. Every wait is for an event, with a deadline.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use protocol::{
    Chunk, Close, Epoch, Fault, FaultKind, Frame, Hint, Open, Position, Report, RowDtype, SeqId, Token,
    Window, WindowId, Work,
};
use stage::null::{CallTime, NullEngine};
use stage::{
    Cancel, Config, Engine, EngineError, EngineShape, EngineThread, Handle, INBOX_FRAMES, Input, Refused,
    Sampler, Sink, Slot, Span,
};

use crate::toy::open;

/// Long beside what anything here takes, even on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);
const SEQ: SeqId = SeqId(1);

struct Ends {
    next: Option<Handle>,
    reports: Sender<Report>,
    counters: Sender<Report>,
}

impl Sink for Ends {
    fn forward(&self, frame: Frame) {
        if let Some(next) = &self.next {
            next.frame(frame).expect("the next stage takes it");
        }
    }

    fn report(&self, report: Report) {
        let to = if matches!(report, Report::Counters(_)) { &self.counters } else { &self.reports };
        // The test may have ended already, or not listen.
        let _ = to.send(report);
    }
}

fn spawn(
    engine: impl Engine + 'static,
    dtype: RowDtype,
    next: Option<Handle>,
) -> (EngineThread, Receiver<Report>) {
    let (reports, heard) = channel();
    let sink = Box::new(Ends { next, reports, counters: channel().0 });
    let config = Config { row_dtype: dtype, prefix_bytes: 1 << 20, has_store: false };
    (EngineThread::spawn("engine", Box::new(engine), None, config, sink, None).expect("a thread"), heard)
}

fn null_line(n_stages: u32, dtype: RowDtype) -> (Vec<EngineThread>, Receiver<Report>) {
    let mut threads: Vec<EngineThread> = Vec::new();
    let mut reports = None;
    for index in (0..n_stages).rev() {
        let engine = NullEngine::new(NullEngine::shape(index, n_stages, 8, 4), CallTime::default());
        let (thread, heard) = spawn(engine, dtype, threads.last().map(EngineThread::handle));
        threads.push(thread);
        reports.get_or_insert(heard);
    }
    threads.reverse();
    (threads, reports.expect("at least one stage"))
}

fn window(base: u32, token: Token) -> Frame {
    Frame::new(Work::Window(Window {
        seq: SEQ,
        epoch: Epoch(0),
        window: WindowId(base),
        base: Position(base),
        tokens: vec![token],
        run_ahead: false,
        want_draft: None,
    }))
}

fn close() -> Frame {
    Frame::new(Work::Close(Close { seq: SEQ, inputs: Position(0) }))
}

fn begin(limit: u32) -> Frame {
    Frame::new(Work::Open(Box::new(Open { limit: Position(limit), ..open(SEQ.0) })))
}

/// Decodes plainly from the prompt `5 6 7` and returns the text.
fn decode(line: &Handle, reports: &Receiver<Report>, limit: u32) -> Vec<Token> {
    let tokens = vec![Token(5), Token(6)];
    let chunk = Work::Chunk(Chunk { seq: SEQ, base: Position(0), tokens, follows: None });
    for frame in [begin(limit), Frame::new(chunk), window(2, Token(7))] {
        line.frame(frame).expect("the line takes it");
    }
    let mut text = Vec::new();
    loop {
        match reports.recv_timeout(DEADLINE).expect("a report in time") {
            Report::Verdict(verdict) => {
                text.extend(&verdict.tokens);
                let close = Work::Close(Close { seq: SEQ, inputs: Position(0) });
                let next = match verdict.ended {
                    Some(_) => Frame::new(close),
                    None => window(verdict.base.0 + 1, verdict.tokens[0]),
                };
                line.frame(next).expect("the line takes it");
            }
            Report::Progress(progress) => assert_eq!(progress.next, Position(2)),
            Report::Closed(_) => return text,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lines_of_any_length_decode_the_same_text() {
    let mut expected = Vec::new();
    let mut token = Token(7);
    for position in 2..49 {
        token = NullEngine::successor(Position(position), token, 256);
        expected.push(token);
    }
    for n_stages in [1, 2, 3] {
        let (threads, reports) = null_line(n_stages, RowDtype::F32);
        assert_eq!(decode(&threads[0].handle(), &reports, 50), expected, "{n_stages} stages");
        for thread in &threads {
            let stats = thread.handle().stats();
            assert_eq!((stats.windows, stats.chunks, stats.faults), (47, 1, 0));
        }
    }
}

#[test]
fn counters_are_told_when_the_last_sequence_has_ended_and_not_again() {
    let ((reports, verdicts), (counters, heard)) = (channel(), channel());
    let engine = NullEngine::new(NullEngine::shape(0, 1, 8, 4), CallTime::default());
    let sink = Box::new(Ends { next: None, reports, counters });
    let config = Config { row_dtype: RowDtype::F32, prefix_bytes: 0, has_store: false };
    let thread = EngineThread::spawn("engine", Box::new(engine), None, config, sink, None).expect("a thread");
    for _ in 0..2 {
        decode(&thread.handle(), &verdicts, 50);
    }
    let last = thread.handle();
    let mut told = Vec::new();
    // A hint of an unknown sequence wakes the thread, which has nothing to add.
    last.hint(Hint::Drop { seq: SeqId(99) });
    while told.last() != Some(&94) {
        let Ok(Report::Counters(counters)) = heard.recv_timeout(DEADLINE) else { panic!("no counters") };
        told.push(counters.windows);
    }
    drop(thread);
    assert_eq!(heard.iter().count(), 0, "nothing new");
    assert!(told.is_sorted() && told.contains(&47), "{told:?}");
}

#[test]
fn every_row_dtype_passes_through_the_line() {
    for dtype in [RowDtype::F16, RowDtype::Bf16, RowDtype::Q8] {
        let (threads, reports) = null_line(2, dtype);
        assert_eq!(decode(&threads[0].handle(), &reports, 20).len(), 17, "{dtype:?}");
    }
}

#[test]
fn a_null_engine_takes_the_time_that_it_is_told() {
    let time = CallTime { per_call: Duration::from_millis(3), per_row: Duration::from_millis(1) };
    let (thread, reports) = spawn(NullEngine::new(NullEngine::shape(0, 1, 8, 1), time), RowDtype::F32, None);
    for frame in [begin(2), window(0, Token(1))] {
        thread.handle().frame(frame).expect("the line takes it");
    }
    let report = reports.recv_timeout(DEADLINE).expect("a verdict in time");
    let Report::Verdict(verdict) = report else { panic!("{report:?}") };
    assert!(verdict.timings[0].compute_us >= 4000, "{:?}", verdict.timings);
}

/// An engine whose calls wait to be let through, and which then fails in the way it is told. While it waits it looks
/// whether it was stopped.
struct Gate {
    inner: NullEngine,
    entered: Sender<()>,
    pass: Receiver<&'static str>,
    cancel: Cancel,
    heeds: bool,
    was_cancelled: bool,
}

/// How often a waiting engine looks up: as often as a real one, between two operators.
const LOOKS_UP: Duration = Duration::from_millis(1);

impl Engine for Gate {
    fn shape(&self) -> &EngineShape {
        self.inner.shape()
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        let _ = self.entered.send(());
        self.was_cancelled = false;
        let looks = DEADLINE.as_millis() / LOOKS_UP.as_millis();
        for _ in 0..looks {
            match self.pass.recv_timeout(LOOKS_UP) {
                Ok("") => return self.inner.run(spans, input, out),
                Ok(words) => panic!("{words}"),
                Err(_) if self.heeds && self.cancel.is_raised() => {
                    self.was_cancelled = true;
                    return Err(EngineError { reason: "stopped".into() });
                }
                Err(_) => {}
            }
        }
        panic!("the test does not let it through");
    }

    fn heed(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    fn was_cancelled(&self) -> bool {
        self.was_cancelled
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.inner.logits(row)
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        self.inner.truncate(slot, len)
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        self.inner.sampler(open)
    }
}

struct Gated {
    thread: EngineThread,
    reports: Receiver<Report>,
    entered: Receiver<()>,
    pass: Sender<&'static str>,
}

/// A thread whose engine is inside its first call, which it does not stop.
fn gated() -> Gated {
    in_first_call(false, NullEngine::shape(0, 1, 8, 4), window(0, Token(1)))
}

/// A thread whose engine is inside its first call.
fn in_first_call(heeds: bool, shape: EngineShape, frame: Frame) -> Gated {
    let (entered_sender, entered) = channel();
    let (pass, gate) = channel();
    let inner = NullEngine::new(shape, CallTime::default());
    let cancel = Cancel::default();
    let gate = Gate { inner, entered: entered_sender, pass: gate, cancel, heeds, was_cancelled: false };
    let (thread, reports) = spawn(gate, RowDtype::F32, None);
    for frame in [begin(1000), frame] {
        thread.handle().frame(frame).expect("the line takes it");
    }
    entered.recv_timeout(DEADLINE).expect("the engine is called");
    Gated { thread, reports, entered, pass }
}

#[test]
fn a_full_inbox_refuses_and_never_waits() {
    let Gated { thread, reports, pass, .. } = gated();
    let handle = thread.handle();
    let stale = || window(7, Token(1));
    let room = INBOX_FRAMES - handle.load().frames;
    for _ in 0..room {
        handle.frame(stale()).expect("there is room");
    }
    let refused = handle.frame(stale()).expect_err("the inbox is full");
    assert!(matches!(refused, Refused::Full { frames: INBOX_FRAMES, .. }), "{refused}");
    // Once the engine has moved on there is room again.
    pass.send("").expect("the gate is open");
    let report = reports.recv_timeout(DEADLINE).expect("a verdict in time");
    assert!(matches!(report, Report::Verdict(_)), "{report:?}");
    let report = reports.recv_timeout(DEADLINE).expect("a fault in time");
    assert!(matches!(&report, Report::Fault(Fault { kind: FaultKind::Diverged { .. }, .. })), "{report:?}");
    handle.frame(Frame::new(Work::Close(Close { seq: SEQ, inputs: Position(0) }))).expect("there is room");
    assert_eq!(reports.recv_timeout(DEADLINE), Ok(Report::Closed(SEQ)));
}

#[test]
fn hints_are_heard_during_a_call() {
    let Gated { thread, reports, pass, .. } = gated();
    let handle = thread.handle();
    handle.hint(Hint::Advance { seq: SEQ, epoch: Epoch(3) });
    handle.hint(Hint::Drop { seq: SEQ });
    handle.frame(window(1, Token(1))).expect("there is room");
    pass.send("").expect("the gate is open");
    // The call was under way and is answered; the window behind it is passed over.
    let report = reports.recv_timeout(DEADLINE).expect("a verdict in time");
    assert!(matches!(report, Report::Verdict(_)), "{report:?}");
    handle.frame(close()).expect("there is room");
    assert_eq!(reports.recv_timeout(DEADLINE), Ok(Report::Closed(SEQ)));
}

/// The engine is let through by nobody: the word ends its call, and what was there before it stays.
#[test]
fn an_ended_thread_stops_its_call_and_leaves_what_was_computed_to_the_next_one() {
    let chunk = |base: u32, n: usize| {
        let tokens = vec![Token(1); n];
        Frame::new(Work::Chunk(Chunk { seq: SEQ, base: Position(base), tokens, follows: None }))
    };
    let Gated { thread, reports, entered, pass } =
        in_first_call(true, NullEngine::shape(0, 1, 8, 4), chunk(0, 20));
    pass.send("").expect("the gate is open");
    let report = reports.recv_timeout(DEADLINE).expect("progress in time");
    assert!(matches!(&report, Report::Progress(progress) if progress.next == Position(20)), "{report:?}");
    thread.handle().frame(chunk(20, 20)).expect("there is room");
    entered.recv_timeout(DEADLINE).expect("the engine is called");
    let (engine, kept) = thread.join().expect("it has not panicked");
    let (reports, heard) = channel();
    let sink = Box::new(Ends { next: None, reports, counters: channel().0 });
    let config = Config { row_dtype: RowDtype::F32, prefix_bytes: 0, has_store: false };
    let thread = EngineThread::spawn("engine", engine, Some(kept), config, sink, None).expect("a thread");
    for (seq, start) in [(SeqId(50), 20), (SeqId(51), 21)] {
        let reuse = Some(protocol::Reuse { prefix: SEQ, keep: true, stored: None });
        let Work::Open(open) = begin(1000).work else { unreachable!("it is an open") };
        let history = vec![Token(1); start];
        let open = Open { seq, start: Position(start as u32), reuse, history, ..*open };
        thread.handle().frame(Frame::new(Work::Open(Box::new(open)))).expect("there is room");
    }
    let lost = Fault { seq: Some(SeqId(51)), kind: FaultKind::PrefixLost { prefix: SEQ } };
    assert_eq!(heard.recv_timeout(DEADLINE), Ok(Report::Fault(lost)), "the second chunk was stopped");
}

/// What ends the interest in a call.
type Stop = fn(&Handle);

#[test]
fn a_call_that_nobody_wants_is_stopped_and_the_slot_is_as_before() {
    let prompt = |tokens: Vec<Token>| {
        Frame::new(Work::Chunk(Chunk { seq: SEQ, base: Position(0), tokens, follows: None }))
    };
    let stops: [(&str, Stop); 2] = [
        ("a hint", |handle| handle.hint(Hint::Drop { seq: SEQ })),
        ("its end", |handle| handle.frame(close()).expect("there is room")),
    ];
    for (why, stop) in stops {
        let Gated { thread, reports, entered, pass } =
            in_first_call(true, NullEngine::shape(0, 1, 8, 4), prompt(vec![Token(1); 64]));
        let handle = thread.handle();
        // The engine is let through by nobody: only the word ends its call.
        stop(&handle);
        handle.frame(close()).expect("there is room");
        assert_eq!(reports.recv_timeout(DEADLINE), Ok(Report::Closed(SEQ)), "{why}");
        for frame in [begin(1000), window(0, Token(1))] {
            handle.frame(frame).expect("there is room");
        }
        entered.recv_timeout(DEADLINE).expect("the engine is called again");
        pass.send("").expect("the gate is open");
        let verdict = loop {
            match reports.recv_timeout(DEADLINE).expect("a verdict in time") {
                Report::Closed(SEQ) => {}
                report => break report,
            }
        };
        assert!(matches!(verdict, Report::Verdict(_)), "{why}: {verdict:?}");
        assert_eq!(handle.stats().faults, 0, "{why}");
    }
}

#[test]
fn what_waits_behind_a_stopped_call_is_stale_with_it() {
    let first_of_two = NullEngine::shape(0, 2, 8, 4);
    let Gated { thread, entered, pass, .. } = in_first_call(true, first_of_two, window(0, Token(1)));
    let handle = thread.handle();
    for at in 1..4 {
        handle.frame(window(at, Token(2))).expect("there is room");
    }
    handle.hint(Hint::Advance { seq: SEQ, epoch: Epoch(1) });
    let Work::Window(newer) = window(0, Token(3)).work else { unreachable!("it is a window") };
    handle.frame(Frame::new(Work::Window(Window { epoch: Epoch(1), ..newer }))).expect("there is room");
    entered.recv_timeout(DEADLINE).expect("the engine is called for the newer window");
    assert_eq!((handle.stats().faults, handle.stats().stale_windows), (0, 3));
    pass.send("").expect("the gate is open");
}

#[test]
fn a_call_goes_on_while_anybody_wants_part_of_it() {
    let (first_of_two, second_window) = (NullEngine::shape(0, 2, 8, 4), window(1, Token(2)));
    let Gated { thread, entered, pass, .. } = in_first_call(true, first_of_two, window(0, Token(1)));
    let handle = thread.handle();
    // News of others, and of this sequence's own epoch, stop nothing.
    handle.hint(Hint::Drop { seq: SeqId(7) });
    handle.hint(Hint::Advance { seq: SEQ, epoch: Epoch(0) });
    handle.frame(second_window).expect("there is room");
    pass.send("").expect("the gate is open");
    entered.recv_timeout(DEADLINE).expect("the engine is called for the second window");
    assert_eq!((handle.stats().windows, handle.stats().wasted_rows), (1, 0));
    // A newer epoch does.
    let Work::Window(newer) = window(1, Token(3)).work else { unreachable!("it is a window") };
    handle.frame(Frame::new(Work::Window(Window { epoch: Epoch(1), ..newer }))).expect("there is room");
    entered.recv_timeout(DEADLINE).expect("the engine is called for the newer window");
    assert_eq!((handle.stats().windows, handle.stats().wasted_rows), (2, 1));
    pass.send("").expect("the gate is open");
}

#[test]
fn a_panic_of_the_engine_is_a_report_and_the_thread_ends() {
    let Gated { thread, reports, pass, .. } = gated();
    pass.send("an assertion in the back end").expect("the gate is open");
    let reason = "the engine thread panicked: an assertion in the back end".into();
    let fault = Fault { seq: None, kind: FaultKind::Engine { reason } };
    assert_eq!(reports.recv_timeout(DEADLINE), Ok(Report::Fault(fault)));
    assert_eq!(thread.handle().frame(begin(9)), Err(Refused::Stopped));
}

#[test]
fn dropping_the_thread_waits_for_its_end() {
    let Gated { thread, reports, pass, .. } = gated();
    let handle = thread.handle();
    handle.stop();
    pass.send("").expect("the gate is open");
    drop(thread);
    // The sink went with the thread: nothing can be said any more.
    while reports.recv_timeout(DEADLINE).is_ok() {}
    assert_eq!(handle.frame(begin(9)), Err(Refused::Stopped));
}
