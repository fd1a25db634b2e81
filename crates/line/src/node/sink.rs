//! Where a stage's results go: straight from the engine thread into the links' queues.

use net::LinkSender;
use protocol::{Fault, FaultKind, Frame, Generation, Report, StageIndex, ToFront};
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
            let kind = FaultKind::Link { reason: error.to_string() };
            self.report(Report::Fault(Fault { seq: Some(frame.work.seq()), kind }));
        }
    }

    fn report(&self, report: Report) {
        let message = ToFront { from: self.stage, generation: self.generation, report };
        if let Err(error) = greeting::send(&self.control, &message) {
            tracing::debug!("a report could not be sent: {error}"); // The front notices the lost link itself.
        }
    }
}
