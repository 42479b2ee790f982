//! The sequential meaning of a job's record, for `linear::check`: what users may see, one after another.
//!
//! Between two operations of users the mesh itself may change the record as often as it likes (place, start,
//! close, free, rebind), so a read may find a later version than the last one. What it finds must follow
//! from what was known: by the production's own `JobRecord::apply` where nothing lies in between, else by
//! the invariants that every chain of changes keeps.

use super::{Interval, Sequential, Verdict, check};
use crate::base::Epoch;
use crate::model::groups::GroupsChange;
use crate::model::invariants::{JobMark, job_follows};
use crate::model::record::{CancelIntent, Change, Checkpoint, Refused};
use crate::model::{JobRecord, JobState};

/// What a user asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Take this job. A repeat under the same idempotency key is a second one of these.
    Submit,
    /// Read its record.
    Get,
    /// End it.
    Cancel,
    /// Publish a checkpoint of this epoch.
    Publish(Epoch),
}

/// What a user was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The job is held.
    Submitted,
    /// Its record.
    Record(Box<JobRecord>),
    /// There is no such job.
    NoSuchJob,
    /// The state after the cancel.
    Cancelled(JobState),
    /// It is published.
    Published,
    /// The record refused it.
    Refused(Refused),
}

/// One operation of one user on one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// When.
    pub interval: Interval,
    /// What was asked.
    pub ask: Ask,
    /// The answer; none where the outcome is open. Must be there if `interval.ret` is.
    pub told: Option<Told>,
}

/// All operations of all users on one job, in any order. Reads without an answer may be left out.
pub struct JobHistory {
    ops: Vec<Op>,
    forgets: bool,
}

/// What is known of the record at one point of an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Known {
    exists: bool,
    /// It has at least this version,
    version: u64,
    /// and is the record that this operation read, unless it changed since.
    exact: Option<usize>,
    /// The last record that was read.
    last: Option<usize>,
    epoch: u64,
    cancelled: bool,
    checkpoint: Option<u64>,
    end: Option<JobState>,
    /// Nobody knows of it any more.
    forgotten: bool,
}

impl JobHistory {
    /// Of these operations.
    pub fn new(ops: Vec<Op>) -> Self {
        Self { ops, forgets: false }
    }

    /// Records are forgotten some time after their end: from then on there is no such job, for good.
    pub fn that_is_forgotten(mut self) -> Self {
        self.forgets = true;
        self
    }

    /// Is there an order of these operations that real time and the record's meaning allow?
    pub fn check(&self) -> Verdict {
        let intervals: Vec<Interval> = self.ops.iter().map(|op| op.interval).collect();
        check(self, &intervals)
    }

    /// For people: the operations that could not be placed.
    pub fn describe(&self, stuck: &[usize]) -> String {
        let one = |&op: &usize| {
            let Op { interval, ask, told } = &self.ops[op];
            let told = match told {
                Some(Told::Record(r)) => format!("version {} {:?} epoch {}", r.version, r.state, r.epoch),
                other => format!("{other:?}"),
            };
            format!("{ask:?} at {} to {:?}: {told}", interval.call, interval.ret)
        };
        stuck.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    fn record(&self, op: usize) -> Option<&JobRecord> {
        match &self.ops[op].told {
            Some(Told::Record(record)) => Some(record),
            _ => None,
        }
    }

    fn read(&self, known: &Known, op: usize, record: &JobRecord) -> Option<Known> {
        if !known.exists || record.version < known.version || record.epoch.0 < known.epoch {
            return None;
        }
        if let Some(exact) = known.exact.and_then(|i| self.record(i)) {
            if record.version == exact.version && record != exact {
                return None;
            }
            if record.version == exact.version + 1 && !one_change(exact, record) {
                return None;
            }
        }
        if let Some(last) = known.last.and_then(|i| self.record(i))
            && !job_follows(&JobMark::of(last), &JobMark::of(record)).is_empty()
        {
            return None;
        }
        let checkpoint = record.checkpoint.as_ref().map(|c| c.epoch.0);
        let ended = known.end.is_none_or(|state| state == record.state);
        let cancelled = !known.cancelled || record.cancel.is_some();
        if !ended || !cancelled || checkpoint < known.checkpoint {
            return None;
        }
        Some(Known {
            exists: true,
            version: record.version,
            exact: Some(op),
            last: Some(op),
            epoch: record.epoch.0,
            cancelled: record.cancel.is_some(),
            checkpoint,
            end: record.state.is_final().then_some(record.state),
            forgotten: false,
        })
    }

    fn cancel(known: &Known, state: Option<JobState>) -> Option<Known> {
        match (known.end, state) {
            (Some(end), Some(told)) => return (end == told).then(|| known.clone()),
            (Some(_), None) => return Some(known.clone()),
            (None, _) => {}
        }
        let fresh = !known.cancelled;
        let ends = state.filter(|s| s.is_final());
        let mut next = known.clone();
        if fresh || ends.is_some() {
            next.version += 1;
            next.exact = None;
        }
        // Told "succeeded": the end came first, and the cancel was refused.
        next.cancelled = known.cancelled || ends.is_none_or(|s| s == JobState::Cancelled);
        next.end = ends;
        Some(next)
    }

    fn publish(known: &Known, epoch: Epoch) -> Option<Known> {
        if known.end.is_some() || epoch.0 < known.epoch || Some(epoch.0) < known.checkpoint {
            return None;
        }
        let mut next = known.clone();
        next.epoch = epoch.0;
        next.checkpoint = Some(epoch.0);
        next.version += 1;
        next.exact = None;
        Some(next)
    }

    fn refused(known: &Known, why: &Refused) -> Option<Known> {
        let mut next = known.clone();
        match why {
            Refused::Final(state) => {
                if known.end.is_some_and(|end| end != *state) {
                    return None;
                }
                if known.end.is_none() {
                    next.end = Some(*state);
                    next.version += 1;
                    next.exact = None;
                }
            }
            Refused::OldCheckpoint(epoch) => {
                next.checkpoint = next.checkpoint.max(Some(epoch.0));
                next.epoch = next.epoch.max(epoch.0);
            }
            _ => {}
        }
        Some(next)
    }
}

impl Sequential for JobHistory {
    type State = Known;

    fn first(&self) -> Known {
        Known {
            exists: false,
            version: 0,
            exact: None,
            last: None,
            epoch: 0,
            cancelled: false,
            checkpoint: None,
            end: None,
            forgotten: false,
        }
    }

    fn step(&self, known: &Known, op: usize) -> Option<Known> {
        let Op { ask, told, .. } = &self.ops[op];
        match (ask, told) {
            (Ask::Submit, Some(Told::Submitted)) if known.forgotten => None,
            (Ask::Submit, None | Some(Told::Submitted)) => {
                Some(Known { exists: true, version: known.version.max(1), ..known.clone() })
            }
            (_, Some(Told::NoSuchJob)) if !known.exists => Some(known.clone()),
            // It must have ended before.
            (_, Some(Told::NoSuchJob)) => self.forgets.then(|| Known { forgotten: true, ..known.clone() }),
            (_, Some(_)) if known.forgotten => None,
            (Ask::Get, Some(Told::Record(record))) => self.read(known, op, record),
            _ if !known.exists => None,
            (Ask::Cancel, Some(Told::Cancelled(state))) => Self::cancel(known, Some(*state)),
            (Ask::Cancel, None) => Self::cancel(known, None),
            (Ask::Publish(epoch), None | Some(Told::Published)) => Self::publish(known, *epoch),
            (_, Some(Told::Refused(why))) => Self::refused(known, why),
            _ => None,
        }
    }
}

/// True if one change of the production's own makes the one record out of the other.
pub fn one_change(old: &JobRecord, new: &JobRecord) -> bool {
    let mut tries = Vec::new();
    let at = new.finished_at.unwrap_or_default();
    let newest = new.attempts.iter().rfind(|a| a.epoch == new.epoch);
    if let Some(placement) = &new.placement {
        tries.push(Change::Place { placement: placement.clone(), epoch: new.epoch });
        tries.push(Change::Rebind {
            epoch: new.epoch,
            from: old.placement.as_ref().map(|p| (p.contact, p.incarnation)).unwrap_or_default(),
            to: (placement.contact, placement.incarnation),
            series: placement.series,
            homes: placement.contact_homes.to_vec(),
        });
    }
    if let Some(attempt) = newest {
        let ended = attempt.ended_at.unwrap_or_default();
        if let Some(at) = attempt.started_at {
            tries.push(Change::Started { epoch: new.epoch, at, nodes: attempt.nodes.clone() });
        }
        if let Some(outcome) = attempt.outcome.clone() {
            let (started_at, note, nodes) = (attempt.started_at, attempt.note.clone(), attempt.nodes.clone());
            let at = ended;
            tries.push(Change::Close { epoch: new.epoch, outcome, started_at, at, note, nodes });
        }
        if let Some((_, by)) = new.reason.strip_suffix(')').and_then(|r| r.rsplit_once(" (confirmed by ")) {
            tries.push(Change::ConfirmLost { epoch: new.epoch, cluster: None, by: by.to_owned(), at: ended });
        }
        if let Some(held) = &old.placement {
            let (contact, incarnation) = (held.contact, held.incarnation);
            tries.push(Change::Free { epoch: new.epoch, contact, incarnation, at: ended });
        }
    }
    if let Some(intent) = &new.cancel {
        tries.push(Change::Cancel { intent: intent.clone() });
        // A second cancel of a job whose attempt ends: its own words are not kept.
        tries.push(Change::Cancel { intent: CancelIntent { by: intent.by.clone(), at } });
    }
    if let Some(next) = &new.sealed {
        tries.push(Change::Seal { generation: old.generation, next: next.to_vec() });
    }
    tries.extend(new.moving.clone().map(|intent| Change::Move { intent }));
    tries.extend(old.moving.clone().map(|intent| Change::MoveOver { intent }));
    if let Some(by) = new.reason.strip_prefix("released by ") {
        tries.push(Change::Release { by: by.to_owned() });
    }
    if let Some(checkpoint) = &new.checkpoint {
        let Checkpoint { epoch, uri } = checkpoint.clone();
        tries.push(Change::Publish { checkpoint: Checkpoint { epoch, uri } });
    }
    if let Some(groups) = &new.groups {
        let was = old.groups.as_ref().map_or(&[][..], |g| &g.placed);
        let placements = groups.placed.iter().map(|p| p.placement.clone()).collect();
        tries.push(Change::Groups(GroupsChange::Place {
            epoch: new.epoch,
            placements,
            homes: new.group_homes(),
        }));
        let fresh = |i: usize| {
            groups.placed[i].outcome.clone().filter(|_| was.get(i).is_none_or(|w| w.outcome.is_none()))
        };
        let all = 0..groups.placed.len();
        let ended = all.clone().filter_map(|i| Some((i as u32, fresh(i)?))).collect();
        let started = all.filter(|i| groups.placed[*i].started).map(|i| i as u32).collect();
        let at = newest.and_then(|a| a.ended_at.or(a.started_at)).unwrap_or_default();
        tries.push(Change::Groups(GroupsChange::Seen { epoch: new.epoch, started, ended, at }));
        tries.push(Change::Groups(GroupsChange::Over { at: new.finished_at.unwrap_or_default() }));
    }
    let installed = old.installed().is_some_and(|first| first == *new);
    installed || tries.iter().any(|change| old.apply(change).as_ref() == Ok(new))
}
