//! What tenants hold at this cluster, and claims that their limits hold back. `tenants` decides whether they may
//! hold more.

use super::*;
use crate::core::schedule::{Decision, Standings};
use crate::core::tenants::Room;
use crate::model::tenant::Amount;

/// Claims that were held back of which it is found, in one pass, whether they would fit.
const HELD_MAX: usize = 32;

impl Executor {
    /// What a tenant's attempts and grants hold, but one of them; GPU time only where that is limited.
    pub fn used_by(&self, tenant: &str, hours: bool, but: Option<&AttemptKey>) -> Amount {
        let held =
            self.sched.running().iter().filter(|(key, r)| r.request.tenant == tenant && Some(*key) != but);
        let amount = |r: &Request| {
            let (n, need) = (u64::from(r.ranks), &r.need);
            let gpus = (u64::from(need.gpus) * u64::from(need.milli)).div_ceil(1_000).saturating_mul(n);
            let run = r.max_runtime.filter(|_| hours).map_or(0, Span::as_millis);
            Amount {
                gpus,
                cpus: need.cpus.saturating_mul(n),
                memory: need.memory.saturating_mul(n),
                gpu_ms: gpus.saturating_mul(run),
            }
        };
        held.map(|(_, r)| amount(&r.request)).fold(Amount::ZERO, Amount::plus)
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
    /// weights. Looked at about every second.
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
        if room.0.is_empty() {
            return;
        }
        if whole {
            self.quota_forget_wants();
        }
        for key in held.iter().take(HELD_MAX) {
            let Some(waiting) = self.exec.claims.get(&key.job) else { continue };
            let tenant = waiting.claim.birth.tenant.clone();
            let Some(of) = room.0.get(&tenant) else { continue };
            let amount = of.amount(&waiting.claim);
            let request = self.request_of_claim(&waiting.claim, &waiting.terms);
            if self.exec.sched.fit_now(&request).is_none() {
                continue;
            }
            let why = self.quota_wants(&tenant, of.used, amount);
            self.say_why(key.job, why);
        }
        if !whole {
            return;
        }
        let free = |(job, w): (&JobId, &Waiting)| {
            (!w.prospects.waits.is_empty() && room.lets(&w.claim)).then_some(*job)
        };
        let free: Vec<JobId> = self.exec.claims.iter().filter_map(free).collect();
        for job in free {
            self.say_why(job, String::new());
        }
    }

    fn say_why(&mut self, job: JobId, why: String) {
        if let Some(waiting) = self.exec.claims.get_mut(&job).filter(|w| w.prospects.waits != why) {
            waiting.prospects.waits = why;
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
