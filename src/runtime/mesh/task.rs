//! The mesh's own task: takes events, keeps everybody's member list the same, publishes the view.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;
use super::lists::{Lists, Offered};
use super::view::Picture;
use super::{Counters, Event, MeshConfig, MeshParts, Notes, Roster};
use crate::base::{Instant, PeerName, Rng, Span};
use crate::model::report::{LinkSample, View};
use crate::runtime::gossip::{Facet, Gossip, Heard};
use crate::runtime::members::{MemberList, Members};

/// Between looks at the clock, and the shortest time between two views for gossip's sake.
const TICK: Duration = Duration::from_millis(100);
/// In a mesh of more members that time grows by a tick for each so many.
const MEMBERS_PER_TICK: usize = 16;
/// What is urgent is shown this much later: several flashes cost one view, and where many peers share few cores all
/// have heard of something before the first of them works on what follows from it. The hint itself does not wait.
const SETTLE: Duration = Duration::from_millis(20);
/// Events taken in one turn.
const BURST_MAX: usize = 64;
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
    pub(super) lists: Lists,
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
        let settle = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(settle);
        let mut settling = true;
        loop {
            let urgent = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Ok(()) = members.changed() => { self.members_changed(); true }
                Ok(()) = connected.changed() => {
                    let now = connected.borrow_and_update().clone();
                    self.connected_changed(now);
                    self.publish_links();
                    true
                }
                () = &mut settle, if settling => {
                    settling = false;
                    self.show();
                    false
                }
                Some(event) = inbox.recv() => {
                    let mut urgent = self.event(event);
                    // Lines that come in a burst are checked in one go.
                    for _ in 0..BURST_MAX {
                        let Ok(event) = inbox.try_recv() else { break };
                        urgent |= self.event(event);
                    }
                    self.take_offers().await;
                    urgent
                }
                Some(news) = heard.recv() => { self.note(&news); self.hear(news); false }
                Ok(()) = sight.changed() => {
                    let now = sight.borrow_and_update().clone();
                    self.picture.set_sight(now);
                    false
                }
                _ = links_tick.tick() => { self.publish_links(); false }
                _ = tick.tick() => {
                    self.say_hash();
                    self.ask();
                    if self.view_due() {
                        self.show();
                    }
                    false
                }
            };
            if urgent && !settling {
                settling = true;
                settle.as_mut().reset(tokio::time::Instant::now() + SETTLE);
            }
        }
    }

    pub(super) fn now(&self) -> Instant {
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

    fn connected_changed(&mut self, connected: Arc<BTreeSet<PeerName>>) {
        let now = self.now();
        self.picture.set_connected(&connected, now);
        let before = std::mem::replace(&mut self.connected, connected.clone());
        for peer in connected.difference(&before) {
            self.greet(peer);
        }
        self.gossip.hurry();
    }

    /// True if the view should be shown soon.
    fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Exchange(from, Exchange::Pull(after)) => {
                let page = Exchange::page(&self.list, after.as_ref());
                self.parts.link.send_gossip(&from, page.write());
                false
            }
            Event::Exchange(from, Exchange::Beyond(marks)) => {
                for page in Exchange::answer(&self.list, &marks).unwrap_or_default() {
                    self.parts.link.send_gossip(&from, page.write());
                }
                false
            }
            Event::Exchange(from, Exchange::Lines { lines, more }) => {
                self.lists.offers.push(Offered { from, lines, more });
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

    /// Gossips those links that changed in a way that matters, and each after ten intervals anyway.
    ///
    /// All links of all peers are as many as the square of the mesh, and everybody holds them: a link that is as it
    /// was is not said again, and in a larger mesh each speaks of its links less often.
    fn publish_links(&mut self) {
        let now = self.now();
        let pause = Span::from(self.config.links_every).scale((self.list.len() as u64).max(16), 16);
        let said = &self.links.0;
        // What others say of their links decides whether a silent member is lost: a link that ended is news.
        let ended = said.iter().any(|l| l.direct && !self.connected.contains(&l.to));
        let wait = if ended { self.config.links_every.into() } else { pause };
        if !said.is_empty() && now < self.links.1 + wait {
            return;
        }
        let again = pause.scale(10, 1).as_millis();
        let mut links = self.parts.link.links();
        for link in &mut links {
            let old = said.binary_search_by(|old| old.to.cmp(&link.to)).ok().map(|at| &said[at]);
            if let Some(old) = old.filter(|o| !matters(o, link) && link.at.0.saturating_sub(o.at.0) < again) {
                *link = old.clone();
            }
        }
        if links == *said {
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

/// Two samples of one link differ by more than noise. A quiet link sends about a packet a second: one that comes
/// late for want of a processor looks like a loss of a percent or two.
fn matters(a: &LinkSample, b: &LinkSample) -> bool {
    let apart = |a: u64, b: u64, least: u64| a.abs_diff(b) > (a.max(b) / 3).max(least);
    a.direct != b.direct
        || a.bandwidth_bps.is_some() != b.bandwidth_bps.is_some()
        || apart(a.bandwidth_bps.unwrap_or(0), b.bandwidth_bps.unwrap_or(0), 0)
        || apart(a.rtt_us, b.rtt_us, 500)
        || apart(a.loss_ppm.into(), b.loss_ppm.into(), 20_000)
}
