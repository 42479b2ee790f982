//! Tenants: who has a ledger (`Card`s, known to every peer), setting limits, and the hooks of the other parts.
//!
//! `spend` is a cluster's half: it spends from its share and moves it at the ledger. `tend` is what the homes of a
//! ledger do: move it, announce it, take back the share of a cluster that is gone for good.
//!
//! A limit binds a cluster from when it has heard of the ledger. It hears of it at once by a broadcast, again every
//! 20 s from the ledger's acting home, and with every claim of an owner that knows. A cluster with a new disk asks before
//! it grants (`told`).

#[cfg(test)]
mod mesh_tests;
mod spend;
mod tend;
#[cfg(test)]
pub(super) mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::acceptor::{Value, ValueError};
use super::api::{ClientError, ClientResponse, Output, Table, Write};
use super::message::{Claim, Message, Origin, RecordKey};
use super::peer::Peer;
use super::propose::{Fresh, OpResult, Task};
use super::purpose::Purpose;
use crate::base::{BoundedVec, ContactId, Home, Instant, LedgerId, PeerName, Span};
use crate::model::spec::JobSpec;
use crate::model::tenant::{
    Amount, LEDGERS_MAX, LedgerChange, LedgerRecord, Limits, LimitsPatch, ledger_id, ring_key,
};
use spend::Spender;
pub(super) use spend::{Room, TenantRoom};
use told::Told;

/// Patience of an operator's operation.
const PATIENCE: Span = Span::secs(10);
/// Cards in one message.
const CARDS_MAX: usize = 16;

/// What every peer knows of a tenant that has a ledger: where it is, and the limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The tenant.
    pub tenant: String,
    /// Who held the ledger from birth; certifies its id.
    pub homes: Vec<Home>,
    /// The newest generation that is known,
    pub generation: u32,
    /// and who holds that.
    pub held_by: Vec<Home>,
    /// What the tenant may use.
    pub limits: Limits,
    /// Grows with every change of the limits.
    pub limits_version: u64,
    /// Nothing is limited any more.
    pub removed: bool,
    /// Which time of being limited it is.
    pub era: u32,
}

impl Card {
    fn of(ledger: &LedgerRecord) -> Self {
        Card {
            tenant: ledger.tenant.clone(),
            homes: ledger.homes.to_vec(),
            generation: ledger.generation,
            held_by: ledger.homes().to_vec(),
            limits: ledger.limits.clone(),
            limits_version: ledger.limits_version,
            removed: ledger.removed,
            era: ledger.era,
        }
    }
    /// The ledger's id.
    pub fn id(&self) -> LedgerId {
        ledger_id(&self.tenant, &self.homes)
    }
    fn origin(&self) -> Origin {
        Origin::Ledger(self.tenant.clone(), self.homes.clone())
    }
    /// It says something that the other one of the same ledger does not.
    fn is_newer(&self, other: &Card) -> bool {
        self.limits_version > other.limits_version || self.generation > other.generation
    }
    fn sound(&self) -> bool {
        let set = |homes: &[Home]| !homes.is_empty() && homes.len() <= 5;
        set(&self.homes)
            && set(&self.held_by)
            && self.tenant.len() <= crate::model::spec::limits::NAME_BYTES_MAX
            && self.limits.mistake().is_none()
    }
}

/// Where a tenant stands at this cluster, for ordering and preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// GPUs that its attempts and grants hold here.
    pub here: u64,
    /// GPUs that it holds in the mesh: `here`, and what other clusters have of its ledger, used or not, as last seen.
    pub held: u64,
    /// GPUs that are its own.
    pub guaranteed: u64,
    /// Its part in fair share.
    pub weight: u32,
}

impl Standing {
    /// GPUs that it has borrowed: those are given back when others want what is theirs.
    pub fn borrowed(&self) -> u64 {
        self.held.saturating_sub(self.guaranteed)
    }
}

/// What this cluster holds of a tenant's ledger, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SpendReport {
    /// What may be spent without asking.
    pub share: Amount,
    /// What attempts and grants hold.
    pub used: Amount,
    /// GPU time used up here since ever, milliseconds.
    pub spent: u64,
    /// Why it has not got more.
    pub waits: Option<String>,
}

/// A tenant, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantReport {
    /// What every peer knows.
    pub card: Card,
    /// The ledger as a quorum holds it; none in lists.
    pub ledger: Option<LedgerRecord>,
    /// This cluster's part.
    pub here: SpendReport,
}

/// Why a ledger's register was asked.
#[derive(Debug, Clone)]
pub enum TenantPurpose {
    /// An operator's set: begin the ledger where there is none, then change it.
    Begin {
        /// Whom to answer.
        token: u64,
        /// What to change; none ends the limits.
        patch: Option<Box<LimitsPatch>>,
    },
    /// An operator's set or read.
    Answer {
        /// Whom to answer.
        token: u64,
        /// Which tenant.
        tenant: String,
    },
    /// This cluster moves its share.
    Share(String, (u64, u64)),
    /// A home has read a contact or taken it over, or changed a ledger.
    Tend(LedgerId),
    /// A home takes a lost cluster's contact over.
    TakeOver(ContactId, LedgerId, Instant),
    /// This cluster looks at the ledger.
    Look,
}

/// All that this peer knows of tenants.
#[derive(Default)]
pub(super) struct Tenants {
    cards: BTreeMap<String, Card>,
    spenders: BTreeMap<String, Spender>,
    /// Ledgers as they were last seen to be chosen.
    seen: BTreeMap<String, LedgerRecord>,
    /// Ledgers of which an operation of their home is under way.
    busy: BTreeSet<LedgerId>,
    announced: Option<Instant>,
    announced_beside: Option<Instant>,
    told: Told,
    /// All spenders are looked over at the end of this step.
    tend: bool,
}

const CARD_KEY: &str = "card/";
const SHARE_KEY: &str = "share/";

impl Tenants {
    pub fn recover(meta: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Self, ValueError> {
        let mut tenants = Tenants { told: Told::recover(meta), ..Tenants::default() };
        let malformed = |e: serde_json::Error| ValueError::Malformed(e.to_string());
        for (key, row) in meta {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            if let Some(tenant) = key.strip_prefix(CARD_KEY) {
                let card = serde_json::from_slice(row).map_err(malformed)?;
                tenants.cards.insert(tenant.to_owned(), card);
            } else if let Some(tenant) = key.strip_prefix(SHARE_KEY) {
                let row = serde_json::from_slice(row).map_err(malformed)?;
                tenants.spenders.insert(tenant.to_owned(), Spender::recovered(row));
            }
        }
        // One that never held a share has no row of it.
        for tenant in tenants.cards.keys() {
            tenants.spenders.entry(tenant.clone()).or_default();
        }
        Ok(tenants)
    }

    /// A tenant's card, where it has limits.
    fn limited(&self, tenant: &str) -> Option<&Card> {
        self.cards.get(tenant).filter(|card| !card.removed)
    }
}

impl Peer {
    // Cards.

    /// Takes a card in; true where it says something new. Of two ledgers for one tenant, begun by peers that did not
    /// know of each other, all peers take the same one.
    pub(super) fn learn_card(&mut self, card: &Card) -> bool {
        if !card.sound() {
            self.count("cards_ignored");
            return false;
        }
        let known = self.tenants.cards.get(&card.tenant);
        let mut next = card.clone();
        match known {
            None if self.tenants.cards.len() >= LEDGERS_MAX => {
                self.count("cards_ignored");
                return false;
            }
            None => {}
            Some(known) if known.id() != card.id() => {
                if known.id() < card.id() {
                    return false;
                }
                let text = format!("tenant {} has two ledgers; {} counts", card.tenant, card.id());
                self.event("tenant.conflict", None, text);
            }
            Some(known) => {
                if known.limits_version > card.limits_version {
                    (next.limits, next.limits_version) = (known.limits.clone(), known.limits_version);
                    (next.removed, next.era) = (known.removed, known.era);
                }
                if known.generation > card.generation {
                    (next.generation, next.held_by) = (known.generation, known.held_by.clone());
                }
                if next == *known {
                    return false;
                }
            }
        }
        let key = RecordKey::Ledger(next.id());
        self.learn(key, next.generation, next.held_by.clone());
        let row = serde_json::to_vec(&next).expect("a card has only plain fields");
        let meta = format!("{CARD_KEY}{}", next.tenant).into_bytes();
        self.write(Write { table: Table::Meta, key: meta, value: Some(row) });
        if !self.cfg.nodes.is_empty() {
            let spender = self.tenants.spenders.entry(next.tenant.clone()).or_default();
            let ceiling = |card: &Card| if card.removed { [None; 4] } else { card.limits.ceiling() };
            let before = self.tenants.cards.get(&next.tenant).map_or([None; 4], ceiling);
            let lower =
                |(new, old): (Option<u64>, Option<u64>)| new.unwrap_or(u64::MAX) < old.unwrap_or(u64::MAX);
            if ceiling(&next).into_iter().zip(before).any(lower) {
                spender.lowered();
            }
            self.tenants.tend = true;
        }
        let tenant = next.tenant.clone();
        let terms = |card: &Card| (card.limits.clone(), card.removed);
        let before = self.tenants.cards.get(&tenant).map(terms);
        let others = before != Some(terms(&next));
        self.tenants.cards.insert(tenant.clone(), next);
        if others {
            self.wake_tenant(&tenant);
        }
        true
    }

    /// An operation of this peer has seen that this value is chosen.
    pub(super) fn note_ledger(&mut self, value: &Value) {
        let Value::Ledger(ledger) = value else { return };
        let card = Card::of(ledger);
        self.tenants.seen.insert(ledger.tenant.clone(), (**ledger).clone());
        if self.learn_card(&card) {
            self.announce(vec![card]);
        }
    }

    fn announce(&mut self, cards: Vec<Card>) {
        let others =
            self.view.members.keys().filter(|name| **name != self.cfg.name && self.speaks_terms(name));
        let others: Vec<PeerName> = others.cloned().collect();
        for chunk in cards.chunks(CARDS_MAX) {
            for peer in &others {
                self.send(peer.clone(), Message::Tenants(chunk.to_vec()), false);
            }
        }
    }

    /// Whoever says what is old is told what is newer: a home that missed a change would go on saying it.
    pub(super) fn on_tenants(&mut self, from: &PeerName, cards: &[Card]) {
        let mut newer = Vec::new();
        for card in cards.iter().take(CARDS_MAX) {
            self.learn_card(card);
            let known = self.tenants.cards.get(&card.tenant);
            newer.extend(known.filter(|known| known.id() != card.id() || known.is_newer(card)).cloned());
        }
        if !newer.is_empty() && *from != self.cfg.name {
            self.send(from.clone(), Message::Tenants(newer), false);
        }
    }

    // Hooks of the owner.

    /// What an owner tells a cluster of a tenant's ledger with a claim.
    pub(super) fn card_of(&self, tenant: &str) -> Option<Box<Card>> {
        self.tenants.cards.get(tenant).cloned().map(Box::new)
    }

    /// Why a job can never run under its tenant's limits.
    pub(super) fn quota_never(&self, spec: &JobSpec) -> Option<String> {
        let card = self.tenants.limited(&spec.tenant)?;
        card.limits.never_fits(spec).map(|why| format!("tenant {} {why}", spec.tenant))
    }

    /// GPUs that a tenant may use at once, where that is limited.
    pub(super) fn gpus_at_once(&self, tenant: &str) -> Option<u64> {
        self.tenants.limited(tenant)?.limits.ceiling()[0]
    }

    // An operator.

    /// Sets, or with no patch ends, a tenant's limits.
    pub(super) fn tenant_set(&mut self, token: u64, tenant: String, patch: Option<Box<LimitsPatch>>) {
        let known = self.tenants.cards.get(&tenant).map(Card::origin);
        let purpose = |patch| Purpose::Tenant(TenantPurpose::Begin { token, patch });
        if let Some(origin) = known {
            return self.propose(origin, Task::Read, purpose(patch), PATIENCE);
        }
        if patch.is_none() {
            return self.tenant_error(token, ClientError::NoSuchTenant(tenant));
        }
        if self.disk_full {
            return self.tenant_error(token, ClientError::DiskFull);
        }
        // The same homes for everybody with the same member list, whoever is alive: two operators who begin one
        // tenant's ledger at once meet in one register.
        let order = self.ring.order(ring_key(&tenant));
        let size = self.ring.set_size(order.len(), self.cfg.replicas);
        let members = order.iter().filter_map(|name| self.view.members.get(name)).take(size);
        let homes: Vec<Home> = members.map(|m| Home { peer: m.peer.clone(), store: m.store }).collect();
        let alive = homes.iter().filter(|h| self.home_alive(h)).count();
        if homes.is_empty() || alive <= homes.len() / 2 {
            let needed = homes.len() / 2 + 1;
            return self.tenant_error(token, ClientError::NoHomes { alive, needed });
        }
        let Ok(set) = BoundedVec::try_from(homes.clone()) else { return };
        let value = Value::Ledger(Box::new(LedgerRecord::new(&tenant, set)));
        let origin = Origin::Ledger(tenant, homes);
        self.propose(origin, Task::Create(Box::new(value), Fresh::No), purpose(patch), PATIENCE);
    }

    pub(super) fn tenant_get(&mut self, token: u64, tenant: String) {
        let Some(card) = self.tenants.cards.get(&tenant) else {
            return self.tenant_error(token, ClientError::NoSuchTenant(tenant));
        };
        let origin = card.origin();
        let purpose = Purpose::Tenant(TenantPurpose::Answer { token, tenant });
        self.propose(origin, Task::Read, purpose, PATIENCE);
    }

    /// Every tenant that has a ledger, as this peer knows it.
    pub(super) fn tenants_known(&self) -> Vec<TenantReport> {
        let report = |card: &Card| TenantReport {
            card: card.clone(),
            ledger: self.tenants.seen.get(&card.tenant).cloned(),
            here: self.spend_report(&card.tenant),
        };
        self.tenants.cards.values().map(report).collect()
    }

    /// An operator's word that a cluster is gone for good, and what ran there has stopped.
    pub(super) fn tenant_reclaim(&mut self, token: u64, tenant: String, cluster: &PeerName) {
        let Some(card) = self.tenants.cards.get(&tenant) else {
            return self.tenant_error(token, ClientError::NoSuchTenant(tenant));
        };
        let share =
            self.tenants.seen.get(&tenant).and_then(|l| l.shares.iter().find(|s| s.home.peer == *cluster));
        let Some(share) = share else {
            return self.tenant_error(token, ClientError::NoShare(tenant, cluster.clone()));
        };
        let change = LedgerChange::Reclaim { home: share.home.clone(), nonce: share.nonce };
        let origin = card.origin();
        let purpose = Purpose::Tenant(TenantPurpose::Answer { token, tenant });
        self.propose(origin, Task::Ledger(change), purpose, PATIENCE);
    }

    fn tenant_error(&mut self, token: u64, error: ClientError) {
        self.out.push(Output::Reply { token, response: ClientResponse::Error(error) });
    }

    fn tenant_begun(&mut self, token: u64, patch: Option<Box<LimitsPatch>>, result: OpResult) {
        let OpResult::Value { value: Value::Ledger(ledger), .. } = result else {
            return self.tenant_answer(token, String::new(), result);
        };
        let patch = patch.as_deref();
        let mut limits = Limits::default();
        if let Some(patch) = patch {
            limits = patch.apply(if ledger.removed { &limits } else { &ledger.limits });
        }
        let change = LedgerChange::Limits {
            limits: Box::new(limits),
            removed: patch.is_none(),
            reset_hours: patch.is_some_and(|p| p.reset_hours),
            expect: ledger.limits_version,
            nonce: self.fresh_nonce(),
        };
        let (tenant, origin) = (ledger.tenant.clone(), Card::of(&ledger).origin());
        let purpose = Purpose::Tenant(TenantPurpose::Answer { token, tenant });
        self.propose(origin, Task::Ledger(change), purpose, PATIENCE);
    }

    fn tenant_answer(&mut self, token: u64, tenant: String, result: OpResult) {
        let response = match result {
            OpResult::Value { refused: Some(why), .. } => ClientResponse::Error(ClientError::Refused(why)),
            OpResult::Value { value: Value::Ledger(ledger), .. } => {
                let (card, here) = (Card::of(&ledger), self.spend_report(&tenant));
                let report = TenantReport { card, ledger: Some(*ledger), here };
                ClientResponse::Tenant(Box::new(report))
            }
            OpResult::Timeout { answered, needed } => {
                ClientResponse::Error(ClientError::Unknown { answered, needed, job: None })
            }
            OpResult::Rejected(why) if why == super::acceptor::DISK_FULL => {
                ClientResponse::Error(ClientError::DiskFull)
            }
            _ => ClientResponse::Error(ClientError::NoSuchTenant(tenant)),
        };
        self.out.push(Output::Reply { token, response });
    }

    pub(super) fn tenant_done(&mut self, purpose: TenantPurpose, result: OpResult) {
        match purpose {
            TenantPurpose::Begin { token, patch } => self.tenant_begun(token, patch, result),
            TenantPurpose::Answer { token, tenant } => self.tenant_answer(token, tenant, result),
            TenantPurpose::Share(tenant, nonce) => self.share_moved(&tenant, nonce, result),
            TenantPurpose::Tend(ledger) => {
                self.tenants.busy.remove(&ledger);
            }
            TenantPurpose::TakeOver(contact, ledger, since) => {
                self.tenants.busy.remove(&ledger);
                self.took_over(contact, None, since, result);
            }
            TenantPurpose::Look => {}
        }
    }
}
