//! `GET /clusters` and `GET /clusters/{name}`: what a cluster has, what runs and waits there, who uses what.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::State;

use super::html::{self, Gpus, ago, brief, cell, cut, esc, number, panel};
use super::{Answer, Page, alone, answer, asked_now, clusters as cluster_list, notice, told};
use crate::base::Bytes;
use crate::core::api::{InspectReport, Look};
use crate::surface::api::input::Segment;
use crate::surface::api::{Api, ApiError, history, local};
use crate::surface::documents::{ClusterDocument, HistoryEntry};

/// Rows of a queue that are shown.
const ROWS_MAX: usize = 200;
/// Characters of what another peer says of a claim.
const WHY_MAX: usize = 200;
/// Events that are shown.
const EVENTS_SHOWN: usize = 20;

/// The list.
pub async fn clusters(State(api): State<Api>) -> Answer {
    let list = cluster_list(&api).await;
    let mut rows = String::new();
    for c in &list.clusters {
        let name = esc(c.name.as_str());
        let gpus = Gpus::of(c);
        let gone = if c.liveness == "alive" { "" } else { " class=gone" };
        let percent =
            |share: Option<f64>| share.map_or_else(|| "–".into(), |s| format!("{:.0} %", 100.0 * s));
        let _ = write!(
            rows,
            "<tr{gone} data-key=\"{name}\" data-href=\"/clusters/{name}\"><th scope=row class=tight><a href=\"/clusters/{name}\">{name}</a></th><td class=tight>{}</td>\
             <td class=\"tight opt\">{}</td><td>{}</td>{}{}{}{}<td class=\"n opt\">{}</td><td class=\"n opt\">{}</td><td class=\"n opt\">{:.2}</td><td class=\"tight opt\">{} {}</td><td class=n>{}</td></tr>",
            html::word(html::standing(c)),
            esc(&c.region),
            html::told_bar(c),
            html::told_cell(c, gpus.free),
            html::told_cell(c, gpus.total()),
            html::told_cell(c, c.running.into()),
            html::told_cell(c, c.queued.into()),
            percent(c.gpu_use),
            percent(c.cpu_use),
            c.price_usd,
            if c.witness { "witness".into() } else { esc(&c.backend) },
            c.version.as_deref().map(esc).unwrap_or_default(),
            c.age_ms.map_or_else(|| "never".into(), ago),
        );
    }
    let table = format!(
        "<div class=scroll><table><thead><tr><th scope=col>Cluster</th><th scope=col>State</th><th scope=col class=opt>Region</th><th scope=col>GPUs</th>\
         <th scope=col class=n>Free</th><th scope=col class=n>All</th><th scope=col class=n>Run</th><th scope=col class=n>Wait</th>\
         <th scope=col class=\"n opt\">GPU use</th><th scope=col class=\"n opt\">CPU use</th><th scope=col class=\"n opt\">USD/GPUh</th>\
         <th scope=col class=opt>Backend</th><th scope=col class=n>News</th></tr></thead><tbody>{rows}</tbody></table></div>{}",
        html::gpu_key()
    );
    let body = format!(
        "<h1 class=hidden>Clusters</h1>{}{}",
        notice(&list),
        panel("Clusters", &told(&list.clusters), &table)
    );
    answer(
        &api,
        "/clusters",
        Ok(Page { title: "Clusters".into(), menu: "/clusters", live: "view tick", body }),
    )
}

/// One cluster.
pub async fn cluster(State(api): State<Api>, name: Result<Segment, ApiError>) -> Answer {
    let page = async {
        let name = name?.peer()?;
        let list = cluster_list(&api).await;
        let found = list.clusters.iter().find(|c| c.name == name);
        let c = found.ok_or_else(|| ApiError::NotFound(format!("cluster {name} in this mesh")))?;
        let look = Look { claims: ROWS_MAX, reasons: true };
        let (inside, past) = tokio::join!(
            local::report_of(&api, &name, look, local::ANSWERS_WITHIN),
            history::of_peer(&api, &name, EVENTS_SHOWN)
        );
        let mut body = alone(&api).to_owned() + &heading(c);
        let samples = api.memory.samples();
        let of = |s: &super::memory::Sample| {
            s.clusters.get(&name).map(|(used, all)| (u64::from(*used), u64::from(*all)))
        };
        let curve = panel(
            "GPUs in use over time",
            "as this peer saw it",
            &super::overview::curve(&samples, "GPUs in use over time", of),
        );
        let _ = write!(body, "<div class=pair>{}{curve}</div>{}{}", facts(c), hardware(c), reservations(c));
        match &inside {
            Ok(report) => {
                let _ = write!(
                    body,
                    "{}<div class=pair>{}{}</div>",
                    attempts(report),
                    queue(report),
                    users(report)
                );
            }
            Err(error) => {
                let _ = write!(
                    body,
                    "<div class=\"notice bad\">What runs and waits there cannot be asked: {}. The figures above are from its last report, {}.</div>",
                    esc(&error.to_string()),
                    c.age_ms.map_or_else(|| "which never came".into(), ago)
                );
            }
        }
        body.push_str(&events(past));
        Ok(Page { title: format!("Cluster {name}"), menu: "/clusters", live: "events view tick", body })
    };
    let page = page.await;
    answer(&api, "/clusters", page)
}

/// What its peer wrote down last.
fn events(past: Result<Vec<HistoryEntry>, ApiError>) -> String {
    let list = match past {
        Ok(list) if list.is_empty() => "<p class=soft>None yet.</p>".into(),
        Ok(list) => super::events::table(&list, true),
        Err(error) => format!("<p class=soft>Cannot be asked: {}.</p>", esc(&error.to_string())),
    };
    let note = format!("what its peer wrote down, newest first; times are its own; {}", asked_now());
    panel("Events", &note, &list)
}

fn heading(c: &ClusterDocument) -> String {
    let name = esc(c.name.as_str());
    let act = if c.draining {
        format!(
            "<button type=button data-act=\"POST /v1/undrain?cluster={name}\" data-ask=\"Let {name} take attempts again?\">Undrain…</button>"
        )
    } else {
        format!(
            "<button type=button class=danger data-act=\"POST /v1/drain?cluster={name}\" data-verb=Drain data-ask=\"Drain {name}?\" \
             data-risk=\"It takes nothing new; what runs there is stopped with notice and goes on elsewhere.\">Drain…</button>"
        )
    };
    let act = if c.witness { String::new() } else { act };
    let mut says = match (html::standing(c), c.age_ms) {
        ("alive", Some(age)) => format!("Alive; what it reports last changed {}.", ago(age)),
        ("draining", age) => format!(
            "Takes no new attempts; what ran here goes on elsewhere. What it reports last changed {}.",
            age.map_or_else(|| "at an unknown time".into(), ago)
        ),
        (word, Some(age)) => {
            format!("Not heard as it should be ({word}). All below is from its last report, {}.", ago(age))
        }
        (word, None) => format!("{word}: nothing was ever heard of it here."),
    };
    if let Some(why) = &c.closed {
        let _ = write!(says, " <span class=late>Closed: {}.</span>", esc(why));
    }
    if c.isolated {
        says.push_str(" <span class=late>It says that it reaches nobody.</span>");
    }
    format!(
        "<section class=panel><div class=head><h1>{name}</h1>{}<span class=soft>{}</span><span class=acts>{act}</span></div><p class=says>{says}</p></section>",
        html::word(html::standing(c)).replace("class=\"state", "class=\"state big"),
        esc(&[c.region.as_str(), &c.zone].join(" ")),
    )
}

fn facts(c: &ClusterDocument) -> String {
    let gpus = Gpus::of(c);
    let labels: Vec<String> = c.labels.iter().map(|(k, v)| format!("{}={}", esc(k), esc(v))).collect();
    let free = format!("{:.1} CPU, {} memory", c.cpus_free_milli as f64 / 1e3, Bytes(c.memory_free_bytes));
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let told_it = |text: String| if c.age_ms.is_some() { text } else { "–".into() };
    let all =
        format!("{} used, {} reserved, {} free of {}", gpus.used, gpus.reserved, gpus.free, gpus.total());
    let mut rows: Vec<(&str, String)> = vec![
        ("GPUs", told_it(all)),
        ("Free", told_it(free)),
        ("Work", told_it(format!("{} run, {} wait for {} GPUs", c.running, c.queued, c.queued_gpus))),
        (
            "Backend",
            format!(
                "{}{}",
                if c.witness { "witness: stores records only".into() } else { esc(&c.backend) },
                if c.declared { ", with declared (virtual) nodes" } else { "" }
            ),
        ),
        ("Containers", c.container_runtime.as_deref().map_or_else(|| "no runtime".into(), esc)),
        ("Price", format!("{:.2} USD per GPU hour, PUE {:.2}", c.price_usd, c.pue)),
        ("Version", c.version.as_deref().map_or_else(|| "not told".into(), esc)),
    ];
    if let Some(cpu) = c.cpu_use {
        rows.push(("CPU in use", percent(cpu)));
    }
    rows.push(("GPU in use", c.gpu_use.map_or_else(|| "cannot be measured here".into(), percent)));
    if !labels.is_empty() {
        rows.push(("Labels", labels.join(" ")));
    }
    let rows: String = rows.iter().map(|(k, v)| format!("<dt>{k}</dt><dd>{v}</dd>")).collect();
    panel("Facts", &told([c]), &format!("{}<dl class=facts>{rows}</dl>", html::told_bar(c)))
}

/// What is kept for whom, and when.
fn reservations(c: &ClusterDocument) -> String {
    if c.reservations.is_empty() {
        return String::new();
    }
    let at = |ms| crate::model::timestamp::to_rfc3339(crate::base::WallTime(ms));
    let mut rows = String::new();
    for r in &c.reservations {
        let short =
            if r.short > 0 { format!(" <span class=late>{} short</span>", r.short) } else { String::new() };
        let asked = if r.confirmed { "" } else { " (asked)" };
        let _ = write!(
            rows,
            "<tr data-key=\"{id}\"><th scope=row class=tight>{id}{asked}</th><td>{}</td><td class=n>{}{short}</td>{}{}<td class=tight>{}</td><td class=tight>{}</td></tr>",
            esc(&r.tenant),
            r.gpus,
            cell(r.used.into()),
            cell(r.idle.into()),
            at(r.from_ms),
            at(r.until_ms),
            id = r.id.short(),
        );
    }
    let more = and_more(c.reservations_more.into());
    let table = format!(
        "<div class=scroll><table><thead><tr><th scope=col>Reservation</th><th scope=col>Tenant</th><th scope=col class=n>GPUs</th>\
         <th scope=col class=n>Used</th><th scope=col class=n>Idle</th><th scope=col>From</th><th scope=col>To</th></tr></thead><tbody>{rows}</tbody></table></div>{more}"
    );
    panel("Reserved", &told([c]), &table)
}

fn hardware(c: &ClusterDocument) -> String {
    if c.nodes.is_empty() && c.nodes_out.is_empty() {
        return String::new();
    }
    let mut out: String = c.nodes_out.nodes.iter().fold(String::new(), |mut all, n| {
        let _ = write!(all, "<li>{}: {}</li>", esc(&n.name), esc(&n.why));
        all
    });
    if out.is_empty() && c.nodes_out.more > 0 {
        out = format!("<p>{} nodes take nothing.</p>", c.nodes_out.more);
    } else if !out.is_empty() {
        let more = and_more(c.nodes_out.more.into());
        out = format!("<p>These take nothing:</p><ul class=out>{out}</ul>{more}");
    }
    if let Some(slurm) = &c.slurm {
        let all = [
            ("Partitions", &slurm.partitions, slurm.partitions_more),
            ("Features", &slurm.features, slurm.features_more),
        ];
        for (title, sets, more) in all {
            let named = sets.iter().map(|s| format!("{} ({} of {} up)", esc(&s.name), s.up, s.nodes));
            let more = (more > 0).then(|| format!("and {} more", number(more.into())));
            let named: Vec<String> = named.chain(more).collect();
            if !named.is_empty() {
                let _ = write!(out, "<p class=soft>{title}: {}</p>", named.join(", "));
            }
        }
    }
    let mut rows = String::new();
    for n in &c.nodes {
        let _ = write!(
            rows,
            "<tr><th scope=row class=tight>{}</th>{}<td class=tight>{}</td>{}<td class=n>{}</td><td class=n>{:.0}</td><td class=n>{}</td><td class=\"soft opt\">{}</td></tr>",
            esc(&n.name),
            cell(n.count.into()),
            n.gpu_model.as_deref().map_or_else(|| "no GPU".into(), esc),
            cell(n.gpus.into()),
            if n.gpus > 0 { n.gpu_memory.to_string() } else { String::new() },
            n.cpus.0 as f64 / 1e3,
            n.memory,
            if n.declared { "declared: virtual" } else { "found" },
        );
    }
    panel(
        "Nodes",
        &format!("groups of equal ones, {}", told([c])),
        &format!(
            "<div class=scroll><table><thead><tr><th scope=col>Group</th><th scope=col class=n>Nodes</th><th scope=col>GPU</th><th scope=col class=n>Each</th>\
             <th scope=col class=n>GPU memory</th><th scope=col class=n>CPUs</th><th scope=col class=n>Memory</th><th scope=col class=opt>Origin</th></tr></thead><tbody>{rows}</tbody></table></div>{out}"
        ),
    )
}

fn more(all: u64) -> String {
    and_more(all.saturating_sub(ROWS_MAX as u64))
}

fn and_more(n: u64) -> String {
    if n > 0 { format!("<p class=soft>and {} more</p>", number(n)) } else { String::new() }
}

fn attempts(report: &InspectReport) -> String {
    if report.attempts.is_empty() {
        return panel("Runs here", &asked_now(), "<p class=soft>Nothing.</p>");
    }
    let mut rows = String::new();
    for a in report.attempts.iter().take(ROWS_MAX) {
        let class = if a.phase == "running" { "running" } else { "placed" };
        let _ = write!(
            rows,
            "<tr data-key=\"{id}-{n}\" data-href=\"/jobs/{id}\"><td class=tight><a class=id href=\"/jobs/{id}\">{}</a></td><td>{}</td><td class=tight>{}</td>\
             <td class=tight><span class=\"state {class}\">{}</span></td>{}<td class=n>{n}</td><td class=n>{}</td></tr>",
            a.job.short(),
            cut(&a.name, 48),
            cut(&a.tenant, 24),
            esc(&a.phase),
            cell(a.gpus),
            brief(a.age.as_millis()),
            id = a.job,
            n = a.epoch.0,
        );
    }
    panel(
        "Runs here",
        &asked_now(),
        &format!(
            "<div class=scroll><table><thead><tr><th scope=col>Job</th><th scope=col>Name</th><th scope=col>Tenant</th><th scope=col>Phase</th><th scope=col class=n>GPUs</th>\
             <th scope=col class=n>Attempt</th><th scope=col class=n>For</th></tr></thead><tbody>{rows}</tbody></table></div>{}",
            more(report.attempts.len() as u64)
        ),
    )
}

fn queue(report: &InspectReport) -> String {
    if report.queue.is_empty() {
        return panel("Waits here, in order", &asked_now(), "<p class=soft>Nothing.</p>");
    }
    let mut rows = String::new();
    for (place, c) in report.queue.iter().enumerate().take(ROWS_MAX) {
        let _ = write!(
            rows,
            "<tr data-key=\"q-{id}\" data-href=\"/jobs/{id}\"><td class=n>{}</td><td class=tight><a class=id href=\"/jobs/{id}\">{}</a></td>{}<td class=n>{}</td><td class=\"tight opt\">{}</td><td class=n>{}</td><td class=n>{}</td><td class=why>{}</td></tr>",
            place + 1,
            c.job.short(),
            cell(c.gpus),
            c.priority,
            esc(c.owner.as_str()),
            brief(c.age.as_millis()),
            c.starts_in.map_or_else(|| "–".into(), |wait| format!("in {}", brief(wait.as_millis()))),
            match (c.why.as_str(), c.granted) {
                // Far behind, or told by a peer of an older version.
                ("", true) => "holds a grant".into(),
                ("", false) => "not looked at yet".into(),
                (why, _) => cut(&super::capital(why), WHY_MAX),
            },
            id = c.job,
        );
    }
    panel(
        "Waits here, in order",
        &asked_now(),
        &format!(
            "<div class=scroll><table><thead><tr><th scope=col class=n>#</th><th scope=col>Job</th><th scope=col class=n>GPUs</th><th scope=col class=n>Prio</th>\
             <th scope=col class=opt>Owner</th><th scope=col class=n>For</th><th scope=col class=n>Starts</th><th scope=col>Why</th></tr></thead><tbody>{rows}</tbody></table></div>{}",
            more(report.queue_total.unwrap_or(report.queue.len() as u64))
        ),
    )
}

fn users(report: &InspectReport) -> String {
    let mut tenants: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for a in &report.attempts {
        let sum = tenants.entry(&a.tenant).or_default();
        sum.0 += 1;
        sum.1 += a.gpus;
    }
    if tenants.is_empty() {
        return panel("Who uses it", &asked_now(), "<p class=soft>Nobody.</p>");
    }
    let mut order: Vec<_> = tenants.into_iter().collect();
    order.sort_by(|a, b| b.1.1.cmp(&a.1.1).then(a.0.cmp(b.0)));
    let rows: String = order
        .iter()
        .take(ROWS_MAX)
        .map(|(tenant, (n, gpus))| {
            format!("<tr><th scope=row>{}</th>{}{}</tr>", cut(tenant, 48), cell(*n), cell(*gpus))
        })
        .collect();
    panel(
        "Who uses it",
        &asked_now(),
        &format!(
            "<table><thead><tr><th scope=col>Tenant</th><th scope=col class=n>Attempts</th><th scope=col class=n>GPUs</th></tr></thead><tbody>{rows}</tbody></table>"
        ),
    )
}
