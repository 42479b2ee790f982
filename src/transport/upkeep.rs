//! What an endpoint does by the clock: tells neighbours whom it reaches, reads meters, probes, and looks
//! after certificates.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use super::certs;
use super::link::close;
use super::meter;
use super::shared::{Shared, lock};
use super::wire::Control;
use crate::base::WallTime;

/// Losses within this time are told together.
const REACH_PAUSE: Duration = Duration::from_millis(50);
/// What is gained is told at most this often for each neighbour: everybody is told, and in a mesh that forms each
/// peer gains all others one by one.
const GAIN_PAUSE: Duration = Duration::from_millis(20);
/// Links that have not been told are looked for this often.
const REACH_AGAIN: Duration = Duration::from_millis(500);
/// A renewal that failed is tried again after this.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);

/// Runs until the peer stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut ticks = interval(shared.config.upkeep_every.to_std());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renew_after = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let now = WallTime(certs::now());
        renew(&shared, now, &mut renew_after).await;
        for link in shared.pool.all_links().into_iter().filter(|link| link.expired(now.0)) {
            warn!(peer = %link.peer, "its certificate has run out: link closed");
            link.close(close::EXPIRED, "the certificate has run out");
        }
        shared.pool.meters(|_, meter, link| {
            if let Some(link) = link.filter(|link| link.alive()) {
                meter.read(link, now);
            }
        });
    }
}

/// Probes links one after another, apart from the rest: a slow link must not hold up a renewal.
pub(super) async fn probe(shared: Arc<Shared>) {
    let mut ticks = interval(shared.config.upkeep_every.to_std());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            _ = ticks.tick() => meter::probe_next(&shared).await,
        }
    }
}

/// A peer that holds the mesh's key renews its own certificates; the runtime asks for the others.
async fn renew(shared: &Arc<Shared>, now: WallTime, after: &mut Instant) {
    let due = shared.identity.ca_key().is_some() && shared.identity.renewal_due(now);
    if !due || Instant::now() < *after {
        return;
    }
    let work = shared.clone();
    let renewed = tokio::task::spawn_blocking(move || {
        let identity = &work.identity;
        work.install(identity.sign(&identity.public(), identity.name())?)
    });
    let failed = match renewed.await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    warn!(error = failed, "certificates could not be renewed");
    *after = Instant::now() + RENEWAL_PAUSE;
}

/// Tells every neighbour whom this peer reaches, as it changes.
pub(super) async fn tell_reach(shared: Arc<Shared>) {
    let mut connected = shared.pool.watch();
    let mut told = Instant::now();
    let mut before = connected.borrow_and_update().clone();
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            changed = connected.changed() => if changed.is_err() { return },
            // A second link to a peer that is reached already changes nothing in the set, and has still to
            // be told: after a simultaneous open it is the one that stays.
            () = tokio::time::sleep(REACH_AGAIN) => {}
        }
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(REACH_PAUSE) => {}
        }
        let now = connected.borrow_and_update().clone();
        let pause = GAIN_PAUSE.saturating_mul(u32::try_from(now.len()).unwrap_or(u32::MAX));
        if before.is_subset(&now) && told.elapsed() < pause {
            continue;
        }
        (told, before) = (Instant::now(), now.clone());
        for link in shared.pool.all_links() {
            let before = std::mem::replace(&mut *lock(&link.told), now.clone());
            let add: Vec<_> = now.difference(&before).cloned().collect();
            let drop: Vec<_> = before.difference(&now).cloned().collect();
            if !add.is_empty() || !drop.is_empty() {
                shared.control(&link, &Control::Reach { full: before.is_empty(), add, drop });
            }
        }
    }
}
