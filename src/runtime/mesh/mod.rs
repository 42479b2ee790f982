//! The mesh as one peer sees it: member list, gossip and links brought together into a [`View`].
//!
//! `Mesh` owns one task. It feeds received gossip to chitchat, exchanges member lists, keeps the
//! transport's set of members current, and rebuilds the view: at once for flashes, links and
//! members, ten times a second at most for gossip.

mod exchange;
mod roster;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use roster::Roster;

use crate::base::{Instant, PeerName, Rng, Span};
use crate::core::api::{Flash, Now};
use crate::model::report::{LinkSample, View};
use crate::runtime::gossip::{Facet, FacetError, FacetSigner, Gossip, GossipConfig, GossipLink, GossipParts, Heard};
use crate::runtime::liveness::Rules;
use crate::runtime::members::{MemberList, Members, SignedEntry};
use crate::transport::Net;
use exchange::{Exchange, Frame};
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
/// Between looks at the clock, and the shortest time between two views for gossip's sake.
const TICK: Duration = Duration::from_millis(100);
/// Between questions for a member list.
const PULL_EVERY: Span = Span::millis(500);
/// Between look-ups of host names.
const RESOLVE_EVERY: Duration = Duration::from_secs(60);

/// A running mesh. Cheap to clone; the cancellation token ends it.
#[derive(Clone)]
pub struct Mesh {
    gossip: Gossip,
    events: mpsc::Sender<Event>,
    view: watch::Receiver<Arc<View>>,
    members: Arc<Members>,
    counters: Arc<Counters>,
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
    pub fn start(config: MeshConfig, parts: MeshParts, tracker: &TaskTracker, cancel: CancellationToken) -> Self {
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
        let first = picture.view(&list, (parts.now)().mono);
        let (view_tx, view) = watch::channel(Arc::new(first));
        let mesh = Self { gossip: gossip.clone(), events, view, members: parts.members.clone(), counters: counters.clone() };
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
            connected: Arc::default(),
            pulled_at: Instant::default(),
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

    /// Takes an urgent hint into the view.
    pub fn note_flash(&self, origin: &PeerName, flash: &Flash) {
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

async fn resolve_loop(roster: Arc<Roster>, members: Arc<Members>, cancel: CancellationToken) {
    let mut list = members.watch();
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = roster.resolve() => {}
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            changed = list.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RESOLVE_EVERY), if roster.has_hosts() => {}
        }
    }
}

struct Task {
    me: PeerName,
    config: MeshConfig,
    parts: MeshParts,
    gossip: Gossip,
    picture: Picture,
    /// The list as last seen, to tell what is new.
    list: Arc<MemberList>,
    view: watch::Sender<Arc<View>>,
    counters: Arc<Counters>,
    connected: Arc<BTreeSet<PeerName>>,
    pulled_at: Instant,
    /// Links as last published, and when.
    links: (Vec<LinkSample>, Instant),
    rng: Rng,
}

impl Task {
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Event>,
        mut heard: mpsc::Receiver<Vec<Heard>>,
        cancel: CancellationToken,
    ) {
        let mut members = self.parts.members.watch();
        let mut sight = self.gossip.sight();
        let mut connected = self.parts.link.watch_connected();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut links_tick = tokio::time::interval(self.config.links_every);
        links_tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.members_changed();
        self.connected_changed(connected.borrow_and_update().clone());
        loop {
            let at_once = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Ok(()) = members.changed() => { self.members_changed(); true }
                Ok(()) = connected.changed() => {
                    let now = connected.borrow_and_update().clone();
                    self.connected_changed(now);
                    self.publish_links();
                    true
                }
                Some(event) = inbox.recv() => self.event(event).await,
                Some(news) = heard.recv() => { self.hear(news); false }
                Ok(()) = sight.changed() => {
                    let now = sight.borrow_and_update().clone();
                    self.picture.set_sight(now);
                    false
                }
                _ = links_tick.tick() => { self.publish_links(); false }
                _ = tick.tick() => { self.pull(); true }
            };
            if at_once {
                self.show();
            }
        }
    }

    fn now(&self) -> Instant {
        (self.parts.now)().mono
    }

    /// Publishes the view if it differs from the last one.
    fn show(&self) {
        let view = self.picture.view(&self.list, self.now());
        self.view.send_if_modified(|held| {
            let differs = **held != view;
            if differs {
                *held = Arc::new(view);
            }
            differs
        });
    }

    /// Sends what is new to everybody linked, and tells gossip and the transport who belongs.
    fn members_changed(&mut self) {
        let before = std::mem::replace(&mut self.list, self.parts.members.list());
        let new: Vec<SignedEntry> = self
            .list
            .lines_after(None)
            .filter(|line| line.entry().is_some_and(|e| before.line(&e.name) != Some(*line)))
            .cloned()
            .collect();
        for page in Exchange::push(new) {
            let bytes = page.write();
            for peer in self.connected.iter() {
                // Whoever misses it sees another hash than its own, and asks.
                self.parts.link.send_gossip(peer, bytes.clone());
            }
        }
        let now = self.now();
        self.picture.set_members(&self.list, now);
        let others = self.list.members().map(|e| e.name.clone()).filter(|name| *name != self.me);
        self.parts.link.set_members(others.collect());
        if let Err(e) = self.gossip.publish(&Facet::Members(self.list.hash())) {
            tracing::error!("the member list's hash was not published: {e}");
        }
        if self.list.entry(&self.me).is_some_and(|e| e.removed) {
            tracing::error!("this peer was removed from the mesh: the others refuse it");
        }
    }

    fn connected_changed(&mut self, connected: Arc<BTreeSet<PeerName>>) {
        let now = self.now();
        self.picture.set_connected(&connected, now);
        for stranger in connected.iter().filter(|name| self.list.entry(name).is_none()) {
            // It proved by its certificate that it was admitted: its own list will tell by whom.
            self.parts.link.send_gossip(stranger, Exchange::Pull(None).write());
        }
        self.connected = connected;
        self.gossip.hurry();
    }

    /// True if the view should be shown at once.
    async fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Exchange(from, Exchange::Pull(after)) => {
                let page = Exchange::page(&self.list, after.as_ref());
                self.parts.link.send_gossip(&from, page.write());
                false
            }
            Event::Exchange(from, Exchange::Lines { lines, more }) => {
                self.offer(from, lines, more).await;
                false
            }
            Event::Flash(origin, flash) => {
                let now = self.now();
                let known = self.list.member(&origin).map(|e| e.store);
                let taken = known.is_some_and(|store| self.picture.flash(&origin, &flash, store, now));
                if !taken {
                    self.counters.flashes_refused.fetch_add(1, Ordering::Relaxed);
                }
                taken
            }
            Event::Own(facet) => {
                self.hear(vec![Heard { peer: self.me.clone(), generation: 0, facet: *facet }]);
                false
            }
        }
    }

    /// Takes lines of another peer; the disk is waited for elsewhere.
    async fn offer(&mut self, from: PeerName, lines: Vec<SignedEntry>, more: bool) {
        let members = self.parts.members.clone();
        let offered = tokio::task::spawn_blocking(move || {
            let last = lines.last().and_then(SignedEntry::claimed_name);
            (members.offer(lines), last)
        });
        match offered.await {
            Ok((Ok(offer), last)) => {
                self.counters.lines_taken.fetch_add(offer.taken.len() as u64, Ordering::Relaxed);
                self.counters.lines_refused.fetch_add(offer.refused as u64, Ordering::Relaxed);
                // A page of nothing but refused lines ends the exchange: it could go on for ever.
                if let (true, Some(last), true) = (more, last, offer.refused == 0) {
                    self.parts.link.send_gossip(&from, Exchange::Pull(Some(last)).write());
                }
            }
            Ok((Err(e), _)) => tracing::error!("member lines not taken: {e}"),
            Err(e) => tracing::error!("member lines not taken: {e}"),
        }
    }

    fn hear(&mut self, news: Vec<Heard>) {
        let now = self.now();
        for heard in news {
            if let Some(store) = self.list.member(&heard.peer).map(|e| e.store) {
                self.picture.hear(heard, store, now);
            }
        }
    }

    /// Asks one of the peers whose list differs for its lines.
    fn pull(&mut self) {
        let now = self.now();
        if now.since(self.pulled_at) < PULL_EVERY {
            return;
        }
        let differing = self.picture.differing(&self.list.hash());
        if let Some(peer) = self.rng.pick(&differing) {
            self.pulled_at = now;
            self.counters.pulls.fetch_add(1, Ordering::Relaxed);
            self.parts.link.send_gossip(peer, Exchange::Pull(None).write());
        }
    }

    /// Gossips the links when they changed in a way that matters, or after ten intervals anyway.
    fn publish_links(&mut self) {
        let (now, links) = (self.now(), self.parts.link.links());
        let old = self.links.1 + Span::from(self.config.links_every * 10) < now;
        let differs = links.len() != self.links.0.len() || links.iter().zip(&self.links.0).any(|(a, b)| matters(a, b));
        if !(differs || old) || links.is_empty() {
            return;
        }
        let facet = Facet::Links(links.clone());
        match self.gossip.publish(&facet) {
            Ok(()) => self.hear(vec![Heard { peer: self.me.clone(), generation: 0, facet }]),
            Err(e) => tracing::warn!("links not published: {e}"),
        }
        self.links = (links, now);
    }
}

/// Two samples of one link differ by more than noise.
fn matters(a: &LinkSample, b: &LinkSample) -> bool {
    let apart = |a: u64, b: u64| a.abs_diff(b) > a.max(b) / 4 + 500;
    a.to != b.to
        || a.direct != b.direct
        || a.bandwidth_at != b.bandwidth_at
        || apart(a.rtt_us, b.rtt_us)
        || a.loss_ppm.abs_diff(b.loss_ppm) > 5_000
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
