//! The JSON documents of the API, shared by the server and the client. Times are milliseconds since
//! 1970 (`…_at_ms`), lengths of time milliseconds (`…_ms`).

// tidy: long because it is a list of documents, each of them short

mod incidents;
mod mesh;
mod reservations;
mod tenants;
mod trace;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::{Epoch, JobId, PeerName, WallTime};
use crate::core::api::{Candidate, InspectReport, WhyReport};
use crate::core::placement::groups::GroupPlan;
use crate::core::placement::{Estimate, Reason};
use crate::model::staging::Staging;
use crate::model::{JobRecord, JobSpec, JobState, Outcome};

pub use incidents::*;
pub use mesh::*;
pub use reservations::*;
pub use tenants::*;
pub use trace::*;

/// Answer to `POST /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// What its cluster says of that beside the outcome: `killed for memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The nodes that it ran on, in the names of its cluster's scheduler; none where it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
}

/// A published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointDocument {
    /// By which attempt.
    pub epoch: u64,
    /// Where it is.
    pub uri: String,
}

/// An array's progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArrayDocument {
    /// Its indices, as in a job file.
    pub indices: String,
    /// Jobs in all.
    pub size: u32,
    /// Jobs that may be unfinished at a time.
    pub at_once: u32,
    /// Jobs that are unfinished now.
    pub under_way: u32,
    /// Ended as succeeded.
    pub succeeded: u32,
    /// Ended as failed.
    pub failed: u32,
    /// Ended as cancelled.
    pub cancelled: u32,
}

/// Of which array a job is part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArrayOfDocument {
    /// The array.
    pub id: JobId,
    /// Its index there.
    pub index: u32,
}

/// A group of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobGroupDocument {
    /// Its name.
    pub name: String,
    /// Its own record.
    pub id: JobId,
    /// Nodes.
    pub nodes: u32,
    /// GPUs over all nodes.
    pub gpus: u64,
    /// Where it is under the newest epoch.
    pub cluster: Option<PeerName>,
    /// It was seen to run.
    pub started: bool,
    /// How it ended under that epoch, once that was seen.
    pub outcome: Option<Outcome>,
}

impl JobGroupDocument {
    fn of(record: &JobRecord) -> Vec<Self> {
        let Some(state) = &record.groups else { return Vec::new() };
        let one = |(i, group): (u32, &crate::model::spec::Group)| {
            let placed = state.placed.get(i as usize);
            Some(Self {
                name: group.name.clone(),
                id: record.child_birth(i)?.id(),
                nodes: group.nodes,
                gpus: u64::from(group.resources.gpus) * u64::from(group.nodes),
                cluster: placed.map(|p| p.placement.cluster.clone()),
                started: placed.is_some_and(|p| p.started),
                outcome: placed.and_then(|p| p.outcome.clone()),
            })
        };
        (0u32..).zip(&record.spec.groups.list).filter_map(one).collect()
    }
}

/// A job that another waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AfterDocument {
    /// Which.
    pub id: JobId,
    /// How it must end.
    pub on: String,
    /// It did.
    pub met: bool,
}

impl ArrayDocument {
    fn of(record: &JobRecord) -> Option<Self> {
        let (spec, state) = (record.spec.array.as_ref()?, record.array.as_ref()?);
        Some(Self {
            indices: spec.to_string(),
            size: spec.len(),
            at_once: spec.at_once,
            under_way: state.opened - state.done().min(state.opened),
            succeeded: state.ok,
            failed: state.failed,
            cancelled: state.cancelled,
        })
    }
}

impl AfterDocument {
    fn of(record: &JobRecord) -> Vec<Self> {
        let waits: Vec<u32> = record.waits_for().map(|(i, _)| i).collect();
        let one = |(i, after): (u32, &crate::model::array::After)| Self {
            id: after.birth.id(),
            on: after.on.as_str().into(),
            met: !waits.contains(&i),
        };
        (0u32..).zip(&record.spec.after).map(one).collect()
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// How far it has come, where it is an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayDocument>,
    /// Of which array it is part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_of: Option<ArrayOfDocument>,
    /// Its groups, where it has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<JobGroupDocument>,
    /// The job of which it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_of: Option<JobId>,
    /// It is no job but a reservation: when and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<ReservePartDocument>,
    /// Jobs that it waits for, or waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<AfterDocument>,
    /// How far what its attempt needs has come, before that starts; only of one job, and where its cluster answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<Staging>,
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
            homes: record.homes().iter().map(|home| home.peer.clone()).collect(),
            trace: record.trace.to_string(),
            array: ArrayDocument::of(record),
            array_of: record.array_of.map(|of| ArrayOfDocument { id: of.parent, index: of.index }),
            groups: JobGroupDocument::of(record),
            group_of: record.group_of.as_ref().map(|of| of.parent),
            reserve: ReservePartDocument::of(record),
            after: AfterDocument::of(record),
            staging: None,
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
            note: a.note.clone(),
            nodes: a.nodes.clone(),
        }
    }
}

/// Jobs, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<JobDocument>,
    /// There are more than were asked for.
    pub truncated: bool,
    /// Members whose part is missing, since they did not answer.
    pub unanswered: Vec<PeerName>,
    /// Where the next page begins: the `before` of its request. None on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Answer to `GET /v1/jobs/{id}/wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitDocument {
    /// The job has ended; otherwise the time was up.
    pub done: bool,
    /// The job.
    pub job: JobDocument,
}

/// Answer to a cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelDocument {
    /// The job.
    pub id: JobId,
    /// Its state after it: `cancelled`, a state in which it still stops, or how it had ended before.
    pub state: JobState,
}

/// Answer to a published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedDocument {
    /// The job.
    pub id: JobId,
    /// By which attempt.
    pub epoch: u64,
    /// Where it is.
    pub uri: String,
}

/// One reason against a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CauseDocument {
    /// Stable name, e.g. `gpu-model`.
    pub code: String,
    /// In words and numbers.
    pub text: String,
    /// It may pass: worth waiting for.
    pub passing: bool,
}

/// What running a job at a cluster is expected to take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateDocument {
    /// In the queue,
    pub wait_ms: u64,
    /// for moving data that is not there,
    pub data_ms: u64,
    /// and for pulling the image,
    pub image_ms: u64,
    /// so until the first step: the longest of them.
    pub start_ms: u64,
    /// Data to move, bytes.
    pub data_bytes: u64,
    /// Image to pull, bytes.
    pub image_bytes: u64,
    /// Where most of the data comes from.
    pub source: Option<PeerName>,
    /// Money in all,
    pub usd: f64,
    /// of it for data that leaves another cluster.
    pub egress_usd: f64,
    /// Energy.
    pub kwh: f64,
    /// Share of the cluster's GPUs that are taken, 0 to 1.
    pub load: f64,
    /// A link that carries the data was never measured: 1 Gbit/s is taken for it.
    pub assumed: bool,
}

impl From<Estimate> for EstimateDocument {
    fn from(e: Estimate) -> Self {
        Self {
            wait_ms: e.wait.as_millis(),
            data_ms: e.data.as_millis(),
            image_ms: e.image.as_millis(),
            start_ms: e.start.as_millis(),
            data_bytes: e.data_bytes.0,
            image_bytes: e.image_bytes.0,
            source: e.source,
            usd: e.usd,
            egress_usd: e.egress_usd,
            kwh: e.kwh,
            load: e.load,
            assumed: e.assumed,
        }
    }
}

/// A job ahead of another in a cluster's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AheadDocument {
    /// Which.
    pub job: JobId,
    /// Its priority.
    pub priority: u8,
    /// GPUs that it waits for.
    pub gpus: u64,
    /// How long it has waited there.
    pub age_ms: u64,
}

/// Where a job's groups would go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupsDocument {
    /// Each group and its cluster; empty where they do not fit.
    pub groups: Vec<GroupDocument>,
    /// Traffic that leaves a cluster.
    pub apart: Vec<ApartDocument>,
    /// No plan costs less; otherwise it was searched for.
    pub exact: bool,
    /// Why there is no plan.
    pub why_not: Option<String>,
}

/// One group's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupDocument {
    /// The group.
    pub name: String,
    /// Its cluster.
    pub cluster: PeerName,
}

/// Traffic between two groups in different clusters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApartDocument {
    /// One group,
    pub from: String,
    /// the other.
    pub to: String,
    /// Bytes per second.
    pub rate: u64,
    /// Share of the link that it takes; over 1 the link cannot carry it.
    pub link_share: f64,
    /// Round trip.
    pub rtt_ms: f64,
}

impl From<GroupPlan> for GroupsDocument {
    fn from(plan: GroupPlan) -> Self {
        let apart = |(from, to, rate, link_share, rtt): (String, String, u64, f64, crate::base::Span)| {
            let rtt_ms = rtt.as_secs_f64() * 1e3;
            ApartDocument { from, to, rate, link_share, rtt_ms }
        };
        Self {
            groups: plan.groups.into_iter().map(|(name, cluster)| GroupDocument { name, cluster }).collect(),
            apart: plan.apart.into_iter().map(apart).collect(),
            exact: plan.exact,
            why_not: plan.why_not,
        }
    }
}

/// One cluster for or against one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateDocument {
    /// Which.
    pub cluster: PeerName,
    /// It could ever run it.
    pub fits_ever: bool,
    /// It could start it now.
    pub fits_now: bool,
    /// Reasons against, and what was said to a claim, in words.
    pub reasons: Vec<String>,
    /// The same for programs.
    #[serde(default)]
    pub causes: Vec<CauseDocument>,
    /// Lower is better.
    pub score: Option<f64>,
    /// The score's weighed terms; they add up to it.
    pub terms: BTreeMap<String, f64>,
    /// What it would take; none where it can never run.
    #[serde(default)]
    pub estimate: Option<EstimateDocument>,
    /// Place in that cluster's queue, from 0, where a claim stands.
    pub queue_place: Option<u32>,
    /// Who is ahead of it there, the first few in order; empty where that cluster was not asked or did not answer.
    #[serde(default)]
    pub ahead: Vec<AheadDocument>,
    /// Age of the figures.
    pub report_age_ms: Option<u64>,
}

/// Why a job is where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhyDocument {
    /// One sentence.
    pub summary: String,
    /// State; none for a dry run.
    pub state: Option<JobState>,
    /// The peer that drives it.
    pub owner: Option<PeerName>,
    /// The peer that gave this answer.
    pub asked: Option<PeerName>,
    /// The weights of the job's policy, by term.
    #[serde(default)]
    pub weights: BTreeMap<String, f64>,
    /// Where its groups would go, for a job that has groups.
    #[serde(default)]
    pub groups: Option<GroupsDocument>,
    /// Why submitting it would be refused, of a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// One row per cluster, best first.
    pub clusters: Vec<CandidateDocument>,
    /// What its attempt waits for where it was placed, before its program starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<Staging>,
}

impl From<WhyReport> for WhyDocument {
    fn from(r: WhyReport) -> Self {
        Self {
            summary: r.summary,
            state: r.state,
            owner: r.owner,
            asked: None,
            weights: r.policy,
            groups: r.groups.map(GroupsDocument::from),
            refused: r.refused,
            clusters: r.clusters.into_iter().map(CandidateDocument::from).collect(),
            staging: None,
        }
    }
}

impl From<&Reason> for CauseDocument {
    fn from(r: &Reason) -> Self {
        Self { code: r.code().to_owned(), text: r.to_string(), passing: r.passing() }
    }
}

impl From<Candidate> for CandidateDocument {
    fn from(c: Candidate) -> Self {
        Self {
            cluster: c.cluster,
            fits_ever: c.fits_ever,
            fits_now: c.fits_now,
            reasons: c.reasons.iter().map(ToString::to_string).collect(),
            causes: c.reasons.iter().map(CauseDocument::from).collect(),
            estimate: c.estimate.map(EstimateDocument::from),
            ahead: Vec::new(),
            score: c.score.filter(|s| s.is_finite()),
            terms: c.terms.into_iter().filter(|(_, v)| v.is_finite()).collect(),
            queue_place: c.claim,
            report_age_ms: c.report_age.map(|a| a.as_millis()),
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventDocument {
    /// Stable name.
    pub kind: String,
    /// The job, where it is about one.
    pub job: Option<JobId>,
    /// Its trace, where the peer knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// One sentence.
    pub text: String,
    /// When this peer passed it on.
    pub at_ms: u64,
}

/// An event as some peer wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Who wrote it down.
    pub peer: PeerName,
    /// What.
    #[serde(flatten)]
    pub entry: crate::runtime::eventlog::Entry,
}

/// What happened, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct HistoryList {
    /// The events.
    pub events: Vec<HistoryEntry>,
    /// Peers whose part is missing, since they did not answer.
    pub unanswered: Vec<PeerName>,
}

/// Who changed what through one peer, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditList {
    /// Which peer.
    pub peer: PeerName,
    /// The entries.
    pub entries: Vec<crate::runtime::eventlog::AuditEntry>,
}

/// What a check of a peer's audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditVerdict {
    /// Which peer.
    pub peer: PeerName,
    /// The finding.
    #[serde(flatten)]
    pub verdict: crate::runtime::eventlog::Verdict,
}

/// A peer's insides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectDocument {
    /// Which peer.
    pub peer: PeerName,
    /// Its core's report. Lengths of time are microseconds here.
    pub core: InspectReport,
}

/// An error, as every route gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDocument {
    /// The error.
    pub error: ErrorBody,
}

/// Its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    crate::backends::local::clock::wall()
}

/// Now on the clock of `Instant` (through suspend).
pub fn boottime_now() -> crate::base::Instant {
    crate::backends::local::clock::now()
}
