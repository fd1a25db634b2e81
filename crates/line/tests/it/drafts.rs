//! A second model beside the front: null engines draft for null engines.

use std::time::Duration;

use line::{Front, StageAddress, StageSpec};
use net::Identity;
use protocol::Token;
use scheduler::Event;
use spec::{Sources, Speculate};
use stage::null::{CallTime, NullEngine};
use tokio::sync::watch;

use crate::support::{
    LineOptions, N_VOCAB, PATIENCE, TestStage, WIDTH, check, collect, expected, front_config,
    no_live_sequences, ready, request,
};

/// Two stages that take 5 ms a call, and a drafter with `n_slots` that takes 100 us.
async fn drafted(sources: &str, n_slots: u16, context: u32) -> (Front, Vec<TestStage>) {
    let time = CallTime { per_call: Duration::from_millis(5), per_row: Duration::ZERO };
    let options = LineOptions { n_stages: 2, time, ..LineOptions::default() };
    let (identity, identities) = Identity::ephemeral_cluster(2).unwrap();
    let (mut stages, mut specs) = (Vec::new(), Vec::new());
    for own in &identities {
        let stage = TestStage::start(own.clone(), time).await;
        let (_, address) = watch::channel(Some(stage.address.clone()));
        specs.push(StageSpec { address: StageAddress::Remote { address, node: Some(stage.node.id()) } });
        stages.push(stage);
    }
    let mut config = front_config(identity, specs, &options);
    config.scheduler.speculate =
        Speculate { sources: sources.parse::<Sources>().unwrap(), ..Speculate::default() };
    let mut shape = NullEngine::shape(0, 1, WIDTH, n_slots);
    shape.context = context;
    assert_eq!(shape.n_vocab, N_VOCAB);
    let time = CallTime { per_call: Duration::from_micros(100), per_row: Duration::ZERO };
    let front = Front::start_with(config, Box::new(NullEngine::new(shape, time))).unwrap();
    ready(&front).await;
    (front, stages)
}

/// Runs a request; how many guesses were sent and how many of them were right.
async fn guesses(front: &Front, prompt: &[i32], n: u32) -> (u32, u32) {
    let (_, events) = front.submit(request(prompt, n)).unwrap();
    let (tokens, last) = collect(events).await;
    assert_eq!(tokens, expected(prompt, n));
    match last {
        Event::Done { timings, .. } => (timings.drafted, timings.accepted),
        other => panic!("not done: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drafts_run_ahead_and_the_answer_is_that_of_plain_decoding() {
    for sources in ["draft=null", "suffix,draft=null", "auto,draft=null"] {
        let (front, _stages) = drafted(sources, 4, 4096).await;
        let (sent, right) = guesses(&front, &[1, 2, 3], 60).await;
        assert!(right > 20 && sent >= right, "{sources}: {right} of {sent} guesses were right");
        let tally = front.snapshot().stats.guesses;
        let own = tally.sources().find(|source| source.name == "draft").unwrap();
        assert!(own.guesses.accepted > 20, "{own:?}");
        let asked = (0..4).map(|i| {
            let front = front.clone();
            async move { check(&front, &[i, 2, 3, 4, 5, 6, 7], 40).await }
        });
        let running: Vec<_> = asked.map(tokio::spawn).collect();
        for one in running {
            one.await.unwrap();
        }
        no_live_sequences(&front, PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_without_a_draft_slot_or_beyond_the_drafters_context_go_on_without() {
    let (front, _stages) = drafted("draft=null", 1, 64).await;
    let long: Vec<i32> = (0..200).collect();
    assert_eq!(guesses(&front, &long, 20).await, (0, 0));
    let (_, first) = front.submit(request(&[7], 60)).unwrap();
    let (_, second) = front.submit(request(&[8], 60)).unwrap();
    let (first, second) = tokio::join!(collect(first), collect(second));
    assert_eq!((first.0, second.0), (expected(&[7], 60), expected(&[8], 60)));
    let of = |last: Event| match last {
        Event::Done { timings, .. } => timings.accepted,
        other => panic!("not done: {other:?}"),
    };
    assert!(of(first.1) > 0);
    assert_eq!(of(second.1), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_cancelled_gives_its_draft_slot_back() {
    let (front, _stages) = drafted("draft=null", 1, 4096).await;
    for round in 0..5 {
        let (id, mut events) = front.submit(request(&[round, 1], 4000)).unwrap();
        loop {
            let event = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
            if matches!(&event, Event::Tokens { tokens, .. } if tokens.iter().all(|&token| token >= Token(0)))
            {
                break;
            }
        }
        front.cancel(id);
        no_live_sequences(&front, PATIENCE).await;
    }
    assert!(guesses(&front, &[3], 60).await.1 > 0);
}
