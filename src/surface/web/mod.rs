//! The page: the same on every peer, rendered there from what that peer knows, with the age of every figure.
//!
//! HTML comes whole from the server; one plain script follows links without reloading, asks again when
//! `/page/live` says that something changed, and sends the API's own calls. No build step, nothing from elsewhere
//! (the content security policy forbids it). Who may act: `guard`.

mod cluster;
mod events;
pub(crate) mod guard;
mod html;
mod incidents;
mod job;
mod jobs;
mod links;
mod live;
mod memory;
mod overview;
mod ring;
pub(crate) mod waterfall;

#[cfg(test)]
mod seen_tests;
#[cfg(test)]
mod tests;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

pub use memory::{Memory, watch};

use super::api::{Api, ApiError};
use html::esc;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
const ICON: &str = include_str!("icon.svg");

/// Nothing from elsewhere, nothing inline, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Views in the order of the menu: address, name.
const VIEWS: [(&str, &str); 6] = [
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/clusters", "Clusters"),
    ("/links", "Links"),
    ("/ring", "Ring"),
    ("/events", "Events"),
];

/// The page's routes, beside the API's.
pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(overview::overview))
        .route("/jobs", get(jobs::jobs))
        .route("/jobs/{id}", get(job::job))
        .route("/clusters", get(cluster::clusters))
        .route("/clusters/{name}", get(cluster::cluster))
        .route("/links", get(links::links))
        .route("/ring", get(ring::ring))
        .route("/events", get(events::events))
        .route("/page/live", get(live::live))
        .route("/page/style.css", get(|| async { asset("/page/style.css") }))
        .route("/page/script.js", get(|| async { asset("/page/script.js") }))
        .route("/page/icon.svg", get(|| async { asset("/page/icon.svg") }))
        .route("/favicon.ico", get(|| async { asset("/page/icon.svg") }))
        .layer(axum::middleware::map_response(sealed))
}

fn asset(path: &str) -> Response {
    let (kind, text) = match path {
        "/page/style.css" => ("text/css; charset=utf-8", STYLE),
        "/page/script.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "/page/icon.svg" | "/favicon.ico" => ("image/svg+xml", ICON),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let head = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
    (head, text).into_response()
}

/// What every answer of the page carries.
async fn sealed(mut response: Response) -> Response {
    seal(response.headers_mut());
    response
}

fn seal(headers: &mut HeaderMap) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// What a browser gets that has shown no token yet: the same for every address of the page, with nothing of the mesh
/// in it, and the script that asks for the token. None for every other request.
pub(crate) fn before_token(request: &Request<hyper::body::Incoming>) -> Option<Response> {
    if request.method() != Method::GET {
        return None;
    }
    let path = request.uri().path();
    let mut response = match path {
        "/page/style.css" | "/page/script.js" | "/page/icon.svg" | "/favicon.ico" => asset(path),
        _ => {
            let wants = request.headers().get(header::ACCEPT).and_then(|v| v.to_str().ok());
            let of_the_page = VIEWS.iter().any(|(view, _)| *view == path)
                || ["/jobs/", "/clusters/"].iter().any(|start| path.starts_with(start));
            if !of_the_page || !wants.is_some_and(|kinds| kinds.contains("text/html")) {
                return None;
            }
            ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], shell()).into_response()
        }
    };
    seal(response.headers_mut());
    Some(response)
}

fn document(title: &str, body_flags: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=en>\n<head><meta charset=utf-8><title>{}</title>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\"><meta name=referrer content=no-referrer>\
         <link rel=icon href=\"/page/icon.svg\" type=\"image/svg+xml\"><link rel=stylesheet href=\"/page/style.css\">\
         <script src=\"/page/script.js\" defer></script></head>\n<body{body_flags}>{body}</body></html>\n",
        esc(title)
    )
}

fn shell() -> String {
    let body = "<main id=main><section class=\"panel signin\"><h1>Starling</h1>\
        <p id=wait class=soft>One moment…</p>\
        <noscript><p>This page needs its script, which is served by this very peer, to send the token. Without it: the \
        command line, or the unix socket, which needs no token.</p></noscript>\
        <form id=signin hidden><p>This address needs the peer's token: the text of <code>api.token</code> in its state \
        folder. <code>starling page</code> there prints a link that carries it.</p>\
        <p id=why class=late role=alert></p>\
        <p><label for=token>Token</label></p><p><input id=token type=password autocomplete=off required size=40></p>\
        <p><label><input id=remember type=checkbox> Remember in this browser</label></p>\
        <p><button class=main>Sign in</button></p></form></section></main>";
    document("Starling", " data-shell", body)
}

/// One view, ready to be shown.
pub(crate) struct Page {
    /// In the window's title.
    pub title: String,
    /// The view in the menu that it belongs to.
    pub menu: &'static str,
    /// What of `/page/live` makes it ask again.
    pub live: &'static str,
    /// The content of `main`, HTML.
    pub body: String,
}

impl Page {
    fn respond(self, api: &Api) -> Response {
        self.respond_as(api, StatusCode::OK)
    }

    fn respond_as(self, api: &Api, status: StatusCode) -> Response {
        let about = api.handle.about();
        let mut nav = String::new();
        for (path, name) in VIEWS {
            let here = if path == self.menu { " aria-current=page" } else { "" };
            nav.push_str(&format!("<a href=\"{path}\"{here}>{name}</a>"));
        }
        let mesh: String = about.mesh.chars().take(8).collect();
        let body = format!(
            "<a class=skip href=\"#main\">To the content</a>\
             <header class=top><a class=brand href=\"/\" aria-label=\"Starling, overview\">{ICON}<span>Starling</span></a>\
             <nav aria-label=Views>{nav}</nav>\
             <div class=who><span>peer {}<span class=mesh> · mesh {}</span></span>\
             <span id=live class=live role=status>…</span><button id=theme type=button>auto</button></div></header>\
             <main id=main tabindex=-1 data-view=\"{}\" data-live=\"{}\">{}\
             <p class=foot>As peer {} saw it at {}. Every peer has this page and shows the same. Keys: <kbd>?</kbd></p></main>\
             {DIALOGS}<div id=toast role=status></div>",
            esc(about.name.as_str()),
            esc(&mesh),
            esc(&self.title),
            self.live,
            self.body,
            esc(about.name.as_str()),
            html::clock(crate::surface::documents::wall_now().0),
        );
        let text = document(&format!("{} · Starling {}", self.title, about.name), "", &body);
        (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
    }
}

const DIALOGS: &str = "<dialog id=ask aria-labelledby=ask-title><form method=dialog><h2 id=ask-title></h2><p id=ask-text></p>\
    <p><select id=ask-choice aria-label=\"To which cluster\" hidden></select></p>\
    <div class=acts><button value=no>Leave it</button><button id=ask-go class=main value=go>Do it</button></div></form></dialog>\
    <dialog id=keys aria-labelledby=keys-title><form method=dialog><h2 id=keys-title>Keys</h2><table>\
    <tr><td><kbd>g</kbd> then <kbd>o</kbd> <kbd>j</kbd> <kbd>c</kbd> <kbd>l</kbd> <kbd>r</kbd> <kbd>e</kbd></td><td>go to overview, jobs, clusters, links, ring, events</td></tr>\
    <tr><td><kbd>/</kbd></td><td>search</td></tr><tr><td><kbd>j</kbd> <kbd>k</kbd> <kbd>Enter</kbd></td><td>down, up, open</td></tr>\
    <tr><td><kbd>n</kbd> <kbd>p</kbd></td><td>next, previous page</td></tr></table><div class=acts><button class=main>Close</button></div></form></dialog>";

/// A view that could not be made says why, as a page.
fn failed(api: &Api, menu: &'static str, error: ApiError) -> Response {
    let what = esc(&error.to_string());
    let status = error.into_response().status();
    let body = format!(
        "<section class=panel><h1>Cannot show this</h1><p class=says>{what}</p><p>This page asks again by itself.</p></section>"
    );
    Page { title: "Cannot show this".into(), menu, live: "tick", body }.respond_as(api, status)
}

/// A page or its error as one.
fn answer(api: &Api, menu: &'static str, page: Result<Page, ApiError>) -> Response {
    match page {
        Ok(page) => page.respond(api),
        Err(error) => failed(api, menu, error),
    }
}

/// The clusters as this peer sees them, by name.
async fn clusters(api: &Api) -> crate::surface::documents::ClusterList {
    crate::surface::api::mesh::clusters(State(api.clone())).await.0
}

/// The jobs of the mesh, perhaps those of a moment ago, and how old they are in milliseconds.
async fn job_list(api: &Api) -> Result<(std::sync::Arc<crate::surface::documents::JobList>, u64), ApiError> {
    use crate::surface::api::resolve;
    let mut held = api.memory.jobs.lock().await;
    if let Some(listed) = held.as_ref().filter(|l| l.is_fresh()) {
        return Ok((listed.list.clone(), elapsed(listed.at)));
    }
    let at = tokio::time::Instant::now();
    let filter = crate::core::api::JobFilter { limit: resolve::LIST_MAX, ..Default::default() };
    let list = std::sync::Arc::new(resolve::list(api, &filter).await?);
    *held = Some(memory::Listed { list: list.clone(), at, took: at.elapsed() });
    Ok((list, elapsed(at)))
}

fn elapsed(at: tokio::time::Instant) -> u64 {
    u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// How old the reports are that figures of these clusters are from, and how many have told nothing.
fn told<'a>(clusters: impl IntoIterator<Item = &'a crate::surface::documents::ClusterDocument>) -> String {
    let ages: Vec<Option<u64>> = clusters.into_iter().map(|c| c.age_ms).collect();
    let known = || ages.iter().flatten().copied();
    let (Some(newest), Some(oldest)) = (known().min(), known().max()) else {
        return "nothing was told yet".into();
    };
    let mut out = format!("told {}", html::ago(newest));
    if html::brief(newest) != html::brief(oldest) {
        out.push_str(&format!(" to {}", html::ago(oldest)));
    }
    match ages.iter().filter(|age| age.is_none()).count() {
        0 => out,
        n => out + &format!(", nothing yet by {n}"),
    }
}

/// What was asked for this very page.
fn asked_now() -> String {
    format!("asked {}", html::ago(0))
}

const ALONE: &str = "<div class=\"notice bad\" role=alert><b>This peer reaches no other.</b> What it shows of them is old; \
    ask a peer on the other side.</div>";

/// The same on views that do not name all peers; nothing where it reaches some.
fn alone(api: &Api) -> &'static str {
    if api.handle.view().isolated { ALONE } else { "" }
}

/// Who is not in these figures, as a notice; what is said when all are.
fn notice(list: &crate::surface::documents::ClusterList) -> String {
    if list.isolated {
        return ALONE.into();
    }
    let dark: Vec<_> = list.clusters.iter().filter(|c| c.liveness != "alive").collect();
    let oldest = list.clusters.iter().filter_map(|c| c.age_ms).max();
    if dark.is_empty() {
        return match list.clusters.len() {
            1 => "<div class=notice>A mesh of one peer: nothing can be hidden from it.</div>".into(),
            n => format!(
                "<div class=notice>Sees all {n} peers. The oldest report last changed {}.</div>",
                oldest.map_or_else(|| "at an unknown time".into(), html::ago)
            ),
        };
    }
    let items: String = dark
        .iter()
        .map(|c| {
            let heard =
                c.age_ms.map_or_else(|| "never heard".into(), |ms| format!("last news {}", html::ago(ms)));
            let name = esc(c.name.as_str());
            format!("<li><a href=\"/clusters/{name}\">{name}</a> {}, {heard}</li>", html::word(&c.liveness))
        })
        .collect();
    let lost = dark.iter().any(|c| c.liveness == "lost");
    let class = if lost { "bad" } else { "warn" };
    format!(
        "<div class=\"notice {class}\" role=alert><b>Cannot see {} of {} peers.</b> Their figures are those of then, and \
         their GPUs count as down.<ul>{items}</ul></div>",
        dark.len(),
        list.clusters.len()
    )
}

/// A sentence.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.is_empty() || text.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    first + chars.as_str() + end
}

/// Of whom the job list has nothing.
fn unanswered(list: &crate::surface::documents::JobList) -> String {
    if list.unanswered.is_empty() {
        return String::new();
    }
    let names: Vec<String> = list.unanswered.iter().map(|n| esc(n.as_str())).collect();
    format!(
        "<div class=\"notice warn\">{} did not answer. A job is shown as long as one of its homes answers, so some may be \
         missing or a moment old.</div>",
        names.join(", ")
    )
}

/// Only for the types of handlers.
pub(crate) type Answer = Response<Body>;
