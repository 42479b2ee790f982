//! A peer's configuration: `starling.toml` in, a valid `Config` out, or every mistake at once.
//!
//! Nothing needs to be configured: `Config::default()` is a peer of its own on this machine. The
//! reference page is docs/reference/config.md; a test compares its tables with the keys here.

mod alerts;
mod economy;
mod keys;
mod kubernetes;
mod read;
mod schedule;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

pub use alerts::{AlertsConfig, NotifierConfig, Through};
pub use keys::SECTIONS;
pub use kubernetes::KubernetesBackendConfig;
pub use schedule::{GpuSets, ScheduleConfig};

use super::input::Mistake;
use super::policy::Policies;
use super::report::{Item, NodeCapacity, Terms};
use crate::base::{Bytes, PeerName, Span};

/// Bytes of a configuration file.
pub const DOCUMENT_BYTES_MAX: usize = 256 * 1024;
/// Port of the peers' QUIC endpoint, unless configured.
pub const LISTEN_PORT: u16 = 7420;
/// Port of the HTTP API, unless configured.
pub const API_PORT: u16 = 7421;

/// One wrong thing in a configuration: its line, key, value, and what would be right. Nothing was
/// started or changed.
pub type ConfigMistake = Mistake;

/// How one peer runs. Each field's page entry gives meaning, unit, range and default.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The peer's name, and so its cluster's. Default none: the caller makes one from the host name.
    pub name: Option<PeerName>,
    /// Region, 1 to 63 characters. Default `local`. Homes of a record are spread over regions first.
    pub region: String,
    /// Zone inside the region; may be empty, which is the default.
    pub zone: String,
    /// State folder, absolute. Default none: the caller's choice (`--state`).
    pub state: Option<PathBuf>,
    /// UDP address of the peers' QUIC endpoint. Default `0.0.0.0:7420`; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` at which other peers reach this one, best first, at most 8. Default none: `listen`.
    pub advertise: Vec<String>,
    /// The HTTP API.
    pub api: ApiConfig,
    /// Labels that jobs may ask for, at most 64.
    pub labels: BTreeMap<String, String>,
    /// Price of a GPU hour in thousandths of a USD, 0 to 1,000 USD. Default 0.
    pub price_milli: u64,
    /// Power usage effectiveness in thousandths, 1.0 to 5.0. Default 1000.
    pub pue_milli: u32,
    /// Compliance domains, power and egress prices.
    pub terms: Terms,
    /// Datasets that this cluster holds, at most 4,096. Default none.
    pub datasets: Vec<DatasetConfig>,
    /// Images that are declared to be here, at most 4,096. Default none.
    pub images: Vec<Item>,
    /// What the placement policies weigh.
    pub policies: Policies,
    /// Declared node groups, at most 256 and 4,096 nodes: offered instead of this machine's own and
    /// shown as virtual. Default none: what discovery finds.
    pub nodes: Vec<NodeCapacity>,
    /// Which GPUs of a node are near each other, by node group. Default none: what discovery finds.
    pub gpu_sets: BTreeMap<String, GpuSets>,
    /// What runs the attempts.
    pub backend: BackendKind,
    /// Homes of a new record: 1, 3 or 5. Default 3 (less while the mesh is smaller).
    pub replicas: usize,
    /// Stores records and runs nothing. Default false.
    pub witness: bool,
    /// How much is taken and kept.
    pub limits: LimitsConfig,
    /// How the queue is ordered.
    pub schedule: ScheduleConfig,
    /// How often and how long.
    pub timing: TimingConfig,
    /// What is an incident, and who is told of it.
    pub alerts: AlertsConfig,
    /// What happens on SIGTERM.
    pub shutdown: ShutdownConfig,
    /// Certificates that this peer signs.
    pub certificate: CertificateConfig,
    /// The local backend.
    pub local: LocalBackendConfig,
    /// The Slurm backend.
    pub slurm: SlurmBackendConfig,
    /// The Kubernetes backend.
    pub kubernetes: KubernetesBackendConfig,
    /// Where traces are sent.
    pub trace: TraceConfig,
}

/// Where traces are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceConfig {
    /// An OTLP collector, `http://host:4318` or `https://…`. Default none: as OTEL_EXPORTER_OTLP_ENDPOINT says.
    pub otlp: Option<String>,
    /// Certificates (PEM) that an https collector's is signed by. Default none: those that the system trusts.
    pub ca: Option<PathBuf>,
}

/// A dataset that this cluster holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetConfig {
    /// What jobs call it: a name, or the URI that they would write.
    pub name: String,
    /// Bytes in all; none: measured at the start, which needs a path.
    pub size: Option<Bytes>,
    /// Where it lies here; jobs find it in STARLING_DATA.
    pub path: Option<PathBuf>,
}

/// The HTTP API's sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiConfig {
    /// TCP address. On loopback plain HTTP with a token; elsewhere TLS. Default `127.0.0.1:7421`; port 0
    /// takes a free one; none (`"off"`) listens on no TCP.
    pub listen: Option<SocketAddr>,
    /// Unix socket. Default none: `api.sock` in the state folder.
    pub unix: Option<PathBuf>,
}

/// What runs the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// This machine.
    #[default]
    Local,
    /// A Slurm cluster.
    Slurm,
    /// A Kubernetes cluster.
    Kubernetes,
}

impl BackendKind {
    /// As in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// How much is taken and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Jobs held as a home before new ones are refused, 1 to 10 million. Default 1,000,000.
    pub jobs: usize,
    /// Claims laid at once per job, 1 to 16. Default 3.
    pub claims: usize,
    /// Free bytes of the state folder's disk below which new jobs are refused. Default 256 MiB.
    pub disk_reserve: Bytes,
    /// Bytes of one log file, 64 KiB to 1 TiB. Default 16 MiB.
    pub log_bytes: Bytes,
    /// Log files kept per rank and stream, 2 to 100. Default 4.
    pub log_files: u32,
    /// Ended attempts whose logs are kept, 1 to 1 million. Default 1,000.
    pub attempts_kept: usize,
    /// How long the record of an ended job is kept,
    pub retain: Span,
    /// and how many of them a home keeps at most.
    pub retain_jobs: usize,
}

/// How often and how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimingConfig {
    /// Between renewals of the cluster's contact, 100 ms to 60 s. Default 5 s.
    pub renew_every: Span,
    /// How far clock rates may be off, in thousandths, 0 to 100. Default 10 (1 %). All peers alike.
    pub rho_milli: u64,
    /// Time for killing an attempt, plus safety, 100 ms to 5 min. Default 3 s. All peers alike.
    pub margin: Span,
    /// Grace of jobs that say none, 1 s to 30 days. Default 2 min.
    pub grace: Span,
    /// A peer lost for this long is replaced as a home of records.
    pub rehome_after: Span,
    /// How long a grant holds capacity that nobody takes, 1 s to 10 min. Default 5 s.
    pub grant_for: Span,
    /// Between gossip rounds when quiet, 50 ms to 60 s. Default 1 s. Also what makes a peer suspect.
    pub gossip_interval: Span,
    /// Between gossip rounds while things change, 20 ms to `gossip_interval`. Default 200 ms.
    pub gossip_interval_busy: Span,
    /// Shortest pause between two bandwidth probes of a link, 1 s to 30 days. Default 5 min; none (`"never"`).
    pub probe_every: Option<Span>,
    /// Share of a link's time that probes may use, in thousandths, 0 to 100. Default 5 (0.5 %).
    pub probe_share_milli: u32,
}

/// What happens on SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// Longest time until the process ends, 1 s to 1 h. Default 30 s.
    pub deadline: Span,
    /// What becomes of running attempts.
    pub jobs: ShutdownJobs,
    /// Between SIGTERM and SIGKILL of an attempt that is stopped, 0 s to 1 h. Default 30 s.
    pub notice: Span,
}

/// What becomes of running attempts when the peer stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShutdownJobs {
    /// They go on under their guards, and the peer adopts them when it is back.
    #[default]
    Leave,
    /// They are stopped with notice and run elsewhere.
    Move,
}

/// Certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateConfig {
    /// Life of a peer's certificate, 10 min to 400 days; renewed at two thirds. Default 30 days.
    pub lifetime: Span,
}

/// The local backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalBackendConfig {
    /// Program that runs images. Default none: podman or docker from PATH.
    pub container_runtime: Option<PathBuf>,
    /// A cgroup for each attempt where the system allows it. Default true.
    pub cgroups: bool,
}

/// The Slurm backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmBackendConfig {
    /// Folder that this machine and all nodes see under the same path. Default none: `slurm` in the state folder.
    pub shared: Option<PathBuf>,
    /// Folder of Slurm's commands. Default none: PATH.
    pub bin: Option<PathBuf>,
    /// `SLURM_CONF` for them. Default none: as the peer has it.
    pub conf: Option<PathBuf>,
    /// slurmrestd, `unix:/path`, `http://host:port` or `off`. Default none: a usual socket, else the commands.
    pub rest: Option<String>,
    /// File with a JWT for slurmrestd over TCP.
    pub token: Option<PathBuf>,
    /// Partitions whose nodes are offered, with commas between; jobs that name none go there.
    pub partition: Option<String>,
    /// Account of jobs that name none.
    pub account: Option<String>,
    /// Quality of service of jobs that name none.
    pub qos: Option<String>,
    /// More options of sbatch, by long name; an empty value is a flag.
    pub options: BTreeMap<String, String>,
    /// Models of GRES types that do not say enough, such as `a100 = "A100-80G"`.
    pub gpu_names: BTreeMap<String, String>,
    /// Between two lists of Slurm's jobs, 200 ms to 10 min. Default 2 s.
    pub interval: Span,
    /// An attempt that Slurm leaves waiting for longer is given back, 1 s to 30 days. Default 1 h.
    pub pending_max: Span,
    /// TCP address at which guards are heard. Default `0.0.0.0:0`, a free port, the same again where it can be had.
    pub guard_listen: SocketAddr,
    /// Name or address at which nodes reach this machine. Default none: its host name.
    pub guard_host: Option<String>,
    /// Signal that gives notice. Default `TERM`.
    pub notice_signal: String,
}

impl Default for SlurmBackendConfig {
    fn default() -> Self {
        Self {
            shared: None,
            bin: None,
            conf: None,
            rest: None,
            token: None,
            partition: None,
            account: None,
            qos: None,
            options: BTreeMap::new(),
            gpu_names: BTreeMap::new(),
            interval: Span::secs(2),
            pending_max: Span::secs(3_600),
            guard_listen: any(0),
            guard_host: None,
            notice_signal: "TERM".into(),
        }
    }
}

const fn any(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: None,
            region: "local".into(),
            zone: String::new(),
            state: None,
            listen: any(LISTEN_PORT),
            advertise: Vec::new(),
            api: ApiConfig { listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, API_PORT))), unix: None },
            labels: BTreeMap::new(),
            price_milli: 0,
            pue_milli: 1_000,
            terms: Terms::default(),
            datasets: Vec::new(),
            images: Vec::new(),
            policies: Policies::default(),
            nodes: Vec::new(),
            gpu_sets: BTreeMap::new(),
            backend: BackendKind::default(),
            replicas: 3,
            witness: false,
            limits: LimitsConfig {
                jobs: 1_000_000,
                claims: 3,
                disk_reserve: Bytes::mib(256),
                log_bytes: Bytes::mib(16),
                log_files: 4,
                attempts_kept: 1_000,
                retain: Span::secs(30 * 86_400),
                retain_jobs: 100_000,
            },
            schedule: ScheduleConfig::default(),
            timing: TimingConfig {
                renew_every: Span::secs(5),
                rho_milli: 10,
                margin: Span::secs(3),
                grace: Span::secs(120),
                rehome_after: Span::secs(600),
                grant_for: Span::secs(5),
                gossip_interval: Span::secs(1),
                gossip_interval_busy: Span::millis(200),
                probe_every: Some(Span::secs(300)),
                probe_share_milli: 5,
            },
            alerts: AlertsConfig::default(),
            shutdown: ShutdownConfig {
                deadline: Span::secs(30),
                jobs: ShutdownJobs::default(),
                notice: Span::secs(30),
            },
            certificate: CertificateConfig { lifetime: Span::secs(30 * 86_400) },
            local: LocalBackendConfig { container_runtime: None, cgroups: true },
            slurm: SlurmBackendConfig::default(),
            kubernetes: KubernetesBackendConfig::default(),
            trace: TraceConfig::default(),
        }
    }
}

impl Config {
    /// Reads a configuration. Every mistake is named at once, with its line.
    pub fn check(text: &str) -> Result<Config, Vec<ConfigMistake>> {
        read::read(text)
    }

    /// The same without what is nobody else's business: addresses of webhooks beyond their host, header values, what
    /// commands are given.
    pub fn without_secrets(&self) -> Config {
        Config { alerts: self.alerts.without_secrets(), ..self.clone() }
    }

    /// Writes the whole configuration, defaults included; `check` of it gives the same one.
    pub fn to_toml(&self) -> String {
        write::write(self)
    }
}
