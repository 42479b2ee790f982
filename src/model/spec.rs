//! A job's specification, valid by construction. `spec_input` reads YAML and JSON into it.
//!
//! These types travel inside records: plain derives only (no skipped, flattened or untagged fields),
//! since the wire codec is not self-describing.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::array::{After, ArraySpec};
use crate::base::{Bytes, MilliCpu, PeerName, Span};

/// Limits that a spec must keep; `spec_input` refuses what exceeds them, naming the field.
pub mod limits {
    /// Bytes of a spec document.
    pub const DOCUMENT_BYTES_MAX: usize = 48 * 1024;
    /// Bytes of a name (job, tenant).
    pub const NAME_BYTES_MAX: usize = 128;
    /// Bytes of `run`, all arguments together.
    pub const RUN_BYTES_MAX: usize = 32 * 1024;
    /// Environment variables, and bytes of all of them.
    pub const ENV_COUNT_MAX: usize = 256;
    /// Bytes of all environment variables together.
    pub const ENV_BYTES_MAX: usize = 32 * 1024;
    /// Nodes of one job.
    pub const NODES_MAX: u32 = 4_096;
    /// GPUs per node.
    pub const GPUS_PER_NODE_MAX: u32 = 1_024;
    /// Retries.
    pub const RETRIES_MAX: u32 = 1_000;
    /// Labels, regions, GPU models, data sets in one list.
    pub const LIST_MAX: usize = 64;
    /// Bytes of `warn.command`.
    pub const WARN_BYTES_MAX: usize = 4 * 1024;
    /// Task groups of one job.
    pub const GROUPS_MAX: usize = 32;
}

/// What a job is and needs. Built by `spec_input`, which checks every bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobSpec {
    /// Human name, `[A-Za-z0-9._-]`, at most 128 bytes.
    pub name: String,
    /// Who it is accounted to; same alphabet as `name`. Default `default`.
    pub tenant: String,
    /// 0 to 100, higher first; default 50. Named classes: low 25, normal 50, high 75.
    pub priority: u8,
    /// Per-node needs.
    pub resources: Resources,
    /// Nodes (ranks); default 1. All start together or none does.
    pub nodes: u32,
    /// What runs on every node.
    pub run: Run,
    /// Extra environment.
    pub env: BTreeMap<String, String>,
    /// Working folder at the cluster; none means the attempt's own folder.
    pub workdir: Option<String>,
    /// Container image; none means the host.
    pub image: Option<String>,
    /// Datasets the job reads. Passed on as STARLING_DATA (one URI per line).
    pub data: Vec<String>,
    /// Where the job keeps its progress.
    pub checkpoint: Option<CheckpointSpec>,
    /// How its nodes talk; `sync` never leaves one cluster.
    pub communication: Communication,
    /// Longest run of one attempt; none means no limit.
    pub max_runtime: Option<Span>,
    /// How often a failed attempt is tried again (loss of a cluster is not a failure). Default 0.
    pub retries: u32,
    /// What happens when its cluster is cut off.
    pub on_lost_contact: OnLostContact,
    /// Where it may run.
    pub placement: PlacementSpec,
    /// Sizes of datasets that the job names, where it says them: for those that no cluster holds.
    #[serde(default)]
    pub data_sizes: BTreeMap<String, Bytes>,
    /// Task groups and what they send each other; empty for a job of one kind of node.
    #[serde(default)]
    pub groups: Groups,
    /// Many jobs from one.
    #[serde(default)]
    pub array: Option<ArraySpec>,
    /// Starts only when these have ended so; at most `array::AFTER_MAX`.
    #[serde(default)]
    pub after: Vec<After>,
    /// It may be stopped for a job of a higher priority, and runs again later. None: see `may_be_preempted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// It is no job but a reservation, of `nodes` GPUs in each cluster: when, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<super::reserve::ReserveSpec>,
    /// How it is told to save its progress. None: SIGTERM, when it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn: Option<WarnSpec>,
}

/// How a job is told that its end comes, so that it can save its progress.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WarnSpec {
    /// The signal, in SIGTERM's place where it is stopped with notice.
    pub signal: Option<WarnSignal>,
    /// A shell script that the guard runs beside it then.
    pub command: Option<String>,
    /// It is told so long before `max_runtime` is over, too.
    pub before: Option<Span>,
}

/// A signal that a program can catch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum WarnSignal {
    /// SIGTERM.
    Term,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGHUP.
    Hup,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
}

impl WarnSignal {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 6] = [
        ("TERM", Self::Term),
        ("USR1", Self::Usr1),
        ("USR2", Self::Usr2),
        ("HUP", Self::Hup),
        ("INT", Self::Int),
        ("QUIT", Self::Quit),
    ];

    /// Its name without SIG.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, s)| *s == self).map_or("TERM", |(name, _)| name)
    }

    /// From `USR1`, `SIGUSR1`, in either case, or Linux's number.
    pub fn read(text: &str) -> Option<Self> {
        let name = text.trim().to_ascii_uppercase();
        let numbers = [
            ("1", Self::Hup),
            ("2", Self::Int),
            ("3", Self::Quit),
            ("10", Self::Usr1),
            ("12", Self::Usr2),
            ("15", Self::Term),
        ];
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        Self::ALL.iter().chain(&numbers).find(|(n, _)| *n == name).map(|(_, s)| *s)
    }
}

/// Task groups of one job. Each stays in one cluster; where they may be spread, the traffic decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Groups {
    /// The groups, with different names.
    pub list: Vec<Group>,
    /// What they send each other.
    pub traffic: Vec<Traffic>,
}

/// One task group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Nodes.
    pub nodes: u32,
    /// Needs of each node.
    pub resources: Resources,
}

/// Traffic between two groups, both directions together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// One group,
    pub from: String,
    /// the other,
    pub to: String,
    /// and bytes per second between them.
    pub rate: Bytes,
}

/// What one node of the job needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// GPUs per node; default 0.
    pub gpus: u32,
    /// Models that will do, canonical names (see `model::gpu`), best first; empty means any.
    pub gpu: Vec<String>,
    /// CPU per node; default 1 core when `gpus` is 0, else 1 core too.
    pub cpus: MilliCpu,
    /// Memory per node; default 0, meaning not counted.
    pub memory: Bytes,
}

/// The program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Run {
    /// A shell script, given to `/bin/sh -c`.
    Script(String),
    /// A program and its arguments, no shell.
    Argv(Vec<String>),
    /// The image's own entry point.
    Image,
}

/// Where progress is kept and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointSpec {
    /// A path or URI that every cluster the job may run at can reach; given as CHECKPOINT_PATH.
    pub path: String,
    /// How often the job promises to write one; informs placement, not enforced.
    pub every: Option<Span>,
}

/// How the nodes of a job talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Communication {
    /// Step by step (all-reduce): one cluster only.
    #[default]
    Sync,
    /// Now and then (parameter server): may be spread.
    Async,
    /// Never.
    None,
}

/// What happens to a job whose cluster cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnLostContact {
    /// How long the attempt may go on without contact before it must have stopped.
    /// None (`never`): it goes on, and only an operator's word re-runs it.
    pub grace: Option<Span>,
    /// What follows.
    pub then: Then,
}

impl Default for OnLostContact {
    fn default() -> Self {
        Self { grace: Some(Span::secs(120)), then: Then::Restart }
    }
}

/// What follows a lost contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// Run again elsewhere from the checkpoint.
    #[default]
    Restart,
    /// The job ends as failed.
    Fail,
}

/// Where a job may run and what it prefers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlacementSpec {
    /// Weights over the score's terms.
    pub policy: Policy,
    /// Regions that will do; empty means any.
    pub regions: Vec<String>,
    /// Clusters that will do; empty means any.
    pub clusters: Vec<PeerName>,
    /// Labels a cluster must carry.
    pub labels: BTreeMap<String, String>,
    /// Zones that will do; empty means any.
    #[serde(default)]
    pub zones: Vec<String>,
    /// Most that a GPU hour may cost, thousandths of a USD.
    #[serde(default)]
    pub price_max_milli: Option<u64>,
    /// Compliance domains that the cluster must be in, all of them.
    #[serde(default)]
    pub compliance: Vec<String>,
}

/// Named weights over the score's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Time and money alike.
    #[default]
    Balanced,
    /// Near its data.
    DataFirst,
    /// Least money.
    Cheapest,
    /// Earliest first step.
    Fastest,
    /// Emptiest cluster.
    Spread,
    /// Least energy.
    Green,
}

impl JobSpec {
    /// It may be stopped for a job of a higher priority. Where it does not say: yes if it keeps a checkpoint, or
    /// is below the normal priority. Work that would be lost is not thrown away unasked.
    pub fn may_be_preempted(&self) -> bool {
        self.preemptible.unwrap_or(self.checkpoint.is_some() || self.priority < 50)
    }

    /// GPUs of all nodes together.
    pub fn gpus_total(&self) -> u64 {
        match self.groups.list.as_slice() {
            [] => u64::from(self.resources.gpus) * u64::from(self.nodes),
            groups => groups.iter().map(|g| u64::from(g.resources.gpus) * u64::from(g.nodes)).sum(),
        }
    }
}
