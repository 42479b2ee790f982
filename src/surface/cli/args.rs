//! What may be written on the command line.
// tidy: long because it is the whole command line, one item per word

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::slurm::SlurmCommand;
use crate::base::{PeerName, Span};
use crate::model::config::BackendKind;

/// Schedules jobs over many GPU clusters with no hub: every cluster runs one identical peer
#[derive(Debug, Parser)]
#[command(name = "starling", version, max_term_width = 110, propagate_version = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The peer to ask: unix:/path, https://HOST:PORT, HOST:PORT; default is this machine's own
    #[arg(long, global = true, env = "STARLING_PEER", value_name = "ADDR")]
    pub peer: Option<String>,
    /// Token of a peer that is asked over TCP
    #[arg(long, global = true, env = "STARLING_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The mesh's certificate, for https; default is identity/ca.pem in the state folder
    #[arg(long, global = true, env = "STARLING_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// State folder; default ~/.local/state/starling
    #[arg(long, global = true, env = "STARLING_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, global = true)]
    pub json: bool,
    /// Colours
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    pub color: When,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start this cluster's peer
    Up(UpArgs),
    /// Submit a job file (YAML or JSON) or an sbatch file; - reads standard input
    Submit(SubmitArgs),
    /// Submit a command as a job
    Run(RunArgs),
    /// List jobs of the whole mesh
    #[command(visible_alias = "queue")]
    Jobs(JobsArgs),
    /// Show one job; or say that its attempt is lost for good, or release it
    Job(JobArgs),
    /// Print a job's logs, wherever it ran
    Logs(LogsArgs),
    /// End a job
    Cancel(IdArg),
    /// Stop a job with notice and go on at another cluster
    Move(MoveArgs),
    /// Wait until jobs have ended
    Wait(WaitArgs),
    /// Show one job, live, until it has ended; exit codes as `wait`
    Watch(WatchArgs),
    /// Explain why a job is where it is, cluster by cluster
    Why(IdArg),
    /// Draw a job's trace: every wait, attempt and move over all peers, on one time line
    Trace(TraceArgs),
    /// Show clusters, jobs and links, live, in the terminal
    Top(TopArgs),
    /// List clusters, or show one
    Clusters(ClustersArgs),
    /// Show RTT, loss and bandwidth between clusters
    Links,
    /// Show capacity by pool, region and cluster
    View(ViewArgs),
    /// Show the peer that answers
    Peer,
    /// Look the peer and the mesh over, and say what to do
    Doctor,
    /// Print the address of the peer's page, with the token that opens it
    Page,
    /// Show what is wrong, the jobs it touches and what is done for each
    Incidents(IncidentsArgs),
    /// Tell nobody of an incident, or of a kind of them, for a time
    Silence(SilenceArgs),
    /// Write what a person needs to help into one file, without secrets
    SupportBundle(BundleArgs),
    /// Print events as they come
    Events(EventsArgs),
    /// Show who changed what through the peer, or check that nobody changed that
    Audit(AuditArgs),
    /// Make join tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// List or remove members
    #[command(subcommand)]
    Member(MemberCommand),
    /// Limit what tenants may use over the whole mesh
    #[command(subcommand)]
    Tenant(super::tenants::TenantCommand),
    /// Keep GPUs for a tenant, from a time on, for a time
    Reserve(super::reserve::ReserveArgs),
    /// Show what is reserved, for whom and when
    Reservations(super::reserve::ReservationsArgs),
    /// End a reservation
    Unreserve(IdArg),
    /// Take no new attempts, and hand back the running ones
    Drain(ClusterArg),
    /// Take attempts again
    Undrain(ClusterArg),
    /// Slurm's verbs over the whole mesh: squeue, sinfo, sbatch, scancel, sacct
    #[command(subcommand)]
    Slurm(SlurmCommand),
    /// Check a configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Try it: a mesh of real peers on this machine, jobs, and a peer that is killed
    Demo(DemoArgs),
    /// Submit the jobs of a cluster trace with time sped up
    Replay(ReplayArgs),
    /// Run peers under faults and check that no job is lost or run twice
    Chaos(ChaosArgs),
    /// Stand between a peer and an attempt (started by the peer)
    #[command(hide = true)]
    Guard {
        /// The attempt's folder; in a pod, where it is made
        dir: PathBuf,
        /// Guard the attempt that this folder (a Secret of Kubernetes) describes
        #[arg(long, value_name = "FOLDER")]
        pod: Option<PathBuf>,
        /// Only put a copy of this binary into the folder
        #[arg(long, conflicts_with = "pod")]
        install: bool,
    },
    /// Work for demo, replay and tests
    #[command(hide = true, subcommand)]
    Work(WorkCommand),
}

/// `starling up`.
#[derive(Debug, Clone, Default, Args)]
pub struct UpArgs {
    /// Configuration file (docs/reference/config.md); flags come before it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Filled from the global --state
    #[arg(skip)]
    pub state: Option<PathBuf>,
    /// Name of this peer and its cluster; default is the host's
    #[arg(long)]
    pub name: Option<PeerName>,
    /// Join a mesh: TOKEN@HOST:PORT, from `starling token create` there; looked at by the first start only
    #[arg(long, env = "STARLING_JOIN", value_name = "TOKEN@HOST:PORT", hide_env_values = true)]
    pub join: Option<String>,
    /// Where to listen for other peers (UDP), such as 0.0.0.0:7171
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Address that others reach this peer at; may be given more than once
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// Region, such as eu-central
    #[arg(long)]
    pub region: Option<String>,
    /// Zone in it
    #[arg(long)]
    pub zone: Option<String>,
    /// Loopback address for the HTTP API beside the unix socket
    #[arg(long, value_name = "ADDR:PORT")]
    pub api: Option<std::net::SocketAddr>,
    /// Address for the HTTP API over TLS
    #[arg(long, value_name = "ADDR:PORT")]
    pub api_tls: Option<std::net::SocketAddr>,
    /// What runs the jobs: local (this machine), slurm (the Slurm cluster of this login node) or kubernetes
    #[arg(long, value_parser = backend)]
    pub backend: Option<BackendKind>,
    /// Kubernetes: kubeconfig file; else KUBECONFIG, the usual file, or this pod's account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubernetes: where jobs run; else the kubeconfig's or this pod's
    #[arg(long)]
    pub namespace: Option<String>,
    /// Store records and run nothing
    #[arg(long)]
    pub witness: bool,
    /// Label as KEY=VALUE; may be given more than once
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub labels: Vec<(String, String)>,
}

fn backend(text: &str) -> Result<BackendKind, String> {
    match text {
        "local" => Ok(BackendKind::Local),
        "slurm" => Ok(BackendKind::Slurm),
        "kubernetes" => Ok(BackendKind::Kubernetes),
        _ => Err("must be local, slurm or kubernetes".into()),
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("not KEY=VALUE".into()),
    }
}

/// `starling submit`.
#[derive(Debug, Clone, Args)]
pub struct SubmitArgs {
    /// Job file; - reads standard input
    pub file: PathBuf,
    /// Idempotency key: the same key gives the same job
    #[arg(long)]
    pub key: Option<String>,
    /// Explain where it could run; submit nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until it has ended
    #[arg(long)]
    pub wait: bool,
    /// Print its logs until it has ended
    #[arg(long, short)]
    pub follow: bool,
}

/// `starling run`.
#[derive(Debug, Clone, Default, Args)]
pub struct RunArgs {
    /// Name; default is the command's
    #[arg(long)]
    pub name: Option<String>,
    /// Tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// GPUs per node
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// GPU model that will do; may be given more than once
    #[arg(long, value_name = "MODEL")]
    pub gpu: Vec<String>,
    /// CPUs per node, such as 4 or 500m
    #[arg(long, value_name = "N")]
    pub cpus: Option<String>,
    /// Memory per node, such as 16G
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Nodes
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,
    /// Priority: low, normal, high or 0 to 100
    #[arg(long)]
    pub priority: Option<String>,
    /// Container image
    #[arg(long)]
    pub image: Option<String>,
    /// Environment variable; may be given more than once
    #[arg(long = "env", short, value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,
    /// Checkpoint path
    #[arg(long, value_name = "PATH")]
    pub checkpoint: Option<String>,
    /// Longest run of one attempt, such as 2h
    #[arg(long, value_name = "TIME")]
    pub max_runtime: Option<String>,
    /// Tries after a failure
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// Region that will do; may be given more than once
    #[arg(long)]
    pub region: Vec<String>,
    /// Idempotency key: the same key gives the same job
    #[arg(long)]
    pub key: Option<String>,
    /// Explain where it could run; submit nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until it has ended
    #[arg(long)]
    pub wait: bool,
    /// Print its logs until it has ended
    #[arg(long, short)]
    pub follow: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `starling jobs`.
#[derive(Debug, Clone, Args)]
pub struct JobsArgs {
    /// Only of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only in these states, with commas between
    #[arg(long)]
    pub states: Option<String>,
    /// Only those submitted since then: a date (2026-06-01T12:00:00Z), or so long ago (2h)
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Only those submitted before then
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// The next page: what the last one said
    #[arg(long, value_name = "PLACE")]
    pub before: Option<String>,
    /// At most so many, newest first
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub limit: usize,
    /// What waits in this cluster's queue, in order, and why each does
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["tenant", "states", "since", "until", "before", "array", "complete"])]
    pub at: Option<PeerName>,
    /// Only jobs of this array, by its id; without it jobs of arrays are left out
    #[arg(long, value_name = "ID")]
    pub array: Option<String>,
    /// Fail (7) unless every member answered
    #[arg(long)]
    pub complete: bool,
}

/// One job.
#[derive(Debug, Clone, Args)]
pub struct IdArg {
    /// Job id, or its first 4 or more characters
    pub id: String,
}

/// `starling top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// What to show first
    #[arg(long, value_enum, default_value = "clusters")]
    pub view: TopView,
    /// Ask again this often at least; an event makes it ask sooner
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub every: Span,
    /// Print one frame as text, with every row, and end
    #[arg(long)]
    pub once: bool,
}

/// What `top` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopView {
    /// Clusters.
    Clusters,
    /// Jobs, the newest 500.
    Jobs,
    /// Links.
    Links,
}

/// `starling watch`.
#[derive(Debug, Clone, Args)]
pub struct WatchArgs {
    /// Job id, or its first 4 or more characters
    pub id: String,
    /// Log lines shown
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub lines: usize,
    /// Stop watching after this long (exit code 6)
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,
}

/// `starling trace`.
#[derive(Debug, Clone, Args)]
pub struct TraceArgs {
    /// Job id, or its first 4 or more characters
    pub id: String,
    /// Also list what the peers wrote down, oldest first
    #[arg(long)]
    pub events: bool,
}

/// `starling job`.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    /// Job id, or its first 4 or more characters
    pub id: String,
    /// Say something about it instead of showing it
    #[arg(value_enum)]
    pub word: Option<JobWord>,
    /// The attempt that is meant (confirm-lost); default is the present one
    #[arg(long)]
    pub epoch: Option<u64>,
    /// Do it: what confirm-lost risks has been understood
    #[arg(long)]
    pub yes: bool,
}

/// What an operator may say about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum JobWord {
    /// Its attempt has stopped for good, although its cluster cannot be asked: run it again
    ConfirmLost,
    /// It is held after many losses: let it run again
    Release,
}

/// `starling move`.
#[derive(Debug, Clone, Args)]
pub struct MoveArgs {
    /// Job id, or its first 4 or more characters
    pub id: String,
    /// The cluster that shall take it
    pub cluster: PeerName,
}

/// `starling logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Job id, or its first 4 or more characters
    pub id: String,
    /// Go on until the job has ended, over moves to other clusters
    #[arg(long, short)]
    pub follow: bool,
    /// Of the job of this index, where ID is an array (the same as ID.INDEX)
    #[arg(long, value_name = "INDEX")]
    pub index: Option<u32>,
    /// Only of this node of the job
    #[arg(long)]
    pub rank: Option<u32>,
    /// Only this stream
    #[arg(long, value_parser = ["stdout", "stderr"])]
    pub stream: Option<String>,
    /// Only the last so many lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Of this attempt; default is the newest
    #[arg(long)]
    pub epoch: Option<u64>,
}

/// `starling wait`.
#[derive(Debug, Clone, Args)]
pub struct WaitArgs {
    /// Job ids, or their first 4 or more characters
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Give up after this long (6), such as 10m
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,
}

/// `starling clusters`.
#[derive(Debug, Clone, Args)]
pub struct ClustersArgs {
    /// Only this one, in detail
    pub name: Option<PeerName>,
    /// Print its member status report (JSON)
    #[arg(long, requires = "name")]
    pub report: bool,
}

/// `starling view`.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// As a tree (the only form yet)
    #[arg(long)]
    pub tree: bool,
}

/// `starling events`.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Only about this job
    #[arg(long)]
    pub job: Option<String>,
    /// Only kinds that start so, such as job.
    #[arg(long)]
    pub kind: Option<String>,
    /// End after so many
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// What was, from the logs of all peers that answer, and end
    #[arg(long)]
    pub past: bool,
    /// The same, not older than this, such as 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<Span>,
    /// Only about jobs of this tenant (what was)
    #[arg(long, conflicts_with = "count")]
    pub tenant: Option<String>,
}

/// `starling incidents`.
#[derive(Debug, Clone, Args)]
pub struct IncidentsArgs {
    /// Only this one, by its id or the first 4 or more characters of it
    pub id: Option<String>,
    /// Those that are over, too
    #[arg(long)]
    pub past: bool,
}

/// `starling silence`.
#[derive(Debug, Clone, Args)]
pub struct SilenceArgs {
    /// An incident's id (or its start), a kind such as link, or KIND:SUBJECT; without it silences are listed
    pub what: Option<String>,
    /// For so long, such as 2h; at most 30d
    #[arg(long = "for", value_name = "TIME", requires = "what")]
    pub span: Option<Span>,
    /// End it
    #[arg(long, requires = "what", conflicts_with = "span")]
    pub end: bool,
}

/// `starling support-bundle`.
#[derive(Debug, Clone, Args)]
pub struct BundleArgs {
    /// Where to; default is starling-support-PEER.tar.zst here
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `starling audit`.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// Check the chain instead of showing it
    #[arg(value_enum)]
    pub word: Option<AuditWord>,
    /// At most so many, newest first
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub limit: usize,
    /// Check the files of a state folder itself, without asking its peer
    #[arg(long, requires = "word")]
    pub files: bool,
}

/// What to do with the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AuditWord {
    /// Read all of it and check that no byte was changed
    Verify,
}

/// `starling token`.
#[derive(Debug, Clone, Subcommand)]
pub enum TokenCommand {
    /// Make a single-use join token
    Create {
        /// Good for this long, at most 1h
        #[arg(long, default_value = "15m", value_name = "TIME")]
        ttl: Span,
    },
}

/// `starling member`.
#[derive(Debug, Clone, Subcommand)]
pub enum MemberCommand {
    /// List members
    List,
    /// Remove a member, for good
    Remove {
        /// Which
        name: PeerName,
        /// Also while it is alive and holds records
        #[arg(long)]
        force: bool,
    },
}

/// A cluster, or the one asked.
#[derive(Debug, Clone, Args)]
pub struct ClusterArg {
    /// Cluster; default is that of the peer asked
    pub cluster: Option<PeerName>,
}

/// `starling config`.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Name every mistake in a file
    Check {
        /// Which
        file: PathBuf,
    },
}

/// `starling demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Peers, each fronting a cluster in another region
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16), value_name = "N")]
    pub clusters: u32,
    /// Leave it running and print the addresses
    #[arg(long)]
    pub keep: bool,
    /// Filled from the global --json
    #[arg(skip)]
    pub json: bool,
    /// Seeds every choice the demo makes
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Folder for states and ledgers; default is a temporary one
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// What is shown
    #[arg(long, value_enum, default_value_t = DemoScenario::Kill)]
    pub scenario: DemoScenario,
}

/// What a demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DemoScenario {
    /// Jobs, and a peer that is killed half way
    Kill,
    /// The checks before a pool is handed over: function, preemption, monitoring data, capacity at peak
    Acceptance,
}

/// `starling replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// CSV with the columns timestamp, duration, num_gpus, cluster
    pub trace: PathBuf,
    /// Peers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16), value_name = "N")]
    pub clusters: u32,
    /// How many times faster than the trace
    #[arg(long, default_value_t = 1_000.0, value_parser = speed, value_name = "X")]
    pub speed: f64,
    /// Only the first so many jobs
    #[arg(long, value_name = "K")]
    pub limit: Option<usize>,
    /// Filled from the global --json
    #[arg(skip)]
    pub json: bool,
    /// Seeds every choice the replay makes
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Folder for states and ledgers; default is a temporary one
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

fn speed(text: &str) -> Result<f64, String> {
    number(text, 1e-3, 1e9)
}

/// `starling chaos`.
#[derive(Debug, Clone, Args)]
#[command(after_help = CHAOS_HELP)]
pub struct ChaosArgs {
    /// Seeds the faults and the jobs
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// How long things go wrong; healing and judging come after it
    #[arg(long, default_value_t = 2.0, value_parser = |t: &str| number(t, 0.1, 10_080.0), value_name = "M")]
    pub minutes: f64,
    /// Peers, each in a network namespace of its own
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(4..=16), value_name = "N")]
    pub peers: u32,
    /// Jobs submitted per minute, on average
    #[arg(long, default_value_t = 40.0, value_parser = |t: &str| number(t, 1.0, 600.0), value_name = "N")]
    pub jobs_per_minute: f64,
    /// Write a page with the faults, the attempts and their epochs on one time line
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print what would go wrong when, and do nothing
    #[arg(long)]
    pub plan: bool,
    /// Filled from the global --json
    #[arg(skip)]
    pub json: bool,
    /// Folder for states, logs and the ledger, which stays; default is one that goes unless something is wrong
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

const CHAOS_HELP: &str = "\
Real peers run real jobs while their network is cut, their processes are killed or stopped and their disks are \
filled. What the jobs wrote down is judged at the end, without asking Starling: none lost, none twice, no two \
attempts at once, no older epoch after a newer one. Exit code 1 if that does not hold. Needs root and iproute2.";

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (least..=most).contains(&x) => Ok(x),
        _ => Err(format!("not a number from {least} to {most}")),
    }
}

/// `starling work`.
#[derive(Debug, Clone, Subcommand)]
pub enum WorkCommand {
    /// A small training loop with checkpoints and a ledger of its steps
    Train {
        /// Steps in all, over every attempt
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        steps: u64,
        /// How long a step takes at least
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
        step_ms: u64,
        /// Steps between checkpoints
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        checkpoint_every: u64,
        /// Where every step is noted
        #[arg(long)]
        ledger: Option<PathBuf>,
    },
    /// Do nothing for a while, and note its begin and end
    Sleep {
        /// How long
        #[arg(long)]
        ms: u64,
        /// Where begin and end are noted
        #[arg(long)]
        ledger: Option<PathBuf>,
    },
}
