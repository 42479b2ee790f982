//! The cluster's side of a job: queue, grants, admission, attempts, closing.
//!
//! Starting is pulled: a message only says "look"; the record, read through its register, says whether
//! this cluster may start this epoch. What was admitted is on disk before the backend hears of it, and
//! what has ended is on disk before its capacity is free.
// tidy: long because queue, admission and attempts change the same books in one step; the queue is the first to move out

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::acceptor::{Value, ValueError};
use super::api::{
    AttemptKey, AttemptView, BackendCommand, BackendEvent, ClaimView, CoreConfig, Flash, NodeShare, Output,
    StartCommand, StopReason, Table, Write,
};
use super::books::Books;
use super::message::{Claim, Message, Origin};
use super::peer::{Peer, Timer};
use super::propose::{OpResult, Task};
use super::purpose::Purpose;
use crate::base::{ContactId, Epoch, Home, Instant, JobId, PeerName, Span, WallTime};
use crate::model::record::{Birth, Change};
use crate::model::report::{Liveness, QueueReport};
use crate::model::spec::JobSpec;
use crate::model::{JobRecord, Outcome, Placement, Resources};

/// A claim that was not repeated for this long is dropped.
const CLAIM_FOR: Span = Span::secs(60);
/// A head that has waited this long lets nobody pass any more.
const STARVES_AFTER: Span = Span::secs(30);
/// Fits tried in one pass over the queue.
const TRIES_MAX: usize = 512;
/// What this cluster says of itself changes at most this often.
const REPORT_EVERY: Span = Span::millis(50);
/// A place in the queue, other than the last, is counted no further than this.
const PLACE_MAX: usize = 1_000;
/// Claims held.
const CLAIMS_MAX: usize = 200_000;
/// Patience of the executor's own operations; they are repeated until they are done.
const PATIENCE: Span = Span::secs(10);
/// Time between notice and kill of a drain, a cancel.
const NOTICE: Span = Span::secs(10);
/// The queue is looked over at least this often.
const QUEUE_EVERY: Span = Span::secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Starting,
    Running,
    Stopping,
    Closed,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Closed {
    outcome: Outcome,
    started_at: Option<WallTime>,
    at: WallTime,
}

/// An attempt's durable row.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    birth: Birth,
    epoch: Epoch,
    spec: JobSpec,
    shares: Vec<NodeShare>,
    binding: (ContactId, u64),
    /// A swap to this binding was sent, and whether it was chosen is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moving_to: Option<NextBinding>,
    closed: Option<Closed>,
}

/// The contact that an attempt moves to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NextBinding {
    to: (ContactId, u64),
    series: u64,
    homes: Vec<Home>,
}

#[derive(Debug, Clone)]
struct Attempt {
    row: Row,
    phase: Phase,
    admitted: Instant,
    started_at: Option<WallTime>,
    /// The record says that it runs.
    recorded: bool,
    rebinding: bool,
    busy: bool,
}

#[derive(Debug, Clone)]
struct Waiting {
    claim: Claim,
    owner: PeerName,
    arrived: Instant,
    heard: Instant,
}

#[derive(Debug, Clone)]
struct Granted {
    epoch: Epoch,
    shares: Vec<NodeShare>,
    need: Resources,
    until: Instant,
}

type Place = (Reverse<u8>, Instant, JobId);

/// All that this cluster holds.
#[derive(Default)]
pub(super) struct Executor {
    books: Books,
    attempts: BTreeMap<AttemptKey, Attempt>,
    claims: BTreeMap<JobId, Waiting>,
    order: BTreeSet<Place>,
    grants: BTreeMap<JobId, Granted>,
    looking: BTreeSet<JobId>,
    /// They run and this peer's disk knows nothing of them (it is a new one): until they have been stopped,
    /// nobody knows what is free here, and their epochs are not to be answered for.
    strays: BTreeSet<AttemptKey>,
    /// Closed lately, so that a late read cannot start one again within this run.
    done: VecDeque<AttemptKey>,
    pub report_dirty: bool,
    reported: Option<Instant>,
    /// GPUs of all claims.
    queued_gpus: u64,
    flashed: Option<(Instant, BTreeMap<String, u32>)>,
}

fn row_key(key: &AttemptKey) -> Vec<u8> {
    let mut bytes = key.job.0.to_vec();
    bytes.extend_from_slice(&key.epoch.0.to_be_bytes());
    bytes
}

impl Executor {
    pub fn recover(cfg: &CoreConfig, rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Self, ValueError> {
        let mut exec = Executor { books: Books::new(&cfg.nodes), report_dirty: true, ..Self::default() };
        for bytes in rows.values() {
            let row: Row = serde_json::from_slice(bytes).map_err(|e| ValueError::Malformed(e.to_string()))?;
            let key = AttemptKey { job: row.birth.id(), epoch: row.epoch };
            let phase = if row.closed.is_some() { Phase::Closed } else { Phase::Starting };
            if phase != Phase::Closed {
                exec.books.take(&row.shares, &row.spec.resources);
            }
            let attempt = Attempt {
                row,
                phase,
                admitted: Instant(0),
                started_at: None,
                recorded: false,
                rebinding: false,
                busy: false,
            };
            exec.attempts.insert(key, attempt);
        }
        Ok(exec)
    }

    pub fn explain(&self, job: &JobId) -> String {
        let attempts: Vec<_> =
            self.of_job(job).map(|(k, a)| (k.epoch, a.phase, a.busy, a.recorded)).collect();
        let (claim, grant) = (self.claims.contains_key(job), self.grants.contains_key(job));
        format!("attempts {attempts:?} claim {claim} grant {grant} looking {}", self.looking.contains(job))
    }

    /// An attempt of this job is here and not closed.
    pub fn runs(&self, job: &JobId) -> bool {
        self.of_job(job).any(|(_, a)| a.phase != Phase::Closed)
    }
    fn of_job(&self, job: &JobId) -> impl Iterator<Item = (&AttemptKey, &Attempt)> {
        let low = AttemptKey { job: *job, epoch: Epoch(0) };
        let high = AttemptKey { job: *job, epoch: Epoch(u64::MAX) };
        self.attempts.range(low..=high)
    }
    /// Epochs of a job that this cluster holds an attempt of.
    pub fn epochs_of(&self, job: &JobId) -> impl Iterator<Item = u64> {
        self.of_job(job).map(|(k, _)| k.epoch.0)
    }
    /// What attempts that are not closed hold, one of them left out.
    pub fn shares_but(&self, key: AttemptKey) -> impl Iterator<Item = &[NodeShare]> {
        let held = self.attempts.iter().filter(move |(k, a)| **k != key && a.phase != Phase::Closed);
        held.map(|(_, a)| a.row.shares.as_slice())
    }
    pub fn bound_to(&self, contact: &ContactId) -> bool {
        let follows = |row: &Row| {
            row.binding.0 == *contact || row.moving_to.as_ref().is_some_and(|next| next.to.0 == *contact)
        };
        self.attempts.values().any(|a| a.phase != Phase::Closed && follows(&a.row))
    }

    pub fn attempts_view(&self, now: Instant) -> Vec<AttemptView> {
        let view = |(key, a): (&AttemptKey, &Attempt)| AttemptView {
            job: key.job,
            epoch: key.epoch,
            name: a.row.spec.name.clone(),
            tenant: a.row.spec.tenant.clone(),
            gpus: a.row.spec.gpus_total(),
            phase: match a.phase {
                Phase::Starting => "starting",
                Phase::Running => "running",
                Phase::Stopping => "stopping",
                Phase::Closed => "closing",
            }
            .into(),
            age: now.since(a.admitted),
        };
        self.attempts.iter().map(view).collect()
    }

    pub fn queue_view(&self, now: Instant) -> Vec<ClaimView> {
        let view = |w: &Waiting, job: &JobId| ClaimView {
            job: *job,
            owner: w.owner.clone(),
            priority: w.claim.priority,
            gpus: gpus_of(&w.claim),
            granted: self.grants.contains_key(job),
            age: now.since(w.arrived),
        };
        self.order.iter().filter_map(|(_, _, job)| self.claims.get(job).map(|w| view(w, job))).collect()
    }

    fn drop_claim(&mut self, job: &JobId) -> Option<Waiting> {
        let waiting = self.claims.remove(job)?;
        self.queued_gpus -= gpus_of(&waiting.claim);
        self.order.remove(&(Reverse(waiting.claim.priority), waiting.arrived, *job));
        self.report_dirty = true;
        Some(waiting)
    }

    fn drop_grant(&mut self, job: &JobId) -> Option<Granted> {
        let grant = self.grants.remove(job)?;
        self.report_dirty = true;
        Some(grant)
    }

    fn release_grant(&mut self, job: &JobId) {
        if let Some(grant) = self.drop_grant(job) {
            self.books.give(&grant.shares, &grant.need);
        }
    }
}

impl Peer {
    // The queue.

    pub(super) fn on_claim(&mut self, from: PeerName, claim: Claim) {
        let job = claim.birth.id();
        let key = AttemptKey { job, epoch: claim.epoch };
        // It has ended here, and the record does not say so yet: that comes first, or a job that is done would
        // run again because its cluster was out of reach when it finished.
        let ended: Vec<AttemptKey> =
            self.exec.of_job(&job).filter(|(_, a)| a.phase == Phase::Closed).map(|(k, _)| *k).collect();
        for key in &ended {
            self.attempt_again(*key);
        }
        let unsaid = (!ended.is_empty()).then(|| "an attempt that ended here is being recorded".to_owned());
        let refused = unsaid.or_else(|| self.refuses(&claim));
        if let Some(why) = refused {
            self.exec.drop_claim(&job);
            let state = Message::ClaimState { job, epoch: claim.epoch, ahead: 0, refused: Some(why) };
            return self.send(from, state, false);
        }
        if self.exec.attempts.contains_key(&key) || self.exec.done.contains(&key) {
            return;
        }
        let epoch = claim.epoch;
        if self.exec.grants.get(&job).is_some_and(|g| g.epoch != epoch) {
            self.exec.release_grant(&job);
        }
        let now = self.now.mono;
        let arrived = self.exec.drop_claim(&job).map_or(now, |old| old.arrived);
        self.exec.order.insert((Reverse(claim.priority), arrived, job));
        self.exec.queued_gpus += gpus_of(&claim);
        self.exec.report_dirty = true;
        self.exec.claims.insert(job, Waiting { claim, owner: from.clone(), arrived, heard: now });
        if self.exec.grants.contains_key(&job) {
            return self.send_grant(&job);
        }
        self.queue_joined(job);
        if !self.exec.grants.contains_key(&job) {
            let order = &self.exec.order;
            let ahead = match order.last() {
                Some((_, _, last)) if *last == job => order.len() - 1,
                _ => order.iter().take(PLACE_MAX).take_while(|(_, _, j)| *j != job).count(),
            };
            let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
            self.send(from, Message::ClaimState { job, epoch, ahead, refused: None }, false);
        }
    }

    fn refuses(&self, claim: &Claim) -> Option<String> {
        if let Some(why) = self.closed_for() {
            return Some(why);
        }
        if claim.image && !self.cfg.runs_images {
            return Some("runs no images".into());
        }
        if !super::books::fits_empty(&self.cfg.nodes, claim.nodes, &claim.resources) {
            return Some("does not fit this cluster even when it is empty".into());
        }
        (self.exec.claims.len() >= CLAIMS_MAX).then(|| "the queue is full".into())
    }

    fn closed_for(&self) -> Option<String> {
        match (self.draining, self.disk_full, self.exec.strays.is_empty()) {
            (true, ..) => Some("drains".into()),
            (_, true, _) => Some("disk nearly full".into()),
            (.., false) => Some("stops attempts that its new disk does not know".into()),
            _ => None,
        }
    }

    pub(super) fn on_withdraw(&mut self, from: &PeerName, job: JobId, epoch: Epoch) {
        let theirs = |w: &Waiting| w.owner == *from && w.claim.epoch <= epoch;
        if self.exec.claims.get(&job).is_some_and(theirs) {
            self.exec.drop_claim(&job);
            if self.exec.grants.get(&job).is_some_and(|g| g.epoch <= epoch) {
                self.exec.release_grant(&job);
            }
            self.queue_changed();
        }
    }

    pub(super) fn on_queue_timer(&mut self) {
        self.timer_in(QUEUE_EVERY, Timer::Queue);
        self.drop_old_claims();
    }

    /// Drops claims that nobody repeats and grants that nobody took, and grants what fits then.
    pub(super) fn drop_old_claims(&mut self) {
        let now = self.now.mono;
        let silent: Vec<JobId> = self
            .exec
            .claims
            .iter()
            .filter(|(_, w)| now.since(w.heard) > CLAIM_FOR)
            .map(|(j, _)| *j)
            .collect();
        for job in silent {
            self.exec.drop_claim(&job);
        }
        let over: Vec<JobId> =
            self.exec.grants.iter().filter(|(_, g)| g.until <= now).map(|(j, _)| *j).collect();
        for job in over {
            self.exec.release_grant(&job);
            self.count("grants_expired");
        }
        self.queue_changed();
    }

    /// Grants what fits, in order. Small jobs pass a head that does not fit, until it has waited so long
    /// that it would starve.
    pub(super) fn queue_changed(&mut self) {
        if self.closed_for().is_some() || self.contact_fresh().is_none() {
            return;
        }
        let now = self.now.mono;
        let waiting: Vec<(Instant, JobId)> = self
            .exec
            .order
            .iter()
            .filter(|(_, _, job)| !self.exec.grants.contains_key(job))
            .take(TRIES_MAX)
            .map(|(_, arrived, job)| (*arrived, *job))
            .collect();
        for (arrived, job) in waiting {
            match self.try_grant(&job) {
                Some(grant) => self.grant(job, grant),
                None if now.since(arrived) > STARVES_AFTER && self.claimed_by_one_reached(&job) => break,
                None => {}
            }
        }
    }

    /// One claim more, and nothing freed: only that one can be granted now, unless it would pass a head that
    /// has waited too long.
    fn queue_joined(&mut self, job: JobId) {
        if self.closed_for().is_some() || self.contact_fresh().is_none() {
            return;
        }
        let now = self.now.mono;
        let mut waiting = self.exec.order.iter().filter(|(_, _, j)| !self.exec.grants.contains_key(j));
        let starved = |at: &Instant| now.since(*at) > STARVES_AFTER;
        if waiting.next().is_some_and(|(_, arrived, head)| *head != job && starved(arrived)) {
            return;
        }
        let Some(granted) = self.try_grant(&job) else { return };
        self.grant(job, granted);
    }

    /// Takes a share for a claim out of the books, where one is free.
    fn try_grant(&mut self, job: &JobId) -> Option<Granted> {
        let waiting = self.exec.claims.get(job)?;
        if !self.owner_reachable(&waiting.owner) {
            return None;
        }
        let need = waiting.claim.resources.clone();
        let shares = self.exec.books.fit(waiting.claim.nodes, &need)?;
        self.exec.books.take(&shares, &need);
        let until = self.now.mono + self.cfg.grant_for;
        Some(Granted { epoch: waiting.claim.epoch, shares, need, until })
    }

    /// What a grant to an owner out of reach would hold is better given to others.
    fn owner_reachable(&self, owner: &PeerName) -> bool {
        *owner == self.cfg.name || self.view.members.get(owner).is_none_or(|m| m.liveness != Liveness::Lost)
    }

    fn claimed_by_one_reached(&self, job: &JobId) -> bool {
        self.exec.claims.get(job).is_some_and(|w| self.owner_reachable(&w.owner))
    }

    fn grant(&mut self, job: JobId, grant: Granted) {
        self.timers.insert((grant.until, Timer::Grants));
        self.exec.grants.insert(job, grant);
        self.exec.report_dirty = true;
        self.send_grant(&job);
    }

    fn send_grant(&mut self, job: &JobId) {
        let now = self.now.mono;
        let (Some(grant), Some(waiting)) = (self.exec.grants.get(job), self.exec.claims.get(job)) else {
            return;
        };
        let Some(contact) = self.contacts.newest() else { return };
        let message = Message::Grant {
            job: *job,
            epoch: grant.epoch,
            held: grant.until.since(now),
            contact: contact.id,
            series: contact.series,
            homes: contact.homes.clone(),
            incarnation: contact.incarnation,
        };
        let to = waiting.owner.clone();
        self.send(to, message, false);
    }

    // Admission.

    /// Somebody says that a record concerns this cluster: read it.
    pub(super) fn on_look(&mut self, birth: Birth) {
        let job = birth.id();
        if self.exec.looking.insert(job) {
            self.propose(Origin::Job(birth), Task::Read, Purpose::Look(job), PATIENCE);
        }
    }

    pub(super) fn look_again(&mut self, job: JobId) {
        let birth = self.exec.of_job(&job).map(|(_, a)| a.row.birth.clone()).next();
        if let Some(birth) = birth {
            self.on_look(birth);
        }
    }

    /// The record as a quorum holds it.
    pub(super) fn looked(&mut self, job: JobId, result: OpResult) {
        self.exec.looking.remove(&job);
        let OpResult::Value { value: Value::Job(record), .. } = result else { return };
        self.heal_hint(&record);
        let mine = record.placement.clone().filter(|p| p.cluster == self.cfg.name);
        let current = mine.as_ref().map(|_| AttemptKey { job, epoch: record.epoch });
        let others: Vec<AttemptKey> =
            self.exec.of_job(&job).map(|(k, _)| *k).filter(|k| Some(*k) != current).collect();
        for key in others {
            self.stop(key, StopReason::Superseded);
        }
        let (Some(placement), Some(key)) = (mine, current) else { return };
        if self.exec.strays.contains(&key) {
            return;
        }
        if !self.exec.attempts.contains_key(&key) {
            if !self.exec.done.contains(&key) && self.may_begin_under(&placement, &record.spec) {
                self.admit(key, &record, &placement);
            }
            return;
        }
        if record.cancel.is_some() {
            return self.stop(key, StopReason::Cancel);
        }
        if record.moving.as_ref().is_some_and(|m| m.to != self.cfg.name) {
            return self.stop(key, StopReason::Drain);
        }
        let unstarted = self.exec.attempts.get(&key).is_some_and(|a| a.phase == Phase::Starting);
        if unstarted {
            self.start(key, &record);
        }
    }

    /// False while the contact that the placement names is ours and was not renewed for half a grace: an attempt
    /// begun now might be past its end already, as after a suspend. The owner says "look" again in a second.
    fn may_begin_under(&self, placement: &Placement, spec: &JobSpec) -> bool {
        let renewed = self.contacts.get(&placement.contact).and_then(|c| c.renewed);
        renewed.is_none_or(|at| self.young_enough(at, spec))
    }
    fn young_enough(&self, renewed: Instant, spec: &JobSpec) -> bool {
        spec.on_lost_contact.grace.is_none_or(|grace| self.now.mono.since(renewed) < grace.scale(1, 2))
    }

    fn admit(&mut self, key: AttemptKey, record: &JobRecord, placement: &Placement) {
        let spec = &record.spec;
        let held = self.exec.grants.get(&key.job).is_some_and(|g| g.epoch == key.epoch);
        self.exec.drop_claim(&key.job);
        let shares = if held { self.exec.drop_grant(&key.job).map(|g| g.shares) } else { None };
        let granted = shares.is_some();
        // No grant: it expired, or this peer was started anew. The cluster's own books decide.
        let shares = shares.or_else(|| self.exec.books.fit(spec.nodes, &spec.resources));
        let binding = (placement.contact, placement.incarnation);
        let current =
            self.contacts.get(&binding.0).is_some_and(|c| c.incarnation == binding.1 && c.renewed.is_some());
        let refusal = if let Some(why) = self.closed_for() {
            Some(why)
        } else if record.cancel.is_some() {
            Some("cancelled before it started".into())
        } else if !current {
            // An attempt that never started is not started under an old binding.
            Some("its contact was taken over before it could start".into())
        } else if shares.is_none() {
            Some("its capacity was given to others".into())
        } else {
            None
        };
        let shares = shares.unwrap_or_default();
        let row = Row {
            birth: record.birth.clone(),
            epoch: key.epoch,
            spec: spec.clone(),
            shares,
            binding,
            moving_to: None,
            closed: None,
        };
        if !granted {
            self.exec.books.take(&row.shares, &spec.resources);
        }
        let attempt = Attempt {
            row,
            phase: Phase::Starting,
            admitted: self.now.mono,
            started_at: None,
            recorded: false,
            rebinding: false,
            busy: false,
        };
        self.exec.attempts.insert(key, attempt);
        self.exec.report_dirty = true;
        if let Some(why) = refusal {
            return self.ended(key, Outcome::Refused(why), None, self.now.wall);
        }
        let shares = self.exec.attempts.get(&key).map(|a| a.row.shares.clone()).unwrap_or_default();
        self.watch_admit(key, &shares);
        self.save(key);
        self.start(key, record);
    }

    /// Hands an admitted attempt to the backend, under a binding that is current.
    fn start(&mut self, key: AttemptKey, record: &JobRecord) {
        // Between two bindings it is not known under which it would start.
        let Some(attempt) = self.exec.attempts.get(&key).filter(|a| a.row.moving_to.is_none()) else {
            return;
        };
        let binding = attempt.row.binding;
        let renewed_at =
            self.contacts.get(&binding.0).filter(|c| c.incarnation == binding.1).and_then(|c| c.renewed);
        let Some(renewed_at) = renewed_at.filter(|at| self.young_enough(*at, &record.spec)) else { return };
        let spec = attempt.row.spec.clone();
        let start = StartCommand {
            key,
            shares: attempt.row.shares.clone(),
            binding,
            renewed_at,
            checkpoint: record
                .checkpoint
                .as_ref()
                .map(|c| c.uri.clone())
                .or_else(|| spec.checkpoint.as_ref().map(|c| c.path.clone())),
            trace: record.trace,
            spec,
        };
        self.backend(BackendCommand::Start(Box::new(start)));
    }

    fn save(&mut self, key: AttemptKey) {
        let Some(attempt) = self.exec.attempts.get(&key) else { return };
        let row = serde_json::to_vec(&attempt.row).expect("a row has only plain fields");
        self.write(Write { table: Table::Attempts, key: row_key(&key), value: Some(row) });
    }

    fn stop(&mut self, key: AttemptKey, reason: StopReason) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        match attempt.phase {
            Phase::Closed => {}
            // Not started yet as far as is known: the backend makes the stop win or reports the end.
            Phase::Starting | Phase::Running | Phase::Stopping => {
                attempt.phase = Phase::Stopping;
                self.backend(BackendCommand::Stop { key, notice: NOTICE, reason });
            }
        }
    }

    // Attempts.

    /// After a restart the backend says first what it still has; the rest is looked up in the records.
    pub(super) fn restart_attempts(&mut self) {
        let closed: Vec<AttemptKey> =
            self.exec.attempts.iter().filter(|(_, a)| a.phase == Phase::Closed).map(|(k, _)| *k).collect();
        for key in closed {
            self.timer_in(Span::ZERO, Timer::Attempt(key));
        }
    }

    pub(super) fn on_backend(&mut self, event: BackendEvent) {
        match event {
            BackendEvent::Adopted { running } => {
                for key in &running {
                    match self.exec.attempts.get_mut(key) {
                        Some(attempt) if attempt.phase == Phase::Starting => attempt.phase = Phase::Running,
                        Some(_) => {}
                        // It runs, and this peer holds no row of it: it cannot be accounted for.
                        None => {
                            self.exec.strays.insert(*key);
                            self.exec.report_dirty = true;
                            let reason = StopReason::Superseded;
                            self.backend(BackendCommand::Stop { key: *key, notice: NOTICE, reason });
                        }
                    }
                }
                let all: Vec<AttemptKey> = self.exec.attempts.keys().copied().collect();
                for key in all {
                    self.timer_in(Span::ZERO, Timer::Attempt(key));
                }
            }
            BackendEvent::Started { key, at } => {
                let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
                attempt.started_at = Some(at);
                if attempt.phase == Phase::Starting {
                    attempt.phase = Phase::Running;
                }
                self.event("attempt.started", Some(key.job), format!("epoch {} runs", key.epoch));
                self.attempt_again(key);
            }
            BackendEvent::Ended { key, outcome, started_at, at } => {
                if self.exec.attempts.get(&key).is_some_and(|a| a.phase != Phase::Closed) {
                    self.ended(key, outcome, started_at, at);
                } else if !self.exec.attempts.contains_key(&key) {
                    if self.exec.strays.remove(&key) {
                        self.exec.report_dirty = true;
                    }
                    self.backend(BackendCommand::Forget { key });
                }
            }
        }
    }

    /// No process of it is left. "Closed" is on disk before the record hears of it.
    fn ended(&mut self, key: AttemptKey, outcome: Outcome, started_at: Option<WallTime>, at: WallTime) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        attempt.phase = Phase::Closed;
        attempt.busy = false;
        let text = format!("epoch {} ended: {outcome:?}", key.epoch);
        let started_at = started_at.or(attempt.started_at);
        attempt.row.closed = Some(Closed { outcome, started_at, at });
        let (shares, need) = (attempt.row.shares.clone(), attempt.row.spec.resources.clone());
        self.exec.books.give(&shares, &need);
        self.exec.report_dirty = true;
        self.event("attempt.ended", Some(key.job), text);
        self.save(key);
        self.attempt_again(key);
        self.queue_changed();
    }

    /// Tells the record what it does not know yet, again and again until it does.
    pub(super) fn attempt_again(&mut self, key: AttemptKey) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        if attempt.busy {
            return;
        }
        let origin = Origin::Job(attempt.row.birth.clone());
        match (attempt.phase, &attempt.row.closed) {
            (Phase::Closed, Some(closed)) => {
                attempt.busy = true;
                let change = Change::Close {
                    epoch: key.epoch,
                    outcome: closed.outcome.clone(),
                    started_at: closed.started_at,
                    at: closed.at,
                };
                self.propose(origin, Task::Job(change), Purpose::Close(key), PATIENCE);
            }
            (Phase::Running, _) if !attempt.recorded => {
                attempt.busy = true;
                let at = attempt.started_at.unwrap_or(self.now.wall);
                let change = Change::Started { epoch: key.epoch, at };
                self.propose(origin, Task::Job(change), Purpose::Started(key), PATIENCE);
            }
            (Phase::Starting | Phase::Running, _) => {
                let birth = attempt.row.birth.clone();
                self.on_look(birth);
            }
            _ => {}
        }
    }

    pub(super) fn started_recorded(&mut self, key: AttemptKey, result: OpResult) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        attempt.busy = false;
        match result {
            OpResult::Value { refused: None, .. } => attempt.recorded = true,
            OpResult::Value { refused: Some(_), .. } => {
                // The record has moved on without this attempt.
                attempt.recorded = true;
                self.look_again(key.job);
            }
            _ => self.timer_in(Span::secs(1), Timer::Attempt(key)),
        }
        if self.exec.attempts.get(&key).is_some_and(|a| a.phase == Phase::Closed) {
            self.attempt_again(key);
        }
    }

    pub(super) fn closed_recorded(&mut self, key: AttemptKey, result: OpResult) {
        match result {
            OpResult::Value { value: Value::Job(record), refused } => {
                if let Some(why) = refused {
                    self.count("closes_refused");
                    self.event("attempt.superseded", Some(key.job), format!("epoch {}: {why}", key.epoch));
                } else {
                    self.event("job.closed", Some(key.job), record.reason.clone());
                }
                self.exec.attempts.remove(&key);
                self.exec.done.push_back(key);
                if self.exec.done.len() > 4096 {
                    self.exec.done.pop_front();
                }
                self.write(Write { table: Table::Attempts, key: row_key(&key), value: None });
                self.backend(BackendCommand::Forget { key });
                if let Some(owner) = self.owner_of(&record).filter(|o| *o != self.cfg.name) {
                    // A hint: the owner may be a home that has not accepted this value yet.
                    self.send(owner, Message::Look { birth: record.birth.clone() }, false);
                }
            }
            _ => {
                if let Some(attempt) = self.exec.attempts.get_mut(&key) {
                    attempt.busy = false;
                }
                self.timer_in(Span::secs(1), Timer::Attempt(key));
            }
        }
    }

    /// Moves the bindings of living attempts to the newest contact and incarnation, each by a swap on
    /// the job's record. The guard stops by itself what is past its own grace.
    ///
    /// From before the swap leaves until its outcome is known the attempt lives by the older of both contacts'
    /// renewals: the record may name either, and its homes time that one alone.
    pub(super) fn rebind_attempts(&mut self) {
        let pending = |a: &Attempt| a.phase != Phase::Closed && a.row.moving_to.is_some() && !a.rebinding;
        let again: Vec<AttemptKey> =
            self.exec.attempts.iter().filter(|(_, a)| pending(a)).map(|(k, _)| *k).collect();
        for key in again {
            self.propose_rebind(key);
        }
        let Some(newest) = self.contact_fresh() else { return };
        let (to, renewed) = ((newest.id, newest.incarnation), newest.renewed);
        let (series, homes) = (newest.series, newest.homes.clone());
        // The new one must not be older than what the attempt lives by now, or its end would have to move back.
        let old_enough = |from: &(ContactId, u64)| {
            let old = self.contacts.get(&from.0).filter(|c| c.incarnation == from.1).and_then(|c| c.renewed);
            old.is_none_or(|old| renewed.is_some_and(|new| new >= old))
        };
        let due: Vec<AttemptKey> = self
            .exec
            .attempts
            .iter()
            .filter(|(_, a)| a.phase != Phase::Closed && a.row.binding != to && a.row.moving_to.is_none())
            .filter(|(_, a)| old_enough(&a.row.binding))
            .map(|(k, _)| *k)
            .collect();
        for key in due {
            let Some(attempt) = self.exec.attempts.get_mut(&key) else { continue };
            attempt.row.moving_to = Some(NextBinding { to, series, homes: homes.clone() });
            let and = Some(attempt.row.binding);
            self.save(key);
            self.backend(BackendCommand::Rebind { key, to, and });
            self.propose_rebind(key);
        }
    }

    fn propose_rebind(&mut self, key: AttemptKey) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        let Some(NextBinding { to, series, homes }) = attempt.row.moving_to.clone() else { return };
        attempt.rebinding = true;
        let (from, origin) = (attempt.row.binding, Origin::Job(attempt.row.birth.clone()));
        let change = Change::Rebind { epoch: key.epoch, from, to, series, homes };
        self.propose(origin, Task::Job(change), Purpose::Rebind(key, to), PATIENCE);
    }

    pub(super) fn rebound(&mut self, key: AttemptKey, to: (ContactId, u64), result: OpResult) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        attempt.rebinding = false;
        match result {
            OpResult::Value { refused: None, .. } => {
                attempt.row.binding = to;
                attempt.row.moving_to = None;
                if attempt.phase != Phase::Closed {
                    self.save(key);
                    self.backend(BackendCommand::Rebind { key, to, and: None });
                }
            }
            OpResult::Value { refused: Some(_), .. } => self.look_again(key.job),
            // Unknown: the next renewal asks again, until it is known.
            _ => {}
        }
    }

    pub(super) fn on_drain(&mut self, draining: bool) {
        if self.draining == draining {
            return;
        }
        self.draining = draining;
        self.exec.report_dirty = true;
        self.out.push(Output::Flash(Flash::Drain { cluster: self.cfg.name.clone(), draining }));
        if !draining {
            return;
        }
        let waiting: Vec<(JobId, PeerName, Epoch)> =
            self.exec.claims.iter().map(|(j, w)| (*j, w.owner.clone(), w.claim.epoch)).collect();
        for (job, owner, epoch) in waiting {
            self.exec.drop_claim(&job);
            self.exec.release_grant(&job);
            let refused = Some("drains".to_owned());
            self.send(owner, Message::ClaimState { job, epoch, ahead: 0, refused }, false);
        }
        let running: Vec<AttemptKey> = self.exec.attempts.keys().copied().collect();
        for key in running {
            self.stop(key, StopReason::Drain);
        }
    }

    /// Says what is free when it changed: to gossip always, by flash when the GPUs did and not too often.
    pub(super) fn flush_report(&mut self) {
        if !self.exec.report_dirty || self.cfg.nodes.is_empty() {
            return;
        }
        let now = self.now.mono;
        if let Some(at) = self.exec.reported.map(|at| at + REPORT_EVERY).filter(|at| *at > now) {
            self.timers.insert((at, Timer::Grants));
            return;
        }
        self.exec.report_dirty = false;
        self.exec.reported = Some(now);
        let mut queue = QueueReport {
            running: count32(self.exec.attempts.values().filter(|a| a.phase != Phase::Closed).count()),
            queued: count32(self.exec.claims.len() - self.exec.grants.len().min(self.exec.claims.len())),
            closed: self.closed_for(),
            queued_gpus: self.exec.queued_gpus,
            ..QueueReport::default()
        };
        self.exec.books.report(&mut queue);
        for grant in self.exec.grants.values() {
            self.exec.books.by_model(&grant.shares, &mut queue.gpus_reserved);
        }
        let contact = self.contact_report();
        let due = self
            .exec
            .flashed
            .as_ref()
            .is_none_or(|(at, free)| *free != queue.gpus_free && now.since(*at) >= Span::millis(100));
        if due {
            self.exec.flashed = Some((now, queue.gpus_free.clone()));
            self.out.push(Output::Flash(Flash::Capacity {
                cluster: self.cfg.name.clone(),
                queue: queue.clone(),
            }));
        }
        self.out.push(Output::Report { queue, contact });
    }
}

fn gpus_of(claim: &Claim) -> u64 {
    u64::from(claim.resources.gpus) * u64::from(claim.nodes)
}

fn count32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
