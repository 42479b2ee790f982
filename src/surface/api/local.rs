//! What this peer itself holds; other peers ask these routes through `serve_proxy`.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::input::{Q, Segment};
use super::jobs::{ListQuery, why_here};
use super::resolve::place_text;
use super::{Api, ApiError, ApiResult, resolve};
use crate::base::{PeerName, Span};
use crate::core::api::{InspectReport, JobFilter, Look};
use crate::core::{ClientRequest, ClientResponse};
use crate::runtime::CallError;
use crate::surface::documents::{InspectDocument, JobDocument, JobList, WhyDocument};

/// Another peer is asked for its insides for so long.
pub const ANSWERS_WITHIN: Span = Span::secs(2);
/// Claims of a queue that are told where nobody says how many,
pub const CLAIMS_DEFAULT: usize = 1_000;
/// and at most, so that an answer stays below what is read of another peer.
pub const CLAIMS_MAX: usize = 10_000;

/// `GET /v1/local/jobs`
pub async fn jobs(State(api): State<Api>, Q(query): Q<ListQuery>) -> ApiResult<Json<JobList>> {
    let filter: JobFilter = query.filter()?;
    let limit = filter.limit;
    let records = resolve::local_jobs(&api, filter).await?;
    let truncated = records.len() >= limit;
    let next = records.last().filter(|_| truncated).map(|r| place_text(r.submitted_at.0, r.id()));
    let jobs = records.iter().take(limit).map(|record| JobDocument::new(record, false)).collect();
    Ok(Json(JobList { jobs, truncated, unanswered: Vec::new(), next }))
}

/// `GET /v1/local/jobs/{id}/why`
pub async fn why(State(api): State<Api>, id: Segment) -> ApiResult<Json<WhyDocument>> {
    let job = id.0.parse().map_err(|e: crate::base::IdError| ApiError::BadRequest(e.to_string()))?;
    why_here(&api, job).await.map(Json)
}

/// The core's own report.
pub async fn core_report(api: &Api, look: Look) -> ApiResult<InspectReport> {
    match api.call(ClientRequest::Inspect(look)).await? {
        ClientResponse::Inspect(report) => Ok(*report),
        _ => Err(ApiError::Internal("inspect")),
    }
}

/// The core's report of another peer, asked for at most so long, or of this one.
pub async fn report_of(api: &Api, name: &PeerName, look: Look, within: Span) -> ApiResult<InspectReport> {
    if *name == api.handle.about().name {
        return core_report(api, look).await;
    }
    // A peer of an older version tells all, whatever is asked.
    let uri = format!("/v1/local/inspect?claims={}&reasons={}", look.claims, look.reasons);
    let asked = resolve::ask(api, name, "GET", uri);
    let silent = |_| CallError::Timeout(name.clone(), within);
    let bytes = tokio::time::timeout(within.to_std(), asked).await.map_err(silent)??;
    let read: InspectDocument =
        serde_json::from_slice(&bytes).map_err(|_| ApiError::Internal("inspect of another peer"))?;
    let mut core = read.core;
    core.queue_total.get_or_insert(core.queue.len() as u64);
    core.queue.truncate(look.claims);
    Ok(core)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InspectQuery {
    claims: usize,
    reasons: bool,
}

impl Default for InspectQuery {
    fn default() -> Self {
        Self { claims: CLAIMS_DEFAULT, reasons: true }
    }
}

/// `GET /v1/local/inspect`
pub async fn inspect(State(api): State<Api>, Q(query): Q<InspectQuery>) -> ApiResult<Json<InspectDocument>> {
    if query.claims > CLAIMS_MAX {
        return Err(ApiError::BadRequest(format!("claims: more than {CLAIMS_MAX}")));
    }
    let core = core_report(&api, Look { claims: query.claims, reasons: query.reasons }).await?;
    Ok(Json(InspectDocument { peer: api.handle.about().name, core }))
}
