//! Wire messages, codec, identity and QUIC: how one peer proves itself to another and what they exchange.
//!
//! The runtime uses [`Net`] and the words in [`api`]; [`Identity`] is the peer's name, its key and the
//! mesh's trust root on disk. Everything else in this layer is private to it:
//!
//! - identity: `keys` (signatures), `certs` (the mesh's certificates), `state` (files), `tls`
//! - bytes: `codec` (values and frames), `wire` (what travels in them)
//! - links: `greet` (the hello), `pool` (one link per peer), `dial`, `link` (queues and writing),
//!   `receive`, `inbox` (bounded way to the runtime)
//! - services on links: `flash`, `relay`, `meter` (RTT, loss, bandwidth), `join` (strangers with a token),
//!   `upkeep` (what happens by the clock), `counters`

pub mod api;
mod certs;
pub mod codec;
mod counters;
mod dial;
mod flash;
mod greet;
pub mod identity;
mod inbox;
mod join;
pub mod keys;
mod link;
mod meter;
mod net;
mod pool;
pub mod private;
mod receive;
mod relay;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod tls;
mod upkeep;
mod wire;

pub use api::{Admission, Directory, Incoming, JoinHandler, NetConfig, NetError, RecvStream, SendStream};
pub use greet::REFUSES;
pub use identity::{Identity, IdentityError, Issued};
pub use inbox::Arrivals;
pub use join::join_call;
pub use keys::PublicKey;
pub use net::Net;
pub use pool::{OTHER_DISK, STARTED_SINCE};
pub use tls::server_certificate;
