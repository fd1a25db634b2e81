//! Connections: accepted up to a number, each with a time for its handshake and for every head that it sends.
//!
//! Owns: sockets and the tasks that serve them. Does not know routes.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::error::ApiError;
use crate::limits;
use crate::tls::Tls;

/// Who may hold a connection, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at once.
    pub connections: usize,
    /// For the head of a request, and for a connection without one.
    pub head_time: std::time::Duration,
    /// For a TLS handshake.
    pub handshake_time: std::time::Duration,
    /// For a client to take what is there for it: whoever reads nothing for so long is cut off, and his request ends.
    pub write_time: std::time::Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: limits::MAX_CONNECTIONS,
            head_time: limits::HEAD_TIME,
            handshake_time: limits::HANDSHAKE_TIME,
            write_time: limits::WRITE_TIME,
        }
    }
}

/// What every connection needs.
#[derive(Clone)]
pub(crate) struct Connections {
    pub app: Router,
    pub tls: Option<Tls>,
    pub limits: ConnectionLimits,
}

impl Connections {
    /// Serves until `shutdown` resolves; then takes no more connections, and returns when all have ended.
    pub(crate) async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let (end, ending) = watch::channel(false);
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let refusals = Arc::new(Semaphore::new(limits::MAX_REFUSALS));
        let mut tasks = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let (stream, peer) = tokio::select! {
                () = &mut shutdown => break,
                Some(ended) = tasks.join_next() => {
                    tell(ended);
                    continue;
                }
                accepted = accept(&listener) => accepted,
            };
            if let Ok(place) = places.clone().try_acquire_owned() {
                tasks.spawn(self.clone().connection(stream, peer, ending.clone(), place));
            } else if let Ok(place) = refusals.clone().try_acquire_owned() {
                tracing::debug!(%peer, "refused: too many connections");
                // Over TLS it would take a handshake to say anything.
                if self.tls.is_none() {
                    tasks.spawn(refuse(stream, self.limits.connections, place));
                }
            }
        }
        drop(listener);
        end.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            tell(ended);
        }
    }

    /// One connection, from its handshake to its end.
    async fn connection(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        ending: watch::Receiver<bool>,
        place: OwnedSemaphorePermit,
    ) {
        // Tokens are small and must not wait for more of them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY refused");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.write_time));
        let stream = Box::pin(stream);
        match &self.tls {
            None => self.http(stream, peer, ending).await,
            Some(tls) => match timeout(self.limits.handshake_time, tls.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => self.http(stream, peer, ending).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS"),
                Err(_) => tracing::debug!(%peer, "no TLS in time"),
            },
        }
        drop(place);
    }

    async fn http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        mut ending: watch::Receiver<bool>,
    ) {
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            let app = self.app.clone();
            async move { Ok::<Response<Body>, Infallible>(answer(app, request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_time)
            .max_headers(limits::MAX_HEADERS * limits::HEAD_SLACK)
            .max_header_size(limits::MAX_HEAD_BYTES * limits::HEAD_SLACK)
            .serve_connection(TokioIo::new(stream), service);
        let mut served = pin!(served);
        let ended = tokio::select! {
            outcome = served.as_mut() => Some(outcome),
            // The sender lives as long as connections are awaited.
            _ = ending.wait_for(|&ending| ending) => None,
        };
        let outcome = match ended {
            Some(outcome) => outcome,
            None => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%peer, %error, "a connection ended early");
        }
    }
}

async fn answer(app: Router, request: Request<Incoming>) -> Response<Body> {
    match app.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The next connection. Cancel safe.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection could be accepted");
                tokio::time::sleep(limits::ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether only this one connection is lost.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Says why there is no place, without having read anything.
async fn refuse(mut stream: TcpStream, limit: usize, place: OwnedSemaphorePermit) {
    let error = ApiError::TooManyConnections { limit };
    let body = error.body().to_string();
    let text = format!(
        "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: {}\r\n\
         connection: close\r\n\r\n{body}",
        error.status(),
        body.len(),
        limits::RETRY_AFTER
    );
    let said = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        // Closed with unread bytes in it, the connection would be reset, and the client might never see the answer.
        let mut unread = [0; 4096];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    // A client that has gone, or does not read, has no use for more.
    let _ = timeout(limits::REFUSAL_TIME, said).await;
    drop(place);
}

fn tell(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task ended in a panic");
    }
}
