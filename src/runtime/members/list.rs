//! The list itself: a map from name to the greatest line heard, and nothing that does I/O.

use std::collections::{BTreeMap, BTreeSet};

use ring::digest::{SHA256, digest};

use super::entry::{Entry, SignedEntry};
use crate::base::PeerName;

/// Names a mesh may have, removed ones included: none is admitted beyond.
pub const MEMBERS_MAX: usize = 1_000;

/// Peers that admit at the same time may each fill the last place; lists still merge up to here.
const MERGE_MAX: usize = MEMBERS_MAX + 100;

/// What became of an offered line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// It is newer than what was held, and is held now.
    Taken,
    /// The list holds it, or a newer one.
    Known,
    /// It was never verified here.
    Unverified,
    /// There is no room for another name.
    Full,
}

/// All lines, by name. Only verified ones get in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberList {
    lines: BTreeMap<PeerName, SignedEntry>,
}

impl MemberList {
    /// Whether `merge` would take it.
    pub fn would_take(&self, line: &SignedEntry) -> Merge {
        let Some(entry) = line.entry() else { return Merge::Unverified };
        match self.lines.get(&entry.name) {
            Some(held) if held.rank() >= line.rank() => Merge::Known,
            None if self.lines.len() >= MERGE_MAX => Merge::Full,
            _ => Merge::Taken,
        }
    }

    /// Applies the merge rule to one line.
    pub fn merge(&mut self, line: SignedEntry) -> Merge {
        let answer = self.would_take(&line);
        if let (Merge::Taken, Some(entry)) = (answer, line.entry()) {
            self.lines.insert(entry.name.clone(), line);
        }
        answer
    }

    /// What is held of this name, removed or not.
    pub fn entry(&self, name: &PeerName) -> Option<&Entry> {
        self.lines.get(name).and_then(SignedEntry::entry)
    }

    /// The member of this name; none if it was removed.
    pub fn member(&self, name: &PeerName) -> Option<&Entry> {
        self.entry(name).filter(|e| !e.removed)
    }

    /// The member of this name, given as text that nobody has checked.
    pub fn named(&self, name: &str) -> Option<&Entry> {
        self.lines.get(name).and_then(SignedEntry::entry).filter(|e| !e.removed)
    }

    /// Members, by name.
    pub fn members(&self) -> impl Iterator<Item = &Entry> {
        self.entries().filter(|e| !e.removed)
    }

    /// Members and removed ones, by name.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.lines.values().filter_map(SignedEntry::entry)
    }

    /// The signed lines after `after` in name order.
    pub fn lines_after(&self, after: Option<&PeerName>) -> impl Iterator<Item = &SignedEntry> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.lines.range::<PeerName, _>((from, Unbounded)).map(|(_, line)| line)
    }

    /// The signed line of a name.
    pub fn line(&self, name: &PeerName) -> Option<&SignedEntry> {
        self.lines.get(name)
    }

    /// Names held, removed ones included.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Eight bytes of the hash of each line, to tell another peer what need not be sent.
    pub fn marks(&self) -> Vec<[u8; 8]> {
        self.lines.values().map(mark).collect()
    }

    /// The lines that have none of these marks.
    pub fn lines_beyond(&self, marks: &BTreeSet<[u8; 8]>) -> impl Iterator<Item = &SignedEntry> {
        self.lines.values().filter(|line| !marks.contains(&mark(line)))
    }

    /// A hash of all lines; two peers with the same one hold the same list.
    pub fn hash(&self) -> String {
        let mut all = Vec::new();
        for line in self.lines.values() {
            all.extend_from_slice(&(line.body().len() as u32).to_be_bytes());
            all.extend_from_slice(line.body().as_bytes());
        }
        data_encoding::HEXLOWER.encode(&digest(&SHA256, &all).as_ref()[..16])
    }
}

fn mark(line: &SignedEntry) -> [u8; 8] {
    let mut mark = [0; 8];
    mark.copy_from_slice(&digest(&SHA256, line.body().as_bytes()).as_ref()[..8]);
    mark
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::StoreId;
    use crate::transport::PublicKey;
    use crate::transport::keys::SecretKey;

    fn fresh_key() -> SecretKey {
        SecretKey::generate().expect("random")
    }

    fn line(
        key: &SecretKey,
        name: u8,
        generation: u64,
        removed: bool,
        revision: u64,
        salt: u8,
    ) -> SignedEntry {
        let entry = Entry {
            name: PeerName::new(&format!("peer-{name}")).expect("a label"),
            generation,
            removed,
            revision,
            store: StoreId([salt; 16]),
            addresses: vec!["127.0.0.1:1".into()],
            public_key: PublicKey([salt; 32]),
            witness: false,
            can_admit: true,
        };
        SignedEntry::sign(entry, key).expect("sane")
    }

    fn merged(lines: &[SignedEntry]) -> MemberList {
        let mut list = MemberList::default();
        for l in lines {
            list.merge(l.clone());
        }
        list
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Any order, any repetition and any grouping of the same lines gives the same list.
        #[test]
        fn merging_is_a_join(raw in prop::collection::vec((0u8..3, 1u64..4, any::<bool>(), 0u64..3, 0u8..3), 1..12), seed in any::<u64>()) {
            let key = fresh_key();
            let lines: Vec<_> = raw.iter().map(|&(n, g, r, v, s)| line(&key, n, g, r, v, s)).collect();
            let all = merged(&lines);
            let mut shuffled = lines.clone();
            shuffled.extend(lines.iter().cloned());
            crate::base::Rng::new(seed).shuffle(&mut shuffled);
            prop_assert_eq!(merged(&shuffled).hash(), all.hash());
            let (left, right) = lines.split_at(lines.len() / 2);
            let mut grouped = merged(left);
            for l in merged(right).lines_after(None) {
                grouped.merge(l.clone());
            }
            prop_assert_eq!(grouped.hash(), all.hash());
        }

        /// A removal is undone only by a higher generation.
        #[test]
        fn removed_stays_removed(generation in 1u64..5, revision in 0u64..1000, later in 0u64..1000) {
            let key = fresh_key();
            let mut list = merged(&[line(&key, 0, generation, true, revision, 1)]);
            for older in 1..=generation {
                list.merge(line(&key, 0, older, false, later, 2));
            }
            let name = PeerName::new("peer-0").expect("a label");
            prop_assert!(list.member(&name).is_none());
            prop_assert_eq!(list.merge(line(&key, 0, generation + 1, false, 0, 3)), Merge::Taken);
            prop_assert!(list.member(&name).is_some());
        }
    }

    #[test]
    fn unverified_lines_stay_out_and_the_list_is_bounded() {
        let key = fresh_key();
        let mut list = MemberList::default();
        let text = serde_json::to_string(&line(&key, 1, 1, false, 0, 0)).expect("json");
        let raw: SignedEntry = serde_json::from_str(&text).expect("back");
        assert_eq!(list.merge(raw.clone()), Merge::Unverified);
        assert!(raw.clone().verified(&fresh_key().public()).is_err(), "another CA's key");
        let good = raw.verified(&key.public()).expect("this CA's key");
        assert_eq!(list.merge(good), Merge::Taken);
        for i in 0..MERGE_MAX {
            let mut entry = line(&key, 1, 1, false, 0, 0).entry().cloned().expect("signed here");
            entry.name = PeerName::new(&format!("n{i}")).expect("a label");
            list.merge(SignedEntry::sign(entry, &key).expect("sane"));
        }
        assert_eq!(list.len(), MERGE_MAX);
    }

    #[test]
    fn a_changed_body_is_refused() {
        let key = fresh_key();
        let text = serde_json::to_string(&line(&key, 1, 1, true, 0, 0)).expect("json");
        let forged: SignedEntry =
            serde_json::from_str(&text.replace("\\\"removed\\\":true", "\\\"removed\\\":false"))
                .expect("json");
        assert_ne!(forged.body(), line(&key, 1, 1, true, 0, 0).body());
        assert!(matches!(forged.verified(&key.public()), Err(super::super::MembersError::BadSignature(_))));
    }
}
