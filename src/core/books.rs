//! A cluster's own books: which nodes and GPUs are free.
//!
//! The cluster's peer is the only authority on them. Fixed-point integers and a fixed order: the same books and
//! the same job always give the same share. Which of the free nodes a job gets is `schedule::nodes`. A GPU has
//! thousandths, so that GPU shares can be counted; a job of today takes whole ones.

use std::collections::{BTreeMap, BTreeSet};

use super::api::{Held, NodeShare};
use super::schedule::nodes::{Choice, fit};
use crate::base::{Bytes, MilliCpu};
use crate::model::report::{CapacityReport, NodeCapacity, QueueReport};
use crate::model::{Resources, gpu};

/// Most nodes that are expanded; a larger cluster is refused by the configuration.
pub const NODES_MAX: usize = 100_000;
/// A whole GPU.
pub const WHOLE: u16 = 1_000;

/// What is free of one node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeState {
    /// Index of its GPU model among the books' pools.
    pub pool: u16,
    /// Index of its node group, for its topology.
    pub group: u16,
    /// Free thousandths of each GPU.
    pub gpus: Vec<u16>,
    /// Free thousandths of a core.
    pub cpus: u64,
    /// Free bytes.
    pub memory: u64,
}

impl NodeState {
    /// GPUs that nobody has a part of.
    pub fn whole(&self) -> u32 {
        self.gpus.iter().filter(|g| **g == WHOLE).count() as u32
    }
    /// Free thousandths of all GPUs.
    pub fn milli(&self) -> u64 {
        self.gpus.iter().map(|g| u64::from(*g)).sum()
    }
    /// One rank could start here.
    pub fn fits(&self, need: &Need) -> bool {
        need.takes(self.pool) && self.cpus >= need.cpus && self.memory >= need.memory && self.has_gpus(need)
    }
    pub(super) fn has_gpus(&self, need: &Need) -> bool {
        need.gpus == 0
            || self.gpus.iter().filter(|g| **g >= need.milli).take(need.gpus as usize).count()
                == need.gpus as usize
    }
    /// Takes one rank's share, or gives it back. What no longer exists is passed over.
    pub fn set(&mut self, gpus: &[u32], need: &Need, taken: bool) {
        for g in gpus {
            if let Some(free) = self.gpus.get_mut(*g as usize) {
                *free = match taken {
                    true => free.saturating_sub(need.milli),
                    false => free.saturating_add(need.milli).min(WHOLE),
                };
            }
        }
        let moved = |free: u64, part: u64| {
            if taken { free.saturating_sub(part) } else { free.saturating_add(part) }
        };
        self.cpus = moved(self.cpus, need.cpus);
        self.memory = moved(self.memory, need.memory);
    }
    /// What is free both here and there.
    pub fn and(&self, other: &NodeState) -> NodeState {
        NodeState {
            gpus: self.gpus.iter().zip(&other.gpus).map(|(a, b)| *a.min(b)).collect(),
            cpus: self.cpus.min(other.cpus),
            memory: self.memory.min(other.memory),
            ..*self
        }
    }
}

/// What one rank needs, in the terms of certain books.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Need {
    /// Pools that will do; not looked at where no GPU is asked for.
    pub pools: Vec<u16>,
    /// GPUs.
    pub gpus: u32,
    /// Of each of them, thousandths.
    pub milli: u16,
    /// Thousandths of a core.
    pub cpus: u64,
    /// Bytes.
    pub memory: u64,
}

impl Need {
    /// Nodes of this pool will do.
    pub fn takes(&self, pool: u16) -> bool {
        self.gpus == 0 || self.pools.contains(&pool)
    }
}

/// The cluster's nodes and what is free of them.
#[derive(Debug, Clone, Default)]
pub struct Books {
    nodes: Vec<NodeState>,
    /// GPU models; the first is "no GPU".
    pools: Vec<Option<String>>,
    groups: Vec<String>,
    total: BTreeMap<String, u32>,
    totals: Totals,
    /// Free thousandths of all GPUs.
    free_milli: u64,
    /// Nodes of a pool by whole free GPUs: what a job fits into best is found without looking at all.
    index: Vec<BTreeMap<u32, BTreeSet<u32>>>,
}

/// Different counts of free GPUs on nodes in use that are told.
const LEFT_MAX: usize = 64;

/// All that the cluster has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Thousandths of a GPU.
    pub milli: u64,
    /// Thousandths of a core.
    pub cpus: u64,
    /// Bytes.
    pub memory: u64,
}

/// True if a node of this model will do for the need.
pub fn model_does(model: Option<&str>, need: &Resources) -> bool {
    if need.gpus == 0 {
        return true;
    }
    model.is_some_and(|have| need.gpu.is_empty() || need.gpu.iter().any(|wanted| gpu::matches(wanted, have)))
}

impl Books {
    /// All free.
    pub fn new(groups: &[NodeCapacity]) -> Self {
        Self::with_pools(groups, vec![None])
    }

    /// Other nodes, all free; what was needed in the old books' terms is still needed in theirs.
    pub fn renewed(&self, groups: &[NodeCapacity]) -> Self {
        Self::with_pools(groups, self.pools.clone())
    }

    fn with_pools(groups: &[NodeCapacity], pools: Vec<Option<String>>) -> Self {
        let mut books = Books { index: vec![BTreeMap::new(); pools.len()], pools, ..Books::default() };
        for group in groups {
            let pool = match books.pools.iter().position(|p| *p == group.gpu_model) {
                Some(at) => at,
                None => {
                    books.pools.push(group.gpu_model.clone());
                    books.index.push(BTreeMap::new());
                    books.pools.len() - 1
                }
            };
            let (Ok(pool), Ok(kind)) = (u16::try_from(pool), u16::try_from(books.groups.len())) else {
                return books;
            };
            books.groups.push(group.name.clone());
            for _ in 0..group.count {
                if books.nodes.len() >= NODES_MAX {
                    return books;
                }
                let node = NodeState {
                    pool,
                    group: kind,
                    gpus: vec![WHOLE; group.gpus as usize],
                    cpus: group.cpus.0,
                    memory: group.memory.0,
                };
                books.totals.milli += node.milli();
                books.free_milli += node.milli();
                books.totals.cpus = books.totals.cpus.saturating_add(node.cpus);
                books.totals.memory = books.totals.memory.saturating_add(node.memory);
                let at = books.nodes.len() as u32;
                books.index[pool as usize].entry(node.whole()).or_default().insert(at);
                books.nodes.push(node);
                if let Some(model) = &group.gpu_model {
                    let total = books.total.entry(model.clone()).or_default();
                    *total = total.saturating_add(group.gpus);
                }
            }
        }
        books
    }

    /// What one rank needs, in these books' terms.
    pub fn need(&self, resources: &Resources) -> Need {
        let does = |at: &u16| {
            resources.gpus > 0
                && model_does(self.pools.get(*at as usize).and_then(|p| p.as_deref()), resources)
        };
        Need {
            pools: (0..self.pools.len() as u16).filter(does).collect(),
            gpus: resources.gpus,
            milli: WHOLE,
            cpus: resources.cpus.0,
            memory: resources.memory.0,
        }
    }

    /// A share for every rank on the fullest nodes that will do, or none where not all fit at once.
    pub fn fit(&self, ranks: u32, need: &Need) -> Option<Vec<NodeShare>> {
        fit(self, ranks, need, &Choice::default()).map(|found| found.shares)
    }

    /// All nodes, by index.
    pub fn nodes(&self) -> &[NodeState] {
        &self.nodes
    }
    /// The pools' models; the first is "no GPU".
    pub fn pools(&self) -> &[Option<String>] {
        &self.pools
    }
    /// The node groups' names.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }
    /// Free thousandths of all GPUs.
    pub fn free_milli(&self) -> u64 {
        self.free_milli
    }
    /// What there is in all.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Nodes that may have the GPUs for one rank, the fullest first; without GPUs, nodes that have none first.
    pub fn candidates<'a>(&'a self, need: &'a Need) -> impl Iterator<Item = u32> + 'a {
        let least = if need.gpus > 0 && need.milli == WHOLE { need.gpus } else { 0 };
        let most = self.index.iter().filter_map(|pool| pool.last_key_value()).map(|(n, _)| *n).max();
        let of = move |free: u32| {
            let pools = self.index.iter().enumerate();
            let pools = pools.filter(move |(pool, _)| need.takes(*pool as u16));
            pools.filter_map(move |(_, by_free)| by_free.get(&free)).flatten().copied()
        };
        (least..=most.unwrap_or(0)).filter(move |_| most.is_some()).flat_map(of)
    }

    /// Takes a share. The caller got it from a fit in these books, or from the durable row of an attempt that it
    /// was given to; what no longer exists (the node went away) is passed over.
    pub fn take(&mut self, shares: &[NodeShare], need: &Need) {
        self.mark(shares, need, true);
    }
    /// Gives a share back.
    pub fn give(&mut self, shares: &[NodeShare], need: &Need) {
        self.mark(shares, need, false);
    }

    /// The same, where GPUs are free only if they are among these, by node.
    pub fn only(&self, gpus: &BTreeMap<u32, BTreeSet<u32>>) -> Books {
        let mut books = self.clone();
        let all: Vec<NodeShare> = (0u32..)
            .zip(&self.nodes)
            .filter(|(_, node)| !node.gpus.is_empty())
            .map(|(node, state)| {
                let kept = |g: &u32| gpus.get(&node).is_some_and(|kept| kept.contains(g));
                NodeShare { node, gpus: (0..state.gpus.len() as u32).filter(|g| !kept(g)).collect() }
            })
            .collect();
        books.take(&all, &Need { milli: WHOLE, ..Need::default() });
        books
    }

    /// Others hold this: the last GPUs of the node, so that ours stay where they are.
    pub fn hold(&mut self, held: &Held) {
        let Some(node) = self.nodes.get(held.node as usize) else { return };
        let all = 0..node.gpus.len() as u32;
        let free = all.rev().filter(|g| node.gpus.get(*g as usize) == Some(&WHOLE));
        let gpus = free.take(held.gpus as usize).collect();
        let (cpus, memory) = (held.cpus.0, held.memory.0);
        let need = Need { gpus: held.gpus, milli: WHOLE, cpus, memory, ..Need::default() };
        self.mark(&[NodeShare { node: held.node, gpus }], &need, true);
    }

    /// Takes shares that were held before these books were made. GPUs that are others' now are exchanged for free
    /// ones of the node, and left out where there are none: what is not there is not held.
    pub fn retake(&mut self, shares: &mut [NodeShare], need: &Need) {
        for share in shares {
            let Some(node) = self.nodes.get(share.node as usize) else { continue };
            let free = |g: &u32| node.gpus.get(*g as usize).is_some_and(|free| *free >= need.milli);
            if share.gpus.len() != need.gpus as usize || !share.gpus.iter().all(free) {
                share.gpus = (0..node.gpus.len() as u32).filter(free).take(need.gpus as usize).collect();
            }
            self.mark(std::slice::from_ref(share), need, true);
        }
    }

    fn mark(&mut self, shares: &[NodeShare], need: &Need, taken: bool) {
        for share in shares {
            let Some(node) = self.nodes.get_mut(share.node as usize) else { continue };
            let (before, milli) = (node.whole(), node.milli());
            node.set(&share.gpus, need, taken);
            self.free_milli = (self.free_milli + node.milli()).saturating_sub(milli);
            let (pool, after) = (node.pool as usize, node.whole());
            if let Some(by_free) = self.index.get_mut(pool).filter(|_| before != after) {
                if let Some(set) = by_free.get_mut(&before) {
                    set.remove(&share.node);
                    if set.is_empty() {
                        by_free.remove(&before);
                    }
                }
                by_free.entry(after).or_default().insert(share.node);
            }
        }
    }

    /// GPUs of a share by the model of their nodes.
    pub fn by_model(&self, shares: &[NodeShare], sum: &mut BTreeMap<String, u32>) {
        for share in shares {
            let node = self.nodes.get(share.node as usize);
            let model = node.and_then(|n| self.pools.get(n.pool as usize)).and_then(|m| m.as_ref());
            if let Some(model) = model.filter(|_| !share.gpus.is_empty()) {
                let part = sum.entry(model.clone()).or_default();
                *part = part.saturating_add(u32::try_from(share.gpus.len()).unwrap_or(u32::MAX));
            }
        }
    }

    /// Fills the free and total figures of a queue report.
    pub fn report(&self, report: &mut QueueReport) {
        report.gpus_total = self.total.clone();
        report.gpus_left.clear();
        report.gpus_free = self.total.keys().map(|model| (model.clone(), 0)).collect();
        for (model, by_free) in self.pools.iter().zip(&self.index) {
            let Some(model) = model else { continue };
            let free: u32 = by_free.iter().map(|(free, nodes)| free * nodes.len() as u32).sum();
            *report.gpus_free.entry(model.clone()).or_default() = free;
            let used = |n: &&u32, free: u32| {
                self.nodes.get(**n as usize).is_some_and(|node| node.gpus.len() > free as usize)
            };
            let left = by_free.iter().filter(|(free, _)| **free > 0);
            let left =
                left.map(|(free, nodes)| (*free, nodes.iter().filter(|n| used(n, *free)).count() as u32));
            let left: BTreeMap<u32, u32> = left.filter(|(_, nodes)| *nodes > 0).take(LEFT_MAX).collect();
            if !left.is_empty() {
                report.gpus_left.insert(model.clone(), left);
            }
        }
        // A report that says more than one may is not published at all.
        let cpus = self.nodes.iter().fold(0, |sum: u64, n| sum.saturating_add(n.cpus));
        let memory = self.nodes.iter().fold(0, |sum: u64, n| sum.saturating_add(n.memory));
        report.cpus_free = MilliCpu(cpus).min(QueueReport::CPUS_FREE_MAX);
        report.memory_free = Bytes(memory).min(CapacityReport::MEMORY_MAX);
    }
}

/// True if this many ranks would fit on these node groups when all is free.
pub fn fits_empty(groups: &[NodeCapacity], ranks: u32, need: &Resources) -> bool {
    let mut room: u64 = 0;
    for group in groups.iter().filter(|g| model_does(g.gpu_model.as_deref(), need)) {
        let per = |have: u64, want: u64| have.checked_div(want).unwrap_or(u64::MAX);
        let each = per(u64::from(group.gpus), u64::from(need.gpus))
            .min(per(group.cpus.0, need.cpus.0))
            .min(per(group.memory.0, need.memory.0));
        room = room.saturating_add(each.saturating_mul(u64::from(group.count)));
    }
    room >= u64::from(ranks)
}

#[cfg(test)]
#[path = "books_tests.rs"]
mod tests;
