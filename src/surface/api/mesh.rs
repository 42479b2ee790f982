//! Clusters, links, members, and the peer itself.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;

use super::input::{self, Bounded, NoBody, Q, Segment};
use super::{Api, ApiError, ApiResult, local, resolve};
use crate::backends::local::clock;
use crate::base::{PeerName, Span, WallTime};
use crate::core::api::Look;
use crate::model::report::{Liveness, MemberView};
use crate::surface::documents::*;
use crate::surface::seams;

const TTL_MAX: Span = Span::secs(3_600);
const TTL_DEFAULT: Span = Span::secs(900);

fn age_ms(member: &MemberView) -> Option<u64> {
    member.report.as_ref().map(|r| boottime_now().since(r.heard_at).as_millis())
}

/// `GET /v1/clusters`
pub async fn clusters(State(api): State<Api>) -> Json<ClusterList> {
    let view = api.handle.view();
    let clusters = view.members.values().map(|m| ClusterDocument::new(m, age_ms(m))).collect();
    Json(ClusterList { clusters, isolated: view.isolated })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterQuery {
    #[serde(default)]
    report: bool,
}

/// `GET /v1/clusters/{name}`
pub async fn cluster(
    State(api): State<Api>,
    name: Segment,
    Q(query): Q<ClusterQuery>,
) -> ApiResult<Response> {
    let name = name.peer()?;
    let view = api.handle.view();
    let member =
        view.members.get(&name).ok_or_else(|| ApiError::NotFound(format!("cluster {name} in this mesh")))?;
    Ok(if query.report {
        let nothing = || ApiError::NotFound(format!("report of {name}: nothing was heard of it yet"));
        Json(seams::status_report(member).ok_or_else(nothing)?).into_response()
    } else {
        Json(ClusterDocument::new(member, age_ms(member))).into_response()
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueQuery {
    limit: Option<usize>,
}

/// `GET /v1/clusters/{name}/queue`
pub async fn queue(
    State(api): State<Api>,
    name: Segment,
    Q(query): Q<QueueQuery>,
) -> ApiResult<Json<QueueDocument>> {
    let claims = query.limit.unwrap_or(local::CLAIMS_DEFAULT);
    if claims == 0 || claims > local::CLAIMS_MAX {
        return Err(ApiError::BadRequest(format!("limit: not in 1 to {}", local::CLAIMS_MAX)));
    }
    let name = name.peer()?;
    if !api.handle.view().members.contains_key(&name) {
        return Err(ApiError::NotFound(format!("cluster {name} in this mesh")));
    }
    let look = Look { claims, reasons: true };
    let report = local::report_of(&api, &name, look, local::ANSWERS_WITHIN).await?;
    Ok(Json(QueueDocument::new(name, &report)))
}

/// `GET /v1/links`
pub async fn links(State(api): State<Api>) -> Json<LinkList> {
    let view = api.handle.view();
    let now = wall_now();
    // Ages cross clocks of several machines: for people only.
    let age = |at: WallTime| now.0.saturating_sub(at.0);
    let mut links = Vec::new();
    for member in view.members.values() {
        for sample in member.report.iter().flat_map(|r| &r.links) {
            links.push(LinkDocument {
                from: member.peer.clone(),
                to: sample.to.clone(),
                rtt_ms: sample.rtt_us as f64 / 1e3,
                loss: f64::from(sample.loss_ppm) / 1e6,
                bandwidth_bps: sample.bandwidth_bps,
                bandwidth_age_ms: sample.bandwidth_at.map(age),
                age_ms: age(sample.at),
                direct: sample.direct,
            });
        }
    }
    Json(LinkList { links })
}

/// `GET /v1/view`
pub async fn view(State(api): State<Api>) -> Json<ViewDocument> {
    let mut tree: BTreeMap<String, BTreeMap<String, Vec<ViewNode>>> = BTreeMap::new();
    for member in api.handle.view().members.values().filter(|m| !m.witness) {
        let capacity = member.report.as_ref().and_then(|r| r.capacity.as_ref());
        let pool = capacity.and_then(|c| c.labels.get("pool")).map_or("default", String::as_str);
        let region = capacity.map(|c| c.region.as_str()).filter(|r| !r.is_empty()).unwrap_or("unknown");
        tree.entry(pool.into()).or_default().entry(region.into()).or_default().push(leaf(member));
    }
    let pools = tree.into_iter().map(|(pool, regions)| {
        let regions = regions.into_iter().map(|(region, leaves)| branch("region", region, leaves)).collect();
        branch("pool", pool, regions)
    });
    Json(ViewDocument { pools: pools.collect() })
}

fn leaf(member: &MemberView) -> ViewNode {
    let document = ClusterDocument::new(member, None);
    ViewNode {
        name: member.peer.to_string(),
        level: "cluster".into(),
        gpus: document.gpus,
        running: document.running.into(),
        queued: document.queued.into(),
        liveness: Some(document.liveness),
        disk_note: document.disk_note,
        children: Vec::new(),
    }
}

/// Sums what is below, leaving out clusters that are not alive: what they had cannot be used.
fn branch(level: &str, name: String, children: Vec<ViewNode>) -> ViewNode {
    let mut node = ViewNode { name, level: level.into(), ..ViewNode::default() };
    for child in children.iter().filter(|c| c.liveness.as_deref().unwrap_or("alive") == "alive") {
        for (model, count) in &child.gpus {
            let sum = node.gpus.entry(model.clone()).or_default();
            sum.total += count.total;
            sum.free += count.free;
            sum.reserved += count.reserved;
        }
        node.running += child.running;
        node.queued += child.queued;
    }
    node.children = children;
    node
}

/// `GET /v1/peer`
pub async fn peer(State(api): State<Api>) -> Json<PeerDocument> {
    let about = api.handle.about();
    let view = api.handle.view();
    let me = about.name.clone();
    let settings = api.handle.settings();
    let own = view.members.get(&me).and_then(|m| m.report.as_ref());
    let disk_full = own.and_then(|r| r.health.as_ref()).is_some_and(|h| h.disk_full);
    let mut members: BTreeMap<String, u64> = BTreeMap::new();
    for member in view.members.values() {
        *members.entry(member.liveness.as_str().into()).or_default() += 1;
    }
    Json(PeerDocument {
        name: about.name,
        mesh: about.mesh,
        store: about.store.to_string(),
        boot: about.boot,
        listen: about.listen,
        api: about.api,
        version: about.version,
        certificate_from_ms: about.certificate.0.0,
        certificate_until_ms: about.certificate.1.0,
        started_at_ms: about.started_at.0,
        draining: about.draining,
        isolated: view.isolated,
        disk_full,
        disk_note: view.members.get(&me).and_then(|m| ClusterDocument::new(m, None).disk_note),
        members,
        now_ms: Some(wall_now().0),
        settings: Some(SettingsDocument {
            rho_milli: settings.rho_milli,
            margin_ms: settings.margin.as_millis(),
            replicas: settings.replicas,
            grace_ms: settings.grace.as_millis(),
            notifiers: settings.notifiers,
        }),
        test_clock: clock::is_test(),
    })
}

/// `GET /v1/members`
pub async fn members(State(api): State<Api>) -> Json<MemberList> {
    let view = api.handle.view();
    let liveness = |name: &PeerName| view.members.get(name).map_or(Liveness::Lost, |m| m.liveness);
    let mut members: Vec<MemberDocument> = api
        .handle
        .members()
        .into_iter()
        .map(|m| MemberDocument {
            liveness: if m.removed { "removed".into() } else { liveness(&m.name).as_str().into() },
            name: m.name,
            removed: m.removed,
            witness: m.witness,
            addresses: m.addresses,
            store: m.store.to_string(),
        })
        .collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    Json(MemberList { members })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveQuery {
    #[serde(default)]
    force: bool,
}

/// Members that a home set needs beside the one that leaves.
const OTHERS_NEEDED: usize = 3;

/// A busy peer is waited for: what people do next is `--force`.
const LEAVER_ANSWERS_WITHIN: Span = Span::secs(20);

/// A member that is alive leaves after its records have moved, where others can take them.
async fn may_leave(api: &Api, name: &PeerName) -> ApiResult<()> {
    let view = api.handle.view();
    let alive = |n: &PeerName| view.members.get(n).is_some_and(|m| m.liveness == Liveness::Alive);
    let others = view.members.keys().filter(|n| *n != name && alive(n)).count();
    if !alive(name) || others < OTHERS_NEEDED {
        return Ok(());
    }
    let asked = local::report_of(api, name, Look::default(), LEAVER_ANSWERS_WITHIN).await;
    let silent = || {
        ApiError::Conflict(format!(
            "{name} looks alive and does not say how many records it holds: ask again shortly, or add --force"
        ))
    };
    match asked.map_err(|_| silent())?.records {
        0 => Ok(()),
        records => Err(ApiError::StillHome(name.clone(), records as u64)),
    }
}

/// `DELETE /v1/members/{name}`
pub async fn member_remove(
    State(api): State<Api>,
    name: Segment,
    Q(query): Q<RemoveQuery>,
    _: NoBody,
) -> ApiResult<Json<RemovedDocument>> {
    let name = name.peer()?;
    match api.handle.members().iter().find(|m| m.name == name) {
        None => return Err(ApiError::NotFound(format!("member {name}"))),
        Some(m) if m.removed => return Ok(Json(RemovedDocument { name, removed: true, existed: true })),
        Some(_) => {}
    }
    if !query.force {
        may_leave(&api, &name).await?;
    }
    api.handle.member_remove(&name).await?;
    Ok(Json(RemovedDocument { name, removed: true, existed: false }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenBody {
    ttl: Option<String>,
}

/// `POST /v1/tokens`
pub async fn token(State(api): State<Api>, body: Bounded) -> ApiResult<Response> {
    let ttl = match body.json::<TokenBody>()?.ttl {
        Some(text) => input::span("ttl", &text, TTL_MAX)?,
        None => TTL_DEFAULT,
    };
    if ttl == Span::ZERO {
        return Err(ApiError::BadRequest("ttl: not above 0".into()));
    }
    let token = api.handle.token_create(ttl).await?;
    let document = TokenDocument { token, ttl_ms: ttl.as_millis(), listen: api.handle.about().listen };
    Ok((axum::http::StatusCode::CREATED, [("cache-control", "no-store")], Json(document)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainQuery {
    cluster: Option<String>,
}

/// `POST /v1/drain`
pub async fn drain(
    State(api): State<Api>,
    Q(query): Q<DrainQuery>,
    _: NoBody,
) -> ApiResult<Json<DrainDocument>> {
    set_draining(&api, query, true).await
}

/// `POST /v1/undrain`
pub async fn undrain(
    State(api): State<Api>,
    Q(query): Q<DrainQuery>,
    _: NoBody,
) -> ApiResult<Json<DrainDocument>> {
    set_draining(&api, query, false).await
}

async fn set_draining(api: &Api, query: DrainQuery, draining: bool) -> ApiResult<Json<DrainDocument>> {
    let me = api.handle.about().name;
    match query.cluster.as_deref().map(input::peer).transpose()? {
        Some(other) if other != me => {
            let uri = if draining { "/v1/drain" } else { "/v1/undrain" };
            let bytes = resolve::ask(api, &other, "POST", uri.into()).await?;
            serde_json::from_slice(&bytes).map(Json).map_err(|_| ApiError::Internal("drain"))
        }
        _ => {
            api.handle.drain(draining).await?;
            Ok(Json(DrainDocument { cluster: me, draining }))
        }
    }
}
