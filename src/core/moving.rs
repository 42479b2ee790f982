//! Moving home sets, the proposer's part. The chosen value of a sealed generation names the next one;
//! whoever meets it carries it over, under the install ballot, and goes on there.

use super::api::Output;
use super::message::{Ballot, Message, Origin, RecordKey, RegisterBody, RegisterRequest};
use super::peer::Peer;
use super::propose::{MOVED_MAX, Op, OpResult, Phase, SEARCH_AT, Task};
use super::purpose::Purpose;
use super::value::Value;
use crate::base::{Home, PeerName, Span};
use crate::model::record::Refused;

/// Patience of a read that checks what somebody said of a newer generation.
const HELD_PATIENCE: Span = Span::secs(10);

impl Peer {
    /// A value is chosen: the end of the operation, or of the generation that it was chosen in.
    pub(super) fn op_value(&mut self, mut op: Op, value: Value, refused: Option<Refused>) {
        let key = op.key;
        let Some(value_next) = value.installed() else {
            self.leave_moved(&key, &value);
            return self.op_end(op, OpResult::Value { value, refused });
        };
        let (generation, homes) = (value_next.generation(), value_next.homes().to_vec());
        self.learn(key, generation, homes.clone());
        self.proposer.fast.remove(&key);
        let value = value_next;
        match value.encode() {
            Ok(bytes) => {
                op.generation = generation;
                op.before = std::mem::replace(&mut op.homes, homes);
                op.proposed = Some((value, bytes));
                op.refused = None;
                op.ballot = Ballot::install();
                op.fast = false;
                op.installs = true;
                op.phase = Phase::Accepting;
                op.clear_answers();
                op.next = None;
                self.op_send(op);
            }
            Err(why) => self.op_end(op, OpResult::Rejected(why.to_string())),
        }
    }

    /// Where a register is held now, as far as this peer knows.
    pub(super) fn place_of(&self, key: &RecordKey, origin: &Origin) -> (u32, Vec<Home>) {
        let told = self.proposer.moved.get(key).cloned();
        let here = self.acceptor.held_at(key);
        let birth = (0, origin.homes().to_vec());
        [told, here].into_iter().flatten().fold(birth, |a, b| if b.0 > a.0 { b } else { a })
    }

    /// Remembers a newer home set; false where it is none.
    pub(super) fn learn(&mut self, key: RecordKey, generation: u32, homes: Vec<Home>) -> bool {
        if generation == 0 || homes.is_empty() || homes.len() > 5 {
            return false;
        }
        if self.proposer.moved.get(&key).is_none_or(|(known, _)| *known < generation) {
            if self.proposer.moved.len() >= MOVED_MAX {
                self.proposer.moved.pop_first();
            }
            self.proposer.moved.insert(key, (generation, homes));
        }
        true
    }

    /// The operation begins anew, at the newest home set that is known.
    pub(super) fn op_restart(&mut self, mut op: Op) {
        (op.generation, op.homes) = self.place_of(&op.key, &op.origin);
        op.clear_answers();
        op.proposed = None;
        op.resends = 0;
        match op.task {
            Task::Read => {
                op.phase = Phase::Reading;
                self.op_send(op);
            }
            Task::Forget => {
                op.phase = Phase::Forgetting;
                self.op_send(op);
            }
            _ => self.op_prepare(op),
        }
    }

    /// Homes of a later generation that do not know the record are given what another of them accepted:
    /// the same proposal once more. Once for each time that they are asked: a home that refuses it (a full disk)
    /// would be given it again for every refusal.
    pub(super) fn op_repair(&mut self, op: &mut Op) {
        let answers = op.promises.values().chain(op.states.values()).flatten();
        let Some((ballot, value)) = answers.max_by(|a, b| a.0.cmp(&b.0)) else { return };
        let (ballot, value) = (ballot.clone(), value.clone());
        for home in op.homes.iter().filter(|h| op.unknown.contains(&h.peer)) {
            if !op.repaired.insert(home.peer.clone()) {
                continue;
            }
            let body = RegisterBody::Accept {
                ballot: ballot.clone(),
                value: value.clone(),
                next: None,
                origin: Some(op.origin.clone()),
            };
            let (key, generation) = (op.key, op.generation);
            let request = RegisterRequest { op: op.id, key, generation, store: home.store, body };
            self.send(home.peer.clone(), Message::Register(request), false);
        }
    }

    /// This disk held a generation that is over, and is not among the homes of the present one.
    pub(super) fn leave_moved(&mut self, key: &RecordKey, value: &Value) {
        let stays = value.homes().iter().any(|h| h.peer == self.cfg.name && h.store == self.cfg.store);
        if !stays && let Some(write) = self.acceptor.point(key, value.generation(), value.homes()) {
            self.write(write);
        }
    }

    /// The members that held the record before and do not any more may drop it.
    pub(super) fn tell_old_homes(&mut self, value: &Value, before: &[Home]) {
        let Value::Job(record) = value else { return };
        for home in before.iter().filter(|h| !record.homes().contains(h) && h.peer != self.cfg.name) {
            let (birth, homes) = (record.birth.clone(), record.homes().to_vec());
            let held = Message::Held { birth, generation: record.generation, homes };
            self.out.push(Output::Send { to: home.peer.clone(), message: held, durable: false });
        }
    }

    /// Somebody holds this record in a newer generation: operations on it go there.
    pub(super) fn on_held(&mut self, key: RecordKey, generation: u32, homes: Vec<Home>) {
        // Believed only by who has asked, since the homes that it knew do not answer.
        let behind = |op: &&Op| op.key == key && op.generation < generation && op.resends >= SEARCH_AT;
        let ids: Vec<u64> = self.proposer.active.values().filter(behind).map(|op| op.id).collect();
        if let Some((held, _)) = self.acceptor.held_at(&key)
            && held < generation
            && let Some(origin) = self.acceptor.slot(&key).map(|slot| slot.origin.clone())
        {
            // This disk holds an older generation: a read finds out whether it is over.
            self.propose(origin, Task::Read, Purpose::OwnerRead, HELD_PATIENCE);
        }
        if ids.is_empty() || !self.learn(key, generation, homes) {
            return;
        }
        for id in ids {
            if let Some(op) = self.proposer.active.remove(&id) {
                self.op_restart(op);
            }
        }
    }

    /// No majority answers: the record may have moved while nobody told this peer.
    pub(super) fn op_search(&mut self, op: &Op) {
        let RecordKey::Job(job) = op.key else { return };
        let others: Vec<PeerName> =
            self.view.members.keys().filter(|name| **name != self.cfg.name).cloned().collect();
        for peer in others {
            self.send(peer, Message::Locate { job }, false);
        }
    }
}
