//! `starling demo --scenario acceptance`: what one checks before a pool is handed over, on real processes: that it
//! works, that a tenant keeps to its limit, that urgent work gets room, that its figures are true and an alert would fire, and that its peak is borne.
//!
//! Each check says what it expects before it looks, and judges by what the jobs themselves wrote and by the clock.
//! What this build cannot do is named as missing, never counted as held.

// tidy: long because the checks are read beside one another: what each does, and when it holds

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use axum::http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::cli::DemoArgs;
use super::super::client::ClientFailure;
use super::super::documents::{JobDocument, TenantDocument, TenantList};
use super::super::ledger::{self, Expected};
use super::judgement::Summary;
use super::{Fleet, FleetError, Shape, io};
use crate::base::{Bytes, MilliCpu, Span};
use crate::model::spec::JobSpec;
use crate::model::spec_input::parse_spec;
use crate::model::{JobState, NodeCapacity};

/// GPUs of one cluster; declared, not real.
const GPUS: u32 = 8;
/// Fewer cannot lose one and go on.
const CLUSTERS_MIN: u32 = 3;
/// A job that finds room runs within this.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// An urgent job that has to send others away runs within this: long before these would have ended.
const URGENT_WITHIN: Duration = Duration::from_secs(20);
/// The others know within this that a peer is gone.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);
/// No check takes longer.
const CHECK_WITHIN: Duration = Duration::from_secs(180);
/// Steps of the jobs that are sent away, and how long one takes: 40 s in all.
const LOW_STEPS: u64 = 160;
const STEP_MS: u64 = 250;

/// Series that a dashboard and its alerts stand on.
const SERIES: [&str; 9] = [
    "starling_records",
    "starling_attempts",
    "starling_claims",
    "starling_contact_age_seconds",
    "starling_members",
    "starling_isolated",
    "starling_draining",
    "starling_certificate_left_seconds",
    "starling_api_requests_total",
];

/// What came of one check.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// Its name.
    pub check: &'static str,
    /// It held.
    pub holds: bool,
    /// What was expected and what was found, in a sentence.
    pub found: String,
    /// The figures behind it.
    pub figures: Value,
    /// Seconds it took.
    pub seconds: f64,
}

/// The whole acceptance.
#[derive(Debug, Clone, Serialize)]
pub struct Acceptance {
    /// Clusters.
    pub clusters: usize,
    /// Each check.
    pub checks: Vec<Check>,
    /// Checks that this build cannot be put to.
    pub missing: Vec<&'static str>,
}

impl Acceptance {
    /// Every check that there is held.
    pub fn holds(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|c| c.holds)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for check in &self.checks {
            let word = if check.holds { "holds" } else { "FAILS" };
            text.push_str(&format!(
                "  {:<12}{word:<7}{:>6.1} s  {}\n",
                check.check, check.seconds, check.found
            ));
        }
        for name in &self.missing {
            text.push_str(&format!("  {name:<12}is not in this build\n"));
        }
        text
    }

    /// Prints it; 1 where something failed.
    pub fn show(&self, json: bool) -> ExitCode {
        if json {
            println!(
                "{}",
                json!({ "scenario": "acceptance", "clusters": self.clusters, "checks": self.checks,
                "missing": self.missing, "holds": self.holds() })
            );
        } else {
            print!("{}", self.text());
        }
        if self.holds() { ExitCode::SUCCESS } else { ExitCode::from(1) }
    }
}

/// The verdict on one check: whether it held, in words, and its figures.
type Verdict = (bool, String, Value);

/// Starts a mesh, puts it to every check, and stops it.
pub async fn run(args: &DemoArgs) -> Result<Acceptance, FleetError> {
    if args.clusters < CLUSTERS_MIN {
        let text = format!("the acceptance wants --clusters {CLUSTERS_MIN} or more: one of them is killed");
        return Err(FleetError::Invalid(text));
    }
    let node = NodeCapacity {
        name: "a100".into(),
        count: 1,
        gpu_model: Some("A100-80G".into()),
        gpus: GPUS,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    };
    let shape =
        Shape { clusters: args.clusters, nodes: vec![node], attempts_kept: 1_000, ..Shape::default() };
    let mut fleet = Fleet::start(&shape, args.dir.as_deref(), |text| eprintln!("{text}")).await?;
    eprintln!("{} peers agree; their GPUs are declared, not real (virtual)", fleet.peers.len());
    let outcome = all(&mut fleet).await;
    let keep_files = outcome.as_ref().map_or(true, |a| !a.holds());
    if keep_files {
        eprintln!("logs and ledgers are kept in {}", fleet.dir.display());
    }
    fleet.stop(keep_files).await;
    outcome
}

async fn all(fleet: &mut Fleet) -> Result<Acceptance, FleetError> {
    let mut out = Acceptance { clusters: fleet.peers.len(), checks: Vec::new(), missing: Vec::new() };
    for name in ["function", "quota", "preemption", "monitoring", "capacity"] {
        eprintln!("{name} ...");
        let begun = Instant::now();
        let mut yard = Yard::new(fleet, name)?;
        let verdict = match name {
            "function" => function(&mut yard).await,
            "quota" => quota(&mut yard).await,
            "preemption" => preemption(&mut yard).await,
            "monitoring" => monitoring(&mut yard).await,
            _ => capacity(&mut yard).await,
        };
        // A check that could not be carried out did not hold.
        let (holds, found, figures) = match verdict {
            Ok(verdict) => verdict,
            Err(FleetError::Interrupted) => return Err(FleetError::Interrupted),
            Err(error) => (false, error.to_string(), Value::Null),
        };
        out.checks.push(Check { check: name, holds, found, figures, seconds: begun.elapsed().as_secs_f64() });
    }
    Ok(out)
}

/// One check's jobs.
struct Yard<'a> {
    fleet: &'a mut Fleet,
    name: &'static str,
    ledger: PathBuf,
    work: PathBuf,
    jobs: Vec<String>,
}

impl<'a> Yard<'a> {
    fn new(fleet: &'a mut Fleet, name: &'static str) -> Result<Self, FleetError> {
        let ledger = fleet.dir.join(format!("{name}.jsonl"));
        let work = fleet.dir.join(format!("checkpoints-{name}"));
        crate::transport::private::make(&work).map_err(io(work.display()))?;
        Ok(Yard { fleet, name, ledger, work, jobs: Vec::new() })
    }

    fn gpus(&self) -> usize {
        self.fleet.peers.len() * GPUS as usize
    }

    /// A job that runs this binary's own work.
    fn spec(&self, name: &str, gpus: u32, priority: u8, work: &str) -> Result<JobSpec, FleetError> {
        let text = format!(
            "name: {name}\npriority: {priority}\nresources: {{gpus: {gpus}}}\nmax_runtime: 10m\nrun: |\n  \
             export CHECKPOINT_PATH=\"$CHECKPOINT_PATH/$STARLING_JOB_ID/\"\n  \
             exec \"$STARLING_BIN\" work {work} --ledger \"$STARLING_LEDGER\"\n\
             checkpoint: {{path: \"{}\", every: 1s}}\n",
            self.work.display()
        );
        let mut spec = parse_spec(text.as_bytes()).map_err(|e| FleetError::Invalid(e.to_string()))?.spec;
        spec.env.insert("STARLING_BIN".into(), self.fleet.exe.display().to_string());
        spec.env.insert("STARLING_LEDGER".into(), self.ledger.display().to_string());
        spec.on_lost_contact.grace = Some(Span::secs(30));
        Ok(spec)
    }

    /// Submits at the next peer in turn.
    async fn submit(&mut self, spec: &JobSpec) -> Result<String, FleetError> {
        let n = self.jobs.len();
        let at = n % self.fleet.peers.len();
        let id = self.fleet.submit(at, spec, &format!("{}-{n}", self.name)).await?;
        self.jobs.push(id.clone());
        Ok(id)
    }

    /// This check's jobs as the records have them now.
    async fn seen(&self) -> Result<Vec<JobDocument>, FleetError> {
        let mine: BTreeSet<&String> = self.jobs.iter().collect();
        let all = self.fleet.jobs(1_000).await?.jobs;
        Ok(all.into_iter().filter(|j| mine.contains(&j.id.to_string())).collect())
    }

    /// Waits until something holds of this check's jobs.
    async fn until(
        &self,
        within: Duration,
        what: &str,
        holds: impl Fn(&[JobDocument]) -> bool,
    ) -> Result<Vec<JobDocument>, FleetError> {
        let begun = Instant::now();
        loop {
            let jobs = self.seen().await?;
            if holds(&jobs) {
                return Ok(jobs);
            }
            if begun.elapsed() > within {
                let mut states: BTreeMap<&str, usize> = BTreeMap::new();
                for job in &jobs {
                    *states.entry(job.state.as_str()).or_default() += 1;
                }
                return Err(FleetError::Invalid(format!("{what}: not within {within:?}: {states:?}")));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn all_end(&self) -> Result<Vec<JobDocument>, FleetError> {
        let n = self.jobs.len();
        self.until(CHECK_WITHIN, "all jobs end", |jobs| jobs.len() == n && jobs.iter().all(|j| j.done)).await
    }

    /// What the jobs themselves wrote.
    fn judge(&self, jobs: &[JobDocument]) -> Result<Summary, FleetError> {
        let expected: Vec<Expected> =
            self.jobs.iter().map(|id| Expected { job: id.clone(), ranks: 1 }).collect();
        Summary::new(std::slice::from_ref(&self.ledger), &expected, jobs, self.fleet.peers.len())
            .map_err(io("the ledger"))
    }

    /// A peer's metrics: name (with labels) and value.
    async fn metrics(&self, i: usize) -> Result<BTreeMap<String, f64>, FleetError> {
        let text = self.fleet.peers[i].client.text("/metrics").await?;
        let line = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter(|l| !l.starts_with('#')).filter_map(line).collect())
    }
}

/// How long a job waited for its first start.
fn waited(job: &JobDocument) -> Option<f64> {
    let started = job.attempts.iter().find_map(|a| a.started_at_ms)?;
    Some(started.saturating_sub(job.submitted_at_ms) as f64 / 1e3)
}

fn worst(jobs: &[JobDocument]) -> f64 {
    jobs.iter().map(|j| waited(j).unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
}

/// Training and inference, both submitted anywhere, run once each and at once.
async fn function(yard: &mut Yard<'_>) -> Result<Verdict, FleetError> {
    for n in 0..yard.fleet.peers.len() {
        let train =
            yard.spec(&format!("train-{n}"), 2, 25, "train --steps 20 --step-ms 100 --checkpoint-every 5")?;
        yard.submit(&train).await?;
        let infer = yard.spec(&format!("infer-{n}"), 1, 75, "sleep --ms 500")?;
        yard.submit(&infer).await?;
    }
    let jobs = yard.all_end().await?;
    let summary = yard.judge(&jobs)?;
    let worst = worst(&jobs);
    let holds = summary.holds() && worst <= STARTS_WITHIN.as_secs_f64();
    let found = format!(
        "{} of {} training and inference jobs ran exactly once; the slowest began after {worst:.1} s",
        summary.succeeded, summary.submitted
    );
    Ok((holds, found, json!({ "summary": summary, "slowest_start_s": worst })))
}

/// A tenant's jobs use its whole limit over all clusters and never more, by what the jobs wrote; others do not wait for
/// it; a job that its limit never allows is refused.
async fn quota(yard: &mut Yard<'_>) -> Result<Verdict, FleetError> {
    const TENANT: &str = "accepted";
    let limit = GPUS + 2;
    let path = format!("/v1/tenants/{TENANT}");
    let body = json!({ "gpus": limit, "grace": "30s" }).to_string().into_bytes();
    let _: TenantDocument =
        yard.fleet.peers[0].client.send(Method::PUT, &path, Some(("application/json", body))).await?;
    let begun = Instant::now();
    for peer in &yard.fleet.peers {
        while !peer.client.get::<TenantList>("/v1/tenants").await?.tenants.iter().any(|t| t.tenant == TENANT)
        {
            if begun.elapsed() > STARTS_WITHIN {
                return Err(FleetError::Invalid(format!("{} has not heard of the limit", peer.name)));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let mut large = yard.spec("too-much", limit + 1, 50, "sleep --ms 1")?;
    (large.tenant, large.nodes, large.resources.gpus) = (TENANT.into(), limit + 1, 1);
    let refused = match yard.fleet.submit(0, &large, "quota-too-much").await {
        Ok(_) => false,
        Err(FleetError::Ask(ClientFailure::Api(_, body))) => body.code == "over_quota",
        Err(error) => return Err(error),
    };
    for n in 0..12 {
        let mut spec = yard.spec(&format!("held-{n}"), 2, 50, "sleep --ms 2000")?;
        spec.tenant = TENANT.into();
        yard.submit(&spec).await?;
    }
    let other = yard.spec("other", 2, 50, "sleep --ms 500")?;
    let other = yard.submit(&other).await?;
    let jobs = yard.all_end().await?;
    let summary = yard.judge(&jobs)?;
    // GPUs at once, by the jobs' own lines: each attempt from its first to its last moment.
    let mut spans: BTreeMap<(String, u64), (u64, u64)> = BTreeMap::new();
    ledger::read(&yard.ledger, |entry| {
        for entry in entry.into_iter().filter(|e| e.job != other) {
            let span = spans.entry((entry.job, entry.epoch)).or_insert((entry.from_us, entry.to_us));
            *span = (span.0.min(entry.from_us), span.1.max(entry.to_us));
        }
    })
    .map_err(io(yard.ledger.display()))?;
    let most = spans.values().map(|(at, _)| spans.values().filter(|(a, b)| a <= at && at < b).count()).max();
    let most = 2 * most.unwrap_or(0);
    let wait = jobs.iter().find(|j| j.id.to_string() == other).and_then(waited).unwrap_or(f64::INFINITY);
    let holds = summary.holds() && refused && most == limit as usize && wait <= STARTS_WITHIN.as_secs_f64();
    let found = format!(
        "12 jobs of a tenant that may use {limit} GPUs used {most} at once, over all clusters, and all {} ran once; another's began \
         after {wait:.1} s; {}",
        summary.succeeded,
        if refused { "one over the limit was refused" } else { "one over the limit was NOT refused" }
    );
    let figures = json!({ "summary": summary, "limit": limit, "most_at_once": most, "refused": refused, "other_wait_s": wait });
    Ok((holds, found, figures))
}

/// Everything is full of work that may be sent away; an urgent job gets one whole cluster, and what had to go for it
/// goes on later from where it was.
async fn preemption(yard: &mut Yard<'_>) -> Result<Verdict, FleetError> {
    let full = yard.gpus();
    let work = format!("train --steps {LOW_STEPS} --step-ms {STEP_MS} --checkpoint-every 4");
    for n in 0..full {
        let low = yard.spec(&format!("low-{n}"), 1, 10, &work)?;
        yard.submit(&low).await?;
    }
    let running = |jobs: &[JobDocument]| jobs.iter().filter(|j| j.state == JobState::Running).count();
    yard.until(Duration::from_secs(30), "every GPU is taken", |jobs| running(jobs) == full).await?;
    let urgent = yard.spec("urgent", GPUS, 100, "sleep --ms 3000")?;
    let id = yard.submit(&urgent).await?;
    let is_urgent = |j: &&JobDocument| j.id.to_string() == id;
    let began = |jobs: &[JobDocument]| jobs.iter().find(is_urgent).is_some_and(|j| waited(j).is_some());
    yard.until(URGENT_WITHIN, "the urgent job runs", began).await?;
    let jobs = yard.all_end().await?;
    let summary = yard.judge(&jobs)?;
    let urgent = jobs.iter().find(is_urgent);
    let wait = urgent.and_then(waited).unwrap_or(f64::INFINITY);
    // Who was sent away: more than one attempt. All from one cluster, and no more than had to.
    let victims: Vec<&JobDocument> = jobs.iter().filter(|j| j.attempts.len() > 1).collect();
    let from: BTreeSet<&str> =
        victims.iter().filter_map(|j| j.attempts.first()).map(|a| a.cluster.as_str()).collect();
    let holds = summary.holds()
        && wait <= URGENT_WITHIN.as_secs_f64()
        && victims.len() == GPUS as usize
        && from.len() == 1;
    let found = format!(
        "an urgent job of {GPUS} GPUs began after {wait:.1} s where all were taken; {} were sent away from {} cluster, \
         and all {} ended, {} steps repeated",
        victims.len(),
        from.len(),
        summary.succeeded,
        summary.repeats
    );
    let figures = json!({ "summary": summary, "urgent_wait_s": wait, "sent_away": victims.len(), "clusters": from.len() });
    Ok((holds, found, figures))
}

/// Every figure is there, what it says is true, and what an alert stands on changes when a peer is killed.
async fn monitoring(yard: &mut Yard<'_>) -> Result<Verdict, FleetError> {
    let peers = yard.fleet.peers.len();
    let wanted = peers + 1;
    for n in 0..wanted {
        let spec = yard.spec(&format!("seen-{n}"), 1, 50, "sleep --ms 6000")?;
        yard.submit(&spec).await?;
    }
    let running = |jobs: &[JobDocument]| jobs.iter().filter(|j| j.state == JobState::Running).count();
    yard.until(STARTS_WITHIN, "all run", |jobs| running(jobs) == wanted).await?;
    let (mut counted, mut missing) = (0.0, Vec::new());
    for i in 0..peers {
        let metrics = yard.metrics(i).await?;
        for series in SERIES {
            let there = |name: &String| name == series || name.starts_with(&format!("{series}{{"));
            if !metrics.keys().any(there) {
                missing.push(format!("{} at {}", series, yard.fleet.peers[i].name));
            }
        }
        counted += metrics.get("starling_attempts").copied().unwrap_or(-1.0);
    }
    yard.all_end().await?;
    let last = peers - 1;
    yard.fleet.kill(last).await?;
    let fired = alive_becomes(yard, 0, peers - 1).await?;
    yard.fleet.spawn(last, None)?;
    yard.fleet.ready(last).await?;
    let cleared = alive_becomes(yard, 0, peers).await?;
    yard.fleet.agree().await?;
    let holds = missing.is_empty() && counted == wanted as f64 && fired.is_some() && cleared.is_some();
    let time = |t: Option<f64>| t.map_or("never".to_owned(), |s| format!("{s:.1} s"));
    let found = format!(
        "{} series at each of {peers} peers; they count {counted} attempts where {wanted} run; a killed peer shows \
         after {}, its return after {}{}",
        SERIES.len(),
        time(fired),
        time(cleared),
        if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) }
    );
    let figures = json!({ "attempts_counted": counted, "attempts": wanted, "missing": missing,
        "alert_after_s": fired, "cleared_after_s": cleared });
    Ok((holds, found, figures))
}

/// Seconds until a peer counts so many members alive; none where it never does.
async fn alive_becomes(yard: &Yard<'_>, at: usize, members: usize) -> Result<Option<f64>, FleetError> {
    let begun = Instant::now();
    while begun.elapsed() <= NOTICED_WITHIN {
        let metrics = yard.metrics(at).await?;
        if metrics.get("starling_members{liveness=\"alive\"}") == Some(&(members as f64)) {
            return Ok(Some(begun.elapsed().as_secs_f64()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(None)
}

/// A burst of nine tenths of all GPUs begins at once; a third more than there is queues, and only by what is too much.
async fn capacity(yard: &mut Yard<'_>) -> Result<Verdict, FleetError> {
    const WORK_MS: u64 = 8_000;
    let gpus = yard.gpus();
    let first = gpus * 9 / 10;
    let all = gpus * 4 / 3;
    for n in 0..first {
        let spec = yard.spec(&format!("peak-{n}"), 1, 50, &format!("sleep --ms {WORK_MS}"))?;
        yard.submit(&spec).await?;
    }
    let began = |jobs: &[JobDocument]| jobs.iter().filter(|j| waited(j).is_some()).count() == first;
    let jobs = yard.until(CHECK_WITHIN, "the burst begins", began).await?;
    let burst = worst(&jobs);
    yard.all_end().await?;
    for n in first..first + all {
        let spec = yard.spec(&format!("over-{n}"), 1, 50, &format!("sleep --ms {WORK_MS}"))?;
        yard.submit(&spec).await?;
    }
    let running = |jobs: &[JobDocument]| jobs.iter().filter(|j| j.state == JobState::Running).count();
    let busy = yard.until(CHECK_WITHIN, "every GPU is taken", |jobs| running(jobs) >= gpus).await;
    let most = if busy.is_ok() { gpus } else { running(&yard.seen().await?) };
    let jobs = yard.all_end().await?;
    let summary = yard.judge(&jobs)?;
    let over: Vec<&JobDocument> = jobs.iter().filter(|j| j.name.starts_with("over-")).collect();
    let queued = over.iter().filter(|j| waited(j).is_none_or(|w| w > 4.0)).count();
    let longest = over.iter().filter_map(|j| waited(j)).fold(0.0, f64::max);
    let excess = all - gpus;
    // A second round of work is all that the last may wait for, and a start.
    let bound = WORK_MS as f64 / 1e3 + 8.0;
    let holds = summary.holds()
        && burst <= STARTS_WITHIN.as_secs_f64()
        && most == gpus
        && queued <= excess + excess / 2
        && longest <= bound;
    let found = format!(
        "{first} jobs at once on {gpus} GPUs: the slowest began after {burst:.1} s; of {all} at once {queued} queued \
         ({excess} were too many), none longer than {longest:.1} s"
    );
    let figures = json!({ "summary": summary, "burst_slowest_s": burst, "gpus": gpus, "most_running": most,
        "queued": queued, "too_many": excess, "longest_wait_s": longest });
    Ok((holds, found, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(holds: bool) -> Check {
        Check { check: "function", holds, found: "so".into(), figures: Value::Null, seconds: 1.0 }
    }

    #[test]
    fn an_acceptance_holds_when_every_check_did_and_there_was_one() {
        let of = |checks| Acceptance { clusters: 3, checks, missing: vec!["quota"] };
        assert!(!of(vec![]).holds());
        assert!(of(vec![check(true)]).holds());
        assert!(!of(vec![check(true), check(false)]).holds());
        let text = of(vec![check(false)]).text();
        assert!(text.contains("FAILS") && text.contains("quota"), "{text}");
    }
}
