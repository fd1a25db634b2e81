//! Who waits for a slot, and who is next.
//!
//! Owns: the order, fairness among clients, and deadlines. Does not know slots: whoever owns them asks for the next.
//!
//! Those go first who ran already and have waited as long as the queue has patience, the earliest of them before all; then
//! the most urgent priority; within it those who ran already and were interrupted; then the client with the
//! fewest running requests, of those the one that was served longest ago, and each client's requests in their order. So
//! a client with a thousand requests delays another one's by one of them, and whoever asks for urgency delays those who
//! ran already for a time only. (Who has not begun hears when that time is over that no place became free.)

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::Token;
use spec::Proposer;

use crate::meter::{Guessing, Meter};
use crate::prefixes::Trust;
use crate::{Client, Failure, Request, RequestId};

/// Clients whose last turn is remembered; beyond that those forgotten that have nothing waiting.
const MAX_TURNS: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: BTreeMap<RequestId, Waiting>,
    /// Fresh requests at most.
    limit: usize,
    /// When each client was served last, counted in requests served.
    turns: BTreeMap<Client, u64>,
    served: u64,
}

/// A request that waits for a slot.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: Request,
    /// Sources of guesses that its caller brought.
    pub(crate) own: Vec<Box<dyn Proposer>>,
    /// The width of its only window, if it is the front's own.
    pub(crate) probe: Option<u32>,
    pub(crate) since: Duration,
    pub(crate) patience: Patience,
    /// What it had come to when it was interrupted.
    pub(crate) past: Option<Past>,
    /// What it may begin with: less, once a stage did not have what it was to begin with.
    pub(crate) trust: Trust,
    /// It made room for somebody more urgent and never does so again.
    pub(crate) has_yielded: bool,
}

/// How long a request waits, and what it is told then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until then, for a place.
    Place(Duration),
    /// Until then, for a line in place of the one that was lost; there is none yet for this reason.
    Line(Duration, String),
    /// As long as it takes, because it ran already; from then on before everybody.
    Turn(Duration),
}

/// What an interrupted request goes on from.
#[derive(Debug)]
pub(crate) struct Past {
    /// Prompt and committed tokens.
    pub(crate) text: Vec<Token>,
    /// Prompt tokens that were resident when it began.
    pub(crate) n_cached: u32,
    /// How much of what is wanted of the prompt its caller has heard.
    pub(crate) told: u32,
    /// Mirostat's state after the last token.
    pub(crate) mu: Option<f32>,
    pub(crate) meter: Meter,
    pub(crate) guessing: Guessing,
}

impl Waiting {
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.patience {
            Patience::Place(at) | Patience::Line(at, _) => Some(at),
            Patience::Turn(_) => None,
        }
    }

    /// What it is told when its deadline has passed.
    pub(crate) fn failure(&self, now: Duration) -> Failure {
        match &self.patience {
            Patience::Line(_, reason) => Failure::LineLost { reason: reason.clone() },
            Patience::Place(_) | Patience::Turn(_) => {
                Failure::QueueTimeout { waited: now.saturating_sub(self.since) }
            }
        }
    }

    /// When its time came, if it has.
    fn late(&self, now: Duration) -> Option<Duration> {
        match self.patience {
            Patience::Turn(at) if at <= now => Some(at),
            _ => None,
        }
    }

    fn is_fresh(&self) -> bool {
        self.past.is_none() && self.trust == Trust::All
    }
}

impl Queue {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { waiting: BTreeMap::new(), limit: limit as usize, turns: BTreeMap::new(), served: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Makes room for one more of a client's requests: in a full queue the newest one goes of whoever has at least two
    /// more waiting than this client. None if nobody has; else who must be told, if anybody.
    pub(crate) fn make_room(&mut self, client: Client) -> Option<Option<RequestId>> {
        let mut counts: BTreeMap<Client, (usize, RequestId)> = BTreeMap::new();
        let mut n_fresh = 0;
        for (&id, waiting) in self.waiting.iter().filter(|(_, waiting)| waiting.is_fresh()) {
            n_fresh += 1;
            let (count, newest) = counts.entry(waiting.request.client).or_insert((0, id));
            *count += 1;
            *newest = id;
        }
        if n_fresh < self.limit {
            return Some(None);
        }
        let ours = counts.get(&client).map_or(0, |&(count, _)| count);
        let (count, newest) = counts.into_values().max_by_key(|&(count, _)| count)?;
        if count < ours + 2 {
            return None;
        }
        self.waiting.remove(&newest);
        Some(Some(newest))
    }

    pub(crate) fn push(&mut self, id: RequestId, waiting: Waiting) {
        self.waiting.insert(id, waiting);
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        self.waiting.remove(&id)
    }

    /// The line is gone: who would wait for ever does so until `at` only.
    pub(crate) fn line_lost(&mut self, at: Duration, reason: &str) {
        for waiting in
            self.waiting.values_mut().filter(|waiting| matches!(waiting.patience, Patience::Turn(_)))
        {
            waiting.patience = Patience::Line(at, reason.into());
        }
    }

    /// Why there is no line yet.
    pub(crate) fn line_awaits(&mut self, reason: &str) {
        for waiting in self.waiting.values_mut() {
            if let Patience::Line(_, known) = &mut waiting.patience {
                reason.clone_into(known);
            }
        }
    }

    /// A line is there: who waited for one waits for a place now, for `timeout` from when it came; who ran already is not
    /// turned away after that, but goes first.
    pub(crate) fn line_up(&mut self, timeout: Duration) {
        for waiting in self.waiting.values_mut() {
            if let Patience::Line(..) = waiting.patience {
                let at = waiting.since.saturating_add(timeout);
                waiting.patience = if waiting.is_fresh() { Patience::Place(at) } else { Patience::Turn(at) };
            }
        }
    }

    /// How many wait that are more urgent than `priority`.
    pub(crate) fn n_before(&self, priority: i32) -> usize {
        self.waiting.values().filter(|waiting| waiting.request.priority < priority).count()
    }

    /// Takes out who is next. `running` says how many requests of a client run.
    pub(crate) fn next(
        &mut self,
        running: impl Fn(Client) -> usize,
        now: Duration,
    ) -> Option<(RequestId, Waiting)> {
        let turn = |client: Client| self.turns.get(&client).copied().unwrap_or(0);
        let key = |(&id, waiting): (&RequestId, &Waiting)| {
            let client = waiting.request.client;
            let is_new = waiting.is_fresh();
            let late = waiting.late(now);
            (late.is_none(), late, waiting.request.priority, is_new, running(client), turn(client), id)
        };
        let (.., id) = self.waiting.iter().map(key).min()?;
        let waiting = self.waiting.remove(&id)?;
        self.served += 1;
        self.turns.insert(waiting.request.client, self.served);
        if self.turns.len() > MAX_TURNS {
            let waits = |client: &Client| self.waiting.values().any(|w| w.request.client == *client);
            self.turns.retain(|client, _| waits(client));
        }
        Some((id, waiting))
    }

    /// Takes out one whose deadline has passed.
    pub(crate) fn overdue(&mut self, now: Duration) -> Option<(RequestId, Waiting)> {
        let is_over = |waiting: &Waiting| waiting.deadline().is_some_and(|at| at <= now);
        let id = self.waiting.iter().find(|(_, waiting)| is_over(waiting)).map(|(&id, _)| id)?;
        self.waiting.remove(&id).map(|waiting| (id, waiting))
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.waiting.values().filter_map(Waiting::deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    fn waiting(client: Client, priority: i32) -> Waiting {
        let request = Request { client, priority, ..Request::new(vec![Token(1)]) };
        Waiting {
            request,
            own: Vec::new(),
            probe: None,
            since: Duration::ZERO,
            patience: Patience::Place(PATIENT),
            past: None,
            trust: Trust::All,
            has_yielded: false,
        }
    }

    fn queue(clients: &[Client]) -> Queue {
        let mut queue = Queue::new(8);
        for (id, &client) in clients.iter().enumerate() {
            queue.push(RequestId(id as u64), waiting(client, 0));
        }
        queue
    }

    /// Whose requests are next while nobody's run.
    fn order(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.next(|_| 0, Duration::ZERO)).map(|(id, _)| id.0).collect()
    }

    #[test]
    fn clients_take_turns_and_each_ones_requests_keep_their_order() {
        assert_eq!(order(&mut queue(&[7, 7, 7, 7, 8, 9, 8])), [0, 4, 5, 1, 6, 2, 3]);
    }

    #[test]
    fn who_has_fewer_running_goes_first() {
        let mut queue = queue(&[7, 8, 7]);
        let running = |client| if client == 7 { 2 } else { 1 };
        assert_eq!(queue.next(running, Duration::ZERO).map(|(id, _)| id.0), Some(1));
        assert_eq!(queue.next(running, Duration::ZERO).map(|(id, _)| id.0), Some(0));
    }

    #[test]
    fn the_most_urgent_goes_first_and_then_who_was_interrupted() {
        let mut queue = queue(&[1, 2]);
        queue.push(RequestId(2), waiting(3, -1));
        let misled = Waiting { trust: Trust::Nothing, ..waiting(4, 0) };
        queue.push(RequestId(3), misled);
        queue.push(RequestId(4), waiting(5, 1));
        assert_eq!((queue.n_before(0), queue.n_before(1), queue.n_before(-1)), (1, 4, 0));
        assert_eq!(order(&mut queue), [2, 3, 0, 1, 4]);
    }

    #[test]
    fn who_ran_and_has_waited_long_goes_before_the_most_urgent() {
        let mut queue = queue(&[1]);
        for (id, priority, at) in [(1, -1000, 60), (2, 1000, 40), (3, 5, 30)] {
            let patience = Patience::Turn(Duration::from_secs(at));
            queue.push(RequestId(id), Waiting { patience, trust: Trust::Nothing, ..waiting(id, priority) });
        }
        let now = Duration::from_secs(50);
        let order: Vec<_> = std::iter::from_fn(|| queue.next(|_| 0, now)).map(|(id, _)| id.0).collect();
        assert_eq!(order, [3, 2, 1, 0]);
    }

    #[test]
    fn in_a_full_queue_the_greedy_make_room_for_others() {
        let mut full = queue(&[7, 7, 7, 7, 7, 7, 7, 8]);
        assert_eq!(full.make_room(7), None, "nobody has more than the greedy one itself");
        assert_eq!(full.make_room(9), Some(Some(RequestId(6))), "its newest");
        full.push(RequestId(8), waiting(9, 0));
        assert_eq!(full.make_room(8), Some(Some(RequestId(5))));
        assert_eq!(queue(&[7; 7]).make_room(7), Some(None), "there is room");
        assert_eq!(queue(&[1, 1, 2, 2, 3, 3, 4, 4]).make_room(4), None, "nobody is greedy");
        assert_eq!(queue(&[1, 1, 2, 2, 3, 3, 4, 4]).make_room(5), Some(Some(RequestId(7))));
    }

    #[test]
    fn whoever_waits_for_a_line_does_so_for_a_time_only() {
        let mut queue = queue(&[1]);
        let ran = Waiting { patience: Patience::Turn(PATIENT), trust: Trust::Nothing, ..waiting(2, 0) };
        queue.push(RequestId(1), ran);
        assert_eq!(queue.next_deadline(), Some(PATIENT));
        let soon = Duration::from_secs(5);
        queue.line_lost(soon, "stage 1 is gone");
        assert_eq!(queue.next_deadline(), Some(soon));
        assert!(queue.overdue(Duration::from_secs(4)).is_none());
        let (id, gone) = queue.overdue(soon).expect("its time is over");
        assert_eq!(
            (id, gone.failure(soon)),
            (RequestId(1), Failure::LineLost { reason: "stage 1 is gone".into() })
        );
        let (id, gone) = queue.overdue(PATIENT).expect("its time is over too");
        assert_eq!((id, gone.failure(PATIENT)), (RequestId(0), Failure::QueueTimeout { waited: PATIENT }));
    }
}
