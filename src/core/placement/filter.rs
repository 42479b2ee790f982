//! The filter: each reason against a cluster, hard ones first. Hard reasons change only with what a cluster is
//! (capacity, terms, data); passing ones with what it is doing.

use std::collections::BTreeMap;

use super::reason::Reason;
use super::site::{Shape, Site};
use crate::base::{Instant, Span, WallTime};
use crate::core::reserve::reserved_words;
use crate::model::partitions::{Needs, NodeSet};
use crate::model::report::Liveness;
use crate::model::spec::{JobSpec, Run};

/// Reports older than this are no ground for a claim.
pub const REPORT_AGE_MAX: Span = Span::secs(120);

/// Takes a reason; false ends the search, where one is enough.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Reason) -> bool;

/// Which of the mesh's GPU models will do, by their number: compared once per class of jobs, not once per cluster.
pub(super) struct Does<'a>(pub &'a [bool]);

impl Does<'_> {
    fn shape(&self, spec: &JobSpec, shape: &Shape) -> bool {
        spec.resources.gpus == 0
            || shape.model.is_some_and(|m| self.0.get(usize::from(m)).copied().unwrap_or(false))
    }

    /// Of these free GPUs ([`free_for`]), those that `each` of a node can be made of: on nodes in use, and in all. A
    /// report of a version that does not say which nodes are in use is taken to have none of these.
    pub fn room(&self, site: &Site, each: u32, free: u64) -> (u64, u64) {
        let each = u64::from(each.max(1));
        let does = |m: u16| self.0.get(usize::from(m)).copied().unwrap_or(false);
        let (mut left, mut loose) = (0u64, 0u64);
        for (_, gpus, nodes) in site.gpus_left.iter().filter(|(m, ..)| does(*m)) {
            let (gpus, nodes) = (u64::from(*gpus), u64::from(*nodes));
            loose = loose.saturating_add(gpus * nodes);
            left = left.saturating_add(gpus / each * each * nodes);
        }
        let left = left.min(free);
        (left, left + free.saturating_sub(loose) / each * each)
    }

    /// GPUs of models that will do, out of figures by model.
    pub fn sum(&self, by_model: &[(u16, u32)]) -> u64 {
        let does = |m: u16| self.0.get(usize::from(m)).copied().unwrap_or(false);
        by_model.iter().filter(|(m, _)| does(*m)).map(|(_, n)| u64::from(*n)).sum()
    }
}

/// Reasons that hold whatever the cluster is doing.
pub(super) fn hard(spec: &JobSpec, site: &Site, does: &Does<'_>, names: &[String], sink: Sink<'_>) {
    let _enough = try_hard(spec, site, does, names, sink);
}

/// It has wishes that only the owner holds a cluster's own words against. What it needs of nodes, and images, the
/// cluster itself refuses where it has none.
pub(super) fn needs_capacity(spec: &JobSpec) -> bool {
    let wish = &spec.placement;
    let any = !(wish.regions.is_empty() && wish.zones.is_empty() && wish.labels.is_empty());
    any || !wish.compliance.is_empty() || wish.price_max_milli.is_some()
}

/// As `hard`; none once the sink has enough.
fn try_hard(spec: &JobSpec, site: &Site, does: &Does<'_>, names: &[String], sink: Sink<'_>) -> Option<()> {
    let mut no = |reason: Reason| if sink(reason) { Some(()) } else { None };
    let member = &site.member;
    if member.witness {
        return no(Reason::Witness);
    }
    let wish = &spec.placement;
    if !wish.clusters.is_empty() && !wish.clusters.contains(&member.peer) {
        no(Reason::NotChosen)?;
    }
    let Some(capacity) = member.report.as_ref().and_then(|r| r.capacity.as_ref()) else { return Some(()) };
    if !wish.regions.is_empty() && !wish.regions.contains(&capacity.region) {
        no(Reason::Region { have: capacity.region.clone(), wanted: wish.regions.clone() })?;
    }
    if !wish.zones.is_empty() && !wish.zones.contains(&capacity.zone) {
        no(Reason::Zone { have: capacity.zone.clone(), wanted: wish.zones.clone() })?;
    }
    for (key, wanted) in &wish.labels {
        let have = capacity.labels.get(key);
        if have != Some(wanted) {
            no(Reason::Label { key: key.clone(), wanted: wanted.clone(), have: have.cloned() })?;
        }
    }
    if let Some(slurm) = &capacity.slurm
        && let Some(needs) = Needs::of(&spec.run)
    {
        let have = |sets: &[NodeSet]| sets.iter().map(|s| s.name.clone()).collect();
        let wanted = needs.partitions_missing(slurm);
        if !wanted.is_empty() {
            no(Reason::Partition { wanted, have: have(&slurm.partitions) })?;
        }
        let wanted = needs.features_missing(slurm);
        if !wanted.is_empty() {
            no(Reason::Feature { wanted, have: have(&slurm.features) })?;
        }
    }
    for wanted in wish.compliance.iter().filter(|w| !capacity.terms.compliance.contains(*w)) {
        no(Reason::Compliance { wanted: wanted.clone(), have: capacity.terms.compliance.clone() })?;
    }
    if (spec.image.is_some() || spec.run == Run::Image) && capacity.container_runtime.is_none() {
        no(Reason::NoImages)?;
    }
    if let Some(most) = wish.price_max_milli.filter(|most| capacity.price_milli > *most) {
        no(Reason::Price { most, have: capacity.price_milli })?;
    }
    if let Some(reason) = room(spec, site, does, names) {
        no(reason)?;
    }
    Some(())
}

/// Ranks that fit on one node of this shape when it is empty.
fn ranks(spec: &JobSpec, shape: &Shape) -> u64 {
    let need = &spec.resources;
    let per = |have: u64, want: u64| have.checked_div(want).unwrap_or(u64::MAX);
    per(shape.gpus.into(), need.gpus.into())
        .min(per(shape.cpus.0, need.cpus.0))
        .min(per(shape.memory.0, need.memory.0))
}

/// Why the empty cluster would not hold it.
fn room(spec: &JobSpec, site: &Site, does: &Does<'_>, names: &[String]) -> Option<Reason> {
    let need = &spec.resources;
    let good = || site.shapes.iter().filter(|s| does.shape(spec, s));
    let have = good().fold(0u64, |sum, s| sum.saturating_add(ranks(spec, s).saturating_mul(s.count.into())));
    if have >= u64::from(spec.nodes) {
        return None;
    }
    let models = || need.gpu.clone();
    if need.gpus > 0 && good().next().is_none() {
        let mut have: Vec<String> =
            site.shapes.iter().filter_map(|s| names.get(usize::from(s.model?)).cloned()).collect();
        have.sort_unstable();
        have.dedup();
        return Some(Reason::GpuModel { wanted: models(), have });
    }
    let in_all =
        good().fold(0u64, |sum, s| sum.saturating_add(u64::from(s.gpus).saturating_mul(u64::from(s.count))));
    let on_one = good().map(|s| s.gpus).max().unwrap_or(0);
    let cpus = good().map(|s| s.cpus).max().unwrap_or_default();
    let memory = good().map(|s| s.memory).max().unwrap_or_default();
    Some(if need.gpus > on_one {
        Reason::GpusPerNode { models: models(), wanted: need.gpus, have: on_one }
    } else if spec.gpus_total() > in_all {
        Reason::GpusTotal { models: models(), wanted: spec.gpus_total(), have: in_all }
    } else if need.cpus > cpus {
        Reason::Cpus { wanted: need.cpus, have: cpus }
    } else if need.memory > memory {
        Reason::Memory { wanted: need.memory, have: memory }
    } else {
        Reason::Shape { nodes: spec.nodes, gpus: need.gpus, cpus: need.cpus, memory: need.memory, have }
    })
}

/// A job of this length that is sent away for a reservation's start is worth starting.
const WORTH: Span = Span::secs(60);

/// Free GPUs of models that will do, for this job, and what is reserved for others that keeps it from more.
pub(super) fn free_for(
    spec: &JobSpec,
    site: &Site,
    does: &Does<'_>,
    wall: WallTime,
) -> (u64, Option<Reason>) {
    let (mut free, mut barred) = (does.sum(&site.gpus_free), None);
    let ends = spec.max_runtime.map_or(u64::MAX, |run| wall.0.saturating_add(run.as_millis()));
    for r in site.reserved.iter().filter(|r| r.until > wall) {
        let (idle, begun) = (does.sum(&r.idle), r.from <= wall);
        if r.tenant == spec.tenant {
            // What is reserved for its own tenant is not in what is free.
            free = free.saturating_add(if begun { idle } else { 0 });
            continue;
        }
        let goes = spec.may_be_preempted() && wall.0.saturating_add(WORTH.as_millis()) < r.from.0;
        if begun || !(ends <= r.from.0 || goes) {
            free = free.saturating_sub(if begun { 0 } else { idle });
            if idle > 0 && barred.is_none() {
                let text = reserved_words(r.gpus, &r.tenant, r.from, r.until);
                barred = Some(Reason::Reserved { text });
            }
        }
    }
    (free, barred)
}

/// The first reason that may pass, if any: the cluster could run it, but not now as far as is known.
/// `taken` is what was given out there and its report does not show yet, in GPUs.
pub(super) fn passing(
    spec: &JobSpec,
    site: &Site,
    does: &Does<'_>,
    taken: u64,
    (now, wall): (Instant, WallTime),
) -> Option<Reason> {
    let member = &site.member;
    let part = |part: &str| Some(Reason::NotReported { part: part.into() });
    let Some(report) = &member.report else { return part("it") };
    if report.capacity.is_none() {
        return part("capacity");
    }
    match member.liveness {
        Liveness::Lost => return Some(Reason::Lost),
        Liveness::Suspect => return Some(Reason::Suspect),
        Liveness::Alive => {}
    }
    if member.draining {
        return Some(Reason::Drains);
    }
    let Some(queue) = &report.queue else { return part("queue") };
    if let Some(why) = &queue.closed {
        return Some(Reason::Closed { why: why.clone() });
    }
    let age = now.since(report.heard_at);
    if age > REPORT_AGE_MAX {
        return Some(Reason::Stale { age });
    }
    let (free, reserved) = free_for(spec, site, does, wall);
    let room = does.room(site, spec.resources.gpus, free).1.saturating_sub(taken);
    let (wanted, free) = (spec.gpus_total(), free.saturating_sub(taken));
    let kept = if spec.priority < queue.buffer_priority { u64::from(queue.gpus_buffer) } else { 0 };
    if wanted > 0 && wanted <= free && wanted > free.saturating_sub(kept) {
        return Some(Reason::GpusKept { wanted, free, kept, priority: queue.buffer_priority });
    }
    if wanted > free {
        let idle = site.reserved.iter().filter(|r| r.tenant != spec.tenant).map(|r| does.sum(&r.idle));
        if let Some(reason) = reserved.filter(|_| wanted <= free.saturating_add(idle.sum())) {
            return Some(reason);
        }
        return Some(Reason::GpusBusy { wanted, free, queued: queue.queued });
    }
    if wanted > room {
        return Some(Reason::GpusApart { nodes: spec.nodes, each: spec.resources.gpus, free });
    }
    let need = &spec.resources;
    if need.cpus.0.saturating_mul(spec.nodes.into()) > queue.cpus_free.0 {
        return Some(Reason::CpusBusy { nodes: spec.nodes, wanted: need.cpus, free: queue.cpus_free });
    }
    if need.memory.0.saturating_mul(spec.nodes.into()) > queue.memory_free.0 {
        return Some(Reason::MemoryBusy { nodes: spec.nodes, wanted: need.memory, free: queue.memory_free });
    }
    None
}

/// Figures by model as numbers of models, those above the total cut to it: a report is not believed to have more
/// free than there is.
pub(super) fn by_model(
    free: &BTreeMap<String, u32>,
    total: &BTreeMap<String, u32>,
    mut number: impl FnMut(&str) -> Option<u16>,
) -> Vec<(u16, u32)> {
    free.iter()
        .filter_map(|(model, n)| Some((number(model)?, (*n).min(total.get(model).copied().unwrap_or(0)))))
        .collect()
}
