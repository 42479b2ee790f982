//! Work that tests count: a cost is held to what it may grow with, never to time.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static DONE: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// This was done once more, on this thread,
pub fn count(what: &'static str) {
    add(what, 1);
}

/// or so many times.
pub fn add(what: &'static str, times: u64) {
    DONE.with_borrow_mut(|done| *done.entry(what).or_default() += times);
}

/// How often that was done so far.
pub fn done(what: &str) -> u64 {
    DONE.with_borrow(|done| done.get(what).copied().unwrap_or_default())
}
