//! A tail that drafts, as one sequence meets it: drafts that are not worth their time are not asked for, and those that are
//! are.

use std::time::Duration;

use proptest::prelude::*;
use protocol::{Company, Position, SeqId, StageTiming, TailDraft, Token, Verdict};
use spec::{Line, Pace, Setup, Source, Sources, Speculate, Speculation, Start};

/// A line of two stages whose tail drafts, in virtual time, and the sequence on it. The text is 7, 8, 9, ... and round
/// again: nobody but the tail can guess it.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// A stage's call with one row, and what each row more adds, microseconds.
    stage_us: (u32, u32),
    /// All links together.
    links_us: u32,
    /// A token of a draft.
    draft_us: u32,
    /// Every token of a draft is right but each of so many drafts' first one; 1 for drafts that are always wrong.
    wrong_in: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    tokens: u32,
    seconds: f64,
    /// Drafts made, and those among the last half of the tokens.
    drafts: u32,
    late_drafts: u32,
    /// Tokens that were out before the last of the early drafts.
    last_draft_at: u32,
}

const VOCAB: i32 = 5000;

fn text(position: usize) -> Token {
    Token((position as i32 * 2741) % VOCAB)
}

impl Case {
    fn timing(self, rows: u32) -> StageTiming {
        let (one, more) = self.stage_us;
        StageTiming { queue_us: 0, compute_us: one + more * (rows - 1), batch_rows: rows }
    }

    fn plain_seconds(self) -> f64 {
        f64::from(self.links_us + 2 * self.stage_us.0) / 1e6
    }

    /// `n` tokens on the line. It knows its stages' times, as one that has come up does.
    fn run(self, n: u32) -> Found {
        self.run_on(Pace::new(2), n)
    }

    /// The same on one that has measured something before.
    fn run_on(self, mut pace: Pace, n: u32) -> Found {
        for rows in [1, 2, 3, 4, 6, 8, 12, 16] {
            let timing = self.timing(rows);
            let took = u64::from(self.links_us + 2 * timing.compute_us);
            pace.observe(&[timing; 2], Duration::from_micros(took), false);
        }
        let prompt: Vec<Token> = (0..4).map(text).collect();
        let limit = Position(4 + n);
        let max_in_flight = Speculation::max_in_flight();
        let setup = Setup { seq: SeqId(1), n_vocab: VOCAB as u32, limit, max_in_flight };
        let start = Start { setup, prompt, prediction: None, own: Vec::new() };
        let speculate = Speculate { sources: Sources::List(vec![Source::Mtp]), ..Speculate::off() };
        let mut speculation = Speculation::new(start, &speculate);
        let mut found = Found::default();
        let mut now = Duration::ZERO;
        let mut sent = std::collections::VecDeque::new();
        while speculation.ended().is_none() {
            while let Some(window) = speculation.next_window(Line { pace: &pace, n_live: 1 }, now) {
                sent.push_back((window, now));
            }
            let Some((window, at)) = sent.pop_front() else { panic!("nothing is under way: {found:?}") };
            if window.epoch < speculation.epoch() {
                continue;
            }
            let base = window.base.0 as usize;
            let n_right =
                (1..window.tokens.len()).take_while(|&i| window.tokens[i] == text(base + i)).count();
            let tokens: Vec<Token> = (1..=n_right + 1).map(|i| text(base + i)).collect();
            let timings = vec![self.timing(window.tokens.len() as u32); 2];
            let took = self.links_us + timings.iter().map(|timing| timing.compute_us).sum::<u32>();
            now = now.max(at + Duration::from_micros(took.into()));
            let end = base + tokens.len();
            let ended = (end + 1 >= limit.0 as usize).then_some(protocol::End::Limit);
            let want =
                window.want_draft.filter(|want| ended.is_none() && want.unless != tokens.last().copied());
            let verdict = Verdict {
                seq: SeqId(1),
                epoch: window.epoch,
                window: window.window,
                base: window.base,
                tokens,
                ended,
                logprobs: Vec::new(),
                mu: None,
                timings,
                company: Company::Alone,
                drafts: want.is_some(),
            };
            let answered = speculation
                .handle_verdict(&verdict, Line { pace: &pace, n_live: 1 }, now)
                .expect("an honest verdict");
            pace.observe(&verdict.timings, answered.under_way, answered.in_company);
            found.tokens = end as u32 - 3;
            let Some(want) = want else { continue };
            found.drafts += 1;
            found.late_drafts += u32::from(found.tokens > n / 2);
            found.last_draft_at = if found.tokens <= n / 2 { found.tokens } else { found.last_draft_at };
            let n_tokens = usize::from(want.tokens);
            let off = i32::from(found.drafts.is_multiple_of(self.wrong_in));
            let ids = (1..=n_tokens).map(|i| Token((text(end + i).0 + off) % VOCAB)).collect();
            let compute_us = self.draft_us * n_tokens as u32;
            now += Duration::from_micros(compute_us.into());
            let timing = StageTiming { queue_us: 0, compute_us, batch_rows: 2 * n_tokens as u32 };
            pace.observe_draft(n_tokens, &timing, speculation.has_waited(now));
            let draft = TailDraft {
                seq: SeqId(1),
                base: Position(end as u32 + 1),
                tokens: ids,
                probabilities: vec![0.9; n_tokens],
                timing,
                company: Company::Alone,
            };
            assert_eq!(speculation.handle_tail_draft(draft, Line { pace: &pace, n_live: 1 }), Ok(true));
        }
        found.seconds = now.as_secs_f64();
        found
    }

    /// How many times faster than plain decoding.
    fn speed_up(self, n: u32) -> f64 {
        let found = self.run(n);
        f64::from(found.tokens) * self.plain_seconds() / found.seconds
    }
}

/// A stage of 300 microseconds, no links; a token of a draft takes half as long.
const FAST: Case = Case { stage_us: (300, 40), links_us: 100, draft_us: 150, wrong_in: u32::MAX };
const SLOW: Case = Case { links_us: 40_000, ..FAST };

#[test]
fn drafts_that_are_always_wrong_are_given_up_within_a_hundred_tokens() {
    let always_wrong = Case { wrong_in: 1, ..FAST };
    let found = always_wrong.run(1000);
    assert!(found.drafts < 40 && found.late_drafts <= 3, "{found:?}");
    let speed_up = always_wrong.speed_up(1000);
    assert!(speed_up >= 0.97, "{speed_up}");
}

#[test]
fn right_drafts_that_take_longer_than_they_save_are_given_up_on_a_fast_line_and_kept_on_a_slow_one() {
    let dear = Case { draft_us: 900, ..FAST };
    let found = dear.run(1000);
    assert!(found.drafts < 12 && found.late_drafts <= 2, "{found:?}");
    assert!(dear.speed_up(1000) >= 0.98, "{}", dear.speed_up(1000));
    let worth_it = Case { draft_us: 900, ..SLOW }.speed_up(1000);
    assert!(worth_it > 3.5, "{worth_it}");
}

#[test]
fn a_line_that_thought_single_rows_dear_learns_what_they_cost() {
    let dear = Case { draft_us: 900, ..FAST };
    let mut pace = Pace::new(2);
    let slow = StageTiming { queue_us: 0, compute_us: 6000, batch_rows: 1 };
    (0..40).for_each(|_| pace.observe(&[slow; 2], Duration::from_micros(20_000), false));
    let found = dear.run_on(pace, 4000);
    assert!(found.late_drafts <= 4, "{found:?}");
}

#[test]
fn good_drafts_are_used_to_the_end_on_a_slow_line_and_on_a_fast_one_where_they_are_cheap() {
    for (case, least) in [(SLOW, 4.5), (Case { wrong_in: 3, ..SLOW }, 2.5), (FAST, 1.2)] {
        let found = case.run(1000);
        let speed_up = case.speed_up(1000);
        assert!(speed_up > least && found.late_drafts > 50, "{speed_up} of {case:?}: {found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// There is no pause to thank for it: whoever had to lose first would lose more on 400 tokens.
    #[test]
    fn whatever_drafts_cost_and_are_worth_nobody_is_slower_for_them(
        one in 50_u32..20_000,
        more in 0.0..1.0_f64,
        links_us in 0_u32..80_000,
        draft in 0.05..4.0_f64,
        wrong_in in prop_oneof![Just(1_u32), 2..6_u32, Just(u32::MAX)],
    ) {
        let draft_us = (f64::from(one) * draft) as u32 + 1;
        let case = Case { stage_us: (one, (f64::from(one) * more) as u32), links_us, draft_us, wrong_in };
        let speed_up = case.speed_up(400);
        prop_assert!(speed_up >= 0.94, "{speed_up} of {case:?}");
    }
}
