//! One rule of the scheduler per test.

use std::time::Duration;

use protocol::{End, Epoch, Fault, FaultKind, Position, Report, SeqId, StageIndex, StageState};
use protocol::{StageTiming, Token, TokenLogprobs, Verdict};
use scheduler::{Config, Event, Output, Refusal, ReportFault, RequestId, Scheduler, SequenceState, Timings};

use scheduler::Request;
use spec::{Block, Draft, InFlight, Reach, Source, Sources, Speculate};

use crate::front::{Front, config, request, verdict};

#[test]
fn a_request_is_prefilled_in_chunks_and_decoded_window_by_window() {
    let mut front = Front::new(config());
    front.submit(request(11, Some(2))).unwrap();
    assert_eq!(
        front.outputs(),
        [
            "r0 started after 0ns",
            "s0 open, limit 13",
            "s0 chunk at 0 [1, 2, 3, 4]",
            "s0 chunk at 4 [5, 6, 7, 8]",
        ]
    );
    front.progress(0, 4).unwrap();
    assert_eq!(
        front.outputs(),
        ["s0 chunk at 8 [9, 10]", "s0 window 0 at 10 [11]"],
        "the anchor is never in a chunk"
    );
    front.progress(0, 8).unwrap();
    front.progress(0, 10).unwrap();
    assert!(front.outputs().is_empty(), "one window at a time");
    front.verdict(0, 0, 10, 50, None).unwrap();
    assert_eq!(front.outputs(), ["s0 window 1 at 11 [50]", "r0 tokens [50]"], "work goes out before tokens");
    front.verdict(0, 1, 11, 51, Some(End::Limit)).unwrap();
    assert_eq!(front.outputs(), ["r0 tokens [51]", "s0 close", "r0 done: Length"]);
    front.closed(0).unwrap();
    assert!(front.outputs().is_empty());
    assert_eq!(front.scheduler.sequences().count(), 0);
}

#[test]
fn a_prompt_of_one_token_needs_no_chunk() {
    let mut front = Front::new(config());
    front.submit(request(1, None)).unwrap();
    assert_eq!(front.outputs(), ["r0 started after 0ns", "s0 open, limit 20", "s0 window 0 at 0 [1]"]);
    front.verdict(0, 0, 0, 9, Some(End::EndOfGeneration)).unwrap();
    assert_eq!(front.outputs(), ["r0 tokens [9]", "s0 close", "r0 done: Stop"]);
}

#[test]
fn prompts_that_start_together_take_turns() {
    let mut scheduler = Scheduler::new(Config { queue_limit: 8, ..config() });
    scheduler.line_up(Duration::ZERO);
    for _ in 0..2 {
        scheduler.submit(request(2, None), Duration::ZERO).unwrap();
    }
    let mut front = Front { scheduler, now: Duration::ZERO };
    for _ in 0..2 {
        front.submit(request(19, None)).unwrap();
    }
    front.outputs();
    front.scheduler.line_lost("test", front.now);
    front.scheduler.line_up(Duration::ZERO);
    let chunks: Vec<_> = front.outputs().into_iter().filter(|line| line.contains("chunk")).collect();
    assert_eq!(
        chunks,
        [
            "s2 chunk at 0 [1, 2, 3, 4]",
            "s3 chunk at 0 [1, 2, 3, 4]",
            "s2 chunk at 4 [5, 6, 7, 8]",
            "s3 chunk at 4 [5, 6, 7, 8]",
        ]
    );
}

#[test]
fn a_slot_is_free_only_when_its_close_has_come_back() {
    let mut front = Front::new(config());
    for _ in 0..3 {
        front.submit(request(2, None)).unwrap();
    }
    front.outputs();
    front.pass(7);
    front.cancel(RequestId(0));
    assert_eq!(front.outputs(), ["s0 drop", "s0 close", "r0 done: Cancelled"]);
    let states: Vec<_> = front.scheduler.sequences().map(|sequence| sequence.state).collect();
    assert_eq!(states, [SequenceState::Closing, SequenceState::Decode]);
    assert_eq!(front.scheduler.stats().queued, 1);
    front.closed(0).unwrap();
    assert_eq!(front.outputs()[..2], ["r2 started after 7ms", "s2 open, limit 20"]);
}

#[test]
fn reports_about_a_cancelled_request_are_dropped() {
    let mut front = Front::new(config());
    front.submit(request(6, None)).unwrap();
    front.cancel(RequestId(0));
    front.cancel(RequestId(0));
    assert_eq!(front.outputs()[5..], ["s0 drop", "s0 close", "r0 done: Cancelled"]);
    front.progress(0, 4).unwrap();
    front.verdict(0, 0, 5, 50, None).unwrap();
    let late = Fault { seq: Some(SeqId(0)), kind: FaultKind::UnknownSequence };
    front.report(1, Report::Fault(late)).unwrap();
    assert!(front.outputs().is_empty());
    assert_eq!(front.scheduler.stats().late_reports, 3);
}

#[test]
fn a_waiting_request_is_cancelled_without_touching_the_line() {
    let mut front = Front::new(config());
    for _ in 0..3 {
        front.submit(request(2, None)).unwrap();
    }
    front.outputs();
    front.cancel(RequestId(2));
    assert_eq!(front.outputs(), ["r2 done: Cancelled"]);
    assert_eq!(front.scheduler.next_deadline(), None);
}

#[test]
fn what_can_never_be_served_is_refused() {
    let mut front = Front::new(config());
    assert_eq!(front.submit(request(0, None)), Err(Refusal::EmptyPrompt));
    assert_eq!(front.submit(request(3, Some(0))), Err(Refusal::NothingToGenerate));
    assert_eq!(front.submit(request(20, None)), Err(Refusal::ContextLength { prompt: 20, context: 20 }));
    for id in [-1, 100] {
        let mut unknown = request(3, None);
        unknown.prompt[1] = Token(id);
        assert_eq!(front.submit(unknown), Err(Refusal::UnknownToken(Token(id))));
    }
    assert!(front.outputs().is_empty());
    assert_eq!(front.scheduler.stats().submitted, 0);
}

#[test]
fn a_full_queue_refuses() {
    let mut front = Front::new(config());
    for _ in 0..3 {
        front.submit(request(2, None)).unwrap();
    }
    assert_eq!(front.submit(request(2, None)), Err(Refusal::QueueFull { limit: 1 }));
    assert_eq!(front.scheduler.stats().refused, 1);
}

#[test]
fn an_answer_is_clamped_to_the_context() {
    let mut front = Front::new(config());
    front.submit(request(19, Some(u32::MAX))).unwrap();
    assert_eq!(front.outputs()[1], "s0 open, limit 20");
}

#[test]
fn waiting_has_a_deadline() {
    let mut front = Front::new(config());
    front.submit(request(2, None)).unwrap();
    front.submit(request(2, None)).unwrap();
    front.pass(1000);
    front.submit(request(2, None)).unwrap();
    front.outputs();
    let deadline = Duration::from_secs(61);
    assert_eq!(front.scheduler.next_deadline(), Some(deadline));
    front.scheduler.handle_timeout(deadline - Duration::from_nanos(1));
    assert!(front.outputs().is_empty());
    front.scheduler.handle_timeout(deadline);
    assert_eq!(front.outputs(), ["r2 failed: no place became free within 60 s"]);
    assert_eq!(front.scheduler.next_deadline(), None);
}

#[test]
fn a_lost_line_fails_what_runs_and_keeps_what_waits() {
    let mut front = Front::new(config());
    assert_eq!(Scheduler::new(config()).submit(request(2, None), Duration::ZERO), Err(Refusal::NotReady));
    for _ in 0..3 {
        front.submit(request(2, None)).unwrap();
    }
    front.cancel(RequestId(1));
    front.scheduler.line_lost("stage 1 closed its link", front.now);
    let outputs = front.outputs();
    assert!(
        outputs.iter().all(|line| line.starts_with('r')),
        "nothing is sent down a lost line: {outputs:?}"
    );
    assert_eq!(outputs[outputs.len() - 1], "r0 failed: the line was lost: stage 1 closed its link");
    assert_eq!(front.scheduler.sequences().count(), 0, "the memory went with the line");
    assert_eq!(front.submit(request(2, None)), Err(Refusal::NotReady));
    front.scheduler.line_up(front.now);
    assert_eq!(
        front.outputs()[..2],
        ["r2 started after 0ns", "s2 open, limit 20"],
        "an id is never used again"
    );
}

#[test]
fn a_fault_fails_its_sequence_and_no_other() {
    let cases = [
        (FaultKind::Sampler { reason: "top_k is silly".into() }, "r0 failed: top_k is silly"),
        (
            FaultKind::Link { reason: "reset".into() },
            "r0 failed: the line was lost: stage 1: link to the next stage: reset",
        ),
        (
            FaultKind::Engine { reason: "out of memory".into() },
            "r0 failed: internal error: stage 1: engine: out of memory",
        ),
    ];
    for (kind, expected) in cases {
        let mut front = Front::new(config());
        front.submit(request(2, None)).unwrap();
        front.submit(request(2, None)).unwrap();
        front.outputs();
        front.report(1, Report::Fault(Fault { seq: Some(SeqId(0)), kind })).unwrap();
        assert_eq!(front.outputs(), ["s0 drop", "s0 close", expected]);
    }
}

#[test]
fn a_fault_of_a_whole_stage_fails_everything_that_runs() {
    let mut front = Front::new(config());
    for _ in 0..3 {
        front.submit(request(2, None)).unwrap();
    }
    front.outputs();
    let kind = FaultKind::Engine { reason: "gone".into() };
    front.report(0, Report::Fault(Fault { seq: None, kind })).unwrap();
    assert_eq!(
        front.outputs(),
        [
            "s0 drop",
            "s0 close",
            "r0 failed: internal error: stage 0: engine: gone",
            "s1 drop",
            "s1 close",
            "r1 failed: internal error: stage 0: engine: gone",
        ]
    );
    assert_eq!(front.scheduler.stats().queued, 1);
}

#[test]
fn impossible_reports_fail_their_request() {
    type Forge = fn(&mut Front) -> Result<(), ReportFault>;
    let forgeries: [(Forge, &str); 7] = [
        (
            |front| front.verdict(0, 0, 5, 50, None),
            "sequence 0: verdict before the prompt has passed through",
        ),
        (|front| front.progress(0, 3), "sequence 0: progress to 3, expected 4"),
        (
            |front| {
                front.progress(0, 4)?;
                front.progress(0, 5)?;
                front.progress(0, 6)
            },
            "sequence 0: progress to 6, expected none",
        ),
        (|front| front.closed(0), "sequence 0: closed before the front asked for it"),
        (
            |front| {
                front.progress(0, 4)?;
                front.progress(0, 5)?;
                front.verdict(0, 1, 5, 50, None)
            },
            "sequence 0: verdict for window 1, which is not in flight",
        ),
        (
            |front| {
                front.progress(0, 4)?;
                front.progress(0, 5)?;
                let odd = Verdict { epoch: Epoch(1), ..verdict(0, 0, 5, 50, None) };
                front.report(2, Report::Verdict(Box::new(odd)))
            },
            "sequence 0: verdict for window 0 says epoch 1, sent was 0",
        ),
        (
            |front| {
                front.progress(0, 4)?;
                front.progress(0, 5)?;
                let logprobs = vec![TokenLogprobs { logprob: 0.0, top: Vec::new() }];
                front.report(2, Report::Verdict(Box::new(Verdict { logprobs, ..verdict(0, 0, 5, 50, None) })))
            },
            "sequence 0: 1 log-probabilities, expected 0",
        ),
    ];
    for (forge, expected) in forgeries {
        let mut front = Front::new(config());
        front.submit(request(6, None)).unwrap();
        front.outputs();
        assert_eq!(forge(&mut front).unwrap_err().to_string(), expected);
        let outputs = front.outputs();
        let failed = format!("r0 failed: internal error: {expected}");
        assert_eq!(outputs[outputs.len() - 1], failed);
        assert!(outputs.contains(&"s0 close".to_owned()));
        assert_eq!(
            front.scheduler.stats().sequences,
            1,
            "the memory stays in use until the close comes back"
        );
        front.closed(0).unwrap();
        assert_eq!(front.scheduler.stats().sequences, 0);
    }
}

#[test]
fn reports_that_concern_nobody_change_nothing() {
    let mut front = Front::new(config());
    front.submit(request(6, None)).unwrap();
    front.outputs();
    let tail = StageIndex(2);
    let from = StageIndex(1);
    let report = Report::Verdict(Box::new(verdict(0, 0, 5, 50, None)));
    assert_eq!(front.report(1, report), Err(ReportFault::NotTail { from, tail }));
    assert_eq!(front.report(1, Report::Closed(SeqId(0))), Err(ReportFault::NotTail { from, tail }));
    assert_eq!(front.closed(7), Err(ReportFault::NeverOpened { seq: SeqId(7) }));
    let fault = Fault { seq: Some(SeqId(7)), kind: FaultKind::UnknownSequence };
    assert_eq!(front.report(0, Report::Fault(fault)), Err(ReportFault::NeverOpened { seq: SeqId(7) }));
    front.report(0, Report::State(StageState::Linking)).unwrap();
    assert!(front.outputs().is_empty());
}

#[test]
fn timings_say_where_the_time_went() {
    let mut front = Front::new(config());
    // A line that has stood for a while: what was before the request is not counted.
    front.pass(1000);
    front.submit(request(2, None)).unwrap();
    front.pass(10);
    front.progress(0, 1).unwrap();
    front.pass(20);
    front.verdict(0, 0, 1, 50, None).unwrap();
    front.pass(60);
    front.verdict(0, 1, 2, 51, None).unwrap();
    front.pass(45);
    front.verdict(0, 2, 3, 52, Some(End::EndOfGeneration)).unwrap();
    let timings = std::iter::from_fn(|| front.scheduler.poll_output()).find_map(|output| match output {
        Output::Event(_, Event::Done { timings, .. }) => Some(timings),
        _ => None,
    });
    assert_eq!(
        timings.unwrap(),
        Timings {
            prompt_tokens: 2,
            cached_tokens: 0,
            prompt_time: Duration::from_millis(30),
            generated_tokens: 3,
            generation_time: Duration::from_millis(105),
            drafted: 0,
            accepted: 0,
            windows: 3,
            live_windows: 3,
            stale_windows: 0,
            in_flight: InFlight { most: 1, sum_us: 135_000, time_us: 135_000 },
            epochs: 0,
            guesses: Box::default(),
            loop_time: Duration::from_millis(45),
            ideal_time: Duration::from_micros(44_997),
            longest_chunk: Duration::ZERO,
            stages: vec![StageTiming { queue_us: 3, compute_us: 30, batch_rows: 6 }; 3],
        }
    );
    let stats = front.scheduler.stats();
    assert_eq!((stats.windows, stats.generated_tokens, stats.prefilled_tokens, stats.finished), (3, 3, 1, 1));
}

/// Three stages that guess from the prompt with windows of two rows, three of them in flight.
fn guessing() -> Config {
    let reach = Reach { width: Some(2), depth: Some(3), ..Reach::default() };
    Config {
        chunk_rows: 16,
        speculate: Speculate {
            sources: Sources::List(vec![Source::Predicted, Source::Suffix]),
            reach,
            draft_len: None,
        },
        ..Config::new(3, 2, 40, 100)
    }
}

#[test]
fn windows_run_ahead_and_a_contradiction_opens_an_epoch_at_once() {
    let mut front = Front::new(guessing());
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2].map(Token).to_vec();
    front.submit(Request { prompt, ..request(1, None) }).unwrap();
    assert_eq!(
        front.outputs()[2..],
        [
            "s0 chunk at 0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]",
            "s0 window 0 at 10 [2, 3]",
            "s0 window 1 at 12 [4, 5]",
            "s0 window 2 at 14 [6, 7]",
        ]
    );
    front.progress(0, 10).unwrap();
    let right = Verdict { tokens: vec![Token(3), Token(4)], ..verdict(0, 0, 10, 3, None) };
    front.report(2, Report::Verdict(Box::new(right))).unwrap();
    assert_eq!(front.outputs(), ["s0 window 3 at 16 [8, 9]", "r0 tokens [3, 4]"]);
    front.verdict(0, 1, 12, 50, None).unwrap();
    let outputs = front.outputs();
    assert_eq!(outputs[0], "s0 advance to e1", "the stages hear of it first");
    assert_eq!(outputs[1], "s0 window 4 at 13 [50]", "nothing followed that token before");
    assert_eq!(outputs[2..], ["r0 tokens [50]"]);
    let stats = front.scheduler.stats();
    assert_eq!((stats.windows, stats.live_windows, stats.stale_windows, stats.epochs), (5, 2, 2, 1));
    assert_eq!((stats.drafted, stats.accepted), (7, 2));
    let suffix = stats.guesses.sources().next().expect("one source guessed");
    assert_eq!((suffix.name, suffix.guesses.proposed, suffix.guesses.accepted), ("suffix", 7, 2));
    let near: Vec<_> = stats.guesses.depths.iter().map(|depth| (depth.proposed, depth.accepted)).collect();
    assert_eq!(near[..6], [(1, 1), (1, 1), (1, 0), (2, 0), (2, 0), (0, 0)]);
}

#[test]
fn a_prediction_is_followed_and_must_be_of_the_vocabulary() {
    let mut front = Front::new(guessing());
    let predicting = |ids: &[i32]| Request {
        prediction: Some(ids.iter().copied().map(Token).collect()),
        ..request(2, None)
    };
    front.submit(predicting(&[30, 31, 32])).unwrap();
    assert_eq!(
        front.outputs()[3..],
        ["s0 window 0 at 1 [2, 30]", "s0 window 1 at 3 [31, 32]"],
        "and no further than it goes"
    );
    assert_eq!(front.submit(predicting(&[30, 100])), Err(Refusal::UnknownToken(Token(100))));
}

/// As [`guessing`], with a draft model and nothing else; two windows of one row.
fn drafted() -> Config {
    let reach = Reach { width: Some(1), depth: Some(3), ..Reach::default() };
    let sources = "draft=small.gguf".parse().expect("a list of sources");
    Config { speculate: Speculate { sources, reach, draft_len: None }, ..guessing() }
}

fn draft(epoch: u32, base: u32, ids: &[i32]) -> Draft {
    let tokens = ids.iter().copied().map(Token).collect();
    let block = Block { tokens, run: 0, probabilities: vec![0.9; ids.len()] };
    Draft { epoch: Epoch(epoch), base: Position(base), block }
}

#[test]
fn who_drafts_hears_of_every_text_and_its_drafts_are_sent_at_once() {
    let mut front = Front::new(drafted());
    let id = front.submit(request(2, None)).unwrap();
    assert_eq!(
        front.outputs(),
        [
            "r0 started after 0ns",
            "r0 to be drafted after [1, 2]",
            "s0 open, limit 40",
            "s0 chunk at 0 [1]",
            "s0 window 0 at 1 [2]",
            "r0 text at 2 in e0: []",
        ]
    );
    front.scheduler.handle_draft(id, "draft", draft(0, 2, &[5]), front.now);
    assert_eq!(front.outputs(), ["s0 window 1 at 2 [5]", "r0 text at 2 in e0: [5]"]);
    front.scheduler.handle_draft(id, "draft", draft(0, 3, &[6, 7, 8]), front.now);
    assert_eq!(front.outputs(), ["s0 window 2 at 3 [6]", "r0 text at 3 in e0: [6]"], "three in flight");
    front.progress(0, 1).unwrap();
    front.verdict(0, 0, 1, 5, None).unwrap();
    assert_eq!(front.outputs(), ["s0 window 3 at 4 [7]", "r0 text at 4 in e0: [7]", "r0 tokens [5]"]);
    front.verdict(0, 1, 2, 9, None).unwrap();
    assert_eq!(
        front.outputs(),
        ["s0 advance to e1", "s0 window 4 at 3 [9]", "r0 text at 3 in e1: [9]", "r0 tokens [9]"]
    );
    front.scheduler.handle_draft(id, "draft", draft(0, 4, &[7, 8]), front.now);
    assert_eq!(front.outputs(), [""; 0], "the text that it continues was contradicted");
    front.scheduler.handle_draft(id, "draft", draft(1, 4, &[3]), front.now);
    assert_eq!(front.outputs(), ["s0 window 5 at 4 [3]", "r0 text at 4 in e1: [3]"]);
    front.cancel(id);
    assert!(front.outputs().contains(&"r0 no longer drafted".to_owned()));
    front.scheduler.handle_draft(id, "draft", draft(1, 5, &[3]), front.now);
    assert_eq!(front.outputs(), [""; 0], "it is over");
}

#[test]
fn nobody_hears_of_requests_without_room_for_a_guess_and_all_end_with_the_line() {
    let mut front = Front::new(drafted());
    front.submit(request(3, Some(1))).unwrap();
    assert!(front.outputs().iter().all(|line| !line.contains("draft") && !line.contains("text")));
    front.submit(request(3, Some(2))).unwrap();
    assert!(front.outputs().contains(&"r1 to be drafted after [1, 2, 3]".to_owned()));
    front.scheduler.line_lost("test", front.now);
    assert!(front.outputs().contains(&"r1 no longer drafted".to_owned()));
}

/// The probe's window, and whether another one is wanted after a verdict on it that says so many rows.
fn probe(front: &mut Front, seq: u64, n_rows: u32) -> (String, bool) {
    front.scheduler.probe(Token(0), front.now).expect("the line is idle");
    let outputs = front.outputs();
    let timings = vec![StageTiming { queue_us: 0, compute_us: 10 * n_rows, batch_rows: n_rows }; 3];
    let verdict = Verdict { timings, ..verdict(seq, 0, 0, 7, (n_rows == 1).then_some(End::Limit)) };
    front.report(2, Report::Verdict(Box::new(verdict))).expect("an honest verdict");
    let after = front.outputs();
    assert!(after.iter().any(|line| line.ends_with("done: Length")), "one verdict is enough: {after:?}");
    front.closed(seq).expect("it is over");
    (outputs.last().expect("a window went out").clone(), front.scheduler.wants_probe())
}

#[test]
fn each_probe_has_a_width_that_nobody_knows() {
    let mut front = Front::new(Config { speculate: Speculate::auto(), ..config() });
    assert!(front.scheduler.wants_probe());
    for (seq, width) in [1, 2, 3, 4, 6, 8, 12, 16].into_iter().enumerate() {
        let (window, more) = probe(&mut front, seq as u64, width);
        let rows = vec!["0"; width as usize].join(", ");
        assert_eq!(window, format!("s{seq} window 0 at 0 [{rows}]"));
        assert_eq!(more, width < 16);
    }
    assert_eq!(probe(&mut front, 8, 1).0, "s8 window 0 at 0 [0]", "now they only prove that the line lives");
    let stats = front.scheduler.stats();
    assert_eq!((stats.drafted, stats.windows), (0, 0), "probes guess nothing");
}

#[test]
fn a_probe_that_is_lost_leaves_no_trace_in_the_figures() {
    let mut front = Front::new(Config { speculate: Speculate::auto(), ..config() });
    front.scheduler.probe(Token(0), front.now).expect("the line is idle");
    front.scheduler.line_lost("test", front.now);
    let stats = front.scheduler.stats();
    assert_eq!((stats.windows, stats.live_windows, stats.stale_windows, stats.loops.windows), (0, 0, 0, 0));
}

#[test]
fn windows_that_nobody_waits_for_any_more_count_as_stale() {
    let mut front = Front::new(config());
    let id = front.submit(request(1, None)).unwrap();
    front.cancel(id);
    let stats = front.scheduler.stats();
    assert_eq!((stats.windows, stats.live_windows, stats.stale_windows), (1, 0, 1));
}

#[test]
fn nothing_is_measured_where_nothing_is_guessed_or_stages_say_nothing() {
    assert!(!Front::new(config()).scheduler.wants_probe());
    let mut front = Front::new(Config { speculate: Speculate::auto(), ..config() });
    for seq in 0..8 {
        assert!(front.scheduler.wants_probe());
        front.scheduler.probe(Token(0), front.now).unwrap();
        let silent = Verdict { timings: Vec::new(), ..verdict(seq, 0, 0, 7, Some(End::Limit)) };
        front.report(2, Report::Verdict(Box::new(silent))).unwrap();
        front.closed(seq).unwrap();
    }
    assert!(!front.scheduler.wants_probe(), "no storm of probes");
}
