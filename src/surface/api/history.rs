//! What happened (`/v1/history`), asked of every peer, and who changed what at this one (`/v1/audit`).

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use serde::Deserialize;

use super::input::{Q, span};
use super::limits::{Address, Caller, came_from};
use super::{Api, ApiError, ApiResult, escape, resolve};
use crate::base::{JobId, PeerName, Span};
use crate::core::api::{ClientRequest, ClientResponse};
use crate::model::report::Liveness;
use crate::runtime::eventlog::{AuditNote, EventLog, HistoryFilter, QUERY_MAX};
use crate::surface::documents::{AuditList, AuditVerdict, HistoryEntry, HistoryList, wall_now};

const LIST_DEFAULT: usize = 200;
/// As long as events are kept at all.
const SINCE_MAX: Span = Span::secs(10 * 366 * 86_400);
/// A peer that has not answered by then is named in `unanswered`.
const PEER_ANSWERS_WITHIN: Duration = Duration::from_secs(4);
const ASKED_AT_ONCE: usize = 16;
/// Longest text of how something stood.
const STANDS_MAX: usize = 1_000;

/// The query of both.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryQuery {
    since: Option<String>,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
    pub kind: String,
    job: Option<String>,
    tenant: Option<String>,
    limit: Option<usize>,
}

impl HistoryQuery {
    async fn filter(self, api: &Api) -> ApiResult<HistoryFilter> {
        let limit = self.limit.unwrap_or(LIST_DEFAULT);
        if limit == 0 || limit > QUERY_MAX {
            return Err(ApiError::BadRequest(format!("limit: not 1 to {QUERY_MAX}")));
        }
        let tenant = self.tenant.unwrap_or_default();
        if self.kind.len() > 128 || tenant.len() > 128 {
            return Err(ApiError::BadRequest("more than 128 bytes in a filter".into()));
        }
        let job = match &self.job {
            Some(text) => Some(resolve::resolve(api, text).await?),
            None => None,
        };
        let since_ms = match &self.since {
            Some(text) => wall_now().0.saturating_sub(span("since", text, SINCE_MAX)?.as_millis()),
            None => self.since_ms.unwrap_or(0),
        };
        let tenant = Some(tenant).filter(|t| !t.is_empty());
        Ok(HistoryFilter {
            since_ms,
            until_ms: self.until_ms.unwrap_or(0),
            kind: self.kind,
            job,
            tenant,
            limit,
        })
    }
}

fn log(api: &Api) -> ApiResult<EventLog> {
    api.handle.log().ok_or_else(|| ApiError::NotFound("event log at this peer".into()))
}

fn disk(error: std::io::Error) -> ApiError {
    ApiError::Conflict(format!("the event log cannot be read: {error}"))
}

/// `GET /v1/local/history`
pub async fn local_history(
    State(api): State<Api>,
    Q(query): Q<HistoryQuery>,
) -> ApiResult<Json<HistoryList>> {
    // Another peer names the job in full: it is not looked up over the mesh again.
    if query.job.as_ref().is_some_and(|id| id.parse::<JobId>().is_err()) {
        return Err(ApiError::BadRequest("job: not a whole id".into()));
    }
    let filter = query.filter(&api).await?;
    Ok(Json(HistoryList { events: here(&api, filter).await?, unanswered: Vec::new() }))
}

async fn here(api: &Api, filter: HistoryFilter) -> ApiResult<Vec<HistoryEntry>> {
    let peer = api.handle.about().name;
    let entries = log(api)?.history(filter).await.map_err(disk)?;
    Ok(entries.into_iter().map(|entry| HistoryEntry { peer: peer.clone(), entry }).collect())
}

/// The newest events that one peer wrote down.
pub async fn of_peer(api: &Api, peer: &PeerName, limit: usize) -> ApiResult<Vec<HistoryEntry>> {
    if *peer == api.handle.about().name {
        return here(api, HistoryFilter { limit, ..HistoryFilter::default() }).await;
    }
    let uri = format!("/v1/local/history?limit={limit}");
    let answer = tokio::time::timeout(PEER_ANSWERS_WITHIN, resolve::ask(api, peer, "GET", uri)).await;
    let late =
        ApiError::Conflict(format!("{peer} did not answer within {} s", PEER_ANSWERS_WITHIN.as_secs()));
    let bytes = answer.map_err(|_| late)??;
    let list: HistoryList =
        serde_json::from_slice(&bytes).map_err(|_| ApiError::Internal("history of another peer"))?;
    // What a peer says of others is not taken from it.
    Ok(list.events.into_iter().filter(|e| e.peer == *peer).take(limit).collect())
}

/// `GET /v1/history`
pub async fn history(State(api): State<Api>, Q(query): Q<HistoryQuery>) -> ApiResult<Json<HistoryList>> {
    let filter = query.filter(&api).await?;
    everywhere(&api, filter).await.map(Json)
}

/// The newest events of all peers that answer, newest first.
pub async fn everywhere(api: &Api, filter: HistoryFilter) -> ApiResult<HistoryList> {
    let (me, view) = (api.handle.about().name, api.handle.view());
    let (mut asked, mut unanswered) = (Vec::new(), Vec::new());
    for member in api.handle.members().into_iter().filter(|m| !m.removed && m.name != me) {
        match view.members.get(&member.name).map(|m| m.liveness) {
            Some(Liveness::Alive | Liveness::Suspect) => asked.push(member.name),
            Some(Liveness::Lost) | None => unanswered.push(member.name),
        }
    }
    let mut uri = format!(
        "/v1/local/history?limit={}&since_ms={}&until_ms={}&kind={}",
        filter.limit,
        filter.since_ms,
        filter.until_ms,
        escape(&filter.kind)
    );
    if let Some(job) = filter.job {
        uri.push_str(&format!("&job={job}"));
    }
    if let Some(tenant) = &filter.tenant {
        uri.push_str(&format!("&tenant={}", escape(tenant)));
    }
    let limit = filter.limit;
    let mut events = here(api, filter).await?;
    let mut answers = futures::stream::iter(asked)
        .map(|peer| {
            let (api, uri) = (api.clone(), uri.clone());
            async move {
                let answer =
                    tokio::time::timeout(PEER_ANSWERS_WITHIN, resolve::ask(&api, &peer, "GET", uri)).await;
                let list = answer
                    .ok()
                    .and_then(Result::ok)
                    .and_then(|bytes| serde_json::from_slice::<HistoryList>(&bytes).ok());
                (peer, list)
            }
        })
        .buffer_unordered(ASKED_AT_ONCE);
    while let Some((peer, answer)) = answers.next().await {
        match answer {
            // What a peer says of others is not taken from it.
            Some(list) => events.extend(list.events.into_iter().filter(|e| e.peer == peer)),
            None => unanswered.push(peer),
        }
    }
    // Clocks of several machines: near each other the order is a guess.
    events.sort_by(|a, b| b.entry.at_ms.cmp(&a.entry.at_ms).then_with(|| a.peer.cmp(&b.peer)));
    events.truncate(limit);
    unanswered.sort();
    Ok(HistoryList { events, unanswered })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    limit: Option<usize>,
}

/// `GET /v1/audit`: of this peer.
pub async fn audit(State(api): State<Api>, Q(query): Q<AuditQuery>) -> ApiResult<Json<AuditList>> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT).clamp(1, QUERY_MAX);
    let entries = log(&api)?.audit_entries(limit).await.map_err(disk)?;
    Ok(Json(AuditList { peer: api.handle.about().name, entries }))
}

/// `GET /v1/audit/verify`: reads this peer's chain.
pub async fn verify(State(api): State<Api>) -> ApiResult<Json<AuditVerdict>> {
    let verdict = log(&api)?.audit_verify().await.map_err(disk)?;
    Ok(Json(AuditVerdict { peer: api.handle.about().name, verdict }))
}

/// Only submitting has a dry run: of any other call the words change nothing.
fn is_dry(route: &str, query: &str) -> bool {
    route == "/v1/jobs" && query.split('&').any(|part| part == "dry_run=true")
}

/// Around every route: what changes something is written down, also when it was refused.
pub(super) async fn audited(State(api): State<Api>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<axum::extract::MatchedPath>().map(|m| m.as_str().to_owned());
    let (Some(log), Some(route)) = (api.handle.log(), route) else { return next.run(request).await };
    let dry = is_dry(&route, request.uri().query().unwrap_or_default());
    // A job's own checkpoints stand in its record, and are many.
    let of_a_job = route.ends_with("/checkpoint");
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) || dry || of_a_job {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<Caller>().cloned();
    let from = came_from(caller.as_ref(), request.extensions().get::<Address>());
    let method = request.method().clone();
    let mut object = object(&route, request.uri());
    // The operator's calls about one job name it in full here, whatever start of its id was given.
    let job = match route.as_str() {
        "/v1/reservations/{id}" => resolve::resolve_reservation(&api, &object).await.ok(),
        route if route.starts_with("/v1/jobs/{id}/") => resolve::resolve(&api, &object).await.ok(),
        _ => None,
    };
    if let Some(job) = job {
        object = job.to_string();
    }
    let before = stands(&api, &route, &object, job).await;
    let response = next.run(request).await;
    let made = response.headers().get("location").and_then(|v| v.to_str().ok());
    let object = made.and_then(|at| at.rsplit('/').next()).map_or(object, str::to_owned);
    let after = stands(&api, &route, &object, job).await;
    log.audit(AuditNote {
        at_ms: wall_now().0,
        who: caller.as_ref().map_or_else(|| "an unnamed caller".into(), ToString::to_string),
        from,
        what: format!("{method} {route}"),
        object,
        before,
        after,
        status: response.status().as_u16(),
    });
    response
}

/// What a call is about: the variable part of its path, or the cluster in its query.
fn object(route: &str, uri: &axum::http::Uri) -> String {
    let given = route
        .split('/')
        .zip(uri.path().split('/'))
        .find(|(want, _)| want.starts_with('{'))
        .map(|(_, got)| got);
    let cluster = || uri.query().and_then(|q| q.split('&').find_map(|p| p.strip_prefix("cluster=")));
    given.or_else(cluster).unwrap_or_default().chars().take(128).collect()
}

/// A tenant's limits as this peer knows them.
async fn tenant_stands(api: &Api, tenant: &str) -> String {
    let Ok(ClientResponse::Tenants(known)) = api.call(ClientRequest::Tenants).await else {
        return "not known".into();
    };
    let card = known.into_iter().map(|r| r.card).find(|card| card.tenant == tenant && !card.removed);
    let limits = card.map(|card| serde_json::to_string(&card.limits).unwrap_or_default());
    limits.unwrap_or_else(|| "no limits".into()).chars().take(STANDS_MAX).collect()
}

/// How the object stands: a job by its record, a member or cluster as this peer knows it.
async fn stands(api: &Api, route: &str, object: &str, job: Option<JobId>) -> String {
    if let Some(job) = job {
        return match resolve::get(api, job).await {
            Ok(record) => {
                let at = record.placement.as_ref().map(|p| format!(" at {}", p.cluster)).unwrap_or_default();
                format!("{}{at}, version {}", record.state.as_str(), record.version)
            }
            Err(_) => "not known: too few homes answer".into(),
        };
    }
    if route.starts_with("/v1/tenants/") {
        return tenant_stands(api, object).await;
    }
    if !["/v1/members", "/v1/drain", "/v1/undrain"].iter().any(|r| route.starts_with(r)) {
        return String::new();
    }
    let me = api.handle.about();
    let name = if object.is_empty() { me.name.as_str() } else { object };
    if name == me.name.as_str() {
        return if me.draining { "draining" } else { "not draining" }.into();
    }
    match api.handle.members().into_iter().find(|m| m.name.as_str() == name) {
        Some(member) if member.removed => "removed".into(),
        Some(_) => match api.handle.view().members.values().find(|m| m.peer.as_str() == name) {
            Some(m) if m.draining => format!("a member, {}, draining", m.liveness.as_str()),
            Some(m) => format!("a member, {}", m.liveness.as_str()),
            None => "a member".into(),
        },
        None => "no member".into(),
    }
}
