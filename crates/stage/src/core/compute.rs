//! The half of the state machine that meets the engine: which call comes next, and what becomes of its result.

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    Company, FaultKind, Frame, Open, Position, Progress, Report, Rows, SeqId, StageTiming, TailDraft,
    Verdict, WindowId, Work,
};

use super::{Output, StageCore, StoreWork};
use crate::call::{Batch, Begin, Call, Cut, Done, Item, Kind, Load as Filling, Moved, Outcome, RunError};
use crate::policy::{Candidate, Choice, Room};
use crate::port::{Blob, Drafted, Engine, EngineError, Rewind, Sampler, Slot, Span};
use crate::sequence::{Phase, Running, Sequence, base_of};
use crate::stats::Load;
use crate::tail::Tail;

/// Rows after which an engine that drafts is asked to tend to them, if nothing else is to be done: so many in one call cost
/// a fraction of what they would cost one by one, and still do not keep a window waiting for long.
const TEND_ROWS: usize = 64;

impl StageCore {
    /// What the engine shall do next; none if nothing is ready or a call is under way.
    pub fn next_call(&mut self, now: Duration) -> Option<Call> {
        self.buffers.as_ref()?;
        let next = self.next_begin().map(Kind::Begin).or_else(|| self.next_work());
        let kind = next.or_else(|| self.next_tending()).or_else(|| self.next_save())?;
        let buffers = self.buffers.take()?;
        Some(Call { kind, buffers, started: now })
    }

    /// What verdicts have announced, all of it in one call.
    fn drafts(&mut self) -> Kind {
        let mut wished: Vec<_> = self
            .sequences
            .iter_mut()
            .filter_map(|(&seq, sequence)| sequence.take_wish().map(|wish| (seq, wish)))
            .collect();
        wished.sort_by_key(|(_, wish)| wish.slot);
        let (sequences, wishes) = wished.into_iter().unzip();
        Kind::Draft(sequences, wishes)
    }

    fn next_begin(&mut self) -> Option<Begin> {
        let sequence = self.sequences.values_mut().find(|sequence| sequence.wants_to_begin())?;
        let Phase::Beginning(slot, moves) = &mut sequence.phase else { return None };
        let (slot, mut moves) = (*slot, std::mem::take(moves));
        let item = sequence.queue.pop_front()?;
        sequence.busy = true;
        self.load = self.load - Load::of(&item.frame);
        moves.load = moves.load.map(|load| self.checked(load));
        match item.frame.work {
            Work::Open(open) => Some(Begin { open, slot, moves }),
            _ => None,
        }
    }

    /// A copy of what is still there. Since it was decided the sequence may have ended or gone on.
    fn checked(&self, load: Filling) -> Filling {
        let Filling::Copy { of, from, len: decided } = load else { return load };
        let is_there = match self.sequences.get(&of) {
            Some(sequence) => sequence.phase.computed().is_some_and(|(slot, _)| slot == from),
            None => self.prefixes.is_warm_in(of, from),
        };
        let serves = |&len: &Position| match self.shape.rewind {
            Rewind::InPlace { window } => len == decided || len.0 <= window,
            Rewind::Anywhere | Rewind::Recent { .. } | Rewind::LastCall { .. } => true,
        };
        match self.slots.held(from).filter(|_| is_there).filter(serves) {
            Some(len) => Filling::Copy { of, from, len },
            None => Filling::Gone,
        }
    }

    /// Whatever an engine that drafts has put off, once that is much and nothing else is ready.
    fn next_tending(&mut self) -> Option<Kind> {
        let is_due = self.shape.drafts && self.untended >= TEND_ROWS && self.awaited <= 0;
        is_due.then(|| {
            self.untended = 0;
            Kind::Tend
        })
    }

    /// A warm prefix for the store, once nobody waits for the engine: it stays where it is.
    fn next_save(&mut self) -> Option<Kind> {
        if !self.sequences.is_empty() {
            return None;
        }
        let (prefix, slot, len) = self.prefixes.unstored()?;
        Some(Kind::Save(prefix, slot, len))
    }

    /// Frames or drafts. While frames are awaited that are to be computed together with those that are here, drafts only.
    fn next_work(&mut self) -> Option<Kind> {
        let drafts = self.shape.drafts && self.sequences.values().any(Sequence::wishes);
        let ready = self.sequences.iter().filter_map(|(&seq, sequence)| sequence.candidate(seq));
        let mut candidates: Vec<Candidate> = if self.awaited > 0 { Vec::new() } else { ready.collect() };
        candidates.sort_unstable_by_key(|candidate| candidate.slot);
        let max_spans = match self.shape.rewind {
            Rewind::Anywhere | Rewind::InPlace { .. } | Rewind::Recent { .. } if self.shape.is_first => {
                self.together
            }
            // What comes together is computed together, with whatever else waits.
            Rewind::Anywhere | Rewind::InPlace { .. } | Rewind::Recent { .. } => usize::MAX,
            // A call with several sequences moves recurrent state and loses the snapshots.
            Rewind::LastCall { .. } => 1,
        };
        let room = Room { max_rows: self.shape.max_rows, max_spans };
        match self.policy.choose(&candidates, drafts, room) {
            Choice::Nothing => None,
            Choice::Drafts => Some(self.drafts()),
            Choice::Frames(chosen) => Some(Kind::Run(self.batch(&candidates[chosen]))),
        }
    }

    /// The first frames of these sequences.
    fn batch(&mut self, chosen: &[Candidate]) -> Batch {
        self.calls += 1;
        let mut batch = Batch::default();
        for candidate in chosen {
            let Some(sequence) = self.sequences.get_mut(&candidate.seq) else { continue };
            let Some(item) = sequence.queue.pop_front() else { continue };
            sequence.busy = true;
            sequence.served = self.calls;
            let (slot, base) = (candidate.slot, base_of(&item.frame.work));
            self.stats.wasted_rows += sequence.n_beyond(base) as u64;
            if self.slots.needs_cut(slot, base) {
                batch.cuts.push(Cut { slot, len: base });
            }
            let want = sequence.want(&item.frame.work);
            batch.spans.push(Span { slot, base, n_rows: candidate.n_rows, want });
            batch.items.push(item);
        }
        batch
    }

    /// A call has been executed; `engine` still holds its logits. Call it at the time when the result is there.
    pub fn complete(&mut self, done: Done, engine: &dyn Engine, now: Duration) {
        let Done { outcome, buffers, started } = done;
        let time = now.saturating_sub(started);
        match outcome {
            Outcome::Begin(open, moved, sampler) => self.begun(&open, moved, sampler),
            Outcome::Save(prefix, slot, len, saved) => self.saved(prefix, slot, len, saved),
            Outcome::Draft(of, drafted) => {
                self.policy.charge(time);
                self.drafted(&of, drafted, time);
            }
            Outcome::Tended => {}
            Outcome::Run(batch, result) => {
                self.policy.charge(time);
                let result = result.and_then(|()| self.check_output(&batch, &buffers.out));
                match result {
                    Ok(()) => self.ran(batch, &buffers.out, engine, (started, time)),
                    Err(RunError::Cut(slot, error)) => self.failed(batch, Some(slot), &error),
                    Err(RunError::Run(error)) => self.failed(batch, None, &error),
                    Err(RunError::Cancelled) => self.cancelled(batch),
                }
            }
        }
        self.buffers = Some(buffers);
    }

    fn begun(&mut self, open: &Open, moved: Moved, sampler: Option<Result<Box<dyn Sampler>, EngineError>>) {
        let Some(sequence) = self.sequences.get_mut(&open.seq) else { return };
        sequence.busy = false;
        let Some(slot) = sequence.phase.slot() else { return };
        let is_ready = self.moved(slot, moved);
        let (start, reuse) = open.beginning();
        if reuse.is_none() {
            self.slots.set_floor(slot, Position(0));
        }
        let fault = match (sampler, reuse) {
            (_, Some(reuse)) if !is_ready => Some(FaultKind::PrefixLost { prefix: reuse.prefix }),
            (Some(Err(error)), _) => Some(FaultKind::Sampler { reason: error.reason }),
            (sampler, _) => {
                let tail = sampler.and_then(Result::ok).map(|sampler| Tail::new(open, sampler));
                if let Some(sequence) = self.sequences.get_mut(&open.seq) {
                    sequence.phase = Phase::Running(Running::new(slot, start, open.held_by_next(), tail));
                }
                None
            }
        };
        if let Some(kind) = fault {
            self.poison(open.seq, kind);
        }
        self.settle(open.seq);
        self.wake();
    }

    /// Every announced draft is told, an empty one if it could not be made: somebody waits for it.
    fn drafted(
        &mut self,
        of: &[(SeqId, Position)],
        drafted: Result<Vec<Drafted>, EngineError>,
        time: Duration,
    ) {
        let mut drafted = drafted.unwrap_or_else(|error| {
            tracing::warn!("no draft: {error}");
            Vec::new()
        });
        drafted.resize(of.len(), Drafted::default());
        let n_rows: usize = drafted.iter().map(|one| one.n_told as usize + one.tokens.len()).sum();
        let timing = StageTiming { queue_us: 0, compute_us: micros(time), batch_rows: n_rows as u32 };
        let said = self.outputs.len();
        for (&(seq, base), Drafted { tokens, probabilities, .. }) in of.iter().zip(drafted) {
            if self.sequences.get(&seq).is_some_and(|sequence| !sequence.given_up) {
                let company = Company::Alone;
                let draft = TailDraft { seq, base, tokens, probabilities, timing, company };
                self.outputs.push_back(Output::Report(Report::Draft(Box::new(draft))));
            }
        }
        Company::form(self.outputs.iter_mut().skip(said).filter_map(|output| match output {
            Output::Report(Report::Draft(draft)) => Some(&mut draft.company),
            _ => None,
        }));
    }

    /// Notes where prefixes are now. Whether the slot holds what its sequence begins with.
    fn moved(&mut self, slot: Slot, moved: Moved) -> bool {
        let mut is_ready = true;
        if let Some((prefix, len, saved)) = moved.saved {
            is_ready = saved.is_ok();
            self.slots.set_held(slot, is_ready.then_some(len));
            match saved {
                Ok(bytes) => {
                    self.stats.saved_bytes += bytes.len() as u64;
                    let bytes = Bytes::from(bytes);
                    self.hand_over(prefix, Blob { len, bytes: bytes.clone() });
                    self.prefixes.saved(prefix, bytes);
                }
                Err(error) => self.forget(prefix, &error),
            }
        }
        if let Some((len, loaded)) = moved.loaded {
            is_ready = loaded.is_ok();
            self.slots.set_held(slot, is_ready.then_some(len));
            let is_part = !self.shape.rewind.serves(len, Position(len.0.saturating_sub(1)));
            self.slots.set_floor(slot, if is_part { len } else { Position(0) });
            if let Err(error) = loaded {
                tracing::warn!("a prefix could not be restored: {error}");
            }
        }
        is_ready
    }

    /// A warm prefix was saved for the store. Whatever came of it, it is not tried again.
    fn saved(&mut self, prefix: SeqId, slot: Slot, len: Position, saved: Result<Vec<u8>, EngineError>) {
        // Nothing has computed in the slot meanwhile, whoever has been given it.
        self.slots.set_held(slot, saved.is_ok().then_some(len));
        match saved {
            Ok(bytes) => self.hand_over(prefix, Blob { len, bytes: bytes.into() }),
            Err(error) => {
                self.forget(prefix, &error);
                // Nobody knows what the slot holds: whoever has been given it meanwhile begins again.
                let taker = self.sequences.iter().find(|(_, taker)| taker.phase.slot() == Some(slot));
                if let Some(seq) = taker.map(|(&seq, _)| seq) {
                    self.poison(seq, FaultKind::PrefixLost { prefix });
                    self.settle(seq);
                }
            }
        }
    }

    /// Has the store keep a prefix, if that is still to be done.
    fn hand_over(&mut self, prefix: SeqId, blob: Blob) {
        if let Some(key) = self.prefixes.take_key(prefix) {
            self.outputs.push_back(Output::Store(StoreWork::Write { prefix, key, blob }));
        }
    }

    fn forget(&mut self, prefix: SeqId, error: &EngineError) {
        tracing::warn!(%prefix, "a prefix could not be saved: {error}");
        self.prefixes.remove(prefix);
    }

    fn check_output(&self, batch: &Batch, out: &[f32]) -> Result<(), RunError> {
        let expected = n_rows(batch) * self.shape.row_width;
        if self.shape.is_tail || out.len() == expected {
            return Ok(());
        }
        let reason = format!("{} values came out of a call that yields {expected}", out.len());
        Err(RunError::Run(EngineError { reason }))
    }

    /// The rows are computed: each frame travels on, or on the tail becomes a report.
    fn ran(&mut self, batch: Batch, out: &[f32], engine: &dyn Engine, (started, time): (Duration, Duration)) {
        let batch_rows = n_rows(&batch);
        self.stats.calls += 1;
        self.stats.rows += batch_rows as u64;
        self.untended += batch_rows;
        let said = self.outputs.len();
        let mut row = 0;
        for (span, mut item) in batch.spans.into_iter().zip(batch.items) {
            self.load = self.load - Load::of(&item.frame);
            self.slots.set_held(span.slot, Some(span.base.plus(span.n_rows)));
            item.frame.timings.push(StageTiming {
                queue_us: micros(started.saturating_sub(item.arrived)),
                compute_us: micros(time),
                batch_rows: batch_rows as u32,
            });
            let seq = item.seq;
            if self.advance(&span, &item) {
                if self.shape.is_tail {
                    self.judge(item, row, engine);
                } else {
                    let width = self.shape.row_width;
                    self.pass_on(item, &out[row * width..(row + span.n_rows) * width]);
                }
            }
            row += span.n_rows;
            self.settle(seq);
        }
        // Who waits for what one of them has computed.
        self.wake();
        self.form_group(said);
    }

    /// Marks the windows among the outputs from `first` on, which one call has computed, as a group. A sequence's first
    /// window is none of it: it may have to wait for the chunks before it, and the others need not wait with it.
    fn form_group(&mut self, first: usize) {
        Company::form(self.outputs.iter_mut().skip(first).filter_map(|output| match output {
            Output::Forward(Frame { work: Work::Window(window), company, .. }) => {
                *company = Company::Alone;
                (window.window > WindowId(0)).then_some(company)
            }
            Output::Report(Report::Verdict(verdict)) => Some(&mut verdict.company),
            _ => None,
        }));
    }

    /// Notes that a frame's rows are computed. Whether somebody still wants the result.
    fn advance(&mut self, span: &Span, item: &Item) -> bool {
        match item.frame.work {
            Work::Window(_) => self.stats.windows += 1,
            _ => self.stats.chunks += 1,
        }
        let Some(sequence) = self.sequences.get_mut(&item.seq) else { return false };
        sequence.busy = false;
        if let Phase::Running(running) = &mut sequence.phase {
            running.advance(span.base, span.n_rows, self.shape.rewind);
        }
        !sequence.is_unwanted(&item.frame.work)
    }

    fn pass_on(&mut self, mut item: Item, values: &[f32]) {
        let sequence = self.sequences.get(&item.seq);
        if sequence.is_some_and(|sequence| sequence.is_held_by_next(&item.frame.work)) {
            return self.outputs.push_back(Output::Forward(Frame { rows: None, ..item.frame }));
        }
        match Rows::pack(self.config.row_dtype, self.shape.row_width as u32, values) {
            Ok(rows) => {
                item.frame.rows = Some(rows);
                self.outputs.push_back(Output::Forward(item.frame));
            }
            Err(error) => self.poison(item.seq, FaultKind::BadRows { reason: error.to_string() }),
        }
    }

    /// A sequence's first frame is a chunk whose positions are here already: it is heard, and travels on without rows.
    pub(super) fn pass_held(&mut self, seq: SeqId) {
        let Some(Item { mut frame, .. }) = self.drop_first(seq) else { return };
        self.stats.held_chunks += 1;
        frame.timings.push(StageTiming::default());
        let Some(Sequence { phase: Phase::Running(running), .. }) = self.sequences.get_mut(&seq) else {
            return;
        };
        self.outputs.push_back(match &mut running.tail {
            Some(tail) => {
                tail.pass_chunk(frame.work.tokens());
                let next = base_of(&frame.work).plus(frame.work.tokens().len());
                Output::Report(Report::Progress(Progress { seq, next, timings: frame.timings }))
            }
            None => Output::Forward(Frame { rows: None, ..frame }),
        });
    }

    fn judge(&mut self, item: Item, first_row: usize, engine: &dyn Engine) {
        let Some(sequence) = self.sequences.get_mut(&item.seq) else { return };
        let Phase::Running(Running { tail: Some(tail), slot, wish, .. }) = &mut sequence.phase else {
            return;
        };
        let timings = item.frame.timings;
        let report = match &item.frame.work {
            Work::Window(window) => {
                let logits = |row: usize| engine.logits(first_row + row);
                match tail.judge(window, &self.shape.end_tokens, logits) {
                    Ok(verdict) => {
                        *wish = tail.wish(window, &verdict, *slot).filter(|_| self.shape.drafts);
                        let drafts = wish.is_some();
                        Report::Verdict(Box::new(Verdict { timings, drafts, ..verdict }))
                    }
                    Err(error) => {
                        return self.poison(item.seq, FaultKind::Sampler { reason: error.reason });
                    }
                }
            }
            work => {
                if let Work::Chunk(chunk) = work {
                    match tail.read_chunk(chunk, engine, first_row) {
                        Ok(parts) => {
                            let parts = parts.into_iter().map(|part| Report::Prompt(Box::new(part)));
                            self.outputs.extend(parts.map(Output::Report));
                        }
                        Err(kind) => return self.poison(item.seq, kind),
                    }
                }
                tail.pass_chunk(work.tokens());
                let next = base_of(work).plus(work.tokens().len());
                Report::Progress(Progress { seq: item.seq, next, timings })
            }
        };
        self.outputs.push_back(Output::Report(report));
    }

    /// A batch was stopped half way. It is as if none of its frames had been computed, but for the time.
    fn cancelled(&mut self, batch: Batch) {
        let n_rows = n_rows(&batch) as u64;
        self.stats.calls += 1;
        self.stats.rows += n_rows;
        self.stats.wasted_rows += n_rows;
        for (span, item) in batch.spans.into_iter().zip(batch.items) {
            self.load = self.load - Load::of(&item.frame);
            self.slots.set_held(span.slot, Some(span.base));
            self.advance(&Span { n_rows: 0, ..span }, &item);
            self.settle(item.seq);
        }
    }

    /// A batch did not run. A failed cut concerns one sequence, and the others try again without it.
    fn failed(&mut self, batch: Batch, failed_slot: Option<Slot>, error: &EngineError) {
        // Cuts before the one that failed were made; nothing else of the others changed.
        for cut in batch.cuts.iter().take_while(|cut| failed_slot.is_some_and(|slot| slot != cut.slot)) {
            self.slots.set_held(cut.slot, Some(cut.len));
        }
        for (span, item) in batch.spans.into_iter().zip(batch.items) {
            let seq = item.seq;
            let is_concerned = failed_slot.is_none_or(|slot| slot == span.slot);
            let Some(sequence) = self.sequences.get_mut(&seq) else { continue };
            sequence.busy = false;
            if is_concerned {
                self.load = self.load - Load::of(&item.frame);
                self.slots.set_held(span.slot, None);
                self.poison(seq, FaultKind::Engine { reason: error.reason.clone() });
            } else {
                sequence.queue.push_front(item);
            }
            self.settle(seq);
        }
    }
}

fn n_rows(batch: &Batch) -> usize {
    batch.spans.iter().map(|span| span.n_rows).sum()
}

/// Saturates after 71 minutes.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
