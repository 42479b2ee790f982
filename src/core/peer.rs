//! The state machine itself: takes one input, gives outputs, owns its deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::acceptor::{Acceptor, ValueError};
use super::api::{
    BackendCommand, CoreConfig, DiskImage, Event, Flash, Input, InspectReport, Look, Now, Output, Table,
    Write,
};
use super::arrays::Arrays;
use super::client::Clients;
use super::contact::Contacts;
use super::durations::Durations;
use super::executor::Executor;
use super::groups::Gangs;
use super::keys::Keys;
use super::message::{Message, Prospects, RecordKey, SPEAKS_TERMS, Terms};
use super::owner::Owner;
use super::past::Past;
use super::placement::Index;
use super::propose::Proposer;
use super::rehome::Keeper;
use super::reserve::{Gatherings, Keeping};
use super::ring::Ring;
use super::tenants::Tenants;
use super::watch::Watch;
use crate::base::{Home, Instant, JobId, PeerName, Rng, Span};
use crate::model::policy::Policies;
use crate::model::report::{Liveness, View};
use crate::model::trace::SpanNote;

/// What wakes the core.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// An operation's requests go out again.
    OpResend(u64),
    /// An operation prepares anew after a conflict.
    OpRetry(u64),
    /// An operation gives up.
    OpDeadline(u64),
    /// The owner looks at a job.
    Drive(JobId),
    /// The contact is renewed.
    Renew,
    /// The queue drops what expired and grants what fits; comes again by itself.
    Queue,
    /// The same once: a grant expires, or a report is due.
    Grants,
    /// A search for a job's homes ends.
    Locate(u64),
    /// A key's question goes out again, or ends.
    Key(crate::base::KeyId),
    /// The executor tries a close or a start report again.
    Attempt(super::api::AttemptKey),
    /// Home sets that are not what they should be, and records that were kept long enough.
    Sweep,
    /// What others have seen of this disk, and are told of it.
    Past,
}

/// One peer.
pub struct Peer {
    pub(super) cfg: CoreConfig,
    pub(super) now: Now,
    pub(super) rng: Rng,
    pub(super) out: Vec<Output>,
    pub(super) timers: BTreeSet<(Instant, Timer)>,
    pub(super) acceptor: Acceptor,
    pub(super) proposer: Proposer,
    pub(super) owner: Owner,
    pub(super) exec: Executor,
    pub(super) contacts: Contacts,
    pub(super) clients: Clients,
    pub(super) keys: Keys,
    pub(super) keeper: Keeper,
    pub(super) past: Past,
    pub(super) tenants: Tenants,
    pub(super) arrays: Arrays,
    pub(super) gangs: Gangs,
    pub(super) keeping: Keeping,
    pub(super) gatherings: Gatherings,
    pub(super) view: Arc<View>,
    pub(super) ring: Ring,
    pub(super) disk_full: bool,
    pub(super) draining: bool,
    pub(super) watch: Watch,
    pub(super) placer: Index,
    counters: BTreeMap<&'static str, u64>,
    pub(super) commits: Durations,
}

impl Peer {
    /// A peer as its disk left it. Attempts that were admitted are taken up again when the backend has
    /// said which it still has (`BackendEvent::Adopted`).
    pub fn recover(cfg: CoreConfig, disk: &DiskImage, now: Now) -> Result<(Peer, Vec<Output>), ValueError> {
        let none = BTreeMap::new();
        let rows = |table| disk.tables.get(&table).unwrap_or(&none);
        let mut rng = Rng::new(cfg.seed);
        let nonce = rng.u64();
        let mut peer = Peer {
            past: Past::recover(&cfg, rows(Table::Meta), nonce)?,
            rng,
            now,
            out: Vec::new(),
            timers: BTreeSet::new(),
            acceptor: Acceptor::recover(rows(Table::Acceptors))?,
            proposer: Proposer::default(),
            owner: Owner::default(),
            exec: Executor::recover(&cfg, rows(Table::Attempts), rows(Table::Meta), now)?,
            contacts: Contacts::recover(rows(Table::Meta))?,
            clients: Clients::default(),
            keys: Keys::recover(rows(Table::Meta), now.mono)?,
            keeper: Keeper::default(),
            tenants: Tenants::recover(rows(Table::Meta))?,
            arrays: Arrays::default(),
            gangs: Gangs::default(),
            keeping: Keeping::recover(rows(Table::Meta), now.mono)?,
            gatherings: Gatherings::default(),
            view: Arc::default(),
            ring: Ring::default(),
            disk_full: false,
            draining: false,
            watch: Watch::default(),
            placer: Index::new(cfg.policies.clone()),
            counters: BTreeMap::new(),
            commits: Durations::default(),
            cfg,
        };
        peer.begin_life();
        let live: Vec<JobId> =
            peer.acceptor.jobs().filter(|r| !r.state.is_final()).map(crate::model::JobRecord::id).collect();
        for job in live {
            peer.drive_soon(job);
        }
        (peer.contacts.due, peer.contacts.begun) = (now.mono, now.mono);
        peer.timers.insert((now.mono, Timer::Renew));
        peer.timers.insert((now.mono, Timer::Queue));
        peer.timers.insert((now.mono + peer.cfg.pace.sweep_every, Timer::Sweep));
        peer.timers.insert((now.mono, Timer::Past));
        peer.restart_attempts();
        peer.note_untold();
        peer.count_commit();
        let out = std::mem::take(&mut peer.out);
        Ok((peer, out))
    }

    /// Numbers of this life begin at a random place. The boot number alone does not tell two lives apart: a peer
    /// that comes back with an empty disk counts its boots from 1 again, and would mint the ids, series and
    /// nonces of its first life once more.
    fn begin_life(&mut self) {
        // Below 2^52, so that every JSON reader keeps them exact.
        let mut base = || self.rng.u64() >> 12;
        (self.proposer.counter, self.contacts.counter) = (base(), base());
        // Sequences of one life share their upper half: what an acceptor has forgotten is kept as a floor per life.
        self.clients.counter = base() >> 32 << 32;
    }

    /// Names this life of the peer in ballots and nonces: its disk, then the boot of it.
    pub(super) fn life(&self) -> u64 {
        let store = self.cfg.store.0.first_chunk::<4>().copied().unwrap_or_default();
        u64::from(u32::from_be_bytes(store)) << 32 | (self.cfg.boot & u64::from(u32::MAX))
    }

    /// One step. What is to be done comes in order; what is `durable` only after the writes before it.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        // The clock is the runtime's; it never runs backwards here.
        self.now = Now { mono: now.mono.max(self.now.mono), wall: now.wall };
        self.placer.tell_time(self.now);
        match input {
            Input::Tick => {}
            Input::Message { from, message } => self.on_message(from, message),
            Input::View(view) => self.on_view(view),
            Input::Flash(flash) => self.on_flash(&flash),
            Input::Client { token, request } => self.on_client(token, request),
            Input::Backend(event) => self.on_backend(event),
            Input::DiskFull(full) => {
                if std::mem::replace(&mut self.disk_full, full) != full {
                    // It acts for others' jobs no more, or again.
                    self.drive_all();
                }
                self.queue_changed();
            }
            Input::Drain(draining) => self.on_drain(draining),
            Input::Policies(policies) => self.on_policies(*policies),
        }
        self.run_timers();
        self.flush_quota();
        self.flush_report();
        self.count_commit();
        std::mem::take(&mut self.out)
    }

    /// When `step` wants to be called at the latest, with any input. An earlier call does no harm.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The soft view it holds.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A home's last accepted record: a hint.
    pub fn hint(&self, job: &JobId) -> Option<&crate::model::JobRecord> {
        self.acceptor.job(job)
    }

    /// All that this peer holds of one job beside its record, for a person who looks for a cause.
    pub fn explain(&self, job: &JobId) -> String {
        format!("{} {} {}", self.owner.explain(job), self.exec.explain(job), self.proposer.explain(job))
    }

    /// Named counters since this start, for the surface and the simulator.
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }

    fn run_timers(&mut self) {
        while let Some((at, _)) = self.timers.first() {
            if *at > self.now.mono {
                break;
            }
            let Some((at, timer)) = self.timers.pop_first() else { break };
            match timer {
                Timer::OpResend(_) | Timer::OpRetry(_) | Timer::OpDeadline(_) => self.on_op_timer(timer),
                Timer::Drive(job) => self.drive(job),
                // An older timer of a renewal that was since put elsewhere.
                Timer::Renew if at != self.contacts.due => {}
                Timer::Renew => self.renew(),
                Timer::Queue => self.on_queue_timer(),
                Timer::Grants => self.on_grants_timer(),
                Timer::Locate(id) => self.on_locate_timer(id),
                Timer::Key(key) => self.on_key_timer(key),
                Timer::Attempt(key) => self.attempt_again(key),
                Timer::Sweep => self.sweep(),
                Timer::Past => self.on_past_timer(),
            }
        }
    }

    fn on_message(&mut self, from: PeerName, message: Message) {
        match message {
            Message::Register(request) => self.on_register(from, request),
            Message::Answer(answer) => self.on_answer(from, answer),
            Message::Locate { job } => {
                let answer = self.locate_answer(job);
                self.send(from, answer, false);
            }
            Message::Held { birth, generation, homes } => {
                let job = birth.id();
                self.on_held(RecordKey::Job(job), generation, homes.clone());
                self.on_located(from, job, Some((birth, generation, homes)));
            }
            Message::Located { job, birth } => {
                self.on_located(from, job, birth.map(|b| (b, 0, Vec::new())));
            }
            Message::Claim(claim) => self.on_claim(from, *claim, Terms::default()),
            Message::ClaimWith { claim, terms } => self.on_claim(from, *claim, terms),
            Message::Withdraw { job, epoch } => self.on_withdraw(&from, job, epoch),
            Message::Grant { job, epoch, held, contact, series, homes, incarnation } => {
                self.on_grant(from, job, epoch, held, (contact, series, homes, incarnation));
            }
            Message::ClaimState { job, epoch, ahead, refused } => {
                self.on_claim_state(&from, job, epoch, ahead, refused, Prospects::default());
            }
            Message::ClaimStateWith { job, epoch, ahead, refused, prospects } => {
                self.on_claim_state(&from, job, epoch, ahead, refused, prospects);
            }
            Message::Look { birth } => self.on_look(birth),
            Message::Disk(word) => self.on_disk_word(from, word),
            Message::Tenants(cards) => self.on_tenants(&from, &cards),
            Message::TenantsWord(word) => self.on_tenants_word(from, word),
            Message::Reserve(word) => self.on_reserve_word(from, word),
            Message::Key(word) => self.on_key_word(from, word),
        }
    }

    fn on_view(&mut self, view: Arc<View>) {
        self.ring.update(&view);
        let before = std::mem::replace(&mut self.view, view);
        self.exec.elsewhere_due = true;
        self.note_away();
        self.confirm_disk();
        self.ask_tenants();
        for member in self.view.members.values() {
            if let Some(contact) = member.report.as_ref().and_then(|r| r.contact.as_ref()) {
                let (id, incarnation, nonce) = (contact.contact, contact.incarnation, contact.nonce);
                self.owner.observe(id, incarnation, nonce, self.now.mono);
            }
        }
        let pairs = || before.members.iter().zip(&self.view.members);
        let same = before.members.len() == self.view.members.len()
            && pairs().all(|(a, b)| a.0 == b.0 && a.1.liveness == b.1.liveness);
        if !same || pairs().any(|(a, b)| a.1.disk_full() != b.1.disk_full()) {
            // Who acts as a job's owner may have changed.
            self.drive_all();
        }
        if !same {
            self.contacts_follow_members();
            self.note_disks_of_absent();
        }
        self.clients_retry_locates();
    }

    /// Other weights: the record of it says what they changed.
    fn on_policies(&mut self, policies: Policies) {
        let changes = policies.changes(self.placer.policies());
        self.placer.set_policies(policies);
        self.count("policies_set");
        let what = if changes.is_empty() { "nothing".into() } else { changes.join(", ") };
        self.event("placement.weights", None, format!("changed: {what}"));
        self.drive_all();
    }

    fn on_flash(&mut self, flash: &Flash) {
        if let Flash::Look { job } = flash {
            if self.exec.runs(job) {
                self.look_again(*job);
            }
            if self.acceptor.job(job).is_some() {
                self.drive_soon(*job);
            }
        }
    }

    fn locate_answer(&self, job: JobId) -> Message {
        let key = RecordKey::Job(job);
        let origin = self.acceptor.slot(&key).map(|slot| slot.origin.clone());
        match (origin, self.acceptor.held_at(&key)) {
            (Some(super::message::Origin::Job(birth)), Some((generation, homes))) if generation > 0 => {
                Message::Held { birth, generation, homes }
            }
            (Some(super::message::Origin::Job(birth)), _) => Message::Located { job, birth: Some(birth) },
            _ => Message::Located { job, birth: None },
        }
    }

    // Small helpers of all parts.

    pub(super) fn send(&mut self, to: PeerName, message: Message, durable: bool) {
        self.out.push(Output::Send { to, message, durable });
    }
    pub(super) fn write(&mut self, write: Write) {
        self.out.push(Output::Write(write));
    }
    pub(super) fn backend(&mut self, command: BackendCommand) {
        self.out.push(Output::Backend(command));
    }
    pub(super) fn count(&mut self, counter: &'static str) {
        *self.counters.entry(counter).or_default() += 1;
    }
    pub(super) fn event(&mut self, kind: &str, job: Option<JobId>, text: String) {
        self.event_with(kind, job, text, Vec::new());
    }
    /// An event with the spans of the job's trace that ended with it.
    pub(super) fn event_with(&mut self, kind: &str, job: Option<JobId>, text: String, spans: Vec<SpanNote>) {
        let record = job.and_then(|job| self.acceptor.job(&job));
        let known = record.map(|r| (r.spec.tenant.clone(), r.trace));
        // Not a home of it, but it runs here.
        let (tenant, trace) = known.or_else(|| self.exec.of_trace(&job?)).unzip();
        let took = match (kind, record) {
            ("job.placed", Some(record)) => {
                // Of a job that ran before: since that ended.
                let from =
                    record.attempts.iter().rev().find_map(|a| a.ended_at).unwrap_or(record.submitted_at);
                Some(Span::millis(self.now.wall.0.saturating_sub(from.0)))
            }
            ("attempt.started", _) => job.and_then(|job| self.exec.age_of(&job, self.now.mono)),
            _ => None,
        };
        self.out.push(Output::Event(Event { tenant, trace, took, spans, ..Event::new(kind, job, text) }));
    }
    pub(super) fn timer_in(&mut self, span: Span, timer: Timer) {
        self.timers.insert((self.now.mono + span, timer));
    }
    /// It reads `ClaimWith` and what came with it. A peer that says nothing of itself yet may not.
    pub(super) fn speaks_terms(&self, to: &PeerName) -> bool {
        *to == self.cfg.name || self.wire_of(to).is_some_and(|wire| wire >= SPEAKS_TERMS)
    }

    /// The newest messages that a member says it reads; none where it was not heard yet.
    pub(super) fn wire_of(&self, member: &PeerName) -> Option<u16> {
        let report = self.view.members.get(member)?.report.as_ref()?;
        report.build.as_ref().map(|build| build.wire)
    }

    /// This home is there: its peer looks alive, and has the disk that the record was born on.
    pub(super) fn home_alive(&self, home: &Home) -> bool {
        if home.peer == self.cfg.name {
            return home.store == self.cfg.store;
        }
        let member = self.view.members.get(&home.peer);
        member.is_some_and(|m| m.store == home.store && m.liveness == Liveness::Alive)
    }

    pub(super) fn inspect(&self, look: Look) -> InspectReport {
        let (records, records_live) = self.acceptor.counts();
        let mut counters: BTreeMap<String, u64> =
            self.counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        counters.insert("disk_confirmed".into(), u64::from(self.disk_confirmed()));
        counters.insert("queue_passes".into(), self.exec.queue_passes());
        counters.insert("records_unsettled".into(), self.unsettled() as u64);
        counters.insert("register_in_flight".into(), self.proposer.in_flight() as u64);
        InspectReport {
            attempts: self.exec.attempts_view(self.now.mono),
            queue: self.queue_view(look),
            queue_total: Some(self.exec.claims_count()),
            queue_oldest: self.exec.oldest_claim(self.now.mono),
            contacts: self.contacts.ages(self.now.mono),
            records,
            records_live,
            counters,
            commits: self.commits,
            lease_left: self.lease_left(),
        }
    }
}
