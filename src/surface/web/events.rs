//! `GET /events`: what happened, newest first.

use std::fmt::Write;

use axum::extract::State;
use serde::Deserialize;

use super::html::{ago, clock, cut, esc, panel};
use super::{Answer, Page, alone, answer, asked_now, incidents};
use crate::runtime::eventlog::HistoryFilter;
use crate::surface::api::input::Q;
use crate::surface::api::{Api, ApiError, history};
use crate::surface::documents::{HistoryEntry, wall_now};

/// Events on the page.
const SHOWN: usize = 300;
/// Events that are searched for a text.
const KEPT: usize = 2_000;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct EventsQuery {
    q: String,
    kind: String,
}

/// The view.
pub async fn events(State(api): State<Api>, query: Result<Q<EventsQuery>, ApiError>) -> Answer {
    let page = async {
        let Q(query) = query?;
        if query.q.len() > 128 || query.kind.len() > 128 {
            return Err(ApiError::BadRequest("more than 128 bytes in a filter".into()));
        }
        let q = query.q.trim().to_lowercase();
        let filter = HistoryFilter { kind: query.kind.clone(), limit: KEPT, ..HistoryFilter::default() };
        let (found, unanswered) = match api.handle.log() {
            Some(_) => {
                let list = history::everywhere(&api, filter).await?;
                (list.events, list.unanswered)
            }
            None => (Vec::new(), Vec::new()),
        };
        let found: Vec<HistoryEntry> = found
            .into_iter()
            .filter(|e| {
                q.is_empty()
                    || e.entry.text.to_lowercase().contains(&q)
                    || e.entry.tenant.as_ref().is_some_and(|t| t.to_lowercase().contains(&q))
                    || e.peer.as_str().contains(&q)
                    || e.entry.job.is_some_and(|j| j.to_string().starts_with(&q))
            })
            .take(SHOWN)
            .collect();
        let mut form = format!(
            "<form class=find action=\"/events\" role=search><input type=search name=q value=\"{}\" aria-label=\"Search job id, tenant, peer or text\" placeholder=\"job id, tenant, peer, text\" maxlength=100 autocomplete=off>\
             <select name=kind aria-label=\"Only of kind\"><option value=\"\">every kind</option>",
            esc(&query.q)
        );
        for kind in ["job.", "attempt.", "contact.", "incident.", "peer.", "invariant.", "log."] {
            let here = if query.kind == kind { " selected" } else { "" };
            let _ = write!(form, "<option value=\"{kind}\"{here}>{}</option>", kind.trim_end_matches('.'));
        }
        form.push_str("</select></form>");
        let list =
            if found.is_empty() { "<p class=soft>None like that.</p>".into() } else { table(&found, true) };
        let mut notice = alone(&api).to_owned();
        if !unanswered.is_empty() {
            let names: Vec<String> = unanswered.iter().map(|n| esc(n.as_str())).collect();
            let _ = write!(
                notice,
                "<div class=\"notice warn\">Not complete: no answer from {}.</div>",
                names.join(", ")
            );
        }
        let panel = panel(
            "All peers",
            &format!("what each wrote down, newest first; times are each peer's own; {}", asked_now()),
            &(form + &list),
        );
        let incidents = incidents::view(&api).await;
        let body = format!("<div class=head><h1>Events and incidents</h1></div>{incidents}{notice}{panel}");
        Ok(Page { title: "Events".into(), menu: "/events", live: "events view tick", body })
    };
    let page = page.await;
    answer(&api, "/events", page)
}

/// Events as rows.
pub(super) fn table(events: &[HistoryEntry], with_job: bool) -> String {
    let now = wall_now().0;
    let mut rows = String::new();
    for HistoryEntry { peer, entry: e } in events {
        let job = match e.job {
            Some(job) if with_job => {
                let tenant = e.tenant.as_deref().map(|t| cut(t, 20)).unwrap_or_default();
                format!(
                    "<td class=tight><a class=id href=\"/jobs/{job}\">{}</a></td><td class=\"tight opt\">{tenant}</td>",
                    job.short()
                )
            }
            _ if with_job => "<td></td><td class=opt></td>".into(),
            _ => String::new(),
        };
        let _ = write!(
            rows,
            "<tr><td class=\"tight opt\">{}</td><td class=\"n fit\">{}</td><td class=tight>{}</td><td class=tight><code>{}</code></td>{job}<td class=why>{}</td></tr>",
            clock(e.at_ms),
            ago(now.saturating_sub(e.at_ms)),
            esc(peer.as_str()),
            cut(&e.kind, 40),
            cut(&e.text, 300)
        );
    }
    let job = if with_job { "<th scope=col>Job</th><th scope=col class=opt>Tenant</th>" } else { "" };
    format!(
        "<table class=rows><thead><tr><th scope=col class=opt>When</th><th scope=col class=\"n fit\">Age</th><th scope=col>Peer</th><th scope=col>Kind</th>{job}<th scope=col>What</th></tr></thead><tbody>{rows}</tbody></table>"
    )
}
