//! A cluster's own books: which nodes and GPUs are free, and which share a job would get.
//!
//! The cluster's peer is the only authority on them. Fixed-point integers and a fixed order: the same
//! books and the same job always give the same share.

use std::collections::BTreeMap;

use super::api::{Held, NodeShare};
use crate::base::{Bytes, MilliCpu};
use crate::model::report::{NodeCapacity, QueueReport};
use crate::model::{Resources, gpu};

/// Most nodes that are expanded; a larger cluster is refused by the configuration.
pub const NODES_MAX: usize = 100_000;

#[derive(Debug, Clone)]
struct Node {
    model: Option<String>,
    gpus: Vec<bool>,
    cpus_free: MilliCpu,
    memory_free: Bytes,
}

/// The cluster's nodes and what is taken of them.
#[derive(Debug, Clone, Default)]
pub struct Books {
    nodes: Vec<Node>,
    total: BTreeMap<String, u32>,
}

impl Node {
    fn gpus_free(&self) -> u32 {
        self.gpus.iter().filter(|taken| !**taken).count() as u32
    }
    fn fits(&self, need: &Resources) -> bool {
        model_does(self.model.as_deref(), need)
            && self.gpus_free() >= need.gpus
            && self.cpus_free >= need.cpus
            && self.memory_free >= need.memory
    }
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
        let mut books = Books::default();
        for group in groups {
            for _ in 0..group.count {
                if books.nodes.len() >= NODES_MAX {
                    return books;
                }
                books.nodes.push(Node {
                    model: group.gpu_model.clone(),
                    gpus: vec![false; group.gpus as usize],
                    cpus_free: group.cpus,
                    memory_free: group.memory,
                });
            }
            if let Some(model) = &group.gpu_model {
                *books.total.entry(model.clone()).or_default() += group.gpus.saturating_mul(group.count);
            }
        }
        books
    }

    /// A share for every rank, or none where not all fit at once. Ranks take the nodes that they fill
    /// best (fewest GPUs left over), then the lowest index; several ranks may share a node.
    pub fn fit(&self, ranks: u32, need: &Resources) -> Option<Vec<NodeShare>> {
        let mut trial: BTreeMap<usize, Node> = BTreeMap::new();
        let mut shares = Vec::with_capacity(ranks as usize);
        let mut order: Vec<usize> = (0..self.nodes.len()).filter(|&i| self.nodes[i].fits(need)).collect();
        order.sort_by_key(|&i| (self.nodes[i].gpus_free(), i));
        let mut at = 0;
        while shares.len() < ranks as usize {
            let &index = order.get(at)?;
            let node = trial.entry(index).or_insert_with(|| self.nodes[index].clone());
            if !node.fits(need) {
                at += 1;
                continue;
            }
            let share = NodeShare {
                node: index as u32,
                gpus: (0..node.gpus.len() as u32)
                    .filter(|&g| !node.gpus[g as usize])
                    .take(need.gpus as usize)
                    .collect(),
            };
            set(node, &share, need, true);
            shares.push(share);
        }
        Some(shares)
    }

    /// Takes a share. The caller got it from `fit`, or from the durable row of an attempt that it was
    /// given to; what no longer exists (the node went away) is passed over.
    pub fn take(&mut self, shares: &[NodeShare], need: &Resources) {
        self.mark(shares, need, true);
    }

    /// Gives a share back.
    pub fn give(&mut self, shares: &[NodeShare], need: &Resources) {
        self.mark(shares, need, false);
    }

    /// Others hold this: the last GPUs of the node, so that ours stay where they are.
    pub fn hold(&mut self, held: &Held) {
        let Some(node) = self.nodes.get_mut(held.node as usize) else { return };
        let free = node.gpus.iter_mut().rev().filter(|taken| !**taken);
        free.take(held.gpus as usize).for_each(|taken| *taken = true);
        node.cpus_free = MilliCpu(node.cpus_free.0.saturating_sub(held.cpus.0));
        node.memory_free = Bytes(node.memory_free.0.saturating_sub(held.memory.0));
    }

    /// Takes shares that were held before these books were made anew. GPUs that are others' now are exchanged for
    /// free ones of the node, and left out where there are none: what is not there is not held.
    pub fn retake(&mut self, shares: &mut [NodeShare], need: &Resources) {
        for share in shares {
            let Some(node) = self.nodes.get_mut(share.node as usize) else { continue };
            let free = |g: &u32| node.gpus.get(*g as usize).is_some_and(|taken| !taken);
            if !share.gpus.iter().all(free) {
                let all = 0..u32::try_from(node.gpus.len()).unwrap_or(u32::MAX);
                share.gpus = all.filter(free).take(need.gpus as usize).collect();
            }
            set(node, share, need, true);
        }
    }

    fn mark(&mut self, shares: &[NodeShare], need: &Resources, taken: bool) {
        for share in shares {
            if let Some(node) = self.nodes.get_mut(share.node as usize) {
                set(node, share, need, taken);
            }
        }
    }

    /// GPUs of a share by the model of their nodes.
    pub fn by_model(&self, shares: &[NodeShare], sum: &mut BTreeMap<String, u32>) {
        for share in shares {
            let model = self.nodes.get(share.node as usize).and_then(|node| node.model.as_ref());
            if let Some(model) = model.filter(|_| !share.gpus.is_empty()) {
                *sum.entry(model.clone()).or_default() += u32::try_from(share.gpus.len()).unwrap_or(u32::MAX);
            }
        }
    }

    /// Fills the free and total figures of a queue report.
    pub fn report(&self, report: &mut QueueReport) {
        report.gpus_total = self.total.clone();
        report.gpus_free = self.total.keys().map(|model| (model.clone(), 0)).collect();
        for node in &self.nodes {
            if let Some(model) = &node.model {
                *report.gpus_free.entry(model.clone()).or_default() += node.gpus_free();
            }
        }
        report.cpus_free = MilliCpu(self.nodes.iter().map(|n| n.cpus_free.0).sum());
        report.memory_free = Bytes(self.nodes.iter().fold(0, |sum, n| sum.saturating_add(n.memory_free.0)));
    }
}

fn set(node: &mut Node, share: &NodeShare, need: &Resources, taken: bool) {
    for &g in &share.gpus {
        if let Some(slot) = node.gpus.get_mut(g as usize) {
            *slot = taken;
        }
    }
    if taken {
        node.cpus_free = MilliCpu(node.cpus_free.0.saturating_sub(need.cpus.0));
        node.memory_free = Bytes(node.memory_free.0.saturating_sub(need.memory.0));
    } else {
        node.cpus_free = MilliCpu(node.cpus_free.0.saturating_add(need.cpus.0));
        node.memory_free = Bytes(node.memory_free.0.saturating_add(need.memory.0));
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
mod tests {
    use super::*;

    fn group(count: u32, gpus: u32, model: &str) -> NodeCapacity {
        NodeCapacity {
            name: "n".into(),
            count,
            gpu_model: Some(model.into()),
            gpus,
            gpu_memory: Bytes::gib(80),
            cpus: MilliCpu(64_000),
            memory: Bytes::gib(256),
            declared: true,
        }
    }
    fn need(gpus: u32) -> Resources {
        Resources { gpus, gpu: vec![], cpus: MilliCpu(1000), memory: Bytes(0) }
    }

    #[test]
    fn a_gang_fits_whole_or_not_at_all() {
        let mut books = Books::new(&[group(2, 8, "A100-80G")]);
        let gang = books.fit(2, &need(8)).expect("two nodes of 8");
        books.take(&gang, &need(8));
        assert_eq!(books.fit(1, &need(1)), None);
        books.give(&gang[..1], &need(8));
        assert_eq!(books.fit(2, &need(8)), None);
        assert_eq!(books.fit(2, &need(4)).expect("half nodes").len(), 2);
    }

    #[test]
    fn the_fullest_node_that_fits_is_taken_first() {
        let mut books = Books::new(&[group(2, 8, "H100")]);
        let first = books.fit(1, &need(6)).expect("free");
        books.take(&first, &need(6));
        assert_eq!(books.fit(1, &need(2)).expect("fits")[0].node, first[0].node);
        assert_eq!(books.fit(1, &need(3)).expect("fits")[0].node, 1 - first[0].node);
    }

    #[test]
    fn what_is_reserved_is_told_by_the_nodes_own_model() {
        let books = Books::new(&[group(2, 8, "A100-80G"), group(1, 4, "H100")]);
        let shares = books.fit(2, &need(6)).expect("any model will do");
        let mut sum = BTreeMap::new();
        books.by_model(&shares, &mut sum);
        assert_eq!(sum, BTreeMap::from([("A100-80G".to_owned(), 12)]));
        books.by_model(
            &[NodeShare { node: 99, gpus: vec![0] }, NodeShare { node: 0, gpus: vec![] }],
            &mut sum,
        );
        assert_eq!(sum.len(), 1, "nothing for a node that is gone, nothing for a share without GPUs");
    }

    #[test]
    fn what_others_hold_is_not_free_and_ours_moves_aside() {
        let held = |gpus| Held { node: 0, gpus, cpus: MilliCpu(1_000), memory: Bytes(0) };
        let mut books = Books::new(&[group(1, 4, "H100")]);
        books.hold(&held(3));
        assert_eq!(books.fit(1, &need(2)), None);
        let mut ours = vec![NodeShare { node: 0, gpus: vec![3] }, NodeShare { node: 9, gpus: vec![0] }];
        books.retake(&mut ours, &need(1));
        assert_eq!(ours[0].gpus, [0], "the only one that is left");
        let mut more = vec![NodeShare { node: 0, gpus: vec![1] }];
        books.retake(&mut more, &need(1));
        assert!(more[0].gpus.is_empty(), "there is none: {more:?}");
        books.give(&ours, &need(1));
        assert!(books.fit(1, &need(1)).is_some() && books.fit(1, &need(2)).is_none());
        books.hold(&held(9));
        assert_eq!(books.fit(1, &need(1)), None);
    }

    #[test]
    fn models_are_not_mixed_up() {
        let books = Books::new(&[group(1, 8, "A100-40G")]);
        let want = Resources { gpu: vec!["A100-80G".into()], ..need(1) };
        assert_eq!(books.fit(1, &want), None);
        assert!(!fits_empty(&[group(1, 8, "L40")], 1, &Resources { gpu: vec!["L4".into()], ..need(1) }));
        assert!(fits_empty(&[group(2, 8, "H100")], 4, &need(4)));
        assert!(!fits_empty(&[group(2, 8, "H100")], 3, &need(8)));
        assert!(fits_empty(&[], 0, &need(0)));
    }
}
