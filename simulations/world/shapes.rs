//! The clusters and jobs of the simulated world.

use std::collections::BTreeMap;

use starling::base::Span;
use starling::base::units::{Bytes, MilliCpu};
use starling::model::report::CapacityReport;
use starling::model::spec::{Communication, Group, Groups, JobSpec, OnLostContact, PlacementSpec, Run, Then};
use starling::model::{NodeCapacity, Resources};

/// Whose all jobs are.
pub const TENANT: &str = "default";
/// GPUs of one cluster.
pub const GPUS: u32 = 8;

pub fn nodes() -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: "n".into(),
        count: 1,
        gpu_model: Some("A100-80G".into()),
        gpus: GPUS,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    }]
}

pub fn capacity(region: usize) -> CapacityReport {
    CapacityReport {
        backend: "fake".into(),
        region: format!("r{region}"),
        zone: String::new(),
        labels: BTreeMap::new(),
        price_milli: 2_000,
        pue_milli: 1_200,
        nodes: nodes(),
        container_runtime: None,
        terms: Default::default(),
        nodes_out: Default::default(),
        slurm: None,
    }
}

pub fn spec(name: &str, gpus: u32, grace: Option<Span>) -> JobSpec {
    JobSpec {
        name: name.into(),
        tenant: TENANT.into(),
        priority: 50,
        resources: Resources { gpus, gpu: vec![], cpus: MilliCpu(1000), memory: Bytes(0) },
        nodes: 1,
        run: Run::Argv(vec!["work".into()]),
        env: BTreeMap::new(),
        workdir: None,
        image: None,
        data: vec![],
        checkpoint: None,
        communication: Communication::Sync,
        max_runtime: None,
        retries: 0,
        on_lost_contact: OnLostContact { grace, then: Then::Restart },
        placement: PlacementSpec::default(),
        data_sizes: Default::default(),
        groups: Default::default(),
        array: None,
        after: vec![],
        warn: None,
        preemptible: None,
        reserve: None,
    }
}

/// The same as groups of so many GPUs each; together they fit one cluster, or any others.
pub fn with_groups(spec: JobSpec, sizes: &[u32]) -> JobSpec {
    let group = |(i, gpus): (usize, &u32)| Group {
        name: format!("g{i}"),
        nodes: 1,
        resources: Resources { gpus: *gpus, ..spec.resources.clone() },
    };
    let list = sizes.iter().enumerate().map(group).collect();
    JobSpec { communication: Communication::Async, groups: Groups { list, traffic: vec![] }, ..spec }
}
