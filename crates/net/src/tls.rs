//! TLS as the links use it: version 1.3 only, both sides prove a membership of the same cluster, nothing is resumed.
//!
//! Owns: the configurations, the check against the pinned root, and the words for what went wrong in a handshake.
//! Does not know: sockets, roles that are wanted, who was let go (`endpoint` judges those once the handshake is done).

use std::{io, sync::Arc};

use protocol::NodeId;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage, ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};

use x509_parser::oid_registry::OID_SIG_ED25519;

use crate::{Identity, IdentityError, Purpose, Standing};

/// Names the exchange in [`crate::invite`].
const INVITATION: &[u8] = b"paceline-invite/1";

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Bytes that are not TLS, or TLS for something else.
    #[error("the other side does not speak this protocol ({reason})")]
    NotPaceline {
        /// In the TLS library's words.
        reason: String,
    },
    /// The peer showed no certificate.
    #[error("the other side showed no membership")]
    NoMembership,
    /// The peer's membership was signed by another root.
    #[error("the other side belongs to another cluster: enrol it in this one")]
    OtherCluster,
    /// The peer's membership has ended.
    #[error("the other side's membership has expired: enrol it again")]
    Expired,
    /// The peer's membership is by a root that this cluster has replaced.
    #[error(
        "the other side's membership is from before the cluster's root was rotated, and is not accepted any more: \
         invite that machine anew"
    )]
    OldRoot,
    /// The peer refused this side's membership.
    #[error("the other side refused this node's membership: {reason}")]
    Refused {
        /// What the peer's alert says.
        reason: &'static str,
    },
    /// The peer closed the connection before the handshake was done.
    #[error("the other side hung up during the handshake")]
    HungUp,
    /// Any other fault of the TLS library or the connection.
    #[error("the handshake failed: {reason}")]
    Failed {
        /// In the library's words.
        reason: String,
    },
}

impl HandshakeError {
    /// The same without words that depend on what the other side sent.
    pub(crate) fn kind(&self) -> Self {
        match self {
            Self::NotPaceline { .. } => Self::NotPaceline { reason: String::new() },
            Self::Failed { .. } => Self::Failed { reason: String::new() },
            other => other.clone(),
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(tls) => Self::from(tls),
            None => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => Self::HungUp,
                _ => Self::Failed { reason: error.to_string() },
            },
        }
    }
}

impl From<&Error> for HandshakeError {
    fn from(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoMembership,
            error if is_expired(error) => Self::Expired,
            Error::InvalidCertificate(CertificateError::Revoked) => Self::OldRoot,
            Error::InvalidCertificate(_) => Self::OtherCluster,
            Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::DecryptError,
            ) => Self::Refused { reason: "it belongs to another cluster" },
            Error::AlertReceived(AlertDescription::CertificateExpired) => {
                Self::Refused { reason: "it has expired" }
            }
            Error::AlertReceived(AlertDescription::CertificateRevoked) => Self::Refused {
                reason: "it is from before the cluster's root was rotated, and is not accepted any more: invite this \
                         machine anew",
            },
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                Self::Refused { reason: "none was shown" }
            }
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::PeerIncompatible(_)
            | Error::PeerMisbehaved(_)
            | Error::NoApplicationProtocol
            | Error::AlertReceived(_) => Self::NotPaceline { reason: error.to_string() },
            _ => Self::Failed { reason: error.to_string() },
        }
    }
}

/// Whether a certificate was refused for its dates alone.
pub(crate) const fn is_expired(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        )
    )
}

/// For the side that is dialled, as things stand now.
pub(crate) fn server_config(identity: &Identity) -> Result<Arc<ServerConfig>, IdentityError> {
    let (provider, standing) = (provider(), identity.standing());
    let chain = standing.chain();
    let verifier = ClusterVerifier { trust: Trust::Member(standing), provider: provider.clone() };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| IdentityError::crypto("set up TLS", e))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, identity.secret())
        .map_err(|e| IdentityError::crypto("use this node's key", e))?;
    config.alpn_protocols = Purpose::ALL.map(|purpose| purpose.protocol().to_vec()).to_vec();
    // A resumed connection would skip the check of the membership.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For the side that dials, as things stand now.
pub(crate) fn client_config(
    identity: &Identity,
    purpose: Purpose,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let (provider, standing) = (provider(), identity.standing());
    let chain = standing.chain();
    let verifier = ClusterVerifier { trust: Trust::Member(standing), provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| IdentityError::crypto("set up TLS", e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, identity.secret())
        .map_err(|e| IdentityError::crypto("use this node's key", e))?;
    config.alpn_protocols = vec![purpose.protocol().to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// For an invitation: it shows that the root signed it, and asks for nothing.
pub(crate) fn invitation_config(identity: &Identity) -> Result<Arc<ServerConfig>, IdentityError> {
    let standing = identity.standing();
    let chain = vec![standing.cert().clone(), standing.root().clone()];
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| IdentityError::crypto("set up TLS", e))?
        .with_no_client_auth()
        .with_single_cert(chain, identity.secret())
        .map_err(|e| IdentityError::crypto("use this node's key", e))?;
    config.alpn_protocols = vec![INVITATION.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For a machine that has a ticket of the cluster with this root, and nothing to show yet.
pub(crate) fn guest_config(root: NodeId) -> Result<Arc<ClientConfig>, IdentityError> {
    let provider = provider();
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| IdentityError::crypto("set up TLS", e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ClusterVerifier { trust: Trust::Key(root), provider }))
        .with_no_client_auth();
    config.alpn_protocols = vec![INVITATION.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// Whether the two sides agreed on it: TLS lets a peer through that names nothing.
pub(crate) fn check_invitation(agreed: Option<&[u8]>) -> Result<(), HandshakeError> {
    match agreed {
        Some(INVITATION) => Ok(()),
        _ => Err(HandshakeError::NotPaceline { reason: "it did not ask for an invitation".to_owned() }),
    }
}

/// The Ed25519 key in a certificate.
pub(crate) fn public_key(cert: &CertificateDer<'_>) -> Option<NodeId> {
    let (_, parsed) = x509_parser::parse_x509_certificate(cert).ok()?;
    let key = parsed.public_key();
    let is_ed25519 = key.algorithm.algorithm == OID_SIG_ED25519;
    key.subject_public_key.data.as_ref().try_into().ok().filter(|_| is_ed25519).map(NodeId)
}

/// What the API of TLS asks for; with SNI off it never travels.
pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from("node.paceline.invalid").expect("a well-formed name")
}

/// Whether `root` signed `cert`, or one of the `intermediates` that did, and all hold at `now`. A membership is good for
/// both sides of a handshake, so that one check is enough for both.
pub(crate) fn verify(
    cert: &CertificateDer<'_>,
    root: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone().into_owned())?;
    let algorithms = provider().signature_verification_algorithms.all;
    let cert = ParsedCertificate::try_from(cert)?;
    verify_server_cert_signed_by_trust_anchor(&cert, &roots, intermediates, now, algorithms)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// By what a node recognises the other side.
#[derive(Debug)]
enum Trust {
    /// As a member does.
    Member(Arc<Standing>),
    /// By the root's key alone: whoever answers shows its certificate along.
    Key(NodeId),
}

/// Accepts any member of the cluster: what the verifiers of rustls do, without host names, which nodes do not have.
#[derive(Debug)]
struct ClusterVerifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl ClusterVerifier {
    fn check(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        match &self.trust {
            Trust::Member(standing) => standing.check(cert, intermediates, now),
            Trust::Key(key) => {
                let root = intermediates.iter().find(|cert| public_key(cert) == Some(*key));
                let root = root.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
                verify(cert, root, &[], now)
            }
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn only_tls13() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("only TLS 1.3 is spoken".to_owned()))
}

impl ServerCertVerifier for ClusterVerifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(cert, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        only_tls13()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for ClusterVerifier {
    /// A member has one membership to show: hints would only tell strangers which cluster this is.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(cert, intermediates, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        only_tls13()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// A client that trusts the cluster but shows nothing itself.
#[cfg(test)]
pub(crate) fn nameless_client_config(identity: &Identity) -> ClientConfig {
    let verifier = ClusterVerifier { trust: Trust::Member(identity.standing()), provider: provider() };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![Purpose::Control.protocol().to_vec()];
    config
}
