//! The real scheduler, fed with requests and cancellations at given times.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::{End, Report, StageIndex, Token, Work};
use scheduler::{
    Config, Event, Failure, Finish, Output, Refusal, ReportFault, Request, RequestId, Scheduler,
    SequenceState,
};

use super::proposals::{Adversary, Proposer};
use super::turns::Turns;
use super::{Front, Guessed, Judgement, Sent, UnderWay};
use crate::check::{Ending, Stories, Violation};
use crate::random::Random;
use crate::scenario::{Ask, Limits};

/// How long a client that was refused waits before it tries again, the first time; then twice as long.
const RETRY: Duration = Duration::from_millis(3);

enum Act {
    /// If it is refused it comes again after that long.
    Submit(usize, Duration),
    Cancel(usize),
}

pub(crate) struct Requests {
    scheduler: Scheduler,
    limits: Limits,
    random: Random,
    asks: Vec<Ask>,
    acts: BTreeMap<(Duration, usize), Act>,
    n_acts: usize,
    /// What the scheduler calls each request.
    ids: BTreeMap<RequestId, usize>,
    stories: Stories,
    turns: Turns,
    now: Duration,
    /// When the line will have been silent for too long.
    silent_at: Option<Duration>,
    /// What the scheduler may hold.
    budget: Config,
    over_budget: Vec<Violation>,
    /// On the way out.
    sent: VecDeque<Sent>,
}

impl Requests {
    pub(crate) fn new(
        config: Config,
        limits: Limits,
        asks: Vec<Ask>,
        stories: Stories,
        random: Random,
    ) -> Self {
        let mut front = Self {
            scheduler: Scheduler::new(config.clone()),
            turns: Turns::new(config.queue_timeout),
            budget: config,
            now: Duration::ZERO,
            silent_at: None,
            over_budget: Vec::new(),
            sent: VecDeque::new(),
            limits,
            random,
            acts: BTreeMap::new(),
            n_acts: 0,
            ids: BTreeMap::new(),
            stories,
            asks,
        };
        for request in 0..front.asks.len() {
            front.plan(front.asks[request].at, Act::Submit(request, RETRY));
        }
        front
    }

    fn plan(&mut self, at: Duration, act: Act) {
        self.n_acts += 1;
        self.acts.insert((at, self.n_acts), act);
    }

    fn submit(&mut self, request: usize, pause: Duration, now: Duration) {
        let ask = &self.asks[request];
        let truth = self.stories.expected(request);
        let mut own: Vec<Box<dyn spec::Proposer>> = Vec::new();
        for _ in 0..self.random.pick(&[0, 0, 1, 1, 2]) {
            let proposer = Proposer::new(self.random.fork(), self.limits.n_vocab, self.limits.end_token);
            own.push(Box::new(Adversary::new(proposer, truth.to_vec())));
        }
        let prediction =
            self.random.percent(50).then(|| Self::expectation(&mut self.random, self.limits.n_vocab, truth));
        match self.scheduler.submit_with(Request { prediction, ..ask.request() }, own, now) {
            Ok(id) => {
                self.ids.insert(id, request);
                self.stories.accepted(request);
                self.turns.accepted(request, ask);
                if let Some(patience) = ask.patience {
                    self.plan(now + patience, Act::Cancel(request));
                }
            }
            Err(Refusal::NotReady | Refusal::QueueFull { .. }) => {
                self.plan(now + pause, Act::Submit(request, pause * 2))
            }
            Err(refusal) => {
                self.stories.accepted(request);
                self.stories.ended(request, Ending::Failed(refusal.to_string()));
            }
        }
    }

    /// The answer with some tokens replaced, left out or put in.
    fn expectation(random: &mut Random, n_vocab: u32, truth: &[Token]) -> Vec<Token> {
        let share = random.pick(&[0, 5, 30, 100]);
        let mut text = Vec::new();
        for &token in truth {
            let other = Token(random.between(0, n_vocab - 1).cast_signed());
            if !random.percent(share) {
                text.push(token);
            } else if random.percent(70) {
                text.extend([Some(other), random.percent(50).then_some(token)].into_iter().flatten());
            }
        }
        text
    }

    fn cancel(&mut self, request: usize, now: Duration) {
        let id = self.ids.iter().find(|(_, known)| **known == request).map(|(&id, _)| id);
        if let Some(id) = id {
            self.stories.cancelled(request);
            self.scheduler.cancel(id, now);
        }
    }

    fn tell(&mut self, id: RequestId, event: Event) {
        let request = self.ids[&id];
        match event {
            Event::Started { .. } => {
                self.stories.started(request);
                self.turns.started(request);
            }
            Event::Prompt(found) => self.stories.found(request, found),
            Event::Tokens { tokens, logprobs } => {
                let expected = if self.asks[request].top_logprobs.is_some() { tokens.len() } else { 0 };
                assert_eq!(logprobs.len(), expected, "one log-probability per token if asked for");
                self.stories.tokens(request, &tokens);
            }
            Event::Done { finish, .. } => {
                let ending = match finish {
                    Finish::Stop => Ending::Done(End::EndOfGeneration),
                    Finish::Length => Ending::Done(End::Limit),
                    Finish::Cancelled => Ending::Cancelled,
                };
                self.end(request, ending);
            }
            Event::Failed(failure) => {
                let ending = match failure {
                    Failure::LineLost { .. } => Ending::LineLost,
                    Failure::QueueTimeout { .. } | Failure::QueueFull { .. } => Ending::TurnedAway,
                    other => Ending::Failed(other.to_string()),
                };
                self.end(request, ending);
            }
        }
    }

    fn end(&mut self, request: usize, ending: Ending) {
        self.turns.ended(request, self.asks[request].client);
        self.stories.ended(request, ending);
    }

    fn watch(&mut self, work: &Work) {
        let request = |seq| self.scheduler.request_of(seq).and_then(|id| self.ids.get(&id)).copied();
        match work {
            Work::Open(open) => {
                if let Some(request) = request(open.seq) {
                    self.turns.opened(open.seq, request, self.now);
                }
            }
            Work::Park(_) | Work::Close(_) => self.turns.closed(work.seq(), self.now),
            Work::Chunk(_) | Work::Window(_) => {}
        }
    }

    /// Hears what the scheduler says to one thing before it hears the next.
    fn listen(&mut self) {
        while let Some(output) = self.scheduler.poll_output() {
            match output {
                Output::Work(frame) => {
                    self.watch(&frame.work);
                    self.sent.push_back(Sent::Work(frame));
                }
                Output::Hint(hint) => self.sent.push_back(Sent::Hint(hint)),
                Output::Event(id, event) => self.tell(id, event),
                // No scenario has a draft model: drafts are made here. Nor does a front start anew.
                Output::Draft(..) | Output::Shelved(_) => {}
            }
        }
        self.silent_at = self.scheduler.silence().map(|silence| silence.ends());
        let (stats, budget) = (self.scheduler.stats(), &self.budget);
        let held = [
            ("sequences", u64::from(stats.sequences), u64::from(budget.n_slots)),
            ("tokens of parked prefixes", stats.parked_tokens, budget.prefix_tokens),
            ("tokens of stored prefixes", stats.stored_tokens, budget.stored_tokens),
        ];
        for (what, n, most) in held.into_iter().filter(|(_, n, most)| n > most) {
            self.over_budget
                .push(Violation::Budget { what: format!("the front holds {n} of {most} {what}") });
        }
    }
}

impl Front for Requests {
    fn line_up(&mut self, lost_by: Option<u16>, now: Duration) {
        self.now = now;
        self.stories.healed();
        match lost_by {
            Some(lost_by) => self.scheduler.line_back(lost_by, now),
            None => self.scheduler.line_up(now),
        }
        self.listen();
    }

    fn reshape(&mut self, n_stages: u16, line: [u8; 32]) {
        self.scheduler.reshape(n_stages, line);
    }

    fn line_lost(&mut self, now: Duration) {
        self.now = now;
        self.listen();
        self.turns.line_lost(now);
        self.stories.interrupted();
        self.sent.clear();
        self.scheduler.line_lost("a stage was lost", now);
    }

    fn handle_report(
        &mut self,
        from: StageIndex,
        report: Report,
        now: Duration,
    ) -> Result<Judgement, String> {
        self.now = now;
        match self.scheduler.handle_report(from, report, now) {
            Ok(()) => Ok(Judgement::Fine),
            Err(ReportFault::Disorder { .. }) => Ok(Judgement::LineIsDisordered),
            Err(fault) => Err(fault.to_string()),
        }
    }

    fn wake(&mut self, now: Duration) -> Judgement {
        self.now = now;
        while let Some(act) = self.acts.first_entry().filter(|act| act.key().0 <= now) {
            match act.remove() {
                Act::Submit(request, pause) => self.submit(request, pause, now),
                Act::Cancel(request) => self.cancel(request, now),
            }
            self.listen();
        }
        self.scheduler.handle_timeout(now);
        self.listen();
        let is_silent = self.silent_at.is_some_and(|at| at <= now);
        if is_silent { Judgement::LineIsSilent } else { Judgement::Fine }
    }

    fn next_wake(&self) -> Option<Duration> {
        let act = self.acts.first_key_value().map(|((at, _), _)| *at);
        [act, self.scheduler.next_deadline(), self.silent_at].into_iter().flatten().min()
    }

    fn poll_sent(&mut self) -> Option<Sent> {
        self.listen();
        self.sent.pop_front()
    }

    fn misdeeds(&mut self) -> Vec<Violation> {
        let mut misdeeds = self.turns.violations();
        misdeeds.append(&mut self.over_budget);
        misdeeds
    }

    fn stories(&mut self) -> &mut Stories {
        &mut self.stories
    }

    fn guessed(&self) -> Guessed {
        let stats = self.scheduler.stats();
        Guessed {
            windows: stats.windows,
            stale_windows: stats.stale_windows,
            proposed: stats.drafted,
            accepted: stats.accepted,
            reused_tokens: stats.reused_tokens,
            shared_tokens: stats.shared_tokens,
            partly_reused_tokens: stats.partly_reused_tokens,
            restored_tokens: stats.restored_tokens,
            lost_prefixes: stats.lost_prefixes,
            preempted: stats.preempted,
            resumed: stats.resumed,
            refused: stats.guesses.sources().map(|source| source.unknown).sum(),
        }
    }

    fn under_way(&self) -> UnderWay {
        let is_any = |state| self.scheduler.sequences().any(|sequence| sequence.state == state);
        UnderWay { prefilling: is_any(SequenceState::Prefill), closing: is_any(SequenceState::Closing) }
    }

    fn n_sequences(&self) -> usize {
        self.scheduler.sequences().count()
    }
}
