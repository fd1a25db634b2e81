//! A slow network between two programs: what comes in goes out unchanged, in order, so much later. Both ways.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Read at once at most.
const PIECE: usize = 256 * 1024;

/// Says on standard output where it listens, and passes every connection on to `target`, until the process is ended.
pub(crate) fn run(target: &str, delay: Duration) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    println!("{}", listener.local_addr().map_err(|error| error.to_string())?);
    for near in listener.incoming() {
        let joined = near.and_then(|near| {
            let far = TcpStream::connect(target)?;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            carry(near.try_clone()?, far.try_clone()?, delay);
            carry(far, near, delay);
            Ok(())
        });
        if let Err(error) = joined {
            eprintln!("rpc-bench: a connection was not passed on: {error}");
        }
    }
    Ok(())
}

/// One direction of a connection, on two threads: one reads and notes when, the other waits and writes.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (noted, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            if noted.send((Instant::now() + delay, piece[..n].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (at, piece) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        // The other side is gone already if this fails.
        let _ = to.shutdown(Shutdown::Both);
    });
}
