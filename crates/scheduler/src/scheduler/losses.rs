//! What becomes of requests and of what was computed for them when the line is lost, and once there is one again.

use std::time::Duration;

use protocol::{Work, limits};
use spec::Pace;

use super::{Output, Scheduler};
use crate::Failure;
use crate::queue::Patience;
use crate::sequence::Sequence;

impl Scheduler {
    /// The line is ready, and holds nothing: what waits may start.
    pub fn line_up(&mut self, now: Duration) {
        self.prefixes.clear();
        self.remains.clear();
        self.go_on(now);
    }

    /// The line is ready again, and all its stages but the first `lost_by` hold what they held when it was lost: running
    /// requests go on from there. If all have lost something, some may still hold what they need not any more.
    pub fn line_back(&mut self, lost_by: u16, now: Duration) {
        self.remains.split(&mut self.prefixes, lost_by, self.config.n_stages);
        for seq in self.remains.take_unclaimed(&self.prefixes) {
            self.drop_prefix(seq);
        }
        self.go_on(now);
    }

    fn go_on(&mut self, now: Duration) {
        self.line_is_up = true;
        self.recovery = None;
        self.queue.line_up(self.config.queue_timeout);
        self.admit(now);
    }

    /// The line is gone, and with it every sequence. What stages have computed of them may still be there when the next
    /// one comes ([`Scheduler::line_back`]). Running requests wait for it and go on there from their last token, for
    /// [`Config::replay_timeout`](crate::Config::replay_timeout) at most; waiting ones go on waiting until it is up or their
    /// deadline.
    ///
    /// Reports of the lost line must not be handed in afterwards: they carry its generation.
    pub fn line_lost(&mut self, reason: &str, now: Duration) {
        let was_up = std::mem::replace(&mut self.line_is_up, false);
        self.unsay();
        let deadline = now.saturating_add(self.config.replay_timeout);
        self.queue.line_lost(deadline, reason);
        if was_up {
            self.recovery = (!self.config.replay_timeout.is_zero()).then(|| (deadline, reason.to_owned()));
        }
        for seq in self.by_request.values().copied().collect::<Vec<_>>() {
            let can_wait = !self.config.replay_timeout.is_zero();
            if can_wait && self.sequences.get(&seq).is_some_and(|sequence| !sequence.is_probe()) {
                let held = self.sequences.get(&seq).and_then(Sequence::still_held);
                self.interrupt(seq, Patience::Line(deadline, reason.into()), now);
                if let Some((namespace, tokens)) = held {
                    self.prefixes.remove(seq);
                    self.remains.still_held(namespace, tokens, seq);
                }
            } else {
                self.fail(seq, Failure::LineLost { reason: reason.into() });
            }
        }
        self.unsay();
        self.sequences.keys().for_each(|&seq| self.remains.left(seq));
        self.sequences.clear();
        self.shelf.line_lost();
        // The next line may have other machines in it.
        self.pace = Pace::new(self.config.n_stages);
        self.vain_probes = 0;
        self.awaited = 0;
        self.answered.clear();
        self.together = (u32::MAX, None);
    }

    /// Nobody is left to hear what was to be sent, or to answer it.
    fn unsay(&mut self) {
        let remains = &mut self.remains;
        self.outputs.retain(|output| match output {
            Output::Work(frame) => {
                if let Work::Close(close) = &frame.work {
                    remains.left(close.seq);
                }
                false
            }
            Output::Hint(_) => false,
            Output::Event(..) | Output::Draft(..) | Output::Shelved(_) => true,
        });
    }

    /// Why there is still no line: what those who wait for one are told if it does not come in time, in place of the
    /// reason for which the last one was lost. While the line is up nobody waits for one.
    pub fn line_awaits(&mut self, reason: &str) {
        if let Some((_, known)) = &mut self.recovery {
            reason.clone_into(known);
        }
        self.queue.line_awaits(reason);
    }

    /// The next line shares the layers out otherwise: among so many stages, and `line` is what prefixes that it stores
    /// depend on (see [`Config::line`](crate::Config::line)). What other shapes have stored is found again when they come
    /// back.
    ///
    /// # Panics
    /// If the line is up, has no stages, or more than the protocol allows.
    pub fn reshape(&mut self, n_stages: u16, line: [u8; 32]) {
        assert!(!self.line_is_up, "a line keeps its shape for as long as it is up");
        assert!((1..=limits::MAX_STAGES).contains(&n_stages), "a line of {n_stages} stages");
        (self.config.n_stages, self.config.line) = (n_stages, line);
        self.prefixes.clear();
        self.remains.clear();
        self.pace = Pace::new(n_stages);
        self.shelf.reshape(line);
    }
}
