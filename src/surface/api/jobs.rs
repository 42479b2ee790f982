//! Jobs: submit, list, look, explain, cancel, wait, checkpoint.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::input::{self, Bounded, NoBody, Q, Segment};
use super::limits::Caller;
use super::local::{CLAIMS_DEFAULT, report_of};
use super::{Api, ApiError, ApiResult, resolve};
use crate::base::{Epoch, JobId, PeerName, Span};
use crate::core::api::{AttemptView, JobFilter, Look};
use crate::core::{ClientRequest, ClientResponse};
use crate::model::array::After;
use crate::model::report::{Liveness, View};
use crate::model::staging::Staging;
use crate::model::{JobRecord, JobState};
use crate::surface::documents::*;

const LIST_DEFAULT: usize = 100;
const WAIT_MAX: Span = Span::secs(600);
const WAIT_DEFAULT: Span = Span::secs(60);
const URI_BYTES_MAX: usize = 2_048;
/// The acting owner is asked for `why` this long before this peer answers itself.
const OWNER_ANSWERS_WITHIN: Duration = Duration::from_secs(4);
/// Queues that are asked who is ahead, how long, and how many are named.
const QUEUES_ASKED_MAX: usize = 8;
const QUEUE_ANSWERS_WITHIN: Span = Span::secs(1);
const AHEAD_MAX: usize = 5;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitQuery {
    #[serde(default)]
    dry_run: bool,
}

/// `POST /v1/jobs`
pub async fn submit(
    State(api): State<Api>,
    Q(query): Q<SubmitQuery>,
    headers: HeaderMap,
    body: Bounded,
) -> ApiResult<Response> {
    let received = wall_now();
    // What is not well formed is as good as none, as the recommendation says.
    let parent = headers.get("traceparent").and_then(|v| v.to_str().ok()?.parse().ok());
    let submission = input::submission(&headers, &body.0, &api.handle.spec_defaults())?;
    let mut spec = Box::new(submission.spec);
    for (text, on) in submission.after {
        // It must be there, so nothing can wait for itself, nor in a circle.
        let job = resolve::resolve(&api, &text).await?;
        let birth = resolve::get(&api, job).await?.birth;
        spec.after.push(After { birth, on });
    }
    if query.dry_run {
        let ClientResponse::Why(why) = api.call(ClientRequest::WhySpec { spec }).await? else {
            return Err(ApiError::Internal("why"));
        };
        let mut document = WhyDocument::from(*why);
        document.asked = Some(api.handle.about().name);
        return Ok(Json(document).into_response());
    }
    let request = ClientRequest::SubmitUnder { spec, key: submission.key, parent, received };
    match api.call(request).await? {
        ClientResponse::Submitted { job, homes, existed } => {
            let document = SubmitDocument {
                id: job,
                homes: homes.into_iter().map(|home| home.peer).collect(),
                existed,
                hints: hints(job),
            };
            let location = [("location", format!("/v1/jobs/{job}"))];
            Ok((StatusCode::CREATED, location, Json(document)).into_response())
        }
        _ => Err(ApiError::Internal("submit")),
    }
}

fn hints(job: JobId) -> Vec<String> {
    let id = job.short();
    ["logs -f", "wait", "why"]
        .iter()
        .map(|command| {
            let (verb, flag) = command.split_once(' ').unwrap_or((command, ""));
            format!("starling {verb} {id} {flag}").trim_end().to_owned()
        })
        .collect()
}

/// The query of both job lists.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    tenant: Option<String>,
    state: Option<String>,
    prefix: Option<String>,
    since: Option<String>,
    until: Option<String>,
    before: Option<String>,
    limit: Option<usize>,
    array: Option<String>,
    reservations: Option<bool>,
}

impl ListQuery {
    /// As the core's filter, every bound checked.
    pub fn filter(self) -> ApiResult<JobFilter> {
        let limit = self.limit.unwrap_or(LIST_DEFAULT);
        if limit == 0 || limit > resolve::LIST_MAX {
            return Err(ApiError::BadRequest(format!("limit: not 1 to {}", resolve::LIST_MAX)));
        }
        for (field, text) in [("tenant", &self.tenant), ("prefix", &self.prefix)] {
            if text.as_ref().is_some_and(|t| t.len() > 128) {
                return Err(ApiError::BadRequest(format!("{field}: more than 128 bytes")));
            }
        }
        let states = self.state.as_deref().map(resolve::states).transpose()?.unwrap_or_else(BTreeSet::new);
        let moment =
            |field, text: &Option<String>| text.as_ref().map(|t| input::moment(field, t)).transpose();
        let array = self.array.as_deref().map(str::parse).transpose();
        let array = array.map_err(|_| ApiError::BadRequest("array: not a job id".into()))?;
        Ok(JobFilter {
            reservations: self.reservations.unwrap_or(false),
            array,
            since: moment("since", &self.since)?,
            until: moment("until", &self.until)?,
            before: self.before.as_deref().map(resolve::place).transpose()?,
            prefix: self.prefix.map(|p| p.to_ascii_lowercase()),
            tenant: self.tenant,
            states,
            touched: None,
            limit,
        })
    }
}

/// `GET /v1/jobs`
pub async fn list(State(api): State<Api>, Q(query): Q<ListQuery>) -> ApiResult<Json<JobList>> {
    let array = match &query.array {
        Some(text) => Some(resolve::resolve(&api, text).await?.to_string()),
        None => None,
    };
    resolve::list(&api, &ListQuery { array, ..query }.filter()?).await.map(Json)
}

/// `GET /v1/jobs/{id}`
pub async fn get(State(api): State<Api>, id: Segment) -> ApiResult<Json<JobDocument>> {
    let job = resolve::resolve(&api, &id.0).await?;
    let record = resolve::get(&api, job).await?;
    let staging = staging(&api, &record).await;
    Ok(Json(JobDocument { staging, ..JobDocument::new(&record, true) }))
}

/// How far what its attempt needs has come, as its cluster says; none where it runs or does not answer in time.
pub async fn staging(api: &Api, record: &JobRecord) -> Option<Staging> {
    let placement = record.placement.as_ref().filter(|_| record.state == JobState::Placed)?;
    let core = report_of(api, &placement.cluster, Look::default(), QUEUE_ANSWERS_WITHIN).await.ok()?;
    let mine = |a: &&AttemptView| a.job == record.id() && a.epoch == record.epoch;
    // Of another peer, perhaps of another version.
    Some(core.attempts.iter().find(mine)?.staging.clone()?.bounded())
}

/// `GET /v1/jobs/{id}/record`
pub async fn record(State(api): State<Api>, id: Segment) -> ApiResult<Json<JobRecord>> {
    let job = resolve::resolve(&api, &id.0).await?;
    Ok(Json(resolve::get(&api, job).await?))
}

/// `GET /v1/jobs/{id}/why`
pub async fn why(State(api): State<Api>, id: Segment) -> ApiResult<Json<WhyDocument>> {
    let job = resolve::resolve(&api, &id.0).await?;
    let record = resolve::get(&api, job).await?;
    let me = api.handle.about().name;
    if let Some(owner) = acting_owner(&record, &api.handle.view()).filter(|owner| *owner != me) {
        let uri = format!("/v1/local/jobs/{job}/why");
        let answer = tokio::time::timeout(OWNER_ANSWERS_WITHIN, resolve::ask(&api, &owner, "GET", uri)).await;
        let read =
            answer.ok().and_then(Result::ok).and_then(|b| serde_json::from_slice::<WhyDocument>(&b).ok());
        if let Some(document) = read {
            return Ok(Json(WhyDocument { staging: staging(&api, &record).await, ..document }));
        }
    }
    let document = why_here(&api, job).await?;
    Ok(Json(WhyDocument { staging: staging(&api, &record).await, ..document }))
}

/// The first home that looks alive drives the job.
fn acting_owner(record: &JobRecord, view: &View) -> Option<PeerName> {
    let alive = |peer: &PeerName| view.members.get(peer).is_some_and(|m| m.liveness == Liveness::Alive);
    record.homes().iter().map(|home| home.peer.clone()).find(|peer| alive(peer))
}

/// The explanation as this peer sees it.
pub async fn why_here(api: &Api, job: JobId) -> ApiResult<WhyDocument> {
    match api.call(ClientRequest::Why { job }).await? {
        ClientResponse::Why(why) => {
            let mut document = WhyDocument::from(*why);
            document.asked = Some(api.handle.about().name);
            who_is_ahead(api, job, &mut document).await;
            Ok(document)
        }
        _ => Err(ApiError::Internal("why")),
    }
}

/// Asks the clusters where claims stand who is ahead there. Who does not answer in time is left out.
async fn who_is_ahead(api: &Api, job: JobId, why: &mut WhyDocument) {
    let waits = |row: &CandidateDocument| row.queue_place.is_some_and(|n| n > 0);
    let asked = why.clusters.iter_mut().filter(|row| waits(row)).take(QUEUES_ASKED_MAX);
    let answers = asked.map(|row| async {
        let look = Look { claims: CLAIMS_DEFAULT, reasons: false };
        let report = report_of(api, &row.cluster, look, QUEUE_ANSWERS_WITHIN).await;
        let queue = report.map(|r| r.queue).unwrap_or_default();
        row.ahead = queue
            .iter()
            .filter(|c| !c.granted)
            .take_while(|c| c.job != job)
            .take(AHEAD_MAX)
            .map(|c| AheadDocument {
                job: c.job,
                priority: c.priority,
                gpus: c.gpus,
                age_ms: c.age.as_millis(),
            })
            .collect();
    });
    futures::future::join_all(answers).await;
}

/// `POST /v1/jobs/{id}/cancel`
pub async fn cancel(
    State(api): State<Api>,
    caller: Option<Extension<Caller>>,
    id: Segment,
    _: NoBody,
) -> ApiResult<Json<CancelDocument>> {
    let job = resolve::resolve(&api, &id.0).await?;
    let by = caller.map_or_else(|| "an unnamed caller".to_owned(), |Extension(caller)| caller.to_string());
    match api.call(ClientRequest::Cancel { job, by }).await? {
        ClientResponse::Cancelled { state } => Ok(Json(CancelDocument { id: job, state })),
        _ => Err(ApiError::Internal("cancel")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    timeout: Option<String>,
}

/// `GET /v1/jobs/{id}/wait`: answers when the job is final or the time is up.
pub async fn wait(
    State(api): State<Api>,
    id: Segment,
    Q(query): Q<WaitQuery>,
) -> ApiResult<Json<WaitDocument>> {
    let timeout = match &query.timeout {
        Some(text) => input::span("timeout", text, WAIT_MAX)?,
        None => WAIT_DEFAULT,
    };
    let _permit = api.limits.stream()?;
    let deadline = Instant::now() + timeout.to_std();
    let mut events = api.handle.events();
    let job = resolve::resolve(&api, &id.0).await?;
    // Events hurry it up; the register is asked anyway, ever more seldom, since events may be lost.
    let mut pause = Duration::from_millis(250);
    loop {
        let record = match resolve::get(&api, job).await {
            Ok(record) => record,
            // Too few homes answer just now: that may pass while we wait.
            Err(error @ ApiError::Core(crate::core::api::ClientError::Unknown { .. })) => {
                if Instant::now() + pause >= deadline {
                    return Err(error);
                }
                tokio::time::sleep(pause).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let done = record.state.is_final();
        if done || Instant::now() >= deadline {
            return Ok(Json(WaitDocument { done, job: JobDocument::new(&record, true) }));
        }
        let until = deadline.min(Instant::now() + pause);
        let touched = async {
            loop {
                match events.recv().await {
                    Ok(event) if event.job == Some(job) => break,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        let _ = tokio::time::timeout_at(until, touched).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointBody {
    epoch: u64,
    uri: String,
}

/// `POST /v1/jobs/{id}/checkpoint`
pub async fn checkpoint(
    State(api): State<Api>,
    id: Segment,
    body: Bounded,
) -> ApiResult<Json<PublishedDocument>> {
    let CheckpointBody { epoch, uri } = body.json()?;
    if uri.is_empty() || uri.len() > URI_BYTES_MAX || uri.chars().any(char::is_control) {
        return Err(ApiError::BadRequest(format!(
            "uri: not 1 to {URI_BYTES_MAX} bytes without control characters"
        )));
    }
    let job = resolve::resolve(&api, &id.0).await?;
    let request = ClientRequest::Publish { job, epoch: Epoch(epoch), uri: uri.clone() };
    match api.call(request).await? {
        ClientResponse::Published => Ok(Json(PublishedDocument { id: job, epoch, uri })),
        _ => Err(ApiError::Internal("publish")),
    }
}
