//! What a stage has been told is in vain, to catch it computing that nevertheless: windows of older epochs, and
//! anything of a sequence that is given up. Results that nobody wants are not passed on, so the calls are counted.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Epoch, Frame, Hint, Report, SeqId, Work};
use stage::{Output, Stats};

#[derive(Clone, Default)]
struct Facts {
    open: BTreeSet<SeqId>,
    newest: BTreeMap<SeqId, Epoch>,
    given_up: BTreeSet<SeqId>,
}

#[derive(Default)]
pub(crate) struct Known {
    now: Facts,
    /// When the call under way began.
    at_call: Facts,
    /// Sequences of which some work became vain during the call.
    news: BTreeSet<SeqId>,
    /// Frames computed before the call.
    computed: u64,
}

impl Known {
    pub(crate) fn hear_frame(&mut self, work: &Work) {
        match work {
            Work::Window(window) => self.hear_epoch(window.seq, window.epoch),
            Work::Close(_) | Work::Park(_) => self.hear_end(work.seq()),
            Work::Open(open) => {
                self.now.open.insert(open.seq);
            }
            Work::Chunk(_) => {}
        }
    }

    /// Hints about sequences that are not open here mean nothing.
    pub(crate) fn hear_hint(&mut self, hint: Hint) {
        let (Hint::Advance { seq, .. } | Hint::Drop { seq }) = hint else { return };
        if !self.now.open.contains(&seq) {
            return;
        }
        match hint {
            Hint::Advance { seq, epoch } => self.hear_epoch(seq, epoch),
            Hint::Drop { seq } => self.hear_end(seq),
            Hint::Together { .. } => {}
        }
    }

    fn hear_end(&mut self, seq: SeqId) {
        self.now.given_up.insert(seq);
        self.news.insert(seq);
    }

    fn hear_epoch(&mut self, seq: SeqId, epoch: Epoch) {
        let newest = self.now.newest.entry(seq).or_default();
        if epoch > *newest {
            *newest = epoch;
            self.news.insert(seq);
        }
    }

    pub(crate) fn begin_call(&mut self, stats: &Stats) {
        self.at_call.clone_from(&self.now);
        self.news.clear();
        self.computed = stats.windows + stats.chunks;
    }

    /// The call is done and this came of it. What was computed and led to nothing must have become vain meanwhile.
    pub(crate) fn end_call(&self, stats: &Stats, outputs: &[Output]) -> Result<(), String> {
        let mut results: u64 = 0;
        for output in outputs {
            let (seq, epoch) = match output {
                Output::Forward(Frame { work: Work::Window(window), .. }) => (window.seq, Some(window.epoch)),
                Output::Forward(Frame { work: Work::Chunk(chunk), .. }) => (chunk.seq, None),
                Output::Report(Report::Verdict(verdict)) => (verdict.seq, Some(verdict.epoch)),
                Output::Report(Report::Progress(progress)) => (progress.seq, None),
                Output::Forward(_) | Output::Report(_) | Output::Store(_) => continue,
            };
            results += u64::from(!was_held(output));
            if self.at_call.given_up.contains(&seq) {
                return Err(format!("work of sequence {seq}, which it knew to be given up"));
            }
            if let Some(newest) =
                self.at_call.newest.get(&seq).filter(|&&newest| epoch.is_some_and(|epoch| newest > epoch))
            {
                return Err(format!("a window of sequence {seq} after it had heard of epoch {newest}"));
            }
        }
        let in_vain = stats.windows + stats.chunks - self.computed - results;
        let excused = self.news.len() as u64;
        if in_vain > excused {
            return Err(format!("{in_vain} frames in vain, {excused} of which it could not know"));
        }
        Ok(())
    }
}

/// Whether it is of a chunk that was not computed here, since it was here already.
fn was_held(output: &Output) -> bool {
    let timings = match output {
        Output::Forward(frame) => &frame.timings,
        Output::Report(Report::Progress(progress)) => &progress.timings,
        Output::Report(_) | Output::Store(_) => return false,
    };
    timings.last().is_some_and(|timing| timing.batch_rows == 0)
}
