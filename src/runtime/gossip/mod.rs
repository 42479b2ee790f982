//! Gossip: chitchat over our own links, screened, signed, paced and restarted if it dies.
//!
//! What chitchat does: spread small signed texts (facets) of every member to every member, and guess
//! from heartbeats who is alive. What it does not do here: decide who is a member, dial, or be
//! believed. See `screen` for what it is kept from, `facet` for what travels, `socket` for the pace.

pub mod envelope;
pub mod facet;
mod life;
pub mod screen;
pub mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chitchat::{ChitchatConfig, ChitchatId, FailureDetectorConfig};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use facet::{Facet, FacetError, FacetSigner};
pub use screen::{Heard, pseudo_addr};
pub use socket::GossipLink;

use crate::base::{Instant, MeshId, PeerName, Rng};
use crate::runtime::members::MemberList;
use life::Loop;
use screen::{Dropped, Screen};
use socket::{Pace, Sent};

/// Reads the peer's clock.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Received messages that may wait to be screened; each is at most 128 KiB.
const RECEIVED_MAX: usize = 64;
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
            // Only filters what chitchat's own watcher is given, which nobody here watches: it would be given a copy
            // of everybody's state each time that anything of anybody changes.
            extra_liveness_predicate: Some(Box::new(|_| false)),
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
    dropped: Mutex<(Dropped, BTreeMap<&'static str, u64>)>,
    shed_received: AtomicU64,
    restarts: AtomicU64,
    /// From hearing that a member has said something newer to having it.
    lag: Histogram,
    /// Of each other member: when its heartbeat moved last, and seconds between its heartbeats on average.
    beats: Mutex<BTreeMap<PeerName, (Instant, f64)>>,
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
            lag: Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 60.0]),
            beats: Mutex::default(),
        });
        let (received, inbox) = mpsc::channel(RECEIVED_MAX);
        let (news, heard) = mpsc::channel(NEWS_MAX);
        let (sight_tx, sight) = watch::channel(Arc::default());
        let screen = Screen::new(config.mesh, config.me.clone());
        let rng = Rng::new(config.seed);
        let shared_too = shared.clone();
        let loop_ = Loop {
            config,
            parts,
            shared: shared_too,
            screen,
            rng,
            news,
            sight: sight_tx,
            names: Arc::default(),
            beats: BTreeMap::new(),
            behind: BTreeMap::new(),
        };
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

    /// A flash goes by: what can wait makes way for it.
    pub fn make_way(&self) {
        self.shared.pace.flash(tokio::time::Instant::now());
    }

    /// Offers what is no counter, and how full the queue of received messages is.
    pub fn register(&self, registry: &mut Registry) {
        let help = "From hearing that a member has said something newer to having it";
        registry.register_with_unit("starling_gossip_lag", help, Unit::Seconds, self.shared.lag.clone());
    }

    /// How long each other member has been silent, in its own average intervals: the phi by which chitchat's detector
    /// calls a member dead, as this side has seen its heartbeats.
    pub fn phi(&self, now: Instant) -> BTreeMap<PeerName, f64> {
        let beats = self.shared.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let phi = |(last, mean): &(Instant, f64)| now.since(*last).as_secs_f64() / mean.max(0.001);
        beats.iter().map(|(name, seen)| (name.clone(), phi(seen))).collect()
    }

    /// The share of the queue of received messages that is taken.
    pub fn fill(&self) -> f64 {
        fill(&self.received)
    }

    /// Named counters for metrics.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let (dropped, heard) = self.shared.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = &self.shared.sent;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let own = [
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
        ];
        heard.into_iter().chain(own).collect()
    }
}

/// The share of a channel's places that are taken.
pub(crate) fn fill<T>(channel: &mpsc::Sender<T>) -> f64 {
    1.0 - channel.capacity() as f64 / channel.max_capacity().max(1) as f64
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
