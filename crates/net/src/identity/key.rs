//! A node's key pair.

use std::{fmt, path::Path, sync::Arc};

use protocol::NodeId;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, PublicKeyData};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};

use super::{IdentityError, files};

/// A node's Ed25519 key pair. Cheap to clone; the secret half never shows in debug output.
#[derive(Clone)]
pub struct NodeKey {
    pair: Arc<KeyPair>,
    id: NodeId,
}

impl NodeKey {
    /// A new key, in memory only.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn generate() -> Result<Self, IdentityError> {
        let pair =
            KeyPair::generate_for(&PKCS_ED25519).map_err(|e| IdentityError::crypto("make a key", e))?;
        Self::from_pair(pair)
    }

    /// Reads the key that [`Self::save`] wrote.
    ///
    /// # Errors
    /// If the file cannot be read or holds no Ed25519 key.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        Self::from_pem(&files::read_secret(path)?)
    }

    /// Writes the key as PEM (PKCS#8), mode 0600.
    ///
    /// # Errors
    /// If the file exists already or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        files::write_secret(path, &self.to_pem())
    }

    /// The public key.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// The first private key in a PEM text.
    pub(super) fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        const WHAT: &str = "an Ed25519 key in PEM form";
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|e| IdentityError::malformed(WHAT, format!("{e:?}")))?;
        let pair = KeyPair::from_der_and_sign_algo(&der.into(), &PKCS_ED25519)
            .map_err(|e| IdentityError::malformed(WHAT, e))?;
        Self::from_pair(pair)
    }

    pub(super) fn to_pem(&self) -> String {
        self.pair.serialize_pem()
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(super) fn secret(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pair.serialize_der()).into()
    }

    fn from_pair(pair: KeyPair) -> Result<Self, IdentityError> {
        let id = public_id(&pair)?;
        Ok(Self { pair: Arc::new(pair), id })
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({}, secret)", self.id.short())
    }
}

/// The node id of a public key.
pub(super) fn public_id(key: &impl PublicKeyData) -> Result<NodeId, IdentityError> {
    const WHAT: &str = "an Ed25519 public key";
    if key.algorithm() != &PKCS_ED25519 {
        return Err(IdentityError::malformed(WHAT, "it is of another kind"));
    }
    let raw =
        key.der_bytes().try_into().map_err(|_| IdentityError::malformed(WHAT, "it has not 32 bytes"))?;
    Ok(NodeId(raw))
}

/// PEM text (PKCS#10) with which a node asks the cluster's root for a membership; holds no secret.
///
/// # Errors
/// If the request cannot be signed.
pub fn enroll_request(key: &NodeKey) -> Result<String, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .serialize_request(key.pair())
        .and_then(|request| request.pem())
        .map_err(|e| IdentityError::crypto("sign the request", e))
}
