//! One root follows another: what the old root and the new one sign together, and anybody may carry.
//!
//! It names the new root, holds the memberships that the new root has signed for those who were members, and says until
//! when such a member may still prove itself by its old membership, should it not have heard yet. Members of the old root
//! that it does not name are members no more.
//!
//! Owns: its form, and the check of its signatures. Does not know how it travels, or who believes it (`standing`).
//!
//! | bytes | |
//! |---|---|
//! | 21 | `paceline-succession/1` |
//! | 8 | until when old memberships are accepted, seconds since 1970, little-endian |
//! | 2 + n each | certificates behind their lengths: the old root, the new root, the new root signed by the old one |
//! | 2 | memberships |
//! | 2 + n each | their certificates, signed by the new root |
//! | 64 | the old root's Ed25519 signature over all before |
//! | 64 | the new root's over the same |

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use protocol::NodeId;
use protocol::limits::MAX_NOTICE_BYTES;
use rcgen::SigningKey as _;
use rustls::pki_types::CertificateDer;

use super::notice::verify;
use super::root::RootCert;
use super::{ClusterRoot, IdentityError, Membership, NoticeError, files};

const FORM: &[u8] = b"paceline-succession/1";
const SIGNATURE: usize = 64;

/// A member as the new root has signed it.
type Member = (Membership, CertificateDer<'static>);

/// See the module.
#[derive(Clone, Debug)]
pub struct Succession {
    until: SystemTime,
    old: RootCert,
    new: RootCert,
    /// The new root's certificate by the old one: with it a new membership is good for those who have not heard.
    bridge: CertificateDer<'static>,
    members: BTreeMap<NodeId, Member>,
    bytes: Bytes,
}

impl Succession {
    /// Signs one with both roots' keys.
    pub(super) fn sign(
        old: &ClusterRoot,
        new: &ClusterRoot,
        until: SystemTime,
        members: &[Membership],
    ) -> Result<Self, IdentityError> {
        let failed = |reason: &dyn ToString| IdentityError::crypto("sign the new root", reason.to_string());
        let bridge = old.sign_root(new)?;
        let renewed = members.iter().map(|member| new.renew(member)).collect::<Result<Vec<_>, _>>()?;
        let until = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut bytes = [FORM, &until.to_le_bytes()].concat();
        for cert in [old.cert(), new.cert(), &bridge] {
            put(&mut bytes, cert);
        }
        bytes.extend_from_slice(&(renewed.len() as u16).to_le_bytes());
        renewed.iter().for_each(|cert| put(&mut bytes, cert));
        let signatures = [old, new].map(|root| root.pair().sign(&bytes));
        for signature in signatures {
            bytes.extend_from_slice(&signature.map_err(|error| failed(&error))?);
        }
        if renewed.len() > usize::from(u16::MAX) || bytes.len() > MAX_NOTICE_BYTES {
            return Err(failed(&format!("{} members are too many: make a new cluster", renewed.len())));
        }
        Self::read(&bytes).map_err(|error| failed(&error))
    }

    /// Whether bytes claim to be one.
    pub(super) fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(FORM)
    }

    /// Reads one. Both of its roots have signed it; whether they are anybody's is not checked.
    ///
    /// # Errors
    /// If it is none, or was not signed by the roots that it names.
    pub fn read(bytes: &[u8]) -> Result<Self, NoticeError> {
        let parts = Parts::read(bytes).ok_or(NoticeError::Malformed)?;
        let root = |cert: &[u8]| RootCert::read(owned(cert)).ok_or(NoticeError::Malformed);
        let (old, new) = (root(parts.roots[0])?, root(parts.roots[1])?);
        verify(old.key, parts.signed, parts.signatures[0])?;
        verify(new.key, parts.signed, parts.signatures[1])?;
        let member = |cert: &&[u8]| {
            let membership = Membership::parse(cert).map_err(|_| NoticeError::Malformed)?;
            Ok((membership.node, (membership, owned(cert))))
        };
        let members = parts.members.iter().map(member).collect::<Result<BTreeMap<_, _>, _>>()?;
        let until = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(parts.until));
        Ok(Self {
            until: until.ok_or(NoticeError::Malformed)?,
            bridge: owned(parts.roots[2]),
            bytes: Bytes::copy_from_slice(bytes),
            old,
            new,
            members,
        })
    }

    /// Until when an old membership is accepted.
    #[must_use]
    pub const fn until(&self) -> SystemTime {
        self.until
    }

    /// The key of the root that hands over.
    #[must_use]
    pub const fn old(&self) -> NodeId {
        self.old.key
    }

    /// The key of the root that takes over.
    #[must_use]
    pub const fn new_root(&self) -> NodeId {
        self.new.key
    }

    /// Whom the new root has signed.
    pub fn members(&self) -> impl Iterator<Item = &Membership> {
        self.members.values().map(|(membership, _)| membership)
    }

    /// What the new root answers a member with, as [`ClusterRoot::enroll`] writes it.
    #[must_use]
    pub fn answer(&self, node: NodeId) -> Option<String> {
        let (_, cert) = self.members.get(&node)?;
        Some(format!("{}{}", files::cert_pem(cert), files::cert_pem(&self.new.cert)))
    }

    /// As it travels and is kept. No secret.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(super) fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node)
    }

    pub(super) const fn old_root(&self) -> &RootCert {
        &self.old
    }

    pub(super) const fn root(&self) -> &RootCert {
        &self.new
    }

    pub(super) const fn bridge(&self) -> &CertificateDer<'static> {
        &self.bridge
    }
}

/// The bytes cut into their parts.
struct Parts<'a> {
    until: u64,
    roots: [&'a [u8]; 3],
    members: Vec<&'a [u8]>,
    signed: &'a [u8],
    signatures: [&'a [u8]; 2],
}

impl<'a> Parts<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > MAX_NOTICE_BYTES {
            return None;
        }
        let (signed, signatures) = bytes.split_at_checked(bytes.len().checked_sub(2 * SIGNATURE)?)?;
        let (until, mut rest) = signed.strip_prefix(FORM)?.split_first_chunk()?;
        let roots = [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?];
        let (count, mut rest) = rest.split_first_chunk()?;
        let members = (0..u16::from_le_bytes(*count)).map(|_| take(&mut rest)).collect::<Option<_>>()?;
        let (first, second) = signatures.split_at(SIGNATURE);
        let parts =
            Self { until: u64::from_le_bytes(*until), roots, members, signed, signatures: [first, second] };
        rest.is_empty().then_some(parts)
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let (cert, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *rest = after;
    Some(cert)
}

/// A certificate of ours is under a kilobyte.
fn put(bytes: &mut Vec<u8>, cert: &CertificateDer<'_>) {
    bytes.extend_from_slice(&(cert.len() as u16).to_le_bytes());
    bytes.extend_from_slice(cert);
}

fn owned(cert: &[u8]) -> CertificateDer<'static> {
    CertificateDer::from(cert.to_vec())
}
