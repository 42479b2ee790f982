//! Which of the free nodes a job gets: the least fragmentation, then the tightest GPUs, then the fullest node.
//!
//! **Fragmentation** (after "Beware of Fragmentation", FGD, ATC 2023): what is free of a node's GPUs and could not
//! be used by a request that is drawn from the recent mix, in thousandths of a GPU, as an expectation. A request
//! without GPUs can use none of them. The node whose expectation grows least is taken.

use std::collections::BTreeMap;

use crate::core::api::NodeShare;
use crate::core::books::{Books, Need, NodeState, WHOLE};
use crate::model::topology::Topology;

/// Kinds of requests that are remembered.
const KINDS_MAX: usize = 64;
/// Nodes that fit and are compared for one rank; the fullest come first.
const COMPARED_MAX: usize = 4_096;
/// Beyond so many ranks the fullest nodes are taken without comparing: a gang of that size takes whole nodes.
const RANKS_COMPARED_MAX: u32 = 64;
/// Nodes of equal fragmentation whose GPUs are looked at for a tight set.
const TIGHT_MAX: usize = 16;
/// Expectations that differ by less than this, in thousandths of a GPU, count as equal, and the fullest node is taken. The mix
/// is a guess, and what is nearly equal had better be kept together: docs/scheduling.md has what it is worth.
const STEP: i128 = 40;
/// The mix forgets half of what it saw after so many requests.
const MIX_HALVES: u64 = 4_096;

/// What kinds of requests came lately, and how often.
#[derive(Debug, Clone, Default)]
pub struct Mix {
    kinds: BTreeMap<Need, u64>,
    seen: u64,
}

impl Mix {
    /// One request more: each of its ranks counts as one.
    pub fn note(&mut self, need: &Need, ranks: u32) {
        let weight = u64::from(ranks.clamp(1, 64));
        self.seen += weight;
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(need) {
            let rarest = self.kinds.iter().min_by_key(|(_, n)| **n).map(|(k, _)| k.clone());
            if let Some(rarest) = rarest {
                self.kinds.remove(&rarest);
            }
        }
        *self.kinds.entry(need.clone()).or_default() += weight;
        if self.seen >= MIX_HALVES {
            self.seen /= 2;
            self.kinds.retain(|_, n| {
                *n /= 2;
                *n > 0
            });
        }
    }

    /// A mix that is known beforehand.
    pub fn of(kinds: impl IntoIterator<Item = (Need, u64)>) -> Self {
        let mut mix = Mix::default();
        for (need, n) in kinds {
            *mix.kinds.entry(need).or_default() += n;
            mix.seen += n;
        }
        mix
    }

    /// Free thousandths of GPUs on this node that a request of the mix could not use, times the mix's weight.
    pub fn fragments(&self, node: &NodeState) -> i128 {
        let free = node.milli();
        if free == 0 {
            return 0;
        }
        let of = |need: &Need| {
            let usable = need.gpus > 0 && node.fits(need);
            if !usable {
                return free;
            }
            node.gpus.iter().filter(|g| **g < need.milli).map(|g| u64::from(*g)).sum()
        };
        self.kinds.iter().map(|(need, n)| i128::from(of(need)) * i128::from(*n)).sum()
    }

    /// The sum of all kinds' weights.
    pub fn weight(&self) -> u64 {
        self.kinds.values().sum()
    }
}

/// What a choice looks at beside the books.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice<'a> {
    /// Recent requests; none: the fullest node is best.
    pub mix: Option<&'a Mix>,
    /// By node group.
    pub topologies: &'a [Topology],
    /// The share must be free in all of these books, too.
    pub also: &'a [&'a Books],
}

/// Shares for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// One per rank.
    pub shares: Vec<NodeShare>,
    /// Expected growth of fragmentation, thousandths of a GPU: may be negative.
    pub fragments: i64,
    /// Sum of the distances between the GPUs of each rank.
    pub spread: u64,
}

/// A share for every rank, or none where not all fit at once. Several ranks may share a node.
pub fn fit(books: &Books, ranks: u32, need: &Need, choice: &Choice) -> Option<Fit> {
    let mut changed: BTreeMap<u32, NodeState> = BTreeMap::new();
    let mut found = Fit { shares: Vec::new(), fragments: 0, spread: 0 };
    let compare = ranks <= RANKS_COMPARED_MAX;
    let mut order: Option<Vec<u32>> = (!compare).then(|| books.candidates(need).collect());
    let mut at = 0;
    while found.shares.len() < ranks as usize {
        let (node, rank) = match &mut order {
            None => best(books, &changed, need, choice)?,
            Some(order) => loop {
                let node = *order.get(at)?;
                let state = state_of(books, &changed, node, choice);
                match state.filter(|s| s.fits(need)).and_then(|s| share(&s, need, choice, node)) {
                    Some(rank) => break (node, rank),
                    None => at += 1,
                }
            },
        };
        let state = changed.remove(&node).or_else(|| books.nodes().get(node as usize).cloned());
        let mut state = state?;
        state.set(&rank.share.gpus, need, true);
        changed.insert(node, state);
        found.fragments = found.fragments.saturating_add(rank.fragments);
        found.spread += rank.spread;
        found.shares.push(rank.share);
    }
    Some(found)
}

struct Rank {
    share: NodeShare,
    fragments: i64,
    spread: u64,
}

/// The node as it is now, less what earlier ranks took, and less what other books do not have free.
fn state_of(
    books: &Books,
    changed: &BTreeMap<u32, NodeState>,
    node: u32,
    choice: &Choice,
) -> Option<NodeState> {
    let own = books.nodes().get(node as usize)?;
    let now = changed.get(&node);
    if choice.also.is_empty() {
        return Some(now.unwrap_or(own).clone());
    }
    let mut state = now.unwrap_or(own).clone();
    for other in choice.also {
        let mut there = other.nodes().get(node as usize)?.clone();
        if let Some(now) = now {
            // Ranks of this very fit hold their part there, too.
            for (free, (was, is)) in there.gpus.iter_mut().zip(own.gpus.iter().zip(&now.gpus)) {
                *free = free.saturating_sub(was.saturating_sub(*is));
            }
            there.cpus = there.cpus.saturating_sub(own.cpus.saturating_sub(now.cpus));
            there.memory = there.memory.saturating_sub(own.memory.saturating_sub(now.memory));
        }
        state = state.and(&there);
    }
    Some(state)
}

/// A node that fits: growth in steps, how full it is, which it is, exact growth.
type Weighed = (i128, (u32, u64, u64), u32, i128);

fn best(
    books: &Books,
    changed: &BTreeMap<u32, NodeState>,
    need: &Need,
    choice: &Choice,
) -> Option<(u32, Rank)> {
    let mut ties: Vec<Weighed> = Vec::new();
    let weight = choice.mix.map_or(1, |m| i128::from(m.weight().max(1)));
    // Many nodes are alike: each kind is weighed once.
    let mut weighed: BTreeMap<(u16, Vec<u16>, u64, u64), i128> = BTreeMap::new();
    let mut compared = 0;
    for node in books.candidates(need) {
        let Some(own) = books.nodes().get(node as usize) else { continue };
        // Most nodes that cannot are seen without a copy.
        if !changed.contains_key(&node) && !own.fits(need) {
            continue;
        }
        let Some(state) = state_of(books, changed, node, choice).filter(|s| s.fits(need)) else { continue };
        let growth = match choice.mix.filter(|m| m.weight() > 0) {
            Some(mix) => {
                let now = changed.get(&node).unwrap_or(own);
                match choice.also.is_empty() {
                    true => {
                        let kind = (now.pool, now.gpus.clone(), now.cpus, now.memory);
                        *weighed.entry(kind).or_insert_with(|| growth(mix, now, &state, need))
                    }
                    false => growth(mix, now, &state, need),
                }
            }
            None => 0,
        };
        // Of equals the fullest; a request without GPUs keeps off nodes that have some.
        let step = (growth + weight * STEP / 2).div_euclid(weight * STEP);
        ties.push((step, (state.whole(), state.milli(), state.cpus), node, growth));
        compared += 1;
        if compared >= COMPARED_MAX || (choice.mix.is_none() && compared >= TIGHT_MAX && need.gpus > 0) {
            break;
        }
    }
    let least = ties.iter().map(|(step, fullness, ..)| (*step, *fullness)).min()?;
    let mut near: Vec<(u32, i128)> = ties
        .iter()
        .filter(|(step, fullness, ..)| (*step, *fullness) == least)
        .map(|(.., node, growth)| (*node, *growth))
        .collect();
    near.truncate(if need.gpus > 1 { TIGHT_MAX } else { 1 });
    let ranks = near.into_iter().filter_map(|(node, growth)| {
        let state = state_of(books, changed, node, choice)?;
        let mut rank = share(&state, need, choice, node)?;
        rank.fragments = i64::try_from(growth / weight).unwrap_or(i64::MAX);
        Some((node, rank))
    });
    ranks.min_by_key(|(node, rank)| (rank.spread, *node))
}

/// How much fragmentation one rank adds to a node. Whole GPUs are alike for that; of a share's GPUs the best counts.
fn growth(mix: &Mix, own: &NodeState, usable: &NodeState, need: &Need) -> i128 {
    let before = mix.fragments(own);
    let mut least = i128::MAX;
    for gpus in picks(usable, need) {
        let mut after = own.clone();
        after.set(&gpus, need, true);
        least = least.min(mix.fragments(&after) - before);
    }
    least
}

/// GPUs that are worth comparing: for a part of one GPU, one of every free size; else the first that will do.
fn picks(state: &NodeState, need: &Need) -> Vec<Vec<u32>> {
    let fitting = |milli: u16| (0..state.gpus.len() as u32).filter(move |g| state.gpus[*g as usize] >= milli);
    if need.gpus != 1 || need.milli == WHOLE {
        return vec![fitting(need.milli.max(1)).take(need.gpus as usize).collect()];
    }
    let mut sizes: BTreeMap<u16, u32> = BTreeMap::new();
    for g in fitting(need.milli) {
        sizes.entry(state.gpus[g as usize]).or_insert(g);
    }
    sizes.into_values().map(|g| vec![g]).collect()
}

/// Which GPUs of the node.
fn share(state: &NodeState, need: &Need, choice: &Choice, node: u32) -> Option<Rank> {
    if need.gpus == 0 {
        let share = NodeShare { node, gpus: Vec::new() };
        return Some(Rank { share, fragments: 0, spread: 0 });
    }
    if need.gpus == 1 && need.milli < WHOLE {
        let picks = picks(state, need);
        let cost = |gpus: &Vec<u32>| {
            let mut after = state.clone();
            after.set(gpus, need, true);
            let free = gpus.first().and_then(|g| state.gpus.get(*g as usize)).copied();
            (choice.mix.map_or(0, |m| m.fragments(&after)), free)
        };
        let gpus = picks.into_iter().min_by_key(cost)?;
        return Some(Rank { share: NodeShare { node, gpus }, fragments: 0, spread: 0 });
    }
    let free: Vec<u32> =
        (0..state.gpus.len() as u32).filter(|g| state.gpus[*g as usize] >= need.milli.max(1)).collect();
    let flat = Topology::default();
    let topology = choice.topologies.get(state.group as usize).unwrap_or(&flat);
    let gpus = topology.tightest(&free, need.gpus as usize)?;
    let spread = topology.spread(&gpus);
    Some(Rank { share: NodeShare { node, gpus }, fragments: 0, spread })
}
