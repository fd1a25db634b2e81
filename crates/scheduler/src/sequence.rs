//! One running request: its prompt in chunks, then its windows, and the time it took.
//!
//! Owns: what the sequence sends next and what a report about it means. Does not know other sequences.

use std::time::Duration;

use protocol::{
    Chunk, Found, Held, Position, Progress, PromptPart, Reuse, SeqId, TailDraft, Token, Verdict, Work,
};
use spec::{
    Answered, Draft, DraftFault, Line, Pace, Plan, Proposer, Reach, Setup, Sources, Speculate, Speculation,
    TextChange,
};

use crate::chunks::Chunks;
use crate::meter::{Guessing, Meter};
use crate::prefixes::Namespace;
use crate::queue::Past;
use crate::silence::Silence;
use crate::wanted::Wanted;
use crate::{Config, ReportFault, Request, RequestId, SequenceState, SequenceStatus, Timings};

/// A sequence on the line, from its `Open` until its `Closed` has come back.
#[derive(Debug)]
pub(crate) struct Sequence {
    seq: SeqId,
    request: RequestId,
    /// As it was asked for, to begin again if a stage has lost the prefix.
    asked: Box<Request>,
    /// The prefix that it was opened with.
    reuse: Option<Reuse>,
    /// How much of that it took over.
    start: Position,
    /// What only the later stages held of its text.
    held: Option<Held>,
    /// Where what it begins with came from, until the tail has spoken of it.
    origin: Option<Origin>,
    /// How long nothing has been heard about it.
    pub(crate) silence: Silence,
    /// Prompt tokens taken over from a prefix when the request began.
    n_cached: u32,
    /// Tokens that were known when it was opened: the prompt, and what had been generated before an interruption.
    n_text: u32,
    /// What is wanted of the prompt, if anything is left to be told.
    wanted: Option<Wanted>,
    /// Of that, what had been told when the sequence began.
    told: u32,
    /// Mirostat's state after the last token.
    mu: Option<f32>,
    /// Of the sequences that the request was before.
    guessed: Guessing,
    limit: Position,
    /// Somebody elsewhere drafts for it.
    is_drafted: bool,
    own: Vec<Box<dyn Proposer>>,
    /// The width of its only window, if it is the front's own.
    probe: Option<u32>,
    /// The request has made room for a more urgent one.
    has_yielded: bool,
    chunks: Chunks,
    /// How much of the text has passed the tail, by its last report; none before the first one.
    passed: Option<Position>,
    phase: Phase,
    meter: Meter,
}

#[derive(Debug)]
enum Phase {
    /// Chunks up to `next` were sent; the prompt's last token is the anchor and never part of one.
    Prefill { text: Vec<Token>, next: usize },
    /// Windows go out and verdicts come back.
    Decode(Box<Speculation>),
    /// The request is over; `positions` tokens were committed.
    Closing { positions: u32 },
}

/// Where a sequence's beginning comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A sequence that has ended.
    Parked,
    /// One that still runs.
    Running,
    /// What the stages have stored.
    Stored,
}

/// What a sequence is opened with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) seq: SeqId,
    pub(crate) request: RequestId,
    pub(crate) asked: Box<Request>,
    /// The prompt, and what was generated before an interruption.
    pub(crate) text: Vec<Token>,
    /// Tokens taken over from a prefix.
    pub(crate) start: Position,
    /// Which one.
    pub(crate) reuse: Option<Reuse>,
    /// What only the later stages hold of the text.
    pub(crate) held: Option<Held>,
    /// Where that comes from.
    pub(crate) origin: Option<Origin>,
    /// What is wanted of the prompt, if anything is left to be told.
    pub(crate) wanted: Option<Wanted>,
    /// What was interrupted, if anything was.
    pub(crate) past: Option<Past>,
    pub(crate) limit: Position,
    /// Somebody elsewhere drafts for it and must hear of its text.
    pub(crate) is_drafted: bool,
    /// Sources of guesses that the caller brings.
    pub(crate) own: Vec<Box<dyn Proposer>>,
    /// The width of its only window, if it is the front's own.
    pub(crate) probe: Option<u32>,
    /// It has made room for a more urgent one.
    pub(crate) has_yielded: bool,
    pub(crate) now: Duration,
}

impl Sequence {
    pub(crate) fn new(start: Start) -> Self {
        let fresh = || Past {
            text: Vec::new(),
            n_cached: start.start.0,
            told: 0,
            mu: None,
            meter: Meter::new(start.now),
            guessing: Guessing::default(),
        };
        let Past { n_cached, told, mu, meter, guessing, .. } = start.past.unwrap_or_else(fresh);
        Self {
            seq: start.seq,
            request: start.request,
            asked: start.asked,
            reuse: start.reuse,
            held: start.held,
            origin: start.origin,
            start: start.start,
            silence: Silence::new(start.now),
            n_cached,
            n_text: start.text.len() as u32,
            wanted: start.wanted,
            told,
            mu,
            guessed: guessing,
            limit: start.limit,
            is_drafted: start.is_drafted,
            own: start.own,
            probe: start.probe,
            has_yielded: start.has_yielded,
            chunks: Chunks::default(),
            passed: None,
            phase: Phase::Prefill { text: start.text, next: start.start.0 as usize },
            meter,
        }
    }

    /// How much it has begun with and where that came from; said once.
    pub(crate) fn take_beginning(&mut self) -> Option<(Position, Origin)> {
        self.origin.take().map(|origin| (self.start, origin))
    }

    pub(crate) const fn request(&self) -> RequestId {
        self.request
    }

    /// Whether it is the front's own, of one window.
    pub(crate) const fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    pub(crate) const fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// Whether it can be interrupted for a more urgent request: that happens to a request once.
    pub(crate) const fn may_yield(&self) -> bool {
        !self.has_yielded && !self.is_closing() && !self.is_probe()
    }

    pub(crate) const fn yields(&mut self) {
        self.has_yielded = true;
    }

    pub(crate) const fn has_yielded(&self) -> bool {
        self.has_yielded
    }

    /// What the sequence may send now, if anything: the next chunk, or the next window.
    pub(crate) fn next_work(&mut self, config: &Config, line: Line<'_>, now: Duration) -> Option<Work> {
        if let Phase::Prefill { text, next } = &mut self.phase {
            let is_whole = self.asked.is_prompt_only();
            let n_left = text.len() - usize::from(!is_whole) - *next;
            if n_left > 0 {
                if self.chunks.len() >= config.max_chunks_in_flight as usize {
                    return None;
                }
                let base = *next;
                // A chunk is held or not, not in part.
                let held = self.held.map_or(0, |held| held.len.0 as usize);
                let n_left = if base < held { n_left.min(held - base) } else { n_left };
                let most = self.wanted.map_or(usize::MAX, |_| Wanted::most_rows(config));
                *next += most.min(self.chunks.next_rows(config, line, base as u32, n_left as u32) as usize);
                self.chunks.sent(base as u32..*next as u32);
                let tokens = text[base..*next].to_vec();
                let follows = self.wanted.and_then(|wanted| wanted.follows(text, *next));
                return Some(Work::Chunk(Chunk {
                    seq: self.seq,
                    base: Position(base as u32),
                    tokens,
                    follows,
                }));
            }
            if is_whole {
                return None;
            }
            let max_in_flight = Speculation::max_in_flight();
            let start = spec::Start {
                setup: Setup { seq: self.seq, n_vocab: config.n_vocab, limit: self.limit, max_in_flight },
                prompt: std::mem::take(text),
                prediction: self.asked.prediction.clone(),
                own: std::mem::take(&mut self.own),
            };
            let pinned = |width| Speculate {
                sources: Sources::Off,
                reach: Reach { width: Some(width), depth: Some(1), ..config.speculate.reach },
                draft_len: None,
            };
            let speculate = self.probe.map_or_else(|| config.speculate.clone(), pinned);
            self.phase = Phase::Decode(Box::new(Speculation::new(start, &speculate)));
        }
        let Phase::Decode(speculation) = &mut self.phase else { return None };
        speculation.next_window(line, now).map(Work::Window)
    }

    /// A draft for one of its sources has come; whether that may change what is sent.
    pub(crate) fn handle_draft(&mut self, source: &str, draft: Draft, line: Line<'_>) -> bool {
        match &mut self.phase {
            Phase::Decode(speculation) => speculation.handle_draft(source, draft, line),
            Phase::Prefill { .. } | Phase::Closing { .. } => false,
        }
    }

    /// As [`Speculation::has_waited`].
    pub(crate) fn has_waited(&self, now: Duration) -> Option<Duration> {
        match &self.phase {
            Phase::Decode(speculation) => speculation.has_waited(now),
            Phase::Prefill { .. } | Phase::Closing { .. } => None,
        }
    }

    /// A draft of the tail's own has come; whether that may change what is sent.
    pub(crate) fn handle_tail_draft(
        &mut self,
        draft: TailDraft,
        line: Line<'_>,
    ) -> Result<bool, ReportFault> {
        let seq = self.seq;
        let result = match &mut self.phase {
            Phase::Decode(speculation) => speculation.handle_tail_draft(draft, line),
            Phase::Prefill { .. } | Phase::Closing { .. } => {
                Err(DraftFault::Unannounced { base: draft.base })
            }
        };
        result.map_err(|fault| ReportFault::Draft { seq, fault })
    }

    /// As [`Speculation::text_change`], if somebody wants to hear it.
    pub(crate) fn text_change(&mut self) -> Option<TextChange> {
        match &mut self.phase {
            Phase::Decode(speculation) if self.is_drafted => speculation.text_change(),
            _ => None,
        }
    }

    pub(crate) const fn is_drafted(&self) -> bool {
        self.is_drafted
    }

    /// A part of what is wanted of the prompt has come; what of it the caller has not heard.
    pub(crate) fn handle_prompt(&mut self, part: PromptPart) -> Result<Option<Found>, ReportFault> {
        let PromptPart { seq, base, .. } = part;
        let n_found = part.found.len() as u32;
        let unasked = ReportFault::OfPrompt { seq, base, n_found, expected: 0 };
        self.wanted.as_mut().ok_or(unasked)?.hear(part)
    }

    /// The tail has passed the oldest chunk in flight. Where that began, and whether that was all that the request wants.
    pub(crate) fn handle_progress(&mut self, progress: &Progress) -> Result<(u32, bool), ReportFault> {
        let passed = self.chunks.passed(progress);
        let refused = |expected| ReportFault::Progress { seq: self.seq, next: progress.next, expected };
        let base = passed.map_err(refused)?;
        self.meter.chunk(&progress.timings);
        if self.wanted.is_some_and(|wanted| !wanted.is_up_to(progress.next)) {
            return Err(ReportFault::PromptUntold { seq: self.seq, next: progress.next });
        }
        self.passed = Some(progress.next);
        Ok((base, self.asked.is_prompt_only() && progress.next.0 == self.n_text))
    }

    /// Commits a verdict.
    pub(crate) fn handle_verdict(
        &mut self,
        verdict: &Verdict,
        line: Line<'_>,
        now: Duration,
    ) -> Result<Answered, ReportFault> {
        let seq = self.seq;
        let Phase::Decode(speculation) = &mut self.phase else {
            return Err(ReportFault::PromptPending { seq });
        };
        if !self.chunks.is_empty() {
            return Err(ReportFault::PromptPending { seq });
        }
        let expected = if self.asked.top_logprobs.is_some() { verdict.tokens.len() } else { 0 };
        if verdict.logprobs.len() != expected {
            return Err(ReportFault::Logprobs { seq, n_logprobs: verdict.logprobs.len(), expected });
        }
        let answered = speculation.handle_verdict(verdict, line, now);
        let answered = answered.map_err(|fault| ReportFault::Verdict { seq, fault })?;
        self.meter.answered(answered.under_way, &verdict.timings);
        self.meter.committed(now);
        self.mu = verdict.mu.or(self.mu);
        self.passed = Some(Position(self.positions()));
        Ok(answered)
    }

    /// Ends the sequence. Returns whether anything of it is still on its way to the tail.
    pub(crate) fn close(&mut self) -> bool {
        let has_windows = matches!(&self.phase, Phase::Decode(speculation) if speculation.n_in_flight() > 0);
        let in_flight = !self.chunks.is_empty() || has_windows;
        self.phase = Phase::Closing { positions: self.positions() };
        in_flight
    }

    /// Positions whose input is certain: all but the last token's, which was never one, unless nothing is generated.
    pub(crate) fn inputs(&self) -> Position {
        Position(self.positions().max(self.n_text) - u32::from(!self.asked.is_prompt_only()))
    }

    /// What became of the request, for its caller; it ends now.
    pub(crate) fn timings(&self, now: Duration) -> Timings {
        let mut guessing = self.guessed;
        guessing.add(&self.guessing_at_end());
        Timings {
            prompt_tokens: self.n_prompt(),
            cached_tokens: self.n_cached,
            generated_tokens: self.positions().max(self.n_text) - self.n_prompt(),
            ..self.meter.timings(now, &guessing)
        }
    }

    /// The counters of the sequence's windows; nothing before the first one and after the end, nor of a probe, which
    /// guesses nothing.
    pub(crate) fn guessing(&self) -> Guessing {
        match &self.phase {
            Phase::Decode(_) if self.is_probe() => Guessing::default(),
            Phase::Decode(speculation) => Guessing {
                windows: speculation.stats(),
                tally: *speculation.tally(),
                in_flight: speculation.in_flight(),
                epochs: speculation.epoch().0,
            },
            Phase::Prefill { .. } | Phase::Closing { .. } => Guessing::default(),
        }
    }

    /// The same for a sequence that ends now: nobody will hear of the windows that are under way.
    pub(crate) fn guessing_at_end(&self) -> Guessing {
        let mut guessing = self.guessing();
        if !self.is_probe() {
            guessing.windows.stale_windows += self.windows_in_flight();
        }
        guessing
    }

    pub(crate) fn status(&self) -> SequenceStatus {
        let (state, plan) = match &self.phase {
            Phase::Prefill { .. } => (SequenceState::Prefill, Plan::PLAIN),
            Phase::Decode(speculation) => (SequenceState::Decode, speculation.plan()),
            Phase::Closing { .. } => (SequenceState::Closing, Plan::PLAIN),
        };
        let spec::Stats { proposed: drafted, accepted, .. } = match &self.phase {
            Phase::Decode(speculation) => speculation.stats(),
            Phase::Prefill { .. } | Phase::Closing { .. } => spec::Stats::default(),
        };
        SequenceStatus {
            seq: self.seq,
            request: self.request,
            state,
            prompt: self.n_prompt(),
            cached: self.n_cached,
            positions: self.positions(),
            windows_in_flight: self.windows_in_flight(),
            drafted,
            accepted,
            plan,
        }
    }

    /// What a later prompt may begin with: the certain tokens that every stage has computed. The last one of a text has
    /// been no input yet.
    pub(crate) fn computed(&self) -> &[Token] {
        let text = self.text();
        &text[..self.n_passed().min(text.len().saturating_sub(1))]
    }

    /// Its prompt, and what has been committed since; nothing once it is over.
    pub(crate) fn text(&self) -> &[Token] {
        match &self.phase {
            Phase::Prefill { text, .. } => text,
            Phase::Decode(speculation) => speculation.committed(),
            Phase::Closing { .. } => &[],
        }
    }

    /// How much of its text every stage has computed, as far as is known.
    pub(crate) fn n_passed(&self) -> usize {
        self.passed.map_or(0, |passed| passed.0 as usize)
    }

    /// Whether stages may still be reading what it begins with from their stores, which takes nobody knows how long.
    pub(crate) fn is_restoring(&self) -> bool {
        self.passed.is_none() && self.reuse.is_some_and(|reuse| reuse.stored.is_some())
    }

    /// Of a chunk that begins at `base` and has passed the tail, the tokens that the later stages held.
    pub(crate) fn n_held(&self, base: u32, next: Position) -> u64 {
        self.held.filter(|held| next <= held.len).map_or(0, |_| u64::from(next.0 - base))
    }

    /// Whether it was opened with something that only the later stages held.
    pub(crate) const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// What the later stages still hold of it, if that is more than every stage has computed.
    pub(crate) fn still_held(&self) -> Option<(Namespace, Vec<Token>)> {
        let len = self.held?.len.0 as usize;
        let namespace = self.asked.namespace?;
        let text = self.text().get(..len)?;
        (self.n_passed() < len).then(|| (namespace, text.to_vec()))
    }

    /// The prefix that it was opened with.
    pub(crate) const fn reuse(&self) -> Option<Reuse> {
        self.reuse
    }

    /// The sequence whose memory it began with, and how much of that one's text must be computed before it can begin.
    pub(crate) fn begins_with(&self) -> Option<(SeqId, usize)> {
        self.reuse.filter(|_| self.passed.is_none()).map(|reuse| (reuse.prefix, self.start.0 as usize))
    }

    /// How far it guesses, while it decodes.
    pub(crate) fn plan(&self) -> Option<Plan> {
        match &self.phase {
            Phase::Decode(speculation) => Some(speculation.plan()),
            Phase::Prefill { .. } | Phase::Closing { .. } => None,
        }
    }

    /// What it was opened for.
    pub(crate) const fn asked(&self) -> &Request {
        &self.asked
    }

    /// What the request has come to, for it to go on from in another sequence.
    pub(crate) fn past(&self) -> Past {
        let text = self.text().to_vec();
        let mut guessing = self.guessed;
        guessing.add(&self.guessing_at_end());
        let told = self.wanted.map_or(self.told, |wanted| wanted.told());
        Past { text, n_cached: self.n_cached, told, mu: self.mu, meter: self.meter.clone(), guessing }
    }

    /// Whether the request was another sequence before, and its caller has heard something of it.
    pub(crate) const fn was_interrupted(&self) -> bool {
        self.n_text > self.asked.prompt.len() as u32 || self.told > 0
    }

    /// The sources that its caller brought; it goes on without them.
    pub(crate) fn take_own(&mut self) -> Vec<Box<dyn Proposer>> {
        match &mut self.phase {
            Phase::Decode(speculation) => speculation.take_own(),
            Phase::Prefill { .. } | Phase::Closing { .. } => std::mem::take(&mut self.own),
        }
    }

    /// Seconds that the slowest stage needs for what is under way, and the rows of the largest piece of it.
    pub(crate) fn under_way(&self, config: &Config, pace: &Pace) -> (f64, u32) {
        let (n, rows) = match &self.phase {
            Phase::Prefill { .. } => (self.chunks.len() as u32, config.chunk_rows),
            Phase::Decode(speculation) => (self.windows_in_flight(), speculation.plan().width),
            Phase::Closing { .. } => (0, 1),
        };
        (f64::from(n) * pace.busy().slowest(rows), rows)
    }

    fn n_prompt(&self) -> u32 {
        self.asked.prompt.len() as u32
    }

    fn positions(&self) -> u32 {
        match &self.phase {
            Phase::Prefill { next, .. } => *next as u32,
            Phase::Decode(speculation) => speculation.committed().len() as u32,
            Phase::Closing { positions } => *positions,
        }
    }

    fn windows_in_flight(&self) -> u32 {
        match &self.phase {
            Phase::Decode(speculation) => speculation.n_live() as u32,
            Phase::Prefill { .. } | Phase::Closing { .. } => 0,
        }
    }
}
