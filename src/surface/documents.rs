//! The JSON documents of the API, shared by the server and the client. Times are milliseconds since
//! 1970 (`…_at_ms`), lengths of time milliseconds (`…_ms`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::{Epoch, JobId, PeerName, WallTime};
use crate::core::api::{Candidate, InspectReport, WhyReport};
use crate::model::report::{MemberView, NodeCapacity};
use crate::model::{JobRecord, JobSpec, JobState, Outcome, QueueReport};

/// Answer to `POST /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitDocument {
    /// The job's id.
    pub id: JobId,
    /// Peers that hold its record.
    pub homes: Vec<PeerName>,
    /// The same idempotency key had made it before.
    pub existed: bool,
    /// What one may do next.
    pub hints: Vec<String>,
}

/// One execution of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptDocument {
    /// Its number.
    pub epoch: u64,
    /// Where.
    pub cluster: PeerName,
    /// When it was placed.
    pub placed_at_ms: u64,
    /// When its program started.
    pub started_at_ms: Option<u64>,
    /// When it ended.
    pub ended_at_ms: Option<u64>,
    /// How it ended; none while it runs.
    pub outcome: Option<Outcome>,
}

/// A published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDocument {
    /// By which attempt.
    pub epoch: u64,
    /// Where it is.
    pub uri: String,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDocument {
    /// Its id.
    pub id: JobId,
    /// Name.
    pub name: String,
    /// Tenant.
    pub tenant: String,
    /// 0 to 100.
    pub priority: u8,
    /// Where it stands.
    pub state: JobState,
    /// Nothing follows.
    pub done: bool,
    /// Why it is there, in one sentence.
    pub reason: String,
    /// Nodes.
    pub nodes: u32,
    /// GPUs over all nodes.
    pub gpus: u64,
    /// GPU models that will do.
    pub gpu: Vec<String>,
    /// The cluster that has it now.
    pub cluster: Option<PeerName>,
    /// Newest attempt number, 0 when never placed.
    pub epoch: u64,
    /// Grows with every change of the record.
    pub version: u64,
    /// When it was taken.
    pub submitted_at_ms: u64,
    /// When it became final.
    pub finished_at_ms: Option<u64>,
    /// Who asked for its end.
    pub cancelled_by: Option<String>,
    /// Newest published checkpoint.
    pub checkpoint: Option<CheckpointDocument>,
    /// Attempts, oldest first.
    pub attempts: Vec<AttemptDocument>,
    /// Attempts that failed.
    pub failures: u32,
    /// Attempts that ended by loss of their cluster.
    pub losses: u32,
    /// Peers that hold the record.
    pub homes: Vec<PeerName>,
    /// Trace id.
    pub trace: String,
    /// What was asked; left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<JobSpec>,
}

impl JobDocument {
    /// The document of a record; lists go without the spec.
    pub fn new(record: &JobRecord, with_spec: bool) -> Self {
        Self {
            id: record.id(),
            name: record.spec.name.clone(),
            tenant: record.spec.tenant.clone(),
            priority: record.spec.priority,
            state: record.state,
            done: record.state.is_final(),
            reason: record.reason.clone(),
            nodes: record.spec.nodes,
            gpus: record.spec.gpus_total(),
            gpu: record.spec.resources.gpu.clone(),
            cluster: record.placement.as_ref().map(|p| p.cluster.clone()),
            epoch: record.epoch.0,
            version: record.version,
            submitted_at_ms: record.submitted_at.0,
            finished_at_ms: record.finished_at.map(|at| at.0),
            cancelled_by: record.cancel.as_ref().map(|c| c.by.clone()),
            checkpoint: record
                .checkpoint
                .as_ref()
                .map(|c| CheckpointDocument { epoch: c.epoch.0, uri: c.uri.clone() }),
            attempts: record.attempts.iter().map(AttemptDocument::from).collect(),
            failures: record.failures,
            losses: record.losses,
            homes: record.birth.homes.iter().map(|home| home.peer.clone()).collect(),
            trace: record.trace.to_string(),
            spec: with_spec.then(|| record.spec.clone()),
        }
    }

    /// The attempt of an epoch, or the newest one.
    pub fn attempt(&self, epoch: Option<Epoch>) -> Option<&AttemptDocument> {
        match epoch {
            Some(epoch) => self.attempts.iter().rev().find(|a| a.epoch == epoch.0),
            None => self.attempts.last(),
        }
    }
}

impl From<&crate::model::AttemptSummary> for AttemptDocument {
    fn from(a: &crate::model::AttemptSummary) -> Self {
        Self {
            epoch: a.epoch.0,
            cluster: a.cluster.clone(),
            placed_at_ms: a.placed_at.0,
            started_at_ms: a.started_at.map(|at| at.0),
            ended_at_ms: a.ended_at.map(|at| at.0),
            outcome: a.outcome.clone(),
        }
    }
}

/// Jobs, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<JobDocument>,
    /// There are more than were asked for.
    pub truncated: bool,
    /// Members whose part is missing, since they did not answer.
    pub unanswered: Vec<PeerName>,
}

/// Answer to `GET /v1/jobs/{id}/wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitDocument {
    /// The job has ended; otherwise the time was up.
    pub done: bool,
    /// The job.
    pub job: JobDocument,
}

/// Answer to a cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelDocument {
    /// The job.
    pub id: JobId,
    /// Its state after it: `cancelled`, a state in which it still stops, or how it had ended before.
    pub state: JobState,
}

/// One cluster for or against one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateDocument {
    /// Which.
    pub cluster: PeerName,
    /// It could ever run it.
    pub fits_ever: bool,
    /// It could start it now.
    pub fits_now: bool,
    /// Reasons against.
    pub reasons: Vec<String>,
    /// Lower is better.
    pub score: Option<f64>,
    /// The score's terms.
    pub terms: BTreeMap<String, f64>,
    /// Place in that cluster's queue, from 0, where a claim stands.
    pub queue_place: Option<u32>,
    /// Age of the figures.
    pub report_age_ms: Option<u64>,
}

/// Why a job is where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhyDocument {
    /// One sentence.
    pub summary: String,
    /// State; none for a dry run.
    pub state: Option<JobState>,
    /// The peer that drives it.
    pub owner: Option<PeerName>,
    /// The peer that gave this answer.
    pub asked: Option<PeerName>,
    /// One row per cluster, best first.
    pub clusters: Vec<CandidateDocument>,
}

impl From<WhyReport> for WhyDocument {
    fn from(r: WhyReport) -> Self {
        Self {
            summary: r.summary,
            state: r.state,
            owner: r.owner,
            asked: None,
            clusters: r.clusters.into_iter().map(CandidateDocument::from).collect(),
        }
    }
}

impl From<Candidate> for CandidateDocument {
    fn from(c: Candidate) -> Self {
        Self {
            cluster: c.cluster,
            fits_ever: c.fits_ever,
            fits_now: c.fits_now,
            reasons: c.reasons,
            score: c.score.filter(|s| s.is_finite()),
            terms: c.terms.into_iter().filter(|(_, v)| v.is_finite()).collect(),
            queue_place: c.claim,
            report_age_ms: c.report_age.map(|a| a.as_millis()),
        }
    }
}

/// GPUs of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuCount {
    /// In all.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Held by grants that nobody took yet.
    pub reserved: u64,
}

/// A cluster as the answering peer sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// CPU use, 0 to 1.
    pub cpu_use: Option<f64>,
    /// GPU use, 0 to 1, where it can be measured.
    pub gpu_use: Option<f64>,
    /// The peer says that it reaches nobody.
    pub isolated: bool,
    /// Version of its binary.
    pub version: Option<String>,
    /// How long ago anything of it was last heard; none where nothing ever was.
    pub age_ms: Option<u64>,
    /// Node groups.
    pub nodes: Vec<NodeCapacity>,
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
            cpu_use: health.map(|h| f64::from(h.cpu_milli) / 1e3),
            gpu_use: health.and_then(|h| h.gpu_milli).map(|g| f64::from(g) / 1e3),
            isolated: health.is_some_and(|h| h.isolated),
            version: report.and_then(|r| r.build.as_ref()).map(|b| b.version.clone()),
            age_ms,
            nodes: capacity.map(|c| c.nodes.clone()).unwrap_or_default(),
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ClusterList {
    /// By name.
    pub clusters: Vec<ClusterDocument>,
    /// The answering peer reaches nobody: everything else here is old.
    pub isolated: bool,
}

/// One direction of a link, as its first end measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LinkList {
    /// Both directions of every pair that was measured.
    pub links: Vec<LinkDocument>,
}

/// A level of the tree view: pool, region or cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    /// What is below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ViewNode>,
}

/// The tree view.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ViewDocument {
    /// Pools (label `pool`, else `default`), in them regions, in them clusters.
    pub pools: Vec<ViewNode>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemberList {
    /// By name.
    pub members: Vec<MemberDocument>,
}

/// A peer about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Members by liveness.
    pub members: BTreeMap<String, u64>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDocument {
    /// Stable name.
    pub kind: String,
    /// The job, where it is about one.
    pub job: Option<JobId>,
    /// One sentence.
    pub text: String,
    /// When this peer passed it on.
    pub at_ms: u64,
}

/// A peer's insides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectDocument {
    /// Which peer.
    pub peer: PeerName,
    /// Its core's report. Lengths of time are microseconds here.
    pub core: InspectReport,
}

/// An error, as every route gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDocument {
    /// The error.
    pub error: ErrorBody,
}

/// Its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Stable name.
    pub code: String,
    /// What is wrong, and whether anything changed.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// All mistakes of a spec, or the jobs that a prefix matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

/// Wall-clock time of now, for ages.
pub fn wall_now() -> WallTime {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Now on the clock of `Instant` (through suspend).
pub fn boottime_now() -> crate::base::Instant {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let us = i128::from(t.tv_sec) * 1_000_000 + i128::from(t.tv_nsec) / 1_000;
    crate::base::Instant(u64::try_from(us).unwrap_or(0))
}
