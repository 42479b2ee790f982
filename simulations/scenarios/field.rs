//! A small field of clusters for scenarios told by hand: the production cores, a network that loses nothing, machines
//! that run what they are told, and gossip that says what a scenario wants it to say. No chance in any of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling::base::units::{Bytes, MilliCpu};
use starling::base::{Instant, JobId, PeerName, Span, StoreId, WallTime};
use starling::core::api::{AttemptKey, Pace, StopReason};
use starling::core::message::SPEAKS;
use starling::core::{
    BackendCommand, BackendEvent, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Message, Now,
    Output, Peer,
};
use starling::model::report::{
    BuildReport, CapacityReport, ContactReport, HealthReport, Liveness, MemberView, QueueReport, View,
};
use starling::model::spec::JobSpec;
use starling::model::spec_input::parse_spec;
use starling::model::{NodeCapacity, Outcome, Report};

/// One way between any two.
const WAY: Span = Span::millis(20);
const SYNC: Span = Span::millis(1);
const VIEW_EVERY: Span = Span::secs(1);
/// Not heard of for this long: suspect, lost.
const SUSPECT: Span = Span::secs(2);
const LOST: Span = Span::secs(5);
/// The grace of all jobs here.
pub const GRACE: Span = Span::secs(4);
/// A job whose cluster has died is free again within this: grace and drift, margin, a look every second.
pub const FREED: Span = Span::secs(15);

enum Event {
    Deliver { to: usize, from: usize, message: Box<Message> },
    Wake(usize),
    View(usize),
    Backend(usize, Box<BackendEvent>),
    Done(usize, AttemptKey, Outcome),
}

/// One execution, as its machine saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub job: String,
    pub at: usize,
    pub epoch: u64,
    pub from: Instant,
    pub until: Option<Instant>,
    pub finished: bool,
    gpus: u32,
    cpus: u64,
    key: AttemptKey,
}

struct Seat {
    core: Option<Peer>,
    nodes: Vec<NodeCapacity>,
    soft: (Option<QueueReport>, Option<ContactReport>),
    /// Gossip tells this of it instead.
    lie: Option<QueueReport>,
    refuses: bool,
    draining: bool,
    dies_when_it_grants: bool,
    heard: Instant,
}

pub struct Field {
    pub now: Instant,
    seq: u64,
    agenda: BTreeMap<(Instant, u64), Event>,
    seats: Vec<Seat>,
    /// How long each job runs, by name.
    pub works: BTreeMap<String, Span>,
    /// How long a job takes to end after it was told to stop.
    pub slow_exit: BTreeMap<String, Span>,
    pub ran: Vec<Ran>,
    pub replies: BTreeMap<u64, ClientResponse>,
    pub claims_refused: u64,
    token: u64,
}

pub fn name(i: usize) -> PeerName {
    PeerName::new(&format!("c{i}")).expect("a short name")
}

fn index(name: &PeerName) -> usize {
    name.as_str()[1..].parse().expect("c and a number")
}

/// `count` nodes alike.
pub fn nodes(count: u32, gpus: u32, model: &str, cpus: u64) -> NodeCapacity {
    NodeCapacity {
        name: "n".into(),
        count,
        gpu_model: (gpus > 0).then(|| model.to_owned()),
        gpus,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(cpus * 1000),
        memory: Bytes::gib(512),
        declared: true,
    }
}

/// A job of so many nodes of so many GPUs each; all else as in its file.
pub fn job(name: &str, nodes: u32, gpus: u32, more: &str) -> JobSpec {
    let text = format!("name: {name}\nrun: work\nnodes: {nodes}\nresources: {{gpus: {gpus}}}\n{more}");
    let mut spec = parse_spec(text.as_bytes()).expect("a job file").spec;
    spec.on_lost_contact.grace = Some(GRACE);
    spec
}

impl Field {
    /// Clusters with these nodes; none: a witness. Two seconds later they know each other.
    pub fn new(clusters: &[Vec<NodeCapacity>], claims: usize) -> Self {
        let mut field = Field {
            now: Instant(1_000_000),
            seq: 0,
            agenda: BTreeMap::new(),
            seats: Vec::new(),
            works: BTreeMap::new(),
            slow_exit: BTreeMap::new(),
            ran: Vec::new(),
            replies: BTreeMap::new(),
            claims_refused: 0,
            token: 0,
        };
        let mut first = Vec::new();
        for (i, nodes) in clusters.iter().enumerate() {
            let cfg = CoreConfig {
                name: name(i),
                store: StoreId([i as u8 + 1; 16]),
                boot: 1,
                first_boot: true,
                replicas: 3,
                renew_every: Span::secs(1),
                rho_milli: 10,
                margin: Span::secs(3),
                grant_for: Span::secs(5),
                claims_max: claims,
                jobs_max: 10_000,
                rehome_after: Span::secs(600),
                retain: Span::secs(86_400),
                retain_jobs: 10_000,
                nodes: nodes.clone(),
                schedule: Default::default(),
                runs_images: false,
                policies: Default::default(),
                pace: Pace::default(),
                seed: i as u64 + 1,
            };
            let now = field.time();
            let (core, out) = Peer::recover(cfg, &DiskImage::default(), now).expect("an empty disk");
            field.seats.push(Seat {
                core: Some(core),
                nodes: nodes.clone(),
                soft: (None, None),
                lie: None,
                refuses: false,
                draining: false,
                dies_when_it_grants: false,
                heard: field.now,
            });
            first.push(out);
        }
        for (i, out) in first.into_iter().enumerate() {
            field.outputs(i, out);
            let event = Event::View(i);
            field.put(Span::millis(i as u64), event);
        }
        field.run_for(Span::secs(4));
        field
    }

    fn time(&self) -> Now {
        Now { mono: self.now, wall: WallTime(self.now.0 / 1000) }
    }

    fn put(&mut self, span: Span, event: Event) {
        self.seq += 1;
        self.agenda.insert((self.now + span, self.seq), event);
    }

    // What a scenario does.

    /// Goes on for this long.
    pub fn run_for(&mut self, span: Span) {
        let until = self.now + span;
        self.run_until(span, |_| false);
        self.now = self.now.max(until);
    }

    /// Goes on until something holds; how long that took, none if it did not within this span.
    pub fn run_until(&mut self, span: Span, holds: impl Fn(&Field) -> bool) -> Option<Span> {
        let begun = self.now;
        loop {
            if holds(self) {
                return Some(self.now.since(begun));
            }
            let entry = self.agenda.first_entry().filter(|e| e.key().0 <= begun + span)?;
            let ((at, _), event) = entry.remove_entry();
            self.now = self.now.max(at);
            self.handle(event);
        }
    }

    /// Submits at a peer; it runs for so long where it runs.
    pub fn submit(&mut self, at: usize, spec: JobSpec, works: Span) -> JobId {
        self.works.insert(spec.name.clone(), works);
        let request = ClientRequest::Submit { spec: Box::new(spec), key: None };
        match self.ask(at, request) {
            ClientResponse::Submitted { job, .. } => job,
            other => panic!("not taken: {other:?}"),
        }
    }

    /// A user's request and its answer.
    pub fn ask(&mut self, at: usize, request: ClientRequest) -> ClientResponse {
        self.token += 1;
        let token = self.token;
        self.input(at, Input::Client { token, request });
        self.run_until(Span::secs(20), |f| f.replies.contains_key(&token)).expect("an answer");
        self.replies.remove(&token).expect("it is there")
    }

    /// The machine is gone, with all that runs there.
    pub fn kill(&mut self, i: usize) {
        self.seats[i].core = None;
        let now = self.now;
        for ran in self.ran.iter_mut().filter(|r| r.at == i && r.until.is_none()) {
            ran.until = Some(now);
        }
    }

    pub fn drain(&mut self, i: usize, on: bool) {
        self.seats[i].draining = on;
        self.input(i, Input::Drain(on));
    }
    /// Whatever is claimed there is refused, without a reason that the owner could have known.
    pub fn refuse(&mut self, i: usize) {
        self.seats[i].refuses = true;
    }
    pub fn die_when_granting(&mut self, i: usize) {
        self.seats[i].dies_when_it_grants = true;
    }
    /// From now on gossip says that so many GPUs are free there; none: the truth again.
    pub fn lie(&mut self, i: usize, free: Option<u32>) {
        let nodes = &self.seats[i].nodes;
        let model = nodes.iter().find_map(|n| n.gpu_model.clone()).unwrap_or_default();
        let total = nodes.iter().map(|n| n.gpus * n.count).sum();
        self.seats[i].lie = free.map(|free| QueueReport {
            gpus_free: BTreeMap::from([(model.clone(), free)]),
            gpus_total: BTreeMap::from([(model, total)]),
            cpus_free: MilliCpu(1_000_000),
            memory_free: Bytes::gib(10_000),
            ..self.seats[i].soft.0.clone().unwrap_or_default()
        });
    }
    pub fn lives(&self, i: usize) -> bool {
        self.seats[i].core.is_some()
    }

    /// What runs now: job and cluster.
    pub fn running(&self) -> BTreeMap<String, usize> {
        self.ran.iter().filter(|r| r.until.is_none()).map(|r| (r.job.clone(), r.at)).collect()
    }
    /// Executions of one job, oldest first.
    pub fn runs_of(&self, job: &str) -> Vec<Ran> {
        self.ran.iter().filter(|r| r.job == job).cloned().collect()
    }
    // What the world does.

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { to, from, message } => {
                if self.seats[to].refuses
                    && let Some(answer) = refusal(&message)
                {
                    self.claims_refused += 1;
                    return self.put(WAY, Event::Deliver { to: from, from: to, message: Box::new(answer) });
                }
                self.input(to, Input::Message { from: name(from), message: *message });
            }
            Event::Wake(i) => {
                let due = self.seats[i].core.as_ref().and_then(Peer::next_deadline);
                if due.is_some_and(|at| at <= self.now) {
                    self.input(i, Input::Tick);
                }
            }
            Event::View(i) => {
                self.put(VIEW_EVERY, Event::View(i));
                let view = self.view(i);
                self.input(i, Input::View(Arc::new(view)));
            }
            Event::Backend(i, event) => self.input(i, Input::Backend(*event)),
            Event::Done(i, key, outcome) => self.ends(i, key, outcome),
        }
    }

    fn view(&mut self, me: usize) -> View {
        let now = self.now;
        let mut view = View::default();
        for i in 0..self.seats.len() {
            let seat = &mut self.seats[i];
            if seat.core.is_some() {
                seat.heard = now;
            }
            let liveness = match now.since(seat.heard) {
                age if age > LOST => Liveness::Lost,
                age if age > SUSPECT => Liveness::Suspect,
                _ => Liveness::Alive,
            };
            let queue = if i == me { seat.soft.0.clone() } else { seat.lie.clone().or(seat.soft.0.clone()) };
            let report = Report {
                peer: name(i),
                store: StoreId([i as u8 + 1; 16]),
                capacity: Some(CapacityReport {
                    backend: "fake".into(),
                    region: format!("r{i}"),
                    zone: String::new(),
                    labels: BTreeMap::new(),
                    price_milli: 2_000,
                    pue_milli: 1_200,
                    nodes: seat.nodes.clone(),
                    container_runtime: None,
                    terms: Default::default(),
                    nodes_out: Default::default(),
                    slurm: None,
                }),
                queue,
                contact: seat.soft.1.clone(),
                health: Some(HealthReport { boot: 1, ..HealthReport::default() }),
                build: Some(BuildReport { version: String::new(), wire: SPEAKS }),
                links: Vec::new(),
                data: None,
                images: None,
                alerts: None,
                heard_at: seat.heard,
            };
            view.members.insert(
                name(i),
                MemberView {
                    peer: name(i),
                    store: StoreId([i as u8 + 1; 16]),
                    witness: seat.nodes.is_empty(),
                    liveness,
                    draining: seat.draining,
                    report: Some(Arc::new(report)),
                },
            );
        }
        view
    }

    fn input(&mut self, i: usize, input: Input) {
        let now = self.time();
        let Some(core) = self.seats[i].core.as_mut() else { return };
        let out = core.step(now, input);
        self.outputs(i, out);
    }

    fn outputs(&mut self, i: usize, outputs: Vec<Output>) {
        let mut wrote = Span::ZERO;
        for output in outputs {
            match output {
                Output::Write(_) => wrote = SYNC,
                Output::Send { to, message, .. } => {
                    let to = index(&to);
                    let grants = matches!(message, Message::Grant { .. });
                    let way = if to == i { Span(1) } else { WAY } + wrote;
                    self.put(way, Event::Deliver { to, from: i, message: Box::new(message) });
                    if grants && self.seats[i].dies_when_it_grants {
                        self.kill(i);
                        return;
                    }
                }
                Output::Reply { token, response } => {
                    self.replies.insert(token, response);
                }
                Output::Backend(command) => self.command(i, command),
                Output::Report { queue, contact } => self.seats[i].soft = (Some(queue), contact),
                _ => {}
            }
        }
        if let Some(at) = self.seats[i].core.as_ref().and_then(Peer::next_deadline) {
            let span = at.max(self.now).since(self.now);
            self.put(span, Event::Wake(i));
        }
    }

    fn command(&mut self, i: usize, command: BackendCommand) {
        match command {
            BackendCommand::Start(start) if self.ran.iter().all(|r| r.key != start.key) => {
                let spec = &start.spec;
                let gpus = start.shares.iter().map(|s| s.gpus.len() as u32).sum();
                let ran = Ran {
                    job: spec.name.clone(),
                    at: i,
                    epoch: start.key.epoch.0,
                    from: self.now,
                    until: None,
                    finished: false,
                    gpus,
                    cpus: spec.resources.cpus.0 * u64::from(spec.nodes),
                    key: start.key,
                };
                self.check(&ran);
                let works = self.works.get(&spec.name).copied().unwrap_or(Span::secs(60));
                let at = self.time().wall;
                self.ran.push(ran);
                self.put(
                    Span::millis(5),
                    Event::Backend(i, Box::new(BackendEvent::Started { key: start.key, at })),
                );
                self.put(works, Event::Done(i, start.key, Outcome::Exited(0)));
            }
            BackendCommand::Stop { key, notice, reason } => {
                let ran = self.ran.iter().find(|r| r.key == key && r.until.is_none());
                let slow = ran.and_then(|r| self.slow_exit.get(&r.job)).copied().unwrap_or(Span::millis(100));
                let at = self.time().wall;
                let outcome = match reason {
                    StopReason::Cancel => Outcome::Cancelled,
                    StopReason::Timeout => Outcome::TimedOut,
                    _ => Outcome::Stopped(format!("{reason:?}")),
                };
                if ran.is_none() {
                    let event = BackendEvent::Ended {
                        key,
                        outcome: Outcome::NotStarted("stopped first".into()),
                        started_at: None,
                        at,
                    };
                    return self.put(Span::millis(1), Event::Backend(i, Box::new(event)));
                }
                self.put(slow.min(notice), Event::Done(i, key, outcome));
            }
            _ => {}
        }
    }

    /// No job runs twice at once, no cluster runs more than it has.
    fn check(&self, new: &Ran) {
        let twice = self.ran.iter().find(|r| r.job == new.job && r.until.is_none());
        assert!(twice.is_none(), "{new:?} starts while {twice:?}");
        let here = || self.ran.iter().filter(|r| r.at == new.at && r.until.is_none());
        let seat = &self.seats[new.at];
        let gpus: u32 = seat.nodes.iter().map(|n| n.gpus * n.count).sum();
        let cpus: u64 = seat.nodes.iter().map(|n| n.cpus.0 * u64::from(n.count)).sum();
        let (busy, used): (u32, u64) = (here().map(|r| r.gpus).sum(), here().map(|r| r.cpus).sum());
        assert!(busy + new.gpus <= gpus && used + new.cpus <= cpus, "{new:?}: {busy} of {gpus} GPUs busy");
    }

    fn ends(&mut self, i: usize, key: AttemptKey, outcome: Outcome) {
        let (now, at) = (self.now, self.time().wall);
        let Some(ran) = self.ran.iter_mut().find(|r| r.key == key && r.until.is_none()) else { return };
        (ran.until, ran.finished) = (Some(now), outcome == Outcome::Exited(0));
        let event = BackendEvent::Ended { key, outcome, started_at: Some(at), at };
        self.input(i, Input::Backend(event));
    }
}

/// What a cluster that takes nothing says to a claim.
fn refusal(message: &Message) -> Option<Message> {
    let claim = match message {
        Message::Claim(claim) => claim,
        Message::ClaimWith { claim, .. } => claim,
        _ => return None,
    };
    let refused = Some("takes nothing today".to_owned());
    Some(Message::ClaimState { job: claim.birth.id(), epoch: claim.epoch, ahead: 0, refused })
}
