//! Stages whose processes are told to end while a line serves: the front does without them first.

use std::time::Duration;

use scheduler::{Event, Finish};
use stage::null::CallTime;
use tokio::task::JoinHandle;

use crate::support::{LineOptions, PATIENCE, TestLine, TestStage, check, collect, expected, lost, request};

const SLOW: CallTime = CallTime { per_call: Duration::from_millis(2), per_row: Duration::ZERO };

fn leaving(stage: &TestStage) -> JoinHandle<()> {
    let node = stage.node.clone();
    tokio::spawn(async move { node.leave().await })
}

async fn left(leaving: JoinHandle<()>) {
    tokio::time::timeout(PATIENCE, leaving).await.expect("it may go").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_finished_before_a_stage_without_a_spare_goes_and_what_is_new_waits() {
    let options = LineOptions { n_stages: 2, time: SLOW, replay_timeout: PATIENCE, ..LineOptions::default() };
    let mut line = TestLine::start(options).await;
    line.ready().await;
    let (_, mut events) = line.front.submit(request(&[1], 200)).unwrap();
    let started = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert!(matches!(started, Some(Event::Started { .. })), "{started:?}");
    let going = leaving(&line.stages[1]);
    let (tokens, last) = collect(events).await;
    assert_eq!(tokens, expected(&[1], 200));
    assert!(matches!(last, Event::Done { finish: Finish::Length, .. }), "{last:?}");
    left(going).await;
    lost(&line.front, PATIENCE).await;
    // It takes nobody any more, so this one waits for the next stage in its place.
    let (_, events) = line.front.submit(request(&[2], 10)).unwrap();
    line.stages.remove(1).kill();
    let again = TestStage::start(line.identities[1].clone(), SLOW).await;
    line.addresses[1].send_replace(Some(again.address.clone()));
    assert_eq!(collect(events).await.0, expected(&[2], 10));
    assert_eq!(line.front.snapshot().stats.resumed, 0, "nobody was interrupted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_goes_at_once_where_no_front_needs_it() {
    let options = LineOptions { n_stages: 2, ..LineOptions::default() };
    let line = TestLine::start(options).await;
    line.ready().await;
    check(&line.front, &[1], 4).await;
    // The front is gone without a word.
    let TestLine { front, stages, identities, .. } = line;
    drop(front);
    left(leaving(&stages[1])).await;
    // It never had one.
    let alone = TestStage::start(identities[0].clone(), CallTime::default()).await;
    left(leaving(&alone)).await;
}
