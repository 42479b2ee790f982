//! `jobs`, `job`, `cancel`, `wait`, `why`.

use std::time::Duration;

use axum::http::Method;
use serde_json::json;
use tokio::time::Instant;

use super::args::{JobsArgs, WaitArgs};
use super::output::{Table, brief, plain};
use super::submit::code_of;
use super::{Asking, CommandResult, Failure, Reply, exit};
use crate::base::{Bytes, PeerName};
use crate::model::staging::Staging;
use crate::model::{JobState, Outcome};
use crate::surface::api::{CLAIMS_MAX, escape};
use crate::surface::client::ClientFailure;
use crate::surface::documents::*;

/// One long poll; the peer answers within it.
const POLL_SECS: u64 = 30;

/// `starling jobs`
pub async fn list(asking: &Asking, args: JobsArgs) -> CommandResult {
    if let Some(cluster) = &args.at {
        return queue(asking, cluster, args.limit).await;
    }
    let mut path = format!("/v1/jobs?limit={}", args.limit);
    let (since, until) = (moment(&args.since), moment(&args.until));
    let asked = [
        ("tenant", &args.tenant),
        ("state", &args.states),
        ("since", &since),
        ("until", &until),
        ("before", &args.before),
        ("array", &args.array),
    ];
    for (name, value) in asked {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", escape(value)));
        }
    }
    let list: JobList = asking.client.get(&path).await?;
    let style = asking.style;
    let mut table = Table::new(style, &["ID", "NAME", "STATE", "CLUSTER", "GPUS", "TRY", "AGE", "WHY"]);
    let now = wall_now().0;
    for job in &list.jobs {
        table.row([
            job.id.short(),
            plain(&job.name).chars().take(32).collect(),
            style.state(job.state.as_str()),
            last_cluster(job),
            job.gpus.to_string(),
            job.epoch.to_string(),
            brief(now.saturating_sub(job.submitted_at_ms)),
            plain(&job.reason).chars().take(60).collect(),
        ]);
    }
    let mut text = if list.jobs.is_empty() { "no jobs\n".to_owned() } else { table.render() };
    if list.truncated {
        let next =
            list.next.as_deref().map_or_else(String::new, |next| format!(", or --before {}", plain(next)));
        text.push_str(&format!("there are more: raise --limit{next}\n"));
    }
    if !list.unanswered.is_empty() {
        let names: Vec<&str> = list.unanswered.iter().map(|n| n.as_str()).collect();
        text.push_str(&format!("not complete: no answer from {}\n", names.join(", ")));
    }
    let code = if args.complete && !list.unanswered.is_empty() { exit::PARTIAL } else { exit::OK };
    Ok(Reply::new(&list, text).with_code(code))
}

/// `starling queue --at CLUSTER`
async fn queue(asking: &Asking, cluster: &PeerName, limit: usize) -> CommandResult {
    let limit = limit.clamp(1, CLAIMS_MAX);
    let uri = format!("/v1/clusters/{cluster}/queue?limit={limit}");
    let queue: QueueDocument = asking.client.get(&uri).await?;
    let mut table =
        Table::new(asking.style, &["PLACE", "ID", "GPUS", "PRIO", "OWNER", "WAITED", "STARTS IN", "WHY"]);
    for c in queue.claims.iter().take(limit) {
        table.row([
            c.place.to_string(),
            c.job.short(),
            c.gpus.to_string(),
            c.priority.to_string(),
            plain(c.owner.as_str()),
            brief(c.waited_ms),
            c.starts_in_ms.map_or_else(|| "-".into(), brief),
            if c.why.is_empty() { "-".into() } else { plain(&c.why) },
        ]);
    }
    let shown = queue.claims.len().min(limit) as u64;
    let more = queue.total.unwrap_or(queue.claims.len() as u64).saturating_sub(shown);
    let mut text =
        if queue.claims.is_empty() { format!("nothing waits at {cluster}\n") } else { table.render() };
    if more > 0 {
        let raise = if limit < CLAIMS_MAX { ": raise --limit" } else { "" };
        text.push_str(&format!("and {more} more{raise}\n"));
    }
    Ok(Reply::new(&queue, text))
}

/// A length of time means so long ago; whether another text is a date, the peer says.
fn moment(text: &Option<String>) -> Option<String> {
    let text = text.as_ref()?;
    let ago = text.parse::<crate::base::Span>().ok();
    Some(ago.map_or_else(|| text.clone(), |ago| wall_now().0.saturating_sub(ago.as_millis()).to_string()))
}

fn last_cluster(job: &JobDocument) -> String {
    let last = job.attempts.last().map(|a| &a.cluster);
    job.cluster.as_ref().or(last).map_or_else(|| "-".into(), ToString::to_string)
}

/// `starling job ID`
pub async fn show(asking: &Asking, id: &str) -> CommandResult {
    let job: JobDocument = asking.client.get(&format!("/v1/jobs/{}", escape(id))).await?;
    Ok(Reply::new(&job, job_text(asking, &job)))
}

fn job_text(asking: &Asking, job: &JobDocument) -> String {
    let style = asking.style;
    let now = wall_now().0;
    let age = |at: u64| format!("{} ago", brief(now.saturating_sub(at)));
    let homes: Vec<&str> = job.homes.iter().map(|h| h.as_str()).collect();
    let mut rows = vec![
        ("id", job.id.to_string()),
        ("name", plain(&job.name)),
        ("tenant", plain(&job.tenant)),
        ("state", format!("{}: {}", style.state(job.state.as_str()), plain(&job.reason))),
        ("needs", format!("{} node(s), {} GPU(s) {}", job.nodes, job.gpus, plain(&job.gpu.join(" or ")))),
        ("submitted", age(job.submitted_at_ms)),
        ("homes", homes.join(", ")),
    ];
    rows.extend(staging_lines(job.staging.as_ref(), now).map(|text| ("staging", text)));
    rows.extend(job.array.as_ref().map(|a| {
        let text = format!(
            "{} jobs {}: {} under way, {} succeeded, {} failed, {} cancelled",
            a.size, a.indices, a.under_way, a.succeeded, a.failed, a.cancelled
        );
        ("array", text)
    }));
    rows.extend(job.array_of.as_ref().map(|of| ("array", format!("job {} of {}", of.index, of.id.short()))));
    rows.extend(job.groups.iter().map(|g| {
        let at = g.cluster.as_ref().map_or("not placed yet".into(), |c| format!("at {c}"));
        let how = match (&g.outcome, g.started) {
            (Some(outcome), _) => format!(", {}", outcome_text(outcome)),
            (None, true) => ", runs".into(),
            (None, false) => String::new(),
        };
        let needs = format!("{} node(s), {} GPU(s)", g.nodes, g.gpus);
        ("group", format!("{} ({}): {needs} {at}{how}", plain(&g.name), g.id.short()))
    }));
    rows.extend(job.group_of.iter().map(|of| ("group of", of.short())));
    rows.extend(job.after.iter().map(|a| {
        let met = if a.met { "it did" } else { "not yet" };
        ("after", format!("{} ends as {}: {met}", a.id.short(), a.on))
    }));
    rows.extend(job.finished_at_ms.map(|at| ("finished", age(at))));
    rows.extend(job.cancelled_by.as_ref().map(|by| ("cancel", format!("asked by {}", plain(by)))));
    rows.extend(
        job.checkpoint.as_ref().map(|c| ("checkpoint", format!("{} (epoch {})", plain(&c.uri), c.epoch))),
    );
    let mut text: String =
        rows.iter().map(|(k, v)| format!("{} {}\n", style.dim(&format!("{k:<11}")), v.trim_end())).collect();
    if !job.attempts.is_empty() {
        text.push('\n');
        text.push_str(&attempts_table(style, &job.attempts, now));
    }
    text
}

/// How far what its attempt needs has come, a line a part.
pub fn staging_lines(staging: Option<&Staging>, now: u64) -> impl Iterator<Item = String> {
    let parts = staging.into_iter().flat_map(|s| &s.parts);
    parts.map(move |part| plain(&part.words(crate::base::WallTime(now))))
}

/// Attempts, a line each.
pub fn attempts_table(style: super::output::Style, attempts: &[AttemptDocument], now: u64) -> String {
    let mut head = vec!["EPOCH", "CLUSTER", "STARTED", "RAN", "OUTCOME"];
    // Only some schedulers name the nodes.
    let named = attempts.iter().any(|a| a.nodes.is_some());
    head.extend(named.then_some("NODES"));
    let mut table = Table::new(style, &head);
    for attempt in attempts {
        let nodes = attempt.nodes.as_deref().map_or_else(|| "-".to_owned(), plain);
        table.row(attempt_row(attempt, now).into_iter().chain(named.then_some(nodes)));
    }
    table.render()
}

fn attempt_row(a: &AttemptDocument, now: u64) -> [String; 5] {
    let ran = a.started_at_ms.map(|from| brief(a.ended_at_ms.unwrap_or(now).saturating_sub(from)));
    let started = a.started_at_ms.map(|at| format!("{} ago", brief(now.saturating_sub(at))));
    let dash = || "-".to_owned();
    let outcome = a.outcome.as_ref().map_or_else(|| "runs".into(), outcome_text);
    let note = a.note.as_ref().map_or_else(String::new, |note| format!(" ({})", plain(note)));
    [
        a.epoch.to_string(),
        a.cluster.to_string(),
        started.unwrap_or_else(dash),
        ran.unwrap_or_else(dash),
        outcome + &note,
    ]
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exit {code}"),
        Outcome::Signaled(signal) => format!("signal {signal}"),
        Outcome::TimedOut => "ran into max_runtime".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Stopped(why) => format!("stopped: {}", plain(why)),
        Outcome::Lost => "contact lost".into(),
        Outcome::Refused(why) => format!("taken back: {}", plain(why)),
        Outcome::NotStarted(why) => format!("not started: {}", plain(why)),
    }
}

/// `starling cancel ID`
pub async fn cancel(asking: &Asking, id: &str) -> CommandResult {
    let path = format!("/v1/jobs/{}/cancel", escape(id));
    let done: CancelDocument = asking.client.send(Method::POST, &path, None).await?;
    let text = match done.state {
        JobState::Cancelled => format!("job {} is cancelled\n", done.id.short()),
        state if state.is_final() => {
            format!("job {} had ended already: {}\n", done.id.short(), state.as_str())
        }
        state => format!(
            "job {} was {} and will stop: starling wait {}\n",
            done.id.short(),
            state.as_str(),
            done.id.short()
        ),
    };
    Ok(Reply::new(&done, text))
}

/// `starling wait ID…`
pub async fn wait(asking: &Asking, args: WaitArgs) -> CommandResult {
    let deadline = args.timeout.map(|t| Instant::now() + t.to_std());
    let mut jobs = Vec::new();
    let mut text = String::new();
    let mut code = exit::OK;
    for id in &args.ids {
        let Some(job) = wait_one(asking, id, deadline).await? else {
            let left: Vec<&str> = args.ids.iter().skip(jobs.len()).map(String::as_str).collect();
            let waited = args.timeout.unwrap_or_default();
            text.push_str(&format!("time is up after {waited}: {} not ended\n", left.join(", ")));
            return Ok(Reply::new(&json!({ "jobs": jobs, "waiting": left }), text).with_code(exit::UNKNOWN));
        };
        text.push_str(&format!(
            "{} {}: {}\n",
            job.id.short(),
            asking.style.state(job.state.as_str()),
            plain(&job.reason)
        ));
        code = code.max(code_of(job.state));
        jobs.push(job);
    }
    Ok(Reply::new(&json!({ "jobs": jobs, "waiting": [] }), text).with_code(code))
}

/// The job once it has ended; none when the deadline came first. A peer that goes away for a moment
/// (an upgrade) does not end the wait.
async fn wait_one(
    asking: &Asking,
    id: &str,
    deadline: Option<Instant>,
) -> Result<Option<JobDocument>, Failure> {
    let mut misses = 0;
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()).as_millis().max(1));
        let poll_ms = left.map_or(u128::from(POLL_SECS) * 1_000, |ms| ms.min(u128::from(POLL_SECS) * 1_000));
        let path = format!("/v1/jobs/{}/wait?timeout={poll_ms}ms", escape(id));
        let within = Duration::from_secs(POLL_SECS + 30);
        match asking.client.json::<WaitDocument>(Method::GET, &path, None, &[], within).await {
            Ok(answer) if answer.done => return Ok(Some(answer.job)),
            Ok(_) => misses = 0,
            Err(error @ (ClientFailure::Unreachable(..) | ClientFailure::Broken(..))) if misses >= 20 => {
                return Err(error.into());
            }
            Err(ClientFailure::Broken(..) | ClientFailure::Api(503 | 504, _)) => {
                misses += 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(ClientFailure::Unreachable(..)) if misses > 0 => {
                misses += 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error.into()),
        }
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Ok(None);
        }
    }
}

/// `starling why ID`
pub async fn why(asking: &Asking, id: &str) -> CommandResult {
    let why: WhyDocument = asking.client.get(&format!("/v1/jobs/{}/why", escape(id))).await?;
    Ok(Reply::new(&why, why_text(asking, &why)))
}

/// Each cluster with its reasons.
pub fn why_text(asking: &Asking, why: &WhyDocument) -> String {
    let style = asking.style;
    let state = why.state.map_or_else(String::new, |s| format!("{}: ", style.state(s.as_str())));
    let mut text = format!("{state}{}\n", plain(&why.summary));
    if let Some(owner) = &why.owner {
        text.push_str(&style.dim(&format!("driven by {owner}")));
        text.push('\n');
    }
    for line in staging_lines(why.staging.as_ref(), wall_now().0) {
        text.push_str(&format!("{line}\n"));
    }
    let head = &[
        "CLUSTER", "FITS", "WAIT", "DATA", "IMAGE", "START", "USD", "KWH", "SCORE", "QUEUE", "HEARD", "WHY",
    ];
    let mut table = Table::new(style, head);
    let dash = || "-".to_owned();
    for c in &why.clusters {
        let terms: Vec<String> = c
            .terms
            .iter()
            .filter(|(_, v)| **v >= 0.005)
            .map(|(k, v)| format!("{} {v:.2}", plain(k)))
            .collect();
        let words = if c.reasons.is_empty() { terms.join(", ") } else { plain(&c.reasons.join("; ")) };
        let e = c.estimate.as_ref();
        let about = |ms: u64| if ms == 0 { "0".to_owned() } else { format!("~{}", brief(ms)) };
        let moved = |bytes: u64, ms: u64| {
            if bytes == 0 { dash() } else { format!("{} ~{}", Bytes(bytes), brief(ms)) }
        };
        table.row([
            c.cluster.to_string(),
            if c.fits_now {
                "now"
            } else if c.fits_ever {
                "later"
            } else {
                "never"
            }
            .to_owned(),
            e.map_or_else(dash, |e| about(e.wait_ms)),
            e.map_or_else(dash, |e| moved(e.data_bytes, e.data_ms)),
            e.map_or_else(dash, |e| moved(e.image_bytes, e.image_ms)),
            e.map_or_else(dash, |e| about(e.start_ms)),
            e.map_or_else(dash, |e| format!("{:.2}", e.usd)),
            e.map_or_else(dash, |e| format!("{:.2}", e.kwh)),
            c.score.map_or_else(dash, |s| format!("{s:.2}")),
            c.queue_place.map_or_else(dash, |place| format!("{place} ahead")),
            c.report_age_ms.map_or_else(dash, brief),
            words,
        ]);
    }
    text += &table.render();
    for c in why.clusters.iter().filter(|c| !c.ahead.is_empty()) {
        let line = |a: &AheadDocument| {
            format!("{} (priority {}, {} GPUs, {})", a.job.short(), a.priority, a.gpus, brief(a.age_ms))
        };
        let ahead: Vec<String> = c.ahead.iter().map(line).collect();
        text.push_str(&format!("ahead at {}: {}\n", c.cluster, ahead.join(", ")));
    }
    text + &groups_text(style, why.groups.as_ref())
}

/// Where a job's groups would go.
fn groups_text(style: super::output::Style, groups: Option<&GroupsDocument>) -> String {
    let Some(plan) = groups.filter(|g| g.why_not.is_none()) else { return String::new() };
    let mut table = Table::new(style, &["GROUP", "CLUSTER"]);
    for g in &plan.groups {
        table.row([plain(&g.name), g.cluster.to_string()]);
    }
    let mut text = format!("\n{}", table.render());
    for a in &plan.apart {
        text.push_str(&format!(
            "{} and {}: {}/s between clusters, {:.0} % of the link, {:.0} ms\n",
            plain(&a.from),
            plain(&a.to),
            Bytes(a.rate),
            a.link_share * 100.0,
            a.rtt_ms
        ));
    }
    text.push_str(if plan.exact { "no plan costs less\n" } else { "the best plan that was found\n" });
    text
}
