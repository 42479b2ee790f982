//! A mesh of real peers on this machine, for people who try Starling: started, watched, broken, stopped.
#![allow(clippy::disallowed_methods, reason = "starts and times real processes")]

pub mod demo;
mod judgement;
mod live;
pub mod replay;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::http::Method;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::client::{Client, ClientFailure, Target};
use super::documents::{ClusterList, JobList, SubmitDocument};
use crate::base::{PeerName, Span};
use crate::model::NodeCapacity;
use crate::model::config::Config;
use crate::model::report::Liveness;
use crate::model::spec::JobSpec;
use crate::model::spec_input::render_spec;

/// Regions of the clusters, in turn.
const REGIONS: [&str; 8] =
    ["eu-central", "eu-north", "us-east", "us-west", "ap-northeast", "ap-south", "sa-east", "af-south"];
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

/// What the clusters of a mesh are like.
pub struct Shape {
    /// How many.
    pub clusters: u32,
    /// Node groups of each.
    pub nodes: Vec<NodeCapacity>,
    /// Logs of so many ended attempts are kept.
    pub attempts_kept: usize,
}

impl Fleet {
    /// Starts the first peer, lets the others join it with tokens, and waits until all agree.
    pub async fn start(
        shape: &Shape,
        dir: Option<&Path>,
        mut say: impl FnMut(&str),
    ) -> Result<Self, FleetError> {
        let exe = std::env::current_exe().map_err(io("this program's own path"))?;
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
            let made: Value = fleet.peers[i - 1]
                .client
                .send(Method::POST, "/v1/tokens", json(&serde_json::json!({})))
                .await?;
            let text = |key: &str| made.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let join = format!("{}@{}", text("token"), text("listen"));
            fleet.spawn(i, Some(&join))?;
            fleet.ready(i).await?;
            say(&format!("{} joined with a token", fleet.peers[i].name));
        }
        fleet.agree().await?;
        Ok(fleet)
    }

    fn add_peer(&mut self, shape: &Shape, i: u32) -> Result<(), FleetError> {
        let name = PeerName::new(&format!("c{}", i + 1)).map_err(|e| FleetError::Invalid(e.to_string()))?;
        let dir = self.dir.join(name.as_str());
        std::fs::create_dir_all(&dir).map_err(io(dir.display()))?;
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
        let file = dir.join("starling.toml");
        std::fs::write(&file, config.to_toml()).map_err(io(file.display()))?;
        let client = Client::new(Target::Unix(dir.join("state/api.sock")), None, None)?;
        self.peers.push(FleetPeer { name, dir, client, child: None });
        Ok(())
    }

    /// Starts a peer's process; its output goes to its log.
    pub fn spawn(&mut self, i: usize, join: Option<&str>) -> Result<(), FleetError> {
        let peer = &mut self.peers[i];
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(peer.dir.join("log"))
            .map_err(io("log"))?;
        let errors = log.try_clone().map_err(io("log"))?;
        let mut command = Command::new(&self.exe);
        command
            .arg("up")
            .arg("--config")
            .arg(peer.dir.join("starling.toml"))
            .arg("--state")
            .arg(peer.dir.join("state"));
        if let Some(join) = join {
            command.arg("--join").arg(join);
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
        let payload = Some(("application/yaml", render_spec(spec).into_bytes()));
        let key = [("idempotency-key", key.to_owned())];
        let within = Duration::from_secs(30);
        let made: SubmitDocument =
            self.peers[i].client.json(Method::POST, "/v1/jobs", payload, &key, within).await?;
        Ok(made.id.to_string())
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
            if let Some(pid) = peer.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok())
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                // It may have ended by itself.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
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

/// Runs a demo or replay to its end, or until the person at the keyboard interrupts it.
pub(super) fn block<T>(work: impl Future<Output = Result<T, FleetError>>) -> Result<T, FleetError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(io("starting threads"))?.block_on(async {
        tokio::select! { biased;
            _ = tokio::signal::ctrl_c() => Err(FleetError::Interrupted),
            ended = work => ended,
        }
    })
}

/// A JSON body.
pub(super) fn json(value: &Value) -> super::client::Payload {
    Some(("application/json", value.to_string().into_bytes()))
}

fn temporary_dir() -> Result<PathBuf, FleetError> {
    let mut bytes = [0; 5];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| FleetError::Invalid("the system gives no randomness".into()))?;
    let name = data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase();
    let dir = std::env::temp_dir().join(format!("starling-{name}"));
    std::fs::create_dir(&dir).map_err(io(dir.display()))?;
    Ok(dir)
}
