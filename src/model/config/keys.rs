//! Every key of a configuration.

use crate::model::input::Key;

const fn key(name: &'static str) -> Key {
    Key { name, ready: true }
}

pub(super) const TOP: &[Key] = &[
    key("name"),
    key("region"),
    key("zone"),
    key("state"),
    key("listen"),
    key("advertise"),
    key("api"),
    key("labels"),
    key("price_per_gpu_hour"),
    key("pue"),
    key("tariff_per_kwh"),
    key("egress_per_gb"),
    key("egress_to"),
    key("compliance"),
    key("datasets"),
    key("images"),
    key("placement"),
    key("nodes"),
    key("backend"),
    key("replicas"),
    key("witness"),
    key("limits"),
    key("schedule"),
    key("timing"),
    key("alerts"),
    key("shutdown"),
    key("certificate"),
    key("local"),
    key("slurm"),
    key("kubernetes"),
    key("trace"),
];
pub(super) const API: &[Key] = &[key("listen"), key("unix")];
pub(super) const NODES: &[Key] = &[
    key("name"),
    key("count"),
    key("gpu"),
    key("gpus"),
    key("gpu_memory"),
    key("cpus"),
    key("memory"),
    key("nvlink"),
    key("pcie"),
    key("numa"),
];
pub(super) const DATASETS: &[Key] = &[key("name"), key("size"), key("path")];
pub(super) const IMAGES: &[Key] = &[key("name"), key("size")];
pub(super) const PLACEMENT: &[Key] =
    &[key("balanced"), key("data-first"), key("cheapest"), key("fastest"), key("spread"), key("green")];
pub(super) const WEIGHTS: &[Key] =
    &[key("start"), key("wait"), key("data"), key("cost"), key("energy"), key("load")];
pub(super) const LIMITS: &[Key] = &[
    key("jobs"),
    key("claims"),
    key("disk_reserve"),
    key("log_bytes"),
    key("log_files"),
    key("attempts_kept"),
    key("retain"),
    key("retain_jobs"),
];
pub(super) const SCHEDULE: &[Key] = &[
    key("weights"),
    key("half_life"),
    key("preemption"),
    key("notice"),
    key("starve_after"),
    key("drain_ratio"),
    key("buffer_ratio"),
    key("buffer_priority"),
];
pub(super) const TIMING: &[Key] = &[
    key("renew_every"),
    key("rho"),
    key("margin"),
    key("grace"),
    key("rehome_after"),
    key("grant_for"),
    key("gossip_interval"),
    key("gossip_interval_busy"),
    key("probe_every"),
    key("probe_share"),
];
pub(super) const ALERTS: &[Key] = &[
    key("notify_after"),
    key("recover_after"),
    key("stagger"),
    key("for"),
    key("contact_age"),
    key("disk_low"),
    key("commit"),
    key("certificate"),
    key("link_loss"),
    key("link_use"),
    key("schedule"),
    key("start"),
    key("lost"),
    key("gpus_used"),
    key("quota"),
    key("webhooks"),
    key("commands"),
];
pub(super) const WEBHOOKS: &[Key] =
    &[key("name"), key("url"), key("headers"), key("ca"), key("severity"), key("kinds"), key("timeout")];
pub(super) const COMMANDS: &[Key] =
    &[key("name"), key("run"), key("shell"), key("severity"), key("kinds"), key("timeout")];
pub(super) const SHUTDOWN: &[Key] = &[key("deadline"), key("jobs"), key("notice")];
pub(super) const CERTIFICATE: &[Key] = &[key("lifetime")];
pub(super) const LOCAL: &[Key] = &[key("container_runtime"), key("cgroups")];
pub(super) const SLURM: &[Key] = &[
    key("shared"),
    key("bin"),
    key("conf"),
    key("rest"),
    key("token"),
    key("partition"),
    key("account"),
    key("qos"),
    key("options"),
    key("gpu_names"),
    key("interval"),
    key("pending_max"),
    key("guard_listen"),
    key("guard_host"),
    key("notice_signal"),
];
pub(super) const KUBERNETES: &[Key] = &[
    key("kubeconfig"),
    key("context"),
    key("namespace"),
    key("image"),
    key("guard_image"),
    key("queue"),
    key("pod_groups"),
    key("scheduler"),
    key("priority_class"),
    key("runtime_class"),
    key("service_account"),
    key("pull_secrets"),
    key("node_selector"),
    key("tolerations"),
    key("gpu_names"),
    key("interval"),
    key("pending_max"),
    key("pull_max"),
    key("guard_listen"),
    key("guard_host"),
];
pub(super) const TRACE: &[Key] = &[key("otlp"), key("ca")];

/// Every table with its path; the empty path is the document.
pub const SECTIONS: &[(&str, &[Key])] = &[
    ("", TOP),
    ("api", API),
    ("nodes", NODES),
    ("datasets", DATASETS),
    ("images", IMAGES),
    ("placement", PLACEMENT),
    ("weights", WEIGHTS),
    ("limits", LIMITS),
    ("schedule", SCHEDULE),
    ("timing", TIMING),
    ("alerts", ALERTS),
    ("webhooks", WEBHOOKS),
    ("commands", COMMANDS),
    ("shutdown", SHUTDOWN),
    ("certificate", CERTIFICATE),
    ("local", LOCAL),
    ("slurm", SLURM),
    ("kubernetes", KUBERNETES),
    ("trace", TRACE),
];

/// What people may write by habit, and what to write here.
pub(super) const FAMILIAR: &[(&str, &str)] = &[
    ("state_dir", "write state"),
    ("data_dir", "write state"),
    ("bind", "write listen"),
    ("address", "write listen or advertise"),
    ("join", "a token is given once, on the command line: starling up --join TOKEN@HOST:PORT"),
    ("peers", "peers are found by joining: starling up --join TOKEN@HOST:PORT"),
    ("seeds", "peers are found by joining: starling up --join TOKEN@HOST:PORT"),
    ("price", "write price_per_gpu_hour"),
    ("data", "write [[datasets]]"),
    ("dataset", "write [[datasets]]"),
    ("policies", "write [placement.balanced] and so on"),
    ("weights", "write [placement.balanced] and so on"),
    ("egress", "write egress_per_gb and [egress_to]"),
    ("tariff", "write tariff_per_kwh"),
    ("gpus", "write it in a [[nodes]] table"),
    ("gpu", "write it in a [[nodes]] table"),
    ("node", "write [[nodes]]"),
    ("cluster", "a peer's cluster has the peer's name: write name"),
];
