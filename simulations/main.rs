//! The simulator's command: `cargo run --release --example simulate -- seeds --count N [--seed S] [--json]`
//! and `-- model [NAME] [--bug NAME] [--large] [--json]` and `-- trace --jobs F --nodes F --rtt F --load 0.9 [--json]`
//! and `-- packing --nodes F --jobs F [--json]`
#![allow(clippy::disallowed_methods, reason = "wall time of the run is shown to people")]

mod contact;
mod models;
mod packing;
mod placing;
mod seeds;
mod trace;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    if args.iter().any(|a| a == "--help" || a == "-h") {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    }
    if args.first().is_some_and(|a| a == "model") {
        return models::command(rest);
    }
    if let Some(done) = args.first().and_then(|name| placing::command(name, rest)) {
        return done.unwrap_or_else(|why| {
            eprintln!("simulate: {why}\n{}", usage());
            ExitCode::from(2)
        });
    }
    let done = match args.first().map(String::as_str) {
        Some("seeds") => seeds::seeds(rest),
        Some("contact") => contact::command(rest),
        Some("bugs") => seeds::bugs(rest),
        Some("packing") => packing::command(rest),
        Some("trace") => trace::command(rest),
        _ => Err("what shall be simulated?".into()),
    };
    done.unwrap_or_else(|why| {
        eprintln!("simulate: {why}\n{}", usage());
        ExitCode::from(2)
    })
}

fn usage() -> String {
    let parts = [seeds::USAGE, contact::USAGE, placing::USAGE, trace::USAGE, packing::USAGE];
    format!("usage:\n{}", parts.join("\n"))
}
