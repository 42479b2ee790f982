//! What people and peers say to each other: job specs, reports, records, configuration. Typed and
//! valid once built; no I/O here.

pub mod alert;
pub mod array;
pub mod brought;
pub mod config;
pub mod gpu;
pub mod groups;
pub mod input;
pub mod invariants;
#[cfg(test)]
mod pages_tests;
pub mod partitions;
pub mod policy;
pub mod record;
pub mod replay_trace;
pub mod report;
pub mod report_json;
pub mod reserve;
pub mod sbatch;
pub mod spec;
pub mod spec_input;
pub mod staging;
pub mod tenant;
pub mod timestamp;
pub mod topology;
pub mod trace;

pub use policy::{Policies, Term, Weights};
pub use record::{
    AttemptSummary, Birth, CancelIntent, Checkpoint, ContactRecord, JobRecord, JobState, Outcome, Placement,
};
pub use report::{CapacityReport, LinkSample, NodeCapacity, QueueReport, Report};
pub use spec::{JobSpec, Resources};
