//! A register's value: bytes on the wire and on disk, read and checked.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::message::RecordKey;
use crate::base::Home;
use crate::model::record::{Birth, RECORD_BYTES_MAX, contact_id};
use crate::model::tenant::{LedgerRecord, ledger_id};
use crate::model::{ContactRecord, JobRecord};

/// A register's value, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A job's record.
    Job(Arc<JobRecord>),
    /// A contact record.
    Contact(Box<ContactRecord>),
    /// A tenant's ledger.
    Ledger(Box<LedgerRecord>),
}

/// A value's bytes, shared by all who hold or send them. On the wire they are what a `Vec<u8>` is, and copied as a whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Encoded(Arc<[u8]>);

impl From<Vec<u8>> for Encoded {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}
impl From<&[u8]> for Encoded {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}
impl Deref for Encoded {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl Serialize for Encoded {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_bytes(&self.0)
    }
}
impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(EncodedVisitor)
    }
}

struct EncodedVisitor;

impl<'de> Visitor<'de> for EncodedVisitor {
    type Value = Encoded;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Encoded, E> {
        Ok(bytes.into())
    }
    /// As JSON has them.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Encoded, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = items.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }
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

/// Leads every stored value. Values are JSON: self-describing, so that N and N-1 read each other and
/// fields of a later version are kept.
pub(super) const VALUE_VERSION: u8 = 1;
/// Leads a record of an array, or of a job that waits for others: an older binary would drop what it says of them.
const VALUE_VERSION_ARRAY: u8 = 3;
/// Leads a record of a job with groups, or of a group: an older binary would take it for a job that may be placed.
const VALUE_VERSION_GROUPS: u8 = 4;
/// Leads a reservation's record: an older binary would take it for a job that may be placed.
const VALUE_VERSION_RESERVE: u8 = 5;
/// Leads a record that moves or has moved: an older binary would miss the seal, so it must not read it.
const VALUE_VERSION_MOVED: u8 = 2;
/// Few values are longer.
const USUAL_BYTES: usize = 2_048;

impl Value {
    /// Bytes for the register.
    pub fn encode(&self) -> Result<Encoded, ValueError> {
        let moved = |r: &JobRecord| r.generation > 0 || r.sealed.is_some();
        let with_groups = |r: &JobRecord| r.groups.is_some() || r.group_of.is_some();
        let grouped =
            |r: &JobRecord| r.spec.array.is_some() || r.array_of.is_some() || !r.spec.after.is_empty();
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.push(match self {
            Value::Job(record) if record.is_reservation() => VALUE_VERSION_RESERVE,
            Value::Job(record) if with_groups(record) => VALUE_VERSION_GROUPS,
            Value::Job(record) if grouped(record) => VALUE_VERSION_ARRAY,
            Value::Job(record) if moved(record) => VALUE_VERSION_MOVED,
            _ => VALUE_VERSION,
        });
        let written = match self {
            Value::Job(record) => serde_json::to_writer(&mut bytes, record),
            Value::Contact(record) => serde_json::to_writer(&mut bytes, record),
            Value::Ledger(record) => serde_json::to_writer(&mut bytes, record),
        };
        written.map_err(|e| ValueError::Malformed(e.to_string()))?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(ValueError::TooLarge(bytes.len()));
        }
        Ok(bytes.into())
    }

    /// Reads bytes and checks that they are what the key certifies.
    pub fn decode(key: &RecordKey, bytes: &[u8]) -> Result<Value, ValueError> {
        Self::decode_born(key, None, bytes)
    }

    /// The same; a job's birth that is known to be the one of this key saves working out its id.
    pub(super) fn decode_born(
        key: &RecordKey,
        birth: Option<&Birth>,
        bytes: &[u8],
    ) -> Result<Value, ValueError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(ValueError::TooLarge(bytes.len()));
        }
        let malformed = |e: serde_json::Error| ValueError::Malformed(e.to_string());
        match (bytes.split_first(), key) {
            (
                Some((
                    &(VALUE_VERSION
                    | VALUE_VERSION_MOVED
                    | VALUE_VERSION_ARRAY
                    | VALUE_VERSION_GROUPS
                    | VALUE_VERSION_RESERVE),
                    rest,
                )),
                RecordKey::Job(id),
            ) => {
                let record: JobRecord = serde_json::from_slice(rest).map_err(malformed)?;
                if birth != Some(&record.birth) && record.id() != *id {
                    return Err(ValueError::NotCertified);
                }
                Ok(Value::job(record))
            }
            (Some((&VALUE_VERSION, rest)), RecordKey::Contact(id)) => {
                let record: ContactRecord = serde_json::from_slice(rest).map_err(malformed)?;
                if contact_id(&record.cluster, record.series, &record.homes) != *id {
                    return Err(ValueError::NotCertified);
                }
                Ok(Value::Contact(Box::new(record)))
            }
            (Some((&VALUE_VERSION, rest)), RecordKey::Ledger(id)) => {
                let record: LedgerRecord = serde_json::from_slice(rest).map_err(malformed)?;
                if ledger_id(&record.tenant, &record.homes) != *id {
                    return Err(ValueError::NotCertified);
                }
                Ok(Value::Ledger(Box::new(record)))
            }
            (Some((version, _)), _) => Err(ValueError::Version(*version)),
            (None, _) => Err(ValueError::Malformed("empty".into())),
        }
    }
}

impl Value {
    /// A job's record; read in many places, so that it is shared and not copied.
    pub fn job(record: JobRecord) -> Self {
        Self::Job(Arc::new(record))
    }

    /// Of which generation it is.
    pub fn generation(&self) -> u32 {
        match self {
            Value::Job(record) => record.generation,
            Value::Ledger(record) => record.generation,
            Value::Contact(_) => 0,
        }
    }
    /// Who holds it.
    pub fn homes(&self) -> &[Home] {
        match self {
            Value::Job(record) => record.homes(),
            Value::Ledger(record) => record.homes(),
            Value::Contact(record) => &record.homes,
        }
    }
    /// The next home set, where this is its generation's last value.
    pub fn sealed(&self) -> Option<&[Home]> {
        match self {
            Value::Job(record) => record.sealed.as_deref(),
            Value::Ledger(record) => record.sealed.as_deref(),
            Value::Contact(_) => None,
        }
    }
    /// The first value of the next generation, where this one is sealed.
    pub fn installed(&self) -> Option<Value> {
        match self {
            Value::Job(record) => record.installed().map(Value::job),
            Value::Ledger(record) => record.installed().map(|r| Value::Ledger(Box::new(r))),
            Value::Contact(_) => None,
        }
    }
    /// Nothing but a move follows.
    pub fn ends(&self) -> bool {
        self.sealed().is_some() || matches!(self, Value::Job(record) if record.state.is_final())
    }
}
