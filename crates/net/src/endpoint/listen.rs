//! The side that is connected to: one task takes connections, one per connection shakes hands.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::{AbortHandle, JoinHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::guests::Guests;
use super::{Chain, ListenerOptions, PeerError, judge, socket, turn_away, welcome};
use crate::{
    Identity, IdentityError, Link, Membership, PeerInfo, Purpose, Role, Said,
    port::Port,
    tls::{self, HandshakeError},
};

/// Links that are ready and wait for [`Listener::accept`]; further handshakes wait with them.
const MAX_READY: usize = 16;

/// Why a port is not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// This node's own identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The port is taken.
    #[error("{address} is in use by another process: choose another port")]
    InUse {
        /// What was asked for.
        address: String,
    },
    /// The system refused.
    #[error("cannot listen on {address}: {reason}")]
    System {
        /// What was asked for.
        address: String,
        /// In the system's words.
        reason: String,
    },
    /// The task behind the port has ended.
    #[error("the port has been closed")]
    Closed,
}

/// Why a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A member of the cluster, but not one that is let in.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The handshake took too long.
    #[error("the handshake was not done within {0:?}")]
    TimedOut(Duration),
    /// Newer connections took its place.
    #[error("too many handshakes were under way, and this was the oldest")]
    Crowded,
}

impl AcceptError {
    /// The same without words that depend on what the other side sent.
    fn kind(&self) -> Self {
        match self {
            Self::Handshake(error) => error.kind().into(),
            other => other.clone(),
        }
    }
}

/// Counters of a port, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerStats {
    /// Connections that became links.
    pub accepted: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Handshakes under way.
    pub pending: usize,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    refused: AtomicU64,
    pending: AtomicUsize,
}

/// An open port. Dropping it closes the port and ends the handshakes; links stay.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    ready: mpsc::Receiver<Link>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Opens a port, `host:port`; port 0 lets the system choose.
    ///
    /// # Errors
    /// If the address cannot be had or the identity not be used.
    pub async fn bind(
        address: &str,
        identity: &Identity,
        options: ListenerOptions,
    ) -> Result<Self, BindError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address: address.to_owned() },
            _ => BindError::System { address: address.to_owned(), reason: error.to_string() },
        };
        // For every connection it is made anew, as things stand then.
        tls::server_config(identity)?;
        let port = Port::open(address).await.map_err(failed)?;
        let local = port.local_addr().map_err(failed)?;
        let (tx, ready) = mpsc::channel(MAX_READY);
        let counters = Arc::new(Counters::default());
        let keeper = Arc::new(Keeper { identity: identity.clone(), options });
        let (guests, said) = (Arc::default(), Arc::default());
        let door = Door { keeper, guests, said, ready: tx, counters: counters.clone() };
        let task = tokio::spawn(door.run(port));
        Ok(Self { address: local, ready, counters, task })
    }

    /// Where the port is.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next link to a member that is let in. Connections that are refused are counted and logged, once for each
    /// address and kind of reason; the other side is told where it can understand it. Cancel safe.
    ///
    /// # Errors
    /// If the port is closed for good.
    pub async fn accept(&mut self) -> Result<Link, BindError> {
        self.ready.recv().await.ok_or(BindError::Closed)
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ListenerStats {
        ListenerStats {
            accepted: self.counters.accepted.load(Relaxed),
            refused: self.counters.refused.load(Relaxed),
            pending: self.counters.pending.load(Relaxed),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the accepting task works with.
#[derive(Clone)]
struct Door {
    keeper: Arc<Keeper>,
    guests: Arc<Guests>,
    said: Arc<Said<(IpAddr, AcceptError)>>,
    ready: mpsc::Sender<Link>,
    counters: Arc<Counters>,
}

impl Door {
    async fn run(self, mut port: Port) {
        let mut tasks = JoinSet::new();
        let mut pending: BTreeMap<u64, (SocketAddr, AbortHandle)> = BTreeMap::new();
        let mut number = 0;
        loop {
            tokio::select! {
                Some(done) = tasks.join_next() => {
                    // A task that was ended for a newer one has been taken out already.
                    if let Ok(number) = done {
                        pending.remove(&number);
                    }
                }
                (stream, address) = port.accept() => {
                    if pending.len() >= self.keeper.options.max_pending.max(1)
                        && let Some((_, (oldest, task))) = pending.pop_first()
                    {
                        task.abort();
                        self.refused(oldest, &AcceptError::Crowded);
                    }
                    number += 1;
                    pending.insert(number, (address, tasks.spawn(self.handshake(number, stream, address))));
                }
            }
            self.counters.pending.store(pending.len(), Relaxed);
        }
    }

    /// Shakes hands and hands over the link; returns `number`.
    fn handshake(
        &self,
        number: u64,
        stream: TcpStream,
        address: SocketAddr,
    ) -> impl Future<Output = u64> + Send + 'static {
        let door = self.clone();
        async move {
            let Keeper { identity, options, .. } = &*door.keeper;
            let within = options.handshake_within;
            // A link waits for its turn within the same limit: its peer believes that it is being served.
            let outcome = timeout(within, async {
                let (mut carrier, peer, chain) = greet(&door.keeper, stream, address).await?;
                let Some(coming) = door.guests.let_in(peer.node, options.max_links) else {
                    let error = PeerError::TooManyLinks { node: peer.node, limit: options.max_links };
                    turn_away(&mut carrier, &error.to_string()).await;
                    return Err(error.into());
                };
                let Ok(place) = door.ready.reserve().await else { return Ok(()) };
                welcome(&mut carrier).await?;
                door.counters.accepted.fetch_add(1, Relaxed);
                let PeerInfo { node, role, purpose, .. } = &peer;
                tracing::debug!(%address, node = %node.short(), %role, ?purpose, "link accepted");
                let link = Link::over(carrier, peer, &options.link);
                identity.watch(link.weak(), chain);
                coming.linked(link.weak());
                place.send(link);
                Ok(())
            });
            match outcome.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => door.refused(address, &error),
                Err(_) => door.refused(address, &AcceptError::TimedOut(within)),
            }
            number
        }
    }

    fn refused(&self, address: SocketAddr, error: &AcceptError) {
        self.counters.refused.fetch_add(1, Relaxed);
        // A machine that was set up wrongly, or a stranger.
        self.said.log((address.ip(), error.kind()), &address, &format_args!("connection refused: {error}"));
    }
}

/// By what a peer is judged.
pub(super) struct Keeper {
    pub(super) identity: Identity,
    pub(super) options: ListenerOptions,
}

/// One handshake, up to the judgement on the peer.
pub(super) async fn greet(
    keeper: &Keeper,
    stream: TcpStream,
    address: SocketAddr,
) -> Result<(TlsStream<socket::Socket>, PeerInfo, Chain), AcceptError> {
    let stream = socket::prepare(stream).map_err(HandshakeError::from)?;
    let Keeper { identity, options } = keeper;
    let config = tls::server_config(identity);
    let config = config.map_err(|error| HandshakeError::Failed { reason: error.to_string() })?;
    let acceptor = TlsAcceptor::from(config);
    let mut carrier = acceptor.accept(stream).await.map_err(HandshakeError::from)?;
    let purpose = Purpose::agreed(carrier.get_ref().1.alpn_protocol())?;
    let peer = judge(carrier.get_ref().1.peer_certificates(), None, &options.admit, identity);
    match peer.and_then(|(peer, chain)| Ok((allow(peer, purpose, options.relayed)?, chain))) {
        Ok((Membership { node, role, .. }, chain)) => {
            Ok((carrier, PeerInfo { node, role, purpose, address: address.to_string() }, chain))
        }
        Err(error) => {
            turn_away(&mut carrier, &error.to_string()).await;
            Err(error.into())
        }
    }
}

/// Whether a member may do what it came for.
fn allow(peer: Membership, purpose: Purpose, relayed: bool) -> Result<Membership, PeerError> {
    if !purpose.is_open_to(peer.role) {
        return Err(PeerError::NotForRole { purpose, role: peer.role, node: peer.node });
    }
    // A front could command as well.
    if purpose == Purpose::Relay && peer.role == Role::Stage && !relayed {
        return Err(PeerError::NotRelayed);
    }
    Ok(peer)
}
