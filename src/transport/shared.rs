//! What the tasks of one endpoint share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::api::{Admission, Directory, NetConfig, NetError};
use super::certs;
use super::codec::{self, Kind};
use prometheus_client::metrics::histogram::Histogram;

use super::counters::Counters;
use super::flash::Flashes;
use super::identity::{Identity, Issued};
use super::inbox::{Arrivals, Inbox};
use super::join::Gate;
use super::link::{Item, Lane, Link, Met, close};
use super::pool::Pool;
use super::wire::{Control, FrameError, Hello, Proof};
use super::{receive, tls};
use crate::base::{PeerName, Rng};

/// Requests passed on for others at once.
const RELAYED_REQUESTS_MAX: usize = 64;
/// Connections that have not said hello yet.
pub(super) const GREETINGS_MAX: usize = 128;
/// In the hello's extra: this peer knows words about the past of disks,
pub(super) const EXTRA_DISK: &str = "disk";
/// and this is its signed line of the member list.
const EXTRA_LINE: &str = "line";
/// In the hello's extra: this peer passes a flash on to whom its origin names.
pub(super) const EXTRA_PASS: &str = "pass";
/// What the hello's signature is for.
const HELLO_CONTEXT: &str = "hello";

/// Locks; a panic elsewhere leaves plain data behind, never a half-made change.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One endpoint.
pub(super) struct Shared {
    pub config: NetConfig,
    pub identity: Arc<Identity>,
    pub admission: Arc<dyn Admission>,
    pub directory: Arc<dyn Directory>,
    pub endpoint: quinn::Endpoint,
    pub client: ArcSwap<quinn::ClientConfig>,
    pub pool: Pool,
    pub inbox: Inbox,
    pub counters: Counters,
    /// How old a flash is when it is first heard, by the clock of whoever handed it over.
    pub flash_delay: Histogram,
    pub tracker: TaskTracker,
    pub stop: CancellationToken,
    pub flashes: Mutex<Flashes>,
    pub join: Gate,
    pub rng: Mutex<Rng>,
    pub greetings: Arc<Semaphore>,
    pub relays: Arc<Semaphore>,
    started: Instant,
}

/// The parts that `Net::bind` brings.
pub(super) struct Parts {
    pub config: NetConfig,
    pub identity: Arc<Identity>,
    pub admission: Arc<dyn Admission>,
    pub directory: Arc<dyn Directory>,
    pub endpoint: quinn::Endpoint,
    pub client: quinn::ClientConfig,
    pub seed: u64,
}

impl Shared {
    pub fn new(parts: Parts) -> (Arc<Self>, Arrivals) {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let (inbox, receiver) = Inbox::new(parts.config.inbox_bytes, stop.clone());
        let shared = Self {
            pool: Pool::new(parts.identity.name().clone()),
            inbox,
            config: parts.config,
            identity: parts.identity,
            admission: parts.admission,
            directory: parts.directory,
            endpoint: parts.endpoint,
            client: ArcSwap::from_pointee(parts.client),
            counters: Counters::default(),
            flash_delay: Histogram::new([
                0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 1.0, 4.0,
            ]),
            tracker,
            stop,
            flashes: Mutex::default(),
            join: Gate::default(),
            rng: Mutex::new(Rng::new(parts.seed)),
            greetings: Arc::new(Semaphore::new(GREETINGS_MAX)),
            relays: Arc::new(Semaphore::new(RELAYED_REQUESTS_MAX)),
            started: Instant::now(),
        };
        (Arc::new(shared), receiver)
    }

    pub fn me(&self) -> &PeerName {
        self.identity.name()
    }

    /// This process's clock, for ages between neighbours.
    pub fn clock_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What this peer says of itself.
    pub fn hello(&self) -> Hello {
        Hello {
            wire_min: codec::WIRE,
            wire_max: codec::WIRE,
            name: self.me().clone(),
            store: self.config.store,
            boot: self.config.boot,
            clock_ms: self.clock_ms(),
            extra: self.extra(),
        }
    }

    fn extra(&self) -> BTreeMap<String, Vec<u8>> {
        let line = self.admission.line(self.me()).map(|line| (EXTRA_LINE.to_owned(), line));
        [EXTRA_DISK, EXTRA_PASS].map(|key| (key.to_owned(), Vec::new())).into_iter().chain(line).collect()
    }

    /// Proves this peer's name on one connection.
    pub fn proof(&self, connection: &quinn::Connection) -> Option<Proof> {
        let binding = tls::channel_binding(connection)?;
        let signature = self.identity.sign_bytes(HELLO_CONTEXT, &binding);
        Some(Proof { certificate: self.identity.issued().named, signature })
    }

    /// Checks such a proof.
    pub fn check(&self, connection: &quinn::Connection, proof: &Proof) -> Result<certs::Proven, String> {
        let certificate = rustls_pki_types::CertificateDer::from(proof.certificate.as_slice());
        let proven = self.identity.prove(&certificate).map_err(|e| e.to_string())?;
        let binding = tls::channel_binding(connection).ok_or("no channel binding")?;
        if !proven.key.verify_bytes(HELLO_CONTEXT, &binding, &proof.signature) {
            return Err("its signature is not of this connection".into());
        }
        Ok(proven)
    }

    /// Whether a proven peer may have a link; the text is for it to read.
    pub fn admits(&self, hello: &Hello) -> Result<(), String> {
        if hello.name == *self.me() {
            return Err(format!("{} is this peer's own name", hello.name));
        }
        if hello.wire_min > codec::WIRE || hello.wire_max < codec::WIRE {
            return Err(format!(
                "wire versions {:#06x} to {:#06x} do not include {:#06x}",
                hello.wire_min,
                hello.wire_max,
                codec::WIRE
            ));
        }
        if self.pool.blocked(&hello.name) {
            return Err("blocked for a test".into());
        }
        match hello.extra.get(EXTRA_LINE) {
            Some(line) => self.admission.admitted_with(&hello.name, &hello.store, line)?,
            None => self.admission.admitted(&hello.name, &hello.store)?,
        }
        self.pool.refuses(hello)
    }

    /// Takes a new link into the pool and starts its tasks.
    pub fn add_link(self: &Arc<Self>, met: Met, control: quinn::RecvStream) -> Result<(), String> {
        let connection = met.connection.clone();
        let link = Link::new(met, self);
        let taken = self.pool.add(&link, self.config.linger.to_std()).inspect_err(|why| {
            self.counters.refused.add(1);
            link.close(close::REFUSED, why);
        })?;
        tls::widen(&connection);
        self.counters.links_up.add(1);
        info!(peer = %link.peer, address = %connection.remote_address(), dialled = link.dialled, "link up");
        for old in taken.outdated {
            old.close(close::RETIRED, "an older start of this peer");
        }
        if let Some(loser) = taken.loser {
            debug!(peer = %loser.peer, dialled = loser.dialled, "one of two connections is retired");
            self.tracker.spawn(retire(self.clone(), loser));
        }
        self.tracker.spawn(receive::run(self.clone(), link, control));
        Ok(())
    }

    /// Sends a control frame to a neighbour.
    pub fn control(self: &Arc<Self>, link: &Arc<Link>, control: &Control) {
        if let Some(frame) = self.frame(Kind::Control, control) {
            link.push(self, Lane::Control, vec![Item { bytes: frame, until: None }]);
        }
    }

    /// A value as a frame; a value that does not fit is a bug that is logged, not a crash.
    pub fn frame<T: Serialize>(&self, kind: Kind, value: &T) -> Option<bytes::Bytes> {
        match codec::encode(value).and_then(|payload| codec::frame(kind, &payload)) {
            Ok(frame) => Some(frame.into()),
            Err(error) => {
                warn!(?kind, %error, "a frame was not sent");
                None
            }
        }
    }

    /// Closes a link whose other end does not keep to the protocol.
    pub fn fault(&self, link: &Link, error: &FrameError) {
        if let FrameError::Garbage(error) = error {
            self.counters.garbage.add(1);
            warn!(peer = %link.peer, %error, "garbage on a link: closed");
            link.close(close::GARBAGE, "garbage");
        }
    }

    /// Takes renewed certificates on disk and into use: new handshakes show them, standing links hear of them.
    pub fn install(self: &Arc<Self>, issued: Issued) -> Result<(), NetError> {
        self.identity.install(issued)?;
        self.endpoint.set_server_config(Some(tls::server_config(&self.identity, &self.config)?));
        self.client.store(Arc::new(tls::client_config(&self.identity, &self.config)?));
        self.counters.renewals.add(1);
        for link in self.pool.all_links() {
            if let Some(proof) = self.proof(&link.connection) {
                self.control(&link, &Control::Renewed(proof));
            }
        }
        Ok(())
    }
}

/// The loser of a simultaneous open is read a little longer, so that nothing in flight is lost.
async fn retire(shared: Arc<Shared>, loser: Arc<Link>) {
    tokio::select! {
        biased;
        () = loser.stop.cancelled() => {}
        () = tokio::time::sleep(shared.config.linger.to_std()) => {
            if !shared.pool.is_first(&loser) {
                loser.close(close::RETIRED, "another connection is kept");
            }
        }
    }
}
