//! A job is told to save its progress: by which signal, by its own command, how long before its limit.

use starling::backends::Backend;
use starling::backends::conformance::{
    Ear, key, output, run, script, spec, start, stop, wait_for_output, wait_until,
};
use starling::base::Span;
use starling::core::api::StopReason;
use starling::model::Outcome;
use starling::model::spec::{Run, WarnSignal, WarnSpec};

use super::machine::Machine;

const USR1: WarnSpec = WarnSpec { signal: Some(WarnSignal::Usr1), command: None, before: None };

#[tokio::test]
async fn it_is_warned_so_long_before_its_limit_and_ends_in_time() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script("trap 'echo saved; exit 0' USR1; while :; do sleep 0.02; done");
    job.max_runtime = Some(Span::secs(300));
    job.warn = Some(WarnSpec { before: Some(Span::secs(297)), ..USR1 });
    assert_eq!(run(&*machine.backend, &mut ear, key(1), job).await, Outcome::Exited(0));
    assert_eq!(output(&*machine.backend, key(1)), "saved\n");
}

#[tokio::test]
async fn after_the_warning_the_limit_is_told_by_sigterm() {
    let machine = Machine::with(|c| c.notice = Span::secs(60));
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job =
        script("trap 'echo warned' USR1; trap 'echo told; exit 0' TERM; while :; do sleep 0.02; done");
    job.max_runtime = Some(Span::secs(6));
    job.warn = Some(WarnSpec { before: Some(Span::secs(3)), ..USR1 });
    assert_eq!(run(&*machine.backend, &mut ear, key(1), job).await, Outcome::TimedOut);
    let text = output(&*machine.backend, key(1));
    assert_eq!(text.lines().collect::<Vec<_>>(), ["warned", "told"]);
}

#[tokio::test]
async fn where_it_is_stopped_its_signal_and_its_command_are_the_notice() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    let mut job = script(
        "trap 'echo heard' USR1; echo ready; while [ ! -f saved ]; do sleep 0.02; done; sleep 0.1; cat saved",
    );
    let command = Some("echo $STARLING_JOB_NAME of $STARLING_PID > part; mv part saved".to_owned());
    job.warn = Some(WarnSpec { command, ..USR1 });
    job.name = "mine".into();
    machine.go(start(key(1), job)).await;
    wait_for_output(&*machine.backend, key(1), "ready").await;
    machine.backend.command(stop(key(1), Span::secs(60), StopReason::Drain)).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Stopped("drain".into()));
    let text = output(&*machine.backend, key(1));
    assert!(text.contains("heard") && text.contains("mine of "), "{text}");

    // What does not end by itself ends with the job.
    let mut job = script("trap '' USR1; echo ready; while [ ! -f asked ]; do sleep 0.02; done");
    let mark = format!("{}", 9_000_000 + std::process::id());
    job.warn = Some(WarnSpec { command: Some(format!("touch asked; sleep {mark}")), ..USR1 });
    machine.go(start(key(2), job)).await;
    wait_for_output(&*machine.backend, key(2), "ready").await;
    machine.backend.command(stop(key(2), Span::secs(60), StopReason::Drain)).await;
    ear.ended(key(2)).await;
    wait_until("its command is gone", || super::with_text(&format!("sleep\0{mark}")) == 0).await;
}

/// `--signal` of an sbatch file holds here as there: for what the script started, or for its shell alone.
#[tokio::test]
async fn an_sbatch_files_signal_reaches_whom_it_names() {
    let machine = Machine::new();
    let (mut ear, _) = Ear::adopt(&*machine.backend).await;
    for (n, line, script, said) in [
        (
            1,
            "--signal=USR1@297",
            "/bin/sh -c 'trap \"echo step; exit 0\" USR1; while :; do sleep 0.02; done'\necho shell lives",
            "step\nshell lives\n",
        ),
        (
            2,
            "--signal=B:USR1@297",
            "trap 'echo shell' USR1\n/bin/sh -c 'sleep 4; echo step lives'\necho end",
            "step lives\nshell\nend\n",
        ),
    ] {
        let text = format!("#!/bin/sh\n#SBATCH {line}\n{script}\n");
        let mut job = spec(Run::Argv(vec!["/bin/sh".into(), "-c".into(), text]));
        job.max_runtime = Some(Span::secs(300));
        let outcome = run(&*machine.backend, &mut ear, key(n), job).await;
        assert_eq!(
            (outcome, output(&*machine.backend, key(n)).as_str()),
            (Outcome::Exited(0), said),
            "{line}"
        );
    }
}
