//! Which links stand, how full they get, what is measured on them.

use super::*;
use crate::transport::link::close;
use crate::transport::wire::FlashFrame;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_call_at_once_keep_one_connection() {
    fn both(config: &mut NetConfig) {
        config.dial_stagger = Span::ZERO;
        config.linger = Span::millis(400);
    }
    let mesh = Mesh::new(both);
    let mut peers: [Peer; 4] = mesh.peers();
    for peer in &peers {
        peer.linked(3).await;
    }
    let links = |peer: &Peer| peer.net.shared.pool.all_links();
    eventually("the losers are gone", || peers.iter().all(|peer| links(peer).len() == 3)).await;
    // A link is counted a moment after it is there.
    let counted = || peers.iter().map(|peer| peer.count("links_up")).sum::<u64>();
    eventually("both ends count each link", || counted() >= 12).await;
    for peer in &peers {
        for link in links(peer) {
            let other = peers.iter().find(|other| *other.name() == link.peer).expect("a peer");
            let back = links(other).into_iter().find(|back| back.peer == *peer.name()).expect("both ways");
            assert_ne!(back.dialled, link.dialled, "both ends hold the same one");
            let address = other.net.local_addr();
            assert_eq!(link.connection.remote_address(), address);
        }
    }
    let to = peers[1].name().clone();
    assert!(peers[0].net.send_core(&to, vec![message(1)]));
    assert!(matches!(peers[1].next().await, Incoming::Core { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_holds_up_nobody() {
    fn small(config: &mut NetConfig) {
        config.outbox_bytes = 1 << 20;
        config.inbox_bytes = 1 << 20;
    }
    let mesh = Mesh::new(small);
    let [a, mut b] = mesh.peers();
    a.linked(1).await;
    let (to, big) = (b.name().clone(), vec![message(1); 5_000]);
    // The runtime at b reads nothing: queues fill on both sides, then a sheds and never waits.
    let mut sent = 0u64;
    eventually("the queue fills", || {
        let taken = a.net.send_core(&to, big.clone());
        sent += u64::from(taken) * big.len() as u64;
        !taken
    })
    .await;
    assert!(a.count("shed_core") >= big.len() as u64);
    for _ in 0..10 {
        a.net.send_gossip(&to, vec![0; 1_000].into());
    }
    assert_eq!(a.net.connected(), [to]);
    // What was taken arrives once b reads again.
    let mut heard = 0;
    while heard < sent {
        match b.next().await {
            Incoming::Core { messages, .. } => heard += messages.len() as u64,
            Incoming::Gossip { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heard, sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_are_measured() {
    fn probing(config: &mut NetConfig) {
        config.probe_every = Span::millis(100);
        config.probe_share_milli = 500;
        config.upkeep_every = Span::millis(20);
    }
    let mesh = Mesh::new(probing);
    let [a, b] = mesh.peers();
    a.linked(1).await;
    eventually("both are measured", || {
        [&a, &b].iter().all(|peer| peer.net.links().iter().any(|link| link.bandwidth_bps.is_some()))
    })
    .await;
    let sample = a.net.links().remove(0);
    assert_eq!((&sample.to, sample.direct), (b.name(), true));
    assert!(sample.rtt_us > 0 && sample.loss_ppm <= 1_000_000);
    assert!(sample.bandwidth_bps.is_some_and(|bps| bps > 1_000_000), "{sample:?}");
    // Probes fill a link until something overflows, here the socket's buffer. The link itself loses nothing.
    let sent = |peer: &Peer| {
        peer.net.shared.pool.all_links().iter().map(|l| l.connection.stats().path.sent_packets).sum::<u64>()
    };
    eventually("many packets were sent", || sent(&a) > 2_000).await;
    let loss_ppm = a.net.links()[0].loss_ppm;
    assert!(loss_ppm < 10_000, "{loss_ppm}");
    a.net.note_transfer(b.name(), u64::MAX / 8, Span::secs(1));
    assert!(a.net.links()[0].bandwidth_bps > sample.bandwidth_bps);
    b.net.shutdown(Span::secs(5)).await;
    a.linked(0).await;
    let after = a.net.links().remove(0);
    assert!(!after.direct && after.bandwidth_bps.is_some(), "what was known is kept: {after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_name_on_another_disk_is_refused_with_the_reason() {
    let mesh = Mesh::new(|_| {});
    let [a, b] = mesh.peers();
    a.linked(1).await;
    let (identity, folder) = mesh.identity("p01", true);
    let address = b.net.local_addr();
    let impostor = mesh.start(identity, folder, 99, 7);
    lock(&mesh.book.addresses).insert(name("p01"), address);
    // Its own admission knows the right disk of p01 only by name, and it calls itself p01.
    impostor.net.set_members(vec![name("p00"), name("p01")]);
    eventually("it is told why", || {
        impostor
            .net
            .troubles()
            .iter()
            .any(|(peer, why)| *peer == name("p00") && why.contains("p01 was admitted with another disk"))
    })
    .await;
    assert!(a.count("refused") > 0);
    assert_eq!((a.net.connected(), a.count("links_down")), (vec![name("p01")], 0));
    // A member that is removed loses its link.
    lock(&mesh.book.stores).remove(&name("p01"));
    a.net.set_members(vec![name("p00")]);
    a.linked(0).await;
    eventually("and hears why", || {
        b.net.troubles().iter().any(|(_, why)| why.contains("p01 is not a member"))
    })
    .await;
}

fn flash(origin: &str, sequence: u64, stamp_ms: u64, hops: u8) -> Vec<u8> {
    let frame = FlashFrame {
        origin: name(origin),
        incarnation: 1,
        sequence,
        hops,
        stamp_ms,
        left_ms: 60_000,
        flash: crate::core::api::Flash::Leaving { peer: name(origin) },
    };
    codec::frame(Kind::Flash, &codec::encode(&frame).expect("writes")).expect("fits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_that_comes_late_is_dropped() {
    let mesh = Mesh::new(|_| {});
    let mut a = mesh.peer("a", 1);
    let (identity, _folder) = mesh.identity("hand", true);
    lock(&mesh.book.stores).insert(name("hand"), store(2));
    a.net.set_members(vec![name("a"), name("hand"), name("far")]);
    let hand = ByHand::linked(&identity, 2, &a).await;
    // Its clock said 1,000,000 ms at the hello; the time to live is cut to ours of 5 s.
    hand.uni(&flash("hand", 1, 990_000, 0)).await;
    hand.uni(&flash("hand", 2, 1_000_000, 0)).await;
    hand.uni(&flash("far", 1, 1_000_000, 1)).await;
    hand.uni(&flash("nobody", 1, 1_000_000, 1)).await;
    hand.uni(&flash("a", 1, 1_000_000, 1)).await;
    let mut origins = Vec::new();
    for _ in 0..2 {
        let Incoming::Flash { origin, .. } = a.next().await else { panic!("not a flash") };
        origins.push(origin);
    }
    origins.sort();
    assert_eq!(origins, [name("far"), name("hand")]);
    eventually("the old one was seen", || a.count("flash_expired") == 1).await;
    hand.uni(&flash("far", 2, 1_000_000, 0)).await;
    assert_eq!(hand.closed().await, u64::from(close::GARBAGE), "a false origin");
    assert!(a.incoming.try_recv().is_none());
}
