//! Machines that stand by: they take lost seats with what they hold, and who was lost stands by afterwards.

use std::time::Duration;

use line::{Cover, Front, LineSnapshot, PeerState, SpareSpec, StageAddress, StageSpec};
use net::Identity;
use protocol::{LayerRange, StageState};
use scheduler::{Event, Finish};
use stage::null::CallTime;
use tokio::sync::{mpsc, watch};

use crate::support::{
    LineOptions, PATIENCE, TestStage, check, collect, expected, front_config, ready, request,
};

const SLOW: CallTime = CallTime { per_call: Duration::from_millis(5), per_row: Duration::ZERO };

/// A line of two machines and one that stands by.
struct Covered {
    front: Front,
    machines: Vec<TestStage>,
    identities: Vec<Identity>,
    addresses: Vec<watch::Sender<Option<String>>>,
}

impl Covered {
    async fn start(lease: Duration) -> Self {
        let (identity, identities) = Identity::ephemeral_cluster(3).unwrap();
        let (mut machines, mut addresses, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for identity in &identities {
            let machine = TestStage::start(identity.clone(), SLOW).await;
            let (sender, address) = watch::channel(Some(machine.address.clone()));
            known.push(StageAddress::Remote { address, node: Some(machine.node.id()) });
            addresses.push(sender);
            machines.push(machine);
        }
        let spare = known.pop().unwrap();
        let stages = known.into_iter().map(|address| StageSpec { address }).collect();
        let options = LineOptions { n_stages: 2, replay_timeout: PATIENCE, ..LineOptions::default() };
        let mut config = front_config(identity, stages, &options);
        config.spares = vec![SpareSpec { address: spare, stage: None }];
        config.lease = lease;
        let line = Self { front: Front::start(config), machines, identities, addresses };
        ready(&line.front).await;
        line
    }

    /// Waits until the line looks so.
    async fn shows(&self, what: &str, is_so: impl Fn(&LineSnapshot) -> bool) {
        let mut changes = self.front.changes();
        let waiting = async {
            while !is_so(&self.front.snapshot()) {
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("never {what}: {:?}", self.front.snapshot());
        }
    }

    /// Waits until the spare holds the layers of a stage, and says which one.
    async fn covered(&self) -> usize {
        let warm = |line: &LineSnapshot| line.stages.iter().position(|stage| stage.cover == Cover::Warm);
        self.shows("covered", |line| warm(line).is_some()).await;
        warm(&self.front.snapshot()).unwrap()
    }

    /// The machine that has the seat.
    fn seated(&self, seat: usize) -> usize {
        let address = self.front.snapshot().stages[seat].peer.address.clone().unwrap();
        self.machines.iter().position(|machine| machine.address == address).unwrap()
    }

    fn loads(&self, machine: usize) -> u32 {
        *self.machines[machine].loads.borrow()
    }

    /// Ends a machine as if its process had been killed.
    fn kill(&mut self, machine: usize) {
        self.machines.remove(machine).kill();
    }

    /// Starts a machine again, at another port.
    async fn starts_again(&mut self, machine: usize) {
        let again = TestStage::start(self.identities[machine].clone(), SLOW).await;
        self.addresses[machine].send_replace(Some(again.address.clone()));
        self.machines.insert(machine, again);
    }
}

async fn first_token(events: &mut mpsc::Receiver<Event>) -> Vec<protocol::Token> {
    loop {
        match tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap() {
            Event::Tokens { tokens, .. } => return tokens,
            Event::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_goes_on_with_what_it_holds_and_who_was_lost_stands_by_in_turn() {
    let mut line = Covered::start(PATIENCE).await;
    for round in 0..3 {
        let seat = line.covered().await;
        let lost = line.seated(seat);
        let spare = (0..3).find(|&machine| (0..2).all(|seat| line.seated(seat) != machine)).unwrap();
        let loads = line.loads(spare);
        let (_, mut events) = line.front.submit(request(&[round], 100)).unwrap();
        let mut tokens = first_token(&mut events).await;
        line.kill(lost);
        let (rest, last) = collect(events).await;
        tokens.extend(rest);
        assert!(matches!(last, Event::Done { finish: Finish::Length, .. }), "{last:?}");
        assert_eq!(tokens, expected(&[round], 100));
        line.starts_again(lost).await;
        assert_eq!((line.seated(seat), line.loads(spare)), (spare, loads), "nothing was loaded");
        assert_eq!(line.front.snapshot().stats.resumed, round as u64 + 1);
    }
    // A machine that only stands by disturbs nobody.
    let seat = line.covered().await;
    let spare = (0..3).find(|&machine| (0..2).all(|seat| line.seated(seat) != machine)).unwrap();
    line.kill(spare);
    check(&line.front, &[7], 40).await;
    assert_eq!(line.front.snapshot().stats.resumed, 3);
    line.shows("uncovered", |line| line.stages[seat].cover == Cover::Nobody).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_shows_its_layers_and_without_its_lease_is_gone_until_it_is_back() {
    let lease = Duration::from_millis(300);
    let mut line = Covered::start(lease).await;
    let seat = line.covered().await;
    let shown = line.front.snapshot();
    let [spare] = &shown.spares[..] else { panic!("{shown:?}") };
    let start = seat as u32;
    assert_eq!(spare.layers, Some(LayerRange { start, end: start + 1 }));
    assert!(matches!(spare.peer.state, PeerState::Spare { state: StageState::Standby { .. }, .. }));
    line.kill(2);
    line.shows("gone", |line| line.spares.iter().all(|spare| spare.peer.gone)).await;
    for _ in 0..2 {
        line.starts_again(2).await;
        line.covered().await;
        let shown = line.front.snapshot();
        assert_eq!((shown.stages.len(), shown.spares.len()), (2, 1), "one machine each");
        assert!(!shown.spares[0].peer.gone);
        line.kill(2);
        line.shows("gone", |line| line.spares.iter().all(|spare| spare.peer.gone)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_is_told_to_end_hands_over_to_a_spare_also_to_one_that_has_to_load() {
    let mut line = Covered::start(PATIENCE).await;
    for round in 0..2 {
        let covered = line.covered().await;
        // First the stage whose layers the spare holds, then the other one.
        let seat = if round == 0 { covered } else { 1 - covered };
        let going = line.seated(seat);
        let (_, mut events) = line.front.submit(request(&[round], 100)).unwrap();
        let mut tokens = first_token(&mut events).await;
        let left = line.machines[going].node.leave();
        tokio::time::timeout(PATIENCE, left).await.expect("it may go");
        assert_ne!(line.seated(seat), going);
        let (rest, last) = collect(events).await;
        tokens.extend(rest);
        assert!(matches!(last, Event::Done { finish: Finish::Length, .. }), "{last:?}");
        assert_eq!(tokens, expected(&[round], 100));
        line.kill(going);
        line.starts_again(going).await;
    }
}
