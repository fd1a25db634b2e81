//! A prompt in chunks: how long the next one is, and which are on their way.
//!
//! Owns: the length, by what calls take, how deep in the prompt it is and who else decodes. Does not know the tokens.

use std::collections::VecDeque;
use std::ops::Range;

use protocol::{Position, Progress};
use spec::Line;

use crate::Config;

/// Chunks beside others have so many rows at least.
const LEAST: u32 = 2;
/// And only so many that a row takes no longer than so many times what it takes in the length that is best for it: where
/// reading the weights takes most of a call, or short chunks miss a faster way to attend (llama.cpp's on a CPU wants
/// 64 rows), cutting a prompt up would only make everybody wait longer.
const WORTH: f64 = 2.0;
/// Attention that takes more than this share of a chunk is worth an attempt with the longest.
const DEEP: f64 = 0.5;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// Where each begins and ends that the tail has not reported yet, oldest first.
    under_way: VecDeque<Range<u32>>,
    /// Whether one was made long to see what depth does to it.
    has_tried: bool,
}

impl Chunks {
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Rows of the next chunk, which begins at `base` with so many rows of the prompt left. Alone on the line a prompt is
    /// always cut in the same way, so that its rows are computed in the same shapes; beside others it is the longest
    /// power-of-two part of that which keeps to [`Config::chunk_time`], because a window that runs into a chunk stays
    /// behind it, and waits for it on every stage. If none does, it is the shortest that is not much slower for each
    /// row than others, and what is left behind it goes with it if that would be shorter still.
    pub(crate) fn next_rows(&mut self, config: &Config, line: Line<'_>, base: u32, n_left: u32) -> u32 {
        let most = config.chunk_rows;
        let all = n_left.min(most);
        if line.n_live <= 1 || !line.pace.is_known() {
            return all;
        }
        let halves = std::iter::successors(Some(most), |rows| Some(rows / 2).filter(|&half| half >= LEAST));
        let lengths: Vec<_> = std::iter::once(all)
            .chain(halves.filter(|&rows| rows < all))
            .map(|rows| (rows, line.pace.chunk_time(rows, base)))
            .collect();
        let each = |(rows, time): (u32, f64)| time / f64::from(rows);
        let best = lengths.iter().copied().map(each).fold(f64::INFINITY, f64::min);
        let worthwhile = || lengths.iter().copied().filter(|&length| each(length) <= WORTH * best);
        let most_wait = 2.0 * config.chunk_time.as_secs_f64() - line.pace.busy().loop_time(line.n_live);
        let is_short = |&(_, time): &(u32, f64)| f64::from(config.n_stages) * time <= most_wait;
        let short = worthwhile().find(is_short).map(|(rows, _)| rows);
        let rows = short.unwrap_or_else(|| {
            let least = worthwhile().next_back().map_or(all, |(rows, _)| rows);
            if n_left < 2 * least { all } else { least }
        });
        let without_depth = line.pace.chunk_time(rows, 0);
        let is_deep = without_depth < (1.0 - DEEP) * line.pace.chunk_time(rows, base);
        if is_deep && all == most && !self.has_tried && !line.pace.knows_depth(most) {
            self.has_tried = true;
            return most;
        }
        rows
    }

    /// One more has left.
    pub(crate) fn sent(&mut self, chunk: Range<u32>) {
        self.under_way.push_back(chunk);
    }

    /// The tail has passed the oldest one. Where that began; if it was not this one, where that ends.
    pub(crate) fn passed(&mut self, progress: &Progress) -> Result<u32, Option<Position>> {
        let oldest = self.under_way.front().cloned();
        let Some(chunk) = oldest.clone().filter(|chunk| chunk.end == progress.next.0) else {
            return Err(oldest.map(|chunk| Position(chunk.end)));
        };
        self.under_way.pop_front();
        Ok(chunk.start)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::{SeqId, StageTiming};
    use spec::Pace;

    use super::*;

    fn timing(rows: u32, ms: f64) -> StageTiming {
        StageTiming { queue_us: 0, compute_us: (ms * 1e3) as u32, batch_rows: rows }
    }

    /// Two stages that take 4 ms for each row.
    fn pace() -> Pace {
        let mut pace = Pace::new(2);
        for rows in [1, 2, 4, 8, 16, 32, 64, 128] {
            let times = [timing(rows, 4.0 * f64::from(rows)); 2];
            pace.observe(&times, Duration::from_secs_f64(8e-3 * f64::from(rows)), false);
        }
        pace
    }

    const PROMPT: u32 = 4123;

    /// Lengths of the chunks of such a prompt beside two others, on stages which take so many more milliseconds
    /// for each row a thousand positions into it.
    fn lengths(pace: &mut Pace, more: impl Fn(u32) -> f64) -> Vec<(u32, u32)> {
        let config = Config::new(2, 4, 8192, 100);
        let mut chunks = Chunks::default();
        let mut lengths = Vec::new();
        let mut base = 0;
        while base < PROMPT {
            let rows = chunks.next_rows(&config, Line { pace, n_live: 3 }, base, PROMPT - base);
            chunks.sent(base..base + rows);
            let ms = f64::from(rows) * (4.0 + more(rows) * f64::from(base + rows / 2) / 1000.0);
            let timings = vec![timing(rows, ms); 2];
            let progress = Progress { seq: SeqId(0), next: Position(base + rows), timings };
            assert_eq!(chunks.passed(&progress), Ok(base));
            pace.observe_chunk(&progress.timings, base, true);
            lengths.push((base, rows));
            base += rows;
        }
        lengths
    }

    fn at(lengths: &[(u32, u32)], base: u32) -> u32 {
        lengths.iter().rev().find(|(start, _)| *start <= base).map_or(0, |&(_, rows)| rows)
    }

    #[test]
    fn alone_a_prompt_is_cut_as_ever() {
        let config = Config { chunk_rows: 64, ..Config::new(2, 4, 4096, 100) };
        let mut chunks = Chunks::default();
        let lengths = [128, 64, 63]
            .map(|n_left| chunks.next_rows(&config, Line { pace: &pace(), n_live: 1 }, 0, n_left));
        assert_eq!(lengths, [64, 64, 63]);
    }

    #[test]
    fn the_deeper_in_a_prompt_the_shorter_beside_others() {
        let lengths = lengths(&mut pace(), |_| 4.0);
        assert_eq!(at(&lengths, 0), 16, "two stages, 64 ms each, leave time for the others' windows");
        assert_eq!(at(&lengths, 1900), 4, "three times the time, a third of the rows");
        assert_eq!(at(&lengths, 4000), 4);
        let long = lengths.iter().filter(|(_, rows)| *rows > 16).count();
        assert_eq!(long, 1, "what depth does to the longest is tried once: {lengths:?}");
    }

    #[test]
    fn lengths_that_are_slow_for_each_row_are_left() {
        let mut pace = pace();
        // As on a CPU, where attention is much faster for 64 rows and more.
        let more = |rows: u32| if rows >= 64 { 1.0 } else { 10.0 };
        let first = lengths(&mut pace, more);
        assert_eq!(at(&first, 100), 16, "{first:?}");
        assert!((1000..4000).step_by(100).all(|base| at(&first, base) == 64), "{first:?}");
        let second = lengths(&mut pace, more);
        assert!((700..4000).step_by(100).all(|base| at(&second, base) == 64), "{second:?}");
        assert!(second.iter().all(|&(base, rows)| rows >= 64 || base < 700), "no slow rest: {second:?}");
    }

    #[test]
    fn chunks_pass_in_their_order() {
        let mut chunks = Chunks::default();
        let progress = |next| Progress { seq: SeqId(0), next: Position(next), timings: Vec::new() };
        assert_eq!(chunks.passed(&progress(4)), Err(None));
        chunks.sent(0..4);
        chunks.sent(4..8);
        assert_eq!(chunks.passed(&progress(8)), Err(Some(Position(4))));
        assert_eq!(chunks.passed(&progress(4)), Ok(0));
        assert_eq!((chunks.len(), chunks.is_empty()), (1, false));
    }
}
