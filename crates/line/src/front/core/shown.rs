//! What the front shows of itself: snapshots, movements for people who look on, and the journals of traced requests.
//!
//! Nothing here changes what the line does. Where nobody looks on and nothing is traced it costs a comparison.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use protocol::{PeerIndex, Report, SeqId, StageIndex, StageState, Work};
use scheduler::{Event, Journal, Moved, Movement, RequestId, SharedJournal, StageSeen};
use tokio::sync::{broadcast, watch};

use super::Core;
use crate::front::roster::{Cover, PeerState};
use crate::front::status::{LineSnapshot, SpareSnapshot, StageSnapshot};

/// Whom a front shows what it does. Slow watchers miss movements; they never slow the line.
#[derive(Clone, Debug)]
pub struct Onlookers {
    /// Marked whenever [`crate::Front::snapshot`] or the readiness may have changed.
    pub changed: watch::Sender<()>,
    /// What clients' requests move along the line.
    pub movements: broadcast::Sender<Movement>,
}

/// Who hears what happens besides callers.
#[derive(Default)]
pub(super) struct Audience {
    onlookers: Option<Onlookers>,
    /// Of traced requests that are not over: as many at most as may wait and run.
    journals: BTreeMap<RequestId, SharedJournal>,
}

impl Audience {
    /// Notes what happens to a request from now on, until it is over; the front's time began at `origin`.
    pub(super) fn follow(&mut self, id: RequestId, journal: SharedJournal, origin: Instant, now: Duration) {
        self.journals.insert(id, journal);
        self.note(id, |journal| journal.submit(origin, now));
    }

    /// The caller of a request hears something.
    pub(super) fn event(&mut self, id: RequestId, event: &Event, now: Duration) {
        if self.journals.is_empty() {
            return;
        }
        self.note(id, |journal| journal.event(event, now));
        if matches!(event, Event::Done { .. } | Event::Failed(_)) {
            self.journals.remove(&id);
        }
    }

    /// Nothing of what is under way will come back.
    pub(super) fn line_lost(&self, now: Duration) {
        self.journals.keys().for_each(|&id| self.note(id, |journal| journal.over(now)));
    }

    fn note(&self, id: RequestId, note: impl FnOnce(&mut Journal)) {
        if let Some(journal) = self.journals.get(&id) {
            // Its owner reads it once; a panic of theirs must not take the line with it.
            note(&mut journal.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn has_onlookers(&self) -> bool {
        self.onlookers.as_ref().is_some_and(|onlookers| onlookers.movements.receiver_count() > 0)
    }

    fn is_empty(&self) -> bool {
        self.journals.is_empty() && !self.has_onlookers()
    }

    fn moved(&self, request: RequestId, what: Option<Moved>, at: Duration) {
        if let (Some(onlookers), Some(what)) = (&self.onlookers, what)
            && self.has_onlookers()
        {
            // Nobody looks on any more if this fails.
            let _ = onlookers.movements.send(Movement { at, request, what });
        }
    }
}

impl Core {
    /// From now on they see what moves.
    pub(in crate::front) fn show_to(&mut self, onlookers: Onlookers) {
        self.audience.onlookers = Some(onlookers);
    }

    /// Tells whoever looks on to look again.
    pub(super) fn changed(&self) {
        if let Some(onlookers) = &self.audience.onlookers {
            onlookers.changed.send_replace(());
        }
    }

    /// Shows work that leaves the front.
    pub(super) fn show_sent(&self, work: &Work, now: Duration) {
        if self.audience.is_empty() {
            return;
        }
        if let Some(id) = self.client_of(work.seq()) {
            self.audience.moved(id, Moved::sent(work), now);
            self.audience.note(id, |journal| journal.sent(work, || self.stages_seen(), now));
        }
    }

    /// Shows a report that has come.
    pub(super) fn show_heard(&self, report: &Report, now: Duration) {
        if self.audience.is_empty() {
            return;
        }
        let moved = Moved::heard(report);
        if let Some(id) = moved.and_then(|(seq, _)| self.client_of(seq)) {
            self.audience.moved(id, moved.map(|(_, what)| what), now);
            self.audience.note(id, |journal| journal.heard(report, now));
        }
    }

    /// Whose sequence it is, if it is a client's.
    fn client_of(&self, seq: SeqId) -> Option<RequestId> {
        self.scheduler.request_of(seq).filter(|&request| !self.pulse.is_probe(request))
    }

    fn stages_seen(&self) -> Vec<StageSeen> {
        let seen = |stage| {
            let peer = self.roster.seated(stage);
            StageSeen {
                address: self.roster.peer(peer).address.clone(),
                layers: self.roster.plan().range(stage),
                is_local: self.roster.is_own(stage),
                rtt: self.rtt(peer),
            }
        };
        self.stage_indices().map(seen).collect()
    }

    /// Who could take each stage's place; none if the line has no spares.
    pub(in crate::front) fn covers(&self) -> Option<Vec<Cover>> {
        let has_spares = self.roster.spares().next().is_some();
        has_spares.then(|| self.stage_indices().map(|stage| self.roster.cover(stage)).collect())
    }

    fn stage_indices(&self) -> impl Iterator<Item = StageIndex> + use<> {
        (0..self.ledgers.len() as u16).map(StageIndex)
    }

    fn rtt(&self, peer: PeerIndex) -> Option<Duration> {
        self.links[usize::from(peer.0)].as_ref().and_then(|link| link.stats().rtt)
    }

    pub(in crate::front) fn snapshot(&mut self, now: Duration) -> LineSnapshot {
        LineSnapshot {
            stages: self.stage_indices().map(|stage| self.stage_snapshot(stage, now)).collect(),
            n_given: self.roster.n_given(),
            spares: self.roster.spares().map(|spare| self.spare_snapshot(spare)).collect(),
            sequences: self.scheduler.sequences().filter(|seq| !self.pulse.is_probe(seq.request)).collect(),
            stats: self.scheduler.stats(),
            relayed: self.roster.stages().last().is_some_and(|peer| peer.relayed),
        }
    }

    fn stage_snapshot(&mut self, stage: StageIndex, now: Duration) -> StageSnapshot {
        let at = usize::from(stage.0);
        let (seated, plan) = (self.roster.seated(stage), self.roster.plan());
        let peer = self.roster.peer(seated).clone();
        let row_bytes = match peer.state {
            PeerState::Assigned(StageState::Ready { row_width, .. }) if at + 1 < self.ledgers.len() => {
                plan.row_dtype.row_bytes(row_width as usize) as u64
            }
            _ => 0,
        };
        StageSnapshot {
            is_local: self.roster.is_own(stage),
            layers: plan.range(stage),
            peer,
            cover: self.roster.cover(stage),
            busy: self.busy.share(stage, now),
            rtt: self.rtt(seated),
            counters: self.ledgers[at].total(),
            row_bytes,
        }
    }

    fn spare_snapshot(&self, spare: PeerIndex) -> SpareSnapshot {
        let peer = self.roster.peer(spare).clone();
        let layers = match peer.state {
            PeerState::Spare { seat, .. } => Some(self.roster.plan().range(seat)),
            PeerState::Away { .. } | PeerState::Linked | PeerState::Assigned(_) => peer.holds,
        };
        SpareSnapshot { peer, layers, rtt: self.rtt(spare) }
    }
}
