//! As much of an HTTP client as the measurements need: one JSON answer, and one stream of events with their times.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// No answer that is measured takes longer, even on a machine that is busy with other things.
const ANSWERS_WITHIN: Duration = Duration::from_secs(300);

/// A server: where it is, and what it wants to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `host:port`.
    authority: String,
    /// What comes before `/v1/…`; empty, or begins with `/`.
    prefix: String,
    key: Option<String>,
}

impl Target {
    /// A server on this machine that asks for no key.
    pub(super) fn local(address: SocketAddr) -> Self {
        Self { authority: address.to_string(), prefix: String::new(), key: None }
    }

    /// The same with a key.
    pub(super) fn with_key(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }
}

impl FromStr for Target {
    type Err = String;

    /// `http://host:port`, with or without `/v1` behind it.
    fn from_str(url: &str) -> Result<Self, String> {
        let bad = || format!("`{url}` is no address of a server: write http://host:port");
        let rest = url.strip_prefix("http://").ok_or_else(|| match url.strip_prefix("https://") {
            Some(_) => format!("`{url}` is encrypted, which is not measured: name the plain http:// port"),
            None => bad(),
        })?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let path = path.trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        // A colon inside brackets belongs to an IPv6 address.
        let port = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        let authority = match port {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => authority.to_owned(),
            None if !authority.is_empty() => format!("{authority}:80"),
            _ => return Err(bad()),
        };
        Ok(Self { authority, prefix, key: None })
    }
}

/// The JSON at a path.
pub(super) async fn get(target: &Target, path: &str) -> anyhow::Result<Value> {
    json(send(target, Method::GET, path, String::new()).await?, path).await
}

/// The JSON that answers a JSON.
pub(super) async fn post(target: &Target, path: &str, body: &Value) -> anyhow::Result<Value> {
    json(send(target, Method::POST, path, body.to_string()).await?, path).await
}

async fn json(response: Response<Incoming>, path: &str) -> anyhow::Result<Value> {
    let body = tokio::time::timeout(ANSWERS_WITHIN, response.into_body().collect()).await??.to_bytes();
    serde_json::from_slice(&body).with_context(|| format!("{path} is not JSON"))
}

/// The data of every event of a stream, and when it came.
pub(super) async fn stream(
    target: &Target,
    path: &str,
    body: &Value,
) -> anyhow::Result<Vec<(Instant, Value)>> {
    let mut read = Events::of(send(target, Method::POST, path, body.to_string()).await?);
    let mut events = Vec::new();
    let all = async {
        loop {
            match read.next().await?.context("the stream ended without [DONE]")? {
                (_, data) if data == b"[DONE]" => return anyhow::Ok(()),
                (at, data) => events.push((at, serde_json::from_slice(&data)?)),
            }
        }
    };
    tokio::time::timeout(ANSWERS_WITHIN, all).await.context("the stream took too long")??;
    Ok(events)
}

/// The first event of a stream that has no end of its own of which this is true.
pub(super) async fn event(
    target: &Target,
    path: &str,
    within: Duration,
    is_it: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let mut read = Events::of(send(target, Method::GET, path, String::new()).await?);
    let heard = async {
        loop {
            let (_, data) = read.next().await?.context("the stream ended")?;
            let value: Value = serde_json::from_slice(&data)?;
            if is_it(&value) {
                return anyhow::Ok(value);
            }
        }
    };
    tokio::time::timeout(within, heard).await?
}

/// The events of an answer, as they come.
struct Events {
    body: Incoming,
    /// What has come and was not read, and when.
    unread: Vec<u8>,
    at: Instant,
}

impl Events {
    fn of(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), unread: Vec::new(), at: now() }
    }

    /// The data of the next one, and when it came; none at the stream's end.
    async fn next(&mut self) -> anyhow::Result<Option<(Instant, Vec<u8>)>> {
        loop {
            while let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                if let Some(data) = line.strip_prefix(b"data: ") {
                    return Ok(Some((self.at, data.trim_ascii_end().to_vec())));
                }
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.context("the stream broke off")?.into_data() {
                self.at = now();
                self.unread.extend_from_slice(&data);
            }
        }
    }
}

/// The time, for who measures how long an answer takes.
#[expect(clippy::disallowed_methods, reason = "this module measures time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

async fn send(
    target: &Target,
    method: Method,
    path: &str,
    body: String,
) -> anyhow::Result<Response<Incoming>> {
    let Target { authority, prefix, key } = target;
    let socket =
        TcpStream::connect(authority).await.with_context(|| format!("could not reach {authority}"))?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    // Ends with the sender and the answer's body; what goes wrong shows there.
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{prefix}{path}"))
        .header("host", authority)
        .header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(Full::new(Bytes::from(body)))?;
    let response = tokio::time::timeout(ANSWERS_WITHIN, sender.send_request(request)).await??;
    let status = response.status();
    if !status.is_success() {
        let body = response.into_body().collect().await?.to_bytes();
        bail!("{path} was answered with {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_by_url() {
        let parts = |url: &str| url.parse::<Target>().map(|target| (target.authority, target.prefix));
        let expect = |authority: &str, prefix: &str| Ok((authority.to_owned(), prefix.to_owned()));
        assert_eq!(parts("http://a:8080"), expect("a:8080", ""));
        assert_eq!(parts("http://a:8080/v1/"), expect("a:8080", ""));
        assert_eq!(parts("http://a/llm/v1"), expect("a:80", "/llm"));
        assert_eq!(parts("http://[::1]:90"), expect("[::1]:90", ""));
        assert_eq!(parts("http://[::1]"), expect("[::1]:80", ""));
        for url in ["a:8080", "http://", "http://:80", "http://a:b"] {
            assert!(parts(url).unwrap_err().contains("write http://host:port"), "{url}");
        }
        assert!(parts("https://a").unwrap_err().contains("plain http://"));
    }
}
