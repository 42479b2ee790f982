//! Calls to the API server: bounded in time, size and number, paced, and honest about what an answer proves.
//!
//! Configuration, identity and TLS are kube's. The rest is done here, because what matters is what may be
//! concluded: a 404 counts as "is not there" only as the server's own `Status` about this very name.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Method, Request};
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::account::{self, Account};
use super::objects::{Meta, Object};
use super::stream::Lines;
use crate::backends::local::clock;
use crate::base::{Instant, Span};

/// Longest time for one answer.
pub(super) const CALL_TIME: Duration = Duration::from_secs(15);
/// Without a word on a watch for so long, it is asked for again. Servers send bookmarks every minute.
const WATCH_SILENCE: Duration = Duration::from_secs(100);
/// A watch is ended by the server after so many seconds.
const WATCH_SECONDS: u32 = 270;
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Pages of one list.
const PAGES_MAX: u32 = 1_000;
/// Calls at once, and per second on average.
const CALLS_AT_ONCE: usize = 8;
const CALLS_PER_SECOND: u64 = 20;
const CALLS_BURST: u64 = 40;
/// Longest wait that a server may ask for.
const RETRY_AFTER_MAX: Span = Span::secs(60);

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The server's own word that there is nothing of this name.
    #[error("it is not there")]
    Absent,
    /// It was there before, or changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The version is too old: list again.
    #[error("the server does not have this version any more")]
    Gone,
    /// The server understood and said no: not done, and it will not be.
    #[error("{1} ({0})")]
    Refused(u16, String),
    /// Nothing follows from it: whether something was done is not known.
    #[error("{0}")]
    Unknown(String),
}

impl ApiError {
    /// There is no such path: of one that the server does not know at all it says so in plain text.
    pub fn is_404(&self) -> bool {
        match self {
            Self::Absent | Self::Refused(404, _) => true,
            Self::Unknown(why) => why.starts_with("status 404"),
            _ => false,
        }
    }
}

/// Where the API server is and who asks.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// A kubeconfig file; none means KUBECONFIG, the usual file, then the account of this pod.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; none means the current one.
    pub context: Option<String>,
    /// Where jobs run; none means the context's or the pod's own.
    pub namespace: Option<String>,
    /// Objects of one page of a list; none means 500.
    pub page: Option<u32>,
}

/// One API server.
pub struct Api {
    client: kube::Client,
    account: Account,
    /// Where jobs run.
    pub namespace: String,
    /// For people.
    pub url: String,
    at_once: Semaphore,
    page: u32,
    pace: Mutex<Pace>,
}

/// A bucket of calls, and until when the server wants to hear nothing.
#[derive(Debug)]
struct Pace {
    /// Calls that may be made at once, in millionths.
    left: u64,
    at: Instant,
    silent_until: Instant,
}

impl Pace {
    /// How long to wait before the next call.
    fn take(&mut self, now: Instant) -> Span {
        let full = CALLS_BURST * 1_000_000;
        self.left = (self.left + now.since(self.at).0.saturating_mul(CALLS_PER_SECOND)).min(full);
        self.at = now;
        let silent = self.silent_until.since(now);
        if silent > Span::ZERO {
            return silent;
        }
        if self.left >= 1_000_000 {
            self.left -= 1_000_000;
            return Span::ZERO;
        }
        Span((1_000_000 - self.left) / CALLS_PER_SECOND + 1)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u16,
    #[serde(default)]
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(default)]
    name: String,
    #[serde(default)]
    retry_after_seconds: u64,
}

#[derive(Debug, Deserialize)]
struct List<T> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<T>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

pub(super) fn unknown(error: impl std::fmt::Display) -> ApiError {
    ApiError::Unknown(error.to_string())
}

impl Api {
    /// Reads the configuration; the server need not be there.
    pub async fn new(access: &Access) -> anyhow::Result<Self> {
        let (config, account) = account::read(access).await?;
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.to_string();
        let client = kube::Client::try_from(config)?;
        let now = clock::now();
        let pace = Pace { left: CALLS_BURST * 1_000_000, at: now, silent_until: now };
        let page = access.page.unwrap_or(PAGE).max(1);
        let at_once = Semaphore::new(CALLS_AT_ONCE);
        Ok(Self { client, account, namespace, url, at_once, page, pace: Mutex::new(pace) })
    }

    /// The folder of a kind in this namespace: `apis/batch/v1`, `jobs`.
    pub fn place(&self, group: &str, kind: &str) -> String {
        format!("/{group}/namespaces/{}/{kind}", self.namespace)
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn wait_turn(&self) {
        loop {
            let wait = self.pace().take(clock::now());
            if wait == Span::ZERO {
                return;
            }
            tokio::time::sleep(wait.to_std()).await;
        }
    }

    /// The server wants to hear nothing for a while.
    fn hush(&self, seconds: u64) {
        let until = clock::now() + Span::secs(seconds.max(1)).min(RETRY_AFTER_MAX);
        let mut pace = self.pace();
        pace.silent_until = pace.silent_until.max(until);
    }

    fn request(
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Request<Body>, ApiError> {
        let bytes = body.map(serde_json::to_vec).transpose().map_err(unknown)?.unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path).header("accept", "application/json");
        if body.is_some() {
            request = request.header("content-type", kind);
        }
        request.body(Body::from(bytes)).map_err(unknown)
    }

    /// One call. `name` is whose absence a 404 may prove.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        name: Option<&str>,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, ApiError> {
        let request = Self::request(method, path, kind, body)?;
        let _permit = self.at_once.acquire().await.map_err(unknown)?;
        self.wait_turn().await;
        tokio::time::timeout(CALL_TIME, self.answer(request, name))
            .await
            .map_err(|_| unknown(format!("no answer within {CALL_TIME:?}")))?
    }

    async fn answer(&self, request: Request<Body>, name: Option<&str>) -> Result<Vec<u8>, ApiError> {
        let response = self.client.send(request).await.map_err(|e| self.account.unsent(&e))?;
        let code = response.status().as_u16();
        let header = response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse().ok());
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(unknown)?.into_data() {
                if text.len() + data.len() > ANSWER_BYTES_MAX {
                    return Err(unknown(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
                }
                text.extend_from_slice(&data);
            }
        }
        if (200..300).contains(&code) {
            return Ok(text);
        }
        Err(self.refusal(code, header, &text, name))
    }

    fn refusal(&self, code: u16, header: Option<u64>, text: &[u8], name: Option<&str>) -> ApiError {
        let status: Option<Status> =
            serde_json::from_slice(text).ok().filter(|s: &Status| s.kind == "Status" && s.code == code);
        let wait = header.or(status.as_ref().and_then(|s| s.details.as_ref()).map(|d| d.retry_after_seconds));
        if code == 429 || wait.is_some_and(|w| w > 0) {
            self.hush(wait.unwrap_or(1));
        }
        let hint = if code == 401 { format!("; {}", self.account.refused()) } else { String::new() };
        let Some(status) = status else {
            let few: String = String::from_utf8_lossy(text).chars().take(200).collect();
            return unknown(format!("status {code}: {few}{hint}"));
        };
        let about = status.details.as_ref().map(|d| d.name.as_str()).unwrap_or_default();
        match code {
            404 if status.reason == "NotFound" && name.is_some_and(|n| n == about) => ApiError::Absent,
            409 => ApiError::Conflict(status.message),
            410 => ApiError::Gone,
            // Not yet valid tokens, a changing role: said at once, but nothing is concluded.
            400 | 403 | 404 | 405 | 413 | 415 | 422 => ApiError::Refused(code, status.message),
            _ => ApiError::Unknown(format!("status {code}: {}{hint}", status.message)),
        }
    }

    pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
        serde_json::from_slice(text).map_err(|e| unknown(format!("an answer that cannot be read: {e}")))
    }

    /// One object.
    pub async fn get<T: Object>(&self, folder: &str, name: &str) -> Result<T, ApiError> {
        let text = self.call(Method::GET, &format!("{folder}/{name}"), Some(name), "", None).await?;
        let found: T = Self::parse(&text)?;
        // Something else that happened to be readable is no answer.
        if found.meta().name == name { Ok(found) } else { Err(unknown("an answer about another object")) }
    }

    /// Makes one object; its identity.
    pub async fn create(&self, folder: &str, object: &Value) -> Result<Meta, ApiError> {
        let text = self.call(Method::POST, folder, None, "application/json", Some(object)).await?;
        Ok(Self::parse::<Named>(&text)?.metadata)
    }

    /// Changes one object by a merge patch.
    pub async fn patch(&self, folder: &str, name: &str, patch: &Value) -> Result<(), ApiError> {
        let path = format!("{folder}/{name}");
        let kind = "application/merge-patch+json";
        self.call(Method::PATCH, &path, Some(name), kind, Some(patch)).await.map(|_| ())
    }

    /// Deletes one object, if it still is this very one; what belongs to it follows.
    pub async fn delete(&self, folder: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        self.delete_by(folder, name, uid, "Background").await
    }

    /// The same, and what belongs to it goes first.
    pub async fn delete_first(&self, folder: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        self.delete_by(folder, name, uid, "Foreground").await
    }

    async fn delete_by(&self, folder: &str, name: &str, uid: &str, policy: &str) -> Result<(), ApiError> {
        let body = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "propagationPolicy": policy, "preconditions": { "uid": uid },
        });
        let path = format!("{folder}/{name}");
        self.call(Method::DELETE, &path, Some(name), "application/json", Some(&body)).await.map(|_| ())
    }

    /// A cheap question about our jobs: does the server answer?
    pub async fn pulse(&self, folder: &str, selector: &str) -> Result<(), ApiError> {
        let path = format!("{folder}?limit=1&resourceVersion=0&labelSelector={selector}");
        let list: List<Value> = Self::parse(&self.call(Method::GET, &path, None, "", None).await?)?;
        if list.kind.ends_with("List") { Ok(()) } else { Err(unknown("an answer that is no list")) }
    }

    /// A whole list, page by page, and its version. A list cut short is an error.
    pub async fn list<T: Object>(&self, folder: &str, query: &str) -> Result<(Vec<T>, String), ApiError> {
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut path = format!("{folder}?limit={}", self.page);
            if !query.is_empty() {
                path.push('&');
                path.push_str(query);
            }
            if let Some(token) = &next {
                path.push_str("&continue=");
                path.push_str(&escape(token));
            }
            let page: List<T> = Self::parse(&self.call(Method::GET, &path, None, "", None).await?)?;
            if !page.kind.ends_with("List") || page.metadata.resource_version.is_empty() {
                return Err(unknown("an answer that is no list"));
            }
            // Of a list of none some servers say null.
            found.extend(page.items.unwrap_or_default());
            next = page.metadata.next.filter(|n| !n.is_empty());
            if next.is_none() {
                return Ok((found, page.metadata.resource_version));
            }
        }
        Err(unknown("a list without an end"))
    }

    /// Opens a watch from a version on.
    pub async fn watch(&self, folder: &str, query: &str, version: &str) -> Result<Lines, ApiError> {
        let more = if query.is_empty() { String::new() } else { format!("&{query}") };
        let path = format!(
            "{folder}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}{more}",
            escape(version)
        );
        self.wait_turn().await;
        self.stream(&path, WATCH_SILENCE).await
    }

    /// Opens the output of a container.
    pub async fn output(&self, pod: &str, query: &str, silence: Duration) -> Result<Lines, ApiError> {
        let path = format!("{}/{pod}/log?{query}", self.place("api/v1", "pods"));
        self.wait_turn().await;
        self.stream(&path, silence).await
    }

    async fn stream(&self, path: &str, silence: Duration) -> Result<Lines, ApiError> {
        let request = Self::request(Method::GET, path, "", None)?;
        let sent = tokio::time::timeout(CALL_TIME, self.client.send(request)).await;
        let response = sent
            .map_err(|_| unknown(format!("no answer within {CALL_TIME:?}")))?
            .map_err(|e| self.account.unsent(&e))?;
        let code = response.status().as_u16();
        let header = response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse().ok());
        let mut lines = Lines::new(response.into_body(), silence);
        if (200..300).contains(&code) {
            return Ok(lines);
        }
        let mut text = Vec::new();
        while let Ok(Some(line)) = lines.next().await {
            text.extend(line);
            if text.len() > 64 << 10 {
                break;
            }
        }
        Err(self.refusal(code, header, &text, None))
    }
}

#[derive(Deserialize)]
struct Named {
    metadata: Meta,
}

/// Percent-escapes a value of a query.
pub fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_paced_and_the_server_may_ask_for_silence() {
        let mut pace = Pace { left: CALLS_BURST * 1_000_000, at: Instant(0), silent_until: Instant(0) };
        let now = Instant(10);
        for _ in 0..CALLS_BURST {
            assert_eq!(pace.take(now), Span::ZERO);
        }
        let wait = pace.take(now);
        assert!(wait > Span::ZERO && wait <= Span::millis(51), "{wait:?}");
        assert_eq!(pace.take(now + wait), Span::ZERO);
        pace.silent_until = now + Span::secs(3);
        assert!(pace.take(now + Span::secs(1)) > Span::secs(1));
        assert_eq!(pace.take(now + Span::secs(4)), Span::ZERO);
    }

    #[test]
    fn values_of_a_query_are_escaped() {
        assert_eq!(escape("a/b=c,d e"), "a%2Fb%3Dc%2Cd%20e");
    }
}
