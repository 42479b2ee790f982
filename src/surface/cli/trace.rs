//! `starling trace`: a job's trace as a waterfall.

use super::args::TraceArgs;
use super::output::{Style, Table, plain};
use super::{Asking, CommandResult, Reply};
use crate::model::trace;
use crate::surface::api::escape;
use crate::surface::documents::{SpanDocument, TraceDocument};
use crate::surface::web::waterfall::{extent, label};

/// Columns where no terminal says how many it has.
const WIDTH: usize = 100;
const BAR_MIN: usize = 16;
const LABEL_MAX: usize = 34;

/// `starling trace ID`
pub async fn trace(asking: &Asking, args: TraceArgs) -> CommandResult {
    let found: TraceDocument = asking.client.get(&format!("/v1/jobs/{}/trace", escape(&args.id))).await?;
    let width = console::Term::stdout().size_checked().map_or(WIDTH, |(_, columns)| usize::from(columns));
    let mut text = waterfall(asking.style, &found, width.clamp(60, 240));
    if args.events {
        text.push('\n');
        text.push_str(&events(asking.style, &found));
    }
    Ok(Reply::new(&found, text))
}

/// A length of time to three figures or so.
fn exact(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{:.1}s", ms as f64 / 1e3),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

fn clock(at_ms: u64) -> String {
    let format = time::macros::format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let at =
        i64::try_from(at_ms / 1_000).ok().and_then(|s| time::OffsetDateTime::from_unix_timestamp(s).ok());
    at.and_then(|t| t.format(format).ok()).unwrap_or_else(|| "an unknown time".into())
}

fn waterfall(style: Style, found: &TraceDocument, width: usize) -> String {
    let (begin, end) = extent(found);
    let state = style.state(found.state.as_str());
    let mut text = format!(
        "{} {} {state}: {}\n{}\n",
        found.id.short(),
        style.bold(&plain(&found.name)),
        plain(&found.reason),
        style.dim(&format!("trace {}  from {}  {}", plain(&found.trace), clock(begin), exact(end - begin)))
    );
    let rows: Vec<[String; 4]> = found
        .spans
        .iter()
        .map(|span| {
            let name = format!("{}{}", "  ".repeat(span.depth as usize), plain(&label(span, found)));
            let place = span.cluster.as_ref().or(span.peer.as_ref());
            let to = span.to_ms.unwrap_or(end);
            let open = if span.to_ms.is_none() { "…" } else { "" };
            [
                name.chars().take(LABEL_MAX).collect(),
                place.map(|p| p.to_string()).unwrap_or_default(),
                format!("+{}", exact(span.from_ms.saturating_sub(begin))),
                exact(to.saturating_sub(span.from_ms)) + open,
            ]
        })
        .collect();
    let head = ["SPAN", "WHERE", "BEGAN", "TOOK"];
    let wide = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0).max(head[i].len());
    let widths = [wide(0), wide(1), wide(2), wide(3)];
    let taken = widths.iter().sum::<usize>() + 2 * widths.len();
    // Notes are shown where there is room for them.
    let left = width.saturating_sub(taken);
    let bar = if left > 70 { left / 2 } else { left }.max(BAR_MIN);
    let notes = left.saturating_sub(bar + 2);
    let cells = |row: &[String; 4]| {
        format!(
            "{:<a$}  {:<b$}  {:>c$}  {:>d$}  ",
            row[0],
            row[1],
            row[2],
            row[3],
            a = widths[0],
            b = widths[1],
            c = widths[2],
            d = widths[3]
        )
    };
    text.push_str(&style.dim(cells(&head.map(str::to_owned)).trim_end()));
    text.push('\n');
    for (span, row) in found.spans.iter().zip(&rows) {
        let drawn = drawn(style, span, (begin, end), bar);
        let bytes = span.bytes.map(|b| format!("{}  ", crate::base::Bytes(b))).unwrap_or_default();
        let note: String = plain(&format!("{bytes}{}", span.note)).trim_end().chars().take(notes).collect();
        text.push_str(&cells(row));
        text.push_str(&drawn);
        if !note.is_empty() {
            let gap = console::measure_text_width(&drawn);
            text.push_str(&" ".repeat(bar.saturating_sub(gap) + 2));
            text.push_str(&style.dim(&note));
        }
        text.push('\n');
    }
    if !found.unanswered.is_empty() {
        let names: Vec<&str> = found.unanswered.iter().map(|n| n.as_str()).collect();
        text.push_str(&format!(
            "no answer from {}: what they noted is missing here; what the record says is not\n",
            names.join(", ")
        ));
    }
    if found.truncated {
        text.push_str("there are more events than are read: the oldest are left out\n");
    }
    text
}

/// The bar of one span, as wide as all of them.
fn drawn(style: Style, span: &SpanDocument, all: (u64, u64), width: usize) -> String {
    let total = (all.1 - all.0).max(1) as f64;
    let cell = |at: u64| ((at.clamp(all.0, all.1) - all.0) as f64 / total * width as f64) as usize;
    let from = cell(span.from_ms).min(width - 1);
    let to = cell(span.to_ms.unwrap_or(all.1)).clamp(from + 1, width);
    let (like, mark) = match span.name.as_str() {
        _ if span.failed => ("failed", "█"),
        trace::RUN | trace::CHECKPOINT => ("running", "█"),
        trace::JOB | trace::ATTEMPT => ("succeeded", "━"),
        trace::QUEUE | trace::MOVE => ("pending", "▒"),
        _ => ("other", "▒"),
    };
    let body = style.state_as(like, like).replace(like, &mark.repeat(to - from));
    format!("{}{body}", " ".repeat(from))
}

fn events(style: Style, found: &TraceDocument) -> String {
    let mut table = Table::new(style, &["TIME", "PEER", "KIND", "WHAT"]);
    for event in &found.events {
        let text: String = plain(&event.entry.text).chars().take(160).collect();
        table.row([clock(event.entry.at_ms), event.peer.to_string(), plain(&event.entry.kind), text]);
    }
    if found.events.is_empty() { "no events\n".into() } else { table.render() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::JobId;
    use crate::model::JobState;

    fn span(name: &str, depth: u32, from: u64, to: Option<u64>) -> SpanDocument {
        SpanDocument {
            id: format!("{from:016x}"),
            parent: None,
            depth,
            name: name.into(),
            epoch: (depth > 0).then_some(1),
            cluster: "alpha".parse().ok(),
            peer: None,
            from_ms: from,
            to_ms: to,
            failed: false,
            note: "a note\u{1b}[2J".into(),
            bytes: None,
        }
    }

    fn found() -> TraceDocument {
        TraceDocument {
            id: JobId([1; 20]),
            name: "training".into(),
            trace: "ab".repeat(16),
            state: JobState::Running,
            reason: "runs at alpha".into(),
            from_ms: 1_000,
            to_ms: 11_000,
            done: false,
            spans: vec![
                span("job", 0, 1_000, None),
                span("queue", 1, 1_000, Some(6_000)),
                span("attempt", 1, 6_000, None),
                span("run", 2, 6_500, None),
            ],
            events: Vec::new(),
            truncated: false,
            unanswered: vec!["beta".parse().expect("a name")],
        }
    }

    #[test]
    fn bars_stand_under_each_other_and_nothing_steers_the_terminal() {
        let text = waterfall(Style { colour: false }, &found(), 80);
        assert!(!text.contains('\u{1b}'), "{text}");
        let bars: Vec<(usize, usize)> = text
            .lines()
            .filter(|l| l.contains(['█', '▒', '━']))
            .map(|l| {
                let cells: Vec<char> = l.chars().collect();
                let drawn = |c: &char| "█▒━".contains(*c);
                (cells.iter().position(drawn).unwrap_or(0), cells.iter().filter(|c| drawn(c)).count())
            })
            .collect();
        let (left, width) = bars[0];
        assert_eq!(bars.len(), 4);
        assert_eq!(bars[1], (left, width / 2), "the wait is the first half:\n{text}");
        assert_eq!(bars[2], (left + width / 2, width - width / 2), "the attempt is the second:\n{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80 || l.starts_with("no answer")), "{text}");
        assert!(
            text.contains("no answer from beta") && text.contains("+5.0s") && text.contains("4.5s…"),
            "{text}"
        );
    }

    #[test]
    fn colours_do_not_bend_it() {
        for width in [60, 80, 200] {
            let coloured = waterfall(Style { colour: true }, &found(), width);
            assert_eq!(
                console::strip_ansi_codes(&coloured),
                waterfall(Style { colour: false }, &found(), width)
            );
        }
    }
}
