//! What travels in frames, and the reading and writing of frames on streams.

use std::collections::BTreeMap;

use bytes::Bytes;
use quinn::{ReadExactError, ReadToEndError, RecvStream, SendStream};
use serde::{Deserialize, Serialize};

use super::codec::{self, CodecError, HEADER_BYTES, Kind};
use crate::base::{PeerName, StoreId};
use crate::core::api::Flash;

/// Largest hello.
pub(super) const HELLO_BYTES_MAX: usize = 16 * 1024;
/// Largest control frame: a full reach set of 1,000 long names.
pub(super) const CONTROL_BYTES_MAX: usize = 256 * 1024;
/// Largest head of a relayed frame, without its payload.
const RELAY_HEAD_BYTES_MAX: usize = 512;

/// What one side says of itself. Its layout never changes; `extra` is for later versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Oldest wire version it speaks.
    pub wire_min: u16,
    /// Newest.
    pub wire_max: u16,
    /// Its name; the certificate proves it.
    pub name: PeerName,
    /// Its disk.
    pub store: StoreId,
    /// Starts of that disk.
    pub boot: u64,
    /// Its monotonic clock, so that ages can be told without agreeing on the time of day.
    pub clock_ms: u64,
    /// What later versions add.
    pub extra: BTreeMap<String, Vec<u8>>,
}

/// The first three frames of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Greeting {
    /// From the caller, whom TLS has named.
    Call(Hello),
    /// From the called, whom TLS did not name: its certificate and its signature over the channel binding.
    Welcome(Hello, Proof),
    /// From the caller: it believes the welcome.
    Ready,
}

/// A named certificate and a signature of its key over the connection's channel binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proof {
    /// DER.
    pub certificate: Vec<u8>,
    /// Ed25519.
    pub signature: Vec<u8>,
}

/// What neighbours tell each other, in order, on the hello's stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way to the wire or from it")]
pub(super) enum Control {
    /// Peers that the sender has a direct link to.
    Reach {
        /// Forget what was said before.
        full: bool,
        /// Now reached.
        add: Vec<PeerName>,
        /// No longer reached.
        drop: Vec<PeerName>,
    },
    /// The sender's certificate was renewed.
    Renewed(Proof),
    /// A probe of this number has arrived whole.
    Probed {
        /// Echoed.
        token: u64,
        /// Bytes that were timed.
        bytes: u64,
        /// Their time.
        micros: u64,
    },
    /// From the origin of a flash: pass it on to these, of whom it has not heard. Only to a peer that says in its
    /// hello that it does; an older one could not read this.
    Pass {
        /// As it goes on, with one hop behind it.
        frame: Box<FlashFrame>,
        /// To these.
        to: Vec<PeerName>,
    },
}

/// A flash on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FlashFrame {
    /// Who sent it first.
    pub origin: PeerName,
    /// That peer's boot.
    pub incarnation: u64,
    /// Counts that boot's flashes.
    pub sequence: u64,
    /// 0 from the origin, 1 when passed on.
    pub hops: u8,
    /// The clock of the peer that hands it over, when it did.
    pub stamp_ms: u64,
    /// It is worthless this long after that.
    pub left_ms: u64,
    /// What.
    pub flash: Flash,
}

/// Where a relayed frame or request is on its way of two hops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RelayHead {
    /// To the relay: pass it on to this peer.
    To(PeerName, u8),
    /// From the relay: it came from this peer.
    From(PeerName, u8),
}

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The other side sent what no peer of this version sends.
    #[error("garbage: {0}")]
    Garbage(#[from] CodecError),
    /// The stream or connection broke.
    #[error("broken: {0}")]
    Broken(String),
}

impl From<quinn::WriteError> for FrameError {
    fn from(e: quinn::WriteError) -> Self {
        Self::Broken(e.to_string())
    }
}
impl From<quinn::ConnectionError> for FrameError {
    fn from(e: quinn::ConnectionError) -> Self {
        Self::Broken(e.to_string())
    }
}
impl From<quinn::ClosedStream> for FrameError {
    fn from(e: quinn::ClosedStream) -> Self {
        Self::Broken(e.to_string())
    }
}
impl From<ReadExactError> for FrameError {
    fn from(e: ReadExactError) -> Self {
        match e {
            ReadExactError::FinishedEarly(_) => Self::Garbage(CodecError::Short),
            ReadExactError::ReadError(e) => Self::Broken(e.to_string()),
        }
    }
}

/// Reads a header.
pub(super) async fn read_header(recv: &mut RecvStream) -> Result<(Kind, usize), FrameError> {
    let mut bytes = [0; HEADER_BYTES];
    recv.read_exact(&mut bytes).await?;
    Ok(codec::header(&bytes)?)
}

/// Reads one frame of this kind; more may follow on the stream.
pub(super) async fn read_frame(recv: &mut RecvStream, kind: Kind, max: usize) -> Result<Vec<u8>, FrameError> {
    let (got, length) = read_header(recv).await?;
    if got != kind {
        return Err(CodecError::Kind(got as u8).into());
    }
    read_payload(recv, length, max).await
}

/// Reads a payload of a known length.
pub(super) async fn read_payload(
    recv: &mut RecvStream,
    length: usize,
    max: usize,
) -> Result<Vec<u8>, FrameError> {
    if length > max {
        return Err(CodecError::TooLarge { got: length, max }.into());
    }
    let mut payload = vec![0; length];
    recv.read_exact(&mut payload).await?;
    Ok(payload)
}

/// Reads a payload that must be the last of its stream.
pub(super) async fn read_last(recv: &mut RecvStream, length: usize) -> Result<Vec<u8>, FrameError> {
    match recv.read_to_end(length).await {
        Ok(bytes) if bytes.len() == length => Ok(bytes),
        Ok(_) => Err(CodecError::Short.into()),
        Err(ReadToEndError::TooLong) => Err(CodecError::Trailing(1).into()),
        Err(ReadToEndError::Read(e)) => Err(FrameError::Broken(e.to_string())),
    }
}

/// Writes one frame with an encoded value.
pub(super) async fn write_value<T: Serialize>(
    send: &mut SendStream,
    kind: Kind,
    value: &T,
) -> Result<(), FrameError> {
    let bytes = codec::frame(kind, &codec::encode(value)?)?;
    Ok(send.write_chunk(bytes.into()).await?)
}

/// A payload with the relay's head before it.
pub(super) fn relay_payload(head: &RelayHead, payload: &[u8]) -> Result<Vec<u8>, CodecError> {
    let head = codec::encode(head)?;
    let length = u16::try_from(head.len()).expect("a name has at most 63 bytes");
    Ok([&length.to_be_bytes()[..], &head, payload].concat())
}

/// Takes a relayed payload apart.
pub(super) fn split_relay(bytes: Bytes) -> Result<(RelayHead, Bytes), CodecError> {
    let (length, rest) = bytes.split_first_chunk::<2>().ok_or(CodecError::Short)?;
    let length = usize::from(u16::from_be_bytes(*length));
    let head = codec::decode(rest.get(..length).ok_or(CodecError::Short)?, RELAY_HEAD_BYTES_MAX)?;
    Ok((head, bytes.slice(2 + length..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relayed_payloads_come_apart() {
        let head = RelayHead::To(PeerName::new("b").expect("a name"), 3);
        let bytes = relay_payload(&head, b"xyz").expect("writes");
        assert_eq!(split_relay(bytes.clone().into()).expect("reads"), (head, Bytes::from_static(b"xyz")));
        for cut in 0..bytes.len() - 3 {
            assert!(split_relay(bytes[..cut].to_vec().into()).is_err(), "{cut}");
        }
    }
}
