//! How many placement decisions one core makes in a second, and how long the slowest take.
//!
//! A decision is what an owner does for a pending job: the best three clusters, and one of them given out. The view changes
//! meanwhile as it does in a mesh: every thousand decisions a new one comes in which a twentieth of the clusters
//! report another queue, and now and then capacity, links and data change, too. Taking the new view counts into the
//! decision that meets it first.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant as Clock;

use serde_json::json;
use starling::base::{Bytes, Instant, Rng, Span, WallTime};
use starling::core::placement::{Ask, Index};
use starling::model::JobSpec;
use starling::model::report::{Inventory, Item, LinkSample, View};

use super::{Args, edit, job, member, node};

const MODELS: [&str; 8] =
    ["H100", "A100-80G", "A100-40G", "A800-80G", "L40", "L4", "Ascend-910B", "RTX-4090"];
const GOAL_PER_SECOND: f64 = 20_000.0;
const GOAL_P99_US: f64 = 1_000.0;
/// A new view comes so often, in decisions; in it one cluster of so many reports another queue.
const VIEW_EVERY: u64 = 1_000;
const QUEUE_SHARE: u64 = 20;

pub fn decide(args: &[String]) -> Result<ExitCode, String> {
    let args = Args::read(args, &["--clusters", "--nodes", "--decisions", "--classes", "--seed"])?;
    let clusters = args.number("--clusters", 1_000, 2, 5_000)?;
    let nodes = args.number("--nodes", 100, 1, 1_000)?;
    let decisions = args.number("--decisions", 200_000, 1_000, 10_000_000)?;
    let classes = args.number("--classes", 64, 1, 10_000)?;
    let seed = args.number("--seed", 1, 0, u64::MAX)?;

    let mut rng = Rng::new(seed);
    let mut now = Instant(1_000_000_000);
    let mut view = world(&mut rng, clusters, nodes, now);
    let jobs: Vec<JobSpec> = (0..classes).map(|_| class(&mut rng)).collect();
    let mut index = Index::default();
    let mut shown = Arc::new(view.clone());
    let mut took_ns: Vec<u64> = Vec::with_capacity(decisions as usize);
    let (mut placed, mut fitted) = (0u64, 0u64);
    for i in 0..decisions {
        if i % VIEW_EVERY == 0 {
            change(&mut view, &mut rng, now, i / VIEW_EVERY);
            shown = Arc::new(view.clone());
        }
        // Few classes are most of the jobs, as in the traces.
        let skewed = (rng.unit() * rng.unit() * classes as f64) as usize;
        let spec = &jobs[skewed.min(jobs.len() - 1)];
        now = now + Span(50);
        let begun = Clock::now();
        index.update(&shown);
        let picks = index.best(spec, &Ask { now, most: 3, salt: i | 1, waited: Span::ZERO, told: &[] });
        if let Some(first) = picks.first() {
            index.give(&first.cluster, spec.gpus_total(), now);
            placed += 1;
            fitted += u64::from(first.fits_now);
        }
        took_ns.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    let total_s = took_ns.iter().sum::<u64>() as f64 / 1e9;
    took_ns.sort_unstable();
    let at = |share: f64| took_ns[((took_ns.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let per_second = decisions as f64 / total_s;
    let (p50, p99, p999, most) = (at(0.5), at(0.99), at(0.999), at(1.0));
    let good = per_second >= GOAL_PER_SECOND && p99 <= GOAL_P99_US;
    if args.json {
        let document = json!({
            "simulation": "decide", "clusters": clusters, "nodes": nodes, "classes": classes, "decisions": decisions,
            "per_second_per_core": per_second, "p50_us": p50, "p99_us": p99, "p999_us": p999, "max_us": most,
            "placed": placed, "fits_now": fitted, "goal_per_second": GOAL_PER_SECOND, "goal_p99_us": GOAL_P99_US,
            "goal_met": good,
        });
        println!("{document}");
    } else {
        println!(
            "{decisions} decisions over {clusters} clusters x {nodes} nodes, {classes} classes of jobs, one core"
        );
        println!("{per_second:>12.0} decisions per second   (goal {GOAL_PER_SECOND:.0})");
        println!(
            "{p50:>12.1} us median, {p99:.1} us p99, {p999:.1} us p99.9, {most:.1} us longest   (goal p99 {GOAL_P99_US:.0})"
        );
        println!("{placed:>12} placed, {fitted} of them where they fit now");
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn name(i: u64) -> String {
    format!("c{i:04}")
}

fn world(rng: &mut Rng, clusters: u64, nodes: u64, now: Instant) -> View {
    let mut view = View::default();
    for i in 0..clusters {
        let kinds: Vec<&str> = (0..1 + rng.below(4)).filter_map(|_| rng.pick(&MODELS).copied()).collect();
        // Every node is reported by itself, as a machine list would be.
        let list = (0..nodes).map(|n| node(kinds[n as usize % kinds.len()], [4, 8][n as usize % 2], 1, 64));
        let mut m = member(&name(i), list.collect(), now);
        edit(&mut m, |r| {
            if let Some(c) = &mut r.capacity {
                c.price_milli = 500 + rng.below(4_000);
                c.region = format!("r{}", i % 40);
                c.terms.egress_milli = 20 + rng.below(100);
            }
        });
        view.members.insert(m.peer.clone(), m);
    }
    for i in 0..clusters {
        touch(&mut view, rng, i, now);
        goods(&mut view, rng, i, clusters);
    }
    view
}

fn touch(view: &mut View, rng: &mut Rng, i: u64, now: Instant) {
    let Some(m) = view.members.values_mut().nth(i as usize) else { return };
    edit(m, |r| {
        r.heard_at = now;
        let Some(q) = &mut r.queue else { return };
        for (model, total) in q.gpus_total.clone() {
            let busy = rng.unit().sqrt();
            q.gpus_free.insert(model, (f64::from(total) * (1.0 - busy)) as u32);
        }
        (q.queued, q.queued_gpus) = (rng.below(50) as u32, rng.below(400));
    });
}

/// What it holds, and its links to a few others.
fn goods(view: &mut View, rng: &mut Rng, i: u64, clusters: u64) {
    let links: Vec<LinkSample> = (0..clusters.min(1_000))
        .filter_map(|j| {
            let to = view.members.keys().nth(j as usize)?.clone();
            Some(LinkSample {
                to,
                rtt_us: 1_000 + rng.below(200_000),
                loss_ppm: 0,
                bandwidth_bps: Some(100_000_000 + rng.below(20_000_000_000)),
                bandwidth_at: None,
                at: WallTime(0),
                direct: true,
            })
        })
        .collect();
    let Some(m) = view.members.values_mut().nth(i as usize) else { return };
    edit(m, |r| {
        // Only holders' links are read; the others' would only fill memory.
        if rng.chance(0.05) {
            let set =
                |n: u64| Item { name: format!("s3://sets/{}", n % 16), size: Bytes(1 << (30 + n % 12)) };
            r.data = Some(Inventory::of((0..4).map(|_| set(rng.below(16)))));
            r.links = links;
        }
    });
}

fn change(view: &mut View, rng: &mut Rng, now: Instant, round: u64) {
    let clusters = view.members.len() as u64;
    for m in view.members.values_mut() {
        // Everybody's clock facet goes on; the rest is the same.
        edit(m, |r| r.heard_at = now);
    }
    for _ in 0..clusters.div_ceil(QUEUE_SHARE) {
        let i = rng.below(clusters);
        touch(view, rng, i, now);
    }
    if round % 10 == 9 {
        let i = rng.below(clusters);
        goods(view, rng, i, clusters);
        let j = rng.below(clusters) as usize;
        if let Some(m) = view.members.values_mut().nth(j) {
            let price = 500 + rng.below(4_000);
            edit(m, |r| r.capacity.iter_mut().for_each(|c| c.price_milli = price));
        }
    }
}

fn class(rng: &mut Rng) -> JobSpec {
    let policies = ["balanced", "data-first", "cheapest", "fastest", "spread", "green"];
    let policy = rng.pick(&policies).copied().unwrap_or("balanced");
    let mut text = format!("placement: {{policy: {policy}}}\nmax_runtime: {}h\n", 1 + rng.below(72));
    if rng.chance(0.3) {
        text.push_str(&format!("data: s3://sets/{}\n", rng.below(16)));
    }
    if rng.chance(0.3) {
        text.push_str("image: registry.example.com/a/train:1\n");
    }
    let models: Vec<&str> = (0..rng.below(3)).filter_map(|_| rng.pick(&MODELS).copied()).collect();
    let gpus = rng.pick(&[1, 1, 1, 2, 4, 8]).copied().unwrap_or(1);
    let nodes = rng.pick(&[1, 1, 1, 1, 2, 4, 16]).copied().unwrap_or(1);
    job(gpus, nodes, &models, &text)
}
