//! A peer that speaks the protocol by hand, to say what no honest one says.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use net::{DialOptions, Heartbeat, Identity, LinkReceiver, LinkSender, Purpose};
use protocol::{
    Assign, Command, Generation, Hello, HelloReply, Holding, KvType, LayerRange, LinkRole, NodeId,
    PROTOCOL_VERSION, PeerIndex, Report, RowDtype, RowsHello, StageIndex, StageState, ToFront, ToStage, Wire,
};
use tracing::field::{Field, Visit};
use tracing::{Level, span};

use crate::support::{CONTEXT, PATIENCE, SLOTS, TestStage, model};

/// The stream of greetings and control messages.
const CONTROL: u64 = u64::MAX;
pub(crate) const GENERATION: Generation = Generation(7);

/// A link to a stage, after its answer to `hello`.
pub(crate) struct Spoken {
    pub(crate) reply: HelloReply,
    pub(crate) sender: LinkSender,
    pub(crate) receiver: LinkReceiver,
}

/// Dials the stage for what `hello` wants, and says it.
pub(crate) async fn say(stage: &TestStage, identity: &Identity, hello: &Hello) -> Spoken {
    let purpose = match hello.role {
        LinkRole::Control { front, .. } if front == identity.node() => Purpose::Control,
        LinkRole::Control { .. } => Purpose::Relay,
        LinkRole::Rows(_) => Purpose::Rows,
        LinkRole::Observe { .. } => Purpose::Observe,
    };
    say_for(stage, identity, purpose, hello).await
}

/// As [`say`], over a link that was dialled for `purpose`.
pub(crate) async fn say_for(
    stage: &TestStage,
    identity: &Identity,
    purpose: Purpose,
    hello: &Hello,
) -> Spoken {
    let mut options = DialOptions { purpose, ..DialOptions::default() };
    if matches!(hello.role, LinkRole::Control { .. }) {
        options.link.heartbeat = Some(Heartbeat::default());
    }
    let link = net::dial(&stage.address, identity, Some(stage.node.id()), &options).await.unwrap();
    let (sender, mut receiver) = link.split();
    send(&sender, hello);
    let reply = recv(&mut receiver).await;
    Spoken { reply, sender, receiver }
}

pub(crate) fn send<M: Wire>(sender: &LinkSender, message: &M) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    sender.send(CONTROL, bytes.into(), Bytes::new()).unwrap();
}

pub(crate) async fn recv<M: Wire>(receiver: &mut LinkReceiver) -> M {
    let received = tokio::time::timeout(PATIENCE, receiver.recv()).await.expect("an answer in time").unwrap();
    M::decode(&received.bytes).unwrap()
}

pub(crate) fn hello(role: LinkRole) -> Hello {
    Hello { version: PROTOCOL_VERSION, build: "by hand".into(), role }
}

/// What a front says to command a stage, and a neighbour that passes its commands on.
pub(crate) fn control(peer: u16, front: &Identity) -> Hello {
    hello(LinkRole::Control { peer: PeerIndex(peer), front: front.node() })
}

/// What the stage before the tail of a line of two says, if all is well.
pub(crate) fn rows(row_width: u32) -> RowsHello {
    RowsHello {
        generation: GENERATION,
        to: StageIndex(1),
        model: model(),
        layer: 1,
        row_width,
        row_dtype: RowDtype::F32,
        context: CONTEXT,
    }
}

/// The tail's place in a line of two.
pub(crate) fn tail_of_two(upstream: NodeId) -> Assign {
    Assign {
        index: StageIndex(1),
        n_stages: 2,
        holding: tail_layers(),
        row_dtype: RowDtype::F32,
        prefix_bytes: 0,
        keep: None,
        upstream,
        downstream: None,
    }
}

/// What it holds there.
pub(crate) fn tail_layers() -> Holding {
    Holding {
        model: model(),
        layers: LayerRange { start: 1, end: 2 },
        n_layers: 2,
        context: CONTEXT,
        n_slots: SLOTS,
        max_rows: 512,
        kv: KvType::F16,
        exact: false,
        swa_full: true,
        undo_rows: 0,
        drafts: false,
    }
}

/// Takes the stage as its front would, and waits until it is ready.
pub(crate) async fn assign(stage: &TestStage, front: &Identity, assign: Assign) -> Spoken {
    let mut link = say(stage, front, &control(assign.index.0, front)).await;
    assert!(matches!(link.reply, HelloReply::Accept { .. }), "{:?}", link.reply);
    let (to, command) = (PeerIndex(assign.index.0), Command::Assign(Box::new(assign)));
    send(&link.sender, &ToStage { to, generation: GENERATION, command });
    loop {
        match recv::<ToFront>(&mut link.receiver).await.report {
            Report::State(StageState::Ready { .. }) => return link,
            Report::State(StageState::Failed { reason }) => panic!("{reason}"),
            _ => {}
        }
    }
}

/// What this thread logs.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    /// Whether it said this, at any level.
    pub(crate) fn contains(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|(_, line)| line.contains(text))
    }

    /// The lines that are seen at the usual level.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|(level, _)| *level <= Level::WARN).map(|(_, line)| line.clone()).collect()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Line(&mut line));
        self.0.lock().unwrap().push((*event.metadata().level(), line));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{value:?} "));
    }
}
