//! Skeleton.
use crate::{Identity, Link, LinkOptions, Role, Serial};
use protocol::NodeId;
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

/// How a listener takes connections.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Of every accepted link.
    pub link: LinkOptions,
    /// Roles that may connect; empty for any.
    pub roles: Vec<Role>,
    /// Memberships that no longer hold.
    pub revoked: BTreeSet<Serial>,
    /// Handshakes at once; beyond it the oldest is dropped.
    pub max_pending: usize,
    /// How long one handshake may take.
    pub handshake_within: Duration,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerStats {
    /// Links handed out.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Handshakes under way.
    pub pending: usize,
}

/// Why no port was opened.
#[derive(Debug, thiserror::Error)]
#[error("placeholder")]
pub struct BindError;
/// What is wrong with a peer that finished the handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placeholder")]
pub struct PeerError;
/// Why a connection was refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("placeholder")]
pub struct AcceptError;
/// Why no link was made.
#[derive(Clone, Debug, thiserror::Error)]
#[error("placeholder")]
pub struct DialError;

/// An open port.
#[derive(Debug)]
pub struct Listener(());
impl Listener {
    /// Opens a port (`host:port`; port 0 lets the system choose).
    ///
    /// # Errors
    pub async fn bind(
        _address: &str,
        _identity: &Identity,
        _options: ListenerOptions,
    ) -> Result<Self, BindError> {
        unimplemented!()
    }
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        unimplemented!()
    }
    /// The next authenticated link. Cancel safe. Connections that fail are logged and counted, never returned.
    ///
    /// # Errors
    /// When the port itself failed for good.
    pub async fn accept(&mut self) -> Result<Link, BindError> {
        unimplemented!()
    }
    /// Counters.
    pub fn stats(&self) -> ListenerStats {
        unimplemented!()
    }
}

/// Connects to a stage at `host:port`.
///
/// # Errors
pub async fn dial(
    _address: &str,
    _identity: &Identity,
    _expect: Option<NodeId>,
    _options: &DialOptions,
) -> Result<Link, DialError> {
    unimplemented!()
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// Of the link.
    pub link: LinkOptions,
    /// Which role the other side must have; `None` for any.
    pub role: Option<Role>,
    /// Memberships that no longer hold.
    pub revoked: BTreeSet<Serial>,
    /// How long connecting and the handshake may take together.
    pub within: Duration,
}
