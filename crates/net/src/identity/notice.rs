//! Whom the root has let go: a signed list that replaces the one before, and that anybody may carry.
//!
//! Owns: its form, and the check of number and signature. Does not know how it travels or where it is kept.
//!
//! | bytes | |
//! |---|---|
//! | 17 | `paceline-notice/1` |
//! | 8 | number, little-endian; a higher one replaces a lower one |
//! | 2 | members that were let go |
//! | 32 each | their keys, ascending |
//! | 64 | the root's Ed25519 signature over all before it |

use std::collections::BTreeSet;

use bytes::Bytes;
use protocol::{NodeId, limits::MAX_NOTICE_BYTES};
use rcgen::SigningKey as _;
use rustls::SignatureScheme;

use super::{IdentityError, NodeKey};

const FORM: &[u8] = b"paceline-notice/1";
const HEAD: usize = FORM.len() + 8 + 2;
const SIGNATURE: usize = 64;
/// Members in a notice at most: what fits into one greeting.
pub(super) const MAX_REVOKED: usize = (MAX_NOTICE_BYTES - HEAD - SIGNATURE) / 32;

/// Why a notice is not heeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoticeError {
    /// Other bytes.
    #[error("this is not a notice of a cluster's root")]
    Malformed,
    /// Another cluster's, or somebody's who has no root key.
    #[error("the notice was not signed by this cluster's root")]
    NotSigned,
    /// A new root that has not taken this machine over.
    #[error("the cluster has a new root, which has not signed this machine: invite it anew")]
    LeftOut,
}

/// What the root says of members that it has let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    number: u64,
    revoked: BTreeSet<NodeId>,
    bytes: Bytes,
}

impl Notice {
    /// Signs one with the root's key.
    pub(super) fn sign(
        root: &NodeKey,
        number: u64,
        revoked: BTreeSet<NodeId>,
    ) -> Result<Self, IdentityError> {
        let failed = |reason: &dyn ToString| IdentityError::crypto("sign the notice", reason.to_string());
        if revoked.len() > MAX_REVOKED {
            return Err(failed(&format!("more than {MAX_REVOKED} members: make a new cluster")));
        }
        let mut bytes = [FORM, &number.to_le_bytes(), &(revoked.len() as u16).to_le_bytes()].concat();
        revoked.iter().for_each(|node| bytes.extend_from_slice(&node.0));
        let signature = root.pair().sign(&bytes).map_err(|error| failed(&error))?;
        bytes.extend_from_slice(&signature);
        Ok(Self { number, revoked, bytes: bytes.into() })
    }

    /// Reads one that `root` must have signed.
    ///
    /// # Errors
    /// If it is none, or somebody else's.
    pub(crate) fn read(bytes: &[u8], root: NodeId) -> Result<Self, NoticeError> {
        let rest = bytes.strip_prefix(FORM).ok_or(NoticeError::Malformed)?;
        let (number, rest) = rest.split_first_chunk().ok_or(NoticeError::Malformed)?;
        let (count, rest) = rest.split_first_chunk().ok_or(NoticeError::Malformed)?;
        let nodes = usize::from(u16::from_le_bytes(*count)) * 32;
        if bytes.len() > MAX_NOTICE_BYTES || rest.len() != nodes + SIGNATURE {
            return Err(NoticeError::Malformed);
        }
        let (signed, signature) = bytes.split_at(HEAD + nodes);
        verify(root, signed, signature)?;
        let (nodes, _) = rest[..nodes].as_chunks();
        let revoked = nodes.iter().copied().map(NodeId).collect();
        Ok(Self { number: u64::from_le_bytes(*number), revoked, bytes: Bytes::copy_from_slice(bytes) })
    }

    /// Which one: a higher number replaces a lower one.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Whom the root has let go.
    #[must_use]
    pub const fn revoked(&self) -> &BTreeSet<NodeId> {
        &self.revoked
    }

    /// As it travels and is kept. No secret.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Whether `root` has signed `message`.
pub(super) fn verify(root: NodeId, message: &[u8], signature: &[u8]) -> Result<(), NoticeError> {
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let ed25519 = algorithms.mapping.iter().find(|(scheme, _)| *scheme == SignatureScheme::ED25519);
    let [algorithm, ..] = ed25519.map_or(&[][..], |(_, algorithms)| *algorithms) else {
        return Err(NoticeError::NotSigned);
    };
    algorithm.verify_signature(&root.0, message, signature).map_err(|_| NoticeError::NotSigned)
}
