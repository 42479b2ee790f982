//! A `batch/v1` Job as a job document.

use serde_json::{Map, Value as Json, json};

use super::container::{self, Index};
use super::place::{self, Place};
use super::{Keys, Note, Refuse, Said, Table, items, name, text};
use crate::model::array::AT_ONCE_MAX;
use crate::model::input::{Field, Value};
use crate::model::spec::limits;

/// What Kubernetes does where the Job does not say.
const BACKOFF_DEFAULT: u32 = 6;
/// Most of anything that is counted here.
const COUNT_MAX: u32 = 1_000_000;
/// Longest deadline: ten years.
const SECONDS_MAX: u64 = 10 * 366 * 86_400;

const TOP: &Table = &[("status", Note, "it is what a cluster wrote about an earlier run")];
const META: &Table = &[
    ("namespace", Note, "the cluster's peer says where pods are made; who pays is tenant: in a job file"),
    ("labels", Note, "jobs have no labels here"),
    ("annotations", Note, "jobs have no annotations here"),
    ("finalizers", Note, "nothing of the cluster holds a job here"),
    ("ownerReferences", Note, "nothing of the cluster owns a job here"),
    ("creationTimestamp", Note, "a cluster wrote it"),
    ("generation", Note, "a cluster wrote it"),
    ("managedFields", Note, "a cluster wrote it"),
    ("resourceVersion", Note, "a cluster wrote it"),
    ("selfLink", Note, "a cluster wrote it"),
    ("uid", Note, "a cluster wrote it"),
];
const JOB: &Table = &[
    ("ttlSecondsAfterFinished", Note, "how long a finished job is kept is the mesh's retention"),
    ("selector", Note, "attempts are found by job and epoch"),
    ("manualSelector", Note, "attempts are found by job and epoch"),
    ("managedBy", Note, "Starling drives the job"),
    ("podReplacementPolicy", Note, "an attempt never starts before the one before it has ended"),
    ("maxFailedIndexes", Refuse, "an array goes on when jobs of it fail: take it out, or cancel it yourself"),
    (
        "podFailurePolicy",
        Refuse,
        "every exit code other than 0 is a failure that is tried again: take it out, and set backoffLimit",
    ),
    ("successPolicy", Refuse, "a job has succeeded when all of its ranks have: take it out"),
];
const POD: &Table = &[
    ("automountServiceAccountToken", Note, "there is no account of one cluster here"),
    (
        "serviceAccountName",
        Note,
        "there is no account of one cluster here: what the job may reach, it must be able to reach at each",
    ),
    (
        "serviceAccount",
        Note,
        "there is no account of one cluster here: what the job may reach, it must be able to reach at each",
    ),
    ("imagePullSecrets", Note, "the cluster must be able to pull the image by itself"),
    ("tolerations", Note, "which nodes take the mesh's jobs is the cluster's own setting"),
    ("priorityClassName", Note, "it is that cluster's: give priority: in a job file"),
    ("priority", Note, "it is that cluster's: give priority: in a job file"),
    ("preemptionPolicy", Note, "it is that cluster's: give preemptible: in a job file"),
    ("schedulerName", Note, "Starling and the cluster's peer schedule it"),
    ("terminationGracePeriodSeconds", Note, "how long it has after the notice is the cluster's setting"),
    ("topologySpreadConstraints", Note, "how its nodes are spread in a cluster is the cluster's own matter"),
    ("runtimeClassName", Note, "the cluster knows how it runs containers with GPUs"),
    ("dnsPolicy", Note, "names are resolved as at the cluster"),
    ("dnsConfig", Note, "names are resolved as at the cluster"),
    ("hostname", Note, "ranks meet at MASTER_ADDR"),
    ("subdomain", Note, "ranks meet at MASTER_ADDR"),
    ("setHostnameAsFQDN", Note, "ranks meet at MASTER_ADDR"),
    ("hostNetwork", Note, "which network it has is the cluster's"),
    ("enableServiceLinks", Note, "there are no services of one cluster here"),
    ("securityContext", Note, "the user that it runs as is the cluster's"),
    ("shareProcessNamespace", Note, "there is one container"),
    ("readinessGates", Note, "nothing is served"),
    ("overhead", Note, "the cluster reckons with it"),
    ("hostUsers", Note, "the user that it runs as is the cluster's"),
    ("os", Note, "every cluster runs Linux"),
    ("initContainers", Refuse, "one container is one job: do it at the start of command"),
    ("ephemeralContainers", Refuse, "one container is one job: take it out"),
    ("hostAliases", Refuse, "names are resolved as at the cluster: use addresses, or take it out"),
    ("hostIPC", Refuse, "it would reach into the machine: take it out"),
    ("hostPID", Refuse, "it would reach into the machine: take it out"),
    ("nodeName", Refuse, "it names a node, which only that cluster has"),
    ("resourceClaims", Refuse, "ask for GPUs with limits: nvidia.com/gpu and the like"),
    ("resources", Refuse, "ask for them in the container's resources"),
    ("schedulingGates", Refuse, "submit it when it shall run"),
];

/// What runs and how often.
struct Shape {
    nodes: u32,
    array: Option<String>,
    index: Index,
}

/// Reads the object.
pub(super) fn job(mut root: Keys, said: &mut Said) -> Map<String, Json> {
    let mut out = Map::new();
    let (version, kind) = (root.take("apiVersion"), root.take("kind"));
    let is = |field: &Option<Field>, want: &str| {
        field.as_ref().is_some_and(|f| matches!(&f.node.value, Value::Text(t) if t == want))
    };
    if !(is(&version, "batch/v1") && is(&kind, "Job")) {
        let wrong = if is(&kind, "Job") { version } else { kind };
        if let Some(field) = wrong {
            said.refuse(&field, "only a Job of batch/v1 is a job here: write one with the same pod template");
        }
        return out;
    }
    let mut meta = Keys::open_some(root.take("metadata"), said);
    let queue = meta.entries.iter().any(|(key, field)| {
        key == "labels"
            && matches!(&field.node.value, Value::Map(m) if m.iter().any(|(k, _)| k == "kueue.x-k8s.io/queue-name"))
    });
    let given = meta.text("name", said);
    let generated = meta.text("generateName", said);
    let named = given.or(generated.map(|g| g.trim_end_matches('-').to_owned()));
    out.insert("name".into(), json!(name(named.as_deref().unwrap_or("job"))));
    meta.leave(said, META);
    let spec = root.take("spec");
    let line = spec.as_ref().and_then(|f| f.node.line);
    root.leave(said, TOP);
    let mut spec = Keys::open_some(spec, said);
    suspended(&mut spec, queue, said);
    let shape = shape(&mut spec, line, said);
    let retries = retries(&mut spec, &shape, line, said);
    out.insert("retries".into(), json!(retries));
    let deadline = seconds(spec.take("activeDeadlineSeconds"), retries > 0, said);
    let template = spec.take("template");
    spec.leave(said, JOB);
    if template.is_none() {
        said.add(missing("spec.template", line, "is missing: what runs"));
    }
    let mut template = Keys::open_some(template, said);
    let template_meta = Keys::open_some(template.take("metadata"), said);
    template_meta.leave(said, META_OF_POD);
    let pod = template.take("spec");
    template.leave(said, &[]);
    let pod = Keys::open_some(pod, said);
    out.insert("nodes".into(), json!(shape.nodes));
    if let Some(array) = &shape.array {
        out.insert("array".into(), json!(array));
    }
    let own = self::pod(pod, &shape, &mut out, said);
    if let Some(least) = deadline.into_iter().chain(own).min() {
        out.insert("max_runtime".into(), json!(format!("{least}s")));
    }
    out
}

const META_OF_POD: &Table = &[
    ("name", Note, "attempts are named by job and epoch"),
    ("namespace", Note, "the cluster's peer says where pods are made"),
    ("labels", Note, "jobs have no labels here"),
    ("annotations", Note, "jobs have no annotations here"),
    ("creationTimestamp", Note, "a cluster wrote it"),
];

fn missing(key: &str, line: Option<u32>, want: &str) -> crate::model::input::Mistake {
    crate::model::input::Mistake { key: key.into(), line, value: None, want: want.into() }
}

fn suspended(spec: &mut Keys, queue: bool, said: &mut Said) {
    let Some(field) = spec.take("suspend") else { return };
    match field.node.value {
        Value::Bool(false) => {}
        Value::Bool(true) if queue => {
            said.note(&field, "Kueue would let it start; here the mesh's queue does");
        }
        _ => said.refuse(&field, "submit it when it shall run"),
    }
}

fn count(field: &Option<Field>, said: &mut Said) -> Option<u32> {
    let field = field.as_ref()?;
    Field { path: field.path.clone(), node: field.node.clone() }.whole32(&mut said.wrong, 0..=COUNT_MAX)
}

/// Completions and parallelism as nodes or as an array.
fn shape(spec: &mut Keys, line: Option<u32>, said: &mut Said) -> Shape {
    let (at_once, all) = (spec.take("parallelism"), spec.take("completions"));
    let mode = spec.take("completionMode");
    let (p, c) = (count(&at_once, said), count(&all, said));
    let indexed = match &mode {
        None => false,
        Some(field) => match &field.node.value {
            Value::Text(t) if t == "Indexed" => true,
            Value::Text(t) if t == "NonIndexed" => false,
            _ => {
                field.wrong(&mut said.wrong, "must be Indexed or NonIndexed");
                false
            }
        },
    };
    let one = Shape { nodes: 1, array: None, index: if indexed { Index::Zero } else { Index::None } };
    if let Some(field) = at_once.as_ref().filter(|_| p == Some(0)) {
        said.refuse(field, "no pod would run: submit it when it shall run");
        return one;
    }
    if let Some(field) = all.as_ref().filter(|_| c == Some(0)) {
        said.refuse(field, "no pod would run: there is nothing to submit");
        return one;
    }
    let Some(c) = c else {
        if let Some(field) = at_once.as_ref().filter(|_| p.is_some_and(|p| p > 1)) {
            said.refuse(
                field,
                "without completions the pods share a queue of work and the first to succeed ends it, which no job here \
                 does: give completions",
            );
        } else if let Some(field) = mode.as_ref().filter(|_| indexed) {
            said.refuse(field, "Indexed needs completions");
        }
        return one;
    };
    let p = p.unwrap_or(1).min(c);
    if c == 1 {
        return one;
    }
    let place = all.as_ref().and_then(|f| f.node.line).or(line);
    if indexed && p == c {
        if c > limits::NODES_MAX {
            said.add(missing(
                "spec.completions",
                place,
                &format!("at most {} nodes start together", limits::NODES_MAX),
            ));
        }
        said.tell_of(
            "spec.completions",
            place,
            format!(
                "all {c} indices at once are one job of {c} nodes, which start together in one cluster; the index is the \
                 rank (RANK, JOB_COMPLETION_INDEX). If they need not meet, make parallelism smaller: it is an array then"
            ),
        );
        return Shape { nodes: c, array: None, index: Index::Variable("RANK") };
    }
    let most = p.min(AT_ONCE_MAX);
    said.tell_of(
        "spec.completions",
        place,
        format!(
            "{c} completions are an array of {c} jobs, at most {most} unfinished at a time, which may run at different \
             clusters; backoffLimit holds for each of them"
        ),
    );
    let index = if indexed { Index::Variable("STARLING_ARRAY_INDEX") } else { Index::None };
    Shape { nodes: 1, array: Some(format!("0-{}%{most}", c - 1)), index }
}

fn retries(spec: &mut Keys, shape: &Shape, line: Option<u32>, said: &mut Said) -> u32 {
    let (all, each) = (spec.take("backoffLimit"), spec.take("backoffLimitPerIndex"));
    let max = limits::RETRIES_MAX;
    if let Some(field) = each {
        if let Some(all) = all {
            said.note(&all, "backoffLimitPerIndex holds for each job of the array");
        }
        if shape.array.is_none() {
            said.refuse(&field, "there is no array: write backoffLimit");
        }
        return field.whole32(&mut said.wrong, 0..=max).unwrap_or(0);
    }
    match all {
        Some(field) => {
            let shown = Field { path: field.path.clone(), node: field.node.clone() };
            let n = field.whole32(&mut said.wrong, 0..=i32::MAX as u32).unwrap_or(0);
            if n > max {
                said.tell(&shown, format!("at most {max} retries: it is tried again {max} times"));
            }
            n.min(max)
        }
        None => {
            said.tell_of(
                "spec.backoffLimit",
                line,
                format!("is not given: it is tried again {BACKOFF_DEFAULT} times, as Kubernetes does"),
            );
            BACKOFF_DEFAULT
        }
    }
}

fn seconds(field: Option<Field>, again: bool, said: &mut Said) -> Option<u64> {
    let field = field?;
    if again {
        said.tell(&field, "holds for each attempt, not for all of them together");
    }
    field.whole(&mut said.wrong, 1..=SECONDS_MAX)
}

/// The pod: its one container and where it may run. Gives its own deadline.
fn pod(mut pod: Keys, shape: &Shape, out: &mut Map<String, Json>, said: &mut Said) -> Option<u64> {
    let line = pod.line;
    let deadline = seconds(pod.take("activeDeadlineSeconds"), false, said);
    if let Some(field) = pod.take("restartPolicy") {
        match &field.node.value {
            Value::Text(t) if t == "Never" => {}
            Value::Text(t) if t == "OnFailure" => {
                said.tell(&field, "each retry is an attempt of its own, which may run elsewhere");
            }
            _ => field.wrong(&mut said.wrong, "must be Never or OnFailure"),
        }
    }
    let mut place = Place::default();
    place::selector(pod.take("nodeSelector"), &mut place, said);
    place::affinity(pod.take("affinity"), &mut place, said);
    let volumes = volumes(pod.take("volumes"), said);
    let containers = pod.take("containers");
    pod.leave(said, POD);
    let mut containers = items(containers, said).into_iter();
    let Some(first) = containers.next() else {
        said.add(missing("spec.template.spec.containers", line, "is missing: one container"));
        return deadline;
    };
    for other in containers {
        said.refuse(&other, "one container is one job: take it out, or start it from command");
    }
    container::read(first, &volumes, &place, shape.nodes, &shape.index, out, said);
    let mut placement = Map::new();
    for (key, list) in [("regions", &place.regions), ("zones", &place.zones)] {
        if !list.is_empty() {
            placement.insert(key.into(), json!(list));
        }
    }
    if !place.labels.is_empty() {
        placement.insert("labels".into(), json!(place.labels));
    }
    if !placement.is_empty() {
        out.insert("placement".into(), Json::Object(placement));
    }
    deadline
}

/// Names of volumes that are a folder for the pod alone. Others hold what other clusters do not have.
fn volumes(field: Option<Field>, said: &mut Said) -> Vec<String> {
    let mut own = Vec::new();
    for volume in items(field, said) {
        let mut keys = Keys::open_some(Some(volume), said);
        let name = keys.take("name").and_then(|f| text(f, said)).unwrap_or_default();
        if let Some(field) = keys.pull("emptyDir") {
            said.note(&field, "the container's own files take its place; what a container may keep in memory is the cluster's");
            own.push(name);
        }
        for (kind, field) in std::mem::take(&mut keys.entries) {
            let why = match kind.as_str() {
                "persistentVolumeClaim"
                | "nfs"
                | "hostPath"
                | "csi"
                | "ephemeral"
                | "cephfs"
                | "glusterfs"
                | "iscsi" => {
                    "only that cluster has it: name what it holds under data: or checkpoint: in a job file, by a URI or path \
                     that every cluster has"
                }
                "secret" | "configMap" | "projected" | "downwardAPI" => {
                    "only that cluster has it: put it into the image, or where every cluster has it"
                }
                _ => "no such volume is known here: take it out",
            };
            said.refuse(&field, why);
        }
    }
    own
}

/// Keys that are read: for the test that none is forgotten.
#[cfg(test)]
pub(super) const READ: &[&str] =
    &["activeDeadlineSeconds", "restartPolicy", "nodeSelector", "affinity", "volumes", "containers"];
#[cfg(test)]
pub(super) const POD_LEFT: &Table = POD;
