//! Flash: to every linked peer at once, by a detour to those who do not answer, heard once.
//!
//! The origin sends to everybody that it is linked to. Whom that cannot reach, two others are asked to tell: at once
//! where there is no link, and after a moment where nothing acknowledged the flash (a pair that was cut has links on
//! both sides until they have been silent for long enough). A receiver passes a flash on only to somebody whom the
//! origin does not seem to know of. So a flash costs one message per peer; when every receiver passed each on to
//! three others, four fifths of the work was copies, and in a mesh of many peers on few cores everybody waited for
//! it. Peers of an older build still do that, and what they pass on is heard as ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::api::Incoming;
use super::codec::{self, CodecError, Kind};
use super::inbox::Room;
use super::link::{Item, Lane, Link};
use super::shared::{Shared, lock};
use super::wire::{Control, FlashFrame, FrameError};
use crate::base::PeerName;
use crate::core::api::Flash;

/// Flashes of one origin that may overtake each other.
const WINDOW: u64 = 1_024;
/// Whoever has not acknowledged a flash by then is told by others: the time depends on the slowest link, between these.
const CONFIRM_AFTER: Duration = Duration::from_millis(200);
const CONFIRM_AT_LATEST: Duration = Duration::from_millis(1_000);
/// QUIC may hold an acknowledgement back for this long.
const ACK_DELAY: Duration = Duration::from_millis(50);
/// Peers that others are asked to tell, for one flash at one time.
const DETOURS_MAX: usize = 16;
/// Peers that are asked to tell one.
const RELAYS_ASKED: usize = 2;
/// Largest flash.
const FLASH_BYTES_MAX: usize = 64 * 1024;

/// What was sent and heard.
#[derive(Debug, Default)]
pub(super) struct Flashes {
    sequence: u64,
    heard: BTreeMap<PeerName, Heard>,
}

/// A sliding window over the sequence numbers of one origin's boot.
#[derive(Debug, Default)]
struct Heard {
    incarnation: u64,
    top: u64,
    seen: BTreeSet<u64>,
}

impl Heard {
    /// True the first time.
    fn first(&mut self, incarnation: u64, sequence: u64) -> bool {
        if incarnation < self.incarnation {
            return false;
        }
        if incarnation > self.incarnation {
            *self = Self { incarnation, ..Self::default() };
        }
        if sequence.saturating_add(WINDOW) <= self.top || !self.seen.insert(sequence) {
            return false;
        }
        self.top = self.top.max(sequence);
        self.seen = self.seen.split_off(&self.top.saturating_sub(WINDOW - 1));
        true
    }
}

impl Flashes {
    fn first(&mut self, frame: &FlashFrame) -> bool {
        self.heard.entry(frame.origin.clone()).or_default().first(frame.incarnation, frame.sequence)
    }
    /// Forgets origins that are gone.
    pub fn retain(&mut self, keep: impl Fn(&PeerName) -> bool) {
        self.heard.retain(|origin, _| keep(origin));
    }
}

/// The next flash of this peer.
pub(super) fn frame(shared: &Shared, flash: Flash) -> FlashFrame {
    let sequence = {
        let mut flashes = lock(&shared.flashes);
        flashes.sequence += 1;
        flashes.sequence
    };
    FlashFrame {
        origin: shared.me().clone(),
        incarnation: shared.config.boot,
        sequence,
        hops: 0,
        stamp_ms: shared.clock_ms(),
        left_ms: shared.config.flash_ttl.as_millis(),
        flash,
    }
}

/// Sends one to every linked peer.
pub(super) fn send(shared: &Arc<Shared>, flash: Flash) {
    let frame = frame(shared, flash);
    let links = shared.pool.links();
    let before: Vec<u64> = links.iter().map(|link| link.acks()).collect();
    push(shared, &frame, &links);
    let mut linked: BTreeSet<&PeerName> = links.iter().map(|link| &link.peer).collect();
    linked.insert(shared.me());
    let members = shared.pool.members();
    let apart: Vec<PeerName> = members.iter().filter(|peer| !linked.contains(peer)).cloned().collect();
    detour(shared, &frame, apart);
    let sent = links.into_iter().zip(before).collect();
    shared.tracker.spawn(confirm(shared.clone(), frame, sent));
}

/// Looks a moment later who has acknowledged anything since the flash was sent, and lets others tell the rest.
pub(super) async fn confirm(shared: Arc<Shared>, frame: FlashFrame, sent: Vec<(Arc<Link>, u64)>) {
    let slowest = sent.iter().map(|(link, _)| link.connection.rtt()).max().unwrap_or_default();
    let wait = (slowest * 2 + ACK_DELAY).clamp(CONFIRM_AFTER, CONFIRM_AT_LATEST);
    tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        () = tokio::time::sleep(wait) => {}
    }
    let silent = |(link, before): (Arc<Link>, u64)| {
        let heard = link.acks() > before;
        (!heard && !shared.pool.blocked(&link.peer)).then(|| link.peer.clone())
    };
    detour(&shared, &frame, sent.into_iter().filter_map(silent).collect());
}

/// Asks for each of these two peers that say that they reach it to pass the flash on.
fn detour(shared: &Arc<Shared>, frame: &FlashFrame, mut to: Vec<PeerName>) {
    // So many at once are this peer's own trouble, or all of them are gone: some of them, then.
    lock(&shared.rng).shuffle(&mut to);
    to.truncate(DETOURS_MAX);
    let mut asked: BTreeMap<PeerName, (Arc<Link>, Vec<PeerName>)> = BTreeMap::new();
    for peer in &to {
        let mut relays = shared.pool.relays_to(peer);
        relays.retain(|link| link.passes && !to.contains(&link.peer));
        lock(&shared.rng).shuffle(&mut relays);
        for link in relays.into_iter().take(RELAYS_ASKED) {
            asked.entry(link.peer.clone()).or_insert_with(|| (link, Vec::new())).1.push(peer.clone());
        }
    }
    let now = shared.clock_ms();
    let age = now.saturating_sub(frame.stamp_ms);
    if age >= frame.left_ms {
        return;
    }
    for (link, to) in asked.into_values() {
        shared.counters.flash_detours.add(to.len() as u64);
        let frame = FlashFrame { hops: 1, stamp_ms: now, left_ms: frame.left_ms - age, ..frame.clone() };
        shared.control(&link, &Control::Pass { frame: Box::new(frame), to });
    }
}

/// The origin of a flash asks this peer to pass it on.
pub(super) fn pass(
    shared: &Arc<Shared>,
    link: &Link,
    mut frame: FlashFrame,
    to: &[PeerName],
) -> Result<(), FrameError> {
    if frame.origin != link.peer || frame.hops != 1 || to.len() > DETOURS_MAX {
        return Err(CodecError::Malformed("a flash to be passed on that is not the asker's".into()).into());
    }
    let now = shared.clock_ms();
    let age = link.their_clock_ms(now).saturating_sub(frame.stamp_ms);
    let left = frame.left_ms.min(shared.config.flash_ttl.as_millis());
    if age >= left {
        shared.counters.flash_expired.add(1);
        return Ok(());
    }
    (frame.stamp_ms, frame.left_ms) = (now, left - age);
    let links: Vec<Arc<Link>> = to.iter().filter_map(|peer| shared.pool.link(peer)).collect();
    shared.counters.flash_forwarded.add(links.len() as u64);
    push(shared, &frame, &links);
    Ok(())
}

pub(super) fn push(shared: &Arc<Shared>, frame: &FlashFrame, links: &[Arc<Link>]) {
    let Some(bytes) = shared.frame(Kind::Flash, frame) else { return };
    let until = Some(Instant::now() + Duration::from_millis(frame.left_ms));
    for link in links {
        if !link.push(shared, Lane::Flash, vec![Item { bytes: bytes.clone(), until }]) {
            shared.counters.shed_flash.add(1);
        }
    }
}

/// One came in on a link.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    payload: &[u8],
    room: Room,
) -> Result<(), FrameError> {
    let mut frame: FlashFrame = codec::decode(payload, FLASH_BYTES_MAX)?;
    let direct = frame.hops == 0;
    if frame.hops > 1 || (direct && frame.origin != link.peer) {
        return Err(CodecError::Malformed("a flash with a false origin".into()).into());
    }
    let known = direct || shared.pool.members().contains(&frame.origin);
    if frame.origin == *shared.me() || !known {
        return Ok(());
    }
    // Its age by the clock of the peer that handed it over: a stream may lie for as long as a partition lasts.
    let now = shared.clock_ms();
    let age = link.their_clock_ms(now).saturating_sub(frame.stamp_ms);
    let left = frame.left_ms.min(shared.config.flash_ttl.as_millis());
    if age >= left {
        shared.counters.flash_expired.add(1);
        return Ok(());
    }
    if !lock(&shared.flashes).first(&frame) {
        shared.counters.flash_repeated.add(1);
        return Ok(());
    }
    shared.flash_delay.observe(age as f64 / 1e3);
    if direct {
        (frame.hops, frame.stamp_ms, frame.left_ms) = (1, now, left - age);
        let onward = onward(shared, link);
        shared.counters.flash_forwarded.add(onward.len() as u64);
        push(shared, &frame, &onward);
    }
    let item = Incoming::Flash { from: link.peer.clone(), origin: frame.origin, flash: frame.flash };
    shared.inbox.put(item, room).await;
    Ok(())
}

/// A few linked peers that the origin does not say it reaches. All who are linked to such a one see that: each goes
/// ahead so seldom that about `flash_fanout` do. An origin of an older build counts on being passed on in any case.
fn onward(shared: &Shared, origin: &Link) -> Vec<Arc<Link>> {
    // The common case first, and without a look at every link: each peer of the mesh does this for every flash.
    if origin.passes {
        let (connected, reach) = (shared.pool.connected(), lock(&origin.reach));
        if connected.difference(&reach).all(|peer| *peer == origin.peer) {
            return Vec::new();
        }
    }
    let mut links = shared.pool.links();
    links.retain(|link| link.peer != origin.peer);
    let all = links.len() as u64;
    let (reach, fanout) = (lock(&origin.reach).clone(), shared.config.flash_fanout);
    let mut rng = lock(&shared.rng);
    if origin.passes {
        links.retain(|link| !reach.contains(&link.peer) && rng.below(all) < fanout as u64);
    }
    rng.shuffle(&mut links);
    links.sort_by_key(|link| reach.contains(&link.peer));
    links.truncate(fanout);
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_heard_once_in_any_order() {
        let mut heard = Heard::default();
        assert!(heard.first(1, 1) && heard.first(1, 3) && heard.first(1, 2));
        assert!(!heard.first(1, 1) && !heard.first(1, 2) && !heard.first(1, 3));
        assert!(heard.first(1, 5_000) && !heard.first(1, 5_000));
        assert!(!heard.first(1, 5_000 - WINDOW), "too old to tell");
        assert!(heard.first(1, 5_001 - WINDOW));
        assert!(heard.first(2, 1), "a new boot counts anew");
        assert!(!heard.first(1, 9_999), "the old boot is over");
        assert!(heard.first(2, u64::MAX) && !heard.first(2, u64::MAX));
        assert!(heard.seen.len() as u64 <= WINDOW);
    }
}
