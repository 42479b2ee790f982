//! The form of a queue report inside a flash, which is positional: what came later travels by gossip alone.

use super::*;

#[derive(Serialize, Deserialize)]
struct Form {
    gpus_free: BTreeMap<String, u32>,
    gpus_total: BTreeMap<String, u32>,
    gpus_reserved: BTreeMap<String, u32>,
    cpus_free: MilliCpu,
    memory_free: Bytes,
    running: u32,
    queued: u32,
    queued_gpus: u64,
    closed: Option<String>,
}

pub fn serialize<S: serde::Serializer>(report: &QueueReport, out: S) -> Result<S::Ok, S::Error> {
    let r = report.clone();
    Form {
        gpus_free: r.gpus_free,
        gpus_total: r.gpus_total,
        gpus_reserved: r.gpus_reserved,
        cpus_free: r.cpus_free,
        memory_free: r.memory_free,
        running: r.running,
        queued: r.queued,
        queued_gpus: r.queued_gpus,
        closed: r.closed,
    }
    .serialize(out)
}

pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<QueueReport, D::Error> {
    let f = Form::deserialize(from)?;
    Ok(QueueReport {
        gpus_free: f.gpus_free,
        gpus_total: f.gpus_total,
        gpus_reserved: f.gpus_reserved,
        cpus_free: f.cpus_free,
        memory_free: f.memory_free,
        running: f.running,
        queued: f.queued,
        queued_gpus: f.queued_gpus,
        closed: f.closed,
        ..QueueReport::default()
    })
}
