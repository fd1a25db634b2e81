//! Links inside one process behave as links over a carrier do.

use bytes::Bytes;

use super::live::peer;
use crate::{LinkError, LinkOptions, Received, SendError, memory_pair};

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn closed(reason: &str) -> LinkError {
    LinkError::Closed { reason: reason.to_owned() }
}

#[tokio::test]
async fn frames_pass_in_order_without_a_copy() {
    let (a, b) = memory_pair(peer(1), peer(2), &LinkOptions::default());
    assert_eq!((a.peer(), b.peer()), (&peer(2), &peer(1)));
    let ((tx, mut at_a), (back, mut rx)) = (a.split(), b.split());
    let frame = Bytes::from(vec![1; 1000]);
    tx.send(1, frame.clone(), Bytes::new()).unwrap();
    tx.send(2, text("head "), text("body")).unwrap();
    back.send(3, text("verdict"), Bytes::new()).unwrap();
    assert_eq!(rx.recv().await.unwrap().bytes.as_ptr(), frame.as_ptr());
    assert_eq!(rx.recv().await, Ok(Received { stream: 2, bytes: text("head body") }));
    assert_eq!(at_a.recv().await, Ok(Received { stream: 3, bytes: text("verdict") }));
    assert_eq!((tx.stats().frames_sent, tx.stats().frames_received), (2, 1));
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let (a, b) =
        memory_pair(peer(1), peer(2), &LinkOptions { inbox_bytes: 100 << 10, ..LinkOptions::default() });
    let ((tx, _a), (_b, mut rx)) = (a.split(), b.split());
    let frame = Bytes::from(vec![0; 9 << 10]);
    for _ in 0..10 {
        tx.send(1, frame.clone(), Bytes::new()).unwrap();
    }
    assert_eq!(tx.send(1, frame.clone(), Bytes::new()), Err(SendError::Full { queued: 100 << 10 }));
    rx.recv().await.unwrap();
    tx.send(1, frame, Bytes::new()).unwrap();
}

#[tokio::test]
async fn a_close_comes_after_what_was_sent_and_ends_both_sides() {
    let (a, b) = memory_pair(peer(1), peer(2), &LinkOptions::default());
    let ((tx, mut at_a), (back, mut rx)) = (a.split(), b.split());
    tx.send(1, text("last"), Bytes::new()).unwrap();
    tx.close("done");
    assert_eq!(rx.recv().await.unwrap().bytes, text("last"));
    assert_eq!(rx.recv().await, Err(closed("done")));
    assert_eq!(at_a.recv().await, Err(closed("done")));
    assert_eq!(back.send(1, text("x"), Bytes::new()), Err(closed("done").into()));
}

#[tokio::test]
async fn letting_go_of_both_halves_ends_the_link() {
    let (a, b) = memory_pair(peer(1), peer(2), &LinkOptions::default());
    drop(a);
    let (_back, mut rx) = b.split();
    assert_eq!(rx.recv().await, Err(closed("the other side let go of the link")));
}

#[tokio::test]
async fn without_a_receiver_frames_are_thrown_away() {
    let (a, b) =
        memory_pair(peer(1), peer(2), &LinkOptions { inbox_bytes: 1 << 10, ..LinkOptions::default() });
    let ((tx, _a), (_b, rx)) = (a.split(), b.split());
    drop(rx);
    for _ in 0..100 {
        tx.send(1, text("x"), Bytes::new()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shape_applies_in_memory_too() {
    let shape = Some("delay=30ms".parse().unwrap());
    let (a, b) = memory_pair(peer(1), peer(2), &LinkOptions { shape, ..LinkOptions::default() });
    let ((tx, _a), (_b, mut rx)) = (a.split(), b.split());
    let start = tokio::time::Instant::now();
    tx.send(1, text("x"), Bytes::new()).unwrap();
    rx.recv().await.unwrap();
    assert!(start.elapsed() >= std::time::Duration::from_millis(30));
}
