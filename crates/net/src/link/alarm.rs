//! Waits to a few hundredths of a millisecond, for links that are slowed down.
//!
//! Such a link is there to be measured, and a token crosses several: each would come later than it was asked to, first by
//! what timers are too coarse for (whole milliseconds), then by what waking up a thread takes (0.1 to 0.2 ms). Owns how
//! late the last waits were, and wakes that much earlier. Does not know what is waited for.

use std::{hint::spin_loop, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// Tokio's timers are late by up to this: both its wheel and the system call below it count whole milliseconds.
const COARSE: Duration = Duration::from_millis(2);
/// The most that a thread is woken early, and so how long the rest of a wait keeps a processor.
const MAX_LEAD: Duration = Duration::from_micros(300);
/// Of a wait's lateness, what counts for the next one.
const RECENT: u32 = 8;

/// Waits for one instant after the other.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// How late a thread comes back from its sleep, at most [`MAX_LEAD`].
    lead: Duration,
}

impl Alarm {
    /// Returns at `until`, or as soon after it as this machine can. Can be dropped at any time.
    pub(super) async fn wait(&mut self, until: Instant) {
        if let Some(coarse) = until.checked_sub(COARSE).filter(|coarse| *coarse > Instant::now()) {
            sleep_until(coarse).await;
        }
        if !is_time_made() {
            let ring = until - self.lead;
            let left = ring.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the rest of a wait that timers are too coarse for, below 2 ms"
                )]
                let waited = spawn_blocking(move || std::thread::sleep(left.min(COARSE))).await;
                // It fails only while the runtime ends.
                drop(waited);
                self.lead = next_lead(self.lead, Instant::now().saturating_duration_since(ring));
            }
            // What is left is shorter than going to sleep and waking up.
            while Instant::now() < until {
                spin_loop();
            }
        }
        // Where time is not the system's, in tests, it has not passed.
        if Instant::now() < until {
            sleep_until(until).await;
        }
    }
}

/// How much earlier to wake up next time, after a thread came back `late`.
fn next_lead(lead: Duration, late: Duration) -> Duration {
    (lead * (RECENT - 1) + late.min(MAX_LEAD)) / RECENT
}

/// Whether the runtime's time has run ahead of the system's, as only in tests: then no thread need wait for it.
fn is_time_made() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the other one of the two clocks that are compared")]
    let real = std::time::Instant::now();
    Instant::now().into_std() > real + COARSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_follows_what_waking_up_takes_and_is_bounded() {
        let us = Duration::from_micros;
        let after = |late, n| (0..n).fold(Duration::ZERO, |lead, _| next_lead(lead, late));
        let usual = after(us(140), 40);
        assert!(usual > us(130) && usual <= us(140), "{usual:?}");
        // A machine that was busy for once says little about the next wait.
        assert!(next_lead(usual, us(50_000)) < us(170));
        assert_eq!(after(us(50_000), 1000), after(MAX_LEAD, 1000));
        assert!(after(us(50_000), 1000) <= MAX_LEAD);
    }

    #[tokio::test]
    async fn nothing_returns_before_its_time() {
        let mut alarm = Alarm::default();
        for us in [0, 300, 1_000, 2_500, 4_000] {
            let until = Instant::now() + Duration::from_micros(us);
            alarm.wait(until).await;
            assert!(Instant::now() >= until);
        }
    }
}
