//! The proposer's half of the register: create, compare-and-swap, read.
//!
//! One operation at a time per register; the others wait in line. A change is: prepare a majority, apply
//! it to the newest accepted value, accept at a majority. Whoever wrote last skips prepare. Nothing is
//! answered before a majority has accepted it, reads and refused changes included. A time-out means
//! that the outcome is unknown; `reflects` keeps a change that is asked again from being made twice.
// tidy: long because one operation's phases are one state machine, read from begin to end

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::acceptor::{Handled, KEY_TAKEN, Room};
use super::message::{
    AnswerBody, Ballot, Message, Origin, RecordKey, RegisterAnswer, RegisterBody, RegisterRequest,
};
use super::peer::{Peer, Timer};
use super::purpose::Purpose;
use super::value::{Encoded, Value};
use crate::base::{Home, Instant, PeerName, Span};
use crate::model::record::{Change, ContactChange, Refused};
use crate::model::tenant::LedgerChange;

/// What an operation does to its register.
#[derive(Debug, Clone)]
pub enum Task {
    /// Begin it with this value.
    Create(Box<Value>, Fresh),
    /// Change a job's record.
    Job(Change),
    /// Change a contact record.
    Contact(ContactChange),
    /// Change a tenant's ledger.
    Ledger(LedgerChange),
    /// Read it.
    Read,
    /// Write the newest value back to all homes, so that one which missed it learns it.
    Settle,
    /// The same, and done only when every home holds it.
    SettleAll,
    /// All homes hold the final value: all of them forget it.
    Forget,
}

/// Whether a create may skip prepare: only while no other value was ever proposed for this id by this
/// boot of its minter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// The id was minted in this very step.
    Yes,
    /// The same, and the row of its idempotency key must be on disk before any home hears of it: after a
    /// crash in between, the same key would make a second job.
    Keyed,
    /// It may have been tried before.
    No,
}

/// How it ended.
#[derive(Debug, Clone)]
pub enum OpResult {
    /// A majority holds this value.
    Value {
        /// The value.
        value: Value,
        /// Set when the change was refused; the value is as it was.
        refused: Option<Refused>,
    },
    /// A majority does not know the record.
    Missing,
    /// No majority answered in time: unknown.
    Timeout {
        /// Homes that answered.
        answered: usize,
        /// Homes needed.
        needed: usize,
    },
    /// Homes refuse it: why.
    Rejected(String),
    /// The record ended and was forgotten.
    Forgotten,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Reading,
    Preparing,
    Accepting,
    Forgetting,
    BackOff,
}

type Accepted = Option<(Ballot, Encoded)>;

/// One operation under way.
pub struct Op {
    pub(super) id: u64,
    /// What its origin certifies, worked out once: that takes several digests.
    pub(super) key: RecordKey,
    pub(super) origin: Origin,
    /// The home set that is asked.
    pub(super) generation: u32,
    pub(super) homes: Vec<Home>,
    pub(super) task: Task,
    pub(super) purpose: Purpose,
    pub(super) phase: Phase,
    pub(super) ballot: Ballot,
    pub(super) promises: BTreeMap<PeerName, Accepted>,
    pub(super) accepts: BTreeSet<PeerName>,
    pub(super) states: BTreeMap<PeerName, Accepted>,
    /// Homes whose disk has never held the record: as good as an empty answer.
    pub(super) unknown: BTreeSet<PeerName>,
    /// Homes that came back with another disk: no answer at all.
    pub(super) gone: BTreeSet<PeerName>,
    /// Homes that were given the record since they were last asked.
    pub(super) repaired: BTreeSet<PeerName>,
    /// Prepare begins the register at homes that missed its creation.
    pub(super) begins: bool,
    pub(super) forgotten: BTreeSet<PeerName>,
    pub(super) refusals: BTreeMap<PeerName, String>,
    pub(super) proposed: Option<(Value, Encoded)>,
    pub(super) refused: Option<Refused>,
    pub(super) next: Option<Ballot>,
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    pub(super) resend_every: Span,
    /// When its timers go off: they end with it.
    pub(super) resend_at: Option<Instant>,
    pub(super) conflicts: u32,
    pub(super) resends: u32,
    pub(super) fast: bool,
    /// What is being accepted is the first value of its generation: the task itself comes after it.
    pub(super) installs: bool,
    /// Who held the generation before that one.
    pub(super) before: Vec<Home>,
}

/// The right to the next change without prepare, earned by the last accept.
#[derive(Debug, Clone)]
pub(super) struct Fast {
    ballot: Ballot,
    value: Value,
    generation: u32,
}

/// All operations of this peer.
#[derive(Default)]
pub struct Proposer {
    pub(super) counter: u64,
    round_max: u64,
    pub(super) active: BTreeMap<u64, Op>,
    lines: BTreeMap<RecordKey, VecDeque<Op>>,
    pub(super) fast: BTreeMap<RecordKey, Fast>,
    /// Home sets of records that have moved, as far as this peer was told.
    pub(super) moved: BTreeMap<RecordKey, (u32, Vec<Home>)>,
}

/// Moved home sets remembered; who is forgotten here is found again by its forward pointers.
pub(super) const MOVED_MAX: usize = 65_536;
/// An operation that hears no majority asks everybody who holds the record at this resend.
pub(super) const SEARCH_AT: u32 = 2;
/// Fast rights kept; beyond it the oldest keys pay one more round.
const FAST_MAX: usize = 65_536;
/// Operations waiting in one register's line.
const LINE_MAX: usize = 256;
/// No honest ballot is higher.
const ROUND_MAX: u64 = 1 << 48;
/// First resend; doubles up to `RESEND_MAX`.
const RESEND_FIRST: Span = Span::millis(400);
const RESEND_MAX: Span = Span::secs(4);

impl Op {
    pub(super) fn majority(&self) -> usize {
        self.homes.len() / 2 + 1
    }
    pub(super) fn clear_answers(&mut self) {
        self.promises.clear();
        self.accepts.clear();
        self.states.clear();
        self.unknown.clear();
        self.forgotten.clear();
        self.gone.clear();
        self.repaired.clear();
        self.refusals.clear();
    }
    pub(super) fn answered(&self) -> usize {
        self.promises.len().max(self.accepts.len()).max(self.states.len())
    }
}

impl Proposer {
    pub(super) fn explain(&self, job: &crate::base::JobId) -> String {
        let key = RecordKey::Job(*job);
        let ops = self.active.values().filter(|op| op.key == key);
        let ops: Vec<_> = ops.map(|op| (op.id, op.phase, &op.task)).collect();
        format!("ops {ops:?} in line {:?}", self.lines.get(&key).map(VecDeque::len))
    }

    /// Operations under way.
    pub fn in_flight(&self) -> usize {
        self.active.len()
    }
}

impl Peer {
    /// Begins an operation, or puts it in the register's line.
    pub(super) fn propose(&mut self, origin: Origin, task: Task, purpose: Purpose, patience: Span) {
        self.proposer.counter += 1;
        let id = self.proposer.counter;
        let key = origin.key();
        let (generation, homes) = self.place_of(&key, &origin);
        let op = Op {
            id,
            key,
            origin,
            generation,
            homes,
            task,
            purpose,
            phase: Phase::BackOff,
            ballot: Ballot::default(),
            promises: BTreeMap::new(),
            accepts: BTreeSet::new(),
            states: BTreeMap::new(),
            unknown: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            gone: BTreeSet::new(),
            repaired: BTreeSet::new(),
            begins: false,
            refusals: BTreeMap::new(),
            proposed: None,
            refused: None,
            next: None,
            begun: self.now.mono,
            deadline: self.now.mono + patience,
            resend_every: RESEND_FIRST,
            resend_at: None,
            conflicts: 0,
            resends: 0,
            fast: false,
            installs: false,
            before: Vec::new(),
        };
        match self.proposer.lines.get_mut(&key) {
            Some(line) if line.len() >= LINE_MAX => {
                self.count("register_line_full");
                let needed = op.majority();
                self.op_done(op.purpose, OpResult::Timeout { answered: 0, needed });
            }
            Some(line) => line.push_back(op),
            None => {
                self.proposer.lines.insert(key, VecDeque::new());
                self.op_begin(op);
            }
        }
    }

    fn op_begin(&mut self, mut op: Op) {
        self.timers.insert((op.deadline, Timer::OpDeadline(op.id)));
        // It may have waited in line while the record moved.
        (op.generation, op.homes) = self.place_of(&op.key, &op.origin);
        // A right is for one change: whatever comes of this one, its ballot is never used for another value.
        let fast = match op.task {
            Task::Job(_) | Task::Contact(_) | Task::Ledger(_) => self.proposer.fast.remove(&op.key),
            _ => None,
        };
        let fast = fast.filter(|f| f.generation == op.generation);
        match (&op.task, fast) {
            (Task::Create(value, Fresh::Yes | Fresh::Keyed), _) => match value.encode() {
                Ok(bytes) => {
                    op.proposed = Some(((**value).clone(), bytes));
                    // Only the minter proposes under a first-round ballot of its own, and the id is fresh:
                    // no lower ballot exists, so the first accept needs no prepare.
                    op.ballot = Ballot { round: 1, proposer: self.cfg.name.to_string(), boot: self.life() };
                    self.op_accept(op);
                }
                Err(why) => self.op_end(op, OpResult::Rejected(why.to_string())),
            },
            (Task::Create(_, Fresh::No) | Task::Settle | Task::SettleAll, _) => self.op_prepare(op),
            (Task::Forget, _) => {
                op.phase = Phase::Forgetting;
                self.op_send(op);
            }
            (Task::Read, _) => {
                op.phase = Phase::Reading;
                self.op_send(op);
            }
            (task, Some(fast)) => match apply(task, &fast.value) {
                Some(Ok(value)) if !reflected(task, &fast.value) => match value.encode() {
                    Ok(bytes) => {
                        op.proposed = Some((value, bytes));
                        op.ballot = fast.ballot;
                        op.fast = true;
                        self.op_accept(op);
                    }
                    Err(why) => self.op_end(op, OpResult::Rejected(why.to_string())),
                },
                _ => self.op_prepare(op),
            },
            (_, None) => self.op_prepare(op),
        }
    }

    pub(super) fn op_prepare(&mut self, mut op: Op) {
        self.proposer.fast.remove(&op.key);
        self.proposer.round_max = self.proposer.round_max.saturating_add(1);
        op.ballot = Ballot {
            round: self.proposer.round_max.max(2),
            proposer: self.cfg.name.to_string(),
            boot: self.life(),
        };
        self.proposer.round_max = op.ballot.round;
        op.phase = Phase::Preparing;
        op.fast = false;
        op.installs = false;
        op.proposed = None;
        op.refused = None;
        op.clear_answers();
        self.op_send(op);
    }

    fn op_accept(&mut self, mut op: Op) {
        op.phase = Phase::Accepting;
        op.clear_answers();
        op.next = Some(Ballot { round: op.ballot.round.saturating_add(1), ..op.ballot.clone() });
        self.proposer.round_max = self.proposer.round_max.max(op.ballot.round.saturating_add(1));
        self.op_send(op);
    }

    /// Sends the present phase's request to every home that has not answered it, and keeps the op.
    pub(super) fn op_send(&mut self, mut op: Op) {
        if !self.disk_confirmed() {
            // Ballots of this life may have been used before: nobody hears of them yet.
            self.proposer.active.insert(op.id, op);
            return;
        }
        let key = op.key;
        let creates = matches!(op.task, Task::Create(..));
        // What must be on this disk before anybody hears of it: the row of an idempotency key; that an attempt lives
        // by two contacts from now on, since after a crash in between it would live by the one it had left; what a
        // cluster's share was lowered to.
        let waits = matches!(
            op.task,
            Task::Create(_, Fresh::Keyed | Fresh::No)
                | Task::Job(Change::Rebind { .. })
                | Task::Ledger(LedgerChange::Share { .. })
        );
        let body = match (op.phase, &op.proposed) {
            (Phase::Reading, _) => RegisterBody::Read,
            (Phase::Forgetting, _) => RegisterBody::Forget,
            (Phase::Preparing, _) => RegisterBody::Prepare {
                ballot: op.ballot.clone(),
                origin: (creates || op.begins).then(|| op.origin.clone()),
            },
            (Phase::Accepting, Some((_, bytes))) => RegisterBody::Accept {
                ballot: op.ballot.clone(),
                value: bytes.clone(),
                next: op.next.clone(),
                origin: Some(op.origin.clone()),
            },
            _ => {
                self.proposer.active.insert(op.id, op);
                return;
            }
        };
        let resend_at = self.now.mono + op.resend_every;
        if let Some(before) = op.resend_at.replace(resend_at) {
            self.timers.remove(&(before, Timer::OpResend(op.id)));
        }
        self.timers.insert((resend_at, Timer::OpResend(op.id)));
        let mut mine = None;
        let (id, generation) = (op.id, op.generation);
        for home in &op.homes {
            let done = op.promises.contains_key(&home.peer)
                || op.accepts.contains(&home.peer)
                || op.states.contains_key(&home.peer)
                || op.forgotten.contains(&home.peer)
                || op.gone.contains(&home.peer)
                // In a later generation a home that does not know the record learns it meanwhile.
                || (op.unknown.contains(&home.peer) && generation == 0);
            if done {
                continue;
            }
            let request =
                RegisterRequest { op: op.id, key, generation, store: home.store, body: body.clone() };
            if home.peer == self.cfg.name {
                // Who tells the others to forget does so itself last, so that it goes on asking until then.
                mine = (op.phase != Phase::Forgetting).then_some(request);
            } else {
                self.send(home.peer.clone(), Message::Register(request), waits);
            }
        }
        let alone = op.phase == Phase::Forgetting && op.homes.len() == 1;
        let proposed = op.proposed.as_ref().filter(|_| op.phase == Phase::Accepting).map(|(v, _)| v.clone());
        self.proposer.active.insert(op.id, op);
        if alone {
            // No answer will come: this disk is the only one.
            self.timers.insert((self.now.mono, Timer::OpRetry(id)));
        }
        if let Some(request) = mine {
            let me = self.cfg.name.clone();
            self.answer_register(me, request, proposed);
        }
    }

    /// The disk is what it was: what was held back goes out.
    pub(super) fn resume_operations(&mut self) {
        for (_, op) in std::mem::take(&mut self.proposer.active) {
            self.op_send(op);
        }
    }

    /// An acceptor's work for one request, own requests included. The answer leaves after its write.
    pub(super) fn on_register(&mut self, from: PeerName, request: RegisterRequest) {
        self.answer_register(from, request, None);
    }

    /// The same; of an own request the value that it carries is at hand.
    fn answer_register(&mut self, from: PeerName, request: RegisterRequest, value: Option<Value>) {
        if !self.disk_confirmed() {
            self.count("asked_before_confirmed");
            return;
        }
        let room = Room { disk_full: self.disk_full, jobs_max: self.cfg.jobs_max };
        let me = self.cfg.name.clone();
        self.watch_accept(&request);
        let handled = match self.too_young(&request) {
            true => Handled::refused("it ended a short while ago by the clock here"),
            false => self.acceptor.handle_read((&me, self.cfg.store), &from, &request, value, room),
        };
        // Every answer speaks of what this disk holds, so it waits for the writes before it even when it
        // writes nothing itself: a repeated accept, or a read, may find a value that is not synced yet.
        let durable = true;
        for write in handled.writes {
            self.write(write);
        }
        if handled.accepted {
            self.on_accepted(&request.key);
            if from != me {
                self.proposer.fast.remove(&request.key);
            }
        }
        let answer =
            RegisterAnswer { op: request.op, key: request.key, store: self.cfg.store, body: handled.answer };
        self.send(from, Message::Answer(answer), durable);
    }

    /// An acceptor's answer for an operation of ours.
    pub(super) fn on_answer(&mut self, from: PeerName, answer: RegisterAnswer) {
        let Some(mut op) = self.proposer.active.remove(&answer.op) else { return };
        let speaks = op.homes.iter().any(|h| h.peer == from && h.store == answer.store);
        let other_disk = answer.body == AnswerBody::Unknown && op.homes.iter().any(|h| h.peer == from);
        if op.key != answer.key || !(speaks || other_disk) {
            self.count("answers_ignored");
            self.proposer.active.insert(op.id, op);
            return;
        }
        match answer.body {
            AnswerBody::Promise { ballot, accepted }
                if op.phase == Phase::Preparing && ballot == op.ballot =>
            {
                op.unknown.remove(&from);
                op.promises.insert(from, accepted);
            }
            AnswerBody::Accepted { ballot } if op.phase == Phase::Accepting && ballot == op.ballot => {
                op.accepts.insert(from);
            }
            AnswerBody::Accepted { .. } if op.unknown.remove(&from) => {
                // It was given the record by a repair: what it was asked before is asked again.
                return self.op_send(op);
            }
            AnswerBody::State { accepted } if op.phase == Phase::Reading => {
                op.unknown.remove(&from);
                op.states.insert(from, accepted);
            }
            // One home is one answer: the same request may come to it twice, and find more the second time.
            AnswerBody::Unknown
                if speaks && !op.states.contains_key(&from) && !op.promises.contains_key(&from) =>
            {
                op.unknown.insert(from);
            }
            AnswerBody::Unknown if speaks => {}
            AnswerBody::Unknown => {
                op.gone.insert(from);
            }
            AnswerBody::Forgotten => {
                op.forgotten.insert(from);
            }
            AnswerBody::Moved { generation, homes }
                if generation > op.generation && self.learn(answer.key, generation, homes.clone()) =>
            {
                return self.op_restart(op);
            }
            AnswerBody::Refused { why } if op.phase != Phase::Reading => {
                op.refusals.insert(from, why);
            }
            AnswerBody::Higher { promised } => {
                if promised.round > ROUND_MAX {
                    // No mesh gets there; one home that lies must not spoil the ballots of all other records.
                    self.count("absurd_ballots");
                    self.proposer.active.insert(op.id, op);
                    return;
                }
                self.proposer.round_max = self.proposer.round_max.max(promised.round);
                if promised > op.ballot && matches!(op.phase, Phase::Preparing | Phase::Accepting) {
                    return self.op_conflict(op);
                }
            }
            _ => {}
        }
        self.op_advance(op);
    }

    /// Somebody proposes higher: wait a moment, at random, and prepare anew.
    fn op_conflict(&mut self, mut op: Op) {
        self.count("register_conflicts");
        if op.fast {
            // Only the fast right was lost: no reason to wait.
            return self.op_prepare(op);
        }
        op.conflicts += 1;
        op.phase = Phase::BackOff;
        let ceiling = 8_000u64 << op.conflicts.min(7);
        let wait = Span(2_000 + self.rng.below(ceiling));
        self.timers.insert((self.now.mono + wait, Timer::OpRetry(op.id)));
        self.proposer.active.insert(op.id, op);
    }

    fn op_advance(&mut self, mut op: Op) {
        let majority = op.majority();
        let homes = op.homes.len();
        if op.phase == Phase::Forgetting {
            if op.forgotten.union(&op.unknown).count() + usize::from(self.is_home(&op)) >= homes {
                return self.op_end(op, OpResult::Forgotten);
            }
            if let Some(why) = op.refusals.values().next().cloned() {
                return self.op_end(op, OpResult::Rejected(why));
            }
            self.proposer.active.insert(op.id, op);
            return;
        }
        // One home forgets only when all of them held the final value: each may, then. Also where a home's disk was lost
        // meanwhile, so that this one would move an ended record for ever. One that has not ended is no such: "forgotten"
        // may be the word of a floor, which says nothing of this very record. (A read goes on needing most: it must not
        // be told "forgotten", and the next reader the record.)
        let settles = match &op.task {
            Task::SettleAll => true,
            Task::Job(Change::Seal { .. }) => self.moves_an_ended_job(&op),
            _ => false,
        };
        if op.forgotten.len() >= if settles { 1 } else { majority } {
            return self.op_end(op, OpResult::Forgotten);
        }
        if op.generation > 0 {
            self.op_repair(&mut op);
        } else if op.unknown.len() >= majority && op.phase != Phase::Accepting {
            return self.op_end(op, OpResult::Missing);
        }
        if op.refusals.len() > homes - majority {
            // That its key is taken says something for good only where all of them say it.
            let other = op.refusals.values().find(|why| *why != KEY_TAKEN);
            let why = other.or(op.refusals.values().next()).cloned().unwrap_or_default();
            return self.op_end(op, OpResult::Rejected(why));
        }
        let enough = if matches!(op.task, Task::SettleAll) { homes } else { majority };
        match op.phase {
            Phase::Reading => self.op_read_advance(op),
            Phase::Preparing if op.promises.len() >= majority => self.op_promised(op),
            // Some hold it, the others have missed its creation, and no more are there to ask: with its certified
            // origin those begin it now. Their disks have held nothing of it, so their promise is as good as any.
            Phase::Preparing
                if op.generation == 0
                    && !op.begins
                    && !op.promises.is_empty()
                    && op.promises.len() + op.unknown.len() >= majority =>
            {
                op.begins = true;
                op.unknown.clear();
                self.op_send(op);
            }
            Phase::Accepting
                if op.accepts.len() >= enough || (op.installs && op.accepts.len() >= majority) =>
            {
                self.op_chosen(op);
            }
            _ => {
                self.proposer.active.insert(op.id, op);
            }
        }
    }

    fn is_home(&self, op: &Op) -> bool {
        op.homes.iter().any(|h| h.peer == self.cfg.name)
    }

    fn op_read_advance(&mut self, op: Op) {
        let majority = op.majority();
        let without = op.unknown.len() + op.gone.len() + op.forgotten.len();
        let silent = op.homes.len().saturating_sub(op.states.len() + without);
        let mut best: BTreeMap<&Ballot, usize> = BTreeMap::new();
        for (ballot, _) in op.states.values().flatten() {
            *best.entry(ballot).or_default() += 1;
        }
        let agreed = best.iter().find(|(_, n)| **n >= majority).map(|(ballot, _)| (*ballot).clone());
        let most = best.values().copied().max().unwrap_or(0);
        let empty = op.unknown.len() + op.states.values().filter(|s| s.is_none()).count();
        if let Some(ballot) = agreed {
            let bytes = op.states.values().flatten().find(|(b, _)| *b == ballot).map(|(_, v)| v.clone());
            let read = bytes.and_then(|b| Value::decode(&op.key, &b).ok());
            return match read {
                Some(value) => self.op_value(op, value, None),
                None => self.op_end(op, OpResult::Rejected("unreadable record".into())),
            };
        }
        if empty >= majority && op.generation == 0 {
            return self.op_end(op, OpResult::Missing);
        }
        if op.states.len() + op.unknown.len() >= majority && most + silent < majority {
            // No ballot can reach a majority any more: settle the newest by writing it back.
            return self.op_prepare(op);
        }
        self.proposer.active.insert(op.id, op);
    }

    /// A majority promised: apply the change to the newest accepted value.
    fn op_promised(&mut self, mut op: Op) {
        let newest = op.promises.values().flatten().max_by(|a, b| a.0.cmp(&b.0)).cloned();
        let settled = newest.as_ref().is_some_and(|(ballot, _)| {
            op.promises.values().filter(|p| p.as_ref().is_some_and(|(b, _)| b == ballot)).count()
                >= op.majority()
        });
        let Some((_, bytes)) = newest else {
            return match op.task.clone() {
                Task::Create(value, _) => match value.encode() {
                    Ok(bytes) => {
                        op.proposed = Some((*value, bytes));
                        self.op_accept(op);
                    }
                    Err(why) => self.op_end(op, OpResult::Rejected(why.to_string())),
                },
                _ => self.op_end(op, OpResult::Missing),
            };
        };
        let Ok(value) = Value::decode(&op.key, &bytes) else {
            return self.op_end(op, OpResult::Rejected("unreadable record".into()));
        };
        let change = if reflected(&op.task, &value) { None } else { apply(&op.task, &value) };
        match change {
            Some(Ok(next)) => match next.encode() {
                Ok(bytes) => {
                    op.proposed = Some((next, bytes));
                    self.op_accept(op);
                }
                Err(why) => self.op_end(op, OpResult::Rejected(why.to_string())),
            },
            other => {
                op.refused = other.and_then(Result::err);
                if settled && !matches!(op.task, Task::Settle | Task::SettleAll) {
                    let refused = op.refused.take();
                    return self.op_value(op, value, refused);
                }
                op.proposed = Some((value, bytes));
                self.op_accept(op);
            }
        }
    }

    fn op_chosen(&mut self, mut op: Op) {
        self.count(if op.fast { "register_fast_commits" } else { "register_commits" });
        self.commits.add(self.now.mono.since(op.begun));
        let refused = op.refused.take();
        let Some((value, bytes)) = op.proposed.take() else {
            return self.op_end(op, OpResult::Rejected("nothing was proposed".into()));
        };
        if op.refusals.get(&self.cfg.name).is_some_and(|why| why == KEY_TAKEN) {
            self.hold_chosen(&op, &value, bytes);
        }
        let generation = op.generation;
        if let Some(next) = op.next.take().filter(|_| !op.installs) {
            if self.proposer.fast.len() >= FAST_MAX {
                self.proposer.fast.pop_first();
            }
            if !value.ends() {
                let fast = Fast { ballot: next, value: value.clone(), generation };
                self.proposer.fast.insert(op.key, fast);
            }
        }
        if op.installs {
            self.count("homes_moved");
            self.tell_old_homes(&value, &std::mem::take(&mut op.before));
            return match op.task {
                // A majority of the new homes has begun; nothing is left to do for these.
                Task::Read | Task::Settle => self.op_value(op, value, None),
                _ => self.op_prepare(op),
            };
        }
        self.op_value(op, value, refused)
    }

    /// The home here refused it for its key's sake; the others have chosen it all the same.
    fn hold_chosen(&mut self, op: &Op, value: &Value, bytes: Encoded) {
        let (ballot, next, origin) = (op.ballot.clone(), op.next.clone(), Some(op.origin.clone()));
        let body = RegisterBody::Accept { ballot, value: bytes, next, origin };
        let (generation, store) = (op.generation, self.cfg.store);
        let request = RegisterRequest { op: op.id, key: op.key, generation, store, body };
        let room = Room { disk_full: self.disk_full, jobs_max: self.cfg.jobs_max };
        let me = self.cfg.name.clone();
        let handled = self.acceptor.hold_chosen((&me, store), &request, value.clone(), room);
        for write in handled.writes {
            self.write(write);
        }
        if handled.accepted {
            self.count("keys_held_twice");
            self.on_accepted(&op.key);
        }
    }

    /// By the value that is being installed, else by what this home holds: an end is never taken back.
    fn moves_an_ended_job(&self, op: &Op) -> bool {
        match (&op.proposed, op.key) {
            (Some((Value::Job(record), _)), _) if op.installs => record.state.is_final(),
            (_, RecordKey::Job(job)) => self.acceptor.job(&job).is_some_and(|record| record.state.is_final()),
            _ => false,
        }
    }

    pub(super) fn op_end(&mut self, op: Op, result: OpResult) {
        self.proposer.active.remove(&op.id);
        self.timers.remove(&(op.deadline, Timer::OpDeadline(op.id)));
        if let Some(at) = op.resend_at {
            self.timers.remove(&(at, Timer::OpResend(op.id)));
        }
        let key = op.key;
        match &result {
            OpResult::Value { value, .. } => {
                self.watch_chosen(&key, value);
                self.note_ledger(value);
            }
            _ => {
                self.proposer.fast.remove(&key);
            }
        }
        if let (OpResult::Forgotten, RecordKey::Job(job)) = (&result, &key) {
            self.proposer.moved.remove(&key);
            for write in self.acceptor.forget(job) {
                self.write(write);
            }
        }
        if let (OpResult::Rejected(why), RecordKey::Job(job)) = (&result, &key)
            && why == KEY_TAKEN
        {
            self.lost_its_key(job);
        }
        self.op_done(op.purpose, result);
        match self.proposer.lines.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(next) => self.op_begin(next),
            None => {
                self.proposer.lines.remove(&key);
            }
        }
    }

    /// A lease runs down while a contact waits: after a break it is asked for again within half a period, whatever
    /// the link's own pauses between probes have grown to.
    fn resend_most(&self, op: &Op) -> Span {
        match op.purpose {
            Purpose::Renew { .. } | Purpose::ContactClaim { .. } => {
                self.cfg.renew_every.scale(1, 2).clamp(RESEND_FIRST, RESEND_MAX)
            }
            _ => RESEND_MAX,
        }
    }

    pub(super) fn on_op_timer(&mut self, timer: Timer) {
        let id = match timer {
            Timer::OpResend(id) | Timer::OpRetry(id) | Timer::OpDeadline(id) => id,
            _ => return,
        };
        let Some(mut op) = self.proposer.active.remove(&id) else { return };
        match timer {
            Timer::OpDeadline(_) if self.now.mono >= op.deadline => {
                self.count("register_timeouts");
                let (answered, needed) = (op.answered(), op.majority());
                self.op_end(op, OpResult::Timeout { answered, needed });
            }
            Timer::OpRetry(_) if op.phase == Phase::BackOff => self.op_prepare(op),
            Timer::OpRetry(_) if op.phase == Phase::Forgetting => self.op_advance(op),
            Timer::OpResend(_)
                if op.phase == Phase::Reading && op.states.len() + op.unknown.len() >= op.majority() =>
            {
                self.op_prepare(op);
            }
            Timer::OpResend(_) if op.phase != Phase::BackOff => {
                op.resend_every = op.resend_every.scale(2, 1).min(self.resend_most(&op));
                op.resends += 1;
                op.repaired.clear();
                if op.resends == SEARCH_AT {
                    self.op_search(&op);
                }
                if op.generation > 0 && op.unknown.len() >= op.majority() {
                    // Told of a generation that too few have begun: the one before it carries it over again.
                    self.proposer.moved.remove(&op.key);
                    return self.op_restart(op);
                }
                self.op_send(op);
            }
            _ => {
                self.proposer.active.insert(id, op);
            }
        }
    }
}

/// The changed value, a refusal, or none where the task changes nothing.
fn apply(task: &Task, value: &Value) -> Option<Result<Value, Refused>> {
    match (task, value) {
        (Task::Job(change), Value::Job(record)) => Some(record.apply(change).map(Value::job)),
        (Task::Contact(change), Value::Contact(record)) => {
            Some(record.apply(change).map(|r| Value::Contact(Box::new(r))))
        }
        (Task::Ledger(change), Value::Ledger(record)) => {
            Some(record.apply(change).map(|r| Value::Ledger(Box::new(r))))
        }
        _ => None,
    }
}

fn reflected(task: &Task, value: &Value) -> bool {
    match (task, value) {
        (Task::Job(change), Value::Job(record)) => record.reflects(change),
        (Task::Contact(change), Value::Contact(record)) => record.reflects(change),
        (Task::Ledger(change), Value::Ledger(record)) => record.reflects(change),
        _ => true,
    }
}
