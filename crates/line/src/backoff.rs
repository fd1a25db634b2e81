//! Growing pauses between attempts.

use std::time::Duration;

/// Doubles from the shortest to the longest pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest }
    }

    /// The pause before the next attempt.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// An attempt has earned a fresh start.
    pub(crate) const fn reset(&mut self) {
        self.next = self.shortest;
    }
}
