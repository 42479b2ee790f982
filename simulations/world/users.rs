//! Users of the simulated mesh: they submit, read and cancel through any peer, attempts publish
//! checkpoints, and every answer goes into a history that is checked for linearizability.

use std::collections::BTreeMap;

use starling::base::{JobId, Span};
use starling::core::api::{AttemptKey, ClientError};
use starling::core::{ClientRequest, ClientResponse, Input};
use starling::model::tenant::LimitsPatch;
use starling::model::{JobRecord, JobState};
use starling::surface::linear::Interval;
use starling::surface::linear::job::{Ask, Op, Told};

use super::scenario::Bug;
use super::{Event, World, shapes};

/// What a user does next, about the nth job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Submit(usize),
    Read(usize),
    Cancel(usize),
    /// An operator sends it to another cluster.
    Move(usize),
    /// The judge reads it after the world has healed.
    LastRead(usize),
    /// The nth reservation is asked for, or ended.
    Reserve(usize),
    Unreserve(usize),
    /// An operator limits the tenant, until that is answered.
    Limit,
    /// An operator looks for attempts without a grace that have stopped for good, and says so.
    Operate,
}

/// A job as its users know it.
#[derive(Debug, Clone, Default)]
pub struct UserJob {
    /// Known once somebody was told.
    pub id: Option<JobId>,
    /// A submit was answered: from then on the job must never be lost.
    pub answered: bool,
    pub key: Option<String>,
    pub cancelled: bool,
    pub ops: Vec<Op>,
    /// After the world had healed nobody knew of it any more.
    pub gone: bool,
    /// Records read after the world healed, by different peers.
    pub last: Vec<JobRecord>,
}

struct Asked {
    job: usize,
    op: usize,
    peer: usize,
    last: bool,
}

/// All users.
#[derive(Default)]
pub struct Users {
    pub jobs: Vec<UserJob>,
    waiting: BTreeMap<u64, Asked>,
    tokens: u64,
    pub by_id: BTreeMap<JobId, usize>,
    pub refused: usize,
    /// The operator's question.
    limit_asked: Option<u64>,
    limit_set: bool,
    /// Every peer knows of the limit.
    pub limit_known: bool,
    /// Reads of the last round that have not found an end yet.
    pub last_open: usize,
}

impl World {
    pub(super) fn employ_users(&mut self) {
        let chaos = self.scenario.chaos_for;
        if self.scenario.limit.is_some() {
            self.at(Span::millis(800), Event::User(Act::Limit));
        }
        if self.scenario.never_of > 0 {
            self.at(Span::secs(5), Event::User(Act::Operate));
        }
        self.users.jobs = vec![UserJob::default(); self.scenario.jobs];
        for n in 0..self.scenario.jobs {
            let when = Span::secs(3) + Span(self.rng.below(chaos.0.saturating_sub(4_000_000).max(1)));
            self.at(when, Event::User(Act::Submit(n)));
            for _ in 0..1 + self.rng.below(8) {
                let read = when + Span(self.rng.below(25_000_000));
                self.at(read, Event::User(Act::Read(n)));
            }
            if self.rng.chance(0.1) {
                let goes = when + Span(self.rng.below(20_000_000));
                self.at(goes, Event::User(Act::Move(n)));
            }
            if self.rng.chance(0.15) {
                let cancel = when + Span(self.rng.below(20_000_000));
                self.at(cancel, Event::User(Act::Cancel(n)));
            }
        }
    }

    pub(super) fn any_peer(&mut self) -> Option<usize> {
        let first = self.rng.below(self.machines.len() as u64) as usize;
        let n = self.machines.len();
        (0..n).map(|k| (first + k) % n).find(|&i| self.runs(i))
    }

    pub(super) fn user(&mut self, act: Act) {
        match act {
            Act::Submit(n) => self.submit(n),
            Act::Reserve(n) => self.reserve(n),
            Act::Unreserve(n) => self.unreserve(n),
            Act::Limit => self.limit(),
            Act::Operate => self.operate(),
            Act::Read(n) | Act::LastRead(n) => {
                let Some(job) = self.users.jobs[n].id else { return };
                let last = matches!(act, Act::LastRead(_));
                let Some(i) = self.any_peer() else {
                    if last {
                        self.at(Span::millis(500), Event::User(act));
                    }
                    return;
                };
                self.ask(i, n, Ask::Get, ClientRequest::Get { job }, last);
            }
            Act::Move(n) => {
                let Some(job) = self.users.jobs[n].id else { return };
                let Some(i) = self.any_peer() else { return };
                let to = self.rng.below(self.machines.len() as u64) as usize;
                let request =
                    ClientRequest::Move { job, to: self.machines[to].name.clone(), by: "op".into() };
                // Nobody waits for the answer: the reads show what came of it.
                self.users.tokens += 1;
                let token = self.users.tokens;
                self.input(i, Input::Client { token, request });
            }
            Act::Cancel(n) => {
                let Some(job) = self.users.jobs[n].id else { return };
                let Some(i) = self.any_peer() else { return };
                self.users.jobs[n].cancelled = true;
                self.ask(i, n, Ask::Cancel, ClientRequest::Cancel { job, by: format!("user {n}") }, false);
            }
        }
    }

    fn operate(&mut self) {
        self.at(Span::secs(3), Event::User(Act::Operate));
        let ids: Vec<(usize, JobId)> =
            self.users.jobs.iter().enumerate().filter_map(|(n, j)| Some((n, j.id?))).collect();
        for (n, job) in ids {
            let Some(record) = self.newest(&job) else { continue };
            let never = record.spec.on_lost_contact.grace.is_none();
            if never && self.users.limit_known && record.state == JobState::Pending {
                // Taken in by a peer that did not know the limits yet: these let it run nowhere, and `why` says so.
                let Some(i) = self.any_peer() else { continue };
                self.users.jobs[n].cancelled = true;
                self.ask(i, n, Ask::Cancel, ClientRequest::Cancel { job, by: "op".into() }, false);
                continue;
            }
            let (epoch, placed) = (record.epoch, record.placement.clone());
            let Some(placed) = placed.filter(|_| record.spec.on_lost_contact.grace.is_none()) else {
                continue;
            };
            let Some(&at) = self.index.get(&placed.cluster) else { continue };
            let (m, key) = (&self.machines[at], AttemptKey { job, epoch });
            let runs = m.attempts.contains_key(&key);
            let ran = self.ledger.iter().any(|e| e.job == job && e.epoch == epoch.0 && e.until.is_some());
            // It will never be started, either: whoever was to do so has forgotten all.
            let replaced = m.replaced_at.is_some_and(|then| placed.at.0 < then.0 / 1_000);
            let lies = self.scenario.bug == Some(Bug::ConfirmedAlive);
            if (runs && lies) || (!runs && (ran || replaced)) {
                let Some(i) = self.any_peer() else { continue };
                self.users.tokens += 1;
                let token = self.users.tokens;
                let request =
                    ClientRequest::ConfirmLost { job, epoch, cluster: Some(placed.cluster), by: "op".into() };
                self.fault("confirm-lost");
                self.input(i, Input::Client { token, request });
            }
        }
    }

    fn limit(&mut self) {
        // What is not on disk yet may be forgotten in a crash.
        let row = format!("card/{}", shapes::TENANT).into_bytes();
        let noted = |m: &super::machine::Machine| {
            let row = m.disk.tables.get(&starling::core::Table::Meta).and_then(|meta| meta.get(&row));
            let card = row.and_then(|row| serde_json::from_slice::<serde_json::Value>(row).ok());
            // It begins without limits.
            card.is_some_and(|card| card["removed"] == false)
        };
        let all = self.machines.iter().all(noted);
        self.users.limit_known |= all;
        if self.users.limit_known {
            return;
        }
        self.at(Span::secs(2), Event::User(Act::Limit));
        let Some(gpus) = self.scenario.limit.filter(|_| !self.users.limit_set) else { return };
        let Some(i) = self.any_peer() else { return };
        let told = u64::from(gpus + self.scenario.limit_told_wrong);
        let patch = LimitsPatch {
            gpus: Some(Some(told)),
            grace: Some(Some(self.scenario.grace)),
            ..LimitsPatch::default()
        };
        self.users.tokens += 1;
        let token = self.users.tokens;
        self.users.limit_asked = Some(token);
        let (tenant, patch) = (shapes::TENANT.to_owned(), Some(Box::new(patch)));
        self.input(i, Input::Client { token, request: ClientRequest::TenantSet { tenant, patch } });
    }

    /// A job with a key is tried again at any peer, until it is answered.
    fn submit(&mut self, n: usize) {
        let job = self.users.jobs[n].clone();
        if job.answered || self.healed {
            return;
        }
        if self.scenario.limit.is_some() && !self.users.limit_set {
            return self.at(Span::millis(700), Event::User(Act::Submit(n)));
        }
        if job.key.is_none() && !job.ops.is_empty() {
            return;
        }
        let Some(i) = self.any_peer() else { return };
        let mut shape = starling::base::Rng::new(self.scenario.seed ^ (n as u64) << 32);
        let gpus = [1, 1, 2, 4, 8][shape.below(5) as usize];
        let key = shape.chance(0.5).then(|| format!("key-{n}"));
        let never = self.scenario.never_of;
        let grouped = self.scenario.groups && shape.chance(0.7);
        // Not both: an operator's word is about a job, and its groups have records of their own.
        let never = never > 0 && shape.below(never) == 0 && !grouped;
        let grace = (!never).then_some(self.scenario.grace);
        let mut spec = Box::new(shapes::spec(&format!("job-{n}"), gpus, grace));
        if grouped {
            // Half of them need two clusters, where there are two.
            let sizes: [&[u32]; 4] = match self.machines.len() {
                1 => [&[4, 4], &[1, 4], &[2, 2, 2], &[4, 3, 1]],
                _ => [&[6, 6], &[1, 4], &[2, 2, 2], &[5, 4, 3]],
            };
            *spec = shapes::with_groups(*spec, sizes[shape.below(4) as usize]);
        }
        self.reserving_shape(&mut spec, &mut shape);
        if key.is_some() {
            self.users.jobs[n].key = key.clone();
            let again = Span::secs(11) + Span(self.rng.below(4_000_000));
            self.at(again, Event::User(Act::Submit(n)));
        }
        self.ask(i, n, Ask::Submit, ClientRequest::Submit { spec, key }, false);
    }

    /// An attempt publishes a checkpoint through its peer: the fenced path.
    pub(super) fn publish_due(&mut self, i: usize, key: AttemptKey) {
        if !self.machines[i].attempts.contains_key(&key) {
            return;
        }
        let next = Span(2_000_000 + self.rng.below(6_000_000));
        if self.machines[i].woke_at != self.t {
            self.at(next, Event::PublishDue(i, key));
        }
        let (job, epoch) = (key.job, key.epoch);
        let Some(&n) = self.users.by_id.get(&job) else { return };
        if self.runs(i) {
            let uri = format!("file:///{}/{}/{}", job.short(), epoch, self.t.0);
            self.ask(i, n, Ask::Publish(epoch), ClientRequest::Publish { job, epoch, uri }, false);
        }
    }

    fn ask(&mut self, i: usize, n: usize, ask: Ask, request: ClientRequest, last: bool) {
        self.users.tokens += 1;
        let token = self.users.tokens;
        let ops = &mut self.users.jobs[n].ops;
        ops.push(Op { interval: Interval { call: self.t.0, ret: None }, ask, told: None });
        let op = ops.len() - 1;
        self.users.waiting.insert(token, Asked { job: n, op, peer: i, last });
        if self.scenario.bug == Some(Bug::StaleRead)
            && let ClientRequest::Get { job } = &request
            && let Some(hint) = self.machines[i].core.as_ref().and_then(|core| core.hint(job)).cloned()
        {
            return self.reply(token, ClientResponse::Job(Box::new(hint)));
        }
        self.input(i, Input::Client { token, request });
    }

    /// A submit is under way.
    pub(super) fn submits_wait(&self) -> bool {
        self.users.waiting.values().any(|a| self.users.jobs[a.job].ops[a.op].ask == Ask::Submit)
    }

    /// The process is gone: whoever waited for it will never know. What has to be read is read again, elsewhere: also
    /// after the healing a disk may be found to be an old one.
    pub(super) fn users_lose(&mut self, i: usize) {
        let (lost, waiting) =
            std::mem::take(&mut self.users.waiting).into_iter().partition(|(_, a)| a.peer == i);
        self.users.waiting = waiting;
        let lost: BTreeMap<u64, Asked> = lost;
        for asked in lost.into_values().filter(|asked| asked.last) {
            self.at(Span::millis(500), Event::User(Act::LastRead(asked.job)));
        }
    }

    pub(super) fn reply(&mut self, token: u64, response: ClientResponse) {
        if self.users.limit_asked == Some(token) {
            self.users.limit_set |= matches!(response, ClientResponse::Tenant(_));
            return self.note(|_| format!("limit: {}", short(&response)));
        }
        if self.answered_reserver(token, &response) {
            return;
        }
        let Some(Asked { job: n, op, last, peer }) = self.users.waiting.remove(&token) else { return };
        let gone = self.scenario.retain.is_some()
            && matches!(response, ClientResponse::Error(ClientError::NoSuchJob(_)));
        let ended = gone || matches!(&response, ClientResponse::Job(r) if r.state.is_final());
        self.users.jobs[n].gone |= last && gone;
        if last && !ended {
            self.at(Span::millis(500), Event::User(Act::LastRead(n)));
        }
        self.users.last_open -= usize::from(last && ended);
        self.note(|w| {
            format!(
                "job {n} {:?} at {}: {}",
                w.users.jobs[n].ops[op].ask,
                w.machines[peer].name,
                short(&response)
            )
        });
        let told = match response {
            ClientResponse::Submitted { job, .. } => {
                self.learn(n, job);
                self.users.jobs[n].answered = true;
                Told::Submitted
            }
            ClientResponse::Job(record) => {
                if last && ended {
                    self.users.jobs[n].last.push((*record).clone());
                }
                Told::Record(record)
            }
            ClientResponse::Cancelled { state } => Told::Cancelled(state),
            ClientResponse::Published => Told::Published,
            ClientResponse::Error(ClientError::NoSuchJob(_)) => Told::NoSuchJob,
            ClientResponse::Error(ClientError::Refused(why)) => Told::Refused(why),
            ClientResponse::Error(error) => {
                // Under a key it may still be another one.
                if let ClientError::Unknown { job: Some(job), .. } = error
                    && self.users.jobs[n].ops[op].ask == Ask::Submit
                    && self.users.jobs[n].key.is_none()
                {
                    self.learn(n, job);
                }
                // Refused before anything was done, or unknown: open for ever, which allows both.
                self.users.refused += 1;
                return;
            }
            _ => return,
        };
        let op = &mut self.users.jobs[n].ops[op];
        op.interval.ret = Some(self.t.0);
        op.told = Some(told);
    }

    /// One key is one job, whoever is told of it and when.
    fn learn(&mut self, n: usize, job: JobId) {
        match self.users.jobs[n].id {
            Some(known) if known != job => {
                self.violation(format!("S1: job {n} was answered as {known}, then as {job}"));
            }
            _ => self.users.jobs[n].id = Some(job),
        }
        if let Some(other) = self.users.by_id.insert(job, n).filter(|other| *other != n) {
            self.violation(format!("S1: jobs {other} and {n} were both answered as {job}"));
        }
    }
}

fn short(response: &ClientResponse) -> String {
    match response {
        ClientResponse::Job(r) => {
            let at = r.placement.as_ref().map_or("nowhere", |p| p.cluster.as_str());
            format!("version {} {:?} epoch {} at {at}: {}", r.version, r.state, r.epoch, r.reason)
        }
        other => format!("{other:?}"),
    }
}
