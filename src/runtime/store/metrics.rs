//! What the store counts.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Counters of one store; cloning shares them.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    /// Transactions that were made durable, one fsync round each.
    pub commits: Counter,
    /// Time of each, seconds.
    pub commit_seconds: Histogram,
    /// Batches that shared one commit.
    pub batches_per_commit: Histogram,
    /// Rows written or removed.
    pub writes: Counter,
    /// Batches answered with an error.
    pub failed: Counter,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            commits: Counter::default(),
            commit_seconds: Histogram::new([
                0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0,
                4.0,
            ]),
            batches_per_commit: Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]),
            writes: Counter::default(),
            failed: Counter::default(),
        }
    }
}

impl StoreMetrics {
    /// Offers them under `starling_store_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("starling_store");
        registry.register("commits", "Durable commits, one fsync round each", self.commits.clone());
        let help = "Time of one durable commit";
        registry.register_with_unit("commit", help, Unit::Seconds, self.commit_seconds.clone());
        registry.register(
            "commit_batches",
            "Batches that shared one commit",
            self.batches_per_commit.clone(),
        );
        registry.register("writes", "Rows written or removed", self.writes.clone());
        registry.register("batches_failed", "Batches answered with an error", self.failed.clone());
    }

    pub(super) fn committed(&self, batches: usize, writes: usize, took: Duration) {
        self.commits.inc();
        self.commit_seconds.observe(took.as_secs_f64());
        self.batches_per_commit.observe(batches as f64);
        self.writes.inc_by(writes as u64);
    }
}
