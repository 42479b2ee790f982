//! Where a pod may run: node selectors and required node affinity. What names a GPU product becomes the models that
//! will do, regions and zones become those of `placement`, and other labels are asked of the cluster.

use std::collections::BTreeMap;

use super::{Keys, Said, items, text};
use crate::model::gpu;
use crate::model::input::{Field, Value};

/// What selectors say.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// GPU models that will do; empty where none is named.
    pub models: Vec<String>,
    pub regions: Vec<String>,
    pub zones: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// The line of the first model.
    pub model_line: Option<u32>,
}

/// Labels whose value names a GPU product.
const PRODUCT: &[&str] = &[
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "amd.com/gpu.product-name",
    "amd.com/gpu.product",
    "beta.amd.com/gpu.product-name",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
];
const REGION: &[&str] = &["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
const ZONE: &[&str] = &["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];

/// `nodeSelector`.
pub(super) fn selector(field: Option<Field>, place: &mut Place, said: &mut Said) {
    let Some(field) = field else { return };
    for (key, field) in field.pairs(&mut said.wrong, super::KEYS_MAX).unwrap_or_default() {
        one(&key, vec![field], place, said);
    }
}

/// `affinity`: what is required of nodes is read; what is preferred is not.
pub(super) fn affinity(field: Option<Field>, place: &mut Place, said: &mut Said) {
    let mut kinds = Keys::open_some(field, said);
    let node = kinds.take("nodeAffinity");
    for between in ["podAffinity", "podAntiAffinity"] {
        let mut keys = Keys::open_some(kinds.take(between), said);
        if let Some(f) = keys.take("requiredDuringSchedulingIgnoredDuringExecution") {
            said.refuse(&f, "where other pods are means nothing here: take it out; nodes: N starts together in one cluster");
        }
        keys.leave(said, PREFERRED);
    }
    kinds.leave(said, &[]);
    let mut keys = Keys::open_some(node, said);
    let required = keys.take("requiredDuringSchedulingIgnoredDuringExecution");
    keys.leave(said, PREFERRED);
    let mut required = Keys::open_some(required, said);
    let terms = required.take("nodeSelectorTerms");
    required.leave(said, &[]);
    let Some(terms) = terms else { return };
    if matches!(&terms.node.value, Value::List(list) if list.len() > 1) {
        said.refuse(&terms, "only one term is taken: write one, with all values of a key in it");
        return;
    }
    for term in items(Some(terms), said) {
        let mut term = Keys::open_some(Some(term), said);
        for rule in items(term.take("matchExpressions"), said) {
            let mut rule = Keys::open_some(Some(rule), said);
            let (key, operator) = (rule.text("key", said).unwrap_or_default(), rule.take("operator"));
            let values = rule.take("values");
            rule.leave(said, &[]);
            match operator {
                Some(op) if !matches!(&op.node.value, Value::Text(t) if t == "In") => {
                    said.refuse(&op, "only In is taken: name what will do");
                }
                _ => {
                    let values = items(values, said);
                    one(&key, values, place, said);
                }
            }
        }
        term.leave(said, &[("matchFields", super::Refuse, "it names a node, which only that cluster has")]);
    }
}

const PREFERRED: &super::Table = &[(
    "preferredDuringSchedulingIgnoredDuringExecution",
    super::Note,
    "what is preferred among nodes is the cluster's; among clusters: placement: {policy: …} in a job file",
)];

/// One key that must have one of these values.
fn one(key: &str, values: Vec<Field>, place: &mut Place, said: &mut Said) {
    let Some(first) = values.first() else { return };
    let line = first.node.line;
    let shown = Field { path: first.path.clone(), node: first.node.clone() };
    if PRODUCT.contains(&key) {
        let mut models = Vec::new();
        for field in values {
            product(key, field, &mut models, said);
        }
        // A node has all that is required of it: what one rule leaves, the next makes fewer.
        if !place.models.is_empty() && !models.is_empty() {
            let both = both(&place.models, &models, gpu::matches);
            if both.is_empty() {
                let (before, now) = (place.models.join(", "), models.join(", "));
                said.refuse(
                    &shown,
                    &format!("no GPU is {now} and {before}, which another rule asks for: keep one"),
                );
                return;
            }
            models = both;
        }
        if !models.is_empty() {
            place.models = models;
        }
        place.model_line = place.model_line.or(line);
        return;
    }
    if REGION.contains(&key) || ZONE.contains(&key) {
        let list = if REGION.contains(&key) { &mut place.regions } else { &mut place.zones };
        let mut names: Vec<String> = values.into_iter().filter_map(|f| text(f, said)).collect();
        if !list.is_empty() && !names.is_empty() {
            let both = both(list, &names, |a, b| a == b);
            if both.is_empty() {
                let (before, now) = (list.join(", "), names.join(", "));
                said.refuse(
                    &shown,
                    &format!("no node is in {now} and in {before}, which another rule asks for: keep one"),
                );
                return;
            }
            names = both;
        }
        if !names.is_empty() {
            *list = names;
        }
        return;
    }
    match key {
        "kubernetes.io/os" | "beta.kubernetes.io/os"
            if values.iter().all(|f| matches!(&f.node.value, Value::Text(t) if t == "linux")) => {}
        "nvidia.com/gpu.present"
        | "cloud.google.com/gke-accelerator-count"
        | "cloud.google.com/gke-gpu-driver-version" => {
            said.note(first, "the GPUs that are asked for say it");
        }
        "kubernetes.io/hostname" => said.refuse(first, "it names a node, which only that cluster has"),
        "node.kubernetes.io/instance-type" | "beta.kubernetes.io/instance-type" => {
            said.refuse(first, "there are no instance types: ask for a GPU model, cpu and memory");
        }
        _ if key.starts_with("nvidia.com/")
            || key.starts_with("amd.com/")
            || key.starts_with("feature.node.") =>
        {
            said.refuse(first, "it is a label of a node: name the GPU model by its product label");
        }
        _ if values.len() > 1 => said.refuse(first, "a label of a cluster has one value: name one"),
        _ => {
            said.tell(
                first,
                "is asked of the cluster, not of a node: it runs only where a peer's configuration has this label",
            );
            for field in values {
                let Some(value) = text(field, said) else { continue };
                match place.labels.get(key) {
                    Some(before) if *before != value => said.refuse(
                        &shown,
                        &format!(
                            "no node has {value:?} and {before:?}, which another rule asks for: keep one"
                        ),
                    ),
                    _ => drop(place.labels.insert(key.to_owned(), value)),
                }
            }
        }
    }
}

/// What two lists have in common, where one word may take in several of the other list.
fn both(a: &[String], b: &[String], takes: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let narrower = |have: &[String], wanted: &[String]| -> Vec<String> {
        have.iter().filter(|h| wanted.iter().any(|w| takes(w, h))).cloned().collect()
    };
    let mut out = narrower(b, a);
    for other in narrower(a, b) {
        if !out.contains(&other) {
            out.push(other);
        }
    }
    out
}

/// The models that one value of a product label names.
fn product(key: &str, field: Field, found: &mut Vec<String>, said: &mut Said) {
    let shown = Field { path: field.path.clone(), node: field.node.clone() };
    let Some(value) = text(field, said) else { return };
    if value.contains("-MIG-") || value.ends_with("-SHARED") {
        return said.refuse(&shown, "parts of a GPU are not known here: ask for whole ones");
    }
    let models: Vec<String> = match (key, value.as_str()) {
        // Google's name for the 40 GB one; the other is nvidia-a100-80gb.
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100") => vec!["A100-40G".into()],
        // Huawei's label is the same for all of this series.
        ("accelerator", "huawei-Ascend910") => {
            super::container::ASCEND_910.iter().map(|m| (*m).into()).collect()
        }
        (_, value) => match gpu::canonical(value) {
            Ok(model) => {
                if gpu::vendor(&model).is_none() {
                    said.tell(&shown, "is no model that is known here: it is compared as it is written");
                }
                vec![model]
            }
            Err(why) => return said.refuse(&shown, &why.to_string()),
        },
    };
    for model in models {
        if !found.contains(&model) {
            found.push(model);
        }
    }
}
