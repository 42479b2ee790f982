//! A tenant's ledger: what it may use over the whole mesh, and what of that each cluster may spend without
//! asking (its *share*). docs/tenants.md says what it means to people.
//!
//! The sum of all shares never rises above the limit. A share is moved in two steps, in the safe order: up, first
//! at the ledger, then at the cluster; down, first at the cluster, then at the ledger. `Escrow` is the cluster's
//! half. Each step alone leaves the cluster with no more than the ledger says, so a crash loses nothing and
//! overshoots nothing.
// tidy: long because the ledger, the cluster's half and their changes are one meaning, and are reviewed together

use std::collections::BTreeMap;

use ring::digest;
use serde::{Deserialize, Serialize};

use super::record::{Birth, Refused};
use super::spec::{JobSpec, Resources};
use crate::base::{BoundedVec, Bytes, ContactId, Home, LedgerId, MilliCpu, PeerName, Span};

/// Clusters that may stand in one ledger, and those of them that may hold something at once; what they take stays
/// within a record's size.
pub const ROWS_MAX: usize = 120;
/// As said above.
pub const HOLDERS_MAX: usize = 60;
/// Contact incarnations under which one share may be spent at once.
pub const BINDINGS_MAX: usize = 6;
/// Clusters at which a share is kept even while it is idle.
pub const KEEP_MAX: usize = 32;
/// Ledgers that one peer knows.
pub const LEDGERS_MAX: usize = 1_024;
/// No limit is higher: sums of it stay far below what a number holds.
pub const LIMIT_MAX: u64 = 1 << 56;
/// Longest `on_lost_contact.grace` of a tenant's jobs, where nothing else was set.
pub const GRACE_DEFAULT: Span = Span::secs(600);

/// An amount of everything that is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Amount {
    /// GPUs.
    pub gpus: u64,
    /// Thousandths of a CPU.
    pub cpus: u64,
    /// Bytes.
    pub memory: u64,
    /// Milliseconds of one GPU.
    pub gpu_ms: u64,
}

/// Names of an amount's parts, in the order of `Amount::parts`.
pub const PARTS: [&str; 4] = ["GPUs", "CPUs", "memory", "GPU-hours"];

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount { gpus: 0, cpus: 0, memory: 0, gpu_ms: 0 };

    /// What so many nodes of a job take, with GPU time for its longest run where that is asked for.
    pub fn of(nodes: u32, each: &Resources, run: Option<Span>) -> Self {
        let n = u64::from(nodes);
        let gpus = u64::from(each.gpus).saturating_mul(n);
        Amount {
            gpus,
            cpus: each.cpus.0.saturating_mul(n),
            memory: each.memory.0.saturating_mul(n),
            gpu_ms: run.map_or(0, |run| gpus.saturating_mul(run.as_millis())),
        }
    }

    /// GPUs, CPUs, memory, GPU time.
    pub fn parts(&self) -> [u64; 4] {
        [self.gpus, self.cpus, self.memory, self.gpu_ms]
    }
    fn from_parts([gpus, cpus, memory, gpu_ms]: [u64; 4]) -> Self {
        Amount { gpus, cpus, memory, gpu_ms }
    }
    fn zip(self, other: Amount, f: impl Fn(u64, u64) -> u64) -> Self {
        let (a, b) = (self.parts(), other.parts());
        Self::from_parts(std::array::from_fn(|i| f(a[i], b[i])))
    }
    /// The sum, at most what a number holds.
    pub fn plus(self, other: Amount) -> Self {
        self.zip(other, u64::saturating_add)
    }
    /// The difference, at least nothing.
    pub fn minus(self, other: Amount) -> Self {
        self.zip(other, u64::saturating_sub)
    }
    /// Of each part the larger.
    pub fn max(self, other: Amount) -> Self {
        self.zip(other, u64::max)
    }
    /// Of each part the smaller.
    pub fn min(self, other: Amount) -> Self {
        self.zip(other, u64::min)
    }
    /// No part is larger.
    pub fn within(&self, other: &Amount) -> bool {
        self.parts().iter().zip(other.parts()).all(|(a, b)| *a <= b)
    }
    /// Nothing of anything.
    pub fn is_zero(&self) -> bool {
        *self == Amount::ZERO
    }
}

/// One part of an amount, for people.
pub fn spell(part: usize, value: u64) -> String {
    match part {
        1 => MilliCpu(value).to_string(),
        2 => Bytes(value).to_string(),
        3 => format!("{:.2}", value as f64 / 3_600_000.0),
        _ => value.to_string(),
    }
}

/// What a tenant may use. Nothing that is none is limited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// GPUs at once.
    pub gpus: Option<u64>,
    /// Thousandths of a CPU at once.
    pub cpus: Option<u64>,
    /// Bytes of memory at once.
    pub memory: Option<u64>,
    /// Milliseconds of one GPU, in all, since the last reset.
    pub gpu_ms: Option<u64>,
    /// GPUs that are this tenant's own: within them it borrows from nobody.
    #[serde(default)]
    pub guaranteed: u64,
    /// GPUs beyond the guaranteed ones that it may borrow while others leave them idle; none means up to `gpus`.
    #[serde(default)]
    pub borrow: Option<u64>,
    /// Its part in fair share; 1 to 1000.
    #[serde(default = "one")]
    pub weight: u32,
    /// Longest `on_lost_contact.grace` of its jobs; none takes any, `never` too. A lost cluster's share comes back
    /// after this long, and after `never` only on an operator's word.
    pub grace: Option<Span>,
    /// GPUs that a cluster keeps of the share even while they are idle there, so that it can spend them when it is
    /// cut off.
    #[serde(default)]
    pub keep: BTreeMap<PeerName, u64>,
}

fn one() -> u32 {
    1
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            gpus: None,
            cpus: None,
            memory: None,
            gpu_ms: None,
            guaranteed: 0,
            borrow: None,
            weight: 1,
            grace: Some(GRACE_DEFAULT),
            keep: BTreeMap::new(),
        }
    }
}

impl Limits {
    /// The ceiling of each part of an amount.
    pub fn ceiling(&self) -> [Option<u64>; 4] {
        let lent = self.borrow.map(|borrow| self.guaranteed.saturating_add(borrow));
        let gpus = match (self.gpus, lent) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        [gpus, self.cpus, self.memory, self.gpu_ms]
    }

    /// A mistake in them, in words.
    pub fn mistake(&self) -> Option<String> {
        let [gpus, cpus, memory, gpu_ms] = self.ceiling();
        if [gpus, cpus, memory, gpu_ms, Some(self.guaranteed)].into_iter().flatten().any(|n| n > LIMIT_MAX) {
            return Some(format!("a limit above {LIMIT_MAX}"));
        }
        if gpus.is_some_and(|gpus| self.guaranteed > gpus) {
            return Some(format!("{} guaranteed GPUs are more than the limit", self.guaranteed));
        }
        if self.weight == 0 || self.weight > 1_000 {
            return Some("weight: not 1 to 1000".into());
        }
        if self.keep.len() > KEEP_MAX {
            return Some(format!("kept at {} clusters; at most {KEEP_MAX}", self.keep.len()));
        }
        let kept = self.keep.values().fold(0u64, |sum, n| sum.saturating_add(*n));
        gpus.filter(|gpus| kept > *gpus)
            .map(|gpus| format!("{kept} GPUs are to be kept at clusters, and the limit is {gpus}"))
    }

    /// Why a job can never run under these limits; none where it can.
    pub fn never_fits(&self, spec: &JobSpec) -> Option<String> {
        if self.gpu_ms.is_some() && spec.max_runtime.is_none() && spec.gpus_total() > 0 {
            return Some("has a limit of GPU-hours, so the job must say its max_runtime".into());
        }
        let run = spec.max_runtime.filter(|_| self.gpu_ms.is_some());
        let asks = match spec.groups.list.as_slice() {
            [] => Amount::of(spec.nodes, &spec.resources, run),
            groups => {
                groups.iter().map(|g| Amount::of(g.nodes, &g.resources, run)).fold(Amount::ZERO, Amount::plus)
            }
        };
        for (i, (asked, limit)) in asks.parts().into_iter().zip(self.ceiling()).enumerate() {
            if let Some(limit) = limit.filter(|limit| asked > *limit) {
                let (asked, limit) = (spell(i, asked), spell(i, limit));
                return Some(format!("may use {limit} {} at most, the job asks for {asked}", PARTS[i]));
            }
        }
        let grace = spec.on_lost_contact.grace.unwrap_or(Span::FOREVER);
        self.grace.filter(|most| grace > *most).map(|most| {
            let grace =
                spec.on_lost_contact.grace.map_or_else(|| "never".to_owned(), |grace| grace.to_string());
            format!("takes jobs with a grace of {most} at most, the job's on_lost_contact.grace is {grace}")
        })
    }
}

/// What an operator changes of a tenant's limits; what is none stays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LimitsPatch {
    /// GPUs; the inner none lifts the limit. So for the others.
    pub gpus: Option<Option<u64>>,
    /// Thousandths of a CPU.
    pub cpus: Option<Option<u64>>,
    /// Bytes.
    pub memory: Option<Option<u64>>,
    /// Milliseconds of one GPU.
    pub gpu_ms: Option<Option<u64>>,
    /// GPUs of its own.
    pub guaranteed: Option<u64>,
    /// GPUs that it may borrow.
    pub borrow: Option<Option<u64>>,
    /// Part in fair share.
    pub weight: Option<u32>,
    /// Longest grace.
    pub grace: Option<Option<Span>>,
    /// GPUs kept at these clusters; 0 keeps none.
    pub keep: BTreeMap<PeerName, u64>,
    /// GPU time used so far no longer counts.
    pub reset_hours: bool,
}

impl LimitsPatch {
    /// The limits after it.
    pub fn apply(&self, limits: &Limits) -> Limits {
        let mut keep = limits.keep.clone();
        keep.extend(self.keep.clone());
        keep.retain(|_, gpus| *gpus > 0);
        Limits {
            gpus: self.gpus.unwrap_or(limits.gpus),
            cpus: self.cpus.unwrap_or(limits.cpus),
            memory: self.memory.unwrap_or(limits.memory),
            gpu_ms: self.gpu_ms.unwrap_or(limits.gpu_ms),
            guaranteed: self.guaranteed.unwrap_or(limits.guaranteed),
            borrow: self.borrow.unwrap_or(limits.borrow),
            weight: self.weight.unwrap_or(limits.weight),
            grace: self.grace.unwrap_or(limits.grace),
            keep,
        }
    }
}

/// A contact incarnation under which a share may be spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The contact record,
    pub contact: ContactId,
    /// what certifies its id,
    pub series: u64,
    /// and who holds it.
    pub homes: BoundedVec<Home, 5>,
    /// The incarnation.
    pub incarnation: u64,
}

/// What one cluster may spend without asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The cluster's peer and disk; a new disk begins with nothing.
    pub home: Home,
    /// How much.
    pub held: Amount,
    /// GPU time that it has used up, since ever, in milliseconds.
    #[serde(default)]
    pub spent: u64,
    /// Names its last change; never reused.
    pub nonce: (u64, u64),
    /// Attempts that spend it stop this long after they lost contact; none: some never do.
    pub grace: Option<Span>,
    /// They are bound to one of these.
    pub bindings: BoundedVec<Binding, BINDINGS_MAX>,
    /// Under which era of the limits it stated what it ran before.
    #[serde(default)]
    pub era: u32,
}

/// A tenant's ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRecord {
    /// Whose.
    pub tenant: String,
    /// Who holds it from birth; hashed into its id.
    pub homes: BoundedVec<Home, 5>,
    /// One more for every chosen change.
    pub version: u64,
    /// What the tenant may use.
    pub limits: Limits,
    /// Grows with every change of the limits.
    pub limits_version: u64,
    /// Names the last change of the limits.
    pub limits_nonce: (u64, u64),
    /// Nothing is limited any more.
    #[serde(default)]
    pub removed: bool,
    /// One more each time that a limit begins: what ran before is stated once by each cluster.
    #[serde(default)]
    pub era: u32,
    /// Shares, in the order of their homes.
    pub shares: Vec<Share>,
    /// What was running already when limits began, in all: above the limit it may stay until it ends.
    #[serde(default)]
    pub adopted: Amount,
    /// GPU time of shares that are gone, milliseconds.
    #[serde(default)]
    pub spent_gone: u64,
    /// GPU time that had been used at the last reset, milliseconds.
    #[serde(default)]
    pub spent_base: u64,
    /// Which home set holds it.
    #[serde(default)]
    pub generation: u32,
    /// That home set, once it is not the one of its birth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<BoundedVec<Home, 5>>,
    /// The next home set: this is the generation's last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<BoundedVec<Home, 5>>,
    /// Fields of later versions; kept as found.
    #[serde(flatten)]
    pub ext: BTreeMap<String, serde_json::Value>,
}

/// The id of a tenant's ledger.
pub fn ledger_id(tenant: &str, homes: &[Home]) -> LedgerId {
    let mut ctx = digest::Context::new(&digest::SHA256);
    let mut part = |bytes: &[u8]| {
        ctx.update(&(bytes.len() as u64).to_be_bytes());
        ctx.update(bytes);
    };
    part(b"ledger");
    part(tenant.as_bytes());
    for home in homes {
        part(home.peer.as_str().as_bytes());
        part(&home.store.0);
    }
    LedgerId(ctx.finish().as_ref()[..20].try_into().expect("20 of 32"))
}

/// Where the ring proposes a ledger's homes.
pub fn ring_key(tenant: &str) -> u64 {
    // Of all names that a peer could have none has a slash: no job's key is hashed like this.
    let minter = PeerName::new("ledger").expect("a name");
    Birth::ring_key(&format!("ledger/{tenant}"), &minter, 0)
}

/// A change to a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LedgerChange {
    /// An operator says what the tenant may use.
    Limits {
        /// This.
        limits: Box<Limits>,
        /// Nothing is limited any more.
        removed: bool,
        /// GPU time used so far no longer counts.
        reset_hours: bool,
        /// The limits must still be of this version.
        expect: u64,
        /// Fresh.
        nonce: (u64, u64),
    },
    /// A cluster moves its share to this amount.
    Share {
        /// Which cluster, on which disk.
        home: Home,
        /// How much it shall hold.
        held: Amount,
        /// GPU time that it has used up since ever.
        spent: u64,
        /// Under which contact incarnations it is spent.
        bindings: Vec<Binding>,
        /// It states what it ran when this era of the limits began; that is taken whatever the limit says.
        adopts: Option<u32>,
        /// Fresh.
        nonce: (u64, u64),
    },
    /// A cluster is gone for good and what spent its share has stopped: its incarnations were taken over after the
    /// grace, or an operator says so.
    Reclaim {
        /// Which share,
        home: Home,
        /// as it was seen: a cluster that has come back has changed it.
        nonce: (u64, u64),
    },
    /// Ends a generation: fixes its last value and names the next home set.
    Seal {
        /// The generation that ends.
        generation: u32,
        /// Who holds the next one.
        next: Vec<Home>,
    },
}

impl LedgerRecord {
    /// A new ledger, which limits nothing yet.
    pub fn new(tenant: &str, homes: BoundedVec<Home, 5>) -> Self {
        LedgerRecord {
            tenant: tenant.to_owned(),
            homes,
            version: 1,
            limits: Limits::default(),
            limits_version: 0,
            limits_nonce: (0, 0),
            removed: true,
            era: 0,
            shares: Vec::new(),
            adopted: Amount::ZERO,
            spent_gone: 0,
            spent_base: 0,
            generation: 0,
            moved_to: None,
            sealed: None,
            ext: BTreeMap::new(),
        }
    }

    /// The id, which tenant and homes certify.
    pub fn id(&self) -> LedgerId {
        ledger_id(&self.tenant, &self.homes)
    }
    /// Who holds it in its present generation.
    pub fn homes(&self) -> &[Home] {
        self.moved_to.as_ref().unwrap_or(&self.homes)
    }
    /// One cluster's share.
    pub fn share(&self, home: &Home) -> Option<&Share> {
        self.shares.iter().find(|s| s.home == *home)
    }
    /// All shares together; GPU time includes what has been used since the last reset.
    pub fn total(&self) -> Amount {
        let held = self.shares.iter().fold(Amount::ZERO, |sum, s| sum.plus(s.held));
        Amount { gpu_ms: held.gpu_ms.saturating_add(self.spent()), ..held }
    }
    /// More is held than the limits allow: they were lowered, or began over what ran already.
    pub fn is_over(&self) -> bool {
        let total = self.total().parts();
        let over = |(held, most): (u64, Option<u64>)| most.is_some_and(|most| held > most);
        !self.removed && total.into_iter().zip(self.limits.ceiling()).any(over)
    }
    /// GPU time used since the last reset, as far as clusters have told, milliseconds.
    pub fn spent(&self) -> u64 {
        let told = self.shares.iter().fold(self.spent_gone, |sum, s| sum.saturating_add(s.spent));
        told.saturating_sub(self.spent_base)
    }

    /// The first value of the next generation; none while this one is not sealed.
    pub fn installed(&self) -> Option<LedgerRecord> {
        let homes = self.sealed.clone()?;
        let generation = self.generation.checked_add(1)?;
        let version = self.version.saturating_add(1);
        Some(LedgerRecord { generation, version, moved_to: Some(homes), sealed: None, ..self.clone() })
    }

    /// Applies a change, or refuses it and leaves the ledger as it was.
    pub fn apply(&self, change: &LedgerChange) -> Result<LedgerRecord, Refused> {
        if self.sealed.is_some() {
            return Err(Refused::Sealed(self.generation));
        }
        let mut next = self.clone();
        next.version = self.version.saturating_add(1);
        match change {
            LedgerChange::Limits { limits, removed, reset_hours, expect, nonce } => {
                if *expect != self.limits_version {
                    return Err(Refused::Quota("its limits were changed by somebody else just now".into()));
                }
                if let Some(mistake) = limits.mistake() {
                    return Err(Refused::Quota(mistake));
                }
                next.limits = (**limits).clone();
                next.era = self.era.saturating_add(u32::from(self.removed && !removed));
                next.removed = *removed;
                next.limits_version = self.limits_version.saturating_add(1);
                next.limits_nonce = *nonce;
                if *reset_hours {
                    next.spent_base = self.spent().saturating_add(self.spent_base);
                }
            }
            LedgerChange::Share { home, held, spent, bindings, adopts, nonce } => {
                next.move_share(self, (home, *held, *spent), bindings, *adopts, *nonce)?;
            }
            LedgerChange::Reclaim { home, nonce } => {
                let gone = self.share(home).filter(|s| s.nonce == *nonce).ok_or(Refused::Unbound)?;
                // What it held of GPU time may have been used: nobody can ask.
                let used = gone.spent.saturating_add(gone.held.gpu_ms);
                next.spent_gone = self.spent_gone.saturating_add(used);
                next.shares.retain(|s| s.home != *home);
            }
            LedgerChange::Seal { generation, next: homes } => {
                if *generation != self.generation {
                    return Err(Refused::Sealed(*generation));
                }
                next.sealed = Some(super::record::home_set(homes).ok_or(Refused::BadHomes)?);
            }
        }
        Ok(next)
    }

    fn move_share(
        &mut self,
        old: &LedgerRecord,
        (home, held, spent): (&Home, Amount, u64),
        bindings: &[Binding],
        adopts: Option<u32>,
        nonce: (u64, u64),
    ) -> Result<(), Refused> {
        let before = old.share(home);
        let had = before.map_or(Amount::ZERO, |s| s.held);
        let adopts = adopts.filter(|era| *era == old.era && before.is_none_or(|s| s.era < *era));
        let bindings = BoundedVec::try_from(bindings.to_vec()).map_err(|_| Refused::Unbound)?;
        if bindings.is_empty() && !held.is_zero() {
            return Err(Refused::Unbound);
        }
        let kept = had.is_zero().then_some(old.limits.grace);
        let grace = kept.unwrap_or_else(|| longer(before.and_then(|s| s.grace), old.limits.grace));
        let row = Share {
            home: home.clone(),
            held,
            spent: spent.max(before.map_or(0, |s| s.spent)),
            nonce,
            grace,
            bindings,
            era: adopts.unwrap_or_else(|| before.map_or(0, |s| s.era)),
        };
        self.shares.retain(|s| s.home != *home);
        // Who holds and has used nothing need not be remembered.
        if !held.is_zero() || row.spent > 0 || row.era == old.era {
            let at = self.shares.partition_point(|s| s.home < row.home);
            self.shares.insert(at, row);
        }
        if self.shares.len() > ROWS_MAX {
            // An idle one makes room: it has nothing to lose but that it stated what it ran.
            let idle = |s: &Share| s.held.is_zero() && s.spent == 0 && s.home != *home;
            match self.shares.iter().position(idle) {
                Some(at) => drop(self.shares.remove(at)),
                None => {
                    let text =
                        format!("{ROWS_MAX} clusters have spent it already, the most that are counted");
                    return Err(Refused::Quota(text));
                }
            }
        }
        if self.shares.iter().filter(|s| !s.held.is_zero()).count() > HOLDERS_MAX && had.is_zero() {
            let text = format!("{HOLDERS_MAX} clusters hold shares of it already, the most that may at once");
            return Err(Refused::Quota(text));
        }
        if adopts.is_some() {
            self.adopted = self.adopted.plus(held.minus(had));
            return Ok(());
        }
        if old.removed {
            return Ok(());
        }
        let (now, then) = (self.total().parts(), old.total().parts());
        let wants = held.minus(had).parts();
        for (i, limit) in old.limits.ceiling().into_iter().enumerate() {
            if let Some(limit) = limit.filter(|limit| wants[i] > 0 && now[i] > *limit && now[i] > then[i]) {
                let free = spell(i, limit.saturating_sub(then[i]));
                return Err(Refused::Quota(format!(
                    "{free} of {} {} are left, {} more are wanted",
                    spell(i, limit),
                    PARTS[i],
                    spell(i, wants[i])
                )));
            }
        }
        Ok(())
    }

    /// True if the change is in the ledger already.
    pub fn reflects(&self, change: &LedgerChange) -> bool {
        match change {
            LedgerChange::Limits { nonce, .. } => self.limits_nonce == *nonce,
            LedgerChange::Share { home, nonce, .. } => self.share(home).is_some_and(|s| s.nonce == *nonce),
            LedgerChange::Reclaim { .. } => false,
            LedgerChange::Seal { generation, next } => {
                self.generation > *generation || self.sealed.as_deref() == Some(next.as_slice())
            }
        }
    }
}

/// None is the longest: it never ends by itself.
fn longer(a: Option<Span>, b: Option<Span>) -> Option<Span> {
    Some(a?.max(b?))
}

/// The cluster's half of its share: what it may spend now. Durable.
///
/// It never holds more than the ledger says: what a change lowers is lowered here before the change leaves, and what
/// it raises only once the change is known to be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Escrow {
    /// What may be spent.
    pub share: Amount,
    /// Under these contact incarnations.
    pub bound: Vec<(ContactId, u64)>,
    /// GPU time used up since ever, milliseconds.
    pub spent: u64,
}

impl Escrow {
    /// A change to this amount and these incarnations is about to leave; it may be made at any time from now on,
    /// or never.
    pub fn leaves(&mut self, held: Amount, bound: &[(ContactId, u64)]) {
        self.share = self.share.min(held);
        self.bound.retain(|b| bound.contains(b));
    }

    /// That change was made. `spent` is what it said of GPU time: what was used up since is gone from the share.
    pub fn chosen(&mut self, held: Amount, bound: &[(ContactId, u64)], spent: u64) {
        let since = self.spent.saturating_sub(spent);
        self.share = Amount { gpu_ms: held.gpu_ms.saturating_sub(since), ..held };
        self.bound = bound.to_vec();
    }

    /// The ledger says this of the share, whatever became of a change.
    pub fn at_most(&mut self, share: Option<&Share>) {
        let held = share.map_or(Amount::ZERO, |s| s.held);
        self.share = self.share.min(held);
        let bound = |b: &(ContactId, u64)| {
            share.is_some_and(|s| s.bindings.iter().any(|x| (x.contact, x.incarnation) == *b))
        };
        self.bound.retain(bound);
    }

    /// An attempt has ended that used so much GPU time.
    pub fn spend(&mut self, gpu_ms: u64) {
        self.spent = self.spent.saturating_add(gpu_ms);
        self.share.gpu_ms = self.share.gpu_ms.saturating_sub(gpu_ms);
    }

    /// So much may be in use under this incarnation.
    pub fn covers(&self, used: &Amount, binding: (ContactId, u64)) -> bool {
        used.within(&self.share) && self.bound.contains(&binding)
    }
}

#[cfg(test)]
#[path = "tenant_tests.rs"]
mod tests;
