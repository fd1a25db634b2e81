//! The front's state behind one lock: roster, scheduler, links and callers.
//!
//! Every method hears one thing, lets the pure cores decide, and carries their outputs away at once: sends only queue.

use std::collections::BTreeMap;
use std::time::Duration;

use net::LinkSender;
use protocol::{
    Command, FaultKind, Generation, Hint, Report, SamplerParams, StageIndex, StageState, ToFront, ToStage,
    Token,
};
use scheduler::{Event, Output, Refusal, Request, RequestId, Scheduler};
use tokio::sync::{mpsc, watch};

use super::roster::{Action, Roster, SeatState};
use super::status::{Busy, LineReadiness, LineSnapshot, StageSnapshot};
use crate::{greeting, work_link};

/// A line that carried a token this recently is trusted; an idle one is probed this often. A probe costs one
/// decoded token, so this is about a thousandth of the line's time.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// A probe that takes longer than this makes the line not ready.
const PROBE_WITHIN: Duration = Duration::from_secs(4);
/// Events besides tokens that one request may produce: started, done or failed, and one to spare.
const OTHER_EVENTS: usize = 3;

/// What the driver must still do, because it needs the runtime.
pub(super) enum Errand {
    DialWork(Generation),
}

pub(super) struct Core {
    roster: Roster,
    scheduler: Scheduler,
    context: u32,
    /// Control links that stand.
    links: Vec<Option<LinkSender>>,
    /// Where work goes.
    work: Option<LinkSender>,
    callers: BTreeMap<RequestId, mpsc::Sender<Event>>,
    /// A request of the front's own, to see that a token passes.
    probe: Option<RequestId>,
    /// When something last came all the way round.
    proven: Option<Duration>,
    /// When the line last came up.
    up_since: Duration,
    /// Why the line was lost, until it is up again.
    lost: Option<String>,
    busy: Busy,
    /// Which stages can be spoken to, for whoever supervises them.
    linked: watch::Sender<Vec<bool>>,
    /// Marked whenever readiness or a sequence's memory may have changed.
    changes: watch::Sender<()>,
    errands: Vec<Errand>,
}

impl Core {
    pub(super) fn new(
        roster: Roster,
        config: scheduler::Config,
        linked: watch::Sender<Vec<bool>>,
        changes: watch::Sender<()>,
    ) -> Self {
        let n_stages = roster.seats().len();
        Self {
            roster,
            context: config.context,
            scheduler: Scheduler::new(config),
            links: vec![None; n_stages],
            work: None,
            callers: BTreeMap::new(),
            probe: None,
            proven: None,
            up_since: Duration::ZERO,
            lost: None,
            busy: Busy::new(n_stages),
            linked,
            changes,
            errands: Vec::new(),
        }
    }

    pub(super) fn submit(
        &mut self,
        request: Request,
        now: Duration,
    ) -> Result<(RequestId, mpsc::Receiver<Event>), Refusal> {
        let most = request.max_tokens.unwrap_or(u32::MAX).min(self.context) as usize;
        let id = self.scheduler.submit(request, now)?;
        let (caller, events) = mpsc::channel(most + OTHER_EVENTS);
        self.callers.insert(id, caller);
        self.pump(now);
        Ok((id, events))
    }

    pub(super) fn cancel(&mut self, id: RequestId, now: Duration) {
        self.scheduler.cancel(id, now);
        self.pump(now);
    }

    pub(super) fn address(&mut self, stage: StageIndex, address: Option<String>, now: Duration) {
        self.roster.handle_address(stage, address, now);
        self.pump(now);
        self.tell_linked();
    }

    pub(super) fn control_up(&mut self, stage: StageIndex, link: LinkSender) {
        self.links[usize::from(stage.0)] = Some(link);
    }

    pub(super) fn control_lost(&mut self, stage: StageIndex, reason: &str, now: Duration) {
        self.links[usize::from(stage.0)] = None;
        self.roster.handle_lost(stage, reason.to_owned(), now);
        self.pump(now);
        self.tell_linked();
    }

    pub(super) fn unreachable(&mut self, stage: StageIndex, reason: String, now: Duration) {
        self.roster.handle_unreachable(stage, reason, now);
        self.pump(now);
    }

    /// A report that came on the control link of `link`; one that it may not pass on is ignored.
    pub(super) fn report(&mut self, link: StageIndex, message: ToFront, now: Duration) {
        let ToFront { from, generation, report } = message;
        if usize::from(from.0) >= self.links.len() {
            return tracing::warn!(%link, %from, "a report from a stage that does not exist");
        }
        if let Report::State(StageState::Idle { node, pid }) = report {
            self.roster.handle_linked(from, node, pid, from != link, now);
            self.pump(now);
            return self.tell_linked();
        }
        if generation != self.roster.generation() || self.roster.route(from) != link {
            return tracing::debug!(%link, %from, %generation, "an outdated report");
        }
        match report {
            Report::State(state) => {
                self.roster.handle_state(from, generation, state, now);
                self.changes.send_replace(());
            }
            Report::Fault(fault) if fault.seq.is_none() => {
                self.roster.handle_fault(from, generation, &plain(&fault.kind), now);
                self.tell_linked();
            }
            other => self.about_tokens(from, other, now),
        }
        self.pump(now);
    }

    fn about_tokens(&mut self, from: StageIndex, report: Report, now: Duration) {
        match &report {
            Report::Verdict(verdict) => self.busy.record(&verdict.timings, verdict.tokens.len(), now),
            Report::Progress(progress) => {
                let n_rows = progress.timings.first().map_or(0, |timing| timing.batch_rows as usize);
                self.busy.record(&progress.timings, n_rows, now);
            }
            Report::State(_) | Report::Closed(_) | Report::Fault(_) => {}
        }
        let first =
            matches!(report, Report::Verdict(_) | Report::Progress(_)) && self.proven.replace(now).is_none();
        let changed = first || matches!(report, Report::Closed(_));
        if let Err(fault) = self.scheduler.handle_report(from, report, now) {
            tracing::error!(%from, "a report that contradicts what was sent: {fault}");
        }
        if changed {
            self.changes.send_replace(());
        }
    }

    pub(super) fn work_up(&mut self, generation: Generation, link: LinkSender, now: Duration) {
        if generation == self.roster.generation() {
            self.work = Some(link);
            self.roster.handle_work_link(generation, now);
            self.pump(now);
        }
    }

    pub(super) fn work_lost(&mut self, generation: Generation, reason: &str, now: Duration) {
        self.roster.handle_work_link_lost(generation, reason, now);
        self.pump(now);
    }

    pub(super) fn timeout(&mut self, now: Duration) {
        self.scheduler.handle_timeout(now);
        self.roster.handle_timeout(now);
        if self.probe_due().is_some_and(|due| due <= now) {
            self.send_probe(now);
        }
        self.pump(now);
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        [self.scheduler.next_deadline(), self.roster.next_deadline(), self.probe_due()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn take_errands(&mut self) -> Vec<Errand> {
        std::mem::take(&mut self.errands)
    }

    pub(super) fn readiness(&self, now: Duration) -> LineReadiness {
        if !self.roster.is_up() {
            return LineReadiness::NotReady { reason: self.missing(), progress: self.progress() };
        }
        let proven = self.proven.is_some_and(|at| now.saturating_sub(at) < PROBE_EVERY + PROBE_WITHIN);
        if proven {
            LineReadiness::Ready
        } else {
            let reason = match self.proven {
                None => "waiting for the first token to pass through every stage",
                Some(_) => "no token has passed through every stage lately",
            };
            LineReadiness::NotReady { reason: reason.to_owned(), progress: 1.0 }
        }
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn snapshot(&mut self, now: Duration) -> LineSnapshot {
        let mut stages = Vec::with_capacity(self.links.len());
        for (at, seat) in self.roster.seats().iter().enumerate() {
            let stage = StageIndex(at as u16);
            stages.push(StageSnapshot {
                address: self.roster.plan().addresses[at].clone().unwrap_or_default(),
                layers: self.roster.plan().ranges[at],
                seat: seat.clone(),
                busy: self.busy.share(stage, now),
                rtt: self.links[at].as_ref().and_then(|link| link.stats().rtt),
            });
        }
        LineSnapshot {
            stages,
            sequences: self.scheduler.sequences().filter(|seq| Some(seq.request) != self.probe).collect(),
            stats: self.scheduler.stats(),
            relayed: self.roster.seats().last().is_some_and(|seat| seat.relayed),
        }
    }

    /// Carries away everything that the cores have to say.
    fn pump(&mut self, now: Duration) {
        loop {
            if let Some(action) = self.roster.poll_action() {
                self.act(action, now);
            } else if let Some(output) = self.scheduler.poll_output() {
                self.carry(output, now);
            } else {
                return;
            }
        }
    }

    fn act(&mut self, action: Action, now: Duration) {
        match action {
            Action::Send(message) => self.command(&message),
            Action::DialWork(generation) => self.errands.push(Errand::DialWork(generation)),
            Action::Up(generation) => {
                tracing::info!(%generation, "the line is up");
                (self.lost, self.proven, self.up_since) = (None, None, now);
                self.scheduler.line_up(now);
                self.send_probe(now);
            }
            Action::Lost { reason } => {
                tracing::warn!("the line is lost: {reason}");
                if let Some(work) = self.work.take() {
                    work.close("the line is formed anew");
                }
                self.probe = None;
                self.scheduler.line_lost(&reason);
                self.lost = Some(reason);
                self.changes.send_replace(());
            }
        }
    }

    fn carry(&mut self, output: Output, now: Duration) {
        match output {
            Output::Work(frame) => {
                let sent = self.work.as_ref().map(|work| work_link::send(work, &frame));
                if let Some(Err(error)) = sent {
                    let generation = self.roster.generation();
                    self.roster.handle_work_link_lost(generation, &error.to_string(), now);
                }
            }
            Output::Hint(hint) => self.hint(hint),
            Output::Event(id, event) => self.event(id, event, now),
        }
    }

    fn event(&mut self, id: RequestId, event: Event, now: Duration) {
        let last = matches!(event, Event::Done { .. } | Event::Failed(_));
        if self.probe == Some(id) {
            if last {
                self.probe = None;
            }
            return;
        }
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
        for at in 0..self.links.len() {
            self.command(&ToStage { to: StageIndex(at as u16), generation, command: Command::Hint(hint) });
        }
    }

    fn command(&self, message: &ToStage) {
        let route = self.roster.route(message.to);
        if let Some(link) = &self.links[usize::from(route.0)]
            && let Err(error) = greeting::send(link, message)
        {
            tracing::debug!(stage = %message.to, "a control message could not be sent: {error}");
        }
    }

    fn send_probe(&mut self, now: Duration) {
        let request = Request {
            prompt: vec![Token(0)],
            sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
            seed: 0,
            choice: 0,
            max_tokens: Some(1),
            ignore_eos: true,
            top_logprobs: None,
        };
        // Refused only when the line is busy or down, and then there is nothing to probe.
        self.probe = self.scheduler.submit(request, now).ok();
    }

    /// When an idle line is due for a probe.
    fn probe_due(&self) -> Option<Duration> {
        let idle = self.probe.is_none() && self.callers.is_empty();
        (self.roster.is_up() && idle).then(|| self.proven.unwrap_or(self.up_since) + PROBE_EVERY)
    }

    fn missing(&self) -> String {
        let seats = self.roster.seats();
        let away = seats.iter().enumerate().find_map(|(at, seat)| match &seat.state {
            SeatState::Away { reason } => Some(format!("stage {at} is away: {reason}")),
            SeatState::Linked | SeatState::Assigned(_) => None,
        });
        let busy = seats.iter().enumerate().find_map(|(at, seat)| match &seat.state {
            SeatState::Assigned(StageState::Loading { what, .. }) => Some(format!("stage {at}: {what}")),
            SeatState::Assigned(StageState::Linking) => Some(format!("stage {at} waits for the next one")),
            SeatState::Away { .. } | SeatState::Linked | SeatState::Assigned(_) => None,
        });
        away.or_else(|| self.lost.clone()).or(busy).unwrap_or_else(|| "the line is being formed".to_owned())
    }

    fn progress(&self) -> f32 {
        let seats = self.roster.seats();
        let done: f32 = seats
            .iter()
            .map(|seat| match &seat.state {
                SeatState::Away { .. } | SeatState::Linked => 0.0,
                SeatState::Assigned(StageState::Loading { permille, .. }) => f32::from(*permille) / 1000.0,
                SeatState::Assigned(_) => 1.0,
            })
            .sum();
        done / seats.len() as f32
    }

    /// Directly or through a neighbour.
    fn tell_linked(&self) {
        let seats = self.roster.seats().iter();
        let now: Vec<bool> = seats.map(|seat| !matches!(seat.state, SeatState::Away { .. })).collect();
        self.linked.send_if_modified(|linked| std::mem::replace(linked, now.clone()) != now);
    }
}

/// A fault in words, without the name of its kind where the reason says it all.
fn plain(kind: &FaultKind) -> String {
    match kind {
        FaultKind::Link { reason } | FaultKind::Engine { reason } => reason.clone(),
        other => other.to_string(),
    }
}
