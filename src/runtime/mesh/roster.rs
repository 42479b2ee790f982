//! What the transport asks of the member list: whom to let in, and where to find whom.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::base::{PeerName, StoreId};
use crate::runtime::members::{MemberList, Members, Merge, SignedEntry};
use crate::transport::{Admission, Directory};

/// The member list in the form of the transport's callbacks. Both answer from memory.
pub struct Roster {
    members: Arc<Members>,
    resolved: ArcSwap<HashMap<PeerName, Vec<SocketAddr>>>,
}

impl Roster {
    /// Over a member list; numeric addresses are known at once.
    pub fn new(members: Arc<Members>) -> Arc<Self> {
        let numeric = |list: &MemberList| -> HashMap<PeerName, Vec<SocketAddr>> {
            let of = |addresses: &[String]| addresses.iter().filter_map(|a| a.parse().ok()).collect();
            list.members().map(|e| (e.name.clone(), of(&e.addresses))).collect()
        };
        let resolved = ArcSwap::from_pointee(numeric(&members.list()));
        Arc::new(Self { members, resolved })
    }

    /// Looks up every address of every member again; a host that does not resolve keeps what it had.
    pub(super) async fn resolve(&self) {
        let list = self.members.list();
        let before = self.resolved.load_full();
        let mut after = HashMap::new();
        for entry in list.members() {
            let mut found = Vec::new();
            for address in &entry.addresses {
                match address.parse() {
                    Ok(addr) => found.push(addr),
                    Err(_) => {
                        let looked =
                            tokio::time::timeout(LOOKUP, tokio::net::lookup_host(address.as_str())).await;
                        match looked {
                            Ok(Ok(addrs)) => found.extend(addrs.take(ADDRS_MAX)),
                            _ => tracing::debug!(peer = %entry.name, %address, "cannot be resolved now"),
                        }
                    }
                }
            }
            if found.is_empty() {
                found = before.get(&entry.name).cloned().unwrap_or_default();
            }
            found.truncate(ADDRS_MAX);
            after.insert(entry.name.clone(), found);
        }
        self.resolved.store(Arc::new(after));
    }

    /// Some member has an address that needs a look-up.
    pub(super) fn has_hosts(&self) -> bool {
        self.members.list().members().any(|e| e.addresses.iter().any(|a| a.parse::<SocketAddr>().is_err()))
    }
}

const LOOKUP: std::time::Duration = std::time::Duration::from_secs(3);
const ADDRS_MAX: usize = 16;

impl Admission for Roster {
    /// A name that is not on the list may come: its certificate proves that a member admitted it, and
    /// this peer has only not heard of it yet. Its own list will say so; a removal that is known wins.
    fn admitted(&self, name: &PeerName, store: &StoreId) -> Result<(), String> {
        match self.members.list().entry(name) {
            Some(entry) if entry.removed => {
                Err(format!("{name} was removed from this mesh: join again with a token"))
            }
            Some(entry) if entry.store != *store => {
                Err(format!("{name} was admitted with another disk: remove it and join again with a token"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A peer whose store was an older copy of itself begins a new one and signs its new line itself; it is the
    /// only one who can bring it.
    fn admitted_with(&self, name: &PeerName, store: &StoreId, line: &[u8]) -> Result<(), String> {
        let refused = match self.admitted(name, store) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        let line =
            serde_json::from_slice::<SignedEntry>(line).ok().and_then(|line| self.members.verify(line).ok());
        let Some(line) = line else { return Err(refused) };
        let newer = self.members.list().would_take(&line) == Merge::Taken
            && line.entry().is_some_and(|e| e.name == *name && e.store == *store && !e.removed);
        if !newer {
            return Err(refused);
        }
        let members = self.members.clone();
        // It writes to the disk; this call must not wait for it.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = members.offer(vec![line]) {
                tracing::error!("a member's new line was not kept: {error}");
            }
        });
        Ok(())
    }

    fn line(&self, name: &PeerName) -> Option<Vec<u8>> {
        self.members.list().line(name).and_then(|line| serde_json::to_vec(line).ok())
    }
}

impl Directory for Roster {
    fn addresses(&self, name: &PeerName) -> Vec<SocketAddr> {
        self.resolved.load().get(name).cloned().unwrap_or_default()
    }
}
