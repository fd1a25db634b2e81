//! The operator's key: whoever holds it decides who belongs to the cluster.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, SystemTime},
};

use protocol::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType,
    SerialNumber, SignatureAlgorithm,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::{
    Identity, IdentityError, Membership, NodeKey, Notice, NoticeError, Role, Succession, files, key,
};
use crate::tls;

/// 4 January 4093: later ends are cut to it, so that every end fits the certificate's date form.
const LAST_END: Duration = Duration::from_secs(67_000_000_000);

/// A cluster's root key and its self-signed certificate.
#[derive(Debug)]
pub struct ClusterRoot {
    key: NodeKey,
    cert: CertificateDer<'static>,
}

impl ClusterRoot {
    /// Makes a new cluster.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn new() -> Result<Self, IdentityError> {
        let key = NodeKey::generate()?;
        // It signs members, and the root that follows it, which signs members.
        let cert = root_params(key.id(), 1)?
            .self_signed(key.pair())
            .map_err(|e| IdentityError::crypto("sign the cluster root", e))?;
        Ok(Self { key, cert: cert.der().clone() })
    }

    /// Reads what [`Self::save`] wrote.
    ///
    /// # Errors
    /// If the file cannot be read or holds no cluster root.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        const WHAT: &str = "a cluster root file";
        let pem = files::read_secret(path)?;
        let key = NodeKey::from_pem(&pem)?;
        let cert = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|e| IdentityError::malformed(WHAT, format!("{e:?}")))?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&cert).map_err(|e| IdentityError::malformed(WHAT, e))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.id().0 {
            return Err(IdentityError::malformed(WHAT, "its certificate belongs to another key"));
        }
        drop(parsed);
        Ok(Self { key, cert })
    }

    /// Writes key and certificate as PEM, mode 0600.
    ///
    /// # Errors
    /// If the file exists already or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        files::write_secret(path, &format!("{}{}", self.key.to_pem(), files::cert_pem(&self.cert)))
    }

    /// The root's public key: the cluster's name.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.key.id()
    }

    /// Signs the request of [`super::enroll_request`]; of it only the key counts. The answer (PEM, no secret) goes
    /// back to the node, which joins it with its key by [`Identity::from_enrolment`]. Without `expires` the membership
    /// holds for as long as the cluster does.
    ///
    /// # Errors
    /// If the text is not a request, or not one signed by the Ed25519 key in it.
    pub fn enroll(
        &self,
        request: &str,
        role: Role,
        expires: Option<SystemTime>,
    ) -> Result<String, IdentityError> {
        let request = CertificateSigningRequestParams::from_pem(request)
            .map_err(|e| IdentityError::malformed("an enrolment request", e))?;
        let cert = self.sign(&request.public_key, role, expires)?;
        Ok(format!("{}{}", files::cert_pem(cert.der()), files::cert_pem(&self.cert)))
    }

    /// Makes a new node: a fresh key with its membership.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn issue(&self, role: Role, expires: Option<SystemTime>) -> Result<Identity, IdentityError> {
        let key = NodeKey::generate()?;
        let cert = self.sign(key.pair(), role, expires)?;
        Identity::assemble(key, cert.der().clone(), self.cert.clone())
    }

    /// Says whom the root has let go, of all members that there ever were. `number` must be above that of every earlier
    /// notice.
    ///
    /// # Errors
    /// If there are more than fit into one notice, some hundreds.
    pub fn notice(&self, number: u64, revoked: BTreeSet<NodeId>) -> Result<Notice, IdentityError> {
        Notice::sign(&self.key, number, revoked)
    }

    /// Reads a notice that this root has signed.
    ///
    /// # Errors
    /// If it is none, or another root's.
    pub fn read_notice(&self, bytes: &[u8]) -> Result<Notice, NoticeError> {
        Notice::read(bytes, self.id())
    }

    /// Hands the cluster over to `next`, which signs these members anew, each for as long as it was one. Those who have
    /// not heard may prove themselves by what this root has signed until `until`.
    ///
    /// # Errors
    /// If there are more members than fit, some hundreds.
    pub fn hand_over(
        &self,
        next: &Self,
        until: SystemTime,
        members: &[Membership],
    ) -> Result<Succession, IdentityError> {
        Succession::sign(self, next, until, members)
    }

    /// Whether this root has signed an answer of [`Self::enroll`].
    #[must_use]
    pub fn has_signed(&self, answer: &str) -> bool {
        answer.ends_with(&files::cert_pem(&self.cert))
    }

    pub(super) const fn cert(&self) -> &CertificateDer<'static> {
        &self.cert
    }

    pub(super) fn pair(&self) -> &KeyPair {
        self.key.pair()
    }

    /// The certificate of another root, signed by this one.
    pub(super) fn sign_root(&self, next: &Self) -> Result<CertificateDer<'static>, IdentityError> {
        let signed = root_params(next.id(), 0)?.signed_by(next.pair(), &self.issuer()?);
        Ok(signed.map_err(|e| IdentityError::crypto("sign the new root", e))?.der().clone())
    }

    /// A membership that another root has signed, signed by this one.
    pub(super) fn renew(&self, member: &Membership) -> Result<CertificateDer<'static>, IdentityError> {
        let cert = self.sign(&PublicKey(member.node), member.role, Some(member.expires))?;
        Ok(cert.der().clone())
    }

    fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, IdentityError> {
        Issuer::from_ca_cert_der(&self.cert, self.key.pair())
            .map_err(|e| IdentityError::crypto("use the cluster root", e))
    }

    fn sign(
        &self,
        public: &impl PublicKeyData,
        role: Role,
        expires: Option<SystemTime>,
    ) -> Result<rcgen::Certificate, IdentityError> {
        let node = key::public_id(public)?;
        let mut params = blank_params(format!("Paceline {role} {}", node.short()))?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A stage both dials and is dialled.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let name = role.dns_name().try_into().expect("a role's name is ASCII");
        params.subject_alt_names = vec![SanType::DnsName(name)];
        if let Some(expires) = expires {
            let since = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().min(LAST_END);
            params.not_after = (SystemTime::UNIX_EPOCH + since).into();
        }
        params.signed_by(public, &self.issuer()?).map_err(|e| IdentityError::crypto("sign the membership", e))
    }
}

/// A root as others know it.
#[derive(Clone, Debug)]
pub(super) struct RootCert {
    pub(super) key: NodeId,
    pub(super) cert: CertificateDer<'static>,
}

impl RootCert {
    /// None if there is no Ed25519 key in it.
    pub(super) fn read(cert: CertificateDer<'static>) -> Option<Self> {
        tls::public_key(&cert).map(|key| Self { key, cert })
    }
}

/// A node's key without its secret, as it stands in a certificate.
struct PublicKey(NodeId);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// A root's certificate, with so many roots below it.
fn root_params(key: NodeId, n_below: u8) -> Result<CertificateParams, IdentityError> {
    let mut params = blank_params(format!("Paceline cluster {}", key.short()))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(n_below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

/// A certificate's common part. The start lies in 1975, so that a clock that runs slow shuts nobody out.
fn blank_params(name: String) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    Ok(params)
}

/// 16 random bytes that read as a positive number of full length.
fn random_serial() -> Result<[u8; 16], IdentityError> {
    let mut serial = [0; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|e| IdentityError::crypto("draw a serial", format!("{e:?}")))?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}
