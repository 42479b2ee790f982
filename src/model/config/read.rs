//! From text to a valid configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::keys::{API, CERTIFICATE, FAMILIAR, LIMITS, LOCAL, NODES, SHUTDOWN, SLURM, TIMING, TOP, TRACE};
use super::{
    BackendKind, Config, ConfigMistake, DOCUMENT_BYTES_MAX, GpuSets, ShutdownJobs, SlurmBackendConfig,
    alerts, schedule,
};
use crate::base::{Bytes, MilliCpu, PeerName, Span};
use crate::model::gpu;
use crate::model::input::fill::{cpus, labels, memory, span};
use crate::model::input::{Field, Fields, Mistake, Mistakes, Value, from_toml, words};
use crate::model::report::NodeCapacity;
use crate::model::spec::limits::{GPUS_PER_NODE_MAX, LIST_MAX, NODES_MAX};

const MINUTE: Span = Span::secs(60);
const DAY: Span = Span::secs(86_400);

fn whole_document(want: String) -> Vec<ConfigMistake> {
    vec![Mistake { key: String::new(), line: None, value: None, want }]
}

pub(super) fn read(text: &str) -> Result<Config, Vec<ConfigMistake>> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(whole_document(format!(
            "has {} bytes; at most {DOCUMENT_BYTES_MAX} are read",
            text.len()
        )));
    }
    let (node, syntax) = from_toml(text);
    let mut m = Mistakes::default();
    let broken = !syntax.is_empty();
    for error in syntax {
        m.add(Mistake { key: String::new(), line: error.line, value: None, want: error.message });
    }
    // What could not be read may be missed below: then only the syntax is to be named.
    if broken {
        return Err(m.into_vec());
    }
    let mut config = Config::default();
    if let Some(mut fields) = Fields::of(Field { path: String::new(), node }, &mut m) {
        identity(&mut config, &mut fields, &mut m);
        economy(&mut config, &mut fields, &mut m);
        tables(&mut config, &mut fields, &mut m);
        fields.finish(&mut m, TOP, FAMILIAR);
    }
    if m.is_empty() { Ok(config) } else { Err(m.into_vec()) }
}

/// Puts a value where a key gave one.
pub(super) fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

pub(super) fn path(field: Field, m: &mut Mistakes) -> Option<PathBuf> {
    field.read(m, "must be an absolute path", |t| words::absolute(t).then(|| PathBuf::from(t)))
}

pub(super) fn address(field: Field, m: &mut Mistakes) -> Option<SocketAddr> {
    field.read(m, "must be an address and port such as 0.0.0.0:7420 or [::]:7420", |t| t.parse().ok())
}

fn host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .map_or(host, |v6| if v6.parse::<std::net::Ipv6Addr>().is_ok() { "v6" } else { "" });
    port.parse::<u16>().is_ok_and(|p| p > 0)
        && (1..=253).contains(&host.len())
        && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
}

fn identity(config: &mut Config, fields: &mut Fields, m: &mut Mistakes) {
    let place = |t: &str| words::place(t).then(|| t.to_owned());
    if let Some(field) = fields.take("name", m) {
        config.name = field.read(m, words::PEER, |t| PeerName::new(t).ok());
    }
    set(&mut config.region, fields.take("region", m).and_then(|f| f.read(m, words::PLACE, place)));
    let zone = fields.take("zone", m);
    set(
        &mut config.zone,
        zone.and_then(|f| {
            f.read(m, words::PLACE, |t| (t.is_empty() || words::place(t)).then(|| t.to_owned()))
        }),
    );
    config.state = fields.take("state", m).and_then(|f| path(f, m));
    set(&mut config.listen, fields.take("listen", m).and_then(|f| address(f, m)));
    if let Some(field) = fields.take("advertise", m) {
        let want = "must be host:port, such as gpu1.example.com:7420";
        let items = field.one_or_many(m, 8).into_iter();
        config.advertise =
            items.filter_map(|f| f.read(m, want, |t| host_port(t).then(|| t.to_owned()))).collect();
    }
    set(&mut config.labels, fields.take("labels", m).map(|f| labels(f, m)));
    set(&mut config.backend, fields.take("backend", m).and_then(|f| backend(f, m)));
    set(&mut config.witness, fields.take("witness", m).and_then(|f| f.flag(m)));
}

fn backend(field: Field, m: &mut Mistakes) -> Option<BackendKind> {
    let kinds = [BackendKind::Local, BackendKind::Slurm, BackendKind::Kubernetes];
    field.word(m, &kinds.map(|kind| (kind.as_str(), kind)))
}

fn economy(config: &mut Config, fields: &mut Fields, m: &mut Mistakes) {
    set(
        &mut config.price_milli,
        fields.take("price_per_gpu_hour", m).and_then(|f| f.milli(m, 0..=1_000_000)),
    );
    let pue = fields.take("pue", m).and_then(|f| f.milli(m, 1_000..=5_000));
    set(&mut config.pue_milli, pue.and_then(|n| u32::try_from(n).ok()));
    if let Some(field) = fields.take("replicas", m) {
        match field.node.value {
            Value::Int(n @ (1 | 3 | 5)) => config.replicas = n as usize,
            _ => field.wrong(m, "must be 1, 3 or 5"),
        }
    }
    super::economy::read(config, fields, m);
    let Some(field) = fields.take("nodes", m) else { return };
    if config.witness {
        field.wrong(m, "a witness runs nothing: remove the nodes, or witness");
        return;
    }
    if config.backend == BackendKind::Slurm {
        field.wrong(
            m,
            "Slurm says which nodes there are: remove the nodes, or name partitions in slurm.partition",
        );
        return;
    }
    if config.backend == BackendKind::Kubernetes {
        field.wrong(
            m,
            "Kubernetes says which nodes there are: remove the nodes, or choose some with kubernetes.node_selector",
        );
        return;
    }
    let line = field.node.line;
    for item in field.items(m, 256).unwrap_or_default() {
        let at = Field { path: format!("{}.name", item.path), node: item.node.clone() };
        if let Some((node, sets)) = node(item, m) {
            if config.nodes.iter().any(|n| n.name == node.name) {
                at.wrong(m, "two node groups have this name: give each its own");
            }
            if !sets.is_empty() {
                config.gpu_sets.insert(node.name.clone(), sets);
            }
            config.nodes.push(node);
        }
    }
    let total: u64 = config.nodes.iter().map(|n| u64::from(n.count)).sum();
    if total > u64::from(NODES_MAX) {
        let value = Some(total.to_string());
        m.add(Mistake {
            key: "nodes".into(),
            line,
            value,
            want: format!("at most {NODES_MAX} nodes in all"),
        });
    }
}

fn node(item: Field, m: &mut Mistakes) -> Option<(NodeCapacity, GpuSets)> {
    let mut fields = Fields::of(item, m)?;
    let name = fields
        .take("name", m)
        .and_then(|f| f.read(m, words::PLACE, |t| words::place(t).then(|| t.to_owned())));
    if name.is_none() && !fields.had("name") {
        fields.missing(m, "name", "is missing: a name for this group of nodes");
    }
    let count = fields.take("count", m).and_then(|f| f.whole32(m, 1..=NODES_MAX)).unwrap_or(1);
    let gpus = fields.take("gpus", m).and_then(|f| f.whole32(m, 0..=GPUS_PER_NODE_MAX));
    let size = fields.take("gpu_memory", m).and_then(|f| memory(f, m));
    let model = fields.take("gpu", m).and_then(|f| node_gpu(f, size.unwrap_or_default(), m));
    if fields.had("gpu") && !fields.had("gpus") {
        fields.missing(m, "gpus", "is missing: how many GPUs each node has");
    }
    if gpus.unwrap_or(0) > 0 && !fields.had("gpu") {
        fields.missing(m, "gpu", "is missing: which model the GPUs are");
    }
    let gpus = gpus.unwrap_or(0);
    let model = model.filter(|_| gpus > 0);
    let known = model.as_deref().and_then(gpu::memory);
    let share = u64::from(gpus.max(1));
    let cpus = fields.take("cpus", m).and_then(|f| cpus(f, m)).unwrap_or(MilliCpu(8_000 * share));
    let memory = fields.take("memory", m).and_then(|f| memory(f, m)).unwrap_or(Bytes::gib(32 * share));
    let sets = schedule::read_sets(&mut fields, gpus, m);
    fields.finish(m, NODES, &[("model", "write gpu"), ("cpu", "write cpus"), ("mem", "write memory")]);
    let gpu_memory = if model.is_some() { size.or(known).unwrap_or_default() } else { Bytes(0) };
    let node =
        NodeCapacity { name: name?, count, gpu_model: model, gpus, gpu_memory, cpus, memory, declared: true };
    Some((node, sets))
}

/// A report must be exact, so a model that is sold with several memories must say which.
fn node_gpu(field: Field, size: Bytes, m: &mut Mistakes) -> Option<String> {
    let exact = |t: &str| gpu::canonical_measured(t, size).ok();
    if let Value::Text(text) = &field.node.value
        && let Some(name) = exact(text)
        && gpu::vendor(&name).is_some()
        && gpu::memory(&name).is_none()
    {
        field.wrong(
            m,
            format!("is sold with several memories: name one, as in {name}-80G, or give gpu_memory"),
        );
        return None;
    }
    field.read(m, gpu::NAME, exact)
}

pub(super) fn table(fields: &mut Fields, key: &str, m: &mut Mistakes) -> Option<Fields> {
    fields.take(key, m).and_then(|f| Fields::of(f, m))
}

/// A duration, or `word` for none.
fn span_or(field: Field, word: &str, m: &mut Mistakes, low: Span, high: Span) -> Option<Option<Span>> {
    if matches!(&field.node.value, Value::Text(t) if t == word) {
        return Some(None);
    }
    span(field, m, low, high).map(Some)
}

fn tables(config: &mut Config, fields: &mut Fields, m: &mut Mistakes) {
    if let Some(mut api) = table(fields, "api", m) {
        if let Some(field) = api.take("listen", m) {
            let off = matches!(&field.node.value, Value::Text(t) if t == "off");
            config.api.listen = if off { None } else { address(field, m) };
        }
        config.api.unix = api.take("unix", m).and_then(|f| path(f, m));
        api.finish(m, API, &[]);
    }
    if let Some(table) = table(fields, "limits", m) {
        limits(config, table, m);
    }
    if let Some(table) = table(fields, "schedule", m) {
        schedule::read(&mut config.schedule, table, m);
    }
    if let Some(table) = table(fields, "timing", m) {
        timing(config, table, m);
    }
    if let Some(t) = table(fields, "alerts", m) {
        alerts::read(&mut config.alerts, t, m);
    }
    if let Some(mut t) = table(fields, "shutdown", m) {
        let s = &mut config.shutdown;
        set(
            &mut s.deadline,
            t.take("deadline", m).and_then(|f| span(f, m, Span::secs(1), Span::secs(3_600))),
        );
        let jobs = [("leave", ShutdownJobs::Leave), ("move", ShutdownJobs::Move)];
        set(&mut s.jobs, t.take("jobs", m).and_then(|f| f.word(m, &jobs)));
        set(&mut s.notice, t.take("notice", m).and_then(|f| span(f, m, Span::ZERO, Span::secs(3_600))));
        t.finish(m, SHUTDOWN, &[]);
    }
    if let Some(mut t) = table(fields, "certificate", m) {
        let lifetime = t.take("lifetime", m).and_then(|f| span(f, m, Span::secs(600), DAY.scale(400, 1)));
        set(&mut config.certificate.lifetime, lifetime);
        t.finish(m, CERTIFICATE, &[]);
    }
    if let Some(mut t) = table(fields, "local", m) {
        config.local.container_runtime = t.take("container_runtime", m).and_then(|f| path(f, m));
        set(&mut config.local.cgroups, t.take("cgroups", m).and_then(|f| f.flag(m)));
        t.finish(m, LOCAL, &[]);
    }
    if let Some(t) = table(fields, "slurm", m) {
        slurm(&mut config.slurm, t, m);
    }
    if let Some(t) = table(fields, "kubernetes", m) {
        super::kubernetes::read(&mut config.kubernetes, t, m);
    }
    if let Some(mut t) = table(fields, "trace", m) {
        let collector = |t: &str| {
            let rest = t.strip_prefix("http://").or_else(|| t.strip_prefix("https://"));
            let good = rest
                .is_some_and(|r| !r.is_empty() && r.len() <= 500 && r.bytes().all(|b| b.is_ascii_graphic()));
            good.then(|| t.to_owned())
        };
        let want =
            "must be http://HOST:PORT or https://HOST:PORT of an OTLP collector, such as http://otel:4318";
        config.trace.otlp = t.take("otlp", m).and_then(|f| f.read(m, want, collector));
        config.trace.ca = t.take("ca", m).and_then(|f| path(f, m));
        t.finish(m, TRACE, &[("endpoint", "write otlp")]);
    }
}

fn slurm(s: &mut SlurmBackendConfig, mut t: Fields, m: &mut Mistakes) {
    s.shared = t.take("shared", m).and_then(|f| path(f, m));
    s.bin = t.take("bin", m).and_then(|f| path(f, m));
    s.conf = t.take("conf", m).and_then(|f| path(f, m));
    s.token = t.take("token", m).and_then(|f| path(f, m));
    let rest = |t: &str| {
        let socket = t.strip_prefix("unix:").is_some_and(words::absolute);
        let http = t.strip_prefix("http://").is_some_and(|a| host_port(a.trim_end_matches('/')));
        (socket || http || t == "off").then(|| t.to_owned())
    };
    let want = "must be unix:/path, http://host:port or off";
    s.rest = t.take("rest", m).and_then(|f| f.read(m, want, rest));
    let word = |t: &str| {
        let good = (1..=255).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic());
        good.then(|| t.to_owned())
    };
    let want = "must be 1 to 255 characters without blanks";
    for (key, place) in [("partition", &mut s.partition), ("account", &mut s.account), ("qos", &mut s.qos)] {
        *place = t.take(key, m).and_then(|f| f.read(m, want, word));
    }
    set(&mut s.options, t.take("options", m).map(|f| labels(f, m)));
    set(&mut s.gpu_names, t.take("gpu_names", m).map(|f| labels(f, m)));
    set(&mut s.interval, t.take("interval", m).and_then(|f| span(f, m, Span::millis(200), Span::secs(600))));
    let month = DAY.scale(30, 1);
    set(&mut s.pending_max, t.take("pending_max", m).and_then(|f| span(f, m, Span::secs(1), month)));
    set(&mut s.guard_listen, t.take("guard_listen", m).and_then(|f| address(f, m)));
    s.guard_host = t.take("guard_host", m).and_then(|f| f.read(m, want, word));
    let signals = ["TERM", "USR1", "USR2", "HUP", "INT", "CONT"].map(|name| (name, name));
    let signal = t.take("notice_signal", m).and_then(|f| f.word(m, &signals));
    set(&mut s.notice_signal, signal.map(str::to_owned));
    t.finish(m, SLURM, &[("partitions", "write partition, with commas between")]);
}

fn limits(config: &mut Config, mut t: Fields, m: &mut Mistakes) {
    let l = &mut config.limits;
    let count =
        |f: Field, m: &mut Mistakes, max: u64| f.whole(m, 1..=max).and_then(|n| usize::try_from(n).ok());
    set(&mut l.jobs, t.take("jobs", m).and_then(|f| count(f, m, 10_000_000)));
    set(&mut l.claims, t.take("claims", m).and_then(|f| count(f, m, 16)));
    set(&mut l.disk_reserve, t.take("disk_reserve", m).and_then(|f| memory(f, m)));
    if let Some(field) = t.take("log_bytes", m) {
        let (low, high) = (Bytes(64 << 10), Bytes(1 << 40));
        let want = format!("{}, from 64KiB to 1TiB", words::SIZE);
        let size = |t: &str| t.parse::<Bytes>().ok().filter(|b| (low..=high).contains(b));
        set(&mut l.log_bytes, field.read(m, &want, size));
    }
    set(&mut l.log_files, t.take("log_files", m).and_then(|f| f.whole32(m, 2..=100)));
    set(&mut l.attempts_kept, t.take("attempts_kept", m).and_then(|f| count(f, m, 1_000_000)));
    set(&mut l.retain, t.take("retain", m).and_then(|f| span(f, m, Span::secs(1), DAY.scale(3_650, 1))));
    set(&mut l.retain_jobs, t.take("retain_jobs", m).and_then(|f| count(f, m, 10_000_000)));
    t.finish(m, LIMITS, &[("disk", "write disk_reserve")]);
}

fn timing(config: &mut Config, mut t: Fields, m: &mut Mistakes) {
    let w = &mut config.timing;
    let mut between = |key: &str, low: Span, high: Span, place: &mut Span, m: &mut Mistakes| {
        set(place, t.take(key, m).and_then(|f| span(f, m, low, high)));
    };
    between("renew_every", Span::millis(100), MINUTE, &mut w.renew_every, m);
    between("margin", Span::millis(100), Span::secs(300), &mut w.margin, m);
    between("grace", Span::secs(1), DAY.scale(30, 1), &mut w.grace, m);
    between("rehome_after", Span::secs(1), DAY.scale(30, 1), &mut w.rehome_after, m);
    between("grant_for", Span::secs(1), Span::secs(600), &mut w.grant_for, m);
    between("gossip_interval", Span::millis(50), MINUTE, &mut w.gossip_interval, m);
    let busy_given = t.has("gossip_interval_busy");
    let mut between = |key: &str, low: Span, high: Span, place: &mut Span, m: &mut Mistakes| {
        set(place, t.take(key, m).and_then(|f| span(f, m, low, high)));
    };
    if busy_given {
        between("gossip_interval_busy", Span::millis(20), w.gossip_interval, &mut w.gossip_interval_busy, m);
    } else {
        w.gossip_interval_busy = w.gossip_interval_busy.min(w.gossip_interval);
    }
    set(&mut w.rho_milli, t.take("rho", m).and_then(|f| f.milli(m, 0..=100)));
    set(
        &mut w.probe_every,
        t.take("probe_every", m).and_then(|f| span_or(f, "never", m, Span::secs(1), DAY.scale(30, 1))),
    );
    let share = t.take("probe_share", m).and_then(|f| f.milli(m, 0..=100));
    set(&mut w.probe_share_milli, share.and_then(|n| u32::try_from(n).ok()));
    // An attempt that loses two renewals in a row must not have to stop.
    let least = w.renew_every.scale(3, 1) + w.margin;
    if w.grace < least {
        let want =
            format!("must be at least three renew_every and a margin, {} here", words::span_text(least));
        t.missing(m, "grace", &format!("is {}: {want}", words::span_text(w.grace)));
    }
    t.finish(m, TIMING, &[]);
}

const _: () = assert!(LIST_MAX == 64, "the reference page says 64 labels");
