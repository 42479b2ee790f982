//! Stands between the peer and the API server and does what networks and tired servers do.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::server::Body;

/// What it does to each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Nothing for so long.
    Slow(Duration),
    /// Requests have their effect at once, and the answer comes after so long.
    Late(Duration),
    /// The connection is cut, after the request has had its effect.
    Reset,
    /// Half of the answer, and then nothing.
    Truncate,
    /// A 500 in place of the answer.
    Error,
    /// Lists of nothing.
    EmptyLists,
    /// Every event of a watch twice.
    Twice,
    /// A server's clock that is ten minutes off.
    Skew,
}

pub struct Proxy {
    address: SocketAddr,
    upstream: SocketAddr,
    fault: Mutex<Fault>,
    away: AtomicBool,
    connections: Mutex<CancellationToken>,
    pub requests: AtomicU64,
}

impl Proxy {
    pub async fn start(upstream: &str) -> Arc<Self> {
        let upstream = upstream.trim_start_matches("http://").parse().expect("an address");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = Arc::new(Self {
            address,
            upstream,
            fault: Mutex::new(Fault::None),
            away: AtomicBool::new(false),
            connections: Mutex::default(),
            requests: AtomicU64::new(0),
        });
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let proxy = serving.clone();
                if proxy.away.load(Ordering::SeqCst) {
                    continue;
                }
                let cut = proxy.connections.lock().expect("a lock").clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let proxy = proxy.clone();
                        async move { proxy.pass(request).await }
                    });
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    // An error cuts the connection, as it is to.
                    tokio::select! { () = cut.cancelled() => {}, _ = connection => {} }
                });
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("a lock") = fault;
    }

    /// What is open is cut: watches, too.
    pub fn cut(&self) {
        std::mem::take(&mut *self.connections.lock().expect("a lock")).cancel();
    }

    /// The server cannot be reached, and goes on for everybody else.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
        if away {
            self.cut();
        }
    }

    async fn pass(self: Arc<Self>, request: Request<Incoming>) -> std::io::Result<Response<Body>> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = *self.fault.lock().expect("a lock");
        let other = |e: hyper::Error| std::io::Error::other(e);
        let path = request.uri().to_string();
        let stream = TcpStream::connect(self.upstream).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(other)?;
        tokio::spawn(connection);
        if let Fault::Slow(time) = fault {
            tokio::time::sleep(time).await;
        }
        let (mut parts, body) = sender.send_request(request).await.map_err(other)?.into_parts();
        if let Fault::Late(time) = fault {
            tokio::time::sleep(time).await;
        }
        let streamed = path.contains("watch=true") || path.contains("/log?");
        match fault {
            Fault::Reset => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Fault::Error => {
                let text =
                    Full::new(Bytes::from("internal error")).map_err(|never: Infallible| match never {});
                return Ok(Response::builder().status(500).body(text.boxed_unsync()).expect("a response"));
            }
            Fault::Skew => {
                parts.headers.insert("date", "Thu, 01 Jan 2015 00:10:00 GMT".parse().expect("a header"));
            }
            _ => {}
        }
        if streamed {
            let frames = futures::stream::unfold((body, fault, 0_usize), |(mut body, fault, n)| async move {
                let frame = body.frame().await?;
                let data = frame.ok()?.into_data().ok()?;
                let data = match fault {
                    Fault::Twice => [data.clone(), data].concat().into(),
                    Fault::Truncate if n > 0 => data.slice(..data.len() / 2),
                    _ => data,
                };
                Some((Ok::<_, std::io::Error>(Frame::data(data)), (body, fault, n + 1)))
            });
            return Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()));
        }
        let mut text = body.collect().await.map_err(other)?.to_bytes();
        parts.headers.remove("content-length");
        match fault {
            Fault::Truncate => text = text.slice(..text.len() / 2),
            Fault::EmptyLists => {
                if let Ok(mut list) = serde_json::from_slice::<Value>(&text)
                    && list["items"].is_array()
                {
                    list["items"] = Value::Array(Vec::new());
                    text = list.to_string().into();
                }
            }
            _ => {}
        }
        let body = Full::new(text).map_err(|never: Infallible| match never {});
        Ok(Response::from_parts(parts, body.boxed_unsync()))
    }
}
