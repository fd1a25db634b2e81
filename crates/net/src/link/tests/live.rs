//! Two ends over a pipe, on tokio's paused clock: time passes only when every task waits.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use protocol::NodeId;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    time::{Instant, sleep},
};

use crate::{
    Heartbeat, Link, LinkError, LinkOptions, PeerInfo, Purpose, Received, Role, SegmentError, SendError,
    Shape,
    link::segment::{HEADER, Header},
};

pub(super) fn peer(n: u8) -> PeerInfo {
    PeerInfo {
        node: NodeId([n; 32]),
        role: Role::Stage,
        purpose: Purpose::Rows,
        address: format!("test {n}"),
    }
}

fn pair(options: &LinkOptions) -> (Link, Link) {
    let (a, b) = duplex(64 << 10);
    (Link::over(a, peer(2), options), Link::over(b, peer(1), options))
}

fn beating() -> LinkOptions {
    LinkOptions { heartbeat: Some(Heartbeat::default()), ..LinkOptions::default() }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn closed(reason: &str) -> LinkError {
    LinkError::Closed { reason: reason.to_owned() }
}

/// A link whose other end is in the test's hands.
fn bare(options: &LinkOptions) -> (Link, DuplexStream) {
    let (a, b) = duplex(1 << 20);
    (Link::over(a, peer(2), options), b)
}

#[tokio::test(start_paused = true)]
async fn frames_travel_both_ways() {
    let (left, right) = pair(&LinkOptions::default());
    assert_eq!(left.peer(), &peer(2));
    let ((to_right, mut at_left), (to_left, mut at_right)) = (left.split(), right.split());
    to_right.send(5, text("head "), text("body")).unwrap();
    to_left.send(6, text("back"), Bytes::new()).unwrap();
    to_left.send(7, Bytes::new(), Bytes::new()).unwrap();
    assert_eq!(at_right.recv().await, Ok(Received { stream: 5, bytes: text("head body") }));
    assert_eq!(at_left.recv().await, Ok(Received { stream: 6, bytes: text("back") }));
    assert_eq!(at_left.recv().await, Ok(Received { stream: 7, bytes: Bytes::new() }));
    assert_eq!((to_right.stats().frames_sent, to_right.stats().frames_received), (1, 2));
    assert_eq!(to_right.stats().bytes_sent, HEADER as u64 + 9);
}

#[tokio::test(start_paused = true)]
async fn decode_overtakes_bulk_but_never_its_own_stream() {
    let (left, right) = pair(&LinkOptions::default());
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    tx.send_bulk(1, Bytes::new(), vec![1; 4 << 20].into()).unwrap();
    tx.send(1, Bytes::new(), text("after bulk")).unwrap();
    tx.send(2, text("first"), Bytes::new()).unwrap();
    tx.send(2, text("second"), Bytes::new()).unwrap();
    let mut order = Vec::new();
    for _ in 0..4 {
        let frame = rx.recv().await.unwrap();
        order.push((frame.stream, frame.bytes.len()));
    }
    assert_eq!(order, [(2, 5), (2, 6), (1, 4 << 20), (1, 10)]);
}

#[tokio::test(start_paused = true)]
async fn a_close_comes_after_what_was_sent_and_tells_why() {
    let (left, right) = pair(&LinkOptions::default());
    let ((tx, mut at_left), (back, mut rx)) = (left.split(), right.split());
    tx.send(1, Bytes::new(), vec![7; 1 << 20].into()).unwrap();
    tx.close("the line is being rebuilt");
    tx.close("second thoughts");
    assert_eq!(tx.send(1, text("late"), Bytes::new()), Err(closed("the line is being rebuilt").into()));
    assert_eq!(rx.recv().await.unwrap().bytes.len(), 1 << 20);
    assert_eq!(rx.recv().await, Err(closed("the line is being rebuilt")));
    assert_eq!(rx.recv().await, Err(closed("the line is being rebuilt")));
    assert_eq!(back.send(1, text("x"), Bytes::new()), Err(closed("the line is being rebuilt").into()));
    assert_eq!(at_left.recv().await, Err(closed("the line is being rebuilt")));
}

#[tokio::test(start_paused = true)]
async fn letting_go_of_both_halves_ends_the_link_and_its_tasks() {
    let (left, right) = pair(&beating());
    let (tx, rx) = left.split();
    let clone = tx.clone();
    drop((tx, rx));
    let (back, mut other) = right.split();
    clone.send(3, text("still here"), Bytes::new()).unwrap();
    assert_eq!(other.recv().await.unwrap().bytes, text("still here"));
    drop(clone);
    assert_eq!(other.recv().await, Err(closed("the other side let go of the link")));
    drop((back, other));
    all_tasks_end().await;
}

/// Time only passes while tasks wait, so that this ends at once unless a task stays.
async fn all_tasks_end() {
    let limit = Instant::now() + Duration::from_secs(60);
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < limit, "a task outlived its link");
        sleep(ms(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_without_a_close_is_seen_at_once() {
    let (link, other) = bare(&LinkOptions::default());
    let (tx, mut rx) = link.split();
    let before = Instant::now();
    drop(other);
    assert_eq!(rx.recv().await, Err(LinkError::PeerGone));
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(tx.send(1, text("x"), Bytes::new()), Err(SendError::Ended(LinkError::PeerGone)));
}

#[tokio::test(start_paused = true)]
async fn a_frozen_peer_is_found_by_the_heartbeat() {
    let (link, _frozen) = bare(&beating());
    let (_tx, mut rx) = link.split();
    let before = Instant::now();
    assert_eq!(rx.recv().await, Err(LinkError::PeerSilent { after: ms(1000) }));
    assert!((ms(1000)..=ms(1010)).contains(&before.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_freezes_later_is_found_on_both_sides_of_a_beat_set_by_one() {
    let (left, right) = pair(&LinkOptions::default());
    drop((left, right));
    // The end under test asked for no heartbeat; the other end's first ping brings it.
    let (link, mut other) = bare(&LinkOptions::default());
    let (_tx, mut rx) = link.split();
    sleep(ms(10_000)).await;
    other.write_all(&Header::Ping { number: 9, beat: Heartbeat::default() }.encode()).await.unwrap();
    let mut answer = [0; 2 * HEADER];
    other.read_exact(&mut answer).await.unwrap();
    let (pong, ping) = answer.split_at(HEADER);
    assert_eq!(Header::decode(pong.try_into().unwrap()), Ok(Header::Pong { number: 9 }));
    assert!(matches!(Header::decode(ping.try_into().unwrap()), Ok(Header::Ping { number: 1, .. })));
    assert_eq!(rx.recv().await, Err(LinkError::PeerSilent { after: ms(1000) }));
}

#[tokio::test(start_paused = true)]
async fn a_living_idle_link_stays_and_knows_its_round_trip() {
    let shape = Shape { delay: ms(20), ..Shape::default() };
    let (a, b) = duplex(64 << 10);
    let left = Link::over(a, peer(2), &LinkOptions { shape: Some(shape), ..beating() });
    let right = Link::over(b, peer(1), &LinkOptions { shape: Some(shape), ..LinkOptions::default() });
    let ((tx, _left), (back, mut rx)) = (left.split(), right.split());
    sleep(Duration::from_secs(3600)).await;
    for end in [&tx, &back] {
        let rtt = end.stats().rtt.unwrap();
        assert!((ms(40)..=ms(45)).contains(&rtt), "{rtt:?}");
    }
    tx.send(1, text("hello"), Bytes::new()).unwrap();
    assert_eq!(rx.recv().await.unwrap().bytes, text("hello"));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_take_its_frames_is_slow_but_not_dead() {
    let options = LinkOptions { inbox_bytes: 128 << 10, ..beating() };
    let (left, right) = pair(&options);
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    for n in 0..100 {
        tx.send(n, Bytes::new(), vec![n as u8; 60_000].into()).unwrap();
    }
    sleep(Duration::from_secs(30)).await;
    assert!(tx.stats().queued_bytes > 80 * 60_000, "the queue waits with the sender");
    for n in 0..100 {
        assert_eq!(rx.recv().await.unwrap().stream, n);
    }
    sleep(Duration::from_secs(30)).await;
    tx.send(1, text("alive"), Bytes::new()).unwrap();
    assert_eq!(rx.recv().await.unwrap().bytes, text("alive"));
}

#[tokio::test(start_paused = true)]
async fn a_sender_is_told_when_its_queue_is_full() {
    let options = LinkOptions { outbox_bytes: 1 << 20, inbox_bytes: 64 << 10, ..LinkOptions::default() };
    let (left, right) = pair(&options);
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    let frame = Bytes::from(vec![0; 64 << 10]);
    let taken = (0..100).take_while(|_| tx.send(1, Bytes::new(), frame.clone()).is_ok()).count();
    assert!((10..20).contains(&taken), "{taken}");
    assert!(matches!(tx.send(1, Bytes::new(), frame.clone()), Err(SendError::Full { .. })));
    for _ in 0..taken {
        rx.recv().await.unwrap();
    }
    tx.send(1, Bytes::new(), frame).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frame_larger_than_the_inbox_still_passes() {
    let (left, right) =
        pair(&LinkOptions { inbox_bytes: 1 << 10, outbox_bytes: 1 << 10, ..LinkOptions::default() });
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    tx.send(1, Bytes::new(), vec![1; 3 << 20].into()).unwrap();
    assert_eq!(rx.recv().await.unwrap().bytes.len(), 3 << 20);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_frame_end_the_link_and_the_peer_is_told() {
    let (link, mut other) = bare(&LinkOptions::default());
    let (_tx, mut rx) = link.split();
    other.write_all(b"GET / HTTP/1.1\r\nHost: stage\r\n\r\n").await.unwrap();
    assert_eq!(rx.recv().await, Err(LinkError::Protocol(SegmentError::UnknownKind(b'G'))));
    let mut told = Vec::new();
    other.read_to_end(&mut told).await.unwrap();
    assert_eq!(told[0], 4);
    assert!(String::from_utf8_lossy(&told).contains("segment kind 71 is unknown"));
    drop(other);
    all_tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn a_close_to_a_peer_that_takes_nothing_ends_all_the_same() {
    let (link, _stuck) = bare(&LinkOptions::default());
    let (tx, mut rx) = link.split();
    tx.send(1, Bytes::new(), vec![0; 8 << 20].into()).unwrap();
    tx.close("enough");
    let before = Instant::now();
    assert_eq!(rx.recv().await, Err(closed("enough")));
    assert!(before.elapsed() <= ms(2010), "{:?}", before.elapsed());
    drop((tx, rx));
    all_tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn frames_without_a_receiver_are_thrown_away_and_the_link_goes_on() {
    let options = LinkOptions { inbox_bytes: 1 << 10, ..LinkOptions::default() };
    let (left, right) = pair(&options);
    let ((tx, mut at_left), (back, rx)) = (left.split(), right.split());
    for _ in 0..10 {
        tx.send(1, Bytes::new(), vec![0; 100_000].into()).unwrap();
    }
    drop(rx);
    back.send(1, text("fine"), Bytes::new()).unwrap();
    assert_eq!(at_left.recv().await.unwrap().bytes, text("fine"));
    while tx.stats().queued_bytes > 0 {
        sleep(ms(1)).await;
    }
}

/// When each of `n` frames of `len` bytes, sent at once, arrives.
async fn arrivals(shape: &str, n: usize, len: usize) -> Vec<Duration> {
    let shape = Some(shape.parse().unwrap());
    let (left, right) = pair(&LinkOptions { shape, ..LinkOptions::default() });
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    let start = Instant::now();
    for i in 0..n {
        tx.send(i as u64, Bytes::new(), vec![0; len].into()).unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "the sender does not wait");
    let mut arrivals = Vec::new();
    for i in 0..n {
        assert_eq!(rx.recv().await.unwrap().stream, i as u64);
        arrivals.push(start.elapsed());
    }
    arrivals
}

/// Timers are whole milliseconds and may fire one late.
fn about(found: Duration, expected: Duration) -> bool {
    (expected..=expected + ms(2)).contains(&found)
}

#[tokio::test(start_paused = true)]
async fn a_shaped_link_delays_without_holding_back() {
    let found = arrivals("delay=50ms", 20, 60_000).await;
    assert!(found.iter().all(|&at| about(at, ms(50))), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shaped_link_keeps_its_rate() {
    // 12,500 bytes per ms.
    let found = arrivals("delay=5ms,rate=100mbit", 20, 62_500).await;
    for (i, &at) in found.iter().enumerate() {
        assert!(
            (ms(5 * (i as u64 + 2))..=ms(5 * (i as u64 + 2) + 5 + i as u64)).contains(&at),
            "{i}: {at:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_and_loss_delay_but_keep_the_order() {
    let steady = arrivals("delay=20ms,jitter=10ms,seed=1", 50, 40_000).await;
    assert!(steady.windows(2).all(|pair| pair[0] <= pair[1]) && steady[0] >= ms(10));
    let stalled = arrivals("delay=20ms,loss=5%,seed=1", 50, 40_000).await;
    assert!(*stalled.last().unwrap() >= ms(20 + 200 + 40));
}

#[tokio::test(start_paused = true)]
async fn decode_overtakes_bulk_on_a_slow_link() {
    let shape = Some("rate=10mbit".parse().unwrap());
    let (left, right) = pair(&LinkOptions { shape, ..LinkOptions::default() });
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    tx.send_bulk(1, Bytes::new(), vec![0; 4 << 20].into()).unwrap();
    sleep(ms(500)).await;
    let sent = Instant::now();
    tx.send(2, text("token"), Bytes::new()).unwrap();
    assert_eq!(rx.recv().await.unwrap().stream, 2);
    // The segment under way takes 52 ms; the bulk frame would have taken 2.9 s.
    assert!(sent.elapsed() <= ms(60), "{:?}", sent.elapsed());
    assert_eq!(rx.recv().await.unwrap().stream, 1);
}

#[tokio::test(start_paused = true)]
async fn a_close_travels_through_a_shaped_link_behind_the_frames() {
    let shape = Some("delay=100ms".parse().unwrap());
    let (left, right) = pair(&LinkOptions { shape, ..LinkOptions::default() });
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    tx.send(1, text("last words"), Bytes::new()).unwrap();
    tx.close("bye");
    assert_eq!(rx.recv().await.unwrap().bytes, text("last words"));
    assert_eq!(rx.recv().await, Err(closed("bye")));
}

/// What has arrived, without waiting.
fn arrived(carrier: &mut DuplexStream) -> usize {
    let mut bytes = [0; 256];
    let mut room = ReadBuf::new(&mut bytes);
    match Pin::new(carrier).poll_read(&mut Context::from_waker(Waker::noop()), &mut room) {
        Poll::Ready(Ok(())) => room.filled().len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_writes_its_own_frame_when_nothing_else_is_written() {
    let (left, mut carrier) = bare(&LinkOptions::default());
    let (tx, _rx) = left.split();
    tx.send(1, text("head "), text("body")).unwrap();
    // No other task has run.
    assert_eq!(arrived(&mut carrier), HEADER + 9);
    assert_eq!(tx.stats().queued_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shaped_link_holds_back_what_is_sent() {
    let shape = Some("delay=10ms".parse().unwrap());
    let (left, mut carrier) = bare(&LinkOptions { shape, ..LinkOptions::default() });
    let (tx, _rx) = left.split();
    tx.send(1, text("head "), text("body")).unwrap();
    let sent = Instant::now();
    carrier.read_u8().await.unwrap();
    assert_eq!(sent.elapsed(), ms(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_many_threads_keep_their_order_on_a_carrier_that_takes_little() {
    const FRAMES: u32 = 2000;
    let (a, b) = duplex(100);
    let (left, right) =
        (Link::over(a, peer(2), &LinkOptions::default()), Link::over(b, peer(1), &LinkOptions::default()));
    let ((tx, _left), (_right, mut rx)) = (left.split(), right.split());
    let threads: Vec<_> = (0..4_u64)
        .map(|stream| {
            let tx = tx.clone();
            let send = move || {
                for n in 0..FRAMES {
                    tx.send(stream, n.to_le_bytes().to_vec().into(), vec![7; 90].into()).unwrap();
                }
            };
            std::thread::Builder::new().spawn(send).unwrap()
        })
        .collect();
    let mut next = [0; 4];
    for _ in 0..4 * FRAMES {
        let frame = rx.recv().await.unwrap();
        let expected = &mut next[frame.stream as usize];
        assert_eq!(frame.bytes.get(..4), Some(&u32::to_le_bytes(*expected)[..]));
        *expected += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_link_that_has_ended_lets_go_of_its_carrier_whoever_still_holds_a_sender() {
    let (left, mut carrier) = bare(&LinkOptions::default());
    let (tx, mut rx) = left.split();
    carrier.write_all(&Header::Close { len: 0 }.encode()).await.unwrap();
    assert_eq!(rx.recv().await, Err(closed("")));
    let mut rest = Vec::new();
    carrier.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [0; 0]);
    assert_eq!(tx.send(1, text("late"), Bytes::new()), Err(SendError::Ended(closed(""))));
}
