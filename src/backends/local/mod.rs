//! `local`: this machine as a cluster.
//!
//! Every attempt has a folder and a guard, a process of its own (`guard`), and both outlive the peer: it may
//! crash, stop or be upgraded while jobs run, and finds them again by their folders. The peer's part is small:
//! it prepares the folder, starts the guard, passes on renewals and wishes, and reports what it reads there.

pub mod cgroup;
pub mod clock;
mod container;
pub mod discovery;
pub(in crate::backends) mod environment;
pub mod files;
pub mod guard;
mod keeper;
mod lease;
mod orphan;
pub mod processes;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::discovery::CanonicalGpu;
use self::keeper::Keeper;
use super::{Backend, Discovery};
use crate::base::{Bytes, ContactId, Instant, PeerName, Span};
use crate::core::api::AttemptKey;
use crate::core::{BackendCommand, BackendEvent};
use crate::model::NodeCapacity;

/// How much output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes of one file before it is rotated; default 16 MiB.
    pub file_bytes: Bytes,
    /// Files per rank and stream; default 4.
    pub files: u32,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { file_bytes: Bytes::mib(16), files: 4 }
    }
}

/// What the local backend is told.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The peer's state folder; `attempts/`, `contacts/` and `news` in it are this backend's.
    pub state_dir: PathBuf,
    /// The `starling` binary, run as `starling guard DIR`.
    pub self_exe: PathBuf,
    /// The cluster's name, STARLING_CLUSTER.
    pub peer: PeerName,
    /// Nodes to offer instead of this machine's own; shown as virtual.
    pub declared: Vec<NodeCapacity>,
    /// Time between notice (SIGTERM) and kill where a stop does not say otherwise.
    pub notice: Span,
    /// Output kept per stream.
    pub logs: LogLimits,
    /// Ended and forgotten attempts whose logs and working folders are kept.
    pub attempts_kept: usize,
    /// Container runtime; none means podman or docker from PATH.
    pub container_runtime: Option<PathBuf>,
    /// Give every attempt a cgroup where the system allows it. Without one, a guard still ends its whole tree;
    /// but if the guard itself is killed, a process that left its session and wiped its environment is not found.
    pub cgroups: bool,
    /// Where the datasets that are declared here lie, by name: a job that names one is given its path.
    pub datasets: BTreeMap<String, PathBuf>,
    /// Their sizes, where they are known.
    pub dataset_bytes: BTreeMap<String, Bytes>,
    /// Names GPUs.
    pub canonical_gpu: CanonicalGpu,
}

impl LocalConfig {
    /// With defaults: 30 s notice, 4 log files of 16 MiB, 1,000 attempts kept, GPU names as NVML gives them.
    pub fn new(state_dir: PathBuf, self_exe: PathBuf, peer: PeerName) -> Self {
        Self {
            state_dir,
            self_exe,
            peer,
            declared: Vec::new(),
            notice: Span::secs(30),
            logs: LogLimits::default(),
            attempts_kept: 1_000,
            container_runtime: None,
            cgroups: true,
            datasets: BTreeMap::new(),
            dataset_bytes: BTreeMap::new(),
            canonical_gpu: |name, _| Some(name.to_owned()),
        }
    }
    fn attempts(&self) -> PathBuf {
        self.state_dir.join("attempts")
    }
    fn contacts(&self) -> PathBuf {
        self.state_dir.join("contacts")
    }
    fn news(&self) -> PathBuf {
        self.state_dir.join("news")
    }
}

/// Runs attempts on this machine.
pub struct LocalBackend {
    keeper: Arc<Keeper>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl LocalBackend {
    /// Makes its folders. Nothing is started, adopted or cleaned before `adopt`.
    pub fn new(config: LocalConfig) -> std::io::Result<Self> {
        let keeper = Arc::new(Keeper::new(config)?);
        Ok(Self { keeper, tasks: TaskTracker::new(), stop: CancellationToken::new() })
    }

    /// The folder of an attempt.
    pub fn attempt_dir(&self, key: AttemptKey) -> PathBuf {
        self.keeper.dir(key).path().to_owned()
    }
}

impl Drop for LocalBackend {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn kind(&self) -> &'static str {
        "local"
    }

    async fn discover(&self) -> anyhow::Result<Discovery> {
        let keeper = self.keeper.clone();
        Ok(tokio::task::spawn_blocking(move || keeper.discover()).await?)
    }

    fn topologies(&self) -> std::collections::BTreeMap<String, crate::model::topology::Topology> {
        self.keeper.topologies()
    }

    async fn adopt(&self, events: mpsc::Sender<BackendEvent>) -> anyhow::Result<()> {
        let news = watch::open_news(&self.keeper.config.news())?;
        let keeper = self.keeper.clone();
        tokio::task::spawn_blocking(move || keeper.adopt()).await??;
        let task = watch::watch(self.keeper.clone(), news, events, self.stop.clone());
        self.tasks.spawn(task);
        Ok(())
    }

    async fn command(&self, command: BackendCommand) {
        let keeper = self.keeper.clone();
        let done = tokio::task::spawn_blocking(move || keeper.command(command)).await;
        if let Err(error) = done {
            tracing::error!(%error, "a command to the local backend was not carried out");
        }
    }

    async fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) {
        let keeper = self.keeper.clone();
        let done = tokio::task::spawn_blocking(move || keeper.renewed(contact, incarnation, sent_at)).await;
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, %contact, incarnation, "guards cannot be shown a renewal")
            }
            Err(error) => tracing::error!(%error, "guards cannot be shown a renewal"),
        }
    }

    async fn gpu_use_milli(&self) -> Option<u32> {
        tokio::task::spawn_blocking(discovery::gpu_use_milli).await.ok().flatten()
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>> {
        guard::logs::list(&self.keeper.dir(key).logs()).ok()
    }
}

/// `<job id>-<epoch>`, as `AttemptKey` prints it.
pub(in crate::backends) fn parse_key(name: &str) -> Option<AttemptKey> {
    let (job, epoch) = name.rsplit_once('-')?;
    let key = AttemptKey { job: job.parse().ok()?, epoch: crate::base::Epoch(epoch.parse().ok()?) };
    (key.to_string() == name).then_some(key)
}

pub(in crate::backends) fn parse_key_of(path: &Path) -> Option<AttemptKey> {
    parse_key(path.file_name()?.to_str()?)
}
