//! Contact: the execution lease of a whole cluster.
//!
//! The cluster's side renews one record every few seconds with a fresh nonce; a renewal counts from the
//! moment its first request left. A contact record never changes its homes: when the mesh grows or a
//! home is gone, the cluster begins a new series under a new id, and moves the bindings of its running
//! attempts over, each by one conditional swap on the job's record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::acceptor::{Value, ValueError};
use super::api::{Output, Table, Write};
use super::message::Origin;
use super::peer::{Peer, Timer};
use super::propose::{Fresh, OpResult, Task};
use super::purpose::Purpose;
use crate::base::{BoundedVec, ContactId, Home, Instant, Span};
use crate::model::record::{ContactChange, ContactRecord, contact_id};
use crate::model::report::{ContactReport, Liveness};

/// A contact record of this cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MyContact {
    pub id: ContactId,
    pub series: u64,
    pub homes: Vec<Home>,
    /// The incarnation that this cluster holds.
    pub incarnation: u64,
    /// When the last renewal that counted was sent; none since this start.
    #[serde(skip)]
    pub renewed: Option<Instant>,
    #[serde(skip)]
    pub nonce: (u64, u64),
    #[serde(skip)]
    pub busy: bool,
}

/// The contact records of this cluster, newest series last.
#[derive(Debug, Clone, Default)]
pub(super) struct Contacts {
    pub mine: Vec<MyContact>,
    pub(super) counter: u64,
    /// When the next renewal is due; timers of other moments are void, or every failure would add one for ever.
    pub(super) due: Instant,
    creating: Option<Instant>,
    /// This start of the peer.
    pub(super) begun: Instant,
}

const META_KEY: &[u8] = b"contacts";
/// A renewal without an answer is given up and sent anew after this many renewal periods.
const PATIENCE_PERIODS: u64 = 3;

impl Contacts {
    pub fn recover(meta: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Self, ValueError> {
        let mine = match meta.get(META_KEY) {
            Some(row) => serde_json::from_slice(row).map_err(|e| ValueError::Malformed(e.to_string()))?,
            None => Vec::new(),
        };
        Ok(Self { mine, ..Self::default() })
    }

    /// The contact that new attempts are bound to.
    pub fn newest(&self) -> Option<&MyContact> {
        self.mine.last()
    }
    pub fn get(&self, id: &ContactId) -> Option<&MyContact> {
        self.mine.iter().find(|c| c.id == *id)
    }
    fn get_mut(&mut self, id: &ContactId) -> Option<&mut MyContact> {
        self.mine.iter_mut().find(|c| c.id == *id)
    }
    /// Since the last renewal that counted, or since this start where none has yet.
    pub fn ages(&self, now: Instant) -> Vec<(ContactId, u64, Span)> {
        let age = |c: &MyContact| now.since(c.renewed.unwrap_or(self.begun));
        self.mine.iter().map(|c| (c.id, c.incarnation, age(c))).collect()
    }
}

impl Peer {
    /// The newest contact if its last renewal is fresh enough to begin an attempt under it.
    pub(super) fn contact_fresh(&self) -> Option<&MyContact> {
        let limit = self.cfg.renew_every.scale(2, 1) + Span::secs(1);
        self.contacts.newest().filter(|c| c.renewed.is_some_and(|at| self.now.mono.since(at) <= limit))
    }

    pub(super) fn fresh_nonce(&mut self) -> (u64, u64) {
        self.contacts.counter += 1;
        (self.life(), self.contacts.counter)
    }

    fn contacts_write(&mut self) {
        let row = serde_json::to_vec(&self.contacts.mine).expect("contacts have only plain fields");
        self.write(Write { table: Table::Meta, key: META_KEY.to_vec(), value: Some(row) });
    }

    /// Renews every contact record of this cluster and begins one where none stands.
    pub(super) fn renew(&mut self) {
        self.renew_in(self.cfg.renew_every);
        self.contacts_follow_members();
        self.drop_unused_contacts();
        let due: Vec<ContactId> = self.contacts.mine.iter().filter(|c| !c.busy).map(|c| c.id).collect();
        for id in due {
            self.renew_one(id);
        }
    }

    /// The next round of renewals comes after this span at the latest.
    fn renew_in(&mut self, span: Span) {
        let at = self.now.mono + span;
        if self.contacts.due <= self.now.mono || at < self.contacts.due {
            self.contacts.due = at;
            self.timers.insert((at, Timer::Renew));
        }
    }

    /// It counts from its sending: where a break held it up, the next one is due already.
    fn renew_if_late(&mut self, sent_at: Instant) {
        if self.now.mono.since(sent_at) >= self.cfg.renew_every {
            self.renew_in(Span::ZERO);
        }
    }

    fn renew_one(&mut self, id: ContactId) {
        let nonce = self.fresh_nonce();
        let patience = self.cfg.renew_every.scale(PATIENCE_PERIODS, 1);
        let (sent_at, me) = (self.now.mono, self.cfg.name.clone());
        let Some(contact) = self.contacts.get_mut(&id) else { return };
        contact.busy = true;
        let incarnation = contact.incarnation;
        let origin = Origin::Contact(me, contact.series, contact.homes.clone());
        let change = ContactChange::Renew { incarnation, nonce };
        self.propose(
            origin,
            Task::Contact(change),
            Purpose::Renew { contact: id, incarnation, sent_at },
            patience,
        );
    }

    pub(super) fn renewed(&mut self, id: ContactId, incarnation: u64, sent_at: Instant, result: OpResult) {
        let renew_every = self.cfg.renew_every;
        let Some(contact) = self.contacts.get_mut(&id) else { return };
        contact.busy = false;
        match result {
            OpResult::Value { value: Value::Contact(record), refused: None }
                if contact.incarnation == incarnation =>
            {
                contact.renewed = Some(contact.renewed.map_or(sent_at, |old| old.max(sent_at)));
                contact.nonce = record.nonce;
                self.out.push(Output::Renewed { contact: id, incarnation, sent_at });
                self.exec.report_dirty = true;
                self.queue_changed();
                self.renew_if_late(sent_at);
            }
            OpResult::Value { value: Value::Contact(record), refused: Some(_) } => {
                self.count("contact_taken");
                let text = format!("contact was taken over at incarnation {}", record.incarnation);
                self.event("contact.taken", None, text);
                self.claim_contact(id, incarnation);
            }
            OpResult::Missing => {
                // Its homes no longer know it: nothing can be proved by it. Begin a new series.
                self.event("contact.missing", None, "the contact's homes do not know it".into());
                self.begin_contact();
            }
            _ => {
                self.count("contact_renewals_failed");
                self.renew_in(renew_every.scale(1, 2));
            }
        }
    }

    fn claim_contact(&mut self, id: ContactId, above: u64) {
        let nonce = self.fresh_nonce();
        let (sent_at, me) = (self.now.mono, self.cfg.name.clone());
        let patience = self.cfg.renew_every.scale(PATIENCE_PERIODS, 1);
        let Some(contact) = self.contacts.get_mut(&id) else { return };
        contact.busy = true;
        let origin = Origin::Contact(me, contact.series, contact.homes.clone());
        let task = Task::Contact(ContactChange::Claim { above, nonce });
        self.propose(origin, task, Purpose::ContactClaim { contact: id, sent_at }, patience);
    }

    /// The cluster holds a new incarnation: attempts still inside their grace move their bindings to it.
    pub(super) fn contact_claimed(&mut self, id: ContactId, sent_at: Instant, result: OpResult) {
        let me = self.cfg.name.clone();
        let Some(contact) = self.contacts.get_mut(&id) else { return };
        contact.busy = false;
        if let OpResult::Value { value: Value::Contact(record), refused: None } = result
            && record.holder == me
        {
            contact.incarnation = record.incarnation;
            contact.nonce = record.nonce;
            contact.renewed = Some(sent_at);
            self.contacts_write();
            self.out.push(Output::Renewed { contact: id, incarnation: record.incarnation, sent_at });
            self.exec.report_dirty = true;
            self.rebind_attempts();
            self.renew_if_late(sent_at);
        }
    }

    /// Begins a new series when the present homes are not what they could be: none stands, a home was
    /// removed or looks lost, or the mesh has grown beyond it.
    pub(super) fn contacts_follow_members(&mut self) {
        if self.cfg.nodes.is_empty() || self.view.members.is_empty() {
            return;
        }
        let wanted = self.cfg.replicas.min(self.view.members.len());
        let wanted = if wanted == 4 { 3 } else { wanted };
        let bad = |home: &Home| {
            self.view
                .members
                .get(&home.peer)
                .is_none_or(|m| m.store != home.store || m.liveness == Liveness::Lost)
        };
        let stale = self.contacts.newest().is_none_or(|c| c.homes.len() < wanted || c.homes.iter().any(bad));
        if stale {
            self.begin_contact();
        }
    }

    fn begin_contact(&mut self) {
        let wait = self.cfg.renew_every.scale(4, 1);
        if self.contacts.creating.is_some_and(|at| self.now.mono.since(at) < wait) {
            return;
        }
        self.contacts.counter += 1;
        let series = self.contacts.counter;
        let key = crate::model::record::Birth::ring_key("contact", &self.cfg.name, series);
        let me = self.cfg.name.clone();
        let Ok(homes) = self.ring.homes(&self.view, key, self.cfg.replicas, Some(&me)) else { return };
        if self.contacts.newest().is_some_and(|c| c.homes == homes) {
            return;
        }
        self.contacts.creating = Some(self.now.mono);
        let nonce = self.fresh_nonce();
        let Ok(held) = BoundedVec::try_from(homes.clone()) else { return };
        let record = ContactRecord {
            cluster: me.clone(),
            series,
            homes: held,
            incarnation: 1,
            nonce,
            holder: me.clone(),
            ext: BTreeMap::new(),
        };
        let task = Task::Create(Box::new(Value::Contact(Box::new(record.clone()))), Fresh::Yes);
        let patience = self.cfg.renew_every.scale(PATIENCE_PERIODS, 1);
        self.propose(
            Origin::Contact(me, series, homes),
            task,
            Purpose::ContactCreate(Box::new(record)),
            patience,
        );
    }

    pub(super) fn contact_created(&mut self, record: ContactRecord, result: OpResult) {
        self.contacts.creating = None;
        if !matches!(result, OpResult::Value { refused: None, .. }) {
            self.renew_in(self.cfg.renew_every);
            return;
        }
        let id = contact_id(&record.cluster, record.series, &record.homes);
        self.contacts.mine.push(MyContact {
            id,
            series: record.series,
            homes: record.homes.to_vec(),
            incarnation: record.incarnation,
            renewed: None,
            nonce: record.nonce,
            busy: false,
        });
        self.contacts_write();
        self.renew_one(id);
        self.rebind_attempts();
    }

    /// Older series go when no attempt is bound to them any more.
    fn drop_unused_contacts(&mut self) {
        let Some(newest) = self.contacts.newest().map(|c| c.id) else { return };
        let before = self.contacts.mine.len();
        let exec = &self.exec;
        self.contacts.mine.retain(|c| c.id == newest || c.busy || exec.bound_to(&c.id));
        if self.contacts.mine.len() != before {
            self.contacts_write();
        }
        self.rebind_attempts();
    }

    pub(super) fn contact_report(&self) -> Option<ContactReport> {
        self.contacts.newest().filter(|c| c.renewed.is_some()).map(|c| ContactReport {
            contact: c.id,
            series: c.series,
            homes: c.homes.clone(),
            incarnation: c.incarnation,
            nonce: c.nonce,
        })
    }
}
