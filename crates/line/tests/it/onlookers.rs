//! What somebody sees who only looks on.

use line::Onlookers;
use scheduler::{Moved, Movement};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;

use crate::support::{LineOptions, PATIENCE, TestLine, check, collect, request};

fn look_at(line: &TestLine, capacity: usize) -> (watch::Receiver<()>, broadcast::Receiver<Movement>) {
    let onlookers =
        Onlookers { changed: watch::Sender::new(()), movements: broadcast::Sender::new(capacity) };
    let seen = (onlookers.changed.subscribe(), onlookers.movements.subscribe());
    line.front.show_to(onlookers);
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_window_and_chunk_of_a_request_is_seen_to_leave_and_to_come_back() {
    let line = TestLine::start(LineOptions::default()).await;
    line.ready().await;
    let (mut changed, mut movements) = look_at(&line, 1024);
    let prompt: Vec<i32> = (0..300).map(|i| i % 256).collect();
    let (id, events) = line.front.submit(request(&prompt, 20)).unwrap();
    collect(events).await;
    timeout(PATIENCE, changed.changed()).await.unwrap().unwrap();
    let (mut windows, mut chunk_rows, mut tokens, mut computed) = (Vec::new(), 0, 0, 0);
    let mut at = std::time::Duration::ZERO;
    loop {
        let movement = timeout(PATIENCE, movements.recv()).await.unwrap().unwrap();
        assert_eq!(movement.request, id, "probes are nobody's");
        assert!(movement.at >= at);
        at = movement.at;
        match movement.what {
            Moved::Chunk { end, rows } => {
                chunk_rows += rows;
                assert_eq!(end, chunk_rows);
            }
            Moved::Progress { end } => computed = end,
            Moved::Window { window, .. } => windows.push(window),
            Moved::Verdict { window, tokens: brought } => {
                assert!(windows.contains(&window));
                tokens += brought;
            }
            Moved::Over => break,
        }
    }
    assert_eq!((chunk_rows, computed, tokens), (299, 299, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_who_does_not_look_slows_nobody() {
    let line = TestLine::start(LineOptions::default()).await;
    line.ready().await;
    let (_changed, mut movements) = look_at(&line, 8);
    check(&line.front, &[1, 2, 3], 200).await;
    assert!(matches!(movements.recv().await, Err(RecvError::Lagged(n)) if n > 300));
}
