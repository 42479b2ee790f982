//! `simulate decide` and `simulate money`: the production placement, measured on made-up and on real figures.

mod decide;
mod money;
mod picture;
mod tables;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use starling::base::units::{Bytes, MilliCpu};
use starling::base::{Instant, PeerName, StoreId};
use starling::model::report::{
    CapacityReport, Inventory, Liveness, MemberView, NodeCapacity, QueueReport, Report, Terms,
};
use starling::model::spec_input::parse_spec;
use starling::model::{JobSpec, Resources};

pub const USAGE: &str =
    "simulate decide [--clusters N] [--nodes N] [--decisions N] [--classes N] [--seed S] [--json]
simulate money  [--egress FILE --throughput FILE] [--clusters N] [--windows N] [--seed S] [--svg FILE] [--json]";

/// Runs one of them; none where the name is another.
pub fn command(name: &str, args: &[String]) -> Option<Result<ExitCode, String>> {
    match name {
        "decide" => Some(decide::decide(args)),
        "money" => Some(money::money(args)),
        _ => None,
    }
}

/// `--name value` pairs and flags.
struct Args {
    values: BTreeMap<String, String>,
    json: bool,
}

impl Args {
    fn read(args: &[String], known: &[&str]) -> Result<Self, String> {
        let mut out = Self { values: BTreeMap::new(), json: false };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if name == "--json" {
                out.json = true;
            } else if known.contains(&name.as_str()) {
                let value = args.next().ok_or(format!("{name} wants a value"))?;
                out.values.insert(name.clone(), value.clone());
            } else {
                return Err(format!("what is {name:?}? known: {}, --json", known.join(", ")));
            }
        }
        Ok(out)
    }

    fn number(&self, name: &str, default: u64, low: u64, high: u64) -> Result<u64, String> {
        let Some(text) = self.values.get(name) else { return Ok(default) };
        let read = text.parse::<u64>().ok().filter(|n| (low..=high).contains(n));
        read.ok_or(format!("{name} wants a whole number from {low} to {high}, not {text:?}"))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

fn node(model: &str, gpus: u32, count: u32, cpus: u64) -> NodeCapacity {
    NodeCapacity {
        name: "n".into(),
        count,
        gpu_model: Some(model.into()),
        gpus,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(cpus * 1_000),
        memory: Bytes::gib(512),
        declared: true,
    }
}

fn member(name: &str, nodes: Vec<NodeCapacity>, now: Instant) -> MemberView {
    let peer = PeerName::new(name).expect("a plain name");
    let mut total: BTreeMap<String, u32> = BTreeMap::new();
    for n in &nodes {
        *total.entry(n.gpu_model.clone().unwrap_or_default()).or_default() += n.gpus * n.count;
    }
    let cpus = nodes.iter().map(|n| n.cpus.0 * u64::from(n.count)).sum();
    let memory = nodes.iter().map(|n| n.memory.0 * u64::from(n.count)).sum();
    let capacity = CapacityReport {
        backend: "fake".into(),
        region: format!("r-{name}"),
        zone: String::new(),
        labels: BTreeMap::new(),
        price_milli: 2_000,
        pue_milli: 1_200,
        nodes,
        container_runtime: Some("podman".into()),
        terms: Terms::default(),
        nodes_out: Default::default(),
        slurm: None,
    };
    let queue = QueueReport {
        gpus_free: total.clone(),
        gpus_total: total,
        cpus_free: MilliCpu(cpus),
        memory_free: Bytes(memory),
        ..QueueReport::default()
    };
    let report = Report {
        peer: peer.clone(),
        store: StoreId([0; 16]),
        capacity: Some(capacity),
        queue: Some(queue),
        contact: None,
        health: None,
        build: None,
        links: Vec::new(),
        data: Some(Inventory::default()),
        images: Some(Inventory::default()),
        alerts: None,
        heard_at: now,
    };
    MemberView {
        peer,
        store: StoreId([0; 16]),
        witness: false,
        liveness: Liveness::Alive,
        draining: false,
        report: Some(Arc::new(report)),
    }
}

fn edit(member: &mut MemberView, change: impl FnOnce(&mut Report)) {
    change(Arc::make_mut(member.report.as_mut().expect("made with one")));
}

fn job(gpus: u32, nodes: u32, models: &[&str], text: &str) -> JobSpec {
    let spec = parse_spec(format!("run: x\n{text}").as_bytes()).expect("a job").spec;
    let gpu = models.iter().map(|m| (*m).to_owned()).collect();
    JobSpec { nodes, resources: Resources { gpus, gpu, ..spec.resources.clone() }, ..spec }
}
