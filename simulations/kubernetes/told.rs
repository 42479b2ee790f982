//! What the backend tells while an attempt waits, how it ends beside its outcome, and what the nodes have.

use std::sync::atomic::Ordering;

use serde_json::json;
use starling::backends::conformance::{self, Ear, key, script, wait_until};
use starling::base::{Bytes, WallTime};
use starling::core::BackendEvent;
use starling::core::api::{AttemptKey, NodesNews};
use starling::model::Outcome;
use starling::model::staging::{Part, PartKind, PartState};

use super::backend::{Desk, lines};
use super::cluster::call;
use super::ground::{Ground, block_on};

/// The next that is told of such a part of an attempt, and of which this is true.
async fn part(ear: &mut Ear, of: AttemptKey, kind: PartKind, wanted: impl Fn(&Part) -> bool) -> Part {
    ear.first(|event| match event {
        BackendEvent::Staging { key, staging } if *key == of => {
            staging.parts.iter().find(|p| p.kind == kind && wanted(p)).cloned()
        }
        _ => None,
    })
    .await
}

pub fn what_it_waits_for_and_how_long() {
    block_on(async {
        let ground = Ground::make().await;
        ground.wishes.full.store(true, Ordering::SeqCst);
        for (n, guard) in [(1, true), (2, false)] {
            let desk = Desk::new(&ground, &ground.url, &format!("waits-{n}"), |c| {
                c.guard_image = c.guard_image.take().filter(|_| guard);
            })
            .await;
            let (mut ear, _) = Ear::adopt(&*desk.backend).await;
            ground.wishes.full.store(true, Ordering::SeqCst);
            let mut spec = script("exit 6");
            spec.on_lost_contact.grace = spec.on_lost_contact.grace.filter(|_| guard);
            desk.go(key(n), spec).await;
            let waits = part(&mut ear, key(n), PartKind::Room, |_| true).await;
            assert_eq!((waits.state, waits.to), (PartState::Waits, None), "{waits:?}");
            assert!(waits.note.starts_with("Unschedulable: 0/3 nodes are available"), "{waits:?}");
            ground.wishes.full.store(false, Ordering::SeqCst);
            let (started_at, ended) = ear
                .first(|event| match event {
                    BackendEvent::Ended { key: k, outcome, started_at, at } if *k == key(n) => {
                        Some((*started_at, (outcome.clone(), *at)))
                    }
                    _ => None,
                })
                .await;
            assert_eq!(ended.0, Outcome::Exited(6));
            let waited_from = waits.from.expect("since when");
            let started_at: WallTime = started_at.expect("when it started");
            assert!(waited_from <= started_at && started_at <= ended.1, "{started_at:?} {ended:?}");
        }
    });
}

pub fn that_it_was_killed_for_memory() {
    block_on(async {
        let ground = Ground::make().await;
        for (n, guard) in [(1, true), (2, false)] {
            let mut desk = Desk::new(&ground, &ground.url, &format!("memory-{n}"), |c| {
                c.guard_image = c.guard_image.take().filter(|_| guard);
            })
            .await;
            let (mut ear, _) = Ear::adopt(&*desk.backend).await;
            let mut spec = script("kill -9 $$");
            (spec.image, spec.resources.memory) = (Some("hungry/x:1".into()), Bytes::mib(40));
            spec.on_lost_contact.grace = spec.on_lost_contact.grace.filter(|_| guard);
            desk.go(key(n), spec).await;
            // Again after a restart of the peer: the end may not have been taken yet.
            for again in [false, true] {
                if again {
                    drop(ear);
                    conformance::Subject::restart(&mut desk).await;
                    ear = Ear::adopt(&*desk.backend).await.0;
                }
                let note = ear
                    .first(|event| match event {
                        BackendEvent::Note { key: k, text } if *k == key(n) => Some(text.clone()),
                        BackendEvent::Ended { .. } => panic!("its note comes first"),
                        _ => None,
                    })
                    .await;
                assert_eq!(note, "killed for memory: OOMKilled; it may take 40 MiB");
                assert_eq!(ear.ended(key(n)).await, Outcome::Signaled(9));
            }
        }
    });
}

/// The others' programs wait with it, and its pull is told.
pub fn a_gang_waits_for_an_image_that_is_late_on_one_node() {
    block_on(async {
        let ground = Ground::make().await;
        let desk = Desk::new(&ground, &ground.url, "late", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let starts = ground.path().join("starts");
        let mut gang = script(&format!("echo $RANK >> {}", starts.display()));
        (gang.nodes, gang.resources.gpus, gang.image) = (3, 4, Some("late/x:1".into()));
        desk.go(key(1), gang).await;
        let comes = part(&mut ear, key(1), PartKind::Image, |_| true).await;
        assert_eq!((comes.state, comes.name.as_str()), (PartState::Comes, "late/x:1"));
        wait_until("the other two are there", || ground.wishes.started.lock().expect("a lock").len() == 2)
            .await;
        // Their guards have asked at least once more by then.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(lines(&starts), [] as [&str; 0], "none begins before all can");
        ground.wishes.late_came.store(true, Ordering::SeqCst);
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
        assert_eq!(lines(&starts).len(), 3);
    });
}

pub fn nodes_and_images_as_they_change() {
    block_on(async {
        let ground = Ground::make().await;
        let desk = Desk::new(&ground, &ground.url, "nodes", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let news = |event: &BackendEvent| match event {
            BackendEvent::Nodes(news) => Some((**news).clone()),
            _ => None,
        };
        assert_eq!(ear.first(news).await, NodesNews::default());
        let images = json!({ "status": { "images": [{ "names": ["x/train:1"], "sizeBytes": 5_000_000 }] } });
        for n in ["n0", "n1"] {
            call(&ground.admin, "PATCH", &format!("/api/v1/nodes/{n}/status"), Some(&images))
                .await
                .expect("images");
        }
        // The third has none, and takes nothing any more.
        let cordoned = json!({ "spec": { "unschedulable": true } });
        call(&ground.admin, "PATCH", "/api/v1/nodes/n2", Some(&cordoned)).await.expect("cordoned");
        let told = ear.first(|e| news(e).filter(|n| !n.images.is_empty() && !n.out.is_empty())).await;
        assert_eq!((told.images[0].name.as_str(), told.images[0].size), ("x/train:1", Bytes(5_000_000)));
        let out: Vec<_> = told.out.nodes.iter().map(|n| (n.name.as_str(), n.why.as_str())).collect();
        assert_eq!(out, [("n2", "cordoned")]);
        call(
            &ground.admin,
            "PATCH",
            "/api/v1/nodes/n2",
            Some(&json!({ "spec": { "unschedulable": false } })),
        )
        .await
        .expect("back");
        let told = ear.first(|e| news(e).filter(|n| n.out.is_empty())).await;
        assert!(told.images.is_empty(), "not every node has it: {told:?}");
    });
}
