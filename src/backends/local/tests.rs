//! The local backend with real guards and real programs. A test target of its own, since guards need the binary.
#![allow(missing_docs, reason = "a test target")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use starling::backends::conformance::{self, CONTACT, Ear, Subject, key, now, output, run, script, start, stop};
use starling::backends::conformance::{wait_for_output, wait_until};
use starling::backends::local::files::AttemptDir;
use starling::backends::local::{LocalBackend, LocalConfig, LogLimits, processes};
use starling::backends::Backend;
use starling::base::{Bytes, MilliCpu, PeerName, Span};
use starling::core::BackendCommand;
use starling::core::api::{AttemptKey, NodeShare, StopReason};
use starling::model::spec::{CheckpointSpec, Run};
use starling::model::{JobSpec, NodeCapacity, Outcome};

const STARLING: &str = env!("CARGO_BIN_EXE_starling");

/// A machine of its own in a temp folder.
struct Machine {
    dir: tempfile::TempDir,
    config: LocalConfig,
    backend: Arc<LocalBackend>,
}

impl Machine {
    fn new() -> Self {
        Self::with(|_| {})
    }
    fn with(change: impl FnOnce(&mut LocalConfig)) -> Self {
        let dir = tempfile::tempdir().expect("temp folder");
        let mut config =
            LocalConfig::new(dir.path().join("state"), STARLING.into(), PeerName::new("here").expect("a name"));
        config.notice = Span::millis(300);
        change(&mut config);
        let backend = Arc::new(LocalBackend::new(config.clone()).expect("a backend"));
        Self { dir, config, backend }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn attempt(&self, key: AttemptKey) -> AttemptDir {
        AttemptDir::new(self.backend.attempt_dir(key))
    }
    /// The peer goes, its guards stay.
    async fn stop_peer(&mut self) {
        self.backend.shutdown().await;
    }
    async fn start_peer(&mut self) {
        self.backend = Arc::new(LocalBackend::new(self.config.clone()).expect("a backend"));
    }
    async fn go(&self, command: starling::core::api::StartCommand) {
        self.backend.command(BackendCommand::Start(Box::new(command))).await;
    }
    /// A shell text that notes the boot clock in a file, for ever.
    fn heartbeat(&self) -> String {
        let beats = self.path("beats");
        format!("while :; do cut -d' ' -f1 /proc/uptime >> {}; sleep 0.02; done", beats.display())
    }
    fn last_beat(&self) -> Option<f64> {
        std::fs::read_to_string(self.path("beats")).ok()?.lines().last()?.parse().ok()
    }
}

#[async_trait]
impl Subject for Machine {
    fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }
    async fn restart(&mut self) {
        self.stop_peer().await;
        self.start_peer().await;
    }
    fn waiting_spec(&self) -> JobSpec {
        script("while [ ! -f code ]; do sleep 0.02; done; exit $(cat code)")
    }
    async fn finish(&mut self, key: AttemptKey, code: i32) {
        let run = self.attempt(key).run();
        std::fs::write(run.join("code.tmp"), code.to_string()).expect("writes");
        std::fs::rename(run.join("code.tmp"), run.join("code")).expect("renames");
    }
}

/// Processes whose command line holds this text.
fn with_text(text: &str) -> usize {
    processes::all()
        .iter()
        .filter(|p| !p.zombie)
        .filter(|p| std::fs::read(format!("/proc/{}/cmdline", p.id.pid)).is_ok_and(|c| contains(&c, text)))
        .count()
}
fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

#[tokio::test]
async fn it_keeps_the_contract() {
    conformance::lifecycle(&mut Machine::new()).await;
    conformance::adoption(&mut Machine::new()).await;
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
            .map(|_| Command::new(STARLING).arg("guard").arg(dir.path()).stderr(Stdio::null()).spawn().expect("starts"))
            .collect();
        ear.started(key(n)).await;
        machine.go(command).await;
        machine.finish(key(n), 0).await;
        assert_eq!(ear.ended(key(n)).await, Outcome::Exited(0));
        guards.iter_mut().for_each(|g| drop(g.wait().expect("ends")));
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
    let mut late = Command::new(STARLING).arg("guard").arg(machine.attempt(key(1)).path()).stderr(Stdio::null()).spawn().expect("starts");
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
    let ended_at = now();
    assert!(ended_at < deadline, "it may be believed dead at {deadline:?} and lived until {ended_at:?}");
    let last = machine.last_beat().expect("it ran");
    assert!(last * 1e6 > deadline.0 as f64 - 1_000_000.0, "it was stopped long before it had to be");
    machine.start_peer().await;
    let (mut ear, running) = Ear::adopt(&*machine.backend).await;
    assert!(running.is_empty());
    assert_eq!(ear.ended(key(1)).await, Outcome::Stopped("lost contact".into()));
}

#[tokio::test]
async fn only_renewals_of_its_binding_keep_an_attempt() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let grace = Span::millis(800);
    for (n, renewed, rebound, lives) in [(1, 1, 1, true), (2, 2, 1, false), (3, 2, 2, true), (4, 1, 2, false)] {
        let mut job = script(&machine.heartbeat());
        job.on_lost_contact.grace = Some(grace);
        let command = start(key(n), job);
        let first_end = command.renewed_at + grace;
        machine.go(command).await;
        ear.started(key(n)).await;
        if rebound != 1 {
            machine.backend.command(BackendCommand::Rebind { key: key(n), to: (CONTACT, rebound) }).await;
        }
        // Files of an earlier turn would do the work of these.
        let contacts = machine.config.state_dir.join("contacts");
        std::fs::read_dir(&contacts).expect("lists").flatten().for_each(|f| std::fs::remove_file(f.path()).expect("removes"));
        let dir = machine.attempt(key(n));
        while now() < first_end + grace && dir.ended().expect("reads").is_none() {
            machine.backend.renewed(CONTACT, renewed, now()).await;
            tokio::time::sleep(Span::millis(20).to_std()).await;
        }
        assert_eq!(dir.ended().expect("reads").is_none(), lives, "attempt {n}");
        if !lives {
            assert!(now() < first_end);
        }
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
    let machine = Machine::new();
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
    assert!(with_text(&mark) >= 4);
    machine.backend.command(stop(key(2), Span::millis(200), StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
    assert_eq!(with_text(&mark), 0, "after a stop");
}

#[tokio::test]
async fn a_killed_guard_takes_its_attempt_along() {
    for peer_is_there in [true, false] {
        let mut machine = Machine::new();
        let (mut ear, _) = Ear::adopt(&*machine.backend).await;
        let mark = format!("86400.{}2", std::process::id());
        let text = format!("(setsid sleep {mark} &); sleep 0.1; echo forked; sleep {mark}");
        machine.go(start(key(1), script(&text))).await;
        ear.started(key(1)).await;
        wait_for_output(&*machine.backend, key(1), "forked").await;
        assert_eq!(with_text(&mark), 3);
        let guarded = machine.attempt(key(1)).guarded().expect("reads").expect("was written");
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
    job.env = [("MINE".to_owned(), "a b\nc".to_owned()), ("STARLING_EPOCH".to_owned(), "9".to_owned())].into();
    job.checkpoint = Some(CheckpointSpec { path: "/ckpt/x".into(), every: None });
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
    let alien: Vec<_> = first.keys().filter(|k| k.starts_with("CARGO") || k.starts_with("STARLING_GUARD")).collect();
    assert!(alien.is_empty(), "{alien:?}");
    assert_eq!(output(&*machine.backend, key(1)).lines().next(), dir.run().to_str());
}

#[tokio::test]
async fn the_first_rank_that_fails_decides_and_the_others_are_stopped() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script("if [ $RANK = 1 ]; then exit 42; fi; trap 'echo told; exit 7' TERM; while :; do sleep 0.02; done");
    job.nodes = 3;
    assert_eq!(run(&*machine.backend, &mut ear, key(1), job).await, Outcome::Exited(42));
    let logs = machine.backend.logs(key(1)).expect("known");
    assert!(logs.iter().filter(|l| l.to_string_lossy().ends_with(".out")).count() <= 3);
    let mut all_well = script("exit 0");
    all_well.nodes = 4;
    assert_eq!(run(&*machine.backend, &mut ear, key(2), all_well).await, Outcome::Exited(0));
}

#[tokio::test]
async fn logs_are_bounded_and_keep_the_end() {
    let machine = Machine::with(|c| c.logs = LogLimits { file_bytes: Bytes(10_000), files: 3 });
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let text = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo oops >&2";
    assert_eq!(run(&*machine.backend, &mut ear, key(1), script(text)).await, Outcome::Exited(0));
    let logs = machine.backend.logs(key(1)).expect("known");
    let names: Vec<_> = logs.iter().map(|l| l.file_name().expect("named").to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["rank-0.out.2", "rank-0.out.1", "rank-0.out", "rank-0.err"]);
    assert!(logs.iter().all(|l| std::fs::metadata(l).expect("is there").len() <= 10_000));
    let kept = output(&*machine.backend, key(1));
    assert!(kept.len() > 20_000 && kept.ends_with("line 19998\nline 19999\n"));
    assert_eq!(machine.backend.logs(key(99)), None);
}

#[tokio::test]
async fn old_attempts_make_room() {
    let machine = Machine::with(|c| c.attempts_kept = 2);
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    for n in 1..=4 {
        assert_eq!(run(&*machine.backend, &mut ear, key(n), script("echo x")).await, Outcome::Exited(0));
        machine.backend.command(BackendCommand::Forget { key: key(n) }).await;
    }
    let kept: Vec<_> = (1..=4).filter(|n| machine.backend.logs(key(*n)).is_some()).collect();
    assert_eq!(kept, [3, 4]);
}

/// A stand-in for docker: runs what follows the image, and keeps a list of what is there.
fn fake_runtime(dir: &Path) -> PathBuf {
    let path = dir.join("docker");
    let text = r#"#!/bin/sh
list="$(dirname "$0")/containers"; mkdir -p "$list"
case $1 in
run) shift
  while [ $# -gt 0 ]; do case $1 in
    --rm) shift;; --name) name=$2; shift 2;; -w) cd "$2"; shift 2;; -*) shift 2;; *) break;; esac; done
  echo "$1" > "$list/$name"; shift
  setsid "$@" & echo $! > "$list/$name.pid"; trap "kill -TERM $!" TERM; wait $!; code=$?
  rm -f "$list/$name" "$list/$name.pid"; exit $code;;
rm) kill -9 "$(cat "$list/$3.pid")" 2>/dev/null; rm -f "$list/$3" "$list/$3.pid";;
ps) ls "$list" | grep -v pid; true;;
esac
"#;
    std::fs::write(&path, text).expect("writes");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("is allowed");
    path
}

#[tokio::test]
async fn images_run_through_the_container_runtime() {
    let tools = tempfile::tempdir().expect("temp folder");
    let machine = Machine::with(|c| c.container_runtime = Some(fake_runtime(tools.path())));
    let discovery = machine.backend.discover().await.expect("discovers");
    assert_eq!(discovery.container_runtime.as_deref(), Some("docker"));
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script("echo in $MINE; exit 6");
    job.image = Some("img:1".into());
    job.env = [("MINE".to_owned(), "container".to_owned())].into();
    assert_eq!(run(&*machine.backend, &mut ear, key(1), job).await, Outcome::Exited(6));
    assert_eq!(output(&*machine.backend, key(1)), "in container\n");

    let mark = format!("86400.{}3", std::process::id());
    let mut job = script(&format!("trap '' TERM; echo in; while :; do sleep {mark}; done"));
    job.image = Some("img:1".into());
    machine.go(start(key(2), job)).await;
    wait_for_output(&*machine.backend, key(2), "in").await;
    machine.backend.command(stop(key(2), Span::millis(200), StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
    assert_eq!(with_text(&mark), 0);
    assert_eq!(std::fs::read_dir(tools.path().join("containers")).expect("lists").count(), 0);
}

#[tokio::test]
async fn an_impossible_job_says_why() {
    let machine = Machine::with(|c| c.container_runtime = Some("/no/such/docker".into()));
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let not_started = |outcome: Outcome, word: &str| match outcome {
        Outcome::NotStarted(why) => assert!(why.contains(word), "{why}"),
        other => panic!("{other:?}"),
    };
    let mut lost = script("exit 0");
    lost.workdir = Some("/no/such/folder".into());
    not_started(run(&*machine.backend, &mut ear, key(1), lost).await, "/no/such/folder");
    let mut relative = script("exit 0");
    relative.workdir = Some("here".into());
    not_started(run(&*machine.backend, &mut ear, key(2), relative).await, "absolute");
    not_started(run(&*machine.backend, &mut ear, key(3), conformance::spec(Run::Image)).await, "image");
    not_started(run(&*machine.backend, &mut ear, key(4), conformance::spec(Run::Argv(vec![]))).await, "empty");
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
    assert!(running.len() >= 99, "{} of 100 were taken over", running.len());
    for n in 0..100 {
        machine.finish(key(n), i32::from(n)).await;
    }
    for n in 0..100 {
        assert_eq!(ear.ended(key(n)).await, Outcome::Exited(i32::from(n)));
    }
}
