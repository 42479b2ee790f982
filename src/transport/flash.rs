//! Flash: to every linked peer at once, passed on once by each to a few others, heard once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::api::Incoming;
use super::codec::{self, CodecError, Kind};
use super::inbox::Room;
use super::link::{Item, Lane, Link};
use super::shared::{Shared, lock};
use super::wire::{FlashFrame, FrameError};
use crate::base::PeerName;
use crate::core::api::Flash;

/// Flashes of one origin that may overtake each other.
const WINDOW: u64 = 1_024;
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

/// Sends one to every linked peer.
pub(super) fn send(shared: &Arc<Shared>, flash: Flash) {
    let sequence = {
        let mut flashes = lock(&shared.flashes);
        flashes.sequence += 1;
        flashes.sequence
    };
    let frame = FlashFrame {
        origin: shared.me().clone(),
        incarnation: shared.config.boot,
        sequence,
        hops: 0,
        stamp_ms: shared.clock_ms(),
        left_ms: shared.config.flash_ttl.as_millis(),
        flash,
    };
    push(shared, &frame, &shared.pool.links());
}

fn push(shared: &Arc<Shared>, frame: &FlashFrame, links: &[Arc<Link>]) {
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

/// A few other peers, first those that the origin does not reach itself.
fn onward(shared: &Shared, origin: &Link) -> Vec<Arc<Link>> {
    let mut links = shared.pool.links();
    links.retain(|link| link.peer != origin.peer);
    lock(&shared.rng).shuffle(&mut links);
    let reach = lock(&origin.reach);
    links.sort_by_key(|link| reach.contains(&link.peer));
    links.truncate(shared.config.flash_fanout);
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
