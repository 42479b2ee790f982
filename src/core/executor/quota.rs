//! What tenants hold at this cluster, and claims that their limits hold back. `tenants` decides whether they may
//! hold more.

use super::*;
use crate::core::schedule::{Decision, Running, Scheduler, Standings};
use crate::core::tenants::{Room, TenantRoom};
use crate::model::tenant::Amount;

/// Claims that were held back of which it is found, in one pass, whether they would fit.
const HELD_MAX: usize = 32;

/// What a request holds; GPU time only where that counts.
fn amount_of(r: &Request, hours: bool) -> Amount {
    let (n, need) = (u64::from(r.ranks), &r.need);
    let gpus = (u64::from(need.gpus) * u64::from(need.milli)).div_ceil(1_000).saturating_mul(n);
    let run = r.max_runtime.filter(|_| hours).map_or(0, Span::as_millis);
    Amount {
        gpus,
        cpus: need.cpus.saturating_mul(n),
        memory: need.memory.saturating_mul(n),
        gpu_ms: gpus.saturating_mul(run),
    }
}

/// Claims of limited tenants for which others are sent away: so much of their shares is taken already.
#[derive(Debug, Default)]
pub(super) struct Promises {
    keys: BTreeSet<AttemptKey>,
    of: BTreeMap<String, Amount>,
}

impl Promises {
    pub fn of_pinned(room: &Room, sched: &Scheduler<AttemptKey>, claims: &BTreeMap<JobId, Waiting>) -> Self {
        let mut promises = Self::default();
        for key in sched.pinned().filter(|_| !room.0.is_empty()) {
            if let Some(waiting) = claims.get(&key.job) {
                promises.add(room, *key, &waiting.claim);
            }
        }
        promises
    }

    pub fn add(&mut self, room: &Room, key: AttemptKey, claim: &Claim) {
        if let Some(of) = room.0.get(&claim.birth.tenant)
            && self.keys.insert(key)
        {
            let sum = self.of.entry(claim.birth.tenant.clone()).or_default();
            *sum = sum.plus(of.amount(claim));
        }
    }

    pub fn of(&self, tenant: &str) -> Amount {
        self.of.get(tenant).copied().unwrap_or_default()
    }

    /// This claim fits what its tenant may take: one of these as if it were alone, another beside them.
    pub fn lets(&self, room: &Room, key: &AttemptKey, claim: &Claim) -> bool {
        let others = if self.keys.contains(key) { Amount::ZERO } else { self.of(&claim.birth.tenant) };
        room.lets_beside(claim, others)
    }
}

impl Executor {
    /// What a tenant's attempts and grants hold, but one of them; GPU time only where that is limited.
    pub fn used_by(&self, tenant: &str, hours: bool, but: Option<&AttemptKey>) -> Amount {
        let held =
            self.sched.running().iter().filter(|(key, r)| r.request.tenant == tenant && Some(*key) != but);
        held.map(|(_, r)| amount_of(&r.request, hours)).fold(Amount::ZERO, Amount::plus)
    }

    /// Attempts of a tenant that would have to go so that its limit lets a request of this priority start: preemptible
    /// ones of a lower priority, the lowest and youngest first. None where that would not help.
    fn own_victims(
        &self,
        tenant: &str,
        room: TenantRoom,
        more: Amount,
        priority: u8,
    ) -> Option<Vec<AttemptKey>> {
        let of = |(key, r): &(&AttemptKey, &Running)| {
            r.request.tenant == tenant && self.attempts.contains_key(key)
        };
        let (going, stay): (Vec<_>, Vec<_>) =
            self.sched.running().iter().filter(of).partition(|(_, r)| r.stopping);
        let gone = going.iter().map(|(_, r)| amount_of(&r.request, room.hours));
        let mut used = gone.fold(room.used, Amount::minus);
        let mut low = stay;
        low.retain(|(_, r)| r.request.preemptible && r.request.priority < priority);
        low.sort_by_key(|(key, r)| (r.request.priority, std::cmp::Reverse(r.started), **key));
        let mut victims = Vec::new();
        for (key, r) in low {
            if used.plus(more).within(&room.share) {
                break;
            }
            used = used.minus(amount_of(&r.request, room.hours));
            victims.push(*key);
        }
        used.plus(more).within(&room.share).then_some(victims)
    }

    /// The contact incarnations that a tenant's living attempts are bound to, or may be soon.
    pub fn bound_by(&self, tenant: &str) -> BTreeSet<(ContactId, u64)> {
        let living =
            self.attempts.values().filter(|a| a.phase != Phase::Closed && a.row.spec.tenant == tenant);
        living
            .flat_map(|a| [Some(a.row.binding), a.row.moving_to.as_ref().map(|next| next.to)])
            .flatten()
            .collect()
    }

    /// Whose an attempt is.
    pub fn tenant_of(&self, key: &AttemptKey) -> Option<&str> {
        self.attempts.get(key).map(|a| a.row.spec.tenant.as_str())
    }

    /// GPUs that nothing holds.
    pub fn gpus_free(&self) -> u64 {
        let mut report = crate::model::QueueReport::default();
        self.sched.books().report(&mut report);
        report.gpus_free.values().map(|n| u64::from(*n)).sum()
    }
}

impl Peer {
    /// Tells the queue who has less than its guaranteed share, and what others have borrowed here; and the tenants'
    /// weights. Before every pass: what was granted or has gone counts at once.
    pub(super) fn note_standings(&mut self) {
        let limited: Vec<String> = self.limited_tenants();
        let mut standings = Standings::default();
        for tenant in limited {
            let standing = self.standing(&tenant);
            self.exec.sched.set_weight(&tenant, standing.weight.saturating_mul(1_000));
            let owns = standing.guaranteed.saturating_sub(standing.held);
            let borrowed = standing.borrowed().min(standing.here);
            if owns > 0 {
                standings.owns.insert(tenant.clone(), owns);
            }
            if borrowed > 0 && standing.guaranteed > 0 {
                // What is on loan goes back, whatever its priority; not what said that it must not be stopped.
                let lent = |(_, a): &(&AttemptKey, &Attempt)| {
                    a.phase != Phase::Closed
                        && a.row.spec.tenant == tenant
                        && a.row.spec.preemptible != Some(false)
                };
                standings.loans.extend(self.exec.attempts.iter().filter(lent).map(|(key, _)| *key));
                standings.borrowed.insert(tenant, borrowed);
            }
        }
        self.exec.sched.set_standings(standings);
    }

    /// These claims would pass their tenants' shares: more is asked for where they would start, and their owners hear
    /// why they wait.
    pub(super) fn quota_holds(&mut self, room: &Room, held: &[AttemptKey], whole: bool) {
        // Where nothing is limited any more, what was said before is taken back.
        if room.0.is_empty() && !self.exec.limits_said {
            return;
        }
        let promises = Promises::of_pinned(room, &self.exec.sched, &self.exec.claims);
        if whole {
            self.quota_forget_wants();
            promises.of.iter().for_each(|(tenant, amount)| self.quota_pins(tenant, *amount));
        }
        for key in held.iter().take(HELD_MAX) {
            let Some(waiting) = self.exec.claims.get(&key.job) else { continue };
            let tenant = waiting.claim.birth.tenant.clone();
            let Some(of) = room.0.get(&tenant) else { continue };
            let amount = of.amount(&waiting.claim);
            let request = self.request_of_claim(&waiting.claim, &waiting.terms);
            // It would start, also once those are gone whom it may send away.
            let sends = || {
                let victims = self.exec.sched.victims_of(key, self.now.mono);
                request.token && victims.is_some_and(|n| n > 0)
            };
            let fits = self.exec.sched.fit_now(&request, self.now.mono).is_some() || sends();
            // More was refused by the ledger: what is left is to send its own lower ones away.
            let short = self.quota_short(&tenant);
            let victims = self.exec.own_victims(&tenant, *of, amount, request.priority).filter(|_| short);
            let leave = |victims: &Vec<AttemptKey>| {
                let held = victims.iter().filter_map(|key| self.exec.sched.running().get(key));
                held.map(|r| u64::from(r.request.need.gpus) * u64::from(r.request.ranks)).sum::<u64>()
            };
            let victims = victims.filter(|victims| fits || leave(victims) >= amount.gpus);
            if !fits && victims.is_none() {
                continue;
            }
            let count = victims.as_ref().map_or(0, |v| u32::try_from(v.len()).unwrap_or(u32::MAX));
            let why = self.quota_wants(&tenant, of.used.plus(promises.of(&tenant)), amount);
            self.say_why(key.job, why, count);
            if let Some(victims) = victims.filter(|v| !v.is_empty() && request.token) {
                self.preempt(*key, victims);
            }
        }
        if !whole {
            return;
        }
        let free = |(job, w): (&JobId, &Waiting)| {
            let held = !w.prospects.waits.is_empty() || w.own_victims > 0;
            (held && promises.lets(room, &w.key(*job), &w.claim)).then_some(*job)
        };
        let free: Vec<JobId> = self.exec.claims.iter().filter_map(free).collect();
        for job in free {
            self.say_why(job, String::new(), 0);
        }
        self.exec.limits_said &= !room.0.is_empty();
    }

    fn say_why(&mut self, job: JobId, why: String, victims: u32) {
        let news = |w: &&mut Waiting| w.prospects.waits != why || w.own_victims != victims;
        if let Some(waiting) = self.exec.claims.get_mut(&job).filter(news) {
            (waiting.prospects.waits, waiting.own_victims) = (why, victims);
            self.exec.limits_said = true;
            if !self.exec.grants.contains_key(&job) {
                self.tell_place(job, false);
            }
        }
    }

    /// Each of these fits its tenant's share, and several together may not: the last ones wait.
    pub(super) fn quota_trim(
        &mut self,
        room: &Room,
        mut decisions: Vec<Decision<AttemptKey>>,
    ) -> Vec<Decision<AttemptKey>> {
        for at in (0..decisions.len()).rev() {
            let Some(Decision::Grant { key, .. }) = decisions.get(at) else { continue };
            let key = *key;
            let running = self.exec.sched.running().get(&key);
            let Some(of) = running.and_then(|r| room.0.get(&r.request.tenant)) else { continue };
            let tenant = running.map(|r| r.request.tenant.clone()).unwrap_or_default();
            if !self.exec.used_by(&tenant, of.hours, None).within(&of.share.max(of.used)) {
                self.exec.sched.take_back(&key, self.now.mono);
                decisions.remove(at);
            }
        }
        decisions
    }

    /// Counts the GPU time of an attempt that has ended.
    pub(super) fn quota_counts(&mut self, key: &AttemptKey) {
        let Some(attempt) = self.exec.attempts.get(key) else { return };
        let Some(Closed { started_at: Some(from), at, .. }) = &attempt.row.closed else { return };
        // The clock for people may jump: no more than has passed here since it was admitted, and than it may run.
        let ran = Span::millis(at.0.saturating_sub(from.0)).min(self.now.mono.since(attempt.admitted));
        let ran = ran.min(attempt.row.spec.max_runtime.unwrap_or(Span::FOREVER));
        let (tenant, gpus) = (attempt.row.spec.tenant.clone(), attempt.row.spec.gpus_total());
        self.quota_ended(&tenant, gpus, ran);
    }
}
