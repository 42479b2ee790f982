//! Idempotency keys in a small mesh of real cores.

use super::super::acceptor::{Room, Value};
use super::super::api::{ClientRequest, ClientResponse, Input};
use super::super::homes_tests::Mesh;
use super::super::message::{Ballot, Origin, RecordKey, RegisterBody, RegisterRequest, SPEAKS_RESERVE};
use super::super::testing::{name, spec};
use super::*;
use crate::base::{Home, Rng};
use crate::model::reserve::{At, ReserveSpec};
use std::collections::BTreeSet;

const THREE: &[&str] = &["a", "b", "c"];
const FIVE: &[&str] = &["a", "b", "c", "d", "e"];

fn request(key: &str) -> ClientRequest {
    ClientRequest::Submit { spec: Box::new(spec()), key: Some(key.into()) }
}

/// The job, and whether it is said to have been there.
fn taken(response: ClientResponse) -> (JobId, bool) {
    match response {
        ClientResponse::Submitted { job, existed, .. } => (job, existed),
        other => panic!("{other:?}"),
    }
}

fn submit(mesh: &mut Mesh, peer: &str, key: &str) -> (JobId, bool) {
    let response = mesh.ask(peer, request(key));
    taken(response)
}

/// It was killed, and nobody has noticed.
fn kill(mesh: &mut Mesh, peer: &str) {
    mesh.peers.remove(&name(peer));
}

fn lose(mesh: &mut Mesh, peer: &str) {
    kill(mesh, peer);
    mesh.set(peer, |m| m.liveness = Liveness::Lost);
}

/// The peers that the ring proposes as homes for a key.
fn homes_of(mesh: &Mesh, key: &str) -> Vec<String> {
    let core = mesh.peers.values().next().expect("a peer");
    let homes = core.ring.homes(&core.view, key_id("default", key).ring_key(), 3, None).expect("enough");
    homes.into_iter().map(|home| home.peer.to_string()).collect()
}

#[test]
fn the_same_key_at_every_peer_is_one_job() {
    let mut mesh = Mesh::new(THREE, 3);
    let (job, existed) = submit(&mut mesh, "a", "k");
    assert!(!existed);
    for peer in ["b", "c", "a", "b"] {
        assert_eq!(submit(&mut mesh, peer, "k"), (job, true), "at {peer}");
    }
    assert_ne!(submit(&mut mesh, "b", "other").0, job);
    let other = JobSpec { name: "other".into(), ..spec() };
    for peer in THREE {
        let request = ClientRequest::Submit { spec: Box::new(other.clone()), key: Some("k".into()) };
        let refused = ClientResponse::Error(ClientError::KeyReused(job));
        assert_eq!(mesh.ask(peer, request), refused, "at {peer}");
    }
    // Another tenant's key is another key.
    let theirs = JobSpec { tenant: "theirs".into(), ..spec() };
    let theirs = ClientRequest::Submit { spec: Box::new(theirs), key: Some("k".into()) };
    assert_ne!(taken(mesh.ask("c", theirs)).0, job);
}

#[test]
fn the_peer_that_was_asked_first_may_be_dead() {
    let mut mesh = Mesh::new(THREE, 3);
    let (job, _) = submit(&mut mesh, "a", "k");
    kill(&mut mesh, "a");
    assert_eq!(submit(&mut mesh, "b", "k"), (job, true));
    // And the one that is asked now may have started anew, with its disk.
    mesh.start("c");
    mesh.views();
    mesh.run(Span::secs(7));
    assert_eq!(submit(&mut mesh, "c", "k"), (job, true));
    // With one of three dead a new key is a new job, whether that is known yet or not.
    assert!(!submit(&mut mesh, "b", "new").1);
    lose(&mut mesh, "a");
    assert!(!submit(&mut mesh, "c", "newer").1);
}

#[test]
fn homes_tell_of_the_key_where_the_peer_asked_is_none_of_them() {
    let mut mesh = Mesh::new(FIVE, 3);
    for n in 0..12 {
        let key = format!("k{n}");
        let homes = homes_of(&mesh, &key);
        let asked = FIVE.iter().find(|p| !homes.iter().any(|h| h == *p)).expect("no home");
        let again = FIVE.iter().rev().find(|p| !homes.iter().any(|h| h == *p)).expect("no home");
        let (job, _) = submit(&mut mesh, asked, &key);
        let disk = mesh.peers.remove(&name(asked)).expect("it runs");
        assert_eq!(submit(&mut mesh, again, &key), (job, true), "{key}");
        assert!(mesh.get(again, job).is_ok());
        mesh.peers.insert(name(asked), disk);
    }
}

#[test]
fn a_job_that_only_a_minority_was_given_is_the_job_of_its_key() {
    let mut mesh = Mesh::new(THREE, 3);
    // Only b is told, and its answer does not arrive.
    mesh.drop = |from, to, message| {
        from == "a" && to == "c" && matches!(message, Message::Register(_))
            || to == "a" && matches!(message, Message::Answer(_))
    };
    mesh.input(&name("a"), Input::Client { token: 900, request: request("k") });
    mesh.settle();
    mesh.run(Span::secs(2));
    assert_eq!(mesh.replies.get(&900), None);
    kill(&mut mesh, "a");
    mesh.drop = |_, _, _| false;
    let (job, existed) = submit(&mut mesh, "c", "k");
    assert!(existed && mesh.peers[&name("b")].acceptor.job(&job).is_some());
    assert_eq!(submit(&mut mesh, "b", "k"), (job, true));
}

#[test]
fn peers_that_are_asked_at_once_make_one_job() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut mesh = Mesh::new(if seed % 2 == 0 { THREE } else { FIVE }, 3);
        let peers: Vec<PeerName> = mesh.peers.keys().cloned().collect();
        let mut asked = 0;
        for _ in 0..600 {
            if asked < 6 && rng.chance(0.1) {
                let peer = &peers[rng.below(peers.len() as u64) as usize];
                mesh.input(peer, Input::Client { token: 900 + asked, request: request("k") });
                asked += 1;
            }
            if mesh.lines.is_empty() {
                mesh.now = mesh.now + Span::millis(10);
                for peer in &peers {
                    mesh.input(peer, Input::Tick);
                }
                continue;
            }
            // In any order, and some twice.
            let at = rng.below(mesh.lines.len() as u64) as usize;
            let Some((from, to, message)) = mesh.lines.remove(at) else { continue };
            if rng.chance(0.1) {
                mesh.lines.push_back((from.clone(), to.clone(), message.clone()));
            }
            mesh.input(&to, Input::Message { from, message });
        }
        mesh.settle();
        mesh.run(Span::secs(8));
        let answers: Vec<(JobId, bool)> =
            (0..asked).filter_map(|n| mesh.replies.remove(&(900 + n))).map(taken).collect();
        assert_eq!(answers.len(), asked as usize, "seed {seed}");
        assert!(answers.iter().all(|(job, _)| *job == answers[0].0), "seed {seed}: {answers:?}");
        assert!(answers.iter().filter(|(_, existed)| !existed).count() <= 1, "seed {seed}: {answers:?}");
        let jobs: std::collections::BTreeSet<JobId> =
            mesh.peers.values().flat_map(|p| p.acceptor.jobs().map(JobRecord::id)).collect();
        assert!(jobs.len() <= 1, "seed {seed}: {jobs:?}");
    }
}

#[test]
fn of_many_at_one_peer_one_is_told_that_it_is_new() {
    let mut mesh = Mesh::new(THREE, 3);
    for token in 900..920 {
        mesh.input(&name("b"), Input::Client { token, request: request("k") });
    }
    mesh.settle();
    mesh.run(Span::secs(1));
    let answers: Vec<(JobId, bool)> =
        (900..920).map(|t| taken(mesh.replies.remove(&t).expect("told"))).collect();
    assert!(answers.iter().all(|(job, _)| *job == answers[0].0), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, existed)| !existed).count(), 1, "{answers:?}");
    // What waits for a question is bounded.
    kill(&mut mesh, "a");
    let most = WAITING_MAX as u64;
    for token in 1_000..1_000 + most + 1 {
        mesh.input(&name("b"), Input::Client { token, request: request("more") });
    }
    let last = mesh.replies.get(&(1_000 + most));
    assert!(matches!(last, Some(ClientResponse::Error(ClientError::KeyUndecided(_)))), "{last:?}");
}

#[test]
fn what_silent_homes_may_hold_is_refused_and_decided_when_they_are_back() {
    let mut mesh = Mesh::new(FIVE, 3);
    let key = "k";
    let homes = homes_of(&mesh, key);
    let lost = &homes[..2];
    let there = FIVE.iter().find(|p| !lost.iter().any(|h| h == *p)).expect("another");
    for peer in lost {
        mesh.set(peer, |m| m.liveness = Liveness::Lost);
    }
    let cores: Vec<_> =
        lost.iter().map(|p| (name(p), mesh.peers.remove(&name(p)).expect("it runs"))).collect();
    let refused = mesh.ask(there, request(key));
    let ClientResponse::Error(ClientError::KeyUndecided(why)) = &refused else { panic!("{refused:?}") };
    assert!(lost.iter().all(|p| why.contains(p.as_str())), "{why}");
    assert!(mesh.peers.values().all(|p| p.acceptor.counts().0 == 0), "nothing was stored");
    // A key whose homes are others is taken.
    let other = (0..).map(|n| format!("other{n}")).find(|other| {
        let ring = &mesh.peers[&name(there)].ring;
        let first = ring.order(key_id("default", other).ring_key());
        first[..3].iter().filter(|p| lost.iter().any(|l| l == p.as_str())).count() < 2
    });
    assert!(!submit(&mut mesh, there, &other.expect("one")).1);
    for (peer, core) in cores {
        mesh.peers.insert(peer.clone(), core);
        mesh.set(peer.as_str(), |m| m.liveness = Liveness::Alive);
    }
    assert!(!submit(&mut mesh, there, key).1);
}

#[test]
fn of_two_jobs_of_one_key_at_the_same_homes_one_is_dropped() {
    let mut mesh = Mesh::new(THREE, 3);
    // It is cut off while it makes the job: it holds it alone, and its caller is told that the outcome is unknown.
    mesh.drop = |_, _, message| matches!(message, Message::Register(_) | Message::Answer(_));
    mesh.input(&name("a"), Input::Client { token: 900, request: request("k") });
    mesh.run(Span::secs(12));
    let told = mesh.replies.remove(&900);
    assert!(matches!(told, Some(ClientResponse::Error(ClientError::Unknown { .. }))), "{told:?}");
    mesh.drop = |from, to, _| from == "a" || to == "a";
    let alone: Vec<JobId> = mesh.peers[&name("a")].acceptor.jobs().map(JobRecord::id).collect();
    let (job, _) = submit(&mut mesh, "b", "k");
    assert!(alone.len() == 1 && alone[0] != job);
    mesh.drop = |_, _, _| false;
    mesh.run(Span::secs(30));
    for peer in THREE {
        let held: Vec<JobId> = mesh.peers[&name(peer)].acceptor.jobs().map(JobRecord::id).collect();
        // The dropped one is held nowhere, not even as an empty register.
        assert!(held.iter().all(|id| *id == job) && held.len() == mesh.held(peer), "at {peer}: {held:?}");
        assert_eq!(submit(&mut mesh, peer, "k"), (job, true), "at {peer}");
    }
}

#[test]
fn peers_of_the_version_before_are_not_asked() {
    let mut mesh = Mesh::new(&["a"], 3);
    mesh.wire.insert(name("b"), SPEAKS_RESERVE);
    mesh.join("b", "b");
    mesh.join("c", "c");
    let (job, _) = submit(&mut mesh, "a", "k");
    assert_eq!(submit(&mut mesh, "c", "k"), (job, true));
    assert!(!mesh.sent.iter().any(|(_, to, m)| to.as_str() == "b" && matches!(m, Message::Key(_))));
}

#[test]
fn a_key_is_free_again_when_it_is_over_or_its_record_is_forgotten() {
    let mut mesh = Mesh::new(THREE, 3);
    let (job, _) = submit(&mut mesh, "a", "k");
    assert_eq!(submit(&mut mesh, "b", "k"), (job, true));
    mesh.now = mesh.now + Span::secs(25 * 3600);
    mesh.run(Span::secs(1));
    let (next, existed) = submit(&mut mesh, "c", "k");
    assert!(next != job && !existed);
    assert_eq!(submit(&mut mesh, "a", "k"), (next, true));
    let key = key_id("default", "k");
    let acceptor = &mut mesh.peers.get_mut(&name("b")).expect("it runs").acceptor;
    assert_eq!(acceptor.of_key(&key).map(JobRecord::id), Some(next));
    acceptor.forget(&next);
    assert_eq!(acceptor.of_key(&key).map(JobRecord::id), Some(job));
    acceptor.forget(&job);
    assert!(acceptor.of_key(&key).is_none());
}

#[test]
fn a_reservation_from_now_is_the_same_a_moment_later() {
    let reserve = |from: u64, until: u64| JobSpec {
        reserve: Some(ReserveSpec { at: At::Any(1), from: WallTime(from), until: WallTime(until) }),
        ..spec()
    };
    let mut mesh = Mesh::new(&["a"], 1);
    let (job, _) = submit(&mut mesh, "a", "k");
    let mut known = mesh.get("a", job).expect("there");
    known.submitted_at = WallTime(1_000_005);
    known.spec = reserve(1_000_000, 1_060_000);
    let now = WallTime(1_001_010);
    assert!(same_asked(&known, &reserve(1_001_000, 1_061_000), now), "as long");
    assert!(same_asked(&known, &reserve(1_001_000, 1_060_000), now), "until the same moment");
    assert!(!same_asked(&known, &reserve(1_001_000, 1_071_000), now), "longer");
    assert!(!same_asked(&known, &reserve(1_200_000, 1_260_000), now), "not from now on");
    let other = JobSpec { nodes: 9, ..reserve(1_001_000, 1_061_000) };
    assert!(!same_asked(&known, &other, now), "more of them");
    known.spec = reserve(1_500_000, 1_560_000);
    assert!(!same_asked(&known, &reserve(1_001_000, 1_061_000), now), "that one begins later");
}

/// Two peers that proposed other homes for one key may each have had a job of it chosen. The home that both have in common keeps
/// the first; what the other homes chose without it, it learns all the same: as long as it did not, the job waited for it
/// for ever where it was the one to act.
#[test]
fn of_two_jobs_of_one_key_at_other_homes_both_go_on() {
    use crate::model::record::Birth;
    let mut mesh = Mesh::new(FIVE, 3);
    let key = (0..).map(|n| format!("k{n}")).find(|key| homes_of(&mesh, key)[0] == "a").expect("some key");
    let homes = homes_of(&mesh, &key);
    // It hears nothing of the job that the others take.
    mesh.drop = |from, to, _| from == "a" || to == "a";
    let (job, _) = submit(&mut mesh, &homes[1], &key);
    assert!(mesh.peers[&name("a")].acceptor.job(&job).is_none());
    // It took another one meanwhile, for itself alone.
    let record = mesh.peers[&name(&homes[1])].acceptor.job(&job).expect("taken").clone();
    let own = Home { peer: name("a"), store: mesh.peers[&name("a")].cfg.store };
    let birth = Birth {
        minter: name("a"),
        homes: vec![own.clone()].try_into().expect("one"),
        ..record.birth.clone()
    };
    let (other, origin) = (birth.id(), Origin::Job(birth.clone()));
    let value = JobRecord { birth, ..record };
    let body = RegisterBody::Accept {
        ballot: Ballot { round: 1, proposer: "a".into(), boot: 1 },
        value: Value::job(value).encode().expect("encodes"),
        next: None,
        origin: Some(origin),
    };
    let request =
        RegisterRequest { op: 1, key: RecordKey::Job(other), generation: 0, store: own.store, body };
    let room = Room { disk_full: false, jobs_max: 1_000 };
    let acceptor = &mut mesh.peers.get_mut(&name("a")).expect("a peer").acceptor;
    assert!(acceptor.handle((&own.peer, own.store), &own.peer, &request, room).accepted);
    mesh.drop = |_, _, _| false;
    mesh.run(Span::secs(60));
    let held: BTreeSet<JobId> = mesh.peers[&name("a")].acceptor.jobs().map(JobRecord::id).collect();
    assert_eq!(held, BTreeSet::from([job, other]));
}
