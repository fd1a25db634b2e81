//! Real sockets and real TLS on loopback. Every wait ends with an event; the limit is there for a hang.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use rustls::HandshakeKind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    AcceptError, Admit, BindError, DialError, DialOptions, Listener, ListenerOptions, PeerError, dial,
    listen::{Keeper, greet},
};
use crate::{
    ClusterRoot, HandshakeError, Heartbeat, Identity, Link, LinkError, LinkOptions, PeerInfo, Purpose, Role,
    tls,
};

mod refusals;
mod rotation;

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), what).await.expect("this takes milliseconds unless it hangs")
}

fn cluster() -> (Identity, Identity) {
    let (front, mut stages) = Identity::ephemeral_cluster(1).unwrap();
    (front, stages.remove(0))
}

fn keeper(identity: &Identity, admit: Admit) -> Keeper {
    Keeper { identity: identity.clone(), options: ListenerOptions { admit, ..ListenerOptions::default() } }
}

fn any_role() -> DialOptions {
    DialOptions { admit: Admit::default(), ..DialOptions::default() }
}

fn wanting(purpose: Purpose) -> DialOptions {
    DialOptions { purpose, ..any_role() }
}

/// What each side makes of the other: the accepted peer or why not, and the dialled link or why not.
async fn meet(
    listening: &Identity,
    admit: &Admit,
    dialling: &Identity,
    options: &DialOptions,
) -> (Result<PeerInfo, AcceptError>, Result<PeerInfo, DialError>) {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap().to_string();
    let keeper = keeper(listening, admit.clone());
    let accepting = async {
        let (stream, from) = port.accept().await.unwrap();
        let (mut carrier, peer, _) = greet(&keeper, stream, from).await?;
        super::welcome(&mut carrier).await?;
        // The dialling side may still turn this one away.
        let mut rest = Vec::new();
        carrier.read_to_end(&mut rest).await.ok();
        Ok(peer)
    };
    let dialling = async {
        // Dropped at once where it succeeds: only how the two meet is of interest.
        dial(&address, dialling, None, options).await.map(|link| link.peer().clone())
    };
    soon(async { tokio::join!(accepting, dialling) }).await
}

async fn connected(identity: &Identity, peer: &Identity, options: ListenerOptions) -> (Listener, Link, Link) {
    let mut listener = Listener::bind("127.0.0.1:0", identity, options).await.unwrap();
    let address = listener.local_addr().to_string();
    let dial_options = any_role();
    let (accepted, dialled) = soon(async {
        tokio::join!(listener.accept(), dial(&address, peer, Some(identity.node()), &dial_options))
    })
    .await;
    (listener, accepted.unwrap(), dialled.unwrap())
}

#[tokio::test]
async fn members_prove_themselves_and_exchange_frames() {
    let (front, stage) = cluster();
    let (listener, accepted, dialled) = connected(&stage, &front, ListenerOptions::default()).await;
    assert_eq!((accepted.peer().node, accepted.peer().role), (front.node(), Role::Front));
    assert_eq!((dialled.peer().node, dialled.peer().role), (stage.node(), Role::Stage));
    assert_eq!(listener.stats().accepted, 1);
    let ((tx, mut rx), (back, mut at_stage)) = (dialled.split(), accepted.split());
    let rows = Bytes::from((0..5_000_000_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    tx.send(1, Bytes::from_static(b"head"), rows.clone()).unwrap();
    let received = soon(at_stage.recv()).await.unwrap();
    assert!(received.bytes[..4] == *b"head" && received.bytes[4..] == rows);
    back.close("that was all");
    assert_eq!(soon(rx.recv()).await, Err(LinkError::Closed { reason: "that was all".into() }));
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_by_the_one_that_dials() {
    let ((_, stage), (stranger, _)) = (cluster(), cluster());
    let (accepted, dialled) = meet(&stage, &Admit::default(), &stranger, &any_role()).await;
    assert!(
        matches!(dialled, Err(DialError::Handshake { error: HandshakeError::OtherCluster, .. })),
        "{dialled:?}"
    );
    let reason = "it belongs to another cluster";
    assert_eq!(accepted, Err(AcceptError::Handshake(HandshakeError::Refused { reason })));
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_by_the_one_that_is_dialled() {
    let ((_, stage), (stranger, _)) = (cluster(), cluster());
    // The stranger has learnt the root certificate, which is no secret.
    let impostor = stranger.trusting(&stage);
    let (accepted, dialled) = meet(&stage, &Admit::default(), &impostor, &any_role()).await;
    assert_eq!(accepted, Err(AcceptError::Handshake(HandshakeError::OtherCluster)));
    assert!(
        matches!(dialled, Err(DialError::Handshake { error: HandshakeError::Refused { .. }, .. })),
        "{dialled:?}"
    );
}

#[tokio::test]
async fn a_client_without_a_membership_is_refused() {
    let (_, stage) = cluster();
    let refused = raw_client(&stage, tls::nameless_client_config(&stage)).await;
    assert_eq!(refused, Err(AcceptError::Handshake(HandshakeError::NoMembership)));
}

#[tokio::test]
async fn a_member_that_asks_for_another_protocol_is_refused() {
    let (front, stage) = cluster();
    for protocols in [vec![], vec![b"h2".to_vec()]] {
        let mut config = Arc::unwrap_or_clone(tls::client_config(&front, Purpose::Control).unwrap());
        config.alpn_protocols = protocols;
        let refused = raw_client(&stage, config).await;
        assert!(
            matches!(refused, Err(AcceptError::Handshake(HandshakeError::NotPaceline { .. }))),
            "{refused:?}"
        );
    }
}

/// What a stage makes of a TLS client of the test's own.
async fn raw_client(stage: &Identity, config: rustls::ClientConfig) -> Result<PeerInfo, AcceptError> {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap();
    let keeper = keeper(stage, Admit::default());
    let client = async {
        let stream = TcpStream::connect(address).await.unwrap();
        if let Ok(mut carrier) =
            TlsConnector::from(Arc::new(config)).connect(tls::server_name(), stream).await
        {
            carrier.read_to_end(&mut Vec::new()).await.ok();
        }
    };
    let server = async {
        let (stream, from) = port.accept().await.unwrap();
        greet(&keeper, stream, from).await.map(|(_, peer, _)| peer)
    };
    soon(async { tokio::join!(server, client) }).await.0
}

#[tokio::test]
async fn a_wrong_role_is_refused_with_the_reason_on_both_sides() {
    let (front, stage) = cluster();
    let only_fronts = Admit { role: Some(Role::Front) };
    let (accepted, dialled) = meet(&stage, &only_fronts, &stage, &any_role()).await;
    let wrong = PeerError::WrongRole { expected: Role::Front, found: Role::Stage, node: stage.node() };
    assert_eq!(accepted, Err(AcceptError::Peer(wrong.clone())));
    match dialled {
        Err(DialError::Refused { reason, .. }) => assert_eq!(reason, wrong.to_string()),
        other => panic!("{other:?}"),
    }
    // By default a front is not what one dials.
    let (_, dialled) = meet(&front, &Admit::default(), &stage, &DialOptions::default()).await;
    let wrong = PeerError::WrongRole { expected: Role::Stage, found: Role::Front, node: front.node() };
    assert!(matches!(dialled, Err(DialError::Peer { error, .. }) if error == wrong));
}

#[tokio::test]
async fn a_role_may_do_what_it_is_for_and_nothing_else() {
    let root = ClusterRoot::new().unwrap();
    let stage = root.issue(Role::Stage, None).unwrap();
    for (role, allowed) in [
        (Role::Front, &[Purpose::Control, Purpose::Relay, Purpose::Rows, Purpose::Observe][..]),
        (Role::Stage, &[Purpose::Rows, Purpose::Relay]),
        (Role::Observer, &[Purpose::Observe]),
    ] {
        let peer = root.issue(role, None).unwrap();
        for purpose in Purpose::ALL {
            let options = ListenerOptions { relayed: true, ..ListenerOptions::default() };
            let mut listener = Listener::bind("127.0.0.1:0", &stage, options).await.unwrap();
            let address = listener.local_addr().to_string();
            let options = wanting(purpose);
            let dialling = dial(&address, &peer, Some(stage.node()), &options);
            if allowed.contains(&purpose) {
                let (accepted, dialled) = soon(async { tokio::join!(listener.accept(), dialling) }).await;
                assert_eq!(accepted.unwrap().peer().purpose, purpose, "{role}");
                dialled.unwrap();
                continue;
            }
            let error = PeerError::NotForRole { purpose, role, node: peer.node() };
            let refused = soon(dialling).await.unwrap_err();
            assert_eq!(refused, DialError::Refused { address, reason: error.to_string() });
            // There was no link, so nothing was parsed.
            assert_eq!((listener.stats().accepted, listener.stats().refused), (0, 1), "{role} {purpose:?}");
        }
    }
}

#[tokio::test]
async fn a_neighbour_passes_commands_on_only_where_it_may() {
    let root = ClusterRoot::new().unwrap();
    let [stage, neighbour] = [(); 2].map(|()| root.issue(Role::Stage, None).unwrap());
    let (accepted, dialled) = meet(&stage, &Admit::default(), &neighbour, &wanting(Purpose::Relay)).await;
    assert_eq!(accepted, Err(AcceptError::Peer(PeerError::NotRelayed)));
    let Err(DialError::Refused { reason, .. }) = dialled else { panic!("{dialled:?}") };
    assert!(reason.contains("--relayed"), "{reason}");
}

#[tokio::test]
async fn another_node_than_expected_is_refused_and_told_so() {
    let (front, stages) = Identity::ephemeral_cluster(2).unwrap();
    let mut listener = Listener::bind("127.0.0.1:0", &stages[0], ListenerOptions::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let options = DialOptions::default();
    let (accepted, dialled) = soon(async {
        tokio::join!(listener.accept(), dial(&address, &front, Some(stages[1].node()), &options))
    })
    .await;
    let wrong = PeerError::WrongNode { expected: stages[1].node(), found: stages[0].node() };
    let (_tx, mut rx) = accepted.unwrap().split();
    assert_eq!(soon(rx.recv()).await, Err(LinkError::Closed { reason: wrong.to_string() }));
    assert!(matches!(dialled, Err(DialError::Peer { error, .. }) if error == wrong));
}

#[tokio::test]
async fn an_expired_membership_is_refused_on_either_side() {
    let root = ClusterRoot::new().unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let good = root.issue(Role::Stage, None).unwrap();
    let expired = root.issue(Role::Stage, Some(past)).unwrap();
    let (accepted, dialled) = meet(&good, &Admit::default(), &expired, &any_role()).await;
    assert_eq!(accepted, Err(AcceptError::Handshake(HandshakeError::Expired)));
    let refused = HandshakeError::Refused { reason: "it has expired" };
    assert!(matches!(dialled, Err(DialError::Handshake { error, .. }) if error == refused));
    let (accepted, dialled) = meet(&expired, &Admit::default(), &good, &any_role()).await;
    assert_eq!(accepted, Err(AcceptError::Handshake(refused)));
    assert!(matches!(dialled, Err(DialError::Handshake { error: HandshakeError::Expired, .. })));
}

#[tokio::test]
async fn a_member_that_was_let_go_is_refused_on_either_side_and_its_links_end() {
    let root = ClusterRoot::new().unwrap();
    let [front, other] = [(); 2].map(|()| root.issue(Role::Front, None).unwrap());
    let stage = root.issue(Role::Stage, None).unwrap();
    let (_listener, accepted, _dialled) = connected(&stage, &front, ListenerOptions::default()).await;
    let (_other_listener, kept, _other) = connected(&stage, &other, ListenerOptions::default()).await;
    let notice = root.notice(1, [front.node()].into()).unwrap();
    assert_eq!(stage.heed(notice.bytes()), Ok(true));
    let (_tx, mut rx) = accepted.split();
    let Err(LinkError::Closed { reason }) = soon(rx.recv()).await else { panic!("the link lives") };
    assert!(reason.contains("let this member go"), "{reason}");
    let (accepted, dialled) = meet(&stage, &Admit::default(), &front, &any_role()).await;
    let error = PeerError::LetGo { node: front.node() };
    assert!(matches!(dialled, Err(DialError::Refused { reason, .. }) if reason == error.to_string()));
    assert_eq!(accepted, Err(AcceptError::Peer(error)));
    // The links of others live. Then they, too, dial nobody who was let go.
    let (tx, _rx) = kept.split();
    tx.send(1, Bytes::from_static(b"still there"), Bytes::new()).unwrap();
    let notice = root.notice(2, [stage.node()].into()).unwrap();
    assert_eq!(other.heed(notice.bytes()), Ok(true));
    let (_, dialled) = meet(&stage, &Admit::default(), &other, &any_role()).await;
    assert!(matches!(dialled, Err(DialError::Peer { error: PeerError::LetGo { .. }, .. })), "{dialled:?}");
}

#[tokio::test]
async fn every_connection_proves_itself_anew() {
    let (front, stage) = cluster();
    let config = tls::client_config(&front, Purpose::Control).unwrap();
    let keeper = keeper(&stage, Admit::default());
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..3 {
        let client = async {
            let stream = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
            let mut carrier =
                TlsConnector::from(config.clone()).connect(tls::server_name(), stream).await.unwrap();
            assert_eq!(carrier.read(&mut [0; 21]).await.unwrap(), 21);
            carrier.get_ref().1.handshake_kind()
        };
        let server = async {
            let (stream, from) = port.accept().await.unwrap();
            let (mut carrier, ..) = greet(&keeper, stream, from).await.unwrap();
            super::welcome(&mut carrier).await.unwrap();
        };
        let ((), kind) = soon(async { tokio::join!(server, client) }).await;
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}

/// What a stage makes of these bytes; the client hangs up afterwards.
async fn greeted_with(stage: &Identity, bytes: &[u8]) -> AcceptError {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let (stream, from) = port.accept().await.unwrap();
    let keeper = keeper(stage, Admit::default());
    let refused = soon(greet(&keeper, stream, from)).await.unwrap_err();
    // The connection is closed, not left open.
    soon(client.read_to_end(&mut Vec::new())).await.ok();
    refused
}

#[tokio::test]
async fn plain_http_is_refused() {
    let (_, stage) = cluster();
    let refused = greeted_with(&stage, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(matches!(refused, AcceptError::Handshake(HandshakeError::NotPaceline { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_handshake_that_breaks_off_anywhere_is_refused() {
    let (front, stage) = cluster();
    let mut client = rustls::ClientConnection::new(
        tls::client_config(&front, Purpose::Control).unwrap(),
        tls::server_name(),
    )
    .unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    assert!(hello.len() > 100);
    for cut in (0..=hello.len()).step_by(7) {
        let refused = greeted_with(&stage, &hello[..cut]).await;
        assert_eq!(refused, AcceptError::Handshake(HandshakeError::HungUp), "after {cut} bytes");
    }
}

#[tokio::test]
async fn two_thousand_garbage_connections_leave_nothing_behind_and_members_get_in() {
    let (front, stage) = cluster();
    let options = ListenerOptions { max_pending: 16, ..ListenerOptions::default() };
    let mut listener = Listener::bind("127.0.0.1:0", &stage, options).await.unwrap();
    let address = listener.local_addr().to_string();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut silent = Vec::new();
    for n in 0..2000_u64 {
        let mut client = TcpStream::connect(&address).await.unwrap();
        let garbage: Vec<u8> = (0..n % 90).map(|i| (n * 37 + i * 101) as u8).collect();
        client.write_all(&garbage).await.ok();
        // Every tenth says no more and stays.
        if n % 10 == 0 {
            silent.push(client);
        }
    }
    let dial_options = DialOptions::default();
    let (accepted, dialled) =
        soon(async { tokio::join!(listener.accept(), dial(&address, &front, None, &dial_options)) }).await;
    drop((accepted.unwrap(), dialled.unwrap()));
    drop(silent);
    soon(async {
        while listener.stats().refused < 2000 || listener.stats().pending > 0 || tasks() > before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((listener.stats().refused, listener.stats().accepted), (2000, 1));
}

#[tokio::test]
async fn a_member_has_so_many_links_and_another_one_its_own() {
    let root = ClusterRoot::new().unwrap();
    let [front, other] = [(); 2].map(|()| root.issue(Role::Front, None).unwrap());
    let stage = root.issue(Role::Stage, None).unwrap();
    let options = ListenerOptions { max_links: 2, ..ListenerOptions::default() };
    let mut listener = Listener::bind("127.0.0.1:0", &stage, options).await.unwrap();
    let address = listener.local_addr().to_string();
    let mut links = Vec::new();
    let dial_options = DialOptions::default();
    for peer in [&front, &other, &front] {
        let dialled = dial(&address, peer, None, &dial_options);
        let (accepted, dialled) = soon(async { tokio::join!(listener.accept(), dialled) }).await;
        links.push((accepted.unwrap(), dialled.unwrap()));
    }
    let refused = soon(dial(&address, &front, None, &dial_options)).await.unwrap_err();
    let error = PeerError::TooManyLinks { node: front.node(), limit: 2 };
    assert_eq!(refused, DialError::Refused { address: address.clone(), reason: error.to_string() });
    // A link that is over makes room.
    links.truncate(2);
    let again = dial(&address, &front, None, &dial_options);
    let (accepted, dialled) = soon(async { tokio::join!(listener.accept(), again) }).await;
    drop((accepted.unwrap(), dialled.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_dropped_in_time() {
    let (_, stage) = cluster();
    let listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    let mut silent = TcpStream::connect(listener.local_addr()).await.unwrap();
    // The clock runs on while nothing happens.
    assert_eq!(silent.read(&mut [0; 10]).await.unwrap_or(0), 0);
    assert_eq!(listener.stats().refused, 1);
}

#[tokio::test(start_paused = true)]
async fn a_port_that_does_not_answer_is_given_up_in_time() {
    let (front, _) = cluster();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap().to_string();
    let within = DialOptions::default().within;
    let given_up = dial(&address, &front, None, &DialOptions::default()).await.unwrap_err();
    assert_eq!(given_up, DialError::TimedOut { address, within });
}

#[tokio::test]
async fn a_port_where_something_else_answers_is_refused() {
    let (front, _) = cluster();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap().to_string();
    let http = async {
        let (mut stream, _) = port.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.ok();
    };
    let options = DialOptions::default();
    let (refused, ()) = soon(async { tokio::join!(dial(&address, &front, None, &options), http) }).await;
    assert!(
        matches!(refused, Err(DialError::Handshake { error: HandshakeError::NotPaceline { .. }, .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_port_that_nobody_holds_and_a_name_that_is_none_are_refused() {
    let (front, _) = cluster();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = port.local_addr().unwrap().to_string();
    drop(port);
    for address in [free.as_str(), "127.0.0.1", "127.0.0.1:99999", ""] {
        let refused = soon(dial(address, &front, None, &DialOptions::default())).await;
        assert!(matches!(refused, Err(DialError::Connect { .. })), "{address}: {refused:?}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_refused_by_name() {
    let (_, stage) = cluster();
    let listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let refused = Listener::bind(&address, &stage, ListenerOptions::default()).await.unwrap_err();
    assert_eq!(refused, BindError::InUse { address });
    let refused = Listener::bind("nowhere", &stage, ListenerOptions::default()).await.unwrap_err();
    assert!(matches!(refused, BindError::System { .. }));
}

#[tokio::test]
async fn a_killed_peer_is_seen_through_tls() {
    let (front, stage) = cluster();
    let mut listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    let stream = TcpStream::connect(listener.local_addr()).await.unwrap();
    let connector = TlsConnector::from(tls::client_config(&front, Purpose::Control).unwrap());
    let (accepted, killed) =
        soon(async { tokio::join!(listener.accept(), connector.connect(tls::server_name(), stream)) }).await;
    let (_tx, mut rx) = accepted.unwrap().split();
    // As the kernel does for a process that dies: the socket is closed without a word.
    drop(killed.unwrap());
    assert_eq!(soon(rx.recv()).await, Err(LinkError::PeerGone));
}

#[tokio::test]
async fn a_heartbeat_set_by_the_dialling_side_runs_on_both() {
    let (front, stage) = cluster();
    let mut listener = Listener::bind("127.0.0.1:0", &stage, ListenerOptions::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let beat = Heartbeat { interval: Duration::from_millis(10), ..Heartbeat::default() };
    let link = LinkOptions { heartbeat: Some(beat), ..LinkOptions::default() };
    let options = DialOptions { link, ..DialOptions::default() };
    let (accepted, dialled) =
        soon(async { tokio::join!(listener.accept(), dial(&address, &front, None, &options)) }).await;
    let ends = [accepted.unwrap(), dialled.unwrap()].map(Link::split);
    for (tx, _) in &ends {
        soon(async {
            while tx.stats().rtt.is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}
