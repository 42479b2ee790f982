//! `starling replay`: the jobs of a real cluster trace through a mesh of real peers, as real processes, with
//! time sped up.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::cli::ReplayArgs;
use super::super::documents::JobDocument;
use super::super::ledger::Expected;
use super::judgement::Summary;
use super::live::Live;
use super::{Fleet, FleetError, Shape, block, io};
use crate::base::{Bytes, MilliCpu, Span};
use crate::model::NodeCapacity;
use crate::model::replay_trace::{TraceJob, generate, read_trace};
use crate::model::spec::{JobSpec, Resources, Run};
use crate::model::spec_input::parse_spec;

/// GPUs of a node; a larger job is a gang of such nodes.
const GPUS_PER_NODE: u32 = 8;
/// Nodes of each cluster: the largest gang of the Philly trace (128 GPUs) fits.
const NODES: u32 = 16;
/// Submits under way at once.
const SUBMITS_MAX: usize = 8;
/// After the last submit, all jobs must end within this, beyond the longest job.
const WITHIN: Duration = Duration::from_secs(900);
/// A trace of this name is made up instead of read.
const GENERATED: &str = "generated";

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    /// Submit to start, in seconds of the trace.
    wait_s_mean: f64,
    /// Submit to end, in seconds of the trace.
    completion_s_mean: f64,
    /// Submit to start, in real milliseconds.
    wait_real_ms_mean: f64,
    /// How many times faster than the trace.
    speed: f64,
    /// Share of its GPU time that a cluster's jobs ran.
    utilisation: BTreeMap<String, f64>,
    /// Rows of the trace that could not be used.
    rows_left_out: u64,
}

/// Runs the replay to its end.
pub fn main(args: ReplayArgs) -> ExitCode {
    match block(run(&args)) {
        Ok(report) => {
            if args.json {
                println!("{}", serde_json::to_string(&report).unwrap_or_default());
            } else {
                print!("{}", text(&report));
            }
            if report.summary.holds() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(FleetError::Invalid(why)) => {
            eprintln!("starling: replay: {why}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("starling: replay: {error}");
            ExitCode::from(70)
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = report.summary.text();
    let span = |s: f64| Span((s * 1e6) as u64).to_string();
    text.push_str(&format!(
        "  {:<12}{:>10} (trace time; {:.0} ms real)\n",
        "mean wait",
        span(report.wait_s_mean),
        report.wait_real_ms_mean
    ));
    text.push_str(&format!("  {:<12}{:>10} (trace time)\n", "completion", span(report.completion_s_mean)));
    for (cluster, share) in &report.utilisation {
        text.push_str(&format!("  {cluster:<12}{:>9.1} % of its GPU time\n", share * 100.0));
    }
    text
}

fn load(args: &ReplayArgs) -> Result<(Vec<TraceJob>, u64), FleetError> {
    let limit = args.limit.unwrap_or(usize::MAX);
    if args.trace.as_os_str() == GENERATED {
        return Ok((generate(args.seed, limit.min(100_000), Span::secs(60)), 0));
    }
    let file = std::fs::File::open(&args.trace).map_err(|e| {
        FleetError::Invalid(format!("{}: {e}; or give `{GENERATED}` for made-up jobs", args.trace.display()))
    })?;
    let trace =
        read_trace(file).map_err(|e| FleetError::Invalid(format!("{}: {e}", args.trace.display())))?;
    for bad in trace.bad.iter().take(5) {
        eprintln!("{} line {} left out: {}", args.trace.display(), bad.line, bad.reason);
    }
    let mut jobs = trace.jobs;
    jobs.truncate(limit);
    if jobs.is_empty() {
        return Err(FleetError::Invalid(format!("{} holds no job", args.trace.display())));
    }
    Ok((jobs, trace.bad_count))
}

async fn run(args: &ReplayArgs) -> Result<Report, FleetError> {
    let (jobs, rows_left_out) = load(args)?;
    let nodes = vec![NodeCapacity {
        name: "n".into(),
        count: NODES,
        gpu_model: Some("V100-32G".into()),
        gpus: GPUS_PER_NODE,
        gpu_memory: Bytes::gib(32),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    }];
    let shape = Shape { clusters: args.clusters, nodes, attempts_kept: 100, ..Shape::default() };
    let fleet = Fleet::start(&shape, args.dir.as_deref(), |text| eprintln!("{text}")).await?;
    eprintln!("{} peers of {} virtual GPUs each agree", fleet.peers.len(), NODES * GPUS_PER_NODE);
    let outcome = play(&fleet, args, &jobs, rows_left_out).await;
    let keep_files = outcome.as_ref().map_or(true, |r| !r.summary.holds());
    if keep_files {
        eprintln!("logs and ledgers are kept in {}", fleet.dir.display());
    }
    fleet.stop(keep_files).await;
    outcome
}

async fn play(
    fleet: &Fleet,
    args: &ReplayArgs,
    trace: &[TraceJob],
    rows_left_out: u64,
) -> Result<Report, FleetError> {
    let ledger = fleet.dir.join("ledger.jsonl");
    let specs: Vec<JobSpec> = trace
        .iter()
        .enumerate()
        .map(|(n, job)| spec(n, job, args.speed, &fleet.exe, &ledger))
        .collect::<Result<_, _>>()?;
    let mut live = Live::new(trace.len() as u64);
    let begun = Instant::now();
    let (done, submitted) = (tokio::sync::watch::channel(0usize).0, tokio::sync::Semaphore::new(SUBMITS_MAX));
    let submits =
        futures::future::try_join_all(trace.iter().zip(&specs).enumerate().map(|(n, (job, spec))| {
            let (done, submitted) = (&done, &submitted);
            async move {
                let at = Duration::from_secs_f64(job.at.as_secs_f64() / args.speed);
                tokio::time::sleep(at.saturating_sub(begun.elapsed())).await;
                let _seat = submitted.acquire().await.map_err(|e| FleetError::Invalid(e.to_string()))?;
                let id = fleet.submit(n % fleet.peers.len(), spec, &format!("replay-{n}")).await?;
                done.send_modify(|n| *n += 1);
                Ok::<_, FleetError>(Expected { job: id, ranks: spec.nodes })
            }
        }));
    let longest = trace.iter().map(|j| j.at + j.duration).max().unwrap_or_default();
    let within = WITHIN + Duration::from_secs_f64(2.0 * longest.as_secs_f64() / args.speed);
    let watching = watch(fleet, &mut live, trace.len(), begun, within);
    let (expected, jobs) = tokio::try_join!(submits, watching)?;
    live.end();
    let summary = Summary::new(&[ledger], &expected, &jobs, fleet.peers.len()).map_err(io("the ledger"))?;
    let clusters = fleet.peers.iter().map(|p| p.name.to_string());
    Ok(report(summary, &jobs, clusters, args.speed, rows_left_out))
}

async fn watch(
    fleet: &Fleet,
    live: &mut Live,
    count: usize,
    begun: Instant,
    within: Duration,
) -> Result<Vec<JobDocument>, FleetError> {
    loop {
        let jobs = fleet.jobs(count + 10).await?.jobs;
        let (clusters, links) = (fleet.clusters().await?.clusters, fleet.links().await?.links);
        live.draw(&clusters, &links, &jobs);
        if jobs.len() >= count && jobs.iter().all(|j| j.done) {
            return Ok(jobs);
        }
        if begun.elapsed() > within {
            let open = jobs.iter().filter(|j| !j.done).count() + count.saturating_sub(jobs.len());
            let first = jobs.iter().find(|j| !j.done).map(|j| format!("; {} {}: {}", j.id, j.name, j.reason));
            return Err(FleetError::Invalid(format!(
                "{open} jobs have not ended within {within:?}{}",
                first.unwrap_or_default()
            )));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn spec(n: usize, job: &TraceJob, speed: f64, exe: &Path, ledger: &Path) -> Result<JobSpec, FleetError> {
    let nodes = job.gpus.div_ceil(GPUS_PER_NODE).max(1);
    if nodes > NODES {
        return Err(FleetError::Invalid(format!(
            "job {n} wants {} GPUs; a cluster has {}",
            job.gpus,
            NODES * GPUS_PER_NODE
        )));
    }
    let ms = (job.duration.as_secs_f64() * 1000.0 / speed).round() as u64;
    let base = parse_spec(b"run: 'true'").map_err(|e| FleetError::Invalid(e.to_string()))?.spec;
    let argv = [
        &exe.display().to_string(),
        "work",
        "sleep",
        "--ms",
        &ms.to_string(),
        "--ledger",
        &ledger.display().to_string(),
    ];
    let group: String =
        job.group.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(64).collect();
    Ok(JobSpec {
        name: format!("trace-{n}"),
        tenant: if group.is_empty() { "default".into() } else { group },
        resources: Resources {
            gpus: job.gpus.div_ceil(nodes),
            gpu: vec![],
            cpus: MilliCpu(1_000),
            memory: Bytes(0),
        },
        nodes,
        run: Run::Argv(argv.map(str::to_owned).to_vec()),
        ..base
    })
}

fn report(
    summary: Summary,
    jobs: &[JobDocument],
    clusters: impl Iterator<Item = String>,
    speed: f64,
    rows_left_out: u64,
) -> Report {
    let mean = |of: &dyn Fn(&JobDocument) -> Option<u64>| {
        let all: Vec<f64> = jobs.iter().filter_map(|j| of(j).map(|ms| ms as f64)).collect();
        all.iter().sum::<f64>() / (all.len().max(1)) as f64
    };
    let started = |j: &JobDocument| j.attempts.iter().find_map(|a| a.started_at_ms);
    let wait = mean(&|j| Some(started(j)?.saturating_sub(j.submitted_at_ms)));
    let completion = mean(&|j| Some(j.finished_at_ms?.saturating_sub(j.submitted_at_ms)));
    // A cluster that ran nothing is told of, too.
    let mut busy: BTreeMap<String, f64> = clusters.map(|name| (name, 0.0)).collect();
    for job in jobs {
        for attempt in &job.attempts {
            if let (Some(from), Some(to)) = (attempt.started_at_ms, attempt.ended_at_ms) {
                *busy.entry(attempt.cluster.to_string()).or_default() +=
                    to.saturating_sub(from) as f64 / 1000.0 * job.gpus as f64;
            }
        }
    }
    let whole = summary.seconds.max(1e-3) * f64::from(NODES * GPUS_PER_NODE);
    Report {
        wait_s_mean: wait / 1000.0 * speed,
        completion_s_mean: completion / 1000.0 * speed,
        wait_real_ms_mean: wait,
        speed,
        utilisation: busy.into_iter().map(|(cluster, s)| (cluster, s / whole)).collect(),
        rows_left_out,
        summary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::fake::Fake;

    /// Waits and shares are of the trace's time and of whole clusters; one that ran nothing is there with nothing.
    #[test]
    fn a_report_has_every_cluster() {
        let fake = Fake::new("c1");
        let id = fake.put(Fake::spec("run: x\nresources: {gpus: 8}\nnodes: 2\n"));
        fake.place(id, "c1");
        fake.close(id, 0);
        let job = JobDocument::new(&fake.state.lock().expect("state").records[&id], false);
        let attempt = &job.attempts[0];
        let (started, ended) = (attempt.started_at_ms.expect("started"), attempt.ended_at_ms.expect("ended"));
        let dir = tempfile::tempdir().expect("a folder");
        let jobs = [job.clone()];
        std::fs::write(dir.path().join("ledger"), "").expect("written");
        let summary = Summary::new(&[dir.path().join("ledger")], &[], &jobs, 2).expect("a summary");
        let seconds = summary.seconds;
        let clusters = ["c1", "c2"].map(str::to_owned).into_iter();
        let report = report(summary, &jobs, clusters, 10.0, 0);
        assert_eq!(report.utilisation.keys().collect::<Vec<_>>(), ["c1", "c2"]);
        assert_eq!(report.utilisation["c2"], 0.0);
        let share = (ended - started) as f64 / 1e3 * 16.0 / (seconds * 128.0);
        assert!(share > 0.0 && (report.utilisation["c1"] - share).abs() < 1e-9, "{share}");
        let wait = (started - job.submitted_at_ms) as f64 / 1e3 * 10.0;
        assert!((report.wait_s_mean - wait).abs() < 1e-9 && report.completion_s_mean > report.wait_s_mean);
    }
}
