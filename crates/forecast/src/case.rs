//! What a comparison is about: one kind of request, from one client or from several at once.

use crate::run::{Forecast, Job};
use crate::workload::{Kind, Workload};

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// For people.
    pub name: String,
    /// The requests, at least one.
    pub workloads: Vec<Workload>,
    /// Of those, at the same time. At least 1.
    pub clients: usize,
}

/// Rounds of requests that several clients make.
const ROUNDS: usize = 2;

impl Case {
    /// Requests for a kind of text, with answers of about `n_answer` tokens.
    #[must_use]
    pub fn text(kind: Kind, seed: u64, n_answer: usize, clients: usize) -> Self {
        Self::new(seed, n_answer, clients, |seed, n| kind.workload(seed, n))
    }

    /// Requests whose guesses are right with probability `right`.
    #[must_use]
    pub fn agreeing(right: f64, seed: u64, n_answer: usize, clients: usize) -> Self {
        Self::new(seed, n_answer, clients, |seed, n| Workload::agreeing(right, seed, n))
    }

    fn new(seed: u64, n_answer: usize, clients: usize, make: impl Fn(u64, usize) -> Workload) -> Self {
        let n_requests = if clients > 1 { ROUNDS * clients } else { 1 };
        // Several answers differ in length, by up to half: of equal ones plain decoding would do all prompts together
        // and then all answers, as real requests never do.
        let length = |request: usize| n_answer - n_answer / 2 * ((request * 5) % n_requests) / n_requests;
        let workloads: Vec<_> = (0..n_requests).map(|i| make(seed + i as u64, length(i).max(1))).collect();
        Self { name: workloads[0].name.clone(), workloads, clients: clients.max(1) }
    }

    /// The job with the sources that the requests name.
    pub(crate) fn job(&self) -> Job<'_> {
        Job { workloads: &self.workloads, clients: self.clients }
    }

    /// The same requests without any source of their own.
    pub(crate) fn unguessed(&self) -> Self {
        let plain = |workload: &Workload| Workload { agreement: None, ..workload.clone() };
        Self { workloads: self.workloads.iter().map(plain).collect(), ..self.clone() }
    }

    /// Tokens per second: of one client while it decodes, of several together from the first request to the last
    /// answer, prompts included.
    #[must_use]
    pub fn rate(&self, forecast: &Forecast) -> f64 {
        if self.clients == 1 { forecast.decode_rate } else { forecast.tokens_per_second }
    }
}
