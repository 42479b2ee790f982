//! A mesh of real peer processes on loopback, each with its own state folder; all end with the value.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::http::Method;
use futures::StreamExt;
use serde_json::Value;
use starling::surface::client::{Client, Target};

use super::{bar, boot_us};

const UP_WITHIN: Duration = Duration::from_secs(60);
/// Peers that start at the same time.
const AT_ONCE: usize = 4;

/// A process that is ended when this goes.
pub struct Proc(Child);

impl Proc {
    /// Starts it with everything it says in a file.
    pub fn start(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::create(log).with_context(|| log.display().to_string())?;
        let command = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self(command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?))
    }

    /// It ended by itself.
    pub fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Asks it to end.
    pub fn term(&self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // It may have ended already: its id is ours until it is waited for.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.term();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One peer of a fleet.
pub struct FleetPeer {
    pub name: String,
    pub socket: PathBuf,
    pub client: Client,
    /// None where it runs in this process.
    process: Option<Proc>,
}

impl FleetPeer {
    /// A peer of this process that serves its API there.
    pub fn inside(name: &str, socket: PathBuf) -> anyhow::Result<Self> {
        let client = Client::new(Target::Unix(socket.clone()), None, None)?;
        Ok(Self { name: name.into(), socket, client, process: None })
    }
}

/// A mesh that agrees on its members.
pub struct Fleet {
    pub peers: Vec<FleetPeer>,
    /// From the first start until every peer saw all others alive.
    pub formed: Duration,
    // After the peers, which write into it.
    pub dir: tempfile::TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // All at once, then each is waited for.
        self.peers.iter().filter_map(|p| p.process.as_ref()).for_each(Proc::term);
    }
}

/// Through whom peer `n` joins: a peer answers only a few strangers of one address in a short time.
/// It is far enough below `n` to be up.
pub fn via(n: usize) -> usize {
    (n - 1) / 6
}

/// A temporary folder on the disk that the build is on.
pub fn folder() -> anyhow::Result<tempfile::TempDir> {
    let base = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    std::fs::create_dir_all(&base)?;
    Ok(tempfile::Builder::new().prefix("b").tempdir_in(base)?)
}

impl Fleet {
    /// Starts `count` peers with these lines in their configuration.
    pub async fn start(count: usize, config: &str) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let dir = folder()?;
        let progress = bar(count as u64 * 2, &format!("starting {count} peers"));
        let first = start_peer(dir.path(), 0, config, None).await?;
        progress.inc(1);
        let mut peers = vec![first];
        let root = dir.path().to_owned();
        let starts = futures::stream::iter(1..count).map(|n| {
            let root = root.clone();
            async move {
                let client =
                    Client::new(Target::Unix(root.join(format!("p{:02}/api.sock", via(n)))), None, None)?;
                let made: Value = post(&client, "/v1/tokens", Some("{}")).await?;
                let join = format!("{}@{}", text(&made, "token")?, text(&made, "listen")?);
                start_peer(&root, n, config, Some(join)).await
            }
        });
        let mut starts = std::pin::pin!(starts.buffered(AT_ONCE));
        while let Some(peer) = starts.next().await {
            peers.push(peer?);
            progress.inc(1);
        }
        let mut fleet = Self { peers, formed: Duration::ZERO, dir };
        let limit = Duration::from_secs(60 + count as u64);
        for peer in &fleet.peers {
            while alive(&peer.client).await.unwrap_or(0) < count {
                if begun.elapsed() > UP_WITHIN + limit {
                    let seen = alive(&peer.client).await.unwrap_or(0);
                    bail!("{} sees {seen} of {count} peers after {} s", peer.name, begun.elapsed().as_secs());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        fleet.formed = begun.elapsed();
        Ok(fleet)
    }
}

async fn start_peer(root: &Path, n: usize, config: &str, join: Option<String>) -> anyhow::Result<FleetPeer> {
    let name = format!("p{n:02}");
    let state = root.join(&name);
    let file = root.join(format!("{name}.toml"));
    std::fs::write(&file, format!("name = \"{name}\"\n{config}\n[api]\nlisten = \"off\"\n"))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.arg("up").arg("--config").arg(&file).arg("--state").arg(&state);
    command.args(["--listen", "127.0.0.1:0"]);
    if let Some(join) = join {
        command.args(["--join", &join]);
    }
    let log = root.join(format!("{name}.log"));
    let mut process = Proc::start(command, &log)?;
    let socket = state.join("api.sock");
    let client = Client::new(Target::Unix(socket.clone()), None, None)?;
    let begun = Instant::now();
    while client.get::<Value>("/healthz").await.is_err() {
        if begun.elapsed() > UP_WITHIN || process.ended() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            bail!("{name} is not up after {} s: {said}", begun.elapsed().as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(FleetPeer { name, socket, client, process: Some(process) })
}

/// Clusters that this peer sees alive.
pub async fn alive(client: &Client) -> anyhow::Result<usize> {
    let document: Value = client.get("/v1/clusters").await?;
    let clusters = document["clusters"].as_array().context("no list of clusters")?;
    Ok(clusters.iter().filter(|c| c["liveness"] == "alive").count())
}

/// Posts a body, if any, and reads the answer.
pub async fn post(client: &Client, path: &str, body: Option<&str>) -> anyhow::Result<Value> {
    let payload = body.map(|b| ("application/json", b.as_bytes().to_vec()));
    client.send(Method::POST, path, payload).await.with_context(|| format!("POST {path}"))
}

/// A text field of a document.
pub fn text<'a>(document: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    document[field].as_str().with_context(|| format!("no {field} in {document}"))
}

/// What a peer's watcher saw: `heard` by the peer's own stamp, `seen` when the event was read here.
#[derive(Debug, Clone)]
pub struct Heard {
    pub peer: usize,
    pub what: String,
    pub from: String,
    pub heard: u64,
    pub seen: u64,
}

/// Watches one peer's `heard.` events until the channel or the peer is gone.
pub async fn watch(
    peer: usize,
    client: Client,
    to: tokio::sync::mpsc::UnboundedSender<Heard>,
) -> anyhow::Result<()> {
    let within = Duration::from_secs(10);
    let mut answer = client.open(Method::GET, "/v1/events?kind=heard.", None, &[], within).await?;
    tokio::spawn(async move {
        let mut text = String::new();
        while let Ok(Some(chunk)) = answer.chunk().await {
            let seen = boot_us();
            text.push_str(&String::from_utf8_lossy(&chunk));
            while let Some(end) = text.find('\n') {
                let line: String = text.drain(..=end).collect();
                let Some(heard) = line.strip_prefix("data:").and_then(|data| read_heard(peer, data, seen))
                else {
                    continue;
                };
                if to.send(heard).is_err() {
                    return;
                }
            }
        }
    });
    Ok(())
}

/// `… from PEER at MICROSECONDS`, as the peer writes it.
fn read_heard(peer: usize, data: &str, seen: u64) -> Option<Heard> {
    let document: Value = serde_json::from_str(data).ok()?;
    let text = document["text"].as_str()?;
    let (what, rest) = text.rsplit_once(" from ")?;
    let (from, at) = rest.split_once(" at ")?;
    let what = format!("{} {what}", document["kind"].as_str()?);
    Some(Heard { peer, what, from: from.into(), heard: at.parse().ok()?, seen })
}
