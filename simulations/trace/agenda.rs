//! What happens next: events by time, those of one time in the order in which they were put there.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use starling::base::Instant;

struct Entry<E> {
    at: Instant,
    seq: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    // The heap gives its greatest: the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    seq: u64,
}

impl<E> Agenda<E> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0 }
    }
    pub fn put(&mut self, at: Instant, event: E) {
        self.seq += 1;
        self.heap.push(Entry { at, seq: self.seq, event });
    }
    pub fn next(&mut self) -> Option<(Instant, E)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }
    /// Events put there so far.
    pub fn count(&self) -> u64 {
        self.seq
    }
}
