//! What is sent, by whom in which generation, and how it arrives: also once more, when its line is over.

use std::time::Duration;

use bytes::Bytes;
use protocol::{Command, Frame, Generation, Hint, PeerIndex, Report, ToFront, ToStage, Wire};

use super::{Happening, Line};
use crate::front::{Front, Sent};
use crate::network::Link;

/// Copies that are kept to come later, at most.
const MAX_ECHOES: usize = 16;

/// A copy that would come too early comes so much later.
const AGAIN: Duration = Duration::from_millis(50);

impl<F: Front> Line<F> {
    /// Something of the front's.
    pub(super) fn send(&mut self, sent: Sent) {
        match sent {
            Sent::Work(frame) => {
                // Whoever has no line sends nothing.
                if let Some(&first) = self.seats.first() {
                    self.send_frame(first, self.generation, frame);
                }
            }
            Sent::Hint(hint) => self.send_hint(hint),
        }
    }

    pub(super) fn send_frame(&mut self, to: usize, generation: Generation, frame: Frame) {
        if generation != self.generation {
            return self.post_frame(to, generation, &frame);
        }
        for frame in self.network.pass(to, generation, frame) {
            self.post_frame(to, generation, &frame);
        }
    }

    pub(super) fn post_frame(&mut self, to: usize, generation: Generation, frame: &Frame) {
        let (head, body) = frame.encode_parts();
        let message = Happening::Frame(to, generation, [head, body].concat().into());
        self.post((generation, Link::Rows(to)), Some(frame.work.seq()), message);
    }

    fn send_hint(&mut self, hint: Hint) {
        let generation = self.generation;
        for machine in self.seats.clone() {
            for _ in 0..self.network.copies_of_hint() {
                let message = ToStage { to: peer(machine), generation, command: Command::Hint(hint) };
                let message = Happening::Hint(machine, encoded(&message));
                self.post((generation, Link::Commands(machine)), None, message);
            }
        }
    }

    pub(super) fn send_report(&mut self, from: usize, report: Report) {
        let generation = self.machines[from].place.generation;
        if !self.network.is_heard(&report) {
            return;
        }
        let message = Happening::Report(encoded(&ToFront { from: peer(from), generation, report }));
        self.post((generation, Link::Reports(from)), None, message);
    }

    pub(super) fn post(
        &mut self,
        link: (Generation, Link),
        stream: Option<protocol::SeqId>,
        message: Happening,
    ) {
        let Some(at) = self.network.arrival(link, stream, self.now) else { return };
        if self.echoes.len() < MAX_ECHOES && self.random.percent(self.faults.echoes) {
            self.echoes.push_back(message.clone());
        }
        self.plan(at, message);
    }

    /// The line is over: copies of what was said in it arrive while the next one is formed, and when it works.
    pub(super) fn plan_echoes(&mut self) {
        for message in std::mem::take(&mut self.echoes) {
            let after = self.random.micros(0, 20_000);
            self.plan(self.now + after, Happening::Echo(Box::new(message)));
        }
    }

    /// On one connection nothing comes twice, so a copy is met by those only who have left its generation.
    pub(super) fn echo_arrives(&mut self, message: Happening) {
        if let Happening::Frame(machine, generation, _) = &message
            && self.machines[*machine].place.generation == *generation
        {
            return self.plan(self.now + AGAIN, Happening::Echo(Box::new(message)));
        }
        self.counts.losses.echoes += 1;
        self.befall(message);
    }
}

pub(super) const fn peer(machine: usize) -> PeerIndex {
    PeerIndex(machine as u16)
}

fn encoded<T: Wire>(message: &T) -> Bytes {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes.into()
}
