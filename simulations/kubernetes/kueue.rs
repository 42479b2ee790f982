//! Queues and gangs of others: Kueue lets a Job begin, takes it back, is not there yet, or goes; API groups without what
//! is used of them.

use std::sync::atomic::Ordering;

use serde_json::Value;
use starling::backends::Backend;
use starling::backends::conformance::{Ear, key, script, wait_until};
use starling::backends::kubernetes::KubernetesConfig;
use starling::backends::kubernetes::names::native_name;
use starling::base::Span;
use starling::core::BackendCommand;
use starling::core::api::AttemptKey;
use starling::model::{JobSpec, Outcome};

use super::backend::{Desk, jobs, lines, none_left, wait_until_async};
use super::cluster::call;
use super::ground::{Ground, NAMESPACE, block_on};
use super::server::Server;
use super::speed::Other;

const KUEUE: (&str, &str) = ("kueue.x-k8s.io", "v1beta1");
const VOLCANO: (&str, &str) = ("scheduling.volcano.sh", "v1beta1");

/// The recorded server, whose API groups come and go.
fn recorded(ground: &Ground) -> Option<std::sync::Arc<Server>> {
    if ground.server.is_none() {
        println!("not tried: queues in front of a real API server, where no Kueue is installed");
    }
    ground.server.clone()
}

fn queue(config: &mut KubernetesConfig) {
    config.queue = Some("gpus".into());
}

fn admit(ground: &Ground, key: AttemptKey, yes: bool) {
    let mut admits = ground.wishes.admits.lock().expect("a lock");
    if yes {
        admits.insert(native_name(key))
    } else {
        admits.remove(&native_name(key))
    };
}

async fn job(ground: &Ground, key: AttemptKey) -> Option<Value> {
    let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{}", native_name(key));
    call(&ground.admin, "GET", &path, None).await.ok()
}

/// Its controller has said that it makes no pods.
async fn is_suspended(ground: &Ground, key: AttemptKey) {
    wait_until_async("it is suspended", async || {
        let job = job(ground, key).await.unwrap_or_default();
        let said = job["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == "Suspended"));
        job["spec"]["suspend"] == true && said
    })
    .await;
}

async fn pods(ground: &Ground) -> Vec<Value> {
    let list = call(&ground.admin, "GET", &format!("/api/v1/namespaces/{NAMESPACE}/pods"), None).await;
    list.expect("a list")["items"].as_array().cloned().unwrap_or_default()
}

fn is_queued(desk: &Desk, key: AttemptKey) -> bool {
    let file = desk.backend.attempt_dir(key).join("kubernetes.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(file).expect("it was made")).expect("JSON");
    kept["queued"] == true
}

/// Notes that it starts, and runs until a file is there.
fn noted(ground: &Ground) -> JobSpec {
    let (starts, go) = (ground.path().join("starts"), ground.path().join("go"));
    let text =
        format!("echo x >> {}; while [ ! -f {} ]; do sleep 0.05; done", starts.display(), go.display());
    script(&text)
}

fn starts(ground: &Ground) -> usize {
    lines(&ground.path().join("starts")).len()
}

pub fn no_job_goes_past_a_queue_that_nobody_could_ask_about() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = recorded(&ground) else { return };
        server.add_group(KUEUE, &["localqueues", "workloads"]);
        ground.wishes.kueue.store(true, Ordering::SeqCst);
        let first = Desk::new(&ground, &ground.url, "away", queue).await;
        let config = first.config.clone();
        drop(first);
        // Away when the peer begins, and back when it has jobs to start.
        server.set_down(true);
        let change = |c: &mut KubernetesConfig| *c = config.clone();
        let desk = Desk::new(&ground, &ground.url, "away", change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), script("exit 4")).await;
        desk.go(key(2), script("exit 5")).await;
        desk.backend
            .command(starling::backends::conformance::stop(
                key(2),
                Span::ZERO,
                starling::core::api::StopReason::Cancel,
            ))
            .await;
        assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
        server.set_down(false);
        wait_until_async("its Job is there", async || job(&ground, key(1)).await.is_some()).await;
        let made = job(&ground, key(1)).await.expect("its Job");
        assert_eq!(made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "gpus", "{made:#}");
        is_suspended(&ground, key(1)).await;
        assert!(job(&ground, key(2)).await.is_none(), "what was stopped is not made");
        admit(&ground, key(1), true);
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(4));
    });
}

pub fn a_group_without_its_resource_is_done_without() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = recorded(&ground) else { return };
        server.add_group(VOLCANO, &["queues"]);
        let mut gang = script("true");
        gang.nodes = 2;
        let desk = Desk::new(&ground, &ground.url, "without", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), gang.clone()).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
        // It was there when it was asked for, and goes: this gang is placed anew, and the next needs none.
        server.add_group(VOLCANO, &["queues", "podgroups"]);
        let desk = Desk::new(&ground, &ground.url, "goes", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        server.drop_group(VOLCANO.0);
        desk.go(key(2), gang.clone()).await;
        let outcome = ear.ended(key(2)).await;
        assert!(matches!(&outcome, Outcome::Refused(why) if why.contains("PodGroup")), "{outcome:?}");
        desk.go(key(3), gang).await;
        assert_eq!(ear.ended(key(3)).await, Outcome::Exited(0));
    });
}

pub fn a_queue_that_comes_is_used_and_one_that_goes_gives_back() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = recorded(&ground) else { return };
        ground.wishes.kueue.store(true, Ordering::SeqCst);
        let desk = Desk::new(&ground, &ground.url, "comes", queue).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), script("exit 2")).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(2), "what is not installed is done without");
        assert!(!is_queued(&desk, key(1)));
        let _fast = Other::rate(11);
        server.add_group(KUEUE, &["localqueues"]);
        let mut n = 2;
        loop {
            admit(&ground, key(n), true);
            desk.go(key(n), script("exit 3")).await;
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3));
            if is_queued(&desk, key(n)) {
                break;
            }
            n += 1;
        }
        desk.go(key(n + 1), noted(&ground)).await;
        is_suspended(&ground, key(n + 1)).await;
        ground.wishes.kueue.store(false, Ordering::SeqCst);
        server.drop_group(KUEUE.0);
        let outcome = ear.ended(key(n + 1)).await;
        assert!(
            matches!(&outcome, Outcome::Refused(why) if why.contains("not here any more")),
            "{outcome:?}"
        );
        desk.go(key(n + 2), script("exit 5")).await;
        assert_eq!(ear.ended(key(n + 2)).await, Outcome::Exited(5));
        assert!(!is_queued(&desk, key(n + 2)) && starts(&ground) == 0);
    });
}

pub fn a_queue_says_when_and_takes_back() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = recorded(&ground) else { return };
        server.add_group(KUEUE, &["localqueues"]);
        ground.wishes.kueue.store(true, Ordering::SeqCst);
        let desk = Desk::new(&ground, &ground.url, "queue", queue).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), noted(&ground)).await;
        is_suspended(&ground, key(1)).await;
        assert_eq!((pods(&ground).await.len(), starts(&ground)), (0, 0), "the quota is not its to take");
        // Let begin, and taken back before anything of it runs: it stands in the queue again.
        ground.wishes.dead_kubelets.store(true, Ordering::SeqCst);
        admit(&ground, key(1), true);
        wait_until_async("its pod is there", async || pods(&ground).await.len() == 1).await;
        admit(&ground, key(1), false);
        // Then its pod is deleted, too, and no kubelet begins it.
        is_suspended(&ground, key(1)).await;
        ground.wishes.dead_kubelets.store(false, Ordering::SeqCst);
        wait_until_async("its pod is gone", async || pods(&ground).await.is_empty()).await;
        let before = starts(&ground);
        assert_eq!(before, 0);
        admit(&ground, key(1), true);
        ear.started(key(1)).await;
        // Preempted while it runs: ended with that reason, and not begun again however much room there is.
        admit(&ground, key(1), false);
        let outcome = ear.ended(key(1)).await;
        assert!(matches!(&outcome, Outcome::Stopped(why) if why.contains("preempted")), "{outcome:?}");
        admit(&ground, key(1), true);
        wait_until_async("its Job is withdrawn", async || {
            job(&ground, key(1)).await.is_none_or(|j| j["metadata"]["deletionTimestamp"].is_string())
        })
        .await;
        assert_eq!(starts(&ground), 1);
        desk.backend.command(BackendCommand::Forget { key: key(1) }).await;
        // Deleted by somebody while it waits.
        desk.go(key(2), noted(&ground)).await;
        is_suspended(&ground, key(2)).await;
        let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{}", native_name(key(2)));
        call(&ground.admin, "DELETE", &path, None).await.expect("deleted");
        assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
        desk.backend.command(BackendCommand::Forget { key: key(2) }).await;
        none_left(&ground).await;
        assert_eq!(starts(&ground), 1);
    });
}

pub fn without_a_guard_a_queue_starts_it_once() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = recorded(&ground) else { return };
        server.add_group(KUEUE, &["localqueues"]);
        ground.wishes.kueue.store(true, Ordering::SeqCst);
        let plain = |c: &mut KubernetesConfig| {
            queue(c);
            (c.guard_image, c.pull_max) = (None, Span::secs(1));
        };
        let desk = Desk::new(&ground, &ground.url, "plain", plain).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let never = |mut spec: JobSpec| {
            spec.on_lost_contact.grace = None;
            spec
        };
        desk.go(key(1), never(noted(&ground))).await;
        is_suspended(&ground, key(1)).await;
        admit(&ground, key(1), true);
        ear.started(key(1)).await;
        wait_until("it runs", || starts(&ground) == 1).await;
        admit(&ground, key(1), false);
        let outcome = ear.ended(key(1)).await;
        assert!(matches!(&outcome, Outcome::Stopped(why) if why.contains("preempted")), "{outcome:?}");
        wait_until_async("its Job is withdrawn", async || {
            job(&ground, key(1)).await.is_none_or(|j| j["metadata"]["deletionTimestamp"].is_string())
        })
        .await;
        admit(&ground, key(1), true);
        // Its image does not come: given back once it is deleted, since its queue could let it begin at any time.
        let mut absent = never(script("true"));
        absent.image = Some("absent/image:1".into());
        desk.go(key(2), absent).await;
        is_suspended(&ground, key(2)).await;
        admit(&ground, key(2), true);
        let outcome = ear.ended(key(2)).await;
        assert!(matches!(&outcome, Outcome::Refused(why) if why.contains("ImagePullBackOff")), "{outcome:?}");
        for n in [1, 2] {
            desk.backend.command(BackendCommand::Forget { key: key(n) }).await;
        }
        none_left(&ground).await;
        assert_eq!((starts(&ground), jobs(&ground).await.len()), (1, 0));
    });
}
