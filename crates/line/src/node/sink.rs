//! Where a stage's results go: straight from the engine thread into the links' queues.

use net::{LinkSender, SendError};
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
            // A link that has ended or takes no more is a line that is lost: whoever heard of it in this way only would
            // fail where others go on. A frame that no link would take is its sequence's affair, unless others depend on
            // it: if it was an end, nothing else would ever give the memory back on the stages below, and if it was one
            // of a group, the others would wait for it for ever.
            let is_its_own = matches!(error, SendError::TooLarge { .. });
            let seq = match &frame.work {
                Work::Close(_) | Work::Park(_) => None,
                work => (is_its_own && frame.company == Company::Alone).then(|| work.seq()),
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
    use protocol::{Chunk, NodeId, Position, RowDtype, Rows, SeqId, Token, Wire, limits};

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

    fn chunk(seq: SeqId, n: usize) -> Work {
        Work::Chunk(Chunk { seq, base: Position(0), tokens: vec![Token(1); n], follows: None })
    }

    /// Whose fault it was said to be when this frame could not be sent.
    async fn faulty(downstream: LinkSender, frame: Frame) -> Option<SeqId> {
        let (control, front) = narrow(1 << 20);
        let sink =
            LinkSink { peer: PeerIndex(0), generation: Generation(1), control, downstream: Some(downstream) };
        sink.forward(frame);
        let Report::Fault(fault) = reported(&mut front.split().1).await else { panic!("no fault") };
        fault.seq
    }

    #[tokio::test]
    async fn a_link_that_takes_nothing_any_more_loses_the_line_and_no_sequence_of_its_own() {
        let seq = SeqId(5);
        let (ended, other) = narrow(1 << 20);
        drop(other);
        let (full, _next) = narrow(1);
        work_link::send(&full, &Frame::new(chunk(seq, 1))).unwrap();
        for downstream in [ended, full] {
            while work_link::send(&downstream, &Frame::new(chunk(seq, 1))).is_ok() {
                tokio::task::yield_now().await;
            }
            assert_eq!(
                faulty(downstream, Frame::new(chunk(seq, 1))).await,
                None,
                "the request can go on elsewhere"
            );
        }
    }

    #[tokio::test]
    async fn a_frame_that_no_link_takes_fails_its_sequence_and_one_of_a_group_the_generation() {
        let seq = SeqId(5);
        let n_rows = 2049;
        let data = vec![0; n_rows as usize * 4 * limits::MAX_ROW_WIDTH as usize];
        let rows = Rows::new(RowDtype::F32, limits::MAX_ROW_WIDTH, n_rows, data.into()).unwrap();
        let alone = Frame { rows: Some(rows), ..Frame::new(chunk(seq, n_rows as usize)) };
        let grouped = Frame { company: Company::Follows, ..alone.clone() };
        for (frame, expected) in [(alone, Some(seq)), (grouped, None)] {
            assert_eq!(faulty(narrow(1 << 20).0, frame).await, expected);
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
