//! The lives of chitchat in one process: started, fed, watched, and started again if one ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use chitchat::{ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::envelope;
use super::facet::Place;
use super::screen::{Heard, Screen, pseudo_addr};
use super::socket::{LinkTransport, Names};
use super::{GossipConfig, GossipParts, Shared, Sight, Sighting};
use crate::base::{PeerName, Rng};

/// Screened messages that may wait for chitchat.
const SCREENED_MAX: usize = 16;

/// What one gossip works on, over all lives of its chitchat.
pub(super) struct Loop {
    pub(super) config: GossipConfig,
    pub(super) parts: GossipParts,
    pub(super) shared: Arc<Shared>,
    pub(super) screen: Screen,
    pub(super) rng: Rng,
    pub(super) news: mpsc::Sender<Vec<Heard>>,
    pub(super) sight: watch::Sender<Arc<Sight>>,
    pub(super) names: Arc<ArcSwap<Names>>,
    pub(super) beats: BTreeMap<PeerName, u64>,
    /// Members of whom something newer was heard of than is here: which version, and since when.
    pub(super) behind: BTreeMap<PeerName, (u64, Instant)>,
}

/// Why one life of chitchat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cancelled,
    Died,
}

impl Loop {
    /// Runs until the token is cancelled, whatever happens to chitchat.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<(PeerName, bool, Bytes)>,
        cancel: CancellationToken,
    ) {
        // Lives inside one boot get generations of their own.
        for life in 0..u64::from(u16::MAX) {
            if self.live(life, &mut inbox, &cancel).await == End::Cancelled {
                return;
            }
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            tracing::error!(life, "gossip ended and is started again");
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(self.config.slow) => {}
            }
        }
    }

    async fn live(
        &mut self,
        life: u64,
        inbox: &mut mpsc::Receiver<(PeerName, bool, Bytes)>,
        cancel: &CancellationToken,
    ) -> End {
        let addr = pseudo_addr(self.config.me.as_str());
        let id = ChitchatId::new(self.config.me.as_str(), self.config.boot << 16 | life, addr);
        let (to_chitchat, received) = mpsc::channel(SCREENED_MAX);
        let transport = LinkTransport {
            link: self.parts.link.clone(),
            names: self.names.clone(),
            pace: self.shared.pace.clone(),
            sent: self.shared.sent.clone(),
            received: Mutex::new(Some(received)),
        };
        let Ok(handle) =
            chitchat::spawn_chitchat(self.config.chitchat(id.clone()), Vec::new(), &transport).await
        else {
            return End::Died;
        };
        self.screen.generation_reused = false;
        self.mark_all_dirty();
        self.rename();
        let end = self.serve(&handle, &id, to_chitchat, inbox, cancel).await;
        handle.abort();
        end
    }

    async fn serve(
        &mut self,
        handle: &ChitchatHandle,
        id: &ChitchatId,
        to_chitchat: mpsc::Sender<(SocketAddr, ChitchatMessage)>,
        inbox: &mut mpsc::Receiver<(PeerName, bool, Bytes)>,
        cancel: &CancellationToken,
    ) -> End {
        let ended = handle.termination_watcher();
        tokio::pin!(ended);
        let mut tick = tokio::time::interval(self.config.fast);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ticks: u64 = 0;
        let shared = self.shared.clone();
        let mut members = self.parts.members.clone();
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return End::Cancelled,
                _ = &mut ended => return End::Died,
                () = shared.dirty.notified() => self.set_dirty(handle, id).await,
                Ok(()) = members.changed() => {
                    self.rename();
                    shared.pace.changed();
                }
                _ = tick.tick() => {
                    self.observe(handle, id).await;
                    self.reach_out(handle, ticks);
                    ticks += 1;
                }
                Some((from, direct, bytes)) = inbox.recv() => {
                    if let Some(until) = shared.pace.aside(Instant::now()) {
                        tokio::time::sleep_until(until).await;
                    }
                    self.take(handle, id, &to_chitchat, (from, direct, bytes)).await;
                    if self.screen.generation_reused {
                        tracing::error!("others hold newer keys of this generation: taking the next one");
                        return End::Died;
                    }
                }
            }
        }
    }

    fn mark_all_dirty(&self) {
        let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.1 = own.0.keys().cloned().collect();
        self.shared.dirty.notify_one();
    }

    fn rename(&self) {
        let list = self.parts.members.borrow().clone();
        let others = list.members().filter(|e| e.name != self.config.me);
        self.names.store(Arc::new(others.map(|e| (pseudo_addr(e.name.as_str()), e.name.clone())).collect()));
        self.shared.pace.members(list.len());
    }

    /// Hands what changed to chitchat, signed for the version it will get.
    async fn set_dirty(&self, handle: &ChitchatHandle, id: &ChitchatId) {
        let changed: Vec<(String, String)> = {
            let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
            let keys = std::mem::take(&mut own.1);
            keys.into_iter().filter_map(|key| own.0.get(&key).cloned().map(|text| (key, text))).collect()
        };
        let chitchat = handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let state = chitchat.self_node_state();
        for (key, text) in changed {
            let version = state.max_version() + 1;
            let place = Place {
                mesh: self.config.mesh,
                name: &id.node_id,
                generation: id.generation_id,
                key: &key,
                version,
            };
            state.set(&key, place.seal(&text, &*self.parts.signer));
        }
    }

    /// Screens one message and hands it on.
    async fn take(
        &mut self,
        handle: &ChitchatHandle,
        id: &ChitchatId,
        to_chitchat: &mpsc::Sender<(SocketAddr, ChitchatMessage)>,
        (from, direct, bytes): (PeerName, bool, Bytes),
    ) {
        let list = self.parts.members.borrow().clone();
        let clean = {
            let chitchat = handle.chitchat();
            let chitchat = chitchat.lock().await;
            self.screen.clean(direct.then_some(&from), &bytes, &list, id, chitchat.node_states())
        };
        *self.shared.dropped.lock().unwrap_or_else(PoisonError::into_inner) =
            (self.screen.dropped, self.screen.heard.clone());
        let Some((bytes, news)) = clean else { return };
        self.note_lag(Instant::now());
        if envelope::answers(&bytes) {
            self.shared.pace.answered();
        }
        if news.iter().any(|heard| heard.facet.is_urgent()) {
            self.shared.pace.changed();
        }
        // Waits for the listener: a value comes by only once. It ends when the listener is gone.
        if !news.is_empty() && self.news.send(news).await.is_err() {
            tracing::debug!("nobody listens to gossip any more");
        }
        match ChitchatMessage::deserialize(&mut &bytes[..]) {
            Ok(message) => {
                if to_chitchat.try_send((pseudo_addr(from.as_str()), message)).is_err() {
                    self.shared.shed_received.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(e) => tracing::warn!("a screened message does not read back: {e:#}"),
        }
    }

    fn note_lag(&mut self, now: Instant) {
        for (name, version) in self.screen.told.drain(..) {
            self.behind.entry(name).or_insert((version, now));
        }
        for (name, version) in self.screen.got.drain(..) {
            if let Some((_, since)) = self.behind.get(&name).filter(|(awaited, _)| version >= *awaited) {
                self.shared.lag.observe(now.saturating_duration_since(*since).as_secs_f64());
                self.behind.remove(&name);
            }
        }
    }

    /// Publishes who was seen: of each name the newest incarnation.
    async fn observe(&mut self, handle: &ChitchatHandle, own: &ChitchatId) {
        let now = (self.parts.clock)();
        let before = self.sight.borrow().clone();
        let mut sight = Sight::new();
        let mut beats = BTreeMap::new();
        {
            let chitchat = handle.chitchat();
            let chitchat = chitchat.lock().await;
            let live: BTreeSet<&ChitchatId> = chitchat.live_nodes().collect();
            // In order of (name, generation): the last one of a name is the newest.
            for (id, state) in chitchat.node_states().iter().filter(|(id, _)| id.node_id != own.node_id) {
                let known = before.get_key_value(&*id.node_id).map(|(name, _)| name.clone());
                let Some(name) = known.or_else(|| PeerName::new(&id.node_id).ok()) else { continue };
                beats.insert(name.clone(), u64::from(state.heartbeat()));
                let phi_alive = live.contains(id);
                sight.insert(name, Sighting { generation: id.generation_id, phi_alive, heartbeat_at: now });
            }
        }
        for (name, seen) in &mut sight {
            let old = before.get(name).filter(|old| old.generation == seen.generation);
            if let Some(old) = old.filter(|_| self.beats.get(name) == beats.get(name)) {
                seen.heartbeat_at = old.heartbeat_at;
            }
        }
        self.note_beats(now, &beats);
        self.behind.retain(|name, _| beats.contains_key(name));
        self.beats = beats;
        if *before != sight {
            self.sight.send_replace(Arc::new(sight));
        }
    }

    /// Learns how far apart a member's heartbeats come. As chitchat's detector does, a mean of the last ten or so, that
    /// begins with what a quiet mesh delivers.
    fn note_beats(&self, now: crate::base::Instant, beats: &BTreeMap<PeerName, u64>) {
        let mut seen = self.shared.beats.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|name, _| beats.contains_key(name));
        for (name, beat) in beats {
            let Some((last, mean)) = seen.get_mut(name) else {
                seen.insert(name.clone(), (now, self.config.slow.as_secs_f64()));
                continue;
            };
            if self.beats.get(name) != Some(beat) {
                *mean += (now.since(*last).as_secs_f64() - *mean) / 10.0;
                *last = now;
            }
        }
    }

    /// Opens an exchange with members that chitchat does not hold for alive: three at once while there
    /// is nobody, else one in a second or so. This finds newcomers and heals partitions.
    fn reach_out(&mut self, handle: &ChitchatHandle, ticks: u64) {
        let sight = self.sight.borrow().clone();
        let alive = sight.values().filter(|s| s.phi_alive).count();
        let every = (self.config.slow.as_millis() / self.config.fast.as_millis().max(1)).max(1) as u64;
        if alive > 0 && !ticks.is_multiple_of(every) {
            return;
        }
        let names = self.names.load_full();
        let mut quiet: Vec<_> =
            names.iter().filter(|(_, n)| !sight.get(*n).is_some_and(|s| s.phi_alive)).collect();
        quiet.sort_unstable();
        self.rng.shuffle(&mut quiet);
        let wanted = if alive == 0 { 3 } else { 1 };
        for (addr, _) in quiet.into_iter().take(wanted) {
            self.shared.pace.force();
            // Refused only when chitchat has ended, which the loop sees by itself.
            let _ = handle.gossip(*addr);
        }
    }
}
