//! The public handle of a peer's endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::registry::{Registry, Unit};
use quinn::VarInt;
use ring::rand::SecureRandom as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::api::{
    Admission, Directory, GOSSIP_BYTES_MAX, HEAD_BYTES_MAX, Incoming, JoinHandler, NetConfig, NetError,
    RecvStream, SendStream,
};
use super::codec::{self, FRAME_BYTES_MAX, Kind};
use super::identity::{Identity, Issued};
use super::inbox::Arrivals;
use super::link::{Item, Lane, close};
use super::shared::{Parts, Shared, lock};
use super::{certs, dial, flash, greet, relay, tls, upkeep};
use crate::base::{PeerName, Span, WallTime};
use crate::core::api::Flash;
use crate::core::message::{DiskWord, Message};
use crate::model::report::LinkSample;

/// Room in a frame for a relay's head.
const RELAY_ROOM: usize = 1_024;

/// A peer's endpoint: one socket, one link per peer. Cheap to clone.
#[derive(Clone)]
pub struct Net {
    pub(super) shared: Arc<Shared>,
    address: SocketAddr,
}

impl Net {
    /// Opens the socket and starts the endpoint. Nobody is called before [`Self::set_members`]; whoever
    /// calls is heard. Needs a tokio runtime around it.
    pub fn bind(
        config: NetConfig,
        identity: Arc<Identity>,
        admission: Arc<dyn Admission>,
        directory: Arc<dyn Directory>,
    ) -> Result<(Self, Arrivals), NetError> {
        let server = tls::server_config(&identity, &config)?;
        let client = tls::client_config(&identity, &config)?;
        let failed = |e| NetError::Bind(config.listen, e);
        let endpoint = quinn::Endpoint::server(server, config.listen).map_err(failed)?;
        let address = endpoint.local_addr().map_err(failed)?;
        let mut seed = [0; 8];
        let random = ring::rand::SystemRandom::new().fill(&mut seed);
        random.map_err(|_| NetError::Config("the system gives no randomness".into()))?;
        let seed = u64::from_be_bytes(seed);
        let parts = Parts { config, identity, admission, directory, endpoint, client, seed };
        let (shared, incoming) = Shared::new(parts);
        let tracker = &shared.tracker;
        tracker.spawn(greet::accept(shared.clone()));
        tracker.spawn(dial::keep_links(shared.clone()));
        tracker.spawn(upkeep::run(shared.clone()));
        tracker.spawn(upkeep::probe(shared.clone()));
        tracker.spawn(upkeep::tell_reach(shared.clone()));
        Ok((Self { shared, address }, incoming))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// This peer's identity.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.shared.identity
    }

    /// Queues messages for a peer, straight or through another; never waits. False when they were shed:
    /// its queue is full, nobody reaches it, or they do not fit in a frame. To itself: delivered at once.
    pub fn send_core(&self, to: &PeerName, messages: Vec<Message>) -> bool {
        let count = messages.len() as u64;
        let sent = self.try_send_core(to, messages);
        if !sent {
            self.shared.counters.shed_core.add(count);
        }
        sent
    }

    fn try_send_core(&self, to: &PeerName, mut messages: Vec<Message>) -> bool {
        let link = self.shared.pool.link(to);
        if !link.as_ref().is_some_and(|link| link.knows_disks) {
            // A peer of an older build cannot read them, and would close the link. What it has seen of a disk it cannot
            // say: that is its answer.
            let asks = messages.iter().find_map(|message| match message {
                Message::Disk(DiskWord::Ask { life }) => Some(life.nonce),
                _ => None,
            });
            messages.retain(|message| !matches!(message, Message::Disk(_)));
            if let (Some(nonce), true) = (asks, link.is_some()) {
                let nothing = Message::Disk(DiskWord::Seen { nonce, seen: None });
                let (from, messages) = (to.clone(), vec![nothing]);
                self.shared.inbox.try_put(Incoming::Core { from, via: None, messages });
            }
        }
        if messages.is_empty() {
            return true;
        }
        if to == self.shared.me() {
            let from = to.clone();
            return self.shared.inbox.try_put(Incoming::Core { from, via: None, messages });
        }
        let encoded: Result<Vec<_>, _> = messages.iter().map(codec::encode).collect();
        let Ok(encoded) = encoded else { return false };
        if encoded.iter().any(|message| message.len() > FRAME_BYTES_MAX / 2) || self.shared.pool.blocked(to) {
            return self.relay_core(to, &encoded);
        }
        match link {
            Some(link) => {
                let items = encoded.into_iter().map(|bytes| Item { bytes: bytes.into(), until: None });
                link.push(&self.shared, Lane::Core, items.collect())
            }
            None => self.relay_core(to, &encoded),
        }
    }

    fn relay_core(&self, to: &PeerName, encoded: &[Vec<u8>]) -> bool {
        let list = codec::encode_list(encoded.iter().map(Vec::as_slice));
        list.is_ok_and(|list| {
            list.len() + RELAY_ROOM <= FRAME_BYTES_MAX && relay::send(&self.shared, to, Kind::Core, &list)
        })
    }

    /// The same for one gossip message. A peer that is slow to take them loses the oldest ones.
    pub fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool {
        let sent = bytes.len() <= GOSSIP_BYTES_MAX
            && match self.shared.pool.link(to) {
                Some(link) => codec::frame(Kind::Gossip, &bytes).is_ok_and(|frame| {
                    link.push(&self.shared, Lane::Gossip, vec![Item { bytes: frame.into(), until: None }])
                }),
                None => relay::send(&self.shared, to, Kind::Gossip, &bytes),
            };
        if !sent {
            self.shared.counters.shed_gossip.add(1);
        }
        sent
    }

    /// Sends an urgent hint to every linked peer at once; they pass it on once.
    pub fn flash(&self, flash: Flash) {
        flash::send(&self.shared, flash);
    }

    /// Opens a request, straight or through one other peer. The head arrives whole; after it, bytes go
    /// both ways. Ends with an error within `hello_timeout` per way tried.
    pub async fn open(&self, to: &PeerName, head: Vec<u8>) -> Result<(SendStream, RecvStream), NetError> {
        if head.len() > HEAD_BYTES_MAX {
            return Err(NetError::TooLarge { what: "the head", got: head.len(), max: HEAD_BYTES_MAX });
        }
        if self.shared.stop.is_cancelled() {
            return Err(NetError::Stopping);
        }
        if let Some(link) = self.shared.pool.link(to) {
            let limit = self.shared.config.hello_timeout;
            match timeout(limit.to_std(), relay::open_direct(&link, &head)).await {
                Ok(Ok(streams)) => return Ok(streams),
                // The link stands and its peer takes no more: a detour would only hide that.
                Err(_late) if link.alive() => return Err(NetError::Timeout(limit)),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        relay::open(&self.shared, to, &head).await
    }

    /// What is measured on the way to every peer that was ever linked.
    pub fn links(&self) -> Vec<LinkSample> {
        let now = WallTime(certs::now());
        let samples = self.shared.pool.meters(|peer, meter, link| {
            let link = link.filter(|link| link.alive());
            if let Some(link) = link {
                meter.read(link, now);
            }
            meter.sample(peer, link.is_some())
        });
        samples.into_iter().flatten().collect()
    }

    /// Feeds a real transfer of bytes to a peer into its bandwidth estimate.
    pub fn note_transfer(&self, to: &PeerName, bytes: u64, took: Span) {
        self.shared.pool.meter(to, |meter| meter.transferred(bytes, took, WallTime(certs::now())));
    }

    /// Peers with a direct link, now.
    pub fn connected(&self) -> Vec<PeerName> {
        self.shared.pool.connected().iter().cloned().collect()
    }

    /// The same set as it changes.
    pub fn watch_connected(&self) -> watch::Receiver<Arc<BTreeSet<PeerName>>> {
        self.shared.pool.watch()
    }

    /// Linked peers that say that they reach this one.
    pub fn reached_through(&self, to: &PeerName) -> Vec<PeerName> {
        self.shared.pool.relays_to(to).iter().map(|link| link.peer.clone()).collect()
    }

    /// Why the last call failed, for every peer that is called and not linked.
    pub fn troubles(&self) -> Vec<(PeerName, String)> {
        self.shared.pool.troubles()
    }

    /// Whom to keep links to. Links that admission no longer allows are closed.
    pub fn set_members(&self, members: Vec<PeerName>) {
        let pool = &self.shared.pool;
        pool.set_members(members, self.shared.config.dial_stagger.to_std());
        let members = pool.members();
        lock(&self.shared.flashes).retain(|origin| members.contains(origin));
        for link in pool.all_links() {
            if let Err(why) = self.shared.admission.admitted(&link.peer, &link.store) {
                link.close(close::REFUSED, &why);
            }
        }
    }

    /// Who answers on the join channel; none refuses it (so it is at the start).
    pub fn set_join_handler(&self, handler: Option<Arc<dyn JoinHandler>>) {
        self.shared.join.set(handler);
    }

    /// Takes renewed certificates into use for new links and shows them on the present ones; none is
    /// dropped. A peer that holds the mesh's key does this by itself in time. Writes to disk.
    pub fn install(&self, issued: Issued) -> Result<(), NetError> {
        self.shared.install(issued)
    }

    /// Offers what is no counter.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Age of a flash when it was first heard, by the clock of whoever handed it over";
        let delay = self.shared.flash_delay.clone();
        registry.register_with_unit("starling_flash_delay", help, Unit::Seconds, delay);
    }

    /// Named counters for metrics.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.shared.counters.read()
    }

    /// For tests: no direct traffic to or from this peer until [`Self::unblock`].
    pub fn block(&self, peer: &PeerName) {
        self.shared.pool.set_blocked(peer, true);
        for link in self.shared.pool.all_links().into_iter().filter(|link| link.peer == *peer) {
            link.close(close::DONE, "blocked for a test");
        }
    }

    /// Ends [`Self::block`].
    pub fn unblock(&self, peer: &PeerName) {
        self.shared.pool.set_blocked(peer, false);
    }

    /// Sends what waits, closes every link and the socket, ends every task; at most this long.
    pub async fn shutdown(&self, deadline: Span) {
        let deadline = Instant::now() + deadline.to_std();
        self.shared.endpoint.set_server_config(None);
        let flushed = async {
            while !self.shared.pool.all_links().iter().all(|link| link.flushed()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _late = timeout_at(deadline, flushed).await;
        self.shared.endpoint.close(VarInt::from_u32(close::DONE), b"stopping");
        self.shared.stop.cancel();
        self.shared.tracker.close();
        let _late = timeout_at(deadline, self.shared.tracker.wait()).await;
        let _late = timeout_at(deadline, self.shared.endpoint.wait_idle()).await;
    }
}
