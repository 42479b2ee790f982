//! `GET /v1/jobs/{id}/trace`: a job's trace as one tree.
//!
//! The record tells the outline: the waits, the attempts, their runs and the moves between them, for as long as the
//! record is there. The peers' own event logs fill it in: who was asked, what was granted, when the program was told to
//! start. Who does not answer is named, and the outline stands all the same.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;

use super::input::Segment;
use super::{Api, ApiResult, history, resolve};
use crate::base::{Epoch, JobId, PeerName, WallTime};
use crate::model::JobRecord;
use crate::model::trace::{self, SpanNote};
use crate::runtime::eventlog::{HistoryFilter, QUERY_MAX};
use crate::surface::documents::{HistoryList, SpanDocument, TraceDocument, wall_now};

/// Spans of one trace at most; of a job with more the oldest are left out.
const SPANS_MAX: usize = 5_000;

/// The route.
pub async fn get(State(api): State<Api>, id: Segment) -> ApiResult<Json<TraceDocument>> {
    let job = resolve::resolve(&api, &id.0).await?;
    let record = resolve::get(&api, job).await?;
    Ok(Json(of(&api, &record, QUERY_MAX).await))
}

/// The trace of a record, with the peers' parts: of their newest `limit` events.
pub async fn of(api: &Api, record: &JobRecord, limit: usize) -> TraceDocument {
    let job = record.id();
    // Clocks of two machines may differ by a little.
    let since_ms = record.submitted_at.0.saturating_sub(60_000);
    let filter = HistoryFilter { job: Some(job), since_ms, limit, ..HistoryFilter::default() };
    let heard = history::everywhere(api, filter).await.unwrap_or_else(|error| {
        // Without events there is still the record.
        tracing::warn!(%job, trace = %record.trace, "a trace without events: {error}");
        HistoryList { events: Vec::new(), unanswered: vec![api.handle.about().name] }
    });
    let truncated = heard.events.len() >= limit;
    TraceDocument { truncated, ..assemble(record, heard, wall_now()) }
}

/// A span with who said it; open while it goes on.
struct Said {
    note: SpanNote,
    open: bool,
    peer: Option<PeerName>,
}

/// Puts record and events together.
pub fn assemble(record: &JobRecord, heard: HistoryList, now: WallTime) -> TraceDocument {
    let (job, done) = (record.id(), record.state.is_final());
    let end = record.finished_at.filter(|_| done).unwrap_or(now.max(record.submitted_at));
    let mut spans: BTreeMap<_, Said> = BTreeMap::new();
    let mut add = |said: Said, replace: bool| {
        let id = said.note.id(&record.trace, &job);
        if spans.len() < SPANS_MAX && (replace || !spans.contains_key(&id)) {
            spans.insert(id, said);
        }
    };
    // What the record says is so; of the rest the first who said it.
    for said in outline(record, end) {
        add(said, true);
    }
    for event in &heard.events {
        for note in &event.entry.spans {
            let mine = event.entry.trace.as_deref() == Some(record.trace.to_string().as_str());
            // The outline does not know when the cluster told its backend: its start is the rougher one.
            let finer = note.name == trace::START;
            if mine || event.entry.trace.is_none() {
                add(Said { note: note.clone(), open: false, peer: Some(event.peer.clone()) }, finer);
            }
        }
    }
    let spans = tree(record, &job, spans);
    let mut events = heard.events;
    events.reverse();
    for event in &mut events {
        event.entry.spans.clear();
    }
    TraceDocument {
        id: job,
        name: record.spec.name.clone(),
        trace: record.trace.to_string(),
        state: record.state,
        reason: record.reason.clone(),
        from_ms: record.submitted_at.0,
        to_ms: end.0,
        done,
        spans,
        events,
        truncated: false,
        unanswered: heard.unanswered,
    }
}

/// What the record alone tells.
fn outline(record: &JobRecord, end: WallTime) -> Vec<Said> {
    let done = record.state.is_final();
    let closed = |note| Said { note, open: false, peer: None };
    let open = |note| Said { note, open: true, peer: None };
    let whole = SpanNote::new(trace::JOB, Epoch(0), record.submitted_at, end);
    let whole = SpanNote { parent: record.trace_parent, ..whole.note(&*record.reason) };
    let mut out = vec![trace::whole(record).map_or_else(|| open(whole), closed)];
    let mut before = None;
    for (n, a) in record.attempts.iter().enumerate() {
        let over = a.ended_at.is_some() || done;
        let to = a.ended_at.unwrap_or(end);
        let span = |name, from, to| SpanNote::new(name, a.epoch, from, to).at(&a.cluster);
        // Of the first that the record still has, the one before is known only where it is the first of all.
        let waited_from = match before {
            Some((_, ended)) => Some(ended),
            None => (n == 0 && a.epoch == Epoch(1)).then_some(record.submitted_at),
        };
        if let Some(from) = waited_from {
            out.push(closed(span(trace::QUEUE, from, a.placed_at)));
        }
        let mut attempt = SpanNote::of_attempt(a);
        attempt.to = to.max(a.placed_at);
        out.push(Said { note: attempt.clone(), open: !over, peer: None });
        match a.started_at {
            Some(at) => {
                out.push(closed(span(trace::START, a.placed_at, at)));
                let run = SpanNote { name: trace::RUN.into(), from: at, to: to.max(at), ..attempt };
                out.push(Said { note: run, open: !over, peer: None });
            }
            None if !over => out.push(open(span(trace::START, a.placed_at, end))),
            None => {}
        }
        if let (Some((from, ended)), Some(at)) = (&before, a.started_at) {
            let words = if *from == &a.cluster {
                format!("again at {from}")
            } else {
                format!("{from} to {}", a.cluster)
            };
            out.push(closed(span(trace::MOVE, *ended, at).note(words)));
        }
        before = a.ended_at.map(|ended| (&a.cluster, ended)).or(before);
    }
    if record.placement.is_none() && !done {
        let from = before.map_or(record.submitted_at, |(_, ended)| ended);
        let note = SpanNote::new(trace::QUEUE, record.epoch.next(), from, end).note(&*record.reason);
        out.push(open(note));
    }
    out
}

/// Depth first, from the job's own span; what has no known place hangs under that.
fn tree(record: &JobRecord, job: &JobId, spans: BTreeMap<crate::base::SpanId, Said>) -> Vec<SpanDocument> {
    let root = trace::span_id(&record.trace, job, trace::JOB, Epoch(0), "");
    let mut below: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (id, said) in &spans {
        if *id != root {
            let parent = said.note.parent(&record.trace, job).filter(|p| p != id && spans.contains_key(p));
            below.entry(parent.unwrap_or(root)).or_default().push(*id);
        }
    }
    let rank = |name: &str| {
        let order = [trace::SUBMIT, trace::QUEUE, trace::MOVE, trace::CLAIM, trace::GRANT, trace::ATTEMPT];
        order.iter().position(|n| *n == name).unwrap_or(order.len())
    };
    for ids in below.values_mut() {
        ids.sort_by_key(|id| {
            let note = &spans[id].note;
            (note.from, rank(&note.name), std::cmp::Reverse(note.to), *id)
        });
    }
    let (mut out, mut stack, mut seen) = (Vec::new(), vec![(root, 0)], BTreeSet::new());
    while let Some((id, depth)) = stack.pop() {
        let Some(said) = spans.get(&id).filter(|_| seen.insert(id)) else { continue };
        let note = &said.note;
        let parent = if id == root { note.parent } else { note.parent(&record.trace, job) };
        out.push(SpanDocument {
            id: id.to_string(),
            parent: parent
                .filter(|p| id == root || spans.contains_key(p))
                .or((id != root).then_some(root))
                .map(|p| p.to_string()),
            depth,
            name: note.name.clone(),
            epoch: (note.epoch > Epoch(0)).then_some(note.epoch.0),
            cluster: note.cluster.clone(),
            peer: said.peer.clone(),
            from_ms: note.from.0,
            to_ms: (!said.open).then_some(note.to.0),
            failed: note.failed,
            note: note.note.clone(),
            bytes: note.bytes.map(|b| b.0),
        });
        for child in below.get(&id).into_iter().flatten().rev() {
            stack.push((*child, depth + 1));
        }
    }
    out
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
