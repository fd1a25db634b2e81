//! A port, and the API behind it until it is told to end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::api::Api;
use crate::connections::{ConnectionLimits, Connections};
use crate::http::router;
use crate::tls::Tls;

/// A bound port, not yet answering.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
    limits: ConnectionLimits,
}

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has it.
    #[error("{0} is in use: choose another address with --listen")]
    InUse(SocketAddr),
    /// The system refuses it.
    #[error("cannot listen on {address}: {source}")]
    Refused {
        /// The address asked for.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

impl Server {
    /// Takes the port; 0 takes any free one.
    ///
    /// # Errors
    /// If the port is in use or not ours to take.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(address),
            _ => BindError::Refused { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address, tls: None, limits: ConnectionLimits::default() })
    }

    /// Speaks TLS, if there is a certificate for it.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Bounds connections otherwise than usual.
    #[must_use]
    pub const fn with_limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The address taken.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Answers until `shutdown` resolves; then takes no more connections, and returns when the requests in flight are
    /// done. See [`Api::close`] and [`Api::end`] for how they come to be.
    pub async fn serve(self, api: Api, shutdown: impl Future<Output = ()>) {
        let Self { listener, tls, limits, .. } = self;
        Connections { app: router(api), tls, limits }.serve(listener, shutdown).await;
    }
}
