//! Where a stage's results go: straight from the engine thread into the links' queues.

use net::LinkSender;
use protocol::{Fault, FaultKind, Frame, Generation, Report, StageIndex, ToFront, Work};
use stage::Sink;

use crate::{greeting, work_link};

/// The links of one stage in one generation.
pub(super) struct LinkSink {
    pub(super) stage: StageIndex,
    pub(super) generation: Generation,
    /// To the front, or to the neighbour that passes reports on.
    pub(super) control: LinkSender,
    /// To the next stage; none on the tail.
    pub(super) downstream: Option<LinkSender>,
}

impl Sink for LinkSink {
    fn forward(&self, frame: Frame) {
        let Some(downstream) = &self.downstream else {
            return; // The tail's frames end here.
        };
        if let Err(error) = work_link::send(downstream, &frame) {
            // The sequence has lost a frame and cannot go on. If that frame was its end, nothing else would ever give
            // its memory back on the stages below: the whole generation is given up.
            let seq = match &frame.work {
                Work::Close(_) => None,
                work => Some(work.seq()),
            };
            let kind = FaultKind::Link { reason: error.to_string() };
            self.report(Report::Fault(Fault { seq, kind }));
        }
    }

    fn report(&self, report: Report) {
        let message = ToFront { from: self.stage, generation: self.generation, report };
        greeting::tell(&self.control, &message);
    }
}
