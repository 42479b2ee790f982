//! Logs of an attempt, present or past, streamed from the cluster that has it through any peer.

mod follow;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;

use super::input::{Q, Segment};
use super::{Api, ApiError, ApiResult, local, resolve};
use crate::base::{Epoch, JobId, PeerName};
use crate::core::api::{AttemptKey, Look};
use crate::runtime::ProxyRequest;
use crate::surface::documents::JobDocument;
use follow::{Reader, Source, sources};

const TAIL_LINES_MAX: u64 = 100_000;
/// A followed log is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// And every so many looks it is asked whether the attempt still lives.
const LOOKS_PER_ASK: u32 = 5;

#[derive(Deserialize, Clone, Default)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    #[serde(default)]
    follow: bool,
    rank: Option<u32>,
    stream: Option<Source>,
    tail: Option<u64>,
    epoch: Option<u64>,
}

impl LogQuery {
    fn check(&self) -> ApiResult<()> {
        match self.tail {
            Some(n) if n > TAIL_LINES_MAX => {
                Err(ApiError::BadRequest(format!("tail: more than {TAIL_LINES_MAX}")))
            }
            _ => Ok(()),
        }
    }

    fn uri(&self, job: JobId, epoch: Epoch) -> String {
        let mut uri = format!("/v1/local/jobs/{job}/logs?epoch={epoch}&follow={}", self.follow);
        if let Some(rank) = self.rank {
            uri.push_str(&format!("&rank={rank}"));
        }
        if let Some(stream) = self.stream {
            uri.push_str(&format!("&stream={}", stream.as_str()));
        }
        if let Some(tail) = self.tail {
            uri.push_str(&format!("&tail={tail}"));
        }
        uri
    }
}

/// `GET /v1/jobs/{id}/logs`
pub async fn logs(State(api): State<Api>, id: Segment, Q(query): Q<LogQuery>) -> ApiResult<Response> {
    query.check()?;
    let permit = api.limits.stream()?;
    let job = resolve::resolve(&api, &id.0).await?;
    let document = JobDocument::new(&resolve::get(&api, job).await?, false);
    if !document.groups.is_empty() {
        let names: Vec<&str> = document.groups.iter().map(|g| g.name.as_str()).collect();
        let short = job.short();
        let what = format!(
            "logs of job {job} itself: each of its groups has its own ({short}.{})",
            names.join(&format!(", {short}."))
        );
        return Err(ApiError::NotFound(what));
    }
    let Some(attempt) = document.attempt(query.epoch.map(Epoch)) else {
        let what = match query.epoch {
            Some(epoch) => format!("attempt {epoch} of job {job} in its record"),
            None => format!("logs of job {job} yet: it {}", document.reason),
        };
        return Err(ApiError::NotFound(what));
    };
    if let Some(rank) = query.rank.filter(|rank| *rank >= document.nodes) {
        let ranks = match document.nodes {
            0 | 1 => "it has rank 0 only".to_owned(),
            n => format!("it has ranks 0 to {}", n - 1),
        };
        return Err(ApiError::NotFound(format!("rank {rank} in job {}: {ranks}", job.short())));
    }
    let epoch = Epoch(attempt.epoch);
    if attempt.cluster == api.handle.about().name {
        return stream_here(&api, AttemptKey { job, epoch }, &query, permit).await;
    }
    passed_on(&api, &attempt.cluster, query.uri(job, epoch), permit).await
}

async fn passed_on(
    api: &Api,
    cluster: &PeerName,
    uri: String,
    permit: tokio::sync::OwnedSemaphorePermit,
) -> ApiResult<Response> {
    use futures::StreamExt;
    let request = ProxyRequest { method: "GET".into(), uri, body: Vec::new() };
    let answer = api.handle.proxy(cluster, request).await?;
    let status = StatusCode::from_u16(answer.status).map_err(|_| ApiError::Internal("logs"))?;
    let body = answer.body.map(move |chunk| {
        let _held = &permit;
        chunk
    });
    Ok((status, [(header::CONTENT_TYPE, answer.content_type)], Body::from_stream(body)).into_response())
}

/// `GET /v1/local/jobs/{id}/logs`: of an attempt at this cluster.
pub async fn local_logs(State(api): State<Api>, id: Segment, Q(query): Q<LogQuery>) -> ApiResult<Response> {
    query.check()?;
    let job = id.0.parse().map_err(|e: crate::base::IdError| ApiError::BadRequest(e.to_string()))?;
    let epoch = query.epoch.map(Epoch).ok_or_else(|| ApiError::BadRequest("epoch: missing".into()))?;
    let permit = api.limits.stream()?;
    stream_here(&api, AttemptKey { job, epoch }, &query, permit).await
}

/// Log files as they stand now, by rank and stream, oldest part first.
fn listing(api: &Api, key: AttemptKey, query: &LogQuery) -> Option<BTreeMap<(u32, Source), Vec<PathBuf>>> {
    let mut found = sources(&api.handle.logs(key)?);
    found.retain(|(rank, source), _| {
        query.rank.is_none_or(|r| r == *rank) && query.stream.is_none_or(|s| s == *source)
    });
    Some(found)
}

async fn stream_here(
    api: &Api,
    key: AttemptKey,
    query: &LogQuery,
    permit: tokio::sync::OwnedSemaphorePermit,
) -> ApiResult<Response> {
    let start = listing(api, key, query);
    if start.is_none() && !(query.follow && lives(api, key, false).await) {
        let here = api.handle.about().name;
        return Err(ApiError::NotFound(format!("logs of attempt {key} at {here}")));
    }
    let mut reader = Reader::new(query.tail);
    reader.set(start.unwrap_or_default());
    let state =
        Some(Streaming { api: api.clone(), key, query: query.clone(), reader, looks: 0, _permit: permit });
    let body = futures::stream::unfold(state, |state| async move {
        let mut state = state?;
        let chunk = state.next().await?;
        let next = chunk.is_ok().then_some(state);
        Some((chunk, next))
    });
    let head = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    Ok((head, Body::from_stream(body)).into_response())
}

struct Streaming {
    api: Api,
    key: AttemptKey,
    query: LogQuery,
    reader: Reader,
    looks: u32,
    _permit: tokio::sync::OwnedSemaphorePermit,
}

impl Streaming {
    /// The next bytes; none at the end.
    async fn next(&mut self) -> Option<std::io::Result<Bytes>> {
        let mut last = !self.query.follow;
        loop {
            match self.read().await {
                Err(error) => return Some(Err(error)),
                Ok(bytes) if !bytes.is_empty() => return Some(Ok(bytes)),
                Ok(_) if last => {
                    let rest = self.reader.finish();
                    return (!rest.is_empty()).then_some(Ok(rest));
                }
                Ok(_) => {}
            }
            self.looks += 1;
            if self.looks % LOOKS_PER_ASK == 1 && !lives(&self.api, self.key, self.reader.any()).await {
                // It has ended: what it wrote between the last read and its end is read once more.
                last = true;
            } else {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            if let Some(listing) = listing(&self.api, self.key, &self.query) {
                self.reader.set(listing);
            }
        }
    }

    async fn read(&mut self) -> std::io::Result<Bytes> {
        let mut reader = std::mem::replace(&mut self.reader, Reader::new(None));
        let (reader, bytes) = tokio::task::spawn_blocking(move || {
            let bytes = reader.read();
            (reader, bytes)
        })
        .await
        .map_err(std::io::Error::other)?;
        self.reader = reader;
        bytes
    }
}

/// More of this attempt may come. The cluster's own books are asked first, being near; an attempt that
/// is not in them (yet or any more) is looked up in the record.
async fn lives(api: &Api, key: AttemptKey, has_logs: bool) -> bool {
    if let Ok(report) = local::core_report(api, Look::default()).await
        && let Some(attempt) = report.attempts.iter().find(|a| (a.job, a.epoch) == (key.job, key.epoch))
    {
        return attempt.phase != "closing";
    }
    match resolve::get(api, key.job).await {
        Ok(record) => {
            let open = record.attempts.iter().any(|a| a.epoch == key.epoch && a.outcome.is_none());
            open && record.epoch == key.epoch && !record.state.is_final()
        }
        Err(ApiError::Core(crate::core::api::ClientError::NoSuchJob(_))) => false,
        // No quorum: what is not in the books and has logs is over; what has none may still begin.
        Err(_) => !has_logs,
    }
}
