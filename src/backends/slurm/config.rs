//! What the Slurm backend is told, and where its files lie.

use super::*;

/// What the Slurm backend is told.
#[derive(Debug, Clone)]
pub struct SlurmConfig {
    /// A folder that this machine and all nodes see under the same path.
    pub shared: PathBuf,
    /// The `starling` binary; a copy of it goes into the shared folder.
    pub self_exe: PathBuf,
    /// The cluster's name, STARLING_CLUSTER.
    pub peer: PeerName,
    /// Folder of Slurm's commands; none means PATH.
    pub bin: Option<PathBuf>,
    /// `SLURM_CONF`; none means as the peer has it.
    pub conf: Option<PathBuf>,
    /// slurmrestd: `unix:/path` or `http://host:port`; none means the commands.
    pub rest: Option<String>,
    /// File with a JWT for slurmrestd over TCP.
    pub token: Option<PathBuf>,
    /// Partition of jobs that name none; also whose nodes are offered.
    pub partition: Option<String>,
    /// Account of jobs that name none.
    pub account: Option<String>,
    /// Quality of service of jobs that name none.
    pub qos: Option<String>,
    /// More options of sbatch for jobs that do not name them.
    pub options: Vec<(String, String)>,
    /// Canonical models of GRES types that do not say enough.
    pub gpu_names: BTreeMap<String, String>,
    /// Between two lists of Slurm's jobs.
    pub interval: Span,
    /// An attempt that Slurm leaves waiting for longer is given back.
    pub pending_max: Span,
    /// Where guards are listened to.
    pub listen: SocketAddr,
    /// Name or address at which nodes reach this machine; none means its host name.
    pub host: Option<String>,
    /// The signal that gives notice; none is SIGTERM.
    pub notice_signal: Option<i32>,
    /// Time between notice and kill where a stop does not say otherwise.
    pub notice: Span,
    /// Where the datasets that are declared here lie, by name.
    pub datasets: BTreeMap<String, PathBuf>,
    /// Output kept per stream.
    pub logs: LogLimits,
    /// Ended and forgotten attempts whose logs and working folders are kept.
    pub attempts_kept: usize,
}

impl SlurmConfig {
    /// With defaults: the commands from PATH, a list every 2 s, an hour in Slurm's queue.
    pub fn new(shared: PathBuf, self_exe: PathBuf, peer: PeerName) -> Self {
        Self {
            shared,
            self_exe,
            peer,
            bin: None,
            conf: None,
            rest: None,
            token: None,
            partition: None,
            account: None,
            qos: None,
            options: Vec::new(),
            gpu_names: BTreeMap::new(),
            interval: Span::secs(2),
            pending_max: Span::secs(3_600),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            host: None,
            notice_signal: None,
            notice: Span::secs(30),
            datasets: BTreeMap::new(),
            logs: LogLimits::default(),
            attempts_kept: 1_000,
        }
    }
    pub(super) fn attempts(&self) -> PathBuf {
        self.shared.join("attempts")
    }
    pub(super) fn bin_folder(&self) -> PathBuf {
        self.shared.join("bin")
    }
    /// The guard's binary as the nodes see it.
    pub(super) fn guard_path(&self) -> PathBuf {
        self.bin_folder().join(format!("starling-{}", env!("CARGO_PKG_VERSION")))
    }
    pub(super) fn line_file(&self) -> PathBuf {
        self.shared.join("line.json")
    }
    pub(super) fn nodes_file(&self) -> PathBuf {
        self.shared.join("nodes.json")
    }
    pub(super) fn types_file(&self) -> PathBuf {
        self.shared.join("gpu-types.json")
    }
    pub(super) fn partitions(&self) -> Vec<String> {
        self.partition.iter().flat_map(|p| p.split(',')).map(str::to_owned).collect()
    }
}
