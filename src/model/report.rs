//! What a cluster gossips about itself, in facets, so that only what changed travels.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::partitions::SlurmReport;
use crate::base::text::words;
use crate::base::{
    Bytes, ContactId, Epoch, Home, Instant, JobId, MilliCpu, PeerName, Span, StoreId, WallTime,
};

/// One node, or several alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCapacity {
    /// Name prefix; node `i` of `count` is `name` or `name-i`.
    pub name: String,
    /// How many nodes are like this.
    pub count: u32,
    /// Canonical GPU model, none where it has no GPU.
    pub gpu_model: Option<String>,
    /// GPUs per node.
    pub gpus: u32,
    /// GPU memory each.
    pub gpu_memory: Bytes,
    /// CPU per node.
    pub cpus: MilliCpu,
    /// Memory per node.
    pub memory: Bytes,
    /// Declared in the configuration, not found by discovery: shown as virtual.
    pub declared: bool,
}

/// Facet `capacity`: what is there, who runs it, and what it costs. Changes rarely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityReport {
    /// `local`, `slurm`, `kubernetes`, `fake`.
    pub backend: String,
    /// Region, e.g. `eu-central`.
    pub region: String,
    /// Zone inside it; may be empty.
    pub zone: String,
    /// Operator's labels.
    pub labels: BTreeMap<String, String>,
    /// Price per GPU hour in thousandths of a USD.
    pub price_milli: u64,
    /// Power usage effectiveness in thousandths (1200 is 1.2).
    pub pue_milli: u32,
    /// Node groups.
    pub nodes: Vec<NodeCapacity>,
    /// The container runtime found (`podman`, `docker`), none where there is none.
    pub container_runtime: Option<String>,
    /// What holds of the place. Peers of before say nothing of it.
    #[serde(default)]
    pub terms: Terms,
    /// Nodes that are there and take nothing: they are in no group.
    #[serde(default, skip_serializing_if = "NodesOut::is_empty")]
    pub nodes_out: NodesOut,
    /// Partitions and features, where a Slurm is below and has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmReport>,
}

impl CapacityReport {
    /// No cluster has more of anything that is counted: a report with more is none.
    pub const COUNT_MAX: u64 = 1_000_000;
    /// Nor more memory, on one node or on all.
    pub const MEMORY_MAX: Bytes = Bytes(1 << 60);
}

/// Nodes that take nothing, with the reason. Bounded, the first by name, and it says how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodesOut {
    /// The first ones.
    pub nodes: Vec<NodeOut>,
    /// How many more there are.
    pub more: u32,
}

/// A node that takes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeOut {
    /// Its name.
    pub name: String,
    /// `cordoned`, `not ready: NodeStatusUnknown`, `taint dedicated`.
    pub why: String,
}

impl NodesOut {
    /// Most nodes that are named.
    pub const NAMED_MAX: usize = 24;
    /// Bytes of a name, and of a reason.
    pub const TEXT_MAX: usize = 100;

    /// As many of these as may be told.
    pub fn of<'a>(nodes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let plain = |text: &str| words(text, Self::TEXT_MAX);
        let mut nodes: Vec<NodeOut> =
            nodes.into_iter().map(|(name, why)| NodeOut { name: plain(name), why: plain(why) }).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let more = u32::try_from(nodes.len().saturating_sub(Self::NAMED_MAX)).unwrap_or(u32::MAX);
        nodes.truncate(Self::NAMED_MAX);
        Self { nodes, more }
    }

    /// Only how many they are.
    pub fn counted(&self) -> Self {
        let named = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        Self { nodes: Vec::new(), more: self.more.saturating_add(named) }
    }

    /// All nodes take something.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.more == 0
    }
}

/// What holds of a cluster's place: under which rules it stands, and what moving data out of it and power cost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Compliance domains that it is in, e.g. `gdpr`.
    pub compliance: Vec<String>,
    /// Thousandths of a USD per kWh that are not in the price of a GPU hour; 0 where they are.
    pub tariff_milli: u64,
    /// Thousandths of a USD per GB that leaves it,
    pub egress_milli: u64,
    /// and where it costs something else to reach a region.
    pub egress_to_milli: BTreeMap<String, u64>,
}

/// A dataset or an image, and its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Name: of a dataset as jobs write it, of an image its reference.
    pub name: String,
    /// Bytes in all.
    pub size: Bytes,
}

/// Facets `data` and `images`: what a cluster holds. Bounded, the largest first, and it says what was cut, so that
/// nobody takes "not named here" for "not there".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inventory {
    /// The largest ones.
    pub items: Vec<Item>,
    /// How many more there are.
    pub more: u32,
}

impl Inventory {
    /// Most items that are told.
    pub const ITEMS_MAX: usize = 256;
    /// Bytes of names told at most: a facet's value is bounded.
    pub const NAMES_MAX: usize = 6_000;

    /// The largest of these, as many as may be told.
    pub fn of(items: impl IntoIterator<Item = Item>) -> Self {
        let mut items: Vec<Item> = items.into_iter().collect();
        items.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.name.cmp(&b.name)));
        items.dedup_by(|a, b| a.name == b.name);
        let mut bytes = 0;
        let told = items
            .iter()
            .take(Self::ITEMS_MAX)
            .take_while(|item| {
                bytes += item.name.len();
                bytes <= Self::NAMES_MAX
            })
            .count();
        let more = u32::try_from(items.len() - told).unwrap_or(u32::MAX);
        items.truncate(told);
        Self { items, more }
    }

    /// The size of what it names so.
    pub fn size(&self, name: &str) -> Option<Bytes> {
        self.items.iter().find(|item| item.name == name).map(|item| item.size)
    }
}

/// Facet `queue`: what is free and what waits. Changes often.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueReport {
    /// Free GPUs by canonical model.
    pub gpus_free: BTreeMap<String, u32>,
    /// GPUs by model, in all.
    pub gpus_total: BTreeMap<String, u32>,
    /// GPUs held by grants that nobody took yet, by model.
    pub gpus_reserved: BTreeMap<String, u32>,
    /// Free CPU over all nodes.
    pub cpus_free: MilliCpu,
    /// Free memory over all nodes.
    pub memory_free: Bytes,
    /// Attempts that run.
    pub running: u32,
    /// Claims that wait.
    pub queued: u32,
    /// GPUs that the waiting claims ask for.
    pub queued_gpus: u64,
    /// Takes no new work (drain, disk full); why.
    pub closed: Option<String>,
    /// How long a small job that comes now would wait, by GPU model; the empty name is for jobs without GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub waits: BTreeMap<String, Span>,
    /// GPUs that a higher priority could get by preemption, by the priority that holds them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus_reclaimable: BTreeMap<u8, u32>,
    /// GPUs that are kept free for jobs that ran before and for urgent ones,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus_buffer: u32,
    /// of at least this priority.
    #[serde(default, skip_serializing_if = "is_zero_8")]
    pub buffer_priority: u8,
    /// Nodes in use that have GPUs free, by model and by how many are free on one. What else is free is on nodes that nobody
    /// uses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus_left: BTreeMap<String, BTreeMap<u32, u32>>,
    /// Reservations, the first to begin first,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ReservedReport>,
    /// and how many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserved_more: u32,
    /// Jobs for which nodes are held until they are free, without a known end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keeps: Vec<KeepReport>,
}

impl QueueReport {
    /// A report that has more CPUs free is none.
    pub const CPUS_FREE_MAX: MilliCpu = MilliCpu(1_000 * CapacityReport::COUNT_MAX);
}

/// Nodes are held for a job: for whom. A cluster that would do so for a younger one does not, beyond a small part of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepReport {
    /// Whose.
    pub job: JobId,
    /// For its attempt of this epoch.
    pub epoch: Epoch,
    /// Its priority.
    pub priority: u8,
    /// Since when it waits.
    pub since: WallTime,
    /// GPUs that it asks for,
    pub gpus: u64,
    /// of these models.
    pub models: Vec<String>,
}

/// What a cluster keeps for a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedReport {
    /// Which.
    pub id: JobId,
    /// For whom.
    pub tenant: String,
    /// GPUs.
    pub gpus: u32,
    /// So many of them are not there.
    #[serde(default)]
    pub short: u32,
    /// So many are held by the tenant's attempts and grants.
    #[serde(default)]
    pub used: u32,
    /// Those that nobody holds, by model. While its time runs they are in `gpus_reserved`, not in `gpus_free`.
    #[serde(default)]
    pub idle: BTreeMap<String, u32>,
    /// From when on,
    pub from: WallTime,
    /// and until when.
    pub until: WallTime,
    /// The record says so; otherwise it is only held until it does.
    #[serde(default)]
    pub confirmed: bool,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}
fn is_zero_8(n: &u8) -> bool {
    *n == 0
}

pub(crate) mod queue_flash;

/// Facet `contact`: the contact record that new attempts are bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContactReport {
    /// Which record.
    pub contact: ContactId,
    /// Series number.
    pub series: u64,
    /// Who holds it.
    pub homes: Vec<Home>,
    /// Its incarnation as the cluster holds it.
    pub incarnation: u64,
    /// The newest nonce that a majority took.
    pub nonce: (u64, u64),
}

/// Facet `health`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HealthReport {
    /// The peer reaches no other peer, although it has some.
    pub isolated: bool,
    /// Free bytes of the state folder's disk.
    pub disk_free: Bytes,
    /// Refuses new records since the disk is nearly full.
    pub disk_full: bool,
    /// CPU use, thousandths of all cores.
    pub cpu_milli: u32,
    /// GPU use, thousandths of all GPUs, where it can be measured.
    pub gpu_milli: Option<u32>,
    /// The peer's boot number.
    pub boot: u64,
    /// What people should know of its disk: it was begun anew since the old one was an older copy of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_note: Option<String>,
}

/// Facet `build`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BuildReport {
    /// Version of the binary.
    pub version: String,
    /// Newest wire version it speaks.
    pub wire: u16,
}

/// What one peer measured on its link to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSample {
    /// The other end.
    pub to: PeerName,
    /// Smallest round trip seen lately, microseconds.
    pub rtt_us: u64,
    /// Lost packets, parts per million.
    pub loss_ppm: u32,
    /// Measured throughput in bits per second, none where it was never measured.
    pub bandwidth_bps: Option<u64>,
    /// When the bandwidth was measured.
    pub bandwidth_at: Option<WallTime>,
    /// When RTT and loss were read.
    pub at: WallTime,
    /// A direct connection stands.
    pub direct: bool,
}

/// All that is known of one peer's cluster, with its age.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whose.
    pub peer: PeerName,
    /// Its disk.
    pub store: StoreId,
    /// Facets, none until heard.
    pub capacity: Option<CapacityReport>,
    /// What is free.
    pub queue: Option<QueueReport>,
    /// Its contact record.
    pub contact: Option<ContactReport>,
    /// Its health.
    pub health: Option<HealthReport>,
    /// Its build.
    pub build: Option<BuildReport>,
    /// Its links.
    pub links: Vec<LinkSample>,
    /// The datasets that it holds, none where it never said.
    pub data: Option<Inventory>,
    /// The images that it holds.
    pub images: Option<Inventory>,
    /// What it finds wrong, and what it knows of what was said about it. Shared: most of a view stays as it was.
    pub alerts: Option<Arc<super::alert::AlertsReport>>,
    /// When any of it last changed here, on this peer's clock.
    pub heard_at: Instant,
}

/// How alive a member looks from here. A hint, never a truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// Heard lately.
    Alive,
    /// Not heard for a while.
    Suspect,
    /// Not heard for long, or it said goodbye.
    Lost,
}

impl Liveness {
    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        }
    }
}

/// One member as this peer sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// The member.
    pub peer: PeerName,
    /// Its admitted disk.
    pub store: StoreId,
    /// Runs nothing, stores records.
    pub witness: bool,
    /// How alive it looks.
    pub liveness: Liveness,
    /// It said that it is draining.
    pub draining: bool,
    /// What it says of itself. Shared: a view is made anew whenever anything of anybody changes, and most of it is
    /// what stood in the one before.
    pub report: Option<Arc<Report>>,
}

impl MemberView {
    /// It says that its disk is nearly full.
    pub fn disk_full(&self) -> bool {
        self.report.as_ref().is_some_and(|r| r.health.as_ref().is_some_and(|h| h.disk_full))
    }
}

/// Everything this peer knows of the mesh that is soft: it may be stale, and says how old it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct View {
    /// By name; the peer itself is in it.
    pub members: BTreeMap<PeerName, MemberView>,
    /// This peer reaches nobody, although it has members to reach.
    pub isolated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_is_bounded_and_says_what_was_cut() {
        let item = |i: u64| Item { name: format!("set-{i}"), size: Bytes(i) };
        let few = Inventory::of((1..=3).map(item));
        assert_eq!((few.items[0].size, few.more, few.size("set-2")), (Bytes(3), 0, Some(Bytes(2))));
        let many = Inventory::of((1..=1_000).map(item));
        assert_eq!((many.items.len(), many.more, many.items[0].size), (256, 744, Bytes(1_000)));
        let long = Inventory::of(
            (1..=20).map(|i| Item { name: "n".repeat(1_000) + &i.to_string(), size: Bytes(1) }),
        );
        assert_eq!((long.items.len(), long.more), (5, 15));
        let out = NodesOut::of([("n2", "cordoned"), ("n1", "taint\u{1b} x")]);
        assert_eq!((out.nodes[0].name.as_str(), out.nodes[0].why.as_str(), out.more), ("n1", "taint  x", 0));
        let many: Vec<String> = (0..100).map(|n| format!("n{n:03}")).collect();
        let out = NodesOut::of(many.iter().map(|n| (n.as_str(), "cordoned")));
        assert_eq!((out.nodes.len(), out.more, out.nodes[0].name.as_str()), (24, 76, "n000"));
        let old: Inventory = serde_json::from_str("{}").expect("fields of later versions may be missing");
        assert_eq!(old, Inventory::default());
    }
}
