//! What is asked of a Slurm cluster, whichever way it is reached: by the commands or by slurmrestd.

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;

use crate::base::{Bytes, Span};

/// Where a native job stands, as far as that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NativeState {
    /// Waits, also after a requeue.
    Pending,
    /// Has nodes: configuring, running, suspended, completing.
    Active,
    /// Ended by itself with 0.
    Completed,
    /// Ended by itself in another way, or could not be launched.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// Ran into its time limit, or its deadline.
    Timeout,
    /// Its node failed, or did not boot.
    NodeFail,
    /// Had to make room for another job.
    Preempted,
    /// Took more memory than it may.
    OutOfMemory,
    /// A state that this version does not know: no conclusion is drawn from it.
    Other,
}

impl NativeState {
    /// From Slurm's word; the first one where it says several.
    pub fn read(word: &str) -> Self {
        match word.trim().to_ascii_uppercase().as_str() {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
                Self::Pending
            }
            "RUNNING" | "CONFIGURING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING"
            | "STAGE_OUT" | "RESIZING" | "POWER_UP_NODE" => Self::Active,
            "COMPLETED" => Self::Completed,
            "FAILED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Self::Failed,
            "CANCELLED" | "REVOKED" => Self::Cancelled,
            "TIMEOUT" | "DEADLINE" => Self::Timeout,
            "NODE_FAIL" | "BOOT_FAIL" => Self::NodeFail,
            "PREEMPTED" => Self::Preempted,
            "OUT_OF_MEMORY" => Self::OutOfMemory,
            _ => Self::Other,
        }
    }

    /// Nothing of it runs any more, says Slurm. Of a failed node it only believes so.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Pending | Self::Active | Self::Other)
    }
}

/// What one job has of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Part {
    /// The node.
    pub node: String,
    /// CPUs.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
    /// GPUs.
    pub gpus: u32,
}

/// A job as Slurm shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeJob {
    /// Its number; Slurm may give it to another job later.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its comment.
    pub comment: String,
    /// Where it stands.
    pub state: NativeState,
    /// Slurm's own word for it.
    pub word: String,
    /// Why it waits, or ended.
    pub reason: String,
    /// The raw wait status.
    pub status: i32,
    /// Times that it was requeued.
    pub restarts: u32,
    /// Its user.
    pub user: String,
    /// What it has, node by node; none while it waits.
    pub parts: Vec<Part>,
    /// The partitions that it asked for, with commas between.
    pub partition: String,
    /// GPUs that it asked for, on all nodes together.
    pub gpus_wanted: u32,
}

/// A node as Slurm shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeNode {
    /// Its name.
    pub name: String,
    /// May run jobs: not down, drained, failing, reserved for maintenance.
    pub usable: bool,
    /// State and reason in Slurm's words.
    pub state: String,
    /// CPUs.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
    /// GPU type as Slurm names it, and count. Empty where the type has no name.
    pub gpus: Option<(String, u32)>,
    /// Its partitions.
    pub partitions: Vec<String>,
    /// Its features.
    pub features: Vec<String>,
}

/// A batch job to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Its name, from (job, epoch).
    pub name: String,
    /// Carries the same; what has another one is not ours.
    pub comment: String,
    /// The batch script.
    pub script: String,
    /// Where it starts.
    pub folder: PathBuf,
    /// Where Slurm puts the output of the script itself, which is the guard's.
    pub output: PathBuf,
    /// Options by their long names; an empty value is a flag.
    pub options: Vec<(String, String)>,
}

/// An answer that says nothing about the jobs: Slurm, or the way to it, did not work. Nothing is concluded from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverError(pub String);

/// A batch job was not made, or it is not known whether it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitError {
    /// Slurm said no: it was not made.
    Refused(String),
    /// It may have been made: look for it by its name.
    Unknown(String),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Longest pause between two questions while Slurm does not answer.
const PAUSE_MAX: Span = Span::secs(60);

/// Until the next question, after so many failures in a row.
pub(super) fn pause(interval: Span, failures: u32) -> Span {
    interval.scale(1 << failures.min(5), 1).min(PAUSE_MAX.max(interval))
}

/// One way to a Slurm cluster.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// For people: which way it is.
    fn describe(&self) -> String;
    /// All jobs that Slurm still shows, of everybody.
    async fn jobs(&self) -> Result<Vec<NativeJob>, DriverError>;
    /// One job. `Ok(None)` is Slurm's own word that it has none of this number.
    async fn job(&self, id: u64) -> Result<Option<NativeJob>, DriverError>;
    /// All nodes.
    async fn nodes(&self) -> Result<Vec<NativeNode>, DriverError>;
    /// The partitions that are shown to this user without being asked for: not hidden, and open to its groups. An
    /// empty list where it is told that all are hidden, `Ok(None)` where nothing is told.
    async fn shown(&self) -> Result<Option<Vec<String>>, DriverError> {
        Ok(None)
    }
    /// Makes a batch job.
    async fn submit(&self, job: &Submission) -> Result<u64, SubmitError>;
    /// Ends a job, if it has this number *and* this name.
    async fn cancel(&self, id: u64, name: &str) -> Result<(), DriverError>;
    /// Seconds between Slurm's SIGTERM and SIGKILL.
    async fn kill_wait(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_not_known_is_no_end() {
        for (word, over) in [
            ("RUNNING", false),
            ("PENDING", false),
            ("COMPLETING", false),
            ("REQUEUED", false),
            ("COMPLETED", true),
            ("NODE_FAIL", true),
            ("PREEMPTED", true),
            ("SOMETHING_NEW", false),
            ("", false),
        ] {
            assert_eq!(NativeState::read(word).is_over(), over, "{word}");
        }
    }
}
