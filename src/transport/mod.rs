//! Wire messages, codec, identity and QUIC: how one peer proves itself to another and what they exchange.
//!
//! The runtime uses [`Net`] and the words in [`api`]; [`Identity`] is the peer's name, its key and the
//! mesh's trust root on disk. Everything else in this layer is private to it.

pub mod api;
pub mod codec;
pub mod identity;
pub mod keys;
mod certs;
mod state;
mod net;

pub use api::{Admission, Directory, Incoming, JoinHandler, NetConfig, NetError, RecvStream, SendStream};
pub use identity::{Identity, IdentityError, Issued};
pub use keys::PublicKey;
pub use net::{Net, join_call};
