//! The list in a running peer: on disk before anybody sees it, and watched by those who act on it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::MembersError;
use super::entry::{CaSigner, Entry, SignedEntry};
use super::kv::DurableKv;
use super::list::{MEMBERS_MAX, MemberList, Merge};
use crate::base::{PeerName, StoreId};
use crate::transport::PublicKey;

/// Rows of the member list start with this.
const PREFIX: &[u8] = b"member/";

/// Bytes one incarnation of a member takes in a gossip digest beside its name: two bytes of length,
/// generation, IPv4 address and port with their tag, heartbeat and two versions.
pub(crate) const DIGEST_ENTRY_BYTES: usize = 2 + 8 + 7 + 24;

/// Bytes that one incarnation of all members together may take in a digest. The digest rides whole
/// in every message, and past about 65 kB it ends the gossip task; twice this much leaves room for
/// the old and the new incarnation of everybody after a restart of the whole mesh.
pub const DIGEST_BYTES_MAX: usize = 30_000;

/// Who wants to be a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Wanted name.
    pub name: PeerName,
    /// Its disk.
    pub store: StoreId,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Its public key.
    pub public_key: PublicKey,
    /// Holds records only.
    pub witness: bool,
    /// Gets the CA key.
    pub can_admit: bool,
}

/// What became of lines that another peer sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Lines that were new here, now on disk.
    pub taken: Vec<SignedEntry>,
    /// Lines that were malformed, forged or beyond the limit.
    pub refused: usize,
}

/// The member list of this peer. Methods that change it write and fsync: call them where waiting for
/// the disk is allowed.
pub struct Members {
    ca: PublicKey,
    kv: Arc<dyn DurableKv>,
    /// Serialises changes, so that the disk and the watched value never disagree.
    change: Mutex<()>,
    list: watch::Sender<Arc<MemberList>>,
}

impl Members {
    /// Reads the list of an earlier start. A line on disk that no longer verifies is left out.
    pub fn load(kv: Arc<dyn DurableKv>, ca: PublicKey) -> Result<Self, MembersError> {
        let mut list = MemberList::default();
        for (key, value) in kv.scan(PREFIX)? {
            let line = serde_json::from_slice::<SignedEntry>(&value)
                .map_err(|e| MembersError::Malformed(e.to_string()));
            match line.and_then(|line| line.verified(&ca)) {
                Ok(line) => drop(list.merge(line)),
                Err(e) => {
                    tracing::error!(key = %String::from_utf8_lossy(&key), "member line on disk left out: {e}")
                }
            }
        }
        Ok(Self { ca, kv, change: Mutex::new(()), list: watch::Sender::new(Arc::new(list)) })
    }

    /// The list, now.
    pub fn list(&self) -> Arc<MemberList> {
        self.list.borrow().clone()
    }

    /// The list as it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<MemberList>> {
        self.list.subscribe()
    }

    /// Whether this candidate could be admitted now. The same key, disk and name again is not a conflict.
    pub fn check(&self, wanted: &Candidate) -> Result<(), MembersError> {
        let list = self.list();
        if let Some(held) = list.member(&wanted.name) {
            let same = held.public_key == wanted.public_key && held.store == wanted.store;
            return if same { Ok(()) } else { Err(MembersError::NameTaken(wanted.name.clone())) };
        }
        if list.len() >= MEMBERS_MAX && list.entry(&wanted.name).is_none() {
            return Err(MembersError::Full(MEMBERS_MAX));
        }
        let cost = |name: &PeerName| name.as_str().len() + DIGEST_ENTRY_BYTES;
        let digest = list.members().map(|e| cost(&e.name)).sum::<usize>() + cost(&wanted.name);
        if digest > DIGEST_BYTES_MAX {
            return Err(MembersError::DigestFull(digest, DIGEST_BYTES_MAX));
        }
        Ok(())
    }

    /// Signs and adds a member. Admitting the same candidate again gives the line it has.
    pub fn admit(&self, wanted: Candidate, ca: &dyn CaSigner) -> Result<SignedEntry, MembersError> {
        let _alone = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(&wanted)?;
        let list = self.list();
        if list.member(&wanted.name).is_some()
            && let Some(line) = list.line(&wanted.name)
        {
            return Ok(line.clone());
        }
        let generation = list.entry(&wanted.name).map_or(0, |e| e.generation) + 1;
        let Candidate { name, store, addresses, public_key, witness, can_admit } = wanted;
        let entry = Entry {
            name,
            generation,
            removed: false,
            revision: 0,
            store,
            addresses,
            public_key,
            witness,
            can_admit,
        };
        self.sign_and_keep(entry, ca)
    }

    /// Takes a member off the list. Its name may be admitted again later, with a new generation.
    pub fn remove(&self, name: &PeerName, ca: &dyn CaSigner) -> Result<SignedEntry, MembersError> {
        let _alone = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry =
            self.list().member(name).cloned().ok_or_else(|| MembersError::NoSuchMember(name.clone()))?;
        entry.generation += 1;
        entry.removed = true;
        self.sign_and_keep(entry, ca)
    }

    /// Announces other addresses of a member inside its generation; none if nothing differs.
    pub fn readdress(
        &self,
        name: &PeerName,
        addresses: Vec<String>,
        ca: &dyn CaSigner,
    ) -> Result<Option<SignedEntry>, MembersError> {
        let _alone = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry =
            self.list().member(name).cloned().ok_or_else(|| MembersError::NoSuchMember(name.clone()))?;
        if entry.addresses == addresses {
            return Ok(None);
        }
        entry.revision += 1;
        entry.addresses = addresses;
        self.sign_and_keep(entry, ca).map(Some)
    }

    /// Names another disk of a member: the old one is out, as after a removal, and a new one was admitted. None if
    /// nothing differs.
    pub fn rehouse(
        &self,
        name: &PeerName,
        store: StoreId,
        ca: &dyn CaSigner,
    ) -> Result<Option<SignedEntry>, MembersError> {
        let _alone = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry =
            self.list().member(name).cloned().ok_or_else(|| MembersError::NoSuchMember(name.clone()))?;
        if entry.store == store {
            return Ok(None);
        }
        (entry.generation, entry.revision, entry.store) = (entry.generation + 2, 0, store);
        self.sign_and_keep(entry, ca).map(Some)
    }

    /// Checks a line without taking it.
    pub fn verify(&self, line: SignedEntry) -> Result<SignedEntry, MembersError> {
        line.verified(&self.ca)
    }

    /// Takes what is new and genuine of the lines that another peer sent.
    pub fn offer(&self, lines: Vec<SignedEntry>) -> Result<Offer, MembersError> {
        let _alone = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = (*self.list()).clone();
        let mut offer = Offer::default();
        let before = self.list();
        let known: HashSet<&str> = before.lines_after(None).map(SignedEntry::body).collect();
        // Known lines are the common case and cost no signature check.
        for line in lines.into_iter().filter(|line| !known.contains(line.body())) {
            match line.verified(&self.ca) {
                Ok(line) => match list.merge(line.clone()) {
                    Merge::Taken => offer.taken.push(line),
                    Merge::Known => {}
                    Merge::Full | Merge::Unverified => offer.refused += 1,
                },
                Err(e) => {
                    offer.refused += 1;
                    tracing::warn!("offered member line refused: {e}");
                }
            }
        }
        if !offer.taken.is_empty() {
            self.keep(list, &offer.taken)?;
        }
        Ok(offer)
    }

    fn sign_and_keep(&self, entry: Entry, ca: &dyn CaSigner) -> Result<SignedEntry, MembersError> {
        let line = SignedEntry::sign(entry, ca)?;
        let mut list = (*self.list()).clone();
        match list.merge(line.clone()) {
            Merge::Taken => self.keep(list, std::slice::from_ref(&line))?,
            Merge::Known | Merge::Unverified => {}
            Merge::Full => return Err(MembersError::Full(MEMBERS_MAX)),
        }
        Ok(line)
    }

    /// On disk first, seen by others after.
    fn keep(&self, list: MemberList, new: &[SignedEntry]) -> Result<(), MembersError> {
        let row = |line: &SignedEntry| -> Option<(Vec<u8>, Option<Vec<u8>>)> {
            let key = [PREFIX, line.entry()?.name.as_str().as_bytes()].concat();
            Some((key, Some(serde_json::to_vec(line).ok()?)))
        };
        self.kv.put_all(new.iter().filter_map(row).collect())?;
        self.list.send_replace(Arc::new(list));
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::kv::MemoryKv;
    use super::*;
    use crate::transport::keys::SecretKey;

    pub(crate) fn candidate(name: &str, salt: u8) -> Candidate {
        Candidate {
            name: PeerName::new(name).expect("a label"),
            store: StoreId([salt; 16]),
            addresses: vec!["127.0.0.1:7000".into()],
            public_key: PublicKey([salt; 32]),
            witness: false,
            can_admit: true,
        }
    }

    fn fresh() -> (Arc<MemoryKv>, SecretKey, Members) {
        let (kv, ca) = (Arc::new(MemoryKv::default()), SecretKey::generate().expect("random"));
        let members = Members::load(kv.clone(), ca.public()).expect("empty");
        (kv, ca, members)
    }

    #[test]
    fn a_name_has_one_holder_and_survives_a_restart() {
        let (kv, ca, members) = fresh();
        let first = members.admit(candidate("a", 1), &ca).expect("free name");
        assert_eq!(members.admit(candidate("a", 1), &ca).expect("the same again"), first);
        assert!(matches!(members.admit(candidate("a", 2), &ca), Err(MembersError::NameTaken(_))));
        let again = Members::load(kv, ca.public()).expect("what was written");
        assert_eq!(again.list(), members.list());
        let other_mesh = SecretKey::generate().expect("random").public();
        assert!(Members::load(members.kv.clone(), other_mesh).expect("readable").list().is_empty());
    }

    #[test]
    fn removal_wins_and_the_name_can_be_given_again() {
        let (_, ca, members) = fresh();
        let old = members.admit(candidate("a", 1), &ca).expect("free name");
        let name = PeerName::new("a").expect("a label");
        members.remove(&name, &ca).expect("a member");
        assert!(members.list().member(&name).is_none());
        assert!(matches!(members.remove(&name, &ca), Err(MembersError::NoSuchMember(_))));
        assert_eq!(
            members.offer(vec![old]).expect("a store"),
            Offer::default(),
            "older lines change nothing"
        );
        assert!(
            members.readdress(&name, vec!["h:1".into()], &ca).is_err(),
            "a removed member writes nothing"
        );
        members.admit(candidate("a", 2), &ca).expect("the name is free again");
        assert_eq!(members.list().member(&name).map(|e| e.generation), Some(3));
    }

    #[test]
    fn a_full_disk_changes_nothing() {
        let (kv, ca, members) = fresh();
        kv.fail_writes(true);
        assert!(matches!(members.admit(candidate("a", 1), &ca), Err(MembersError::Store(_))));
        assert!(members.list().is_empty());
        kv.fail_writes(false);
        members.admit(candidate("a", 1), &ca).expect("room again");
    }

    #[test]
    fn offers_are_checked_and_admission_stops_before_the_digest_is_full() {
        let (_, ca, members) = fresh();
        let stranger = SecretKey::generate().expect("random");
        let (_, _, theirs) = fresh();
        let forged = theirs.admit(candidate("b", 1), &stranger).expect("signed by another CA");
        let offer = members.offer(vec![forged]).expect("a store");
        assert_eq!((offer.taken.len(), offer.refused), (0, 1));
        let mut admitted = 0;
        let full = loop {
            match members.admit(candidate(&format!("{admitted:0>63}"), 1), &ca) {
                Ok(_) => admitted += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, MembersError::DigestFull(..)), "{full}");
        assert_eq!(admitted, DIGEST_BYTES_MAX / (63 + DIGEST_ENTRY_BYTES));
    }
}
