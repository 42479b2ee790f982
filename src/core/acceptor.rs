//! The acceptor's half of the register: what this disk has promised and accepted.
//!
//! Every answer that changes something leaves only after its row is on disk. "I do not know this
//! record" is an answer of its own, never "it is empty": a slot begins only with a certified origin.

// tidy: long because each answer and the rows that it must be durable in are reviewed together

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::api::{Table, Write};
use super::message::{AnswerBody, Ballot, Origin, RecordKey, RegisterBody, RegisterRequest};
use super::rows::{FLOOR_TAG, TOMBSTONE_TAG, decode_row, encode_row, key_bytes, tombstone_key};
use super::scan::ByTime;
pub use super::value::{Encoded, Value, ValueError};
use crate::base::{Home, JobId, LedgerId, PeerName, StoreId};
use crate::model::JobRecord;
use crate::model::record::contact_id;
use crate::model::tenant::{LEDGERS_MAX, LedgerRecord, ledger_id};

/// What this disk holds of one register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Who may answer for it.
    pub origin: Origin,
    /// The newest generation that this disk knows.
    pub generation: u32,
    /// Set on a forward pointer: this disk holds no value any more, and these hold that generation.
    pub pointer: Option<Vec<Home>>,
    /// Nothing below is accepted or promised any more.
    pub promised: Ballot,
    /// The newest accepted ballot and value.
    pub accepted: Option<(Ballot, Encoded)>,
    /// The accepted value, read.
    pub value: Option<Value>,
}

/// Why a nearly full disk takes no new record, word for word: the proposer tells it apart by this.
pub const DISK_FULL: &str = "disk nearly full";
/// Why a home takes no second job under one idempotency key, word for word as well.
pub const KEY_TAKEN: &str = "another job has its key";

impl Origin {
    /// Who holds the register.
    pub fn homes(&self) -> &[Home] {
        match self {
            Origin::Job(birth) => &birth.homes,
            Origin::Contact(_, _, homes) | Origin::Ledger(_, homes) => homes,
        }
    }

    /// The key that this origin certifies.
    pub fn key(&self) -> RecordKey {
        match self {
            Origin::Job(birth) => RecordKey::Job(birth.id()),
            Origin::Contact(cluster, series, homes) => {
                RecordKey::Contact(contact_id(cluster, *series, homes))
            }
            Origin::Ledger(tenant, homes) => RecordKey::Ledger(ledger_id(tenant, homes)),
        }
    }
}

/// What is left of a record that was kept long enough: a late "create" cannot revive it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Tombstone {
    minter: PeerName,
    sequence: u64,
}

/// All that this disk holds as an acceptor.
#[derive(Debug, Clone, Default)]
pub struct Acceptor {
    slots: BTreeMap<RecordKey, Slot>,
    by_time: ByTime,
    jobs_live: usize,
    jobs: usize,
    tombstones: BTreeMap<JobId, Tombstone>,
    /// The same by age: sequences of one minter grow.
    by_minter: BTreeSet<(PeerName, u64, JobId)>,
    /// Per life of a minter (the upper half of its sequences): an unknown job below it was forgotten.
    floors: BTreeMap<(PeerName, u32), u64>,
}

/// Tombstones kept; older ones melt into their minter's floor.
pub const TOMBSTONES_MAX: usize = if cfg!(test) { 64 } else { 100_000 };

/// What came of a request.
pub struct Handled {
    /// For the proposer.
    pub answer: AnswerBody,
    /// To be on disk before it leaves.
    pub writes: Vec<Write>,
    /// A value was accepted.
    pub accepted: bool,
}

impl Handled {
    /// Not done, and why.
    pub fn refused(why: &str) -> Self {
        Self { answer: AnswerBody::Refused { why: why.into() }, writes: Vec::new(), accepted: false }
    }
}

/// What bounds the acceptor when a new register is to begin.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The disk is nearly full.
    pub disk_full: bool,
    /// Most jobs held.
    pub jobs_max: usize,
}

impl Acceptor {
    /// Reads the rows that the store held. A row that cannot be read is an error: acting without it
    /// could forget a promise.
    pub fn recover(rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Self, ValueError> {
        let mut acceptor = Acceptor::default();
        let malformed = |e: serde_json::Error| ValueError::Malformed(e.to_string());
        for (key, row) in rows {
            match key.split_first() {
                Some((&TOMBSTONE_TAG, id)) => {
                    let tombstone: Tombstone = serde_json::from_slice(row).map_err(malformed)?;
                    let id = id.try_into().map_err(|_| ValueError::Malformed("tombstone's key".into()))?;
                    acceptor.bury(JobId(id), tombstone);
                }
                Some((&FLOOR_TAG, name)) => {
                    let floor: u64 = serde_json::from_slice(row).map_err(malformed)?;
                    let name = name.split_last_chunk::<4>().and_then(|(n, _)| std::str::from_utf8(n).ok());
                    let name = name.and_then(|n| PeerName::new(n).ok());
                    let name = name.ok_or_else(|| ValueError::Malformed("floor's key".into()))?;
                    acceptor.floors.insert((name, life(floor)), floor);
                }
                _ => {
                    let slot = decode_row(row)?;
                    acceptor.slots.insert(slot.origin.key(), slot);
                }
            }
        }
        acceptor.recount();
        Ok(acceptor)
    }

    fn recount(&mut self) {
        self.jobs = 0;
        self.jobs_live = 0;
        self.by_time = ByTime::default();
        for slot in self.slots.values() {
            let (held, live) = weight(Some(slot));
            self.jobs += held;
            self.jobs_live += live;
            self.by_time.replace(None, slot.value.as_ref());
        }
    }

    /// Puts a slot in place and keeps the counts.
    fn put(&mut self, key: RecordKey, slot: Option<Slot>) {
        let (held, live) = weight(slot.as_ref());
        let held_value = self.slots.get(&key).and_then(|slot| slot.value.as_ref());
        self.by_time.replace(held_value, slot.as_ref().and_then(|slot| slot.value.as_ref()));
        let before = match slot {
            Some(slot) => self.slots.insert(key, slot),
            None => self.slots.remove(&key),
        };
        let (held_before, live_before) = weight(before.as_ref());
        self.jobs = self.jobs + held - held_before;
        self.jobs_live = self.jobs_live + live - live_before;
    }

    /// One register.
    pub fn slot(&self, key: &RecordKey) -> Option<&Slot> {
        self.slots.get(key)
    }

    /// The last accepted value of a job: a hint, since it may not be chosen.
    pub fn job(&self, id: &JobId) -> Option<&JobRecord> {
        match self.slots.get(&RecordKey::Job(*id))?.value.as_ref()? {
            Value::Job(record) => Some(record),
            _ => None,
        }
    }

    /// The same, to be kept.
    pub fn job_shared(&self, id: &JobId) -> Option<Arc<JobRecord>> {
        match self.slots.get(&RecordKey::Job(*id))?.value.as_ref()? {
            Value::Job(record) => Some(record.clone()),
            _ => None,
        }
    }

    /// All jobs with their last accepted values.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobRecord> {
        self.slots.values().filter_map(|slot| match &slot.value {
            Some(Value::Job(record)) => Some(&**record),
            _ => None,
        })
    }

    /// All ledgers with their last accepted values.
    pub fn ledgers(&self) -> impl Iterator<Item = (LedgerId, &LedgerRecord)> {
        let first = RecordKey::Ledger(LedgerId::default());
        self.slots.range(first..).filter_map(|(key, slot)| match (key, &slot.value) {
            (RecordKey::Ledger(id), Some(Value::Ledger(record))) => Some((*id, &**record)),
            _ => None,
        })
    }

    /// Jobs held, and those of them that are not final.
    pub fn counts(&self) -> (usize, usize) {
        (self.jobs, self.jobs_live)
    }

    /// Job registers after one key, in order: for a sweep that goes round.
    pub fn jobs_after(&self, cursor: Option<JobId>) -> impl Iterator<Item = (JobId, &JobRecord)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = cursor.map_or(Unbounded, |id| Excluded(RecordKey::Job(id)));
        self.slots.range((from, Unbounded)).filter_map(|(key, slot)| match (key, &slot.value) {
            (RecordKey::Job(id), Some(Value::Job(record))) => Some((*id, &**record)),
            _ => None,
        })
    }

    /// The same from an id on.
    pub(super) fn jobs_from(&self, id: JobId) -> impl Iterator<Item = (JobId, &JobRecord)> {
        self.slots.range(RecordKey::Job(id)..).filter_map(|(key, slot)| match (key, &slot.value) {
            (RecordKey::Job(id), Some(Value::Job(record))) => Some((*id, &**record)),
            _ => None,
        })
    }

    /// Jobs by time.
    pub(super) fn by_time(&self) -> &ByTime {
        &self.by_time
    }

    /// True if the record was here and was forgotten.
    pub fn forgotten(&self, id: &JobId) -> bool {
        self.tombstones.contains_key(id)
    }

    /// Where this disk thinks a register is held now: generation and homes.
    pub fn held_at(&self, key: &RecordKey) -> Option<(u32, Vec<Home>)> {
        let slot = self.slots.get(key)?;
        Some((slot.generation, slot.homes().to_vec()))
    }

    /// The record has moved to homes that this disk is not among: only a forward pointer stays.
    pub fn point(&mut self, key: &RecordKey, generation: u32, homes: &[Home]) -> Option<Write> {
        let slot = self.slots.get(key).filter(|slot| slot.generation < generation)?;
        let slot = Slot {
            origin: slot.origin.clone(),
            generation,
            pointer: Some(homes.to_vec()),
            promised: Ballot::default(),
            accepted: None,
            value: None,
        };
        let write = encode_row(key, &slot);
        self.put(*key, Some(slot));
        Some(write)
    }

    /// Buries a record that a majority has forgotten already, with what melts into the floors.
    pub fn forget(&mut self, id: &JobId) -> Vec<Write> {
        let key = RecordKey::Job(*id);
        let Some(Origin::Job(birth)) = self.slots.get(&key).map(|slot| slot.origin.clone()) else {
            return Vec::new();
        };
        self.put(key, None);
        let mut writes = vec![Write { table: Table::Acceptors, key: key_bytes(&key), value: None }];
        let tombstone = Tombstone { minter: birth.minter, sequence: birth.sequence };
        let bytes = serde_json::to_vec(&tombstone).expect("a tombstone has only plain fields");
        writes.push(Write { table: Table::Acceptors, key: tombstone_key(id), value: Some(bytes) });
        self.bury(*id, tombstone);
        while self.tombstones.len() > TOMBSTONES_MAX {
            writes.extend(self.melt());
        }
        writes
    }

    fn bury(&mut self, id: JobId, tombstone: Tombstone) {
        self.by_minter.insert((tombstone.minter.clone(), tombstone.sequence, id));
        self.tombstones.insert(id, tombstone);
    }

    /// Drops the oldest tombstone of the first minter; what its minter made before it stays refused.
    fn melt(&mut self) -> Vec<Write> {
        let Some((minter, sequence, id)) = self.by_minter.pop_first() else { return Vec::new() };
        self.tombstones.remove(&id);
        let life = life(sequence);
        let floor = self.floors.entry((minter.clone(), life)).or_default();
        *floor = (*floor).max(sequence.saturating_add(1));
        let value = Some(serde_json::to_vec(floor).expect("a number"));
        let key = [&[FLOOR_TAG], minter.as_str().as_bytes(), &life.to_be_bytes()].concat();
        vec![
            Write { table: Table::Acceptors, key, value },
            Write { table: Table::Acceptors, key: tombstone_key(&id), value: None },
        ]
    }

    /// Answers one request of a member for this peer's disk.
    pub fn handle(
        &mut self,
        me: (&PeerName, StoreId),
        from: &PeerName,
        request: &RegisterRequest,
        room: Room,
    ) -> Handled {
        self.handle_read(me, from, request, None, room)
    }

    /// The same with the value that the request asks to accept, where it need not be read from its bytes: that of this
    /// peer's own proposal.
    pub fn handle_read(
        &mut self,
        me: (&PeerName, StoreId),
        from: &PeerName,
        request: &RegisterRequest,
        own: Option<Value>,
        room: Room,
    ) -> Handled {
        self.answer(me, from, request, own, room, false)
    }

    /// Accepts what this peer has just seen a majority of the homes choose without it, since another job has its key here: two
    /// of one key may have been chosen by other homes each, and whoever does not hold a record cannot act for it.
    pub fn hold_chosen(
        &mut self,
        me: (&PeerName, StoreId),
        request: &RegisterRequest,
        chosen: Value,
        room: Room,
    ) -> Handled {
        self.answer(me, me.0, request, Some(chosen), room, true)
    }

    fn answer(
        &mut self,
        me: (&PeerName, StoreId),
        from: &PeerName,
        request: &RegisterRequest,
        own: Option<Value>,
        room: Room,
        chosen: bool,
    ) -> Handled {
        let store = me.1;
        let plain = |answer| Handled { answer, writes: Vec::new(), accepted: false };
        if request.store != store {
            // Asked as another disk.
            return plain(AnswerBody::Unknown);
        }
        if let RecordKey::Job(id) = &request.key
            && self.tombstones.contains_key(id)
        {
            return plain(AnswerBody::Forgotten);
        }
        let mut decoded = None;
        if let RegisterBody::Accept { value, .. } = &request.body {
            let birth = match self.slots.get(&request.key).map(|slot| &slot.origin) {
                Some(Origin::Job(birth)) => Some(birth),
                _ => None,
            };
            debug_assert!(own.is_none() || own == Value::decode(&request.key, value).ok());
            match own.map_or_else(|| Value::decode_born(&request.key, birth, value), Ok) {
                Ok(read) if read.generation() == request.generation => decoded = Some(read),
                Ok(_) => {
                    return plain(AnswerBody::Refused { why: "the value is of another generation".into() });
                }
                Err(why) => return plain(AnswerBody::Refused { why: why.to_string() }),
            }
        }
        if let Some(slot) = self.slots.get(&request.key) {
            if slot.generation > request.generation {
                let (generation, homes) = (slot.generation, slot.homes().to_vec());
                return plain(AnswerBody::Moved { generation, homes });
            }
            if slot.generation < request.generation && decoded.is_none() {
                // That generation has not begun here.
                return plain(AnswerBody::Unknown);
            }
        }
        match &request.body {
            RegisterBody::Read => match self.slots.get(&request.key) {
                Some(slot) if slot.pointer.is_none() => {
                    plain(AnswerBody::State { accepted: slot.accepted.clone() })
                }
                _ => plain(AnswerBody::Unknown),
            },
            RegisterBody::Prepare { ballot, origin } => {
                if let Err(refusal) = self.begin(me, from, request, (origin.as_ref(), None), room) {
                    return plain(refusal);
                }
                let slot = self.slots.get_mut(&request.key).filter(|slot| slot.pointer.is_none());
                let Some(slot) = slot else { return plain(AnswerBody::Unknown) };
                if *ballot <= slot.promised {
                    return plain(AnswerBody::Higher { promised: slot.promised.clone() });
                }
                slot.promised = ballot.clone();
                let answer = AnswerBody::Promise { ballot: ballot.clone(), accepted: slot.accepted.clone() };
                Handled { answer, writes: vec![encode_row(&request.key, slot)], accepted: false }
            }
            RegisterBody::Accept { ballot, value, next, origin } => {
                let Some(read) = decoded else { return plain(AnswerBody::Unknown) };
                if !chosen && self.key_taken(&request.key, &read) {
                    let (answer, writes) =
                        (AnswerBody::Refused { why: KEY_TAKEN.into() }, self.drop_empty(&request.key));
                    return Handled { answer, writes, accepted: false };
                }
                if let Err(refusal) = self.begin(me, from, request, (origin.as_ref(), Some(&read)), room) {
                    return plain(refusal);
                }
                self.accept(&request.key, ballot, value, read, next.as_ref())
            }
            RegisterBody::Forget => match (&request.key, self.slots.get(&request.key)) {
                (RecordKey::Job(id), Some(Slot { value: Some(Value::Job(record)), .. }))
                    if record.state.is_final() =>
                {
                    let writes = self.forget(id);
                    Handled { answer: AnswerBody::Forgotten, writes, accepted: false }
                }
                (_, None) => plain(AnswerBody::Unknown),
                _ => plain(AnswerBody::Refused { why: "the record is not final here".into() }),
            },
        }
    }

    /// A home takes one job of a key: of two that were minted under it by peers that did not hear of each other at most one
    /// can be chosen, as their homes are the same. What a majority has chosen moves on to later generations all the same.
    fn key_taken(&self, register: &RecordKey, value: &Value) -> bool {
        let Value::Job(record) = value else { return false };
        if record.generation > 0 || self.slots.get(register).is_some_and(|slot| slot.value.is_some()) {
            return false;
        }
        let other = record.key.and_then(|key| self.of_key(&key));
        // A key that is over may come again.
        other.is_some_and(|other| {
            RecordKey::Job(other.id()) != *register
                && other.submitted_at.0.abs_diff(record.submitted_at.0) <= super::keys::KEPT_MS
        })
    }

    /// A register that was only asked about, and whose value is refused: it would stay empty, and be counted, for ever.
    fn drop_empty(&mut self, register: &RecordKey) -> Vec<Write> {
        let empty = |slot: &Slot| slot.accepted.is_none() && slot.pointer.is_none();
        if !self.slots.get(register).is_some_and(empty) {
            return Vec::new();
        }
        self.put(*register, None);
        vec![Write { table: Table::Acceptors, key: key_bytes(register), value: None }]
    }

    fn accept(
        &mut self,
        key: &RecordKey,
        ballot: &Ballot,
        bytes: &Encoded,
        read: Value,
        next: Option<&Ballot>,
    ) -> Handled {
        let plain = |answer| Handled { answer, writes: Vec::new(), accepted: false };
        let Some(slot) = self.slots.get_mut(key) else { return plain(AnswerBody::Unknown) };
        // The same accept may come twice; after it the promise stands higher (`next`), and the answer
        // is still yes. A ballot below the promise that was not accepted is refused.
        if slot.accepted.as_ref().is_some_and(|(b, v)| b == ballot && v == bytes) {
            return plain(AnswerBody::Accepted { ballot: ballot.clone() });
        }
        let stale = slot.accepted.as_ref().is_some_and(|(b, _)| b >= ballot);
        if *ballot < slot.promised || stale {
            return plain(AnswerBody::Higher { promised: slot.promised.clone() });
        }
        let (_, live_before) = weight(Some(slot));
        slot.accepted = Some((ballot.clone(), bytes.clone()));
        self.by_time.replace(slot.value.as_ref(), Some(&read));
        slot.value = Some(read);
        let promise =
            next.filter(|n| n.proposer == ballot.proposer && n.boot == ballot.boot).unwrap_or(ballot);
        slot.promised = promise.max(ballot).clone();
        self.jobs_live = self.jobs_live + weight(Some(slot)).1 - live_before;
        let writes = vec![encode_row(key, slot)];
        Handled { answer: AnswerBody::Accepted { ballot: ballot.clone() }, writes, accepted: true }
    }

    /// Begins a register where it does not exist yet and may: at its certified birth, or, in a later
    /// generation, with a value of it (`first`). That value is the one chosen at the end of the generation
    /// before, or was proposed after a majority of this one had begun: the proposer sees to that.
    fn begin(
        &mut self,
        me: (&PeerName, StoreId),
        from: &PeerName,
        request: &RegisterRequest,
        (origin, first): (Option<&Origin>, Option<&Value>),
        room: Room,
    ) -> Result<(), AnswerBody> {
        let (key, generation) = (&request.key, request.generation);
        let held = self.slots.get(key);
        if held.is_some_and(|slot| slot.generation == generation && slot.pointer.is_none()) {
            return Ok(());
        }
        let Some(origin) = origin else { return Err(AnswerBody::Unknown) };
        let refuse = |why: &str| Err(AnswerBody::Refused { why: why.into() });
        if origin.key() != *key {
            return refuse("the id does not certify this origin");
        }
        let homes = match (generation, first) {
            (0, _) => origin.homes(),
            (_, Some(value)) => value.homes(),
            (_, None) => return Err(AnswerBody::Unknown),
        };
        let distinct =
            homes.iter().enumerate().all(|(i, h)| homes[..i].iter().all(|other| other.peer != h.peer));
        if homes.is_empty()
            || homes.len() > 5
            || !distinct
            || !homes.iter().any(|h| h.peer == *me.0 && h.store == me.1)
        {
            return refuse("this disk is not in the record's home set");
        }
        if held.is_some_and(|slot| !slot.hands_over_to(from, homes)) {
            return refuse("this disk knows of no move to these homes");
        }
        if matches!(origin, Origin::Ledger(..)) && held.is_none() && self.ledgers().count() >= LEDGERS_MAX {
            return refuse("holds as many ledgers as it may");
        }
        if let Origin::Job(birth) = origin {
            if held.is_none()
                && self
                    .floors
                    .get(&(birth.minter.clone(), life(birth.sequence)))
                    .is_some_and(|floor| birth.sequence < *floor)
            {
                return Err(AnswerBody::Forgotten);
            }
            if room.disk_full {
                return refuse(DISK_FULL);
            }
            if self.jobs >= room.jobs_max {
                return refuse("holds as many jobs as it may");
            }
        }
        let slot = Slot {
            origin: origin.clone(),
            generation,
            pointer: None,
            promised: Ballot::default(),
            accepted: None,
            value: None,
        };
        self.put(*key, Some(slot));
        Ok(())
    }
}

impl Slot {
    /// A member that is no home of a record must not end its generation by a word: either this disk has
    /// accepted the seal, or one of the present homes says so.
    fn hands_over_to(&self, from: &PeerName, next: &[Home]) -> bool {
        let sealed = self.value.as_ref().and_then(Value::sealed) == Some(next);
        sealed || self.homes().iter().any(|h| h.peer == *from)
    }

    /// Who holds the generation that this disk knows.
    fn homes(&self) -> &[Home] {
        match (&self.pointer, &self.value) {
            (Some(homes), _) => homes,
            (None, Some(value)) if self.generation > 0 => value.homes(),
            _ => self.origin.homes(),
        }
    }
}

/// The life of the minter that gave a sequence out.
fn life(sequence: u64) -> u32 {
    u32::try_from(sequence >> 32).unwrap_or(u32::MAX)
}

/// What a slot counts for: jobs held, and of these not final.
fn weight(slot: Option<&Slot>) -> (usize, usize) {
    match slot {
        Some(slot) if matches!(slot.origin, Origin::Job(_)) && slot.pointer.is_none() => {
            (1, usize::from(is_live(slot)))
        }
        _ => (0, 0),
    }
}

fn is_live(slot: &Slot) -> bool {
    match &slot.value {
        Some(Value::Job(record)) => !record.state.is_final(),
        Some(Value::Contact(_) | Value::Ledger(_)) => false,
        None => true,
    }
}
