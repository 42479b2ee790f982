//! A cluster's half of a tenant's quota: what it spends, and moving its share at the ledger.

use super::*;
use crate::model::tenant::{BINDINGS_MAX, Binding, Escrow, LedgerRecord};

/// What is idle of a share for this long goes back.
const IDLE_FOR: Span = Span::secs(10);
/// GPU time that was used is told this often.
const TELL_EVERY: Span = Span::secs(30);
/// A cluster that spends looks at the ledger this often.
const LOOK_EVERY: Span = Span::secs(10);
/// After a refusal it asks again, ever more seldom up to this.
const AGAIN_MAX: u64 = 16;

/// Durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    /// Of which ledger.
    ledger: LedgerId,
    escrow: Escrow,
    /// What the bindings' ids certifies.
    bindings: Vec<Binding>,
    /// Longest grace that may spend it; none takes any.
    grace: Option<Span>,
    /// For which era of the limits it was stated what ran before.
    era: u32,
    /// More may be held than the limits allow: nothing more is spent before the ledger has said otherwise.
    #[serde(default)]
    over: bool,
}

#[derive(Debug, Clone)]
struct Sent {
    nonce: (u64, u64),
    held: Amount,
    bindings: Vec<Binding>,
    spent: u64,
    adopts: Option<u32>,
    asks: bool,
}

/// What one tenant may spend here.
#[derive(Debug, Clone, Default)]
pub(super) struct Spender {
    row: Row,
    /// What the share should be for claims that wait.
    want: Option<Amount>,
    /// For claims that wait for others to go: this much of the share is not idle.
    pins: Amount,
    sent: Option<Sent>,
    again_at: Instant,
    refusals: u32,
    /// Some of it has been idle since then.
    idle_from: Option<Instant>,
    told: u64,
    told_at: Instant,
    looked_at: Instant,
    why: Option<String>,
    /// The ledger may say that it holds more than it does: what became of its last change is not known.
    pub(super) unsure: bool,
}

impl Spender {
    pub fn recovered(row: Row) -> Self {
        Spender { row, unsure: true, ..Self::default() }
    }

    /// The limits were lowered.
    pub fn lowered(&mut self) {
        self.row.over |= !self.row.escrow.share.is_zero();
    }
}

/// What limited tenants may still take here.
#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Room(pub BTreeMap<String, TenantRoom>);

/// Of one tenant.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct TenantRoom {
    /// GPU time counts.
    pub hours: bool,
    /// Attempts and grants hold this;
    pub used: Amount,
    /// and may hold that.
    pub share: Amount,
}

impl TenantRoom {
    /// What a claim would take.
    pub fn amount(&self, claim: &Claim) -> Amount {
        Amount::of(claim.nodes, &claim.resources, claim.max_runtime.filter(|_| self.hours))
    }
}

impl Room {
    /// This claim alone fits what its tenant may take.
    pub fn lets(&self, claim: &Claim) -> bool {
        self.lets_beside(claim, Amount::ZERO)
    }

    /// This claim fits what its tenant may take, beside what others of the tenant will have.
    pub fn lets_beside(&self, claim: &Claim, others: Amount) -> bool {
        self.0.get(&claim.birth.tenant).is_none_or(|room| {
            let amount = room.amount(claim);
            amount.is_zero() || room.used.plus(others).plus(amount).within(&room.share)
        })
    }
}

fn ids(bindings: &[Binding]) -> Vec<(ContactId, u64)> {
    bindings.iter().map(|b| (b.contact, b.incarnation)).collect()
}

impl Peer {
    // Hooks of the executor.

    /// What limited tenants may still take here: for one pass over the queue.
    pub(in crate::core) fn quota_room(&self) -> Room {
        let newest = self.contacts.newest().map(|c| (c.id, c.incarnation));
        let limited = self.tenants.cards.values().filter(|card| !card.removed);
        let room = |card: &Card| {
            let hours = card.limits.gpu_ms.is_some();
            let row = self.tenants.spenders.get(&card.tenant).map(|s| &s.row);
            let row = row.filter(|row| row.ledger == card.id() && !row.over);
            let open = row.filter(|row| newest.is_some_and(|b| row.escrow.bound.contains(&b)));
            let share = open.map_or(Amount::ZERO, |row| row.escrow.share);
            (
                card.tenant.clone(),
                TenantRoom { hours, used: self.exec.used_by(&card.tenant, hours, None), share },
            )
        };
        Room(limited.map(room).collect())
    }

    /// The waiting claims of a tenant that were held back want so much more here. Why they wait, in words.
    pub(in crate::core) fn quota_wants(&mut self, tenant: &str, used: Amount, more: Amount) -> String {
        let free = self.exec.gpus_free();
        let Some(spender) = self.tenants.spenders.get_mut(tenant) else { return String::new() };
        let together = spender.refusals == 0 && !spender.row.over;
        spender.want = Some(match spender.want {
            None => used.plus(more),
            // What several want is asked for at once, as far as there is room; after a refusal only the first.
            Some(want) if together && want.minus(used).gpus.saturating_add(more.gpus) <= free => {
                want.plus(more)
            }
            Some(want) => want,
        });
        self.quota_says(tenant)
    }

    /// Why a claim of this tenant that its limits hold back waits, in words.
    pub(in crate::core) fn quota_says(&self, tenant: &str) -> String {
        match self.tenants.spenders.get(tenant).map(|s| (s.why.as_ref(), s.want)) {
            Some((Some(why), _)) => format!("tenant {tenant}: {why}"),
            Some((None, Some(_))) => format!("a share of what tenant {tenant} may use is asked for"),
            // Nothing is asked for yet: others that are held back come first.
            _ => format!("tenant {tenant} holds no share here that it would fit"),
        }
    }

    /// A waiting claim of this tenant has others sent away: its part of the share is kept for it.
    pub(in crate::core) fn quota_pins(&mut self, tenant: &str, more: Amount) {
        if let Some(spender) = self.tenants.spenders.get_mut(tenant) {
            spender.pins = spender.pins.plus(more);
        }
    }

    /// A whole pass finds out anew what waiting claims want.
    pub(in crate::core) fn quota_forget_wants(&mut self) {
        for spender in self.tenants.spenders.values_mut() {
            (spender.want, spender.pins) = (None, Amount::ZERO);
        }
    }

    /// Why an attempt of this spec may not begin under this binding; its own grant no longer counts.
    pub(in crate::core) fn quota_refuses(
        &self,
        key: &super::super::api::AttemptKey,
        spec: &JobSpec,
        binding: (ContactId, u64),
    ) -> Option<String> {
        let card = self.tenants.limited(&spec.tenant)?;
        let hours = card.limits.gpu_ms.is_some();
        let tenant = &spec.tenant;
        let amount = Amount::of(spec.nodes, &spec.resources, spec.max_runtime.filter(|_| hours));
        if amount.is_zero() {
            return None;
        }
        let row = self.tenants.spenders.get(tenant).map(|s| &s.row);
        let row = row.filter(|row| row.ledger == card.id());
        let Some(row) = row else { return Some(format!("holds no share of what tenant {tenant} may use")) };
        let grace = spec.on_lost_contact.grace.unwrap_or(Span::FOREVER);
        if row.grace.is_some_and(|most| grace > most) {
            return Some(format!("its grace is longer than tenant {tenant} may have"));
        }
        let then = self.exec.used_by(tenant, hours, Some(key)).plus(amount);
        (!row.escrow.covers(&then, binding))
            .then(|| format!("its part of what tenant {tenant} may use went elsewhere"))
    }

    /// A living attempt of this tenant may move its binding there: the ledger says so already.
    pub(in crate::core) fn quota_follows(&self, tenant: &str, to: (ContactId, u64)) -> bool {
        let limited = self.tenants.limited(tenant).is_some();
        !limited || self.tenants.spenders.get(tenant).is_some_and(|s| s.row.escrow.bound.contains(&to))
    }

    /// An attempt has ended that used its GPUs for so long.
    pub(in crate::core) fn quota_ended(&mut self, tenant: &str, gpus: u64, ran: Span) {
        let gpu_ms = gpus.saturating_mul(ran.as_millis());
        if gpu_ms == 0 || self.tenants.limited(tenant).is_none() {
            return;
        }
        if let Some(spender) = self.tenants.spenders.get_mut(tenant) {
            spender.row.escrow.spend(gpu_ms);
            self.save_spender(tenant);
        }
    }

    /// What a tenant uses here and what its share is, where it is limited: for the eye on the invariants.
    pub(in crate::core) fn spending_of(
        &self,
        key: super::super::api::AttemptKey,
    ) -> Option<(Amount, Escrow)> {
        let tenant = self.exec.tenant_of(&key)?;
        let card = self.tenants.limited(tenant)?;
        let used = self.exec.used_by(tenant, card.limits.gpu_ms.is_some(), None);
        let escrow = self.tenants.spenders.get(tenant).map(|s| s.row.escrow.clone());
        Some((used, escrow.unwrap_or_default()))
    }

    /// Where a tenant stands here: input for the order of the queue and for preemption.
    pub fn standing(&self, tenant: &str) -> Standing {
        let here = self.exec.used_by(tenant, false, None).gpus;
        let card = self.tenants.limited(tenant);
        let me = Home { peer: self.cfg.name.clone(), store: self.cfg.store };
        // What this cluster holds of the ledger and does not use is nothing that anybody has yet.
        let elsewhere = |ledger: &LedgerRecord| {
            let own = ledger.share(&me).map_or(0u64, |share| share.held.gpus);
            ledger.total().gpus.saturating_sub(own)
        };
        Standing {
            here,
            held: self.tenants.seen.get(tenant).map_or(0, elsewhere).saturating_add(here),
            guaranteed: card.map_or(0, |c| c.limits.guaranteed),
            weight: card.map_or(1, |c| c.limits.weight),
        }
    }

    /// The ledger has refused more of it to this cluster.
    pub(in crate::core) fn quota_short(&self, tenant: &str) -> bool {
        self.tenants.spenders.get(tenant).is_some_and(|s| s.refusals > 0)
    }

    /// Tenants that have limits, as far as this cluster knows.
    pub(in crate::core) fn limited_tenants(&self) -> Vec<String> {
        self.tenants.cards.values().filter(|card| !card.removed).map(|card| card.tenant.clone()).collect()
    }

    /// This cluster knows that the tenant is limited: it keeps to its share.
    pub fn knows_tenant(&self, tenant: &str) -> bool {
        self.tenants.limited(tenant).is_some()
    }

    pub(super) fn spend_report(&self, tenant: &str) -> SpendReport {
        let hours = self.tenants.limited(tenant).is_some_and(|c| c.limits.gpu_ms.is_some());
        let used = self.exec.used_by(tenant, hours, None);
        let Some(spender) = self.tenants.spenders.get(tenant) else {
            return SpendReport { used, ..SpendReport::default() };
        };
        let Escrow { share, spent, .. } = spender.row.escrow;
        SpendReport { share, used, spent, waits: spender.why.clone() }
    }

    fn save_spender(&mut self, tenant: &str) {
        let Some(spender) = self.tenants.spenders.get(tenant) else { return };
        let row = serde_json::to_vec(&spender.row).expect("a row has only plain fields");
        let key = format!("{SHARE_KEY}{tenant}").into_bytes();
        self.write(Write { table: Table::Meta, key, value: Some(row) });
    }

    // The share.

    /// All spenders are looked over at the end of this step; called about every second.
    pub(in crate::core) fn tend_shares(&mut self) {
        self.tenants.tend = true;
    }

    /// Moves shares that should be moved. Called at the end of every step.
    pub(in crate::core) fn flush_quota(&mut self) {
        if self.tenants.spenders.is_empty() {
            return;
        }
        let all = std::mem::take(&mut self.tenants.tend);
        let due = |s: &Spender| s.sent.is_none() && (all || s.want.is_some());
        let due: Vec<String> =
            self.tenants.spenders.iter().filter(|(_, s)| due(s)).map(|(t, _)| t.clone()).collect();
        for tenant in due {
            self.move_share(&tenant);
        }
    }

    fn move_share(&mut self, tenant: &str) {
        let now = self.now.mono;
        let Some(card) = self.tenants.cards.get(tenant).cloned() else { return };
        let used = self.exec.used_by(tenant, card.limits.gpu_ms.is_some(), None);
        let newest = self.contact_fresh().and_then(|c| {
            let homes = BoundedVec::try_from(c.homes.clone()).ok()?;
            Some(Binding { contact: c.id, series: c.series, homes, incarnation: c.incarnation })
        });
        let followed = self.exec.bound_by(tenant);
        // What is reserved for it is covered while its time is, used or not.
        let reserved = Amount { gpus: self.reserved_idle(tenant), ..Amount::ZERO };
        let me = self.cfg.name.clone();
        let said = self.tenants.spenders.get(tenant).is_some_and(|s| s.why.is_some());
        // What was said to those that waited is over with the last of them.
        let over = said && !self.exec.waits_for(tenant);
        let Some(spender) = self.tenants.spenders.get_mut(tenant) else { return };
        if over {
            (spender.refusals, spender.why) = (0, None);
        }
        if spender.row.ledger != card.id() {
            // Another ledger counts now: what the old one gave is void.
            spender.row = Row { ledger: card.id(), ..Row::default() };
        }
        if spender.row.era != card.era && used.is_zero() {
            spender.row.era = card.era;
        }
        let share = spender.row.escrow.share;
        let keep = Amount {
            gpus: if card.removed { 0 } else { card.limits.keep.get(&me).copied().unwrap_or(0) },
            ..Amount::ZERO
        };
        let keep = if card.removed { keep } else { keep.max(used.plus(reserved)) };
        let needed = used.plus(spender.pins).max(keep);
        let adopts = (!card.removed && spender.row.era != card.era).then_some(card.era);
        let wanted = spender.want.filter(|_| !card.removed).unwrap_or_default().max(keep);
        let spare = !share.within(&needed);
        spender.idle_from = if spare { spender.idle_from.or(Some(now)) } else { None };
        let idle = spender.idle_from.is_some_and(|at| now.since(at) >= IDLE_FOR);
        let new = |b: &Binding| !spender.row.escrow.bound.contains(&(b.contact, b.incarnation));
        let rebinds = newest.as_ref().is_some_and(new) && !share.is_zero();
        let may_ask = now >= spender.again_at;
        let quiet = now.since(spender.told_at);
        let tells = spender.row.escrow.spent > spender.told && quiet >= TELL_EVERY;
        // What is above the limits goes back as soon as it is idle, and whether it still is so is asked now and then.
        let over = spender.row.over && !card.removed;
        let (held, asks) = match () {
            () if adopts.is_some() && may_ask => (used, true),
            () if over && (spare || quiet >= Span::secs(2)) => (share.min(needed), false),
            // More was refused, and the ledger may count here what this cluster does not have: others wait for it.
            () if spender.unsure && spender.refusals > 0 && may_ask => (share.min(needed), false),
            () if !wanted.within(&share) && may_ask => (share.max(wanted), true),
            () if spare && (idle || spender.refusals > 0 || card.removed) => (share.min(needed), false),
            () if (rebinds && quiet >= Span::secs(1)) || tells || (spender.unsure && may_ask) => {
                (share, false)
            }
            () => {
                let looks = !card.removed && !used.is_zero() && now.since(spender.looked_at) >= LOOK_EVERY;
                if looks {
                    spender.looked_at = now;
                    let purpose = Purpose::Tenant(TenantPurpose::Look);
                    self.propose(card.origin(), Task::Read, purpose, PATIENCE);
                }
                return;
            }
        };
        // Under what it is spent: the newest contact, and what living attempts are bound to.
        let known = |id: &(ContactId, u64)| {
            let kept = spender.row.bindings.iter().find(|b| (b.contact, b.incarnation) == *id).cloned();
            kept.or_else(|| {
                let c = self.contacts.get(&id.0)?;
                let homes = BoundedVec::try_from(c.homes.clone()).ok()?;
                Some(Binding { contact: c.id, series: c.series, homes, incarnation: id.1 })
            })
        };
        let mut bindings: Vec<Binding> = newest.into_iter().collect();
        for id in followed {
            if !ids(&bindings).contains(&id) {
                bindings.extend(known(&id));
            }
        }
        if bindings.len() > BINDINGS_MAX || (bindings.is_empty() && !held.is_zero()) {
            spender.again_at = now + Span::secs(1);
            return;
        }
        if held.is_zero() {
            bindings.clear();
        }
        spender.row.escrow.leaves(held, &ids(&bindings));
        let spent = spender.row.escrow.spent;
        spender.told_at = now;
        let nonce = self.fresh_nonce();
        let home = Home { peer: me, store: self.cfg.store };
        let change = LedgerChange::Share { home, held, spent, bindings: bindings.clone(), adopts, nonce };
        if let Some(spender) = self.tenants.spenders.get_mut(tenant) {
            spender.sent = Some(Sent { nonce, held, bindings, spent, adopts, asks });
        }
        // On disk before the change leaves: after a crash it must not be spent again.
        self.save_spender(tenant);
        let purpose = Purpose::Tenant(TenantPurpose::Share(tenant.to_owned(), nonce));
        self.propose(card.origin(), Task::Ledger(change), purpose, PATIENCE);
    }

    pub(super) fn share_moved(&mut self, tenant: &str, nonce: (u64, u64), result: OpResult) {
        let now = self.now.mono;
        let jitter = Span(self.rng.below(500_000));
        let me = Home { peer: self.cfg.name.clone(), store: self.cfg.store };
        let Some(spender) = self.tenants.spenders.get_mut(tenant) else { return };
        let Some(sent) = spender.sent.take_if(|sent| sent.nonce == nonce) else { return };
        match result {
            OpResult::Value { value: Value::Ledger(ledger), refused: None }
                if ledger.id() == spender.row.ledger =>
            {
                spender.row.escrow.chosen(sent.held, &ids(&sent.bindings), sent.spent);
                spender.row.grace = ledger.share(&me).map_or(Some(Span::ZERO), |s| s.grace);
                spender.row.bindings = sent.bindings;
                spender.row.era = sent.adopts.unwrap_or(spender.row.era);
                spender.told = sent.spent;
                spender.row.over = ledger.is_over();
                spender.unsure = false;
                if sent.asks {
                    (spender.refusals, spender.why) = (0, None);
                }
                self.count("shares_moved");
            }
            OpResult::Value { value: Value::Ledger(ledger), refused: Some(why) } => {
                spender.row.escrow.at_most(ledger.share(&me));
                spender.row.over = ledger.is_over();
                spender.refusals = (spender.refusals + 1).min(16);
                let wait = (1u64 << spender.refusals.min(5)).min(AGAIN_MAX);
                spender.again_at = now + Span::secs(wait) + jitter;
                spender.why = Some(why.to_string());
                self.count("shares_refused");
            }
            _ => {
                spender.again_at = now + Span::secs(1) + jitter;
                spender.unsure = true;
                spender.why = Some("the ledger cannot be reached".into());
                self.count("shares_unknown");
            }
        }
        self.save_spender(tenant);
        self.tenants.tend = true;
        self.rebind_attempts();
        self.queue_changed();
    }
}
