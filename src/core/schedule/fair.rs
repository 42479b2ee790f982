//! What tenants have used, and so whose turn it is.
//!
//! Usage is the dominant share of the cluster (of GPUs, CPU or memory, the largest) times seconds, and halves every
//! `half_life`. What runs now also counts as if it had run for an hour (at most a half-life), so that many jobs
//! that come at once are dealt out in turn. Everything is divided by the tenant's weight. A peer saves it once a
//! minute, so that one that starts anew goes on with it, decayed.

use std::collections::BTreeMap;

use crate::base::{Instant, Span};

/// Tenants that are accounted for; beyond it the idle one with the least usage is forgotten.
pub const TENANTS_MAX: usize = 4_096;
/// What runs counts as if it had run so long already.
const AHEAD: Span = Span::secs(3_600);

/// A tenant's number in the accounts.
pub type Tenant = u32;

#[derive(Debug, Clone)]
struct Account {
    name: String,
    weight: f64,
    /// Share-seconds at `at`.
    used: f64,
    at: Instant,
    /// Shares held now.
    rate: f64,
    /// Requests and attempts that name it.
    named: u32,
}

/// All tenants' accounts.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    half_life: Span,
    weights: BTreeMap<String, u32>,
    by_name: BTreeMap<String, Tenant>,
    accounts: BTreeMap<Tenant, Account>,
    next: Tenant,
}

impl Accounts {
    /// Weights in thousandths; a tenant without one has 1000.
    pub fn new(half_life: Span, weights: BTreeMap<String, u32>) -> Self {
        Self { half_life: half_life.max(Span::secs(1)), weights, ..Self::default() }
    }

    /// Somebody names a tenant: its number, until `leave` has been called as often.
    pub fn name(&mut self, tenant: &str, now: Instant) -> Tenant {
        if let Some(id) = self.by_name.get(tenant) {
            if let Some(account) = self.accounts.get_mut(id) {
                account.named = account.named.saturating_add(1);
            }
            return *id;
        }
        if self.accounts.len() >= TENANTS_MAX {
            let idle = self.accounts.iter().filter(|(_, a)| a.named == 0);
            let least = idle.min_by(|(_, a), (_, b)| a.used.total_cmp(&b.used)).map(|(id, _)| *id);
            if let Some(account) = least.and_then(|id| self.accounts.remove(&id)) {
                self.by_name.remove(&account.name);
            }
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let weight = f64::from(self.weights.get(tenant).copied().unwrap_or(1_000).max(1)) / 1_000.0;
        let account = Account { name: tenant.to_owned(), weight, used: 0.0, at: now, rate: 0.0, named: 1 };
        self.accounts.insert(id, account);
        self.by_name.insert(tenant.to_owned(), id);
        id
    }

    /// A tenant's number, where somebody names it or it is remembered.
    pub fn known(&self, tenant: &str) -> Option<Tenant> {
        self.by_name.get(tenant).copied()
    }

    /// One that named it is gone.
    pub fn leave(&mut self, tenant: Tenant) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.named = account.named.saturating_sub(1);
        }
    }

    /// A tenant's weight in thousandths from now on; true if it was another.
    pub fn set_weight(&mut self, tenant: &str, milli: u32) -> bool {
        let id = self.by_name.get(tenant);
        let weight = f64::from(milli.max(1)) / 1_000.0;
        let account = id.and_then(|id| self.accounts.get_mut(id)).filter(|a| a.weight != weight);
        account.map(|account| account.weight = weight).is_some()
    }

    /// What a tenant had used by now, as it was saved. What is no sound figure counts as nothing.
    pub fn restore(&mut self, tenant: &str, used: f64, now: Instant) {
        if !(used.is_finite() && used > 0.0) || self.accounts.len() >= TENANTS_MAX {
            return;
        }
        let id = self.name(tenant, now);
        self.leave(id);
        if let Some(account) = self.accounts.get_mut(&id) {
            (account.used, account.at) = (account.used + used, now);
        }
    }

    fn used(&self, account: &Account, now: Instant) -> f64 {
        let half = self.half_life.as_secs_f64();
        let left = (-now.since(account.at).as_secs_f64() / half).exp2();
        // The integral of what runs, decayed as it comes in.
        account.used * left + account.rate * half / std::f64::consts::LN_2 * (1.0 - left)
    }

    /// From now on the tenant holds so much more of the cluster, or less.
    pub fn hold(&mut self, tenant: Tenant, share: f64, now: Instant) {
        let Some(used) = self.accounts.get(&tenant).map(|a| self.used(a, now)) else { return };
        if let Some(account) = self.accounts.get_mut(&tenant) {
            (account.used, account.at) = (used, now);
            account.rate = (account.rate + share).max(0.0);
        }
    }

    /// The tenant's usage by weight: the lowest comes first.
    pub fn level(&self, tenant: Tenant, now: Instant) -> f64 {
        let Some(account) = self.accounts.get(&tenant) else { return 0.0 };
        self.used(account, now) / account.weight + self.step(tenant, account.rate)
    }

    /// How much the level rises when the tenant gets this share.
    pub fn step(&self, tenant: Tenant, share: f64) -> f64 {
        let weight = self.accounts.get(&tenant).map_or(1.0, |a| a.weight);
        share * AHEAD.min(self.half_life).as_secs_f64() / weight
    }

    /// Tenants accounted for.
    pub fn len(&self) -> usize {
        self.accounts.len()
    }
    /// None is.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }
    /// Usage of every tenant in share-seconds, decayed until now, largest first; at most so many.
    pub fn top(&self, now: Instant, most: usize) -> Vec<(String, f64)> {
        let mut all: Vec<(String, f64)> =
            self.accounts.values().map(|a| (a.name.clone(), self.used(a, now))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000)
    }

    #[test]
    fn usage_halves_and_weights_divide() {
        let mut all = Accounts::new(Span::secs(100), [("big".to_owned(), 3_000)].into());
        let (a, b) = (all.name("a", at(0)), all.name("big", at(0)));
        for t in [a, b] {
            all.hold(t, 0.5, at(0));
            all.hold(t, -0.5, at(10));
        }
        // About five share-seconds, a little of it decayed.
        let fresh = all.level(a, at(10));
        assert!((4.7..5.0).contains(&fresh), "{fresh}");
        assert!((all.level(b, at(10)) * 3.0 - fresh).abs() < 1e-9);
        assert!((all.level(a, at(110)) * 2.0 - fresh).abs() < 1e-9);
        assert_eq!(all.top(at(10), 1).len(), 1);
    }

    #[test]
    fn what_was_saved_counts_on() {
        let mut all = Accounts::new(Span::secs(100), BTreeMap::new());
        for (tenant, used) in [("a", 8.0), ("b", f64::NAN), ("c", -3.0), ("d", f64::INFINITY)] {
            all.restore(tenant, used, at(0));
        }
        assert_eq!(all.top(at(0), 9), [("a".to_owned(), 8.0)]);
        assert!((all.top(at(100), 1)[0].1 - 4.0).abs() < 1e-9, "it goes on decaying");
        let a = all.name("a", at(0));
        all.set_weight("a", 4_000);
        assert!((all.level(a, at(0)) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_runs_for_ever_does_not_grow_for_ever() {
        let mut all = Accounts::new(Span::secs(100), BTreeMap::new());
        let t = all.name("t", at(0));
        all.hold(t, 1.0, at(0));
        let (early, late) = (all.level(t, at(1_000)), all.level(t, at(1_000_000)));
        assert!(late < early * 1.01, "{early} {late}");
    }

    #[test]
    fn tenants_are_bounded_and_those_in_use_stay() {
        let mut all = Accounts::new(Span::secs(100), BTreeMap::new());
        let first = all.name("first", at(0));
        for i in 0..2 * TENANTS_MAX {
            let t = all.name(&format!("t{i}"), at(1));
            all.leave(t);
        }
        assert_eq!(all.len(), TENANTS_MAX);
        assert_eq!(all.name("first", at(2)), first);
    }
}
