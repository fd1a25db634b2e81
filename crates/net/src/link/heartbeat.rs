//! When to ping, and how long the answers take. Pure: `now` counts from the start of the link.

use std::{collections::VecDeque, time::Duration};

/// Pings whose answer may still come.
const MAX_OUTSTANDING: usize = 64;

/// How soon a frozen or unplugged peer is noticed. (A killed one is seen at once, without any heartbeat.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Between two pings: 10 ms to 60 s, in whole milliseconds.
    pub interval: Duration,
    /// Silence after which the peer counts as dead: at least twice the interval, at most 10 minutes.
    pub dead_after: Duration,
}

impl Default for Heartbeat {
    /// 250 ms and 1 s.
    fn default() -> Self {
        Self { interval: Duration::from_millis(250), dead_after: Duration::from_secs(1) }
    }
}

impl Heartbeat {
    /// The nearest values within the limits.
    #[must_use]
    pub fn clamped(self) -> Self {
        let whole = |d: Duration| Duration::from_millis(u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let interval = whole(self.interval).clamp(Duration::from_millis(10), Duration::from_secs(60));
        let dead_after = whole(self.dead_after).clamp(interval * 2, Duration::from_secs(600));
        Self { interval, dead_after }
    }
}

#[derive(Debug)]
pub(crate) struct Pinger {
    beat: Heartbeat,
    next: Duration,
    number: u64,
    /// Number and departure, oldest first.
    outstanding: VecDeque<(u64, Duration)>,
    rtt: Option<Duration>,
}

impl Pinger {
    /// The first ping is due at once: it tells the peer to beat as well.
    pub(crate) fn new(beat: Heartbeat, now: Duration) -> Self {
        Self { beat: beat.clamped(), next: now, number: 0, outstanding: VecDeque::new(), rtt: None }
    }

    pub(crate) const fn beat(&self) -> Heartbeat {
        self.beat
    }

    /// When the next ping has to leave.
    pub(crate) const fn next_at(&self) -> Duration {
        self.next
    }

    /// The number of a ping that has to leave now.
    pub(crate) fn due(&mut self, now: Duration) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.next = now + self.beat.interval;
        self.number += 1;
        if self.outstanding.len() == MAX_OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back((self.number, now));
        Some(self.number)
    }

    /// Takes an answer; one to no ping of ours changes nothing.
    pub(crate) fn answered(&mut self, number: u64, now: Duration) {
        let Some(at) = self.outstanding.iter().position(|&(sent, _)| sent == number) else {
            return;
        };
        let (_, left) = self.outstanding[at];
        self.outstanding.drain(..=at);
        let sample = now.saturating_sub(left);
        // The weights of RFC 6298.
        self.rtt = Some(self.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
    }

    pub(crate) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }
}
