//! Meshes of real endpoints on loopback, in one process.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time")]

use std::net::SocketAddr;

use super::*;
use crate::base::{Span, StoreId, WallTime};
use crate::model::report::{BuildReport, HealthReport, Liveness, QueueReport};
use crate::runtime::members::{Candidate, MemoryKv};
use crate::runtime::tokens::{IssuerParts, JoinError, Joiner, TokenBook, TokenIssuer, join};
use crate::transport::{Identity, Incoming, NetConfig};

const LONG: Duration = Duration::from_secs(60);
const LIFETIME: Span = Span::secs(86_400);

struct Node {
    name: PeerName,
    net: Net,
    mesh: Mesh,
    identity: Arc<Identity>,
    issuer: Arc<TokenIssuer>,
    cancel: CancellationToken,
    tracker: TaskTracker,
    folder: tempfile::TempDir,
}

fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a label")
}
fn store(of: &PeerName) -> StoreId {
    let mut id = [0; 16];
    id[..of.as_str().len().min(16)].copy_from_slice(of.as_str().as_bytes());
    StoreId(id)
}
fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}
fn clocks() -> NowFn {
    let start = std::time::Instant::now();
    Arc::new(move || {
        let us = start.elapsed().as_micros() as u64;
        Now { mono: Instant(us), wall: WallTime(1_790_000_000_000 + us / 1_000) }
    })
}

fn net_config(of: &PeerName, boot: u64) -> NetConfig {
    let ms = Span::millis;
    NetConfig {
        idle_timeout: ms(3_000),
        keep_alive: ms(500),
        dial_stagger: ms(50),
        backoff_min: ms(50),
        backoff_max: ms(500),
        linger: ms(300),
        probe_every: Span::ZERO,
        ..NetConfig::new(loopback(), store(of), boot)
    }
}

impl Node {
    /// Starts a mesh of one.
    async fn first(text: &str) -> Self {
        let (name, folder) = (name(text), tempfile::tempdir().expect("a folder"));
        let identity = Arc::new(Identity::create_mesh(folder.path(), &name, LIFETIME).expect("made"));
        let members =
            Arc::new(Members::load(Arc::new(MemoryKv::default()), identity.ca_public()).expect("empty"));
        let me = Candidate {
            name: name.clone(),
            store: store(&name),
            addresses: vec![],
            public_key: identity.public(),
            witness: false,
            can_admit: true,
        };
        members.admit(me, &*identity).expect("the first of its mesh");
        Self::run(folder, identity, members, 1)
    }

    async fn join(text: &str, at: &Node, token: &str) -> Result<Self, JoinError> {
        let (name, folder) = (name(text), tempfile::tempdir().expect("a folder"));
        let joiner = Joiner {
            token,
            addr: at.net.local_addr(),
            folder: folder.path(),
            name: &name,
            store: store(&name),
            addresses: vec![],
            witness: false,
            lifetime: LIFETIME,
        };
        let joined = join(joiner).await?;
        let identity = Arc::new(joined.identity);
        let members =
            Arc::new(Members::load(Arc::new(MemoryKv::default()), identity.ca_public()).expect("empty"));
        members.offer(joined.lines).expect("a store");
        Ok(Self::run(folder, identity, members, 1))
    }

    fn run(folder: tempfile::TempDir, identity: Arc<Identity>, members: Arc<Members>, boot: u64) -> Self {
        let name = identity.name().clone();
        let roster = Roster::new(members.clone());
        let bound = Net::bind(net_config(&name, boot), identity.clone(), roster.clone(), roster.clone());
        let (net, mut incoming) = bound.expect("a free port");
        members.readdress(&name, vec![net.local_addr().to_string()], &*identity).expect("own line");
        let now = clocks();
        let mut gossip = GossipConfig::new(identity.mesh(), name.clone(), boot, name.as_str().len() as u64);
        (gossip.fast, gossip.slow) = (Duration::from_millis(100), Duration::from_millis(400));
        let rules = Rules { suspect_after: Span::millis(500), lost_after: Span::secs(4) };
        let config = MeshConfig { rules, links_every: Duration::from_millis(500), ..MeshConfig::new(gossip) };
        let parts = MeshParts {
            link: Arc::new(net.clone()),
            signer: identity.clone(),
            members: members.clone(),
            roster,
            now: now.clone(),
        };
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let mesh = Mesh::start(config, parts, &tracker, cancel.clone());
        let book = TokenBook::load(Arc::new(MemoryKv::default()), now()).expect("empty");
        let issuer =
            Arc::new(TokenIssuer::new(IssuerParts { identity: identity.clone(), members, book, now }));
        net.set_join_handler(Some(issuer.clone()));
        let pump = mesh.clone();
        tracker.spawn(async move {
            while let Some(arrived) = incoming.recv().await {
                match arrived {
                    Incoming::Gossip { from, via, bytes } => drop(pump.receive(from, via.as_ref(), bytes)),
                    Incoming::Flash { origin, flash, .. } => pump.note_flash(&origin, &flash),
                    _ => {}
                }
            }
        });
        mesh.publish(Facet::Build(BuildReport { version: name.to_string(), wire: 1 })).expect("sane");
        Self { name, net, mesh, identity, issuer, cancel, tracker, folder }
    }

    fn token(&self) -> String {
        self.issuer.create(Span::secs(60), true).expect("a token")
    }

    async fn until(&self, what: &str, test: impl FnMut(&Arc<View>) -> bool) -> Arc<View> {
        let mut view = self.mesh.view();
        let found = tokio::time::timeout(LONG, view.wait_for(test)).await.map(|v| v.map(|v| v.clone()));
        match found {
            Ok(Ok(view)) => view,
            _ => panic!("{} waits for: {what}; sees {:?}", self.name, self.mesh.view().borrow()),
        }
    }

    /// Starts again on the same disk, as the next boot, at another port.
    async fn restart(self, boot: u64) -> Self {
        let (identity, members) = (self.identity.clone(), self.mesh.members().clone());
        let folder = self.stop().await;
        Self::run(folder, identity, members, boot)
    }

    /// Ends every task of the node within a bound.
    async fn stop(self) -> tempfile::TempDir {
        self.cancel.cancel();
        self.net.shutdown(Span::millis(200)).await;
        self.tracker.close();
        tokio::time::timeout(LONG, self.tracker.wait()).await.expect("every task ends");
        self.folder
    }
}

/// A mesh of n, joined one after the other, each through the newest member.
async fn mesh_of(n: usize) -> Vec<Node> {
    let mut nodes = vec![Node::first("n0").await];
    for i in 1..n {
        let at = &nodes[i - 1];
        nodes.push(Node::join(&format!("n{i}"), at, &at.token()).await.expect("a good token"));
    }
    for node in &nodes {
        node.until("everybody alive, with a report", |v| all_alive(v, n)).await;
    }
    nodes
}

fn all_alive(view: &View, n: usize) -> bool {
    let said = |m: &crate::model::report::MemberView| {
        let build = m.report.as_ref().and_then(|r| r.build.as_ref());
        m.liveness == Liveness::Alive && build.is_some_and(|b| b.version == m.peer.as_str())
    };
    view.members.len() == n && view.members.values().all(said) && !view.isolated
}

fn liveness(view: &View, of: &str) -> Option<Liveness> {
    view.members.get(&name(of)).map(|m| m.liveness)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_peers_join_by_token_and_agree() {
    let nodes = mesh_of(5).await;
    for (i, node) in nodes.iter().enumerate() {
        let queue = QueueReport { running: i as u32 + 1, ..QueueReport::default() };
        node.mesh.publish(Facet::Queue(queue)).expect("sane");
    }
    let running =
        |v: &View| v.members.values().filter_map(|m| Some(m.report.as_ref()?.queue.as_ref()?.running)).sum();
    for node in &nodes {
        node.until("the queues of all", |v| {
            let sum: u32 = running(v);
            sum == 15
        })
        .await;
        node.until("links among others", |v| {
            v.members.values().all(|m| m.report.as_ref().is_some_and(|r| !r.links.is_empty()))
        })
        .await;
    }
    let hashes: BTreeSet<_> = nodes.iter().map(|n| n.mesh.members().list().hash()).collect();
    assert_eq!(hashes.len(), 1, "one member list");
    // A token is good once, and one name has one holder.
    let token = nodes[2].token();
    let sixth = Node::join("n5", &nodes[2], &token).await.expect("a good token");
    assert!(
        matches!(Node::join("n6", &nodes[2], &token).await, Err(JoinError::Refused(why)) if why.contains("used"))
    );
    let taken = Node::join("n1", &nodes[2], &nodes[2].token()).await;
    assert!(matches!(taken, Err(JoinError::Refused(why)) if why.contains("exists")));
    nodes[0].until("the sixth", |v| all_alive(v, 6)).await;
    sixth.stop().await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_cut_off_is_suspect_then_lost_and_calls_nobody_lost() {
    let nodes = mesh_of(4).await;
    let (cut, rest) = nodes.split_last().expect("four");
    let views = cut.mesh.view();
    let never_lost = tokio::spawn(async move {
        let mut views = views;
        while views.changed().await.is_ok() {
            let view = views.borrow_and_update().clone();
            if view.members.values().any(|m| m.liveness == Liveness::Lost) {
                return Some(view);
            }
        }
        None
    });
    for node in rest {
        node.net.block(&cut.name);
        cut.net.block(&node.name);
    }
    rest[0].until("suspect first", |v| liveness(v, "n3") == Some(Liveness::Suspect)).await;
    cut.until("isolation", |v| v.isolated).await;
    for node in rest {
        let view = node.until("then lost", |v| liveness(v, "n3") == Some(Liveness::Lost)).await;
        assert!(!view.isolated);
        assert_eq!(liveness(&view, "n0"), Some(Liveness::Alive));
    }
    for node in rest {
        node.net.unblock(&cut.name);
        cut.net.unblock(&node.name);
    }
    for node in &nodes {
        node.until("healed", |v| all_alive(v, 4)).await;
    }
    // It stops first: who says goodbye is lost, too.
    let mut nodes = nodes;
    nodes.pop().expect("four").stop().await;
    assert_eq!(never_lost.await.expect("no panic"), None, "the isolated one called somebody lost");
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flashes_reach_the_view_at_once_and_only_from_whom_they_concern() {
    let nodes = mesh_of(3).await;
    nodes[1].net.flash(Flash::Drain { cluster: nodes[1].name.clone(), draining: true });
    nodes[0].until("draining", |v| v.members[&name("n1")].draining).await;
    let queue = QueueReport { running: 77, ..QueueReport::default() };
    nodes[1].net.flash(Flash::Capacity { cluster: nodes[1].name.clone(), queue: queue.clone() });
    nodes[2]
        .until("the queue", |v| {
            v.members[&name("n1")]
                .report
                .as_ref()
                .and_then(|r| r.queue.as_ref())
                .is_some_and(|q| q.running == 77)
        })
        .await;
    // Somebody else's goodbye, or figures, are nobody's to give; the events are taken in this order.
    let (n0, n1, n2) = (&nodes[0], &nodes[1].name, &nodes[2].name);
    n0.until("the queue too", |v| {
        v.members[n1].report.as_ref().is_some_and(|r| r.queue.as_ref() == Some(&queue))
    })
    .await;
    n0.mesh.note_flash(n2, &Flash::Leaving { peer: n1.clone() });
    n0.mesh.note_flash(n2, &Flash::Capacity { cluster: n1.clone(), queue: QueueReport::default() });
    nodes[2].net.flash(Flash::Leaving { peer: n2.clone() });
    let view = n0.until("its own goodbye", |v| liveness(v, "n2") == Some(Liveness::Lost)).await;
    assert_eq!(liveness(&view, "n1"), Some(Liveness::Alive));
    assert_eq!(view.members[n1].report.as_ref().and_then(|r| r.queue.clone()), Some(queue));
    assert_eq!(n0.mesh.counters()["mesh_flashes_refused"], 2);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_is_cut_off_also_by_those_who_hear_of_it_later() {
    let nodes = mesh_of(4).await;
    // n3 cannot hear the one that removes, nor the one that is removed, but n2.
    nodes[0].net.block(&nodes[3].name);
    nodes[3].net.block(&nodes[0].name);
    nodes[0].mesh.members().remove(&name("n1"), &*nodes[0].identity).expect("a member");
    for node in [&nodes[0], &nodes[2], &nodes[3]] {
        node.until("the list without it", |v| !v.members.contains_key(&name("n1"))).await;
        let mut connected = node.net.watch_connected();
        let gone = connected.wait_for(|c| !c.contains(&name("n1")));
        tokio::time::timeout(LONG, gone).await.expect("its link is closed").expect("the endpoint lives");
    }
    let mut alone = nodes[1].net.watch_connected();
    tokio::time::timeout(LONG, alone.wait_for(|c| c.is_empty()))
        .await
        .expect("nobody talks to it")
        .expect("lives");
    // Its name is free again, for another disk and key.
    let again = Node::join("n1", &nodes[2], &nodes[2].token()).await.expect("a good token");
    nodes[0]
        .until("the new holder of the name", |v| {
            v.members.get(&name("n1")).is_some_and(|m| m.liveness == Liveness::Alive && m.report.is_some())
        })
        .await;
    again.stop().await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_is_found_at_its_new_address_with_its_new_reports() {
    let mut nodes = mesh_of(3).await;
    for boot in 2..5 {
        let node = nodes.remove(1).restart(boot).await;
        let health = HealthReport { boot, ..HealthReport::default() };
        node.mesh.publish(Facet::Health(health)).expect("sane");
        nodes.insert(1, node);
        for node in &nodes {
            node.until("the new life", |v| {
                let health = v.members[&name("n1")].report.as_ref().and_then(|r| r.health.as_ref());
                all_alive(v, 3) && health.is_some_and(|h| h.boot == boot)
            })
            .await;
        }
    }
    for node in nodes {
        node.stop().await;
    }
}
