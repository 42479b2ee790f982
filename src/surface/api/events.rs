//! `GET /v1/events`: what happens at this peer, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::input::Q;
use super::{Api, ApiResult, resolve};
use crate::base::JobId;
use crate::surface::documents::{EventDocument, wall_now};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    job: Option<String>,
    kind: Option<String>,
}

struct Watch {
    events: Receiver<crate::core::api::Event>,
    job: Option<JobId>,
    kind: Option<String>,
    _permit: OwnedSemaphorePermit,
}

/// Events from now on; `job` and `kind` (a prefix such as `job.`) choose some. A reader that is too
/// slow gets a `lagged` event with the number it missed.
pub async fn events(State(api): State<Api>, Q(query): Q<EventQuery>) -> ApiResult<Response> {
    let permit = api.limits.stream()?;
    let events = api.handle.events();
    let job = match &query.job {
        Some(text) => Some(resolve::resolve(&api, text).await?),
        None => None,
    };
    let watch = Watch { events, job, kind: query.kind, _permit: permit };
    let stream = futures::stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((Ok::<_, Infallible>(event), watch))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response())
}

impl Watch {
    fn wants(&self, event: &crate::core::api::Event) -> bool {
        self.job.is_none_or(|job| event.job == Some(job))
            && self.kind.as_ref().is_none_or(|kind| event.kind.starts_with(kind.as_str()))
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            let document = match self.events.recv().await {
                Ok(event) if !self.wants(&event) => continue,
                Ok(event) => {
                    let trace = event.trace.map(|t| t.to_string());
                    EventDocument {
                        kind: event.kind,
                        job: event.job,
                        trace,
                        text: event.text,
                        at_ms: wall_now().0,
                    }
                }
                Err(RecvError::Lagged(missed)) => EventDocument {
                    kind: "lagged".into(),
                    job: None,
                    trace: None,
                    text: format!("{missed} events were missed: read slower ones from /v1/jobs"),
                    at_ms: wall_now().0,
                },
                Err(RecvError::Closed) => return None,
            };
            // A kind with a line break would end the event's head: such a name is left out.
            let event = Event::default().data(serde_json::to_string(&document).unwrap_or_default());
            let plain = !document.kind.contains(['\n', '\r']);
            return Some(if plain { event.event(document.kind) } else { event });
        }
    }
}
