//! Tenants: list, show, set and end limits, take a lost cluster's share back.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures::StreamExt;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::input::{Bounded, NoBody, Segment};
use super::{Api, ApiError, ApiResult, resolve};
use crate::base::{Bytes, MilliCpu, PeerName, Span};
use crate::core::tenants::TenantReport;
use crate::core::{ClientRequest, ClientResponse};
use crate::model::input::words;
use crate::model::report::Liveness;
use crate::model::tenant::LimitsPatch;
use crate::surface::documents::*;

/// Clusters asked at once, and how long each may take.
const ASKED_AT_ONCE: usize = 16;
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

async fn known(api: &Api) -> ApiResult<Vec<TenantReport>> {
    match api.call(ClientRequest::Tenants).await? {
        ClientResponse::Tenants(list) => Ok(list),
        _ => Err(ApiError::Internal("tenants")),
    }
}

fn named(tenant: &Segment) -> ApiResult<String> {
    if words::name(&tenant.0) {
        return Ok(tenant.0.clone());
    }
    Err(ApiError::BadRequest(format!("tenant: {}", words::NAME)))
}

async fn asked(api: &Api, request: ClientRequest) -> ApiResult<TenantDocument> {
    match api.call(request).await? {
        ClientResponse::Tenant(report) => Ok(TenantDocument::from(*report)),
        _ => Err(ApiError::Internal("tenant")),
    }
}

/// `GET /v1/tenants`: as this peer last saw them.
pub async fn list(State(api): State<Api>) -> ApiResult<Json<TenantList>> {
    let tenants = known(&api).await?.into_iter().map(TenantDocument::from).collect();
    Ok(Json(TenantList { tenants }))
}

/// What one cluster says of every tenant it knows.
#[derive(Debug, Default, serde::Serialize, Deserialize, JsonSchema)]
pub struct LocalTenants {
    /// By name.
    tenants: std::collections::BTreeMap<String, SpendDocument>,
}

/// `GET /v1/local/tenants`
pub async fn local(State(api): State<Api>) -> ApiResult<Json<LocalTenants>> {
    let me = api.handle.about().name;
    let tenants = known(&api).await?.into_iter();
    let tenants = tenants.map(|r| (r.card.tenant, SpendDocument::new(me.clone(), r.here))).collect();
    Ok(Json(LocalTenants { tenants }))
}

/// `GET /v1/tenants/{name}`: the ledger as a quorum holds it, and what every cluster says.
pub async fn show(State(api): State<Api>, tenant: Segment) -> ApiResult<Json<TenantDocument>> {
    let tenant = named(&tenant)?;
    let mut document = asked(&api, ClientRequest::TenantGet { tenant: tenant.clone() }).await?;
    let me = api.handle.about().name;
    let view = api.handle.view();
    let mut others = Vec::new();
    for member in view.members.values().filter(|m| !m.witness && m.peer != me) {
        match member.liveness {
            Liveness::Lost => document.unanswered.push(member.peer.clone()),
            _ => others.push(member.peer.clone()),
        }
    }
    let own = known(&api).await?.into_iter().find(|r| r.card.tenant == tenant);
    if view.members.get(&me).is_none_or(|m| !m.witness) {
        document.clusters.extend(own.map(|r| SpendDocument::new(me, r.here)));
    }
    let mut answers = futures::stream::iter(others)
        .map(|peer| async {
            let uri = "/v1/local/tenants".to_owned();
            let answer = tokio::time::timeout(ANSWERS_WITHIN, resolve::ask(&api, &peer, "GET", uri)).await;
            let said = answer.ok().and_then(Result::ok);
            (peer, said.and_then(|bytes| serde_json::from_slice::<LocalTenants>(&bytes).ok()))
        })
        .buffer_unordered(ASKED_AT_ONCE);
    while let Some((peer, said)) = answers.next().await {
        match said {
            None => document.unanswered.push(peer),
            Some(mut said) => document.clusters.push(said.tenants.remove(&tenant).unwrap_or(SpendDocument {
                cluster: peer,
                knows: false,
                share: AmountDocument::default(),
                used: AmountDocument::default(),
                waits: None,
            })),
        }
    }
    document.clusters.sort_by(|a, b| a.cluster.cmp(&b.cluster));
    document.unanswered.sort();
    Ok(Json(document))
}

/// `PUT /v1/tenants/{name}`: what is not named stays; null lifts a limit.
pub async fn set(State(api): State<Api>, tenant: Segment, body: Bounded) -> ApiResult<Json<TenantDocument>> {
    let tenant = named(&tenant)?;
    let patch = patch(body.json::<Map<String, Value>>()?)?;
    let request = ClientRequest::TenantSet { tenant, patch: Some(Box::new(patch)) };
    asked(&api, request).await.map(Json)
}

/// `DELETE /v1/tenants/{name}`: nothing is limited any more.
pub async fn remove(State(api): State<Api>, tenant: Segment, _: NoBody) -> ApiResult<Json<TenantDocument>> {
    let tenant = named(&tenant)?;
    asked(&api, ClientRequest::TenantSet { tenant, patch: None }).await.map(Json)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReclaimBody {
    cluster: PeerName,
}

/// `POST /v1/tenants/{name}/reclaim`: an operator's word that a cluster is gone and what ran there has stopped.
pub async fn reclaim(
    State(api): State<Api>,
    tenant: Segment,
    body: Bounded,
) -> ApiResult<Json<TenantDocument>> {
    let tenant = named(&tenant)?;
    let ReclaimBody { cluster } = body.json()?;
    let liveness = api.handle.view().members.get(&cluster).map(|m| m.liveness);
    if liveness.is_some_and(|l| l != Liveness::Lost) {
        return Err(ApiError::Conflict(format!(
            "{cluster} is not lost: what it holds comes back by itself when it is idle there"
        )));
    }
    // As a quorum holds it now, so that the word is about this very share.
    asked(&api, ClientRequest::TenantGet { tenant: tenant.clone() }).await?;
    asked(&api, ClientRequest::TenantReclaim { tenant, cluster }).await.map(Json)
}

fn wrong(field: &str, want: &str) -> ApiError {
    ApiError::BadRequest(format!("{field}: not {want}"))
}

/// Null lifts the limit, everything else is read.
fn lifted<T>(value: &Value, read: impl FnOnce(&Value) -> ApiResult<T>) -> ApiResult<Option<Option<T>>> {
    if value.is_null() { Ok(Some(None)) } else { read(value).map(|v| Some(Some(v))) }
}

fn whole(field: &str, value: &Value) -> ApiResult<u64> {
    value.as_u64().ok_or_else(|| wrong(field, "a whole number"))
}

/// A text such as `16G`, or a number of the unit that it is counted in.
fn spelled<T: std::str::FromStr<Err = String>>(field: &str, value: &Value) -> ApiResult<T> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(n) => n.to_string(),
        _ => return Err(wrong(field, "a number or a text")),
    };
    text.parse().map_err(|e: String| ApiError::BadRequest(format!("{field}: {e}")))
}

/// What `patch` reads, for the API's document.
pub(super) struct LimitsPatchBody;

impl JsonSchema for LimitsPatchBody {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LimitsPatchBody".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let count = json!({ "type": ["integer", "null"], "minimum": 0 });
        let spelled = json!({ "type": ["string", "number", "null"] });
        json_schema!({
            "type": "object",
            "description": "limits to set: what is not named stays, null lifts a limit",
            "minProperties": 1,
            "additionalProperties": false,
            "properties": {
                "gpus": count,
                "cpus": spelled,
                "memory": spelled,
                "gpu_hours": { "type": ["number", "null"], "minimum": 0 },
                "guaranteed": { "type": "integer", "minimum": 0 },
                "borrow": count,
                "weight": { "type": "integer", "minimum": 1, "maximum": 1000 },
                "grace": { "type": "string", "description": "`2m`, or `never`" },
                "keep": { "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } },
                "reset_hours": { "type": "boolean" },
            },
        })
    }
}

fn patch(body: Map<String, Value>) -> ApiResult<LimitsPatch> {
    if body.is_empty() {
        return Err(ApiError::BadRequest("nothing to set: name a limit".into()));
    }
    let mut patch = LimitsPatch::default();
    for (key, value) in &body {
        match key.as_str() {
            "gpus" => patch.gpus = lifted(value, |v| whole("gpus", v))?,
            "cpus" => patch.cpus = lifted(value, |v| spelled::<MilliCpu>("cpus", v).map(|c| c.0))?,
            "memory" => patch.memory = lifted(value, |v| spelled::<Bytes>("memory", v).map(|b| b.0))?,
            "gpu_hours" => {
                patch.gpu_ms = lifted(value, |v| {
                    let hours = v.as_f64().filter(|h| (0.0..=1e9).contains(h));
                    hours
                        .map(|h| (h * 3_600_000.0).round() as u64)
                        .ok_or_else(|| wrong("gpu_hours", "0 to 1e9"))
                })?;
            }
            "guaranteed" => patch.guaranteed = Some(whole("guaranteed", value)?),
            "borrow" => patch.borrow = lifted(value, |v| whole("borrow", v))?,
            "weight" => {
                let weight = u32::try_from(whole("weight", value)?).ok().filter(|w| (1..=1_000).contains(w));
                patch.weight = Some(weight.ok_or_else(|| wrong("weight", "1 to 1000"))?);
            }
            "grace" if *value == "never" => patch.grace = Some(None),
            "grace" => {
                let grace = spelled::<Span>("grace", value)?;
                if grace < Span::secs(1) {
                    // No job asks for less, so none could ever be submitted.
                    return Err(wrong("grace", "1 s or more, or never"));
                }
                patch.grace = Some(Some(grace));
            }
            "keep" => {
                let Value::Object(keep) = value else {
                    return Err(wrong("keep", "cluster names with numbers"));
                };
                for (cluster, gpus) in keep {
                    patch.keep.insert(super::input::peer(cluster)?, whole("keep", gpus)?);
                }
            }
            "reset_hours" => {
                patch.reset_hours = value.as_bool().ok_or_else(|| wrong("reset_hours", "true or false"))?;
            }
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(ApiError::BadRequest(format!(
                    "{other}: not one of gpus, cpus, memory, gpu_hours, guaranteed, borrow, weight, grace, keep, reset_hours"
                )));
            }
        }
    }
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> ApiResult<LimitsPatch> {
        patch(serde_json::from_value(body).expect("a mapping"))
    }

    /// Its document names what is read, and nothing else.
    #[test]
    fn the_document_names_every_limit() {
        let schema = LimitsPatchBody::json_schema(&mut SchemaGenerator::default());
        let named = schema.get("properties").and_then(Value::as_object).expect("properties").keys();
        let refused = read(json!({ "no such": 1 })).expect_err("not a limit").to_string();
        let mut read: Vec<&str> = refused.split("one of ").nth(1).expect("a list").split(", ").collect();
        read.sort_unstable();
        assert_eq!(named.collect::<Vec<_>>(), read);
    }

    #[test]
    fn limits_are_read_lifted_and_refused() {
        let body = json!({
            "gpus": 8, "cpus": "500m", "memory": "16G", "gpu_hours": 1.5, "guaranteed": 4, "borrow": null,
            "weight": 2, "grace": "2m", "keep": {"a": 1}, "reset_hours": true,
        });
        let patch = read(body).expect("good");
        assert_eq!(
            (patch.gpus, patch.cpus, patch.gpu_ms),
            (Some(Some(8)), Some(Some(500)), Some(Some(5_400_000)))
        );
        assert_eq!(
            (patch.borrow, patch.grace, patch.keep.len()),
            (Some(None), Some(Some(Span::secs(120))), 1)
        );
        assert_eq!(read(json!({"grace": "never"})).expect("good").grace, Some(None));
        for bad in [
            json!({"gpus": -1}),
            json!({"gpus": 1.5}),
            json!({"gpus": "8"}),
            json!({"cpus": "x"}),
            json!({"gpu_hours": -1}),
            json!({"gpu_hours": 1e12}),
            json!({"weight": 1u64 << 40}),
            json!({"keep": {"No!": 1}}),
            json!({"keep": 3}),
            json!({"grace": 5}),
            json!({"grace": "0s"}),
            json!({"weight": 0}),
            json!({"weight": 1_001}),
            json!({}),
            json!({"gpu": 1}),
        ] {
            assert!(matches!(read(bad.clone()), Err(ApiError::BadRequest(_))), "{bad}");
        }
    }
}
