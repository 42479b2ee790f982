//! chitchat's transport: names instead of addresses, and never a wait.
//!
//! chitchat's loop awaits `send`, so a send that dials or queues without bound stalls all gossip.
//! Here it hands bytes to the link or drops them; the next round repeats what was lost.
//!
//! **Adaptive interval.** The interval of chitchat 0.11.2 is fixed in its configuration and nothing
//! public drives its rounds (`create_syn_message`, `process_message` and `update_nodes_liveness` are
//! crate-private). So chitchat ticks at the fast interval, which also keeps its failure detector
//! current, and [`Pace`] lets the opening messages of a round through only as often as it is time;
//! answers always pass. A skipped round costs one small digest in memory and nothing on the wire.
//!
//! **Load.** chitchat opens three exchanges in each round. While things change all three go out, unless earlier ones
//! were not answered yet: exchanges that overlap bring the same news several times, and the slower the machine
//! is, the more of them overlap. When nothing changes one does.
//!
//! **Urgent things first.** After a flash, what came in by gossip waits for a moment: where many peers share few cores,
//! all of them have heard the flash before any of them works on what can wait.
//!
//! **Size.** Every message carries a digest of all members, so a round costs in proportion to their number. The
//! interval grows with it: the bytes per second of one peer then stay about the same from a few dozen members on.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Serializable};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::base::PeerName;

/// Where gossip leaves this process.
pub trait GossipLink: Send + Sync + 'static {
    /// Hands one message over, without waiting; false if it was shed.
    fn send_gossip(&self, to: &PeerName, bytes: Bytes) -> bool;
}

/// Names by chitchat address.
pub type Names = HashMap<SocketAddr, PeerName>;

/// Decides which rounds go out.
#[derive(Debug)]
pub struct Pace {
    fast: Duration,
    slow: Duration,
    members: AtomicUsize,
    state: Mutex<PaceState>,
}

#[derive(Debug)]
struct PaceState {
    changed: Instant,
    /// When the messages of this round began, and how many more of them may go out.
    burst: Option<(Instant, usize)>,
    sent: Option<Instant>,
    /// Exchanges opened and not answered yet, and when the last of them was opened.
    open: usize,
    opened: Option<Instant>,
    forced: bool,
    /// Until when gossip makes way for the flash that came last.
    aside: Option<Instant>,
}

/// Gossip makes way for a flash for so long,
const ASIDE: Duration = Duration::from_millis(20);
/// and then not again for so long: flashes in a row must not stop it.
const ASIDE_PAUSE: Duration = Duration::from_millis(80);

/// Exchanges that may be open at once.
const OPEN_MAX: usize = 3;
/// One that is not answered by then never will be.
const OPEN_FOR: Duration = Duration::from_secs(2);

/// Neither interval is shorter than this for each member.
const FAST_PER_MEMBER: Duration = Duration::from_millis(5);
const SLOW_PER_MEMBER: Duration = Duration::from_millis(15);

/// Opening messages of one round follow each other within this time.
const BURST: Duration = Duration::from_millis(60);

impl Pace {
    /// Between `fast`, while things change, and `slow`, when nothing has for a while.
    pub fn new(fast: Duration, slow: Duration) -> Self {
        let state = PaceState {
            changed: Instant::now(),
            burst: None,
            sent: None,
            open: 0,
            opened: None,
            forced: false,
            aside: None,
        };
        Self { fast, slow, members: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// The mesh has so many members.
    pub fn members(&self, count: usize) {
        self.members.store(count, Ordering::Relaxed);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something worth knowing changed: gossip fast again.
    pub fn changed(&self) {
        self.state().changed = Instant::now();
    }

    /// A flash goes by.
    pub fn flash(&self, now: Instant) {
        let mut state = self.state();
        if state.aside.is_none_or(|until| now >= until + ASIDE_PAUSE) {
            state.aside = Some(now + ASIDE);
        }
    }

    /// When what came in may be worked on, if that is not now.
    pub fn aside(&self, now: Instant) -> Option<Instant> {
        self.state().aside.filter(|until| now < *until)
    }

    /// The next round goes out whatever the interval.
    pub fn force(&self) {
        let mut state = self.state();
        state.forced = true;
        state.burst = None;
    }

    /// An exchange that this side opened was answered, or did not get out.
    pub fn answered(&self) {
        let mut state = self.state();
        state.open = state.open.saturating_sub(1);
    }

    /// The interval now: a quarter of the time since the last change, within the limits of a mesh of this size.
    pub fn interval(&self, now: Instant) -> Duration {
        let quiet = now.saturating_duration_since(self.state().changed);
        let members = u32::try_from(self.members.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let fast = self.fast.max(FAST_PER_MEMBER.saturating_mul(members));
        (quiet / 4).clamp(fast, self.slow.max(SLOW_PER_MEMBER.saturating_mul(members)).max(fast))
    }

    /// Whether an opening message may go out now.
    pub fn allows(&self, now: Instant) -> bool {
        let interval = self.interval(now);
        let mut state = self.state();
        let since = |at: Instant| now.saturating_duration_since(at);
        let left = match state.burst {
            Some((begun, left)) if since(begun) < BURST.min(self.fast / 2) => left,
            _ => {
                if state.opened.is_some_and(|at| since(at) >= OPEN_FOR) {
                    state.open = 0;
                }
                let forced = std::mem::take(&mut state.forced);
                // A tick a little early must not be put off by a whole one.
                let due = state.sent.is_none_or(|sent| since(sent) + self.fast / 4 >= interval);
                let quiet = interval >= self.slow;
                let left = match (forced, due, quiet) {
                    (true, ..) => OPEN_MAX,
                    (_, false, _) => 0,
                    (_, _, true) => 1,
                    _ => OPEN_MAX.saturating_sub(state.open),
                };
                state.burst = Some((now, left));
                left
            }
        };
        if left == 0 {
            return false;
        }
        state.burst = state.burst.map(|(begun, left)| (begun, left - 1));
        state.open += 1;
        (state.sent, state.opened) = (Some(now), Some(now));
        true
    }
}

/// What the socket did.
#[derive(Debug, Default)]
pub struct Sent {
    /// Messages handed to the link.
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Messages that the link or an unknown address swallowed.
    pub shed: AtomicU64,
    /// Opening messages held back by the pace.
    pub paced: AtomicU64,
}

/// Opens the socket over our links, once.
pub struct LinkTransport {
    /// Where messages go.
    pub link: Arc<dyn GossipLink>,
    /// Who is behind an address.
    pub names: Arc<ArcSwap<Names>>,
    /// When rounds go out.
    pub pace: Arc<Pace>,
    /// Counters.
    pub sent: Arc<Sent>,
    /// Screened messages.
    pub received: Mutex<Option<mpsc::Receiver<(SocketAddr, ChitchatMessage)>>>,
}

#[async_trait]
impl Transport for LinkTransport {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Box::new(LinkSocket {
            link: self.link.clone(),
            names: self.names.clone(),
            pace: self.pace.clone(),
            sent: self.sent.clone(),
            received: received.ok_or_else(|| anyhow::anyhow!("the gossip socket is open already"))?,
        }))
    }
}

struct LinkSocket {
    link: Arc<dyn GossipLink>,
    names: Arc<ArcSwap<Names>>,
    pace: Arc<Pace>,
    sent: Arc<Sent>,
    received: mpsc::Receiver<(SocketAddr, ChitchatMessage)>,
}

#[async_trait]
impl Socket for LinkSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let opens = matches!(message, ChitchatMessage::Syn { .. });
        if opens && !self.pace.allows(Instant::now()) {
            self.sent.paced.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let names = self.names.load();
        let handed = names.get(&to).is_some_and(|name| {
            let bytes = message.serialize_to_vec();
            self.sent.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.link.send_gossip(name, bytes.into())
        });
        if opens && !handed {
            self.pace.answered();
        }
        let counter = if handed { &self.sent.messages } else { &self.sent.shed };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        self.received.recv().await.ok_or_else(|| anyhow::anyhow!("the gossip receiver is gone"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_often_after_a_change_and_rarely_when_quiet() {
        let ms = Duration::from_millis;
        let pace = Pace::new(ms(250), ms(1000));
        let start = Instant::now();
        let rounds = |from: u64, to: u64| {
            let allowed = |t: &u64| pace.allows(start + ms(t * 250));
            (from / 250..to / 250).filter(allowed).inspect(|_| pace.answered()).count()
        };
        let (busy, quiet) = (rounds(0, 1000), rounds(10_000, 20_000));
        assert_eq!(busy, 4, "every tick of the first second");
        assert_eq!(quiet, 10, "once a second later on");
        assert!(pace.allows(start + ms(20_000)));
        assert!(!pace.allows(start + ms(20_001)), "one message a round when quiet");
        assert!(!pace.allows(start + ms(20_250)));
        pace.force();
        assert!(pace.allows(start + ms(20_251)));
        pace.members(100);
        assert_eq!(rounds(30_000, 60_000), 20, "every second and a half in a mesh of a hundred");
    }

    #[test]
    fn gossip_makes_way_for_a_flash_and_is_not_stopped_by_many() {
        let ms = Duration::from_millis;
        let pace = Pace::new(ms(200), ms(1000));
        let start = Instant::now();
        assert_eq!(pace.aside(start), None);
        let free = (0..1_000).filter(|at| {
            pace.flash(start + ms(*at));
            pace.aside(start + ms(*at)).is_none()
        });
        assert_eq!(free.count(), 800, "a flash in every millisecond takes a fifth of its time");
        assert_eq!(pace.aside(start + ms(2_000)), None);
        pace.flash(start + ms(2_000));
        assert_eq!(pace.aside(start + ms(2_001)), Some(start + ms(2_020)));
    }

    #[test]
    fn exchanges_that_are_not_answered_hold_up_new_ones() {
        let ms = Duration::from_millis;
        let pace = Pace::new(ms(200), ms(1000));
        let start = Instant::now();
        let round = |at: u64| (0..3).filter(|i| pace.allows(start + ms(at + i))).count();
        assert_eq!(round(0), 3, "all three while things change");
        assert_eq!(round(200), 0, "none of them was answered");
        pace.answered();
        assert_eq!(round(400), 1);
        assert_eq!(round(600), 0);
        assert_eq!(round(2_600), 3, "by now they never will be");
        assert_eq!(round(2_800), 0);
        pace.force();
        assert_eq!(round(3_000), 3, "somebody who is not known yet must be tried");
    }
}
