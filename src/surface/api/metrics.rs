//! `GET /metrics` in OpenMetrics' text format, and `GET /healthz`.
//!
//! Everything here has a bounded number of lines: one for each member at most, one for each route, one for each kind.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::PoisonError;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{Api, local};
use crate::core::api::{BOUNDS_MS, InspectReport, Look};
use crate::model::report::Liveness;
use crate::surface::documents::{HealthDocument, boottime_now, wall_now};

/// Links that are told of; a member has one to each other.
const LINKS_MAX: usize = 1_000;
/// What the core calls counters and are not: they go down, too.
const CORE_GAUGES: [&str; 2] = ["records_unsettled", "register_in_flight"];

/// Counters of the core that are there from the start, so that a rule about them has something to look at.
const CORE_ALWAYS: [&str; 20] = [
    "register_commits",
    "register_fast_commits",
    "register_conflicts",
    "register_timeouts",
    "register_line_full",
    "takeovers",
    "homes_moved",
    "home_moves_failed",
    "grants_expired",
    "preemptions",
    "contact_renewals_failed",
    "disk_rolled_back",
    "absurd_ballots",
    "cards_ignored",
    "closes_refused",
    "placements_refused",
    "gatherings_given_up",
    "reservations_refused",
    "shares_refused",
    "keys_undecided",
];

/// The same for kinds of events: what begins with 1 has never increased.
const EVENTS_ALWAYS: [&str; 3] = ["job.placed", "job.lost_contact", "invariant.violated"];

/// `GET /metrics`
pub async fn metrics(State(api): State<Api>) -> Response {
    let mut out = with_help(&api.handle.metrics());
    if let Ok(report) = local::core_report(&api, Look::default()).await {
        core_lines(&mut out, &report);
    }
    peer_lines(&mut out, &api);
    cluster_lines(&mut out, &api);
    link_lines(&mut out, &api);
    event_lines(&mut out, &api);
    incident_lines(&mut out, &api);
    export_lines(&mut out, &api);
    out.push_str("# EOF\n");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], out).into_response()
}

/// Gives a text to families of lower layers that have none.
fn with_help(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let mut explained = "";
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            explained = rest.split(' ').next().unwrap_or_default();
        }
        if let Some((name, _)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            && name != explained
        {
            let part =
                ["net", "gossip", "mesh"].into_iter().find(|p| name.starts_with(&format!("starling_{p}_")));
            let of = match part {
                Some("net") => "by the transport",
                Some("gossip") => "by gossip",
                Some("mesh") => "by the mesh",
                _ => "by this peer",
            };
            let what = name.split('_').skip(2).collect::<Vec<_>>().join(" ");
            let _ = writeln!(out, "# HELP {name} Counted {of}: {what}.");
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let unit = ["seconds", "bytes", "ratio"].into_iter().find(|u| name.ends_with(&format!("_{u}")));
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    if let Some(unit) = unit {
        let _ = writeln!(out, "# UNIT {name} {unit}");
    }
}

fn gauge(out: &mut String, name: &str, help: &str, value: impl std::fmt::Display) {
    head(out, name, "gauge", help);
    let _ = writeln!(out, "{name} {value}");
}

/// A label's value: what OpenMetrics wants escaped is.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn core_lines(out: &mut String, report: &InspectReport) {
    gauge(out, "starling_records", "Records held as a home.", report.records);
    gauge(out, "starling_records_live", "Records held as a home that are not final.", report.records_live);
    gauge(out, "starling_attempts", "Attempts at this cluster that are not closed.", report.attempts.len());
    gauge(out, "starling_claims", "Claims in this cluster's queue.", report.queue_total.unwrap_or(0));
    let oldest = report.queue_oldest.unwrap_or_default();
    gauge(
        out,
        "starling_claim_oldest_seconds",
        "Age of the oldest claim in this cluster's queue.",
        oldest.as_secs_f64(),
    );
    if let Some(newest) = report.contacts.iter().map(|(_, _, age)| *age).min() {
        gauge(
            out,
            "starling_contact_age_seconds",
            "Age of the newest counted renewal of the contact.",
            newest.as_secs_f64(),
        );
    }
    if let Some(left) = report.lease_left {
        gauge(
            out,
            "starling_lease_left_seconds",
            "Time until the lease of an attempt here ends unless it is renewed, the shortest.",
            left.as_secs_f64(),
        );
    }
    let name = "starling_register_commit_seconds";
    head(out, name, "histogram", "From asking a record's homes to a majority that has the change on disk.");
    for (bound, n) in BOUNDS_MS.iter().zip(report.commits.at_most) {
        let _ = writeln!(out, "{name}_bucket{{le=\"{:?}\"}} {n}", *bound as f64 / 1e3);
    }
    let (count, sum) = (report.commits.count, report.commits.sum.as_secs_f64());
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_count {count}\n{name}_sum {sum}");
    let mut counters: BTreeMap<String, u64> =
        CORE_ALWAYS.iter().map(|name| ((*name).to_owned(), 0)).collect();
    counters.extend(report.counters.clone());
    for (counter, value) in &counters {
        let plain: String =
            counter.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let words = counter.replace('_', " ");
        let name = format!("starling_core_{plain}");
        if CORE_GAUGES.contains(&counter.as_str()) {
            gauge(out, &name, &format!("In the core now: {words}."), value);
        } else {
            head(out, &name, "counter", &format!("Counted by the core: {words}."));
            let _ = writeln!(out, "{name}_total {value}");
        }
    }
}

fn peer_lines(out: &mut String, api: &Api) {
    let view = api.handle.view();
    head(out, "starling_members", "gauge", "Members by liveness as seen from here.");
    for liveness in [Liveness::Alive, Liveness::Suspect, Liveness::Lost] {
        let n = view.members.values().filter(|m| m.liveness == liveness).count();
        let _ = writeln!(out, "starling_members{{liveness=\"{}\"}} {n}", liveness.as_str());
    }
    gauge(out, "starling_isolated", "1 while this peer reaches nobody.", u8::from(view.isolated));
    let about = api.handle.about();
    let now = wall_now().0;
    gauge(out, "starling_draining", "1 while this cluster takes no new attempts.", u8::from(about.draining));
    let age = now.saturating_sub(about.certificate.0.0) as f64 / 1e3;
    gauge(out, "starling_certificate_age_seconds", "Age of this peer's certificate.", age);
    let left = (about.certificate.1.0 as f64 - now as f64) / 1e3;
    gauge(out, "starling_certificate_left_seconds", "Time until this peer's certificate ends.", left);
    let up = now.saturating_sub(about.started_at.0) as f64 / 1e3;
    gauge(out, "starling_up_seconds", "Time since this process started.", up);
    let boot = boottime_now();
    let ages = view.members.values().filter(|m| m.liveness == Liveness::Alive && m.peer != about.name);
    let oldest =
        ages.filter_map(|m| m.report.as_ref()).map(|r| boot.since(r.heard_at)).max().unwrap_or_default();
    gauge(
        out,
        "starling_report_oldest_seconds",
        "Time since the report of any other living member last changed, the longest of them.",
        oldest.as_secs_f64(),
    );
    head(out, "starling_api_requests", "counter", "API requests answered, by route and status.");
    for ((route, status), n) in api.limits.answered() {
        let route = label(&route);
        let _ = writeln!(out, "starling_api_requests_total{{route=\"{route}\",status=\"{status}\"}} {n}");
    }
}

/// This peer's own cluster, as it reports itself.
fn cluster_lines(out: &mut String, api: &Api) {
    let view = api.handle.view();
    let me = api.handle.about().name;
    let Some(report) = view.members.get(&me).and_then(|m| m.report.clone()) else { return };
    if let Some(queue) = &report.queue {
        head(out, "starling_gpus", "gauge", "GPUs of this cluster by model and state: used, reserved, free.");
        for (model, total) in &queue.gpus_total {
            let of = |map: &BTreeMap<String, u32>| map.get(model).copied().unwrap_or(0);
            let (free, reserved) = (of(&queue.gpus_free), of(&queue.gpus_reserved));
            let used = total.saturating_sub(free + reserved);
            for (state, n) in [("used", used), ("reserved", reserved), ("free", free)] {
                let _ = writeln!(out, "starling_gpus{{model=\"{}\",state=\"{state}\"}} {n}", label(model));
            }
        }
        gauge(out, "starling_running", "Attempts that run at this cluster.", queue.running);
        gauge(out, "starling_queued", "Claims that wait at this cluster.", queue.queued);
        gauge(out, "starling_queued_gpus", "GPUs that the waiting claims ask for.", queue.queued_gpus);
        gauge(
            out,
            "starling_closed",
            "1 while this cluster takes no new work.",
            u8::from(queue.closed.is_some()),
        );
    }
    if let Some(health) = &report.health {
        gauge(
            out,
            "starling_cpu_use_ratio",
            "Use of this machine's CPUs, 0 to 1.",
            f64::from(health.cpu_milli) / 1e3,
        );
        if let Some(gpu) = health.gpu_milli {
            gauge(
                out,
                "starling_gpu_use_ratio",
                "Use of this cluster's GPUs as they measure it, 0 to 1.",
                f64::from(gpu) / 1e3,
            );
        }
        gauge(
            out,
            "starling_disk_free_bytes",
            "Free on the disk of the state folder, rounded down.",
            health.disk_free.0,
        );
        gauge(
            out,
            "starling_disk_full",
            "1 while new records are refused for want of disk.",
            u8::from(health.disk_full),
        );
    }
}

/// This peer's links, as it measured them.
fn link_lines(out: &mut String, api: &Api) {
    let view = api.handle.view();
    let me = api.handle.about().name;
    let Some(report) = view.members.get(&me).and_then(|m| m.report.clone()) else { return };
    let now = wall_now().0;
    let mut family =
        |name: &str, help: &str, of: &dyn Fn(&crate::model::report::LinkSample) -> Option<f64>| {
            head(out, name, "gauge", help);
            for link in report.links.iter().take(LINKS_MAX) {
                if let Some(value) = of(link) {
                    let _ = writeln!(out, "{name}{{to=\"{}\"}} {value}", label(link.to.as_str()));
                }
            }
        };
    family("starling_link_rtt_seconds", "Smallest round trip seen lately.", &|l| Some(l.rtt_us as f64 / 1e6));
    family("starling_link_loss_ratio", "Packets lost, 0 to 1.", &|l| Some(f64::from(l.loss_ppm) / 1e6));
    family("starling_link_age_seconds", "Age of round trip and loss.", &|l| {
        Some(now.saturating_sub(l.at.0) as f64 / 1e3)
    });
    family("starling_link_direct", "1 while a direct connection stands.", &|l| {
        Some(f64::from(u8::from(l.direct)))
    });
    family("starling_link_bandwidth_bytes", "Measured throughput, bytes in a second.", &|l| {
        l.bandwidth_bps.map(|bits| bits as f64 / 8.0)
    });
}

fn event_lines(out: &mut String, api: &Api) {
    let measures = api.measures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (name, help, histogram) in [
        (
            "starling_schedule_seconds",
            "From submission, or the end of the attempt before, to placement; at the peer that placed.",
            &measures.schedule,
        ),
        (
            "starling_start_seconds",
            "From an attempt's admission at this cluster to its program's start.",
            &measures.start,
        ),
    ] {
        head(out, name, "histogram", help);
        histogram.write(out, name);
    }
    head(out, "starling_events", "counter", "Events of this peer by kind.");
    let mut kinds: BTreeMap<&str, u64> = EVENTS_ALWAYS.iter().map(|kind| (*kind, 0)).collect();
    kinds.extend(measures.kinds.iter().map(|(kind, n)| (kind.as_str(), *n)));
    for (kind, n) in kinds {
        let _ = writeln!(out, "starling_events_total{{kind=\"{}\"}} {n}", label(kind));
    }
    if let Some(log) = api.handle.log() {
        let (dropped, written) = log.counters();
        head(out, "starling_event_log_lines", "counter", "Lines written to the event log and the audit.");
        let _ = writeln!(out, "starling_event_log_lines_total {written}");
        head(
            out,
            "starling_event_log_dropped",
            "counter",
            "Lines that the disk was too slow or too full for.",
        );
        let _ = writeln!(out, "starling_event_log_dropped_total {dropped}");
    }
}

fn incident_lines(out: &mut String, api: &Api) {
    head(out, "starling_incidents", "gauge", "Incidents that last, as this peer sees them, by severity.");
    for (severity, n) in api.desk.counts() {
        let _ = writeln!(out, "starling_incidents{{severity=\"{}\"}} {n}", severity.as_str());
    }
    let sent = api.desk.sent();
    head(out, "starling_notices", "counter", "Tries of this peer to tell people of incidents, by outcome.");
    for (outcome, n) in [("taken", sent.taken), ("failed", sent.failed)] {
        let _ = writeln!(out, "starling_notices_total{{outcome=\"{outcome}\"}} {n}");
    }
}

/// Only where a collector is set.
fn export_lines(out: &mut String, api: &Api) {
    use std::sync::atomic::Ordering::Relaxed;
    let counters = &api.exported;
    if !counters.on.load(Relaxed) {
        return;
    }
    for (name, help, value) in [
        ("starling_trace_spans_sent", "Spans that the collector of traces took.", &counters.sent),
        ("starling_trace_spans_dropped", "Spans that it did not take in time.", &counters.dropped),
        ("starling_trace_requests_failed", "Requests to it that failed.", &counters.failures),
    ] {
        head(out, name, "counter", help);
        let _ = writeln!(out, "{name}_total {}", value.load(Relaxed));
    }
}

/// `GET /healthz`: 200 while the core answers, 503 otherwise.
pub async fn healthz(State(api): State<Api>) -> Response {
    match local::core_report(&api, Look::default()).await {
        Ok(_) => Json(HealthDocument { ok: true }).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(HealthDocument { ok: false })).into_response(),
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
