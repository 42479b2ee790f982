//! One try to tell people: HTTP POST of the notice, or a program that reads it. Both within a time, both answer whether
//! it was taken; the watch tries again.

use std::process::Stdio;
use std::sync::Arc;

use axum::http::{Method, Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::backends::local::processes::OwnGroup;
use crate::base::Span;
use crate::base::text::words;
use crate::model::config::{NotifierConfig, Through};

/// Where systems keep the certificates that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Bytes of an answer, or of what a command says, that are looked at.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Tells people once. The text of a failure has no secret in it.
pub async fn tell(notifier: &NotifierConfig, notice: Bytes, key: &str) -> Result<(), String> {
    let try_it = async {
        match &notifier.through {
            Through::Webhook { url, headers, ca } => {
                let headers = headers.iter().map(|(k, v)| (k.as_str(), v.as_str()));
                let own = [("x-starling-key", key)];
                post(url, headers.chain(own), ca.as_deref(), notice).await
            }
            Through::Command { run } => command(run, &notice).await,
        }
    };
    match tokio::time::timeout(notifier.timeout.to_std(), try_it).await {
        Ok(done) => done,
        Err(_) => Err(format!("not taken within {}", notifier.timeout)),
    }
}

trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// `scheme://host[:port]/path`, taken apart; the configuration has checked it.
fn parts(url: &str) -> Option<(bool, &str, u16, String)> {
    let (tls, rest) = match url.split_once("://")? {
        ("http", rest) => (false, rest),
        ("https", rest) => (true, rest),
        _ => return None,
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, if tls { 443 } else { 80 }),
    };
    Some((tls, host.trim_matches(['[', ']']), port, path))
}

async fn post<'a>(
    url: &str,
    headers: impl Iterator<Item = (&'a str, &'a str)>,
    ca: Option<&std::path::Path>,
    body: Bytes,
) -> Result<(), String> {
    let (tls, host, port, path) = parts(url).ok_or("not an address")?;
    let at = |e: &dyn std::fmt::Display| format!("{host}:{port}: {e}");
    let tcp = TcpStream::connect((host, port)).await.map_err(|e| at(&e))?;
    let wire: Box<dyn Wire> = if tls {
        let name = ServerName::try_from(host.to_owned()).map_err(|e| at(&e))?;
        let connector = tokio_rustls::TlsConnector::from(roots(ca).map_err(|e| at(&e))?);
        Box::new(connector.connect(name, tcp).await.map_err(|e| at(&e))?)
    } else {
        Box::new(tcp)
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(wire)).await.map_err(|e| at(&e))?;
    let driver = tokio::spawn(async move { drop(connection.await) });
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, shown)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("starling/", env!("CARGO_PKG_VERSION")));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).map_err(|_| "a header cannot be sent".to_owned())?;
    let answered = sender.send_request(request).await;
    let done = match answered {
        Err(e) => Err(at(&e)),
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => {
            let status = response.status();
            let said = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let said = said.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default();
            Err(at(&format!("{status} {}", words(&said, 120)).trim_end().to_owned()))
        }
    };
    driver.abort();
    done
}

/// Whom to trust: the file given, else what the system trusts.
fn roots(ca: Option<&std::path::Path>) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let given = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let system = || SYSTEM_ROOTS.iter().map(std::path::PathBuf::from).find(|p| p.exists());
    let file = ca.map(std::path::Path::to_owned).or(given).or_else(system);
    let file = file.ok_or("no certificates to trust are on this machine: set `ca`")?;
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let read = CertificateDer::pem_file_iter(&file).map_err(|e| wrong(&e))?;
    // One that a system has and that does not parse is no reason not to use the others.
    roots.add_parsable_certificates(read.filter_map(Result::ok));
    if roots.is_empty() {
        return Err(wrong(&"no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Runs a program with the notice on its standard input; exit code 0 means that it was taken. It is killed when the time
/// is over, with what it started.
async fn command(run: &[String], notice: &[u8]) -> Result<(), String> {
    let (program, arguments) = run.split_first().ok_or("no program")?;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("{program}: {e}"))?;
    let group = OwnGroup::of(&child);
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read it may still do its work.
        let _ = stdin.write_all(notice).await;
    }
    let status = child.wait().await.map_err(|e| format!("{program}: {e}"))?;
    group.over();
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}

/// Between two tries of one notice.
pub fn pause(tries: u32) -> Span {
    Span::secs(1 << tries.min(6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let apart = |url| parts(url).map(|(tls, host, port, path)| (tls, host.to_owned(), port, path));
        assert_eq!(apart("https://a.b/c?d"), Some((true, "a.b".into(), 443, "/c?d".into())));
        assert_eq!(apart("http://127.0.0.1:80"), Some((false, "127.0.0.1".into(), 80, "/".into())));
        assert_eq!(apart("http://[::1]:8080?x"), Some((false, "::1".into(), 8_080, "/?x".into())));
        assert_eq!(apart("http://[::1]/"), Some((false, "::1".into(), 80, "/".into())));
        assert_eq!(apart("ftp://a"), None);
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        assert_eq!([0, 1, 5, 6, 99].map(pause), [1, 2, 32, 64, 64].map(Span::secs));
    }
}
