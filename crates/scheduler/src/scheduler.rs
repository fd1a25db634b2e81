//! The scheduler: a queue of requests, the sequences on the line, and what goes out for them.
//!
//! Owns: who runs, the ids, and the order of outputs. Does not know how a sequence is cut into work, nor the links:
//! a driver feeds reports and time in and carries outputs away.

mod admission;
mod beginning;
mod losses;
mod reports;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use protocol::{Frame, Hint, PrefixKey, SeqId, Token, Work, limits};
use spec::{Draft, Line, Pace, Proposer};

use crate::config::Cuts;
use crate::groups::Load;
use crate::meter::Guessing;
use crate::prefixes::{Namespace, Prefixes, Trust};
use crate::queue::{Patience, Queue, Waiting};
use crate::remains::Remains;
use crate::sequence::Sequence;
use crate::shelf::{Shelf, Shelved};
use crate::{Config, Drafting, Event, Finish, Refusal, Request, RequestId, SequenceStatus, Stats, Timings};

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
    /// For whoever remembers what is stored; only if [`Config::stored_tokens`] is not 0.
    Shelved(Shelved),
}

/// All requests of a front on one line. Pure: `now` is the time since any fixed start and never decreases.
///
/// After every call that takes `now`, poll [`Scheduler::poll_output`] until it is empty and look at
/// [`Scheduler::next_deadline`] again.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    line_is_up: bool,
    /// Nothing new may begin.
    is_held: bool,
    /// Until when a line is awaited in place of the one that was lost, and why there is none yet.
    recovery: Option<(Duration, String)>,
    queue: Queue,
    /// Every sequence whose memory is in use.
    pub(crate) sequences: BTreeMap<SeqId, Sequence>,
    prefixes: Prefixes<SeqId>,
    /// What lost lines have left.
    remains: Remains,
    /// What the stages' stores have.
    shelf: Shelf,
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
    /// Requests that are not over and for which the line had to be formed anew, see [`crate::ReportFault::Disorder`].
    disordered: BTreeSet<RequestId>,
    next_request: RequestId,
    next_seq: SeqId,
    outputs: VecDeque<Output>,
    stats: Stats,
}

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
        let prefixes = || Prefixes::new(config.prefix_tokens, config.cuts, config.cuts == Cuts::Nowhere);
        Self {
            line_is_up: false,
            is_held: false,
            recovery: None,
            pace: Pace::new(config.n_stages),
            prefixes: prefixes(),
            remains: Remains::new(prefixes()),
            shelf: Shelf::new(config.stored_tokens, config.least_stored, config.line, config.cuts),
            vain_probes: 0,
            awaited: 0,
            answered: Vec::new(),
            together: (u32::MAX, None),
            queue: Queue::new(config.queue_limit),
            config,
            sequences: BTreeMap::new(),
            by_request: BTreeMap::new(),
            disordered: BTreeSet::new(),
            next_request: RequestId(0),
            next_seq: SeqId(0),
            outputs: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// A prefix that the stages' stores had when an earlier front knew them; the one used last comes last. Returns the
    /// keys of what there is no room for. A stage that does not have it any more says so when it is asked for it.
    pub fn restore(&mut self, namespace: Namespace, tokens: Vec<Token>) -> Vec<PrefixKey> {
        self.shelf.restore(namespace, tokens)
    }

    /// Takes a request: it starts at once if a slot is free, else it waits.
    ///
    /// # Errors
    /// If the request can never be served, no line is there or awaited ([`Scheduler::takes`]), or the queue is full.
    pub fn submit(&mut self, request: Request, now: Duration) -> Result<RequestId, Refusal> {
        self.submit_with(request, Vec::new(), now)
    }

    /// Whether requests are taken: while the line is up, and while one that was lost is waited for as running requests
    /// wait for it, so that clients need not come again because a machine was restarted.
    #[must_use]
    pub fn takes(&self, now: Duration) -> bool {
        self.line_is_up || self.recovery.as_ref().is_some_and(|&(until, _)| now < until)
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
        // Nobody waits for a token of the front's own.
        if !self.takes(now) || (probe.is_some() && (!self.line_is_up || self.is_held)) {
            return Err(Refusal::NotReady);
        }
        if !self.has_free_slot() {
            self.make_room(request.client)?;
        }
        let id = self.next_request;
        self.next_request = RequestId(id.0 + 1);
        self.stats.submitted += 1;
        let patience = match &self.recovery {
            Some((until, reason)) => Patience::Line(*until, reason.clone()),
            None => Patience::Place(now.saturating_add(self.config.queue_timeout)),
        };
        let waiting = Waiting {
            request,
            own,
            probe,
            since: now,
            patience,
            past: None,
            trust: Trust::All,
            has_yielded: false,
        };
        self.queue.push(id, waiting);
        self.admit(now);
        self.preempt(now);
        Ok(id)
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

    /// Has everything new wait, or no more: what runs goes on, so that the line comes to rest. Whether that is a change.
    pub fn hold(&mut self, is_held: bool, now: Duration) -> bool {
        let was_held = std::mem::replace(&mut self.is_held, is_held);
        if was_held && !is_held {
            self.admit(now);
        }
        was_held != is_held
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
        (stats.stored_tokens, stats.stored_prefixes) = self.shelf.size();
        self.sequences.values().for_each(|sequence| add(&mut stats, &sequence.guessing()));
        stats
    }

    /// Every sequence that holds memory, oldest first.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceStatus> + '_ {
        self.sequences.values().map(Sequence::status)
    }

    /// Whose sequence it is; of one that holds memory.
    #[must_use]
    pub fn request_of(&self, seq: SeqId) -> Option<RequestId> {
        self.sequences.get(&seq).map(Sequence::request)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        if request.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if request.max_tokens == Some(0) && request.of_prompt.is_none() {
            return Err(Refusal::NothingToGenerate);
        }
        let context = self.config.context;
        let least_answer = usize::from(!request.is_prompt_only());
        if request.prompt.len() + least_answer > context as usize {
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

    fn tell_drafter(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if let Some(change) = sequence.text_change() {
            self.outputs.push_back(Output::Draft(sequence.request(), Drafting::Text(change)));
        }
    }

    pub(crate) const fn line_is_up(&self) -> bool {
        self.line_is_up
    }

    /// An id that no sequence has had.
    pub(crate) const fn next_seq(&mut self) -> SeqId {
        let seq = self.next_seq;
        self.next_seq = SeqId(seq.0 + 1);
        seq
    }

    pub(crate) fn send(&mut self, work: Work) {
        self.outputs.push_back(Output::Work(Frame::new(work)));
    }

    fn emit(&mut self, id: RequestId, event: Event) {
        if matches!(event, Event::Done { .. } | Event::Failed(_)) {
            self.disordered.remove(&id);
        }
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
