//! What goes into the core and what comes out of it.
// tidy: long because every word between the core and what drives it is to be found in one place

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use super::client_api::{
    AttemptView, Candidate, ClaimView, ClientError, ClientRequest, ClientResponse, InspectReport, JobFilter,
    Look, WhyReport,
};
pub use super::durations::{BOUNDS_MS, Durations};
use super::message::Message;
use crate::base::{
    Bytes, ContactId, Epoch, Instant, JobId, MilliCpu, PeerName, Span, StoreId, WallTime, secrets,
};
use crate::model::Outcome;
use crate::model::partitions::SlurmReport;
use crate::model::policy::Policies;
use crate::model::report::{ContactReport, Item, NodeCapacity, NodesOut, QueueReport, View};
use crate::model::spec::JobSpec;
use crate::model::staging::Staging;
use crate::model::trace::SpanNote;

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
    /// This store was never started before: it has no past that could be lost.
    pub first_boot: bool,
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
    /// A home that has been lost for this long is replaced.
    pub rehome_after: Span,
    /// A record is kept this long after its job has ended, by the clock for people,
    pub retain: Span,
    /// and of the ended ones a home keeps the newest so many.
    pub retain_jobs: usize,
    /// This cluster's nodes; empty for a witness.
    pub nodes: Vec<NodeCapacity>,
    /// How this cluster orders its queue and chooses nodes.
    pub schedule: super::schedule::Config,
    /// This cluster runs container images.
    pub runs_images: bool,
    /// What the placement policies weigh.
    pub policies: Policies,
    /// How often what nobody waits for is looked at.
    pub pace: Pace,
    /// Seeds the core's random stream.
    pub seed: u64,
}

/// How often the core looks at what only a lost message could have changed. Slower costs time after a loss,
/// never correctness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A claim that was answered is repeated ever more seldom, up to this;
    pub claim_every_max: Span,
    /// one that was not repeated for this long is dropped.
    pub claim_for: Span,
    /// The queue drops what is over at least this often.
    pub queue_every: Span,
    /// Places in the queue are made anew at most this often.
    pub places_every: Span,
    /// A part of the records is swept this often.
    pub sweep_every: Span,
    /// A job that does not change is looked at after this, then ever more seldom,
    pub idle_every: Span,
    /// up to this.
    pub idle_every_max: Span,
}

impl Pace {
    /// The longer nothing changed, the longer until the next look.
    pub(super) fn idle(&self, unchanged: Span) -> Span {
        unchanged.max(self.idle_every).min(self.idle_every_max)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            claim_every_max: Span::secs(20),
            claim_for: Span::secs(60),
            queue_every: Span::secs(1),
            places_every: Span::secs(1),
            sweep_every: Span::secs(1),
            idle_every: Span::secs(10),
            idle_every_max: Span::secs(300),
        }
    }
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
    View(Arc<View>),
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
    /// Other weights of the placement policies, from now on.
    Policies(Box<Policies>),
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
    /// The store is an older copy of itself: put it aside and begin a new one. Nothing else is done any more.
    Quarantine {
        /// Who has seen what.
        why: String,
    },
}

/// An urgent hint: milliseconds, best effort, never the only copy of a truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "few are there at a time, and most are of the large kind")]
pub enum Flash {
    /// A cluster's free GPUs changed.
    Capacity {
        /// Which cluster.
        cluster: PeerName,
        /// What is free now. Only what every peer of a mesh that is being upgraded reads.
        #[serde(with = "crate::model::report::queue_flash")]
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
    /// Its tenant and its trace, where this peer holds its record.
    pub tenant: Option<String>,
    /// See above.
    pub trace: Option<crate::base::TraceId>,
    /// How long what it ends had taken, where that is known: the wait for a placement, the start of a program.
    pub took: Option<Span>,
    /// Spans of the job's trace that ended with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<SpanNote>,
    /// One sentence.
    pub text: String,
}

impl Event {
    /// One that is about no job that is known here. Events go to many places: what opens a door is taken out of the text.
    pub fn new(kind: &str, job: Option<JobId>, text: impl AsRef<str>) -> Self {
        Self {
            kind: kind.into(),
            job,
            tenant: None,
            trace: None,
            took: None,
            spans: Vec::new(),
            text: secrets::scrub(text.as_ref(), &[]),
        }
    }
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
        /// While it is not known whether the record says so yet: the binding before. The attempt lives by the
        /// older of both renewals.
        and: Option<(ContactId, u64)>,
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
    /// How far what it needs has come, before it starts. At most about one a second of an attempt.
    Staging {
        /// Which.
        key: AttemptKey,
        /// What is known; replaces what was said before.
        staging: Box<Staging>,
    },
    /// Before `Started`: where it runs, in its scheduler's own names.
    Where {
        /// Which.
        key: AttemptKey,
        /// `n[1-2]`.
        nodes: String,
    },
    /// Before `Ended`: what the outcome alone does not say of how it ends, in a few words.
    Note {
        /// Which.
        key: AttemptKey,
        /// `killed for memory`.
        text: String,
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
    /// The cluster's own scheduler says what it has. Only of backends whose nodes are not this peer's alone.
    Cluster(Box<ClusterState>),
    /// What the nodes of such a cluster have beside their capacity, where that changed. For the report alone.
    Nodes(Box<NodesNews>),
    /// After a restart: the attempts that the backend still has, running or with a kept result. What
    /// is not in it and was started before is `Unknown` until the backend says.
    Adopted {
        /// Running ones.
        running: Vec<AttemptKey>,
    },
}

/// What is told of a cluster's nodes beside their capacity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodesNews {
    /// Images that every node has.
    pub images: Vec<Item>,
    /// Nodes that take nothing.
    pub out: NodesOut,
    /// Partitions and features of a Slurm.
    pub slurm: Option<SlurmReport>,
}

/// What a scheduler below says of its cluster. It is the truth; the core's books follow it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterState {
    /// Node groups; shares count over all their nodes. Empty: as before.
    pub nodes: Vec<NodeCapacity>,
    /// What others than this peer's attempts hold.
    pub others: Vec<Held>,
    /// Where attempts of this peer really run, one node per rank.
    pub placed: Vec<(AttemptKey, Vec<u32>)>,
    /// Nothing new is taken, and why: the scheduler does not answer, or no node is up.
    pub closed: Option<String>,
    /// What others wait for in the scheduler's own queue.
    pub waiting: Waiting,
}

/// What waits for resources in a scheduler's own queue, and is not of this peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Jobs.
    pub jobs: u32,
    /// GPUs that they ask for together.
    pub gpus: u64,
}

/// A part of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Index over all nodes of the cluster.
    pub node: u32,
    /// GPUs.
    pub gpus: u32,
    /// CPU.
    pub cpus: MilliCpu,
    /// Memory.
    pub memory: Bytes,
}
