//! A prompt in chunks: how long the next one is, and which are on their way.
//!
//! Owns: the length, by what calls took and who else decodes. Does not know the tokens.

use std::collections::VecDeque;

use protocol::{Position, Progress};
use spec::{Line, Pace};

use crate::Config;

/// Chunks beside others are at least so long, and shorter ones as far as their rows take no longer each than
/// [`WORTH`] times those of this one: where reading the weights takes most of a call, cutting it up would only make
/// everybody wait longer.
const USUAL: u32 = 16;
const LEAST: u32 = 2;
const WORTH: f64 = 1.5;
/// A chunk that took longer than usual by more than this was disturbed.
const MOST_STRETCH: f64 = 16.0;

/// See the module.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// Where each ends that the tail has not reported yet, oldest first.
    under_way: VecDeque<Position>,
    /// How many times longer the last ones took than calls of so many rows usually do: attention has the more to look
    /// at, the further into a prompt a chunk is.
    stretch: f64,
}

impl Chunks {
    pub(crate) const fn new() -> Self {
        Self { under_way: VecDeque::new(), stretch: 1.0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Rows of the next chunk. Alone on the line a prompt is always cut in the same way, so that its rows are computed in
    /// the same shapes; beside others it is the longest power-of-two part of that which keeps to
    /// [`Config::chunk_time`]: a window that runs into a chunk stays behind it, and waits for it on every stage.
    pub(crate) fn next_rows(&self, config: &Config, line: Line<'_>) -> usize {
        let most = config.chunk_rows;
        if line.n_live <= 1 || !line.pace.is_known() {
            return most as usize;
        }
        let slowest = |rows: u32| line.pace.busy().slowest(rows);
        let each = |rows: u32| slowest(rows) / f64::from(rows);
        let is_worth_it = |rows: u32| rows >= USUAL || each(rows) <= WORTH * each(USUAL);
        let halves = std::iter::successors(Some(most), |rows| {
            Some(rows / 2).filter(|&half| half >= LEAST && is_worth_it(half))
        });
        let most_wait = 2.0 * config.chunk_time.as_secs_f64() - line.pace.busy().loop_time(line.n_live);
        let n_stages = f64::from(config.n_stages);
        let is_short = |&rows: &u32| self.stretch * slowest(rows) * n_stages <= most_wait;
        let shortest = halves.clone().last().unwrap_or(most);
        halves.into_iter().find(is_short).unwrap_or(shortest) as usize
    }

    /// One more has left that ends there.
    pub(crate) fn sent(&mut self, end: Position) {
        self.under_way.push_back(end);
    }

    /// The tail has passed the oldest one; if it did not, where that ends.
    pub(crate) fn passed(&mut self, progress: &Progress, pace: &Pace) -> Result<(), Option<Position>> {
        let expected = self.under_way.front().copied();
        if expected != Some(progress.next) {
            return Err(expected);
        }
        self.under_way.pop_front();
        if let Some(slowest) = progress.timings.iter().max_by_key(|timing| timing.compute_us) {
            let usual = pace.busy().slowest(slowest.batch_rows);
            if usual > 0.0 {
                let found = f64::from(slowest.compute_us) / 1e6 / usual;
                self.stretch = (self.stretch + found.min(MOST_STRETCH)) / 2.0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::{SeqId, StageTiming};

    use super::*;

    fn timing(rows: u32, ms: f64) -> StageTiming {
        StageTiming { queue_us: 0, compute_us: (ms * 1e3) as u32, batch_rows: rows }
    }

    /// Two stages that take 4 ms for each row.
    fn pace() -> Pace {
        let mut pace = Pace::new(2);
        for rows in [1, 2, 4, 8, 16, 32] {
            let times = [timing(rows, 4.0 * f64::from(rows)); 2];
            pace.observe(&times, Duration::from_secs_f64(8e-3 * f64::from(rows)), false);
        }
        pace
    }

    #[test]
    fn the_deeper_in_a_prompt_the_shorter_beside_others() {
        let config = Config { chunk_rows: 64, ..Config::new(2, 4, 4096, 100) };
        let pace = pace();
        let mut chunks = Chunks::new();
        let mut rows = |n_live: u32, takes: Option<f64>| {
            let rows = chunks.next_rows(&config, Line { pace: &pace, n_live });
            if let Some(stretch) = takes {
                chunks.sent(Position(rows as u32));
                let timings = vec![timing(rows as u32, stretch * 4.0 * rows as f64); 2];
                let progress = Progress { seq: SeqId(0), next: Position(rows as u32), timings };
                assert_eq!(chunks.passed(&progress, &pace), Ok(()));
            }
            rows
        };
        assert_eq!(rows(1, None), 64, "alone as ever");
        assert_eq!(rows(3, Some(1.0)), 16, "two stages, 64 ms each, leave time for the others' windows");
        (0..8).for_each(|_| _ = rows(3, Some(2.0)));
        assert_eq!(rows(3, Some(2.0)), 8, "twice the time, half of the rows");
        (0..8).for_each(|_| _ = rows(3, Some(40.0)));
        assert_eq!(rows(3, None), 2, "there is a least");
        assert_eq!(rows(1, None), 64);
    }

    #[test]
    fn chunks_pass_in_their_order() {
        let mut chunks = Chunks::new();
        let progress = |next| Progress { seq: SeqId(0), next: Position(next), timings: Vec::new() };
        assert_eq!(chunks.passed(&progress(4), &pace()), Err(None));
        chunks.sent(Position(4));
        chunks.sent(Position(8));
        assert_eq!(chunks.passed(&progress(8), &pace()), Err(Some(Position(4))));
        assert_eq!(chunks.passed(&progress(4), &pace()), Ok(()));
        assert_eq!((chunks.len(), chunks.is_empty()), (1, false));
    }
}
