//! Traces for a collector: each peer sends the spans that it notes itself, over OTLP's HTTP with protobuf.
//!
//! It listens to the peer's own events, which are there anyway, so nothing waits for it: a collector that is slow or away
//! costs spans, which are counted, never a commit. Ids and times are the mesh's own, so the spans of all peers make one
//! tree wherever they arrive.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::core::api::Event;
use crate::model::trace;
use crate::runtime::PeerHandle;

/// Spans that may wait; what comes while so many do is dropped.
const QUEUE_MAX: usize = 8_192;
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// Spans are sent this often, or as soon as a batch is full.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// A request may take this long;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// a batch is tried so often, with a pause that doubles from the first to the last.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(500);
/// Where systems keep the certificates that they trust.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// A collector's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    tls: bool,
    host: String,
    port: u16,
    path: String,
    headers: Vec<(String, String)>,
    ca: Option<PathBuf>,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

impl Endpoint {
    /// As configured, else as OpenTelemetry's own variables say: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` in full,
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` without the path, `OTEL_EXPORTER_OTLP_HEADERS` as `name=value,…`. None exports
    /// nothing. The error says what is wrong with an address.
    pub fn find(
        configured: Option<&str>,
        ca: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let set = |name: &str| variable(name).filter(|v| !v.is_empty());
        let base = configured.map(str::to_owned);
        let (text, whole) = match (base, set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) {
            (Some(base), _) => (base, false),
            (None, Some(whole)) => (whole, true),
            (None, None) => match set("OTEL_EXPORTER_OTLP_ENDPOINT") {
                Some(base) => (base, false),
                None => return Ok(None),
            },
        };
        let mut found = Self::parse(&text)?;
        if !whole {
            found.path = format!("{}/v1/traces", found.path.trim_end_matches('/'));
        }
        let headers = set("OTEL_EXPORTER_OTLP_TRACES_HEADERS").or_else(|| set("OTEL_EXPORTER_OTLP_HEADERS"));
        for pair in headers.unwrap_or_default().split(',').filter(|p| !p.trim().is_empty()) {
            let (name, value) = pair.split_once('=').ok_or("a header of OTLP is not name=value")?;
            let (name, value) = (decoded(name.trim())?, decoded(value.trim())?);
            // Never its value: it is a secret more often than not.
            HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("{name:?} is no name of a header of OTLP"))?;
            HeaderValue::from_str(&value).map_err(|_| format!("the header {name} of OTLP cannot be sent"))?;
            found.headers.push((name, value));
        }
        found.ca = ca.map(Path::to_owned);
        Ok(Some(found))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let uri: hyper::Uri =
            text.parse().map_err(|e| format!("{text:?} is no address of a collector: {e}"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(format!("{text:?} is no address of a collector: write http://HOST:4318")),
        };
        let host = uri.host().filter(|h| !h.is_empty()).ok_or("the address of a collector has no host")?;
        Ok(Self {
            tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: uri.path().to_owned(),
            headers: Vec::new(),
            ca: None,
        })
    }
}

/// `%20` and the like: OpenTelemetry writes the values of its variables as W3C Baggage does.
fn decoded(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "a header of OTLP has a % that is not two hex digits of UTF-8: write % as %25";
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        let mut digit =
            || bytes.next().and_then(|d| char::from(d).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        out.push(if b == b'%' { digit().zip(digit()).map(|(a, b)| a * 16 + b).ok_or(WRONG)? } else { b });
    }
    String::from_utf8(out).map_err(|_| WRONG)
}

/// What became of the spans, for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// An endpoint is set.
    pub on: std::sync::atomic::AtomicBool,
    /// A collector took them.
    pub sent: AtomicU64,
    /// Lost here: the queue was full, or the collector did not take them in time.
    pub dropped: AtomicU64,
    /// Requests that failed, repeated ones counted each.
    pub failures: AtomicU64,
}

/// Sends spans until `cancel`. A last batch that waits then is sent once.
pub async fn export(
    handle: Arc<dyn PeerHandle>,
    to: Endpoint,
    counters: Arc<Counters>,
    cancel: CancellationToken,
) {
    counters.on.store(true, Ordering::Relaxed);
    let about = handle.about();
    let tls = match to.tls.then(|| tls(to.ca.as_deref())).transpose() {
        Ok(tls) => tls,
        Err(why) => return tracing::error!("traces are not exported to {to}: {why}"),
    };
    let way = Arc::new(Way { to, tls, pause: PAUSE, resource: resource(&about), counters: counters.clone() });
    let mut events = handle.journal();
    let mut queue: VecDeque<Span> = VecDeque::new();
    let mut sending: Option<tokio::task::JoinHandle<()>> = None;
    let mut ticks = tokio::time::interval(SEND_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let due = tokio::select! { biased;
            () = cancel.cancelled() => break,
            event = events.recv() => match event {
                Ok(event) => {
                    take(&event, &mut queue, &counters);
                    queue.len() >= BATCH_MAX
                }
                Err(RecvError::Lagged(missed)) => {
                    counters.dropped.fetch_add(missed, Ordering::Relaxed);
                    false
                }
                Err(RecvError::Closed) => break,
            },
            _ = ticks.tick() => true,
        };
        if due && !queue.is_empty() && sending.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
            let batch = queue.drain(..queue.len().min(BATCH_MAX)).collect();
            sending = Some(tokio::spawn(way.clone().send(batch)));
        }
    }
    if let Some(sending) = sending {
        sending.abort();
    }
    let last: Vec<Span> = queue.drain(..).take(BATCH_MAX).collect();
    if !last.is_empty() {
        // The peer stops: one short try.
        let _late = tokio::time::timeout(Duration::from_secs(1), way.once(&body(&way.resource, &last))).await;
    }
}

fn take(event: &Event, queue: &mut VecDeque<Span>, counters: &Counters) {
    for span in spans(event) {
        if queue.len() >= QUEUE_MAX {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.push_back(span);
        }
    }
}

fn text(key: &str, value: impl Into<String>) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(value.into())) });
    KeyValue { key: key.into(), value, ..KeyValue::default() }
}

fn number(key: &str, value: u64) -> KeyValue {
    let value = Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX));
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn resource(about: &crate::runtime::handle::SelfInfo) -> Resource {
    let attributes = vec![
        text("service.name", "starling"),
        text("service.instance.id", about.name.as_str()),
        text("service.version", &*about.version),
        text("starling.mesh", &*about.mesh),
    ];
    Resource { attributes, ..Resource::default() }
}

/// The spans of an event, as OTLP has them.
fn spans(event: &Event) -> Vec<Span> {
    let (Some(job), Some(id)) = (event.job, event.trace) else { return Vec::new() };
    let nanos = |at: crate::base::WallTime| at.0.saturating_mul(1_000_000);
    let one = |note: &trace::SpanNote| {
        let mut attributes = vec![text("starling.job", job.to_string())];
        attributes.extend(event.tenant.as_ref().map(|t| text("starling.tenant", t)));
        attributes.extend((note.epoch.0 > 0).then(|| text("starling.epoch", note.epoch.to_string())));
        attributes.extend(note.cluster.as_ref().map(|c| text("starling.cluster", c.as_str())));
        attributes.extend(note.bytes.map(|b| number("starling.bytes", b.0)));
        attributes.extend((!note.note.is_empty()).then(|| text("starling.note", &*note.note)));
        let status =
            note.failed.then(|| Status { message: note.note.clone(), code: StatusCode::Error as i32 });
        let kind = if note.name == trace::SUBMIT { SpanKind::Server } else { SpanKind::Internal };
        Span {
            trace_id: id.0.to_vec(),
            span_id: note.id(&id, &job).0.to_vec(),
            parent_span_id: note.parent(&id, &job).map(|p| p.0.to_vec()).unwrap_or_default(),
            name: note.name.clone(),
            kind: kind as i32,
            start_time_unix_nano: nanos(note.from),
            end_time_unix_nano: nanos(note.to),
            attributes,
            status,
            ..Span::default()
        }
    };
    event.spans.iter().map(one).collect()
}

fn body(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let scope = InstrumentationScope { name: "starling".into(), ..InstrumentationScope::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans: spans.to_vec(), ..ScopeSpans::default() }];
    let resource_spans =
        vec![ResourceSpans { resource: Some(resource.clone()), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

struct Way {
    to: Endpoint,
    tls: Option<Arc<rustls::ClientConfig>>,
    pause: Duration,
    resource: Resource,
    counters: Arc<Counters>,
}

/// Why a batch was not taken.
enum Failed {
    /// It may be taken later.
    Again(String),
    /// The collector does not want it.
    Refused(String),
}

impl Way {
    async fn send(self: Arc<Self>, batch: Vec<Span>) {
        let (body, count) = (body(&self.resource, &batch), batch.len() as u64);
        let mut pause = self.pause;
        for _ in 0..TRIES {
            match self.once(&body).await {
                Ok(()) => {
                    self.counters.sent.fetch_add(count, Ordering::Relaxed);
                    return;
                }
                Err(Failed::Refused(why)) => {
                    tracing::warn!("{} refused {count} spans: {why}", self.to);
                    break;
                }
                Err(Failed::Again(why)) => tracing::info!("{} did not take {count} spans: {why}", self.to),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.counters.dropped.fetch_add(count, Ordering::Relaxed);
    }

    async fn once(&self, body: &[u8]) -> Result<(), Failed> {
        let slow = |_| Failed::Again(format!("no answer within {} s", ANSWER_WITHIN.as_secs()));
        let done = tokio::time::timeout(ANSWER_WITHIN, self.post(body)).await.map_err(slow);
        let done = done.and_then(|done| done);
        if done.is_err() {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    async fn post(&self, body: &[u8]) -> Result<(), Failed> {
        let again = |e: std::io::Error| Failed::Again(e.to_string());
        let tcp = TcpStream::connect((self.to.host.as_str(), self.to.port)).await.map_err(again)?;
        match &self.tls {
            None => self.exchange(TokioIo::new(tcp), body).await,
            Some(tls) => {
                let name =
                    ServerName::try_from(self.to.host.clone()).map_err(|e| Failed::Refused(e.to_string()))?;
                let connector = tokio_rustls::TlsConnector::from(tls.clone());
                self.exchange(TokioIo::new(connector.connect(name, tcp).await.map_err(again)?), body).await
            }
        }
    }

    async fn exchange<T>(&self, wire: T, body: &[u8]) -> Result<(), Failed>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let again = |e: hyper::Error| Failed::Again(e.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(wire).await.map_err(again)?;
        let driver = tokio::spawn(async move { drop(connection.await) });
        let _ends = tokio_util::task::AbortOnDropHandle::new(driver);
        let mut request = hyper::Request::post(&self.to.path)
            .header("host", format!("{}:{}", self.to.host, self.to.port))
            .header("content-type", "application/x-protobuf")
            .header("user-agent", concat!("starling/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.to.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Bytes::copy_from_slice(body)))
            .map_err(|e| Failed::Refused(e.to_string()))?;
        let response = sender.send_request(request).await.map_err(again)?;
        let status = response.status();
        // A few bytes of what it says are enough; the rest is left unread.
        let said = http_body_util::Limited::new(response.into_body(), 4_096).collect().await;
        let said = said.map(|b| String::from_utf8_lossy(&b.to_bytes()).chars().take(200).collect::<String>());
        match status.as_u16() {
            200..=299 => Ok(()),
            429 | 502..=504 => Err(Failed::Again(status.to_string())),
            _ => Err(Failed::Refused(format!("{status} {}", said.unwrap_or_default()))),
        }
    }
}

/// Trusts the given certificates, else the system's.
fn tls(ca: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, String> {
    let given = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let system = || BUNDLES.iter().map(PathBuf::from).find(|p| p.exists());
    let file = ca.map(Path::to_owned).or(given).or_else(system);
    let file = file.ok_or("this system has no bundle of certificates: set [trace] ca")?;
    let wrong = |e: String| format!("{}: {e}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&file).map_err(|e| wrong(e.to_string()))? {
        // Some systems carry roots that are not understood: the others do.
        let _ = certificate.map(|c| roots.add(c));
    }
    if roots.is_empty() {
        return Err(wrong("no certificate in it".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
#[path = "otlp_tests.rs"]
mod tests;
