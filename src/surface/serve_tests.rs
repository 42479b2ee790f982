//! Tests of the listeners.

use std::os::unix::fs::PermissionsExt;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::surface::fake::Fake;

async fn talk<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, head: &str) -> String {
    let request = format!("GET {head}\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("write");
    let mut out = String::new();
    let read = stream.read_to_string(&mut out);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("in time").expect("read");
    out
}

struct Running(CancellationToken, tokio::task::JoinHandle<io::Result<()>>);

fn start(listeners: ApiListeners) -> Running {
    let shutdown = CancellationToken::new();
    let router = crate::surface::router(Fake::new("a"));
    Running(shutdown.clone(), tokio::spawn(serve(listeners, router, shutdown)))
}

impl Running {
    async fn stop(self) {
        self.0.cancel();
        tokio::time::timeout(Duration::from_secs(20), self.1)
            .await
            .expect("in time")
            .expect("no panic")
            .expect("ok");
    }
}

#[tokio::test]
async fn a_unix_socket_needs_no_token_and_replaces_a_stale_one() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("api.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("stale"));
    let unix = bind_unix(&path).expect("stale one is replaced");
    assert_eq!(std::fs::metadata(&path).expect("meta").permissions().mode() & 0o777, 0o600);
    let running = start(ApiListeners { unix: Some(unix), ..Default::default() });
    assert_eq!(bind_unix(&path).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
    let stream = tokio::net::UnixStream::connect(&path).await.expect("connect");
    let answer = talk(stream, "/v1/peer HTTP/1.1").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"name\":\"a\""), "{answer}");
    running.stop().await;
    std::fs::remove_file(&path).expect("remove");
    std::fs::write(&path, "precious").expect("write");
    assert_eq!(bind_unix(&path).expect_err("a file").kind(), io::ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn loopback_needs_the_token() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = tcp.local_addr().expect("address");
    let running = start(ApiListeners { loopback: Some((tcp, "s3cret".into())), ..Default::default() });
    let connect = || async { tokio::net::TcpStream::connect(address).await.expect("connect") };
    for (head, want) in [
        ("/v1/peer HTTP/1.1", "401"),
        ("/v1/peer HTTP/1.1\r\nauthorization: Bearer s3cre", "401"),
        ("/v1/peer HTTP/1.1\r\nauthorization: Bearer s3cret", "200"),
        ("/healthz HTTP/1.1", "200"),
    ] {
        let answer = talk(connect().await, head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {want}")), "{head}: {answer}");
    }
    running.stop().await;
}

#[tokio::test]
async fn an_open_stream_does_not_hold_up_the_shutdown() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = tcp.local_addr().expect("address");
    let running = start(ApiListeners { loopback: Some((tcp, "t".into())), ..Default::default() });
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connect");
    stream
        .write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer t\r\n\r\n")
        .await
        .expect("write");
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.expect("head");
    assert_eq!(&head, b"HTTP/1.1 200");
    running.stop().await;
}

#[test]
fn the_token_file_is_private_and_kept() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("api.token");
    let token = load_or_create_token(&path).expect("made");
    assert_eq!(load_or_create_token(&path).expect("kept"), token);
    assert_eq!(std::fs::metadata(&path).expect("meta").permissions().mode() & 0o777, 0o600);
    std::fs::write(&path, "\n").expect("emptied");
    assert!(load_or_create_token(&path).is_err(), "an empty token would let everybody in");
}
