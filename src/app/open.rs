//! A peer's state folder: store, identity, member list; made at the first start, joined with a token,
//! or read again.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use ring::rand::SecureRandom;

use super::{Settings, quarantine};
use crate::base::PeerName;
use crate::core::{DiskImage, Table, Write};
use crate::runtime::members::{Candidate, DurableKv, Members, MembersError};
use crate::runtime::mesh::Roster;
use crate::runtime::store::{Store, StoreError};
use crate::runtime::tokens::{JoinError, Joiner, join};
use crate::transport::{Identity, IdentityError};

/// What the operator asks for at the first start.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// Name; none means the host's.
    pub name: Option<PeerName>,
    /// Token and `host:port` of the peer that made it; none starts a mesh of one. Looked up at the first start only: a
    /// command line that stays may name a host that is long gone.
    pub join: Option<(String, String)>,
}

/// Why a state folder cannot be used. Nothing in it was changed, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Keys and certificates.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// Joining.
    #[error("cannot join: {0}")]
    Join(#[from] JoinError),
    /// The host to join at.
    #[error(
        "cannot join: {0} is not found: {1}; name it by its address, or see to this machine's name resolution"
    )]
    Lookup(String, io::Error),
    /// The member list.
    #[error("member list: {0}")]
    Members(#[from] MembersError),
    /// Rows that cannot be read.
    #[error("the store's rows: {0}")]
    Rows(String),
    /// The folder belongs to a peer of another name.
    #[error("this state folder belongs to {0}, not to {1}: give it its own --state")]
    Name(PeerName, PeerName),
    /// Keys without a store: the disk with the records was lost. A new store under the old name would be a mesh
    /// of its own that no other member talks to, and nobody would be told.
    #[error(
        "the state folder has the keys of {0} but no store: its records are lost; remove the member {0} at another peer (`starling member remove --force {0}`), then start with an empty state folder and --join"
    )]
    StoreLost(PeerName),
    /// The store is an older copy of itself, and this peer may not sign a line for a new one.
    #[error(
        "{1}; the store was left as it is. {0} was admitted without the right to admit, so it cannot begin anew by itself: remove the member {0} at another peer (`starling member remove --force {0}`), then start with an empty state folder and --join"
    )]
    RolledBack(PeerName, String),
    /// Numbers of starts are used up.
    #[error(
        "{0} was admitted {1} times and started {2} times: more starts than can be told apart; join under another name"
    )]
    Worn(PeerName, u64, u64),
    /// No socket.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// No randomness.
    #[error("the system gives no randomness")]
    Random,
}

/// What a start has in hand before it touches the network.
pub struct Opened {
    /// The disk.
    pub store: Store,
    /// What it held.
    pub image: DiskImage,
    /// Small rows of members and tokens.
    pub kv: Arc<StoreKv>,
    /// Name, key, trust root.
    pub identity: Arc<Identity>,
    /// The member list.
    pub members: Arc<Members>,
    /// Its form for the transport.
    pub roster: Arc<Roster>,
    /// Where to listen; the port is a real one.
    pub listen: SocketAddr,
    /// This start's number, above that of every earlier start under this name, on whatever disk.
    pub boot: u64,
    /// What people should know of the disk.
    pub disk_note: Option<String>,
}

/// Bits of a start's number that count the starts of one disk,
const BOOT_BITS: u32 = 20;
/// and those that count the admissions and removals of the name. The core packs the whole into 32.
const GENERATION_BITS: u32 = 12;

/// The number of a start. Gossip generations, links and flashes are told apart by (name, number), so a name that
/// is admitted again with an empty disk, whose own count begins anew, must not begin at 1 again: what it says
/// would be taken for what it said before. (The core's own numbers are kept apart by the disk's id, too.)
fn boot_number(name: &PeerName, generation: u64, boot: u64) -> Result<u64, OpenError> {
    let admitted = generation.saturating_sub(1);
    if admitted >> GENERATION_BITS != 0 || boot >> BOOT_BITS != 0 {
        return Err(OpenError::Worn(name.clone(), generation, boot));
    }
    Ok(admitted << BOOT_BITS | boot)
}

/// 64 bits from the system, for the core's stream.
pub fn seed() -> Result<u64, OpenError> {
    let mut bytes = [0; 8];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| OpenError::Random)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Opens or makes a state folder, joining a mesh on the way where that is wished.
pub async fn open(settings: &Settings) -> Result<Opened, OpenError> {
    let state = settings.state.clone();
    // The store is made before the keys are, so keys alone are what is left of a peer.
    if !Store::is_at(&state)
        && let Ok(identity) = Identity::open(&settings.identity(), settings.certificate_lifetime)
    {
        return Err(OpenError::StoreLost(identity.name().clone()));
    }
    let (store, image) = tokio::task::spawn_blocking(move || Store::open(&state))
        .await
        .map_err(|e| OpenError::Rows(e.to_string()))??;
    let kv = Arc::new(StoreKv::new(store.clone(), &image));
    let listen = pick_port(settings.listen)?;
    let (folder, lifetime) = (settings.identity(), settings.certificate_lifetime);
    let (identity, lines) = match Identity::open(&folder, lifetime) {
        Ok(identity) => {
            if let Some(name) = settings.wish.name.clone().filter(|n| n != identity.name()) {
                return Err(OpenError::Name(identity.name().clone(), name));
            }
            (identity, Vec::new())
        }
        Err(IdentityError::Missing(_)) => {
            let name = settings.wish.name.clone().unwrap_or_else(host_name);
            match &settings.wish.join {
                None => (Identity::create_mesh(&folder, &name, lifetime)?, Vec::new()),
                Some((token, addr)) => {
                    let joiner = Joiner {
                        token,
                        addr: lookup(addr).await?,
                        folder: &folder,
                        name: &name,
                        store: store.id(),
                        addresses: addresses(settings, listen),
                        witness: settings.witness,
                        lifetime,
                    };
                    let joined = join(joiner).await?;
                    (joined.identity, joined.lines)
                }
            }
        }
        Err(other) => return Err(other.into()),
    };
    let identity = Arc::new(identity);
    let (rows, ca) = (kv.clone(), identity.ca_public());
    let replaced = quarantine::note_in(&image);
    let (signer, id, began_anew) = (identity.clone(), store.id(), replaced.is_some());
    let members = blocking(move || {
        let members = Members::load(rows, ca)?;
        members.offer(lines)?;
        if began_anew && members.list().member(signer.name()).is_some() {
            members.rehouse(signer.name(), id, &*signer)?;
        }
        Ok(members)
    })
    .await?;
    let members = Arc::new(members);
    let roster = Roster::new(members.clone());
    // The first member of a mesh puts itself on the list a little later, as the first of its name.
    let generation = members.list().entry(identity.name()).map_or(1, |e| e.generation);
    let boot = boot_number(identity.name(), generation, store.boot())?;
    let disk_note = replaced.and_then(|note| note.for_people(&settings.state));
    Ok(Opened { store, image, kv, identity, members, roster, listen, boot, disk_note })
}

/// Puts this peer's own line on the list: as the first member of a new mesh, or with new addresses.
pub async fn announce(settings: &Settings, opened: &Opened, quic: SocketAddr) -> Result<(), OpenError> {
    let addresses = addresses(settings, quic);
    let (identity, members) = (opened.identity.clone(), opened.members.clone());
    let (store, witness) = (opened.store.id(), settings.witness);
    if identity.ca_key().is_none() {
        return Ok(());
    }
    blocking(move || {
        let name = identity.name().clone();
        if members.list().entry(&name).is_none() {
            let me =
                Candidate { name, store, addresses, public_key: identity.public(), witness, can_admit: true };
            members.admit(me, &*identity)?;
        } else if members.list().member(&name).is_some() {
            members.readdress(&name, addresses, &*identity)?;
        }
        Ok(())
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MembersError> + Send + 'static,
) -> Result<T, OpenError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|e| OpenError::Rows(e.to_string()))?;
    Ok(done?)
}

fn addresses(settings: &Settings, listen: SocketAddr) -> Vec<String> {
    if !settings.advertise.is_empty() {
        // `host` alone means the port it listens on.
        let full = |a: &String| if a.contains(':') { a.clone() } else { format!("{a}:{}", listen.port()) };
        return settings.advertise.iter().map(full).collect();
    }
    if listen.ip().is_unspecified() {
        return vec![format!("{}:{}", host_text(), listen.port())];
    }
    vec![listen.to_string()]
}

async fn lookup(host: &str) -> Result<SocketAddr, OpenError> {
    let failed = |e| OpenError::Lookup(host.to_owned(), e);
    let found = tokio::net::lookup_host(host).await.map_err(failed)?.next();
    found.ok_or_else(|| failed(io::Error::other("it has no address")))
}

/// A joining peer says where it is reached before it listens, so port 0 becomes a real one now.
fn pick_port(listen: SocketAddr) -> Result<SocketAddr, OpenError> {
    if listen.port() != 0 {
        return Ok(listen);
    }
    let failed = |e| OpenError::Listen(listen, e);
    UdpSocket::bind(listen).and_then(|s| s.local_addr()).map_err(failed)
}

fn host_text() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The host's name as a peer name.
fn host_name() -> PeerName {
    let host = host_text().to_ascii_lowercase();
    let label: String = host
        .split('.')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(PeerName::LEN_MAX)
        .collect();
    let fallback = || PeerName::new("peer").expect("a valid name");
    PeerName::new(label.trim_matches('-')).unwrap_or_else(|_| fallback())
}

/// Rows of the store for members and tokens: read from memory, written through to the disk.
pub struct StoreKv {
    store: Store,
    rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl StoreKv {
    fn new(store: Store, image: &DiskImage) -> Self {
        let rows = image.tables.get(&Table::Runtime).cloned().unwrap_or_default();
        Self { store, rows: Mutex::new(rows) }
    }
}

impl DurableKv for StoreKv {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.rows.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }

    fn scan(&self, prefix: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let from = rows.range(prefix.to_vec()..).take_while(|(k, _)| k.starts_with(prefix));
        Ok(from.map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn put_all(&self, changed: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> io::Result<()> {
        // Held over the commit, so that memory and disk see the writes in one order.
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| Write {
            table: Table::Runtime,
            key: key.clone(),
            value: value.clone(),
        };
        self.store
            .commit_blocking(changed.iter().map(write).collect())
            .map_err(|e| io::Error::other(e.to_string()))?;
        for (key, value) in changed {
            match value {
                Some(value) => rows.insert(key, value),
                None => rows.remove(&key),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_comes_back_starts_above_all_its_earlier_starts() {
        let name = PeerName::new("a").expect("a name");
        let number = |generation, boot| boot_number(&name, generation, boot).ok();
        assert_eq!(number(1, 1), Some(1));
        assert!(number(3, 1) > number(1, (1 << BOOT_BITS) - 1), "admitted, removed, admitted again");
        assert_eq!((number(1, 1 << BOOT_BITS), number(1 + (1 << GENERATION_BITS), 1)), (None, None));
        assert!(number(1 << GENERATION_BITS, (1 << BOOT_BITS) - 1).is_some_and(|n| n <= u64::from(u32::MAX)));
    }

    #[tokio::test]
    async fn keys_whose_store_is_gone_start_no_mesh_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = Settings::new(folder.path().to_owned());
        let opened = open(&settings).await.expect("a first start");
        let name = opened.identity.name().clone();
        drop(opened);
        drop(open(&settings).await.expect("a second start"));
        for entry in std::fs::read_dir(folder.path()).expect("reads").flatten() {
            if entry.path() != settings.identity() {
                std::fs::remove_file(entry.path()).expect("a file of the store");
            }
        }
        // Each time, not only the first.
        for _ in 0..2 {
            let refused = open(&settings).await.err().expect("refused");
            assert!(matches!(&refused, OpenError::StoreLost(lost) if *lost == name), "{refused}");
        }
    }
}
