//! How much at once, how long, by whom: the middleware around every route.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Api, ApiError, ApiResult};
use crate::base::PeerName;

/// Bytes of a request's body that are read: a spec of 48 KiB and its envelope.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Requests answered at once.
const REQUESTS_MAX: usize = 512;
/// Of these, followed logs, event streams and long polls, beside `REQUESTS_MAX`.
const STREAMS_MAX: usize = 512;
/// Requests of other peers, kept apart so that users here cannot starve them.
const LOCAL_MAX: usize = 256;
/// An ordinary request ends after this long.
const REQUEST_SECS: u64 = 30;

/// Who asks, as the listener proved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A process of this machine, over the unix socket; its user id where the system says.
    Local(Option<u32>),
    /// Somebody who has the token.
    Token,
    /// A client certificate of this mesh.
    Member(PeerName),
    /// Another peer, through `serve_proxy`.
    Peer,
}

/// Where a caller over TCP is.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub std::net::SocketAddr);

/// The way in that a caller took, and from where: what the audit keeps beside who it was.
pub(super) fn came_from(caller: Option<&Caller>, address: Option<&Address>) -> String {
    let at = address.map_or_else(|| "TCP".to_owned(), |a| a.0.to_string());
    match caller {
        Some(Caller::Local(_)) => "unix socket".into(),
        Some(Caller::Token) => format!("{at} with the token"),
        Some(Caller::Member(_)) => format!("{at} with a certificate"),
        Some(Caller::Peer) => "another peer".into(),
        None => "inside".into(),
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(Some(uid)) => write!(f, "local user {uid}"),
            Self::Local(None) => f.write_str("a local user"),
            Self::Token => f.write_str("a token holder"),
            Self::Member(name) => write!(f, "member {name}"),
            Self::Peer => f.write_str("another peer"),
        }
    }
}

/// Counting semaphores and counters of one router.
pub(crate) struct Limits {
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    local: Arc<Semaphore>,
    answered: Mutex<BTreeMap<(String, u16), u64>>,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(REQUESTS_MAX, STREAMS_MAX)
    }
}

impl Limits {
    pub fn new(requests: usize, streams: usize) -> Self {
        Self {
            requests: Arc::new(Semaphore::new(requests)),
            streams: Arc::new(Semaphore::new(streams)),
            local: Arc::new(Semaphore::new(LOCAL_MAX)),
            answered: Mutex::default(),
        }
    }

    /// A permit that lives as long as a long answer does.
    pub fn stream(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.streams.clone().try_acquire_owned().map_err(|_| ApiError::Overloaded)
    }

    /// Answers so far by route and status.
    pub fn answered(&self) -> Vec<((String, u16), u64)> {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.iter().map(|(k, v)| (k.clone(), *v)).collect()
    }

    fn count(&self, route: &str, status: u16) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered.entry((route.to_owned(), status)).or_default() += 1;
    }
}

/// Routes that hold their answer open and take a stream permit themselves.
fn is_long(route: &str) -> bool {
    ["/logs", "/wait", "/v1/events", "/page/live"].iter().any(|end| route.ends_with(end))
}

/// Around every route.
pub(crate) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |m| m.as_str().to_owned());
    let response = match admitted(&api, &route, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    };
    api.limits.count(&route, response.status().as_u16());
    response
}

async fn admitted(api: &Api, route: &str, request: Request, next: Next) -> ApiResult<Response> {
    if let Some(Caller::Member(name)) = request.extensions().get::<Caller>()
        && !api.handle.members().iter().any(|m| m.name == *name && !m.removed)
    {
        return Err(ApiError::Forbidden(format!("{name} is not a member of this mesh")));
    }
    if is_long(route) {
        return Ok(next.run(request).await);
    }
    let lane = if route.starts_with("/v1/local/") { &api.limits.local } else { &api.limits.requests };
    let _permit = lane.clone().try_acquire_owned().map_err(|_| ApiError::Overloaded)?;
    let bound = Duration::from_secs(REQUEST_SECS);
    tokio::time::timeout(bound, next.run(request)).await.map_err(|_| ApiError::TooSlow(REQUEST_SECS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_a_limit_and_give_back() {
        let limits = Limits::new(1, 1);
        let held = limits.stream().expect("first");
        assert!(matches!(limits.stream(), Err(ApiError::Overloaded)));
        drop(held);
        assert!(limits.stream().is_ok());
    }
}
