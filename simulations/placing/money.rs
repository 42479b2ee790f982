//! Money and gravity: what each policy pays and how soon its jobs start, for datasets from 1 GB to 10 TB, on real egress
//! prices and throughput; and how far the decisions are from the exact optimum on small windows.
//!
//! The production index decides one job after another, each time on a view that shows what was placed before. What then
//! happens is reckoned here by its own rules, from the tables and not from the estimates: a cluster serves its jobs in
//! order, GPUs come free when runs end, data travels at the table's throughput while the job waits, and money is GPU
//! hours, egress and nothing else. The optimum tries every assignment of a window under the same rules.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use starling::base::{Bytes, Instant, Rng, Span, WallTime};
use starling::core::placement::score::USD_PER_GPU_HOUR;
use starling::core::placement::{Ask, Index, Pick};
use starling::model::JobSpec;
use starling::model::policy::{POLICIES, Policies, Term, Weights};
use starling::model::report::{Inventory, Item, LinkSample, MemberView, View};
use starling::model::spec::Policy;

use super::picture::{Panel, svg};
use super::tables::Tables;
use super::{Args, edit, job, member, node};

const SIZES_GB: [u64; 5] = [1, 10, 100, 1_000, 10_000];
/// Jobs of one window that is also solved exactly: 5 clusters to the power of 6 assignments.
const WINDOW: usize = 6;
const WINDOW_CLUSTERS: usize = 5;
/// Claims of a job, as by default.
const CLAIMS: usize = 3;
const GOAL_OF_OPTIMUM: f64 = 1.05;
const NOW: Instant = Instant(1_000_000_000);

/// One cluster as it is: GPUs with the hour at which each comes free.
#[derive(Clone)]
struct Site {
    name: String,
    region: usize,
    usd_hour: f64,
    free_at: Vec<f64>,
}

/// One job: GPUs, hours, and where its data lies.
struct Work {
    spec: JobSpec,
    gpus: usize,
    hours: f64,
    home: usize,
    gb: f64,
}

/// What became of a job.
#[derive(Clone, Copy, Default)]
struct Fate {
    start_h: f64,
    wait_h: f64,
    data_h: f64,
    usd: f64,
}

/// Puts a job at a site and says what became of it.
fn serve(sites: &mut [Site], tables: &Tables, work: &Work, at: usize) -> Fate {
    let (from, to) = (sites[work.home].region, sites[at].region);
    let site = &mut sites[at];
    site.free_at.sort_by(f64::total_cmp);
    let wait_h = site.free_at.get(work.gpus - 1).copied().unwrap_or(f64::MAX);
    let (mut data_h, mut usd) = (0.0, work.hours * work.gpus as f64 * site.usd_hour);
    if at != work.home {
        data_h = work.gb * 8.0 / tables.gbps[from][to].max(1e-3) / 3_600.0;
        usd += work.gb * tables.egress[from][to];
    }
    let start_h = wait_h.max(data_h);
    for slot in site.free_at.iter_mut().take(work.gpus) {
        *slot = start_h + work.hours;
    }
    Fate { start_h, wait_h, data_h, usd }
}

/// What a policy would call it: its weights over what really happened.
fn worth(weights: &Weights, work: &Work, fate: &Fate) -> f64 {
    weights.of(Term::Start) * fate.start_h
        + weights.of(Term::Wait) * fate.wait_h
        + weights.of(Term::Data) * fate.data_h
        + weights.of(Term::Cost) * fate.usd / (USD_PER_GPU_HOUR * work.gpus as f64)
}

/// The view that a peer would have of the sites.
fn view(sites: &[Site], base: &[MemberView], queued: &[u64]) -> View {
    let mut view = View::default();
    for ((site, m), queued) in sites.iter().zip(base).zip(queued) {
        let mut m = m.clone();
        let free = site.free_at.iter().filter(|at| **at <= 0.0).count() as u32;
        edit(&mut m, |r| {
            if let Some(q) = &mut r.queue {
                q.gpus_free.values_mut().for_each(|n| *n = free);
                (q.queued_gpus, q.queued) = (*queued, (*queued > 0).into());
                let next = site.free_at.iter().copied().fold(f64::MAX, f64::min).max(0.0);
                q.waits = [("A100-80G".to_owned(), Span((next * 3.6e9) as u64))].into();
            }
        });
        view.members.insert(m.peer.clone(), m);
    }
    view
}

fn members(sites: &[Site], tables: &Tables, sets: &[Vec<Item>]) -> Vec<MemberView> {
    let mut out: Vec<MemberView> = sites
        .iter()
        .map(|s| member(&s.name, vec![node("A100-80G", 8, (s.free_at.len() / 8).max(1) as u32, 64)], NOW))
        .collect();
    let names: Vec<_> = out.iter().map(|m| m.peer.clone()).collect();
    for (i, m) in out.iter_mut().enumerate() {
        let site = &sites[i];
        edit(m, |r| {
            r.links = (0..sites.len())
                .filter(|j| *j != i)
                .map(|j| LinkSample {
                    to: names[j].clone(),
                    rtt_us: 50_000,
                    loss_ppm: 0,
                    bandwidth_bps: Some((tables.gbps[site.region][sites[j].region] * 1e9) as u64),
                    bandwidth_at: None,
                    at: WallTime(0),
                    direct: true,
                })
                .collect();
            r.data = Some(Inventory::of(sets[i].iter().cloned()));
            if let Some(c) = &mut r.capacity {
                c.price_milli = (site.usd_hour * 1e3) as u64;
                for (j, other) in sites.iter().enumerate().filter(|(j, _)| *j != i) {
                    let milli = tables.egress[site.region][other.region] * 1e3;
                    c.terms.egress_to_milli.insert(format!("r-{}", sites[j].name), milli.round() as u64);
                }
            }
        });
    }
    out
}

struct World {
    sites: Vec<Site>,
    jobs: Vec<Work>,
    base: Vec<MemberView>,
}

fn world(
    rng: &mut Rng,
    tables: &Tables,
    clusters: usize,
    jobs: usize,
    gb: Option<u64>,
    policy: &str,
) -> World {
    let mut regions: Vec<usize> = (0..tables.regions.len()).collect();
    rng.shuffle(&mut regions);
    let sites: Vec<Site> = (0..clusters)
        .map(|i| {
            let gpus = 8 * (1 + rng.below(4)) as usize;
            let busy = rng.below(gpus as u64 + 1) as usize;
            let mut free_at = vec![0.0; gpus];
            // What runs ends evenly over the next hour, as the estimate supposes of a cluster it knows nothing of.
            free_at.iter_mut().take(busy).for_each(|at| *at = rng.unit());
            Site {
                name: format!("c{i:02}"),
                region: regions[i % regions.len()],
                usd_hour: (1_000 + rng.below(3_000)) as f64 / 1e3,
                free_at,
            }
        })
        .collect();
    let mut sets: Vec<Vec<Item>> = vec![Vec::new(); clusters];
    let jobs = (0..jobs)
        .map(|j| {
            let home = rng.below(clusters as u64) as usize;
            let size = gb.unwrap_or_else(|| SIZES_GB[rng.below(5) as usize]);
            let (gpus, hours) = ([1, 2, 4, 8][rng.below(4) as usize], 1 + rng.below(12));
            let name = format!("s3://sets/{j}");
            sets[home].push(Item { name: name.clone(), size: Bytes(size * 1_000_000_000) });
            let text = format!("data: {name}\nmax_runtime: {hours}h\nplacement: {{policy: {policy}}}\n");
            let spec = job(gpus, 1, &[], &text);
            Work { spec, gpus: gpus as usize, hours: hours as f64, home, gb: size as f64 }
        })
        .collect();
    let base = members(&sites, tables, &sets);
    World { sites, jobs, base }
}

/// Lets the index place all jobs, one after another.
fn place(world: &World, tables: &Tables) -> Vec<Fate> {
    let mut sites = world.sites.clone();
    let mut queued = vec![0u64; sites.len()];
    let mut index = Index::default();
    let mut fates = Vec::new();
    for work in &world.jobs {
        index.update(&Arc::new(view(&sites, &world.base, &queued)));
        // As an owner does: claims at the best three; these say when they would start it; then the best of all.
        let ask = Ask { now: NOW, most: sites.len(), salt: 0, waited: Span::ZERO, told: &[] };
        let mut first = index.best(&work.spec, &ask);
        first.sort_by(|a, b| a.score.total_cmp(&b.score));
        let told: Vec<_> =
            first.iter().take(CLAIMS).map(|p| (p.cluster.clone(), starts_in(&sites, p, work))).collect();
        let picks = index.best(&work.spec, &Ask { told: &told, ..ask });
        let best = picks.iter().min_by(|a, b| a.score.total_cmp(&b.score)).expect("all can run it");
        let at = sites.iter().position(|s| s.name == best.cluster.as_str()).expect("one of them");
        let fate = serve(&mut sites, tables, work, at);
        if fate.wait_h > 0.0 {
            queued[at] += work.gpus as u64;
        }
        fates.push(fate);
    }
    fates
}

/// What a cluster with this pick's name would answer to a claim.
fn starts_in(sites: &[Site], pick: &Pick, work: &Work) -> Span {
    let site = sites.iter().find(|s| s.name == pick.cluster.as_str());
    let mut free_at = site.map(|s| s.free_at.clone()).unwrap_or_default();
    free_at.sort_by(f64::total_cmp);
    Span((free_at.get(work.gpus - 1).copied().unwrap_or(0.0) * 3.6e9) as u64)
}

fn total(weights: &Weights, world: &World, fates: &[Fate]) -> f64 {
    world.jobs.iter().zip(fates).map(|(work, fate)| worth(weights, work, fate)).sum()
}

/// Hours of the runs themselves, weighed as time until the start is: where all can start at once the optimum of `fastest`
/// is nothing, and five per cent of nothing is no goal. So for it hours until the end are compared.
fn runs(weights: &Weights, world: &World) -> f64 {
    weights.of(Term::Start) * world.jobs.iter().map(|work| work.hours).sum::<f64>()
}

/// The least that any assignment of all jobs comes to.
fn optimum(world: &World, tables: &Tables, weights: &Weights) -> f64 {
    fn branch(
        world: &World,
        tables: &Tables,
        w: &Weights,
        sites: &[Site],
        j: usize,
        so_far: f64,
        best: &mut f64,
    ) {
        if so_far >= *best {
            return;
        }
        let Some(work) = world.jobs.get(j) else {
            *best = so_far;
            return;
        };
        for at in 0..sites.len() {
            let mut next = sites.to_vec();
            let fate = serve(&mut next, tables, work, at);
            branch(world, tables, w, &next, j + 1, so_far + worth(w, work, &fate), best);
        }
    }
    let mut best = f64::MAX;
    branch(world, tables, weights, &world.sites, 0, 0.0, &mut best);
    best
}

pub fn money(args: &[String]) -> Result<ExitCode, String> {
    let known = ["--egress", "--throughput", "--clusters", "--windows", "--seed", "--svg"];
    let args = Args::read(args, &known)?;
    let clusters = args.number("--clusters", 12, 3, 53)? as usize;
    let windows = args.number("--windows", 60, 1, 10_000)?;
    let seed = args.number("--seed", 1, 0, u64::MAX)?;
    let mut rng = Rng::new(seed);
    let tables = match (args.text("--egress"), args.text("--throughput")) {
        (Some(egress), Some(throughput)) => {
            let read = |f: &str| std::fs::read_to_string(f).map_err(|e| format!("{f}: {e}"));
            Tables::read(&read(egress)?, &read(throughput)?)?
        }
        (None, None) => Tables::generated(&mut rng, 40),
        _ => return Err("--egress and --throughput go together".into()),
    };
    let policies = Policies::default();
    let mut rows: Vec<Value> = Vec::new();
    let mut panels = [
        Panel { title: "USD per job, by size of its data".into(), lines: Vec::new() },
        Panel { title: "hours until the first step, mean".into(), lines: Vec::new() },
    ];
    for (name, _) in POLICIES {
        let (mut usd_line, mut start_line) = (Vec::new(), Vec::new());
        for gb in SIZES_GB {
            let (mut usd, mut start, mut moved, mut jobs) = (0.0, 0.0, 0u64, 0u64);
            for round in 0..10 {
                let mut rng = Rng::new(seed ^ gb ^ round << 32);
                let world = world(&mut rng, &tables, clusters, 3 * clusters, Some(gb), name);
                for fate in place(&world, &tables) {
                    (usd, start, jobs) = (usd + fate.usd, start + fate.start_h, jobs + 1);
                    moved += u64::from(fate.data_h > 0.0);
                }
            }
            let n = jobs as f64;
            let (usd, start, moved) = (usd / n, start / n, moved as f64 / n);
            usd_line.push(usd);
            start_line.push(start);
            rows.push(json!({
                "policy": name, "dataset_gb": gb, "usd_per_job": usd, "start_hours_mean": start, "moved_share": moved,
            }));
        }
        panels[0].lines.push((name.into(), usd_line));
        panels[1].lines.push((name.into(), start_line));
    }
    let mut optima: Vec<Value> = Vec::new();
    let mut good = true;
    // Energy and load are not reckoned here.
    let scored = [Policy::Balanced, Policy::DataFirst, Policy::Cheapest, Policy::Fastest];
    for (name, policy) in POLICIES.into_iter().filter(|(_, p)| scored.contains(p)) {
        let weights = policies.of(policy);
        let (mut ours, mut best, mut worst) = (0.0, 0.0, 1.0f64);
        for window in 0..windows {
            let mut rng = Rng::new(seed ^ 0x77 ^ window << 20);
            let world = world(&mut rng, &tables, WINDOW_CLUSTERS, WINDOW, None, name);
            let runs = runs(weights, &world);
            let o = runs + total(weights, &world, &place(&world, &tables));
            let b = runs + optimum(&world, &tables, weights);
            (ours, best) = (ours + o, best + b);
            worst = worst.max(o / b.max(1e-9));
        }
        let ratio = ours / best;
        good &= ratio <= GOAL_OF_OPTIMUM;
        optima.push(json!({
            "policy": name, "windows": windows, "of_optimum": ratio, "worst_window": worst, "goal": GOAL_OF_OPTIMUM,
        }));
    }
    if let Some(file) = args.text("--svg") {
        let labels: Vec<String> = SIZES_GB
            .iter()
            .map(|gb| if *gb < 1_000 { format!("{gb} GB") } else { format!("{} TB", gb / 1_000) })
            .collect();
        std::fs::write(file, svg(&labels, &panels)).map_err(|e| format!("{file}: {e}"))?;
    }
    if args.json {
        let document = json!({
            "simulation": "money", "regions": tables.regions.len(), "made_up_tables": tables.made_up, "clusters": clusters,
            "rows": rows, "optimum": optima, "goal_met": good,
        });
        println!("{document}");
    } else {
        let source = if tables.made_up { "made-up" } else { "real" };
        println!("{clusters} clusters in {} regions ({source} prices and throughput)", tables.regions.len());
        println!(
            "{:<12}{:>10}{:>14}{:>16}{:>12}",
            "policy", "data GB", "USD per job", "start, hours", "data moved"
        );
        for row in &rows {
            println!(
                "{:<12}{:>10}{:>14.2}{:>16.3}{:>11.0}%",
                row["policy"].as_str().unwrap_or_default(),
                row["dataset_gb"],
                row["usd_per_job"].as_f64().unwrap_or_default(),
                row["start_hours_mean"].as_f64().unwrap_or_default(),
                row["moved_share"].as_f64().unwrap_or_default() * 100.0
            );
        }
        for row in &optima {
            println!(
                "{:<12} {:.3} x the exact optimum over {} windows of {WINDOW} jobs, worst {:.2} x (goal {GOAL_OF_OPTIMUM})",
                row["policy"].as_str().unwrap_or_default(),
                row["of_optimum"].as_f64().unwrap_or_default(),
                windows,
                row["worst_window"].as_f64().unwrap_or_default()
            );
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
