//! Requests that are taken off the line go on where they stopped.

use std::time::Duration;

use protocol::{
    End, Fault, FaultKind, Grammar, GrammarKind, Mirostat, Position, Report, SamplerParams, SeqId,
    StageIndex, Token, Work,
};
use scheduler::{Config, Output, Refusal, ReportFault, Request};

use crate::front::{Front, config, request, verdict};

const PATIENCE: Duration = Duration::from_secs(5);

fn patient() -> Front {
    Front::new(Config {
        n_slots: 1,
        queue_limit: 4,
        replay_timeout: PATIENCE,
        prefix_tokens: 100,
        ..config()
    })
}

/// A front whose only request has got two tokens after a prompt of three.
fn talking(request: Request) -> Front {
    let mut front = patient();
    front.submit(request).expect("a request that fits");
    front.progress(0, 2).expect("what was sent");
    front.verdict(0, 0, 2, 50, None).expect("what was sent");
    front.verdict(0, 1, 3, 51, None).expect("what was sent");
    front.outputs();
    front
}

#[test]
fn on_the_next_line_a_request_goes_on_from_its_last_token() {
    let mut front = talking(request(3, Some(4)));
    front.scheduler.line_lost("stage 2 is gone", front.now);
    assert!(front.outputs().is_empty(), "its caller hears nothing");
    front.pass(4000);
    front.scheduler.line_up(front.now);
    assert_eq!(
        front.outputs(),
        ["s1 open, limit 7", "s1 chunk at 0 [1, 2, 3, 50]", "s1 window 0 at 4 [51]"],
        "what was said is the prompt now, and the limit is the same"
    );
    front.progress(1, 4).expect("what was sent");
    front.verdict(1, 0, 4, 52, None).expect("what was sent");
    front.verdict(1, 1, 5, 53, Some(End::Limit)).expect("what was sent");
    let said = front.outputs();
    assert_eq!(said[1..], ["r0 tokens [52]", "r0 tokens [53]", "s1 close", "r0 done: Length"]);
    let stats = front.scheduler.stats();
    assert_eq!((stats.resumed, stats.finished, stats.failed), (1, 1, 0));
}

/// Who speaks of what it was not sent has lost something, and the line with it.
#[test]
fn frames_that_come_twice_or_not_at_all_cost_a_line_and_no_request_unless_it_happens_to_it_again() {
    let at = Position(3);
    let kinds = [
        FaultKind::Diverged { base: at, token: Token(1), expected: at, expected_token: Token(2) },
        FaultKind::Gap { base: at, next: Position(2) },
        FaultKind::Rewind { base: Position(2), oldest: at },
        FaultKind::UnknownSequence,
        FaultKind::AlreadyOpen,
    ];
    for kind in kinds {
        let mut front = talking(request(3, Some(4)));
        let fault = |seq| Report::Fault(Fault { seq: Some(SeqId(seq)), kind: kind.clone() });
        let disorder = ReportFault::Disorder { seq: SeqId(0), from: StageIndex(1), reason: kind.to_string() };
        assert_eq!(front.report(1, fault(0)), Err(disorder));
        assert!(front.outputs().is_empty(), "its caller hears nothing");
        front.scheduler.line_lost("frames came twice", front.now);
        front.scheduler.line_up(front.now);
        assert_eq!(front.outputs()[0], "s1 open, limit 7");
        front.report(1, fault(1)).expect("what a request does again is its own fault");
        let failed = format!("r0 failed: internal error: stage 1: {kind}");
        assert_eq!(front.outputs(), ["s1 drop".to_owned(), "s1 close".into(), failed]);
    }
}

#[test]
fn on_a_line_that_comes_to_rest_what_runs_is_finished_and_what_is_new_waits() {
    let mut front = talking(request(3, Some(3)));
    assert!(front.scheduler.hold(true, front.now) && !front.scheduler.hold(true, front.now));
    front.submit(Request { priority: -1, ..request(2, Some(4)) }).expect("the queue has room");
    assert!(front.scheduler.probe(Token(0), front.now).is_err());
    assert!(front.outputs().is_empty(), "not even who is urgent");
    front.verdict(0, 2, 4, 52, Some(End::Limit)).expect("what was sent");
    assert_eq!(front.outputs()[0], "r0 tokens [52]");
    front.closed(0).expect("what was sent");
    assert!(front.outputs().is_empty() && front.scheduler.sequences().next().is_none());
    // Nobody was interrupted when the line is lost, and on the next one all goes on.
    front.scheduler.line_lost("stage 1 has left", front.now);
    assert!(front.scheduler.hold(false, front.now));
    front.scheduler.line_up(front.now);
    assert!(front.outputs().iter().any(|line| line.starts_with("s1 open")));
    assert_eq!(front.scheduler.stats().resumed, 0);
}

#[test]
fn nobody_waits_for_a_line_longer_than_was_said() {
    let mut front = talking(request(3, None));
    front.scheduler.line_lost("stage 2 is gone", front.now);
    assert_eq!(front.scheduler.next_deadline(), Some(PATIENCE));
    front.pass(5000);
    front.scheduler.handle_timeout(front.now);
    assert_eq!(front.outputs(), ["r0 failed: the line was lost: stage 2 is gone"]);
    front.scheduler.line_up(front.now);
    assert!(front.outputs().is_empty());
}

#[test]
fn while_a_lost_line_is_waited_for_new_requests_wait_too_and_come_after_those_that_ran() {
    let mut front = Front::new(Config {
        n_slots: 2,
        queue_limit: 2,
        queue_timeout: Duration::from_secs(60),
        replay_timeout: PATIENCE,
        ..config()
    });
    front.submit(request(3, Some(4))).expect("it fits");
    front.outputs();
    front.scheduler.line_lost("stage 2 is gone", front.now);
    assert!(front.scheduler.takes(front.now) && front.scheduler.probe(Token(0), front.now).is_err());
    front.pass(1000);
    front.submit(request(2, Some(4))).expect("a line is awaited");
    front.submit(request(2, Some(4))).expect("two may wait");
    let full = front.submit(request(2, None));
    assert_eq!(full, Err(Refusal::QueueFull { limit: 2 }), "slots of a lost line are no places");
    assert!(front.outputs().is_empty());
    front.pass(3000);
    front.scheduler.line_up(front.now);
    let begun: Vec<_> = front
        .outputs()
        .into_iter()
        .filter(|line| line.contains("started") || line.contains("open"))
        .collect();
    assert_eq!(begun, ["s1 open, limit 7", "r1 started after 3s", "s2 open, limit 6"]);
    assert_eq!(front.scheduler.next_deadline(), Some(Duration::from_secs(61)), "the third waits for a place");
}

#[test]
fn who_came_while_a_line_was_awaited_in_vain_hears_why_it_is_gone_and_later_ones_are_refused() {
    let mut front = talking(request(3, None));
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.pass(4999);
    front.submit(request(2, None)).expect("a line is awaited");
    front.pass(1);
    front.scheduler.handle_timeout(front.now);
    let why = "failed: the line was lost: stage 2 is gone";
    assert_eq!(front.outputs(), [format!("r0 {why}"), format!("r1 {why}")]);
    assert_eq!(front.submit(request(2, None)), Err(Refusal::NotReady));
    front.scheduler.line_lost("stage 1 is gone too", front.now);
    assert_eq!(front.submit(request(2, None)), Err(Refusal::NotReady), "that line never came up");
}

#[test]
fn who_waits_for_a_line_in_vain_hears_why_there_is_none_at_the_end() {
    let mut front = talking(request(3, None));
    front.scheduler.line_awaits("nobody waits for a line that is up");
    front.scheduler.line_lost("stage 0 lost its next one", front.now);
    front.submit(request(2, None)).expect("a line is awaited");
    front.scheduler.line_awaits("stage 1 is away");
    front.submit(request(2, None)).expect("a line is awaited");
    front.pass(5000);
    front.scheduler.handle_timeout(front.now);
    let told = ["r0", "r1", "r2"].map(|who| format!("{who} failed: the line was lost: stage 1 is away"));
    assert_eq!(front.outputs(), told);
}

#[test]
fn a_request_that_waits_for_a_line_can_be_cancelled() {
    let mut front = talking(request(3, None));
    let id = front.scheduler.sequences().next().expect("it runs").request;
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.cancel(id);
    assert_eq!(front.outputs(), ["r0 done: Cancelled"]);
    assert_eq!(front.scheduler.stats().queued, 0);
}

#[test]
fn the_figures_are_those_of_the_whole_request() {
    let mut front = talking(request(3, Some(3)));
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.scheduler.line_up(front.now);
    front.progress(1, 4).expect("what was sent");
    front.verdict(1, 0, 4, 52, Some(End::Limit)).expect("what was sent");
    let said = std::iter::from_fn(|| front.scheduler.poll_output());
    let done = said.filter_map(|output| match output {
        Output::Event(_, scheduler::Event::Done { timings, .. }) => Some(timings),
        _ => None,
    });
    let [timings] = &done.collect::<Vec<_>>()[..] else { panic!("it ended once") };
    assert_eq!((timings.prompt_tokens, timings.generated_tokens), (3, 3));
    assert_eq!((timings.windows, timings.live_windows), (4, 3), "one was on its way when the line was lost");
}

#[test]
fn mirostat_and_grammar_go_on_from_their_last_states() {
    let mirostat = Some(Mirostat { version: 2, tau: 5.0, eta: 0.1, mu: 10.0 });
    let grammar = Some(Grammar::new(GrammarKind::Regex, "[0-9]+"));
    let sampler = SamplerParams { mirostat, grammar, ..SamplerParams::default() };
    let mut front = talking(Request { sampler, ..request(3, None) });
    let verdict = protocol::Verdict { mu: Some(7.5), ..verdict(0, 2, 4, 52, None) };
    front.report(2, Report::Verdict(Box::new(verdict))).expect("what was sent");
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.scheduler.line_up(front.now);
    let opened = std::iter::from_fn(|| front.scheduler.poll_output()).find_map(|output| match output {
        Output::Work(frame) => match frame.work {
            Work::Open(open) => Some(open.sampler),
            _ => None,
        },
        _ => None,
    });
    let SamplerParams { mirostat, grammar, .. } = opened.expect("it is opened anew");
    assert_eq!(mirostat.map(|mirostat| mirostat.mu), Some(7.5));
    assert_eq!(grammar.map(|grammar| grammar.said), Some([50, 51, 52].map(Token).into()));
}

#[test]
fn the_more_urgent_has_the_less_urgent_make_room_and_it_goes_on_afterwards() {
    let mut front = talking(request(3, Some(4)));
    front.submit(Request { priority: -1, ..request(1, Some(1)) }).expect("a request that fits");
    assert_eq!(front.scheduler.stats().preempted, 1);
    assert_eq!(front.outputs(), ["s0 drop", "s0 close"]);
    front.submit(Request { priority: -1, ..request(1, Some(1)) }).expect("a request that fits");
    assert!(front.outputs().is_empty(), "only one slot is to be had");
    front.closed(0).expect("what was sent");
    assert_eq!(front.outputs(), ["r1 started after 0ns", "s1 open, limit 2", "s1 window 0 at 0 [1]"]);
    for seq in [1, 2] {
        front.verdict(seq, 0, 0, 9, Some(End::Limit)).expect("what was sent");
        front.closed(seq).expect("what was sent");
    }
    let said = front.outputs();
    assert_eq!(
        said[said.len() - 3..],
        ["s3 open, limit 7", "s3 chunk at 0 [1, 2, 3, 50]", "s3 window 0 at 4 [51]"],
        "{said:?}"
    );
}

#[test]
fn equals_do_not_interrupt_each_other() {
    let mut front = talking(request(3, None));
    for priority in [0, 1] {
        front.submit(Request { priority, ..request(1, None) }).expect("a request that fits");
    }
    assert!(front.outputs().is_empty());
    assert_eq!(front.scheduler.stats().preempted, 0);
}

#[test]
fn who_was_interrupted_waits_for_the_urgent_as_long_as_the_queue_has_patience_and_then_runs_to_its_end() {
    let urgent = || Request { priority: -1000, ..request(1, Some(1)) };
    let mut front = talking(request(3, Some(4)));
    front.submit(urgent()).expect("a request that fits");
    front.closed(0).expect("what was sent");
    // Somebody urgent waits whenever a slot becomes free.
    for seq in [1, 2, 3] {
        front.submit(urgent()).expect("a request that fits");
        front.pass(20_000);
        front.outputs();
        front.verdict(seq, 0, 0, 9, Some(End::Limit)).expect("what was sent");
        front.closed(seq).expect("what was sent");
    }
    let said = front.outputs();
    assert!(said.contains(&"s4 open, limit 7".into()), "the queue's patience is a minute: {said:?}");
    front.submit(Request { priority: -1000, ..request(1, None) }).expect("a request that fits");
    front.progress(4, 4).expect("what was sent");
    front.verdict(4, 0, 4, 52, None).expect("what was sent");
    front.verdict(4, 1, 5, 53, Some(End::Limit)).expect("what was sent");
    assert!(front.outputs().contains(&"r0 done: Length".into()));
    assert_eq!(front.scheduler.stats().preempted, 1, "it has made room once");
}

#[test]
fn who_has_made_room_once_never_does_again_and_a_lost_line_does_not_forget_that() {
    let mut front = talking(request(3, None));
    front.submit(Request { priority: -1, ..request(1, Some(1)) }).expect("a request that fits");
    front.closed(0).expect("what was sent");
    front.verdict(1, 0, 0, 9, Some(End::Limit)).expect("what was sent");
    front.closed(1).expect("what was sent");
    assert!(front.outputs().contains(&"s2 open, limit 20".into()));
    front.scheduler.line_lost("stage 2 is gone", front.now);
    front.scheduler.line_up(front.now);
    front.submit(Request { priority: -1, ..request(1, Some(1)) }).expect("a request that fits");
    assert_eq!((front.scheduler.stats().preempted, front.scheduler.stats().queued), (1, 1));
}
