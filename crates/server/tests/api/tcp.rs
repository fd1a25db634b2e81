//! The same over a real port.

use std::net::SocketAddr;
use std::time::Duration;

use scheduler::RequestId;
use serde_json::json;
use server::{BindError, ConnectionLimits, Server};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fake::{DEADLINE, Harness, Script, Seen, answer, chat_body, says, started, with};

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn start(harness: &Harness) -> Running {
    run(harness, Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap())
}

async fn start_with(harness: &Harness, limits: ConnectionLimits) -> Running {
    run(harness, Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap().with_limits(limits))
}

/// Serves the harness's API until it is told to stop.
pub(crate) fn run(harness: &Harness, server: Server) -> Running {
    let address = server.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        stopped.await.unwrap();
    };
    let task = tokio::spawn(server.serve(harness.api.clone(), shutdown));
    Running { address, stop, task }
}

async fn post(address: SocketAddr, extra: serde_json::Value) -> TcpStream {
    let body = with(chat_body(), extra).to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    stream
}

async fn read_all(mut stream: TcpStream) -> String {
    let mut text = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

#[tokio::test]
async fn answers_over_tcp_and_ends_when_told() {
    let harness = Harness::new([answer("hello"), answer("hello")]);
    let running = start(&harness).await;
    let whole = read_all(post(running.address, json!({})).await).await;
    assert!(whole.starts_with("HTTP/1.1 200 OK") && whole.contains("\"content\":\"hello\""), "{whole}");
    let stream = read_all(post(running.address, json!({ "stream": true })).await).await;
    assert!(stream.contains("text/event-stream") && stream.contains("data: [DONE]"), "{stream}");
    running.stop.send(()).unwrap();
    timeout(DEADLINE, running.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn a_client_that_hangs_up_in_a_stream_cancels_its_request() {
    let mut harness = Harness::new([Script::Play(vec![started(0), says("x")])]);
    let running = start(&harness).await;
    let mut stream = BufReader::new(post(running.address, json!({ "stream": true })).await);
    let mut line = String::new();
    while !line.contains("\"content\":\"x\"") {
        line.clear();
        timeout(DEADLINE, stream.read_line(&mut line)).await.unwrap().unwrap();
    }
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    drop(stream);
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
}

#[tokio::test]
async fn a_client_that_hangs_up_while_it_waits_cancels_its_request() {
    let mut harness = Harness::new([Script::Play(vec![started(0), says("x")])]);
    let running = start(&harness).await;
    let stream = post(running.address, json!({})).await;
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    drop(stream);
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off_and_its_request_ends() {
    // More than the buffers of both ends hold.
    let long = "x".repeat(1 << 16);
    let events = std::iter::once(started(0)).chain((0..128).map(|_| says(&long)));
    let mut harness = Harness::new([Script::Play(events.collect())]);
    let limits = ConnectionLimits { write_time: Duration::from_millis(200), ..ConnectionLimits::default() };
    let running = start_with(&harness, limits).await;
    let stream = post(running.address, json!({ "stream": true })).await;
    assert_eq!(harness.next_seen().await, Seen::Request(RequestId(0)));
    assert_eq!(harness.next_seen().await, Seen::Cancel(RequestId(0)));
    drop(stream);
}

#[tokio::test]
async fn garbage_on_the_port_harms_nobody() {
    let harness = Harness::new([answer("hello")]);
    let running = start(&harness).await;
    for garbage in [b"\x16\x03\x01\x02\x00\x01\x00\x01".as_slice(), b"GET\r\n\r\n", &[0; 4096]] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // A reset is as good an answer as an error.
        let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
    assert!(read_all(post(running.address, json!({})).await).await.contains("hello"));
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let first = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let error = Server::bind(first.local_addr()).await.unwrap_err();
    assert!(matches!(error, BindError::InUse(address) if address == first.local_addr()));
    assert!(error.to_string().contains("--listen"), "{error}");
}

/// Everything until the other side closes; a reset is as good as an end.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("an end in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn clients_that_send_their_head_byte_by_byte_or_nothing_lose_their_place() {
    let harness = Harness::new([answer("hello")]);
    let limits = ConnectionLimits {
        connections: 4,
        head_time: Duration::from_millis(300),
        ..ConnectionLimits::default()
    };
    let running = start_with(&harness, limits).await;
    let mut slow = Vec::new();
    for at in 0..4 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        if at > 0 {
            stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nx-pad: ").await.unwrap();
        }
        // A byte now and then does not start the time anew.
        let (read, mut write) = stream.into_split();
        let trickle = tokio::spawn(async move {
            let mut beat = tokio::time::interval(Duration::from_millis(50));
            while at > 1 && write.write_all(b"a").await.is_ok() {
                beat.tick().await;
            }
            write
        });
        slow.push((read, trickle));
    }
    // All places are taken: the next one is told so, in JSON.
    let refused = until_closed(post(running.address, json!({})).await).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("\"too_many_connections\""), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    for (mut read, trickle) in slow {
        let mut bytes = Vec::new();
        let _ = timeout(DEADLINE, read.read_to_end(&mut bytes)).await.expect("an end in time");
        assert!(bytes.is_empty(), "{}", String::from_utf8_lossy(&bytes));
        timeout(DEADLINE, trickle).await.expect("nobody listens any more").unwrap();
    }
    assert!(read_all(post(running.address, json!({})).await).await.contains("hello"));
}

#[tokio::test]
async fn a_body_that_never_comes_ends_when_the_client_does() {
    let harness = Harness::new([answer("hello")]);
    let limits = ConnectionLimits { connections: 1, ..ConnectionLimits::default() };
    let running = start_with(&harness, limits).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    // The only place is free again; until it is, clients are told to try again.
    let answered = async {
        loop {
            let text = until_closed(post(running.address, json!({})).await).await;
            if text.contains("hello") {
                break;
            }
            assert!(text.is_empty() || text.contains("too_many_connections"), "{text}");
        }
    };
    timeout(DEADLINE, answered).await.unwrap();
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused_with_a_reason() {
    let harness = Harness::new([]);
    let running = start(&harness).await;
    let ask = async |head: String| {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(format!("GET {head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
        until_closed(stream).await
    };
    let many: String = (0..120).map(|at| format!("x-{at}: a\r\n")).collect();
    for head in [
        format!("/health HTTP/1.1\r\nx-large: {}\r\n", "a".repeat(40_000)),
        format!("/health HTTP/1.1\r\n{many}"),
        format!("/{} HTTP/1.1\r\n", "a".repeat(40_000)),
    ] {
        let refused = ask(head).await;
        assert!(
            refused.starts_with("HTTP/1.1 431") && refused.contains("\"headers_too_large\""),
            "{refused}"
        );
    }
    // Far beyond, nobody reads on to find out which limit it was.
    let refused = ask(format!("/health HTTP/1.1\r\nx-large: {}\r\n", "a".repeat(200_000))).await;
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 431"), "{refused}");
    assert!(ask("/health HTTP/1.1\r\n".to_owned()).await.starts_with("HTTP/1.1 200"));
}
