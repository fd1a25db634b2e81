//! Drafts of the tail's own: which are sent on, which are no honest tail's, and what they ask of a prefix.

use protocol::{Company, End, Epoch, Position, Report, SeqId, StageTiming, TailDraft, Token, Verdict, Work};
use scheduler::{Config, Cuts, Output, ReportFault, Request};
use spec::{Reach, Source, Sources, Speculate};

use crate::front::{Front, request, verdict};

/// Three stages whose tail drafts three tokens at a time; windows of four rows, one at a time.
fn config() -> Config {
    let reach = Reach { width: Some(4), depth: Some(1), ..Reach::default() };
    let sources = Sources::List(vec![Source::Mtp]);
    let speculate = Speculate { sources, reach, draft_len: Some(3) };
    Config { speculate, chunk_rows: 100, prefix_tokens: 1000, ..Config::new(3, 2, 200, 100) }
}

/// A request whose first window is under way.
fn decoding() -> Front {
    let mut front = Front::new(config());
    front.submit(request(1, None)).expect("a request that fits");
    front.outputs();
    front
}

fn announced(window: u32, base: u32, token: i32) -> Report {
    Report::Verdict(Box::new(Verdict { drafts: true, ..verdict(0, window, base, token, None) }))
}

fn draft(base: u32, ids: &[i32]) -> Report {
    let tokens: Vec<Token> = ids.iter().copied().map(Token).collect();
    let probabilities = vec![0.9; ids.len()];
    let base = Position(base);
    Report::Draft(Box::new(TailDraft {
        seq: SeqId(0),
        base,
        tokens,
        probabilities,
        timing: StageTiming::default(),
        company: Company::Alone,
    }))
}

#[test]
fn what_was_announced_is_waited_for_and_leaves_with_the_anchor() {
    let mut front = decoding();
    front.report(2, announced(0, 0, 50)).unwrap();
    assert_eq!(front.outputs(), ["r0 tokens [50]"], "the draft is on its way");
    front.report(2, draft(2, &[51, 52, 53])).unwrap();
    assert_eq!(front.outputs(), ["s0 window 1 at 1 [50, 51, 52, 53]"]);
    // One that could not be made is no reason to wait.
    let contradicted = Verdict { drafts: true, ..verdict(0, 1, 1, 60, None) };
    front.report(2, Report::Verdict(Box::new(contradicted))).unwrap();
    assert_eq!(front.outputs(), ["r0 tokens [60]"]);
    front.report(2, draft(3, &[])).unwrap();
    assert_eq!(front.outputs(), ["s0 window 2 at 2 [60]"]);
    // Nor is a verdict that announces none.
    let plain = Verdict { epoch: Epoch(1), ..verdict(0, 2, 2, 61, None) };
    front.report(2, Report::Verdict(Box::new(plain))).unwrap();
    assert_eq!(front.outputs(), ["s0 window 3 at 3 [61]", "r0 tokens [61]"]);
}

#[test]
fn drafts_that_no_honest_tail_sends_fail_their_request() {
    type Forge = fn(&mut Front) -> Result<(), ReportFault>;
    let forgeries: [(Forge, &str); 7] = [
        (|front| front.report(2, draft(1, &[50])), "a draft at 1, which was not announced"),
        (
            |front| {
                front.verdict(0, 0, 0, 50, None)?;
                front.report(2, draft(2, &[51]))
            },
            "a draft at 2, which was not announced",
        ),
        (
            |front| {
                front.report(2, announced(0, 0, 50))?;
                front.report(2, draft(3, &[51]))
            },
            "a draft at 3, which was not announced",
        ),
        (
            |front| {
                front.report(2, announced(0, 0, 50))?;
                front.report(2, draft(2, &[51]))?;
                front.report(2, draft(2, &[51]))
            },
            "a draft at 2, which was not announced",
        ),
        (
            |front| {
                front.report(2, announced(0, 0, 50))?;
                front.report(2, draft(2, &[51, 52, 53, 54]))
            },
            "a draft of 4 tokens at 2, where 3 were asked for",
        ),
        (
            |front| {
                front.report(2, announced(0, 0, 50))?;
                front.report(2, draft(2, &[51, 100]))
            },
            "a draft at 2 that holds token 100, outside the vocabulary of 100",
        ),
        (
            |front| {
                let ended = Verdict { drafts: true, ..verdict(0, 0, 0, 50, Some(End::EndOfGeneration)) };
                front.report(2, Report::Verdict(Box::new(ended)))
            },
            "verdict for window 0 announces a draft that was not asked for",
        ),
    ];
    for (forge, expected) in forgeries {
        let mut front = decoding();
        assert_eq!(forge(&mut front).unwrap_err().to_string(), format!("sequence 0: {expected}"));
        let outputs = front.outputs();
        let failed = format!("r0 failed: internal error: sequence 0: {expected}");
        assert_eq!(outputs[outputs.len() - 1], failed);
    }
    // Before the first window, and where nobody drafts.
    let mut front = Front::new(config());
    front.submit(request(6, None)).unwrap();
    assert!(front.report(2, draft(6, &[1])).is_err());
    let mut front = Front::new(Config { speculate: Speculate::off(), ..config() });
    front.submit(request(1, None)).unwrap();
    let fault = front.report(2, announced(0, 0, 50)).unwrap_err();
    assert!(matches!(fault, ReportFault::Verdict { .. }), "{fault}");
    // Only the tail drafts, and of a request that is over nothing counts any more.
    let mut front = decoding();
    front.report(2, announced(0, 0, 50)).unwrap();
    assert!(matches!(front.report(1, draft(2, &[51])), Err(ReportFault::NotTail { .. })));
    let id = scheduler::RequestId(0);
    front.cancel(id);
    front.report(2, draft(2, &[51])).unwrap();
    assert_eq!(front.scheduler.stats().late_reports, 1);
}

/// The positions at which the sequences begin that are opened now.
fn starts(front: &mut Front) -> Vec<u32> {
    std::iter::from_fn(|| front.scheduler.poll_output())
        .filter_map(|output| match output {
            Output::Work(frame) => match frame.work {
                Work::Open(open) => Some(open.start.0),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

#[test]
fn the_last_token_of_a_part_of_a_prefix_is_computed_again_where_the_tail_drafts() {
    for (speculate, cuts, again) in [
        (config().speculate, Cuts::Anywhere, 1),
        (config().speculate, Cuts::Nowhere, 0),
        (Speculate::off(), Cuts::Anywhere, 0),
    ] {
        let is_cut = cuts != Cuts::Nowhere;
        let mut front = Front::new(Config { speculate, cuts, ..config() });
        let ask = |tail: &[i32]| {
            let mut request = Request { namespace: Some(1), ..request(40, Some(2)) };
            request.prompt.extend(tail.iter().copied().map(Token));
            request
        };
        front.submit(ask(&[])).expect("a request that fits");
        front.submit(ask(&[70, 71])).expect("a request that fits");
        assert_eq!(starts(&mut front), [0, if is_cut { 39 - again } else { 0 }], "of one that runs");
        front.progress(0, 39).unwrap();
        front.verdict(0, 0, 39, 50, None).unwrap();
        front.verdict(0, 1, 40, 51, Some(End::Limit)).unwrap();
        front.cancel(scheduler::RequestId(1));
        front.closed(0).unwrap();
        front.closed(1).unwrap();
        starts(&mut front);
        front.submit(ask(&[60, 61])).expect("a request that fits");
        let expected = if is_cut { 40 - again } else { 0 };
        assert_eq!(starts(&mut front), [expected], "of one that is parked");
        front.cancel(scheduler::RequestId(2));
        front.closed(2).unwrap();
        starts(&mut front);
        // The hidden row at its end is kept.
        front.submit(ask(&[50, 51, 52])).expect("a request that fits");
        assert_eq!(starts(&mut front), [41], "all of it");
    }
}
