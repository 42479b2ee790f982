//! Every key that a job file may have, and what other tools call the same thing.

use crate::model::input::Key;

/// A key of another tool, and what to write here.
pub type Familiar = (&'static str, &'static str);

const fn ready(name: &'static str) -> Key {
    Key { name, ready: true }
}
/// Checked and refused until its machinery comes.
const fn later(name: &'static str) -> Key {
    Key { name, ready: false }
}

/// Keys of the document.
pub const JOB: &[Key] = &[
    ready("name"),
    ready("tenant"),
    ready("priority"),
    ready("resources"),
    ready("nodes"),
    ready("run"),
    ready("env"),
    ready("workdir"),
    ready("image"),
    ready("data"),
    ready("checkpoint"),
    ready("communication"),
    ready("max_runtime"),
    ready("retries"),
    ready("on_lost_contact"),
    ready("placement"),
    ready("preemptible"),
    ready("warn"),
    // The plain job request's names.
    ready("job_id"),
    ready("task_type"),
    ready("communication_mode"),
    ready("gpu"),
    ready("dataset"),
    ready("checkpoint_path"),
    ready("max_runtime_seconds"),
    ready("groups"),
    ready("traffic"),
    ready("array"),
    ready("after"),
    later("reservation"),
    later("quota"),
    later("service"),
];
/// Keys of `resources`.
pub const RESOURCES: &[Key] = &[ready("gpus"), ready("gpu"), ready("cpus"), ready("memory")];
/// Keys of the job request's `gpu`.
pub const SEED_GPU: &[Key] = &[ready("count"), ready("model")];
/// Keys of one entry of `data`.
pub const DATA: &[Key] = &[ready("uri"), ready("size"), later("stage")];
/// Keys of `checkpoint`.
pub const CHECKPOINT: &[Key] = &[ready("path"), ready("every")];
/// Keys of `warn`.
pub const WARN: &[Key] = &[ready("signal"), ready("command"), ready("before")];
/// Keys of `on_lost_contact`.
pub const LOST_CONTACT: &[Key] = &[ready("grace"), ready("then")];
/// Keys of one entry of `after`.
pub const AFTER: &[Key] = &[ready("job"), ready("on")];
/// Keys of `placement`.
pub const PLACEMENT: &[Key] = &[
    ready("policy"),
    ready("regions"),
    ready("clusters"),
    ready("labels"),
    ready("zones"),
    ready("price_max"),
    ready("compliance"),
];

/// Keys of one entry of `groups`.
pub const GROUPS: &[Key] = &[ready("name"), ready("nodes"), ready("resources")];
/// Keys of one entry of `traffic`.
pub const TRAFFIC: &[Key] = &[ready("from"), ready("to"), ready("rate")];

/// Every mapping with the path it stands at; the empty path is the document.
pub const SECTIONS: &[(&str, &[Key])] = &[
    ("", JOB),
    ("resources", RESOURCES),
    ("gpu", SEED_GPU),
    ("data", DATA),
    ("checkpoint", CHECKPOINT),
    ("on_lost_contact", LOST_CONTACT),
    ("warn", WARN),
    ("after", AFTER),
    ("placement", PLACEMENT),
    ("groups", GROUPS),
    ("traffic", TRAFFIC),
];

pub(super) const FAMILIAR_JOB: &[Familiar] = &[
    ("num_nodes", "write nodes"),
    ("ntasks", "write nodes (one rank per node starts)"),
    ("setup", "put it at the start of run, or into the image"),
    ("envs", "write env"),
    ("environment", "write env"),
    ("secrets", "not supported by this peer yet; keep secrets at the cluster"),
    ("commands", "write run: a script, or a list of program and arguments"),
    ("command", "write run: a script, or a list of program and arguments"),
    ("cmd", "write run: a script, or a list of program and arguments"),
    ("args", "write run: a list of program and arguments"),
    ("script", "write run"),
    ("entrypoint", "write run: a list of program and arguments"),
    ("working_dir", "write workdir: an absolute path at the cluster"),
    ("chdir", "write workdir: an absolute path at the cluster"),
    ("file_mounts", "write data: a list of URIs; local files are not uploaded"),
    ("volumes", "write data: a list of URIs"),
    ("storage", "write data: a list of URIs"),
    ("datasets", "write data: a list of URIs"),
    ("accelerators", "write resources: {gpus: \"A100-80G:8\"}"),
    ("gpus", "write resources: {gpus: 8}"),
    ("gpus_per_node", "write resources: {gpus: 8}"),
    ("gres", "write resources: {gpus: \"A100-80G:8\"}"),
    ("cpus", "write resources: {cpus: 4}"),
    ("cpus_per_task", "write resources: {cpus: 4}"),
    ("mem", "write resources: {memory: 16G}"),
    ("memory", "write resources: {memory: 16G}"),
    ("partition", "write placement: {clusters: […]} or {labels: {…}}"),
    ("constraint", "write placement: {labels: {…}}"),
    ("qos", "write priority"),
    ("account", "write tenant"),
    ("user", "write tenant"),
    ("project", "write tenant"),
    ("job_name", "write name"),
    ("time", "write max_runtime: 24h"),
    ("timeout", "write max_runtime: 24h"),
    ("max_duration", "write max_runtime: 24h"),
    ("retry", "write retries: a number"),
    ("max_restarts", "write retries: a number"),
    ("job_recovery", "write retries and on_lost_contact"),
    ("requeue", "write retries and on_lost_contact"),
    ("regions", "write placement: {regions: […]}"),
    ("region", "write placement: {regions: […]}"),
    ("clusters", "write placement: {clusters: […]}"),
    ("cluster", "write placement: {clusters: […]}"),
    ("labels", "write placement: {labels: {…}}"),
    ("node_selector", "write placement: {labels: {…}}"),
    ("policy", "write placement: {policy: …}"),
    ("cloud", "there are clusters, not clouds: see placement"),
    ("backends", "there are clusters, not clouds: see placement"),
    ("use_spot", "write preemptible: true"),
    ("spot_policy", "write preemptible: true"),
    ("dependency", "write after: {job: ID, on: ok}"),
    ("depends_on", "write after: ID"),
    ("array_size", "write array: 0-99"),
    ("max_price", "write placement: {price_max: …}"),
    ("grace", "write on_lost_contact: {grace: 2m}"),
    ("type", "remove it: every document is one job"),
    ("kind", "Kubernetes Jobs are read by `starling submit`, not by the API: see docs/reference/bring.md"),
    (
        "apiversion",
        "Kubernetes Jobs are read by `starling submit`, not by the API: see docs/reference/bring.md",
    ),
    (
        "apiVersion",
        "Kubernetes Jobs are read by `starling submit`, not by the API: see docs/reference/bring.md",
    ),
    ("metadata", "Kubernetes Jobs are read by `starling submit`, not by the API; here write name"),
    ("spec", "Kubernetes Jobs are read by `starling submit`, not by the API: see docs/reference/bring.md"),
];
pub(super) const FAMILIAR_RESOURCES: &[Familiar] = &[
    ("accelerators", "write gpus: \"A100-80G:8\""),
    ("accelerator", "write gpus: \"A100-80G:8\""),
    ("gpu_model", "write gpu"),
    ("gpu_count", "write gpus"),
    ("count", "write gpus"),
    ("model", "write gpu"),
    ("cpu", "write cpus"),
    ("mem", "write memory: 16G"),
    ("ram", "write memory: 16G"),
    ("nodes", "write nodes at the top level"),
    ("use_spot", "write preemptible: true at the top level"),
    ("region", "write placement: {regions: […]} at the top level"),
    ("cloud", "there are clusters, not clouds: see placement"),
    ("infra", "there are clusters, not clouds: see placement"),
    ("instance_type", "write gpus, cpus and memory: there are no instance types"),
    ("disk_size", "disk is not counted"),
    ("disk", "disk is not counted"),
    ("shm_size", "not supported by this peer yet"),
    ("image_id", "write image at the top level"),
    ("limits", "write gpus, cpus and memory: what is asked for is what it gets"),
    ("requests", "write gpus, cpus and memory: what is asked for is what it gets"),
];
pub(super) const FAMILIAR_PLACEMENT: &[Familiar] = &[
    ("region", "write regions"),
    ("cluster", "write clusters"),
    ("zone", "write zones"),
    ("node_selector", "write labels"),
    ("max_price", "write price_max"),
    ("affinity", "write labels"),
];
pub(super) const FAMILIAR_CHECKPOINT: &[Familiar] = &[
    ("uri", "write path"),
    ("dir", "write path"),
    ("interval", "write every: 10m"),
    ("frequency", "write every: 10m"),
];
