//! What a SkyPilot task asks of a machine: `resources`, with its alternatives.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::{Keys, Note, Refuse, Said, Table, items, text};
use crate::model::gpu;
use crate::model::input::{Field, Value};

const LEFT: &Table = &[
    ("disk_size", Note, "disk is not counted"),
    ("disk_tier", Note, "disk is not counted"),
    ("local_disk", Note, "disk is not counted"),
    ("network_tier", Note, "which network a cluster has: placement: {labels: …} in a job file"),
    ("ports", Note, "nothing leads to it from outside"),
    ("labels", Note, "they are for a cloud's bill: tenant: in a job file says who pays"),
    ("autostop", Note, "no machine is started for it"),
    ("autodown", Note, "no machine is started for it"),
    ("priority", Note, "it is that server's: give priority: in a job file"),
    ("spot_recovery", Note, "a job that is stopped runs again where there is room"),
    ("instance_type", Refuse, "there are no instance types: write accelerators, cpus and memory"),
    ("accelerator_args", Refuse, "they are for TPUs"),
    ("_cluster_config_overrides", Refuse, "there is no cluster of its own for it"),
];

/// One wish: the base, or the base with an alternative over it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Wish {
    models: Vec<String>,
    gpus: Option<u64>,
    cpus: Option<String>,
    memory: Option<String>,
    labels: BTreeMap<String, String>,
    region: Option<String>,
    zone: Option<String>,
    spot: Option<bool>,
    image: Option<String>,
    retries: Option<u32>,
}

/// Reads `resources` into the job document.
pub(super) fn resources(
    field: Option<Field>,
    line: Option<u32>,
    out: &mut Map<String, Json>,
    said: &mut Said,
) {
    let mut keys = Keys::open_some(field, said);
    let (any, ordered) = (keys.take("any_of"), keys.take("ordered"));
    let mut base = Wish::default();
    wish(keys, &mut base, said);
    if let Some(field) = &ordered {
        said.tell(
            field,
            "the first is not preferred: clusters are weighed by time and cost (placement: {policy: …})",
        );
    }
    let shown =
        any.as_ref().or(ordered.as_ref()).map(|f| Field { path: f.path.clone(), node: f.node.clone() });
    if let (Some(field), Some(_)) = (&ordered, &any) {
        said.refuse(field, "keep one of any_of and ordered");
    }
    let mut all: Vec<Wish> = Vec::new();
    for item in items(any.or(ordered), said) {
        let mut one = base.clone();
        if let Some(keys) = Keys::open(item, said) {
            wish(keys, &mut one, said);
        }
        all.push(one);
    }
    if all.is_empty() {
        all.push(base);
    }
    let whole = merged(&all);
    match (whole, &shown) {
        (Some(whole), _) => write(whole, line, out, said),
        (None, Some(field)) => said.refuse(
            field,
            "alternatives may differ in one thing only: models (of one count), regions, zones or use_spot; submit one of \
             them, or write models under gpu: and regions under placement: in a job file",
        ),
        (None, None) => {}
    }
}

/// Where an alternative and the next differ.
fn differ(a: &Wish, b: &Wish) -> [bool; 5] {
    let rest =
        |w: &Wish| (w.gpus, w.cpus.clone(), w.memory.clone(), w.labels.clone(), w.image.clone(), w.retries);
    [a.models != b.models, a.region != b.region, a.zone != b.zone, a.spot != b.spot, rest(a) != rest(b)]
}

#[derive(Debug)]
struct Merged {
    wish: Wish,
    regions: Vec<String>,
    zones: Vec<String>,
}

/// All of them as one, where that says the same.
fn merged(all: &[Wish]) -> Option<Merged> {
    let first = all.first()?;
    let mut in_what = [false; 5];
    for other in all {
        for (seen, now) in in_what.iter_mut().zip(differ(first, other)) {
            *seen |= now;
        }
    }
    if in_what[4] || in_what.iter().filter(|d| **d).count() > 1 {
        return None;
    }
    let mut wish = first.clone();
    let (mut regions, mut zones) = (Vec::new(), Vec::new());
    for other in all {
        for model in &other.models {
            if !wish.models.contains(model) {
                wish.models.push(model.clone());
            }
        }
        regions.extend(other.region.clone());
        zones.extend(other.zone.clone());
        // Whoever takes either takes being stopped.
        wish.spot = wish.spot.max(other.spot);
    }
    // An alternative without the word takes any.
    if in_what[0] && all.iter().any(|w| w.models.is_empty()) {
        wish.models.clear();
    }
    if in_what[1] && all.iter().any(|w| w.region.is_none()) {
        regions.clear();
    }
    if in_what[2] && all.iter().any(|w| w.zone.is_none()) {
        zones.clear();
    }
    for list in [&mut regions, &mut zones] {
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|r| seen.insert(r.clone()));
    }
    Some(Merged { wish, regions, zones })
}

fn write(whole: Merged, line: Option<u32>, out: &mut Map<String, Json>, said: &mut Said) {
    let Merged { wish, regions, zones } = whole;
    let mut resources = Map::new();
    if let Some(n) = wish.gpus {
        resources.insert("gpus".into(), json!(n));
        if !wish.models.is_empty() {
            resources.insert("gpu".into(), json!(wish.models));
        }
    }
    match wish.cpus {
        Some(cpus) => drop(resources.insert("cpus".into(), json!(cpus))),
        None => said.tell_of(
            "resources.cpus",
            line,
            "is not given: it gets 1 core a node, where SkyPilot would give it a whole machine",
        ),
    }
    if let Some(memory) = wish.memory {
        resources.insert("memory".into(), json!(memory));
    }
    out.insert("resources".into(), Json::Object(resources));
    let mut placement = Map::new();
    for (key, list) in [("regions", regions), ("zones", zones)] {
        if !list.is_empty() {
            placement.insert(key.into(), json!(list));
        }
    }
    if !wish.labels.is_empty() {
        placement.insert("labels".into(), json!(wish.labels));
    }
    if !placement.is_empty() {
        out.insert("placement".into(), Json::Object(placement));
    }
    if wish.spot == Some(true) {
        out.insert("preemptible".into(), json!(true));
    }
    if let Some(image) = wish.image {
        out.insert("image".into(), json!(image));
    }
    if let Some(retries) = wish.retries {
        out.insert("retries".into(), json!(retries));
    }
}

fn copy(field: &Field) -> Field {
    Field { path: field.path.clone(), node: field.node.clone() }
}

fn wish(mut keys: Keys, wish: &mut Wish, said: &mut Said) {
    if let Some(field) = keys.take("accelerators") {
        accelerators(field, wish, said);
    }
    if let Some(field) = keys.take("cpus") {
        let shown = copy(&field);
        let number = text(field, said).unwrap_or_default();
        let number = number.trim().trim_end_matches('+').to_owned();
        match super::quantity::milli(&number) {
            Some(milli) if milli > 0 => wish.cpus = Some(format!("{milli}m")),
            _ => shown.wrong(&mut said.wrong, "must be a number of CPUs such as 8 or 8+"),
        }
    }
    if let Some(field) = keys.take("memory") {
        let shown = copy(&field);
        let size = text(field, said).unwrap_or_default();
        let size = size.trim().trim_end_matches('+').to_ascii_uppercase();
        // Gigabytes where no unit is given, of 1024s as its catalogues count.
        let number = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &size[number.len()..];
        let per: Option<u64> = match unit {
            "" | "G" | "GB" | "GI" | "GIB" => Some(1 << 10),
            "M" | "MB" | "MI" | "MIB" => Some(1),
            "T" | "TB" | "TI" | "TIB" => Some(1 << 20),
            _ => None,
        };
        let mib = per.zip(super::quantity::milli(number)).and_then(|(per, milli)| milli.checked_mul(per));
        match mib.map(|n| n.div_ceil(1_000)) {
            Some(mib) if mib > 0 => wish.memory = Some(format!("{mib}MiB")),
            _ => shown.wrong(
                &mut said.wrong,
                "must be a size in GB such as 32 or 32+; multiples of cpus are not taken",
            ),
        }
    }
    if let Some(field) = keys.take("infra") {
        let shown = copy(&field);
        let whole = text(field, said).unwrap_or_default();
        for key in ["cloud", "region", "zone"] {
            if let Some(other) = keys.take(key) {
                said.refuse(&other, "infra says it too: keep one");
            }
        }
        // Cloud, region and zone by their places: `*` or nothing is any.
        let mut parts = whole.trim_end_matches('/').split('/');
        let first = parts.next().filter(|p| !p.is_empty()).map(str::to_ascii_lowercase);
        if let Some(first) = &first {
            cloud(first, &shown, wish, said);
        }
        let kubernetes = matches!(first.as_deref(), Some("k8s" | "kubernetes" | "slurm" | "ssh"));
        for (n, part) in parts.enumerate().filter(|(_, p)| !matches!(*p, "" | "*")) {
            if kubernetes {
                said.refuse(&shown, "it names a context of your own: name the cluster under placement: {clusters: …} in a job file");
                break;
            }
            match n {
                0 => wish.region = Some(part.into()),
                1 => wish.zone = Some(part.into()),
                _ => {
                    said.refuse(&shown, "must be CLOUD/REGION/ZONE, with * for any");
                    break;
                }
            }
        }
    }
    if let Some(field) = keys.take("cloud") {
        let shown = copy(&field);
        let name = text(field, said).unwrap_or_default();
        cloud(&name.to_ascii_lowercase(), &shown, wish, said);
    }
    if let Some(region) = keys.text("region", said) {
        wish.region = Some(region);
    }
    if let Some(zone) = keys.text("zone", said) {
        wish.zone = Some(zone);
    }
    if let Some(field) = keys.take("use_spot") {
        let shown = copy(&field);
        wish.spot = field.flag(&mut said.wrong);
        if wish.spot == Some(true) {
            said.tell(&shown, "it may be stopped for a job of a higher priority (preemptible: true); prices are the cluster's");
        }
    }
    if let Some(field) = keys.take("image_id") {
        let shown = copy(&field);
        let image = text(field, said).unwrap_or_default();
        match image.strip_prefix("docker:") {
            Some(image) => wish.image = Some(image.to_owned()),
            None => said.refuse(&shown, "no machine is started for it: only docker:IMAGE is taken"),
        }
    }
    if let Some(field) = keys.take("job_recovery") {
        recovery(field, wish, said);
    }
    keys.leave(said, LEFT);
}

fn recovery(field: Field, wish: &mut Wish, said: &mut Said) {
    if !matches!(field.node.value, Value::Map(_)) {
        return said.note(&field, "a job that is stopped runs again where there is room");
    }
    let mut keys = Keys::open_some(Some(field), said);
    if let Some(n) = keys.take("max_restarts_on_errors") {
        wish.retries = n.whole32(&mut said.wrong, 0..=crate::model::spec::limits::RETRIES_MAX);
    }
    keys.leave(
        said,
        &[
            ("strategy", Note, "a job that is stopped runs again where there is room"),
            (
                "recover_on_exit_codes",
                Refuse,
                "every exit code other than 0 is tried again, max_restarts_on_errors times",
            ),
        ],
    );
}

fn cloud(name: &str, field: &Field, wish: &mut Wish, said: &mut Said) {
    let (key, value) = match name {
        "*" => return,
        "k8s" | "kubernetes" => ("scheduler", "kubernetes"),
        "slurm" => ("scheduler", "slurm"),
        "ssh" | "local" => {
            return said.refuse(field, "name the cluster under placement: {clusters: …} in a job file");
        }
        other => ("cloud", other),
    };
    wish.labels.insert(key.into(), value.into());
    if key == "cloud" {
        said.tell(
            field,
            format!("there are clusters, not clouds: it runs only where a peer's configuration has the label cloud = {value:?}"),
        );
    }
}

/// `A100:8`, `A100`, `{A100: 8}`, `{A100:8, H100:8}`, `[A100:8, H100:8]`.
fn accelerators(field: Field, wish: &mut Wish, said: &mut Said) {
    let shown = copy(&field);
    let mut found: Vec<(String, Option<String>, Field)> = Vec::new();
    let split = |word: &str| match word.rsplit_once(':') {
        Some((model, n)) => (model.trim().to_owned(), Some(n.trim().to_owned())),
        None => (word.trim().to_owned(), None),
    };
    match &field.node.value {
        Value::Map(_) => {
            for (key, value) in field.pairs(&mut said.wrong, super::KEYS_MAX).unwrap_or_default() {
                let (model, n) = split(&key);
                let own = copy(&value);
                // A set has keys only.
                let n = if super::empty(&value) { n } else { text(value, said) };
                found.push((model, n, own));
            }
        }
        Value::List(_) => {
            for item in items(Some(field), said) {
                let own = copy(&item);
                let Some(word) = text(item, said) else { continue };
                let (model, n) = split(&word);
                found.push((model, n, own));
            }
        }
        _ => {
            let Some(word) = text(field, said) else { return };
            let (model, n) = split(&word);
            found.push((model, n, shown));
        }
    }
    let mut count = None;
    wish.models.clear();
    for (model, n, field) in found {
        if model.to_ascii_lowercase().starts_with("tpu") {
            said.refuse(&field, "TPUs are not scheduled");
            continue;
        }
        let Ok(n) = n.as_deref().unwrap_or("1").parse::<u64>() else {
            said.refuse(&field, "must be MODEL:COUNT with a whole number: parts of a GPU are not known here");
            continue;
        };
        if count.is_some_and(|c| c != n) {
            said.refuse(&field, "alternatives must have one count: submit one of them");
            continue;
        }
        count = Some(n);
        match gpu::canonical(&model) {
            Ok(name) => {
                if gpu::vendor(&name).is_none() {
                    said.tell(&field, "is no model that is known here: it is compared as it is written");
                }
                if !wish.models.contains(&name) {
                    wish.models.push(name);
                }
            }
            Err(why) => said.refuse(&field, &why.to_string()),
        }
    }
    wish.gpus = count;
}
