//! Filter and score: pure functions over a view, explained in words and numbers.

use std::collections::BTreeMap;

use super::api::Candidate;
use super::books;
use crate::base::{Instant, PeerName, Span};
use crate::model::report::{Liveness, MemberView, View};
use crate::model::spec::{JobSpec, Policy, Run};

/// A reason against a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// It may pass: worth waiting for.
    pub passing: bool,
    /// How far it is from fitting; the nearest cluster has the least.
    pub distance: u32,
    /// Words and numbers.
    pub text: String,
}

fn never(distance: u32, text: String) -> Option<Reason> {
    Some(Reason { passing: false, distance, text })
}
fn not_now(text: String) -> Option<Reason> {
    Some(Reason { passing: true, distance: 0, text })
}

/// Reports older than this are no ground for a claim.
pub const REPORT_AGE_MAX: Span = Span::secs(120);

/// Each reason against running this job there, hard ones first. Empty: it could start now.
pub fn filter(spec: &JobSpec, member: &MemberView, now: Instant) -> Vec<Reason> {
    let Some(report) = &member.report else {
        return not_now("has not reported yet".into()).into_iter().collect();
    };
    let Some(capacity) = &report.capacity else {
        return not_now("has not reported its capacity yet".into()).into_iter().collect();
    };
    let mut reasons: Vec<Reason> = Vec::new();
    reasons.extend(wish(spec, member));
    for (key, wanted) in &spec.placement.labels {
        let have = capacity.labels.get(key);
        if have != Some(wanted) {
            let have = have.map_or("has no such label".into(), |h| format!("has {h}"));
            reasons.extend(never(2, format!("wants label {key}={wanted}, {have}")));
        }
    }
    if (spec.image.is_some() || spec.run == Run::Image) && capacity.container_runtime.is_none() {
        reasons.extend(never(3, "runs no images: neither podman nor docker is installed".into()));
    }
    reasons.extend(capacity_reason(spec, member));
    reasons.extend(passing(spec, member, report, now));
    reasons
}

fn wish(spec: &JobSpec, member: &MemberView) -> Option<Reason> {
    if member.witness {
        return never(9, "is a witness: it stores records and runs nothing".into());
    }
    let wish = &spec.placement;
    if !wish.clusters.is_empty() && !wish.clusters.contains(&member.peer) {
        return never(5, "is not among placement.clusters".into());
    }
    let region = &member.report.as_ref()?.capacity.as_ref()?.region;
    if !wish.regions.is_empty() && !wish.regions.contains(region) {
        return never(4, format!("is in region {region:?}; wanted: {}", wish.regions.join(", ")));
    }
    None
}

fn capacity_reason(spec: &JobSpec, member: &MemberView) -> Option<Reason> {
    let nodes = &member.report.as_ref()?.capacity.as_ref()?.nodes;
    if books::fits_empty(nodes, spec.nodes, &spec.resources) {
        return None;
    }
    let need = &spec.resources;
    let wanted = if need.gpu.is_empty() { "GPU".to_owned() } else { need.gpu.join(" or ") };
    let of_model = |n: &&crate::model::NodeCapacity| books::model_does(n.gpu_model.as_deref(), need);
    let fitting: Vec<_> = nodes.iter().filter(of_model).collect();
    if need.gpus > 0 && fitting.is_empty() {
        let have: Vec<&str> = nodes.iter().filter_map(|n| n.gpu_model.as_deref()).collect();
        let have = if have.is_empty() { "no GPU".to_owned() } else { have.join(", ") };
        return never(6, format!("wants {wanted}, has {have}"));
    }
    let gpus_total: u64 = fitting.iter().map(|n| u64::from(n.gpus) * u64::from(n.count)).sum();
    let gpus_node = fitting.iter().map(|n| n.gpus).max().unwrap_or(0);
    let cpus = nodes.iter().map(|n| n.cpus).max().unwrap_or_default();
    let memory = nodes.iter().map(|n| n.memory).max().unwrap_or_default();
    let text = if need.gpus > gpus_node {
        format!("wants {} x {wanted} on one node, has {gpus_node}", need.gpus)
    } else if spec.gpus_total() > gpus_total {
        format!("wants {} x {wanted} in all, has {gpus_total}", spec.gpus_total())
    } else if need.cpus > cpus {
        format!("wants {} CPUs on one node, has {cpus}", need.cpus)
    } else if need.memory > memory {
        format!("wants {} of memory on one node, has {memory}", need.memory)
    } else {
        format!(
            "wants {} nodes of {} GPUs, {} CPUs, {} each; has too few such nodes",
            spec.nodes, need.gpus, need.cpus, need.memory
        )
    };
    never(1, text)
}

fn passing(
    spec: &JobSpec,
    member: &MemberView,
    report: &crate::model::Report,
    now: Instant,
) -> Option<Reason> {
    match member.liveness {
        Liveness::Lost => return not_now("is lost: not heard of for long".into()),
        Liveness::Suspect => return not_now("is suspect: not heard of lately".into()),
        Liveness::Alive => {}
    }
    if member.draining {
        return not_now("drains: it takes no new jobs".into());
    }
    let Some(queue) = &report.queue else { return not_now("has not reported its queue yet".into()) };
    if let Some(why) = &queue.closed {
        return not_now(format!("takes no new jobs: {why}"));
    }
    let age = now.since(report.heard_at);
    if age > REPORT_AGE_MAX {
        return not_now(format!("its report is {age} old"));
    }
    let free = free_gpus(spec, member);
    if spec.gpus_total() > free {
        let waiting = queue.queued;
        return not_now(format!(
            "{free} of {} GPUs wanted are free; {waiting} jobs wait there",
            spec.gpus_total()
        ));
    }
    if spec.resources.cpus.0.saturating_mul(u64::from(spec.nodes)) > queue.cpus_free.0 {
        return not_now(format!(
            "{} CPUs are free, wants {} x {}",
            queue.cpus_free, spec.nodes, spec.resources.cpus
        ));
    }
    None
}

/// Free GPUs of models that will do.
fn free_gpus(spec: &JobSpec, member: &MemberView) -> u64 {
    let Some(queue) = member.report.as_ref().and_then(|r| r.queue.as_ref()) else { return 0 };
    let does = |model: &str| books::model_does(Some(model), &spec.resources);
    queue.gpus_free.iter().filter(|(model, _)| does(model)).map(|(_, n)| u64::from(*n)).sum()
}

/// Weights of a policy over the terms, all of which are "more is worse" and about 0 to 1.
fn weights(policy: Policy) -> [(&'static str, f64); 4] {
    let [wait, price, energy, load] = match policy {
        Policy::Balanced | Policy::DataFirst => [1.0, 0.3, 0.1, 0.2],
        Policy::Cheapest => [0.2, 1.0, 0.1, 0.05],
        Policy::Fastest => [1.0, 0.0, 0.0, 0.1],
        Policy::Spread => [0.5, 0.1, 0.0, 1.0],
        Policy::Green => [0.2, 0.1, 1.0, 0.05],
    };
    [("wait", wait), ("price", price), ("energy", energy), ("load", load)]
}

/// The terms of the score of a cluster that could ever run the job.
fn terms(spec: &JobSpec, member: &MemberView, fits_now: bool, assigned_gpus: u64) -> BTreeMap<String, f64> {
    let report = member.report.as_ref();
    let capacity = report.and_then(|r| r.capacity.as_ref());
    let queue = report.and_then(|r| r.queue.as_ref());
    let total: u64 = queue.map_or(0, |q| q.gpus_total.values().map(|n| u64::from(*n)).sum());
    let free: u64 = queue.map_or(0, |q| q.gpus_free.values().map(|n| u64::from(*n)).sum());
    let waiting = queue.map_or(0, |q| q.queued_gpus) + assigned_gpus;
    let share = |part: u64| if total == 0 { 0.0 } else { part as f64 / total as f64 };
    let deducted = free.saturating_sub(assigned_gpus);
    let starts_now = fits_now && deducted >= spec.gpus_total();
    let wait = if starts_now { 0.0 } else { 0.5 + share(waiting) };
    BTreeMap::from([
        ("wait".to_owned(), wait),
        ("price".to_owned(), capacity.map_or(0.0, |c| c.price_milli as f64 / 10_000.0)),
        ("energy".to_owned(), capacity.map_or(0.0, |c| f64::from(c.pue_milli.saturating_sub(1000)) / 1000.0)),
        ("load".to_owned(), 1.0 - share(deducted)),
    ])
}

/// All clusters for one job, best first: those that fit now, then those that may, then the rest.
/// `assigned` is what this owner has given out there and the report does not show yet, in GPUs.
pub fn candidates(
    spec: &JobSpec,
    view: &View,
    assigned: &BTreeMap<PeerName, u64>,
    now: Instant,
) -> Vec<Candidate> {
    let mut rows: Vec<(u32, Candidate)> = Vec::new();
    for member in view.members.values() {
        let reasons = filter(spec, member, now);
        let fits_ever = reasons.iter().all(|r| r.passing);
        let terms = if fits_ever {
            terms(spec, member, reasons.is_empty(), assigned.get(&member.peer).copied().unwrap_or(0))
        } else {
            BTreeMap::new()
        };
        let policy = weights(spec.placement.policy);
        let score =
            fits_ever.then(|| policy.iter().map(|(term, w)| w * terms.get(*term).unwrap_or(&0.0)).sum());
        let distance = reasons.iter().map(|r| r.distance).sum();
        let row = Candidate {
            cluster: member.peer.clone(),
            fits_ever,
            fits_now: reasons.is_empty(),
            reasons: reasons.into_iter().map(|r| r.text).collect(),
            score,
            terms,
            claim: None,
            report_age: member.report.as_ref().map(|r| now.since(r.heard_at)),
        };
        rows.push((distance, row));
    }
    rows.sort_by(|(da, a), (db, b)| {
        let key = |c: &Candidate| c.score.unwrap_or(f64::MAX);
        (!a.fits_ever, !a.fits_now)
            .cmp(&(!b.fits_ever, !b.fits_now))
            .then(key(a).total_cmp(&key(b)))
            .then(da.cmp(db))
            .then(a.cluster.cmp(&b.cluster))
    });
    rows.into_iter().map(|(_, row)| row).collect()
}
