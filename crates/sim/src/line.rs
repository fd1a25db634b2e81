//! A whole line in virtual time: a front, stages with toy engines, and the links between them, in one loop.

mod counts;
mod formation;
mod losses;
mod shapes;
mod stage;
mod wires;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ::stage::{Interest, Keeping, Output, StoreWork};
use bytes::Bytes;
use protocol::{
    Command, DecodeError, FaultKind, Frame, Generation, Report, StageIndex, StageState, ToFront, ToStage,
    Wire,
};

use crate::Sabotage;
use crate::check::Violation;
use crate::faults::Faults;
use crate::front::{Front, Judgement};
use crate::network::Network;
use crate::random::{Random, mix2};
use crate::scenario::{Outage, Scenario, StoreFlaws, is_refused};
use crate::toy::Flaws;
pub(crate) use counts::Counts;
use formation::{Phase, Place};
use stage::Stage;

/// Events after which a run is given up: some ten times what the longest one takes.
const MAX_EVENTS: u64 = 200_000;

/// Machines are named by their index, whoever sits where.
#[derive(Clone)]
enum Happening {
    /// At a machine.
    Frame(usize, Generation, Bytes),
    /// At a machine.
    Hint(usize, Bytes),
    /// At a machine: it gets a place in a line.
    Assigned(usize, Place),
    /// At a machine: what it needs for its place in this generation is there.
    Loaded(usize, Generation),
    /// At a machine: it hears that this generation is over.
    Released(usize, Generation),
    /// The engine of a machine in this life of its is done.
    Done(usize, u32),
    /// The store of a machine in this life of its has done what it was asked in this generation.
    Stored(usize, u32, Generation, StoreWork),
    /// At the front.
    Report(Bytes),
    /// A copy of a message comes when its line is over, and not before.
    Echo(Box<Self>),
    /// A machine that does nothing goes on.
    Thaw(usize),
    /// The front notices that a machine is not there.
    Missed(usize),
    /// The front reaches a machine again.
    Back(usize),
    /// The front forms a line if it can.
    Form,
    /// The front asked to be woken.
    Wake,
    LineUp,
    LineLost,
    /// One of the [`Faults::cuts`].
    Cut(usize),
    /// One of the [`Faults::stalls`].
    Stall(usize),
    /// One of the [`Faults::jumps`].
    Jump(usize),
    /// Nothing goes wrong any more.
    Calm,
}

pub(crate) struct Line<F> {
    front: F,
    machines: Vec<Stage>,
    /// Who may sit where, for each way to share the layers.
    shapes: Vec<Vec<shapes::Seat>>,
    /// Which of them is used.
    shape: usize,
    /// Which of them the next line has, unless that cannot be formed.
    next_shape: usize,
    /// Decides whose turn it is.
    turns: Random,
    /// Who sits where in the front's generation.
    seats: Vec<usize>,
    phase: Phase,
    network: Network,
    now: Duration,
    agenda: BTreeMap<(Duration, u64), Happening>,
    n_planned: u64,
    /// Of the front. Machines take it over when they are assigned.
    generation: Generation,
    /// When the line was up last, if what machines hold of that can be relied on.
    keep: Option<Generation>,
    /// Reasons, beside machines that are away, for which there is no line now.
    n_outages: u32,
    faults: Faults,
    /// Messages of this generation that will come once more.
    echoes: VecDeque<Happening>,
    wake_at: Option<Duration>,
    /// Whether a frame may come twice.
    faults_repeat: bool,
    /// Whether something has happened that makes a line silent without anybody's loss being noticed.
    may_be_silent: bool,
    sabotage: Option<Sabotage>,
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
    pub(crate) fn new(
        front: F,
        scenario: &Scenario,
        network: Network,
        flaws: &Flaws,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mut random = flaws.random.clone();
        let (machines, shapes) = shapes::born(scenario, flaws, &mut random);
        let mut line = Self {
            front,
            machines,
            shapes,
            shape: 0,
            next_shape: 0,
            turns: Random::new(mix2(flaws.random.clone().next(), 1)),
            seats: Vec::new(),
            phase: Phase::Down,
            network,
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            n_planned: 0,
            generation: Generation(1),
            keep: None,
            n_outages: 1,
            faults: scenario.faults.clone(),
            echoes: VecDeque::new(),
            wake_at: None,
            faults_repeat: scenario.faults.repeats,
            may_be_silent: sabotage.is_some() || scenario.until_mute.is_some() || scenario.faults.repeats,
            sabotage,
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
        line.plan_faults();
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
            } else if let Some((to, generation, frame)) = self.network.release() {
                self.post_frame(to, generation, &frame);
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
            Happening::Frame(machine, generation, bytes) => self.frame_arrives(machine, generation, &bytes),
            Happening::Hint(machine, bytes) => self.hint_arrives(machine, &bytes),
            Happening::Assigned(machine, place) => self.is_assigned(machine, place),
            Happening::Loaded(machine, generation) => self.is_loaded(machine, generation),
            Happening::Released(machine, generation) => {
                self.machines[machine].leave(generation);
                self.after_stage(machine);
            }
            Happening::Report(bytes) => self.report_arrives(&bytes),
            Happening::Done(machine, _) => self.call_is_done(machine),
            Happening::Stored(machine, _, generation, work) => self.store_is_done(machine, generation, work),
            Happening::Echo(message) => self.echo_arrives(*message),
            Happening::Thaw(machine) => self.thaw(machine),
            Happening::Missed(machine) => self.miss(machine),
            Happening::Back(machine) => self.come_back(machine),
            Happening::Form => self.form(),
            Happening::Wake => {
                self.wake_at = None;
                if self.front.wake(self.now) == Judgement::LineIsSilent {
                    if !self.may_be_silent {
                        self.violations.push(Violation::GivenUp);
                    }
                    self.keep = None;
                    self.lose_line();
                }
                self.after_front();
            }
            Happening::Cut(which) => self.cut(self.faults.cuts[which]),
            Happening::Stall(which) => self.stall(self.faults.stalls[which]),
            Happening::Jump(which) => self.jump(self.faults.jumps[which]),
            Happening::Calm => {
                self.faults.end();
                self.network.calm();
                self.machines.iter_mut().for_each(Stage::calm);
            }
            Happening::LineLost => {
                self.n_outages += 1;
                self.lose_line();
            }
            Happening::LineUp => {
                self.n_outages -= 1;
                self.form();
            }
        }
    }

    fn note(&mut self, happening: &Happening) {
        let (kind, at, bytes): (u64, u64, &[u8]) = match happening {
            Happening::Frame(machine, _, bytes) => (8, *machine as u64, bytes),
            Happening::Hint(machine, bytes) => (16, *machine as u64, bytes),
            Happening::Report(bytes) => (1, 0, bytes),
            Happening::Done(machine, _) => (24, *machine as u64, &[]),
            Happening::Stored(machine, ..) => (32, *machine as u64, &[]),
            Happening::Assigned(machine, _) => (33, *machine as u64, &[]),
            Happening::Loaded(machine, _) => (34, *machine as u64, &[]),
            Happening::Released(machine, _) => (35, *machine as u64, &[]),
            Happening::Thaw(machine) => (36, *machine as u64, &[]),
            Happening::Missed(machine) => (37, *machine as u64, &[]),
            Happening::Back(machine) => (38, *machine as u64, &[]),
            Happening::Cut(which) => (39, *which as u64, &[]),
            Happening::Stall(which) => (40, *which as u64, &[]),
            Happening::Jump(which) => (5, *which as u64, &[]),
            Happening::Echo(_) => (41, 0, &[]),
            Happening::Form => (42, 0, &[]),
            Happening::Wake => (2, 0, &[]),
            Happening::LineUp => (3, 0, &[]),
            Happening::LineLost => (4, 0, &[]),
            Happening::Calm => (6, 0, &[]),
        };
        let start = mix2(mix2(mix2(self.counts.trace, kind), at), self.now.as_nanos() as u64);
        self.counts.trace = bytes.iter().fold(start, |trace, &byte| mix2(trace, byte.into()));
    }

    /// A machine lets in the work of the generation that it has a place in: on a real line a link belongs to one, and so
    /// does the engine's thread behind it.
    fn frame_arrives(&mut self, machine: usize, generation: Generation, bytes: &Bytes) {
        if !self.lets_in(generation, self.machines[machine].place.generation, Sabotage::LetFramesIn) {
            self.counts.losses.late_frames += 1;
            return;
        }
        let stage = &mut self.machines[machine];
        let Some(frame) = understood(Frame::decode(bytes), &mut self.violations) else { return };
        let seq = frame.work.seq();
        if let Err(what) = stage.order.check(&frame.work)
            && !self.faults_repeat
        {
            self.violations.push(Violation::Order { stage: stage.place.seat, seq, what });
        }
        stage.known.hear_frame(&frame.work);
        stage.interest.note_frame(&frame);
        stage.core.handle_frame(frame, self.now + stage.clock);
        self.after_stage(machine);
    }

    fn hint_arrives(&mut self, machine: usize, bytes: &Bytes) {
        let Some(message) = understood(ToStage::decode(bytes), &mut self.violations) else { return };
        let Command::Hint(hint) = message.command else { return };
        let stage = &mut self.machines[machine];
        if message.generation != stage.place.generation {
            self.counts.losses.late_frames += 1;
            return;
        }
        stage.known.hear_hint(hint);
        stage.interest.note_hint(&hint);
        stage.core.handle_hint(hint);
        self.after_stage(machine);
    }

    fn report_arrives(&mut self, bytes: &Bytes) {
        let Some(message) = understood(ToFront::decode(bytes), &mut self.violations) else { return };
        if !self.lets_in(message.generation, self.generation, Sabotage::LetReportsIn) {
            self.counts.losses.late_reports += 1;
            return;
        }
        let machine = usize::from(message.from.0);
        // Only a sabotage lets somebody speak who has no seat.
        let Some(from) = self.seat_of(machine) else { return };
        let from = name(from);
        if let Report::State(state) = &message.report {
            return self.is_ready(machine, matches!(state, StageState::Ready { keeps: true, .. }));
        }
        if let Report::Fault(fault) = &message.report {
            self.counts.faults += 1;
            if !self.is_excused(&fault.kind) {
                let reason = fault.kind.to_string();
                self.violations.push(Violation::StageFault { stage: from, reason });
            }
        }
        match self.front.handle_report(from, message.report, self.now) {
            Ok(Judgement::Fine) => {}
            Ok(Judgement::LineIsSilent | Judgement::LineIsDisordered) => {
                self.counts.losses.disorders += 1;
                self.keep = None;
                self.lose_line();
            }
            Err(reason) => self.violations.push(Violation::ReportRefused { reason }),
        }
        self.after_front();
    }

    /// Whether a message of generation `its` is heard by who is in generation `ours`.
    fn lets_in(&mut self, its: Generation, ours: Generation, unless: Sabotage) -> bool {
        // Who has no place in a line does no harm whatever it lets in.
        let is_let_in = its != ours && ours != Generation(0) && self.sabotage == Some(unless);
        self.counts.losses.let_in += u64::from(is_let_in);
        its == ours || is_let_in
    }

    /// Whether a stage has every reason to report the fault.
    const fn is_excused(&self, kind: &FaultKind) -> bool {
        match kind {
            FaultKind::Engine { .. } => self.engines_fail,
            FaultKind::Sampler { .. } => self.samplers_refuse,
            // Stages may lose prefixes at any time.
            FaultKind::PrefixLost { .. } => true,
            kind => self.faults_repeat && kind.is_disorder(),
        }
    }

    fn call_is_done(&mut self, machine: usize) {
        let stage = &mut self.machines[machine];
        let (call, generation) = stage.running.take().expect("only a call under way is ever done");
        // An engine looks up from its work now and then only.
        if stage.interest.is_gone() && self.random.percent(50) {
            stage.cancel.raise();
            self.counts.cancelled_calls += 1;
        }
        let done = call.execute(&mut stage.engine);
        stage.cancel.clear();
        stage.core.complete(done, &stage.engine, self.now + stage.clock);
        for what in stage.engine.take_broken() {
            self.violations.push(Violation::Call { stage: stage.place.seat, what });
        }
        let outputs: Vec<_> = std::iter::from_fn(|| stage.core.poll_output()).collect();
        // The results of a call that the end of its line overtook are gone.
        if generation != stage.place.generation {
            stage.rest();
            if stage.is_loading {
                self.load(machine);
            }
            return;
        }
        if let Err(what) = stage.known.end_call(stage.core.stats(), &outputs) {
            self.violations.push(Violation::InVain { stage: stage.place.seat, what });
        }
        outputs.into_iter().for_each(|output| self.carry(machine, output));
        self.after_stage(machine);
    }

    fn store_is_done(&mut self, machine: usize, generation: Generation, work: StoreWork) {
        let (flaws, fulls, random) = (self.stores, self.faults.fulls, &mut self.random);
        let stage = &mut self.machines[machine];
        let is_current = generation == stage.place.generation;
        match work {
            StoreWork::Write { prefix, key, blob } => {
                let keeping = if random.percent(flaws.skips) {
                    Keeping::Skipped
                } else if random.percent(fulls) {
                    self.counts.losses.full_stores += 1;
                    Keeping::Failed
                } else {
                    stage.store.insert(key, blob);
                    Keeping::Kept
                };
                if is_current {
                    stage.core.handle_kept(prefix, keeping);
                }
            }
            StoreWork::Read { prefix, key } => {
                stage.n_reading = stage.n_reading.saturating_sub(1);
                if random.percent(flaws.losses) {
                    stage.store.remove(&key);
                }
                // A line that is assigned anew may ask for the same again; a late answer must do no harm.
                stage.core.handle_fetched(prefix, key, stage.store.get(&key).cloned());
            }
        }
        self.after_stage(machine);
    }

    /// Carries away what a stage says, and gives its engine the next call.
    fn after_stage(&mut self, machine: usize) {
        while let Some(output) = self.machines[machine].core.poll_output() {
            self.carry(machine, output);
        }
        let now = self.now;
        let stage = &mut self.machines[machine];
        let bytes = stage.core.prefix_bytes();
        if let Some(most) = self.prefix_budget.filter(|&most| bytes > most) {
            let what = format!("stage {} holds {bytes} of {most} bytes of prefixes", stage.place.seat);
            self.violations.push(Violation::Budget { what });
        }
        if stage.running.is_some() || stage.is_loading {
            return;
        }
        let Some(call) = stage.core.next_call(now + stage.clock) else { return };
        if call.spans().len() > 1 {
            self.counts.shared_calls += 1;
        }
        let took = stage.time.per_call + stage.time.per_row * call.n_rows() as u32;
        stage.known.begin_call(stage.core.stats());
        stage.interest = Interest::in_call(&call, stage.core.shape().rewind);
        stage.running = Some((call, stage.place.generation));
        let life = stage.life;
        self.plan(now + took, Happening::Done(machine, life));
    }

    fn carry(&mut self, from: usize, output: Output) {
        if !self.machines[from].speaks() {
            return;
        }
        let Place { generation, downstream, .. } = self.machines[from].place;
        match output {
            Output::Forward(frame) => {
                if let Some(to) = downstream {
                    self.send_frame(to, generation, frame);
                }
            }
            Output::Report(report) => self.send_report(from, report),
            Output::Store(work) => {
                let took = self.random.micros(0, self.stores.most.as_micros() as u32);
                self.counts.losses.slow_stores += u64::from(self.faults.disk > 1);
                let stage = &mut self.machines[from];
                stage.n_reading += u32::from(matches!(work, StoreWork::Read { .. }));
                let life = stage.life;
                self.plan(self.now + took, Happening::Stored(from, life, generation, work));
            }
        }
    }

    /// Carries away what the front says, and notes when it must be woken.
    fn after_front(&mut self) {
        self.violations.extend(self.front.misdeeds());
        while let Some(sent) = self.front.poll_sent() {
            self.send(sent);
        }
        if let Some(at) = self.front.next_wake()
            && self.wake_at.is_none_or(|planned| at < planned)
        {
            self.wake_at = Some(at);
            self.plan(at.max(self.now), Happening::Wake);
        }
    }

    /// Nothing moves any more: nothing may be held either.
    fn conclude(&mut self) {
        let n_sequences = self.front.n_sequences();
        if n_sequences > 0 {
            self.violations.push(Violation::FrontHeld { n_sequences });
        }
        for stage in &mut self.machines {
            stage.add_to(&mut self.counts);
            if let Some(what) = stage.holds(self.now) {
                self.violations.push(Violation::Held { stage: stage.place.seat, what });
            }
        }
    }
}

fn name(seat: usize) -> StageIndex {
    StageIndex(seat as u16)
}

fn understood<T>(decoded: Result<T, DecodeError>, violations: &mut Vec<Violation>) -> Option<T> {
    decoded.map_err(|error| violations.push(Violation::Undecodable { reason: error.to_string() })).ok()
}
