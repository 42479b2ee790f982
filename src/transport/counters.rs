//! What the transport counts, by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One number each, growing only.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $($(#[$doc])* pub $name: Count),* }
        impl Counters {
            /// All of them by name.
            pub fn read(&self) -> BTreeMap<&'static str, u64> {
                BTreeMap::from([$((stringify!($name), self.$name.get())),*])
            }
        }
    };
}

/// A number that grows.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Dials begun.
    dials,
    /// Dials that made no link.
    dial_failures,
    /// Links that stood after their hello.
    links_up,
    /// Links that ended.
    links_down,
    /// Callers without a certificate of this mesh.
    strangers,
    /// Proven peers that admission or the name rule refused.
    refused,
    /// Handshakes and hellos that took too long or broke.
    half_open,
    /// Connection attempts turned away since too many were open.
    turned_away,
    /// Connections closed since they sent what no peer sends.
    garbage,
    /// Frames written.
    frames_out,
    /// Bytes in them.
    bytes_out,
    /// Frames read.
    frames_in,
    /// Bytes in them.
    bytes_in,
    /// Core messages dropped since the peer's queue was full or it could not be reached.
    shed_core,
    /// Gossip messages dropped so.
    shed_gossip,
    /// Flashes dropped so.
    shed_flash,
    /// Relayed frames dropped so.
    shed_relay,
    /// Flashes heard again.
    flash_repeated,
    /// Flashes that came too late.
    flash_expired,
    /// Peers that others were asked to tell of a flash.
    flash_detours,
    /// Flashes passed on.
    flash_forwarded,
    /// Frames passed on for others.
    relayed_frames,
    /// Requests passed on for others.
    relayed_requests,
    /// Bandwidth probes sent.
    probes,
    /// Bytes in them.
    probe_bytes,
    /// Questions on the join channel that were answered.
    joins,
    /// Questions turned away.
    joins_refused,
    /// Certificates renewed.
    renewals,
}
