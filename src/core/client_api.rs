//! What a user may ask of a core, and what it answers.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::durations::Durations;
use super::placement::groups::GroupPlan;
use super::placement::{Estimate, Reason};
use super::tenants::TenantReport;
use crate::base::{ContactId, Epoch, Home, JobId, PeerName, Span, WallTime};
use crate::model::spec::JobSpec;
use crate::model::staging::Staging;
use crate::model::tenant::LimitsPatch;
use crate::model::trace::TraceParent;
use crate::model::{JobRecord, JobState};

/// What a user may ask of the core. Everything else (logs, metrics) is the surface's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Take this job. The answer comes when a majority of its homes holds it on disk.
    Submit {
        /// The job.
        spec: Box<JobSpec>,
        /// The same key gives the same job, at any peer, for 24 h.
        key: Option<String>,
    },
    /// The same, as part of the caller's own trace.
    SubmitUnder {
        /// The job.
        spec: Box<JobSpec>,
        /// See above.
        key: Option<String>,
        /// The caller's trace and span; none begins a new trace.
        parent: Option<TraceParent>,
        /// When the request came.
        received: WallTime,
    },
    /// Read one record through the register.
    Get {
        /// Which.
        job: JobId,
    },
    /// What this peer holds, without asking others (a home's last accepted values).
    Local {
        /// What to keep.
        filter: JobFilter,
    },
    /// End this job.
    Cancel {
        /// Which.
        job: JobId,
        /// Who asks.
        by: String,
    },
    /// An operator says that the job's present attempt has stopped for good.
    ConfirmLost {
        /// Which job.
        job: JobId,
        /// Which attempt is meant.
        epoch: Epoch,
        /// Where it was placed.
        cluster: Option<PeerName>,
        /// Who says so.
        by: String,
    },
    /// Go on at another cluster.
    Move {
        /// Which job.
        job: JobId,
        /// Where to.
        to: PeerName,
        /// Who asks.
        by: String,
    },
    /// Let a held job run again.
    Release {
        /// Which job.
        job: JobId,
        /// Who asks.
        by: String,
    },
    /// Publish a checkpoint for an attempt.
    Publish {
        /// Which job.
        job: JobId,
        /// By which attempt.
        epoch: Epoch,
        /// Where it is.
        uri: String,
    },
    /// Each cluster with the reasons for or against this job, from here.
    Why {
        /// Which.
        job: JobId,
    },
    /// The same for a spec that was not submitted.
    WhySpec {
        /// The spec.
        spec: Box<JobSpec>,
    },
    /// Set a tenant's limits, or end them.
    TenantSet {
        /// Which.
        tenant: String,
        /// What to change; none ends the limits.
        patch: Option<Box<LimitsPatch>>,
    },
    /// Read a tenant's ledger through its register.
    TenantGet {
        /// Which.
        tenant: String,
    },
    /// Every tenant that has a ledger, as this peer knows it.
    Tenants,
    /// An operator says that a cluster is gone for good and what ran there has stopped: take its share back.
    TenantReclaim {
        /// Which tenant.
        tenant: String,
        /// Which cluster.
        cluster: PeerName,
    },
    /// Attempts at this cluster, claims in its queue in order, contacts, register counters.
    Inspect(Look),
}

/// How far into its queue a peer looks for an `Inspect`; by default not at all: that is asked many times a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Look {
    /// The first so many claims.
    pub claims: usize,
    /// Also why each waits.
    pub reasons: bool,
}

/// Which jobs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobFilter {
    /// Only ids that start with this text.
    pub prefix: Option<String>,
    /// Only jobs of this array; none leaves jobs of arrays out, unless they are looked for by their ids.
    pub array: Option<JobId>,
    /// Reservations; otherwise they are left out.
    #[serde(default)]
    pub reservations: bool,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only in these states; empty means all.
    pub states: BTreeSet<JobState>,
    /// Only those submitted at or after this,
    pub since: Option<WallTime>,
    /// and before this.
    pub until: Option<WallTime>,
    /// Only those that the loss of this cluster touches: bound there, or lost with it at or after that time.
    pub touched: Option<(PeerName, WallTime)>,
    /// The next page: only those that come after this one in the list.
    pub before: Option<(WallTime, JobId)>,
    /// At most this many, newest first; of one moment, the higher id first.
    pub limit: usize,
}

/// The answer to a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ClientResponse {
    /// The job is held by a majority of these homes.
    Submitted {
        /// Its id.
        job: JobId,
        /// Who holds it.
        homes: Vec<Home>,
        /// It was there already under this key.
        existed: bool,
    },
    /// The record, as a quorum holds it.
    Job(Box<JobRecord>),
    /// What this peer holds.
    Jobs(Vec<JobRecord>),
    /// The cancel is in the record, or the job had ended: `state` says which.
    Cancelled {
        /// State after it.
        state: JobState,
    },
    /// The checkpoint is published.
    Published,
    /// A tenant.
    Tenant(Box<TenantReport>),
    /// All tenants that have ledgers.
    Tenants(Vec<TenantReport>),
    /// One row per cluster.
    Why(Box<WhyReport>),
    /// This peer's insides.
    Inspect(Box<InspectReport>),
    /// It could not be done.
    Error(ClientError),
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ClientError {
    /// Nothing is known of this id at any peer that answered. Nothing changed.
    #[error("no job {0}")]
    NoSuchJob(JobId),
    /// No cluster of the mesh could ever run it. Nothing was stored.
    #[error("no cluster can ever run this: nearest is {nearest}: {missing}")]
    FitsNowhere {
        /// The cluster that comes nearest.
        nearest: String,
        /// What it lacks.
        missing: String,
    },
    /// A majority of the homes did not answer in time. The outcome is unknown; the same idempotency
    /// key or the same id asks again safely.
    #[error(
        "{answered} of {needed} homes needed answered in time: the outcome is unknown; ask again with the same key or id"
    )]
    Unknown {
        /// Homes that answered.
        answered: usize,
        /// Homes needed.
        needed: usize,
        /// The id that was tried.
        job: Option<JobId>,
    },
    /// This peer refuses new records: its disk is nearly full. Existing ones are kept. Try another peer.
    #[error(
        "this peer's disk is nearly full: it refuses new jobs and keeps what it has; submit at another peer or free space"
    )]
    DiskFull,
    /// This peer holds as many jobs as it may.
    #[error("this peer holds {0} jobs, its limit: submit at another peer or raise limits.jobs")]
    TooMany(usize),
    /// The encoded record would pass 64 KiB.
    #[error("the record would have {0} bytes; at most {max} are kept", max = crate::model::record::RECORD_BYTES_MAX)]
    TooLarge(usize),
    /// The record refuses the change.
    #[error("{0}")]
    Refused(#[from] crate::model::record::Refused),
    /// Too few members alive to form a home set.
    #[error("{alive} of {needed} homes needed can be reached: this side of the mesh cannot take jobs now")]
    NoHomes {
        /// Reached.
        alive: usize,
        /// Needed.
        needed: usize,
    },
    /// The job's groups cannot ever be placed all at once. Nothing was stored.
    #[error("the job's groups can never run together: {0}")]
    GroupsFitNowhere(String),
    /// The tenant's limits never let it run.
    #[error("{0}")]
    OverQuota(String),
    /// The reservation cannot be taken. Nothing was stored.
    #[error("{0}")]
    NoReservation(String),
    /// No ledger of this tenant is known here: nothing limits it.
    #[error("tenant {0} has no limits")]
    NoSuchTenant(String),
    /// That cluster holds no share.
    #[error("{1} holds no share of tenant {0}")]
    NoShare(String, PeerName),
    /// Members that may hold a job of this idempotency key do not answer. Nothing was stored; the same key asks again
    /// safely.
    #[error("whether there is a job with this key cannot be known now, so nothing was stored: {0}")]
    KeyUndecided(String),
    /// The idempotency key was used for another spec.
    #[error("the idempotency key was used for another job ({0})")]
    KeyReused(JobId),
}

/// Why a job is where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhyReport {
    /// One sentence.
    pub summary: String,
    /// The job's state, none for a spec that was not submitted.
    pub state: Option<JobState>,
    /// The peer that drives it.
    pub owner: Option<PeerName>,
    /// The weights that were used, by term.
    pub policy: BTreeMap<String, f64>,
    /// Where the job's groups would go, for a job that has groups.
    pub groups: Option<GroupPlan>,
    /// Why submitting it would be refused, for a spec that was not submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// One row per cluster, best first.
    pub clusters: Vec<Candidate>,
}

/// One cluster, for or against one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which.
    pub cluster: PeerName,
    /// It could ever run it.
    pub fits_ever: bool,
    /// It could start it now, as far as is known here.
    pub fits_now: bool,
    /// Reasons against, and what its claim's cluster said; empty when it fits now and no claim stands.
    pub reasons: Vec<Reason>,
    /// Lower is better; none where it cannot ever run.
    pub score: Option<f64>,
    /// The score's weighed terms by name; they add up to it.
    pub terms: BTreeMap<String, f64>,
    /// What it would take, none where it cannot ever run.
    pub estimate: Option<Estimate>,
    /// A claim stands there: place in that queue if it said so.
    pub claim: Option<u32>,
    /// How old the figures are.
    pub report_age: Option<Span>,
}

impl Candidate {
    /// The reasons in words.
    pub fn words(&self) -> String {
        self.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// A peer's insides, for the surface and tests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InspectReport {
    /// Attempts that this cluster has not closed.
    pub attempts: Vec<AttemptView>,
    /// Claims in order, the first that were asked for.
    pub queue: Vec<ClaimView>,
    /// All claims; peers of an older version do not say, and list them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_total: Option<u64>,
    /// Age of the oldest of all claims; none where nothing waits, and of peers of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_oldest: Option<Span>,
    /// The contact records of this cluster: id, incarnation, age of the last counted renewal.
    pub contacts: Vec<(ContactId, u64, Span)>,
    /// Records held as a home.
    pub records: usize,
    /// Of these, not final.
    pub records_live: usize,
    /// Named counters: commits, fast_commits, conflicts, timeouts, takeovers…
    pub counters: BTreeMap<String, u64>,
    /// From asking the homes to a majority that has it on disk, of each change that this peer made.
    #[serde(default)]
    pub commits: Durations,
    /// The least time that any attempt here has left under its lease.
    #[serde(default)]
    pub lease_left: Option<Span>,
}

/// An attempt at this cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptView {
    /// Which job.
    pub job: JobId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Job name.
    pub name: String,
    /// Tenant.
    pub tenant: String,
    /// GPUs over all nodes.
    pub gpus: u64,
    /// `starting`, `running`, `stopping`, `closing`.
    pub phase: String,
    /// How long since it was admitted.
    pub age: Span,
    /// How far what it needs has come, before it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<Staging>,
}

/// A claim in this cluster's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimView {
    /// Which job.
    pub job: JobId,
    /// Who claims.
    pub owner: PeerName,
    /// Priority.
    pub priority: u8,
    /// GPUs over all nodes.
    pub gpus: u64,
    /// It holds a grant.
    pub granted: bool,
    /// How long it has waited here.
    pub age: Span,
    /// Why it waits, in words and numbers; empty where it is far behind or one of too many kinds, where it was not asked for,
    /// and of peers of an older version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// How long until it starts, if that can be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_in: Option<Span>,
}
