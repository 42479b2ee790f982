//! Who waits, in order: priority, then the tenant with the least usage by weight, then age.
//!
//! Within a priority the tenants take turns: each request that is passed in order counts as if it were started,
//! so that the next turn is another tenant's when that one has less. Nothing is sorted anew when usage decays:
//! each tenant's own requests are in order of age, and a pass merges as far as it looks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::fair::{Accounts, Tenant};
use crate::base::Instant;

/// A request's place in its tenant's line: when it began to wait on this cluster's clock (may lie before the clock's
/// start), then its key.
type Line<K> = BTreeSet<(i64, K)>;

/// All waiting requests.
#[derive(Debug, Clone)]
pub struct Queue<K> {
    classes: BTreeMap<Reverse<u8>, BTreeMap<Tenant, Line<K>>>,
    counts: BTreeMap<u8, usize>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { classes: BTreeMap::new(), counts: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Queue<K> {
    /// One more.
    pub fn insert(&mut self, priority: u8, tenant: Tenant, since: i64, key: K) {
        let line = self.classes.entry(Reverse(priority)).or_default().entry(tenant).or_default();
        if line.insert((since, key)) {
            *self.counts.entry(priority).or_default() += 1;
        }
    }

    /// One less.
    pub fn remove(&mut self, priority: u8, tenant: Tenant, since: i64, key: K) {
        let Some(class) = self.classes.get_mut(&Reverse(priority)) else { return };
        let Some(line) = class.get_mut(&tenant) else { return };
        if line.remove(&(since, key))
            && let Some(n) = self.counts.get_mut(&priority)
        {
            *n -= 1;
            if *n == 0 {
                self.counts.remove(&priority);
            }
        }
        if line.is_empty() {
            class.remove(&tenant);
        }
        if class.is_empty() {
            self.classes.remove(&Reverse(priority));
        }
    }

    /// One tenant's, by priority and age.
    pub fn of(&self, tenant: Tenant) -> impl Iterator<Item = K> + '_ {
        self.classes.values().filter_map(move |class| class.get(&tenant)).flatten().map(|(_, key)| *key)
    }

    /// How many wait with at least this priority.
    pub fn at_least(&self, priority: u8) -> usize {
        self.counts.range(priority..).map(|(_, n)| n).sum()
    }

    /// All in order, found as far as the caller looks. `share` is what a request would hold of the cluster.
    pub fn in_order<'a>(
        &'a self,
        accounts: &'a Accounts,
        now: Instant,
        share: impl Fn(&K) -> f64 + 'a,
    ) -> impl Iterator<Item = K> + 'a {
        let mut classes = self.classes.values();
        let mut extra: BTreeMap<Tenant, f64> = BTreeMap::new();
        let mut heap: BinaryHeap<Turn<'a, K>> = BinaryHeap::new();
        std::iter::from_fn(move || {
            while heap.is_empty() {
                for (tenant, line) in classes.next()? {
                    let level = accounts.level(*tenant, now) + extra.get(tenant).copied().unwrap_or_default();
                    let mut rest = line.iter();
                    let Some(first) = rest.next() else { continue };
                    heap.push(Turn { level, first: *first, tenant: *tenant, rest });
                }
            }
            let mut turn = heap.pop()?;
            let key = turn.first.1;
            let step = accounts.step(turn.tenant, share(&key));
            *extra.entry(turn.tenant).or_default() += step;
            if let Some(next) = turn.rest.next() {
                turn.first = *next;
                turn.level += step;
                heap.push(turn);
            }
            Some(key)
        })
    }
}

/// A tenant's next request; the least level, then the oldest, is the greatest.
struct Turn<'a, K> {
    level: f64,
    first: (i64, K),
    tenant: Tenant,
    rest: std::collections::btree_set::Iter<'a, (i64, K)>,
}

impl<K: Copy + Ord> Ord for Turn<'_, K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.level.total_cmp(&self.level).then_with(|| other.first.cmp(&self.first))
    }
}
impl<K: Copy + Ord> PartialOrd for Turn<'_, K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K: Copy + Ord> PartialEq for Turn<'_, K> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<K: Copy + Ord> Eq for Turn<'_, K> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Span;

    #[test]
    fn priority_then_turns_then_age() {
        let mut accounts = Accounts::new(Span::secs(86_400), [("b".to_owned(), 2_000)].into());
        let (a, b) = (accounts.name("a", Instant(0)), accounts.name("b", Instant(0)));
        let mut queue = Queue::default();
        for key in 0..4 {
            queue.insert(50, a, i64::from(key), key);
            queue.insert(50, b, 10 + i64::from(key), 10 + key);
        }
        queue.insert(75, a, 99, 99);
        queue.insert(25, b, -5, 25);
        let order: Vec<i32> = queue.in_order(&accounts, Instant(0), |_| 0.1).collect();
        // The urgent one of a counts: b goes first below it, and gets two turns for one of a.
        assert_eq!(order, [99, 10, 11, 0, 12, 13, 1, 2, 3, 25]);
        assert_eq!((queue.at_least(75), queue.at_least(50), queue.at_least(0)), (1, 9, 10));
        // Who has used much waits behind.
        accounts.hold(b, 1.0, Instant(0));
        let order: Vec<i32> = queue.in_order(&accounts, Instant(0), |_| 0.1).collect();
        assert_eq!(order[..5], [99, 0, 1, 2, 3]);
        for key in 0..4 {
            queue.remove(50, a, i64::from(key), key);
            queue.remove(50, b, 10 + i64::from(key), 10 + key);
        }
        queue.remove(50, b, 3, 3);
        assert_eq!(queue.in_order(&accounts, Instant(0), |_| 0.1).collect::<Vec<i32>>(), [99, 25]);
    }
}
