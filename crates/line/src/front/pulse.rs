//! Whether tokens go round the line: what came back when, when to send a token or an echo of the front's own, and when the
//! line owes an answer for too long (how long that is says [`Scheduler::silence`](scheduler::Scheduler::silence)).
//!
//! A token proves that the line computes, but it computes; so on an idle line tokens are rare, and in between echoes show
//! that every link and every engine thread lives. Together they find within five seconds that one does not.
//!
//! Pure: `now` is the time since the front's start. Does not know what travels.

use std::time::Duration;

use protocol::SeqId;
use scheduler::{RequestId, Silence};

/// An idle line is probed this often. A probe costs one window, so this is about a thousandth of its time.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// An idle line sends an echo this often. It is a frame of some bytes, as is each heartbeat, and those are more often.
const ECHO_EVERY: Duration = Duration::from_millis(500);
/// A probe or an echo that takes longer than this makes the line not ready.
const PROBE_WITHIN: Duration = Duration::from_secs(4);
/// A probe that failed is repeated after this pause.
const PROBE_AGAIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Since when the line is up, if it is.
    up: Option<Duration>,
    /// When a token last came all the way round since then.
    proven: Option<Duration>,
    /// When the line last showed that it lives: at `proven`, or when an echo was sent that has come back.
    alive: Option<Duration>,
    /// Whether `alive` counts as recent for whoever was told.
    trusted: bool,
    /// The echo that is under way, and when it was sent.
    echo: Option<(SeqId, Duration)>,
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

    /// A token came all the way round. Whether the line was not trusted before.
    pub(super) fn prove(&mut self, now: Duration) -> bool {
        self.proven = Some(now);
        // One that was sent before it says nothing more.
        self.echo = None;
        self.lives(now)
    }

    /// An echo was sent, or refused.
    pub(super) fn echoing(&mut self, echo: Option<SeqId>, now: Duration) {
        self.echo = echo.map(|seq| (seq, now));
    }

    pub(super) fn is_echo(&self, seq: SeqId) -> bool {
        self.echo.is_some_and(|(echo, _)| echo == seq)
    }

    /// A sequence's end came all the way round. Whether that makes the line trusted and it was not before.
    pub(super) fn closed(&mut self, seq: SeqId, now: Duration) -> bool {
        let echo = self.echo.take_if(|&mut (echo, _)| echo == seq);
        // Where nothing is computed any more, ends go round all the same.
        !self.is_asked_in_vain() && self.lives(echo.map_or(now, |(_, sent)| sent))
    }

    /// Whether a token that was asked for has not come round.
    fn is_asked_in_vain(&self) -> bool {
        self.probed > self.proven
    }

    fn lives(&mut self, at: Duration) -> bool {
        self.alive = self.alive.max(Some(at));
        !std::mem::replace(&mut self.trusted, true)
    }

    /// Whether the line lived recently.
    pub(super) fn is_proven(&self, now: Duration) -> bool {
        self.trusted_until().is_some_and(|until| now < until)
    }

    /// Whether any token came round since the line is up.
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

    /// When the line has to send an echo: while nothing else would show soon that it lives, and the last token that was
    /// asked for did come round.
    fn echo_at(&self, idle: bool) -> Option<Duration> {
        let is_quiet = idle && self.probe.is_none() && self.owing.is_none() && self.echo.is_none();
        let alive = self.alive.filter(|_| is_quiet && !self.is_asked_in_vain())?;
        Some(alive + ECHO_EVERY)
    }

    fn distrust_at(&self) -> Option<Duration> {
        self.trusted_until().filter(|_| self.trusted)
    }

    /// What came round proves a line until the next echo should have come back, or for as long as work may take.
    fn trusted_until(&self) -> Option<Duration> {
        let until = self.alive? + ECHO_EVERY + PROBE_WITHIN;
        Some(self.silent_at().filter(|_| self.probe.is_none()).map_or(until, |silent| silent.max(until)))
    }

    fn silent_at(&self) -> Option<Duration> {
        self.owing.as_ref().map(Silence::ends)
    }

    pub(super) fn next_deadline(&self, idle: bool) -> Option<Duration> {
        let deadlines = [self.probe_at(idle), self.echo_at(idle), self.distrust_at(), self.silent_at()];
        deadlines.into_iter().flatten().min()
    }

    /// What is due.
    pub(super) fn due(&mut self, idle: bool, now: Duration) -> Due {
        let reached = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let due = Due {
            probe: reached(self.probe_at(idle)),
            echo: reached(self.echo_at(idle)) && !reached(self.probe_at(idle)),
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
    /// An echo has to be sent.
    pub(super) echo: bool,
    /// The line is not trusted any more.
    pub(super) distrust: bool,
    /// The line has been silent about some of its work for this long.
    pub(super) silent: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: RequestId = RequestId(1);
    /// Since something last came round.
    const TRUSTED: Duration = ECHO_EVERY.saturating_add(PROBE_WITHIN);

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
        assert_eq!(pulse.next_deadline(false), Some(TRUSTED + s(101)), "but clients go first");
        pulse.probing(Some(PROBE), s(101));
        pulse.prove(s(101));
        pulse.probe_over(false);
        assert_eq!(pulse.probe_at(true), Some(s(111)));
        assert_eq!(pulse.probe_at(false), None, "clients' tokens prove as much");
        assert!(!pulse.prove(s(105)));
        assert_eq!(pulse.probe_at(true), Some(s(115)));
    }

    #[test]
    fn a_probe_that_fails_or_is_refused_is_repeated_after_a_pause() {
        let mut pulse = up();
        pulse.prove(s(100));
        for (now, probe) in [(s(110), Some(PROBE)), (s(111), None), (s(112), Some(PROBE))] {
            let due = pulse.due(true, now);
            assert!(due.probe && !due.echo, "{due:?}");
            pulse.probing(probe, now);
            pulse.probe_over(true);
            assert!(!pulse.due(true, now).probe, "no storm of probes");
        }
        // The ends of sequences go round although no token does.
        assert!(!pulse.closed(SeqId(3), s(113)) && pulse.echo_at(true).is_none());
        assert!(!pulse.is_proven(s(113)));
    }

    /// An idle line whose echoes come back a tenth of a second after they were sent, until `at`.
    fn echoing(pulse: &mut Pulse, until: Duration) -> u64 {
        let mut echoes = 0;
        while let Some(now) = pulse.next_deadline(true).filter(|&at| at <= until) {
            assert_eq!(pulse.due(true, now), Due { echo: true, ..Due::default() }, "{now:?}");
            pulse.echoing(Some(SeqId(echoes)), now);
            assert_eq!(pulse.echo_at(true), None, "one at a time");
            assert!(pulse.is_echo(SeqId(echoes)) && !pulse.closed(SeqId(echoes), now + s(1) / 10));
            echoes += 1;
        }
        echoes
    }

    #[test]
    fn an_idle_line_is_found_dead_within_five_seconds_and_is_trusted_again_at_once() {
        let mut pulse = up();
        pulse.probing(Some(PROBE), s(100));
        pulse.prove(s(100));
        pulse.probe_over(false);
        // No token is asked for so soon: a line may be slow and many have nothing better to do than to save power.
        assert_eq!(echoing(&mut pulse, s(109)), 18);
        // It dies right behind the last echo.
        let last = pulse.next_deadline(true).unwrap();
        pulse.echoing(Some(SeqId(77)), last);
        assert!(pulse.is_proven(s(109) + TRUSTED - s(1) / 10));
        assert!(pulse.due(true, s(110)).probe);
        pulse.probing(Some(PROBE), s(110));
        let red = pulse.next_deadline(true).unwrap();
        assert!(red <= s(109) + s(5) && !pulse.is_proven(red), "{red:?}");
        assert!(pulse.due(true, red).distrust && !pulse.due(true, s(200)).distrust, "it says so once");
        // It goes on: first of all what it holds comes back.
        assert!(!pulse.closed(SeqId(77), s(200)), "a token is awaited");
        assert!(pulse.prove(s(200)) && pulse.is_proven(s(200)));
    }

    #[test]
    fn an_echo_alone_makes_a_line_trusted_again() {
        let mut pulse = up();
        pulse.prove(s(100));
        pulse.echoing(Some(SeqId(7)), s(101));
        assert!(pulse.due(true, s(105)).distrust);
        assert!(!pulse.is_proven(s(105)));
        assert!(
            !pulse.closed(SeqId(7), s(106)) || !pulse.is_proven(s(106)),
            "that says what was true when it was sent"
        );
        let now = pulse.echo_at(true).unwrap();
        assert!(now <= s(106), "the next one follows at once");
        pulse.echoing(Some(SeqId(8)), s(106));
        pulse.closed(SeqId(8), s(106));
        assert!(pulse.is_proven(s(107)));
    }

    #[test]
    fn while_something_is_owed_there_are_no_echoes_and_its_end_shows_that_the_line_lives() {
        let mut pulse = up();
        pulse.prove(s(100));
        pulse.listen(owing(100, 40));
        assert_eq!(pulse.echo_at(true), None);
        pulse.listen(None);
        assert!(!pulse.closed(SeqId(3), s(130)) && pulse.is_proven(s(130)));
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
        pulse.echoing(Some(SeqId(1)), s(110));
        assert_eq!(pulse.line_lost(), Some(PROBE));
        assert_eq!(pulse.next_deadline(true), None);
        assert!(!pulse.is_echo(SeqId(1)));
    }
}
