//! `kubernetes`: a Kubernetes cluster, driven with the rights of one account in one namespace.
//!
//! An attempt is a batch/v1 Job named from (job, epoch), so that making it twice is making it once. Its pods' main
//! container is `starling guard`, put there by an init container; it asks the peer for the right to run, which one
//! pod per rank gets, ever, whatever the Job controller starts twice; of a gang no rank begins before all are there.
//!
//! One watch per kind says what Kubernetes knows ([`feed`]); guards say the rest over a TCP line (`super::line`).
//! What cannot be known is *unknown*, and nothing follows from it (`keeper`, `ends`).

mod account;
pub mod api;
mod back;
mod ends;
mod features;
pub mod feed;
mod follow;
mod keeper;
mod make;
pub mod names;
pub mod nodes;
pub mod objects;
pub mod pods;
mod remove;
mod run;
pub mod stream;
mod waits;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::api::{Access, Api, ApiError};
use self::keeper::Keeper;
use self::nodes::{NodeMap, Rules};
use self::objects::Node;
use super::local::LogLimits;
use super::local::files::{optional, read_json, write_json};
use super::{Backend, Discovery, line};
use crate::base::{ContactId, Instant, PeerName, Span};
use crate::core::api::AttemptKey;
use crate::core::{BackendCommand, BackendEvent};
use crate::model::NodeCapacity;

/// What the Kubernetes backend is told.
#[derive(Debug, Clone)]
pub struct KubernetesConfig {
    /// Its folder: attempts, their output, what must outlive the peer.
    pub folder: PathBuf,
    /// The cluster's name, STARLING_CLUSTER.
    pub peer: PeerName,
    /// The mesh, as a label.
    pub mesh: String,
    /// Where the API server is.
    pub access: Access,
    /// Image of jobs that name none.
    pub image: Option<String>,
    /// Image whose entry point is the `starling` binary; none: no guard stands in pods.
    pub guard_image: Option<String>,
    /// Kueue's queue.
    pub queue: Option<String>,
    /// Use Volcano's or coscheduling's PodGroups where they are.
    pub pod_groups: bool,
    /// Scheduler of the pods.
    pub scheduler: Option<String>,
    /// Their priority class.
    pub priority_class: Option<String>,
    /// Their runtime class.
    pub runtime_class: Option<String>,
    /// Their account; none: no token is put into them.
    pub service_account: Option<String>,
    /// Secrets for their images.
    pub pull_secrets: Vec<String>,
    /// Which nodes.
    pub rules: Rules,
    /// Between two looks.
    pub interval: Span,
    /// An attempt that Kubernetes leaves waiting for longer is given back.
    pub pending_max: Span,
    /// An image may take so long.
    pub pull_max: Span,
    /// Where guards are listened to.
    pub listen: SocketAddr,
    /// Name or address at which pods reach this peer; none means this pod's address, or the host's name.
    pub host: Option<String>,
    /// Time between notice and kill where a stop does not say otherwise.
    pub notice: Span,
    /// Where the datasets that are declared here lie in pods, by name.
    pub datasets: BTreeMap<String, PathBuf>,
    /// Output kept per stream.
    pub logs: LogLimits,
    /// Ended and forgotten attempts whose logs are kept.
    pub attempts_kept: usize,
}

impl KubernetesConfig {
    /// With defaults: the usual kubeconfig or this pod's account, a look every 2 s, an hour in the queue.
    pub fn new(folder: PathBuf, peer: PeerName, mesh: String) -> Self {
        Self {
            folder,
            peer,
            mesh,
            access: Access::default(),
            image: None,
            guard_image: None,
            queue: None,
            pod_groups: true,
            scheduler: None,
            priority_class: None,
            runtime_class: None,
            service_account: None,
            pull_secrets: Vec::new(),
            rules: Rules::default(),
            interval: Span::secs(2),
            pending_max: Span::secs(3_600),
            pull_max: Span::secs(1_800),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            host: None,
            notice: Span::secs(30),
            datasets: BTreeMap::new(),
            logs: LogLimits::default(),
            attempts_kept: 1_000,
        }
    }
    fn attempts(&self) -> PathBuf {
        self.folder.join("attempts")
    }
    fn line_file(&self) -> PathBuf {
        self.folder.join("line.json")
    }
    fn nodes_file(&self) -> PathBuf {
        self.folder.join("nodes.json")
    }
    fn limits(&self) -> waits::Limits {
        waits::Limits { pending: self.pending_max, pull: self.pull_max }
    }
    /// Selects our objects.
    fn selector(&self) -> String {
        api::escape(&format!("{}={},{}={}", names::PEER, self.peer, names::MESH, self.mesh))
    }
}

/// What the cluster has for gangs and queues. What it has not is done without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gangs {
    /// Kueue.
    pub kueue: bool,
    /// Volcano's PodGroups.
    pub volcano: bool,
    /// PodGroups of the coscheduling plugin.
    pub coscheduling: bool,
}

/// Runs attempts on a Kubernetes cluster.
pub struct KubernetesBackend {
    keeper: Arc<Keeper>,
    api: tokio::sync::OnceCell<Arc<Api>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl KubernetesBackend {
    /// Makes its folders; asks nothing yet.
    pub fn new(config: KubernetesConfig) -> anyhow::Result<Self> {
        let folder = config.folder.clone();
        let keeper =
            Keeper::new(config).map_err(|e| anyhow::anyhow!("the folder {}: {e}", folder.display()))?;
        Ok(Self {
            keeper: Arc::new(keeper),
            api: tokio::sync::OnceCell::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// The folder of an attempt.
    pub fn attempt_dir(&self, key: AttemptKey) -> PathBuf {
        self.keeper.dir(key).path().to_owned()
    }

    async fn api(&self) -> anyhow::Result<Arc<Api>> {
        let made = self
            .api
            .get_or_try_init(|| async { anyhow::Ok(Arc::new(Api::new(&self.keeper.config.access).await?)) });
        Ok(made.await?.clone())
    }
}

impl Drop for KubernetesBackend {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What pods can reach: in a pod its own address, else the host's name.
fn own_host() -> String {
    let pod = std::env::var("STARLING_POD_IP").ok().filter(|ip| !ip.is_empty());
    pod.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

#[async_trait]
impl Backend for KubernetesBackend {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    async fn discover(&self) -> anyhow::Result<Discovery> {
        let config = &self.keeper.config;
        let api = self.api().await?;
        let mut notes = vec![format!("Kubernetes is at {}, namespace {}", api.url, api.namespace)];
        if config.guard_image.is_none() {
            notes.push(
                "no guard stands in pods (kubernetes.guard_image is not set): only jobs with \
                 on_lost_contact: {grace: never} are taken, and they are run again only on an operator's word"
                    .into(),
            );
        }
        if config.image.is_none() {
            notes.push("jobs without an image are not started here (kubernetes.image is not set)".into());
        }
        notes.extend(features::ask(&self.keeper, &api).await);
        let mut images = Vec::new();
        let nodes = match api.list::<Node>("/api/v1/nodes", "").await {
            Ok((nodes, _)) if !nodes.is_empty() => {
                let map = NodeMap::new(&nodes, &config.rules);
                for (name, state) in map.left_out.iter().take(20) {
                    notes.push(format!("node {name} is left out: {state}"));
                }
                images = nodes::images(&nodes, &map);
                let groups = map.groups.clone();
                self.keep_nodes(&groups);
                self.keeper.set_map(map);
                groups
            }
            answer => {
                let why =
                    answer.map_or_else(|e: ApiError| e.to_string(), |_| "its list of nodes is empty".into());
                notes.push(format!(
                    "Kubernetes does not answer, its nodes are taken as they last were: {why}"
                ));
                let old = optional(read_json::<Vec<NodeCapacity>>(&config.nodes_file()));
                old.ok().flatten().unwrap_or_default()
            }
        };
        // Kubelets run images, and nothing else.
        let container_runtime = Some("kubernetes".into());
        Ok(Discovery { nodes, container_runtime, images, notes, ..Discovery::default() })
    }

    async fn adopt(&self, events: mpsc::Sender<BackendEvent>) -> anyhow::Result<()> {
        let api = self.api().await?;
        let config = &self.keeper.config;
        let listener = line::listen(config.listen, &config.line_file()).await?;
        let host = config.host.clone().unwrap_or_else(own_host);
        let mut known = line::line_file(listener.local_addr()?, &host)?;
        // A pod has a loopback of its own: no shortcut over it.
        known.boot = String::new();
        write_json(&config.line_file(), &known)?;
        self.keeper.set_line(known);
        let keeper = self.keeper.clone();
        tokio::task::spawn_blocking(move || keeper.adopt()).await??;
        let (wake, _) = broadcast::channel(1_024);
        let serve = line::serve(listener, self.keeper.clone(), wake.clone(), self.stop.clone());
        self.tasks.spawn(serve);
        let watch = run::Watch::new(self.keeper.clone(), api, self.tasks.clone(), self.stop.clone(), wake);
        watch.feed();
        self.tasks.spawn(watch.clone().look());
        self.tasks.spawn(watch.pass_on(events));
        Ok(())
    }

    async fn command(&self, command: BackendCommand) {
        let keeper = self.keeper.clone();
        let done = tokio::task::spawn_blocking(move || keeper.command(command)).await;
        if let Err(error) = done {
            tracing::error!(%error, "a command to the Kubernetes backend was not carried out");
        }
    }

    async fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) {
        self.keeper.renewed(contact, incarnation, sent_at);
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>> {
        self.keeper.logs(key)
    }
}

impl KubernetesBackend {
    /// Writes the nodes down, for a start at which the API server does not answer.
    fn keep_nodes(&self, groups: &[NodeCapacity]) {
        if let Err(error) = write_json(&self.keeper.config.nodes_file(), &groups) {
            tracing::warn!(%error, "the nodes could not be written down");
        }
    }
}
