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

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(ms(100), ms(1000));
        let mut pauses = |n| (0..n).map(|_| backoff.pause()).collect::<Vec<_>>();
        assert_eq!(pauses(6), [100, 200, 400, 800, 1000, 1000].map(ms));
        // However long a machine stays away: no pause grows beyond that, and none is so short that the line is busy dialling.
        assert!(pauses(1000).iter().all(|&pause| pause == ms(1000)));
        backoff.reset();
        assert_eq!([backoff.pause(), backoff.pause()], [100, 200].map(ms));
    }
}
