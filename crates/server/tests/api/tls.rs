//! HTTPS over a real port, and files that are no good for it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use server::{ConnectionLimits, Server, Tls, TlsFileError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::fake::{DEADLINE, Harness};
use crate::tcp;

type Made = CertifiedKey<KeyPair>;

fn certificate() -> Made {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

/// Writes both files.
fn write(folder: &Path, made: &Made) -> (std::path::PathBuf, std::path::PathBuf) {
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

async fn server(tls: Tls, limits: ConnectionLimits) -> Server {
    let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    server.with_tls(Some(tls)).with_limits(limits)
}

/// The answer to a question about the server's health, from a client that trusts one certificate only.
async fn health(address: SocketAddr, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut text)).await.expect("an end in time")?;
    Ok(text)
}

#[tokio::test]
async fn answers_over_tls_with_the_certificate_of_now() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (certificate(), certificate());
    let (cert_file, key_file) = write(folder.path(), &old);
    let harness = Harness::new([]);
    let server = server(Tls::load(&cert_file, &key_file).unwrap(), ConnectionLimits::default()).await;
    assert!(server.url().starts_with("https://127.0.0.1:"));
    let running = tcp::run(&harness, server);
    assert!(health(running.address, old.cert.der()).await.unwrap().starts_with("HTTP/1.1 200"));
    assert!(health(running.address, new.cert.der()).await.is_err(), "that is not its certificate");
    // A renewal that has come half of its way changes nothing.
    std::fs::write(&cert_file, new.cert.pem()).unwrap();
    assert!(health(running.address, old.cert.der()).await.is_ok());
    write(folder.path(), &new);
    assert!(health(running.address, new.cert.der()).await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn who_does_not_shake_hands_is_sent_away() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificate();
    let (cert_file, key_file) = write(folder.path(), &made);
    let harness = Harness::new([]);
    let limits =
        ConnectionLimits { handshake_time: Duration::from_millis(200), ..ConnectionLimits::default() };
    let running = tcp::run(&harness, server(Tls::load(&cert_file, &key_file).unwrap(), limits).await);
    for said in [b"".as_slice(), b"\x16\x03", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut bytes = Vec::new();
        let _ = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("an end in time");
        assert!(!bytes.starts_with(b"HTTP"), "nothing is answered in the clear");
    }
    assert!(health(running.address, made.cert.der()).await.is_ok());
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificate();
    let (cert_file, key_file) = write(folder.path(), &made);
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let refused = |certificate: &Path, key: &Path| Tls::load(certificate, key).unwrap_err();

    let missing = folder.path().join("missing");
    assert!(matches!(refused(&missing, &key_file), TlsFileError::Read { path, .. } if path == missing));
    assert!(matches!(refused(&cert_file, &missing), TlsFileError::Read { path, .. } if path == missing));
    assert!(
        matches!(refused(&key_file, &key_file), TlsFileError::NoCertificate { path } if path == key_file)
    );
    assert!(matches!(refused(&cert_file, &cert_file), TlsFileError::NoKey { path } if path == cert_file));
    let cut = file("cut", &made.cert.pem()[..200]);
    assert!(matches!(refused(&cut, &key_file), TlsFileError::Damaged { path, .. } if path == cut));
    let nonsense = file("nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    assert!(
        matches!(refused(&cert_file, &nonsense), TlsFileError::UnusableKey { path, .. } if path == nonsense)
    );
    let other = file("other", &certificate().signing_key.serialize_pem());
    assert!(matches!(refused(&cert_file, &other), TlsFileError::Mismatch { .. }));
    let large = file("large", &"x".repeat((1 << 20) + 1));
    assert!(matches!(refused(&large, &key_file), TlsFileError::TooLarge { .. }));
    for error in [refused(&missing, &key_file), refused(&cut, &key_file), refused(&cert_file, &other)] {
        assert!(
            !error.to_string().contains('\n')
                && error.to_string().contains(".pem")
                    | error.to_string().contains("PEM")
                    | error.to_string().contains("missing"),
            "{error}"
        );
    }
}
