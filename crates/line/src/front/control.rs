//! One task per machine that keeps a control link to it: dials, greets, reads, and dials again.

use std::sync::Weak;
use std::time::Duration;

use net::{LinkReceiver, LinkSender, PeerInfo, Purpose, Role, memory_pair};
use protocol::{LinkRole, NodeId, PeerIndex, ToFront};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{FrontConfig, Shared};
use crate::backoff::Backoff;
use crate::greeting::{GreetError, greet};
use crate::node::{Node, read_control};

/// First pause before a stage is dialled again: the first time at once, as a restarted child needs only a moment.
const REDIAL_MIN: Duration = Duration::from_millis(20);
/// Longest such pause.
const REDIAL_MAX: Duration = Duration::from_secs(2);
/// A link that lived this long has earned a fresh start of the pauses; one that ends at once, again and again, has not.
const SETTLED: Duration = Duration::from_secs(1);

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

impl StageAddress {
    /// The address, if it has one.
    pub(super) fn known(&self) -> Option<String> {
        match self {
            Self::Local(_) => None,
            Self::Remote { address, .. } => address.borrow().clone(),
        }
    }

    fn is_known(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Remote { address, .. } => address.borrow().is_some(),
        }
    }
}

/// Why there is no control link.
pub(super) enum Unlinked {
    /// Nobody answers there: a neighbour may reach more.
    Unreachable(String),
    /// The stage does not want this front.
    Refused(String),
}

impl Unlinked {
    /// For people.
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => reason,
        }
    }
}

/// A link to a stage in this process; both ends know each other's keys without a proof.
pub(super) async fn link_local(config: &FrontConfig, node: &Node, purpose: Purpose) -> net::Link {
    let peer = |node, role| PeerInfo { node, role, purpose, address: "local".to_owned() };
    let front = peer(config.identity.node(), Role::Front);
    let stage = peer(node.id(), Role::Stage);
    let (ours, theirs) = memory_pair(front, stage, &config.local_link);
    node.attach(theirs).await;
    ours
}

/// Keeps the control link of one machine until the front is gone.
pub(super) async fn keep(front: Weak<Shared>, config: FrontConfig, peer: PeerIndex) {
    let Some(mut address) = config.addresses().nth(usize::from(peer.0)).cloned() else { return };
    let mut backoff = Backoff::new(REDIAL_MIN, REDIAL_MAX);
    // Why there is no link, as it was said last: it is tried again and again, and said once.
    let mut said = String::new();
    loop {
        match connect(&config, peer, &mut address).await {
            Ok((sender, receiver)) => {
                let since = Instant::now();
                said.clear();
                let Some(reason) = read(&front, peer, sender, receiver, &mut address).await else { return };
                if since.elapsed() >= SETTLED {
                    backoff.reset();
                }
                let Some(shared) = front.upgrade() else { return };
                shared.control_lost(peer, &reason);
                if shared.is_over() {
                    return;
                }
            }
            Err(reason) => {
                let Some(shared) = front.upgrade() else { return };
                if said != reason.words() {
                    reason.words().clone_into(&mut said);
                    tracing::info!(%peer, "a machine is not linked: {said}");
                }
                shared.unreachable(peer, reason);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            // Somewhere else there is no reason to wait.
            () = moved(&mut address) => {}
        }
    }
}

/// Resolves when the stage has got another address, or lost the one it had.
async fn moved(address: &mut StageAddress) {
    match address {
        StageAddress::Local(_) => std::future::pending().await,
        StageAddress::Remote { address, .. } => {
            if address.changed().await.is_err() {
                std::future::pending().await // It stays there for good.
            }
        }
    }
}

/// Tells the front where a machine is, whenever that changes.
pub(super) async fn follow(
    front: Weak<Shared>,
    peer: PeerIndex,
    mut address: watch::Receiver<Option<String>>,
) {
    loop {
        let now = address.borrow_and_update().clone();
        let Some(shared) = front.upgrade() else { return };
        shared.address(peer, now);
        drop(shared);
        if address.changed().await.is_err() {
            return; // It stays there for good.
        }
    }
}

async fn connect(
    config: &FrontConfig,
    peer: PeerIndex,
    address: &mut StageAddress,
) -> Result<(LinkSender, LinkReceiver), Unlinked> {
    let link = match address {
        StageAddress::Local(node) => link_local(config, node, Purpose::Control).await,
        StageAddress::Remote { address, node } => {
            let known = match address.wait_for(Option::is_some).await {
                Ok(known) => known.clone().expect("waited for an address"),
                Err(_) => return Err(Unlinked::Refused("its address is gone".to_owned())),
            };
            address.mark_unchanged();
            let mut options = config.dial.clone();
            options.purpose = Purpose::Control;
            options.link.heartbeat = Some(config.heartbeat);
            net::dial(&known, &config.identity, *node, &options)
                .await
                .map_err(|error| Unlinked::Unreachable(error.to_string()))?
        }
    };
    let role = LinkRole::Control { peer, front: config.identity.node() };
    greet(link, role, &config.build).await.map_err(|error| match error {
        GreetError::Refused(reason) => Unlinked::Refused(reason.to_string()),
        other => Unlinked::Unreachable(other.to_string()),
    })
}

/// Reads reports until the link ends or the stage moves to another address; says why. `None` when the front is gone.
async fn read(
    front: &Weak<Shared>,
    peer: PeerIndex,
    sender: LinkSender,
    mut receiver: LinkReceiver,
    address: &mut StageAddress,
) -> Option<String> {
    front.upgrade()?.control_up(peer, sender.clone());
    loop {
        tokio::select! {
            message = read_control::<ToFront>(&mut receiver) => match message {
                Ok(message) => front.upgrade()?.report(peer, message),
                Err(reason) => {
                    sender.close(&reason);
                    return Some(reason);
                }
            },
            () = moved(address) => {
                sender.close("the stage has moved");
                let reason = if address.is_known() { "it has moved" } else { "it has ended" };
                return Some(reason.to_owned());
            }
        }
    }
}
