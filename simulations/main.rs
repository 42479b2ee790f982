//! `cargo run --release --example simulate -- seeds --count N [--seed S] [--peers P] [--json]`
#![allow(clippy::disallowed_methods, reason = "wall time of the run is shown to people")]

mod world;

use std::process::ExitCode;

use world::{Bug, Scenario, World};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let number = |name: &str, default: u64| match value(name) {
        None => Ok(default),
        Some(text) => text.parse::<u64>().map_err(|_| format!("{name} wants a whole number, not {text:?}")),
    };
    let bug = match value("--bug").map(String::as_str) {
        None => Ok(None),
        Some("no-guard") => Ok(Some(Bug::NoGuard)),
        Some("lying-disk") => Ok(Some(Bug::LyingDisk)),
        Some(other) => Err(format!("--bug knows no-guard and lying-disk, not {other:?}")),
    };
    let read = || -> Result<_, String> {
        Ok((number("--count", 20)?, number("--seed", 1)?, number("--peers", 5)?, number("--jobs", 20)?, bug?))
    };
    let (count, first, peers, jobs, bug) = match (args.first().map(String::as_str), read()) {
        (Some("seeds"), Ok(read)) => read,
        (_, wrong) => {
            if let Err(why) = wrong {
                eprintln!("simulate: {why}");
            }
            eprintln!(
                "usage: simulate seeds [--count N] [--seed S] [--peers P] [--jobs J] [--bug no-guard|lying-disk] [--json]"
            );
            return ExitCode::from(2);
        }
    };
    let json = args.iter().any(|a| a == "--json");
    let begun = std::time::SystemTime::now();
    let (mut violations, mut faults, mut executions, mut moved, mut simulated, mut messages) =
        (0, 0, 0, 0, 0.0, 0);
    let mut succeeded = 0;
    for seed in first..first + count {
        let scenario = Scenario { bug, ..Scenario::new(seed, peers as usize, jobs as usize) };
        let outcome = World::new(scenario).run();
        faults += outcome.faults;
        executions += outcome.executions;
        moved += outcome.moved;
        succeeded += outcome.succeeded;
        messages += outcome.messages;
        simulated += outcome.simulated.as_secs_f64();
        violations += outcome.violations.len();
        for violation in &outcome.violations {
            eprintln!("seed {seed}: {violation}");
        }
    }
    let wall = begun.elapsed().map_or(0.0, |d| d.as_secs_f64());
    let per_hour = count as f64 / wall.max(1e-9) * 3600.0;
    if json {
        println!(
            "{{\"seeds\":{count},\"violations\":{violations},\"faults\":{faults},\"executions\":{executions},\"succeeded\":{succeeded},\"moved\":{moved},\"messages\":{messages},\"simulated_s\":{simulated:.0},\"seeds_per_hour\":{per_hour:.0}}}"
        );
    } else {
        println!("{count} seeds, {peers} peers, {jobs} jobs each: {violations} violations");
        println!(
            "{faults} faults, {executions} executions, {succeeded} jobs succeeded, {moved} moved, {messages} messages"
        );
        println!("{simulated:.0} s simulated in {wall:.1} s, {per_hour:.0} seeds an hour");
    }
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
