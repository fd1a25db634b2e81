//! Who a node is: its Ed25519 key, and the membership that a cluster's root key signed for it.
//!
//! Owns: making, storing and checking keys, requests, memberships, notices and successions. A membership is an X.509
//! certificate, so that TLS checks it; this module only fills it in and reads it back.
//! Does not know: connections, or which node belongs where in a line.

mod bundle;
mod files;
mod key;
mod membership;
mod notice;
mod root;
mod standing;
mod succession;

pub use bundle::Identity;
pub use key::{NodeKey, enroll_request};
pub use membership::{Membership, Role, Serial};
pub use notice::{Notice, NoticeError};
pub use root::ClusterRoot;
pub use standing::Standing;
pub use succession::Succession;

use std::path::PathBuf;

/// A key, membership or request that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A file could not be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// In the system's words.
        reason: String,
    },
    /// A file could not be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// In the system's words.
        reason: String,
    },
    /// A secret would have been overwritten.
    #[error("{} exists already: choose another path, or move it away first", path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// Text or bytes in another form than expected.
    #[error("this is not {expected}: {reason}")]
    Malformed {
        /// What was looked for, with its article.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A membership for a different key.
    #[error("the membership was signed for node {}, but the key is node {}: enrol this node's own request",
        signed_for.short(), key.short())]
    OtherKey {
        /// The key in the membership.
        signed_for: protocol::NodeId,
        /// The key at hand.
        key: protocol::NodeId,
    },
    /// A membership that the root beside it did not sign.
    #[error("the membership was not signed by the cluster root that came with it: enrol the node again")]
    NotSignedByRoot,
    /// A membership past its date.
    #[error("the membership of node {} has expired: enrol the node again", node.short())]
    Expired {
        /// Whose.
        node: protocol::NodeId,
    },
    /// The cryptographic library refused.
    #[error("cannot {action}: {reason}")]
    Crypto {
        /// What was tried.
        action: &'static str,
        /// The library's reason.
        reason: String,
    },
}

impl IdentityError {
    fn malformed(expected: &'static str, reason: impl ToString) -> Self {
        Self::Malformed { expected, reason: reason.to_string() }
    }

    pub(crate) fn crypto(action: &'static str, reason: impl ToString) -> Self {
        Self::Crypto { action, reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests;
