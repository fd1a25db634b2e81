//! Whether clients take turns, and whether those come back that were interrupted, seen from outside.
//!
//! As long as a client has nothing running, every other client may go before its oldest request of a priority at most
//! once, and nobody less urgent at all. (Who has something running may wait longer: the others have less.)
//!
//! Whoever was interrupted as long ago as the queue has patience goes before everybody but those who wait longer still,
//! whatever their priorities.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::SeqId;
use scheduler::Client;

use crate::check::Violation;
use crate::scenario::Ask;

/// See the module.
#[derive(Debug)]
pub(crate) struct Turns {
    /// How long those may be overtaken that were interrupted.
    patience: Duration,
    /// Of requests, from their `Open` to their `Close` or `Park`.
    on_the_line: BTreeMap<SeqId, usize>,
    /// Since when they are off the line without being over.
    interrupted: BTreeMap<usize, Duration>,
    /// Accepted and not started yet; never those that start again.
    waiting: BTreeMap<usize, Waiting>,
    /// Started and not over, by client.
    running: BTreeMap<Client, u32>,
    violations: Vec<Violation>,
}

#[derive(Debug)]
struct Waiting {
    client: Client,
    priority: i32,
    /// How often others went before it while its client had nothing running.
    passed: BTreeMap<Client, u32>,
}

impl Turns {
    pub(crate) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            on_the_line: BTreeMap::new(),
            interrupted: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// A request has got a place, as this sequence.
    pub(crate) fn opened(&mut self, seq: SeqId, request: usize, now: Duration) {
        let own = self.interrupted.remove(&request);
        for (&waiting, &since) in &self.interrupted {
            let waited = now - since;
            if waited >= self.patience && own.is_none_or(|own| own > since) {
                self.violations.push(Violation::Overtaken { request: waiting, waited, other: request });
            }
        }
        self.on_the_line.insert(seq, request);
    }

    /// A sequence leaves its place; its request has ended if [`Turns::ended`] follows.
    pub(crate) fn closed(&mut self, seq: SeqId, now: Duration) {
        if let Some(request) = self.on_the_line.remove(&seq) {
            self.interrupted.insert(request, now);
        }
    }

    /// All places are gone.
    pub(crate) fn line_lost(&mut self, now: Duration) {
        let lost = std::mem::take(&mut self.on_the_line);
        self.interrupted.extend(lost.into_values().map(|request| (request, now)));
    }

    pub(crate) fn accepted(&mut self, request: usize, ask: &Ask) {
        let waiting = Waiting { client: ask.client, priority: ask.priority, passed: BTreeMap::new() };
        self.waiting.insert(request, waiting);
    }

    /// Whether it had waited, or else starts once more.
    pub(crate) fn started(&mut self, request: usize) {
        let Some(started) = self.waiting.remove(&request) else { return };
        let other = started.client;
        let mut heads: BTreeMap<(Client, i32), (usize, &mut Waiting)> = BTreeMap::new();
        for (&waiting, entry) in &mut self.waiting {
            heads.entry((entry.client, entry.priority)).or_insert((waiting, entry));
        }
        for ((client, priority), (waiting, entry)) in heads {
            let is_idle = self.running.get(&client).is_none_or(|&n| n == 0);
            if client == other || !is_idle || priority > started.priority {
                continue;
            }
            let turns = entry.passed.entry(other).or_default();
            *turns += 1;
            let most = u32::from(priority == started.priority);
            if *turns > most {
                let turns = *turns;
                self.violations.push(Violation::Starved { request: waiting, client, other, turns });
            }
        }
        *self.running.entry(other).or_default() += 1;
        // The client's turn is over: the next time everybody may go before it once more.
        for entry in self.waiting.values_mut().filter(|entry| entry.client == other) {
            entry.passed.clear();
        }
    }

    pub(crate) fn ended(&mut self, request: usize, client: Client) {
        self.interrupted.remove(&request);
        if self.waiting.remove(&request).is_none()
            && let Some(running) = self.running.get_mut(&client)
        {
            *running = running.saturating_sub(1);
        }
    }

    pub(crate) fn violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.violations)
    }
}
