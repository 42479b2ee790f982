//! Whole meshes in one process on loopback, and hand-made peers that do not keep to the protocol.

mod links;
mod mesh;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;

use super::certs;
use super::codec::{self, Kind};
use super::identity::LIFETIME;
use super::shared::lock;
use super::wire::{self, Greeting, HELLO_BYTES_MAX, Hello};
use super::*;
use crate::base::{JobId, PeerName, Span, StoreId};
use crate::core::message::Message;

/// Failure bound of every wait.
const LIMIT: Duration = Duration::from_secs(30);

fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

fn store(n: u8) -> StoreId {
    StoreId([n; 16])
}

fn message(n: u8) -> Message {
    Message::Locate { job: JobId([n; 20]) }
}

/// Who is a member, with which disk, and where.
#[derive(Default)]
struct Book {
    addresses: Mutex<BTreeMap<PeerName, SocketAddr>>,
    stores: Mutex<BTreeMap<PeerName, StoreId>>,
}

impl Directory for Book {
    fn addresses(&self, name: &PeerName) -> Vec<SocketAddr> {
        lock(&self.addresses).get(name).copied().into_iter().collect()
    }
}
impl Admission for Book {
    fn admitted(&self, name: &PeerName, store: &StoreId) -> Result<(), String> {
        match lock(&self.stores).get(name) {
            Some(known) if known == store => Ok(()),
            Some(_) => Err(format!("{name} was admitted with another disk")),
            None => Err(format!("{name} is not a member")),
        }
    }
}

struct Peer {
    net: Net,
    incoming: Arrivals,
    folder: tempfile::TempDir,
}

impl Peer {
    async fn next(&mut self) -> Incoming {
        timeout(LIMIT, self.incoming.recv()).await.expect("in time").expect("the peer runs")
    }
    fn name(&self) -> &PeerName {
        self.net.identity().name()
    }
    fn count(&self, counter: &str) -> u64 {
        self.net.counters()[counter]
    }
    /// Waits until the set of direct links has this size.
    async fn linked(&self, count: usize) {
        let mut watch = self.net.watch_connected();
        let reached = timeout(LIMIT, watch.wait_for(|now| now.len() == count)).await;
        assert!(reached.is_ok(), "{} has {:?}: {:?}", self.name(), self.net.connected(), self.net.troubles());
    }
}

/// Peers that share a trust root.
struct Mesh {
    book: Arc<Book>,
    root: Arc<Identity>,
    _root_folder: tempfile::TempDir,
    tune: fn(&mut NetConfig),
    lifetime: Span,
}

impl Mesh {
    fn new(tune: fn(&mut NetConfig)) -> Self {
        Self::living(tune, LIFETIME)
    }
    fn living(tune: fn(&mut NetConfig), lifetime: Span) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let root = Identity::create_mesh(folder.path(), &name("root"), LIFETIME).expect("made");
        Self { book: Arc::default(), root: Arc::new(root), _root_folder: folder, tune, lifetime }
    }

    /// An identity under the mesh's key; with that key itself or without.
    fn identity(&self, text: &str, with_key: bool) -> (Identity, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("temp");
        let key = Identity::joining_key(folder.path()).expect("made");
        let now = crate::base::WallTime(certs::now());
        let issued = self.root.authority().issue(&key, &name(text), now, self.lifetime).expect("signs");
        let ca_key = self.root.ca_key().filter(|_| with_key);
        let identity =
            Identity::join(folder.path(), self.root.ca_certificate(), ca_key, issued, self.lifetime);
        (identity.expect("joins"), folder)
    }

    fn peer(&self, text: &str, disk: u8) -> Peer {
        let (identity, folder) = self.identity(text, true);
        lock(&self.book.stores).insert(name(text), store(disk));
        self.start(identity, folder, disk, 1)
    }

    fn start(&self, identity: Identity, folder: tempfile::TempDir, disk: u8, boot: u64) -> Peer {
        let mut config = NetConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), store(disk), boot);
        config.probe_every = Span::ZERO;
        config.linger = Span::millis(500);
        config.backoff_min = Span::millis(50);
        (self.tune)(&mut config);
        let book = self.book.clone();
        let (net, incoming) =
            Net::bind(config, Arc::new(identity), book.clone(), book.clone()).expect("binds");
        lock(&book.addresses).insert(net.identity().name().clone(), net.local_addr());
        Peer { net, incoming, folder }
    }

    fn peers<const N: usize>(&self) -> [Peer; N] {
        let peers = std::array::from_fn(|i| self.peer(&format!("p{i:02}"), i as u8));
        let members: Vec<PeerName> = lock(&self.book.stores).keys().cloned().collect();
        for peer in &peers {
            peer.net.set_members(members.clone());
        }
        peers
    }
}

/// A condition that no event announces.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let met = timeout(LIMIT, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(met.await.is_ok(), "{what}");
}

/// A proven member that speaks by hand.
struct ByHand {
    _endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
}

impl ByHand {
    async fn connect(identity: &Identity, to: &Peer) -> Self {
        let mut endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("binds");
        let config = tls::client_config(identity, &to.net.shared.config).expect("config");
        endpoint.set_default_client_config(config);
        let connecting = endpoint.connect(to.net.local_addr(), certs::DNS_NAME).expect("address");
        let connection = connecting.await.expect("TLS");
        let (send, recv) = connection.open_bi().await.expect("a stream");
        Self { _endpoint: endpoint, connection, send, recv }
    }

    /// With the hello done.
    async fn linked(identity: &Identity, disk: u8, to: &Peer) -> Self {
        let mut hand = Self::connect(identity, to).await;
        let hello = Hello {
            wire_min: codec::WIRE,
            wire_max: codec::WIRE,
            name: identity.name().clone(),
            store: store(disk),
            boot: 1,
            clock_ms: 1_000_000,
            extra: BTreeMap::new(),
        };
        hand.greet(&Greeting::Call(hello)).await;
        let welcome =
            wire::read_frame(&mut hand.recv, Kind::Hello, HELLO_BYTES_MAX).await.expect("a welcome");
        let welcome = codec::decode(&welcome, HELLO_BYTES_MAX).expect("reads");
        assert!(matches!(welcome, Greeting::Welcome(..)), "{welcome:?}");
        hand.greet(&Greeting::Ready).await;
        hand
    }

    async fn greet(&mut self, greeting: &Greeting) {
        wire::write_value(&mut self.send, Kind::Hello, greeting).await.expect("writes");
    }

    async fn uni(&self, bytes: &[u8]) {
        let mut stream = self.connection.open_uni().await.expect("a stream");
        stream.write_all(bytes).await.expect("writes");
        stream.finish().expect("open");
    }

    /// The code it was closed with.
    async fn closed(&self) -> u64 {
        match timeout(LIMIT, self.connection.closed()).await.expect("closed in time") {
            quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }
}
