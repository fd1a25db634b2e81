//! Forming, serving, losing, returning.

use protocol::{RowDtype, Token};
use scheduler::{Event, Failure, Finish, Refusal};
use stage::null::CallTime;
use std::time::Duration;

use crate::support::{
    LineOptions, PATIENCE, TestLine, TestStage, check, collect, expected, lost, no_live_sequences, ready,
    request,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_any_length_say_what_plain_decoding_says() {
    for n_stages in [1, 2, 5] {
        let line = TestLine::start(LineOptions { n_stages, ..LineOptions::default() }).await;
        line.ready().await;
        check(&line.front, &[1, 2, 3], 40).await;
        let long: Vec<i32> = (0..1000).map(|i| i % 256).collect();
        check(&line.front, &long, 20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_without_layers_of_its_own_serves_too() {
    let line = TestLine::start(LineOptions { local_first: false, ..LineOptions::default() }).await;
    line.ready().await;
    check(&line.front, &[9, 8, 7], 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_that_the_front_does_not_dial_are_reached_through_their_neighbours() {
    let line = TestLine::start(LineOptions { n_stages: 4, relay: true, ..LineOptions::default() }).await;
    line.ready().await;
    check(&line.front, &[5], 40).await;
    assert!(line.front.snapshot().relayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn narrow_rows_reach_the_next_stage() {
    for row_dtype in [RowDtype::F16, RowDtype::Bf16, RowDtype::Q8] {
        let line = TestLine::start(LineOptions { row_dtype, ..LineOptions::default() }).await;
        line.ready().await;
        // Small whole numbers survive these dtypes; larger tokens would not, which is the point of f32.
        let (_, events) = line.front.submit(request(&[3], 1)).unwrap();
        assert_eq!(collect(events).await.0, expected(&[3], 1), "{row_dtype:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_share_the_line() {
    let line = TestLine::start(LineOptions::default()).await;
    line.ready().await;
    let submitted: Vec<_> = (0..24)
        .map(|i| {
            let prompt: Vec<i32> = (0..(1 + i * 13)).map(|k| (k * 7 + i) % 256).collect();
            let (_, events) = line.front.submit(request(&prompt, 30)).unwrap();
            (prompt, events)
        })
        .collect();
    for (prompt, events) in submitted {
        let (tokens, last) = collect(events).await;
        assert_eq!(tokens, expected(&prompt, 30));
        assert!(matches!(last, Event::Done { finish: Finish::Length, .. }));
    }
    no_live_sequences(&line.front, PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_ends_at_once_and_frees_its_memory_everywhere() {
    let slow = CallTime { per_call: Duration::from_millis(5), per_row: Duration::ZERO };
    let line = TestLine::start(LineOptions { time: slow, ..LineOptions::default() }).await;
    line.ready().await;
    let (id, mut events) = line.front.submit(request(&[1], 4000)).unwrap();
    loop {
        match tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap() {
            Event::Tokens { .. } => break,
            Event::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    line.front.cancel(id);
    let (_, last) = collect(events).await;
    assert!(matches!(last, Event::Done { finish: Finish::Cancelled, .. }));
    no_live_sequences(&line.front, PATIENCE).await;
    check(&line.front, &[4, 4], 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_stage_fails_what_runs_and_its_return_heals_the_line() {
    let slow = CallTime { per_call: Duration::from_millis(5), per_row: Duration::ZERO };
    let mut line = TestLine::start(LineOptions { time: slow, ..LineOptions::default() }).await;
    line.ready().await;
    for round in 0..3 {
        let (_, events) = line.front.submit(request(&[round], 4000)).unwrap();
        let at = 1 + round as usize % 2;
        let identity = line.identities[at].clone();
        line.stages.remove(at).kill();
        let (_, last) = collect(events).await;
        assert!(matches!(last, Event::Failed(Failure::LineLost { .. })), "{last:?}");
        assert_eq!(line.front.submit(request(&[1], 1)).err(), Some(Refusal::NotReady));
        let stage = TestStage::start(identity, slow).await;
        line.addresses[at].send(Some(stage.address.clone())).unwrap();
        line.stages.insert(at, stage);
        ready(&line.front).await;
        check(&line.front, &[round, 1], 10).await;
    }
    let loads: Vec<u32> = line.stages.iter().map(|stage| *stage.loads.borrow()).collect();
    assert_eq!(loads[0], 1, "a stage that stayed keeps its engine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_line_in_vain_hears_which_stage_is_away() {
    let slow = CallTime { per_call: Duration::from_millis(5), per_row: Duration::ZERO };
    let replay_timeout = Duration::from_secs(2);
    let mut line =
        TestLine::start(LineOptions { time: slow, replay_timeout, ..LineOptions::default() }).await;
    line.ready().await;
    let (_, events) = line.front.submit(request(&[1], 4000)).unwrap();
    // Its neighbours' links break as well, and who notices that first is chance.
    line.stages.remove(1).kill();
    let (_, last) = collect(events).await;
    let Event::Failed(Failure::LineLost { reason }) = last else { panic!("{last:?}") };
    assert!(reason.starts_with("stage 1 is away: "), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_outside_the_vocabulary_or_the_context_are_refused() {
    let line = TestLine::start(LineOptions { n_stages: 1, ..LineOptions::default() }).await;
    line.ready().await;
    assert_eq!(line.front.submit(request(&[256], 1)).err(), Some(Refusal::UnknownToken(Token(256))));
    assert!(matches!(
        line.front.submit(request(&vec![0; 4096], 1)).err(),
        Some(Refusal::ContextLength { prompt: 4096, context: 4096 })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relayed_stage_that_moved_is_found_again() {
    let mut line = TestLine::start(LineOptions { relay: true, ..LineOptions::default() }).await;
    line.ready().await;
    for at in [1, 2] {
        line.stages.remove(at).kill();
        let stage = TestStage::start(line.identities[at].clone(), CallTime::default()).await;
        line.addresses[at].send(Some(stage.address.clone())).unwrap();
        line.stages.insert(at, stage);
        lost(&line.front, PATIENCE).await;
        ready(&line.front).await;
        check(&line.front, &[7], 10).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_that_die_together_are_found_again_elsewhere() {
    let mut line = TestLine::start(LineOptions { n_stages: 4, ..LineOptions::default() }).await;
    for at in [[2, 1], [1, 3], [3, 2]] {
        line.ready().await;
        for at in at {
            let stage = TestStage::start(line.identities[at].clone(), CallTime::default()).await;
            line.addresses[at].send(Some(stage.address.clone())).unwrap();
            std::mem::replace(&mut line.stages[at], stage).kill();
        }
        lost(&line.front, PATIENCE).await;
        line.ready().await;
        check(&line.front, &[7], 10).await;
    }
}
