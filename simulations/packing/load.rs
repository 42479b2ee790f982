//! Nodes and pods: read from tables whose columns are found by name, or generated after the same trace.

use std::collections::BTreeMap;
use std::path::Path;

use starling::base::Rng;
use starling::base::units::{Bytes, MilliCpu};
use starling::core::books::{Books, Need, WHOLE};
use starling::model::NodeCapacity;

/// Rows of one table that are read.
const ROWS_MAX: usize = 1_000_000;

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub model: String,
    pub gpus: u32,
    pub cpus: u64,
    pub memory: u64,
}

/// One pod: so many GPUs, so much of each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    pub gpus: u32,
    pub milli: u16,
    pub cpus: u64,
    pub memory: u64,
    /// Models that will do; none: any.
    pub models: Vec<String>,
}

impl Pod {
    /// Thousandths of a GPU in all.
    pub fn asks(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.milli)
    }

    /// In the terms of some books.
    pub fn need(&self, books: &Books) -> Need {
        let does = |at: &u16| {
            let model = books.pools().get(usize::from(*at)).and_then(|m| m.as_ref());
            self.gpus > 0 && model.is_some_and(|m| self.models.is_empty() || self.models.contains(m))
        };
        Need {
            pools: (0..books.pools().len() as u16).filter(does).collect(),
            gpus: self.gpus,
            milli: self.milli,
            cpus: self.cpus,
            memory: self.memory,
        }
    }
}

/// Books of these nodes, each on its own so that its index is the list's.
pub fn books(nodes: &[Node]) -> Books {
    let groups: Vec<NodeCapacity> = nodes
        .iter()
        .enumerate()
        .map(|(i, n)| NodeCapacity {
            name: format!("n{i}"),
            count: 1,
            gpu_model: (n.gpus > 0).then(|| n.model.clone()),
            gpus: n.gpus,
            gpu_memory: Bytes(0),
            cpus: MilliCpu(n.cpus),
            memory: Bytes(n.memory),
            declared: true,
        })
        .collect();
    Books::new(&groups)
}

struct Table {
    columns: BTreeMap<String, usize>,
    rows: Vec<csv::StringRecord>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, String> {
        let told = |e: csv::Error| format!("{}: {e}", path.display());
        let mut reader = csv::Reader::from_path(path).map_err(told)?;
        let names = reader.headers().map_err(told)?.clone();
        let columns = names.iter().enumerate().map(|(i, n)| (n.trim().to_lowercase(), i)).collect();
        let rows: Result<Vec<_>, _> = reader.records().take(ROWS_MAX).collect();
        Ok(Self { columns, rows: rows.map_err(told)? })
    }

    /// The first of these columns that is there.
    fn column(&self, path: &Path, names: &[&str]) -> Result<usize, String> {
        let found = names.iter().find_map(|n| self.columns.get(*n));
        found.copied().ok_or_else(|| {
            let there: Vec<&str> = self.columns.keys().map(String::as_str).collect();
            format!("{}: no column {} (there are: {})", path.display(), names.join(" or "), there.join(", "))
        })
    }
}

fn number(row: &csv::StringRecord, at: usize) -> Option<u64> {
    let text = row.get(at)?.trim();
    if text.is_empty() { Some(0) } else { text.parse::<f64>().ok().map(|n| n.clamp(0.0, 1e15) as u64) }
}

/// Nodes of a table; and how many rows were left out because they cannot be read.
pub fn nodes(path: &Path) -> Result<(Vec<Node>, usize), String> {
    let table = Table::read(path)?;
    let cpu = table.column(path, &["cpu_milli", "cpu", "cpus"])?;
    let memory = table.column(path, &["memory_mib", "memory", "mem_mib"])?;
    let gpus = table.column(path, &["gpu", "gpus", "num_gpu"])?;
    let model = table.column(path, &["model", "gpu_model", "gpu_type"])?;
    let read = |row: &csv::StringRecord| {
        Some(Node {
            model: row.get(model)?.trim().to_owned(),
            gpus: u32::try_from(number(row, gpus)?).ok().filter(|n| *n <= 1_024)?,
            cpus: number(row, cpu)?,
            memory: number(row, memory)? << 20,
        })
    };
    let found: Vec<Node> = table.rows.iter().filter_map(read).collect();
    let left = table.rows.len() - found.len();
    if found.is_empty() { Err(format!("{}: no node in it", path.display())) } else { Ok((found, left)) }
}

/// Pods of a table.
pub fn pods(path: &Path) -> Result<(Vec<Pod>, usize), String> {
    let table = Table::read(path)?;
    let cpu = table.column(path, &["cpu_milli", "cpu", "cpus"])?;
    let memory = table.column(path, &["memory_mib", "memory", "mem_mib"])?;
    let gpus = table.column(path, &["num_gpu", "gpus", "gpu"])?;
    let milli = table.column(path, &["gpu_milli"]).ok();
    let spec = table.column(path, &["gpu_spec", "gpu_model", "gpu_type"]).ok();
    let read = |row: &csv::StringRecord| {
        let gpus = u32::try_from(number(row, gpus)?).ok().filter(|n| *n <= 1_024)?;
        let milli = match milli {
            Some(at) => number(row, at)?.min(u64::from(WHOLE)),
            None => u64::from(WHOLE),
        };
        let of = spec.and_then(|at| row.get(at)).unwrap_or_default();
        Some(Pod {
            gpus,
            milli: if gpus == 0 { WHOLE } else { u16::try_from(milli).ok().filter(|m| *m > 0)? },
            cpus: number(row, cpu)?,
            memory: number(row, memory)? << 20,
            models: of.split('|').map(str::trim).filter(|m| !m.is_empty()).map(str::to_owned).collect(),
        })
    };
    let found: Vec<Pod> = table.rows.iter().filter_map(read).collect();
    let left = table.rows.len() - found.len();
    if found.is_empty() { Err(format!("{}: no pod in it", path.display())) } else { Ok((found, left)) }
}

const GIB: u64 = 1 << 30;

/// Nodes in the proportions of that trace: (model, GPUs, cores, GiB, of 1,000).
const KINDS: [(&str, u32, u64, u64, u32); 8] = [
    ("", 0, 32, 256, 106),
    ("", 0, 96, 512, 98),
    ("G2", 8, 96, 384, 360),
    ("G3", 8, 128, 768, 26),
    ("P100", 2, 16, 120, 86),
    ("T4", 2, 104, 512, 265),
    ("V100M16", 4, 32, 128, 35),
    ("V100M32", 8, 96, 768, 24),
];
/// Pods: (GPUs, thousandths of each, cores / 10, GiB, of 1,000).
const ASKS: [(u32, u16, u64, u64, u32); 14] = [
    (1, 810, 32, 5, 128),
    (1, 1_000, 113, 48, 170),
    (1, 1_000, 32, 5, 58),
    (1, 470, 119, 46, 92),
    (0, 1_000, 125, 56, 45),
    (1, 650, 119, 46, 60),
    (0, 1_000, 320, 48, 55),
    (1, 1_000, 187, 63, 63),
    (0, 1_000, 80, 30, 33),
    (1, 460, 60, 12, 131),
    (1, 1_000, 98, 40, 80),
    (1, 240, 40, 8, 76),
    (8, 1_000, 640, 256, 6),
    (2, 1_000, 160, 64, 3),
];

fn drawn<'a, T>(kinds: &'a [T], weight: impl Fn(&T) -> u32, rng: &mut Rng) -> &'a T {
    let all: u64 = kinds.iter().map(|k| u64::from(weight(k))).sum();
    let mut at = rng.below(all.max(1));
    for kind in kinds {
        let w = u64::from(weight(kind));
        if at < w {
            return kind;
        }
        at -= w;
    }
    &kinds[0]
}

/// A trace of its own.
pub fn generated(nodes: usize, rng: &mut Rng) -> (Vec<Node>, Vec<Pod>) {
    let node = |rng: &mut Rng| {
        let (model, gpus, cores, gib, _) = *drawn(&KINDS, |k| k.4, rng);
        Node { model: model.into(), gpus, cpus: cores * 1_000, memory: gib * GIB }
    };
    let nodes: Vec<Node> = (0..nodes).map(|_| node(rng)).collect();
    let pod = |rng: &mut Rng| {
        let (gpus, milli, cores, gib, _) = *drawn(&ASKS, |k| k.4, rng);
        Pod { gpus, milli, cpus: cores * 100, memory: gib * GIB, models: Vec::new() }
    };
    let count = nodes.len() * 6;
    (nodes, (0..count).map(|_| pod(rng)).collect())
}

/// Pods in the order of their arrival until they ask for this share of all GPUs: the list shuffled, and pods of it
/// drawn by lot once it is used up.
pub fn arrivals(pods: &[Pod], gpus: u64, load: f64, rng: &mut Rng) -> Vec<Pod> {
    let wanted = (gpus as f64 * f64::from(WHOLE) * load) as u64;
    let mut list = pods.to_vec();
    rng.shuffle(&mut list);
    let mut asked: u64 = list.iter().map(Pod::asks).sum();
    if pods.iter().all(|p| p.asks() == 0) {
        return list;
    }
    while asked < wanted {
        let Some(pod) = rng.pick(pods) else { break };
        asked += pod.asks();
        list.push(pod.clone());
    }
    rng.shuffle(&mut list);
    let mut sum = 0;
    let within = |pod: &Pod| {
        sum += pod.asks();
        sum <= wanted
    };
    list.into_iter().take_while(within).collect()
}
