//! Keeping records where they belong, for as long as they are kept.
//!
//! A sweep goes round this disk's records. A home set with a member that was removed, came back with
//! another disk, drains or has been lost for long is moved: sealed in its generation, carried over to the
//! next one (`propose`). A record that ended and was kept long enough is forgotten: its final value first
//! at *all* homes, then a tombstone at all of them. The job's acting owner begins either (others where it never does), and few at
//! a time.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{Origin, RecordKey, RegisterBody, RegisterRequest};
use super::peer::{Peer, Timer};
use super::propose::{OpResult, Task};
use super::purpose::Purpose;
use crate::base::{Home, Instant, JobId, PeerName, Span};
use crate::model::JobRecord;
use crate::model::record::Change;
use crate::model::report::{Liveness, MemberView};

/// At most so many records are looked over in one sweep,
const SWEEP_MAX: usize = 4_096;
/// and so many moves and forgettings run at once.
const MOVES_MAX: usize = 16;
const FORGETS_MAX: usize = 16;
/// A member that drains for this long is leaving, and is no home any more where others can be.
const LEAVES_AFTER: Span = Span::secs(30);
/// Patience of these operations; the next round tries again.
const PATIENCE: Span = Span::secs(10);

/// What the sweep remembers.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    cursor: Option<JobId>,
    moving: BTreeSet<JobId>,
    forgetting: BTreeSet<JobId>,
    /// Since when a member has been draining or lost.
    away: BTreeMap<PeerName, (bool, Instant)>,
    /// Records of the last whole round that should move and have not: what a leaving member waits for.
    unsettled: usize,
    counting: usize,
    /// When the ended records of this round ended, and since when one must have ended to be among the
    /// `retain_jobs` newest of the last one.
    ended: Vec<u64>,
    cutoff: u64,
    /// Ended records of the last whole round.
    kept: usize,
}

impl Peer {
    /// Follows who is away; called with every view.
    pub(super) fn note_away(&mut self) {
        let now = self.now.mono;
        let mut away = BTreeMap::new();
        for member in self.view.members.values() {
            let lost = member.liveness == Liveness::Lost;
            if lost || member.draining {
                let since = self.keeper.away.get(&member.peer).filter(|(was, _)| *was == lost);
                away.insert(member.peer.clone(), (lost, since.map_or(now, |(_, at)| *at)));
            }
        }
        self.keeper.away = away;
    }

    pub(super) fn sweep(&mut self) {
        self.timer_in(self.cfg.pace.sweep_every, Timer::Sweep);
        self.tend_ledgers();
        let (mut due, mut ended) = (Vec::new(), Vec::new());
        let (mut count, mut last) = (0, None);
        for (job, record) in self.acceptor.jobs_after(self.keeper.cursor).take(SWEEP_MAX) {
            (count, last) = (count + 1, Some(job));
            ended.extend(record.finished_at.filter(|_| record.state.is_final()).map(|at| at.0));
            if self.needs_move(&job, record) || (record.state.is_final() && self.kept_long_enough(record)) {
                due.push(job);
            }
        }
        self.keeper.cursor = last;
        self.keeper.ended.extend(ended);
        for job in due {
            if let Some(record) = self.acceptor.job_shared(&job) {
                self.sweep_one(job, &record);
            }
        }
        if count < SWEEP_MAX {
            // The round is over.
            self.keeper.cursor = None;
            self.keeper.unsettled = std::mem::take(&mut self.keeper.counting);
            let (mut ended, keep) = (std::mem::take(&mut self.keeper.ended), self.cfg.retain_jobs);
            self.keeper.kept = ended.len();
            let over = ended.len().checked_sub(keep).filter(|over| *over > 0);
            self.keeper.cutoff = over.map_or(0, |over| *ended.select_nth_unstable(over).1);
        }
    }

    fn sweep_one(&mut self, job: JobId, record: &JobRecord) {
        let moves = self.needs_move(&job, record);
        let forgets = !moves && record.state.is_final() && self.kept_long_enough(record);
        if !moves && !forgets {
            return;
        }
        self.keeper.counting += usize::from(moves);
        // The home whose turn it is may not know a sealed record at all, and may have forgotten one that has ended: so the
        // others do it too, seldom enough not to race.
        let acts = self.acts_for(record);
        let may_wait_for_ever = record.sealed.is_some() || (record.state.is_final() && !acts);
        let others_turn = may_wait_for_ever && self.rng.below(4) == 0;
        match moves {
            _ if !(acts || others_turn) => {}
            true => self.move_homes(job, record),
            false => self.forget_job(job, record),
        }
    }

    fn good_home(&self, home: &Home) -> bool {
        self.view.members.get(&home.peer).is_some_and(|m| m.store == home.store && !self.leaves(m))
    }

    /// It has been draining, or lost, long enough to be replaced as a home.
    fn leaves(&self, member: &MemberView) -> bool {
        self.keeper.away.get(&member.peer).is_some_and(|(lost, since)| {
            let patience = if *lost { self.cfg.rehome_after } else { LEAVES_AFTER };
            self.now.mono.since(*since) >= patience
        })
    }

    /// Asked of thousands of records a second: the id is at hand, and is not worked out from the record again.
    fn needs_move(&self, job: &JobId, record: &JobRecord) -> bool {
        if record.sealed.is_some() {
            return true;
        }
        self.better_homes(record.homes(), job.ring_key()).is_some()
    }

    /// Where a record should move that these homes hold; none where it should not.
    pub(super) fn better_homes(&self, homes: &[Home], ring_key: u64) -> Option<Vec<Home>> {
        if self.view.members.is_empty() || self.view.isolated {
            return None;
        }
        let few = homes.len() < self.ring.set_size(self.view.members.len(), self.cfg.replicas);
        let due = few || !homes.iter().all(|h| self.good_home(h));
        if due { self.next_homes(homes, ring_key) } else { None }
    }

    /// This cluster has been lost for long, was removed, or came back with another disk.
    pub(super) fn gone_for_long(&self, home: &Home) -> bool {
        let Some(member) = self.view.members.get(&home.peer) else { return true };
        let lost = self.keeper.away.get(&home.peer).filter(|(lost, _)| *lost);
        member.store != home.store
            || lost.is_some_and(|(_, since)| self.now.mono.since(*since) >= self.cfg.rehome_after)
    }

    /// The present homes that may stay, filled up by the ring; none where that is no better.
    fn next_homes(&self, homes: &[Home], ring_key: u64) -> Option<Vec<Home>> {
        let keep: Vec<Home> = homes.iter().filter(|h| self.good_home(h)).cloned().collect();
        let fits = |m: &MemberView| {
            m.liveness == Liveness::Alive && !m.draining && !self.leaves(m) && !m.disk_full()
        };
        let size = self.ring.set_size(self.view.members.len(), self.cfg.replicas).max(keep.len());
        let mut next = self.ring.fill(&self.view, ring_key, keep.clone(), size, fits);
        // A set stays odd, or a pair: four homes need three of them, as five do.
        if next.len() == 4 {
            next.pop();
        }
        // Members that are merely away stay where too few others are there.
        let gone = |h: &&Home| self.view.members.get(&h.peer).is_none_or(|m| m.store != h.store);
        let smaller = next.len() < homes.len() && homes.iter().filter(gone).count() == 0;
        let alive = next.iter().filter(|h| self.home_alive(h)).count();
        let same = next.len() == homes.len() && next.iter().all(|h| homes.contains(h));
        (!next.is_empty() && !same && !smaller && alive > next.len() / 2).then_some(next)
    }

    fn move_homes(&mut self, job: JobId, record: &JobRecord) {
        if self.keeper.moving.len() >= MOVES_MAX || !self.keeper.moving.insert(job) {
            return;
        }
        let next = self.next_homes(record.homes(), job.ring_key());
        let task = match (&record.sealed, next) {
            // Somebody sealed it and did not get to the end. A majority does: one of these homes may be gone for good.
            (Some(_), _) => Task::Settle,
            (None, Some(next)) => Task::Job(Change::Seal { generation: record.generation, next }),
            (None, None) => {
                self.keeper.moving.remove(&job);
                return;
            }
        };
        self.propose(Origin::Job(record.birth.clone()), task, Purpose::MoveHomes(job), PATIENCE);
    }

    pub(super) fn homes_moved(&mut self, job: JobId, result: OpResult) {
        self.keeper.moving.remove(&job);
        match result {
            OpResult::Value { value: super::acceptor::Value::Job(record), .. } => {
                let names: Vec<&str> = record.homes().iter().map(|h| h.peer.as_str()).collect();
                let text = format!("held by {} from generation {} on", names.join(", "), record.generation);
                self.event("job.homes_moved", Some(job), text);
                self.drive_soon(job);
            }
            _ => self.count("home_moves_failed"),
        }
    }

    // Forgetting.

    fn kept_long_enough(&self, record: &JobRecord) -> bool {
        let Some(at) = record.finished_at else { return false };
        self.now.wall.0.saturating_sub(at.0) >= self.cfg.retain.0 / 1000 || at.0 < self.keeper.cutoff
    }

    /// Asked to forget what ended a short while ago by the clock here: one peer whose clock is wrong would make the ends of
    /// jobs vanish that people still look for. Where many are kept, they are forgotten for their number.
    pub(super) fn too_young(&self, request: &RegisterRequest) -> bool {
        let (RegisterBody::Forget, RecordKey::Job(job)) = (&request.body, &request.key) else { return false };
        let Some(at) = self.acceptor.job(job).and_then(|record| record.finished_at) else { return false };
        let age = Span::millis(self.now.wall.0.saturating_sub(at.0));
        // Clocks differ a little.
        let few = self.keeper.kept < self.cfg.retain_jobs / 2;
        few && age < self.cfg.retain.scale(9, 10)
    }

    fn forget_job(&mut self, job: JobId, record: &JobRecord) {
        if self.keeper.forgetting.len() >= FORGETS_MAX || !self.keeper.forgetting.insert(job) {
            return;
        }
        let origin = Origin::Job(record.birth.clone());
        self.propose(origin, Task::SettleAll, Purpose::ForgetSettled(job), PATIENCE);
    }

    /// The final value is at all homes: now, and only now, all of them may forget it.
    pub(super) fn forget_settled(&mut self, job: JobId, result: OpResult) {
        if let OpResult::Value { value: super::acceptor::Value::Job(record), .. } = result
            && record.state.is_final()
        {
            let origin = Origin::Job(record.birth.clone());
            return self.propose(origin, Task::Forget, Purpose::Forgotten(job), PATIENCE);
        }
        self.keeper.forgetting.remove(&job);
    }

    pub(super) fn job_forgotten(&mut self, job: JobId, result: &OpResult) {
        self.keeper.forgetting.remove(&job);
        if matches!(result, OpResult::Forgotten) {
            self.count("records_forgotten");
        }
    }

    /// Records here whose home set should change and has not.
    pub(super) fn unsettled(&self) -> usize {
        self.keeper.unsettled.max(self.keeper.counting)
    }
}
