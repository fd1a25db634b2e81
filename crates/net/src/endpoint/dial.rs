//! The side that connects.

use std::time::Duration;

use protocol::NodeId;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Answer, Chain, DialOptions, PeerError, await_answer, judge, socket, turn_away};
use crate::{
    Identity, IdentityError, Link, Membership, PeerInfo, Purpose,
    tls::{self, HandshakeError},
};

/// Why there is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// This node's own identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Nobody answers there.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// What was dialled.
        address: String,
        /// In the system's words.
        reason: String,
    },
    /// No answer in time.
    #[error("{address} did not answer within {within:?}")]
    TimedOut {
        /// What was dialled.
        address: String,
        /// The limit.
        within: Duration,
    },
    /// The handshake failed, on one side or the other.
    #[error("{address}: {error}")]
    Handshake {
        /// What was dialled.
        address: String,
        /// How.
        error: HandshakeError,
    },
    /// A member of the cluster, but not one that will do.
    #[error("{address}: {error}")]
    Peer {
        /// What was dialled.
        address: String,
        /// Why not.
        error: PeerError,
    },
    /// The other side does not want this node.
    #[error("{address} refused: {reason}")]
    Refused {
        /// What was dialled.
        address: String,
        /// Its words.
        reason: String,
    },
}

/// Connects to `address` (`host:port`) and proves both sides to each other. `expect` pins the node that must answer.
///
/// # Errors
/// If nobody answers in time, or either side refuses the other; both then know why.
pub async fn dial(
    address: &str,
    identity: &Identity,
    expect: Option<NodeId>,
    options: &DialOptions,
) -> Result<Link, DialError> {
    let (carrier, peer, chain) = timeout(options.within, connect(address, identity, expect, options))
        .await
        .map_err(|_| DialError::TimedOut { address: address.to_owned(), within: options.within })??;
    let peer =
        PeerInfo { node: peer.node, role: peer.role, purpose: options.purpose, address: address.to_owned() };
    let link = Link::over(carrier, peer, &options.link);
    identity.watch(link.weak(), chain);
    Ok(link)
}

async fn connect(
    address: &str,
    identity: &Identity,
    expect: Option<NodeId>,
    options: &DialOptions,
) -> Result<(TlsStream<socket::Socket>, Membership, Chain), DialError> {
    let connector = TlsConnector::from(tls::client_config(identity, options.purpose)?);
    let unreachable =
        |error: std::io::Error| DialError::Connect { address: address.to_owned(), reason: error.to_string() };
    let failed = |error| DialError::Handshake { address: address.to_owned(), error };
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    let stream = socket::prepare(stream).map_err(unreachable)?;
    let mut carrier = connector.connect(tls::server_name(), stream).await.map_err(|e| failed(e.into()))?;
    Purpose::agreed(carrier.get_ref().1.alpn_protocol()).map_err(failed)?;
    let judged = judge(carrier.get_ref().1.peer_certificates(), expect, &options.admit, identity);
    let (peer, chain) = match judged {
        Ok(judged) => judged,
        Err(error) => {
            turn_away(&mut carrier, &error.to_string()).await;
            return Err(DialError::Peer { address: address.to_owned(), error });
        }
    };
    match await_answer(&mut carrier).await.map_err(failed)? {
        Answer::Welcome => Ok((carrier, peer, chain)),
        Answer::Refused { reason } => Err(DialError::Refused { address: address.to_owned(), reason }),
    }
}
