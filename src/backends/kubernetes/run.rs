//! The loops between the book and the API server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::api::{Api, ApiError};
use super::ends::{Made, Sight};
use super::feed::{Feed, Mirror, jittered};
use super::follow::Follower;
use super::keeper::{Act, Keeper, Seen};
use super::nodes::{Load, NodeMap};
use super::objects::{Event, Job, Meta, Node, Pod};
use super::pods::PodView;
use super::{make, names};
use crate::backends::local::clock;
use crate::base::{Instant, Span};
use crate::core::BackendEvent;
use crate::core::api::{AttemptKey, ClusterState, NodesNews};

/// Without an answer for so long, nothing new is taken.
const UNKNOWN_AFTER: Span = Span::secs(10);
/// A watch may be broken for so long before what it said counts as old.
const FRESH: Span = Span::secs(20);
/// Longest pause between two questions while there is no answer.
const PAUSE_MAX: Span = Span::secs(30);
/// Pods whose output is followed at once; the others' is read when they have ended.
const FOLLOWED_AT_ONCE: usize = 256;

type PodRow = (Load, Option<PodView>);

/// What all loops share.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) keeper: Arc<Keeper>,
    pub(super) api: Arc<Api>,
    tasks: TaskTracker,
    stop: CancellationToken,
    wake: broadcast::Sender<AttemptKey>,
    pub(super) nodes: Arc<Mirror<Node>>,
    pods: Arc<Mirror<PodRow>>,
    jobs: Arc<Mirror<Job>>,
    follows: Arc<Semaphore>,
    pub(super) removing: Arc<Mutex<BTreeSet<AttemptKey>>>,
}

impl Watch {
    pub(super) fn new(
        keeper: Arc<Keeper>,
        api: Arc<Api>,
        tasks: TaskTracker,
        stop: CancellationToken,
        wake: broadcast::Sender<AttemptKey>,
    ) -> Self {
        Self {
            keeper,
            api,
            tasks,
            stop,
            wake,
            nodes: Arc::default(),
            pods: Arc::default(),
            jobs: Arc::default(),
            follows: Arc::new(Semaphore::new(FOLLOWED_AT_ONCE)),
            removing: Arc::default(),
        }
    }

    /// One watch per kind.
    pub(super) fn feed(&self) {
        let (api, stop, selector) = (self.api.clone(), self.stop.clone(), self.keeper.config.selector());
        let nodes = Feed::<Node, Node> {
            folder: "/api/v1/nodes".into(),
            query: String::new(),
            keep: Box::new(|node| Some(node.clone())),
            mirror: self.nodes.clone(),
            seen: Box::new(|_, _| {}),
        };
        self.tasks.spawn(nodes.run(api.clone(), stop.clone()));
        let keeper = self.keeper.clone();
        let jobs = Feed::<Job, Job> {
            folder: api.place("apis/batch/v1", "jobs"),
            query: format!("labelSelector={selector}"),
            keep: Box::new(|job| Some(job.clone())),
            mirror: self.jobs.clone(),
            seen: Box::new(move |job, there| keeper.note(Seen::Job(Box::new(job.clone()), there))),
        };
        self.tasks.spawn(jobs.run(api.clone(), stop.clone()));
        let (keeper, own) = (self.keeper.clone(), self.own());
        let pods = Feed::<Pod, PodRow> {
            // Everybody's: they all count as used.
            folder: "/api/v1/pods".into(),
            query: String::new(),
            keep: Box::new(move |pod| {
                let view = PodView::of(pod, &own);
                Some((Load::of(pod, view.as_ref()), view))
            }),
            mirror: self.pods.clone(),
            seen: Box::new(move |(_, view), there| {
                if let Some(view) = view {
                    keeper.note(Seen::Pod(Box::new(view.clone()), there));
                }
            }),
        };
        self.tasks.spawn(pods.run(api.clone(), stop.clone()));
        let keeper = self.keeper.clone();
        let events = Feed::<Event, (AttemptKey, String)> {
            folder: api.place("api/v1", "events"),
            query: "fieldSelector=involvedObject.kind%3DJob,reason%3DFailedCreate".into(),
            keep: Box::new(|event| {
                let key = names::read_name(&event.involved_object.name)?;
                Some((key, event.message.chars().take(300).collect()))
            }),
            mirror: Arc::default(),
            seen: Box::new(move |(key, why), there| {
                if there {
                    keeper.note(Seen::Event(*key, why.clone()));
                }
            }),
        };
        self.tasks.spawn(events.run(api, stop));
    }

    /// Reads what was seen, passes events on and carries out what the book wants.
    pub(super) async fn pass_on(self, events: mpsc::Sender<BackendEvent>) {
        loop {
            if self.keeper.has_seen() {
                let keeper = self.keeper.clone();
                let _ = tokio::task::spawn_blocking(move || keeper.digest()).await;
            }
            for key in self.keeper.out.take_wakes() {
                // Without a guard on the line nobody hears it.
                let _ = self.wake.send(key);
            }
            for act in self.keeper.out.take_acts() {
                self.tasks.spawn(self.clone().carry_out(act));
            }
            while let Some(event) = self.keeper.out.next_event() {
                tokio::select! { biased;
                    () = self.stop.cancelled() => return,
                    sent = events.send(event) => if sent.is_err() { return },
                }
            }
            tokio::select! { biased;
                () = self.stop.cancelled() => return,
                () = self.keeper.out.changed.notified() => {}
            }
        }
    }

    pub(super) fn own(&self) -> names::Own {
        let config = &self.keeper.config;
        let (peer, mesh) = (config.peer.to_string(), config.mesh.clone());
        names::Own { namespace: self.api.namespace.clone(), peer, mesh }
    }

    pub(super) fn jobs_folder(&self) -> String {
        self.api.place("apis/batch/v1", "jobs")
    }

    async fn carry_out(self, act: Act) {
        let keeper = self.keeper.clone();
        match act {
            Act::Make(key, release) => {
                let made = match self.make(key, release).await {
                    Ok(made) => made,
                    Err(ApiError::Refused(code, why)) => Made::Refused(code, why),
                    Err(other) => Made::Unknown(other.to_string()),
                };
                let _ = tokio::task::spawn_blocking(move || keeper.made(key, made)).await;
            }
            Act::GiveBack(key) => self.give_back(key).await,
            Act::Hold(key) => {
                let done = self.suspend(key, None, true).await;
                if let Err(error) = &done {
                    tracing::info!(%key, trace = self.keeper.dir(key).trace(), %error, "a gang could not be taken back");
                }
                keeper.held(key, done.is_ok());
            }
            Act::Look(key) => {
                let answer = self.api.get::<Job>(&self.jobs_folder(), &names::native_name(key)).await;
                let _ = tokio::task::spawn_blocking(move || keeper.looked(key, answer)).await;
            }
            Act::End(key, uid) => {
                let pause = Span::secs(1);
                while let Err(error) = self.end(key, uid.as_deref()).await {
                    tracing::info!(%key, trace = self.keeper.dir(key).trace(), %error, "an attempt's pods could not be ended");
                    let pause = if matches!(error, ApiError::Refused(..)) { PAUSE_MAX } else { pause };
                    if error == ApiError::Absent || self.pause(pause).await {
                        return;
                    }
                }
            }
            Act::Withdraw(key) => self.withdraw(key).await,
            Act::Remove(key) => self.remove(key).await,
            Act::Follow(key, pod) => self.follow(key, *pod).await,
        }
    }

    /// True if the peer stops meanwhile.
    pub(super) async fn pause(&self, pause: Span) -> bool {
        tokio::select! { biased;
            () = self.stop.cancelled() => true,
            () = tokio::time::sleep(jittered(pause)) => false,
        }
    }

    /// Each step may be done already, by this or an earlier run of the peer.
    async fn make(&self, key: AttemptKey, release: bool) -> Result<Made, ApiError> {
        let Some(kept) = self.keeper.kept(key) else { return Ok(Made::Unknown("its folder is gone".into())) };
        let (jobs, name) = (self.jobs_folder(), names::native_name(key));
        let may_release = || {
            let keeper = self.keeper.clone();
            async move { tokio::task::spawn_blocking(move || keeper.may_release(key)).await.unwrap_or(false) }
        };
        // Somebody else lets pods come, as soon as it is there.
        if kept.queued && !may_release().await {
            return Ok(Made::Unknown("it was stopped meanwhile".into()));
        }
        let mut wanted = kept.job.clone();
        // One name per Job, so that a Secret that goes with an earlier Job is not taken for this one's.
        let own = format!("{name}-{:08x}", rand::random::<u32>());
        set_secret(&mut wanted, &own);
        let (meta, secret) = match self.api.create(&jobs, &wanted).await {
            Ok(meta) => (meta, own),
            Err(ApiError::Conflict(_)) => {
                let there: Written = self.api.get(&jobs, &name).await?;
                let ours = self.keeper.labels(key, &kept.mark);
                if ours.iter().any(|(k, v)| there.metadata.labels.get(k) != Some(v)) {
                    return Ok(Made::Foreign);
                }
                if there.metadata.deletion_timestamp.is_some() {
                    return Ok(Made::There(there.metadata.uid, false));
                }
                let secret = secret_of(&there.rest).unwrap_or(own);
                (there.metadata, secret)
            }
            Err(other) => return Err(other),
        };
        if !kept.files.is_empty() {
            let mut object = make::secret(key, &kept, &self.keeper.labels(key, &kept.mark), &meta.uid);
            object["metadata"]["name"] = secret.into();
            already(self.api.create(&self.api.place("api/v1", "secrets"), &object).await)?;
        }
        if let Some((group, made)) = &kept.group {
            let object = make::group(key, made, &meta.uid);
            match already(self.api.create(&self.api.place(group, "podgroups"), &object).await) {
                Err(error) if error.is_404() || matches!(error, ApiError::Refused(403, _)) => {
                    return Ok(Made::NoGroup(group.clone(), error.to_string()));
                }
                done => done?,
            }
        }
        let release = release && !kept.queued && may_release().await;
        if release {
            self.suspend(key, Some(&meta.uid), false).await?;
        }
        Ok(Made::There(meta.uid, release))
    }

    async fn follow(&self, key: AttemptKey, pod: PodView) {
        let follower = Follower {
            api: self.api.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            folder: self.keeper.dir(key).logs(),
            trace: self.keeper.dir(key).trace(),
            index: pod.index,
            limits: self.keeper.config.logs,
        };
        let (keeper, uid) = (self.keeper.clone(), pod.uid.clone());
        let over = move || keeper.output_is_over(key, &uid);
        tokio::select! { biased;
            () = self.stop.cancelled() => return,
            permit = self.follows.acquire() => {
                let _permit = permit;
                tokio::select! { biased;
                    () = self.stop.cancelled() => return,
                    () = follower.run(over) => {}
                }
            }
        }
        self.keeper.output_read(key, &pod.uid);
    }

    /// A look per interval, whatever the number of jobs; ever more seldom while there is no answer.
    pub(super) async fn look(self) {
        let interval = self.keeper.config.interval;
        let (mut failures, mut answered) = (0_u32, clock::now());
        let mut said: Option<ClusterState> = None;
        let mut nodes: Option<NodesNews> = None;
        let (jobs, selector) = (self.jobs_folder(), self.keeper.config.selector());
        loop {
            let pulse = tokio::select! { biased;
                () = self.stop.cancelled() => return,
                pulse = self.api.pulse(&jobs, &selector) => pulse,
            };
            let state = match pulse {
                Ok(()) => {
                    failures = 0;
                    for news in super::features::ask(&self.keeper, &self.api).await {
                        tracing::info!("{news}");
                    }
                    if self.fresh() {
                        answered = clock::now();
                        let (state, news) = self.state();
                        if nodes.as_ref() != Some(&news) {
                            nodes = Some(news.clone());
                            self.keeper.out.say(BackendEvent::Nodes(Box::new(news)));
                        }
                        Some(state)
                    } else {
                        self.unknown(&said, answered, self.why_old())
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    tracing::info!(%error, "the API server does not answer");
                    self.unknown(&said, answered, error.to_string())
                }
            };
            let (keeper, jobs, pods) = (self.keeper.clone(), self.jobs.clone(), self.pods.clone());
            let fresh = failures == 0 && self.fresh();
            let looked = tokio::task::spawn_blocking(move || {
                keeper.digest();
                keeper.start_parked();
                keeper.look(&Sight { jobs: &jobs, pods: &pods, fresh });
            });
            let _ = looked.await;
            if let Some(state) = state
                && said.as_ref() != Some(&state)
            {
                said = Some(state.clone());
                self.keeper.out.say(BackendEvent::Cluster(Box::new(state)));
            }
            let pause = interval.scale(1 << failures.min(5), 1).min(PAUSE_MAX.max(interval));
            tokio::select! { biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(jittered(pause)) => {}
            }
        }
    }

    fn fresh(&self) -> bool {
        self.nodes.fresh(FRESH) && self.pods.fresh(FRESH) && self.jobs.fresh(FRESH)
    }

    fn why_old(&self) -> String {
        let refused = [self.nodes.refused(), self.pods.refused(), self.jobs.refused()];
        let first = refused.into_iter().flatten().next();
        first.unwrap_or_else(|| "its watches are not up".into())
    }

    fn state(&self) -> (ClusterState, NodesNews) {
        let (map, news) = {
            let nodes = self.nodes.read();
            let map = NodeMap::new(nodes.values(), &self.keeper.config.rules);
            let news =
                NodesNews { images: super::nodes::images(nodes.values(), &map), out: map.out(), slurm: None };
            (map, news)
        };
        if map != self.keeper.map() {
            let path = self.keeper.config.nodes_file();
            if let Err(error) = crate::backends::local::files::write_json_unsynced(&path, &map.groups) {
                tracing::warn!(%error, "the nodes could not be written down");
            }
            self.keeper.set_map(map.clone());
        }
        let pods = self.pods.read();
        let ours = |key: AttemptKey, mark: &str| self.keeper.is_ours(key, mark);
        (map.state(pods.values().map(|(load, _)| load), ours), news)
    }

    /// What is said while there is no answer: everything as before, and nothing new is taken.
    fn unknown(&self, said: &Option<ClusterState>, answered: Instant, error: String) -> Option<ClusterState> {
        let silent = clock::now().since(answered) > UNKNOWN_AFTER;
        let why = format!("unknown: Kubernetes does not answer ({error})");
        let old = said.clone().unwrap_or_default();
        // The first reason stays: a report must not change with every try.
        let already = old.closed.as_ref().is_some_and(|c| c.starts_with("unknown:"));
        (silent && !already).then(|| ClusterState { nodes: Vec::new(), closed: Some(why), ..old })
    }
}

/// What is there already is as good as made.
fn already(made: Result<Meta, ApiError>) -> Result<(), ApiError> {
    match made {
        Ok(_) | Err(ApiError::Conflict(_)) => Ok(()),
        Err(other) => Err(other),
    }
}

/// A Job as it is written, with all its fields.
#[derive(Debug, Clone, serde::Deserialize)]
struct Written {
    metadata: Meta,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

impl super::objects::Object for Written {
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Where a Job names its Secret: among its volumes, or for the environment of its containers.
fn secret_of(job: &serde_json::Map<String, Value>) -> Option<String> {
    let pod = &job.get("spec")?["template"]["spec"];
    let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let volume =
        all(&pod["volumes"]).iter().find_map(|v| v["secret"]["secretName"].as_str().map(str::to_owned));
    let froms = all(&pod["containers"]).into_iter().flat_map(|c| all(&c["envFrom"]));
    volume.or_else(|| froms.into_iter().find_map(|f| f["secretRef"]["name"].as_str().map(str::to_owned)))
}

fn set_secret(job: &mut Value, name: &str) {
    fn all<'a>(of: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
        of.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
    }
    let pod = &mut job["spec"]["template"]["spec"];
    for volume in all(pod, "volumes").filter(|v| v["secret"].is_object()) {
        volume["secret"]["secretName"] = name.into();
    }
    for from in all(pod, "containers").flat_map(|c| all(c, "envFrom")) {
        from["secretRef"]["name"] = name.into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_jobs_secret_is_found_where_it_is_set() {
        let guarded = json!({ "volumes": [{ "emptyDir": {} }, { "secret": { "secretName": "x" } }] });
        let plain =
            json!({ "containers": [{ "name": "main", "envFrom": [{ "secretRef": { "name": "x" } }] }] });
        for pod in [guarded, plain] {
            let mut job = json!({ "spec": { "template": { "spec": pod } } });
            set_secret(&mut job, "own");
            let fields = job.as_object().cloned().unwrap_or_default();
            assert_eq!(secret_of(&fields).as_deref(), Some("own"), "{job}");
        }
    }
}
