//! The reservation of a request that does not fit yet: when and where it will, and what may run before.
//!
//! EASY backfill by nodes, not by counts. Running attempts are let go in the order of their ends, until the
//! request fits: that is its time, and those are its nodes. What is free *then*, less its own share, is what a job
//! without a known end (or with a later one) may take *now*; a job that ends before may take anything.
//!
//! An attempt without a `max_runtime` never frees anything by estimate. A request that waits for one has a place
//! without a time: after `starve_after` those nodes are held for it, oldest attempts first, while others go on being used.

use super::Running;
use super::nodes::{Choice, fit};
use crate::base::Instant;
use crate::core::api::NodeShare;
use crate::core::books::{Books, Need};

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

/// Finds it. None where it would not fit with everything let go.
pub fn reserve<'r, K: Copy + Ord + 'r>(
    books: &Books,
    running: impl Iterator<Item = (&'r K, &'r Running)>,
    (key, priority, ranks, need): (K, u8, u32, &Need),
    choice: &Choice,
    now: Instant,
) -> Option<Reservation<K>> {
    let mut ends: Vec<(Instant, i64, &K, &Running)> =
        running.map(|(key, r)| (r.ends.unwrap_or(Instant(u64::MAX)), r.request.since, key, r)).collect();
    ends.sort_by_key(|(end, since, key, _)| (*end, *since, **key));
    let after = |n: usize| {
        let mut then = books.clone();
        for (.., r) in &ends[..n] {
            then.give(&r.shares, &r.request.need);
        }
        then
    };
    // Letting more go never takes a fit away: so the least number is found by halving.
    let fits = |n: usize| fit(&after(n), ranks, need, &Choice { mix: None, ..*choice }).is_some();
    let (mut low, mut high) = (0, ends.len());
    if !fits(high) {
        return None;
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
    let shares = fit(&future, ranks, need, choice)?.shares;
    future.take(&shares, need);
    let last = ends[..high].last().map_or(now, |(end, ..)| *end);
    let at = (last.0 < u64::MAX).then_some(last.max(now));
    Some(Reservation { key, priority, at, shares, binding: at.is_some(), future })
}
