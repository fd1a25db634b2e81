//! What a root says of a node, as it stands in the certificate.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use protocol::NodeId;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, oid_registry::OID_SIG_ED25519};

use super::IdentityError;

const WHAT: &str = "a membership";

/// What a node may be in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Drives a line and serves its API.
    Front,
    /// Holds layers.
    Stage,
    /// Looks on.
    Observer,
}

impl Role {
    /// The name in the certificate; `.invalid` can never be a real host (RFC 2606).
    pub(super) const fn dns_name(self) -> &'static str {
        match self {
            Self::Front => "front.paceline.invalid",
            Self::Stage => "stage.paceline.invalid",
            Self::Observer => "observer.paceline.invalid",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Front => "front",
            Self::Stage => "stage",
            Self::Observer => "observer",
        })
    }
}

/// The number of a membership: random, so that two memberships of one node can be told apart when one is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(pub [u8; 16]);

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// What the cluster's root says of a node.
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

impl Membership {
    /// Reads what a root's answer to a request says, for showing it. Whether its signature holds is not checked.
    ///
    /// # Errors
    /// If the text does not begin with a membership.
    pub fn from_answer(answer: &str) -> Result<Self, IdentityError> {
        let cert = CertificateDer::from_pem_slice(answer.as_bytes())
            .map_err(|e| IdentityError::malformed(WHAT, format!("{e:?}")))?;
        Self::parse(&cert)
    }

    /// Reads a certificate; whether its signature holds was TLS's matter.
    pub(crate) fn parse(der: &[u8]) -> Result<Self, IdentityError> {
        let (rest, cert) =
            x509_parser::parse_x509_certificate(der).map_err(|e| IdentityError::malformed(WHAT, e))?;
        if !rest.is_empty() {
            return Err(IdentityError::malformed(WHAT, "bytes follow the certificate"));
        }
        Ok(Self { node: node(&cert)?, role: role(&cert)?, serial: serial(&cert)?, expires: expires(&cert)? })
    }
}

fn node(cert: &X509Certificate<'_>) -> Result<NodeId, IdentityError> {
    let key = cert.public_key();
    if key.algorithm.algorithm != OID_SIG_ED25519 {
        return Err(IdentityError::malformed(WHAT, "its key is not Ed25519"));
    }
    let raw = key.subject_public_key.data.as_ref().try_into();
    Ok(NodeId(raw.map_err(|_| IdentityError::malformed(WHAT, "its key has not 32 bytes"))?))
}

fn role(cert: &X509Certificate<'_>) -> Result<Role, IdentityError> {
    let names =
        cert.subject_alternative_name().ok().flatten().map_or(&[][..], |names| &names.value.general_names);
    match names {
        [GeneralName::DNSName(name)] => [Role::Front, Role::Stage, Role::Observer]
            .into_iter()
            .find(|role| role.dns_name() == *name)
            .ok_or_else(|| IdentityError::malformed(WHAT, format!("its role {name:?} is unknown"))),
        _ => Err(IdentityError::malformed(WHAT, "it does not name one role")),
    }
}

fn serial(cert: &X509Certificate<'_>) -> Result<Serial, IdentityError> {
    let raw = cert.raw_serial().try_into();
    Ok(Serial(raw.map_err(|_| IdentityError::malformed(WHAT, "its serial has not 16 bytes"))?))
}

fn expires(cert: &X509Certificate<'_>) -> Result<SystemTime, IdentityError> {
    u64::try_from(cert.validity().not_after.timestamp())
        .ok()
        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
        .ok_or_else(|| IdentityError::malformed(WHAT, "its end lies outside of time"))
}
