//! `GET /ring`: who is proposed as home for what, who holds how much, who drives jobs, and what moved lately.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::fmt::Write;

use axum::extract::State;
use futures::StreamExt;

use super::html::{self, cell, esc, panel};
use super::{Answer, Page, answer, cluster, clusters, job_list, notice, unanswered};
use crate::base::PeerName;
use crate::core::ring::Ring;
use crate::runtime::eventlog::HistoryFilter;
use crate::surface::api::{Api, history};

/// With more peers than this nobody is asked how many records it holds, and the circle is not drawn.
const ASKED_MAX: usize = 48;

/// The view.
pub async fn ring(State(api): State<Api>) -> Answer {
    let page = async {
        let list = clusters(&api).await;
        let view = api.handle.view();
        let mut ring = Ring::default();
        ring.update(&view);
        let shares = ring.shares();
        let (jobs, age_ms) = job_list(&api).await?;
        let alive = |peer: &PeerName| list.clusters.iter().any(|c| c.name == *peer && c.liveness == "alive");
        let mut homes: BTreeMap<&PeerName, u64> = BTreeMap::new();
        let mut drives: BTreeMap<&PeerName, u64> = BTreeMap::new();
        for job in jobs.jobs.iter().filter(|j| !j.done) {
            for home in &job.homes {
                *homes.entry(home).or_default() += 1;
            }
            if let Some(owner) = job.homes.iter().find(|h| alive(h)) {
                *drives.entry(owner).or_default() += 1;
            }
        }
        let records = records(&api, &list.clusters).await;
        let mut rows = String::new();
        for (i, c) in list.clusters.iter().enumerate() {
            let held = match records.get(&c.name) {
                Some(Some(n)) => cell(*n),
                _ => "<td class=\"n soft\">not told</td>".into(),
            };
            let share = shares.get(&c.name).copied().unwrap_or(0.0);
            let name = esc(c.name.as_str());
            let _ = write!(
                rows,
                "<tr data-key=\"{name}\"><th scope=row class=tight><svg class=dot viewBox=\"0 0 10 10\" aria-hidden=true><circle class=b{} cx=5 cy=5 r=5 /></svg> <a href=\"/clusters/{name}\">{name}</a></th>\
                 <td class=tight>{}</td><td class=n>{:.1} %</td>{held}{}{}</tr>",
                i % 8,
                html::word(html::standing(c)),
                100.0 * share,
                cell(homes.get(&c.name).copied().unwrap_or(0)),
                cell(drives.get(&c.name).copied().unwrap_or(0)),
            );
        }
        let table = format!(
            "<div class=scroll><table><thead><tr><th scope=col>Peer</th><th scope=col>State</th><th scope=col class=n>Share</th><th scope=col class=n>Records</th>\
             <th scope=col class=n>Home of live jobs</th><th scope=col class=n>Drives</th></tr></thead><tbody>{rows}</tbody></table></div>\
             <p class=soft>The ring proposes the homes of new records. A record's own homes stand in it: they move only when one is lost, drained or removed. \
             The first alive home of a job drives it.</p>"
        );
        let moved = match api.handle.log() {
            Some(_) => {
                let filter =
                    HistoryFilter { kind: "job.homes_moved".into(), limit: 20, ..HistoryFilter::default() };
                history::everywhere(&api, filter).await?.events
            }
            None => Vec::new(),
        };
        let moved = if moved.is_empty() {
            "<p class=soft>None that is still written down.</p>".into()
        } else {
            super::events::table(&moved, true)
        };
        let body = format!(
            "<div class=head><h1>Ownership ring</h1><span class=soft>jobs as of {}</span></div>{}{}<div class=\"pair wide\">{}{}</div>{}",
            html::ago(age_ms),
            notice(&list),
            unanswered(&jobs),
            panel("Shares", "", &table),
            panel("Ring", "colours as in the table", &circle(&ring, &list.clusters)),
            panel("Home sets that moved", "", &moved),
        );
        Ok(Page { title: "Ring".into(), menu: "/ring", live: "view jobs", body })
    };
    let page = page.await;
    answer(&api, "/ring", page)
}

/// Records that each peer holds; none of one that does not answer.
async fn records(
    api: &Api,
    clusters: &[crate::surface::documents::ClusterDocument],
) -> BTreeMap<PeerName, Option<u64>> {
    if clusters.len() > ASKED_MAX {
        return BTreeMap::new();
    }
    let alive: Vec<PeerName> =
        clusters.iter().filter(|c| c.liveness == "alive").map(|c| c.name.clone()).collect();
    let asked = alive.into_iter().map(|name| {
        let api = api.clone();
        async move {
            let report = cluster::inspect(&api, &name).await.ok();
            (name, report.map(|r| r.records as u64))
        }
    });
    futures::stream::iter(asked).buffer_unordered(16).collect().await
}

fn circle(ring: &Ring, clusters: &[crate::surface::documents::ClusterDocument]) -> String {
    if clusters.len() > ASKED_MAX {
        return "<p class=soft>Too many peers to draw.</p>".into();
    }
    let index: BTreeMap<&PeerName, usize> = clusters.iter().enumerate().map(|(i, c)| (&c.name, i)).collect();
    let mut out = String::from(
        "<svg class=drawing viewBox=\"0 0 320 320\" role=img aria-label=\"The ring, coloured by who is first for each part\">",
    );
    let at = |share: f64| {
        let angle = TAU * share - TAU / 4.0;
        (160.0 + 125.0 * angle.cos(), 160.0 + 125.0 * angle.sin())
    };
    // Neighbouring parts of one peer are one stroke.
    let mut strokes: Vec<(f64, f64, &PeerName)> = Vec::new();
    for (from, to, peer) in ring.arcs() {
        match strokes.last_mut() {
            Some((_, end, last)) if *last == peer => *end = to,
            _ => strokes.push((from, to, peer)),
        }
    }
    for (from, to, peer) in strokes {
        let ((x1, y1), (x2, y2)) = (at(from), at(to));
        let colour = index.get(peer).copied().unwrap_or(0) % 8;
        let big = u8::from(to - from > 0.5);
        if to - from >= 0.9999 {
            let _ = write!(out, "<circle class=\"share a{colour}\" cx=160 cy=160 r=125 />");
        } else {
            let _ = write!(
                out,
                "<path class=\"share a{colour}\" d=\"M{x1:.1} {y1:.1}A125 125 0 {big} 1 {x2:.1} {y2:.1}\"><title>{}</title></path>",
                esc(peer.as_str())
            );
        }
    }
    let _ = write!(
        out,
        "<text x=160 y=158 text-anchor=middle>{} peers</text><text class=soft x=160 y=176 text-anchor=middle>32 points each</text></svg>",
        clusters.len()
    );
    out
}
