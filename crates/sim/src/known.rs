//! What a stage has been told is in vain, to catch it computing that nevertheless: windows of older epochs, and
//! anything of a sequence that is given up. Results that nobody wants are not passed on, so the calls are counted.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Epoch, Frame, Hint, Report, SeqId, Work};
use stage::{Output, Stats};

#[derive(Default)]
pub(crate) struct Known {
    newest: BTreeMap<SeqId, Epoch>,
    /// `newest` when the call under way began.
    newest_at_call: BTreeMap<SeqId, Epoch>,
    /// Sequences of which some work became vain during the call.
    news: BTreeSet<SeqId>,
    /// Frames computed before the call.
    computed: u64,
}

impl Known {
    pub(crate) fn hear_frame(&mut self, work: &Work) {
        match work {
            Work::Window(window) => self.hear_epoch(window.seq, window.epoch),
            Work::Close(close) => {
                self.news.insert(close.seq);
            }
            Work::Open(_) | Work::Chunk(_) | Work::Fork(_) | Work::Park(_) => {}
        }
    }

    pub(crate) fn hear_hint(&mut self, hint: Hint) {
        match hint {
            Hint::Advance { seq, epoch } => self.hear_epoch(seq, epoch),
            Hint::Drop { seq } => {
                self.news.insert(seq);
            }
        }
    }

    fn hear_epoch(&mut self, seq: SeqId, epoch: Epoch) {
        let newest = self.newest.entry(seq).or_default();
        if epoch > *newest {
            *newest = epoch;
            self.news.insert(seq);
        }
    }

    pub(crate) fn begin_call(&mut self, stats: &Stats) {
        self.newest_at_call.clone_from(&self.newest);
        self.news.clear();
        self.computed = stats.windows + stats.chunks;
    }

    /// The call is done and this came of it. What was computed and led to nothing must have become vain meanwhile.
    pub(crate) fn end_call(&self, stats: &Stats, outputs: &[Output]) -> Result<(), String> {
        let mut results = 0;
        for output in outputs {
            let (seq, epoch) = match output {
                Output::Forward(Frame { work: Work::Window(window), .. }) => (window.seq, window.epoch),
                Output::Report(Report::Verdict(verdict)) => (verdict.seq, verdict.epoch),
                Output::Forward(Frame { work: Work::Chunk(_), .. }) | Output::Report(Report::Progress(_)) => {
                    results += 1;
                    continue;
                }
                Output::Forward(_) | Output::Report(_) => continue,
            };
            results += 1;
            if let Some(newest) = self.newest_at_call.get(&seq).filter(|&&newest| newest > epoch) {
                return Err(format!(
                    "a window of epoch {epoch} of sequence {seq}, after it had heard of {newest}"
                ));
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
