//! How far apart the GPUs of a node are, and which of the free ones belong together.

use serde::{Deserialize, Serialize};

/// GPUs of a node whose distances are kept; beyond it all count as equally far.
pub const GPUS_MAX: usize = 64;
/// Sets that are compared one by one; with more, near ones are gathered around each GPU in turn.
const SETS_MAX: u64 = 6_000;

/// Distances between the GPUs of a node: 0 to itself, 1 over NVLink, 2 under one PCIe switch, 3 under one CPU,
/// 4 across CPUs. Symmetric; a pair that is not known is at 4.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Topology {
    rows: Vec<Vec<u8>>,
}

/// Direct GPU-to-GPU link.
pub const NVLINK: u8 = 1;
/// Under one PCIe switch.
pub const PCIE: u8 = 2;
/// Under one CPU (NUMA node).
pub const NUMA: u8 = 3;
/// Anything else.
pub const FAR: u8 = 4;

impl Topology {
    /// From sets of GPUs that are this near to each other; the nearest counts.
    pub fn of_sets(gpus: usize, sets: &[(u8, Vec<u32>)]) -> Self {
        let gpus = gpus.min(GPUS_MAX);
        let mut rows = vec![vec![FAR; gpus]; gpus];
        for (i, row) in rows.iter_mut().enumerate() {
            row[i] = 0;
        }
        for (distance, set) in sets {
            for a in set.iter().map(|g| *g as usize).filter(|g| *g < gpus) {
                for b in set.iter().map(|g| *g as usize).filter(|g| *g < gpus && *g != a) {
                    rows[a][b] = rows[a][b].min(*distance);
                }
            }
        }
        Self { rows }
    }

    /// Nothing is known: all pairs alike.
    pub fn is_flat(&self) -> bool {
        let mut all = self.rows.iter().enumerate().flat_map(|(i, row)| row.iter().skip(i + 1));
        let first = all.next();
        all.all(|d| Some(d) == first)
    }

    fn distance(&self, a: u32, b: u32) -> u64 {
        let row = self.rows.get(a as usize);
        u64::from(row.and_then(|r| r.get(b as usize)).copied().unwrap_or(FAR))
    }

    /// The sum of all pairs' distances.
    pub fn spread(&self, gpus: &[u32]) -> u64 {
        let pairs = gpus.iter().enumerate().flat_map(|(i, a)| gpus[i + 1..].iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| self.distance(a, b)).sum()
    }

    /// The tightest set of so many of the free GPUs; of equals the one that leaves the tightest rest, then the
    /// lowest numbers. None where there are too few.
    pub fn tightest(&self, free: &[u32], count: usize) -> Option<Vec<u32>> {
        if free.len() < count {
            return None;
        }
        if count == free.len() || count == 0 || self.rows.is_empty() || self.is_flat() {
            return Some(free.iter().take(count).copied().collect());
        }
        let rest = |set: &[u32]| -> Vec<u32> { free.iter().filter(|g| !set.contains(g)).copied().collect() };
        let cost = |set: &Vec<u32>| (self.spread(set), self.spread(&rest(set)));
        let sets: Vec<Vec<u32>> = if binomial(free.len(), count) <= SETS_MAX {
            subsets(free, count)
        } else {
            free.iter().map(|seed| self.around(*seed, free, count)).collect()
        };
        sets.into_iter().map(|set| (cost(&set), set)).min().map(|(_, set)| set)
    }

    /// Takes the nearest to all that it has, again and again.
    fn around(&self, seed: u32, free: &[u32], count: usize) -> Vec<u32> {
        let mut set = vec![seed];
        while set.len() < count {
            let near = |g: &u32| (set.iter().map(|s| self.distance(*s, *g)).sum::<u64>(), *g);
            let Some(next) = free.iter().copied().filter(|g| !set.contains(g)).min_by_key(near) else {
                break;
            };
            set.push(next);
        }
        set.sort_unstable();
        set
    }
}

fn binomial(n: usize, k: usize) -> u64 {
    let k = k.min(n - k) as u64;
    (0..k).fold(1u64, |all, i| all.saturating_mul(n as u64 - i) / (i + 1))
}

fn subsets(of: &[u32], count: usize) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    let mut at: Vec<usize> = (0..count).collect();
    loop {
        out.push(at.iter().map(|i| of[*i]).collect());
        let Some(i) = (0..count).rev().find(|i| at[*i] < of.len() - count + i) else { return out };
        at[i] += 1;
        for j in i + 1..count {
            at[j] = at[j - 1] + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two islands of four over NVLink, pairs under one switch.
    fn eight() -> Topology {
        let islands = [(NVLINK, vec![0, 1, 2, 3]), (NVLINK, vec![4, 5, 6, 7])];
        Topology::of_sets(8, &islands)
    }

    #[test]
    fn the_tightest_set_is_taken_and_leaves_the_tightest_rest() {
        let t = eight();
        let all: Vec<u32> = (0..8).collect();
        assert_eq!(t.tightest(&all, 4), Some(vec![0, 1, 2, 3]));
        // Two of a broken island, so that the whole one stays whole.
        assert_eq!(t.tightest(&[2, 3, 4, 5, 6, 7], 2), Some(vec![2, 3]));
        assert_eq!(t.tightest(&[3, 4, 5, 6], 3), Some(vec![4, 5, 6]));
        assert_eq!(t.tightest(&[0, 4], 3), None);
        assert_eq!(t.tightest(&[], 0), Some(vec![]));
    }

    #[test]
    fn pcie_counts_below_nvlink() {
        let t = Topology::of_sets(4, &[(PCIE, vec![0, 1]), (PCIE, vec![2, 3]), (NVLINK, vec![1, 2])]);
        assert_eq!(t.tightest(&[0, 1, 2, 3], 2), Some(vec![1, 2]));
        assert_eq!(t.tightest(&[0, 1, 3], 2), Some(vec![0, 1]));
    }

    #[test]
    fn large_nodes_are_gathered_around_each_gpu() {
        let islands: Vec<(u8, Vec<u32>)> = (0..8).map(|i| (NVLINK, (i * 8..i * 8 + 8).collect())).collect();
        let t = Topology::of_sets(64, &islands);
        let all: Vec<u32> = (0..64).collect();
        let set = t.tightest(&all, 8).expect("room");
        assert_eq!(t.spread(&set), 28, "one island: {set:?}");
        // More GPUs than are known: no panic, and still a set.
        assert_eq!(t.tightest(&(60..100).collect::<Vec<_>>(), 30).map(|s| s.len()), Some(30));
    }

    #[test]
    fn of_nothing_known_the_lowest_are_taken() {
        assert_eq!(Topology::default().tightest(&[1, 5, 9], 2), Some(vec![1, 5]));
        assert!(Topology::of_sets(8, &[]).is_flat());
        assert!(!eight().is_flat());
    }
}
