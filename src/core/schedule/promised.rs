//! Capacity that is promised to a tenant from a time on, for a time: reservations as the queue sees them.
//!
//! A promise pins GPUs, and with each its part of the node's CPU and memory. A request *conflicts* with a promise of another
//! tenant if it might still run when that begins: then the pinned part counts as taken. A preemptible one does not until
//! the notice is due; from then on what conflicts is told to stop. The tenant's own requests take from its running promises
//! first, past everything that waits.
//!
//! Pins of promises that meet in time never meet in place. Where capacity goes away a promise is pinned elsewhere, as far as
//! there is room (`repin`).

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::{Choice, Fit, fit};
use super::{Pass, Request, Running, SLACK, Scheduler, Why};
use crate::base::{Instant, JobId, Span};
use crate::core::api::NodeShare;
use crate::core::books::{Books, Need, WHOLE};
use crate::model::report::NodeCapacity;

/// Promises of one cluster: a set of them is one number.
pub const PROMISES_MAX: usize = 64;
/// Moments that are looked at for when a promise could begin.
const MOMENTS_MAX: usize = 128;

/// GPUs of one tenant for a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The reservation.
    pub id: JobId,
    /// Whose.
    pub tenant: String,
    /// How many GPUs.
    pub gpus: u32,
    /// What one of them is.
    pub need: Need,
    /// From when on,
    pub from: Instant,
    /// and until when.
    pub until: Instant,
    /// Which: one share per node.
    pub shares: Vec<NodeShare>,
}

impl Promise {
    /// GPUs that are pinned; fewer than promised where nodes went away.
    pub fn pinned(&self) -> u32 {
        count(&self.shares)
    }
    /// Its time has begun and is not over.
    pub fn runs(&self, now: Instant) -> bool {
        self.from <= now && now < self.until
    }
    fn meets(&self, from: Instant, until: Instant) -> bool {
        self.from < until && from < self.until
    }
    fn has(&self, share: &NodeShare) -> usize {
        let here = self.shares.iter().filter(|s| s.node == share.node);
        here.map(|s| share.gpus.iter().filter(|g| s.gpus.contains(g)).count()).sum()
    }
}

/// Why a promise cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// So many GPUs could be.
    pub can: u32,
    /// Of those that will do so many are promised to others at the time,
    pub promised: u32,
    /// and so many are held by attempts that may not be stopped and do not end before.
    pub held: u32,
    /// From when on it could be kept.
    pub next: Option<Instant>,
}

/// All promises of a cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Promised {
    list: Vec<Promise>,
    /// The nodes when all is free; made when there is a promise.
    whole: Option<Books>,
    /// Thousandths of GPUs that are promised to somebody now, and that nobody uses.
    pub idle: u64,
}

fn count(shares: &[NodeShare]) -> u32 {
    shares.iter().map(|s| s.gpus.len() as u32).sum()
}

fn bit(at: usize) -> u64 {
    1u64.checked_shl(at as u32).unwrap_or(0)
}

/// Takes whole nodes first, then the one where the least is left over; as many as there are.
fn choose(mut room: BTreeMap<u32, Vec<u32>>, gpus: u32) -> Vec<NodeShare> {
    let (mut shares, mut left) = (Vec::new(), gpus as usize);
    while left > 0 && !room.is_empty() {
        let size = |(_, free): &(&u32, &Vec<u32>)| free.len();
        let whole = room
            .iter()
            .filter(|one| size(one) <= left)
            .max_by_key(|one| (size(one), std::cmp::Reverse(*one.0)));
        let Some(node) = whole.or_else(|| room.iter().min_by_key(|one| (size(one), *one.0))).map(|(n, _)| *n)
        else {
            break;
        };
        let mut free = room.remove(&node).unwrap_or_default();
        free.truncate(left);
        left -= free.len();
        if !free.is_empty() {
            shares.push(NodeShare { node, gpus: free });
        }
    }
    shares.sort_by_key(|s| s.node);
    shares
}

impl<K: Copy + Ord> Scheduler<K> {
    /// What is promised from now on, at most `PROMISES_MAX`. Before a pass, so that their times are of its clock.
    pub fn set_promises(&mut self, nodes: &[NodeCapacity], mut list: Vec<Promise>) {
        list.truncate(PROMISES_MAX);
        self.changes += u64::from(self.promised.list != list);
        if list.is_empty() {
            self.promised = Promised::default();
            return;
        }
        if self.promised.whole.is_none() {
            self.promised.whole = Some(self.books.renewed(nodes));
        }
        self.promised.list = list;
    }

    /// Other nodes: what is pinned is looked at again.
    pub(super) fn promises_on(&mut self, nodes: &[NodeCapacity]) {
        if self.promised.whole.is_some() {
            self.promised.whole = Some(self.books.renewed(nodes));
        }
    }

    /// What is promised.
    pub fn promises(&self) -> &[Promise] {
        &self.promised.list
    }

    /// GPUs of a promise that its tenant's attempts and grants hold, and those that nobody holds.
    pub fn use_of(&self, promise: &Promise) -> (u32, Vec<NodeShare>) {
        let own = self.running.values().filter(|r| r.request.tenant == promise.tenant);
        let used: usize = own.flat_map(|r| &r.shares).map(|share| promise.has(share)).sum();
        let free = |s: &NodeShare| {
            let node = self.books.nodes().get(s.node as usize);
            let free = |g: &&u32| node.is_some_and(|n| n.gpus.get(**g as usize) == Some(&WHOLE));
            NodeShare { node: s.node, gpus: s.gpus.iter().filter(free).copied().collect() }
        };
        let idle = promise.shares.iter().map(free).filter(|s| !s.gpus.is_empty()).collect();
        (used as u32, idle)
    }

    /// GPUs that are promised to somebody now and that nobody uses.
    pub(super) fn note_idle(&mut self, now: Instant) {
        let running = self.promised.list.iter().filter(|p| p.runs(now));
        let idle: u32 = running.map(|p| count(&self.use_of(p).1)).sum();
        self.promised.idle = u64::from(idle) * u64::from(WHOLE);
    }

    /// Promises of others that a request would run into if it started now.
    pub(super) fn conflicts(&self, request: &Request, now: Instant) -> u64 {
        let end = request.max_runtime.map(|run| now + SLACK + run);
        let hits = |p: &Promise| {
            let ends = end.is_some_and(|end| end <= p.from);
            let goes = self.sendable(request) && now + self.config.notice + SLACK <= p.from;
            p.tenant != request.tenant && p.until > now && !ends && !goes
        };
        self.all_that(hits)
    }

    fn all_that(&self, hits: impl Fn(&Promise) -> bool) -> u64 {
        let all = self.promised.list.iter().enumerate();
        all.filter(|(_, p)| hits(p)).fold(0, |bits, (at, _)| bits | bit(at))
    }

    fn sendable(&self, request: &Request) -> bool {
        request.preemptible && self.config.preemption
    }

    fn of_bits(&self, bits: u64) -> impl Iterator<Item = &Promise> {
        self.promised.list.iter().enumerate().filter(move |(at, _)| bits & bit(*at) != 0).map(|(_, p)| p)
    }

    /// Takes from books what these promises keep and nobody uses yet; `gone` are let go in these books.
    pub(super) fn withhold(&self, books: &mut Books, bits: u64, gone: &dyn Fn(&K) -> bool) {
        let Some(whole) = self.promised.whole.as_ref().filter(|_| bits != 0) else { return };
        for share in self.of_bits(bits).flat_map(|p| &p.shares) {
            let Some(node) = whole.nodes().get(share.node as usize).filter(|n| !n.gpus.is_empty()) else {
                continue;
            };
            let (all, kept) = (node.gpus.len() as u64, share.gpus.len() as u64);
            let (mut cpus, mut memory) = (node.cpus / all * kept, node.memory / all * kept);
            for r in self.running.iter().filter(|(key, _)| !gone(key)).map(|(_, r)| r) {
                for held in r.shares.iter().filter(|s| s.node == share.node && !s.gpus.is_empty()) {
                    let (n, here) =
                        (held.gpus.len() as u64, held.gpus.iter().filter(|g| share.gpus.contains(g)));
                    let here = here.count() as u64;
                    cpus = cpus.saturating_sub(r.request.need.cpus / n * here);
                    memory = memory.saturating_sub(r.request.need.memory / n * here);
                }
            }
            let need = Need { gpus: share.gpus.len() as u32, milli: WHOLE, cpus, memory, ..Need::default() };
            books.take(std::slice::from_ref(share), &need);
        }
    }

    /// What is free now beside these promises; kept for the pass.
    pub(super) fn beside<'p>(&self, bits: u64, masks: &'p mut BTreeMap<u64, Books>) -> Option<&'p Books> {
        if bits == 0 {
            return None;
        }
        let made = || {
            #[cfg(test)]
            crate::base::work::count("books beside promises");
            let mut books = self.books.clone();
            self.withhold(&mut books, bits, &|_| false);
            books
        };
        Some(masks.entry(bits).or_insert_with(made))
    }

    /// A grant of this pass changes what is free beside promises.
    pub(super) fn note_grant(&self, shares: &[NodeShare], need: &Need, masks: &mut BTreeMap<u64, Books>) {
        let on_pins = |bits: u64| self.of_bits(bits).any(|p| shares.iter().any(|s| p.has(s) > 0));
        masks.retain(|bits, _| !on_pins(*bits));
        masks.values_mut().for_each(|books| books.take(shares, need));
    }

    /// Some of these GPUs are pinned by one of these promises.
    pub(super) fn pinned_by(&self, bits: u64, r: &Running) -> bool {
        bits != 0 && self.of_bits(bits).any(|p| r.shares.iter().any(|s| p.has(s) > 0))
    }

    /// Those of others that are not over at a time: what a request that waits until then must leave alone.
    pub(super) fn others_at(&self, tenant: &str, at: Instant) -> u64 {
        self.all_that(|p| p.tenant != tenant && p.until > at)
    }

    /// Moments from which on less is promised.
    pub(super) fn promise_ends(&self, now: Instant) -> Vec<Instant> {
        self.promised.list.iter().map(|p| p.until).filter(|at| *at > now).collect()
    }

    /// The reservation of another tenant for whose sake a waiting request does not start, if it would start without.
    pub fn held_back_by(&self, key: &K, now: Instant) -> Option<JobId> {
        let request = &self.waiting.get(key)?.request;
        let bits = self.conflicts(request, now);
        let first = self.first_of(bits)?;
        let fits = |also: &[&Books]| {
            fit(&self.books, request.ranks, &request.need, &Choice { also, ..Choice::default() }).is_some()
        };
        let mut masks = BTreeMap::new();
        let beside = self.beside(bits, &mut masks)?;
        (fits(&[]) && !fits(&[beside])).then_some(first)
    }

    /// The one of these promises that begins first.
    pub(super) fn first_of(&self, bits: u64) -> Option<JobId> {
        self.of_bits(bits).min_by_key(|p| (p.from, p.id)).map(|p| p.id)
    }

    // The tenant's own.

    /// Where a request fits inside what is promised to its tenant now.
    pub(super) fn fit_inside(&self, request: &Request, now: Instant) -> Option<Fit> {
        if self.promised.list.is_empty() || request.need.gpus == 0 {
            return None;
        }
        let own = |p: &&Promise| p.tenant == request.tenant && p.runs(now);
        let mut inside: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut idle = 0;
        for share in self.promised.list.iter().filter(own).flat_map(|p| self.use_of(p).1) {
            idle += u64::from(count(std::slice::from_ref(&share)));
            inside.entry(share.node).or_default().extend(share.gpus);
        }
        if idle == 0 || idle < u64::from(request.need.gpus) * u64::from(request.ranks) {
            return None;
        }
        let inside = self.books.only(&inside);
        let mut masks = BTreeMap::new();
        let beside = self.beside(self.conflicts(request, now), &mut masks);
        let also: Vec<&Books> = std::iter::once(&inside).chain(beside).collect();
        let choice = Choice { mix: Some(&self.mix), topologies: &self.topologies, also: &also };
        fit(&self.books, request.ranks, &request.need, &choice)
    }

    /// Waiting requests of tenants whose promised GPUs are idle, in their order.
    pub(super) fn entitled(&self, now: Instant, may: &dyn Fn(&K) -> bool) -> Vec<K> {
        let idle = self.promised.list.iter().filter(|p| p.runs(now) && !self.use_of(p).1.is_empty());
        let tenants: BTreeSet<&str> = idle.map(|p| p.tenant.as_str()).collect();
        let named = tenants.into_iter().filter_map(|tenant| self.accounts.known(tenant));
        named
            .flat_map(|tenant| self.queue.of(tenant).filter(|key| may(key)).take(self.config.depth))
            .collect()
    }

    /// Grants a request inside what is promised to its tenant. True if it was.
    pub(super) fn grant_inside(&mut self, key: K, pass: &mut Pass<K>) -> bool {
        if self.promised.list.is_empty() {
            return false;
        }
        let Some(request) = self.waiting.get(&key).map(|w| w.request.clone()) else { return false };
        let Some(Fit { shares, fragments, .. }) = self.fit_inside(&request, pass.now) else { return false };
        self.grant(key, request, shares, fragments, Why::Reserved, pass);
        self.note_idle(pass.now);
        true
    }

    /// Whoever is on GPUs whose promise is about to begin, and may be sent away, shall be told to stop: for which
    /// reservation, and whom. Noted as done.
    pub fn clear_promised(&mut self, now: Instant) -> Vec<(JobId, Vec<K>)> {
        let mut due: Vec<(JobId, Vec<K>)> = Vec::new();
        for p in self.promised.list.iter().filter(|p| p.from <= now + self.config.notice && p.until > now) {
            let stays = |r: &Running| {
                r.request.tenant != p.tenant
                    && !r.stopping
                    && self.sendable(&r.request)
                    && r.ends.is_none_or(|end| end > p.from.max(now))
                    && r.shares.iter().any(|s| p.has(s) > 0)
            };
            let victims = self.running.iter().filter(|(_, r)| stays(r)).map(|(key, _)| *key).collect();
            due.push((p.id, victims));
        }
        for (_, victims) in &mut due {
            // It may be on what is promised to two.
            victims.retain(|key| self.running.get(key).is_some_and(|r| !r.stopping));
            for victim in victims.iter() {
                self.stops(victim, now + self.config.notice);
            }
        }
        due.retain(|(_, victims)| !victims.is_empty());
        due
    }

    // Planning.

    /// GPUs that are free for a promise over a time, by node: those that no other promise, no attempt that stays and nobody else holds.
    fn room(
        &self,
        asked: &Promise,
        (from, until): (Instant, Instant),
        sends: bool,
        ignore: &dyn Fn(&JobId) -> bool,
    ) -> (BTreeMap<u32, Vec<u32>>, u32, u32) {
        let mut taken: BTreeSet<(u32, u32)> = BTreeSet::new();
        let all = |shares: &[NodeShare]| -> Vec<(u32, u32)> {
            shares.iter().flat_map(|s| s.gpus.iter().map(|g| (s.node, *g))).collect()
        };
        let others = self.promised.list.iter().filter(|p| p.id != asked.id && !ignore(&p.id));
        others.filter(|p| p.meets(from, until)).for_each(|p| taken.extend(all(&p.shares)));
        let promised = taken.clone();
        let mut known: BTreeSet<(u32, u32)> = BTreeSet::new();
        for r in self.running.values() {
            let held = all(&r.shares);
            known.extend(held.iter().copied());
            let goes = r.stopping
                || r.request.tenant == asked.tenant
                || r.ends.is_some_and(|end| end <= from)
                || (sends && self.sendable(&r.request));
            if !goes {
                taken.extend(held);
            }
        }
        let mut room: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let (mut to_others, mut held) = (0, 0);
        for (at, node) in (0u32..).zip(self.books.nodes()) {
            if node.gpus.is_empty() || !asked.need.takes(node.pool) {
                continue;
            }
            for (g, free) in (0u32..).zip(&node.gpus) {
                let foreign = *free < WHOLE && !known.contains(&(at, g));
                match (promised.contains(&(at, g)), foreign || taken.contains(&(at, g))) {
                    (true, _) => to_others += 1,
                    (_, true) => held += 1,
                    _ => room.entry(at).or_default().push(g),
                }
            }
        }
        (room, to_others, held)
    }

    /// Which GPUs a promise would get, those first that nobody has to leave; `ignore` leaves promises out.
    pub fn plan_promise(
        &self,
        asked: &Promise,
        now: Instant,
        ignore: &dyn Fn(&JobId) -> bool,
    ) -> Result<Vec<NodeShare>, Short> {
        let from = asked.from.max(now);
        let length = asked.until.since(asked.from);
        let sum = |room: &BTreeMap<u32, Vec<u32>>| room.values().map(|g| g.len() as u32).sum::<u32>();
        for sends in [false, true] {
            let (room, ..) = self.room(asked, (from, asked.until), sends, ignore);
            if sum(&room) >= asked.gpus {
                return Ok(choose(room, asked.gpus));
            }
        }
        let (room, promised, held) = self.room(asked, (from, asked.until), true, ignore);
        let ends = self.running.values().filter_map(|r| r.ends);
        let moments = ends.chain(self.promised.list.iter().map(|p| p.until)).filter(|at| *at > from);
        let moments: BTreeSet<Instant> = moments.collect();
        let fits = |at: &Instant| {
            let (room, ..) = self.room(asked, (*at, *at + length), true, ignore);
            sum(&room) >= asked.gpus
        };
        let next = moments.into_iter().take(MOMENTS_MAX).find(fits);
        Err(Short { can: sum(&room), promised, held, next })
    }

    /// Promises whose pins no longer hold get others, as far as there is room: those that changed.
    pub fn repin(&mut self, now: Instant) -> Vec<JobId> {
        let mut changed = Vec::new();
        for at in 0..self.promised.list.len() {
            let p = &self.promised.list[at];
            if p.until <= now || self.pins_hold(at, now) {
                continue;
            }
            let window = (p.from.max(now), p.until);
            let (mut room, ..) = self.room(p, window, true, &|_| false);
            let (mut shares, mut free): (Vec<NodeShare>, _) = (Vec::new(), p.gpus);
            for s in &p.shares {
                let here = room.get_mut(&s.node);
                let stay: Vec<u32> =
                    here.iter().flat_map(|g| g.iter()).filter(|g| s.gpus.contains(g)).copied().collect();
                here.into_iter().for_each(|g| g.retain(|g| !stay.contains(g)));
                free = free.saturating_sub(stay.len() as u32);
                if !stay.is_empty() {
                    shares.push(NodeShare { node: s.node, gpus: stay });
                }
            }
            room.retain(|_, gpus| !gpus.is_empty());
            for s in choose(room, free) {
                match shares.iter_mut().find(|mine| mine.node == s.node) {
                    Some(mine) => mine.gpus.extend(s.gpus),
                    None => shares.push(s),
                }
            }
            shares.iter_mut().for_each(|s| s.gpus.sort_unstable());
            shares.sort_by_key(|s| s.node);
            if shares != self.promised.list[at].shares {
                changed.push(self.promised.list[at].id);
                self.promised.list[at].shares = shares;
                self.changes += 1;
            }
        }
        changed
    }

    /// All GPUs of a promise are pinned, there, of its kind, and nobody is on them who stays beyond its begin.
    fn pins_hold(&self, at: usize, now: Instant) -> bool {
        let p = &self.promised.list[at];
        let there = |s: &NodeShare| {
            let node = self.books.nodes().get(s.node as usize);
            node.is_some_and(|n| p.need.takes(n.pool) && s.gpus.iter().all(|g| (*g as usize) < n.gpus.len()))
        };
        if p.pinned() != p.gpus || !p.shares.iter().all(there) {
            return false;
        }
        let mut others =
            self.promised.list.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, q)| q);
        if others.any(|q| q.meets(p.from, p.until) && q.shares.iter().any(|s| p.has(s) > 0)) {
            return false;
        }
        let due = p.from <= now + self.config.notice + Span::secs(60);
        let stuck = |r: &Running| {
            r.request.tenant != p.tenant
                && !r.stopping
                && !self.sendable(&r.request)
                && r.ends.is_none_or(|end| end > p.from.max(now))
                && r.shares.iter().any(|s| p.has(s) > 0)
        };
        !due || !self.running.values().any(stuck)
    }
}

#[cfg(test)]
#[path = "promised_tests.rs"]
mod tests;
