//! Any interleaving of requests, cancels, faults and lost lines: each answer is that of decoding alone.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use protocol::{
    Company, End, Epoch, Fault, FaultKind, Position, Progress, Report, SeqId, StageIndex, StageTiming,
    TailDraft,
};
use protocol::{Token, Verdict, WindowId};
use scheduler::{Config, Event, Finish, Output, Refusal, Request, RequestId, Scheduler, SequenceState};
use spec::{Source, Sources, Speculate};

use crate::line::{Line, sequential};

/// Something that happens to a front.
#[derive(Clone, Debug)]
enum Step {
    Submit(Box<Request>),
    /// Cancels the request that came this many before the latest.
    Cancel(u64),
    /// The tail computes this many frames.
    Compute(u8),
    /// This many reports come back.
    Report(u8),
    /// A sequence, or a whole stage, is poisoned.
    Fault(usize, bool),
    /// The line is lost, and is up again after so many milliseconds.
    Lose(u64),
    /// Milliseconds pass.
    Wait(u64),
}

fn request() -> impl Strategy<Value = Request> {
    let prompt = prop::collection::vec((0..30_i32).prop_map(Token), 1..28);
    let max_tokens = prop::option::of(1_u32..40);
    (prompt, any::<u64>(), 0_u32..3, max_tokens, any::<bool>(), prop::option::of(0_u8..3)).prop_map(
        |(prompt, seed, choice, max_tokens, ignore_eos, top_logprobs)| Request {
            seed,
            choice,
            max_tokens,
            ignore_eos,
            top_logprobs,
            ..Request::new(prompt)
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => request().prop_map(Box::new).prop_map(Step::Submit),
        2 => (0_u64..6).prop_map(Step::Cancel),
        12 => (1_u8..12).prop_map(Step::Compute),
        12 => (1_u8..12).prop_map(Step::Report),
        1 => (0_usize..4, prop::bool::weighted(0.2)).prop_map(|(n, whole)| Step::Fault(n, whole)),
        1 => (0_u64..70_000).prop_map(Step::Lose),
        1 => (0_u64..70_000).prop_map(Step::Wait),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    (1_u16..4, 1_u16..5, 1_u32..9, 1_u32..4, 0_u32..4).prop_map(
        |(n_stages, n_slots, chunk_rows, max_chunks_in_flight, queue_limit)| Config {
            chunk_rows,
            max_chunks_in_flight,
            queue_limit,
            ..Config::new(n_stages, n_slots, 32, 30)
        },
    )
}

/// The same lines; their tails are asked for drafts.
fn drafting() -> impl Strategy<Value = Config> {
    let sources = Sources::List(vec![Source::Mtp]);
    let speculate = Speculate { sources, ..Speculate::off() };
    config().prop_map(move |config| Config { speculate: speculate.clone(), ..config })
}

/// What one request heard.
#[derive(Default)]
struct Heard {
    started: bool,
    tokens: Vec<Token>,
    n_logprobs: usize,
    last: Option<Event>,
}

/// A front, its callers and its line.
struct World {
    config: Config,
    scheduler: Scheduler,
    line: Line,
    now: Duration,
    asked: BTreeMap<RequestId, Request>,
    heard: BTreeMap<RequestId, Heard>,
    cancelled: BTreeMap<RequestId, usize>,
}

impl World {
    fn new(config: Config) -> Self {
        let mut scheduler = Scheduler::new(config.clone());
        scheduler.line_up(Duration::ZERO);
        Self {
            line: Line::new(&config, SeqId(0)),
            scheduler,
            config,
            now: Duration::ZERO,
            asked: BTreeMap::new(),
            heard: BTreeMap::new(),
            cancelled: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        self.now += Duration::from_millis(1);
        match step {
            Step::Submit(request) => self.submit(*request),
            Step::Cancel(back) => {
                if let Some((&id, _)) = self.asked.iter().rev().nth(back as usize) {
                    self.scheduler.cancel(id, self.now);
                    self.settle();
                    self.cancelled.insert(id, self.heard[&id].tokens.len());
                    assert!(self.heard[&id].last.is_some(), "a cancelled request ends at once");
                }
            }
            Step::Compute(n) => (0..n).for_each(|_| self.line.compute()),
            Step::Report(n) => {
                for _ in 0..n {
                    let Some((from, report)) = self.line.report() else { break };
                    self.scheduler.handle_report(from, report, self.now).expect("an honest line is believed");
                    self.settle();
                }
            }
            Step::Fault(n, whole_stage) => self.line.fault(n, whole_stage),
            Step::Lose(ms) => {
                self.scheduler.line_lost("test", self.now);
                self.line = Line::new(&self.config, self.line.next_seq());
                self.settle();
                self.now += Duration::from_millis(ms);
                self.scheduler.handle_timeout(self.now);
                self.settle();
                self.scheduler.line_up(self.now);
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.scheduler.handle_timeout(self.now);
            }
        }
        self.settle();
    }

    fn submit(&mut self, request: Request) {
        let before = self.scheduler.stats();
        match self.scheduler.submit(request.clone(), self.now) {
            Ok(id) => {
                self.asked.insert(id, request);
                self.heard.insert(id, Heard::default());
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::QueueFull { limit: self.config.queue_limit });
                assert_eq!(before.queued, self.config.queue_limit);
                assert_eq!(before.sequences, u32::from(self.config.n_slots));
            }
        }
    }

    /// Carries every output away and looks at the whole.
    fn settle(&mut self) {
        while let Some(output) = self.scheduler.poll_output() {
            match output {
                Output::Work(frame) => self.line.send(frame),
                Output::Hint(hint) => self.line.hint(hint),
                Output::Event(id, event) => self.hear(id, event),
                Output::Draft(..) | Output::Shelved(_) => panic!("nobody drafts or stores"),
            }
        }
        let stats = self.scheduler.stats();
        assert!(stats.queued <= self.config.queue_limit, "the queue is bounded");
        assert!(stats.sequences <= u32::from(self.config.n_slots), "slots are never over-committed");
        assert!(self.line.holds() <= stats.sequences as usize);
        assert!(self.scheduler.sequences().all(|sequence| sequence.positions <= self.config.context));
    }

    fn hear(&mut self, id: RequestId, event: Event) {
        let heard = self.heard.entry(id).or_default();
        assert!(heard.last.is_none(), "{id:?} hears {event:?} after its end");
        match event {
            Event::Started { .. } => {
                assert!(heard.tokens.is_empty());
                heard.started = true;
            }
            Event::Prompt(_) => panic!("nobody asked for it"),
            Event::Tokens { tokens, logprobs } => {
                assert!(heard.started && !tokens.is_empty());
                heard.tokens.extend(tokens);
                heard.n_logprobs += logprobs.len();
            }
            Event::Done { .. } | Event::Failed(_) => heard.last = Some(event),
        }
    }

    /// As [`World::step`], for a scheduler that hears forged reports only.
    fn step_without_line(&mut self, step: Step) {
        match step {
            Step::Submit(request) => self.submit(*request),
            Step::Cancel(back) => self.scheduler.cancel(RequestId(back), self.now),
            Step::Lose(ms) => {
                self.scheduler.line_lost("test", self.now);
                self.now += Duration::from_millis(ms);
                self.scheduler.line_up(self.now);
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.scheduler.handle_timeout(self.now);
            }
            Step::Compute(_) | Step::Report(_) | Step::Fault(..) => {}
        }
        self.listen();
    }

    /// Hears events and throws everything else away.
    fn listen(&mut self) {
        while let Some(output) = self.scheduler.poll_output() {
            if let Output::Event(id, event) = output {
                self.hear(id, event);
            }
        }
    }

    /// Lets the line work until nothing moves any more.
    fn drain(&mut self) {
        let most = 100 + 100 * self.asked.len();
        for _ in 0..most {
            if self.line.is_idle() {
                return;
            }
            self.step(Step::Compute(8));
            self.step(Step::Report(8));
        }
        panic!("the line is still busy after {most} rounds");
    }

    fn judge(&self) {
        for (id, heard) in &self.heard {
            let request = &self.asked[id];
            let (expected, end) = sequential(&self.config, request);
            assert!(
                expected.starts_with(&heard.tokens),
                "{id:?}: {:?} is not what {expected:?} begins with",
                heard.tokens
            );
            let n_logprobs = if request.top_logprobs.is_some() { heard.tokens.len() } else { 0 };
            assert_eq!(heard.n_logprobs, n_logprobs);
            match heard.last.as_ref().expect("every request comes to an end") {
                Event::Done { finish: Finish::Cancelled, timings } => {
                    assert_eq!(heard.tokens.len(), self.cancelled[id], "no token follows a cancel");
                    assert_eq!(timings.generated_tokens as usize, heard.tokens.len());
                }
                Event::Done { finish, timings } => {
                    assert_eq!(heard.tokens, expected);
                    assert_eq!(*finish == Finish::Length, end == End::Limit);
                    assert_eq!(timings.generated_tokens as usize, expected.len());
                    assert_eq!(
                        timings.windows, timings.generated_tokens,
                        "plain decoding: a window per token"
                    );
                    assert_eq!((timings.drafted, timings.stale_windows), (0, 0));
                }
                Event::Failed(_) => {}
                Event::Started { .. } | Event::Prompt(_) | Event::Tokens { .. } => {
                    unreachable!("neither ends a request")
                }
            }
        }
        let stats = self.scheduler.stats();
        assert_eq!((stats.queued, stats.sequences, self.line.holds()), (0, 0, 0), "all memory is returned");
        assert_eq!(stats.submitted, stats.finished + stats.cancelled + stats.failed);
        assert_eq!(
            stats.generated_tokens,
            self.heard.values().map(|heard| heard.tokens.len() as u64).sum::<u64>()
        );
        assert_eq!(self.scheduler.next_deadline(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_answer_is_that_of_decoding_alone(
        config in config(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(config);
        for step in steps {
            world.step(step);
        }
        world.drain();
        world.judge();
    }

    #[test]
    fn no_report_panics_or_frees_memory_that_is_in_use(
        config in drafting(),
        moves in prop::collection::vec((step(), report()), 1..80),
    ) {
        let mut world = World::new(config.clone());
        for (step, (from, report)) in moves {
            world.step_without_line(step);
            let closing = |seq: SeqId| {
                world.scheduler.sequences().any(|s| s.seq == seq && s.state == SequenceState::Closing)
            };
            let frees = matches!(report, Report::Closed(seq) if closing(seq));
            let before = world.scheduler.stats();
            let _ = world.scheduler.handle_report(from, report, world.now);
            let after = world.scheduler.stats();
            prop_assert!(after.sequences == before.sequences || frees);
            prop_assert!(after.sequences <= u32::from(config.n_slots));
            world.listen();
        }
        world.scheduler.line_lost("test", world.now);
        world.scheduler.handle_timeout(world.now + config.queue_timeout);
        world.listen();
        prop_assert!(world.heard.values().all(|heard| heard.last.is_some()), "each has exactly one end");
    }
}

/// Any report from anyone, near enough to the truth to be dangerous.
fn report() -> impl Strategy<Value = (StageIndex, Report)> {
    let seq = (0_u64..6).prop_map(SeqId);
    let end = prop::option::of(prop::sample::select(&[End::EndOfGeneration, End::Limit, End::Grammar][..]));
    let tokens = prop::collection::vec((-1..32_i32).prop_map(Token), 0..3);
    let draft = (seq.clone(), 0_u32..34, tokens.clone()).prop_map(|(seq, base, tokens)| {
        let (base, probabilities) = (Position(base), vec![0.5; tokens.len()]);
        Report::Draft(Box::new(TailDraft {
            seq,
            base,
            tokens,
            probabilities,
            timing: StageTiming::default(),
            company: Company::Alone,
        }))
    });
    let verdict = (seq.clone(), 0_u32..2, 0_u32..4, 0_u32..34, tokens, end, any::<bool>()).prop_map(
        |(seq, epoch, window, base, tokens, ended, drafts)| {
            Report::Verdict(Box::new(Verdict {
                seq,
                epoch: Epoch(epoch),
                window: WindowId(window),
                base: Position(base),
                tokens,
                ended,
                logprobs: Vec::new(),
                mu: None,
                timings: Vec::new(),
                company: Company::Alone,
                drafts,
            }))
        },
    );
    let progress = (seq.clone(), 0_u32..34).prop_map(|(seq, next)| {
        Report::Progress(Progress { seq, next: Position(next), timings: Vec::new() })
    });
    let fault = prop::option::weighted(0.9, seq.clone())
        .prop_map(|seq| Report::Fault(Fault { seq, kind: FaultKind::UnknownSequence }));
    let any =
        prop_oneof![4 => verdict, 4 => progress, 3 => draft, 2 => seq.prop_map(Report::Closed), 1 => fault];
    ((0_u16..4).prop_map(StageIndex), any)
}
