//! Hard state: what a record says, and the functions that change it.
//!
//! A record is one value in one register. It is changed only by the pure functions here, inside a
//! compare-and-swap, so that every peer, the simulation and the models share one meaning.
// tidy: long because the records and every change to them are one meaning, and are reviewed together

use std::collections::BTreeMap;

use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::array::{ArrayChange, ArrayOf, ArrayState};
use super::groups::{GroupOf, GroupsChange, GroupsState};
use super::reserve::{ReserveChange, ReserveState};
use super::spec::JobSpec;
use crate::base::text::{node_list, words};
use crate::base::{
    BoundedVec, ContactId, Epoch, Home, JobId, KeyId, PeerName, Span, SpanId, TraceId, WallTime,
};

/// Largest encoded record.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;
/// Attempts kept in the record; older ones are counted only.
pub const ATTEMPTS_KEPT: usize = 16;
/// A job that could not be started so often in a row, over about half a minute and wherever it fits, is
/// given up: its program is missing everywhere.
pub const NOT_STARTED_MAX: usize = 8;
/// A job whose attempts lost their cluster so often in a row, with no new checkpoint in between, may be
/// what kills them: it is held until somebody releases it.
pub const LOSSES_MAX: u32 = 8;

/// What a job's id hashes: who minted it, and which members hold it from birth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Birth {
    /// The tenant.
    pub tenant: String,
    /// The peer that took the submission.
    pub minter: PeerName,
    /// The minter's own counter, never reused (durable).
    pub sequence: u64,
    /// 1, 3 or 5 homes, all different.
    pub homes: BoundedVec<Home, 5>,
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    #[cfg(test)]
    crate::base::work::count("digest");
    let mut ctx = digest::Context::new(&digest::SHA256);
    for part in parts {
        ctx.update(&(part.len() as u64).to_be_bytes());
        ctx.update(part);
    }
    ctx.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn hash_homes(homes: &[Home]) -> [u8; 32] {
    let mut parts: Vec<&[u8]> = Vec::new();
    for home in homes {
        parts.push(home.peer.as_str().as_bytes());
        parts.push(&home.store.0);
    }
    hash(&parts)
}

/// How long a job waits after so many losses in a row before it may run again.
pub fn hold_after(losses: u32) -> Span {
    match losses {
        0 | 1 => Span::ZERO,
        n => Span::secs(1 << n.min(6)),
    }
}

impl Birth {
    /// Where the ring proposes homes, before they are chosen.
    pub fn ring_key(tenant: &str, minter: &PeerName, sequence: u64) -> u64 {
        let h = hash(&[b"job", tenant.as_bytes(), minter.as_str().as_bytes(), &sequence.to_be_bytes()]);
        u64::from_be_bytes(h[..8].try_into().expect("8 of 32"))
    }

    /// The id that this birth certifies.
    pub fn id(&self) -> JobId {
        let key = Self::ring_key(&self.tenant, &self.minter, self.sequence);
        let rest = hash(&[
            &key.to_be_bytes(),
            &self.sequence.to_be_bytes(),
            self.tenant.as_bytes(),
            self.minter.as_str().as_bytes(),
            &hash_homes(&self.homes),
        ]);
        let mut out = [0; 20];
        out[..8].copy_from_slice(&key.to_be_bytes());
        out[8..].copy_from_slice(&rest[..12]);
        JobId(out)
    }
}

/// What a record keeps of its idempotency key. A key is of one tenant.
pub fn key_id(tenant: &str, key: &str) -> KeyId {
    let h = hash(&[b"key", tenant.as_bytes(), key.as_bytes()]);
    KeyId(h[..20].try_into().expect("20 of 32"))
}

/// The id of a cluster's contact record of one series.
pub fn contact_id(cluster: &PeerName, series: u64, homes: &[Home]) -> ContactId {
    let h = hash(&[b"contact", cluster.as_str().as_bytes(), &series.to_be_bytes(), &hash_homes(homes)]);
    ContactId(h[..20].try_into().expect("20 of 32"))
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waits for a cluster.
    Pending,
    /// A cluster may start it, and has not said that it did.
    Placed,
    /// Its attempt runs.
    Running,
    /// Ended with exit code 0. Final.
    Succeeded,
    /// Ended otherwise, with no retry left. Final.
    Failed,
    /// Ended on somebody's word. Final.
    Cancelled,
}

impl JobState {
    /// Nothing follows.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Placed => "placed",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The cluster that may run the job, and what it is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Where.
    pub cluster: PeerName,
    /// The contact record whose renewals keep the attempt alive.
    pub contact: ContactId,
    /// Of which incarnation.
    pub incarnation: u64,
    /// What certifies that contact record's id, so that any home can reach it: its series
    pub series: u64,
    /// and who holds it.
    pub contact_homes: BoundedVec<Home, 5>,
    /// When the swap was made.
    pub at: WallTime,
}

/// Bytes of what a cluster says of an end.
pub(crate) const NOTE_MAX: usize = 300;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub enum Outcome {
    /// The program ended by itself.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// Stopped at its `max_runtime`.
    TimedOut,
    /// Stopped on a cancel.
    Cancelled,
    /// Stopped for a move (drain, lost contact seen by its own guard); not a failure.
    Stopped(String),
    /// Its cluster was out of contact longer than the grace; it has stopped by now.
    Lost,
    /// The cluster could not start it; it never ran.
    NotStarted(String),
    /// The cluster took its grant back before it began (drain, full disk, contact taken over): says nothing
    /// about the job.
    Refused(String),
}

impl Outcome {
    /// It ended as somebody meant it to: well, cancelled, or to go on elsewhere.
    pub fn is_as_meant(&self) -> bool {
        matches!(self, Self::Exited(0) | Self::Cancelled | Self::Stopped(_) | Self::Refused(_))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit {code}"),
            Self::Signaled(signal) => write!(f, "ended by signal {signal}"),
            Self::TimedOut => f.write_str("ran into max_runtime"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Stopped(why) => write!(f, "stopped: {why}"),
            Self::Lost => f.write_str("lost with its cluster"),
            Self::NotStarted(why) => write!(f, "not started: {why}"),
            Self::Refused(why) => write!(f, "taken back: {why}"),
        }
    }
}

/// One past or present execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptSummary {
    /// Its number.
    pub epoch: Epoch,
    /// Where.
    pub cluster: PeerName,
    /// When the placement was chosen.
    pub placed_at: WallTime,
    /// When the program started, as the cluster says.
    pub started_at: Option<WallTime>,
    /// When it ended.
    pub ended_at: Option<WallTime>,
    /// How; none while it runs.
    pub outcome: Option<Outcome>,
    /// What its cluster says of that beside the outcome. Versions of before drop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The nodes that it ran on, in the names of its cluster's scheduler. Versions of before drop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
}

/// A published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// The epoch that wrote it; never falls.
    pub epoch: Epoch,
    /// Where it is.
    pub uri: String,
}

/// Somebody wants the job to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelIntent {
    /// Who.
    pub by: String,
    /// When.
    pub at: WallTime,
}

/// Somebody wants the job to go on at another cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MoveIntent {
    /// Where to.
    pub to: PeerName,
    /// Who.
    pub by: String,
    /// When.
    pub at: WallTime,
}

/// A job's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobRecord {
    /// What its id hashes.
    pub birth: Birth,
    /// One more for every chosen change.
    pub version: u64,
    /// What was asked.
    pub spec: JobSpec,
    /// Where it stands.
    pub state: JobState,
    /// The newest epoch given out.
    pub epoch: Epoch,
    /// The cluster that holds that epoch, while it does.
    pub placement: Option<Placement>,
    /// Somebody cancelled it.
    pub cancel: Option<CancelIntent>,
    /// Somebody moves it; stands until it is placed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<MoveIntent>,
    /// It is not placed until somebody releases it: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Losses in a row without a new checkpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub losses_in_a_row: u32,
    /// Newest published checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The last attempts, oldest first.
    pub attempts: BoundedVec<AttemptSummary, ATTEMPTS_KEPT>,
    /// Attempts that ended in failure.
    pub failures: u32,
    /// Attempts that ended by loss of their cluster.
    pub losses: u32,
    /// Not to be placed before this many milliseconds after the last change (back-off after a failure).
    pub hold: Span,
    /// When it was answered.
    pub submitted_at: WallTime,
    /// When it became final.
    pub finished_at: Option<WallTime>,
    /// One trace for its whole life.
    pub trace: TraceId,
    /// The span of another's trace under which it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<SpanId>,
    /// One sentence on why it is where it is, for people.
    pub reason: String,
    /// Which home set holds it: 0 is the one of its birth, one more with every move.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
    /// That home set, once it is not the one of its birth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<BoundedVec<Home, 5>>,
    /// The next home set. While it is set nothing else changes: this is the generation's last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<BoundedVec<Home, 5>>,
    /// How far it has come, where it is an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayState>,
    /// Of which array it is part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_of: Option<ArrayOf>,
    /// A bit for each of `spec.after` that has ended as it should.
    #[serde(default, skip_serializing_if = "is_zero_64")]
    pub after_met: u64,
    /// Where its groups are, where it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<GroupsState>,
    /// Of which job it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_of: Option<GroupOf>,
    /// How far it has come, where it is a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<ReserveState>,
    /// The idempotency key that it was submitted with, hashed: every home knows by it that the job is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// Fields of later versions; kept as found.
    #[serde(flatten)]
    pub ext: BTreeMap<String, serde_json::Value>,
}

/// A cluster's contact record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContactRecord {
    /// Whose contact.
    pub cluster: PeerName,
    /// Which series of that cluster.
    pub series: u64,
    /// Who holds it.
    pub homes: BoundedVec<Home, 5>,
    /// One more for every takeover and every claim after one.
    pub incarnation: u64,
    /// Fresh at every renewal: (boot number, counter) of the writer, never reused.
    pub nonce: (u64, u64),
    /// Who wrote the present incarnation: the cluster itself, or the home that took it over.
    pub holder: PeerName,
    /// Fields of later versions; kept as found.
    #[serde(flatten)]
    pub ext: BTreeMap<String, serde_json::Value>,
}

/// Why a change to a job's record was refused. The record is as it was; the text says what it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refused {
    /// Nothing follows a final state.
    #[error("the job has ended as {}", .0.as_str())]
    Final(JobState),
    /// Another executor holds the job.
    #[error("the job is placed at {0} under epoch {1}")]
    Placed(PeerName, Epoch),
    /// The change names an attempt that is no longer the newest.
    #[error("epoch {0} is not the job's present attempt")]
    Stale(Epoch),
    /// A cancel came first.
    #[error("the job was cancelled")]
    Cancelled,
    /// The binding was changed by somebody else.
    #[error("the attempt is no longer bound as stated")]
    Unbound,
    /// The checkpoint's epoch is older than the published one.
    #[error("a checkpoint of epoch {0} is published already")]
    OldCheckpoint(Epoch),
    /// Its home set is being moved; the change belongs into the next generation.
    #[error("the record moves to other homes after generation {0}")]
    Sealed(u32),
    /// Held until somebody releases it.
    #[error("the job is held: {0}")]
    Held(String),
    /// It runs where it shall move to.
    #[error("the job is at {0} already")]
    Here(PeerName),
    /// No home set: none, more than five, or a member twice.
    #[error("not a home set")]
    BadHomes,
    /// It is no array, or not so far.
    #[error("not a change of this array")]
    NoArray,
    /// A tenant's limit does not allow it.
    #[error("{0}")]
    Quota(String),
}

/// A change to a job's record. Each is conditional on what it names; `apply` is the one meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// No executor → this one, epoch + 1.
    Place {
        /// Where and bound to what.
        placement: Placement,
        /// The epoch the proposer expects to give.
        epoch: Epoch,
    },
    /// The executor says that the program of this epoch runs.
    Started {
        /// Which attempt.
        epoch: Epoch,
        /// When it started.
        at: WallTime,
        /// On which nodes, where its scheduler names them.
        nodes: Option<String>,
    },
    /// The executor has durably closed this attempt.
    Close {
        /// Which attempt.
        epoch: Epoch,
        /// How it ended.
        outcome: Outcome,
        /// When it started, if it did.
        started_at: Option<WallTime>,
        /// When it ended.
        at: WallTime,
        /// What its cluster says of that beside the outcome.
        note: Option<String>,
        /// On which nodes it ran, where its scheduler names them.
        nodes: Option<String>,
    },
    /// A home waited out the grace and took the incarnation over: the attempt has stopped by now.
    Free {
        /// Which attempt.
        epoch: Epoch,
        /// Bound to this contact record,
        contact: ContactId,
        /// and incarnation.
        incarnation: u64,
        /// When.
        at: WallTime,
    },
    /// The executor moves the binding of a living attempt from one incarnation to another.
    Rebind {
        /// Which attempt.
        epoch: Epoch,
        /// The old contact and incarnation.
        from: (ContactId, u64),
        /// The new ones,
        to: (ContactId, u64),
        /// with the new contact's series
        series: u64,
        /// and homes.
        homes: Vec<Home>,
    },
    /// Somebody wants it to end.
    Cancel {
        /// Who and when.
        intent: CancelIntent,
    },
    /// An attempt publishes a checkpoint.
    Publish {
        /// Its epoch and place.
        checkpoint: Checkpoint,
    },
    /// An operator says that the attempt has stopped for good, whatever its contact says. Where that is not
    /// so, two attempts may run at once.
    ConfirmLost {
        /// Which attempt.
        epoch: Epoch,
        /// Where: a placement that was never chosen may have had the same epoch at another cluster.
        cluster: Option<PeerName>,
        /// Who says so.
        by: String,
        /// When.
        at: WallTime,
    },
    /// Stop where it runs, with notice, and go on at another cluster.
    Move {
        /// Where to, who, when.
        intent: MoveIntent,
    },
    /// Nobody waits for the cluster of a move any more.
    MoveOver {
        /// The intent that is given up.
        intent: MoveIntent,
    },
    /// A held job may be placed again.
    Release {
        /// Who says so.
        by: String,
    },
    /// Ends a generation: fixes its last value and names the next home set.
    Seal {
        /// The generation that ends.
        generation: u32,
        /// Who holds the next one.
        next: Vec<Home>,
    },
    /// An array goes on, or a job that waits for others.
    Array(ArrayChange),
    /// A job with groups goes on, or one of its groups.
    Groups(GroupsChange),
    /// A reservation goes on.
    Reserve(ReserveChange),
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}
fn is_zero_64(n: &u64) -> bool {
    *n == 0
}

/// The homes as a set: 1 to 5, no member twice.
pub(super) fn home_set(homes: &[Home]) -> Option<BoundedVec<Home, 5>> {
    let distinct = homes.iter().enumerate().all(|(i, h)| homes[..i].iter().all(|other| other.peer != h.peer));
    BoundedVec::try_from(homes.to_vec()).ok().filter(|set: &BoundedVec<Home, 5>| distinct && !set.is_empty())
}

impl JobRecord {
    /// A new record: pending, never placed.
    pub fn new(birth: Birth, spec: JobSpec, trace: TraceId, at: WallTime) -> Self {
        let reason = match spec.after.len() {
            _ if spec.reserve.is_some() => "asks the clusters for it".into(),
            0 => "waits for a cluster".into(),
            n => format!("waits for {n} jobs to end"),
        };
        Self {
            birth,
            version: 1,
            array: spec.array.as_ref().map(|_| ArrayState::default()),
            array_of: None,
            after_met: 0,
            groups: (!spec.groups.list.is_empty()).then(GroupsState::default),
            group_of: None,
            reserve: spec.reserve.as_ref().map(|_| ReserveState::default()),
            spec,
            state: JobState::Pending,
            epoch: Epoch(0),
            placement: None,
            cancel: None,
            moving: None,
            held: None,
            losses_in_a_row: 0,
            checkpoint: None,
            attempts: BoundedVec::default(),
            failures: 0,
            losses: 0,
            hold: Span::ZERO,
            submitted_at: at,
            finished_at: None,
            trace,
            trace_parent: None,
            reason,
            generation: 0,
            moved_to: None,
            sealed: None,
            key: None,
            ext: BTreeMap::new(),
        }
    }

    /// The id, which its birth certifies.
    pub fn id(&self) -> JobId {
        self.birth.id()
    }

    /// Who holds it in its present generation.
    pub fn homes(&self) -> &[Home] {
        self.moved_to.as_ref().unwrap_or(&self.birth.homes)
    }

    /// The loss of this cluster concerns it: it is bound there, or an attempt was lost there at or after that time.
    pub fn touched_by(&self, cluster: &PeerName, since: WallTime) -> bool {
        self.placement.as_ref().is_some_and(|p| p.cluster == *cluster)
            || self.attempts.iter().any(|a| {
                a.cluster == *cluster
                    && a.outcome == Some(Outcome::Lost)
                    && a.ended_at.is_some_and(|at| at >= since)
            })
    }

    /// The first value of the next generation; none while this one is not sealed. Only a *chosen* sealed
    /// value may be carried over: of one generation there is only one, so this is the same for everybody.
    pub fn installed(&self) -> Option<JobRecord> {
        let homes = self.sealed.clone()?;
        // At the end of the numbers a record stays where it is: only a liar gets there.
        let generation = self.generation.checked_add(1)?;
        let version = self.version.saturating_add(1);
        Some(JobRecord { generation, version, moved_to: Some(homes), sealed: None, ..self.clone() })
    }

    /// Applies a change, or says why it does not hold. The version rises with every change made.
    pub fn apply(&self, change: &Change) -> Result<JobRecord, Refused> {
        let mut next = self.clone();
        if self.sealed.is_some() {
            return Err(Refused::Sealed(self.generation));
        }
        if let Change::Seal { generation, next: homes } = change {
            // A finished record moves like any other, as long as it is kept.
            if *generation != self.generation {
                return Err(Refused::Sealed(*generation));
            }
            next.sealed = Some(home_set(homes).ok_or(Refused::BadHomes)?);
            next.version = self.version.saturating_add(1);
            return Ok(next);
        }
        if self.state.is_final() {
            return Err(Refused::Final(self.state));
        }
        match change {
            Change::Place { placement, epoch } => {
                if let Some(held) = &self.placement {
                    return Err(Refused::Placed(held.cluster.clone(), self.epoch));
                }
                if self.cancel.is_some() {
                    return Err(Refused::Cancelled);
                }
                if let Some(why) = &self.held {
                    return Err(Refused::Held(why.clone()));
                }
                if self.array.is_some() {
                    return Err(Refused::Held("it is an array: its jobs are placed".into()));
                }
                if self.is_reservation() {
                    return Err(Refused::Held("it is a reservation, which runs nothing".into()));
                }
                if self.groups.is_some() || self.group_of.is_some() {
                    return Err(Refused::Held("all groups of a job are placed together".into()));
                }
                if self.waits_for().next().is_some() {
                    return Err(Refused::Held("it waits for other jobs".into()));
                }
                // At the end of the numbers there is no next one: the same epoch is never given twice.
                if *epoch != self.epoch.next() || *epoch == self.epoch {
                    return Err(Refused::Stale(*epoch));
                }
                next.epoch = *epoch;
                next.moving = None;
                next.state = JobState::Placed;
                next.hold = Span::ZERO;
                next.reason = format!("placed at {}", placement.cluster);
                next.attempts.push_rolling(AttemptSummary {
                    epoch: *epoch,
                    cluster: placement.cluster.clone(),
                    placed_at: placement.at,
                    started_at: None,
                    ended_at: None,
                    outcome: None,
                    note: None,
                    nodes: None,
                });
                next.placement = Some(placement.clone());
            }
            Change::Started { epoch, at, nodes } => {
                let placement = self.held(*epoch)?;
                next.state = JobState::Running;
                next.reason = format!("runs at {}", placement.cluster);
                if let Some(last) = next.attempts.as_mut_slice().last_mut() {
                    last.started_at = Some(*at);
                }
                next.ran_on(*epoch, nodes.as_deref());
            }
            Change::Close { epoch, outcome, started_at, at, note, nodes } => {
                // A group that was given up has ended its job's epoch: what it did since does not count.
                let counts = self.group_of.is_none() && matches!(outcome, Outcome::Exited(0));
                if counts && self.lost_is_newest(*epoch) {
                    // It had finished before its cluster was given up, and nothing newer was placed:
                    // a finished job is not run again because somebody was unreachable.
                    next.losses = next.losses.saturating_sub(1);
                    next.held = None;
                } else {
                    self.held(*epoch)?;
                }
                next.ran_on(*epoch, nodes.as_deref());
                next.close(*epoch, outcome.clone(), *started_at, *at);
                if let Some(note) = note {
                    next.noted(*epoch, note);
                }
            }
            Change::Free { epoch, contact, incarnation, at } => {
                let placement = self.held(*epoch)?;
                if (placement.contact, placement.incarnation) != (*contact, *incarnation) {
                    return Err(Refused::Unbound);
                }
                next.close(*epoch, Outcome::Lost, None, *at);
            }
            Change::Rebind { epoch, from, to, series, homes } => {
                let placement = self.held(*epoch)?;
                if (placement.contact, placement.incarnation) != *from {
                    return Err(Refused::Unbound);
                }
                if let (Some(p), Ok(homes)) = (next.placement.as_mut(), BoundedVec::try_from(homes.clone())) {
                    (p.contact, p.incarnation) = *to;
                    (p.series, p.contact_homes) = (*series, homes);
                }
            }
            Change::Cancel { .. } | Change::Move { .. } if self.group_of.is_some() => {
                return Err(Refused::Held("it is a group: cancel the job that it belongs to".into()));
            }
            Change::Cancel { intent } => {
                if self.cancel.is_none() {
                    next.cancel = Some(intent.clone());
                }
                if self.array.as_ref().is_some_and(|a| a.opened > 0) {
                    next.reason = format!("cancel asked by {}; waits for its jobs to stop", intent.by);
                    next.array_over(intent.at);
                } else if next.groups_cancel(&intent.by) {
                    // Its groups' records must end first.
                } else if self.placement.is_none() {
                    next.finish(JobState::Cancelled, format!("cancelled by {}", intent.by), intent.at);
                } else {
                    next.reason = format!("cancel asked by {}; waits for the attempt to stop", intent.by);
                }
            }
            Change::Publish { checkpoint } => {
                if let Some(published) = self.checkpoint.as_ref().filter(|c| c.epoch > checkpoint.epoch) {
                    return Err(Refused::OldCheckpoint(published.epoch));
                }
                self.held(checkpoint.epoch)?;
                next.checkpoint = Some(checkpoint.clone());
                next.losses_in_a_row = 0;
            }
            Change::ConfirmLost { epoch, cluster, by, at } => {
                self.held(*epoch)?;
                let elsewhere = |p: &&Placement| cluster.as_ref().is_some_and(|named| *named != p.cluster);
                if let Some(placed) = self.placement.as_ref().filter(elsewhere) {
                    return Err(Refused::Placed(placed.cluster.clone(), self.epoch));
                }
                next.close(*epoch, Outcome::Lost, None, *at);
                next.reason = format!("{} (confirmed by {by})", next.reason);
            }
            Change::Move { .. } if self.is_reservation() => {
                return Err(Refused::Held("it is a reservation, which runs nothing".into()));
            }
            Change::Move { .. } if self.array.is_some() => {
                return Err(Refused::Held("it is an array: move its jobs".into()));
            }
            Change::Move { .. } if self.groups.is_some() => {
                return Err(Refused::Held("it has groups, and a move names one cluster".into()));
            }
            Change::Move { intent } => {
                if self.cancel.is_some() {
                    return Err(Refused::Cancelled);
                }
                if let Some(placed) = self.placement.as_ref().filter(|p| p.cluster == intent.to) {
                    return Err(Refused::Here(placed.cluster.clone()));
                }
                next.moving = Some(intent.clone());
                next.reason = format!("moves to {} on the word of {}", intent.to, intent.by);
            }
            Change::MoveOver { intent } => {
                if self.moving.as_ref() == Some(intent) && self.placement.is_none() {
                    next.moving = None;
                    next.reason = format!("{} did not take it in time; runs anywhere", intent.to);
                }
            }
            Change::Release { by } => {
                next.losses_in_a_row = 0;
                if self.held.is_some() {
                    next.held = None;
                    next.reason = format!("released by {by}");
                }
            }
            Change::Array(change) => next.array_apply(change)?,
            Change::Groups(change) => next.groups_apply(change)?,
            Change::Reserve(change) => next.reserve_apply(change)?,
            Change::Seal { .. } => {}
        }
        next.version = self.version.saturating_add(1);
        Ok(next)
    }

    /// True if the change is in the record already, so that making it once more is not needed: this
    /// is how a change with an unknown outcome is asked again without being made twice.
    pub fn reflects(&self, change: &Change) -> bool {
        let attempt = |epoch: &Epoch| self.attempts.iter().rfind(|a| a.epoch == *epoch);
        match change {
            Change::Place { placement, epoch } => {
                self.epoch == *epoch
                    && self.placement.as_ref().is_some_and(|p| {
                        (&p.cluster, p.contact, p.incarnation)
                            == (&placement.cluster, placement.contact, placement.incarnation)
                    })
            }
            Change::Started { epoch, .. } => attempt(epoch).is_some_and(|a| a.started_at.is_some()),
            Change::Close { epoch, outcome, .. } => {
                attempt(epoch).is_some_and(|a| a.outcome.as_ref() == Some(outcome))
            }
            Change::Free { epoch, .. } => attempt(epoch).is_some_and(|a| a.outcome.is_some()),
            Change::Rebind { epoch, to, .. } => {
                self.epoch == *epoch
                    && self.placement.as_ref().is_some_and(|p| (p.contact, p.incarnation) == *to)
            }
            Change::Cancel { .. } => self.cancel.is_some(),
            Change::Publish { checkpoint } => self.checkpoint.as_ref() == Some(checkpoint),
            Change::ConfirmLost { epoch, .. } => attempt(epoch).is_some_and(|a| a.outcome.is_some()),
            Change::Move { intent } => self.moving.as_ref() == Some(intent),
            Change::MoveOver { intent } => self.moving.as_ref() != Some(intent),
            Change::Release { .. } => self.held.is_none() && self.losses_in_a_row == 0,
            Change::Array(change) => self.array_reflects(change),
            Change::Groups(change) => self.groups_reflects(change),
            Change::Reserve(change) => self.reserve_reflects(change),
            Change::Seal { generation, next } => {
                self.generation > *generation || self.sealed.as_deref() == Some(next.as_slice())
            }
        }
    }

    fn lost_is_newest(&self, epoch: Epoch) -> bool {
        self.placement.is_none()
            && self.epoch == epoch
            && self.attempts.last().is_some_and(|a| a.epoch == epoch && a.outcome == Some(Outcome::Lost))
    }

    fn held(&self, epoch: Epoch) -> Result<&Placement, Refused> {
        self.placement.as_ref().filter(|_| self.epoch == epoch).ok_or(Refused::Stale(epoch))
    }

    fn close(&mut self, epoch: Epoch, outcome: Outcome, started_at: Option<WallTime>, at: WallTime) {
        let cluster = self.placement.take().map(|p| p.cluster.to_string()).unwrap_or_default();
        if let Some(last) = self.attempts.as_mut_slice().iter_mut().rfind(|a| a.epoch == epoch) {
            last.started_at = last.started_at.or(started_at);
            last.ended_at = Some(at);
            last.outcome = Some(outcome.clone());
        }
        if let Some(of) = &mut self.group_of {
            of.halt = None;
            self.losses = self.losses.saturating_add(u32::from(outcome == Outcome::Lost));
            self.state = JobState::Pending;
            self.reason = format!("its attempt at {cluster} has ended; its job says what follows");
            return;
        }
        self.settle(outcome, &cluster, at);
    }

    /// The nodes of an attempt, as they were told first.
    fn ran_on(&mut self, epoch: Epoch, nodes: Option<&str>) {
        let Some(last) = self.attempts.as_mut_slice().iter_mut().rfind(|a| a.epoch == epoch) else { return };
        if last.nodes.is_none() {
            last.nodes = nodes.map(node_list);
        }
    }

    /// A few words on how an attempt ended: with it, and in the sentence for people.
    fn noted(&mut self, epoch: Epoch, note: &str) {
        let note = words(note, NOTE_MAX);
        self.reason = format!("{} ({note})", self.reason);
        if let Some(last) = self.attempts.as_mut_slice().iter_mut().rfind(|a| a.epoch == epoch) {
            last.note = Some(note);
        }
    }

    /// What follows from the end of an attempt.
    pub(super) fn settle(&mut self, outcome: Outcome, cluster: &str, at: WallTime) {
        let lost_contact = matches!(outcome, Outcome::Lost);
        self.losses = self.losses.saturating_add(u32::from(lost_contact));
        self.losses_in_a_row = if lost_contact { self.losses_in_a_row.saturating_add(1) } else { 0 };
        self.state = JobState::Pending;
        self.hold = Span::ZERO;
        if let (Some(cancel), false) = (&self.cancel, matches!(outcome, Outcome::Exited(0))) {
            let by = cancel.by.clone();
            return self.finish(JobState::Cancelled, format!("cancelled by {by}"), at);
        }
        match outcome {
            Outcome::Exited(0) => self.finish(JobState::Succeeded, format!("exited with 0 at {cluster}"), at),
            Outcome::Cancelled => self.finish(JobState::Cancelled, format!("stopped at {cluster}"), at),
            Outcome::TimedOut => {
                self.finish(JobState::Failed, format!("ran into max_runtime at {cluster}"), at)
            }
            Outcome::Exited(code) => self.fail(format!("exited with {code} at {cluster}"), at),
            Outcome::Signaled(signal) => self.fail(format!("ended by signal {signal} at {cluster}"), at),
            Outcome::Lost if self.spec.on_lost_contact.then == super::spec::Then::Fail => {
                self.finish(JobState::Failed, format!("lost contact with {cluster}"), at);
            }
            Outcome::Lost if self.losses_in_a_row >= LOSSES_MAX => {
                let n = self.losses_in_a_row;
                let why =
                    format!("{n} clusters in a row were lost while they ran it, the last was {cluster}");
                self.reason = format!("held: {why}; starling job ID release lets it run again");
                self.held = Some(why);
            }
            Outcome::Lost => {
                // A job that takes its machines down with it must not go round the mesh at full speed.
                self.hold = hold_after(self.losses_in_a_row);
                self.reason = format!("lost contact with {cluster}; runs again from {}", self.goes_on_from());
            }
            Outcome::Stopped(_) if self.moving.is_some() => {
                let to = self.moving.as_ref().map(|m| m.to.to_string()).unwrap_or_default();
                self.reason = format!("stopped at {cluster} to go on at {to}");
            }
            Outcome::Stopped(why) => {
                self.reason =
                    format!("stopped at {cluster} ({why}); runs again from {}", self.goes_on_from());
            }
            Outcome::Refused(why) => {
                self.hold = Span::secs(1);
                self.reason = format!("{cluster} took its grant back: {why}");
            }
            Outcome::NotStarted(why) => {
                let of_late = self.attempts.iter().rev();
                let misses =
                    of_late.take_while(|a| matches!(a.outcome, Some(Outcome::NotStarted(_)))).count();
                if misses >= NOT_STARTED_MAX {
                    let text = format!("could not be started {misses} times, last at {cluster}: {why}");
                    return self.finish(JobState::Failed, text, at);
                }
                self.hold = Span::secs(1 << (misses / 2));
                self.reason = format!("{cluster} could not start it: {why}");
            }
        }
    }

    fn fail(&mut self, what: String, at: WallTime) {
        self.failures = self.failures.saturating_add(1);
        if self.failures > self.spec.retries {
            return self.finish(JobState::Failed, what, at);
        }
        self.hold = Span::secs(1 << u64::from(self.failures.min(8)));
        self.reason = format!("{what}; retry {} of {} in {}", self.failures, self.spec.retries, self.hold);
    }

    /// Where its next attempt begins, in words.
    fn goes_on_from(&self) -> &'static str {
        let saves = self.checkpoint.is_some() || self.spec.checkpoint.is_some();
        if saves { "its checkpoint" } else { "the beginning, since it has no checkpoint" }
    }

    pub(super) fn finish(&mut self, state: JobState, reason: String, at: WallTime) {
        self.state = state;
        self.reason = reason;
        self.placement = None;
        // A clock that is behind would make it look like one that ended long ago, and is forgotten.
        self.finished_at = Some(at.max(self.submitted_at));
    }
}

/// A change to a contact record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContactChange {
    /// The cluster renews its present incarnation with a fresh nonce.
    Renew {
        /// It must still be this incarnation, held by the cluster.
        incarnation: u64,
        /// Fresh.
        nonce: (u64, u64),
    },
    /// A home that has waited out the grace takes the incarnation over.
    TakeOver {
        /// It must still be exactly this (incarnation, nonce).
        expect: (u64, (u64, u64)),
        /// Fresh.
        nonce: (u64, u64),
        /// The home.
        by: PeerName,
    },
    /// The cluster, finding its incarnation taken, claims the next one.
    Claim {
        /// Its own old incarnation; the record must be above it.
        above: u64,
        /// Fresh.
        nonce: (u64, u64),
    },
}

impl ContactRecord {
    /// Applies a change, or refuses it and leaves the record as it was.
    pub fn apply(&self, change: &ContactChange) -> Result<ContactRecord, Refused> {
        let mut next = self.clone();
        match change {
            ContactChange::Renew { incarnation, nonce } => {
                if self.incarnation != *incarnation || self.holder != self.cluster {
                    return Err(Refused::Unbound);
                }
                next.nonce = *nonce;
            }
            ContactChange::TakeOver { expect, nonce, by } => {
                if (self.incarnation, self.nonce) != *expect {
                    return Err(Refused::Unbound);
                }
                next.incarnation = self.incarnation.checked_add(1).ok_or(Refused::Unbound)?;
                next.nonce = *nonce;
                next.holder = by.clone();
            }
            ContactChange::Claim { above, nonce } => {
                if self.incarnation <= *above {
                    return Err(Refused::Unbound);
                }
                next.incarnation = self.incarnation.checked_add(1).ok_or(Refused::Unbound)?;
                next.nonce = *nonce;
                next.holder = self.cluster.clone();
            }
        }
        Ok(next)
    }

    /// True if the record carries this change's nonce: it was made.
    pub fn reflects(&self, change: &ContactChange) -> bool {
        match change {
            ContactChange::Renew { nonce, .. } | ContactChange::Claim { nonce, .. } => {
                self.nonce == *nonce && self.holder == self.cluster
            }
            ContactChange::TakeOver { nonce, by, .. } => self.nonce == *nonce && self.holder == *by,
        }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
