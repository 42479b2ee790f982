//! What other clusters keep free for jobs whose start nobody knows, and whether this one may do the same.
//!
//! Keeping nodes for such a job means that they empty, for hours, while others wait. One queue does it for its head;
//! as many clusters as there are would do it for as many heads at once. So each tells what it keeps, and keeps itself only
//! for the oldest few of all: the reason and the measurement are in docs/decisions/few-drains.md.

use std::collections::BTreeMap;

use super::{Request, Scheduler};
use crate::base::{Instant, Span};

/// What is kept longer than this no longer counts against others: it may never come.
const COUNTS_FOR: Span = Span::secs(72 * 3_600);

/// What one cluster keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep<K> {
    /// For whom.
    pub key: K,
    /// Its priority.
    pub priority: u8,
    /// Since when it waits, on this cluster's clock.
    pub since: i64,
    /// GPUs that it asks for.
    pub gpus: u64,
    /// Of this cluster's pools, those whose model it takes.
    pub pools: Vec<u16>,
}

/// All that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere<K> {
    /// Of other clusters.
    pub keeps: Vec<Keep<K>>,
    /// GPUs of each of this cluster's pools over all clusters, this one too.
    pub gpus: Vec<u64>,
}

impl<K> Default for Elsewhere<K> {
    fn default() -> Self {
        Self { keeps: Vec::new(), gpus: Vec::new() }
    }
}

/// Since when something is kept here without a known end, by whom.
pub(super) type Since<K> = BTreeMap<K, Instant>;

impl<K: Copy + Ord> Scheduler<K> {
    /// What others keep, from now on. True if that is news. It changes nobody's place, nor a start that can be known.
    pub fn set_elsewhere(&mut self, elsewhere: Elsewhere<K>) -> bool {
        let news = self.elsewhere != elsewhere;
        self.elsewhere = elsewhere;
        news
    }

    /// Nobody older (or above) waits elsewhere for nodes of the same kind, or both together are a small part of the mesh.
    pub(super) fn may_keep(&self, key: &K, request: &Request) -> bool {
        let need = &request.need;
        let before = |k: &&Keep<K>| {
            k.key != *key
                && k.pools.iter().any(|p| need.pools.contains(p))
                && (k.priority > request.priority
                    || (k.priority == request.priority && k.since < request.since))
        };
        let kept: u64 =
            self.elsewhere.keeps.iter().filter(before).map(|k| k.gpus).fold(0, u64::saturating_add);
        if kept == 0 || need.gpus == 0 {
            return true;
        }
        let all = need.pools.iter().filter_map(|p| self.elsewhere.gpus.get(*p as usize));
        let all = all.fold(0, |sum: u64, n| sum.saturating_add(*n));
        let together = kept.saturating_add(request.gpus());
        together.saturating_mul(1_000) <= all.saturating_mul(self.config.drain_milli.into())
    }

    /// Notes for whom nodes are held since when.
    pub(super) fn note_keeps(&mut self, now: Instant) {
        let held = self.reservations.iter().filter(|r| r.binding && r.at.is_none());
        let since = held.map(|r| (r.key, self.kept.get(&r.key).copied().unwrap_or(now)));
        self.kept = since.collect();
    }

    /// For whom nodes are held without a known end, and not for so long that others need not mind any more.
    pub fn keeps(&self, now: Instant) -> impl Iterator<Item = (&K, &Request)> {
        let counts = self.kept.iter().filter(move |(_, since)| now.since(**since) < COUNTS_FOR);
        counts.filter_map(|(key, _)| Some((key, &self.waiting.get(key)?.request)))
    }

    /// It is first in line, and its nodes are not held since others elsewhere come first.
    pub fn yields(&self, key: &K) -> bool {
        self.yielding.contains(key)
    }
}
