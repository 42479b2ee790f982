//! Bounded logs, full disks, containers, and jobs that cannot be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, key, output, run, script, start, stop, wait_for_output};
use starling::backends::local::LogLimits;
use starling::base::{Bytes, Span};
use starling::core::BackendCommand;
use starling::core::api::StopReason;
use starling::model::Outcome;
use starling::model::spec::Run;

use super::machine::{Machine, with_text};

/// A file system of 256 KiB; none without the right to mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).expect("makes");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(&path).stderr(Stdio::null());
        mount.status().is_ok_and(|s| s.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What is left goes with the temp folder.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_drops_output_and_not_the_end() {
    let place = tempfile::tempdir().expect("temp folder");
    let Some(disk) = SmallDisk::mount(place.path().join("disk")) else {
        eprintln!("not tried: no right to mount a small disk");
        return;
    };
    let machine = Machine::with(|c| c.state_dir = disk.0.join("state"));
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let job = script("head -c 1000000 /dev/zero; exit 3");
    assert_eq!(run(&*machine.backend, &mut ear, key(1), job).await, Outcome::Exited(3));
    let ended = machine.attempt(key(1)).ended().expect("reads").expect("was written");
    assert!(ended.output_lost > 700_000, "{ended:?}");
    let outcome = run(&*machine.backend, &mut ear, key(2), script("exit 0")).await;
    assert!(matches!(&outcome, Outcome::NotStarted(why) if why.contains("space")), "{outcome:?}");
}

#[tokio::test]
async fn logs_are_bounded_and_keep_the_end() {
    let machine = Machine::with(|c| c.logs = LogLimits { file_bytes: Bytes(10_000), files: 3 });
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let text = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo oops >&2";
    assert_eq!(run(&*machine.backend, &mut ear, key(1), script(text)).await, Outcome::Exited(0));
    let logs = machine.backend.logs(key(1)).expect("known");
    let names: Vec<_> =
        logs.iter().map(|l| l.file_name().expect("named").to_string_lossy().into_owned()).collect();
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

/// A stand-in for docker, with one image whose own entry point is `echo`; keeps a list of what is there.
fn fake_runtime(dir: &Path) -> PathBuf {
    let path = dir.join("docker");
    let text = r#"#!/bin/sh
list="$(dirname "$0")/containers"; mkdir -p "$list"
case $1 in
run) shift; entry=echo
  while [ $# -gt 0 ]; do case $1 in
    --rm) shift;; --name) name=$2; shift 2;; --entrypoint) entry=$2; shift 2;; -w) cd "$2"; shift 2;; -*) shift 2;; *) break;; esac; done
  echo "$1" > "$list/$name"; shift
  setsid "$entry" "$@" & echo $! > "$list/$name.pid"; trap "kill -TERM $!" TERM; wait $!; code=$?
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
    not_started(
        run(&*machine.backend, &mut ear, key(4), conformance::spec(Run::Argv(vec![]))).await,
        "empty",
    );
}
