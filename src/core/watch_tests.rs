//! Each place where production looks at an invariant can see it broken.

use super::*;
use crate::base::{BoundedVec, Epoch, Home, Instant, JobId, StoreId, TraceId, WallTime};
use crate::core::api::{CoreConfig, DiskImage, Now};
use crate::core::message::{Ballot, Origin};
use crate::core::testing::{config, name, spec};
use crate::model::record::{Birth, Checkpoint, ContactRecord, contact_id};
use crate::model::{JobRecord, JobState};

fn peer() -> Peer {
    let cfg = CoreConfig { replicas: 1, ..config("a", StoreId([1; 16])) };
    let now = Now { mono: Instant(1), wall: WallTime(1) };
    Peer::recover(cfg, &DiskImage::default(), now).expect("an empty disk").0
}

fn homes() -> BoundedVec<Home, 5> {
    BoundedVec::try_from(vec![Home { peer: name("a"), store: StoreId([1; 16]) }]).expect("one")
}

fn record() -> JobRecord {
    let birth = Birth { tenant: "t".into(), minter: name("a"), sequence: 1, homes: homes() };
    JobRecord::new(birth, spec(), TraceId::default(), WallTime(1))
}

fn counted(peer: &Peer) -> Vec<(&'static str, u64)> {
    peer.counters().iter().map(|(name, n)| (*name, *n)).collect()
}

#[test]
fn chosen_values_are_held_against_the_last_ones() {
    let mut peer = peer();
    let first = record();
    let key = RecordKey::Job(first.id());
    let mut chosen = |change: &dyn Fn(&mut JobRecord)| {
        let mut next = first.clone();
        change(&mut next);
        peer.watch_chosen(&key, &Value::job(next));
        counted(&peer)
    };
    let checkpoint = |epoch| Some(Checkpoint { epoch: Epoch(epoch), uri: "x".into() });
    assert_eq!(chosen(&|_| {}), []);
    assert_eq!(chosen(&|r| (r.version, r.epoch, r.checkpoint) = (4, Epoch(2), checkpoint(2))), []);
    let broken = chosen(&|r| (r.version, r.epoch, r.checkpoint) = (5, Epoch(2), checkpoint(1)));
    assert_eq!(broken, [("invariant_I4_violated", 1)]);
    let broken = chosen(&|r| (r.version, r.epoch, r.checkpoint) = (4, Epoch(1), checkpoint(1)));
    assert_eq!(
        broken,
        [("invariant_I1_violated", 1), ("invariant_I2_violated", 1), ("invariant_I4_violated", 1)]
    );
    chosen(&|r| (r.version, r.epoch, r.checkpoint, r.state) = (6, Epoch(2), checkpoint(2), JobState::Failed));
    let after = chosen(&|r| {
        (r.version, r.epoch, r.checkpoint, r.state) = (7, Epoch(2), checkpoint(2), JobState::Running)
    });
    assert_eq!(after.last(), Some(&("invariant_I8_violated", 1)));
}

#[test]
fn contacts_are_held_against_the_last_ones() {
    let mut peer = peer();
    let contact = |incarnation, nonce| ContactRecord {
        cluster: name("a"),
        series: 1,
        homes: homes(),
        incarnation,
        nonce,
        holder: name("a"),
        ext: BTreeMap::new(),
    };
    let key = RecordKey::Contact(contact_id(&name("a"), 1, &homes()));
    for good in [contact(1, (1, 1)), contact(1, (1, 2)), contact(2, (1, 1))] {
        peer.watch_chosen(&key, &Value::Contact(Box::new(good)));
    }
    assert_eq!(counted(&peer), []);
    peer.watch_chosen(&key, &Value::Contact(Box::new(contact(1, (9, 9)))));
    assert_eq!(counted(&peer), [("invariant_I1_violated", 1)]);
}

#[test]
fn one_ballot_with_two_values_is_seen() {
    let mut peer = peer();
    let first = record();
    let other = JobRecord { reason: "another".into(), ..first.clone() };
    let accept = |record: &JobRecord| RegisterRequest {
        op: 1,
        key: RecordKey::Job(first.id()),
        generation: 0,
        store: StoreId([1; 16]),
        body: RegisterBody::Accept {
            ballot: Ballot { round: 1, proposer: "b".into(), boot: 1 },
            value: Value::job(record.clone()).encode().expect("small"),
            next: None,
            origin: Some(Origin::Job(first.birth.clone())),
        },
    };
    peer.on_register(name("b"), accept(&first));
    peer.on_register(name("b"), accept(&first));
    assert_eq!(counted(&peer), []);
    peer.on_register(name("b"), accept(&other));
    assert_eq!(counted(&peer), [("invariant_I1_violated", 1)]);
}

#[test]
fn admissions_are_seen() {
    let mut peer = peer();
    let share = |gpus: Vec<u32>| vec![NodeShare { node: 0, gpus }];
    let key = |epoch| AttemptKey { job: JobId([7; 20]), epoch: Epoch(epoch) };
    peer.watch_admit(key(1), &share(vec![0, 1]));
    assert_eq!(counted(&peer), []);
    peer.watch_admit(key(2), &share(vec![3, 3]));
    assert_eq!(counted(&peer), [("invariant_I6_violated", 1)]);
}
