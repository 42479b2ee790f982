//! Record commits (one compare-and-swap of a job's record, by the peer that made the last one) and durable submits: 3 peers, every answer after fsync at a majority of the job's homes;
//! beside puts into three nodes of Debian's `etcd` (a record's size, fsync at a majority as well) and the raw
//! group commit of one store with 8 and with 64 writers on the same disk, in turn in the same run. With --sbatch also
//! beside held submissions to Debian's Slurm: `sbatch --hold`, and slurmrestd on connections that stay open.
//!
//! One job holds all GPUs of each cluster, so that the others queue: what is measured is taking jobs, not
//! running them.
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod common;
#[path = "common/etcd.rs"]
mod etcd;
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../simulations/system/harness.rs"]
mod harness;
#[path = "common/held.rs"]
mod held;
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../simulations/slurm/sandbox.rs"]
mod sandbox;
#[path = "common/seen.rs"]
mod seen;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::http::{Request, header};
use bytes::Bytes;
use common::fleet::{Fleet, FleetPeer, folder, post, text};
use common::{Args, Sample, bar, cores, load, print, table};
use etcd::Etcd;
use held::Held;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use starling::core::{Table, Write};
use starling::runtime::store::Store;

const HELP: &str = "submit: rate and latency of durable submits at 3 peers
  --connections 8,64  kept open, spread over the peers
  --no-etcd         without etcd
  --seeing          instead: with and without events, audit, metrics and alerts, in turn, at peers of this process
  --sbatch          beside a Slurm cluster that this makes; needs root and Slurm's packages
  --seconds 8       length of each load
  --rounds 3        of each load, in turn
  --json            one JSON document";

const PEERS: usize = 3;
/// About a job's record.
const ROW_BYTES: usize = 600;
const CONFIG: &str =
    "[[nodes]]\nname = \"n\"\ngpu = \"A100-80G\"\ngpus = 8\ncpus = 64\nmemory = \"256GiB\"\n";
const SPEC: &str =
    r#"{"name":"bench","run":"true","resources":{"gpus":1,"gpu":"A100-80G","cpus":1,"memory":"1GiB"}}"#;

fn main() -> ExitCode {
    let known = ["--connections", "--no-etcd", "--sbatch", "--seeing", "--seconds", "--rounds", "--json"];
    let args = Args::read(HELP, &known);
    common::run(Duration::from_secs(580), bench(args))
}

/// What one kind of load did.
struct Load {
    name: String,
    latency_ms: Sample,
    seconds: f64,
}

impl Load {
    fn new(name: String) -> Self {
        Self { name, latency_ms: Sample::default(), seconds: 0.0 }
    }
    fn rate(&self) -> f64 {
        self.latency_ms.len() as f64 / self.seconds
    }
}

async fn bench(args: Args) -> anyhow::Result<()> {
    if args.has("--seeing") {
        return seen::seeing(&args).await;
    }
    let connections = args.numbers("--connections", &[8, 64]);
    let (rounds, span) = (args.number("--rounds", 3), Duration::from_secs(args.number("--seconds", 8)));
    let fleet = Fleet::start(PEERS, CONFIG).await?;
    let holders = hold(&fleet.peers).await?;
    let running = run_idle(&fleet.peers, connections.iter().copied().max().unwrap_or(1)).await?;
    let etcd = if args.has("--no-etcd") {
        Err(anyhow::anyhow!("left out by --no-etcd"))
    } else {
        Etcd::start(PEERS).await
    };
    if let Err(why) = &etcd {
        eprintln!("NO COMPARISON WITH ETCD: {why:#}");
    }
    // Its start waits; nothing else runs yet.
    let slurm = if args.has("--sbatch") { Some(tokio::task::block_in_place(Held::start)?) } else { None };
    let mut held: Vec<(usize, Load)> = Vec::new();
    if slurm.is_some() {
        held.extend(connections.iter().map(|n| (*n, Load::new(format!("sbatch --hold, {n} clients")))));
    }
    let mut rest: Vec<(usize, Load)> = Vec::new();
    if slurm.as_ref().is_some_and(Held::has_rest) {
        rest.extend(
            connections.iter().map(|n| (*n, Load::new(format!("slurmrestd, held, {n} connections")))),
        );
    }
    let disk = folder()?;
    let path = disk.path().to_owned();
    let (store, _) = tokio::task::spawn_blocking(move || Store::open(&path)).await??;
    let mut submit: Vec<(usize, Load)> = connections
        .iter()
        .map(|n| (*n, Load::new(format!("submit, {PEERS} peers, {n} connections"))))
        .collect();
    let mut swaps: Vec<(usize, Load)> = connections
        .iter()
        .map(|n| (*n, Load::new(format!("record commit, {PEERS} peers, {n} connections"))))
        .collect();
    let mut puts: Vec<(usize, Load)> = connections
        .iter()
        .filter(|_| etcd.is_ok())
        .map(|n| (*n, Load::new(format!("etcd put, {PEERS} nodes, {n} connections"))))
        .collect();
    let mut raw = [8, 64].map(|writers| (writers, Load::new(format!("raw store, {writers} writers"))));
    let progress =
        bar(rounds * (2 + 2 * submit.len() + puts.len() + held.len() + rest.len()) as u64, "loads in turn");
    for round in 0..rounds {
        for (writers, load) in &mut raw {
            commits(&store, *writers, round, span, load).await?;
            progress.inc(1);
        }
        for (n, load) in &mut swaps {
            let request = checkpoints(&running, round.to_string());
            ask_on(&fleet.peers, *n, span, load, request).await?;
            progress.inc(1);
        }
        for (n, load) in &mut submit {
            ask_on(&fleet.peers, *n, span, load, submits()).await?;
            progress.inc(1);
        }
        for (n, load) in &mut puts {
            if let Ok(etcd) = &etcd {
                etcd_puts(etcd, *n, span, load).await?;
            }
            progress.inc(1);
        }
        if let Some(slurm) = &slurm {
            for (n, load) in &mut held {
                slurm.sbatch(*n, span, load).await?;
                progress.inc(1);
            }
            for (n, load) in &mut rest {
                slurm.rest(*n, span, load).await?;
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    for id in holders.into_iter().chain(running) {
        post(&fleet.peers[0].client, &format!("/v1/jobs/{id}/cancel"), None).await?;
    }
    let all: Vec<&Load> = swaps
        .iter()
        .chain(&submit)
        .chain(&puts)
        .chain(&held)
        .chain(&rest)
        .chain(&raw)
        .map(|(_, l)| l)
        .collect();
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|l| {
            let number = |x: f64| format!("{x:.2}");
            vec![
                l.name.clone(),
                format!("{:.0}", l.rate()),
                number(l.latency_ms.median()),
                number(l.latency_ms.quantile(0.99)),
            ]
        })
        .collect();
    let beside = |what: &str, (n, mine): &(usize, Load), (_, theirs): &(usize, Load)| {
        let p99 = mine.latency_ms.quantile(0.99) / theirs.latency_ms.quantile(0.99);
        json!({ "load": what, "connections": n, "rate_over_etcd": mine.rate() / theirs.rate(), "p99_over_etcd": p99 })
    };
    let ratios: Vec<Value> = swaps.iter().zip(&puts).map(|(a, b)| beside("record commit", a, b)).collect();
    let submits: Vec<Value> = submit.iter().zip(&puts).map(|(a, b)| beside("submit", a, b)).collect();
    let ratios: Vec<Value> = ratios.into_iter().chain(submits).collect();
    let over = |what: &str, theirs: &[(usize, Load)]| -> Vec<Value> {
        let pairs = submit.iter().zip(theirs);
        pairs
            .map(|((n, a), (_, b))| json!({ "beside": what, "connections": n, "rate": a.rate() / b.rate() }))
            .collect()
    };
    let against_slurm: Vec<Value> =
        over("sbatch --hold", &held).into_iter().chain(over("slurmrestd", &rest)).collect();
    let version = etcd.as_ref().map(|e| e.version.clone()).ok();
    let head = ["load", "per second", "p50 ms", "p99 ms"];
    let against: Vec<String> = ratios
        .iter()
        .map(|r| {
            let (rate, p99) = (r["rate_over_etcd"].as_f64(), r["p99_over_etcd"].as_f64());
            format!(
                "{}, {} connections: {:.2} x etcd's rate (goal 3), p99 {:.2} x etcd's (goal at most 1)",
                r["load"].as_str().unwrap_or_default(),
                r["connections"],
                rate.unwrap_or(f64::NAN),
                p99.unwrap_or(f64::NAN)
            )
        })
        .collect();
    let against = if against.is_empty() { "NO ETCD, NO COMPARISON".to_owned() } else { against.join("\n") };
    let slurms: String = against_slurm
        .iter()
        .map(|r| {
            format!(
                "submit, {} connections: {:.1} x the rate of {} (goal 20)\n",
                r["connections"],
                r["rate"].as_f64().unwrap_or(f64::NAN),
                r["beside"].as_str().unwrap_or_default()
            )
        })
        .collect();
    let shown =
        format!("{}\n{against}\n{slurms}load average {} on {} cores", table(&head, &rows), load(), cores());
    let loads: Vec<_> = all
        .iter()
        .map(|l| json!({ "name": l.name, "per_second": l.rate(), "p50_ms": l.latency_ms.median(), "p99_ms": l.latency_ms.quantile(0.99), "count": l.latency_ms.len() }))
        .collect();
    print(
        &args,
        &json!({ "bench": "submit", "loads": loads, "etcd": version, "against_etcd": ratios, "slurm": slurm.as_ref().map(|s| s.version.clone()),
                "against_slurm": against_slurm, "load": load(), "cores": cores() }),
        &shown,
    );
    Ok(())
}

/// Path and body of the nth request of a connection.
trait Requests: Fn(usize, usize) -> (String, Bytes) + Clone + Send + Sync {}
impl<F: Fn(usize, usize) -> (String, Bytes) + Clone + Send + Sync> Requests for F {}

/// Each connection publishes checkpoints of a running job of its own.
fn checkpoints(running: &[String], tag: String) -> impl Requests {
    move |connection, count| {
        let body = json!({ "epoch": 1, "uri": format!("file:///checkpoints/{tag}/{count}") });
        (format!("/v1/jobs/{}/checkpoint", running[connection]), Bytes::from(body.to_string()))
    }
}

fn submits() -> impl Requests {
    let body = Bytes::from_static(SPEC.as_bytes());
    move |_, _| ("/v1/jobs".to_owned(), body.clone())
}

/// Fills every cluster with one job; gives their ids once all run.
async fn hold(peers: &[FleetPeer]) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    for peer in peers {
        let resources = r#"{"gpus":8,"gpu":"A100-80G","cpus":1,"memory":"1GiB"}"#;
        let placement = format!(r#"{{"clusters":["{}"]}}"#, peer.name);
        // It ends by itself if nobody ends it.
        let spec = format!(
            r#"{{"name":"holder","run":"sleep 390","resources":{resources},"placement":{placement}}}"#
        );
        let job = post(&peer.client, "/v1/jobs", Some(&spec)).await?;
        ids.push(text(&job, "id")?.to_owned());
    }
    for id in &ids {
        until_running(peers, id).await?;
    }
    Ok(ids)
}

async fn until_running(peers: &[FleetPeer], id: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let job: Value = peers[0].client.get(&format!("/v1/jobs/{id}")).await?;
        if job["state"] == "running" {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(30) {
            let all: Value = peers[0].client.get("/v1/jobs").await.unwrap_or_default();
            bail!("a job of the bench does not run: {job}\nall: {all}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writers that each commit one row, wait for the disk, and commit the next.
async fn commits(
    store: &Store,
    writers: usize,
    round: u64,
    span: Duration,
    load: &mut Load,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let (mut sample, mut n) = (Sample::default(), 0_u64);
                while begun.elapsed() < span {
                    let key = format!("{round}-{writers}-{writer}-{n}").into_bytes();
                    let at = Instant::now();
                    store
                        .commit(vec![Write { table: Table::Acceptors, key, value: Some(vec![7; ROW_BYTES]) }])
                        .await?;
                    sample.add(at.elapsed().as_secs_f64() * 1e3);
                    n += 1;
                }
                Ok::<_, anyhow::Error>(sample)
            })
        })
        .collect();
    for task in tasks {
        load.latency_ms.extend(&task.await??);
    }
    load.seconds += begun.elapsed().as_secs_f64();
    Ok(())
}

/// Connections that each put one value of a record's size, wait for the answer, and put the next.
async fn etcd_puts(etcd: &Etcd, connections: usize, span: Duration, load: &mut Load) -> anyhow::Result<()> {
    let mut open = Vec::new();
    for n in 0..connections {
        open.push(etcd.connect(n).await?);
    }
    let begun = Instant::now();
    let tasks: Vec<_> = open
        .into_iter()
        .enumerate()
        .map(|(n, mut connection)| {
            tokio::spawn(async move {
                let (mut sample, mut i) = (Sample::default(), 0_u64);
                while begun.elapsed() < span {
                    let key = format!("record/{n}/{:?}/{i}", begun);
                    let at = Instant::now();
                    connection.put(key.as_bytes(), &[7; ROW_BYTES]).await?;
                    sample.add(at.elapsed().as_secs_f64() * 1e3);
                    i += 1;
                }
                Ok::<_, anyhow::Error>(sample)
            })
        })
        .collect();
    for task in tasks {
        load.latency_ms.extend(&task.await?.context("putting")?);
    }
    load.seconds += begun.elapsed().as_secs_f64();
    Ok(())
}

/// Jobs that run and do nothing, for as long as the bench may take.
async fn run_idle(peers: &[FleetPeer], count: usize) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    for n in 0..count {
        let resources = r#"{"gpus":0,"cpus":0.5,"memory":"64MiB"}"#;
        let spec = format!(r#"{{"name":"idle","run":"sleep 570","resources":{resources}}}"#);
        let job = post(&peers[n % PEERS].client, "/v1/jobs", Some(&spec)).await?;
        ids.push(text(&job, "id")?.to_owned());
    }
    for id in &ids {
        until_running(peers, id).await?;
    }
    Ok(ids)
}

/// Connections that each ask one thing, wait for the answer, and ask the next.
async fn ask_on(
    peers: &[FleetPeer],
    connections: usize,
    span: Duration,
    load: &mut Load,
    request: impl Requests,
) -> anyhow::Result<()> {
    let mut open = Vec::new();
    for n in 0..connections {
        let stream = tokio::net::UnixStream::connect(&peers[n % PEERS].socket).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        open.push(sender);
    }
    let begun = Instant::now();
    let tasks = open.into_iter().enumerate().map(|(n, mut sender)| {
        let request = request.clone();
        async move {
            let mut sample = Sample::default();
            while begun.elapsed() < span {
                let (path, body) = request(n, sample.len());
                let request = Request::post(path)
                    .header(header::HOST, "starling")
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(body))?;
                let at = Instant::now();
                sender.ready().await?;
                let answer = sender.send_request(request).await?;
                let status = answer.status();
                let bytes = answer.into_body().collect().await?.to_bytes();
                if !status.is_success() {
                    bail!("answered {status}: {}", String::from_utf8_lossy(&bytes));
                }
                sample.add(at.elapsed().as_secs_f64() * 1e3);
            }
            Ok::<_, anyhow::Error>(sample)
        }
    });
    for sample in futures::future::join_all(tasks).await {
        load.latency_ms.extend(&sample.context("asking")?);
    }
    load.seconds += begun.elapsed().as_secs_f64();
    Ok(())
}
