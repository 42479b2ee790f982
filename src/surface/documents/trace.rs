//! A job's trace as one tree.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HistoryEntry;
use crate::base::{JobId, PeerName};
use crate::model::JobState;

/// One span of a job's trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpanDocument {
    /// Its id, 16 hexadecimal digits.
    pub id: String,
    /// The span above it; for the job's own the caller's, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How deep it lies below the job's own, which is 0.
    pub depth: u32,
    /// `job`, `submit`, `commit`, `queue`, `claim`, `grant`, `attempt`, `stage`, `start`, `bring`, `run`, `checkpoint`, `move`.
    pub name: String,
    /// The attempt that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The cluster that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<PeerName>,
    /// Who noted it; none: the job's record says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerName>,
    /// When it began.
    pub from_ms: u64,
    /// When it ended; none while it goes on.
    pub to_ms: Option<u64>,
    /// It ended badly.
    pub failed: bool,
    /// A few words.
    pub note: String,
    /// Bytes that were moved in it, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A job's trace, put together from its record and from what the peers wrote down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceDocument {
    /// The job.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// The trace id, 32 hexadecimal digits: the same for its whole life.
    pub trace: String,
    /// Where it stands.
    pub state: JobState,
    /// Why, in one sentence.
    pub reason: String,
    /// When it was submitted.
    pub from_ms: u64,
    /// When it ended, or now.
    pub to_ms: u64,
    /// It has ended.
    pub done: bool,
    /// The spans, each below the one that holds it, in the order in which they began.
    pub spans: Vec<SpanDocument>,
    /// What the peers wrote down, oldest first.
    pub events: Vec<HistoryEntry>,
    /// There are more events than are read.
    pub truncated: bool,
    /// Peers whose part is missing, since they did not answer. What the record says is there all the same.
    pub unanswered: Vec<PeerName>,
}
