//! A simulated world around the production core: network, disks, clocks, guards and users from one seed.
//!
//! Nothing here decides anything for a peer. The world delivers what the core sends (or loses it),
//! applies what it writes (or loses it in a crash), and runs attempts as a machine with guards would.
//! It keeps a ledger of its own of every execution, which is judged without asking Starling.
#![allow(dead_code, reason = "shared by the tests and the command, which read different parts of it")]

use std::collections::{BTreeMap, BTreeSet};

use starling::base::units::{Bytes, MilliCpu};
use starling::base::{Instant, JobId, PeerName, Rng, Span, StoreId, WallTime};
use starling::core::api::{AttemptKey, StartCommand, StopReason};
use starling::core::{
    BackendCommand, BackendEvent, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Message, Now,
    Output, Peer, Write,
};
use starling::model::report::{
    CapacityReport, ContactReport, HealthReport, Liveness, MemberView, QueueReport, View,
};
use starling::model::spec::{Communication, JobSpec, OnLostContact, PlacementSpec, Run, Then};
use starling::model::{JobState, NodeCapacity, Outcome, Report, Resources};

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub peers: usize,
    pub jobs: usize,
    /// Faults are injected for this long; then the world heals.
    pub chaos_for: Span,
    /// After healing every job must be final within this.
    pub settle_for: Span,
    /// Messages lost, and delivered twice.
    pub loss: f64,
    pub duplicate: f64,
    /// Mean time between crashes of some peer; zero for none.
    pub crash_every: Span,
    /// Mean time between partitions; zero for none.
    pub partition_every: Span,
    /// Clock rates differ from true time by up to this many thousandths.
    pub drift_milli: u64,
    pub grace: Span,
    /// A planted bug, to show that the judge finds it.
    pub bug: Option<Bug>,
}

/// Bugs that the world can plant around the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Attempts have no guard: nothing stops them at their deadline.
    NoGuard,
    /// A crash loses writes that were answered.
    LyingDisk,
}

impl Scenario {
    pub fn new(seed: u64, peers: usize, jobs: usize) -> Self {
        Self {
            seed,
            peers,
            jobs,
            chaos_for: Span::secs(60),
            settle_for: Span::secs(240),
            loss: 0.02,
            duplicate: 0.02,
            crash_every: Span::secs(6),
            partition_every: Span::secs(9),
            drift_milli: 8,
            grace: Span::secs(8),
            bug: None,
        }
    }
}

/// One execution, as the machine saw it.
#[derive(Debug, Clone)]
pub struct Execution {
    pub job: JobId,
    pub epoch: u64,
    pub peer: usize,
    pub from: Instant,
    pub until: Option<Instant>,
    pub finished: bool,
}

/// What a run showed.
#[derive(Debug, Clone)]
pub struct Outcomes {
    pub seed: u64,
    pub submitted: usize,
    pub succeeded: usize,
    pub not_final: usize,
    pub lost: usize,
    pub moved: usize,
    pub faults: usize,
    pub executions: usize,
    pub violations: Vec<String>,
    pub trace_hash: u64,
    pub messages: u64,
    pub simulated: Span,
}

#[derive(Debug, Clone)]
enum Event {
    Deliver { to: usize, from: usize, message: Box<Message> },
    Wake(usize, u64),
    Synced(usize, u64),
    Gossip,
    Backend(usize, Box<BackendEvent>),
    WorkDone(usize, AttemptKey),
    GuardLooks(usize, AttemptKey),
    Killed(usize, AttemptKey, Outcome),
    Crash,
    Restart(usize),
    Partition,
    HealOne(u64),
    HealAll,
    Submit(usize),
}

struct Batch {
    writes: Vec<Write>,
    after: Vec<Output>,
}

struct Running {
    spec: JobSpec,
    binding: (starling::base::ContactId, u64),
    ledger: usize,
    stopping: Option<StopReason>,
    started_at: WallTime,
    max_left: Span,
}

struct Machine {
    name: PeerName,
    store: StoreId,
    boot: u64,
    core: Option<Peer>,
    /// Changes whenever the process does; stale events of an older one are dropped.
    life: u64,
    disk: DiskImage,
    unsynced: Vec<(u64, Batch)>,
    sync_seq: u64,
    synced_until: Instant,
    rate_ppm: i64,
    clock_base: u64,
    /// What the machine (not the peer's process) runs.
    attempts: BTreeMap<AttemptKey, Running>,
    ever_started: BTreeSet<AttemptKey>,
    ended: BTreeMap<AttemptKey, (Outcome, Option<WallTime>, WallTime)>,
    leases: BTreeMap<(starling::base::ContactId, u64), Instant>,
    queue: Option<QueueReport>,
    contact: Option<ContactReport>,
    heard: BTreeMap<usize, (Instant, Option<QueueReport>, Option<ContactReport>)>,
    wake_at: Option<Instant>,
}

impl Machine {
    /// This machine's clock at a true time.
    fn clock(&self, t: Instant) -> Instant {
        let ppm = i128::from(t.0) * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        Instant(self.clock_base + u64::try_from(ppm).unwrap_or(0))
    }
    /// The true time at which this machine's clock shows that.
    fn true_time(&self, c: Instant) -> Instant {
        let local = i128::from(c.0.saturating_sub(self.clock_base));
        Instant(u64::try_from(local * 1_000_000 / i128::from(1_000_000 + self.rate_ppm) + 1).unwrap_or(0))
    }
}

/// The world.
pub struct World {
    scenario: Scenario,
    rng: Rng,
    t: Instant,
    seq: u64,
    events: BTreeMap<(Instant, u64), Event>,
    machines: Vec<Machine>,
    index: BTreeMap<PeerName, usize>,
    /// Cut directions, each with the number of the cut.
    cuts: BTreeMap<(usize, usize), u64>,
    cut_seq: u64,
    answered: BTreeMap<u64, JobId>,
    answered_jobs: BTreeSet<JobId>,
    refused: usize,
    ledger: Vec<Execution>,
    violations: Vec<String>,
    faults: usize,
    healed: bool,
    hash: u64,
    messages: u64,
}

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

const GOSSIP_EVERY: Span = Span::millis(500);

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let names: Vec<PeerName> =
            (0..scenario.peers).map(|i| PeerName::new(&format!("p{i:03}")).expect("a short name")).collect();
        let index = names.iter().cloned().enumerate().map(|(i, n)| (n, i)).collect();
        let drift = scenario.drift_milli * 1000;
        let machines = names
            .into_iter()
            .map(|name| Machine {
                name,
                store: StoreId(rng.bytes16()),
                boot: 0,
                core: None,
                life: 0,
                disk: DiskImage::default(),
                unsynced: Vec::new(),
                sync_seq: 0,
                synced_until: Instant(0),
                rate_ppm: rng.below(2 * drift + 1) as i64 - drift as i64,
                clock_base: rng.below(1 << 40),
                attempts: BTreeMap::new(),
                ever_started: BTreeSet::new(),
                ended: BTreeMap::new(),
                leases: BTreeMap::new(),
                queue: None,
                contact: None,
                heard: BTreeMap::new(),
                wake_at: None,
            })
            .collect();
        World {
            rng,
            t: Instant(0),
            seq: 0,
            events: BTreeMap::new(),
            machines,
            index,
            cuts: BTreeMap::new(),
            cut_seq: 0,
            answered: BTreeMap::new(),
            answered_jobs: BTreeSet::new(),
            refused: 0,
            ledger: Vec::new(),
            violations: Vec::new(),
            faults: 0,
            healed: false,
            hash: 0xcbf2_9ce4_8422_2325,
            messages: 0,
            scenario,
        }
    }

    fn at(&mut self, span: Span, event: Event) {
        self.seq += 1;
        self.events.insert((self.t + span, self.seq), event);
    }

    /// An exponentially distributed span.
    fn around(&mut self, mean: Span) -> Span {
        let u = self.rng.unit().max(1e-9);
        Span((-(u.ln()) * mean.0 as f64) as u64 + 1)
    }

    /// Runs from start to the end of the settle phase and judges.
    pub fn run(mut self) -> Outcomes {
        for i in 0..self.machines.len() {
            self.boot(i);
        }
        self.at(Span::ZERO, Event::Gossip);
        let chaos = self.scenario.chaos_for;
        for n in 0..self.scenario.jobs {
            let when = Span::secs(3) + Span(self.rng.below(chaos.0.saturating_sub(3_000_000).max(1)));
            self.at(when, Event::Submit(n));
        }
        if self.scenario.crash_every > Span::ZERO {
            let wait = self.around(self.scenario.crash_every);
            self.at(Span::secs(2) + wait, Event::Crash);
        }
        if self.scenario.partition_every > Span::ZERO {
            let wait = self.around(self.scenario.partition_every);
            self.at(Span::secs(2) + wait, Event::Partition);
        }
        self.at(chaos, Event::HealAll);
        let end = Instant(0) + chaos + self.scenario.settle_for;
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > end || (self.healed && self.all_final()) {
                break;
            }
            self.t = at;
            self.hash = fnv(self.hash, &at.0.to_be_bytes());
            self.handle(event);
        }
        self.judge()
    }

    fn boot(&mut self, i: usize) {
        let seed = self.rng.u64();
        let t = self.t;
        let m = &mut self.machines[i];
        m.boot += 1;
        m.life += 1;
        m.unsynced.clear();
        m.synced_until = t;
        m.wake_at = None;
        let now = Now { mono: m.clock(t), wall: WallTime(t.0 / 1000) };
        let cfg = CoreConfig {
            name: m.name.clone(),
            store: m.store,
            boot: m.boot,
            replicas: 3,
            renew_every: Span::millis(1000),
            rho_milli: 10,
            margin: Span::millis(1500),
            grant_for: Span::secs(4),
            claims_max: 3,
            jobs_max: 100_000,
            rehome_after: Span::secs(20),
            retain: Span::secs(86_400),
            retain_jobs: 100_000,
            nodes: nodes(),
            runs_images: false,
            seed,
        };
        match Peer::recover(cfg, &m.disk, now) {
            Ok((core, out)) => {
                m.core = Some(core);
                self.outputs(i, out);
                let running: Vec<AttemptKey> = self.machines[i].attempts.keys().copied().collect();
                let ended: Vec<AttemptKey> = self.machines[i].ended.keys().copied().collect();
                self.input(i, Input::Backend(BackendEvent::Adopted { running: running.clone() }));
                for key in running {
                    let at = self.machines[i].attempts[&key].started_at;
                    self.input(i, Input::Backend(BackendEvent::Started { key, at }));
                }
                for key in ended {
                    self.report_end(i, key);
                }
            }
            Err(why) => self.violations.push(format!("peer {i} cannot read its disk: {why}")),
        }
    }

    fn input(&mut self, i: usize, input: Input) {
        let t = self.t;
        let m = &mut self.machines[i];
        let now = Now { mono: m.clock(t), wall: WallTime(t.0 / 1000) };
        let Some(core) = m.core.as_mut() else { return };
        let out = core.step(now, input);
        self.outputs(i, out);
    }

    /// Carries out one step's outputs: in order, what is durable only after the disk has the writes
    /// before it.
    fn outputs(&mut self, i: usize, outputs: Vec<Output>) {
        let mut batch = Batch { writes: Vec::new(), after: Vec::new() };
        for output in outputs {
            match output {
                Output::Write(write) => batch.writes.push(write),
                Output::Send { durable: false, to, message } => self.post(i, &to, message),
                Output::Event(_) | Output::Flash(_) => {}
                Output::Report { queue, contact } => {
                    self.machines[i].queue = Some(queue);
                    self.machines[i].contact = contact;
                }
                other => batch.after.push(other),
            }
        }
        if batch.writes.is_empty() && batch.after.is_empty() {
            return self.wake_later(i);
        }
        let slow = if batch.writes.is_empty() { Span::ZERO } else { Span(300 + self.rng.below(4_000)) };
        let t = self.t;
        let m = &mut self.machines[i];
        m.sync_seq += 1;
        let (seq, at) = (m.sync_seq, (t + slow).max(m.synced_until));
        m.synced_until = at;
        m.unsynced.push((seq, batch));
        let life = m.life;
        self.at(at.since(t), Event::Synced(i, life));
        self.wake_later(i);
    }

    fn wake_later(&mut self, i: usize) {
        let t = self.t;
        let m = &mut self.machines[i];
        let Some(deadline) = m.core.as_ref().and_then(Peer::next_deadline) else { return };
        let at = m.true_time(deadline).max(t);
        if m.wake_at.is_none_or(|old| old > at || old <= t) {
            m.wake_at = Some(at);
            let life = m.life;
            self.at(at.since(t), Event::Wake(i, life));
        }
    }

    fn synced(&mut self, i: usize) {
        if self.machines[i].unsynced.is_empty() {
            return;
        }
        let (_, batch) = self.machines[i].unsynced.remove(0);
        apply(&mut self.machines[i].disk, &batch.writes);
        for output in batch.after {
            match output {
                Output::Send { to, message, .. } => self.post(i, &to, message),
                Output::Reply { token, response } => self.reply(token, response),
                Output::Backend(command) => self.command(i, command),
                Output::Renewed { contact, incarnation, sent_at } => {
                    let lease = self.machines[i].leases.entry((contact, incarnation)).or_insert(sent_at);
                    *lease = (*lease).max(sent_at);
                }
                _ => {}
            }
        }
    }

    fn post(&mut self, from: usize, to: &PeerName, message: Message) {
        let Some(&to) = self.index.get(to) else { return };
        self.messages += 1;
        if from == to {
            return self.at(Span(1), Event::Deliver { to, from, message: Box::new(message) });
        }
        let lossy = !self.healed;
        let copies = match (
            lossy && self.rng.chance(self.scenario.loss),
            lossy && self.rng.chance(self.scenario.duplicate),
        ) {
            (true, _) => 0,
            (false, true) => 2,
            _ => 1,
        };
        for _ in 0..copies {
            // Mostly near, now and then very late, so that messages overtake one another.
            let far = lossy && self.rng.chance(0.01);
            let delay = Span(2_000 + self.rng.below(if far { 3_000_000 } else { 60_000 }));
            self.at(delay, Event::Deliver { to, from, message: Box::new(message.clone()) });
        }
    }

    fn cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains_key(&(from, to))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { to, from, message } => {
                self.hash = fnv(self.hash, &[1, to as u8, from as u8]);
                if from == to || !self.cut(from, to) {
                    let from = self.machines[from].name.clone();
                    self.input(to, Input::Message { from, message: *message });
                }
            }
            Event::Wake(i, life) => {
                if self.machines[i].life == life {
                    self.machines[i].wake_at = None;
                    self.input(i, Input::Tick);
                    self.wake_later(i);
                }
            }
            Event::Synced(i, life) => {
                if self.machines[i].life == life {
                    self.synced(i);
                }
            }
            Event::Gossip => self.gossip(),
            Event::Backend(i, event) => self.input(i, Input::Backend(*event)),
            Event::WorkDone(i, key) => self.work_done(i, key),
            Event::GuardLooks(i, key) => self.guard_looks(i, key),
            Event::Killed(i, key, outcome) => self.end_attempt(i, key, outcome),
            Event::Crash => self.crash_some(),
            Event::Restart(i) => {
                if self.machines[i].core.is_none() {
                    self.boot(i);
                }
            }
            Event::Partition => self.partition_some(),
            Event::HealOne(cut) => self.cuts.retain(|_, c| *c != cut),
            Event::HealAll => {
                self.healed = true;
                self.cuts.clear();
                for i in 0..self.machines.len() {
                    if self.machines[i].core.is_none() {
                        self.boot(i);
                    }
                }
            }
            Event::Submit(n) => self.submit(n),
        }
    }

    // Faults.

    fn crash_some(&mut self) {
        if self.healed {
            return;
        }
        let i = self.rng.below(self.machines.len() as u64) as usize;
        let machine_too = self.rng.chance(0.3);
        if self.machines[i].core.is_some() {
            self.faults += 1;
            self.machines[i].core = None;
            self.machines[i].life += 1;
            if self.scenario.bug == Some(Bug::LyingDisk) {
                // The disk said "synced" and forgot: back to a state of some time ago.
                self.machines[i].disk.tables.remove(&starling::core::Table::Acceptors);
            }
            if machine_too {
                let keys: Vec<AttemptKey> = self.machines[i].attempts.keys().copied().collect();
                for key in keys {
                    self.end_attempt(i, key, Outcome::Stopped("machine went down".into()));
                }
                self.machines[i].leases.clear();
            }
            let back = Span::millis(200) + self.around(Span::secs(8));
            self.at(back, Event::Restart(i));
        }
        let wait = self.around(self.scenario.crash_every);
        self.at(wait, Event::Crash);
    }

    fn partition_some(&mut self) {
        if self.healed {
            return;
        }
        self.faults += 1;
        self.cut_seq += 1;
        let (cut, n) = (self.cut_seq, self.machines.len());
        let one_way = self.rng.chance(0.3);
        let side: Vec<bool> = match self.rng.below(3) {
            0 => {
                let alone = self.rng.below(n as u64) as usize;
                (0..n).map(|i| i == alone).collect()
            }
            _ => (0..n).map(|_| self.rng.chance(0.5)).collect(),
        };
        for a in 0..n {
            for b in 0..n {
                if side[a] && !side[b] {
                    self.cuts.insert((a, b), cut);
                    if !one_way {
                        self.cuts.insert((b, a), cut);
                    }
                }
            }
        }
        let (heal, wait) = (self.around(Span::secs(10)), self.around(self.scenario.partition_every));
        self.at(heal, Event::HealOne(cut));
        self.at(wait, Event::Partition);
    }

    // Soft state.

    fn gossip(&mut self) {
        let (t, n) = (self.t, self.machines.len());
        for to in 0..n {
            if self.machines[to].core.is_none() {
                continue;
            }
            for from in 0..n {
                let lost = !self.healed && self.rng.chance(0.2);
                let up = self.machines[from].core.is_some();
                if from != to && up && !lost && !self.cut(from, to) {
                    let (queue, contact) =
                        (self.machines[from].queue.clone(), self.machines[from].contact.clone());
                    self.machines[to].heard.insert(from, (t, queue, contact));
                }
            }
            let view = self.view(to);
            self.input(to, Input::View(view));
        }
        self.at(GOSSIP_EVERY, Event::Gossip);
    }

    fn view(&self, me: usize) -> View {
        let m = &self.machines[me];
        let mut view = View::default();
        let mut reached = 0;
        for (i, other) in self.machines.iter().enumerate() {
            let heard = if i == me {
                Some((self.t, m.queue.clone(), m.contact.clone()))
            } else {
                m.heard.get(&i).cloned()
            };
            let age = heard.as_ref().map_or(Span::FOREVER, |(at, ..)| self.t.since(*at));
            let liveness = match age {
                a if a < Span::secs(3) => Liveness::Alive,
                a if a < Span::secs(10) => Liveness::Suspect,
                _ => Liveness::Lost,
            };
            reached += usize::from(i != me && liveness == Liveness::Alive);
            let (at, queue, contact) = heard.unwrap_or_default();
            let report = Report {
                peer: other.name.clone(),
                store: other.store,
                capacity: Some(capacity(i)),
                queue,
                contact,
                health: Some(HealthReport::default()),
                build: None,
                links: Vec::new(),
                heard_at: m.clock(at),
            };
            let member = MemberView {
                peer: other.name.clone(),
                store: other.store,
                witness: false,
                liveness,
                draining: false,
                report: Some(report),
            };
            view.members.insert(other.name.clone(), member);
        }
        view.isolated = reached == 0 && self.machines.len() > 1;
        if view.isolated {
            for member in view.members.values_mut().filter(|m| m.liveness == Liveness::Lost) {
                member.liveness = Liveness::Suspect;
            }
        }
        view
    }

    // Machines and guards.

    fn command(&mut self, i: usize, command: BackendCommand) {
        match command {
            BackendCommand::Start(start) => self.start_attempt(i, *start),
            BackendCommand::Stop { key, reason, .. } => {
                if let Some(running) = self.machines[i].attempts.get_mut(&key) {
                    if running.stopping.is_none() {
                        running.stopping = Some(reason);
                        let outcome = match reason {
                            StopReason::Cancel => Outcome::Cancelled,
                            StopReason::Timeout => Outcome::TimedOut,
                            StopReason::Drain | StopReason::Superseded => {
                                Outcome::Stopped(format!("{reason:?}"))
                            }
                        };
                        let takes = Span(50_000 + self.rng.below(500_000));
                        self.at(takes, Event::Killed(i, key, outcome));
                    }
                } else if self.machines[i].ended.contains_key(&key) {
                    self.report_end(i, key);
                } else {
                    // Never started, and never will be.
                    let wall = WallTime(self.t.0 / 1000);
                    self.machines[i].ever_started.insert(key);
                    self.machines[i]
                        .ended
                        .insert(key, (Outcome::NotStarted("stopped first".into()), None, wall));
                    self.report_end(i, key);
                }
            }
            BackendCommand::Rebind { key, to } => {
                if let Some(running) = self.machines[i].attempts.get_mut(&key) {
                    running.binding = to;
                }
            }
            BackendCommand::Forget { key } => {
                self.machines[i].ended.remove(&key);
            }
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
        let lease = self.machines[i].leases.entry(start.binding).or_insert(start.renewed_at);
        *lease = (*lease).max(start.renewed_at);
        self.check_start(i, key);
        let wall = WallTime(self.t.0 / 1000);
        let ledger = self.ledger.len();
        self.ledger.push(Execution {
            job: key.job,
            epoch: key.epoch.0,
            peer: i,
            from: self.t,
            until: None,
            finished: false,
        });
        let work = Span(500_000 + self.rng.below(25_000_000));
        let running = Running {
            spec: start.spec,
            binding: start.binding,
            ledger,
            stopping: None,
            started_at: wall,
            max_left: work,
        };
        self.machines[i].attempts.insert(key, running);
        self.at(work, Event::WorkDone(i, key));
        self.at(Span::millis(100), Event::GuardLooks(i, key));
        self.at(Span(1), Event::Backend(i, Box::new(BackendEvent::Started { key, at: wall })));
    }

    /// I2 and I3 at the moment of a start: nothing newer ever ran, nothing else runs.
    fn check_start(&mut self, i: usize, key: AttemptKey) {
        for other in self.ledger.iter().filter(|e| e.job == key.job) {
            if other.until.is_none() {
                if std::env::var_os("SIM_DEBUG").is_some() {
                    self.dump(&key.job);
                    let m = &self.machines[other.peer];
                    let old = m.attempts.iter().find(|(k, _)| k.job == key.job);
                    let binding = old.map(|(_, r)| r.binding);
                    let lease = binding.and_then(|b| m.leases.get(&b).copied());
                    eprintln!(
                        "at {:?}: old binding {binding:?} lease {lease:?} its clock {:?} up {}",
                        self.t,
                        m.clock(self.t),
                        m.core.is_some()
                    );
                    eprintln!("leases {:?}", m.leases);
                }
                let text = format!(
                    "I3: {} epoch {} starts at peer {i} while epoch {} runs at peer {}",
                    key.job, key.epoch, other.epoch, other.peer
                );
                self.violations.push(text);
            }
            if other.epoch >= key.epoch.0 {
                let text = format!(
                    "I2: {} epoch {} starts at peer {i} after epoch {} did",
                    key.job, key.epoch, other.epoch
                );
                self.violations.push(text);
            }
        }
    }

    fn guard_looks(&mut self, i: usize, key: AttemptKey) {
        let t = self.t;
        let m = &self.machines[i];
        let Some(running) = m.attempts.get(&key) else { return };
        let Some(grace) = running.spec.on_lost_contact.grace else { return };
        if self.scenario.bug == Some(Bug::NoGuard) {
            return;
        }
        let lease = m.leases.get(&running.binding).copied().unwrap_or(Instant(0));
        let now = m.clock(t);
        // Stops strictly before the deadline: the kill itself takes up to a guard's poll.
        let stop_at = lease + grace.scale(9, 10);
        if now >= stop_at {
            return self.end_attempt(i, key, Outcome::Stopped("lost contact".into()));
        }
        let next = m.true_time(stop_at).since(t).min(Span::millis(200)).max(Span::millis(1));
        self.at(next, Event::GuardLooks(i, key));
    }

    fn work_done(&mut self, i: usize, key: AttemptKey) {
        if let Some(running) = self.machines[i].attempts.get(&key) {
            let ledger = running.ledger;
            let _ = running.max_left;
            self.ledger[ledger].finished = true;
            self.end_attempt(i, key, Outcome::Exited(0));
        }
    }

    fn end_attempt(&mut self, i: usize, key: AttemptKey, outcome: Outcome) {
        let Some(running) = self.machines[i].attempts.remove(&key) else { return };
        self.ledger[running.ledger].until = Some(self.t);
        let wall = WallTime(self.t.0 / 1000);
        self.machines[i].ended.insert(key, (outcome, Some(running.started_at), wall));
        self.report_end(i, key);
    }

    fn report_end(&mut self, i: usize, key: AttemptKey) {
        let Some((outcome, started_at, at)) = self.machines[i].ended.get(&key).cloned() else { return };
        self.at(Span(1), Event::Backend(i, Box::new(BackendEvent::Ended { key, outcome, started_at, at })));
    }

    // Users.

    fn submit(&mut self, n: usize) {
        let alive: Vec<usize> =
            (0..self.machines.len()).filter(|&i| self.machines[i].core.is_some()).collect();
        let Some(&i) = self.rng.pick(&alive) else { return };
        let gpus = [1, 1, 2, 4, 8][self.rng.below(5) as usize];
        let spec = Box::new(spec(&format!("job-{n}"), gpus, self.scenario.grace));
        self.input(
            i,
            Input::Client { token: n as u64 + 1, request: ClientRequest::Submit { spec, key: None } },
        );
    }

    fn reply(&mut self, token: u64, response: ClientResponse) {
        match response {
            ClientResponse::Submitted { job, .. } => {
                self.answered.insert(token, job);
                self.answered_jobs.insert(job);
            }
            _ => self.refused += 1,
        }
    }

    // Judgement.

    fn newest(&self, job: &JobId) -> Option<(u64, JobState, usize)> {
        let hints = self.machines.iter().filter_map(|m| m.core.as_ref()?.hint(job));
        hints.max_by_key(|r| (r.version, r.state.is_final())).map(|r| (r.version, r.state, r.attempts.len()))
    }

    fn all_final(&self) -> bool {
        self.answered_jobs.iter().all(|job| self.newest(job).is_some_and(|(_, state, _)| state.is_final()))
            && self.machines.iter().all(|m| m.attempts.is_empty())
    }

    /// Everything known of one job, for a person who looks for the cause (`SIM_DEBUG=1`).
    fn dump(&self, job: &JobId) {
        for (i, m) in self.machines.iter().enumerate() {
            let Some(core) = m.core.as_ref() else { continue };
            if let Some(r) = core.hint(job) {
                eprintln!(
                    "{} v{} {:?} epoch {} {:?} placement {:?}",
                    m.name, r.version, r.state, r.epoch, r.reason, r.placement
                );
            }
            let here: Vec<_> = m.attempts.keys().chain(m.ended.keys()).filter(|k| k.job == *job).collect();
            eprintln!("  peer {i}: attempts {here:?} {}", core.explain(job));
        }
        eprintln!("  ledger {:?}", self.ledger.iter().filter(|e| e.job == *job).collect::<Vec<_>>());
    }

    fn judge(mut self) -> Outcomes {
        let (mut succeeded, mut not_final, mut lost, mut moved) = (0, 0, 0, 0);
        for job in &self.answered_jobs {
            let runs: Vec<&Execution> = self.ledger.iter().filter(|e| e.job == *job).collect();
            moved += usize::from(runs.len() > 1);
            let finished = runs.iter().any(|e| e.finished);
            match self.newest(job) {
                None => lost += 1,
                Some((_, JobState::Succeeded, _)) if finished => succeeded += 1,
                Some((_, JobState::Succeeded, _)) => {
                    self.violations.push(format!("{job} is recorded as succeeded and never finished"));
                }
                Some((_, state, _)) if state.is_final() => {
                    self.violations.push(format!("{job} ended as {state:?}"))
                }
                Some(_) => {
                    not_final += 1;
                    if std::env::var_os("SIM_DEBUG").is_some() {
                        self.dump(job);
                    }
                }
            }
        }
        if lost > 0 {
            self.violations.push(format!("S1: {lost} answered jobs are lost"));
        }
        if not_final > 0 {
            self.violations.push(format!(
                "S4: {not_final} jobs did not end within {} of healing",
                self.scenario.settle_for
            ));
        }
        Outcomes {
            seed: self.scenario.seed,
            submitted: self.answered_jobs.len(),
            succeeded,
            not_final,
            lost,
            moved,
            faults: self.faults,
            executions: self.ledger.len(),
            violations: self.violations,
            trace_hash: self.hash,
            messages: self.messages,
            simulated: self.t.since(Instant(0)),
        }
    }
}

fn apply(disk: &mut DiskImage, writes: &[Write]) {
    for write in writes {
        let table = disk.tables.entry(write.table).or_default();
        match &write.value {
            Some(value) => table.insert(write.key.clone(), value.clone()),
            None => table.remove(&write.key),
        };
    }
}

fn nodes() -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: "n".into(),
        count: 1,
        gpu_model: Some("A100-80G".into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    }]
}

fn capacity(i: usize) -> CapacityReport {
    CapacityReport {
        backend: "fake".into(),
        region: format!("r{}", i % 3),
        zone: String::new(),
        labels: BTreeMap::new(),
        price_milli: 2_000,
        pue_milli: 1_200,
        nodes: nodes(),
        container_runtime: None,
    }
}

fn spec(name: &str, gpus: u32, grace: Span) -> JobSpec {
    JobSpec {
        name: name.into(),
        tenant: "default".into(),
        priority: 50,
        resources: Resources { gpus, gpu: vec![], cpus: MilliCpu(1000), memory: Bytes(0) },
        nodes: 1,
        run: Run::Argv(vec!["work".into()]),
        env: BTreeMap::new(),
        workdir: None,
        image: None,
        data: vec![],
        checkpoint: None,
        communication: Communication::Sync,
        max_runtime: None,
        retries: 0,
        on_lost_contact: OnLostContact { grace: Some(grace), then: Then::Restart },
        placement: PlacementSpec::default(),
    }
}
