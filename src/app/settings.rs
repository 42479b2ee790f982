//! Everything a peer is told at its start, checked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::open::{Opened, Wish};
use crate::backends::local::LogLimits;
use crate::base::{Bytes, Span};
use crate::model::NodeCapacity;
use crate::model::config::{
    AlertsConfig, BackendKind, DatasetConfig, KubernetesBackendConfig, SlurmBackendConfig,
};
use crate::model::policy::Policies;
use crate::model::report::{Item, Terms};
use crate::runtime::PeerSettings;
use crate::runtime::liveness::Rules;
use crate::transport::NetConfig;

/// What becomes of running attempts at a clean stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnShutdown {
    /// They go on under their guards until the grace ends, for a peer that comes back soon (an upgrade).
    #[default]
    Leave,
    /// They are stopped with notice and run again elsewhere.
    Move,
}

/// A peer's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// State folder.
    pub state: PathBuf,
    /// Name, and the token and address where a mesh is joined.
    pub wish: Wish,
    /// UDP address of QUIC.
    pub listen: SocketAddr,
    /// Where others reach it; empty means `listen`.
    pub advertise: Vec<String>,
    /// TCP address of the HTTP API: plain with a token on loopback, TLS elsewhere.
    pub api: Option<SocketAddr>,
    /// Unix socket of the HTTP API; none means `api.sock` in the state folder.
    pub unix: Option<PathBuf>,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Thousandths of a USD per GPU hour.
    pub price_milli: u64,
    /// PUE in thousandths.
    pub pue_milli: u32,
    /// Compliance domains, power and egress prices.
    pub terms: Terms,
    /// Datasets held here.
    pub datasets: Vec<DatasetConfig>,
    /// Images declared to be here.
    pub images: Vec<Item>,
    /// What the placement policies weigh.
    pub policies: Policies,
    /// The file these came from, read again on SIGHUP.
    pub config_file: Option<PathBuf>,
    /// Declared nodes; empty means discovery.
    pub nodes: Vec<NodeCapacity>,
    /// Stores records, runs nothing.
    pub witness: bool,
    /// Homes per record.
    pub replicas: usize,
    /// How the queue is ordered and nodes are chosen.
    pub schedule: crate::core::schedule::Config,
    /// Contact renewal.
    pub renew_every: Span,
    /// Clock drift bound, thousandths.
    pub rho_milli: u64,
    /// Safety and kill margin.
    pub margin: Span,
    /// How long a grant is held.
    pub grant_for: Span,
    /// Claims per job.
    pub claims: usize,
    /// Jobs held.
    pub jobs_max: usize,
    /// How long the record of an ended job is kept,
    pub retain: Span,
    /// and how many of them at most.
    pub retain_jobs: usize,
    /// A peer lost for this long is replaced as a home.
    pub rehome_after: Span,
    /// New jobs are refused below this much free disk.
    pub disk_reserve: Bytes,
    /// Logs kept.
    pub logs: LogLimits,
    /// Ended attempts whose logs are kept.
    pub attempts_kept: usize,
    /// Grace of jobs that say none.
    pub grace: Span,
    /// Between notice and kill of an attempt that is stopped.
    pub notice: Span,
    /// Share of a link that probes may use, thousandths.
    pub probe_share_milli: u32,
    /// Program that runs images; none means podman or docker from PATH.
    pub container_runtime: Option<PathBuf>,
    /// Use cgroups where the system allows.
    pub cgroups: bool,
    /// What runs the attempts,
    pub backend: BackendKind,
    /// and what it is told where that is Slurm.
    pub slurm: SlurmBackendConfig,
    /// The same where it is Kubernetes.
    pub kubernetes: KubernetesBackendConfig,
    /// The collector that traces are sent to.
    pub otlp: Option<crate::surface::otlp::Endpoint>,
    /// Gossip while things change, and when quiet.
    pub gossip: (Duration, Duration),
    /// Suspect and lost.
    pub liveness: Rules,
    /// Certificates live this long.
    pub certificate_lifetime: Span,
    /// Bandwidth probes of one link at most this often; zero for none.
    pub probe_every: Span,
    /// Attempts at a clean stop.
    pub on_shutdown: OnShutdown,
    /// Bound of a clean stop.
    pub shutdown_deadline: Span,
    /// The binary that guards run; none means this one.
    pub self_exe: Option<PathBuf>,
    /// Thresholds of alerts, and who is told.
    pub alerts: AlertsConfig,
    /// The configuration as TOML, without secrets, for who asks what is in effect.
    pub shown: String,
    /// Nothing is watched, counted or written down for people: only to measure what that costs.
    pub unwatched: bool,
}

impl Settings {
    /// Defaults for a state folder.
    pub fn new(state: PathBuf) -> Self {
        Self {
            state,
            wish: Wish::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: Vec::new(),
            api: None,
            unix: None,
            region: "default".into(),
            zone: String::new(),
            labels: BTreeMap::new(),
            price_milli: 0,
            pue_milli: 1_000,
            terms: Terms::default(),
            datasets: Vec::new(),
            images: Vec::new(),
            policies: Policies::default(),
            config_file: None,
            nodes: Vec::new(),
            witness: false,
            replicas: 3,
            schedule: Default::default(),
            renew_every: Span::secs(5),
            rho_milli: 10,
            margin: Span::secs(3),
            grant_for: Span::secs(5),
            claims: 3,
            jobs_max: 1_000_000,
            retain: Span::secs(30 * 86_400),
            retain_jobs: 100_000,
            rehome_after: Span::secs(600),
            disk_reserve: Bytes::mib(256),
            logs: LogLimits::default(),
            attempts_kept: 1_000,
            grace: Span::secs(120),
            notice: Span::secs(30),
            probe_share_milli: 5,
            container_runtime: None,
            cgroups: true,
            backend: BackendKind::Local,
            slurm: SlurmBackendConfig::default(),
            kubernetes: KubernetesBackendConfig::default(),
            otlp: None,
            gossip: (Duration::from_millis(200), Duration::from_secs(1)),
            liveness: Rules::default(),
            certificate_lifetime: Span::secs(30 * 86_400),
            probe_every: Span::secs(300),
            on_shutdown: OnShutdown::default(),
            shutdown_deadline: Span::secs(30),
            self_exe: None,
            alerts: AlertsConfig::default(),
            shown: String::new(),
            unwatched: false,
        }
    }

    /// The API's unix socket.
    pub fn socket(&self) -> PathBuf {
        self.unix.clone().unwrap_or_else(|| self.state.join("api.sock"))
    }

    /// The folder of keys and certificates.
    pub fn identity(&self) -> PathBuf {
        self.state.join("identity")
    }

    /// What others compare with their own.
    pub(super) fn compared(&self) -> PeerSettings {
        PeerSettings {
            rho_milli: self.rho_milli,
            margin: self.margin,
            replicas: self.replicas,
            grace: self.grace,
            notifiers: self.alerts.notifiers.iter().map(|n| n.name.clone()).collect(),
            config: self.shown.clone(),
        }
    }

    pub(super) fn net(&self, opened: &Opened) -> NetConfig {
        let mut config = NetConfig::new(opened.listen, opened.store.id(), opened.boot);
        config.probe_every = self.probe_every;
        config.probe_share_milli = self.probe_share_milli;
        config
    }
}
