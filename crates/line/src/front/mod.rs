//! The front of a line: keeps control links to all stages, assigns them, sends work and hears verdicts.
//!
//! All state is in [`core::Core`] behind one lock that is held only while nothing waits; a verdict is turned into the
//! next window on the very task that read it. Timers are one task that sleeps until the earliest deadline.

mod control;
mod core;
mod prompts;
mod pulse;
mod roster;
mod status;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::{DialOptions, Heartbeat, Identity, LinkOptions, LinkSender, Purpose, Standing};
use protocol::{Generation, LinkRole, PeerIndex, Report, RowsHello, StageIndex, StageState, ToFront};
use scheduler::{Event, Refusal, Request, RequestId, SharedJournal};
use spec::Proposer;
use stage::Engine;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};

pub use control::StageAddress;
pub use roster::{Cover, Leaving, LinePlan, Peer, PeerState};
pub use status::{LineReadiness, LineSnapshot, SpareSnapshot, StageSnapshot};

use self::control::Unlinked;
pub use self::core::Onlookers;
use self::core::{Core, DialWork, Watchers};
use self::prompts::Prompts;
use crate::drafter::Drafter;
use crate::greeting::{GreetError, greet};
use crate::task::Task;
use roster::{Muster, READY_WITHIN, RelayPolicy, Roster};

/// How long machines that are let go may take to hear of it: a round trip, and they hear at once.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// How a front drives its line.
#[derive(Clone)]
pub struct FrontConfig {
    /// What the front proves itself with.
    pub identity: Identity,
    /// Engine build and CPU variant, told in every greeting.
    pub build: String,
    /// What the stages are told.
    pub plan: LinePlan,
    /// Where the stages are, one for each range of the plan. Those in this process come first.
    pub stages: Vec<StageSpec>,
    /// Machines that stand by, to take the place of a stage that is lost.
    pub spares: Vec<SpareSpec>,
    /// How long a machine that is away is still counted on to hold what it held.
    pub lease: Duration,
    /// How long a place in the line that nobody can take stays empty before the other machines share its layers, as far as
    /// [`LinePlan::narrower`] says how; for ever if none.
    pub replan_after: Option<Duration>,
    /// Budgets of the scheduler.
    pub scheduler: scheduler::Config,
    /// How stages are dialled; heartbeats are added to control links.
    pub dial: DialOptions,
    /// Heartbeat of control links.
    pub heartbeat: Heartbeat,
    /// Links to a stage in this process.
    pub local_link: LinkOptions,
    /// Have every stage but the first pass control messages on, as if the front could not reach the others.
    pub relay: bool,
    /// Where the front remembers what its stages have stored, for the next one.
    pub store: Option<store::Store>,
    /// Higher than any generation that these stages may have seen: milliseconds since 1970 will do.
    pub first_generation: Generation,
}

/// One stage of the line.
#[derive(Clone)]
pub struct StageSpec {
    /// Where it is.
    pub address: StageAddress,
}

/// One machine that stands by.
#[derive(Clone)]
pub struct SpareSpec {
    /// Where it is.
    pub address: StageAddress,
    /// The only stage whose place it may take; any stage's that is not in this process if none is said.
    pub stage: Option<StageIndex>,
}

impl FrontConfig {
    /// Where all machines are, by their numbers.
    fn addresses(&self) -> impl Iterator<Item = &StageAddress> {
        let stages = self.stages.iter().map(|stage| &stage.address);
        stages.chain(self.spares.iter().map(|spare| &spare.address))
    }
}

/// A running front. Cheap to clone; the line is let go when the last one is dropped.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
    linked: watch::Receiver<Vec<bool>>,
    changes: watch::Receiver<()>,
    _tasks: Arc<Vec<Task>>,
    _drafter: Option<Arc<Drafter>>,
}

struct Shared {
    core: Mutex<Core>,
    config: FrontConfig,
    start: Instant,
    deadline_moved: Notify,
}

impl Front {
    /// Starts to form the line, on the current runtime. Nothing needs to be there yet.
    #[must_use]
    pub fn start(config: FrontConfig) -> Self {
        let (linked, linked_seen) = watch::channel(vec![false; config.addresses().count()]);
        let (changes, changes_seen) = watch::channel(());
        let is_local = |stage: &&StageSpec| matches!(stage.address, StageAddress::Local(_));
        let relay =
            RelayPolicy { always: config.relay, n_own: config.stages.iter().take_while(is_local).count() };
        let spare = |spare: &SpareSpec| (spare.address.known(), spare.stage);
        let muster = Muster {
            stages: config.stages.iter().map(|stage| stage.address.known()).collect(),
            spares: config.spares.iter().map(spare).collect(),
            relay,
            lease: config.lease,
            ready_within: READY_WITHIN.min(config.scheduler.progress_timeout),
            replan_after: config.replan_after,
        };
        let roster =
            Roster::new(config.plan.clone(), config.identity.node(), config.first_generation, muster);
        #[expect(clippy::disallowed_methods, reason = "the driver's clock: the cores are told the time")]
        let start = Instant::now();
        let runtime = Handle::current();
        let scheduler =
            scheduler::Config { line: prompts::line_digest(&config.plan), ..config.scheduler.clone() };
        let shared = Arc::new_cyclic(|me: &Weak<Shared>| {
            let me = me.clone();
            let dial: DialWork = Box::new(move |generation, first| {
                Task::spawn_on(&runtime, keep_work(me.clone(), generation, first))
            });
            let watchers = Watchers { linked, changes };
            Shared {
                core: Mutex::new(Core::new(roster, scheduler, dial, watchers)),
                config: config.clone(),
                start,
                deadline_moved: Notify::new(),
            }
        });
        let mut tasks = vec![
            Task::spawn(keep_time(Arc::downgrade(&shared))),
            Task::spawn(spread(Arc::downgrade(&shared), config.identity.standings())),
        ];
        if let Some(store) = config.store.clone() {
            let prompts = Arc::new(Prompts::new(store, &config.plan));
            shared.lock().note_in(Arc::clone(&prompts));
            tasks.push(Task::spawn(recall(Arc::downgrade(&shared), prompts)));
        }
        for (at, address) in config.addresses().enumerate() {
            let (front, peer) = (Arc::downgrade(&shared), PeerIndex(at as u16));
            if let StageAddress::Remote { address, .. } = address {
                tasks.push(Task::spawn(control::follow(front.clone(), peer, address.clone())));
            }
            if at == 0 || at >= config.stages.len() || !config.relay {
                tasks.push(Task::spawn(control::keep(front, config.clone(), peer)));
            }
        }
        Self { shared, linked: linked_seen, changes: changes_seen, _tasks: Arc::new(tasks), _drafter: None }
    }

    /// As [`Front::start`], beside a second model that drafts on a thread of its own. The scheduler's configuration must
    /// name it as a source. It is a whole model with the line's vocabulary, and can be cut back anywhere; a sequence that
    /// finds none of its slots free, or exceeds its context, goes on without drafts.
    ///
    /// # Errors
    /// If the operating system refuses another thread.
    ///
    /// # Panics
    /// If the engine is only a part of a model, or has another vocabulary.
    pub fn start_with(config: FrontConfig, draft: Box<dyn Engine>) -> io::Result<Self> {
        let shape = draft.shape();
        assert!(shape.is_first && shape.is_tail, "a draft model is whole");
        assert_eq!(
            shape.n_vocab, config.scheduler.n_vocab as usize,
            "a draft model speaks the line's language"
        );
        let mut front = Self::start(config);
        let to = Arc::downgrade(&front.shared);
        let sink = Box::new(move |id, draft| {
            if let Some(shared) = to.upgrade() {
                shared.with(|core, now| core.draft(id, draft, now));
            }
        });
        let drafter = Drafter::spawn(draft, sink)?;
        front.shared.lock().draft_with(drafter.handle());
        front._drafter = Some(Arc::new(drafter));
        Ok(front)
    }

    /// Asks the line to run a request. Its events arrive on the receiver, which has room for all of them.
    ///
    /// # Errors
    /// If the request can never run, or not now.
    pub fn submit(&self, request: Request) -> Result<(RequestId, mpsc::Receiver<Event>), Refusal> {
        self.submit_with(request, Vec::new())
    }

    /// As [`Front::submit`], with sources of guesses of the caller's own.
    ///
    /// # Errors
    /// As [`Front::submit`].
    pub fn submit_with(
        &self,
        request: Request,
        own: Vec<Box<dyn Proposer>>,
    ) -> Result<(RequestId, mpsc::Receiver<Event>), Refusal> {
        self.submit_traced(request, own, None)
    }

    /// As [`Front::submit_with`]; what happens to the request is noted in its journal, if it has one. It has its last entry
    /// before the caller gets the last event.
    ///
    /// # Errors
    /// As [`Front::submit`].
    pub fn submit_traced(
        &self,
        request: Request,
        own: Vec<Box<dyn Proposer>>,
        journal: Option<SharedJournal>,
    ) -> Result<(RequestId, mpsc::Receiver<Event>), Refusal> {
        let start = self.shared.start;
        self.shared.with(|core, now| core.submit(request, own, journal.map(|journal| (start, journal)), now))
    }

    /// Ends a request; its `Done` is sent at once.
    pub fn cancel(&self, id: RequestId) {
        self.shared.with(|core, now| core.cancel(id, now));
    }

    /// Whether a token can flow through every stage.
    #[must_use]
    pub fn readiness(&self) -> LineReadiness {
        self.shared.with(|core, now| core.readiness(now))
    }

    /// Whether the last attempt to form the line failed. It will be tried again, but who cannot wait may give up.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.with(|core, _| core.has_failed())
    }

    /// The line as it is now.
    #[must_use]
    pub fn snapshot(&self) -> LineSnapshot {
        self.shared.with(Core::snapshot)
    }

    /// Who could take each stage's place; none if the line has no spares.
    #[must_use]
    pub fn covers(&self) -> Option<Vec<Cover>> {
        self.shared.with(|core, _| core.covers())
    }

    /// Shows what happens on the line to somebody from now on, in place of whoever it was shown to.
    pub fn show_to(&self, onlookers: Onlookers) {
        self.shared.lock().show_to(onlookers);
    }

    /// Lets the machines go for good, so that they are free for another front at once. Returns when they have heard of it;
    /// one that does not answer is kept for this front for as long as its lease, as it is when a front dies.
    pub async fn release(&self) {
        let mut linked = self.linked.clone();
        self.shared.with(|core, _| core.release());
        let gone = linked.wait_for(|linked| !linked.contains(&true));
        // Whoever has not heard by now will find out by itself.
        drop(tokio::time::timeout(RELEASE_WITHIN, gone).await);
    }

    /// Which machines the front can speak to, directly or through a neighbour, stages first and then spares; for whoever
    /// restarts those that it cannot.
    #[must_use]
    pub fn linked(&self) -> watch::Receiver<Vec<bool>> {
        self.linked.clone()
    }

    /// Marked whenever the line's readiness may have changed or a sequence's memory came back: look again then.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.clone()
    }
}

impl Shared {
    /// Runs `change` on the state.
    fn with<R>(&self, change: impl FnOnce(&mut Core, Duration) -> R) -> R {
        let mut core = self.lock();
        let before = core.next_deadline();
        let result = change(&mut core, self.start.elapsed());
        let after = core.next_deadline();
        drop(core);
        // A deadline that moved away is found out when the earlier one comes: no token need wake the timer.
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.deadline_moved.notify_one();
        }
        result
    }

    /// The state. A panic while it was held is a bug that the next assertion will find; it must not take every other
    /// request with it.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, peer: PeerIndex, address: Option<String>) {
        self.with(|core, now| core.address(peer, address, now));
    }

    fn control_up(&self, peer: PeerIndex, link: LinkSender) {
        self.with(|core, _| core.control_up(peer, link));
    }

    fn control_lost(&self, peer: PeerIndex, reason: &str) {
        self.with(|core, now| core.control_lost(peer, reason, now));
    }

    fn is_over(&self) -> bool {
        self.lock().is_over()
    }

    fn unreachable(&self, peer: PeerIndex, reason: Unlinked) {
        self.with(|core, now| core.unreachable(peer, reason, now));
    }

    fn report(&self, link: PeerIndex, message: ToFront) {
        let from = message.from;
        match &message.report {
            Report::Notice(notice) => self.heed(notice),
            report => {
                let is_new = matches!(report, Report::State(StageState::Idle { .. }));
                self.with(|core, now| core.report(link, message, now));
                if is_new {
                    self.tell_documents(Some(from));
                }
            }
        }
    }

    /// What the cluster's root says is its own proof, whoever brings it.
    fn heed(&self, notice: &Bytes) {
        if let Err(error) = self.config.identity.heed(notice) {
            tracing::warn!("what a stage says of the cluster's root is not believed: {error}");
        }
    }

    /// Passes on what the cluster's root has said, if it has said anything, to one machine or to all.
    fn tell_documents(&self, to: Option<PeerIndex>) {
        for document in self.config.identity.standing().documents() {
            self.with(|core, _| core.tell_notice(to, document));
        }
    }
}

/// Opens the link on which work goes to stage 0, which that machine computes, and watches it.
async fn keep_work(front: Weak<Shared>, generation: Generation, first: PeerIndex) {
    let Some(config) = front.upgrade().map(|shared| shared.config.clone()) else { return };
    let reason = match dial_work(&config, generation, first).await {
        Ok((sender, mut receiver)) => {
            let Some(shared) = front.upgrade() else { return };
            if !shared.with(|core, now| core.work_up(generation, sender, now)) {
                return;
            }
            drop(shared);
            match receiver.recv().await {
                Ok(_) => "unexpected bytes".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        Err(reason) => reason,
    };
    if let Some(shared) = front.upgrade() {
        shared.with(|core, now| core.work_lost(generation, &reason, now));
    }
}

async fn dial_work(
    config: &FrontConfig,
    generation: Generation,
    first: PeerIndex,
) -> Result<(LinkSender, net::LinkReceiver), String> {
    let plan = &config.plan;
    let hello = RowsHello {
        generation,
        to: StageIndex(0),
        model: plan.model,
        // However the layers are shared out.
        layer: 0,
        row_width: 0,
        row_dtype: plan.row_dtype,
        context: plan.context,
    };
    let link = match config.addresses().nth(usize::from(first.0)).ok_or("no such machine")? {
        StageAddress::Local(node) => control::link_local(config, node, Purpose::Rows).await,
        StageAddress::Remote { address, node } => {
            let address = address.borrow().clone().ok_or("it has no address")?;
            let options = DialOptions { purpose: Purpose::Rows, ..config.dial.clone() };
            net::dial(&address, &config.identity, *node, &options).await.map_err(|error| error.to_string())?
        }
    };
    greet(link, LinkRole::Rows(hello), &config.build).await.map_err(|error: GreetError| error.to_string())
}

/// Tells the scheduler what an earlier front knew.
async fn recall(front: Weak<Shared>, prompts: Arc<Prompts>) {
    // Without an answer the line only begins with nothing.
    let known = tokio::task::spawn_blocking(move || prompts.recall()).await.unwrap_or_default();
    if let Some(shared) = front.upgrade() {
        shared.with(|core, _| core.remember(known));
    }
}

/// Tells all machines whatever the cluster's root says from now on.
async fn spread(front: Weak<Shared>, mut standings: watch::Receiver<Arc<Standing>>) {
    while standings.changed().await.is_ok() {
        let Some(shared) = front.upgrade() else { return };
        shared.tell_documents(None);
    }
}

/// Wakes the cores at their deadlines.
async fn keep_time(front: Weak<Shared>) {
    loop {
        let Some(shared) = front.upgrade() else { return };
        let deadline = shared.lock().next_deadline();
        let now = shared.start.elapsed();
        if deadline.is_some_and(|deadline| deadline <= now) {
            shared.with(Core::timeout);
            continue;
        }
        let moved = shared.deadline_moved.notified();
        tokio::select! {
            () = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep(deadline - now).await,
                    None => std::future::pending().await,
                }
            } => {}
            () = moved => {}
        }
    }
}
