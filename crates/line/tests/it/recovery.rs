//! Slow, frozen, failing and abandoned stages; cancelled requests; a second front.

use std::sync::Arc;
use std::time::Duration;

use line::{EngineSource, Front, LineReadiness, LoadError, StageAddress, StageSpec};
use net::{ClusterRoot, Heartbeat, Identity, Role};
use protocol::{Command, Holding, PeerIndex, ToStage};
use scheduler::{Event, Finish};
use stage::Engine;
use stage::null::CallTime;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::by_hand::{GENERATION, assign, send, tail_of_two};
use crate::support::{
    HookedEngine, LineOptions, PATIENCE, TestLine, TestStage, check, collect, front_config, lost,
    no_live_sequences, not_ready_because, ready, request,
};

const ONE_SECOND: Heartbeat =
    Heartbeat { interval: Duration::from_millis(200), dead_after: Duration::from_secs(1) };

fn at(address: &str, node: Option<protocol::NodeId>) -> StageSpec {
    let (_, address) = watch::channel(Some(address.to_owned()));
    StageSpec { address: StageAddress::Remote { address, node } }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_computes_for_longer_than_the_heartbeats_limit_is_slow_and_not_dead() {
    let (identity, stages) = Identity::ephemeral_cluster(2).unwrap();
    let slow = CallTime { per_call: 3 * ONE_SECOND.dead_after, per_row: Duration::ZERO };
    let first = TestStage::start(stages[0].clone(), CallTime::default()).await;
    let tail = TestStage::start(stages[1].clone(), slow).await;
    let specs = vec![at(&first.address, None), at(&tail.address, None)];
    let options = LineOptions { n_stages: 2, heartbeat: ONE_SECOND, ..LineOptions::default() };
    let front = Front::start(front_config(identity, specs, &options));
    ready(&front).await;
    check(&front, &[1], 1).await;
    assert_eq!(*tail.loads.borrow(), 1);
    assert_eq!(front.readiness(), LineReadiness::Ready);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_gives_its_memory_back_on_every_stage_within_200_ms() {
    let slow = CallTime { per_call: Duration::from_millis(20), per_row: Duration::from_millis(4) };
    let line = TestLine::start(LineOptions { time: slow, ..LineOptions::default() }).await;
    line.ready().await;
    no_live_sequences(&line.front, PATIENCE).await;
    let prompt: Vec<i32> = (0..6).collect();
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let (id, mut events) = line.front.submit(request(&prompt, 4000)).unwrap();
        loop {
            match tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap() {
                Event::Tokens { .. } => break,
                Event::Started { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let cancelled = tokio::time::Instant::now();
        line.front.cancel(id);
        assert!(matches!(collect(events).await.1, Event::Done { finish: Finish::Cancelled, .. }));
        no_live_sequences(&line.front, PATIENCE).await;
        quickest = quickest.min(cancelled.elapsed());
    }
    // The machine may be busy with other things in some of the rounds, but not in all of them.
    assert!(quickest < Duration::from_millis(200), "{quickest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_prompt_is_not_computed_to_its_end() {
    let slow = CallTime { per_call: Duration::from_millis(200), per_row: Duration::ZERO };
    let line = TestLine::start(LineOptions { time: slow, ..LineOptions::default() }).await;
    line.ready().await;
    no_live_sequences(&line.front, PATIENCE).await;
    let before = line.front.snapshot().stats.prefilled_tokens;
    let long: Vec<i32> = (0..4000).map(|i| i % 256).collect();
    let (id, mut events) = line.front.submit(request(&long, 10)).unwrap();
    assert!(matches!(events.recv().await, Some(Event::Started { .. })));
    line.front.cancel(id);
    assert!(matches!(collect(events).await.1, Event::Done { finish: Finish::Cancelled, .. }));
    no_live_sequences(&line.front, PATIENCE).await;
    assert!(line.front.snapshot().stats.prefilled_tokens - before < 1000);
    check(&line.front, &[3], 1).await;
}

/// Passes bytes to a stage, or holds them back as a process that is frozen would.
struct Valve {
    address: String,
    open: watch::Sender<bool>,
}

impl Valve {
    async fn before(stage: &TestStage) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap().to_string();
        let (open, is_open) = watch::channel(true);
        let stage = stage.address.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = port.accept().await {
                let (stage, mut is_open) = (stage.clone(), is_open.clone());
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(stage).await.unwrap();
                    loop {
                        if is_open.wait_for(|&open| open).await.is_err() {
                            return;
                        }
                        tokio::select! {
                            _ = copy_bidirectional(&mut near, &mut far) => return,
                            _ = is_open.wait_for(|&open| !open) => {}
                        }
                    }
                });
            }
        });
        Self { address, open }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_freezes_makes_the_line_unready_and_its_thawing_heals_it() {
    let (identity, stages) = Identity::ephemeral_cluster(2).unwrap();
    let first = TestStage::start(stages[0].clone(), CallTime::default()).await;
    let tail = TestStage::start(stages[1].clone(), CallTime::default()).await;
    let valve = Valve::before(&tail).await;
    let specs = vec![at(&first.address, None), at(&valve.address, None)];
    let options = LineOptions { n_stages: 2, heartbeat: ONE_SECOND, ..LineOptions::default() };
    let front = Front::start(front_config(identity, specs, &options));
    for _ in 0..2 {
        ready(&front).await;
        check(&front, &[1, 2], 20).await;
        valve.open.send_replace(false);
        let (_, events) = front.submit(request(&[1], 4000)).unwrap();
        lost(&front, Duration::from_secs(5)).await;
        assert!(matches!(collect(events).await.1, Event::Failed(_)));
        valve.open.send_replace(true);
    }
    ready(&front).await;
    assert_eq!(*tail.loads.borrow(), 1, "it kept its layers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_front_is_told_that_the_stage_is_taken_and_gets_it_when_the_first_lets_go() {
    let root = ClusterRoot::new().unwrap();
    let fronts = [(); 2].map(|()| root.issue(Role::Front, None).unwrap());
    let stage = TestStage::start(root.issue(Role::Stage, None).unwrap(), CallTime::default()).await;
    let options = LineOptions { n_stages: 1, ..LineOptions::default() };
    let [first, second] =
        fronts.map(|identity| Front::start(front_config(identity, vec![at(&stage.address, None)], &options)));
    let [first, second] = tokio::select! {
        () = ready(&first) => [first, second],
        () = ready(&second) => [second, first],
    };
    not_ready_because(&second, "kept for front").await;
    check(&first, &[1], 20).await;
    first.release().await;
    ready(&second).await;
    check(&second, &[1], 20).await;
    assert_eq!(*stage.loads.borrow(), 1, "the layers stay for the next front");
}

/// Engines that say when they are gone.
struct Mortal {
    alive: watch::Sender<bool>,
}

/// Says when it is gone.
struct Life(watch::Sender<bool>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl EngineSource for Mortal {
    fn load(&self, holding: &Holding, _: &mut dyn FnMut(u16, &str)) -> Result<Box<dyn Engine>, LoadError> {
        self.alive.send_replace(true);
        let life = Life(self.alive.clone());
        // It lives as long as the engine that it belongs to.
        Ok(Box::new(HookedEngine::new(holding, holding.n_slots, move || _ = &life)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_frees_its_memory_when_released_and_when_its_lease_ends() {
    let (front, stages) = Identity::ephemeral_cluster(2).unwrap();
    for release in [true, false] {
        let (alive, mut seen) = watch::channel(false);
        let (_, loads) = watch::channel(0);
        let stage =
            TestStage::start_with(stages[1].clone(), Arc::new(Mortal { alive }), loads, Duration::ZERO).await;
        let link = assign(&stage, &front, tail_of_two(stages[0].node())).await;
        assert!(*seen.borrow_and_update());
        if release {
            let (to, command) = (PeerIndex(1), Command::Release);
            send(&link.sender, &ToStage { to, generation: GENERATION, command });
        } else {
            link.sender.close("the front ends");
        }
        tokio::time::timeout(PATIENCE, seen.wait_for(|&alive| !alive)).await.expect("freed").unwrap();
    }
}

/// A source with a bug.
struct Buggy;

impl EngineSource for Buggy {
    fn load(&self, _: &Holding, _: &mut dyn FnMut(u16, &str)) -> Result<Box<dyn Engine>, LoadError> {
        panic!("a bug in the loader")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_whose_loading_panics_says_so() {
    let (identity, stages) = Identity::ephemeral_cluster(1).unwrap();
    let (_, loads) = watch::channel(0);
    let stage = TestStage::start_with(stages[0].clone(), Arc::new(Buggy), loads, PATIENCE).await;
    let options = LineOptions { n_stages: 1, ..LineOptions::default() };
    let front = Front::start(front_config(identity, vec![at(&stage.address, None)], &options));
    not_ready_because(&front, "loading ended in a bug").await;
}
