//! `GET /metrics` in Prometheus' text format, and `GET /healthz`.

use std::fmt::Write;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{Api, local};
use crate::core::api::InspectReport;
use crate::model::report::Liveness;
use crate::surface::documents::wall_now;

/// `GET /metrics`
pub async fn metrics(State(api): State<Api>) -> Response {
    let mut out = String::new();
    for line in api.handle.metrics().lines().filter(|line| *line != "# EOF") {
        out.push_str(line);
        out.push('\n');
    }
    if let Ok(report) = local::core_report(&api).await {
        core_lines(&mut out, &report);
    }
    peer_lines(&mut out, &api);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out).into_response()
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn gauge(out: &mut String, name: &str, help: &str, value: impl std::fmt::Display) {
    head(out, name, "gauge", help);
    let _ = writeln!(out, "{name} {value}");
}

fn core_lines(out: &mut String, report: &InspectReport) {
    gauge(out, "starling_records", "Records held as a home.", report.records);
    gauge(out, "starling_records_live", "Records held as a home that are not final.", report.records_live);
    gauge(out, "starling_attempts", "Attempts at this cluster that are not closed.", report.attempts.len());
    gauge(out, "starling_claims", "Claims in this cluster's queue.", report.queue.len());
    if let Some(oldest) = report.contacts.iter().map(|(_, _, age)| *age).min() {
        gauge(
            out,
            "starling_contact_age_seconds",
            "Age of the newest counted renewal.",
            oldest.as_secs_f64(),
        );
    }
    for (counter, value) in &report.counters {
        let plain: String =
            counter.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let name = format!("starling_core_{plain}_total");
        head(out, &name, "counter", "A counter of the core.");
        let _ = writeln!(out, "{name} {value}");
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
    gauge(out, "starling_certificate_left_seconds", "Time until it ends.", left);
    head(out, "starling_api_requests_total", "counter", "API requests answered, by route and status.");
    for ((route, status), n) in api.limits.answered() {
        let _ = writeln!(out, "starling_api_requests_total{{route=\"{route}\",status=\"{status}\"}} {n}");
    }
}

/// `GET /healthz`: 200 while the core answers, 503 otherwise.
pub async fn healthz(State(api): State<Api>) -> Response {
    match local::core_report(&api).await {
        Ok(_) => Json(json!({ "ok": true })).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ok": false }))).into_response(),
    }
}
