//! Nodes of Debian's `etcd` on loopback, default settings (so with fsync), asked over gRPC on connections
//! that stay open. The one call needed, `Put`, is spelled by hand: a framework would be most of the code.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::common::fixed_port;
use crate::common::fleet::Proc;

/// Nodes that agree on a leader.
pub struct Etcd {
    /// Where clients ask.
    pub clients: Vec<String>,
    pub version: String,
    _nodes: Vec<Proc>,
    _dir: tempfile::TempDir,
}

/// A connection to one node.
pub struct Connection(hyper::client::conn::http2::SendRequest<Full<Bytes>>, String);

impl Etcd {
    /// Starts `count` nodes and waits until each takes a write.
    pub async fn start(count: usize) -> anyhow::Result<Self> {
        let out = Command::new("etcd")
            .arg("--version")
            .output()
            .context("etcd is not installed (apt-get install etcd-server)")?;
        let version = String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or("etcd").to_owned();
        let dir = crate::common::fleet::folder()?;
        let ports: Vec<(String, String)> =
            (0..count).map(|_| Ok((fixed_port()?, fixed_port()?))).collect::<anyhow::Result<_>>()?;
        let cluster: Vec<String> =
            ports.iter().enumerate().map(|(n, (peer, _))| format!("e{n}=http://{peer}")).collect();
        let mut nodes = Vec::new();
        for (n, (peer, client)) in ports.iter().enumerate() {
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("e{n}"), "--log-level", "error"]);
            command.arg("--data-dir").arg(dir.path().join(format!("e{n}")));
            command.args(["--listen-peer-urls", &format!("http://{peer}")]);
            command.args(["--initial-advertise-peer-urls", &format!("http://{peer}")]);
            command.args(["--listen-client-urls", &format!("http://{client}")]);
            command.args(["--advertise-client-urls", &format!("http://{client}")]);
            command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
            nodes.push(Proc::start(command, &dir.path().join(format!("e{n}.log")))?);
        }
        let etcd =
            Self { clients: ports.into_iter().map(|(_, c)| c).collect(), version, _nodes: nodes, _dir: dir };
        let begun = Instant::now();
        for node in 0..count {
            loop {
                let put = async { etcd.connect(node).await?.put(b"ready", b"1").await };
                match put.await {
                    Ok(()) => break,
                    Err(why) if begun.elapsed() > Duration::from_secs(30) => return Err(why),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        }
        Ok(etcd)
    }

    /// Opens a connection to a node.
    pub async fn connect(&self, node: usize) -> anyhow::Result<Connection> {
        let address = &self.clients[node % self.clients.len()];
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection(sender, address.clone()))
    }
}

impl Connection {
    /// `etcdserverpb.KV/Put`: answered once a majority has it on disk.
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let mut message = Vec::new();
        for (tag, bytes) in [(0x0a, key), (0x12, value)] {
            message.push(tag);
            let mut length = bytes.len();
            while length >= 0x80 {
                message.push(u8::try_from(length & 0x7f)? | 0x80);
                length >>= 7;
            }
            message.push(u8::try_from(length)?);
            message.extend_from_slice(bytes);
        }
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        body.extend_from_slice(&message);
        let request = Request::post(format!("http://{}/etcdserverpb.KV/Put", self.1))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Full::new(Bytes::from(body)))?;
        self.0.ready().await?;
        let answer = self.0.send_request(request).await?;
        let at_once = answer.headers().get("grpc-status").cloned();
        let all = answer.into_body().collect().await?;
        let status = all.trailers().and_then(|t| t.get("grpc-status")).cloned().or(at_once);
        match status {
            Some(code) if code == "0" => Ok(()),
            other => bail!("etcd answered {other:?} to a put"),
        }
    }
}
