//! Prefixes of sequences that still run, and prefixes that outlive the stage in a store.

use protocol::{
    Fault, FaultKind, Frame, Open, Park, Position, PrefixKey, Report, Reuse, SeqId, Stored, Token, Work,
};
use stage::{Blob, Config, Keeping, Output, Rewind, StageCore, StoreWork};

use crate::line::{CONFIG, Stage};
use crate::prefixes::{
    A, B, C, X, begin, close, go_on, is_lost, park, prompt, rows, run, run_and_park, stage, window,
};
use crate::toy::{Toy, reference};

const KEY: PrefixKey = PrefixKey([7; 32]);
const OTHER: PrefixKey = PrefixKey([8; 32]);

fn limit(text: &[Token]) -> Position {
    Position(text.len() as u32 + 4)
}

fn chunk(seq: SeqId, text: &[Token], base: usize) -> Frame {
    let base_position = Position(base as u32);
    let tokens = text[base..].to_vec();
    Frame::new(Work::Chunk(protocol::Chunk { seq, base: base_position, tokens, follows: None }))
}

#[test]
fn who_begins_with_a_running_sequence_copies_it_as_soon_as_it_has_come_so_far() {
    let mut stage = stage(3);
    let text = prompt(&[3, 1, 4, 1, 5]);
    stage.hear(begin(A, &text, None));
    stage.hear(begin(B, &text, Some((A, 4, true))));
    assert_eq!(rows(&mut stage), 0);
    stage.hear(chunk(A, &text[..4], 0));
    assert_eq!(rows(&mut stage), 4);
    stage.hear(begin(C, &text, Some((A, 4, true))));
    for seq in [B, C, A] {
        assert_eq!(go_on(&mut stage, seq, &text, 4), reference(&text, seq.0, limit(&text), true), "{seq}");
    }
    assert_eq!(rows(&mut stage), 12, "four windows each, and the prompt once");
    // A has come further meanwhile.
    stage.hear(close(B));
    let other = prompt(&[3, 1, 4, 9]);
    stage.hear(begin(X, &other, Some((A, 3, true))));
    assert_eq!(go_on(&mut stage, X, &other, 3), reference(&other, X.0, limit(&other), true));
}

#[test]
fn who_waits_for_a_running_sequence_goes_on_from_its_park_or_hears_that_it_is_gone() {
    for parks in [true, false] {
        let mut stage = stage(2);
        let text = run(&mut stage, A, &prompt(&[3, 1, 4, 1, 5]), None);
        let longer = [&text[..], &prompt(&[1, 2])].concat();
        // One position more than it will ever have.
        stage.hear(begin(B, &longer, Some((A, text.len(), true))));
        let said = stage.hear(if parks { park(A, text.len() - 1) } else { close(A) });
        assert_eq!(said[0], Output::Report(Report::Closed(A)));
        assert!(is_lost(&said[1..], B, A));
    }
}

#[test]
fn a_copy_of_what_ended_before_it_was_made_is_not_made() {
    let mut stage = stage(3);
    let text = prompt(&[3, 1, 4, 1, 5]);
    stage.hear(begin(A, &text, None));
    stage.hear(chunk(A, &text[..4], 0));
    // All of this arrives during a call: B is to copy A, which ends, and X takes its slot first.
    for frame in [begin(B, &text, Some((A, 4, true))), close(A), begin(X, &prompt(&[2, 7, 1, 8]), None)] {
        stage.core.handle_frame(frame, std::time::Duration::ZERO);
    }
    let said = stage.settle();
    assert!(is_lost(&said[1..], B, A), "{said:?}");
    let other = prompt(&[2, 7, 1, 8]);
    assert_eq!(go_on(&mut stage, X, &other, 0), reference(&other, X.0, limit(&other), true));
}

fn with_store(n_slots: u16, prefix_bytes: u64) -> Stage {
    let mut stage = stage(n_slots);
    let config = Config { has_store: true, prefix_bytes, ..CONFIG };
    stage.core = StageCore::new(stage.core.shape().clone(), config);
    stage
}

fn park_and_store(seq: SeqId, len: usize, key: PrefixKey) -> Frame {
    Frame::new(Work::Park(Park { seq, len: Position(len as u32), store: Some(key) }))
}

fn begin_stored(seq: SeqId, text: &[Token], prefix: SeqId, start: usize, keep: bool) -> Frame {
    let mut frame = begin(seq, text, Some((prefix, start, keep)));
    if let Work::Open(open) = &mut frame.work {
        let Open { reuse, .. } = open.as_mut();
        *reuse = Some(Reuse { prefix, keep, stored: Some(KEY) });
    }
    frame
}

/// What is asked of the store in the meantime.
fn writes(said: &[Output]) -> Vec<(SeqId, PrefixKey, Blob)> {
    let write = |output: &Output| match output {
        Output::Store(StoreWork::Write { prefix, key, blob }) => Some((*prefix, *key, blob.clone())),
        _ => None,
    };
    said.iter().filter_map(write).collect()
}

/// Runs A to its end, and gives what the store is given of it.
fn stored(stage: &mut Stage, ids: &[i32]) -> (Vec<Token>, Blob) {
    let text = run(stage, A, &prompt(ids), None);
    let said = stage.hear(park_and_store(A, text.len() - 1, KEY));
    let mut writes = writes(&said);
    let (prefix, key, blob) = writes.pop().expect("a write");
    assert_eq!((prefix, key, writes.len()), (A, KEY, 0));
    assert_eq!(blob.len, Position(text.len() as u32 - 1));
    (text, blob)
}

#[test]
fn a_parked_prefix_is_stored_once_nobody_waits_and_the_front_hears_of_it() {
    let mut stage = with_store(2, 1 << 20);
    let (_, _) = stored(&mut stage, &[3, 1, 4, 1, 5]);
    stage.core.handle_kept(A, Keeping::Kept);
    assert_eq!(stage.settle(), [Output::Report(Report::Stored(Stored { prefix: A, kept: true }))]);
    stage.core.handle_kept(A, Keeping::Skipped);
    assert_eq!(stage.settle(), [], "a front need not know what may come yet");
    // It is warm all the same.
    run(&mut stage, B, &prompt(&[3, 1, 4, 1, 5, 6]), Some((A, 5, true)));
    assert_eq!(stage.core.stats().restored_prefixes, 0);
}

#[test]
fn while_others_run_a_prefix_is_stored_when_its_slot_is_needed() {
    let mut stage = with_store(2, 1 << 20);
    let busy = prompt(&[2, 7, 1, 8]);
    stage.hear(begin(X, &busy, None));
    let text = run(&mut stage, A, &prompt(&[3, 1, 4, 1, 5]), None);
    assert_eq!(writes(&stage.hear(park_and_store(A, text.len() - 1, KEY))), []);
    let said = stage.hear(begin(B, &prompt(&[9, 9, 9]), None));
    assert_eq!(writes(&said).len(), 1);
    stage.hear(close(B));
    assert_eq!(writes(&stage.hear(close(X))), [], "once is enough");
}

#[test]
fn a_stage_without_a_store_says_so() {
    let mut stage = stage(1);
    let text = run(&mut stage, A, &prompt(&[3, 1, 4]), None);
    let said = stage.hear(park_and_store(A, text.len() - 1, KEY));
    let no = Output::Report(Report::Stored(Stored { prefix: A, kept: false }));
    assert_eq!(said, [no, Output::Report(Report::Closed(A))]);
    assert!(is_lost(&stage.hear(begin_stored(B, &text, X, 3, true)), B, X));
}

#[test]
fn a_later_stage_goes_on_from_what_an_earlier_one_had_stored() {
    for (prefix_bytes, keep) in [(1 << 20, true), (1 << 20, false), (0, true), (0, false)] {
        let (text, blob) = stored(&mut with_store(1, 1 << 20), &[3, 1, 4, 1, 5]);
        let mut stage = with_store(2, prefix_bytes);
        let longer = [&text[..], &prompt(&[9, 2])].concat();
        let asked = stage.hear(begin_stored(B, &longer, X, 6, keep));
        assert_eq!(asked, [Output::Store(StoreWork::Read { prefix: X, key: KEY })]);
        assert_eq!(stage.hear(begin_stored(C, &longer, X, 4, true)), [], "it is on its way");
        stage.core.handle_fetched(X, OTHER, Some(blob.clone()));
        assert_eq!(stage.settle(), [], "an answer to a question that nobody asked");
        stage.core.handle_fetched(X, KEY, Some(blob.clone()));
        stage.settle();
        assert_eq!(go_on(&mut stage, B, &longer, 6), reference(&longer, B.0, limit(&longer), true));
        if keep && prefix_bytes > 0 {
            assert_eq!(go_on(&mut stage, C, &longer, 4), reference(&longer, C.0, limit(&longer), true));
            assert_eq!(stage.core.stats().restored_prefixes, 1);
        } else {
            // There is no room to keep it, or nobody wanted it: it is read again.
            stage.core.handle_fetched(X, KEY, Some(blob));
            stage.settle();
            assert_eq!(go_on(&mut stage, C, &longer, 4), reference(&longer, C.0, limit(&longer), true));
            assert_eq!(stage.core.stats().restored_prefixes, 2);
        }
        for seq in [B, C] {
            stage.hear(close(seq));
        }
        assert_eq!(stage.core.n_sequences(), 0);
    }
}

#[test]
fn what_is_read_for_a_sequence_that_ends_before_it_begins_is_not_kept() {
    let (text, blob) = stored(&mut with_store(1, 1 << 20), &[3, 1, 4, 1, 5]);
    for is_there in [true, false] {
        let mut stage = with_store(1, 1 << 20);
        stage.hear(begin(C, &prompt(&[2, 7, 1]), None));
        stage.hear(begin_stored(B, &text, X, 3, false));
        // It comes while the only slot is taken, or when nobody waits for it any more.
        if is_there {
            stage.core.handle_fetched(X, KEY, Some(blob.clone()));
            assert!(stage.core.prefix_bytes() > 0);
        }
        stage.hear(close(B));
        stage.core.handle_fetched(X, KEY, Some(blob.clone()));
        assert_eq!(stage.core.prefix_bytes(), 0);
        assert_eq!(stage.core.n_sequences(), 1);
    }
}

#[test]
fn what_the_store_does_not_have_is_lost_and_nothing_else() {
    let mut stage = with_store(1, 1 << 20);
    let text = prompt(&[3, 1, 4, 1, 5]);
    stage.hear(begin_stored(B, &text, X, 3, true));
    stage.core.handle_fetched(X, KEY, None);
    assert!(is_lost(&stage.settle(), B, X));
    assert_eq!(stage.core.stats().missed_prefixes, 1);
    stage.hear(close(B));
    // One that is too short is of no use either, and one that comes when nobody waits any more does no harm.
    stage.hear(begin_stored(C, &text, X, 3, true));
    stage.core.handle_fetched(X, KEY, Some(Blob { len: Position(2), bytes: vec![0; 16].into() }));
    assert!(is_lost(&stage.settle(), C, X));
    stage.hear(close(C));
    run_and_park(&mut stage, A, &[3, 1, 4]);
    stage.core.handle_fetched(X, KEY, Some(Blob { len: Position(2), bytes: vec![0; 16].into() }));
    assert_eq!(stage.settle(), []);
}

#[test]
fn what_forgets_serves_whole_or_not_at_all() {
    let forgetful = || Stage::new(Toy::new(0, 1, 3, 32, Rewind::Recent { rows: 2 }));
    let mut stage = forgetful();
    let text = run_and_park(&mut stage, A, &[3, 1, 4, 1, 5]);
    let whole = text.len() - 1;
    let longer = [&text[..], &prompt(&[9, 2])].concat();
    assert!(is_lost(&stage.hear(begin(B, &longer, Some((A, whole - 1, true)))), B, A));
    stage.hear(close(B));
    run(&mut stage, C, &longer, Some((A, whole, true)));
    // One that still runs is not copied: it would have to be cut.
    assert_eq!(stage.hear(begin(X, &longer, Some((C, 5, true)))), []);
    let said = stage.hear(park(C, longer.len() + 3));
    assert!(is_lost(&said[1..], X, C));
}

#[test]
fn what_forgets_is_cut_a_little_and_says_when_that_is_not_enough() {
    let mut stage = Stage::new(Toy::new(0, 2, 1, 32, Rewind::Recent { rows: 2 }));
    let text = prompt(&[3, 1, 4, 1, 5, 9]);
    stage.hear(begin(A, &text, None));
    stage.hear(chunk(A, &text, 0));
    stage.hear(window(A, 4, text[4]));
    assert_eq!(stage.core.stats().rows, 7);
    let fault = |base, oldest| {
        let kind = FaultKind::Rewind { base: Position(base), oldest: Position(oldest) };
        [Output::Report(Report::Fault(Fault { seq: Some(A), kind }))]
    };
    assert_eq!(stage.hear(window(A, 3, text[3])), fault(3, 4), "what was forgotten before stays forgotten");
}
