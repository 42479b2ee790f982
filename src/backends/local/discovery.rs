//! What this machine has: CPUs, memory, GPUs (NVML, loaded at run time), a container runtime.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::{Device, Nvml};

use crate::base::{Bytes, MilliCpu};
use crate::model::NodeCapacity;
use crate::model::topology::{FAR, NUMA, NVLINK, PCIE, Topology};

/// Gives the canonical name of a GPU from NVML's name and its memory.
pub type CanonicalGpu = fn(&str, Bytes) -> Option<String>;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The node that is this machine.
    pub node: Option<NodeCapacity>,
    /// Physical index of each GPU that is offered.
    pub gpus: Vec<u32>,
    /// How near the offered GPUs are to each other.
    pub topology: Topology,
    /// One line each.
    pub notes: Vec<String>,
    /// One line each: what is here and goes unused.
    pub warnings: Vec<String>,
}

/// A driver that is loaded says which it is.
const DRIVER: &str = "/proc/driver/nvidia/version";
/// This binary has no loader in it (deploy/Containerfile).
const STATIC: bool = cfg!(target_feature = "crt-static");

/// Looks at this machine.
pub fn look(name: &str, canonical: CanonicalGpu) -> Found {
    let mut found = Found::default();
    let gpus = match devices() {
        Ok(gpus) => gpus,
        Err(why) => {
            if std::path::Path::new(DRIVER).exists() {
                found.warnings.push(unused(&why, STATIC));
            } else {
                found.notes.push(format!("no NVIDIA GPUs: {why}"));
            }
            Vec::new()
        }
    };
    let offered = offer(&gpus, canonical, &mut found.notes);
    found.gpus = offered.as_ref().map(|o| o.2.clone()).unwrap_or_default();
    found.topology = topology(&found.gpus);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_total(&text));
    if memory.is_none() {
        found.notes.push("memory is unknown: /proc/meminfo cannot be read".into());
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    found.node = Some(NodeCapacity {
        name: name.to_owned(),
        count: 1,
        gpus: u32::try_from(found.gpus.len()).unwrap_or(u32::MAX),
        gpu_memory: offered.as_ref().map_or(Bytes(0), |o| o.1),
        gpu_model: offered.map(|o| o.0),
        cpus: MilliCpu(cpus as u64 * 1_000),
        memory: memory.unwrap_or_default(),
        declared: false,
    });
    found
}

/// Mean use of all GPUs in thousandths; none where it cannot be measured.
pub fn gpu_use_milli() -> Option<u32> {
    let nvml = nvml().as_ref().ok()?;
    let count = nvml.device_count().ok().filter(|n| *n > 0)?;
    let percent = (0..count)
        .map(|i| nvml.device_by_index(i).and_then(|d| d.utilization_rates()).map(|u| u.gpu))
        .collect::<Result<Vec<u32>, _>>()
        .ok()?;
    Some(percent.iter().sum::<u32>() * 10 / count)
}

/// Loaded once: it takes a while, and stays valid.
fn nvml() -> &'static Result<Nvml, String> {
    static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().map_err(|e| e.to_string()))
}

/// Why a machine is not offered, where it could run no job: it would take them, and fail every one. Such is the image of
/// deploy/Containerfile, where nothing is but the peer.
pub fn runs_nothing(shell: bool, runtime: bool) -> Option<String> {
    let words = "this machine has no /bin/sh and no podman or docker, so no job can run here and it offers nothing: start its peer on a machine that has, with --witness, or in front of another backend; or declare [[nodes]]";
    (!shell && !runtime).then(|| words.to_owned())
}

/// There is a driver, and its library cannot be asked.
fn unused(why: &str, is_static: bool) -> String {
    if is_static {
        return "this machine's GPUs go unused: this is the static binary, which can load no library, NVIDIA's neither; run the one that `cargo build --release` makes, or declare the GPUs as [[nodes]]".into();
    }
    format!(
        "this machine's GPUs go unused: NVIDIA's driver is loaded, and its library does not answer: {why}"
    )
}

fn devices() -> Result<Vec<(String, Bytes)>, String> {
    let nvml = nvml().as_ref().map_err(Clone::clone)?;
    let count = nvml.device_count().map_err(|e| e.to_string())?;
    let device = |i| {
        let device = nvml.device_by_index(i)?;
        Ok((device.name()?, Bytes(device.memory_info()?.total)))
    };
    (0..count)
        .map(|i| device(i).map_err(|e: nvml_wrapper::error::NvmlError| format!("GPU {i}: {e}")))
        .collect()
}

/// Distances between these GPUs, by their place in the list: what is offered is numbered anew. What NVML does not say is far.
fn topology(gpus: &[u32]) -> Topology {
    let Ok(nvml) = nvml() else { return Topology::default() };
    let mut sets = Vec::new();
    for (a, first) in (0..).zip(gpus) {
        for (b, second) in (0..).zip(gpus).take_while(|(b, _)| *b < a) {
            let devices = (nvml.device_by_index(*first), nvml.device_by_index(*second));
            if let (Ok(first), Ok(second)) = devices {
                sets.push((distance(&first, second), vec![a, b]));
            }
        }
    }
    Topology::of_sets(gpus.len(), &sets)
}

fn distance(first: &Device, second: Device) -> u8 {
    if let Ok(P2pStatus::Ok) = first.p2p_status(&second, P2pCapabilitiesIndex::NvLink) {
        return NVLINK;
    }
    match first.topology_common_ancestor(second) {
        Ok(TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple) => PCIE,
        Ok(TopologyLevel::HostBridge | TopologyLevel::Node) => NUMA,
        Ok(TopologyLevel::System) | Err(_) => FAR,
    }
}

/// One node has one GPU model: the one with most GPUs is offered, the rest is named.
fn offer(
    devices: &[(String, Bytes)],
    canonical: CanonicalGpu,
    notes: &mut Vec<String>,
) -> Option<(String, Bytes, Vec<u32>)> {
    let mut models: BTreeMap<String, (Bytes, Vec<u32>)> = BTreeMap::new();
    for (index, (name, memory)) in (0..).zip(devices) {
        let Some(model) = canonical(name, *memory) else {
            notes.push(format!("GPU {index} ({name}, {memory}) is not offered: its model is not known"));
            continue;
        };
        let entry = models.entry(model).or_insert((*memory, Vec::new()));
        entry.0 = entry.0.min(*memory);
        entry.1.push(index);
    }
    let best = models.iter().max_by_key(|(_, (_, gpus))| gpus.len())?.0.clone();
    for (model, (_, gpus)) in models.iter().filter(|(model, _)| **model != best) {
        notes.push(format!(
            "{} x {model} not offered: one node offers one model, and this one is {best}",
            gpus.len()
        ));
    }
    models.remove(&best).map(|(memory, gpus)| (best, memory, gpus))
}

fn memory_total(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(Bytes(kib.saturating_mul(1_024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_group_of_gpus_is_offered() {
        let canonical: CanonicalGpu = |name, _| (name != "odd").then(|| name.to_uppercase());
        let gib = Bytes::gib;
        let gpu = |name: &str, memory| (name.to_owned(), gib(memory));
        let devices = [gpu("h100", 80), gpu("a100", 40), gpu("odd", 1), gpu("h100", 79)];
        let mut notes = Vec::new();
        let offered = offer(&devices, canonical, &mut notes).expect("some");
        assert_eq!(offered, ("H100".into(), gib(79), vec![0, 3]));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert_eq!(offer(&[], canonical, &mut notes), None);
    }

    #[test]
    fn a_static_binary_says_what_to_run_instead() {
        assert!(unused("Dynamic loading not supported", true).contains("`cargo build --release`"));
        assert!(unused("no permission", false).ends_with("no permission"));
    }

    #[test]
    fn a_machine_that_can_run_no_job_is_not_offered() {
        assert!(runs_nothing(false, false).is_some_and(|why| why.contains("--witness")));
        assert_eq!([runs_nothing(true, false), runs_nothing(false, true)], [None, None]);
    }

    #[test]
    fn this_machine_has_something() {
        assert_eq!(memory_total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(Bytes::mib(16)));
        assert_eq!(memory_total("MemTotal: many\n"), None);
        let found = look("here", |name, _| Some(name.to_owned()));
        let node = found.node.expect("this machine");
        assert!(node.cpus.0 >= 1_000 && node.memory.0 > 0 && !node.declared);
        assert_eq!(node.gpus as usize, found.gpus.len());
    }
}
