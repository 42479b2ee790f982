//! Plays what stands around an API server: the Job controller, the scheduler and the kubelets. They are clients, so
//! they work in front of the recorded server and of a real one. Pods' commands really run, as processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hyper::Request;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use starling::backends::local::clock::TEST_CLOCK;
use tokio_util::sync::CancellationToken;

use super::containers;
use super::harness::STARLING;
use super::podman::Podman;

/// Which of them are played: a real control plane has its own.
#[derive(Debug, Clone, Copy)]
pub struct Plays {
    pub jobs: bool,
    pub scheduler: bool,
}

/// What a pod's main container became.
struct Run {
    child: Child,
    name: String,
    kill_at: Option<Instant>,
    last_word: PathBuf,
}

/// Scenes that tests ask for.
#[derive(Default)]
pub struct Wishes {
    /// The Job controller starts each pod twice, as it may.
    pub twice: AtomicBool,
    /// Kubelets do not answer: nothing is started, nothing is reported.
    pub dead_kubelets: AtomicBool,
    /// The machines of all nodes lose their power, once.
    pub power_cut: AtomicBool,
    /// Pods' containers are real ones of this podman, and no mere processes.
    pub podman: OnceLock<Podman>,
    /// Pods that were started, by identity.
    pub started: Mutex<BTreeSet<String>>,
}

pub struct Cluster {
    client: kube::Client,
    folder: PathBuf,
    logs: PathBuf,
    plays: Plays,
    pub wishes: Arc<Wishes>,
    runs: BTreeMap<String, Run>,
    tried: BTreeSet<String>,
    /// Pods seen of each Job: one that is gone has failed.
    pods_of: BTreeMap<String, BTreeSet<String>>,
    stop: CancellationToken,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub async fn call(
    client: &kube::Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, String> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = body.map(|b| b.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", kind).body(bytes);
    client.request::<Value>(request.expect("a request")).await.map_err(|e| e.to_string())
}

impl Cluster {
    pub fn new(client: kube::Client, folder: PathBuf, plays: Plays) -> Self {
        let logs = folder.join("logs");
        fs::create_dir_all(&logs).expect("a folder");
        Self {
            client,
            logs,
            folder,
            plays,
            wishes: Arc::default(),
            runs: BTreeMap::new(),
            tried: BTreeSet::new(),
            pods_of: BTreeMap::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Plays until it is stopped.
    pub fn play(mut self) -> CancellationToken {
        let stop = self.stop.clone();
        let ending = stop.clone();
        tokio::spawn(async move {
            while !ending.is_cancelled() {
                // What does not answer now will be asked again.
                let _ = self.round().await;
                tokio::select! { () = ending.cancelled() => {}, () = tokio::time::sleep(Duration::from_millis(60)) => {} }
            }
        });
        stop
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        call(&self.client, method, path, body).await
    }

    async fn round(&mut self) -> Result<(), String> {
        if self.wishes.power_cut.load(Ordering::SeqCst) {
            self.kill_all();
            self.runs.clear();
            self.wishes.power_cut.store(false, Ordering::SeqCst);
        }
        let pods = self.call("GET", "/api/v1/pods", None).await?;
        let pods: Vec<Value> = list(&pods["items"]).cloned().collect();
        if !self.wishes.dead_kubelets.load(Ordering::SeqCst) {
            self.kubelets(&pods).await?;
        }
        // Before the Jobs: a Secret that is made after its Job was not seen belongs to nobody only by this list.
        let secrets = self.call("GET", "/api/v1/secrets", None).await?;
        let jobs = self.call("GET", "/apis/batch/v1/jobs", None).await?;
        let jobs: Vec<Value> = list(&jobs["items"]).cloned().collect();
        if self.plays.jobs {
            for job in &jobs {
                // Changed by somebody meanwhile: the next round sees it.
                let _ = self.job(job, &pods).await;
            }
            self.collect(&jobs, &pods, &secrets).await?;
        }
        if self.plays.scheduler {
            self.schedule(&pods).await?;
        }
        Ok(())
    }

    // The Job controller.

    async fn job(&mut self, job: &Value, pods: &[Value]) -> Result<(), String> {
        let (meta, spec) = (&job["metadata"], &job["spec"]);
        let (namespace, name, uid) = (text(&meta["namespace"]), text(&meta["name"]), text(&meta["uid"]));
        let over = list(&job["status"]["conditions"])
            .any(|c| ["Complete", "Failed"].contains(&text(&c["type"])) && c["status"] == "True");
        let own: Vec<&Value> =
            pods.iter().filter(|p| p["metadata"]["ownerReferences"][0]["uid"] == *uid).collect();
        let known = self.pods_of.entry(uid.to_owned()).or_default();
        let there: BTreeSet<String> = own.iter().map(|p| text(&p["metadata"]["uid"]).to_owned()).collect();
        let vanished = known.iter().any(|k| !there.contains(k));
        known.extend(there);
        // One that is being deleted gets no pods any more, and loses none by its controller.
        let going = meta["deletionTimestamp"].is_string();
        if over || going && own.is_empty() {
            return Ok(());
        }
        let phase = |p: &&&Value, wanted: &str| p["status"]["phase"] == *wanted;
        let active = |p: &&&Value| !["Succeeded", "Failed"].contains(&text(&p["status"]["phase"]));
        let path = format!("/apis/batch/v1/namespaces/{namespace}/jobs/{name}/status");
        let condition = |kind: &str, reason: &str, message: String| json!({ "status": { "conditions": [{ "type": kind, "status": "True", "reason": reason, "message": message }] } });
        let suspended = list(&job["status"]["conditions"]).any(|c| c["type"] == "Suspended");
        if spec["suspend"] == true && !going {
            for pod in own.iter().filter(active).filter(|p| !p["metadata"]["deletionTimestamp"].is_string()) {
                self.call(
                    "DELETE",
                    &format!("/api/v1/namespaces/{namespace}/pods/{}", text(&pod["metadata"]["name"])),
                    None,
                )
                .await?;
            }
            // Pods that it took back itself have not failed.
            self.pods_of.remove(uid);
            if !suspended {
                let said = condition("Suspended", "JobSuspended", "Job suspended".into());
                self.call("PATCH", &path, Some(&said)).await?;
            }
            return Ok(());
        }
        if suspended {
            self.call("PATCH", &path, Some(&json!({ "status": { "conditions": [] } }))).await?;
        }
        let wanted = spec["completions"].as_u64().unwrap_or(1);
        if own.iter().filter(|p| phase(p, "Succeeded")).count() as u64 >= wanted {
            let done = condition(
                "Complete",
                "CompletionsReached",
                "Reached expected number of succeeded pods".into(),
            );
            return self.call("PATCH", &path, Some(&done)).await.map(|_| ());
        }
        let failed = own.iter().find(|p| phase(p, "Failed"));
        if failed.is_some() || vanished {
            for pod in own.iter().filter(active).filter(|p| !p["metadata"]["deletionTimestamp"].is_string()) {
                self.call(
                    "DELETE",
                    &format!("/api/v1/namespaces/{namespace}/pods/{}", text(&pod["metadata"]["name"])),
                    None,
                )
                .await?;
            }
            if own.iter().any(|p| active(&p)) {
                return Ok(());
            }
            let code = failed.and_then(|p| {
                p["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_i64()
            });
            let made = match (failed, code) {
                (Some(pod), Some(code)) => {
                    let words = format!(
                        "Container main for pod {namespace}/{} failed with exit code {code} matching FailJob rule at index 0",
                        text(&pod["metadata"]["name"])
                    );
                    condition("Failed", "PodFailurePolicy", words)
                }
                _ => condition(
                    "Failed",
                    "BackoffLimitExceeded",
                    "Job has reached the specified backoff limit".into(),
                ),
            };
            return self.call("PATCH", &path, Some(&made)).await.map(|_| ());
        }
        if going {
            return Ok(());
        }
        let indexed = spec["completionMode"] == "Indexed";
        let index_key = "batch.kubernetes.io/job-completion-index";
        let copies = if self.wishes.twice.load(Ordering::SeqCst) { 2 } else { 1 };
        for index in 0..wanted {
            let rank = index.to_string();
            let of = |p: &&&Value| !indexed || text(&p["metadata"]["annotations"][index_key]) == rank;
            let have = own.iter().filter(of).count();
            for _ in have..if indexed { copies } else { copies * wanted as usize } {
                let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": spec["template"]["metadata"], "spec": spec["template"]["spec"] });
                let meta = &mut pod["metadata"];
                meta["generateName"] =
                    if indexed { format!("{name}-{index}-") } else { format!("{name}-") }.into();
                meta["labels"]["job-name"] = name.into();
                meta["ownerReferences"] = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true }]);
                if indexed {
                    meta["annotations"][index_key] = index.to_string().into();
                    let env = &mut pod["spec"]["containers"][0]["env"];
                    if !env.is_array() {
                        *env = json!([]);
                    }
                    env.as_array_mut()
                        .expect("a list")
                        .push(json!({ "name": "JOB_COMPLETION_INDEX", "value": index.to_string() }));
                }
                self.call("POST", &format!("/api/v1/namespaces/{namespace}/pods"), Some(&pod)).await?;
            }
        }
        Ok(())
    }

    /// What belongs to a Job goes with it.
    async fn collect(&self, jobs: &[Value], pods: &[Value], secrets: &Value) -> Result<(), String> {
        let alive: BTreeSet<&str> = jobs.iter().map(|j| text(&j["metadata"]["uid"])).collect();
        let orphan = |o: &&Value| {
            let owner = &o["metadata"]["ownerReferences"][0];
            owner["kind"] == "Job"
                && !alive.contains(text(&owner["uid"]))
                && !o["metadata"]["deletionTimestamp"].is_string()
        };
        let pods = pods.iter().map(|p| ("pods", p));
        for (kind, object) in
            pods.chain(list(&secrets["items"]).map(|s| ("secrets", s))).filter(|(_, o)| orphan(o))
        {
            let meta = &object["metadata"];
            let _ = self
                .call(
                    "DELETE",
                    &format!(
                        "/api/v1/namespaces/{}/{kind}/{}",
                        text(&meta["namespace"]),
                        text(&meta["name"])
                    ),
                    None,
                )
                .await;
        }
        Ok(())
    }

    // The scheduler: GPUs only.

    async fn schedule(&self, pods: &[Value]) -> Result<(), String> {
        let waiting: Vec<&Value> = pods
            .iter()
            .filter(|p| !p["spec"]["nodeName"].is_string() && p["status"]["phase"] == "Pending")
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let nodes = self.call("GET", "/api/v1/nodes", None).await?;
        let number = |v: &Value| -> i64 { text(v).parse().unwrap_or(0) };
        let asked = |p: &Value| -> i64 {
            list(&p["spec"]["containers"]).map(|c| number(&c["resources"]["limits"]["nvidia.com/gpu"])).sum()
        };
        let mut free: Vec<(String, i64)> = list(&nodes["items"])
            .filter(|n| n["spec"]["unschedulable"] != true)
            .map(|n| {
                (
                    text(&n["metadata"]["name"]).to_owned(),
                    number(&n["status"]["allocatable"]["nvidia.com/gpu"]),
                )
            })
            .collect();
        for pod in pods.iter().filter(|p| !["Succeeded", "Failed"].contains(&text(&p["status"]["phase"]))) {
            if let Some(node) = free.iter_mut().find(|(n, _)| *n == text(&pod["spec"]["nodeName"])) {
                node.1 -= asked(pod);
            }
        }
        for pod in waiting {
            let meta = &pod["metadata"];
            let path =
                format!("/api/v1/namespaces/{}/pods/{}", text(&meta["namespace"]), text(&meta["name"]));
            if let Some(node) = free.iter_mut().find(|(_, left)| *left >= asked(pod)) {
                node.1 -= asked(pod);
                let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": meta["name"] },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": node.0 } });
                let _ = self.call("POST", &format!("{path}/binding"), Some(&binding)).await;
            } else if pod["status"]["conditions"].is_null() {
                let why = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu." }] } });
                let _ = self.call("PATCH", &format!("{path}/status"), Some(&why)).await;
            }
        }
        Ok(())
    }

    // Kubelets.

    async fn kubelets(&mut self, pods: &[Value]) -> Result<(), String> {
        for pod in pods.iter().filter(|p| p["spec"]["nodeName"].is_string()) {
            let meta = &pod["metadata"];
            let uid = text(&meta["uid"]).to_owned();
            let path =
                format!("/api/v1/namespaces/{}/pods/{}", text(&meta["namespace"]), text(&meta["name"]));
            let deleting = meta["deletionTimestamp"].is_string();
            let image = text(&pod["spec"]["containers"][0]["image"]);
            if !self.tried.contains(&uid) && !deleting && pod["status"]["phase"] == "Pending" {
                if image.starts_with("absent/") {
                    let waits = json!({ "waiting": { "reason": "ImagePullBackOff", "message": format!("Back-off pulling image \"{image}\"") } });
                    if pod["status"]["containerStatuses"].is_null() {
                        let _ = self.status(&path, "Pending", waits, None).await;
                    }
                    continue;
                }
                match self.begin(pod).await {
                    Ok(Some(run)) => {
                        self.tried.insert(uid.clone());
                        self.wishes.started.lock().expect("a lock").insert(uid.clone());
                        self.runs.insert(uid.clone(), run);
                        let _ = self
                            .status(
                                &path,
                                "Running",
                                json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } }),
                                None,
                            )
                            .await;
                    }
                    // Its Secret is not there yet.
                    Ok(None) => {}
                    Err(why) => {
                        self.tried.insert(uid.clone());
                        let ended = json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": why } });
                        let _ = self.status(&path, "Failed", ended, None).await;
                    }
                }
                continue;
            }
            let Some(run) = self.runs.get_mut(&uid) else {
                if deleting {
                    let _ = self.call("DELETE", &format!("{path}?gracePeriodSeconds=0"), None).await;
                }
                continue;
            };
            let pid = Pid::from_raw(run.child.id() as i32).expect("a pid");
            if deleting && run.kill_at.is_none() {
                let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
                run.kill_at = Some(Instant::now() + Duration::from_secs(grace));
                let _ = kill_process(pid, Signal::TERM);
            }
            if run.kill_at.is_some_and(|at| Instant::now() > at) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let Ok(Some(ended)) = run.child.try_wait() else { continue };
            let code = ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0));
            let message = fs::read_to_string(&run.last_word).unwrap_or_default();
            let reason = if code == 0 { "Completed" } else { "Error" };
            let state = json!({ "terminated": { "exitCode": code, "reason": reason, "message": message } });
            let phase = if code == 0 { "Succeeded" } else { "Failed" };
            if self.status(&path, phase, state, None).await.is_ok() {
                self.runs.remove(&uid);
            }
        }
        Ok(())
    }

    async fn status(
        &self,
        path: &str,
        phase: &str,
        state: Value,
        reason: Option<&str>,
    ) -> Result<(), String> {
        let patch = json!({ "status": { "phase": phase, "podIP": "127.0.0.1", "reason": reason,
            "containerStatuses": [{ "name": "main", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": state }] } });
        self.call("PATCH", &format!("{path}/status"), Some(&patch)).await.map(|_| ())
    }

    /// Folders for its volumes, init containers, then its main container. None: what it mounts is not there yet.
    async fn begin(&self, pod: &Value) -> Result<Option<Run>, String> {
        let (meta, spec) = (&pod["metadata"], &pod["spec"]);
        let (uid, namespace) = (text(&meta["uid"]), text(&meta["namespace"]));
        let own = self.folder.join("pods").join(uid);
        fs::create_dir_all(&own).map_err(|e| e.to_string())?;
        let podman = self.wishes.podman.get();
        let mut places: BTreeMap<String, PathBuf> = BTreeMap::new();
        for volume in list(&spec["volumes"]) {
            let place = own.join(text(&volume["name"]));
            fs::create_dir_all(&place).map_err(|e| e.to_string())?;
            if podman.is_some() && volume["emptyDir"].is_object() {
                fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).map_err(|e| e.to_string())?;
            }
            if let Some(name) = volume["secret"]["secretName"].as_str() {
                let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
                let Ok(secret) = self.call("GET", &path, None).await else { return Ok(None) };
                for (file, data) in secret["data"].as_object().into_iter().flatten() {
                    let bytes =
                        data_encoding::BASE64.decode(text(data).as_bytes()).map_err(|e| e.to_string())?;
                    // Without a file system of its own the container sees the host's paths.
                    let words = match podman {
                        Some(_) => String::from_utf8_lossy(&bytes).into_owned(),
                        None => String::from_utf8_lossy(&bytes)
                            .replace("\"/starling/", &format!("\"{}/", own.join("starling").display())),
                    };
                    fs::write(place.join(file), words).map_err(|e| e.to_string())?;
                }
            }
            places.insert(text(&volume["name"]).to_owned(), place);
        }
        let log = self.logs.join(uid);
        for init in list(&spec["initContainers"]) {
            let mut command = self.command(init, uid, &own, &places);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            // It copies a large file: the peer under test shares this runtime.
            let done = tokio::task::block_in_place(|| command.status());
            let done = done.map_err(|e| e.to_string())?;
            if !done.success() {
                return Err(format!("init container: {done}"));
            }
        }
        let main = &spec["containers"][0];
        let mut command = self.command(main, uid, &own, &places);
        for from in list(&main["envFrom"]) {
            let name = text(&from["secretRef"]["name"]);
            let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
            let Ok(secret) = self.call("GET", &path, None).await else { return Ok(None) };
            for (name, data) in secret["data"].as_object().into_iter().flatten() {
                let bytes = data_encoding::BASE64.decode(text(data).as_bytes()).map_err(|e| e.to_string())?;
                command.env(name, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        let (reader, writer) = std::io::pipe().map_err(|e| e.to_string())?;
        command.stdout(writer.try_clone().map_err(|e| e.to_string())?).stderr(writer).process_group(0);
        let child = command.spawn().map_err(|e| e.to_string())?;
        drop(command);
        std::thread::spawn(move || {
            let mut file = File::options().create(true).append(true).open(log).expect("a log");
            for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
                let now = time::OffsetDateTime::now_utc();
                let at = now.format(&time::format_description::well_known::Rfc3339).expect("a time");
                let mut text = format!("{at} ").into_bytes();
                text.extend(line);
                text.push(b'\n');
                file.write_all(&text).expect("writes");
            }
        });
        let name = text(&meta["name"]).to_owned();
        Ok(Some(Run { child, name, kill_at: None, last_word: own.join("last-word") }))
    }

    fn command(
        &self,
        container: &Value,
        uid: &str,
        own: &Path,
        places: &BTreeMap<String, PathBuf>,
    ) -> Command {
        if let Some(podman) = self.wishes.podman.get() {
            return containers::command(podman, container, uid, own, places);
        }
        let mounts: Vec<(&str, &PathBuf)> = list(&container["volumeMounts"])
            .filter_map(|m| Some((text(&m["mountPath"]), places.get(text(&m["name"]))?)))
            .collect();
        let here = |word: &str| -> String {
            if word == "/dev/termination-log" {
                return own.join("last-word").display().to_string();
            }
            for (at, place) in &mounts {
                if word == *at {
                    return place.display().to_string();
                }
                if let Some(rest) = word.strip_prefix(&format!("{at}/")) {
                    return place.join(rest).display().to_string();
                }
            }
            word.to_owned()
        };
        let mut words: Vec<String> =
            list(&container["command"]).chain(list(&container["args"])).map(|w| here(text(w))).collect();
        if container["command"].is_null() {
            // The image's own entry point.
            let entry = if container["image"] == "starling" { STARLING } else { "/bin/true" };
            words.insert(0, entry.to_owned());
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(own).stdin(Stdio::null());
        for name in [
            "STARLING_PEER",
            "STARLING_TOKEN",
            "STARLING_CA",
            "STARLING_STATE",
            "RUST_LOG",
            "KUBECONFIG",
            TEST_CLOCK,
        ] {
            command.env_remove(name);
        }
        for env in list(&container["env"]) {
            let value = match env["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.uid") => uid.to_owned(),
                _ => here(text(&env["value"])),
            };
            command.env(text(&env["name"]), value);
        }
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Cluster {
    fn kill_all(&mut self) {
        for run in self.runs.values_mut() {
            if let Some(pid) = Pid::from_raw(run.child.id() as i32) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = run.child.wait();
            let _ = &run.name;
        }
    }
}
