//! Members that the cluster's root lets go while a line runs: whoever is told, everybody knows, and nothing is restarted.

use std::time::{Duration, SystemTime};

use line::{Front, StageAddress, StageSpec};
use net::{ClusterRoot, Identity, Role};
use stage::null::CallTime;
use tokio::sync::watch;

use crate::support::{
    LineOptions, PATIENCE, TestStage, check, collect, expected, front_config, lost, not_ready_because, ready,
    request,
};

/// A cluster's root and a front over two stages.
struct Line {
    root: ClusterRoot,
    identity: Identity,
    front: Front,
    stages: Vec<TestStage>,
    addresses: Vec<watch::Sender<Option<String>>>,
}

impl Line {
    async fn start() -> Self {
        let root = ClusterRoot::new().unwrap();
        let (mut stages, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let stage = TestStage::start(root.issue(Role::Stage, None).unwrap(), CallTime::default()).await;
            addresses.push(watch::Sender::new(Some(stage.address.clone())));
            stages.push(stage);
        }
        let identity = root.issue(Role::Front, None).unwrap();
        let front = Self::front(&identity, &addresses);
        ready(&front).await;
        Self { root, identity, front, stages, addresses }
    }

    fn front(identity: &Identity, addresses: &[watch::Sender<Option<String>>]) -> Front {
        let spec = |address: &watch::Sender<_>| StageSpec {
            address: StageAddress::Remote { address: address.subscribe(), node: None },
        };
        let options = LineOptions { n_stages: 2, ..LineOptions::default() };
        Front::start(front_config(identity.clone(), addresses.iter().map(spec).collect(), &options))
    }

    fn everybody(&self) -> impl Iterator<Item = &Identity> {
        self.stages.iter().map(|stage| &stage.identity).chain([&self.identity])
    }

    /// Tells one stage that a member is let go.
    async fn let_go(&self, gone: &Identity, told: &TestStage) {
        let observer = self.root.issue(Role::Observer, None).unwrap();
        let notice = self.root.notice(1, [gone.node()].into()).unwrap();
        let (_, sight) = line::observe(&told.address, &observer, "test", Some(notice.bytes())).await.unwrap();
        assert_eq!(sight.notice, 1);
    }
}

/// A member hears in time that another one is let go.
async fn hears_of(identity: &Identity, gone: &Identity) {
    let mut standings = identity.standings();
    let heard = standings.wait_for(|standing| standing.notice().is_some());
    tokio::time::timeout(PATIENCE, heard).await.expect("it hears").unwrap();
    assert!(identity.has_let_go(gone.node()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_is_let_go_is_off_the_line_whichever_stage_was_told() {
    for told in [0, 1] {
        let line = Line::start().await;
        check(&line.front, &[1], 10).await;
        let gone = line.stages[0].identity.clone();
        line.let_go(&gone, &line.stages[told]).await;
        lost(&line.front, PATIENCE).await;
        not_ready_because(&line.front, "let").await;
        // Its link may be cut before the notice has come by the other one.
        hears_of(&line.identity, &gone).await;
        // Another machine takes its place: it hears of what it has missed.
        let stage = TestStage::start(line.root.issue(Role::Stage, None).unwrap(), CallTime::default()).await;
        line.addresses[0].send_replace(Some(stage.address.clone()));
        ready(&line.front).await;
        check(&line.front, &[1], 10).await;
        for identity in [&stage.identity, &line.stages[1].identity] {
            hears_of(identity, &gone).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_that_is_let_go_loses_its_stages_at_once_and_another_gets_them() {
    let line = Line::start().await;
    // It would not pass on that it has to go.
    for stage in &line.stages {
        line.let_go(&line.identity, stage).await;
    }
    lost(&line.front, PATIENCE).await;
    let other = Line::front(&line.root.issue(Role::Front, None).unwrap(), &line.addresses);
    ready(&other).await;
    check(&other, &[1], 10).await;
    assert!(line.front.readiness() != line::LineReadiness::Ready);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_reaches_all_machines_of_a_line_and_disturbs_no_request() {
    for told in [0, 1] {
        let line = Line::start().await;
        let next = ClusterRoot::new().unwrap();
        let everybody: Vec<_> = line.everybody().map(Identity::membership).collect();
        let succession = line.root.hand_over(&next, SystemTime::UNIX_EPOCH, &everybody).unwrap();
        // One that believes those who have not heard, as whoever rotates does.
        let teller = next.issue(Role::Observer, None).unwrap();
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
        teller.heed(line.root.hand_over(&next, later, &everybody).unwrap().bytes()).unwrap();
        let (_, events) = line.front.submit(request(&[1], 200)).unwrap();
        let address = &line.stages[told].address;
        line::observe(address, &teller, "test", Some(succession.bytes())).await.unwrap();
        for identity in line.everybody() {
            let mut standings = identity.standings();
            let heard = standings.wait_for(|standing| standing.succession().is_some());
            tokio::time::timeout(PATIENCE, heard).await.expect("it hears").unwrap();
        }
        // Had a link been cut, it would have failed: nobody waits for a line here.
        assert_eq!(collect(events).await.0, expected(&[1], 200));
        // A machine that comes later is by the new root.
        let stage = TestStage::start(next.issue(Role::Stage, None).unwrap(), CallTime::default()).await;
        line.addresses[0].send_replace(Some(stage.address.clone()));
        lost(&line.front, PATIENCE).await;
        ready(&line.front).await;
        check(&line.front, &[1], 10).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_root_says_changes_nothing() {
    let line = Line::start().await;
    let observer = line.root.issue(Role::Observer, None).unwrap();
    let notice = ClusterRoot::new().unwrap().notice(9, [line.identity.node()].into()).unwrap();
    let told = line::observe(&line.stages[0].address, &observer, "test", Some(notice.bytes())).await;
    assert!(told.unwrap_err().to_string().contains("not signed by the root"));
    check(&line.front, &[1], 10).await;
}
