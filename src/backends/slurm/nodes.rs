//! From Slurm's nodes and jobs to what the core's books need: groups of nodes, what others hold, and where the
//! attempts of this peer really run.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::driver::{NativeJob, NativeNode, NativeState};
use crate::base::{Bytes, MilliCpu};
use crate::core::api::{AttemptKey, ClusterState, Held, NodesNews, Waiting};
use crate::model::partitions::{NodeOf, SlurmReport};
use crate::model::report::{CapacityReport, NodesOut};
use crate::model::{NodeCapacity, gpu};

/// The nodes that may be used, in the order in which the core counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMap {
    /// Groups of nodes that are alike.
    pub groups: Vec<NodeCapacity>,
    /// Slurm's GPU type of each canonical model, for `--gres`.
    pub types: BTreeMap<String, String>,
    index: BTreeMap<String, u32>,
    /// Nodes that may not be used, with the reason.
    pub left_out: Vec<(String, String)>,
    /// Of all nodes, also of partitions that are not offered: a script may name them.
    report: Option<SlurmReport>,
    /// The partitions that are used; all where there is none.
    partitions: Vec<String>,
    /// Slurm named nodes at all.
    known: bool,
}

/// Groups of nodes that are told apart: where nearly every node is a little different, a report would have no room for all.
const GROUPS_MAX: usize = 48;
/// Bytes of all groups in a report: labels and terms need room beside them, names of what is left out give way.
const GROUPS_BYTES_MAX: usize = 12_000;
/// Why a node is left out whose partitions are all hidden, or closed to the user's groups,
const NOT_SHOWN: &str = "its partitions are hidden from this user";
/// one that is of a kind for which there is no room,
const TOO_MANY_KINDS: &str = "too many kinds of nodes";
/// and one whose GPUs would be more than any cluster is believed to have.
const TOO_MANY_GPUS: &str = "too many GPUs for one cluster";

/// Why a job waits that would start if there were room; one that is held, or waits for a time or another job, would not.
const WAITS_FOR_ROOM: [&str; 4] = ["", "None", "Resources", "Priority"];

/// The canonical model of a node's GPUs: by the operator's word, by the GRES type with what the features say of its
/// memory, else the type as it is.
fn model_of(node: &NativeNode, names: &BTreeMap<String, String>) -> Option<String> {
    let (kind, _) = node.gpus.as_ref()?;
    if let Some(name) = names.get(kind) {
        return Some(name.clone());
    }
    let known = |text: &str| {
        let name = gpu::canonical_measured(text, Bytes(0)).ok()?;
        (gpu::vendor(&name).is_some() && gpu::memory(&name).is_some()).then_some(name)
    };
    if let Some(name) = known(kind) {
        return Some(name);
    }
    let head = kind.to_ascii_uppercase();
    let by_feature = node
        .features
        .iter()
        .filter_map(|f| known(f))
        .find(|name| kind.is_empty() || name.to_ascii_uppercase().starts_with(&head));
    by_feature.or_else(|| {
        let kind = if kind.is_empty() { "gpu" } else { kind };
        Some(gpu::canonical_measured(kind, Bytes(0)).unwrap_or_else(|_| "gpu".into()))
    })
}

/// A node and its GPUs' model.
type Of<'n> = (Option<String>, &'n NativeNode);
/// Nodes by model and number of GPUs, CPUs and memory.
type Alike<'n> = BTreeMap<(Option<String>, u32, u64, u64), Vec<&'n NativeNode>>;

/// Nodes whose CPUs and memory are the same in so many leading bits.
fn alike<'n>(nodes: &[Of<'n>], bits: u32) -> Alike<'n> {
    let coarse = |n: u64| {
        let less = (u64::BITS - n.leading_zeros()).saturating_sub(bits);
        n >> less << less
    };
    let mut alike = Alike::new();
    for (model, node) in nodes {
        let gpus = node.gpus.as_ref().map_or(0, |(_, n)| *n);
        let key = (model.clone(), gpus, coarse(node.cpus.into()), coarse(node.memory.0));
        alike.entry(key).or_default().push(node);
    }
    alike
}

/// A group as it is told, and its nodes in the order in which they are counted.
type Group<'n> = (NodeCapacity, Vec<&'n NativeNode>);

fn group<'n>(
    ((model, gpus, ..), mut same): ((Option<String>, u32, u64, u64), Vec<&'n NativeNode>),
) -> Group<'n> {
    same.sort_by(|a, b| a.name.cmp(&b.name));
    let told = NodeCapacity {
        name: same.first().map(|n| n.name.clone()).unwrap_or_default(),
        count: u32::try_from(same.len()).unwrap_or(u32::MAX),
        gpus,
        gpu_memory: model.as_deref().and_then(gpu::memory).unwrap_or_default(),
        gpu_model: model,
        // What each of them has.
        cpus: MilliCpu(same.iter().map(|n| u64::from(n.cpus) * 1_000).min().unwrap_or_default()),
        memory: same.iter().map(|n| n.memory).min().unwrap_or_default(),
        declared: false,
    };
    (told, same)
}

/// Keeps the groups with the most nodes, of equal ones those with more GPUs, as many as a report has room for, and gives
/// the rest back: one group too many, and nothing of the cluster would be told.
fn keep_largest<'n>(groups: &mut Vec<Group<'n>>) -> Vec<Group<'n>> {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_key(|i| groups.get(*i).map(|(told, _)| Reverse((told.count, told.gpus))));
    let (mut bytes, mut kept) = (0_usize, vec![false; groups.len()]);
    for i in by_size.into_iter().take(GROUPS_MAX) {
        let Some((told, _)) = groups.get(i) else { continue };
        // And the comma.
        let more = serde_json::to_vec(told).map_or(usize::MAX, |text| text.len() + 1);
        if bytes.saturating_add(more) > GROUPS_BYTES_MAX {
            break;
        }
        bytes += more;
        if let Some(kept) = kept.get_mut(i) {
            *kept = true;
        }
    }
    let (stay, go): (Vec<_>, Vec<_>) =
        std::mem::take(groups).into_iter().zip(kept).partition(|(_, kept)| *kept);
    *groups = stay.into_iter().map(|(group, _)| group).collect();
    go.into_iter().map(|(group, _)| group).collect()
}

impl NodeMap {
    /// Of the partitions that are used (all where none is named).
    pub fn new(nodes: &[NativeNode], partitions: &[String], names: &BTreeMap<String, String>) -> Self {
        Self::of_shown(nodes, partitions, names, None)
    }

    /// The same where it is told which partitions are shown to this user: what lies in others only is offered where an
    /// operator has named them.
    pub(super) fn of_shown(
        nodes: &[NativeNode],
        partitions: &[String],
        names: &BTreeMap<String, String>,
        shown: Option<&[String]>,
    ) -> Self {
        let report = SlurmReport::of(nodes.iter().map(|n| NodeOf {
            partitions: &n.partitions,
            features: &n.features,
            up: n.usable,
            gpus: n.gpus.as_ref().map_or(0, |(_, gpus)| *gpus),
        }));
        let known = !nodes.is_empty();
        let mut map = Self { partitions: partitions.to_vec(), known, report, ..Self::default() };
        let mut usable: Vec<Of> = Vec::new();
        let mut gpus_in_all: u64 = 0;
        for node in nodes {
            if !partitions.is_empty() && !node.partitions.iter().any(|p| partitions.contains(p)) {
                continue;
            }
            let shown = shown.filter(|_| partitions.is_empty() && !node.partitions.is_empty());
            if shown.is_some_and(|shown| !node.partitions.iter().any(|p| shown.contains(p))) {
                map.left_out.push((node.name.clone(), NOT_SHOWN.into()));
                continue;
            }
            if !node.usable {
                map.left_out.push((node.name.clone(), node.state.clone()));
                continue;
            }
            let gpus = node.gpus.as_ref().map_or(0, |(_, gpus)| u64::from(*gpus));
            if gpus > 0 && gpus_in_all.saturating_add(gpus) > CapacityReport::COUNT_MAX {
                map.left_out.push((node.name.clone(), TOO_MANY_GPUS.into()));
                continue;
            }
            gpus_in_all = gpus_in_all.saturating_add(gpus);
            let model = model_of(node, names);
            if let (Some(model), Some((kind, _))) = (&model, &node.gpus) {
                map.types.entry(model.clone()).or_insert_with(|| kind.clone());
            }
            usable.push((model, node));
        }
        let mut groups = alike(&usable, u64::BITS);
        for bits in (1..=6).rev() {
            if groups.len() <= GROUPS_MAX {
                break;
            }
            groups = alike(&usable, bits);
        }
        let mut all: Vec<Group> = groups.into_iter().map(group).collect();
        for (_, nodes) in keep_largest(&mut all) {
            let out = nodes.iter().map(|node| (node.name.clone(), TOO_MANY_KINDS.to_owned()));
            map.left_out.extend(out);
        }
        let mut next = 0_u32;
        for (group, nodes) in all {
            for node in nodes {
                map.index.insert(node.name.clone(), next);
                next = next.saturating_add(1);
            }
            map.groups.push(group);
        }
        map
    }

    /// For a start at which Slurm does not answer: what GPUs are asked for by.
    pub(super) fn of_types(types: BTreeMap<String, String>) -> Self {
        Self { types, ..Self::default() }
    }

    /// The state of the cluster, from one list of jobs. `ours` names the attempt of a job that is this peer's.
    pub fn state(&self, jobs: &[NativeJob], ours: impl Fn(&NativeJob) -> Option<AttemptKey>) -> ClusterState {
        let mut held: BTreeMap<u32, Held> = BTreeMap::new();
        let mut placed = Vec::new();
        let mut waiting = Waiting::default();
        let here = |j: &NativeJob| {
            self.partitions.is_empty()
                || j.partition.split(',').any(|p| self.partitions.iter().any(|o| o == p))
        };
        for job in jobs.iter().filter(|j| j.state == NativeState::Pending && here(j) && ours(j).is_none()) {
            if WAITS_FOR_ROOM.contains(&job.reason.as_str()) {
                waiting.jobs = waiting.jobs.saturating_add(1);
                waiting.gpus = waiting.gpus.saturating_add(u64::from(job.gpus_wanted));
            }
        }
        for job in jobs.iter().filter(|j| j.state == NativeState::Active) {
            if let Some(key) = ours(job) {
                let at: Option<Vec<u32>> =
                    job.parts.iter().map(|p| self.index.get(&p.node).copied()).collect();
                placed.extend(at.filter(|at| !at.is_empty()).map(|at| (key, at)));
                continue;
            }
            for part in &job.parts {
                let Some(&node) = self.index.get(&part.node) else { continue };
                let none = Held { node, gpus: 0, cpus: MilliCpu(0), memory: Bytes(0) };
                let sum = held.entry(node).or_insert(none);
                sum.gpus = sum.gpus.saturating_add(part.gpus);
                sum.cpus = MilliCpu(sum.cpus.0.saturating_add(u64::from(part.cpus) * 1_000));
                sum.memory = Bytes(sum.memory.0.saturating_add(part.memory.0));
            }
        }
        placed.sort();
        ClusterState {
            nodes: self.groups.clone(),
            others: held.into_values().collect(),
            placed,
            closed: self.groups.is_empty().then(|| self.none_up()),
            waiting,
        }
    }

    /// What is told of the nodes beside their capacity.
    pub(super) fn news(&self) -> NodesNews {
        let out = NodesOut::of(self.left_out.iter().map(|(name, why)| (name.as_str(), why.as_str())));
        NodesNews { images: Vec::new(), out, slurm: self.report.clone() }
    }

    fn none_up(&self) -> String {
        if !self.known {
            return "unknown: Slurm names no node at all".into();
        }
        let few: Vec<String> = self.left_out.iter().take(3).map(|(n, why)| format!("{n} {why}")).collect();
        if few.is_empty() {
            return "Slurm has no node in these partitions".into();
        }
        format!("no node of Slurm takes jobs of this peer: {}", few.join(", "))
    }
}

/// An empty list is believed when it comes a second time in a row: one alone may be a controller that has not read its
/// state yet, or an answer that was lost on the way.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    empty: bool,
}

impl Doubt {
    /// Whether a list counts, that is empty or not.
    pub(super) fn believes(&mut self, empty: bool) -> bool {
        let before = std::mem::replace(&mut self.empty, empty);
        !empty || before
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::Part;
    use super::*;
    use crate::base::{Epoch, JobId};

    fn node(name: &str, usable: bool, gpus: Option<(&str, u32)>) -> NativeNode {
        NativeNode {
            name: name.into(),
            usable,
            state: if usable { "IDLE" } else { "DOWN (fan)" }.into(),
            cpus: 8,
            memory: Bytes::gib(8),
            gpus: gpus.map(|(k, n)| (k.to_owned(), n)),
            partitions: vec!["main".into()],
            features: vec!["a100-80g".into()],
        }
    }

    #[test]
    fn alike_nodes_are_one_group_and_those_that_are_down_are_left_out() {
        let nodes = [
            node("n2", true, Some(("h100", 4))),
            node("n1", true, Some(("h100", 4))),
            node("n3", false, Some(("h100", 4))),
            node("c1", true, None),
            node("a1", true, Some(("a100", 8))),
        ];
        let map = NodeMap::new(&nodes, &[], &BTreeMap::new());
        let groups: Vec<_> =
            map.groups.iter().map(|g| (g.name.as_str(), g.count, g.gpu_model.as_deref(), g.gpus)).collect();
        assert_eq!(groups, [("c1", 1, None, 0), ("a1", 1, Some("A100-80G"), 8), ("n1", 2, Some("H100"), 4)]);
        assert_eq!(map.types.get("H100").map(String::as_str), Some("h100"));
        assert_eq!(map.left_out, [("n3".to_owned(), "DOWN (fan)".to_owned())]);
        assert!(NodeMap::new(&nodes, &["other".into()], &BTreeMap::new()).groups.is_empty());
        let named = BTreeMap::from([("h100".to_owned(), "H100-NVL".to_owned())]);
        assert!(NodeMap::new(&nodes, &[], &named).types.contains_key("H100-NVL"));
    }

    /// Memory as each node measured it: all in one report, and none offers more than each of its nodes has.
    #[test]
    fn nodes_that_differ_a_little_are_put_together_where_they_would_be_too_many() {
        let of = |n: u64| NativeNode {
            cpus: 64 + (n % 3) as u32,
            memory: Bytes::mib(512_000 + 17 * n),
            ..node(&format!("n{n:04}"), true, Some(("h100", 8)))
        };
        let few: Vec<NativeNode> = (0..48).map(of).collect();
        assert_eq!(NodeMap::new(&few, &[], &BTreeMap::new()).groups.len(), 48, "as they are");
        let many: Vec<NativeNode> = (0..1_000).map(of).chain([node("small", true, None)]).collect();
        let map = NodeMap::new(&many, &[], &BTreeMap::new());
        assert!(map.groups.len() <= GROUPS_MAX, "{}", map.groups.len());
        assert_eq!(map.groups.iter().map(|g| g.count).sum::<u32>(), 1_001);
        let of_node: Vec<&NodeCapacity> =
            map.groups.iter().flat_map(|g| std::iter::repeat_n(g, g.count as usize)).collect();
        for node in &many {
            let group = of_node[map.index[&node.name] as usize];
            assert!(group.memory <= node.memory && group.cpus.0 <= u64::from(node.cpus) * 1_000);
            assert!(group.memory.0 * 2 > node.memory.0, "not much less either: {group:?}");
        }
    }

    /// What is granted there, sbatch would refuse; a script may name a hidden partition, and an operator may.
    #[test]
    fn nodes_of_hidden_partitions_are_told_and_offered_only_where_they_are_named() {
        let of = |name: &str, partitions: &[&str]| NativeNode {
            partitions: partitions.iter().map(|p| (*p).to_owned()).collect(),
            ..node(name, true, None)
        };
        let nodes = [of("n1", &["main", "hidden"]), of("n2", &["hidden"]), of("n3", &[])];
        let map = |used: &[String], shown: Option<&[String]>| {
            NodeMap::of_shown(&nodes, used, &BTreeMap::new(), shown)
        };
        let main: Option<&[String]> = Some(&["main".into()]);
        let offered = |map: &NodeMap| map.index.keys().cloned().collect::<Vec<_>>();
        let shown = map(&[], main);
        assert_eq!(offered(&shown), ["n1", "n3"]);
        assert_eq!(shown.left_out, [("n2".to_owned(), NOT_SHOWN.to_owned())]);
        let told = shown.news().slurm.expect("is told");
        assert!(told.partitions.iter().any(|p| p.name == "hidden" && p.nodes == 2), "{told:?}");
        assert_eq!(offered(&map(&["hidden".into()], main)), ["n1", "n2"], "an operator's word");
        assert_eq!(offered(&map(&[], None)).len(), 3, "where it is not told");
        assert_eq!(offered(&map(&[], Some(&[]))), ["n3"], "where all are hidden");
        assert_eq!(offered(&map(&["hidden".into()], Some(&[]))), ["n1", "n2"], "an operator's word");
    }

    /// However much they differ, and however long their names are: the report of them has room for the largest.
    #[test]
    fn kinds_of_nodes_beyond_what_a_report_holds_are_left_out() {
        let kinds = |kinds: u32, long: usize| -> Vec<NativeNode> {
            let of = |n: u32| {
                let kind = format!("k{n:03}{}", "x".repeat(long.min(50)));
                let some = |i| NativeNode {
                    gpus: Some((kind.clone(), 1 + n % 8)),
                    cpus: 1 << (n % 16),
                    features: Vec::new(),
                    ..node(&format!("n{n:03}-{i}{}", "y".repeat(long)), true, None)
                };
                (0..if n.is_multiple_of(10) { 3 } else { 1 }).map(some).collect::<Vec<_>>()
            };
            (0..kinds).flat_map(of).collect()
        };
        for (n, long) in [(200, 0), (40, 200), (48, 0)] {
            let nodes = kinds(n, long);
            let map = NodeMap::new(&nodes, &[], &BTreeMap::new());
            assert!(map.groups.len() <= GROUPS_MAX, "{n} {long}: {}", map.groups.len());
            let bytes = serde_json::to_string(&map.groups).expect("writes").len();
            assert!(bytes < 14_000, "{n} {long}: {bytes} bytes beside what else a report says");
            let kept: usize = map.groups.iter().map(|g| g.count as usize).sum();
            assert_eq!(kept + map.left_out.len(), nodes.len(), "{n} {long}: none is lost");
            assert_eq!(map.left_out.is_empty(), n == 48, "{n} {long}");
            assert!(map.left_out.iter().all(|(_, why)| why == "too many kinds of nodes"));
            let largest = map.groups.iter().filter(|g| g.count == 3).count();
            assert_eq!(largest, n.div_ceil(10) as usize, "{n} {long}: the largest stay");
            assert!(map.left_out.iter().all(|(name, _)| !map.index.contains_key(name)));
            assert_eq!(map.index.values().max().map(|last| *last as usize + 1), Some(kept));
        }
    }

    /// No cluster has more, says a report, and one that has is not published.
    #[test]
    fn gpus_beyond_what_a_report_may_say_are_left_out() {
        let nodes: Vec<NativeNode> =
            (0..102).map(|n| node(&format!("n{n:03}"), true, Some(("h100", 10_000)))).collect();
        let map = NodeMap::new(&nodes, &[], &BTreeMap::new());
        assert_eq!(map.groups.iter().map(|g| (g.count, g.gpus)).collect::<Vec<_>>(), [(100, 10_000)]);
        let out: Vec<&str> = map.left_out.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(out, ["n100", "n101"]);
    }

    #[test]
    fn other_peoples_jobs_count_as_used_and_ours_are_where_they_are() {
        let map = NodeMap::new(&[node("n1", true, None), node("n2", true, None)], &[], &BTreeMap::new());
        let part = |n: &str| Part { node: n.into(), cpus: 3, memory: Bytes::gib(1), gpus: 0 };
        let job = |id, state, parts| NativeJob {
            id,
            name: String::new(),
            comment: String::new(),
            state,
            word: String::new(),
            reason: String::new(),
            status: 0,
            restarts: 0,
            user: String::new(),
            parts,
            partition: "main".into(),
            gpus_wanted: 2,
        };
        let key = AttemptKey { job: JobId([1; 20]), epoch: Epoch(1) };
        let jobs = [
            job(1, NativeState::Active, vec![part("n2")]),
            job(2, NativeState::Active, vec![part("n2")]),
            job(3, NativeState::Completed, vec![part("n1")]),
            job(4, NativeState::Active, vec![part("n1"), part("n2")]),
        ];
        let state = map.state(&jobs, |j| (j.id == 4).then_some(key));
        let cpus = MilliCpu(6_000);
        assert_eq!(state.others, [Held { node: 1, gpus: 0, cpus, memory: Bytes::gib(2) }]);
        assert_eq!(state.placed, [(key, vec![0, 1])]);
        assert_eq!(state.closed, None);
        assert_eq!(state.waiting, Waiting::default());
        let waits = |id, reason: &str, partition: &str| NativeJob {
            reason: reason.into(),
            partition: partition.into(),
            ..job(id, NativeState::Pending, Vec::new())
        };
        let jobs = [
            waits(5, "Resources", "main"),
            waits(6, "Priority", "low,main"),
            waits(7, "Dependency", "main"),
            waits(8, "JobHeldUser", "main"),
            waits(9, "Resources", "low"),
            waits(4, "Resources", "main"),
        ];
        let main = NodeMap::new(&[node("n1", true, None)], &["main".into()], &BTreeMap::new());
        let state = main.state(&jobs, |j| (j.id == 4).then_some(key));
        assert_eq!(state.waiting, Waiting { jobs: 2, gpus: 4 }, "others that wait for room in our partition");
        let none = NodeMap::new(&[node("n1", false, None)], &[], &BTreeMap::new()).state(&[], |_| None);
        assert!(none.closed.is_some_and(|why| why.contains("n1 DOWN")));
    }
}
