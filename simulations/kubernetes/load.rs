//! What the API server bears: lists in pages, and reads that do not grow with the number of jobs.

use std::sync::atomic::Ordering;

use starling::backends::Backend;
use starling::backends::conformance::{Ear, key, script, wait_until};
use starling::base::Span;
use starling::model::Outcome;

use super::backend::{Desk, lines};
use super::ground::{Ground, NODES, block_on};

pub fn lists_come_in_pages() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = ground.server.clone() else {
            println!("not tried: how many pages a real API server gives");
            return;
        };
        let desk = Desk::new(&ground, &ground.url, "pages", |c| c.access.page = Some(2)).await;
        let found = desk.backend.discover().await.expect("finds Kubernetes");
        assert_eq!(found.nodes.iter().map(|n| n.count).sum::<u32>(), NODES);
        assert!(server.pages.load(Ordering::SeqCst) >= 2, "the third node is on a page of its own");
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let go = ground.path().join("go");
        let wait = format!("while [ ! -f {} ]; do sleep 0.05; done; exit $STARLING_EPOCH", go.display());
        let keys = [1, 2, 3].map(key);
        for key in keys {
            desk.go(key, script(&wait)).await;
            ear.started(key).await;
        }
        // Every list is taken again, and what it began with is gone before its second page: again, from the start.
        let before = server.pages.load(Ordering::SeqCst);
        server.expire(3);
        server.lose("what there is none of");
        wait_until("lists went on", || server.pages.load(Ordering::SeqCst) >= before + 3).await;
        std::fs::write(&go, "").expect("go");
        for key in keys {
            let code = i32::try_from(key.epoch.0).expect("a code");
            assert_eq!(ear.ended(key).await, Outcome::Exited(code));
        }
    });
}

pub fn reads_do_not_grow_with_jobs() {
    block_on(async {
        let ground = Ground::make().await;
        let Some(server) = ground.server.clone() else {
            println!("not tried: how often a real API server is asked");
            return;
        };
        let desk = Desk::new(&ground, &ground.url, "reads", |c| c.interval = Span::millis(200)).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let (starts, go) = (ground.path().join("starts"), ground.path().join("go"));
        let text =
            format!("echo x >> {}; while [ ! -f {} ]; do sleep 0.3; done", starts.display(), go.display());
        let mut running = 0;
        for wanted in [1_u8, 6] {
            for n in running..wanted {
                desk.go(key(n + 1), script(&text)).await;
            }
            for n in running..wanted {
                ear.started(key(n + 1)).await;
            }
            running = wanted;
            wait_until("all run", || lines(&starts).len() == usize::from(wanted)).await;
            // What their start asks for is over when looks alone are left.
            let count = || (server.calls.load(Ordering::SeqCst), server.pulses.load(Ordering::SeqCst));
            let mut last = count();
            wait_until("only looks are left", || {
                let (calls, pulses) = count();
                let quiet = pulses >= last.1 + 5 && calls - last.0 == pulses - last.1;
                if pulses >= last.1 + 5 {
                    last = (calls, pulses);
                }
                quiet
            })
            .await;
            let (calls, pulses) = count();
            wait_until("ten looks", || count().1 >= pulses + 10).await;
            let (more, looks) = (count().0 - calls, count().1 - pulses);
            assert!(more <= looks + 4, "{more} calls in {looks} looks at {wanted} jobs");
        }
        std::fs::write(&go, "").expect("go");
        for n in 0..running {
            assert_eq!(ear.ended(key(n + 1)).await, Outcome::Exited(0));
        }
    });
}
