//! Named scenarios on the real binary: peers in network namespaces of their own, cut off, killed, stopped and
//! started, with jobs whose ledger is judged without asking Starling.
//!
//! One after another on one mesh, since a mesh takes seconds to start; after a failure the next one gets a new
//! mesh. So this is a program of its own that speaks the test harness's words. Needs root and iproute2;
//! elsewhere it says `not tried:`.
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod bounds;
mod clocks;
mod ground;
mod histories;
mod isolation;
mod loss;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use starling::surface::fleet::network::Network;

use ground::Ground;

/// A scenario: what it is called, and what it does on a mesh of five that agree.
type Scenario = (&'static str, for<'a> fn(&'a mut Ground) -> LocalBoxFuture<'a, ()>);

macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), |g| $module::$name(g).boxed_local())),*]
    };
}

/// The last ones leave fewer members behind.
const SCENARIOS: [Scenario; 16] = scenarios![
    isolation::finishes_while_cut_off_and_is_run_once,
    isolation::a_blip_moves_nothing,
    isolation::cut_for_long_moves_without_overlap,
    isolation::healed_and_cut_again_at_once,
    isolation::a_result_that_is_reported_late_counts,
    isolation::an_owner_that_is_alone_kills_nothing,
    clocks::clocks_as_far_off_as_they_may_be_break_nothing,
    clocks::a_clock_that_is_off_by_far_more_is_seen,
    clocks::a_machine_sleeps_for_a_moment,
    clocks::a_machine_sleeps_past_its_grace,
    histories::records_are_linearizable_under_kills_and_cuts,
    bounds::a_clean_stop_moves_jobs_within_5_s,
    bounds::a_lost_clusters_job_goes_on_in_time,
    loss::the_owner_of_ten_jobs_is_killed,
    loss::a_disk_is_lost_and_a_second_home_restarts,
    loss::a_member_is_removed_while_it_is_suspected,
];

/// Too long for every day: these run when they are named.
const BY_HAND: [Scenario; 1] = scenarios![isolation::cut_for_half_an_hour_moves_without_overlap];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())))
        .chain(BY_HAND.iter().filter(|(name, _)| wanted.iter().any(|w| *w == name)))
        .collect();
    if args.iter().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let begun = Instant::now();
    match Network::new(1).map(drop) {
        Err(why) => {
            ignored = chosen.len();
            for (name, _) in &chosen {
                println!("test {name} ... ignored");
            }
            println!("not tried: chaos scenarios on the real binary: {why}");
        }
        Ok(()) => (passed, failed) = run(&chosen),
    }
    let filtered = (SCENARIOS.len() + BY_HAND.len()) - chosen.len();
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; {filtered} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        begun.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// What a panic said, in one line: a log of which only such lines are kept still tells why.
fn words(why: &(dyn std::any::Any + Send)) -> String {
    let text =
        why.downcast_ref::<String>().map(String::as_str).or_else(|| why.downcast_ref::<&str>().copied());
    let line = text.unwrap_or("a panic without words").split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(2_000).collect()
}

fn run(chosen: &[&Scenario]) -> (usize, usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let all = async {
            let (mut passed, mut failed) = (0, 0);
            let mut ground: Option<Ground> = None;
            for (name, scenario) in chosen {
                let begun = Instant::now();
                let mut here = match ground.take() {
                    Some(here) => here,
                    None => Ground::make().await,
                };
                let went = AssertUnwindSafe(scenario(&mut here)).catch_unwind().await;
                let seconds = begun.elapsed().as_secs_f64();
                match went {
                    Ok(()) => {
                        println!("test {name} ... ok ({seconds:.1} s)");
                        passed += 1;
                        ground = Some(here);
                    }
                    Err(why) => {
                        println!("test {name} ... FAILED");
                        println!("error: {name}: {}", words(why.as_ref()));
                        failed += 1;
                        here.keep();
                    }
                }
            }
            (passed, failed)
        };
        tokio::select! {
            counts = all => counts,
            // The mesh and its namespaces go with the future.
            _ = tokio::signal::ctrl_c() => (0, chosen.len()),
        }
    })
}
