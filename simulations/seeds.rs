//! `simulate seeds` and `simulate bugs`: many independent runs on all cores, and what they add up to.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use starling::base::Span;

use crate::world::{Bug, FAULTS, Fixed, Outcomes, RttMatrix, Scenario, World};

pub const USAGE: &str =
    "simulate seeds [--count N | --seeds 1e6] [--seed S] [--peers P] [--jobs J] [--rtt FILE]
               [--without FAULT,FAULT] [--bug NAME] [--limited] [--groups] [--reserved] [--threads T] [--trace] [--json]
simulate bugs  [--count N] [--seed S] [--bug NAME] [--threads T] [--json]
simulate model [NAME] [--bug NAME|all] [--large] [--trace] [--json]";

/// What a command line asks for.
struct Ask {
    count: u64,
    first: u64,
    threads: u64,
    json: bool,
    fixed: Fixed,
}

/// A whole number, also as 1e6.
fn number(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().or_else(|| {
        let float = text.parse::<f64>().ok()?;
        (float.fract() == 0.0 && (0.0..=1e15).contains(&float)).then_some(float as u64)
    })
}

fn read(args: &[String], count: u64) -> Result<Ask, String> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut ask = Ask { count, first: 1, threads: cores, json: false, fixed: Fixed::default() };
    let mut args = args.iter();
    while let Some(name) = args.next() {
        match name.as_str() {
            "--json" => ask.json = true,
            "--trace" => ask.fixed.trace = true,
            "--limited" => ask.fixed.limited = true,
            "--groups" => ask.fixed.groups = true,
            "--reserved" => ask.fixed.reserved = true,
            "--count" | "--seeds" | "--seed" | "--peers" | "--jobs" | "--threads" | "--rtt" | "--without"
            | "--bug" => {
                let text = args.next().ok_or(format!("{name} wants a value"))?;
                let whole = || number(text).ok_or(format!("{name} wants a whole number, not {text:?}"));
                match name.as_str() {
                    "--count" | "--seeds" => ask.count = whole()?,
                    "--seed" => ask.first = whole()?,
                    "--threads" => ask.threads = whole()?.clamp(1, 256),
                    "--peers" => ask.fixed.peers = Some(between(name, whole()?, 1, 1_000)?),
                    "--jobs" => ask.fixed.jobs = Some(between(name, whole()?, 1, 100_000)?),
                    "--rtt" => {
                        let table = std::fs::read_to_string(text).map_err(|e| format!("{text}: {e}"))?;
                        let rtt = RttMatrix::read(&table).map_err(|e| format!("{text}: {e}"))?;
                        ask.fixed.rtt = Some(Arc::new(rtt));
                    }
                    "--bug" => ask.fixed.bug = Some(bug(text)?),
                    _ => {
                        let names: Vec<String> = text.split(',').map(str::to_owned).collect();
                        if let Some(wrong) = names.iter().find(|n| !FAULTS.contains(&n.as_str())) {
                            return Err(format!("--without knows {}, not {wrong:?}", FAULTS.join(", ")));
                        }
                        ask.fixed.without = names;
                    }
                }
            }
            other => return Err(format!("what is {other:?}?")),
        }
    }
    Ok(ask)
}

fn between(name: &str, n: u64, low: u64, high: u64) -> Result<usize, String> {
    if (low..=high).contains(&n) { Ok(n as usize) } else { Err(format!("{name} is {low} to {high}")) }
}

fn bug(name: &str) -> Result<Bug, String> {
    let known = || Bug::ALL.map(Bug::name).join(", ");
    Bug::named(name).ok_or_else(|| format!("--bug knows {}, not {name:?}", known()))
}

/// Runs seeds on all threads, each result to one function.
fn each_seed(ask: &Ask, fixed: &Fixed, take: impl Fn(Outcomes) + Sync) {
    let next = AtomicU64::new(ask.first);
    let end = ask.first.saturating_add(ask.count);
    std::thread::scope(|scope| {
        for _ in 0..ask.threads.min(ask.count.max(1)) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    take(World::new(Scenario::draw(seed, fixed)).run());
                }
            });
        }
    });
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    faults: BTreeMap<&'static str, u64>,
    sums: BTreeMap<&'static str, u64>,
    simulated: f64,
    worst: (Span, u64),
    /// The largest share of its stated bound that a seed needed.
    worst_share: f64,
    failing: BTreeMap<u64, Vec<String>>,
}

impl Totals {
    fn add(&mut self, seen: Outcomes) {
        self.seeds += 1;
        for (kind, n) in &seen.faults {
            *self.faults.entry(kind).or_default() += n;
        }
        let sums = [
            ("submitted", seen.submitted as u64),
            ("succeeded", seen.succeeded as u64),
            ("cancelled", seen.cancelled as u64),
            ("moved", seen.moved as u64),
            ("executions", seen.executions as u64),
            ("jobs_with_groups", seen.grouped as u64),
            ("jobs_spread_over_clusters", seen.spread as u64),
            ("reservations_kept", seen.reserved as u64),
            ("messages", seen.messages),
            ("messages_lost", seen.lost),
            ("messages_repeated", seen.repeated),
            ("linearizable_ops", seen.linear_ops as u64),
            ("histories_undecided", seen.undecided as u64),
        ];
        for (name, n) in sums {
            *self.sums.entry(name).or_default() += n;
        }
        self.simulated += seen.simulated.as_secs_f64();
        if let Some(settled) = seen.settled {
            self.worst = self.worst.max((settled, seen.seed));
            self.worst_share = self.worst_share.max(settled.as_secs_f64() / seen.settle_bound.as_secs_f64());
        }
        if !seen.violations.is_empty() {
            self.failing.insert(seen.seed, seen.violations);
        }
    }

    fn json(&self, wall: f64, threads: u64) -> Value {
        let mut out = json!({
            "seeds": self.seeds,
            "violations": self.failing.values().map(Vec::len).sum::<usize>(),
            "failing_seeds": self.failing.keys().collect::<Vec<_>>(),
            "faults": self.faults.values().sum::<u64>(),
            "faults_by_kind": self.faults,
            "simulated_s": self.simulated.round(),
            "simulated_years": self.simulated / 31_557_600.0,
            "seeds_per_hour": (self.seeds as f64 / wall.max(1e-9) * 3600.0).round(),
            "worst_settle_s": self.worst.0.as_secs_f64(),
            "worst_settle_seed": self.worst.1,
            "worst_settle_share_of_bound": self.worst_share,
            "wall_s": wall,
            "threads": threads,
        });
        for (name, n) in &self.sums {
            out[*name] = json!(n);
        }
        out
    }
}

fn bar(n: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left {msg}");
    ProgressBar::new(n).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn replay(fixed: &Fixed, seed: u64) -> String {
    let mut line = format!("cargo run --release --example simulate -- seeds --count 1 --seed {seed}");
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {name} {value}"));
        }
    };
    add("--peers", fixed.peers.map(|n| n.to_string()));
    add("--jobs", fixed.jobs.map(|n| n.to_string()));
    add("--bug", fixed.bug.map(|b| b.name().to_owned()));
    add("--rtt", fixed.rtt.as_ref().map(|_| "FILE".to_owned()));
    let words = [("--groups", fixed.groups), ("--reserved", fixed.reserved), ("--limited", fixed.limited)];
    for (word, _) in words.iter().filter(|(_, asked)| *asked) {
        line.push_str(&format!(" {word}"));
    }
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {name} {value}"));
        }
    };
    add("--without", (!fixed.without.is_empty()).then(|| fixed.without.join(",")));
    line + " --trace"
}

/// `simulate seeds`.
pub fn seeds(args: &[String]) -> Result<ExitCode, String> {
    let ask = read(args, 20)?;
    let begun = std::time::SystemTime::now();
    let bar = bar(ask.count);
    let totals = Mutex::new(Totals::default());
    each_seed(&ask, &ask.fixed, |seen| {
        for violation in &seen.violations {
            bar.suspend(|| eprintln!("seed {}: {violation}", seen.seed));
        }
        if !seen.violations.is_empty() {
            bar.suspend(|| eprintln!("seed {}: alone: {}", seen.seed, replay(&ask.fixed, seen.seed)));
        }
        totals.lock().expect("no thread panicked").add(seen);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let totals = totals.into_inner().expect("no thread panicked");
    let wall = begun.elapsed().map_or(0.0, |d| d.as_secs_f64());
    let json = totals.json(wall, ask.threads);
    if ask.json {
        println!("{json}");
    } else {
        let sum = |name: &str| totals.sums.get(name).copied().unwrap_or(0);
        println!(
            "{} seeds: {} violations in {} of them; {} faults, {} messages lost",
            totals.seeds,
            json["violations"],
            totals.failing.len(),
            json["faults"],
            sum("messages_lost")
        );
        println!(
            "{} jobs: {} succeeded, {} cancelled, {} ran more than once; {} executions; {} operations linearizable",
            sum("submitted"),
            sum("succeeded"),
            sum("cancelled"),
            sum("moved"),
            sum("executions"),
            sum("linearizable_ops"),
        );
        println!(
            "settled within {:.1} s of healing at worst (seed {}; {:.0} % of the seed's bound)",
            totals.worst.0.as_secs_f64(),
            totals.worst.1,
            totals.worst_share * 100.0
        );
        let years = totals.simulated / 31_557_600.0;
        println!("{years:.4} years simulated in {wall:.1} s, {} seeds an hour", json["seeds_per_hour"]);
    }
    Ok(if totals.failing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// `simulate bugs`: in how many seeds each planted bug is found. Fails where one is not found at all.
pub fn bugs(args: &[String]) -> Result<ExitCode, String> {
    let ask = read(args, 100)?;
    let mut rows = Vec::new();
    for bug in Bug::ALL.into_iter().filter(|b| ask.fixed.bug.is_none_or(|only| only == *b)) {
        let found = Mutex::new(BTreeMap::new());
        each_seed(&ask, &Fixed { bug: Some(bug), ..ask.fixed.clone() }, |seen| {
            if let Some(first) = seen.violations.into_iter().next() {
                found.lock().expect("no thread panicked").insert(seen.seed, first);
            }
        });
        let found = found.into_inner().expect("no thread panicked");
        let first = found.first_key_value();
        if !ask.json {
            let how = first.map_or("NOT FOUND".to_owned(), |(seed, how)| format!("first {seed}: {how}"));
            println!("{:<26} found in {} of {} seeds; {how}", bug.name(), found.len(), ask.count);
        }
        rows.push(json!({
            "bug": bug.name(),
            "seeds": ask.count,
            "found": found.len(),
            "first_seed": first.map(|(seed, _)| seed),
            "first_violation": first.map(|(_, how)| how),
        }));
    }
    let missed = rows.iter().filter(|r| r["found"] == 0).count();
    if ask.json {
        println!("{}", json!({ "bugs": rows.len(), "missed": missed, "rows": rows }));
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
