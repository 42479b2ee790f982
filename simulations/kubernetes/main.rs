//! The Kubernetes backend in front of an API server, and a mesh with it; pods' commands really run, as processes.
//!
//! Where KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver, that one is started and asked; everywhere
//! else a server with recorded behaviour (`server.rs`), and the run says so, loudly. What stands around it (Job
//! controller, scheduler, kubelets) is played (`cluster.rs`).
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod absence;
mod backend;
mod cluster;
mod containers;
mod deploy;
mod faults;
mod ground;
#[allow(dead_code, reason = "shared with the system tests, which use more of it")]
#[path = "../system/harness.rs"]
mod harness;
mod incluster;
mod kueue;
mod load;
mod mesh;
#[allow(dead_code, reason = "shared with the system tests, which use more of it")]
#[path = "../system/podman.rs"]
mod podman;
mod proxy;
mod real;
mod server;
mod speed;
mod told;

use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Instant;

/// The argument with which this program runs the scenario named next, and nothing else.
const ALONE: &str = "--alone";
/// So many at once: they wait for clocks most of the time.
const AT_ONCE: usize = 2;

type Scenario = (&'static str, fn());

macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn())),*]
    };
}

const SCENARIOS: &[Scenario] = &scenarios![
    // The longest first, so that none of them is the last alone.
    incluster::the_account_of_its_pod_is_used_and_follows_what_is_rotated,
    absence::ten_minutes_without_a_server_end_nothing_and_start_nothing_twice,
    faults::a_bad_network_loses_nothing_and_starts_nothing_twice,
    mesh::jobs_over_kubernetes_and_a_local_cluster,
    backend::it_keeps_the_contract,
    backend::it_runs_programs,
    backend::a_gang_begins_together_and_its_first_failure_counts,
    backend::a_pod_that_is_started_twice_runs_once,
    backend::without_a_guard_exit_codes_are_the_kubelets,
    backend::somebody_elses_job_of_the_same_name_is_not_touched,
    backend::an_image_that_never_comes_is_given_back,
    told::what_it_waits_for_and_how_long,
    told::that_it_was_killed_for_memory,
    told::a_gang_waits_for_an_image_that_is_late_on_one_node,
    told::nodes_and_images_as_they_change,
    load::lists_come_in_pages,
    load::reads_do_not_grow_with_jobs,
    faults::a_server_that_is_away_ends_nothing,
    faults::a_ttl_that_deletes_what_finished_runs_nothing_again,
    absence::answers_after_45_seconds_start_nothing_twice,
    absence::a_guard_ends_in_its_pod_when_the_peer_is_away_past_the_grace,
    absence::a_pod_that_went_while_nobody_watched_is_missed,
    absence::without_a_guard_it_is_given_back_when_nothing_of_it_can_run,
    absence::clocks_that_are_ten_minutes_apart_lose_no_output_and_end_nothing,
    absence::a_line_without_an_end_is_cut_and_what_follows_comes,
    kueue::no_job_goes_past_a_queue_that_nobody_could_ask_about,
    kueue::a_group_without_its_resource_is_done_without,
    kueue::a_queue_that_comes_is_used_and_one_that_goes_gives_back,
    kueue::a_queue_says_when_and_takes_back,
    kueue::without_a_guard_a_queue_starts_it_once,
    containers::a_guard_enters_any_image,
    containers::the_image_drives_the_cluster_it_runs_in,
    incluster::without_a_way_to_a_cluster_it_says_what_to_do,
    deploy::the_account_may_what_the_backend_does_and_no_more,
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [alone, name] = args.as_slice()
        && alone == ALONE
    {
        return one(name);
    }
    let wanted: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())))
        .collect();
    if args.iter().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    match real::binaries() {
        Some(folder) => println!("kubernetes: against the REAL kube-apiserver of {}", folder.display()),
        None => println!(
            "not tried: kubernetes against a real kube-apiserver (KUBEBUILDER_ASSETS names none): this run is against \
             the RECORDED-BEHAVIOUR server of the tests"
        ),
    }
    let begun = Instant::now();
    let next = Mutex::new(chosen.iter());
    let failed = Mutex::new(0);
    let lane = || {
        loop {
            let taken = next.lock().expect("a queue").next();
            let Some((name, _)) = taken else { return };
            let begun = Instant::now();
            let (ok, said) = in_a_process(name);
            let seconds = begun.elapsed().as_secs_f64();
            let mut failed = failed.lock().expect("a count");
            // In one piece, for another one may end at the same moment.
            println!("{said}test {name} ... {} ({seconds:.1} s)", if ok { "ok" } else { "FAILED" });
            *failed += usize::from(!ok);
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(lane))));
    let failed = failed.into_inner().expect("a count");
    let passed = chosen.len() - failed;
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        SCENARIOS.len() - chosen.len(),
        begun.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// Runs one scenario in a process of its own: whether it held, and what it said.
fn in_a_process(name: &str) -> (bool, String) {
    let ended = std::env::current_exe().and_then(|this| Command::new(this).args([ALONE, name]).output());
    match ended {
        Ok(ended) => {
            let said = [ended.stdout, ended.stderr].concat();
            (ended.status.success(), String::from_utf8_lossy(&said).into_owned())
        }
        Err(e) => (false, format!("{name}: {e}\n")),
    }
}

/// One scenario, in this process, whose clock is its own.
fn one(name: &str) -> ExitCode {
    if !speed::has_clock() {
        return speed::with_clock();
    }
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let Some((_, scenario)) = SCENARIOS.iter().find(|(n, _)| *n == name) else { return ExitCode::from(2) };
    // It ends by a panic where it fails.
    scenario();
    ExitCode::SUCCESS
}
