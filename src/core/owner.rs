//! The owner's side of a job: claims, placement, watching the contact, taking over.
//!
//! Every home of a job may do any of this; the ring's order only says who does it first, so that they
//! do not race. All of it is soft state, rebuilt from the record, and every step is a conditional swap.
// tidy: long because watching and taking over read the same soft state of one job

mod claims;
mod firm;
mod offers;

use std::collections::BTreeMap;

use super::acceptor::Value;
use super::api::Flash;
use super::message::{Message, Origin, RecordKey};
use super::peer::{Peer, Timer};
use super::propose::{Fresh, OpResult, Task};
use super::purpose::Purpose;
use crate::base::{ContactId, Epoch, Home, Instant, JobId, PeerName, Span};
use crate::model::record::{Change, ContactChange};
use crate::model::report::MemberView;
use crate::model::trace::{self, SpanNote};
use crate::model::{JobRecord, JobState, Placement};
use claims::{Laid, Offer, Strikes};

/// A claim is repeated this often until its cluster has answered, then ever more seldom.
const CLAIM_EVERY: Span = Span::secs(2);
/// So far apart are jobs looked at that new limits of their tenant wake: there may be very many.
const WAKE_EVERY: Span = Span(100);
/// The executor is told to look this often while the record waits for it.
const LOOK_EVERY: Span = Span::secs(1);
/// An acting one refreshes its hint by a read this often.
const READ_EVERY: Span = Span::secs(30);
const READ_EVERY_PLACED: Span = Span::secs(5);
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

#[derive(Debug, Default)]
struct Driven {
    claims: BTreeMap<PeerName, Laid>,
    /// Grants that wait for a better one.
    offers: BTreeMap<PeerName, Offer>,
    /// The one cluster that may send others away for this job, and since when it may.
    token: Option<(PeerName, Instant)>,
    /// The grant that is being taken.
    placing: Option<(PeerName, Epoch)>,
    /// Spans of the wait that the placement under way ends.
    waited: Vec<SpanNote>,
    freeing: bool,
    scheduled: Option<Instant>,
    looked_at: Option<Instant>,
    read_at: Option<Instant>,
    held_from: Option<(u64, Instant)>,
    idle: Option<Idle>,
}

/// A home that does not act asks now and then whether the one that acts knows the record.
#[derive(Debug, Clone)]
struct Idle {
    version: u64,
    /// Since when it is this version.
    since: Instant,
    /// Whom it counts on, and when it asks next.
    owner: Option<PeerName>,
    due: Instant,
}

impl Driven {
    /// Since when the record is as it is, as far as was seen here.
    fn since(&mut self, record: &JobRecord, now: Instant) -> Instant {
        let from = match self.held_from {
            Some((version, at)) if version == record.version => at,
            _ => now,
        };
        self.held_from = Some((record.version, from));
        from
    }
}

/// Soft state of all jobs that this peer drives or might.
#[derive(Default)]
pub(super) struct Owner {
    jobs: BTreeMap<JobId, Driven>,
    observed: BTreeMap<ContactId, Observed>,
    /// Clusters that refuse or lose what they are given.
    strikes: BTreeMap<PeerName, Strikes>,
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

    /// Since when a job's record is as it is.
    pub fn waits_since(&mut self, job: &JobId, record: &JobRecord, now: Instant) -> Instant {
        self.jobs.get_mut(job).map_or(now, |driven| driven.since(record, now))
    }

    fn claims(&self, job: &JobId) -> Option<&BTreeMap<PeerName, Laid>> {
        self.jobs.get(job).map(|d| &d.claims)
    }
}

pub(super) enum Lapse {
    /// Nothing is known of the contact: read it.
    Unseen,
    /// Wait until then.
    Until(Instant),
    /// This is the newest renewal of the bound incarnation, and it is old enough: take it over.
    Take {
        /// That renewal,
        expect: (u64, (u64, u64)),
        /// and since when it is known.
        since: Instant,
    },
    /// The bound incarnation ended long enough ago.
    Over,
}

impl Peer {
    /// The members' order in driving a job; the first alive one acts.
    pub(super) fn acts_for(&self, record: &JobRecord) -> bool {
        self.acts_for_homes(record.homes())
    }

    pub(super) fn acts_for_homes(&self, homes: &[Home]) -> bool {
        if self.view.isolated && homes.len() > 1 {
            return false;
        }
        self.acting(homes).is_some_and(|h| h.peer == self.cfg.name)
    }

    /// Who acts as the job's owner, seen from here.
    pub(super) fn owner_of(&self, record: &JobRecord) -> Option<PeerName> {
        self.acting(record.homes()).map(|h| h.peer.clone())
    }

    /// The first that is alive and, where one has, that has room on its disk: one without may never have taken the record.
    fn acting<'h>(&self, homes: &'h [Home]) -> Option<&'h Home> {
        let full = |home: &Home| match home.peer == self.cfg.name {
            true => self.disk_full,
            false => self.view.members.get(&home.peer).is_some_and(MemberView::disk_full),
        };
        let mut alive = homes.iter().filter(|h| self.home_alive(h));
        alive.clone().find(|h| !full(h)).or_else(|| alive.next())
    }

    /// Other limits of a tenant may let those of its jobs begin that they had forbidden.
    pub(super) fn wake_tenant(&mut self, tenant: &str) {
        let waits = |job: &&JobId| {
            let record = self.acceptor.job(job);
            record.is_some_and(|r| r.state == JobState::Pending && r.spec.tenant == tenant)
        };
        let jobs: Vec<JobId> = self.owner.jobs.keys().filter(waits).copied().collect();
        for (n, job) in (0u64..).zip(jobs) {
            self.drive_at(job, self.now.mono + WAKE_EVERY.scale(n, 1));
        }
    }

    pub(super) fn drive_soon(&mut self, job: JobId) {
        self.drive_at(job, self.now.mono);
    }

    pub(super) fn drive_at(&mut self, job: JobId, at: Instant) {
        let driven = self.owner.jobs.entry(job).or_default();
        if driven.scheduled.is_none_or(|old| at < old || old < self.now.mono) {
            if let Some(old) = driven.scheduled.replace(at) {
                self.timers.remove(&(old, Timer::Drive(job)));
            }
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
            (RecordKey::Job(job), _) => {
                self.drive_soon(*job);
                if let Some(record) = self.acceptor.job_shared(job) {
                    self.child_ended(&record);
                    self.group_changed(&record);
                }
            }
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
            self.drop_groups(&job);
            self.forget_gathering(&job);
            return self.idle(job, &record);
        }
        match record.placement.clone() {
            None if record.is_reservation() => self.drive_reservation(job, &record),
            None if record.array.is_some() => self.drive_array(job, &record),
            None if record.groups.is_some() => self.drive_groups(job, &record),
            // What happens to a group is decided by its job's owner.
            None if record.group_of.is_some() => self.drive_group(job, &record),
            None => self.drive_pending(job, &record),
            Some(placement) => self.drive_placed(job, &record, &placement),
        }
        self.refresh_hint(job, &record);
    }

    /// A home that does not act makes sure that the acting one knows the record at all: it may have
    /// missed every write so far. The longer nothing changes, the less often it asks; sooner only of another one. What it
    /// accepts meanwhile may be the very repair that its question began: of a home that cannot take the record there would
    /// be no end.
    pub(super) fn idle(&mut self, job: JobId, record: &JobRecord) {
        let (now, owner) = (self.now.mono, self.owner_of(record));
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let known = driven.idle.take().filter(|idle| idle.version == record.version);
        let since = known.as_ref().map_or(now, |idle| idle.since);
        let waits = known.filter(|idle| idle.due > now && idle.owner == owner);
        let asks = since != now && waits.is_none();
        let due = waits.map_or_else(|| now + self.cfg.pace.idle(now.since(since)), |idle| idle.due);
        driven.idle = Some(Idle { version: record.version, since, owner: owner.clone(), due });
        self.drive_at(job, due);
        if !asks {
            return;
        }
        // Its own hint may be old, too; or the only one, of a try that nobody else heard of.
        let begun = record.version > 1 || record.key.is_none();
        let purpose = if begun { Purpose::OwnerRead } else { Purpose::Unsettled(job) };
        self.propose(Origin::Job(record.birth.clone()), Task::Read, purpose, PATIENCE);
        if let Some(owner) = owner.filter(|o| *o != self.cfg.name) {
            self.send(owner, Message::Look { birth: record.birth.clone() }, false);
        }
    }

    /// This disk is a home of the record and has missed its newest write: put it on all homes again. A
    /// change that changes nothing would not reach it. Or it is ahead: it alone took what a proposer that crashed was
    /// about to choose, its end perhaps, so that nobody here drives it any more.
    pub(super) fn heal_hint(&mut self, record: &JobRecord) {
        let job = record.id();
        let home = record.homes().iter().any(|h| h.peer == self.cfg.name && h.store == self.cfg.store);
        if home && self.acceptor.job(&job).is_none_or(|hint| *hint != *record) {
            self.count("hints_refreshed");
            self.write_back(record);
        }
    }

    fn drop_driven(&mut self, job: JobId) {
        self.withdraw_all(job, None);
        self.drop_array(&job);
        self.drop_groups(&job);
        self.drop_gathering(&job);
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
        driven.offers.clear();
        for (cluster, laid) in claims {
            if Some(&cluster) != but && laid.refused.is_none() {
                self.send(cluster, Message::Withdraw { job, epoch: laid.epoch }, false);
            }
        }
    }

    fn drive_pending(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        if !self.after_met(job, record) {
            return;
        }
        let never = self.quota_never(&record.spec).is_some();
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        if driven.placing.is_some() {
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        let from = driven.since(record, now);
        if record.held.is_some() {
            self.withdraw_all(job, None);
            return self.drive_at(job, now + self.cfg.pace.idle_every);
        }
        if let Some(intent) = record.moving.as_ref().filter(|_| now.since(from) >= MOVE_WAITS) {
            let change = Change::MoveOver { intent: intent.clone() };
            self.propose(Origin::Job(record.birth.clone()), Task::Job(change), Purpose::OwnerRead, PATIENCE);
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        if never {
            // Taken in before the limits were: every cluster would take its grant back. `why` says so, and other limits wake it.
            self.withdraw_all(job, None);
            return self.drive_at(job, now + self.cfg.pace.idle(now.since(from)));
        }
        if now.since(from) < record.hold {
            return self.drive_at(job, from + record.hold);
        }
        let epoch = record.epoch.next();
        driven.claims.retain(|_, laid| laid.epoch == epoch);
        if self.take_best_offer(job, record) {
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        let wanted = match &record.moving {
            // Refused a moment ago: asked again later, not at once.
            Some(intent) if self.rests_for(&job, &intent.to) => Vec::new(),
            Some(intent) => vec![intent.to.clone()],
            None => self.choose_claims(job, record, now.since(from)),
        };
        self.lay_claims(job, record, epoch, &wanted);
        let due = self.claims_due(&job);
        self.drive_at(job, due);
    }

    pub(super) fn owner_placed(&mut self, job: JobId, result: OpResult) {
        let mut spans = Vec::new();
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            driven.placing = None;
            spans = std::mem::take(&mut driven.waited);
        }
        if let OpResult::Value { value: Value::Job(record), refused } = result {
            if let (Some(placement), None) = (&record.placement, refused) {
                let cluster = placement.cluster.clone();
                self.withdraw_all(job, Some(&cluster));
                let commit = SpanNote::new(trace::COMMIT, record.epoch, placement.at, self.now.wall);
                spans.push(commit.under(trace::ATTEMPT).note("placement"));
                let text = format!("placed at {cluster} as epoch {}", record.epoch);
                self.event_with("job.placed", Some(job), text, spans);
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
        // Its cluster is told until it is seen to have heard: words get lost.
        let waits = record.state == JobState::Placed || record.cancel.is_some() || record.halted();
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
                self.observe_contact(placement);
                retry
            }
            Lapse::Take { expect, since } => {
                self.freeing(job, true);
                self.count("takeovers_tried");
                // A nonce of this peer's own making.
                let nonce = (self.life(), self.rng.u64());
                let change = ContactChange::TakeOver { expect, nonce, by: self.cfg.name.clone() };
                let purpose = Purpose::TakeOver(placement.contact, job, since);
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

    /// Reads a contact of which nothing is known, unless that is under way.
    pub(super) fn observe_contact(&mut self, placement: &Placement) {
        if let Some(entry) = self.owner.observed.get_mut(&placement.contact) {
            if entry.reading {
                return;
            }
            entry.reading = true;
        }
        let purpose = Purpose::Observe(placement.contact);
        self.propose(contact_origin(placement), Task::Read, purpose, PATIENCE);
    }

    /// A contact that has been silent for a while is read once: what was heard of it may be older than
    /// what its homes hold, and a takeover that times an old nonce fails and waits all over again.
    pub(super) fn read_silent(&mut self, placement: &Placement) {
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

    pub(super) fn lapse(&self, placement: &Placement, wait: Span) -> Lapse {
        let now = self.now.mono;
        let Some(seen) = self.owner.observed.get(&placement.contact) else { return Lapse::Unseen };
        let due = |from: Instant, then: Lapse| {
            if now.since(from) >= wait { then } else { Lapse::Until(from + wait) }
        };
        match seen.newest.0.cmp(&placement.incarnation) {
            std::cmp::Ordering::Less => Lapse::Unseen,
            std::cmp::Ordering::Equal => {
                due(seen.first_seen, Lapse::Take { expect: seen.newest, since: seen.first_seen })
            }
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

    /// A takeover on behalf of a job, or of a tenant's ledger. `since` is when the renewal that it was conditional on
    /// was first seen: where it succeeds that one was the last, whatever this peer's own disk accepted meanwhile.
    pub(super) fn took_over(
        &mut self,
        contact: ContactId,
        job: Option<JobId>,
        since: Instant,
        result: OpResult,
    ) {
        if let Some(job) = job {
            self.freeing(job, false);
            self.drive_soon(job);
        }
        let now = self.now.mono;
        let OpResult::Value { value: Value::Contact(seen), refused } = result else { return };
        if refused.is_some() {
            // A newer renewal, or somebody else's takeover: time that from now on.
            return self.owner.learned(contact, seen.incarnation, seen.nonce, now);
        }
        self.owner.taken(contact, seen.incarnation, seen.nonce, since, now);
        self.count("takeovers");
        let cluster = seen.cluster.clone();
        self.event("contact.taken_over", job, format!("{cluster} was out of contact for its grace"));
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
            if let Some(lost) = record.attempts.last().map(|a| a.cluster.clone()) {
                self.strike(&lost, true);
            }
            let mut spans: Vec<SpanNote> =
                record.attempts.last().map(SpanNote::of_attempt).into_iter().collect();
            spans.extend(trace::whole(&record));
            self.event_with("job.lost_contact", Some(job), record.reason.clone(), spans);
        }
        self.drive_soon(job);
    }

    /// A hint may also be ahead of the record: a value that only this disk took, since its proposer
    /// crashed. Acting on it for ever would leave the job standing; writing back settles which one holds.
    /// A job with a key that this home alone was given: either it is begun, or the other homes have another job of the key.
    pub(super) fn unsettled_read(&mut self, job: JobId, result: OpResult) {
        match (self.acceptor.job_shared(&job), &result) {
            (Some(record), OpResult::Missing) => {
                let origin = Origin::Job(record.birth.clone());
                let task = Task::Create(Box::new(Value::Job(record)), Fresh::No);
                self.propose(origin, task, Purpose::OwnerRead, PATIENCE);
            }
            _ => self.owner_read(result),
        }
    }

    pub(super) fn owner_read(&mut self, result: OpResult) {
        let OpResult::Value { value: Value::Job(record), .. } = result else { return };
        if self.acceptor.job(&record.id()).is_some_and(|hint| *hint != *record) {
            self.count("hints_settled");
            self.write_back(&record);
        }
    }
}

pub(super) fn contact_origin(placement: &Placement) -> Origin {
    Origin::Contact(placement.cluster.clone(), placement.series, placement.contact_homes.to_vec())
}
