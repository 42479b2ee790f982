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

/// TLS with the very certificates that a peer has.
struct Tls {
    dir: tempfile::TempDir,
    identity: Arc<crate::transport::Identity>,
    address: std::net::SocketAddr,
    running: Running,
}

fn pem(path: &Path) -> Vec<rustls_pki_types::CertificateDer<'static>> {
    use rustls_pki_types::pem::PemObject;
    let read = rustls_pki_types::CertificateDer::pem_file_iter(path).expect("a file");
    read.collect::<Result<_, _>>().expect("certificates")
}

fn key(dir: &Path) -> rustls_pki_types::PrivateKeyDer<'static> {
    std::fs::read(dir.join("peer.key")).expect("a key").try_into().expect("a key")
}

async fn tls() -> Tls {
    use crate::base::Span;
    let dir = tempfile::tempdir().expect("dir");
    let name = crate::surface::fake::name("a");
    let identity = crate::transport::Identity::create_mesh(dir.path(), &name, Span::secs(3_600));
    let identity = Arc::new(identity.expect("a mesh"));
    let config = tls_config(identity.clone()).expect("config");
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = tcp.local_addr().expect("address");
    let running =
        start(ApiListeners { tls: Some((tcp, Arc::new(config), "s3cret".into())), ..Default::default() });
    Tls { dir, identity, address, running }
}

#[tokio::test]
async fn tls_takes_a_token_and_only_its_own_mesh_is_believed() {
    use crate::surface::client::{Client, ClientFailure, Target};
    let tls = tls().await;
    let target = Target::Tls("127.0.0.1".into(), tls.address.port());
    let ca = tls.dir.path().join("ca.pem");
    let ask = |token: Option<&str>, ca: &Path| {
        let client = Client::new(target.clone(), token.map(str::to_owned), Some(ca)).expect("a client");
        async move { client.get::<serde_json::Value>("/v1/peer").await }
    };
    assert_eq!(ask(Some("s3cret"), &ca).await.expect("answered")["name"], "a");
    for token in [None, Some("s3cres")] {
        assert!(matches!(ask(token, &ca).await, Err(ClientFailure::Api(401, _))), "{token:?}");
    }
    let other = self::tls().await;
    let refused = ask(Some("s3cret"), &other.dir.path().join("ca.pem")).await;
    assert!(matches!(refused, Err(ClientFailure::Untrusted(..))), "{refused:?}");
    tls.running.stop().await;
    other.running.stop().await;
}

#[tokio::test]
async fn a_client_certificate_of_the_mesh_needs_no_token() {
    let tls = tls().await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pem(&tls.dir.path().join("ca.pem")).remove(0)).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let shown = |dir: &Path| {
        rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(pem(&dir.join("peer.pem")).into_iter().take(1).collect(), key(dir))
            .expect("config")
    };
    let other = self::tls().await;
    for (dir, good) in [(tls.dir.path(), true), (other.dir.path(), false)] {
        let mut config = shown(dir);
        // Names are not what is tried here: the chain is, and it is the server that checks it.
        config.dangerous().set_certificate_verifier(Arc::new(AnyServer));
        let tcp = tokio::net::TcpStream::connect(tls.address).await.expect("connect");
        let name = rustls_pki_types::ServerName::try_from("peer").expect("a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, tcp).await.expect("the client's half");
        stream
            .write_all(b"GET /v1/peer HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .expect("write");
        let mut out = Vec::new();
        let read = stream.read_to_end(&mut out).await;
        assert_eq!(out.starts_with(b"HTTP/1.1 200"), good, "{read:?} {}", String::from_utf8_lossy(&out));
    }
    tls.running.stop().await;
    other.running.stop().await;
}

/// A peer that runs for longer than its certificate lives shows the renewed one.
#[tokio::test]
async fn a_renewed_certificate_is_shown_from_then_on() {
    let tls = tls().await;
    let shown = || async {
        let tcp = tokio::net::TcpStream::connect(tls.address).await.expect("connect");
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("versions")
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer))
                .with_no_client_auth();
        let name = rustls_pki_types::ServerName::try_from("peer").expect("a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, tcp).await.expect("TLS");
        stream.get_ref().1.peer_certificates().expect("shown")[0].to_vec()
    };
    let before = shown().await;
    assert_eq!(before, tls.identity.issued().nameless);
    let renewed = tls.identity.sign(&tls.identity.public(), tls.identity.name()).expect("signed");
    assert_ne!(renewed.nameless, before);
    tls.identity.install(renewed.clone()).expect("installed");
    assert_eq!(shown().await, renewed.nameless);
    tls.running.stop().await;
}

#[derive(Debug)]
struct AnyServer;

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2".into()))
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
