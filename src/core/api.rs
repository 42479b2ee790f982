//! What goes into the core and what comes out of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::message::Message;
use crate::base::{ContactId, Epoch, Home, Instant, JobId, PeerName, Span, StoreId, WallTime};
use crate::model::report::{ContactReport, NodeCapacity, QueueReport, View};
use crate::model::spec::JobSpec;
use crate::model::{JobRecord, JobState, Outcome};

/// The time of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// For every decision.
    pub mono: Instant,
    /// For people.
    pub wall: WallTime,
}

/// What a core is told once, at its start.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// The peer's name.
    pub name: PeerName,
    /// Its disk.
    pub store: StoreId,
    /// Counts starts of this store; durable, strictly growing.
    pub boot: u64,
    /// Homes wanted per record: 1, 3 or 5.
    pub replicas: usize,
    /// How often the contact is renewed.
    pub renew_every: Span,
    /// Clock rates may be off by this many thousandths (default 10).
    pub rho_milli: u64,
    /// Time that killing an attempt may take, plus safety (default 3 s).
    pub margin: Span,
    /// How long a grant holds capacity.
    pub grant_for: Span,
    /// Claims laid at once per job.
    pub claims_max: usize,
    /// Jobs held as a home before new ones are refused.
    pub jobs_max: usize,
    /// This cluster's nodes; empty for a witness.
    pub nodes: Vec<NodeCapacity>,
    /// This cluster runs container images.
    pub runs_images: bool,
    /// Seeds the core's random stream.
    pub seed: u64,
}

/// The tables of the store. Keys and values are the core's own bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Table {
    /// Acceptor states, by record key.
    Acceptors,
    /// Attempts at this cluster, by (job, epoch).
    Attempts,
    /// The core's counters (sequence, contact series).
    Meta,
    /// Not the core's: runtime state such as members and tokens.
    Runtime,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 4] = [Table::Acceptors, Table::Attempts, Table::Meta, Table::Runtime];
    /// Name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Table::Acceptors => "acceptors",
            Table::Attempts => "attempts",
            Table::Meta => "meta",
            Table::Runtime => "runtime",
        }
    }
}

/// One change to the store. All writes of one step are applied together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub table: Table,
    /// Key.
    pub key: Vec<u8>,
    /// New value; none removes the key.
    pub value: Option<Vec<u8>>,
}

/// What the store held at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskImage {
    /// Rows by table.
    pub tables: BTreeMap<Table, BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// Something happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// A deadline may have come.
    Tick,
    /// A peer sent this (the transport has proved who it is).
    Message {
        /// Who.
        from: PeerName,
        /// What.
        message: Message,
    },
    /// The soft view changed.
    View(View),
    /// An urgent hint came.
    Flash(Flash),
    /// A user's request; the answer carries the token.
    Client {
        /// Chosen by the caller, unique while it waits.
        token: u64,
        /// What is asked.
        request: ClientRequest,
    },
    /// The backend says.
    Backend(BackendEvent),
    /// The disk's free space crossed the reserve: true means nearly full.
    DiskFull(bool),
    /// The operator drains or undrains this cluster.
    Drain(bool),
}

/// Something to do, in order. Whatever is `durable` leaves only when every write before it is on disk.
#[derive(Debug, Clone)]
pub enum Output {
    /// Put on disk.
    Write(Write),
    /// Send to a peer; may be lost.
    Send {
        /// Whom.
        to: PeerName,
        /// What.
        message: Message,
        /// Wait for the writes before it.
        durable: bool,
    },
    /// Broadcast an urgent hint; may be lost.
    Flash(Flash),
    /// Answer a user. Always after the writes before it.
    Reply {
        /// The request's token.
        token: u64,
        /// The answer.
        response: ClientResponse,
    },
    /// Tell the backend. Always after the writes before it.
    Backend(BackendCommand),
    /// A majority holds a renewal of this contact: attempts bound to it may run until
    /// `sent_at` + their grace.
    Renewed {
        /// The contact record.
        contact: ContactId,
        /// Its incarnation.
        incarnation: u64,
        /// When the renewal was sent.
        sent_at: Instant,
    },
    /// What this cluster should gossip now.
    Report {
        /// What is free.
        queue: QueueReport,
        /// The contact for new attempts.
        contact: Option<ContactReport>,
    },
    /// Something worth an event log line.
    Event(Event),
}

/// An urgent hint: milliseconds, best effort, never the only copy of a truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flash {
    /// A cluster's free GPUs changed.
    Capacity {
        /// Which cluster.
        cluster: PeerName,
        /// What is free now.
        queue: QueueReport,
    },
    /// A cluster is not reached by the sender.
    Suspect {
        /// Which.
        cluster: PeerName,
    },
    /// A peer drains, or no longer does.
    Drain {
        /// Which.
        cluster: PeerName,
        /// True while it drains.
        draining: bool,
    },
    /// A peer stops cleanly: its attempts have been handed back or go on under their guards.
    Leaving {
        /// Which.
        peer: PeerName,
    },
    /// Look at this record: it changed in a way that concerns its executor or owner.
    Look {
        /// Which job.
        job: JobId,
    },
}

/// Something worth a line for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Stable name, `job.placed`.
    pub kind: String,
    /// The job, where it is about one.
    pub job: Option<JobId>,
    /// One sentence.
    pub text: String,
}

/// What a user may ask of the core. Everything else (logs, metrics) is the surface's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Take this job. The answer comes when a majority of its homes holds it on disk.
    Submit {
        /// The job.
        spec: Box<JobSpec>,
        /// The same key gives the same job (kept 24 h at the peer that took it).
        key: Option<String>,
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
    /// Attempts at this cluster, claims in its queue in order, contacts, register counters.
    Inspect,
}

/// Which jobs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobFilter {
    /// Only ids that start with this text.
    pub prefix: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only in these states; empty means all.
    pub states: BTreeSet<JobState>,
    /// At most this many, newest first.
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
    /// Reasons against, in words and numbers; empty when it fits now.
    pub reasons: Vec<String>,
    /// Lower is better; none where it cannot ever run.
    pub score: Option<f64>,
    /// The score's terms by name.
    pub terms: BTreeMap<String, f64>,
    /// A claim stands there: place in that queue if it said so.
    pub claim: Option<u32>,
    /// How old the figures are.
    pub report_age: Option<Span>,
}

/// A peer's insides, for the surface and tests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InspectReport {
    /// Attempts that this cluster has not closed.
    pub attempts: Vec<AttemptView>,
    /// Claims in order.
    pub queue: Vec<ClaimView>,
    /// The contact records of this cluster: id, incarnation, age of the last counted renewal.
    pub contacts: Vec<(ContactId, u64, Span)>,
    /// Records held as a home.
    pub records: usize,
    /// Of these, not final.
    pub records_live: usize,
    /// Named counters: commits, fast_commits, conflicts, timeouts, takeovers…
    pub counters: BTreeMap<String, u64>,
}

/// An attempt at this cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// A claim in this cluster's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// Names one attempt everywhere: in the store, the backend, the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey {
    /// The job.
    pub job: JobId,
    /// The epoch.
    pub epoch: Epoch,
}

impl std::fmt::Display for AttemptKey {
    /// `<job id>-<epoch>`, the attempt's name in every backend.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.job, self.epoch)
    }
}

/// The share of one node that an attempt holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    /// Index over all nodes of the cluster.
    pub node: u32,
    /// Indices of the GPUs on that node.
    pub gpus: Vec<u32>,
}

/// For the backend. Every command may come twice; the backend makes it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendCommand {
    /// Start this attempt, unless one of this name was ever started. Answered by `Started` or `Ended`.
    Start(Box<StartCommand>),
    /// Stop it: notice (SIGTERM), then kill after `notice`. Answered by `Ended`.
    Stop {
        /// Which.
        key: AttemptKey,
        /// Time between notice and kill.
        notice: Span,
        /// How it shall be counted if it did not end by itself.
        reason: StopReason,
    },
    /// The attempt follows this contact from now on.
    Rebind {
        /// Which.
        key: AttemptKey,
        /// Contact and incarnation.
        to: (ContactId, u64),
    },
    /// The record holds the result: what is kept of the attempt beside its logs may go.
    Forget {
        /// Which.
        key: AttemptKey,
    },
}

/// Why an attempt is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// Cancelled.
    Cancel,
    /// Ran into `max_runtime`.
    Timeout,
    /// The cluster drains.
    Drain,
    /// The placement is no longer this cluster's.
    Superseded,
}

/// All that a backend needs to start an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartCommand {
    /// Its name.
    pub key: AttemptKey,
    /// What to run.
    pub spec: JobSpec,
    /// Where, one share per rank.
    pub shares: Vec<NodeShare>,
    /// What keeps it alive: contact, incarnation,
    pub binding: (ContactId, u64),
    /// and the send time of the last counted renewal of it.
    pub renewed_at: Instant,
    /// Newest published checkpoint, else the spec's path.
    pub checkpoint: Option<String>,
    /// For TRACEPARENT.
    pub trace: crate::base::TraceId,
}

/// From the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendEvent {
    /// The attempt's program runs.
    Started {
        /// Which.
        key: AttemptKey,
        /// Since when.
        at: WallTime,
    },
    /// It has ended: no process of it is left.
    Ended {
        /// Which.
        key: AttemptKey,
        /// How.
        outcome: Outcome,
        /// When it started, if it did.
        started_at: Option<WallTime>,
        /// When it ended.
        at: WallTime,
    },
    /// After a restart: the attempts that the backend still has, running or with a kept result. What
    /// is not in it and was started before is `Unknown` until the backend says.
    Adopted {
        /// Running ones.
        running: Vec<AttemptKey>,
    },
}
