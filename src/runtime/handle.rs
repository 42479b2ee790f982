//! What the surface may do with a running peer: one trait, so that it can be tried on a fake.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use super::eventlog::EventLog;
use crate::base::{PeerName, Span, StoreId, WallTime};
use crate::core::api::{AttemptKey, Event};
use crate::core::{ClientRequest, ClientResponse};
use crate::model::alert::AlertsReport;
use crate::model::report::View;
use crate::model::spec_input::SpecDefaults;

/// An API request that this peer passes to another, whose router answers it as its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyRequest {
    /// `GET`, `POST`, `DELETE`.
    pub method: String,
    /// Path and query, `/v1/local/jobs?limit=10`.
    pub uri: String,
    /// JSON body, may be empty.
    pub body: Vec<u8>,
}

/// Bytes of an answer as they come.
pub type BodyStream = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// Its answer.
pub struct ProxyResponse {
    /// HTTP status.
    pub status: u16,
    /// Its media type.
    pub content_type: String,
    /// The body, perhaps endless (logs that are followed).
    pub body: BodyStream,
}

/// Why a call could not be made. The other side may or may not have acted on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not a member.
    #[error("{0} is not a member of this mesh: see `starling clusters`")]
    NoSuchPeer(PeerName),
    /// Neither straight nor through another peer.
    #[error("{0} cannot be reached from {1}, neither straight nor through another peer")]
    Unreachable(PeerName, PeerName),
    /// It did not answer in time.
    #[error("{0} did not answer within {1}")]
    Timeout(PeerName, Span),
    /// The peer is going down.
    #[error("this peer is stopping: ask another one")]
    Stopping,
    /// The request may not be made here.
    #[error("{0}")]
    Invalid(String),
}

/// One line of the signed member list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Name.
    pub name: PeerName,
    /// Disk.
    pub store: StoreId,
    /// Addresses it is reached at.
    pub addresses: Vec<String>,
    /// No longer a member.
    pub removed: bool,
    /// Holds records only.
    pub witness: bool,
}

/// Facts about the peer itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfInfo {
    /// Name.
    pub name: PeerName,
    /// Mesh id, hex.
    pub mesh: String,
    /// Disk.
    pub store: StoreId,
    /// Starts of this store.
    pub boot: u64,
    /// Where QUIC listens.
    pub listen: String,
    /// Where the HTTP API listens on TCP, if it does.
    pub api: Option<String>,
    /// Version of the binary.
    pub version: String,
    /// When its certificate began and ends.
    pub certificate: (WallTime, WallTime),
    /// When this process started.
    pub started_at: WallTime,
    /// It takes no new attempts.
    pub draining: bool,
}

/// Settings of a peer that others compare with their own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PeerSettings {
    /// How far clock rates may be off, thousandths. All peers alike, or a job may run twice.
    pub rho_milli: u64,
    /// Time for killing an attempt, plus safety. All peers alike, or a job may run twice.
    pub margin: Span,
    /// Homes of a new record.
    pub replicas: usize,
    /// Grace of jobs that say none.
    pub grace: Span,
    /// Names of the notifiers.
    pub notifiers: Vec<String>,
    /// The whole configuration as TOML, without secrets.
    pub config: String,
}

/// A running peer.
#[async_trait]
pub trait PeerHandle: Send + Sync + 'static {
    /// About itself.
    fn about(&self) -> SelfInfo;
    /// What it knows of the mesh, now.
    fn view(&self) -> Arc<View>;
    /// The signed member list.
    fn members(&self) -> Vec<MemberInfo>;
    /// Asks its core.
    async fn call(&self, request: ClientRequest) -> Result<ClientResponse, CallError>;
    /// Asks another peer's API, straight or through one that reaches both.
    async fn proxy(&self, peer: &PeerName, request: ProxyRequest) -> Result<ProxyResponse, CallError>;
    /// A single-use join token of this peer, good for `ttl` (at most one hour).
    async fn token_create(&self, ttl: Span) -> Result<String, CallError>;
    /// Takes a member off the list, for good.
    async fn member_remove(&self, name: &PeerName) -> Result<(), CallError>;
    /// Takes no new attempts (true) or takes them again. Running attempts are stopped with notice and
    /// run again elsewhere.
    async fn drain(&self, draining: bool) -> Result<(), CallError>;
    /// What a job gets that does not say.
    fn spec_defaults(&self) -> SpecDefaults {
        SpecDefaults::default()
    }
    /// Log files of an attempt at this cluster; none if it never ran here.
    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>>;
    /// Events as they come.
    fn events(&self) -> broadcast::Receiver<Event>;
    /// The core's own events as they come, without notes that are made only for watchers.
    fn journal(&self) -> broadcast::Receiver<Event> {
        self.events()
    }
    /// Keeps an event of a part that is not the core.
    fn note(&self, _event: Event) {}
    /// Tells the other members what is wrong here, and what was said about it.
    fn tell_alerts(&self, _report: AlertsReport) {}
    /// Settings in effect.
    fn settings(&self) -> PeerSettings {
        PeerSettings::default()
    }
    /// What is written down here: events and audit; none where nothing is.
    fn log(&self) -> Option<EventLog> {
        None
    }
    /// Members that take no link from this peer, and why they say so.
    fn refusals(&self) -> Vec<(PeerName, String)> {
        Vec::new()
    }
    /// Counters and gauges that the core does not know, in Prometheus' text format.
    fn metrics(&self) -> String;
}
