//! Whether clients take turns, seen from outside.
//!
//! As long as a client has nothing running, every other client may go before its oldest request of a priority at most
//! once, and nobody less urgent at all. (Who has something running may wait longer: the others have less.)

use std::collections::BTreeMap;

use scheduler::Client;

use crate::check::Violation;
use crate::scenario::Ask;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns {
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
