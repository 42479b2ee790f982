//! How attempts are run: one trait, one conformance suite, `local` (this machine), `slurm` (a Slurm cluster) and
//! `kubernetes` (a Kubernetes cluster).

pub mod conformance;
pub mod fake;
mod hold;
pub mod kubernetes;
mod line;
pub mod local;
pub mod slurm;

use std::collections::BTreeMap;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::base::{ContactId, Instant};
use crate::core::api::AttemptKey;
use crate::core::{BackendCommand, BackendEvent};
use crate::model::NodeCapacity;
use crate::model::report::Item;
use crate::model::topology::Topology;

/// What a backend found at its start.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    /// Node groups, found or declared.
    pub nodes: Vec<NodeCapacity>,
    /// `podman` or `docker`, where one is installed.
    pub container_runtime: Option<String>,
    /// Images that every node has.
    pub images: Vec<Item>,
    /// One line each for the log: what was looked for and not found.
    pub notes: Vec<String>,
    /// One line each: what is there and cannot be used, so that a person should look.
    pub warnings: Vec<String>,
}

/// Drives one cluster's own scheduler. Every call may be repeated; doing twice is doing once.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Short name: `local`, `fake`…
    fn kind(&self) -> &'static str;

    /// Looks at what is there. Called once, before anything else.
    async fn discover(&self) -> anyhow::Result<Discovery>;

    /// How near the GPUs of each node group are to each other, where it can be found. Asked after `discover`.
    fn topologies(&self) -> BTreeMap<String, Topology> {
        BTreeMap::new()
    }

    /// Takes over what an earlier run of this peer started, and sends `Adopted` first, then later
    /// events, into `events`. Called once, after `discover`.
    async fn adopt(&self, events: mpsc::Sender<BackendEvent>) -> anyhow::Result<()>;

    /// Carries out one command. Returns once it is under way; results come as events.
    async fn command(&self, command: BackendCommand);

    /// A majority holds this renewal: guards may let what is bound to it run until `sent_at` + grace.
    /// Must be visible to the guards when it returns.
    async fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant);

    /// Mean use of the GPUs in thousandths; none where it cannot be measured. Takes a moment.
    async fn gpu_use_milli(&self) -> Option<u32> {
        None
    }

    /// Ends its own tasks; attempts go on under their guards.
    async fn shutdown(&self) {}

    /// The log files of an attempt, newest part last; one per rank and stream, none if unknown.
    fn logs(&self, key: AttemptKey) -> Option<Vec<std::path::PathBuf>>;
}
