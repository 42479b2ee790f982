//! Incidents on the page: what is wrong, the jobs it touches, and what is done for each.

use std::fmt::Write;

use super::html::{ago, brief, clock, cut, esc, number, panel, word};
use crate::model::alert::Severity;
use crate::surface::api::Api;
use crate::surface::documents::{IncidentDocument, TouchedList, wall_now};
use crate::surface::incidents;

/// Jobs of one incident that are shown.
const JOBS_SHOWN: usize = 100;
/// Of those that are over.
const PAST_SHOWN: usize = 20;

/// The panel of the view of events.
pub(super) async fn view(api: &Api) -> String {
    let list = incidents::list(api, wall_now()).await;
    let mut out = String::new();
    for incident in &list.open {
        out.push_str(&one(incident));
    }
    if list.open.is_empty() {
        out.push_str("<p class=soft>Nothing is wrong, as far as this peer sees.</p>");
    }
    if !list.past.is_empty() {
        let mut rows = String::new();
        for i in list.past.iter().take(PAST_SHOWN) {
            let over = i.recovered_at_ms.unwrap_or(i.updated_at_ms);
            let _ = write!(
                rows,
                "<tr><td class=\"tight opt\">{}</td><td class=tight>{}</td><td class=tight><code>{}</code></td><td class=\"n fit\">{}</td><td class=why>{}</td></tr>",
                clock(i.opened_at_ms),
                severity(i.severity),
                i.kind.as_str(),
                brief(over.saturating_sub(i.opened_at_ms)),
                cut(&i.text, 200)
            );
        }
        let _ = write!(
            out,
            "<h3>Over</h3><table class=rows><thead><tr><th scope=col class=opt>Began</th><th scope=col>Severity</th><th scope=col>Kind</th>\
             <th scope=col class=\"n fit\">Lasted</th><th scope=col>What</th></tr></thead><tbody>{rows}</tbody></table>"
        );
    }
    let note = format!("what hangs together is one; as this peer saw it {}", ago(0));
    panel("Incidents", &note, &out)
}

/// A line on the overview for what is critical; nothing where nothing is.
pub(super) fn banner(api: &Api) -> String {
    let counts = api.desk.counts();
    let n = |s: Severity| counts.get(&s).copied().unwrap_or(0);
    let (critical, warning) = (n(Severity::Critical), n(Severity::Warning));
    if critical + warning == 0 {
        return String::new();
    }
    let class = if critical > 0 { "bad" } else { "warn" };
    format!(
        "<div class=\"notice {class}\" data-key=incidents><a href=\"/events\"><b>{} open</b>: {} critical, {} warning</a></div>",
        if critical + warning == 1 {
            "1 incident".to_owned()
        } else {
            format!("{} incidents", number(critical + warning))
        },
        number(critical),
        number(warning),
    )
}

fn severity(severity: Severity) -> String {
    let like = match severity {
        Severity::Critical => "lost",
        Severity::Warning => "suspect",
        _ => return word(severity.as_str()),
    };
    format!("<span class=\"state {like}\">{}</span>", severity.as_str())
}

fn one(i: &IncidentDocument) -> String {
    let age = wall_now().0.saturating_sub(i.opened_at_ms);
    let mut out = format!(
        "<article class=incident data-key=\"i-{id}\" data-kind={kind} data-subject=\"{subject}\"><h3>{} {}: {subject}</h3>\
         <p class=says>{} <span class=soft>began {}, last news {}; <code>{id}</code></span></p><p class=soft>{}</p>",
        severity(i.severity),
        i.kind.as_str(),
        esc(&i.text),
        ago(age),
        ago(wall_now().0.saturating_sub(i.updated_at_ms)),
        esc(&i.todo),
        id = i.id,
        kind = i.kind.as_str(),
        subject = esc(&i.subject),
    );
    let mut said: Vec<String> =
        i.also.iter().map(|a| format!("also {}: {}", a.kind.as_str(), esc(&a.text))).collect();
    if let Some(under) = i.under {
        said.push(format!("part of <code>{under}</code>"));
    }
    if let Some(until) = i.silenced_until_ms {
        said.push(format!("silenced for {}", brief(until.saturating_sub(wall_now().0))));
    }
    for notice in &i.notices {
        said.push(format!("{} was told: {}", esc(&notice.via), esc(&notice.status)));
    }
    if !said.is_empty() {
        let items: String = said.iter().map(|text| format!("<li>{text}</li>")).collect();
        let _ = write!(out, "<ul class=soft>{items}</ul>");
    }
    if let Some(list) = &i.jobs {
        out.push_str(&jobs(list));
    }
    out + "</article>"
}

fn jobs(list: &TouchedList) -> String {
    let mut out = match list.total {
        0 if list.unanswered.is_empty() => return "<p class=soft>It touches no job.</p>".into(),
        0 => String::from("<p>It touches no job that is known of.</p>"),
        1 => String::from("<p>It touches 1 job.</p>"),
        n => format!("<p>It touches {} jobs.</p>", number(n)),
    };
    let mut rows = String::new();
    for job in list.jobs.iter().take(JOBS_SHOWN) {
        let _ = write!(
            rows,
            "<tr data-key=\"t-{id}\" data-doing={}><td class=tight><a class=id href=\"/jobs/{id}\">{}</a></td><td>{}</td><td class=\"tight opt\">{}</td><td class=tight>{}</td><td class=why>{}</td></tr>",
            serde_json::to_value(job.doing).ok().as_ref().and_then(|v| v.as_str()).unwrap_or_default(),
            job.id.short(),
            cut(&job.name, 48),
            cut(&job.tenant, 24),
            job.doing.words(),
            cut(&job.text, 200),
            id = job.id,
        );
    }
    if !rows.is_empty() {
        let _ = write!(
            out,
            "<table class=\"rows touched\"><thead><tr><th scope=col>Job</th><th scope=col>Name</th><th scope=col class=opt>Tenant</th><th scope=col>Done for it</th><th scope=col>What</th></tr></thead><tbody>{rows}</tbody></table>"
        );
    }
    if list.total > list.jobs.len().min(JOBS_SHOWN) as u64 {
        out.push_str("<p class=soft>The rest: <code>starling incidents ID</code>.</p>");
    }
    if !list.unanswered.is_empty() {
        let names: Vec<String> = list.unanswered.iter().map(|n| esc(n.as_str())).collect();
        let _ = write!(out, "<p class=late>Not complete: no answer from {}.</p>", names.join(", "));
    }
    out
}
