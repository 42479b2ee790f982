//! The mappings inside a job: resources, environment, data, checkpoint, contact, placement.

use std::collections::BTreeMap;

use super::job::SPAN_MAX;
use super::keys::{
    CHECKPOINT, DATA, FAMILIAR_CHECKPOINT, FAMILIAR_PLACEMENT, FAMILIAR_RESOURCES, LOST_CONTACT, PLACEMENT,
    RESOURCES, SEED_GPU, WARN,
};
use super::later;
use crate::base::{Bytes, MilliCpu, PeerName, Span};
use crate::model::gpu;
use crate::model::input::fill::{cpus, labels, memory, span, span_want};
use crate::model::input::{Field, Fields, Mistakes, Value, words};
use crate::model::spec::{
    CheckpointSpec, OnLostContact, PlacementSpec, Resources, Then, WarnSignal, WarnSpec, limits,
};

/// Variables that the peer sets itself.
const RESERVED: &[&str] = &[
    "CHECKPOINT_PATH",
    "TRACEPARENT",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "RANK",
    "NODE_RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
];
/// Of our names, those that a job may set for itself: what the examples run, and where they note it.
const FREE: &[&str] = &["STARLING_BIN", "STARLING_LEDGER"];

/// What a job gets that asks for nothing.
pub fn no_resources() -> Resources {
    Resources { cpus: MilliCpu(1_000), ..Resources::default() }
}

/// `resources`.
pub fn resources(field: Field, m: &mut Mistakes) -> Resources {
    let mut out = no_resources();
    let Some(mut fields) = Fields::of(field, m) else { return out };
    let count = fields.take("gpus", m).and_then(|f| gpus(f, m));
    let list = fields.take("gpu", m);
    if let Some((n, model)) = &count {
        out.gpus = *n;
        out.gpu.extend(model.clone());
    }
    if let Some(field) = list {
        if !out.gpu.is_empty() {
            field.wrong(m, "gpus names a model already: keep one of them");
        } else if out.gpus == 0 && count.is_some() {
            field.wrong(m, "names a model while gpus is 0: raise gpus, or remove this");
        } else {
            out.gpus = out.gpus.max(1);
            out.gpu = models(field, m);
        }
    }
    if let Some(cpus) = fields.take("cpus", m).and_then(|f| cpus(f, m)) {
        out.cpus = cpus;
    }
    if let Some(memory) = fields.take("memory", m).and_then(|f| memory(f, m)) {
        out.memory = memory;
    }
    fields.finish(m, RESOURCES, FAMILIAR_RESOURCES);
    out
}

/// The job request's `gpu: {count, model}`.
pub fn request_gpu(field: Field, m: &mut Mistakes) -> Resources {
    let mut out = no_resources();
    if !matches!(field.node.value, Value::Map(_)) {
        field.wrong(m, "must be {count, model} here; else write resources: {gpus: 1, gpu: …}");
        return out;
    }
    let Some(mut fields) = Fields::of(field, m) else { return out };
    out.gpus = 1;
    if let Some(n) = fields.take("count", m).and_then(|f| f.whole32(m, 0..=limits::GPUS_PER_NODE_MAX)) {
        out.gpus = n;
    }
    if let Some(field) = fields.take("model", m) {
        if out.gpus == 0 {
            field.wrong(m, "names a model while count is 0: raise count, or remove this");
        } else {
            out.gpu = models(field, m);
        }
    }
    fields.finish(m, SEED_GPU, &[]);
    out
}

/// `8`, `A100-80G:8` or `A100-80G`.
fn gpus(field: Field, m: &mut Mistakes) -> Option<(u32, Option<String>)> {
    let max = limits::GPUS_PER_NODE_MAX;
    let Value::Text(text) = &field.node.value else {
        if matches!(field.node.value, Value::Map(_) | Value::List(_)) {
            field.wrong(
                m,
                format!(
                    "must be a whole number from 0 to {max}, or MODEL:COUNT; models that will do go into gpu"
                ),
            );
            return None;
        }
        return field.whole32(m, 0..=max).map(|n| (n, None));
    };
    let (model, count) = text.rsplit_once(':').unwrap_or((text, "1"));
    let count = count.trim().parse::<u32>().ok().filter(|n| (1..=max).contains(n));
    // A number in quotes is no model.
    let model = gpu::canonical(model).ok().filter(|name| !name.chars().all(|c| c.is_ascii_digit()));
    match (count, model) {
        (Some(count), Some(model)) => Some((count, Some(model))),
        _ => {
            field.wrong(m, format!("must be a whole number from 0 to {max} (no quotes), or MODEL:COUNT such as \"A100-80G:8\""));
            None
        }
    }
}

fn models(field: Field, m: &mut Mistakes) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for item in field.one_or_many(m, limits::LIST_MAX) {
        if matches!(&item.node.value, Value::Text(t) if t.contains(':')) {
            item.wrong(m, "must be a model alone; the count goes into gpus");
        } else if let Some(name) = item.read(m, gpu::NAME, |t| gpu::canonical(t).ok())
            && !out.contains(&name)
        {
            out.push(name);
        }
    }
    out
}

/// `env`.
pub fn env(field: Field, m: &mut Mistakes) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut bytes = 0;
    let (path, line) = (field.path.clone(), field.node.line);
    for (name, field) in field.pairs(m, limits::ENV_COUNT_MAX).unwrap_or_default() {
        let ours = name.starts_with("STARLING_") && !FREE.contains(&name.as_str());
        if !words::env_name(&name) {
            field.wrong(
                m,
                "the name must be letters, digits and '_', not starting with a digit, at most 128 characters",
            );
        } else if ours || RESERVED.contains(&name.as_str()) {
            let hint = if name == "CHECKPOINT_PATH" { ": write checkpoint" } else { "" };
            field.wrong(m, format!("is set by the peer{hint}"));
        } else if matches!(&field.node.value, Value::Text(t) if t.contains('\0')) {
            field.wrong(m, "must not hold NUL");
        } else if let Some(value) = field.spelled(m, "must be text, a number, or true or false") {
            bytes += name.len() + value.len();
            out.insert(name, value);
        }
    }
    if bytes > limits::ENV_BYTES_MAX {
        let want = format!(
            "at most {} bytes in all are passed on: put large values into a file",
            limits::ENV_BYTES_MAX
        );
        m.add(crate::model::input::Mistake { key: path, line, value: Some(format!("{bytes} bytes")), want });
    }
    out
}

/// `data`: a dataset's name, a URI or a path, a list of them, or `{uri, size, stage}`; and the sizes that were said.
pub fn data(field: Field, m: &mut Mistakes) -> (Vec<String>, BTreeMap<String, Bytes>) {
    const WANT: &str = "must be a dataset's name, a URI such as s3://bucket/set or an absolute path, of at most 1024 characters, no spaces in a URI";
    let read = |t: &str| (words::uri(t) || words::absolute(t) || words::name(t)).then(|| t.to_owned());
    let (mut out, mut sizes) = (Vec::new(), BTreeMap::new());
    for item in field.one_or_many(m, limits::LIST_MAX) {
        if !matches!(item.node.value, Value::Map(_)) {
            out.extend(item.read(m, WANT, read));
            continue;
        }
        let Some(mut fields) = Fields::of(item, m) else { continue };
        let uri = match fields.take("uri", m) {
            Some(uri) => uri.read(m, WANT, read),
            None if !fields.had("uri") => {
                fields.missing(m, "uri", "is missing: what to read");
                None
            }
            None => None,
        };
        let size = fields.take("size", m).and_then(|f| {
            let want = format!("{}, at most 1024PiB", words::SIZE);
            f.read(m, &want, |t| t.parse::<Bytes>().ok().filter(|b| b.0 <= 1 << 60))
        });
        if let (Some(uri), Some(size)) = (&uri, size) {
            sizes.insert(uri.clone(), size);
        }
        out.extend(uri);
        // Not staging is what happens anyway.
        if let Some(stage) = fields.take("stage", m)
            && !matches!(stage.node.value, Value::Bool(false))
        {
            later::refuse("stage", &stage, m);
        }
        fields.finish(
            m,
            DATA,
            &[
                ("path", "write uri"),
                ("name", "write uri"),
                ("source", "write uri"),
                ("mount", "not supported by this peer yet"),
            ],
        );
    }
    (out, sizes)
}

/// `checkpoint`: a path, or `{path, every}`.
pub fn checkpoint(field: Field, m: &mut Mistakes) -> Option<CheckpointSpec> {
    const WANT: &str =
        "must be an absolute path or a URI such as s3://bucket/run that every cluster can reach";
    let read = |t: &str| (words::uri(t) || words::absolute(t)).then(|| t.to_owned());
    if !matches!(field.node.value, Value::Map(_)) {
        return field.read(m, WANT, read).map(|path| CheckpointSpec { path, every: None });
    }
    let mut fields = Fields::of(field, m)?;
    let path = fields.take("path", m);
    if path.is_none() && !fields.had("path") {
        fields.missing(m, "path", "is missing: where the job keeps its progress");
    }
    let path = path.and_then(|f| f.read(m, WANT, read));
    let every = fields.take("every", m).and_then(|f| span(f, m, Span::secs(1), SPAN_MAX));
    fields.finish(m, CHECKPOINT, FAMILIAR_CHECKPOINT);
    Some(CheckpointSpec { path: path?, every })
}

/// `warn`.
pub fn warn(field: Field, m: &mut Mistakes) -> Option<WarnSpec> {
    let mut fields = Fields::of(field, m)?;
    let signal = fields.take("signal", m).and_then(|f| f.word(m, &WarnSignal::ALL));
    let command = fields.take("command", m).and_then(|f| {
        let most = limits::WARN_BYTES_MAX;
        let want = format!("must be a shell script of at most {most} bytes");
        f.read(m, &want, |t| {
            let good = !t.trim().is_empty() && t.len() <= most && !t.contains('\0');
            good.then(|| t.to_owned())
        })
    });
    let before = fields.take("before", m).and_then(|f| span(f, m, Span::secs(1), Span::secs(86_400)));
    fields.finish(m, WARN, &[]);
    Some(WarnSpec { signal, command, before })
}

/// `on_lost_contact`.
pub fn lost_contact(field: Field, mut out: OnLostContact, m: &mut Mistakes) -> Option<OnLostContact> {
    let mut fields = Fields::of(field, m)?;
    if let Some(field) = fields.take("grace", m) {
        if matches!(&field.node.value, Value::Text(t) if t == "never") {
            out.grace = None;
        } else {
            let (low, high) = (Span::secs(1), Span::secs(30 * 86_400));
            let want = format!("{}, or never", span_want(low, high));
            out.grace = field.read(m, &want, |t| t.parse::<Span>().ok().filter(|s| (low..=high).contains(s)));
        }
    }
    if let Some(field) = fields.take("then", m) {
        if matches!(&field.node.value, Value::Text(t) if t == "duplicate_ok") {
            field.wrong(m, "duplicate_ok is not supported by this peer yet: must be one of restart, fail");
        } else {
            out.then = field.word(m, &[("restart", Then::Restart), ("fail", Then::Fail)]).unwrap_or_default();
        }
    }
    fields.finish(m, LOST_CONTACT, &[("grace_period", "write grace"), ("timeout", "write grace")]);
    Some(out)
}

pub use crate::model::policy::POLICIES;

/// `placement`.
pub fn placement(field: Field, m: &mut Mistakes) -> Option<PlacementSpec> {
    let mut out = PlacementSpec::default();
    let mut fields = Fields::of(field, m)?;
    later::refuse_all(&mut fields, PLACEMENT, m);
    if let Some(policy) = fields.take("policy", m).and_then(|f| f.word(m, &POLICIES)) {
        out.policy = policy;
    }
    if let Some(field) = fields.take("regions", m) {
        let items = field.one_or_many(m, limits::LIST_MAX).into_iter();
        out.regions = items
            .filter_map(|f| f.read(m, words::PLACE, |t| words::place(t).then(|| t.to_owned())))
            .collect();
    }
    if let Some(field) = fields.take("clusters", m) {
        let items = field.one_or_many(m, limits::LIST_MAX).into_iter();
        out.clusters = items.filter_map(|f| f.read(m, words::PEER, |t| PeerName::new(t).ok())).collect();
    }
    let mut places = |key: &str, m: &mut Mistakes| {
        let items = fields.take(key, m).map(|f| f.one_or_many(m, limits::LIST_MAX)).unwrap_or_default();
        let place =
            |f: Field, m: &mut Mistakes| f.read(m, words::PLACE, |t| words::place(t).then(|| t.to_owned()));
        items.into_iter().filter_map(|f| place(f, m)).collect::<Vec<String>>()
    };
    (out.zones, out.compliance) = (places("zones", m), places("compliance", m));
    out.price_max_milli = fields.take("price_max", m).and_then(|f| f.milli(m, 0..=1_000_000));
    if let Some(field) = fields.take("labels", m) {
        out.labels = labels(field, m);
    }
    fields.finish(m, PLACEMENT, FAMILIAR_PLACEMENT);
    Some(out)
}
