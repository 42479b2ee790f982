//! From nodes and pods to what the core's books need: groups of nodes that are alike, what others hold, and where
//! the attempts of this peer really run.

use std::collections::BTreeMap;

use super::objects::{Container, Node, Pod, milli, units};
use crate::base::{Bytes, MilliCpu};
use crate::core::api::{AttemptKey, ClusterState, Held};
use crate::model::report::{Item, NodesOut};
use crate::model::{NodeCapacity, gpu};

/// Resources that are GPUs, by the end of their names; and the model, where the name itself is one.
const GPU_RESOURCES: [(&str, Option<&str>); 9] = [
    ("nvidia.com/gpu", None),
    ("amd.com/gpu", None),
    ("gpu.intel.com/i915", None),
    ("gpu.intel.com/xe", None),
    ("habana.ai/gaudi", Some("Gaudi2")),
    ("huawei.com/Ascend910", None),
    ("huawei.com/Ascend310P", None),
    ("metax-tech.com/gpu", None),
    ("aliyun.com/ppu", None),
];
/// Labels of nodes that name the GPUs' product.
const PRODUCT_LABELS: [&str; 7] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/model",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
    "node.kubernetes.io/accelerator-type",
];
/// Its memory in MiB.
const MEMORY_LABEL: &str = "nvidia.com/gpu.memory";
/// Memory is counted in whole steps, so that nodes that are alike are seen to be.
const MEMORY_STEP: u64 = 256 << 20;
/// Images passed on.
const IMAGES_MAX: usize = 200;

/// What may be told about nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Only nodes with these labels.
    pub selector: BTreeMap<String, String>,
    /// Taints that our pods tolerate: `key`, `key=value`, each with `:effect` or without.
    pub tolerations: Vec<String>,
    /// Models of product labels or resources that do not say enough.
    pub gpu_names: BTreeMap<String, String>,
}

/// How a model is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The resource.
    pub resource: String,
    /// The label that names the product and its value; none where the resource says all.
    pub label: Option<(String, String)>,
}

/// The nodes that may be used, in the order in which the core counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMap {
    /// Groups of nodes that are alike.
    pub groups: Vec<NodeCapacity>,
    /// How each model is asked for.
    pub models: BTreeMap<String, Vec<Wanted>>,
    /// Nodes that may not be used, with the reason.
    pub left_out: Vec<(String, String)>,
    index: BTreeMap<String, u32>,
    total: Vec<Free>,
}

/// What a node has, or has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Free {
    gpus: u64,
    cpus: u64,
    memory: u64,
}

impl Free {
    fn minus(self, n: Free) -> Option<Free> {
        Some(Free {
            gpus: self.gpus.checked_sub(n.gpus)?,
            cpus: self.cpus.checked_sub(n.cpus)?,
            memory: self.memory.checked_sub(n.memory)?,
        })
    }
    fn plus(self, n: Free) -> Free {
        Free {
            gpus: self.gpus.saturating_add(n.gpus),
            cpus: self.cpus.saturating_add(n.cpus),
            memory: self.memory.saturating_add(n.memory),
        }
    }
    fn max(self, n: Free) -> Free {
        Free { gpus: self.gpus.max(n.gpus), cpus: self.cpus.max(n.cpus), memory: self.memory.max(n.memory) }
    }
}

fn is_gpu(resource: &str) -> bool {
    GPU_RESOURCES.iter().any(|(name, _)| *name == resource)
        || resource.ends_with("/gpu")
        || resource.starts_with("huawei.com/Ascend")
        // Slices of an NVIDIA GPU under the mixed strategy.
        || resource.starts_with("nvidia.com/mig-")
}

/// The GPUs of a node: the resource of which it has most, and how many.
fn gpus(node: &Node) -> Option<(String, u32)> {
    let all = node.status.allocatable.iter().filter(|(name, _)| is_gpu(name));
    let counted = all.map(|(name, n)| (u32::try_from(units(n)).unwrap_or(u32::MAX), name));
    counted.filter(|(n, _)| *n > 0).max().map(|(n, name)| (name.clone(), n))
}

/// Canonical model, and the label that says so.
fn model_of(node: &Node, resource: &str, rules: &Rules) -> (String, Option<(String, String)>) {
    let labels = &node.metadata.labels;
    let memory = labels.get(MEMORY_LABEL).and_then(|m| m.parse::<u64>().ok()).unwrap_or(0);
    let exact = |text: &str| gpu::canonical_measured(text, Bytes(memory << 20)).ok();
    for key in PRODUCT_LABELS {
        let Some(value) = labels.get(key) else { continue };
        let at = Some((key.to_owned(), value.clone()));
        if let Some(name) = rules.gpu_names.get(value) {
            return (name.clone(), at);
        }
        // `NVIDIA-H100-80GB-HBM3-SHARED` is shared in time; `nvidia-tesla-a100` is Google's way to say it.
        let plain = value.trim_end_matches("-SHARED").replace("nvidia-tesla-", "").replace("nvidia-", "");
        if let Some(name) = exact(value).or_else(|| exact(&plain)).filter(|n| gpu::vendor(n).is_some()) {
            return (name, at);
        }
        if let Some(name) = exact(value) {
            return (name, at);
        }
    }
    if let Some(name) = rules.gpu_names.get(resource) {
        return (name.clone(), None);
    }
    let own = GPU_RESOURCES.iter().find(|(name, _)| *name == resource).and_then(|(_, model)| *model);
    let tail = resource.rsplit('/').next().unwrap_or(resource);
    (own.and_then(exact).or_else(|| exact(tail)).unwrap_or_else(|| "gpu".into()), None)
}

/// A toleration of ours, as it is written in a pod.
pub fn toleration(text: &str) -> serde_json::Value {
    let (pair, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let mut made = match pair.split_once('=') {
        Some((key, value)) => serde_json::json!({ "key": key, "operator": "Equal", "value": value }),
        None => serde_json::json!({ "key": pair, "operator": "Exists" }),
    };
    if !effect.is_empty() {
        made["effect"] = effect.into();
    }
    made
}

/// Why no pod of ours may go to a node; none where it may.
fn closed(node: &Node, resource: Option<&str>, rules: &Rules) -> Option<String> {
    if node.spec.unschedulable {
        return Some("cordoned".into());
    }
    let ready = node.status.conditions.iter().find(|c| c.kind == "Ready");
    match ready {
        Some(c) if c.status == "True" => {}
        Some(c) => return Some(format!("not ready: {}", c.reason)),
        None => return Some("not ready: it has never said so".into()),
    }
    let tolerated = |key: &str, value: &str, effect: &str| {
        resource.is_some_and(|r| r == key)
            || rules.tolerations.iter().any(|t| {
                let (pair, e) = t.rsplit_once(':').unwrap_or((t, ""));
                (e.is_empty() || e == effect)
                    && pair.split_once('=').map_or(pair == key, |(k, v)| k == key && v == value)
            })
    };
    let hard = node.spec.taints.iter().filter(|t| t.effect != "PreferNoSchedule");
    let taint = hard.filter(|t| !tolerated(&t.key, &t.value, &t.effect)).map(|t| &t.key).next();
    taint.map(|key| format!("taint {key}"))
}

fn asked(container: &Container, resource: &str) -> u128 {
    let needs = &container.resources;
    needs.requests.get(resource).or(needs.limits.get(resource)).and_then(|q| milli(q)).unwrap_or(0)
}

/// What a pod asks for: all containers together, or the largest init container beside the sidecars before it.
fn needs(pod: &Pod) -> Free {
    let of = |c: &Container| {
        let names = c.resources.requests.keys().chain(c.resources.limits.keys());
        let gpu: std::collections::BTreeSet<&String> = names.filter(|n| is_gpu(n)).collect();
        let whole = |m: u128| u64::try_from(m.div_ceil(1_000)).unwrap_or(u64::MAX);
        Free {
            gpus: gpu.iter().map(|n| whole(asked(c, n))).sum(),
            cpus: u64::try_from(asked(c, "cpu")).unwrap_or(u64::MAX),
            memory: whole(asked(c, "memory")),
        }
    };
    let sum = pod.spec.containers.iter().map(of).fold(Free::default(), Free::plus);
    let (mut sidecars, mut most) = (Free::default(), Free::default());
    for init in &pod.spec.init_containers {
        if init.restart_policy == "Always" {
            sidecars = sidecars.plus(of(init));
            most = most.max(sidecars);
        } else {
            most = most.max(sidecars.plus(of(init)));
        }
    }
    let own = |name: &str| pod.spec.overhead.get(name).and_then(|q| milli(q)).unwrap_or(0);
    let overhead = Free {
        gpus: 0,
        cpus: u64::try_from(own("cpu")).unwrap_or(0),
        memory: u64::try_from(own("memory") / 1_000).unwrap_or(0),
    };
    sum.plus(sidecars).max(most).plus(overhead)
}

/// What is kept of a pod, whoever's it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    node: Option<String>,
    needs: Free,
    over: bool,
    /// Not to be scheduled yet.
    gated: bool,
    /// Attempt, mark and rank, where its labels name one.
    ours: Option<(AttemptKey, String, u32)>,
}

impl Load {
    /// Of a pod.
    pub fn of(pod: &Pod, view: Option<&super::pods::PodView>) -> Self {
        Self {
            node: Some(pod.spec.node_name.clone()).filter(|n| !n.is_empty()),
            needs: needs(pod),
            over: pod.is_over(),
            gated: !pod.spec.scheduling_gates.is_empty() || pod.metadata.deletion_timestamp.is_some(),
            ours: view.map(|v| (v.key, v.mark.clone(), v.index)),
        }
    }
}

impl NodeMap {
    /// Of the nodes that our pods may go to.
    pub fn new<'a>(nodes: impl IntoIterator<Item = &'a Node>, rules: &Rules) -> Self {
        let mut map = Self::default();
        let mut alike: BTreeMap<(Option<String>, u32, u64, u64), Vec<&Node>> = BTreeMap::new();
        for node in nodes {
            let labels = &node.metadata.labels;
            if rules.selector.iter().any(|(k, v)| labels.get(k) != Some(v)) {
                continue;
            }
            let gpus = gpus(node);
            if let Some(why) = closed(node, gpus.as_ref().map(|(r, _)| r.as_str()), rules) {
                map.left_out.push((node.metadata.name.clone(), why));
                continue;
            }
            let model = gpus.as_ref().map(|(resource, _)| {
                let (model, label) = model_of(node, resource, rules);
                let wanted = Wanted { resource: resource.clone(), label };
                let all = map.models.entry(model.clone()).or_default();
                if !all.contains(&wanted) {
                    all.push(wanted);
                    all.sort();
                }
                model
            });
            let has = |name: &str| node.status.allocatable.get(name).and_then(|q| milli(q)).unwrap_or(0);
            let cpus = u64::try_from(has("cpu")).unwrap_or(0);
            let memory = u64::try_from(has("memory") / 1_000).unwrap_or(0) / MEMORY_STEP * MEMORY_STEP;
            let count = gpus.map_or(0, |(_, n)| n);
            alike.entry((model, count, cpus, memory)).or_default().push(node);
        }
        for ((model, gpus, cpus, memory), mut same) in alike {
            same.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            for node in &same {
                let next = u32::try_from(map.total.len()).unwrap_or(u32::MAX);
                map.index.insert(node.metadata.name.clone(), next);
                map.total.push(Free { gpus: u64::from(gpus), cpus, memory });
            }
            map.groups.push(NodeCapacity {
                name: same.first().map(|n| n.metadata.name.clone()).unwrap_or_default(),
                count: u32::try_from(same.len()).unwrap_or(u32::MAX),
                gpus,
                gpu_memory: model.as_deref().and_then(gpu::memory).unwrap_or_default(),
                gpu_model: model,
                cpus: MilliCpu(cpus),
                memory: Bytes(memory),
                declared: false,
            });
        }
        map
    }

    /// The state of the cluster. `ours` says whether an attempt with this mark is this peer's and alive.
    ///
    /// A pod of somebody else that waits counts as used where it would fit now, since the scheduler is about to put
    /// it there; what fits nowhere is a queue that nobody here can stand behind.
    pub fn state<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a Load>,
        ours: impl Fn(AttemptKey, &str) -> bool,
    ) -> ClusterState {
        let mut held = vec![Free::default(); self.total.len()];
        let mut free = self.total.clone();
        let mut placed: BTreeMap<AttemptKey, BTreeMap<u32, u32>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for pod in pods.into_iter().filter(|p| !p.over) {
            let mine = pod.ours.as_ref().filter(|(key, mark, _)| ours(*key, mark));
            let at = pod.node.as_ref().and_then(|n| self.index.get(n)).copied();
            match (mine, at, &pod.node) {
                (Some((key, _, rank)), Some(node), _) => {
                    placed.entry(*key).or_default().insert(*rank, node);
                    take(&mut free, node, pod.needs);
                }
                (None, Some(node), _) => {
                    take(&mut free, node, pod.needs);
                    if let Some(h) = held.get_mut(node as usize) {
                        *h = h.plus(pod.needs);
                    }
                }
                (None, None, None) if !pod.gated => waiting.push(pod.needs),
                _ => {}
            }
        }
        for needs in waiting {
            let fits = free.iter().position(|f| f.minus(needs).is_some());
            if let Some(node) = fits.and_then(|n| u32::try_from(n).ok()) {
                take(&mut free, node, needs);
                if let Some(h) = held.get_mut(node as usize) {
                    *h = h.plus(needs);
                }
            }
        }
        let others = held.iter().enumerate().filter(|(_, h)| **h != Free::default()).map(|(node, h)| Held {
            node: u32::try_from(node).unwrap_or(u32::MAX),
            gpus: u32::try_from(h.gpus).unwrap_or(u32::MAX),
            cpus: MilliCpu(h.cpus),
            memory: Bytes(h.memory),
        });
        ClusterState {
            nodes: self.groups.clone(),
            others: others.collect(),
            placed: placed.into_iter().map(|(key, at)| (key, at.into_values().collect())).collect(),
            closed: self.groups.is_empty().then(|| self.none_up()),
            ..ClusterState::default()
        }
    }

    /// Whether `count` pods with these needs would find room now.
    pub fn fits<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a Load>,
        count: u32,
        gpus: u32,
        cpus: MilliCpu,
        memory: Bytes,
    ) -> bool {
        let mut free = self.total.clone();
        for pod in pods.into_iter().filter(|p| !p.over) {
            if let Some(node) = pod.node.as_ref().and_then(|n| self.index.get(n)) {
                take(&mut free, *node, pod.needs);
            }
        }
        let one = Free { gpus: u64::from(gpus), cpus: cpus.0, memory: memory.0 };
        let mut left = count;
        for node in &mut free {
            while left > 0
                && let Some(rest) = node.minus(one)
            {
                *node = rest;
                left -= 1;
                if one == Free::default() {
                    break;
                }
            }
        }
        left == 0 || (one == Free::default() && !free.is_empty())
    }

    /// What is told of nodes that may not be used.
    pub fn out(&self) -> NodesOut {
        NodesOut::of(self.left_out.iter().map(|(name, why)| (name.as_str(), why.as_str())))
    }

    fn none_up(&self) -> String {
        let few: Vec<String> = self.left_out.iter().take(3).map(|(n, why)| format!("{n} {why}")).collect();
        if few.is_empty() {
            return "the cluster has no node for this peer's pods".into();
        }
        format!("no node takes this peer's pods: {}", few.join(", "))
    }
}

fn take(free: &mut [Free], node: u32, needs: Free) {
    if let Some(f) = free.get_mut(node as usize) {
        *f = Free {
            gpus: f.gpus.saturating_sub(needs.gpus),
            cpus: f.cpus.saturating_sub(needs.cpus),
            memory: f.memory.saturating_sub(needs.memory),
        };
    }
}

/// Images that every usable node has.
pub fn images<'a>(nodes: impl IntoIterator<Item = &'a Node>, map: &NodeMap) -> Vec<Item> {
    let mut seen: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for node in nodes.into_iter().filter(|n| map.index.contains_key(&n.metadata.name)) {
        for image in &node.status.images {
            for name in image.names.iter().filter(|n| !n.contains("@sha256:")) {
                let entry = seen.entry(name.clone()).or_default();
                *entry = (entry.0 + 1, entry.1.max(image.size_bytes));
            }
        }
    }
    let everywhere = seen.into_iter().filter(|(_, (n, _))| *n == map.index.len() && *n > 0);
    everywhere.map(|(name, (_, size))| Item { name, size: Bytes(size) }).take(IMAGES_MAX).collect()
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
