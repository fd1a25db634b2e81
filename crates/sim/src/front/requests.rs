//! The real scheduler, fed with requests and cancellations at given times.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::{End, Report, StageIndex};
use scheduler::{Config, Event, Failure, Finish, Output, Refusal, RequestId, Scheduler};

use super::{Front, Guessed, Sent};
use crate::check::{Ending, Stories};
use crate::scenario::Ask;

/// How long a client that was refused waits before it tries again.
const RETRY: Duration = Duration::from_millis(3);

enum Act {
    Submit(usize),
    Cancel(usize),
}

pub(crate) struct Requests {
    scheduler: Scheduler,
    asks: Vec<Ask>,
    acts: BTreeMap<(Duration, usize), Act>,
    n_acts: usize,
    /// What the scheduler calls each request.
    ids: BTreeMap<RequestId, usize>,
    stories: Stories,
}

impl Requests {
    pub(crate) fn new(config: Config, asks: Vec<Ask>, stories: Stories) -> Self {
        let mut front = Self {
            scheduler: Scheduler::new(config),
            acts: BTreeMap::new(),
            n_acts: 0,
            ids: BTreeMap::new(),
            stories,
            asks,
        };
        for request in 0..front.asks.len() {
            front.plan(front.asks[request].at, Act::Submit(request));
        }
        front
    }

    fn plan(&mut self, at: Duration, act: Act) {
        self.n_acts += 1;
        self.acts.insert((at, self.n_acts), act);
    }

    fn submit(&mut self, request: usize, now: Duration) {
        let ask = &self.asks[request];
        match self.scheduler.submit(ask.request(), now) {
            Ok(id) => {
                self.ids.insert(id, request);
                self.stories.accepted(request);
                if let Some(patience) = ask.patience {
                    self.plan(now + patience, Act::Cancel(request));
                }
            }
            Err(Refusal::NotReady | Refusal::QueueFull { .. }) => {
                self.plan(now + RETRY, Act::Submit(request))
            }
            Err(refusal) => {
                self.stories.accepted(request);
                self.stories.ended(request, Ending::Failed(refusal.to_string()));
            }
        }
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
            Event::Started { .. } => self.stories.started(request),
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
                self.stories.ended(request, ending);
            }
            Event::Failed(failure) => {
                let ending = match failure {
                    Failure::LineLost { .. } => Ending::LineLost,
                    Failure::QueueTimeout { .. } => Ending::QueueTimeout,
                    other => Ending::Failed(other.to_string()),
                };
                self.stories.ended(request, ending);
            }
        }
    }
}

impl Front for Requests {
    fn line_up(&mut self, now: Duration) {
        self.scheduler.line_up(now);
    }

    fn line_lost(&mut self, _now: Duration) {
        self.stories.interrupted();
        self.scheduler.line_lost("a stage was lost");
    }

    fn handle_report(&mut self, from: StageIndex, report: Report, now: Duration) -> Result<(), String> {
        self.scheduler.handle_report(from, report, now).map_err(|fault| fault.to_string())
    }

    fn wake(&mut self, now: Duration) {
        while let Some(act) = self.acts.first_entry().filter(|act| act.key().0 <= now) {
            match act.remove() {
                Act::Submit(request) => self.submit(request, now),
                Act::Cancel(request) => self.cancel(request, now),
            }
        }
        self.scheduler.handle_timeout(now);
    }

    fn next_wake(&self) -> Option<Duration> {
        let act = self.acts.first_key_value().map(|((at, _), _)| *at);
        [act, self.scheduler.next_deadline()].into_iter().flatten().min()
    }

    fn poll_sent(&mut self) -> Option<Sent> {
        loop {
            match self.scheduler.poll_output()? {
                Output::Work(frame) => return Some(Sent::Work(frame)),
                Output::Hint(hint) => return Some(Sent::Hint(hint)),
                Output::Event(id, event) => self.tell(id, event),
            }
        }
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
            refused: 0,
        }
    }

    fn n_sequences(&self) -> usize {
        self.scheduler.sequences().count()
    }
}
