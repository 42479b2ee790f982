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

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
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
    state: Mutex<PaceState>,
}

#[derive(Debug)]
struct PaceState {
    changed: Instant,
    burst: Option<(Instant, bool)>,
    sent: Option<Instant>,
}

/// Opening messages of one round follow each other within this time.
const BURST: Duration = Duration::from_millis(60);

impl Pace {
    /// Between `fast`, while things change, and `slow`, when nothing has for a while.
    pub fn new(fast: Duration, slow: Duration) -> Self {
        Self { fast, slow, state: Mutex::new(PaceState { changed: Instant::now(), burst: None, sent: None }) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something worth knowing changed: gossip fast again.
    pub fn changed(&self) {
        self.state().changed = Instant::now();
    }

    /// The next round goes out whatever the interval.
    pub fn force(&self) {
        let mut state = self.state();
        state.sent = None;
        state.burst = None;
    }

    /// The interval now: a quarter of the time since the last change, within the limits.
    pub fn interval(&self, now: Instant) -> Duration {
        let quiet = now.saturating_duration_since(self.state().changed);
        (quiet / 4).clamp(self.fast, self.slow)
    }

    /// Whether an opening message may go out now.
    pub fn allows(&self, now: Instant) -> bool {
        let interval = self.interval(now);
        let mut state = self.state();
        if let Some((begun, verdict)) = state.burst
            && now.saturating_duration_since(begun) < BURST.min(self.fast / 2)
        {
            return verdict;
        }
        // A tick a little early must not be put off by a whole one.
        let due =
            state.sent.is_none_or(|sent| now.saturating_duration_since(sent) + self.fast / 4 >= interval);
        state.burst = Some((now, due));
        if due {
            state.sent = Some(now);
        }
        due
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
        if matches!(message, ChitchatMessage::Syn { .. }) && !self.pace.allows(Instant::now()) {
            self.sent.paced.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let names = self.names.load();
        let handed = names.get(&to).is_some_and(|name| {
            let bytes = message.serialize_to_vec();
            self.sent.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.link.send_gossip(name, bytes.into())
        });
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
        let rounds =
            |from: u64, to: u64| (from / 250..to / 250).filter(|t| pace.allows(start + ms(t * 250))).count();
        let (busy, quiet) = (rounds(0, 1000), rounds(10_000, 20_000));
        assert_eq!(busy, 4, "every tick of the first second");
        assert_eq!(quiet, 10, "once a second later on");
        assert!(pace.allows(start + ms(20_000)));
        assert!(pace.allows(start + ms(20_001)), "all messages of one round share its verdict");
        assert!(!pace.allows(start + ms(20_250)));
        pace.force();
        assert!(pace.allows(start + ms(20_251)));
    }
}
