//! chitchat's messages as bytes, taken apart and put together again.
//!
//! chitchat keeps the insides of a message to itself and trusts them: a digest creates node states
//! without bound, a delta writes anybody's keys, a key that starts with a non-ASCII character
//! makes it panic. So a received message is read here first, cleaned by `screen`, and written anew.
//! The form is that of 0.11.2 (`message.rs`, `digest.rs`, `delta.rs`, `serialize.rs` there); a test
//! feeds what we write to the real reader.

use chitchat::{ChitchatId, Deserializable, Serializable};

/// Most bytes that the blocks of one delta may unpack to. A real one stays below 65 kB packed.
const UNPACKED_BYTES_MAX: usize = 2 << 20;
const MAGIC: u16 = 45_139;
const BLOCK_BYTES: usize = 16_384;

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Cut short, or of an unknown form.
    #[error("not a gossip message: {0}")]
    Malformed(&'static str),
    /// Unpacks to more than any real message.
    #[error("a gossip message that unpacks to more than {UNPACKED_BYTES_MAX} bytes")]
    TooLarge,
}

/// What a node says it holds of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestEntry {
    /// Of whom.
    pub id: ChitchatId,
    /// Newest heartbeat.
    pub heartbeat: u64,
    /// Newest collected deletion.
    pub gc: u64,
    /// Newest version.
    pub version: u64,
}

/// Newer keys of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDelta {
    /// Of whom.
    pub id: ChitchatId,
    /// Newest collected deletion.
    pub gc: u64,
    /// All versions above this are here, up to the last.
    pub from: u64,
    /// Keys, by rising version.
    pub writes: Vec<KeyWrite>,
    /// A version without a key, which only deletions need.
    pub bare_version: bool,
}

/// One written key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWrite {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The version.
    pub version: u64,
    /// 0 is set; everything else is some kind of deletion.
    pub status: u8,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    /// Opens an exchange.
    Syn(String, Vec<DigestEntry>),
    /// Answers it.
    SynAck(Vec<DigestEntry>, Vec<NodeDelta>),
    /// Closes it.
    Ack(Vec<NodeDelta>),
    /// The cluster's name differs.
    BadCluster,
}

/// A written message is the answer to an exchange that was opened here.
pub fn answers(message: &[u8]) -> bool {
    message.get(3) == Some(&1)
}

type Read<T> = Result<T, EnvelopeError>;

fn get<T: Deserializable>(buf: &mut &[u8]) -> Read<T> {
    T::deserialize(buf).map_err(|_| EnvelopeError::Malformed("cut short"))
}

impl Envelope {
    /// Reads a message from exactly these bytes.
    pub fn read(mut buf: &[u8]) -> Read<Self> {
        let buf = &mut buf;
        if get::<u16>(buf)? != MAGIC || get::<u8>(buf)? != 0 {
            return Err(EnvelopeError::Malformed("another protocol"));
        }
        let envelope = match get::<u8>(buf)? {
            0 => {
                let digest = read_digest(buf)?;
                Self::Syn(get(buf)?, digest)
            }
            1 => Self::SynAck(read_digest(buf)?, read_delta(buf)?),
            2 => Self::Ack(read_delta(buf)?),
            3 => Self::BadCluster,
            _ => return Err(EnvelopeError::Malformed("unknown kind")),
        };
        if buf.is_empty() { Ok(envelope) } else { Err(EnvelopeError::Malformed("bytes follow")) }
    }

    /// Writes it, unpacked: it only travels inside this process from here.
    pub fn write(&self) -> Vec<u8> {
        let mut out = MAGIC.to_le_bytes().to_vec();
        out.push(0);
        match self {
            Self::Syn(cluster, digest) => {
                out.push(0);
                write_digest(digest, &mut out);
                cluster.serialize(&mut out);
            }
            Self::SynAck(digest, delta) => {
                out.push(1);
                write_digest(digest, &mut out);
                write_delta(delta, &mut out);
            }
            Self::Ack(delta) => {
                out.push(2);
                write_delta(delta, &mut out);
            }
            Self::BadCluster => out.push(3),
        }
        out
    }

    /// The digest and the delta, to be cleaned in place.
    pub fn parts(&mut self) -> (Option<&mut Vec<DigestEntry>>, Option<&mut Vec<NodeDelta>>) {
        match self {
            Self::Syn(_, digest) => (Some(digest), None),
            Self::SynAck(digest, delta) => (Some(digest), Some(delta)),
            Self::Ack(delta) => (None, Some(delta)),
            Self::BadCluster => (None, None),
        }
    }
}

fn read_digest(buf: &mut &[u8]) -> Read<Vec<DigestEntry>> {
    let count: u16 = get(buf)?;
    let mut digest = Vec::new();
    for _ in 0..count {
        digest.push(DigestEntry { id: get(buf)?, heartbeat: get(buf)?, gc: get(buf)?, version: get(buf)? });
    }
    Ok(digest)
}

fn write_digest(digest: &[DigestEntry], out: &mut Vec<u8>) {
    let digest = &digest[..digest.len().min(usize::from(u16::MAX))];
    (digest.len() as u16).serialize(out);
    for entry in digest {
        entry.id.serialize(out);
        for number in [entry.heartbeat, entry.gc, entry.version] {
            number.serialize(out);
        }
    }
}

fn unpack(buf: &mut &[u8]) -> Read<Vec<u8>> {
    let mut plain = Vec::new();
    let mut block = vec![0; usize::from(u16::MAX)];
    loop {
        let kind: u8 = get(buf)?;
        if kind == 0 {
            return Ok(plain);
        }
        let len = usize::from(get::<u16>(buf)?);
        let (bytes, rest) = buf.split_at_checked(len).ok_or(EnvelopeError::Malformed("cut short"))?;
        match kind {
            1 => {
                let unpacked = zstd::bulk::decompress_to_buffer(bytes, &mut block[..])
                    .map_err(|_| EnvelopeError::Malformed("a block does not unpack"))?;
                plain.extend_from_slice(&block[..unpacked]);
            }
            2 => plain.extend_from_slice(bytes),
            _ => return Err(EnvelopeError::Malformed("unknown block")),
        }
        if plain.len() > UNPACKED_BYTES_MAX {
            return Err(EnvelopeError::TooLarge);
        }
        *buf = rest;
    }
}

fn read_delta(buf: &mut &[u8]) -> Read<Vec<NodeDelta>> {
    let plain = unpack(buf)?;
    let mut ops = &plain[..];
    let mut delta: Vec<NodeDelta> = Vec::new();
    while !ops.is_empty() {
        let kind: u8 = get(&mut ops)?;
        if kind == 0 {
            let (id, gc, from) = (get(&mut ops)?, get(&mut ops)?, get(&mut ops)?);
            delta.push(NodeDelta { id, gc, from, writes: Vec::new(), bare_version: false });
            continue;
        }
        let node = delta.last_mut().ok_or(EnvelopeError::Malformed("a key of no node"))?;
        match kind {
            1 => {
                let (key, value) = (get(&mut ops)?, get(&mut ops)?);
                node.writes.push(KeyWrite { key, value, version: get(&mut ops)?, status: get(&mut ops)? });
            }
            2 => {
                get::<u64>(&mut ops)?;
                node.bare_version = true;
            }
            _ => return Err(EnvelopeError::Malformed("unknown operation")),
        }
    }
    Ok(delta)
}

fn write_delta(delta: &[NodeDelta], out: &mut Vec<u8>) {
    let mut plain = Vec::new();
    for node in delta {
        plain.push(0);
        node.id.serialize(&mut plain);
        node.gc.serialize(&mut plain);
        node.from.serialize(&mut plain);
        for write in &node.writes {
            plain.push(1);
            write.key.serialize(&mut plain);
            write.value.serialize(&mut plain);
            write.version.serialize(&mut plain);
            plain.push(write.status);
        }
    }
    for block in plain.chunks(BLOCK_BYTES) {
        out.push(2);
        (block.len() as u16).serialize(out);
        out.extend_from_slice(block);
    }
    out.push(0);
}

#[cfg(test)]
mod tests {
    use chitchat::ChitchatMessage;
    use proptest::prelude::*;

    use super::*;

    fn id(n: u64) -> ChitchatId {
        ChitchatId::new(format!("peer-{n:03}"), n, ([240, 0, 0, 1], 7).into())
    }

    #[test]
    fn what_is_written_is_what_the_real_reader_reads() {
        let write = |version| KeyWrite { key: "queue".into(), value: "v".repeat(9_000), version, status: 0 };
        let node = |n| NodeDelta {
            id: id(n),
            gc: 0,
            from: 3,
            writes: vec![write(4), write(9)],
            bare_version: false,
        };
        let digest: Vec<_> =
            (1..50).map(|n| DigestEntry { id: id(n), heartbeat: n, gc: 0, version: n }).collect();
        let delta: Vec<_> = (1..20).map(node).collect();
        for envelope in [
            Envelope::Syn("mesh".into(), digest.clone()),
            Envelope::SynAck(digest, delta.clone()),
            Envelope::Ack(delta),
            Envelope::Ack(vec![]),
            Envelope::BadCluster,
        ] {
            let bytes = envelope.write();
            assert_eq!(answers(&bytes), matches!(envelope, Envelope::SynAck(..)));
            assert_eq!(Envelope::read(&bytes), Ok(envelope));
            let real = ChitchatMessage::deserialize(&mut &bytes[..]).expect("chitchat reads it");
            if matches!(real, ChitchatMessage::Syn { .. } | ChitchatMessage::BadCluster) {
                assert_eq!(real.serialize_to_vec(), bytes, "and writes the same (deltas it packs)");
            }
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let block = zstd::bulk::compress(&vec![0u8; 65_535], 0).expect("it packs");
        let mut bytes = [&MAGIC.to_le_bytes()[..], &[0, 2]].concat();
        for _ in 0..64 {
            bytes.push(1);
            bytes.extend_from_slice(&(block.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&block);
        }
        bytes.push(0);
        assert_eq!(Envelope::read(&bytes), Err(EnvelopeError::TooLarge));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..5) {
            let _ = Envelope::read(&bytes);
            let _ = Envelope::read(&[&MAGIC.to_le_bytes()[..], &[0, kind], &bytes].concat());
        }
    }
}
