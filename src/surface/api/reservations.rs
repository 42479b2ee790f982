//! Reservations: ask for one, list, show, end.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;

use super::input::{self, Bounded, NoBody, Q, Segment};
use super::jobs::ListQuery;
use super::limits::Caller;
use super::{Api, ApiError, ApiResult, resolve};
use crate::base::{JobId, PeerName, WallTime};
use crate::core::api::ClientError;
use crate::core::{ClientRequest, ClientResponse};
use crate::model::gpu;
use crate::model::input::words;
use crate::model::reserve::{Asked, At, CLUSTERS_MAX, LENGTH_MAX, reservation};
use crate::model::spec::JobSpec;
use crate::surface::documents::*;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReserveBody")]
pub(super) struct Body {
    /// For whom; default `default`.
    tenant: Option<String>,
    /// Its name; default `reservation`.
    name: Option<String>,
    /// GPUs in each cluster.
    gpus: u32,
    /// Models that will do; default any.
    #[serde(default)]
    #[schemars(schema_with = "one_or_more")]
    gpu: Option<Value>,
    /// At which clusters,
    #[serde(default)]
    #[schemars(schema_with = "one_or_more")]
    cluster: Option<Value>,
    /// or at how many; default 1.
    clusters: Option<u32>,
    /// From when on: `now` (the default), RFC 3339, or milliseconds since 1970.
    #[serde(default)]
    #[schemars(schema_with = "text_or_number")]
    from: Option<Value>,
    /// For how long: `4h`, or seconds.
    #[serde(rename = "for", default)]
    #[schemars(schema_with = "text_or_number")]
    length: Option<Value>,
    /// Or until when, as `from`.
    #[serde(default)]
    #[schemars(schema_with = "text_or_number")]
    until: Option<Value>,
}

fn one_or_more(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "array"], "items": { "type": "string" } })
}

fn text_or_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "integer"] })
}

fn wrong(text: impl Into<String>) -> ApiError {
    ApiError::BadRequest(text.into())
}

/// One text, or a list of them.
fn texts(field: &str, value: &Value) -> ApiResult<Vec<String>> {
    let want = || wrong(format!("{field}: not a text or a list of texts"));
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(list) => list.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(want)).collect(),
        _ => Err(want()),
    }
}

fn moment(field: &str, value: &Value, now: WallTime) -> ApiResult<WallTime> {
    match value {
        Value::String(text) if text == "now" => Ok(now),
        Value::String(text) => input::moment(field, text),
        Value::Number(n) => n.as_u64().map(WallTime).ok_or_else(|| wrong(format!("{field}: not a moment"))),
        _ => Err(wrong(format!(
            "{field}: not `now`, a date like 2026-06-01T12:00:00Z or milliseconds since 1970"
        ))),
    }
}

fn named(field: &str, text: Option<String>, default: &str) -> ApiResult<String> {
    let text = text.unwrap_or_else(|| default.to_owned());
    if words::name(&text) { Ok(text) } else { Err(wrong(format!("{field}: {}", words::NAME))) }
}

fn read(body: Body, now: WallTime) -> ApiResult<JobSpec> {
    let from = body.from.map_or(Ok(now), |value| moment("from", &value, now))?;
    let length = |value: &Value| match value {
        Value::String(text) => input::span("for", text, LENGTH_MAX),
        Value::Number(n) => input::span("for", &n.to_string(), LENGTH_MAX),
        _ => Err(wrong("for: not a time such as 4h")),
    };
    let until = match (&body.length, &body.until) {
        (Some(length_of), None) => WallTime(from.0.saturating_add(length(length_of)?.as_millis())),
        (None, Some(until)) => moment("until", until, now)?,
        _ => return Err(wrong("say `for` or `until`, one of them")),
    };
    let models = body.gpu.map_or(Ok(Vec::new()), |v| texts("gpu", &v))?;
    let models: Result<Vec<String>, ApiError> =
        models.iter().map(|m| gpu::canonical(m).map_err(|_| wrong(format!("gpu: {}", gpu::NAME)))).collect();
    let at = match (body.cluster, body.clusters) {
        (Some(value), None) => {
            let names = texts("cluster", &value)?;
            if names.is_empty() || names.len() > CLUSTERS_MAX {
                return Err(wrong(format!("cluster: name 1 to {CLUSTERS_MAX}")));
            }
            At::Named(names.iter().map(|n| input::peer(n)).collect::<ApiResult<Vec<PeerName>>>()?)
        }
        (None, Some(n)) => At::Any(n),
        (None, None) => At::Any(1),
        (Some(_), Some(_)) => {
            return Err(wrong("say `cluster` (which) or `clusters` (how many), one of them"));
        }
    };
    let tenant = named("tenant", body.tenant, "default")?;
    let name = named("name", body.name, "reservation")?;
    let asked = Asked { gpus: body.gpus, models: models?, from, until };
    reservation(&name, &tenant, &asked, at, now).map_err(ApiError::BadRequest)
}

/// `POST /v1/reservations`: stored at a majority of its homes; its owner asks the clusters then.
pub async fn reserve(State(api): State<Api>, headers: HeaderMap, body: Bounded) -> ApiResult<Response> {
    let spec = read(body.json()?, wall_now())?;
    let request = ClientRequest::Submit { spec: Box::new(spec), key: input::key(&headers)? };
    match api.call(request).await? {
        ClientResponse::Submitted { job, homes, existed } => {
            let hints = vec![
                format!("starling reservations {}", job.short()),
                format!("starling unreserve {}", job.short()),
            ];
            let homes = homes.into_iter().map(|home| home.peer).collect();
            let document = SubmitDocument { id: job, homes, existed, hints };
            let location = [("location", format!("/v1/reservations/{job}"))];
            Ok((StatusCode::CREATED, location, Json(document)).into_response())
        }
        _ => Err(ApiError::Internal("reserve")),
    }
}

/// `GET /v1/reservations`
pub async fn list(State(api): State<Api>, Q(query): Q<ListQuery>) -> ApiResult<Json<ReservationList>> {
    let filter = query.filter()?;
    let found = resolve::list(&api, &crate::core::api::JobFilter { reservations: true, ..filter }).await?;
    let JobList { jobs, truncated, unanswered, next } = found;
    let reservations = jobs.into_iter().filter_map(ReservationDocument::of);
    let reservations = reservations.map(|document| heard(&api, document)).collect();
    Ok(Json(ReservationList { reservations, truncated, unanswered, next }))
}

/// Adds what the clusters say of their parts.
fn heard(api: &Api, mut document: ReservationDocument) -> ReservationDocument {
    let view = api.handle.view();
    for kept in &mut document.part.clusters {
        let report = view.members.get(&kept.cluster).and_then(|m| m.report.as_ref());
        let queue = report.and_then(|r| r.queue.as_ref());
        let says = queue.and_then(|q| q.reserved.iter().find(|r| r.id == document.id));
        kept.says = says.map(ReservedDocument::from);
    }
    document
}

async fn found(api: &Api, id: JobId) -> ApiResult<ReservationDocument> {
    let record = resolve::get(api, id).await.map_err(|e| match e {
        ApiError::Core(ClientError::NoSuchJob(id)) => ApiError::NoReservation(id.to_string()),
        other => other,
    })?;
    let document = ReservationDocument::of(JobDocument::new(&record, false));
    let document = document.ok_or_else(|| ApiError::NoReservation(format!("{id}: that is a job")))?;
    Ok(heard(api, document))
}

/// `GET /v1/reservations/{id}`
pub async fn show(State(api): State<Api>, id: Segment) -> ApiResult<Json<ReservationDocument>> {
    let id = resolve::resolve_reservation(&api, &id.0).await?;
    found(&api, id).await.map(Json)
}

/// `DELETE /v1/reservations/{id}`: it ends now.
pub async fn end(
    State(api): State<Api>,
    caller: Option<Extension<Caller>>,
    id: Segment,
    _: NoBody,
) -> ApiResult<Json<ReservationDocument>> {
    let id = resolve::resolve_reservation(&api, &id.0).await?;
    // Not a job by its id.
    found(&api, id).await?;
    let by = caller.map_or_else(|| "an unnamed caller".to_owned(), |Extension(caller)| caller.to_string());
    api.call(ClientRequest::Cancel { job: id, by }).await?;
    found(&api, id).await.map(Json)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(body: Value) -> ApiResult<JobSpec> {
        let body = serde_json::from_value(body).map_err(|e| wrong(e.to_string()))?;
        read(body, WallTime(1_000_000))
    }

    #[test]
    fn a_reservation_is_read_and_refused() {
        let body = json!({"tenant": "t", "gpus": 16, "gpu": "h100", "cluster": ["b", "a"],
            "from": "1970-01-01T00:20:00Z", "for": "4h"});
        let good = spec(body).expect("good");
        let reserve = good.reserve.clone().expect("a reservation");
        assert_eq!((good.nodes, good.tenant.as_str()), (16, "t"));
        assert_eq!((reserve.from.0, reserve.until.0), (1_200_000, 1_200_000 + 14_400_000));
        assert!(matches!(&reserve.at, At::Named(names) if names.len() == 2 && names[0].as_str() == "a"));
        let plain = spec(json!({"gpus": 1, "for": "1m"})).expect("good").reserve.expect("a reservation");
        assert_eq!((plain.at, plain.from), (At::Any(1), WallTime(1_000_000)));
        for bad in [
            json!({"gpus": 0, "for": "1h"}),
            json!({"gpus": -1, "for": "1h"}),
            json!({"gpus": 1}),
            json!({"gpus": 1, "for": "1h", "until": 9_000_000}),
            json!({"gpus": 1, "for": "9s"}),
            json!({"gpus": 1, "for": "1000d"}),
            json!({"gpus": 1, "for": []}),
            json!({"gpus": 1, "for": "1h", "from": "yesterday"}),
            json!({"gpus": 1, "for": "1h", "from": 0}),
            json!({"gpus": 1, "for": "1h", "clusters": 9}),
            json!({"gpus": 1, "for": "1h", "clusters": 1, "cluster": "a"}),
            json!({"gpus": 1, "for": "1h", "cluster": []}),
            json!({"gpus": 1, "for": "1h", "cluster": "No!"}),
            json!({"gpus": 1, "for": "1h", "gpu": "\u{7}"}),
            json!({"gpus": 1, "for": "1h", "tenant": "a b"}),
            json!({"gpus": 1, "for": "1h", "color": 1}),
        ] {
            assert!(matches!(spec(bad.clone()), Err(ApiError::BadRequest(_))), "{bad}");
        }
    }
}
