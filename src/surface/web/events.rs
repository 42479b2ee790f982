//! `GET /events`: what happened, newest first.

use std::fmt::Write;

use axum::extract::State;
use serde::Deserialize;

use super::html::{ago, clock, cut, esc, panel};
use super::{Answer, Page, answer};
use crate::surface::api::input::Q;
use crate::surface::api::{Api, ApiError};
use crate::surface::documents::{EventDocument, wall_now};

/// Events on the page.
const SHOWN: usize = 300;

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
        let found = api.memory.events(SHOWN, |e| {
            e.kind.starts_with(&query.kind)
                && (q.is_empty()
                    || e.text.to_lowercase().contains(&q)
                    || e.job.is_some_and(|j| j.to_string().starts_with(&q)))
        });
        let mut form = format!(
            "<form class=find action=\"/events\" role=search><input type=search name=q value=\"{}\" aria-label=\"Search job id or text\" placeholder=\"job id or text\" maxlength=100 autocomplete=off>\
             <select name=kind aria-label=\"Only of kind\"><option value=\"\">every kind</option>",
            esc(&query.q)
        );
        for kind in ["job.", "attempt.", "contact.", "flash.", "member.", "invariant."] {
            let here = if query.kind == kind { " selected" } else { "" };
            let _ = write!(form, "<option value=\"{kind}\"{here}>{}</option>", kind.trim_end_matches('.'));
        }
        form.push_str("</select></form>");
        let name = esc(api.handle.about().name.as_str());
        let list = if found.is_empty() {
            "<p class=soft>None since this peer started.</p>".into()
        } else {
            table(&found, true)
        };
        let body = format!(
            "<div class=head><h1>Events</h1></div>{}",
            panel(
                "At this peer",
                &format!("what {name} did or heard since it started, newest first"),
                &(form + &list)
            )
        );
        Ok(Page { title: "Events".into(), menu: "/events", live: "events", body })
    };
    let page = page.await;
    answer(&api, "/events", page)
}

/// Events as rows.
pub(super) fn table(events: &[EventDocument], with_job: bool) -> String {
    let now = wall_now().0;
    let mut rows = String::new();
    for e in events {
        let job = match e.job {
            Some(job) if with_job => {
                format!("<td class=tight><a class=id href=\"/jobs/{job}\">{}</a></td>", job.short())
            }
            _ if with_job => "<td></td>".into(),
            _ => String::new(),
        };
        let _ = write!(
            rows,
            "<tr><td class=\"tight opt\">{}</td><td class=n>{}</td><td class=tight><code>{}</code></td>{job}<td class=why>{}</td></tr>",
            clock(e.at_ms),
            ago(now.saturating_sub(e.at_ms)),
            cut(&e.kind, 40),
            cut(&e.text, 300)
        );
    }
    let job = if with_job { "<th scope=col>Job</th>" } else { "" };
    format!(
        "<div class=scroll><table><thead><tr><th scope=col class=opt>When</th><th scope=col class=n>Age</th><th scope=col>Kind</th>{job}<th scope=col>What</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
}
