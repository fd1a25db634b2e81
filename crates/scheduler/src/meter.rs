//! What a request's windows came to, and where its time went.

use std::time::Duration;

use protocol::StageTiming;
use spec::{InFlight, Tally};

use crate::queue::Past;
use crate::{Loops, Timings};

/// What a sequence's windows came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guessing {
    pub(crate) windows: spec::Stats,
    pub(crate) tally: Tally,
    pub(crate) in_flight: InFlight,
    pub(crate) epochs: u32,
}

/// Where a sequence's time goes.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    started: Duration,
    /// When the first and the latest token were committed.
    tokens: Option<(Duration, Duration)>,
    loops: Loops,
    stages: Vec<StageTiming>,
    longest_chunk_us: u32,
}

impl Past {
    /// Its figures, should it end now.
    pub(crate) fn timings(&self, prompt_tokens: u32, now: Duration) -> Timings {
        Timings {
            prompt_tokens,
            cached_tokens: self.n_cached,
            generated_tokens: (self.text.len() as u32).saturating_sub(prompt_tokens),
            ..self.meter.timings(now, &self.guessing)
        }
    }
}

impl Guessing {
    pub(crate) fn add(&mut self, other: &Self) {
        self.windows.add(&other.windows);
        self.tally.add(&other.tally);
        self.in_flight.add(&other.in_flight);
        self.epochs += other.epochs;
    }
}

impl Meter {
    pub(crate) const fn new(now: Duration) -> Self {
        Self {
            started: now,
            tokens: None,
            loops: Loops { windows: 0, total_us: 0, waited_us: 0 },
            stages: Vec::new(),
            longest_chunk_us: 0,
        }
    }

    /// A chunk of the prompt has passed.
    pub(crate) fn chunk(&mut self, timings: &[StageTiming]) {
        let slowest = timings.iter().map(|timing| timing.compute_us).max();
        self.longest_chunk_us = self.longest_chunk_us.max(slowest.unwrap_or(0));
    }

    pub(crate) fn answered(&mut self, took: Duration, timings: &[StageTiming]) {
        self.loops.add(took, timings);
        if self.stages.len() < timings.len() {
            self.stages.resize(timings.len(), StageTiming::default());
        }
        for (sum, one) in self.stages.iter_mut().zip(timings) {
            sum.queue_us = sum.queue_us.saturating_add(one.queue_us);
            sum.compute_us = sum.compute_us.saturating_add(one.compute_us);
            sum.batch_rows = sum.batch_rows.saturating_add(one.batch_rows);
        }
    }

    pub(crate) fn committed(&mut self, now: Duration) {
        let first = self.tokens.map_or(now, |(first, _)| first);
        self.tokens = Some((first, now));
    }

    /// Everything but the numbers of tokens.
    pub(crate) fn timings(&self, now: Duration, guessing: &Guessing) -> Timings {
        let (first, last) = self.tokens.unwrap_or((now, now));
        Timings {
            prompt_time: first.saturating_sub(self.started),
            generation_time: last.saturating_sub(first),
            drafted: guessing.windows.proposed,
            accepted: guessing.windows.accepted,
            guesses: Box::new(guessing.tally),
            windows: guessing.windows.windows,
            live_windows: guessing.windows.live_windows,
            stale_windows: guessing.windows.stale_windows,
            in_flight: guessing.in_flight,
            epochs: guessing.epochs,
            loop_time: self.loops.mean(),
            ideal_time: self.loops.ideal(),
            stages: self.stages.clone(),
            longest_chunk: Duration::from_micros(self.longest_chunk_us.into()),
            ..Timings::default()
        }
    }
}
