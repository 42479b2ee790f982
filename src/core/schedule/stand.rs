//! What a waiting request lacks right now, with the figures: for people who look at the queue.

use std::collections::BTreeMap;

use super::nodes::{Choice, fit};
use super::{Request, Scheduler};
use crate::base::{Bytes, Instant, JobId, MilliCpu, Span};
use crate::core::books::{Books, Need, NodeState, WHOLE};
use crate::core::placement::Reason;

/// Kinds of requests that are tried in one look; of others only their place is known.
const KINDS_MAX: usize = 64;
/// Sets of promises beside which is looked, each with a copy of the books.
const BESIDE_MAX: usize = 8;

/// Where a request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand<K> {
    /// So many were told to stop for it, and are not gone yet.
    Sends(usize),
    /// There is not enough free for it.
    Lacks(Lack),
    /// There is enough, and it is kept for another in front of it, which starts after this long, if that is known.
    Behind(K, Option<Span>),
    /// There is enough, and it is kept for a tenant.
    Promised(JobId),
    /// There is enough only with what is kept free for others.
    Buffer,
    /// What is free beside that is kept for another in front of it, which may not use it either.
    BehindBuffer(K),
    /// Nothing here holds it back.
    Fits,
}

/// What is not free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// Thousandths of GPUs wanted in all, and free of those that will do.
    Gpus {
        /// Wanted.
        wanted: u64,
        /// Free.
        free: u64,
    },
    /// Something that a cluster as a whole can lack, too.
    Other(Reason),
    /// Each of these is free, and not all together on enough nodes.
    Shape {
        /// Ranks wanted.
        ranks: u32,
        /// Ranks that there is room for.
        room: u64,
    },
}

/// What one look has found so far, by kind of request: most of a queue is alike.
#[derive(Debug, Default)]
pub struct Looked {
    lacks: BTreeMap<(u32, Need), Option<Lack>>,
    /// Also by the promises and the reservations that count for it.
    kept: BTreeMap<(u32, Need, u64, u64), Option<Kept>>,
    /// What is free beside promises, by which.
    beside: BTreeMap<u64, Books>,
}

/// For whose sake something free is not given.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// A tenant's reservation.
    Promised(JobId),
    /// The place among the scheduler's own reservations of the one in front.
    Front(usize),
}

impl<K: Copy + Ord> Scheduler<K> {
    /// None where nothing waits under this key, or where too many kinds were looked at before.
    pub fn stand(&self, key: &K, now: Instant, looked: &mut Looked) -> Option<Stand<K>> {
        let request = &self.waiting.get(key)?.request;
        if let Some(pin) = self.pinned.get(key) {
            let going = pin.victims.iter().filter(|v| self.running.contains_key(v)).count();
            if going > 0 {
                return Some(Stand::Sends(going));
            }
        }
        let kind = (request.ranks, request.need.clone());
        let lack = match looked.lacks.get(&kind) {
            Some(lack) => lack.clone(),
            None if looked.lacks.len() >= KINDS_MAX => return None,
            None => {
                let lack = self.lack(request);
                looked.lacks.insert(kind, lack.clone());
                lack
            }
        };
        if let Some(lack) = lack {
            return Some(Stand::Lacks(lack));
        }
        if self.buffered(key) {
            return Some(Stand::Buffer);
        }
        let kept = self.kept_from(key, request, now, looked)?;
        if let Some(Kept::Promised(id)) = kept {
            return Some(Stand::Promised(id));
        }
        // Of what is free a part is promised and idle: the rest is the buffer.
        if self.in_buffer(key, request) {
            return Some(Stand::Buffer);
        }
        let behind = |(first, priority): &(K, u8)| {
            let waits = first != key && self.waiting.contains_key(first);
            waits && request.need.gpus > 0 && request.priority <= *priority
        };
        if let Some((first, _)) = self.buffer_waits.filter(behind).filter(|_| !self.uses_buffer(key, request))
        {
            return Some(Stand::BehindBuffer(first));
        }
        let front = match kept {
            Some(Kept::Front(at)) => self.reservations.get(at),
            _ => None,
        };
        Some(front.map_or(Stand::Fits, |r| Stand::Behind(r.key, r.at.map(|at| at.since(now)))))
    }

    /// For whose sake a request that would fit does not start, as `consider` decides it: outer none where too many kinds
    /// were looked at before.
    fn kept_from(
        &self,
        key: &K,
        request: &Request,
        now: Instant,
        looked: &mut Looked,
    ) -> Option<Option<Kept>> {
        let ends = request.max_runtime.map(|run| now + super::SLACK + run);
        let bars = |r: &super::Reservation<K>| {
            let in_time = ends.is_some_and(|end| r.at.is_some_and(|at| end <= at));
            r.binding && r.key != *key && r.priority >= request.priority && !in_time
        };
        let barring = self.reservations.iter().enumerate().filter(|(_, r)| bars(r));
        let barring: Vec<(usize, &Books)> = barring.map(|(at, r)| (at, &r.future)).collect();
        let promises = self.conflicts(request, now);
        let which = barring.iter().fold(0, |bits, (at, _)| bits | 1u64 << (at % 64));
        let kind = (request.ranks, request.need.clone(), promises, which);
        if let Some(kept) = looked.kept.get(&kind) {
            return Some(*kept);
        }
        let copies =
            promises == 0 || looked.beside.contains_key(&promises) || looked.beside.len() < BESIDE_MAX;
        if looked.kept.len() >= KINDS_MAX || !copies {
            return None;
        }
        let beside = self.beside(promises, &mut looked.beside);
        let fits = |also: &[&Books]| {
            let choice = Choice { also, ..Choice::default() };
            fit(&self.books, request.ranks, &request.need, &choice).is_some()
        };
        let beside: Vec<&Books> = beside.into_iter().collect();
        let kept = if !beside.is_empty() && !fits(&beside) {
            self.first_of(promises).map(Kept::Promised)
        } else {
            // Each by itself may leave room that all together do not.
            let all: Vec<&Books> = barring.iter().map(|(_, future)| *future).chain(beside).collect();
            let barred = !barring.is_empty() && !fits(&all);
            let alone = || barring.iter().find(|(_, future)| !fits(&[*future]));
            let first = if barred { alone().or(barring.first()) } else { None };
            first.map(|(at, _)| Kept::Front(*at))
        };
        looked.kept.insert(kind, kept);
        Some(kept)
    }

    /// What is missing for a request if nobody else waited; none where nothing is.
    fn lack(&self, request: &Request) -> Option<Lack> {
        let (ranks, need) = (request.ranks, &request.need);
        if fit(&self.books, ranks, need, &Choice::default()).is_some() {
            return None;
        }
        let nodes = || self.books.nodes().iter().filter(|n| need.takes(n.pool));
        let room = |of: &dyn Fn(&NodeState) -> u64| nodes().map(of).fold(0, u64::saturating_add);
        let wide = u64::from(ranks);
        if need.gpus > 0 {
            // Of a GPU that is shared, what is left of it counts only where it is enough.
            let does = |n: &NodeState| n.gpus.iter().filter(|g| **g >= need.milli).count() as u64;
            let wanted = request.milli();
            let free = match need.milli {
                WHOLE => room(&|n| u64::from(n.whole()) * u64::from(WHOLE)),
                _ => room(&|n| n.gpus.iter().filter(|g| **g >= need.milli).map(|g| u64::from(*g)).sum()),
            };
            if free < wanted {
                return Some(Lack::Gpus { wanted, free });
            }
            if room(&|n| does(n) / u64::from(need.gpus)) < wide {
                let free = free / u64::from(WHOLE);
                return Some(Lack::Other(Reason::GpusApart { nodes: ranks, each: need.gpus, free }));
            }
        }
        let times = |free: u64, one: u64| free.checked_div(one).unwrap_or(wide);
        if room(&|n| times(n.cpus, need.cpus)) < wide {
            let free = MilliCpu(room(&|n| n.cpus));
            return Some(Lack::Other(Reason::CpusBusy { nodes: ranks, wanted: MilliCpu(need.cpus), free }));
        }
        if room(&|n| times(n.memory, need.memory)) < wide {
            let free = Bytes(room(&|n| n.memory));
            return Some(Lack::Other(Reason::MemoryBusy { nodes: ranks, wanted: Bytes(need.memory), free }));
        }
        let whole = |n: &NodeState| {
            let gpus = n.gpus.iter().filter(|g| **g >= need.milli).count() as u64;
            times(gpus, u64::from(need.gpus)).min(times(n.cpus, need.cpus)).min(times(n.memory, need.memory))
        };
        Some(Lack::Shape { ranks, room: room(&whole) })
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gpus = |milli: &u64| *milli as f64 / f64::from(WHOLE);
        match self {
            Self::Gpus { wanted, free } => {
                write!(f, "{} of {} GPUs wanted are free", gpus(free), gpus(wanted))
            }
            Self::Other(reason) => reason.fmt(f),
            Self::Shape { ranks, room } => {
                write!(f, "GPUs, CPUs and memory are free, together for {room} of {ranks} nodes wanted")
            }
        }
    }
}

#[cfg(test)]
#[path = "stand_tests.rs"]
mod tests;
