//! `GET /ring`: who is proposed as home for what, who holds how much, who drives jobs, and what moved lately.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::TAU;
use std::fmt::Write;

use axum::extract::State;
use futures::StreamExt;
use serde::Deserialize;

use super::html::{self, cell, esc, panel};
use super::{Answer, Page, answer, asked_now, clusters, job_list, notice, unanswered};
use crate::base::PeerName;
use crate::core::api::Look;
use crate::core::ring::Ring;
use crate::runtime::eventlog::HistoryFilter;
use crate::surface::api::input::Q;
use crate::surface::api::{Api, ApiError, escape, history, local};
use crate::surface::documents::{ClusterDocument, JobList};

/// With more peers than this the view begins with regions, and shows the peers of one; of those it shows, and asks how
/// many records they hold, so many.
const PEERS_MAX: usize = 48;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct RingQuery {
    region: Option<String>,
}

/// What is counted for a peer, or for a region.
#[derive(Default, Clone, Copy)]
struct Part {
    share: f64,
    homes: u64,
    drives: u64,
}

impl Part {
    fn plus(&mut self, other: Part) {
        self.share += other.share;
        self.homes += other.homes;
        self.drives += other.drives;
    }
}

/// The view.
pub async fn ring(State(api): State<Api>, query: Result<Q<RingQuery>, ApiError>) -> Answer {
    let page = async {
        let Q(query) = query?;
        let list = clusters(&api).await;
        let view = api.handle.view();
        let mut ring = Ring::default();
        ring.update(&view);
        let (jobs, age_ms) = job_list(&api).await?;
        let parts = parts(&ring, &list.clusters, &jobs);
        let mut regions: BTreeMap<&str, Vec<&ClusterDocument>> = BTreeMap::new();
        for c in &list.clusters {
            regions.entry(html::region(c)).or_default().push(c);
        }
        let many = list.clusters.len() > PEERS_MAX;
        let region = query.region.as_deref().or(match regions.len() {
            1 if many => regions.keys().next().copied(),
            _ => None,
        });
        let colours = if region.is_some() { "by region" } else { "colours as in the table" };
        let (shares, drawn) = match region {
            None if many => {
                (panel("Shares", "by region", &by_region(&regions, &parts)), by_share(&regions, &parts))
            }
            None => {
                let all: Vec<&ClusterDocument> = list.clusters.iter().collect();
                let table = by_peer(&api, &all, &parts, None).await;
                (panel("Shares", &asked_now(), &table), circle(&ring, &list.clusters))
            }
            Some(region) => {
                let peers = regions
                    .get(region)
                    .ok_or_else(|| ApiError::NotFound(format!("region {region} in this mesh")))?;
                let back = "<p><a href=\"/ring\">All regions</a></p>";
                let colour = regions.keys().position(|r| *r == region);
                let table = by_peer(&api, peers, &parts, colour).await + back;
                let note = format!("region {}; {}", esc(region), asked_now());
                (panel("Shares", &note, &table), by_share(&regions, &parts))
            }
        };
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
            "<div class=head><h1>Ownership ring</h1><span class=soft>jobs as of {}</span></div>{}{}<div class=\"pair wide\">{shares}{}</div>{}",
            html::ago(age_ms),
            notice(&list),
            unanswered(&jobs),
            panel("Ring", colours, &drawn),
            panel("Home sets that moved", &asked_now(), &moved),
        );
        Ok(Page { title: "Ring".into(), menu: "/ring", live: "view jobs", body })
    };
    let page = page.await;
    answer(&api, "/ring", page)
}

fn parts(ring: &Ring, clusters: &[ClusterDocument], jobs: &JobList) -> BTreeMap<PeerName, Part> {
    let alive: BTreeSet<&PeerName> =
        clusters.iter().filter(|c| c.liveness == "alive").map(|c| &c.name).collect();
    let mut parts: BTreeMap<PeerName, Part> = BTreeMap::new();
    for (peer, share) in ring.shares() {
        parts.entry(peer).or_default().share = share;
    }
    for job in jobs.jobs.iter().filter(|j| !j.done) {
        for home in &job.homes {
            parts.entry(home.clone()).or_default().homes += 1;
        }
        if let Some(owner) = job.homes.iter().find(|h| alive.contains(h)) {
            parts.entry(owner.clone()).or_default().drives += 1;
        }
    }
    parts
}

fn dot(n: usize) -> String {
    format!(
        "<svg class=dot viewBox=\"0 0 10 10\" aria-hidden=true><circle class=\"b{}\" cx=5 cy=5 r=5 /></svg>",
        colour(n)
    )
}

/// Eight colours in six shades, so that each row has its own, and grey for what has no row.
fn colour(n: usize) -> String {
    match n < PEERS_MAX {
        true => format!("{} s{}", n % 8, n / 8),
        false => "8".into(),
    }
}

const RULES: &str = "<p class=soft>The ring proposes the homes of new records. A record's own homes stand in it: they move \
    only when one is lost, drained or removed. The first alive home of a job drives it.</p>";

/// A row a peer, those with most first where there are too many; all of one colour where the ring shows them as one.
async fn by_peer(
    api: &Api,
    peers: &[&ClusterDocument],
    parts: &BTreeMap<PeerName, Part>,
    colour: Option<usize>,
) -> String {
    let part = |c: &ClusterDocument| parts.get(&c.name).copied().unwrap_or_default();
    let mut shown: Vec<(usize, &ClusterDocument)> = peers.iter().copied().enumerate().collect();
    if shown.len() > PEERS_MAX {
        shown.sort_by(|(_, a), (_, b)| {
            let (x, y) = (part(a), part(b));
            (y.homes, y.share).partial_cmp(&(x.homes, x.share)).unwrap_or(Ordering::Equal)
        });
        shown.truncate(PEERS_MAX);
    }
    let alive = shown.iter().filter(|(_, c)| c.liveness == "alive").map(|(_, c)| c.name.clone());
    let records = records(api, alive.collect()).await;
    let mut rows = String::new();
    for (n, c) in &shown {
        let held = match records.get(&c.name) {
            Some(Some(n)) => cell(*n),
            _ => "<td class=\"n soft\">not told</td>".into(),
        };
        let (part, name) = (part(c), esc(c.name.as_str()));
        let _ = write!(
            rows,
            "<tr data-key=\"{name}\"><th scope=row class=tight>{} <a href=\"/clusters/{name}\">{name}</a></th>\
             <td class=tight>{}</td><td class=n>{:.1} %</td>{held}{}{}</tr>",
            dot(colour.unwrap_or(*n)),
            html::word(html::standing(c)),
            100.0 * part.share,
            cell(part.homes),
            cell(part.drives),
        );
    }
    let more = match peers.len() - shown.len() {
        0 => String::new(),
        n => format!(
            "<p class=soft>and {} more peers: these are home to most live jobs</p>",
            html::number(n as u64)
        ),
    };
    format!(
        "<div class=scroll><table><thead><tr><th scope=col>Peer</th><th scope=col>State</th><th scope=col class=n>Share</th><th scope=col class=n>Records</th>\
         <th scope=col class=n>Home of live jobs</th><th scope=col class=n>Drives</th></tr></thead><tbody>{rows}</tbody></table></div>{more}{RULES}"
    )
}

fn by_region(regions: &BTreeMap<&str, Vec<&ClusterDocument>>, parts: &BTreeMap<PeerName, Part>) -> String {
    let mut rows = String::new();
    for (n, (region, peers)) in regions.iter().enumerate().take(PEERS_MAX) {
        let sum = sum(peers, parts);
        let alive = peers.iter().filter(|c| c.liveness == "alive").count();
        let class = if alive < peers.len() { " class=\"n late\"" } else { " class=n" };
        let _ = write!(
            rows,
            "<tr data-key=\"r-{name}\"><th scope=row class=tight>{} <a href=\"/ring?region={}\">{name}</a></th>\
             <td{class}>{alive} of {}</td><td class=n>{:.1} %</td>{}{}</tr>",
            dot(n),
            escape(region),
            peers.len(),
            100.0 * sum.share,
            cell(sum.homes),
            cell(sum.drives),
            name = esc(region),
        );
    }
    let rest: Vec<&ClusterDocument> = regions.values().skip(PEERS_MAX).flatten().copied().collect();
    if !rest.is_empty() {
        let sum = sum(&rest, parts);
        let _ = write!(
            rows,
            "<tr data-key=rest><th scope=row class=tight>{} {} more regions</th><td class=n>{} of {}</td><td class=n>{:.1} %</td>{}{}</tr>",
            dot(PEERS_MAX),
            regions.len() - PEERS_MAX,
            rest.iter().filter(|c| c.liveness == "alive").count(),
            rest.len(),
            100.0 * sum.share,
            cell(sum.homes),
            cell(sum.drives),
        );
    }
    format!(
        "<div class=scroll><table><thead><tr><th scope=col>Region</th><th scope=col class=n>Peers alive</th><th scope=col class=n>Share</th>\
         <th scope=col class=n>Home of live jobs</th><th scope=col class=n>Drives</th></tr></thead><tbody>{rows}</tbody></table></div>\
         <p class=soft>A region has a page with its peers. A job counts once for each of its homes.</p>{RULES}"
    )
}

fn sum(peers: &[&ClusterDocument], parts: &BTreeMap<PeerName, Part>) -> Part {
    peers.iter().filter_map(|c| parts.get(&c.name)).fold(Part::default(), |mut all, part| {
        all.plus(*part);
        all
    })
}

/// Regions as sectors: thousands of arcs of single peers are no picture; those that have no row are one.
fn by_share(regions: &BTreeMap<&str, Vec<&ClusterDocument>>, parts: &BTreeMap<PeerName, Part>) -> String {
    let mut from = 0.0;
    let mut strokes = Vec::new();
    let mut sector = |colour, name: &str, share: f64| {
        strokes.push((from, from + share, colour, format!("{name}: {:.1} %", 100.0 * share)));
        from += share;
    };
    for (n, (region, peers)) in regions.iter().enumerate().take(PEERS_MAX) {
        sector(n, region, sum(peers, parts).share);
    }
    if let Some(rest @ 1..) = regions.len().checked_sub(PEERS_MAX) {
        let share = regions.values().skip(PEERS_MAX).map(|peers| sum(peers, parts).share).sum();
        sector(PEERS_MAX, &format!("{rest} more regions"), share);
    }
    let peers = regions.values().map(Vec::len).sum();
    wheel("Regions by how much of the ring their peers are first for", strokes, peers, "summed by region")
}

/// Records that each peer holds; none of one that does not answer.
async fn records(api: &Api, alive: Vec<PeerName>) -> BTreeMap<PeerName, Option<u64>> {
    let asked = alive.into_iter().map(|name| {
        let api = api.clone();
        async move {
            let report = local::report_of(&api, &name, Look::default(), local::ANSWERS_WITHIN).await.ok();
            (name, report.map(|r| r.records as u64))
        }
    });
    futures::stream::iter(asked).buffer_unordered(16).collect().await
}

fn circle(ring: &Ring, clusters: &[ClusterDocument]) -> String {
    let index: BTreeMap<&PeerName, usize> = clusters.iter().enumerate().map(|(i, c)| (&c.name, i)).collect();
    // Neighbouring parts of one peer are one stroke.
    let mut strokes: Vec<(f64, f64, &PeerName)> = Vec::new();
    for (from, to, peer) in ring.arcs() {
        match strokes.last_mut() {
            Some((_, end, last)) if *last == peer => *end = to,
            _ => strokes.push((from, to, peer)),
        }
    }
    let strokes = strokes
        .into_iter()
        .map(|(from, to, peer)| (from, to, index.get(peer).copied().unwrap_or(PEERS_MAX), peer.to_string()));
    wheel("The ring, coloured by who is first for each part", strokes, clusters.len(), "32 points each")
}

/// A wheel of strokes: from, to, colour, name.
fn wheel(
    label: &str,
    strokes: impl IntoIterator<Item = (f64, f64, usize, String)>,
    peers: usize,
    below: &str,
) -> String {
    let mut out = format!("<svg class=drawing viewBox=\"0 0 320 320\" role=img aria-label=\"{label}\">");
    let at = |share: f64| {
        let angle = TAU * share - TAU / 4.0;
        (160.0 + 125.0 * angle.cos(), 160.0 + 125.0 * angle.sin())
    };
    for (from, to, colour, name) in strokes {
        let ((x1, y1), (x2, y2)) = (at(from), at(to));
        let (colour, big) = (self::colour(colour), u8::from(to - from > 0.5));
        if to - from >= 0.9999 {
            let _ = write!(out, "<circle class=\"share a{colour}\" cx=160 cy=160 r=125 />");
        } else {
            let _ = write!(
                out,
                "<path class=\"share a{colour}\" d=\"M{x1:.1} {y1:.1}A125 125 0 {big} 1 {x2:.1} {y2:.1}\"><title>{}</title></path>",
                esc(&name)
            );
        }
    }
    let _ = write!(
        out,
        "<text x=160 y=158 text-anchor=middle>{peers} peers</text><text class=soft x=160 y=176 text-anchor=middle>{below}</text></svg>"
    );
    out
}
