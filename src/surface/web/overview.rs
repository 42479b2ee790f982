//! `GET /`: capacity, use over time, and the tree of regions and clusters.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::State;

use super::html::{self, Gpus, cell, esc, number, panel};
use super::memory::{Memory, SAMPLE_EVERY, Sample};
use super::{Answer, Page, answer, clusters, notice, told};
use crate::surface::api::Api;
use crate::surface::documents::{ClusterDocument, ClusterList, wall_now};

/// With more clusters than this, node groups are on the clusters' own pages only.
const NODES_SHOWN_UP_TO: usize = 12;

/// The view.
pub async fn overview(State(api): State<Api>) -> Answer {
    let list = clusters(&api).await;
    let body = format!(
        "<h1 class=hidden>Overview</h1>{}{}{}<div class=pair>{}{}</div>{}",
        notice(&list),
        super::incidents::banner(&api),
        tiles(&list),
        models(&list),
        over_time(&api.memory),
        tree(&list)
    );
    answer(&api, "/", Ok(Page { title: "Overview".into(), menu: "/", live: "view tick", body }))
}

fn sums(list: &ClusterList) -> (Gpus, u64, u64) {
    let (mut gpus, mut running, mut queued) = (Gpus::default(), 0, 0);
    for c in &list.clusters {
        gpus.plus(Gpus::of(c));
        if c.liveness == "alive" {
            running += u64::from(c.running);
            queued += u64::from(c.queued);
        }
    }
    (gpus, running, queued)
}

fn tiles(list: &ClusterList) -> String {
    let (gpus, running, queued) = sums(list);
    let up = list.clusters.iter().filter(|c| c.liveness == "alive").count();
    let tile = |href: &str, big: String, small: String, what: &str| {
        format!("<a class=tile href=\"{href}\"><b>{big} <small>{small}</small></b><span>{what}</span></a>")
    };
    let alive = gpus.total() - gpus.down;
    let percent = (100 * gpus.used).checked_div(alive).map_or_else(|| "–".to_owned(), |n| format!("{n} %"));
    let told = told(&list.clusters);
    format!(
        "<div class=tiles>{}{}{}{}{}</div><p class=\"soft told\">As the clusters say: {told}.</p>",
        tile("/clusters", number(gpus.free), format!("of {}", number(gpus.total())), "GPUs free"),
        tile("/clusters", percent, String::new(), "of reachable GPUs in use"),
        tile("/jobs?state=running", number(running), String::new(), "attempts run"),
        tile("/jobs?state=pending", number(queued), String::new(), "claims wait (up to 3 a job)"),
        tile("/clusters", up.to_string(), format!("of {}", list.clusters.len()), "peers alive"),
    )
}

fn models(list: &ClusterList) -> String {
    let mut models: BTreeMap<&str, Gpus> = BTreeMap::new();
    for c in &list.clusters {
        for (model, count) in &c.gpus {
            models.entry(model).or_default().add(count, c.liveness == "alive");
        }
    }
    if models.is_empty() {
        return panel("GPUs by model", "", "<p>No cluster has told of GPUs yet.</p>");
    }
    let mut rows = String::new();
    for (model, gpus) in &models {
        let _ = write!(
            rows,
            "<tr data-key=\"m-{m}\"><th scope=row class=tight>{m}</th><td>{}</td>{}{}{}{}{}</tr>",
            gpus.bar(),
            cell(gpus.used),
            cell(gpus.reserved),
            cell(gpus.free),
            cell(gpus.down),
            cell(gpus.total()),
            m = esc(model)
        );
    }
    let declared = list.clusters.iter().any(|c| c.declared);
    let note = if declared { "; some are declared, not found: virtual" } else { "" };
    let note = told(&list.clusters) + note;
    let table = format!(
        "<div class=scroll><table><thead><tr><th scope=col>Model</th><th scope=col><span class=hidden>Shares</span></th>\
         <th scope=col class=n>Used</th><th scope=col class=n>Res.</th><th scope=col class=n>Free</th><th scope=col class=n>Down</th>\
         <th scope=col class=n>All</th></tr></thead><tbody>{rows}</tbody></table></div>{}",
        html::gpu_key()
    );
    panel("GPUs by model", &note, &table)
}

/// A curve of a share over the samples; `of` gives used and all.
pub(super) fn curve(samples: &[Sample], name: &str, of: impl Fn(&Sample) -> Option<(u64, u64)>) -> String {
    let now = wall_now().0;
    let points: Vec<(u64, f64)> = samples
        .iter()
        .filter_map(|s| {
            of(s).filter(|(_, all)| *all > 0).map(|(used, all)| (s.at_ms, used as f64 / all as f64))
        })
        .collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return "<p>No sample yet; one is taken every 10 s.</p>".into();
    };
    let span = now.saturating_sub(first.0).max(60_000) as f64;
    let back = |at: u64| 1_000.0 - 1_000.0 * now.saturating_sub(at) as f64 / span;
    let mut line = String::new();
    for (at, share) in &points {
        let _ = write!(line, "{:.0},{:.1} ", back(*at), 100.0 - 100.0 * share);
    }
    let (begin, end, age) = (back(first.0), back(last.0), now.saturating_sub(last.0));
    let said = if age < 25_000 { "now".into() } else { format!("{} ago, none since", html::brief(age)) };
    format!(
        "<div class=plot><div class=y aria-hidden=true><span>100 %</span><span>50</span><span>0</span></div>\
         <svg viewBox=\"0 0 1000 100\" preserveAspectRatio=none role=img aria-label=\"{}: {:.0} % {said}, {:.0} % at most\">\
         <line x1=0 y1=0.5 x2=1000 y2=0.5 /><line x1=0 y1=50 x2=1000 y2=50 />\
         <polygon class=area points=\"{begin:.0},100 {line}{end:.0},100\"/><polyline class=stroke points=\"{line}\"/></svg>\
         <div class=x><span>{} ago</span><span>{:.0} % {said}</span></div></div>",
        esc(name),
        100.0 * last.1,
        100.0 * points.iter().map(|p| p.1).fold(0.0, f64::max),
        html::brief(span as u64),
        100.0 * last.1,
    )
}

fn over_time(memory: &Memory) -> String {
    let samples = memory.samples();
    let note = match samples.first() {
        Some(first) => format!(
            "every {} s since this peer looks, {}",
            SAMPLE_EVERY.as_secs(),
            html::lasting(wall_now().0.saturating_sub(first.at_ms))
        ),
        None => String::new(),
    };
    let reachable = |s: &Sample| Some((s.gpus.used, s.gpus.total() - s.gpus.down));
    panel("GPUs in use over time", &note, &curve(&samples, "GPUs in use over time", reachable))
}

fn tree(list: &ClusterList) -> String {
    let mut regions: BTreeMap<&str, Vec<&ClusterDocument>> = BTreeMap::new();
    for c in &list.clusters {
        let region = if c.region.is_empty() { "region not known" } else { &c.region };
        regions.entry(region).or_default().push(c);
    }
    let (all, running, queued) = sums(list);
    let mut rows = String::new();
    branch(
        &mut rows,
        0,
        "mesh",
        &format!("<td class=opt>{}</td>", html::count(regions.len() as u64, "region")),
        all,
        running,
        queued,
        "",
    );
    for (region, clusters) in &regions {
        let part = ClusterList { clusters: clusters.iter().map(|c| (*c).clone()).collect(), isolated: false };
        let (gpus, running, queued) = sums(&part);
        let what = format!("<td class=opt>{}</td>", html::count(clusters.len() as u64, "cluster"));
        let oldest = clusters.iter().filter_map(|c| c.age_ms).max();
        let news = oldest.map_or_else(|| "never".into(), html::ago);
        branch(&mut rows, 1, region, &what, gpus, running, queued, &news);
        for c in clusters {
            leaf(&mut rows, c, list.clusters.len() <= NODES_SHOWN_UP_TO);
        }
    }
    let table = format!(
        "<div class=scroll><table><thead><tr><th scope=col>Where</th><th scope=col class=opt>State</th><th scope=col>GPUs</th>\
         <th scope=col class=n>Free</th><th scope=col class=n>All</th><th scope=col class=n>Run</th><th scope=col class=n>Wait</th>\
         <th scope=col class=\"n opt\">News</th></tr></thead><tbody>{rows}</tbody></table></div>{}",
        html::gpu_key()
    );
    panel("Pool", &format!("mesh, regions, clusters, nodes; {}", told(&list.clusters)), &table)
}

#[allow(clippy::too_many_arguments, reason = "the cells of one row, in order")]
fn branch(
    rows: &mut String,
    level: u8,
    name: &str,
    what: &str,
    gpus: Gpus,
    running: u64,
    queued: u64,
    news: &str,
) {
    let _ = write!(
        rows,
        "<tr class=l{level} data-key=\"t{level}-{n}\"><th scope=row>{n}</th>{what}<td>{}</td>{}{}{}{}<td class=\"n opt\">{news}</td></tr>",
        gpus.bar(),
        cell(gpus.free),
        cell(gpus.total()),
        cell(running),
        cell(queued),
        n = esc(name),
    );
}

fn leaf(rows: &mut String, c: &ClusterDocument, with_nodes: bool) {
    let gpus = Gpus::of(c);
    let gone = if c.liveness == "alive" { "" } else { " gone" };
    let name = esc(c.name.as_str());
    let mut state = html::word(html::standing(c));
    if c.witness {
        state.push_str(" <span class=soft>witness</span>");
    }
    let _ = write!(
        rows,
        "<tr class=\"l2{gone}\" data-key=\"c-{name}\" data-href=\"/clusters/{name}\"><th scope=row><a href=\"/clusters/{name}\">{name}</a></th>\
         <td class=opt>{state}</td><td>{}</td>{}{}{}{}<td class=\"n opt\">{}</td></tr>",
        html::told_bar(c),
        html::told_cell(c, gpus.free),
        html::told_cell(c, gpus.total()),
        html::told_cell(c, c.running.into()),
        html::told_cell(c, c.queued.into()),
        c.age_ms.map_or_else(|| "never".into(), html::ago),
    );
    for node in c.nodes.iter().filter(|_| with_nodes) {
        let model = node.gpu_model.as_deref().map_or_else(
            || "no GPU".to_owned(),
            |model| format!("{} × {} × {}", node.count, node.gpus, esc(model)),
        );
        let _ = write!(
            rows,
            "<tr class=l3 data-key=\"n-{name}-{n}\"><th scope=row>{n}</th><td class=opt>{}</td><td>{model}</td><td></td>{}<td></td><td></td><td class=opt></td></tr>",
            if node.declared { "virtual" } else { "" },
            cell(u64::from(node.gpus) * u64::from(node.count)),
            n = esc(&node.name),
        );
    }
}
