//! What a prompt begins with: what others compute at the time, and what stages have stored.

use protocol::{Open, Park, Report, Reuse, SeqId, Stored, Token, Work};
use scheduler::{Config, Cuts, Output, Request, SHARED, Shelved};

use crate::front::{Front, request};

const PROMPT: usize = 40;

fn front(n_slots: u16, stored_tokens: u64) -> Front {
    let chunk_rows = 100;
    let usual = Config::new(3, n_slots, 200, 100);
    Front::new(Config {
        prefix_tokens: 1000,
        stored_tokens,
        least_stored: 20,
        chunk_rows,
        queue_limit: 9,
        replay_timeout: std::time::Duration::from_secs(9),
        ..usual
    })
}

/// A prompt of [`PROMPT`] tokens and a tail of its own.
fn ask(tail: i32) -> Request {
    let mut request = Request { namespace: Some(1), ..request(PROMPT, Some(1)) };
    request.prompt.extend([Token(tail), Token(tail)]);
    request
}

/// Everything said since the last time.
fn said(front: &mut Front) -> (Vec<Work>, Vec<Shelved>) {
    let (mut work, mut shelved) = (Vec::new(), Vec::new());
    while let Some(output) = front.scheduler.poll_output() {
        match output {
            Output::Work(frame) => work.push(frame.work),
            Output::Shelved(change) => shelved.push(change),
            Output::Hint(_) | Output::Event(..) | Output::Draft(..) => {}
        }
    }
    (work, shelved)
}

fn opens(work: &[Work]) -> Vec<&Open> {
    let open = |work: &&Work| matches!(work, Work::Open(_));
    work.iter()
        .filter(open)
        .filter_map(|work| if let Work::Open(open) = work { Some(&**open) } else { None })
        .collect()
}

fn parks(work: &[Work]) -> Vec<&Park> {
    work.iter().filter_map(|work| if let Work::Park(park) = work { Some(park) } else { None }).collect()
}

/// The request that is sequence `seq` comes to its end.
fn finish(front: &mut Front, seq: u64, n_prompt: u32) {
    front.verdict(seq, 0, n_prompt - 1, 50, Some(protocol::End::Limit)).expect("what was sent");
    front.closed(seq).expect("it was closed");
}

fn stored(front: &mut Front, prefix: u64, kept: bool) -> Vec<Shelved> {
    for stage in 0..3 {
        front.report(stage, Report::Stored(Stored { prefix: SeqId(prefix), kept })).expect("a report");
    }
    said(front).1
}

#[test]
fn who_begins_like_a_running_request_waits_for_it_and_computes_the_rest() {
    let mut front = front(3, 0);
    for tail in [90, 91] {
        front.submit(ask(tail)).expect("a request that fits");
    }
    front.submit(Request { namespace: None, ..ask(92) }).expect("a request that fits");
    let (work, _) = said(&mut front);
    let opens = opens(&work);
    let reuse = |open: &Open| (open.start.0 as usize, open.reuse);
    assert_eq!(reuse(opens[0]), (0, None));
    assert_eq!(reuse(opens[1]), (PROMPT, Some(Reuse { prefix: SeqId(0), keep: true, stored: None })));
    assert_eq!(reuse(opens[2]), (0, None), "nobody's");
    assert_eq!(front.scheduler.stats().shared_tokens, 0, "a stage may not have it after all");
    for seq in 0..2 {
        front.progress(seq, PROMPT as u32 + 1).expect("what was sent");
    }
    assert_eq!(front.scheduler.stats().shared_tokens, PROMPT as u64);
    // Choices of one request differ in nothing that matters here.
    let mut front = self::front(2, 0);
    for choice in 0..2 {
        front.submit(Request { choice, ..ask(90) }).expect("a request that fits");
    }
    let (work, _) = said(&mut front);
    assert_eq!(self::opens(&work)[1].start.0 as usize, PROMPT + 1, "all but the last token");
}

#[test]
fn what_the_operator_shares_serves_everybody_and_stays() {
    let mut front = front(1, 0);
    let shared = Request { namespace: Some(SHARED), ..request(PROMPT, Some(1)) };
    front.submit(shared).expect("a request that fits");
    front.progress(0, PROMPT as u32 - 1).expect("what was sent");
    finish(&mut front, 0, PROMPT as u32);
    said(&mut front);
    for (seq, namespace) in [(1, 1), (2, 2)] {
        front.submit(Request { namespace: Some(namespace), ..ask(90) }).expect("a request that fits");
        let (work, _) = said(&mut front);
        let reuse = Some(Reuse { prefix: SeqId(0), keep: true, stored: None });
        assert_eq!((opens(&work)[0].start.0 as usize, opens(&work)[0].reuse), (PROMPT, reuse));
        front.progress(seq, PROMPT as u32 + 1).expect("what was sent");
        finish(&mut front, seq, PROMPT as u32 + 2);
    }
    // What is behind it is nobody else's, and whoever shares does not learn what others asked.
    front.submit(Request { namespace: Some(3), ..ask(90) }).expect("a request that fits");
    assert_eq!(opens(&said(&mut front).0)[0].start.0 as usize, PROMPT);
    // While it is computed others wait for it.
    let mut front = self::front(2, 0);
    front
        .submit(Request { namespace: Some(SHARED), ..request(PROMPT, Some(1)) })
        .expect("a request that fits");
    front.submit(ask(90)).expect("a request that fits");
    assert_eq!(opens(&said(&mut front).0)[1].start.0 as usize, PROMPT - 1, "all but its last token");
}

#[test]
fn stages_that_cannot_cut_prefixes_are_not_asked_to() {
    let mut front =
        Front::new(Config { cuts: Cuts::Nowhere, prefix_tokens: 1000, ..Config::new(3, 1, 200, 100) });
    front.submit(ask(90)).expect("a request that fits");
    front.progress(0, PROMPT as u32 + 1).expect("what was sent");
    finish(&mut front, 0, PROMPT as u32 + 2);
    said(&mut front);
    front.submit(ask(91)).expect("a request that fits");
    assert_eq!(opens(&said(&mut front).0)[0].start.0, 0, "only a part of what is there");
    front.progress(1, PROMPT as u32 + 1).expect("what was sent");
    finish(&mut front, 1, PROMPT as u32 + 2);
    let mut longer = ask(90);
    longer.prompt.extend([Token(1), Token(2)]);
    front.submit(longer).expect("a request that fits");
    assert_eq!(opens(&said(&mut front).0)[0].start.0 as usize, PROMPT + 2, "all of it");
}

#[test]
fn prefixes_that_serve_whole_end_before_what_a_longer_text_may_change() {
    // What is parked of so many tokens; where prefixes may end, one ends sooner. What the window holds can be cut.
    for (n, parked, kept) in [(PROMPT, 32, 32), (48, 32, 32), (49, 48, 48), (36, 36, 35)] {
        let usual = Config::new(3, 1, 200, 100);
        let mut front =
            Front::new(Config { cuts: Cuts::InSlots { window: 36 }, prefix_tokens: 1000, ..usual });
        front.submit(Request { namespace: Some(1), ..request(n, Some(1)) }).expect("a request that fits");
        front.progress(0, n as u32 - 1).expect("what was sent");
        finish(&mut front, 0, n as u32);
        assert_eq!(parks(&said(&mut front).0)[0].len.0, parked);
        // In a longer text its last token is another one.
        let mut longer = Request { namespace: Some(1), ..request(n - 1, Some(1)) };
        longer.prompt.extend([Token(90), Token(91)]);
        front.submit(longer).expect("a request that fits");
        let (work, _) = said(&mut front);
        let reuse = Some(Reuse { prefix: SeqId(0), keep: kept < parked, stored: None });
        assert_eq!((opens(&work)[0].start.0, opens(&work)[0].reuse), (kept, reuse), "{n}");
    }
}

#[test]
fn who_cannot_begin_with_a_part_begins_with_what_is_whole() {
    let cuts = Cuts::InSlots { window: 20 };
    let mut front = Front::new(Config { cuts, prefix_tokens: 1000, ..Config::new(3, 1, 200, 100) });
    // What a request begins with that goes on after the common beginning with these tokens.
    let submit = |front: &mut Front, tail: &[i32]| {
        let mut request = Request { namespace: Some(1), ..request(PROMPT, Some(1)) };
        request.prompt.extend(tail.iter().copied().map(Token));
        front.submit(request).expect("a request that fits");
    };
    let begun = |front: &mut Front| {
        let (work, _) = said(front);
        let open = opens(&work)[0];
        (open.seq.0, open.start.0 as usize, open.reuse.map(|reuse| (reuse.prefix.0, reuse.keep)))
    };
    let run = |front: &mut Front, seq: u64, tail: &[i32]| {
        let n_prompt = (PROMPT + tail.len()) as u32;
        front.progress(seq, n_prompt - 1).expect("what was sent");
        finish(front, seq, n_prompt);
        said(front);
    };
    let [first, second, third] =
        [[&[90][..], &[7; 40]], [&[91], &[7; 40]], [&[91], &[7; 30]]].map(|tail| tail.concat());
    submit(&mut front, &first);
    assert_eq!(begun(&mut front), (0, 0, None));
    run(&mut front, 0, &first);
    // The second one takes the slot of the first, and leaves what both share.
    submit(&mut front, &second);
    assert_eq!(begun(&mut front), (1, PROMPT, Some((0, true))));
    run(&mut front, 1, &second);
    // The third shares more with the second, which is in no slot any more.
    submit(&mut front, &[&third[..], &[8]].concat());
    assert_eq!(begun(&mut front), (2, PROMPT + 31, Some((1, true))));
    let kind = protocol::FaultKind::PrefixLost { prefix: SeqId(1) };
    front.report(1, Report::Fault(protocol::Fault { seq: Some(SeqId(2)), kind })).expect("a report");
    front.closed(2).expect("it was closed");
    assert_eq!(begun(&mut front), (3, PROMPT, Some((0, true))), "what is left of the first is whole");
    run(&mut front, 3, &[&third[..], &[8]].concat());
    // And so is the second.
    submit(&mut front, &[&second[..], &[9, 9]].concat());
    assert_eq!(begun(&mut front), (4, 80, Some((1, false))));
}

#[test]
fn what_every_stage_has_stored_outlives_the_line_and_the_front() {
    let mut front = front(1, 1000);
    front.submit(ask(90)).expect("a request that fits");
    front.progress(0, PROMPT as u32 + 1).expect("what was sent");
    finish(&mut front, 0, PROMPT as u32 + 2);
    let (work, _) = said(&mut front);
    let key = parks(&work)[0].store.expect("it is worth storing");
    let changes = stored(&mut front, 0, true);
    let [Shelved::Kept { key: kept, namespace: 1, tokens }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((*kept, tokens.len()), (key, PROMPT + 2));
    // On the next line nothing is parked.
    front.scheduler.line_lost("test", front.now);
    front.scheduler.line_up(front.now);
    front.submit(ask(91)).expect("a request that fits");
    let (work, changes) = said(&mut front);
    let reuse = Some(Reuse { prefix: SeqId(2), keep: true, stored: Some(key) });
    assert_eq!((opens(&work)[0].start.0 as usize, opens(&work)[0].reuse), (PROMPT, reuse));
    assert_eq!(changes, [Shelved::Used(key)]);
    front.progress(opens(&work)[0].seq.0, PROMPT as u32 + 1).expect("what was sent");
    assert_eq!(front.scheduler.stats().restored_tokens, PROMPT as u64);
    // Another front is told.
    let mut next = self::front(1, 1000);
    assert_eq!(next.scheduler.restore(1, tokens.clone()), []);
    next.submit(ask(92)).expect("a request that fits");
    let (work, _) = said(&mut next);
    assert_eq!(opens(&work)[0].reuse.and_then(|reuse| reuse.stored), Some(key));
    // A stage does not have it: the prompt is computed, and nobody is told again that it is there.
    let kind = protocol::FaultKind::PrefixLost { prefix: opens(&work)[0].reuse.expect("it has one").prefix };
    let seq = opens(&work)[0].seq;
    next.report(1, Report::Fault(protocol::Fault { seq: Some(seq), kind })).expect("a report");
    next.closed(seq.0).expect("it was closed");
    let (work, changes) = said(&mut next);
    assert_eq!(opens(&work)[0].start.0, 0);
    assert_eq!(changes, [Shelved::Gone(key)]);
    let stats = next.scheduler.stats();
    assert_eq!((stats.stored_prefixes, stats.restored_tokens, stats.reused_tokens), (0, 0, 0));
}

/// Two choices of one request that have got a token each, and their line is lost and formed anew; what they begin with.
fn replayed(front: &mut Front) -> Vec<Open> {
    for choice in 0..2 {
        let request = Request { max_tokens: Some(4), choice, ..ask(91) };
        front.submit(request).expect("a request that fits");
    }
    for open in opens(&said(front).0) {
        let (seq, last) = (open.seq.0, PROMPT as u32 + 1);
        if open.start.0 < last {
            front.progress(seq, last).expect("what was sent");
        }
        front.verdict(seq, 0, last, 60, None).expect("what was sent");
    }
    front.scheduler.line_lost("test", front.now);
    said(front);
    front.scheduler.line_up(front.now);
    opens(&said(front).0).into_iter().cloned().collect()
}

#[test]
fn a_replay_begins_with_what_is_stored_and_with_what_another_replay_computes() {
    let mut front = front(2, 0);
    let opens = replayed(&mut front);
    assert_eq!((opens[0].start.0, opens[0].reuse), (0, None), "on a new line nothing is parked");
    let reuse = Some(Reuse { prefix: opens[0].seq, keep: true, stored: None });
    assert_eq!((opens[1].start.0 as usize, opens[1].reuse), (PROMPT + 2, reuse), "all but the last token");
    // With a store the first one spares what an earlier request has left there.
    let mut front = self::front(2, 1000);
    front.submit(ask(90)).expect("a request that fits");
    front.progress(0, PROMPT as u32 + 1).expect("what was sent");
    finish(&mut front, 0, PROMPT as u32 + 2);
    let key = parks(&said(&mut front).0)[0].store.expect("it is worth storing");
    stored(&mut front, 0, true);
    let opens = replayed(&mut front);
    for open in &opens {
        assert_eq!((open.start.0 as usize, open.reuse.and_then(|reuse| reuse.stored)), (PROMPT, Some(key)));
        front.progress(open.seq.0, PROMPT as u32 + 2).expect("what was sent");
    }
    assert_eq!(front.scheduler.stats().restored_tokens, PROMPT as u64, "read once, and then at hand");
}

#[test]
fn stages_that_store_nothing_are_asked_once() {
    let mut front = front(1, 1000);
    for (seq, first) in [(0, 10), (1, 20)] {
        let mut request = ask(90);
        request.prompt[0] = Token(first);
        front.submit(request).expect("a request that fits");
        front.progress(seq, PROMPT as u32 + 1).expect("what was sent");
        finish(&mut front, seq, PROMPT as u32 + 2);
        let (work, _) = said(&mut front);
        assert_eq!(parks(&work)[0].store.is_some(), seq == 0);
        assert_eq!(stored(&mut front, seq, false), []);
    }
}
