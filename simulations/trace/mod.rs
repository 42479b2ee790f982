//! `simulate trace`: a trace of real jobs under Starling and under others, in one run, with one table.
#![allow(dead_code, reason = "shared by the tests and the command, which read different parts of it")]

pub mod agenda;
mod firm;
pub mod load;
pub mod mesh;
mod picture;
pub mod result;
pub mod rivals;
mod shapes;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use starling::base::{Rng, Span};

use crate::world::RttMatrix;
use load::Trace;
use result::{Row, words};
use rivals::Rival;

pub const USAGE: &str =
    "simulate trace [--jobs FILE --nodes FILE] [--months 10,11|all] [--rtt FILE] [--load 0.9] [--scale nodes|arrivals]
               [--clusters N]
               [--limit N] [--limits none|classes] [--only NAME,NAME] [--seed S] [--seeds N] [--replicas 1|3|5] [--claims N]
               [--jitter 60] [--svg FILE] [--waits FILE] [--trace] [--json]";

/// Messages between clusters take as long as between regions of a table of round trips.
pub struct Net {
    rtt: RttMatrix,
    region: Vec<usize>,
}

impl Net {
    /// Clusters stand in regions evenly spread over the table.
    pub fn new(rtt: RttMatrix, clusters: usize) -> Self {
        let n = rtt.regions();
        let region = (0..clusters).map(|i| if clusters <= n { i * n / clusters } else { i % n }).collect();
        Self { rtt, region }
    }
    pub fn one_way(&self, a: usize, b: usize) -> Span {
        if a == b { Span(1) } else { self.rtt.one_way(self.region[a], self.region[b]) }
    }
}

struct Ask {
    jobs: Option<PathBuf>,
    nodes: Option<PathBuf>,
    months: Vec<u32>,
    rtt: Option<PathBuf>,
    load: f64,
    clusters: Option<usize>,
    limit: Option<usize>,
    only: Vec<String>,
    seed: u64,
    seeds: u64,
    replicas: usize,
    claims: usize,
    /// Seconds by which arrivals are moved at most, by lot, with each seed otherwise.
    jitter: u64,
    svg: Option<PathBuf>,
    waits: Option<PathBuf>,
    trace: bool,
    json: bool,
    limits: load::Limits,
    scale: load::Scale,
}

fn read(args: &[String]) -> Result<Ask, String> {
    let mut ask = Ask {
        jobs: None,
        nodes: None,
        months: vec![10, 11],
        rtt: None,
        load: 0.9,
        clusters: None,
        limit: None,
        only: Vec::new(),
        seed: 1,
        seeds: 1,
        replicas: 3,
        claims: 3,
        jitter: 0,
        svg: None,
        waits: None,
        trace: false,
        json: false,
        limits: load::Limits::None,
        scale: load::Scale::Nodes,
    };
    let mut args = args.iter();
    while let Some(name) = args.next() {
        if matches!(name.as_str(), "--json" | "--trace") {
            *(if name == "--json" { &mut ask.json } else { &mut ask.trace }) = true;
            continue;
        }
        let text = args.next().ok_or(format!("{name} wants a value"))?;
        let whole = |low: u64, high: u64| {
            let n = text.parse::<u64>().ok().filter(|n| (low..=high).contains(n));
            n.ok_or(format!("{name} is {low} to {high}, not {text:?}"))
        };
        match name.as_str() {
            "--jobs" => ask.jobs = Some(text.into()),
            "--nodes" => ask.nodes = Some(text.into()),
            "--rtt" => ask.rtt = Some(text.into()),
            "--waits" => ask.waits = Some(text.into()),
            "--svg" => ask.svg = Some(text.into()),
            "--months" if text == "all" => ask.months.clear(),
            "--months" => {
                let month = |m: &str| m.trim().parse().ok().filter(|m| (1..=12).contains(m));
                let months: Option<Vec<u32>> = text.split(',').map(month).collect();
                ask.months = months.ok_or("--months is numbers from 1 to 12, or all")?;
            }
            "--load" => {
                let load = text.parse::<f64>().ok().filter(|l| *l >= 0.01 && *l <= 2.0);
                ask.load = load.ok_or("--load is 0.01 to 2")?;
            }
            "--scale" => {
                ask.scale = match text.as_str() {
                    "nodes" => load::Scale::Nodes,
                    "arrivals" => load::Scale::Arrivals,
                    _ => return Err("--scale is nodes or arrivals".into()),
                }
            }
            "--limits" => {
                ask.limits = match text.as_str() {
                    "none" => load::Limits::None,
                    "classes" => load::Limits::Classes,
                    _ => return Err("--limits is none or classes".into()),
                }
            }
            "--clusters" => ask.clusters = Some(whole(1, 1_000)? as usize),
            "--limit" => ask.limit = Some(whole(1, 10_000_000)? as usize),
            "--seed" => ask.seed = whole(0, u64::MAX)?,
            "--seeds" => ask.seeds = whole(1, 1_000)?,
            "--replicas" => ask.replicas = whole(1, 5)? as usize | 1,
            "--claims" => ask.claims = whole(1, 1_000)? as usize,
            "--jitter" => ask.jitter = whole(0, 86_400)?,
            "--only" => {
                ask.only = text.split(',').map(str::to_owned).collect();
                let rivals = || Rival::ALL.into_iter().chain([Rival::Rules]);
                let known = |n: &String| n == "starling" || rivals().any(|r| r.name() == n);
                if let Some(wrong) = ask.only.iter().find(|n| !known(n)) {
                    let names = rivals().map(Rival::name).collect::<Vec<_>>().join(", ");
                    return Err(format!("--only knows starling, {names}, not {wrong:?}"));
                }
            }
            _ => return Err(format!("what is {name:?}?")),
        }
    }
    if ask.jobs.is_some() != ask.nodes.is_some() {
        return Err("--jobs and --nodes go together: where jobs came from, and what was there".into());
    }
    Ok(ask)
}

/// Nodes of the clusters that are generated where no trace is given.
const GENERATED: [u32; 8] = [16, 8, 8, 4, 4, 2, 2, 2];
const GENERATED_JOBS: usize = 5_000;

fn trace_for(ask: &Ask, seed: u64) -> Result<Trace, String> {
    let mut trace = match (&ask.jobs, &ask.nodes) {
        (Some(jobs), Some(nodes)) => load::read(jobs, nodes, &ask.months)?,
        _ => load::generate(seed, ask.limit.unwrap_or(GENERATED_JOBS), &GENERATED),
    };
    if let Some(limit) = ask.limit {
        trace.limit(limit);
    }
    if let Some(clusters) = ask.clusters {
        trace.cut(clusters)?;
    }
    trace.state_limits(ask.limits);
    trace.scale(ask.load, ask.scale)?;
    trace.jitter(seed, Span::secs(ask.jitter));
    Ok(trace)
}

/// One scheduler over one trace.
pub fn one(trace: &Trace, net: &Net, who: Option<Rival>, setting: mesh::Setting) -> Result<Row, String> {
    let (name, times) = timed(trace, net, who, setting)?;
    Row::new(name, trace, &times)
}

#[allow(clippy::disallowed_methods, reason = "events a second are shown to people")]
fn timed(
    trace: &Trace,
    net: &Net,
    who: Option<Rival>,
    setting: mesh::Setting,
) -> Result<(&'static str, result::Times), String> {
    let begun = std::time::SystemTime::now();
    let (name, mut times) = match who {
        Some(rival) => (rival.name(), rivals::run(trace, net, rival, setting.seed)),
        None => {
            let (times, counters) = mesh::run(trace, net, setting)?;
            if let Some((broken, _)) = counters.iter().find(|(name, _)| name.starts_with("invariant_")) {
                return Err(format!("starling: {broken}"));
            }
            if std::env::var_os("TRACE_COUNTERS").is_some() {
                eprintln!("{counters:?}");
            }
            ("starling", times)
        }
    };
    times.wall = begun.elapsed().map_or(0.0, |d| d.as_secs_f64());
    Ok((name, times))
}

/// `simulate trace`.
pub fn command(args: &[String]) -> Result<ExitCode, String> {
    let ask = read(args)?;
    let table = match &ask.rtt {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Some(RttMatrix::read(&text).map_err(|e| format!("{}: {e}", path.display()))?)
        }
    };
    let chosen = |name: &str| ask.only.is_empty() || ask.only.iter().any(|n| n == name);
    let named = ask.only.iter().any(|n| n == Rival::Rules.name()).then_some(Rival::Rules);
    let rivals = Rival::ALL.into_iter().filter(|r| chosen(r.name())).chain(named).map(Some);
    let who: Vec<Option<Rival>> = rivals.chain(chosen("starling").then_some(None)).collect();
    let mut per: Vec<Vec<Row>> = vec![Vec::new(); who.len()];
    let mut last = None;
    let mut waits = match &ask.waits {
        None => None,
        Some(path) => {
            let file = std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Some(std::io::BufWriter::new(file))
        }
    };
    if let Some(out) = &mut waits {
        use std::io::Write;
        writeln!(out, "scheduler,job,gpus,at_s,runs_s,wait_s,home,site")
            .map_err(|e| format!("--waits: {e}"))?;
    }
    for seed in ask.seed..ask.seed + ask.seeds {
        let trace = trace_for(&ask, seed)?;
        let n = trace.sites.len();
        let rtt = table.clone().unwrap_or_else(|| RttMatrix::generated(&mut Rng::new(seed), n));
        let net = Net::new(rtt, n);
        let setting = mesh::Setting { replicas: ask.replicas, claims: ask.claims, seed, trace: ask.trace };
        if last.is_none() {
            eprintln!("{}", about(&trace, ask.load));
        }
        for (rows, who) in per.iter_mut().zip(&who) {
            let (name, times) = timed(&trace, &net, *who, setting)?;
            if let Some(out) = &mut waits {
                times.lines(name, &trace, out).map_err(|e| format!("--waits: {e}"))?;
            }
            let row = Row::new(name, &trace, &times)?;
            eprintln!("  {:<9} {:.1} s, {} events", row.scheduler, row.wall, row.events);
            rows.push(row);
        }
        last = Some(trace);
    }
    let trace = last.ok_or("no seed")?;
    let central = per.iter().find(|rows| rows.first().is_some_and(|r| r.scheduler == "central"));
    let mean = |rows: &Vec<Row>| {
        let mut mean = Row::mean(rows)?;
        mean.beside(rows, central.map_or(&[], Vec::as_slice));
        Some(mean)
    };
    let mut rows: Vec<Row> = per.iter().filter_map(mean).collect();
    rows.sort_by(|a, b| a.completion.total_cmp(&b.completion));
    show(&ask, &trace, &rows)?;
    Ok(ExitCode::SUCCESS)
}

fn about(trace: &Trace, load: f64) -> String {
    let gpus: u64 = trace.sites.iter().map(load::Site::gpus_total).sum();
    let last = trace.jobs.last().map_or(0.0, |j| j.at.0 as f64 / 1e6);
    let mut text = format!(
        "{} jobs over {} clusters with {gpus} GPUs; their load was {:.3} and is brought to {load}; the last arrives after {}",
        trace.jobs.len(),
        trace.sites.len(),
        trace.load_found,
        words(last),
    );
    for (why, n) in &trace.left_out {
        text.push_str(&format!("; {n} left out: {why}"));
    }
    text
}

fn show(ask: &Ask, trace: &Trace, rows: &[Row]) -> Result<(), String> {
    let find = |name: &str| rows.iter().find(|r| r.scheduler == name);
    let (central, isolated) = (find("central"), find("isolated"));
    if ask.json {
        for row in rows {
            let mut row = row.json(central, isolated, trace, ask.load);
            row["jitter_s"] = ask.jitter.into();
            println!("{row}");
        }
    } else {
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "scheduler",
            "completion",
            "of central's",
            "wait",
            "median",
            "p99",
            "of central's",
            "longest",
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let of = |a: f64, b: Option<f64>| {
            b.filter(|b| *b > 0.0).map_or_else(|| "-".to_owned(), |b| format!("{:.3}", a / b))
        };
        for row in rows {
            table.add_row([
                row.scheduler.to_owned(),
                words(row.completion),
                of(row.completion, central.map(|c| c.completion))
                    + &row.range().map_or_else(String::new, |(a, b)| format!(" ({a:.3} to {b:.3})")),
                words(row.wait),
                words(row.wait_p50),
                words(row.wait_p99),
                of(row.wait_p99, central.map(|c| c.wait_p99)),
                words(row.wait_max),
            ]);
        }
        println!("{table}");
    }
    if let Some(path) = &ask.svg {
        std::fs::write(path, picture::draw(rows, &about(trace, ask.load)))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
