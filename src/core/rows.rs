//! An acceptor's rows on disk.

use serde::{Deserialize, Serialize};

use super::acceptor::Slot;
use super::api::{Table, Write};
use super::message::{Ballot, Origin, RecordKey};
use super::value::{Value, ValueError};
use crate::base::{Home, JobId};

/// Leads every row.
const ROW_VERSION: u8 = 1;

/// A row's head; the value's bytes follow it.
#[derive(Serialize, Deserialize)]
struct Head {
    origin: Origin,
    promised: Ballot,
    accepted: Option<Ballot>,
    #[serde(default)]
    generation: u32,
    #[serde(default)]
    pointer: Option<Vec<Home>>,
}

pub(super) const TOMBSTONE_TAG: u8 = b't';
pub(super) const FLOOR_TAG: u8 = b'f';

pub(super) fn tombstone_key(id: &JobId) -> Vec<u8> {
    [&[TOMBSTONE_TAG], &id.0[..]].concat()
}

/// The store's key of a register.
pub(super) fn key_bytes(key: &RecordKey) -> Vec<u8> {
    let (tag, id) = match key {
        RecordKey::Job(id) => (b'j', id.0),
        RecordKey::Contact(id) => (b'c', id.0),
        RecordKey::Ledger(id) => (b'l', id.0),
    };
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&id);
    bytes
}

/// A row: version, length of the head, head (JSON), value.
pub(super) fn encode_row(key: &RecordKey, slot: &Slot) -> Write {
    let head = Head {
        origin: slot.origin.clone(),
        promised: slot.promised.clone(),
        accepted: slot.accepted.as_ref().map(|(ballot, _)| ballot.clone()),
        generation: slot.generation,
        pointer: slot.pointer.clone(),
    };
    let head = serde_json::to_vec(&head).expect("a head has only plain fields");
    let value = slot.accepted.as_ref().map_or(&[][..], |(_, value)| value);
    let mut row = Vec::with_capacity(5 + head.len() + value.len());
    row.push(ROW_VERSION);
    row.extend_from_slice(&u32::try_from(head.len()).expect("a head is small").to_be_bytes());
    row.extend_from_slice(&head);
    row.extend_from_slice(value);
    Write { table: Table::Acceptors, key: key_bytes(key), value: Some(row) }
}

pub(super) fn decode_row(row: &[u8]) -> Result<Slot, ValueError> {
    let short = || ValueError::Malformed("row is cut short".into());
    let (&version, rest) = row.split_first().ok_or_else(short)?;
    if version != ROW_VERSION {
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
            (Some((ballot, value.into())), Some(read))
        }
    };
    let Head { origin, promised, generation, pointer, .. } = head;
    Ok(Slot { origin, generation, pointer, promised, accepted, value: read })
}
