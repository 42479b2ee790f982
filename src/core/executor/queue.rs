//! A cluster's queue: claims in order, grants, and what it tells the others of both.

use std::cmp::Reverse;

use super::*;
use crate::model::report::{Liveness, QueueReport};

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
/// The queue is looked over at least this often.
const QUEUE_EVERY: Span = Span::secs(1);

impl Peer {
    pub(in crate::core) fn on_claim(&mut self, from: PeerName, claim: Claim) {
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
        (self.exec.claims.len() >= CLAIMS_MAX).then(|| "the queue is full".into())
    }

    pub(super) fn closed_for(&self) -> Option<String> {
        match (self.draining, self.disk_full, self.exec.strays.is_empty()) {
            _ if self.exec.closed_below.is_some() => self.exec.closed_below.clone(),
            (true, ..) => Some("drains".into()),
            (_, true, _) => Some("disk nearly full".into()),
            (.., false) => Some("stops attempts that its new disk does not know".into()),
            _ => None,
        }
    }

    pub(in crate::core) fn on_withdraw(&mut self, from: &PeerName, job: JobId, epoch: Epoch) {
        let theirs = |w: &Waiting| w.owner == *from && w.claim.epoch <= epoch;
        if self.exec.claims.get(&job).is_some_and(theirs) {
            self.exec.drop_claim(&job);
            if self.exec.grants.get(&job).is_some_and(|g| g.epoch <= epoch) {
                self.exec.release_grant(&job);
            }
            self.queue_changed();
        }
    }

    pub(in crate::core) fn on_queue_timer(&mut self) {
        self.timer_in(QUEUE_EVERY, Timer::Queue);
        self.drop_old_claims();
    }

    /// Drops claims that nobody repeats and grants that nobody took, and grants what fits then.
    pub(in crate::core) fn drop_old_claims(&mut self) {
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
    pub(in crate::core) fn queue_changed(&mut self) {
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
    pub(super) fn queue_joined(&mut self, job: JobId) {
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
    pub(super) fn try_grant(&mut self, job: &JobId) -> Option<Granted> {
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
    pub(super) fn owner_reachable(&self, owner: &PeerName) -> bool {
        *owner == self.cfg.name || self.view.members.get(owner).is_none_or(|m| m.liveness != Liveness::Lost)
    }

    pub(super) fn claimed_by_one_reached(&self, job: &JobId) -> bool {
        self.exec.claims.get(job).is_some_and(|w| self.owner_reachable(&w.owner))
    }

    pub(super) fn grant(&mut self, job: JobId, grant: Granted) {
        self.timers.insert((grant.until, Timer::Grants));
        self.exec.grants.insert(job, grant);
        self.exec.report_dirty = true;
        self.send_grant(&job);
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

fn count32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
