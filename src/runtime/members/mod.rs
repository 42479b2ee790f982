//! Who belongs to the mesh: the admitted, signed member list.
//!
//! Membership is a decision of people (a token was spent, `member remove` was typed), liveness is
//! an observation; this list knows nothing of the second. Each line is signed with the mesh's CA
//! key, so that anybody may pass it on and nobody without that key can write one.
//!
//! **Merge rule.** Of two lines about one name the greater wins, compared by
//! (`generation`, `removed`, `revision`, signed bytes). A maximum over a total order is
//! commutative, associative and idempotent, so the order and number of exchanges do not matter.
//! `generation` counts admissions and removals, `revision` counts what a member changes about
//! itself (addresses) inside one generation: a removed member that has not heard of it yet can
//! therefore not write itself back by announcing a new address.

pub mod entry;
pub mod kv;
pub mod list;
mod service;

pub use entry::{CaSigner, Entry, SignedEntry};
pub use kv::{DurableKv, MemoryKv};
pub use list::{MEMBERS_MAX, MemberList, Merge};
pub(crate) use service::DIGEST_ENTRY_BYTES;
pub use service::{Candidate, Members, Offer};

use crate::base::PeerName;

/// Why the member list did not take a change. Unless it says otherwise, nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// A member of this name exists.
    #[error("a member named {0} exists: choose another name, or remove that one first")]
    NameTaken(PeerName),
    /// Not a member, or removed already.
    #[error("{0} is not a member: see `starling clusters`")]
    NoSuchMember(PeerName),
    /// The list is full.
    #[error("the member list holds its limit of {0} names, removed ones included: nothing was added")]
    Full(usize),
    /// Gossip could not carry one more.
    #[error("the names of all members take {0} of {1} bytes that a gossip digest may have: nothing was added")]
    DigestFull(usize, usize),
    /// The text is not a signed entry.
    #[error("not a member entry: {0}")]
    Malformed(String),
    /// The signature is not of this mesh's CA key.
    #[error("the entry of {0} is not signed by this mesh: it was dropped")]
    BadSignature(PeerName),
    /// This peer does not hold the CA key.
    #[error("this peer was admitted without the right to admit: ask another peer")]
    NoCaKey,
    /// The store refused; the list in memory is as before.
    #[error("the member list could not be written, nothing changed: {0}")]
    Store(#[from] std::io::Error),
}
