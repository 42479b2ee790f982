//! What cores say to each other. Each may be lost, repeated, delayed or reordered.

use serde::{Deserialize, Serialize};

use super::reserve::ReserveWord;
use super::tenants::Card;
use super::value::Encoded;
use crate::base::{ContactId, Epoch, Home, JobId, KeyId, LedgerId, PeerName, Span, StoreId};
use crate::model::record::Birth;

/// The newest of these messages that this peer reads; gossiped as `build.wire`. Frames still begin with the version of
/// `transport::codec`. From 0x5302 on `ClaimWith` and `ClaimStateWith` are read, from 0x5303 on `Tenants`, from 0x5304
/// on `TenantsWord`, from 0x5305 on records of jobs with groups, from 0x5306 on reservations, from
/// 0x5307 on the question about an idempotency key; others are sent the plain forms. See docs/decisions/messages-that-grow.md.
pub const SPEAKS: u16 = ASKS_KEYS;
/// From here on terms and tenants are read,
pub const SPEAKS_TERMS: u16 = 0x5303;
/// and from here on the question which tenants there are.
pub const ASKS_TENANTS: u16 = 0x5304;
/// and from here on records of jobs with groups are read: a group is placed at no older peer.
pub const SPEAKS_GROUPS: u16 = 0x5305;
/// From here on reservations are read, words and records: none is begun while a member is older.
pub const SPEAKS_RESERVE: u16 = 0x5306;
/// From here on a peer is asked for the job of an idempotency key.
pub const ASKS_KEYS: u16 = 0x5307;

/// Which register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RecordKey {
    /// A job's record.
    Job(JobId),
    /// A cluster's contact record.
    Contact(ContactId),
    /// A tenant's ledger.
    Ledger(LedgerId),
}

/// Orders proposals. Two proposers never share one: it names the proposer and its boot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ballot {
    /// Compared first.
    pub round: u64,
    /// The proposer (empty only in the zero ballot).
    pub proposer: String,
    /// Which life of the proposer: its disk and boot.
    pub boot: u64,
}

impl Ballot {
    /// Under which the first value of a later generation is accepted. There is only one such value, so
    /// whoever knows it may propose it, without prepare; every other ballot is higher.
    pub fn install() -> Self {
        Self { round: 1, proposer: String::new(), boot: 0 }
    }
}

/// What proves that a register exists and who holds it. Checked by every acceptor before it creates one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A job, certified by its id.
    Job(Birth),
    /// A contact record: cluster, series, homes; certified by its id.
    Contact(PeerName, u64, Vec<Home>),
    /// A tenant's ledger: tenant, homes; certified by its id.
    Ledger(String, Vec<Home>),
}

/// A message between cores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Proposer to acceptor.
    Register(RegisterRequest),
    /// Acceptor to proposer.
    Answer(RegisterAnswer),
    /// Who holds this job? Asked of peers that the ring names, then of all.
    Locate {
        /// Which.
        job: JobId,
    },
    /// These do.
    Located {
        /// Which.
        job: JobId,
        /// Its birth, none where the sender does not hold it.
        birth: Option<Birth>,
    },
    /// Owner to cluster: may this job start with you? Repeated while it stands; forgotten when it is not.
    Claim(Box<Claim>),
    /// Owner to cluster: no longer.
    Withdraw {
        /// Which job.
        job: JobId,
        /// Claims for this epoch and older ones.
        epoch: Epoch,
    },
    /// Cluster to owner: held for you.
    Grant {
        /// Which job.
        job: JobId,
        /// For this epoch.
        epoch: Epoch,
        /// Capacity is held for this long from when the grant was sent.
        held: Span,
        /// What the placement binds to: a contact record (its id hashes series and homes),
        contact: ContactId,
        /// its series,
        series: u64,
        /// who holds it,
        homes: Vec<Home>,
        /// and its incarnation.
        incarnation: u64,
    },
    /// Cluster to owner: waiting at this place in the queue, or refused.
    ClaimState {
        /// Which job.
        job: JobId,
        /// For this epoch.
        epoch: Epoch,
        /// Place in the queue, from 0.
        ahead: u32,
        /// Set when it will not be granted: why.
        refused: Option<String>,
    },
    /// Read this record: it concerns you. Starting is pulled by this, never pushed.
    Look {
        /// Its birth (certifies the id and names the homes).
        birth: Birth,
    },
    /// Answer to `Locate` for a record whose homes have moved.
    Held {
        /// Certifies the id.
        birth: Birth,
        /// The newest generation that the sender knows,
        generation: u32,
        /// and who holds it.
        homes: Vec<Home>,
    },
    /// `Claim` to a peer that reads more of it.
    ClaimWith {
        /// As before.
        claim: Box<Claim>,
        /// The rest.
        #[serde(with = "named")]
        terms: Terms,
    },
    /// `ClaimState` to a peer that reads more of it.
    ClaimStateWith {
        /// Which job.
        job: JobId,
        /// For this epoch.
        epoch: Epoch,
        /// Place in the queue, from 0.
        ahead: u32,
        /// Set when it will not be granted: why.
        refused: Option<String>,
        /// The rest.
        #[serde(with = "named")]
        prospects: Prospects,
    },
    /// About the past of a disk. Sent only to peers whose hello says that they know it.
    Disk(DiskWord),
    /// These tenants have ledgers. Sent only where there are some, to peers that read it.
    Tenants(Vec<Card>),
    /// A new disk asks which tenants there are. Only to peers that read it.
    TenantsWord(TenantsWord),
    /// About a reservation. Only to peers that read it.
    Reserve(#[serde(with = "named")] ReserveWord),
    /// About an idempotency key. Only to peers that read it.
    Key(KeyWord),
}

/// Words about an idempotency key, before a job is made under it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyWord {
    /// Do you know a job of this key?
    Ask {
        /// Which key.
        key: KeyId,
        /// The asker's number for this question; echoed.
        number: u64,
    },
    /// What the sender knows of it.
    Told {
        /// Which key.
        key: KeyId,
        /// Echoed.
        number: u64,
        /// What.
        knows: KeyKnown,
    },
}

/// What a peer knows of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyKnown {
    /// Nothing.
    Nothing,
    /// It asks for the same key itself and goes first: ask again.
    Asks,
    /// This job has it.
    Job {
        /// Its id,
        job: JobId,
        /// and its record as the sender has it.
        value: Encoded,
    },
}

/// Words about the tenants that have ledgers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantsWord {
    /// Which are there, by name, after this one?
    Ask {
        /// None for the first page.
        after: Option<String>,
    },
    /// These.
    Tell {
        /// By name.
        cards: Vec<Card>,
        /// There are more after the last.
        more: bool,
        /// The sender has been told itself: it knows what was known before it asked.
        told: bool,
    },
}

/// One life of a disk: from one start of the peer to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskLife {
    /// Which disk.
    pub store: StoreId,
    /// Number of the start.
    pub boot: u64,
    /// Drawn at that start: two starts of one number are told apart by it.
    pub nonce: u64,
    /// Commits that the disk held then.
    pub start: u64,
}

/// What was seen of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDisk {
    /// In which life,
    pub boot: u64,
    /// by its nonce, too;
    pub nonce: u64,
    /// at least so many commits were on it.
    pub mark: u64,
}

/// Words about the past of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskWord {
    /// So many commits are on the sender's disk: remember it.
    Mark {
        /// The sender's disk.
        life: DiskLife,
        /// Commits on it.
        mark: u64,
    },
    /// The sender has started: what was seen of its disk before?
    Ask {
        /// The sender's disk.
        life: DiskLife,
    },
    /// This was.
    Seen {
        /// Of the life that asked.
        nonce: u64,
        /// In a life before it, or in another one of the same number.
        seen: Option<SeenDisk>,
    },
}

/// What a claim says beside what the plain form does. Its fields travel by name: more may be added, each with a
/// default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// May be sent away for a higher priority.
    pub preemptible: bool,
    /// This cluster, and no other, may send others away for it.
    pub token: bool,
    /// How long the job has waited in all, so that its age survives a change of owner.
    pub waited: Span,
    /// Several clusters are gathered for one job: while this claim is repeated its grant is kept, for a time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gathers: bool,
    /// To be granted when it fits, and nothing is kept free for it meanwhile: another claim of the job has that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lean: bool,
    /// What the owner knows of the tenant's ledger: whoever grants the claim must know of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<Box<Card>>,
}

/// What a cluster says of a waiting claim beside its place. Fields travel by name, as in `Terms`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prospects {
    /// How long until it starts, if that can be known.
    pub starts_in: Option<Span>,
    /// Jobs that are first in line, at most three.
    pub front: Vec<JobId>,
    /// How many attempts would have to go so that it starts; none where that would not help or is not known.
    pub victims: Option<u32>,
    /// Why it is not granted although there may be room: the tenant's limits; empty where they allow it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waits: String,
    /// Or what is reserved for others; empty where that is not why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reserved: String,
    /// It is first in line, and nodes are held for jobs that wait longer elsewhere.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
}

/// A value inside a positional message whose fields have names: bytes of JSON, bounded.
mod named {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const BYTES_MAX: usize = 16_384;

    pub fn serialize<T: Serialize, S: Serializer>(value: &T, out: S) -> Result<S::Ok, S::Error> {
        serde_json::to_vec(value).map_err(S::Error::custom)?.serialize(out)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let bytes = Vec::<u8>::deserialize(from)?;
        if bytes.len() > BYTES_MAX {
            return Err(D::Error::custom("the named part is too long"));
        }
        serde_json::from_slice(&bytes).map_err(D::Error::custom)
    }
}

/// To an acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterRequest {
    /// The proposer's own number for this round; echoed.
    pub op: u64,
    /// Which register.
    pub key: RecordKey,
    /// Its generation: which home set is meant.
    pub generation: u32,
    /// The disk that shall answer; another one must not.
    pub store: StoreId,
    /// What.
    pub body: RegisterBody,
}

/// What a proposer asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegisterBody {
    /// Phase 1.
    Prepare {
        /// Promise nothing lower.
        ballot: Ballot,
        /// Set where the register may not exist yet and this proposer may create it.
        origin: Option<Origin>,
    },
    /// Phase 2.
    Accept {
        /// Under this ballot.
        ballot: Ballot,
        /// The whole value.
        value: Encoded,
        /// Promised along with it, so that this proposer's next change needs one round.
        next: Option<Ballot>,
        /// As in `Prepare`.
        origin: Option<Origin>,
    },
    /// Read without a promise.
    Read,
    /// All homes hold the final value: keep only a tombstone.
    Forget,
}

/// From an acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterAnswer {
    /// Echoed.
    pub op: u64,
    /// Echoed.
    pub key: RecordKey,
    /// The disk that answers.
    pub store: StoreId,
    /// What.
    pub body: AnswerBody,
}

/// What an acceptor says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerBody {
    /// Promised; here is what was accepted last.
    Promise {
        /// Echoed.
        ballot: Ballot,
        /// Accepted ballot and value.
        accepted: Option<(Ballot, Encoded)>,
    },
    /// Accepted and on disk.
    Accepted {
        /// Echoed.
        ballot: Ballot,
    },
    /// A higher ballot was promised.
    Higher {
        /// This one.
        promised: Ballot,
    },
    /// The accepted state, for a read.
    State {
        /// Accepted ballot and value.
        accepted: Option<(Ballot, Encoded)>,
    },
    /// This disk does not know the record. It is not "empty".
    Unknown,
    /// Not taken: full disk, too large, or not certified.
    Refused {
        /// Why.
        why: String,
    },
    /// The asked generation is over.
    Moved {
        /// A newer one,
        generation: u32,
        /// and who holds it.
        homes: Vec<Home>,
    },
    /// The record ended, and was kept as long as it had to be.
    Forgotten,
}

/// A standing request for capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// For which job (its birth certifies the id).
    pub birth: Birth,
    /// The epoch that a placement would get.
    pub epoch: Epoch,
    /// Nodes, resources, priority: what the cluster needs to fit and order it.
    pub nodes: u32,
    /// Per node.
    pub resources: crate::model::Resources,
    /// Priority.
    pub priority: u8,
    /// Runs an image.
    pub image: bool,
    /// How long it may run at most.
    pub max_runtime: Option<Span>,
}
