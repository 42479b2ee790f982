//! The page at 100 clusters and 10,000 jobs: server time and bytes of each view's first paint.
//!
//! The feed is made up, the page is the real one: a peer whose view has 100 clusters, and 99 others that answer for the
//! records they hold (three homes a job) with the documents that real ones send. *Cold* is the first look after the
//! list of jobs has aged, so the mesh is asked; *warm* is the next one.
#![allow(clippy::disallowed_methods, reason = "measures real time, outside the product")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use common::{Args, Sample, cores, load, print, table};
use serde_json::json;
use starling::base::*;
use starling::core::api::{AttemptKey, AttemptView, ClaimView, ClientError, Event, InspectReport};
use starling::core::{ClientRequest, ClientResponse};
use starling::model::record::{Birth, Change};
use starling::model::report::{CapacityReport, LinkSample, Liveness, MemberView, QueueReport, Report, View};
use starling::model::{JobRecord, NodeCapacity, Outcome, Placement};
use starling::runtime::{CallError, MemberInfo, PeerHandle, ProxyRequest, ProxyResponse, SelfInfo};
use starling::surface::documents::{InspectDocument, JobDocument, JobList, boottime_now, wall_now};
use tokio::sync::broadcast;
use tower::ServiceExt;

const HELP: &str = "page: server time and bytes of each view of the page
  --clusters 100    in the view
  --jobs 10000      in the mesh
  --rounds 15       looks at each view
  --json            one JSON document";

/// What is promised of each view.
const MS_MAX: f64 = 200.0;
const BYTES_MAX: usize = 300_000;

fn main() -> ExitCode {
    let args = Args::read(HELP, &["--clusters", "--jobs", "--rounds", "--json"]);
    common::run(Duration::from_secs(300), bench(args))
}

/// One made-up mesh, as its first peer sees it.
struct Feed {
    names: Vec<PeerName>,
    view: Arc<View>,
    /// Records by home.
    held: BTreeMap<PeerName, Vec<JobRecord>>,
    /// What each other answers to a request for its jobs.
    lists: BTreeMap<PeerName, Vec<u8>>,
    events: broadcast::Sender<Event>,
    asked: Mutex<u64>,
}

fn name(n: usize) -> PeerName {
    PeerName::new(&format!("cluster-{n:03}")).expect("a name")
}

fn member(n: usize, all: &[PeerName], at: WallTime) -> MemberView {
    let peer = all[n].clone();
    let gpus = |n: u32| BTreeMap::from([("H100-80G".to_owned(), n), ("A100-80G".to_owned(), n / 2)]);
    let node = |name: &str, model: &str| NodeCapacity {
        name: name.into(),
        count: 8,
        gpu_model: Some(model.into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(96_000),
        memory: Bytes::gib(1_024),
        declared: false,
    };
    let capacity = CapacityReport {
        backend: "slurm".into(),
        region: format!("region-{}", n % 8),
        zone: format!("zone-{}", n % 3),
        labels: BTreeMap::from([("scheduler".into(), "slurm".into())]),
        price_milli: 2_500,
        pue_milli: 1_200,
        nodes: vec![node("h100", "H100-80G"), node("a100", "A100-80G")],
        container_runtime: None,
        terms: Default::default(),
        nodes_out: Default::default(),
        slurm: None,
    };
    let queue = QueueReport {
        gpus_free: gpus(n as u32 % 30),
        gpus_total: gpus(64),
        running: 60,
        queued: 40,
        queued_gpus: 200,
        ..QueueReport::default()
    };
    let links = all.iter().enumerate().filter(|(to, _)| *to != n).map(|(to, name)| LinkSample {
        to: name.clone(),
        rtt_us: 500 + 997 * ((n * 31 + to * 17) as u64 % 200),
        loss_ppm: (n * to) as u32 % 900,
        bandwidth_bps: Some(1_000_000_000 + (n * to) as u64 * 1_000_000),
        bandwidth_at: Some(at),
        at,
        direct: true,
    });
    let report = Report {
        peer: peer.clone(),
        store: StoreId([1; 16]),
        capacity: Some(capacity),
        queue: Some(queue),
        contact: None,
        health: Some(Default::default()),
        build: Some(Default::default()),
        links: links.collect(),
        data: None,
        images: None,
        alerts: None,
        heard_at: boottime_now(),
    };
    // A few are away, as always.
    let liveness = if n == 7 { Liveness::Lost } else { Liveness::Alive };
    MemberView {
        peer,
        store: StoreId([1; 16]),
        witness: false,
        liveness,
        draining: n == 9,
        report: Some(Arc::new(report)),
    }
}

fn record(n: usize, names: &[PeerName], now: WallTime) -> anyhow::Result<JobRecord> {
    let home =
        |k: usize| Home { peer: names[(n * 7 + k * 13) % names.len()].clone(), store: StoreId([1; 16]) };
    let homes: Vec<Home> = [home(0), home(1), home(2)].into();
    let tenant = format!("team-{}", n % 40);
    let birth = Birth {
        tenant: tenant.clone(),
        minter: names[0].clone(),
        sequence: n as u64,
        homes: homes.try_into().ok().context("three homes")?,
    };
    let text = format!(
        "name: train-{n}\ntenant: {tenant}\nresources: {{gpus: 4, gpu: [H100]}}\nretries: 3\nrun: [python, train.py]\n"
    );
    let spec = starling::model::spec_input::parse_spec(text.as_bytes()).ok().context("a spec")?.spec;
    let mut record = JobRecord::new(birth, spec, TraceId([2; 16]), WallTime(now.0 - (n as u64) * 900));
    // Four of ten run, two wait, the rest has ended; some on their third attempt.
    let cluster = |n: usize| names[n % names.len()].clone();
    let mut apply = |change: Change| {
        record = record.apply(&change).map_err(|e| anyhow::anyhow!("{e}"))?;
        anyhow::Ok(record.epoch)
    };
    for attempt in 0..n % 3 + 1 {
        if n % 10 >= 8 {
            break;
        }
        let placement = Placement {
            cluster: cluster(n + attempt),
            contact: ContactId([3; 20]),
            incarnation: 1,
            series: 1,
            contact_homes: BoundedVec::default(),
            at: now,
        };
        let epoch = Epoch(attempt as u64 + 1);
        apply(Change::Place { placement, epoch })?;
        apply(Change::Started { epoch, at: now, nodes: None })?;
        let last = attempt == n % 3;
        if !last || n % 10 >= 4 {
            let outcome = if last { Outcome::Exited(0) } else { Outcome::Stopped("drain".into()) };
            apply(Change::Close { epoch, outcome, started_at: Some(now), at: now, note: None, nodes: None })?;
        }
    }
    Ok(record)
}

impl Feed {
    fn new(clusters: usize, jobs: usize) -> anyhow::Result<Self> {
        let now = wall_now();
        let names: Vec<PeerName> = (0..clusters).map(name).collect();
        let members = (0..clusters).map(|n| (names[n].clone(), member(n, &names, now))).collect();
        let mut held: BTreeMap<PeerName, Vec<JobRecord>> = BTreeMap::new();
        for n in 0..jobs {
            let record = record(n, &names, now)?;
            for home in record.homes() {
                held.entry(home.peer.clone()).or_default().push(record.clone());
            }
        }
        let mut lists = BTreeMap::new();
        for (peer, records) in &held {
            let jobs = records.iter().map(|r| JobDocument::new(r, false)).collect();
            lists.insert(peer.clone(), serde_json::to_vec(&JobList { jobs, ..JobList::default() })?);
        }
        let view = Arc::new(View { members, isolated: false });
        Ok(Self { names, view, held, lists, events: broadcast::channel(16).0, asked: Mutex::default() })
    }

    fn inspect(&self) -> InspectReport {
        let (job, owner) = (JobId([7; 20]), self.names[0].clone());
        let attempt = |n: u64| AttemptView {
            job,
            epoch: Epoch(n),
            name: format!("train-{n}"),
            tenant: format!("team-{}", n % 40),
            gpus: 4,
            phase: "running".into(),
            age: Span::secs(n),
            staging: None,
        };
        let claim = |n: u64| ClaimView {
            job,
            owner: owner.clone(),
            priority: 50,
            gpus: 4,
            granted: false,
            age: Span::secs(n),
            why: "3 of 4 GPUs wanted are free".into(),
            starts_in: Some(Span::secs(n)),
        };
        InspectReport {
            attempts: (0..60).map(attempt).collect(),
            queue: (0..400).map(claim).collect(),
            records: 300,
            ..InspectReport::default()
        }
    }
}

#[async_trait]
impl PeerHandle for Feed {
    fn about(&self) -> SelfInfo {
        SelfInfo {
            name: self.names[0].clone(),
            mesh: "abababababababab".into(),
            store: StoreId([1; 16]),
            boot: 1,
            listen: "127.0.0.1:1".into(),
            api: None,
            version: "0".into(),
            certificate: (WallTime(0), WallTime(1 << 50)),
            started_at: WallTime(0),
            draining: false,
        }
    }
    fn view(&self) -> Arc<View> {
        self.view.clone()
    }
    fn members(&self) -> Vec<MemberInfo> {
        let info = |name: &PeerName| MemberInfo {
            name: name.clone(),
            store: StoreId([1; 16]),
            addresses: vec!["127.0.0.1:1".into()],
            removed: false,
            witness: false,
        };
        self.names.iter().map(info).collect()
    }
    async fn call(&self, request: ClientRequest) -> Result<ClientResponse, CallError> {
        let mine = self.held.get(&self.names[0]).cloned().unwrap_or_default();
        let all = || self.held.values().flatten();
        Ok(match request {
            ClientRequest::Local { .. } => ClientResponse::Jobs(mine),
            ClientRequest::Inspect(_) => ClientResponse::Inspect(Box::new(self.inspect())),
            ClientRequest::Get { job } => match all().find(|r| r.id() == job) {
                Some(record) => ClientResponse::Job(Box::new(record.clone())),
                None => ClientResponse::Error(ClientError::NoSuchJob(job)),
            },
            ClientRequest::Tenants => ClientResponse::Tenants(Vec::new()),
            _ => ClientResponse::Error(ClientError::NoHomes { alive: 0, needed: 2 }),
        })
    }
    async fn proxy(&self, peer: &PeerName, request: ProxyRequest) -> Result<ProxyResponse, CallError> {
        if let Ok(mut asked) = self.asked.lock() {
            *asked += 1;
        }
        let bytes = if request.uri.starts_with("/v1/local/jobs?") {
            self.lists
                .get(peer)
                .cloned()
                .unwrap_or_else(|| b"{\"jobs\":[],\"truncated\":false,\"unanswered\":[]}".into())
        } else if request.uri.starts_with("/v1/local/inspect") {
            serde_json::to_vec(&InspectDocument { peer: peer.clone(), core: self.inspect() })
                .unwrap_or_default()
        } else {
            return Err(CallError::Unreachable(peer.clone(), self.names[0].clone()));
        };
        let body = Box::pin(futures::stream::once(async move { Ok(bytes::Bytes::from(bytes)) }));
        Ok(ProxyResponse { status: 200, content_type: "application/json".into(), body })
    }
    async fn token_create(&self, _: Span) -> Result<String, CallError> {
        Err(CallError::Stopping)
    }
    async fn member_remove(&self, _: &PeerName) -> Result<(), CallError> {
        Err(CallError::Stopping)
    }
    async fn drain(&self, _: bool) -> Result<(), CallError> {
        Err(CallError::Stopping)
    }
    fn logs(&self, _: AttemptKey) -> Option<Vec<PathBuf>> {
        None
    }
    fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
    fn metrics(&self) -> String {
        "# EOF\n".into()
    }
}

/// One look: milliseconds and bytes.
async fn look(router: &axum::Router, path: &str) -> anyhow::Result<(f64, usize)> {
    let request = Request::get(path).header("accept", "text/html").body(Body::empty())?;
    let began = Instant::now();
    let response = router.clone().oneshot(request).await?;
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), 64 << 20).await?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    if !status.is_success() {
        bail!("{path}: {status}: {}", String::from_utf8_lossy(&bytes).chars().take(400).collect::<String>());
    }
    Ok((took, bytes.len()))
}

async fn bench(args: Args) -> anyhow::Result<()> {
    let (clusters, jobs) = (args.number("--clusters", 100) as usize, args.number("--jobs", 10_000) as usize);
    let feed = Arc::new(Feed::new(clusters, jobs)?);
    let job = feed.held.values().flatten().next().context("a job")?.id();
    let views = [
        "/".to_owned(),
        "/jobs".into(),
        "/jobs?state=running&sort=-gpus".into(),
        "/jobs?q=train-77".into(),
        format!("/jobs/{job}"),
        "/clusters".into(),
        format!("/clusters/{}", feed.names[3 % clusters]),
        "/links".into(),
        "/links?all=true".into(),
        "/ring".into(),
        "/events".into(),
    ];
    let mut results = Vec::new();
    for path in &views {
        let (mut cold, mut warm, mut bytes) = (Sample::default(), Sample::default(), 0);
        for _ in 0..args.number("--rounds", 15) {
            // A router of its own has no list of jobs yet.
            let router = starling::surface::router(feed.clone());
            let (first, size) = look(&router, path).await?;
            cold.add(first);
            warm.add(look(&router, path).await?.0);
            bytes = bytes.max(size);
        }
        results.push((path.clone(), cold, warm, bytes));
    }
    let good = |cold: &Sample, bytes: usize| cold.quantile(0.9) <= MS_MAX && bytes <= BYTES_MAX;
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|(path, cold, warm, bytes)| {
            let number = |x: f64| format!("{x:.1}");
            let word = if good(cold, *bytes) { "yes" } else { "NO" };
            // The id of a job is made anew with each feed.
            let shown = path.split_once(&job.to_string()).map_or(path.as_str(), |(start, _)| start);
            vec![
                format!("`{shown}`"),
                number(cold.median()),
                number(cold.quantile(0.9)),
                number(warm.median()),
                format!("{:.0}", *bytes as f64 / 1e3),
                word.into(),
            ]
        })
        .collect();
    let head = ["view", "cold p50 ms", "cold p90 ms", "warm p50 ms", "kB", "<= 200 ms, <= 300 kB"];
    let text = format!(
        "{}\n{clusters} clusters, {jobs} jobs of three homes each; {} cores, load {}",
        table(&head, &rows),
        cores(),
        load()
    );
    let document: Vec<_> = results
        .iter()
        .map(|(path, cold, warm, bytes)| json!({ "view": path, "cold_p50_ms": cold.median(), "cold_p90_ms": cold.quantile(0.9), "warm_p50_ms": warm.median(), "bytes": bytes, "good": good(cold, *bytes) }))
        .collect();
    print(
        &args,
        &json!({ "bench": "page", "clusters": clusters, "jobs": jobs, "load": load(), "views": document }),
        &text,
    );
    Ok(())
}
