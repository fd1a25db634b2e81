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

fn hold_all(plans: impl IntoIterator<Item = Plan>) -> Summary {
    plans.into_iter().fold(Summary::default(), |mut sum, plan| {
        sum.add(&hold(&plan));
        sum
    })
}

#[test]
fn the_scheduler_answers_like_sequential_decoding() {
    let plan = |seed| Plan { seed, driver: Some(Driver::Scheduler), ..Plan::default() };
    let sum = hold_all((0..3000).map(plan));
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
}

#[test]
fn any_guesses_give_the_same_answer() {
    let plan = |seed| Plan { seed, driver: Some(Driver::Guesses), ..Plan::default() };
    let sum = hold_all((0..400).map(plan));
    assert!(sum.stale_windows > 5000 && sum.dropped_windows > 5000, "nothing runs ahead: {sum}");
    assert!(sum.accepted > 5000 && sum.refused_proposals > 500, "the guesses are one-sided: {sum}");
    assert!(sum.prompt_parts > 1000, "nothing is asked of prompts: {sum}");
}

#[test]
fn every_width_and_depth_gives_the_same_answer() {
    for driver in [Driver::Guesses, Driver::Scheduler] {
        let plan = |width, depth| Plan {
            seed: u64::from(1000 + 16 * width + depth),
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
    for seed in 0..20 {
        let plan = Plan { seed, ..Plan::default() };
        assert_eq!(run(&plan), run(&plan), "seed {seed}");
    }
    assert_ne!(hold(&Plan::default()).trace, hold(&Plan { seed: 1, ..Plan::default() }).trace);
}

/// Runs seeds with something broken; the outcomes of those in which it did harm.
fn harmed(sabotage: Sabotage, driver: Driver) -> Vec<(Plan, Outcome)> {
    let plan =
        |seed| Plan { seed, driver: Some(driver), calm: true, sabotage: Some(sabotage), ..Plan::default() };
    let runs = (0..200).map(plan).map(|plan| (plan, run(&plan)));
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
            let is_wrong = |violation: &&Violation| {
                matches!(violation, Violation::WrongToken { .. } | Violation::WrongPrompt { .. })
            };
            let wrong = outcome.violations.iter().find(is_wrong);
            assert_eq!(wrong, None, "{plan}");
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
