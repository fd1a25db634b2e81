//! Socket options of a link.

use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{io::BufReader, net::TcpStream};

/// A connection as TLS sees it. TLS asks for 4 KiB at a time; a wide row would cost a system call for each.
pub(super) type Socket = BufReader<TcpStream>;

/// Read from the kernel at once: two TLS records.
const READ_BYTES: usize = 32 << 10;

/// Bytes in the kernel that have not left yet, at most: what is there already cannot be overtaken, so that a large
/// value would undo priorities. Two reads' worth keeps the line busy.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NOT_SENT: u32 = 32 << 10;

/// No `TCP_USER_TIMEOUT`: it cuts off a peer that merely reads slowly. Keep-alive only clears away links whose peer
/// vanished and that have no heartbeat.
pub(super) fn prepare(stream: TcpStream) -> io::Result<Socket> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_notsent_lowat(NOT_SENT)?;
    Ok(BufReader::with_capacity(READ_BYTES, stream))
}
