//! One running request: its prompt in chunks, then its pipeline, and the time it took.
//!
//! Owns: what the sequence sends next and what a report about it means. Does not know other sequences.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::{Chunk, Position, Progress, SeqId, StageTiming, Token, Verdict, WindowId, Work};
use spec::{Commit, Pipeline, Setup};

use crate::{Config, ReportFault, RequestId, SequenceState, SequenceStatus, Timings};

/// Rows in a window: without proposals a window is the anchor alone.
const WIDTH: usize = 1;
/// Windows in flight: without proposals nothing can run ahead of a verdict.
const DEPTH: usize = 1;

/// A sequence on the line, from its `Open` until its `Closed` has come back.
#[derive(Debug)]
pub(crate) struct Sequence {
    seq: SeqId,
    request: RequestId,
    n_prompt: u32,
    limit: Position,
    wants_logprobs: bool,
    /// Where each chunk ends that the tail has not reported yet, oldest first.
    chunks: VecDeque<Position>,
    phase: Phase,
    meter: Meter,
}

#[derive(Debug)]
enum Phase {
    /// Chunks up to `next` were sent; the prompt's last token is the anchor and never part of one.
    Prefill { prompt: Vec<Token>, next: usize },
    /// Windows go out and verdicts come back. `sent` holds when each unanswered window left.
    Decode { pipeline: Pipeline, sent: VecDeque<(WindowId, Duration)> },
    /// The request is over; `positions` tokens were committed.
    Closing { positions: u32 },
}

/// What a sequence is opened with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) seq: SeqId,
    pub(crate) request: RequestId,
    pub(crate) prompt: Vec<Token>,
    pub(crate) limit: Position,
    pub(crate) wants_logprobs: bool,
    pub(crate) now: Duration,
}

impl Sequence {
    pub(crate) fn new(start: Start) -> Self {
        Self {
            seq: start.seq,
            request: start.request,
            n_prompt: start.prompt.len() as u32,
            limit: start.limit,
            wants_logprobs: start.wants_logprobs,
            chunks: VecDeque::new(),
            phase: Phase::Prefill { prompt: start.prompt, next: 0 },
            meter: Meter::new(start.now),
        }
    }

    pub(crate) const fn request(&self) -> RequestId {
        self.request
    }

    pub(crate) const fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// What the sequence may send now, if anything: the next chunk, or the next window.
    pub(crate) fn next_work(&mut self, config: &Config, now: Duration) -> Option<Work> {
        if let Phase::Prefill { prompt, next } = &mut self.phase {
            let n_left = prompt.len() - 1 - *next;
            if n_left > 0 {
                if self.chunks.len() >= config.max_chunks_in_flight as usize {
                    return None;
                }
                let base = *next;
                *next += n_left.min(config.chunk_rows as usize);
                self.chunks.push_back(Position(*next as u32));
                let tokens = prompt[base..*next].to_vec();
                return Some(Work::Chunk(Chunk { seq: self.seq, base: Position(base as u32), tokens }));
            }
            let setup =
                Setup { seq: self.seq, n_vocab: config.n_vocab, limit: self.limit, max_in_flight: DEPTH };
            let pipeline = Pipeline::new(setup, std::mem::take(prompt));
            self.phase = Phase::Decode { pipeline, sent: VecDeque::new() };
        }
        let Phase::Decode { pipeline, sent } = &mut self.phase else { return None };
        let window = pipeline.next_window(WIDTH, &[]).expect("an empty proposal has no token to refuse")?;
        sent.push_back((window.window, now));
        Some(Work::Window(window))
    }

    /// The tail has passed the oldest chunk in flight.
    pub(crate) fn handle_progress(&mut self, progress: &Progress) -> Result<(), ReportFault> {
        let expected = self.chunks.front().copied();
        if expected != Some(progress.next) {
            return Err(ReportFault::Progress { seq: self.seq, next: progress.next, expected });
        }
        self.chunks.pop_front();
        Ok(())
    }

    /// Commits a verdict.
    pub(crate) fn handle_verdict(&mut self, verdict: &Verdict, now: Duration) -> Result<Commit, ReportFault> {
        let seq = self.seq;
        let Phase::Decode { pipeline, sent } = &mut self.phase else {
            return Err(ReportFault::PromptPending { seq });
        };
        if !self.chunks.is_empty() {
            return Err(ReportFault::PromptPending { seq });
        }
        let expected = if self.wants_logprobs { verdict.tokens.len() } else { 0 };
        if verdict.logprobs.len() != expected {
            return Err(ReportFault::Logprobs { seq, n_logprobs: verdict.logprobs.len(), expected });
        }
        let commit = pipeline.handle_verdict(verdict).map_err(|fault| ReportFault::Verdict { seq, fault })?;
        while let Some((window, at)) = sent.pop_front() {
            if window == verdict.window {
                self.meter.answered(now.saturating_sub(at), &verdict.timings);
                break;
            }
        }
        self.meter.committed(now);
        Ok(commit)
    }

    /// Ends the sequence. Returns whether anything of it is still on its way to the tail.
    pub(crate) fn close(&mut self) -> bool {
        let in_flight = !self.chunks.is_empty() || self.windows_in_flight() > 0;
        self.phase = Phase::Closing { positions: self.positions() };
        in_flight
    }

    pub(crate) fn timings(&self, now: Duration) -> Timings {
        let windows = self.windows();
        self.meter.timings(now, self.n_prompt, self.positions().saturating_sub(self.n_prompt), windows)
    }

    /// The counters of the sequence's windows; nothing before the first one and after the end.
    pub(crate) fn windows(&self) -> spec::Stats {
        match &self.phase {
            Phase::Decode { pipeline, .. } => pipeline.stats(),
            Phase::Prefill { .. } | Phase::Closing { .. } => spec::Stats::default(),
        }
    }

    pub(crate) fn status(&self) -> SequenceStatus {
        SequenceStatus {
            seq: self.seq,
            request: self.request,
            state: match self.phase {
                Phase::Prefill { .. } => SequenceState::Prefill,
                Phase::Decode { .. } => SequenceState::Decode,
                Phase::Closing { .. } => SequenceState::Closing,
            },
            prompt: self.n_prompt,
            positions: self.positions(),
            windows_in_flight: self.windows_in_flight(),
        }
    }

    fn positions(&self) -> u32 {
        match &self.phase {
            Phase::Prefill { next, .. } => *next as u32,
            Phase::Decode { pipeline, .. } => pipeline.committed().len() as u32,
            Phase::Closing { positions } => *positions,
        }
    }

    fn windows_in_flight(&self) -> u32 {
        match &self.phase {
            Phase::Decode { pipeline, .. } => pipeline.n_in_flight() as u32,
            Phase::Prefill { .. } | Phase::Closing { .. } => 0,
        }
    }
}

/// Where a sequence's time goes.
#[derive(Debug)]
struct Meter {
    started: Duration,
    /// When the first and the latest token were committed.
    tokens: Option<(Duration, Duration)>,
    loops: Duration,
    n_loops: u32,
    stages: Vec<StageTiming>,
}

impl Meter {
    const fn new(now: Duration) -> Self {
        Self { started: now, tokens: None, loops: Duration::ZERO, n_loops: 0, stages: Vec::new() }
    }

    fn answered(&mut self, took: Duration, timings: &[StageTiming]) {
        self.loops += took;
        self.n_loops += 1;
        if self.stages.len() < timings.len() {
            self.stages.resize(timings.len(), StageTiming::default());
        }
        for (sum, one) in self.stages.iter_mut().zip(timings) {
            sum.queue_us = sum.queue_us.saturating_add(one.queue_us);
            sum.compute_us = sum.compute_us.saturating_add(one.compute_us);
            sum.batch_rows = sum.batch_rows.saturating_add(one.batch_rows);
        }
    }

    fn committed(&mut self, now: Duration) {
        let first = self.tokens.map_or(now, |(first, _)| first);
        self.tokens = Some((first, now));
    }

    fn timings(&self, now: Duration, n_prompt: u32, n_generated: u32, windows: spec::Stats) -> Timings {
        let (first, last) = self.tokens.unwrap_or((now, now));
        Timings {
            prompt_tokens: n_prompt,
            cached_tokens: 0,
            prompt_time: first.saturating_sub(self.started),
            generated_tokens: n_generated,
            generation_time: last.saturating_sub(first),
            drafted: windows.proposed,
            accepted: windows.accepted,
            windows: windows.windows,
            stale_windows: windows.stale_windows,
            loop_time: self.loops.checked_div(self.n_loops).unwrap_or_default(),
            stages: self.stages.clone(),
        }
    }
}
