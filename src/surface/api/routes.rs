//! The table of routes, and the router built from it.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodRouter, delete, get, post, put};

use super::{
    Api, ApiError, doctor, events, history, incidents, jobs, limits, local, logs, mesh, metrics, openapi,
    operator, reservations, tenants, trace,
};
use crate::runtime::PeerHandle;
use crate::surface::web::{self, Memory};

/// One route: what the router does and what the OpenAPI document says.
pub(crate) struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    /// Query parameters: name, JSON type, meaning.
    pub query: &'static [(&'static str, &'static str, &'static str)],
    /// Media type of the answer.
    pub answers: &'static str,
    pub handler: fn() -> MethodRouter<Api>,
}

const JSON: &str = "application/json";
const LIST: &[(&str, &str, &str)] = &[
    ("tenant", "string", "only of this tenant"),
    ("state", "string", "only in these states, with commas between"),
    ("prefix", "string", "only ids that start so"),
    ("since", "string", "only those submitted at or after this: RFC 3339, or milliseconds since 1970"),
    ("until", "string", "only those submitted before this"),
    ("before", "string", "the next page: `next` of the last one"),
    ("array", "string", "only jobs of this array; without it jobs of arrays are left out"),
    ("limit", "integer", "at most so many, newest first (1 to 10000, default 100)"),
];
const LOGS: &[(&str, &str, &str)] = &[
    ("follow", "boolean", "go on until the attempt ends"),
    ("rank", "integer", "only of this node of the job"),
    ("stream", "string", "`stdout` or `stderr`; default both"),
    ("tail", "integer", "only the last so many lines"),
    ("epoch", "integer", "of this attempt; default the newest"),
];
const HISTORY: &[(&str, &str, &str)] = &[
    ("since", "string", "not older than this, such as 2h"),
    ("since_ms", "integer", "not before, milliseconds since 1970"),
    ("until_ms", "integer", "before, milliseconds since 1970"),
    ("kind", "string", "only kinds that start so, such as `job.`"),
    ("job", "string", "only about this job"),
    ("tenant", "string", "only about jobs of this tenant"),
    ("limit", "integer", "at most so many, newest first (1 to 10000, default 200)"),
];
const INSPECT: &[(&str, &str, &str)] = &[
    ("claims", "integer", "of its queue the first so many (0 to 10000, default 1000)"),
    ("reasons", "boolean", "also why each waits (default true)"),
];
const CLUSTER: &[(&str, &str, &str)] = &[("cluster", "string", "another cluster than the one asked")];

macro_rules! route {
    ($method:literal $path:literal $summary:literal $query:expr, $answers:expr, $via:ident($handler:path)) => {
        Route {
            method: $method,
            path: $path,
            summary: $summary,
            query: $query,
            answers: $answers,
            handler: || $via($handler),
        }
    };
}

/// Every route there is.
pub(crate) const ROUTES: &[Route] = &[
    route!("POST" "/v1/jobs" "Submit a job, or with dry_run explain where it could run" &[("dry_run", "boolean", "explain only; nothing is stored")], JSON, post(jobs::submit)),
    route!("GET" "/v1/jobs" "Jobs of the whole mesh, newest first; says who did not answer" LIST, JSON, get(jobs::list)),
    route!("GET" "/v1/jobs/{id}" "One job, by id or the start of it (4 characters or more)" &[], JSON, get(jobs::get)),
    route!("GET" "/v1/jobs/{id}/trace" "Its trace as one tree: what the record says, and what the peers that answer noted" &[], JSON, get(trace::get)),
    route!("GET" "/v1/jobs/{id}/why" "Each cluster with the reasons for or against it" &[], JSON, get(jobs::why)),
    route!("GET" "/v1/jobs/{id}/record" "The job's whole record, as a majority of its homes holds it" &[], JSON, get(jobs::record)),
    route!("GET" "/v1/jobs/{id}/logs" "Logs of an attempt, from the cluster that has them" LOGS, "text/plain", get(logs::logs)),
    route!("GET" "/v1/jobs/{id}/wait" "Answers when the job has ended or the time is up" &[("timeout", "string", "such as 30s; at most 10m, default 1m")], JSON, get(jobs::wait)),
    route!("POST" "/v1/jobs/{id}/cancel" "End a job" &[], JSON, post(jobs::cancel)),
    route!("POST" "/v1/jobs/{id}/move" "Stop a job with notice and go on at another cluster" &[], JSON, post(operator::move_job)),
    route!("POST" "/v1/jobs/{id}/confirm-lost" "An operator's word that an attempt out of contact has stopped for good" &[], JSON, post(operator::confirm_lost)),
    route!("POST" "/v1/jobs/{id}/release" "Let a held job run again" &[], JSON, post(operator::release)),
    route!("POST" "/v1/jobs/{id}/checkpoint" "Publish a checkpoint; one of an older epoch is refused" &[], JSON, post(jobs::checkpoint)),
    route!("GET" "/v1/clusters" "Clusters as this peer sees them" &[], JSON, get(mesh::clusters)),
    route!("GET" "/v1/clusters/{name}" "One cluster" &[("report", "boolean", "the member status report instead")], JSON, get(mesh::cluster)),
    route!("GET" "/v1/clusters/{name}/queue" "What waits at one cluster, in order, with the reason of each" &[("limit", "integer", "the first so many (1 to 10000, default 1000)")], JSON, get(mesh::queue)),
    route!("GET" "/v1/links" "RTT, loss and bandwidth between clusters" &[], JSON, get(mesh::links)),
    route!("GET" "/v1/view" "Capacity as a tree: pool, region, cluster" &[], JSON, get(mesh::view)),
    route!("GET" "/v1/peer" "The peer that answers" &[], JSON, get(mesh::peer)),
    route!("GET" "/v1/members" "The member list" &[], JSON, get(mesh::members)),
    route!("DELETE" "/v1/members/{name}" "Remove a member, for good" &[("force", "boolean", "also while it is alive and holds records")], JSON, delete(mesh::member_remove)),
    route!("GET" "/v1/tenants" "Tenants that have limits, as this peer last saw them" &[], JSON, get(tenants::list)),
    route!("GET" "/v1/tenants/{name}" "One tenant: limits, shares, and what each cluster says" &[], JSON, get(tenants::show)),
    route!("PUT" "/v1/tenants/{name}" "Set a tenant's limits; what is not named stays, null lifts a limit" &[], JSON, put(tenants::set)),
    route!("DELETE" "/v1/tenants/{name}" "End all limits of a tenant" &[], JSON, delete(tenants::remove)),
    route!("POST" "/v1/tenants/{name}/reclaim" "An operator's word that a lost cluster runs nothing any more: its share is free" &[], JSON, post(tenants::reclaim)),
    route!("GET" "/v1/reservations" "Reservations of the whole mesh, newest first; says who did not answer" LIST, JSON, get(reservations::list)),
    route!("POST" "/v1/reservations" "Keep GPUs for a tenant, from a time on, for a time; ask for the reservation until it is no longer pending" &[], JSON, post(reservations::reserve)),
    route!("GET" "/v1/reservations/{id}" "One reservation, by id or the start of it (4 characters or more)" &[], JSON, get(reservations::show)),
    route!("DELETE" "/v1/reservations/{id}" "End a reservation" &[], JSON, delete(reservations::end)),
    route!("POST" "/v1/tokens" "A single-use join token" &[], JSON, post(mesh::token)),
    route!("POST" "/v1/drain" "Take no new attempts and hand back the running ones" CLUSTER, JSON, post(mesh::drain)),
    route!("POST" "/v1/undrain" "Take attempts again" CLUSTER, JSON, post(mesh::undrain)),
    route!("GET" "/v1/events" "What happens at this peer, as server-sent events" &[("job", "string", "only about this job"), ("kind", "string", "only kinds that start so")], "text/event-stream", get(events::events)),
    route!("GET" "/v1/history" "What happened, as every peer that answers wrote it down; newest first" HISTORY, JSON, get(history::history)),
    route!("GET" "/v1/local/history" "What this very peer wrote down" HISTORY, JSON, get(history::local_history)),
    route!("GET" "/v1/audit" "Who changed what through this peer; newest first" &[("limit", "integer", "at most so many (1 to 10000, default 200)")], JSON, get(history::audit)),
    route!("GET" "/v1/audit/verify" "Checks the chain of this peer's audit" &[], JSON, get(history::verify)),
    route!("GET" "/v1/incidents" "What is wrong with the mesh, with the jobs it touches and what is done for each; and what is over" &[], JSON, get(incidents::list)),
    route!("GET" "/v1/incidents/{id}" "One incident, by id or the start of it" &[], JSON, get(incidents::get)),
    route!("GET" "/v1/silences" "What nobody is told of" &[], JSON, get(incidents::silences)),
    route!("POST" "/v1/silences" "Tell nobody of an incident, or of a kind of them, for a time" &[], JSON, post(incidents::silence)),
    route!("GET" "/v1/local/touched" "Jobs of this very peer that the loss of a cluster touches" &[("cluster", "string", "which cluster; needed"), ("since", "integer", "lost there at or after this, milliseconds since 1970")], JSON, get(incidents::touched)),
    route!("GET" "/v1/local/config" "This very peer's configuration, without secrets" &[], JSON, get(incidents::config)),
    route!("GET" "/v1/local/jobs" "Jobs whose records this very peer holds" LIST, JSON, get(local::jobs)),
    route!("GET" "/v1/local/jobs/{id}/why" "As this very peer explains it" &[], JSON, get(local::why)),
    route!("GET" "/v1/local/jobs/{id}/logs" "Logs of an attempt at this very cluster; epoch is needed" LOGS, "text/plain", get(logs::local_logs)),
    route!("GET" "/v1/local/tenants" "What this very cluster holds and uses of each tenant's limits" &[], JSON, get(tenants::local)),
    route!("GET" "/v1/local/inspect" "This peer's insides" INSPECT, JSON, get(local::inspect)),
    route!("GET" "/v1/openapi.json" "This API as an OpenAPI 3.1 document" &[], JSON, get(openapi::document)),
    route!("GET" "/v1/doctor" "Looks the peer and the mesh over and says what to do" &[], JSON, get(doctor::doctor)),
    route!("GET" "/metrics" "Metrics in OpenMetrics' text format" &[], "application/openmetrics-text", get(metrics::metrics)),
    route!("GET" "/healthz" "200 while the peer works" &[], JSON, get(metrics::healthz)),
];

/// The API of one peer.
pub fn router(handle: Arc<dyn PeerHandle>) -> Router {
    router_with(handle, Watched::default())
}

/// What is gathered beside the API, by `web::watch`, `measure::watch` and `incidents::watch`.
#[derive(Clone, Default)]
pub struct Watched {
    /// For the page.
    pub memory: Arc<Memory>,
    /// For `/metrics`.
    pub measures: Arc<std::sync::Mutex<crate::surface::measure::Measures>>,
    /// Incidents.
    pub desk: Arc<crate::surface::incidents::Desk>,
    /// What became of the spans that a collector gets.
    pub exported: Arc<crate::surface::otlp::Counters>,
}

/// The same with what is gathered beside it.
pub fn router_with(handle: Arc<dyn PeerHandle>, watched: Watched) -> Router {
    build(Api::new(handle, watched))
}

pub(crate) fn build(api: Api) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(route.path, (route.handler)());
    }
    router
        .merge(web::routes())
        .method_not_allowed_fallback(|request: Request| async move {
            ApiError::Method(request.method().to_string())
        })
        .fallback(|request: Request| async move {
            ApiError::NoRoute(request.uri().path().chars().take(120).collect())
        })
        .layer(axum::middleware::from_fn_with_state(api.clone(), history::audited))
        .layer(axum::middleware::from_fn_with_state(api.clone(), limits::guard))
        .with_state(api)
}
