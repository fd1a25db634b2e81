//! How a machine becomes a member over the network: one ticket, one machine.
//!
//! An invitation is a port that lives as long as the person who invites lets it. A machine that shows the ticket's secret
//! gets its key signed; then, or when the time is over, or after too many wrong secrets, the port is gone. So a ticket is
//! used once, expires, and is taken back by ending the program that gave it, or by whoever shows it for that. The machine that joins tells the secret only to
//! somebody whom the root named in the ticket has signed.
//!
//! Owns: tickets, and the exchange, which is TLS 1.3 with a protocol name of its own: whoever asks has no membership yet,
//! and links need one. Does not know files; the root key is lent to it.
//!
//! | who | sends |
//! |---|---|
//! | the machine | the secret (32 bytes), the length of its request (u16, little-endian), the request (PEM); an empty one takes the ticket back |
//! | the invitation | 0 or 1, the length of what follows (u16), the membership (PEM) or the reason (UTF-8) |

mod crowd;
#[cfg(test)]
mod tests;
mod ticket;

use std::io;
use std::mem::{Discriminant, discriminant};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::identity::enroll_request;
use crate::port::Port;
use crate::tls::{self, HandshakeError};
use crate::{ClusterRoot, Identity, IdentityError, NodeKey, Role, Said};

use crowd::{Crowd, MAX_HEARD};
use ticket::Secret;
pub use ticket::{Ticket, TicketError};

/// An exchange takes two round trips.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(10);
/// Exchanges at once, those included that are answered or make room.
const MAX_PENDING: usize = 2 * MAX_HEARD;
/// Wrong secrets until the invitation is taken back. A secret of 256 bits is not found by trying; a mistake is.
const MAX_WRONG: u32 = 8;
/// Bytes of a request or an answer: both are a few kilobytes of text.
const MAX_TEXT: usize = 16 << 10;
const SIGNED: u8 = 0;
const REFUSED: u8 = 1;

/// Why nobody joined.
#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    /// A key could not be made or used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The port could not be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// What was asked for.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The time is over.
    #[error("nobody came in time: the ticket is worth nothing now")]
    Expired,
    /// Somebody who has the ticket took it back.
    #[error("the ticket was taken back: it is worth nothing now")]
    TakenBack,
    /// Somebody guesses.
    #[error("{MAX_WRONG} wrong tickets were shown: the invitation is taken back")]
    Guessed,
}

/// Why this machine did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// This machine's own key, or what was signed for it, cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Nobody waits there.
    #[error(
        "cannot reach the invitation at {address}: {source}; is `paceline cluster invite` still running there?"
    )]
    Connect {
        /// The ticket's address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Somebody else waits there.
    #[error("{address} is not who gave the ticket: {error}")]
    Handshake {
        /// The ticket's address.
        address: String,
        /// How it showed.
        error: HandshakeError,
    },
    /// The exchange broke off.
    #[error("{address} ended the exchange: {source}")]
    Broken {
        /// The ticket's address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer within {EXCHANGE_WITHIN:?}")]
    TimedOut {
        /// The ticket's address.
        address: String,
    },
    /// The ticket is not believed.
    #[error("the invitation refused: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
}

/// What a machine that joins becomes.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// As what.
    pub role: Role,
    /// When its membership ends; none for never.
    pub expires: Option<SystemTime>,
    /// How long the ticket is good.
    pub valid: Duration,
}

/// A machine that has joined.
#[derive(Clone, Debug)]
pub struct Joined {
    /// From where.
    pub address: SocketAddr,
    /// What was signed for it, as [`ClusterRoot::enroll`] writes it.
    pub membership: String,
}

/// A port that waits for one machine; it is taken back by dropping it.
pub struct Invitation {
    port: Port,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    root: Arc<ClusterRoot>,
    secret: Secret,
    /// Whether a key was signed.
    used: Arc<AtomicBool>,
    offer: Offer,
    until: Instant,
}

impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Invitation({}, secret)", self.address)
    }
}

impl Invitation {
    /// Opens the port, `host:port`; port 0 lets the system choose. The ticket's time begins.
    ///
    /// # Errors
    /// If the port cannot be had or the system has no randomness.
    pub async fn open(root: ClusterRoot, listen: &str, offer: Offer) -> Result<Self, InviteError> {
        let failed = |source| InviteError::Listen { address: listen.to_owned(), source };
        // It lives in memory only, and for the root to be recognised.
        let own = root.issue(Role::Front, None)?;
        let acceptor = TlsAcceptor::from(tls::invitation_config(&own)?);
        let port = Port::open(listen).await.map_err(failed)?;
        let address = port.local_addr().map_err(failed)?;
        let until = Instant::now() + offer.valid;
        let (root, used, secret) = (Arc::new(root), Arc::default(), Secret::draw()?);
        Ok(Self { port, address, acceptor, root, secret, used, offer, until })
    }

    /// Where the port is.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The ticket for a machine that reaches this one at `address`, `host:port`.
    #[must_use]
    pub fn ticket(&self, address: String) -> Ticket {
        Ticket { address, root: self.root.id(), secret: self.secret.clone() }
    }

    /// Waits for the machine and signs its key.
    ///
    /// # Errors
    /// If nobody came in time, or somebody guesses.
    pub async fn wait(mut self) -> Result<Joined, InviteError> {
        let (mut exchanges, mut wrong, said) = (JoinSet::new(), 0, Said::default());
        let mut crowd = Crowd::default();
        loop {
            tokio::select! {
                () = sleep_until(self.until) => return Err(InviteError::Expired),
                Some(done) = exchanges.join_next() => match done {
                    Ok((_, address, Ok(membership))) => return Ok(Joined { address, membership }),
                    Ok((number, address, Err(refusal))) => {
                        crowd.leave(number);
                        if matches!(refusal, Refusal::TakenBack) {
                            return Err(InviteError::TakenBack);
                        }
                        let sentence = format_args!("nobody joined: {refusal}");
                        said.log((address.ip(), refusal.kind()), &address, &sentence);
                        wrong += u32::from(matches!(refusal, Refusal::Wrong));
                        if wrong >= MAX_WRONG {
                            return Err(InviteError::Guessed);
                        }
                    }
                    Err(_) => {}
                },
                (stream, address) = self.port.accept(), if exchanges.len() < MAX_PENDING => {
                    let (acceptor, root) = (self.acceptor.clone(), Arc::clone(&self.root));
                    let (secret, used, offer) = (self.secret.clone(), Arc::clone(&self.used), self.offer);
                    let (number, place) = crowd.enter(address.ip());
                    exchanges.spawn(async move {
                        // Whoever was heard whole is answered: once signed it has joined.
                        let heard = tokio::select! {
                            heard = timeout(EXCHANGE_WITHIN, hear(acceptor, stream)) => {
                                heard.unwrap_or(Err(Refusal::Slow))
                            }
                            _ = place => Err(Refusal::Crowded),
                        };
                        let (shown, request, carrier) = match heard {
                            Ok(heard) => heard,
                            Err(refusal) => return (number, address, Err(refusal)),
                        };
                        let signed = sign(secret.is(&shown), &used, || {
                            if request.is_empty() {
                                return Err(Refusal::TakenBack);
                            }
                            Ok(root.enroll(&request, offer.role, offer.expires)?)
                        });
                        // Once signed it has joined, whether or not the answer arrives.
                        let told = timeout(EXCHANGE_WITHIN, answer(carrier, &signed)).await;
                        if signed.is_ok() && !matches!(told, Ok(Ok(()))) {
                            tracing::warn!(%address, "the answer did not arrive");
                        }
                        (number, address, signed)
                    });
                }
            }
        }
    }
}

/// Why one connection came to nothing.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the ticket is wrong, was used or has expired")]
    Wrong,
    #[error("the ticket was taken back")]
    TakenBack,
    #[error("it took too long")]
    Slow,
    #[error("too many come at once, and it was the oldest of those who came most often")]
    Crowded,
    #[error(transparent)]
    Request(#[from] IdentityError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the connection broke off: {0}")]
    Broken(#[from] io::Error),
}

impl Refusal {
    /// What it has in common with others, whatever the other side sent.
    fn kind(&self) -> (Discriminant<Self>, Option<HandshakeError>) {
        let handshake = if let Self::Handshake(error) = self { Some(error.kind()) } else { None };
        (discriminant(self), handshake)
    }
}

/// What a machine shows: a secret and its request.
async fn hear(
    acceptor: TlsAcceptor,
    stream: TcpStream,
) -> Result<([u8; 32], String, TlsStream<TcpStream>), Refusal> {
    let mut carrier = acceptor.accept(stream).await.map_err(HandshakeError::from)?;
    tls::check_invitation(carrier.get_ref().1.alpn_protocol())?;
    let mut shown = [0; 32];
    carrier.read_exact(&mut shown).await?;
    let request = read_text(&mut carrier).await?;
    Ok((shown, request, carrier))
}

/// Signs once, for who shows the right secret. A request that cannot be signed leaves the ticket as it was; one that takes
/// it back does not.
fn sign(
    is_right: bool,
    used: &AtomicBool,
    enroll: impl FnOnce() -> Result<String, Refusal>,
) -> Result<String, Refusal> {
    if !is_right || used.swap(true, Ordering::AcqRel) {
        return Err(Refusal::Wrong);
    }
    enroll().inspect_err(|refusal| used.store(matches!(refusal, Refusal::TakenBack), Ordering::Release))
}

async fn answer(mut carrier: TlsStream<TcpStream>, signed: &Result<String, Refusal>) -> io::Result<()> {
    let (status, text) = match signed {
        Ok(membership) => (SIGNED, membership.clone()),
        Err(refusal) => (REFUSED, refusal.to_string()),
    };
    carrier.write_u8(status).await?;
    write_text(&mut carrier, &text).await?;
    carrier.shutdown().await
}

/// Shows the ticket, and lets this key be signed.
///
/// # Errors
/// If the invitation is not there, not the one that gave the ticket, or does not believe it.
pub async fn join(ticket: &Ticket, key: NodeKey) -> Result<Identity, JoinError> {
    let answer = ask_in_time(ticket, &enroll_request(&key)?).await?;
    let identity = Identity::from_enrolment(key, &answer)?;
    if tls::public_key(identity.standing().root()) != Some(ticket.root) {
        return Err(IdentityError::NotSignedByRoot.into());
    }
    Ok(identity)
}

/// Makes a ticket that nobody has used worthless, wherever its invitation waits.
///
/// # Errors
/// If the invitation is not there, or the ticket was used: then there is nothing to take back.
pub async fn take_back(ticket: &Ticket) -> Result<(), JoinError> {
    match ask_in_time(ticket, "").await {
        Err(JoinError::Refused { reason }) if reason == Refusal::TakenBack.to_string() => Ok(()),
        other => other.map(drop),
    }
}

async fn ask_in_time(ticket: &Ticket, request: &str) -> Result<String, JoinError> {
    let timed_out = JoinError::TimedOut { address: ticket.address.clone() };
    timeout(EXCHANGE_WITHIN, ask(ticket, request)).await.map_err(|_| timed_out)?
}

async fn ask(ticket: &Ticket, request: &str) -> Result<String, JoinError> {
    let address = || ticket.address.clone();
    let broken = |source| JoinError::Broken { address: address(), source };
    let stream = TcpStream::connect(&ticket.address)
        .await
        .map_err(|source| JoinError::Connect { address: address(), source })?;
    let connector = TlsConnector::from(tls::guest_config(ticket.root)?);
    let failed = |error| JoinError::Handshake { address: address(), error };
    let mut carrier = connector.connect(tls::server_name(), stream).await.map_err(|e| failed(e.into()))?;
    tls::check_invitation(carrier.get_ref().1.alpn_protocol()).map_err(failed)?;
    carrier.write_all(&ticket.secret.0).await.map_err(broken)?;
    write_text(&mut carrier, request).await.map_err(broken)?;
    let status = carrier.read_u8().await.map_err(broken)?;
    let text = read_text(&mut carrier).await.map_err(broken)?;
    if status == SIGNED { Ok(text) } else { Err(JoinError::Refused { reason: text }) }
}

async fn read_text(carrier: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let length = usize::from(carrier.read_u16_le().await?);
    if length > MAX_TEXT {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a text of {length} bytes is too long"),
        ));
    }
    let mut text = vec![0; length];
    carrier.read_exact(&mut text).await?;
    String::from_utf8(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a text is not UTF-8"))
}

async fn write_text(carrier: &mut (impl AsyncWrite + Unpin), text: &str) -> io::Result<()> {
    let length = u16::try_from(text.len()).ok().filter(|&length| usize::from(length) <= MAX_TEXT);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a text is too long"))?;
    carrier.write_u16_le(length).await?;
    carrier.write_all(text.as_bytes()).await?;
    carrier.flush().await
}
