//! What a width and a number of windows in flight would bring: the model by which the controller chooses.
//!
//! # The model
//! `S_j` is the probability that the next `j` guesses are all right, from the hazards: `S_j = prod (1 - h_k)`. An epoch
//! commits `J` tokens, `J - 1` right guesses and the correction, so `P(J > j) = S_j` and `E[J] = 1 + sum S_j`.
//!
//! Windows of `w` rows leave with `d` in flight. Row `r` judges guess `r + 1`, so the verdict that ends the epoch is
//! that of window `(J - 1) / w`, and window `m` is reached with probability `S_(m w)`. With `L` the loop time of a
//! window and `t` its time in the slowest stage, verdict `m` comes at `T_m = L + m t` if `d` windows fill the loop
//! (`d t >= L`), else in bursts of `d`: `T_m = L (1 + m / d) + (m mod d) t`. With `d t <= L` the first stage is done with
//! what it has when a verdict comes; with more in flight a correction finds a stale window there and waits for half of
//! what is left of it on average. Then
//!
//! ```text
//! E[T] = T_0 + sum_m S_(m w) (T_m - T_(m-1)) + P(rejected) min(t, max(0, d t - L)) / 2
//! ```
//!
//! By renewal the sequence gains `E[J] / E[T]` tokens per second. A window that is sent takes `t` of the slowest stage,
//! `B = t (live windows + (d - 1) P(rejected))` per epoch.
//!
//! With `n` sequences that do the same, a stage is busy with the others for a share `rho = (n - 1) B / T` of the time.
//! A window waits in each stage for `t rho / (2 (1 - rho))`, as in an M/D/1 queue (windows of one burst wait together),
//! and an epoch takes at least `n B`. Plain decoding serves `b` sequences in one call where that pays. Guesses of
//! several sequences seldom fit one call, so none are assumed to: a crowded line is left to plain decoding rather too
//! early.

use crate::pace::Pace;

/// Widths tried: where a call's time has its steps. Few, so that windows of several sequences often fit one call.
pub const WIDTHS: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
/// Windows in flight tried.
pub const DEPTHS_TRIED: [u32; 15] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64];

/// A stage busier than this is as good as full: queues are long, but not endless as the formula has it.
const MOST_BUSY: f64 = 0.95;

/// What is known about the next guesses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outlook {
    /// `S_0 = 1, S_1, ...`: the probability that so many guesses are all right.
    alive: Vec<f64>,
    /// `S_0 + ... + S_(j - 1)` for each `j`.
    sums: Vec<f64>,
    /// Hazard of the guesses beyond; none if there are no more.
    beyond: Option<f64>,
}

impl Outlook {
    /// From the hazards of the next guesses, each between 0 and 1 and neither; if `goes_on`, more like the last of them
    /// follow.
    pub(crate) fn new(hazards: impl IntoIterator<Item = f64>, goes_on: bool) -> Self {
        let (mut alive, mut sums, mut last) = (vec![1.0], vec![0.0, 1.0], None);
        for hazard in hazards {
            let next = alive[alive.len() - 1] * (1.0 - hazard);
            sums.push(sums[sums.len() - 1] + next);
            alive.push(next);
            last = Some(hazard);
        }
        Self { alive, sums, beyond: last.filter(|_| goes_on) }
    }

    /// Whether there is anything to guess.
    pub(crate) const fn is_empty(&self) -> bool {
        self.alive.len() == 1
    }

    /// The probability that the guesses run out before one is wrong.
    fn exhausted(&self) -> f64 {
        if self.beyond.is_some() { 0.0 } else { self.alive[self.alive.len() - 1] }
    }
}

/// What one choice brings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Yield {
    /// Committed tokens per second.
    pub(crate) rate: f64,
    /// Of them, as many until a guess is wrong or there are no more.
    pub(crate) tokens: f64,
    /// Share of the rows computed for nothing.
    pub(crate) waste: f64,
}

impl Yield {
    /// The same if it begins only after so many seconds each time.
    pub(crate) fn after(self, seconds: f64) -> Self {
        Self { rate: self.tokens / (self.tokens / self.rate + seconds), ..self }
    }
}

/// The yield of plain decoding with `n_live` sequences on the line.
pub(crate) fn plain(pace: &Pace, n_live: u32) -> Yield {
    let shared = WIDTHS.into_iter().filter(|&shared| shared <= n_live.max(1));
    let seconds = shared
        .map(|shared| {
            let Times { around, inside, slowest } = Times::of(pace, shared, n_live > 1);
            let alone = Alone { seconds: around, bursts: 1.0, inside, work: slowest };
            alone.among(f64::from(n_live) / f64::from(shared))
        })
        .fold(f64::INFINITY, f64::min);
    Yield { rate: 1.0 / seconds.max(f64::MIN_POSITIVE), tokens: 1.0, waste: 0.0 }
}

/// Of a window.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Around the line.
    around: f64,
    /// In all stages together.
    inside: f64,
    /// In the slowest one.
    slowest: f64,
}

impl Times {
    fn of(pace: &Pace, width: u32, in_company: bool) -> Self {
        let (links, inside, slowest) = if in_company {
            (pace.busy().links(), pace.busy().inside(width), pace.busy().slowest(width))
        } else {
            (pace.links(), pace.inside(width), pace.slowest(width))
        };
        Self { around: links + inside, inside, slowest }
    }
}

/// An epoch on an idle line.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// Its time.
    seconds: f64,
    /// Times that it waits for a whole loop.
    bursts: f64,
    /// Time of a window in all stages together.
    inside: f64,
    /// Time that it takes of the slowest stage.
    work: f64,
}

impl Alone {
    /// Its time among `n` equals.
    fn among(self, n: f64) -> f64 {
        let others = (n - 1.0).max(0.0) * self.work;
        let mut seconds = self.seconds;
        // Converges within a few percent in so many steps; the choice does not need more.
        for _ in 0..6 {
            let busy = (others / seconds.max(f64::MIN_POSITIVE)).min(MOST_BUSY);
            let waits = self.bursts * self.inside * busy / (2.0 * (1.0 - busy));
            seconds = (seconds + self.seconds + waits) / 2.0;
        }
        seconds.max(n * self.work)
    }
}

/// An epoch in windows of one width, whatever the depth. See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows<'a> {
    outlook: &'a Outlook,
    width: u32,
    n_stages: usize,
    /// With nothing else on the line, and with other windows.
    alone: Times,
    in_company: Times,
    /// Expected per epoch: committed tokens, windows with a verdict, and their rows.
    tokens: f64,
    windows: f64,
    rows: f64,
    /// Windows looked at one by one, and how many more are expected behind them.
    n_looked_at: usize,
    more: f64,
}

impl<'a> Windows<'a> {
    pub(crate) fn new(outlook: &'a Outlook, pace: &Pace, width: u32) -> Self {
        let (w, n) = (width as usize, outlook.alive.len());
        let (mut tokens, mut windows, mut rows, mut more) = (0.0, 0.0, 0.0, 0.0);
        for m in 0..n.div_ceil(w) {
            let reached = outlook.alive[m * w];
            windows += reached;
            // The token at row r is committed if the guesses up to it are right.
            let end = if outlook.beyond.is_some() { (m + 1) * w } else { n.min((m + 1) * w) };
            tokens += outlook.sums[end.min(n)] - outlook.sums[m * w];
            rows += reached * (end - m * w) as f64;
        }
        if let Some(hazard) = outlook.beyond {
            // From here on everything is a geometric series.
            let right = 1.0 - hazard;
            tokens += outlook.alive[n - 1] * right / hazard;
            let first = n.div_ceil(w) * w;
            let reached = outlook.alive[n - 1] * right.powi((first - (n - 1)) as i32);
            more = reached / (1.0 - right.powi(w as i32));
            windows += more;
            rows += more * f64::from(width);
        }
        let (alone, in_company) = (Times::of(pace, width, false), Times::of(pace, width, true));
        let (n_stages, n_looked_at) = (pace.n_stages(), n.div_ceil(w));
        Self { outlook, width, n_stages, alone, in_company, tokens, windows, rows, n_looked_at, more }
    }

    /// Seconds from the first verdict of an epoch to its last, with `depth` windows in flight.
    fn seconds_of_verdicts(&self, depth: u32, Times { around, slowest, .. }: Times) -> f64 {
        let gaps = self.windows - 1.0 - self.more;
        // Whether so many windows fill the loop.
        if f64::from(depth) * slowest >= around {
            return slowest * (gaps + self.more);
        }
        // The first verdict of each burst waits for the loop.
        let bursts = (1..).map(|burst| burst * depth as usize).take_while(|&m| m < self.n_looked_at);
        let begun: f64 = bursts.map(|m| self.outlook.alive[m * self.width as usize]).sum();
        slowest * gaps + (around - f64::from(depth) * slowest) * begun + self.more * around / f64::from(depth)
    }

    /// The yield with `depth` windows in flight.
    pub(crate) fn in_flight(&self, depth: u32, n_live: u32) -> Yield {
        let Self { tokens, windows, .. } = *self;
        let times = if depth > 1 || n_live > 1 { self.in_company } else { self.alone };
        let Times { around, inside, slowest } = times;
        let mut seconds = around + self.seconds_of_verdicts(depth, times);
        let rejected = 1.0 - self.outlook.exhausted();
        // The tail knows a contradiction before anybody: where it is the only stage nothing stale is ever computed.
        let (queued, stale) = if self.n_stages == 1 {
            (0.0, 0.0)
        } else {
            let queued = (f64::from(depth) * slowest - around).clamp(0.0, slowest);
            (queued, f64::from(depth - 1) * rejected)
        };
        seconds += rejected * queued / 2.0;
        let rows = self.rows + stale * f64::from(self.width);
        let bursts = 1.0 + (windows - 1.0) / f64::from(depth);
        let alone = Alone { seconds, bursts, inside, work: slowest * (windows + stale) };
        let seconds = alone.among(f64::from(n_live));
        Yield { rate: tokens / seconds.max(f64::MIN_POSITIVE), tokens, waste: (1.0 - tokens / rows).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::StageTiming;

    use super::*;

    fn guessing(outlook: &Outlook, pace: &Pace, (width, depth): (u32, u32), n_live: u32) -> Yield {
        Windows::new(outlook, pace, width).in_flight(depth, n_live)
    }

    /// Four stages of `micros(rows)`, 10 ms to each and back.
    fn pace(micros: impl Fn(u32) -> u32) -> Pace {
        let mut pace = Pace::new(4);
        for rows in WIDTHS {
            let timing = StageTiming { queue_us: 0, compute_us: micros(rows), batch_rows: rows };
            pace.observe(&[timing; 4], Duration::from_micros(40_000 + 4 * u64::from(micros(rows))), false);
        }
        pace
    }

    fn steady(agreement: f64) -> Outlook {
        Outlook::new(std::iter::repeat_n(1.0 - agreement, 64), true)
    }

    fn best(agreement: f64, pace: &Pace, depths: &[u32]) -> f64 {
        let all = WIDTHS.iter().flat_map(|&w| depths.iter().map(move |&d| (w, d)));
        all.map(|reach| guessing(&steady(agreement), pace, reach, 1).rate).fold(0.0, f64::max)
    }

    #[test]
    fn it_agrees_with_the_ceilings_of_the_design() {
        // Stage time 5 ms for one row, a share `f` of it for each row more; agreement; plain, serial, pipelined.
        // The design's serial windows are those of these widths; its pipeline restarts without a residual wait.
        let cases =
            [(0.15, 0.8, 16.7, 51.5, 68.6), (0.5, 0.8, 16.7, 33.6, 62.1), (0.15, 0.6, 16.7, 32.0, 37.7)];
        for (f, agreement, expected_plain, serial, pipelined) in cases {
            let pace = pace(|rows| (5000.0 * (1.0 + f * f64::from(rows - 1))) as u32);
            assert!((plain(&pace, 1).rate - expected_plain).abs() < 0.05);
            let found = best(agreement, &pace, &[1]);
            assert!((found / serial - 1.0).abs() < 0.06, "serial {found}, expected {serial}");
            let found = best(agreement, &pace, &DEPTHS_TRIED);
            assert!((found / pipelined - 1.0).abs() < 0.12, "pipelined {found}, expected {pipelined}");
        }
    }

    #[test]
    fn no_guess_is_plain_decoding_whatever_the_depth() {
        let pace = pace(|_| 5000);
        let none = Outlook::new([], false);
        let Yield { rate, waste, .. } = guessing(&none, &pace, (1, 8), 1);
        assert!((rate / plain(&pace, 1).rate - 1.0).abs() < 1e-9 && waste == 0.0);
    }

    #[test]
    fn others_take_what_running_ahead_would_use() {
        let pace = pace(|_| 5000);
        let outlook = steady(0.7);
        let alone = guessing(&outlook, &pace, (1, 12), 1);
        let crowded = guessing(&outlook, &pace, (1, 12), 8);
        assert!(alone.rate > 1.5 * plain(&pace, 1).rate);
        assert!(crowded.rate < plain(&pace, 8).rate);
        assert!(alone.waste > 0.5 && guessing(&outlook, &pace, (1, 2), 1).waste < 0.3);
    }
}
