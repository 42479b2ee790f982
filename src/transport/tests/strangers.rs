//! Those who have no business here: what they learn, and that they break nothing.

use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::transport::api::{JOIN_BYTES_MAX, JoinHandler};
use crate::transport::link::close;
use crate::transport::tls::{ALPN_JOIN, ALPN_MESH};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// Believes any server, and keeps what it showed.
#[derive(Debug, Default)]
struct Gullible(Mutex<Vec<Vec<u8>>>);

impl rustls::client::danger::ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _name: &rustls_pki_types::ServerName<'_>,
        _ocsp: &[u8],
        _now: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        lock(&self.0).extend([leaf].into_iter().chain(rest).map(|der| der.to_vec()));
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _m: &[u8],
        _c: &CertificateDer<'_>,
        _d: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        unreachable!("TLS 1.3 only")
    }
    fn verify_tls13_signature(
        &self,
        _m: &[u8],
        _c: &CertificateDer<'_>,
        _d: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        certs::provider().signature_verification_algorithms.supported_schemes()
    }
}

/// What a caller with this certificate (or none) gets: the bytes of certificates and streams, and the end.
async fn intrude(
    to: &Peer,
    shown: Option<(Vec<u8>, &Identity)>,
    alpn: &[u8],
) -> (Vec<u8>, quinn::ConnectionError) {
    let gullible = Arc::new(Gullible::default());
    let tls = rustls::ClientConfig::builder_with_provider(certs::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(gullible.clone());
    let mut tls = match shown {
        None => tls.with_no_client_auth(),
        Some((der, identity)) => {
            let key = PrivatePkcs8KeyDer::from(identity.key().pkcs8().to_vec());
            tls.with_client_auth_cert(vec![der.into()], key.into()).expect("a key")
        }
    };
    tls.alpn_protocols = vec![alpn.to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).expect("QUIC");
    let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("binds");
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let connecting = endpoint.connect_with(config, to.net.local_addr(), certs::DNS_NAME).expect("address");
    let mut got = Vec::new();
    let end = match timeout(LIMIT, connecting).await.expect("in time") {
        Err(end) => end,
        Ok(connection) => {
            if let Ok((mut send, mut recv)) = connection.open_bi().await {
                let _ = send.write_all(&codec::frame(Kind::Hello, &[0; 64]).expect("fits")).await;
                while let Ok(Some(chunk)) = recv.read_chunk(4_096, true).await {
                    got.extend_from_slice(&chunk.bytes);
                }
            }
            timeout(LIMIT, connection.closed()).await.expect("in time")
        }
    };
    assert!(got.is_empty(), "no bytes of ours on a stream");
    got.extend(lock(&gullible.0).concat());
    (got, end)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_gets_nothing_not_even_a_name() {
    let mesh = Mesh::new(|_| {});
    let peer = mesh.peer("very-secret-name", 1);
    let other = Mesh::new(|_| {});
    let (foreign, _f1) = other.identity("very-secret-name", true);
    let (expired, _f2) = mesh.identity("was-a-member", true);
    let long_ago = crate::base::WallTime(certs::now() - 10_000_000);
    let stale = mesh.root.authority().issue(&expired.public(), expired.name(), long_ago, Span::secs(60));
    let stale = stale.expect("signs").named;
    let nameless = expired.issued().nameless;
    let cases = [
        ("no certificate", None),
        ("another mesh's", Some((foreign.issued().named, &foreign))),
        ("an expired one", Some((stale, &expired))),
        ("a nameless one", Some((nameless, &expired))),
    ];
    for (what, shown) in cases {
        let (got, end) = intrude(&peer, shown, ALPN_MESH).await;
        assert!(!got.is_empty(), "{what}: TLS showed a certificate");
        for secret in ["very-secret-name", &mesh.root.mesh().to_string(), "spiffe", "starling"] {
            assert!(!contains(&got, secret.as_bytes()), "{what}: {secret} was told");
        }
        assert!(!contains(&got, &mesh.root.mesh().0), "{what}: the mesh's id was told");
        assert!(!contains(&got, &mesh.root.ca_certificate()[..]), "{what}: the trust root was shown");
        match end {
            quinn::ConnectionError::ApplicationClosed(close) => assert!(close.reason.is_empty(), "{what}"),
            quinn::ConnectionError::ConnectionClosed(close) => {
                assert!(!contains(&close.reason, b"secret"), "{what}: {close}");
            }
            other => panic!("{what}: {other}"),
        }
    }
    eventually("all are counted", || peer.count("strangers") == 4).await;
    assert_eq!((peer.count("links_up"), peer.net.connected().len()), (0, 0));
    // The join channel is closed while nobody answers on it; another protocol is not spoken at all.
    let (got, end) = intrude(&peer, None, ALPN_JOIN).await;
    assert!(!contains(&got, b"very-secret-name"));
    assert!(matches!(end, quinn::ConnectionError::ApplicationClosed(close) if close.reason.is_empty()));
    let (got, _end) = intrude(&peer, None, b"h3").await;
    assert!(got.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_mesh_is_not_told_who_calls() {
    let (mesh, other) = (Mesh::new(|_| {}), Mesh::new(|_| {}));
    let a = mesh.peer("a", 1);
    let trap = other.peer("b", 2);
    lock(&mesh.book.stores).insert(name("b"), store(2));
    lock(&mesh.book.addresses).insert(name("b"), trap.net.local_addr());
    a.net.set_members(vec![name("a"), name("b")]);
    eventually("the call fails", || !a.net.troubles().is_empty()).await;
    eventually("the trap saw a failed handshake", || trap.count("strangers") > 0).await;
    assert_eq!((a.count("links_up"), trap.count("links_up"), trap.count("refused")), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_counted_and_breaks_nothing() {
    fn hasty(config: &mut NetConfig) {
        config.hello_timeout = Span::secs(2);
    }
    let mesh = Mesh::new(hasty);
    let a = mesh.peer("a", 1);
    let (identity, _folder) = mesh.identity("hand", true);
    lock(&mesh.book.stores).insert(name("hand"), store(2));
    a.net.set_members(vec![name("a"), name("hand")]);
    let udp = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    for i in 0..200u32 {
        let junk: Vec<u8> =
            (0..(i % 60) * 20).map(|j| (i.wrapping_mul(j).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        udp.send_to(&junk, a.net.local_addr()).expect("sends");
    }
    // Half-open: TLS is done, the hello never comes, or is junk, or comes in the wrong order.
    let silent = ByHand::connect(&identity, &a).await;
    let mut junk = ByHand::connect(&identity, &a).await;
    junk.send.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("writes");
    assert_eq!(junk.closed().await, u64::from(close::GARBAGE));
    let mut early = ByHand::connect(&identity, &a).await;
    early.greet(&Greeting::Ready).await;
    assert_eq!(early.closed().await, u64::from(close::GARBAGE));
    let mut huge = ByHand::connect(&identity, &a).await;
    huge.send.write_all(&[0x53, 1, Kind::Hello as u8, 0xff, 0xff, 0xff, 0xff]).await.expect("writes");
    assert_eq!(huge.closed().await, u64::from(close::GARBAGE));
    assert_eq!(silent.closed().await, u64::from(close::GARBAGE));
    eventually("half-open ones are counted", || a.count("half_open") == 4).await;
    // With the hello done, each of these costs the link.
    let oversized = [&[0x53, 1, Kind::Core as u8][..], &(2u32 << 20).to_be_bytes(), &[0; 100]].concat();
    let trailing = [codec::frame(Kind::Gossip, b"x").expect("fits"), vec![0]].concat();
    let cases = [
        ("oversized", oversized),
        ("trailing", trailing),
        ("cut short", codec::frame(Kind::Gossip, b"xyz").expect("fits")[..8].to_vec()),
        ("another version", vec![0x53, 2, 3, 0, 0, 0, 0]),
        ("unknown kind", vec![0x53, 1, 99, 0, 0, 0, 0]),
        ("hello twice", codec::frame(Kind::Hello, b"").expect("fits")),
        ("core junk", codec::frame(Kind::Core, &[255; 50]).expect("fits")),
        ("relay junk", codec::frame(Kind::Relay, &[255; 50]).expect("fits")),
        ("flash junk", codec::frame(Kind::Flash, &[255; 50]).expect("fits")),
    ];
    let count = cases.len() as u64;
    for (what, bytes) in cases {
        let hand = ByHand::linked(&identity, 2, &a).await;
        hand.uni(&bytes).await;
        assert_eq!(hand.closed().await, u64::from(close::GARBAGE), "{what}");
    }
    eventually("all are counted", || a.count("garbage") == count).await;
    // More streams than it may open: the credit ends, nothing else happens.
    let many = ByHand::linked(&identity, 2, &a).await;
    let mut held = Vec::new();
    while let Ok(Ok(mut stream)) = timeout(Duration::from_millis(500), many.connection.open_uni()).await {
        stream.write_all(&[0x53]).await.expect("writes");
        held.push(stream);
    }
    assert!((100..=128).contains(&held.len()), "{}", held.len());
    let [b] = ["b"].map(|text| mesh.peer(text, 3));
    for peer in [&a, &b] {
        peer.net.set_members(["a", "b", "hand"].map(name).to_vec());
    }
    b.linked(1).await;
    assert!(b.net.connected().contains(&name("a")), "and it still serves");
}

struct Upper;
#[async_trait]
impl JoinHandler for Upper {
    async fn handle(&self, request: Vec<u8>) -> Vec<u8> {
        match request.as_slice() {
            b"much" => vec![1; 900_000],
            _ => request.to_ascii_uppercase(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_join_channel_answers_those_who_know_the_mesh() {
    let mesh = Mesh::new(|_| {});
    let a = mesh.peer("a", 1);
    let (address, fingerprint) = (a.net.local_addr(), a.net.identity().ca_fingerprint());
    let closed = join_call(address, fingerprint, b"x".to_vec()).await;
    assert!(matches!(closed, Err(NetError::Lost(_))), "{closed:?}");
    a.net.set_join_handler(Some(Arc::new(Upper)));
    assert_eq!(join_call(address, fingerprint, b"hello".to_vec()).await.expect("answers"), b"HELLO");
    assert_eq!(join_call(address, fingerprint, b"much".to_vec()).await.expect("answers").len(), 900_000);
    let wrong = join_call(address, [7; 32], b"secret".to_vec()).await;
    assert!(matches!(wrong, Err(NetError::WrongMesh(_))), "{wrong:?}");
    let large = join_call(address, fingerprint, vec![0; JOIN_BYTES_MAX + 1]).await;
    assert!(matches!(large, Err(NetError::TooLarge { .. })), "{large:?}");
    let mut refused = 0;
    for _ in 0..20 {
        refused += u32::from(join_call(address, fingerprint, b"x".to_vec()).await.is_err());
    }
    assert!(refused > 5, "one address asks only so often: {refused}");
    assert_eq!((a.count("links_up"), a.count("garbage")), (0, 0));
}
