//! What a link is for: named in the handshake itself, so that a member whose role does not allow it is refused before
//! any frame is parsed.
//!
//! Owns: the names, and which role may ask for what. Does not know what is said on such a link.

use std::fmt;

use crate::{Role, tls::HandshakeError};

/// What the side that dials wants of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To command it, as its front.
    Control,
    /// To pass on what its front commands, as a neighbour that reaches it.
    Relay,
    /// To send it work.
    Rows,
    /// To see how it is, and to bring what the cluster's root has signed.
    Observe,
}

impl Purpose {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Control, Self::Relay, Self::Rows, Self::Observe];

    /// The protocol's name in the handshake. The number names the framing in [`crate::link`].
    pub(crate) const fn protocol(self) -> &'static [u8] {
        match self {
            Self::Control => b"paceline-control/1",
            Self::Relay => b"paceline-relay/1",
            Self::Rows => b"paceline-rows/1",
            Self::Observe => b"paceline-observe/1",
        }
    }

    /// The purpose that both sides agreed on: TLS lets a peer through that names none.
    pub(crate) fn agreed(protocol: Option<&[u8]>) -> Result<Self, HandshakeError> {
        let named = |purpose: &Self| Some(purpose.protocol()) == protocol;
        let unnamed = || HandshakeError::NotPaceline { reason: "it did not ask for it by name".to_owned() };
        Self::ALL.into_iter().find(named).ok_or_else(unnamed)
    }

    /// Whether a member in this role may ask for it.
    #[must_use]
    pub const fn is_open_to(self, role: Role) -> bool {
        match self {
            Self::Control => matches!(role, Role::Front),
            // A stage in the front's own process passes commands on in the front's name.
            Self::Relay | Self::Rows => matches!(role, Role::Front | Role::Stage),
            Self::Observe => matches!(role, Role::Front | Role::Observer),
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "command a stage",
            Self::Relay => "pass commands on",
            Self::Rows => "send work",
            Self::Observe => "observe",
        })
    }
}
