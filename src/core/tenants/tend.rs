//! What the homes of a ledger do: they announce it, move it, and take back what a lost cluster held.
//!
//! A lost cluster's share comes back as its jobs do: every contact incarnation under which the share may be spent is
//! taken over after the longest grace of what spends it, each on condition that it was not renewed since; then the
//! share is removed on condition that the cluster has not changed it. Never by time alone.

use super::super::owner::{Lapse, contact_origin};
use super::*;
use crate::model::Placement;
use crate::model::record::ContactChange;
use crate::model::tenant::{Binding, Share};

/// The acting home of a ledger says where it is this often.
const ANNOUNCE_EVERY: Span = Span::secs(20);
/// The other homes this often: the acting one may have missed all of it.
const ANNOUNCE_BESIDE: Span = Span::secs(60);

impl Peer {
    pub(in crate::core) fn tend_ledgers(&mut self) {
        let ledgers: Vec<LedgerRecord> = self.acceptor.ledgers().map(|(_, l)| l.clone()).collect();
        let acting: Vec<&LedgerRecord> = ledgers.iter().filter(|l| self.acts_for_homes(l.homes())).collect();
        let now = self.now.mono;
        let acting: BTreeSet<LedgerId> = acting.iter().map(|l| l.id()).collect();
        let past = |at: Option<Instant>, every| at.is_none_or(|at| now.since(at) >= every);
        let beside = past(self.tenants.announced_beside, ANNOUNCE_BESIDE);
        if beside || past(self.tenants.announced, ANNOUNCE_EVERY) {
            self.tenants.announced = Some(now);
            let all: BTreeSet<LedgerId> = ledgers.iter().map(LedgerRecord::id).collect();
            let whose = if beside { &all } else { &acting };
            let cards = self.tenants.cards.values().filter(|card| whose.contains(&card.id()));
            let cards: Vec<Card> = cards.cloned().collect();
            if beside {
                self.tenants.announced_beside = Some(now);
            }
            self.announce(cards);
        }
        for ledger in &ledgers {
            let id = ledger.id();
            // A home may know the ledger from its register alone.
            let card = Card::of(ledger);
            if !self.tenants.cards.contains_key(&ledger.tenant) {
                self.learn_card(&card);
            }
            let known = self.tenants.cards.get(&ledger.tenant);
            let news = known.is_some_and(|known| known.id() == id && card.is_newer(known));
            if news && !self.tenants.busy.contains(&id) {
                // What its disk took may not be chosen: the register says what is.
                self.tend_by(ledger, card.origin(), Task::Read, TenantPurpose::Tend(id));
                continue;
            }
            let others_turn = ledger.sealed.is_some() && self.rng.below(4) == 0;
            if self.tenants.busy.contains(&id) || !(acting.contains(&id) || others_turn) {
                continue;
            }
            if !self.move_ledger(ledger) {
                self.reclaim_shares(ledger);
            }
        }
    }

    fn move_ledger(&mut self, ledger: &LedgerRecord) -> bool {
        let task = if ledger.sealed.is_some() {
            Task::Settle
        } else {
            match self.better_homes(ledger.homes(), ring_key(&ledger.tenant)) {
                Some(next) => Task::Ledger(LedgerChange::Seal { generation: ledger.generation, next }),
                None => return false,
            }
        };
        self.tend_by(ledger, Card::of(ledger).origin(), task, TenantPurpose::Tend(ledger.id()));
        true
    }

    fn tend_by(&mut self, ledger: &LedgerRecord, origin: Origin, task: Task, purpose: TenantPurpose) {
        self.tenants.busy.insert(ledger.id());
        self.propose(origin, task, Purpose::Tenant(purpose), PATIENCE);
    }

    /// Takes the next step towards taking back what lost clusters hold.
    fn reclaim_shares(&mut self, ledger: &LedgerRecord) {
        if self.view.members.is_empty() || self.view.isolated {
            return;
        }
        let lost = |share: &&Share| !share.held.is_zero() && self.gone_for_long(&share.home);
        let lost: Vec<Share> = ledger.shares.iter().filter(lost).cloned().collect();
        for share in lost {
            // Where some of it never ends by itself, an operator says when it has.
            let Some(grace) = share.grace else { continue };
            let wait = grace.scale(1000 + 2 * self.cfg.rho_milli, 1000) + self.cfg.margin;
            let over = share.bindings.iter().all(|binding| self.binding_ended(ledger, &share, binding, wait));
            if over {
                self.count("shares_reclaimed");
                let text = format!("{} holds no share of tenant {} any more", share.home.peer, ledger.tenant);
                self.event("tenant.reclaimed", None, text);
                let change = LedgerChange::Reclaim { home: share.home.clone(), nonce: share.nonce };
                let origin = Card::of(ledger).origin();
                self.tend_by(ledger, origin, Task::Ledger(change), TenantPurpose::Tend(ledger.id()));
            }
            if self.tenants.busy.contains(&ledger.id()) {
                return;
            }
        }
    }

    /// True once everything bound to this incarnation has stopped; takes it over when that is due.
    fn binding_ended(&mut self, ledger: &LedgerRecord, share: &Share, binding: &Binding, wait: Span) -> bool {
        let placement = Placement {
            cluster: share.home.peer.clone(),
            contact: binding.contact,
            incarnation: binding.incarnation,
            series: binding.series,
            contact_homes: binding.homes.clone(),
            at: self.now.wall,
        };
        match self.lapse(&placement, wait) {
            Lapse::Over => true,
            Lapse::Until(_) => {
                self.read_silent(&placement);
                false
            }
            Lapse::Unseen => {
                self.observe_contact(&placement);
                false
            }
            Lapse::Take { expect, since } => {
                let nonce = self.fresh_nonce();
                let change = ContactChange::TakeOver { expect, nonce, by: self.cfg.name.clone() };
                self.count("takeovers_tried");
                let purpose = TenantPurpose::TakeOver(binding.contact, ledger.id(), since);
                self.tend_by(ledger, contact_origin(&placement), Task::Contact(change), purpose);
                false
            }
        }
    }
}
