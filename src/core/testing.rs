//! What the core's own tests begin with.

use super::api::{CoreConfig, Pace};
use crate::base::{PeerName, Span, StoreId};
use crate::model::spec::JobSpec;

/// A peer's name.
pub fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

/// A witness of a mesh that wants three homes; tests change what they are about.
pub fn config(peer: &str, store: StoreId) -> CoreConfig {
    CoreConfig {
        name: name(peer),
        store,
        boot: 1,
        first_boot: true,
        replicas: 3,
        renew_every: Span::secs(1),
        rho_milli: 10,
        margin: Span::secs(1),
        grant_for: Span::secs(4),
        claims_max: 3,
        jobs_max: 1_000,
        rehome_after: Span::secs(600),
        retain: Span::secs(86_400),
        retain_jobs: 1_000,
        nodes: Vec::new(),
        schedule: Default::default(),
        runs_images: false,
        policies: Default::default(),
        pace: Pace::default(),
        seed: 1,
    }
}

/// A small job.
pub fn spec() -> JobSpec {
    let text = b"name: waits\nrun: sleep 1\nresources: {cpus: 1}\non_lost_contact: {grace: never}";
    crate::model::spec_input::parse_spec(text).expect("a spec").spec
}
