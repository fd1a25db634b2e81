//! How long a line takes: each stage's call by its rows, and the way between the stages.
//!
//! Learned from the timings that every verdict and every passed chunk carries; nothing is sent to measure. Shared by
//! all sequences of a line. Times are seconds.
//!
//! Stages that share a processor or a memory slow each other down when they compute at once, and what arrives waits for
//! a processor to read it. So each stage has its times on a line with one window under way, and a factor by which they
//! stretch where there are several ([`Pace::busy`]); and the way between them has what it takes longer then. Taken from
//! one and the same average, plain decoding would seem as slow as guessing makes it.

use std::time::Duration;

use protocol::StageTiming;

use crate::controller::MAX_WIDTH;
use crate::depth::Depth;
use crate::draft_time::DraftTime;
use crate::plan::WIDTHS;
use crate::staircase::Staircase;

/// Weight of a new measurement.
pub(crate) const NEW: f64 = 0.2;
/// A single measurement changes an estimate at most by this factor: one call that the operating system disturbed must
/// not put a width out of use.
const MOST_CHANGE: f64 = 3.0;
/// What company costs is believed less with each window that had none: guessing that did not pay on a shared machine is
/// tried again: after some 1,400 tokens half of what it cost then is forgotten.
const RELAX: f64 = 0.9995;

/// Windows of guesses after which one row is to be measured again: what guessing brings is compared with that. One in so many
/// without guesses costs about a percent.
const STALE: u32 = 64;
/// More often as long as it was measured less than [`FEW`] times, since the first calls of a process may well be odd, and after
/// a measurement that was off by more than [`SURPRISE`].
const FEW: u32 = 12;
const STALE_AT_FIRST: u32 = 8;
const SURPRISE: f64 = 1.5;

/// Chunks that begin deeper in a prompt than this say what depth costs; the others, what their rows do.
const SHALLOW: u32 = 256;

/// See the module.
#[derive(Clone, Debug)]
pub struct Pace {
    stages: Vec<StagePace>,
    /// What depth adds in the slowest stage.
    depth: Depth,
    /// All links together, the verdict's way back included, with one window under way.
    links: Option<f64>,
    /// What they take longer when other windows are under way; not below 0.
    detour: f64,
    /// Windows of one row that had no company, as far as they are counted, and those of more rows since the last of them.
    n_plain: u32,
    n_wider: u32,
    /// What drafts of the tail's own cost.
    drafts: DraftTime,
}

/// The same line with several windows under way.
#[derive(Clone, Copy, Debug)]
pub struct Busy<'a>(&'a Pace);

/// One stage.
#[derive(Clone, Copy, Debug)]
struct StagePace {
    alone: Staircase,
    /// By this factor calls take longer when other windows are under way; at least 1 but for what chance does.
    stretch: f64,
}

impl Pace {
    /// A line of which nothing is known.
    #[must_use]
    pub fn new(n_stages: u16) -> Self {
        let unknown = StagePace { alone: Staircase::default(), stretch: 1.0 };
        Self {
            stages: vec![unknown; usize::from(n_stages)],
            depth: Depth::default(),
            links: None,
            detour: 0.0,
            n_plain: 0,
            n_wider: 0,
            drafts: DraftTime::default(),
        }
    }

    /// Stages in the line.
    #[must_use]
    pub fn n_stages(&self) -> usize {
        self.stages.len()
    }

    /// What the stages measured on one window, and how long it was under way, from the front and back to it; whether
    /// other windows were under way meanwhile, of whatever sequence.
    pub fn observe(&mut self, timings: &[StageTiming], under_way: Duration, in_company: bool) {
        let inside: f64 = timings.iter().map(|t| seconds(t.queue_us) + seconds(t.compute_us)).sum();
        let links = (under_way.as_secs_f64() - inside).max(0.0);
        match timings.first() {
            Some(timing) if !in_company && timing.batch_rows == 1 => {
                let expected = self.inside(1);
                let is_odd = inside > SURPRISE * expected || expected > SURPRISE * inside;
                self.n_plain =
                    if is_odd { self.n_plain.min(FEW - 1) } else { self.n_plain.saturating_add(1) };
                self.n_wider = 0;
            }
            Some(_) if !in_company => self.n_wider = self.n_wider.saturating_add(1),
            _ => {}
        }
        for (stage, timing) in self.stages.iter_mut().zip(timings) {
            if in_company {
                stage.observe_in_company(timing);
            } else {
                stage.alone.observe(timing);
                stage.stretch = 1.0 + RELAX * (stage.stretch - 1.0);
            }
        }
        match self.links {
            Some(alone) if in_company => self.detour = change(self.detour, (links - alone).max(0.0)),
            before => {
                self.links = Some(before.map_or(links, |before| change(before, links)));
                self.detour *= RELAX;
            }
        }
    }

    /// What the stages measured on a chunk of a prompt. The tail computes no logits for it, which on some models is
    /// most of its work: a short chunk's time there would pass for that of a window. A long one only says where widths
    /// that were never tried may lie; that it seems cheap has them tried. As in [`Pace::observe`], whether there was
    /// company; what company costs is learned from windows only. `base` is where the chunk begins: one that is deep in its
    /// prompt says what depth costs, and nothing else. A stage that held the rows already says nothing.
    pub fn observe_chunk(&mut self, timings: &[StageTiming], base: u32, in_company: bool) {
        if base > SHALLOW {
            let slowest = timings.iter().max_by_key(|timing| timing.compute_us);
            if let Some(&StageTiming { batch_rows, compute_us, .. }) = slowest {
                let more = seconds(compute_us) - self.busy().slowest(batch_rows);
                self.depth.observe(batch_rows, middle(base, batch_rows), more);
            }
            return;
        }
        let tail = self.stages.len().saturating_sub(1);
        let computed = |(_, (_, timing)): &(usize, (&mut StagePace, &StageTiming))| timing.batch_rows > 0;
        for (i, (stage, timing)) in self.stages.iter_mut().zip(timings).enumerate().filter(computed) {
            if i < tail || timing.batch_rows > MAX_WIDTH {
                if in_company && stage.alone.knows(timing.batch_rows) {
                    stage.alone.confirm(timing.batch_rows);
                } else if in_company {
                    stage.observe_in_company(timing);
                } else {
                    stage.alone.observe(timing);
                }
            }
        }
    }

    /// What the tail measured on a draft of `n_tokens`, and how long after its verdict it was heard of if nothing else was
    /// under way.
    pub fn observe_draft(&mut self, n_tokens: usize, timing: &StageTiming, waited: Option<Duration>) {
        self.drafts.observe(n_tokens, timing, waited);
    }

    /// Time from a verdict until a draft of `n_tokens` behind it is heard of; 0 before it is known.
    #[must_use]
    pub fn draft_time(&self, n_tokens: usize) -> f64 {
        self.drafts.of(n_tokens)
    }

    /// Time that one token more takes in a draft and in its window.
    #[must_use]
    pub fn drafted_token_time(&self) -> f64 {
        // Over a step of the staircase: rows are not equally dear.
        const ROWS: u32 = 4;
        let rows = self.inside(1 + ROWS) - self.inside(1);
        self.drafts.of_one_more() + rows.max(0.0) / f64::from(ROWS)
    }

    /// Time of a chunk of `n_rows` that begins at `base`, in the slowest stage, beside others.
    #[must_use]
    pub fn chunk_time(&self, n_rows: u32, base: u32) -> f64 {
        self.busy().slowest(n_rows) + self.depth.time(n_rows, middle(base, n_rows))
    }

    /// Whether it is known what depth does to chunks of so many rows.
    #[must_use]
    pub fn knows_depth(&self, n_rows: u32) -> bool {
        self.depth.knows(n_rows)
    }

    /// Whether it is long since one row went round an idle line, or has seldom done so: then it is time for a window without
    /// guesses.
    #[must_use]
    pub const fn is_plain_stale(&self) -> bool {
        self.n_wider >= if self.n_plain < FEW { STALE_AT_FIRST } else { STALE }
    }

    /// Whether anything went round the line yet.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.links.is_some()
    }

    /// The narrowest of [`WIDTHS`], up to `most`, whose time some stage has not measured, or not for long.
    #[must_use]
    pub fn unknown_width(&self, most: u32) -> Option<u32> {
        let is_known = |width: u32| self.stages.iter().all(|stage| stage.alone.knows(width));
        WIDTHS.into_iter().find(|&width| width <= most && !is_known(width))
    }

    /// Time of a window of `n_rows` around an idle line.
    #[must_use]
    pub fn loop_time(&self, n_rows: u32) -> f64 {
        self.links() + self.inside(n_rows)
    }

    /// Time on all links of an idle line together, the verdict's way back included; 0 before it is known.
    #[must_use]
    pub fn links(&self) -> f64 {
        self.links.unwrap_or(0.0)
    }

    /// Time of a window of `n_rows` in all stages of an idle line together.
    #[must_use]
    pub fn inside(&self, n_rows: u32) -> f64 {
        self.stages.iter().map(|stage| stage.alone.time(n_rows)).sum()
    }

    /// Time of a window of `n_rows` in the slowest stage of an idle line.
    #[must_use]
    pub fn slowest(&self, n_rows: u32) -> f64 {
        self.stages.iter().map(|stage| stage.alone.time(n_rows)).fold(0.0, f64::max)
    }

    /// The line with several windows under way.
    #[must_use]
    pub const fn busy(&self) -> Busy<'_> {
        Busy(self)
    }
}

impl Busy<'_> {
    /// Time of a window of `n_rows` around the line if it waits nowhere.
    #[must_use]
    pub fn loop_time(self, n_rows: u32) -> f64 {
        self.links() + self.inside(n_rows)
    }

    /// Time on all links together, the verdict's way back included; 0 before it is known.
    #[must_use]
    pub fn links(self) -> f64 {
        self.0.links() + self.0.detour
    }

    /// Time of a window of `n_rows` in all stages together.
    #[must_use]
    pub fn inside(self, n_rows: u32) -> f64 {
        self.0.stages.iter().map(|stage| stage.time(n_rows)).sum()
    }

    /// Time of a window of `n_rows` in the slowest stage.
    #[must_use]
    pub fn slowest(self, n_rows: u32) -> f64 {
        self.0.stages.iter().map(|stage| stage.time(n_rows)).fold(0.0, f64::max)
    }
}

impl StagePace {
    /// A call in company: how much longer it took than alone, if that is known, else what it would have taken alone.
    fn observe_in_company(&mut self, timing: &StageTiming) {
        let (rows, seconds) = (timing.batch_rows, seconds(timing.compute_us));
        if self.alone.knows(rows) {
            let alone = self.alone.time(rows);
            if alone > 0.0 {
                self.stretch = change(self.stretch, seconds / alone);
            }
            self.alone.confirm(rows);
        } else {
            let compute_us = (f64::from(timing.compute_us) / self.stretch.max(1.0)) as u32;
            self.alone.observe(&StageTiming { compute_us, ..*timing });
        }
    }

    /// A call with `n_rows` in company.
    fn time(&self, n_rows: u32) -> f64 {
        self.stretch.max(1.0) * self.alone.time(n_rows)
    }
}

/// Positions that a chunk's rows look back at on average.
fn middle(base: u32, n_rows: u32) -> f64 {
    f64::from(base) + f64::from(n_rows) / 2.0
}

pub(crate) fn seconds(micros: u32) -> f64 {
    f64::from(micros) / 1e6
}

pub(crate) fn change(before: f64, new: f64) -> f64 {
    moved(before, new, NEW)
}

/// An estimate after one more measurement, which counts for so much.
pub(crate) fn moved(before: f64, new: f64, weight: f64) -> f64 {
    let new = if before > 0.0 { new.clamp(before / MOST_CHANGE, before * MOST_CHANGE) } else { new };
    before + weight * (new - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(rows: u32, micros: u32) -> StageTiming {
        StageTiming { queue_us: 500, compute_us: micros, batch_rows: rows }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn waiting_is_neither_computing_nor_travelling() {
        let mut pace = Pace::new(2);
        assert!(!pace.is_known());
        pace.observe(&[timing(1, 5000), timing(1, 3000)], Duration::from_millis(49), false);
        assert!(close(pace.loop_time(1), 0.048), "40 ms on links, 8 in stages, 1 waiting");
        assert!(close(pace.slowest(1), 0.005));
    }

    #[test]
    fn what_all_is_compared_with_is_measured_now_and_then() {
        let mut pace = Pace::new(1);
        let wide = |pace: &mut Pace, n| {
            (0..n).for_each(|_| pace.observe(&[timing(4, 2000)], Duration::from_millis(9), false));
        };
        wide(&mut pace, STALE_AT_FIRST - 1);
        assert!(!pace.is_plain_stale());
        wide(&mut pace, 1);
        assert!(pace.is_plain_stale());
        (0..FEW).for_each(|_| pace.observe(&[timing(1, 1000)], Duration::from_millis(8), false));
        wide(&mut pace, STALE - 1);
        assert!(!pace.is_plain_stale());
        pace.observe(&[timing(1, 1000)], Duration::from_millis(8), true);
        wide(&mut pace, 1);
        assert!(pace.is_plain_stale(), "what has company is not measured");
        pace.observe(&[timing(1, 1000)], Duration::from_millis(8), false);
        assert!(!pace.is_plain_stale());
    }

    #[test]
    fn widths_between_measured_ones_lie_between_them() {
        let mut pace = Pace::new(1);
        pace.observe(&[timing(1, 1000)], Duration::ZERO, false);
        assert!(close(pace.slowest(4), 0.00175), "by the prior alone");
        pace.observe(&[timing(128, 13_700)], Duration::ZERO, false);
        assert!((pace.slowest(3) - 0.0012).abs() < 1e-5, "{}", pace.slowest(3));
        pace.observe(&[timing(3, 2900)], Duration::ZERO, false);
        assert!((pace.slowest(3) - 0.0029).abs() < 1e-5);
        assert!(pace.slowest(2) > 0.0019 && pace.slowest(4) > 0.0029, "a step up is a step up");
    }

    #[test]
    fn a_short_chunk_says_nothing_about_the_tails_windows() {
        let mut pace = Pace::new(2);
        pace.observe(&[timing(1, 2000), timing(1, 9000)], Duration::from_millis(20), false);
        let unknown = pace.slowest(4);
        pace.observe_chunk(&[timing(4, 3000), timing(4, 1000)], 0, false);
        assert!(close(pace.slowest(4), unknown), "the tail's head was not computed");
        assert!(close(pace.inside(4), unknown + 0.003), "elsewhere rows are rows");
        pace.observe_chunk(&[timing(256, 90_000), timing(256, 80_000)], 0, false);
        assert!(pace.slowest(4) < unknown, "and long ones show where the rest lies");
    }

    #[test]
    fn depth_is_no_matter_of_rows() {
        let mut pace = Pace::new(2);
        pace.observe(&[timing(1, 1000); 2], Duration::ZERO, false);
        pace.observe_chunk(&[timing(16, 16_000); 2], 0, false);
        assert!(close(pace.chunk_time(16, 0), 0.016) && !pace.knows_depth(16));
        pace.observe_chunk(&[timing(16, 16_000), timing(16, 36_160)], 1000, false);
        assert!(close(pace.slowest(16), 0.016), "what a row costs is as before");
        assert!(pace.knows_depth(16) && close(pace.chunk_time(16, 1000), 0.036_16));
        assert!(close(pace.chunk_time(16, 2008), 0.016 + 2.0 * 0.020_16), "twice as deep");
    }

    #[test]
    fn what_company_costs_is_kept_apart_and_slowly_forgotten() {
        let mut pace = Pace::new(2);
        let alone = |pace: &mut Pace| pace.observe(&[timing(1, 1000); 2], Duration::ZERO, false);
        (0..20).for_each(|_| alone(&mut pace));
        for _ in 0..60 {
            pace.observe(&[timing(1, 2000), timing(1, 1000)], Duration::ZERO, true);
        }
        assert!(close(pace.inside(1), 0.002), "plain decoding is as fast as it was");
        assert!(
            (pace.busy().slowest(1) - 0.002).abs() < 1e-5 && (pace.busy().inside(1) - 0.003).abs() < 1e-5
        );
        pace.observe(&[timing(4, 6000), timing(4, 3000)], Duration::ZERO, true);
        assert!((pace.inside(4) - 0.006).abs() < 1e-5, "a width first seen in company: {}", pace.inside(4));
        (0..100).for_each(|_| alone(&mut pace));
        assert!(pace.busy().slowest(1) > 0.0019);
        (0..20_000).for_each(|_| alone(&mut pace));
        assert!(pace.busy().slowest(1) < 0.00101, "and company is tried again");
    }

    #[test]
    fn the_way_that_is_longer_in_company_is_as_short_as_it_was_alone() {
        let mut pace = Pace::new(1);
        let mut observe = |links_us: u64, in_company: bool| {
            pace.observe(&[timing(1, 1000)], Duration::from_micros(1500 + links_us), in_company);
            pace.clone()
        };
        (0..20).for_each(|_| drop(observe(4000, false)));
        (0..60).for_each(|_| drop(observe(6000, true)));
        let pace = observe(6000, true);
        assert!(close(pace.links(), 0.004) && (pace.busy().links() - 0.006).abs() < 1e-5);
        assert!((pace.busy().loop_time(1) - 0.007).abs() < 1e-5 && close(pace.loop_time(1), 0.005));
    }

    #[test]
    fn what_is_unknown_is_named_from_the_narrow_end() {
        let mut pace = Pace::new(2);
        for width in [1, 2, 3, 4] {
            assert_eq!(pace.unknown_width(4), Some(width));
            pace.observe(&[timing(width, 1000); 2], Duration::ZERO, false);
        }
        assert_eq!((pace.unknown_width(4), pace.unknown_width(16)), (None, Some(6)));
        for _ in 0..3000 {
            pace.observe(&[timing(1, 1000); 2], Duration::ZERO, false);
        }
        assert_eq!(pace.unknown_width(4), Some(2), "what was measured long ago");
    }

    #[test]
    fn one_odd_measurement_changes_little_and_an_old_one_fades() {
        let mut pace = Pace::new(1);
        for _ in 0..20 {
            pace.observe(&[timing(1, 1000)], Duration::ZERO, false);
        }
        pace.observe(&[timing(4, 90_000)], Duration::ZERO, false);
        assert!(pace.slowest(4) > 0.08);
        pace.observe(&[timing(1, 500_000)], Duration::ZERO, false);
        assert!(pace.slowest(1) < 0.0015);
        for _ in 0..2000 {
            pace.observe(&[timing(1, 1000)], Duration::ZERO, false);
        }
        pace.observe(&[timing(128, 20_000)], Duration::ZERO, false);
        pace.observe(&[timing(19, 5000)], Duration::ZERO, false);
        assert!((pace.slowest(16) - 0.003).abs() < 2e-4, "a step counts as filled: {}", pace.slowest(16));
        assert!(pace.slowest(4) < 0.005, "{}", pace.slowest(4));
    }
}
