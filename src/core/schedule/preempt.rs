//! Whom an urgent request sends away: the fewest that suffice, of these the lowest, of these the youngest.
//!
//! Only preemptible attempts of a lower priority; and, for a tenant that has less than its guaranteed share, what others
//! have borrowed, whatever its priority, up to as much as they have borrowed. What is stopping already counts as gone. For one rank every node is
//! looked at; for a gang two orders are tried (lowest first, largest first) and whoever is not needed is let off again.
//! That is exact for one victim, and for more never takes one that could stay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::nodes::{Choice, fit};
use super::{Running, Standings};
use crate::base::Instant;
use crate::core::books::{Books, Need, NodeState};

/// Attempts that are looked at; the lowest and youngest come first.
const LOOKED_AT_MAX: usize = 4_096;
/// Victims that are tried to be let off again.
const SPARED_MAX: usize = 128;

/// How bad it is: how many, their priorities together, what they have done so far (seconds).
type Cost = (usize, u64, u64);

/// What is promised to others meanwhile.
pub struct Promised<'a, K> {
    /// Takes it from books in which some are let go.
    pub withhold: &'a dyn Fn(&mut Books, &dyn Fn(&K) -> bool),
    /// What this one holds would be theirs.
    pub barred: &'a dyn Fn(&Running) -> bool,
}

/// The victims, lowest and youngest first; none where all of them would not suffice.
pub fn victims<'r, K: Copy + Ord + 'r>(
    books: &Books,
    running: impl Iterator<Item = (&'r K, &'r Running)>,
    (priority, ranks, need): (u8, u32, &Need),
    loans: Option<&Standings<K>>,
    promised: &Promised<K>,
    now: Instant,
) -> Option<Vec<K>> {
    let lower = |r: &Running| r.request.preemptible && r.request.priority < priority;
    let lent = |key: &K| loans.is_some_and(|l| l.loans.contains(key));
    let mut may: Vec<(&K, &Running)> = Vec::new();
    let mut stopping: Vec<&Running> = Vec::new();
    let mut gone: BTreeSet<K> = BTreeSet::new();
    for (key, r) in running {
        if r.stopping {
            gone.insert(*key);
            stopping.push(r);
        } else if (lower(r) || lent(key)) && helps(r, need) && !(promised.barred)(r) {
            may.push((key, r));
        }
    }
    if may.is_empty() {
        return None;
    }
    let mut base = books.clone();
    for r in &stopping {
        base.give(&r.shares, &r.request.need);
    }
    (promised.withhold)(&mut base, &|key| gone.contains(key));
    may.sort_by_key(|(key, r)| (r.request.priority, Reverse(r.started), **key));
    // Nobody falls below what is his own.
    let gpus = |r: &Running| u64::from(r.request.need.gpus) * u64::from(r.request.ranks);
    let mut left: BTreeMap<&str, u64> = BTreeMap::new();
    for (tenant, all) in loans.iter().flat_map(|l| &l.borrowed) {
        // What goes already counts as taken back.
        let goes = stopping.iter().filter(|r| r.request.tenant == *tenant).map(|r| gpus(r)).sum();
        left.insert(tenant, all.saturating_sub(goes));
    }
    may.retain(|(key, r)| {
        if !lent(key) || lower(r) {
            return true;
        }
        let Some(left) = left.get_mut(r.request.tenant.as_str()) else { return false };
        let goes = gpus(r) > 0 && gpus(r) <= *left;
        *left -= if goes { gpus(r) } else { 0 };
        goes
    });
    may.truncate(LOOKED_AT_MAX);
    let choice = Choice::default();
    let suffice = |some: &[(&K, &Running)]| {
        let mut then = base.clone();
        for (_, r) in some {
            then.give(&r.shares, &r.request.need);
        }
        fit(&then, ranks, need, &choice).is_some()
    };
    let found = match ranks {
        1 => one_node(&base, &may, need, now),
        _ => gang(&may, &suffice, now),
    };
    found.map(|(_, some)| some.into_iter().map(|(key, _)| *key).collect())
}

/// It holds something that is asked for.
fn helps(r: &Running, need: &Need) -> bool {
    need.gpus == 0 || r.request.need.gpus > 0 || r.request.need.cpus > 0
}

fn cost<K>(some: &[(&K, &Running)], now: Instant) -> Cost {
    let done = |r: &Running| now.since(r.started).0 / 1_000_000;
    let sum = some.iter().map(|(_, r)| u64::from(r.request.priority)).sum();
    (some.len(), sum, some.iter().map(|(_, r)| done(r)).fold(0, u64::saturating_add))
}

/// These would be enough.
type Suffice<'a, K> = dyn Fn(&[(&K, &Running)]) -> bool + 'a;
type Found<'r, K> = (Cost, Vec<(&'r K, &'r Running)>);

fn one_node<'r, K: Copy + Ord>(
    base: &Books,
    may: &[(&'r K, &'r Running)],
    need: &Need,
    now: Instant,
) -> Option<Found<'r, K>> {
    let mut on_node: std::collections::BTreeMap<u32, Vec<(&K, &Running)>> = Default::default();
    for (key, r) in may {
        let mut nodes: Vec<u32> = r.shares.iter().map(|s| s.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            on_node.entry(node).or_default().push((key, r));
        }
    }
    let mut best: Option<Found<K>> = None;
    for (node, there) in on_node {
        let Some(state) = base.nodes().get(node as usize).filter(|s| need.takes(s.pool)) else { continue };
        let without = |some: &[(&K, &Running)]| -> NodeState {
            let mut state = state.clone();
            for (_, r) in some {
                for share in r.shares.iter().filter(|s| s.node == node) {
                    state.set(&share.gpus, &r.request.need, false);
                }
            }
            state
        };
        let suffice = |some: &[(&K, &Running)]| without(some).fits(need);
        // One alone is the best there can be; the first that suffices is the lowest and youngest.
        let alone = there.iter().find(|one| suffice(&[**one])).map(|one| vec![*one]);
        let found = alone.map(|some| (cost(&some, now), some)).or_else(|| gang(&there, &suffice, now));
        if let Some(found) = found
            && best.as_ref().is_none_or(|(cost, _)| found.0 < *cost)
        {
            best = Some(found);
        }
    }
    best
}

fn gang<'r, K: Copy + Ord>(
    may: &[(&'r K, &'r Running)],
    suffice: &Suffice<K>,
    now: Instant,
) -> Option<Found<'r, K>> {
    if !suffice(may) {
        return None;
    }
    let mut largest = may.to_vec();
    largest.sort_by_key(|(key, r)| {
        (Reverse(r.request.need.gpus as usize * r.shares.len()), r.request.priority, **key)
    });
    let tries = [may.to_vec(), largest].map(|order| {
        let (mut low, mut high) = (0, order.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if suffice(&order[..middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut some = order[..high].to_vec();
        // The highest and oldest are let off first.
        some.sort_by_key(|(key, r)| (r.request.priority, Reverse(r.started), **key));
        let mut at = some.len();
        let mut left = SPARED_MAX;
        while at > 0 && left > 0 {
            (at, left) = (at - 1, left - 1);
            let one = some.remove(at);
            if !suffice(&some) {
                some.insert(at, one);
            }
        }
        (cost(&some, now), some)
    });
    tries.into_iter().min_by(|a, b| a.0.cmp(&b.0))
}
