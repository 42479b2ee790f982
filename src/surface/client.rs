//! The API's client: one request per connection, over a unix socket, loopback TCP or TLS.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::documents::{ErrorBody, ErrorDocument};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Above what a peer gives itself for an ordinary request.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where a peer's API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A socket of this machine.
    Unix(PathBuf),
    /// Plain TCP, loopback only, since the token would travel in the clear.
    Plain(String, u16),
    /// TLS.
    Tls(String, u16),
}

impl FromStr for Target {
    type Err = String;
    /// `unix:/path`, `/path`, `http://host:port`, `https://host:port`, `host:port`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text)) {
            return Ok(Self::Unix(path.trim_start_matches("//").into()));
        }
        let (scheme, rest) = text.split_once("://").map_or((None, text), |(s, rest)| (Some(s), rest));
        let address = rest.trim_end_matches('/');
        let wrong =
            || format!("{text:?} is not unix:/path, http://HOST:PORT, https://HOST:PORT or HOST:PORT");
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let host = host.trim_matches(['[', ']']);
        if host.is_empty() || host.contains(['/', '@', '?']) {
            return Err(wrong());
        }
        let loopback = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        match scheme {
            Some("http") | None if loopback => Ok(Self::Plain(host.into(), port)),
            Some("http") => Err(format!(
                "{host} is not this machine: use https://{address}, or the token would be readable on the way"
            )),
            Some("https") | None => Ok(Self::Tls(host.into(), port)),
            Some(_) => Err(wrong()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Plain(host, port) => write!(f, "http://{host}:{port}"),
            Self::Tls(host, port) => write!(f, "https://{host}:{port}"),
        }
    }
}

/// Why a request has no good answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientFailure {
    /// No connection: nothing was asked, nothing changed.
    #[error("no peer answers at {0}: {1}")]
    Unreachable(Target, String),
    /// Somebody listens there, and is no peer of the mesh whose certificate was given, or does not speak TLS: nothing was
    /// asked, nothing changed.
    #[error("{0} does not prove to be a peer of the mesh whose certificate was given: {1}")]
    Untrusted(Target, String),
    /// The peer said no.
    #[error("{}", .1.message)]
    Api(u16, ErrorBody),
    /// The connection broke or the time was up after the request was sent: the outcome is unknown.
    #[error("the answer of {0} did not come: {1}; the outcome is unknown")]
    Broken(Target, String),
    /// Not this API, or another version of it.
    #[error("{0} gave an answer that is not understood: {1}")]
    Protocol(Target, String),
    /// The client itself is set up wrongly.
    #[error("{0}")]
    Setup(String),
}

/// A body to send, with its media type.
pub type Payload = Option<(&'static str, Vec<u8>)>;

/// Asks one peer.
#[derive(Clone)]
pub struct Client {
    target: Target,
    token: Option<String>,
    tls: Option<Arc<rustls::ClientConfig>>,
}

trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// An answer whose body is still to come. Its connection ends with it.
pub struct Answer {
    target: Target,
    response: axum::http::Response<hyper::body::Incoming>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Answer {
    /// The next bytes; none at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientFailure> {
        while let Some(frame) = self.response.body_mut().frame().await {
            let frame = frame.map_err(|e| ClientFailure::Broken(self.target.clone(), e.to_string()))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    async fn all(&mut self) -> Result<Vec<u8>, ClientFailure> {
        let mut out = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if out.len() + chunk.len() > ANSWER_BYTES_MAX {
                let text = format!("more than {ANSWER_BYTES_MAX} bytes");
                return Err(ClientFailure::Protocol(self.target.clone(), text));
            }
            out.extend_from_slice(&chunk);
        }
        Ok(out)
    }
}

impl Client {
    /// A client of this target. `ca` is the mesh's certificate (PEM), which TLS needs.
    pub fn new(
        target: Target,
        token: Option<String>,
        ca: Option<&std::path::Path>,
    ) -> Result<Self, ClientFailure> {
        Self::with_identity(target, token, ca, None)
    }

    /// The same; over TLS it shows the certificate of this member (the folder `identity` of its state), where that can be
    /// read and no token is given.
    pub fn with_identity(
        target: Target,
        token: Option<String>,
        ca: Option<&std::path::Path>,
        identity: Option<&std::path::Path>,
    ) -> Result<Self, ClientFailure> {
        let shown = identity.filter(|_| token.is_none()).and_then(certificate);
        let tls = match (&target, ca) {
            (Target::Tls(..), Some(path)) => Some(Arc::new(tls_config(path, shown)?)),
            (Target::Tls(..), None) => {
                let text = "TLS needs the mesh's certificate: copy identity/ca.pem from a peer's state folder and give --ca FILE";
                return Err(ClientFailure::Setup(text.into()));
            }
            _ => None,
        };
        Ok(Self { target, token, tls })
    }

    /// Whom it asks.
    pub fn target(&self) -> &Target {
        &self.target
    }

    async fn wire(&self) -> Result<Box<dyn Wire>, ClientFailure> {
        let down = |e: String| ClientFailure::Unreachable(self.target.clone(), e);
        let io = |e: std::io::Error| down(e.to_string());
        Ok(match (&self.target, &self.tls) {
            (Target::Unix(path), _) => Box::new(UnixStream::connect(path).await.map_err(io)?),
            (Target::Plain(host, port), _) => {
                Box::new(TcpStream::connect((host.as_str(), *port)).await.map_err(io)?)
            }
            (Target::Tls(host, port), Some(tls)) => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(io)?;
                let name =
                    ServerName::try_from(host.clone()).map_err(|e| ClientFailure::Setup(e.to_string()))?;
                let connector = tokio_rustls::TlsConnector::from(tls.clone());
                let untrusted =
                    |e: std::io::Error| ClientFailure::Untrusted(self.target.clone(), e.to_string());
                Box::new(connector.connect(name, tcp).await.map_err(untrusted)?)
            }
            (Target::Tls(..), None) => return Err(ClientFailure::Setup("TLS is not set up".into())),
        })
    }

    /// Sends a request and reads the answer's head within `within`; an error of the API is one here.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        payload: Payload,
        extra: &[(&'static str, String)],
        within: Duration,
    ) -> Result<Answer, ClientFailure> {
        let slow = |_| ClientFailure::Unreachable(self.target.clone(), "no connection in time".into());
        let wire = tokio::time::timeout(CONNECT_WITHIN, self.wire()).await.map_err(slow)??;
        let unknown = |e: String| ClientFailure::Broken(self.target.clone(), e);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(wire))
            .await
            .map_err(|e| ClientFailure::Unreachable(self.target.clone(), e.to_string()))?;
        let driver = tokio::spawn(async move { drop(connection.await) });
        let mut builder = Request::builder().method(method).uri(path).header(header::HOST, "starling");
        if let Some(token) = &self.token {
            builder = builder.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in extra {
            builder = builder.header(*name, value);
        }
        let body = payload.map(|(kind, bytes)| {
            builder
                .headers_mut()
                .map(|h| h.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind)));
            Bytes::from(bytes)
        });
        let request = builder
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|e| ClientFailure::Setup(e.to_string()))?;
        let sent = tokio::time::timeout(within, sender.send_request(request)).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(e)) => return Err(unknown(e.to_string())),
            Err(_) => {
                driver.abort();
                return Err(unknown(format!("nothing within {} s", within.as_secs())));
            }
        };
        let mut answer = Answer { target: self.target.clone(), response, driver };
        let status = answer.response.status();
        if status.is_success() {
            return Ok(answer);
        }
        let bytes =
            tokio::time::timeout(ANSWER_WITHIN, answer.all()).await.map_err(|e| unknown(e.to_string()))??;
        match serde_json::from_slice::<ErrorDocument>(&bytes) {
            Ok(document) => Err(ClientFailure::Api(status.as_u16(), document.error)),
            Err(_) => Err(ClientFailure::Protocol(self.target.clone(), format!("status {status}"))),
        }
    }

    /// A request whose answer is one JSON document.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        payload: Payload,
        extra: &[(&'static str, String)],
        within: Duration,
    ) -> Result<T, ClientFailure> {
        let mut answer = self.open(method, path, payload, extra, within).await?;
        let bytes = tokio::time::timeout(ANSWER_WITHIN, answer.all())
            .await
            .map_err(|e| ClientFailure::Broken(self.target.clone(), e.to_string()))??;
        serde_json::from_slice(&bytes)
            .map_err(|e| ClientFailure::Protocol(self.target.clone(), e.to_string()))
    }

    /// `GET` of a document.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientFailure> {
        self.json(Method::GET, path, None, &[], ANSWER_WITHIN).await
    }

    /// `GET` of a text.
    pub async fn text(&self, path: &str) -> Result<String, ClientFailure> {
        let mut answer = self.open(Method::GET, path, None, &[], ANSWER_WITHIN).await?;
        let bytes = tokio::time::timeout(ANSWER_WITHIN, answer.all())
            .await
            .map_err(|e| ClientFailure::Broken(self.target.clone(), e.to_string()))??;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// `POST` or `DELETE` for a document.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        payload: Payload,
    ) -> Result<T, ClientFailure> {
        self.json(method, path, payload, &[], ANSWER_WITHIN).await
    }
}

/// A server counts as a peer when the mesh's root signed its certificate, whatever address it is
/// reached at: peers move, and the root signs nothing but members.
#[derive(Debug)]
struct MeshVerifier {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// What a member shows as a client: the first certificate of its file names it. None where it cannot be read, as by others
/// than its own user; and none where its time is over, which the other side would only say after the request was sent.
fn certificate(identity: &std::path::Path) -> Option<Shown> {
    let first = CertificateDer::pem_file_iter(identity.join("peer.pem")).ok()?.next()?.ok()?;
    let (_, read) = x509_parser::parse_x509_certificate(&first).ok()?;
    if !read.validity().is_valid() {
        return None;
    }
    let key = PrivateKeyDer::try_from(std::fs::read(identity.join("peer.key")).ok()?).ok()?;
    Some((vec![first], key))
}

fn tls_config(ca: &std::path::Path, shown: Option<Shown>) -> Result<rustls::ClientConfig, ClientFailure> {
    let setup = |e: String| ClientFailure::Setup(format!("{}: {e}", ca.display()));
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(ca).map_err(|e| setup(e.to_string()))?;
    roots.add(certificate).map_err(|e| setup(e.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = MeshVerifier { roots, provider: provider.clone() };
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| setup(e.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match shown {
        None => Ok(config.with_no_client_auth()),
        Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(|e| setup(e.to_string())),
    }
}

impl ServerCertVerifier for MeshVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = rustls::server::ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read() {
        for (text, want) in [
            ("unix:/a/b.sock", "unix:/a/b.sock"),
            ("/a/b.sock", "unix:/a/b.sock"),
            ("127.0.0.1:80", "http://127.0.0.1:80"),
            ("[::1]:80", "http://::1:80"),
            ("http://localhost:8/", "http://localhost:8"),
            ("10.0.0.1:80", "https://10.0.0.1:80"),
            ("https://eu.example:443", "https://eu.example:443"),
        ] {
            assert_eq!(text.parse::<Target>().expect(text).to_string(), want);
        }
        for bad in ["", "host", "host:x", "ftp://h:1", "http://10.0.0.1:80", "https://h/x:1", ":80"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
    #[test]
    fn a_certificate_whose_time_is_over_is_not_shown() {
        let dir = tempfile::tempdir().expect("dir");
        let key = rcgen::KeyPair::generate().expect("a key");
        std::fs::write(dir.path().join("peer.key"), key.serialize_der()).expect("written");
        for (until, shown) in [(2000, false), (4000, true)] {
            let mut params = rcgen::CertificateParams::default();
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(1999, 1, 1), rcgen::date_time_ymd(until, 1, 1));
            let text = params.self_signed(&key).expect("signed").pem();
            std::fs::write(dir.path().join("peer.pem"), text).expect("written");
            assert_eq!(certificate(dir.path()).is_some(), shown, "until {until}");
        }
    }
}
