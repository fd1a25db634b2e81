//! What a draft of the tail's own costs.
//!
//! A draft is a call or a few of the tail's engine, in which it is told what it has not been told and then drafts token by
//! token. Learned from the times that drafts bring along; kept as a time per token, since a call's fixed part is spent for
//! each token anew.

use std::time::Duration;

use protocol::StageTiming;

use crate::controller::MAX_WIDTH;
use crate::pace::change;

/// See the module. Seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftTime {
    /// In the tail, of each token; none before anything was measured.
    token: Option<f64>,
    /// How much later a draft is heard of than its verdict and the tail's own time for it would have it.
    lag: Option<f64>,
}

impl DraftTime {
    /// A draft of so many tokens has come, so long after its verdict if nothing else happened in between. One behind many
    /// rows that the tail had to be told first, as after a prompt, says nothing about the others.
    pub(crate) fn observe(&mut self, n_tokens: usize, timing: &StageTiming, waited: Option<Duration>) {
        if n_tokens == 0 || timing.batch_rows > 2 * MAX_WIDTH {
            return;
        }
        let took = f64::from(timing.compute_us) / 1e6;
        let learned = |before: Option<f64>, new: f64| Some(before.map_or(new, |old| change(old, new)));
        self.token = learned(self.token, took / n_tokens as f64);
        if let Some(waited) = waited {
            self.lag = learned(self.lag, (waited.as_secs_f64() - took).max(0.0));
        }
    }

    /// Of a draft of so many tokens, from its verdict until it is heard of; 0 before anything was measured, so that it is.
    pub(crate) fn of(&self, n_tokens: usize) -> f64 {
        self.token.map_or(0.0, |token| n_tokens as f64 * token + self.lag.unwrap_or(0.0))
    }

    /// Of one token more.
    pub(crate) fn of_one_more(&self) -> f64 {
        self.token.unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_cost_by_their_tokens_and_by_the_way_back() {
        let mut time = DraftTime::default();
        assert_eq!(time.of(4), 0.0);
        let call = |compute_us, batch_rows| StageTiming { queue_us: 0, compute_us, batch_rows };
        time.observe(4, &call(90_000, 300), None);
        assert_eq!(time.of(4), 0.0, "a prompt was told first");
        time.observe(4, &call(4000, 8), Some(Duration::from_micros(4500)));
        assert!((time.of(2) - 0.0025).abs() < 1e-9 && (time.of_one_more() - 0.001).abs() < 1e-9);
        time.observe(0, &call(100, 1), None);
        (0..50).for_each(|_| time.observe(1, &call(2000, 2), None));
        assert!((time.of(1) - 0.0025).abs() < 1e-4, "{}", time.of(1));
    }
}
