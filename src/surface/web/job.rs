//! `GET /jobs/{id}`: where a job stands and why, its attempts on one time line, who could take it, its logs.

use std::fmt::Write;

use axum::extract::State;
use serde_json::json;

use super::html::{self, ago, cut, esc, exact, panel};
use super::waterfall::waterfall;
use super::{Answer, Page, alone, answer, asked_now, capital};
use crate::model::spec_input::render_spec;
use crate::model::staging::PartState;
use crate::model::{JobRecord, Outcome};
use crate::surface::api::input::Segment;
use crate::surface::api::{Api, ApiError, jobs, resolve, trace};
use crate::surface::documents::{
    AttemptDocument, CandidateDocument, JobDocument, TraceDocument, WhyDocument, wall_now,
};

/// Events that the page shows and makes its trace of.
const EVENTS_MAX: usize = 200;

/// The view.
pub async fn job(State(api): State<Api>, id: Result<Segment, ApiError>) -> Answer {
    let page = async {
        let id = resolve::resolve(&api, &id?.0).await?;
        let record = resolve::get(&api, id).await?;
        let staging = jobs::staging(&api, &record).await;
        let job = JobDocument { staging, ..JobDocument::new(&record, false) };
        let why = if job.done {
            None
        } else {
            jobs::why(State(api.clone()), Segment(id.to_string())).await.ok().map(|w| w.0)
        };
        let mut body = alone(&api).to_owned();
        body += &heading(&record, &job, why.as_ref());
        body.push_str(&staged(&job));
        body.push_str(&timeline(&job));
        let _ = write!(body, "<div class=\"pair wide\">{}{}</div>", logs(&job), facts(&record, &job));
        if let Some(why) = &why {
            body.push_str(&candidates(why));
        }
        let mut trace = trace::of(&api, &record, EVENTS_MAX).await;
        body.push_str(&waterfall(&trace));
        trace.events.reverse();
        body.push_str(&happened(&trace));
        let _ = write!(
            body,
            "<section class=panel><details><summary>Job file</summary><pre class=spec>{}</pre></details></section>",
            esc(&render_spec(&record.spec))
        );
        let live = if job.done { "" } else { "jobs tick" };
        Ok(Page { title: format!("Job {}", id.short()), menu: "/jobs", live, body })
    };
    let page = page.await;
    answer(&api, "/jobs", page)
}

fn heading(record: &JobRecord, job: &JobDocument, why: Option<&WhyDocument>) -> String {
    let says = why.map_or(job.reason.as_str(), |w| w.summary.as_str());
    let mut held = String::new();
    if let Some(text) = &record.held {
        let _ = write!(held, "<p class=late>Held: {}</p>", esc(text));
    }
    format!(
        "<section class=panel><div class=head><h1>{}</h1>{}<span class=\"id soft\">{}</span><span class=acts>{}</span></div>\
         <p class=says>{}</p>{held}</section>",
        cut(&job.name, 80),
        html::state(job.state).replace("class=\"state", "class=\"state big"),
        job.id,
        acts(record, job, why),
        esc(&capital(says)),
    )
}

/// How far what the attempt needs has come, a line each; nothing once it runs.
fn staged(job: &JobDocument) -> String {
    let Some(staging) = &job.staging else { return String::new() };
    let now = wall_now();
    let mut lines = String::new();
    for (n, part) in staging.parts.iter().enumerate() {
        let bar = match (part.done, part.total) {
            (Some(done), Some(total)) if total.0 > 0 => {
                format!("<progress max={} value={}></progress> ", total.0, done.0.min(total.0))
            }
            _ => String::new(),
        };
        let late = if part.state == PartState::Fails { " class=late" } else { "" };
        let _ = write!(lines, "<li data-key=\"p{n}\"{late}>{bar}{}</li>", cut(&part.words(now), 300));
    }
    let seen = ago(now.0.saturating_sub(staging.at.0));
    panel(
        "What it waits for",
        &format!("before its program starts; seen {seen}"),
        &format!("<ul class=staging>{lines}</ul>"),
    )
}

fn acts(record: &JobRecord, job: &JobDocument, why: Option<&WhyDocument>) -> String {
    let (id, name) = (job.id, cut(&job.name, 40));
    let mut out = String::new();
    if job.done {
        let again = json!({ "spec": render_spec(&record.spec) }).to_string();
        let _ = write!(
            out,
            "<button type=button data-act=\"POST /v1/jobs\" data-goto=\"/jobs/\" data-body=\"{}\" data-ask=\"Submit {name} once more?\" \
             data-risk=\"A new job with the same file. This one stays as it is.\">Run again…</button>",
            esc(&again)
        );
        return out;
    }
    let elsewhere: Vec<&str> = why
        .iter()
        .flat_map(|w| &w.clusters)
        .filter(|c| c.fits_ever && Some(&c.cluster) != job.cluster.as_ref())
        .map(|c| c.cluster.as_str())
        .collect();
    if record.held.is_some() {
        let _ = write!(
            out,
            "<button type=button data-act=\"POST /v1/jobs/{id}/release\" data-ask=\"Let {name} run again?\" \
             data-risk=\"It was held since it lost its cluster many times in a row.\">Release…</button>"
        );
    }
    if job.cluster.is_some() && !elsewhere.is_empty() {
        let _ = write!(
            out,
            "<button type=button data-act=\"POST /v1/jobs/{id}/move\" data-body=\"{{&quot;to&quot;:&quot;CHOICE&quot;}}\" data-choices=\"{}\" \
             data-ask=\"Move {name} to another cluster?\" data-risk=\"It is stopped with notice and goes on there from its checkpoint. Without one it begins anew.\">Move…</button>",
            esc(&elsewhere.join(" "))
        );
    }
    let _ = write!(
        out,
        "<button type=button class=danger data-act=\"POST /v1/jobs/{id}/cancel\" data-verb=\"Cancel the job\" data-ask=\"Cancel {name}?\" \
         data-risk=\"It ends for good. A running program gets SIGTERM, then SIGKILL after the notice.\">Cancel…</button>"
    );
    out
}

fn outcome(attempt: &AttemptDocument) -> (String, &'static str) {
    let (text, class) = outcome_alone(attempt);
    (attempt.note.as_ref().map_or(text.clone(), |note| format!("{text} ({note})")), class)
}

fn outcome_alone(attempt: &AttemptDocument) -> (String, &'static str) {
    match &attempt.outcome {
        None if attempt.started_at_ms.is_some() => ("runs".into(), "run"),
        None => ("starts".into(), "run"),
        Some(Outcome::Exited(0)) => ("exit 0".into(), "ok"),
        Some(Outcome::Exited(code)) => (format!("exit {code}"), "badend"),
        Some(Outcome::Signaled(signal)) => (format!("ended by signal {signal}"), "badend"),
        Some(Outcome::TimedOut) => ("ran into max_runtime".into(), "badend"),
        Some(Outcome::Cancelled) => ("cancelled".into(), "grey"),
        Some(Outcome::Stopped(why)) => (format!("stopped: {why}"), "grey"),
        Some(Outcome::Lost) => ("lost with its cluster".into(), "badend"),
        Some(Outcome::NotStarted(why)) => (format!("not started: {why}"), "badend"),
        Some(Outcome::Refused(why)) => (format!("refused: {why}"), "grey"),
    }
}

/// One row per attempt on a common axis, with the waiting before, between and inside them.
fn timeline(job: &JobDocument) -> String {
    let now = wall_now().0;
    let begin = job.submitted_at_ms;
    let end = job.finished_at_ms.unwrap_or(now).max(begin + 1);
    let x = |at: u64| 1_000.0 * at.clamp(begin, end).saturating_sub(begin) as f64 / (end - begin) as f64;
    let rect = |class: &str, from: u64, to: u64| {
        let width = (x(to) - x(from)).max(2.5);
        format!(
            "<rect class={class} x=\"{:.1}\" y=3 width=\"{width:.1}\" height=14 rx=1 />",
            x(from).min(997.5)
        )
    };
    let bar = |label: &str, inner: &str| {
        format!(
            "<svg class=line viewBox=\"0 0 1000 20\" preserveAspectRatio=none role=img aria-label=\"{}\"><rect class=bg y=9 width=1000 height=2 />{inner}</svg>",
            esc(label)
        )
    };
    let first = job.attempts.first().map_or(end, |a| a.placed_at_ms);
    let waited = first.saturating_sub(begin);
    let mut rows = format!(
        "<tr data-key=wait><th scope=row class=tight>waited</th><td class=tight></td><td>{}</td><td class=\"n opt\">{}</td><td class=n></td><td></td></tr>",
        bar(&format!("waited {}", exact(waited)), &rect("wait", begin, first)),
        exact(waited)
    );
    for attempt in &job.attempts {
        let stop = attempt.ended_at_ms.unwrap_or(if job.done { end } else { now });
        let begun = attempt.started_at_ms.unwrap_or(stop);
        let (how, class) = outcome(attempt);
        let cluster = esc(attempt.cluster.as_str());
        let mut inner = rect("wait", attempt.placed_at_ms, begun);
        if attempt.started_at_ms.is_some() {
            inner.push_str(&rect(class, begun, stop));
        }
        let ran = attempt.started_at_ms.map(|at| exact(stop.saturating_sub(at))).unwrap_or_default();
        let _ = write!(
            rows,
            "<tr data-key=\"e{n}\"><th scope=row class=tight>attempt {n}</th><td class=tight><a href=\"/clusters/{cluster}\">{cluster}</a></td><td>{}</td>\
             <td class=\"n opt\">{}</td><td class=n>{ran}</td><td class=why>{}</td></tr>",
            bar(&format!("attempt {} at {}: {how}", attempt.epoch, attempt.cluster), &inner),
            exact(begun.saturating_sub(attempt.placed_at_ms)),
            cut(&how, 120),
            n = attempt.epoch,
        );
    }
    let hidden = job.epoch.saturating_sub(job.attempts.last().map_or(0, |a| a.epoch)) > 0
        || job.attempts.first().is_some_and(|a| a.epoch > 1);
    let older = if hidden { "<p class=soft>Older attempts are counted only.</p>" } else { "" };
    let table = format!(
        "<div class=scroll><table><thead><tr><th scope=col><span class=hidden>What</span></th><th scope=col>Cluster</th>\
         <th scope=col>Time</th><th scope=col class=\"n opt\">Waited</th><th scope=col class=n>Ran</th><th scope=col>End</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>{older}",
    );
    let (so_far, from) = (if job.done { "" } else { " so far" }, html::clock(begin));
    let note = format!("{}{so_far}, from {from}", exact(end - begin));
    panel("Attempts", &note, &table)
}

fn facts(record: &JobRecord, job: &JobDocument) -> String {
    let now = wall_now().0;
    let mut rows: Vec<(&str, String)> = vec![
        ("Tenant", esc(&job.tenant)),
        ("Priority", job.priority.to_string()),
        (
            "Needs",
            format!(
                "{}, {} {}",
                html::count(job.nodes.into(), "node"),
                html::count(job.gpus, "GPU"),
                esc(&job.gpu.join(" or "))
            ),
        ),
        (
            "Submitted",
            format!("{}, {}", ago(now.saturating_sub(job.submitted_at_ms)), html::clock(job.submitted_at_ms)),
        ),
    ];
    if let Some(at) = job.finished_at_ms {
        rows.push(("Finished", format!("{}, {}", ago(now.saturating_sub(at)), html::clock(at))));
    }
    if let Some(cancel) = &record.cancel {
        rows.push(("Cancelled by", esc(&cancel.by)));
    }
    if let Some(moving) = &record.moving {
        rows.push(("Moves to", format!("{}, asked by {}", esc(moving.to.as_str()), esc(&moving.by))));
    }
    if let Some(checkpoint) = &job.checkpoint {
        rows.push(("Checkpoint", format!("{} (attempt {})", esc(&checkpoint.uri), checkpoint.epoch)));
    }
    if job.failures + job.losses > 0 {
        rows.push((
            "Failed, lost",
            format!("{}, {} of its cluster", html::count(job.failures.into(), "failure"), job.losses),
        ));
    }
    let homes: Vec<&str> = job.homes.iter().map(|h| h.as_str()).collect();
    rows.push(("Homes", esc(&homes.join(", "))));
    rows.push((
        "Record",
        format!("version {}, generation {}, {}", job.version, record.generation, asked_now()),
    ));
    let rows: String = rows.iter().map(|(k, v)| format!("<dt>{k}</dt><dd>{v}</dd>")).collect();
    panel("Facts", "", &format!("<dl class=facts>{rows}</dl>"))
}

fn logs(job: &JobDocument) -> String {
    let Some(last) = job.attempts.last() else {
        return panel("Logs", "", "<p class=soft>None yet: it has not been placed.</p>");
    };
    let src = format!("/v1/jobs/{}/logs?follow=true&amp;tail=500&amp;epoch={}", job.id, last.epoch);
    panel(
        "Logs",
        &format!("attempt {} at {}, from its last 500 lines on", last.epoch, esc(last.cluster.as_str())),
        &format!(
            "<pre class=logs data-keep data-src=\"{src}\" tabindex=0 role=log aria-label=\"Logs of attempt {}\"></pre>",
            last.epoch
        ),
    )
}

fn candidates(why: &WhyDocument) -> String {
    let mut rows = String::new();
    for c in &why.clusters {
        let name = esc(c.cluster.as_str());
        let (word, class) = match (c.fits_ever, c.fits_now) {
            (_, true) => ("fits now", "alive"),
            (true, false) => ("later", "suspect"),
            (false, false) => ("never", "lost"),
        };
        let reasons: Vec<String> = c.reasons.iter().map(|r| cut(r, 200)).collect();
        let _ = write!(
            rows,
            "<tr data-key=\"y-{name}\"><th scope=row class=tight><a href=\"/clusters/{name}\">{name}</a></th><td class=tight><span class=\"state {class}\">{word}</span></td>\
             <td class=n>{}</td><td class=n>{}</td><td class=why>{}</td><td class=\"soft opt\">{}</td><td class=\"n opt\">{}</td></tr>",
            c.score.map_or_else(|| "–".into(), |s| format!("{s:.3}")),
            c.queue_place.map_or_else(|| "–".into(), |p| (u64::from(p) + 1).to_string()),
            if reasons.is_empty() { "nothing against it".into() } else { reasons.join("; ") },
            terms(c),
            c.report_age_ms.map_or_else(|| "–".into(), ago),
        );
    }
    let owner = why.owner.as_ref().map_or_else(|| "nobody".into(), |o| esc(o.as_str()));
    panel(
        "Candidates",
        &format!("as {owner}, who drives it, weighs them; lower is better; {}", asked_now()),
        &format!(
            "<div class=scroll><table><thead><tr><th scope=col>Cluster</th><th scope=col>Fits</th><th scope=col class=n>Score</th><th scope=col class=n>Place</th>\
             <th scope=col>Against it</th><th scope=col class=opt>Terms</th><th scope=col class=\"n opt\">Figures</th></tr></thead><tbody>{rows}</tbody></table></div>"
        ),
    )
}

fn terms(c: &CandidateDocument) -> String {
    let parts: Vec<String> = c
        .terms
        .iter()
        .filter(|(_, v)| **v != 0.0)
        .map(|(k, v)| format!("{}&nbsp;{v:.2}", esc(&k.replace('_', " "))))
        .collect();
    parts.join(", ")
}

/// What the peers wrote down about it.
fn happened(trace: &TraceDocument) -> String {
    if trace.events.is_empty() {
        return String::new();
    }
    let missing: Vec<String> = trace.unanswered.iter().map(|n| esc(n.as_str())).collect();
    let note = if missing.is_empty() {
        "from the logs of all peers, newest first".to_owned()
    } else {
        format!("without those of {}", missing.join(", "))
    };
    panel("Events", &note, &super::events::table(&trace.events, false))
}
