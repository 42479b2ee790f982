//! Queues of several clusters, in a small mesh of real cores: messages arrive at once, programs run until they are
//! told to stop, and then take as long as a test says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::api::*;
use super::message::*;
use super::testing::{config, name, spec};
use super::{Input, Message, Peer};
use crate::base::{Bytes, Instant, JobId, MilliCpu, PeerName, Span, StoreId, WallTime};
use crate::model::report::{
    BuildReport, CapacityReport, ContactReport, HealthReport, Liveness, MemberView, NodeCapacity,
    QueueReport, Report, View,
};
use crate::model::spec::JobSpec;
use crate::model::{JobRecord, JobState, Outcome};

#[path = "grants_tests.rs"]
mod grants_tests;
#[path = "groups_tests.rs"]
mod groups_tests;
#[path = "executor/places_tests.rs"]
mod places_tests;
#[path = "reserve/tests.rs"]
mod reserve_tests;
#[path = "executor/why_tests.rs"]
mod why_tests;

struct Site {
    core: Peer,
    nodes: Vec<NodeCapacity>,
    told: (Option<QueueReport>, Option<ContactReport>),
    /// What runs here; with a time: when it will have ended.
    runs: BTreeMap<AttemptKey, (WallTime, Option<(Instant, Outcome)>)>,
    draining: bool,
    /// The most GPUs that ever ran at once.
    peak: u64,
}

struct Mesh {
    sites: BTreeMap<PeerName, Site>,
    now: Instant,
    lines: VecDeque<(PeerName, PeerName, Message)>,
    replies: BTreeMap<u64, ClientResponse>,
    tokens: u64,
    /// From notice to the end of a program.
    exit: Span,
    stops: BTreeSet<AttemptKey>,
    gpus: BTreeMap<AttemptKey, u64>,
    wire: u16,
    /// True loses the message.
    drop: fn(&Message) -> bool,
    /// True brings it twice.
    twice: fn(&Message) -> bool,
    /// Nobody has heard yet what these clusters have.
    unheard: BTreeSet<PeerName>,
    /// Claims sent so far.
    claims: u64,
    /// What a GPU hour costs, of those that ask for something.
    prices: BTreeMap<PeerName, u64>,
}

fn nodes(gpus: u32) -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: "n".into(),
        count: 1,
        gpu_model: Some("H100-80G".into()),
        gpus,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(256),
        declared: true,
    }]
}

fn job(gpus: u32, priority: u8) -> JobSpec {
    let mut spec = spec();
    (spec.resources.gpus, spec.resources.cpus, spec.priority) = (gpus, MilliCpu(100), priority);
    spec
}

impl Mesh {
    fn new(sizes: &[(&str, u32)]) -> Self {
        let mut mesh = Mesh {
            sites: BTreeMap::new(),
            now: Instant(1_000_000),
            lines: VecDeque::new(),
            replies: BTreeMap::new(),
            tokens: 0,
            exit: Span::secs(1),
            stops: BTreeSet::new(),
            gpus: BTreeMap::new(),
            wire: SPEAKS,
            drop: |_| false,
            twice: |_| false,
            unheard: BTreeSet::new(),
            claims: 0,
            prices: BTreeMap::new(),
        };
        let mut first = Vec::new();
        for (n, (peer, gpus)) in sizes.iter().enumerate() {
            let cfg = CoreConfig {
                nodes: nodes(*gpus),
                seed: n as u64,
                ..config(peer, StoreId([n as u8 + 1; 16]))
            };
            let (core, out) = Peer::recover(cfg, &DiskImage::default(), mesh.time()).expect("an empty disk");
            let site = Site {
                core,
                nodes: nodes(*gpus),
                told: (None, None),
                runs: BTreeMap::new(),
                draining: false,
                peak: 0,
            };
            mesh.sites.insert(name(peer), site);
            first.push((name(peer), out));
        }
        for (peer, out) in first {
            mesh.take(&peer, out);
            mesh.input(&peer, Input::Backend(BackendEvent::Adopted { running: vec![] }));
        }
        mesh.run(Span::secs(5));
        mesh
    }

    fn time(&self) -> Now {
        Now { mono: self.now, wall: WallTime(self.now.0 / 1000) }
    }

    fn view(&self) -> Arc<View> {
        let member = |(n, (peer, site)): (usize, (&PeerName, &Site))| {
            let store = StoreId([n as u8 + 1; 16]);
            let report = Report {
                peer: peer.clone(),
                store,
                capacity: (!self.unheard.contains(peer)).then(|| CapacityReport {
                    backend: "fake".into(),
                    region: "r".into(),
                    zone: String::new(),
                    labels: BTreeMap::new(),
                    price_milli: self.prices.get(peer).copied().unwrap_or(0),
                    pue_milli: 1_000,
                    nodes: site.nodes.clone(),
                    container_runtime: None,
                    terms: Default::default(),
                    nodes_out: Default::default(),
                    slurm: None,
                }),
                queue: site.told.0.clone(),
                contact: site.told.1.clone(),
                health: Some(HealthReport::default()),
                build: Some(BuildReport { version: String::new(), wire: self.wire }),
                links: Vec::new(),
                data: None,
                images: None,
                alerts: None,
                heard_at: self.now,
            };
            let member = MemberView {
                peer: peer.clone(),
                store,
                witness: false,
                liveness: Liveness::Alive,
                draining: site.draining,
                report: Some(Arc::new(report)),
            };
            (peer.clone(), member)
        };
        Arc::new(View { members: self.sites.iter().enumerate().map(member).collect(), isolated: false })
    }

    /// What has changed is known everywhere now.
    fn tell_views(&mut self) {
        let (view, peers) = (self.view(), self.sites.keys().cloned().collect::<Vec<_>>());
        for peer in peers {
            self.input(&peer, Input::View(view.clone()));
        }
    }

    fn input(&mut self, peer: &PeerName, input: Input) {
        let now = self.time();
        let Some(site) = self.sites.get_mut(peer) else { return };
        let out = site.core.step(now, input);
        self.take(peer, out);
    }

    fn take(&mut self, peer: &PeerName, out: Vec<Output>) {
        let mut events = Vec::new();
        let wall = self.time().wall;
        for output in out {
            let Some(site) = self.sites.get_mut(peer) else { return };
            match output {
                Output::Send { to, message, .. } => {
                    self.claims += u64::from(matches!(message, Message::ClaimWith { .. }));
                    self.lines.push_back((peer.clone(), to, message));
                }
                Output::Reply { token, response } => drop(self.replies.insert(token, response)),
                Output::Report { queue, contact } => site.told = (Some(queue), contact),
                Output::Backend(BackendCommand::Start(start)) if !self.gpus.contains_key(&start.key) => {
                    site.runs.insert(start.key, (wall, None));
                    self.gpus.insert(start.key, start.spec.gpus_total());
                    let held: u64 = site.runs.keys().filter_map(|k| self.gpus.get(k)).sum();
                    site.peak = site.peak.max(held);
                    events.push(BackendEvent::Started { key: start.key, at: wall });
                }
                Output::Backend(BackendCommand::Stop { key, .. }) => {
                    self.stops.insert(key);
                    if let Some((_, end @ None)) = site.runs.get_mut(&key) {
                        *end = Some((self.now + self.exit, Outcome::Stopped("drain".into())));
                    }
                }
                _ => {}
            }
        }
        for event in events {
            self.input(peer, Input::Backend(event));
        }
    }

    fn settle(&mut self) {
        while let Some((from, to, message)) = self.lines.pop_front() {
            if (self.twice)(&message) {
                self.input(&to, Input::Message { from: from.clone(), message: message.clone() });
            }
            if from == to || !(self.drop)(&message) {
                self.input(&to, Input::Message { from, message });
            }
        }
    }

    fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + Span::millis(100);
            let (now, wall) = (self.now, self.time().wall);
            let names: Vec<PeerName> = self.sites.keys().cloned().collect();
            let view = self.view();
            for peer in names {
                let site = self.sites.get_mut(&peer).expect("a site");
                let over = site.runs.iter().filter(|(_, (_, end))| end.as_ref().is_some_and(|e| e.0 <= now));
                let over: Vec<AttemptKey> = over.map(|(k, _)| *k).collect();
                for key in over {
                    let site = self.sites.get_mut(&peer).expect("a site");
                    let Some((began, Some((_, outcome)))) = site.runs.remove(&key) else { continue };
                    let event = BackendEvent::Ended { key, outcome, started_at: Some(began), at: wall };
                    self.input(&peer, Input::Backend(event));
                }
                if now.0 % 500_000 == 0 {
                    self.input(&peer, Input::View(view.clone()));
                } else {
                    self.input(&peer, Input::Tick);
                }
            }
            self.settle();
        }
    }

    fn ask(&mut self, peer: &str, request: ClientRequest) -> ClientResponse {
        self.tokens += 1;
        let token = self.tokens;
        self.input(&name(peer), Input::Client { token, request });
        self.settle();
        for _ in 0..120 {
            if let Some(answer) = self.replies.remove(&token) {
                return answer;
            }
            self.run(Span::millis(100));
        }
        panic!("no answer at {peer}")
    }

    fn submit(&mut self, peer: &str, spec: JobSpec) -> JobId {
        match self.ask(peer, ClientRequest::Submit { spec: Box::new(spec), key: None }) {
            ClientResponse::Submitted { job, .. } => job,
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, peer: &str, job: JobId) -> JobRecord {
        match self.ask(peer, ClientRequest::Get { job }) {
            ClientResponse::Job(record) => *record,
            other => panic!("{other:?}"),
        }
    }

    fn finish(&mut self, job: JobId) {
        let now = self.now;
        for site in self.sites.values_mut() {
            for (_, (_, end)) in site.runs.iter_mut().filter(|(k, _)| k.job == job) {
                *end = Some((now, Outcome::Exited(0)));
            }
        }
    }

    fn running(&self, peer: &str) -> usize {
        self.sites[&name(peer)].runs.len()
    }

    fn reserved(&self, peer: &str) -> u32 {
        self.sites[&name(peer)].told.0.as_ref().map_or(0, |q| q.gpus_reserved.values().sum())
    }

    fn place(&mut self, peer: &str, mut spec: JobSpec) -> JobId {
        spec.placement.clusters = vec![name(peer)];
        let job = self.submit(peer, spec);
        self.run(Span::secs(2));
        assert_eq!(self.get(peer, job).state, JobState::Running);
        job
    }
}

/// Three full clusters and one urgent job: one cluster loses one attempt, and the job it was comes back as pending.
#[test]
fn an_urgent_job_takes_victims_in_one_of_three_full_clusters() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    let mut low = Vec::new();
    for peer in ["a", "b", "c"] {
        for _ in 0..2 {
            low.push(mesh.place(peer, job(4, 20)));
        }
    }
    assert_eq!(["a", "b", "c"].map(|p| mesh.running(p)), [2, 2, 2]);
    let urgent = mesh.submit("a", job(4, 90));
    mesh.run(Span::secs(12));
    let record = mesh.get("b", urgent);
    assert_eq!(record.state, JobState::Running, "{record:?}");
    assert_eq!(mesh.stops.len(), 1, "one attempt in all had to go: {:?}", mesh.stops);
    let victim = mesh.stops.first().expect("one").job;
    let victim = mesh.get("a", victim);
    assert_eq!((victim.state, victim.failures, victim.losses), (JobState::Pending, 0, 0), "{victim:?}");
    assert!(victim.reason.contains("preempted for"), "{}", victim.reason);
    // It goes on when there is room again.
    mesh.finish(urgent);
    mesh.run(Span::secs(25));
    assert_eq!(mesh.get("a", victim.id()).state, JobState::Running);
    assert!(mesh.sites.values().all(|s| s.peak <= 8));
}

/// A job that must not be sent away is not, however urgent the other is; nor is anybody for one of the same priority.
#[test]
fn who_is_not_preemptible_stays() {
    let mut mesh = Mesh::new(&[("a", 4)]);
    let firm = JobSpec { preemptible: Some(false), ..job(4, 20) };
    mesh.place("a", firm);
    mesh.submit("a", job(4, 100));
    mesh.run(Span::secs(30));
    assert!(mesh.stops.is_empty());
}

/// Gossip says that both have room for all; 15 jobs come at once and land 10 and 5.
#[test]
fn fifteen_evicted_land_ten_and_five() {
    let mut mesh = Mesh::new(&[("a", 10), ("b", 5), ("c", 15)]);
    let drain = |mesh: &mut Mesh, peer: &str, on: bool| {
        mesh.sites.get_mut(&name(peer)).expect("a site").draining = on;
        mesh.input(&name(peer), Input::Drain(on));
    };
    drain(&mut mesh, "a", true);
    drain(&mut mesh, "b", true);
    let jobs: Vec<JobId> = (0..15).map(|_| mesh.submit("c", job(1, 50))).collect();
    mesh.run(Span::secs(20));
    assert_eq!(["a", "b", "c"].map(|p| mesh.running(p)), [0, 0, 15]);
    drain(&mut mesh, "a", false);
    drain(&mut mesh, "b", false);
    drain(&mut mesh, "c", true);
    mesh.run(Span::secs(40));
    assert_eq!(["a", "b", "c"].map(|p| mesh.running(p)), [10, 5, 0]);
    assert_eq!(["a", "b"].map(|p| mesh.sites[&name(p)].peak), [10, 5]);
    let reserved = ["a", "b"].map(|p| mesh.reserved(p));
    assert_eq!(reserved, [0, 0], "no grant is left over");
    for job in jobs {
        assert_eq!(mesh.get("a", job).state, JobState::Running);
    }
}

/// Two clusters grant at once: the record takes one, the other's capacity is free again at once.
#[test]
fn of_two_grants_one_is_taken_and_the_other_given_back() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    for _ in 0..6 {
        mesh.submit("a", job(4, 50));
    }
    mesh.run(Span::secs(6));
    let all: usize = ["a", "b", "c"].iter().map(|p| mesh.running(p)).sum();
    assert_eq!(all, 6);
    assert_eq!(["a", "b", "c"].map(|p| mesh.reserved(p)), [0, 0, 0]);
    assert!(mesh.sites.values().all(|s| s.peak <= 8));
}

/// A gang waits at three clusters, each half free: one of them is kept free for it, and small jobs have the others.
#[test]
fn a_gang_is_kept_capacity_for_at_one_of_the_clusters_where_it_waits() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    let half: Vec<JobId> = ["a", "b", "c"].into_iter().map(|peer| mesh.place(peer, job(4, 50))).collect();
    let gang = mesh.submit("a", job(8, 50));
    mesh.run(Span::secs(45));
    let small: Vec<JobId> = (0..3).map(|_| mesh.submit("b", job(4, 50))).collect();
    mesh.run(Span::secs(45));
    let mut running = ["a", "b", "c"].map(|p| mesh.running(p));
    let kept = running.iter().position(|n| *n == 1).expect("one is kept half free");
    running.sort_unstable();
    assert_eq!(running, [1, 2, 2]);
    // There it starts as soon as it fits, and so does whoever waited behind it, elsewhere.
    mesh.finish(half[kept]);
    mesh.run(Span::secs(25));
    let placed = mesh.get("c", gang).placement.map(|p| p.cluster);
    assert_eq!(placed, Some(name(["a", "b", "c"][kept])));
    mesh.finish(half[(kept + 1) % 3]);
    mesh.run(Span::secs(25));
    for job in small {
        assert_eq!(mesh.get("b", job).state, JobState::Running);
    }
}

/// Two clusters, each first in its own queue with a job whose start nobody knows: nodes are held for the one that waits longer, and
/// small jobs have what is free at the other, until it is its turn.
#[test]
fn of_two_first_in_line_at_two_clusters_nodes_are_held_for_the_older() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 6)]);
    let old = mesh.place("a", job(4, 50));
    mesh.place("b", job(4, 50));
    let first = mesh.submit("b", job(8, 50));
    mesh.run(Span::secs(45));
    let second = mesh.submit("a", job(6, 50));
    mesh.run(Span::secs(45));
    let told = |mesh: &Mesh, peer: &str| {
        let queue = mesh.sites[&name(peer)].told.0.clone().expect("it tells");
        queue.keeps.iter().map(|k| (k.job, k.gpus, k.models.clone())).collect::<Vec<_>>()
    };
    let models = vec!["H100-80G".to_owned()];
    assert_eq!(told(&mesh, "a"), [(first, 8, models.clone())]);
    assert!(told(&mesh, "b").is_empty());
    let small = mesh.submit("a", job(2, 50));
    mesh.run(Span::secs(25));
    assert_eq!(mesh.get("a", small).placement.map(|p| p.cluster), Some(name("b")), "nothing is held there");
    let why = mesh.ask("a", ClientRequest::Why { job: second });
    assert!(format!("{why:?}").contains("OlderFirst"), "{why:?}");
    // Its turn comes when the older one has started.
    mesh.finish(old);
    mesh.run(Span::secs(25));
    assert_eq!(mesh.get("b", first).state, JobState::Running);
    mesh.finish(small);
    mesh.run(Span::secs(25));
    assert_eq!(told(&mesh, "b"), [(second, 6, models)]);
    let late = mesh.submit("a", job(2, 50));
    mesh.run(Span::secs(25));
    assert_ne!(mesh.get("a", late).state, JobState::Running, "kept for the one that waits");
}

/// Peers of the version before read the plain claim only: everything works, without tokens.
#[test]
fn beside_peers_of_the_version_before_plain_claims_are_sent() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4)]);
    mesh.wire = 0x5301;
    mesh.run(Span::secs(1));
    for peer in ["a", "b"] {
        mesh.place(peer, job(4, 20));
    }
    let urgent = mesh.submit("a", job(4, 90));
    // Its own cluster still speaks to itself.
    mesh.run(Span::secs(12));
    assert!(mesh.stops.len() <= 1);
    let at = mesh.get("a", urgent).placement.map(|p| p.cluster);
    assert!(at.is_none() || mesh.stops.len() == 1, "{at:?}");
}

/// A claim for an epoch that is over, from an owner that has not heard, changes nothing.
#[test]
fn a_claim_of_a_stale_owner_is_passed_over() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4)]);
    let held = JobSpec { preemptible: Some(false), ..job(4, 50) };
    for peer in ["a", "b"] {
        mesh.place(peer, held.clone());
    }
    let waits = mesh.submit("a", job(2, 50));
    mesh.run(Span::secs(3));
    let record = mesh.get("a", waits);
    let claim = Claim {
        birth: record.birth.clone(),
        epoch: record.epoch.next().next(),
        nodes: 1,
        resources: record.spec.resources.clone(),
        priority: 50,
        image: false,
        max_runtime: None,
    };
    let newer = Message::Claim(Box::new(claim.clone()));
    mesh.input(&name("b"), Input::Message { from: name("a"), message: newer });
    let stale = Claim { epoch: record.epoch.next(), priority: 99, ..claim };
    let terms = Terms { waited: Span(u64::MAX), token: true, preemptible: true, ..Terms::default() };
    let stale = Message::ClaimWith { claim: Box::new(stale), terms };
    mesh.input(&name("b"), Input::Message { from: name("a"), message: stale });
    let queue = mesh.sites[&name("b")].core.inspect(Look { claims: 10, reasons: false }).queue;
    assert_eq!(queue.iter().map(|c| (c.job, c.priority)).collect::<Vec<_>>(), [(waits, 50)]);
    assert!(mesh.stops.is_empty());
}
