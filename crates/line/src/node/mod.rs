//! A stage node: waits empty, takes one place in one front's line at a time, and gives it up when asked or abandoned.
//!
//! Owns: the node's links, its engine's life, and who may speak to it. One task hears [`Event`]s and holds all state;
//! work frames and results do not pass through it, but go straight between links and engine thread.
//! Does not know: where engines come from, or anything about requests.

mod actor;
mod dial;
mod filed;
mod lease;
mod leaving;
mod place;
mod reception;
mod refusals;
mod seat;
mod sink;

use std::sync::Arc;
use std::time::Duration;

use net::{DialOptions, Identity, Link, LinkReceiver, LinkSender, Listener};
use protocol::{Generation, Hello, NodeId, ToFront, ToStage};
use stage::Engine;
use tokio::sync::{mpsc, oneshot};

use self::seat::Rested;
use crate::source::{EngineSource, LoadError};
use crate::task::Task;
pub(crate) use dial::read_control;
pub use filed::PrefixStore;

/// Events that may wait for the node's task. They are rare (no work passes here); senders wait when it is full.
const EVENTS: usize = 256;

/// How a node behaves.
#[derive(Clone)]
pub struct NodeConfig {
    /// What the node proves itself with.
    pub identity: Identity,
    /// Where its engines come from.
    pub source: Arc<dyn EngineSource>,
    /// Engine build and CPU variant, told in every greeting.
    pub build: String,
    /// How it dials the next stage; heartbeats are added where a control link is dialled.
    pub dial: DialOptions,
    /// Heartbeat of the control link to a relayed neighbour.
    pub heartbeat: net::Heartbeat,
    /// Where prefixes outlive the engine, if they shall.
    pub store: Option<PrefixStore>,
    /// Bytes that a front may have it keep of earlier prompts in memory, whatever that front asks for; none for no bound.
    pub most_prefix_bytes: Option<u64>,
    /// How long the node, and a loaded engine, is kept for a front that is gone.
    pub lease: Duration,
}

/// A way to a running node. The node ends when all of them are dropped.
#[derive(Clone)]
pub struct Node {
    id: NodeId,
    events: mpsc::Sender<Event>,
    _task: Arc<Task>,
}

impl Node {
    /// Starts a node on the current runtime.
    #[must_use]
    pub fn start(config: NodeConfig) -> Self {
        let (events, inbox) = mpsc::channel(EVENTS);
        let id = config.identity.node();
        let actor = actor::Actor::new(config, events.clone());
        Self { id, events, _task: Arc::new(Task::spawn(actor.run(inbox))) }
    }

    /// The node's key.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// Hands over a link that someone made to this node.
    pub async fn attach(&self, link: Link) {
        let events = self.events.clone();
        // Closed only while the node ends; the link ends with it.
        let _ = events.send(Event::Attached(link)).await;
    }

    /// Tells the front that this node has to go, and returns when it need not stay any longer: the front has let it go, or
    /// there is none. It takes no front from now on.
    pub async fn leave(&self) {
        let (done, left) = oneshot::channel();
        // Either fails only while the node ends.
        if self.events.send(Event::Leave(done)).await.is_ok() {
            let _ = left.await;
        }
    }

    /// Takes in links until the port fails.
    ///
    /// # Errors
    /// When the port failed for good.
    pub async fn serve(&self, mut listener: Listener) -> Result<(), net::BindError> {
        loop {
            let link = listener.accept().await?;
            self.attach(link).await;
        }
    }
}

/// Everything that a node's task hears.
enum Event {
    /// The process was told to end; the answer says that it may.
    Leave(oneshot::Sender<()>),
    /// Someone connected.
    Attached(Link),
    /// And said what for.
    Greeted(Box<Greeted>),
    /// From the front (or the neighbour that relays), on the control link of that number.
    Command { link: u64, message: Box<ToStage> },
    /// That control link ended.
    ControlLost { link: u64, reason: String },
    /// The engine is loaded, or not.
    Loaded(Result<Box<dyn Engine>, LoadError>),
    /// How far the loading is.
    Loading { permille: u16, what: String },
    /// The engine has stopped; it is given unless it panicked or was freed.
    Stopped(Option<Rested>),
    /// The next stage takes rows.
    Downstream(Generation, LinkSender),
    /// The next stage is gone, or refuses for good.
    DownstreamLost(Generation, String),
    /// The stage before, or the front, sends no more work.
    UpstreamLost(Generation, String),
    /// The neighbour takes control messages.
    RelayUp(Generation, LinkSender),
    /// A report passes through.
    RelayReport(Generation, Box<ToFront>),
    /// The neighbour is gone.
    RelayLost(Generation, String),
}

/// A link whose purpose is known.
struct Greeted {
    hello: Hello,
    sender: LinkSender,
    receiver: LinkReceiver,
}
