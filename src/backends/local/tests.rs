//! The local backend with real guards and real programs. A test target of its own, since guards need the binary.
#![allow(missing_docs, reason = "a test target")]

#[path = "tests/limits.rs"]
mod limits;
#[path = "tests/machine.rs"]
mod machine;
#[path = "tests/warned.rs"]
mod warned;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, Subject, key, now, output, run, script, start, stop};
use starling::backends::conformance::{wait_for_output, wait_until};
use starling::backends::local::processes;
use starling::base::{Bytes, ContactId, MilliCpu, Span};
use starling::core::BackendCommand;
use starling::core::api::{NodeShare, StopReason};
use starling::model::spec::CheckpointSpec;
use starling::model::{NodeCapacity, Outcome};

use machine::{Machine, STARLING, with_text};

#[tokio::test]
async fn it_keeps_the_contract() {
    conformance::lifecycle(&mut Machine::new()).await;
    conformance::adoption(&mut Machine::new()).await;
}

/// A contact is renewed from the first moment, also before what an earlier run left is adopted, and while it is.
#[tokio::test]
async fn a_renewal_before_the_adoption_stays_and_old_ones_go() {
    let machine = Machine::new();
    let contacts = machine.path("state/contacts");
    let old = contacts.join("old-1.lease");
    std::fs::write(&old, "{}").expect("written");
    machine.backend.renewed(ContactId([7; 20]), 1, now()).await;
    let (adopting, renewing) = (machine.backend.clone(), machine.backend.clone());
    let renews = tokio::spawn(async move {
        for n in 2..200 {
            renewing.renewed(ContactId([7; 20]), n, now()).await;
        }
    });
    let (events, _heard) = tokio::sync::mpsc::channel(8);
    adopting.adopt(events).await.expect("adopts");
    renews.await.expect("renews");
    assert!(!old.exists(), "nobody follows it");
    let leases = std::fs::read_dir(&contacts).expect("there").flatten();
    let leases = leases.filter(|e| e.path().extension().is_some_and(|e| e == "lease")).count();
    assert_eq!(leases, 199, "each of this run is there");
    machine.backend.shutdown().await;
}

#[tokio::test]
async fn it_runs_programs() {
    conformance::programs(&mut Machine::new()).await;
}

#[tokio::test]
async fn starting_often_is_starting_once() {
    let mut machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let job = script("echo $STARLING_JOB_ID >> ../../../../starts; while [ ! -f code ]; do sleep 0.02; done");
    for n in 1..=8 {
        let command = start(key(n), job.clone());
        tokio::join!(machine.go(command.clone()), machine.go(command.clone()), machine.go(command.clone()));
        // Guards of peers that died in between come too.
        let dir = machine.attempt(key(n));
        let mut guards: Vec<_> = (0..4)
            .map(|_| {
                Command::new(STARLING)
                    .arg("guard")
                    .arg(dir.path())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("starts")
            })
            .collect();
        ear.started(key(n)).await;
        machine.go(command).await;
        machine.finish(key(n), 0).await;
        assert_eq!(ear.ended(key(n)).await, Outcome::Exited(0));
        for guard in &mut guards {
            guard.wait().expect("ends");
        }
        let mut late = Command::new(STARLING).arg("guard").arg(dir.path()).spawn().expect("starts");
        late.wait().expect("ends");
    }
    let starts = std::fs::read_to_string(machine.path("starts")).expect("was written");
    let mut lines: Vec<_> = starts.lines().collect();
    assert_eq!(lines.len(), 8);
    lines.dedup();
    assert_eq!(lines.len(), 8);
}

#[tokio::test]
async fn a_folder_whose_guard_never_came_is_not_begun_by_a_late_one() {
    let mut machine = Machine::with(|c| c.self_exe = "/bin/true".into());
    let (_ear, _) = Ear::adopt(&*machine.backend).await;
    machine.go(start(key(1), script("touch ../../../../ran"))).await;
    machine.stop_peer().await;
    machine.config.self_exe = STARLING.into();
    machine.start_peer().await;
    let (mut ear, running) = Ear::adopt(&*machine.backend).await;
    // Either the dead guard was noticed before the stop, or the folder was taken away.
    assert!(running.is_empty());
    let mut late = Command::new(STARLING)
        .arg("guard")
        .arg(machine.attempt(key(1)).path())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    late.wait().expect("ends");
    assert!(!machine.path("ran").exists());
    machine.go(start(key(2), script("exit 5"))).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Exited(5));
}

#[tokio::test]
async fn an_attempt_whose_peer_is_gone_stops_before_its_grace_is_over() {
    let mut machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script(&format!("trap '' TERM; {}", machine.heartbeat()));
    job.on_lost_contact.grace = Some(Span::millis(1_500));
    let command = start(key(1), job);
    let deadline = command.renewed_at + Span::millis(1_500);
    machine.go(command).await;
    ear.started(key(1)).await;
    machine.stop_peer().await;
    let dir = machine.attempt(key(1));
    wait_until("the end", || dir.ended().expect("reads").is_some()).await;
    // The end is written, with its fsyncs, after the last process is dead: the job's own beats are what counts.
    let last = machine.last_beat().expect("it ran") * 1e6;
    let deadline = deadline.0 as f64;
    assert!(last < deadline, "it may be believed dead at {deadline} and lived at {last}");
    assert!(last > deadline - 1_000_000.0, "it was stopped long before it had to be");
    machine.start_peer().await;
    let (mut ear, running) = Ear::adopt(&*machine.backend).await;
    assert!(running.is_empty());
    assert_eq!(ear.ended(key(1)).await, Outcome::Stopped("lost contact".into()));
}

#[tokio::test]
async fn only_renewals_of_its_binding_keep_an_attempt() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let grace = Span::secs(3);
    let contact = |n: u8| ContactId([n; 20]);
    // Attempt, incarnation that is renewed, incarnation that it is bound to in the end, whether it lives.
    let cases = [(1, 1, 1, true), (2, 2, 1, false), (3, 2, 2, true), (4, 1, 2, false)];
    let mut first_end = now();
    for (n, _, bound, _) in cases {
        let mut job = script("while :; do sleep 0.1; done");
        job.on_lost_contact.grace = Some(grace);
        let mut command = start(key(n), job);
        command.binding = (contact(n), 1);
        first_end = command.renewed_at + grace;
        machine.go(command).await;
        ear.started(key(n)).await;
        if bound != 1 {
            let to = (contact(n), bound);
            machine.backend.command(BackendCommand::Rebind { key: key(n), to, and: None }).await;
        }
    }
    while now() < first_end + grace {
        for (n, renewed, ..) in cases {
            machine.backend.renewed(contact(n), renewed, now()).await;
        }
        tokio::time::sleep(Span::millis(20).to_std()).await;
    }
    for (n, .., lives) in cases {
        assert_eq!(machine.attempt(key(n)).ended().expect("reads").is_none(), lives, "attempt {n}");
        machine.backend.command(stop(key(n), Span::ZERO, StopReason::Cancel)).await;
        let expected = if lives { Outcome::Cancelled } else { Outcome::Stopped("lost contact".into()) };
        assert_eq!(ear.ended(key(n)).await, expected);
    }
}

#[tokio::test]
async fn an_attempt_without_grace_lives_without_contact_and_an_expired_one_never_begins() {
    let mut machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut forever = machine.waiting_spec();
    forever.on_lost_contact.grace = None;
    let mut command = start(key(1), forever);
    command.renewed_at = starling::base::Instant(0);
    machine.go(command).await;
    ear.started(key(1)).await;
    machine.finish(key(1), 9).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(9));
    let mut expired = start(key(2), script("touch ../../../../ran"));
    expired.spec.on_lost_contact.grace = Some(Span::secs(5));
    expired.renewed_at = now() - Span::secs(5);
    machine.go(expired).await;
    let outcome = ear.ended(key(2)).await;
    assert!(matches!(outcome, Outcome::NotStarted(_)), "{outcome:?}");
    assert!(!machine.path("ran").exists());
}

#[tokio::test]
async fn daemons_do_not_outlive_their_attempt() {
    daemons(true).await;
    daemons(false).await;
}

async fn daemons(cgroups: bool) {
    let machine = Machine::with(|c| c.cgroups = cgroups);
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mark = format!("86400.{}1", std::process::id());
    // Double forks, sessions and groups of their own, ignored signals, a cleaned environment.
    let fork = format!(
        "(setsid sh -c 'trap \"\" TERM HUP; sleep {mark} & wait' &) ; (setsid env -i /bin/sleep {mark} &); \
         (sleep {mark} </dev/null >/dev/null 2>&1 &); sleep 0.1; echo forked"
    );
    assert_eq!(run(&*machine.backend, &mut ear, key(1), script(&fork)).await, Outcome::Exited(0));
    assert_eq!(with_text(&mark), 0, "after a normal end");
    machine.go(start(key(2), script(&format!("{fork}; sleep {mark}")))).await;
    wait_for_output(&*machine.backend, key(2), "forked").await;
    wait_until("all its processes", || with_text(&mark) >= 4).await;
    machine.backend.command(stop(key(2), Span::millis(200), StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
    assert_eq!(with_text(&mark), 0, "after a stop");
}

#[tokio::test]
async fn a_killed_guard_takes_its_attempt_along() {
    for (peer_is_there, cgroups) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut machine = Machine::with(|c| c.cgroups = cgroups);
        let (mut ear, _) = Ear::adopt(&*machine.backend).await;
        let mark = format!("86400.{}2", std::process::id());
        let text = format!("(setsid sleep {mark} &); sleep 0.1; echo forked; sleep {mark}");
        machine.go(start(key(1), script(&text))).await;
        ear.started(key(1)).await;
        wait_for_output(&*machine.backend, key(1), "forked").await;
        // The shell says "forked" before it has begun its own last sleep.
        wait_until("all three processes", || with_text(&mark) == 3).await;
        let guarded = machine.attempt(key(1)).guarded().expect("reads").expect("was written");
        assert!(cgroups || guarded.cgroup.is_none());
        if !peer_is_there {
            machine.stop_peer().await;
        }
        processes::signal(guarded.guard, rustix::process::Signal::KILL);
        if !peer_is_there {
            machine.start_peer().await;
            ear = Ear::adopt(&*machine.backend).await.0;
        }
        assert_eq!(ear.ended(key(1)).await, Outcome::Stopped("its guard was killed".into()));
        assert_eq!(with_text(&mark), 0);
    }
}

/// While a binding moves, nobody knows yet which of the two the record names.
#[tokio::test]
async fn an_attempt_between_two_contacts_needs_both() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let grace = Span::secs(2);
    let (old, new) = (|n: u8| ContactId([n; 20]), |n: u8| ContactId([n + 100; 20]));
    // Attempt, whether the old and the new contact are renewed, whether it lives.
    let cases = [(1, true, true, true), (2, true, false, false), (3, false, true, false)];
    let mut first_end = now();
    for (n, ..) in cases {
        let mut job = script("while :; do sleep 0.1; done");
        job.on_lost_contact.grace = Some(grace);
        let mut command = start(key(n), job);
        command.binding = (old(n), 1);
        first_end = command.renewed_at + grace;
        machine.go(command).await;
        ear.started(key(n)).await;
        let (to, and) = ((new(n), 1), Some((old(n), 1)));
        machine.backend.command(BackendCommand::Rebind { key: key(n), to, and }).await;
    }
    while now() < first_end + grace {
        for (n, olds, news, _) in cases {
            if olds {
                machine.backend.renewed(old(n), 1, now()).await;
            }
            if news {
                machine.backend.renewed(new(n), 1, now()).await;
            }
        }
        tokio::time::sleep(Span::millis(20).to_std()).await;
    }
    let ends = |n| machine.attempt(key(n)).ended().expect("reads");
    for (n, .., lives) in cases {
        assert_eq!(ends(n).is_none(), lives, "attempt {n}");
    }
}

/// Found as a guard that went on for ever, asking for a folder that a test had removed.
#[tokio::test]
async fn a_guard_whose_folder_was_taken_away_ends() {
    let mut machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let dir = machine.attempt(key(1));
    let text = format!("while [ -d '{}' ]; do sleep 0.05; done", dir.path().display());
    machine.go(start(key(1), script(&text))).await;
    ear.started(key(1)).await;
    let guarded = dir.guarded().expect("reads").expect("was written");
    machine.stop_peer().await;
    std::fs::remove_dir_all(dir.path()).expect("the folder is removed");
    let lives = || processes::read(guarded.guard.pid).is_some_and(|p| p.id == guarded.guard && !p.zombie);
    wait_until("the guard's end", || !lives()).await;
}

#[tokio::test]
async fn after_a_restart_of_the_machine_nothing_is_killed_and_all_has_ended() {
    let mut machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let job = machine.waiting_spec();
    machine.go(start(key(1), job)).await;
    ear.started(key(1)).await;
    machine.stop_peer().await;
    let dir = machine.attempt(key(1));
    let guarded = dir.guarded().expect("reads").expect("was written");
    processes::signal(guarded.guard, rustix::process::Signal::KILL);
    wait_until("the guard's end", || !dir.locked().expect("reads")).await;
    // Another boot: the process ids in the folder are other processes' now.
    let mut spec = dir.spec().expect("reads");
    spec.boot = "another".into();
    starling::backends::local::files::write_json(&dir.path().join("spec.json"), &spec).expect("writes");
    machine.start_peer().await;
    let (mut ear, running) = Ear::adopt(&*machine.backend).await;
    assert!(running.is_empty());
    assert_eq!(ear.ended(key(1)).await, Outcome::Stopped("the machine was restarted".into()));
    // A real restart leaves no cgroup.
    if let Some(path) = guarded.cgroup {
        wait_until("an empty cgroup", || std::fs::remove_dir(&path).is_ok()).await;
    }
}

#[tokio::test]
async fn a_job_sees_its_environment_and_not_the_peers() {
    let nodes = vec![NodeCapacity {
        name: "node".into(),
        count: 2,
        gpu_model: Some("H100".into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(8_000),
        memory: Bytes::gib(64),
        declared: false,
    }];
    let machine = Machine::with(|c| c.declared = nodes);
    let discovery = machine.backend.discover().await.expect("discovers");
    assert!(discovery.nodes.iter().all(|n| n.declared && n.gpus == 8));
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script("env > env-$RANK; pwd");
    job.nodes = 2;
    job.env =
        [("MINE".to_owned(), "a b\nc".to_owned()), ("STARLING_EPOCH".to_owned(), "9".to_owned())].into();
    job.checkpoint = Some(CheckpointSpec { path: "/ckpt/x".into(), every: Some(Span::millis(90_500)) });
    job.data = vec!["s3://a".into(), "s3://b".into()];
    let mut command = start(key(1), job);
    command.shares = vec![NodeShare { node: 0, gpus: vec![1, 4] }, NodeShare { node: 1, gpus: vec![] }];
    machine.go(command).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
    let dir = machine.attempt(key(1));
    let env = |rank: u32| -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(dir.run().join(format!("env-{rank}"))).expect("was written");
        text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    let (first, second) = (env(0), env(1));
    for (name, value) in [
        ("CHECKPOINT_PATH", "/ckpt/x"),
        ("STARLING_CHECKPOINT_EVERY", "91"),
        ("STARLING_EPOCH", "1"),
        ("STARLING_CLUSTER", "here"),
        ("STARLING_JOB_NAME", "conformance"),
        ("STARLING_GPUS_VIRTUAL", "1"),
        ("CUDA_VISIBLE_DEVICES", "1,4"),
        ("WORLD_SIZE", "2"),
        ("RANK", "0"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MINE", "a b"),
        ("STARLING_DATA", "s3://a"),
    ] {
        assert_eq!(first.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(second.get("RANK").map(String::as_str), Some("1"));
    assert_eq!(second.get("CUDA_VISIBLE_DEVICES").map(String::as_str), Some(""));
    assert_eq!(second.get("MASTER_PORT"), first.get("MASTER_PORT"));
    assert_eq!(first["STARLING_JOB_ID"], key(1).job.to_string());
    let trace: Vec<_> = first["TRACEPARENT"].split('-').map(str::len).collect();
    assert_eq!(trace, [2, 32, 16, 2]);
    let alien: Vec<_> =
        first.keys().filter(|k| k.starts_with("CARGO") || k.starts_with("STARLING_GUARD")).collect();
    assert!(alien.is_empty(), "{alien:?}");
    assert_eq!(output(&*machine.backend, key(1)).lines().next(), dir.run().to_str());
}

#[tokio::test]
async fn the_first_rank_that_fails_decides_and_the_others_are_stopped() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script(
        "if [ $RANK = 1 ]; then exit 42; fi; trap 'echo told; exit 7' TERM; while :; do sleep 0.02; done",
    );
    job.nodes = 3;
    assert_eq!(run(&*machine.backend, &mut ear, key(1), job).await, Outcome::Exited(42));
    let logs = machine.backend.logs(key(1)).expect("known");
    assert!(logs.iter().filter(|l| l.to_string_lossy().ends_with(".out")).count() <= 3);
    let mut all_well = script("exit 0");
    all_well.nodes = 4;
    assert_eq!(run(&*machine.backend, &mut ear, key(2), all_well).await, Outcome::Exited(0));
}

#[tokio::test]
async fn a_hundred_attempts_at_once() {
    let mut machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let job = machine.waiting_spec();
    for n in 0..100 {
        machine.go(start(key(n), job.clone())).await;
    }
    machine.restart().await;
    drop(ear);
    let (again, running) = Ear::adopt(&*machine.backend).await;
    ear = again;
    // Whose guard had not come yet is not begun; the core asks for it again, as for all that it knows no end of.
    for n in (0..100).filter(|n| !running.contains(&key(*n))) {
        machine.go(start(key(n), job.clone())).await;
    }
    for n in 0..100 {
        machine.finish(key(n), i32::from(n)).await;
    }
    for n in 0..100 {
        assert_eq!(ear.ended(key(n)).await, Outcome::Exited(i32::from(n)));
    }
}
