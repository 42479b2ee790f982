//! The JSON documents of the API, shared by the server and the client. Times are milliseconds since
//! 1970 (`…_at_ms`), lengths of time milliseconds (`…_ms`).

mod mesh;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::{Epoch, JobId, PeerName, WallTime};
use crate::core::api::{Candidate, InspectReport, WhyReport};
use crate::model::{JobRecord, JobSpec, JobState, Outcome};

pub use mesh::*;

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
            homes: record.homes().iter().map(|home| home.peer.clone()).collect(),
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

/// An event as some peer wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Who wrote it down.
    pub peer: PeerName,
    /// What.
    #[serde(flatten)]
    pub entry: crate::runtime::eventlog::Entry,
}

/// What happened, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HistoryList {
    /// The events.
    pub events: Vec<HistoryEntry>,
    /// Peers whose part is missing, since they did not answer.
    pub unanswered: Vec<PeerName>,
}

/// Who changed what through one peer, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditList {
    /// Which peer.
    pub peer: PeerName,
    /// The entries.
    pub entries: Vec<crate::runtime::eventlog::AuditEntry>,
}

/// What a check of a peer's audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditVerdict {
    /// Which peer.
    pub peer: PeerName,
    /// The finding.
    #[serde(flatten)]
    pub verdict: crate::runtime::eventlog::Verdict,
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
#[allow(clippy::disallowed_methods, reason = "ages are shown to people at this edge")]
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
