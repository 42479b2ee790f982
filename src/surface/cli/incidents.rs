//! `incidents` and `silence`.

use axum::http::Method;
use serde_json::{Value, json};

use super::args::{IncidentsArgs, SilenceArgs};
use super::output::{Style, Table, brief, plain};
use super::{Asking, CommandResult, Failure, Reply};
use crate::model::alert::Severity;
use crate::surface::api::escape;
use crate::surface::documents::*;

/// Jobs of an incident in the list of all.
const FEW: usize = 8;

/// `starling incidents [ID]`
pub async fn incidents(asking: &Asking, args: IncidentsArgs) -> CommandResult {
    let style = asking.style;
    if let Some(id) = &args.id {
        let found: IncidentDocument = asking.client.get(&format!("/v1/incidents/{}", escape(id))).await?;
        return Ok(Reply::new(&found, one(style, &found, usize::MAX)));
    }
    let list: IncidentList = asking.client.get("/v1/incidents").await?;
    let mut text: String = list.open.iter().map(|i| one(style, i, FEW) + "\n").collect();
    if list.open.is_empty() {
        text.push_str("nothing is wrong, as far as this peer sees\n");
    }
    if args.past && !list.past.is_empty() {
        let now = wall_now().0;
        let mut table = Table::new(style, &["INCIDENT", "KIND", "SEVERITY", "BEGAN", "LASTED", "WHAT"]);
        for i in &list.past {
            let over = i.recovered_at_ms.unwrap_or(now);
            table.row([
                i.id.to_string(),
                i.kind.as_str().into(),
                i.severity.as_str().into(),
                format!("{} ago", brief(now.saturating_sub(i.opened_at_ms))),
                brief(over.saturating_sub(i.opened_at_ms)),
                plain(&i.text),
            ]);
        }
        text.push_str(&table.render());
    } else if !list.past.is_empty() {
        text.push_str(&style.dim(&format!("{} are over: --past", list.past.len())));
        text.push('\n');
    }
    Ok(Reply::new(&list, text))
}

fn one(style: Style, i: &IncidentDocument, jobs_max: usize) -> String {
    let now = wall_now().0;
    let word = match i.severity {
        Severity::Critical => style.state_as("lost", "CRITICAL"),
        Severity::Warning => style.state_as("suspect", "warning"),
        other => style.dim(other.as_str()),
    };
    let lasted = match i.recovered_at_ms {
        None => format!("since {}", brief(now.saturating_sub(i.opened_at_ms))),
        Some(at) => {
            format!("over; lasted {}", brief(at.saturating_sub(i.opened_at_ms)))
        }
    };
    let mut text = format!(
        "{word} {} {}  {lasted}\n  {}\n",
        i.kind.as_str(),
        style.bold(&i.id.to_string()),
        plain(&i.text)
    );
    if !i.todo.is_empty() && i.recovered_at_ms.is_none() {
        text.push_str(&format!("  -> {}\n", plain(&i.todo)));
    }
    if let Some(under) = i.under {
        text.push_str(&format!("  part of {under}\n"));
    }
    for also in &i.also {
        text.push_str(&format!("  also {}: {}\n", also.kind.as_str(), plain(&also.text)));
    }
    if let Some(until) = i.silenced_until_ms {
        text.push_str(&format!("  silenced for {}\n", brief(until.saturating_sub(now))));
    }
    for notice in &i.notices {
        let ago = brief(now.saturating_sub(notice.at_ms));
        text.push_str(&format!("  {} was told {} {ago} ago\n", plain(&notice.via), notice.status));
    }
    if let Some(list) = &i.jobs {
        text.push_str(&jobs(style, list, jobs_max));
    }
    text
}

fn jobs(style: Style, list: &TouchedList, most: usize) -> String {
    let mut text = match list.total {
        0 if list.unanswered.is_empty() => "  touches no job\n".to_owned(),
        0 => "  touches no job that is known of\n".to_owned(),
        1 => "  touches 1 job:\n".to_owned(),
        n => format!("  touches {n} jobs:\n"),
    };
    if !list.jobs.is_empty() {
        let mut table = Table::new(style, &["JOB", "NAME", "TENANT", "DOING", "WHAT"]);
        for job in list.jobs.iter().take(most) {
            table.row([
                job.id.short(),
                plain(&job.name),
                plain(&job.tenant),
                job.doing.words().into(),
                plain(&job.text),
            ]);
        }
        text.extend(table.render().lines().map(|line| format!("  {line}\n")));
    }
    let shown = list.jobs.len().min(most) as u64;
    if list.total > shown {
        text.push_str(&format!("  and {} more: `starling incidents ID`\n", list.total - shown));
    }
    if !list.unanswered.is_empty() {
        let names: Vec<&str> = list.unanswered.iter().map(|n| n.as_str()).collect();
        text.push_str(&format!("  not complete: no answer from {}\n", names.join(", ")));
    }
    text
}

/// `starling silence [WHAT --for TIME | WHAT --end]`
pub async fn silence(asking: &Asking, args: SilenceArgs) -> CommandResult {
    let Some(what) = args.what else {
        let list: SilenceList = asking.client.get("/v1/silences").await?;
        let now = wall_now().0;
        let mut table = Table::new(asking.style, &["SILENCED", "FOR", "BY"]);
        for s in &list.silences {
            table.row([plain(&s.what), brief(s.until_ms.saturating_sub(now)), plain(&s.by)]);
        }
        let text = if list.silences.is_empty() { "nothing is silenced\n".into() } else { table.render() };
        return Ok(Reply::new(&list, text));
    };
    let millis = match (args.span, args.end) {
        (Some(span), _) => span.as_millis(),
        (None, true) => 0,
        (None, false) => {
            let hint = format!("starling silence {what} --for 2h, or --end");
            return Err(Failure::usage("for how long?", hint));
        }
    };
    let body = json!({ "what": what, "for": format!("{millis}ms") }).to_string().into_bytes();
    let done: Value =
        asking.client.send(Method::POST, "/v1/silences", Some(("application/json", body))).await?;
    let what = plain(done["what"].as_str().unwrap_or(&what));
    let text = if millis == 0 {
        format!("{what} is silenced no longer\n")
    } else {
        format!(
            "nobody is told of {what} for {}; who was told of its begin is told of its end\n",
            brief(millis)
        )
    };
    Ok(Reply::new(&done, text))
}
