//! What tenants hold at this cluster: read by `tenants`, which decides whether they may hold more.

use super::*;
use crate::model::tenant::Amount;

impl Executor {
    /// What a tenant's attempts that are not closed and its grants hold; GPU time only where that is limited.
    pub fn used_by(&self, tenant: &str, hours: bool) -> Amount {
        let attempts = self.attempts.values().filter(|a| a.phase != Phase::Closed).map(|a| &a.row.spec);
        let attempts = attempts
            .filter(|spec| spec.tenant == tenant)
            .map(|spec| Amount::of(spec.nodes, &spec.resources, spec.max_runtime.filter(|_| hours)));
        let grants = self
            .grants
            .values()
            .filter(|g| g.tenant == tenant)
            .map(|g| Amount { gpu_ms: if hours { g.amount.gpu_ms } else { 0 }, ..g.amount });
        attempts.chain(grants).fold(Amount::ZERO, Amount::plus)
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

    pub fn is_claimed(&self, job: &JobId) -> bool {
        self.claims.contains_key(job)
    }

    /// GPUs that nothing holds.
    pub fn gpus_free(&self) -> u64 {
        let mut report = crate::model::QueueReport::default();
        self.books.report(&mut report);
        report.gpus_free.values().map(|n| u64::from(*n)).sum()
    }
}

impl Peer {
    /// The claim of this job may be granted as far as its tenant's limits go.
    pub(super) fn quota_lets_job(&mut self, job: &JobId) -> bool {
        let Some(waiting) = self.exec.claims.get(job) else { return false };
        let (owner, claim) = (waiting.owner.clone(), waiting.claim.clone());
        self.quota_lets(&owner, &claim)
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
