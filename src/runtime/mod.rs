//! Drives the core: clock, store, gossip, dispatch, tasks.

pub mod handle;
pub mod store;

pub use handle::{CallError, MemberInfo, PeerHandle, ProxyRequest, ProxyResponse, SelfInfo};
