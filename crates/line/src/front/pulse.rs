//! Whether tokens go round the line: what came back when, when to send a token of the front's own, and when the line
//! owes an answer for too long (how long that is says [`Scheduler::silence`](scheduler::Scheduler::silence)).
//!
//! Pure: `now` is the time since the front's start. Does not know what travels.

use std::time::Duration;

use scheduler::{RequestId, Silence};

/// An idle line is probed this often. A probe costs one window, so this is about a thousandth of its time.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// A probe that takes longer than this makes the line not ready.
const PROBE_WITHIN: Duration = Duration::from_secs(4);
/// A probe that failed is repeated after this pause.
const PROBE_AGAIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Since when the line is up, if it is.
    up: Option<Duration>,
    /// When something last came all the way round since then.
    proven: Option<Duration>,
    /// Whether `proven` counts as recent for whoever was told.
    trusted: bool,
    /// The front's own request, while it runs.
    probe: Option<RequestId>,
    /// When the last one was sent since the line is up.
    probed: Option<Duration>,
    /// Whether the next one should follow at once, because there is more to learn.
    more: bool,
    /// What the line owes, of that what is due first.
    owing: Option<Silence>,
}

impl Pulse {
    pub(super) fn line_up(&mut self, now: Duration) {
        *self = Self { up: Some(now), ..Self::default() };
    }

    /// Gives the probe that is under way, for its owner to cancel.
    pub(super) fn line_lost(&mut self) -> Option<RequestId> {
        std::mem::take(self).probe
    }

    /// Something came all the way round. Whether the line was not trusted before.
    pub(super) const fn prove(&mut self, now: Duration) -> bool {
        let was_trusted = self.trusted;
        (self.proven, self.trusted) = (Some(now), true);
        !was_trusted
    }

    /// Whether something came round recently.
    pub(super) fn is_proven(&self, now: Duration) -> bool {
        self.trusted_until().is_some_and(|until| now < until)
    }

    /// Whether anything came round since the line is up.
    pub(super) const fn was_proven(&self) -> bool {
        self.proven.is_some()
    }

    /// A probe was sent, or refused (`None`): then there is other work that proves as much.
    pub(super) const fn probing(&mut self, probe: Option<RequestId>, now: Duration) {
        (self.probe, self.probed) = (probe, Some(now));
    }

    pub(super) fn is_probe(&self, id: RequestId) -> bool {
        self.probe == Some(id)
    }

    /// The probe has ended, one way or the other. If there is `more` to learn the next one follows as long as nobody
    /// else uses the line.
    pub(super) const fn probe_over(&mut self, more: bool) {
        (self.probe, self.more) = (None, more);
    }

    /// Notes what the line owes now.
    pub(super) const fn listen(&mut self, owing: Option<Silence>) {
        self.owing = owing;
    }

    /// When the line has to be probed; `idle` if nobody else uses it.
    fn probe_at(&self, idle: bool) -> Option<Duration> {
        let up = self.up.filter(|_| idle && self.probe.is_none())?;
        let Some(probed) = self.probed else {
            return Some(self.proven.map_or(up, |at| at + PROBE_EVERY));
        };
        Some(match self.proven {
            Some(at) if at >= probed && self.more => at,
            Some(at) if at >= probed => at + PROBE_EVERY,
            Some(_) | None => probed + PROBE_AGAIN,
        })
    }

    fn distrust_at(&self) -> Option<Duration> {
        self.trusted_until().filter(|_| self.trusted)
    }

    /// What came round proves a line until the next probe should have come back, or for as long as work may take.
    fn trusted_until(&self) -> Option<Duration> {
        let until = self.proven? + PROBE_EVERY + PROBE_WITHIN;
        Some(self.silent_at().filter(|_| self.probe.is_none()).map_or(until, |silent| silent.max(until)))
    }

    fn silent_at(&self) -> Option<Duration> {
        self.owing.as_ref().map(Silence::ends)
    }

    pub(super) fn next_deadline(&self, idle: bool) -> Option<Duration> {
        [self.probe_at(idle), self.distrust_at(), self.silent_at()].into_iter().flatten().min()
    }

    /// What is due.
    pub(super) fn due(&mut self, idle: bool, now: Duration) -> Due {
        let reached = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let due = Due {
            probe: reached(self.probe_at(idle)),
            distrust: reached(self.distrust_at()),
            silent: self.owing.map(|silence| silence.patience).filter(|_| reached(self.silent_at())),
        };
        if due.distrust {
            self.trusted = false;
        }
        if due.silent.is_some() {
            self.owing = None;
        }
        due
    }
}

/// What time has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// A probe has to be sent.
    pub(super) probe: bool,
    /// The line is not trusted any more.
    pub(super) distrust: bool,
    /// The line has been silent about some of its work for this long.
    pub(super) silent: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: RequestId = RequestId(1);

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn owing(since: u64, patience: u64) -> Option<Silence> {
        Some(Silence { since: s(since), patience: s(patience) })
    }

    fn up() -> Pulse {
        let mut pulse = Pulse::default();
        pulse.line_up(s(100));
        pulse
    }

    #[test]
    fn a_line_that_came_up_is_probed_at_once_and_then_when_it_idles() {
        let mut pulse = up();
        assert_eq!(pulse.next_deadline(true), Some(s(100)));
        pulse.probing(Some(PROBE), s(100));
        assert_eq!(pulse.next_deadline(true), None, "one at a time");
        assert!(pulse.prove(s(101)));
        pulse.probe_over(true);
        assert_eq!(pulse.next_deadline(true), Some(s(101)), "there is more to learn");
        assert_eq!(pulse.next_deadline(false), Some(s(115)), "but clients go first");
        pulse.probing(Some(PROBE), s(101));
        pulse.prove(s(101));
        pulse.probe_over(false);
        assert_eq!(pulse.next_deadline(true), Some(s(111)));
        assert_eq!(pulse.next_deadline(false), Some(s(115)), "clients' tokens prove as much");
        assert!(!pulse.prove(s(105)));
        assert_eq!(pulse.next_deadline(true), Some(s(115)));
    }

    #[test]
    fn a_probe_that_fails_or_is_refused_is_repeated_after_a_pause() {
        let mut pulse = up();
        pulse.prove(s(100));
        for (now, probe) in [(s(110), Some(PROBE)), (s(111), None), (s(112), Some(PROBE))] {
            assert!(pulse.due(true, now).probe);
            pulse.probing(probe, now);
            pulse.probe_over(true);
            assert!(!pulse.due(true, now).probe, "no storm of probes");
        }
    }

    #[test]
    fn a_line_that_proves_nothing_for_too_long_is_not_trusted_and_says_so_once() {
        let mut pulse = up();
        pulse.prove(s(100));
        pulse.probing(Some(PROBE), s(110));
        assert!(pulse.is_proven(s(113)));
        assert!(!pulse.is_proven(s(114)));
        assert!(pulse.due(true, s(114)).distrust);
        assert!(!pulse.due(true, s(200)).distrust);
        assert!(pulse.prove(s(200)), "trusted again");
    }

    #[test]
    fn a_line_that_owes_an_answer_for_too_long_is_silent_and_trusted_until_then() {
        let mut pulse = up();
        pulse.prove(s(100));
        pulse.listen(owing(100, 40));
        assert!(pulse.is_proven(s(139)), "a stage that computes is slow, not dead");
        assert_eq!(pulse.due(false, s(139)), Due::default());
        assert_eq!(pulse.next_deadline(false), Some(s(140)));
        let due = pulse.due(false, s(140));
        assert!(due.distrust && due.silent == Some(s(40)), "{due:?}");
        assert_eq!(pulse.due(false, s(141)).silent, None, "it says so once");
        pulse.listen(owing(200, 10));
        pulse.listen(None);
        assert_eq!(pulse.due(false, s(5000)).silent, None, "nothing is owed");
    }

    #[test]
    fn a_lost_line_has_no_deadlines() {
        let mut pulse = up();
        pulse.prove(s(100));
        pulse.listen(owing(100, 180));
        pulse.probing(Some(PROBE), s(110));
        assert_eq!(pulse.line_lost(), Some(PROBE));
        assert_eq!(pulse.next_deadline(true), None);
    }
}
