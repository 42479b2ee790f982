//! Keeps everybody's member list the same: what `exchange` says, done.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::exchange::Exchange;
use super::task::Task;
use crate::base::{Instant, PeerName, Span};
use crate::runtime::gossip::Facet;
use crate::runtime::members::SignedEntry;

/// Linked peers to whom a line that came from another peer is passed on, once.
const PASS_ON: usize = 3;
/// Between questions for what a list lacks.
const ASK_EVERY: Span = Span::millis(500);
/// Every so many questions is one that peers of an older version know.
const ASK_PLAINLY: u64 = 4;
/// The hash is gossiped at most this often per member: it only repairs what a push missed, and everybody checks
/// everybody's signature on it.
const SAY_EVERY: Span = Span::millis(50);
/// A hash older than this peer's own list says little about whether the other one has caught up; later it does.
const SETTLED_AFTER: Span = Span::secs(2);

/// So many of the first peers that it is linked to are asked by a peer that starts: until then nobody could push to it.
const GREETED_MAX: usize = 4;

/// Lines of another peer that wait for the disk.
pub(super) struct Offered {
    pub(super) from: PeerName,
    pub(super) lines: Vec<SignedEntry>,
    /// It has others after the last one.
    pub(super) more: bool,
}

/// What this side remembers of the exchange.
#[derive(Default)]
pub(super) struct Lists {
    /// Of the list as last seen.
    hash: String,
    changed_at: Instant,
    /// As last gossiped, and when.
    said: Option<(String, Instant)>,
    asked_at: Option<Instant>,
    asked: u64,
    /// Newly linked peers that were asked what this one lacks.
    greeted: usize,
    /// Names whose newest line came from another peer, which has pushed it to all that it is linked to.
    heard: BTreeSet<PeerName>,
    pub(super) offers: Vec<Offered>,
}

impl Task {
    fn per_member(&self, span: Span) -> Span {
        span.scale(self.list.len() as u64, 1)
    }

    /// Sends what is new to those who may not have it, and tells gossip and the transport who belongs.
    pub(super) fn members_changed(&mut self) {
        let now = self.now();
        let before = std::mem::replace(&mut self.list, self.parts.members.list());
        let fresh = |line: &&SignedEntry| line.entry().is_some_and(|e| before.line(&e.name) != Some(*line));
        let new: Vec<SignedEntry> = self.list.lines_after(None).filter(fresh).cloned().collect();
        let heard = std::mem::take(&mut self.lists.heard);
        let theirs = |line: &SignedEntry| line.entry().is_some_and(|e| heard.contains(&e.name));
        let (theirs, own): (Vec<_>, Vec<_>) = new.into_iter().partition(theirs);
        let mut linked: Vec<PeerName> = self.connected.iter().cloned().collect();
        self.push_lines(own, &linked);
        self.rng.shuffle(&mut linked);
        linked.truncate(PASS_ON);
        self.push_lines(theirs, &linked);
        self.picture.set_members(&self.list, now);
        let others = self.list.members().map(|e| e.name.clone()).filter(|name| *name != self.me);
        self.parts.link.set_members(others.collect());
        (self.lists.hash, self.lists.changed_at) = (self.list.hash(), now);
        self.say_hash();
        if self.list.entry(&self.me).is_some_and(|e| e.removed) {
            tracing::error!("this peer was removed from the mesh: the others refuse it");
        }
    }

    /// Asks a newly linked peer what this one lacks, if it is one of the first, or one that is on no list here: it
    /// proved by its certificate that it was admitted, and its own list will tell by whom.
    pub(super) fn greet(&mut self, peer: &PeerName) {
        if self.lists.greeted < GREETED_MAX || self.list.entry(peer).is_none() {
            self.lists.greeted += 1;
            self.parts.link.send_gossip(peer, Exchange::beyond(&self.list).write());
        }
    }

    fn push_lines(&self, lines: Vec<SignedEntry>, to: &[PeerName]) {
        for page in Exchange::push(lines) {
            let bytes = page.write();
            for peer in to {
                // Whoever misses it sees another hash than its own, and asks.
                self.parts.link.send_gossip(peer, bytes.clone());
            }
        }
    }

    /// Gossips the list's hash, if it is due.
    pub(super) fn say_hash(&mut self) {
        let now = self.now();
        let pause = self.per_member(SAY_EVERY);
        let said = self.lists.said.as_ref();
        if said.is_some_and(|(hash, at)| *hash == self.lists.hash || now.since(*at) < pause) {
            return;
        }
        if let Err(e) = self.gossip.publish(&Facet::Members(self.lists.hash.clone())) {
            tracing::error!("the member list's hash was not published: {e}");
        }
        self.lists.said = Some((self.lists.hash.clone(), now));
    }

    /// Takes the lines that came; the disk is waited for elsewhere, once for all of them.
    pub(super) async fn take_offers(&mut self) {
        let offers = std::mem::take(&mut self.lists.offers);
        if offers.is_empty() {
            return;
        }
        let members = self.parts.members.clone();
        let offered = tokio::task::spawn_blocking(move || {
            let mut lines = Vec::new();
            let mut ends = Vec::new();
            for offer in offers {
                let last = offer.lines.last().and_then(SignedEntry::claimed_name);
                ends.extend(last.filter(|_| offer.more).map(|last| (offer.from, last)));
                lines.extend(offer.lines);
            }
            (members.offer(lines), ends)
        });
        match offered.await {
            Ok((Ok(offer), ends)) => {
                self.counters.lines_taken.fetch_add(offer.taken.len() as u64, Ordering::Relaxed);
                self.counters.lines_refused.fetch_add(offer.refused as u64, Ordering::Relaxed);
                let names = offer.taken.iter().filter_map(SignedEntry::entry).map(|e| e.name.clone());
                self.lists.heard.extend(names);
                // A page of nothing but refused lines ends the exchange: it could go on for ever.
                for (from, last) in ends.into_iter().filter(|_| offer.refused == 0) {
                    self.parts.link.send_gossip(&from, Exchange::Pull(Some(last)).write());
                }
            }
            Ok((Err(e), _)) => tracing::error!("member lines not taken: {e}"),
            Err(e) => tracing::error!("member lines not taken: {e}"),
        }
    }

    /// Asks one of the peers whose list differs for what this one lacks.
    pub(super) fn ask(&mut self) {
        let now = self.now();
        let lists = &self.lists;
        if lists.asked_at.is_some_and(|at| now.since(at) < ASK_EVERY) {
            return;
        }
        let settled = now.since(lists.changed_at) >= SETTLED_AFTER + self.per_member(SAY_EVERY).scale(2, 1);
        let since = if settled { Instant::default() } else { lists.changed_at };
        let differing = self.picture.differing(&lists.hash, since);
        let Some(peer) = self.rng.pick(&differing) else { return };
        self.lists.asked_at = Some(now);
        self.lists.asked += 1;
        self.counters.pulls.fetch_add(1, Ordering::Relaxed);
        let plainly = self.lists.asked.is_multiple_of(ASK_PLAINLY);
        let question = if plainly { Exchange::Pull(None) } else { Exchange::beyond(&self.list) };
        self.parts.link.send_gossip(peer, question.write());
    }
}
