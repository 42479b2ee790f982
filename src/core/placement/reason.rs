//! Reasons against a cluster: typed, with the figures; put into words here and nowhere else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::{Bytes, MilliCpu, PeerName, Span};

/// A reason against running one job at one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// It stores records and runs nothing.
    Witness,
    /// The job names its clusters, and this is none of them.
    NotChosen,
    /// Not a region that will do.
    Region {
        /// Where it is.
        have: String,
        /// Which would do.
        wanted: Vec<String>,
    },
    /// Not a zone that will do.
    Zone {
        /// Where it is.
        have: String,
        /// Which would do.
        wanted: Vec<String>,
    },
    /// A label is missing or has another value.
    Label {
        /// Its key.
        key: String,
        /// What the job wants.
        wanted: String,
        /// What the cluster has, if it has one.
        have: Option<String>,
    },
    /// Its Slurm has no such partition.
    Partition {
        /// Those that the job's script names and that are not there.
        wanted: Vec<String>,
        /// Those that are.
        have: Vec<String>,
    },
    /// None of its Slurm's nodes has such a feature.
    Feature {
        /// Those that the job's script names and that are not there.
        wanted: Vec<String>,
        /// Those that are.
        have: Vec<String>,
    },
    /// It is not in a compliance domain that the job must stay in.
    Compliance {
        /// Which.
        wanted: String,
        /// Those that it is in.
        have: Vec<String>,
    },
    /// It runs no container images.
    NoImages,
    /// None of its GPUs is of a model that will do.
    GpuModel {
        /// Models that would do.
        wanted: Vec<String>,
        /// Models that it has.
        have: Vec<String>,
    },
    /// No node has so many GPUs that will do.
    GpusPerNode {
        /// Models that would do; empty is any.
        models: Vec<String>,
        /// GPUs wanted on one node.
        wanted: u32,
        /// Most that a node has.
        have: u32,
    },
    /// All nodes together have too few GPUs that will do.
    GpusTotal {
        /// Models that would do; empty is any.
        models: Vec<String>,
        /// GPUs wanted in all.
        wanted: u64,
        /// What there is.
        have: u64,
    },
    /// No node has so many CPUs.
    Cpus {
        /// Wanted on one node.
        wanted: MilliCpu,
        /// Most that a node has.
        have: MilliCpu,
    },
    /// No node has so much memory.
    Memory {
        /// Wanted on one node.
        wanted: Bytes,
        /// Most that a node has.
        have: Bytes,
    },
    /// Too few nodes have all of it at once.
    Shape {
        /// Nodes wanted.
        nodes: u32,
        /// GPUs each.
        gpus: u32,
        /// CPUs each.
        cpus: MilliCpu,
        /// Memory each.
        memory: Bytes,
        /// So many ranks would fit when all is free.
        have: u64,
    },
    /// A GPU hour costs more than the job may pay, thousandths of a USD.
    Price {
        /// The cap.
        most: u64,
        /// The price.
        have: u64,
    },
    /// It does not hold a dataset that only a cluster which holds it can read.
    DataAbsent {
        /// Which.
        name: String,
        /// Its size, where it is known.
        size: Option<Bytes>,
        /// Clusters that hold it.
        held_by: Vec<PeerName>,
        /// This cluster, or one that might hold it, did not name all that it holds: it may be there.
        cut: bool,
    },
    /// The tenant's quota.
    Quota {
        /// In words and numbers.
        text: String,
        /// It may pass.
        passing: bool,
    },
    /// There would be room, but for what is reserved for another tenant.
    Reserved {
        /// In words and numbers.
        text: String,
    },
    /// It is first in line there, and no nodes are held for it, since they are held for jobs that wait longer elsewhere.
    OlderFirst,
    /// Nothing (or not this part) was heard of it yet.
    NotReported {
        /// `it`, `capacity`, `queue`.
        part: String,
    },
    /// Not heard of for long.
    Lost,
    /// Not heard of lately.
    Suspect,
    /// It drains.
    Drains,
    /// It takes no new jobs.
    Closed {
        /// Why.
        why: String,
    },
    /// What it said is too old to act on.
    Stale {
        /// How old.
        age: Span,
    },
    /// Too few GPUs that will do are free now.
    GpusBusy {
        /// Wanted in all.
        wanted: u64,
        /// Free, less what was just given out.
        free: u64,
        /// Jobs that wait there.
        queued: u32,
    },
    /// Enough GPUs are free, and too few of them together on one node.
    GpusApart {
        /// Nodes wanted,
        nodes: u32,
        /// with so many GPUs each.
        each: u32,
        /// Free, less what was just given out.
        free: u64,
    },
    /// Enough GPUs are free, and some of them are kept for jobs that ran before and for urgent ones.
    GpusKept {
        /// Wanted in all.
        wanted: u64,
        /// Free.
        free: u64,
        /// Kept of these,
        kept: u64,
        /// for jobs of at least this priority.
        priority: u8,
    },
    /// Too few CPUs are free now.
    CpusBusy {
        /// Nodes.
        nodes: u32,
        /// Wanted on each.
        wanted: MilliCpu,
        /// Free over all nodes.
        free: MilliCpu,
    },
    /// Too little memory is free now.
    MemoryBusy {
        /// Nodes.
        nodes: u32,
        /// Wanted on each.
        wanted: Bytes,
        /// Free over all nodes.
        free: Bytes,
    },
    /// It refused this job's claim.
    Refused {
        /// Why.
        why: String,
    },
    /// It has lately refused or lost so much that it is asked last.
    RestsAfter {
        /// Times in a row.
        strikes: u32,
        /// Until it is asked again.
        left: Span,
    },
    /// A claim stands there; not a reason against it, but why nothing happens.
    ClaimStands {
        /// Place in its queue from 0, once it has answered.
        ahead: Option<u32>,
    },
}

impl Reason {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Witness => "witness",
            Self::NotChosen => "not-chosen",
            Self::Region { .. } => "region",
            Self::Zone { .. } => "zone",
            Self::Label { .. } => "label",
            Self::Partition { .. } => "partition",
            Self::Feature { .. } => "feature",
            Self::Compliance { .. } => "compliance",
            Self::NoImages => "no-images",
            Self::GpuModel { .. } => "gpu-model",
            Self::GpusPerNode { .. } => "gpus-per-node",
            Self::GpusTotal { .. } => "gpus-total",
            Self::Cpus { .. } => "cpus",
            Self::Memory { .. } => "memory",
            Self::Shape { .. } => "shape",
            Self::Price { .. } => "price",
            Self::DataAbsent { .. } => "data-absent",
            Self::Quota { .. } => "quota",
            Self::Reserved { .. } => "reserved",
            Self::NotReported { .. } => "not-reported",
            Self::Lost => "lost",
            Self::Suspect => "suspect",
            Self::Drains => "drains",
            Self::Closed { .. } => "closed",
            Self::Stale { .. } => "stale",
            Self::GpusBusy { .. } => "gpus-busy",
            Self::GpusApart { .. } => "gpus-apart",
            Self::GpusKept { .. } => "gpus-kept",
            Self::CpusBusy { .. } => "cpus-busy",
            Self::MemoryBusy { .. } => "memory-busy",
            Self::Refused { .. } => "refused",
            Self::OlderFirst => "older-first",
            Self::RestsAfter { .. } => "rests",
            Self::ClaimStands { .. } => "claim",
        }
    }

    /// It may pass: worth waiting for.
    pub fn passing(&self) -> bool {
        match self {
            Self::Quota { passing, .. } => *passing,
            Self::DataAbsent { cut, .. } => *cut,
            _ => self.distance() == 0,
        }
    }

    /// How far the cluster is from fitting; the nearest has the least in sum. 0 for what passes.
    pub fn distance(&self) -> u32 {
        match self {
            Self::Witness => 9,
            Self::GpuModel { .. } => 6,
            Self::NotChosen => 5,
            Self::Region { .. } | Self::Compliance { .. } => 4,
            Self::Zone { .. } | Self::NoImages | Self::Partition { .. } | Self::Feature { .. } => 3,
            Self::Label { .. } | Self::DataAbsent { cut: false, .. } => 2,
            Self::GpusPerNode { .. }
            | Self::GpusTotal { .. }
            | Self::Cpus { .. }
            | Self::Memory { .. }
            | Self::Shape { .. }
            | Self::Price { .. }
            | Self::Quota { passing: false, .. } => 1,
            _ => 0,
        }
    }
}

/// Models in words: `A100-80G or H100`, `GPU` where any will do.
fn models(list: &[String]) -> String {
    if list.is_empty() { "GPU".into() } else { list.join(" or ") }
}

fn or_none(list: &[String]) -> String {
    if list.is_empty() { "none".into() } else { list.join(", ") }
}

/// The first few of a list in words.
fn some(list: &[String]) -> String {
    let first: Vec<&str> = list.iter().take(8).map(String::as_str).collect();
    let more = list.len() - first.len();
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    if first.is_empty() { "none".into() } else { first.join(", ") + &tail }
}

fn usd(milli: u64) -> String {
    format!("{:.2} USD", milli as f64 / 1e3)
}

/// Names in words, the first few.
pub(super) fn names(list: &[PeerName]) -> String {
    let first: Vec<&str> = list.iter().take(3).map(PeerName::as_str).collect();
    let more = list.len().saturating_sub(first.len());
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    first.join(", ") + &tail
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Witness => f.write_str("is a witness: it stores records and runs nothing"),
            Self::NotChosen => f.write_str("is not among placement.clusters"),
            Self::Region { have, wanted } => {
                write!(f, "is in region {have:?}; wanted: {}", wanted.join(", "))
            }
            Self::Zone { have, wanted } => write!(f, "is in zone {have:?}; wanted: {}", wanted.join(", ")),
            Self::Label { key, wanted, have: Some(have) } => {
                write!(f, "wants label {key}={wanted}, has {have}")
            }
            Self::Label { key, wanted, have: None } => {
                write!(f, "wants label {key}={wanted}, has no such label")
            }
            Self::Partition { wanted, have } => {
                write!(f, "its Slurm has no partition {}; has {}", some(wanted), some(have))
            }
            Self::Feature { wanted, have } => {
                write!(f, "no node of its Slurm has feature {}; has {}", some(wanted), some(have))
            }
            Self::Compliance { wanted, have } => {
                write!(f, "must stay in compliance domain {wanted}; is in: {}", or_none(have))
            }
            Self::NoImages => f.write_str("runs no images: neither podman nor docker is installed"),
            Self::GpuModel { wanted, have } => {
                let have = if have.is_empty() { "no GPU".to_owned() } else { have.join(", ") };
                write!(f, "wants {}, has {have}", models(wanted))
            }
            Self::GpusPerNode { models: m, wanted, have } => {
                write!(f, "wants {wanted} x {} on one node, has {have}", models(m))
            }
            Self::GpusTotal { models: m, wanted, have } => {
                write!(f, "wants {wanted} x {} in all, has {have}", models(m))
            }
            Self::Cpus { wanted, have } => write!(f, "wants {wanted} CPUs on one node, has {have}"),
            Self::Memory { wanted, have } => write!(f, "wants {wanted} of memory on one node, has {have}"),
            Self::Shape { nodes, gpus, cpus, memory, have } => write!(
                f,
                "wants {nodes} nodes of {gpus} GPUs, {cpus} CPUs, {memory} each; has room for {have} when empty"
            ),
            Self::Price { most, have } => {
                write!(f, "may pay {} per GPU hour, costs {}", usd(*most), usd(*have))
            }
            Self::DataAbsent { name, size, held_by, cut } => {
                let size = size.map_or(String::new(), |s| format!(" ({s})"));
                write!(f, "does not hold dataset {name}{size}, and datasets are not moved to it")?;
                match (held_by.is_empty(), cut) {
                    (false, _) => write!(f, "; held by {}", names(held_by)),
                    (true, true) => f.write_str("; it may be among those that clusters do not name"),
                    (true, false) => f.write_str("; no cluster says that it holds it"),
                }
            }
            Self::Quota { text, .. } | Self::Reserved { text } => f.write_str(text),
            Self::NotReported { part } if part == "it" => f.write_str("has not reported yet"),
            Self::NotReported { part } => write!(f, "has not reported its {part} yet"),
            Self::Lost => f.write_str("is lost: not heard of for long"),
            Self::Suspect => f.write_str("is suspect: not heard of lately"),
            Self::Drains => f.write_str("drains: it takes no new jobs"),
            Self::Closed { why } => write!(f, "takes no new jobs: {why}"),
            Self::Stale { age } => write!(f, "its report is {age} old"),
            Self::GpusBusy { wanted, free, queued } => {
                write!(f, "{free} of {wanted} GPUs wanted are free; {queued} jobs wait there")
            }
            Self::GpusApart { nodes, each, free } => {
                write!(f, "{free} GPUs are free, and not {each} together on {nodes} of its nodes")
            }
            Self::GpusKept { wanted, free, kept, priority } => {
                write!(
                    f,
                    "{free} GPUs are free, {wanted} are wanted, {kept} are kept for priority {priority} and jobs that ran \
                     before"
                )
            }
            Self::CpusBusy { nodes, wanted, free } => {
                write!(f, "{free} CPUs are free, wants {nodes} x {wanted}")
            }
            Self::MemoryBusy { nodes, wanted, free } => {
                write!(f, "{free} of memory is free, wants {nodes} x {wanted}")
            }
            Self::Refused { why } => write!(f, "refused the claim: {why}"),
            Self::RestsAfter { strikes, left } => {
                write!(f, "refused or lost {strikes} in a row: asked last for {left} more")
            }
            Self::OlderFirst => f.write_str(
                "it is first in line; nodes are held for jobs that wait longer, at other clusters, first",
            ),
            Self::ClaimStands { ahead: Some(n) } => write!(f, "a claim stands there, {n} ahead of it"),
            Self::ClaimStands { ahead: None } => f.write_str("a claim was sent there, no answer yet"),
        }
    }
}
