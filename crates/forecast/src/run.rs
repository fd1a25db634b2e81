//! One line in virtual time: requests go in, and what they took comes out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use protocol::{Frame, Hint, Report, RowDtype, StageIndex, Token};
use scheduler::{Config, Event, Output, Request, RequestId, Scheduler, Stats, Timings};
use spec::{MAX_WIDTH, Proposer, Speculate};
use stage::{Done, StageCore};

use crate::agenda::Agenda;
use crate::engine::{Script, ScriptEngine};
use crate::line::LineModel;
use crate::oracle::Oracle;
use crate::workload::{N_VOCAB, Workload};

/// The forecast's texts share nothing.
const PREFIX_BYTES: u64 = 0;

/// What a probe says, and what follows it.
const PROBE: Token = Token(0);
const AFTER_PROBE: Token = Token(1);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The texts, one request each, in this order.
    pub workloads: &'a [Workload],
    /// Requests that run at the same time, as far as the line has slots: when one ends the next one starts. At least 1.
    pub clients: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Tokens of all answers per second, from the first request to the last answer.
    pub tokens_per_second: f64,
    /// Tokens per second of one request while it decodes: the harmonic mean over the requests.
    pub decode_rate: f64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// Of each request.
    pub timings: Vec<Timings>,
    /// The longest time that any request waited for another token, its first one apart.
    pub longest_gap: Duration,
    /// The front's counters.
    pub stats: Stats,
    /// Each stage's work.
    pub stages: Vec<StageUse>,
}

impl Forecast {
    /// Share of the windows that became stale, 0 to 1.
    #[must_use]
    pub fn stale_share(&self) -> f64 {
        let Stats { windows, stale_windows, .. } = self.stats;
        if windows == 0 { 0.0 } else { stale_windows as f64 / windows as f64 }
    }
}

/// What a stage did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageUse {
    /// Share of the time that it computed.
    pub busy: f64,
    /// Its counters.
    pub stats: stage::Stats,
}

/// Runs a job on a line, after the probes by which a front learns how fast the line is, as a real one does.
/// The same arguments give the same forecast.
///
/// # Panics
/// If a workload has no prompt or no answer, if the line's stages and links do not fit, or if anything is answered that
/// the text does not say.
#[must_use]
pub fn run(line: &LineModel, job: Job<'_>, speculate: &Speculate) -> Forecast {
    assert_eq!(line.links.len(), line.stages.len() + 1, "a line has one link more than stages");
    let mut run = Run::new(line, job, speculate);
    run.scheduler.line_up(Duration::ZERO);
    run.submit_probe();
    run.after_front();
    while let Some((at, happening)) = run.agenda.next() {
        run.now = at;
        run.happen(happening);
    }
    run.conclude()
}

enum Happening {
    Frame(usize, Frame),
    Hint(usize, Hint),
    Done(usize),
    Report(StageIndex, Report),
}

struct Stage {
    core: StageCore,
    engine: ScriptEngine,
    running: Option<Done>,
    busy: Duration,
}

struct Run<'a> {
    line: &'a LineModel,
    workloads: &'a [Workload],
    scheduler: Scheduler,
    stages: Vec<Stage>,
    /// Until when each processor computes that stages share, if they do.
    processors: Vec<Duration>,
    now: Duration,
    agenda: Agenda<Happening>,
    /// Requests that have not started.
    coming: VecDeque<usize>,
    clients: usize,
    /// The probe, while it runs.
    probe: Option<RequestId>,
    /// When the probe was answered.
    started: Duration,
    /// When the last answer ended.
    ended: Duration,
    running: BTreeMap<RequestId, (usize, Vec<Token>)>,
    /// When each of them got its last token.
    heard: BTreeMap<RequestId, Duration>,
    longest_gap: Duration,
    timings: Vec<Timings>,
}

impl<'a> Run<'a> {
    fn new(line: &'a LineModel, job: Job<'a>, speculate: &Speculate) -> Self {
        let longest = job.workloads.iter().map(Workload::n_tokens).max().unwrap_or(1);
        let (context, n_stages) = (longest.max(MAX_WIDTH as usize) as u32 + 1, line.stages.len());
        let mut config = Config::new(n_stages as u16, line.n_slots, context, N_VOCAB);
        config.queue_timeout = Duration::MAX;
        config.speculate = speculate.clone();
        let script = |workload: &Workload| {
            assert!(!workload.answer.is_empty(), "a workload has an answer");
            Script { n_prompt: workload.prompt.len(), answer: workload.answer.clone() }
        };
        // A front's own requests have seed 0, and theirs is the first script.
        let probe = Script { n_prompt: 1, answer: vec![AFTER_PROBE; MAX_WIDTH as usize] };
        let scripts =
            Arc::new([probe].into_iter().chain(job.workloads.iter().map(script)).collect::<Vec<_>>());
        let stage = |index| {
            let engine =
                ScriptEngine::new((index, n_stages), (context, N_VOCAB, line.n_slots), Arc::clone(&scripts));
            let core = StageCore::new(
                stage::Engine::shape(&engine).clone(),
                stage::Config { row_dtype: RowDtype::F32, prefix_bytes: PREFIX_BYTES, has_store: false },
            );
            Stage { core, engine, running: None, busy: Duration::ZERO }
        };
        Self {
            line,
            workloads: job.workloads,
            scheduler: Scheduler::new(config),
            stages: (0..n_stages).map(stage).collect(),
            processors: vec![Duration::ZERO; line.processors.unwrap_or(0)],
            now: Duration::ZERO,
            agenda: Agenda::new(),
            coming: (0..job.workloads.len()).collect(),
            clients: job.clients.max(1),
            probe: None,
            started: Duration::ZERO,
            ended: Duration::ZERO,
            running: BTreeMap::new(),
            heard: BTreeMap::new(),
            longest_gap: Duration::ZERO,
            timings: Vec::new(),
        }
    }

    fn submit_probe(&mut self) {
        self.probe = self.scheduler.probe(PROBE, self.now).ok();
    }

    fn submit_next(&mut self) {
        let Some(index) = self.coming.pop_front() else { return };
        let workload = &self.workloads[index];
        let request = Request {
            prediction: workload.prediction.clone(),
            ..request(&workload.prompt, index + 1, workload.answer.len())
        };
        let oracle = workload
            .agreement
            .map(|agreement| Box::new(Oracle::new(agreement, workload.answer.clone())) as Box<dyn Proposer>);
        let id = self.scheduler.submit_with(request, oracle.into_iter().collect(), self.now);
        self.running.insert(id.expect("a workload fits the line made for it"), (index, Vec::new()));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Frame(stage, frame) => {
                self.stages[stage].core.handle_frame(frame, self.now);
                self.after_stage(stage);
            }
            Happening::Hint(stage, hint) => {
                self.stages[stage].core.handle_hint(hint);
                self.after_stage(stage);
            }
            Happening::Done(index) => {
                let stage = &mut self.stages[index];
                let done = stage.running.take().expect("only a call under way is ever done");
                stage.core.complete(done, &stage.engine, self.now);
                self.after_stage(index);
            }
            Happening::Report(from, report) => {
                let heard = self.scheduler.handle_report(from, report, self.now);
                heard.expect("stages that follow the rules are believed");
                self.after_front();
            }
        }
    }

    fn after_front(&mut self) {
        while let Some(output) = self.scheduler.poll_output() {
            match output {
                Output::Work(frame) => {
                    self.agenda.plan(self.now + self.line.links[0], Happening::Frame(0, frame))
                }
                Output::Hint(hint) => {
                    for stage in 0..self.stages.len() {
                        self.agenda.plan(self.now + self.line.control, Happening::Hint(stage, hint));
                    }
                }
                Output::Event(id, event) => self.tell(id, event),
                // Texts are given together with who guesses them: no model drafts.
                Output::Draft(..) | Output::Shelved(_) => {}
            }
        }
    }

    fn tell(&mut self, id: RequestId, event: Event) {
        match event {
            Event::Done { .. } if self.probe == Some(id) => {
                self.probe = None;
                if self.scheduler.wants_probe() {
                    return self.submit_probe();
                }
                self.started = self.now;
                (0..self.clients).for_each(|_| self.submit_next());
            }
            Event::Started { .. } | Event::Tokens { .. } if self.probe == Some(id) => {}
            Event::Started { .. } | Event::Prompt(_) => {}
            Event::Tokens { tokens, .. } => {
                let (_, answer) = self.running.get_mut(&id).expect("a request that runs");
                answer.extend(tokens);
                if let Some(last) = self.heard.insert(id, self.now) {
                    self.longest_gap = self.longest_gap.max(self.now - last);
                }
            }
            Event::Done { timings, .. } => {
                let (index, answer) = self.running.remove(&id).expect("a request that runs");
                assert_eq!(
                    answer, self.workloads[index].answer,
                    "the answer is the text, however it is guessed"
                );
                self.timings.push(timings);
                self.heard.remove(&id);
                self.ended = self.now;
                self.submit_next();
            }
            Event::Failed(failure) => panic!("nothing fails on a line without faults: {failure}"),
        }
    }

    fn after_stage(&mut self, index: usize) {
        while let Some(output) = self.stages[index].core.poll_output() {
            let (at, happening) = match output {
                stage::Output::Forward(frame) => {
                    (self.line.links[index + 1], Happening::Frame(index + 1, frame))
                }
                stage::Output::Report(report) => {
                    (self.line.links[self.stages.len()], Happening::Report(StageIndex(index as u16), report))
                }
                stage::Output::Store(work) => panic!("no stage has a store here: {work:?}"),
            };
            self.agenda.plan(self.now + at, happening);
        }
        let stage = &mut self.stages[index];
        if stage.running.is_some() {
            return;
        }
        let Some(call) = stage.core.next_call(self.now) else { return };
        let rows = call.n_rows();
        let took = if rows == 0 { Duration::ZERO } else { self.line.stages[index].time(rows) };
        stage.running = Some(call.execute(&mut stage.engine));
        stage.busy += took;
        let starts = match self.processors.iter_mut().min() {
            Some(free) => {
                let starts = self.now.max(*free);
                *free = starts + took;
                starts
            }
            None => self.now,
        };
        self.agenda.plan(starts + took, Happening::Done(index));
    }

    fn conclude(self) -> Forecast {
        assert!(self.coming.is_empty() && self.running.is_empty(), "every request is answered");
        let elapsed = self.ended.saturating_sub(self.started);
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let n_tokens: usize = self.workloads.iter().map(|workload| workload.answer.len()).sum();
        let decoded: u32 = self.timings.iter().map(|t| t.generated_tokens.saturating_sub(1)).sum();
        let decoding: Duration = self.timings.iter().map(|t| t.generation_time).sum();
        let stages = self
            .stages
            .iter()
            .map(|stage| StageUse { busy: stage.busy.as_secs_f64() / seconds, stats: *stage.core.stats() });
        Forecast {
            tokens_per_second: n_tokens as f64 / seconds,
            decode_rate: f64::from(decoded) / decoding.as_secs_f64().max(f64::MIN_POSITIVE),
            elapsed,
            longest_gap: self.longest_gap,
            stages: stages.collect(),
            stats: self.scheduler.stats(),
            timings: self.timings,
        }
    }
}

fn request(prompt: &[Token], script: usize, n_answer: usize) -> Request {
    Request {
        seed: script as u64,
        max_tokens: Some(n_answer as u32),
        ignore_eos: true,
        ..Request::new(prompt.to_vec())
    }
}
