//! Attempts as a machine runs them, each under a guard with its own deadline; and the ledger of every
//! execution, which is judged without asking Starling.

use starling::base::{ContactId, Instant, JobId, Span, WallTime};
use starling::core::api::{AttemptKey, StartCommand, StopReason};
use starling::core::{BackendCommand, BackendEvent};
use starling::model::Outcome;

use super::scenario::Bug;
use super::{Event, World};

/// One execution, as the machine saw it.
#[derive(Debug, Clone)]
pub struct Execution {
    pub job: JobId,
    /// The job of which it is a group.
    pub parent: Option<JobId>,
    pub epoch: u64,
    pub peer: usize,
    pub from: Instant,
    pub until: Option<Instant>,
    pub finished: bool,
    pub gpus: u32,
    /// The peer that started it knew that the tenant is limited.
    pub limited: bool,
}

/// An attempt that runs.
pub struct Running {
    pub gpus: u32,
    pub tenant: String,
    pub grace: Option<Span>,
    pub binding: (ContactId, u64),
    /// The binding before, while it is not known which one the record names.
    pub and: Option<(ContactId, u64)>,
    pub ledger: usize,
    pub ending: bool,
    pub started_at: WallTime,
    /// When its work is done, in true time; later by every suspend.
    pub done_at: Instant,
}

/// After a wake-up the guard has this long until it has looked and killed; what is written in between is
/// only held off by the fenced path.
pub const GAP: Span = Span::millis(100);

/// The guard kills so long before the end of the grace, as in production.
fn kill_margin(grace: Span) -> Span {
    grace.scale(1, 10).max(Span::millis(100)).min(Span::secs(5))
}

impl World {
    pub(super) fn command(&mut self, i: usize, command: BackendCommand) {
        match command {
            BackendCommand::Start(start) => self.start_attempt(i, *start),
            BackendCommand::Stop { key, reason, notice } => self.stop_attempt(i, key, reason, notice),
            BackendCommand::Rebind { key, to, and } => {
                if let Some(running) = self.machines[i].attempts.get_mut(&key) {
                    running.binding = to;
                    running.and = and;
                }
            }
            BackendCommand::Forget { key } => {
                self.machines[i].ended.remove(&key);
            }
        }
    }

    fn stop_attempt(&mut self, i: usize, key: AttemptKey, reason: StopReason, notice: Span) {
        if let Some(running) = self.machines[i].attempts.get_mut(&key) {
            if !running.ending {
                running.ending = true;
                let outcome = match reason {
                    StopReason::Cancel => Outcome::Cancelled,
                    StopReason::Timeout => Outcome::TimedOut,
                    StopReason::Drain | StopReason::Superseded => Outcome::Stopped(format!("{reason:?}")),
                };
                // Some programs use all of the notice.
                let most = if self.rng.chance(0.3) { notice.0 } else { 500_000 };
                let takes = Span(50_000 + self.rng.below(most));
                self.at(takes, Event::Killed(i, key, outcome));
            }
        } else if self.machines[i].ended.contains_key(&key) {
            self.report_end(i, key);
        } else {
            // Never started, and never will be.
            let wall = WallTime(self.t.0 / 1000);
            let m = &mut self.machines[i];
            m.ever_started.insert(key);
            m.ended.insert(key, (Outcome::NotStarted("stopped first".into()), None, wall));
            self.report_end(i, key);
        }
    }

    fn start_attempt(&mut self, i: usize, start: StartCommand) {
        let key = start.key;
        if !self.machines[i].ever_started.insert(key) {
            if self.machines[i].ended.contains_key(&key) {
                self.report_end(i, key);
            }
            return;
        }
        let m = &mut self.machines[i];
        let slept = m.slept;
        let lease = m.leases.entry(start.binding).or_insert((start.renewed_at, slept));
        lease.0 = lease.0.max(start.renewed_at);
        let wall = WallTime(self.t.0 / 1000);
        let running = Running {
            gpus: start.spec.resources.gpus,
            tenant: start.spec.tenant.clone(),
            grace: start.spec.on_lost_contact.grace,
            binding: start.binding,
            and: None,
            ledger: self.ledger.len(),
            ending: false,
            started_at: wall,
            done_at: self.t,
        };
        // As in production, where half of a short grace is for the notice.
        let half = running.grace.unwrap_or_default().scale(1, 2);
        let guarded = self.scenario.bug != Some(Bug::NoGuard);
        if guarded && self.deadline(i, &running).is_some_and(|(end, now)| now + half >= end) {
            let outcome = Outcome::NotStarted("its contact ran out before it began".into());
            self.machines[i].ended.insert(key, (outcome, None, wall));
            return self.report_end(i, key);
        }
        self.check_start(i, key, running.gpus);
        let (job, epoch) = (key.job, key.epoch.0);
        let gpus = running.gpus;
        let limited = running.tenant == super::shapes::TENANT && self.knows_the_limit(i);
        let parent = start.spec.env.get("STARLING_GROUP_JOB_ID").and_then(|id| id.parse().ok());
        self.check_groups(i, key, parent);
        let (from, until, finished) = (self.t, None, false);
        let begins = Execution { job, parent, epoch, peer: i, from, until, finished, gpus, limited };
        self.ledger.push(begins);
        self.check_limit(i, key);
        let work = Span(500_000 + self.rng.below(self.scenario.work_max.0 - 500_000));
        let running = Running { done_at: self.t + work, ..running };
        self.note(|w| format!("{} STARTS {} epoch {}", w.machines[i].name, key.job.short(), key.epoch));
        self.machines[i].attempts.insert(key, running);
        self.at(work, Event::WorkDone(i, key));
        self.at(Span::millis(100), Event::GuardLooks(i, key));
        let publish = Span(1_000_000 + self.rng.below(6_000_000));
        self.at(publish, Event::PublishDue(i, key));
        self.at(Span(1), Event::Backend(i, Box::new(BackendEvent::Started { key, at: wall })));
    }

    /// When the guard's attempt must be gone, on the machine's clock, and what the guard's clock shows.
    pub(super) fn deadline(&self, i: usize, running: &Running) -> Option<(Instant, Instant)> {
        let (m, grace) = (&self.machines[i], running.grace?);
        let own = m.leases.get(&running.binding).copied();
        let own = match running.and {
            Some(and) => own.min(m.leases.get(&and).copied()),
            None => own,
        };
        let lease = match self.scenario.bug {
            Some(Bug::AnyRenewal) => m.leases.values().max().copied(),
            _ => own,
        };
        let (lease, slept) = lease.unwrap_or((Instant(0), Span::ZERO));
        let now = m.clock(self.t);
        let now = match self.scenario.bug {
            Some(Bug::SuspendWithoutBoottime) => Instant(now.0.saturating_sub((m.slept - slept).0)),
            _ => now,
        };
        Some((lease + grace, now))
    }

    pub(super) fn guard_looks(&mut self, i: usize, key: AttemptKey) {
        let Some(running) = self.machines[i].attempts.get(&key) else { return };
        let Some((end, now)) = self.deadline(i, running) else { return };
        let grace = running.grace.unwrap_or_default();
        let margin = kill_margin(grace);
        let kill_at = match self.scenario.bug {
            Some(Bug::NoGuard) => return,
            Some(Bug::GuardLate) => end + grace.scale(1, 2) + Span::secs(2),
            _ => Instant((end.0).saturating_sub(margin.0)),
        };
        if now >= kill_at {
            // The kill is over by the end of the grace; what woke up late is killed at once.
            let left = (kill_at + margin.scale(9, 10)).since(now);
            let takes = Span(self.rng.below(left.0.max(20_000)));
            let outcome = Outcome::Stopped("lost contact".into());
            return self.at(takes, Event::Killed(i, key, outcome));
        }
        let m = &self.machines[i];
        let next = m.true_time(m.clock(self.t) + kill_at.since(now)).since(self.t);
        self.at(next.min(Span::millis(200)).max(Span::millis(1)), Event::GuardLooks(i, key));
    }

    pub(super) fn work_done(&mut self, i: usize, key: AttemptKey) {
        let Some(running) = self.machines[i].attempts.get(&key) else { return };
        let (ledger, left) = (running.ledger, running.done_at.since(self.t));
        if left > Span::ZERO {
            return self.at(left, Event::WorkDone(i, key));
        }
        self.ledger[ledger].finished = true;
        self.end_attempt(i, key, Outcome::Exited(0));
    }

    pub(super) fn end_attempt(&mut self, i: usize, key: AttemptKey, outcome: Outcome) {
        let Some(running) = self.machines[i].attempts.remove(&key) else { return };
        self.note(|w| {
            format!("{} ENDS {} epoch {}: {outcome:?}", w.machines[i].name, key.job.short(), key.epoch)
        });
        self.ledger[running.ledger].until = Some(self.t);
        let wall = WallTime(self.t.0 / 1000);
        self.machines[i].ended.insert(key, (outcome, Some(running.started_at), wall));
        self.report_end(i, key);
    }

    pub(super) fn report_end(&mut self, i: usize, key: AttemptKey) {
        let Some((outcome, started_at, at)) = self.machines[i].ended.get(&key).cloned() else { return };
        self.at(Span(1), Event::Backend(i, Box::new(BackendEvent::Ended { key, outcome, started_at, at })));
    }

    /// Everything that runs on the machine dies with it.
    pub(super) fn stop_machine(&mut self, i: usize) {
        let keys: Vec<AttemptKey> = self.machines[i].attempts.keys().copied().collect();
        for key in keys {
            self.end_attempt(i, key, Outcome::Stopped("machine went down".into()));
        }
        // A machine that starts has a clock of a new origin.
        let base = self.rng.below(1 << 40);
        let m = &mut self.machines[i];
        m.leases.clear();
        m.clock_base = base;
    }
}
