//! Clusters and jobs of a trace in the product's own words.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling::base::units::{Bytes, MilliCpu};
use starling::base::{Instant, PeerName, Span, StoreId};
use starling::core::message::SPEAKS;
use starling::model::report::{
    BuildReport, CapacityReport, ContactReport, HealthReport, Liveness, MemberView, QueueReport,
};
use starling::model::spec::JobSpec;
use starling::model::spec_input::parse_spec;
use starling::model::{NodeCapacity, Report, Resources};

use super::load::{Job, Site};

pub const MODEL: &str = "A100-80G";
/// Nobody is cut off in a trace: the grace is only not to be in the way.
pub const GRACE: Span = Span::secs(86_400);

pub fn name(i: usize) -> PeerName {
    PeerName::new(&format!("c{i:03}")).expect("a short name")
}

pub fn store(i: usize) -> StoreId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(i as u64 + 1).to_be_bytes());
    StoreId(bytes)
}

pub fn nodes(site: &Site) -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: "n".into(),
        count: site.nodes,
        gpu_model: Some(MODEL.into()),
        gpus: site.gpus,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(u64::from(site.gpus) * 8_000),
        memory: Bytes::gib(512),
        declared: true,
    }]
}

pub fn need(job: &Job) -> Resources {
    Resources { gpus: job.gpus, gpu: vec![], cpus: MilliCpu(1000), memory: Bytes(0) }
}

/// Jobs differ in a few fields; the rest is what a job file says that says nothing.
pub fn spec(job: &Job, name: String) -> JobSpec {
    let text = format!("name: {name}\nrun: work\nnodes: {}\nresources: {{gpus: {}}}\n", job.nodes, job.gpus);
    let mut spec = parse_spec(text.as_bytes()).expect("a job file").spec;
    spec.on_lost_contact.grace = Some(GRACE);
    spec.max_runtime = job.limit;
    spec
}

/// One cluster as it looks to another that heard this of it then.
pub fn member(
    i: usize,
    site: &Site,
    queue: Option<QueueReport>,
    contact: Option<ContactReport>,
    heard_at: Instant,
) -> MemberView {
    let report = Report {
        peer: name(i),
        store: store(i),
        capacity: Some(CapacityReport {
            backend: "fake".into(),
            region: format!("r{i}"),
            zone: String::new(),
            labels: BTreeMap::new(),
            price_milli: 2_000,
            pue_milli: 1_200,
            nodes: nodes(site),
            container_runtime: None,
            terms: Default::default(),
            nodes_out: Default::default(),
            slurm: None,
        }),
        queue,
        contact,
        health: Some(HealthReport { boot: 1, ..HealthReport::default() }),
        build: Some(BuildReport { version: String::new(), wire: SPEAKS }),
        links: Vec::new(),
        data: None,
        images: None,
        alerts: None,
        heard_at,
    };
    MemberView {
        peer: name(i),
        store: store(i),
        witness: false,
        liveness: Liveness::Alive,
        draining: false,
        report: Some(Arc::new(report)),
    }
}
