//! Documents about clusters, links, members and the peer.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::{JobId, PeerName, Span};
use crate::core::api::{ClaimView, InspectReport};
use crate::model::QueueReport;
use crate::model::partitions::SlurmReport;
use crate::model::report::{MemberView, NodeCapacity, NodesOut};

/// GPUs of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GpuCount {
    /// In all.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Held by grants that nobody took yet, or kept for a reservation and idle.
    pub reserved: u64,
}

/// A cluster as the answering peer sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterDocument {
    /// Its name, which is its peer's.
    pub name: PeerName,
    /// `alive`, `suspect`, `lost`.
    pub liveness: String,
    /// Takes no new attempts.
    pub draining: bool,
    /// Stores records only.
    pub witness: bool,
    /// Why it takes no work, if it does not.
    pub closed: Option<String>,
    /// `local`, `slurm`…
    pub backend: String,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// USD per GPU hour.
    pub price_usd: f64,
    /// Power usage effectiveness.
    pub pue: f64,
    /// `podman`, `docker` or none.
    pub container_runtime: Option<String>,
    /// GPUs by model.
    pub gpus: BTreeMap<String, GpuCount>,
    /// Some node was declared, not found: its GPUs are virtual.
    pub declared: bool,
    /// Free CPU, thousandths of cores.
    pub cpus_free_milli: u64,
    /// Free memory, bytes.
    pub memory_free_bytes: u64,
    /// Attempts that run.
    pub running: u32,
    /// Claims that wait.
    pub queued: u32,
    /// GPUs they ask for.
    pub queued_gpus: u64,
    /// GPUs that are kept free for jobs that ran before and for urgent ones.
    #[serde(default)]
    pub gpus_buffer: u32,
    /// Reservations, the first to begin first; the cluster names some of them where there are many,
    #[serde(default)]
    pub reservations: Vec<super::ReservedDocument>,
    /// and how many more there are.
    #[serde(default)]
    pub reservations_more: u32,
    /// CPU use, 0 to 1.
    pub cpu_use: Option<f64>,
    /// GPU use, 0 to 1, where it can be measured.
    pub gpu_use: Option<f64>,
    /// The peer says that it reaches nobody.
    pub isolated: bool,
    /// What people should know of its disk: it was put aside as an older copy of itself, and begun anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_note: Option<String>,
    /// Version of its binary.
    pub version: Option<String>,
    /// How long ago anything of it was last heard; none where nothing ever was.
    pub age_ms: Option<u64>,
    /// Node groups.
    pub nodes: Vec<NodeCapacity>,
    /// Nodes that are there and take nothing, with the reason; some of them where there are many.
    #[serde(default, skip_serializing_if = "NodesOut::is_empty")]
    pub nodes_out: NodesOut,
    /// Partitions and node features of a Slurm cluster; some of them where there are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmReport>,
}

impl ClusterDocument {
    /// The document of one member; `age_ms` is given by whoever has the clock.
    pub fn new(member: &MemberView, age_ms: Option<u64>) -> Self {
        let report = member.report.as_ref();
        let capacity = report.and_then(|r| r.capacity.as_ref());
        let queue = report.and_then(|r| r.queue.as_ref());
        let health = report.and_then(|r| r.health.as_ref());
        Self {
            name: member.peer.clone(),
            liveness: member.liveness.as_str().to_owned(),
            draining: member.draining,
            witness: member.witness,
            closed: queue.and_then(|q| q.closed.clone()),
            backend: capacity.map(|c| c.backend.clone()).unwrap_or_default(),
            region: capacity.map(|c| c.region.clone()).unwrap_or_default(),
            zone: capacity.map(|c| c.zone.clone()).unwrap_or_default(),
            labels: capacity.map(|c| c.labels.clone()).unwrap_or_default(),
            price_usd: capacity.map_or(0.0, |c| c.price_milli as f64 / 1e3),
            pue: capacity.map_or(0.0, |c| f64::from(c.pue_milli) / 1e3),
            container_runtime: capacity.and_then(|c| c.container_runtime.clone()),
            gpus: queue.map(gpu_counts).unwrap_or_default(),
            declared: capacity.is_some_and(|c| c.nodes.iter().any(|n| n.declared)),
            cpus_free_milli: queue.map_or(0, |q| q.cpus_free.0),
            memory_free_bytes: queue.map_or(0, |q| q.memory_free.0),
            running: queue.map_or(0, |q| q.running),
            queued: queue.map_or(0, |q| q.queued),
            queued_gpus: queue.map_or(0, |q| q.queued_gpus),
            gpus_buffer: queue.map_or(0, |q| q.gpus_buffer),
            reservations: queue.map_or_else(Vec::new, |q| q.reserved.iter().map(Into::into).collect()),
            reservations_more: queue.map_or(0, |q| q.reserved_more),
            cpu_use: health.map(|h| f64::from(h.cpu_milli) / 1e3),
            gpu_use: health.and_then(|h| h.gpu_milli).map(|g| f64::from(g) / 1e3),
            isolated: health.is_some_and(|h| h.isolated),
            disk_note: health.and_then(|h| h.disk_note.clone()),
            version: report.and_then(|r| r.build.as_ref()).map(|b| b.version.clone()),
            age_ms,
            nodes: capacity.map(|c| c.nodes.clone()).unwrap_or_default(),
            nodes_out: capacity.map(|c| c.nodes_out.clone()).unwrap_or_default(),
            slurm: capacity.and_then(|c| c.slurm.clone()),
        }
    }
}

fn gpu_counts(queue: &QueueReport) -> BTreeMap<String, GpuCount> {
    let count = |of: &BTreeMap<String, u32>, model: &str| u64::from(of.get(model).copied().unwrap_or(0));
    let row = |model: &String| GpuCount {
        total: count(&queue.gpus_total, model),
        free: count(&queue.gpus_free, model),
        reserved: count(&queue.gpus_reserved, model),
    };
    queue.gpus_total.keys().map(|model| (model.clone(), row(model))).collect()
}

/// Clusters as one peer sees them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClusterList {
    /// By name.
    pub clusters: Vec<ClusterDocument>,
    /// The answering peer reaches nobody: everything else here is old.
    pub isolated: bool,
}

/// What waits at one cluster, in order, as that cluster says now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDocument {
    /// Which cluster.
    pub cluster: PeerName,
    /// What waits: first those that hold a grant.
    pub claims: Vec<ClaimDocument>,
    /// How many there are, of which `claims` has the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// A claim in a cluster's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimDocument {
    /// Place in the queue, from 1.
    pub place: u64,
    /// Which job.
    pub job: JobId,
    /// Who claims.
    pub owner: PeerName,
    /// Priority.
    pub priority: u8,
    /// GPUs over all nodes.
    pub gpus: u64,
    /// It holds a grant that its owner has not taken yet.
    pub granted: bool,
    /// How long it has waited there.
    pub waited_ms: u64,
    /// How long until it starts, if that can be known.
    pub starts_in_ms: Option<u64>,
    /// Why it waits, in words and numbers; empty where it is far behind or one of too many kinds, and of a cluster of an older version.
    pub why: String,
}

impl QueueDocument {
    /// A cluster's queue as its core tells it.
    pub fn new(cluster: PeerName, report: &InspectReport) -> Self {
        let claim = |(n, c): (usize, &ClaimView)| ClaimDocument {
            place: n as u64 + 1,
            job: c.job,
            owner: c.owner.clone(),
            priority: c.priority,
            gpus: c.gpus,
            granted: c.granted,
            waited_ms: c.age.as_millis(),
            starts_in_ms: c.starts_in.map(Span::as_millis),
            why: c.why.clone(),
        };
        Self {
            cluster,
            claims: report.queue.iter().enumerate().map(claim).collect(),
            total: report.queue_total,
        }
    }
}

/// One direction of a link, as its first end measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkDocument {
    /// Who measured.
    pub from: PeerName,
    /// The other end.
    pub to: PeerName,
    /// Smallest round trip seen lately.
    pub rtt_ms: f64,
    /// Lost packets, 0 to 1.
    pub loss: f64,
    /// Measured throughput, bits per second.
    pub bandwidth_bps: Option<u64>,
    /// How old the throughput is.
    pub bandwidth_age_ms: Option<u64>,
    /// How old RTT and loss are.
    pub age_ms: u64,
    /// A direct connection stands.
    pub direct: bool,
}

/// The links matrix.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LinkList {
    /// Both directions of every pair that was measured.
    pub links: Vec<LinkDocument>,
}

/// A level of the tree view: pool, region or cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ViewNode {
    /// Name at this level.
    pub name: String,
    /// `pool`, `region`, `cluster`.
    pub level: String,
    /// GPUs by model, summed over what is alive below.
    pub gpus: BTreeMap<String, GpuCount>,
    /// Attempts that run.
    pub running: u64,
    /// Claims that wait.
    pub queued: u64,
    /// For a cluster: how alive it looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<String>,
    /// For a cluster: what people should know of its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_note: Option<String>,
    /// What is below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ViewNode>,
}

/// The tree view.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ViewDocument {
    /// Pools (label `pool`, else `default`), in them regions, in them clusters.
    pub pools: Vec<ViewNode>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberDocument {
    /// Name.
    pub name: PeerName,
    /// How alive it looks from here.
    pub liveness: String,
    /// No longer a member.
    pub removed: bool,
    /// Stores records only.
    pub witness: bool,
    /// Addresses it is reached at.
    pub addresses: Vec<String>,
    /// Its disk.
    pub store: String,
}

/// The member list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MemberList {
    /// By name.
    pub members: Vec<MemberDocument>,
}

/// A peer about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerDocument {
    /// Name.
    pub name: PeerName,
    /// Mesh id.
    pub mesh: String,
    /// Its disk.
    pub store: String,
    /// Starts of this store.
    pub boot: u64,
    /// Where QUIC listens.
    pub listen: String,
    /// Where the API listens on TCP.
    pub api: Option<String>,
    /// Version.
    pub version: String,
    /// Certificate's begin.
    pub certificate_from_ms: u64,
    /// Certificate's end.
    pub certificate_until_ms: u64,
    /// When the process started.
    pub started_at_ms: u64,
    /// Takes no new attempts.
    pub draining: bool,
    /// Reaches no other member.
    pub isolated: bool,
    /// Its disk has no room: it takes no new jobs and attempts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_full: bool,
    /// What people should know of its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_note: Option<String>,
    /// Members by liveness.
    pub members: BTreeMap<String, u64>,
    /// Its clock for people when it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now_ms: Option<u64>,
    /// Settings that others compare with their own; older versions do not tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<SettingsDocument>,
    /// It goes by a clock that is made for tests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test_clock: bool,
}

/// Settings of a peer that are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsDocument {
    /// How far clock rates may be off, thousandths.
    pub rho_milli: u64,
    /// Time for killing an attempt, plus safety.
    pub margin_ms: u64,
    /// Homes of a new record.
    pub replicas: usize,
    /// Grace of jobs that say none.
    pub grace_ms: u64,
    /// Names of its notifiers.
    pub notifiers: Vec<String>,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// All is well.
    Ok,
    /// Worth knowing.
    Note,
    /// Should be looked at.
    Warn,
    /// Is wrong.
    Bad,
}

/// One thing that the doctor looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// How much it matters.
    pub weight: Weight,
    /// What was looked at.
    pub about: String,
    /// What was found.
    pub text: String,
    /// What to do; empty where nothing is.
    pub todo: String,
}

/// What the doctor found, the worst first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorDocument {
    /// The peer that looked.
    pub peer: PeerName,
    /// When.
    pub at_ms: u64,
    /// The findings.
    pub findings: Vec<Finding>,
}

/// What became of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedDocument {
    /// Which member.
    pub name: PeerName,
    /// It is none any more.
    pub removed: bool,
    /// It was removed before.
    pub existed: bool,
}

/// A join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenDocument {
    /// The token.
    pub token: String,
    /// It is good for so long.
    pub ttl_ms: u64,
    /// Where the peer that gave it listens.
    pub listen: String,
}

/// Whether a cluster takes attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainDocument {
    /// Which.
    pub cluster: PeerName,
    /// It takes none.
    pub draining: bool,
}

/// A peer's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDocument {
    /// Whose.
    pub peer: PeerName,
    /// As TOML, without secrets.
    pub toml: String,
}

/// Whether the peer works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthDocument {
    /// Its core answers.
    pub ok: bool,
}
