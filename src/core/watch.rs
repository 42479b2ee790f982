//! Production's own eye on the invariants (`model::invariants`): counts what breaks one, and goes on.
//!
//! Marks of what was chosen are soft and bounded; they see this peer's operations only, one register at a
//! time, in order.

use std::collections::{BTreeMap, BTreeSet};

use super::acceptor::Value;
use super::api::{AttemptKey, NodeShare};
use super::message::{RecordKey, RegisterBody, RegisterRequest};
use super::peer::Peer;
use crate::model::invariants::{
    ContactMark, Invariant, JobMark, LedgerMark, contact_follows, gpus_are_free, job_follows, ledger_follows,
    one_ballot_one_value, spends_its_share, start_is_newest,
};

/// Registers of which a mark is kept; beyond it the lowest keys are forgotten first.
const MARKS_MAX: usize = 65_536;

#[derive(Debug, Clone)]
enum Mark {
    Job(JobMark),
    Contact(ContactMark),
    Ledger(LedgerMark),
}

/// The marks.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    marks: BTreeMap<RecordKey, Mark>,
}

impl Peer {
    fn broken(&mut self, invariants: impl IntoIterator<Item = Invariant>, what: &dyn std::fmt::Display) {
        for invariant in invariants {
            self.count(invariant.counter());
            self.event("invariant.violated", None, format!("{invariant:?}: {what}"));
        }
    }

    /// An operation of this peer learned that this value is chosen.
    pub(super) fn watch_chosen(&mut self, key: &RecordKey, value: &Value) {
        let mark = match value {
            Value::Job(record) => Mark::Job(JobMark::of(record)),
            Value::Contact(record) => Mark::Contact(ContactMark::of(record)),
            Value::Ledger(record) => Mark::Ledger(LedgerMark::of(record)),
        };
        let broken = match (self.watch.marks.get(key), &mark) {
            (Some(Mark::Job(old)), Mark::Job(new)) => job_follows(old, new),
            (Some(Mark::Contact(old)), Mark::Contact(new)) => contact_follows(old, new),
            (Some(Mark::Ledger(old)), Mark::Ledger(new)) => ledger_follows(old, new),
            _ => Default::default(),
        };
        if !broken.is_empty() {
            let what = format!("{key:?}: {mark:?} was chosen after {:?}", self.watch.marks.get(key));
            self.broken(broken, &what);
        }
        if self.watch.marks.len() >= MARKS_MAX && !self.watch.marks.contains_key(key) {
            self.watch.marks.pop_first();
        }
        self.watch.marks.insert(*key, mark);
    }

    /// An acceptor is asked to accept.
    pub(super) fn watch_accept(&mut self, request: &RegisterRequest) {
        let RegisterBody::Accept { ballot, value, .. } = &request.body else { return };
        let slot = self.acceptor.slot(&request.key).filter(|slot| slot.generation == request.generation);
        let taken = slot.and_then(|slot| slot.accepted.as_ref());
        let Some((_, old)) = taken.filter(|(b, _)| b == ballot && request.store == self.cfg.store) else {
            return;
        };
        let broken = one_ballot_one_value(old, value);
        self.broken(broken, &format!("{:?}: two values under {ballot:?}", request.key));
    }

    /// An attempt is admitted here.
    pub(super) fn watch_admit(&mut self, key: AttemptKey, shares: &[NodeShare]) {
        let known: Vec<u64> = self.exec.epochs_of(&key.job).filter(|e| *e != key.epoch.0).collect();
        let broken = start_is_newest(key.epoch.0, known.iter().copied());
        self.broken(broken, &format!("{key} is admitted beside {known:?}"));
        fn gpus(share: &NodeShare) -> impl Iterator<Item = (u32, u32)> {
            share.gpus.iter().map(|gpu| (share.node, *gpu))
        }
        // Only what others hold of the same nodes is gathered: a cluster runs thousands of attempts.
        let nodes: BTreeSet<u32> = shares.iter().map(|s| s.node).collect();
        let beside = self.exec.shares_but(key).flatten().filter(|s| nodes.contains(&s.node));
        let held: Vec<(u32, u32)> = beside.flat_map(gpus).collect();
        #[cfg(test)]
        crate::base::work::add("gpus gathered", held.len() as u64);
        let broken = gpus_are_free(shares.iter().flat_map(gpus), held);
        self.broken(broken, &format!("{key} gets GPUs that others hold"));
        if let Some((used, share)) = self.spending_of(key) {
            let broken = spends_its_share(&used, &share);
            self.broken(broken, &format!("{key} is admitted: its tenant uses {used:?} of {share:?}"));
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
