//! What goes on unseen: the API server out of the peer's reach for ten minutes, answers that come after 45 s, pods that
//! go while nobody watches, clocks that differ. Nothing is concluded, nothing starts twice, and the report says why.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, Subject, key, now, script, stop, wait_until};
use starling::backends::kubernetes::KubernetesConfig;
use starling::base::Span;
use starling::core::BackendEvent;
use starling::core::api::StopReason;
use starling::model::{JobSpec, Outcome};

use super::backend::{Desk, lines, none_left, wait_until_async};
use super::cluster::call;
use super::faults::through;
use super::ground::{Ground, NAMESPACE, block_on};
use super::proxy::Fault;
use super::speed::Other;

/// Runs until a file is there; writes a line when it starts, and one when it was told to end and has.
fn noted(ground: &Ground, code: i32) -> JobSpec {
    let at = |name: &str| ground.path().join(name).display().to_string();
    script(&format!(
        "trap 'sleep 0.5; echo $STARLING_JOB_ID >> {}; exit 9' TERM; echo $STARLING_JOB_ID >> {}; \
         while [ ! -f {} ]; do sleep 0.05; done; exit {code}",
        at("ends"),
        at("starts"),
        at("go")
    ))
}

fn never(mut spec: JobSpec) -> JobSpec {
    spec.on_lost_contact.grace = None;
    spec
}

async fn pods(ground: &Ground) -> Vec<Value> {
    let list = call(&ground.admin, "GET", &format!("/api/v1/namespaces/{NAMESPACE}/pods"), None).await;
    list.expect("a list")["items"].as_array().cloned().unwrap_or_default()
}

/// The next report that says why nothing is taken; nothing else may be said.
async fn closed(ear: &mut Ear) -> String {
    loop {
        match ear.next().await {
            BackendEvent::Cluster(state) => {
                if let Some(why) = state.closed {
                    return why;
                }
            }
            BackendEvent::Nodes(_) | BackendEvent::Staging { .. } => {}
            other => panic!("nothing is concluded, and here is {other:?}"),
        }
    }
}

/// Ten minutes by the peer's clock. Before, one attempt ran; another's pods had come and not begun, and they begin
/// meanwhile, with no guard to ask; a third is told to stop meanwhile.
pub fn ten_minutes_without_a_server_end_nothing_and_start_nothing_twice() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(proxy) = through(&ground).await else { return };
        let guarded = Desk::new(&ground, &proxy.url(), "guarded", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*guarded.backend).await;
        guarded.go(key(1), noted(&ground, 3)).await;
        ear.started(key(1)).await;
        let change = |c: &mut KubernetesConfig| (c.guard_image, c.pending_max) = (None, Span::secs(120));
        let plain = Desk::new(&ground, &proxy.url(), "plain", change).await;
        let (mut other, _) = Ear::adopt(&*plain.backend).await;
        ground.wishes.dead_kubelets.store(true, Ordering::SeqCst);
        for n in [2, 3] {
            plain.go(key(n), never(noted(&ground, 5))).await;
        }
        wait_until_async("their pods are on nodes", async || {
            pods(&ground).await.iter().filter(|p| p["spec"]["nodeName"].is_string()).count() == 3
        })
        .await;
        proxy.set_away(true);
        ground.wishes.dead_kubelets.store(false, Ordering::SeqCst);
        wait_until("all run", || lines(&ground.path().join("starts")).len() == 3).await;
        plain.backend.command(stop(key(3), Span::secs(30), StopReason::Drain)).await;
        let (begun, fast) = (now(), Other::rate(11));
        for ear in [&mut ear, &mut other] {
            let why = closed(ear).await;
            assert!(why.starts_with("unknown: Kubernetes does not answer"), "{why}");
        }
        wait_until("ten minutes are over", || now().since(begun) > Span::secs(600)).await;
        for (desk, n) in [(&guarded, 1), (&plain, 2), (&plain, 3)] {
            assert!(!desk.backend.attempt_dir(key(n)).join("ended").exists(), "{n} was given back unseen");
        }
        assert_eq!(lines(&ground.path().join("ends")).len(), 0);
        drop(fast);
        proxy.set_away(false);
        // What was told to stop has ended when it is said, and not before.
        assert_eq!(other.ended(key(3)).await, Outcome::Stopped("drain".into()));
        assert_eq!(lines(&ground.path().join("ends")).len(), 1, "it had its time to end");
        fs::write(ground.path().join("go"), "").expect("go");
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(3));
        assert_eq!(other.ended(key(2)).await, Outcome::Exited(5));
        assert_eq!(lines(&ground.path().join("starts")).len(), 3, "each once");
    });
}

/// Requests have their effect, and what is answered comes when nobody waits for it any more.
pub fn answers_after_45_seconds_start_nothing_twice() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(proxy) = through(&ground).await else { return };
        let desk = Desk::new(&ground, &proxy.url(), "late", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), noted(&ground, 3)).await;
        ear.started(key(1)).await;
        proxy.set(Fault::Late(Duration::from_secs(45)));
        proxy.cut();
        desk.go(key(2), noted(&ground, 4)).await;
        let why = closed(&mut ear).await;
        assert!(why.starts_with("unknown: Kubernetes does not answer"), "{why}");
        wait_until_async("the second one's Job was made, and the peer does not know", async || {
            super::backend::jobs(&ground).await.len() == 2
        })
        .await;
        assert_eq!(lines(&ground.path().join("starts")).len(), 1);
        proxy.set(Fault::None);
        proxy.cut();
        ear.started(key(2)).await;
        fs::write(ground.path().join("go"), "").expect("go");
        for (n, code) in [(1, 3), (2, 4)] {
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(code));
        }
        assert_eq!(lines(&ground.path().join("starts")).len(), 2, "each once");
    });
}

/// Renewed, it lives past its grace; with the peer away it ends by itself, and nobody else had to end it.
pub fn a_guard_ends_in_its_pod_when_the_peer_is_away_past_the_grace() {
    block_on(async {
        let ground = Ground::make().await;
        let mut desk = Desk::new(&ground, &ground.url, "grace", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut spec = noted(&ground, 0);
        spec.on_lost_contact.grace = Some(Span::secs(5));
        desk.go(key(1), spec).await;
        ear.started(key(1)).await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(8) {
            desk.backend.renewed(conformance::CONTACT, 1, now()).await;
            assert_eq!(lines(&ground.path().join("ends")).len(), 0, "renewed, it lives");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let away = Instant::now();
        desk.backend.shutdown().await;
        drop(ear);
        wait_until("its guard ended it", || lines(&ground.path().join("ends")).len() == 1).await;
        assert!(away.elapsed() > Duration::from_secs(1), "not at once: {:?}", away.elapsed());
        desk.restart().await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let outcome = ear.ended(key(1)).await;
        assert!(matches!(outcome, Outcome::Stopped(_)), "{outcome:?}");
        assert_eq!(lines(&ground.path().join("starts")).len(), 1);
    });
}

/// A node with all that ran on it is gone while nobody watches, and the versions since then are, too.
pub fn a_pod_that_went_while_nobody_watched_is_missed() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = ground.server.clone() else {
            println!("not tried: pods that a real API server loses");
            return;
        };
        let desk = Desk::new(&ground, &ground.url, "missed", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut spec = noted(&ground, 0);
        spec.on_lost_contact.grace = Some(Span::secs(60));
        desk.go(key(1), spec).await;
        ear.started(key(1)).await;
        server.set_down(true);
        ground.wishes.power_cut.store(true, Ordering::SeqCst);
        wait_until("the power is cut", || !ground.wishes.power_cut.load(Ordering::SeqCst)).await;
        server.lose("pods");
        server.set_down(false);
        let _fast = Other::rate(11);
        let outcome = ear.ended(key(1)).await;
        assert!(matches!(&outcome, Outcome::Stopped(why) if why.contains("its pod is gone")), "{outcome:?}");
        fs::write(ground.path().join("go"), "").expect("go");
    });
}

/// Without a guard an attempt that waits for too long is given back when its pods are gone, and not before.
pub fn without_a_guard_it_is_given_back_when_nothing_of_it_can_run() {
    block_on(async {
        let ground = Ground::make().await;
        let change = |c: &mut KubernetesConfig| (c.guard_image, c.pull_max) = (None, Span::secs(1));
        let desk = Desk::new(&ground, &ground.url, "back", change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut absent = never(script("true"));
        absent.image = Some("absent/image:1".into());
        desk.go(key(1), absent).await;
        let outcome = ear.ended(key(1)).await;
        assert!(matches!(&outcome, Outcome::Refused(why) if why.contains("ImagePullBackOff")), "{outcome:?}");
        assert_eq!(pods(&ground).await, [] as [Value; 0], "said when they are gone");
        none_left(&ground).await;

        // Deleted by somebody: its pods are ended, and it is not run again.
        desk.go(key(2), never(noted(&ground, 0))).await;
        ear.started(key(2)).await;
        let name = starling::backends::kubernetes::names::native_name(key(2));
        let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}");
        call(&ground.admin, "DELETE", &path, None).await.expect("deleted");
        assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
        assert_eq!(lines(&ground.path().join("ends")).len(), 1, "it had ended");
    });
}

/// The peer's time of day is ten minutes before the API server's and the kubelets', then after it.
pub fn clocks_that_are_ten_minutes_apart_lose_no_output_and_end_nothing() {
    block_on(async {
        for (n, ms) in [(1, -600_000), (2, 600_000)] {
            let ground = Ground::make().await;
            let mut desk = Desk::new(&ground, &ground.url, "skew", |_| {}).await;
            let _off = Other::wall(ms);
            let (mut ear, _) = Ear::adopt(&*desk.backend).await;
            let go = ground.path().join("go");
            let text =
                format!("echo one; while [ ! -f {} ]; do sleep 0.05; done; echo two; exit 6", go.display());
            desk.go(key(n), script(&text)).await;
            conformance::wait_for_output(&*desk.backend, key(n), "one").await;
            ear.started(key(n)).await;
            // Another run of the peer reads on where this one was.
            let place = desk.backend.attempt_dir(key(n)).join("logs/place-0.json");
            wait_until("how far it was read is noted", || {
                fs::read_to_string(&place).is_ok_and(|p| p.contains("\"lines\":1"))
            })
            .await;
            drop(ear);
            desk.restart().await;
            let (mut ear, running) = Ear::adopt(&*desk.backend).await;
            assert_eq!(running, [key(n)]);
            fs::write(go, "").expect("go");
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(6));
            assert_eq!(conformance::output(&*desk.backend, key(n)), "one\ntwo\n");
        }
    });
}

pub fn a_line_without_an_end_is_cut_and_what_follows_comes() {
    block_on(async {
        let ground = Ground::make().await;
        let desk = Desk::new(&ground, &ground.url, "line", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let begun = Instant::now();
        let text = "echo before; head -c 6000000 /dev/zero | tr '\\0' x; echo; echo after";
        desk.go(key(1), script(text)).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
        let all = conformance::output(&*desk.backend, key(1));
        let lengths: Vec<usize> = all.lines().map(str::len).collect();
        assert!(all.ends_with("cut here]\nafter\n"), "{lengths:?} after {:?}", begun.elapsed());
        assert!(
            all.starts_with("before\nxxx") && lengths[1] > 4 << 20 && lengths[1] < 5 << 20,
            "{lengths:?}"
        );
    });
}
