//! The sole place that wires the layers: a peer from its settings, and its orderly end.

pub mod command;
mod datasets;
mod node;
mod open;
mod quarantine;
mod seeing;
mod settings;
mod tasks;

pub use node::Node;
pub use open::{OpenError, Opened, Wish};
pub use settings::{OnShutdown, Settings};

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backends::Backend;
use crate::backends::kubernetes::api::Access;
use crate::backends::kubernetes::nodes::Rules;
use crate::backends::kubernetes::{KubernetesBackend, KubernetesConfig};
use crate::backends::local::{LocalBackend, LocalConfig, clock};
use crate::backends::slurm::{self, SlurmBackend, SlurmConfig};
use crate::base::{Bytes, PeerName, Span, WallTime};
use crate::core::api::Pace;
use crate::core::message::SPEAKS;
use crate::core::{CoreConfig, Input, Now, Peer};
use crate::model::config::BackendKind;
use crate::model::gpu;
use crate::model::report::{BuildReport, CapacityReport, Inventory, Item, Liveness, NodesOut};
use crate::runtime::driver::{self, DriverParts};
use crate::runtime::eventlog::EventLog;
use crate::runtime::gossip::Facet;
use crate::runtime::gossip::GossipConfig;
use crate::runtime::handle::PeerHandle;
use crate::runtime::mesh::{Mesh, MeshConfig, MeshParts};
use crate::runtime::store::StoreError;
use crate::runtime::tokens::{IssuerParts, TokenBook, TokenIssuer};
use crate::surface::serve::{self, ApiListeners};
use crate::transport::{Identity, Net, NetError};
use datasets::measure;
use seeing::Seeing;

/// Why a peer did not start or did not go on. What is on disk is as it was last synced.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// State, identity or join.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The network.
    #[error("{0}")]
    Net(#[from] NetError),
    /// The backend.
    #[error("backend {0}: {1}")]
    Backend(&'static str, anyhow::Error),
    /// The records on disk cannot be read.
    #[error("records on disk: {0}; this peer does not start without them")]
    Records(#[from] crate::core::acceptor::ValueError),
    /// A listening socket of the API.
    #[error(
        "cannot serve the API at {0}: {1}; set [api] listen to another address, or to \"off\" for the socket alone"
    )]
    Api(String, std::io::Error),
    /// The event log.
    #[error("cannot write the event log in {0}: {1}")]
    Log(String, std::io::Error),
    /// The store is an older copy of itself: begin a new one with [`begin_new_disk`].
    #[error("{0}")]
    RolledBack(String),
    /// The disk failed while it ran.
    #[error("the store failed: {0}; free space or replace the disk, then start the peer again")]
    Store(StoreError),
}

/// Reads both clocks.
pub fn now() -> Now {
    Now { mono: clock::now(), wall: clock::wall() }
}

/// A running peer.
pub struct Running {
    /// What the surface sees.
    pub node: Arc<Node>,
    /// Where QUIC listens.
    pub quic: SocketAddr,
    /// Where the HTTP API listens on TCP, if it does.
    pub api: Option<SocketAddr>,
    settings: Settings,
    backend: Arc<dyn Backend>,
    tracker: TaskTracker,
    api_tasks: TaskTracker,
    cancel: CancellationToken,
    api_cancel: CancellationToken,
    failure: oneshot::Receiver<StoreError>,
    seeing: Seeing,
}

/// Puts a store that is an older copy of itself aside, and begins a new one. The peer must have ended.
pub async fn begin_new_disk(settings: &Settings, why: &str) -> Result<(), UpError> {
    Ok(quarantine::begin(settings, why, clock::wall()).await?)
}

/// Starts a peer. Returns when it serves.
pub async fn up(settings: Settings) -> Result<Running, UpError> {
    let opened = open::open(&settings).await?;
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let (store, identity, members) = (opened.store.clone(), opened.identity.clone(), opened.members.clone());
    let name = identity.name().clone();
    let clocks: Arc<dyn Fn() -> Now + Send + Sync> = Arc::new(now);

    let bind = |config| Net::bind(config, identity.clone(), opened.roster.clone(), opened.roster.clone());
    let mut net_config = settings.net(&opened);
    let (net, incoming) = match bind(net_config.clone()) {
        // The free port that was picked before the join has been taken since: any other, which is announced below.
        Err(NetError::Bind(_, e)) if settings.listen.port() == 0 && e.kind() == ErrorKind::AddrInUse => {
            net_config.listen.set_port(0);
            bind(net_config)?
        }
        bound => bound?,
    };
    let quic = net.local_addr();
    open::announce(&settings, &opened, quic).await?;

    let seed = open::seed()?;
    let mut gossip = GossipConfig::new(identity.mesh(), name.clone(), opened.boot, seed);
    (gossip.fast, gossip.slow) = settings.gossip;
    let mut mesh_config = MeshConfig::new(gossip);
    mesh_config.rules = settings.liveness;
    let parts = MeshParts {
        link: Arc::new(net.clone()),
        signer: identity.clone(),
        members: members.clone(),
        roster: opened.roster.clone(),
        now: clocks.clone(),
    };
    let mesh = Mesh::start(mesh_config, parts, &tracker, cancel.clone());
    let book = TokenBook::load(opened.kv.clone(), now()).map_err(|e| OpenError::Rows(e.to_string()))?;
    let issuer_parts =
        IssuerParts { identity: identity.clone(), members: members.clone(), book, now: clocks.clone() };
    let issuer = Arc::new(TokenIssuer::new(issuer_parts));
    net.set_join_handler(Some(issuer.clone()));

    let kind = settings.backend.as_str();
    let datasets = measure(&settings.datasets).await;
    let backend = backend(&settings, &name, &identity.mesh().to_string(), &datasets)
        .map_err(|e| UpError::Backend(kind, e))?;
    let found = backend.discover().await.map_err(|e| UpError::Backend(kind, e))?;
    for note in &found.notes {
        tracing::info!("{note}");
    }
    // A witness uses nothing of it anyway.
    for warning in found.warnings.iter().filter(|_| !settings.witness) {
        tracing::warn!("{warning}");
    }
    let nodes = if settings.witness { Vec::new() } else { found.nodes.clone() };
    let mut schedule = settings.schedule.clone();
    for (group, topology) in backend.topologies() {
        schedule.topologies.entry(group).or_insert(topology);
    }
    let core_config = CoreConfig {
        name: name.clone(),
        store: store.id(),
        boot: opened.boot,
        first_boot: store.boot() == 1,
        replicas: settings.replicas,
        renew_every: settings.renew_every,
        rho_milli: settings.rho_milli,
        margin: settings.margin,
        grant_for: settings.grant_for,
        claims_max: settings.claims,
        jobs_max: settings.jobs_max,
        rehome_after: settings.rehome_after,
        retain: settings.retain,
        retain_jobs: settings.retain_jobs,
        nodes: nodes.clone(),
        schedule,
        runs_images: found.container_runtime.is_some(),
        policies: settings.policies.clone(),
        pace: Pace::default(),
        seed,
    };
    let core = Peer::recover(core_config, &opened.image, now())?;
    let (backend_work, work) = mpsc::channel(4_096);
    let outlet =
        Arc::new(tasks::MeshOutlet { net: net.clone(), mesh: mesh.clone(), contact: Default::default() });
    let parts = DriverParts {
        core,
        name: name.clone(),
        store: store.clone(),
        outlet,
        now: clocks,
        backend: backend_work,
    };
    let (core, failure) = driver::start(parts, &tracker, cancel.clone());
    mesh.notes_to(core.event_sender());

    tracker.spawn(tasks::backend_work(backend.clone(), work));
    let (events, backend_events) = mpsc::channel(4_096);
    tracker.spawn(tasks::views(core.clone(), mesh.view(), cancel.clone()));
    let mut labels = settings.labels.clone();
    // What a job may ask for without anybody's having said it here.
    labels.entry("scheduler".into()).or_insert_with(|| backend.kind().into());
    let capacity = CapacityReport {
        backend: backend.kind().into(),
        region: settings.region.clone(),
        zone: settings.zone.clone(),
        labels,
        price_milli: settings.price_milli,
        pue_milli: settings.pue_milli,
        nodes,
        container_runtime: found.container_runtime,
        terms: settings.terms.clone(),
        nodes_out: NodesOut::default(),
        slurm: None,
    };
    let build = BuildReport { version: env!("CARGO_PKG_VERSION").into(), wire: SPEAKS };
    let data = Inventory::of(datasets);
    let images = Inventory::of(settings.images.iter().cloned().chain(found.images));
    let held = (settings.images.clone(), images.clone());
    let facets =
        [Facet::Capacity(capacity.clone()), Facet::Build(build), Facet::Data(data), Facet::Images(images)];
    for facet in facets {
        if let Err(error) = mesh.publish(facet) {
            tracing::error!("cannot report: {error}");
        }
    }
    let events_on = tasks::BackendEvents { core: core.clone(), mesh: mesh.clone(), capacity, images: held };
    tracker.spawn(events_on.run(backend_events, cancel.clone()));

    let log = EventLog::open(&settings.state)
        .map_err(|e| UpError::Log(settings.state.join("events").display().to_string(), e))?;
    let api_listener = match settings.api {
        None => None,
        Some(address) => {
            Some(TcpListener::bind(address).await.map_err(|e| UpError::Api(address.to_string(), e))?)
        }
    };
    let api = api_listener.as_ref().and_then(|l| l.local_addr().ok());
    let node = Arc::new(Node::new(node::NodeParts {
        core: core.clone(),
        net: net.clone(),
        mesh: mesh.clone(),
        members,
        identity,
        issuer,
        backend: backend.clone(),
        store: store.clone(),
        log: log.clone(),
        api,
        started_at: clock::wall(),
        settings: settings.compared(),
    }));
    let people = (settings.alerts.clone(), settings.state.clone());
    let mut seeing = Seeing::new(node.clone(), log, people, tracker.clone());
    if !settings.unwatched {
        seeing.begin(&cancel);
    }
    let watched = seeing.watched.clone();
    if let Some(to) = settings.otlp.clone() {
        let export = crate::surface::otlp::export(node.clone(), to, watched.exported.clone(), cancel.clone());
        tracker.spawn(export);
    }
    let router = crate::surface::api::router_with(node.clone(), watched);
    tracker.spawn(tasks::incoming(core.clone(), mesh.clone(), router.clone(), incoming, cancel.clone()));
    let health = tasks::Health {
        core,
        mesh,
        store,
        backend: backend.clone(),
        reserve: settings.disk_reserve,
        disk_note: opened.disk_note,
    };
    tracker.spawn(health.run(cancel.clone()));
    // Adoption ends before users are served: what ran before is accounted for first.
    backend.adopt(events).await.map_err(|e| UpError::Backend(kind, e))?;
    let (api_tasks, api_cancel) = (TaskTracker::new(), CancellationToken::new());
    let listeners = listeners(&settings, net.identity(), api_listener)?;
    api_tasks.spawn(serve_api(listeners, router, api_cancel.clone()));
    Ok(Running {
        node,
        quic,
        api,
        settings,
        backend,
        tracker,
        api_tasks,
        cancel,
        api_cancel,
        failure,
        seeing,
    })
}

async fn serve_api(listeners: ApiListeners, router: axum::Router, cancel: CancellationToken) {
    if let Err(error) = serve::serve(listeners, router, cancel).await {
        tracing::error!("the API stopped: {error}");
    }
}

fn listeners(
    settings: &Settings,
    identity: &Arc<Identity>,
    tcp: Option<TcpListener>,
) -> Result<ApiListeners, UpError> {
    let socket = settings.socket();
    let unix = serve::bind_unix(&socket).map_err(|e| UpError::Api(socket.display().to_string(), e))?;
    let mut listeners = ApiListeners { unix: Some(unix), ..ApiListeners::default() };
    if let Some(tcp) = tcp {
        let path = settings.state.join("api.token");
        let token =
            serve::load_or_create_token(&path).map_err(|e| UpError::Api(path.display().to_string(), e))?;
        let local = tcp.local_addr().is_ok_and(|a| a.ip().is_loopback());
        if local {
            listeners.loopback = Some((tcp, token));
        } else {
            let tls = serve::tls_config(identity.clone());
            let tls = tls.map_err(|e| UpError::Api("tls".into(), io::Error::other(e)))?;
            listeners.tls = Some((tcp, Arc::new(tls), token));
        }
    }
    Ok(listeners)
}

fn backend(
    settings: &Settings,
    name: &PeerName,
    mesh: &str,
    datasets: &[Item],
) -> anyhow::Result<Arc<dyn Backend>> {
    let exe = match &settings.self_exe {
        Some(exe) => exe.clone(),
        None => std::env::current_exe()?,
    };
    match settings.backend {
        BackendKind::Local => local(settings, name, exe, datasets),
        BackendKind::Slurm => slurm(settings, name, exe),
        BackendKind::Kubernetes => kubernetes(settings, name, mesh),
    }
}

/// Where the datasets that are declared here lie.
fn places(settings: &Settings) -> std::collections::BTreeMap<String, PathBuf> {
    settings.datasets.iter().filter_map(|d| Some((d.name.clone(), d.path.clone()?))).collect()
}

fn local(
    settings: &Settings,
    name: &PeerName,
    exe: PathBuf,
    datasets: &[Item],
) -> anyhow::Result<Arc<dyn Backend>> {
    let mut config = LocalConfig::new(settings.state.clone(), exe, name.clone());
    config.declared = settings.nodes.clone();
    config.logs = settings.logs;
    config.cgroups = settings.cgroups;
    config.notice = settings.notice;
    config.attempts_kept = settings.attempts_kept;
    config.container_runtime.clone_from(&settings.container_runtime);
    config.datasets = places(settings);
    config.dataset_bytes = datasets.iter().map(|item| (item.name.clone(), item.size)).collect();
    config.canonical_gpu = |name: &str, memory: Bytes| gpu::canonical_measured(name, memory).ok();
    Ok(Arc::new(LocalBackend::new(config)?))
}

fn slurm(settings: &Settings, name: &PeerName, exe: PathBuf) -> anyhow::Result<Arc<dyn Backend>> {
    let wish = &settings.slurm;
    let shared = wish.shared.clone().unwrap_or_else(|| settings.state.join("slurm"));
    let mut config = SlurmConfig::new(shared, exe, name.clone());
    (config.bin, config.conf) = (wish.bin.clone(), wish.conf.clone());
    (config.rest, config.token) = (wish.rest.clone(), wish.token.clone());
    (config.partition, config.account, config.qos) =
        (wish.partition.clone(), wish.account.clone(), wish.qos.clone());
    config.options = wish.options.clone().into_iter().collect();
    config.gpu_names.clone_from(&wish.gpu_names);
    (config.interval, config.pending_max) = (wish.interval, wish.pending_max);
    (config.listen, config.host) = (wish.guard_listen, wish.guard_host.clone());
    config.datasets = places(settings);
    config.notice_signal = slurm::signal_number(&wish.notice_signal);
    config.notice = settings.notice;
    config.logs = settings.logs;
    config.attempts_kept = settings.attempts_kept;
    Ok(Arc::new(SlurmBackend::new(config)?))
}

fn kubernetes(settings: &Settings, name: &PeerName, mesh: &str) -> anyhow::Result<Arc<dyn Backend>> {
    let wish = &settings.kubernetes;
    let mesh = mesh.chars().take(16).collect();
    let mut config = KubernetesConfig::new(settings.state.join("kubernetes"), name.clone(), mesh);
    config.access = Access {
        kubeconfig: wish.kubeconfig.clone(),
        context: wish.context.clone(),
        namespace: wish.namespace.clone(),
        page: None,
    };
    (config.image, config.guard_image) = (wish.image.clone(), wish.guard_image.clone());
    (config.queue, config.pod_groups) = (wish.queue.clone(), wish.pod_groups);
    (config.scheduler, config.priority_class) = (wish.scheduler.clone(), wish.priority_class.clone());
    (config.runtime_class, config.service_account) =
        (wish.runtime_class.clone(), wish.service_account.clone());
    config.pull_secrets.clone_from(&wish.pull_secrets);
    config.rules = Rules {
        selector: wish.node_selector.clone(),
        tolerations: wish.tolerations.clone(),
        gpu_names: wish.gpu_names.clone(),
    };
    config.interval = wish.interval;
    (config.pending_max, config.pull_max) = (wish.pending_max, wish.pull_max);
    (config.listen, config.host) = (wish.guard_listen, wish.guard_host.clone());
    config.datasets = places(settings);
    config.notice = settings.notice;
    config.logs = settings.logs;
    config.attempts_kept = settings.attempts_kept;
    Ok(Arc::new(KubernetesBackend::new(config)?))
}

impl Running {
    /// Begins, or ends, all that is watched, counted and written down for people: only to measure what it costs.
    pub fn see(&mut self, on: bool) {
        if on { self.seeing.begin(&self.cancel) } else { self.seeing.end() }
    }

    /// Runs until `stop` resolves or the disk fails, then ends in bounded time: hands its attempts back
    /// where the settings say so, tells the others, and closes everything.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), UpError> {
        let failed = tokio::select! { biased;
            failure = &mut self.failure => failure.ok(),
            () = stop => None,
        };
        if let Some(error) = failed {
            self.close().await;
            return Err(match error {
                StoreError::RolledBack(why) => UpError::RolledBack(why.to_string()),
                error => UpError::Store(error),
            });
        }
        if self.settings.on_shutdown == OnShutdown::Move && self.others_alive() {
            self.hand_back().await;
        }
        self.node.say_goodbye();
        self.close().await;
        Ok(())
    }

    fn others_alive(&self) -> bool {
        let me = self.node.about().name;
        self.node.view().members.values().any(|m| m.peer != me && m.liveness == Liveness::Alive && !m.witness)
    }

    /// Drains and waits until no attempt is left here and their ends are in the records.
    async fn hand_back(&self) {
        let begun = clock::now();
        self.node.core().input(Input::Drain(true)).await;
        while clock::now().since(begun) < self.settings.shutdown_deadline {
            if self.node.attempts().await == Some(0) {
                return;
            }
            tokio::time::sleep(Span::millis(50).to_std()).await;
        }
        tracing::warn!("attempts are left at the shutdown deadline: they go on under their guards");
    }

    async fn close(self) {
        self.api_cancel.cancel();
        self.api_tasks.close();
        let bound = Span::secs(5).to_std();
        let _late = tokio::time::timeout(bound, self.api_tasks.wait()).await;
        self.node.net().shutdown(Span::secs(2)).await;
        self.cancel.cancel();
        self.backend.shutdown().await;
        self.tracker.close();
        let _late = tokio::time::timeout(bound, self.tracker.wait()).await;
    }

    /// When its certificate ends, for the log.
    pub fn certificate_until(&self) -> WallTime {
        self.node.about().certificate.1
    }
}
