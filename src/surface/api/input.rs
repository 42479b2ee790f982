//! Reads what comes with a request; whatever does not read is a JSON error like any other.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::limits::BODY_BYTES_MAX;
use super::{ApiError, ApiResult};
use crate::base::{PeerName, Span, WallTime};
use crate::model::array::On;
use crate::model::spec::limits::DOCUMENT_BYTES_MAX;
use crate::model::spec_input::SpecDefaults;
use crate::model::{JobSpec, timestamp};
use crate::surface::seams;

/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 128;

/// The query, with unknown names refused.
pub struct Q<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Q<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(query)) => Ok(Self(query)),
            Err(e) => Err(ApiError::BadRequest(format!("query: {}", e.body_text()))),
        }
    }
}

/// The one variable part of the path.
pub struct Segment(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) if text.len() <= 128 => Ok(Self(text)),
            Ok(_) => Err(ApiError::BadRequest("path: a part of more than 128 bytes".into())),
            Err(e) => Err(ApiError::BadRequest(format!("path: {}", e.body_text()))),
        }
    }
}

impl Segment {
    /// As the name of a peer.
    pub fn peer(&self) -> ApiResult<PeerName> {
        peer(&self.0)
    }
}

/// Reads a peer's name.
pub fn peer(text: &str) -> ApiResult<PeerName> {
    PeerName::new(text).map_err(|e| ApiError::BadRequest(e.to_string()))
}

/// Reads a length of time: with a unit, or whole seconds.
pub fn span(field: &str, text: &str, max: Span) -> ApiResult<Span> {
    let read = if !text.is_empty() && text.len() < 10 && text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().map(Span::secs).map_err(|_| String::new())
    } else {
        text.parse()
    };
    match read {
        Ok(span) if span <= max => Ok(span),
        Ok(span) => Err(ApiError::BadRequest(format!("{field}: {span} is more than {max}"))),
        Err(e) => Err(ApiError::BadRequest(format!("{field}: {e}"))),
    }
}

/// Reads a moment: RFC 3339, or milliseconds since 1970.
pub fn moment(field: &str, text: &str) -> ApiResult<WallTime> {
    let millis = text.parse::<u64>().ok().filter(|_| text.len() <= 16).map(WallTime);
    millis.or_else(|| timestamp::parse(text)).ok_or_else(|| {
        let text: String = text.chars().take(40).collect();
        ApiError::BadRequest(format!(
            "{field}: {text:?} is neither a date like 2026-06-01T12:00:00Z nor milliseconds since 1970"
        ))
    })
}

/// No body: what is said there would change nothing, so it is refused.
pub struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let body = read_body(request.into_body()).await?;
        match body.trim_ascii() {
            b"" | b"{}" => Ok(Self),
            _ => Err(ApiError::BadRequest("a body, of which this call reads nothing: send none".into())),
        }
    }
}

/// The body, bounded.
pub struct Bounded(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Bounded {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let stated =
            request.headers().get("content-length").and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if stated.is_some_and(|n| n > BODY_BYTES_MAX as u64) {
            return Err(ApiError::TooLarge(BODY_BYTES_MAX));
        }
        read_body(request.into_body()).await.map(Self)
    }
}

async fn read_body(body: Body) -> ApiResult<Bytes> {
    axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|e| {
        let mut source: Option<&dyn std::error::Error> = Some(&e);
        while let Some(error) = source {
            if error.is::<http_body_util::LengthLimitError>() {
                return ApiError::TooLarge(BODY_BYTES_MAX);
            }
            source = error.source();
        }
        ApiError::BadRequest("the body ended early".into())
    })
}

impl Bounded {
    /// Reads a JSON body; an empty one reads as `{}`.
    pub fn json<T: DeserializeOwned>(&self) -> ApiResult<T> {
        let bytes: &[u8] = if self.0.is_empty() { b"{}" } else { &self.0 };
        serde_json::from_slice(bytes).map_err(|e| ApiError::BadRequest(format!("body: {e}")))
    }
}

/// What a submission carries.
pub struct Submission {
    /// The job.
    pub spec: JobSpec,
    /// Its idempotency key.
    pub key: Option<String>,
    /// Jobs that it waits for, as written.
    pub after: Vec<(String, On)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    spec: Value,
    key: Option<String>,
}

/// The `Idempotency-Key` header.
pub fn key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().map_err(|_| ApiError::BadRequest("Idempotency-Key: not ASCII".into()))?;
    checked_key(Some(text.to_owned()))
}

fn checked_key(key: Option<String>) -> ApiResult<Option<String>> {
    if let Some(key) = &key
        && (key.is_empty() || key.len() > KEY_BYTES_MAX || !key.bytes().all(|b| b.is_ascii_graphic()))
    {
        return Err(ApiError::BadRequest(format!("key: not 1 to {KEY_BYTES_MAX} visible ASCII characters")));
    }
    Ok(key)
}

/// Reads a spec document, or `{spec, key}` around one, and the `Idempotency-Key` header.
pub fn submission(headers: &HeaderMap, body: &Bytes, defaults: &SpecDefaults) -> ApiResult<Submission> {
    let text = std::str::from_utf8(body).map_err(|_| ApiError::BadRequest("body: not UTF-8".into()))?;
    let header = key(headers)?;
    let (document, inner) = match envelope(text)? {
        Some(Envelope { spec: Value::String(text), key }) => (text, key),
        Some(Envelope { spec, key }) => (spec.to_string(), key),
        None => (text.to_owned(), None),
    };
    if header.is_some() && inner.is_some() && header != inner {
        return Err(ApiError::BadRequest("key: the header and the body name different keys".into()));
    }
    if document.len() > DOCUMENT_BYTES_MAX {
        return Err(ApiError::TooLarge(DOCUMENT_BYTES_MAX));
    }
    let parsed = seams::parse_spec(&document, defaults).map_err(|m| ApiError::InvalidSpec(m.0))?;
    let key = checked_key(header.or(inner).or(parsed.key))?;
    Ok(Submission { spec: parsed.spec, key, after: parsed.after })
}

/// A JSON object with `spec` in it is an envelope; every other text is the spec itself.
fn envelope(text: &str) -> ApiResult<Option<Envelope>> {
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    match serde_json::from_str::<Value>(text) {
        Ok(value) if value.get("spec").is_some() => {
            serde_json::from_value(value).map(Some).map_err(|e| ApiError::BadRequest(format!("body: {e}")))
        }
        _ => Ok(None),
    }
}
