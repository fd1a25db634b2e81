//! A stage that answers and whose engine does not come to the end of a call: its seat goes to a spare.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use line::{
    Cover, EngineSource, Front, LineReadiness, LoadError, PeerState, SpareSpec, StageAddress, StageSpec,
};
use net::Identity;
use protocol::Holding;
use scheduler::{Event, Finish};
use stage::Engine;
use tokio::sync::watch;

use crate::support::{
    HookedEngine, LineOptions, PATIENCE, SLOTS, TestStage, check, collect, expected, front_config,
    not_ready_because, ready, request,
};

/// Holds calls up while it is closed.
#[derive(Clone, Default)]
struct Barrier(Arc<(Mutex<bool>, Condvar)>);

impl Barrier {
    fn set(&self, closed: bool) {
        *self.0.0.lock().unwrap() = closed;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let closed = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(closed, |closed| *closed).unwrap());
    }
}

/// Opens a barrier however the test ends, so that no thread is left behind it.
struct Opened(Barrier);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Engines whose calls a barrier can hold up.
struct Halting(Barrier);

impl EngineSource for Halting {
    fn load(&self, holding: &Holding, _: &mut dyn FnMut(u16, &str)) -> Result<Box<dyn Engine>, LoadError> {
        let barrier = self.0.clone();
        Ok(Box::new(HookedEngine::new(holding, SLOTS, move || barrier.pass())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_whose_call_does_not_end_is_replaced_by_a_spare_and_its_request_goes_on() {
    let (identity, identities) = Identity::ephemeral_cluster(3).unwrap();
    let (mut machines, mut addresses) = (Vec::new(), Vec::new());
    let (barrier, open) = (Barrier::default(), Barrier::default());
    let _opened = Opened(barrier.clone());
    for (at, identity) in identities.into_iter().enumerate() {
        let (_, loads) = watch::channel(0);
        let halting = if at == 1 { barrier.clone() } else { open.clone() };
        let machine = TestStage::start_with(identity, Arc::new(Halting(halting)), loads, PATIENCE).await;
        let (_, address) = watch::channel(Some(machine.address.clone()));
        addresses.push(StageAddress::Remote { address, node: Some(machine.node.id()) });
        machines.push(machine);
    }
    let (replay_timeout, progress_timeout) = (PATIENCE, Duration::from_secs(3));
    let options = LineOptions { n_stages: 2, replay_timeout, progress_timeout, ..LineOptions::default() };
    let spare = addresses.pop().unwrap();
    let stages = addresses.into_iter().map(|address| StageSpec { address }).collect();
    let mut config = front_config(identity, stages, &options);
    config.spares = vec![SpareSpec { address: spare, stage: Some(protocol::StageIndex(1)) }];
    let front = Front::start(config);
    ready(&front).await;
    let mut changes = front.changes();
    while front.covers().unwrap()[1] != Cover::Warm {
        tokio::time::timeout(PATIENCE, changes.changed()).await.expect("it stands by").unwrap();
    }
    // Its process lives, its links stand and its heartbeats are answered.
    assert_eq!(front.readiness(), LineReadiness::Ready);
    barrier.set(true);
    let (_, events) = front.submit(request(&[3], 60)).unwrap();
    not_ready_because(&front, "work did not come back").await;
    let halted = front.snapshot().stages[1].peer.clone();
    assert_eq!(halted.address.as_deref(), Some(&machines[1].address[..]));
    assert!(!matches!(halted.state, PeerState::Away { .. }), "{halted:?}");
    let (tokens, last) = collect(events).await;
    assert!(matches!(last, Event::Done { finish: Finish::Length, .. }), "{last:?}");
    assert_eq!(tokens, expected(&[3], 60));
    let seated = front.snapshot().stages[1].peer.address.clone();
    assert_eq!(seated.as_deref(), Some(&machines[2].address[..]));
    assert_eq!(front.readiness(), LineReadiness::Ready);
    check(&front, &[1, 2], 20).await;
}
