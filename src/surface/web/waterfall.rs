//! A job's trace as a waterfall: one row a span, all on one time axis.

use std::fmt::Write;

use super::html::{self, cut, esc, exact, panel};
use crate::base::Bytes;
use crate::model::trace;
use crate::surface::documents::{SpanDocument, TraceDocument};

/// Rows of one page; a job with more is looked at in the terminal.
const ROWS_MAX: usize = 120;

/// The panel.
pub fn waterfall(trace: &TraceDocument) -> String {
    let (begin, end) = extent(trace);
    let mut rows = String::new();
    for span in trace.spans.iter().take(ROWS_MAX) {
        let to = span.to_ms.unwrap_or(end);
        let (took, after) = (to.saturating_sub(span.from_ms), span.from_ms.saturating_sub(begin));
        let at = span.cluster.as_ref().or(span.peer.as_ref());
        let place = at.map(|p| esc(p.as_str())).unwrap_or_default();
        let so_far = if span.to_ms.is_none() { " so far" } else { "" };
        let name = label(span, trace);
        let says = format!(
            "{name}{}: {} after the begin, {}{so_far}",
            at.map(|p| format!(" at {p}")).unwrap_or_default(),
            exact(after),
            exact(took)
        );
        let _ = write!(
            rows,
            "<tr data-key=\"s{}\"><th scope=row class=\"tight d{}\">{}</th><td class=\"tight opt\">{place}</td><td>{}</td>\
             <td class=n>{}{}</td><td class=\"why opt\">{}</td></tr>",
            span.id,
            span.depth.min(4),
            cut(&name, 32),
            bar(&says, class(span), (span.from_ms, to), (begin, end)),
            exact(took),
            if span.to_ms.is_none() { "…" } else { "" },
            cut(&said(span), 120),
        );
    }
    let left = trace.spans.len().saturating_sub(ROWS_MAX);
    let more = if left > 0 {
        format!("<p class=soft>{} more: <code>starling trace {}</code></p>", left, trace.id.short())
    } else {
        String::new()
    };
    let missing: Vec<String> = trace.unanswered.iter().map(|n| esc(n.as_str())).collect();
    let missing = if missing.is_empty() {
        String::new()
    } else {
        format!(
            "<p class=late>Did not answer: {}. What they noted is missing; what the record says is here.</p>",
            missing.join(", ")
        )
    };
    let table = format!(
        "{missing}<div class=scroll><table class=spans><thead><tr><th scope=col>Span</th><th scope=col class=opt>Where</th>\
         <th scope=col>Time</th><th scope=col class=n>Took</th><th scope=col class=opt>Note</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>{more}"
    );
    let note = format!("<span class=id>{}</span>, from {}", esc(&trace.trace), html::clock(begin));
    panel("Trace", &note, &table)
}

/// A span's bytes and words.
fn said(span: &SpanDocument) -> String {
    let bytes = span.bytes.map(|b| format!("{}  ", Bytes(b))).unwrap_or_default();
    format!("{bytes}{}", span.note).trim_end().to_owned()
}

/// From the first begin to the last end; never nothing.
pub fn extent(trace: &TraceDocument) -> (u64, u64) {
    let begin = trace.spans.iter().map(|s| s.from_ms).min().unwrap_or(trace.from_ms).min(trace.from_ms);
    let end = trace.spans.iter().filter_map(|s| s.to_ms).max().unwrap_or(trace.to_ms).max(trace.to_ms);
    (begin, end.max(begin + 1))
}

/// What a span is called in a row.
pub fn label(span: &SpanDocument, trace: &TraceDocument) -> String {
    match (span.name.as_str(), span.epoch) {
        (trace::JOB, _) => trace.name.clone(),
        (trace::ATTEMPT, Some(epoch)) => format!("attempt {epoch}"),
        (name, _) => name.to_owned(),
    }
}

fn class(span: &SpanDocument) -> &'static str {
    match span.name.as_str() {
        _ if span.failed => "badend",
        trace::RUN if span.to_ms.is_none() => "run",
        trace::RUN | trace::CHECKPOINT => "ok",
        trace::QUEUE | trace::CLAIM | trace::STAGE | trace::BRING | trace::START | trace::MOVE => "wait",
        _ => "grey",
    }
}

fn bar(says: &str, class: &str, of: (u64, u64), all: (u64, u64)) -> String {
    let x = |at: u64| 1_000.0 * (at.clamp(all.0, all.1) - all.0) as f64 / (all.1 - all.0) as f64;
    let (from, width) = (x(of.0).min(997.5), (x(of.1) - x(of.0)).max(2.5));
    format!(
        "<svg class=line viewBox=\"0 0 1000 20\" preserveAspectRatio=none role=img aria-label=\"{}\"><rect class=bg y=9 width=1000 height=2 />\
         <rect class={class} x=\"{from:.1}\" y=3 width=\"{width:.1}\" height=14 rx=1 /></svg>",
        esc(says)
    )
}
