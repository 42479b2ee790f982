//! Linearizability of one object from what its clients saw.
//!
//! The search of Wing and Gong with Lowe's memo: pick an operation that may come next in real time, apply
//! it to the specification, go on; a pair (operations done, state) that failed once is not tried again.
//! An operation without an answer may take effect at any later time, or never.
//!
//! [`job`] holds the specification of a job's record. Histories of the simulated world and of real processes
//! (`starling chaos`) are checked by the same functions.

pub mod job;

use std::collections::HashSet;
use std::hash::Hash;

/// An operation's place in time. Any clock will do that orders a return before a later call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// When the client asked.
    pub call: u64,
    /// When it had the answer; none where it never came or left the outcome open.
    pub ret: Option<u64>,
}

/// What an object may do, one operation after another.
pub trait Sequential {
    /// All that the future depends on.
    type State: Clone + Eq + Hash;
    /// Before the first operation.
    fn first(&self) -> Self::State;
    /// The state after operation `op`, or none where its answer does not fit the state. For an operation
    /// without an answer: the state after it took effect.
    fn step(&self, state: &Self::State, op: usize) -> Option<Self::State>;
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Linearizable {
        /// Found after so many steps.
        steps: usize,
    },
    /// There is none. At most so many operations with an answer could be put in order, and these could
    /// never come next.
    Not {
        /// How many.
        placed: usize,
        /// Which.
        stuck: Vec<usize>,
    },
    /// Neither was found within the limit of steps.
    GaveUp {
        /// The limit.
        steps: usize,
    },
}

impl Verdict {
    /// There is an order.
    pub fn holds(&self) -> bool {
        matches!(self, Verdict::Linearizable { .. })
    }
}

/// Steps after which a check gives up.
pub const STEPS_MAX: usize = 2_000_000;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Done(Vec<u64>);

impl Done {
    fn has(&self, op: usize) -> bool {
        self.0[op / 64] & (1 << (op % 64)) != 0
    }
    fn with(&self, op: usize) -> Done {
        let mut next = self.clone();
        next.0[op / 64] |= 1 << (op % 64);
        next
    }
}

/// Checks one object's history. `intervals[op]` is when operation `op` took place.
pub fn check<S: Sequential>(spec: &S, intervals: &[Interval]) -> Verdict {
    let n = intervals.len();
    let answered = intervals.iter().filter(|i| i.ret.is_some()).count();
    // Earlier calls first: most histories are nearly sequential, and then the first try is right.
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&op| (intervals[op].ret.unwrap_or(u64::MAX), intervals[op].call));
    let begin = Done(vec![0; n.div_ceil(64)]);
    let mut seen: HashSet<(Done, S::State)> = HashSet::new();
    let mut stack = vec![(begin, spec.first(), 0usize)];
    let (mut steps, mut best, mut stuck) = (0, 0, Vec::new());
    while let Some((done, state, placed)) = stack.pop() {
        if placed == answered {
            return Verdict::Linearizable { steps };
        }
        // What returned first and is not placed yet: nothing called after that may come before it.
        let limit = order
            .iter()
            .filter(|&&op| !done.has(op))
            .filter_map(|&op| intervals[op].ret)
            .min()
            .unwrap_or(u64::MAX);
        let may_be_next = |op: &usize| !done.has(*op) && intervals[*op].call <= limit;
        let candidates: Vec<usize> = order.iter().copied().filter(may_be_next).collect();
        if placed > best || stuck.is_empty() {
            best = placed;
            stuck = candidates.iter().copied().filter(|&op| intervals[op].ret.is_some()).collect();
        }
        // The last pushed is tried first.
        for &op in candidates.iter().rev() {
            steps += 1;
            if steps > STEPS_MAX {
                return Verdict::GaveUp { steps };
            }
            let Some(next) = spec.step(&state, op) else { continue };
            let entry = (done.with(op), next);
            if seen.insert(entry.clone()) {
                stack.push((entry.0, entry.1, placed + usize::from(intervals[op].ret.is_some())));
            }
        }
    }
    Verdict::Not { placed: best, stuck }
}

/// A register that is written and read: what the checker itself is tested with.
#[derive(Debug)]
pub struct Register {
    /// In any order.
    pub ops: Vec<RegisterOp>,
}

/// An operation on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterOp {
    /// Write this.
    Write(u8),
    /// Found this.
    Read(u8),
}

impl Sequential for Register {
    type State = u8;
    fn first(&self) -> u8 {
        0
    }
    fn step(&self, state: &u8, op: usize) -> Option<u8> {
        match self.ops[op] {
            RegisterOp::Write(value) => Some(value),
            RegisterOp::Read(value) => (value == *state).then_some(*state),
        }
    }
}
