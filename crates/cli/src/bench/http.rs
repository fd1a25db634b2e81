//! As much of an HTTP client as the measurements need: one JSON answer, and one stream of events with their times.

use std::net::SocketAddr;
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

/// The JSON at a path.
pub(super) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Value> {
    let response = send(address, Method::GET, path, String::new()).await?;
    let body = tokio::time::timeout(ANSWERS_WITHIN, response.into_body().collect()).await??.to_bytes();
    serde_json::from_slice(&body).with_context(|| format!("{path} is not JSON"))
}

/// The data of every event of a stream, and when it came.
pub(super) async fn stream(
    address: SocketAddr,
    path: &str,
    body: &Value,
) -> anyhow::Result<Vec<(Instant, Value)>> {
    let mut response = send(address, Method::POST, path, body.to_string()).await?.into_body();
    let mut events = Vec::new();
    let mut unread = Vec::new();
    let read = async {
        while let Some(frame) = response.frame().await {
            let Ok(data) = frame.context("the stream broke off")?.into_data() else { continue };
            let now = now();
            unread.extend_from_slice(&data);
            while let Some(end) = unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                match line.strip_prefix(b"data: ").map(<[u8]>::trim_ascii_end) {
                    None => {}
                    Some(b"[DONE]") => return Ok(()),
                    Some(data) => events.push((now, serde_json::from_slice(data)?)),
                }
            }
        }
        bail!("the stream ended without [DONE]")
    };
    tokio::time::timeout(ANSWERS_WITHIN, read).await.context("the stream took too long")??;
    Ok(events)
}

#[expect(clippy::disallowed_methods, reason = "this module measures time")]
fn now() -> Instant {
    Instant::now()
}

async fn send(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: String,
) -> anyhow::Result<Response<Incoming>> {
    let socket = TcpStream::connect(address).await.with_context(|| format!("could not reach {address}"))?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    // Ends with the sender and the answer's body; what goes wrong shows there.
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let response = tokio::time::timeout(ANSWERS_WITHIN, sender.send_request(request)).await??;
    let status = response.status();
    if !status.is_success() {
        let body = response.into_body().collect().await?.to_bytes();
        bail!("{path} was answered with {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(response)
}
