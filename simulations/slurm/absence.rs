//! Ten minutes without Slurm's controller or slurmrestd, by the peer's clock, and answers that come after 45 s: what
//! runs stays, nothing starts twice, the report says why.

use std::fs;

use starling::backends::conformance::{Ear, key, now, script, wait_until};
use starling::backends::slurm::SlurmConfig;
use starling::base::Span;
use starling::core::BackendEvent;
use starling::model::{JobSpec, Outcome};

use super::backend::{Desk, block_on};
use super::faults::Proxy;
use super::ground::Ground;
use super::sandbox::Restd;
use super::speed::Other;

const ALL: [&str; 5] = ["sbatch", "squeue", "scontrol", "sinfo", "scancel"];

/// Writes a line when it starts, and ends when a file is there.
pub fn noted(folder: &std::path::Path) -> JobSpec {
    let at = |name: &str| folder.join(name).display().to_string();
    script(&format!(
        "echo $STARLING_JOB_ID >> {}; while [ ! -f {} ]; do sleep 0.05; done; exit 3",
        at("starts"),
        at("go")
    ))
}

pub fn starts(folder: &std::path::Path) -> usize {
    fs::read_to_string(folder.join("starts")).unwrap_or_default().lines().count()
}

/// The next report that says why nothing is taken; nothing else may be said.
pub async fn closed(ear: &mut Ear) -> String {
    loop {
        match ear.next().await {
            BackendEvent::Cluster(state) => {
                if let Some(why) = state.closed {
                    return why;
                }
            }
            BackendEvent::Nodes(_) | BackendEvent::Where { .. } => {}
            other => panic!("nothing is concluded, and here is {other:?}"),
        }
    }
}

/// One runs, the way to Slurm is gone, another is asked for, ten minutes pass, the way is back.
async fn ten_minutes(desk: &Desk, folder: &std::path::Path, away: impl FnOnce(), back: impl AsyncFnOnce()) {
    let (mut ear, _) = Ear::adopt(&*desk.backend).await;
    desk.go(key(1), noted(folder)).await;
    ear.started(key(1)).await;
    away();
    desk.go(key(2), noted(folder)).await;
    let (begun, fast) = (now(), Other::rate(11));
    let why = closed(&mut ear).await;
    assert!(why.starts_with("unknown: Slurm does not answer"), "{why}");
    wait_until("ten minutes are over", || now().since(begun) > Span::secs(600)).await;
    for n in [1, 2] {
        assert!(!desk.backend.attempt_dir(key(n)).join("ended").exists(), "{n} was given up");
    }
    drop(fast);
    back().await;
    ear.started(key(2)).await;
    fs::write(folder.join("go"), "").expect("go");
    for n in [1, 2] {
        assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3));
    }
    assert_eq!(starts(folder), 2, "each once");
}

pub fn ten_minutes_without_a_controller_end_nothing_and_start_nothing_twice(ground: &mut Ground) {
    let folder = ground.folder("minutes");
    let (conf, proxy) = (ground.a.conf(), Proxy::new(folder.join("bin")));
    block_on(async {
        let change = |c: &mut SlurmConfig| c.bin = Some(proxy.path().to_owned());
        let desk = Desk::new(folder.join("shared"), &conf, change).await;
        ten_minutes(&desk, &folder, || proxy.set(&ALL, "fail"), async || proxy.set(&ALL, "pass")).await;
    });
}

pub fn ten_minutes_without_slurmrestd_end_nothing_and_start_nothing_twice(ground: &mut Ground) {
    let (conf, folder) = (ground.a.conf(), ground.folder("restless"));
    let socket = folder.join("rest.sock");
    let Some(restd) = Restd::start(&ground.a, socket.clone()) else {
        ground.not_tried("slurmrestd is not installed");
        return;
    };
    let rest = restd.address();
    block_on(async {
        let change = |c: &mut SlurmConfig| (c.rest, c.bin) = (Some(rest), Some("/nonexistent".into()));
        let desk = Desk::new(folder.join("shared"), &conf, change).await;
        let mut again = None;
        let back = async || again = Restd::start(&ground.a, socket);
        ten_minutes(&desk, &folder, || drop(restd), back).await;
        drop(again);
    });
}

pub fn answers_after_45_seconds_end_nothing(ground: &mut Ground) {
    let folder = ground.folder("late");
    let (conf, proxy) = (ground.a.conf(), Proxy::new(folder.join("bin")));
    block_on(async {
        let change = |c: &mut SlurmConfig| c.bin = Some(proxy.path().to_owned());
        let desk = Desk::new(folder.join("shared"), &conf, change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), noted(&folder)).await;
        ear.started(key(1)).await;
        proxy.set(&ALL, "slow 45");
        desk.go(key(2), noted(&folder)).await;
        let why = closed(&mut ear).await;
        assert!(why.starts_with("unknown: Slurm does not answer") && why.contains("no answer in"), "{why}");
        proxy.set(&ALL, "pass");
        ear.started(key(2)).await;
        fs::write(folder.join("go"), "").expect("go");
        for n in [1, 2] {
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3));
        }
        assert_eq!(starts(&folder), 2, "each once");
    });
}
