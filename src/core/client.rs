//! Users' requests: submit, read, cancel, list, why.
// tidy: long because each request of a user is taken, passed on and answered here, and read side by side

use std::collections::{BTreeMap, BTreeSet};

use super::acceptor::{Value, ValueError};
use super::api::{Candidate, ClientError, ClientRequest, ClientResponse, Output, WhyReport};
use super::message::{Message, Origin, RecordKey};
use super::peer::{Peer, Timer};
use super::placement;
use super::placement::groups::GroupPlan;
use super::propose::{Fresh, OpResult, Task};
use super::purpose::Purpose;
use crate::base::{BoundedVec, Epoch, Home, Instant, JobId, KeyId, PeerName, Span, TraceId, WallTime};
use crate::model::groups::{HOMES_BYTES, PLACED_BYTES};
use crate::model::record::{Birth, CancelIntent, Change, Checkpoint, MoveIntent, Refused, key_id};
use crate::model::report::Liveness;
use crate::model::spec::JobSpec;
use crate::model::trace::{self, SpanNote, TraceParent};
use crate::model::{JobRecord, JobState};

/// Patience of a user's operation.
const PATIENCE: Span = Span::secs(10);
/// A search asks the ring's first members, then everybody, then gives up.
const LOCATE_WIDEN: Span = Span::millis(300);
const LOCATE_GIVE_UP: Span = Span::secs(3);
const LOCATE_FIRST: usize = 5;
/// Jobs under a key that nobody was told of, remembered.
const UNTOLD_MAX: usize = 4_096;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 256;

/// A job to take.
pub(super) struct Submit {
    pub token: u64,
    pub spec: JobSpec,
    pub key: Option<String>,
    pub parent: Option<TraceParent>,
    /// When the request came.
    pub received: WallTime,
}

struct Locate {
    token: u64,
    job: JobId,
    request: ClientRequest,
    asked: BTreeSet<PeerName>,
    denied: BTreeSet<PeerName>,
    wide: bool,
    begun: Instant,
}

/// Requests that wait for somebody.
#[derive(Default)]
pub(super) struct Clients {
    locates: BTreeMap<u64, Locate>,
    pub(super) counter: u64,
    /// Jobs minted here under a key whose coming nobody was told of yet: the first answer does.
    untold: BTreeSet<JobId>,
}

impl Peer {
    fn reply(&mut self, token: u64, response: ClientResponse) {
        self.out.push(Output::Reply { token, response });
    }
    pub(super) fn reply_error(&mut self, token: u64, error: ClientError) {
        self.reply(token, ClientResponse::Error(error));
    }

    pub(super) fn on_client(&mut self, token: u64, request: ClientRequest) {
        match request {
            ClientRequest::Submit { spec, key } => {
                self.submit(Submit { token, spec: *spec, key, parent: None, received: self.now.wall });
            }
            ClientRequest::SubmitUnder { spec, key, parent, received } => {
                self.submit(Submit { token, spec: *spec, key, parent, received });
            }
            ClientRequest::Local { filter } => {
                let jobs = self.acceptor.scan(&filter).into_iter().cloned().collect();
                self.reply(token, ClientResponse::Jobs(jobs));
            }
            ClientRequest::WhySpec { spec } => {
                let report = self.why_spec(&spec);
                self.reply(token, ClientResponse::Why(Box::new(report)));
            }
            ClientRequest::TenantSet { tenant, patch } => self.tenant_set(token, tenant, patch),
            ClientRequest::TenantGet { tenant } => self.tenant_get(token, tenant),
            ClientRequest::Tenants => {
                let tenants = self.tenants_known();
                self.reply(token, ClientResponse::Tenants(tenants));
            }
            ClientRequest::TenantReclaim { tenant, cluster } => self.tenant_reclaim(token, tenant, &cluster),
            ClientRequest::Inspect(look) => {
                let inspect = self.inspect(look);
                self.reply(token, ClientResponse::Inspect(Box::new(inspect)));
            }
            ClientRequest::Get { job }
            | ClientRequest::Cancel { job, .. }
            | ClientRequest::Publish { job, .. }
            | ClientRequest::ConfirmLost { job, .. }
            | ClientRequest::Move { job, .. }
            | ClientRequest::Release { job, .. }
            | ClientRequest::Why { job } => self.with_birth(token, job, request),
        }
    }

    pub(super) fn submit(&mut self, submit: Submit) {
        let Some(key) = submit.key.as_ref().map(|key| key_id(&submit.spec.tenant, key)) else {
            return self.mint(submit, None);
        };
        let Some((record, same)) = self.key_known(&key, &submit.spec) else {
            return self.ask_for_key(key, submit);
        };
        let (token, job) = (submit.token, record.id());
        if !same {
            return self.reply_error(token, ClientError::KeyReused(job));
        }
        // The same record under the same id: whether the first try was chosen or not, this settles it.
        let begun = (submit.received.min(self.now.wall), self.now.wall);
        let origin = Origin::Job(record.birth.clone());
        let task = Task::Create(Box::new(Value::job(record)), Fresh::No);
        self.propose(origin, task, Purpose::Submit { token, job, begun, existed: true }, PATIENCE);
    }

    /// Makes a new job; of one with a key nobody knows yet.
    pub(super) fn mint(&mut self, submit: Submit, key_id: Option<KeyId>) {
        let Submit { token, spec, key, parent, received } = submit;
        let begun = (received.min(self.now.wall), self.now.wall);
        if let Err(error) = self.can_take(&spec) {
            return self.reply_error(token, error);
        }
        self.clients.counter += 1;
        let sequence = self.clients.counter;
        // Who holds a job with a key can be told from the key, so that it can be told whether they all may be silent.
        let ring_key = key_id
            .map_or_else(|| Birth::ring_key(&spec.tenant, &self.cfg.name, sequence), |key| key.ring_key());
        let homes = match self.ring.homes(&self.view, ring_key, self.cfg.replicas, None) {
            Ok(homes) => homes,
            Err((alive, needed)) => return self.reply_error(token, ClientError::NoHomes { alive, needed }),
        };
        let Ok(homes) = BoundedVec::try_from(homes) else { return };
        let birth = Birth { tenant: spec.tenant.clone(), minter: self.cfg.name.clone(), sequence, homes };
        // One id for its whole life, in its record: the caller's, where the submission is part of a trace.
        let trace = parent.map_or_else(|| TraceId(self.rng.bytes16()), |p| p.trace);
        let mut record = JobRecord::new(birth, spec, trace, self.now.wall);
        record.trace_parent = parent.map(|p| p.span);
        record.key = key_id;
        if record.children() > 0 && record.child_birth(0).is_none() {
            // This life has given out half a thousand million numbers: the next one begins anew.
            return self.reply_error(token, ClientError::TooMany(self.cfg.jobs_max));
        }
        let value = Value::job(record.clone());
        // There must be room for where its groups will be placed.
        let groups = record.spec.groups.list.len();
        let later = groups * PLACED_BYTES + groups.min(1) * HOMES_BYTES;
        let most = crate::model::record::RECORD_BYTES_MAX.saturating_sub(later);
        match value.encode() {
            Ok(bytes) if bytes.len() > most => {
                return self.reply_error(token, ClientError::TooLarge(bytes.len() + later));
            }
            Err(ValueError::TooLarge(bytes)) => return self.reply_error(token, ClientError::TooLarge(bytes)),
            Err(_) => return self.reply_error(token, ClientError::TooLarge(0)),
            Ok(_) => {}
        }
        let (job, origin) = (record.id(), Origin::Job(record.birth.clone()));
        let fresh = if let Some(key) = key {
            self.remember_key(&key, &record);
            if self.clients.untold.len() >= UNTOLD_MAX {
                self.clients.untold.pop_first();
            }
            self.clients.untold.insert(job);
            Fresh::Keyed
        } else {
            Fresh::Yes
        };
        let task = Task::Create(Box::new(value), fresh);
        self.propose(origin, task, Purpose::Submit { token, job, begun, existed: false }, PATIENCE);
    }

    /// A job that fits nowhere ever is refused at once; one that fits nowhere now waits.
    fn can_take(&mut self, spec: &JobSpec) -> Result<(), ClientError> {
        if self.disk_full {
            return Err(ClientError::DiskFull);
        }
        let (held, _) = self.acceptor.counts();
        if held >= self.cfg.jobs_max {
            return Err(ClientError::TooMany(self.cfg.jobs_max));
        }
        if spec.reserve.is_some() {
            self.can_reserve(spec)?;
        } else if let Some(why) = self.quota_never(spec) {
            return Err(ClientError::OverQuota(why));
        }
        self.placer.update(&self.view);
        if !spec.groups.list.is_empty() {
            let why = self.placer.plan_groups(spec).why_not;
            return why.map_or(Ok(()), |why| Err(ClientError::GroupsFitNowhere(why)));
        }
        if self.placer.fits_somewhere(spec) {
            return Ok(());
        }
        let rows = placement::explained(&mut self.placer, spec, self.now.mono, &[]);
        // Sorted by distance: the first that is no witness is the nearest.
        let nearest = rows.iter().find(|c| self.view.members.get(&c.cluster).is_none_or(|m| !m.witness));
        let Some(nearest) = nearest.or(rows.first()) else { return Ok(()) };
        Err(ClientError::FitsNowhere { nearest: nearest.cluster.to_string(), missing: nearest.words() })
    }

    pub(super) fn client_submitted(
        &mut self,
        token: u64,
        job: JobId,
        begun: (WallTime, WallTime),
        existed: bool,
        result: OpResult,
    ) {
        let response = match result {
            OpResult::Value { value: Value::Job(record), .. } => {
                // Of a try whose outcome was unknown the next one tells.
                if self.clients.untold.remove(&job) || !existed {
                    let (now, none, me) = (self.now.wall, Epoch(0), self.cfg.name.clone());
                    let homes: Vec<&str> = record.homes().iter().map(|h| h.peer.as_str()).collect();
                    let spans = vec![
                        SpanNote::new(trace::SUBMIT, none, begun.0, now).at(&me),
                        SpanNote::new(trace::COMMIT, none, begun.1, now)
                            .under(trace::SUBMIT)
                            .note(format!("new record at {}", homes.join(", "))),
                    ];
                    let text = format!("{} taken by {me}", record.spec.name);
                    self.event_with("job.submitted", Some(job), text, spans);
                }
                if let Some(owner) = self.owner_of(&record).filter(|o| *o != self.cfg.name) {
                    self.send(owner, Message::Look { birth: record.birth.clone() }, false);
                }
                ClientResponse::Submitted { job, homes: record.homes().to_vec(), existed }
            }
            OpResult::Rejected(why) if why == super::acceptor::DISK_FULL => {
                ClientResponse::Error(ClientError::DiskFull)
            }
            OpResult::Rejected(why) if why == super::acceptor::KEY_TAKEN => {
                let why = "another peer took a job with it at the same moment".into();
                ClientResponse::Error(ClientError::KeyUndecided(why))
            }
            OpResult::Rejected(_) => ClientResponse::Error(ClientError::TooMany(self.cfg.jobs_max)),
            OpResult::Timeout { answered, needed } => {
                ClientResponse::Error(ClientError::Unknown { answered, needed, job: Some(job) })
            }
            _ => ClientResponse::Error(ClientError::NoSuchJob(job)),
        };
        self.reply(token, response);
    }

    // A job's homes, known here or asked of others.

    fn with_birth(&mut self, token: u64, job: JobId, request: ClientRequest) {
        if let Some(Origin::Job(birth)) = self.acceptor.slot(&RecordKey::Job(job)).map(|s| s.origin.clone()) {
            return self.ask(token, job, birth, request);
        }
        self.clients.counter += 1;
        let id = self.clients.counter;
        let locate = Locate {
            token,
            job,
            request,
            asked: BTreeSet::new(),
            denied: BTreeSet::new(),
            wide: false,
            begun: self.now.mono,
        };
        self.clients.locates.insert(id, locate);
        let order = self.ring.order(job.ring_key());
        self.locate_from(id, order.into_iter().take(LOCATE_FIRST).collect());
        self.timer_in(LOCATE_WIDEN, Timer::Locate(id));
        self.timer_in(LOCATE_GIVE_UP, Timer::Locate(id));
        self.locate_check(id);
    }

    fn locate_from(&mut self, id: u64, peers: Vec<PeerName>) {
        let Some(locate) = self.clients.locates.get_mut(&id) else { return };
        let job = locate.job;
        let fresh: Vec<PeerName> =
            peers.into_iter().filter(|p| *p != self.cfg.name && locate.asked.insert(p.clone())).collect();
        for peer in fresh {
            self.send(peer, Message::Locate { job }, false);
        }
    }

    /// Somebody holds the record (birth, generation, homes), or does not.
    pub(super) fn on_located(&mut self, from: PeerName, job: JobId, held: Option<(Birth, u32, Vec<Home>)>) {
        let waiting: Vec<u64> =
            self.clients.locates.iter().filter(|(_, l)| l.job == job).map(|(id, _)| *id).collect();
        for id in waiting {
            match &held {
                Some((birth, generation, homes)) if birth.id() == job => {
                    self.learn(RecordKey::Job(job), *generation, homes.clone());
                    if let Some(locate) = self.clients.locates.remove(&id) {
                        self.ask(locate.token, job, birth.clone(), locate.request);
                    }
                }
                _ => {
                    let Some(locate) = self.clients.locates.get_mut(&id) else { continue };
                    locate.denied.insert(from.clone());
                    // Homes of a job with a key are not where its id is.
                    if !locate.wide && locate.asked.is_subset(&locate.denied) {
                        self.locate_widely(id);
                    } else {
                        self.locate_check(id);
                    }
                }
            }
        }
    }

    pub(super) fn on_locate_timer(&mut self, id: u64) {
        let Some(locate) = self.clients.locates.get_mut(&id) else { return };
        if locate.wide && self.now.mono.since(locate.begun) < LOCATE_GIVE_UP {
            // The first timer, and all were asked before it.
            return;
        }
        if locate.wide {
            // The second timer: nobody who answered knows it.
            if let Some(locate) = self.clients.locates.remove(&id) {
                let answered = locate.denied.len() + 1;
                let needed = self.view.members.len();
                let error = if needed > 0 && answered >= needed {
                    ClientError::NoSuchJob(locate.job)
                } else {
                    ClientError::Unknown { answered, needed, job: Some(locate.job) }
                };
                self.reply_error(locate.token, error);
            }
            return;
        }
        self.locate_widely(id);
    }

    fn locate_widely(&mut self, id: u64) {
        let Some(locate) = self.clients.locates.get_mut(&id) else { return };
        locate.wide = true;
        let all = self.view.members.keys().cloned().collect();
        self.locate_from(id, all);
        self.locate_check(id);
    }

    pub(super) fn clients_retry_locates(&mut self) {
        let ids: Vec<u64> = self.clients.locates.keys().copied().collect();
        for id in ids {
            self.locate_check(id);
        }
    }

    /// Ends a search early once every member that can be reached has denied.
    fn locate_check(&mut self, id: u64) {
        let Some(locate) = self.clients.locates.get(&id) else { return };
        let me = &self.cfg.name;
        let mut reachable =
            self.view.members.values().filter(|m| m.peer != *me && m.liveness != Liveness::Lost);
        let all_alive_denied = reachable.all(|m| locate.denied.contains(&m.peer));
        let any_lost = self.view.members.values().any(|m| m.peer != *me && m.liveness == Liveness::Lost);
        // Without a view yet (just started) nothing is known of the others: that is not "no such job".
        if !self.view.members.is_empty()
            && all_alive_denied
            && !any_lost
            && let Some(locate) = self.clients.locates.remove(&id)
        {
            self.reply_error(locate.token, ClientError::NoSuchJob(locate.job));
        }
    }

    fn ask(&mut self, token: u64, job: JobId, birth: Birth, request: ClientRequest) {
        let task = match &request {
            ClientRequest::Cancel { by, .. } => {
                Task::Job(Change::Cancel { intent: CancelIntent { by: by.clone(), at: self.now.wall } })
            }
            ClientRequest::Publish { epoch, uri, .. } => {
                Task::Job(Change::Publish { checkpoint: Checkpoint { epoch: *epoch, uri: uri.clone() } })
            }
            ClientRequest::ConfirmLost { epoch, cluster, by, .. } => {
                let (cluster, by) = (cluster.clone(), by.clone());
                Task::Job(Change::ConfirmLost { epoch: *epoch, cluster, by, at: self.now.wall })
            }
            ClientRequest::Move { to, by, .. } => Task::Job(Change::Move {
                intent: MoveIntent { to: to.clone(), by: by.clone(), at: self.now.wall },
            }),
            ClientRequest::Release { by, .. } => Task::Job(Change::Release { by: by.clone() }),
            _ => Task::Read,
        };
        let purpose = Purpose::Client { token, job, request: Box::new(request), begun: self.now.wall };
        self.propose(Origin::Job(birth), task, purpose, PATIENCE);
    }

    pub(super) fn client_done(
        &mut self,
        token: u64,
        job: JobId,
        request: ClientRequest,
        begun: WallTime,
        result: OpResult,
    ) {
        let (record, refused) = match result {
            OpResult::Value { value: Value::Job(record), refused } => (record, refused),
            OpResult::Timeout { answered, needed } => {
                return self.reply_error(token, ClientError::Unknown { answered, needed, job: Some(job) });
            }
            OpResult::Rejected(why) if why == super::acceptor::DISK_FULL => {
                return self.reply_error(token, ClientError::DiskFull);
            }
            _ => return self.reply_error(token, ClientError::NoSuchJob(job)),
        };
        let response = match (request, refused) {
            (ClientRequest::Cancel { .. }, None) => {
                self.tell_about("job.cancel", &record);
                ClientResponse::Cancelled { state: record.state }
            }
            (ClientRequest::Cancel { .. }, Some(Refused::Final(state))) => {
                ClientResponse::Cancelled { state }
            }
            (_, Some(refused)) => ClientResponse::Error(ClientError::Refused(refused)),
            (ClientRequest::Move { .. }, None) => {
                self.tell_about("job.move", &record);
                ClientResponse::Job(Box::new((*record).clone()))
            }
            (ClientRequest::ConfirmLost { .. }, None) => {
                self.tell_about("job.confirmed_lost", &record);
                ClientResponse::Job(Box::new((*record).clone()))
            }
            (ClientRequest::Release { .. }, None) => {
                self.tell_about("job.released", &record);
                ClientResponse::Job(Box::new((*record).clone()))
            }
            (ClientRequest::Publish { epoch, uri, .. }, None) => {
                let span = SpanNote::new(trace::CHECKPOINT, epoch, begun, self.now.wall).note(uri.as_str());
                let text = format!("epoch {epoch} published {uri}");
                self.event_with("job.checkpoint", Some(job), text, vec![span]);
                ClientResponse::Published
            }
            (ClientRequest::Why { .. }, None) => ClientResponse::Why(Box::new(self.why(&record))),
            _ => ClientResponse::Job(Box::new((*record).clone())),
        };
        self.reply(token, response);
    }

    /// The record says it; the executor and the owner are told, so that they need not find out.
    fn tell_about(&mut self, kind: &str, record: &JobRecord) {
        let job = record.id();
        // A cancel may be its end.
        self.event_with(kind, Some(job), record.reason.clone(), trace::whole(record).into_iter().collect());
        self.tell_parts(record);
        if let Some(placement) = &record.placement {
            self.send(placement.cluster.clone(), Message::Look { birth: record.birth.clone() }, false);
        }
        self.out.push(Output::Flash(super::api::Flash::Look { job }));
        if record.groups.is_some()
            && let Some(owner) = self.owner_of(record).filter(|o| *o != self.cfg.name)
        {
            self.send(owner, Message::Look { birth: record.birth.clone() }, false);
        }
    }

    /// The same for a job that was not submitted; of its groups a plan.
    fn why_spec(&mut self, spec: &JobSpec) -> WhyReport {
        self.placer.update(&self.view);
        let clusters = placement::explained(&mut self.placer, &of_one(spec), self.now.mono, &[]);
        let groups = (!spec.groups.list.is_empty()).then(|| self.placer.plan_groups(spec));
        let summary = groups.as_ref().map_or_else(|| summarize(&clusters), GroupPlan::summary);
        let policy = self.placer.weights_of(spec);
        let refused = self.can_take(spec).err().map(|why| why.to_string());
        let summary = refused.as_ref().map_or(summary, |why| format!("would be refused: {why}"));
        WhyReport { summary, state: None, owner: None, policy, groups, refused, clusters }
    }

    pub(super) fn why(&mut self, record: &JobRecord) -> WhyReport {
        self.placer.update(&self.view);
        let told = self.told(&record.id());
        let mut clusters =
            placement::explained(&mut self.placer, &of_one(&record.spec), self.now.mono, &told);
        self.note_claims(record, &mut clusters);
        let owner = self.owner_of(record);
        let summary = match (&record.placement, record.state) {
            (_, state) if state.is_final() => format!("{}: {}", state.as_str(), record.reason),
            (Some(placement), JobState::Placed) => {
                format!("placed at {}, which has not started it yet", placement.cluster)
            }
            (None, JobState::Running | JobState::Placed) => record.reason.clone(),
            (None, _) if record.group_of.is_some() => record.reason.clone(),
            (Some(placement), _) => format!("runs at {} as epoch {}", placement.cluster, record.epoch),
            (None, _) => {
                let why = match self.quota_never(&record.spec) {
                    Some(never) => never,
                    None if record.groups.is_some() => self.gathering(record),
                    None => summarize(&clusters),
                };
                format!("pending ({}): {why}", record.reason)
            }
        };
        let policy = self.placer.weights_of(&record.spec);
        let waits = record.groups.is_some() && record.state == JobState::Pending;
        let groups = waits.then(|| self.placer.plan_groups(&record.spec));
        WhyReport { summary, state: Some(record.state), owner, policy, groups, refused: None, clusters }
    }

    /// A home that missed a write: puts the present value on all homes again.
    pub(super) fn write_back(&mut self, record: &JobRecord) {
        self.propose(Origin::Job(record.birth.clone()), Task::Settle, Purpose::Nothing, PATIENCE);
    }

    /// Homes of a record, for people.
    pub fn homes(record: &JobRecord) -> &[Home] {
        record.homes()
    }
}

/// What the table of clusters is made for: of a job with groups the largest one.
fn of_one(spec: &JobSpec) -> std::borrow::Cow<'_, JobSpec> {
    match spec.groups.list.is_empty() {
        true => std::borrow::Cow::Borrowed(spec),
        false => std::borrow::Cow::Owned(JobSpec { groups: Default::default(), ..spec.clone() }),
    }
}

fn summarize(clusters: &[Candidate]) -> String {
    let now = clusters.iter().filter(|c| c.fits_now).count();
    let ever = clusters.iter().filter(|c| c.fits_ever).count();
    match (clusters.first(), now, ever) {
        (None, ..) => "no cluster is known yet".into(),
        (Some(first), 0, 0) => {
            format!("fits nowhere; nearest is {}: {}", first.cluster, first.words())
        }
        (Some(first), 0, 1) => {
            format!("one cluster could run it, {}, and not now: {}", first.cluster, first.words())
        }
        (Some(first), 0, n) => format!(
            "{n} clusters could run it, none now; first in line is {}: {}",
            first.cluster,
            first.words()
        ),
        (Some(first), 1, _) if first.fits_now => format!("one cluster could start it now: {}", first.cluster),
        (Some(first), n, _) if first.fits_now => {
            format!("{n} clusters could start it now, best is {}", first.cluster)
        }
        (Some(first), n, _) => {
            let wait = first.estimate.as_ref().map_or(Span::ZERO, |e| e.start);
            let others = if n == 1 {
                "one cluster could start it now and is".to_owned()
            } else {
                format!("{n} clusters could start it now and are")
            };
            format!("best is {}, in about {wait}; {others} worse by its policy", first.cluster)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One cluster is one cluster, and many are many.
    #[test]
    fn a_summary_counts_as_people_do() {
        let row = |name: &str, fits_ever, fits_now| Candidate {
            cluster: PeerName::new(name).expect("a name"),
            fits_ever,
            fits_now,
            reasons: Vec::new(),
            score: None,
            terms: Default::default(),
            estimate: None,
            claim: None,
            report_age: None,
        };
        let (now, later, never) = (("a", true, true), ("b", true, false), ("c", false, false));
        for (rows, many) in [
            (vec![now, never], None),
            (vec![later, never], None),
            (vec![later, now], None),
            (vec![now, ("d", true, true)], Some("2 clusters could start it now, best is a")),
            (vec![later, ("d", true, false)], Some("2 clusters could run it, none now")),
            (vec![later, now, ("d", true, true)], Some("2 clusters could start it now and are worse")),
        ] {
            let text = summarize(&rows.into_iter().map(|(n, e, f)| row(n, e, f)).collect::<Vec<_>>());
            match many {
                None => assert!(text.contains("one cluster could") && !text.contains("clusters"), "{text}"),
                Some(many) => assert!(text.contains(many), "{text}"),
            }
        }
    }
}
