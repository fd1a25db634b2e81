//! What the stages of a lost line still hold is not computed again: all of it, or what the later stages hold.

use protocol::{Fault, FaultKind, Held, Position, Report, Reuse, SeqId, StageTiming, Token, Work};
use scheduler::{Config, Output, Request};

use crate::front::{Front, config, request};

/// Of each request; with two more it is four chunks and two tokens, the last of which is a window.
const PROMPT: u32 = 17;
const STAGES: u16 = 3;

fn front(n_slots: u16) -> Front {
    let replay_timeout = std::time::Duration::from_secs(5);
    Front::new(Config { n_slots, prefix_tokens: 1000, context: 100, replay_timeout, ..config() })
}

fn ask() -> Request {
    Request { namespace: Some(1), ..request(PROMPT as usize, Some(8)) }
}

/// How a sequence begins, and what follows at once: each piece from where to where.
#[derive(Debug, PartialEq)]
struct Begun {
    seq: u64,
    start: u32,
    prefix: Option<SeqId>,
    held: Option<Held>,
    pieces: Vec<(u32, u32)>,
}

/// Sequences that begin now, and others that are closed.
fn begun(front: &mut Front) -> (Vec<Begun>, Vec<u64>) {
    let (mut begun, mut closed) = (Vec::<Begun>::new(), Vec::new());
    for output in std::iter::from_fn(|| front.scheduler.poll_output()) {
        let Output::Work(frame) = output else { continue };
        match frame.work {
            Work::Open(open) => {
                let (seq, start, prefix) =
                    (open.seq.0, open.start.0, open.reuse.map(|reuse: Reuse| reuse.prefix));
                begun.push(Begun { seq, start, prefix, held: open.held, pieces: Vec::new() });
            }
            Work::Chunk(_) | Work::Window(_) => {
                let base = match &frame.work {
                    Work::Chunk(chunk) => chunk.base.0,
                    Work::Window(window) => window.base.0,
                    _ => unreachable!("neither chunk nor window"),
                };
                let n = frame.work.tokens().len() as u32;
                let its = begun.iter_mut().find(|begun| begun.seq == frame.work.seq().0);
                its.expect("a sequence that begins now").pieces.push((base, base + n));
            }
            Work::Close(close) => closed.push(close.seq.0),
            Work::Park(park) => panic!("{park:?} where nothing ends"),
        }
    }
    (begun, closed)
}

/// The tail passes what is sent of a prompt until `end`; where each chunk that was sent meanwhile ends.
fn prefill(front: &mut Front, seq: u64, at: impl IntoIterator<Item = u32>) {
    for next in at {
        front.progress(seq, next).expect("what was sent");
    }
}

/// A request that has got two tokens, so that 18 positions are certain on every stage; all that was sent is heard.
fn talking(front: &mut Front) {
    front.submit(ask()).expect("a request that fits");
    prefill(front, 0, [4, 8, 12, 16]);
    front.verdict(0, 0, 16, 50, None).expect("what was sent");
    front.verdict(0, 1, 17, 51, None).expect("what was sent");
    front.outputs();
}

fn held(prefix: u64, len: u32, lost_by: u16) -> Option<Held> {
    Some(Held { prefix: SeqId(prefix), len: Position(len), lost_by })
}

fn lose(front: &mut Front) {
    front.scheduler.line_lost("test", front.now);
    assert!(front.outputs().is_empty(), "its caller hears nothing, and nobody is left who would");
}

#[test]
fn if_all_hold_what_they_held_only_the_last_token_is_sent() {
    let mut front = front(1);
    talking(&mut front);
    lose(&mut front);
    front.scheduler.line_back(0, front.now);
    let begins = Begun { seq: 1, start: 18, prefix: Some(SeqId(0)), held: None, pieces: vec![(18, 19)] };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
    assert_eq!(front.scheduler.stats().prefilled_tokens, 16, "those of the first line");
}

#[test]
fn a_prompt_goes_on_from_what_the_tail_had_seen() {
    let mut front = front(1);
    front.submit(Request { namespace: Some(1), ..request(40, Some(8)) }).expect("a request that fits");
    prefill(&mut front, 0, [4, 8, 12, 16, 20]);
    front.outputs();
    lose(&mut front);
    front.scheduler.line_back(0, front.now);
    let pieces = vec![(20, 24), (24, 28)];
    let begins = Begun { seq: 1, start: 20, prefix: Some(SeqId(0)), held: None, pieces };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
}

#[test]
fn stages_up_to_the_last_that_was_lost_compute_again_and_the_others_are_told_so() {
    for lost_by in 1..STAGES {
        let mut front = front(1);
        talking(&mut front);
        lose(&mut front);
        front.scheduler.line_back(lost_by, front.now);
        let pieces = vec![(0, 4), (4, 8)];
        let begins = Begun { seq: 1, start: 0, prefix: None, held: held(0, 18, lost_by), pieces };
        assert_eq!(begun(&mut front), (vec![begins], vec![]));
        // Nobody takes the time of a stage that computed nothing for its pace.
        let timing = StageTiming { queue_us: 0, compute_us: 4000, batch_rows: 4 };
        let timings: Vec<_> =
            (0..STAGES).map(|at| if at < lost_by { timing } else { StageTiming::default() }).collect();
        for next in [4, 8, 12, 16, 18] {
            let progress =
                protocol::Progress { seq: SeqId(1), next: Position(next), timings: timings.clone() };
            front.report(STAGES - 1, Report::Progress(progress)).expect("what was sent");
        }
        assert_eq!(front.outputs().last().expect("a window"), "s1 window 0 at 18 [51]");
        let stats = front.scheduler.stats();
        assert_eq!((stats.partly_reused_tokens, stats.reused_tokens, stats.resumed), (18, 0, 1));
        // When that is lost and all is held, all of it is.
        lose(&mut front);
        front.scheduler.line_back(0, front.now);
        let begins = Begun { seq: 2, start: 18, prefix: Some(SeqId(1)), held: None, pieces: vec![(18, 19)] };
        assert_eq!(begun(&mut front), (vec![begins], vec![]));
    }
}

/// A chunk is held or not, not in part: the later stages pass it on or compute it.
#[test]
fn chunks_end_where_what_is_held_ends() {
    let mut front = front(1);
    talking(&mut front);
    // Another conversation begins as this one did.
    let mut other = ask();
    other.prompt.extend([50, 70, 71, 72, 73, 74, 75].map(Token));
    front.verdict(0, 2, 18, 52, Some(protocol::End::EndOfGeneration)).expect("what was sent");
    front.closed(0).expect("it was parked");
    while front.scheduler.poll_output().is_some() {}
    lose(&mut front);
    front.scheduler.line_back(1, front.now);
    front.submit(other).expect("a request that fits");
    let pieces = vec![(0, 4), (4, 8)];
    let begins = Begun { seq: 1, start: 0, prefix: None, held: held(0, 18, 1), pieces };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
    prefill(&mut front, 1, [4, 8, 12, 16]);
    assert_eq!(front.outputs().last().expect("a chunk"), "s1 chunk at 18 [70, 71, 72, 73]");
}

#[test]
fn if_the_tail_was_lost_all_is_computed_and_who_holds_something_may_forget_it() {
    let mut front = front(1);
    talking(&mut front);
    lose(&mut front);
    front.scheduler.line_back(STAGES, front.now);
    let begins = Begun { seq: 1, start: 0, prefix: None, held: None, pieces: vec![(0, 4), (4, 8)] };
    assert_eq!(begun(&mut front), (vec![begins], vec![0]));
    // And if nobody holds anything, nobody need hear of it.
    lose(&mut front);
    front.scheduler.line_up(front.now);
    let begins = Begun { seq: 2, start: 0, prefix: None, held: None, pieces: vec![(0, 4), (4, 8)] };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
}

#[test]
fn what_is_lost_again_before_it_is_whole_is_still_held_by_those_that_had_it() {
    let mut front = front(1);
    talking(&mut front);
    lose(&mut front);
    front.scheduler.line_back(1, front.now);
    front.outputs();
    prefill(&mut front, 1, [4, 8]);
    lose(&mut front);
    front.scheduler.line_back(2, front.now);
    let pieces = vec![(0, 4), (4, 8)];
    let begins = Begun { seq: 2, start: 0, prefix: None, held: held(1, 18, 2), pieces };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
    prefill(&mut front, 2, [4, 8]);
    front.outputs();
    // Whoever lost nothing this time had lost it before.
    lose(&mut front);
    front.scheduler.line_back(0, front.now);
    let pieces = vec![(0, 4), (4, 8)];
    let begins = Begun { seq: 3, start: 0, prefix: None, held: held(2, 18, 2), pieces };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
}

#[test]
fn if_a_stage_does_not_hold_it_after_all_everything_is_computed() {
    let mut front = front(1);
    talking(&mut front);
    lose(&mut front);
    front.scheduler.line_back(1, front.now);
    front.outputs();
    let kind = FaultKind::PrefixLost { prefix: SeqId(0) };
    front.report(1, Report::Fault(Fault { seq: Some(SeqId(1)), kind })).expect("a report");
    let closed = front.outputs();
    assert_eq!(closed, ["s0 close", "s1 drop", "s1 close"], "whoever holds it may forget it");
    front.closed(1).expect("it was closed");
    let begins = Begun { seq: 2, start: 0, prefix: None, held: None, pieces: vec![(0, 4), (4, 8)] };
    assert_eq!(begun(&mut front), (vec![begins], vec![]));
}

#[test]
fn who_shares_nothing_computes_all_and_leaves_nothing() {
    let mut front = front(1);
    front.submit(Request { namespace: None, ..ask() }).expect("a request that fits");
    prefill(&mut front, 0, [4, 8, 12, 16]);
    front.outputs();
    lose(&mut front);
    front.scheduler.line_back(0, front.now);
    let begins = Begun { seq: 1, start: 0, prefix: None, held: None, pieces: vec![(0, 4), (4, 8)] };
    assert_eq!(begun(&mut front), (vec![begins], vec![0]));
}

/// Two that begin alike and go on differently: each goes on from its own, which spares more than what both begin with.
#[test]
fn of_what_all_hold_and_what_the_later_stages_hold_the_one_that_spares_more_is_taken() {
    let mut front = front(2);
    for last in [80, 81] {
        let mut request = Request { namespace: Some(1), ..request(60, Some(8)) };
        request.prompt[20..].fill(Token(last));
        front.submit(request).expect("a request that fits");
    }
    for at in (4..=56).step_by(4) {
        front.progress(0, at).expect("what was sent");
    }
    for at in (24..=56).step_by(4) {
        front.progress(1, at).expect("what was sent");
    }
    front.outputs();
    lose(&mut front);
    front.scheduler.line_back(1, front.now);
    let (opens, _) = begun(&mut front);
    let how: Vec<_> = opens.iter().map(|begun| (begun.seq, begun.start, begun.held)).collect();
    assert_eq!(how, [(2, 0, held(0, 56, 1)), (3, 0, held(1, 56, 1))]);
}
