//! The running peer as the surface sees it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::backends::Backend;
use crate::base::{PeerName, Span, WallTime};
use crate::core::api::{AttemptKey, Event, Flash, Look};
use crate::core::{ClientRequest, ClientResponse, Input};
use crate::model::alert::AlertsReport;
use crate::model::report::View;
use crate::model::spec_input::SpecDefaults;
use crate::runtime::driver::CoreHandle;
use crate::runtime::eventlog::EventLog;
use crate::runtime::gossip::Facet;
use crate::runtime::handle::{
    CallError, MemberInfo, PeerHandle, PeerSettings, ProxyRequest, ProxyResponse, SelfInfo,
};
use crate::runtime::members::Members;
use crate::runtime::mesh::Mesh;
use crate::runtime::store::Store;
use crate::runtime::tokens::TokenIssuer;
use crate::transport::{Identity, Net, NetError, REFUSES, codec};

/// Head of an answer to a proxied request; its length goes before it as four bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProxyHead {
    pub status: u16,
    pub content_type: String,
}

/// Longest such head.
pub(super) const PROXY_HEAD_BYTES_MAX: u32 = 1_024;
/// A proxied request must begin to be answered within this.
const PROXY_PATIENCE: Span = Span::secs(20);

pub(super) struct NodeParts {
    pub core: CoreHandle,
    pub net: Net,
    pub mesh: Mesh,
    pub members: Arc<Members>,
    pub identity: Arc<Identity>,
    pub issuer: Arc<TokenIssuer>,
    pub backend: Arc<dyn Backend>,
    pub store: Store,
    pub log: EventLog,
    pub api: Option<SocketAddr>,
    pub started_at: WallTime,
    pub settings: PeerSettings,
}

/// A running peer.
pub struct Node {
    parts: NodeParts,
    draining: std::sync::atomic::AtomicBool,
    /// Events and audit entries are written down.
    seen: std::sync::atomic::AtomicBool,
}

impl Node {
    pub(super) fn new(parts: NodeParts) -> Self {
        Self { parts, draining: Default::default(), seen: Default::default() }
    }

    /// The core's inputs.
    pub fn core(&self) -> &CoreHandle {
        &self.parts.core
    }

    /// The mesh, for who measures it.
    pub fn mesh(&self) -> &Mesh {
        &self.parts.mesh
    }
    /// The transport.
    pub fn net(&self) -> &Net {
        &self.parts.net
    }

    pub(super) fn set_seen(&self, seen: bool) {
        self.seen.store(seen, std::sync::atomic::Ordering::Relaxed);
    }

    pub(super) fn say_goodbye(&self) {
        self.parts.net.flash(Flash::Leaving { peer: self.parts.identity.name().clone() });
    }

    /// Attempts here whose end is not in their records yet.
    pub(super) async fn attempts(&self) -> Option<usize> {
        match self.parts.core.call(ClientRequest::Inspect(Look::default())).await {
            Ok(ClientResponse::Inspect(report)) => Some(report.attempts.len()),
            _ => None,
        }
    }

    fn unreachable(&self, peer: &PeerName) -> CallError {
        CallError::Unreachable(peer.clone(), self.parts.identity.name().clone())
    }

    async fn ask(&self, peer: &PeerName, head: Vec<u8>) -> Result<ProxyResponse, CallError> {
        let opened = self.parts.net.open(peer, head).await;
        let (_send, mut recv) = opened.map_err(|e| match e {
            NetError::Timeout(after) => CallError::Timeout(peer.clone(), after),
            NetError::TooLarge { .. } => CallError::Invalid(e.to_string()),
            _ => self.unreachable(peer),
        })?;
        let mut length = [0; 4];
        recv.read_exact(&mut length).await.map_err(|_| self.unreachable(peer))?;
        let length = u32::from_be_bytes(length);
        if length > PROXY_HEAD_BYTES_MAX {
            return Err(CallError::Invalid(format!("{peer} answered in a way that cannot be read")));
        }
        let mut head = vec![0; length as usize];
        recv.read_exact(&mut head).await.map_err(|_| self.unreachable(peer))?;
        let head: ProxyHead = codec::decode(&head, PROXY_HEAD_BYTES_MAX as usize)
            .map_err(|e| CallError::Invalid(format!("{peer} answered in a way that cannot be read: {e}")))?;
        let body = Box::pin(tokio_util::io::ReaderStream::new(recv));
        Ok(ProxyResponse { status: head.status, content_type: head.content_type, body })
    }
}

#[async_trait]
impl PeerHandle for Node {
    fn about(&self) -> SelfInfo {
        let parts = &self.parts;
        SelfInfo {
            name: parts.identity.name().clone(),
            mesh: parts.identity.mesh().to_string(),
            store: parts.store.id(),
            boot: parts.store.boot(),
            listen: parts.net.local_addr().to_string(),
            api: parts.api.map(|a| a.to_string()),
            version: env!("CARGO_PKG_VERSION").into(),
            certificate: parts.identity.validity(),
            started_at: parts.started_at,
            draining: self.draining.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    fn view(&self) -> Arc<View> {
        self.parts.mesh.view().borrow().clone()
    }

    fn members(&self) -> Vec<MemberInfo> {
        let list = self.parts.members.list();
        let info = |e: &crate::runtime::members::Entry| MemberInfo {
            name: e.name.clone(),
            store: e.store,
            addresses: e.addresses.clone(),
            removed: e.removed,
            witness: e.witness,
        };
        list.entries().map(info).collect()
    }

    async fn call(&self, request: ClientRequest) -> Result<ClientResponse, CallError> {
        self.parts.core.call(request).await
    }

    async fn proxy(&self, peer: &PeerName, request: ProxyRequest) -> Result<ProxyResponse, CallError> {
        if self.parts.members.list().member(peer).is_none() {
            return Err(CallError::NoSuchPeer(peer.clone()));
        }
        let head = codec::encode(&request).map_err(|e| CallError::Invalid(e.to_string()))?;
        let asked = tokio::time::timeout(PROXY_PATIENCE.to_std(), self.ask(peer, head)).await;
        asked.unwrap_or_else(|_| Err(CallError::Timeout(peer.clone(), PROXY_PATIENCE)))
    }

    async fn token_create(&self, ttl: Span) -> Result<String, CallError> {
        let issuer = self.parts.issuer.clone();
        let made = tokio::task::spawn_blocking(move || issuer.create(ttl, true)).await;
        made.map_err(|_| CallError::Stopping)?.map_err(|e| CallError::Invalid(e.to_string()))
    }

    async fn member_remove(&self, name: &PeerName) -> Result<(), CallError> {
        if name == self.parts.identity.name() {
            let text = "a peer does not remove itself: ask another peer, or stop this one";
            return Err(CallError::Invalid(text.into()));
        }
        if self.parts.members.list().member(name).is_none() {
            return Err(CallError::NoSuchPeer(name.clone()));
        }
        let (members, identity, name) =
            (self.parts.members.clone(), self.parts.identity.clone(), name.clone());
        let done = tokio::task::spawn_blocking(move || members.remove(&name, &*identity).map(|_| ())).await;
        done.map_err(|_| CallError::Stopping)?.map_err(|e| CallError::Invalid(e.to_string()))
    }

    async fn drain(&self, draining: bool) -> Result<(), CallError> {
        self.draining.store(draining, std::sync::atomic::Ordering::Relaxed);
        if self.parts.core.input(Input::Drain(draining)).await { Ok(()) } else { Err(CallError::Stopping) }
    }

    fn spec_defaults(&self) -> SpecDefaults {
        SpecDefaults { grace: Some(self.parts.settings.grace) }
    }

    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>> {
        self.parts.backend.logs(key)
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.parts.core.events()
    }

    fn journal(&self) -> broadcast::Receiver<Event> {
        self.parts.core.journal()
    }

    fn note(&self, event: Event) {
        self.parts.core.note(event);
    }

    fn tell_alerts(&self, report: AlertsReport) {
        if let Err(error) = self.parts.mesh.publish(Facet::Alerts(report)) {
            tracing::error!("cannot tell of alerts: {error}");
        }
    }

    fn settings(&self) -> PeerSettings {
        self.parts.settings.clone()
    }

    fn log(&self) -> Option<EventLog> {
        let seen = self.seen.load(std::sync::atomic::Ordering::Relaxed);
        seen.then(|| self.parts.log.clone())
    }

    fn refusals(&self) -> Vec<(PeerName, String)> {
        let said = |(peer, why): (PeerName, String)| {
            let at = why.find(REFUSES)? + REFUSES.len();
            Some((peer, why[at..].to_owned()))
        };
        self.parts.net.troubles().into_iter().filter_map(said).collect()
    }
    fn metrics(&self) -> String {
        let mut registry = Registry::default();
        self.parts.store.metrics().register(&mut registry);
        self.parts.net.register(&mut registry);
        self.parts.mesh.register(&mut registry);
        let mut text = String::new();
        if prometheus_client::encoding::text::encode_registry(&mut text, &registry).is_err() {
            tracing::error!("the store's metrics could not be written");
        }
        let counters = self.parts.net.counters().into_iter().map(|(n, v)| (format!("net_{n}"), v));
        let mesh = self.parts.mesh.counters().into_iter().map(|(n, v)| (n.to_owned(), v));
        for (name, value) in counters.chain(mesh) {
            text.push_str(&format!("# TYPE starling_{name} counter\nstarling_{name}_total {value}\n"));
        }
        let phi = self.parts.mesh.phi(super::now().mono);
        let help = "Silence of a member by gossip, in its own average intervals.";
        text.push_str(&format!("# HELP starling_phi {help}\n# TYPE starling_phi gauge\n"));
        for (peer, phi) in phi {
            text.push_str(&format!("starling_phi{{peer=\"{peer}\"}} {phi:.3}\n"));
        }
        let name = "starling_channel_fill_ratio";
        let help = "Share of a queue inside this peer that is taken; at 1 it waits or sheds.";
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n# UNIT {name} ratio\n"));
        for (channel, fill) in self.parts.mesh.fills().into_iter().chain([("core", self.parts.core.fill())]) {
            text.push_str(&format!("{name}{{channel=\"{channel}\"}} {fill:.3}\n"));
        }
        text
    }
}
