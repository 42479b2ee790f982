//! Incidents and silences.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;

use super::input::{self, Bounded, Q, Segment};
use super::limits::Caller;
use super::{Api, ApiError, ApiResult};
use crate::base::text::words;
use crate::base::{IncidentId, Span, WallTime};
use crate::model::alert::{AlertKind, Silence};
use crate::surface::documents::*;
use crate::surface::incidents;

/// Longest silence.
const SILENCE_MAX: Span = Span::secs(30 * 86_400);
/// Shortest start of an id.
const PREFIX_MIN: usize = 4;

/// `GET /v1/incidents`
pub async fn list(State(api): State<Api>) -> Json<IncidentList> {
    Json(incidents::list(&api, wall_now()).await)
}

fn resolve(api: &Api, text: &str) -> ApiResult<IncidentId> {
    let text = text.to_ascii_lowercase();
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if text.len() < PREFIX_MIN || !text.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b))
    {
        return Err(ApiError::BadRequest(format!(
            "id: not an incident's id or its first {PREFIX_MIN} or more characters"
        )));
    }
    match api.desk.named(&text).as_slice() {
        [one] => Ok(*one),
        [] => Err(ApiError::NoIncident(format!("{text} at this peer since its start"))),
        many => {
            Err(ApiError::BadRequest(format!("id: {text} begins {} incidents: give more of it", many.len())))
        }
    }
}

/// `GET /v1/incidents/{id}`
pub async fn get(State(api): State<Api>, id: Segment) -> ApiResult<Json<IncidentDocument>> {
    let id = resolve(&api, &id.0)?;
    let found = incidents::one(&api, id, wall_now()).await;
    found.map(Json).ok_or_else(|| ApiError::NoIncident(format!("{id} at this peer since its start")))
}

/// `GET /v1/silences`
pub async fn silences(State(api): State<Api>) -> Json<SilenceList> {
    Json(SilenceList { silences: api.desk.silences(wall_now()) })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SilenceBody {
    what: String,
    r#for: String,
}

/// `POST /v1/silences`: `{"what": ID | KIND | KIND:SUBJECT, "for": "2h"}`; `"0s"` ends one.
pub async fn silence(
    State(api): State<Api>,
    caller: Option<axum::Extension<Caller>>,
    body: Bounded,
) -> ApiResult<Json<SilencedDocument>> {
    let body: SilenceBody = body.json()?;
    let what = what(&api, body.what.trim())?;
    let span = input::span("for", &body.r#for, SILENCE_MAX)?;
    let now = wall_now();
    let by = caller.map_or_else(|| "an unnamed caller".to_owned(), |c| c.0.to_string());
    let until = WallTime(now.0 + span.as_millis());
    let silence = Silence { what: what.clone(), until, made: now, by: words(&by, 100) };
    api.desk.silence(&silence, now).map_err(|e| ApiError::Conflict(e.to_string()))?;
    Ok(Json(SilencedDocument { what, until_ms: until.0 }))
}

fn kinds() -> String {
    let all: Vec<&str> = AlertKind::ALL.iter().map(|k| k.as_str()).collect();
    all.join(", ")
}

/// An id or the start of one, a kind, or `kind:subject`.
fn what(api: &Api, text: &str) -> ApiResult<String> {
    let (kind, subject) = text.split_once(':').map_or((text, None), |(kind, subject)| (kind, Some(subject)));
    match (AlertKind::named(kind), subject) {
        (Some(_), None) => Ok(text.to_owned()),
        (Some(_), Some(subject)) => {
            let plain =
                (1..=130).contains(&subject.chars().count()) && !subject.chars().any(char::is_control);
            let wrong =
                || ApiError::BadRequest("what: no subject of 1 to 130 characters after the ':'".into());
            plain.then(|| text.to_owned()).ok_or_else(wrong)
        }
        (None, None) => resolve(api, text).map(|id| id.to_string()).map_err(|e| match e {
            ApiError::BadRequest(why) => {
                ApiError::BadRequest(format!("what: {why}; nor a kind: {}", kinds()))
            }
            ApiError::NoIncident(why) => {
                ApiError::NoIncident(format!("{why}; nor is that a kind: {}", kinds()))
            }
            other => other,
        }),
        (None, Some(_)) => {
            Err(ApiError::BadRequest(format!("what: no kind before the ':'; there are {}", kinds())))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TouchedQuery {
    cluster: String,
    #[serde(default)]
    since: u64,
}

/// `GET /v1/local/touched`
pub async fn touched(State(api): State<Api>, Q(query): Q<TouchedQuery>) -> ApiResult<Json<TouchedList>> {
    let cluster = input::peer(&query.cluster)?;
    incidents::jobs::here(&api, &cluster, WallTime(query.since)).await.map(Json)
}

/// `GET /v1/local/config`
pub async fn config(State(api): State<Api>) -> Json<ConfigDocument> {
    let settings = api.handle.settings();
    Json(ConfigDocument { peer: api.handle.about().name, toml: settings.config })
}
