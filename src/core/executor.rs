//! The cluster's side of a job: admission, attempts, closing. The queue and what moves a binding are beside it; who
//! starts when and where is `schedule`.
//!
//! Starting is pulled: a message only says "look"; the record, read through its register, says whether
//! this cluster may start this epoch. What was admitted is on disk before the backend hears of it, and
//! what has ended is on disk before its capacity is free.
// tidy: long because admission, attempts and their ends change the same rows in one step

mod cluster;
mod elsewhere;
mod queue;
mod quota;
mod rebind;
mod why;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::acceptor::{Value, ValueError};
use super::api::{
    AttemptKey, AttemptView, BackendCommand, BackendEvent, ClaimView, CoreConfig, Flash, NodeShare, Now,
    Output, StartCommand, StopReason, Table, Write,
};
use super::message::{Claim, Message, Origin, Prospects, Terms};
use super::peer::{Peer, Timer};
use super::propose::{OpResult, Task};
use super::purpose::Purpose;
use super::schedule::{Request, Scheduler};
use crate::base::text::{WORDS_MAX, node_list, words};
use crate::base::{ContactId, Epoch, Home, Instant, JobId, PeerName, Span, TraceId, WallTime};
use crate::model::record::{Birth, Change, NOTE_MAX};
use crate::model::spec::JobSpec;
use crate::model::staging::{PartState, Staging};
use crate::model::trace::{self, SpanNote};
use crate::model::{AttemptSummary, JobRecord, Outcome, Placement};

/// Patience of the executor's own operations; they are repeated until they are done.
const PATIENCE: Span = Span::secs(10);
/// Time between notice and kill of a drain, a cancel.
const NOTICE: Span = Span::secs(10);

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<String>,
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
    /// It was told to stop for a more urgent job: which, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preempted: Option<String>,
    closed: Option<Closed>,
    /// What its spans need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trail: Option<Trail>,
}

/// Of the record that placed an attempt, for its trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Trail {
    trace: TraceId,
    placed_at: WallTime,
    /// Where it ran before, and when that ended.
    from: Option<(PeerName, WallTime)>,
}

impl Trail {
    fn of(record: &JobRecord, placement: &Placement) -> Self {
        let before = record.attempts.iter().rev().find(|a| a.epoch < record.epoch && a.started_at.is_some());
        let from = before.and_then(|a| Some((a.cluster.clone(), a.ended_at?)));
        Self { trace: record.trace, placed_at: placement.at, from }
    }
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
    /// When the backend was told to start it, and when the record was told last, in this run of the peer.
    handed: Option<WallTime>,
    telling: WallTime,
    /// How far what it needs has come.
    staging: Option<Staging>,
    /// What its backend says of its end.
    note: Option<String>,
    /// The nodes that it runs on, in its scheduler's own names.
    nodes: Option<String>,
}

#[derive(Debug, Clone)]
struct Waiting {
    claim: Claim,
    terms: Terms,
    owner: PeerName,
    arrived: Instant,
    heard: Instant,
    /// As it was told last.
    prospects: Prospects,
    place: Option<u32>,
    /// So many attempts of its own tenant would have to go, so that the tenant's limit lets it start.
    own_victims: u32,
}

impl Waiting {
    fn key(&self, job: JobId) -> AttemptKey {
        AttemptKey { job, epoch: self.claim.epoch }
    }
}

#[derive(Debug, Clone)]
struct Granted {
    epoch: Epoch,
    since: Instant,
    until: Instant,
}

/// Attempts remembered as closed.
const DONE_MAX: usize = 4_096;

/// The last that were closed. Every claim asks for its own.
#[derive(Debug, Default)]
struct Done {
    order: VecDeque<AttemptKey>,
    keys: BTreeSet<AttemptKey>,
}

impl Done {
    fn note(&mut self, key: AttemptKey) {
        if !self.keys.insert(key) {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > DONE_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }
    fn contains(&self, key: &AttemptKey) -> bool {
        self.keys.contains(key)
    }
}

/// All that this cluster holds. What waits and what holds capacity, grants and attempts, is also in the scheduler.
pub(super) struct Executor {
    sched: Scheduler<AttemptKey>,
    attempts: BTreeMap<AttemptKey, Attempt>,
    claims: BTreeMap<JobId, Waiting>,
    /// When each claim was repeated last, the oldest first.
    heard: BTreeSet<(Instant, JobId)>,
    /// When each came first.
    arrived: BTreeSet<(Instant, JobId)>,
    grants: BTreeMap<JobId, Granted>,
    /// Some of them were taken back: others may start.
    released: bool,
    looking: BTreeSet<JobId>,
    /// They run and this peer's disk knows nothing of them (it is a new one): until they have been stopped,
    /// nobody knows what is free here, and their epochs are not to be answered for.
    strays: BTreeSet<AttemptKey>,
    /// Closed lately, so that a late read cannot start one again within this run.
    done: Done,
    /// The scheduler below takes nothing new; why.
    closed_below: Option<String>,
    pub report_dirty: bool,
    /// A view came since the queue was told what others hold for whom;
    pub elsewhere_due: bool,
    /// and for whom this cluster told last that it holds nodes.
    kept: Vec<AttemptKey>,
    reported: Option<Instant>,
    /// GPUs of all claims.
    queued_gpus: u64,
    /// What others wait for in the queue of the scheduler below.
    waiting_below: super::api::Waiting,
    flashed: Option<(Instant, BTreeMap<String, u32>)>,
    /// When places and estimates were made, and of which state of the queue.
    places_of: Option<(Instant, u64)>,
    /// Of whom they are.
    placed: Vec<JobId>,
    priced_at: Option<Instant>,
    /// Some claim may have been told that its tenant's limits hold it back.
    limits_said: bool,
    /// When the tenants' usage was put on disk.
    usage_at: Instant,
}

/// Under which the tenants' usage is kept.
const USAGE_KEY: &[u8] = b"usage";
/// It is put on disk this often,
const USAGE_EVERY: Span = Span::secs(60);
/// of so many tenants, those who used most.
const USAGE_MAX: usize = 1_024;

/// The tenants' usage as it was saved.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Usage {
    /// By the clock for people, milliseconds.
    at: u64,
    used: Vec<(String, f64)>,
}

fn row_key(key: &AttemptKey) -> Vec<u8> {
    let mut bytes = key.job.0.to_vec();
    bytes.extend_from_slice(&key.epoch.0.to_be_bytes());
    bytes
}

impl Executor {
    pub fn recover(
        cfg: &CoreConfig,
        rows: &BTreeMap<Vec<u8>, Vec<u8>>,
        meta: &BTreeMap<Vec<u8>, Vec<u8>>,
        Now { mono: now, wall }: Now,
    ) -> Result<Self, ValueError> {
        let mut exec = Executor {
            sched: Scheduler::new(&cfg.nodes, cfg.schedule.clone()),
            attempts: BTreeMap::new(),
            claims: BTreeMap::new(),
            heard: BTreeSet::new(),
            arrived: BTreeSet::new(),
            grants: BTreeMap::new(),
            released: false,
            looking: BTreeSet::new(),
            strays: BTreeSet::new(),
            done: Done::default(),
            report_dirty: true,
            elsewhere_due: false,
            kept: Vec::new(),
            reported: None,
            queued_gpus: 0,
            waiting_below: super::api::Waiting::default(),
            flashed: None,
            places_of: None,
            closed_below: None,
            placed: Vec::new(),
            priced_at: None,
            limits_said: false,
            usage_at: now,
        };
        // Soft: an unreadable row is as good as none. The clock for people may have jumped back.
        let usage = meta.get(USAGE_KEY).and_then(|row| serde_json::from_slice::<Usage>(row).ok());
        let Usage { at, used } = usage.unwrap_or_default();
        let halves = Span::millis(wall.0.saturating_sub(at)).as_secs_f64()
            / cfg.schedule.half_life.as_secs_f64().max(1.0);
        for (tenant, used) in used.iter().take(USAGE_MAX) {
            exec.sched.restore_usage(tenant, used * (-halves).exp2(), now);
        }
        for bytes in rows.values() {
            let row: Row = serde_json::from_slice(bytes).map_err(|e| ValueError::Malformed(e.to_string()))?;
            let key = AttemptKey { job: row.birth.id(), epoch: row.epoch };
            let phase = if row.closed.is_some() { Phase::Closed } else { Phase::Starting };
            if phase != Phase::Closed {
                let request = exec.request_of(&row.spec, &row.birth, now);
                exec.sched.start(key, request, row.shares.clone(), now);
            }
            let attempt = Attempt {
                row,
                phase,
                admitted: Instant(0),
                started_at: None,
                recorded: false,
                rebinding: false,
                busy: false,
                handed: None,
                telling: WallTime(0),
                staging: None,
                note: None,
                nodes: None,
            };
            exec.attempts.insert(key, attempt);
        }
        Ok(exec)
    }

    /// What an attempt of this job asks of the scheduler.
    fn request_of(&self, spec: &JobSpec, birth: &Birth, now: Instant) -> Request {
        Request {
            tenant: birth.tenant.clone(),
            priority: spec.priority,
            ranks: spec.nodes,
            need: self.sched.need(&spec.resources),
            max_runtime: spec.max_runtime,
            preemptible: spec.may_be_preempted(),
            token: false,
            lean: false,
            since: i64::try_from(now.0).unwrap_or(i64::MAX),
        }
    }

    /// What the tenants used, once a minute where somebody used something: to be put on disk.
    fn usage_row(&mut self, now: Instant, wall: WallTime) -> Option<Vec<u8>> {
        if now.since(self.usage_at) < USAGE_EVERY {
            return None;
        }
        self.usage_at = now;
        let mut used = self.sched.accounts().top(now, USAGE_MAX);
        used.retain(|(_, used)| *used >= 1e-3);
        (!used.is_empty()).then(|| serde_json::to_vec(&Usage { at: wall.0, used }).ok()).flatten()
    }

    /// Queue and books.
    pub fn scheduler(&self) -> &Scheduler<AttemptKey> {
        &self.sched
    }
    pub fn claims_count(&self) -> u64 {
        self.claims.len() as u64
    }
    /// How long the oldest of all claims has waited.
    pub fn oldest_claim(&self, now: Instant) -> Option<Span> {
        self.arrived.first().map(|(arrived, _)| now.since(*arrived))
    }
    pub fn scheduler_mut(&mut self) -> &mut Scheduler<AttemptKey> {
        &mut self.sched
    }

    pub fn explain(&self, job: &JobId) -> String {
        let attempts: Vec<_> =
            self.of_job(job).map(|(k, a)| (k.epoch, a.phase, a.busy, a.recorded)).collect();
        let (claim, grant) = (self.claims.contains_key(job), self.grants.contains_key(job));
        format!("attempts {attempts:?} claim {claim} grant {grant} looking {}", self.looking.contains(job))
    }

    /// The tenant and the trace of a job that has an attempt here.
    pub fn of_trace(&self, job: &JobId) -> Option<(String, TraceId)> {
        let mut all = self.of_job(job);
        all.find_map(|(_, a)| Some((a.row.spec.tenant.clone(), a.row.trail.as_ref()?.trace)))
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
    /// Claims of this tenant wait here.
    pub fn waits_for(&self, tenant: &str) -> bool {
        self.claims.values().any(|w| w.claim.birth.tenant == tenant)
    }

    pub fn bound_to(&self, contact: &ContactId) -> bool {
        let follows = |row: &Row| {
            row.binding.0 == *contact || row.moving_to.as_ref().is_some_and(|next| next.to.0 == *contact)
        };
        self.attempts.values().any(|a| a.phase != Phase::Closed && follows(&a.row))
    }

    /// How long ago a job's attempt was admitted here.
    pub fn age_of(&self, job: &JobId, now: Instant) -> Option<Span> {
        self.of_job(job).next().map(|(_, a)| now.since(a.admitted))
    }

    pub fn attempts_view(&self, now: Instant) -> Vec<AttemptView> {
        #[cfg(test)]
        crate::base::work::count("attempts_view");
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
            staging: a.staging.clone().filter(|_| a.phase == Phase::Starting),
        };
        self.attempts.iter().map(view).collect()
    }

    fn drop_claim(&mut self, job: &JobId) -> Option<Waiting> {
        let waiting = self.claims.remove(job)?;
        self.queued_gpus -= gpus_of(&waiting.claim);
        self.heard.remove(&(waiting.heard, *job));
        self.arrived.remove(&(waiting.arrived, *job));
        self.sched.leave(&waiting.key(*job));
        self.report_dirty = true;
        Some(waiting)
    }

    /// How often the whole queue was looked at.
    pub fn queue_passes(&self) -> u64 {
        self.sched.passes()
    }

    /// Its place and its start are not known.
    fn unplace(&mut self, job: &JobId) {
        if let Some(waiting) = self.claims.get_mut(job) {
            waiting.place = None;
            (waiting.prospects.starts_in, waiting.prospects.victims) = (None, None);
            waiting.prospects.front.clear();
        }
    }

    /// The grant is over. Its claim, if it still stands, waits again.
    fn release_grant(&mut self, job: &JobId, now: Instant) {
        let Some(grant) = self.grants.remove(job) else { return };
        let key = AttemptKey { job: *job, epoch: grant.epoch };
        match self.claims.get(job).is_some_and(|w| w.claim.epoch == grant.epoch) {
            true => self.sched.take_back(&key, now),
            false => drop(self.sched.end(&key, now)),
        }
        self.report_dirty = true;
    }
}

impl Peer {
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
        if matches!(result, OpResult::Forgotten) {
            // It ended long ago: whatever is here of it was superseded.
            let all: Vec<AttemptKey> = self.exec.of_job(&job).map(|(k, _)| *k).collect();
            for key in all {
                self.stop(key, StopReason::Superseded);
            }
        }
        let OpResult::Value { value: Value::Job(record), .. } = result else { return };
        self.heal_hint(&record);
        if record.is_reservation() {
            return self.reservation_seen(&record);
        }
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
        if record.halted() {
            return self.stop(key, StopReason::Drain);
        }
        if record.moving.as_ref().is_some_and(|m| m.to != self.cfg.name) {
            return self.stop(key, StopReason::Drain);
        }
        let unstarted = self.exec.attempts.get(&key).is_some_and(|a| a.phase == Phase::Starting);
        if unstarted {
            self.start(key, &record);
        }
    }

    /// The least time that any attempt here has left until its lease ends, none where no lease runs.
    pub(super) fn lease_left(&self) -> Option<Span> {
        let left = |attempt: &Attempt| {
            let grace = attempt.row.spec.on_lost_contact.grace?;
            let renewed = self.contacts.get(&attempt.row.binding.0).and_then(|c| c.renewed)?;
            Some((renewed + grace).since(self.now.mono))
        };
        let open = self.exec.attempts.values().filter(|a| a.phase != Phase::Closed);
        open.filter_map(left).min()
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
        self.note_promises();
        let request = self.exec.request_of(spec, &record.birth, self.now.mono);
        let shares = match held {
            true => self.exec.sched.running().get(&key).map(|r| r.shares.clone()),
            // It expired, or this peer was started anew. The cluster's own books decide.
            false => self.exec.sched.fit_now(&request, self.now.mono),
        };
        if held {
            // It is the attempt's from here on.
            self.exec.grants.remove(&key.job);
        } else {
            self.exec.release_grant(&key.job, self.now.mono);
        }
        let binding = (placement.contact, placement.incarnation);
        let current =
            self.contacts.get(&binding.0).is_some_and(|c| c.incarnation == binding.1 && c.renewed.is_some());
        let refusal = if let Some(why) = self.closed_for() {
            Some(why)
        } else if record.cancel.is_some() {
            Some("cancelled before it started".into())
        } else if record.halted() {
            Some("another group of its job has ended".into())
        } else if !current {
            // An attempt that never started is not started under an old binding.
            Some("its contact was taken over before it could start".into())
        } else if shares.is_none() {
            Some("its capacity was given to others".into())
        } else {
            self.quota_refuses(&key, spec, binding)
        };
        let shares = shares.filter(|_| held || refusal.is_none()).unwrap_or_default();
        let row = Row {
            birth: record.birth.clone(),
            epoch: key.epoch,
            spec: spec.clone(),
            shares,
            binding,
            moving_to: None,
            preempted: None,
            closed: None,
            trail: Some(Trail::of(record, placement)),
        };
        if refusal.is_none() {
            self.exec.sched.start(key, request, row.shares.clone(), self.now.mono);
        }
        let attempt = Attempt {
            row,
            phase: Phase::Starting,
            admitted: self.now.mono,
            started_at: None,
            recorded: false,
            rebinding: false,
            busy: false,
            handed: None,
            telling: self.now.wall,
            staging: None,
            note: None,
            nodes: None,
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
        let mut spec = attempt.row.spec.clone();
        if let Some(of) = &record.group_of {
            // Where the others are: known only now.
            let names = spec.env.get("STARLING_GROUPS").cloned().unwrap_or_default();
            let at = names.split(',').zip(&of.clusters).map(|(name, cluster)| format!("{name}={cluster}"));
            spec.env.insert("STARLING_GROUP_CLUSTERS".into(), at.collect::<Vec<_>>().join(","));
        }
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
        let now = self.now.wall;
        if let Some(attempt) = self.exec.attempts.get_mut(&key) {
            attempt.handed.get_or_insert(now);
        }
        self.backend(BackendCommand::Start(Box::new(start)));
    }

    fn save(&mut self, key: AttemptKey) {
        let Some(attempt) = self.exec.attempts.get(&key) else { return };
        let row = serde_json::to_vec(&attempt.row).expect("a row has only plain fields");
        self.write(Write { table: Table::Attempts, key: row_key(&key), value: Some(row) });
    }

    fn stop(&mut self, key: AttemptKey, reason: StopReason) {
        self.stop_within(key, reason, NOTICE);
    }

    fn stop_within(&mut self, key: AttemptKey, reason: StopReason, notice: Span) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        match attempt.phase {
            Phase::Closed => {}
            // Not started yet as far as is known: the backend makes the stop win or reports the end.
            Phase::Starting | Phase::Running | Phase::Stopping => {
                attempt.phase = Phase::Stopping;
                self.exec.sched.stops(&key, self.now.mono + notice);
                self.backend(BackendCommand::Stop { key, notice, reason });
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
            BackendEvent::Cluster(state) => self.cluster_changed(*state),
            // It is in the report, which is not made here.
            BackendEvent::Nodes(_) => {}
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
            BackendEvent::Staging { key, staging } => {
                if let Some(attempt) = self.exec.attempts.get_mut(&key)
                    && attempt.phase == Phase::Starting
                {
                    attempt.staging = Some(staging.bounded());
                }
            }
            BackendEvent::Started { key, at } => {
                let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
                attempt.started_at = Some(at);
                attempt.staging = attempt.staging.take().map(|s| s.over(at));
                if attempt.phase == Phase::Starting {
                    attempt.phase = Phase::Running;
                }
                // After a restart of this peer it has run for a while already.
                let ran = Span::millis(self.now.wall.0.saturating_sub(at.0));
                self.exec.sched.begins(&key, self.now.mono - ran);
                let spans = self.started_spans(&key, at);
                self.event_with("attempt.started", Some(key.job), format!("epoch {} runs", key.epoch), spans);
                self.attempt_again(key);
            }
            BackendEvent::Where { key, nodes } => {
                if let Some(attempt) = self.exec.attempts.get_mut(&key) {
                    attempt.nodes = Some(node_list(&nodes));
                }
            }
            BackendEvent::Note { key, text } => {
                if let Some(attempt) = self.exec.attempts.get_mut(&key) {
                    attempt.note = Some(words(&text, NOTE_MAX));
                }
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
        let outcome = match (&attempt.row.preempted, outcome) {
            (Some(why), Outcome::Stopped(_)) => Outcome::Stopped(why.clone()),
            // A scheduler's words may be of any length.
            (_, Outcome::Stopped(why)) => Outcome::Stopped(words(&why, WORDS_MAX)),
            (_, Outcome::NotStarted(why)) => Outcome::NotStarted(words(&why, WORDS_MAX)),
            (_, Outcome::Refused(why)) => Outcome::Refused(words(&why, WORDS_MAX)),
            (_, other) => other,
        };
        let by_itself = matches!(outcome, Outcome::Exited(_) | Outcome::Signaled(_));
        let note = attempt.note.clone();
        let words = note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
        let text = format!("epoch {} ended: {outcome:?}{words}", key.epoch);
        let started_at = started_at.or(attempt.started_at);
        let nodes = attempt.nodes.clone();
        attempt.row.closed = Some(Closed { outcome, started_at, at, note, nodes });
        self.exec.sched.end(&key, self.now.mono);
        if let Some(began) = started_at.filter(|_| by_itself) {
            self.exec.sched.ran(Span::millis(at.0.saturating_sub(began.0)));
        }
        self.exec.report_dirty = true;
        self.quota_counts(&key);
        let spans = self.ended_spans(&key);
        self.event_with("attempt.ended", Some(key.job), text, spans);
        self.save(key);
        self.attempt_again(key);
        self.queue_changed();
    }

    /// What came before a program's start; nothing where this run of the peer did not start it.
    fn started_spans(&self, key: &AttemptKey, at: WallTime) -> Vec<SpanNote> {
        let Some(attempt) = self.exec.attempts.get(key) else { return Vec::new() };
        let (Some(trail), Some(handed)) = (&attempt.row.trail, attempt.handed) else { return Vec::new() };
        let me = &self.cfg.name;
        let span = |name, from, to| SpanNote::new(name, key.epoch, from, to).at(me);
        let staging = attempt.staging.as_ref();
        let start = span(trace::START, handed, at).bytes(staging.and_then(Staging::moved));
        let mut spans = vec![span(trace::STAGE, trail.placed_at, handed), start];
        for part in staging.iter().flat_map(|s| &s.parts) {
            if let (Some(from), Some(to)) = (part.from, part.to) {
                let bring = span(trace::BRING, from, to).under(trace::START).bytes(part.moved());
                spans.push(bring.failed(part.state == PartState::Fails).note(part.words(to)));
            }
        }
        if let Some((from, ended)) = &trail.from {
            let note = if from == me { format!("again at {me}") } else { format!("{from} to {me}") };
            spans.push(span(trace::MOVE, *ended, at).note(note));
        }
        spans
    }

    /// The attempt and its run, once they are over.
    fn ended_spans(&self, key: &AttemptKey) -> Vec<SpanNote> {
        let Some(row) = self.exec.attempts.get(key).map(|a| &a.row) else { return Vec::new() };
        let (Some(trail), Some(closed)) = (&row.trail, &row.closed) else { return Vec::new() };
        let summary = AttemptSummary {
            epoch: key.epoch,
            cluster: self.cfg.name.clone(),
            placed_at: trail.placed_at,
            started_at: closed.started_at,
            ended_at: Some(closed.at),
            outcome: Some(closed.outcome.clone()),
            note: closed.note.clone(),
            nodes: closed.nodes.clone(),
        };
        let whole = SpanNote::of_attempt(&summary);
        let run = closed.started_at.map(|at| SpanNote {
            name: trace::RUN.into(),
            from: at.min(closed.at),
            ..whole.clone()
        });
        std::iter::once(whole).chain(run).collect()
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
                attempt.telling = self.now.wall;
                let change = Change::Close {
                    epoch: key.epoch,
                    outcome: closed.outcome.clone(),
                    started_at: closed.started_at,
                    at: closed.at,
                    note: closed.note.clone(),
                    nodes: closed.nodes.clone(),
                };
                self.propose(origin, Task::Job(change), Purpose::Close(key), PATIENCE);
            }
            (Phase::Running, _) if !attempt.recorded => {
                attempt.busy = true;
                let at = attempt.started_at.unwrap_or(self.now.wall);
                let change = Change::Started { epoch: key.epoch, at, nodes: attempt.nodes.clone() };
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
            OpResult::Value { refused: Some(_), .. } | OpResult::Forgotten => {
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
                    let telling = self.exec.attempts.get(&key).map_or(self.now.wall, |a| a.telling);
                    let commit = SpanNote::new(trace::COMMIT, key.epoch, telling, self.now.wall);
                    let mut spans = vec![commit.under(trace::ATTEMPT).note("end")];
                    spans.extend(trace::whole(&record));
                    self.event_with("job.closed", Some(key.job), record.reason.clone(), spans);
                }
                self.drop_attempt(key);
                if let Some(owner) = self.owner_of(&record).filter(|o| *o != self.cfg.name) {
                    // A hint: the owner may be a home that has not accepted this value yet.
                    self.send(owner, Message::Look { birth: record.birth.clone() }, false);
                }
            }
            // Kept for longer than the record was: nobody is left to be told.
            OpResult::Forgotten => self.drop_attempt(key),
            _ => {
                if let Some(attempt) = self.exec.attempts.get_mut(&key) {
                    attempt.busy = false;
                }
                self.timer_in(Span::secs(1), Timer::Attempt(key));
            }
        }
    }

    /// The record knows its end: nothing of it is needed here.
    fn drop_attempt(&mut self, key: AttemptKey) {
        self.exec.attempts.remove(&key);
        self.exec.done.note(key);
        self.write(Write { table: Table::Attempts, key: row_key(&key), value: None });
        self.backend(BackendCommand::Forget { key });
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
            self.exec.release_grant(&job, self.now.mono);
            let refused = Some("drains".to_owned());
            self.send(owner, Message::ClaimState { job, epoch, ahead: 0, refused }, false);
        }
        let running: Vec<AttemptKey> = self.exec.attempts.keys().copied().collect();
        for key in running {
            self.stop(key, StopReason::Drain);
        }
    }
}

fn gpus_of(claim: &Claim) -> u64 {
    u64::from(claim.resources.gpus) * u64::from(claim.nodes)
}

#[cfg(test)]
mod tests;
