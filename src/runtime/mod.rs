//! Drives the core: clock, store, gossip, dispatch, tasks.

pub mod driver;
pub mod eventlog;
pub mod gossip;
pub mod handle;
pub mod liveness;
pub mod members;
pub mod mesh;
pub mod store;
pub mod tokens;

pub use handle::{CallError, MemberInfo, PeerHandle, PeerSettings, ProxyRequest, ProxyResponse, SelfInfo};
