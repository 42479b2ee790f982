//! The mesh: production cores, a quiet network of 20 ms, disks that sync in 2 ms, jobs that never end.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling::base::{Bytes, Instant, MilliCpu, PeerName, Span, StoreId, WallTime};
use starling::core::message::{AnswerBody, RecordKey, RegisterBody, SPEAKS};
use starling::core::{
    BackendCommand, BackendEvent, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Message, Now,
    Output, Peer,
};
use starling::model::report::{
    BuildReport, CapacityReport, ContactReport, HealthReport, Liveness, MemberView, QueueReport, View,
};
use starling::model::spec::JobSpec;
use starling::model::spec_input::parse_spec;
use starling::model::{NodeCapacity, Report};
use starling::transport::codec;

use super::{Cost, Load};
use crate::trace::agenda::Agenda;

const WAY: Span = Span::millis(20);
const SYNC: Span = Span::millis(2);
/// Every peer has a new view so often.
const VIEW_EVERY: Span = Span::secs(2);
/// Submitted per second and cluster, so that a round of claims is not what is measured.
const SUBMITS_PER_S: u64 = 2;
/// All jobs must run within this after the last was submitted.
const START_WITHIN: Span = Span::secs(300);

enum Event {
    Submit(usize),
    Deliver { to: usize, from: usize, message: Box<Message> },
    Wake(usize, u64),
    Backend(usize, Box<BackendEvent>),
    View,
}

type Told = (Option<QueueReport>, Option<ContactReport>);

struct Node {
    core: Peer,
    told: Told,
    wake: Option<Instant>,
    wakes: u64,
}

#[derive(Default, Clone, Copy)]
struct Count {
    messages: u64,
    bytes: u64,
    syncs: u64,
}

impl Count {
    fn load(&self, per: f64) -> Load {
        let rate = |n: u64| n as f64 / per;
        Load { messages: rate(self.messages), bytes: rate(self.bytes), syncs: rate(self.syncs) }
    }
}

/// Of contacts, of all else, and the messages of all else by what they are.
#[derive(Default)]
struct Counts {
    contact: Count,
    other: Count,
    kinds: BTreeMap<&'static str, Count>,
}

struct Mesh {
    now: Instant,
    agenda: Agenda<Event>,
    nodes: Vec<Node>,
    index: BTreeMap<PeerName, usize>,
    /// GPUs of a cluster: one for each job that it is to run.
    gpus: u32,
    running: usize,
    counts: Option<Counts>,
    error: Option<String>,
}

fn name(i: usize) -> PeerName {
    PeerName::new(&format!("c{i:03}")).expect("a short name")
}

fn store(i: usize) -> StoreId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(i as u64 + 1).to_be_bytes());
    StoreId(bytes)
}

fn nodes(gpus: u32) -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: "n".into(),
        count: gpus.div_ceil(8),
        gpu_model: Some("A100-80G".into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    }]
}

fn is_contact(message: &Message) -> bool {
    let key = match message {
        Message::Register(request) => request.key,
        Message::Answer(answer) => answer.key,
        _ => return false,
    };
    matches!(key, RecordKey::Contact(_))
}

/// What a message that is of no contact is, in words.
fn kind(message: &Message) -> &'static str {
    match message {
        Message::Register(request) => match request.body {
            RegisterBody::Read => "read a record",
            RegisterBody::Prepare { .. } => "prepare",
            RegisterBody::Accept { .. } => "accept",
            RegisterBody::Forget => "forget",
        },
        Message::Answer(answer) => match answer.body {
            AnswerBody::State { .. } => "answer to a read",
            _ => "answer to a change",
        },
        Message::Look { .. } => "look at a job",
        Message::Claim(_) | Message::ClaimWith { .. } | Message::Withdraw { .. } => "claim",
        Message::Grant { .. } | Message::ClaimState { .. } | Message::ClaimStateWith { .. } => {
            "grant or place"
        }
        Message::Disk(_) => "past of a disk",
        Message::Tenants(_) | Message::TenantsWord(_) => "tenants",
        _ => "rest",
    }
}

/// Lets so many jobs run, one GPU each, rests, and counts for so long.
pub fn run(peers: usize, running: usize, rest: u64, seconds: u64) -> Result<Cost, String> {
    let gpus = u32::try_from(running.div_ceil(peers)).map_err(|e| e.to_string())?;
    let mut mesh = Mesh {
        now: Instant(1_000_000),
        agenda: Agenda::new(),
        nodes: Vec::new(),
        index: (0..peers).map(|i| (name(i), i)).collect(),
        gpus,
        running: 0,
        counts: None,
        error: None,
    };
    let mut first = Vec::new();
    for i in 0..peers {
        let (core, out) = Peer::recover(config(i, gpus), &DiskImage::default(), mesh.time())
            .map_err(|e| format!("a peer does not begin: {e}"))?;
        mesh.nodes.push(Node { core, told: (None, None), wake: None, wakes: 0 });
        first.push(out);
    }
    for (i, out) in first.into_iter().enumerate() {
        mesh.outputs(i, out, false);
    }
    mesh.agenda.put(mesh.now, Event::View);
    let every = Span::secs(1).scale(1, SUBMITS_PER_S * peers as u64);
    for n in 0..running {
        mesh.agenda.put(mesh.now + Span::secs(20) + every.scale(n as u64, 1), Event::Submit(n));
    }
    let last = mesh.now + Span::secs(20) + every.scale(running as u64, 1);
    mesh.until(last + START_WITHIN, running)?;
    if mesh.running < running {
        return Err(format!("only {} of {running} jobs run", mesh.running));
    }
    mesh.until(mesh.now + Span::secs(rest), usize::MAX)?;
    mesh.counts = Some(Default::default());
    let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    mesh.until(mesh.now + Span::secs(seconds), usize::MAX)?;
    let ended = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let cpu_ms = (ended.tv_sec - begun.tv_sec) as f64 * 1e3 + (ended.tv_nsec - begun.tv_nsec) as f64 / 1e6;
    let per = seconds as f64 * peers as f64;
    let Counts { contact, other, kinds } = mesh.counts.take().unwrap_or_default();
    let (contact, other) = (contact.load(per), other.load(per));
    let kinds = kinds.into_iter().map(|(kind, count)| (kind, count.load(per))).collect();
    Ok(Cost { running, contact, other, kinds, cpu_ms: cpu_ms / per })
}

fn config(i: usize, gpus: u32) -> CoreConfig {
    CoreConfig {
        name: name(i),
        store: store(i),
        boot: 1,
        first_boot: true,
        replicas: 3,
        renew_every: Span::secs(5),
        rho_milli: 10,
        margin: Span::secs(3),
        grant_for: Span::secs(5),
        claims_max: 3,
        jobs_max: 1_000_000,
        rehome_after: Span::secs(86_400),
        retain: Span::secs(86_400),
        retain_jobs: 1_000_000,
        nodes: nodes(gpus),
        schedule: Default::default(),
        runs_images: false,
        policies: Default::default(),
        pace: Default::default(),
        seed: i as u64,
    }
}

impl Mesh {
    fn time(&self) -> Now {
        Now { mono: self.now, wall: WallTime(self.now.0 / 1_000) }
    }

    /// Until then, or until so many jobs run.
    fn until(&mut self, end: Instant, running: usize) -> Result<(), String> {
        while self.running < running {
            let Some((at, event)) = self.agenda.next() else { break };
            if at > end {
                self.agenda.put(at, event);
                self.now = end;
                break;
            }
            self.now = at;
            self.handle(event);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Submit(n) => {
                let at = n % self.nodes.len();
                let request = ClientRequest::Submit { spec: Box::new(spec(n, &name(at))), key: None };
                self.input(at, Input::Client { token: n as u64, request });
            }
            Event::Deliver { to, from, message } => {
                self.input(to, Input::Message { from: name(from), message: *message });
            }
            Event::Wake(i, count) => {
                if self.nodes[i].wakes == count {
                    self.nodes[i].wake = None;
                    self.input(i, Input::Tick);
                }
            }
            Event::Backend(i, event) => {
                self.running += usize::from(matches!(*event, BackendEvent::Started { .. }));
                self.input(i, Input::Backend(*event));
            }
            Event::View => self.view(),
        }
    }

    fn view(&mut self) {
        self.agenda.put(self.now + VIEW_EVERY, Event::View);
        let mut view = View::default();
        for (i, node) in self.nodes.iter().enumerate() {
            view.members.insert(name(i), member(i, self.gpus, &node.told, self.now));
        }
        let view = Arc::new(view);
        for i in 0..self.nodes.len() {
            self.input(i, Input::View(view.clone()));
        }
    }

    fn input(&mut self, i: usize, input: Input) {
        let contact = matches!(&input, Input::Message { message, .. } if is_contact(message));
        let now = self.time();
        let out = self.nodes[i].core.step(now, input);
        self.outputs(i, out, contact);
    }

    fn outputs(&mut self, i: usize, outputs: Vec<Output>, contact: bool) {
        let mut wrote = Span::ZERO;
        for output in outputs {
            match output {
                Output::Write(_) => wrote = SYNC,
                Output::Send { to, message, durable } => {
                    let Some(&to) = self.index.get(&to) else { continue };
                    self.count(i == to, &message);
                    let way = if to == i { Span(1) } else { WAY };
                    let at = self.now + way + if durable { wrote } else { Span::ZERO };
                    self.agenda.put(at, Event::Deliver { to, from: i, message: Box::new(message) });
                }
                Output::Reply { response: ClientResponse::Error(error), .. } => {
                    self.error = Some(format!("a job was refused: {error}"));
                }
                Output::Backend(BackendCommand::Start(start)) => {
                    let at = WallTime(self.now.0 / 1_000);
                    let event = BackendEvent::Started { key: start.key, at };
                    self.agenda.put(self.now + SYNC, Event::Backend(i, Box::new(event)));
                }
                Output::Backend(BackendCommand::Stop { key, .. }) => {
                    self.error = Some(format!("{key} was stopped, though nothing fails here"));
                }
                Output::Report { queue, contact } => self.nodes[i].told = (Some(queue), contact),
                _ => {}
            }
        }
        if let Some(counts) = self.counts.as_mut().filter(|_| wrote > Span::ZERO) {
            let count = if contact { &mut counts.contact } else { &mut counts.other };
            count.syncs += 1;
        }
        let node = &mut self.nodes[i];
        let Some(deadline) = node.core.next_deadline().map(|at| at.max(self.now)) else { return };
        if node.wake.is_none_or(|old| old > deadline) {
            node.wake = Some(deadline);
            node.wakes += 1;
            self.agenda.put(deadline, Event::Wake(i, node.wakes));
        }
    }

    fn count(&mut self, own: bool, message: &Message) {
        let Some(counts) = self.counts.as_mut().filter(|_| !own) else { return };
        let bytes = codec::encode(message).map_or(0, |bytes| bytes.len() as u64);
        let add =
            |count: &mut Count| (count.messages, count.bytes) = (count.messages + 1, count.bytes + bytes);
        if is_contact(message) {
            return add(&mut counts.contact);
        }
        add(&mut counts.other);
        add(counts.kinds.entry(kind(message)).or_default());
    }
}

fn spec(n: usize, cluster: &PeerName) -> JobSpec {
    let text = format!("name: j{n}\nrun: work\nresources: {{gpus: 1}}\n");
    let mut spec = parse_spec(text.as_bytes()).expect("a job file").spec;
    spec.placement.clusters = vec![cluster.clone()];
    spec
}

fn member(i: usize, gpus: u32, (queue, contact): &Told, heard_at: Instant) -> MemberView {
    let capacity = CapacityReport {
        backend: "fake".into(),
        region: format!("r{}", i % 7),
        zone: String::new(),
        labels: BTreeMap::new(),
        price_milli: 2_000,
        pue_milli: 1_200,
        nodes: nodes(gpus),
        container_runtime: None,
        terms: Default::default(),
        nodes_out: Default::default(),
        slurm: None,
    };
    let report = Report {
        peer: name(i),
        store: store(i),
        capacity: Some(capacity),
        queue: queue.clone(),
        contact: contact.clone(),
        health: Some(HealthReport { boot: 1, ..HealthReport::default() }),
        build: Some(BuildReport { version: String::new(), wire: SPEAKS }),
        links: Vec::new(),
        data: None,
        alerts: None,
        images: None,
        heard_at,
    };
    MemberView {
        peer: name(i),
        store: store(i),
        witness: false,
        liveness: Liveness::Alive,
        draining: false,
        report: Some(Arc::new(report)),
    }
}
