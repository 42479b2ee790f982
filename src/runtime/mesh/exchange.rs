//! How member lists become the same everywhere.
//!
//! Whoever makes a line (admits, removes, has another address) pushes it to every linked peer as soon as it
//! is on disk; each that hears it passes it on to a few, once. Each peer also gossips the hash of its list, and
//! who sees another hash asks that peer for the lines that it lacks. All of this rides in the gossip lane, with
//! a first byte that tells it from chitchat's messages: it may be lost like those, and the differing hash
//! brings the question again. Lines are signed, so it does not matter who passes them on.
//!
//! What a join costs all peers together grows with their number this way. When everybody pushed every line to
//! everybody and sent whole lists to whoever asked, it grew with its square, and forming a mesh with the cube.

use bytes::Bytes;
use data_encoding::BASE64_NOPAD;
use serde::{Deserialize, Serialize};

use crate::base::PeerName;
use crate::runtime::members::{MemberList, SignedEntry};

/// First byte of chitchat's messages.
const GOSSIP: u8 = 0;
/// First byte of these.
const EXCHANGE: u8 = 1;
/// Bytes of lines in one page.
const PAGE_BYTES: usize = 48_000;
/// Largest exchange message read.
const BYTES_MAX: usize = 120_000;

/// A message about member lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exchange {
    /// Send me your lines after this name. A peer that does not know `Beyond` asks so.
    Pull(Option<PeerName>),
    /// Send me your lines, but those with these marks: `MemberList::marks` in base64.
    Beyond(String),
    /// Some lines; `more` says that there are others after the last one.
    Lines {
        /// The lines, by name.
        lines: Vec<SignedEntry>,
        /// The sender has more.
        more: bool,
    },
}

/// What the gossip lane carries.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// For chitchat.
    Gossip(Bytes),
    /// About members.
    Exchange(Exchange),
}

impl Frame {
    /// Reads one; none for garbage.
    pub fn read(mut bytes: Bytes) -> Option<Self> {
        match *bytes.first()? {
            GOSSIP => Some(Self::Gossip(bytes.split_off(1))),
            EXCHANGE if bytes.len() <= BYTES_MAX => {
                serde_json::from_slice(&bytes[1..]).ok().map(Self::Exchange)
            }
            _ => None,
        }
    }

    /// A chitchat message as a frame.
    pub fn gossip(bytes: &[u8]) -> Bytes {
        [&[GOSSIP], bytes].concat().into()
    }
}

impl Exchange {
    /// As bytes of the gossip lane.
    pub fn write(&self) -> Bytes {
        let mut out = vec![EXCHANGE];
        out.extend(serde_json::to_vec(self).unwrap_or_default());
        out.into()
    }

    /// Asks for what a list lacks.
    pub fn beyond(list: &MemberList) -> Self {
        Self::Beyond(BASE64_NOPAD.encode(&list.marks().concat()))
    }

    /// The answer: what the asker's marks do not name, in as many messages as it needs; none for garbage.
    pub fn answer(list: &MemberList, marks: &str) -> Option<Vec<Self>> {
        let bytes = BASE64_NOPAD.decode(marks.as_bytes()).ok()?;
        let (marks, rest) = bytes.as_chunks::<8>();
        let marks = marks.iter().copied().collect();
        rest.is_empty().then(|| Self::push(list.lines_beyond(&marks).cloned().collect()))
    }

    /// The page of a list after a name.
    pub fn page(list: &MemberList, after: Option<&PeerName>) -> Self {
        let mut room = PAGE_BYTES;
        let mut rest = list.lines_after(after).cloned().peekable();
        let mut lines = Vec::new();
        while let Some(line) = rest.next_if(|line| lines.is_empty() || line.wire_len() <= room) {
            room = room.saturating_sub(line.wire_len());
            lines.push(line);
        }
        Self::Lines { lines, more: rest.peek().is_some() }
    }

    /// Lines in as many messages as they need.
    pub fn push(lines: Vec<SignedEntry>) -> Vec<Self> {
        let mut pages = Vec::new();
        let mut page = Vec::new();
        let mut room = PAGE_BYTES;
        for line in lines {
            if line.wire_len() > room && !page.is_empty() {
                pages.push(Self::Lines { lines: std::mem::take(&mut page), more: false });
                room = PAGE_BYTES;
            }
            room = room.saturating_sub(line.wire_len());
            page.push(line);
        }
        if !page.is_empty() {
            pages.push(Self::Lines { lines: page, more: false });
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StoreId;
    use crate::runtime::members::Entry;
    use crate::transport::PublicKey;
    use crate::transport::keys::SecretKey;

    #[test]
    fn a_full_list_travels_in_pages_that_fit() {
        let ca = SecretKey::generate().expect("random");
        let mut list = MemberList::default();
        for n in 0..300 {
            let entry = Entry {
                name: PeerName::new(&format!("peer-{n}")).expect("a label"),
                generation: 1,
                removed: n % 2 == 0,
                revision: 0,
                store: StoreId([1; 16]),
                addresses: vec!["host.example.org:7000".into(); 4],
                public_key: PublicKey([1; 32]),
                witness: false,
                can_admit: true,
            };
            list.merge(SignedEntry::sign(entry, &ca).expect("sane"));
        }
        let mut copy = MemberList::default();
        let mut after = None;
        loop {
            let bytes = Exchange::page(&list, after.as_ref()).write();
            assert!(bytes.len() <= 64_000, "{}", bytes.len());
            let Some(Frame::Exchange(Exchange::Lines { lines, more })) = Frame::read(bytes) else {
                panic!("a page")
            };
            for line in lines {
                let line = line.verified(&ca.public()).expect("signed");
                after = line.entry().map(|e| e.name.clone());
                copy.merge(line);
            }
            if !more {
                break;
            }
        }
        assert_eq!(copy.hash(), list.hash());
        let pages = Exchange::push(list.lines_after(None).cloned().collect());
        assert!(pages.len() > 2 && pages.iter().all(|p| p.write().len() <= 64_000));
    }

    #[test]
    fn only_what_the_asker_lacks_is_sent() {
        let ca = SecretKey::generate().expect("random");
        let (mut mine, mut theirs) = (MemberList::default(), MemberList::default());
        for n in 0..40 {
            let mut entry = Entry {
                name: PeerName::new(&format!("peer-{n}")).expect("a label"),
                generation: 1,
                removed: false,
                revision: 0,
                store: StoreId([1; 16]),
                addresses: vec![],
                public_key: PublicKey([1; 32]),
                witness: false,
                can_admit: true,
            };
            mine.merge(SignedEntry::sign(entry.clone(), &ca).expect("sane"));
            entry.revision = u64::from(n == 7);
            if n != 9 {
                theirs.merge(SignedEntry::sign(entry, &ca).expect("sane"));
            }
        }
        let Exchange::Beyond(marks) = Exchange::beyond(&theirs) else { panic!("a question") };
        let answer = Exchange::answer(&mine, &marks).expect("readable");
        let [Exchange::Lines { lines, more: false }] = &answer[..] else { panic!("{answer:?}") };
        let names: Vec<_> = lines.iter().filter_map(SignedEntry::claimed_name).collect();
        assert_eq!(names, [7, 9].map(|n| PeerName::new(&format!("peer-{n}")).expect("a label")));
        assert_eq!(Exchange::answer(&theirs, &marks), Some(vec![]), "nothing to send");
        assert_eq!(Exchange::answer(&mine, "AAAA"), None, "three bytes are no mark");
        assert_eq!(Exchange::answer(&mine, "!"), None);
    }

    #[test]
    fn garbage_is_no_frame() {
        for bytes in [&b""[..], b"\x02", b"\x01", b"\x01{}", b"\x01\xff"] {
            assert_eq!(Frame::read(Bytes::copy_from_slice(bytes)), None);
        }
        assert_eq!(Frame::read(Frame::gossip(b"x")), Some(Frame::Gossip(Bytes::from_static(b"x"))));
    }
}
