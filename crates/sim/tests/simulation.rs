//! Whatever happens on the line, an answer is what one token after another would have given; and whatever breaks,
//! the checkers see it.

use sim::{Driver, Outcome, Plan, Sabotage, Summary, Violation, run};

/// Runs a plan that must hold.
fn hold(plan: &Plan) -> Summary {
    let Outcome { violations, summary } = run(plan);
    assert!(
        violations.is_empty(),
        "{} violations, the first: {}\nagain: {plan}",
        violations.len(),
        violations[0]
    );
    summary
}

/// So many seeds: those that `PACELINE_SEED` stands for, which differ from commit to commit.
fn seeds(n: u64) -> std::ops::Range<u64> {
    #[expect(clippy::disallowed_methods, reason = "tests are told by their environment what to draw")]
    let chosen = std::env::var("PACELINE_SEED").ok().and_then(|seed| seed.parse::<u32>().ok()).unwrap_or(1);
    let first = u64::from(chosen) << 16;
    first..first + n
}

fn hold_all(plans: impl IntoIterator<Item = Plan>) -> Summary {
    plans.into_iter().fold(Summary::default(), |mut sum, plan| {
        sum.add(&hold(&plan));
        sum
    })
}

#[test]
fn the_scheduler_answers_like_sequential_decoding() {
    let plan = |seed| Plan { seed, driver: Some(Driver::Scheduler), ..Plan::default() };
    let sum = hold_all(seeds(3000).map(plan));
    assert!(sum.tokens > 20_000 && sum.shared_calls > 500 && sum.outages > 200, "the runs are idle: {sum}");
    assert!(sum.cancelled_calls > 100, "no call is stopped: {sum}");
    assert!(sum.stale_windows > 2000 && sum.dropped_windows > 2000, "nothing runs ahead: {sum}");
    assert!(sum.accepted > 5000 && sum.refused_proposals > 500, "the guesses are one-sided: {sum}");
    assert!(sum.drafted > 5000, "no tail drafts: {sum}");
    assert!(sum.prompt_parts > 1000, "nothing is asked of prompts: {sum}");
    assert!(sum.muted > 40, "nothing is lost: {sum}");
    assert!(sum.deaths > 250 && sum.late > 500, "nobody dies, or nobody comes afterwards: {sum}");
    assert!(sum.preempted > 20 && sum.resumed > 100, "nothing is interrupted: {sum}");
    assert!(sum.reshapes > 50, "the layers are always shared out alike: {sum}");
    assert!(sum.reused_tokens > 800 && sum.lost_prefixes > 2, "no prefix is shared: {sum}");
    assert!(
        sum.shared_tokens > 1000 && sum.restored_tokens > 300,
        "nothing is waited for or restored: {sum}"
    );
    breaks_everywhere(&sum);
    assert!(sum.deaths_restoring > 10 && sum.slow_stores > 200, "no store is waited for: {sum}");
    assert!(sum.full_stores > 50, "no disk is full: {sum}");
    assert!(sum.came_back > 50, "no line comes back with what it held: {sum}");
    assert!(
        sum.came_back_in_part > 50 && sum.partly_reused_tokens > 100,
        "no line comes back with a part of what it held: {sum}"
    );
    assert!(sum.repeats > 100 && sum.disorders > 50, "nothing comes twice in its own line: {sum}");
}

/// Whether each kind of fault has happened so often that it would be seen if it did harm.
fn breaks_everywhere(sum: &Summary) {
    let dies = sum.deaths_forming > 60 && sum.deaths_prefilling > 60 && sum.deaths_closing > 15;
    assert!(dies, "nobody dies at some instructions: {sum}");
    assert!(sum.naps > 60 && sum.freezes > 60 && sum.late_wakes > 20, "nobody freezes: {sum}");
    assert!(sum.abandoned > 100 && sum.stand_ins > 100, "no line is hard to form: {sum}");
    assert!(sum.late_frames > 1000 && sum.late_reports > 1000, "nothing of an old line is heard: {sum}");
    assert!(sum.echoes > 1000, "nothing comes twice: {sum}");
    assert!(sum.cuts > 80 && sum.cut_messages > 80, "no link breaks: {sum}");
    assert!(sum.stalled > 300 && sum.jumps > 150, "no link stalls, or no clock jumps: {sum}");
}

#[test]
fn any_guesses_give_the_same_answer() {
    let plan = |seed| Plan { seed, driver: Some(Driver::Guesses), ..Plan::default() };
    let sum = hold_all(seeds(800).map(plan));
    breaks_everywhere(&sum);
    assert!(sum.stale_windows > 5000 && sum.dropped_windows > 5000, "nothing runs ahead: {sum}");
    assert!(sum.accepted > 5000 && sum.refused_proposals > 500, "the guesses are one-sided: {sum}");
    assert!(sum.prompt_parts > 1000, "nothing is asked of prompts: {sum}");
}

#[test]
fn every_width_and_depth_gives_the_same_answer() {
    for driver in [Driver::Guesses, Driver::Scheduler] {
        let plan = |width, depth| Plan {
            seed: seeds(0).start + u64::from(1000 + 16 * width + depth),
            driver: Some(driver),
            width: Some(width),
            depth: Some(depth),
            ..Plan::default()
        };
        hold_all((1..=16).flat_map(|width| (1..=16).map(move |depth| plan(width, depth))));
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in seeds(20) {
        let plan = Plan { seed, ..Plan::default() };
        assert_eq!(run(&plan), run(&plan), "seed {seed}");
    }
    assert_ne!(hold(&Plan::default()).trace, hold(&Plan { seed: 1, ..Plan::default() }).trace);
}

/// Runs seeds with something broken; the outcomes of those in which it did harm.
fn harmed(sabotage: Sabotage, driver: Driver) -> Vec<(Plan, Outcome)> {
    // Lines that are over are there only where some are lost.
    let calm = !matches!(sabotage, Sabotage::LetFramesIn | Sabotage::LetReportsIn);
    let plan = |seed| Plan { seed, driver: Some(driver), calm, sabotage: Some(sabotage), ..Plan::default() };
    let runs = seeds(200).map(plan).map(|plan| (plan, run(&plan)));
    let harmed: Vec<_> = runs.filter(|(_, outcome)| outcome.summary.sabotaged > 0).collect();
    assert!(harmed.len() >= 50, "{sabotage:?} did harm in {} of 200 runs only", harmed.len());
    harmed
}

/// Whether the answers or the stages themselves show it, not only the checker that looks at frames.
fn shows_in_the_outcome(outcome: &Outcome) -> bool {
    outcome.violations.iter().any(|violation| !matches!(violation, Violation::Order { .. }))
}

#[test]
fn frames_of_one_sequence_in_the_wrong_order_are_seen() {
    for driver in [Driver::Scheduler, Driver::Guesses] {
        let harmed = harmed(Sabotage::Reorder, driver);
        for (plan, outcome) in &harmed {
            let is_order = |violation: &Violation| matches!(violation, Violation::Order { .. });
            assert!(outcome.violations.iter().any(is_order), "unseen: {plan}");
        }
        // Where both frames were stale anyway, nothing but their order is wrong.
        let n_shown = harmed.iter().filter(|(_, outcome)| shows_in_the_outcome(outcome)).count();
        assert!(
            n_shown * 2 > harmed.len(),
            "{driver:?}: {n_shown} of {} show it in the outcome",
            harmed.len()
        );
    }
}

#[test]
fn a_lost_frame_is_seen() {
    for driver in [Driver::Scheduler, Driver::Guesses] {
        // A sequence that begins again anyway, without its prefix or after an interruption, does not miss a frame.
        let is_needed = |(_, outcome): &(Plan, Outcome)| {
            outcome.summary.lost_prefixes == 0 && outcome.summary.preempted == 0
        };
        for (plan, outcome) in harmed(Sabotage::LeaveGap, driver).into_iter().filter(is_needed) {
            // Nothing else takes a line away here: its front had waited for an answer for too long.
            let is_given_up = outcome.summary.outages > 0;
            assert!(shows_in_the_outcome(&outcome) || is_given_up, "unseen: {plan}");
        }
    }
}

/// Links never do this; a stage that is mad, or a bug in a link, could.
#[test]
fn a_frame_that_comes_twice_changes_no_answer() {
    for driver in [Driver::Scheduler, Driver::Guesses] {
        for (plan, outcome) in harmed(Sabotage::Repeat, driver) {
            assert_eq!(wrong_answer(&outcome), None, "{plan}");
        }
    }
}

#[test]
fn drafts_that_a_tail_does_not_take_back_are_seen() {
    let harmed = harmed(Sabotage::KeepDrafts, Driver::Scheduler);
    let is_wrong_token = |violation: &Violation| matches!(violation, Violation::WrongToken { .. });
    let n_seen = harmed.iter().filter(|(_, outcome)| outcome.violations.iter().any(is_wrong_token)).count();
    // A sequence may end before its next token, or end in the right one by chance: the vocabulary is small.
    assert!(n_seen * 10 > harmed.len() * 8, "{n_seen} of {} seen", harmed.len());
}

#[test]
fn a_rewind_that_does_not_happen_is_seen() {
    for driver in [Driver::Scheduler, Driver::Guesses] {
        let harmed = harmed(Sabotage::DropRewind, driver);
        let is_wrong_token = |violation: &Violation| matches!(violation, Violation::WrongToken { .. });
        let n_seen =
            harmed.iter().filter(|(_, outcome)| outcome.violations.iter().any(is_wrong_token)).count();
        // The spoiled rows may all be stale, or end in the right token by chance: the vocabulary is small.
        assert!(n_seen * 10 > harmed.len() * 8, "{driver:?}: {n_seen} of {} seen", harmed.len());
    }
}

#[test]
fn work_of_a_line_that_is_over_is_seen_where_it_is_let_in() {
    for driver in [Driver::Scheduler, Driver::Guesses] {
        let harmed = harmed(Sabotage::LetFramesIn, driver);
        let is_unknown = |violation: &Violation| {
            matches!(violation, Violation::Order { .. } | Violation::StageFault { .. })
        };
        let n_seen = harmed.iter().filter(|(_, outcome)| outcome.violations.iter().any(is_unknown)).count();
        // Nothing is wrong with the end of a sequence that is not there, or a hint about it.
        assert!(n_seen * 10 > harmed.len() * 6, "{driver:?}: {n_seen} of {} seen", harmed.len());
        let n_shown = harmed.iter().filter(|(_, outcome)| shows_in_the_outcome(outcome)).count();
        assert!(n_shown * 2 > harmed.len(), "{driver:?}: {n_shown} of {} show it", harmed.len());
    }
}

/// The front drops them by their generation; and no sequence ever has the name of another one.
#[test]
fn reports_of_a_line_that_is_over_change_no_answer_even_where_they_are_heard() {
    for driver in [Driver::Scheduler, Driver::Guesses] {
        for (plan, outcome) in harmed(Sabotage::LetReportsIn, driver) {
            assert_eq!(wrong_answer(&outcome), None, "{plan}");
        }
    }
}

fn wrong_answer(outcome: &Outcome) -> Option<&Violation> {
    let is_wrong = |violation: &&Violation| {
        matches!(violation, Violation::WrongToken { .. } | Violation::WrongPrompt { .. })
    };
    outcome.violations.iter().find(is_wrong)
}
