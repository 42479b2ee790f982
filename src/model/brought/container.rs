//! The one container of a pod: image, command, environment, resources.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::place::Place;
use super::{Keys, Note, Refuse, Said, Table, empty, items, quantity, quoted, text};
use crate::base::Bytes;
use crate::model::gpu::{self, Vendor};
use crate::model::input::words::{self, size_text};
use crate::model::input::{Field, Mistake, Value};
use crate::model::spec::limits;

/// What Huawei's plugin counts under one name.
pub(super) const ASCEND_910: &[&str] = &["Ascend-910A", "Ascend-910B", "Ascend-910C"];

/// Where the index of a pod comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    /// There is none.
    None,
    /// It is always 0.
    Zero,
    /// A variable that the peer sets.
    Variable(&'static str),
}

const INDEX: &str = "JOB_COMPLETION_INDEX";
const LEFT: &Table = &[
    ("imagePullPolicy", Note, "the cluster decides when to pull"),
    ("ports", Note, "nothing leads to it from outside"),
    ("livenessProbe", Note, "an attempt is bounded by max_runtime, and ended by its own exit"),
    ("readinessProbe", Note, "nothing is served"),
    ("startupProbe", Note, "an attempt is bounded by max_runtime, and ended by its own exit"),
    ("stdin", Note, "it reads nothing from standard input"),
    ("stdinOnce", Note, "it reads nothing from standard input"),
    ("tty", Note, "it has no terminal"),
    ("terminationMessagePath", Note, "its output is in starling logs"),
    ("terminationMessagePolicy", Note, "its output is in starling logs"),
    ("resizePolicy", Note, "an attempt keeps what it has"),
    ("envFrom", Refuse, "only that cluster has it: write the variables under env"),
    ("lifecycle", Refuse, "do it in command; before it is ended the job gets SIGTERM, with notice"),
    ("restartPolicy", Refuse, "set backoffLimit"),
    ("volumeDevices", Refuse, "only that cluster has it"),
];

/// Reads it into the job document.
pub(super) fn read(
    field: Field,
    volumes: &[String],
    place: &Place,
    nodes: u32,
    index: &Index,
    out: &mut Map<String, Json>,
    said: &mut Said,
) {
    let Some(mut keys) = Keys::open(field, said) else { return };
    let (path, line) = (keys.path.clone(), keys.line);
    // Its name distinguishes it from others, and there are none.
    keys.pull("name");
    match keys.text("image", said) {
        Some(image) => drop(out.insert("image".into(), json!(image))),
        None => {
            let want = "is missing: the image to run".to_owned();
            said.add(Mistake { key: format!("{path}.image"), line, value: None, want });
        }
    }
    let env = environment(keys.take("env"), nodes, index, said);
    let command = keys.take("command");
    let args = keys.take("args");
    let args_shown = args.as_ref().map(|f| Field { path: f.path.clone(), node: f.node.clone() });
    let mut argv = argv_of(command, &env, said);
    let has_command = !argv.is_empty();
    argv.extend(argv_of(args, &env, said));
    let workdir = keys.take("workingDir");
    security(keys.take("securityContext"), said);
    mounts(keys.take("volumeMounts"), volumes, said);
    let resources = resources(keys.take("resources"), place, said);
    keys.leave(said, LEFT);

    if let Some(field) = args_shown.filter(|_| !has_command) {
        said.refuse(
            &field,
            "they are for the image's own entry point, whose name is not in this file: write command too",
        );
    }
    let mut before = String::new();
    if let Index::Variable(from) = index {
        for name in &env.late {
            before.push_str(&format!("{name}=\"${from}\"; export {name}\n"));
        }
        if !has_command {
            let want = format!(
                "is missing: only command can be given its index as {INDEX}; the image's own entry point finds it in {from}"
            );
            said.add(Mistake { key: format!("{path}.command"), line, value: None, want });
        }
    }
    if let Some(field) = workdir {
        if has_command {
            let folder =
                text(Field { path: field.path.clone(), node: field.node.clone() }, said).unwrap_or_default();
            said.tell(&field, "a folder of the image: /bin/sh goes there before command starts");
            before.push_str(&format!("cd -- {} || exit 126\n", quoted(&folder)));
        } else {
            said.refuse(
                &field,
                "it needs command: the image's own entry point starts in the image's own folder",
            );
        }
    }
    if !before.is_empty() && has_command {
        let script = format!("{before}exec \"$0\" \"$@\"");
        argv.splice(0..0, ["/bin/sh".to_owned(), "-c".to_owned(), script]);
    }
    if has_command {
        out.insert("run".into(), json!(argv));
    }
    if !env.plain.is_empty() {
        out.insert("env".into(), json!(env.plain));
    }
    out.insert("resources".into(), Json::Object(resources));
}

/// Variables of the container.
#[derive(Debug, Default)]
struct Env {
    plain: BTreeMap<String, String>,
    /// Names of those that are the index, which only the attempt knows.
    late: Vec<String>,
    /// Names of those that the peer sets to the same, or to its own.
    peers: Vec<String>,
}

impl Env {
    /// The name of one that only the attempt knows and that this text would have Kubernetes put in.
    fn asked<'a>(&'a self, text: &str) -> Option<&'a str> {
        let names = self.late.iter().chain(&self.peers);
        names.map(String::as_str).find(|name| asks(text, name))
    }
}

/// Set by the peer for every job; what a manifest says of them is its own way to the same.
const RANKS: &[&str] =
    &["RANK", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// What the peer sets one of these to, in words.
fn peers_value(name: &str, nodes: u32) -> String {
    match name {
        "RANK" | "NODE_RANK" if nodes > 1 => "the number of the node".into(),
        "RANK" | "NODE_RANK" | "LOCAL_RANK" => "0".into(),
        "WORLD_SIZE" => nodes.to_string(),
        "MASTER_ADDR" => "where rank 0 is".into(),
        "CUDA_DEVICE_ORDER" => "PCI_BUS_ID".into(),
        _ => "the GPUs that it got".into(),
    }
}

fn environment(field: Option<Field>, nodes: u32, index: &Index, said: &mut Said) -> Env {
    let mut env = Env::default();
    let index_is = |env: &mut Env, name: &str| match index {
        Index::None => false,
        Index::Zero => {
            env.plain.insert(name.into(), "0".into());
            true
        }
        Index::Variable(_) => {
            env.plain.remove(name);
            env.late.push(name.into());
            true
        }
    };
    // What the peer's own value is the index itself: RANK of the nodes of one job, and 0 where there is one index.
    let is_same = |name: &str| match index {
        Index::None => false,
        Index::Zero => name.ends_with("RANK"),
        Index::Variable(from) => *from == "RANK" && matches!(name, "RANK" | "NODE_RANK"),
    };
    for item in items(field, said) {
        let line = item.node.line;
        let path = item.path.clone();
        let mut keys = Keys::open_some(Some(item), said);
        let Some(name) = keys.text("name", said) else {
            said.add(Mistake { key: format!("{path}.name"), line, value: None, want: "is missing".into() });
            continue;
        };
        let (value, from) = (keys.pull("value"), keys.take("valueFrom"));
        keys.leave(said, &[]);
        let of_index = from.as_ref().is_some_and(is_index);
        let peers = RANKS.contains(&name.as_str()) || nodes > 1 && name == "MASTER_ADDR";
        if let Some(from) = from {
            if of_index && peers && is_same(&name) {
                said.note(&from, "the peer sets it, to the same");
                env.peers.push(name);
            } else if of_index && peers && !name.ends_with("RANK") {
                let own = peers_value(&name, nodes);
                said.refuse(
                    &from,
                    &format!("{name} is set by the peer, to {own}: compute another in command"),
                );
            } else if of_index && peers && *index != Index::None {
                // The peer's own is set first, and the index over it, before command starts.
                said.tell(
                    &from,
                    format!("is the index, as under Kubernetes, in place of the 0 that the peer sets; WORLD_SIZE is {nodes}"),
                );
                index_is(&mut env, &name);
            } else if !(of_index && words::env_name(&name) && index_is(&mut env, &name)) {
                said.refuse(&from, &from_why(&from, &name));
            }
            continue;
        }
        // Null and nothing are both empty text.
        let Some(value) = value.filter(|f| !empty(f)) else {
            env.plain.insert(name, String::new());
            continue;
        };
        let shown = Field { path: value.path.clone(), node: value.node.clone() };
        let Some(value) = text(value, said) else { continue };
        if peers {
            let same = name != "WORLD_SIZE" || value.parse() == Ok(nodes);
            if same {
                let own = peers_value(&name, nodes);
                said.note(&shown, &format!("{name} is set by the peer, to {own}"));
                env.peers.push(name);
            } else {
                said.refuse(
                    &shown,
                    &format!("WORLD_SIZE is set by the peer, to {nodes}: compute another in command"),
                );
            }
            continue;
        }
        if let Some(asked) = env.asked(&value) {
            said.refuse(
                &shown,
                &format!("only the attempt knows {asked}: make {name} in command, where a shell can read it"),
            );
            continue;
        }
        let value = expand(&value, &env.plain);
        env.late.retain(|n| *n != name);
        env.plain.insert(name, value);
    }
    // Kubernetes adds it at the end, where it is not there.
    if !env.plain.contains_key(INDEX) && !env.late.iter().any(|n| n == INDEX) {
        index_is(&mut env, INDEX);
    }
    env
}

fn is_index(from: &Field) -> bool {
    let path = super::child(&from.node, "fieldRef").and_then(|n| super::scalar(n, "fieldPath"));
    path.is_some_and(|p| p.contains("job-completion-index"))
}

fn from_why(from: &Field, name: &str) -> String {
    let has = |key: &str| super::child(&from.node, key).is_some();
    if has("secretKeyRef") || has("configMapKeyRef") {
        format!(
            "only that cluster has it: keep it where the job can read it at each cluster, or give {name} a value"
        )
    } else if has("resourceFieldRef") {
        format!("give {name} the number itself")
    } else {
        format!("only a pod has it: give {name} a value, or use STARLING_JOB_ID, RANK and MASTER_ADDR")
    }
}

/// Whether `$(NAME)` stands in a text, and not behind another `$`, which makes it plain text.
fn asks(text: &str, name: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        if after.strip_prefix('(').and_then(|t| t.strip_prefix(name)).is_some_and(|t| t.starts_with(')')) {
            return true;
        }
        rest = after.strip_prefix('$').unwrap_or(after);
    }
    false
}

/// `$(NAME)` and `$$` as Kubernetes expands them; what is not known stays.
fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(more) = after.strip_prefix('$') {
            out.push('$');
            rest = more;
        } else if let Some((name, more)) = after.strip_prefix('(').and_then(|t| t.split_once(')')) {
            match env.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = more;
        } else {
            out.push('$');
            rest = after;
        }
        // What is put in may be put in again: bounded by what any job may be.
        if out.len() > limits::DOCUMENT_BYTES_MAX {
            break;
        }
    }
    out.push_str(rest);
    out
}

fn argv_of(field: Option<Field>, env: &Env, said: &mut Said) -> Vec<String> {
    let mut out = Vec::new();
    for item in items(field, said) {
        let shown = Field { path: item.path.clone(), node: item.node.clone() };
        let Some(word) = text(item, said) else { continue };
        if let Some(asked) = env.asked(&word) {
            said.refuse(&shown, &format!("only the attempt knows {asked}: let a shell read it, as ${asked}"));
        }
        out.push(expand(&word, &env.plain));
    }
    out
}

fn security(field: Option<Field>, said: &mut Said) {
    let mut keys = Keys::open_some(field, said);
    if let Some(field) = keys.take("privileged")
        && !matches!(field.node.value, Value::Bool(false))
    {
        said.refuse(&field, "it would own the machine: take it out");
    }
    let mut capabilities = Keys::open_some(keys.take("capabilities"), said);
    if let Some(field) = capabilities.take("add") {
        said.refuse(&field, "which rights it has is the cluster's: take it out");
    }
    for (_, field) in
        std::mem::take(&mut capabilities.entries).into_iter().chain(std::mem::take(&mut keys.entries))
    {
        if !empty(&field) {
            said.note(&field, "the user that it runs as, and its rights, are the cluster's");
        }
    }
}

fn mounts(field: Option<Field>, volumes: &[String], said: &mut Said) {
    for mount in items(field, said) {
        let shown = Field { path: mount.path.clone(), node: mount.node.clone() };
        let mut keys = Keys::open_some(Some(mount), said);
        let name = keys.text("name", said).unwrap_or_default();
        let at = keys.text("mountPath", said).unwrap_or_default();
        if volumes.contains(&name) {
            said.note(&shown, &format!("{at} is a folder of the container"));
        } else {
            said.refuse(&shown, &format!("the volume {name:?} is not there: {at} would be empty"));
        }
    }
}

/// Extended resources that are GPUs, with the models that they may be.
fn vendor(key: &str) -> Option<Vec<&'static str>> {
    let of = |vendor: Vendor| gpu::CATALOGUE.iter().filter(|m| m.vendor == vendor).map(|m| m.head).collect();
    match key {
        "nvidia.com/gpu" => Some(of(Vendor::Nvidia)),
        "amd.com/gpu" => Some(of(Vendor::Amd)),
        "huawei.com/Ascend910" => Some(ASCEND_910.to_vec()),
        "huawei.com/Ascend310P" => Some(vec!["Ascend-310P"]),
        "habana.ai/gaudi" => Some(of(Vendor::Intel)),
        _ => None,
    }
}

fn resources(field: Option<Field>, place: &Place, said: &mut Said) -> Map<String, Json> {
    let (mut out, line) = (Map::new(), field.as_ref().and_then(|f| f.node.line));
    let mut keys = Keys::open_some(field, said);
    let (requests, limits) = (keys.take("requests"), keys.take("limits"));
    keys.leave(said, &[("claims", Refuse, "ask for GPUs with limits: nvidia.com/gpu and the like")]);
    // In order of the key, what is asked for and what is allowed.
    let mut wanted: BTreeMap<String, [Option<Field>; 2]> = BTreeMap::new();
    for (at, field) in [requests, limits].into_iter().enumerate() {
        for (key, field) in field.and_then(|f| f.pairs(&mut said.wrong, super::KEYS_MAX)).unwrap_or_default()
        {
            wanted.entry(key).or_default()[at] = Some(field);
        }
    }
    let mut counted = false;
    for (key, [request, limit]) in wanted {
        let read = |field: &Option<Field>, said: &mut Said, what: &str, read: fn(&str) -> Option<u64>| {
            let field = field.as_ref()?;
            let own = Field { path: field.path.clone(), node: field.node.clone() };
            let value = text(own, said).and_then(|t| read(&t));
            if value.is_none() {
                field.wrong(&mut said.wrong, what);
            }
            value
        };
        let Some(shown) = limit.as_ref().or(request.as_ref()) else { continue };
        match key.as_str() {
            "cpu" => {
                let what = "must be a number of CPUs such as 4, 0.5 or 500m";
                let (r, l) =
                    (read(&request, said, what, quantity::milli), read(&limit, said, what, quantity::milli));
                if let (Some(r), Some(l)) = (r, l)
                    && r != l
                {
                    said.note(shown, "what is asked for is what it gets");
                }
                if let Some(milli) = r.or(l).filter(|n| *n > 0) {
                    out.insert("cpus".into(), json!(format!("{milli}m")));
                }
            }
            "memory" => {
                let what = "must be a size such as 16Gi";
                let (r, l) =
                    (read(&request, said, what, quantity::whole), read(&limit, said, what, quantity::whole));
                if let (Some(r), Some(l)) = (r, l)
                    && r != l
                {
                    said.tell(
                        shown,
                        "is what it gets: a job that may use more than it asks for would be ended for it",
                    );
                }
                if let Some(bytes) = l.or(r) {
                    out.insert("memory".into(), json!(size_text(Bytes(bytes))));
                }
            }
            "ephemeral-storage" => said.note(shown, "disk is not counted"),
            _ => match vendor(&key) {
                Some(models) => {
                    let what = "must be a whole number of GPUs";
                    let whole: fn(&str) -> Option<u64> = |t| t.trim().parse().ok();
                    let (r, l) = (read(&request, said, what, whole), read(&limit, said, what, whole));
                    if r.is_some() && l.is_some() && r != l {
                        shown.wrong(&mut said.wrong, "must be the same in requests and limits");
                    }
                    let Some(n) = l.or(r).filter(|n| *n > 0) else { continue };
                    if counted {
                        said.refuse(shown, "one kind of GPU a job: take one out");
                        continue;
                    }
                    counted = true;
                    out.insert("gpus".into(), json!(n));
                    out.insert("gpu".into(), gpus(&key, models, place, shown, said));
                }
                None => {
                    said.refuse(shown, "no such resource is known here: take it out, or name a GPU model")
                }
            },
        }
    }
    if !counted && !place.models.is_empty() {
        let want =
            "a GPU product is asked for, and no GPU: add nvidia.com/gpu or the like to limits".to_owned();
        said.add(Mistake { key: "nodeSelector".into(), line: place.model_line.or(line), value: None, want });
    }
    out
}

/// The models that a selector names, else all of this maker.
fn gpus(key: &str, all: Vec<&'static str>, place: &Place, shown: &Field, said: &mut Said) -> Json {
    if place.models.is_empty() {
        said.tell(
            shown,
            format!("no product is named: any of {} models that are known as {key} will do", all.len()),
        );
        return json!(all);
    }
    let other = |model: &&String| {
        let maker = gpu::vendor(model);
        maker.is_some() && !all.iter().any(|a| gpu::vendor(a) == maker)
    };
    if let Some(model) = place.models.iter().find(other) {
        said.refuse(shown, &format!("{model} is of another maker"));
    }
    json!(place.models)
}
