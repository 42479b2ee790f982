//! `reserve`, `reservations`, `unreserve`: GPUs kept for a tenant for a time.

use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde_json::{Value, json};

use super::exit;
use super::output::{Style, Table, brief, plain};
use super::{Asking, CommandResult, Reply};
use crate::base::{PeerName, Span, WallTime};
use crate::model::JobState;
use crate::model::timestamp::to_rfc3339;
use crate::surface::api::escape;
use crate::surface::documents::*;

/// `starling reserve`.
#[derive(Debug, Clone, Args)]
pub struct ReserveArgs {
    /// For whom
    #[arg(long, default_value = "default")]
    pub tenant: String,
    /// GPUs in each cluster
    #[arg(long, value_name = "N")]
    pub gpus: u32,
    /// Models that will do, such as H100 or A100-80G; may be given more than once
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub gpu: Vec<String>,
    /// At this cluster; may be given more than once: at all of them
    #[arg(long, value_name = "NAME", conflicts_with = "clusters")]
    pub cluster: Vec<PeerName>,
    /// At so many clusters, which the mesh chooses; default is one
    #[arg(long, value_name = "K")]
    pub clusters: Option<u32>,
    /// From when on: now, or a date such as 2026-12-24T08:00:00Z
    #[arg(long, value_name = "TIME", default_value = "now")]
    pub from: String,
    /// How long, such as 4h or 2d
    #[arg(long = "for", value_name = "TIME")]
    pub length: Span,
    /// A name for it
    #[arg(long)]
    pub name: Option<String>,
    /// The same key gives the same reservation
    #[arg(long)]
    pub key: Option<String>,
    /// Do not wait for the clusters' answer
    #[arg(long)]
    pub no_wait: bool,
}

/// `starling reservations`.
#[derive(Debug, Clone, Args)]
pub struct ReservationsArgs {
    /// Only this one: its id, or the first 4 or more characters
    pub id: Option<String>,
    /// Also those that are over, refused or ended
    #[arg(long)]
    pub all: bool,
    /// Only of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
}

/// A peer answers within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The owner refuses what cannot be had within a minute.
const ANSWERED_WITHIN: Duration = Duration::from_secs(90);
const ASK_EVERY: Duration = Duration::from_millis(250);

fn body(args: &ReserveArgs) -> Value {
    let mut body = json!({
        "tenant": args.tenant,
        "gpus": args.gpus,
        "for": format!("{}ms", args.length.as_millis()),
        "from": args.from,
    });
    let mut put = |key: &str, value: Value| {
        if let Some(map) = body.as_object_mut() {
            map.insert(key.into(), value);
        }
    };
    if !args.gpu.is_empty() {
        put("gpu", json!(args.gpu));
    }
    if !args.cluster.is_empty() {
        put("cluster", json!(args.cluster));
    }
    if let Some(n) = args.clusters {
        put("clusters", json!(n));
    }
    if let Some(name) = &args.name {
        put("name", json!(name));
    }
    body
}

/// `starling reserve …`
pub async fn reserve(asking: &Asking, args: ReserveArgs) -> CommandResult {
    let payload = body(&args).to_string().into_bytes();
    let headers: Vec<_> = args.key.iter().map(|key| ("idempotency-key", key.clone())).collect();
    let sent = Some(("application/json", payload));
    let taken: SubmitDocument =
        asking.client.json(Method::POST, "/v1/reservations", sent, &headers, ANSWER_WITHIN).await?;
    let path = format!("/v1/reservations/{}", taken.id);
    let asked = tokio::time::Instant::now();
    let found = loop {
        let document: ReservationDocument = asking.client.get(&path).await?;
        let waits = document.state == JobState::Pending && !args.no_wait;
        if !waits || asked.elapsed() >= ANSWERED_WITHIN {
            break document;
        }
        tokio::time::sleep(ASK_EVERY).await;
    };
    let code = match found.state {
        JobState::Failed | JobState::Cancelled => exit::REFUSED,
        JobState::Pending if !args.no_wait => exit::UNKNOWN,
        _ => exit::OK,
    };
    Ok(Reply::new(&found, shown(asking.style, &found)).with_code(code))
}

/// `starling reservations [ID]`
pub async fn reservations(asking: &Asking, args: ReservationsArgs) -> CommandResult {
    if let Some(id) = args.id {
        let found: ReservationDocument =
            asking.client.get(&format!("/v1/reservations/{}", escape(&id))).await?;
        return Ok(Reply::new(&found, shown(asking.style, &found)));
    }
    let mut path = "/v1/reservations?limit=1000".to_owned();
    if !args.all {
        path.push_str("&state=pending,running");
    }
    if let Some(tenant) = &args.tenant {
        path.push_str(&format!("&tenant={}", escape(tenant)));
    }
    let list: ReservationList = asking.client.get(&path).await?;
    let style = asking.style;
    let mut table = Table::new(style, &["ID", "TENANT", "STATE", "GPUS", "AT", "FROM", "FOR", "USED"]);
    let now = wall_now().0;
    for r in &list.reservations {
        table.row(row(style, r, now));
    }
    let mut text = match list.reservations.is_empty() {
        true => "nothing is reserved: starling reserve --help\n".into(),
        false => table.render(),
    };
    if !list.unanswered.is_empty() {
        let names: Vec<&str> = list.unanswered.iter().map(PeerName::as_str).collect();
        text.push_str(&format!("{} did not answer: there may be more\n", names.join(", ")));
    }
    Ok(Reply::new(&list, text))
}

/// `starling unreserve ID`
pub async fn unreserve(asking: &Asking, id: &str) -> CommandResult {
    let path = format!("/v1/reservations/{}", escape(id));
    let found: ReservationDocument = asking.client.send(Method::DELETE, &path, None).await?;
    Ok(Reply::new(&found, shown(asking.style, &found)))
}

/// What a reservation is, by its state and the time.
fn standing(r: &ReservationDocument, now: u64) -> &'static str {
    match r.state {
        JobState::Pending | JobState::Placed => "asked",
        JobState::Running if r.part.clusters.iter().any(|c| c.lost.is_some()) => "broken",
        JobState::Running if now < r.part.from_ms => "reserved",
        JobState::Running => "active",
        JobState::Succeeded => "over",
        JobState::Failed => "refused",
        JobState::Cancelled => "ended",
    }
}

fn places(r: &ReservationDocument) -> String {
    let kept: Vec<String> = r.part.clusters.iter().map(|c| c.cluster.to_string()).collect();
    let asked: Vec<String> = r.part.asked_at.iter().map(ToString::to_string).collect();
    match (kept.is_empty(), asked.is_empty()) {
        (false, _) => kept.join(", "),
        (true, false) => asked.join(", "),
        (true, true) => format!("any {}", r.part.count),
    }
}

fn length(r: &ReservationDocument) -> String {
    brief(r.part.until_ms.saturating_sub(r.part.from_ms))
}

fn row(style: Style, r: &ReservationDocument, now: u64) -> [String; 8] {
    let used: u32 = r.part.clusters.iter().filter_map(|c| c.says.as_ref()).map(|s| s.used).sum();
    [
        r.id.short(),
        plain(&r.tenant),
        style.state(standing(r, now)),
        format!("{} {}", r.gpus, plain(&r.gpu.join(","))).trim_end().to_owned(),
        places(r),
        to_rfc3339(WallTime(r.part.from_ms)),
        length(r),
        if r.state == JobState::Running { used.to_string() } else { "-".into() },
    ]
}

fn shown(style: Style, r: &ReservationDocument) -> String {
    let now = wall_now().0;
    let mut text = String::new();
    let mut line =
        |key: &str, value: String| text.push_str(&format!("{} {value}\n", style.dim(&format!("{key:<11}"))));
    line("reservation", r.id.to_string());
    line("tenant", plain(&r.tenant));
    line("state", style.state(standing(r, now)));
    line("because", plain(&r.reason));
    let models = if r.gpu.is_empty() { "GPUs of any model".into() } else { plain(&r.gpu.join(" or ")) };
    line("GPUs", format!("{} {models} in each of {} cluster(s)", r.gpus, r.part.count));
    let (from, until) = (to_rfc3339(WallTime(r.part.from_ms)), to_rfc3339(WallTime(r.part.until_ms)));
    line("time", format!("{from} to {until}, {}", length(r)));
    for kept in &r.part.clusters {
        let says = match (&kept.lost, &kept.says) {
            (Some(why), _) => format!("could not keep it: {}", plain(why)),
            (None, None) if r.done => "kept it".into(),
            (None, None) => "has not told of it yet".into(),
            (None, Some(s)) if s.short > 0 => {
                format!("{} used, {} idle, {} are not there any more", s.used, s.idle, s.short)
            }
            (None, Some(s)) => format!("{} used, {} idle", s.used, s.idle),
        };
        line(kept.cluster.as_str(), says);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_what_is_named() {
        let args = ReserveArgs {
            tenant: "t".into(),
            gpus: 8,
            gpu: vec!["H100".into()],
            cluster: vec![PeerName::new("a").expect("a name")],
            clusters: None,
            from: "now".into(),
            length: Span::secs(60),
            name: None,
            key: None,
            no_wait: false,
        };
        let asked = body(&args);
        let same = json!({"tenant": "t", "gpus": 8, "gpu": ["H100"], "cluster": ["a"], "from": "now", "for": "60000ms"});
        assert_eq!(asked, same);
        let later =
            ReserveArgs { from: "2030-01-01T00:00:00Z".into(), cluster: vec![], clusters: Some(2), ..args };
        let asked = body(&later);
        assert_eq!((&asked["from"], &asked["clusters"]), (&json!("2030-01-01T00:00:00Z"), &json!(2)));
    }
}
