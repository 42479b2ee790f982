//! `GET /links`: what peers measured of one another, as a heat map and as a ring of regions.

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::TAU;
use std::fmt::Write;

use axum::extract::State;
use serde::Deserialize;

use super::html::{ago, brief, esc, number, panel, region};
use super::{Answer, Page, answer, clusters, notice};
use crate::surface::api::input::Q;
use crate::surface::api::{Api, ApiError, mesh};
use crate::surface::documents::{ClusterDocument, LinkDocument};

/// A measurement older than this is shown as old.
const OLD_MS: u64 = 60_000;
/// With more clusters the matrix shows regions unless asked for all.
const CLUSTERS_MAX: usize = 40;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct LinksQuery {
    show: String,
    all: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Rtt,
    Bandwidth,
    Loss,
}

impl Show {
    const ALL: [(Show, &str, &str); 3] = [
        (Show::Rtt, "rtt", "Round trip"),
        (Show::Bandwidth, "bandwidth", "Bandwidth"),
        (Show::Loss, "loss", "Loss"),
    ];

    /// Level from 0 (good) to 5, and the text of it.
    fn of(self, link: &LinkDocument) -> Option<(usize, String)> {
        let level = |x: f64, steps: [f64; 5]| steps.iter().take_while(|s| x >= **s).count();
        Some(match self {
            Show::Rtt => (level(link.rtt_ms, [2.0, 10.0, 40.0, 100.0, 200.0]), milliseconds(link.rtt_ms)),
            Show::Loss => {
                (level(link.loss, [1e-6, 1e-3, 5e-3, 2e-2, 0.1]), format!("{:.2} %", 100.0 * link.loss))
            }
            Show::Bandwidth => {
                let bps = link.bandwidth_bps? as f64;
                (level(1.0 / bps.max(1.0), [1e-10, 1e-9, 1.0 / 3e8, 1e-8, 1e-7]), bits(bps))
            }
        })
    }
}

fn milliseconds(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

fn bits(bps: f64) -> String {
    match bps {
        b if b >= 1e10 => format!("{:.0} Gb/s", b / 1e9),
        b if b >= 1e9 => format!("{:.1} Gb/s", b / 1e9),
        b if b >= 1e6 => format!("{:.0} Mb/s", b / 1e6),
        b => format!("{:.0} kb/s", b / 1e3),
    }
}

/// The view.
pub async fn links(State(api): State<Api>, query: Result<Q<LinksQuery>, ApiError>) -> Answer {
    let page = async {
        let Q(query) = query?;
        let show = Show::ALL
            .iter()
            .find(|(_, key, _)| query.show == *key || (query.show.is_empty() && *key == "rtt"))
            .ok_or_else(|| ApiError::BadRequest("show: not rtt, bandwidth or loss".into()))?
            .0;
        let list = clusters(&api).await;
        let links = mesh::links(State(api.clone())).await.0.links;
        let regions = !query.all && list.clusters.len() > CLUSTERS_MAX;
        let mut tabs = String::from("<nav class=tabs aria-label=\"What to show\">");
        for (one, key, name) in Show::ALL {
            let here = if one == show { " aria-current=true" } else { "" };
            let _ = write!(tabs, "<a href=\"/links?show={key}\"{here}>{name}</a>");
        }
        tabs.push_str("</nav>");
        let whole = if regions {
            format!(
                "<p class=soft>{} clusters: best of each pair of regions. <a href=\"/links?all=true\">Every pair</a></p>",
                list.clusters.len()
            )
        } else {
            String::new()
        };
        let matrix = format!("{}{whole}", matrix(&list.clusters, &links, show, regions));
        let body = format!(
            "<div class=head><h1>Links</h1>{tabs}</div>{}<div class=\"pair wide\">{}{}</div>{}",
            notice(&list),
            panel("Matrix", "rows measured the way to columns", &matrix),
            panel(
                "Ring of regions",
                "clusters by region, coloured by round trip",
                &drawing(&list.clusters, &links)
            ),
            if list.clusters.len() <= CLUSTERS_MAX { every(&links) } else { String::new() },
        );
        Ok(Page { title: "Links".into(), menu: "/links", live: "tick", body })
    };
    let page = page.await;
    answer(&api, "/links", page)
}

fn matrix(clusters: &[ClusterDocument], links: &[LinkDocument], show: Show, regions: bool) -> String {
    let name_of: BTreeMap<&str, &str> = clusters
        .iter()
        .map(|c| (c.name.as_str(), if regions { region(c) } else { c.name.as_str() }))
        .collect();
    let names: BTreeSet<&str> = name_of.values().copied().collect();
    let mut best: BTreeMap<(&str, &str), &LinkDocument> = BTreeMap::new();
    for link in links {
        let (Some(from), Some(to)) = (name_of.get(link.from.as_str()), name_of.get(link.to.as_str())) else {
            continue;
        };
        if from != to || !regions {
            let kept = best.entry((from, to)).or_insert(link);
            if link.rtt_ms < kept.rtt_ms {
                *kept = link;
            }
        }
    }
    if best.is_empty() {
        return "<p>Nothing was measured yet: a mesh of one, or one that has just met.</p>".into();
    }
    let small = names.len() <= 16;
    let mut out = String::from(
        "<div class=scroll><table class=heat><thead><tr><th scope=col><span class=hidden>From</span></th>",
    );
    for to in &names {
        let _ = write!(out, "<th scope=col>{}</th>", esc(to));
    }
    out.push_str("</tr></thead><tbody>");
    for from in &names {
        let _ = write!(out, "<tr><th scope=row>{}</th>", esc(from));
        for to in &names {
            match best.get(&(*from, *to)) {
                _ if from == to => out.push_str("<td class=self aria-label=itself>·</td>"),
                None => out.push_str("<td class=none>none</td>"),
                Some(link) => {
                    let (level, text) = show.of(link).map_or((None, "–".into()), |(l, t)| (Some(l), t));
                    let class = match level {
                        _ if link.age_ms > OLD_MS => "old".into(),
                        None => "none".into(),
                        Some(level) => format!("h{level}"),
                    };
                    let relay = if link.direct { "" } else { " relayed" };
                    let age = if show == Show::Bandwidth { link.bandwidth_age_ms } else { Some(link.age_ms) };
                    let small = if small {
                        format!("<small>{}{relay}</small>", age.map_or_else(|| "never".into(), brief))
                    } else {
                        String::new()
                    };
                    let _ = write!(out, "<td class={class}>{text}{small}</td>");
                }
            }
        }
        out.push_str("</tr>");
    }
    let shown = || best.values().filter(|l| l.from != l.to);
    let ages =
        || shown().filter_map(|l| if show == Show::Bandwidth { l.bandwidth_age_ms } else { Some(l.age_ms) });
    let between = match (ages().min(), ages().max()) {
        (Some(newest), Some(oldest)) => format!("measured {} to {}", ago(newest), ago(oldest)),
        _ => "nothing was measured yet".into(),
    };
    // Also a direction whose bandwidth alone is not known.
    let all = names.len() * names.len().saturating_sub(1);
    let missing = all.saturating_sub(ages().count());
    let missing = match missing {
        0 => String::new(),
        n => format!("<span>{} of {} directions are not known</span>", number(n as u64), number(all as u64)),
    };
    let _ = write!(
        out,
        "</tbody></table></div><p class=key><span>{between}</span>{missing}<span>small: age of the figure</span>\
         <span>grey: older than a minute, or not measured</span></p>"
    );
    out
}

fn drawing(clusters: &[ClusterDocument], links: &[LinkDocument]) -> String {
    let mut order: Vec<&ClusterDocument> = clusters.iter().collect();
    order.sort_by(|a, b| region(a).cmp(region(b)).then(a.name.cmp(&b.name)));
    let n = order.len().max(1) as f64;
    let at = |i: f64, r: f64| {
        let angle = TAU * i / n - TAU / 4.0;
        (240.0 + r * angle.cos(), 190.0 + r * angle.sin())
    };
    let place: BTreeMap<&str, usize> = order.iter().enumerate().map(|(i, c)| (c.name.as_str(), i)).collect();
    let mut out = String::from(
        "<svg class=drawing viewBox=\"0 0 480 380\" role=img aria-label=\"Clusters on a ring of regions, with the links between them\"><circle class=arc cx=240 cy=190 r=130 />",
    );
    let lines = if clusters.len() <= CLUSTERS_MAX { links } else { &[] };
    for link in lines.iter().filter(|l| l.from < l.to) {
        let (Some(a), Some(b)) = (place.get(link.from.as_str()), place.get(link.to.as_str())) else {
            continue;
        };
        let ((x1, y1), (x2, y2)) = (at(*a as f64, 130.0), at(*b as f64, 130.0));
        let level = Show::Rtt.of(link).map_or(5, |(l, _)| l);
        let old = if link.age_ms > OLD_MS { " old" } else { "" };
        let _ = write!(
            out,
            "<path class=\"wire w{level}{old}\" d=\"M{x1:.0} {y1:.0}Q240 190 {x2:.0} {y2:.0}\"><title>{} to {}: {}, {} ago</title></path>",
            esc(link.from.as_str()),
            esc(link.to.as_str()),
            milliseconds(link.rtt_ms),
            brief(link.age_ms)
        );
    }
    let mut said = BTreeSet::new();
    for (i, c) in order.iter().enumerate() {
        let ((x, y), (tx, ty)) = (at(i as f64, 130.0), at(i as f64, 154.0));
        let class = if c.liveness == "alive" { "" } else { &c.liveness };
        let anchor = if (tx - 240.0).abs() < 25.0 {
            "middle"
        } else if tx > 240.0 {
            "start"
        } else {
            "end"
        };
        let _ = write!(
            out,
            "<circle class=\"node {class}\" cx=\"{x:.0}\" cy=\"{y:.0}\" r=8><title>{} {class}</title></circle>",
            esc(c.name.as_str())
        );
        if order.len() <= 24 {
            let _ = write!(
                out,
                "<text x=\"{tx:.0}\" y=\"{:.0}\" text-anchor={anchor}>{}</text>",
                ty + 4.0,
                esc(c.name.as_str())
            );
        }
        if said.insert(region(c)) && said.len() <= 24 {
            let shift = if order.len() <= 24 {
                if ty < 190.0 && anchor == "middle" { -11.0 } else { 18.0 }
            } else {
                4.0
            };
            let _ = write!(
                out,
                "<text class=soft x=\"{tx:.0}\" y=\"{:.0}\" text-anchor={anchor}>{}</text>",
                ty + shift,
                esc(region(c))
            );
        }
    }
    out + "</svg>"
}

fn every(links: &[LinkDocument]) -> String {
    let mut rows = String::new();
    for l in links {
        let late = if l.age_ms > OLD_MS { " class=late" } else { "" };
        let _ = write!(
            rows,
            "<tr><th scope=row class=tight>{}</th><td class=tight>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{:.2} %</td><td class=tight>{}</td><td class=n><span{late}>{}</span></td></tr>",
            esc(l.from.as_str()),
            esc(l.to.as_str()),
            milliseconds(l.rtt_ms),
            l.bandwidth_bps.map_or_else(|| "–".into(), |b| bits(b as f64)),
            l.bandwidth_age_ms.map_or_else(|| "never".into(), ago),
            100.0 * l.loss,
            if l.direct { "direct" } else { "through another" },
            ago(l.age_ms),
        );
    }
    panel(
        "Every direction",
        "",
        &format!(
            "<div class=scroll><table><thead><tr><th scope=col>From</th><th scope=col>To</th><th scope=col class=n>Round trip</th><th scope=col class=n>Bandwidth</th>\
             <th scope=col class=n>measured</th><th scope=col class=n>Loss</th><th scope=col>Way</th><th scope=col class=n>Read</th></tr></thead><tbody>{rows}</tbody></table></div>"
        ),
    )
}
