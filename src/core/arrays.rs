//! The owner of an array, and of jobs that wait for others.
//!
//! An array is opened a part at a time: first its record says how far, then the jobs below that are made, each the
//! same whoever makes it. A job counts as ended once a quorum of its homes says so. What a job waits for is read
//! through its register, now and then, and at once where this peer holds it and sees it end.

use std::collections::BTreeMap;

use super::acceptor::Value;
use super::message::Origin;
use super::peer::Peer;
use super::propose::{Fresh, OpResult, Task};
use super::purpose::Purpose;
use crate::base::{Instant, JobId, Span};
use crate::model::array::{ArrayChange, End};
use crate::model::record::{CancelIntent, Change};
use crate::model::{JobRecord, JobState};

/// Patience of these operations; they are tried again.
const PATIENCE: Span = Span::secs(10);
/// The owner looks over an array this often,
const LOOK_EVERY: Span = Span::secs(1);
/// asks about one of its jobs again after this long,
const ASK_EVERY: Span = Span::secs(10);
/// about so many of them at once,
const ASKED_MAX: usize = 64;
/// and opens at most so many more at a time.
const OPEN_MAX: u32 = 64;
/// A job that is waited for is read this often at first, and ever more seldom up to the second.
const AFTER_FIRST: Span = Span::secs(2);
const AFTER_MAX: Span = Span::secs(30);

/// Of one array: soft.
#[derive(Debug, Default)]
struct Opening {
    ids: Vec<JobId>,
    /// Operations on its jobs, and when each was last begun.
    asked: BTreeMap<u32, Instant>,
    in_flight: usize,
    ended: BTreeMap<u32, End>,
    changing: bool,
}

/// Soft state of the arrays and waiting jobs that this peer drives.
#[derive(Debug, Default)]
pub(super) struct Arrays {
    open: BTreeMap<JobId, Opening>,
    /// When a waiting job's others are read next, and how long after that.
    after: BTreeMap<JobId, (Instant, Span)>,
}

impl Peer {
    /// The jobs that this one waits for have ended as they should. Else they are looked at, and again later.
    pub(super) fn after_met(&mut self, job: JobId, record: &JobRecord) -> bool {
        let now = self.now.mono;
        if record.waits_for().next().is_none() {
            self.arrays.after.remove(&job);
            return true;
        }
        let (due, every) = *self.arrays.after.entry(job).or_insert((now, AFTER_FIRST));
        let ends_here = |id: &JobId| self.acceptor.job(id).is_some_and(|r| r.state.is_final());
        let here = record.waits_for().any(|(_, after)| ends_here(&after.birth.id()));
        if now < due && !here {
            self.drive_at(job, due);
            return false;
        }
        let (next, every) = (now + every, every.scale(3, 2).min(AFTER_MAX));
        self.arrays.after.insert(job, (next, every));
        for (which, after) in record.waits_for() {
            let purpose = Purpose::After { job, which };
            self.propose(Origin::Job(after.birth.clone()), Task::Read, purpose, PATIENCE);
        }
        self.drive_at(job, next);
        false
    }

    pub(super) fn after_read(&mut self, job: JobId, which: u32, result: OpResult) {
        let Some(record) = self.acceptor.job_shared(&job) else { return };
        let Some((_, after)) = record.waits_for().find(|(i, _)| *i == which) else { return };
        let id = after.birth.id().short();
        let (met, how) = match result {
            OpResult::Value { value: Value::Job(other), .. } if other.state.is_final() => {
                (after.on.met_by(other.state), format!("ended as {}", other.state.as_str()))
            }
            // It ended, and how is no longer kept.
            OpResult::Forgotten => (after.on == crate::model::array::On::Any, "is no longer kept".into()),
            _ => return,
        };
        let change = if met {
            ArrayChange::Met { which }
        } else {
            let why =
                format!("never started: it wants job {id} to end as {}, and that {how}", after.on.as_str());
            ArrayChange::Unmet { why, at: self.now.wall }
        };
        let origin = Origin::Job(record.birth.clone());
        self.propose(origin, Task::Job(Change::Array(change)), Purpose::ArrayChanged(job), PATIENCE);
    }

    /// One look at an array. Its own record is never placed.
    pub(super) fn drive_array(&mut self, job: JobId, record: &JobRecord) {
        let (Some(spec), Some(state)) = (&record.spec.array, &record.array) else { return };
        let now = self.now.mono;
        if record.cancel.is_none() && !self.after_met(job, record) {
            return;
        }
        let opening = self.arrays.open.entry(job).or_default();
        for rank in opening.ids.len() as u32..state.opened {
            opening.ids.extend(record.child_birth(rank).map(|birth| birth.id()));
        }
        let (mut reads, mut makes, mut cancels) = (Vec::new(), Vec::new(), Vec::new());
        let room = ASKED_MAX.saturating_sub(opening.in_flight);
        for rank in state.living().filter(|rank| !opening.ended.contains_key(rank)) {
            if reads.len() + makes.len() + cancels.len() >= room {
                break;
            }
            if opening.asked.get(&rank).is_some_and(|at| now.since(*at) < ASK_EVERY) {
                continue;
            }
            match opening.ids.get(rank as usize).and_then(|id| self.acceptor.job(id)) {
                // Not here: made now, or read, if others have made it.
                None => makes.push(rank),
                Some(child) if child.state.is_final() => reads.push(rank),
                Some(child) if record.cancel.is_some() && child.cancel.is_none() => cancels.push(rank),
                Some(_) => {}
            }
        }
        opening.in_flight += reads.len() + makes.len() + cancels.len();
        for rank in reads.iter().chain(&makes).chain(&cancels) {
            opening.asked.insert(*rank, now);
        }
        let changing = opening.changing;
        let ended: Vec<(u32, End)> = opening.ended.iter().map(|(rank, end)| (*rank, *end)).collect();
        for rank in reads {
            self.ask_child(job, record, rank, Task::Read);
        }
        for rank in makes {
            let Some(child) = record.child(rank) else { continue };
            self.ask_child(job, record, rank, Task::Create(Box::new(Value::job(child)), Fresh::No));
        }
        for rank in cancels {
            let by = record.cancel.as_ref().map(|c| c.by.clone()).unwrap_or_default();
            let intent = CancelIntent { by, at: self.now.wall };
            self.ask_child(job, record, rank, Task::Job(Change::Cancel { intent }));
        }
        let most = state.done().saturating_add(spec.at_once).min(spec.len());
        let to = most.min(state.opened.saturating_add(OPEN_MAX));
        let change = if !ended.is_empty() {
            Some(ArrayChange::Ended { ranks: ended, at: self.now.wall })
        } else if to > state.opened && record.cancel.is_none() {
            Some(ArrayChange::Open { to })
        } else {
            None
        };
        if let Some(change) = change.filter(|_| !changing) {
            if let Some(opening) = self.arrays.open.get_mut(&job) {
                opening.changing = true;
            }
            let origin = Origin::Job(record.birth.clone());
            self.propose(origin, Task::Job(Change::Array(change)), Purpose::ArrayChanged(job), PATIENCE);
        }
        self.drive_at(job, now + LOOK_EVERY);
    }

    fn ask_child(&mut self, job: JobId, record: &JobRecord, rank: u32, task: Task) {
        let Some(birth) = record.child_birth(rank) else { return };
        self.propose(Origin::Job(birth), task, Purpose::ArrayChild { job, rank }, PATIENCE);
    }

    pub(super) fn child_asked(&mut self, job: JobId, rank: u32, result: OpResult) {
        let Some(opening) = self.arrays.open.get_mut(&job) else { return };
        opening.in_flight = opening.in_flight.saturating_sub(1);
        let end = match result {
            OpResult::Value { value: Value::Job(child), .. } => {
                let (state, birth) = (child.state, child.birth.clone());
                if !state.is_final() {
                    // Its own owner need not wait to find out.
                    if let Some(owner) = self.owner_of(&child).filter(|o| *o != self.cfg.name) {
                        self.send(owner, super::message::Message::Look { birth }, false);
                    }
                    return;
                }
                End::from(state)
            }
            // Kept no longer than its array: how it ended is not known any more.
            OpResult::Forgotten => End::Failed,
            _ => return,
        };
        opening.ended.insert(rank, end);
        self.drive_soon(job);
    }

    pub(super) fn array_changed(&mut self, job: JobId, result: OpResult) {
        if let Some(opening) = self.arrays.open.get_mut(&job) {
            opening.changing = false;
            if let OpResult::Value { value: Value::Job(record), .. } = &result {
                let state = record.array.as_ref();
                opening.ended.retain(|rank, _| state.is_some_and(|s| !s.has_ended(*rank)));
                opening.asked.retain(|rank, _| state.is_some_and(|s| !s.has_ended(*rank)));
            }
        }
        if let OpResult::Value { value: Value::Job(record), refused: None } = &result
            && record.state.is_final()
        {
            let whole = crate::model::trace::whole(record).into_iter().collect();
            self.event_with("job.closed", Some(job), record.reason.clone(), whole);
        }
        self.drive_soon(job);
    }

    /// This home no longer drives the job.
    pub(super) fn drop_array(&mut self, job: &JobId) {
        self.arrays.open.remove(job);
        self.arrays.after.remove(job);
    }

    /// A job of an array has ended, as far as this disk knows: its array need not wait to find out.
    pub(super) fn child_ended(&mut self, record: &JobRecord) {
        if let Some(of) = record.array_of.filter(|_| record.state.is_final())
            && self.acceptor.job(&of.parent).is_some_and(|parent| parent.state == JobState::Running)
        {
            if let Some(opening) = self.arrays.open.get_mut(&of.parent) {
                let rank = opening.ids.iter().position(|id| *id == record.id());
                rank.and_then(|rank| u32::try_from(rank).ok()).map(|rank| opening.asked.remove(&rank));
            }
            self.drive_soon(of.parent);
        }
    }
}

#[cfg(test)]
#[path = "arrays_tests.rs"]
mod tests;
