//! Several gossips in one process over a switchboard: convergence, pace, and what happens when
//! peers restart, die, come back or lie.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time")]

use std::collections::HashMap;

use tokio::sync::mpsc::Receiver;

use super::*;
use crate::base::StoreId;
use crate::model::report::{BuildReport, HealthReport, Inventory, Item};
use crate::runtime::members::{Entry, MemberList, SignedEntry};
use crate::transport::keys::SecretKey;

const MESH: MeshId = MeshId([3; 16]);
const LONG: Duration = Duration::from_secs(30);

/// Carries messages between the gossips of a test.
#[derive(Default)]
struct Board {
    peers: Mutex<HashMap<PeerName, Gossip>>,
    cut: Mutex<BTreeSet<PeerName>>,
}

struct Plug(PeerName, Arc<Board>);

impl GossipLink for Plug {
    fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool {
        let cut = self.1.cut.lock().expect("no panic");
        if cut.contains(to) || cut.contains(&self.0) {
            return false;
        }
        let peers = self.1.peers.lock().expect("no panic");
        peers.get(to).is_some_and(|gossip| gossip.receive(self.0.clone(), true, bytes))
    }
}

struct TestMesh {
    ca: SecretKey,
    keys: HashMap<PeerName, Arc<SecretKey>>,
    members: watch::Sender<Arc<MemberList>>,
    board: Arc<Board>,
    tracker: TaskTracker,
    start: std::time::Instant,
    fast: u64,
}

struct TestPeer {
    gossip: Gossip,
    heard: Receiver<Vec<Heard>>,
    cancel: CancellationToken,
    newest: BTreeMap<PeerName, Heard>,
}

fn peer(n: usize) -> PeerName {
    PeerName::new(&format!("p{n}")).expect("a label")
}

impl TestMesh {
    fn new(n: usize, fast: u64) -> Self {
        let mut mesh = Self {
            ca: SecretKey::generate().expect("random"),
            keys: HashMap::new(),
            members: watch::Sender::default(),
            board: Arc::default(),
            tracker: TaskTracker::new(),
            start: std::time::Instant::now(),
            fast,
        };
        (0..n).for_each(|i| mesh.admit(i));
        mesh
    }
    fn admit(&mut self, n: usize) {
        let key = Arc::new(SecretKey::generate().expect("random"));
        let entry = Entry {
            name: peer(n),
            generation: 1,
            removed: false,
            revision: 0,
            store: StoreId([1; 16]),
            addresses: vec![],
            public_key: key.public(),
            witness: false,
            can_admit: true,
        };
        self.keys.insert(peer(n), key);
        let mut list = (**self.members.borrow()).clone();
        list.merge(SignedEntry::sign(entry, &self.ca).expect("sane"));
        self.members.send_replace(Arc::new(list));
    }
    fn boot(&self, n: usize, boot: u64) -> TestPeer {
        let ms = Duration::from_millis;
        let mut config = GossipConfig::new(MESH, peer(n), boot, n as u64);
        (config.fast, config.slow, config.grace) = (ms(self.fast), ms(4 * self.fast), ms(100 * self.fast));
        let start = self.start;
        let parts = GossipParts {
            link: Arc::new(Plug(peer(n), self.board.clone())),
            signer: self.keys[&peer(n)].clone(),
            members: self.members.subscribe(),
            clock: Arc::new(move || Instant(start.elapsed().as_micros() as u64)),
        };
        let cancel = CancellationToken::new();
        let (gossip, heard) = Gossip::start(config, parts, &self.tracker, cancel.clone());
        let build = BuildReport { version: format!("boot {boot}"), wire: 1 };
        gossip.publish(&Facet::Build(build)).expect("sane");
        self.board.peers.lock().expect("no panic").insert(peer(n), gossip.clone());
        TestPeer { gossip, heard, cancel, newest: BTreeMap::new() }
    }
    fn kill(&self, n: usize, dead: &TestPeer) {
        dead.cancel.cancel();
        self.board.peers.lock().expect("no panic").remove(&peer(n));
    }
}

impl TestPeer {
    /// Reads news until the newest build of everyone in `of` satisfies the test.
    async fn until_build(&mut self, of: impl IntoIterator<Item = usize>, version: &str) {
        let mut wanted: BTreeSet<_> = of.into_iter().map(peer).collect();
        let version = version.to_owned();
        tokio::time::timeout(LONG, async {
            loop {
                wanted.retain(|name| {
                    let newest = self.newest.get(name).map(|h| &h.facet);
                    !matches!(newest, Some(Facet::Build(b)) if b.version == version)
                });
                if wanted.is_empty() {
                    return;
                }
                for heard in self.heard.recv().await.expect("gossip lives") {
                    if matches!(heard.facet, Facet::Build(_)) {
                        self.newest.insert(heard.peer.clone(), heard);
                    }
                }
            }
        })
        .await
        .unwrap_or_else(|_| panic!("still wanted: {wanted:?}"));
    }
    async fn until_sight(&self, what: &str, test: impl FnMut(&Arc<Sight>) -> bool) -> Arc<Sight> {
        let mut sight = self.gossip.sight();
        let found = tokio::time::timeout(LONG, sight.wait_for(test)).await;
        found.unwrap_or_else(|_| panic!("{what}")).expect("gossip lives").clone()
    }
}

#[tokio::test]
async fn ten_peers_agree_and_a_change_reaches_all() {
    let mesh = TestMesh::new(10, 25);
    let mut peers: Vec<_> = (0..10).map(|n| mesh.boot(n, 1)).collect();
    for (n, p) in peers.iter_mut().enumerate() {
        p.until_build((0..10).filter(|&o| o != n), "boot 1").await;
    }
    let changed = Facet::Build(BuildReport { version: "two".into(), wire: 2 });
    peers[3].gossip.publish(&changed).expect("sane");
    for (n, p) in peers.iter_mut().enumerate().filter(|(n, _)| *n != 3) {
        p.until_build([3], "two").await;
        p.until_sight("all alive", |s| s.values().filter(|s| s.phi_alive).count() == 9).await;
        assert_eq!(p.gossip.counters()["gossip_dropped_forged"], 0, "peer {n}");
    }
}

#[tokio::test]
async fn a_restart_storm_leaves_one_incarnation_of_each_in_sight() {
    let mesh = TestMesh::new(5, 20);
    let mut peers: Vec<_> = (0..5).map(|n| mesh.boot(n, 1)).collect();
    for p in &mut peers {
        p.until_sight("all alive", |s| s.values().filter(|s| s.phi_alive).count() == 4).await;
    }
    for boot in 2..8 {
        for (n, old) in peers.iter_mut().enumerate().skip(1) {
            mesh.kill(n, old);
            *old = mesh.boot(n, boot);
        }
        // Everybody hears at least the witness of this round before the next crash.
        peers[0].until_build(1..5, &format!("boot {boot}")).await;
    }
    for p in &mut peers {
        let newest = |s: &Sighting| s.phi_alive && (s.generation >> 16 == 7 || s.generation >> 16 == 1);
        p.until_sight("the newest of each alive", |s| s.len() == 4 && s.values().all(newest)).await;
    }
    // A change still travels although the dead were the majority of all nodes known.
    let changed = Facet::Build(BuildReport { version: "after".into(), wire: 1 });
    peers[1].gossip.publish(&changed).expect("sane");
    peers[4].until_build([1], "after").await;
}

#[tokio::test]
async fn a_dead_peer_is_noticed_and_comes_back_after_it_was_forgotten() {
    let mesh = TestMesh::new(3, 20);
    let mut peers: Vec<_> = (0..3).map(|n| mesh.boot(n, 1)).collect();
    for p in &mut peers {
        p.until_sight("all alive", |s| s.values().filter(|s| s.phi_alive).count() == 2).await;
    }
    mesh.board.cut.lock().expect("no panic").insert(peer(2));
    peers[0].until_sight("2 looks dead", |s| s.get(&peer(2)).is_some_and(|s| !s.phi_alive)).await;
    peers[0].until_sight("2 is forgotten", |s| !s.contains_key(&peer(2))).await;
    peers[1].until_sight("2 is forgotten", |s| !s.contains_key(&peer(2))).await;
    // The same incarnation, longer away than the grace period.
    mesh.board.cut.lock().expect("no panic").clear();
    let changed = Facet::Build(BuildReport { version: "back".into(), wire: 1 });
    peers[2].gossip.publish(&changed).expect("sane");
    for p in &mut peers[..2] {
        p.until_build([2], "back").await;
        p.until_sight("2 is back", |s| s.get(&peer(2)).is_some_and(|s| s.phi_alive)).await;
    }
}

#[tokio::test]
async fn a_generation_used_twice_is_noticed_and_left() {
    let mesh = TestMesh::new(2, 20);
    let (mut a, b) = (mesh.boot(0, 1), mesh.boot(1, 5));
    for cpu_milli in 0..20 {
        b.gossip.publish(&Facet::Health(HealthReport { cpu_milli, ..Default::default() })).expect("sane");
    }
    a.until_build([1], "boot 5").await;
    mesh.kill(1, &b);
    // The same boot number again: its new keys would stay below the versions that `a` holds.
    let again = mesh.boot(1, 5);
    again.gossip.publish(&Facet::Build(BuildReport { version: "again".into(), wire: 1 })).expect("sane");
    a.until_build([1], "again").await;
}

#[tokio::test]
async fn a_newcomer_is_found_and_a_removed_member_is_not_heard() {
    let mut mesh = TestMesh::new(2, 20);
    let (mut a, b) = (mesh.boot(0, 1), mesh.boot(1, 1));
    a.until_build([1], "boot 1").await;
    mesh.admit(2);
    let mut c = mesh.boot(2, 1);
    a.until_build([2], "boot 1").await;
    c.until_build([0, 1], "boot 1").await;
    let mut list = (**mesh.members.borrow()).clone();
    let mut gone = list.member(&peer(1)).cloned().expect("a member");
    (gone.generation, gone.removed) = (2, true);
    list.merge(SignedEntry::sign(gone, &mesh.ca).expect("sane"));
    mesh.members.send_replace(Arc::new(list));
    b.gossip.publish(&Facet::Build(BuildReport { version: "from outside".into(), wire: 1 })).expect("sane");
    a.until_sight("1 fades", |s| !s.get(&peer(1)).is_some_and(|s| s.phi_alive)).await;
    while let Ok(batch) = a.heard.try_recv() {
        assert!(batch.iter().all(|h| h.peer != peer(1)), "{batch:?}");
    }
}

/// About 10 MB of other people's state must not keep a quiet node's one small key from arriving.
#[tokio::test]
async fn quiet_nodes_are_not_starved_by_big_ones() {
    let mesh = TestMesh::new(12, 25);
    let mut peers: Vec<_> = (0..11).map(|n| mesh.boot(n, 1)).collect();
    let fill = |p: &TestPeer, salt: u64| {
        let mut rng = Rng::new(salt);
        let noise = |rng: &mut Rng| {
            let name = |rng: &mut Rng| (0..30).map(|_| format!("{:016x}", rng.u64())).collect();
            let items = (0..28).map(|_| Item { name: name(rng), size: crate::base::Bytes(1) }).collect();
            Inventory { items, more: 0 }
        };
        p.gossip.publish(&Facet::Data(noise(&mut rng))).expect("sane");
        p.gossip.publish(&Facet::Images(noise(&mut rng))).expect("sane");
    };
    (0..10).for_each(|n| fill(&peers[n], n as u64));
    peers[0].until_build([10], "boot 1").await;
    for round in 0..5 {
        (1..10).for_each(|n| fill(&peers[n], 100 * round + n as u64));
        let quiet = Facet::Build(BuildReport { version: format!("quiet {round}"), wire: 1 });
        peers[10].gossip.publish(&quiet).expect("sane");
        peers[0].until_build([10], &format!("quiet {round}")).await;
    }
    // A newcomer has all of it to load first, and still hears of everybody.
    let mut late = mesh.boot(11, 1);
    late.until_build(0..10, "boot 1").await;
    late.until_build([10], "quiet 4").await;
}

/// If this fails after an upgrade, the trap is gone upstream and its guard here may go too.
#[test]
fn the_pinned_chitchat_still_panics_on_a_key_that_is_not_ascii() {
    let config = GossipConfig::new(MESH, peer(0), 1, 0);
    let id = ChitchatId::new("p0", 1, pseudo_addr("p0"));
    let (_, seeds) = watch::channel(Default::default());
    let mut chitchat = chitchat::Chitchat::with_chitchat_id_and_seeds(config.chitchat(id), seeds, Vec::new());
    let set = std::panic::AssertUnwindSafe(|| chitchat.self_node_state().set("é", "x"));
    assert!(std::panic::catch_unwind(set).is_err());
    assert!(!facet::key_is_sane("é"));
}
