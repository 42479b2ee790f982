//! Stands between the peer and slurmrestd, on a unix socket of its own, and does what networks and tired servers do.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};

/// What it does to each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Requests have their effect at once, and the answer comes after so long.
    Late(Duration),
    /// The connection is cut, after the request has had its effect.
    Reset,
    /// Half of the answer, and then nothing.
    Truncate,
    /// A 500 in place of the answer.
    Error,
    /// Lists of nothing, whoever is asked about.
    EmptyLists,
    /// Times of day that are so many seconds off.
    Skew(i64),
}

pub struct Proxy {
    socket: PathBuf,
    upstream: PathBuf,
    fault: Mutex<Fault>,
    /// Times that the list of all jobs was asked for.
    lists: AtomicU64,
}

impl Proxy {
    pub fn start(folder: &Path, upstream: PathBuf) -> Arc<Self> {
        let socket = folder.join("proxy.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let (fault, lists) = (Mutex::new(Fault::None), AtomicU64::new(0));
        let proxy = Arc::new(Self { socket, upstream, fault, lists });
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let proxy = serving.clone();
                let service = hyper::service::service_fn(move |request| proxy.clone().pass(request));
                let serving = hyper::server::conn::http1::Builder::new();
                // An error cuts the connection, as it is to.
                tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
            }
        });
        proxy
    }

    /// As a peer's configuration has it.
    pub fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("a lock") = fault;
    }

    pub fn lists(&self) -> u64 {
        self.lists.load(Ordering::SeqCst)
    }

    async fn pass(self: Arc<Self>, request: Request<Incoming>) -> std::io::Result<Response<Full<Bytes>>> {
        if request.method() == Method::GET && request.uri().path().ends_with("/jobs") {
            self.lists.fetch_add(1, Ordering::SeqCst);
        }
        let fault = *self.fault.lock().expect("a lock");
        let other = |e: hyper::Error| std::io::Error::other(e);
        let stream = UnixStream::connect(&self.upstream).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(other)?;
        tokio::spawn(connection);
        let (mut parts, body) = sender.send_request(request).await.map_err(other)?.into_parts();
        let mut text = body.collect().await.map_err(other)?.to_bytes();
        parts.headers.remove("content-length");
        match fault {
            Fault::None => {}
            Fault::Late(time) => tokio::time::sleep(time).await,
            Fault::Reset => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Fault::Truncate => text = text.slice(..text.len() / 2),
            Fault::Error => {
                let text = Full::new(Bytes::from("internal error"));
                return Ok(Response::builder().status(500).body(text).expect("a response"));
            }
            Fault::EmptyLists => text = changed(text, empty),
            Fault::Skew(seconds) => text = changed(text, |answer| skew(answer, seconds)),
        }
        Ok::<_, Infallible>(Response::from_parts(parts, Full::new(text))).map_err(|never| match never {})
    }
}

fn changed(text: Bytes, change: impl FnOnce(&mut Value)) -> Bytes {
    let Ok(mut answer) = serde_json::from_slice::<Value>(&text) else { return text };
    change(&mut answer);
    answer.to_string().into()
}

fn empty(answer: &mut Value) {
    for list in ["jobs", "nodes"] {
        if answer[list].is_array() {
            answer[list] = Value::Array(Vec::new());
        }
    }
}

/// Every time of day in it: they have ten digits, and nothing else in these answers has.
fn skew(value: &mut Value, seconds: i64) {
    match value {
        Value::Number(n) => {
            if let Some(at) = n.as_i64().filter(|at| (1_500_000_000..3_000_000_000).contains(at)) {
                *value = (at + seconds).into();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|v| skew(v, seconds)),
        Value::Object(all) => all.values_mut().for_each(|v| skew(v, seconds)),
        _ => {}
    }
}
