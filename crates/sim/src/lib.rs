//! Deterministic simulation of a whole line: the real scheduler, pipelines and stages with a toy engine, in virtual
//! time, over links that delay, stall and break.
//!
//! Owns: the toy model, virtual links, what a seed means, and the checkers. A run depends on its [`Plan`] alone, so a
//! failing seed fails for ever: `cargo run --release -p sim -- --seed N`. Also the place of tests about the workspace
//! itself. Does not know: sockets, threads, clocks, llama.cpp.
#![forbid(unsafe_code)]

mod check;
mod faults;
mod front;
mod known;
mod line;
mod network;
mod prompts;
mod random;
mod scenario;
mod toy;
mod watch;

use std::fmt;

pub use check::{Ending, Violation};
use check::{Expected, Stories};
use front::{Front, Guesses, Reach, Requests};
use line::Line;
use network::{Breakage, Network};
use prompts::Told;
use random::Random;
use scenario::Scenario;
use scheduler::Cuts;
use stage::Rewind;
use toy::Flaws;

/// What is run: a seed, and what is not left to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything that the other fields leave open.
    pub seed: u64,
    /// Which front drives the line.
    pub driver: Option<Driver>,
    /// Rows in a window at most, 1 to 16. The scheduler's controller is pinned to it.
    pub width: Option<u32>,
    /// Windows in flight at most. The scheduler's controller is pinned to it.
    pub depth: Option<u32>,
    /// No cancellations, no outages, nobody gives up in the queue.
    pub calm: bool,
    /// What is broken on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Who plays the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The scheduler.
    Scheduler,
    /// Pipelines with random and adversarial proposals.
    Guesses,
}

/// A fault that the checkers must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A link delivers two frames of one sequence in the wrong order.
    Reorder,
    /// Engines claim to cut a sequence, but do not.
    DropRewind,
    /// A link loses a frame.
    LeaveGap,
    /// A link delivers a frame twice.
    Repeat,
    /// A tail that drafts for itself does not take back what it has drafted.
    KeepDrafts,
    /// Machines let work in that belongs to a line that is over.
    LetFramesIn,
    /// The front hears reports that belong to a line that is over.
    LetReportsIn,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What must never happen but did.
    pub violations: Vec<Violation>,
    /// How much happened.
    pub summary: Summary,
}

/// Numbers by which one sees that runs are not idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Requests.
    pub requests: u64,
    /// Tokens generated.
    pub tokens: u64,
    /// Parts of prompts that were told.
    pub prompt_parts: u64,
    /// Windows sent.
    pub windows: u64,
    /// Of those, made stale.
    pub stale_windows: u64,
    /// Of those, dropped by a stage before it computed them; counted once per stage.
    pub dropped_windows: u64,
    /// Tokens proposed and sent.
    pub proposed: u64,
    /// Of those, committed.
    pub accepted: u64,
    /// Proposals refused because of tokens outside the vocabulary.
    pub refused_proposals: u64,
    /// Engine calls that served several sequences at once.
    pub shared_calls: u64,
    /// Engine calls that were stopped, since nobody wanted any of it.
    pub cancelled_calls: u64,
    /// Tokens that tails have drafted themselves.
    pub drafted: u64,
    /// Prompt tokens taken over from prefixes.
    pub reused_tokens: u64,
    /// Of those, from sequences that were still running.
    pub shared_tokens: u64,
    /// Of those, from what the stages had stored.
    pub restored_tokens: u64,
    /// Times that a stage did not have the prefix that a sequence was to begin with.
    pub lost_prefixes: u64,
    /// Times that a running request made room for a more urgent one.
    pub preempted: u64,
    /// Times that a request went on after an interruption.
    pub resumed: u64,
    /// Times that the line was lost.
    pub outages: u64,
    /// How often the layers were shared out anew.
    pub reshapes: u64,
    /// Stages that died and came back with nothing.
    pub deaths: u64,
    /// Of those, while a line was formed.
    pub deaths_forming: u64,
    /// Of those, while a prompt was on its way.
    pub deaths_prefilling: u64,
    /// Of those, while the stage waited for what it had stored.
    pub deaths_restoring: u64,
    /// Of those, while a sequence was being closed.
    pub deaths_closing: u64,
    /// Stages that did nothing for a while, and for less than they are given up for.
    pub naps: u64,
    /// Stages that did nothing for so long that they were given up.
    pub freezes: u64,
    /// Of those, how many went on when others worked in a line without them.
    pub late_wakes: u64,
    /// Times that a spare took a seat.
    pub stand_ins: u64,
    /// Lines that were given up before they were up.
    pub abandoned: u64,
    /// Frames and hints of a line that is over, at a stage that had left it.
    pub late_frames: u64,
    /// Reports of a line that is over.
    pub late_reports: u64,
    /// Messages that came once more when their line was over.
    pub echoes: u64,
    /// Frames that came twice in their own line.
    pub repeats: u64,
    /// Lines that were formed anew for that.
    pub disorders: u64,
    /// Lines that came back with what they had held.
    pub came_back: u64,
    /// Lines whose later stages came back with what they had held.
    pub came_back_in_part: u64,
    /// Tokens that those spared them.
    pub partly_reused_tokens: u64,
    /// Links that broke.
    pub cuts: u64,
    /// Messages that were lost with them.
    pub cut_messages: u64,
    /// Messages that waited for links that had stalled.
    pub stalled: u64,
    /// Clocks that jumped.
    pub jumps: u64,
    /// What slow stores were asked.
    pub slow_stores: u64,
    /// Prefixes for which stores had no room.
    pub full_stores: u64,
    /// Requests that came when nothing went wrong any more.
    pub late: u64,
    /// Sequences about which reports were lost.
    pub muted: u64,
    /// Faults reported by stages that had every reason to.
    pub faults: u64,
    /// Times that the sabotage did harm.
    pub sabotaged: u64,
    /// Events in the run.
    pub events: u64,
    /// A hash of everything that happened and when.
    pub trace: u64,
}

/// Texts are short here.
const LEAST_STORED: u32 = 20;

/// Runs a plan to its end. The same plan gives the same outcome.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let mut random = Random::new(plan.seed);
    let driver = plan.driver.unwrap_or_else(|| random.pick(&[Driver::Scheduler, Driver::Guesses]));
    let scenario = Scenario::draw(plan, driver, &mut random);
    let stories = Stories::new(scenario.asks.iter().map(|ask| {
        let (tokens, end) = ask.answer(&scenario.model, scenario.limits.context);
        let told = |wanted| Told::expected(&scenario.model, &ask.prompt, wanted);
        let told = ask.of_prompt.map(told).unwrap_or_default();
        let (is_refused, may_fail) = (scenario::is_refused(&ask.sampler), scenario.failures > 0);
        let may_be_lost = driver != Driver::Scheduler || scenario.replay_timeout < scenario::AGES;
        // Where requests may wait for a moment only, even a line that works turns some away.
        let is_late = ask.at >= faults::CALM && scenario.queue_timeout == scenario::AGES;
        Expected { told, tokens, end, is_refused, may_fail, may_be_lost, is_late }
    }));
    let asks = scenario.asks.clone();
    match driver {
        Driver::Scheduler => {
            let limits = scenario.limits;
            let n_stages = scenario.stages.len() as u16;
            let mut config = scheduler::Config::new(n_stages, limits.n_slots, limits.context, limits.n_vocab);
            config.chunk_rows = limits.chunk_rows;
            config.max_chunks_in_flight = limits.max_chunks;
            config.queue_limit = scenario.queue_limit;
            config.queue_timeout = scenario.queue_timeout;
            config.replay_timeout = scenario.replay_timeout;
            config.speculate = scenario.speculate.clone();
            config.prefix_tokens = scenario.prefix_tokens;
            config.copies_prefixes = scenario.prefix_bytes > 0;
            if let Rewind::InPlace { window } = scenario.sizes.rewind {
                config.cuts = Cuts::InSlots { window };
            }
            config.stored_tokens = scenario.stored_tokens;
            config.least_stored = LEAST_STORED;
            let front = Requests::new(config, limits, asks, stories, random.fork());
            let until_mute = scenario.until_mute;
            drive(front, plan, &scenario, until_mute, random)
        }
        Driver::Guesses => {
            let reach = Reach { width: plan.width, depth: plan.depth };
            let front = Guesses::new(asks, scenario.limits, reach, stories, random.fork());
            // It has no timer for what a line owes.
            drive(front, plan, &scenario, None, random)
        }
    }
}

fn drive(
    front: impl Front,
    plan: &Plan,
    scenario: &Scenario,
    until_mute: Option<u32>,
    mut random: Random,
) -> Outcome {
    let breakage = match plan.sabotage {
        Some(Sabotage::Reorder) => Some(Breakage::Reorder),
        Some(Sabotage::LeaveGap) => Some(Breakage::Lose),
        Some(Sabotage::Repeat) => Some(Breakage::Repeat),
        None if scenario.faults.repeats => Some(Breakage::Repeat),
        Some(
            Sabotage::DropRewind | Sabotage::KeepDrafts | Sabotage::LetFramesIn | Sabotage::LetReportsIn,
        )
        | None => None,
    };
    let flaws = Flaws {
        forgets_to_cut: plan.sabotage == Some(Sabotage::DropRewind),
        keeps_drafts: plan.sabotage == Some(Sabotage::KeepDrafts),
        agreement: scenario.sizes.drafts.unwrap_or(0),
        failures: scenario.failures,
        random: random.fork(),
    };
    let network = Network::new(scenario.delays, random, breakage, until_mute);
    let (mut front, network, counts, mut violations) =
        Line::new(front, scenario, network, &flaws, plan.sabotage).run();
    violations.extend(front.stories().conclude());
    let guessed = front.guessed();
    let summary = Summary {
        requests: scenario.asks.len() as u64,
        tokens: front.stories().n_tokens(),
        prompt_parts: front.stories().n_prompt_parts(),
        windows: guessed.windows,
        stale_windows: guessed.stale_windows,
        dropped_windows: counts.dropped,
        proposed: guessed.proposed,
        accepted: guessed.accepted,
        refused_proposals: guessed.refused,
        shared_calls: counts.shared_calls,
        cancelled_calls: counts.cancelled_calls,
        drafted: counts.drafted,
        reused_tokens: guessed.reused_tokens,
        shared_tokens: guessed.shared_tokens,
        restored_tokens: guessed.restored_tokens,
        lost_prefixes: guessed.lost_prefixes,
        preempted: guessed.preempted,
        resumed: guessed.resumed,
        outages: counts.outages,
        reshapes: counts.reshapes,
        deaths: counts.losses.deaths,
        deaths_forming: counts.losses.deaths_forming,
        deaths_prefilling: counts.losses.deaths_prefilling,
        deaths_restoring: counts.losses.deaths_restoring,
        deaths_closing: counts.losses.deaths_closing,
        naps: counts.losses.naps,
        freezes: counts.losses.freezes,
        late_wakes: counts.losses.late_wakes,
        stand_ins: counts.losses.stand_ins,
        abandoned: counts.abandoned,
        late_frames: counts.losses.late_frames,
        late_reports: counts.losses.late_reports,
        echoes: counts.losses.echoes,
        repeats: network.n_broken(),
        disorders: counts.losses.disorders,
        came_back: counts.losses.came_back,
        came_back_in_part: counts.losses.came_back_in_part,
        partly_reused_tokens: guessed.partly_reused_tokens,
        cuts: counts.losses.cuts,
        cut_messages: network.n_cut(),
        stalled: network.n_stalled(),
        jumps: counts.losses.jumps,
        slow_stores: counts.losses.slow_stores,
        full_stores: counts.losses.full_stores,
        late: scenario.asks.iter().filter(|ask| ask.at >= faults::CALM).count() as u64,
        muted: network.n_muted(),
        faults: counts.faults,
        sabotaged: network.n_broken() + counts.spoiled_calls + counts.losses.let_in,
        events: counts.events,
        trace: counts.trace,
    };
    Outcome { violations, summary }
}

impl Summary {
    /// Adds the counts of another run; the trace becomes that of both.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.prompt_parts += other.prompt_parts;
        self.windows += other.windows;
        self.stale_windows += other.stale_windows;
        self.dropped_windows += other.dropped_windows;
        self.proposed += other.proposed;
        self.accepted += other.accepted;
        self.refused_proposals += other.refused_proposals;
        self.shared_calls += other.shared_calls;
        self.cancelled_calls += other.cancelled_calls;
        self.drafted += other.drafted;
        self.reused_tokens += other.reused_tokens;
        self.shared_tokens += other.shared_tokens;
        self.restored_tokens += other.restored_tokens;
        self.lost_prefixes += other.lost_prefixes;
        self.preempted += other.preempted;
        self.resumed += other.resumed;
        self.outages += other.outages;
        self.reshapes += other.reshapes;
        self.deaths += other.deaths;
        self.deaths_forming += other.deaths_forming;
        self.deaths_prefilling += other.deaths_prefilling;
        self.deaths_restoring += other.deaths_restoring;
        self.deaths_closing += other.deaths_closing;
        self.naps += other.naps;
        self.freezes += other.freezes;
        self.late_wakes += other.late_wakes;
        self.stand_ins += other.stand_ins;
        self.abandoned += other.abandoned;
        self.late_frames += other.late_frames;
        self.late_reports += other.late_reports;
        self.echoes += other.echoes;
        self.repeats += other.repeats;
        self.disorders += other.disorders;
        self.came_back += other.came_back;
        self.came_back_in_part += other.came_back_in_part;
        self.partly_reused_tokens += other.partly_reused_tokens;
        self.cuts += other.cuts;
        self.cut_messages += other.cut_messages;
        self.stalled += other.stalled;
        self.jumps += other.jumps;
        self.slow_stores += other.slow_stores;
        self.full_stores += other.full_stores;
        self.late += other.late;
        self.muted += other.muted;
        self.faults += other.faults;
        self.sabotaged += other.sabotaged;
        self.events += other.events;
        self.trace = random::mix2(self.trace, other.trace);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} tokens, {} parts of prompts, {} windows ({} stale, {} drops), {} of {} guesses right, {} drafted by tails, {} shared calls, {} stopped, \
             {} prompt tokens reused ({} shared, {} restored, {} prefixes lost), {} preempted, {} resumed, {} outages, {} lines abandoned, {} reshapes, {} stand-ins, {} deaths ({} forming, {} prefilling, {} restoring, {} closing), \
             {} naps, {} freezes ({} woke late), {} late frames and {} late reports, {} echoes, {} repeated ({} lines given up for it), {} lines came back with what they held and {} with a part ({} tokens of it reused), {} cuts ({} messages lost), {} stalled, \
             {} jumps, {} slow and {} full stores, {} late, {} muted, {} faults, {} events",
            self.requests,
            self.tokens,
            self.prompt_parts,
            self.windows,
            self.stale_windows,
            self.dropped_windows,
            self.accepted,
            self.proposed,
            self.drafted,
            self.shared_calls,
            self.cancelled_calls,
            self.reused_tokens,
            self.shared_tokens,
            self.restored_tokens,
            self.lost_prefixes,
            self.preempted,
            self.resumed,
            self.outages,
            self.abandoned,
            self.reshapes,
            self.stand_ins,
            self.deaths,
            self.deaths_forming,
            self.deaths_prefilling,
            self.deaths_restoring,
            self.deaths_closing,
            self.naps,
            self.freezes,
            self.late_wakes,
            self.late_frames,
            self.late_reports,
            self.echoes,
            self.repeats,
            self.disorders,
            self.came_back,
            self.came_back_in_part,
            self.partly_reused_tokens,
            self.cuts,
            self.cut_messages,
            self.stalled,
            self.jumps,
            self.slow_stores,
            self.full_stores,
            self.late,
            self.muted,
            self.faults,
            self.events
        )
    }
}

impl fmt::Display for Plan {
    /// The command that runs it again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo run --release -p sim -- --seed {}", self.seed)?;
        match self.driver {
            Some(Driver::Scheduler) => write!(f, " --driver scheduler")?,
            Some(Driver::Guesses) => write!(f, " --driver guesses")?,
            None => {}
        }
        if let Some(width) = self.width {
            write!(f, " --width {width}")?;
        }
        if let Some(depth) = self.depth {
            write!(f, " --depth {depth}")?;
        }
        if self.calm {
            write!(f, " --calm")?;
        }
        match self.sabotage {
            Some(Sabotage::Reorder) => write!(f, " --sabotage reorder"),
            Some(Sabotage::DropRewind) => write!(f, " --sabotage rewind"),
            Some(Sabotage::LeaveGap) => write!(f, " --sabotage gap"),
            Some(Sabotage::Repeat) => write!(f, " --sabotage repeat"),
            Some(Sabotage::KeepDrafts) => write!(f, " --sabotage drafts"),
            Some(Sabotage::LetFramesIn) => write!(f, " --sabotage old-frames"),
            Some(Sabotage::LetReportsIn) => write!(f, " --sabotage old-reports"),
            None => Ok(()),
        }
    }
}
