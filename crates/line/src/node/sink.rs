//! Where a stage's results go: straight from the engine thread into the links' queues.

use net::LinkSender;
use protocol::{Company, Fault, FaultKind, Frame, Generation, PeerIndex, Report, ToFront, Work};
use stage::Sink;

use crate::{greeting, work_link};

/// The links of one stage in one generation.
pub(super) struct LinkSink {
    /// What the front calls this stage.
    pub(super) peer: PeerIndex,
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
            // its memory back on the stages below, and if it was one of a group, the others would wait for it for ever:
            // the whole generation is given up.
            let seq = match &frame.work {
                Work::Close(_) | Work::Park(_) => None,
                _ if frame.company != Company::Alone => None,
                work => Some(work.seq()),
            };
            let kind = FaultKind::Link { reason: error.to_string() };
            self.report(Report::Fault(Fault { seq, kind }));
        }
    }

    fn report(&self, report: Report) {
        let message = ToFront { from: self.peer, generation: self.generation, report };
        greeting::tell(&self.control, &message);
    }
}

#[cfg(test)]
mod tests {
    use net::{LinkOptions, LinkReceiver, PeerInfo, Purpose, Role, memory_pair};
    use protocol::{Chunk, Close, NodeId, Position, SeqId, Token, Wire};

    use super::*;

    /// A link that takes one small frame, and the end where nobody reads.
    fn narrow(inbox_bytes: usize) -> (LinkSender, net::Link) {
        let (role, purpose) = (Role::Stage, Purpose::Control);
        let peer = || PeerInfo { node: NodeId([1; 32]), role, purpose, address: "test".into() };
        let options = LinkOptions { inbox_bytes, ..LinkOptions::default() };
        let (ours, theirs) = memory_pair(peer(), peer(), &options);
        (ours.split().0, theirs)
    }

    async fn reported(reports: &mut LinkReceiver) -> Report {
        ToFront::decode(&reports.recv().await.unwrap().bytes).unwrap().report
    }

    #[tokio::test]
    async fn a_frame_that_cannot_travel_fails_its_sequence_and_an_end_that_cannot_the_generation() {
        let (control, front) = narrow(1 << 20);
        let mut reports = front.split().1;
        let (downstream, _next) = narrow(1);
        let sink =
            LinkSink { peer: PeerIndex(0), generation: Generation(1), control, downstream: Some(downstream) };
        let seq = SeqId(5);
        let chunk = Work::Chunk(Chunk { seq, base: Position(0), tokens: vec![Token(1)], follows: None });
        sink.forward(Frame::new(chunk.clone()));
        sink.forward(Frame::new(chunk));
        sink.forward(Frame::new(Work::Close(Close { seq, inputs: Position(0) })));
        for expected in [Some(seq), None] {
            let Report::Fault(fault) = reported(&mut reports).await else { panic!("no fault") };
            assert_eq!(fault.seq, expected);
        }
    }

    #[tokio::test]
    async fn a_report_that_cannot_be_sent_ends_the_control_link() {
        let (control, front) = narrow(1);
        let sink = LinkSink { peer: PeerIndex(0), generation: Generation(1), control, downstream: None };
        sink.report(Report::Closed(SeqId(1)));
        sink.report(Report::Closed(SeqId(2)));
        let mut reports = front.split().1;
        assert_eq!(reported(&mut reports).await, Report::Closed(SeqId(1)));
        assert!(matches!(reports.recv().await, Err(net::LinkError::Closed { .. })));
    }
}
