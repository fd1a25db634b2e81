//! A whole line in virtual time: a front, stages with toy engines, and the links between them, in one loop.

mod deaths;
mod shapes;
mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use ::stage::{Interest, Keeping, Output, StoreWork};
use bytes::Bytes;
use protocol::{
    Command, DecodeError, FaultKind, Frame, Generation, Hint, PeerIndex, Report, StageIndex, ToFront,
    ToStage, Wire,
};

use crate::check::Violation;
use crate::faults::{CALM, Death};
use crate::front::{Front, Judgement, Sent};
use crate::network::{Link, Network};
use crate::random::{Random, mix2};
use crate::scenario::{Outage, Scenario, StoreFlaws, is_refused};
use crate::toy::Flaws;
use stage::Stage;

/// Events after which a run is given up: some ten times what the longest one takes.
const MAX_EVENTS: u64 = 200_000;

/// How long it takes to form a line that was given up anew.
const FORMING: Duration = Duration::from_millis(1);

enum Happening {
    /// At a stage.
    Frame(usize, Generation, Bytes),
    /// At a stage.
    Hint(usize, Bytes),
    /// At the front.
    Report(Bytes),
    /// The engine of a stage in this life of its is done.
    Done(usize, u32),
    /// A stage's store has done what it was asked in this generation.
    Stored(usize, Generation, StoreWork),
    /// The front asked to be woken.
    Wake,
    LineUp,
    LineLost,
    /// It is later than it was.
    ClockJumps(Duration),
    /// Nothing goes wrong any more.
    Calm,
}

/// Counters of the whole line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    /// Engine calls that served several sequences at once.
    pub(crate) shared_calls: u64,
    /// Engine calls that were stopped, since nobody wanted any of it.
    pub(crate) cancelled_calls: u64,
    /// Windows that a stage dropped before it computed them.
    pub(crate) dropped: u64,
    /// Engine calls on top of rows that should have been cut.
    pub(crate) spoiled_calls: u64,
    /// Tokens that tails have drafted.
    pub(crate) drafted: u64,
    pub(crate) outages: u64,
    /// Stages that died.
    pub(crate) deaths: u64,
    /// How often other stages took over, or gave back.
    pub(crate) reshapes: u64,
    pub(crate) faults: u64,
    /// A hash of everything that happened and when.
    pub(crate) trace: u64,
}

pub(crate) struct Line<F> {
    front: F,
    stages: Vec<Stage>,
    /// Those that share the layers otherwise, while it is not their turn; none if nobody ever does.
    others: Vec<Stage>,
    /// Decides whose turn it is.
    turns: Random,
    network: Network,
    now: Duration,
    agenda: BTreeMap<(Duration, u64), Happening>,
    n_planned: u64,
    /// Of the front. Stages take it over when they are assigned again.
    generation: Generation,
    /// Reasons for which there is no line now.
    n_outages: u32,
    deaths: Vec<Death>,
    wake_at: Option<Duration>,
    engines_fail: bool,
    samplers_refuse: bool,
    stores: StoreFlaws,
    random: Random,
    /// Of each stage; none where what a store gave may exceed it.
    prefix_budget: Option<u64>,
    violations: Vec<Violation>,
    counts: Counts,
}

impl<F: Front> Line<F> {
    pub(crate) fn new(front: F, scenario: &Scenario, network: Network, flaws: &Flaws) -> Self {
        let mut random = flaws.random.clone();
        let (stages, others) = shapes::born(scenario, flaws, &mut random);
        let mut line = Self {
            front,
            stages,
            others,
            turns: Random::new(mix2(flaws.random.clone().next(), 1)),
            network,
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            n_planned: 0,
            generation: Generation(0),
            n_outages: 1,
            deaths: scenario.faults.deaths.clone(),
            wake_at: None,
            engines_fail: scenario.failures > 0,
            stores: scenario.stores,
            random,
            prefix_budget: (scenario.stored_tokens == 0).then_some(scenario.prefix_bytes),
            samplers_refuse: scenario.asks.iter().any(|ask| is_refused(&ask.sampler)),
            violations: Vec::new(),
            counts: Counts::default(),
        };
        line.plan(Duration::from_millis(1), Happening::LineUp);
        for &Outage { at, lasts } in &scenario.outages {
            line.plan(at, Happening::LineLost);
            line.plan(at + lasts, Happening::LineUp);
        }
        for &(at, by) in &scenario.faults.jumps {
            line.plan(at, Happening::ClockJumps(by));
        }
        line.plan(CALM, Happening::Calm);
        line
    }

    /// Runs until nothing can happen any more.
    pub(crate) fn run(mut self) -> (F, Network, Counts, Vec<Violation>) {
        self.after_front();
        while self.counts.events < MAX_EVENTS {
            if let Some(((at, _), happening)) = self.agenda.pop_first() {
                // After a jump of the clock, what was due before is late.
                self.now = at.max(self.now);
                self.counts.events += 1;
                self.befall(happening);
            } else if let Some((to, frame)) = self.network.release() {
                self.post_frame(to, &frame);
            } else {
                break;
            }
        }
        if self.counts.events == MAX_EVENTS {
            self.violations.push(Violation::Endless { n_events: MAX_EVENTS });
        }
        self.conclude();
        (self.front, self.network, self.counts, self.violations)
    }

    fn plan(&mut self, at: Duration, happening: Happening) {
        self.n_planned += 1;
        self.agenda.insert((at, self.n_planned), happening);
    }

    fn happen(&mut self, happening: Happening) {
        self.note(&happening);
        match happening {
            Happening::Frame(stage, generation, bytes) => self.frame_arrives(stage, generation, &bytes),
            Happening::Hint(stage, bytes) => self.hint_arrives(stage, &bytes),
            Happening::Report(bytes) => self.report_arrives(&bytes),
            Happening::Done(stage, _) => self.call_is_done(stage),
            Happening::Stored(stage, generation, work) => self.store_is_done(stage, generation, work),
            Happening::Wake => {
                self.wake_at = None;
                if self.front.wake(self.now) == Judgement::LineIsSilent {
                    self.plan(self.now, Happening::LineLost);
                    self.plan(self.now + FORMING, Happening::LineUp);
                }
                self.after_front();
            }
            Happening::ClockJumps(by) => self.now += by,
            Happening::Calm => {
                self.deaths.clear();
                self.network.calm();
                self.stages.iter_mut().chain(&mut self.others).for_each(Stage::calm);
            }
            Happening::LineLost => {
                self.n_outages += 1;
                if self.n_outages > 1 {
                    return;
                }
                self.counts.outages += 1;
                self.generation = Generation(self.generation.0 + 1);
                self.network.reconnect();
                self.front.line_lost(self.now);
                self.after_front();
            }
            Happening::LineUp => {
                self.n_outages -= 1;
                if self.n_outages > 0 {
                    return;
                }
                self.take_turns();
                for stage in &mut self.stages {
                    stage.assign(self.generation);
                }
                self.front.line_up(self.now);
                self.after_front();
            }
        }
    }

    fn note(&mut self, happening: &Happening) {
        let (kind, bytes): (u64, &[u8]) = match happening {
            Happening::Frame(stage, _, bytes) => (8 + *stage as u64, bytes),
            Happening::Hint(stage, bytes) => (16 + *stage as u64, bytes),
            Happening::Report(bytes) => (1, bytes),
            Happening::Done(stage, _) => (24 + *stage as u64, &[]),
            Happening::Stored(stage, ..) => (32 + *stage as u64, &[]),
            Happening::Wake => (2, &[]),
            Happening::LineUp => (3, &[]),
            Happening::LineLost => (4, &[]),
            Happening::ClockJumps(_) => (5, &[]),
            Happening::Calm => (6, &[]),
        };
        let start = mix2(mix2(self.counts.trace, kind), self.now.as_nanos() as u64);
        self.counts.trace = bytes.iter().fold(start, |trace, &byte| mix2(trace, byte.into()));
    }

    fn frame_arrives(&mut self, index: usize, generation: Generation, bytes: &Bytes) {
        let stage = &mut self.stages[index];
        if generation != stage.generation {
            return;
        }
        let Some(frame) = understood(Frame::decode(bytes), &mut self.violations) else { return };
        let seq = frame.work.seq();
        if let Err(what) = stage.order.check(&frame.work) {
            self.violations.push(Violation::Order { stage: name(index), seq, what });
        }
        stage.known.hear_frame(&frame.work);
        stage.interest.note_frame(&frame);
        stage.core.handle_frame(frame, self.now);
        self.after_stage(index);
    }

    fn hint_arrives(&mut self, index: usize, bytes: &Bytes) {
        let stage = &mut self.stages[index];
        let Some(message) = understood(ToStage::decode(bytes), &mut self.violations) else { return };
        if let Command::Hint(hint) = message.command
            && message.generation == stage.generation
        {
            stage.known.hear_hint(hint);
            stage.interest.note_hint(&hint);
            stage.core.handle_hint(hint);
            self.after_stage(index);
        }
    }

    fn report_arrives(&mut self, bytes: &Bytes) {
        let Some(message) = understood(ToFront::decode(bytes), &mut self.violations) else { return };
        if message.generation != self.generation {
            return;
        }
        // Nobody changes places here.
        let from = StageIndex(message.from.0);
        if let Report::Fault(fault) = &message.report {
            self.counts.faults += 1;
            if !self.is_excused(&fault.kind) {
                let reason = fault.kind.to_string();
                self.violations.push(Violation::StageFault { stage: from, reason });
            }
        }
        if let Err(reason) = self.front.handle_report(from, message.report, self.now) {
            self.violations.push(Violation::ReportRefused { reason });
        }
        self.after_front();
    }

    /// Whether a stage has every reason to report the fault.
    const fn is_excused(&self, kind: &FaultKind) -> bool {
        match kind {
            FaultKind::Engine { .. } => self.engines_fail,
            FaultKind::Sampler { .. } => self.samplers_refuse,
            // Stages may lose prefixes at any time.
            FaultKind::PrefixLost { .. } => true,
            _ => false,
        }
    }

    fn call_is_done(&mut self, index: usize) {
        let stage = &mut self.stages[index];
        let (call, generation) = stage.running.take().expect("only a call under way is ever done");
        // An engine looks up from its work now and then only.
        if stage.interest.is_gone() && self.random.percent(50) {
            stage.cancel.raise();
            self.counts.cancelled_calls += 1;
        }
        let done = call.execute(&mut stage.engine);
        stage.cancel.clear();
        stage.core.complete(done, &stage.engine, self.now);
        for what in stage.engine.take_broken() {
            self.violations.push(Violation::Call { stage: name(index), what });
        }
        let outputs: Vec<_> = std::iter::from_fn(|| stage.core.poll_output()).collect();
        // The results of a call that a new assignment overtook are gone.
        if generation == stage.generation
            && let Err(what) = stage.known.end_call(stage.core.stats(), &outputs)
        {
            self.violations.push(Violation::InVain { stage: name(index), what });
        }
        outputs.into_iter().for_each(|output| self.carry(index, output));
        self.after_stage(index);
    }

    fn store_is_done(&mut self, index: usize, generation: Generation, work: StoreWork) {
        let (flaws, random) = (self.stores, &mut self.random);
        let stage = &mut self.stages[index];
        let is_current = generation == stage.generation;
        match work {
            StoreWork::Write { prefix, key, blob } => {
                let keeping = if random.percent(flaws.skips) { Keeping::Skipped } else { Keeping::Kept };
                if keeping == Keeping::Kept {
                    stage.store.insert(key, blob);
                }
                if is_current {
                    stage.core.handle_kept(prefix, keeping);
                }
            }
            StoreWork::Read { prefix, key } => {
                if random.percent(flaws.losses) {
                    stage.store.remove(&key);
                }
                // A line that is assigned anew may ask for the same again; a late answer must do no harm.
                stage.core.handle_fetched(prefix, key, stage.store.get(&key).cloned());
            }
        }
        self.after_stage(index);
    }

    /// Carries away what a stage says, and gives its engine the next call.
    fn after_stage(&mut self, index: usize) {
        while let Some(output) = self.stages[index].core.poll_output() {
            self.carry(index, output);
        }
        let stage = &mut self.stages[index];
        let bytes = stage.core.prefix_bytes();
        if let Some(most) = self.prefix_budget.filter(|&most| bytes > most) {
            let what = format!("stage {index} holds {bytes} of {most} bytes of prefixes");
            self.violations.push(Violation::Budget { what });
        }
        if stage.running.is_some() {
            return;
        }
        let Some(call) = stage.core.next_call(self.now) else { return };
        if call.spans().len() > 1 {
            self.counts.shared_calls += 1;
        }
        let took = stage.time.per_call + stage.time.per_row * call.n_rows() as u32;
        stage.known.begin_call(stage.core.stats());
        stage.interest = Interest::in_call(&call, stage.core.shape().rewind);
        stage.running = Some((call, stage.generation));
        let life = stage.life;
        self.plan(self.now + took, Happening::Done(index, life));
    }

    fn carry(&mut self, from: usize, output: Output) {
        if !self.stages[from].speaks() {
            return;
        }
        match output {
            Output::Forward(frame) => self.send_frame(from + 1, self.stages[from].generation, frame),
            Output::Report(report) => self.send_report(from, report),
            Output::Store(work) => {
                let took = self.random.micros(0, self.stores.most.as_micros() as u32);
                let generation = self.stages[from].generation;
                self.plan(self.now + took, Happening::Stored(from, generation, work));
            }
        }
    }

    /// Carries away what the front says, and notes when it must be woken.
    fn after_front(&mut self) {
        self.violations.extend(self.front.misdeeds());
        while let Some(sent) = self.front.poll_sent() {
            match sent {
                Sent::Work(frame) => self.send_frame(0, self.generation, frame),
                Sent::Hint(hint) => self.send_hint(hint),
            }
        }
        if let Some(at) = self.front.next_wake()
            && self.wake_at.is_none_or(|planned| at < planned)
        {
            self.wake_at = Some(at);
            self.plan(at.max(self.now), Happening::Wake);
        }
    }

    fn send_frame(&mut self, to: usize, generation: Generation, frame: Frame) {
        if generation != self.generation {
            return;
        }
        for frame in self.network.pass(to, frame) {
            self.post_frame(to, &frame);
        }
    }

    fn post_frame(&mut self, to: usize, frame: &Frame) {
        let (head, body) = frame.encode_parts();
        let at = self.network.arrival(Link::Rows(to), Some(frame.work.seq()), self.now);
        self.plan(at, Happening::Frame(to, self.generation, [head, body].concat().into()));
    }

    fn send_hint(&mut self, hint: Hint) {
        for index in 0..self.stages.len() {
            for _ in 0..self.network.copies_of_hint() {
                let message =
                    ToStage { to: peer(index), generation: self.generation, command: Command::Hint(hint) };
                let at = self.network.arrival(Link::Hints(index), None, self.now);
                self.plan(at, Happening::Hint(index, encoded(&message)));
            }
        }
    }

    fn send_report(&mut self, from: usize, report: Report) {
        if !self.network.is_heard(&report) {
            return;
        }
        let message = ToFront { from: peer(from), generation: self.stages[from].generation, report };
        let at = self.network.arrival(Link::Reports(from), None, self.now);
        self.plan(at, Happening::Report(encoded(&message)));
    }

    /// Nothing moves any more: nothing may be held either.
    fn conclude(&mut self) {
        let n_sequences = self.front.n_sequences();
        if n_sequences > 0 {
            self.violations.push(Violation::FrontHeld { n_sequences });
        }
        for (index, stage) in self.stages.iter_mut().enumerate() {
            stage.add_to(&mut self.counts);
            if let Some(what) = stage.holds(self.now) {
                self.violations.push(Violation::Held { stage: name(index), what });
            }
        }
    }
}

fn name(index: usize) -> StageIndex {
    StageIndex(index as u16)
}

fn peer(index: usize) -> PeerIndex {
    PeerIndex(index as u16)
}

fn encoded<T: Wire>(message: &T) -> Bytes {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes.into()
}

fn understood<T>(decoded: Result<T, DecodeError>, violations: &mut Vec<Violation>) -> Option<T> {
    decoded.map_err(|error| violations.push(Violation::Undecodable { reason: error.to_string() })).ok()
}
