//! Getting a link: opening a port, dialling one, and refusing everybody who is not a member in the wanted role.
//!
//! Owns: sockets and their options, handshakes with their limits, and the judgement on a peer's membership.
//! Does not know: what a link carries afterwards, or who is to be dialled.

mod dial;
mod guests;
mod listen;
mod socket;

use std::time::Duration;

use protocol::{NodeId, limits::MAX_TEXT};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{
    Identity, IdentityError, LinkOptions, Membership, Purpose, Role, SegmentError,
    link::{HEADER, Header, Segment},
    tls::HandshakeError,
};

pub use dial::{DialError, dial};
pub use listen::{AcceptError, BindError, Listener, ListenerStats};

/// How a port takes connections.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Of every link.
    pub link: LinkOptions,
    /// Which peers are let in.
    pub admit: Admit,
    /// Handshakes under way at most; one more ends the oldest.
    pub max_pending: usize,
    /// Links of one member at once at most.
    pub max_links: usize,
    /// How long one handshake may take.
    pub handshake_within: Duration,
    /// Whether a neighbour may pass on what the front commands. Whoever may do that can command as well.
    pub relayed: bool,
}

impl Default for ListenerOptions {
    /// Every member, 256 handshakes at once, 5 s each, 16 links for each member (a line needs two, a front that looks on
    /// one more, and links that have broken may not know it yet), no neighbour that passes commands on.
    fn default() -> Self {
        Self {
            link: LinkOptions::default(),
            admit: Admit::default(),
            max_pending: 256,
            max_links: 16,
            handshake_within: Duration::from_secs(5),
            relayed: false,
        }
    }
}

/// How to dial.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// Of the link.
    pub link: LinkOptions,
    /// What it is for.
    pub purpose: Purpose,
    /// Which peers will do.
    pub admit: Admit,
    /// How long name lookup, connection and handshake may take together.
    pub within: Duration,
}

impl Default for DialOptions {
    /// To command a stage, within 5 s.
    fn default() -> Self {
        Self {
            link: LinkOptions::default(),
            purpose: Purpose::Control,
            admit: Admit { role: Some(Role::Stage) },
            within: Duration::from_secs(5),
        }
    }
}

/// Which members of the cluster are let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admit {
    /// Only this role; `None` for any.
    pub role: Option<Role>,
}

/// Why a member of the cluster is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// A certificate of the cluster that is not a membership.
    #[error("the other side's membership cannot be read: {0}")]
    Malformed(#[from] IdentityError),
    /// Another node than the one that was to be dialled.
    #[error("expected node {}, found node {}", expected.short(), found.short())]
    WrongNode {
        /// The one that was dialled.
        expected: NodeId,
        /// The one that answered.
        found: NodeId,
    },
    /// A member in another role.
    #[error("expected a {expected}, found a {found} (node {})", node.short())]
    WrongRole {
        /// The role asked for.
        expected: Role,
        /// The role in the membership.
        found: Role,
        /// Whose.
        node: NodeId,
    },
    /// A member that may not do what it wants to.
    #[error("a membership as {role} is not for one who wants to {purpose} (node {})", node.short())]
    NotForRole {
        /// What it wants.
        purpose: Purpose,
        /// The role in the membership.
        role: Role,
        /// Whose.
        node: NodeId,
    },
    /// A neighbour that wants to pass commands on, where none may.
    #[error(
        "no neighbour may pass commands on to this stage: start it with --relayed if its front cannot reach it"
    )]
    NotRelayed,
    /// A member that has as many links as one may have.
    #[error("node {} has {limit} links to this machine already, which is as many as one member may have", node.short())]
    TooManyLinks {
        /// Whose.
        node: NodeId,
        /// How many.
        limit: usize,
    },
    /// A member that the cluster's root has let go.
    #[error("the cluster's root has let node {} go: enrol the machine anew, with a new key", node.short())]
    LetGo {
        /// Whose.
        node: NodeId,
    },
}

/// What a peer has proven itself by: its membership, and what stands behind it.
type Chain = Vec<CertificateDer<'static>>;

/// Judges the peer of a finished handshake; gives what it has proven itself by, too.
fn judge(
    certs: Option<&[CertificateDer<'_>]>,
    expect: Option<NodeId>,
    admit: &Admit,
    identity: &Identity,
) -> Result<(Membership, Chain), PeerError> {
    // TLS asked for a certificate and checked it, so that there is one.
    let cert = certs.and_then(<[_]>::first).map_or(&[][..], |cert| cert.as_ref());
    let peer = Membership::parse(cert)?;
    if let Some(expected) = expect
        && expected != peer.node
    {
        return Err(PeerError::WrongNode { expected, found: peer.node });
    }
    if let Some(expected) = admit.role
        && expected != peer.role
    {
        return Err(PeerError::WrongRole { expected, found: peer.role, node: peer.node });
    }
    if identity.has_let_go(peer.node) {
        return Err(PeerError::LetGo { node: peer.node });
    }
    let chain = certs.unwrap_or_default().iter().map(|cert| cert.clone().into_owned());
    Ok((peer, chain.collect()))
}

/// Tells the peer why there will be no link. Best effort: the peer may be gone.
async fn turn_away(carrier: &mut (impl AsyncWrite + Unpin), reason: &str) {
    let segment = Segment::close(reason);
    let mut bytes = Vec::with_capacity(segment.len());
    segment.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
    if carrier.write_all(&bytes).await.is_ok() {
        carrier.shutdown().await.ok();
    }
}

/// The first word on a link, from the side that was dialled. In TLS 1.3 the dialling side finishes its handshake
/// before the other has judged it; without this word it would take a refusal for a lost link.
async fn welcome(carrier: &mut (impl AsyncWrite + Unpin)) -> Result<(), HandshakeError> {
    carrier.write_all(&Header::Welcome.encode()).await?;
    Ok(carrier.flush().await?)
}

/// What the dialled side said.
enum Answer {
    Welcome,
    Refused { reason: String },
}

async fn await_answer(carrier: &mut (impl AsyncRead + Unpin)) -> Result<Answer, HandshakeError> {
    let mut header = [0; HEADER];
    carrier.read_exact(&mut header).await?;
    let not_ours = |error: SegmentError| HandshakeError::NotPaceline { reason: error.to_string() };
    match Header::decode(&header).map_err(not_ours)? {
        Header::Welcome => Ok(Answer::Welcome),
        Header::Close { len } => {
            let mut reason = vec![0; (len as usize).min(MAX_TEXT)];
            carrier.read_exact(&mut reason).await?;
            let reason = String::from_utf8(reason).map_err(|_| not_ours(SegmentError::BadReason))?;
            Ok(Answer::Refused { reason })
        }
        Header::Data { .. } | Header::Ping { .. } | Header::Pong { .. } => {
            Err(not_ours(SegmentError::BadHeader))
        }
    }
}

#[cfg(test)]
mod tests;
