//! From a configuration to text.

use toml::{Table, Value};

use super::{Config, DatasetConfig, GpuSets, ShutdownJobs, alerts, schedule};
use crate::base::Span;
use crate::model::input::words::{size_text, span_text};
use crate::model::policy::{POLICIES, Term, Weights};
use crate::model::report::{Item, NodeCapacity};

fn text(value: impl Into<String>) -> Value {
    Value::String(value.into())
}
fn whole(n: impl TryInto<i64>) -> Value {
    Value::Integer(n.try_into().unwrap_or(i64::MAX))
}
fn milli(n: impl Into<u64>) -> Value {
    Value::Float(n.into() as f64 / 1e3)
}
fn span_or_never(span: Option<Span>) -> Value {
    text(span.map_or_else(|| "never".to_owned(), span_text))
}
fn table<const N: usize>(pairs: [(&str, Option<Value>); N]) -> Table {
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn node(n: &NodeCapacity, sets: Option<&GpuSets>) -> Value {
    let mut out = table([
        ("name", Some(text(&n.name))),
        ("count", Some(whole(n.count))),
        ("gpu", n.gpu_model.as_ref().map(text)),
        ("gpus", Some(whole(n.gpus))),
        ("gpu_memory", n.gpu_model.as_ref().map(|_| text(size_text(n.gpu_memory)))),
        ("cpus", Some(text(format!("{}m", n.cpus.0)))),
        ("memory", Some(text(size_text(n.memory)))),
    ]);
    out.extend(sets.map(schedule::write_sets).unwrap_or_default());
    Value::Table(out)
}

fn dataset(d: &DatasetConfig) -> Value {
    Value::Table(table([
        ("name", Some(text(&d.name))),
        ("size", d.size.map(|s| text(size_text(s)))),
        ("path", d.path.as_ref().map(|p| text(p.to_string_lossy()))),
    ]))
}

fn image(i: &Item) -> Value {
    Value::Table(table([("name", Some(text(&i.name))), ("size", Some(text(size_text(i.size))))]))
}

pub(super) fn write(c: &Config) -> String {
    let labels: Table = c.labels.iter().map(|(k, v)| (k.clone(), text(v))).collect();
    let path = |p: &std::path::PathBuf| text(p.to_string_lossy());
    let egress: Table = c.terms.egress_to_milli.iter().map(|(k, v)| (k.clone(), milli(*v))).collect();
    let weights = |w: &Weights| {
        Term::ALL.iter().map(|t| (t.as_str().to_owned(), milli(w.0[*t as usize]))).collect::<Table>()
    };
    let placement: Table = POLICIES
        .iter()
        .map(|(name, policy)| ((*name).to_owned(), Value::Table(weights(c.policies.of(*policy)))))
        .collect();
    let top = table([
        ("name", c.name.as_ref().map(|n| text(n.as_str()))),
        ("region", Some(text(&c.region))),
        ("zone", Some(text(&c.zone))),
        ("state", c.state.as_ref().map(path)),
        ("listen", Some(text(c.listen.to_string()))),
        ("advertise", Some(Value::Array(c.advertise.iter().map(text).collect()))),
        ("price_per_gpu_hour", Some(milli(c.price_milli))),
        ("pue", Some(milli(c.pue_milli))),
        ("tariff_per_kwh", Some(milli(c.terms.tariff_milli))),
        ("egress_per_gb", Some(milli(c.terms.egress_milli))),
        ("egress_to", (!egress.is_empty()).then_some(Value::Table(egress))),
        ("compliance", Some(Value::Array(c.terms.compliance.iter().map(text).collect()))),
        (
            "datasets",
            (!c.datasets.is_empty()).then(|| Value::Array(c.datasets.iter().map(dataset).collect())),
        ),
        ("images", (!c.images.is_empty()).then(|| Value::Array(c.images.iter().map(image).collect()))),
        ("placement", Some(Value::Table(placement))),
        ("backend", Some(text(c.backend.as_str()))),
        ("replicas", Some(whole(c.replicas))),
        ("witness", Some(Value::Boolean(c.witness))),
        ("labels", Some(Value::Table(labels))),
        (
            "nodes",
            (!c.nodes.is_empty())
                .then(|| Value::Array(c.nodes.iter().map(|n| node(n, c.gpu_sets.get(&n.name))).collect())),
        ),
        (
            "api",
            Some(Value::Table(table([
                ("listen", Some(text(c.api.listen.map_or_else(|| "off".to_owned(), |a| a.to_string())))),
                ("unix", c.api.unix.as_ref().map(path)),
            ]))),
        ),
        ("limits", Some(Value::Table(limits(c)))),
        ("schedule", Some(Value::Table(schedule::write(&c.schedule)))),
        ("timing", Some(Value::Table(timing(c)))),
        ("alerts", Some(Value::Table(alerts::write(&c.alerts)))),
        (
            "shutdown",
            Some(Value::Table(table([
                ("deadline", Some(text(span_text(c.shutdown.deadline)))),
                (
                    "jobs",
                    Some(text(match c.shutdown.jobs {
                        ShutdownJobs::Leave => "leave",
                        ShutdownJobs::Move => "move",
                    })),
                ),
                ("notice", Some(text(span_text(c.shutdown.notice)))),
            ]))),
        ),
        (
            "certificate",
            Some(Value::Table(table([("lifetime", Some(text(span_text(c.certificate.lifetime))))]))),
        ),
        (
            "local",
            Some(Value::Table(table([
                ("container_runtime", c.local.container_runtime.as_ref().map(path)),
                ("cgroups", Some(Value::Boolean(c.local.cgroups))),
            ]))),
        ),
        ("slurm", Some(Value::Table(slurm(c)))),
        ("kubernetes", Some(Value::Table(super::kubernetes::write(&c.kubernetes)))),
        (
            "trace",
            Some(Value::Table(table([
                ("otlp", c.trace.otlp.as_ref().map(text)),
                ("ca", c.trace.ca.as_ref().map(path)),
            ]))),
        ),
    ]);
    toml::to_string(&top).expect("tables of text, numbers, booleans and lists always serialize")
}

fn slurm(c: &Config) -> Table {
    let s = &c.slurm;
    let path = |p: &std::path::PathBuf| text(p.to_string_lossy());
    let pairs = |all: &std::collections::BTreeMap<String, String>| {
        let table: Table = all.iter().map(|(k, v)| (k.clone(), text(v))).collect();
        (!table.is_empty()).then_some(Value::Table(table))
    };
    table([
        ("shared", s.shared.as_ref().map(path)),
        ("bin", s.bin.as_ref().map(path)),
        ("conf", s.conf.as_ref().map(path)),
        ("rest", s.rest.as_ref().map(text)),
        ("token", s.token.as_ref().map(path)),
        ("partition", s.partition.as_ref().map(text)),
        ("account", s.account.as_ref().map(text)),
        ("qos", s.qos.as_ref().map(text)),
        ("options", pairs(&s.options)),
        ("gpu_names", pairs(&s.gpu_names)),
        ("interval", Some(text(span_text(s.interval)))),
        ("pending_max", Some(text(span_text(s.pending_max)))),
        ("guard_listen", Some(text(s.guard_listen.to_string()))),
        ("guard_host", s.guard_host.as_ref().map(text)),
        ("notice_signal", Some(text(&s.notice_signal))),
    ])
}

fn limits(c: &Config) -> Table {
    let l = &c.limits;
    table([
        ("jobs", Some(whole(l.jobs))),
        ("claims", Some(whole(l.claims))),
        ("disk_reserve", Some(text(size_text(l.disk_reserve)))),
        ("log_bytes", Some(text(size_text(l.log_bytes)))),
        ("log_files", Some(whole(l.log_files))),
        ("attempts_kept", Some(whole(l.attempts_kept))),
        ("retain", Some(text(span_text(l.retain)))),
        ("retain_jobs", Some(whole(l.retain_jobs))),
    ])
}

fn timing(c: &Config) -> Table {
    let w = &c.timing;
    table([
        ("renew_every", Some(text(span_text(w.renew_every)))),
        ("rho", Some(milli(w.rho_milli))),
        ("margin", Some(text(span_text(w.margin)))),
        ("grace", Some(text(span_text(w.grace)))),
        ("rehome_after", Some(text(span_text(w.rehome_after)))),
        ("grant_for", Some(text(span_text(w.grant_for)))),
        ("gossip_interval", Some(text(span_text(w.gossip_interval)))),
        ("gossip_interval_busy", Some(text(span_text(w.gossip_interval_busy)))),
        ("probe_every", Some(span_or_never(w.probe_every))),
        ("probe_share", Some(milli(w.probe_share_milli))),
    ])
}
