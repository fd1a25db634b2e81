//! One piece of work on its way round the line, divided into links and stages.
//!
//! How long a stage took is measured there, and travels back with the report; how long the whole way took is measured here.
//! Clocks of different machines are never compared: what the stages do not account for is the links' together. What of it
//! is which link's is an estimate, in proportion to the round trips that heartbeats measure.

use std::time::Duration;

use protocol::StageTiming;
use scheduler::StageSeen;

/// Where the work was for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    /// On the link to a stage; to the front if it is one past the last.
    Link(usize),
    /// In a stage: waiting, then computed.
    Stage(usize, StageTiming),
}

/// The legs in order, each with the time it took. Together they take `took`, unless the line has no links.
pub(super) fn legs(took: Duration, timings: &[StageTiming], stages: &[StageSeen]) -> Vec<(Leg, Duration)> {
    let mut left = took;
    // A stage says what it likes: nobody is longer in a part than in the whole.
    let inside: Vec<Duration> = timings
        .iter()
        .map(|timing| {
            let own = micros(timing.queue_us).saturating_add(micros(timing.compute_us)).min(left);
            left -= own;
            own
        })
        .collect();
    let weights = link_weights(timings.len(), stages);
    let all: f64 = weights.iter().sum();
    let mut legs = Vec::with_capacity(2 * timings.len() + 1);
    for (at, weight) in weights.iter().enumerate() {
        if *weight > 0.0 {
            legs.push((Leg::Link(at), left.mul_f64(weight / all)));
        }
        if let Some(timing) = timings.get(at) {
            legs.push((Leg::Stage(at, *timing), inside[at]));
        }
    }
    legs
}

/// How much of the links' time is each link's: into every stage, and back to the front. 0 where there is none, since both
/// ends are one process.
///
/// The front measures round trips between itself and each stage only. Between two others it takes the longer one: it is
/// right where the front sits beside one of them or at one end of the line, and never short of the true one by much.
fn link_weights(n_stages: usize, stages: &[StageSeen]) -> Vec<f64> {
    let is_local = |at: Option<usize>| at.is_none_or(|at| stages.get(at).is_some_and(|stage| stage.is_local));
    let rtt = |at: Option<usize>| at.and_then(|at| stages.get(at)).and_then(|stage| stage.rtt);
    // The front stands before the first stage and behind the last one.
    let ends = |link: usize| (link.checked_sub(1), Some(link).filter(|&to| to < n_stages));
    let links = (0..=n_stages).map(ends);
    let measured = |from, to| rtt(from).max(rtt(to)).filter(|rtt| !rtt.is_zero());
    let is_link = |from, to| !(is_local(from) && is_local(to));
    let knows_all = links.clone().all(|(from, to)| !is_link(from, to) || measured(from, to).is_some());
    let weight = |(from, to)| match measured(from, to) {
        _ if !is_link(from, to) => 0.0,
        Some(rtt) if knows_all => rtt.as_secs_f64(),
        _ => 1.0,
    };
    links.map(weight).collect()
}

fn micros(n: u32) -> Duration {
    Duration::from_micros(u64::from(n))
}

#[cfg(test)]
mod tests {
    use protocol::LayerRange;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Stage 0 in the front's process, the others this far away.
    fn line(rtts: &[Option<u64>]) -> Vec<StageSeen> {
        let stage = |rtt: Option<u64>, is_local| StageSeen {
            address: None,
            layers: LayerRange { start: 0, end: 1 },
            is_local,
            rtt: rtt.map(ms),
        };
        let others = rtts.iter().map(|&rtt| stage(rtt, false));
        std::iter::once(stage(None, true)).chain(others).collect()
    }

    fn timing(queue_ms: u32, compute_ms: u32) -> StageTiming {
        StageTiming { queue_us: queue_ms * 1000, compute_us: compute_ms * 1000, batch_rows: 1 }
    }

    fn told(took: u64, timings: &[StageTiming], stages: &[StageSeen]) -> Vec<(String, u64)> {
        let legs = legs(ms(took), timings, stages);
        let name = |leg| match leg {
            Leg::Link(to) => format!("link {to}"),
            Leg::Stage(at, _) => format!("stage {at}"),
        };
        legs.into_iter().map(|(leg, time)| (name(leg), time.as_millis() as u64)).collect()
    }

    #[test]
    fn what_the_stages_do_not_account_for_is_the_links() {
        let timings = [timing(0, 10), timing(5, 15), timing(0, 10)];
        let even = told(100, &timings, &line(&[None, Some(20)]));
        let expected = [
            ("stage 0", 10),
            ("link 1", 20),
            ("stage 1", 20),
            ("link 2", 20),
            ("stage 2", 10),
            ("link 3", 20),
        ];
        assert_eq!(even, expected.map(|(name, time)| (name.to_owned(), time)));
    }

    #[test]
    fn links_share_by_their_round_trips() {
        let timings = [timing(0, 10); 3];
        let near_then_far = told(80, &timings, &line(&[Some(2), Some(4)]));
        let links: Vec<u64> = near_then_far
            .iter()
            .filter(|(name, _)| name.starts_with("link"))
            .map(|(_, time)| *time)
            .collect();
        assert_eq!(links, [10, 20, 20]);
    }

    #[test]
    fn one_process_has_no_links() {
        assert_eq!(told(30, &[timing(1, 20)], &line(&[])), [("stage 0".to_owned(), 21)]);
    }

    #[test]
    fn a_remote_first_stage_has_a_link_from_the_front() {
        let mut stages = line(&[Some(10)]);
        stages.remove(0);
        let legs = told(30, &[timing(0, 10)], &stages);
        let expected = [("link 0", 10), ("stage 0", 10), ("link 1", 10)];
        assert_eq!(legs, expected.map(|(name, time)| (name.to_owned(), time)));
    }

    #[test]
    fn a_stage_that_claims_too_much_gets_what_there_is() {
        let timings = [timing(0, 10), timing(u32::MAX / 1000, 1), timing(0, 10)];
        let legs = told(50, &timings, &line(&[Some(1), Some(1)]));
        let sum: u64 = legs.iter().map(|(_, time)| time).sum();
        assert_eq!(sum, 50);
    }
}
