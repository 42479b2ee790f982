//! Answers requests that come from other peers, which may ask less than a user here.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use axum::response::IntoResponse;
use futures::StreamExt;
use tower::ServiceExt;

use super::limits::{BODY_BYTES_MAX, Caller};
use super::{ApiError, ApiResult};
use crate::runtime::{ProxyRequest, ProxyResponse};

const URI_BYTES_MAX: usize = 4_096;

/// Paths another peer may ask, exactly or, with `{}`, with any one part there. None of them asks a
/// third peer, so that requests cannot go round in circles.
const ALLOWED: &[(&str, &str)] = &[
    ("GET", "/v1/local/jobs"),
    ("GET", "/v1/local/jobs/{}/why"),
    ("GET", "/v1/local/jobs/{}/logs"),
    ("GET", "/v1/local/tenants"),
    ("GET", "/v1/local/touched"),
    ("GET", "/v1/local/inspect"),
    ("GET", "/v1/local/history"),
    ("GET", "/v1/peer"),
    ("GET", "/healthz"),
    ("POST", "/v1/drain"),
    ("POST", "/v1/undrain"),
];

fn allowed(method: &str, uri: &str) -> bool {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let same = |pattern: &str| {
        let mut parts = path.split('/');
        pattern
            .split('/')
            .all(|want| parts.next().is_some_and(|got| (want == "{}" && !got.is_empty()) || want == got))
            && parts.next().is_none()
    };
    // `?cluster=` would pass it on again.
    let local = method == "GET" || query.is_empty();
    local && ALLOWED.iter().any(|(m, pattern)| *m == method && same(pattern))
}

/// Answers another peer's request with this peer's router.
pub async fn serve_proxy(router: Router, request: ProxyRequest) -> ProxyResponse {
    let response = match build(request) {
        Ok(request) => match router.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        Err(error) => error.into_response(),
    };
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    ProxyResponse {
        status: response.status().as_u16(),
        content_type: content_type.unwrap_or("application/octet-stream").to_owned(),
        body: Box::pin(
            response.into_body().into_data_stream().map(|chunk| chunk.map_err(std::io::Error::other)),
        ),
    }
}

fn build(request: ProxyRequest) -> ApiResult<Request<Body>> {
    if request.body.len() > BODY_BYTES_MAX {
        return Err(ApiError::TooLarge(BODY_BYTES_MAX));
    }
    if request.uri.len() > URI_BYTES_MAX || !allowed(&request.method, &request.uri) {
        let what: String = request.uri.chars().take(80).collect();
        return Err(ApiError::Forbidden(format!("another peer may not ask {} {what}", request.method)));
    }
    Request::builder()
        .method(request.method.as_str())
        .uri(&request.uri)
        .extension(Caller::Peer)
        .body(Body::from(request.body))
        .map_err(|e| ApiError::BadRequest(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there to be asked by other peers is not refused to them.
    #[test]
    fn local_routes_are_for_other_peers() {
        let local =
            |r: &&crate::surface::api::routes::Route| r.path.starts_with("/v1/local/") && r.method == "GET";
        let routes: Vec<_> = crate::surface::api::routes::ROUTES.iter().filter(local).collect();
        assert!(routes.len() > 5);
        for route in routes {
            // Its settings are for its own users.
            let other = route.path != "/v1/local/config";
            assert_eq!(allowed("GET", &route.path.replace("{id}", "abcd")), other, "{}", route.path);
        }
    }

    #[test]
    fn only_listed_paths() {
        assert!(allowed("GET", "/v1/local/jobs?limit=3"));
        assert!(allowed("GET", "/v1/local/jobs/abc/logs?epoch=1"));
        assert!(allowed("POST", "/v1/drain"));
        for (method, uri) in [
            ("POST", "/v1/drain?cluster=b"),
            ("POST", "/v1/jobs"),
            ("DELETE", "/v1/members/a"),
            ("POST", "/v1/tokens"),
            ("GET", "/v1/jobs"),
            ("GET", "/v1/local/jobs/a/b/logs"),
            ("GET", "/v1/local/jobs//why"),
            ("POST", "/v1/local/jobs"),
            ("GET", "http://elsewhere/v1/peer"),
        ] {
            assert!(!allowed(method, uri), "{method} {uri}");
        }
    }
}
