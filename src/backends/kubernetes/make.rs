//! From a start command to Kubernetes objects: a Job, a Secret with what the guard is told (without one, the job's
//! environment), a PodGroup for a gang.
//!
//! The Job is made suspended, then the Secret as belonging to it, and only then may pods come. With it all is
//! collected when the Job goes. What the job's environment holds is in the Secret alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::nodes::{NodeMap, Wanted, toleration};
use super::pods::MAIN;
use super::{Gangs, KubernetesConfig, names};
use crate::backends::local::clock::TEST_CLOCK;
use crate::backends::local::environment::{Warning, common_env};
use crate::backends::local::files::{AttemptDir, Binding, GuardSpec, RankSpec, Remote};
use crate::backends::local::guard::remote::LineFile;
use crate::base::{Bytes, Instant, MilliCpu, Span};
use crate::core::api::{AttemptKey, StartCommand};
use crate::model::spec::Run;
use crate::model::staging::Staging;
use crate::model::{JobSpec, gpu};

/// API group of Kueue.
pub(super) const KUEUE: &str = "kueue.x-k8s.io";
/// API group and version of Volcano's PodGroups,
pub(super) const VOLCANO: (&str, &str) = ("scheduling.volcano.sh", "v1beta1");
/// and of the coscheduling plugin's.
pub(super) const COSCHEDULING: (&str, &str) = ("scheduling.x-k8s.io", "v1alpha1");
/// Folder of the guard in a pod.
const FOLDER: &str = "/starling";
/// Folder of the Secret.
const SECRET: &str = "/starling-secret";
/// Where a container leaves its last word.
const LAST_WORD: &str = "/dev/termination-log";
/// How long a guard waits for its peer's first answer.
const FIRST_ANSWER: Span = Span::secs(60);
/// Time between the kubelet's SIGTERM and its SIGKILL beyond the notice, so that the guard can say how it ended.
const KILL_WAIT: Span = Span::secs(10);

/// What is kept beside an attempt's folder, so that another run of the peer can go on with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Pods.
    pub parts: u32,
    /// Grace of the attempt.
    pub grace: Option<Span>,
    /// Its guards' secret; empty where no guard stands.
    pub secret: String,
    /// Tells this folder's objects from those of another life under the same name.
    pub mark: String,
    /// A guard stands in each pod.
    pub guarded: bool,
    /// Somebody else (Kueue) says when pods may come.
    pub queued: bool,
    /// What each pod needs, for "does the gang fit".
    pub gpus: u32,
    /// CPU.
    pub cpus: MilliCpu,
    /// Memory.
    pub memory: Bytes,
    /// The Job.
    pub job: Value,
    /// What the Secret holds, as texts by name.
    pub files: BTreeMap<String, String>,
    /// The PodGroup and its folder.
    pub group: Option<(String, Value)>,
}

/// Makes the attempt's folder. `Ok(None)`: its name was taken before. The error says why this cluster cannot run it.
pub fn prepare(
    command: &StartCommand,
    config: &KubernetesConfig,
    map: &NodeMap,
    gangs: Gangs,
    line: Option<&LineFile>,
    dir: &AttemptDir,
) -> Result<Option<Kept>, String> {
    let spec = &command.spec;
    let Some(image) = spec.image.as_ref().or(config.image.as_ref()) else {
        return Err(
            "it names no image, and this cluster has none for such jobs: give it an image, or set kubernetes.image"
                .into(),
        );
    };
    let argv = program(spec);
    let guarded = config.guard_image.is_some() && line.is_some() && argv.is_some();
    if !guarded && spec.on_lost_contact.grace.is_some() {
        let why = match (argv.is_some(), config.guard_image.is_some()) {
            (false, _) => {
                "it runs its image's own entry point, which no guard can start (or give its command)"
            }
            (_, false) => "no guard stands in this cluster's pods (kubernetes.guard_image is not set)",
            _ => "this peer cannot be asked from pods",
        };
        return Err(format!(
            "{why}: submit it with on_lost_contact: {{grace: never}}, so that it is run again only on an operator's word"
        ));
    }
    let needs = requests(spec, map)?;
    let whole = Whole {
        command,
        config,
        image,
        guarded,
        needs,
        gangs,
        secret: HEXLOWER.encode(&rand::random::<[u8; 32]>()),
        mark: HEXLOWER.encode(&rand::random::<[u8; 8]>()),
    };
    let guard = whole.guard(argv.clone().unwrap_or_default());
    let binding = Binding::to(command.binding);
    let text = |v: Result<String, serde_json::Error>| v.map_err(|e| e.to_string());
    let mut files = BTreeMap::new();
    if let Some(line) = line.filter(|_| guarded) {
        files.insert("spec.json".to_owned(), text(serde_json::to_string(&guard))?);
        files.insert("binding".to_owned(), text(serde_json::to_string(&binding))?);
        files.insert("line.json".to_owned(), text(serde_json::to_string(line))?);
    } else {
        files.extend(whole.env(""));
    }
    let kept = Kept {
        parts: spec.nodes,
        grace: spec.on_lost_contact.grace,
        secret: if guarded { whole.secret.clone() } else { String::new() },
        mark: whole.mark.clone(),
        guarded,
        queued: whole.queue().is_some(),
        gpus: spec.resources.gpus,
        cpus: spec.resources.cpus,
        memory: spec.resources.memory,
        job: whole.job(argv.as_deref()),
        files,
        group: whole.group(),
    };
    let more = |aside: &std::path::Path| {
        crate::backends::local::files::write_json(&aside.join("kubernetes.json"), &kept)
    };
    match dir.prepare_with(&guard, binding, &more) {
        Ok(true) => Ok(Some(kept)),
        Ok(false) => Ok(None),
        Err(e) => Err(format!("its folder could not be made: {e}")),
    }
}

/// The Secret of an attempt, as belonging to its Job.
pub fn secret(key: AttemptKey, kept: &Kept, labels: &BTreeMap<String, String>, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": true,
        "metadata": { "name": names::native_name(key), "labels": labels, "ownerReferences": [owner(key, uid)] },
        "stringData": kept.files,
    })
}

/// The PodGroup of an attempt, as belonging to its Job.
pub fn group(key: AttemptKey, made: &Value, uid: &str) -> Value {
    let mut group = made.clone();
    group["metadata"]["ownerReferences"] = json!([owner(key, uid)]);
    group
}

fn owner(key: AttemptKey, uid: &str) -> Value {
    json!({ "apiVersion": "batch/v1", "kind": "Job", "name": names::native_name(key), "uid": uid })
}

/// None where the image's own entry point runs.
fn program(spec: &JobSpec) -> Option<Vec<String>> {
    match &spec.run {
        Run::Script(script) => Some(vec!["/bin/sh".into(), "-c".into(), script.clone()]),
        Run::Argv(argv) if !argv.is_empty() => Some(argv.clone()),
        Run::Argv(_) | Run::Image => None,
    }
}

/// What each pod asks for, and by which label its GPUs are the wanted ones.
struct Needs {
    resources: BTreeMap<String, String>,
    affinity: Vec<(String, Vec<String>)>,
}

fn requests(spec: &JobSpec, map: &NodeMap) -> Result<Needs, String> {
    let wish = &spec.resources;
    let mut resources = BTreeMap::from([("cpu".to_owned(), format!("{}m", wish.cpus.0))]);
    if wish.memory.0 > 0 {
        resources.insert("memory".to_owned(), wish.memory.0.to_string());
    }
    let mut affinity = Vec::new();
    if wish.gpus > 0 {
        let models: Vec<&Vec<Wanted>> = if wish.gpu.is_empty() {
            map.models.values().collect()
        } else {
            let pairs = wish.gpu.iter().flat_map(|w| map.models.iter().map(move |(m, v)| (w, m, v)));
            pairs.filter(|(w, m, _)| gpu::matches(w, m)).map(|(_, _, v)| v).collect()
        };
        let mut all: Vec<&Wanted> = models.into_iter().flatten().collect();
        // A pod asks for one resource; labels choose among its products.
        let resource = all.first().map(|w| w.resource.clone()).ok_or("no node here has such GPUs now")?;
        all.retain(|w| w.resource == resource);
        resources.insert(resource, wish.gpus.to_string());
        if !wish.gpu.is_empty() && all.iter().all(|w| w.label.is_some()) {
            let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (key, value) in all.iter().filter_map(|w| w.label.clone()) {
                let values = by_key.entry(key).or_default();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            affinity.extend(by_key);
        }
    }
    Ok(Needs { resources, affinity })
}

struct Whole<'a> {
    command: &'a StartCommand,
    config: &'a KubernetesConfig,
    image: &'a str,
    guarded: bool,
    needs: Needs,
    gangs: Gangs,
    secret: String,
    mark: String,
}

impl Whole<'_> {
    fn spec(&self) -> &JobSpec {
        &self.command.spec
    }
    fn labels(&self) -> BTreeMap<String, String> {
        names::labels(self.command.key, &self.mark, self.config.peer.as_str(), &self.config.mesh)
    }
    fn queue(&self) -> Option<&String> {
        self.config.queue.as_ref().filter(|_| self.gangs.kueue)
    }
    /// The scheduler's own way to place all pods or none.
    fn gang(&self) -> Option<&'static str> {
        let by = if self.gangs.volcano {
            "volcano"
        } else if self.gangs.coscheduling {
            "coscheduling"
        } else {
            return None;
        };
        (self.spec().nodes > 1 && self.queue().is_none()).then_some(by)
    }

    fn env(&self, cookie: &str) -> Vec<(String, String)> {
        common_env(self.command, &self.config.peer, &self.config.datasets, cookie, &[])
    }

    fn guard(&self, argv: Vec<String>) -> GuardSpec {
        let spec = self.spec();
        let warning = Warning::of(spec);
        let cookie = HEXLOWER.encode(&rand::random::<[u8; 16]>());
        // Without a workdir it starts where its image says; a plain job of the cluster's image in a folder of its own.
        let own =
            if spec.image.is_some() { PathBuf::new() } else { PathBuf::from(FOLDER).join("attempt/run") };
        GuardSpec {
            key: self.command.key,
            ranks: vec![RankSpec { argv, env: self.env(&cookie), container: None }],
            workdir: spec.workdir.as_ref().map_or(own, PathBuf::from),
            grace: spec.on_lost_contact.grace,
            renewed_at: Instant(0),
            max_runtime: spec.max_runtime,
            notice: self.config.notice,
            log_bytes: self.config.logs.file_bytes.0,
            log_files: self.config.logs.files,
            cookie,
            boot: String::new(),
            containers: None,
            image: None,
            staging: Staging::default(),
            contacts: PathBuf::new(),
            news: PathBuf::new(),
            cgroup: false,
            inherit: true,
            first_rank: 0,
            notice_signal: warning.signal,
            notice_to: warning.to,
            warn_before: warning.before,
            warn_command: warning.command,
            echo: true,
            remote: Some(Remote {
                part: if spec.nodes > 1 { "node-0".into() } else { String::new() },
                secret: self.secret.clone(),
                line: PathBuf::from(SECRET).join("line.json"),
                patience: FIRST_ANSWER,
                kill_wait: self.config.notice + KILL_WAIT,
                begin: true,
                last_word: None,
            }),
        }
    }

    fn job(&self, argv: Option<&[String]>) -> Value {
        let (spec, name) = (self.spec(), names::native_name(self.command.key));
        let mut labels = self.labels();
        let template = json!({ "metadata": self.pod_meta(&labels), "spec": self.pod(argv) });
        if let Some(queue) = self.queue() {
            labels.insert(format!("{KUEUE}/queue-name"), queue.clone());
        }
        let mut job = json!({
            "parallelism": spec.nodes, "completions": spec.nodes,
            "suspend": true,
            // Running again is the record's to say, under the next epoch.
            "backoffLimit": 0,
            // The condition of the Job then says in words how its pod ended, also when the pod is gone.
            "podFailurePolicy": { "rules": [
                { "action": "FailJob", "onExitCodes": { "containerName": MAIN, "operator": "NotIn", "values": [0] } },
                { "action": "FailJob", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            ] },
            "template": template,
        });
        if spec.nodes > 1 {
            job["completionMode"] = "Indexed".into();
        }
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": name, "labels": labels, "finalizers": [names::FINALIZER] },
            "spec": job,
        })
    }

    fn pod_meta(&self, labels: &BTreeMap<String, String>) -> Value {
        let (mut labels, mut annotations) = (labels.clone(), BTreeMap::new());
        let name = names::native_name(self.command.key);
        match self.gang() {
            Some("volcano") => {
                annotations.insert("scheduling.k8s.io/group-name".to_owned(), name);
            }
            Some(_) => {
                labels.insert("scheduling.x-k8s.io/pod-group".to_owned(), name);
            }
            None => {}
        }
        json!({ "labels": labels, "annotations": annotations })
    }

    fn group(&self) -> Option<(String, Value)> {
        let (group, version) = if self.gang()? == "volcano" { VOLCANO } else { COSCHEDULING };
        let version = format!("{group}/{version}");
        let made = json!({
            "apiVersion": version, "kind": "PodGroup",
            "metadata": { "name": names::native_name(self.command.key), "labels": self.labels() },
            "spec": { "minMember": self.spec().nodes },
        });
        Some((format!("apis/{version}"), made))
    }

    fn pod(&self, argv: Option<&[String]>) -> Value {
        let (spec, config) = (self.spec(), self.config);
        let resources = &self.needs.resources;
        // Time is shared where there is some; memory and GPUs are not.
        let limits: BTreeMap<&String, &String> = resources.iter().filter(|(k, _)| *k != "cpu").collect();
        let mut main = json!({
            "name": MAIN, "image": self.image,
            "resources": { "requests": resources, "limits": limits },
        });
        let mut pod = json!({
            "restartPolicy": "Never",
            "enableServiceLinks": false,
            // A job is somebody's program: it gets no account of the cluster unless the operator names one.
            "automountServiceAccountToken": config.service_account.is_some(),
            "terminationGracePeriodSeconds": (config.notice + KILL_WAIT).0.div_ceil(1_000_000),
        });
        if self.guarded {
            let own = ["guard", FOLDER, "--pod", SECRET];
            main["command"] = json!([format!("{FOLDER}/starling")]);
            main["args"] = json!(own);
            main["env"] = json!([
                // What the image says of a clock is not for a guard.
                { "name": TEST_CLOCK, "value": "" },
                { "name": "STARLING_LAST_WORD", "value": LAST_WORD },
                { "name": "STARLING_POD_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } },
            ]);
            main["terminationMessagePath"] = LAST_WORD.into();
            main["volumeMounts"] = json!([
                { "name": "starling", "mountPath": FOLDER },
                { "name": "starling-secret", "mountPath": SECRET, "readOnly": true },
            ]);
            pod["initContainers"] = json!([{
                "name": "guard", "image": config.guard_image,
                // The image's entry point is the binary.
                "args": ["guard", FOLDER, "--install"],
                "env": [{ "name": TEST_CLOCK, "value": "" }],
                "volumeMounts": [{ "name": "starling", "mountPath": FOLDER }],
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }]);
            pod["volumes"] = json!([
                { "name": "starling", "emptyDir": {} },
                { "name": "starling-secret", "secret": { "secretName": names::native_name(self.command.key) } },
            ]);
        } else {
            if let Some(argv) = argv {
                main["command"] = json!(argv);
            }
            // Whoever may read Jobs and pods does not see its values.
            main["envFrom"] = json!([{ "secretRef": { "name": names::native_name(self.command.key) } }]);
            if let Some(limit) = spec.max_runtime {
                // From when the pod has a node: its pull counts too.
                pod["activeDeadlineSeconds"] = limit.0.div_ceil(1_000_000).max(1).into();
            }
        }
        if let Some(workdir) = spec.workdir.as_ref().filter(|_| !self.guarded) {
            main["workingDir"] = workdir.as_str().into();
        }
        pod["containers"] = json!([main]);
        self.placing(&mut pod);
        pod
    }

    fn placing(&self, pod: &mut Value) {
        let config = self.config;
        if !config.rules.selector.is_empty() {
            pod["nodeSelector"] = json!(config.rules.selector);
        }
        let mut tolerations: Vec<Value> = config.rules.tolerations.iter().map(|t| toleration(t)).collect();
        let gpu = self.needs.resources.keys().find(|k| k.contains('/'));
        tolerations.extend(gpu.map(|r| json!({ "key": r, "operator": "Exists" })));
        if !tolerations.is_empty() {
            pod["tolerations"] = tolerations.into();
        }
        // Any of the labels will do, each with any of its values.
        let terms: Vec<Value> = self
            .needs
            .affinity
            .iter()
            .map(|(key, values)| {
                json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": values }] })
            })
            .collect();
        if !terms.is_empty() {
            pod["affinity"] = json!({ "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
            } });
        }
        let volcano = (self.gang() == Some("volcano")).then_some("volcano");
        for (key, value) in [
            ("schedulerName", config.scheduler.as_deref().or(volcano)),
            ("priorityClassName", config.priority_class.as_deref()),
            ("serviceAccountName", config.service_account.as_deref()),
            ("runtimeClassName", config.runtime_class.as_deref()),
        ] {
            if let Some(value) = value {
                pod[key] = value.into();
            }
        }
        if !config.pull_secrets.is_empty() {
            let all: Vec<Value> = config.pull_secrets.iter().map(|n| json!({ "name": n })).collect();
            pod["imagePullSecrets"] = all.into();
        }
    }
}

#[cfg(test)]
#[path = "make_tests.rs"]
mod tests;
