//! Sources that cost something are left alone where they are useless, and tried again.

use forecast::{Agreement, Job, Workload, run};
use spec::{Sources, Speculate};

use crate::bench::{Shape, line};

const TOKENS: usize = 8192;

/// Tokens per second, and the share of tokens that were guessed, with such a source.
fn guessed(right: f64, then: Option<(usize, f64)>) -> (f64, f64) {
    let workload = Workload::agreeing(right, 1, TOKENS);
    let agreement = Some(Agreement { right, then, costs: true, seed: 1 });
    let workload = [Workload { agreement, ..workload }];
    let speculate = Speculate { sources: Sources::List(Vec::new()), ..Speculate::default() };
    let job = Job { workloads: &workload, clients: 1 };
    let forecast = run(&line(4, 8.0, Shape::Stairs, 10.0), job, &speculate);
    let accepted: u32 = forecast.timings.iter().map(|timings| timings.accepted).sum();
    (forecast.decode_rate, f64::from(accepted) / TOKENS as f64)
}

#[test]
fn a_source_that_is_always_wrong_takes_one_token_in_a_hundred() {
    let plain = 1.0 / line(4, 8.0, Shape::Stairs, 10.0).loop_time(1).as_secs_f64();
    let (rate, accepted) = guessed(0.0, None);
    assert!(accepted == 0.0 && rate >= 0.99 * plain, "{rate} instead of {plain}");
}

#[test]
fn a_source_that_was_given_up_is_used_again_when_the_text_suits_it() {
    let (_, accepted) = guessed(0.0, Some((TOKENS / 4, 0.9)));
    assert!(accepted > 0.3, "{accepted} of all tokens were guessed, three quarters could have been");
    let (_, accepted) = guessed(0.9, Some((TOKENS / 2, 0.0)));
    assert!(accepted < 0.5, "{accepted}");
}
