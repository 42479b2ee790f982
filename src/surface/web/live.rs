//! `GET /page/live`: says what kind of thing has changed, as server-sent events. The page then asks again for what
//! it shows; so a missed line costs a moment, never a wrong figure.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::model::report::View;
use crate::surface::api::{Api, ApiResult};

/// Changes are gathered for this long, so that a storm of them is one line.
const GATHER: Duration = Duration::from_millis(250);
/// What the mesh holds elsewhere makes no events here: it is looked at again this often.
const TICK: Duration = Duration::from_secs(2);

struct Watch {
    api: Api,
    events: Receiver<crate::core::api::Event>,
    seen: u64,
    ticks: tokio::time::Interval,
    _permit: OwnedSemaphorePermit,
}

/// The stream.
pub async fn live(State(api): State<Api>) -> ApiResult<Response> {
    let permit = api.limits.stream()?;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (events, seen) = (api.handle.journal(), print_of(&api.handle.view()));
    let watch = Watch { api, events, seen, ticks, _permit: permit };
    let stream = futures::stream::unfold(watch, |mut watch| async move {
        let topics = watch.next().await?;
        let event = Event::default().event("changed").data(json!({ "topics": topics }).to_string());
        Some((Ok::<_, Infallible>(event), watch))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response())
}

impl Watch {
    /// The topics that changed; none when the peer ends.
    async fn next(&mut self) -> Option<BTreeSet<&'static str>> {
        let mut topics = BTreeSet::new();
        tokio::select! {
            _ = self.ticks.tick() => { topics.insert("tick"); }
            event = self.events.recv() => topics.extend(topics_of(event)?),
        }
        tokio::time::sleep(GATHER).await;
        loop {
            match self.events.try_recv() {
                Ok(event) => topics.extend(topics_of(Ok(event))?),
                Err(tokio::sync::broadcast::error::TryRecvError::Lagged(_)) => {
                    topics.extend(["jobs", "events"]);
                }
                Err(_) => break,
            }
        }
        let print = print_of(&self.api.handle.view());
        if print != self.seen {
            self.seen = print;
            topics.insert("view");
        }
        Some(topics)
    }
}

fn topics_of(event: Result<crate::core::api::Event, RecvError>) -> Option<Vec<&'static str>> {
    match event {
        Ok(event) if event.job.is_some() => Some(vec!["jobs", "events"]),
        Ok(_) => Some(vec!["events"]),
        Err(RecvError::Lagged(_)) => Some(vec!["jobs", "events"]),
        Err(RecvError::Closed) => None,
    }
}

/// Of what a person would notice in a view: who is alive, what is free, what runs and waits.
fn print_of(view: &View) -> u64 {
    let mut hash = DefaultHasher::new();
    view.isolated.hash(&mut hash);
    for member in view.members.values() {
        (&member.peer, member.liveness.as_str(), member.draining).hash(&mut hash);
        if let Some(queue) = member.report.as_ref().and_then(|r| r.queue.as_ref()) {
            (&queue.gpus_free, &queue.gpus_total, &queue.gpus_reserved).hash(&mut hash);
            (queue.running, queue.queued, &queue.closed).hash(&mut hash);
        }
    }
    hash.finish()
}
