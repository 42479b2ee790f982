//! The acceptor's half of the register: what this disk has promised and accepted.
//!
//! Every answer that changes something leaves only after its row is on disk. "I do not know this
//! record" is an answer of its own, never "it is empty": a slot begins only with a certified origin.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::api::{Table, Write};
use super::message::{AnswerBody, Ballot, Origin, RecordKey, RegisterBody, RegisterRequest};
use crate::base::{Home, JobId, PeerName, StoreId};
use crate::model::record::{RECORD_BYTES_MAX, contact_id};
use crate::model::{ContactRecord, JobRecord};

/// What this disk holds of one register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Who may answer for it.
    pub origin: Origin,
    /// Nothing below is accepted or promised any more.
    pub promised: Ballot,
    /// The newest accepted ballot and value.
    pub accepted: Option<(Ballot, Vec<u8>)>,
    /// The accepted value, read.
    pub value: Option<Value>,
}

/// A register's value, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A job's record.
    Job(Box<JobRecord>),
    /// A contact record.
    Contact(Box<ContactRecord>),
}

/// Why bytes are not a value. Nothing was taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Larger than a record may be.
    #[error("a record of {0} bytes; at most {RECORD_BYTES_MAX} are kept")]
    TooLarge(usize),
    /// Of a version that this binary does not know.
    #[error("record version {0} is newer than this binary knows")]
    Version(u8),
    /// Not readable.
    #[error("unreadable record: {0}")]
    Malformed(String),
    /// Readable, and not what its key certifies.
    #[error("the record is not the one its id certifies")]
    NotCertified,
}

/// Why a nearly full disk takes no new record, word for word: the proposer tells it apart by this.
pub const DISK_FULL: &str = "disk nearly full";

/// Leads every stored value. Values are JSON: self-describing, so that N and N-1 read each other and
/// fields of a later version are kept.
const VALUE_VERSION: u8 = 1;

impl Value {
    /// Bytes for the register.
    pub fn encode(&self) -> Result<Vec<u8>, ValueError> {
        let mut bytes = vec![VALUE_VERSION];
        let written = match self {
            Value::Job(record) => serde_json::to_writer(&mut bytes, record),
            Value::Contact(record) => serde_json::to_writer(&mut bytes, record),
        };
        written.map_err(|e| ValueError::Malformed(e.to_string()))?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(ValueError::TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    /// Reads bytes and checks that they are what the key certifies.
    pub fn decode(key: &RecordKey, bytes: &[u8]) -> Result<Value, ValueError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(ValueError::TooLarge(bytes.len()));
        }
        let malformed = |e: serde_json::Error| ValueError::Malformed(e.to_string());
        match (bytes.split_first(), key) {
            (Some((&VALUE_VERSION, rest)), RecordKey::Job(id)) => {
                let record: JobRecord = serde_json::from_slice(rest).map_err(malformed)?;
                if record.id() != *id {
                    return Err(ValueError::NotCertified);
                }
                Ok(Value::Job(Box::new(record)))
            }
            (Some((&VALUE_VERSION, rest)), RecordKey::Contact(id)) => {
                let record: ContactRecord = serde_json::from_slice(rest).map_err(malformed)?;
                if contact_id(&record.cluster, record.series, &record.homes) != *id {
                    return Err(ValueError::NotCertified);
                }
                Ok(Value::Contact(Box::new(record)))
            }
            (Some((version, _)), _) => Err(ValueError::Version(*version)),
            (None, _) => Err(ValueError::Malformed("empty".into())),
        }
    }
}

impl Origin {
    /// Who holds the register.
    pub fn homes(&self) -> &[Home] {
        match self {
            Origin::Job(birth) => &birth.homes,
            Origin::Contact(_, _, homes) => homes,
        }
    }

    /// The key that this origin certifies.
    pub fn key(&self) -> RecordKey {
        match self {
            Origin::Job(birth) => RecordKey::Job(birth.id()),
            Origin::Contact(cluster, series, homes) => {
                RecordKey::Contact(contact_id(cluster, *series, homes))
            }
        }
    }
}

/// A row's head; the value's bytes follow it.
#[derive(Serialize, Deserialize)]
struct Head {
    origin: Origin,
    promised: Ballot,
    accepted: Option<Ballot>,
}

/// All that this disk holds as an acceptor.
#[derive(Debug, Clone, Default)]
pub struct Acceptor {
    slots: BTreeMap<RecordKey, Slot>,
    jobs_live: usize,
    jobs: usize,
}

/// What came of a request.
pub struct Handled {
    /// For the proposer.
    pub answer: AnswerBody,
    /// To be on disk before it leaves.
    pub write: Option<Write>,
    /// A value was accepted.
    pub accepted: bool,
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
        for row in rows.values() {
            let slot = decode_row(row)?;
            acceptor.slots.insert(slot.origin.key(), slot);
        }
        acceptor.recount();
        Ok(acceptor)
    }

    fn recount(&mut self) {
        self.jobs = 0;
        self.jobs_live = 0;
        for slot in self.slots.values() {
            if let Origin::Job(_) = slot.origin {
                self.jobs += 1;
                self.jobs_live += usize::from(is_live(slot));
            }
        }
    }

    /// One register.
    pub fn slot(&self, key: &RecordKey) -> Option<&Slot> {
        self.slots.get(key)
    }

    /// The last accepted value of a job: a hint, since it may not be chosen.
    pub fn job(&self, id: &JobId) -> Option<&JobRecord> {
        match self.slots.get(&RecordKey::Job(*id))?.value.as_ref()? {
            Value::Job(record) => Some(record),
            Value::Contact(_) => None,
        }
    }

    /// All jobs with their last accepted values.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobRecord> {
        self.slots.values().filter_map(|slot| match &slot.value {
            Some(Value::Job(record)) => Some(&**record),
            _ => None,
        })
    }

    /// Jobs held, and those of them that are not final.
    pub fn counts(&self) -> (usize, usize) {
        (self.jobs, self.jobs_live)
    }

    /// Forgets a register (retention). The caller has made sure that it is final and old.
    pub fn forget(&mut self, key: &RecordKey) -> Option<Write> {
        self.slots.remove(key)?;
        self.recount();
        Some(Write { table: Table::Acceptors, key: key_bytes(key), value: None })
    }

    /// Answers one request for this peer's disk.
    pub fn handle(
        &mut self,
        me: &PeerName,
        store: StoreId,
        request: &RegisterRequest,
        room: Room,
    ) -> Handled {
        let plain = |answer| Handled { answer, write: None, accepted: false };
        if request.store != store || request.generation != 0 {
            // Asked as another disk, or for a generation that never began here.
            return plain(AnswerBody::Unknown);
        }
        match &request.body {
            RegisterBody::Read => match self.slots.get(&request.key) {
                None => plain(AnswerBody::Unknown),
                Some(slot) => plain(AnswerBody::State { accepted: slot.accepted.clone() }),
            },
            RegisterBody::Prepare { ballot, origin } => {
                if let Err(refusal) = self.begin(me, store, &request.key, origin.as_ref(), room) {
                    return plain(refusal);
                }
                let Some(slot) = self.slots.get_mut(&request.key) else { return plain(AnswerBody::Unknown) };
                if *ballot <= slot.promised {
                    return plain(AnswerBody::Higher { promised: slot.promised.clone() });
                }
                slot.promised = ballot.clone();
                let answer = AnswerBody::Promise { ballot: ballot.clone(), accepted: slot.accepted.clone() };
                Handled { answer, write: Some(encode_row(&request.key, slot)), accepted: false }
            }
            RegisterBody::Accept { ballot, value, next, origin } => {
                let read = match Value::decode(&request.key, value) {
                    Ok(read) => read,
                    Err(why) => return plain(AnswerBody::Refused { why: why.to_string() }),
                };
                if let Err(refusal) = self.begin(me, store, &request.key, origin.as_ref(), room) {
                    return plain(refusal);
                }
                self.accept(&request.key, ballot, value, read, next.as_ref())
            }
        }
    }

    fn accept(
        &mut self,
        key: &RecordKey,
        ballot: &Ballot,
        bytes: &[u8],
        read: Value,
        next: Option<&Ballot>,
    ) -> Handled {
        let Some(slot) = self.slots.get_mut(key) else {
            return Handled { answer: AnswerBody::Unknown, write: None, accepted: false };
        };
        // The same accept may come twice; after it the promise stands higher (`next`), and the answer
        // is still yes. A ballot below the promise that was not accepted is refused.
        let again = slot.accepted.as_ref().is_some_and(|(b, v)| b == ballot && v == bytes);
        if again {
            return Handled {
                answer: AnswerBody::Accepted { ballot: ballot.clone() },
                write: None,
                accepted: false,
            };
        }
        let stale = slot.accepted.as_ref().is_some_and(|(b, _)| b >= ballot);
        if *ballot < slot.promised || stale {
            return Handled {
                answer: AnswerBody::Higher { promised: slot.promised.clone() },
                write: None,
                accepted: false,
            };
        }
        let was_live = is_live(slot);
        slot.accepted = Some((ballot.clone(), bytes.to_vec()));
        slot.value = Some(read);
        let promise =
            next.filter(|n| n.proposer == ballot.proposer && n.boot == ballot.boot).unwrap_or(ballot);
        slot.promised = promise.max(ballot).clone();
        if let Origin::Job(_) = slot.origin {
            self.jobs_live = self.jobs_live + usize::from(is_live(slot)) - usize::from(was_live);
        }
        let write = Some(encode_row(key, slot));
        Handled { answer: AnswerBody::Accepted { ballot: ballot.clone() }, write, accepted: true }
    }

    /// Begins a register at its certified birth, where it does not exist yet and may.
    fn begin(
        &mut self,
        me: &PeerName,
        store: StoreId,
        key: &RecordKey,
        origin: Option<&Origin>,
        room: Room,
    ) -> Result<(), AnswerBody> {
        if self.slots.contains_key(key) {
            return Ok(());
        }
        let Some(origin) = origin else { return Err(AnswerBody::Unknown) };
        let refuse = |why: &str| Err(AnswerBody::Refused { why: why.into() });
        if origin.key() != *key {
            return refuse("the id does not certify this origin");
        }
        let homes = origin.homes();
        let distinct =
            homes.iter().enumerate().all(|(i, h)| homes[..i].iter().all(|other| other.peer != h.peer));
        if homes.is_empty()
            || homes.len() > 5
            || !distinct
            || !homes.iter().any(|h| h.peer == *me && h.store == store)
        {
            return refuse("this disk is not in the record's home set");
        }
        if let Origin::Job(_) = origin {
            if room.disk_full {
                return refuse(DISK_FULL);
            }
            if self.jobs >= room.jobs_max {
                return refuse("holds as many jobs as it may");
            }
            self.jobs += 1;
            self.jobs_live += 1;
        }
        let slot = Slot { origin: origin.clone(), promised: Ballot::default(), accepted: None, value: None };
        self.slots.insert(*key, slot);
        Ok(())
    }
}

fn is_live(slot: &Slot) -> bool {
    match &slot.value {
        Some(Value::Job(record)) => !record.state.is_final(),
        Some(Value::Contact(_)) => false,
        None => true,
    }
}

/// The store's key of a register.
fn key_bytes(key: &RecordKey) -> Vec<u8> {
    let (tag, id) = match key {
        RecordKey::Job(id) => (b'j', id.0),
        RecordKey::Contact(id) => (b'c', id.0),
    };
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&id);
    bytes
}

/// A row: version, length of the head, head (JSON), value.
fn encode_row(key: &RecordKey, slot: &Slot) -> Write {
    let head = Head {
        origin: slot.origin.clone(),
        promised: slot.promised.clone(),
        accepted: slot.accepted.as_ref().map(|(ballot, _)| ballot.clone()),
    };
    let head = serde_json::to_vec(&head).expect("a head has only plain fields");
    let value = slot.accepted.as_ref().map(|(_, value)| value.as_slice()).unwrap_or_default();
    let mut row = Vec::with_capacity(5 + head.len() + value.len());
    row.push(VALUE_VERSION);
    row.extend_from_slice(&u32::try_from(head.len()).expect("a head is small").to_be_bytes());
    row.extend_from_slice(&head);
    row.extend_from_slice(value);
    Write { table: Table::Acceptors, key: key_bytes(key), value: Some(row) }
}

fn decode_row(row: &[u8]) -> Result<Slot, ValueError> {
    let short = || ValueError::Malformed("row is cut short".into());
    let (&version, rest) = row.split_first().ok_or_else(short)?;
    if version != VALUE_VERSION {
        return Err(ValueError::Version(version));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let (head, value) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(short)?;
    let head: Head = serde_json::from_slice(head).map_err(|e| ValueError::Malformed(e.to_string()))?;
    let key = head.origin.key();
    let (accepted, read) = match head.accepted {
        None => (None, None),
        Some(ballot) => {
            let read = Value::decode(&key, value)?;
            (Some((ballot, value.to_vec())), Some(read))
        }
    };
    Ok(Slot { origin: head.origin, promised: head.promised, accepted, value: read })
}
