//! What the codec promises: every message survives, nothing else is accepted, and no bytes do harm.

use std::fmt::Debug;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::files;
use super::seeds::{self, Kinds};
use super::strategies::{frame, hello, reply, to_front, to_stage};
use super::{DecodeError, Wire};
use crate::{
    Chunk, Close, Epoch, Fault, FaultKind, Found, Frame, Generation, Grammar, GrammarKind, Held, Hello,
    HelloReply, HiddenRows, LinkRole, OfPrompt, Open, PROTOCOL_VERSION, PeerIndex, Position, PromptPart,
    RefuseReason, Report, RowDtype, Rows, SamplerParams, SeqId, StageTiming, ToFront, ToStage, Token,
    TokenLogprobs, Window, WindowId, Work, limits,
};

fn bytes_of<T: Wire>(value: &T) -> Bytes {
    let mut out = Vec::new();
    value.encode(&mut out);
    out.into()
}

/// The value comes back, no shorter message is accepted, no longer one either.
fn survives<T: Wire + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let bytes = bytes_of(value);
    let decoded = T::decode(&bytes);
    prop_assert_eq!(decoded.as_ref(), Ok(value));
    for len in 0..bytes.len() {
        prop_assert!(T::decode(&bytes.slice(..len)).is_err(), "accepted when cut to {} bytes", len);
    }
    let longer: Bytes = [&bytes[..], &[0]].concat().into();
    prop_assert!(T::decode(&longer).is_err());
    Ok(())
}

proptest! {
    #[test]
    fn frames_survive(value in frame()) {
        survives(&value)?;
    }

    #[test]
    fn messages_to_stages_survive(value in to_stage()) {
        survives(&value)?;
    }

    #[test]
    fn messages_to_the_front_survive(value in to_front()) {
        survives(&value)?;
    }

    #[test]
    fn hellos_survive(value in hello()) {
        survives(&value)?;
    }

    #[test]
    fn replies_survive(value in reply()) {
        survives(&value)?;
    }

    #[test]
    fn parts_of_a_frame_are_its_bytes(value in frame()) {
        let (head, body) = value.encode_parts();
        prop_assert_eq!([head, body].concat(), bytes_of(&value));
    }
}

fn window(base: u32, tokens: &[i32]) -> Window {
    Window {
        seq: SeqId(7),
        epoch: Epoch(1),
        window: WindowId(2),
        base: Position(base),
        tokens: tokens.iter().map(|&t| Token(t)).collect(),
        run_ahead: false,
        want_draft: None,
    }
}

fn open() -> Open {
    Open {
        seq: SeqId(7),
        start: Position(0),
        reuse: None,
        held: None,
        seed: 1,
        choice: 0,
        sampler: SamplerParams::default(),
        limit: Position(10),
        ignore_eos: false,
        top_logprobs: None,
        of_prompt: None,
        history: Vec::new(),
    }
}

fn refusal<T: Wire + Debug>(value: &T) -> DecodeError {
    T::decode(&bytes_of(value)).unwrap_err()
}

fn refused_window(window: Window) -> DecodeError {
    refusal(&Frame::new(Work::Window(window)))
}

fn refused_open(change: impl FnOnce(&mut Open)) -> DecodeError {
    let mut open = open();
    change(&mut open);
    refusal(&Frame::new(Work::Open(Box::new(open))))
}

#[test]
fn rows_are_neither_copied_out_nor_in() {
    let rows = Rows::pack(RowDtype::F32, 4, &[1.5; 8]).unwrap();
    let payload = rows.data().as_ptr();
    let frame = Frame {
        work: Work::Window(window(3, &[1, 2])),
        rows: Some(rows),
        timings: Vec::new(),
        company: crate::Company::Alone,
    };
    let (head, body) = frame.encode_parts();
    assert_eq!(body.as_ptr(), payload);

    let message = Bytes::from([head, body].concat());
    let decoded = Frame::decode(&message).unwrap();
    let inside = decoded.rows.unwrap();
    assert_eq!(inside.data().as_ptr_range().end, message.as_ptr_range().end);
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let field = |error| match error {
        DecodeError::OutOfRange { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(refused_window(window(0, &[1, -1]))), "window.tokens");
    assert_eq!(field(refused_window(window(limits::MAX_CONTEXT + 1, &[1]))), "window.base");
    assert_eq!(field(refused_window(Window { epoch: Epoch(u32::MAX), ..window(0, &[1]) })), "window.epoch");
    assert_eq!(
        field(refused_window(Window { window: WindowId(u32::MAX), ..window(0, &[1]) })),
        "window.window"
    );
    assert_eq!(field(refused_open(|open| open.top_logprobs = Some(255))), "open.top_logprobs");
    assert_eq!(field(refused_open(|open| open.sampler.penalty_last_n = -2)), "sampler.penalty_last_n");
    let held = |lost_by| Some(Held { prefix: SeqId(3), len: Position(4), lost_by });
    assert_eq!(field(refused_open(|open| open.held = held(limits::MAX_STAGES + 1))), "open.held.lost_by");
}

#[test]
fn windows_end_within_the_longest_context() {
    let last = window(limits::MAX_CONTEXT - 2, &[1, 2]);
    assert!(Frame::decode(&bytes_of(&Frame::new(Work::Window(last.clone())))).is_ok());
    let error = refused_window(Window { base: Position(last.base.0 + 1), ..last });
    assert!(matches!(error, DecodeError::Contradiction { field: "window.tokens", .. }), "{error}");
}

#[test]
fn work_that_computes_has_one_to_max_rows_tokens() {
    assert_eq!(refused_window(window(0, &[])), DecodeError::Empty { field: "window.tokens" });
    let chunk = |n: usize| {
        let tokens = vec![Token(1); n];
        Frame::new(Work::Chunk(Chunk { seq: SeqId(1), base: Position(0), tokens, follows: None }))
    };
    assert_eq!(refusal(&chunk(0)), DecodeError::Empty { field: "chunk.tokens" });
    let rows = limits::MAX_ROWS;
    assert!(Frame::decode(&bytes_of(&chunk(rows as usize))).is_ok());
    assert_eq!(
        refusal(&chunk(rows as usize + 1)),
        DecodeError::TooMany { field: "chunk.tokens", count: rows + 1, limit: rows }
    );
}

#[test]
fn parameters_that_are_no_numbers_are_refused() {
    let not_finite = |field| DecodeError::NotFinite { field };
    assert_eq!(refused_open(|o| o.sampler.temperature = f32::NAN), not_finite("sampler.temperature"));
    assert_eq!(refused_open(|o| o.sampler.top_p = f32::INFINITY), not_finite("sampler.top_p"));
    let bias = |b| move |o: &mut Open| o.sampler.logit_bias = vec![(Token(1), b)];
    assert_eq!(refused_open(bias(f32::INFINITY)), not_finite("sampler.logit_bias.bias"));
    assert_eq!(refused_open(bias(f32::NAN)), not_finite("sampler.logit_bias.bias"));
    let mut forbids = open();
    bias(f32::NEG_INFINITY)(&mut forbids);
    assert!(Frame::decode(&bytes_of(&Frame::new(Work::Open(Box::new(forbids))))).is_ok());
}

#[test]
fn contradictions_within_a_message_are_refused() {
    let field = |error| match error {
        DecodeError::Contradiction { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(refused_open(|o| o.limit = o.start)), "open.limit");
    assert_eq!(field(refused_open(|o| o.history = vec![Token(1)])), "open.history");
    let from_a_prefix = |o: &mut Open| {
        (o.start, o.history) = (Position(1), vec![Token(1)]);
        o.of_prompt = Some(OfPrompt::Logprobs { top: 0 });
    };
    assert_eq!(field(refused_open(from_a_prefix)), "open.of_prompt");
    let held = |len| Some(Held { prefix: SeqId(3), len: Position(len), lost_by: 1 });
    let held_too = |o: &mut Open| {
        (o.start, o.history, o.held) = (Position(1), vec![Token(1)], held(4));
    };
    assert_eq!(field(refused_open(held_too)), "open.held");
    assert_eq!(field(refused_open(|o| o.held = held(0))), "open.held.len");
    assert_eq!(field(refused_open(|o| o.held = held(o.limit.0))), "open.held.len");
    let wants_all = |o: &mut Open| {
        (o.held, o.of_prompt) = (held(4), Some(OfPrompt::Logprobs { top: 0 }));
    };
    assert_eq!(field(refused_open(wants_all)), "open.of_prompt");
    let rows = Rows::pack(RowDtype::F16, 2, &[0.0; 6]).unwrap();
    let frame = |work, rows, timings| refusal(&Frame { work, rows, timings, company: crate::Company::Alone });
    assert_eq!(
        field(frame(Work::Window(window(0, &[1, 2])), Some(rows.clone()), Vec::new())),
        "frame.rows.n_rows"
    );
    let close = Work::Close(Close { seq: SeqId(1), inputs: Position(0) });
    assert_eq!(field(frame(close.clone(), Some(rows), Vec::new())), "frame.rows.n_rows");
    assert_eq!(field(frame(close, None, vec![StageTiming::default()])), "frame.timings");
}

#[test]
fn a_claim_without_bytes_makes_no_room() {
    let mut bytes = bytes_of(&Frame::new(Work::Open(Box::new(Open {
        start: Position(limits::MAX_CONTEXT - 1),
        limit: Position(limits::MAX_CONTEXT),
        ..open()
    }))))
    .to_vec();
    let count = bytes.len() - 4 - 2 - 1 - 4;
    bytes[count..count + 4].copy_from_slice(&(limits::MAX_CONTEXT - 1).to_le_bytes());
    assert_eq!(Frame::decode(&bytes.into()), Err(DecodeError::Truncated { field: "open.history" }));
}

#[test]
fn a_grammar_beyond_its_largest_size_is_refused() {
    let grammar = |n| Some(Grammar::new(GrammarKind::Lark, "x".repeat(n)));
    let limit = limits::MAX_GRAMMAR_BYTES;
    let mut open = open();
    open.sampler.grammar = grammar(limit);
    survives(&Frame::new(Work::Open(Box::new(open)))).unwrap();
    assert_eq!(
        refused_open(|open| open.sampler.grammar = grammar(limit + 1)),
        DecodeError::TooMany { field: "sampler.grammar.text", count: limit as u32 + 1, limit: limit as u32 }
    );
}

#[test]
fn what_a_prompt_gives_comes_in_whole_rows_that_fit_a_message() {
    let report = |found| {
        let part = PromptPart { seq: SeqId(1), base: Position(0), found };
        ToFront { from: PeerIndex(0), generation: Generation(1), report: Report::Prompt(Box::new(part)) }
    };
    let rows = |width, n| report(Found::Rows(HiddenRows { width, values: vec![0.5; n] }));
    let widest = limits::MAX_ROW_WIDTH;
    let fits = |message: ToFront| assert_eq!(ToFront::decode(&bytes_of(&message)), Ok(message));
    fits(rows(widest, limits::MAX_PART_VALUES));
    let (count, limit) = (limits::MAX_PART_VALUES as u32 + 1, limits::MAX_PART_VALUES as u32);
    let field = "prompt.rows.values";
    assert_eq!(refusal(&rows(1, count as usize)), DecodeError::TooMany { field, count, limit });
    assert_eq!(refusal(&rows(2, 3)), DecodeError::Contradiction { field, rule: "must be whole rows" });
    assert_eq!(refusal(&rows(2, 0)), DecodeError::Empty { field: "prompt.found" });
    assert_eq!(refusal(&report(Found::Logprobs(Vec::new()))), DecodeError::Empty { field: "prompt.found" });
    let no_number = report(Found::Rows(HiddenRows { width: 1, values: vec![f32::NAN] }));
    assert_eq!(refusal(&no_number), DecodeError::NotFinite { field });
    let logprobs =
        TokenLogprobs { logprob: 0.0, top: vec![(Token(1), -1.0); limits::MAX_TOP_LOGPROBS.into()] };
    fits(report(Found::Logprobs(vec![logprobs; limits::MAX_ROWS as usize])));
}

#[test]
fn rows_of_another_length_than_claimed_are_refused() {
    let rows = Rows::pack(RowDtype::F32, 2, &[0.0; 2]).unwrap();
    let bytes = bytes_of(&Frame {
        work: Work::Window(window(0, &[1])),
        rows: Some(rows),
        timings: Vec::new(),
        company: crate::Company::Alone,
    });
    assert!(matches!(Frame::decode(&bytes.slice(..bytes.len() - 1)), Err(DecodeError::Rows(_))));
}

#[test]
fn a_message_beyond_its_largest_size_is_refused_unread() {
    let bytes = Bytes::from(vec![0; limits::MAX_HELLO_BYTES + 1]);
    assert!(matches!(Hello::decode(&bytes), Err(DecodeError::Oversized { .. })));
}

#[test]
fn a_reason_longer_than_any_text_is_cut_at_a_character() {
    let reason = "é".repeat(limits::MAX_TEXT);
    let report = Report::Fault(Fault { seq: None, kind: FaultKind::Engine { reason: format!("a{reason}") } });
    let bytes = bytes_of(&ToFront { from: PeerIndex(0), generation: Generation(1), report });
    let Report::Fault(Fault { kind: FaultKind::Engine { reason }, .. }) =
        ToFront::decode(&bytes).unwrap().report
    else {
        panic!("another report came back");
    };
    assert_eq!(reason.len(), limits::MAX_TEXT - 1);
    assert!(reason.ends_with('é'));
}

#[test]
fn another_version_is_told_apart_before_the_rest_is_read() {
    let mut bytes = bytes_of(&Hello {
        version: 99,
        build: String::new(),
        role: LinkRole::Observe { notice: Bytes::new() },
    })
    .to_vec();
    bytes.extend_from_slice(b"fields of the future");
    assert_eq!(
        Hello::decode(&bytes.into()),
        Err(DecodeError::Version { ours: PROTOCOL_VERSION, theirs: 99 })
    );
    let refusal = HelloReply::Refuse(RefuseReason::Version { ours: 0x0102, theirs: 9 });
    assert_eq!(bytes_of(&refusal)[..], [1, 0, 2, 1, 9, 0], "older builds must be able to read it");
}

/// SplitMix64, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn noise(&mut self) -> Vec<u8> {
        (0..self.below(80))
            .map(|_| if self.below(3) == 0 { self.below(4) as u8 } else { self.next() as u8 })
            .collect()
    }

    /// A valid message with a few bytes changed, cut, added or repeated.
    fn mutated(&mut self, valid: &[Bytes]) -> Vec<u8> {
        let mut bytes = valid[self.below(valid.len())].to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.next() as u8),
                2 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                3 if at + 4 <= bytes.len() => bytes[at..at + 4].copy_from_slice(&[0xff; 4]),
                4 if at < bytes.len() => bytes[at] = self.below(4) as u8,
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    }
}

fn samples<T: Wire + Debug>(strategy: &impl Strategy<Value = T>) -> Vec<Bytes> {
    let mut runner = TestRunner::deterministic();
    (0..500).map(|_| bytes_of(&strategy.new_tree(&mut runner).unwrap().current())).collect()
}

/// The bytes of seeds that survive, and of which there is one for each kind.
fn checked<T>(values: Vec<(&str, T)>, strategy: &impl Strategy<Value = T>) -> files::Seeds
where
    T: Kinds + PartialEq + Debug,
{
    values.iter().for_each(|(_, value)| survives(value).unwrap());
    let bytes = seeds::bytes(values);
    for sample in samples(strategy) {
        let kind = T::decode(&sample).unwrap().kind();
        assert!(bytes.contains_key(kind), "no seed is called {kind}: add one");
    }
    bytes
}

#[test]
fn fuzzing_begins_with_a_message_of_each_kind() {
    files::are_current("frame", &checked(seeds::frames(), &frame()));
    let control = [checked(seeds::to_stage(), &to_stage()), checked(seeds::to_front(), &to_front())];
    files::are_current("control", &control.into_iter().flatten().collect());
    let handshake = [checked(seeds::hellos(), &hello()), checked(seeds::replies(), &reply())];
    files::are_current("handshake", &handshake.into_iter().flatten().collect());
}

/// Whatever is accepted is exactly the one form of its value, and nothing panics.
fn fuzz<T: Wire + Debug>(rounds: usize, seeds: files::Seeds, strategy: &impl Strategy<Value = T>) {
    let valid: Vec<_> = seeds.into_values().map(Bytes::from).chain(samples(strategy)).collect();
    let mut random = Random(1);
    let mut accepted = 0;
    for round in 0..rounds {
        let bytes: Bytes = if round % 4 == 0 { random.noise() } else { random.mutated(&valid) }.into();
        if let Ok(value) = T::decode(&bytes) {
            assert_eq!(bytes_of(&value), bytes, "round {round}: {value:?}");
            accepted += 1;
        }
    }
    assert!(
        accepted > rounds / 100 && accepted < rounds,
        "{accepted} of {rounds} accepted: the mutations test little"
    );
}

#[test]
fn a_million_fuzzed_frames_do_no_harm() {
    fuzz(1_000_000, seeds::bytes(seeds::frames()), &frame());
}

#[test]
fn fuzzed_control_messages_do_no_harm() {
    fuzz::<ToStage>(100_000, seeds::bytes(seeds::to_stage()), &to_stage());
    fuzz::<ToFront>(100_000, seeds::bytes(seeds::to_front()), &to_front());
    fuzz::<Hello>(100_000, seeds::bytes(seeds::hellos()), &hello());
    fuzz::<HelloReply>(100_000, seeds::bytes(seeds::replies()), &reply());
}
