//! One signed line of the member list.

use serde::{Deserialize, Serialize};

use super::MembersError;
use crate::base::{PeerName, StoreId};
use crate::transport::keys::{PublicKey, SIGNATURE_BYTES, SecretKey};
use crate::transport::Identity;

/// Signs with the mesh's CA key, if it is here.
pub trait CaSigner: Send + Sync {
    /// The signature of these bytes in this context; none where the key is not held.
    fn ca_sign(&self, context: &str, bytes: &[u8]) -> Option<Vec<u8>>;
}

impl CaSigner for Identity {
    fn ca_sign(&self, context: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        self.ca_sign_bytes(context, bytes).ok()
    }
}
impl CaSigner for SecretKey {
    fn ca_sign(&self, context: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        Some(self.sign_bytes(context, bytes))
    }
}

/// Writes a key, hash or signature as hex, so that the list can be read by people.
pub(crate) mod hex {
    use data_encoding::HEXLOWER;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::transport::keys::PublicKey;

    pub fn serialize<S: Serializer>(key: &PublicKey, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&HEXLOWER.encode(&key.0))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PublicKey, D::Error> {
        let text = String::deserialize(d)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(serde::de::Error::custom)?;
        let key = bytes.try_into().map_err(|_| serde::de::Error::custom("a public key has 32 bytes"))?;
        Ok(PublicKey(key))
    }
}

/// What the mesh says of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: PeerName,
    /// Counts admissions and removals of this name, from 1.
    pub generation: u64,
    /// No longer a member.
    pub removed: bool,
    /// Counts what it changed about itself in this generation.
    pub revision: u64,
    /// Its disk.
    pub store: StoreId,
    /// `host:port` texts it is reached at.
    pub addresses: Vec<String>,
    /// Its public key: what it says of itself in gossip is signed with it.
    #[serde(with = "hex")]
    pub public_key: PublicKey,
    /// Holds records and runs nothing.
    pub witness: bool,
    /// Was given the CA key, and so may admit others.
    pub can_admit: bool,
}

impl Entry {
    /// Most addresses of one member.
    pub const ADDRESSES_MAX: usize = 8;
    /// Longest address in bytes (a host name has 253 at most).
    pub const ADDRESS_LEN_MAX: usize = 260;
    /// Longest signed text in bytes.
    pub const BODY_LEN_MAX: usize = 4096;

    /// Says what is wrong with it, if anything.
    pub fn check(&self) -> Result<(), MembersError> {
        let wrong = |what: &str| Err(MembersError::Malformed(format!("{}: {what}", self.name)));
        if self.addresses.len() > Self::ADDRESSES_MAX {
            return wrong("more than 8 addresses");
        }
        let plain = |a: &String| {
            !a.is_empty() && a.len() <= Self::ADDRESS_LEN_MAX && a.bytes().all(|b| b.is_ascii_graphic())
        };
        if !self.addresses.iter().all(plain) {
            return wrong("an address is empty, too long or not plain ASCII");
        }
        // Far below overflow: a hostile member must not be able to write the last generation.
        if self.generation == 0 || self.generation > 1 << 40 || self.revision > 1 << 40 {
            return wrong("generation or revision out of range");
        }
        Ok(())
    }
}

/// An entry with the very bytes that were signed, so that a peer passes on fields it does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedEntry {
    body: String,
    signature: String,
    #[serde(skip)]
    entry: Option<Entry>,
}

/// Keeps a signature over a member entry from ever being valid for anything else.
const CONTEXT: &str = "member entry 1";

impl SignedEntry {
    /// Signs an entry with the mesh's CA key.
    pub fn sign(entry: Entry, ca: &dyn CaSigner) -> Result<Self, MembersError> {
        entry.check()?;
        let body = serde_json::to_string(&entry).map_err(|e| MembersError::Malformed(e.to_string()))?;
        let signature = ca.ca_sign(CONTEXT, body.as_bytes()).ok_or(MembersError::NoCaKey)?;
        Ok(Self { body, signature: data_encoding::HEXLOWER.encode(&signature), entry: Some(entry) })
    }

    /// Checks what came from outside: size, form, limits, then the signature.
    pub fn verified(self, ca: &PublicKey) -> Result<Self, MembersError> {
        if self.body.len() > Entry::BODY_LEN_MAX || self.signature.len() != 2 * SIGNATURE_BYTES {
            return Err(MembersError::Malformed("not of an entry's size".into()));
        }
        let malformed = |e: &dyn std::fmt::Display| MembersError::Malformed(e.to_string());
        let entry: Entry = serde_json::from_str(&self.body).map_err(|e| malformed(&e))?;
        entry.check()?;
        let signature = data_encoding::HEXLOWER.decode(self.signature.as_bytes()).map_err(|e| malformed(&e))?;
        if !ca.verify_bytes(CONTEXT, self.body.as_bytes(), &signature) {
            return Err(MembersError::BadSignature(entry.name));
        }
        Ok(Self { entry: Some(entry), ..self })
    }

    /// What was signed; none until it was verified here.
    pub fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// The signed text.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// The name in it, whether it was verified or not.
    pub fn claimed_name(&self) -> Option<PeerName> {
        #[derive(Deserialize)]
        struct Named {
            name: PeerName,
        }
        serde_json::from_str::<Named>(&self.body).ok().map(|n| n.name)
    }

    /// Bytes it takes in a message.
    pub fn wire_len(&self) -> usize {
        // The body is JSON inside JSON: every quote in it is escaped.
        2 * self.body.len() + self.signature.len() + 40
    }

    /// Where this line stands in the merge rule.
    pub(super) fn rank(&self) -> Option<(u64, bool, u64, &str)> {
        self.entry.as_ref().map(|e| (e.generation, e.removed, e.revision, self.body.as_str()))
    }
}
