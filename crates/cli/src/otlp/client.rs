//! As much of an HTTP client as a collector needs: one POST, over TCP or TLS, within a time.

use std::fmt;
use std::path::Path;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where a collector takes traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    is_tls: bool,
    host: String,
    port: u16,
    /// Begins with `/`.
    path: String,
}

impl FromStr for Target {
    type Err = String;

    /// `http://host:port/path` or `https://…`; ports are 80 and 443 unless given.
    fn from_str(url: &str) -> Result<Self, String> {
        let bad = || format!("`{url}` is no address of a collector: write http://host:port or https://host");
        let (is_tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(bad()),
        };
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        // A colon inside brackets belongs to an IPv6 address.
        let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| bad())?),
            None => (authority, if is_tls { 443 } else { 80 }),
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || port == 0 || host.contains('@') || !is_plain(host) || !is_plain(path) {
            return Err(bad());
        }
        Ok(Self { is_tls, host: host.to_owned(), port, path: path.to_owned() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Speaks to one collector.
pub(super) struct Client {
    target: Target,
    headers: Vec<(String, String)>,
    tls: Option<TlsConnector>,
    timeout: Duration,
}

impl Client {
    /// Certificates are read now, from `roots` or from where the system keeps them.
    pub(super) fn new(
        target: Target,
        headers: Vec<(String, String)>,
        roots: Option<&Path>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let tls = target.is_tls.then(|| connector(roots)).transpose()?;
        Ok(Self { target, headers, tls, timeout })
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// The status with which the collector answers.
    pub(super) async fn post(&self, content_type: &str, body: Bytes) -> anyhow::Result<StatusCode> {
        tokio::time::timeout(self.timeout, self.exchange(content_type, body))
            .await
            .with_context(|| format!("no answer within {} s", self.timeout.as_secs_f32()))?
    }

    async fn exchange(&self, content_type: &str, body: Bytes) -> anyhow::Result<StatusCode> {
        let Target { host, port, .. } = &self.target;
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let socket = TcpStream::connect((name, *port)).await.context("it cannot be reached")?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => self.send(socket, content_type, body).await,
            Some(tls) => {
                let name = ServerName::try_from(name.to_owned())?;
                let socket = tls.connect(name, socket).await.context("TLS with it failed")?;
                self.send(socket, content_type, body).await
            }
        }
    }

    async fn send<S>(&self, socket: S, content_type: &str, body: Bytes) -> anyhow::Result<StatusCode>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        let mut request = Request::post(&self.target.path)
            .header("host", format!("{}:{}", self.target.host, self.target.port))
            .header("content-type", content_type)
            .header("user-agent", concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .header("connection", "close");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body))?;
        let mut connection = Box::pin(connection);
        let mut response = pin!(sender.send_request(request));
        tokio::select! {
            biased;
            response = &mut response => return Ok(response?.status()),
            closed = &mut connection => closed?,
        }
        // The connection may end with the very bytes that were the answer. Without its other half nothing waits for ever.
        drop(connection);
        Ok(response.await.context("it closed the connection without an answer")?.status())
    }
}

fn connector(roots: Option<&Path>) -> anyhow::Result<TlsConnector> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(path) => {
            let problem = || format!("could not read certificates from {}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).with_context(problem)? {
                store.add(certificate.with_context(problem)?).with_context(problem)?;
            }
        }
        None => {
            // Some that cannot be read are usual, and do no harm.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if store.is_empty() {
        bail!(
            "no certificates are there that could prove who a collector is: name some with \
               OTEL_EXPORTER_OTLP_CERTIFICATE"
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_named_by_url() {
        for (url, shown) in [
            ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
            ("http://c", "http://c:80/"),
            ("https://c/in", "https://c:443/in"),
            ("http://[::1]:90/x", "http://[::1]:90/x"),
            ("http://[::1]", "http://[::1]:80/"),
        ] {
            assert_eq!(url.parse::<Target>().unwrap().to_string(), shown);
        }
        for url in [
            "",
            "c:4318",
            "http://",
            "http://:80",
            "http://c:x",
            "http://c:0",
            "ftp://c",
            "http://u@c",
            "http://c/a b",
        ] {
            assert!(url.parse::<Target>().unwrap_err().contains("write http://host:port"), "{url}");
        }
    }
}
