//! Honest absence: whatever the way to the API server does, no attempt is lost or started twice. Starts are counted
//! from what the jobs wrote.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, key, script};
use starling::backends::kubernetes::names::native_name;
use starling::core::BackendEvent;
use starling::model::Outcome;

use super::backend::{Desk, jobs, lines};
use super::cluster::call;
use super::ground::{Ground, NAMESPACE, block_on};
use super::proxy::{Fault, Proxy};

/// A real server speaks TLS, which this proxy does not.
pub async fn through(ground: &Ground) -> Option<std::sync::Arc<Proxy>> {
    if ground.server.is_none() {
        println!("not tried: faults on the way to a real API server");
        return None;
    }
    Some(Proxy::start(&ground.url).await)
}

pub fn a_bad_network_loses_nothing_and_starts_nothing_twice() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(proxy) = through(&ground).await else { return };
        let desk = Desk::new(&ground, &proxy.url(), "network", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let (starts, go) = (ground.path().join("starts"), ground.path().join("go"));
        let text = format!(
            "echo $STARLING_JOB_ID >> {}; while [ ! -f {} ]; do sleep 0.05; done; exit 3",
            starts.display(),
            go.display()
        );
        let faults = [
            Fault::Slow(Duration::from_secs(2)),
            Fault::Reset,
            Fault::Truncate,
            Fault::Error,
            Fault::EmptyLists,
            Fault::Twice,
            Fault::Skew,
        ];
        // Each begins under a fault, and lives through all that follow.
        for (n, fault) in (1..).zip(faults) {
            tracing::info!(n, ?fault, "a fault");
            proxy.set(fault);
            desk.go(key(n), script(&text)).await;
            let from = proxy.requests.load(Ordering::SeqCst);
            conformance::wait_until("the peer has asked under it", || {
                proxy.requests.load(Ordering::SeqCst) > from + 5
            })
            .await;
            proxy.set(Fault::None);
            tracing::info!(n, "healed");
            ear.started(key(n)).await;
        }
        let server = ground.server.as_ref().expect("recorded");
        // Every watch is too old now, and the server asks for patience.
        proxy.set(Fault::EmptyLists);
        server.compact();
        let from = proxy.requests.load(Ordering::SeqCst);
        conformance::wait_until("lists were asked for", || proxy.requests.load(Ordering::SeqCst) > from + 10)
            .await;
        server.throttle(5);
        conformance::wait_until("it was told to wait", || server.throttled.load(Ordering::SeqCst) >= 5).await;
        proxy.set(Fault::None);
        fs::write(&go, "").expect("go");
        for n in 1..=7 {
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3), "{n}");
        }
        let mut all = lines(&starts);
        all.sort();
        all.dedup();
        assert_eq!((lines(&starts).len(), all.len()), (7, 7), "each once");
    });
}

pub fn a_server_that_is_away_ends_nothing() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = ground.server.clone() else {
            println!("not tried: a real API server that is away");
            return;
        };
        let desk = Desk::new(&ground, &ground.url, "away", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let (starts, go) = (ground.path().join("starts"), ground.path().join("go"));
        let text =
            format!("echo x >> {}; while [ ! -f {} ]; do sleep 0.05; done", starts.display(), go.display());
        desk.go(key(1), script(&text)).await;
        ear.started(key(1)).await;
        server.set_down(true);
        let why = loop {
            match ear.next().await {
                BackendEvent::Cluster(state) => {
                    if let Some(why) = state.closed {
                        break why;
                    }
                }
                BackendEvent::Nodes(_) | BackendEvent::Staging { .. } => {}
                other => panic!("nothing is concluded, and here is {other:?}"),
            }
        };
        assert!(why.starts_with("unknown: Kubernetes does not answer"), "{why}");
        // It ends while the server is away: its guard says so.
        fs::write(&go, "").expect("go");
        server.set_down(false);
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
        assert_eq!(lines(&starts).len(), 1);
    });
}

/// Deleted while the peer is away: its Job stays until the result is kept.
pub fn a_ttl_that_deletes_what_finished_runs_nothing_again() {
    block_on(async {
        let ground = Ground::make().await;
        let mut desk = Desk::new(&ground, &ground.url, "ttl", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let (starts, go) = (ground.path().join("starts"), ground.path().join("go"));
        let text = format!(
            "echo x >> {}; while [ ! -f {} ]; do sleep 0.05; done; exit 4",
            starts.display(),
            go.display()
        );
        desk.go(key(1), script(&text)).await;
        ear.started(key(1)).await;
        drop(ear);
        desk.backend.shutdown().await;
        fs::write(&go, "").expect("go");
        let path = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{}", native_name(key(1)));
        for n in 0.. {
            let job = call(&ground.admin, "GET", &path, None).await.expect("its Job");
            if job["status"]["conditions"][0]["type"] == "Failed" {
                break;
            }
            assert!(n < 600, "{job}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // As the TTL controller does: dependents first, then the Job, which our finalizer keeps.
        let pods = call(&ground.admin, "GET", &format!("/api/v1/namespaces/{NAMESPACE}/pods"), None)
            .await
            .expect("pods");
        for pod in pods["items"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0");
            call(&ground.admin, "DELETE", &path, None).await.expect("deleted");
        }
        call(&ground.admin, "DELETE", &path, None).await.expect("deleted");
        conformance::Subject::restart(&mut desk).await;
        let (mut ear, running) = Ear::adopt(&*desk.backend).await;
        assert_eq!(running, [key(1)]);
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(4), "the Job still says how it ended");
        assert_eq!(lines(&starts).len(), 1);
        desk.backend.command(starling::core::BackendCommand::Forget { key: key(1) }).await;
        super::backend::none_left(&ground).await;
        assert!(jobs(&ground).await.is_empty());
    });
}
