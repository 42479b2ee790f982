//! Identifiers: validated at the edge, ordered, and cheap to compare.

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE32_NOPAD, HEXLOWER};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not an identifier. Nothing changed; give another text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// A name that is empty, too long, or has a character outside `[a-z0-9-]`.
    #[error(
        "name {0:?} is not 1 to 63 characters of a-z, 0-9 and '-', starting and ending with a letter or digit"
    )]
    Name(String),
    /// A text of the wrong length or alphabet for the identifier named first.
    #[error("{1:?} is not a {0}")]
    Malformed(&'static str, String),
}

/// The name of a peer, and so of the one cluster it fronts: a DNS label, 1 to 63 bytes of
/// `[a-z0-9-]`, unique in its mesh.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerName(std::sync::Arc<str>);

impl PeerName {
    /// Longest name in bytes.
    pub const LEN_MAX: usize = 63;

    /// Checks and takes a name.
    pub fn new(text: &str) -> Result<Self, IdError> {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if text.len() <= Self::LEN_MAX
            && edge(text.chars().next())
            && edge(text.chars().last())
            && text.chars().all(inner)
        {
            Ok(Self(text.into()))
        } else {
            Err(IdError::Name(text.chars().take(80).collect()))
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Ordered and hashed as its text is.
impl std::borrow::Borrow<str> for PeerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
impl fmt::Debug for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl FromStr for PeerName {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        Self::new(s)
    }
}
impl Serialize for PeerName {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}
impl<'de> Deserialize<'de> for PeerName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}
impl JsonSchema for PeerName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PeerName".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "a peer, and so the one cluster that it fronts: 1 to 63 of a-z, 0-9 and '-'",
            "maxLength": Self::LEN_MAX,
        })
    }
}

/// Writes a fixed-size byte identifier with its text form (used for JSON) and its raw form (wire).
macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $len:literal, $what:literal, $encode:expr, $decode:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub [u8; $len]);

        // The order of the bytes, eight of them in one step: ids are the keys of nearly every map.
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                let head = |id: &Self| id.0.first_chunk().map(|first| u64::from_be_bytes(*first));
                head(self).cmp(&head(other)).then_with(|| self.0.cmp(&other.0))
            }
        }
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let encode: fn(&[u8]) -> String = $encode;
                f.pad(&encode(&self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                let decode: fn(&str) -> Option<Vec<u8>> = $decode;
                let bytes = if s.len() <= 4 * $len { decode(s) } else { None };
                bytes
                    .and_then(|b| <[u8; $len]>::try_from(b).ok())
                    .map(Self)
                    .ok_or_else(|| IdError::Malformed($what, s.chars().take(80).collect()))
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                if s.is_human_readable() {
                    s.collect_str(self)
                } else {
                    self.0.serialize(s)
                }
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                if d.is_human_readable() {
                    String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; $len]>::deserialize(d).map(Self)
                }
            }
        }
        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let encode: fn(&[u8]) -> String = $encode;
                let length = encode(&[0; $len]).len();
                json_schema!({
                    "type": "string", "description": $what, "minLength": length, "maxLength": length,
                })
            }
        }
    };
}

fn base32(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}
fn unbase32(text: &str) -> Option<Vec<u8>> {
    BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes()).ok()
}
fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}
fn unhex(text: &str) -> Option<Vec<u8>> {
    HEXLOWER.decode(text.as_bytes()).ok()
}

byte_id!(
    /// A job's self-certifying id, 32 characters of base32 in text: the first 8 bytes hash
    /// (tenant, minter, sequence) and place it on the ring, the other 12 hash those and the birth
    /// home set, so that no two home sets can both answer for one id.
    JobId, 20, "job id", base32, unbase32
);
byte_id!(
    /// The id of one contact record; hashes its cluster, series number and home set.
    ContactId, 20, "contact id", base32, unbase32
);
byte_id!(
    /// The id of a tenant's ledger; hashes the tenant and its home set.
    LedgerId, 20, "ledger id", base32, unbase32
);
byte_id!(
    /// What is kept of an idempotency key in a record: a hash of its tenant and of the key.
    KeyId, 20, "key id", base32, unbase32
);
byte_id!(
    /// The id of an incident; hashes what kind it is and what it is about, so that every peer makes the same one.
    IncidentId, 10, "incident id", base32, unbase32
);
byte_id!(
    /// The identity of one peer's disk; a peer that comes back with another one is a new acceptor.
    StoreId, 16, "store id", hex, unhex
);
byte_id!(
    /// The mesh: a hash of its trust root's certificate.
    MeshId, 16, "mesh id", hex, unhex
);
byte_id!(
    /// A W3C trace id, one for a job's whole life.
    TraceId, 16, "trace id", hex, unhex
);
byte_id!(
    /// A W3C span id: one step of a trace.
    SpanId, 8, "span id", hex, unhex
);

impl JobId {
    /// The first characters, enough to tell jobs apart on a screen.
    pub fn short(&self) -> String {
        base32(&self.0)[..8].to_owned()
    }

    /// The lowest id whose text begins with this one; what is not base32 in it counts as `a`.
    pub fn first_of(prefix: &str) -> Self {
        let mut id = [0; 20];
        for (i, letter) in prefix.bytes().take(32).enumerate() {
            let five = match letter {
                b'a'..=b'z' => letter - b'a',
                b'2'..=b'7' => letter - b'2' + 26,
                _ => 0,
            };
            for bit in 0..5 {
                let at = i * 5 + bit;
                id[at / 8] |= (five >> (4 - bit) & 1) << (7 - at % 8);
            }
        }
        Self(id)
    }

    /// Where the ring proposes this job's homes.
    pub fn ring_key(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("a job id has 20 bytes"))
    }
}

impl KeyId {
    /// Where the ring proposes homes for a job with this key: every peer proposes the same ones.
    pub fn ring_key(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("a key id has 20 bytes"))
    }
}

/// The number of one execution of a job, and its fencing token: 0 means never placed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of the next placement.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One member of a home set: a peer *and* the disk it held the record on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Home {
    /// The peer.
    pub peer: PeerName,
    /// Its disk when the record was born there.
    pub store: StoreId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "eu-west-1", "0", &"a".repeat(63)] {
            assert_eq!(PeerName::new(good).expect("good").as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a b", "ä", "a\u{7}", &"a".repeat(64)] {
            assert!(matches!(PeerName::new(bad), Err(IdError::Name(_))), "{bad:?}");
        }
    }

    #[test]
    fn ids_read_back_what_they_print() {
        let id = JobId([7; 20]);
        assert_eq!(id.to_string().len(), 32);
        assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
        assert_eq!(
            serde_json::from_str::<JobId>(&serde_json::to_string(&id).expect("json")).expect("back"),
            id
        );
        assert!("".parse::<JobId>().is_err());
        assert!("x".repeat(10_000).parse::<JobId>().is_err());
        assert_eq!(StoreId([0xab; 16]).to_string(), "ab".repeat(16));
    }

    #[test]
    fn ids_are_in_the_order_of_their_bytes() {
        let mut rng = crate::base::Rng::new(1);
        for _ in 0..10_000 {
            // Mostly equal, so that every byte decides now and then.
            let mut one = || {
                let mut bytes = [0x7f; 20];
                bytes[rng.below(20) as usize] = rng.below(256) as u8;
                bytes
            };
            let (a, b) = (one(), one());
            assert_eq!(JobId(a).cmp(&JobId(b)), a.cmp(&b), "{a:?} {b:?}");
        }
    }
}
