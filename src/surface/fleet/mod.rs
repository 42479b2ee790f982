//! A mesh of real peers on this machine, for people who try Starling and for tests: started, watched,
//! broken, stopped.
#![allow(clippy::disallowed_methods, reason = "starts and times real processes")]

pub mod acceptance;
pub mod chaos;
pub mod demo;
mod judgement;
mod live;
pub mod network;
pub mod replay;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::client::{Client, ClientFailure, Target};
use super::documents::{ClusterList, JobList, LinkList, SubmitDocument};
use crate::backends::local::clock::TEST_CLOCK;
use crate::base::{PeerName, Span};
use crate::model::NodeCapacity;
use crate::model::config::Config;
use crate::model::report::Liveness;
use crate::model::spec::JobSpec;
use crate::model::spec_input::render_spec;
use crate::transport::private;

/// Regions of the clusters, in turn.
const REGIONS: [&str; 8] =
    ["eu-central", "eu-north", "us-east", "us-west", "ap-northeast", "ap-south", "sa-east", "af-south"];
/// In a peer's folder.
const CLOCK_FILE: &str = "clock";
/// A peer must answer within this after its start.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// All peers must agree within this.
const AGREE_WITHIN: Duration = Duration::from_secs(90);

/// Why a mesh could not be started or watched.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Files or processes of this machine.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// A peer ended, or did not come up in time.
    #[error("peer {0} did not come up: {1} (its log: {2})")]
    Peer(PeerName, String, PathBuf),
    /// The peers do not see one another in time.
    #[error("the peers did not agree within {0:?}: {1}")]
    Agree(Duration, String),
    /// A request failed.
    #[error("{0}")]
    Ask(#[from] ClientFailure),
    /// There is no network for the peers.
    #[error("{0}")]
    Network(#[from] network::NetworkError),
    /// What was asked for cannot be done.
    #[error("{0}")]
    Invalid(String),
    /// Stopped by the person at the keyboard.
    #[error("interrupted")]
    Interrupted,
}

fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> FleetError {
    let what = what.to_string();
    move |e| FleetError::Io(what, e)
}

/// One peer process.
pub struct FleetPeer {
    /// Name.
    pub name: PeerName,
    /// Its folder: `starling.toml`, `log`, `state/`.
    pub dir: PathBuf,
    /// Asks its API.
    pub client: Client,
    child: Option<Child>,
    netns: Option<PathBuf>,
}

impl FleetPeer {
    /// Its state folder.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The file of its test clock: its process has one if this is there when it starts.
    pub fn clock_file(&self) -> PathBuf {
        self.dir.join(CLOCK_FILE)
    }

    /// Its process was started and nobody has waited for its end.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// The number of its process, while it has one.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// How its process ended, if it did so by itself.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        let ended = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(ended)
    }

    /// Sends its process a signal; nothing where there is none.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
    }
}

/// A mesh of peers, each a process of its own. Dropping it ends them.
pub struct Fleet {
    /// In order of their names.
    pub peers: Vec<FleetPeer>,
    /// Where everything lies.
    pub dir: PathBuf,
    /// Removes `dir` at the end, unless it was given or is to be kept.
    temporary: Option<PathBuf>,
    exe: PathBuf,
}

/// Has the last word on the configuration of a peer, given by its place in the mesh.
pub type Adapt = dyn Fn(u32, &mut Config) + Send + Sync;

/// What the clusters of a mesh are like.
#[derive(Default)]
pub struct Shape<'a> {
    /// How many.
    pub clusters: u32,
    /// Node groups of each.
    pub nodes: Vec<NodeCapacity>,
    /// Logs of so many ended attempts are kept.
    pub attempts_kept: usize,
    /// The binary that they run; none means this program's own.
    pub exe: Option<PathBuf>,
    /// Where each lives; those that are not named live on loopback.
    pub hosts: &'a [network::Host],
    /// What else is different from the defaults of a demo.
    pub adapt: Option<&'a Adapt>,
}

impl Fleet {
    /// Starts the first peer, lets the others join it with tokens, and waits until all agree.
    pub async fn start(
        shape: &Shape<'_>,
        dir: Option<&Path>,
        mut say: impl FnMut(&str),
    ) -> Result<Self, FleetError> {
        let exe = match &shape.exe {
            Some(exe) => exe.clone(),
            None => std::env::current_exe().map_err(io("this program's own path"))?,
        };
        let (dir, temporary) = match dir {
            Some(dir) => (dir.to_owned(), None),
            None => {
                let dir = temporary_dir()?;
                (dir.clone(), Some(dir))
            }
        };
        let mut fleet = Fleet { peers: Vec::new(), dir, temporary, exe };
        for i in 0..shape.clusters {
            fleet.add_peer(shape, i)?;
        }
        fleet.spawn(0, None)?;
        fleet.ready(0).await?;
        say(&format!("{} is up and starts the mesh", fleet.peers[0].name));
        for i in 1..fleet.peers.len() {
            // Through the one before it: any member admits.
            let join = fleet.token(i - 1).await?;
            fleet.spawn(i, Some(&join))?;
            fleet.ready(i).await?;
            say(&format!("{} joined with a token", fleet.peers[i].name));
        }
        fleet.agree().await?;
        Ok(fleet)
    }

    fn add_peer(&mut self, shape: &Shape<'_>, i: u32) -> Result<(), FleetError> {
        let name = PeerName::new(&format!("c{}", i + 1)).map_err(|e| FleetError::Invalid(e.to_string()))?;
        let dir = self.dir.join(name.as_str());
        private::make(&dir).map_err(io(dir.display()))?;
        let mut config = Config {
            name: Some(name.clone()),
            region: REGIONS[i as usize % REGIONS.len()].into(),
            listen: ([127, 0, 0, 1], 0).into(),
            nodes: shape.nodes.clone(),
            price_milli: 1_000 + 250 * u64::from(i % 4),
            pue_milli: 1_100 + 50 * (i % 4),
            ..Config::default()
        };
        config.api.listen = None;
        config.labels.insert("net".into(), "ib".into());
        config.timing.renew_every = Span::millis(500);
        config.timing.margin = Span::secs(1);
        config.timing.probe_every = Some(Span::secs(30));
        config.limits.attempts_kept = shape.attempts_kept;
        config.limits.disk_reserve = crate::base::Bytes::mib(64);
        let host = shape.hosts.get(i as usize);
        if let Some(host) = host {
            config.listen = (host.address, crate::model::config::LISTEN_PORT).into();
        }
        if let Some(adapt) = shape.adapt {
            adapt(i, &mut config);
        }
        let file = dir.join("starling.toml");
        // It may hold what opens a door, such as a webhook's address.
        let mut written = private::options();
        let written = written.write(true).create(true).truncate(true).open(&file);
        let written =
            written.and_then(|mut f| std::io::Write::write_all(&mut f, config.to_toml().as_bytes()));
        written.map_err(io(file.display()))?;
        let client = Client::new(Target::Unix(dir.join("state/api.sock")), None, None)?;
        self.peers.push(FleetPeer { name, dir, client, child: None, netns: host.map(|h| h.netns.clone()) });
        Ok(())
    }

    /// A token with which a peer can join at this one: `TOKEN@HOST:PORT`.
    pub async fn token(&self, i: usize) -> Result<String, FleetError> {
        let empty = Some(("application/json", b"{}".to_vec()));
        let made: Value = self.peers[i].client.send(Method::POST, "/v1/tokens", empty).await?;
        let text = |key: &str| made.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(format!("{}@{}", text("token"), text("listen")))
    }

    /// Starts a peer's process; its output goes to its log.
    pub fn spawn(&mut self, i: usize, join: Option<&str>) -> Result<(), FleetError> {
        let peer = &mut self.peers[i];
        let log =
            private::options().create(true).append(true).open(peer.dir.join("log")).map_err(io("log"))?;
        let errors = log.try_clone().map_err(io("log"))?;
        let mut command = match &peer.netns {
            None => Command::new(&self.exe),
            Some(netns) => {
                // Becomes the peer, so that the process is the peer's.
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", netns.display())).arg("--").arg(&self.exe);
                command
            }
        };
        command
            .arg("up")
            .arg("--config")
            .arg(peer.dir.join("starling.toml"))
            .arg("--state")
            .arg(peer.state());
        if let Some(join) = join {
            command.arg("--join").arg(join);
        }
        let clock = peer.clock_file();
        if clock.exists() {
            command.env(TEST_CLOCK, clock);
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors).kill_on_drop(true);
        // A group of its own: an interrupt at the keyboard is this program's to handle.
        command.process_group(0);
        peer.child = Some(command.spawn().map_err(io(self.exe.display()))?);
        Ok(())
    }

    /// Waits until a peer's API answers.
    pub async fn ready(&mut self, i: usize) -> Result<(), FleetError> {
        let begun = Instant::now();
        let peer = &mut self.peers[i];
        let log = peer.dir.join("log");
        loop {
            if let Some(status) = peer.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                return Err(FleetError::Peer(peer.name.clone(), format!("it ended with {status}"), log));
            }
            if peer.client.get::<Value>("/v1/peer").await.is_ok() {
                return Ok(());
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(FleetError::Peer(
                    peer.name.clone(),
                    format!("no answer within {READY_WITHIN:?}"),
                    log,
                ));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Waits until every peer sees every other one alive, with its capacity.
    pub async fn agree(&self) -> Result<(), FleetError> {
        let begun = Instant::now();
        loop {
            let mut missing = Vec::new();
            for peer in self.peers.iter().filter(|p| p.child.is_some()) {
                let seen = peer.client.get::<ClusterList>("/v1/clusters").await;
                let seen = seen.map(|list| list.clusters).unwrap_or_default();
                let good = seen
                    .iter()
                    .filter(|c| c.liveness == Liveness::Alive.as_str() && !c.gpus.is_empty())
                    .count();
                if good < self.alive() {
                    missing.push(format!("{} sees {good} of {}", peer.name, self.alive()));
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > AGREE_WITHIN {
                return Err(FleetError::Agree(AGREE_WITHIN, missing.join(", ")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Peers whose process has not been killed.
    pub fn alive(&self) -> usize {
        self.peers.iter().filter(|p| p.child.is_some()).count()
    }

    /// Submits a job at a peer; its id.
    pub async fn submit(&self, i: usize, spec: &JobSpec, key: &str) -> Result<String, FleetError> {
        Ok(submit(&self.peers[i].client, spec, key, Duration::from_secs(30)).await?)
    }

    /// All jobs of the mesh, as a living peer sees them.
    pub async fn jobs(&self, limit: usize) -> Result<JobList, FleetError> {
        let alive = self.peers.iter().find(|p| p.child.is_some());
        let peer = alive.ok_or_else(|| FleetError::Invalid("no peer is left".into()))?;
        Ok(peer.client.get(&format!("/v1/jobs?limit={limit}")).await?)
    }

    /// All clusters, as a living peer sees them.
    pub async fn clusters(&self) -> Result<ClusterList, FleetError> {
        let alive = self.peers.iter().find(|p| p.child.is_some());
        let peer = alive.ok_or_else(|| FleetError::Invalid("no peer is left".into()))?;
        Ok(peer.client.get("/v1/clusters").await?)
    }

    /// All links, as a living peer sees them.
    pub async fn links(&self) -> Result<LinkList, FleetError> {
        let alive = self.peers.iter().find(|p| p.child.is_some());
        let peer = alive.ok_or_else(|| FleetError::Invalid("no peer is left".into()))?;
        Ok(peer.client.get("/v1/links").await?)
    }

    /// SIGTERM, and the wait for its end; SIGKILL where that does not come within `within`. True if it ended
    /// by itself and well.
    pub async fn terminate(&mut self, i: usize, within: Duration) -> Result<bool, FleetError> {
        self.peers[i].signal(Signal::TERM);
        let Some(child) = self.peers[i].child.as_mut() else { return Ok(true) };
        if let Ok(status) = tokio::time::timeout(within, child.wait()).await {
            self.peers[i].child = None;
            return Ok(status.map_err(io("the end of a peer"))?.success());
        }
        self.kill(i).await?;
        Ok(false)
    }

    /// SIGKILL.
    pub async fn kill(&mut self, i: usize) -> Result<(), FleetError> {
        if let Some(mut child) = self.peers[i].child.take() {
            child.kill().await.map_err(io("kill"))?;
        }
        Ok(())
    }

    /// Ends all peers; their folders go unless they are wanted.
    pub async fn stop(mut self, keep_files: bool) {
        for peer in &self.peers {
            peer.signal(Signal::TERM);
        }
        for peer in &mut self.peers {
            if let Some(child) = peer.child.as_mut() {
                let _late = tokio::time::timeout(Duration::from_secs(15), child.wait()).await;
            }
        }
        if let Some(dir) = self.temporary.take().filter(|_| !keep_files) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }

    /// Leaves the peers running when this program ends.
    pub fn leave(mut self) {
        for peer in &mut self.peers {
            // Not waited for: a child without `kill_on_drop` goes on.
            if let Some(child) = peer.child.take() {
                std::mem::forget(child);
            }
        }
    }
}

/// Submits a job at a peer; its id.
pub async fn submit(
    client: &Client,
    spec: &JobSpec,
    key: &str,
    within: Duration,
) -> Result<String, ClientFailure> {
    let payload = Some(("application/yaml", render_spec(spec).into_bytes()));
    let key = [("idempotency-key", key.to_owned())];
    let made: SubmitDocument = client.json(Method::POST, "/v1/jobs", payload, &key, within).await?;
    Ok(made.id.to_string())
}

/// Runs a demo or replay to its end, or until the person at the keyboard interrupts it.
pub(super) fn block<T>(work: impl Future<Output = Result<T, FleetError>>) -> Result<T, FleetError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(io("starting threads"))?.block_on(async {
        let mut term = signal(SignalKind::terminate()).map_err(io("signals"))?;
        tokio::select! { biased;
            _ = tokio::signal::ctrl_c() => Err(FleetError::Interrupted),
            _ = term.recv() => Err(FleetError::Interrupted),
            ended = work => ended,
        }
    })
}

fn temporary_dir() -> Result<PathBuf, FleetError> {
    let mut bytes = [0; 5];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| FleetError::Invalid("the system gives no randomness".into()))?;
    let name = data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase();
    let dir = std::env::temp_dir().join(format!("starling-{name}"));
    // Not `make`: one that is there already is somebody else's.
    std::fs::DirBuilder::new().mode(0o700).create(&dir).map_err(io(dir.display()))?;
    Ok(dir)
}
