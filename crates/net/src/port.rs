//! A port that connections are taken from, whatever the system says.
//!
//! Owns: the pause after the system refused, and that this is logged once until it is over. Does not shake hands.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Pause after the system refused a connection for want of something (file descriptors, memory).
const AFTER_REFUSAL: Duration = Duration::from_millis(50);

/// An open port.
#[derive(Debug)]
pub(crate) struct Port {
    listener: TcpListener,
    /// Whether the system refused the last time.
    refuses: bool,
}

impl Port {
    /// Opens it at `address`, `host:port`.
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await?, refuses: false })
    }

    /// Where it is.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. Cancel safe.
    pub(crate) async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let listener = &self.listener;
        take(&mut self.refuses, || listener.accept()).await
    }
}

/// The first that `accept` gives.
async fn take<T, F>(refuses: &mut bool, accept: impl Fn() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(taken) => {
                *refuses = false;
                return taken;
            }
            // The other side was gone before its turn came.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if !std::mem::replace(refuses, true) {
                    tracing::warn!(%error, "no connection can be taken; it is tried again");
                }
                sleep(AFTER_REFUSAL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use tokio::time::Instant;

    use super::*;
    use crate::logged::Log;

    #[tokio::test(start_paused = true)]
    async fn while_the_system_refuses_there_are_pauses_and_one_line_in_the_log() {
        let (log, _logged) = Log::start();
        let (mut refuses, begun) = (false, Instant::now());
        for _ in 0..2 {
            let tries = Cell::new(0);
            let accept = || match tries.replace(tries.get() + 1) {
                tried @ 0..20 => Err(io::Error::other(format!("no descriptor for try {tried}"))),
                tried => Ok(tried),
            };
            assert_eq!(take(&mut refuses, || ready(accept())).await, 20);
        }
        assert!(begun.elapsed() >= 40 * AFTER_REFUSAL, "{:?}", begun.elapsed());
        // Once for each time that it began.
        assert_eq!(log.lines().len(), 2, "{:?}", log.lines());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_gone_again_costs_no_pause() {
        let (begun, tries) = (Instant::now(), Cell::new(0));
        let accept = || match tries.replace(tries.get() + 1) {
            0..3 => Err(io::ErrorKind::ConnectionAborted.into()),
            tried => Ok(tried),
        };
        assert_eq!(take(&mut false, || ready(accept())).await, 3);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
