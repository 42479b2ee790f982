//! What of a received message chitchat gets to see.
//!
//! Rules, each against something that was seen to go wrong with this version of chitchat:
//! - a node is known only by an admitted name, at that name's address, in a generation that its own
//!   key has signed (or that its own link announced): no node states out of thin air, no invented
//!   incarnation that hides the real one, and no dead one that comes back after its collection;
//! - a key is written only by its origin's signature; from the first bad one on, the rest of that
//!   node's delta is cut (a hole inside would be taken for "nothing there");
//! - nothing is ever deleted, so anything of a deletion is refused;
//! - what others say of *this* node is not taken;
//! - dead incarnations and removed members that are still held here are reported as "you have all of
//!   it" in the sender's digest, so that chitchat does not serve them first as unknown nodes, which
//!   would starve the living;
//! - new nodes are cut before the digest reaches the size that ends the gossip task.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr};

use chitchat::{ChitchatId, NodeState};
use ring::digest::{SHA256, digest};

use super::envelope::{DigestEntry, Envelope, NodeDelta};
use super::facet::{Facet, KEYS_MAX, Place, VALUE_BYTES_MAX, key_is_sane};
use crate::base::{MeshId, PeerName};
use crate::runtime::members::MemberList;

/// Past this many bytes of digest no further node is let in; chitchat breaks near 65,400.
const DIGEST_BYTES_MAX: usize = 60_000;
/// No counter gets here in the life of a machine; beyond, arithmetic could overflow.
const COUNTER_MAX: u64 = 1 << 56;

/// chitchat knows nodes by socket address; ours are names. This address is made from the name, and is
/// in a range (240.0.0.0/4) that nobody can send to.
pub fn pseudo_addr(name: &str) -> SocketAddr {
    let hash = digest(&SHA256, name.as_bytes());
    let h = hash.as_ref();
    let port = u16::from_be_bytes([h[4], h[5]]).max(1);
    SocketAddr::new(Ipv4Addr::new(240 | h[0] >> 4, h[1], h[2], h[3]).into(), port)
}

/// A facet that its origin signed, newer than what was heard before.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    /// Whose.
    pub peer: PeerName,
    /// In which incarnation.
    pub generation: u64,
    /// What.
    pub facet: Facet,
}

/// Counts what was dropped and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Whole messages that do not parse.
    pub messages: u64,
    /// Values without their origin's signature, or of a bad form.
    pub forged: u64,
    /// Signed values with absurd or unreadable contents; stored, not believed.
    pub absurd: u64,
    /// Nodes that are not members, or not at their address.
    pub strangers: u64,
    /// Incarnations that are over.
    pub stale: u64,
    /// Nodes for which the digest has no room.
    pub no_room: u64,
}

struct Seen {
    version: u64,
    value: u64,
}

#[derive(Default)]
struct Origin {
    generation: u64,
    keys: HashMap<String, Seen>,
}

/// The screen in front of one chitchat instance; remembers which values it has verified.
pub struct Screen {
    mesh: MeshId,
    me: PeerName,
    origins: HashMap<PeerName, Origin>,
    /// Of members' names: every message names everybody.
    addresses: HashMap<PeerName, SocketAddr>,
    hasher: RandomState,
    /// What was dropped since the start.
    pub dropped: Dropped,
    /// News heard since the start, by what they are: each cost a check of a signature.
    pub heard: BTreeMap<&'static str, u64>,
    /// Of the last message: members of whom somebody has a newer version than this side, and it,
    pub told: Vec<(PeerName, u64)>,
    /// and members of whom newer keys came, up to which version.
    pub got: Vec<(PeerName, u64)>,
    /// Somebody holds keys of our generation that we signed and do not have: the generation was used
    /// before. Whoever drives the gossip must start again with a higher one.
    pub generation_reused: bool,
}

/// What chitchat holds of one node. Its own map of them is looked into as it is: a message in a mesh of many members must
/// not cost a copy of it.
pub trait Version {
    /// The newest version of the node's keys.
    fn version(&self) -> u64;
}

impl Version for NodeState {
    fn version(&self) -> u64 {
        self.max_version()
    }
}

/// What chitchat holds now, by node.
pub type Held<V> = BTreeMap<ChitchatId, V>;

fn version<V: Version>(held: &Held<V>, id: &ChitchatId) -> u64 {
    held.get(id).map_or(0, V::version)
}

impl Screen {
    /// For the node `me` of a mesh.
    pub fn new(mesh: MeshId, me: PeerName) -> Self {
        Self {
            mesh,
            me,
            origins: HashMap::new(),
            addresses: HashMap::new(),
            hasher: RandomState::new(),
            dropped: Dropped::default(),
            heard: BTreeMap::new(),
            told: Vec::new(),
            got: Vec::new(),
            generation_reused: false,
        }
    }

    /// The newest generation of a name that is proven; 0 for none.
    pub fn generation(&self, name: &PeerName) -> u64 {
        self.origins.get(name).map_or(0, |o| o.generation)
    }

    /// Cleans one message. `from` is who the transport proved to have sent it; none where it was passed
    /// on. Returns the bytes for chitchat and the facets that are news.
    pub fn clean<V: Version>(
        &mut self,
        from: Option<&PeerName>,
        bytes: &[u8],
        list: &MemberList,
        own: &ChitchatId,
        held: &Held<V>,
    ) -> Option<(Vec<u8>, Vec<Heard>)> {
        let mut envelope = match Envelope::read(bytes) {
            Ok(envelope) => envelope,
            Err(_) => {
                self.dropped.messages += 1;
                return None;
            }
        };
        let mut news = Vec::new();
        (self.told, self.got) = (Vec::new(), Vec::new());
        let (digest, delta) = envelope.parts();
        // Deltas first: what they prove decides which nodes of the digest are let in.
        if let Some(delta) = delta {
            let own = (own, version(held, own));
            delta.retain_mut(|node| self.keep_delta(node, list, own, &mut news));
        }
        if let Some(digest) = digest {
            self.keep_digest(from, digest, list, own, held);
        }
        Some((envelope.write(), news))
    }

    /// The member whose node this is, if it has the form that its name demands.
    fn named(&mut self, id: &ChitchatId, list: &MemberList) -> Option<PeerName> {
        let name = list.named(&id.node_id).map(|member| member.name.clone());
        let sane = id.generation_id < COUNTER_MAX
            && name.as_ref().is_some_and(|name| id.gossip_advertise_addr == self.address(name));
        if !sane {
            self.dropped.strangers += 1;
        }
        name.filter(|_| sane)
    }

    fn address(&mut self, name: &PeerName) -> SocketAddr {
        // Names that are members no more are few.
        *self.addresses.entry(name.clone()).or_insert_with(|| pseudo_addr(name.as_str()))
    }

    fn keep_delta(
        &mut self,
        node: &mut NodeDelta,
        list: &MemberList,
        own: (&ChitchatId, u64),
        news: &mut Vec<Heard>,
    ) -> bool {
        let Some(name) = self.named(&node.id, list) else { return false };
        let Some(key) = list.member(&name).map(|e| e.public_key) else { return false };
        if node.gc != 0 || node.bare_version {
            self.dropped.forged += 1;
            return false;
        }
        if node.id.generation_id < self.generation(&name) {
            self.dropped.stale += 1;
            return false;
        }
        let mut good = 0;
        for write in &node.writes {
            let place = Place {
                mesh: self.mesh,
                name: &node.id.node_id,
                generation: node.id.generation_id,
                key: &write.key,
                version: write.version,
            };
            let form =
                write.status == 0 && write.value.len() <= VALUE_BYTES_MAX + 86 && key_is_sane(&write.key);
            if !form
                || write.version >= COUNTER_MAX
                || !self.verify(&name, &place, &write.value, &key, own, news)
            {
                self.dropped.forged += 1;
                break;
            }
            good += 1;
        }
        node.writes.truncate(good);
        if let Some(last) = node.writes.last() {
            self.got.push((name.clone(), last.version));
        }
        // Our own keys come from nobody but us.
        good > 0 && name != self.me
    }

    /// Whether this very value is its origin's; remembers it and reports it if it is news.
    fn verify(
        &mut self,
        name: &PeerName,
        place: &Place<'_>,
        value: &str,
        key: &crate::transport::PublicKey,
        own: (&ChitchatId, u64),
        news: &mut Vec<Heard>,
    ) -> bool {
        let hash = self.hasher.hash_one(value);
        let seen = self.origins.get(name).filter(|o| o.generation == place.generation);
        let seen_version = seen.and_then(|o| o.keys.get(place.key));
        if seen_version.is_some_and(|s| s.version == place.version && s.value == hash) {
            return true;
        }
        let Ok(text) = place.open(value, key) else { return false };
        if *name == self.me {
            // An exchange that began before our newest write brings that write back to us, the slower the machine the
            // more often: only a version that we never wrote in this life is somebody else's.
            let (own, newest) = own;
            self.generation_reused |= place.generation > own.generation_id
                || (place.generation == own.generation_id && place.version > newest);
            return true;
        }
        if seen_version.is_some_and(|s| s.version > place.version) {
            return true;
        }
        let origin = self.origins.entry(name.clone()).or_default();
        if origin.generation < place.generation {
            *origin = Origin { generation: place.generation, keys: HashMap::new() };
        }
        if !origin.keys.contains_key(place.key) && origin.keys.len() >= KEYS_MAX {
            return false;
        }
        origin.keys.insert(place.key.to_owned(), Seen { version: place.version, value: hash });
        match Facet::read(place.key, text) {
            Ok(facet) => {
                *self.heard.entry(facet.kind()).or_default() += 1;
                news.push(Heard { peer: name.clone(), generation: place.generation, facet });
            }
            // Signed nonsense keeps its place in the order of versions, but nobody believes it.
            Err(e) => {
                self.dropped.absurd += 1;
                tracing::warn!(peer = %name, "gossip facet not believed: {e}");
            }
        }
        true
    }

    fn keep_digest<V: Version>(
        &mut self,
        from: Option<&PeerName>,
        digest: &mut Vec<DigestEntry>,
        list: &MemberList,
        own: &ChitchatId,
        held: &Held<V>,
    ) {
        let mut room = DIGEST_BYTES_MAX.saturating_sub(held.keys().map(digest_len).sum());
        digest.retain_mut(|entry| {
            if entry.id == *own {
                // Nobody has more of us than we have, whatever is said.
                entry.version = entry.version.min(version(held, own));
                return true;
            }
            let Some(name) = self.named(&entry.id, list) else { return false };
            if name == self.me
                || entry.heartbeat >= COUNTER_MAX
                || entry.version >= COUNTER_MAX
                || entry.gc != 0
            {
                self.dropped.stale += 1;
                return false;
            }
            if let Some(state) = held.get(&entry.id) {
                if entry.version > state.version() {
                    self.told.push((name, entry.version));
                }
                return true;
            }
            let proven = self.generation(&name);
            let itself = from == Some(&name) && entry.id.generation_id >= proven;
            if !itself && (proven == 0 || entry.id.generation_id != proven) {
                self.dropped.stale += 1;
                return false;
            }
            let len = digest_len(&entry.id);
            if len > room {
                self.dropped.no_room += 1;
                return false;
            }
            room -= len;
            true
        });
        self.silence_dead(digest, list, own, held);
    }

    fn silence_dead<V: Version>(
        &self,
        digest: &mut Vec<DigestEntry>,
        list: &MemberList,
        own: &ChitchatId,
        held: &Held<V>,
    ) {
        for (id, state) in held.iter().filter(|(id, _)| *id != own) {
            let member = list.named(&id.node_id);
            let alive = member.is_some_and(|m| self.generation(&m.name) <= id.generation_id);
            if !alive {
                digest.retain(|entry| entry.id != *id);
                digest.push(DigestEntry { id: id.clone(), heartbeat: 0, gc: 0, version: state.version() });
            }
        }
    }
}

fn digest_len(id: &ChitchatId) -> usize {
    id.node_id.len() + crate::runtime::members::DIGEST_ENTRY_BYTES
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
