//! What stages say, and what goes out in answer to it.

use std::time::Duration;

use protocol::{
    Company, End, Fault, FaultKind, Hint, Progress, PromptPart, Report, SeqId, StageIndex, Stored, TailDraft,
    Verdict, Work,
};
use spec::Line;

use super::{Output, Scheduler};
use crate::groups::{self, Load};
use crate::sequence::Sequence;
use crate::{Event, Failure, Finish, ReportFault};

impl Scheduler {
    /// What a stage says about sequences. Reports about a sequence that is over are dropped: they were on their way.
    ///
    /// # Errors
    /// If the report contradicts what was sent; the request concerned has failed then. The driver should log the peer.
    pub fn handle_report(
        &mut self,
        from: StageIndex,
        report: Report,
        now: Duration,
    ) -> Result<(), ReportFault> {
        let tail = StageIndex(self.config.n_stages - 1);
        if let Some(seq) = report.answers() {
            if from != tail {
                return Err(ReportFault::NotTail { from, tail });
            }
            // What is closed is gone.
            if !matches!(report, Report::Closed(_)) {
                self.heard_of(seq, now);
                self.count_beginning(seq);
            }
        }
        match report {
            Report::State(_) | Report::Counters(_) | Report::Notice(_) | Report::Leaving => Ok(()),
            Report::Verdict(verdict) => {
                self.awaited += verdict.company.awaited();
                let result = self.handle_verdict(*verdict, now);
                // Also if this verdict, the last of its group, had nothing to say itself.
                self.answer_whole_group(now);
                result
            }
            Report::Draft(draft) => {
                self.awaited += draft.company.awaited();
                let result = self.handle_tail_draft(*draft, now);
                self.answer_whole_group(now);
                result
            }
            Report::Prompt(part) => self.handle_prompt(*part),
            Report::Progress(progress) => self.handle_progress(&progress, now),
            Report::Closed(seq) => self.handle_closed(seq, now),
            Report::Stored(Stored { prefix, kept }) => {
                let changes = self.shelf.answered(from, prefix, kept, self.config.n_stages);
                self.outputs.extend(changes.into_iter().map(Output::Shelved));
                Ok(())
            }
            Report::Fault(fault) => self.handle_fault(from, &fault, now),
        }
    }

    fn handle_verdict(&mut self, verdict: Verdict, now: Duration) -> Result<(), ReportFault> {
        let seq = verdict.seq;
        let Some(sequence) = self.live(seq)? else {
            self.stats.late_reports += 1;
            return Ok(());
        };
        let id = sequence.request();
        let n_live = self.n_live();
        let line = Line { pace: &self.pace, n_live };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return Ok(()) };
        let answered = match sequence.handle_verdict(&verdict, line, now) {
            Ok(answered) => answered,
            Err(fault) => return Err(self.refuse(seq, fault)),
        };
        let is_probe = sequence.is_probe();
        let in_company = answered.in_company || n_live > 1;
        self.pace.observe(&verdict.timings, answered.under_way, in_company);
        let commit = answered.commit;
        self.stats.generated_tokens += verdict.tokens.len() as u64;
        if let Some(epoch) = commit.opened
            && commit.n_stale > 0
        {
            self.outputs.push_back(Output::Hint(Hint::Advance { seq, epoch }));
        }
        if is_probe {
            self.note_probe(verdict.timings.first().map_or(0, |timing| timing.batch_rows));
        } else {
            self.stats.loops.add(answered.under_way, &verdict.timings);
            self.answered.push(seq);
            // The next windows go out before anyone looks at the tokens: the line must not wait for that.
            self.answer_whole_group(now);
        }
        self.emit(id, Event::Tokens { tokens: verdict.tokens, logprobs: verdict.logprobs });
        match verdict.ended {
            Some(End::EndOfGeneration | End::Grammar) => self.finish(seq, Finish::Stop, now),
            Some(End::Limit) => self.finish(seq, Finish::Length, now),
            None if is_probe => self.finish(seq, Finish::Length, now),
            None => {}
        }
        Ok(())
    }

    /// What the tail expects to follow. A window may have waited for it; those of one group go out as one again.
    fn handle_tail_draft(&mut self, draft: TailDraft, now: Duration) -> Result<(), ReportFault> {
        let seq = draft.seq;
        let Some(sequence) = self.live(seq)? else {
            self.stats.late_reports += 1;
            return Ok(());
        };
        let waited = sequence.has_waited(now);
        self.pace.observe_draft(draft.tokens.len(), &draft.timing, waited);
        let n_live = self.n_live();
        let line = Line { pace: &self.pace, n_live };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return Ok(()) };
        match sequence.handle_tail_draft(draft, line) {
            Ok(may_send) => {
                self.answered.extend(may_send.then_some(seq));
                Ok(())
            }
            Err(fault) => Err(self.refuse(seq, fault)),
        }
    }

    fn handle_prompt(&mut self, part: PromptPart) -> Result<(), ReportFault> {
        let seq = part.seq;
        let Some(sequence) = self.live(seq)? else {
            self.stats.late_reports += 1;
            return Ok(());
        };
        let id = sequence.request();
        match sequence.handle_prompt(part) {
            Ok(found) => {
                found.into_iter().for_each(|found| self.emit(id, Event::Prompt(found)));
                Ok(())
            }
            Err(fault) => Err(self.refuse(seq, fault)),
        }
    }

    fn handle_progress(&mut self, progress: &Progress, now: Duration) -> Result<(), ReportFault> {
        let seq = progress.seq;
        let Some(sequence) = self.live(seq)? else {
            self.stats.late_reports += 1;
            return Ok(());
        };
        let (base, is_over) = match sequence.handle_progress(progress) {
            Ok(passed) => passed,
            Err(fault) => return Err(self.refuse(seq, fault)),
        };
        self.stats.partly_reused_tokens += sequence.n_held(base, progress.next);
        let in_company = self.n_live() > 1;
        self.pace.observe_chunk(&progress.timings, base, in_company);
        if is_over {
            self.finish(seq, Finish::Length, now);
        } else {
            self.send_all(seq, now);
        }
        Ok(())
    }

    fn handle_closed(&mut self, seq: SeqId, now: Duration) -> Result<(), ReportFault> {
        if self.live(seq)?.is_some() {
            return Err(self.refuse(seq, ReportFault::ClosedEarly { seq }));
        }
        self.sequences.remove(&seq);
        self.admit(now);
        Ok(())
    }

    fn handle_fault(&mut self, from: StageIndex, fault: &Fault, now: Duration) -> Result<(), ReportFault> {
        let failure = failure_of(from, &fault.kind);
        if let Some(seq) = fault.seq {
            if self.live(seq)?.is_some() {
                if let FaultKind::PrefixLost { prefix } = fault.kind {
                    self.begin_again(seq, prefix, now);
                    return Ok(());
                }
                if fault.kind.is_disorder() && self.is_first_disorder(seq) {
                    return Err(ReportFault::Disorder { seq, from, reason: fault.kind.to_string() });
                }
                self.fail(seq, failure);
            } else {
                self.stats.late_reports += 1;
            }
        } else {
            for seq in self.by_request.values().copied().collect::<Vec<_>>() {
                self.fail(seq, failure.clone());
            }
        }
        Ok(())
    }

    /// Whether a sequence is of a client's request whose frames were in order so far. Notes that they are not.
    fn is_first_disorder(&mut self, seq: SeqId) -> bool {
        let request = self.sequences.get(&seq).filter(|sequence| !sequence.is_probe()).map(Sequence::request);
        request.is_some_and(|request| self.disordered.insert(request))
    }

    /// The sequence, unless it is over.
    fn live(&mut self, seq: SeqId) -> Result<Option<&mut Sequence>, ReportFault> {
        if seq >= self.next_seq {
            return Err(ReportFault::NeverOpened { seq });
        }
        Ok(self.sequences.get_mut(&seq).filter(|sequence| !sequence.is_closing()))
    }

    /// Fails the request of a sequence about which a stage said something impossible.
    fn refuse(&mut self, seq: SeqId, fault: ReportFault) -> ReportFault {
        self.fail(seq, Failure::Fault { reason: fault.to_string() });
        fault
    }

    /// As [`Scheduler::answer`], once nothing of the group is still to come.
    fn answer_whole_group(&mut self, now: Duration) {
        if self.awaited <= 0 {
            self.answer(now);
        }
    }

    /// Sends what follows on the verdicts of a group: a window of each sequence, as a group again, and then the rest.
    fn answer(&mut self, now: Duration) {
        let answered = std::mem::take(&mut self.answered);
        if answered.is_empty() {
            return;
        }
        self.tell_together();
        let first = self.outputs.len();
        let more: Vec<SeqId> = answered.into_iter().filter(|&seq| self.send_next(seq, now)).collect();
        Company::form(self.outputs.iter_mut().skip(first).filter_map(|output| match output {
            Output::Work(frame) if matches!(frame.work, Work::Window(_)) => Some(&mut frame.company),
            _ => None,
        }));
        for seq in more {
            self.send_all(seq, now);
        }
    }

    /// Tells the first stage how many sequences it should take together, if that has changed.
    fn tell_together(&mut self) {
        let running = || self.sequences.values().filter_map(Sequence::plan);
        let sequences = running().count() as u32;
        let depth = running().map(|plan| f64::from(plan.depth)).sum::<f64>() / f64::from(sequences.max(1));
        let width = running().map(|plan| plan.width).max().unwrap_or(1);
        let load = Load { sequences, depth, width };
        // What was measured changes slowly; what runs changes at once.
        let (told, found_for) = self.together;
        if found_for == Some(load) && !self.stats.loops.windows.is_multiple_of(32) {
            return;
        }
        let size = groups::together(load, told, &self.pace);
        self.together.1 = Some(load);
        if size != told.min(sequences) {
            self.together.0 = size;
            let sequences = u16::try_from(size).unwrap_or(u16::MAX);
            self.outputs.push_back(Output::Hint(Hint::Together { sequences }));
        }
    }
}

fn failure_of(from: StageIndex, kind: &FaultKind) -> Failure {
    match kind {
        FaultKind::Sampler { reason } => Failure::Parameters { reason: reason.clone() },
        FaultKind::Link { .. } => Failure::LineLost { reason: format!("stage {from}: {kind}") },
        _ => Failure::Fault { reason: format!("stage {from}: {kind}") },
    }
}
