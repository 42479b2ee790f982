//! Attacks and accidents on one screen.

use super::super::envelope::KeyWrite;
use super::*;
use crate::base::StoreId;
use crate::runtime::members::{Entry, SignedEntry};
use crate::transport::keys::SecretKey;

impl Version for u64 {
    fn version(&self) -> u64 {
        *self
    }
}

type Owned = Held<u64>;

const MESH: MeshId = MeshId([9; 16]);

struct Mesh {
    keys: BTreeMap<&'static str, SecretKey>,
    list: MemberList,
}

fn mesh(names: &[&'static str]) -> Mesh {
    let ca = SecretKey::generate().expect("random");
    let mut mesh = Mesh { keys: BTreeMap::new(), list: MemberList::default() };
    for &name in names {
        let key = SecretKey::generate().expect("random");
        let entry = Entry {
            name: peer(name),
            generation: 1,
            removed: false,
            revision: 0,
            store: StoreId([1; 16]),
            addresses: vec![],
            public_key: key.public(),
            witness: false,
            can_admit: true,
        };
        mesh.list.merge(SignedEntry::sign(entry, &ca).expect("sane"));
        mesh.keys.insert(name, key);
    }
    mesh
}

fn peer(name: &str) -> PeerName {
    PeerName::new(name).expect("a label")
}
fn id(name: &str, generation: u64) -> ChitchatId {
    ChitchatId::new(name, generation, pseudo_addr(name))
}
fn entry(name: &str, generation: u64) -> DigestEntry {
    DigestEntry { id: id(name, generation), heartbeat: 5, gc: 0, version: 3 }
}

impl Mesh {
    fn write(&self, name: &'static str, generation: u64, key: &str, version: u64, text: &str) -> KeyWrite {
        let place = Place { mesh: MESH, name, generation, key, version };
        KeyWrite { key: key.into(), value: place.seal(text, &self.keys[name]), version, status: 0 }
    }
    fn clean(
        &self,
        screen: &mut Screen,
        from: &str,
        held: &Owned,
        envelope: &Envelope,
    ) -> (Envelope, Vec<Heard>) {
        let from = peer(from);
        let (bytes, news) =
            screen.clean(Some(&from), &envelope.write(), &self.list, &id("a", 1), held).expect("a message");
        (Envelope::read(&bytes).expect("what was written"), news)
    }
}

fn delta(id: ChitchatId, writes: Vec<KeyWrite>) -> NodeDelta {
    NodeDelta { id, gc: 0, from: 0, writes, bare_version: false }
}
fn deltas(envelope: Envelope) -> Vec<NodeDelta> {
    match envelope {
        Envelope::Ack(delta) | Envelope::SynAck(_, delta) => delta,
        other => panic!("{other:?}"),
    }
}
fn ids(envelope: &Envelope) -> Vec<ChitchatId> {
    match envelope {
        Envelope::Syn(_, digest) | Envelope::SynAck(digest, _) => {
            digest.iter().map(|e| e.id.clone()).collect()
        }
        other => panic!("{other:?}"),
    }
}

const BUILD: &str = r#"{"version":"1","wire":1}"#;

#[test]
fn a_signed_facet_passes_and_a_forged_one_cuts_its_node() {
    let mesh = mesh(&["a", "b", "c"]);
    let mut screen = Screen::new(MESH, peer("a"));
    let good = mesh.write("b", 1, "build", 1, BUILD);
    let mut forged = mesh.write("c", 1, "queue", 2, "{}");
    forged.key = "health".into();
    let after = mesh.write("b", 1, "build", 3, BUILD);
    let message = Envelope::Ack(vec![delta(id("b", 1), vec![good.clone(), forged, after])]);
    let (clean, news) = mesh.clean(&mut screen, "c", &Owned::new(), &message);
    assert_eq!(deltas(clean), vec![delta(id("b", 1), vec![good])], "what follows a bad value is cut with it");
    assert_eq!(news.len(), 1);
    assert_eq!(screen.dropped.forged, 1);
}

#[test]
fn what_makes_chitchat_panic_or_hang_does_not_reach_it() {
    let mesh = mesh(&["a", "b"]);
    let mut screen = Screen::new(MESH, peer("a"));
    let signed = |key: &str, version, text: &str| mesh.write("b", 1, key, version, text);
    let mut deleted = signed("build", 1, BUILD);
    deleted.status = 1;
    for bad in [
        signed("é", 1, "{}"),
        signed("", 1, "{}"),
        signed("build", u64::MAX, BUILD),
        signed("data", 1, &format!("\"{}\"", "x".repeat(20_000))),
        deleted,
    ] {
        let message = Envelope::Ack(vec![delta(id("b", 1), vec![bad])]);
        let (clean, news) = mesh.clean(&mut screen, "b", &Owned::new(), &message);
        assert_eq!((deltas(clean).len(), news.len()), (0, 0));
    }
    let collected = NodeDelta { gc: 7, ..delta(id("b", 1), vec![signed("build", 1, BUILD)]) };
    assert!(
        deltas(mesh.clean(&mut screen, "b", &Owned::new(), &Envelope::Ack(vec![collected])).0).is_empty()
    );
    assert!(screen.clean(None, b"garbage", &mesh.list, &id("a", 1), &Owned::new()).is_none());
    assert_eq!((screen.dropped.forged, screen.dropped.messages), (6, 1));
}

#[test]
fn absurd_figures_keep_their_version_but_are_not_believed() {
    let mesh = mesh(&["a", "b"]);
    let mut screen = Screen::new(MESH, peer("a"));
    let absurd = mesh.write("b", 1, "build", 1, r#"{"version":-1}"#);
    let (clean, news) =
        mesh.clean(&mut screen, "b", &Owned::new(), &Envelope::Ack(vec![delta(id("b", 1), vec![absurd])]));
    assert_eq!((deltas(clean).len(), news.len(), screen.dropped.absurd), (1, 0, 1));
}

#[test]
fn nobody_writes_our_own_keys_and_a_reused_generation_shows() {
    let mesh = mesh(&["a", "b"]);
    let mut screen = Screen::new(MESH, peer("a"));
    let stolen = KeyWrite {
        value: mesh.write("b", 1, "queue", 9, "{}").value,
        ..mesh.write("a", 1, "queue", 9, "{}")
    };
    let message = Envelope::Ack(vec![delta(id("a", 1), vec![stolen])]);
    assert!(deltas(mesh.clean(&mut screen, "b", &Owned::new(), &message).0).is_empty());
    assert!(!screen.generation_reused);
    let ours = mesh.write("a", 1, "build", 50, BUILD);
    let message = Envelope::Ack(vec![delta(id("a", 1), vec![ours])]);
    let written = Owned::from([(id("a", 1), 50)]);
    assert!(deltas(mesh.clean(&mut screen, "b", &written, &message).0).is_empty());
    assert!(!screen.generation_reused, "a late answer brings back what we wrote in this life");
    assert!(deltas(mesh.clean(&mut screen, "b", &Owned::new(), &message).0).is_empty());
    assert!(screen.generation_reused, "our own signature on a version that we do not have");
    // A digest alone proves nothing, and does not keep our keys from being sent.
    let held = Owned::from([(id("a", 1), 4)]);
    let boast = DigestEntry { version: 1 << 40, ..entry("a", 1) };
    match mesh.clean(&mut screen, "b", &held, &Envelope::Syn("m".into(), vec![boast])).0 {
        Envelope::Syn(_, digest) => assert_eq!(digest[0].version, 4),
        other => panic!("{other:?}"),
    }
}

#[test]
fn incarnations_need_proof_and_dead_ones_do_not_come_back() {
    let mesh = mesh(&["a", "b", "c"]);
    let mut screen = Screen::new(MESH, peer("a"));
    let syn = |entries: Vec<DigestEntry>| Envelope::Syn("m".into(), entries);
    // c tells of b: not proven yet. b tells of itself: its own link proves it. Nobody knows d.
    let (clean, _) = mesh.clean(&mut screen, "c", &Owned::new(), &syn(vec![entry("b", 7), entry("d", 1)]));
    assert!(ids(&clean).is_empty());
    let (clean, _) = mesh.clean(&mut screen, "b", &Owned::new(), &syn(vec![entry("b", 7)]));
    assert_eq!(ids(&clean), vec![id("b", 7)]);
    // A facet proves 7; then an invented 8 and the dead 6 are cut, 7 passes from anybody.
    let proof = Envelope::Ack(vec![delta(id("b", 7), vec![mesh.write("b", 7, "build", 1, BUILD)])]);
    mesh.clean(&mut screen, "c", &Owned::new(), &proof);
    let (clean, _) =
        mesh.clean(&mut screen, "c", &Owned::new(), &syn(vec![entry("b", 6), entry("b", 7), entry("b", 8)]));
    assert_eq!(ids(&clean), vec![id("b", 7)]);
    // Held from before its death: answered as complete, so that chitchat does not serve it first.
    let held = Owned::from([(id("b", 6), 40), (id("b", 7), 1)]);
    let (clean, _) = mesh.clean(&mut screen, "c", &held, &syn(vec![entry("b", 7)]));
    match clean {
        Envelope::Syn(_, digest) => {
            assert_eq!(
                digest.iter().map(|e| (e.id.generation_id, e.version)).collect::<Vec<_>>(),
                [(7, 3), (6, 40)]
            );
        }
        other => panic!("{other:?}"),
    }
    let old = Envelope::Ack(vec![delta(id("b", 6), vec![mesh.write("b", 6, "build", 99, BUILD)])]);
    let (clean, news) = mesh.clean(&mut screen, "c", &Owned::new(), &old);
    assert_eq!((deltas(clean).len(), news.len()), (0, 0));
}

#[test]
fn the_digest_stops_growing_before_chitchat_breaks() {
    let mesh = mesh(&["a", "b"]);
    let mut screen = Screen::new(MESH, peer("a"));
    let held: Owned = (0..1400).map(|n| (id("b", n), 1)).collect();
    let room = DIGEST_BYTES_MAX - held.keys().map(digest_len).sum::<usize>();
    assert!(room < 2_000, "more incarnations than any restart storm leaves: {room}");
    let news: Vec<_> = (2000..2100).map(|n| entry("b", n)).collect();
    let (clean, _) = mesh.clean(&mut screen, "b", &held, &Envelope::Syn("m".into(), news));
    let total = match &clean {
        Envelope::Syn(_, digest) => digest.iter().filter(|e| !held.contains_key(&e.id)).count(),
        other => panic!("{other:?}"),
    };
    assert!(total > 0 && total * digest_len(&id("b", 1)) <= room);
    assert_eq!(screen.dropped.no_room, 100 - total as u64);
}
