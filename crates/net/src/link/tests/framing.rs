//! The pure parts: whose turn it is, and putting frames together from any bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use protocol::limits::{MAX_FRAME_BYTES, MAX_TEXT};

use crate::link::{
    Priority, Received, SegmentError,
    inbox::{Event, Inbox, MAX_PARTIAL, MAX_PARTIAL_BYTES},
    outbox::{Outbox, PushError, Segment},
    segment::{HEADER, Header, MAX_PAYLOAD, MAX_SEGMENT},
};

const BULK: u64 = 1;
const DECODE: u64 = 2;

fn outbox() -> Outbox {
    Outbox::new(usize::MAX)
}

fn push(outbox: &mut Outbox, stream: u64, len: usize) {
    outbox.push(stream, Priority::Decode, Bytes::new(), Bytes::from(vec![0; len])).unwrap();
}

fn push_bulk(outbox: &mut Outbox, stream: u64, len: usize) {
    outbox.push(stream, Priority::Bulk, Bytes::new(), Bytes::from(vec![0; len])).unwrap();
}

fn next(outbox: &mut Outbox) -> Option<Segment> {
    outbox.next_within(MAX_SEGMENT)
}

fn header(segment: &Segment) -> Header {
    Header::decode(&segment.header).unwrap()
}

fn stream(segment: &Segment) -> u64 {
    match header(segment) {
        Header::Data { stream, .. } => stream,
        other => panic!("{other:?} is no data"),
    }
}

fn bytes(segment: &Segment) -> Vec<u8> {
    segment.slices().iter().flat_map(|slice| slice.to_vec()).collect()
}

fn order(outbox: &mut Outbox) -> Vec<u64> {
    std::iter::from_fn(|| next(outbox)).map(|segment| stream(&segment)).collect()
}

#[test]
fn a_decode_frame_waits_for_no_more_than_the_segment_under_way() {
    let mut outbox = outbox();
    push_bulk(&mut outbox, BULK, 10 * MAX_PAYLOAD);
    assert_eq!(stream(&next(&mut outbox).unwrap()), BULK);
    push(&mut outbox, DECODE, 100);
    assert_eq!(order(&mut outbox), [[DECODE].as_slice(), &[BULK; 9]].concat());
}

#[test]
fn a_large_decode_frame_lets_other_decode_frames_in_between() {
    let mut outbox = outbox();
    push(&mut outbox, 7, 3 * MAX_PAYLOAD);
    push(&mut outbox, 8, 10);
    push(&mut outbox, 9, 10);
    assert_eq!(order(&mut outbox), [7, 8, 9, 7, 7]);
}

#[test]
fn bulk_streams_take_turns() {
    let mut outbox = outbox();
    for stream in [1, 2] {
        push_bulk(&mut outbox, stream, 2 * MAX_PAYLOAD);
    }
    push_bulk(&mut outbox, 1, 5);
    assert_eq!(order(&mut outbox), [1, 2, 1, 2, 1]);
}

#[test]
fn a_window_behind_its_prompt_is_urgent_only_once_the_prompt_is_written() {
    let mut outbox = outbox();
    push_bulk(&mut outbox, BULK, 2 * MAX_PAYLOAD);
    push(&mut outbox, BULK, 10);
    push(&mut outbox, DECODE, 3 * MAX_PAYLOAD);
    assert_eq!(order(&mut outbox), [DECODE, DECODE, DECODE, BULK, BULK, BULK]);
    push_bulk(&mut outbox, 1, MAX_PAYLOAD + 1);
    push(&mut outbox, 1, 10);
    push_bulk(&mut outbox, 3, 2 * MAX_PAYLOAD);
    assert_eq!(
        order(&mut outbox),
        [1, 3, 1, 1, 3],
        "its last chunk is written: the window overtakes other bulk"
    );
}

#[test]
fn pings_go_before_everything_and_the_close_after() {
    let mut outbox = outbox();
    push(&mut outbox, 1, 1);
    outbox.close("done");
    outbox.pong(3);
    outbox.ping(4, Default::default());
    let headers: Vec<_> = std::iter::from_fn(|| next(&mut outbox)).map(|s| header(&s)).collect();
    assert_eq!(headers[0], Header::Pong { number: 3 });
    assert!(matches!(headers[1], Header::Ping { number: 4, .. }));
    assert!(matches!(headers[2], Header::Data { .. }));
    assert_eq!(headers[3..], [Header::Close { len: 4 }]);
    assert!(outbox.is_finished() && !outbox.has_next());
}

#[test]
fn streams_that_are_written_leave_nothing_behind() {
    let mut outbox = outbox();
    for stream in 0..1000 {
        push(&mut outbox, stream, 1);
        push_bulk(&mut outbox, stream + 1000, 1);
    }
    assert_eq!(outbox.n_streams(), 2000);
    assert_eq!(order(&mut outbox).len(), 2000);
    assert_eq!((outbox.n_streams(), outbox.queued()), (0, 0));
}

#[test]
fn a_full_outbox_refuses_and_takes_again_once_written() {
    let mut outbox = Outbox::new(1000);
    push(&mut outbox, 1, 5000);
    let refused = outbox.push(2, Priority::Decode, Bytes::new(), Bytes::new());
    assert!(matches!(refused, Err(PushError::Full { queued }) if queued >= 5000));
    next(&mut outbox).unwrap();
    push(&mut outbox, 2, 0);
    // Empty frames count, too.
    let n =
        (0..).take_while(|_| outbox.push(2, Priority::Decode, Bytes::new(), Bytes::new()).is_ok()).count();
    assert!(n < 10);
}

#[test]
fn a_frame_above_the_limit_is_refused() {
    let half = Bytes::from(vec![0; MAX_FRAME_BYTES / 2 + 1]);
    let refused = outbox().push(1, Priority::Decode, half.clone(), half);
    assert_eq!(refused, Err(PushError::TooLarge { bytes: MAX_FRAME_BYTES + 2 }));
}

#[test]
fn a_segment_that_does_not_fit_waits() {
    let mut outbox = outbox();
    push(&mut outbox, 1, 100);
    assert_eq!(outbox.next_within(HEADER + 99), None);
    assert_eq!(outbox.next_within(HEADER + 100).unwrap().len(), HEADER + 100);
}

#[test]
fn a_reason_is_cut_between_characters() {
    let segment = Segment::close(&"é".repeat(MAX_TEXT));
    assert_eq!(segment.head.len(), MAX_TEXT);
    let segment = Segment::close(&format!("a{}", "é".repeat(MAX_TEXT)));
    assert_eq!(segment.head.len(), MAX_TEXT - 1);
    assert_eq!(events(&[bytes(&segment)]).unwrap().len(), 1);
}

/// All events in these reads.
pub(super) fn events(reads: &[Vec<u8>]) -> Result<Vec<Event>, SegmentError> {
    let mut inbox = Inbox::default();
    let mut events = Vec::new();
    for read in reads {
        inbox.room().extend_from_slice(read);
        while let Some(event) = inbox.next()? {
            events.push(event);
        }
    }
    Ok(events)
}

fn data(stream: u64, offset: u32, total: u32, len: usize) -> Vec<u8> {
    let mut bytes = Header::Data { stream, offset, total, len: len as u32 }.encode().to_vec();
    bytes.resize(HEADER + len, 0);
    bytes
}

#[test]
fn segments_that_break_the_rules_are_refused() {
    let cases = [
        (vec![data(1, 5, 10, 5)], SegmentError::OutOfOrder { stream: 1, expected: 0, found: 5 }),
        (
            vec![data(1, 0, 10, 5), data(1, 6, 10, 4)],
            SegmentError::OutOfOrder { stream: 1, expected: 5, found: 6 },
        ),
        (
            vec![data(1, 0, 10, 5), data(1, 5, 11, 6)],
            SegmentError::LengthChanged { stream: 1, expected: 10, found: 11 },
        ),
        (vec![data(1, 0, 10, 0)], SegmentError::BadHeader),
        (vec![data(1, 0, 10, 11)], SegmentError::BadHeader),
        (vec![data(1, u32::MAX, 10, 11)], SegmentError::BadHeader),
        (vec![data(1, 0, u32::MAX, 5)], SegmentError::FrameTooLong(u32::MAX)),
        (vec![data(1, 0, 1 << 20, MAX_PAYLOAD + 1)], SegmentError::PayloadTooLong(MAX_PAYLOAD as u32 + 1)),
        (vec![vec![9; HEADER]], SegmentError::UnknownKind(9)),
        (vec![vec![3; HEADER]], SegmentError::BadHeader),
        (vec![vec![2; HEADER]], SegmentError::BadHeader),
        (vec![Header::Welcome.encode().to_vec()], SegmentError::LateWelcome),
        (vec![[&Header::Close { len: 1 }.encode()[..], &[0xff]].concat()], SegmentError::BadReason),
        (vec![Header::Close { len: 5000 }.encode().to_vec()], SegmentError::PayloadTooLong(5000)),
        (vec![b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()], SegmentError::UnknownKind(b'G')),
    ];
    for (reads, expected) in cases {
        assert_eq!(events(&reads), Err(expected));
    }
}

#[test]
fn unfinished_frames_are_bounded_in_number_and_in_bytes() {
    let many: Vec<_> = (0..=MAX_PARTIAL as u64).map(|stream| data(stream, 0, 10, 1)).collect();
    assert_eq!(events(&many), Err(SegmentError::TooManyPartial(MAX_PARTIAL)));
    let (mut inbox, mut offset) = (Inbox::default(), 0);
    let refused = loop {
        let total = MAX_FRAME_BYTES as u32;
        for stream in 0..3 {
            inbox.room().extend_from_slice(&data(stream, offset, total, MAX_PAYLOAD));
        }
        match inbox.next() {
            Ok(event) => assert_eq!(event, None),
            Err(error) => break error,
        }
        offset += MAX_PAYLOAD as u32;
    };
    assert_eq!(refused, SegmentError::PartialTooLarge(MAX_PARTIAL_BYTES));
    assert!(3 * offset as usize <= MAX_PARTIAL_BYTES);
}

#[test]
fn a_million_hostile_byte_strings_never_panic() {
    let mut state = 0x5eed_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut whole, mut refused) = (0, 0);
    for _ in 0..1_000_000 {
        // Half of them begin like segments, with small fields and single bits turned.
        let n = random() % 80;
        let mut bytes: Vec<u8> = (0..n).map(|_| random() as u8).collect();
        if random() % 2 == 0 {
            let (offset, total) = ((random() % 4) as u32, (random() % 20) as u32);
            bytes = [data(random() % 2, offset, total, (random() % 8) as usize), bytes].concat();
            let at = random() as usize % bytes.len();
            bytes[at] ^= (1 << (random() % 16)) as u8;
        }
        let cut = random() as usize % (bytes.len() + 1);
        match events(&[bytes[..cut].to_vec(), bytes[cut..].to_vec()]) {
            Ok(events) => whole += events.len(),
            Err(_) => refused += 1,
        }
    }
    assert!(whole > 1000 && refused > 100_000, "{whole} frames, {refused} refusals");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn frames_arrive_whole_and_in_order_whatever_the_interleaving(
        frames in proptest::collection::vec(
            (
                0_u64..5,
                any::<bool>(),
                proptest::sample::select(vec![0, 1, 100, MAX_PAYLOAD, MAX_PAYLOAD + 1, 200_000]),
                0.0..=1.0,
            ),
            1..20,
        ),
        taken in proptest::collection::vec(0_usize..5, 0..20),
        cuts in proptest::collection::vec(1_usize..100_000, 1..10),
    ) {
        let mut outbox = Outbox::new(usize::MAX);
        let mut sent: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
        let mut wire = Vec::new();
        let mut taken = taken.into_iter();
        for (number, (stream, bulk, len, share)) in frames.into_iter().enumerate() {
            let whole: Bytes = (0..len).map(|i| (i * 31 + number) as u8).collect::<Vec<_>>().into();
            let at = (len as f64 * share) as usize;
            let priority = if bulk { Priority::Bulk } else { Priority::Decode };
            outbox.push(stream, priority, whole.slice(..at), whole.slice(at..)).unwrap();
            sent.entry(stream).or_default().push(whole);
            if let Some(n) = taken.next() {
                wire.extend((0..n).filter_map(|_| next(&mut outbox)).flat_map(|segment| bytes(&segment)));
            }
        }
        wire.extend(std::iter::from_fn(|| next(&mut outbox)).flat_map(|segment| bytes(&segment)));
        prop_assert_eq!(outbox.queued(), 0);

        let mut reads = Vec::new();
        let (mut rest, mut cuts) = (&wire[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (read, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            reads.push(read.to_vec());
            rest = later;
        }
        let mut received: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
        for event in events(&reads).unwrap() {
            let Event::Frame(Received { stream, bytes }) = event else { panic!("{event:?}") };
            received.entry(stream).or_default().push(bytes);
        }
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(reads in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
        let _ = events(&reads);
    }
}
