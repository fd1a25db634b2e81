//! The scheduler: a queue of requests, the sequences on the line, and what goes out for them.
//!
//! Owns: who runs, the ids, and the order of outputs. Does not know how a sequence is cut into work, nor the links:
//! a driver feeds reports and time in and carries outputs away.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::{
    Close, Company, End, Fault, FaultKind, Frame, Hint, Open, Park, Position, Progress, Report, Reuse, SeqId,
    StageIndex, Token, Verdict, Work, limits,
};
use spec::{Draft, Line, Pace, Proposer};

use crate::groups::{self, Load};
use crate::prefixes::{Hit, Prefixes};
use crate::queue::{Patience, Queue, Waiting};
use crate::sequence::{Guessing, Sequence, Start};
use crate::{
    Client, Config, Drafting, Event, Failure, Finish, Refusal, ReportFault, Request, RequestId,
    SequenceStatus, Stats, Timings,
};

/// Something for the driver to carry away. Work of one sequence must reach stage 0 in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// For stage 0, on the data link.
    Work(Frame),
    /// For every stage, on its control link.
    Hint(Hint),
    /// For the caller of a request.
    Event(RequestId, Event),
    /// For whoever drafts for a request elsewhere; only if [`Config::speculate`] names a draft model.
    Draft(RequestId, Drafting),
}

/// All requests of a front on one line. Pure: `now` is the time since any fixed start and never decreases.
///
/// After every call that takes `now`, poll [`Scheduler::poll_output`] until it is empty and look at
/// [`Scheduler::next_deadline`] again.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    line_is_up: bool,
    queue: Queue,
    /// Every sequence whose memory is in use.
    sequences: BTreeMap<SeqId, Sequence>,
    prefixes: Prefixes,
    /// How fast the line is.
    pub(crate) pace: Pace,
    /// Verdicts still to come of groups whose first ones are here, see [`Company`]; below 0 while others came first.
    awaited: i32,
    /// Sequences whose verdicts are here and whose next windows go out with those of the rest of their group.
    answered: Vec<SeqId>,
    /// How many sequences the first stage may take together, as it was told, and for what that was found.
    together: (u32, Option<Load>),
    /// Probes in a row that taught nothing.
    pub(crate) vain_probes: u32,
    /// The sequences of requests that are not over.
    by_request: BTreeMap<RequestId, SeqId>,
    next_request: RequestId,
    next_seq: SeqId,
    outputs: VecDeque<Output>,
    stats: Stats,
}

/// A request that waits for a place.
impl Scheduler {
    /// A scheduler whose line is not up yet.
    ///
    /// # Panics
    /// If a budget that must be at least 1 is 0, or one is above what [`protocol::limits`] lets a stage accept.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.n_stages > 0 && config.n_slots > 0, "a line has at least one stage and one slot");
        let fits = config.n_stages <= limits::MAX_STAGES
            && config.n_slots <= limits::MAX_SLOTS
            && config.context <= limits::MAX_CONTEXT
            && config.chunk_rows <= limits::MAX_ROWS;
        assert!(fits, "no stage accepts more than the protocol's limits");
        let reach = config.speculate.reach;
        assert!(reach.max_width > 0 && reach.max_depth > 0, "a window has at least one row");
        assert!(config.chunk_rows > 0 && config.max_chunks_in_flight > 0, "a prompt must be able to move");
        Self {
            line_is_up: false,
            pace: Pace::new(config.n_stages),
            prefixes: Prefixes::new(config.prefix_tokens),
            vain_probes: 0,
            awaited: 0,
            answered: Vec::new(),
            together: (u32::MAX, None),
            queue: Queue::new(config.queue_limit),
            config,
            sequences: BTreeMap::new(),
            by_request: BTreeMap::new(),
            next_request: RequestId(0),
            next_seq: SeqId(0),
            outputs: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Takes a request: it starts at once if a slot is free, else it waits.
    ///
    /// # Errors
    /// If the request can never be served, the line is down, or the queue is full.
    pub fn submit(&mut self, request: Request, now: Duration) -> Result<RequestId, Refusal> {
        self.submit_with(request, Vec::new(), now)
    }

    /// As [`Scheduler::submit`], with sources of guesses of the caller's own. They are asked after those of
    /// [`Config::speculate`], and like them they change how fast the answer comes and nothing else.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn submit_with(
        &mut self,
        request: Request,
        own: Vec<Box<dyn Proposer>>,
        now: Duration,
    ) -> Result<RequestId, Refusal> {
        self.take(request, own, None, now)
    }

    pub(crate) fn take(
        &mut self,
        request: Request,
        own: Vec<Box<dyn Proposer>>,
        probe: Option<u32>,
        now: Duration,
    ) -> Result<RequestId, Refusal> {
        self.check(&request)?;
        if !self.line_is_up {
            return Err(Refusal::NotReady);
        }
        if !self.has_free_slot() {
            self.make_room(request.client)?;
        }
        let id = self.next_request;
        self.next_request = RequestId(id.0 + 1);
        self.stats.submitted += 1;
        let patience = Patience::Place(now.saturating_add(self.config.queue_timeout));
        let waiting = Waiting { request, own, probe, since: now, patience, past: None, was_misled: false };
        self.queue.push(id, waiting);
        self.admit(now);
        self.preempt(now);
        Ok(id)
    }

    fn make_room(&mut self, client: Client) -> Result<(), Refusal> {
        let limit = self.config.queue_limit;
        let Some(displaced) = self.queue.make_room(client) else {
            self.stats.refused += 1;
            return Err(Refusal::QueueFull { limit });
        };
        if let Some(id) = displaced {
            self.stats.failed += 1;
            self.emit(id, Event::Failed(Failure::QueueFull { limit }));
        }
        Ok(())
    }

    /// Ends a request for its caller. One that is over already, or was never taken, is left alone.
    pub fn cancel(&mut self, id: RequestId, now: Duration) {
        if let Some(&seq) = self.by_request.get(&id) {
            self.finish(seq, Finish::Cancelled, now);
        } else if let Some(waiting) = self.queue.remove(id) {
            self.stats.cancelled += 1;
            let prompt_tokens = waiting.request.prompt.len() as u32;
            let timings = match waiting.past {
                Some(past) => past.timings(prompt_tokens, now),
                None => Timings { prompt_tokens, ..Timings::default() },
            };
            self.emit(id, Event::Done { finish: Finish::Cancelled, timings });
        }
    }

    /// A draft for one of a request's sources has come from elsewhere. For a request that is over, or a source that it
    /// does not have, it is dropped.
    pub fn handle_draft(&mut self, id: RequestId, source: &str, draft: Draft, now: Duration) {
        let Some(&seq) = self.by_request.get(&id) else { return };
        let n_live = self.n_live();
        let line = Line { pace: &self.pace, n_live };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if sequence.handle_draft(source, draft, line) {
            self.send_all(seq, now);
        }
    }

    /// The line is ready: what waits may start.
    pub fn line_up(&mut self, now: Duration) {
        self.line_is_up = true;
        self.queue.line_up();
        self.admit(now);
    }

    /// The line is gone, and with it every sequence and all its memory. Running requests wait for the next one and go on
    /// there from their last token, for [`Config::replay_timeout`] at most; waiting ones go on waiting until
    /// [`Scheduler::line_up`] or their deadline.
    ///
    /// Reports of the lost line must not be handed in afterwards: they carry its generation.
    pub fn line_lost(&mut self, reason: &str, now: Duration) {
        self.line_is_up = false;
        self.outputs.retain(|output| !matches!(output, Output::Work(_) | Output::Hint(_)));
        let deadline = now.saturating_add(self.config.replay_timeout);
        self.queue.line_lost(deadline, reason);
        for seq in self.by_request.values().copied().collect::<Vec<_>>() {
            let can_wait = !self.config.replay_timeout.is_zero();
            if can_wait && self.sequences.get(&seq).is_some_and(|sequence| !sequence.is_probe()) {
                self.interrupt(seq, Patience::Line(deadline, reason.into()), now);
            } else {
                self.fail(seq, Failure::LineLost { reason: reason.into() });
            }
        }
        // Nobody is left to hear the `Close` frames or to answer them.
        self.outputs.retain(|output| !matches!(output, Output::Work(_) | Output::Hint(_)));
        self.sequences.clear();
        self.prefixes.clear();
        // The next line may have other machines in it.
        self.pace = Pace::new(self.config.n_stages);
        self.vain_probes = 0;
        self.awaited = 0;
        self.answered.clear();
        self.together = (u32::MAX, None);
    }

    /// What a stage says about sequences. Reports about a sequence that is over are dropped: they were on their way.
    ///
    /// # Errors
    /// If the report contradicts what was sent; the request concerned has failed then. The driver should log the peer.
    pub fn handle_report(
        &mut self,
        from: StageIndex,
        report: Report,
        now: Duration,
    ) -> Result<(), ReportFault> {
        let tail = StageIndex(self.config.n_stages - 1);
        let is_tails = matches!(report, Report::Verdict(_) | Report::Progress(_) | Report::Closed(_));
        if is_tails && from != tail {
            return Err(ReportFault::NotTail { from, tail });
        }
        match report {
            Report::State(_) | Report::Counters(_) => Ok(()),
            Report::Verdict(verdict) => {
                self.awaited += verdict.company.awaited();
                let result = self.handle_verdict(*verdict, now);
                if self.awaited <= 0 {
                    self.answer(now);
                }
                result
            }
            Report::Progress(progress) => self.handle_progress(&progress, now),
            Report::Closed(seq) => self.handle_closed(seq, now),
            Report::Fault(fault) => self.handle_fault(from, &fault, now),
        }
    }

    /// Drops requests whose time in the queue is over.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((id, waiting)) = self.queue.overdue(now) {
            self.stats.failed += 1;
            self.emit(id, Event::Failed(waiting.failure(now)));
        }
    }

    /// When [`Scheduler::handle_timeout`] must be called next, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.queue.next_deadline()
    }

    /// The next thing to carry away.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        stats.queued = self.queue.len() as u32;
        stats.sequences = self.sequences.len() as u32;
        (stats.parked_tokens, stats.parked_prefixes) = self.prefixes.size();
        self.sequences.values().for_each(|sequence| add(&mut stats, &sequence.guessing()));
        stats
    }

    /// Every sequence that holds memory, oldest first.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceStatus> + '_ {
        self.sequences.values().map(Sequence::status)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        if request.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if request.max_tokens == Some(0) {
            return Err(Refusal::NothingToGenerate);
        }
        let context = self.config.context;
        if request.prompt.len() >= context as usize {
            let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
            return Err(Refusal::ContextLength { prompt, context });
        }
        let is_known = |token: &Token| u32::try_from(token.0).is_ok_and(|id| id < self.config.n_vocab);
        let prediction = request.prediction.iter().flatten();
        match request.prompt.iter().chain(prediction).find(|token| !is_known(token)) {
            Some(&token) => Err(Refusal::UnknownToken(token)),
            None => Ok(()),
        }
    }

    /// Sequences that want the stages' time, now or as soon as their prompts are through.
    fn n_live(&self) -> u32 {
        self.sequences.values().filter(|sequence| !sequence.is_closing()).count().max(1) as u32
    }

    fn has_free_slot(&self) -> bool {
        self.line_is_up && self.sequences.len() < usize::from(self.config.n_slots)
    }

    /// Starts waiting requests as far as slots are free. Those that start together take turns with their chunks.
    fn admit(&mut self, now: Duration) {
        let mut started = VecDeque::new();
        while self.has_free_slot() {
            let running = |client| {
                let is_its =
                    |sequence: &&Sequence| !sequence.is_closing() && sequence.asked().client == client;
                self.sequences.values().filter(is_its).count()
            };
            let Some((id, waiting)) = self.queue.next(running) else { break };
            started.push_back(self.open(id, waiting, now));
        }
        while let Some(seq) = started.pop_front() {
            if self.send_next(seq, now) {
                started.push_back(seq);
            } else {
                self.tell_drafter(seq);
            }
        }
    }

    /// Has running requests make room for waiting ones that are more urgent: one for each, beyond those whose slots are
    /// about to be free. The least urgent goes, of those the one that came last.
    fn preempt(&mut self, now: Duration) {
        if !self.line_is_up {
            return;
        }
        loop {
            let n_closing = self.sequences.values().filter(|sequence| sequence.is_closing()).count();
            let running = self.sequences.iter().filter(|(_, s)| !s.is_closing() && !s.is_probe());
            let Some((priority, _, seq)) =
                running.map(|(&seq, s)| (s.asked().priority, s.request(), seq)).max()
            else {
                return;
            };
            if self.queue.n_before(priority) <= n_closing {
                return;
            }
            self.stats.preempted += 1;
            self.interrupt(seq, Patience::Endless, now);
        }
    }

    /// Takes a running request off the line; it waits to go on from its last token as a new sequence.
    fn interrupt(&mut self, seq: SeqId, patience: Patience, now: Duration) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let (own, past) = (sequence.take_own(), sequence.past());
        let request = sequence.asked().clone();
        if let Some(id) = self.close(seq, true) {
            let past = Some(past);
            let waiting =
                Waiting { request, own, probe: None, since: now, patience, past, was_misled: false };
            self.queue.push(id, waiting);
        }
    }

    fn open(&mut self, id: RequestId, waiting: Waiting, now: Duration) -> SeqId {
        let Waiting { mut request, own, probe, since, past, was_misled, .. } = waiting;
        let context = self.config.context as usize;
        request.prediction.iter_mut().for_each(|text| text.truncate(context));
        let seq = self.next_seq;
        self.next_seq = SeqId(seq.0 + 1);
        let n_prompt = request.prompt.len() as u32;
        let room = self.config.context - n_prompt;
        let limit = Position(n_prompt + request.max_tokens.map_or(room, |most| most.min(room)));
        let text = past.as_ref().map_or(&request.prompt, |past| &past.text).clone();
        let hit = self.find_prefix(&request, &text, was_misled);
        let start = Position(hit.map_or(0, |hit| hit.len as u32));
        if past.is_some() {
            self.stats.resumed += 1;
        } else {
            self.emit(id, Event::Started { cached: start.0, queued: now.saturating_sub(since) });
        }
        self.stats.reused_tokens += u64::from(start.0);
        let mut sampler = request.sampler.clone();
        if let Some(grammar) = &mut sampler.grammar {
            grammar.said = text[n_prompt as usize..].to_vec();
        }
        if let (Some(mirostat), Some(mu)) = (&mut sampler.mirostat, past.as_ref().and_then(|past| past.mu)) {
            mirostat.mu = mu;
        }
        let open = Open {
            seq,
            start,
            reuse: hit.map(|hit| Reuse { prefix: hit.prefix, keep: hit.keep }),
            seed: request.seed,
            choice: request.choice,
            sampler,
            limit,
            ignore_eos: request.ignore_eos,
            top_logprobs: request.top_logprobs,
            history: text[..start.0 as usize].to_vec(),
        };
        let n_text = text.len() as u32;
        let has_drafter = probe.is_none() && self.config.speculate.draft_model().is_some();
        let is_drafted = has_drafter && n_text + 2 <= limit.0;
        if is_drafted {
            let open = Open { start: Position(n_text), reuse: None, history: text.clone(), ..open.clone() };
            self.outputs.push_back(Output::Draft(id, Drafting::Open(Box::new(open))));
        }
        self.send(Work::Open(Box::new(open)));
        let asked = Box::new(request);
        let start = Start { seq, request: id, asked, text, start, past, limit, is_drafted, own, probe, now };
        self.sequences.insert(seq, Sequence::new(start));
        self.by_request.insert(id, seq);
        seq
    }

    /// The prefix that a text may begin with.
    fn find_prefix(&mut self, request: &Request, text: &[Token], was_misled: bool) -> Option<Hit> {
        // Who was misled once begins with nothing.
        let namespace = request.namespace.filter(|_| !was_misled)?;
        let mut hit = self.prefixes.find(namespace, text)?;
        hit.keep &= self.config.copies_prefixes;
        if !hit.keep {
            self.prefixes.remove(hit.prefix);
        }
        Some(hit)
    }

    /// Sends one more piece of work of the sequence, if it may; whether it did.
    fn send_next(&mut self, seq: SeqId, now: Duration) -> bool {
        let n_live = self.n_live();
        let line = Line { pace: &self.pace, n_live };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
        let Some(work) = sequence.next_work(&self.config, line, now) else { return false };
        if let Work::Chunk(chunk) = &work {
            self.stats.prefilled_tokens += chunk.tokens.len() as u64;
        }
        self.send(work);
        true
    }

    /// Sends all that the sequence may send, and then says so to whoever drafts for it.
    fn send_all(&mut self, seq: SeqId, now: Duration) {
        while self.send_next(seq, now) {}
        self.tell_drafter(seq);
    }

    /// Sends what follows on the verdicts of a group: a window of each sequence, as a group again, and then the rest.
    fn answer(&mut self, now: Duration) {
        let answered = std::mem::take(&mut self.answered);
        if answered.is_empty() {
            return;
        }
        self.tell_together();
        let first = self.outputs.len();
        let more: Vec<SeqId> = answered.into_iter().filter(|&seq| self.send_next(seq, now)).collect();
        Company::form(self.outputs.iter_mut().skip(first).filter_map(|output| match output {
            Output::Work(frame) if matches!(frame.work, Work::Window(_)) => Some(&mut frame.company),
            _ => None,
        }));
        for seq in more {
            self.send_all(seq, now);
        }
    }

    /// Tells the first stage how many sequences it should take together, if that has changed.
    fn tell_together(&mut self) {
        let running = || self.sequences.values().filter_map(Sequence::plan);
        let sequences = running().count() as u32;
        let depth = running().map(|plan| f64::from(plan.depth)).sum::<f64>() / f64::from(sequences.max(1));
        let width = running().map(|plan| plan.width).max().unwrap_or(1);
        let load = Load { sequences, depth, width };
        // What was measured changes slowly; what runs changes at once.
        let (told, found_for) = self.together;
        if found_for == Some(load) && !self.stats.loops.windows.is_multiple_of(32) {
            return;
        }
        let size = groups::together(load, told, &self.pace);
        self.together.1 = Some(load);
        if size != told.min(sequences) {
            self.together.0 = size;
            let sequences = u16::try_from(size).unwrap_or(u16::MAX);
            self.outputs.push_back(Output::Hint(Hint::Together { sequences }));
        }
    }

    fn tell_drafter(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if let Some(change) = sequence.text_change() {
            self.outputs.push_back(Output::Draft(sequence.request(), Drafting::Text(change)));
        }
    }

    fn handle_verdict(&mut self, verdict: Verdict, now: Duration) -> Result<(), ReportFault> {
        let seq = verdict.seq;
        let Some(sequence) = self.live(seq)? else {
            self.stats.late_reports += 1;
            return Ok(());
        };
        let id = sequence.request();
        let n_live = self.n_live();
        let line = Line { pace: &self.pace, n_live };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return Ok(()) };
        let answered = match sequence.handle_verdict(&verdict, line, now) {
            Ok(answered) => answered,
            Err(fault) => return Err(self.refuse(seq, fault)),
        };
        let is_probe = sequence.is_probe();
        self.pace.observe(&verdict.timings, answered.under_way);
        let commit = answered.commit;
        self.stats.generated_tokens += verdict.tokens.len() as u64;
        if let Some(epoch) = commit.opened
            && commit.n_stale > 0
        {
            self.outputs.push_back(Output::Hint(Hint::Advance { seq, epoch }));
        }
        if is_probe {
            self.note_probe(verdict.timings.first().map_or(0, |timing| timing.batch_rows));
        } else {
            self.stats.loops.add(answered.under_way, &verdict.timings);
            self.answered.push(seq);
            if self.awaited <= 0 {
                // The next windows go out before anyone looks at the tokens: the line must not wait for that.
                self.answer(now);
            }
        }
        self.emit(id, Event::Tokens { tokens: verdict.tokens, logprobs: verdict.logprobs });
        match verdict.ended {
            Some(End::EndOfGeneration | End::Grammar) => self.finish(seq, Finish::Stop, now),
            Some(End::Limit) => self.finish(seq, Finish::Length, now),
            None if is_probe => self.finish(seq, Finish::Length, now),
            None => {}
        }
        Ok(())
    }

    fn handle_progress(&mut self, progress: &Progress, now: Duration) -> Result<(), ReportFault> {
        let seq = progress.seq;
        let Some(sequence) = self.live(seq)? else {
            self.stats.late_reports += 1;
            return Ok(());
        };
        if let Err(fault) = sequence.handle_progress(progress) {
            return Err(self.refuse(seq, fault));
        }
        self.pace.observe_chunk(&progress.timings);
        self.send_all(seq, now);
        Ok(())
    }

    fn handle_closed(&mut self, seq: SeqId, now: Duration) -> Result<(), ReportFault> {
        if self.live(seq)?.is_some() {
            return Err(self.refuse(seq, ReportFault::ClosedEarly { seq }));
        }
        self.sequences.remove(&seq);
        self.admit(now);
        Ok(())
    }

    fn handle_fault(&mut self, from: StageIndex, fault: &Fault, now: Duration) -> Result<(), ReportFault> {
        let failure = failure_of(from, &fault.kind);
        if let Some(seq) = fault.seq {
            if self.live(seq)?.is_some() {
                if let FaultKind::PrefixLost { prefix } = fault.kind {
                    self.begin_again(seq, prefix, now);
                    return Ok(());
                }
                self.fail(seq, failure);
            } else {
                self.stats.late_reports += 1;
            }
        } else {
            for seq in self.by_request.values().copied().collect::<Vec<_>>() {
                self.fail(seq, failure.clone());
            }
        }
        Ok(())
    }

    /// The sequence, unless it is over.
    fn live(&mut self, seq: SeqId) -> Result<Option<&mut Sequence>, ReportFault> {
        if seq >= self.next_seq {
            return Err(ReportFault::NeverOpened { seq });
        }
        Ok(self.sequences.get_mut(&seq).filter(|sequence| !sequence.is_closing()))
    }

    /// Fails the request of a sequence about which a stage said something impossible.
    fn refuse(&mut self, seq: SeqId, fault: ReportFault) -> ReportFault {
        self.fail(seq, Failure::Fault { reason: fault.to_string() });
        fault
    }

    /// A stage does not have the prefix that a sequence was opened with: its request waits for a slot once more, before
    /// all others, and then computes its whole prompt.
    fn begin_again(&mut self, seq: SeqId, prefix: SeqId, now: Duration) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let (request, own) = (sequence.asked().clone(), sequence.take_own());
        let past = sequence.was_interrupted().then(|| sequence.past());
        self.stats.lost_prefixes += 1;
        if self.prefixes.remove(prefix) {
            self.send(Work::Close(Close { seq: prefix, inputs: Position(0) }));
        }
        if let Some(id) = self.close(seq, false) {
            // A probe shares nothing, so it begins with nothing that could be lost.
            let waiting = Waiting {
                request,
                own,
                probe: None,
                since: now,
                patience: Patience::Endless,
                past,
                was_misled: true,
            };
            self.queue.push(id, waiting);
        }
    }

    fn fail(&mut self, seq: SeqId, failure: Failure) {
        if let Some(id) = self.close(seq, false) {
            self.stats.failed += 1;
            self.emit(id, Event::Failed(failure));
        }
    }

    fn finish(&mut self, seq: SeqId, finish: Finish, now: Duration) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let timings = sequence.timings(now);
        if let Some(id) = self.close(seq, true) {
            match finish {
                Finish::Cancelled => self.stats.cancelled += 1,
                Finish::Stop | Finish::Length => self.stats.finished += 1,
            }
            self.emit(id, Event::Done { finish, timings });
        }
    }

    /// Takes a sequence off the line; its slot stays in use until the tail has seen that. What it has computed is parked
    /// if it `may` be.
    fn close(&mut self, seq: SeqId, may_park: bool) -> Option<RequestId> {
        let sequence = self.sequences.get_mut(&seq)?;
        let id = sequence.request();
        let guessing = sequence.guessing_at_end();
        add(&mut self.stats, &guessing);
        let inputs = sequence.inputs();
        let namespace = sequence.asked().namespace.filter(|_| may_park);
        let computed = namespace.map(|namespace| (namespace, sequence.computed().to_vec()));
        if sequence.close() {
            self.outputs.push_back(Output::Hint(Hint::Drop { seq }));
        }
        self.by_request.remove(&id);
        if sequence.is_drafted() {
            self.outputs.push_back(Output::Draft(id, Drafting::Close));
        }
        let gone = match computed {
            Some((namespace, tokens)) => {
                let len = Position(tokens.len() as u32);
                let gone = self.prefixes.insert(namespace, tokens, seq);
                if !gone.contains(&seq) {
                    self.send(Work::Park(Park { seq, len }));
                }
                gone
            }
            None => vec![seq],
        };
        for gone in gone {
            let inputs = if gone == seq { inputs } else { Position(0) };
            self.send(Work::Close(Close { seq: gone, inputs }));
        }
        Some(id)
    }

    fn send(&mut self, work: Work) {
        self.outputs.push_back(Output::Work(Frame::new(work)));
    }

    fn emit(&mut self, id: RequestId, event: Event) {
        self.outputs.push_back(Output::Event(id, event));
    }
}

fn add(stats: &mut Stats, guessing: &Guessing) {
    let windows = guessing.windows;
    stats.windows += u64::from(windows.windows);
    stats.live_windows += u64::from(windows.live_windows);
    stats.stale_windows += u64::from(windows.stale_windows);
    stats.drafted += u64::from(windows.proposed);
    stats.accepted += u64::from(windows.accepted);
    stats.epochs += u64::from(guessing.epochs);
    stats.in_flight.add(&guessing.in_flight);
    stats.guesses.add(&guessing.tally);
}

fn failure_of(from: StageIndex, kind: &FaultKind) -> Failure {
    match kind {
        FaultKind::Sampler { reason } => Failure::Parameters { reason: reason.clone() },
        FaultKind::Link { .. } => Failure::LineLost { reason: format!("stage {from}: {kind}") },
        _ => Failure::Fault { reason: format!("stage {from}: {kind}") },
    }
}
