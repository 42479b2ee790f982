//! What each operation takes and gives, for the OpenAPI document. The schemas are made from the types that are read and
//! written; a test holds answers of the router and of real peers against them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::{incidents, jobs, mesh, operator, reservations, tenants};
use crate::model::JobRecord;
use crate::model::report_json::StatusReport;
use crate::surface::documents::*;

/// Makes the schema of a type; what it refers to goes into the components.
pub(super) type Make = fn(&mut SchemaGenerator) -> Schema;

/// One operation.
pub(super) struct Shape {
    pub method: &'static str,
    pub path: &'static str,
    /// What it reads, where it reads something.
    pub body: Option<Make>,
    /// What it gives, by status.
    pub gives: &'static [(u16, Make)],
    /// Statuses of errors beside those that any of its kind has: see `errors`.
    pub errors: &'static [u16],
}

/// Errors by status: name in the document, and the codes.
pub(super) const ERRORS: &[(u16, &str, &[&str])] = &[
    (400, "BadRequest", &["bad_request"]),
    (401, "Unauthorized", &["unauthorized"]),
    (403, "Forbidden", &["forbidden"]),
    (
        404,
        "NotFound",
        &[
            "no_such_job",
            "no_such_tenant",
            "no_such_reservation",
            "no_such_incident",
            "no_share",
            "not_found",
            "no_such_peer",
            "no_route",
        ],
    ),
    (405, "NoSuchMethod", &["method_not_allowed"]),
    (409, "Conflict", &["ambiguous", "refused", "key_reused", "still_home"]),
    (413, "TooLarge", &["too_large"]),
    (
        422,
        "Unprocessable",
        &["invalid_spec", "fits_nowhere", "groups_fit_nowhere", "over_quota", "no_reservation"],
    ),
    (500, "Internal", &["internal"]),
    (
        503,
        "Unavailable",
        &["overloaded", "disk_full", "too_many_jobs", "no_homes", "key_undecided", "unreachable", "stopping"],
    ),
    (504, "Unknown", &["outcome_unknown", "timeout"]),
];

impl Shape {
    /// The statuses of its errors. Any call may meet a wrong token, a full peer, or one that does not answer in time.
    pub fn errors(&self) -> Vec<u16> {
        let (changes, named) = (self.method != "GET", self.path.contains('{'));
        let mut out = vec![400, 401, 403, 500, 503, 504];
        out.extend(changes.then_some([409, 413]).into_iter().flatten());
        out.extend(named.then_some([404, 409]).into_iter().flatten());
        out.extend(self.errors);
        out.sort_unstable();
        out.dedup();
        out
    }
}

fn of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Schema {
    schemas.subschema_for::<T>()
}

fn either<A: JsonSchema, B: JsonSchema>(schemas: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [schemas.subschema_for::<A>(), schemas.subschema_for::<B>()] })
}

fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": true })
}

/// Server-sent events; the data of each is a document.
fn events(schemas: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "description": "server-sent events: the data of each is such a document; that of `lagged` says how many were missed",
        "contentMediaType": "application/json",
        "contentSchema": schemas.subschema_for::<EventDocument>(),
    })
}

/// A job file, which `model::spec_input` reads.
struct JobFile;

impl JsonSchema for JobFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "JobFile".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match crate::model::spec_input::schema() {
            Value::Object(map) => map.into(),
            _ => Schema::default(),
        }
    }
}

/// The file, or an envelope around it.
fn submission(schemas: &mut SchemaGenerator) -> Schema {
    let file = schemas.subschema_for::<JobFile>();
    let envelope = json_schema!({
        "type": "object",
        "required": ["spec"],
        "additionalProperties": false,
        "properties": {
            "spec": { "anyOf": [file, { "type": "string", "description": "the text of a job file" }] },
            "key": { "type": ["string", "null"], "maxLength": 128, "description": "idempotency key" },
        },
    });
    json_schema!({ "anyOf": [file, envelope] })
}

macro_rules! shapes {
    ($($method:literal $path:literal $(takes $body:expr,)? gives $($status:literal $what:expr),+ $(; fails $($error:literal)+)? ;)*) => {
        &[$(Shape {
            method: $method,
            path: $path,
            body: shapes!(@ $($body)?),
            gives: &[$(($status, $what)),+],
            errors: &[$($($error),+)?],
        }),*]
    };
    (@) => { None };
    (@ $body:expr) => { Some($body) };
}

/// Every operation, in the order of the routes.
#[rustfmt::skip]
pub(super) const SHAPES: &[Shape] = shapes! {
    "POST" "/v1/jobs" takes submission, gives 201 of::<SubmitDocument>, 200 of::<WhyDocument>; fails 404 422;
    "GET" "/v1/jobs" gives 200 of::<JobList>; fails 404 409;
    "GET" "/v1/jobs/{id}" gives 200 of::<JobDocument>;
    "GET" "/v1/jobs/{id}/trace" gives 200 of::<TraceDocument>;
    "GET" "/v1/jobs/{id}/why" gives 200 of::<WhyDocument>;
    "GET" "/v1/jobs/{id}/record" gives 200 of::<JobRecord>;
    "GET" "/v1/jobs/{id}/logs" gives 200 text;
    "GET" "/v1/jobs/{id}/wait" gives 200 of::<WaitDocument>;
    "POST" "/v1/jobs/{id}/cancel" gives 200 of::<CancelDocument>;
    "POST" "/v1/jobs/{id}/move" takes of::<operator::MoveBody>, gives 200 of::<JobDocument>;
    "POST" "/v1/jobs/{id}/confirm-lost" takes of::<operator::ConfirmBody>, gives 200 of::<JobDocument>;
    "POST" "/v1/jobs/{id}/release" gives 200 of::<JobDocument>;
    "POST" "/v1/jobs/{id}/checkpoint" takes of::<jobs::CheckpointBody>, gives 200 of::<PublishedDocument>;
    "GET" "/v1/clusters" gives 200 of::<ClusterList>;
    "GET" "/v1/clusters/{name}" gives 200 either::<ClusterDocument, StatusReport>;
    "GET" "/v1/clusters/{name}/queue" gives 200 of::<QueueDocument>;
    "GET" "/v1/links" gives 200 of::<LinkList>;
    "GET" "/v1/view" gives 200 of::<ViewDocument>;
    "GET" "/v1/peer" gives 200 of::<PeerDocument>;
    "GET" "/v1/members" gives 200 of::<MemberList>;
    "DELETE" "/v1/members/{name}" gives 200 of::<RemovedDocument>;
    "GET" "/v1/tenants" gives 200 of::<TenantList>;
    "GET" "/v1/tenants/{name}" gives 200 of::<TenantDocument>;
    "PUT" "/v1/tenants/{name}" takes of::<tenants::LimitsPatchBody>, gives 200 of::<TenantDocument>; fails 422;
    "DELETE" "/v1/tenants/{name}" gives 200 of::<TenantDocument>;
    "POST" "/v1/tenants/{name}/reclaim" takes of::<tenants::ReclaimBody>, gives 200 of::<TenantDocument>;
    "GET" "/v1/reservations" gives 200 of::<ReservationList>;
    "POST" "/v1/reservations" takes of::<reservations::Body>, gives 201 of::<SubmitDocument>; fails 404 422;
    "GET" "/v1/reservations/{id}" gives 200 of::<ReservationDocument>;
    "DELETE" "/v1/reservations/{id}" gives 200 of::<ReservationDocument>;
    "POST" "/v1/tokens" takes of::<mesh::TokenBody>, gives 201 of::<TokenDocument>;
    "POST" "/v1/drain" gives 200 of::<DrainDocument>; fails 404;
    "POST" "/v1/undrain" gives 200 of::<DrainDocument>; fails 404;
    "GET" "/v1/events" gives 200 events; fails 404 409;
    "GET" "/v1/history" gives 200 of::<HistoryList>; fails 404 409;
    "GET" "/v1/local/history" gives 200 of::<HistoryList>; fails 404 409;
    "GET" "/v1/audit" gives 200 of::<AuditList>; fails 404 409;
    "GET" "/v1/audit/verify" gives 200 of::<AuditVerdict>; fails 404 409;
    "GET" "/v1/incidents" gives 200 of::<IncidentList>;
    "GET" "/v1/incidents/{id}" gives 200 of::<IncidentDocument>;
    "GET" "/v1/silences" gives 200 of::<SilenceList>;
    "POST" "/v1/silences" takes of::<incidents::SilenceBody>, gives 200 of::<SilencedDocument>; fails 404;
    "GET" "/v1/local/touched" gives 200 of::<TouchedList>;
    "GET" "/v1/local/config" gives 200 of::<ConfigDocument>;
    "GET" "/v1/local/jobs" gives 200 of::<JobList>;
    "GET" "/v1/local/jobs/{id}/why" gives 200 of::<WhyDocument>;
    "GET" "/v1/local/jobs/{id}/logs" gives 200 text;
    "GET" "/v1/local/tenants" gives 200 of::<tenants::LocalTenants>;
    "GET" "/v1/local/inspect" gives 200 of::<InspectDocument>;
    "GET" "/v1/openapi.json" gives 200 object;
    "GET" "/v1/doctor" gives 200 of::<DoctorDocument>;
    "GET" "/metrics" gives 200 text;
    "GET" "/healthz" gives 200 of::<HealthDocument>, 503 of::<HealthDocument>;
};
