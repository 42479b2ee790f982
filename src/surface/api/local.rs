//! What this peer itself holds; other peers ask these routes through `serve_proxy`.

use axum::Json;
use axum::extract::State;

use super::input::{Q, Segment};
use super::jobs::{ListQuery, why_here};
use super::resolve::place_text;
use super::{Api, ApiError, ApiResult, resolve};
use crate::core::api::{InspectReport, JobFilter};
use crate::core::{ClientRequest, ClientResponse};
use crate::surface::documents::{InspectDocument, JobDocument, JobList, WhyDocument};

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

/// `GET /v1/local/inspect`
pub async fn inspect(State(api): State<Api>) -> ApiResult<Json<InspectDocument>> {
    let core = core_report(&api).await?;
    Ok(Json(InspectDocument { peer: api.handle.about().name, core }))
}
