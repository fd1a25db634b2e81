//! The text that lets one machine join: where to ask, whom to believe, and a secret that is good once.

use std::fmt;
use std::str::FromStr;

use protocol::NodeId;
use subtle::ConstantTimeEq as _;

use crate::IdentityError;

/// What a ticket begins with.
const PREFIX: &str = "paceline-join:";
/// Longest address in a ticket: a host name has at most 253 characters.
const MAX_ADDRESS: usize = 300;

/// 32 random bytes that never show.
#[derive(Clone)]
pub(super) struct Secret(pub(super) [u8; 32]);

impl Secret {
    pub(super) fn draw() -> Result<Self, IdentityError> {
        let mut bytes = [0; 32];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut bytes)
            .map_err(|e| IdentityError::crypto("draw a secret", format!("{e:?}")))?;
        Ok(Self(bytes))
    }

    /// Compared in a time that says nothing about where they differ.
    pub(super) fn is(&self, other: &[u8; 32]) -> bool {
        self.0.ct_eq(other).into()
    }
}

/// See the module. Its text form holds the secret: show it to whom it is for and to nobody else.
#[derive(Clone)]
pub struct Ticket {
    /// Where the invitation waits, `host:port`.
    pub(super) address: String,
    /// The cluster's root: only who is signed by it is told the secret.
    pub(super) root: NodeId,
    pub(super) secret: Secret,
}

impl Ticket {
    /// Where the invitation waits, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether a text can be a ticket's address.
    #[must_use]
    pub fn is_address(text: &str) -> bool {
        let has_port = text
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
        has_port && text.len() <= MAX_ADDRESS && !text.contains('@') && !text.contains(char::is_whitespace)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, root {}, secret)", self.address, self.root.short())
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.root.0.iter().chain(&self.secret.0).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "@{}", self.address)
    }
}

/// A text that is no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a ticket of `paceline cluster invite`: copy the whole of it, from `{PREFIX}` to the port"
)]
pub struct TicketError;

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(TicketError)?;
        let (keys, address) = rest.split_once('@').ok_or(TicketError)?;
        if !Self::is_address(address) || keys.len() != 128 || !keys.is_ascii() {
            return Err(TicketError);
        }
        let (root, secret) = keys.split_at(64);
        Ok(Self {
            address: address.to_owned(),
            root: NodeId(hex(root).ok_or(TicketError)?),
            secret: Secret(hex(secret).ok_or(TicketError)?),
        })
    }
}

/// 64 hexadecimal digits.
fn hex(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let digit = |at: usize| pair.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(bytes)
}
