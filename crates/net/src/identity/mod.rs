//! Skeleton.
use protocol::NodeId;
use std::{path::Path, time::SystemTime};

/// What a node may be in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Drives the line.
    Front,
    /// Holds layers.
    Stage,
}

/// Number of a membership, unique within a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(pub [u8; 16]);

/// A key, membership or request that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placeholder")]
pub struct IdentityError;

/// A node's Ed25519 key pair.
#[derive(Debug)]
pub struct NodeKey(());

impl NodeKey {
    /// A new key in memory.
    ///
    /// # Errors
    pub fn generate() -> Result<Self, IdentityError> {
        unimplemented!()
    }
    /// Reads a key.
    ///
    /// # Errors
    pub fn load(_path: &Path) -> Result<Self, IdentityError> {
        unimplemented!()
    }
    /// Writes the key, mode 0600; never overwrites.
    ///
    /// # Errors
    pub fn save(&self, _path: &Path) -> Result<(), IdentityError> {
        unimplemented!()
    }
    /// The public key.
    pub fn id(&self) -> NodeId {
        unimplemented!()
    }
}

/// PEM text of a request to be signed by the cluster's root.
///
/// # Errors
pub fn enroll_request(_key: &NodeKey) -> Result<String, IdentityError> {
    unimplemented!()
}

/// What the root says of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Whose.
    pub node: NodeId,
    /// As what.
    pub role: Role,
    /// Which membership.
    pub serial: Serial,
    /// Until when.
    pub expires: SystemTime,
}

/// The operator's root key.
#[derive(Debug)]
pub struct ClusterRoot(());

impl ClusterRoot {
    /// A new cluster.
    ///
    /// # Errors
    pub fn new() -> Result<Self, IdentityError> {
        unimplemented!()
    }
    /// Reads a root.
    ///
    /// # Errors
    pub fn load(_path: &Path) -> Result<Self, IdentityError> {
        unimplemented!()
    }
    /// Writes the root, mode 0600; never overwrites.
    ///
    /// # Errors
    pub fn save(&self, _path: &Path) -> Result<(), IdentityError> {
        unimplemented!()
    }
    /// Signs a request; the answer (PEM: membership and root certificate) goes back to the node.
    ///
    /// # Errors
    pub fn enroll(
        &self,
        _request: &str,
        _role: Role,
        _expires: Option<SystemTime>,
    ) -> Result<String, IdentityError> {
        unimplemented!()
    }
    /// A fresh key with a membership.
    ///
    /// # Errors
    pub fn issue(&self, _role: Role, _expires: Option<SystemTime>) -> Result<Identity, IdentityError> {
        unimplemented!()
    }
}

/// All that an endpoint needs to prove what it is. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Identity(());

impl Identity {
    /// A front and `n_stages` stages of a cluster that exists only in memory.
    ///
    /// # Errors
    pub fn ephemeral_cluster(_n_stages: usize) -> Result<(Self, Vec<Self>), IdentityError> {
        unimplemented!()
    }
    /// From a node's key and the root's answer to its request.
    ///
    /// # Errors
    pub fn from_enrolment(_key: NodeKey, _answer: &str) -> Result<Self, IdentityError> {
        unimplemented!()
    }
    /// PEM text: key, membership, root certificate. Secret.
    pub fn to_pem(&self) -> String {
        unimplemented!()
    }
    /// Reads [`Self::to_pem`].
    ///
    /// # Errors
    pub fn from_pem(_pem: &str) -> Result<Self, IdentityError> {
        unimplemented!()
    }
    /// The node.
    pub fn node(&self) -> NodeId {
        unimplemented!()
    }
    /// The membership.
    pub fn membership(&self) -> &Membership {
        unimplemented!()
    }
}
