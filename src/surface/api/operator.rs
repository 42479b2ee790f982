//! What an operator says about a job: move it, it is lost, let it run again.

use axum::extract::State;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Deserialize;

use super::input::{Bounded, NoBody, Segment};
use super::limits::Caller;
use super::{Api, ApiError, ApiResult, resolve};
use crate::base::{Epoch, PeerName};
use crate::core::{ClientRequest, ClientResponse};
use crate::model::report::Liveness;
use crate::surface::documents::JobDocument;

fn named(caller: Option<Extension<Caller>>) -> String {
    caller.map_or_else(|| "an unnamed caller".to_owned(), |Extension(caller)| caller.to_string())
}

async fn changed(api: &Api, request: ClientRequest) -> ApiResult<Json<JobDocument>> {
    match api.call(request).await? {
        ClientResponse::Job(record) => Ok(Json(JobDocument::new(&record, true))),
        _ => Err(ApiError::Internal("a change by an operator")),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveBody {
    to: PeerName,
}

/// `POST /v1/jobs/{id}/move`: stop with notice where it runs, and go on at another cluster.
pub async fn move_job(
    State(api): State<Api>,
    caller: Option<Extension<Caller>>,
    id: Segment,
    body: Bounded,
) -> ApiResult<Json<JobDocument>> {
    let MoveBody { to } = body.json()?;
    let job = resolve::resolve(&api, &id.0).await?;
    let record = resolve::get(&api, job).await?;
    let ClientResponse::Why(why) =
        api.call(ClientRequest::WhySpec { spec: Box::new(record.spec.clone()) }).await?
    else {
        return Err(ApiError::Internal("why"));
    };
    // A running job is not stopped for a cluster that can never take it.
    match why.clusters.iter().find(|c| c.cluster == to) {
        None => return Err(ApiError::NotFound(format!("cluster {to}"))),
        Some(row) if !row.fits_ever => {
            return Err(ApiError::Conflict(format!("{to} can never run it: {}", row.words())));
        }
        Some(_) => {}
    }
    match api.handle.view().members.get(&to) {
        Some(m) if m.liveness == Liveness::Alive && !m.draining => {}
        Some(m) if m.draining => return Err(ApiError::Conflict(format!("{to} drains: it takes no jobs"))),
        _ => return Err(ApiError::Conflict(format!("{to} is not reached from here"))),
    }
    changed(&api, ClientRequest::Move { job, to, by: named(caller) }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfirmBody {
    epoch: u64,
}

/// `POST /v1/jobs/{id}/confirm-lost`: the operator's word that the attempt of this epoch has stopped.
pub async fn confirm_lost(
    State(api): State<Api>,
    caller: Option<Extension<Caller>>,
    id: Segment,
    body: Bounded,
) -> ApiResult<Json<JobDocument>> {
    let ConfirmBody { epoch } = body.json()?;
    let job = resolve::resolve(&api, &id.0).await?;
    let record = resolve::get(&api, job).await?;
    if let Some(placement) = &record.placement {
        let alive = api.handle.view().members.get(&placement.cluster).map(|m| m.liveness);
        if alive == Some(Liveness::Alive) {
            return Err(ApiError::Conflict(format!(
                "{} is alive: it is not lost; `starling cancel` ends the job, `starling move` moves it",
                placement.cluster
            )));
        }
    }
    // The word is about this very attempt: what a majority holds, not what a single home may have heard.
    let cluster = record.placement.map(|placement| placement.cluster);
    changed(&api, ClientRequest::ConfirmLost { job, epoch: Epoch(epoch), cluster, by: named(caller) }).await
}

/// `POST /v1/jobs/{id}/release`: a held job may run again.
pub async fn release(
    State(api): State<Api>,
    caller: Option<Extension<Caller>>,
    id: Segment,
    _: NoBody,
) -> ApiResult<Json<JobDocument>> {
    let job = resolve::resolve(&api, &id.0).await?;
    let record = resolve::get(&api, job).await?;
    // One that waits after losses is as good as held; what has ended, the record itself refuses.
    if record.held.is_none() && record.losses_in_a_row == 0 && !record.state.is_final() {
        let (short, state) = (job.short(), record.state.as_str());
        return Err(ApiError::Conflict(format!(
            "job {short} is not held, it is {state}: there is nothing to release"
        )));
    }
    changed(&api, ClientRequest::Release { job, by: named(caller) }).await
}
