//! `simulate packing`: how many GPUs are left when more is asked for than there is.
//!
//! Pods arrive one after another and none leaves, as in the FGD paper (ATC 2023): until they have asked for 130 % of
//! the GPUs. Then every GPU that is not given out is lost to fragmentation. *Central* has all nodes in one set of books;
//! *starling* has them cut over many peers, each with its own books and its own idea of the mix, and a pod only
//! goes to where one of its few claims is granted: claims at some clusters, and one more where it fits now if none of
//! these can take it, as `core::owner` does. Both choose nodes with production's own code.
#![allow(dead_code, reason = "shared by the tests and the command, which read different parts of it")]

pub mod load;
mod picture;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::json;
use starling::base::Rng;
use starling::core::books::{Books, Need, WHOLE};
use starling::core::schedule::nodes::{Choice, Fit, Mix, fit};

use load::{Node, Pod};

pub const USAGE: &str = "simulate packing [--nodes FILE --jobs FILE] [--peers 16] [--claims 3] [--first] [--load 1.3] [--seed S] [--seeds N]
               [--count N] [--only NAME,NAME] [--svg FILE] [--json]";

/// What the FGD paper's own runs left of these 6,212 GPUs at 130 % (mean of ten seeds).
const PUBLISHED: [(&str, f64); 4] = [
    ("fgd (published)", 286.3),
    ("bestfit (published)", 430.1),
    ("dotprod (published)", 568.5),
    ("random (published)", 778.4),
];
/// GPUs of the trace that these figures are about.
const PUBLISHED_GPUS: u64 = 6_212;

/// How a pod's node is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One set of books, the mix known beforehand, as in the paper.
    Central,
    /// One set of books, the mix as it is learned from what came.
    Learned,
    /// Cut over peers.
    Starling,
    /// Cut over peers, the fullest node that fits.
    Fullest,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Starling, Way::Central, Way::Learned, Way::Fullest];
    pub fn name(self) -> &'static str {
        match self {
            Way::Central => "central",
            Way::Learned => "central, learned mix",
            Way::Starling => "starling",
            Way::Fullest => "starling, fullest node",
        }
    }
}

/// A run's outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Packed {
    /// GPUs that nobody got, at the end.
    pub left: f64,
    /// Share of the GPUs given out, at each percent of arrived load.
    pub line: Vec<f64>,
    pub refused: usize,
    pub claims: u64,
}

struct Peer {
    books: Books,
    mix: Mix,
    /// Kinds that did not fit; nothing is ever given back here.
    misses: std::collections::BTreeSet<Need>,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub peers: usize,
    pub claims: usize,
    /// The owner takes the grant that fragments least, not the first.
    pub best: bool,
    pub seed: u64,
}

/// Cuts the nodes over peers, every peer a mixed lot.
fn cut(nodes: &[Node], peers: usize) -> Vec<Vec<Node>> {
    let mut parts = vec![Vec::new(); peers.max(1)];
    for (i, node) in nodes.iter().enumerate() {
        parts[i % peers.max(1)].push(node.clone());
    }
    parts
}

/// One run.
pub fn run(nodes: &[Node], all: &[Pod], arrivals: &[Pod], way: Way, setting: Setting) -> Packed {
    let parts = match way {
        Way::Central | Way::Learned => vec![nodes.to_vec()],
        Way::Starling | Way::Fullest => cut(nodes, setting.peers),
    };
    let total: u64 = nodes.iter().map(|n| u64::from(n.gpus)).sum::<u64>() * u64::from(WHOLE);
    let mut peers: Vec<Peer> = parts
        .iter()
        .map(|part| {
            let books = load::books(part);
            let known = all.iter().map(|pod| (pod.need(&books), 1));
            let mix = if way == Way::Central { Mix::of(known) } else { Mix::default() };
            Peer { books, mix, misses: Default::default() }
        })
        .collect();
    let mut rng = Rng::new(setting.seed);
    let mut out = Packed { left: 0.0, line: Vec::new(), refused: 0, claims: 0 };
    let (mut asked, mut given) = (0u64, 0u64);
    for pod in arrivals {
        let mut order: Vec<usize> = (0..peers.len()).collect();
        rng.shuffle(&mut order);
        // What the view says of each: free GPUs. A job's claims go to the emptiest, which is what scoring by wait does.
        order.sort_by_key(|&i| std::cmp::Reverse(free(&peers[i].books) / (20 * u64::from(WHOLE))));
        let mut found: Option<(usize, Fit, Need)> = None;
        for (n, &i) in order.iter().enumerate() {
            // The first few claims stand together; of their grants the best is taken. Where none can take it one claim
            // more is laid at a time.
            let enough = if setting.best { n >= setting.claims } else { true };
            if enough && found.is_some() {
                break;
            }
            out.claims += 1;
            let peer = &mut peers[i];
            let need = pod.need(&peer.books);
            if way != Way::Central {
                peer.mix.note(&need, 1);
            }
            if peer.misses.contains(&need) {
                continue;
            }
            let mix = (way != Way::Fullest).then_some(&peer.mix);
            let choice = Choice { mix, ..Choice::default() };
            match fit(&peer.books, 1, &need, &choice) {
                Some(got) if found.as_ref().is_none_or(|(_, best, _)| got.fragments < best.fragments) => {
                    found = Some((i, got, need));
                }
                Some(_) => {}
                None => {
                    peer.misses.insert(need);
                }
            }
        }
        asked += pod.asks();
        match found {
            Some((i, got, need)) => {
                peers[i].books.take(&got.shares, &need);
                given += pod.asks();
            }
            None => out.refused += 1,
        }
        let percent = (asked * 100 / total.max(1)) as usize;
        while out.line.len() <= percent {
            out.line.push(given as f64 / total.max(1) as f64);
        }
    }
    let free: u64 = peers.iter().map(|p| free(&p.books)).sum();
    assert_eq!(free + given, total, "what is given out is not free");
    out.left = free as f64 / f64::from(WHOLE);
    out
}

fn free(books: &Books) -> u64 {
    books.nodes().iter().map(|n| n.milli()).sum()
}

/// Means over seeds.
#[derive(Debug, Clone)]
pub struct Row {
    pub way: Way,
    pub left: f64,
    pub worst: f64,
    pub claims: f64,
    pub line: Vec<f64>,
    pub wall: f64,
}

struct Ask {
    nodes: Option<PathBuf>,
    jobs: Option<PathBuf>,
    count: usize,
    load: f64,
    seeds: u64,
    setting: Setting,
    only: Vec<String>,
    svg: Option<PathBuf>,
    json: bool,
}

fn read(args: &[String]) -> Result<Ask, String> {
    let mut ask = Ask {
        nodes: None,
        jobs: None,
        count: 1_500,
        load: 1.3,
        seeds: 1,
        setting: Setting { peers: 16, claims: 3, best: true, seed: 42 },
        only: Vec::new(),
        svg: None,
        json: false,
    };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--json" => ask.json = true,
            "--first" => ask.setting.best = false,
            _ => {}
        }
        if ["--json", "--first"].contains(&arg.as_str()) {
            continue;
        }
        let value = rest.next().ok_or_else(|| format!("{arg} wants a value"))?;
        let number = |low: u64, high: u64| {
            let n = value.parse::<u64>().ok().filter(|n| (low..=high).contains(n));
            n.ok_or_else(|| format!("{arg}: {value}: a whole number from {low} to {high}"))
        };
        match arg.as_str() {
            "--nodes" => ask.nodes = Some(value.into()),
            "--jobs" => ask.jobs = Some(value.into()),
            "--peers" => ask.setting.peers = number(1, 10_000)? as usize,
            "--claims" => ask.setting.claims = number(1, 10_000)? as usize,
            "--seed" => ask.setting.seed = number(0, u64::MAX)?,
            "--seeds" => ask.seeds = number(1, 1_000)?,
            "--count" => ask.count = number(1, 100_000)? as usize,
            "--load" => {
                let load = value.parse::<f64>().ok().filter(|l| (0.01..=10.0).contains(l));
                ask.load = load.ok_or_else(|| format!("--load: {value}: from 0.01 to 10"))?;
            }
            "--only" => ask.only = value.split(',').map(str::to_owned).collect(),
            "--svg" => ask.svg = Some(value.into()),
            _ => return Err(format!("{arg} is not known here")),
        }
    }
    if ask.nodes.is_some() != ask.jobs.is_some() {
        return Err("--nodes and --jobs go together".into());
    }
    Ok(ask)
}

/// `simulate packing`.
#[allow(clippy::disallowed_methods, reason = "how long it took is shown to people")]
pub fn command(args: &[String]) -> Result<ExitCode, String> {
    let ask = read(args)?;
    let (nodes, pods, left_out) = match (&ask.nodes, &ask.jobs) {
        (Some(nodes), Some(jobs)) => {
            let ((nodes, a), (pods, b)) = (load::nodes(nodes)?, load::pods(jobs)?);
            (nodes, pods, a + b)
        }
        _ => {
            let (nodes, pods) = load::generated(ask.count, &mut Rng::new(ask.setting.seed));
            (nodes, pods, 0)
        }
    };
    let gpus: u64 = nodes.iter().map(|n| u64::from(n.gpus)).sum();
    let kinds: BTreeMap<&Pod, usize> = pods.iter().fold(BTreeMap::new(), |mut map, pod| {
        *map.entry(pod).or_default() += 1;
        map
    });
    eprintln!(
        "{} nodes with {gpus} GPUs, {} pods of {} kinds, {left_out} rows left out; arrivals of {:.0} % over {} peers",
        nodes.len(),
        pods.len(),
        kinds.len(),
        ask.load * 100.0,
        ask.setting.peers,
    );
    let mut rows = Vec::new();
    for way in Way::ALL.into_iter().filter(|w| ask.only.is_empty() || ask.only.iter().any(|n| n == w.name()))
    {
        let begun = std::time::SystemTime::now();
        let mut row = Row { way, left: 0.0, worst: 0.0, claims: 0.0, line: Vec::new(), wall: 0.0 };
        for seed in ask.setting.seed..ask.setting.seed.saturating_add(ask.seeds) {
            let arrivals = load::arrivals(&pods, gpus, ask.load, &mut Rng::new(seed));
            let packed = run(&nodes, &pods, &arrivals, way, Setting { seed, ..ask.setting });
            row.left += packed.left / ask.seeds as f64;
            row.worst = row.worst.max(packed.left);
            row.claims += packed.claims as f64 / arrivals.len().max(1) as f64 / ask.seeds as f64;
            if row.line.is_empty() {
                row.line = packed.line;
            }
        }
        row.wall = begun.elapsed().map_or(0.0, |d| d.as_secs_f64());
        eprintln!("  {:<24} {:.0} GPUs left, {:.1} s", way.name(), row.left, row.wall);
        rows.push(row);
    }
    let known = gpus == PUBLISHED_GPUS && (ask.load - 1.3).abs() < 1e-9 && ask.nodes.is_some();
    let central = rows.iter().find(|r| r.way == Way::Central).map(|r| r.left);
    if let Some(path) = &ask.svg {
        std::fs::write(path, picture::draw(&rows, gpus)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if ask.json {
        for row in &rows {
            let per = |base: Option<f64>| base.filter(|b| *b > 0.0).map(|b| row.left / b);
            let line = json!({
                "scheduler": row.way.name(),
                "gpus": gpus,
                "gpus_unallocated": round(row.left),
                "worst_seed": round(row.worst),
                "unallocated_vs_central": per(central).map(round),
                "unallocated_vs_published_fgd": per(known.then_some(PUBLISHED[0].1)).map(round),
                "claims_per_pod": round(row.claims),
                "peers": ask.setting.peers,
                "load": ask.load,
                "seeds": ask.seeds,
                "seconds": round(row.wall),
            });
            println!("{line}");
        }
    } else {
        println!("{}", table(&rows, gpus, central, known));
    }
    Ok(ExitCode::SUCCESS)
}

fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

fn table(rows: &[Row], gpus: u64, central: Option<f64>, known: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "scheduler",
        "GPUs left",
        "worst seed",
        "given out",
        "x central",
        "x published FGD",
        "claims a pod",
    ]);
    let per = |left: f64, base: Option<f64>| match base.filter(|b| *b > 0.0) {
        Some(base) => format!("{:.3}", left / base),
        None => "-".into(),
    };
    let published = known.then_some(PUBLISHED[0].1);
    let share = |left: f64| format!("{:.2} %", 100.0 * (1.0 - left / gpus.max(1) as f64));
    for row in rows {
        table.add_row([
            row.way.name().to_owned(),
            format!("{:.1}", row.left),
            format!("{:.1}", row.worst),
            share(row.left),
            per(row.left, central),
            per(row.left, published),
            format!("{:.2}", row.claims),
        ]);
    }
    if known {
        for (name, left) in PUBLISHED {
            let none = || "-".to_owned();
            table.add_row([
                name.to_owned(),
                format!("{left:.1}"),
                none(),
                share(left),
                per(left, central),
                per(left, published),
                none(),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
