//! Who is refused, and that both sides know why.

use std::sync::Arc;
use std::time::Duration;

use net::{ClusterRoot, DialOptions, Identity, LinkError, Purpose, Role};
use protocol::{
    Command, Generation, Hello, HelloReply, LinkRole, ModelId, PROTOCOL_VERSION, PeerIndex, RefuseReason,
    RowDtype, RowsHello, StageIndex, Tenant, ToStage,
};
use stage::null::CallTime;
use tokio::sync::watch;

use crate::by_hand::{
    GENERATION, Log, Spoken, assign, control, hello, rows, say, say_for, send, tail_layers, tail_of_two,
};
use crate::support::{NullSource, PATIENCE, TestStage, WIDTH};

/// A cluster with two fronts, three stages and an observer.
struct Cluster {
    fronts: [Identity; 2],
    stages: [Identity; 3],
    observer: Identity,
}

impl Cluster {
    fn new() -> Self {
        let root = ClusterRoot::new().unwrap();
        Self {
            fronts: [(); 2].map(|()| root.issue(Role::Front, None).unwrap()),
            stages: [(); 3].map(|()| root.issue(Role::Stage, None).unwrap()),
            observer: root.issue(Role::Observer, None).unwrap(),
        }
    }
}

/// Says `hello` and expects the refusal in the answer, in the close of the link, and in the stage's log, with the address.
async fn refused(stage: &TestStage, by: &Identity, hello: Hello, expected: RefuseReason) {
    let said = refused_with(stage, by, hello, &expected).await;
    let [line] = &said[..] else { panic!("{said:?}") };
    assert!(line.contains(&format!("link refused: {expected}")) && line.contains("127.0.0.1:"), "{line}");
}

/// The same, of somebody whose refusal is known already; so that nothing is logged.
async fn refused_again(stage: &TestStage, by: &Identity, hello: Hello, expected: RefuseReason) {
    assert_eq!(refused_with(stage, by, hello, &expected).await, Vec::<String>::new());
}

/// What the stage logs at the usual level about a refusal that its peer hears of twice.
async fn refused_with(
    stage: &TestStage,
    by: &Identity,
    hello: Hello,
    expected: &RefuseReason,
) -> Vec<String> {
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(log.clone());
    let mut link = say(stage, by, &hello).await;
    assert_eq!(link.reply, HelloReply::Refuse(expected.clone()));
    let end = tokio::time::timeout(PATIENCE, link.receiver.recv()).await.expect("the link ends");
    assert_eq!(end, Err(LinkError::Closed { reason: expected.to_string() }));
    log.warnings()
}

fn differs(field: &str, ours: impl ToString, theirs: impl ToString) -> RefuseReason {
    RefuseReason::Mismatch { field: field.into(), ours: ours.to_string(), theirs: theirs.to_string() }
}

#[tokio::test]
async fn another_version_is_refused() {
    let cluster = Cluster::new();
    let stage = TestStage::start(cluster.stages[1].clone(), CallTime::default()).await;
    let theirs = PROTOCOL_VERSION + 1;
    let reason = RefuseReason::Version { ours: PROTOCOL_VERSION, theirs };
    refused(&stage, &cluster.fronts[0], Hello { version: theirs, ..control(0, &cluster.fronts[0]) }, reason)
        .await;
}

#[tokio::test]
async fn a_stage_serves_one_front_and_not_the_same_one_twice() {
    let cluster = Cluster::new();
    let [front, other] = &cluster.fronts;
    let stage = TestStage::start(cluster.stages[1].clone(), CallTime::default()).await;
    let first = say(&stage, front, &control(0, front)).await;
    assert!(matches!(first.reply, HelloReply::Accept { .. }));
    let kept = || RefuseReason::Kept { tenant: Tenant { front: front.node(), left_ms: None } };
    refused(&stage, other, control(0, other), kept()).await;
    refused(&stage, front, control(0, front), kept()).await;
    refused(&stage, &cluster.stages[0], control(0, front), kept()).await;
    refused_again(&stage, &cluster.stages[0], control(0, other), kept()).await;
}

#[tokio::test]
async fn who_keeps_trying_is_logged_once_for_each_kind_of_reason() {
    let cluster = Cluster::new();
    let [front, other] = &cluster.fronts;
    let [before, tail, _] = &cluster.stages;
    let stage = TestStage::start(tail.clone(), CallTime::default()).await;
    let _control = assign(&stage, front, tail_of_two(before.node())).await;
    let kept = || RefuseReason::Kept { tenant: Tenant { front: front.node(), left_ms: None } };
    let version = |theirs| Hello { version: theirs, ..control(0, other) };
    let early = |generation| hello(LinkRole::Rows(RowsHello { generation, ..rows(WIDTH as u32) }));
    let other_version = |theirs| RefuseReason::Version { ours: PROTOCOL_VERSION, theirs };
    for n in 0..5 {
        // Numbers that the peer chooses make no other kind.
        let (theirs, generation) = (PROTOCOL_VERSION + 1 + n, Generation(n.into()));
        let cases = [
            (other, control(0, other), kept()),
            (other, version(theirs), other_version(theirs)),
            (before, early(generation), RefuseReason::NotAssigned { generation }),
        ];
        for (by, hello, reason) in cases {
            if n == 0 {
                refused(&stage, by, hello, reason).await;
            } else {
                refused_again(&stage, by, hello, reason).await;
            }
        }
    }
}

#[tokio::test]
async fn a_front_that_is_gone_keeps_the_stage_for_its_lease_and_one_that_lets_go_does_not() {
    let cluster = Cluster::new();
    let [front, other] = &cluster.fronts;
    let stage = TestStage::start(cluster.stages[1].clone(), CallTime::default()).await;
    let accepted = |link: &Spoken| matches!(link.reply, HelloReply::Accept { .. });
    let first = say(&stage, front, &control(0, front)).await;
    assert!(accepted(&first));
    drop(first);
    // The stage has noticed once it names an end.
    let tenant = loop {
        let refused = say(&stage, other, &control(0, other)).await.reply;
        let HelloReply::Refuse(RefuseReason::Kept { tenant }) = refused else { panic!("{refused:?}") };
        if let Some(left_ms) = tenant.left_ms {
            assert!(Duration::from_millis(left_ms.into()) <= PATIENCE);
            break tenant;
        }
    };
    assert_eq!(tenant.front, front.node());
    // The same one is taken back at once; then it lets go.
    let mut again = say(&stage, front, &control(0, front)).await;
    assert!(accepted(&again));
    let release = ToStage { to: PeerIndex(0), generation: GENERATION, command: Command::Release };
    send(&again.sender, &release);
    let end = async { while again.receiver.recv().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the stage lets go of the link, too");
    assert!(accepted(&say(&stage, other, &control(0, other)).await));
}

#[tokio::test]
async fn a_front_whose_lease_has_run_out_makes_room() {
    let cluster = Cluster::new();
    let [front, other] = &cluster.fronts;
    let (loads, seen) = watch::channel(0);
    let source = Arc::new(NullSource { time: CallTime::default(), loads });
    let stage = TestStage::start_with(cluster.stages[1].clone(), source, seen, Duration::ZERO).await;
    let first = say(&stage, front, &control(0, front)).await;
    drop(first);
    while !matches!(say(&stage, other, &control(0, other)).await.reply, HelloReply::Accept { .. }) {}
}

#[tokio::test]
async fn an_observer_sees_whom_a_stage_is_kept_for_and_what_it_holds() {
    let cluster = Cluster::new();
    let [front, _] = &cluster.fronts;
    let [before, tail, _] = &cluster.stages;
    let stage = TestStage::start(tail.clone(), CallTime::default()).await;
    let see = async || line::observe(&stage.address, &cluster.observer, "test", None).await.unwrap();
    let (node, sight) = see().await;
    assert_eq!((node, sight.tenant, sight.layers, sight.works), (tail.node(), None, None, false));
    let _control = assign(&stage, front, tail_of_two(before.node())).await;
    let (_, sight) = see().await;
    assert_eq!(sight.tenant, Some(Tenant { front: front.node(), left_ms: None }));
    assert_eq!((sight.layers, sight.works), (Some(tail_layers().layers), true));
}

#[tokio::test]
async fn a_link_is_for_what_its_handshake_said() {
    let cluster = Cluster::new();
    let [front, other] = &cluster.fronts;
    let stage = TestStage::start(cluster.stages[1].clone(), CallTime::default()).await;
    let cases = [
        (front, Purpose::Rows, control(0, front)),
        (front, Purpose::Observe, control(0, front)),
        // In another front's name.
        (front, Purpose::Control, control(0, other)),
        (front, Purpose::Control, hello(LinkRole::Rows(rows(WIDTH as u32)))),
        (&cluster.observer, Purpose::Observe, hello(LinkRole::Rows(rows(WIDTH as u32)))),
        (&cluster.observer, Purpose::Observe, control(0, front)),
    ];
    for (by, purpose, hello) in cases {
        let link = say_for(&stage, by, purpose, &hello).await;
        assert_eq!(link.reply, HelloReply::Refuse(RefuseReason::OtherPurpose), "{purpose:?} {hello:?}");
    }
}

#[tokio::test]
async fn a_front_that_comes_itself_takes_the_place_of_a_neighbour_that_relayed() {
    let cluster = Cluster::new();
    let stage = TestStage::start(cluster.stages[1].clone(), CallTime::default()).await;
    let mut relay = say(&stage, &cluster.stages[0], &control(1, &cluster.fronts[0])).await;
    assert!(matches!(relay.reply, HelloReply::Accept { .. }));
    let direct = say(&stage, &cluster.fronts[0], &control(1, &cluster.fronts[0])).await;
    assert!(matches!(direct.reply, HelloReply::Accept { .. }));
    let end = async { while relay.receiver.recv().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the neighbour's link ends");
}

#[tokio::test]
async fn rows_that_differ_in_anything_from_the_assignment_are_refused() {
    let cluster = Cluster::new();
    let [before, tail, stranger] = &cluster.stages;
    let stage = TestStage::start(tail.clone(), CallTime::default()).await;
    let _control = assign(&stage, &cluster.fronts[0], tail_of_two(before.node())).await;
    let right = rows(WIDTH as u32);
    let early = Generation(GENERATION.0 - 1);
    let cases = [
        (RowsHello { generation: early, ..right.clone() }, RefuseReason::NotAssigned { generation: early }),
        (RowsHello { to: StageIndex(2), ..right.clone() }, differs("stage", 1, 2)),
        (
            RowsHello { model: ModelId([1; 32]), ..right.clone() },
            differs("model", right.model, ModelId([1; 32])),
        ),
        (RowsHello { layer: 0, ..right.clone() }, differs("first layer", 1, 0)),
        (RowsHello { row_width: 32, ..right.clone() }, differs("row width", 64, 32)),
        (RowsHello { row_dtype: RowDtype::Q8, ..right.clone() }, differs("row dtype", "F32", "Q8")),
        (RowsHello { context: 7, ..right.clone() }, differs("context", 4096, 7)),
    ];
    for (rows, reason) in cases {
        refused(&stage, before, hello(LinkRole::Rows(rows)), reason).await;
    }
    refused(&stage, stranger, hello(LinkRole::Rows(right.clone())), RefuseReason::WrongPeer).await;
    refused(&stage, &cluster.fronts[0], hello(LinkRole::Rows(right.clone())), RefuseReason::WrongPeer).await;
    let link = say(&stage, before, &hello(LinkRole::Rows(right))).await;
    assert!(matches!(link.reply, HelloReply::Accept { .. }), "{:?}", link.reply);
}

#[tokio::test]
async fn a_peer_that_says_something_else_is_told_so() {
    let cluster = Cluster::new();
    let stage = TestStage::start(cluster.stages[1].clone(), CallTime::default()).await;
    for (first, is_new) in [(true, true), (false, true), (true, false)] {
        let log = Log::default();
        let _logged = tracing::subscriber::set_default(log.clone());
        let link =
            net::dial(&stage.address, &cluster.fronts[0], None, &DialOptions::default()).await.unwrap();
        let (sender, mut receiver) = link.split();
        if !first {
            send(&sender, &control(0, &cluster.fronts[0]));
        }
        let rubbish = [&PROTOCOL_VERSION.to_le_bytes()[..], b"rubbish"].concat();
        sender.send(u64::MAX, rubbish.into(), bytes::Bytes::new()).unwrap();
        let end = async {
            loop {
                if let Err(end) = receiver.recv().await {
                    return end;
                }
            }
        };
        let end = tokio::time::timeout(PATIENCE, end).await.expect("the link ends");
        let said = if first { "unexpected greeting" } else { "not a control message" };
        assert!(matches!(&end, LinkError::Closed { reason } if reason.contains(said)), "{end:?}");
        assert!(log.contains(said));
        assert_eq!(log.warnings().iter().any(|line| line.contains(said)), is_new && first);
    }
}
