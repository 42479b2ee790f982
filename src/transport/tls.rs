//! TLS 1.3 for QUIC: what each side shows and whom it believes.
//!
//! No session is ever resumed: a resumed one would skip the look at the other side's certificate.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, IdleTimeout, TransportConfig, VarInt};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};

use super::api::{NetConfig, NetError};
use super::certs::{self, fingerprint, provider};
use super::identity::Identity;

/// Between members.
pub(super) const ALPN_MESH: &[u8] = b"starling/1";
/// From strangers that hold a token.
pub(super) const ALPN_JOIN: &[u8] = b"starling-join/1";
/// Packets that may come before one goes back for the acknowledgement alone.
const ACKNOWLEDGED_AT_ONCE: u32 = 8;
/// Streams and bytes that a side may use before its hello was accepted.
const WINDOW_BEFORE_HELLO: u32 = 64 * 1024;

fn failed(error: impl std::fmt::Display) -> NetError {
    NetError::Config(error.to_string())
}

/// Shows the nameless certificate; to joiners with the trust root, whose fingerprint they know.
#[derive(Debug)]
struct Nameless {
    mesh: Arc<CertifiedKey>,
    join: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Nameless {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let offered: Vec<&[u8]> = hello.alpn()?.collect();
        if offered.contains(&ALPN_MESH) {
            Some(self.mesh.clone())
        } else if offered.contains(&ALPN_JOIN) {
            Some(self.join.clone())
        } else {
            None
        }
    }
}

/// Shows the nameless certificate of the moment: it is renewed while connections are accepted.
#[derive(Debug)]
struct OfTheMoment {
    identity: Arc<Identity>,
    key: Arc<dyn SigningKey>,
}

impl ResolvesServerCert for OfTheMoment {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let leaf = CertificateDer::from(self.identity.issued().nameless);
        Some(Arc::new(CertifiedKey::new(vec![leaf], self.key.clone())))
    }
}

/// What a server beside QUIC shows for as long as it runs.
pub fn server_certificate(identity: Arc<Identity>) -> Result<Arc<dyn ResolvesServerCert>, rustls::Error> {
    let key = rustls::crypto::ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(identity.key().pkcs8()))?;
    Ok(Arc::new(OfTheMoment { identity, key }))
}

/// The listening side.
pub(super) fn server_config(
    identity: &Identity,
    config: &NetConfig,
) -> Result<quinn::ServerConfig, NetError> {
    let pkcs8 = PrivatePkcs8KeyDer::from(identity.key().pkcs8());
    let key = rustls::crypto::ring::sign::any_eddsa_type(&pkcs8).map_err(failed)?;
    let leaf = CertificateDer::from(identity.issued().nameless);
    let chain = vec![leaf.clone(), identity.ca_certificate().clone()];
    let shown = Nameless {
        mesh: Arc::new(CertifiedKey::new(vec![leaf], key.clone())),
        join: Arc::new(CertifiedKey::new(chain, key)),
    };
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(identity.authority().clients())
        .with_cert_resolver(Arc::new(shown));
    tls.alpn_protocols = vec![ALPN_MESH.to_vec(), ALPN_JOIN.to_vec()];
    tls.send_tls13_tickets = 0;
    let mut quic =
        quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).map_err(failed)?));
    quic.migration(false).max_incoming(256).incoming_buffer_size_total(4 << 20);
    quic.transport_config(transport(config)?);
    Ok(quic)
}

/// The calling side, between members.
pub(super) fn client_config(
    identity: &Identity,
    config: &NetConfig,
) -> Result<quinn::ClientConfig, NetError> {
    let key = PrivatePkcs8KeyDer::from(identity.key().pkcs8().to_vec());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(identity.authority().servers())
        .with_client_auth_cert(vec![CertificateDer::from(identity.issued().named)], key.into())
        .map_err(failed)?;
    tls.alpn_protocols = vec![ALPN_MESH.to_vec()];
    tls.resumption = rustls::client::Resumption::disabled();
    finish_client(tls, transport(config)?)
}

/// The calling side of a stranger that knows the mesh by its fingerprint only.
pub(super) fn join_config(ca_fingerprint: [u8; 32]) -> Result<quinn::ClientConfig, NetError> {
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ByFingerprint(ca_fingerprint)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN_JOIN.to_vec()];
    tls.resumption = rustls::client::Resumption::disabled();
    finish_client(tls, Arc::new(TransportConfig::default()))
}

fn finish_client(
    tls: rustls::ClientConfig,
    transport: Arc<TransportConfig>,
) -> Result<quinn::ClientConfig, NetError> {
    let mut quic = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(failed)?));
    quic.transport_config(transport);
    Ok(quic)
}

/// Tight until the hello: one stream and little room; [`widen`] opens it.
fn transport(config: &NetConfig) -> Result<Arc<TransportConfig>, NetError> {
    // Most of what is sent is answered within a moment: the answer carries the acknowledgement along.
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACKNOWLEDGED_AT_ONCE));
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(config.idle_timeout.to_std()).map_err(failed)?;
    transport
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(config.keep_alive.to_std()))
        .ack_frequency_config(Some(acks))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .receive_window(VarInt::from_u32(WINDOW_BEFORE_HELLO))
        .stream_receive_window(VarInt::from_u32(4 << 20))
        .send_window(16 << 20)
        .datagram_receive_buffer_size(None);
    Ok(Arc::new(transport))
}

/// After the hello: room for every lane and for requests.
pub(super) fn widen(connection: &quinn::Connection) {
    connection.set_receive_window(VarInt::from_u32(16 << 20));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(128));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(256));
}

/// Believes a server whose chain holds the trust root with this fingerprint, and is signed by it.
#[derive(Debug)]
struct ByFingerprint([u8; 32]);

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let root = intermediates.iter().take(4).find(|der| fingerprint(der) == self.0);
        let root = root.ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?
            .verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The protocol that TLS agreed on.
pub(super) fn alpn(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let data = connection.handshake_data()?.downcast::<quinn::crypto::rustls::HandshakeData>().ok()?;
    data.protocol
}

/// The other side's certificate, if it showed one.
pub(super) fn peer_certificate(connection: &quinn::Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.into_iter().next()
}

/// Bytes that only the two ends of this very connection know, for signatures that bind to it.
pub(super) fn channel_binding(connection: &quinn::Connection) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    connection
        .export_keying_material(&mut out, b"EXPORTER-starling-hello", certs::DNS_NAME.as_bytes())
        .ok()?;
    Some(out)
}
