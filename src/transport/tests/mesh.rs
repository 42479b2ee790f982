//! What honest peers do together.

use super::*;
use crate::core::api::Flash;
use crate::transport::flash;
use crate::transport::link::Link;

fn quick(config: &mut NetConfig) {
    config.dial_stagger = Span::millis(200);
}

/// Reads a request's stream to its end and sends it back with its head before it.
async fn echo(incoming: Incoming) -> (PeerName, Option<PeerName>) {
    let Incoming::Request { from, via, head, mut send, mut recv } = incoming else { panic!("{incoming:?}") };
    let body = recv.read_to_end(1 << 20).await.expect("the body");
    send.write_all(&[head, body].concat()).await.expect("writes");
    send.finish().expect("open");
    (from, via)
}

async fn ask(net: &Net, to: &PeerName, body: &[u8]) -> Vec<u8> {
    let (mut send, mut recv) = net.open(to, b"head:".to_vec()).await.expect("opens");
    send.write_all(body).await.expect("writes");
    send.finish().expect("open");
    recv.read_to_end(1 << 20).await.expect("the answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_link_and_talk() {
    let mesh = Mesh::new(quick);
    let [a, mut b, c] = mesh.peers();
    for peer in [&a, &b, &c] {
        peer.linked(2).await;
    }
    let sent: Vec<Message> = (0..100).map(message).collect();
    assert!(a.net.send_core(b.name(), sent.clone()));
    let mut heard = Vec::new();
    while heard.len() < sent.len() {
        let Incoming::Core { from, via: None, messages } = b.next().await else { panic!("not core") };
        assert_eq!(&from, a.name());
        heard.extend(messages);
    }
    assert_eq!(heard, sent);
    assert!(a.net.send_gossip(b.name(), vec![7; 60_000].into()));
    let Incoming::Gossip { from, via: None, bytes } = b.next().await else { panic!("not gossip") };
    assert_eq!((from, bytes.len()), (a.name().clone(), 60_000));
    assert!(!a.net.send_gossip(b.name(), vec![7; 200_000].into()), "too large");

    let to = b.name().clone();
    let (answer, who) = tokio::join!(ask(&c.net, &to, &[1; 100_000]), async { echo(b.next().await).await });
    assert_eq!(answer.len(), 100_005);
    assert_eq!(who, (c.name().clone(), None));
    assert!(matches!(a.net.open(&to, vec![0; 70_000]).await, Err(NetError::TooLarge { .. })));
    assert!(matches!(a.net.open(&name("nobody"), vec![]).await, Err(NetError::Unreachable(_))));
    assert!(!a.net.send_core(&name("nobody"), vec![message(1)]));
    assert_eq!(a.count("shed_core"), 1);

    assert!(b.net.send_core(b.name(), vec![message(9)]), "to itself");
    assert!(matches!(b.next().await, Incoming::Core { from, .. } if from == to));
    for peer in [&a, &b, &c] {
        assert_eq!((peer.count("garbage"), peer.count("links_down")), (0, 0));
    }
    for peer in [&a, &b, &c] {
        peer.net.shutdown(Span::secs(5)).await;
        assert!(peer.net.shared.tracker.is_empty(), "every task has ended");
    }
    assert!(matches!(a.net.open(&to, vec![]).await, Err(NetError::Stopping)));
}

fn look(n: u8) -> Flash {
    Flash::Look { job: JobId([n; 20]) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_reaches_sixteen_once() {
    let mesh = Mesh::new(quick);
    let mut peers: [Peer; 16] = mesh.peers();
    for peer in &peers {
        peer.linked(15).await;
    }
    let origin = peers[3].name().clone();
    peers[3].net.flash(look(1));
    peers[3].net.flash(look(2));
    for (i, peer) in peers.iter_mut().enumerate().filter(|(i, _)| *i != 3) {
        let mut heard = Vec::new();
        for _ in 0..2 {
            let Incoming::Flash { origin: from, flash, .. } = peer.next().await else {
                panic!("not a flash")
            };
            assert_eq!(from, origin);
            heard.push(flash);
        }
        heard.sort_by_key(|f| *f == look(2));
        assert_eq!(heard, [look(1), look(2)], "peer {i}");
    }
    // A second copy is told apart from the first.
    let total = |peers: &[Peer], counter: &str| peers.iter().map(|peer| peer.count(counter)).sum::<u64>();
    let (shared, links) = (peers[3].net.shared.clone(), peers[3].net.shared.pool.links());
    let frame = flash::frame(&shared, look(3));
    for _ in 0..2 {
        flash::push(&shared, &frame, &links);
    }
    for peer in peers.iter_mut().filter(|peer| *peer.name() != origin) {
        assert!(matches!(peer.next().await, Incoming::Flash { flash, .. } if flash == look(3)));
    }
    // More of them while not everybody has heard yet whom the origin reaches.
    eventually("copies arrive", || total(&peers, "flash_repeated") >= 15).await;
    for peer in &mut peers {
        assert!(peer.incoming.try_recv().is_none(), "{} heard it twice", peer.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_costs_one_message_each_where_everybody_is_linked() {
    let mesh = Mesh::new(quick);
    let mut peers: [Peer; 8] = mesh.peers();
    for peer in &peers {
        peer.linked(7).await;
    }
    let all: BTreeSet<_> = peers.iter().map(|peer| peer.name().clone()).collect();
    for peer in &peers {
        let says_all = |link: &Arc<Link>| lock(&link.reach).len() == all.len() - 1;
        eventually("everybody says that it reaches all", || {
            peer.net.shared.pool.links().iter().all(says_all)
        })
        .await;
    }
    let shared = peers[0].net.shared.clone();
    let (frame, links) = (flash::frame(&shared, look(1)), shared.pool.links());
    let sent = links.iter().map(|link| (link.clone(), link.acks())).collect();
    flash::push(&shared, &frame, &links);
    for peer in &mut peers[1..] {
        assert!(matches!(peer.next().await, Incoming::Flash { .. }));
    }
    flash::confirm(shared, frame, sent).await;
    let total = |counter: &str| peers.iter().map(|peer| peer.count(counter)).sum::<u64>();
    assert_eq!((total("flash_forwarded"), total("flash_repeated"), total("flash_detours")), (0, 0, 0));
}

/// Both links of the pair still stand; what is sent on them is not acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_gets_round_a_pair_that_was_cut_without_a_word() {
    let mesh = Mesh::new(quick);
    let [a, mut b, c] = mesh.peers();
    for peer in [&a, &b, &c] {
        peer.linked(2).await;
    }
    let to = b.name().clone();
    eventually("a knows who reaches b", || a.net.reached_through(&to) == [c.name().clone()]).await;
    let (shared, link) = (a.net.shared.clone(), a.net.shared.pool.link(&to).expect("linked"));
    let frame = flash::frame(&shared, look(1));
    flash::confirm(shared, frame, vec![(link, u64::MAX)]).await;
    let heard = b.next().await;
    assert!(
        matches!(heard, Incoming::Flash { from, origin, .. } if from == *c.name() && origin == *a.name())
    );
    assert_eq!((a.count("flash_detours"), c.count("flash_forwarded")), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_pair_goes_through_a_third() {
    let mesh = Mesh::new(quick);
    let [mut a, mut b, c] = mesh.peers();
    for peer in [&a, &b, &c] {
        peer.linked(2).await;
    }
    a.net.block(b.name());
    a.linked(1).await;
    b.linked(1).await;
    let (to, from) = (b.name().clone(), a.name().clone());
    eventually("a knows who reaches b", || a.net.reached_through(&to) == [c.name().clone()]).await;
    eventually("b knows who reaches a", || b.net.reached_through(&from) == [c.name().clone()]).await;
    eventually("b is called in vain", || !b.net.troubles().is_empty()).await;

    let through = Some(c.name().clone());
    assert!(a.net.send_core(&to, vec![message(1), message(2)]));
    match b.next().await {
        Incoming::Core { from: who, via, messages } => {
            assert_eq!((who, via, messages), (from.clone(), through.clone(), vec![message(1), message(2)]));
        }
        other => panic!("{other:?}"),
    }
    assert!(b.net.send_gossip(&from, vec![5; 10].into()));
    assert!(matches!(a.next().await, Incoming::Gossip { from, via, .. } if from == to && via == through));
    let (answer, who) = tokio::join!(ask(&a.net, &to, &[1; 300_000]), async { echo(b.next().await).await });
    assert_eq!((answer.len(), who), (300_005, (from.clone(), through)));
    assert_eq!(c.count("relayed_requests"), 1);
    assert_eq!(c.count("relayed_frames"), 2);
    // Flash finds its way round as well.
    a.net.flash(Flash::Suspect { cluster: to.clone() });
    assert!(
        matches!(b.next().await, Incoming::Flash { from: who, origin, .. } if origin == from && who == *c.name())
    );
    // A relay that loses the far side says so, and nothing hangs.
    c.net.block(&to);
    eventually("nobody reaches b", || a.net.reached_through(&to).is_empty()).await;
    assert!(matches!(a.net.open(&to, vec![]).await, Err(NetError::Unreachable(_))));
    assert!(!a.net.send_core(&to, vec![message(3)]));
    a.net.unblock(&to);
    a.linked(2).await;
    assert!(a.net.send_core(&to, vec![message(4)]));
    assert!(matches!(b.next().await, Incoming::Core { via: None, .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_comes_back_with_a_new_boot() {
    let mesh = Mesh::new(quick);
    let [mut a, b] = mesh.peers();
    a.linked(1).await;
    b.linked(1).await;
    let (b_name, a_name) = (b.name().clone(), a.name().clone());
    // It does not say goodbye: the old link still stands on the other side when the new start calls.
    let again = Identity::open(b.folder.path(), LIFETIME).expect("opens");
    let folder = tempfile::tempdir().expect("temp");
    let b2 = mesh.start(again, folder, 1, 2);
    b2.net.set_members(vec![a_name.clone(), b_name.clone()]);
    b2.linked(1).await;
    eventually("the old start is dropped", || a.net.shared.pool.link(&b_name).is_some_and(|l| l.boot == 2))
        .await;
    assert!(b2.net.send_core(&a_name, vec![message(1)]));
    assert!(matches!(a.next().await, Incoming::Core { from, .. } if from == b_name));
    b2.net.flash(Flash::Leaving { peer: b_name.clone() });
    assert!(matches!(a.next().await, Incoming::Flash { .. }), "its sequence begins anew");
    // The old process is told, and does not push the new one out.
    eventually("the old start is refused", || {
        b.net.troubles().iter().any(|(_, why)| why.contains("has started again"))
    })
    .await;
    assert_eq!(a.net.shared.pool.link(&b_name).expect("linked").boot, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_change_and_no_link_drops() {
    fn often(config: &mut NetConfig) {
        config.upkeep_every = Span::millis(50);
    }
    let mesh = Mesh::living(often, Span::secs(6));
    let a = mesh.peer("a", 1);
    let (identity, folder) = mesh.identity("b", false);
    let (late, late_folder) = mesh.identity("c", false);
    for (peer, disk) in [("b", 2), ("c", 3)] {
        lock(&mesh.book.stores).insert(name(peer), store(disk));
    }
    let (b, c) = (mesh.start(identity, folder, 2, 1), mesh.start(late, late_folder, 3, 1));
    let members: Vec<PeerName> = ["a", "b", "c"].map(name).to_vec();
    for peer in [&a, &b, &c] {
        peer.net.set_members(members.clone());
    }
    for peer in [&a, &b, &c] {
        peer.linked(2).await;
    }
    let first = (a.net.identity().validity().1, b.net.identity().validity().1);
    let id = |peer: &Peer, to: &str| peer.net.shared.pool.link(&name(to)).map(|l| l.connection.stable_id());
    let before = id(&a, "b").expect("linked");
    // a holds the mesh's key and renews by itself; b is given new ones; c goes without.
    eventually("b's are due", || b.net.identity().renewal_due(crate::base::WallTime(certs::now()))).await;
    let issued = a.net.identity().sign(&b.net.identity().public(), b.name()).expect("signs");
    b.net.install(issued).expect("takes them");
    eventually("a renews", || a.count("renewals") > 0).await;
    assert!(a.net.identity().validity().1 > first.0);
    eventually("c's run out", || certs::now() > c.net.identity().validity().1.0).await;
    a.linked(1).await;
    b.linked(1).await;
    assert!(certs::now() > first.1.0, "the first ones have run out");
    assert_eq!(id(&a, "b"), Some(before), "the same connection as before");
    // New handshakes show the new ones.
    let d = mesh.peer("d", 4);
    d.net.set_members(vec![name("a"), name("b")]);
    d.linked(2).await;
    let good_until = d.net.shared.pool.link(&name("a")).expect("linked");
    assert!(!good_until.expired(first.0.0 + 1));
}
