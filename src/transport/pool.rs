//! One link per peer, keyed by its proven name: which is kept, whom to call, who is reached.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::link::Link;
use super::meter::Meter;
use super::shared::lock;
use super::wire::Hello;
use crate::base::{PeerName, StoreId};

/// A link that ends earlier was none.
const LIVED_MIN: Duration = Duration::from_secs(5);

/// Set of names, shared.
pub(super) type Names = Arc<BTreeSet<PeerName>>;

/// All that is known of the way to one peer.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The first is used; others are on their way out.
    links: Vec<Arc<Link>>,
    dial: Dial,
    pub meter: Meter,
}

/// What a peer hears whose identity another process uses, behind its name: that one started later,
pub const STARTED_SINCE: &str = " has started again since";
/// or has another disk.
pub const OTHER_DISK: &str = " is linked already with disk";

#[derive(Debug, Default)]
struct Dial {
    busy: bool,
    failures: u32,
    not_before: Option<Instant>,
    trouble: Option<String>,
}

impl Slot {
    /// Why a start of the peer may not have a link beside the ones that it has.
    fn refuses(&self, peer: &PeerName, boot: u64, store: &StoreId) -> Result<(), String> {
        for other in self.links.iter().filter(|other| other.alive()) {
            if other.boot > boot {
                return Err(format!("{peer}{STARTED_SINCE} (boot {})", other.boot));
            }
            if other.boot == boot && other.store != *store {
                return Err(format!("{peer}{OTHER_DISK} {}", other.store));
            }
        }
        Ok(())
    }
}

/// What follows from taking a link.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Of an older start of the peer: to be closed now.
    pub outdated: Vec<Arc<Link>>,
    /// To be closed after lingering.
    pub loser: Option<Arc<Link>>,
}

/// A peer to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub peer: PeerName,
    /// It failed before.
    pub again: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Pool {
    me: PeerName,
    slots: Mutex<BTreeMap<PeerName, Slot>>,
    members: ArcSwap<BTreeSet<PeerName>>,
    blocked: Mutex<BTreeSet<PeerName>>,
    connected: watch::Sender<Names>,
    /// Something about dials changed.
    pub wake: Notify,
}

impl Pool {
    pub fn new(me: PeerName) -> Self {
        Self {
            me,
            slots: Mutex::default(),
            members: ArcSwap::default(),
            blocked: Mutex::default(),
            connected: watch::Sender::default(),
            wake: Notify::new(),
        }
    }

    /// The link to use for a peer.
    pub fn link(&self, peer: &PeerName) -> Option<Arc<Link>> {
        lock(&self.slots).get(peer)?.links.iter().find(|link| link.alive()).cloned()
    }
    /// The link to use, for every peer that has one.
    pub fn links(&self) -> Vec<Arc<Link>> {
        let slots = lock(&self.slots);
        slots.values().filter_map(|slot| slot.links.iter().find(|link| link.alive()).cloned()).collect()
    }
    /// Those on their way out too.
    pub fn all_links(&self) -> Vec<Arc<Link>> {
        lock(&self.slots).values().flat_map(|slot| slot.links.iter().cloned()).collect()
    }
    pub fn is_first(&self, link: &Arc<Link>) -> bool {
        let slots = lock(&self.slots);
        let first = slots.get(&link.peer).and_then(|slot| slot.links.first());
        first.is_some_and(|first| Arc::ptr_eq(first, link))
    }
    /// Peers that have said, over a direct link, that they reach this one.
    pub fn relays_to(&self, peer: &PeerName) -> Vec<Arc<Link>> {
        self.links().into_iter().filter(|link| lock(&link.reach).contains(peer)).collect()
    }

    pub fn members(&self) -> Names {
        self.members.load_full()
    }
    pub fn connected(&self) -> Names {
        self.connected.borrow().clone()
    }
    pub fn watch(&self) -> watch::Receiver<Names> {
        self.connected.subscribe()
    }
    /// Works on what is measured about one peer.
    pub fn meter<T>(&self, peer: &PeerName, work: impl FnOnce(&mut Meter) -> T) -> Option<T> {
        lock(&self.slots).get_mut(peer).map(|slot| work(&mut slot.meter))
    }
    /// The same for all peers that were ever linked.
    pub fn meters<T>(&self, mut work: impl FnMut(&PeerName, &mut Meter, Option<&Arc<Link>>) -> T) -> Vec<T> {
        let mut slots = lock(&self.slots);
        slots.iter_mut().map(|(peer, slot)| work(peer, &mut slot.meter, slot.links.first())).collect()
    }

    pub fn blocked(&self, peer: &PeerName) -> bool {
        lock(&self.blocked).contains(peer)
    }
    pub fn set_blocked(&self, peer: &PeerName, blocked: bool) {
        if blocked {
            lock(&self.blocked).insert(peer.clone());
        } else {
            lock(&self.blocked).remove(peer);
        }
        self.wake.notify_one();
    }

    /// Whom to keep links to.
    pub fn set_members(&self, members: Vec<PeerName>, stagger: Duration) {
        let members: BTreeSet<PeerName> = members.into_iter().collect();
        let mut slots = lock(&self.slots);
        slots.retain(|peer, slot| members.contains(peer) || !slot.links.is_empty() || slot.dial.busy);
        for peer in members.iter().filter(|peer| **peer != self.me) {
            slots.entry(peer.clone()).or_insert_with(|| Slot {
                dial: Dial { not_before: self.first_dial(peer, stagger), ..Dial::default() },
                ..Slot::default()
            });
        }
        drop(slots);
        self.members.store(Arc::new(members));
        self.wake.notify_one();
    }

    /// The lower name calls first; the other one only if that did not come.
    fn first_dial(&self, peer: &PeerName, stagger: Duration) -> Option<Instant> {
        (self.me > *peer).then(|| Instant::now() + stagger)
    }

    /// Decides about a link whose hello is done. Of two made at about the same time, both ends keep the
    /// one that the lower name dialled; a later one means that its peer has lost the earlier one.
    pub fn add(&self, link: &Arc<Link>, young: Duration) -> Result<Taken, String> {
        let mut slots = lock(&self.slots);
        let slot = slots.entry(link.peer.clone()).or_default();
        slot.refuses(&link.peer, link.boot, &link.store)?;
        let mut taken = Taken::default();
        let (kept, outdated) = slot.links.drain(..).partition(|other| other.boot == link.boot);
        (slot.links, taken.outdated) = (kept, outdated);
        let first = slot.links.iter().find(|other| other.alive());
        let keep_old = first.is_some_and(|old| {
            let lower_dialled = |link: &Link| link.dialled == (self.me < link.peer);
            old.since.elapsed() <= young && lower_dialled(old) && !lower_dialled(link)
        });
        if keep_old {
            slot.links.push(link.clone());
            taken.loser = Some(link.clone());
        } else {
            taken.loser = first.cloned();
            slot.links.insert(0, link.clone());
        }
        slot.dial.trouble = None;
        self.publish(&slots);
        Ok(taken)
    }

    /// Whether the links that stand leave room for one of this start of a peer; asked before it is
    /// welcomed, so that it hears the reason.
    pub fn refuses(&self, hello: &Hello) -> Result<(), String> {
        let slots = lock(&self.slots);
        slots.get(&hello.name).map_or(Ok(()), |slot| slot.refuses(&hello.name, hello.boot, &hello.store))
    }

    /// Forgets a link that ended. One that did not live long counts as a failed dial, so that two peers
    /// that do not get on do not call each other without a pause.
    pub fn remove(
        &self,
        link: &Arc<Link>,
        why: Option<String>,
        stagger: Duration,
        pause: impl FnOnce(u32) -> Duration,
    ) {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get_mut(&link.peer) {
            slot.links.retain(|other| !Arc::ptr_eq(other, link));
            if slot.links.is_empty() {
                let short = link.since.elapsed() < LIVED_MIN;
                slot.dial.failures = if short { slot.dial.failures.saturating_add(1) } else { 0 };
                let paused = short.then(|| Instant::now() + pause(slot.dial.failures));
                slot.dial.not_before = paused.max(self.first_dial(&link.peer, stagger));
                slot.dial.trouble = why;
            }
        }
        self.publish(&slots);
        drop(slots);
        self.wake.notify_one();
    }

    fn publish(&self, slots: &BTreeMap<PeerName, Slot>) {
        let now: BTreeSet<PeerName> =
            slots.iter().filter(|(_, slot)| !slot.links.is_empty()).map(|(peer, _)| peer.clone()).collect();
        self.connected.send_if_modified(|before| {
            let changed = **before != now;
            if changed {
                *before = Arc::new(now);
            }
            changed
        });
    }

    /// Peers to call now (they count as being called), and when to look again.
    pub fn due(&self) -> (Vec<Due>, Option<Instant>) {
        let (now, members) = (Instant::now(), self.members());
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (peer, slot) in lock(&self.slots).iter_mut() {
            if !slot.links.is_empty() || slot.dial.busy || !members.contains(peer) || self.blocked(peer) {
                continue;
            }
            match slot.dial.not_before.filter(|at| *at > now) {
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {
                    slot.dial.busy = true;
                    due.push((slot.dial.failures, peer.clone()));
                }
            }
        }
        due.sort();
        (due.into_iter().map(|(failures, peer)| Due { peer, again: failures > 0 }).collect(), next)
    }

    /// A dial is over. A failed one is tried again after a growing pause.
    pub fn dialled(&self, peer: &PeerName, failed: Option<String>, pause: impl FnOnce(u32) -> Duration) {
        if let Some(slot) = lock(&self.slots).get_mut(peer) {
            slot.dial.busy = false;
            if failed.is_some() && slot.links.is_empty() {
                slot.dial.failures = slot.dial.failures.saturating_add(1);
                slot.dial.not_before = Some(Instant::now() + pause(slot.dial.failures));
                slot.dial.trouble = failed;
            }
        }
        self.wake.notify_one();
    }

    /// Why the last dial of this one failed.
    pub fn trouble(&self, peer: &PeerName) -> Option<String> {
        lock(&self.slots).get(peer).and_then(|slot| slot.dial.trouble.clone())
    }

    /// Why the last dial failed, for every member that has no link.
    pub fn troubles(&self) -> Vec<(PeerName, String)> {
        let slots = lock(&self.slots);
        let failed = slots.iter().filter(|(_, slot)| slot.links.is_empty());
        failed.filter_map(|(peer, slot)| Some((peer.clone(), slot.dial.trouble.clone()?))).collect()
    }
}
