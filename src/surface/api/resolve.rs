//! Answers that need the whole mesh: every member that may be up is asked, with a time bound.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;

use super::{Api, ApiError, ApiResult};
use crate::base::{JobId, PeerName, WallTime};
use crate::core::api::JobFilter;
use crate::core::{ClientRequest, ClientResponse};
use crate::model::report::Liveness;
use crate::model::{JobRecord, JobState};
use crate::runtime::{ProxyRequest, ProxyResponse};
use crate::surface::documents::{ErrorDocument, JobDocument, JobList};

/// Most jobs that one list holds.
pub const LIST_MAX: usize = 10_000;
/// Shortest prefix of an id.
const PREFIX_MIN: usize = 4;
/// Peers asked at once.
const ASKED_AT_ONCE: usize = 16;
/// A peer that has not answered by then is named in `unanswered`.
const PEER_ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of one peer's answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// What this peer holds.
pub async fn local_jobs(api: &Api, filter: JobFilter) -> ApiResult<Vec<JobRecord>> {
    match api.call(ClientRequest::Local { filter }).await? {
        ClientResponse::Jobs(jobs) => Ok(jobs),
        _ => Err(ApiError::Internal("local")),
    }
}

/// Reads one record through its register.
pub async fn get(api: &Api, job: JobId) -> ApiResult<JobRecord> {
    match api.call(ClientRequest::Get { job }).await? {
        ClientResponse::Job(record) => Ok(*record),
        _ => Err(ApiError::Internal("get")),
    }
}

/// Reads all of a peer's answer; an error of its own is passed on.
pub async fn ask(api: &Api, peer: &PeerName, method: &str, uri: String) -> ApiResult<Vec<u8>> {
    let request = ProxyRequest { method: method.into(), uri, body: Vec::new() };
    let answer = api.handle.proxy(peer, request).await?;
    read_answer(answer).await
}

async fn read_answer(answer: ProxyResponse) -> ApiResult<Vec<u8>> {
    let status = axum::http::StatusCode::from_u16(answer.status).map_err(|_| ApiError::Internal("proxy"))?;
    let mut body = answer.body;
    let mut bytes = Vec::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| ApiError::BadRequest("the other peer's answer ended early".into()))?;
        if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(ApiError::TooLarge(ANSWER_BYTES_MAX));
        }
        bytes.extend_from_slice(&chunk);
    }
    if status.is_success() {
        return Ok(bytes);
    }
    match serde_json::from_slice::<ErrorDocument>(&bytes) {
        Ok(document) => Err(ApiError::Passed(status, document.error)),
        Err(_) => Err(ApiError::Internal("proxy")),
    }
}

/// Escapes a query value.
pub fn escape(text: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Jobs of the whole mesh: the newest version of each that anybody gave.
pub async fn list(api: &Api, filter: &JobFilter) -> ApiResult<JobList> {
    // A home that lags behind would pass a job off under an old state: so states are sorted out here,
    // after the newest version is known, and every home is asked for all of them.
    let limit = if filter.states.is_empty() { filter.limit } else { LIST_MAX };
    let wide = JobFilter { states: Default::default(), limit: limit.min(LIST_MAX), ..filter.clone() };
    let view = api.handle.view();
    let me = api.handle.about().name;
    let mut unanswered = Vec::new();
    let mut asked = Vec::new();
    for member in api.handle.members().into_iter().filter(|m| !m.removed && m.name != me) {
        match view.members.get(&member.name).map(|m| m.liveness) {
            Some(Liveness::Alive | Liveness::Suspect) => asked.push(member.name),
            Some(Liveness::Lost) | None => unanswered.push(member.name),
        }
    }
    let own = local_jobs(api, wide.clone()).await?;
    let mut truncated = own.len() >= wide.limit;
    // Of who holds more than it could say, nothing is known below the last that it said.
    let mut floor = own.last().filter(|_| truncated).map(|r| (r.submitted_at.0, r.id()));
    let mut newest: BTreeMap<JobId, JobDocument> =
        own.iter().map(|record| (record.id(), JobDocument::new(record, false))).collect();
    let uri = local_uri(&wide);
    let mut answers = futures::stream::iter(asked)
        .map(|peer| async {
            let answer = tokio::time::timeout(PEER_ANSWERS_WITHIN, ask(api, &peer, "GET", uri.clone())).await;
            let list = answer
                .ok()
                .and_then(Result::ok)
                .and_then(|bytes| serde_json::from_slice::<JobList>(&bytes).ok());
            (peer, list)
        })
        .buffer_unordered(ASKED_AT_ONCE);
    while let Some((peer, answer)) = answers.next().await {
        let Some(list) = answer else {
            unanswered.push(peer);
            continue;
        };
        truncated |= list.truncated;
        if list.truncated {
            floor = floor.max(list.jobs.last().map(|job| (job.submitted_at_ms, job.id)));
        }
        for job in list.jobs {
            match newest.get(&job.id) {
                // Where a proposer crashed, two values may carry one version; the one that ended is shown.
                Some(known) if (known.version, known.done) >= (job.version, job.done) => {}
                _ => drop(newest.insert(job.id, job)),
            }
        }
    }
    unanswered.sort();
    let kept = |job: &JobDocument| filter.states.is_empty() || filter.states.contains(&job.state);
    let at = |job: &JobDocument| (job.submitted_at_ms, job.id);
    let known = |job: &JobDocument| floor.is_none_or(|floor| at(job) >= floor);
    let mut jobs: Vec<JobDocument> = newest.into_values().filter(kept).filter(known).collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(at(job)));
    if jobs.len() > filter.limit {
        truncated = true;
        jobs.truncate(filter.limit);
        floor = None;
    }
    let next = floor.or_else(|| jobs.last().map(at)).filter(|_| truncated).map(|(at, id)| place_text(at, id));
    Ok(JobList { jobs, truncated, unanswered, next })
}

/// Where a page of a list ended, as the next one is asked for.
pub fn place_text(submitted_at_ms: u64, id: JobId) -> String {
    format!("{submitted_at_ms}-{id}")
}

/// The same, read.
pub fn place(text: &str) -> ApiResult<(WallTime, JobId)> {
    let parts = text.split_once('-').and_then(|(at, id)| Some((at.parse().ok()?, id.parse().ok()?)));
    let wrong = || ApiError::BadRequest("before: not the `next` of a list".into());
    parts.map(|(at, id)| (WallTime(at), id)).ok_or_else(wrong)
}

fn local_uri(filter: &JobFilter) -> String {
    let mut uri = format!("/v1/local/jobs?limit={}", filter.limit);
    for (name, value) in [("prefix", &filter.prefix), ("tenant", &filter.tenant)] {
        if let Some(value) = value {
            uri.push_str(&format!("&{name}={}", escape(value)));
        }
    }
    for (name, at) in [("since", filter.since), ("until", filter.until)] {
        uri.push_str(&at.map_or_else(String::new, |at| format!("&{name}={}", at.0)));
    }
    if let Some((at, id)) = filter.before {
        uri.push_str(&format!("&before={}", place_text(at.0, id)));
    }
    if filter.reservations {
        uri.push_str("&reservations=true");
    }
    if let Some(array) = filter.array {
        uri.push_str(&format!("&array={array}"));
    }
    uri
}

/// Reads `running,pending`.
pub fn states(text: &str) -> ApiResult<std::collections::BTreeSet<JobState>> {
    text.split(',').filter(|s| !s.is_empty()).map(state).collect()
}

fn state(text: &str) -> ApiResult<JobState> {
    use JobState::*;
    [Pending, Placed, Running, Succeeded, Failed, Cancelled]
        .into_iter()
        .find(|s| s.as_str() == text)
        .ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            ApiError::BadRequest(format!(
                "state: {text:?} is not pending, placed, running, succeeded, failed or cancelled"
            ))
        })
}

/// The job that an id or the start of one names; `ID.7` is job 7 of an array, `ID.NAME` a group of a job.
pub async fn resolve(api: &Api, text: &str) -> ApiResult<JobId> {
    let Some((array, index)) = text.split_once('.') else { return resolve_one(api, text).await };
    let record = get(api, resolve_one(api, array).await?).await?;
    let groups = &record.spec.groups.list;
    let group = groups.iter().position(|g| g.name == index).and_then(|i| u32::try_from(i).ok());
    let number = index.parse().ok();
    let rank = match &record.spec.array {
        _ if !groups.is_empty() => group.or(number),
        Some(array) => number.and_then(|index| array.rank(index)),
        None => None,
    };
    match rank.and_then(|rank| record.child_birth(rank)) {
        Some(birth) => Ok(birth.id()),
        None if record.spec.array.is_some() => Err(ApiError::NoJob(format!("{index} in array {array}"))),
        None if !groups.is_empty() => Err(ApiError::NoJob(format!("{index} among the groups of {array}"))),
        None => Err(ApiError::NoJob(format!("{text}: {array} is no array, and has no groups"))),
    }
}

/// The reservation that an id or the start of one names.
pub async fn resolve_reservation(api: &Api, text: &str) -> ApiResult<JobId> {
    resolve_among(api, text, true).await
}

async fn resolve_one(api: &Api, text: &str) -> ApiResult<JobId> {
    resolve_among(api, text, false).await
}

async fn resolve_among(api: &Api, text: &str, reservations: bool) -> ApiResult<JobId> {
    let text = text.to_ascii_lowercase();
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let (what, none): (_, fn(String) -> ApiError) = match reservations {
        true => ("reservation", ApiError::NoReservation),
        false => ("job", ApiError::NoJob),
    };
    if text.len() > 32 || !text.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b)) {
        return Err(ApiError::BadRequest(format!(
            "id: not a {what} id (32 characters of a-z and 2-7) or the start of one"
        )));
    }
    if text.len() < PREFIX_MIN {
        return Err(ApiError::BadRequest(format!("id: give at least {PREFIX_MIN} characters")));
    }
    let filter = JobFilter { prefix: Some(text.clone()), limit: 20, reservations, ..JobFilter::default() };
    let found = list(api, &filter).await?;
    match found.jobs.as_slice() {
        [] if found.unanswered.is_empty() => Err(none(text)),
        [] => {
            let silent: Vec<&str> = found.unanswered.iter().map(PeerName::as_str).collect();
            Err(none(format!("{text} at the peers that answered ({} did not)", silent.join(", "))))
        }
        [one] => Ok(one.id),
        many => {
            let matches = many.iter().map(|job| (job.id, job.name.clone())).collect();
            Err(ApiError::Ambiguous { prefix: text, matches })
        }
    }
}
