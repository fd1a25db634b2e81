//! The same over a real port.

use std::net::SocketAddr;

use scheduler::RequestId;
use serde_json::json;
use server::{BindError, Server};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fake::{DEADLINE, Harness, Script, Seen, answer, chat_body, says, started, with};

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start(harness: &Harness) -> Running {
    let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
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
    timeout(DEADLINE, running.task).await.unwrap().unwrap().unwrap();
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
