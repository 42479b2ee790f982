//! Every error of the API: a typed enum with its status, its stable code and a hint.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::base::JobId;
use crate::core::api::ClientError;
use crate::runtime::CallError;
use crate::surface::documents::{ErrorBody, ErrorDocument};

/// Why a request was not answered. Nothing changed unless the text says that the outcome is unknown.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// A path, query, header or body that does not read.
    #[error("{0}")]
    BadRequest(String),
    /// No such route.
    #[error("there is nothing at {0}")]
    NoRoute(String),
    /// The route does not take this method.
    #[error("{0} is not answered at this path")]
    Method(String),
    /// No token, or a wrong one.
    #[error("this address needs a token")]
    Unauthorized,
    /// A proved identity that may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// Nothing starts with this id.
    #[error("no job {0}")]
    NoJob(String),
    /// Nothing is reserved under this id.
    #[error("no reservation {0}")]
    NoReservation(String),
    /// No incident has this id.
    #[error("no incident {0}")]
    NoIncident(String),
    /// A cluster, member or attempt that is not there.
    #[error("no {0}")]
    NotFound(String),
    /// Not as things stand.
    #[error("{0}")]
    Conflict(String),
    /// A member that others' records still count on.
    #[error("{0} is alive and holds {1} records")]
    StillHome(crate::base::PeerName, u64),
    /// A prefix of several ids.
    #[error("{prefix} is the start of {} jobs", .matches.len())]
    Ambiguous {
        /// What was given.
        prefix: String,
        /// Some of the jobs.
        matches: Vec<(JobId, String)>,
    },
    /// More bytes than are read.
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    /// A spec with mistakes.
    #[error("the spec has {} mistake(s)", .0.len())]
    InvalidSpec(Vec<String>),
    /// Too many requests at once.
    #[error("this peer answers as many requests as it may")]
    Overloaded,
    /// It took longer than a request may.
    #[error("no answer within {0} s: the outcome is unknown")]
    TooSlow(u64),
    /// The core said no.
    #[error(transparent)]
    Core(#[from] ClientError),
    /// Another peer, or this one while it stops.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A bug: the core or a peer gave an answer of the wrong kind.
    #[error("an answer of the wrong kind to {0}")]
    Internal(&'static str),
    /// Another peer answered with an error of its own; passed on as it is.
    #[error("{}", .1.message)]
    Passed(StatusCode, ErrorBody),
}

impl ApiError {
    fn parts(&self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::BadRequest(_) => (S::BAD_REQUEST, "bad_request", "see /v1/openapi.json for what is taken"),
            Self::NoRoute(_) => (S::NOT_FOUND, "no_route", "see /v1/openapi.json for what there is"),
            Self::Method(_) => {
                (S::METHOD_NOT_ALLOWED, "method_not_allowed", "see /v1/openapi.json for what there is")
            }
            Self::Unauthorized => (
                S::UNAUTHORIZED,
                "unauthorized",
                "send `Authorization: Bearer TOKEN` with the text of api.token in the peer's state folder, or use its unix socket",
            ),
            Self::Forbidden(_) => (S::FORBIDDEN, "forbidden", "ask at the peer itself, over its unix socket"),
            Self::NoJob(_) => (
                S::NOT_FOUND,
                "no_such_job",
                "list them with `starling jobs`; finished jobs are forgotten after a while",
            ),
            Self::NoReservation(_) => (
                S::NOT_FOUND,
                "no_such_reservation",
                "list them with `starling reservations --all`; those that are over are forgotten after a while",
            ),
            Self::NoIncident(_) => {
                (S::NOT_FOUND, "no_such_incident", "list them with `starling incidents --past`")
            }
            Self::NotFound(_) => (
                S::NOT_FOUND,
                "not_found",
                "list clusters with `starling clusters`, attempts with `starling job ID`",
            ),
            Self::Conflict(_) => (S::CONFLICT, "refused", "see `starling job ID` and `starling clusters`"),
            Self::StillHome(..) => (
                S::CONFLICT,
                "still_home",
                "`starling drain NAME` moves them to others; ask again when it holds none, or add --force",
            ),
            Self::Ambiguous { .. } => (S::CONFLICT, "ambiguous", "give more characters of the id"),
            Self::TooLarge(_) => (
                S::PAYLOAD_TOO_LARGE,
                "too_large",
                "keep files out of the spec: put them where the job can read them",
            ),
            Self::InvalidSpec(_) => (
                S::UNPROCESSABLE_ENTITY,
                "invalid_spec",
                "correct the fields named in details; docs/reference/spec.md lists all",
            ),
            Self::Overloaded => {
                (S::SERVICE_UNAVAILABLE, "overloaded", "try again shortly, or at another peer")
            }
            Self::TooSlow(_) => (
                S::GATEWAY_TIMEOUT,
                "timeout",
                "ask again with the same idempotency key or id, at any peer; that is safe",
            ),
            Self::Core(e) => core_parts(e),
            Self::Call(e) => call_parts(e),
            Self::Internal(_) => {
                (S::INTERNAL_SERVER_ERROR, "internal", "this is a bug: please report it with the peer's log")
            }
            Self::Passed(..) => (S::BAD_GATEWAY, "passed", ""),
        }
    }

    /// The stable code.
    pub fn code(&self) -> String {
        match self {
            Self::Passed(_, body) => body.code.clone(),
            other => other.parts().1.to_owned(),
        }
    }

    fn details(&self) -> Vec<String> {
        match self {
            Self::InvalidSpec(mistakes) => mistakes.clone(),
            Self::Ambiguous { matches, .. } => {
                matches.iter().map(|(id, name)| format!("{id} {name}")).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn core_parts(error: &ClientError) -> (StatusCode, &'static str, &'static str) {
    use StatusCode as S;
    match error {
        ClientError::NoSuchJob(_) => (
            S::NOT_FOUND,
            "no_such_job",
            "list them with `starling jobs`; finished jobs are forgotten after a while",
        ),
        ClientError::FitsNowhere { .. } => (
            S::UNPROCESSABLE_ENTITY,
            "fits_nowhere",
            "ask for less, or see `starling clusters` for what there is",
        ),
        ClientError::Unknown { .. } => (
            S::GATEWAY_TIMEOUT,
            "outcome_unknown",
            "ask again with the same idempotency key or id, at any peer; that is safe",
        ),
        ClientError::DiskFull => (
            S::SERVICE_UNAVAILABLE,
            "disk_full",
            "submit at another peer (--peer), or free space on this one",
        ),
        ClientError::TooMany(_) => {
            (S::SERVICE_UNAVAILABLE, "too_many_jobs", "submit at another peer (--peer)")
        }
        ClientError::TooLarge(_) => (S::PAYLOAD_TOO_LARGE, "too_large", "make the spec smaller"),
        ClientError::Refused(_) => (S::CONFLICT, "refused", "see `starling job ID` for its present state"),
        ClientError::NoHomes { .. } => (
            S::SERVICE_UNAVAILABLE,
            "no_homes",
            "see `starling clusters` for who is alive; try at a peer on the other side",
        ),
        ClientError::GroupsFitNowhere(_) => (
            S::UNPROCESSABLE_ENTITY,
            "groups_fit_nowhere",
            "see the plan with `starling submit --dry-run FILE`",
        ),
        ClientError::OverQuota(_) => (
            S::UNPROCESSABLE_ENTITY,
            "over_quota",
            "ask for less, or have the limits raised: `starling tenant show NAME`",
        ),
        ClientError::NoReservation(_) => (
            S::UNPROCESSABLE_ENTITY,
            "no_reservation",
            "see `starling clusters` for what there is, `starling reservations` for what is taken",
        ),
        ClientError::NoSuchTenant(_) => (
            S::NOT_FOUND,
            "no_such_tenant",
            "list tenants with `starling tenant list`; a limit just set may take seconds to be known here",
        ),
        ClientError::NoShare(..) => (S::NOT_FOUND, "no_share", "see `starling tenant show NAME`"),
        ClientError::KeyUndecided(_) => (
            S::SERVICE_UNAVAILABLE,
            "key_undecided",
            "try again with the same key, at any peer; if you never used it before, another key may do at once",
        ),
        ClientError::KeyReused(_) => (S::CONFLICT, "key_reused", "use a fresh key for another job"),
    }
}

fn call_parts(error: &CallError) -> (StatusCode, &'static str, &'static str) {
    use StatusCode as S;
    match error {
        CallError::NoSuchPeer(_) => (S::NOT_FOUND, "no_such_peer", "see `starling clusters` for the names"),
        CallError::Unreachable(..) => {
            (S::SERVICE_UNAVAILABLE, "unreachable", "see `starling links`; try again, or at another peer")
        }
        CallError::Timeout(..) => (
            S::GATEWAY_TIMEOUT,
            "timeout",
            "the outcome is unknown; ask again with the same idempotency key or id, at any peer; that is safe",
        ),
        CallError::Stopping => (S::SERVICE_UNAVAILABLE, "stopping", "ask another peer (--peer)"),
        CallError::Invalid(_) => (S::CONFLICT, "refused", "see the message"),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, body) = match self {
            Self::Passed(status, body) => (status, body),
            other => {
                let (status, code, hint) = other.parts();
                let body = ErrorBody {
                    code: code.into(),
                    message: other.to_string(),
                    hint: hint.into(),
                    details: other.details(),
                };
                (status, body)
            }
        };
        (status, Json(ErrorDocument { error: body })).into_response()
    }
}

/// What every handler gives.
pub type ApiResult<T> = Result<T, ApiError>;
