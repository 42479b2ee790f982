//! `GET /jobs`: searched, sorted and cut into pages at the server, so that any number of jobs is one light page.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::State;
use serde::Deserialize;

use super::html::{self, cut, esc, number};
use super::{Answer, Page, alone, answer, job_list, unanswered};
use crate::model::JobState;
use crate::surface::api::input::Q;
use crate::surface::api::{Api, ApiError, escape};
use crate::surface::documents::{JobDocument, wall_now};

/// Jobs on one page.
const PER_PAGE: usize = 50;
const STATES: [JobState; 6] = [
    JobState::Pending,
    JobState::Placed,
    JobState::Running,
    JobState::Succeeded,
    JobState::Failed,
    JobState::Cancelled,
];
/// Columns that sort: key, heading, class.
const COLUMNS: [(&str, &str, &str); 8] = [
    ("id", "Id", "tight"),
    ("name", "Name", ""),
    ("state", "State", "tight"),
    ("cluster", "Cluster", "tight"),
    ("age", "Age", "n"),
    ("tenant", "Tenant", "tight opt"),
    ("gpus", "GPUs", "n opt"),
    ("tries", "Tries", "n opt"),
];

#[derive(Deserialize, Clone, Default)]
#[serde(deny_unknown_fields, default)]
pub struct JobsQuery {
    q: String,
    state: String,
    tenant: String,
    cluster: String,
    sort: String,
    page: usize,
}

impl JobsQuery {
    fn check(&self) -> Result<(), ApiError> {
        let long =
            [&self.q, &self.state, &self.tenant, &self.cluster, &self.sort].iter().any(|t| t.len() > 128);
        if long { Err(ApiError::BadRequest("more than 128 bytes in a filter".into())) } else { Ok(()) }
    }

    /// The address of the same list with one thing changed; a change of anything but the page begins at the first.
    fn with(&self, key: &str, value: &str) -> String {
        let page = self.page.to_string();
        let mut out = String::from("/jobs");
        for (name, now) in [
            ("q", self.q.as_str()),
            ("state", &self.state),
            ("tenant", &self.tenant),
            ("cluster", &self.cluster),
            ("sort", &self.sort),
            ("page", if key == "page" { &page } else { "" }),
        ] {
            let value = if name == key { value } else { now };
            if !value.is_empty() {
                out.push(if out.contains('?') { '&' } else { '?' });
                let _ = write!(out, "{name}={}", escape(value));
            }
        }
        esc(&out)
    }

    fn wants(&self, job: &JobDocument) -> bool {
        let q = self.q.trim().to_lowercase();
        let cluster = last_cluster(job);
        let text = |hay: &str| hay.to_lowercase().contains(&q);
        (self.tenant.is_empty() || job.tenant == self.tenant)
            && (self.cluster.is_empty() || cluster == self.cluster)
            && (q.is_empty()
                || job.id.to_string().starts_with(&q)
                || [&job.name, &job.tenant, &job.reason].iter().any(|t| text(t))
                || text(cluster)
                || job.gpu.iter().any(|g| text(g)))
    }
}

fn last_cluster(job: &JobDocument) -> &str {
    let last = job.attempts.last().map(|a| &a.cluster);
    job.cluster.as_ref().or(last).map_or("", |c| c.as_str())
}

fn sort(jobs: &mut [&JobDocument], by: &str) {
    let (key, down) = by.strip_prefix('-').map_or((by, false), |key| (key, true));
    jobs.sort_by(|a, b| {
        let order = match key {
            "id" => a.id.cmp(&b.id),
            "name" => a.name.cmp(&b.name),
            "state" => a.state.cmp(&b.state),
            "cluster" => last_cluster(a).cmp(last_cluster(b)),
            "tenant" => a.tenant.cmp(&b.tenant),
            "gpus" => a.gpus.cmp(&b.gpus),
            "tries" => a.epoch.cmp(&b.epoch),
            _ => b.submitted_at_ms.cmp(&a.submitted_at_ms),
        };
        let order = if down { order.reverse() } else { order };
        order.then(b.submitted_at_ms.cmp(&a.submitted_at_ms)).then(a.id.cmp(&b.id))
    });
}

/// The view.
pub async fn jobs(State(api): State<Api>, query: Result<Q<JobsQuery>, ApiError>) -> Answer {
    let page = async {
        let Q(query) = query?;
        query.check()?;
        let (list, age_ms) = job_list(&api).await?;
        let found: Vec<&JobDocument> = list.jobs.iter().filter(|j| query.wants(j)).collect();
        let mut shown: Vec<&JobDocument> = found
            .iter()
            .copied()
            .filter(|j| query.state.is_empty() || j.state.as_str() == query.state)
            .collect();
        sort(&mut shown, &query.sort);
        let mut body =
            format!("<div class=head><h1>Jobs</h1><span class=soft>as of {}</span></div>", html::ago(age_ms));
        body.push_str(alone(&api));
        body.push_str(&unanswered(&list));
        body.push_str(&tabs(&query, &found));
        let table = if shown.is_empty() {
            let empty = if list.jobs.is_empty() {
                "<p>No job yet. <code>starling submit FILE</code> or <code>starling run -- CMD</code> begins one.</p>"
            } else {
                "<p>No job is like that.</p>"
            };
            empty.to_owned()
        } else {
            table(&query, &shown)
        };
        let _ = write!(
            body,
            "<section class=panel aria-label=\"Jobs found\">{}{table}{}</section>",
            search(&query, &list.jobs),
            pages(&query, shown.len())
        );
        if list.truncated {
            body.push_str("<p class=soft>More than 10 000 jobs are held; the newest are shown.</p>");
        }
        Ok(Page { title: "Jobs".into(), menu: "/jobs", live: "jobs tick", body })
    };
    let page = page.await;
    answer(&api, "/jobs", page)
}

fn tabs(query: &JobsQuery, found: &[&JobDocument]) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for job in found {
        *counts.entry(job.state.as_str()).or_default() += 1;
    }
    let tab = |value: &str, label: String, n: u64| {
        let here = if query.state == value { " aria-current=true" } else { "" };
        format!("<a href=\"{}\"{here}>{label} <b>{}</b></a>", query.with("state", value), number(n))
    };
    let mut out = String::from("<nav class=tabs aria-label=\"By state\">");
    out.push_str(&tab("", "all".into(), found.len() as u64));
    for state in STATES {
        out.push_str(&tab(
            state.as_str(),
            html::state(state),
            counts.get(state.as_str()).copied().unwrap_or(0),
        ));
    }
    out + "</nav>"
}

fn search(query: &JobsQuery, jobs: &[JobDocument]) -> String {
    let mut tenants: Vec<&str> = jobs.iter().map(|j| j.tenant.as_str()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let mut clusters: Vec<&str> = jobs.iter().map(last_cluster).filter(|c| !c.is_empty()).collect();
    clusters.sort_unstable();
    clusters.dedup();
    let select = |name: &str, label: &str, all: &[&str], now: &str| {
        let mut out =
            format!("<select name={name} aria-label=\"{label}\"><option value=\"\">every {name}</option>");
        for one in all.iter().take(500) {
            let here = if *one == now { " selected" } else { "" };
            let _ = write!(out, "<option{here}>{}</option>", esc(one));
        }
        out + "</select>"
    };
    format!(
        "<form class=find action=\"/jobs\" role=search><input type=search name=q value=\"{}\" aria-label=\"Search id, name, tenant, cluster, reason\" \
         placeholder=\"id, name, cluster, reason\" maxlength=100 autocomplete=off>{}{}<input type=hidden name=state value=\"{}\">\
         <input type=hidden name=sort value=\"{}\"></form>",
        esc(&query.q),
        select("tenant", "Only of tenant", &tenants, &query.tenant),
        select("cluster", "Only at cluster", &clusters, &query.cluster),
        esc(&query.state),
        esc(&query.sort),
    )
}

fn table(query: &JobsQuery, shown: &[&JobDocument]) -> String {
    let now = wall_now().0;
    let mut head = String::new();
    for (key, heading, class) in COLUMNS {
        let (sorted, next) = match query.sort.strip_prefix('-') {
            Some(by) if by == key => (" aria-sort=descending", key.to_owned()),
            None if query.sort == key || (query.sort.is_empty() && key == "age") => {
                (" aria-sort=ascending", format!("-{key}"))
            }
            _ => ("", key.to_owned()),
        };
        let mark = match sorted {
            "" => "",
            s if s.ends_with("descending") => " ▾",
            _ => " ▴",
        };
        let _ = write!(
            head,
            "<th scope=col class=\"{class}\"{sorted}><a href=\"{}\">{heading}{mark}</a></th>",
            query.with("sort", &next)
        );
    }
    let mut rows = String::new();
    for job in shown.iter().skip(query.page.saturating_mul(PER_PAGE)).take(PER_PAGE) {
        let cluster = last_cluster(job);
        let cluster =
            if cluster.is_empty() { "<span class=soft>–</span>".to_owned() } else { esc(cluster) };
        let _ = write!(
            rows,
            "<tr data-key={id} data-href=\"/jobs/{id}\"><td class=tight><a class=id href=\"/jobs/{id}\">{short}</a></td><td>{}</td>\
             <td class=tight>{}</td><td class=\"tight wide\">{cluster}</td><td class=n>{}</td><td class=\"tight opt\">{}</td>\
             <td class=\"n opt\">{}</td><td class=\"n opt\">{}</td><td class=why>{}</td></tr>",
            cut(&job.name, 48),
            html::state(job.state),
            html::lasting(now.saturating_sub(job.submitted_at_ms)),
            cut(&job.tenant, 24),
            number(job.gpus),
            job.epoch,
            cut(&job.reason, 140),
            id = job.id,
            short = job.id.short(),
        );
    }
    format!(
        "<table class=rows><thead><tr>{head}<th scope=col>Why</th></tr></thead><tbody>{rows}</tbody></table>"
    )
}

fn pages(query: &JobsQuery, found: usize) -> String {
    let (first, last) = (query.page.saturating_mul(PER_PAGE), found.div_ceil(PER_PAGE).saturating_sub(1));
    let mut out = String::from("<div class=pages>");
    if found > 0 {
        let _ = write!(
            out,
            "<span>{} to {} of {}</span>",
            number((first + 1).min(found) as u64),
            number((first + PER_PAGE).min(found) as u64),
            number(found as u64)
        );
    }
    if query.page > 0 {
        let _ = write!(
            out,
            "<a rel=prev href=\"{}\">‹ previous</a>",
            query.with("page", &(query.page.min(last + 1) - 1).to_string())
        );
    }
    if query.page < last {
        let _ = write!(
            out,
            "<a rel=next href=\"{}\">next ›</a>",
            query.with("page", &(query.page + 1).to_string())
        );
    }
    out + "</div>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_changes_and_the_page_begins_again() {
        let query = JobsQuery { q: "a&b".into(), page: 3, sort: "-gpus".into(), ..JobsQuery::default() };
        assert_eq!(query.with("state", "running"), "/jobs?q=a%26b&amp;state=running&amp;sort=-gpus");
        assert_eq!(query.with("page", "4"), "/jobs?q=a%26b&amp;sort=-gpus&amp;page=4");
        assert!(JobsQuery { q: "x".repeat(129), ..JobsQuery::default() }.check().is_err());
    }
}
