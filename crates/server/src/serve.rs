//! The TCP side: a port, connections, and an end that does not wait for ever.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::api::Api;
use crate::http::router;

/// A bound port, not yet answering.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
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
        Ok(Self { listener, address })
    }

    /// The address taken.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` resolves; then takes no more connections, and returns when the requests in flight are
    /// done. See [`Api::close`] and [`Api::end`] for how they come to be.
    ///
    /// # Errors
    /// If the listener fails for good.
    pub async fn serve(
        self,
        api: Api,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        // Tokens are small and must not wait for more of them.
        let listener = self.listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY refused");
            }
        });
        let app = router(api).into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).with_graceful_shutdown(shutdown).await
    }
}
