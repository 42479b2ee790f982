//! The public handle of a peer's endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::api::*;
use super::identity::{Identity, Issued};
use crate::base::{PeerName, Span};
use crate::core::api::Flash;
use crate::core::message::Message;
use crate::model::report::LinkSample;

/// A peer's endpoint: one socket, one link per peer. Cheap to clone.
#[derive(Clone)]
pub struct Net {}

impl Net {
    /// Opens the socket and starts the endpoint. Nobody is called before `set_members`. Needs a tokio runtime.
    pub fn bind(
        config: NetConfig,
        identity: Arc<Identity>,
        admission: Arc<dyn Admission>,
        directory: Arc<dyn Directory>,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), NetError> {
        let _ = (config, identity, admission, directory);
        todo!()
    }
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        todo!()
    }
    /// This peer's identity.
    pub fn identity(&self) -> &Arc<Identity> {
        todo!()
    }
    /// Queues messages for a peer, straight or through another; never waits. False when they were shed (full, or not reachable). To itself: delivered at once.
    pub fn send_core(&self, to: &PeerName, messages: Vec<Message>) -> bool {
        let _ = (to, messages);
        todo!()
    }
    /// The same for one gossip message.
    pub fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool {
        let _ = (to, bytes);
        todo!()
    }
    /// Sends an urgent hint to every linked peer at once.
    pub fn flash(&self, flash: Flash) {
        let _ = flash;
        todo!()
    }
    /// Opens a request, straight or through one other peer.
    pub async fn open(&self, to: &PeerName, head: Vec<u8>) -> Result<(SendStream, RecvStream), NetError> {
        let _ = (to, head);
        todo!()
    }
    /// What is measured on the link to every peer that was ever linked.
    pub fn links(&self) -> Vec<LinkSample> {
        todo!()
    }
    /// Feeds a real transfer of bytes to a peer into its bandwidth estimate.
    pub fn note_transfer(&self, to: &PeerName, bytes: u64, took: Span) {
        let _ = (to, bytes, took);
        todo!()
    }
    /// Peers with a direct link, now.
    pub fn connected(&self) -> Vec<PeerName> {
        todo!()
    }
    /// The same set as it changes.
    pub fn watch_connected(&self) -> watch::Receiver<Arc<BTreeSet<PeerName>>> {
        todo!()
    }
    /// Whom to keep links to. Links that admission no longer allows are closed.
    pub fn set_members(&self, members: Vec<PeerName>) {
        let _ = members;
        todo!()
    }
    /// Who answers on the join channel; none refuses it (so it is at the start).
    pub fn set_join_handler(&self, handler: Option<Arc<dyn JoinHandler>>) {
        let _ = handler;
        todo!()
    }
    /// Takes renewed certificates into use for new links and shows them on the present ones; none is dropped. (A peer that holds the mesh's key does this by itself in time.)
    pub fn install(&self, issued: Issued) -> Result<(), NetError> {
        let _ = issued;
        todo!()
    }
    /// Named counters for metrics.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        todo!()
    }
    /// For tests: no traffic to or from this peer until `unblock`.
    pub fn block(&self, peer: &PeerName) {
        let _ = peer;
        todo!()
    }
    /// Ends `block`.
    pub fn unblock(&self, peer: &PeerName) {
        let _ = peer;
        todo!()
    }
    /// Sends what waits, closes every link and the socket, ends every task; at most this long.
    pub async fn shutdown(&self, deadline: Span) {
        let _ = deadline;
        todo!()
    }
}

/// Asks a member of a mesh that one is not in. The server must show a chain under the trust root whose SHA-256 is `ca_fingerprint`.
pub async fn join_call(
    addr: SocketAddr,
    ca_fingerprint: [u8; 32],
    request: Vec<u8>,
) -> Result<Vec<u8>, NetError> {
    let _ = (addr, ca_fingerprint, request);
    todo!()
}
