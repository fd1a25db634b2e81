//! Windows that one call computed stay together on their way through the front.

use protocol::{Company, End, Frame, Report, SeqId, Verdict, Work};
use scheduler::{Config, Output};

use crate::front::{Front, config, request, verdict};

/// A front with as many sequences, each with its first window on the way.
fn running(n: u16) -> Front {
    let mut front = Front::new(Config { n_slots: n, ..config() });
    for _ in 0..n {
        front.submit(request(1, None)).expect("a request that fits");
    }
    front.outputs();
    front
}

impl Front {
    /// The verdict on a sequence's window `window`, whose base has the same number.
    fn hear(&mut self, seq: u64, window: u32, company: Company, ended: Option<End>) {
        let verdict = Verdict { company, ..verdict(seq, window, window, 9, ended) };
        self.report(2, Report::Verdict(Box::new(verdict))).expect("a verdict on what was sent");
    }

    /// The windows that go out now.
    fn windows(&mut self) -> Vec<(u64, Company)> {
        let said = std::iter::from_fn(|| self.scheduler.poll_output());
        let window = |output| match output {
            Output::Work(Frame { work: Work::Window(window), company, .. }) => Some((window.seq.0, company)),
            _ => None,
        };
        said.filter_map(window).collect()
    }
}

#[test]
fn the_verdicts_of_a_group_are_answered_by_a_group() {
    let mut front = running(3);
    front.hear(0, 0, Company::Leads(2), None);
    assert_eq!(front.windows(), [], "two verdicts are still to come");
    front.hear(1, 0, Company::Follows, None);
    assert_eq!(front.windows(), []);
    front.hear(2, 0, Company::Follows, None);
    assert_eq!(front.windows(), [(0, Company::Leads(2)), (1, Company::Follows), (2, Company::Follows)]);
    front.hear(1, 1, Company::Alone, None);
    assert_eq!(front.windows(), [(1, Company::Alone)]);
}

#[test]
fn tokens_are_told_before_the_rest_of_the_group_is_here() {
    let mut front = running(2);
    front.hear(0, 0, Company::Leads(1), None);
    assert_eq!(front.outputs(), ["r0 tokens [9]"]);
}

#[test]
fn a_group_is_complete_in_whatever_order_it_comes() {
    let mut front = running(3);
    front.hear(1, 0, Company::Follows, None);
    assert_eq!(front.windows(), [(1, Company::Alone)], "nobody knows of the others yet");
    front.hear(0, 0, Company::Leads(2), None);
    assert_eq!(front.windows(), []);
    front.hear(2, 0, Company::Follows, None);
    assert_eq!(front.windows(), [(0, Company::Leads(1)), (2, Company::Follows)]);
}

#[test]
fn whoever_ends_meanwhile_is_not_waited_for() {
    let mut front = running(3);
    let third = front.scheduler.sequences().last().unwrap().request;
    front.hear(0, 0, Company::Leads(2), None);
    front.hear(1, 0, Company::Follows, Some(End::EndOfGeneration));
    front.cancel(third);
    // Its verdict was on its way: it counts and is dropped.
    front.hear(2, 0, Company::Follows, None);
    assert_eq!(front.windows(), [(0, Company::Alone)]);
}

#[test]
fn a_lost_line_takes_the_group_with_it() {
    let mut front = running(2);
    front.hear(0, 0, Company::Leads(1), None);
    front.scheduler.line_lost("pulled out", front.now);
    front.scheduler.line_up(front.now);
    front.submit(request(1, None)).expect("a request that fits");
    let [seq] = front.scheduler.sequences().map(|sequence| sequence.seq).collect::<Vec<_>>()[..] else {
        panic!("one sequence runs")
    };
    assert_eq!(front.windows(), [(seq.0, Company::Alone)]);
    front.hear(seq.0, 0, Company::Alone, None);
    assert_eq!(front.windows(), [(seq.0, Company::Alone)]);
    assert!(seq > SeqId(1));
}

#[test]
fn the_first_stage_hears_how_many_to_take_together() {
    let mut front = running(3);
    front.hear(0, 0, Company::Alone, None);
    let said = front.outputs();
    assert!(said.contains(&"1 together".to_owned()), "three stages, three sequences: {said:?}");
    front.hear(1, 0, Company::Alone, None);
    assert!(!front.outputs().iter().any(|said| said.ends_with("together")), "said once");
}
