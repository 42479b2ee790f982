//! The mesh as one peer sees it: member list, gossip and links brought together into a [`View`].
//!
//! `Mesh` owns one task. It feeds received gossip to chitchat, exchanges member lists, keeps the
//! transport's set of members current, and rebuilds the view: at once for flashes, links and
//! members, ten times a second at most for gossip.

mod exchange;
mod lists;
mod roster;
mod task;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use roster::Roster;

use crate::base::{Instant, PeerName, Rng};
use crate::core::api::{Event as Note, Flash, Now};
use crate::model::report::{LinkSample, View};
use crate::runtime::gossip::{Facet, FacetError, FacetSigner, Gossip, GossipConfig, GossipLink, GossipParts};
use crate::runtime::liveness::Rules;
use crate::runtime::members::Members;
use crate::transport::Net;
use exchange::{Exchange, Frame};
use task::{Task, resolve_loop};
use view::Picture;

/// Reads both clocks of the peer.
pub type NowFn = Arc<dyn Fn() -> Now + Send + Sync>;

/// What the mesh needs of the transport.
pub trait MeshLink: Send + Sync + 'static {
    /// Hands one message of the gossip lane over, without waiting; false if it was shed.
    fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool;
    /// Direct links, as they change.
    fn watch_connected(&self) -> watch::Receiver<Arc<BTreeSet<PeerName>>>;
    /// Measured links.
    fn links(&self) -> Vec<LinkSample>;
    /// Whom to keep links to; links that admission no longer allows are closed.
    fn set_members(&self, members: Vec<PeerName>);
}

impl MeshLink for Net {
    fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool {
        Net::send_gossip(self, to, bytes)
    }
    fn watch_connected(&self) -> watch::Receiver<Arc<BTreeSet<PeerName>>> {
        Net::watch_connected(self)
    }
    fn links(&self) -> Vec<LinkSample> {
        Net::links(self)
    }
    fn set_members(&self, members: Vec<PeerName>) {
        Net::set_members(self, members);
    }
}

/// chitchat's messages, framed for the lane that they share with the member exchange.
struct Framed(Arc<dyn MeshLink>);

impl GossipLink for Framed {
    fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool {
        self.0.send_gossip(to, Frame::gossip(&bytes))
    }
}

/// How the mesh behaves.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    /// Gossip's part.
    pub gossip: GossipConfig,
    /// When a member is suspect, when lost.
    pub rules: Rules,
    /// Links are gossiped at most this often, and at least ten times less often.
    pub links_every: Duration,
}

impl MeshConfig {
    /// Production's values.
    pub fn new(gossip: GossipConfig) -> Self {
        Self { gossip, rules: Rules::default(), links_every: Duration::from_secs(5) }
    }
}

/// What a mesh is put together from.
pub struct MeshParts {
    /// The transport.
    pub link: Arc<dyn MeshLink>,
    /// Signs this peer's facets.
    pub signer: Arc<dyn FacetSigner>,
    /// The member list.
    pub members: Arc<Members>,
    /// What the transport asks; its host names are looked up by the mesh.
    pub roster: Arc<Roster>,
    /// The peer's clocks.
    pub now: NowFn,
}

enum Event {
    Exchange(PeerName, Exchange),
    Flash(PeerName, Box<Flash>),
    Own(Box<Facet>),
}

/// Events that may wait for the task; more is shed and comes again (gossip) or costs time (flash).
const EVENTS_MAX: usize = 1_024;

/// A running mesh. Cheap to clone; the cancellation token ends it.
#[derive(Clone)]
pub struct Mesh {
    gossip: Gossip,
    events: mpsc::Sender<Event>,
    view: watch::Receiver<Arc<View>>,
    members: Arc<Members>,
    counters: Arc<Counters>,
    notes: Notes,
}

/// Lines for watchers about what was heard and when, once somebody takes them: they show how fast news
/// travels, by flash and by gossip.
#[derive(Clone)]
struct Notes {
    to: Arc<OnceLock<broadcast::Sender<Note>>>,
    now: NowFn,
}

impl Notes {
    /// `what from PEER at MICROSECONDS` of the boot clock. Costs nothing while nobody watches.
    fn heard(&self, kind: &str, origin: &PeerName, what: impl FnOnce() -> String) {
        let Some(to) = self.to.get().filter(|to| to.receiver_count() > 0) else { return };
        let at = (self.now)().mono.0;
        let text = format!("{} from {origin} at {at}", what());
        // The last watcher may have gone in between.
        let _ = to.send(Note::new(kind, None, text));
    }
}

#[derive(Default)]
struct Counters {
    events_shed: AtomicU64,
    frames_malformed: AtomicU64,
    lines_taken: AtomicU64,
    lines_refused: AtomicU64,
    pulls: AtomicU64,
    flashes_refused: AtomicU64,
}

impl Mesh {
    /// Starts gossip and the mesh's own task on the tracker, until the token is cancelled.
    pub fn start(
        config: MeshConfig,
        parts: MeshParts,
        tracker: &TaskTracker,
        cancel: CancellationToken,
    ) -> Self {
        let now = parts.now.clone();
        let gossip_parts = GossipParts {
            link: Arc::new(Framed(parts.link.clone())),
            signer: parts.signer.clone(),
            members: parts.members.watch(),
            clock: Arc::new(move || now().mono),
        };
        let (gossip, heard) = Gossip::start(config.gossip.clone(), gossip_parts, tracker, cancel.clone());
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let counters = Arc::<Counters>::default();
        let me = config.gossip.me.clone();
        let mut picture = Picture::new(me.clone(), config.rules);
        let list = parts.members.list();
        picture.set_members(&list, (parts.now)().mono);
        let first = picture.refresh(&list, (parts.now)().mono).unwrap_or_default();
        let (view_tx, view) = watch::channel(Arc::new(first));
        let mesh = Self {
            gossip: gossip.clone(),
            events,
            view,
            members: parts.members.clone(),
            counters: counters.clone(),
            notes: Notes { to: Arc::default(), now: parts.now.clone() },
        };
        let (members, roster) = (parts.members.clone(), parts.roster.clone());
        tracker.spawn(resolve_loop(roster, members, cancel.clone()));
        let task = Task {
            rng: Rng::new(config.gossip.seed ^ 0x6d65_7368),
            me,
            config,
            parts,
            gossip,
            picture,
            list,
            view: view_tx,
            counters,
            notes: mesh.notes.clone(),
            connected: Arc::default(),
            lists: Default::default(),
            shown_at: Instant::default(),
            links: (Vec::new(), Instant::default()),
        };
        tracker.spawn(task.run(inbox, heard, cancel));
        mesh
    }

    /// The soft view, as it changes.
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// The member list.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Says this of the peer from now on; its own view has it at once.
    pub fn publish(&self, facet: Facet) -> Result<(), FacetError> {
        self.gossip.publish(&facet)?;
        self.event(Event::Own(Box::new(facet)));
        Ok(())
    }

    /// Takes what came in the gossip lane. False if it was shed.
    pub fn receive(&self, from: PeerName, via: Option<&PeerName>, bytes: Bytes) -> bool {
        match Frame::read(bytes) {
            Some(Frame::Gossip(bytes)) => self.gossip.receive(from, via.is_none(), bytes),
            Some(Frame::Exchange(exchange)) => self.event(Event::Exchange(from, exchange)),
            None => {
                self.counters.frames_malformed.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Sends `heard.flash` and `heard.gossip` events there from now on. Only the first call counts.
    pub fn notes_to(&self, events: broadcast::Sender<Note>) {
        let _already = self.notes.to.set(events);
    }

    /// Takes an urgent hint into the view.
    pub fn note_flash(&self, origin: &PeerName, flash: &Flash) {
        self.gossip.make_way();
        self.notes.heard("heard.flash", origin, || match flash {
            Flash::Capacity { .. } => "capacity".into(),
            Flash::Suspect { cluster } => format!("suspect {cluster}"),
            Flash::Drain { draining, .. } => format!("drain {draining}"),
            Flash::Leaving { .. } => "leaving".into(),
            Flash::Look { job } => format!("look {job}"),
        });
        if !matches!(flash, Flash::Look { .. }) {
            self.event(Event::Flash(origin.clone(), Box::new(flash.clone())));
        }
    }

    fn event(&self, event: Event) -> bool {
        let taken = self.events.try_send(event).is_ok();
        if !taken {
            self.counters.events_shed.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Offers what is no counter.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.gossip.register(registry);
    }

    /// How long each other member has been silent by gossip, in its own intervals.
    pub fn phi(&self, now: Instant) -> BTreeMap<PeerName, f64> {
        self.gossip.phi(now)
    }

    /// Shares of the queues here that are taken, by name.
    pub fn fills(&self) -> [(&'static str, f64); 2] {
        [("gossip", self.gossip.fill()), ("mesh", crate::runtime::gossip::fill(&self.events))]
    }

    /// Named counters for metrics.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let c = &self.counters;
        let own = [
            ("mesh_events_shed", &c.events_shed),
            ("mesh_frames_malformed", &c.frames_malformed),
            ("mesh_member_lines_taken", &c.lines_taken),
            ("mesh_member_lines_refused", &c.lines_refused),
            ("mesh_member_pulls", &c.pulls),
            ("mesh_flashes_refused", &c.flashes_refused),
        ];
        let mut all = self.gossip.counters();
        all.extend(own.map(|(name, counter)| (name, counter.load(Ordering::Relaxed))));
        all
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
