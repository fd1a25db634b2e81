//! HTTPS: a certificate chain and its private key from PEM files, read again when they change.
//!
//! Owns: the files and the TLS settings. Does not know sockets.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::current::Current;
use crate::limits::MAX_PEM_BYTES;

/// A certificate and its key, for a server that speaks TLS 1.3.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

/// Files that cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// One of them cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// One of them is far too large.
    #[error("{} has more than 1 MiB: name a PEM file", path.display())]
    TooLarge {
        /// Which one.
        path: PathBuf,
    },
    /// One of them has damaged PEM in it.
    #[error("{} is damaged ({source}): name a PEM file", path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The file for certificates has none.
    #[error("{} holds no certificate: name a PEM file with the server's certificate first, then those that signed it", path.display())]
    NoCertificate {
        /// Which one.
        path: PathBuf,
    },
    /// The file for the key has none.
    #[error("{} holds no private key that is not encrypted: name a PEM file with one", path.display())]
    NoKey {
        /// Which one.
        path: PathBuf,
    },
    /// The key is of a kind that cannot be used here.
    #[error("the private key in {} cannot be used ({source}): make an ECDSA, Ed25519 or RSA key", path.display())]
    UnusableKey {
        /// Where it is.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error("the private key in {} does not belong to the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// Where the first certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
    },
    /// The TLS library refuses its own settings.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// Gives every handshake the certificate of now.
#[derive(Debug)]
struct Renewed(Current<Arc<CertifiedKey>>);

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.get()))
    }
}

impl Tls {
    /// Reads the server's certificate chain and its private key. They are read again when they change; what does not fit
    /// together, as in the middle of a renewal, is passed over.
    ///
    /// # Errors
    /// If a file cannot be read, or the two cannot be used together.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsFileError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsFileError::Setup)?;
        let files = [certificate.to_owned(), key.to_owned()];
        let read = {
            let [certificate, key] = files.clone();
            move || pair(&certificate, &key, &provider).map(Arc::new)
        };
        let pair = Current::new(files.into(), read)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(Renewed(pair)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) const fn acceptor(&self) -> &TlsAcceptor {
        &self.0
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn pair(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, TlsFileError> {
    let damaged = |path: &Path| {
        let path = path.to_owned();
        |source| TlsFileError::Damaged { path, source }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes(certificate)?)
        .collect::<Result<_, _>>()
        .map_err(damaged(certificate))?;
    if chain.is_empty() {
        return Err(TlsFileError::NoCertificate { path: certificate.into() });
    }
    let secret = match PrivateKeyDer::from_pem_slice(&bytes(key)?) {
        Ok(secret) => secret,
        Err(pem::Error::NoItemsFound) => return Err(TlsFileError::NoKey { path: key.into() }),
        Err(source) => return Err(damaged(key)(source)),
    };
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsFileError::Mismatch { certificate: certificate.into(), key: key.into() }
        }
        source => TlsFileError::UnusableKey { path: key.into(), source },
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let read = |source| TlsFileError::Read { path: path.into(), source };
    let mut bytes = Vec::new();
    let size = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes))
        .map_err(read)?;
    if size as u64 > MAX_PEM_BYTES {
        return Err(TlsFileError::TooLarge { path: path.into() });
    }
    Ok(bytes)
}
