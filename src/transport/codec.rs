//! Bytes on the wire, and the only user of bincode.
//!
//! Integers are variable-length little endian, lists and texts carry their length first, enums their
//! variant number; the golden bytes below fix it, so that a compatible successor can take over.
//! A frame is `[wire u16 BE][kind u8][length u32 BE][payload]`.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The wire version this peer speaks, with a magic first byte (`S`).
pub const WIRE: u16 = 0x5301;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 7;
/// Largest payload.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Most values are shorter, but for what carries a record.
const USUAL_BYTES: usize = 256;

/// Why bytes could not be written or read. Nothing was taken from them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// More bytes than allowed here.
    #[error("{got} bytes where at most {max} are allowed")]
    TooLarge {
        /// How many.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// Something follows the value.
    #[error("{0} bytes follow the value")]
    Trailing(usize),
    /// Fewer bytes than a header or the announced length.
    #[error("the frame is cut short")]
    Short,
    /// Not our protocol, or another version of it.
    #[error("wire version {0:#06x} is not spoken here")]
    Version(u16),
    /// A kind that this version does not know.
    #[error("frame kind {0} is not known")]
    Kind(u8),
    /// The bytes do not spell the expected type.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The value has a shape that the codec cannot write (a bug, not an input).
    #[error("cannot be written: {0}")]
    Unwritable(String),
}

/// Writes a value.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    bincode::serde::encode_into_std_write(value, &mut bytes, bincode::config::standard())
        .map_err(|e| CodecError::Unwritable(e.to_string()))?;
    Ok(bytes)
}

/// Reads a value from exactly these bytes, at most `limit` of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, CodecError> {
    if bytes.len() > limit || bytes.len() > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { got: bytes.len(), max: limit.min(FRAME_BYTES_MAX) });
    }
    // bincode counts what it would hold in memory, up to 8 times what is on the wire (a varint of one byte
    // is a u64), and allocates an announced text before reading it: so the limit follows the input's size.
    let config = bincode::config::standard();
    let read = match bytes.len() {
        0..=4_096 => bincode::serde::decode_from_slice(bytes, config.with_limit::<{ 16 << 12 }>()),
        4_097..=65_536 => bincode::serde::decode_from_slice(bytes, config.with_limit::<{ 16 << 16 }>()),
        _ => bincode::serde::decode_from_slice(bytes, config.with_limit::<{ 16 << 20 }>()),
    };
    let (value, used) = read.map_err(|e| CodecError::Malformed(e.to_string()))?;
    match bytes.len() - used {
        0 => Ok(value),
        more => Err(CodecError::Trailing(more)),
    }
}

/// The bytes of a `Vec` whose items were encoded one by one.
pub fn encode_list<'a>(items: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Vec<u8>, CodecError> {
    let mut out = encode(&(items.len() as u64))?;
    for item in items {
        out.extend_from_slice(item);
    }
    Ok(out)
}

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of a link, both ways.
    Hello = 1,
    /// On the hello's stream after it: what neighbours tell each other.
    Control = 2,
    /// Messages between cores.
    Core = 3,
    /// One gossip message.
    Gossip = 4,
    /// An urgent hint.
    Flash = 5,
    /// A frame to be passed on, or one passed on.
    Relay = 6,
    /// The head of a request; raw bytes follow.
    Request = 7,
    /// The head of a request that goes through another peer.
    RelayRequest = 8,
    /// Bytes that measure bandwidth follow until the stream ends.
    Probe = 9,
    /// A stranger's question, and its answer.
    Join = 10,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 10] = [
        Self::Hello,
        Self::Control,
        Self::Core,
        Self::Gossip,
        Self::Flash,
        Self::Relay,
        Self::Request,
        Self::RelayRequest,
        Self::Probe,
        Self::Join,
    ];
}

impl TryFrom<u8> for Kind {
    type Error = CodecError;
    fn try_from(byte: u8) -> Result<Self, CodecError> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte).ok_or(CodecError::Kind(byte))
    }
}

/// Puts a header before a payload.
pub fn frame(kind: Kind, payload: &[u8]) -> Result<Vec<u8>, CodecError> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= FRAME_BYTES_MAX);
    let length = length.ok_or(CodecError::TooLarge { got: payload.len(), max: FRAME_BYTES_MAX })?;
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    out.extend_from_slice(&WIRE.to_be_bytes());
    out.push(kind as u8);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(payload);
    Ok(out)
}

/// Reads a header: the kind and the payload's length, which is within the limit.
pub fn header(bytes: &[u8; HEADER_BYTES]) -> Result<(Kind, usize), CodecError> {
    let [w0, w1, kind, l0, l1, l2, l3] = *bytes;
    let wire = u16::from_be_bytes([w0, w1]);
    if wire != WIRE {
        return Err(CodecError::Version(wire));
    }
    let kind = Kind::try_from(kind)?;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { got: length, max: FRAME_BYTES_MAX });
    }
    Ok((kind, length))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use data_encoding::HEXLOWER;
    use proptest::prelude::*;

    use super::*;
    use crate::base::{ContactId, Epoch, Home, JobId, KeyId, PeerName, Span, StoreId};
    use crate::core::api::Flash;
    use crate::core::message::*;
    use crate::model::record::*;
    use crate::model::report::QueueReport;

    fn peer(name: &str) -> PeerName {
        PeerName::new(name).expect("a name")
    }

    fn birth() -> Birth {
        let homes = vec![Home { peer: peer("a"), store: StoreId([1; 16]) }];
        Birth { tenant: "t".into(), minter: peer("a"), sequence: 300, homes: homes.try_into().expect("one") }
    }

    fn messages() -> Vec<Message> {
        let ballot = Ballot { round: 7, proposer: "a".into(), boot: 2 };
        let key = RecordKey::Job(JobId([9; 20]));
        let ask = |body| {
            Message::Register(RegisterRequest { op: 5, key, generation: 0, store: StoreId([1; 16]), body })
        };
        let answer = |body| Message::Answer(RegisterAnswer { op: 5, key, store: StoreId([1; 16]), body });
        vec![
            ask(RegisterBody::Prepare { ballot: ballot.clone(), origin: Some(Origin::Job(birth())) }),
            ask(RegisterBody::Accept {
                ballot: ballot.clone(),
                value: vec![1, 2, 3].into(),
                next: None,
                origin: None,
            }),
            ask(RegisterBody::Read),
            answer(AnswerBody::Promise {
                ballot: ballot.clone(),
                accepted: Some((ballot.clone(), vec![4].into())),
            }),
            answer(AnswerBody::Accepted { ballot: ballot.clone() }),
            answer(AnswerBody::Higher { promised: ballot }),
            answer(AnswerBody::State { accepted: None }),
            answer(AnswerBody::Unknown),
            answer(AnswerBody::Refused { why: "full".into() }),
            Message::Locate { job: JobId([9; 20]) },
            Message::Located { job: JobId([9; 20]), birth: None },
            Message::Claim(Box::new(Claim {
                birth: birth(),
                epoch: Epoch(1),
                nodes: 2,
                resources: crate::model::Resources::default(),
                priority: 50,
                image: false,
                max_runtime: Some(Span::secs(1)),
            })),
            Message::Withdraw { job: JobId([9; 20]), epoch: Epoch(1) },
            Message::Grant {
                job: JobId([9; 20]),
                epoch: Epoch(1),
                held: Span::secs(1),
                contact: ContactId([3; 20]),
                series: 1,
                homes: vec![],
                incarnation: 4,
            },
            Message::ClaimState { job: JobId([9; 20]), epoch: Epoch(1), ahead: 3, refused: None },
            Message::Look { birth: birth() },
            Message::ClaimWith {
                claim: Box::new(Claim {
                    birth: birth(),
                    epoch: Epoch(1),
                    nodes: 2,
                    resources: crate::model::Resources::default(),
                    priority: 50,
                    image: false,
                    max_runtime: Some(Span::secs(1)),
                }),
                terms: Terms {
                    preemptible: true,
                    token: false,
                    waited: Span::secs(2),
                    gathers: false,
                    lean: false,
                    card: None,
                },
            },
            Message::ClaimStateWith {
                job: JobId([9; 20]),
                epoch: Epoch(1),
                ahead: 3,
                refused: None,
                prospects: Prospects {
                    starts_in: Some(Span::secs(1)),
                    front: vec![],
                    victims: Some(2),
                    waits: String::new(),
                    reserved: String::new(),
                    yields: false,
                },
            },
        ]
    }

    #[test]
    fn every_message_comes_back() {
        for message in messages() {
            let bytes = encode(&message).expect("writes");
            assert_eq!(decode::<Message>(&bytes, 4096).expect("reads"), message);
            assert_eq!(decode::<Message>(&[&bytes[..], &[0]].concat(), 4096), Err(CodecError::Trailing(1)));
            assert!(decode::<Message>(&bytes[..bytes.len() - 1], 4096).is_err());
        }
        // What a later version adds by name is passed over; nonsense in its place is not.
        let more = |text: &str| {
            let plain = encode(&messages()[17]).expect("writes");
            let head = plain.len() - 1 - br#"{"starts_in":1000000,"front":[],"victims":2}"#.len();
            [&plain[..head], &[text.len() as u8], text.as_bytes()].concat()
        };
        let later = decode::<Message>(&more(r#"{"victims":2,"moon":"full"}"#), 4096).expect("reads");
        let Message::ClaimStateWith { prospects, .. } = later else { panic!("another message") };
        assert_eq!(prospects, Prospects { victims: Some(2), ..Prospects::default() });
        assert!(decode::<Message>(&more(r#"{"victims":-1}"#), 4096).is_err());
        assert!(decode::<Message>(&more("moon"), 4096).is_err());
        // A flash keeps the form that every peer of a mesh under upgrade reads.
        let full = QueueReport {
            waits: [("H100".to_owned(), Span::secs(1))].into(),
            gpus_reclaimable: [(20, 4)].into(),
            ..QueueReport::default()
        };
        let flash = |queue| Flash::Capacity { cluster: peer("a"), queue };
        assert_eq!(
            HEXLOWER.encode(&encode(&flash(full)).expect("writes")),
            "000161".to_owned() + &"00".repeat(9)
        );
        let flash = Flash::Capacity { cluster: peer("a"), queue: QueueReport::default() };
        assert_eq!(decode::<Flash>(&encode(&flash).expect("writes"), 99).expect("reads"), flash);
    }

    #[test]
    fn shared_bytes_are_written_as_plain_ones_are() {
        for bytes in [vec![], vec![7; 300], (0..=255).collect::<Vec<u8>>()] {
            let shared = crate::core::acceptor::Encoded::from(bytes.clone());
            let wire = encode(&bytes).expect("writes");
            assert_eq!(encode(&shared).expect("writes"), wire);
            assert_eq!(decode(&wire, 1 << 10), Ok(shared.clone()));
            let json = serde_json::to_string(&bytes).expect("writes");
            assert_eq!(serde_json::to_string(&shared).expect("writes"), json);
            assert_eq!(serde_json::from_str::<crate::core::acceptor::Encoded>(&json).expect("reads"), shared);
        }
        assert!(decode::<crate::core::acceptor::Encoded>(&[5, 1, 2], 99).is_err(), "cut short");
    }

    #[test]
    fn a_list_is_its_items_in_a_row() {
        let items: Vec<Vec<u8>> = messages().iter().map(|m| encode(m).expect("writes")).collect();
        let list = encode_list(items.iter().map(Vec::as_slice)).expect("writes");
        assert_eq!(list, encode(&messages()).expect("writes"));
    }

    /// A change here breaks every mesh that is being upgraded: decode the new form one release before it is sent.
    #[test]
    fn golden_bytes() {
        let golden = [
            (
                0,
                "000500090909090909090909090909090909090909090900010101010101010101010101010101010007016102010001740161fb2c0101016101010101010101010101010101010101",
            ),
            (
                1,
                "000500090909090909090909090909090909090909090900010101010101010101010101010101010107016102030102030000",
            ),
            (
                3,
                "010500090909090909090909090909090909090909090901010101010101010101010101010101000701610201070161020104",
            ),
            (7, "01050009090909090909090909090909090909090909090101010101010101010101010101010104"),
            (11, "0401740161fb2c0101016101010101010101010101010101010101010200000000320001fc40420f00"),
            (
                13,
                "06090909090909090909090909090909090909090901fc40420f000303030303030303030303030303030303030303010004",
            ),
            (15, "0801740161fb2c0101016101010101010101010101010101010101"),
            (
                16,
                "0a01740161fb2c0101016101010101010101010101010101010101010200000000320001fc40420f00337b22707265656d707469626c65223a747275652c22746f6b656e223a66616c73652c22776169746564223a323030303030307d",
            ),
            (
                17,
                "0b09090909090909090909090909090909090909090103002c7b227374617274735f696e223a313030303030302c2266726f6e74223a5b5d2c2276696374696d73223a327d",
            ),
        ];
        for (index, bytes) in golden {
            assert_eq!(
                HEXLOWER.encode(&encode(&messages()[index]).expect("writes")),
                bytes,
                "message {index}"
            );
        }
        let tell = TenantsWord::Tell { cards: Vec::new(), more: false, told: true };
        let hold = crate::core::reserve::ReserveWord::Held { id: JobId([9; 20]), round: 1 };
        for (message, bytes) in [
            (Message::Disk(DiskWord::Seen { nonce: 7, seen: None }), "0c020700"),
            (Message::Tenants(Vec::new()), "0d00"),
            (Message::TenantsWord(TenantsWord::Ask { after: None }), "0e0000"),
            (Message::TenantsWord(tell), "0e01000001"),
            (
                Message::Reserve(hold),
                "0f3c7b2268656c64223a7b226964223a22626565717363696a626565717363696a626565717363696a626565717363696a222c22726f756e64223a317d7d",
            ),
            (
                Message::Key(KeyWord::Ask { key: KeyId([9; 20]), number: 5 }),
                "1000090909090909090909090909090909090909090905",
            ),
            (
                Message::Key(KeyWord::Told { key: KeyId([9; 20]), number: 5, knows: KeyKnown::Asks }),
                "100109090909090909090909090909090909090909090501",
            ),
        ] {
            assert_eq!(HEXLOWER.encode(&encode(&message).expect("writes")), bytes, "{message:?}");
        }
        assert_eq!(HEXLOWER.encode(&frame(Kind::Core, b"xyz").expect("writes")), "5301030000000378797a");
    }

    #[test]
    fn headers_are_checked() {
        let good: [u8; 7] = frame(Kind::Flash, b"").expect("writes").try_into().expect("only a header");
        assert_eq!(header(&good), Ok((Kind::Flash, 0)));
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            header(&bytes)
        };
        assert_eq!(with(0, b'G'), Err(CodecError::Version(0x4701)));
        assert_eq!(with(1, 2), Err(CodecError::Version(0x5302)));
        assert_eq!(with(2, 0), Err(CodecError::Kind(0)));
        assert_eq!(with(2, 11), Err(CodecError::Kind(11)));
        assert!(matches!(with(3, 1), Err(CodecError::TooLarge { got: 0x0100_0000, .. })));
        assert!(matches!(frame(Kind::Core, &vec![0; FRAME_BYTES_MAX + 1]), Err(CodecError::TooLarge { .. })));
        assert!(matches!(decode::<Vec<u8>>(&[0; 9], 8), Err(CodecError::TooLarge { got: 9, max: 8 })));
    }

    #[test]
    fn an_announced_length_is_not_believed() {
        // A text and a list of 2^60 items, in 10 bytes.
        let lie = [&[253][..], &(1u64 << 60).to_le_bytes(), &[1]].concat();
        assert!(decode::<String>(&lie, 64).is_err());
        assert!(decode::<Vec<u64>>(&lie, 64).is_err());
        assert!(decode::<BTreeMap<String, String>>(&lie, 64).is_err());
    }

    proptest! {
        #[test]
        fn junk_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = decode::<Vec<Message>>(&bytes, 4096);
            let _ = decode::<JobRecord>(&bytes, 4096);
            let _ = decode::<Flash>(&bytes, 4096);
        }
    }
}
