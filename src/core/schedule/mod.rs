//! The queue of one cluster as pure policy: requests and running attempts in, decisions out. No peer in sight.
//!
//! `Scheduler` is told what waits, what runs and what ended, and `decide` says what starts where, who is sent away
//! for whom, and why. Keys are the caller's (a cluster uses attempts, a simulation numbers). Time is the caller's, too.
//!
//! | file | what |
//! |---|---|
//! | `order` | priority, then the turn of tenants, then age |
//! | `fair` | what tenants used, decaying, by weight |
//! | `nodes` | which nodes and GPUs: least fragmentation, tightest set |
//! | `backfill` | the reservation of what does not fit, and what may run before it |
//! | `preempt` | victims |
//! | `promised` | capacity that is promised to a tenant for a time |
//! | `outlook` | places and start estimates |
//! | `elsewhere` | what other clusters keep for whom |
//! | `stand` | what a request lacks now |
//!
//! **Bounds.** One pass looks at `depth` requests and tries each kind of request that does not fit once; joining costs one
//! try. A try looks at the nodes that have enough whole GPUs. At most `RESERVATIONS_MAX` requests, of disjoint GPU models,
//! have a reservation; finding one copies the books a logarithmic number of times.

// tidy: long because one pass decides over one state: what waits, what runs and what is held

pub mod backfill;
pub mod elsewhere;
#[cfg(test)]
mod elsewhere_tests;
pub mod fair;
pub mod nodes;
pub mod order;
pub mod outlook;
pub mod preempt;
pub mod promised;
pub mod stand;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::backfill::{Kept, Reservation, reserve};
use self::elsewhere::{Elsewhere, Since};
use self::fair::{Accounts, Tenant};
use self::nodes::{Choice, Fit, Mix, fit};
use self::order::Queue;
use self::outlook::MeanRuntime;
use self::promised::Promised;
use super::api::{Held, NodeShare};
use super::books::{Books, Need, WHOLE};
use crate::base::{Instant, Span};
use crate::model::Resources;
use crate::model::report::NodeCapacity;
use crate::model::topology::Topology;

/// Requests that have a reservation at once, each of other GPU models.
pub const RESERVATIONS_MAX: usize = 4;
/// Requests for which victims are sought in one pass.
const PREEMPTS_MAX: usize = 4;
/// Kinds of requests that are remembered not to fit.
const MISSES_MAX: usize = 4_096;
/// Time between a grant and the start of its attempt that is allowed for when a job must end in time.
const SLACK: Span = Span::secs(10);
/// A preemption whose victims are gone this long after their notice without a start is over.
const PIN_AFTER: Span = Span::secs(60);

/// How a cluster orders and chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Tenants' weights in thousandths; one that is not named has 1000.
    pub weights: BTreeMap<String, u32>,
    /// Usage counts half after this long.
    pub half_life: Span,
    /// Urgent requests may send preemptible attempts away.
    pub preemption: bool,
    /// What a victim has between notice and kill.
    pub notice: Span,
    /// A request whose start cannot be known has its nodes held after this long.
    pub starve_after: Span,
    /// Of the mesh's GPUs so many thousandths may be kept at once for jobs whose start cannot be known; the oldest of
    /// these is not counted.
    pub drain_milli: u32,
    /// Of all GPUs so many thousandths are kept free for what comes back from elsewhere and for urgent requests:
    pub buffer_milli: u32,
    /// those of at least this priority.
    pub buffer_priority: u8,
    /// Requests looked at in one pass.
    pub depth: usize,
    /// Distances of GPUs, by node group.
    pub topologies: BTreeMap<String, Topology>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            weights: BTreeMap::new(),
            half_life: Span::secs(24 * 3_600),
            preemption: true,
            notice: Span::secs(30),
            starve_after: Span::secs(30),
            drain_milli: 50,
            buffer_milli: 0,
            buffer_priority: 75,
            depth: 512,
            topologies: BTreeMap::new(),
        }
    }
}

/// What asks for capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who it is accounted to.
    pub tenant: String,
    /// 0 to 100.
    pub priority: u8,
    /// All start together or none does.
    pub ranks: u32,
    /// Of each rank; see `Scheduler::need`.
    pub need: Need,
    /// Longest run; none: nothing is known of its end.
    pub max_runtime: Option<Span>,
    /// May be sent away for a higher priority.
    pub preemptible: bool,
    /// May send others away: its owner gave this cluster, and no other, the token.
    pub token: bool,
    /// It is granted when it fits, and gets no reservation: it may have one at another cluster. While it is the first that
    /// does not fit, nobody behind it gets one here either.
    pub lean: bool,
    /// Since when it waits, microseconds on this cluster's clock; may lie before that clock's start.
    pub since: i64,
}

impl Request {
    /// GPUs of all ranks, each that it has a part of.
    pub fn gpus(&self) -> u64 {
        u64::from(self.need.gpus).saturating_mul(self.ranks.into())
    }
    /// Thousandths of GPUs of all ranks.
    fn milli(&self) -> u64 {
        let each = u64::from(self.need.gpus) * u64::from(self.need.milli);
        each.saturating_mul(u64::from(self.ranks))
    }
}

/// Tenants with a guaranteed share: who may take back what is his, and from whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standings<K> {
    /// GPUs that a tenant may still take of its guaranteed ones.
    pub owns: BTreeMap<String, u64>,
    /// GPUs that a tenant holds beyond its guaranteed ones: no more than these are taken back.
    pub borrowed: BTreeMap<String, u64>,
    /// What may be taken back.
    pub loans: BTreeSet<K>,
}

impl<K> Default for Standings<K> {
    fn default() -> Self {
        Self { owns: BTreeMap::new(), borrowed: BTreeMap::new(), loans: BTreeSet::new() }
    }
}

/// Something that waits.
#[derive(Debug, Clone)]
struct Waiting {
    request: Request,
    tenant: Tenant,
    share: f64,
}

/// Something that holds capacity: a grant, or an attempt.
#[derive(Debug, Clone)]
pub struct Running {
    /// What it asked for.
    pub request: Request,
    /// What it holds.
    pub shares: Vec<NodeShare>,
    /// Since when.
    pub started: Instant,
    /// When it will have ended at the latest; none: not known.
    pub ends: Option<Instant>,
    /// It was told to stop.
    pub stopping: bool,
    tenant: Tenant,
    share: f64,
}

/// A preemption that is under way.
#[derive(Debug, Clone)]
struct Pin<K> {
    until: Instant,
    victims: Vec<K>,
}

/// Why a request starts now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nothing in front of it waits.
    InOrder,
    /// It will have ended before the first in line can start, at this time.
    EndsBefore(Instant),
    /// It takes nothing that those in front will need.
    Beside,
    /// It takes what is reserved for its tenant.
    Reserved,
}

/// What shall happen. The scheduler has noted it as done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<K> {
    /// This request gets these shares. From now on it is running; `end` or `take_back` undoes it.
    Grant {
        /// Which.
        key: K,
        /// One per rank.
        shares: Vec<NodeShare>,
        /// Expected growth of fragmentation, thousandths of a GPU.
        fragments: i64,
        /// Why now.
        why: Why,
    },
    /// These attempts shall be told to stop, for this request.
    Preempt {
        /// For whom.
        key: K,
        /// Whom, lowest and youngest first.
        victims: Vec<K>,
    },
}

/// One cluster's queue and books.
#[derive(Debug, Clone)]
pub struct Scheduler<K> {
    config: Config,
    books: Books,
    topologies: Vec<Topology>,
    accounts: Accounts,
    queue: Queue<K>,
    waiting: BTreeMap<K, Waiting>,
    running: BTreeMap<K, Running>,
    reservations: Vec<Reservation<K>>,
    /// Requests whose victims are on their way out: first of their class until then.
    pinned: BTreeMap<K, Pin<K>>,
    mix: Mix,
    mean: MeanRuntime,
    standings: Standings<K>,
    /// Waiting requests of jobs that ran before, here or elsewhere.
    returning: BTreeSet<K>,
    /// Kinds that did not fit since capacity last grew, and from how many ranks on.
    misses: BTreeMap<Need, u32>,
    /// Ranks that wait, by kind.
    queued_needs: BTreeMap<Need, u64>,
    promised: Promised,
    elsewhere: Elsewhere<K>,
    kept: Since<K>,
    yielding: BTreeSet<K>,
    /// Whose place in front is taken, as of the last pass, though nothing is kept for them.
    heads: Vec<K>,
    /// Who waited, in the last pass, until enough is free beside the buffer, and of what priority.
    buffer_waits: Option<(K, u8)>,
    /// Counts what may give another place or start to somebody who waits.
    changes: u64,
    /// Looks at the whole queue so far.
    passes: u64,
}

impl<K: Copy + Ord> Scheduler<K> {
    /// All free, nobody waits.
    pub fn new(nodes: &[NodeCapacity], config: Config) -> Self {
        let books = Books::new(nodes);
        let of = |group: &String| config.topologies.get(group).cloned().unwrap_or_default();
        Self {
            topologies: books.groups().iter().map(of).collect(),
            accounts: Accounts::new(config.half_life, config.weights.clone()),
            books,
            config,
            queue: Queue::default(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            reservations: Vec::new(),
            pinned: BTreeMap::new(),
            mix: Mix::default(),
            mean: MeanRuntime::default(),
            standings: Standings::default(),
            returning: BTreeSet::new(),
            misses: BTreeMap::new(),
            queued_needs: BTreeMap::new(),
            promised: Promised::default(),
            elsewhere: Elsewhere::default(),
            kept: Since::new(),
            yielding: BTreeSet::new(),
            heads: Vec::new(),
            buffer_waits: None,
            changes: 0,
            passes: 0,
        }
    }

    /// Other nodes, of which others hold a part. What runs here keeps what it holds, on the nodes where it is said
    /// to be placed.
    pub fn renew(&mut self, nodes: &[NodeCapacity], others: &[Held], placed: &BTreeMap<K, Vec<u32>>) {
        let mut books = self.books.renewed(nodes);
        let of = |group: &String| self.config.topologies.get(group).cloned().unwrap_or_default();
        self.topologies = books.groups().iter().map(of).collect();
        others.iter().for_each(|held| books.hold(held));
        for (key, r) in &mut self.running {
            if let Some(at) = placed.get(key).filter(|at| at.len() == r.shares.len()) {
                r.shares.iter_mut().zip(at).for_each(|(share, node)| share.node = *node);
            }
            books.retake(&mut r.shares, &r.request.need);
        }
        self.books = books;
        self.misses.clear();
        self.reservations.clear();
        self.changes += 1;
        self.promises_on(nodes);
    }

    /// What one rank needs, in the books' terms.
    pub fn need(&self, resources: &Resources) -> Need {
        self.books.need(resources)
    }
    /// What is free.
    pub fn books(&self) -> &Books {
        &self.books
    }
    /// The rules it follows.
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// What holds capacity.
    pub fn running(&self) -> &BTreeMap<K, Running> {
        &self.running
    }
    /// Another number than before: somebody who waits may have another place, or start at another time. Beside that only time
    /// changes either, as usage decays.
    pub fn changes(&self) -> u64 {
        self.changes
    }
    /// How often the whole queue was looked at.
    pub fn passes(&self) -> u64 {
        self.passes
    }
    /// How many wait.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }
    /// It waits.
    pub fn waits_for(&self, key: &K) -> bool {
        self.waiting.contains_key(key)
    }
    /// What is reserved for requests that do not fit yet, as of the last pass.
    pub fn reservations(&self) -> &[Reservation<K>] {
        &self.reservations
    }
    /// Others wait for its sake: one of those behind it may start, or have something kept for it, once it is gone.
    pub fn in_front(&self, key: &K) -> bool {
        self.reservations.iter().any(|r| r.key == *key)
            || self.pinned.contains_key(key)
            || self.heads.contains(key)
            || self.buffer_waits.is_some_and(|(k, _)| k == *key)
    }
    /// Capacity could be kept for it if it were the first in line: nothing is kept for another of its kind.
    pub fn may_be_kept_for(&self, key: &K) -> bool {
        let need = self.waiting.get(key).map(|w| &w.request.need);
        need.is_some_and(|need| self.may_reserve(need, &Pass::default()))
    }
    /// Waiting requests for which others were sent away.
    pub fn pinned(&self) -> impl Iterator<Item = &K> {
        self.pinned.keys()
    }
    /// Tenants' usage.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }
    /// The mix that nodes are chosen for; a simulation may set one that is known beforehand.
    pub fn mix_mut(&mut self) -> &mut Mix {
        &mut self.mix
    }
    /// All that wait, in order.
    pub fn in_order(&self, now: Instant) -> impl Iterator<Item = K> + '_ {
        let share = |key: &K| self.waiting.get(key).map_or(0.0, |w| w.share);
        let pinned = self.pinned.keys().filter(|k| self.waiting.contains_key(k)).copied();
        let mut pinned: Vec<(u8, K)> =
            pinned.map(|k| (self.waiting.get(&k).map_or(0, |w| w.request.priority), k)).collect();
        pinned.sort_unstable_by(|a, b| a.cmp(b).reverse());
        let mut rest = self.queue.in_order(&self.accounts, now, share).peekable();
        let mut first = pinned.into_iter().peekable();
        std::iter::from_fn(move || {
            while rest.peek().is_some_and(|k| self.pinned.contains_key(k)) {
                rest.next();
            }
            let of_rest = rest.peek().and_then(|k| self.waiting.get(k)).map(|w| w.request.priority);
            match first.peek() {
                Some((p, _)) if of_rest.is_none_or(|r| *p >= r) => first.next().map(|(_, k)| k),
                _ => rest.next(),
            }
        })
    }
    /// A bound on its place without looking at all: those of at least its priority.
    pub fn place_at_most(&self, priority: u8) -> usize {
        self.queue.at_least(priority).saturating_sub(1)
    }

    /// Who may take back what from now on.
    pub fn set_standings(&mut self, standings: Standings<K>) {
        self.changes += u64::from(self.standings != standings);
        self.standings = standings;
    }
    /// A tenant's part against the others', in thousandths, where the configuration names none.
    pub fn set_weight(&mut self, tenant: &str, milli: u32) {
        if !self.config.weights.contains_key(tenant) {
            self.changes += u64::from(self.accounts.set_weight(tenant, milli));
        }
    }
    /// What a tenant had used before this scheduler began.
    pub fn restore_usage(&mut self, tenant: &str, used: f64, now: Instant) {
        self.accounts.restore(tenant, used, now);
    }
    /// This waiting request is of a job that ran before: it may use the buffer.
    pub fn returns(&mut self, key: K) {
        if self.waiting.contains_key(&key) {
            self.returning.insert(key);
        }
    }
    /// Whole GPUs that are kept free, and for which priority.
    pub fn buffer(&self) -> (u32, u8) {
        let kept = self.buffer_kept() / u64::from(WHOLE);
        (u32::try_from(kept).unwrap_or(u32::MAX), self.config.buffer_priority)
    }
    /// Thousandths of a GPU, rounded up to whole ones.
    fn buffer_kept(&self) -> u64 {
        let (all, whole) = (self.books.totals().milli, u64::from(WHOLE));
        (all * u64::from(self.config.buffer_milli) / 1_000).div_ceil(whole) * whole
    }
    /// A request like this may use what is kept free.
    fn uses_buffer(&self, key: &K, request: &Request) -> bool {
        request.need.gpus == 0
            || request.priority >= self.config.buffer_priority
            || self.returning.contains(key)
    }
    /// It would take of what is kept free, and must not.
    fn in_buffer(&self, key: &K, request: &Request) -> bool {
        let kept = self.buffer_kept();
        let wants = request.milli();
        kept > 0 && self.free_for_all() < kept.saturating_add(wants) && !self.uses_buffer(key, request)
    }
    /// Free thousandths of GPUs that are not promised to somebody now.
    fn free_for_all(&self) -> u64 {
        self.books.free_milli().saturating_sub(self.promised.idle)
    }
    /// A request like this would never be granted, since so many GPUs are kept free.
    pub fn beyond_buffer(&self, request: &Request, returns: bool) -> bool {
        let wants = request.milli();
        let may = returns || request.priority >= self.config.buffer_priority || wants == 0;
        !may && self.books.totals().milli < self.buffer_kept().saturating_add(wants)
    }
    /// A waiting request is held back for the buffer's sake.
    pub fn buffered(&self, key: &K) -> bool {
        self.waiting
            .get(key)
            .is_some_and(|w| self.free_for_all() >= w.request.milli() && self.in_buffer(key, &w.request))
    }

    /// What a request of this tenant may take back: none where it is no longer within its guaranteed share.
    fn loans_for(&self, key: &K, request: &Request) -> Option<&Standings<K>> {
        let wants = u64::from(request.need.gpus) * u64::from(request.ranks);
        let owns = self.standings.owns.get(&request.tenant).copied()?;
        // For others of this tenant somebody is on his way out already.
        let pinned = self.pinned.keys().filter(|other| *other != key).filter_map(|k| self.waiting.get(k));
        let of = pinned.map(|w| &w.request).filter(|r| r.tenant == request.tenant);
        let taken: u64 = of.map(|r| u64::from(r.need.gpus) * u64::from(r.ranks)).sum();
        (wants > 0 && owns >= wants.saturating_add(taken)).then_some(&self.standings)
    }

    /// The dominant share of the cluster that a request would hold.
    fn share_of(&self, request: &Request) -> f64 {
        let (need, all) = (&request.need, self.books.totals());
        let part = |one: u64, all: u64| if all == 0 { 0.0 } else { one as f64 / all as f64 };
        let gpus = u64::from(need.gpus).saturating_mul(u64::from(need.milli));
        let one = part(gpus, all.milli).max(part(need.cpus, all.cpus)).max(part(need.memory, all.memory));
        (one * f64::from(request.ranks)).min(1.0)
    }

    /// A request waits from now on, or says again what it asks for; its age stays what it was. One that holds
    /// capacity already is left as it is.
    pub fn join(&mut self, key: K, mut request: Request, now: Instant) {
        if self.running.contains_key(&key) {
            return;
        }
        if let Some(old) = self.waiting.get_mut(&key) {
            request.since = request.since.min(old.request.since);
            if request == old.request {
                return;
            }
        } else {
            self.mix.note(&request.need, request.ranks);
        }
        let returns = self.returning.contains(&key);
        self.unqueue(&key);
        self.enqueue(key, request, now);
        if returns {
            self.returning.insert(key);
        }
    }

    fn enqueue(&mut self, key: K, request: Request, now: Instant) {
        let tenant = self.accounts.name(&request.tenant, now);
        let share = self.share_of(&request);
        self.queue.insert(request.priority, tenant, request.since, key);
        *self.queued_needs.entry(request.need.clone()).or_default() += u64::from(request.ranks);
        self.waiting.insert(key, Waiting { request, tenant, share });
        self.changes += 1;
    }

    fn unqueue(&mut self, key: &K) -> Option<Waiting> {
        let waiting = self.waiting.remove(key)?;
        self.changes += 1;
        self.returning.remove(key);
        self.queue.remove(waiting.request.priority, waiting.tenant, waiting.request.since, *key);
        self.accounts.leave(waiting.tenant);
        if let Some(ranks) = self.queued_needs.get_mut(&waiting.request.need) {
            *ranks = ranks.saturating_sub(u64::from(waiting.request.ranks));
            if *ranks == 0 {
                self.queued_needs.remove(&waiting.request.need);
            }
        }
        Some(waiting)
    }

    /// It waits no longer.
    pub fn leave(&mut self, key: &K) -> bool {
        self.pinned.remove(key);
        let left = self.unqueue(key).is_some();
        if left && self.reservations.iter().any(|r| r.key == *key) {
            self.reservations.clear();
        }
        left
    }

    /// Where it would start if it were alone in the queue: what waits does not count, what is promised to others does.
    /// For an attempt that the record says is to start here.
    pub fn fit_now(&self, request: &Request, now: Instant) -> Option<Vec<NodeShare>> {
        if let Some(inside) = self.fit_inside(request, now) {
            return Some(inside.shares);
        }
        let mut masks = BTreeMap::new();
        let also: Vec<&Books> = self.beside(self.conflicts(request, now), &mut masks).into_iter().collect();
        let choice = Choice { mix: Some(&self.mix), topologies: &self.topologies, also: &also };
        fit(&self.books, request.ranks, &request.need, &choice).map(|f| f.shares)
    }

    /// It holds these shares from now on.
    pub fn start(&mut self, key: K, request: Request, shares: Vec<NodeShare>, now: Instant) {
        self.leave(&key);
        self.end(&key, now);
        self.books.take(&shares, &request.need);
        let tenant = self.accounts.name(&request.tenant, now);
        let share = self.share_of(&request);
        self.accounts.hold(tenant, share, now);
        for r in &mut self.reservations {
            r.future.take(&shares, &request.need);
        }
        let ends = request.max_runtime.map(|run| now + SLACK + run);
        self.changes += 1;
        self.running
            .insert(key, Running { request, shares, started: now, ends, stopping: false, tenant, share });
    }

    /// Its attempt begins now: its time runs from here.
    pub fn begins(&mut self, key: &K, now: Instant) {
        if let Some(r) = self.running.get_mut(key) {
            r.started = now;
            r.ends = r.request.max_runtime.map(|run| now + run);
            self.changes += 1;
        }
    }

    /// It was told to stop, and will be gone by then.
    pub fn stops(&mut self, key: &K, by: Instant) {
        if let Some(r) = self.running.get_mut(key) {
            r.stopping = true;
            r.ends = Some(r.ends.map_or(by, |end| end.min(by)));
            self.changes += 1;
        }
    }

    /// It holds nothing any more. What it ran goes into the mean runtime if it began.
    pub fn end(&mut self, key: &K, now: Instant) -> Option<Running> {
        let r = self.running.remove(key)?;
        self.changes += 1;
        self.books.give(&r.shares, &r.request.need);
        self.misses.clear();
        self.accounts.hold(r.tenant, -r.share, now);
        self.accounts.leave(r.tenant);
        Some(r)
    }

    /// An attempt has run for so long and ended by itself.
    pub fn ran(&mut self, span: Span) {
        self.mean.note(span);
    }

    /// A grant that nobody took: it waits again, as old as it was.
    pub fn take_back(&mut self, key: &K, now: Instant) {
        if let Some(r) = self.end(key, now) {
            self.enqueue(*key, r.request, now);
        }
    }

    /// One pass over the first in line. `may` leaves those out that must not start now (their owner is away).
    pub fn decide(&mut self, now: Instant, may: &dyn Fn(&K) -> bool) -> Vec<Decision<K>> {
        self.passes += 1;
        let (running, pinned) = (&self.running, self.pinned.len());
        self.pinned.retain(|_, pin| {
            // However late the last of them is.
            if pin.victims.iter().any(|victim| running.contains_key(victim)) {
                pin.until = now + PIN_AFTER;
            }
            pin.until > now
        });
        self.changes += u64::from(self.pinned.len() < pinned);
        // Those that must not start now do not hide the ones behind them.
        let (depth, looked_at) = (self.config.depth, self.config.depth.saturating_mul(8));
        let order: Vec<K> = self.in_order(now).take(looked_at).filter(|k| may(k)).take(depth).collect();
        let mut pass = Pass { now, ..Pass::default() };
        self.reservations.clear();
        self.yielding.clear();
        self.note_idle(now);
        for key in self.entitled(now, may) {
            self.grant_inside(key, &mut pass);
        }
        for key in order {
            self.consider(key, &mut pass);
        }
        self.note_keeps(now);
        self.buffer_waits = pass.buffer_waits;
        self.heads = pass.lean.iter().map(|(key, _)| *key).collect();
        pass.out
    }

    /// One request more, and nothing freed: only that one can start now, unless it is above those that have a
    /// reservation.
    pub fn decide_one(&mut self, key: K, now: Instant, may: &dyn Fn(&K) -> bool) -> Vec<Decision<K>> {
        let Some(request) = self.waiting.get(&key).map(|w| w.request.clone()).filter(|_| may(&key)) else {
            return Vec::new();
        };
        let above = self.reservations.iter().any(|r| r.priority < request.priority);
        let first = !self.missed(&request);
        let mut pass = Pass { now, joined: true, ..Pass::default() };
        let room = !request.lean && self.may_reserve(&request.need, &pass);
        self.note_idle(now);
        if self.grant_inside(key, &mut pass) {
            return pass.out;
        }
        if !above && !request.token {
            self.consider(key, &mut pass);
            let decided = !pass.out.is_empty();
            if decided || !first || !room {
                return pass.out;
            }
        }
        self.decide(now, may)
    }

    /// One like it, or a smaller one, was tried in vain, and nothing has become free since.
    fn missed(&self, request: &Request) -> bool {
        self.misses.get(&request.need).is_some_and(|ranks| *ranks <= request.ranks)
    }

    fn may_reserve(&self, need: &Need, pass: &Pass<K>) -> bool {
        let apart = |b: &Need| need.gpus > 0 && b.gpus > 0 && !need.pools.iter().any(|p| b.pools.contains(p));
        let of = |r: &Reservation<K>| self.waiting.get(&r.key).is_none_or(|w| apart(&w.request.need));
        self.reservations.len() + pass.lean.len() < RESERVATIONS_MAX
            && self.reservations.iter().all(of)
            && pass.lean.iter().all(|(_, need)| apart(need))
    }

    fn consider(&mut self, key: K, pass: &mut Pass<K>) {
        let now = pass.now;
        let Some(waiting) = self.waiting.get(&key) else { return };
        // Most of those looked at are like one that did not fit: seen without a copy.
        if self.missed(&waiting.request) && (pass.joined || !self.may_reserve(&waiting.request.need, pass)) {
            return;
        }
        let request = waiting.request.clone();
        if self.in_buffer(&key, &request) {
            // Others may pass it for a while; then what comes free beyond the buffer is kept for it.
            let behind = pass.buffer_waits.is_some_and(|(_, priority)| request.priority <= priority);
            if !behind && !pass.joined && self.waited(&request, now) {
                pass.buffer_waits = Some((key, request.priority));
            }
            return;
        }
        if request.need.gpus > 0
            && pass.buffer_waits.is_some_and(|(_, priority)| request.priority <= priority)
            && !self.uses_buffer(&key, &request)
        {
            return;
        }
        let kept = self.conflicts(&request, now);
        let kind = (request.ranks, request.need.clone(), kept);
        let ends = request.max_runtime.map(|run| now + SLACK + run);
        let in_time = |r: &Reservation<K>| ends.is_some_and(|end| r.at.is_some_and(|at| end <= at));
        if !self.missed(&request) {
            let bars = |r: &&Reservation<K>| r.binding && r.key != key && r.priority >= request.priority;
            let barring: Vec<&Reservation<K>> = self.reservations.iter().filter(bars).collect();
            let mut also: Vec<&Books> = barring.iter().filter(|r| !in_time(r)).map(|r| &r.future).collect();
            let barred = !also.is_empty();
            // What is promised to others, and what is not.
            let beside = self.beside(kept, &mut pass.beside);
            also.extend(beside);
            let choice = Choice { mix: Some(&self.mix), topologies: &self.topologies, also: &also };
            let found = match barred && pass.barred.contains(&kind) {
                true => None,
                false => fit(&self.books, request.ranks, &request.need, &choice),
            };
            if let Some(Fit { shares, fragments, .. }) = found {
                let why = match (barring.iter().filter_map(|r| r.at).min(), barred) {
                    (_, true) => Why::Beside,
                    (Some(at), false) => Why::EndsBefore(at),
                    (None, false) => Why::InOrder,
                };
                return self.grant(key, request, shares, fragments, why, pass);
            }
            let unpromised: Vec<&Books> = beside.into_iter().collect();
            let open = Choice { also: &unpromised, ..choice };
            if barred && fit(&self.books, request.ranks, &request.need, &open).is_some() {
                // It would fit, and must not.
                pass.barred.insert(kind);
                return;
            }
            let all = Choice { also: &[], ..choice };
            let only_promised =
                beside.is_some() && fit(&self.books, request.ranks, &request.need, &all).is_some();
            if !only_promised && self.misses.len() < MISSES_MAX {
                let least = self.misses.entry(kind.1).or_insert(kind.0);
                *least = kind.0.min(*least);
            }
        }
        if pass.joined || !self.may_reserve(&request.need, pass) {
            return;
        }
        match request.lean && !request.token {
            // The place of the first in line is taken, and nothing is kept for it.
            true => pass.lean.push((key, request.need)),
            false => self.wait_for(key, &request, pass),
        }
    }

    fn grant(
        &mut self,
        key: K,
        request: Request,
        shares: Vec<NodeShare>,
        fragments: i64,
        why: Why,
        pass: &mut Pass<K>,
    ) {
        let ends = request.max_runtime.map(|run| pass.now + SLACK + run);
        self.unqueue(&key);
        self.pinned.remove(&key);
        self.reservations.retain(|r| r.key != key);
        self.books.take(&shares, &request.need);
        self.note_grant(&shares, &request.need, &mut pass.beside);
        for r in &mut self.reservations {
            let gone = ends.is_some_and(|end| r.at.is_some_and(|at| end <= at));
            if !gone {
                r.future.take(&shares, &request.need);
            }
        }
        let tenant = self.accounts.name(&request.tenant, pass.now);
        let share = self.share_of(&request);
        self.accounts.hold(tenant, share, pass.now);
        let running = Running {
            request,
            shares: shares.clone(),
            started: pass.now,
            ends,
            stopping: false,
            tenant,
            share,
        };
        self.running.insert(key, running);
        pass.out.push(Decision::Grant { key, shares, fragments, why });
    }

    /// The first that does not fit: victims if it may have some, and its reservation.
    fn wait_for(&mut self, key: K, request: &Request, pass: &mut Pass<K>) {
        let now = pass.now;
        let mut found = self.reserve(key, request, now);
        let soon = |r: &Reservation<K>| r.at.is_some_and(|at| at <= now + self.config.notice);
        let may = self.config.preemption && request.token && !self.pinned.contains_key(&key);
        if may && pass.preempts < PREEMPTS_MAX && !found.as_ref().is_some_and(soon) {
            pass.preempts += 1;
            let victims = self.victims_for(&key, request, now);
            if let Some(victims) = victims.filter(|v| !v.is_empty()) {
                let by = now + self.config.notice;
                for victim in &victims {
                    self.stops(victim, by);
                }
                self.pinned.insert(key, Pin { until: by + PIN_AFTER, victims: victims.clone() });
                pass.out.push(Decision::Preempt { key, victims });
                found = self.reserve(key, request, now);
            }
        }
        if let Some(mut reservation) = found {
            let starves = self.waited(request, now);
            let pinned = self.pinned.contains_key(&key);
            reservation.binding |= starves || pinned;
            if reservation.at.is_none() && starves && !pinned && !self.may_keep(&key, request) {
                // As if it were lean: its place is taken, and nothing is kept for it.
                self.yielding.insert(key);
                pass.lean.push((key, request.need.clone()));
                return;
            }
            self.reservations.push(reservation);
        }
    }

    /// It has waited so long that others must not pass it for ever.
    fn waited(&self, request: &Request, now: Instant) -> bool {
        let waited = i64::try_from(now.0).unwrap_or(i64::MAX).saturating_sub(request.since);
        waited >= i64::try_from(self.config.starve_after.0).unwrap_or(i64::MAX)
    }

    fn reserve(&self, key: K, request: &Request, now: Instant) -> Option<Reservation<K>> {
        let choice = Choice { mix: None, topologies: &self.topologies, also: &[] };
        let asked = (key, request.priority, request.ranks, &request.need);
        let withhold = |books: &mut Books, at: Instant, gone: &dyn Fn(&K) -> bool| {
            self.withhold(books, self.others_at(&request.tenant, at), gone);
        };
        let kept = Kept { moments: self.promise_ends(now), withhold: &withhold };
        let kept = (!self.promises().is_empty()).then_some(kept);
        reserve(&self.books, self.running.iter(), asked, kept.as_ref(), &choice, now)
    }

    fn victims_for(&self, key: &K, request: &Request, now: Instant) -> Option<Vec<K>> {
        let asked = (request.priority, request.ranks, &request.need);
        let loans = self.loans_for(key, request);
        let bits = self.conflicts(request, now);
        let withhold = |books: &mut Books, gone: &dyn Fn(&K) -> bool| self.withhold(books, bits, gone);
        let barred = |r: &Running| self.pinned_by(bits, r);
        let promised = preempt::Promised { withhold: &withhold, barred: &barred };
        preempt::victims(&self.books, self.running.iter(), asked, loans, &promised, now)
    }

    /// How many attempts this request would have to send away here, none where that would not help. For its
    /// owner, who gives the token to one cluster.
    pub fn victims_of(&self, key: &K, now: Instant) -> Option<usize> {
        let request = &self.waiting.get(key).filter(|_| self.config.preemption)?.request;
        self.victims_for(key, request, now).map(|v| v.len())
    }
}

/// State of one pass.
struct Pass<K> {
    now: Instant,
    out: Vec<Decision<K>>,
    /// Only one request is looked at: it gets no reservation, which is for the first in line.
    joined: bool,
    /// Kinds that would fit and may not, for a reservation's sake.
    barred: BTreeSet<(u32, Need, u64)>,
    /// What is free beside promises, by which.
    beside: BTreeMap<u64, Books>,
    preempts: usize,
    /// This one, of this priority, waits until enough is free beside the buffer.
    buffer_waits: Option<(K, u8)>,
    /// Those in front for which nothing is kept here, and their needs.
    lean: Vec<(K, Need)>,
}

impl<K> Default for Pass<K> {
    fn default() -> Self {
        Self {
            now: Instant(0),
            out: Vec::new(),
            joined: false,
            barred: BTreeSet::new(),
            beside: BTreeMap::new(),
            preempts: 0,
            buffer_waits: None,
            lean: Vec::new(),
        }
    }
}
