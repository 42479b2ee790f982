//! The reservation of a request that does not fit yet: when and where it will, and what may run before.
//!
//! EASY backfill by nodes, not by counts. Running attempts are let go in the order of their ends, until the
//! request fits: that is its time, and those are its nodes. What is free *then*, less its own share, is what a job
//! without a known end (or with a later one) may take *now*; a job that ends before may take anything.
//!
//! An attempt without a `max_runtime` never frees anything by estimate. A request that waits for one has a place
//! without a time: after `starve_after` those nodes are held for it, oldest attempts first, while others go on being used.

use std::collections::BTreeSet;

use super::Running;
use super::nodes::{Choice, fit};
use crate::base::Instant;
use crate::core::api::NodeShare;
use crate::core::books::{Books, Need, NodeState};

/// Where and when one request will start.
#[derive(Debug, Clone)]
pub struct Reservation<K> {
    /// Whose.
    pub key: K,
    /// Its priority: higher ones do not care for the reservation.
    pub priority: u8,
    /// When, as far as ends are known.
    pub at: Option<Instant>,
    /// The nodes it will get.
    pub shares: Vec<NodeShare>,
    /// Nobody else gets them from now on, however long it takes.
    pub binding: bool,
    /// What is free at that time, less its share.
    pub(super) future: Books,
}

/// What is promised to others for a time.
pub struct Kept<'a, K> {
    /// When less of it is.
    pub moments: Vec<Instant>,
    /// Takes what is promised at a time from books in which some are let go.
    pub withhold: &'a dyn Fn(&mut Books, Instant, &dyn Fn(&K) -> bool),
}

/// An attempt that will have ended, or a moment at which less is promised: when, since when it waited, which.
type End<'r, K> = (Instant, i64, Option<(&'r K, &'r Running)>);

/// Finds it. None where it would not fit with everything let go.
pub fn reserve<'r, K: Copy + Ord + 'r>(
    books: &Books,
    running: impl Iterator<Item = (&'r K, &'r Running)>,
    (key, priority, ranks, need): (K, u8, u32, &Need),
    kept: Option<&Kept<K>>,
    choice: &Choice,
    now: Instant,
) -> Option<Reservation<K>> {
    let mut ends: Vec<End<K>> = running
        .map(|(key, r)| (r.ends.unwrap_or(Instant(u64::MAX)), r.request.since, Some((key, r))))
        .chain(kept.iter().flat_map(|k| &k.moments).map(|at| (*at, i64::MIN, None)))
        .collect();
    ends.sort_by_key(|(end, since, one)| (*end, *since, one.map(|(key, _)| *key)));
    let after = |n: usize| {
        let mut then = books.clone();
        for (_, r) in ends[..n].iter().filter_map(|(.., one)| *one) {
            then.give(&r.shares, &r.request.need);
        }
        then
    };
    // The same, less what is promised to others then.
    let beside = |n: usize, mut then: Books| {
        if let Some(kept) = kept {
            let gone: BTreeSet<K> =
                ends[..n].iter().filter_map(|(.., one)| one.map(|(key, _)| *key)).collect();
            let at = ends[..n].last().map_or(now, |(end, ..)| (*end).max(now));
            (kept.withhold)(&mut then, at, &|key| gone.contains(key));
        }
        then
    };
    let fits = |n: usize| fit(&beside(n, after(n)), ranks, need, &Choice { mix: None, ..*choice }).is_some();
    // Letting more go never takes a fit away: so the least number is found in growing steps from where the sums
    // would do, then by halving.
    let mut low = enough(books, &ends, ranks, need)?;
    let mut high = low;
    let mut step = 1;
    while !fits(high) {
        if high == ends.len() {
            return None;
        }
        low = high + 1;
        high = (high + step).min(ends.len());
        step *= 2;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let mut future = after(high);
    let shares = match kept {
        Some(_) => fit(&beside(high, future.clone()), ranks, need, choice)?.shares,
        None => fit(&future, ranks, need, choice)?.shares,
    };
    future.take(&shares, need);
    let last = ends[..high].last().map_or(now, |(end, ..)| *end);
    let at = (last.0 < u64::MAX).then_some(last.max(now));
    Some(Reservation { key, priority, at, shares, binding: at.is_some(), future })
}

/// How many must end at least, by the sums alone; none where all of them are not enough.
fn enough<K>(books: &Books, ends: &[End<K>], ranks: u32, need: &Need) -> Option<usize> {
    let of = |state: &NodeState| if need.gpus > 0 { state.milli() } else { state.cpus };
    let one = if need.gpus > 0 { u64::from(need.gpus) * u64::from(need.milli) } else { need.cpus };
    let wanted = u128::from(one) * u128::from(ranks);
    let does = |node: u32| books.nodes().get(node as usize).is_some_and(|n| need.takes(n.pool));
    let free = books.nodes().iter().filter(|n| need.takes(n.pool));
    let mut sum: u128 = free.map(|n| u128::from(of(n))).sum();
    if sum >= wanted {
        return Some(0);
    }
    for (n, (.., one)) in ends.iter().enumerate() {
        let Some((_, r)) = one else { continue };
        let theirs = &r.request.need;
        let each = if need.gpus > 0 { u64::from(theirs.gpus) * u64::from(theirs.milli) } else { theirs.cpus };
        let here = r.shares.iter().filter(|s| does(s.node)).count();
        sum += u128::from(each) * here as u128;
        if sum >= wanted {
            return Some(n + 1);
        }
    }
    None
}
