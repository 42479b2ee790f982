//! The soft view: reports as they were heard, with their age, and who looks how alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::{Instant, PeerName, StoreId};
use crate::core::api::Flash;
use crate::model::report::{LinkSample, Liveness, MemberView, QueueReport, Report, View};
use crate::runtime::gossip::{Facet, Heard, Sight};
use crate::runtime::liveness::{Evidence, Rules, Verdict, judge};
use crate::runtime::members::MemberList;

/// What one peer says of itself, and what was noticed about it.
#[derive(Debug, Clone, Default)]
struct Soft {
    generation: u64,
    /// Shared with the views that were given out: a change copies this one report, once per view.
    parts: Option<Arc<Report>>,
    links: BTreeMap<usize, Vec<LinkSample>>,
    draining: bool,
    /// Of its member list, and when it was heard.
    members_hash: Option<(String, Instant)>,
    connected: bool,
    disconnected_at: Option<Instant>,
    suspected_at: Option<Instant>,
    /// Said goodbye in this generation.
    left: Option<u64>,
    first_known: Instant,
}

/// Everything behind [`View`].
#[derive(Debug)]
pub struct Picture {
    me: PeerName,
    rules: Rules,
    soft: BTreeMap<PeerName, Soft>,
    sight: Arc<Sight>,
    /// When this peer last found itself isolated.
    alone_at: Instant,
    /// As last shown; a view is large, and is only built anew when this or what was said changed.
    verdict: Verdict,
    changed: bool,
}

impl Picture {
    /// With nothing heard yet.
    pub fn new(me: PeerName, rules: Rules) -> Self {
        Self {
            me,
            rules,
            soft: BTreeMap::new(),
            sight: Default::default(),
            alone_at: Instant::default(),
            verdict: Verdict::default(),
            changed: true,
        }
    }

    /// Forgets whoever is no longer a member.
    pub fn set_members(&mut self, list: &MemberList, now: Instant) {
        self.changed = true;
        self.soft.retain(|name, _| list.member(name).is_some());
        for entry in list.members() {
            self.soft
                .entry(entry.name.clone())
                .or_insert_with(|| Soft { first_known: now, ..Soft::default() });
        }
    }

    /// What gossip sees.
    pub fn set_sight(&mut self, sight: Arc<Sight>) {
        for (name, seen) in sight.iter() {
            // A newer incarnation takes back the goodbye of the old one.
            if let Some(soft) =
                self.soft.get_mut(name).filter(|s| s.left.is_some_and(|g| seen.generation > g))
            {
                soft.left = None;
            }
        }
        self.sight = sight;
    }

    /// Which links stand.
    pub fn set_connected(&mut self, connected: &std::collections::BTreeSet<PeerName>, now: Instant) {
        for (name, soft) in &mut self.soft {
            let is = connected.contains(name);
            if soft.connected && !is {
                soft.disconnected_at = Some(now);
            }
            if is && !soft.connected {
                // Whoever opens a new link after its goodbye is back.
                soft.left = None;
                soft.suspected_at = None;
            }
            soft.connected = is;
        }
    }

    /// Takes a facet, one of ours too.
    pub fn hear(&mut self, heard: Heard, store: StoreId, now: Instant) {
        let Some(soft) = self.soft.get_mut(&heard.peer) else { return };
        if heard.generation < soft.generation {
            return;
        }
        self.changed = true;
        if heard.generation > soft.generation {
            // What an earlier life said is over, except for its place.
            (soft.generation, soft.parts, soft.draining) = (heard.generation, None, false);
            soft.links.clear();
        }
        let peer = heard.peer.clone();
        let report = Arc::make_mut(soft.parts.get_or_insert_with(|| Arc::new(blank(peer, store))));
        (report.store, report.heard_at) = (store, now);
        match heard.facet {
            Facet::Capacity(v) => report.capacity = Some(v),
            Facet::Queue(v) => {
                soft.draining = v.closed.as_deref().is_some_and(|why| why.contains("drain"));
                report.queue = Some(v);
            }
            Facet::Contact(v) => report.contact = Some(v),
            Facet::Health(v) => report.health = Some(v),
            Facet::Build(v) => report.build = Some(v),
            Facet::Links(v) => report.links = v,
            Facet::LinksPage(page, v) => {
                soft.links.insert(page, v);
                // While a growing mesh makes more pages of its links, one may stand in two of them for a moment.
                let all = soft.links.values().flatten().map(|l| (&l.to, l));
                report.links = all.collect::<BTreeMap<_, _>>().into_values().cloned().collect();
            }
            Facet::Members(hash) => soft.members_hash = Some((hash, now)),
            Facet::Data(v) => report.data = Some(v),
            Facet::Images(v) => report.images = Some(v),
            Facet::Alerts(v) => report.alerts = Some(Arc::new(v)),
            Facet::Unknown => {}
        }
    }

    /// Takes an urgent hint. Only a cluster itself says what it has, that it drains or that it leaves.
    pub fn flash(&mut self, origin: &PeerName, flash: &Flash, store: StoreId, now: Instant) -> bool {
        match flash {
            Flash::Capacity { cluster, queue } if cluster == origin => {
                // A flash carries less than gossip does: the rest stays as it was heard.
                let parts = self.soft.get(origin).and_then(|s| s.parts.as_ref());
                let old = parts.and_then(|p| p.queue.clone()).unwrap_or_default();
                let facet = Facet::Queue(QueueReport {
                    waits: old.waits,
                    gpus_reclaimable: old.gpus_reclaimable,
                    gpus_buffer: old.gpus_buffer,
                    buffer_priority: old.buffer_priority,
                    gpus_left: old.gpus_left,
                    reserved: old.reserved,
                    reserved_more: old.reserved_more,
                    keeps: old.keeps,
                    ..queue.clone()
                });
                if facet.write().is_err() {
                    return false;
                }
                let generation = self.soft.get(origin).map_or(0, |s| s.generation);
                self.hear(Heard { peer: origin.clone(), generation, facet }, store, now);
            }
            Flash::Suspect { cluster } if *cluster != self.me && cluster != origin => {
                let Some(soft) = self.soft.get_mut(cluster) else { return false };
                soft.suspected_at = Some(now);
            }
            Flash::Drain { cluster, draining } if cluster == origin => {
                let Some(soft) = self.soft.get_mut(cluster) else { return false };
                self.changed |= soft.draining != *draining;
                soft.draining = *draining;
            }
            Flash::Leaving { peer } if peer == origin && *peer != self.me => {
                let seen = self.sight.get(peer).map_or(0, |s| s.generation);
                let Some(soft) = self.soft.get_mut(peer) else { return false };
                soft.left = Some(seen.max(soft.generation));
            }
            _ => return false,
        }
        true
    }

    /// Peers whose member list differs from this hash, by what was heard of them since then.
    pub fn differing(&self, hash: &str, since: Instant) -> Vec<PeerName> {
        let differs = |s: &Soft| s.members_hash.as_ref().is_some_and(|(h, at)| h != hash && *at >= since);
        self.soft.iter().filter(|(n, s)| **n != self.me && differs(s)).map(|(n, _)| n.clone()).collect()
    }

    fn judge(&self, now: Instant) -> Verdict {
        let phi = |name: &PeerName| self.sight.get(name).map(|s| s.phi_alive);
        let alive = |name: &PeerName, s: &Soft| s.connected || phi(name) == Some(true);
        // Only of those whom neither link nor gossip shows alive: all links of all peers are many.
        let missing = |name: &PeerName| self.soft.get(name).is_some_and(|s| !alive(name, s));
        let mut seen: BTreeMap<&PeerName, usize> = BTreeMap::new();
        if self.soft.iter().any(|(n, s)| *n != self.me && !alive(n, s)) {
            for (_, soft) in self.soft.iter().filter(|(n, s)| **n != self.me && alive(n, s)) {
                for link in soft.links.values().flatten().filter(|l| l.direct && missing(&l.to)) {
                    *seen.entry(&link.to).or_default() += 1;
                }
            }
        }
        let evidence = |name: &PeerName, s: &Soft| {
            let beat = self.sight.get(name).map(|s| s.heartbeat_at);
            let heard_at = [beat, s.disconnected_at].into_iter().flatten().max().unwrap_or(s.first_known);
            Evidence {
                connected: s.connected,
                disconnected_at: s.disconnected_at,
                phi_alive: phi(name),
                heard_at,
                seen_by_others: seen.get(name).copied().unwrap_or(0),
                suspected_at: s.suspected_at,
                alone_until: self.alone_at,
                left: s.left.is_some(),
            }
        };
        let others = self.soft.iter().filter(|(n, _)| **n != self.me);
        judge(now, &others.map(|(n, s)| (n.clone(), evidence(n, s))).collect(), &self.rules)
    }

    /// The view, if it differs from the last one that was given out.
    pub fn refresh(&mut self, list: &MemberList, now: Instant) -> Option<View> {
        let verdict = self.judge(now);
        if verdict.isolated {
            self.alone_at = now;
        }
        if !self.changed && verdict == self.verdict {
            return None;
        }
        (self.changed, self.verdict) = (false, verdict);
        Some(self.view(list))
    }

    fn view(&self, list: &MemberList) -> View {
        let verdict = &self.verdict;
        let member = |entry: &crate::runtime::members::Entry| {
            let soft = self.soft.get(&entry.name);
            let liveness = if entry.name == self.me {
                Liveness::Alive
            } else {
                verdict.liveness.get(&entry.name).copied().unwrap_or(Liveness::Suspect)
            };
            MemberView {
                peer: entry.name.clone(),
                store: entry.store,
                witness: entry.witness,
                liveness,
                draining: soft.is_some_and(|s| s.draining),
                report: soft.and_then(|s| s.parts.clone()),
            }
        };
        let members = list.members().map(|e| (e.name.clone(), member(e))).collect();
        View { members, isolated: verdict.isolated }
    }
}

fn blank(peer: PeerName, store: StoreId) -> Report {
    Report {
        peer,
        store,
        capacity: None,
        queue: None,
        contact: None,
        health: None,
        build: None,
        links: Vec::new(),
        data: None,
        images: None,
        alerts: None,
        heard_at: Instant::default(),
    }
}
