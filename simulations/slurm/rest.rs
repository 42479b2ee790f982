//! The way to slurmrestd: bad networks, tired servers, answers too late, clocks that differ, a JWT over TCP. Starts are
//! counted from what the jobs wrote.

use std::fs;
use std::path::Path;
use std::time::Duration;

use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, key, script, wait_until};
use starling::backends::slurm::SlurmConfig;
use starling::base::Span;
use starling::core::BackendEvent;
use starling::model::{JobSpec, Outcome};

use super::absence::{closed, noted, starts};
use super::backend::{Desk, block_on};
use super::ground::Ground;
use super::rest_proxy::{Fault, Proxy};
use super::sandbox::{Cluster, Restd, jwt_installed};
use super::speed::Other;

/// A peer that asks slurmrestd through the proxy, and has none of the commands.
async fn through(ground: &Ground, folder: &Path) -> Option<(Restd, std::sync::Arc<Proxy>, Desk)> {
    let Some(restd) = Restd::start(&ground.a, folder.join("rest.sock")) else {
        ground.not_tried("slurmrestd is not installed");
        return None;
    };
    let proxy = Proxy::start(folder, restd.socket.clone());
    let rest = proxy.address();
    let change = |c: &mut SlurmConfig| (c.rest, c.bin) = (Some(rest), Some("/nonexistent".into()));
    let desk = Desk::new(folder.join("shared"), &ground.a.conf(), change).await;
    Some((restd, proxy, desk))
}

pub fn a_bad_way_to_slurmrestd_loses_nothing_and_starts_nothing_twice(ground: &mut Ground) {
    let folder = ground.folder("badrest");
    block_on(async {
        let Some((_restd, proxy, desk)) = through(ground, &folder).await else { return };
        // What a start asks is no list of jobs.
        assert_eq!(proxy.lists(), 0);
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        // More than two lists in a row: what is concluded of them has been. Nothing is concluded of what is no answer, and who
        // gets none asks ever more seldom.
        let asked = |fault: Fault| match fault {
            Fault::EmptyLists | Fault::Skew(_) => 3,
            _ => 1,
        };
        let faults = [
            Fault::Reset,
            Fault::Truncate,
            Fault::Error,
            Fault::EmptyLists,
            Fault::Skew(600),
            Fault::Skew(-600),
        ];
        // Each begins under a fault, and lives through all that follow.
        for (n, fault) in (1..).zip(faults) {
            proxy.set(fault);
            let from = proxy.lists();
            desk.go(key(n), noted(&folder)).await;
            wait_until("the peer has asked for lists under it", || proxy.lists() > from + asked(fault)).await;
            for before in 1..=n {
                let ended = desk.backend.attempt_dir(key(before)).join("ended");
                assert!(!ended.exists(), "{fault:?}: {before} was given up");
            }
            proxy.set(Fault::None);
            ear.started(key(n)).await;
        }
        // All of them, by turns, while six run and after they were all seen.
        for fault in faults {
            proxy.set(fault);
            let from = proxy.lists();
            wait_until("the peer has asked for lists under it again", || proxy.lists() > from + asked(fault))
                .await;
        }
        proxy.set(Fault::None);
        fs::write(folder.join("go"), "").expect("go");
        for n in 1..=6 {
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3), "{n}");
        }
        assert_eq!(starts(&folder), 6, "each once");
    });
}

pub fn answers_of_slurmrestd_after_45_seconds_start_nothing_twice(ground: &mut Ground) {
    let folder = ground.folder("laterest");
    block_on(async {
        let Some((_restd, proxy, desk)) = through(ground, &folder).await else { return };
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), noted(&folder)).await;
        ear.started(key(1)).await;
        proxy.set(Fault::Late(Duration::from_secs(45)));
        desk.go(key(2), noted(&folder)).await;
        // Its guard may say that it runs before the report says that nobody answers.
        let closed = |e: &BackendEvent| match e {
            BackendEvent::Cluster(state) => state.closed.clone(),
            _ => None,
        };
        let why = ear.first(closed).await;
        assert!(
            why.starts_with("unknown: Slurm does not answer") && why.contains("no answer in time"),
            "{why}"
        );
        // The batch job was made at once, and the peer does not know: its guard begins all the same.
        wait_until("the second one begins", || starts(&folder) == 2).await;
        proxy.set(Fault::None);
        ear.started(key(2)).await;
        fs::write(folder.join("go"), "").expect("go");
        for n in [1, 2] {
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3));
        }
        assert_eq!(starts(&folder), 2, "each once");
    });
}

/// The peer's time of day is ten minutes before Slurm's and its nodes', then after it.
pub fn clocks_that_are_ten_minutes_apart_end_nothing(ground: &mut Ground) {
    let folder = ground.folder("apart");
    let conf = ground.a.conf();
    block_on(async {
        for (n, ms) in [(1, -600_000), (2, 600_000)] {
            let own = folder.join(format!("{n}"));
            fs::create_dir_all(&own).expect("a folder");
            let mut desk = Desk::new(own.join("shared"), &conf, |_| {}).await;
            let _off = Other::wall(ms);
            let (mut ear, _) = Ear::adopt(&*desk.backend).await;
            desk.go(key(n), renewed(noted(&own))).await;
            ear.started(key(n)).await;
            // Adopted by another run of the peer, and renewed past its grace.
            drop(ear);
            conformance::Subject::restart(&mut desk).await;
            let (mut ear, running) = Ear::adopt(&*desk.backend).await;
            assert_eq!(running, [key(n)]);
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_secs(8) {
                desk.backend.renewed(conformance::CONTACT, 1, conformance::now()).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            assert!(!desk.backend.attempt_dir(key(n)).join("ended").exists(), "it lives");
            fs::write(own.join("go"), "").expect("go");
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(3));
            assert_eq!(starts(&own), 1);
        }
    });
}

fn renewed(mut spec: JobSpec) -> JobSpec {
    spec.on_lost_contact.grace = Some(Span::secs(6));
    spec
}

/// A cluster with a key that is made here; slurmrestd takes nobody without a token, and the peer has none of the
/// commands.
pub fn through_slurmrestd_with_a_token_over_tcp(ground: &mut Ground) {
    if let Err(why) = jwt_installed() {
        ground.not_tried(&why);
        return;
    }
    let folder = ground.folder("jwt");
    let secret = folder.join("jwt.key");
    fs::write(&secret, (0..64).map(|_| rand::random::<u8>()).collect::<Vec<u8>>()).expect("a key");
    crate::sandbox::private(&secret);
    let more = format!("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={}", secret.display());
    let cluster = Cluster::start(&folder, &ground.munge, "gamma", 1, &more);
    let restd = Restd::tcp(&cluster).expect("slurmrestd is installed");
    let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
    let fresh = || {
        let token = cluster.text("scontrol", &["token", "lifespan=600", &format!("username={user}")]);
        assert!(token.starts_with("SLURM_JWT="), "{token}");
        token
    };
    let token = folder.join("token");
    fs::write(&token, "SLURM_JWT=nobody.s.token").expect("writes");
    crate::sandbox::private(&token);
    block_on(async {
        let rest = restd.address();
        let change = |c: &mut SlurmConfig| {
            (c.rest, c.token) = (Some(rest), Some(token.clone()));
            c.bin = Some("/nonexistent".into());
        };
        let mut desk = Desk::new(folder.join("shared"), &cluster.conf(), change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let why = closed(&mut ear).await;
        assert!(why.starts_with("unknown: Slurm does not answer (slurmrestd: "), "{why}");
        // It is read anew: a good one opens the cluster, without a restart.
        fs::write(&token, fresh()).expect("writes");
        let open = |e: &BackendEvent| match e {
            BackendEvent::Cluster(state) => state.closed.is_none().then_some(()),
            _ => None,
        };
        ear.first(open).await;
        desk.go(key(9), script("exit 5")).await;
        assert_eq!(ear.ended(key(9)).await, Outcome::Exited(5));
        drop(ear);
        desk.backend.shutdown().await;
        let rest = restd.address();
        let change = |c: &mut SlurmConfig| {
            (c.rest, c.token) = (Some(rest), Some(token.clone()));
            c.bin = Some("/nonexistent".into());
        };
        desk = Desk::new(folder.join("again"), &cluster.conf(), change).await;
        conformance::lifecycle(&mut desk).await;
    });
}
