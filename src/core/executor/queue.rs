//! A cluster's queue: claims in, grants and places out, and what it tells the others of both.

use super::quota::Promises;
use super::*;
use crate::core::schedule::Decision;
use crate::core::schedule::outlook::FRONT;
use crate::model::report::{Liveness, QueueReport};

/// What this cluster says of itself changes at most this often.
const REPORT_EVERY: Span = Span::millis(50);
/// A place in the queue is counted no further than this,
const PLACE_MAX: usize = 1_000;
/// and, where the queue has not changed, made anew after this, as usage decays;
const PLACES_FOR: Span = Span::secs(30);
/// A new claim's price is found at most this often;
const PRICED_EVERY: Span = Span::millis(20);
/// of the first so many it is found how many attempts would have to go for them.
const PRICED_MAX: usize = 8;
/// Claims held.
const CLAIMS_MAX: usize = 200_000;
/// A grant for one of several groups is kept no longer than this while the others are gathered.
const GATHERED_MAX: Span = Span::secs(40);
/// No age beyond this is believed.
const WAITED_MAX: Span = Span::secs(30 * 86_400);

impl Peer {
    pub(in crate::core) fn on_claim(&mut self, from: PeerName, claim: Claim, mut terms: Terms) {
        if let Some(card) = terms.card.take() {
            self.learn_card(&card);
        }
        let job = claim.birth.id();
        let key = AttemptKey { job, epoch: claim.epoch };
        // It has ended here, and the record does not say so yet: that comes first, or a job that is done would
        // run again because its cluster was out of reach when it finished.
        let ended: Vec<AttemptKey> =
            self.exec.of_job(&job).filter(|(_, a)| a.phase == Phase::Closed).map(|(k, _)| *k).collect();
        for key in &ended {
            self.attempt_again(*key);
        }
        // A late message of an owner that knows less than this cluster.
        if self.exec.claims.get(&job).is_some_and(|w| w.claim.epoch > claim.epoch) {
            return;
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
        let now = self.now.mono;
        if self.exec.grants.get(&job).is_some_and(|g| g.epoch != key.epoch) {
            self.exec.drop_claim(&job);
            self.exec.release_grant(&job, now);
        }
        let request = self.request_of_claim(&claim, &terms);
        let turned = self.exec.claims.get(&job).is_some_and(|w| w.terms.lean != terms.lean);
        let in_front = self.exec.sched.in_front(&key);
        let firm = !terms.lean;
        let changed =
            self.exec.claims.get(&job).is_none_or(|w| w.claim != claim || w.terms.token != terms.token);
        let old = self.exec.claims.remove(&job);
        if let Some(old) = &old {
            self.exec.queued_gpus -= gpus_of(&old.claim);
            self.exec.heard.remove(&(old.heard, job));
            if old.claim.epoch != claim.epoch {
                self.exec.sched.leave(&old.key(job));
            }
        }
        self.exec.queued_gpus += gpus_of(&claim);
        self.exec.heard.insert((now, job));
        let (arrived, prospects, place, own_victims) = match old {
            Some(old) => (old.arrived, old.prospects, old.place, old.own_victims),
            None => (now, Prospects::default(), None, 0),
        };
        self.exec.arrived.insert((arrived, job));
        let gathers = terms.gathers;
        let (owner, heard) = (from.clone(), now);
        let waiting = Waiting { claim, terms, owner, arrived, heard, prospects, place, own_victims };
        self.exec.claims.insert(job, waiting);
        if let Some(grant) = self.exec.grants.get_mut(&job) {
            if gathers {
                grant.until = grant.until.max((now + self.cfg.grant_for).min(grant.since + GATHERED_MAX));
                self.timers.insert((grant.until, Timer::Grants));
            }
            return self.send_grant(&job);
        }
        self.exec.sched.join(key, request, now);
        if key.epoch.0 > 1 {
            self.exec.sched.returns(key);
        }
        if changed {
            self.exec.report_dirty = true;
            self.queue_joined(key);
        }
        if turned && (in_front || firm && self.exec.sched.may_be_kept_for(&key)) {
            // What is kept free is so for another now, or something may be kept for it.
            self.queue_changed();
        }
        if !self.exec.grants.contains_key(&job) {
            self.tell_place(job, changed);
        }
    }

    pub(super) fn request_of_claim(&self, claim: &Claim, terms: &Terms) -> Request {
        let waited = terms.waited.min(WAITED_MAX);
        let at = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        // To the second: a claim that is repeated has not moved.
        let since = at(self.now.mono.0).saturating_sub(at(waited.0)).div_euclid(1_000_000) * 1_000_000;
        Request {
            // Its birth certifies it.
            tenant: claim.birth.tenant.clone(),
            priority: claim.priority.min(100),
            ranks: claim.nodes,
            need: self.exec.sched.need(&claim.resources),
            max_runtime: claim.max_runtime,
            preemptible: terms.preemptible,
            token: terms.token,
            lean: terms.lean,
            since,
        }
    }

    /// Tells an owner where its claim stands.
    pub(super) fn tell_place(&mut self, job: JobId, fresh: bool) {
        self.make_places();
        self.price(job, fresh);
        let Some(waiting) = self.exec.claims.get(&job) else { return };
        let (to, epoch) = (waiting.owner.clone(), waiting.claim.epoch);
        let bound = self.exec.sched.place_at_most(waiting.claim.priority);
        let ahead = waiting.place.unwrap_or_else(|| count32(bound));
        let mut prospects = waiting.prospects.clone();
        let made = self.exec.places_of.map_or(self.now.mono, |(at, _)| at);
        prospects.starts_in = prospects.starts_in.map(|wait| wait - self.now.mono.since(made));
        if waiting.own_victims > 0 {
            prospects.victims = Some(waiting.own_victims);
        }
        if prospects.waits.is_empty() && self.exec.sched.buffered(&AttemptKey { job, epoch }) {
            prospects.waits = self.buffer_words();
        }
        prospects.yields = self.exec.sched.yields(&AttemptKey { job, epoch });
        prospects.reserved = self.reserved_against(&AttemptKey { job, epoch });
        let message = match self.speaks_terms(&to) {
            true => Message::ClaimStateWith { job, epoch, ahead, refused: None, prospects },
            false => Message::ClaimState { job, epoch, ahead, refused: None },
        };
        self.send(to, message, false);
    }

    /// An urgent job's owner must not wait for the next round of places to hear what it would cost.
    fn price(&mut self, job: JobId, fresh: bool) {
        let now = self.now.mono;
        let due = self.exec.priced_at.is_none_or(|at| now.since(at) >= PRICED_EVERY);
        let Some(waiting) = self.exec.claims.get_mut(&job).filter(|_| fresh && due) else { return };
        self.exec.priced_at = Some(now);
        waiting.prospects.victims = self.exec.sched.victims_of(&waiting.key(job), now).map(count32);
    }

    /// Places and start estimates of the first in line, where they are older than a second and may be others. That is a look at
    /// the whole queue, and claims are repeated all the time: a long queue in which nothing happens must cost nothing.
    fn make_places(&mut self) {
        let (now, changes) = (self.now.mono, self.exec.sched.changes());
        let every = self.cfg.pace.places_every;
        let hold = |(at, of)| now.since(at) < if of == changes { PLACES_FOR.max(every) } else { every };
        if self.exec.places_of.is_some_and(hold) {
            return;
        }
        self.exec.places_of = Some((now, changes));
        self.count("places_made");
        let found = self.exec.sched.prospects(now, PLACE_MAX);
        // Who is not found this time has what was found another time.
        for job in std::mem::replace(&mut self.exec.placed, found.iter().map(|p| p.key.job).collect()) {
            self.exec.unplace(&job);
        }
        let front: Vec<JobId> = found.iter().take(FRONT).map(|p| p.key.job).collect();
        for (n, prospect) in found.into_iter().enumerate() {
            let victims = match n < PRICED_MAX {
                true => self.exec.sched.victims_of(&prospect.key, now).map(count32),
                false => None,
            };
            let Some(waiting) = self.exec.claims.get_mut(&prospect.key.job) else { continue };
            waiting.place = Some(prospect.ahead);
            let said = &mut waiting.prospects;
            (said.starts_in, said.victims) = (prospect.starts_in, victims);
            said.reserved.clear();
            let before = &front[..n.min(front.len())];
            if said.front != before {
                said.front = before.to_vec();
            }
        }
    }

    pub(super) fn refuses(&self, claim: &Claim) -> Option<String> {
        if let Some(why) = self.closed_for() {
            return Some(why);
        }
        if claim.image && !self.cfg.runs_images {
            return Some("runs no images".into());
        }
        if !crate::core::books::fits_empty(&self.cfg.nodes, claim.nodes, &claim.resources) {
            return Some("does not fit this cluster even when it is empty".into());
        }
        if self.exec.sched.beyond_buffer(&self.request_of_claim(claim, &Terms::default()), claim.epoch.0 > 1)
        {
            let (kept, priority) = self.exec.sched.buffer();
            return Some(format!(
                "keeps {kept} GPUs free for jobs that ran before and priority {priority}; it does not fit beside them"
            ));
        }
        (self.exec.claims.len() >= CLAIMS_MAX).then(|| "the queue is full".into())
    }

    pub(in crate::core) fn closed_for(&self) -> Option<String> {
        match (self.draining, self.disk_full, self.exec.strays.is_empty()) {
            _ if self.exec.closed_below.is_some() => self.exec.closed_below.clone(),
            (true, ..) => Some("drains".into()),
            (_, true, _) => Some("disk nearly full".into()),
            (.., false) => Some("stops attempts that its new disk does not know".into()),
            _ => self.tenants_unheard(),
        }
    }

    pub(in crate::core) fn on_withdraw(&mut self, from: &PeerName, job: JobId, epoch: Epoch) {
        let theirs = |w: &Waiting| w.owner == *from && w.claim.epoch <= epoch;
        let Some(key) = self.exec.claims.get(&job).filter(|w| theirs(w)).map(|w| w.key(job)) else { return };
        // Each job that starts is withdrawn everywhere else, where mostly nobody waited for its sake.
        let mut matters = self.exec.sched.in_front(&key);
        self.exec.drop_claim(&job);
        if self.exec.grants.get(&job).is_some_and(|g| g.epoch <= epoch) {
            self.exec.release_grant(&job, self.now.mono);
            matters = true;
        }
        if matters {
            self.queue_changed();
        }
    }

    pub(in crate::core) fn on_queue_timer(&mut self) {
        self.timer_in(self.cfg.pace.queue_every, Timer::Queue);
        self.tend_shares();
        self.tend_reservations();
        if let Some(row) = self.exec.usage_row(self.now.mono, self.now.wall) {
            self.write(Write { table: Table::Meta, key: USAGE_KEY.to_vec(), value: Some(row) });
        }
        self.drop_old_claims();
        self.queue_changed();
    }

    /// Grants are over, or something else comes of its own.
    pub(in crate::core) fn on_grants_timer(&mut self) {
        let released = std::mem::take(&mut self.exec.released);
        if self.drop_old_claims() || released {
            self.queue_changed();
        }
    }

    /// Drops claims that nobody repeats and grants that nobody took. True if there were some: others may start then.
    fn drop_old_claims(&mut self) -> bool {
        let (now, claim_for) = (self.now.mono, self.cfg.pace.claim_for);
        let silent = self.exec.heard.iter().take_while(|(heard, _)| now.since(*heard) > claim_for);
        let silent: Vec<JobId> = silent.map(|(_, job)| *job).collect();
        let mut dropped = !silent.is_empty();
        for job in silent {
            self.exec.drop_claim(&job);
        }
        let over: Vec<JobId> =
            self.exec.grants.iter().filter(|(_, g)| g.until <= now).map(|(j, _)| *j).collect();
        for job in over {
            self.exec.release_grant(&job, now);
            self.count("grants_expired");
            dropped = true;
        }
        dropped
    }

    /// Grants what may start now, in order.
    pub(in crate::core) fn queue_changed(&mut self) {
        self.decide(None);
    }

    /// One claim more, and nothing freed.
    pub(super) fn queue_joined(&mut self, key: AttemptKey) {
        self.decide(Some(key));
    }

    fn decide(&mut self, one: Option<AttemptKey>) {
        if self.closed_for().is_some() || self.contact_fresh().is_none() {
            return;
        }
        let now = self.now.mono;
        self.note_standings();
        self.note_elsewhere();
        self.ready_promises();
        let limits = self.quota_room();
        let held = std::cell::RefCell::new(Vec::new());
        let (sched, claims) = (&mut self.exec.sched, &self.exec.claims);
        let (view, me) = (&self.view, &self.cfg.name);
        // What a grant to an owner out of reach would hold is better given to others.
        let reached = |owner: &PeerName| {
            owner == me || view.members.get(owner).is_none_or(|m| m.liveness != Liveness::Lost)
        };
        // For these others are sent away, or may be in this pass: not more of them than their tenant has a share for.
        let promises = std::cell::RefCell::new(Promises::of_pinned(&limits, sched, claims));
        let may = |key: &AttemptKey| {
            let Some(waiting) = claims.get(&key.job).filter(|w| reached(&w.owner)) else { return false };
            let mut promises = promises.borrow_mut();
            let lets = promises.lets(&limits, key, &waiting.claim);
            if !lets {
                held.borrow_mut().push(*key);
            } else if waiting.terms.token {
                promises.add(&limits, *key, &waiting.claim);
            }
            lets
        };
        let decisions = match one {
            Some(key) => sched.decide_one(key, now, &may),
            None => sched.decide(now, &may),
        };
        let held = held.into_inner();
        self.note_keeps();
        self.quota_holds(&limits, &held, one.is_none());
        let decisions = if limits.0.is_empty() { decisions } else { self.quota_trim(&limits, decisions) };
        for decision in decisions {
            match decision {
                Decision::Grant { key, .. } => {
                    let until = now + self.cfg.grant_for;
                    self.timers.insert((until, Timer::Grants));
                    self.exec.grants.insert(key.job, Granted { epoch: key.epoch, since: now, until });
                    self.exec.report_dirty = true;
                    // It waits no longer: if nobody takes the grant, all is found anew.
                    self.exec.unplace(&key.job);
                    self.send_grant(&key.job);
                }
                Decision::Preempt { key, victims } => self.preempt(key, victims),
            }
        }
    }

    /// Sends attempts away for a more urgent job: notice, checkpoint, stop; their jobs wait again.
    pub(super) fn preempt(&mut self, key: AttemptKey, victims: Vec<AttemptKey>) {
        let priority = self.exec.claims.get(&key.job).map_or(0, |w| w.claim.priority);
        self.send_away(victims, &format!("preempted for {} of priority {priority}", key.job));
    }

    pub(in crate::core) fn send_away(&mut self, victims: Vec<AttemptKey>, why: &str) {
        let mut granted = false;
        for victim in victims {
            self.count("preemptions");
            self.event("attempt.preempted", Some(victim.job), format!("epoch {} is {why}", victim.epoch));
            let Some(attempt) = self.exec.attempts.get_mut(&victim) else {
                // A grant that nobody took yet: its owner hears nothing and is not told yes when it comes.
                self.exec.release_grant(&victim.job, self.now.mono);
                granted = true;
                continue;
            };
            attempt.row.preempted = Some(why.to_owned());
            self.save(victim);
            self.stop_within(victim, StopReason::Drain, self.exec.sched.config().notice);
        }
        if granted {
            self.exec.released = true;
            self.timer_in(Span::ZERO, Timer::Grants);
        }
    }

    pub(super) fn send_grant(&mut self, job: &JobId) {
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

    /// Says what is free when it changed: to gossip always, by flash when the GPUs did and not too often.
    pub(in crate::core) fn flush_report(&mut self) {
        // A scheduler that has not answered yet has told of no nodes: that it does not is said all the same.
        let silent = self.exec.closed_below.is_none() && self.exec.reported.is_none();
        if !self.exec.report_dirty || (self.cfg.nodes.is_empty() && silent) {
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
            queued: count32(self.exec.claims.len() - self.exec.grants.len().min(self.exec.claims.len()))
                .saturating_add(self.exec.waiting_below.jobs),
            closed: self.closed_for(),
            queued_gpus: self.exec.queued_gpus.saturating_add(self.exec.waiting_below.gpus),
            ..QueueReport::default()
        };
        let sched = &self.exec.sched;
        sched.books().report(&mut queue);
        for (job, grant) in &self.exec.grants {
            let held = sched.running().get(&AttemptKey { job: *job, epoch: grant.epoch });
            sched.books().by_model(held.map_or(&[], |r| &r.shares), &mut queue.gpus_reserved);
        }
        queue.waits = sched
            .waits(now, self.exec.waiting_below.gpus)
            .into_iter()
            .map(|(model, wait)| (model, coarse(wait)))
            .collect();
        for r in sched.running().values().filter(|r| r.request.preemptible && !r.stopping) {
            let gpus = r.request.need.gpus.saturating_mul(r.request.ranks);
            if gpus > 0 {
                let sum = queue.gpus_reclaimable.entry(r.request.priority).or_default();
                *sum = sum.saturating_add(gpus);
            }
        }
        let (kept, priority) = sched.buffer();
        (queue.gpus_buffer, queue.buffer_priority) = (kept, if kept > 0 { priority } else { 0 });
        self.report_reserved(&mut queue);
        self.report_keeps(&mut queue);
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

/// To about a tenth, so that a report that says nothing new is not gossiped again.
fn coarse(wait: Span) -> Span {
    let secs = wait.0 / 1_000_000;
    let step = [1, 10, 60, 600, 3_600].into_iter().rev().find(|step| secs >= 10 * step).unwrap_or(1);
    Span::secs(secs / step * step)
}

fn count32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
