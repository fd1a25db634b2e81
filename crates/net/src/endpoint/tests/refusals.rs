//! What a port says of those whom it refuses.

use super::*;
use crate::logged::Log;

/// How often each of them comes.
const TIMES: u64 = 5;

/// Returns once so many were refused: by then all is said.
async fn refused(listener: &Listener, times: u64) {
    soon(async {
        while listener.stats().refused < times {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((listener.stats().refused, listener.stats().accepted), (times, 0));
}

/// Sends these bytes and hangs up, once the other side has.
async fn send(address: &str, bytes: &[u8]) {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(bytes).await.unwrap();
    soon(client.read_to_end(&mut Vec::new())).await.ok();
}

#[tokio::test]
async fn whoever_is_refused_again_and_again_is_named_once_for_each_kind_of_reason() {
    let root = ClusterRoot::new().unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let stage = root.issue(Role::Stage, None).unwrap();
    let observer = root.issue(Role::Observer, None).unwrap();
    let expired = root.issue(Role::Front, Some(past)).unwrap();
    let stranger = cluster().0.trusting(&stage);
    let nameless = TlsConnector::from(Arc::new(tls::nameless_client_config(&stage)));
    let (log, _logged) = Log::start();
    let listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    for _ in 0..TIMES {
        // In the TLS library's words these differ, and each is somebody who does not speak the protocol.
        send(&address, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        send(&address, b"\x16\x03\x01\x00\x05\xff\x00\x00\x01\x00").await;
        for member in [&stranger, &expired, &observer] {
            soon(dial(&address, member, None, &DialOptions::default())).await.unwrap_err();
        }
        let stream = TcpStream::connect(&address).await.unwrap();
        if let Ok(mut carrier) = nameless.connect(tls::server_name(), stream).await {
            soon(carrier.read_to_end(&mut Vec::new())).await.ok();
        }
        drop(TcpStream::connect(&address).await.unwrap());
    }
    refused(&listener, 7 * TIMES).await;
    log.assert_once(&[
        "does not speak this protocol",
        "belongs to another cluster",
        "has expired",
        "a membership as observer is not for one who wants to command a stage",
        "showed no membership",
        "hung up",
    ]);
}

/// Lets one connection through to `to`; all that its first side has sent, once it is over.
async fn record(port: TcpListener, to: String) -> Vec<u8> {
    let (near, _) = port.accept().await.unwrap();
    let far = TcpStream::connect(to).await.unwrap();
    let ((mut heard, mut back), (mut said, mut on)) = (near.into_split(), far.into_split());
    let answers = tokio::spawn(async move { tokio::io::copy(&mut said, &mut back).await });
    let (mut tape, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(n @ 1..) = heard.read(&mut piece).await {
        tape.extend_from_slice(&piece[..n]);
        if on.write_all(&piece[..n]).await.is_err() {
            break;
        }
    }
    answers.abort();
    tape
}

#[tokio::test]
async fn what_a_member_said_is_worth_nothing_to_whoever_recorded_it() {
    let (front, stage) = cluster();
    let (log, _logged) = Log::start();
    let mut listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = relay.local_addr().unwrap().to_string();
    let recording = tokio::spawn(record(relay, address.clone()));
    let options = any_role();
    let (accepted, dialled) =
        soon(async { tokio::join!(listener.accept(), dial(&through, &front, None, &options)) }).await;
    let ((tx, rx), (back, mut at_stage)) = (dialled.unwrap().split(), accepted.unwrap().split());
    tx.send(1, Bytes::from_static(b"open the door"), Bytes::new()).unwrap();
    assert_eq!(soon(at_stage.recv()).await.unwrap().bytes[..], *b"open the door");
    drop((tx, rx, back, at_stage));
    let tape = soon(recording).await.unwrap();
    // The whole of it, and cut off where the keys have been agreed on but nothing is proven, and later.
    for end in [tape.len(), tape.len() - 1, tape.len() / 2, tape.len() * 3 / 4] {
        let mut thief = TcpStream::connect(&address).await.unwrap();
        thief.write_all(&tape[..end]).await.ok();
        thief.shutdown().await.ok();
        soon(thief.read_to_end(&mut Vec::new())).await.ok();
    }
    soon(async {
        while listener.stats().refused < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // No second link, so nobody who could parse a frame has seen a byte; and members are served as before.
    assert_eq!(listener.stats().accepted, 1);
    log.assert_once(&["cannot decrypt peer's message", "hung up"]);
    let (again, _link) =
        soon(async { tokio::join!(listener.accept(), dial(&address, &front, None, &options)) }).await;
    assert_eq!(again.unwrap().peer().node, front.node());
}

#[tokio::test]
async fn those_who_make_room_for_others_are_named_once() {
    let (_, stage) = cluster();
    let (log, _logged) = Log::start();
    let options = ListenerOptions { max_pending: 1, ..ListenerOptions::default() };
    let listener = Listener::bind("127.0.0.1:0", &stage, options).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..=TIMES {
        silent.push(TcpStream::connect(listener.local_addr()).await.unwrap());
    }
    refused(&listener, TIMES).await;
    log.assert_once(&["too many handshakes"]);
}

#[tokio::test(start_paused = true)]
async fn those_who_say_nothing_are_named_once() {
    let (_, stage) = cluster();
    let (log, _logged) = Log::start();
    let listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    for _ in 0..TIMES {
        // The clock runs on while nothing happens.
        let mut silent = TcpStream::connect(listener.local_addr()).await.unwrap();
        assert_eq!(silent.read(&mut [0; 10]).await.unwrap_or(0), 0);
    }
    assert_eq!(listener.stats().refused, TIMES);
    log.assert_once(&["was not done within"]);
}
