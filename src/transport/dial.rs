//! Keeps a link to every member: calls those that have none, with growing pauses.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::greet;
use super::pool::Due;
use super::shared::{Shared, lock};

/// Addresses tried in one dial.
const ADDRESSES_MAX: usize = 8;

/// Runs until the peer stops.
pub(super) async fn keep_links(shared: Arc<Shared>) {
    // Peers that did not answer before wait mostly for nothing; they have slots of their own, so that a
    // hundred dead ones do not hold up the one that lives.
    let fresh = Arc::new(Semaphore::new(shared.config.dials_max.max(1)));
    let again = Arc::new(Semaphore::new(shared.config.dials_max.max(1) * 4));
    loop {
        let (due, next) = shared.pool.due();
        for due in due {
            let slots = if due.again { again.clone() } else { fresh.clone() };
            shared.tracker.spawn(one(shared.clone(), due, slots));
        }
        let next = next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = shared.pool.wake.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

async fn one(shared: Arc<Shared>, due: Due, slots: Arc<Semaphore>) {
    let failed = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        failed = call(&shared, &due, slots) => failed,
    };
    if let Some(why) = &failed {
        shared.counters.dial_failures.add(1);
        // Said once, as it is a word about this peer and no trouble of the network.
        if why.contains(greet::REFUSES) && shared.pool.trouble(&due.peer).as_ref() != Some(why) {
            warn!(peer = %due.peer, why, "another peer takes no link from this one");
        }
        debug!(peer = %due.peer, why, "dial failed");
    }
    shared.pool.dialled(&due.peer, failed, |failures| pause(&shared, failures));
}

/// None when there is a link.
async fn call(shared: &Arc<Shared>, due: &Due, slots: Arc<Semaphore>) -> Option<String> {
    let _slot = slots.acquire_owned().await.ok()?;
    let mut trouble = "no address is known".to_owned();
    for address in shared.directory.addresses(&due.peer).into_iter().take(ADDRESSES_MAX) {
        if shared.pool.link(&due.peer).is_some() {
            return None;
        }
        shared.counters.dials.add(1);
        match greet::dial(shared, &due.peer, address).await {
            Ok(()) => return None,
            Err(why) => trouble = format!("{address}: {why}"),
        }
    }
    shared.pool.link(&due.peer).is_none().then_some(trouble)
}

/// Doubles with every failure, and differs between peers so that they do not call in step.
pub(super) fn pause(shared: &Shared, failures: u32) -> Duration {
    let (min, max) = (shared.config.backoff_min, shared.config.backoff_max);
    let doubled = min.scale(1 << failures.saturating_sub(1).min(20), 1).min(max);
    doubled.scale(750 + lock(&shared.rng).below(500), 1_000).to_std()
}
