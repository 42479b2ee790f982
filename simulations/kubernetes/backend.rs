//! The backend by itself: the conformance suite, gangs, and what Kubernetes may do that must not start twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use serde_json::json;
use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, Subject, key, script, start, stop, wait_until};
use starling::backends::kubernetes::names::native_name;
use starling::backends::kubernetes::{KubernetesBackend, KubernetesConfig};
use starling::base::{PeerName, Span};
use starling::core::BackendCommand;
use starling::core::api::{AttemptKey, StopReason};
use starling::model::{JobSpec, Outcome};

use super::cluster::call;
use super::ground::{Ground, NAMESPACE, block_on};

/// A peer's backend on a cluster.
pub struct Desk {
    pub config: KubernetesConfig,
    pub backend: Arc<KubernetesBackend>,
    codes: PathBuf,
}

impl Desk {
    pub async fn new(
        ground: &Ground,
        url: &str,
        name: &str,
        change: impl FnOnce(&mut KubernetesConfig),
    ) -> Self {
        let folder = ground.folder(name);
        let peer = PeerName::new("here").expect("a name");
        let mut config = KubernetesConfig::new(folder.join("kubernetes"), peer, "mesh".into());
        config.access.kubeconfig = Some(ground.peer_config(url));
        (config.image, config.guard_image) = (Some("plain".into()), Some("starling".into()));
        config.interval = Span::millis(300);
        config.notice = Span::secs(1);
        config.host = Some("127.0.0.1".into());
        change(&mut config);
        let backend = Arc::new(KubernetesBackend::new(config.clone()).expect("a backend"));
        backend.discover().await.expect("finds Kubernetes");
        Self { config, backend, codes: folder }
    }
    pub async fn go(&self, key: AttemptKey, spec: JobSpec) {
        self.backend.command(BackendCommand::Start(Box::new(start(key, spec)))).await;
    }
}

#[async_trait]
impl Subject for Desk {
    fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }
    async fn restart(&mut self) {
        self.backend.shutdown().await;
        self.backend = Arc::new(KubernetesBackend::new(self.config.clone()).expect("a backend"));
        self.backend.discover().await.expect("finds Kubernetes");
    }
    fn waiting_spec(&self) -> JobSpec {
        let code = format!("{}/$STARLING_JOB_ID-$STARLING_EPOCH", self.codes.display());
        script(&format!("while [ ! -f {code} ]; do sleep 0.05; done; exit $(cat {code})"))
    }
    async fn finish(&mut self, key: AttemptKey, code: i32) {
        let (aside, file) = (self.codes.join("code.tmp"), self.codes.join(key.to_string()));
        fs::write(&aside, code.to_string()).expect("writes");
        fs::rename(aside, file).expect("renames");
    }
}

pub fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Names of the Jobs that are there.
pub async fn jobs(ground: &Ground) -> Vec<String> {
    let list = call(&ground.admin, "GET", &format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs"), None).await;
    let list = list.expect("a list");
    list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|j| j["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

pub async fn none_left(ground: &Ground) {
    for _ in 0..600 {
        if jobs(ground).await.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("left: {:?}", jobs(ground).await);
}

pub fn it_keeps_the_contract() {
    block_on(async {
        let ground = Ground::make().await;
        conformance::lifecycle(&mut Desk::new(&ground, &ground.url, "lifecycle", |_| {}).await).await;
        let ground = Ground::make().await;
        conformance::adoption(&mut Desk::new(&ground, &ground.url, "adoption", |_| {}).await).await;
    });
}

pub fn it_runs_programs() {
    block_on(async {
        let ground = Ground::make().await;
        conformance::programs(&mut Desk::new(&ground, &ground.url, "programs", |_| {}).await).await;
    });
}

pub fn a_gang_begins_together_and_its_first_failure_counts() {
    block_on(async {
        let ground = Ground::make().await;
        let desk = Desk::new(&ground, &ground.url, "gang", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut spec = script("echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT");
        (spec.nodes, spec.resources.gpus) = (3, 4);
        desk.go(key(1), spec).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
        let text = conformance::output(&*desk.backend, key(1));
        assert!((0..3).all(|n| text.contains(&format!("rank {n} of 3 at 127.0.0.1:29500"))), "{text}");

        let mut fails =
            script("trap 'exit 0' TERM; if [ $RANK = 1 ]; then exit 7; fi; while :; do sleep 0.05; done");
        fails.nodes = 2;
        desk.go(key(2), fails).await;
        assert_eq!(ear.ended(key(2)).await, Outcome::Exited(7));

        // It does not fit: its Job stays suspended and holds nothing, and begins when it does.
        let mut one = script("while :; do sleep 0.05; done");
        one.resources.gpus = 4;
        desk.go(key(3), one).await;
        ear.started(key(3)).await;
        let starts = ground.path().join("starts");
        let mut big = script(&format!("echo $RANK >> {}", starts.display()));
        (big.nodes, big.resources.gpus) = (3, 4);
        desk.go(key(4), big).await;
        wait_until_async("its Job is there", async || jobs(&ground).await.contains(&native_name(key(4))))
            .await;
        for n in 0..3 {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{}", native_name(key(4)));
            let job = call(&ground.admin, "GET", &path, None).await.expect("its Job");
            assert_eq!((&job["spec"]["suspend"], lines(&starts).len()), (&true.into(), 0), "look {n}");
        }
        desk.backend.command(stop(key(3), Span::ZERO, StopReason::Cancel)).await;
        assert_eq!(ear.ended(key(3)).await, Outcome::Cancelled);
        assert_eq!(ear.ended(key(4)).await, Outcome::Exited(0));
        assert_eq!(lines(&starts).len(), 3);
        for n in 1..=4 {
            desk.backend.command(BackendCommand::Forget { key: key(n) }).await;
        }
        none_left(&ground).await;
    });
}

pub async fn wait_until_async(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..1_200 {
        if done().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{what}: not in time");
}

/// Kubernetes says itself that it may happen.
pub fn a_pod_that_is_started_twice_runs_once() {
    block_on(async {
        let ground = Ground::make().await;
        ground.wishes.twice.store(true, Ordering::SeqCst);
        let desk = Desk::new(&ground, &ground.url, "twice", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let starts = ground.path().join("starts");
        let go = ground.path().join("go");
        let text = format!(
            "echo $STARLING_JOB_ID >> {}; while [ ! -f {} ]; do sleep 0.05; done",
            starts.display(),
            go.display()
        );
        desk.go(key(1), script(&text)).await;
        ear.started(key(1)).await;
        if ground.server.is_some() {
            wait_until("both pods were started", || ground.wishes.started.lock().expect("a lock").len() >= 2)
                .await;
        }
        fs::write(&go, "").expect("go");
        let outcome = ear.ended(key(1)).await;
        assert_eq!(lines(&starts).len(), 1, "{outcome:?}");
        assert_eq!(outcome, Outcome::Exited(0));
    });
}

pub fn without_a_guard_exit_codes_are_the_kubelets() {
    block_on(async {
        let ground = Ground::make().await;
        let desk = Desk::new(&ground, &ground.url, "plain", |c| c.guard_image = None).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut spec = script("echo hello $TOKEN; exit 5");
        spec.env.insert("TOKEN".into(), "kept-secret".into());
        assert!(
            matches!(conformance::run(&*desk.backend, &mut ear, key(1), spec.clone()).await, Outcome::NotStarted(why) if why.contains("operator"))
        );
        let mut never = spec;
        never.on_lost_contact.grace = None;
        assert_eq!(conformance::run(&*desk.backend, &mut ear, key(2), never).await, Outcome::Exited(5));
        assert_eq!(conformance::output(&*desk.backend, key(2)), "hello kept-secret\n");
        for kind in ["apis/batch/v1/jobs", "api/v1/pods"] {
            let all =
                call(&ground.admin, "GET", &format!("/{kind}"), None).await.expect("a list").to_string();
            assert!(all.contains(&native_name(key(2))), "{kind}: {all}");
            assert!(!all.contains("kept-secret"), "only the Secret holds its environment: {all}");
        }
        let mut long = script("while :; do sleep 0.05; done");
        long.on_lost_contact.grace = None;
        desk.go(key(3), long).await;
        ear.started(key(3)).await;
        desk.backend.command(stop(key(3), Span::secs(1), StopReason::Cancel)).await;
        assert_eq!(ear.ended(key(3)).await, Outcome::Cancelled);
    });
}

pub fn somebody_elses_job_of_the_same_name_is_not_touched() {
    block_on(async {
        let ground = Ground::make().await;
        let name = native_name(key(1));
        let theirs = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": { "suspend": true,
            "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "x", "image": "x" }] } } } });
        let folder = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
        let before = call(&ground.admin, "POST", &folder, Some(&theirs)).await.expect("made");
        let desk = Desk::new(&ground, &ground.url, "foreign", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let outcome = conformance::run(&*desk.backend, &mut ear, key(1), script("true")).await;
        assert!(
            matches!(&outcome, Outcome::NotStarted(why) if why.contains("not this peer's")),
            "{outcome:?}"
        );
        desk.backend.command(BackendCommand::Forget { key: key(1) }).await;
        // What removes ours has had its turn when another attempt is gone.
        desk.go(key(2), script("true")).await;
        assert_eq!(ear.ended(key(2)).await, Outcome::Exited(0));
        desk.backend.command(BackendCommand::Forget { key: key(2) }).await;
        wait_until_async("ours is gone", async || !jobs(&ground).await.contains(&native_name(key(2)))).await;
        let after = call(&ground.admin, "GET", &format!("{folder}/{name}"), None).await.expect("still there");
        assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
        assert_eq!(before["spec"]["suspend"], after["spec"]["suspend"]);
    });
}

pub fn an_image_that_never_comes_is_given_back() {
    block_on(async {
        let ground = Ground::make().await;
        let desk = Desk::new(&ground, &ground.url, "image", |c| c.pull_max = Span::secs(2)).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut spec = script("true");
        spec.image = Some("absent/image:1".into());
        let outcome = conformance::run(&*desk.backend, &mut ear, key(1), spec).await;
        assert!(matches!(&outcome, Outcome::Refused(why) if why.contains("ImagePullBackOff")), "{outcome:?}");
        none_left(&ground).await;
    });
}
