//! A SkyPilot task as a job document. Its scripts run under bash, with the variables that SkyPilot gives them made of
//! those that every job has.

use serde_json::{Map, Value as Json, json};

use super::{Keys, Note, Refuse, Said, Table, child, empty, name, pairs, text, wish};
use crate::model::input::{Field, Mistake, Node, Value};

/// Keys at the top that only SkyPilot has.
const ITS_TOP: &[&str] = &[
    "num_nodes",
    "setup",
    "envs",
    "file_mounts",
    "secrets",
    "volumes",
    "experimental",
    "config",
    "event_callback",
];
/// Keys of `resources` that only SkyPilot has.
const ITS_RESOURCES: &[&str] = &[
    "accelerators",
    "accelerator_args",
    "any_of",
    "ordered",
    "cloud",
    "infra",
    "region",
    "zone",
    "use_spot",
    "job_recovery",
    "spot_recovery",
    "instance_type",
    "disk_size",
    "disk_tier",
    "image_id",
    "ports",
    "autostop",
    "network_tier",
];
/// Keys of both, at the top.
const SHARED: &[&str] = &["name", "workdir", "resources", "run", "service"];
/// The variables that a task gets here.
const KNOWN: &[&str] = &[
    "SKYPILOT_NODE_RANK",
    "SKYPILOT_NODE_IPS",
    "SKYPILOT_NUM_NODES",
    "SKYPILOT_NUM_GPUS_PER_NODE",
    "SKYPILOT_TASK_ID",
    "SKYPILOT_SETUP_NODE_RANK",
    "SKYPILOT_SETUP_NODE_IPS",
    "SKYPILOT_SETUP_NUM_GPUS_PER_NODE",
];
const LEFT: &Table = &[
    ("event_callback", Refuse, "starling events and starling wait say what happens: take it out"),
    ("experimental", Refuse, "there is no server of SkyPilot's: take it out"),
    ("config", Refuse, "there is no server of SkyPilot's: take it out"),
    ("service", Refuse, "services are not kept up by this version"),
    ("pool", Refuse, "there are no pools of its own: it queues at every cluster"),
    (
        "volumes",
        Refuse,
        "name what they hold under data: or checkpoint: in a job file, by a path that every cluster has",
    ),
    ("inputs", Note, "it says nothing about what is run"),
    ("outputs", Note, "it says nothing about what is run"),
];

/// True if only SkyPilot can have written it: a key that only its tasks have, and none that only our jobs have.
pub(super) fn is_task(node: &Node) -> bool {
    let top = pairs(node);
    let ours = |key: &str| {
        let known = crate::model::spec_input::JOB.iter().any(|k| k.name == key);
        known && !SHARED.contains(&key)
    };
    let resources = child(node, "resources").map(pairs).unwrap_or_default();
    let of_ours = |key: &str| matches!(key, "gpus" | "gpu");
    if top.iter().any(|(k, _)| ours(k)) || resources.iter().any(|(k, _)| of_ours(k)) {
        return false;
    }
    let at_least = |n: &Node| matches!(&n.value, Value::Text(t) if t.trim_end().ends_with('+'));
    top.iter().any(|(k, _)| ITS_TOP.contains(&k.as_str()))
        || resources.iter().any(|(k, n)| ITS_RESOURCES.contains(&k.as_str()) || at_least(n))
        || matches!(child(node, "run").map(|n| &n.value), Some(Value::Text(t)) if t.contains("SKYPILOT_"))
}

/// Reads the task.
pub(super) fn task(mut root: Keys, folder: &str, said: &mut Said) -> Map<String, Json> {
    let (mut out, line) = (Map::new(), root.line);
    let named = root.text("name", said);
    out.insert("name".into(), json!(name(named.as_deref().unwrap_or("task"))));
    if let Some(field) = root.take("num_nodes") {
        let nodes = field.whole32(&mut said.wrong, 1..=crate::model::spec::limits::NODES_MAX);
        out.insert("nodes".into(), json!(nodes.unwrap_or(1)));
    }
    let resources = root.take("resources");
    let at = resources.as_ref().and_then(|f| f.node.line).or(line);
    wish::resources(resources, at, &mut out, said);
    let env = variables(root.take("envs"), said);
    if !env.is_empty() {
        out.insert("env".into(), Json::Object(env));
    }
    if let Some(field) = root.take("secrets") {
        for (name, field) in field.pairs(&mut said.wrong, super::KEYS_MAX).unwrap_or_default() {
            let why =
                format!("a job is read by many: keep {name} in a file at each cluster, and read it in run");
            // Never its value.
            let want = format!("cannot be carried over: {why}");
            said.add(Mistake { key: field.path, line: field.node.line, value: None, want });
        }
    }
    if let Some(field) = root.take("workdir") {
        workdir(field, folder, &mut out, said);
    }
    for (_, field) in
        root.take("file_mounts").and_then(|f| f.pairs(&mut said.wrong, super::KEYS_MAX)).unwrap_or_default()
    {
        said.refuse(&field, mount_why(&field));
    }
    let (setup, run) = (script(root.take("setup"), said), script(root.take("run"), said));
    if let Some((_, field)) = &setup {
        said.tell(field, "runs on every node at the start of each attempt, not once for a machine");
    }
    root.leave(said, LEFT);
    match run {
        Some((run, field)) => {
            let nodes = out.get("nodes").and_then(Json::as_u64).unwrap_or(1);
            let gpus = out.get("resources").and_then(|r| r.get("gpus")).and_then(Json::as_u64).unwrap_or(0);
            if nodes > 1 && run.contains("SKYPILOT_NODE_IPS") {
                said.tell(
                    &field,
                    "SKYPILOT_NODE_IPS: its first line is the address of rank 0; the others are right on one machine and at a \
                     Slurm cluster, and elsewhere only their number is",
                );
            }
            let argv = command(setup.as_ref().map(|(s, _)| s.as_str()), &run, nodes, gpus);
            out.insert("run".into(), json!(argv));
        }
        None => said.add(Mistake {
            key: "run".into(),
            line,
            value: None,
            want: "is missing: a task that only sets a machine up is no job".into(),
        }),
    }
    out
}

fn variables(field: Option<Field>, said: &mut Said) -> Map<String, Json> {
    let mut env = Map::new();
    for (name, field) in field.and_then(|f| f.pairs(&mut said.wrong, super::KEYS_MAX)).unwrap_or_default() {
        if empty(&field) {
            said.refuse(
                &field,
                "it has no value: write one (SkyPilot takes it from --env, which is not there here)",
            );
        } else if name.starts_with("SKYPILOT_") {
            said.refuse(&field, "it is set from what the job gets");
        } else if let Some(value) = text(field, said) {
            env.insert(name, json!(value));
        }
    }
    env
}

fn workdir(field: Field, folder: &str, out: &mut Map<String, Json>, said: &mut Said) {
    if !matches!(field.node.value, Value::Text(_)) {
        return said.refuse(&field, "clone it at the start of run");
    }
    let shown = Field { path: field.path.clone(), node: field.node.clone() };
    let given = text(field, said).unwrap_or_default();
    if given.contains("://") || given.starts_with('~') || given.contains("${") {
        return said.refuse(&shown, "name an absolute path that every cluster has");
    }
    let path = match given.as_str() {
        "." | "./" => folder.to_owned(),
        _ if given.starts_with('/') => given,
        _ => format!("{}/{}", folder.trim_end_matches('/'), given.trim_start_matches("./")),
    };
    said.tell(
        &shown,
        format!("nothing is uploaded: it starts in {path}, which must be there at the cluster"),
    );
    out.insert("workdir".into(), json!(path));
}

fn mount_why(field: &Field) -> &'static str {
    let remote = match &field.node.value {
        Value::Text(source) => source.contains("://"),
        _ => true,
    };
    if remote {
        "buckets are not mounted: list the URI under data: in a job file, and read it from STARLING_DATA"
    } else {
        "nothing is uploaded: put it where every cluster has it"
    }
}

/// A script, with where it stands. What it asks of SkyPilot that is not there is refused.
fn script(field: Option<Field>, said: &mut Said) -> Option<(String, Field)> {
    let field = field?;
    let shown = Field { path: field.path.clone(), node: field.node.clone() };
    let script = text(field, said).filter(|s| !s.trim().is_empty())?;
    let mut seen = std::collections::BTreeSet::new();
    for (at, _) in script.match_indices("SKYPILOT_") {
        let rest = &script[at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let word = &rest[..end];
        if !KNOWN.contains(&word) && seen.insert(word) && seen.len() <= 8 {
            said.refuse(
                &shown,
                &format!("{} is not there: take it out", word.chars().take(60).collect::<String>()),
            );
        }
    }
    Some((script, shown))
}

/// Both scripts, each in a bash of its own as with SkyPilot, with its variables made of ours.
fn command(setup: Option<&str>, run: &str, nodes: u64, gpus: u64) -> Vec<String> {
    let uses = |name: &str| run.contains(name) || setup.is_some_and(|s| s.contains(name));
    let mut before = String::new();
    if uses("SKYPILOT_") {
        before.push_str(&format!(
            "export SKYPILOT_NODE_RANK=\"${{RANK:-0}}\" SKYPILOT_NUM_NODES=\"${{WORLD_SIZE:-1}}\"\n\
             export SKYPILOT_NUM_GPUS_PER_NODE={gpus} SKYPILOT_TASK_ID=\"$STARLING_JOB_ID\"\n\
             SKYPILOT_NODE_IPS=$({names}for i in $(seq {nodes}); do echo \"${{MASTER_ADDR:-127.0.0.1}}\"; done)\n\
             export SKYPILOT_NODE_IPS SKYPILOT_SETUP_NODE_RANK=\"$SKYPILOT_NODE_RANK\" \
             SKYPILOT_SETUP_NODE_IPS=\"$SKYPILOT_NODE_IPS\" SKYPILOT_SETUP_NUM_GPUS_PER_NODE={gpus}\n",
            names = "[ -n \"${SLURM_JOB_NODELIST:-}\" ] && scontrol show hostnames \"$SLURM_JOB_NODELIST\" 2>/dev/null || ",
        ));
    }
    if before.is_empty() && setup.is_none() {
        return vec!["/bin/bash".into(), "-c".into(), run.into()];
    }
    let mut argv = vec!["/bin/bash".to_owned(), "-c".to_owned()];
    if setup.is_some() {
        before.push_str("/bin/bash -c \"$2\" || { echo 'setup failed' >&2; exit 100; }\n");
    }
    argv.extend([before + "exec /bin/bash -c \"$1\"", "task".into(), run.into()]);
    argv.extend(setup.map(str::to_owned));
    argv
}
