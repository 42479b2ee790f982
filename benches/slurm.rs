//! What Starling adds in front of Slurm: submit to start against plain sbatch in the same run; short jobs over two
//! clusters through the mesh against one cluster by sbatch; reads per interval with few and with many jobs.
//!
//! `cargo bench --bench slurm -- [--starts N] [--jobs N] [--seconds S] [--json]`. Makes its clusters itself, as
//! simulations/slurm does; needs root and Slurm's packages, else it says so in one line.
#![allow(clippy::disallowed_methods, reason = "measures real time, outside the product")]

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../simulations/system/harness.rs"]
mod harness;
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../simulations/slurm/peers.rs"]
mod peers;
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../simulations/slurm/sandbox.rs"]
mod sandbox;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::{submit, until};
use peers::{Peer, slurm};
use sandbox::{Cluster, Munge};

const NODES: u16 = 4;

fn option(name: &str, default: u64) -> u64 {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|a| a == name);
    at.and_then(|i| args.get(i + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn wall_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1e3
}

/// The value below which this share lies, of sorted ones.
fn quantile(values: &[f64], share: f64) -> f64 {
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// Median, and the quarters beside it.
fn quarters(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.5, 0.25, 0.75].map(|share| quantile(values, share))
}

/// The load averages of 1, 5 and 15 minutes.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

/// Milliseconds from before the submission to what the script wrote when it began.
fn start_of(file: &Path, asked: f64) -> f64 {
    let text = until("it began", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        if text.ends_with('\n') { Ok(text) } else { Err("not yet".into()) }
    });
    text.trim().parse::<f64>().expect("a time") / 1e6 - asked
}

/// Waits until so many have written their line.
fn all(file: &Path, n: usize) {
    let begun = Instant::now();
    while lines(file) < n {
        assert!(begun.elapsed() < Duration::from_secs(900), "only {} of {n} ended", lines(file));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// squeue with a count.
fn counted(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    for name in ["sbatch", "squeue", "sinfo", "scontrol", "scancel"] {
        let file = folder.join(name);
        let text =
            format!("#!/bin/sh\necho {name} >> {}/calls\nexec /usr/bin/{name} \"$@\"\n", folder.display());
        fs::write(&file, text).expect("a wrapper");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("rights");
    }
}

fn reads(folder: &Path, seconds: u64) -> f64 {
    let count = || {
        let text = fs::read_to_string(folder.join("calls")).unwrap_or_default();
        text.lines().filter(|l| ["squeue", "sinfo", "scontrol"].contains(l)).count()
    };
    let before = count();
    std::thread::sleep(Duration::from_secs(seconds));
    (count() - before) as f64 / seconds as f64
}

fn main() {
    if let Err(why) = sandbox::installed() {
        println!("not tried: {why}");
        return;
    }
    let (starts, jobs, seconds) = (option("--starts", 15), option("--jobs", 500), option("--seconds", 4));
    let folder = tempfile::Builder::new().prefix("starling-slurm-bench.").tempdir().expect("a folder");
    let root = folder.path();
    let munge = Munge::start(root);
    let a = Cluster::start(root, &munge, "alpha", NODES, "");
    let b = Cluster::start(root, &munge, "beta", NODES, "");
    let bin = root.join("bin");
    counted(&bin);
    let mesh = root.join("mesh");
    fs::create_dir_all(&mesh).expect("a folder");
    let alpha =
        Peer::start(&mesh, "alpha", &slurm(&a.conf(), &format!("bin = \"{}\"\n", bin.display())), None);
    let beta = Peer::start(&mesh, "beta", &slurm(&b.conf(), ""), Some(&alpha));
    for peer in [&alpha, &beta] {
        until("both see both", || {
            for name in ["alpha", "beta"] {
                let cluster = peer.cluster(name)?;
                if cluster["liveness"] != "alive" || cluster["gpus"]["H100"]["free"] != 16 {
                    return Err(cluster.to_string());
                }
            }
            Ok(())
        });
    }

    // Submit to start, one after the other in turn.
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for n in 0..starts {
        let file = root.join(format!("plain-{n}"));
        let asked = wall_ms();
        a.run("sbatch", &["-o", "/dev/null", "--wrap", &format!("date +%s%N > {}", file.display())]);
        plain.push(start_of(&file, asked));
        let file = root.join(format!("ours-{n}"));
        let asked = wall_ms();
        let spec =
            format!("name: s\nplacement: {{clusters: [alpha]}}\nrun: date +%s%N > {}\n", file.display());
        submit(&alpha.state, &spec);
        ours.push(start_of(&file, asked));
    }
    let load_of_starts = load();
    let (plain, ours) = (quarters(&mut plain), quarters(&mut ours));
    let overhead = ours[0] / plain[0] - 1.0;

    // Reads with nothing to do, and with many jobs.
    let few = reads(&bin, 5);

    // Short jobs: one cluster by sbatch, then two through the mesh.
    let done = root.join("one");
    let begun = Instant::now();
    for _ in 0..jobs {
        let wrap = format!("sleep {seconds}; echo x >> {}", done.display());
        a.run("sbatch", &["-o", "/dev/null", "--wrap", &wrap]);
    }
    all(&done, jobs as usize);
    let one = begun.elapsed().as_secs_f64();

    let done = root.join("two");
    let begun = Instant::now();
    let spec = format!("name: t\nrun: sleep {seconds}; echo x >> {}\n", done.display());
    let submitting = std::thread::scope(|scope| {
        for peer in [&alpha, &beta] {
            let spec = &spec;
            scope.spawn(move || (0..jobs / 2).for_each(|_| drop(submit(&peer.state, spec))));
        }
        let many = reads(&bin, 5);
        all(&done, (jobs / 2 * 2) as usize);
        many
    });
    let (two, many) = (begun.elapsed().as_secs_f64(), submitting);

    if std::env::args().any(|a| a == "--json") {
        let out = serde_json::json!({
            "start_ms": { "count": starts, "sbatch": plain, "starling": ours, "overhead": overhead, "load": load_of_starts },
            "throughput": { "jobs": jobs, "seconds_each": seconds, "one_by_sbatch_s": one, "two_by_starling_s": two, "ratio": one / two },
            "reads_per_s": { "idle": few, "busy": many },
            "load": load(),
        });
        println!("{out}");
        return;
    }
    let shown = |[median, low, high]: [f64; 3]| format!("{median:.0} ms ({low:.0} to {high:.0})");
    println!(
        "submit to start, median of {starts} and quarters: sbatch {}, starling {}, overhead {:.0} % (goal at most 10); load {load_of_starts}",
        shown(plain),
        shown(ours),
        overhead * 100.0
    );
    println!(
        "{jobs} jobs of {seconds} s: one cluster by sbatch {one:.1} s, two by starling {two:.1} s, {:.2} x (goal 1.7); load {}",
        one / two,
        load()
    );
    println!("reads of Slurm per second: idle {few:.2}, with {jobs} jobs {many:.2}");
}
