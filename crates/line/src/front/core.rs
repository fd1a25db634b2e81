//! The front's state behind one lock: roster, scheduler, links and callers.
//!
//! Every method hears one thing, lets the pure cores decide, and carries their outputs away at once: sends only queue.

mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::LinkSender;
use protocol::{
    Command, FaultKind, Generation, Hint, PeerIndex, Report, StageIndex, StageState, ToFront, ToStage, Token,
};
use scheduler::{
    Event, Namespace, Output, Refusal, ReportFault, Request, RequestId, Scheduler, SharedJournal,
};
use spec::{Draft, Proposer};
use tokio::sync::{mpsc, watch};

use shown::Audience;
pub use shown::Onlookers;

use super::control::Unlinked;
use super::prompts::{Prompts, line_digest};
use super::pulse::Pulse;
use super::roster::{Action, PeerState, Roster};
use super::status::{Busy, Ledger, LineReadiness};
use crate::drafter;
use crate::task::Task;
use crate::{greeting, work_link};

/// Events besides tokens (of the answer, and of a prompt of which something is wanted) that one request may produce: started, done or failed, and one to spare.
const OTHER_EVENTS: usize = 3;

/// Starts to dial the work link of a generation, to the machine that computes stage 0.
pub(super) type DialWork = Box<dyn Fn(Generation, PeerIndex) -> Task + Send>;

/// Whom the front tells that something has changed.
pub(super) struct Watchers {
    /// Which machines can be spoken to, for whoever supervises them.
    pub(super) linked: watch::Sender<Vec<bool>>,
    /// Marked whenever readiness or a sequence's memory may have changed.
    pub(super) changes: watch::Sender<()>,
}

pub(super) struct Core {
    roster: Roster,
    scheduler: Scheduler,
    context: u32,
    /// Control links that stand, by machine.
    links: Vec<Option<LinkSender>>,
    /// Where work goes.
    work: Option<LinkSender>,
    dial_work: DialWork,
    /// Dials the work link, then watches it; ends with its generation.
    work_task: Option<Task>,
    callers: BTreeMap<RequestId, mpsc::Sender<Event>>,
    /// What the next front shall know of what is stored.
    prompts: Option<Arc<Prompts>>,
    /// Who drafts beside the line.
    drafter: Option<drafter::Handle>,
    pulse: Pulse,
    /// Why the line was lost, until it is up again.
    lost: Option<String>,
    busy: Busy,
    /// Of each stage.
    ledgers: Vec<Ledger>,
    watchers: Watchers,
    audience: Audience,
    /// Whether the machines were let go for good.
    is_over: bool,
}

impl Core {
    pub(super) fn new(
        roster: Roster,
        config: scheduler::Config,
        dial_work: DialWork,
        watchers: Watchers,
    ) -> Self {
        let (n_peers, n_stages) = (roster.peers().len(), roster.plan().ranges.len());
        Self {
            roster,
            context: config.context,
            scheduler: Scheduler::new(config),
            links: vec![None; n_peers],
            work: None,
            dial_work,
            work_task: None,
            callers: BTreeMap::new(),
            prompts: None,
            drafter: None,
            pulse: Pulse::default(),
            lost: None,
            busy: Busy::new(n_stages),
            ledgers: vec![Ledger::default(); n_stages],
            watchers,
            audience: Audience::default(),
            is_over: false,
        }
    }

    pub(super) fn submit(
        &mut self,
        request: Request,
        own: Vec<Box<dyn Proposer>>,
        journal: Option<(Instant, SharedJournal)>,
        now: Duration,
    ) -> Result<(RequestId, mpsc::Receiver<Event>), Refusal> {
        let most = request.max_tokens.unwrap_or(u32::MAX).min(self.context) as usize;
        // What is wanted of a prompt comes in parts of one token at least.
        let most = most + request.of_prompt.map_or(0, |_| request.prompt.len().min(self.context as usize));
        let id = self.scheduler.submit_with(request, own, now)?;
        let (caller, events) = mpsc::channel(most + OTHER_EVENTS);
        self.callers.insert(id, caller);
        if let Some((origin, journal)) = journal {
            self.audience.follow(id, journal, origin, now);
        }
        self.pump(now);
        Ok((id, events))
    }

    pub(super) fn cancel(&mut self, id: RequestId, now: Duration) {
        self.scheduler.cancel(id, now);
        self.pump(now);
    }

    /// From now on what is stored is remembered there.
    pub(super) fn note_in(&mut self, prompts: Arc<Prompts>) {
        self.prompts = Some(prompts);
    }

    /// An earlier front has left this much.
    pub(super) fn remember(&mut self, known: Vec<(Namespace, Vec<Token>)>) {
        let Some(prompts) = &self.prompts else { return };
        for (namespace, tokens) in known {
            self.scheduler.restore(namespace, tokens).iter().for_each(|key| prompts.forget(key));
        }
    }

    /// From now on requests are drafted there.
    pub(super) fn draft_with(&mut self, drafter: drafter::Handle) {
        self.drafter = Some(drafter);
    }

    /// A draft has come.
    pub(super) fn draft(&mut self, id: RequestId, draft: Draft, now: Duration) {
        self.scheduler.handle_draft(id, drafter::SOURCE, draft, now);
        self.pump(now);
    }

    pub(super) fn address(&mut self, peer: PeerIndex, address: Option<String>, now: Duration) {
        self.roster.handle_address(peer, address, now);
        self.roster_changed(now);
    }

    pub(super) fn control_up(&mut self, peer: PeerIndex, link: LinkSender) {
        self.links[usize::from(peer.0)] = Some(link);
    }

    pub(super) fn control_lost(&mut self, peer: PeerIndex, reason: &str, now: Duration) {
        self.links[usize::from(peer.0)] = None;
        self.roster.handle_lost(peer, reason.to_owned(), now);
        self.roster_changed(now);
    }

    pub(super) fn unreachable(&mut self, peer: PeerIndex, reason: Unlinked, now: Duration) {
        match reason {
            Unlinked::Unreachable(reason) => self.roster.handle_unreachable(peer, reason, now),
            Unlinked::Refused(reason) => self.roster.handle_refused(peer, reason),
        }
        self.roster_changed(now);
    }

    /// A report that came on the control link of `link`; one that it may not pass on is ignored.
    pub(super) fn report(&mut self, link: PeerIndex, message: ToFront, now: Duration) {
        let ToFront { from, generation, report } = message;
        if usize::from(from.0) >= self.links.len() {
            return tracing::warn!(%link, %from, "a report from a machine that does not exist");
        }
        let is_own = from == link;
        if !is_own && self.roster.route(from) != link {
            return tracing::debug!(%link, %from, "a report on a link that does not pass it on");
        }
        match (report, self.roster.seat_of(from)) {
            (Report::State(StageState::Idle { node, pid }), _) => {
                self.roster.handle_linked(from, node, pid, !is_own, now);
                self.roster_changed(now);
            }
            (Report::Leaving, _) => {
                tracing::info!(%from, "a machine was told to end");
                self.roster.handle_leaving(from, now);
                self.roster_changed(now);
            }
            // Who stands by belongs to no generation.
            (Report::State(state), None) if generation == Generation::default() => {
                self.roster.handle_spare_state(from, state, now);
                self.roster_changed(now);
            }
            (report, Some(stage))
                if generation == self.roster.generation() && self.roster.route(from) == link =>
            {
                self.stage_reports(stage, report, now);
            }
            _ => tracing::debug!(%link, %from, %generation, "an outdated report"),
        }
    }

    /// A report of this generation.
    fn stage_reports(&mut self, from: StageIndex, report: Report, now: Duration) {
        let generation = self.roster.generation();
        match report {
            Report::State(state) => {
                self.roster.handle_state(from, generation, state, now);
                self.roster_changed(now);
            }
            Report::Fault(fault) if fault.seq.is_none() => {
                self.roster.handle_fault(from, generation, &plain(&fault.kind), now);
                self.roster_changed(now);
            }
            Report::Counters(counters) => {
                self.ledgers[usize::from(from.0)].heard(counters);
                self.changed();
            }
            other => self.about_tokens(from, other, now),
        }
    }

    fn about_tokens(&mut self, from: StageIndex, report: Report, now: Duration) {
        match &report {
            Report::Verdict(verdict) => self.busy.record(&verdict.timings, verdict.tokens.len(), now),
            Report::Progress(progress) => {
                let n_rows = progress.timings.first().map_or(0, |timing| timing.batch_rows as usize);
                self.busy.record(&progress.timings, n_rows, now);
            }
            Report::State(_)
            | Report::Prompt(_)
            | Report::Draft(_)
            | Report::Counters(_)
            | Report::Notice(_)
            | Report::Leaving
            | Report::Closed(_)
            | Report::Stored(_)
            | Report::Fault(_) => {}
        }
        let changed = match report {
            Report::Verdict(_) | Report::Progress(_) => self.pulse.prove(now),
            Report::Closed(seq) => {
                let is_clients = !self.pulse.is_echo(seq);
                self.pulse.closed(seq, now) || is_clients
            }
            _ => false,
        };
        self.show_heard(&report, now);
        match self.scheduler.handle_report(from, report, now) {
            Ok(()) => {}
            // A stage has given memory back that is in use, or frames came to it that were not sent so: nothing it holds
            // can be relied on.
            Err(fault @ (ReportFault::ClosedEarly { .. } | ReportFault::Disorder { .. })) => {
                self.roster.handle_disorder(from, &fault.to_string(), now);
                return self.roster_changed(now);
            }
            Err(fault) => tracing::error!(%from, "a report that contradicts what was sent: {fault}"),
        }
        self.pump(now);
        if changed {
            self.watchers.changes.send_replace(());
        }
    }

    /// The work link stands; whether it is wanted.
    pub(super) fn work_up(&mut self, generation: Generation, link: LinkSender, now: Duration) -> bool {
        let wanted = generation == self.roster.generation();
        if wanted {
            self.work = Some(link);
            self.roster.handle_work_link(generation, now);
            self.roster_changed(now);
        }
        wanted
    }

    pub(super) fn work_lost(&mut self, generation: Generation, reason: &str, now: Duration) {
        self.roster.handle_work_link_lost(generation, reason, now);
        self.roster_changed(now);
    }

    pub(super) fn timeout(&mut self, now: Duration) {
        self.scheduler.handle_timeout(now);
        self.roster.handle_timeout(now);
        let due = self.pulse.due(self.is_idle(), now);
        if let Some(silence) = due.silent {
            self.roster.handle_silence(silence, now);
        }
        if due.probe {
            self.send_probe(now);
        }
        if due.echo {
            self.pulse.echoing(self.scheduler.echo(), now);
        }
        self.roster_changed(now);
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        [
            self.scheduler.next_deadline(),
            self.roster.next_deadline(),
            self.pulse.next_deadline(self.is_idle()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn readiness(&self, now: Duration) -> LineReadiness {
        if !self.roster.is_up() {
            let takes_requests = self.scheduler.takes(now);
            return LineReadiness::of_stages(self.roster.stages(), self.lost.as_deref(), takes_requests);
        }
        if self.pulse.is_proven(now) {
            return LineReadiness::Ready;
        }
        let reason = if self.pulse.was_proven() {
            "no token has passed through every stage lately"
        } else {
            "waiting for the first token to pass through every stage"
        };
        // A line that has just come up is not suspected of anything.
        let takes_requests = !self.pulse.was_proven();
        LineReadiness::NotReady { reason: reason.to_owned(), progress: 1.0, takes_requests }
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.lost.is_some()
    }

    /// What the roster heard may concern more than what it has to say.
    fn roster_changed(&mut self, now: Duration) {
        self.pump(now);
        // Those who wait for a line hear who is missing, not whose link broke first.
        if !self.roster.is_up()
            && let LineReadiness::NotReady { reason, .. } = self.readiness(now)
        {
            self.scheduler.line_awaits(&reason);
        }
        let peers = self.roster.peers().iter();
        // Who answers and gets nowhere is as good as away to whoever could start it again.
        let is_linked: Vec<bool> =
            peers.map(|peer| !peer.stalled && !matches!(peer.state, PeerState::Away { .. })).collect();
        self.watchers.linked.send_if_modified(|linked| {
            let changed = *linked != is_linked;
            *linked = is_linked;
            changed
        });
        self.watchers.changes.send_replace(());
    }

    /// Carries away everything that the cores have to say.
    fn pump(&mut self, now: Duration) {
        loop {
            if let Some(action) = self.roster.poll_action() {
                self.act(action, now);
            } else if let Some(output) = self.scheduler.poll_output() {
                self.carry(output, now);
            } else if !self.rests(now) {
                break;
            }
        }
        self.pulse.listen(self.scheduler.silence());
        self.roster.handle_use(self.is_idle(), now);
        self.changed();
    }

    /// Brings the line to rest while a stage wants to go. Whether there may be more to carry away for that.
    fn rests(&mut self, now: Duration) -> bool {
        let is_draining = self.roster.is_draining();
        let is_idle = self.scheduler.sequences().next().is_none();
        self.scheduler.hold(is_draining, now) || (is_draining && is_idle && self.roster.handle_drained())
    }

    fn act(&mut self, action: Action, now: Duration) {
        match action {
            Action::Send(message) => self.command(&message),
            Action::DialWork(generation, first) => {
                self.work_task = Some((self.dial_work)(generation, first));
            }
            Action::StandIn { seat, spare } => {
                let address = self.roster.peer(spare).address.as_deref();
                tracing::warn!(stage = %seat, address, "a spare takes the place of a stage");
            }
            Action::Reshaped => self.reshape(),
            Action::Up { generation, lost_by } => {
                tracing::info!(%generation, lost_by, "the line is up");
                self.lost = None;
                self.pulse.line_up(now);
                match lost_by {
                    Some(lost_by) => self.scheduler.line_back(lost_by, now),
                    None => self.scheduler.line_up(now),
                }
                self.send_probe(now);
            }
            Action::Lost { reason } => {
                tracing::warn!("the line is lost: {reason}");
                if let Some(work) = self.work.take() {
                    work.close("the line is formed anew");
                }
                self.work_task = None;
                self.ledgers.iter_mut().for_each(Ledger::close);
                if let Some(probe) = self.pulse.line_lost() {
                    self.scheduler.cancel(probe, now);
                }
                self.scheduler.line_lost(&reason, now);
                self.audience.line_lost(now);
                self.lost = Some(reason);
            }
        }
    }

    /// The layers are shared out among others, or in another way. What each stage had counted goes with the old shape.
    fn reshape(&mut self) {
        let plan = self.roster.plan();
        let n_stages = plan.ranges.len();
        tracing::warn!(n_stages, "the layers are shared out anew");
        self.scheduler.reshape(n_stages as u16, line_digest(plan));
        self.busy = Busy::new(n_stages);
        self.ledgers = vec![Ledger::default(); n_stages];
    }

    fn carry(&mut self, output: Output, now: Duration) {
        match output {
            Output::Work(frame) => {
                self.show_sent(&frame.work, now);
                let sent = self.work.as_ref().map(|work| work_link::send(work, &frame));
                if let Some(Err(error)) = sent {
                    let generation = self.roster.generation();
                    self.roster.handle_work_link_lost(generation, &error.to_string(), now);
                }
            }
            Output::Hint(hint) => self.hint(hint),
            Output::Event(id, event) => self.event(id, event, now),
            Output::Shelved(change) => {
                // The next front begins with the shape that it is given.
                if let Some(prompts) = self.prompts.as_ref().filter(|_| self.roster.is_as_given()) {
                    prompts.note(change);
                }
            }
            Output::Draft(id, drafting) => {
                if let Some(drafter) = &self.drafter {
                    drafter.tell(id, drafting);
                }
            }
        }
    }

    fn event(&mut self, id: RequestId, event: Event, now: Duration) {
        let last = matches!(event, Event::Done { .. } | Event::Failed(_));
        if self.pulse.is_probe(id) {
            if last {
                self.pulse.probe_over(self.scheduler.wants_probe());
            }
            return;
        }
        self.audience.event(id, &event, now);
        let Some(caller) = self.callers.get(&id) else {
            return;
        };
        // The channel has room for all that a request may say, so this fails only if the caller is gone.
        if caller.try_send(event).is_err() {
            self.scheduler.cancel(id, now);
        }
        if last {
            self.callers.remove(&id);
        }
    }

    fn hint(&self, hint: Hint) {
        let generation = self.roster.generation();
        for at in 0..self.ledgers.len() {
            let to = self.roster.seated(StageIndex(at as u16));
            self.command(&ToStage { to, generation, command: Command::Hint(hint) });
        }
    }

    fn command(&self, message: &ToStage) {
        if self.is_over {
            return;
        }
        let route = self.roster.route(message.to);
        if let Some(link) = &self.links[usize::from(route.0)] {
            greeting::tell(link, message);
        }
    }

    /// Sends a request of the front's own, to see that a token passes.
    fn send_probe(&mut self, now: Duration) {
        self.pulse.probing(self.scheduler.probe(Token(0), now).ok(), now);
    }

    /// Passes on what the cluster's root says, to one machine or to all.
    pub(super) fn tell_notice(&self, to: Option<PeerIndex>, notice: &Bytes) {
        let generation = self.roster.generation();
        for to in to.map_or(0..self.links.len() as u16, |to| to.0..to.0 + 1).map(PeerIndex) {
            self.command(&ToStage { to, generation, command: Command::Notice(notice.clone()) });
        }
    }

    /// Lets all machines go, those first that are reached through others.
    pub(super) fn release(&mut self) {
        let generation = self.roster.generation();
        for to in (0..self.links.len() as u16).rev().map(PeerIndex) {
            self.command(&ToStage { to, generation, command: Command::Release });
        }
        self.is_over = true;
    }

    /// Whether the machines were let go for good.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether no client's request is on the line or waits for it.
    fn is_idle(&self) -> bool {
        self.callers.is_empty()
    }
}

/// A fault in words, without the name of its kind where the reason says it all.
fn plain(kind: &FaultKind) -> String {
    match kind {
        FaultKind::Link { reason } | FaultKind::Engine { reason } => reason.clone(),
        other => other.to_string(),
    }
}
