//! The mesh's own task: takes events, keeps everybody's member list the same, publishes the view.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;
use super::view::Picture;
use super::{Counters, Event, MeshConfig, MeshParts, Notes, Roster};
use crate::base::{Instant, PeerName, Rng, Span};
use crate::model::report::{LinkSample, View};
use crate::runtime::gossip::{Facet, Gossip, Heard};
use crate::runtime::members::{MemberList, Members, SignedEntry};

/// Between looks at the clock, and the shortest time between two views for gossip's sake.
const TICK: Duration = Duration::from_millis(100);
/// In a mesh of more members that time grows by a tick for each so many.
const MEMBERS_PER_TICK: usize = 16;
/// Events taken before the view is shown.
const BURST_MAX: usize = 64;
/// Between questions for a member list.
const PULL_EVERY: Span = Span::millis(500);
/// Between look-ups of host names.
const RESOLVE_EVERY: Duration = Duration::from_secs(60);

/// Looks up the members' host names when the list changes, and now and then.
pub(super) async fn resolve_loop(roster: Arc<Roster>, members: Arc<Members>, cancel: CancellationToken) {
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

/// Everything it works on.
pub(super) struct Task {
    pub(super) me: PeerName,
    pub(super) config: MeshConfig,
    pub(super) parts: MeshParts,
    pub(super) gossip: Gossip,
    pub(super) picture: Picture,
    /// The list as last seen, to tell what is new.
    pub(super) list: Arc<MemberList>,
    pub(super) view: watch::Sender<Arc<View>>,
    pub(super) shown_at: Instant,
    pub(super) counters: Arc<Counters>,
    pub(super) notes: Notes,
    pub(super) connected: Arc<BTreeSet<PeerName>>,
    pub(super) pulled_at: Instant,
    /// Links as last published, and when.
    pub(super) links: (Vec<LinkSample>, Instant),
    pub(super) rng: Rng,
}

impl Task {
    /// Runs until the token is cancelled.
    pub(super) async fn run(
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
                Some(event) = inbox.recv() => {
                    let mut at_once = self.event(event).await;
                    // A burst of flashes shall cost one view, not one each.
                    for _ in 0..BURST_MAX {
                        let Ok(event) = inbox.try_recv() else { break };
                        at_once |= self.event(event).await;
                    }
                    at_once
                }
                Some(news) = heard.recv() => { self.note(&news); self.hear(news); false }
                Ok(()) = sight.changed() => {
                    let now = sight.borrow_and_update().clone();
                    self.picture.set_sight(now);
                    false
                }
                _ = links_tick.tick() => { self.publish_links(); false }
                _ = tick.tick() => { self.pull(); self.view_due() }
            };
            if at_once {
                self.show();
            }
        }
    }

    fn now(&self) -> Instant {
        (self.parts.now)().mono
    }

    /// What gossip alone changed is shown the less often the larger the mesh is: a view holds all that is known of
    /// everybody, and in a large mesh something of somebody is always new. What is urgent comes by flash.
    fn view_due(&self) -> bool {
        let ticks = u32::try_from(self.list.len() / MEMBERS_PER_TICK).unwrap_or(u32::MAX).max(1);
        self.now().since(self.shown_at) >= Span::from(TICK.saturating_mul(ticks))
    }

    /// Publishes the view if something in it changed.
    fn show(&mut self) {
        self.shown_at = self.now();
        if let Some(view) = self.picture.refresh(&self.list, self.now()) {
            self.view.send_replace(Arc::new(view));
        }
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

    fn note(&self, news: &[Heard]) {
        for heard in news {
            if let Facet::Queue(queue) = &heard.facet {
                self.notes.heard("heard.gossip", &heard.peer, || {
                    format!("queue closed {}", queue.closed.is_some())
                });
            }
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
        let differs =
            links.len() != self.links.0.len() || links.iter().zip(&self.links.0).any(|(a, b)| matters(a, b));
        // A page of links is as long as the mesh is large, and everybody gets everybody's: in a larger mesh
        // each speaks of its links less often, so that the traffic per peer does not grow with the square.
        let pause = Span::from(self.config.links_every).scale(self.list.members().count() as u64, 16);
        let soon = !self.links.0.is_empty() && now < self.links.1 + pause;
        if !(differs || old) || soon || links.is_empty() {
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
