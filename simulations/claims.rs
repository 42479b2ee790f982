//! Claims and grants between production cores on a small, exact network: what a wrong view, a refusing cluster, a cluster
//! that grants and dies, lost messages and a dead owner cost, in simulated time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling::base::units::{Bytes, MilliCpu};
use starling::base::{Instant, JobId, PeerName, Rng, Span, StoreId, WallTime};
use starling::core::api::{AttemptKey, BackendEvent};
use starling::core::message::SPEAKS;
use starling::core::{
    BackendCommand, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Message, Now, Output, Peer,
    Write,
};
use starling::model::report::{
    BuildReport, CapacityReport, ContactReport, Inventory, Item, LinkSample, Liveness, MemberView,
    NodeCapacity, QueueReport, Report, Terms, View,
};
use starling::model::spec_input::parse_spec;
use starling::model::{JobRecord, JobState, Outcome};

enum Event {
    Message(PeerName, PeerName, Box<Message>),
    Wake(PeerName),
    View(PeerName),
    Ended(PeerName, AttemptKey),
}

struct Machine {
    core: Option<Peer>,
    disk: DiskImage,
    store: StoreId,
    capacity: CapacityReport,
    data: Inventory,
    said: (Option<QueueReport>, Option<ContactReport>),
}

/// A few peers; each fronts one cluster of one node with 8 GPUs.
struct Net {
    t: Instant,
    rng: Rng,
    seq: u64,
    events: BTreeMap<(Instant, u64), Event>,
    machines: BTreeMap<PeerName, Machine>,
    /// One way, from and to this peer; 1 ms where nothing is said.
    far: BTreeMap<PeerName, Span>,
    loss: f64,
    /// What everybody believes of a cluster's queue, whatever it says.
    believed: BTreeMap<PeerName, QueueReport>,
    /// Gbit/s between all clusters.
    gbps: u64,
    work: Span,
    /// Clusters that never start what they were given.
    dies_on_start: BTreeSet<PeerName>,
    replies: BTreeMap<u64, ClientResponse>,
    claims: BTreeMap<PeerName, u64>,
    tokens: u64,
}

fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

fn nodes() -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: "n".into(),
        count: 1,
        gpu_model: Some("H100".into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    }]
}

fn idle() -> QueueReport {
    QueueReport {
        gpus_free: [("H100".to_owned(), 8)].into(),
        gpus_total: [("H100".to_owned(), 8)].into(),
        cpus_free: MilliCpu(64_000),
        memory_free: Bytes::gib(512),
        ..QueueReport::default()
    }
}

const RENEW: Span = Span::secs(1);
const MARGIN: Span = Span::secs(1);

impl Net {
    /// Peers by name with a price in USD per GPU hour.
    fn new(peers: &[(&str, u64)]) -> Self {
        let mut net = Net {
            t: Instant(1_000_000_000),
            rng: Rng::new(5),
            seq: 0,
            events: BTreeMap::new(),
            machines: BTreeMap::new(),
            far: BTreeMap::new(),
            loss: 0.0,
            believed: BTreeMap::new(),
            gbps: 1,
            work: Span::secs(5),
            dies_on_start: BTreeSet::new(),
            replies: BTreeMap::new(),
            claims: BTreeMap::new(),
            tokens: 0,
        };
        for (i, (peer, usd)) in peers.iter().enumerate() {
            let store = StoreId([i as u8 + 1; 16]);
            let cfg = CoreConfig { name: name(peer), store, seed: i as u64 + 1, ..config() };
            let capacity = CapacityReport {
                backend: "fake".into(),
                region: format!("r-{peer}"),
                zone: String::new(),
                labels: BTreeMap::new(),
                price_milli: usd * 1_000,
                pue_milli: 1_200,
                nodes: nodes(),
                container_runtime: None,
                terms: Terms::default(),
                nodes_out: Default::default(),
                slurm: None,
            };
            let (core, out) = Peer::recover(cfg, &DiskImage::default(), net.now()).expect("an empty disk");
            let machine = Machine {
                core: Some(core),
                disk: DiskImage::default(),
                store,
                capacity,
                data: Inventory::default(),
                said: (None, None),
            };
            net.machines.insert(name(peer), machine);
            net.take(&name(peer), out);
            net.input(&name(peer), Input::Backend(BackendEvent::Adopted { running: vec![] }));
        }
        let names: Vec<PeerName> = net.machines.keys().cloned().collect();
        for peer in names {
            net.at(Span::ZERO, Event::View(peer));
        }
        net.run(Span::secs(5));
        net
    }

    fn now(&self) -> Now {
        Now { mono: self.t, wall: WallTime(self.t.0 / 1_000) }
    }

    fn at(&mut self, after: Span, event: Event) {
        self.seq += 1;
        self.events.insert((self.t + after, self.seq), event);
    }

    fn input(&mut self, to: &PeerName, input: Input) {
        let now = self.now();
        let Some(core) = self.machines.get_mut(to).and_then(|m| m.core.as_mut()) else { return };
        let out = core.step(now, input);
        self.take(to, out);
    }

    fn take(&mut self, from: &PeerName, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Write(Write { table, key, value }) => {
                    let rows =
                        self.machines.get_mut(from).expect("known").disk.tables.entry(table).or_default();
                    match value {
                        Some(value) => rows.insert(key, value),
                        None => rows.remove(&key),
                    };
                }
                Output::Send { to, message, .. } => {
                    if is_claim(&message) {
                        *self.claims.entry(to.clone()).or_default() += 1;
                    }
                    if to != *from && self.rng.chance(self.loss) {
                        continue;
                    }
                    let way = |p: &PeerName| self.far.get(p).copied().unwrap_or(Span::millis(1));
                    let takes = way(from).max(way(&to));
                    self.at(takes, Event::Message(from.clone(), to, Box::new(message)));
                }
                Output::Report { queue, contact } => {
                    self.machines.get_mut(from).expect("known").said = (Some(queue), contact);
                }
                Output::Reply { token, response } => {
                    self.replies.insert(token, response);
                }
                Output::Backend(BackendCommand::Start(start)) => {
                    if self.dies_on_start.contains(from) {
                        self.machines.get_mut(from).expect("known").core = None;
                        return;
                    }
                    let (key, at) = (start.key, self.now().wall);
                    self.input(from, Input::Backend(BackendEvent::Started { key, at }));
                    let work = self.work;
                    self.at(work, Event::Ended(from.clone(), key));
                }
                Output::Backend(BackendCommand::Stop { key, .. }) => {
                    self.at(Span::millis(10), Event::Ended(from.clone(), key));
                }
                Output::Quarantine { .. } => panic!("nothing was put back here"),
                Output::Backend(_) | Output::Flash(_) | Output::Renewed { .. } | Output::Event(_) => {}
            }
        }
        let deadline = self.machines.get(from).and_then(|m| m.core.as_ref()).and_then(Peer::next_deadline);
        if let Some(at) = deadline {
            self.at(at.since(self.t), Event::Wake(from.clone()));
        }
    }

    fn run(&mut self, span: Span) {
        let until = self.t + span;
        while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            let Some(((at, _), event)) = self.events.pop_first() else { break };
            self.t = at;
            match event {
                Event::Message(from, to, message) => {
                    self.input(&to, Input::Message { from, message: *message });
                }
                Event::Wake(peer) => {
                    let due = self.machines[&peer].core.as_ref().and_then(Peer::next_deadline);
                    if due.is_some_and(|at| at <= self.t) {
                        self.input(&peer, Input::Tick);
                    }
                }
                Event::View(peer) => {
                    self.at(Span::millis(200), Event::View(peer.clone()));
                    let view = Arc::new(self.view());
                    self.input(&peer, Input::View(view));
                }
                Event::Ended(peer, key) => {
                    let at = self.now().wall;
                    let ended =
                        BackendEvent::Ended { key, outcome: Outcome::Exited(0), started_at: Some(at), at };
                    self.input(&peer, Input::Backend(ended));
                }
            }
        }
        self.t = until;
    }

    fn view(&self) -> View {
        let names: Vec<&PeerName> = self.machines.keys().collect();
        let link = |to: &&PeerName| LinkSample {
            to: (*to).clone(),
            rtt_us: 2_000,
            loss_ppm: 0,
            bandwidth_bps: Some(self.gbps * 1_000_000_000),
            bandwidth_at: None,
            at: WallTime(0),
            direct: true,
        };
        let member = |(peer, m): (&PeerName, &Machine)| {
            let queue = self.believed.get(peer).cloned().or(m.said.0.clone());
            let report = Report {
                peer: peer.clone(),
                store: m.store,
                capacity: Some(m.capacity.clone()),
                queue,
                contact: m.said.1.clone(),
                health: None,
                build: Some(BuildReport { version: String::new(), wire: SPEAKS }),
                links: names.iter().filter(|n| **n != peer).map(link).collect(),
                data: Some(m.data.clone()),
                images: Some(Inventory::default()),
                alerts: None,
                heard_at: self.t,
            };
            let view = MemberView {
                peer: peer.clone(),
                store: m.store,
                witness: false,
                liveness: if m.core.is_some() { Liveness::Alive } else { Liveness::Lost },
                draining: false,
                report: Some(Arc::new(report)),
            };
            (peer.clone(), view)
        };
        View { members: self.machines.iter().map(member).collect(), isolated: false }
    }

    fn submit(&mut self, at: &str, text: &str) -> JobId {
        let spec = parse_spec(format!("run: x\n{text}").as_bytes()).expect("a job").spec;
        self.tokens += 1;
        let token = self.tokens;
        let request = ClientRequest::Submit { spec: Box::new(spec), key: None };
        self.input(&name(at), Input::Client { token, request });
        for _ in 0..400 {
            self.run(Span::millis(5));
            match self.replies.remove(&token) {
                Some(ClientResponse::Submitted { job, .. }) => return job,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        panic!("no answer to the submit")
    }

    /// The newest that any home holds.
    fn record(&self, job: JobId) -> JobRecord {
        let all = self.machines.values().filter_map(|m| m.core.as_ref()?.hint(&job));
        all.max_by_key(|r| r.version).expect("somebody holds it").clone()
    }

    /// Runs until a job is placed and says where and after how long.
    fn placed(&mut self, job: JobId, within: Span) -> (String, Span) {
        let begun = self.t;
        while self.t.since(begun) <= within {
            let record = self.record(job);
            if let Some(last) = record.attempts.last().filter(|_| record.state != JobState::Pending) {
                return (last.cluster.to_string(), self.t.since(begun));
            }
            self.run(Span::millis(5));
        }
        panic!("not placed within {within}: {:#?}", self.record(job))
    }

    fn state_within(&mut self, job: JobId, state: JobState, within: Span) -> Span {
        let begun = self.t;
        while self.record(job).state != state {
            assert!(self.t.since(begun) <= within, "not {state:?} within {within}: {:#?}", self.record(job));
            self.run(Span::millis(20));
        }
        self.t.since(begun)
    }

    fn counter(&self, peer: &str, counter: &str) -> u64 {
        let core = self.machines[&name(peer)].core.as_ref();
        core.and_then(|c| c.counters().get(counter)).copied().unwrap_or(0)
    }

    fn counters(&self, counter: &str) -> u64 {
        self.machines.keys().map(|p| self.counter(p.as_str(), counter)).sum()
    }
}

/// What later fields of the configuration are left at.
fn config() -> CoreConfig {
    CoreConfig {
        name: name("x"),
        store: StoreId([0; 16]),
        boot: 1,
        first_boot: true,
        replicas: 3,
        renew_every: RENEW,
        rho_milli: 10,
        margin: MARGIN,
        grant_for: Span::secs(4),
        claims_max: 3,
        jobs_max: 10_000,
        rehome_after: Span::secs(600),
        retain: Span::secs(86_400),
        retain_jobs: 10_000,
        nodes: nodes(),
        schedule: Default::default(),
        runs_images: false,
        policies: Default::default(),
        pace: Default::default(),
        seed: 1,
    }
}

fn is_claim(message: &Message) -> bool {
    matches!(message, Message::Claim(_) | Message::ClaimWith { .. })
}

const GRACE: &str = "on_lost_contact: {grace: 6s}\n";

#[test]
fn gossip_says_eight_free_and_it_is_none() {
    let mut net = Net::new(&[("a", 1), ("b", 2), ("c", 3)]);
    net.work = Span::secs(600);
    let first = net.submit("b", "resources: {gpus: 8}\nplacement: {policy: cheapest}");
    assert_eq!(net.placed(first, Span::secs(2)).0, "a", "the cheapest is idle");
    // Everybody goes on believing that all of a is free.
    net.believed.insert(name("a"), idle());
    net.run(Span::secs(1));
    let second = net.submit("c", "resources: {gpus: 8}\nplacement: {policy: cheapest}");
    let (cluster, after) = net.placed(second, Span::secs(10));
    assert_eq!(cluster, "b", "a queues it; the next best grants");
    assert!(after <= Span::secs(1), "one round trip and the patience for a better grant, not {after}");
}

#[test]
fn a_cluster_that_always_refuses_costs_a_round_trip_and_is_left_alone() {
    // Three of five refuse (they drain, and nobody has heard of it) and are the best in everybody's view.
    let mut net = Net::new(&[("bad1", 1), ("bad2", 1), ("bad3", 1), ("good1", 9), ("good2", 9)]);
    for bad in ["bad1", "bad2", "bad3"] {
        net.input(&name(bad), Input::Drain(true));
        net.believed.insert(name(bad), idle());
    }
    // So short that there is always room.
    net.work = Span::millis(20);
    net.run(Span::secs(1));
    let mut slowest = Span::ZERO;
    for i in 0..40 {
        let job = net.submit("good1", "resources: {gpus: 1}\nplacement: {policy: cheapest}");
        let (cluster, after) = net.placed(job, Span::secs(10));
        assert!(cluster.starts_with("good"), "{i}: {cluster}");
        slowest = slowest.max(after);
    }
    assert!(slowest < Span::secs(2), "placed elsewhere within {slowest}");
    assert!(net.counters("clusters_rested") >= 3, "they rest after a few refusals");
    let asked = net.claims.clone();
    for _ in 0..5 {
        let job = net.submit("good1", "resources: {gpus: 1}\nplacement: {policy: cheapest}");
        net.placed(job, Span::secs(10));
    }
    // Each owner learns by itself; by now each has.
    let more = |c: &str| net.claims[&name(c)] - asked.get(&name(c)).copied().unwrap_or(0);
    assert!(
        more("bad1") + more("bad2") + more("bad3") <= 5,
        "asked {} {} {} times",
        more("bad1"),
        more("bad2"),
        more("bad3")
    );
}

#[test]
fn a_cluster_that_grants_and_dies_costs_a_bounded_time() {
    let mut net = Net::new(&[("a", 1), ("b", 5), ("c", 5), ("d", 5), ("e", 5)]);
    net.dies_on_start.insert(name("a"));
    let job = net.submit("c", &format!("resources: {{gpus: 1}}\nplacement: {{policy: cheapest}}\n{GRACE}"));
    assert_eq!(net.placed(job, Span::secs(2)).0, "a");
    // Grace with drift and margin, then a claim and a grant.
    let bound = Span::secs(6).scale(1_020, 1_000) + MARGIN + Span::secs(5);
    let took = net.state_within(job, JobState::Succeeded, bound + net.work);
    let record = net.record(job);
    assert_eq!(record.attempts.len(), 2, "{record:#?}");
    assert!(took >= Span::secs(6), "not before its grace: {took}");
}

#[test]
fn lost_messages_cost_time_and_nothing_else() {
    let mut net = Net::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]);
    let jobs: Vec<JobId> = (0..20)
        .map(|i| net.submit(["a", "b", "c"][i % 3], &format!("resources: {{gpus: 4}}\n{GRACE}")))
        .collect();
    net.loss = 0.25;
    let begun = net.t;
    for job in jobs {
        net.state_within(job, JobState::Succeeded, Span::secs(120));
        assert_eq!(net.record(job).attempts.len(), 1, "once: {:#?}", net.record(job));
    }
    assert!(net.t.since(begun) < Span::secs(120), "20 jobs of 5 s on 10 places took {}", net.t.since(begun));
}

#[test]
fn a_dead_owner_is_followed_by_the_next_home() {
    let mut net = Net::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]);
    net.work = Span::secs(20);
    // Everything is busy, so that the job waits with claims out.
    let busy: Vec<JobId> =
        (0..5).map(|_| net.submit("a", &format!("resources: {{gpus: 8}}\n{GRACE}"))).collect();
    for job in &busy {
        net.placed(*job, Span::secs(10));
    }
    let job = net.submit("b", &format!("resources: {{gpus: 8}}\n{GRACE}"));
    net.run(Span::secs(3));
    assert_eq!(net.record(job).state, JobState::Pending);
    let owner = net.record(job).homes()[0].peer.clone();
    net.machines.get_mut(&owner).expect("known").core = None;
    net.state_within(job, JobState::Succeeded, Span::secs(90));
    let done = net.record(job);
    assert!(done.attempts.iter().all(|a| a.cluster != owner), "{done:#?}");
}

#[test]
fn the_best_grant_wins_though_a_worse_one_is_nearer() {
    let mut net = Net::new(&[("cheap", 1), ("dear1", 9), ("dear2", 9)]);
    net.far.insert(name("cheap"), Span::millis(60));
    for _ in 0..3 {
        let job = net.submit("dear1", "resources: {gpus: 1}\nplacement: {policy: cheapest}");
        let (cluster, after) = net.placed(job, Span::secs(5));
        assert_eq!(cluster, "cheap");
        assert!(after < Span::secs(1), "{after}");
    }
    // A best one that does not answer at all is waited for no longer than a moment.
    net.machines.get_mut(&name("cheap")).expect("known").core = None;
    net.believed.insert(name("cheap"), idle());
    let job = net.submit("dear1", "resources: {gpus: 1}\nplacement: {policy: cheapest}");
    let (cluster, after) = net.placed(job, Span::secs(5));
    assert!(cluster.starts_with("dear") && after < Span::secs(2), "{cluster} after {after}");
}

#[test]
fn a_job_waits_for_its_data_where_moving_it_takes_longer() {
    let mut net = Net::new(&[("home", 1), ("away1", 1), ("away2", 1)]);
    net.work = Span::secs(60);
    let set = Item { name: "s3://sets/big".into(), size: Bytes(10_000_000_000_000) };
    net.machines.get_mut(&name("home")).expect("known").data = Inventory::of([set]);
    net.run(Span::secs(1));
    let first = net.submit("away1", "resources: {gpus: 8}\nplacement: {clusters: [home]}");
    assert_eq!(net.placed(first, Span::secs(2)).0, "home");
    // 10 TB over 1 Gbit/s take 22 hours; home is free in a minute. The others are idle and would grant at once.
    let job = net.submit("away2", "resources: {gpus: 8}\ndata: s3://sets/big");
    net.run(Span::secs(30));
    assert_eq!(net.record(job).state, JobState::Pending, "it waits");
    assert_eq!(net.placed(job, Span::secs(60)).0, "home");
    // A small one goes where it can start now.
    let set = Item { name: "s3://sets/small".into(), size: Bytes(100_000_000) };
    net.machines.get_mut(&name("home")).expect("known").data = Inventory::of([set]);
    net.run(Span::secs(1));
    let small = net.submit("away2", "resources: {gpus: 8}\ndata: s3://sets/small");
    assert!(net.placed(small, Span::secs(2)).0.starts_with("away"));
}

#[test]
fn other_weights_are_taken_at_once_and_said() {
    let mut net = Net::new(&[("a", 1), ("b", 9), ("c", 9)]);
    let mut policies = starling::model::Policies::default();
    // Only load counts for balanced jobs from now on.
    policies.0[0] = starling::model::Weights([0, 0, 0, 0, 0, 1_000]);
    for peer in ["a", "b", "c"] {
        net.input(&name(peer), Input::Policies(Box::new(policies.clone())));
    }
    assert_eq!(net.counters("policies_set"), 3);
    net.work = Span::secs(600);
    let first = net.submit("a", "resources: {gpus: 4}\nplacement: {clusters: [a]}");
    net.placed(first, Span::secs(2));
    net.run(Span::secs(1));
    let job = net.submit("a", "resources: {gpus: 4}");
    assert_ne!(net.placed(job, Span::secs(3)).0, "a", "the cheapest is half taken");
}
