//! The judge: what the ledger, the users' histories and production's own counters must never show.

use std::collections::BTreeMap;

use starling::base::{JobId, Span};
use starling::core::api::AttemptKey;
use starling::model::{JobRecord, JobState};
use starling::surface::linear::Verdict;
use starling::surface::linear::job::JobHistory;

use super::guards::Execution;
use super::users::Act;
use super::{Event, World, shapes};

/// What a run showed.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    pub seed: u64,
    pub peers: usize,
    pub submitted: usize,
    pub succeeded: usize,
    pub cancelled: usize,
    /// Jobs that ran more than once.
    pub moved: usize,
    pub executions: usize,
    /// Jobs with groups that ran, and those of which groups ran in several clusters.
    pub grouped: usize,
    pub spread: usize,
    /// Reservations that some cluster kept, and how often a look at one found an attempt of its tenant inside.
    pub reserved: usize,
    pub inside: usize,
    /// Faults injected, by kind; lost and repeated messages are counted apart.
    pub faults: BTreeMap<&'static str, u64>,
    pub messages: u64,
    pub lost: u64,
    pub repeated: u64,
    /// Operations of users that were checked for linearizability, and histories too long to decide.
    pub linear_ops: usize,
    pub undecided: usize,
    pub violations: Vec<String>,
    pub trace_hash: u64,
    pub simulated: Span,
    /// From the healing until all jobs were final, and the bound that was stated for it.
    pub settled: Option<Span>,
    pub settle_bound: Span,
}

impl World {
    pub(super) fn violation(&mut self, what: String) {
        self.note(|w| {
            format!("VIOLATION {what}\n{}", w.machines.iter().map(|m| m.name.to_string()).collect::<String>())
        });
        if self.violations.len() < 50 {
            self.violations.push(what);
        }
    }

    /// What production itself counted; read before a process is gone.
    pub(super) fn count_violations(&mut self, i: usize) {
        let Some(core) = self.machines[i].core.as_ref() else { return };
        let broken: Vec<(&str, u64)> = core
            .counters()
            .iter()
            .filter(|(n, _)| n.starts_with("invariant_"))
            .map(|(n, c)| (*n, *c))
            .collect();
        let name = self.machines[i].name.clone();
        for (counter, n) in broken {
            self.violation(format!("{name} counted {counter} {n} times"));
        }
    }

    /// I2, I3 and I6 at the moment of a start: nothing newer ever ran, nothing else runs, and it fits.
    pub(super) fn check_start(&mut self, i: usize, key: AttemptKey, gpus: u32) {
        let mut wrong = Vec::new();
        for other in self.ledger.iter().filter(|e| e.job == key.job) {
            if other.until.is_none() && !self.sleeps_past_its_end(other) {
                wrong.push(format!(
                    "I3: {} epoch {} starts at peer {i} while epoch {} runs at peer {}",
                    key.job, key.epoch, other.epoch, other.peer
                ));
            }
            if other.epoch >= key.epoch.0 {
                wrong.push(format!(
                    "I2: {} epoch {} starts at peer {i} after epoch {} did",
                    key.job, key.epoch, other.epoch
                ));
            }
        }
        let used: u32 = self.machines[i].attempts.values().map(|r| r.gpus).sum();
        if used + gpus > shapes::GPUS {
            wrong.push(format!("I6: peer {i} runs {} GPUs of {}", used + gpus, shapes::GPUS));
        }
        wrong.into_iter().for_each(|w| self.violation(w));
    }

    /// A group that starts: of its job no other one runs under another epoch, and none ever ran under a later one.
    pub(super) fn check_groups(&mut self, i: usize, key: AttemptKey, parent: Option<JobId>) {
        let Some(parent) = parent else { return };
        let mut wrong = Vec::new();
        for other in self.ledger.iter().filter(|e| e.parent == Some(parent) && e.job != key.job) {
            let runs = other.until.is_none() && !self.sleeps_past_its_end(other);
            if (runs && other.epoch != key.epoch.0) || other.epoch > key.epoch.0 {
                wrong.push(format!(
                    "G: a group of {parent} starts at peer {i} under epoch {}, another at peer {} under {}",
                    key.epoch, other.peer, other.epoch
                ));
            }
        }
        wrong.into_iter().for_each(|w| self.violation(w));
    }

    /// Some epoch of which every group finished.
    fn groups_finished(&self, record: &JobRecord) -> bool {
        let groups: Vec<JobId> =
            (0..record.children()).filter_map(|g| Some(record.child_birth(g)?.id())).collect();
        (1..=record.epoch.0).any(|epoch| {
            let done = |g: &JobId| self.ledger.iter().any(|e| e.job == *g && e.epoch == epoch && e.finished);
            groups.iter().all(done)
        })
    }

    /// I5 at the moment of a start: GPUs of the tenant that run anywhere, by those who know that it is limited. Once
    /// all have known, nobody starts anything without knowing, a new disk or not.
    pub(super) fn check_limit(&mut self, i: usize, key: AttemptKey) {
        let Some(limit) = self.scenario.limit else { return };
        let counts = |e: &&Execution| e.limited && e.until.is_none() && !self.sleeps_past_its_end(e);
        let used: u32 = self.ledger.iter().filter(counts).map(|e| e.gpus).sum();
        if used > limit {
            self.violation(format!("I5: with {key} at peer {i} the tenant runs {used} GPUs of {limit}"));
        }
        if self.users.limit_known && !self.knows_the_limit(i) {
            self.violation(format!("I5: peer {i} starts {key} and knows of no limit"));
        }
    }

    pub(super) fn knows_the_limit(&self, i: usize) -> bool {
        self.machines[i].core.as_ref().is_some_and(|core| core.knows_tenant(shapes::TENANT))
    }

    /// S2t as docs/protocol.md promises it: a suspended machine runs nothing, and when it wakes its guard needs a
    /// moment; only the fenced path covers that moment. Both only past the attempt's own deadline.
    fn sleeps_past_its_end(&self, other: &Execution) -> bool {
        let m = &self.machines[other.peer];
        let running = m.attempts.iter().find(|(k, _)| k.job == other.job && k.epoch.0 == other.epoch);
        let end = running.and_then(|(_, r)| self.deadline(other.peer, r)).map(|(end, _)| end);
        let past = end.is_some_and(|end| m.clock(self.t) >= end);
        past && (m.asleep.is_some() || self.slept_past(other.peer, m.woke_at))
    }

    /// The moment after a wake-up is over: whatever slept past its deadline must be gone.
    pub(super) fn gap_over(&mut self, i: usize) {
        let m = &self.machines[i];
        if m.asleep.is_some() {
            return;
        }
        let late =
            |r: &super::guards::Running| self.deadline(i, r).is_some_and(|(end, _)| m.clock(self.t) > end);
        let late: Vec<AttemptKey> = m.attempts.iter().filter(|(_, r)| late(r)).map(|(k, _)| *k).collect();
        for key in late {
            self.violation(format!(
                "S2t: {key} still runs at peer {i} after its machine slept past its grace"
            ));
        }
    }

    pub(super) fn newest(&self, job: &JobId) -> Option<&JobRecord> {
        let hints = self.machines.iter().filter_map(|m| m.core.as_ref()?.hint(job));
        hints.max_by_key(|r| (r.version, r.state.is_final()))
    }

    fn all_final(&self) -> bool {
        self.reservations_over()
            && self.machines.iter().all(|m| m.attempts.is_empty())
            && self.users.jobs.iter().filter(|j| j.answered).all(|j| j.id.is_some_and(|id| self.is_over(&id)))
    }

    /// As far as the homes' last accepted values show; or nobody knows it any more.
    fn is_over(&self, job: &JobId) -> bool {
        self.newest(job).map_or(self.scenario.retain.is_some(), |r| r.state.is_final())
    }

    /// After the healing: waits for all jobs to end, then has all of them read again. False when the run is
    /// over.
    pub(super) fn look_over(&mut self) -> bool {
        let since = self.t.since(self.healed_at);
        self.check_kept();
        match self.reading_since {
            None if self.all_final() && !self.submits_wait() => {
                // As far as the homes' last accepted values show; only reads through the register count.
                self.reading_since = Some(self.t);
                let answered = (0..self.users.jobs.len()).filter(|n| self.users.jobs[*n].answered);
                let answered: Vec<usize> = answered.collect();
                self.users.last_open = 2 * answered.len();
                for n in answered.into_iter().flat_map(|n| [n, n]) {
                    self.user(Act::LastRead(n));
                }
            }
            Some(_) if self.users.last_open == 0 => {
                self.settled = Some(since);
                return false;
            }
            _ => {}
        }
        if since > self.scenario.settle_bound() {
            return false;
        }
        self.at(Span::millis(200), Event::Check);
        true
    }

    pub(super) fn judge(mut self) -> Outcomes {
        let mut seen = Outcomes {
            seed: self.scenario.seed,
            peers: self.machines.len(),
            executions: self.ledger.len(),
            faults: std::mem::take(&mut self.faults),
            messages: self.net.messages,
            lost: self.net.lost,
            repeated: self.net.repeated,
            trace_hash: self.hash,
            simulated: self.t.since(starling::base::Instant(0)),
            settled: self.settled,
            settle_bound: self.scenario.settle_bound(),
            reserved: self.reserved.kept.len(),
            inside: self.reserved.inside,
            ..Outcomes::default()
        };
        (0..self.machines.len()).for_each(|i| self.count_violations(i));
        let jobs = std::mem::take(&mut self.users.jobs);
        for (n, job) in jobs.into_iter().enumerate() {
            let Some(id) = job.id else { continue };
            let of = |e: &&Execution| e.job == id || e.parent == Some(id);
            let runs: Vec<&Execution> = self.ledger.iter().filter(of).collect();
            seen.moved += usize::from(runs.iter().any(|e| e.epoch > 1));
            let finished = match job.last.first().filter(|record| record.groups.is_some()) {
                Some(record) => self.groups_finished(record),
                None => runs.iter().any(|e| e.finished),
            };
            seen.grouped += usize::from(runs.iter().any(|e| e.parent.is_some()));
            let apart: std::collections::BTreeSet<usize> =
                runs.iter().filter(|e| e.parent.is_some()).map(|e| e.peer).collect();
            seen.spread += usize::from(apart.len() > 1);
            if job.answered {
                seen.submitted += 1;
                self.judge_end(n, &job, finished, &mut seen);
            }
            seen.linear_ops += job.ops.len();
            let history = JobHistory::new(job.ops);
            let history = if self.scenario.retain.is_some() { history.that_is_forgotten() } else { history };
            match history.check() {
                Verdict::Linearizable { .. } => {}
                Verdict::GaveUp { .. } => seen.undecided += 1,
                Verdict::Not { stuck, placed } => {
                    let what = history.describe(&stuck);
                    self.violation(format!(
                        "L: job {n} ({id}) is not linearizable after {placed} answers: {what}"
                    ));
                }
            }
        }
        seen.violations = self.violations;
        seen
    }

    fn judge_end(&mut self, n: usize, job: &super::users::UserJob, finished: bool, seen: &mut Outcomes) {
        let id = job.id.unwrap_or_default();
        if job.gone {
            // Whatever was read of it before, it is gone for good, and only what had ended may go.
            match (finished, job.cancelled) {
                (true, _) => seen.succeeded += 1,
                (false, true) => seen.cancelled += 1,
                (false, false) => {
                    self.violation(format!("S1: job {n} ({id}) is forgotten and had never finished"));
                }
            }
            return;
        }
        let Some(first) = job.last.first() else {
            let newest = self.newest(&id).map(|r| (r.version, r.state, r.reason.clone()));
            let ended = newest.as_ref().is_some_and(|(_, state, _)| state.is_final());
            // Where nothing was read since another job never ended, the hint must do.
            if !ended || self.reading_since.is_some() {
                let bound = self.scenario.settle_bound();
                self.dump(&id);
                let what = format!(
                    "job {n} ({id}) could not be read as ended within {bound} of healing: {newest:?}"
                );
                self.violation(format!("{}: {what}", if newest.is_some() { "S4" } else { "S1" }));
            }
            return;
        };
        // The record may move to other homes between the two reads.
        let end = |r: &JobRecord| (r.state, r.epoch, r.reason.clone(), r.checkpoint.clone(), r.finished_at);
        if let Some(other) = job.last.iter().find(|r| end(r) != end(first)) {
            self.violation(format!("I8: job {n} ({id}) was read as {first:?} and as {other:?}"));
        }
        match first.state {
            JobState::Succeeded if finished => seen.succeeded += 1,
            JobState::Cancelled if job.cancelled => seen.cancelled += 1,
            state => {
                let why = &first.reason;
                self.violation(format!("job {n} ({id}) ended as {state:?} ({why}); finished: {finished}"));
            }
        }
    }

    /// Everything known of one job, for a person who looks for the cause.
    pub(super) fn dump(&self, job: &JobId) {
        if !self.scenario.trace {
            return;
        }
        for (i, m) in self.machines.iter().enumerate() {
            let Some(core) = m.core.as_ref() else { continue };
            if let Some(r) = core.hint(job) {
                eprintln!(
                    "{} v{} {:?} epoch {} {:?} placement {:?} homes {:?}",
                    m.name, r.version, r.state, r.epoch, r.reason, r.placement, r.birth.homes
                );
            }
            let here: Vec<_> = m.attempts.keys().chain(m.ended.keys()).filter(|k| k.job == *job).collect();
            eprintln!("  peer {i}: attempts {here:?} {}", core.explain(job));
        }
        eprintln!("  ledger {:?}", self.ledger.iter().filter(|e| e.job == *job).collect::<Vec<_>>());
    }
}
