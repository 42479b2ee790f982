//! Gossip: chitchat over our own links, screened, signed, paced and restarted if it dies.
//!
//! What chitchat does: spread small signed texts (facets) of every member to every member, and guess
//! from heartbeats who is alive. What it does not do here: decide who is a member, dial, or be
//! believed. See `screen` for what it is kept from, `facet` for what travels, `socket` for the pace.

pub mod envelope;
pub mod facet;
pub mod screen;
pub mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use chitchat::{ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable, FailureDetectorConfig};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use facet::{Facet, FacetError, FacetSigner};
pub use screen::{Heard, pseudo_addr};
pub use socket::GossipLink;

use crate::base::{Instant, MeshId, PeerName, Rng};
use crate::runtime::members::MemberList;
use facet::Place;
use screen::{Dropped, Held, Screen};
use socket::{LinkTransport, Names, Pace, Sent};

/// Reads the peer's clock.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Received messages that may wait to be screened; each is at most 128 KiB.
const RECEIVED_MAX: usize = 64;
/// Screened messages that may wait for chitchat.
const SCREENED_MAX: usize = 16;
/// Batches of news that may wait for whoever listens.
const NEWS_MAX: usize = 64;

/// How gossip behaves.
#[derive(Debug, Clone)]
pub struct GossipConfig {
    /// The mesh; messages of another are refused.
    pub mesh: MeshId,
    /// This peer.
    pub me: PeerName,
    /// Starts of this peer's store: durable and strictly growing. chitchat never shows the new keys of
    /// a node that restarts under a generation it had before.
    pub boot: u64,
    /// Between rounds while things change.
    pub fast: Duration,
    /// Between rounds when quiet. Also the failure detector's prior, since its mean must not shrink
    /// below what a quiet mesh delivers: otherwise everybody looks dead when it becomes quiet.
    pub slow: Duration,
    /// A dead node is forgotten after this long, and no longer spread after half of it.
    pub grace: Duration,
    /// Seeds the choice of whom to try.
    pub seed: u64,
}

impl GossipConfig {
    /// Production's values.
    pub fn new(mesh: MeshId, me: PeerName, boot: u64, seed: u64) -> Self {
        let (fast, slow) = (Duration::from_millis(200), Duration::from_secs(1));
        Self { mesh, me, boot, fast, slow, grace: Duration::from_secs(15 * 60), seed }
    }

    fn chitchat(&self, id: ChitchatId) -> ChitchatConfig {
        let detector = FailureDetectorConfig {
            phi_threshold: 8.0,
            // Few samples, so that the mean follows the pace within seconds.
            sampling_window_size: 10,
            max_interval: self.slow * 10,
            initial_interval: self.slow,
            dead_node_grace_period: self.grace,
        };
        ChitchatConfig {
            listen_addr: id.gossip_advertise_addr,
            chitchat_id: id,
            cluster_id: self.mesh.to_string(),
            gossip_interval: self.fast,
            // None: members are tried by name below, the seeds of chitchat could never be changed.
            seed_nodes: Vec::new(),
            failure_detector_config: detector,
            marked_for_deletion_grace_period: self.grace,
            catchup_callback: None,
            extra_liveness_predicate: None,
        }
    }
}

/// What gossip has seen of one other peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Its newest incarnation.
    pub generation: u64,
    /// chitchat's detector holds it for alive.
    pub phi_alive: bool,
    /// When its heartbeat last moved, on this peer's clock.
    pub heartbeat_at: Instant,
}

/// By name.
pub type Sight = BTreeMap<PeerName, Sighting>;

struct Shared {
    /// Key to text of what this peer says, and which of it chitchat has not got yet.
    own: Mutex<(BTreeMap<String, String>, BTreeSet<String>)>,
    dirty: Notify,
    pace: Arc<Pace>,
    sent: Arc<Sent>,
    dropped: Mutex<Dropped>,
    shed_received: AtomicU64,
    restarts: AtomicU64,
}

/// A running gossip. Dropping it does not stop it; the cancellation token does.
#[derive(Clone)]
pub struct Gossip {
    shared: Arc<Shared>,
    received: mpsc::Sender<(PeerName, bool, Bytes)>,
    sight: watch::Receiver<Arc<Sight>>,
}

/// What a gossip needs from its peer.
pub struct GossipParts {
    /// Where messages leave.
    pub link: Arc<dyn GossipLink>,
    /// Signs this peer's facets.
    pub signer: Arc<dyn FacetSigner>,
    /// Who belongs.
    pub members: watch::Receiver<Arc<MemberList>>,
    /// The peer's clock.
    pub clock: Clock,
}

impl Gossip {
    /// Starts it on the tracker, until the token is cancelled. News come in the order they were heard.
    pub fn start(
        config: GossipConfig,
        parts: GossipParts,
        tracker: &TaskTracker,
        cancel: CancellationToken,
    ) -> (Self, mpsc::Receiver<Vec<Heard>>) {
        let shared = Arc::new(Shared {
            own: Mutex::default(),
            dirty: Notify::new(),
            pace: Arc::new(Pace::new(config.fast, config.slow)),
            sent: Arc::default(),
            dropped: Mutex::default(),
            shed_received: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        });
        let (received, inbox) = mpsc::channel(RECEIVED_MAX);
        let (news, heard) = mpsc::channel(NEWS_MAX);
        let (sight_tx, sight) = watch::channel(Arc::default());
        let screen = Screen::new(config.mesh, config.me.clone());
        let rng = Rng::new(config.seed);
        let shared_too = shared.clone();
        let loop_ = Loop { config, parts, shared: shared_too, screen, rng, news, sight: sight_tx, names: Arc::default(), beats: BTreeMap::new() };
        tracker.spawn(loop_.run(inbox, cancel));
        (Self { shared, received, sight }, heard)
    }

    /// Says this of the peer from now on. Equal text costs nothing; it travels within an interval.
    pub fn publish(&self, facet: &Facet) -> Result<(), FacetError> {
        let mut urgent = false;
        let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pages = facet.write()?;
        if matches!(facet, Facet::Links(_)) {
            // Pages that are no longer needed become empty; a deleted key could come back.
            let unused = |page: &usize| own.0.contains_key(&format!("links.{page}"));
            let empty = (pages.len()..facet::LINK_PAGES_MAX).filter(unused);
            pages.extend(empty.map(|page| (format!("links.{page}"), "[]".to_owned())).collect::<Vec<_>>());
        }
        for (key, text) in pages {
            if own.0.get(&key) != Some(&text) {
                urgent |= Facet::urgent(&key);
                own.1.insert(key.clone());
                own.0.insert(key, text);
            }
        }
        drop(own);
        if urgent {
            self.shared.pace.changed();
        }
        self.shared.dirty.notify_one();
        Ok(())
    }

    /// Takes a message that arrived; `direct` if it came over the sender's own link. False if it was shed.
    pub fn receive(&self, from: PeerName, direct: bool, bytes: Bytes) -> bool {
        let taken = self.received.try_send((from, direct, bytes)).is_ok();
        if !taken {
            self.shared.shed_received.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Who was seen, as it changes.
    pub fn sight(&self) -> watch::Receiver<Arc<Sight>> {
        self.sight.clone()
    }

    /// Gossip faster for a while.
    pub fn hurry(&self) {
        self.shared.pace.changed();
    }

    /// Named counters for metrics.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let dropped = *self.shared.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = &self.shared.sent;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BTreeMap::from([
            ("gossip_sent_messages", read(&sent.messages)),
            ("gossip_sent_bytes", read(&sent.bytes)),
            ("gossip_sent_shed", read(&sent.shed)),
            ("gossip_rounds_paced", read(&sent.paced)),
            ("gossip_received_shed", read(&self.shared.shed_received)),
            ("gossip_restarts", read(&self.shared.restarts)),
            ("gossip_dropped_messages", dropped.messages),
            ("gossip_dropped_forged", dropped.forged),
            ("gossip_dropped_absurd", dropped.absurd),
            ("gossip_dropped_strangers", dropped.strangers),
            ("gossip_dropped_stale", dropped.stale),
            ("gossip_dropped_no_room", dropped.no_room),
        ])
    }
}

struct Loop {
    config: GossipConfig,
    parts: GossipParts,
    shared: Arc<Shared>,
    screen: Screen,
    rng: Rng,
    news: mpsc::Sender<Vec<Heard>>,
    sight: watch::Sender<Arc<Sight>>,
    names: Arc<ArcSwap<Names>>,
    beats: BTreeMap<PeerName, u64>,
}

/// Why one life of chitchat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cancelled,
    Died,
}

impl Loop {
    async fn run(mut self, mut inbox: mpsc::Receiver<(PeerName, bool, Bytes)>, cancel: CancellationToken) {
        // Lives inside one boot get generations of their own.
        for life in 0..u64::from(u16::MAX) {
            if self.live(life, &mut inbox, &cancel).await == End::Cancelled {
                return;
            }
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            tracing::error!(life, "gossip ended and is started again");
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(self.config.slow) => {}
            }
        }
    }

    async fn live(
        &mut self,
        life: u64,
        inbox: &mut mpsc::Receiver<(PeerName, bool, Bytes)>,
        cancel: &CancellationToken,
    ) -> End {
        let addr = pseudo_addr(self.config.me.as_str());
        let id = ChitchatId::new(self.config.me.as_str(), self.config.boot << 16 | life, addr);
        let (to_chitchat, received) = mpsc::channel(SCREENED_MAX);
        let transport = LinkTransport {
            link: self.parts.link.clone(),
            names: self.names.clone(),
            pace: self.shared.pace.clone(),
            sent: self.shared.sent.clone(),
            received: Mutex::new(Some(received)),
        };
        let Ok(handle) = chitchat::spawn_chitchat(self.config.chitchat(id.clone()), Vec::new(), &transport).await else {
            return End::Died;
        };
        self.screen.generation_reused = false;
        self.mark_all_dirty();
        self.rename();
        let end = self.serve(&handle, &id, to_chitchat, inbox, cancel).await;
        handle.abort();
        end
    }

    async fn serve(
        &mut self,
        handle: &ChitchatHandle,
        id: &ChitchatId,
        to_chitchat: mpsc::Sender<(std::net::SocketAddr, ChitchatMessage)>,
        inbox: &mut mpsc::Receiver<(PeerName, bool, Bytes)>,
        cancel: &CancellationToken,
    ) -> End {
        let ended = handle.termination_watcher();
        tokio::pin!(ended);
        let mut tick = tokio::time::interval(self.config.fast);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ticks: u64 = 0;
        let shared = self.shared.clone();
        let mut members = self.parts.members.clone();
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return End::Cancelled,
                _ = &mut ended => return End::Died,
                () = shared.dirty.notified() => self.set_dirty(handle, id).await,
                Ok(()) = members.changed() => {
                    self.rename();
                    shared.pace.changed();
                }
                _ = tick.tick() => {
                    self.observe(handle, id).await;
                    self.reach_out(handle, ticks);
                    ticks += 1;
                }
                Some((from, direct, bytes)) = inbox.recv() => {
                    self.take(handle, id, &to_chitchat, (from, direct, bytes)).await;
                    if self.screen.generation_reused {
                        tracing::error!("others hold newer keys of this generation: taking the next one");
                        return End::Died;
                    }
                }
            }
        }
    }

    fn mark_all_dirty(&self) {
        let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.1 = own.0.keys().cloned().collect();
        self.shared.dirty.notify_one();
    }

    fn rename(&self) {
        let list = self.parts.members.borrow().clone();
        let others = list.members().filter(|e| e.name != self.config.me);
        self.names.store(Arc::new(others.map(|e| (pseudo_addr(e.name.as_str()), e.name.clone())).collect()));
    }

    /// Hands what changed to chitchat, signed for the version it will get.
    async fn set_dirty(&self, handle: &ChitchatHandle, id: &ChitchatId) {
        let changed: Vec<(String, String)> = {
            let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
            let keys = std::mem::take(&mut own.1);
            keys.into_iter().filter_map(|key| own.0.get(&key).cloned().map(|text| (key, text))).collect()
        };
        let chitchat = handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let state = chitchat.self_node_state();
        for (key, text) in changed {
            let version = state.max_version() + 1;
            let place =
                Place { mesh: self.config.mesh, name: &id.node_id, generation: id.generation_id, key: &key, version };
            state.set(&key, place.seal(&text, &*self.parts.signer));
        }
    }

    /// Screens one message and hands it on.
    async fn take(
        &mut self,
        handle: &ChitchatHandle,
        id: &ChitchatId,
        to_chitchat: &mpsc::Sender<(std::net::SocketAddr, ChitchatMessage)>,
        (from, direct, bytes): (PeerName, bool, Bytes),
    ) {
        let held: Held = {
            let chitchat = handle.chitchat();
            let chitchat = chitchat.lock().await;
            chitchat.node_states().iter().map(|(id, state)| (id.clone(), state.max_version())).collect()
        };
        let list = self.parts.members.borrow().clone();
        let clean = self.screen.clean(direct.then_some(&from), &bytes, &list, id, &held);
        *self.shared.dropped.lock().unwrap_or_else(PoisonError::into_inner) = self.screen.dropped;
        let Some((bytes, news)) = clean else { return };
        if news.iter().any(|heard| heard.facet.is_urgent()) {
            self.shared.pace.changed();
        }
        // Waits for the listener: a value comes by only once. It ends when the listener is gone.
        if !news.is_empty() && self.news.send(news).await.is_err() {
            tracing::debug!("nobody listens to gossip any more");
        }
        match ChitchatMessage::deserialize(&mut &bytes[..]) {
            Ok(message) => {
                if to_chitchat.try_send((pseudo_addr(from.as_str()), message)).is_err() {
                    self.shared.shed_received.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(e) => tracing::warn!("a screened message does not read back: {e:#}"),
        }
    }

    /// Publishes who was seen: of each name the newest incarnation.
    async fn observe(&mut self, handle: &ChitchatHandle, own: &ChitchatId) {
        let now = (self.parts.clock)();
        let before = self.sight.borrow().clone();
        let mut sight = Sight::new();
        let mut beats = BTreeMap::new();
        {
            let chitchat = handle.chitchat();
            let chitchat = chitchat.lock().await;
            let live: BTreeSet<&ChitchatId> = chitchat.live_nodes().collect();
            // In order of (name, generation): the last one of a name is the newest.
            for (id, state) in chitchat.node_states().iter().filter(|(id, _)| id.node_id != own.node_id) {
                let Ok(name) = PeerName::new(&id.node_id) else { continue };
                beats.insert(name.clone(), u64::from(state.heartbeat()));
                let phi_alive = live.contains(id);
                sight.insert(name, Sighting { generation: id.generation_id, phi_alive, heartbeat_at: now });
            }
        }
        for (name, seen) in &mut sight {
            let old = before.get(name).filter(|old| old.generation == seen.generation);
            if let Some(old) = old.filter(|_| self.beats.get(name) == beats.get(name)) {
                seen.heartbeat_at = old.heartbeat_at;
            }
        }
        self.beats = beats;
        if *before != sight {
            self.sight.send_replace(Arc::new(sight));
        }
    }

    /// Opens an exchange with members that chitchat does not hold for alive: three at once while there
    /// is nobody, else one in a second or so. This finds newcomers and heals partitions.
    fn reach_out(&mut self, handle: &ChitchatHandle, ticks: u64) {
        let sight = self.sight.borrow().clone();
        let alive = sight.values().filter(|s| s.phi_alive).count();
        let every = (self.config.slow.as_millis() / self.config.fast.as_millis().max(1)).max(1) as u64;
        if alive > 0 && !ticks.is_multiple_of(every) {
            return;
        }
        let names = self.names.load_full();
        let mut quiet: Vec<_> = names.iter().filter(|(_, n)| !sight.get(*n).is_some_and(|s| s.phi_alive)).collect();
        quiet.sort_unstable();
        self.rng.shuffle(&mut quiet);
        let wanted = if alive == 0 { 3 } else { 1 };
        for (addr, _) in quiet.into_iter().take(wanted) {
            self.shared.pace.force();
            // Refused only when chitchat has ended, which the loop sees by itself.
            let _ = handle.gossip(*addr);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
