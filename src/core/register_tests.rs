//! The register over three homes, with messages that are lost on purpose.

use std::collections::VecDeque;

use super::acceptor::Value;
use super::api::{CoreConfig, DiskImage, Input, Now, Output};
use super::message::{Message, Origin, RecordKey};
use super::peer::{Peer, Timer};
use super::propose::{Fresh, Task};
use super::purpose::Purpose;
use super::testing::{config, spec};
use crate::base::{BoundedVec, Epoch, Home, Instant, PeerName, Span, StoreId, TraceId, WallTime};
use crate::model::record::{Birth, CancelIntent, Change};
use crate::model::{JobRecord, Placement};

fn name(i: usize) -> PeerName {
    PeerName::new(["a", "b", "c"][i]).expect("a label")
}

fn peer(i: usize, store: u8) -> Peer {
    let cfg = CoreConfig { seed: i as u64, ..config(["a", "b", "c"][i], StoreId([store; 16])) };
    let now = Now { mono: Instant(1), wall: WallTime(1) };
    Peer::recover(cfg, &DiskImage::default(), now).expect("an empty disk").0
}

struct Mesh {
    peers: Vec<Peer>,
    /// This peer hears and says nothing.
    cut: Option<usize>,
}

impl Mesh {
    fn new() -> Self {
        Self { peers: (0..3).map(|i| peer(i, i as u8)).collect(), cut: None }
    }

    /// One operation of peer `from`, and every message that follows from it.
    fn run(&mut self, from: usize, origin: &Origin, task: Task) {
        let peer = &mut self.peers[from];
        peer.propose(origin.clone(), task, Purpose::Nothing, Span::secs(10));
        let mail = sent(from, std::mem::take(&mut peer.out));
        self.deliver(mail);
    }

    /// Peer `from` says this to `to`.
    fn tell(&mut self, from: usize, to: usize, message: Message) {
        self.deliver([(from, name(to), message)].into());
    }

    fn deliver(&mut self, mut mail: VecDeque<(usize, PeerName, Message)>) {
        while let Some((from, to, message)) = mail.pop_front() {
            let to = (0..3).find(|i| name(*i) == to).expect("one of three");
            if from != to && (self.cut == Some(from) || self.cut == Some(to)) {
                continue;
            }
            let now = Now { mono: Instant(1), wall: WallTime(1) };
            let out = self.peers[to].step(now, Input::Message { from: name(from), message });
            mail.extend(sent(to, out));
        }
    }

    fn accepted(&self, i: usize, key: &RecordKey) -> Option<(u64, super::acceptor::Encoded)> {
        let slot = self.peers[i].acceptor.slot(key)?;
        slot.accepted.as_ref().map(|(ballot, value)| (ballot.round, value.clone()))
    }
}

fn sent(from: usize, out: Vec<Output>) -> VecDeque<(usize, PeerName, Message)> {
    let one = |o| match o {
        Output::Send { to, message, .. } => Some((from, to, message)),
        _ => None,
    };
    out.into_iter().filter_map(one).collect()
}

fn record() -> JobRecord {
    let homes = (0..3).map(|i| Home { peer: name(i), store: StoreId([i as u8; 16]) }).collect::<Vec<_>>();
    let homes = BoundedVec::try_from(homes).expect("three");
    let birth = Birth { tenant: "t".into(), minter: name(0), sequence: 1, homes };
    JobRecord::new(birth, spec(), TraceId::default(), WallTime(1))
}

fn create(record: &JobRecord) -> Task {
    Task::Create(Box::new(Value::job(record.clone())), Fresh::Yes)
}

/// After a change that ended the job, the ballot it was made under is spent: a later change of the same peer
/// must not put another value under it on a home that missed the end.
#[test]
fn a_ballot_is_for_one_value() {
    let (mut mesh, first) = (Mesh::new(), record());
    let (origin, key) = (Origin::Job(first.birth.clone()), RecordKey::Job(first.id()));
    mesh.run(0, &origin, create(&first));
    mesh.cut = Some(2);
    let cancel = Change::Cancel { intent: CancelIntent { by: "u".into(), at: WallTime(2) } };
    mesh.run(0, &origin, Task::Job(cancel));
    let ended = mesh.accepted(0, &key).expect("accepted");
    assert_eq!(Some(&ended), mesh.accepted(1, &key).as_ref());
    assert_ne!(Some(&ended), mesh.accepted(2, &key).as_ref());
    mesh.cut = None;
    let placement = Placement {
        cluster: name(1),
        contact: Default::default(),
        incarnation: 1,
        series: 1,
        contact_homes: BoundedVec::default(),
        at: WallTime(3),
    };
    mesh.run(0, &origin, Task::Job(Change::Place { placement, epoch: Epoch(1) }));
    let (round, value) = mesh.accepted(2, &key).expect("accepted");
    assert!(round != ended.0 || value == ended.1, "two values under round {round}");
    assert!(mesh.peers.iter().all(|p| p.counters().keys().all(|k| !k.starts_with("invariant"))));
}

/// One home missed the creation, another lost its disk: the third alone holds the value, which was chosen.
/// It must not be called missing, and the two that are left must be able to go on.
#[test]
fn a_record_outlives_a_lost_disk_beside_a_missed_creation() {
    let (mut mesh, first) = (Mesh::new(), record());
    let (origin, key) = (Origin::Job(first.birth.clone()), RecordKey::Job(first.id()));
    mesh.cut = Some(2);
    mesh.run(0, &origin, create(&first));
    assert!(mesh.accepted(1, &key).is_some() && mesh.accepted(2, &key).is_none());
    mesh.cut = None;
    mesh.peers[1] = peer(1, 77);
    mesh.run(2, &origin, Task::Read);
    assert_eq!(mesh.accepted(2, &key).map(|a| a.1), mesh.accepted(0, &key).map(|a| a.1));
    assert!(mesh.accepted(2, &key).is_some() && mesh.accepted(1, &key).is_none());
    let cancel = Change::Cancel { intent: CancelIntent { by: "u".into(), at: WallTime(2) } };
    mesh.run(2, &origin, Task::Job(cancel));
    let job = first.id();
    assert!(mesh.peers[0].hint(&job).is_some_and(|r| r.state.is_final()));
}

/// The acting home alone took the end of a job, and the one that proposed it has crashed. To itself it has ended, to the
/// others it has not: when these ask it to look, it is settled.
#[test]
fn an_end_that_only_the_acting_home_took_is_settled() {
    let (mut mesh, first) = (Mesh::new(), record());
    let (origin, job) = (Origin::Job(first.birth.clone()), first.id());
    mesh.run(0, &origin, create(&first));
    mesh.cut = Some(0);
    let cancel = Change::Cancel { intent: CancelIntent { by: "u".into(), at: WallTime(2) } };
    mesh.run(0, &origin, Task::Job(cancel));
    let ended = |mesh: &Mesh| -> Vec<bool> {
        mesh.peers.iter().map(|p| p.hint(&job).is_some_and(|r| r.state.is_final())).collect()
    };
    assert_eq!(ended(&mesh), [true, false, false]);
    (mesh.cut, mesh.peers[0].proposer) = (None, Default::default());
    mesh.tell(1, 0, Message::Look { birth: first.birth.clone() });
    // It has forgotten which rounds there were: refused once, it tries again a moment later.
    let now = Now { mono: Instant(1_000_000), wall: WallTime(1) };
    let mail = sent(0, mesh.peers[0].step(now, Input::Tick));
    mesh.deliver(mail);
    assert_eq!(ended(&mesh), [true, true, true]);
}

/// Nothing is not something: a record that no disk holds stays missing, and no register is begun for it.
#[test]
fn what_was_never_created_is_missing() {
    let (mut mesh, first) = (Mesh::new(), record());
    let (origin, key) = (Origin::Job(first.birth.clone()), RecordKey::Job(first.id()));
    mesh.run(0, &origin, Task::Read);
    mesh.run(1, &origin, Task::Settle);
    assert!((0..3).all(|i| mesh.peers[i].acceptor.slot(&key).is_none()));
    assert!(mesh.peers.iter().all(|p| p.proposer.in_flight() == 0));
}

/// A timer that outlived its operation would wake the peer for nothing, thousands of times a second under load.
#[test]
fn timers_end_with_their_operation() {
    let (mut mesh, first) = (Mesh::new(), record());
    let origin = Origin::Job(first.birth.clone());
    let timers = |mesh: &Mesh| {
        let ops = mesh.peers[0].timers.iter();
        ops.filter(|(_, t)| matches!(t, Timer::OpDeadline(_) | Timer::OpResend(_))).count()
    };
    mesh.run(0, &origin, create(&first));
    mesh.run(0, &origin, Task::Settle);
    assert_eq!(timers(&mesh), 0);
    let drives =
        |mesh: &Mesh| mesh.peers[1].timers.iter().filter(|(_, t)| matches!(t, Timer::Drive(_))).count();
    assert!(drives(&mesh) <= 1, "one look at the job is due");
    // While it waits for answers it has both.
    (mesh.cut, mesh.peers[0].proposer.fast) = (Some(0), Default::default());
    mesh.run(0, &origin, Task::Read);
    assert_eq!(timers(&mesh), 2);
}
