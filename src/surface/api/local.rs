//! What this peer itself holds; other peers ask these routes through `serve_proxy`.

use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::input::{Q, Segment};
use super::jobs::{ListQuery, why_here};
use super::resolve::place_text;
use super::{Api, ApiError, ApiResult, resolve};
use crate::base::PeerName;
use crate::core::api::{InspectReport, JobFilter};
use crate::core::{ClientRequest, ClientResponse};
use crate::surface::documents::{InspectDocument, JobDocument, JobList, WhyDocument};

/// Another peer is asked for its insides for so long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

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
pub async fn core_report(api: &Api) -> ApiResult<InspectReport> {
    match api.call(ClientRequest::Inspect).await? {
        ClientResponse::Inspect(report) => Ok(*report),
        _ => Err(ApiError::Internal("inspect")),
    }
}

/// The core's report of another peer, or of this one.
pub async fn report_of(api: &Api, name: &PeerName) -> ApiResult<InspectReport> {
    if *name == api.handle.about().name {
        return core_report(api).await;
    }
    let asked = resolve::ask(api, name, "GET", "/v1/local/inspect".into());
    let bytes = tokio::time::timeout(ANSWERS_WITHIN, asked).await.map_err(|_| {
        ApiError::Conflict(format!("{name} did not answer within {} s", ANSWERS_WITHIN.as_secs()))
    })??;
    let read: InspectDocument =
        serde_json::from_slice(&bytes).map_err(|_| ApiError::Internal("inspect of another peer"))?;
    Ok(read.core)
}

/// `GET /v1/local/inspect`
pub async fn inspect(State(api): State<Api>) -> ApiResult<Json<InspectDocument>> {
    let core = core_report(&api).await?;
    Ok(Json(InspectDocument { peer: api.handle.about().name, core }))
}
