//! The owner's side of a job: claims, placement, watching the contact, taking over.
//!
//! Every home of a job may do any of this; the ring's order only says who does it first, so that they
//! do not race. All of it is soft state, rebuilt from the record, and every step is a conditional swap.
// tidy: long because claims, watching and taking over read the same soft state of one job

use std::collections::BTreeMap;

use super::acceptor::Value;
use super::api::Flash;
use super::message::{Claim, Message, Origin, Prospects, RecordKey, Terms};
use super::peer::{Peer, Timer};
use super::placement;
use super::propose::{OpResult, Task};
use super::purpose::Purpose;
use crate::base::{BoundedVec, ContactId, Epoch, Home, Instant, JobId, PeerName, Span};
use crate::model::record::{Change, ContactChange, contact_id};
use crate::model::report::Liveness;
use crate::model::spec::{JobSpec, Run};
use crate::model::{JobRecord, JobState, Placement};

/// A claim is repeated this often until its cluster has answered, then ever more seldom,
const CLAIM_EVERY: Span = Span::secs(2);
/// and a cluster that refused is not asked again for this long.
const REFUSED_FOR: Span = Span::secs(10);
/// The executor is told to look this often while the record waits for it.
const LOOK_EVERY: Span = Span::secs(1);
/// An acting one refreshes its hint by a read this often.
const READ_EVERY: Span = Span::secs(30);
const READ_EVERY_PLACED: Span = Span::secs(5);
/// A cluster that has the preemption token and does not start the job by then loses it to another.
const TOKEN_FOR: Span = Span::secs(180);
/// A job that moves waits so long for the cluster it shall move to; then it runs anywhere.
const MOVE_WAITS: Span = Span::secs(60);
/// Patience of the owner's own operations.
const PATIENCE: Span = Span::secs(10);

/// What an observer has seen of one contact record.
#[derive(Debug, Clone)]
struct Observed {
    newest: (u64, (u64, u64)),
    first_seen: Instant,
    /// When an incarnation was first known to be chosen, so when older ones had ended.
    incarnations: Vec<(u64, Instant)>,
    reading: bool,
    /// The newest nonce for which the record itself was read.
    read_for: Option<(u64, (u64, u64))>,
}

impl Observed {
    fn new(newest: (u64, (u64, u64)), first_seen: Instant) -> Self {
        Self { newest, first_seen, incarnations: Vec::new(), reading: false, read_for: None }
    }
}

#[derive(Debug, Clone)]
struct Laid {
    epoch: Epoch,
    sent_at: Instant,
    /// Until it is repeated.
    every: Span,
    ahead: Option<u32>,
    refused: Option<(Instant, String)>,
    prospects: Prospects,
}

#[derive(Debug, Default)]
struct Driven {
    claims: BTreeMap<PeerName, Laid>,
    /// The one cluster that may send others away for this job, and since when it may.
    token: Option<(PeerName, Instant)>,
    placing: bool,
    freeing: bool,
    scheduled: Option<Instant>,
    looked_at: Option<Instant>,
    read_at: Option<Instant>,
    held_from: Option<(u64, Instant)>,
    idle_from: Option<(u64, Instant)>,
}

/// Soft state of all jobs that this peer drives or might.
#[derive(Default)]
pub(super) struct Owner {
    jobs: BTreeMap<JobId, Driven>,
    observed: BTreeMap<ContactId, Observed>,
    assigned: BTreeMap<PeerName, Vec<(Instant, u64)>>,
}

impl Owner {
    pub fn explain(&self, job: &JobId) -> String {
        format!("driven {:?}", self.jobs.get(job))
    }

    /// A contact's (incarnation, nonce) was heard or accepted here. It may never have been chosen: it makes
    /// an observer wait longer, never shorter.
    pub fn observe(&mut self, id: ContactId, incarnation: u64, nonce: (u64, u64), now: Instant) {
        let seen = (incarnation, nonce);
        let entry = self.observed.entry(id).or_insert_with(|| Observed::new(seen, now));
        if seen > entry.newest {
            entry.newest = seen;
            entry.first_seen = now;
        }
    }

    /// What the record itself says. Only this shows that an incarnation has ended: a takeover that a single
    /// home accepted may never be chosen, and the old incarnation go on being renewed.
    fn learned(&mut self, id: ContactId, incarnation: u64, nonce: (u64, u64), now: Instant) {
        let seen = (incarnation, nonce);
        let entry = self.observed.entry(id).or_insert_with(|| Observed::new(seen, now));
        if seen != entry.newest {
            entry.newest = seen;
            entry.first_seen = now;
        }
        if entry.incarnations.iter().all(|(i, _)| *i < incarnation) {
            entry.incarnations.push((incarnation, now));
            if entry.incarnations.len() > 16 {
                // Forgetting the oldest makes a waiter wait longer, never shorter.
                entry.incarnations.remove(0);
            }
        }
    }

    /// This observer's own takeover: the old incarnation's last renewal is the one it had timed.
    fn taken(
        &mut self,
        id: ContactId,
        incarnation: u64,
        nonce: (u64, u64),
        timed_from: Instant,
        now: Instant,
    ) {
        self.learned(id, incarnation, nonce, now);
        if let Some(entry) = self.observed.get_mut(&id) {
            for (i, at) in &mut entry.incarnations {
                if *i == incarnation {
                    *at = timed_from;
                }
            }
        }
    }

    /// What each cluster said last of the job's prospects there.
    #[allow(dead_code, reason = "for why")]
    pub(super) fn prospects(&self, job: &JobId) -> BTreeMap<PeerName, Prospects> {
        let laid = self.jobs.get(job).into_iter().flat_map(|d| &d.claims);
        laid.map(|(cluster, l)| (cluster.clone(), l.prospects.clone())).collect()
    }

    fn claims(&self, job: &JobId) -> Option<&BTreeMap<PeerName, Laid>> {
        self.jobs.get(job).map(|d| &d.claims)
    }
}

/// What a claim's cluster said: jobs ahead of it there, or why it refused.
pub(super) type ClaimSaid = (Option<u32>, Option<String>);

enum Lapse {
    /// Nothing is known of the contact: read it.
    Unseen,
    /// Wait until then.
    Until(Instant),
    /// This is the newest renewal of the bound incarnation, and it is old enough: take it over.
    Take((u64, (u64, u64))),
    /// The bound incarnation ended long enough ago.
    Over,
}

impl Peer {
    /// The members' order in driving a job; the first alive one acts.
    pub(super) fn acts_for(&self, record: &JobRecord) -> bool {
        let homes = record.homes();
        if self.view.isolated && homes.len() > 1 {
            return false;
        }
        homes.iter().find(|h| self.home_alive(h)).is_some_and(|h| h.peer == self.cfg.name)
    }

    /// Who acts as the job's owner, seen from here.
    pub(super) fn owner_of(&self, record: &JobRecord) -> Option<PeerName> {
        record.homes().iter().find(|h| self.home_alive(h)).map(|h| h.peer.clone())
    }

    /// What the clusters said to this owner's claims for a job.
    pub(super) fn claims_of(&self, job: &JobId) -> BTreeMap<PeerName, ClaimSaid> {
        let said = |l: &Laid| (l.ahead, l.refused.as_ref().map(|(_, why)| why.clone()));
        self.owner.claims(job).into_iter().flatten().map(|(c, l)| (c.clone(), said(l))).collect()
    }

    pub(super) fn drive_soon(&mut self, job: JobId) {
        self.drive_at(job, self.now.mono);
    }

    fn drive_at(&mut self, job: JobId, at: Instant) {
        let driven = self.owner.jobs.entry(job).or_default();
        if driven.scheduled.is_none_or(|old| at < old || old < self.now.mono) {
            driven.scheduled = Some(at);
            self.timers.insert((at, Timer::Drive(job)));
        }
    }

    pub(super) fn drive_all(&mut self) {
        let jobs: Vec<JobId> = self.owner.jobs.keys().copied().collect();
        for job in jobs {
            self.drive_soon(job);
        }
    }

    /// A register of this disk took a new value (perhaps not chosen): a hint to act on.
    pub(super) fn on_accepted(&mut self, key: &RecordKey) {
        match (key, self.acceptor.slot(key).and_then(|slot| slot.value.as_ref())) {
            (RecordKey::Job(job), _) => self.drive_soon(*job),
            (RecordKey::Contact(id), Some(Value::Contact(record))) => {
                let (incarnation, nonce) = (record.incarnation, record.nonce);
                self.owner.observe(*id, incarnation, nonce, self.now.mono);
            }
            _ => {}
        }
    }

    /// One look at one job. Anything may call it at any time.
    pub(super) fn drive(&mut self, job: JobId) {
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            if driven.scheduled.is_some_and(|at| at > self.now.mono) {
                // An older timer of a job that was since rescheduled.
                return;
            }
            driven.scheduled = None;
        }
        let Some(record) = self.acceptor.job_shared(&job) else {
            return self.drop_driven(job);
        };
        if record.state.is_final() || record.sealed.is_some() {
            // The sweep finishes a move; afterwards the new generation's value is driven.
            return self.drop_driven(job);
        }
        if !self.acts_for(&record) {
            self.withdraw_all(job, None);
            return self.idle(job, &record);
        }
        match record.placement.clone() {
            None => self.drive_pending(job, &record),
            Some(placement) => self.drive_placed(job, &record, &placement),
        }
        self.refresh_hint(job, &record);
    }

    /// A home that does not act makes sure that the acting one knows the record at all: it may have
    /// missed every write so far. The longer nothing changes, the less often it asks.
    fn idle(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let (version, since) =
            driven.idle_from.filter(|(v, _)| *v == record.version).unwrap_or((record.version, now));
        driven.idle_from = Some((version, since));
        if since != now {
            // Its own hint may be old, too.
            self.propose(Origin::Job(record.birth.clone()), Task::Read, Purpose::OwnerRead, PATIENCE);
        }
        if since != now
            && let Some(owner) = self.owner_of(record).filter(|o| *o != self.cfg.name)
        {
            self.send(owner, Message::Look { birth: record.birth.clone() }, false);
        }
        let wait = self.cfg.pace.idle(now.since(since));
        self.drive_at(job, now + wait);
    }

    /// This disk is a home of the record and has missed its newest write: put it on all homes again. A
    /// change that changes nothing would not reach it.
    pub(super) fn heal_hint(&mut self, record: &JobRecord) {
        let job = record.id();
        let home = record.homes().iter().any(|h| h.peer == self.cfg.name && h.store == self.cfg.store);
        let behind =
            |r: &JobRecord| r.version < record.version || (r.version == record.version && r != record);
        if home && self.acceptor.job(&job).is_none_or(behind) {
            self.count("hints_refreshed");
            self.write_back(record);
        }
    }

    fn drop_driven(&mut self, job: JobId) {
        self.withdraw_all(job, None);
        self.owner.jobs.remove(&job);
    }

    /// A home that missed a write acts on an old hint: read the register now and then.
    fn refresh_hint(&mut self, job: JobId, record: &JobRecord) {
        let (now, pace) = (self.now.mono, self.cfg.pace);
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let due = *driven.read_at.get_or_insert(now);
        // A placement that nobody starts may be one that was never chosen: only this disk took it.
        let settled = driven.held_from.filter(|(version, _)| *version == record.version);
        let every = match (record.state, settled) {
            (JobState::Placed, _) => READ_EVERY_PLACED,
            // The longer nothing changed, the less often.
            (_, Some((_, since))) => pace.idle(now.since(since)).max(READ_EVERY),
            (_, None) => READ_EVERY,
        };
        if now.since(due) >= every {
            driven.read_at = Some(now);
            self.propose(Origin::Job(record.birth.clone()), Task::Read, Purpose::OwnerRead, PATIENCE);
        }
    }

    fn withdraw_all(&mut self, job: JobId, but: Option<&PeerName>) {
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let claims = std::mem::take(&mut driven.claims);
        for (cluster, laid) in claims {
            if Some(&cluster) != but && laid.refused.is_none() {
                self.send(cluster, Message::Withdraw { job, epoch: laid.epoch }, false);
            }
        }
    }

    fn drive_pending(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        if driven.placing {
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        let from = match driven.held_from {
            Some((version, at)) if version == record.version => at,
            _ => now,
        };
        driven.held_from = Some((record.version, from));
        if record.held.is_some() {
            self.withdraw_all(job, None);
            return self.drive_at(job, now + self.cfg.pace.idle_every);
        }
        if let Some(intent) = record.moving.as_ref().filter(|_| now.since(from) >= MOVE_WAITS) {
            let change = Change::MoveOver { intent: intent.clone() };
            self.propose(Origin::Job(record.birth.clone()), Task::Job(change), Purpose::OwnerRead, PATIENCE);
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        if now.since(from) < record.hold {
            return self.drive_at(job, from + record.hold);
        }
        let epoch = record.epoch.next();
        driven.claims.retain(|_, laid| laid.epoch == epoch);
        let mut wanted = self.choose_claims(job, &record.spec);
        if let Some(intent) = &record.moving {
            // Refused a moment ago: asked again later, not at once.
            let laid = self.owner.claims(&job).and_then(|claims| claims.get(&intent.to));
            let refused = laid.and_then(|l| l.refused.as_ref());
            let rests = refused.is_some_and(|(at, _)| now.since(*at) < REFUSED_FOR);
            wanted = if rests { Vec::new() } else { vec![intent.to.clone()] };
        }
        self.lay_claims(job, record, epoch, &wanted);
        // A job that waits everywhere is looked at as seldom as its claims are repeated.
        let standing = self.owner.claims(&job).into_iter().flatten().map(|(_, laid)| laid);
        let due = standing.map(|l| if l.refused.is_some() { CLAIM_EVERY } else { l.every }).min();
        self.drive_at(job, now + due.unwrap_or(CLAIM_EVERY));
    }

    /// Where claims should stand now: where they stand already and may stay, filled up with the best.
    fn choose_claims(&self, job: JobId, spec: &JobSpec) -> Vec<PeerName> {
        let now = self.now.mono;
        let assigned = self.assigned_gpus();
        let none = BTreeMap::new();
        let claims = self.owner.claims(&job).unwrap_or(&none);
        let rows = placement::candidates(spec, &self.view, &assigned, now);
        let useful = |c: &&super::api::Candidate| {
            let refused = claims.get(&c.cluster).and_then(|l| l.refused.as_ref());
            let member = self.view.members.get(&c.cluster);
            c.fits_ever
                && member.is_some_and(|m| m.liveness != Liveness::Lost && !m.draining)
                && refused.is_none_or(|(at, _)| now.since(*at) >= REFUSED_FOR)
        };
        let useful: Vec<_> = rows.iter().filter(useful).collect();
        let mut wanted: Vec<PeerName> =
            useful.iter().filter(|c| claims.contains_key(&c.cluster)).map(|c| c.cluster.clone()).collect();
        let standing_fits = useful.iter().any(|c| c.fits_now && claims.contains_key(&c.cluster));
        for candidate in useful {
            let room = wanted.len() < self.cfg.claims_max;
            // One that fits now is worth one claim more, where none of the standing ones does.
            let better = candidate.fits_now && !standing_fits && wanted.len() < 2 * self.cfg.claims_max;
            if (room || better) && !wanted.contains(&candidate.cluster) {
                wanted.push(candidate.cluster.clone());
            }
        }
        wanted
    }

    fn lay_claims(&mut self, job: JobId, record: &JobRecord, epoch: Epoch, wanted: &[PeerName]) {
        let (now, every_max) = (self.now.mono, self.cfg.pace.claim_every_max);
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let dropped: Vec<PeerName> = driven
            .claims
            .iter()
            .filter(|(c, l)| !wanted.contains(c) && l.refused.is_none())
            .map(|(c, _)| c.clone())
            .collect();
        driven.claims.retain(|c, l| wanted.contains(c) || l.refused.is_some());
        give_token(driven, now);
        let token = driven.token.as_ref().map(|(cluster, _)| cluster.clone());
        let mut lay = Vec::new();
        for cluster in wanted {
            let laid = driven.claims.get(cluster);
            if laid.is_none_or(|l| l.refused.is_some() || now.since(l.sent_at) >= l.every) {
                let ahead = laid.and_then(|l| l.ahead);
                let answered = laid.filter(|l| l.ahead.is_some() && l.refused.is_none());
                let every =
                    answered.map_or(CLAIM_EVERY, |l| l.every.scale(2, 1).min(every_max).max(CLAIM_EVERY));
                let prospects = laid.map(|l| l.prospects.clone()).unwrap_or_default();
                let laid = Laid { epoch, sent_at: now, every, ahead, refused: None, prospects };
                driven.claims.insert(cluster.clone(), laid);
                lay.push(cluster.clone());
            }
        }
        for cluster in dropped {
            self.send(cluster, Message::Withdraw { job, epoch }, false);
        }
        let spec = &record.spec;
        for cluster in lay {
            let claim = Claim {
                birth: record.birth.clone(),
                epoch,
                nodes: spec.nodes,
                resources: spec.resources.clone(),
                priority: spec.priority,
                image: spec.image.is_some() || spec.run == Run::Image,
                max_runtime: spec.max_runtime,
            };
            let message = match self.speaks_terms(&cluster) {
                true => Message::ClaimWith {
                    claim: Box::new(claim),
                    terms: Terms {
                        preemptible: spec.may_be_preempted(),
                        token: token.as_ref() == Some(&cluster),
                        // Between peers whose clocks differ this is off by as much: it only orders a tenant's own jobs.
                        waited: Span::millis(self.now.wall.0.saturating_sub(record.submitted_at.0)),
                    },
                },
                false => Message::Claim(Box::new(claim)),
            };
            self.send(cluster, message, false);
        }
    }

    /// GPUs given out to a cluster since its last report, which cannot show them yet.
    fn assigned_gpus(&self) -> BTreeMap<PeerName, u64> {
        let heard = |name: &PeerName| {
            let report = self.view.members.get(name).and_then(|m| m.report.as_ref());
            report.map_or(Instant(0), |r| r.heard_at)
        };
        let sum = |name: &PeerName, list: &Vec<(Instant, u64)>| {
            list.iter().filter(|(at, _)| *at >= heard(name)).map(|(_, gpus)| gpus).sum()
        };
        self.owner.assigned.iter().map(|(name, list)| (name.clone(), sum(name, list))).collect()
    }

    /// A cluster holds capacity for a job: take it with one swap, or give it back.
    pub(super) fn on_grant(
        &mut self,
        from: PeerName,
        job: JobId,
        epoch: Epoch,
        _held: Span,
        terms: (ContactId, u64, Vec<Home>, u64),
    ) {
        let (contact, series, homes, incarnation) = terms;
        let certified = contact_id(&from, series, &homes) == contact;
        let record = self.acceptor.job_shared(&job);
        let wanted =
            record.filter(|r| r.placement.is_none() && !r.state.is_final() && r.epoch.next() == epoch);
        let free = self.owner.jobs.get(&job).is_some_and(|d| !d.placing && d.claims.contains_key(&from));
        let (Some(record), true, Ok(contact_homes)) =
            (wanted, certified && free, BoundedVec::try_from(homes))
        else {
            return self.send(from, Message::Withdraw { job, epoch }, false);
        };
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            driven.placing = true;
        }
        let gpus = record.spec.gpus_total();
        let now = self.now.mono;
        let list = self.owner.assigned.entry(from.clone()).or_default();
        list.retain(|(at, _)| now.since(*at) < Span::secs(10));
        list.push((now, gpus));
        let placement =
            Placement { cluster: from, contact, incarnation, series, contact_homes, at: self.now.wall };
        let change = Change::Place { placement, epoch };
        self.propose(Origin::Job(record.birth.clone()), Task::Job(change), Purpose::Place(job), PATIENCE);
    }

    pub(super) fn on_claim_state(
        &mut self,
        from: &PeerName,
        job: JobId,
        epoch: Epoch,
        ahead: u32,
        refused: Option<String>,
        prospects: Prospects,
    ) {
        let now = self.now.mono;
        let mut again = false;
        if let Some(laid) =
            self.owner.jobs.get_mut(&job).and_then(|d| d.claims.get_mut(from)).filter(|l| l.epoch == epoch)
        {
            laid.ahead = Some(ahead);
            // Somebody could be sent away for it: who may do so is looked at once all have answered.
            again = refused.is_some() || prospects.victims.is_some_and(|n| n > 0);
            laid.prospects = prospects;
            laid.refused = refused.map(|why| (now, why));
        }
        if again {
            self.drive_soon(job);
        }
    }

    pub(super) fn owner_placed(&mut self, job: JobId, result: OpResult) {
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            driven.placing = false;
        }
        if let OpResult::Value { value: Value::Job(record), refused } = result {
            if let (Some(placement), None) = (&record.placement, refused) {
                let cluster = placement.cluster.clone();
                self.withdraw_all(job, Some(&cluster));
                self.event("job.placed", Some(job), format!("placed at {cluster} as epoch {}", record.epoch));
                self.send(cluster, Message::Look { birth: record.birth.clone() }, false);
                if let Some(driven) = self.owner.jobs.get_mut(&job) {
                    driven.looked_at = Some(self.now.mono);
                }
            } else {
                self.count("placements_refused");
            }
        }
        self.drive_soon(job);
    }

    fn drive_placed(&mut self, job: JobId, record: &JobRecord, placement: &Placement) {
        let now = self.now.mono;
        self.withdraw_all(job, Some(&placement.cluster));
        let held = self.owner.jobs.get(&job).and_then(|d| d.held_from);
        // A job that runs on is looked at ever more seldom, as one that waits: its cluster tells of its end.
        let since = held.filter(|(v, _)| *v == record.version).map_or(now, |(_, since)| since);
        let mut next = now + self.cfg.pace.idle(now.since(since));
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        driven.held_from = Some((record.version, since));
        let waits = record.state == JobState::Placed || record.cancel.is_some();
        if waits {
            if driven.looked_at.is_none_or(|at| now.since(at) >= LOOK_EVERY) {
                driven.looked_at = Some(now);
                self.send(placement.cluster.clone(), Message::Look { birth: record.birth.clone() }, false);
            }
            next = now + LOOK_EVERY;
        }
        if let Some(grace) = record.spec.on_lost_contact.grace {
            next = next.min(self.watch_contact(job, record, placement, grace));
        }
        self.drive_at(job, next);
    }

    /// Takes the job's cluster over once its contact has been silent for the grace, drift and margin
    /// included. Returns when to look again.
    fn watch_contact(
        &mut self,
        job: JobId,
        record: &JobRecord,
        placement: &Placement,
        grace: Span,
    ) -> Instant {
        let now = self.now.mono;
        let retry = now + Span::secs(1);
        let freeing = self.owner.jobs.get(&job).is_some_and(|d| d.freeing);
        if freeing {
            return retry;
        }
        let wait = grace.scale(1000 + 2 * self.cfg.rho_milli, 1000) + self.cfg.margin;
        match self.lapse(placement, wait) {
            Lapse::Until(at) => {
                self.read_silent(placement);
                at.max(now + Span::millis(20)).min(now + self.cfg.renew_every.scale(2, 1))
            }
            Lapse::Unseen => {
                if let Some(entry) = self.owner.observed.get_mut(&placement.contact) {
                    if entry.reading {
                        return retry;
                    }
                    entry.reading = true;
                }
                let origin = contact_origin(placement);
                self.propose(origin, Task::Read, Purpose::Observe(placement.contact), PATIENCE);
                retry
            }
            Lapse::Take(expect) => {
                self.freeing(job, true);
                self.count("takeovers_tried");
                // A nonce of this peer's own making.
                let nonce = (self.life(), self.rng.u64());
                let change = ContactChange::TakeOver { expect, nonce, by: self.cfg.name.clone() };
                let purpose = Purpose::TakeOver(placement.contact, job);
                self.propose(contact_origin(placement), Task::Contact(change), purpose, PATIENCE);
                retry
            }
            Lapse::Over => {
                self.freeing(job, true);
                self.free(job, record, placement);
                retry
            }
        }
    }

    /// A contact that has been silent for a while is read once: what was heard of it may be older than
    /// what its homes hold, and a takeover that times an old nonce fails and waits all over again.
    fn read_silent(&mut self, placement: &Placement) {
        let (now, silent) = (self.now.mono, self.cfg.renew_every.scale(3, 2));
        let Some(seen) = self.owner.observed.get_mut(&placement.contact) else { return };
        if seen.reading || now.since(seen.first_seen) < silent || seen.read_for == Some(seen.newest) {
            return;
        }
        seen.reading = true;
        seen.read_for = Some(seen.newest);
        let purpose = Purpose::Observe(placement.contact);
        self.propose(contact_origin(placement), Task::Read, purpose, PATIENCE);
    }

    fn freeing(&mut self, job: JobId, on: bool) {
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            driven.freeing = on;
        }
    }

    fn lapse(&self, placement: &Placement, wait: Span) -> Lapse {
        let now = self.now.mono;
        let Some(seen) = self.owner.observed.get(&placement.contact) else { return Lapse::Unseen };
        let due = |from: Instant, then: Lapse| {
            if now.since(from) >= wait { then } else { Lapse::Until(from + wait) }
        };
        match seen.newest.0.cmp(&placement.incarnation) {
            std::cmp::Ordering::Less => Lapse::Unseen,
            std::cmp::Ordering::Equal => due(seen.first_seen, Lapse::Take(seen.newest)),
            std::cmp::Ordering::Greater => {
                let ended = seen
                    .incarnations
                    .iter()
                    .filter(|(i, _)| *i > placement.incarnation)
                    .map(|(_, at)| *at)
                    .min();
                // Only heard of, so far.
                ended.map_or(Lapse::Unseen, |at| due(at, Lapse::Over))
            }
        }
    }

    pub(super) fn observe_result(&mut self, contact: ContactId, result: OpResult) {
        if let Some(entry) = self.owner.observed.get_mut(&contact) {
            entry.reading = false;
        }
        if let OpResult::Value { value: Value::Contact(record), .. } = result {
            self.owner.learned(contact, record.incarnation, record.nonce, self.now.mono);
        }
    }

    pub(super) fn took_over(&mut self, contact: ContactId, job: JobId, result: OpResult) {
        self.freeing(job, false);
        let now = self.now.mono;
        let OpResult::Value { value: Value::Contact(seen), refused } = result else {
            return self.drive_soon(job);
        };
        if refused.is_some() {
            // A newer renewal, or somebody else's takeover: time that from now on.
            self.owner.learned(contact, seen.incarnation, seen.nonce, now);
            return self.drive_soon(job);
        }
        let timed_from = self
            .owner
            .observed
            .get(&contact)
            .filter(|o| o.newest.0 < seen.incarnation)
            .map_or(now, |o| o.first_seen);
        self.owner.taken(contact, seen.incarnation, seen.nonce, timed_from, now);
        self.count("takeovers");
        let cluster = seen.cluster.clone();
        self.event("contact.taken_over", Some(job), format!("{cluster} was out of contact for its grace"));
        self.out.push(super::api::Output::Flash(Flash::Suspect { cluster }));
        // Every job bound there may be due now.
        self.drive_all();
    }

    fn free(&mut self, job: JobId, record: &JobRecord, placement: &Placement) {
        let change = Change::Free {
            epoch: record.epoch,
            contact: placement.contact,
            incarnation: placement.incarnation,
            at: self.now.wall,
        };
        self.propose(Origin::Job(record.birth.clone()), Task::Job(change), Purpose::Free(job), PATIENCE);
    }

    pub(super) fn owner_freed(&mut self, job: JobId, result: OpResult) {
        self.freeing(job, false);
        if let OpResult::Value { value: Value::Job(record), refused: None } = result {
            self.count("jobs_freed");
            self.event("job.lost_contact", Some(job), record.reason.clone());
        }
        self.drive_soon(job);
    }

    /// A hint may also be ahead of the record: a value that only this disk took, since its proposer
    /// crashed. Acting on it for ever would leave the job standing; writing back settles which one holds.
    pub(super) fn owner_read(&mut self, result: OpResult) {
        let OpResult::Value { value: Value::Job(record), .. } = result else { return };
        if self.acceptor.job(&record.id()).is_some_and(|hint| *hint != *record) {
            self.count("hints_settled");
            self.write_back(&record);
        }
    }
}

/// Gives the job's one preemption token to the cluster where the fewest attempts would have to go, once all have
/// answered (or have had a second to). It stays there until that cluster refuses or has had its time.
fn give_token(driven: &mut Driven, now: Instant) {
    let stands = |c: &PeerName| driven.claims.get(c).is_some_and(|l| l.refused.is_none());
    let mut last = None;
    if let Some((cluster, since)) = &driven.token {
        if stands(cluster) && now.since(*since) < TOKEN_FOR {
            return;
        }
        last = Some(cluster.clone());
    }
    let open = |l: &&Laid| l.ahead.is_none() && l.refused.is_none();
    let waits = driven.claims.values().filter(open).any(|l| now.since(l.sent_at) < Span::secs(1));
    let price = |(c, l): (&PeerName, &Laid)| {
        let victims = l.prospects.victims.filter(|n| *n > 0 && l.refused.is_none())?;
        // The one that had it and could not use it comes last.
        Some((last.as_ref() == Some(c), victims, c.clone()))
    };
    let best = driven.claims.iter().filter_map(price).min().filter(|_| !waits);
    // Whoever had it hears at once that it has it no longer; whoever gets it, too.
    let next = best.map(|(.., cluster)| cluster);
    for cluster in last.iter().chain(&next) {
        if let Some(laid) = driven.claims.get_mut(cluster) {
            laid.every = Span::ZERO;
        }
    }
    driven.token = next.map(|cluster| (cluster, now));
}

fn contact_origin(placement: &Placement) -> Origin {
    Origin::Contact(placement.cluster.clone(), placement.series, placement.contact_homes.to_vec())
}
