//! Real Slurm clusters, made on this machine of Debian's packages, and Starling in front of them.
//!
//! A cluster takes seconds to start, so scenarios share them and run one after another: a program of its own that
//! speaks the test harness's words. `cargo test --test slurm -- --run` runs them (deploy/test does), or with
//! STARLING_SLURM_TESTS=1; otherwise, and where Slurm is not installed, they are ignored, and one line says so.
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod absence;
mod backend;
mod faults;
#[allow(dead_code, reason = "shared with the system tests, which use more of it")]
#[path = "../system/harness.rs"]
mod harness;
mod mesh;
mod peers;
mod rest;
mod rest_proxy;
mod sandbox;
#[path = "../kubernetes/speed.rs"]
#[allow(dead_code, reason = "shared with the Kubernetes tests, which use more of it")]
mod speed;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

/// A scenario and its name.
type Scenario = (&'static str, fn(&mut ground::Ground));

macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn(&mut ground::Ground))),*]
    };
}

mod ground;

const SCENARIOS: &[Scenario] = &scenarios![
    backend::it_keeps_the_contract,
    backend::it_runs_programs,
    backend::through_slurmrestd_too,
    backend::a_gang_has_its_ranks_and_its_first_failure,
    backend::a_guard_without_a_line_lives_by_the_files,
    faults::an_empty_or_broken_answer_ends_nothing,
    faults::reads_do_not_grow_with_the_number_of_jobs,
    faults::a_native_job_of_the_same_name_is_not_touched,
    faults::an_acknowledged_job_that_vanished_runs_once,
    absence::ten_minutes_without_a_controller_end_nothing_and_start_nothing_twice,
    absence::ten_minutes_without_slurmrestd_end_nothing_and_start_nothing_twice,
    absence::answers_after_45_seconds_end_nothing,
    rest::a_bad_way_to_slurmrestd_loses_nothing_and_starts_nothing_twice,
    rest::answers_of_slurmrestd_after_45_seconds_start_nothing_twice,
    rest::clocks_that_are_ten_minutes_apart_end_nothing,
    rest::through_slurmrestd_with_a_token_over_tcp,
    mesh::jobs_with_gpus_failures_and_cancels,
    mesh::other_peoples_jobs_and_drained_nodes_are_not_offered,
    mesh::an_sbatch_file_runs_as_it_is,
    mesh::partitions_and_features_are_told_and_decide_where,
    mesh::nodes_of_a_hidden_partition_are_not_offered,
    mesh::slurms_own_ends_are_told_apart,
    mesh::a_script_is_warned_before_its_time_limit,
    mesh::when_it_started_comes_back,
    mesh::the_controller_is_killed_in_the_middle,
    mesh::what_a_killed_controller_forgot_never_runs_twice,
    mesh::the_peer_is_killed_in_the_middle,
    mesh::a_peer_that_stays_away_loses_its_job_in_time,
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let asked = args.iter().any(|a| a == "--run") || std::env::var_os("STARLING_SLURM_TESTS").is_some();
    let wanted: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())))
        .collect();
    if args.iter().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !speed::has_clock() {
        return speed::with_clock();
    }
    println!("\nrunning {} tests", chosen.len());
    let why_not = match sandbox::installed() {
        Err(why) => Some(why),
        Ok(()) if !asked => Some("deploy/test slurm runs them".into()),
        Ok(()) => None,
    };
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let begun = Instant::now();
    if let Some(why) = why_not {
        ignored = chosen.len();
        println!("test slurm ({ignored} scenarios on real Slurm clusters) ... ignored, {why}");
    } else {
        let mut ground = None;
        for (name, scenario) in chosen {
            let begun = Instant::now();
            let mut here = ground.take().unwrap_or_else(ground::Ground::make);
            let went = std::panic::catch_unwind(AssertUnwindSafe(|| scenario(&mut here)));
            let seconds = begun.elapsed().as_secs_f64();
            match (went, here.take_not_tried()) {
                (Ok(()), Some(why)) => {
                    println!("test {name} ... ignored, {why}");
                    ignored += 1;
                    ground = Some(here);
                }
                (Ok(()), None) => {
                    println!("test {name} ... ok ({seconds:.1} s)");
                    passed += 1;
                    ground = Some(here);
                }
                (Err(_), _) => {
                    println!("test {name} ... FAILED ({seconds:.1} s)");
                    failed += 1;
                    here.keep();
                }
            }
        }
    }
    let filtered = SCENARIOS.len() - passed - failed - ignored;
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; {filtered} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        begun.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(101) }
}
