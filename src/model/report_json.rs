//! The member status report: what one cluster says of itself, in the nine keys that other tools read.
//!
//! `gpu_nodes` counts nodes that have GPUs; `gpu_busy` and `gpu_free` count GPUs (held by a grant is
//! busy). Usage is a share from 0 to 1, to a thousandth; GPU usage is measured where it can be, else it
//! is the share of GPUs that are busy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gpu;
use super::input::{Field, Fields, Key, Mistake, Mistakes, from_json, words};
use super::report::Report;
use super::timestamp;
use crate::base::{Span, WallTime};

/// Bytes of a status report document.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024;
/// Most nodes, GPUs or waiting jobs that are believed.
const COUNT_MAX: u64 = 100_000_000;

/// A cluster's status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// The cluster.
    pub cluster_id: String,
    /// Nodes that have GPUs.
    pub gpu_nodes: u64,
    /// GPUs that are held.
    pub gpu_busy: u64,
    /// GPUs that are free.
    pub gpu_free: u64,
    /// Canonical models, sorted.
    pub gpu_models: Vec<String>,
    /// Claims that wait.
    pub queued_jobs: u64,
    /// Share of the CPU in use, 0 to 1.
    pub avg_cpu_usage: f64,
    /// Share of the GPUs in use, 0 to 1.
    pub avg_gpu_usage: f64,
    /// When the cluster was last heard, RFC 3339 in UTC, whole seconds.
    pub last_heartbeat: String,
}

const fn key(name: &'static str) -> Key {
    Key { name, ready: true }
}
const KEYS: &[Key] = &[
    key("cluster_id"),
    key("gpu_nodes"),
    key("gpu_busy"),
    key("gpu_free"),
    key("gpu_models"),
    key("queued_jobs"),
    key("avg_cpu_usage"),
    key("avg_gpu_usage"),
    key("last_heartbeat"),
];

impl StatusReport {
    /// From what is known of a cluster; `age` is how long ago it was heard.
    pub fn new(report: &Report, age: Span, now: WallTime) -> Self {
        let nodes = report.capacity.iter().flat_map(|c| &c.nodes);
        let with_gpus = nodes.filter(|n| n.gpus > 0 && n.gpu_model.is_some());
        let gpu_nodes = with_gpus.clone().map(|n| u64::from(n.count)).sum();
        let declared: u64 = with_gpus.clone().map(|n| u64::from(n.count) * u64::from(n.gpus)).sum();
        let mut gpu_models: Vec<String> = with_gpus.filter_map(|n| n.gpu_model.clone()).collect();
        gpu_models.sort_unstable();
        gpu_models.dedup();
        let sum =
            |counts: &std::collections::BTreeMap<String, u32>| counts.values().map(|n| u64::from(*n)).sum();
        let (total, free, queued): (u64, u64, u64) = match &report.queue {
            Some(q) => (sum(&q.gpus_total), sum(&q.gpus_free), q.queued.into()),
            None => (declared, 0, 0),
        };
        let busy = total.saturating_sub(free);
        let (cpu, gpu) = report.health.as_ref().map_or((0, None), |h| (h.cpu_milli, h.gpu_milli));
        let held = (busy * 1_000).checked_div(total).unwrap_or(0);
        let share = |milli: u64| milli.min(1_000) as f64 / 1e3;
        Self {
            cluster_id: report.peer.to_string(),
            gpu_nodes,
            gpu_busy: busy,
            gpu_free: free,
            gpu_models,
            queued_jobs: queued,
            avg_cpu_usage: share(cpu.into()),
            avg_gpu_usage: share(gpu.map_or(held, u64::from)),
            last_heartbeat: timestamp::to_rfc3339(WallTime(now.0.saturating_sub(age.as_millis()))),
        }
    }

    /// As a JSON object with the nine keys.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Reads such a document; every mistake is named at once, absurd figures among them.
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<Mistake>> {
        let whole = |line, want: String| vec![Mistake { key: String::new(), line, value: None, want }];
        if bytes.len() > DOCUMENT_BYTES_MAX {
            let want = format!("has {} bytes; at most {DOCUMENT_BYTES_MAX} are read", bytes.len());
            return Err(whole(None, want));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| whole(None, "is not UTF-8 text".into()))?;
        let node = from_json(text).map_err(|e| whole(e.line, e.message))?;
        let mut m = Mistakes::default();
        let parsed = read(Field { path: String::new(), node }, &mut m);
        parsed.filter(|_| m.is_empty()).ok_or_else(|| m.into_vec())
    }
}

fn read(root: Field, m: &mut Mistakes) -> Option<StatusReport> {
    let mut fields = Fields::of(root, m)?;
    let mut taken = Vec::with_capacity(KEYS.len());
    for key in KEYS {
        let field = fields.take(key.name, m);
        if field.is_none() && !fields.had(key.name) {
            fields.missing(m, key.name, "is missing");
        }
        taken.push(field);
    }
    fields.finish(m, KEYS, &[]);
    let mut taken = taken.into_iter();
    let mut next = || taken.next().flatten();

    let cluster_id = next().and_then(|f| f.read(m, words::PLACE, |t| words::place(t).then(|| t.to_owned())));
    let mut count = |m: &mut Mistakes| next().and_then(|f| f.whole(m, 0..=COUNT_MAX));
    let (gpu_nodes, gpu_busy, gpu_free) = (count(m), count(m), count(m));
    let models = next().and_then(|f| f.items(m, 64)).map(|items| {
        items.into_iter().filter_map(|f| f.read(m, gpu::NAME, |t| gpu::canonical(t).ok())).collect::<Vec<_>>()
    });
    let queued_jobs = next().and_then(|f| f.whole(m, 0..=COUNT_MAX));
    let mut share = |m: &mut Mistakes| next().and_then(|f| f.milli(m, 0..=1_000)).map(|n| n as f64 / 1e3);
    let (cpu, gpu) = (share(m), share(m));
    let at =
        next().and_then(|f| f.read(m, "must be a UTC date such as 2025-06-01T12:00:00Z", timestamp::parse));
    Some(StatusReport {
        cluster_id: cluster_id?,
        gpu_nodes: gpu_nodes?,
        gpu_busy: gpu_busy?,
        gpu_free: gpu_free?,
        gpu_models: models?,
        queued_jobs: queued_jobs?,
        avg_cpu_usage: cpu?,
        avg_gpu_usage: gpu?,
        last_heartbeat: timestamp::to_rfc3339(at?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Bytes, Instant, MilliCpu, PeerName, StoreId};
    use crate::model::report::{CapacityReport, HealthReport, NodeCapacity, QueueReport};

    const SEED: &str = r#"{ "cluster_id": "cn-huawei-beijing-01", "gpu_nodes": 32, "gpu_busy": 12, "gpu_free": 20,
        "gpu_models": ["A100-80G", "A800-40G"], "queued_jobs": 3, "avg_cpu_usage": 0.42, "avg_gpu_usage": 0.35,
        "last_heartbeat": "2025-06-01T12:00:00Z" }"#;

    fn node(name: &str, count: u32, model: Option<&str>, gpus: u32) -> NodeCapacity {
        NodeCapacity {
            name: name.into(),
            count,
            gpu_model: model.map(str::to_owned),
            gpus,
            gpu_memory: Bytes(0),
            cpus: MilliCpu(1),
            memory: Bytes(0),
            declared: true,
        }
    }

    fn report() -> Report {
        Report {
            peer: PeerName::new("cn-huawei-beijing-01").expect("a name"),
            store: StoreId([0; 16]),
            capacity: Some(CapacityReport {
                backend: "local".into(),
                region: "cn".into(),
                zone: String::new(),
                labels: Default::default(),
                price_milli: 0,
                pue_milli: 1_000,
                nodes: vec![
                    node("b", 1, Some("A800-40G"), 8),
                    node("a", 3, Some("A100-80G"), 8),
                    node("c", 9, None, 0),
                ],
                container_runtime: None,
                terms: Default::default(),
                nodes_out: Default::default(),
                slurm: None,
            }),
            queue: Some(QueueReport {
                gpus_free: [("A100-80G".to_owned(), 20)].into(),
                gpus_total: [("A100-80G".to_owned(), 24), ("A800-40G".to_owned(), 8)].into(),
                queued: 3,
                ..QueueReport::default()
            }),
            contact: None,
            health: Some(HealthReport { cpu_milli: 420, gpu_milli: Some(350), ..HealthReport::default() }),
            build: None,
            links: Vec::new(),
            data: None,
            images: None,
            alerts: None,
            heard_at: Instant(0),
        }
    }

    #[test]
    fn the_document_has_the_nine_keys_and_their_types() {
        let at = timestamp::parse("2025-06-01T12:00:30Z").expect("a date");
        let ours = StatusReport::new(&report(), Span::secs(30), at).to_json();
        let seed: serde_json::Value = serde_json::from_str(SEED).expect("json");
        let kinds = |v: &serde_json::Value| {
            let object = v.as_object().expect("an object").clone();
            object.into_iter().map(|(k, v)| (k, std::mem::discriminant(&v), v.is_u64())).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&ours), kinds(&seed));
        let gpus = [&ours["gpu_nodes"], &ours["gpu_busy"], &ours["gpu_free"], &ours["queued_jobs"]];
        assert_eq!(gpus.map(|v| v.as_u64()), [Some(4), Some(12), Some(20), Some(3)]);
        for key in ["cluster_id", "gpu_models", "avg_cpu_usage", "avg_gpu_usage", "last_heartbeat"] {
            assert_eq!(ours[key], seed[key], "{key}");
        }
        let back = StatusReport::parse(ours.to_string().as_bytes()).expect("reads back");
        assert_eq!(back.to_json(), ours);
    }

    #[test]
    fn a_cluster_that_said_nothing_yet_has_a_document_too() {
        let bare = Report { capacity: None, queue: None, health: None, ..report() };
        let status = StatusReport::new(&bare, Span::FOREVER, WallTime(5));
        assert_eq!((status.gpu_nodes, status.gpu_busy, status.gpu_free), (0, 0, 0));
        assert_eq!((status.avg_gpu_usage, status.last_heartbeat.as_str()), (0.0, "1970-01-01T00:00:00Z"));
        let unmeasured = Report { health: None, ..report() };
        assert_eq!(StatusReport::new(&unmeasured, Span::ZERO, WallTime(0)).avg_gpu_usage, 0.375);
    }

    #[test]
    fn the_plain_document_reads_and_absurd_ones_do_not() {
        let seed = StatusReport::parse(SEED.as_bytes()).expect("good");
        assert_eq!((seed.gpu_nodes, seed.avg_cpu_usage, seed.gpu_models.len()), (32, 0.42, 2));
        for (from, to, part) in [
            ("32", "-1", "gpu_nodes: -1"),
            ("32", "1e308", "gpu_nodes"),
            ("32", "18446744073709551615", "gpu_nodes"),
            ("\"gpu_free\": 20,", "", "gpu_free: is missing"),
            ("0.42", "42", "avg_cpu_usage: 42: must be a number from 0 to 1"),
            ("0.35", "-0.1", "avg_gpu_usage"),
            ("2025-06-01T12:00:00Z", "yesterday", "last_heartbeat"),
            ("cn-huawei-beijing-01", "a\\u0007", "cluster_id"),
            ("\"A800-40G\"", "5", "gpu_models[1]"),
            ("\"queued_jobs\"", "\"queued_job\"", "did you mean queued_jobs?"),
        ] {
            let e = StatusReport::parse(SEED.replace(from, to).as_bytes()).expect_err(to);
            assert!(e.iter().any(|m| m.to_string().contains(part)), "{to}: no {part:?} in {e:?}");
        }
        assert!(StatusReport::parse(&vec![b' '; DOCUMENT_BYTES_MAX + 1]).is_err());
        assert!(StatusReport::parse(b"\xff").is_err());
        assert!(StatusReport::parse(b"[]").is_err());
    }
}
