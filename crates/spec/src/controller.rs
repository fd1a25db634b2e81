//! How wide and how deep one sequence guesses now.
//!
//! Owns: the choice among widths and depths by the model in `plan`, the limit on wasted rows while others want the
//! line, and the check of the model against what really happens: if guessing is slower than plain decoding would have
//! been, it pauses. Meanwhile the sources are scored as always, which costs nothing, so that the next try is informed.

use std::time::Duration;

use crate::pace::Pace;
use crate::plan::{DEPTHS_TRIED, Outlook, WIDTHS, Windows, Yield, plain};

/// Rows that a window may have at most.
pub const MAX_WIDTH: u32 = 16;
/// Windows in flight at most: with one row each they fill a loop of 64 stage times.
pub const MAX_DEPTH: u32 = 64;

/// Guessing must promise this much more than plain decoding: less is within the model's error.
const ADVANTAGE: f64 = 1.02;
/// On a full line, this much more for each sequence per stage: windows of other widths keep the others' windows from
/// sharing calls, which the model does not see.
const CROWD_ADVANTAGE: f64 = 0.2;
/// Of choices that promise nearly the best, the one that wastes least is taken.
const NEARLY: f64 = 0.998;
/// Rows computed for nothing, at most, when as many sequences as stages are live: each of them could keep a stage busy.
/// A quarter is the promise; the rest is for the estimate's error.
const MAX_WASTE: f64 = 0.2;
/// Rows sent for nothing, at most, as counted at the front: stages drop some of them before they compute, so that less
/// than a quarter is computed for nothing.
const SEEN_WASTE: f64 = 0.28;
/// The measured share of wasted rows counts so many useful ones more than there were: a first wrong window is no reason
/// to stop.
const WASTE_GRACE: f64 = 16.0;
/// Older rows count less, by this factor for each committed token: about the last 200 matter.
const WASTE_DECAY: f64 = 0.995;
/// Tokens after which guessing is judged by what it brought.
const SPELL: u32 = 64;
/// Guessing that takes longer than plain decoding by this factor has lost: beyond what chance does to 64 tokens of a
/// source that is right every third time.
const LOSS: f64 = 1.05;
/// Tokens of the first pause; each further one is twice as long, up to the last.
const PAUSE: (u32, u32) = (64, 2048);

/// What the line allows and what is fixed by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Rows in a window at most, 1 to [`MAX_WIDTH`].
    pub max_width: u32,
    /// Windows in flight at most, 1 to [`MAX_DEPTH`].
    pub max_depth: u32,
    /// The width, if it is not left to the controller.
    pub width: Option<u32>,
    /// The number of windows in flight, if it is not left to the controller.
    pub depth: Option<u32>,
}

impl Default for Reach {
    fn default() -> Self {
        Self { max_width: MAX_WIDTH, max_depth: MAX_DEPTH, width: None, depth: None }
    }
}

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rows in a window.
    pub width: u32,
    /// Windows in flight.
    pub depth: u32,
}

impl Plan {
    /// Nothing guessed.
    pub const PLAIN: Self = Self { width: 1, depth: 1 };
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    widths: Vec<u32>,
    depths: Vec<u32>,
    /// What guessing has brought since it was last judged.
    spell: Spell,
    /// What it has wasted on a full line.
    waste: Waste,
    /// Tokens to decode plainly before the next try.
    pause: u32,
    next_pause: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spell {
    tokens: u32,
    /// Seconds that they took.
    took: f64,
    /// Seconds that plain decoding would have taken, by the model.
    plainly: f64,
}

/// Rows on a full line.
#[derive(Clone, Copy, Debug, Default)]
struct Waste {
    useful: f64,
    wasted: f64,
}

impl Waste {
    fn share(self) -> f64 {
        self.wasted / (self.wasted + self.useful + WASTE_GRACE)
    }
}

/// Whether every stage could be kept busy without guesses.
fn is_full(pace: &Pace, n_live: u32) -> bool {
    n_live as usize >= pace.n_stages().max(2)
}

impl Controller {
    pub(crate) fn new(reach: Reach) -> Self {
        let choose = |pinned: Option<u32>, most: u32, all: &[u32]| match pinned {
            Some(one) => vec![one.clamp(1, most)],
            None => all.iter().copied().filter(|&one| one <= most).collect(),
        };
        Self {
            widths: choose(reach.width, reach.max_width.clamp(1, MAX_WIDTH), &WIDTHS),
            depths: choose(reach.depth, reach.max_depth.clamp(1, MAX_DEPTH), &DEPTHS_TRIED),
            spell: Spell::default(),
            waste: Waste::default(),
            pause: 0,
            next_pause: PAUSE.0,
        }
    }

    /// The choice, if there is only one.
    pub(crate) fn only(&self) -> Option<Plan> {
        match (&self.widths[..], &self.depths[..]) {
            (&[width], &[depth]) => Some(Plan { width, depth }),
            _ => None,
        }
    }

    /// Whether the caller has fixed the number of windows in flight.
    pub(crate) fn is_depth_pinned(&self) -> bool {
        self.depths.len() == 1
    }

    /// Windows in flight at most, whatever the plan.
    pub(crate) fn max_depth(&self) -> u32 {
        self.depths[self.depths.len() - 1]
    }

    /// Guesses in flight at most, as far as a draft can have so many.
    pub(crate) fn most_guesses(&self) -> u8 {
        let rows = self.widths[self.widths.len() - 1] * self.max_depth();
        u8::try_from(rows - 1).unwrap_or(u8::MAX)
    }

    /// The best choice for what lies ahead.
    pub(crate) fn plan(&self, outlook: &Outlook, pace: &Pace, n_live: u32) -> Plan {
        self.only().unwrap_or_else(|| self.best(outlook, pace, n_live).0)
    }

    /// The same, and what it should bring.
    pub(crate) fn best(&self, outlook: &Outlook, pace: &Pace, n_live: u32) -> (Plan, Yield) {
        let may_be_plain = self.may_be_plain();
        let (width, depth) = (self.widths[0], self.depths[0]);
        let cautious = || {
            let found = match may_be_plain {
                true => plain(pace, n_live),
                false => Windows::new(outlook, pace, width).in_flight(depth, n_live),
            };
            (Plan { width, depth }, found)
        };
        if outlook.is_empty() || !pace.is_known() || self.is_pausing() {
            return cautious();
        }
        let is_full = is_full(pace, n_live);
        if is_full && self.waste.share() > SEEN_WASTE {
            return cautious();
        }
        let yields: Vec<_> = self
            .widths
            .iter()
            .map(|&width| (width, Windows::new(outlook, pace, width)))
            .flat_map(|(width, windows)| {
                self.depths.iter().map(move |&depth| ((width, depth), windows.in_flight(depth, n_live)))
            })
            .filter(|(_, found)| !is_full || found.waste <= MAX_WASTE)
            .collect();
        let best = yields.iter().map(|(_, found)| found.rate).fold(0.0, f64::max);
        let crowd = if is_full { f64::from(n_live) / pace.n_stages().max(1) as f64 } else { 0.0 };
        let advantage = ADVANTAGE + CROWD_ADVANTAGE * crowd;
        if may_be_plain && best < advantage * plain(pace, n_live).rate {
            return cautious();
        }
        let nearly = yields.into_iter().filter(|(_, found)| found.rate >= NEARLY * best);
        let least =
            nearly.min_by(|(_, a), (_, b)| a.waste.total_cmp(&b.waste).then(b.rate.total_cmp(&a.rate)));
        least.map_or_else(cautious, |((width, depth), found)| (Plan { width, depth }, found))
    }

    /// Of the rows sent, so many have become tokens, and so many were or will be computed for nothing.
    pub(crate) fn settled(&mut self, n_useful: u32, n_wasted: usize, pace: &Pace, n_live: u32) {
        if is_full(pace, n_live) {
            let Waste { useful, wasted } = &mut self.waste;
            let old = WASTE_DECAY.powi(n_useful as i32);
            *useful = *useful * old + f64::from(n_useful);
            *wasted = *wasted * old + n_wasted as f64;
        }
    }

    /// A verdict has committed `n_tokens`, `took` after the one before. `guessed` says whether any guess was at stake.
    pub(crate) fn observe(&mut self, n_tokens: u32, took: Duration, guessed: bool, plain: Yield) {
        if !guessed {
            self.pause = self.pause.saturating_sub(n_tokens);
            return;
        }
        self.spell.tokens += n_tokens;
        self.spell.took += took.as_secs_f64();
        self.spell.plainly += f64::from(n_tokens) / plain.rate;
        if self.spell.tokens < SPELL {
            return;
        }
        if self.spell.took > LOSS * self.spell.plainly {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(PAUSE.1);
        } else {
            self.next_pause = PAUSE.0;
        }
        self.spell = Spell::default();
    }

    /// Whether guessing has lost and nothing is sent for a while.
    pub(crate) fn is_pausing(&self) -> bool {
        self.may_be_plain() && self.pause > 0
    }

    /// Whether the caller leaves it open that nothing is guessed.
    pub(crate) fn may_be_plain(&self) -> bool {
        self.widths[0] == 1 && self.depths[0] == 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::StageTiming;

    use super::*;

    fn guessing(outlook: &Outlook, pace: &Pace, (width, depth): (u32, u32), n_live: u32) -> Yield {
        Windows::new(outlook, pace, width).in_flight(depth, n_live)
    }

    fn pace(compute: &[u32], link_us: u32, per_row: f64) -> Pace {
        let mut pace = Pace::new(compute.len() as u16);
        for rows in WIDTHS {
            let timings: Vec<_> = compute
                .iter()
                .map(|&one| StageTiming {
                    queue_us: 0,
                    compute_us: (f64::from(one) * (1.0 + per_row * f64::from(rows - 1))) as u32,
                    batch_rows: rows,
                })
                .collect();
            let inside: u64 = timings.iter().map(|t| u64::from(t.compute_us)).sum();
            pace.observe(&timings, Duration::from_micros(u64::from(link_us) + inside), false);
        }
        pace
    }

    fn plan(hazard: f64, pace: &Pace, reach: Reach, n_live: u32) -> Plan {
        let outlook = Outlook::new(std::iter::repeat_n(hazard, 64), true);
        Controller::new(reach).plan(&outlook, pace, n_live)
    }

    #[test]
    fn narrow_and_deep_where_rows_cost_and_wide_where_they_are_free() {
        let (cpu, gpu) = (pace(&[15_000; 4], 40_000, 1.0), pace(&[15_000; 4], 40_000, 0.01));
        let on_cpu = plan(0.05, &cpu, Reach::default(), 1);
        assert!(on_cpu.width == 1 && on_cpu.depth >= 6, "{on_cpu:?}");
        let on_gpu = plan(0.05, &gpu, Reach::default(), 1);
        assert!(on_gpu.width >= 4 && on_gpu.depth > 1, "{on_gpu:?}");
    }

    #[test]
    fn hopeless_guesses_are_not_sent_and_good_ones_are() {
        let line = pace(&[5000, 4000], 4000, 1.0);
        assert_eq!(plan(0.99, &line, Reach::default(), 1), Plan::PLAIN);
        assert_ne!(plan(0.3, &line, Reach::default(), 1), Plan::PLAIN);
    }

    #[test]
    fn what_is_pinned_is_kept() {
        let line = pace(&[5000; 3], 30_000, 0.3);
        let pinned = |width, depth| Reach { width, depth, ..Reach::default() };
        assert_eq!(plan(0.99, &line, pinned(Some(7), Some(5)), 9), Plan { width: 7, depth: 5 });
        assert_eq!(plan(0.1, &line, pinned(Some(4), None), 1).width, 4);
        assert_eq!(plan(0.1, &line, pinned(None, Some(1)), 1).depth, 1);
        let recurrent = Reach { max_width: 3, max_depth: 1, ..Reach::default() };
        let narrow = plan(0.01, &line, recurrent, 1);
        assert!(narrow.width <= 3 && narrow.depth == 1);
    }

    #[test]
    fn guessing_that_loses_pauses_for_longer_and_longer() {
        let line = pace(&[5000; 2], 20_000, 0.2);
        let outlook = Outlook::new([0.05; 64], true);
        let mut controller = Controller::new(Reach::default());
        let slow = plain(&line, 1);
        let twice = Duration::from_secs_f64(2.0 / slow.rate);
        for pause in [64, 128, 256] {
            (0..SPELL).for_each(|_| controller.observe(1, twice, true, slow));
            for _ in 0..pause {
                assert_eq!(controller.plan(&outlook, &line, 1), Plan::PLAIN);
                controller.observe(1, twice, false, slow);
            }
            assert_ne!(controller.plan(&outlook, &line, 1), Plan::PLAIN, "after {pause} tokens");
        }
    }

    #[test]
    fn what_is_wasted_on_a_full_line_is_bounded_by_what_was_seen() {
        let line = pace(&[5000; 4], 40_000, 0.0);
        let outlook = Outlook::new([0.02; 64], true);
        let mut controller = Controller::new(Reach::default());
        assert_ne!(controller.plan(&outlook, &line, 4), Plan::PLAIN);
        controller.settled(30, 30, &line, 3);
        assert_ne!(controller.plan(&outlook, &line, 4), Plan::PLAIN, "on an idle line waste is free");
        controller.settled(30, 30, &line, 4);
        assert_eq!(controller.plan(&outlook, &line, 4), Plan::PLAIN);
        assert_ne!(controller.plan(&outlook, &line, 3), Plan::PLAIN);
        controller.settled(200, 0, &line, 4);
        assert_ne!(controller.plan(&outlook, &line, 4), Plan::PLAIN, "and it is tried again");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn the_choice_is_never_worse_than_plain_and_nearly_the_best_by_the_model(
            compute in prop::collection::vec(100_u32..30_000, 1..9),
            link_us in 0_u32..400_000,
            per_row in 0.0..1.2_f64,
            hazards in prop::collection::vec(0.002..0.998_f64, 0..40),
            goes_on in any::<bool>(),
            n_live in 1_u32..12,
        ) {
            let pace = pace(&compute, link_us, per_row);
            let outlook = Outlook::new(hazards, goes_on);
            let chosen = Controller::new(Reach::default()).plan(&outlook, &pace, n_live);
            let is_full = n_live as usize >= compute.len().max(2);
            let rate = |plan: Plan| guessing(&outlook, &pace, (plan.width, plan.depth), n_live);
            let found = if chosen == Plan::PLAIN { plain(&pace, n_live) } else { rate(chosen) };
            prop_assert!(found.rate >= plain(&pace, n_live).rate * (1.0 - 1e-9));
            prop_assert!(!is_full || found.waste <= MAX_WASTE);
            let needed = if is_full { 1.05 + CROWD_ADVANTAGE * f64::from(n_live) / compute.len() as f64 } else { 1.03 };
            for width in WIDTHS {
                for depth in DEPTHS_TRIED {
                    let other = rate(Plan { width, depth });
                    let allowed = !is_full || other.waste <= MAX_WASTE;
                    prop_assert!(!allowed || found.rate * needed >= other.rate, "{chosen:?} {width} {depth}");
                }
            }
        }
    }
}
