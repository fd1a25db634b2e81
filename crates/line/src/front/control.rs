//! One task per stage that keeps a control link to it: dials, greets, reads, and dials again.

use std::sync::Weak;
use std::time::Duration;

use net::{LinkReceiver, LinkSender, PeerInfo, Role, memory_pair};
use protocol::{LinkRole, NodeId, StageIndex, ToFront};
use tokio::sync::watch;

use super::{FrontConfig, Shared};
use crate::greeting::greet;
use crate::node::{Node, read_control};

/// First pause before a stage is dialled again: the first time at once, as a restarted child needs only a moment.
const REDIAL_MIN: Duration = Duration::from_millis(20);
/// Longest such pause.
const REDIAL_MAX: Duration = Duration::from_secs(2);

/// Where a stage is.
#[derive(Clone)]
pub enum StageAddress {
    /// In this process.
    Local(Node),
    /// At `host:port`; none while it has no port yet. A change means that the stage was replaced.
    Remote {
        /// The current address.
        address: watch::Receiver<Option<String>>,
        /// The node expected there; any stage of the cluster otherwise.
        node: Option<NodeId>,
    },
}

/// A link to a stage in this process; both ends know each other's keys without a proof.
pub(super) async fn link_local(config: &FrontConfig, node: &Node) -> net::Link {
    let peer = |node, role| PeerInfo { node, role, address: "local".to_owned() };
    let front = peer(config.identity.node(), Role::Front);
    let stage = peer(node.id(), Role::Stage);
    let (ours, theirs) = memory_pair(front, stage, &config.local_link);
    node.attach(theirs).await;
    ours
}

/// Keeps the control link of one stage until the front is gone.
pub(super) async fn keep(front: Weak<Shared>, config: FrontConfig, stage: StageIndex) {
    let mut address = config.stages[usize::from(stage.0)].address.clone();
    let mut pause = REDIAL_MIN;
    loop {
        match connect(&config, stage, &mut address).await {
            Ok((sender, receiver)) => {
                pause = REDIAL_MIN;
                let Some(reason) = read(&front, stage, sender, receiver, &mut address).await else { return };
                let Some(shared) = front.upgrade() else { return };
                shared.control_lost(stage, &reason);
            }
            Err(reason) => {
                let Some(shared) = front.upgrade() else { return };
                shared.unreachable(stage, reason);
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(REDIAL_MAX);
        if front.strong_count() == 0 {
            return;
        }
    }
}

/// Tells the front where a stage is, whenever that changes.
pub(super) async fn follow(
    front: Weak<Shared>,
    stage: StageIndex,
    mut address: watch::Receiver<Option<String>>,
) {
    loop {
        let now = address.borrow_and_update().clone();
        let Some(shared) = front.upgrade() else { return };
        shared.address(stage, now);
        drop(shared);
        if address.changed().await.is_err() {
            return; // It stays there for good.
        }
    }
}

async fn connect(
    config: &FrontConfig,
    stage: StageIndex,
    address: &mut StageAddress,
) -> Result<(LinkSender, LinkReceiver), String> {
    let link = match address {
        StageAddress::Local(node) => link_local(config, node).await,
        StageAddress::Remote { address, node } => {
            let known = address
                .wait_for(Option::is_some)
                .await
                .map_err(|_| "its address is gone".to_owned())?
                .clone();
            let known = known.expect("waited for an address");
            address.mark_unchanged();
            let mut options = config.dial.clone();
            options.link.heartbeat = Some(config.heartbeat);
            net::dial(&known, &config.identity, *node, &options).await.map_err(|error| error.to_string())?
        }
    };
    greet(link, LinkRole::Control { stage }, &config.build).await.map_err(|error| error.to_string())
}

/// Reads reports until the link ends or the stage moves to another address; says why. `None` when the front is gone.
async fn read(
    front: &Weak<Shared>,
    stage: StageIndex,
    sender: LinkSender,
    mut receiver: LinkReceiver,
    address: &mut StageAddress,
) -> Option<String> {
    front.upgrade()?.control_up(stage, sender.clone());
    loop {
        let moved = async {
            match address {
                StageAddress::Local(_) => std::future::pending().await,
                StageAddress::Remote { address, .. } => {
                    if address.changed().await.is_err() {
                        std::future::pending().await
                    }
                }
            }
        };
        tokio::select! {
            message = read_control::<ToFront>(&mut receiver) => match message {
                Ok(message) => front.upgrade()?.report(stage, message),
                Err(reason) => return Some(reason),
            },
            () = moved => {
                sender.close("the stage has moved");
                return Some("it was replaced".to_owned());
            }
        }
    }
}
