//! The words between the transport and the runtime: configuration, callbacks, what arrives, errors.

use std::net::SocketAddr;

use async_trait::async_trait;
use bytes::Bytes;
pub use quinn::{RecvStream, SendStream};

use crate::base::{PeerName, Span, StoreId};
use crate::core::api::Flash;
use crate::core::message::Message;

/// Largest head of a request.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Largest gossip message.
pub const GOSSIP_BYTES_MAX: usize = 128 * 1024;
/// Largest request and answer on the join channel.
pub const JOIN_BYTES_MAX: usize = 16 * 1024;
/// Largest answer on the join channel: it carries the member list.
pub const JOIN_ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// How this peer's endpoint behaves. The name comes from the [`super::Identity`].
#[derive(Debug, Clone)]
pub struct NetConfig {
    /// The UDP address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// This peer's disk.
    pub store: StoreId,
    /// Counts starts of this store; a higher one replaces every link of a lower one.
    pub boot: u64,
    /// A link without any packet for this long is dead.
    pub idle_timeout: Span,
    /// A quiet link sends a packet this often.
    pub keep_alive: Span,
    /// One dial, TLS and hello together, may take this long.
    pub hello_timeout: Span,
    /// Dials in progress at once.
    pub dials_max: usize,
    /// The peer with the higher name waits this long for the other one's dial.
    pub dial_stagger: Span,
    /// First pause after a failed dial; doubled up to `backoff_max`.
    pub backoff_min: Span,
    /// Longest pause between dials.
    pub backoff_max: Span,
    /// How long the loser of a simultaneous open is still read.
    pub linger: Span,
    /// A flash older than this is dropped wherever it is.
    pub flash_ttl: Span,
    /// About how many receivers pass a flash on to a peer that its origin does not seem to reach.
    pub flash_fanout: usize,
    /// Shortest pause between two bandwidth probes of one link; `ZERO` never probes.
    pub probe_every: Span,
    /// Share of a link's time that probes may use, in thousandths.
    pub probe_share_milli: u32,
    /// Bytes that may wait for one peer, per lane; more is shed.
    pub outbox_bytes: usize,
    /// Received bytes that may wait for the runtime.
    pub inbox_bytes: usize,
    /// How often certificates and links are looked after.
    pub upkeep_every: Span,
}

impl NetConfig {
    /// Production's values.
    pub fn new(listen: SocketAddr, store: StoreId, boot: u64) -> Self {
        Self {
            listen,
            store,
            boot,
            idle_timeout: Span::secs(6),
            keep_alive: Span::millis(2_500),
            hello_timeout: Span::secs(5),
            dials_max: 4,
            dial_stagger: Span::millis(500),
            backoff_min: Span::millis(250),
            backoff_max: Span::secs(30),
            linger: Span::secs(3),
            flash_ttl: Span::secs(5),
            flash_fanout: 3,
            probe_every: Span::secs(300),
            probe_share_milli: 5,
            outbox_bytes: 4 << 20,
            inbox_bytes: 32 << 20,
            upkeep_every: Span::secs(1),
        }
    }
}

/// Says whether a peer with a valid certificate of this mesh may have a link. Must not block.
pub trait Admission: Send + Sync + 'static {
    /// `Err` says why not, in a sentence that the refused peer gets to read.
    fn admitted(&self, name: &PeerName, store: &StoreId) -> Result<(), String>;

    /// The same of a peer that shows its signed line of the member list, perhaps a newer one than is known here.
    fn admitted_with(&self, name: &PeerName, store: &StoreId, line: &[u8]) -> Result<(), String> {
        let _ = line;
        self.admitted(name, store)
    }

    /// The signed line of this name, to be shown; none where there is none.
    fn line(&self, name: &PeerName) -> Option<Vec<u8>> {
        let _ = name;
        None
    }
}

/// Says where a peer may be reached. Must not block: host names are resolved ahead of the call.
pub trait Directory: Send + Sync + 'static {
    /// Its addresses, best first; empty when none is known.
    fn addresses(&self, name: &PeerName) -> Vec<SocketAddr>;
}

/// Answers strangers on the join channel. Calls are rate-limited and cut off after a few seconds.
#[async_trait]
pub trait JoinHandler: Send + Sync + 'static {
    /// At most [`JOIN_BYTES_MAX`] come in, at most [`JOIN_ANSWER_BYTES_MAX`] may go out.
    async fn handle(&self, request: Vec<u8>) -> Vec<u8>;
}

/// What arrived. `from` is proven by its certificate; where `via` is set, that member passed the frame on
/// and vouches for `from`.
#[derive(Debug)]
pub enum Incoming {
    /// Messages for the core.
    Core {
        /// Who.
        from: PeerName,
        /// Passed on by.
        via: Option<PeerName>,
        /// What.
        messages: Vec<Message>,
    },
    /// One gossip message.
    Gossip {
        /// Who.
        from: PeerName,
        /// Passed on by.
        via: Option<PeerName>,
        /// What.
        bytes: Bytes,
    },
    /// An urgent hint, heard for the first time.
    Flash {
        /// Who handed it over.
        from: PeerName,
        /// Who sent it first.
        origin: PeerName,
        /// What.
        flash: Flash,
    },
    /// A request: its head, and bytes both ways.
    Request {
        /// Who.
        from: PeerName,
        /// Passed on by.
        via: Option<PeerName>,
        /// At most [`HEAD_BYTES_MAX`].
        head: Vec<u8>,
        /// The answer goes here.
        send: SendStream,
        /// More of the request comes here.
        recv: RecvStream,
    },
}

/// Why something could not be sent or opened. The other side did not act on it, except for `Lost`.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The socket cannot be had.
    #[error("cannot listen on {0}: {1}")]
    Bind(SocketAddr, std::io::Error),
    /// The key or certificate does not serve.
    #[error("identity: {0}")]
    Identity(#[from] super::identity::IdentityError),
    /// A configuration value that TLS or QUIC refuses.
    #[error("transport configuration: {0}")]
    Config(String),
    /// No link, and no linked peer reaches it.
    #[error("{0} cannot be reached, neither straight nor through another peer")]
    Unreachable(PeerName),
    /// More than may be sent at once.
    #[error("{what} has {got} bytes; at most {max} may be sent")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// No answer in time.
    #[error("no answer within {0}")]
    Timeout(Span),
    /// The server is not of the mesh whose fingerprint the token holds.
    #[error("{0} does not belong to the mesh of this token")]
    WrongMesh(SocketAddr),
    /// The link broke half way; it is not known what the other side did.
    #[error("the link was lost: {0}")]
    Lost(String),
    /// This endpoint is going down.
    #[error("this peer is stopping")]
    Stopping,
}
