//! `events --past` and `audit`: what happened, and who changed what.

use std::path::Path;

use super::args::{AuditArgs, AuditWord, EventsArgs};
use super::output::{Table, brief, plain};
use super::{Asking, CommandResult, Failure, Reply, exit};
use crate::runtime::eventlog::{Verdict, audit as chain};
use crate::surface::api::escape;
use crate::surface::documents::*;

/// `starling events --past`
pub async fn history(asking: &Asking, args: EventsArgs) -> CommandResult {
    let mut path = format!("/v1/history?limit={}", args.count.unwrap_or(200).clamp(1, 10_000));
    if let Some(since) = args.since {
        path.push_str(&format!("&since_ms={}", wall_now().0.saturating_sub(since.as_millis())));
    }
    for (name, value) in [("job", &args.job), ("kind", &args.kind), ("tenant", &args.tenant)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", escape(value)));
        }
    }
    let list: HistoryList = asking.client.get(&path).await?;
    let now = wall_now().0;
    let mut table = Table::new(asking.style, &["AGE", "PEER", "KIND", "JOB", "TENANT", "WHAT"]);
    // The newest stand last, where the eye is.
    for event in list.events.iter().rev() {
        table.row([
            brief(now.saturating_sub(event.entry.at_ms)),
            event.peer.to_string(),
            plain(&event.entry.kind),
            event.entry.job.map_or_else(|| "-".into(), |job| job.short()),
            event.entry.tenant.as_deref().map_or_else(|| "-".into(), plain),
            plain(&event.entry.text),
        ]);
    }
    let mut text = if list.events.is_empty() { "no events\n".to_owned() } else { table.render() };
    if !list.unanswered.is_empty() {
        let names: Vec<&str> = list.unanswered.iter().map(|n| n.as_str()).collect();
        text.push_str(&format!("not complete: no answer from {}\n", names.join(", ")));
    }
    Ok(Reply::new(&list, text))
}

/// `starling audit`
pub async fn audit(asking: &Asking, args: AuditArgs) -> CommandResult {
    if args.word == Some(AuditWord::Verify) {
        let found: AuditVerdict = asking.client.get("/v1/audit/verify").await?;
        let text = format!("{}: {}", found.peer, verdict_text(&found.verdict));
        let code = if found.verdict.broken.is_some() { exit::REFUSED } else { exit::OK };
        return Ok(Reply::new(&found, text).with_code(code));
    }
    let list: AuditList =
        asking.client.get(&format!("/v1/audit?limit={}", args.limit.clamp(1, 10_000))).await?;
    let now = wall_now().0;
    let mut table =
        Table::new(asking.style, &["SEQ", "AGE", "WHO", "CALL", "ON", "BEFORE", "AFTER", "ANSWER"]);
    for entry in list.entries.iter().rev() {
        let note = &entry.note;
        table.row([
            entry.seq.to_string(),
            brief(now.saturating_sub(note.at_ms)),
            plain(&note.who),
            plain(&note.what),
            plain(&note.object).chars().take(12).collect(),
            plain(&note.before),
            plain(&note.after),
            note.status.to_string(),
        ]);
    }
    let text = if list.entries.is_empty() {
        "nobody changed anything through this peer\n".into()
    } else {
        table.render()
    };
    Ok(Reply::new(&list, text))
}

/// `starling audit verify --files`: also where no peer runs.
pub fn verify_files(state: &Path) -> CommandResult {
    let folder = state.join("events");
    let verdict = chain::verify(&folder).map_err(|e| {
        Failure::usage(format!("{}: {e}", folder.display()), "name a peer's state folder with --state")
    })?;
    let code = if verdict.broken.is_some() { exit::REFUSED } else { exit::OK };
    Ok(Reply::new(&verdict, verdict_text(&verdict)).with_code(code))
}

fn verdict_text(verdict: &Verdict) -> String {
    let head = match &verdict.head {
        Some((seq, hash)) => format!("the newest is {seq}, hash {hash}"),
        None => "there is none".into(),
    };
    match &verdict.broken {
        None if verdict.first > 1 => {
            format!(
                "{} entries hold, from {} on (older ones have rotated away); {head}\n",
                verdict.entries, verdict.first
            )
        }
        None => format!("{} entries hold; {head}\n", verdict.entries),
        Some(why) => format!("BROKEN at {why}; {} entries before it hold\n", verdict.entries),
    }
}
