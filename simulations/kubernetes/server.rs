//! A recorded-behaviour API server: what kube-apiserver does as far as a client can tell, kept in memory.
//!
//! Versions, lists in pages, watches that resume, "410 Gone" after compaction, conflicts, preconditions, finalizers,
//! graceful deletion of pods, the status subresource, bindings, logs, and who asked for what (for the RBAC test).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Keeps what is deleted until all that belongs to it is gone.
pub const FOREGROUND: &str = "foregroundDeletion";

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    group: String,
    namespace: String,
    resource: String,
    name: String,
    sub: String,
}

#[derive(Debug, Clone)]
struct Record {
    version: u64,
    kind: &'static str,
    target: Target,
    object: Value,
}

#[derive(Default)]
struct Store {
    version: u64,
    uids: u64,
    objects: BTreeMap<(String, String, String), Value>,
    log: Vec<Record>,
    /// Versions up to this one are gone.
    compacted: u64,
    /// Resources of API groups beside the built-in ones, by group and version.
    groups: BTreeMap<(String, String), BTreeSet<String>>,
    /// (verb, group, resource) of requests by the peer's token.
    asked: BTreeSet<(String, String, String)>,
}

pub struct Server {
    store: Mutex<Store>,
    changed: Notify,
    /// Output of containers, by the pod's identity.
    pub logs: PathBuf,
    down: AtomicBool,
    /// Requests that are answered with 429.
    throttle: AtomicU64,
    pub throttled: AtomicU64,
    /// Requests of the peer, and those among them that ask only whether there is an answer.
    pub calls: AtomicU64,
    pub pulses: AtomicU64,
    /// Further pages of lists that were given, and how many more of them are answered with "410 Gone".
    pub pages: AtomicU64,
    expired: AtomicU64,
    /// The peer's; whoever has another one, and is not the tests' own, is answered with 401.
    token: Mutex<String>,
    pub strangers: AtomicU64,
    connections: Mutex<CancellationToken>,
    address: SocketAddr,
    stop: CancellationToken,
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn answer(code: u16, value: &Value) -> Response<Body> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(full(value.to_string())).expect("a response")
}

fn no_page() -> Response<Body> {
    Response::builder().status(404).body(full("404 page not found\n")).expect("a response")
}

fn status(code: u16, reason: &str, name: &str, message: &str) -> Response<Body> {
    answer(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": message, "details": { "name": name } }),
    )
}

fn target(path: &str) -> Option<Target> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let group = match *parts.first()? {
        "api" => {
            parts.drain(..2.min(parts.len()));
            String::new()
        }
        "apis" => {
            let group = (*parts.get(1)?).to_owned();
            parts.drain(..3.min(parts.len()));
            group
        }
        _ => return None,
    };
    let mut namespace = String::new();
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        namespace = parts[1].to_owned();
        parts.drain(..2);
    }
    let part = |n: usize| parts.get(n).map(|p| (*p).to_owned()).unwrap_or_default();
    Some(Target { group, namespace, resource: part(0), name: part(1), sub: part(2) })
}

fn unescape(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let hex =
            bytes.get(at + 1..at + 3).and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (b'+', _) => {
                out.push(b' ');
                at += 1;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn query(text: Option<&str>) -> BTreeMap<String, String> {
    let pairs = text.unwrap_or_default().split('&').filter_map(|p| p.split_once('='));
    pairs.map(|(k, v)| (unescape(k), unescape(v))).collect()
}

/// Both kinds of selector, equality only: more is not used.
fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let pairs = |key: &str| -> Vec<(String, String)> {
        let text = query.get(key).cloned().unwrap_or_default();
        text.split(',').filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    let labels = &object["metadata"]["labels"];
    let field = |path: &str| {
        path.split('.').fold(object, |at, part| &at[part]).as_str().unwrap_or_default().to_owned()
    };
    pairs("labelSelector").iter().all(|(k, v)| labels[k] == *v)
        && pairs("fieldSelector").iter().all(|(k, v)| field(k) == *v)
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            into.as_object_mut().expect("an object").remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}

fn kind_of(resource: &str) -> String {
    match resource {
        "podgroups" => "PodGroup".into(),
        other => {
            let one = other.trim_end_matches('s');
            one[..1].to_ascii_uppercase() + &one[1..]
        }
    }
}

impl Server {
    /// Listens on a free port, on the runtime of the caller.
    pub async fn start(logs: PathBuf) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = Arc::new(Self {
            store: Mutex::default(),
            changed: Notify::new(),
            logs,
            down: AtomicBool::new(false),
            throttle: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            pulses: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            token: Mutex::new("peer".into()),
            strangers: AtomicU64::new(0),
            connections: Mutex::new(CancellationToken::new()),
            address,
            stop: CancellationToken::new(),
        });
        tokio::spawn(server.clone().serve(listener));
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn open(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            if self.down.load(Ordering::SeqCst) {
                continue;
            }
            let (server, cut) = (self.clone(), self.connections.lock().expect("a lock").clone());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let server = server.clone();
                    async move { Ok::<_, Infallible>(server.handle(request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! { () = cut.cancelled() => {}, _ = connection => {} }
            });
        }
    }

    /// Away: connections are cut and refused. What was stored stays, as in etcd.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
        if down {
            self.cut();
        }
    }

    /// Old versions are gone: who resumes from them must list again.
    pub fn compact(&self) {
        let mut store = self.open();
        store.compacted = store.version;
        store.log.clear();
        drop(store);
        self.cut();
    }

    /// What is open is cut: watches, too.
    fn cut(&self) {
        std::mem::take(&mut *self.connections.lock().expect("a lock")).cancel();
    }

    /// The peer's token from now on; the one before is taken no more.
    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut self.token.lock().expect("a lock"));
        self.cut();
    }

    /// All of a kind are gone, and so are the versions that could tell of it.
    pub fn lose(&self, resource: &str) {
        let mut store = self.open();
        store.objects.retain(|(kind, _, _), _| kind != resource);
        store.version += 1;
        drop(store);
        self.compact();
    }

    /// The next requests are answered with 429.
    pub fn throttle(&self, n: u64) {
        self.throttle.store(n, Ordering::SeqCst);
    }

    /// So many lists are compacted away before their second page is asked for.
    pub fn expire(&self, n: u64) {
        self.expired.store(n, Ordering::SeqCst);
    }

    /// An API group that has these resources from now on.
    pub fn add_group(&self, group: (&str, &str), resources: &[&str]) {
        let named = resources.iter().map(|r| (*r).to_owned()).collect();
        self.open().groups.insert((group.0.to_owned(), group.1.to_owned()), named);
    }

    /// Its definitions were deleted.
    pub fn drop_group(&self, group: &str) {
        self.open().groups.retain(|(name, _), _| name != group);
    }

    /// What the peer asked for.
    pub fn asked(&self) -> BTreeSet<(String, String, String)> {
        self.open().asked.clone()
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        let query = query(parts.uri.query());
        let token = parts.headers.get("authorization").and_then(|v| v.to_str().ok()?.strip_prefix("Bearer "));
        let peer = token.is_some_and(|t| t == *self.token.lock().expect("a lock"));
        if !peer && token != Some("admin") {
            self.strangers.fetch_add(1, Ordering::SeqCst);
            return status(401, "Unauthorized", "", "Unauthorized");
        }
        if peer
            && self.throttle.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        {
            self.throttled.fetch_add(1, Ordering::SeqCst);
            let response = Response::builder().status(429).header("retry-after", "1");
            return response.body(full("Too many requests, please try again later.\n")).expect("a response");
        }
        let Some(target) = target(parts.uri.path()).filter(|t| !t.resource.is_empty()) else {
            return self.discovery(parts.uri.path());
        };
        let watch = query.get("watch").is_some_and(|w| w == "true" || w == "1");
        if peer {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.pulses.fetch_add(u64::from(query.get("limit").is_some_and(|l| l == "1")), Ordering::SeqCst);
            let verb = match (&parts.method, target.name.is_empty()) {
                (&Method::GET, true) if watch => "watch",
                (&Method::GET, true) => "list",
                (&Method::GET, false) => "get",
                (&Method::POST, _) => "create",
                (&Method::PATCH, _) => "patch",
                (&Method::DELETE, _) => "delete",
                _ => "update",
            };
            let resource = if target.sub.is_empty() {
                target.resource.clone()
            } else {
                format!("{}/{}", target.resource, target.sub)
            };
            self.open().asked.insert((verb.into(), target.group.clone(), resource));
        }
        if self.undefined(&target) {
            return no_page();
        }
        match (parts.method, target.name.is_empty()) {
            (Method::GET, true) if watch => self.watch(target, &query),
            (Method::GET, true) => self.list(&target, &query),
            (Method::GET, false) if target.sub == "log" => self.log(&target, &query).await,
            (Method::GET, false) => self.get(&target),
            (Method::POST, _) if target.sub == "binding" => self.bind(&target, &body),
            (Method::POST, true) => self.create(target, &body),
            (Method::PATCH, false) => self.patch(&target, &body),
            (Method::DELETE, false) => self.delete(&target, &body, &query),
            _ => status(405, "MethodNotAllowed", "", "not here"),
        }
    }

    fn discovery(&self, path: &str) -> Response<Body> {
        let path = path.trim_matches('/').strip_prefix("apis/").unwrap_or_default();
        let (group, version) = path.split_once('/').unwrap_or((path, ""));
        let store = self.open();
        let Some(((_, there), resources)) =
            store.groups.iter().find(|((g, v), _)| g == group && (version.is_empty() || v == version))
        else {
            return no_page();
        };
        let of = format!("{group}/{there}");
        if version.is_empty() {
            let version = json!({ "groupVersion": of, "version": there });
            return answer(
                200,
                &json!({ "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [version],
                    "preferredVersion": version }),
            );
        }
        let all: Vec<Value> = resources
            .iter()
            .map(|r| json!({ "name": r, "singularName": "", "namespaced": true, "kind": kind_of(r), "verbs": ["create"] }))
            .collect();
        answer(
            200,
            &json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": of, "resources": all }),
        )
    }

    /// A resource that no definition of this cluster has.
    fn undefined(&self, target: &Target) -> bool {
        let built_in = ["", "batch"].contains(&target.group.as_str());
        let named = |((group, _), resources): (&(String, String), &BTreeSet<String>)| {
            *group == target.group && resources.contains(&target.resource)
        };
        !built_in && !self.open().groups.iter().any(named)
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> Response<Body> {
        let store = self.open();
        let after = query.get("continue").cloned().unwrap_or_default();
        if !after.is_empty() {
            let gone = self.expired.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if gone.is_ok() {
                return status(410, "Expired", "", "The provided continue parameter is too old");
            }
            self.pages.fetch_add(1, Ordering::SeqCst);
        }
        let limit = query.get("limit").and_then(|l| l.parse().ok()).unwrap_or(usize::MAX);
        let all = store.objects.iter().filter(|((resource, namespace, _), o)| {
            *resource == target.resource
                && (target.namespace.is_empty() || *namespace == target.namespace)
                && selected(o, query)
        });
        // Not after a version's end: what a token names is a place in the order of names.
        let rest: Vec<_> = all.filter(|((_, ns, name), _)| format!("{ns}/{name}") > after).collect();
        let items: Vec<&Value> = rest.iter().take(limit).map(|(_, o)| *o).collect();
        let next = (rest.len() > limit).then(|| rest.get(limit - 1)).flatten();
        let next = next.map(|((_, ns, name), _)| format!("{ns}/{name}")).unwrap_or_default();
        let kind = format!("{}List", kind_of(&target.resource));
        answer(
            200,
            &json!({ "kind": kind, "apiVersion": "v1", "items": items,
                "metadata": { "resourceVersion": store.version.max(1).to_string(), "continue": next } }),
        )
    }

    fn get(&self, target: &Target) -> Response<Body> {
        match self.open().objects.get(&key(target)) {
            Some(object) => answer(200, object),
            None => missing(target),
        }
    }

    fn create(&self, target: Target, body: &[u8]) -> Response<Body> {
        let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
            return status(400, "BadRequest", "", "not JSON");
        };
        let mut store = self.open();
        store.uids += 1;
        if object["metadata"]["name"].as_str().is_none_or(str::is_empty) {
            let head = object["metadata"]["generateName"].as_str().unwrap_or("x-").to_owned();
            object["metadata"]["name"] = format!("{head}{:05x}", store.uids).into();
        }
        let target =
            Target { name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(), ..target };
        if store.objects.contains_key(&key(&target)) {
            let message = format!("{} \"{}\" already exists", target.resource, target.name);
            return status(409, "AlreadyExists", &target.name, &message);
        }
        // As a real one validates what may not be wrong here.
        if target.resource == "jobs" && !object["spec"]["template"]["spec"]["containers"].is_array() {
            return status(422, "Invalid", &target.name, "spec.template.spec.containers: Required value");
        }
        object["metadata"]["uid"] = format!("uid-{:06}", store.uids).into();
        object["metadata"]["namespace"] = target.namespace.clone().into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        if let Some(texts) = object.as_object_mut().expect("an object").remove("stringData") {
            for (name, text) in texts.as_object().into_iter().flatten() {
                let bytes = text.as_str().unwrap_or_default().as_bytes();
                object["data"][name] = data_encoding::BASE64.encode(bytes).into();
            }
        }
        if !["nodes", "secrets", "events"].contains(&target.resource.as_str()) {
            object["status"] = json!({});
        }
        if target.resource == "pods" {
            object["status"] = json!({ "phase": "Pending" });
        }
        let object = self.put(&mut store, target, object, "ADDED");
        answer(201, &object)
    }

    fn put(&self, store: &mut Store, target: Target, mut object: Value, kind: &'static str) -> Value {
        store.version += 1;
        object["metadata"]["resourceVersion"] = store.version.to_string().into();
        if kind == "DELETED" {
            store.objects.remove(&key(&target));
        } else {
            store.objects.insert(key(&target), object.clone());
        }
        let version = store.version;
        store.log.push(Record { version, kind, target, object: object.clone() });
        self.changed.notify_waiters();
        object
    }

    fn patch(&self, target: &Target, body: &[u8]) -> Response<Body> {
        let Ok(mut patch) = serde_json::from_slice::<Value>(body) else {
            return status(400, "BadRequest", "", "not JSON");
        };
        let mut store = self.open();
        let Some(old) = store.objects.get(&key(target)).cloned() else { return missing(target) };
        let meta = &mut patch["metadata"];
        for field in ["uid", "resourceVersion"] {
            if let Some(wanted) = meta.as_object_mut().and_then(|m| m.remove(field))
                && wanted != old["metadata"][field]
            {
                return status(409, "Conflict", &target.name, "the object has been modified");
            }
        }
        if patch["metadata"].is_null() {
            patch.as_object_mut().expect("an object").remove("metadata");
        }
        let mut new = old.clone();
        if target.sub == "status" {
            merge(&mut new["status"], &patch["status"]);
        } else {
            patch.as_object_mut().expect("an object").remove("status");
            merge(&mut new, &patch);
        }
        if new == old {
            return answer(200, &old);
        }
        let bare = new["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let going = new["metadata"]["deletionTimestamp"].is_string() && target.resource != "pods";
        let kind = if bare && going { "DELETED" } else { "MODIFIED" };
        answer(200, &self.put(&mut store, target.clone(), new, kind))
    }

    fn delete(&self, target: &Target, body: &[u8], query: &BTreeMap<String, String>) -> Response<Body> {
        let options: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut store = self.open();
        let Some(old) = store.objects.get(&key(target)).cloned() else { return missing(target) };
        let uid = &options["preconditions"]["uid"];
        if uid.is_string() && *uid != old["metadata"]["uid"] {
            return status(409, "Conflict", &target.name, "the UID in the precondition does not match");
        }
        let now =
            query.get("gracePeriodSeconds").is_some_and(|g| g == "0") || options["gracePeriodSeconds"] == 0;
        let first = options["propagationPolicy"] == "Foreground";
        let finalizers = first || old["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        // A pod on a node goes when its kubelet says so.
        let graceful = target.resource == "pods" && old["spec"]["nodeName"].is_string() && !now;
        let mut new = old.clone();
        if graceful || finalizers {
            if new["metadata"]["deletionTimestamp"].is_string() {
                return answer(200, &new);
            }
            new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            if first {
                let mut all = new["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                all.push(FOREGROUND.into());
                new["metadata"]["finalizers"] = all.into();
            }
            return answer(200, &self.put(&mut store, target.clone(), new, "MODIFIED"));
        }
        answer(200, &self.put(&mut store, target.clone(), new, "DELETED"))
    }

    fn bind(&self, target: &Target, body: &[u8]) -> Response<Body> {
        let wish: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut store = self.open();
        let Some(mut pod) = store.objects.get(&key(target)).cloned() else { return missing(target) };
        if pod["spec"]["nodeName"].is_string() {
            return status(409, "Conflict", &target.name, "is already assigned to a node");
        }
        pod["spec"]["nodeName"] = wish["target"]["name"].clone();
        pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "True" }]);
        self.put(&mut store, target.clone(), pod, "MODIFIED");
        answer(201, &json!({ "kind": "Status", "status": "Success" }))
    }

    fn watch(self: Arc<Self>, target: Target, query: &BTreeMap<String, String>) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let (sender, receiver) = mpsc::channel::<Value>(256);
        let query = query.clone();
        tokio::spawn(async move {
            let mut at = from;
            let mut quiet = 0;
            loop {
                let changed = self.changed.notified();
                let (found, version, gone) = {
                    let store = self.open();
                    let wanted = |r: &&Record| {
                        r.version > at
                            && r.target.resource == target.resource
                            && (target.namespace.is_empty() || r.target.namespace == target.namespace)
                            && selected(&r.object, &query)
                    };
                    let found: Vec<Record> = store.log.iter().filter(wanted).cloned().collect();
                    (found, store.version, at < store.compacted)
                };
                if gone {
                    let object = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" });
                    let _ = sender.send(json!({ "type": "ERROR", "object": object })).await;
                    return;
                }
                at = at.max(version);
                for record in found {
                    if sender.send(json!({ "type": record.kind, "object": record.object })).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    () = changed => {}
                    () = sender.closed() => return,
                    () = self.stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(500)) => quiet += 1,
                }
                if quiet == 4 {
                    quiet = 0;
                    let object = json!({ "kind": kind_of(&target.resource), "metadata": { "resourceVersion": at.to_string() } });
                    if sender.send(json!({ "type": "BOOKMARK", "object": object })).await.is_err() {
                        return;
                    }
                }
            }
        });
        Response::builder().status(200).body(stream(receiver)).expect("a response")
    }

    async fn log(self: Arc<Self>, target: &Target, query: &BTreeMap<String, String>) -> Response<Body> {
        let Some(pod) = self.open().objects.get(&key(target)).cloned() else { return missing(target) };
        let file = self.logs.join(pod["metadata"]["uid"].as_str().unwrap_or_default());
        let follow = query.get("follow").is_some_and(|f| f == "true");
        // Whole seconds only, as there.
        let since =
            query.get("sinceTime").map(|t| t.chars().take(19).collect::<String>()).unwrap_or_default();
        let (sender, receiver) = mpsc::channel::<Bytes>(64);
        let target = target.clone();
        tokio::spawn(async move {
            let mut at = 0;
            loop {
                let over = {
                    let store = self.open();
                    let pod = store.objects.get(&key(&target));
                    pod.is_none_or(|p| p["status"]["containerStatuses"][0]["state"]["terminated"].is_object())
                };
                let all = std::fs::read(&file).unwrap_or_default();
                let end = all.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
                for line in all.get(at..end).unwrap_or_default().split_inclusive(|b| *b == b'\n') {
                    let second: Vec<u8> = line.iter().take(19).copied().collect();
                    if *String::from_utf8_lossy(&second) < *since {
                        continue;
                    }
                    if sender.send(Bytes::copy_from_slice(line)).await.is_err() {
                        return;
                    }
                }
                at = at.max(end);
                if over || !follow {
                    return;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
            }
        });
        let frames = futures::stream::unfold(receiver, |mut r| async move {
            r.recv().await.map(|b| (Ok::<_, std::io::Error>(Frame::data(b)), r))
        });
        Response::builder()
            .status(200)
            .body(BodyExt::boxed_unsync(StreamBody::new(frames)))
            .expect("a response")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn stream(receiver: mpsc::Receiver<Value>) -> Body {
    let frames = futures::stream::unfold(receiver, |mut r| async move {
        let value = r.recv().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(format!("{value}\n")))), r))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn key(target: &Target) -> (String, String, String) {
    (target.resource.clone(), target.namespace.clone(), target.name.clone())
}

fn missing(target: &Target) -> Response<Body> {
    let message = format!("{} \"{}\" not found", target.resource, target.name);
    status(404, "NotFound", &target.name, &message)
}
