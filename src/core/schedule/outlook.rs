//! When what waits will start, as far as can be known.
//!
//! Per GPU model a line of what becomes free and when; requests take from it in order. It knows counts, not nodes,
//! and nothing of an attempt that has no `max_runtime`: where one of these is needed the start is not known.

use std::collections::BTreeMap;

use super::{Running, Scheduler};
use crate::base::{Instant, Span};
use crate::core::api::NodeShare;
use crate::core::books::{Need, WHOLE};

/// Requests whose start is estimated; the rest only know their place.
const ESTIMATED_MAX: usize = 256;
/// Runtimes of ended attempts weigh so much in the mean, of 1.
const MEAN_PART: f64 = 0.05;
/// The mean before anything has ended.
const MEAN_FIRST: f64 = 600.0;

/// One waiting request's prospects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prospect<K> {
    /// Whose.
    pub key: K,
    /// Requests in front of it.
    pub ahead: u32,
    /// How long until it starts, if that can be known.
    pub starts_in: Option<Span>,
}

/// How many of those in front are named to who waits.
pub const FRONT: usize = 3;

/// Mean runtime of what has ended.
#[derive(Debug, Clone, Copy)]
pub struct MeanRuntime(f64);

impl Default for MeanRuntime {
    fn default() -> Self {
        Self(MEAN_FIRST)
    }
}

impl MeanRuntime {
    /// One more has ended.
    pub fn note(&mut self, ran: Span) {
        self.0 += (ran.as_secs_f64().min(30.0 * 86_400.0) - self.0) * MEAN_PART;
    }
    /// As it stands.
    pub fn get(self) -> Span {
        Span((self.0 * 1e6) as u64)
    }
}

/// What is free over time, counted over some pools together.
struct Line {
    /// Free thousandths of GPUs (or of cores, for the line of requests without GPUs), by time.
    free: BTreeMap<Instant, i128>,
}

impl Line {
    fn change(&mut self, at: Instant, by: i128) {
        *self.free.entry(at).or_default() += by;
    }
    /// The first time from which so much is free and stays so.
    fn first(&self, want: i128) -> Option<Instant> {
        let (mut sum, mut since) = (0, None);
        for (at, change) in &self.free {
            sum += change;
            if sum < want {
                since = None;
            } else if since.is_none() {
                since = Some(*at);
            }
        }
        since
    }
}

fn amount(need: &Need, ranks: usize) -> i128 {
    let one = if need.gpus > 0 { u64::from(need.gpus) * u64::from(need.milli) } else { need.cpus };
    i128::from(one) * ranks as i128
}

impl<K: Copy + Ord> Scheduler<K> {
    /// The prospects of the first in line: at most `most`.
    pub fn prospects(&self, now: Instant, most: usize) -> Vec<Prospect<K>> {
        let mut lines: BTreeMap<Vec<u16>, Line> = BTreeMap::new();
        let mut out = Vec::new();
        for (ahead, key) in self.in_order(now).take(most).enumerate() {
            let Some(waiting) = self.waiting.get(&key) else { continue };
            let reserved = self.reservations.iter().find(|r| r.key == key).map(|r| r.at);
            let starts_in = if ahead < ESTIMATED_MAX {
                let pools = if waiting.request.need.gpus > 0 {
                    waiting.request.need.pools.clone()
                } else {
                    Vec::new()
                };
                let line = lines.entry(pools).or_insert_with_key(|pools| self.line(pools, now));
                let want = amount(&waiting.request.need, waiting.request.ranks as usize);
                let counted = line.first(want);
                // The reservation knows the nodes.
                let start = reserved.unwrap_or(counted);
                if let Some(start) = start {
                    line.change(start, -want);
                    let end = waiting.request.max_runtime.map(|run| start + run);
                    if let Some(end) = end {
                        line.change(end, want);
                    }
                }
                start.map(|at| at.since(now))
            } else {
                None
            };
            let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
            out.push(Prospect { key, ahead, starts_in });
        }
        out
    }

    fn line(&self, pools: &[u16], now: Instant) -> Line {
        let mut line = Line { free: BTreeMap::new() };
        let free: u64 = match pools {
            [] => self.books.nodes().iter().map(|n| n.cpus).fold(0, u64::saturating_add),
            _ => {
                let of = self.books.nodes().iter().filter(|n| pools.contains(&n.pool));
                of.map(|n| u64::from(n.whole()) * u64::from(WHOLE)).sum()
            }
        };
        line.change(now, i128::from(free));
        for r in self.running.values() {
            let Some(end) = r.ends else { continue };
            line.change(end.max(now), self.part_of(r, pools));
        }
        for p in self.promises().iter().filter(|p| p.until > now && !pools.is_empty()) {
            let here = |s: &&NodeShare| {
                self.books.nodes().get(s.node as usize).is_some_and(|n| pools.contains(&n.pool))
            };
            // What its tenant's attempts hold of it is counted as theirs.
            let (used, _) = self.use_of(p);
            let pinned: usize = p.shares.iter().filter(here).map(|s| s.gpus.len()).sum();
            let kept = i128::from((pinned as u64).saturating_sub(u64::from(used)) * u64::from(WHOLE));
            line.change(p.from.max(now), -kept);
            line.change(p.until, kept);
        }
        line
    }

    /// What an attempt holds of these pools.
    fn part_of(&self, r: &Running, pools: &[u16]) -> i128 {
        let here = |node: u32| {
            self.books.nodes().get(node as usize).is_some_and(|n| pools.is_empty() || pools.contains(&n.pool))
        };
        let ranks = r.shares.iter().filter(|s| here(s.node)).count();
        match pools {
            [] => i128::from(r.request.need.cpus) * ranks as i128,
            _ => i128::from(r.request.need.gpus) * i128::from(r.request.need.milli) * ranks as i128,
        }
    }

    /// How long a small request that comes now will wait, by GPU model ("" without GPUs): what waits times the
    /// mean runtime, spread over what there is; nothing where something is free and nobody waits. `below` are the GPUs
    /// that others wait for in the queue of the scheduler below, of whatever model.
    pub fn waits(&self, now: Instant, below: u64) -> BTreeMap<String, Span> {
        let mut queued: Vec<f64> = vec![0.0; self.books.pools().len()];
        for (need, ranks) in &self.queued_needs {
            let pools = if need.gpus > 0 { need.pools.as_slice() } else { &[0] };
            for pool in pools {
                if let Some(sum) = queued.get_mut(*pool as usize) {
                    *sum += amount(need, 1) as f64 * *ranks as f64 / pools.len() as f64;
                }
            }
        }
        let mut total: Vec<f64> = vec![0.0; queued.len()];
        let mut free = total.clone();
        for node in self.books.nodes() {
            total[node.pool as usize] += node.gpus.len() as f64 * f64::from(WHOLE);
            free[node.pool as usize] += f64::from(node.whole()) * f64::from(WHOLE);
            free[0] += node.cpus as f64;
        }
        for share in self.promises().iter().filter(|p| p.runs(now)).flat_map(|p| self.use_of(p).1) {
            if let Some(node) = self.books.nodes().get(share.node as usize) {
                free[node.pool as usize] -= share.gpus.len() as f64 * f64::from(WHOLE);
            }
        }
        let gpus: f64 = total.iter().sum();
        for (sum, part) in queued.iter_mut().zip(&total).filter(|(_, part)| **part > 0.0) {
            *sum += below as f64 * f64::from(WHOLE) * part / gpus;
        }
        total[0] = self.books.totals().cpus as f64;
        let mean = self.mean.get().as_secs_f64();
        let wait = |pool: usize| {
            let full = free[pool] < f64::from(WHOLE);
            match total[pool] > 0.0 && (full || queued[pool] > 0.0) {
                // Full and nobody waits: the next end is, on average, a mean runtime over all of them away.
                true => Span((mean * (queued[pool] + f64::from(WHOLE)) / total[pool] * 1e6) as u64),
                false => Span::ZERO,
            }
        };
        let names = self.books.pools().iter().map(|m| m.clone().unwrap_or_default()).enumerate();
        names.map(|(pool, name)| (name, wait(pool))).collect()
    }
}
