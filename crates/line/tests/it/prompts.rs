//! What a prompt itself gives, over real links: the null engine's hidden row is its token.

use std::time::Duration;

use line::Onlookers;
use protocol::{Found, OfPrompt, Pooling};
use scheduler::{Event, Finish, Moved, Request};
use stage::null::CallTime;
use tokio::sync::{broadcast, mpsc, watch};

use crate::support::{
    CONTEXT, LineOptions, PATIENCE, TestLine, TestStage, WIDTH, check, no_live_sequences, ready, request,
};

fn prompt(n: usize) -> Vec<i32> {
    (0..n).map(|i| (i * 7 % 256) as i32).collect()
}

fn wanting(prompt: &[i32], of_prompt: OfPrompt) -> Request {
    Request { of_prompt: Some(of_prompt), ..request(prompt, 0) }
}

/// The first value of each row, and how many parts they came in.
async fn rows(mut events: mpsc::Receiver<Event>) -> (Vec<f32>, usize) {
    let (mut values, mut n_parts) = (Vec::new(), 0);
    loop {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time");
        match event.expect("a last event") {
            Event::Started { .. } => {}
            Event::Prompt(Found::Rows(rows)) => {
                assert_eq!(rows.width as usize, WIDTH);
                values.extend(rows.values.iter().step_by(WIDTH));
                n_parts += 1;
            }
            Event::Done { finish: Finish::Length, .. } => return (values, n_parts),
            other => panic!("{other:?}"),
        }
    }
}

async fn embed(line: &TestLine, prompt: &[i32], pooling: Pooling) -> (Vec<f32>, usize) {
    let (_, events) = line.front.submit(wanting(prompt, OfPrompt::Embedding(pooling))).unwrap();
    rows(events).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embeddings_come_back_from_lines_of_any_length_directly_and_relayed() {
    let prompt = prompt(1000);
    let floats: Vec<f32> = prompt.iter().map(|&id| id as f32).collect();
    let mean = (prompt.iter().map(|&id| f64::from(id)).sum::<f64>() / 1000.0) as f32;
    for (n_stages, relay) in [(1, false), (3, false), (4, true)] {
        let line = TestLine::start(LineOptions { n_stages, relay, ..LineOptions::default() }).await;
        line.ready().await;
        assert_eq!(embed(&line, &prompt, Pooling::Mean).await, (vec![mean], 1));
        assert_eq!(embed(&line, &prompt, Pooling::First).await, (vec![floats[0]], 1));
        assert_eq!(embed(&line, &prompt, Pooling::Last).await, (vec![floats[999]], 1));
        let (all, n_parts) = embed(&line, &prompt, Pooling::None).await;
        assert!(all == floats && n_parts > 5, "one part for each chunk: {n_parts}");
        check(&line.front, &[1, 2, 3], 10).await;
        no_live_sequences(&line.front, PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_fills_the_context_says_everything_without_being_read_meanwhile() {
    let line = TestLine::start(LineOptions { n_stages: 1, ..LineOptions::default() }).await;
    line.ready().await;
    let prompt = prompt(CONTEXT as usize);
    let (_, events) = line.front.submit(wanting(&prompt, OfPrompt::Embedding(Pooling::None))).unwrap();
    no_live_sequences(&line.front, PATIENCE).await;
    assert_eq!(rows(events).await.0.len(), prompt.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_stage_costs_a_prompt_nothing_but_time_and_no_part_comes_twice() {
    let time = CallTime { per_call: Duration::from_millis(20), per_row: Duration::ZERO };
    let options = LineOptions { time, replay_timeout: PATIENCE, ..LineOptions::default() };
    let mut line = TestLine::start(options).await;
    line.ready().await;
    let (movements, mut moved) = broadcast::channel(4096);
    line.front.show_to(Onlookers { changed: watch::Sender::new(()), movements });
    let prompt = prompt(2000);
    let floats: Vec<f32> = prompt.iter().map(|&id| id as f32).collect();
    for (round, pooling) in [Pooling::None, Pooling::Last].into_iter().enumerate() {
        let at = 1 + round;
        let (id, events) = line.front.submit(wanting(&prompt, OfPrompt::Embedding(pooling))).unwrap();
        let begun = async {
            loop {
                let movement = moved.recv().await.unwrap();
                if movement.request == id && matches!(movement.what, Moved::Progress { end: 500.. }) {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.expect("it begins");
        line.stages.remove(at).kill();
        let stage = TestStage::start(line.identities[at].clone(), time).await;
        line.addresses[at].send(Some(stage.address.clone())).unwrap();
        line.stages.insert(at, stage);
        let (found, _) = rows(events).await;
        assert_eq!(found, if pooling == Pooling::None { floats.clone() } else { vec![floats[1999]] });
        ready(&line.front).await;
    }
}
