//! Where the API listens: a unix socket, loopback TCP with a token, TLS with a client certificate of
//! the mesh or a token.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use axum::response::IntoResponse;
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::hmac;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::api::{Address, ApiError, Caller};
use super::web;
use crate::base::PeerName;
use crate::transport::{Identity, private, server_certificate};

/// Connections at once over all listeners.
const CONNECTIONS_MAX: usize = 1_024;
/// A TLS handshake or a request's head that takes longer is cut off.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// After the shutdown signal, open answers may go on for this long.
const DRAIN_WITHIN: Duration = Duration::from_secs(3);

/// Sockets to listen on; each may be left out.
#[derive(Default)]
pub struct ApiListeners {
    /// From `bind_unix`. No token is needed: the file's mode says who may.
    pub unix: Option<UnixListener>,
    /// Loopback TCP and the token that it asks for.
    pub loopback: Option<(TcpListener, String)>,
    /// TLS over TCP, and the token that stands in for a client certificate.
    pub tls: Option<(TcpListener, Arc<ServerConfig>, String)>,
}

/// Makes the socket with mode 0600, replacing one that nobody listens on any more. Fails with
/// `AddrInUse` when somebody does, and never removes a file that is not a socket.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} is not a socket", path.display()),
            ));
        }
        Ok(_) => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                let text = format!("another peer answers at {}", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            std::fs::remove_file(path)?;
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    // Made under another name and moved once its mode is right, so that nobody else can slip in between.
    let fresh = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Reads the token file, or makes it (mode 0600, 256 random bits).
pub fn load_or_create_token(path: &Path) -> io::Result<String> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().len() >= 32 => {
            private::tighten_secret(path)?;
            return Ok(text.trim().to_owned());
        }
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} holds no token", path.display()),
            ));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let token = random_token()?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()?;
    Ok(token)
}

fn random_token() -> io::Result<String> {
    use ring::rand::SecureRandom;
    let mut bytes = [0; 32];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no randomness"))?;
    Ok(data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
}

/// TLS for remote clients: shows the peer's certificate as it is at that moment, and takes a client certificate of its mesh
/// where one is given.
pub fn tls_config(identity: Arc<Identity>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.ca_certificate().clone())?;
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(server_certificate(identity)?);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A token, compared without telling by time how much of a guess is right.
#[derive(Clone)]
struct Token(Arc<(hmac::Key, hmac::Tag)>);

impl Token {
    fn new(token: &str) -> io::Result<Self> {
        let rng = ring::rand::SystemRandom::new();
        let key =
            hmac::Key::generate(hmac::HMAC_SHA256, &rng).map_err(|_| io::Error::other("no randomness"))?;
        let tag = hmac::sign(&key, token.as_bytes());
        Ok(Self(Arc::new((key, tag))))
    }

    fn is(&self, guess: &str) -> bool {
        hmac::verify(&self.0.0, guess.as_bytes(), self.0.1.as_ref()).is_ok()
    }

    fn in_head(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        value.and_then(|v| v.strip_prefix("Bearer ")).is_some_and(|guess| self.is(guess.trim()))
    }
}

/// What a connection has proved, and what its requests must still show.
#[derive(Clone)]
enum Gate {
    Open(Caller),
    Needs(Token),
}

/// Serves until `shutdown`, then lets open answers end for a bounded time.
pub async fn serve(listeners: ApiListeners, router: Router, shutdown: CancellationToken) -> io::Result<()> {
    let server = Server {
        router,
        shutdown: shutdown.clone(),
        tasks: TaskTracker::new(),
        seats: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    };
    if let Some(unix) = listeners.unix {
        server.tasks.spawn(server.clone().accept_unix(unix));
    }
    if let Some((tcp, token)) = listeners.loopback {
        server.tasks.spawn(server.clone().accept_tcp(tcp, None, Token::new(&token)?));
    }
    if let Some((tcp, tls, token)) = listeners.tls {
        server.tasks.spawn(server.clone().accept_tcp(tcp, Some(tls), Token::new(&token)?));
    }
    server.tasks.close();
    shutdown.cancelled().await;
    server.tasks.wait().await;
    Ok(())
}

#[derive(Clone)]
struct Server {
    router: Router,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    seats: Arc<Semaphore>,
}

impl Server {
    /// The next connection once there is a seat for it; none at shutdown.
    async fn next<T, F>(&self, accept: impl Fn() -> F) -> Option<(T, OwnedSemaphorePermit)>
    where
        F: Future<Output = io::Result<T>>,
    {
        loop {
            let seat = tokio::select! { biased;
                () = self.shutdown.cancelled() => return None,
                seat = self.seats.clone().acquire_owned() => seat.ok()?,
            };
            let accepted = tokio::select! { biased;
                () = self.shutdown.cancelled() => return None,
                accepted = accept() => accepted,
            };
            match accepted {
                Ok(connection) => return Some((connection, seat)),
                // Out of file descriptors, or the caller went away: neither may spin nor end the server.
                Err(error) => {
                    tracing::warn!(%error, "a connection to the API could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn accept_unix(self, listener: UnixListener) {
        while let Some(((stream, _), seat)) = self.next(|| listener.accept()).await {
            let uid = stream.peer_cred().ok().map(|cred| cred.uid());
            let server = self.clone();
            self.tasks.spawn(async move {
                server.connection(stream, (Gate::Open(Caller::Local(uid)), None), true).await;
                drop(seat);
            });
        }
    }

    async fn accept_tcp(self, listener: TcpListener, tls: Option<Arc<ServerConfig>>, token: Token) {
        while let Some(((stream, address), seat)) = self.next(|| listener.accept()).await {
            let (server, tls, token) = (self.clone(), tls.clone(), token.clone());
            let _ = stream.set_nodelay(true);
            self.tasks.spawn(async move {
                match tls {
                    None => server.connection(stream, (Gate::Needs(token), Some(address)), true).await,
                    Some(config) => {
                        let acceptor = tokio_rustls::TlsAcceptor::from(config);
                        let handshake = tokio::time::timeout(HEAD_WITHIN, acceptor.accept(stream));
                        let done = tokio::select! { biased;
                            () = server.shutdown.cancelled() => return,
                            done = handshake => done,
                        };
                        if let Ok(Ok(stream)) = done {
                            let gate = gate_of(stream.get_ref().1, token);
                            server.connection(stream, (gate, Some(address)), false).await;
                        }
                    }
                }
                drop(seat);
            });
        }
    }

    async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        (gate, address): (Gate, Option<SocketAddr>),
        plain: bool,
    ) {
        let router = self.router;
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
            let (router, gate) = (router.clone(), gate.clone());
            async move {
                if let Some(why) = web::guard::refusal(request.headers(), plain) {
                    return Ok(ApiError::Forbidden(why.into()).into_response());
                }
                let caller = match gate {
                    Gate::Open(caller) => caller,
                    Gate::Needs(token) if token.in_head(request.headers()) => Caller::Token,
                    Gate::Needs(_) if request.uri().path() == "/healthz" => Caller::Token,
                    Gate::Needs(_) => {
                        let shown = web::before_token(&request);
                        return Ok(shown.unwrap_or_else(|| ApiError::Unauthorized.into_response()));
                    }
                };
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(caller);
                if let Some(address) = address {
                    request.extensions_mut().insert(Address(address));
                }
                router.oneshot(request).await
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(64 * 1024);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! { biased;
            () = self.shutdown.cancelled() => {}
            _ = connection.as_mut() => return,
        }
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(DRAIN_WITHIN, connection).await;
    }
}

/// A client certificate was checked against the mesh's root by rustls; its SAN says whose it is.
fn gate_of(connection: &rustls::ServerConnection, token: Token) -> Gate {
    let leaf = connection.peer_certificates().and_then(|chain| chain.first());
    match leaf.and_then(|leaf| peer_of(leaf)) {
        Some(name) => Gate::Open(Caller::Member(name)),
        None => Gate::Needs(token),
    }
}

fn peer_of(certificate: &[u8]) -> Option<PeerName> {
    use x509_parser::prelude::*;
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => {
            let (_, peer) = uri.strip_prefix("spiffe://")?.split_once("/peer/")?;
            PeerName::new(peer).ok()
        }
        _ => None,
    })
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
