//! Home sets that move and records that are forgotten, in a small mesh of real cores: every message
//! arrives at once unless a test takes it away, every write is on disk at once.
// tidy: long because the small mesh serves all of these tests

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::api::*;
use super::message::*;
use super::testing::{config, name, spec};
use super::{Input, Message, Peer};
use crate::base::{Bytes, Home, Instant, JobId, MilliCpu, PeerName, Span, StoreId, WallTime, work};
use crate::model::report::{BuildReport, HealthReport, Liveness, MemberView, NodeCapacity, Report, View};
use crate::model::{JobRecord, JobState};

pub(super) type Filter = fn(&str, &str, &Message) -> bool;

pub(super) struct Mesh {
    pub peers: BTreeMap<PeerName, Peer>,
    disks: BTreeMap<PeerName, DiskImage>,
    /// The messages that members say they read.
    pub wire: BTreeMap<PeerName, u16>,
    members: BTreeMap<PeerName, MemberView>,
    boots: u64,
    pub now: Instant,
    pub replies: BTreeMap<u64, ClientResponse>,
    tokens: u64,
    replicas: usize,
    retain: Span,
    /// How far a peer's clock is ahead.
    ahead: BTreeMap<PeerName, Span>,
    /// True drops the message.
    pub drop: Filter,
    /// Everything that was ever sent.
    pub sent: Vec<(PeerName, PeerName, Message)>,
    pub lines: VecDeque<(PeerName, PeerName, Message)>,
}

pub(super) fn store(text: &str) -> StoreId {
    let mut id = [0; 16];
    id[..text.len().min(16)].copy_from_slice(&text.as_bytes()[..text.len().min(16)]);
    StoreId(id)
}

fn report(peer: &str, disk: &str, wire: u16) -> Report {
    Report {
        peer: name(peer),
        store: store(disk),
        capacity: None,
        queue: None,
        contact: None,
        health: None,
        build: Some(BuildReport { version: String::new(), wire }),
        links: Vec::new(),
        data: None,
        images: None,
        alerts: None,
        heard_at: Instant(0),
    }
}

impl Mesh {
    pub(super) fn new(names: &[&str], replicas: usize) -> Self {
        let mut mesh = Mesh {
            peers: BTreeMap::new(),
            disks: BTreeMap::new(),
            wire: BTreeMap::new(),
            members: BTreeMap::new(),
            boots: 0,
            now: Instant(1_000_000),
            replies: BTreeMap::new(),
            tokens: 0,
            replicas,
            retain: Span::secs(1_000_000),
            ahead: BTreeMap::new(),
            drop: |_, _, _| false,
            sent: Vec::new(),
            lines: VecDeque::new(),
        };
        for n in names {
            mesh.join(n, n);
        }
        mesh
    }

    pub(super) fn join(&mut self, peer: &str, disk: &str) {
        let member = MemberView {
            peer: name(peer),
            store: store(disk),
            witness: false,
            liveness: Liveness::Alive,
            draining: false,
            report: Some(report(peer, disk, self.wire.get(&name(peer)).copied().unwrap_or(SPEAKS)).into()),
        };
        self.members.insert(name(peer), member);
        self.start(peer);
        self.views();
    }

    pub(super) fn start(&mut self, peer: &str) {
        self.boots += 1;
        let peer = name(peer);
        let node = NodeCapacity {
            name: "n".into(),
            count: 1,
            gpu_model: None,
            gpus: 0,
            gpu_memory: Bytes(0),
            cpus: MilliCpu(1),
            memory: Bytes::gib(1),
            declared: true,
        };
        let cfg = CoreConfig {
            boot: self.boots,
            replicas: self.replicas,
            renew_every: Span::secs(5),
            rehome_after: Span::secs(60),
            retain: self.retain,
            nodes: vec![node],
            seed: self.boots,
            ..config(peer.as_str(), self.members[&peer].store)
        };
        let now = self.time();
        let (core, out) =
            Peer::recover(cfg, self.disks.entry(peer.clone()).or_default(), now).expect("its disk");
        self.peers.insert(peer.clone(), core);
        self.take(&peer, out);
    }

    pub(super) fn time(&self) -> Now {
        Now { mono: self.now, wall: WallTime(self.now.0 / 1000) }
    }

    pub(super) fn views(&mut self) {
        let view = std::sync::Arc::new(View { members: self.members.clone(), isolated: false });
        let names: Vec<PeerName> = self.peers.keys().cloned().collect();
        for peer in names {
            self.input(&peer, Input::View(view.clone()));
        }
        self.settle();
    }

    pub(super) fn input(&mut self, peer: &PeerName, input: Input) {
        let mut now = self.time();
        now.wall.0 += self.ahead.get(peer).map_or(0, |ahead| ahead.as_millis());
        let Some(core) = self.peers.get_mut(peer) else { return };
        let out = core.step(now, input);
        self.take(peer, out);
    }

    fn take(&mut self, peer: &PeerName, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Write(w) => {
                    let table =
                        self.disks.entry(peer.clone()).or_default().tables.entry(w.table).or_default();
                    match w.value {
                        Some(value) => table.insert(w.key, value),
                        None => table.remove(&w.key),
                    };
                }
                Output::Send { to, message, .. } => {
                    self.sent.push((peer.clone(), to.clone(), message.clone()));
                    if !(self.drop)(peer.as_str(), to.as_str(), &message) {
                        self.lines.push_back((peer.clone(), to, message));
                    }
                }
                Output::Reply { token, response } => {
                    self.replies.insert(token, response);
                }
                _ => {}
            }
        }
    }

    /// Whoever answers each refusal at once with the next attempt would talk for ever: here no time passes meanwhile.
    pub(super) fn settle(&mut self) {
        for heard in 0.. {
            let Some((from, to, message)) = self.lines.pop_front() else { break };
            assert!(heard < 10_000, "a conversation without an end: {from} says to {to} {message:?}");
            // A removed member is not listened to, as in production.
            if self.members.contains_key(&from) {
                self.input(&to, Input::Message { from, message });
            }
        }
    }

    pub(super) fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.now = (self.now + Span::millis(100)).min(end);
            let names: Vec<PeerName> = self.peers.keys().cloned().collect();
            for peer in names {
                self.input(&peer, Input::Tick);
            }
            self.settle();
        }
    }

    pub(super) fn ask(&mut self, peer: &str, request: ClientRequest) -> ClientResponse {
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

    /// A job that no cluster has the CPUs for yet: it stays pending.
    fn submit(&mut self, peer: &str) -> JobId {
        let spec = spec();
        match self.ask(peer, ClientRequest::Submit { spec: Box::new(spec), key: None }) {
            ClientResponse::Submitted { job, .. } => job,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn get(&mut self, peer: &str, job: JobId) -> Result<JobRecord, ClientError> {
        match self.ask(peer, ClientRequest::Get { job }) {
            ClientResponse::Job(record) => Ok(*record),
            ClientResponse::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn end(&mut self, peer: &str, job: JobId) {
        let answer = self.ask(peer, ClientRequest::Cancel { job, by: "test".into() });
        assert_eq!(answer, ClientResponse::Cancelled { state: JobState::Cancelled });
    }

    pub(super) fn held(&self, peer: &str) -> usize {
        self.peers[&name(peer)].acceptor.counts().0
    }

    pub(super) fn set(&mut self, peer: &str, change: impl Fn(&mut MemberView)) {
        change(self.members.get_mut(&name(peer)).expect("a member"));
        self.views();
    }

    /// The others see that its disk is full.
    fn tell_full(&mut self, peer: &str) {
        let health = HealthReport { disk_full: true, ..HealthReport::default() };
        let told = Report { health: Some(health), ..report(peer, peer, SPEAKS) };
        self.set(peer, |m| m.report = Some(told.clone().into()));
    }

    fn remove(&mut self, peer: &str) {
        self.members.remove(&name(peer));
        self.peers.remove(&name(peer));
        self.views();
    }
}

fn homes(record: &JobRecord) -> BTreeSet<&str> {
    record.homes().iter().map(|h| h.peer.as_str()).collect()
}

const FIVE: &[&str] = &["a", "b", "c", "d", "e"];

#[test]
fn a_removed_home_is_replaced_and_the_record_goes_on() {
    let mut mesh = Mesh::new(FIVE, 3);
    let job = mesh.submit("a");
    let before = mesh.get("b", job).expect("there");
    let gone = before.homes()[1].peer.to_string();
    mesh.remove(&gone);
    mesh.run(Span::secs(5));
    let at = mesh.peers.keys().next().expect("one").to_string();
    let after = mesh.get(&at, job).expect("still there");
    assert_eq!((after.generation, after.homes().len()), (1, 3));
    assert!(!homes(&after).contains(gone.as_str()) && after.sealed.is_none());
    assert!(after.version > before.version && after.birth == before.birth);
    // The kept homes and the new one all hold it, nobody else does, and it can still be changed.
    let holders = mesh.peers.keys().filter(|p| mesh.held(p.as_str()) == 1).count();
    assert_eq!(holders, 3);
    mesh.end(&at, job);
}

#[test]
fn a_disk_that_was_lost_is_another_acceptor() {
    let mut mesh = Mesh::new(FIVE, 3);
    let job = mesh.submit("a");
    let lost = mesh.get("b", job).expect("there").homes()[0].peer.to_string();
    mesh.disks.remove(&name(&lost));
    mesh.join(&lost, "fresh");
    let moved = |m: &mut Mesh| m.get("a", job).expect("two of three held it");
    mesh.run(Span::secs(5));
    let record = moved(&mut mesh);
    assert!(record.generation >= 1);
    assert!(record.homes().iter().all(|h| mesh.members[&h.peer].store == h.store), "only disks of today");
}

#[test]
fn a_member_that_drains_gives_its_records_away_where_others_are() {
    let mut mesh = Mesh::new(FIVE, 3);
    let jobs: Vec<JobId> = (0..20).map(|i| mesh.submit(FIVE[i % 5])).collect();
    assert!(mesh.held("c") > 0);
    mesh.set("c", |m| m.draining = true);
    mesh.run(Span::secs(20));
    let kept = jobs.iter().filter(|j| homes(&mesh.get("a", **j).expect("there")).contains("c")).count();
    assert!(kept > 0, "a short drain moves nothing");
    mesh.run(Span::secs(30));
    assert_eq!(mesh.held("c"), 0);
    for job in jobs {
        let record = mesh.get("c", job).expect("reached by its forward pointer");
        assert!(!homes(&record).contains("c") && record.homes().len() == 3);
    }
    // Of three, a pair would be worse: nothing moves.
    let mut small = Mesh::new(&["a", "b", "c"], 3);
    let job = small.submit("a");
    small.set("c", |m| m.draining = true);
    small.run(Span::secs(60));
    assert_eq!(small.get("a", job).expect("there").generation, 0);
}

#[test]
fn a_home_that_is_lost_for_long_is_replaced_a_blip_is_not() {
    let mut mesh = Mesh::new(FIVE, 3);
    let job = mesh.submit("a");
    let lost = mesh.get("a", job).expect("there").homes()[2].peer.to_string();
    let at = if lost == "a" { "b" } else { "a" };
    mesh.peers.remove(&name(&lost));
    mesh.set(&lost, |m| m.liveness = Liveness::Lost);
    mesh.run(Span::secs(30));
    mesh.set(&lost, |m| m.liveness = Liveness::Alive);
    mesh.set(&lost, |m| m.liveness = Liveness::Lost);
    mesh.run(Span::secs(50));
    assert_eq!(mesh.get(at, job).expect("there").generation, 0);
    mesh.run(Span::secs(20));
    let record = mesh.get(at, job).expect("there");
    assert!(record.generation == 1 && !homes(&record).contains(lost.as_str()));
    // It comes back with its old disk, and is told at once that its generation is over.
    mesh.start(&lost);
    mesh.set(&lost, |m| m.liveness = Liveness::Alive);
    assert_eq!(mesh.get(&lost, job).expect("found"), record);
    mesh.run(Span::secs(30));
    assert_eq!(mesh.held(&lost), 0);
}

#[test]
fn a_mesh_that_grows_raises_the_homes_of_what_it_has() {
    let mut mesh = Mesh::new(&["a"], 3);
    let job = mesh.submit("a");
    assert_eq!(mesh.get("a", job).expect("there").homes().len(), 1);
    mesh.join("b", "b");
    mesh.join("c", "c");
    mesh.run(Span::secs(5));
    let record = mesh.get("b", job).expect("there");
    assert_eq!(homes(&record), BTreeSet::from(["a", "b", "c"]));
    mesh.remove("a");
    assert_eq!(mesh.get("c", job).expect("two of three are enough").birth, record.birth);
}

#[test]
fn all_homes_of_birth_may_go_one_after_the_other() {
    let mut mesh = Mesh::new(&["a", "b", "c"], 3);
    let job = mesh.submit("a");
    for (old, new) in [("a", "d"), ("b", "e"), ("c", "f")] {
        mesh.join(new, new);
        mesh.remove(old);
        mesh.run(Span::secs(5));
    }
    let record = mesh.get("d", job).expect("there");
    assert!(record.generation >= 3);
    assert_eq!(homes(&record), BTreeSet::from(["d", "e", "f"]));
    // A newcomer that never heard of it finds it, although nobody of its birth is left.
    mesh.join("g", "g");
    assert_eq!(mesh.get("g", job).expect("found").version, record.version);
}

/// The one who sealed it stops before anybody has begun the next generation: another home carries it over.
#[test]
fn a_seal_that_was_left_alone_is_carried_on() {
    let mut mesh = Mesh::new(FIVE, 3);
    let job = mesh.submit("a");
    let record = mesh.get("b", job).expect("there");
    let (gone, mover) = (record.homes()[2].peer.to_string(), record.homes()[0].peer.to_string());
    // Nothing of a later generation gets through.
    mesh.drop = |_, _, m| matches!(m, Message::Register(r) if r.generation > 0);
    mesh.remove(&gone);
    mesh.run(Span::secs(3));
    let sealed = |m: &Mesh, p: &str| m.peers[&name(p)].hint(&job).is_some_and(|r| r.sealed.is_some());
    assert!(sealed(&mesh, record.homes()[1].peer.as_str()), "the seal is chosen");
    mesh.peers.remove(&name(&mover));
    mesh.drop = |_, _, _| false;
    mesh.set(&mover, |m| m.liveness = Liveness::Lost);
    mesh.run(Span::secs(15));
    // One of the two old homes is down; the other alone is no majority of the old set.
    let at = record.homes()[1].peer.to_string();
    assert!(matches!(mesh.get(&at, job), Err(ClientError::Unknown { .. })));
    mesh.start(&mover);
    mesh.set(&mover, |m| m.liveness = Liveness::Alive);
    mesh.run(Span::secs(15));
    let after = mesh.get(&at, job).expect("carried over");
    assert!(after.generation >= 1 && !homes(&after).contains(gone.as_str()));
}

#[test]
fn only_one_home_began_and_then_it_is_gone() {
    let mut mesh = Mesh::new(FIVE, 3);
    let job = mesh.submit("a");
    let record = mesh.get("b", job).expect("there");
    let gone = record.homes()[2].peer.to_string();
    // The first value of the next generation reaches only who proposes it.
    mesh.drop = |from, to, m| from != to && matches!(m, Message::Register(r) if r.generation > 0);
    mesh.remove(&gone);
    mesh.run(Span::secs(3));
    let began: Vec<PeerName> = mesh
        .peers
        .iter()
        .filter(|(_, p)| p.hint(&job).is_some_and(|r| r.generation == 1))
        .map(|(n, _)| n.clone())
        .collect();
    assert!(!began.is_empty() && began.len() < 3, "{began:?}");
    mesh.drop = |_, _, _| false;
    mesh.run(Span::secs(20));
    let at = record.homes()[1].peer.to_string();
    assert_eq!(mesh.get(&at, job).expect("there").homes().len(), 3);
}

#[test]
fn a_stranger_to_a_record_cannot_end_its_generation() {
    let mut mesh = Mesh::new(FIVE, 3);
    let job = mesh.submit("a");
    let record = mesh.get("b", job).expect("there");
    let victim = record.homes()[0].clone();
    let liar = FIVE.iter().find(|n| !homes(&record).contains(**n)).expect("two are no homes");
    let mut forged = record.clone();
    forged.generation = 7;
    let stolen = vec![Home { peer: name(liar), store: store(liar) }, victim.clone()];
    forged.moved_to = Some(stolen.try_into().expect("two"));
    let value = super::acceptor::Value::job(forged).encode().expect("encodes");
    let body = RegisterBody::Accept {
        ballot: Ballot::install(),
        value,
        next: None,
        origin: Some(Origin::Job(record.birth.clone())),
    };
    let request =
        RegisterRequest { op: 1, key: RecordKey::Job(job), generation: 7, store: victim.store, body };
    mesh.input(&victim.peer, Input::Message { from: name(liar), message: Message::Register(request) });
    mesh.settle();
    assert_eq!(mesh.peers[&victim.peer].hint(&job).map(|r| r.generation), Some(0));
    let held = Message::Held { birth: record.birth.clone(), generation: 9, homes: vec![victim.clone()] };
    mesh.input(&victim.peer, Input::Message { from: name(liar), message: held });
    assert_eq!(mesh.get(victim.peer.as_str(), job).expect("there"), record);
}

#[test]
fn a_record_kept_long_enough_is_forgotten_by_all_and_stays_forgotten() {
    let mut mesh = Mesh::new(FIVE, 3);
    mesh.retain = Span::secs(100);
    for n in FIVE {
        mesh.start(n);
    }
    mesh.views();
    let (job, live) = (mesh.submit("a"), mesh.submit("b"));
    let late: Vec<_> = mesh
        .sent
        .iter()
        .filter(|(_, _, m)| matches!(m, Message::Register(r) if r.key == RecordKey::Job(job)))
        .cloned()
        .collect();
    assert!(!late.is_empty());
    mesh.end("c", job);
    mesh.run(Span::secs(90));
    assert_eq!(mesh.get("d", job).expect("kept").state, JobState::Cancelled);
    // One home is away: not all can hold the final value, so nobody forgets it.
    let away = mesh.get("d", job).expect("kept").homes()[1].peer.to_string();
    mesh.drop = |_, _, m| matches!(m, Message::Register(r) if matches!(r.body, RegisterBody::Forget));
    mesh.run(Span::secs(30));
    let at = if away == "a" { "b" } else { "a" };
    assert_eq!(mesh.get(at, job).expect("kept").state, JobState::Cancelled);
    mesh.drop = |_, _, _| false;
    mesh.run(Span::secs(60));
    assert_eq!(mesh.get("d", job), Err(ClientError::NoSuchJob(job)));
    let holds = |m: &Mesh| m.peers.values().filter(|p| p.hint(&job).is_some()).count();
    assert_eq!(holds(&mesh), 0);
    // Every request of its birth arrives once more, late.
    for (from, to, message) in late.clone() {
        mesh.input(&to, Input::Message { from, message });
    }
    mesh.settle();
    mesh.run(Span::secs(5));
    assert_eq!((holds(&mesh), mesh.get("d", job)), (0, Err(ClientError::NoSuchJob(job))));
    // The same after a restart of everybody: the tombstones are on disk.
    for n in FIVE {
        mesh.start(n);
    }
    mesh.views();
    for (from, to, message) in late {
        mesh.input(&to, Input::Message { from, message });
    }
    mesh.settle();
    assert_eq!(holds(&mesh), 0);
    assert_eq!(mesh.get("e", live).expect("alive").state, JobState::Pending);
}

/// A clock that is forty days ahead makes no end of a job vanish; nor one that is behind where the job ends.
#[test]
fn a_wrong_clock_makes_nobody_forget() {
    let mut mesh = Mesh::new(FIVE, 3);
    mesh.retain = Span::secs(30 * 86_400);
    mesh.views();
    let job = mesh.submit("a");
    let homes: Vec<PeerName> =
        mesh.get("d", job).expect("kept").homes().iter().map(|h| h.peer.clone()).collect();
    mesh.ahead.insert(homes[0].clone(), Span::secs(40 * 86_400));
    mesh.run(Span::secs(5));
    mesh.end(homes[1].as_str(), job);
    mesh.run(Span::secs(120));
    assert_eq!(mesh.get("d", job).expect("kept").state, JobState::Cancelled);
    // By most clocks its time is over: then it goes, and so does the one whose clock is ahead.
    mesh.now = mesh.now + Span::secs(31 * 86_400);
    mesh.views();
    mesh.run(Span::secs(180));
    assert_eq!(mesh.get("d", job), Err(ClientError::NoSuchJob(job)));
}

#[test]
fn of_the_ended_records_only_the_newest_are_kept() {
    let mut mesh = Mesh::new(&["a"], 1);
    let jobs: Vec<JobId> = (0..12)
        .map(|_| {
            let job = mesh.submit("a");
            mesh.run(Span::secs(1));
            mesh.end("a", job);
            job
        })
        .collect();
    mesh.peers.get_mut(&name("a")).expect("a").cfg.retain_jobs = 5;
    mesh.run(Span::secs(10));
    let kept: Vec<bool> = jobs.iter().map(|j| mesh.get("a", *j).is_ok()).collect();
    assert_eq!(kept, [vec![false; 7], vec![true; 5]].concat());
}

#[test]
fn tombstones_melt_into_a_floor_that_refuses_the_same() {
    use super::acceptor::{Acceptor, Room};
    use crate::model::record::Birth;
    let me = name("a");
    let birth = |sequence| Birth {
        tenant: "t".into(),
        minter: me.clone(),
        sequence,
        homes: vec![Home { peer: me.clone(), store: store("a") }].try_into().expect("one"),
    };
    let mut acceptor = Acceptor::default();
    let room = Room { disk_full: false, jobs_max: 1_000_000 };
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let create = |acceptor: &mut Acceptor, rows: &mut BTreeMap<_, _>, sequence, forget: bool| {
        let b = birth(sequence);
        let (job, origin) = (b.id(), Origin::Job(b.clone()));
        let mut record = JobRecord::new(b, spec(), crate::base::TraceId([0; 16]), WallTime(0));
        record.state = if forget { JobState::Succeeded } else { JobState::Pending };
        let value = super::acceptor::Value::job(record).encode().expect("encodes");
        let ballot = Ballot { round: 1, proposer: "a".into(), boot: 1 };
        let body = RegisterBody::Accept { ballot, value, next: None, origin: Some(origin) };
        let request =
            RegisterRequest { op: 1, key: RecordKey::Job(job), generation: 0, store: store("a"), body };
        let handled = acceptor.handle((&me, store("a")), &me, &request, room);
        let writes = if forget { acceptor.forget(&job) } else { Vec::new() };
        for w in handled.writes.into_iter().chain(writes) {
            match w.value {
                Some(value) => rows.insert(w.key, value),
                None => rows.remove(&w.key),
            };
        }
        handled.answer
    };
    let max = super::acceptor::TOMBSTONES_MAX as u64;
    for sequence in 0..max + 3 {
        create(&mut acceptor, &mut rows, sequence, true);
    }
    assert_eq!(rows.len() as u64, max + 1, "the floor's row and the tombstones");
    let mut again = Acceptor::recover(&rows).expect("its rows");
    for sequence in [0, 2, 3, max + 2] {
        let answer = create(&mut again, &mut rows.clone(), sequence, false);
        assert_eq!(answer, AnswerBody::Forgotten, "{sequence}");
    }
    assert!(matches!(create(&mut again, &mut rows, max + 3, false), AnswerBody::Accepted { .. }));
}

/// A peer that has forgotten so many records of one life of their minter that it only keeps a floor says "forgotten" of an
/// older one, too, which lives and comes to it: that is no word about this very record.
#[test]
fn a_living_record_outlives_a_floor_at_its_new_home() {
    use super::acceptor::Room;
    use crate::model::record::Birth;
    let mut mesh = Mesh::new(&["a", "b", "c", "d"], 3);
    let job = mesh.submit("a");
    let record = mesh.get("a", job).expect("there");
    let held: BTreeSet<String> = homes(&record).into_iter().map(str::to_owned).collect();
    let stranger = ["a", "b", "c", "d"].into_iter().find(|p| !held.contains(*p)).expect("one of four");
    let acceptor = &mut mesh.peers.get_mut(&name(stranger)).expect("a peer").acceptor;
    for n in 1..=super::acceptor::TOMBSTONES_MAX as u64 + 3 {
        let home = Home { peer: name(stranger), store: store(stranger) };
        let birth = Birth {
            sequence: record.birth.sequence + n,
            homes: vec![home].try_into().expect("one"),
            ..record.birth.clone()
        };
        let mut ended = JobRecord::new(birth.clone(), spec(), crate::base::TraceId([0; 16]), WallTime(0));
        ended.state = JobState::Succeeded;
        let value = super::acceptor::Value::job(ended).encode().expect("encodes");
        let ballot = Ballot { round: 1, proposer: "a".into(), boot: 1 };
        let (key, origin) = (RecordKey::Job(birth.id()), Some(Origin::Job(birth.clone())));
        let body = RegisterBody::Accept { ballot, value, next: None, origin };
        let request = RegisterRequest { op: 1, key, generation: 0, store: store(stranger), body };
        let room = Room { disk_full: false, jobs_max: 1_000_000 };
        let me = name(stranger);
        let handled = acceptor.handle((&me, store(stranger)), &me, &request, room);
        assert!(matches!(handled.answer, AnswerBody::Accepted { .. }), "{:?}", handled.answer);
        acceptor.forget(&birth.id());
    }
    // One of its homes goes for good, and the only other peer takes its place.
    let gone = held.iter().next_back().expect("three").clone();
    mesh.remove(&gone);
    mesh.run(Span::secs(200));
    let reads: Vec<_> = held.iter().filter(|p| **p != gone).map(|p| mesh.get(p, job)).collect();
    for read in reads {
        let record = read.expect("it has not ended");
        assert_eq!(record.state, JobState::Pending);
        assert!(homes(&record).contains(stranger) && record.generation > 0, "{:?}", homes(&record));
    }
}

/// What people are told of a contact that nobody has confirmed yet: since when, not "for ever".
#[test]
fn a_contact_that_was_never_renewed_is_as_old_as_the_start() {
    let mut mesh = Mesh::new(&["a", "b", "c"], 3);
    mesh.run(Span::secs(10));
    mesh.drop = |_, _, m| matches!(m, Message::Register(_));
    mesh.start("a");
    mesh.views();
    mesh.run(Span::secs(20));
    let ClientResponse::Inspect(report) = mesh.ask("a", ClientRequest::Inspect(Look::default())) else {
        panic!("a report")
    };
    let youngest = report.contacts.iter().map(|(_, _, age)| *age).min().expect("a contact");
    assert!((Span::secs(19)..Span::secs(25)).contains(&youngest), "{youngest}");
}

/// A home whose disk is full is the first of a job that it could not take. The others tell it of the job at their pace, although
/// each try of it makes them accept the same again; and once they see why, the next one acts.
#[test]
fn a_full_home_that_lacks_a_record_is_passed_over() {
    let mut mesh = Mesh::new(&["a", "b", "c"], 3);
    mesh.input(&name("a"), Input::DiskFull(true));
    let submitted: Vec<JobId> = (0..20).map(|_| mesh.submit("b")).collect();
    let first_home =
        |job: &JobId| mesh.peers[&name("b")].acceptor.job(job).map(|r| r.homes()[0].peer.clone());
    let job = submitted.into_iter().find(|job| first_home(job) == Some(name("a"))).expect("one of three");
    mesh.sent.clear();
    mesh.run(Span::secs(60));
    let record = mesh.peers[&name("b")].acceptor.job(&job).expect("taken").clone();
    assert!(mesh.peers[&name("a")].acceptor.job(&job).is_none());
    let asked = |to: &str, sent: &[(PeerName, PeerName, Message)]| {
        sent.iter()
            .filter(|(_, t, m)| t.as_str() == to && matches!(m, Message::Look { birth } if birth.id() == job))
            .count()
    };
    let first = asked("a", &mesh.sent);
    assert!((2..=20).contains(&first), "asked {first} times by two in a minute");
    assert!(!mesh.peers[&name("b")].acts_for(&record), "nobody told b");

    mesh.tell_full("a");
    let next = record.homes()[1].peer.clone();
    let acting: Vec<&PeerName> =
        mesh.peers.iter().filter(|(_, core)| core.acts_for(&record)).map(|(peer, _)| peer).collect();
    assert_eq!(acting, [&next]);
    mesh.sent.clear();
    mesh.run(Span::secs(60));
    assert_eq!(asked("a", &mesh.sent), 0);

    // All are full: the first acts again, rather than nobody.
    for peer in ["b", "c"] {
        mesh.input(&name(peer), Input::DiskFull(true));
        mesh.tell_full(peer);
    }
    assert!(mesh.peers[&name("a")].acts_for(&record));
}

/// Leases run down while a link is broken. However long the break was, the contact is fresh again within half a
/// period, and not after the doubled pause that the break had led to.
#[test]
fn a_contact_is_fresh_soon_after_a_break() {
    let mut mesh = Mesh::new(&["a", "b", "c", "d"], 3);
    mesh.run(Span::secs(20));
    let renew_every = mesh.peers[&name("a")].cfg.renew_every;
    let soon = renew_every.scale(1, 2) + Span::millis(500);
    for broken in (1..30).map(|n| Span::millis(n * 337)) {
        mesh.drop =
            |from, to, m| [from, to].contains(&"a") && matches!(m, Message::Register(_) | Message::Answer(_));
        mesh.run(broken);
        mesh.drop = |_, _, _| false;
        mesh.run(soon);
        let ClientResponse::Inspect(report) = mesh.ask("a", ClientRequest::Inspect(Default::default()))
        else {
            panic!("a report")
        };
        let age = report.contacts.iter().map(|(_, _, age)| *age).min().expect("a contact");
        // Where the break fell between two renewals, the last one is from before it, and not yet due again.
        assert!(age <= renew_every + Span::millis(200), "{broken}: {age}");
    }
}

/// Every second, for each of thousands of records: three digests each were most of what a peer of many jobs did.
#[test]
fn a_sweep_that_finds_nothing_to_do_makes_no_digest_for_a_record() {
    let mut mesh = Mesh::new(&["a", "b", "c"], 3);
    for _ in 0..20 {
        mesh.submit("a");
    }
    assert_eq!(mesh.held("b"), 20);
    let core = mesh.peers.get_mut(&name("b")).expect("a peer");
    let before = work::done("digest");
    core.sweep();
    assert_eq!(work::done("digest") - before, 0);
    // It looked at them all the same: one that should move is found.
    let held = mesh.held("b");
    mesh.join("d", "d");
    mesh.remove("c");
    mesh.run(Span::secs(30));
    assert_eq!((held, mesh.held("d")), (20, 20));
}
